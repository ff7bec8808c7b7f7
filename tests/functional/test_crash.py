"""What dies in the middle takes only itself along."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from fakes.project import HUNG_S, PLUGIN, XDIST, Project, hears_interrupts, lines

CRASH = """
    import os
    import pytest

    @pytest.mark.gpuperf(limits=["x <= 10"], max_regression={"x": "5 %"})
    @pytest.mark.parametrize("n", range(6))
    def test_it(gpuperf, n):
        gpuperf.record("x", n, better="lower")
        if n == 3 and "CALM" not in os.environ:
            os._exit(3)
"""


def test_a_crashed_worker_loses_its_own_test_alone(project: Project) -> None:
    """The five others are reported; the lost one is named; nothing is stored."""
    project.write(CRASH)
    ended = project.run(
        *(*XDIST, "-n2", "--gpuperf-json=run.json", "--junitxml=junit.xml"),
        "--gpuperf-update=all",
    )
    report = project.report()

    assert ended.ret == 1
    assert ended.parseoutcomes() == {"passed": 5, "failed": 1}
    assert len(project.junit()) == 6
    assert report["header"]["completeness"]["missing"] == ["test_it.py::test_it[3]"]
    assert len(report["records"]) == 5
    assert lines(ended, "1 without a result")
    assert list(project.path.glob(".gpuperf/**/*.json*")) == []


def test_a_run_that_lost_a_test_regresses_nothing(project: Project) -> None:
    """Evidence that is not whole fails no test for a regression."""
    project.environment.setenv("CALM", "1")
    project.store(CRASH)
    project.environment.delenv("CALM")
    project.write(CRASH.replace('"x", n,', '"x", 2 * n,'))
    ended = project.run(
        *(*XDIST, "-n2", "--gpuperf-json=run.json"),
        *("--gpuperf-baseline=.gpuperf", "--gpuperf-confirm=2"),
    )

    assert ended.parseoutcomes() == {"passed": 5, "failed": 1}
    assert "regressed" not in {outcome for _, outcome in project.outcomes()}
    assert {record["role"] for record in project.report()["records"]} == {"main"}


def test_no_worker_left_says_what_never_ran(project: Project) -> None:
    """--max-worker-restart=0: the tests that silently never ran are named."""
    project.write(CRASH.replace("n == 3", "n >= 0"))
    ended = project.run(
        *(*XDIST, "-n2", "--max-worker-restart=0", "--gpuperf-json=run.json")
    )

    assert ended.ret != 0
    assert len(project.report()["header"]["completeness"]["missing"]) == 6


WAITING = """
    import pathlib
    import time

    def test_first(gpuperf):
        gpuperf.record("x", 1, better="lower")

    def test_waits(gpuperf):
        pathlib.Path("here").touch()
        time.sleep(60)
"""


def started(project: Project, *arguments: str) -> subprocess.Popen[bytes]:
    """Return a run of pytest whose first test has ended and whose second waits."""
    project.write(WAITING)
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", *PLUGIN, *arguments],
        cwd=project.path,
        stdout=subprocess.DEVNULL,
        preexec_fn=hears_interrupts,  # noqa: PLW1509 - it sets a signal, no more
    )
    deadline = time.monotonic() + 60
    while not (project.path / "here").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    return process


def command(project: Project, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Return what the command has printed in the project's folder."""
    return subprocess.run(
        [sys.executable, "-m", "pytest_gpuperf", *arguments],
        cwd=project.path,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_killed_run_says_which_tests_it_holds(project: Project) -> None:
    """SIGKILL in the second test: the first one is in the report, and its readers say so."""
    process = started(project, "--gpuperf-json=run.json")
    process.kill()
    process.wait(timeout=HUNG_S)
    verified = command(project, "verify", "run.json")
    page = command(project, "report", "run.json", "-o", "-", "--format=markdown")
    exported = command(project, "export", "run.json", "--to=bencher", "-o", "-")

    why = "the run ended before its last test; it holds 1 of 2 tests"
    assert verified.returncode == 1
    assert f"interrupted: {why}" in verified.stdout
    assert "1 test never reported: test_it.py::test_waits" in verified.stdout
    assert page.returncode == exported.returncode == 0
    assert "the run ended before its last test" in page.stdout
    assert "test_first" in exported.stdout
    told = f"gpuperf: run.json is not complete: {why}\n"
    assert page.stderr == exported.stderr == told


def test_a_killed_run_leaves_the_store_as_it_was(project: Project) -> None:
    """SIGKILL in the middle of a run that updates: the old sessions are whole."""
    project.environment.setenv("CALM", "1")
    project.store(CRASH)
    before = {p: p.read_bytes() for p in project.path.glob(".gpuperf/**/*.json*")}
    process = started(project, "--gpuperf-update=all")
    process.kill()

    assert process.wait(timeout=HUNG_S) == -signal.SIGKILL
    assert {
        p: p.read_bytes() for p in project.path.glob(".gpuperf/**/*.json*")
    } == before
    assert before


def test_a_terminated_run_reports_what_it_measured(project: Project) -> None:
    """SIGINT from outside: the JSON holds the tests that had ended, and says why."""
    process = started(project, "--gpuperf-json=run.json")
    os.kill(process.pid, signal.SIGINT)

    assert process.wait(timeout=HUNG_S) == 2
    completeness = project.report()["header"]["completeness"]
    assert completeness["missing"] == ["test_it.py::test_waits"]
    assert completeness["interrupted"].startswith("KeyboardInterrupt")
    assert len(project.report()["records"]) == 1
