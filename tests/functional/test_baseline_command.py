"""The commands `gpuperf baseline …` and `gpuperf verify`, on stores that pytest wrote."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from fakes.project import VALUES, XDIST, Project, lines
from pytest_gpuperf import cli
from pytest_gpuperf.baseline.changes import Append, Restart
from pytest_gpuperf.baseline.store import open_store
from pytest_gpuperf.judge.history import newest_case
from pytest_gpuperf.judge.regression import smallest_seen
from pytest_gpuperf.model.codec import decode_run
from pytest_gpuperf.model.environment import Session
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.record import (
    FILES,
    REFERENCES,
    FileList,
    RecordKey,
    SessionValue,
    StoredRecord,
)
from pytest_gpuperf.report.lines import SCHEMAS

STORE = ".gpuperf"
DATABASE = "sqlite:///perf.db"
TEST = "test_it.py::test_x"

# ends the process of the tests with the exit status of success, as C extensions may
LEAVES = """
    import ctypes
    import os

    import pytest

    @pytest.mark.parametrize("n", range(3))
    def test_it(gpuperf, n):
        gpuperf.record("x", n + 1, better="lower")
        if n == 1 and "LEAVE" in os.environ:
            ctypes.CDLL(None)._exit(0)
"""


class Command:
    """The command in the folder of a project, and what it printed."""

    def __init__(self, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
        self._capture = capfdbinary
        self.code = 0
        self.errors = ""

    def __call__(self, *arguments: str) -> str:
        """Run it and return its standard output."""
        self._capture.readouterr()
        self.code = cli.main([*arguments])
        output, errors = self._capture.readouterr()
        self.errors = errors.decode()
        return output.decode()

    def json(self, *arguments: str) -> Any:
        """Run it and return what it printed as JSON."""
        return json.loads(self(*arguments, "--format=json"))


@pytest.fixture(name="command")
def command_(
    project: Project,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> Command:
    """Return the command, started in the folder of the project."""
    monkeypatch.chdir(project.path)
    return Command(capfdbinary)


def test_json_names_its_schema(
    project: Project, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that reads what a command prints knows what it is, and which version."""
    monkeypatch.setenv("GPUPERF_CACHE_DIR", str(project.path / "cache"))
    project.store()
    project.run("--gpuperf-json=run.json")
    of = {
        "baseline list": [STORE],
        "baseline show": [STORE, f"{TEST}[a]"],
        "baseline drop": [STORE, "3"],
        "baseline accept": [STORE, "run.json", f"--test={TEST}[a]"],
        "verify": ["run.json"],
        "doctor": [],
        "cache info": [],
        "cache verify": [],
        "cache clear": [],
    }
    named = {
        words: command.json(*words.split(), *arguments)["schema"]
        for words, arguments in of.items()
    }

    assert named == {words: SCHEMAS[words] for words in of}


def test_sessions_are_listed(project: Project, command: Command) -> None:
    """In the order of their arrival, each with a number; a test restricts them."""
    project.store()
    text = command("baseline", "list", STORE)
    listed = command.json("baseline", "list", STORE, f"--test={TEST}[a]")

    assert command.code == 0
    assert "3 sessions of 3 tests" in text
    assert [session["number"] for session in listed["sessions"]] == [1, 2, 3]
    assert {session["tests"] for session in listed["sessions"]} == {1}
    assert "| session | date |" in command(
        "baseline", "list", STORE, "--format=markdown"
    )


def test_a_session_without_tests_says_what_it_has(
    project: Project, command: Command
) -> None:
    """It may have stored its files alone, or its tests were dropped."""
    project.store(sessions=1)
    store = open_store(STORE, project.path)
    (slug,) = store.slugs()
    record = next(iter(store.load(slug).values()))[0]
    files = FileList(positions={}, listed=(), ended={}, surroundings="")
    key = RecordKey(test_id=REFERENCES, name=f"{FILES}1")
    session = replace(record.session, id="of-files")
    alone = replace(record, key=key, session=session, files=files, arrival=0)
    store.write(slug, [Restart(record=alone)])

    listed = command("baseline", "list", STORE)
    assert "files only    3  of-files" in listed
    assert "2 sessions of 3 tests" in listed
    command("baseline", "drop", STORE, "1", f"--test={TEST}")
    assert "references only" in command("baseline", "list", STORE)


def test_a_machine_is_listed_by_its_whole_name(
    project: Project, command: Command
) -> None:
    """However long it is: `verify --machine` takes it, and refuses half of it."""
    project.store(sessions=1)
    (machine,) = command.json("baseline", "list", STORE)["sessions"][0]["machines"]
    name = f"{machine}-{'x' * 60}"
    Path(STORE, machine).rename(Path(STORE, name))

    assert name in command("baseline", "list", STORE)


def test_a_single_file_is_listed(project: Project, command: Command) -> None:
    """A store in one file is a store as any other."""
    project.write("def test_x(gpuperf): gpuperf.record('x', 1)")
    project.run("--gpuperf-baseline=base.json", "--gpuperf-update=new")

    assert "1 session of 1 test" in command("baseline", "list", "base.json")


def test_a_series_is_shown(project: Project, command: Command) -> None:
    """Each session's value, and how far it lies from the others."""
    project.store(sessions=1)
    for value in (3.0, 1.0):  # two sessions would show that the first is a regression
        project.set_values(b=value)
        project.run("-q", "--gpuperf-update=all")
    text = command("baseline", "show", STORE, f"{TEST}[b]")
    (series,) = command.json("baseline", "show", STORE, f"{TEST}[b]")["series"]

    assert "3.00 s" in text
    assert "+200 %" in text
    assert f"{TEST}[a]" not in text
    assert [each["run_values"] for each in series["sessions"]] == [[1.0], [3.0], [1.0]]


def test_a_value_that_the_judge_leaves_out_is_marked(
    project: Project, command: Command
) -> None:
    """By the judge's own rule, with the command that removes it."""
    project.write(VALUES)
    for value in (1.0, 3.0, 1.0, 1.0, 1.0):
        project.set_values(b=value)
        project.run("-q", "--gpuperf-update=new")
    text = command("baseline", "show", STORE, f"{TEST}[b]")
    of_both = command.json("baseline", "show", STORE, f"{TEST}[a]", f"{TEST}[b]")
    first, second = of_both["series"]
    odd = second["sessions"][1]["id"]

    assert "+200 %, left out" in text
    assert "session 2 is left out of judging" in text
    assert f"gpuperf baseline drop {STORE} {odd} --test={TEST}[b]" in text
    assert (first["left_out"], second["left_out"]) == (None, odd)


def test_a_series_says_what_it_sees(project: Project, command: Command) -> None:
    """At the limit that pytest has without being told, now and with two more sessions."""
    show = ("baseline", "show", STORE, TEST, "--metrics=time")
    text = "def test_x(gpuperf): gpuperf(sorted, [*range(20_000)])"
    project.store(text, sessions=1)
    alone = command.json(*show)["series"]
    project.store(text, sessions=2)
    (series,) = command.json(*show)["series"]
    shown = command(*show)

    assert [each["sees_fraction"] for each in alone] == [None]
    assert series["sees_fraction"] > series["sees_with_two_more_fraction"] > 0.05
    assert "or more at a limit of 5.0 %; with 2 more sessions " in shown


@pytest.mark.parametrize("name", ["number", "id"])
def test_a_session_is_dropped(project: Project, command: Command, name: str) -> None:
    """By its number or its id, of all tests or of those that are named."""
    project.store()
    second = command.json("baseline", "list", STORE)["sessions"][1][name]
    command("baseline", "drop", STORE, str(second), f"--test={TEST}[a]")
    of_one = command.json("baseline", "show", STORE, f"{TEST}[a]", f"{TEST}[b]")
    text = command("baseline", "drop", STORE, str(second))

    assert [len(series["sessions"]) for series in of_one["series"]] == [2, 3]
    assert "removed 1 session of 2 measurements; 2 sessions left" in text


def test_a_series_starts_anew_with_a_run(project: Project, command: Command) -> None:
    """What regressed is accepted without another run; other tests keep their sessions."""
    project.store()
    project.set_values(b=1.2)
    run = (
        "--gpuperf-baseline=.gpuperf",
        "--gpuperf-confirm=1",
        "--gpuperf-json=run.json",
    )
    failed = project.run(*run)
    text = command("baseline", "accept", STORE, "run.json")
    series = command.json("baseline", "show", STORE, f"{TEST}[a]", f"{TEST}[b]")[
        "series"
    ]

    assert failed.ret == 1
    assert f"accepted {TEST}[b] x: 3 sessions dropped, 1 stored" in text
    assert f"pytest --gpuperf-update=new --gpuperf-baseline={STORE}" in text
    assert [len(each["sessions"]) for each in series] == [3, 1]
    assert series[1]["sessions"][0]["number"] == 4
    assert command("baseline", "accept", STORE, "run.json", f"--test={TEST}[a]")
    assert command.code == 0


def test_an_edited_line_is_told_and_accepted(
    project: Project, command: Command
) -> None:
    """A run names it and goes on without it; the command gives it a new checksum."""
    project.store()
    (path,) = project.path.glob(".gpuperf/**/test_it.json")
    path.write_bytes(path.read_bytes().replace(b"[1.0]", b"[1.5]", 1))
    told = project.run("--gpuperf-baseline=.gpuperf")
    listed = command("baseline", "list", STORE)
    accepted = command("baseline", "accept", STORE, "--edited")
    nothing = command("baseline", "accept", STORE, "--edited")

    assert lines(told, "test_it.json, line ", "it differs from its checksum")
    assert lines(told, "gpuperf baseline accept .gpuperf --edited")
    assert "left out: " in listed
    assert "accept them: gpuperf baseline accept .gpuperf --edited" in listed
    assert "accepted 1 line: " in accepted
    assert "no line was edited" in nothing
    assert not lines(project.run("--gpuperf-baseline=.gpuperf"), "checksum")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("list", "nowhere"), 4, "--gpuperf-update=new --gpuperf-baseline=nowhere"),
        (
            ("list", STORE, "--test=test_y.py"),
            2,
            f"no test 'test_y.py' is stored in {STORE}",
        ),
        (("show", STORE, "test_y.py"), 2, f"as {TEST}[a]"),
        (("drop", STORE, "9"), 2, f"{STORE} has no session 9"),
        (("drop", STORE, "9", "1", "x"), 2, f"{STORE} has no session 9, x"),
        (
            ("list", STORE, "--test=test_y.py", "--test=test_z.py"),
            2,
            "no test 'test_y.py', 'test_z.py' is stored",
        ),
        (
            ("show", STORE, "test_it.py", "--metrics=tme,x,y"),
            2,
            "no metric 'tme', 'y' is stored of these tests",
        ),
        (("drop", STORE, "9"), 2, "name one of: gpuperf baseline list .gpuperf"),
        (("accept", STORE), 2, "nothing is named to accept"),
        (
            ("accept", STORE, "run.json", "--edited"),
            2,
            "a run and --edited are named to accept",
        ),
        (("accept", STORE, "run.json"), 2, "name tests: --test=ID"),
        (("accept", STORE, "run.json", "--test=test_y.py"), 2, "measured in run.json"),
    ],
)
def test_a_mistake_is_told_with_its_remedy(
    project: Project,
    command: Command,
    arguments: tuple[str, ...],
    code: int,
    words: str,
) -> None:
    """Nothing is printed to standard output, and nothing is changed."""
    project.store(sessions=1)
    project.run("--gpuperf-json=run.json")

    assert command("baseline", *arguments) == ""
    assert command.code == code
    assert words in command.errors
    assert "remedy: " in command.errors


def test_a_run_that_was_cut_off_is_not_accepted(
    project: Project, command: Command
) -> None:
    """Its values may be those of a machine that was about to fail."""
    project.write(LEAVES)
    project.run("--gpuperf-update=new")
    project.environment.setenv("LEAVE", "1")
    project.spawn("--gpuperf-json=run.json")

    command("baseline", "accept", STORE, "run.json", "--test=test_it.py")
    assert command.code == 4
    assert "is not complete" in command.errors


def test_code_that_ends_the_process_cannot_pass_a_gate(
    project: Project, command: Command
) -> None:
    """Code in C leaves with 0 and tells nothing; the report says that it was interrupted."""
    project.write(LEAVES)
    project.run("--gpuperf-update=new", "--gpuperf-json=run.json")
    whole = command("verify", "run.json", f"--expect-from={STORE}")
    passed = command.code
    project.environment.setenv("LEAVE", "1")
    ended = project.spawn("--gpuperf-json=run.json")
    cut_off = command("verify", "run.json", f"--expect-from={STORE}")

    assert (passed, ended.returncode, command.code) == (0, 0, 1)
    assert f"complete: 3 tests, among them all 3 of {STORE}" in whole
    assert "the run ended before its last test; it holds 1 of 3 tests" in cut_off
    assert "2 of the 3 tests of .gpuperf did not run: test_it.py::test_it[1]" in cut_off
    assert len(decode_run((project.path / "run.json").read_bytes()).records) == 1


def test_a_test_that_was_renamed_leaves_the_store_by_a_command_that_is_told(
    project: Project, command: Command
) -> None:
    """Else every run would name it and `verify` fail, and its sessions be typed one by one."""
    project.store()
    project.write(VALUES.replace("test_x", "test_y"))
    ended = project.run(f"--gpuperf-baseline={STORE}", "--gpuperf-json=run.json")
    told = command("verify", "run.json", f"--expect-from={STORE}")
    forget = f"gpuperf baseline drop {STORE} all --test=test_it.py"

    assert command.code == 1
    assert lines(ended, f"if removed: {forget}")
    assert "3 of the 3 tests of .gpuperf are no longer in the code" in told
    assert f"if removed: {forget}" in told
    assert "removed 3 sessions of 3 measurements" in command(*shlex.split(forget)[1:])
    project.run("--gpuperf-update=new", "--gpuperf-json=run.json")
    assert command("verify", "run.json", f"--expect-from={STORE}")
    assert command.code == 0


@pytest.mark.parametrize(
    "names",
    [(f"{TEST}[a]", f"{TEST}[a]"), (TEST, TEST), ("test_it.py", "./test_it.py")],
)
def test_a_new_name_that_is_the_old_one_is_refused(
    project: Project, command: Command, names: tuple[str, str]
) -> None:
    """The remedy does not drop the sessions that were to be kept."""
    project.store(sessions=1)
    command("baseline", "rename", STORE, *names)

    assert command.code == 2
    assert "the old and the new name are equal" in command.errors
    assert "drop" not in command.errors


def test_tests_that_are_gone_are_counted_and_named(
    project: Project, command: Command
) -> None:
    """A test that was deleted or deselected is missing; another machine's may be left out."""
    project.write(LEAVES)
    project.run("--gpuperf-update=new")
    project.run("--gpuperf-json=run.json", "-k", "0 or 2")
    found = command.json("verify", "run.json", f"--expect-from={STORE}")
    (machine,) = command.json("baseline", "list", STORE)["sessions"][0]["machines"]

    assert found["missing"] == ["test_it.py::test_it[1]"]
    assert not found["complete"]
    assert command("verify", "run.json")
    assert command.code == 0
    command("verify", "run.json", f"--expect-from={STORE}", f"--machine={machine}")
    assert command.code == 1
    command("verify", "run.json", f"--expect-from={STORE}", "--machine=other")
    assert (command.code, f"name one of {machine}" in command.errors) == (2, True)
    command("verify", "run.json", "--machine=other")
    assert (command.code, "add --expect-from" in command.errors) == (2, True)


def test_a_run_is_not_compared_with_an_empty_store(
    project: Project, command: Command
) -> None:
    """A cache that was not restored must not pass for a baseline whose tests all ran."""
    project.run("--gpuperf-json=run.json")
    Path(STORE).mkdir()

    assert command("verify", "run.json", f"--expect-from={STORE}") == ""
    assert command.code == 4
    assert f"nothing is stored in {STORE}" in command.errors
    assert f"pytest --gpuperf-update=new --gpuperf-baseline={STORE}\n" in command.errors
    assert "remedy: restore its files" in command.errors


def test_a_worker_that_dies_makes_a_run_incomplete(
    project: Project, command: Command
) -> None:
    """Its test never reported."""
    project.write(LEAVES)
    project.environment.setenv("LEAVE", "1")
    project.run(*XDIST, "-n2", "--gpuperf-json=run.json")

    assert "1 test never reported: test_it.py::test_it[1]" in command(
        "verify", "run.json"
    )
    assert command.code == 1


def test_a_run_without_a_measurement_replaces_no_report_by_a_good_one(
    project: Project, command: Command
) -> None:
    """An older report must not stand for a run that measured nothing; collecting keeps it."""
    project.write("def test_x(gpuperf): gpuperf.record('x', 1)")
    project.write("def test_plain(): pass", "test_plain.py")
    project.run("--gpuperf-json=run.json")
    project.run("--gpuperf-json=run.json", "--collect-only")
    command("verify", "run.json")
    collected = command.code
    project.run("--gpuperf-json=run.json", "test_plain.py")
    command("verify", "run.json")

    assert (collected, command.code) == (0, 1)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="makes a named pipe")
def test_a_pipe_is_not_read_and_not_waited_for(
    tmp_path: Path, command: Command
) -> None:
    """Nobody may ever write into it; a device may never end."""
    os.mkfifo(tmp_path / "pipe.json")
    scorecard = ("scorecard", "--throughput=1", "--hardware=gb10")

    for words in (("show",), ("verify",), ("utilization",), scorecard):
        command(*words, str(tmp_path / "pipe.json"))
        assert command.code == 4
        assert "it is a folder, a pipe or a device" in command.errors
    command("verify", "/dev/zero")
    assert "it is a folder, a pipe or a device" in command.errors


def test_a_run_is_compared_with_a_store_and_a_recording(
    project: Project, command: Command
) -> None:
    """Each stands beside it; a store in one file is known by its content."""
    project.write(
        """
        def test_x(gpuperf):
            gpuperf.measure(sorted, list(range(3000)))
        """
    )
    project.run("--gpuperf-update=new", "--gpuperf-json=run.json")
    project.run("--gpuperf-baseline=base.json", "--gpuperf-update=new")
    project.run("--gpuperf-record=kept")
    for older in (STORE, "base.json", "kept"):
        (pair, *_) = command.json("compare", older, "run.json")["comparisons"]
        assert (pair["test"], pair["metric"]) == ("test_it.py::test_x", "time")
        assert pair["was"] > 0
        assert pair["ratio"] == pytest.approx(pair["now"] / pair["was"])
    assert "test_x" in command("compare", STORE, "kept")
    command("compare", "run.json", STORE)

    assert command.code == 2
    assert "name the store first, and a run last" in command.errors


def test_a_number_of_a_test_is_shown_beside_the_stored_ones(
    project: Project, command: Command
) -> None:
    """Nothing gates it, so nothing is judged; in a run and of files alike."""
    body = "def test_x(gpuperf): gpuperf.record('ttft', {}, unit='ms', better='lower')"
    project.write(body.format(120))
    project.run("--gpuperf-update=new")
    project.write(body.format(180))
    done = project.run("--gpuperf-json=run.json")
    (pair,) = command.json("compare", STORE, "run.json")["comparisons"]

    printed = done.stdout.str()
    assert "180 ms  +50.0 %" in printed
    assert "judged 0 of 1: 1 with no gated metric" in printed
    assert pair["metric"] == "ttft"
    assert pair["ratio"] == pytest.approx(1.5)
    assert pair["outcome"] is None
    assert "1.500" in command("compare", STORE, "run.json")
    assert command.code == 0


@pytest.mark.parametrize("store", [STORE, "sqlite:///perf.db"])
def test_a_run_below_its_repository_is_compared_with_its_store(
    project: Project, command: Command, monkeypatch: pytest.MonkeyPatch, store: str
) -> None:
    """The store has keys from the repository's folder, and the run ids from its own."""
    (project.path / ".git").mkdir()
    project.write("[pytest]\n", "proj/pytest.ini")
    project.write(VALUES, "proj/tests/test_it.py")
    monkeypatch.chdir(project.path / "proj")
    test = "tests/test_it.py::test_x"
    for _ in range(3):
        project.run("--gpuperf-update=all")
    project.set_values(b=1.5)
    project.run("--gpuperf-json=run.json", f"{test}[a]", f"{test}[b]")
    if store != STORE:
        command("baseline", "copy", STORE, store)
    found = command.json("compare", store, "run.json")
    pairs = {pair["test"]: (pair["was"], pair["now"]) for pair in found["comparisons"]}

    assert command.code == 1
    assert pairs == {
        f"{test}[a]": (1.0, 1.0),
        f"{test}[b]": (1.0, 1.5),
        f"{test}[c]": (1.0, None),
    }


@pytest.mark.parametrize(
    ("place", "remedy"),
    [
        ("sqlite:perf.db", "write sqlite:///perf.db"),
        ("postgresql:u:pw@db/perf", "write postgresql://u:***@db/perf"),
        ("postgresql:/db/perf#x", "write postgresql://db/perf#x"),
        (f"{STORE}#x", f"write {STORE}"),
        ("perf.json#x", "write perf.json"),
    ],
)
def test_a_mistaken_store_is_written_right_by_its_remedy(
    project: Project, command: Command, place: str, remedy: str
) -> None:
    """A database has slashes, and a folder or a file has no project."""
    project.store(sessions=1)
    command("baseline", "list", place)

    assert command.code == 2
    assert f"remedy: {remedy}\n" in command.errors


def many_stored(tests: int, sessions: int) -> list[str]:
    """Store sessions of many tests in a database, and return their ids."""
    store = open_store(DATABASE, ".", create=True)
    ids = [f"{TEST}[{number:04}]" for number in range(tests)]
    for session in range(sessions):
        head = Session(id=f"s{session}", started_unix_s=1.7e9 + session, host="h")
        records = [
            StoredRecord(
                key=RecordKey(test_id=test_id),
                session=replace(head, ran_count=tests),
                values=tuple(
                    SessionValue(metric=m, unit="s", source="host", run_values=(value,))
                    for m in ("time", "other")
                ),
            )
            for number, test_id in enumerate(ids)
            for value in [1 + 0.01 * ((7 * number + 13 * session) % 11)]
        ]
        store.write("host", [Append(record=record) for record in records])
    return ids


@pytest.mark.parametrize("deed", ["list", "drop", "show"])
def test_a_command_reads_the_named_tests(
    project: Project, command: Command, deed: str
) -> None:
    """An unreadable row of another test does not concern it, as in a run of the test."""
    del project  # It gives an empty folder.
    first, *_ = many_stored(3, sessions=2)
    named = [first] if deed == "show" else [f"--test={first}"]
    session = ["s1"] if deed == "drop" else []
    with contextlib.closing(sqlite3.connect("perf.db")) as connection, connection:
        connection.execute(
            "UPDATE value SET rest = x'c1' WHERE test NOT IN "
            "(SELECT id FROM test WHERE node = ?) "
            # The judge compares the times of all tests.
            "AND metric NOT IN (SELECT id FROM metric WHERE name = 'time')",
            [first],
        )
    metrics = ["--metrics=time"] if deed == "show" else []
    command("baseline", deed, DATABASE, *session, *named, *metrics)

    assert (command.code, command.errors) == (0, "")
    assert command("baseline", "rename", DATABASE, first, f"{TEST}[new]")
    assert command.code == 0


def test_what_a_series_of_a_large_store_sees_is_of_all_tests(
    project: Project, command: Command
) -> None:
    """A sample of the other tests tells as much as all of them, and counts as all."""
    del project  # It gives an empty folder.
    first, *_ = many_stored(1_600, sessions=3)
    (series,) = command.json("baseline", "show", DATABASE, first, "--metrics=time")[
        "series"
    ]
    stored = open_store(DATABASE, ".").load("host", quantiles=False)
    cases = [newest_case(several, "time", limit=0.05) for several in stored.values()]

    assert series["sees_fraction"] == pytest.approx(smallest_seen(cases)[0], rel=0.05)
