"""What pytest writes and prints of a run, by its options."""

from __future__ import annotations

import csv
import json

import pytest

from fakes.project import Project, lines

TESTS = """
    import pytest

    @pytest.mark.gpuperf(limits=["x <= 1"], records="x", group="sums, all")
    def test_slow(gpuperf):
        gpuperf.record("x", 2)

    def test_fine(gpuperf):
        gpuperf.record("=x", 1)
"""


def test_every_report_that_is_asked_for_is_written(project: Project) -> None:
    """Files, standard output and the log of a GitHub job, all of the same run."""
    project.write(TESTS)
    ended = project.run(
        "--gpuperf-markdown=r.md",
        "--gpuperf-csv=r.csv",
        "--gpuperf-json=-",
        "--gpuperf-annotations",
    )
    markdown = (project.path / "r.md").read_text("utf-8")
    with (project.path / "r.csv").open(encoding="utf-8", newline="") as file:
        rows = [*csv.DictReader(file)]
    start, end = (ended.outlines.index(brace) for brace in "{}")
    printed = "\n".join(ended.outlines[start : end + 1])

    assert ended.ret == 1
    assert markdown.startswith("### gpuperf: ")
    assert markdown.index("#### sums, all") < markdown.index("#### no group")
    assert [(row["group"], row["metric"], row["outcome"]) for row in rows] == [
        ("sums, all", "x", "failed"),
        ("", "'=x", ""),
    ]
    assert len(json.loads(printed)["records"]) == 2
    assert lines(
        ended,
        "::error file=test_it.py,title=test_slow x,line=4::x failed: 2, limit x <= 1, "
        "missed by 100 %25",
    )


def test_reports_fail_the_tests_that_pytest_fails(project: Project) -> None:
    """No more, as skips and expected failures; no fewer, as one that never measured."""
    pytest.importorskip("jinja2", reason="draws the page")
    project.write(
        """
        import pytest

        def test_wrong_at_once(gpuperf):
            assert gpuperf is None

        def test_wrong_then(gpuperf):
            gpuperf.measure(int)
            assert not "so"

        def test_skipped(gpuperf):
            gpuperf.measure(int)
            pytest.skip("not here")

        @pytest.mark.xfail
        def test_expected(gpuperf):
            assert gpuperf.measure(int).time < 0
        """
    )
    ended = project.run("--gpuperf-json=run.json", "--gpuperf-html=r.html")
    run = json.loads((project.path / "run.json").read_text("utf-8"))
    page = (project.path / "r.html").read_text("utf-8")

    assert ended.parseoutcomes() == {"failed": 2, "skipped": 1, "xfailed": 1}
    assert [t.partition("::")[2] for t in run["broken"]] == [
        *("test_wrong_at_once", "test_wrong_then")
    ]
    assert lines(ended, "test_wrong_at_once", "ERROR")
    assert lines(ended, "test_wrong_then", "ERROR")
    assert lines(ended, "test_skipped", "skipped")
    assert lines(ended, "test_expected", "xfailed")
    assert lines(ended, "2 failed before being judged, 2 skipped or xfailed before")
    assert "2 of 4 tests fail: 2 failed before being judged." in page


@pytest.mark.parametrize("option", ["--gpuperf-markdown", "--gpuperf-csv"])
def test_a_report_that_cannot_be_written_is_told_before_tests_run(
    project: Project, option: str
) -> None:
    """Its folder is not there."""
    project.write(TESTS)
    ended = project.run(f"{option}=missing/file")

    assert ended.ret == pytest.ExitCode.USAGE_ERROR
    assert not lines(ended, "2 passed")


def test_the_table_shows_what_pytest_benchmark_does(project: Project) -> None:
    """Statistics of the samples, which no report file asks for."""
    project.write("def test_a(gpuperf):\n    gpuperf(sum, range(1000))\n")
    ended = project.run("--gpuperf-columns=min,mean,rounds", "--gpuperf-time-unit=us")
    (head,) = lines(ended, "min", "mean", "rounds")
    (row,) = (line for line in ended.outlines if line.startswith("test_a "))
    least, unit, mean, _, rounds = row.split()[1:]

    assert head.split() == ["test", "min", "mean", "rounds"]
    assert unit == "us"
    assert 0 < float(least) <= float(mean)
    assert int(rounds) >= 1
