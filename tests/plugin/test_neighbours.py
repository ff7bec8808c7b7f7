"""pytest's own options beside ours."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fakes.project import XDIST, Project, lines

# three tests: one passes, one misses its limit at once, one passes
THREE = """
    import pytest

    @pytest.mark.gpuperf(limits=["x <= 1"], max_regression={"x": "5 %"})
    @pytest.mark.parametrize("n", [1, 2, 0])
    def test_it(gpuperf, n):
        gpuperf.record("x", n)
"""
HELD = ("--gpuperf-baseline=.gpuperf", "--gpuperf-update=new", "--gpuperf-strict")


def test_x_stops_at_a_missed_limit(project: Project) -> None:
    """A limit fails while the tests run, so -x and --maxfail see it."""
    project.write(THREE)

    for option in ("-x", "--maxfail=1"):
        ended = project.run(option, "--gpuperf-json=run.json")
        completeness = project.report()["header"]["completeness"]

        assert ended.parseoutcomes() == {"passed": 1, "failed": 1}
        assert completeness["missing"] == ["test_it.py::test_it[0]"]
        assert completeness["interrupted"] == "stopping after 1 failures"
        assert lines(ended, "1 without a result")


def test_lf_runs_what_failed(project: Project) -> None:
    """A missed limit is in pytest's list of last failures, and --ff puts it first."""
    project.write(THREE)
    project.run()
    again = project.run("--lf", "-v")

    assert again.parseoutcomes()["failed"] == 1
    assert "passed" not in again.parseoutcomes()
    assert lines(project.run("--ff", "-v"), "test_it[2] FAILED", "33%")


def test_a_verdict_at_the_end_is_in_the_list_of_last_failures(project: Project) -> None:
    """A test that failed after all had run is picked up by --lf as any other."""
    project.write(THREE)
    ended = project.run(*HELD, "-k", "not 2")
    again = project.run("--lf", "--collect-only", "-q")

    assert ended.parseoutcomes() == {"failed": 2, "deselected": 1}
    assert len(lines(again, "test_it.py::test_it[")) == 2


def test_sw_stops_and_goes_on(project: Project) -> None:
    """--stepwise stops at a missed limit and begins there next time."""
    project.write(THREE)
    first = project.run("--sw")
    second = project.run("--sw")

    assert first.parseoutcomes() == {"passed": 1, "failed": 1}
    assert second.parseoutcomes()["failed"] == 1
    assert "passed" not in second.parseoutcomes()


def test_collect_only_measures_and_says_nothing(project: Project) -> None:
    """Collecting starts no run of ours: no section, no report, no store."""
    project.write(THREE)
    ended = project.run(
        "--collect-only", "--gpuperf-update=new", "--gpuperf-json=run.json"
    )

    assert ended.ret == 0
    assert lines(ended, "judged") == []
    assert not (project.path / ".gpuperf").exists()
    assert not (project.path / "run.json").exists()


def test_k_expects_only_what_it_selects(project: Project) -> None:
    """Deselected tests are not missing from the run."""
    project.write(THREE)
    ended = project.run("-k", "1 or 0", "--gpuperf-json=run.json")

    assert ended.parseoutcomes() == {"passed": 2, "deselected": 1}
    assert project.report()["header"]["completeness"]["expected_count"] == 2
    assert project.report()["header"]["completeness"]["missing"] == []


def test_nothing_selected_is_pytests_own_exit_status(project: Project) -> None:
    """No test ran: 5, as ever, though a baseline was named."""
    project.store(sessions=1)
    ended = project.run("-k", "nothing", "--gpuperf-baseline=.gpuperf")

    assert ended.ret == pytest.ExitCode.NO_TESTS_COLLECTED


@pytest.mark.parametrize(
    "plugin",
    ["terminal", "cacheprovider", "junitxml", "logging", "capture", "skipping"],
)
def test_pytest_without_one_of_its_plugins(project: Project, plugin: str) -> None:
    """A missed limit is a failed run without any of them; held tests are settled too."""
    project.write(THREE)

    assert project.run("-p", f"no:{plugin}").ret == 1
    assert project.run("-p", f"no:{plugin}", "-k", "not 2").ret == 0
    assert project.run("-p", f"no:{plugin}", *HELD, "-k", "not 2").ret == 1


def test_a_missed_limit_enters_pdb(project: Project) -> None:
    """--pdb stops where the limit failed; quitting ends the run."""
    project.write(THREE)
    ended = project.spawn("--pdb", typed="q\n")

    assert "(Pdb)" in ended.stdout
    assert "time failed" in ended.stdout or "x failed" in ended.stdout
    assert ended.returncode == pytest.ExitCode.INTERRUPTED


def test_an_interrupt_keeps_what_was_measured(project: Project) -> None:
    """Ctrl-C in a test: its predecessors are in the JSON, and nothing is stored."""
    project.write(
        """
        import pytest

        @pytest.mark.parametrize("n", [0, 1, 2])
        def test_it(gpuperf, n):
            gpuperf.record("x", n, better="lower")
            if n == 1:
                raise KeyboardInterrupt
        """
    )
    ended = project.run("--gpuperf-json=run.json", "--gpuperf-update=all")
    report = project.report()
    completeness = report["header"]["completeness"]

    assert ended.ret == pytest.ExitCode.INTERRUPTED
    assert [r["key"]["test_id"] for r in report["records"]] == [
        "test_it.py::test_it[0]"
    ]
    assert completeness["missing"] == [
        "test_it.py::test_it[1]",
        "test_it.py::test_it[2]",
    ]
    assert completeness["interrupted"].startswith("KeyboardInterrupt")
    assert list((project.path / ".gpuperf").rglob("*.json*")) == []


@pytest.mark.parametrize("exit_call", ["pytest.exit('enough')", "raise SystemExit(3)"])
def test_a_held_test_is_released_when_the_run_is_ended(
    project: Project, exit_call: str
) -> None:
    """What waits for the end of the run is logged though the end is never reached."""
    project.write(
        f"""
        import pytest

        def test_first(gpuperf):
            gpuperf.record("x", 1, better="lower")

        def test_second(gpuperf):
            gpuperf.record("x", 1, better="lower")
            {exit_call}
        """
    )
    ended = project.run("--gpuperf-strict", "--gpuperf-json=run.json")

    assert ended.parseoutcomes().get("passed", 0) == 1
    assert project.report()["header"]["completeness"]["expected_count"] == 2


def test_a_failed_session_start_of_others_is_not_ours(project: Project) -> None:
    """An exception of another plugin's hook is never turned into a verdict."""
    project.write(THREE)
    project.write(
        """
        def pytest_runtestloop(session):
            raise ZeroDivisionError("theirs")
        """,
        "conftest.py",
    )
    ended = project.run("--gpuperf-json=run.json")

    assert ended.ret == pytest.ExitCode.INTERNAL_ERROR
    assert lines(ended, "ZeroDivisionError: theirs")


def test_deselected_by_another_plugin_is_not_missing(project: Project) -> None:
    """A conftest that drops items late is believed."""
    project.write(THREE)
    project.write(
        """
        import pytest

        @pytest.hookimpl(trylast=True)
        def pytest_collection_modifyitems(items):
            del items[1:]
        """,
        "conftest.py",
    )
    ended = project.run("--gpuperf-json=run.json")

    assert ended.parseoutcomes() == {"passed": 1}
    assert project.report()["header"]["completeness"]["expected_count"] == 1


def test_user_properties_keep_their_values(project: Project) -> None:
    """A measured value given to record_property arrives as a plain float."""
    project.write(
        """
        def test_it(gpuperf, record_property):
            perf = gpuperf.measure(int)
            record_property("time", perf.time)
            record_property("name", "x")
        """
    )
    project.write(
        """
        def pytest_runtest_logreport(report):
            if report.when == "call":
                assert [type(v) for _, v in report.user_properties] == [float, str]
                print("checked")
        """,
        "conftest.py",
    )
    ended = project.run("-s", "--junitxml=junit.xml", "-o", "junit_family=xunit1")

    assert ended.ret == 0
    assert lines(ended, "checked")
    assert project.junit()[0].properties["name"] == "x"


def test_junit_properties_are_asked_for(project: Project) -> None:
    """With the option JUnit has the values and the verdicts; without it, nothing."""
    project.write(THREE)
    project.run("--junitxml=junit.xml")
    assert [case.properties for case in project.junit()] == [{}, {}, {}]

    for option in (
        ("--gpuperf-junit-properties",),
        ("-o", "gpuperf_junit_properties=true"),
    ):
        project.run("--junitxml=junit.xml", *option)
        first = project.junit()[0].properties
        assert first["gpuperf.x [count]"] == "1.0"
        assert first["gpuperf.verdict.x"] == "passed: within-limit"


def test_junit_properties_tell_measurements_apart(project: Project) -> None:
    """
    Each value and each verdict has the name of its measurement, and its own property.

    A number that a test recorded is a metric: it has its name once.
    """
    project.write(
        """
        import pytest

        @pytest.mark.gpuperf(limits=["time <= 1 s"], iterations=3)
        def test_two(gpuperf):
            gpuperf.measure(int, name="a")
            gpuperf.measure(int, name="b")
            gpuperf.measure(int, name="time")
            gpuperf.record("score", 0.5, unit="")
        """
    )
    project.run("--junitxml=junit.xml", "--gpuperf-junit-properties")
    properties = project.junit()[0].properties

    assert properties["gpuperf.verdict.a time"] == "passed: within-limit"
    assert properties["gpuperf.verdict.b time"] == "passed: within-limit"
    assert properties["gpuperf.score"] == "0.5"
    assert properties["gpuperf.verdict.time time"] == "passed: within-limit"
    assert "gpuperf.verdict.time" not in properties


def test_a_run_leaves_no_scratch(project: Project) -> None:
    """What is kept for one run alone is removed at its end."""
    scratch = project.path / "scratch"
    scratch.mkdir()
    project.environment.setenv("TMPDIR", str(scratch))
    project.write(THREE)
    project.spawn("--gpuperf-json=run.json", "-x")

    assert list(scratch.glob("gpuperf-*")) == []


def test_durations_and_setup_show_do_not_mind(project: Project) -> None:
    """Options that print about phases see all three of them."""
    project.write(THREE)
    ended = project.run("--durations=0", "--setup-show", "-vv", "-k", "1")

    assert lines(ended, "call", "test_it[1]")
    assert lines(ended, "teardown", "test_it[1]")
    assert ended.ret == 0


@pytest.mark.parametrize("workers", [(), (*XDIST, "-n2")], ids=["alone", "xdist"])
def test_the_finished_run_is_told_once(
    project: Project, workers: tuple[str, ...]
) -> None:
    """A conftest's pytest_gpuperf_run_finished gets the judged run, never in a worker."""
    project.write(THREE)
    project.write(
        """
        import pathlib

        def pytest_gpuperf_run_finished(config, run):
            assert not hasattr(config, "workerinput")
            with pathlib.Path("told").open("a") as file:
                print(len(run.records), len(run.verdicts), file=file)
        """,
        "conftest.py",
    )
    project.run(*workers)

    assert (project.path / "told").read_text() == "3 3\n"


def test_a_hook_that_raises_fails_the_run_and_hides_nothing(project: Project) -> None:
    """Why tests failed is still printed, and what was asked for is written."""
    project.write(
        """
        def test_it(gpuperf):
            gpuperf.record("x", 1)

        def test_broken():
            assert "this" == "that"
        """
    )
    project.write(
        """
        def pytest_gpuperf_run_finished(run):
            raise ZeroDivisionError("of a neighbour")
        """,
        "conftest.py",
    )
    whole = project.run("--gpuperf-json=run.json")
    alone = project.run("-k", "not broken")

    whole.stdout.fnmatch_lines(
        [
            "*assert *this* == *that*",
            "*ZeroDivisionError: of a neighbour",
            "a hook pytest_gpuperf_run_finished raised ZeroDivisionError*",
            "FAILED *test_broken*",
        ]
    )
    assert (project.path / "run.json").exists()
    alone.assert_outcomes(passed=1)
    assert (whole.ret, alone.ret) == (1, 1)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc lists what is open")
def test_a_run_leaves_no_file_open(project: Project) -> None:
    """A program that runs pytest again and again keeps its descriptors."""
    project.write("def test_it(gpuperf):\n    gpuperf.measure(int)\n")
    project.run()  # loads libraries that open files of their own
    before = [*Path("/proc/self/fd").iterdir()]
    for _ in range(2):
        assert project.run().ret == pytest.ExitCode.OK

    assert [*Path("/proc/self/fd").iterdir()] == before


@pytest.mark.parametrize(
    "line", ["thread_unsafe: one thread", "thread_unsafe(reason): x"]
)
def test_what_measures_stays_out_of_a_plugins_threads(
    project: Project, line: str
) -> None:
    """The threads of one test would share its fixture, and disturb each other's times."""
    project.write(
        f"""
        def pytest_configure(config):
            config.addinivalue_line("markers", {line!r})

        def pytest_collection_finish(session):
            for item in session.items:
                print(item.name, [mark.name for mark in item.iter_markers()])
        """,
        "conftest.py",
    )
    project.write(
        "def test_it(gpuperf):\n    gpuperf.measure(int)\ndef test_x(): pass\n"
    )
    ended = project.run("--strict-markers", "-s")

    assert lines(ended, "test_it ['gpuperf', 'thread_unsafe']")
    assert lines(ended, "test_x []")
