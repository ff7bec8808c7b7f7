"""judge.limit: which measurements a limit is for, and a least grade as a limit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.config import Plan
from pytest_gpuperf.judge.limit import judge_limits
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.grade import Grade
from pytest_gpuperf.model.record import Kind, Record, RecordKey
from pytest_gpuperf.model.sample import Estimate
from pytest_gpuperf.model.steps import StepSummary
from pytest_gpuperf.model.verdict import Cause, Verdict, VerdictEvidence

TEST_ID = "test_it.py::test_it"
NOISE = 0.2  # wider than the interval of a host's throughput


def loop(efficiency: float | None, *, rate: float = 50.0) -> Record:
    """Return the record of a loop with a share of what the hardware allows."""
    grade = None if efficiency is None else Grade.from_efficiency(efficiency).value
    summary = StepSummary(
        unit="token",
        units=rate,
        step_count=5,
        counted_count=5,
        warmup_count=0,
        void_count=0,
        step_s=1.0,
        period_s=1.0,
        wait_s=0.0,
        data_was_recorded=True,
        grade=grade,
        efficiency_fraction=efficiency,
    )
    return Record(
        key=RecordKey(test_id=TEST_ID),
        kind=Kind.STEPS,
        estimates=(
            Estimate(metric="throughput", value=rate, unit="1/s", source="host"),
        ),
        steps=summary,
    )


def judged(grade: str, *records: Record) -> tuple[Verdict, ...]:
    """Return the verdicts on a least grade."""
    plan = replace(Plan(), min_grade=grade)
    return judge_limits(plan, TEST_ID, records, lambda *_: None)


@given(
    efficiency=st.floats(0.001, 1.0, exclude_max=True),
    rate=st.floats(1e-3, 1e9),
    grade=st.sampled_from("ABCDF"),
)
def test_a_least_grade_agrees_with_the_grade(
    efficiency: float, rate: float, grade: str
) -> None:
    """Farther than noise from the border it passes where the grade is good enough."""
    (verdict,) = judged(grade, loop(efficiency, rate=rate))
    near = {
        Grade.from_efficiency(efficiency * factor) >= grade
        for factor in (1 - NOISE, 1.0, 1 + NOISE)
    }
    if len(near) == 1:
        assert verdict.outcome.value == ("passed" if near.pop() else "failed")
    assert verdict.metric == "throughput"


def test_a_least_grade_by_a_hair_is_inconclusive() -> None:
    """Another session might have found the other grade: fresh processes decide it."""
    (verdict,) = judged("A", loop(0.61))

    assert verdict.outcome.value == "inconclusive"
    assert verdict.limit is not None
    assert verdict.limit.text == (
        'min_grade="A" (60 % of the bandwidth bound, throughput >= 49.18 /s)'
    )


def test_a_grade_of_more_than_the_whole_is_not_believed() -> None:
    """The scorecard cuts such a share at 1: the hardware or the work is not as declared."""
    (verdict,) = judged("A", loop(1.0))

    assert verdict.outcome.value == "inconclusive"
    assert verdict.reason.value == "above-the-roof"
    assert verdict.cause is Cause.OF_A_LOOP


@pytest.mark.parametrize("efficiency", [None, 0.0])
def test_a_loop_without_a_bound_is_unmeasured(efficiency: float | None) -> None:
    """No share, no grade to be held against: what is missing is the hardware."""
    (verdict,) = judged("F", loop(efficiency))

    assert (verdict.metric, verdict.outcome.value) == ("scorecard.grade", "unmeasured")
    assert verdict.cause is Cause.NO_HARDWARE
    assert verdict.evidence == VerdictEvidence(grade="F")


def test_of_several_loops_those_with_a_grade_are_judged() -> None:
    """A least grade is for each of them, as a limit is for all that have its metric."""
    outcomes = [v.outcome.value for v in judged("B", loop(0.9), loop(None), loop(0.1))]

    assert outcomes == ["passed", "failed"]
