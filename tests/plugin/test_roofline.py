"""The roofline in a test: fractions, grades and what is said where there is none."""

from __future__ import annotations

from typing import Any

import pytest

from fakes.project import Project, lines

PEAKS = """
[pytest]
gpuperf_peaks =
    cpu: dram 1 GB/s, fp32 1 GFLOP/s
    NVIDIA H200: dram 4.5 TB/s
"""
# a call of at least 2 ms, which at 1 GB/s is time for 2 MB
HEAD = """
    import time

    import pytest

    from pytest_gpuperf import Work

    def wait():
        time.sleep(0.002)

    MEASURED = pytest.mark.gpuperf(iterations=5)
"""


def ran(project: Project, body: str, *arguments: str, ini: str = PEAKS) -> Any:
    """Run a test file with declared peaks and return what pytest said."""
    project.write(HEAD + body)
    (project.path / "pytest.ini").write_text(ini, "utf-8")
    return project.run("--gpuperf-json=run.json", "-rs", *arguments)


def value(record: dict[str, Any], metric: str) -> dict[str, Any]:
    """Return the estimate of a metric of a record."""
    (found,) = (each for each in record["estimates"] if each["metric"] == metric)
    return dict(found)


def test_declared_work_has_a_fraction_of_its_roof(project: Project) -> None:
    """On a machine with no GPU it is the CPU's, as far as a person declared it."""
    ended = ran(
        project,
        """
    @MEASURED
    def test_it(gpuperf):
        perf = gpuperf.measure(wait, work=Work(bytes=1e6))
        assert 0 < perf.roofline.fraction <= 0.5
        assert perf.roofline.fraction == pytest.approx(1e-3 / perf.time)
        assert perf.roofline.fraction.low <= perf.roofline.fraction
        assert not perf.has("roofline.intensity")
    """,
    )
    (record,) = project.report()["records"]
    fraction, time = value(record, "roofline.fraction"), value(record, "time")

    assert ended.ret == 0
    assert fraction["label"] == "declared"
    assert fraction["source"] == time["source"]
    assert fraction["sample_count"] == time["sample_count"]
    assert record["roofline"]["bound"] == "memory"
    assert record["roofline"]["roof"] == "dram"
    assert record["roofline"]["source"] == "declared (gpuperf_peaks)"
    (row,) = lines(ended, "test_it ", " dram ")
    assert row.split()[-1] == "memory"
    assert row.split()[-2] == record["roofline"]["grade"]


def test_work_of_both_kinds_has_an_intensity(project: Project) -> None:
    """And stands under the part of the roof where that intensity leads it."""
    ended = ran(
        project,
        """
    @MEASURED
    @pytest.mark.parametrize("flop", [1e5, 1e6])
    def test_it(gpuperf, flop):
        work = Work(flop=flop, bytes=5e5, dtype="fp32")
        perf = gpuperf.measure(wait, work=work)
        assert perf.roofline.intensity == flop / 5e5
        assert perf.roofline.fraction == pytest.approx(
            max(flop, 5e5) / 1e9 / perf.time
        )
    """,
    )
    bounds = [record["roofline"]["bound"] for record in project.report()["records"]]

    assert ended.ret == 0
    assert bounds == ["memory", "compute"]


@pytest.mark.parametrize(
    ("limit", "outcome"),
    [
        ("roofline.fraction >= 0.001 %", "passed"),
        ("roofline.fraction >= 99 %", "failed"),
        ("roofline.fraction <= 99 %", "passed"),
    ],
)
def test_a_limit_is_held_against_the_fraction(
    project: Project, limit: str, outcome: str
) -> None:
    """Also where the marker declares the work."""
    ran(
        project,
        f"""
    @pytest.mark.gpuperf(limits=["{limit}"], work=Work(bytes=1e6), iterations=5)
    def test_it(gpuperf):
        gpuperf(wait)
    """,
    )

    assert project.outcomes() == {("test_it", outcome)}


def test_more_than_the_roof_never_passes(project: Project) -> None:
    """What cannot be is inconclusive: passed without --gpuperf-strict, failed with."""
    body = """
    @pytest.mark.gpuperf(limits=["roofline.fraction >= 80 %"], iterations=5)
    def test_it(gpuperf):
        gpuperf.measure(wait, work=Work(bytes=1e12))
    """
    mild, strict = ran(project, body), ran(project, body, "--gpuperf-strict")
    (verdict,) = project.report()["verdicts"]

    assert (mild.ret, strict.ret) == (0, 1)
    assert verdict["outcome"] == "inconclusive"
    assert verdict["reason"] == "above-the-roof"
    assert lines(mild, "1 inconclusive (above the roof)")


@pytest.mark.parametrize(
    ("grade", "share", "outcome"),
    [("F", 1e5, "passed"), ("D", 1e3, "failed"), ("A", 1e6, "failed")],
)
def test_a_least_grade_is_judged(
    project: Project, grade: str, share: float, outcome: str
) -> None:
    """By the bands of the roof that it stands under, as the limit that it is."""
    ended = ran(
        project,
        f"""
    @pytest.mark.gpuperf(min_grade="{grade}", iterations=5)
    def test_it(gpuperf):
        gpuperf.measure(wait, work=Work(bytes={share!r}))
    """,
    )

    assert project.outcomes() == {("test_it", outcome)}
    if outcome == "failed":
        assert lines(ended, f'limit min_grade="{grade}" (roofline.fraction >= ')


def test_a_project_may_set_its_own_bands(project: Project) -> None:
    """What is an F by the plugin's bands is an A by the project's."""
    bands = "gpuperf_grades = memory: A 0.04%, B 0.03%, C 0.02%, D 0.01%\n"
    body = """
    @pytest.mark.gpuperf(min_grade="A", iterations=5)
    def test_it(gpuperf):
        gpuperf.measure(wait, work=Work(bytes=2e5))
    """
    ran(project, body)
    assert project.outcomes() == {("test_it", "failed")}
    ran(project, body, ini=f"{PEAKS}{bands}")
    assert project.outcomes() == {("test_it", "passed")}
    (record,) = project.report()["records"]
    assert record["roofline"]["grade"] == "A"


@pytest.mark.parametrize(
    ("work", "marked", "reason"),
    [
        ("None", 'min_grade="B"', "the test declares no work"),
        (
            'Work(flop=1e3, dtype="bf16")',
            'min_grade="B"',
            "the bf16 peak is not known: the peaks of a CPU must be declared",
        ),
        (
            'Work(flop=1e3, dtype="bf16")',
            'limits=["roofline.fraction >= 50 %"]',
            "the bf16 peak is not known",
        ),
    ],
)
def test_a_roof_that_is_not_known_is_unmeasured(
    project: Project, work: str, marked: str, reason: str
) -> None:
    """The reason names the peak; nobody's figures stand in."""
    ended = ran(
        project,
        f"""
    @pytest.mark.gpuperf({marked}, iterations=5)
    def test_it(gpuperf):
        gpuperf.measure(wait, work={work})
    """,
    )

    assert project.outcomes() == {("test_it", "unmeasured")}
    assert ended.parseoutcomes() == {"skipped": 1}
    assert lines(ended, "SKIPPED", reason)


def test_a_value_that_is_not_known_is_refused_with_its_remedy(project: Project) -> None:
    """A test that reads it becomes unmeasured, and is told how to declare a peak."""
    ended = ran(
        project,
        """
    @MEASURED
    def test_it(gpuperf):
        perf = gpuperf.measure(wait, work=Work(bytes=1e3))
        assert perf.roofline.fraction >= 0.5
    """,
        ini="[pytest]\ngpuperf_peaks = NVIDIA H200: dram 4 TB/s\n",
    )

    assert lines(ended, "SKIPPED", "the dram peak is not known", "gpuperf_peaks")
    assert lines(ended, "declares those of NVIDIA H200, and this is cpu")


def test_a_marker_alone_has_no_roof(project: Project) -> None:
    """One call of a test is not a measurement of time: that is said while collecting."""
    ended = ran(
        project,
        """
    @pytest.mark.gpuperf(min_grade="B", limits=["roofline.fraction >= 5 %"])
    def test_it():
        wait()
    """,
    )

    assert ended.ret == 2
    assert lines(
        ended, "roofline.fraction >= 5 %, min_grade='B': a single call of a test"
    )


def test_mistakes_of_the_ini_file_are_told_at_once(project: Project) -> None:
    """Both options, each mistake with its place, before any test runs."""
    ended = ran(
        project,
        """
    def test_it(gpuperf):
        gpuperf(wait)
    """,
        ini=(
            "[pytest]\n"
            "gpuperf_peaks =\n"
            "    cpu: dram 20 TFLOP/s\n"
            "    cpu ram 3 GB/s\n"
            "gpuperf_grades = memory: A 10%, B 20%, C 3%, D 2%\n"
        ),
    )
    text = "\n".join(ended.outlines + ended.errlines)

    assert ended.ret == 4
    assert "dram is given in bytes/s, as 4.5 TB/s" in text
    assert "no device is named before a colon" in text
    assert "the shares of memory do not fall" in text


def test_a_loop_has_its_share_of_the_peak(project: Project) -> None:
    """The peaks that a person declared serve the steps of a loop too."""
    ended = ran(
        project,
        """
    def test_it(gpuperf):
        work = Work(flop=1e6, dtype="fp32")
        with gpuperf.steps(work=work, warmup=1) as steps:
            for _ in range(4):
                with steps.step():
                    wait()
        assert 0 < steps.mfu <= 0.5
    """,
    )

    assert ended.ret == 0
    (record,) = project.report()["records"]
    assert value(record, "mfu")["label"] == "declared"


def test_another_peak_makes_its_shares_incomparable(project: Project) -> None:
    """Half of one peak is a quarter of another; the time stays comparable."""
    project.write("[pytest]\ngpuperf_peaks = cpu: dram 20 GB/s\n", "pytest.ini")
    project.store(
        """
        import pytest
        from pytest_gpuperf import Work

        LIMITS = {"time": "9999 %", "roofline.fraction": "50 %"}

        @pytest.mark.gpuperf(
            work=Work(bytes=8e6), max_regression=LIMITS, iterations=20
        )
        def test_it(gpuperf):
            data = bytearray(4_000_000)
            gpuperf.measure(bytes, data)
        """
    )
    project.write("[pytest]\ngpuperf_peaks = cpu: dram 40 GB/s\n", "pytest.ini")
    options = (
        "--gpuperf-baseline=.gpuperf",
        "--gpuperf-confirm=0",  # half the fraction is suspect, and that is not the rule
        "--gpuperf-json=run.json",
    )
    project.run(*options)
    verdicts = {v["metric"]: v for v in project.report()["verdicts"]}

    assert verdicts["time"]["outcome"] in {"unchanged", "blind"}
    assert verdicts["roofline.fraction"]["outcome"] == "incomparable"
    assert verdicts["roofline.fraction"]["detail"] == [
        "peak: dram 20.0 GB/s (declared) -> dram 40.0 GB/s (declared)"
    ]

    project.run(*options, "--gpuperf-compare-across=peak")
    assert "incomparable" not in {outcome for _, outcome in project.outcomes()}


def test_a_value_can_be_asked_for_from_a_better_source(project: Project) -> None:
    """A fraction of a declared roof is no better known than that, and says so."""
    ended = ran(
        project,
        """
    @MEASURED
    @pytest.mark.parametrize("least", ["estimated", "declared", "measured", "sure"])
    def test_it(gpuperf, least):
        perf = gpuperf.measure(wait, work=Work(bytes=1e6))
        assert perf.roofline.fraction.sourced(least) == perf.roofline.fraction
        assert perf.time.sourced("measured") == perf.time
    """,
        "-rfs",
    )

    assert ended.parseoutcomes() == {"passed": 2, "skipped": 1, "failed": 1}
    assert lines(
        ended, "roofline.fraction: it is declared, but measured or better is required"
    )
    assert lines(ended, "'sure' is not a label of a source", "write one of: detected")
