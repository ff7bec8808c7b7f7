"""A run whose store is a database judges, stores and accepts as with files."""

from __future__ import annotations

import json
import os
import shlex
import sqlite3

import pytest

from fakes.project import VALUES, Project, command, lines
from fakes.servers import PASSWORD, new_database, sql, url
from pytest_gpuperf.baseline.protocol import Store
from pytest_gpuperf.baseline.store import open_store
from pytest_gpuperf.model.record import REFERENCES

NEW = "--gpuperf-update=new"


def database_of(place: str) -> str:
    """Return the name of the database of a URL."""
    return place.partition("@/")[2].partition("?")[0]


def said(run: pytest.RunResult) -> str:
    """Return the output, in which long lines were wrapped, as one line."""
    return " ".join(run.stdout.str().split())


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest) -> str:
    """Return the name of a database that has nothing."""
    return "sqlite:///perf.db" if request.param == "sqlite" else new_database()


def test_a_database_holds_the_baseline(project: Project, place: str) -> None:
    """A change is found against it, accepted, and the sessions are listed."""
    project.write(VALUES)
    baseline = f"--gpuperf-baseline={place}"
    stored = [project.run(NEW, baseline) for _ in range(5)]
    gated = project.run(baseline, "--gpuperf-confirm=1")
    project.set_values(b=1.5)
    slower = project.run(baseline, "--gpuperf-confirm=1")
    part = project.run(baseline, "--gpuperf-confirm=1", "-k", "b")
    project.run(baseline, "--gpuperf-update=all", "--gpuperf-confirm=1")
    after = project.run(baseline, "--gpuperf-confirm=1")

    assert [run.ret for run in (*stored, gated)] == [0] * 6
    assert (slower.ret, after.ret) == (1, 0)
    assert lines(slower, "test_x[b] x", "REGRESSED")
    # A run of one test of three is no evidence, but is read of its sessions, too.
    assert lines(part, "not confirmed")
    listed = command("baseline", "list", place, folder=project.path)
    assert listed.returncode == 0
    assert PASSWORD not in listed.stdout + listed.stderr
    assert "6 sessions of 3 tests" in listed.stdout


def test_a_missing_database_stops_the_run(project: Project) -> None:
    """Before any test runs, and with the command that creates it."""
    project.write(VALUES)
    ended = project.run("--gpuperf-baseline=sqlite:///absent.db")

    assert ended.ret == 4
    assert lines(ended, "there is no baseline at", "--gpuperf-update=new")
    assert not (project.path / "absent.db").exists()


def test_a_password_is_nowhere(project: Project) -> None:
    """Not in the output, in a report, or in the arguments of a process that confirms."""
    place = new_database()
    project.write(
        VALUES
        + """
    def test_arguments():
        import pathlib, sys
        with open("arguments.txt", "a") as file:
            file.write(pathlib.Path("/proc/self/cmdline").read_text() + repr(sys.argv))
    """
    )
    baseline = f"--gpuperf-baseline={place}"
    reports = ("--gpuperf-json=run.json", "--junit-xml=junit.xml")
    runs = [project.run(NEW, baseline, *reports) for _ in range(3)]
    project.set_values(b=1.5)
    runs.append(project.run(baseline, "--gpuperf-confirm=2", *reports))
    runs.append(project.run(baseline.replace(PASSWORD, f"{PASSWORD}x"), *reports))

    assert [run.ret for run in runs] == [0, 0, 0, 1, 4]
    for run in runs:
        assert PASSWORD not in "\n".join((*run.outlines, *run.errlines))
    for path in project.path.rglob("*"):
        if path.is_file():
            held = path.read_bytes()
            # pytest itself was given it here.
            if path.name != "arguments.txt":
                assert PASSWORD.encode() not in held, path


@pytest.mark.parametrize("target", [".gpuperf", "baseline.json", "sqlite:///copy.db"])
def test_a_snapshot_judges_as_its_source(
    project: Project, place: str, target: str
) -> None:
    """A copy has the same sessions in the same order, and copying again adds nothing."""
    project.write(VALUES)
    for value in (1.0, 1.01, 0.99):
        project.set_values(b=value)
        project.run(NEW, f"--gpuperf-baseline={place}")

    copied = [
        command("baseline", "copy", place, target, folder=project.path)
        for _ in range(2)
    ]
    project.set_values(b=1.5)
    slower = project.run(f"--gpuperf-baseline={target}", "--gpuperf-confirm=1")

    assert [each.returncode for each in copied] == [0, 0]
    assert "copied 3 sessions" in copied[0].stdout
    assert "copied 0 sessions" in copied[1].stdout
    assert "3 sessions added nothing" in copied[1].stdout
    assert PASSWORD not in copied[0].stdout
    of_source, of_copy = (
        loaded(open_store(name, project.path)) for name in (place, target)
    )
    assert of_copy == of_source
    assert lines(slower, "test_x[b] x", "REGRESSED")


def test_a_snapshot_has_the_newest_sessions(project: Project, place: str) -> None:
    """As many as are asked for of each test, whichever sessions have it."""
    project.write(VALUES)
    for value in (1.0, 1.01, 0.99, 1.02):
        project.set_values(b=value)
        project.run(NEW, f"--gpuperf-baseline={place}")
    project.run(NEW, f"--gpuperf-baseline={place}", "--deselect=test_it.py::test_x[c]")

    copied = command(
        *("baseline", "copy", place, "small.json", "--newest=2"), folder=project.path
    )
    refused = command(
        *("baseline", "copy", place, "none.json", "--newest=0"), folder=project.path
    )

    of_source, of_copy = (
        loaded(open_store(name, project.path)) for name in (place, "small.json")
    )
    assert copied.returncode == 0
    assert of_copy == {name: each[-2:] for name, each in of_source.items()}
    assert refused.returncode == 2
    assert "'0' is not a whole number from 1 on" in refused.stderr


def loaded(store: Store) -> dict[str, list[tuple[str, float]]]:
    """Return sessions and values of each test."""
    (slug,) = store.slugs()
    return {
        str(key): [(r.session.id, r.values[0].run_values[0]) for r in records]
        for key, records in store.load(slug).items()
        if key.test_id != REFERENCES
    }


def test_a_copy_of_an_unknown_machine_is_refused(project: Project) -> None:
    """The machines that there are, are named."""
    project.store(sessions=1)
    refused = command(
        *("baseline", "copy", ".gpuperf", "x.json", "--machine=h200"),
        folder=project.path,
    )

    assert refused.returncode == 2
    assert "has no sessions of h200" in refused.stderr
    assert "name one of" in refused.stderr
    assert not (project.path / "x.json").exists()


def test_the_printed_grants_let_roles_store_and_read(project: Project) -> None:
    """A user in gpuperf_write stores, a user in gpuperf_read gates and cannot store."""
    owner = new_database()
    name = database_of(owner)
    project.write(VALUES)
    project.run(NEW, f"--gpuperf-baseline={owner}")
    statements = command("baseline", "grants").stdout
    for _ in range(2):  # They may be run again.
        sql(statements, name)
    for role in ("read", "write"):
        sql(f"CREATE USER {role}_{name} PASSWORD 'pw' IN ROLE gpuperf_{role}")
    writing, reading = (
        f"--gpuperf-baseline={url(name, f'{role}_{name}', 'pw')}"
        for role in ("write", "read")
    )

    stored = [project.run(NEW, writing) for _ in range(3)]
    project.set_values(b=1.5)
    gated = project.run(reading, "--gpuperf-confirm=1")
    refused = project.run(reading, NEW)

    assert [run.ret for run in (*stored, gated, refused)] == [0, 0, 0, 1, 1]
    assert lines(gated, "test_x[b] x", "REGRESSED")
    assert "permission denied" in said(refused)
    assert "name a role that may do this: gpuperf_write stores" in said(refused)


@pytest.mark.parametrize("options", [(), (NEW,)])
def test_a_server_that_is_lost_during_a_run_loses_no_result(
    project: Project, options: tuple[str, ...]
) -> None:
    """The run says so and fails; its table and its report are written."""
    place = new_database()
    project.write(VALUES)
    baseline = f"--gpuperf-baseline={place}"
    for _ in range(2):
        project.run(NEW, baseline)
    closing = """
    def test_z_last():
        import psycopg
        with psycopg.connect(SERVER, autocommit=True) as link:
            link.execute("ALTER DATABASE NAME ALLOW_CONNECTIONS false")
            link.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = 'NAME'"
            )
    """
    name = database_of(place)
    closing = closing.replace("SERVER", repr(url("postgres"))).replace("NAME", name)
    project.write(VALUES + closing)
    ended = project.run(baseline, "--gpuperf-json=run.json", *options)

    assert ended.ret == 1
    assert lines(ended, "test_x[a] x")
    assert not lines(ended, "INTERNALERROR")
    assert len(project.report()["records"]) == 3
    assert PASSWORD not in ended.stdout.str() + ended.stderr.str()
    kept = [*project.path.glob(".gpuperf-unsent/*.json")]
    assert len(kept) == len(options)
    if kept:
        file = f".gpuperf-unsent/{kept[0].name}"
        assert f"the session is kept in {file};" in said(ended)
        assert f"/{file}" not in said(ended)
        sql(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
        sent = command("baseline", "send", place, folder=project.path)
        assert "sent 1 session to postgresql:" in sent.stdout
        assert PASSWORD not in sent.stdout + sent.stderr
        assert not kept[0].exists()
        listed = command("baseline", "list", place, folder=project.path)
        assert "3 sessions of 3 tests" in listed.stdout


@pytest.mark.parametrize("by_ini", [False, True])
@pytest.mark.parametrize("name", [".gpuperf", "sqlite:///z.db"])
def test_printed_commands_work_in_a_subfolder(
    project: Project, name: str, by_ini: bool
) -> None:
    """They name the store, tests and reports from the folder where pytest was started."""
    project.write(f"[pytest]\n{f'gpuperf_baseline = {name}' * by_ini}\n", "pytest.ini")
    project.write(VALUES, "sub/test_it.py")
    project.environment.chdir(project.path / "sub")
    named = () if by_ini else (f"--gpuperf-baseline={name}",)
    for _ in range(2):
        assert project.run(NEW, *named).ret == 0
    file = project.path / ("" if by_ini else "sub") / name.removeprefix("sqlite:///")
    project.set_values(b=1.5)
    slower = project.run(*named, "--gpuperf-confirm=1", "--gpuperf-json=run.json")

    assert file.exists()
    assert slower.ret == 1
    (line,) = lines(slower, "reproduce: pytest ")
    again = project.run(*shlex.split(line.partition("pytest ")[2]))
    assert again.ret == 1, again.stdout.str()
    (line,) = lines(slower, "accept: ")
    typed = shlex.split(line.partition("pytest ")[2])
    assert project.run(*typed, "--gpuperf-confirm=1").ret == 0

    project.write(VALUES.replace('"c"', '"d"'), "sub/test_it.py")
    other = project.run(*named)
    for kind in ("if renamed: ", "if removed: "):
        (line,) = lines(other, kind)
        words = shlex.split(line.partition("gpuperf ")[2])
        ended = command(*words, folder=project.path / "sub")
        assert ended.returncode == 0, ended.stderr
        project.write(VALUES.replace('"c"', '"e"'), "sub/test_it.py")
        other = project.run(*named)
    project.write(VALUES.replace('"b", "c"', '"b"'), "sub/test_it.py")
    project.run(NEW, *named)
    project.write(VALUES.replace(', "b", "c"', ""), "sub/test_it.py")
    dropped = project.run(NEW, *named)
    (line,) = lines(dropped, "gpuperf baseline restore ")
    words = shlex.split(line[line.index("baseline restore") :])
    restored = command(*words, folder=project.path / "sub")
    assert restored.returncode == 0, restored.stderr


def test_a_session_is_sent_from_a_subfolder(project: Project) -> None:
    """By the printed command, and in a repository without a name of the file."""
    project.write("[pytest]\ngpuperf_baseline = sqlite:///z.db\n", "pytest.ini")
    locking = """
    def test_z_last():
        import sqlite3
        with sqlite3.connect(FILE) as link:
            link.execute(
                "CREATE TRIGGER no BEFORE INSERT ON session BEGIN "
                "SELECT RAISE(ABORT, 'no more'); END"
            )
        link.close()
    """
    file = str(project.path / "z.db")
    project.write(VALUES, "sub/test_it.py")
    project.environment.chdir(project.path / "sub")
    project.run(NEW)
    project.write(VALUES + locking.replace("FILE", repr(file)), "sub/test_it.py")
    failed = project.run(NEW)
    with sqlite3.connect(file) as link:
        link.execute("DROP TRIGGER no")
    link.close()
    (kept,) = (project.path / ".gpuperf-unsent").glob("*.json")
    content = kept.read_bytes()
    text = said(failed)
    name = f"../.gpuperf-unsent/{kept.name}"
    typed = f"gpuperf baseline send sqlite:///../z.db {name}"

    assert f"the session is kept in {name};" in text
    assert typed in text
    sent = command(*shlex.split(typed)[1:], folder=project.path / "sub")
    assert sent.returncode == 0, sent.stderr
    assert not kept.exists()
    kept.write_bytes(content)
    (project.path / ".git").mkdir()
    found = command(
        "baseline", "send", "sqlite:///../z.db", folder=project.path / "sub"
    )
    assert found.returncode == 0, found.stderr
    assert not kept.exists()


def test_a_session_that_is_sent_is_not_lost(project: Project) -> None:
    """A file that cannot be sent stays, and one that was stored before adds nothing."""
    project.store(sessions=1)
    command(
        "baseline", "copy", ".gpuperf", ".gpuperf-unsent/a.json", folder=project.path
    )
    place = "sqlite:///perf.db"
    file = project.path / ".gpuperf-unsent" / "a.json"
    absent = command("baseline", "send", place, folder=project.path)
    command("baseline", "migrate", place, folder=project.path)
    content = file.read_bytes()
    sent = []
    for _ in range(2):
        file.write_bytes(content)
        sent.append(command("baseline", "send", place, folder=project.path))
    nothing = command("baseline", "send", place, folder=project.path)

    assert absent.returncode != 0
    assert [each.returncode for each in sent] == [0, 0]
    assert nothing.returncode == 2
    assert "there is no session to send" in nothing.stderr
    listed = command("baseline", "list", place, folder=project.path)
    assert "1 session of 3 tests" in listed.stdout


def test_nothing_is_sent_with_a_damaged_file(project: Project) -> None:
    """So that the same command works once the file is mended or left out."""
    project.store(sessions=1)
    command("baseline", "copy", ".gpuperf", "good.json", folder=project.path)
    project.write('{"schema": ', "bad.json")
    place = "sqlite:///perf.db"
    command("baseline", "migrate", place, folder=project.path)
    sending = ("baseline", "send", place, "good.json", "bad.json")
    refused = command(*sending, folder=project.path)
    (project.path / "bad.json").write_bytes((project.path / "good.json").read_bytes())
    sent = command(*sending, folder=project.path)

    assert (refused.returncode, sent.returncode) == (4, 0)
    assert "bad.json" in refused.stderr
    assert "sent 2 sessions" in sent.stdout
    listed = command("baseline", "list", place, folder=project.path)
    assert "1 session of 3 tests" in listed.stdout


def test_projects_of_one_database_do_not_see_each_other(
    project: Project, place: str
) -> None:
    """Neither values, nor tests that are not in the other one."""
    project.write(VALUES)
    for _ in range(3):
        project.run(NEW, f"--gpuperf-baseline={place}#kernels")
    project.set_values(b=1.5)
    slower = project.run(f"--gpuperf-baseline={place}#kernels", "--gpuperf-confirm=1")
    other = [project.run(NEW, f"--gpuperf-baseline={place}#model-2") for _ in range(3)]
    gated = project.run(f"--gpuperf-baseline={place}#model-2", "--gpuperf-confirm=1")
    unnamed = command("baseline", "list", place, folder=project.path)
    kernels = command("baseline", "list", f"{place}#kernels", folder=project.path)

    assert (slower.ret, gated.ret) == (1, 0)
    assert [run.ret for run in other] == [0] * 3
    assert "0 sessions of 0 tests" in unnamed.stdout
    assert "3 sessions of 3 tests" in kernels.stdout


def test_a_snapshot_stands_in_for_a_server_that_is_away(project: Project) -> None:
    """The run is judged by it, and says so; one that stores needs the server."""
    pytest.importorskip("psycopg")
    project.store()
    away = f"--gpuperf-baseline=postgresql://ci:s3cr3t@/perf?host={project.path}"
    fallback = "--gpuperf-baseline-fallback=.gpuperf"
    project.set_values(b=1.5)

    judged = project.run(away, fallback, "--gpuperf-confirm=1")
    stored = project.run(away, fallback, NEW)
    without = project.run(away)

    assert (judged.ret, stored.ret, without.ret) == (1, 4, 4)
    assert lines(judged, "test_x[b] x", "REGRESSED")
    assert lines(
        judged, "compared with", ".gpuperf, which has sessions up to", "because"
    )
    for run in (judged, stored, without):
        assert "s3cr3t" not in run.stdout.str() + run.stderr.str()


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("sqlite:///absent.db", "there is no baseline at"),
        ("sqlite:///garbage.db", "not a database"),
        ("sqlite:///cut.db", "malformed"),
        ("sqlite:///.gpuperf", "is a folder"),
        ("absent", "there is no baseline at"),
    ],
)
def test_a_snapshot_hides_no_missing_or_damaged_file(
    project: Project, name: str, fault: str
) -> None:
    """The run ends with the error, which names the option that compares with it."""
    project.store(sessions=1)
    command("baseline", "copy", ".gpuperf", "sqlite:///cut.db", folder=project.path)
    with sqlite3.connect(project.path / "cut.db") as link:
        link.execute("PRAGMA journal_mode=DELETE")
    link.close()
    os.truncate(project.path / "cut.db", 6_000)
    (project.path / "garbage.db").write_bytes(b"x" * 5_000)
    fallback = "--gpuperf-baseline-fallback=.gpuperf"

    ended = project.run(f"--gpuperf-baseline={name}", fallback)

    assert ended.ret == 4
    text = " ".join((ended.stdout.str() + ended.stderr.str()).split())
    assert fault in text
    assert "or compare with .gpuperf (--gpuperf-baseline), because" in text


def test_results_of_other_tools_are_stored(project: Project, place: str) -> None:
    """A session for each file, which importing again does not double."""
    for number, median_s in enumerate((1.0e-3, 2.0e-3), 1):
        content = {
            "machine_info": {"cpu": {"brand_raw": "Xeon", "count": 2}},
            "commit_info": {"id": f"{number:040x}", "branch": "main"},
            "benchmarks": [
                {"fullname": "test_a.py::test_a", "stats": {"median": median_s}}
            ],
            "datetime": f"2023-03-0{number}T10:00:00",
            "version": "5.1.0",
        }
        (project.path / f"{number}.json").write_text(json.dumps(content))
    (project.path / "other.json").write_text("{}")

    imported = [
        command("baseline", "import", place, "1.json", "2.json", folder=project.path)
        for _ in range(2)
    ]
    refused = command(
        *("baseline", "import", place, "1.json", "other.json"), folder=project.path
    )
    shown = command(
        *("baseline", "show", place, "test_a.py::test_a"), folder=project.path
    )
    listed = command("baseline", "list", place, folder=project.path)

    assert [each.returncode for each in imported] == [0, 0]
    assert "imported 1 time of pytest-benchmark from 1.json" in imported[0].stdout
    assert "1.json was imported before and added nothing" in imported[1].stdout
    assert refused.returncode == 4
    assert "other.json" in refused.stderr
    assert "2 sessions of 1 test" in listed.stdout
    assert "xeon-2" in shown.stdout
    assert "1.00 ms" in shown.stdout
    assert "2.00 ms" in shown.stdout


def test_the_owner_creates_the_tables(place: str, project: Project) -> None:
    """Once; a database of files has none."""
    created, again = (
        command("baseline", "migrate", place, folder=project.path) for _ in range(2)
    )
    folder = command("baseline", "migrate", ".gpuperf", folder=project.path)

    assert "created the tables (version 1)" in created.stdout
    assert "the tables are up to date (version 1)" in again.stdout
    assert folder.returncode == 2
    assert "is not the URL of a database" in folder.stderr


def test_a_schema_that_the_url_names_is_created() -> None:
    """Also one whose name must be quoted, and the grants name it so."""
    place = f"{new_database()}&options=-csearch_path%3D%22My-Schema%22"
    created = command("baseline", "migrate", place)
    grants = command("baseline", "grants", "--schema=My-Schema").stdout
    sql(grants, database_of(place))

    assert created.returncode == 0, created.stderr
    assert 'SCHEMA "My-Schema"' in grants
    (row,) = sql('SELECT count(*) FROM "My-Schema".meta', database_of(place))
    assert row == (2,)


def test_what_a_run_dropped_is_restored(project: Project, place: str) -> None:
    """Of the tests that are named, with all of their sessions, and once."""
    project.write(VALUES)
    baseline = f"--gpuperf-baseline={place}"
    for _ in range(2):
        project.run(NEW, baseline)
    project.write(VALUES.replace('"b", "c"', '"b"'))
    dropped = project.run(NEW, baseline)
    restore = ("baseline", "restore", place)
    restored, again = (command(*restore, folder=project.path) for _ in range(2))
    project.write(VALUES)
    gated = project.run(baseline)

    assert lines(dropped, "test_x[c]", "restore")
    assert restored.returncode == 0, restored.stderr
    assert "restored test_it.py::test_x[c]" in restored.stdout
    assert "with 2 sessions" in restored.stdout
    assert again.returncode == 2
    assert "no run has dropped anything" in again.stderr
    assert "restore the database from a copy" in again.stderr
    assert lines(gated, "test_x[c] x", "unchanged")


def test_old_sessions_are_removed_by_command(project: Project) -> None:
    """Counted first; fewer than a comparison uses are refused, as is a folder."""
    project.store(sessions=1)
    place = "sqlite:///perf.db"
    command("baseline", "copy", ".gpuperf", place, folder=project.path)
    prune = ("baseline", "prune", place)
    counted, removed = (
        command(*prune, *options, folder=project.path)
        for options in (("--dry-run",), ("--sessions=20", "--format=json"))
    )
    few = command(*prune, "--sessions=19", folder=project.path)
    files = command("baseline", "prune", ".gpuperf", folder=project.path)

    assert "would remove 0 values of " in counted.stdout
    assert set(json.loads(removed.stdout)["values"].values()) == {0}
    assert (few.returncode, files.returncode) == (2, 2)
    assert "keep 20 sessions or more" in few.stderr
    assert "is not the URL of a database" in files.stderr


VARIABLE = "GPUPERF_BASELINE"


def test_the_environment_names_the_store(project: Project) -> None:
    """As the option does: it is stored in and judged by; the option comes first, ini last."""
    project.write(VALUES)
    project.write("[pytest]\ngpuperf_baseline = absent.json\n", "pytest.ini")
    project.environment.setenv(VARIABLE, "sqlite:///perf.db")
    stored = [project.run(NEW) for _ in range(3)]
    project.set_values(b=1.5)
    slower = project.run("--gpuperf-confirm=0", "--gpuperf-json=run.json")
    other = project.run("--gpuperf-baseline=other.json")
    listed = command("history", folder=project.path)

    assert [run.ret for run in (*stored, slower, other)] == [0, 0, 0, 0, 4]
    assert project.report()["header"]["options"]["gpuperf_baseline"] == (
        "sqlite:///perf.db"
    )
    assert lines(slower, "test_x[b] x", "+50.0 %", "inconclusive")
    assert lines(other, "there is no baseline at", "other.json")
    assert listed.stdout.startswith("history of sqlite:///perf.db")
    assert os.environ[VARIABLE] == "sqlite:///perf.db"


@pytest.mark.parametrize(
    ("place", "parts", "code"),
    [
        ("", ("the value is empty; unset it, or give it a value",), 2),
        ("perf.db", ("the place of a database; write sqlite:///perf.db",), 2),
        ("absent.json", ("no baseline at", "GPUPERF_BASELINE names the store"), 4),
        ("postgresql://me:s3cr3t@/perf?host=/absent", ("***", "start the server"), 4),
    ],
)
def test_a_mistake_of_the_variable_has_its_name(
    project: Project, place: str, parts: tuple[str, ...], code: int
) -> None:
    """Before any test runs, also of a command, and without the password."""
    if place.startswith("postgresql"):
        pytest.importorskip("psycopg")
    project.write(VALUES)
    project.environment.setenv(VARIABLE, place)
    ended = project.run()
    asked = command("history", folder=project.path)

    assert ended.ret == 4
    assert asked.returncode == code
    for text in (said(ended) + ended.stderr.str(), asked.stderr):
        assert VARIABLE in text
        assert "s3cr3t" not in text
    assert lines(ended, *parts)


def test_what_tests_start_does_not_see_the_store(project: Project) -> None:
    """Neither a program of a test, nor a worker, nor a process that confirms."""
    place = new_database()
    project.environment.setenv(VARIABLE, place)
    project.write(
        VALUES
        + """
    def test_environment():
        import os, pathlib, sys
        with open("seen.txt", "a") as file:
            names = " ".join(sorted(os.environ))
            file.write(f"{names} {pathlib.Path('/proc/self/cmdline').read_text()}")
    """
    )
    runs = [project.run(NEW) for _ in range(3)]
    project.set_values(b=1.5)
    runs += [project.run("--gpuperf-confirm=2"), project.run("-pxdist", "-n1")]

    assert [run.ret for run in runs] == [0, 0, 0, 1, 1]
    for run in runs:
        assert PASSWORD not in run.stdout.str() + run.stderr.str()
    assert all(lines(run, "test_x[b] x", "REGRESSED") for run in runs[3:])
    seen = (project.path / "seen.txt").read_text()
    assert "PATH" in seen
    assert VARIABLE not in seen
    assert PASSWORD not in seen
