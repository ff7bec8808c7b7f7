"""judge.grade: grades of what was reached of a roof, and the limits that they are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.errors import ConfigError
from pytest_gpuperf.judge.grade import (
    GRADES,
    condition_of,
    grade_limit,
    grade_of,
    parse_grades,
)
from pytest_gpuperf.model.gap import (
    Concern,
    Condition,
    Finding,
    Obstacle,
    Readiness,
    Topic,
)
from pytest_gpuperf.model.roofline import Attainment, Bands, Bound, Grade
from pytest_gpuperf.model.sample import SourceLabel


def attained(
    fraction: float,
    bound: Bound = "memory",
    peak_label: SourceLabel = SourceLabel.DATASHEET,
) -> Attainment:
    return Attainment(
        fraction=fraction,
        bound=bound,
        roof="dram" if bound == "memory" else "bf16",
        label=SourceLabel.DATASHEET,
        peak_label=peak_label,
        source="a sheet",
    )


@pytest.mark.parametrize(
    ("bound", "label", "bands"),
    [
        ("memory", SourceLabel.DETECTED, (0.85, 0.70, 0.50, 0.25)),
        ("memory", SourceLabel.MEASURED, (0.85, 0.70, 0.50, 0.25)),
        ("compute", SourceLabel.DATASHEET, (0.70, 0.55, 0.35, 0.15)),
        ("compute", SourceLabel.DECLARED, (0.70, 0.55, 0.35, 0.15)),
        ("compute", SourceLabel.MEASURED, (0.90, 0.75, 0.50, 0.25)),
    ],
)
def test_a_band_begins_at_its_share(
    bound: Bound, label: SourceLabel, bands: tuple[float, ...]
) -> None:
    """The share itself belongs to the better grade; each roof has bands of its own."""
    for share, letter, lower in zip(bands, "ABCD", "BCDF", strict=True):
        assert grade_of(attained(share, bound, label)) == letter
        assert grade_of(attained(share - 1e-9, bound, label)) == lower


def test_more_than_the_roof_is_an_a() -> None:
    """A grade says how much was reached; that it cannot be is the limit's to say."""
    assert grade_of(attained(3.0)) is Grade.A


@given(
    fraction=st.floats(0, 2),
    letter=st.sampled_from("ABCDF"),
    bound=st.sampled_from(["memory", "compute"]),
)
def test_a_grade_is_a_limit(fraction: float, letter: str, bound: Bound) -> None:
    """A fraction keeps the limit of a grade exactly where its own grade is as good."""
    found = attained(fraction, bound)
    limit = grade_limit(found, letter)

    assert (fraction >= limit.threshold) == (grade_of(found) >= letter)
    assert limit.metric == "roofline.fraction"
    assert (limit.operator, limit.unit) == (">=", "fraction")
    assert limit.text.startswith(f'min_grade="{letter}" (roofline.fraction >= ')
    assert float(limit.text.rpartition(" ")[2].rstrip(")")) == limit.threshold


def test_a_project_may_have_bands_of_its_own() -> None:
    """For the roof that it names; the others stay."""
    strict = parse_grades("memory: A 95 %, B 90%, C 80 %, D 0.5 fraction")

    assert strict == {"memory": Bands(a=0.95, b=0.9, c=0.8, d=0.5)}
    assert grade_of(attained(0.9), strict) == "B"
    assert grade_limit(attained(0.9), "A", strict).threshold == 0.95
    assert grade_of(attained(0.7, "compute"), strict) == "A"


def test_an_order_of_grades_is_free() -> None:
    """Every grade has its share, whichever is named first; comments say nothing."""
    text = "# ours\n\n  # and\ncompute: D 10%, C 20%, B 30%, A 40%\ncompute_measured: A 9%, B 8%, C 7%, D 6%"

    assert parse_grades(text) == {
        "compute": Bands(a=0.4, b=0.3, c=0.2, d=0.1),
        "compute_measured": Bands(a=0.09, b=0.08, c=0.07, d=0.06),
    }


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "dram: A 85%, B 70%, C 50%, D 25%",
            "'dram' is not a roof: memory, compute, compute_measured",
        ),
        ("memory: compute: A 85%", "'compute: A 85%' is not a grade with its share"),
        ("memory: A 85%, B 70%", "memory lacks C, D"),
        ("A 85%", "is not a roof"),
        ("memory: A 85%, B 70%, C 50%", "lacks D"),
        ("memory:", "not a grade with its share"),
        ("memory: A 85%, B 70%, C 50%, E 25%", "'E 25%' is not a grade"),
        ("memory: AB 85%, B 70%, C 50%, D 25%", "'AB 85%' is not a grade"),
        ("memory: A 85%, A 70%, C 50%, D 25%", "A stands there twice"),
        ("memory: A 85, B 70%, C 50%, D 25%", "85 is not a share"),
        ("memory: A -5%, B 70%, C 50%, D 25%", "-5% is not a share"),
        ("memory: A 5 GB, B 70%, C 50%, D 25%", "5 GB is not a share"),
        ("memory: A much, B 70%, C 50%, D 25%", "does not begin with a number"),
        ("memory: A 70%, B 85%, C 50%, D 25%", "do not fall"),
        ("memory: A 70%, B 70%, C 50%, D 25%", "do not fall"),
    ],
)
def test_a_mistake_is_told_with_its_line(line: str, said: str) -> None:
    """And all lines are looked at before one is reported."""
    with pytest.raises(ConfigError) as caught:
        parse_grades(f"{line}\n{line}\nnothing")

    message = caught.value.message
    assert message.startswith("line 1: ")
    for number in (2, 3):
        assert f"; line {number}: " in message
    assert said in message
    assert caught.value.remedy == "write memory: A 85%, B 70%, C 50%, D 25%"


def test_a_grade_may_begin_at_nothing() -> None:
    """A share of 0 % is one: such a project gives no F."""
    bands = parse_grades("memory: A 85%, B 70%, C 50%, D 0%")

    assert grade_of(attained(0.0), bands) is Grade.D


def test_a_roof_has_one_line() -> None:
    """A second one is a mistake, not an answer to the first."""
    line = "memory: A 85%, B 70%, C 50%, D 25%"

    with pytest.raises(ConfigError, match="line 2: memory has a line already"):
        parse_grades(f"{line}\n{line}")


def test_the_plugins_own_bands_are_read_back() -> None:
    """What the grammar writes is what the table says: it knows every roof."""
    text = "\n".join(
        f"{roof}: A {b.a:.0%}, B {b.b:.0%}, C {b.c:.0%}, D {b.d:.0%}"
        for roof, b in GRADES.items()
    )

    assert parse_grades(text) == dict(GRADES)


def stopped(*concerns: Concern) -> Finding:
    return Topic(id="x", concerns=concerns).stops(
        "it is so", "it: was read", remedy="change it"
    )


@pytest.mark.parametrize(
    ("findings", "state", "obstacle", "lost"),
    [
        ((), Readiness.READY, None, ()),
        ((stopped("counters"),), Readiness.DEGRADED, Obstacle.LOST, ("counters",)),
        (
            (stopped("energy", "memory"), stopped("launches", "counters")),
            Readiness.DEGRADED,
            Obstacle.LOST,
            ("counters", "launches", "energy", "memory"),
        ),
        (
            (stopped("timing", "energy"),),
            Readiness.BLOCKED,
            Obstacle.NO_TIMING,
            (),
        ),
        ((stopped("host", "binary", "sass"),), Readiness.READY, None, ()),
        (
            (
                Topic(id="x", concerns=("timing",)).distorts(
                    "it is so", "it", remedy="change it"
                ),
                Topic(id="y", concerns=("timing",)).unknown("it does not say"),
            ),
            Readiness.READY,
            None,
            (),
        ),
    ],
)
def test_what_stops_a_gpu_decides_whether_a_machine_is_ready(
    findings: tuple[Finding, ...],
    state: Readiness,
    obstacle: Obstacle | None,
    lost: tuple[Concern, ...],
) -> None:
    """What bends a number, is not known, or needs no GPU leaves it ready."""
    condition = condition_of(findings, has_gpu=True)

    assert condition == Condition(state=state, obstacle=obstacle, lost=lost)


def test_without_a_gpu_a_machine_is_degraded_whatever_stops() -> None:
    """Its time is not lost: there is none to take."""
    condition = condition_of([stopped("timing")], has_gpu=False)

    assert condition == Condition(state=Readiness.DEGRADED, obstacle=Obstacle.NO_GPU)


@pytest.mark.parametrize("has_gpu", [True, False])
def test_peaks_that_were_asked_for_and_not_measured_block(has_gpu: bool) -> None:
    """On any machine."""
    condition = condition_of([], has_gpu=has_gpu, has_peaks=False)

    assert condition == Condition(
        state=Readiness.BLOCKED, obstacle=Obstacle.PEAKS_FAILED
    )
