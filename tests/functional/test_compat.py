"""Beside the plugins that people use with ours; each test skips where its plugin is not."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fakes.project import HUNG_S, XDIST, Project, command, lines

THREE = """
    import os
    import pytest

    @pytest.mark.gpuperf(limits=["x <= 1"], max_regression={"x": "5 %"})
    @pytest.mark.parametrize("n", [1, 2, 0])
    def test_it(gpuperf, n):
        gpuperf.record("x", n, better="lower")
"""
STRICT = ("--gpuperf-strict", "--gpuperf-baseline=.gpuperf", "--gpuperf-update=new")
GATE = ("--gpuperf-baseline=.gpuperf", "--gpuperf-confirm=2")


@pytest.mark.parametrize("seed", ["1", "2"])
def test_randomly_shuffles_and_children_keep_their_order(
    project: Project, seed: str
) -> None:
    """The suspects of a shuffled run are confirmed and settled as ever."""
    pytest.importorskip("pytest_randomly")
    project.store()
    project.set_values(b=1.2)
    shuffled = ("-p", "pytest_randomly", f"--randomly-seed={seed}")
    ended = project.spawn(*GATE, *shuffled)

    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "x regressed: 1.20 s" in ended.stdout


def test_a_timeout_fails_its_test_alone(project: Project) -> None:
    """A test that hangs is failed by pytest-timeout; the others are held and judged."""
    pytest.importorskip("pytest_timeout")
    project.write(
        THREE
        + """
    @pytest.mark.timeout(0.2)
    def test_hangs(gpuperf):
        import time
        gpuperf(time.sleep, 30)
"""
    )
    ended = project.run("-p", "pytest_timeout", "--gpuperf-json=run.json")

    assert ended.parseoutcomes() == {"passed": 2, "failed": 2}
    assert lines(ended, "FAILED", "test_hangs", "Timeout")
    assert project.report()["header"]["completeness"]["missing"] == []


def test_reruns_repeat_what_fails_at_once(project: Project) -> None:
    """A flaky test that is not gated is rerun; its last measurement counts."""
    pytest.importorskip("pytest_rerunfailures")
    project.write(
        """
        TRIES = []

        def test_flaky(gpuperf):
            TRIES.append(1)
            gpuperf.record("x", len(TRIES))
            assert len(TRIES) == 2
        """
    )
    ended = project.run(
        "-p", "pytest_rerunfailures", "--reruns=2", "--gpuperf-json=run.json"
    )
    (record,) = project.report()["records"]

    assert ended.parseoutcomes() == {"passed": 1, "rerun": 1}
    assert record["estimates"][0]["value"] == 2


def test_a_rerun_is_judged_by_its_own_values(project: Project) -> None:
    """The verdicts of an attempt end with it."""
    pytest.importorskip("pytest_rerunfailures")
    project.write(
        """
        import time

        import pytest

        TRIES = []

        @pytest.mark.gpuperf(limits=["time <= 3 ms"])
        def test_flaky(gpuperf):
            TRIES.append(1)
            gpuperf.measure(time.sleep, 0.02 if len(TRIES) == 1 else 0.000_1)
            if len(TRIES) == 2:
                pytest.skip("has measured")
        """
    )
    ended = project.run(
        "-p", "pytest_rerunfailures", "--reruns=1", "--gpuperf-confirm=0"
    )

    assert ended.parseoutcomes() == {"skipped": 1, "rerun": 1}


def test_reruns_leave_gated_tests_and_children_alone(project: Project) -> None:
    """A test that may regress is run once here, and once in each fresh process."""
    pytest.importorskip("pytest_rerunfailures")
    project.store()
    project.set_values(b=1.2)
    ended = project.run("-p", "pytest_rerunfailures", "--reruns=2", *GATE)

    assert ended.parseoutcomes() == {"passed": 2, "failed": 1}
    assert lines(ended, "x regressed")


def test_reruns_leave_a_gated_test_that_fails_by_itself(project: Project) -> None:
    """Its protocol is ours, whatever fails it; the README says so."""
    pytest.importorskip("pytest_rerunfailures")
    project.write(
        """
        import pytest

        TRIES = []

        @pytest.mark.gpuperf(limits=["x <= 9"])
        def test_flaky(gpuperf):
            TRIES.append(1)
            gpuperf.record("x", len(TRIES))
            assert len(TRIES) == 2
        """
    )
    ended = project.run("-p", "pytest_rerunfailures", "--reruns=2")

    assert ended.parseoutcomes() == {"failed": 1}


def test_html_reports_the_verdict(project: Project) -> None:
    """pytest-html has one row for each test, the regressed one failed with its text."""
    pytest.importorskip("pytest_html")
    project.write(THREE)
    html = ("-p", "pytest_html.plugin", "-p", "pytest_metadata.plugin")
    ended = project.spawn(*html, "--html=out.html", "-k", "not 2", *STRICT)
    page = (project.path / "out.html").read_text(encoding="utf-8")

    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert page.count("test_it.py::test_it[1]") >= 1
    assert "2 Failed" in page
    assert "0 Passed" in page


@pytest.mark.parametrize("workers", [(), (*XDIST, "-n2")], ids=["alone", "workers"])
def test_cov_counts_what_the_suite_covered(
    project: Project, workers: tuple[str, ...]
) -> None:
    """Children are traced as the suite, and leave its data and its reports alone."""
    pytest.importorskip("pytest_cov")
    project.write(
        """
        def first():
            return 1

        def second():
            return 2
        """,
        "program.py",
    )
    project.store(
        """
        import os
        import program
        import pytest

        def test_other():
            assert program.second() == 2

        @pytest.mark.gpuperf(max_regression={"x": "5 %"})
        def test_x(gpuperf):
            value = program.first() * float(os.environ.get("VALUE_x", "1"))
            gpuperf.record("x", value, unit="s", better="lower")
        """
    )
    project.set_values(x=1.2)
    cov = ("-p", "pytest_cov.plugin", "--cov=program", "--cov-report=xml")
    across = "--gpuperf-compare-across=tracer"
    ended = project.spawn(*GATE, across, *cov, *workers, "--cov-fail-under=100")

    assert "x regressed" in ended.stdout, ended.stdout + ended.stderr
    assert "Total coverage: 100.00%" in ended.stdout
    assert [path.name for path in project.path.glob(".coverage*")] == [".coverage"]


@pytest.mark.parametrize(
    "names",
    [
        ("pytest_timeout", "pytest_rerunfailures"),
        ("pytest_html.plugin", "pytest_metadata.plugin"),
    ],
)
def test_they_all_stand_beside_xdist(project: Project, names: tuple[str, ...]) -> None:
    """With two workers, outcomes are the same with or without the other plugins."""
    for name in names:
        pytest.importorskip(name)
    project.write(THREE)
    options = [part for name in names for part in ("-p", name)]
    ended = project.spawn(*XDIST, *options, "-n2", "--junitxml=junit.xml")

    assert ended.returncode == 1
    assert sorted(project.junit(), key=repr) == [
        ("test_it[0]",),
        ("test_it[1]",),
        ("test_it[2]", "failure"),
    ]


def test_pytest_benchmark_compares_what_we_export(project: Project) -> None:
    """Both fixtures measure in one file, and its own command reads our samples."""
    pytest.importorskip("pytest_benchmark")
    project.write(
        """
        import pytest

        @pytest.mark.gpuperf(group="a|b", iterations=5)
        @pytest.mark.parametrize("name", ['"<x>,1', "%d"])
        def test_ours(gpuperf, name):
            assert gpuperf(sorted, [2, 1]) == [1, 2]

        def test_theirs(benchmark):
            assert benchmark(sorted, [2, 1]) == [1, 2]
        """
    )
    theirs = ("-p", "pytest_benchmark.plugin", "--benchmark-max-time=0.01")
    ended = project.spawn(*theirs, "--gpuperf-json=run.json")
    for name in ("was.json", "now.json"):
        target = ("--to=pytest-benchmark", "-o", name)
        assert command("export", "run.json", *target, folder=project.path).stderr == ""
    compared = subprocess.run(
        [sys.executable, "-m", "pytest_benchmark", "compare", "was.json", "now.json"],
        capture_output=True,
        check=False,
        cwd=project.path,
        encoding="utf-8",
        timeout=HUNG_S,
    )

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert compared.returncode == 0, compared.stdout + compared.stderr
    assert compared.stdout.count("test_ours[%d]") == 2
    assert "benchmark 'a|b'" in compared.stdout


def test_compat_run_parallel_leaves_what_measures_to_one_thread(
    project: Project,
) -> None:
    """Other tests run in its threads; a measured one is judged as ever."""
    pytest.importorskip("pytest_run_parallel")
    project.write(THREE + "\n    def test_other():\n        pass\n")
    threads = ("-p", "pytest_run_parallel.plugin", "--parallel-threads=4")
    ended = project.spawn(*threads, "--gpuperf-json=run.json")

    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "Collected 1 items to run in parallel" in ended.stdout
    outcomes = [verdict["outcome"] for verdict in project.report()["verdicts"]]
    assert sorted(outcomes) == ["failed", "passed", "passed"]
