"""What a session that stores knows of its tests alone, and of the company they were in."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping

import pytest

from fakes.project import PLUGIN, VALUES, XDIST, Project, command, lines
from pytest_gpuperf.baseline.store import DirectoryStore
from pytest_gpuperf.model.record import SessionValue, StoredRecord

NEW = "--gpuperf-update=new"
ONE = "-ogpuperf_alone=1"
GATE = ("--gpuperf-baseline=.gpuperf", "--gpuperf-confirm=2")
# what a test takes is twice as much where the suite ran before it
TESTS = """
    import os
    import pytest

    ran = []

    def test_other():
        ran.append(1)

    @pytest.mark.skip
    def test_skipped():
        pass

    @pytest.mark.gpuperf(max_regression={"x": "5 %"})
    @pytest.mark.parametrize("name", ["a", "b", "c"])
    def test_x(gpuperf, name):
        value = float(os.environ.get(f"VALUE_{name}", "1"))
        gpuperf.record("x", value * (1 + len(ran)), unit="s", better="lower")

    def test_after(gpuperf):
        gpuperf.measure(sorted, range(100))
"""


def stored(project: Project) -> dict[str, tuple[StoredRecord, ...]]:
    """Return the sessions of each measurement."""
    place = DirectoryStore(project.path / ".gpuperf")
    return {
        str(key): records
        for slug in place.slugs()
        for key, records in place.load(slug).items()
    }


def newest(project: Project) -> Mapping[str, SessionValue]:
    """Return the value of each test's newest session."""
    return {
        name.partition("::")[2].removesuffix(" x"): value
        for name, records in stored(project).items()
        for value in records[-1].values
        if value.metric in {"x", "time"}
    }


def test_a_session_that_stores_measures_tests_alone(project: Project) -> None:
    """Without the tests that ran before, and the reference workloads with them."""
    project.write(TESTS)
    ended = project.run("-v", NEW, ONE, "--gpuperf-json=run.json")
    values = newest(project)
    roles = {record["role"] for record in project.report()["records"]}
    # one more, numpy's, where the process of this test has loaded it
    references = [values[f"references {name}"] for name in ("array", "copy", "python")]

    assert ended.ret == 0
    assert values["test_x[a]"].run_values == (2.0,)
    assert values["test_x[a]"].alone_values == (1.0,)
    assert not values["test_x[a]"].suspected
    assert len(values["test_after"].alone_values) == 1
    assert all(len(value.alone_values) == 1 for value in references)
    assert roles == {"main", "alone"}
    assert len(lines(ended, "gpuperf: measured 4 tests alone, in 1 fresh process")) == 1


def test_nothing_is_said_of_it_unasked(project: Project) -> None:
    """And it can be switched off, by its own value or with all fresh processes."""
    project.write(VALUES)
    ended = [
        project.run(NEW, *more)
        for more in ([ONE], ["-ogpuperf_alone=0"], [ONE, "--gpuperf-confirm=0"])
    ]
    values = [
        [len(value.alone_values) for value in record.values]
        for record in stored(project)["test_it.py::test_x[a] x"]
    ]

    assert not any(lines(run, "measured", "alone") for run in ended)
    assert values == [[1], [0], [0]]


def test_nothing_is_measured_alone_where_nothing_is_stored(project: Project) -> None:
    """A baseline that is complete costs no process more, nor does a run that judges."""
    project.store(sessions=5)
    ended = [project.run("-v", *more, ONE) for more in ([NEW], GATE)]

    assert lines(ended[0], "nothing was stored")
    assert not any(lines(run, "alone, in") for run in ended)


def test_a_test_that_fails_alone_has_no_value(project: Project) -> None:
    """Nor has one that is skipped there; the session is stored all the same."""
    project.write(
        """
        import pytest

        ran = []

        def test_first():
            ran.append(1)

        def test_needs(gpuperf):
            gpuperf.record("x", 1.0)
            assert ran

        def test_skips(gpuperf):
            if not ran:
                pytest.skip("alone")
            gpuperf.record("x", 1.0)

        def test_sound(gpuperf):
            gpuperf.record("x", 1.0)
        """
    )
    ended = project.run("-v", NEW, ONE)
    alone = {name: value.alone_values for name, value in newest(project).items()}

    assert ended.ret == 0
    assert alone["test_needs"] == alone["test_skips"] == ()
    assert alone["test_sound"] == (1.0,)
    assert lines(ended, "measured 3 tests alone", "2 gave no value")


def test_suspects_and_controls_have_their_values_for_nothing(project: Project) -> None:
    """Of all processes that confirmed; a suspect is marked, and none is measured again."""
    project.store(sessions=2)
    project.set_values(b=1.2)
    ended = project.run(*GATE, "-v", "--gpuperf-update=all", ONE)
    values = newest(project)

    assert values["test_x[a]"].alone_values == (1.0, 1.0)
    assert values["test_x[b]"].alone_values == (1.2, 1.2)
    assert [values[f"test_x[{name}]"].suspected for name in "abc"] == [0, 1, 0]
    assert not lines(ended, "alone, in")
    # what was accepted has the new session alone
    assert [len(stored(project)[f"test_it.py::test_x[{n}] x"]) for n in "abc"] == [
        *(3, 1, 3)
    ]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_session_knows_how_many_tests_ran(project: Project, workers: int) -> None:
    """Measured or not, none that was skipped; of workers the mean."""
    project.write(TESTS)
    several = (*XDIST, f"-n{workers}") if workers else ()
    project.run(*several, NEW, "--gpuperf-json=run.json")

    ran_count = 5 if not workers else 2  # 2.5
    assert project.report()["header"]["session"]["ran_count"] == ran_count
    assert {
        record.session.ran_count
        for records in stored(project).values()
        for record in records
    } == {ran_count}


def test_a_recording_knows_what_its_session_did(project: Project) -> None:
    """Replayed into a store it stores what the recorded run would have stored."""
    project.write(TESTS)
    project.run(NEW, ONE, "--gpuperf-record=kept")
    first = stored(project)
    project.run(NEW, "--gpuperf-replay=kept", "--gpuperf-baseline=again.json")
    place = project.path / "again.json"
    again = project.run("--gpuperf-replay=kept", "--gpuperf-baseline=again.json")

    assert again.ret in {0, 1}  # one session decides nothing
    text = place.read_text("utf-8")
    assert '"ran_count":5' in text
    assert {v.alone_values for r in first.values() for v in r[-1].values} != {()}
    assert '[["x","s","user",[2.0],[],"lower",[],[],[],0,[1.0]]]' in text


def test_a_run_of_a_part_stores_beside_the_whole(project: Project) -> None:
    """It completes no baseline of the whole, and says what it is compared with."""
    project.write(TESTS)
    for _ in range(2):
        project.run(NEW)
    part = project.run(NEW, "test_it.py::test_x[a]")
    whole = project.run(NEW)
    records = stored(project)["test_it.py::test_x[a] x"]

    assert [record.session.ran_count for record in records] == [5, 5, 1, 5]
    assert lines(part, "the baseline has 1 of 5 sessions")
    assert lines(part, "this run ran 1 test, but 2 stored sessions ran 5 tests")
    assert lines(whole, "the baseline has 3 of 5 sessions")


def test_a_series_shows_what_it_took_alone(project: Project) -> None:
    """Beside its values; the list says how many tests ran."""
    project.write(TESTS)
    project.run(NEW, ONE)
    shown = command("baseline", "show", ".gpuperf", "test_it.py", folder=project.path)
    # A long name of a machine leaves no room for this column on a narrow terminal.
    options = (".gpuperf", "--format=json")
    listed = command("baseline", "list", *options, folder=project.path)

    assert "alone" in shown.stdout
    assert "1.00 s" in shown.stdout
    assert '"ran": 5' in listed.stdout


def test_a_session_without_a_fresh_process_is_stored(project: Project) -> None:
    """A script is not run again: -v says so, and nothing of the session is lost."""
    project.write(TESTS)
    project.write(
        f"""
        import sys
        import pytest

        raise SystemExit(pytest.main([*{PLUGIN!r}, "{NEW}", *sys.argv[1:]]))
        """,
        "run_tests.py",
    )
    ended = [
        subprocess.run(
            [sys.executable, "run_tests.py", *more],
            capture_output=True,
            check=False,
            cwd=project.path,
            encoding="utf-8",
        )
        for more in ([], ["-v"])
    ]
    told = ["no test was measured alone for this session" in e.stdout for e in ended]

    assert [each.returncode for each in ended] == [0, 0]
    assert told == [False, True]
    assert all("stored 4 measurements" in each.stdout for each in ended)
