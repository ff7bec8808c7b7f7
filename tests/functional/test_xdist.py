"""Workers measure, the controller judges."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from fakes.project import HUNG_S, XDIST, Project, lines

# one test of each outcome, and properties that only builtins survive
MIXED = """
    import pytest

    @pytest.mark.gpuperf(limits=["x <= 1"])
    @pytest.mark.parametrize("n", [1, 2])
    def test_limit(gpuperf, n):
        gpuperf.record("x", n)

    def test_unmeasured(gpuperf):
        assert gpuperf.measure(int).energy < 1

    def test_property(gpuperf, record_property):
        record_property("time", gpuperf.measure(int).time)

    @pytest.mark.xfail(strict=True)
    @pytest.mark.gpuperf(limits=["x <= 1"])
    def test_expected(gpuperf):
        gpuperf.record("x", 2)

    def test_plain():
        pass
"""
OUTCOMES = {"passed": 3, "failed": 1, "skipped": 1, "xfailed": 1}


@pytest.mark.parametrize("dist", ["load", "loadfile", "worksteal"])
def test_outcomes_are_those_of_one_process(project: Project, dist: str) -> None:
    """However tests are dealt out, each is reported once, as it is without xdist."""
    project.write(MIXED)
    ended = project.run(
        *XDIST, "-n2", f"--dist={dist}", "--gpuperf-json=run.json", "--junitxml=j.xml"
    )
    completeness = project.report()["header"]["completeness"]

    assert ended.ret == 1
    assert ended.parseoutcomes() == OUTCOMES
    (failed,) = [case for case in project.junit("j.xml") if "failure" in case.children]
    assert len(project.junit("j.xml")) == 6
    assert failed.message == "x failed: 2, limit x <= 1, missed by 100 %"
    assert completeness["expected_count"] == completeness["reported_count"] == 5
    assert lines(ended, "FAILED test_it.py::test_limit[2] - x failed: 2")
    assert lines(ended, "INTERNALERROR") == []
    assert len(lines(ended, "2 xdist workers measured host times")) == 1


def test_a_host_time_knows_how_many_workers_measured(project: Project) -> None:
    """A soft fact that is printed when it moved; what is not timed is alone anywhere."""
    project.write("def test_it(gpuperf):\n    gpuperf.record('x', 1)\n")
    recorded = project.run(*XDIST, "-n2", "--gpuperf-json=run.json")
    facts = project.report()["records"][0]["soft_facts"]
    project.write("def test_it(gpuperf):\n    gpuperf(int)\n")
    alone = project.run(*XDIST, "-n0", "--gpuperf-json=run.json")

    assert facts["xdist_workers"] == "2"
    assert project.report()["records"][0]["soft_facts"]["xdist_workers"] == "1"
    assert lines(recorded, "side by side") == lines(alone, "side by side") == []


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        ("--collect-only", "test_unmeasured"),
        ("--fixtures-per-test", "test_unmeasured"),
        ("--markers", "@pytest.mark.gpuperf"),
    ],
)
@pytest.mark.parametrize("more", [(), ("--gpuperf-json=run.json",)])
def test_a_controller_that_only_shows(
    project: Project, asked: str, answer: str, more: tuple[str, ...], tmp_path: Path
) -> None:
    """With nothing to hand out it shows by itself, and leaves nothing behind."""
    project.environment.setenv("TMPDIR", str(tmp_path))
    project.environment.setattr(tempfile, "tempdir", None)
    project.write(MIXED)
    ended = project.run(*XDIST, "-n2", asked, *more)

    assert ended.ret == 0
    assert lines(ended, "INTERNALERROR") == []
    assert lines(ended, answer)
    assert list(tmp_path.glob("gpuperf-*")) == []


def test_held_tests_arrive_whole(project: Project) -> None:
    """In a strict run every test waits in the controller; none is lost or doubled."""
    project.write(MIXED)
    ended = project.run(*XDIST, "-n2", "--gpuperf-strict", "--junitxml=junit.xml")

    assert ended.parseoutcomes() == {"passed": 3, "failed": 2, "xfailed": 1}
    assert len(project.junit()) == 6


def test_groups_do_not_change_the_ids(project: Project) -> None:
    """loadgroup appends @group to ids; baselines and reports know the test without it."""
    pytest.importorskip("xdist", reason="the marker is pytest-xdist's")
    project.store(
        """
        import os
        import pytest

        @pytest.mark.xdist_group("gpu0")
        @pytest.mark.gpuperf(max_regression={"x": "5 %"})
        @pytest.mark.parametrize("name", ["a", "b"])
        def test_x(gpuperf, name):
            value = float(os.environ.get(f"VALUE_{name}", "1"))
            gpuperf.record("x", value, unit="s", better="lower")
        """
    )
    project.set_values(b=1.2)
    ended = project.run(
        *(*XDIST, "-n2", "--dist=loadgroup", "--gpuperf-json=run.json"),
        *("--gpuperf-baseline=.gpuperf", "--gpuperf-confirm=2"),
    )

    assert ended.parseoutcomes() == {"passed": 1, "failed": 1}
    assert project.outcomes() == {
        ("test_x[a]", "unchanged"),
        ("test_x[b]", "regressed"),
    }
    assert project.report()["header"]["completeness"]["missing"] == []


def test_a_baseline_is_written_once_by_the_controller(project: Project) -> None:
    """Workers store nothing: one session for each run, whoever measured."""
    project.write(
        """
        import pytest

        @pytest.mark.gpuperf(max_regression={"x": "5 %"})
        @pytest.mark.parametrize("n", range(4))
        def test_it(gpuperf, n):
            gpuperf.record("x", 1 + n, better="lower")
        """
    )
    for workers in ("-n0", "-n0", "-n2"):
        assert project.run(*XDIST, workers, "--gpuperf-update=new", "-q").ret == 0
    ended = project.run("--gpuperf-baseline=.gpuperf")

    assert lines(ended, "judged 4 of 4: 4 unchanged")


def test_maxfail_stops_workers_and_says_so(project: Project) -> None:
    """With -x the run is incomplete: it says which tests without a result."""
    project.write(
        """
        import pytest

        @pytest.mark.gpuperf(limits=["x <= 1"])
        @pytest.mark.parametrize("n", range(2, 40))
        def test_it(gpuperf, n):
            gpuperf.record("x", n)
        """
    )
    ended = project.run(
        *XDIST, "-n2", "-x", "--gpuperf-json=run.json", "--gpuperf-update=all"
    )
    completeness = project.report()["header"]["completeness"]

    assert ended.ret != 0
    assert len(completeness["missing"]) > 20
    assert completeness["interrupted"] == "stopping after 1 failures"
    assert list(project.path.glob(".gpuperf/**/*.json*")) == []


def test_workers_have_no_reports_of_their_own(project: Project) -> None:
    """The JSON holds what both workers measured, with its samples, once."""
    project.write(
        """
        import pytest

        @pytest.mark.gpuperf(iterations=5)
        @pytest.mark.parametrize("n", range(6))
        def test_it(gpuperf, n):
            gpuperf(int)
        """
    )
    ended = project.run(*XDIST, "-n2", "--gpuperf-json=run.json")
    records = project.report()["records"]

    assert ended.ret == 0
    assert len(records) == 6
    assert {len(record["series"][0]["values"]) for record in records} == {5}
    assert len(lines(ended, "gpuperf:")) == 1


def test_n0_is_one_process(project: Project) -> None:
    """-n0 with xdist loaded is the same as no xdist."""
    project.write(MIXED)

    assert project.run(*XDIST, "-n0").parseoutcomes() == OUTCOMES


@pytest.mark.parametrize("workers", [(), ("-n2",)], ids=["alone", "workers"])
def test_the_commit_is_known_whoever_measured(
    project: Project, workers: tuple[str, ...]
) -> None:
    """The run's header names the commit, and whether tracked files differ from it."""
    git = shutil.which("git")
    if git is None:
        pytest.skip("git is not installed")
    project.write(MIXED)
    name = ("-c", "user.name=n", "-c", "user.email=e@example.org")
    for command in (("init", "-q"), ("add", "."), (*name, "commit", "-qm", "first")):
        subprocess.run([git, *command], check=True, cwd=project.path, timeout=HUNG_S)
    project.run(*XDIST, *workers, "--gpuperf-json=run.json")
    session = project.report()["header"]["session"]

    assert len(session["commit"]) == 40
    assert session["dirty"] is False


def run_folders(project: Project) -> list[str]:
    """Return the folders that runs have left behind where temporary ones are made."""
    return [path.name for path in (project.path / "tmp").iterdir()]


@pytest.fixture
def temporary(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of the project's own for temporary files."""
    (project.path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(project.path / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", None)


@pytest.mark.usefixtures("temporary")
def test_a_controller_that_was_asked_for_nothing_judges_all_the_same(
    project: Project,
) -> None:
    """The first measurement opens the gate; what had ended before has reported."""
    project.write(
        """
        import pytest

        @pytest.fixture
        def broken():
            raise RuntimeError("before anything is measured")

        def test_broken(broken, gpuperf):
            gpuperf(int)
        """,
        "test_first.py",
    )
    project.write(MIXED, "test_second.py")
    ended = project.run(*XDIST, "-n1")

    assert ended.parseoutcomes() == {**OUTCOMES, "errors": 1}
    assert lines(ended, "judged 3 of 6: 1 failed, 1 passed, 1 xfailed; 1 unmeasured")
    assert not lines(ended, "without a result")
    assert run_folders(project) == []


@pytest.mark.usefixtures("temporary")
def test_a_controller_that_nothing_reached_says_what_never_ran(
    project: Project,
) -> None:
    """Workers that all die before a report have said what they were going to measure."""
    project.write(
        """
        import os

        def test_it(gpuperf):
            os._exit(3)
        """
    )
    ended = project.run(*XDIST, "-n1", "--max-worker-restart=0")

    assert ended.ret != 0
    assert lines(ended, "judged 0 of 1: 1 without a result")
    assert run_folders(project) == []


@pytest.mark.usefixtures("temporary")
def test_a_controller_of_tests_that_measure_nothing_leaves_nothing(
    project: Project,
) -> None:
    """No line of ours, and no folder."""
    project.write("def test_plain():\n    pass\n")
    ended = project.run(*XDIST, "-n1")

    assert ended.parseoutcomes() == {"passed": 1}
    assert lines(ended, "gpuperf:") == []
    assert run_folders(project) == []


def test_two_tests_of_one_id_are_refused_by_all_workers(project: Project) -> None:
    """The error of one process is that of several, and no other test runs."""
    for folder in ("reader", "writer"):
        text = "def test_it(gpuperf):\n    gpuperf(int)\n"
        project.write(text, f"tests/{folder}/test_speed.py")
        project.write("", f"tests/{folder}/__init__.py")
    project.write("def test_plain(): open('ran', 'w')\n", "tests/test_plain.py")
    project.write("[pytest]\n", "config/pytest.ini")
    ended = project.run(
        *XDIST,
        "-n2",
        *("-c", "config/pytest.ini", "tests/reader", "tests/writer"),
        *("tests/test_plain.py", "--gpuperf-update=new"),
    )

    assert ended.ret == 1
    assert ended.parseoutcomes() == {"errors": 1}
    assert lines(ended, "two tests are called test_speed.py::test_it", "--rootdir=.")
    assert lines(ended, "INTERNALERROR") == []
    assert not (project.path / "ran").exists()


def test_repeats_are_numbered_in_each_worker(project: Project) -> None:
    """Two workers share the repeats of a test, and none is dropped."""
    project.write(
        "def pytest_collection_modifyitems(items):\n    items[:] = items * 3\n",
        "conftest.py",
    )
    project.write("def test_it(gpuperf):\n    gpuperf.record('x', 1)\n")
    ended = project.run(*XDIST, "-n2", "--gpuperf-json=run.json")
    report = project.report()

    assert ended.parseoutcomes() == {"passed": 3}
    assert [test["test_id"] for test in report["tests"]] == [
        "test_it.py::test_it",
        "test_it.py::test_it#2",
        "test_it.py::test_it#3",
    ]
    assert report["header"]["completeness"]["reported_count"] == 3
