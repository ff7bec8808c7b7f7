"""A regression is a failed test wherever a person or a machine looks."""

from __future__ import annotations

import csv
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from fakes.project import VALUES, XDIST, Project, command, lines
from pytest_gpuperf.collect.binary.tools import CUOBJDUMP, find_tool
from pytest_gpuperf.errors import CollectorUnavailableError
from pytest_gpuperf.hooks.gate import Gate
from pytest_gpuperf.model.change import Progress

ALONE = pytest.param((), id="alone")
WORKERS = pytest.param((*XDIST, "-n2"), id="two-workers")
# one fresh process says what two do, but for what counts them
GATE = ("--gpuperf-baseline=.gpuperf", "--gpuperf-confirm=1")
TWICE = (GATE[0], "--gpuperf-confirm=2")


@pytest.mark.parametrize("workers", [ALONE, WORKERS])
def test_a_regression_is_one_case_and_one_failure(
    project: Project, workers: tuple[str, ...]
) -> None:
    """One JUnit case with one failure, exit status 1, and --lf picks it up."""
    project.store()
    project.set_values(b=1.2)
    ended = project.run(
        *TWICE, *workers, "--junitxml=junit.xml", "--gpuperf-json=run.json"
    )
    again = project.run("--lf", "--collect-only", "-q")
    cases = sorted(project.junit(), key=repr)

    assert ended.ret == 1
    assert cases == [("test_x[a]",), ("test_x[b]", "failure"), ("test_x[c]",)]
    assert cases[1].message.startswith("x regressed: 1.20 s, was 1.00 s: +20.0 %")
    assert ended.parseoutcomes() == {"passed": 2, "failed": 1}
    assert lines(ended, "FAILED test_it.py::test_x[b] - x regressed: 1.20 s")
    assert lines(ended, "judged 3 of 3: 1 regressed, 2 unchanged")
    assert project.outcomes() == {
        ("test_x[a]", "unchanged"),
        ("test_x[b]", "regressed"),
        ("test_x[c]", "unchanged"),
    }
    assert lines(again, "::") == ["test_it.py::test_x[b]"]


# slower where another test of the suite has left something behind, and not alone
LEFT_BEHIND = """
    import os

    import pytest

    left = []


    def test_leaves():
        left.append(float(os.environ.get("LEFT", "0")))


    @pytest.mark.gpuperf(max_regression={"x": "5 %"})
    @pytest.mark.parametrize("name", ["a", "b", "c"])
    def test_x(gpuperf, name):
        more = sum(left) if name == "b" else 0
        gpuperf.record("x", 1 + more, unit="s", better="lower")
"""
LEFT = "x 1.20 s in the suite (+20.0 %), 1.00 s alone: another test may have left state"


def test_what_does_not_come_again_is_no_regression(project: Project) -> None:
    """Slow in the suite and not in fresh processes: the test passes, with a note."""
    project.store(LEFT_BEHIND)
    project.environment.setenv("LEFT", "0.2")
    ended = project.run(
        *(*TWICE, "--junitxml=junit.xml", "--gpuperf-json=run.json"),
        "-ogpuperf_junit_properties=true",
    )
    row = ended.outlines.index(lines(ended, "test_x[b] x  ")[0])
    (case,) = [each for each in project.junit() if each.name == "test_x[b]"]
    (verdict,) = [
        each
        for each in project.report()["verdicts"]
        if each["key"]["test_id"].endswith("test_x[b]")
    ]

    assert ended.ret == 0
    assert (verdict["outcome"], verdict["reason"]) == ("unchanged", "within-noise")
    assert verdict["in_suite"]["effect"] == pytest.approx(0.2)
    assert any(LEFT in line for line in ended.outlines[row : row + 3])
    assert case.properties["gpuperf.x [s]"] == "1.0"
    assert case.properties["gpuperf.first.x [s]"] == "1.2"
    assert case.properties["gpuperf.verdict.x"] == "unchanged: within-noise"
    assert case.properties["gpuperf.note.x"].startswith(f"slower-in-suite: {LEFT}")


# where fresh processes run it alone it takes twice as long, and always did
SLOWER_ALONE = """
    import os

    import pytest


    @pytest.mark.gpuperf(max_regression={"x": "5 %"})
    @pytest.mark.parametrize("name", ["a", "b", "c"])
    def test_x(gpuperf, name, pytestconfig):
        alone = pytestconfig.pluginmanager.has_plugin("gpuperf-child")
        value = float(os.environ.get("VALUE", "1")) if name == "b" else 1.0
        times = 2.0 if alone and name == "b" else 1.0
        gpuperf.record("x", times * value, unit="s", better="lower")
"""
NO_CHANGE = "x alone 2.08 s, in the suite 1.04 s (was 1.00 s): slower alone; no change"


def test_what_is_slower_alone_is_no_regression(project: Project) -> None:
    """In the suite it is within its limit: the test passes, with a note."""
    project.store(SLOWER_ALONE)
    project.environment.setenv("VALUE", "1.04")
    ended = project.run(
        *(*TWICE, "--junitxml=junit.xml", "--gpuperf-json=run.json"),
        "-ogpuperf_junit_properties=true",
    )
    row = ended.outlines.index(lines(ended, "test_x[b] x  ")[0])
    (case,) = [each for each in project.junit() if each.name == "test_x[b]"]
    (verdict,) = [
        each
        for each in project.report()["verdicts"]
        if each["key"]["test_id"].endswith("test_x[b]")
    ]

    assert ended.ret == 0
    assert (verdict["outcome"], verdict["reason"]) == ("unchanged", "within-noise")
    assert verdict["alone"]["effect"] == pytest.approx(1.08)
    assert any(NO_CHANGE in line for line in ended.outlines[row : row + 3])
    assert case.properties["gpuperf.note.x"] == f"other-alone: {NO_CHANGE}"


def test_what_only_a_whole_run_shows_again_is_reproduced_by_one(
    project: Project,
) -> None:
    """Suite and fresh processes do not tell the same: the test alone would not either."""
    project.store(SLOWER_ALONE)
    project.environment.setenv("VALUE", "1.1")
    ended = project.run(*TWICE, "-k", "test_x")

    assert ended.ret == 0
    assert lines(ended, "1.10 s in the suite (+10.0 %), 2.20 s alone (+120 %)")
    assert lines(ended, "reproduce: pytest ", " -k test_x --gpuperf-baseline=.gpuperf")


def test_files_have_no_verdict_on_what_nothing_gates(project: Project) -> None:
    """As in the table; the change stands in the CSV file all the same."""
    project.store(VALUES.replace('max_regression={"x": "5 %"}', 'records=["x"]'))
    project.environment.setenv("VALUE_a", "1.3")
    project.run(
        *("--gpuperf-junit-properties", "--junitxml=junit.xml"),
        "--gpuperf-csv=run.csv",
    )
    names = [name for case in project.junit() for name in case.properties]
    with (project.path / "run.csv").open(encoding="utf-8", newline="") as file:
        row = next(r for r in csv.DictReader(file) if r["test"].endswith("[a]"))

    assert names
    assert not [name for name in names if name.startswith("gpuperf.verdict")]
    assert (row["outcome"], row["reason"]) == ("", "")
    assert float(row["change_fraction"]) == pytest.approx(0.3)


def test_junit_has_the_verdict_of_every_test(project: Project) -> None:
    """What stayed as it was or is new is as much a verdict as what is held for a doubt."""
    project.store()
    project.write(VALUES.replace('["a", ', '["new", "a", '))
    ended = project.run("--junitxml=junit.xml", "--gpuperf-junit-properties")
    found = {
        case.name: case.properties.get("gpuperf.verdict.x") for case in project.junit()
    }

    assert ended.ret == 0
    assert found["test_x[a]"] == "unchanged: within-noise"
    assert None not in found.values()
    assert found["test_x[new]"] == "new: nothing-stored"


def test_a_strict_run_does_not_pass_what_was_slower_in_the_suite(
    project: Project,
) -> None:
    """The code did not regress, and the suite is not what was stored: undecided."""
    project.store(LEFT_BEHIND)
    project.environment.setenv("LEFT", "0.2")
    ended = project.run(*GATE, "--gpuperf-strict", "--junitxml=junit.xml")
    (failed,) = [each for each in project.junit() if each.children]

    assert ended.parseoutcomes() == {"passed": 3, "failed": 1}
    assert failed == ("test_x[b]", "failure")
    assert failed.message.startswith("x inconclusive: 1.00 s, as before")
    assert lines(ended, LEFT)
    assert lines(ended, "1 inconclusive (slower in suite)")


def test_what_only_fresh_processes_measured_is_not_stored(project: Project) -> None:
    """A measurement of a branch that the suite never took has no session of its own."""
    project.store(
        """
        import os
        import pytest

        @pytest.mark.gpuperf(max_regression={"x": "5 %"})
        def test_x(gpuperf, pytestconfig):
            value = float(os.environ.get("LEFT", "1"))
            gpuperf.record("x", value, unit="s", better="lower")
            if pytestconfig.pluginmanager.has_plugin("gpuperf-child"):
                gpuperf.record("branch", 1.0)
        """
    )
    project.environment.setenv("LEFT", "2")
    ended = project.run(*GATE, "--gpuperf-update=all")

    assert lines(ended, "stored 1 measurement in .gpuperf")
    assert ended.ret == 0  # it is accepted


@pytest.mark.parametrize("workers", [ALONE, WORKERS])
def test_what_was_slower_in_the_suite_is_not_stored(
    project: Project, workers: tuple[str, ...]
) -> None:
    """What another test left behind is in no baseline, and the stored line says so."""
    project.store(LEFT_BEHIND)
    project.environment.setenv("LEFT", "0.2")
    dist = ("--dist=loadfile",) if workers else ()
    ended = project.run(*TWICE, *workers, *dist, "--gpuperf-update=new")
    (stored,) = project.path.glob(".gpuperf/**/test_it.json")
    values = re.findall(r'"x","s","user",\[([^]]*)\]', stored.read_text("utf-8"))
    again = project.run(*TWICE)

    assert lines(ended, LEFT)
    assert lines(
        ended,
        "stored 2 measurements in .gpuperf",
        "not stored: 1 measurement slower in the suite than alone",
    )
    assert values == ["1.0"] * 11
    assert lines(again, LEFT)


def test_all_stores_what_was_slower_in_the_suite(project: Project) -> None:
    """The suite is going to stay as it is: the same value is then as usual as others."""
    project.store(LEFT_BEHIND)
    project.environment.setenv("LEFT", "0.2")
    ended = project.run(*TWICE, "--gpuperf-update=all")
    (stored,) = project.path.glob(".gpuperf/**/test_it.json")
    values = re.findall(r'"x","s","user",\[([^]]*)\]', stored.read_text("utf-8"))

    assert lines(ended, LEFT)
    assert lines(ended, "stored 3 measurements in .gpuperf")
    assert sorted(values) == [*["1.0"] * 11, "1.2"]


def test_the_values_of_a_report_are_those_that_decided(project: Project) -> None:
    """A JUnit property has what they say together, and the first under its name."""
    project.store()
    project.write(
        """
        import pytest

        @pytest.mark.gpuperf(max_regression={"x": "5 %"})
        @pytest.mark.parametrize("name", ["a", "b", "c"])
        def test_x(gpuperf, name, pytestconfig):
            alone = pytestconfig.pluginmanager.has_plugin("gpuperf-child")
            value = 1.2 if alone else 1.25
            gpuperf.record(
                "x", value if name == "b" else 1.0, unit="s", better="lower"
            )
        """
    )
    ended = project.run(
        *TWICE, "--junitxml=junit.xml", "-ogpuperf_junit_properties=true"
    )
    same, other, _ = project.junit()

    assert float(other.properties["gpuperf.x [s]"]) == pytest.approx(1.2)
    assert float(other.properties["gpuperf.first.x [s]"]) == 1.25
    assert lines(ended, "test_x[b] x  1.20 s", "+20.0 %", "REGRESSED")
    assert other.properties["gpuperf.verdict.x"] == "regressed: slower-than-limit"
    assert not any(name.startswith("gpuperf.first") for name in same.properties)


def test_a_value_that_fresh_processes_put_within_a_limit_is_theirs(
    project: Project,
) -> None:
    """Where a limit was straddled, table and properties have the value that passed."""
    project.write(
        """
        import itertools
        import time

        import pytest

        @pytest.mark.gpuperf(limits=["time <= 55 ms"], iterations=20)
        def test_it(gpuperf, pytestconfig):
            # here on both sides of the limit, with a median that no lost sample moves;
            # in fresh processes far below it
            alone = pytestconfig.pluginmanager.has_plugin("gpuperf-child")
            durations = itertools.cycle([0.001] if alone else [0.001, 0.05, 0.2])
            gpuperf.measure(lambda: time.sleep(next(durations)))
        """
    )
    ended = project.run(
        *("--gpuperf-confirm=2", "--junitxml=junit.xml"),
        "-ogpuperf_junit_properties=true",
    )
    (case,) = project.junit()
    (row,) = lines(ended, "test_it ", "ms", "passed")

    assert case.properties["gpuperf.verdict.time"] == "passed: within-limit"
    assert float(case.properties["gpuperf.time [s]"]) < 0.05
    assert float(case.properties["gpuperf.first.time [s]"]) >= 0.05
    assert float(row.split()[1]) < 50


def test_without_confirmation_nothing_regresses(project: Project) -> None:
    """--gpuperf-confirm=0 starts no process: a suspect stays inconclusive."""
    project.store()
    project.set_values(b=1.2)
    ended = project.run(
        "--gpuperf-baseline=.gpuperf", "--gpuperf-confirm=0", "--gpuperf-json=run.json"
    )

    assert ended.parseoutcomes() == {"passed": 3}
    assert ("test_x[b]", "inconclusive") in project.outcomes()
    assert lines(ended, "not confirmed")


# what the suite saw is seen again in one fresh process of two
AT_TIMES = """
    import os
    from pathlib import Path

    import pytest


    @pytest.mark.gpuperf(max_regression={"x": "5 %"})
    @pytest.mark.parametrize("name", ["a", "b", "c"])
    def test_x(gpuperf, name, pytestconfig):
        value = float(os.environ.get(f"VALUE_{name}", "1"))
        if name == "b" and pytestconfig.pluginmanager.has_plugin("gpuperf-child"):
            try:
                Path(os.environ["SEEN"]).touch(exist_ok=False)
            except FileExistsError:
                value = 1.0
        gpuperf.record("x", value, unit="s", better="lower")
"""


@pytest.mark.parametrize(
    "options", [(), ("-v",), ("--gpuperf-strict",), ("--gpuperf-strict", "--tb=no")]
)
def test_what_fresh_processes_do_not_repeat_is_one_line(
    project: Project, options: tuple[str, ...], tmp_path: Path
) -> None:
    """Noise is no block of a dozen lines; -v shows it, and what fails explains it."""
    project.write(AT_TIMES)
    for value in (1.0, 1.1, 0.95):
        project.set_values(a=value, b=value, c=value)
        project.run("-q", "--gpuperf-update=all")
    project.set_values(a=1.0, b=1.5, c=1.0)
    project.environment.setenv("SEEN", str(tmp_path / "seen"))
    ended = project.run(*TWICE, "--gpuperf-json=run.json", *options)
    briefly = lines(ended, "x[b] x: ", "in 2 fresh processes, detectable: ", "-v: more")
    block = lines(ended, "measured again in 2 fresh processes")

    assert ended.ret == ("--gpuperf-strict" in options)
    assert ("test_x[b]", "inconclusive") in project.outcomes()
    assert (bool(briefly), bool(block)) == (not options, bool(options))


def test_a_store_that_was_only_found_never_fails(project: Project) -> None:
    """`.gpuperf` at the root is shown; no test fails and none is measured again."""
    project.store()
    project.set_values(b=1.5)
    ended = project.run("--gpuperf-json=run.json")

    assert ended.parseoutcomes() == {"passed": 3}
    assert ("test_x[b]", "regressed") not in project.outcomes()
    assert {r["role"] for r in project.report()["records"]} == {"main"}


def test_a_change_that_is_accepted_passes_and_is_stored(project: Project) -> None:
    """--gpuperf-update=all restarts the series: the next run is compared with it."""
    project.store()
    project.set_values(b=1.2)
    accepted = project.run(*GATE, "--gpuperf-update=all")
    project.set_values(b=1.0)
    then = project.run("--gpuperf-baseline=.gpuperf", "--gpuperf-json=run.json")

    assert accepted.ret == 0
    assert then.ret == 0
    assert dict(project.outcomes())["test_x[b]"] == "inconclusive"  # one session is few
    assert dict(project.outcomes())["test_x[a]"] == "unchanged"


def test_an_update_stores_no_regression_and_no_failure(project: Project) -> None:
    """`improved` keeps the old sessions of what got worse, and the test fails."""
    project.store()
    project.set_values(b=1.2)
    stored = sorted(p.read_bytes() for p in project.path.glob(".gpuperf/**/*.json*"))
    ended = project.run(*GATE, "--gpuperf-update=improved")
    then = sorted(p.read_bytes() for p in project.path.glob(".gpuperf/**/*.json*"))

    assert ended.parseoutcomes() == {"passed": 2, "failed": 1}
    assert then == stored


def test_an_improvement_is_stored(project: Project) -> None:
    """`improved` restarts the series of what got faster, once it is confirmed."""
    project.store()
    project.set_values(b=0.5)
    first = project.run(*GATE, "--gpuperf-update=improved", "--gpuperf-json=run.json")
    outcomes = dict(project.outcomes())
    project.run("--gpuperf-baseline=.gpuperf", "--gpuperf-json=run.json")

    assert first.ret == 0
    assert outcomes["test_x[b]"] == "improved"
    assert dict(project.outcomes())["test_x[b]"] == "inconclusive"


def test_a_gain_that_is_not_stored_is_told_with_its_command(project: Project) -> None:
    """Without it, a slowdown back to the old level passes."""
    project.store()
    project.set_values(b=0.5)
    ended = project.run(*GATE)
    command = "pytest --gpuperf-update=improved --gpuperf-baseline=.gpuperf"
    stored = project.run(*shlex.split(command)[1:])
    after = project.run(*GATE)

    assert ended.ret == 0
    (line,) = lines(ended, "improved, but not stored", "test_x[b] x")
    assert line.endswith(f"store it: {command}")
    assert not lines(stored, "improved, but not stored")
    assert not lines(after, "improved, but not stored")


def test_a_ratchet_fails_what_improved_until_it_is_stored(project: Project) -> None:
    """Only a confirmed improvement against a named baseline."""
    project.store()
    project.set_values(b=0.5)
    project.write("[pytest]\ngpuperf_ratchet = on\n", "pytest.ini")
    found = project.run()
    unconfirmed = project.run(GATE[0], "--gpuperf-confirm=0")
    ended = project.run(*GATE)
    stored = project.run(*GATE, "--gpuperf-update=improved")
    after = project.run(*GATE)

    assert (found.ret, unconfirmed.ret, ended.ret) == (0, 0, 1)
    why = "x improved (gpuperf_ratchet fails the test until this is stored): 500 ms"
    assert lines(ended, "FAILED test_it.py::test_x[b]", why)
    assert lines(ended, "remedy: store it with --gpuperf-update=improved")
    assert lines(ended, "accept: ", "--gpuperf-update=improved")
    assert (stored.ret, after.ret) == (0, 0)


def test_a_mistaken_ratchet_is_refused(project: Project) -> None:
    """The message has both words."""
    project.store()
    ended = project.run(*GATE, "-ogpuperf_ratchet=yes")

    assert ended.ret == 4
    assert lines(ended, "gpuperf_ratchet=yes: ", "off", "on")


def test_files_are_judged_by_the_limits_of_their_run(project: Project) -> None:
    """The marker's limit of a recorded number stands in the run's verdicts."""
    project.store()
    project.set_values(b=1.2)
    project.run(GATE[0], "--gpuperf-confirm=0", "--gpuperf-json=run.json")
    ended = command("compare", ".gpuperf", "run.json", folder=project.path)
    rows = [line for line in ended.stdout.splitlines() if "test_x[b]" in line]

    assert ended.returncode == 1, ended.stdout
    assert any("REGRESSED" in row for row in rows), ended.stdout


def test_a_strict_run_names_all_that_failures_explain(project: Project) -> None:
    """A new test has no block of its own."""
    project.store()
    project.write(VALUES.replace('["a", "b", "c"]', '["a", "b", "c", "d", "e"]'))
    project.set_values(b=1.2)
    ended = project.run(*GATE, "--gpuperf-strict")

    assert ended.ret == 1
    named = "test_x[b] x, test_x[d] x, test_x[e] x"
    assert lines(ended, f"explained in FAILURES above: {named}")


def test_a_suspect_that_fails_alone_is_failed_with_its_last_lines(
    project: Project,
) -> None:
    """A test that needs its predecessor gives no value in a fresh process: it fails."""
    project.store()
    project.write(
        """
        import os
        import pytest

        READY = []

        def test_prepares():
            READY.append(1)

        @pytest.mark.gpuperf(max_regression={"x": "5 %"})
        @pytest.mark.parametrize("name", ["a", "b", "c"])
        def test_x(gpuperf, name):
            if name == "b":
                assert READY, "nobody prepared me"
            gpuperf.record("x", 1.2 if name == "b" else 1.0, unit="s", better="lower")
        """
    )
    ended = project.run(*GATE, "--gpuperf-json=run.json")

    assert ended.parseoutcomes() == {"passed": 3, "failed": 1}
    assert ("test_x[b]", "failed") in project.outcomes()
    assert lines(ended, "AssertionError: nobody prepared me")


def test_gates_beside_a_failure_of_their_own(project: Project) -> None:
    """A body that fails is that failure; the regression beside it is found too."""
    project.store()
    project.set_values(b=1.2)
    project.write(
        """
        import os
        import pytest

        @pytest.mark.gpuperf(max_regression={"x": "5 %"})
        @pytest.mark.parametrize("name", ["a", "b", "c"])
        def test_x(gpuperf, name):
            value = float(os.environ.get(f"VALUE_{name}", "1"))
            gpuperf.record("x", value, unit="s", better="lower")
            assert name != "a", "wrong answer"
        """
    )
    ended = project.run(*GATE, "--junitxml=junit.xml")
    first, second, third = project.junit()

    assert ended.parseoutcomes() == {"passed": 1, "failed": 2}
    assert "wrong answer" in first.message
    assert second.message.startswith("x regressed")
    assert third == ("test_x[c]",)


def test_several_runs_measure_every_test_in_fresh_processes(project: Project) -> None:
    """--gpuperf-runs=2: each test has a second record, of a process of its own."""
    project.write(
        """
        import os
        import pytest

        @pytest.mark.gpuperf(limits=["x <= 2"])
        @pytest.mark.parametrize("n", [1, 2])
        def test_it(gpuperf, n):
            gpuperf.record("x", n)
            gpuperf.record("pid", os.getpid())
        """
    )
    ended = project.run("--gpuperf-runs=2", "--gpuperf-json=run.json")
    records = project.report()["records"]
    pids = {
        (r["role"], r["estimates"][0]["value"])
        for r in records
        if r["key"]["name"] == "pid"
    }

    assert ended.parseoutcomes() == {"passed": 2}
    assert {role for role, _ in pids} == {"main", "repeat"}
    assert len({pid for _, pid in pids}) == 2
    assert len(records) == 8


def test_a_straddled_limit_is_decided_by_fresh_processes(project: Project) -> None:
    """A limit inside the spread is confirmed and then decided, or left inconclusive."""
    project.write(
        """
        import os
        import pytest

        @pytest.mark.gpuperf(limits=["x <= 100"], max_regression="off")
        def test_it(gpuperf, pytestconfig):
            value = float(os.environ["VALUE_x"])
            if pytestconfig.pluginmanager.has_plugin("gpuperf-child"):
                value = float(os.environ["VALUE_child"])
            gpuperf.record("x", value, better="lower")
        """
    )
    for value in (94, 97, 99):
        project.set_values(x=value, child=value)
        assert project.run("--gpuperf-update=new", "--gpuperf-confirm=0").ret == 0
    project.set_values(child=150)
    ended = project.run("--gpuperf-confirm=2", "--junitxml=junit.xml")

    assert ended.ret == 1
    assert project.junit() == [("test_it", "failure")]


def test_regressed_precedes_unmeasured(project: Project) -> None:
    """A test that got slower and lacks another value fails; the others are skipped."""
    text = """
        import os
        import pytest

        @pytest.mark.gpuperf(limits=["energy <= 1 J"], max_regression={"x": "5 %"})
        @pytest.mark.parametrize("name", ["a", "b", "c"])
        def test_x(gpuperf, name):
            value = float(os.environ.get(f"VALUE_{name}", "1"))
            gpuperf.record("x", value, unit="s", better="lower")
    """
    project.store(text)
    project.set_values(b=1.2)
    ended = project.run(*GATE, "--junitxml=junit.xml")

    assert ended.parseoutcomes() == {"skipped": 2, "failed": 1}
    assert project.junit() == [
        ("test_x[a]", "skipped"),
        ("test_x[b]", "failure"),
        ("test_x[c]", "skipped"),
    ]


def test_a_regression_that_is_only_shown_fails_nothing(project: Project) -> None:
    """max_regression="off" in the marker or the option shows the change and passes."""
    project.store(VALUES.replace('{"x": "5 %"}', '{"x": "off"}'))
    project.set_values(b=1.5)
    ended = project.run(*GATE, "--gpuperf-json=run.json")

    assert ended.parseoutcomes()["passed"] == 3
    assert {r["role"] for r in project.report()["records"]} == {"main"}


@pytest.mark.parametrize(
    ("style", "workers"),
    [
        pytest.param("auto", (*XDIST, "-n2"), id="auto-two-workers"),
        pytest.param("no", (*XDIST, "-n2"), id="no-two-workers"),
        *((style, ()) for style in ("short", "native", "no")),
    ],
)
def test_a_regression_is_explained_once(
    project: Project, style: str, workers: tuple[str, ...]
) -> None:
    """In FAILURES where pytest prints it whole, else in our summary; always in JUnit."""
    project.store()
    project.set_values(b=1.2)
    ended = project.run(*GATE, *workers, f"--tb={style}", "--junitxml=junit.xml")
    junit = (project.path / "junit.xml").read_text()
    whole = style != "no"

    assert len(lines(ended, "reproduce: pytest")) == 1
    assert len(lines(ended, "explained in FAILURES above: test_x[b] x")) == whole
    assert lines(ended, "test_x[b] x  1.20 s", "+20.0 %", "REGRESSED")
    assert "reproduce: pytest" in junit


def test_a_style_that_may_cut_a_failure_loses_nothing(project: Project) -> None:
    """What --tb=line leaves of a failure is up to pytest: the summary has all of it."""
    project.store()
    project.set_values(b=1.2)
    ended = project.run(*GATE, "--tb=line")

    assert lines(ended, "REGRESSED test_x[b] x: x 1.20 s, was 1.00 s: +20.0 %")


def test_what_stands_in_no_failure_is_explained_in_the_summary(
    project: Project,
) -> None:
    """A test that failed for one verdict has the other's block below the table."""
    project.write(
        """
        import pytest

        @pytest.mark.gpuperf(limits=["x <= 1"], max_regression={"y": "5 %"})
        def test_it(gpuperf):
            gpuperf.record("x", 2)
            gpuperf.record("y", 1, unit="s")

        def test_body(gpuperf):
            gpuperf.record("x", 2)
            assert False
        """
    )
    ended = project.run()

    assert len(lines(ended, "reproduce: pytest test_it.py::test_it")) == 1
    assert lines(ended, "explained in FAILURES above: test_it x")


@pytest.mark.parametrize("workers", [ALONE, WORKERS])
def test_progress_shows_a_suspect_and_what_became_of_it(
    project: Project, workers: tuple[str, ...]
) -> None:
    """Its outcome stands on a line of its own, behind one that says what it waits for."""
    project.store()
    project.set_values(b=1.2)
    ended = project.run(*TWICE, *workers)
    (place,) = [
        n for n, line in enumerate(ended.outlines) if "gpuperf: deciding" in line
    ]
    before, outcome = ended.outlines[place - 1], ended.outlines[place + 1]

    assert sorted(before.partition("[")[0].split()[-1]) == sorted(".?.")
    assert ended.outlines[place].startswith(
        "gpuperf: deciding 1 test at the end of the run; 2 fresh processes"
    )
    assert outcome.split()[0] == "F"  # older versions of pytest show no share behind
    assert ended.parseoutcomes() == {"passed": 2, "failed": 1}


@pytest.mark.parametrize("workers", [ALONE, WORKERS])
def test_progress_with_v_has_a_line_for_each_state(
    project: Project, workers: tuple[str, ...]
) -> None:
    """SUSPECT while it waits, then its outcome; the count never exceeds the tests."""
    project.store()
    project.set_values(b=1.2)
    ended = project.run(*GATE, *workers, "-v", "-o", "console_output_style=count")

    assert len(lines(ended, "test_x[b]", "SUSPECT")) == 1
    assert len(lines(ended, "test_x[b]", "FAILED", "[3/3]")) == 1
    assert lines(ended, "4/3") == []


def test_who_waits_for_a_strict_run_is_no_suspect(project: Project) -> None:
    """--gpuperf-strict decides all at the end: what looks as before is only pending."""
    project.store()
    project.set_values(b=1.2)
    ended = project.run(*GATE, "--gpuperf-strict", "-v")

    assert len(lines(ended, "PENDING")) == 2
    assert len(lines(ended, "test_x[b]", "SUSPECT")) == 1
    assert ended.parseoutcomes() == {"passed": 2, "failed": 1}


def test_a_quiet_run_says_what_it_waits_for_on_a_line_of_its_own(
    project: Project,
) -> None:
    """With -q no file's name begins the line of letters."""
    project.store()
    project.set_values(b=1.2)
    ended = project.run(*GATE, "-q")

    assert [t for t in ended.outlines if t.startswith("gpuperf: deciding 1 test")]


COMPILED = """
    import pathlib

    import pytest

    @pytest.mark.gpuperf(max_regression={"registers": "0 %"})
    def test_compiled(gpuperf):
        gpuperf.binary(pathlib.Path("compiled.cubin"))
"""
GOLD = Path(__file__).parents[1] / "gold" / "binary"


def needs_cuobjdump() -> None:
    """Skip where no binary can be read."""
    try:
        find_tool(CUOBJDUMP)
    except CollectorUnavailableError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("timed", [False, True])
def test_no_process_is_announced_for_what_a_file_says(
    project: Project, *, timed: bool
) -> None:
    """A file says the same to every process: only what was timed waits for them."""
    needs_cuobjdump()
    cubin = project.path / "compiled.cubin"
    cubin.write_bytes((GOLD / "row_sum_sm_90.cubin").read_bytes())
    project.store(COMPILED + VALUES if timed else COMPILED)
    cubin.write_bytes((GOLD / "mix_sm_90a.cubin").read_bytes())
    project.set_values(b=1.2)
    ended = project.run(*TWICE)

    assert lines(ended, "at the end of the run")
    assert bool(lines(ended, "2 fresh processes will measure")) is timed
    assert lines(ended, "REGRESSED" if timed else "registers regressed")


EXPECTED = VALUES.replace(
    '@pytest.mark.parametrize("name", ["a", "b", "c"])',
    """@pytest.mark.parametrize("name", [
        "a",
        pytest.param("b", marks=pytest.mark.xfail(reason="known")),
        pytest.param("c", marks=pytest.mark.xfail(reason="known", strict=True)),
    ])""",
)


@pytest.mark.parametrize("workers", [ALONE, WORKERS])
def test_a_regression_can_be_expected(
    project: Project, workers: tuple[str, ...]
) -> None:
    """Confirmed, it is the failure that xfail means: strict or not, as of a limit."""
    project.store()
    project.write(EXPECTED)
    project.set_values(b=1.2, c=1.2)
    ended = project.run(*GATE, *workers, "--gpuperf-json=run.json")

    assert (ended.ret, ended.parseoutcomes()) == (0, {"passed": 1, "xfailed": 2})
    assert lines(ended, "judged 3 of 3: 1 unchanged, 2 xfailed")
    assert sorted(project.report()["xfailed"]) == [
        "test_it.py::test_x[b]",
        "test_it.py::test_x[c]",
    ]


def test_a_regression_that_was_expected_and_did_not_come(project: Project) -> None:
    """Then xfail is pytest's own: an unexpected pass, which a strict one fails for."""
    project.store()
    project.write(EXPECTED)
    ended = project.run(*GATE, "--junitxml=junit.xml")

    assert ended.parseoutcomes() == {"passed": 1, "xpassed": 1, "failed": 1}
    assert lines(ended, "FAILED", "test_x[c]")
    assert lines(ended, "XPASS(strict)")


def test_a_regression_is_none_of_the_errors_that_were_expected(
    project: Project,
) -> None:
    """`raises=` names other errors than a missed gate: the regression is a failure."""
    project.store()
    project.write(EXPECTED.replace('reason="known")', "raises=(KeyError, OSError))"))
    project.set_values(b=1.2)
    ended = project.run(*GATE, "--junitxml=junit.xml")

    assert ended.parseoutcomes() == {"passed": 1, "failed": 2}
    assert lines(ended, "FAILED", "test_x[b]", "x regressed: 1.20 s")
    assert ("test_x[b]", "failure") in project.junit()


def test_what_is_undecided_is_no_expected_failure(project: Project) -> None:
    """A strict run fails for what nobody confirmed, whatever xfail expects."""
    project.store()
    project.write(EXPECTED)
    project.set_values(b=1.2, c=1.2)
    ended = project.run(GATE[0], "--gpuperf-confirm=0", "--gpuperf-strict")

    assert ended.parseoutcomes() == {"passed": 1, "failed": 2}
    assert len(lines(ended, "FAILED", "x inconclusive")) == 2


def test_a_disabled_run_is_held_against_no_baseline(project: Project) -> None:
    """Nothing was measured: that no other machine's sessions fit would be a lie."""
    project.store()
    ended = project.run(GATE[0], "--gpuperf-disable", "--gpuperf-json=run.json")

    assert ended.ret == 0
    assert project.report()["verdicts"] == []
    assert lines(ended, "judged 0 of 3: 3 disabled")
    assert not lines(ended, "incomparable")


def test_a_command_that_is_shown_below_the_root_runs_there(project: Project) -> None:
    """What a failure says to type finds test and store from where it was said."""
    project.write("[pytest]\n", "pytest.ini")
    project.write(VALUES, "below/test_it.py")
    project.environment.chdir(project.path / "below")
    for _ in range(3):
        assert project.run("-q", "--gpuperf-update=all").ret == 0
    project.set_values(b=1.2)
    ended = project.run("--gpuperf-baseline=../.gpuperf", "--gpuperf-confirm=2")
    (command,) = lines(ended, "reproduce: pytest")
    again = project.run(*shlex.split(command.partition("reproduce: pytest ")[2]))

    # all of the suite: nothing is stored of the test alone
    assert again.parseoutcomes() == {"failed": 1, "passed": 2}
    assert lines(again, "x regressed: 1.20 s")


def test_a_run_that_ended_early_says_so_of_what_it_suspects(project: Project) -> None:
    """Nothing is measured again then, however the store was named: run it to its end."""
    project.store()
    project.write(
        """
        def test_stops():
            assert False
        """,
        "test_later.py",
    )
    project.set_values(b=1.2)
    ended = project.run(*GATE, "-x", "--gpuperf-json=run.json")
    (verdict,) = [
        each
        for each in project.report()["verdicts"]
        if each["key"]["test_id"].endswith("test_x[b]")
    ]

    assert (verdict["outcome"], verdict["reason"]) == ("inconclusive", "incomplete-run")
    assert lines(ended, "remedy: run all the selected tests to their end")
    assert not lines(ended, "--gpuperf-confirm above 0")


def test_a_limit_that_a_run_left_open_is_told_how_to_be_decided(
    project: Project,
) -> None:
    """Straddled in a run that ended early: fresh processes come at a run's end alone."""
    project.write(
        """
        import itertools
        import time

        import pytest

        # on both sides of the limit, with a median that no lost sample moves
        DURATIONS = itertools.cycle([0.002, 0.01, 0.05])

        @pytest.mark.gpuperf(limits=["time <= 11 ms"], iterations=20)
        def test_it(gpuperf):
            gpuperf.measure(lambda: time.sleep(next(DURATIONS)))

        def test_stops():
            assert False
        """
    )
    stopped = project.run("-x")
    unasked = project.run("-x", "--gpuperf-confirm=0")

    assert lines(stopped, "remedy: run all the selected tests to their end")
    assert lines(unasked, "remedy: decide it in fresh processes (--gpuperf-confirm)")


@pytest.mark.parametrize("apart", ["python_minor", "source"])
@pytest.mark.parametrize(("others", "own"), [(5, 0), (2, 4)])
def test_sessions_that_nothing_is_compared_with_are_not_counted(
    project: Project, others: int, own: int, apart: str
) -> None:
    """`new` stores until there are enough that a run may be compared with, and no more."""
    project.store(sessions=others)
    minor = f'"python_minor":"{sys.version_info.major}.{sys.version_info.minor}"'
    ours, theirs = {
        "python_minor": (minor, '"python_minor":"3.1"'),
        "source": ('["x","s","user"', '["x","s","host"'),
    }[apart]
    project.edit_store(ours, theirs)
    project.store(sessions=own)
    new = (
        "--gpuperf-baseline=.gpuperf",
        "--gpuperf-update=new",
        "-ogpuperf_sessions=3",
    )
    told = [project.run(*new) for _ in range(3 - own)]
    enough = project.run(*new)
    then = project.run(*GATE)

    assert all(lines(ended, "stored 3 measurements in .gpuperf") for ended in told)
    assert lines(enough, "nothing was stored: every baseline has enough sessions")
    assert lines(then, "judged 3 of 3: 3 unchanged")


def test_facts_that_may_differ_make_sessions_count(project: Project) -> None:
    """What --gpuperf-compare-across lets be compared needs no sessions of its own."""
    project.store(sessions=5)
    minor = f'"python_minor":"{sys.version_info.major}.{sys.version_info.minor}"'
    project.edit_store(minor, '"python_minor":"3.1"')
    ended = project.run(
        *("--gpuperf-baseline=.gpuperf", "--gpuperf-update=new"),
        "-ogpuperf_sessions=3",
        "--gpuperf-compare-across=python_minor",
    )

    assert lines(ended, "nothing was stored: every baseline has enough sessions")


def test_what_a_comparison_waits_for_is_told_once(
    pytester: pytest.Pytester, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two comparisons that take turns wait for each other in each block."""
    gate = Gate(pytester.parseconfigure())
    waits = Progress(revision="main", text="waiting for process 7 (an A/B comparison)")
    looked = Progress(revision="main", block_count=4, test_count=1, looked=True)
    capsys.readouterr()
    for progress in (waits, Progress(revision="main"), waits, looked, waits):
        gate.suite.tell(progress)
    told = capsys.readouterr().out.splitlines()

    assert told[0] == f"gpuperf: against main: {waits.text}"
    assert len(told) == 2
    assert "4 blocks in 0 s" in told[1]


SHARED = """
    import os

    import pytest


    def work():
        return sum(range(int(os.environ.get("COUNT", "3000"))))


    @pytest.mark.gpuperf(iterations=40)
    @pytest.mark.parametrize("number", range(6))
    def test_shared(gpuperf, number):
        gpuperf(work)
"""


def test_a_slowdown_of_all_tests_fails_the_run(project: Project) -> None:
    """What they share is slower: that is not the machine, whose workloads stood still."""
    project.write(SHARED)
    for _ in range(3):
        project.spawn("--gpuperf-update=new")
    project.environment.setenv("COUNT", "12000")  # noise of a busy machine is less
    ended = project.spawn(GATE[0], "--gpuperf-confirm=3")

    assert ended.returncode == 1, ended.stdout
    assert ended.stdout.count("time regressed: ") >= 6
    assert "3 fresh processes will measure suspected times" in ended.stdout


ENDS_EARLY = """
    import os

    import pytest

    @pytest.fixture
    def skips(gpuperf):
        yield
        pytest.skip("late")

    @pytest.fixture
    def fixture(gpuperf):
        record(gpuperf)
        pytest.skip("late")

    def record(gpuperf):
        value = float(os.environ.get("VALUE_x", "1"))
        gpuperf.record("x", value, unit="s", better="lower")

    @pytest.mark.gpuperf(max_regression={"x": "5 %"}, records=["x"])
    class TestEnds:
        def test_skipped(self, gpuperf):
            record(gpuperf)
            pytest.skip("late")

        def test_xfailed(self, gpuperf):
            record(gpuperf)
            pytest.xfail("late")

        def test_lacked(self, gpuperf):
            record(gpuperf)
            assert gpuperf.measure(int).energy > 0

        def test_fixture(self, fixture):
            pass

        def test_teardown(self, skips, gpuperf):
            record(gpuperf)

        @pytest.mark.parametrize("index", range(3))
        def test_steady(self, gpuperf, index):
            gpuperf.record("x", 1.0, unit="s", better="lower")
"""


@pytest.mark.parametrize("workers", [ALONE, WORKERS])
def test_nothing_that_ends_a_test_hides_a_regression(
    project: Project, workers: tuple[str, ...]
) -> None:
    """A skip, or a value that lacks, after a measurement: it is stored, judged, fails."""
    project.store(ENDS_EARLY.replace('pytest.xfail("late")', "pass"))
    project.write(ENDS_EARLY)
    unchanged = project.run(*GATE, *workers)
    project.set_values(x=1.2)
    ended = project.run(*GATE, *workers)

    assert unchanged.ret == 0
    assert lines(unchanged, "judged 7 of 8: 7 unchanged; 1 unmeasured")
    assert ended.ret == 1
    assert lines(ended, "judged 8 of 8: 5 regressed, 3 unchanged")
    assert len(lines(ended, "FAILED test_it.py::TestEnds::", "x regressed")) == 5
    assert not lines(ended, "another plugin")


def test_an_expected_failure_is_told_alike_with_and_without_a_baseline(
    project: Project,
) -> None:
    """It is not new: its values are never stored."""
    project.store(ENDS_EARLY.replace("def test_xfailed", "def not_yet"))
    project.write(ENDS_EARLY)
    part = ("-k", "xfailed or steady")
    with_store = project.run(*GATE, *part)
    shutil.rmtree(project.path / ".gpuperf")
    alone = project.run(*part)
    told = [
        lines(ended, "TestEnds::test_xfailed x", "xfailed")
        for ended in (with_store, alone)
    ]

    assert len(told[0]) == len(told[1]) == 1
    assert lines(with_store, "3 unchanged; 1 skipped or xfailed before being judged")


def test_an_expected_failure_is_judged_and_not_stored(project: Project) -> None:
    """A body that fails is no baseline, and being new fails no strict run for ever."""
    project.write(ENDS_EARLY)
    part = ("-k", "xfailed or steady")
    stored, *_ = [project.run("--gpuperf-update=all", *part) for _ in range(3)]
    strict = project.run(*GATE, "--gpuperf-strict", *part)

    assert lines(stored, "stored 3 measurements", "1 measurement (failed, xfailed")
    assert (strict.ret, strict.parseoutcomes()["xfailed"]) == (0, 1)
