"""judge.limit: which measurements a limit is for, and a least grade as a limit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.compute.spread import Spread, UsualSpread
from pytest_gpuperf.config import Plan
from pytest_gpuperf.judge.confirmation import Retest
from pytest_gpuperf.judge.grammar import parse_limit
from pytest_gpuperf.judge.limit import (
    confirm_limit,
    judge_limit,
    judge_limits,
    spread_of,
)
from pytest_gpuperf.judge.missing import lacking, lost_alone, without_repeats
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.record import (
    Kind,
    Record,
    RecordKey,
    StoredRecord,
    Void,
    VoidCode,
)
from pytest_gpuperf.model.roofline import Grade
from pytest_gpuperf.model.run import Measured
from pytest_gpuperf.model.sample import Estimate, Unmeasured
from pytest_gpuperf.model.steps import StepSummary
from pytest_gpuperf.model.verdict import (
    Cause,
    Outcome,
    Reason,
    Verdict,
    VerdictEvidence,
)
from unit.judge.building import (
    KEY,
    estimate,
    gap_of,
    of_sessions,
    processes,
    record,
    session,
)

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


def judged(
    grade: str, *records: Record, spread: Spread | None = None
) -> tuple[Verdict, ...]:
    """Return the verdicts on a least grade."""
    plan = replace(Plan(), min_grade=grade)
    return judge_limits(plan, TEST_ID, records, lambda *_: spread)


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
        'min_grade="A" (0.6 x the bandwidth bound, throughput >= 49.18 /s)'
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


def test_a_grade_that_noise_leaves_open_says_so_first() -> None:
    """That it is more than the bandwidth allows matters where it would pass."""
    wide = of_sessions(2.0, 4)
    (verdict,) = judged("A", loop(1.0), spread=wide)

    assert verdict.reason is Reason.STRADDLES_LIMIT


def test_of_a_loop_that_was_left_early_the_grade_is_not_known() -> None:
    """Why it is void is why it has none."""
    void = Void(code=VoidCode.LOOP_ENDED, reason="the loop was left")
    (verdict,) = judged("B", replace(loop(None), void=void))

    assert (verdict.metric, verdict.cause) == ("scorecard.grade", Cause.ENDED_EARLY)
    assert gap_of(verdict) == ("the loop was left", "")


def test_a_call_without_a_roof_says_why() -> None:
    """What its record knows of the fraction, or that nothing was timed."""
    why = Unmeasured(metric="roofline.fraction", reason="no work", remedy="declare it")
    (known,) = judged("B", record(estimate(1.0), unmeasured=(why,)))
    (nothing,) = judged("B")

    assert (known.metric, nothing.metric) == ("roofline.fraction",) * 2
    assert gap_of(known) == ("no work", "declare it")
    assert nothing.cause is Cause.NOTHING_TIMED
    assert nothing.evidence == VerdictEvidence(grade="B")
    assert nothing.key == RecordKey(test_id=TEST_ID)


TIME = parse_limit("time <= 60 us")
SECOND = RecordKey(test_id=KEY.test_id, name="second")


def held(*records: Record) -> list[Verdict]:
    """Return the verdicts of a limit on time."""
    plan = replace(Plan(), limits=(TIME,))
    return list(judge_limits(plan, TEST_ID, records, lambda *_: None))


def test_a_limit_is_for_each_measurement_that_has_its_metric() -> None:
    """Where none has, the first stands for the test; without any, the test itself."""
    fast, slow = record(estimate(1e-6)), record(estimate(1e-3), key=SECOND)
    bare, other = record(), record(key=SECOND)

    assert [v.outcome.value for v in held(fast, slow)] == ["passed", "failed"]
    assert [v.key for v in held(bare, slow)] == [SECOND]
    assert [(v.key, v.outcome.value) for v in held(bare, other)] == [
        (KEY, "unmeasured")
    ]
    assert [v.key.test_id for v in held()] == [TEST_ID]


STRADDLING = record(estimate(60e-6))


def confirmed(
    first: Record, retest: Retest | None, *, ended_early: bool = False
) -> Verdict:
    """Return the verdict of a limit, decided by fresh processes where it must be."""
    return confirm_limit(
        judge_limit(TIME, first),
        [record(key=SECOND), first],
        retest,
        lambda *_: None,
        ended_early=ended_early,
    )


def test_fresh_processes_decide_what_one_did_not() -> None:
    """Those of the same measurement alone; what was decided stays."""
    slow = Retest(records=(record(estimate(90e-6)), record(estimate(1e-6), key=SECOND)))
    verdict = confirmed(STRADDLING, slow)
    passed = confirmed(record(estimate(1e-6)), slow)

    assert (verdict.outcome, passed.outcome) == (Outcome.FAILED, Outcome.PASSED)
    assert verdict.confirmations == pytest.approx((0.5,))


def test_a_run_that_ended_early_leaves_a_limit_open() -> None:
    """It starts no fresh process, which is why."""
    assert confirmed(STRADDLING, None).cause is None
    assert confirmed(STRADDLING, None, ended_early=True).cause is Cause.ENDED_EARLY
    assert confirmed(record(estimate(1e-6)), None, ended_early=True).cause is None


def test_values_that_were_asked_for_in_vain_are_unmeasured() -> None:
    """Whatever else the test has measured."""
    why = Unmeasured(metric="energy", reason="no NVML", remedy="install it")
    with_record, without = (
        Measured(test_id=TEST_ID, records=records, refusals=(why,))
        for records in ((record(estimate(1.0)),), ())
    )
    found = [*lacking(with_record), *lacking(without)]

    assert [v.key for v in found] == [KEY, RecordKey(test_id=TEST_ID)]
    assert {(v.metric, v.outcome, v.reason) for v in found} == {
        ("energy", Outcome.UNMEASURED, Reason.NOT_MEASURED)
    }
    assert {gap_of(verdict) for verdict in found} == {("no NVML", "install it")}


HOT = Void(code=VoidCode.HARDWARE_THERMAL, reason="the GPU was hot", remedy="cool it")


def test_a_void_measurement_has_a_verdict_of_its_own() -> None:
    """Unless a limit says it already, or somebody has switched measuring off."""
    valued, bare = record(estimate(1.0), void=HOT), record(key=SECOND, void=HOT)
    off = record(void=Void(code=VoidCode.DISABLED, reason="off"))
    limited = Measured(
        test_id=TEST_ID, records=(valued,), verdicts=(judge_limit(TIME, valued),)
    )
    found = lacking(Measured(test_id=TEST_ID, records=(valued, bare, record())))

    assert [(v.key, v.outcome, v.reason) for v in found] == [
        (KEY, Outcome.INCONCLUSIVE, Reason.VOID),
        (SECOND, Outcome.UNMEASURED, Reason.NOT_MEASURED),
    ]
    assert {gap_of(verdict) for verdict in found} == {("the GPU was hot", "cool it")}
    assert lacking(limited) == []
    assert lacking(Measured(test_id=TEST_ID, records=(off,))) == []


def test_a_void_value_that_was_asked_for_in_vain_has_one_verdict() -> None:
    """Whatever remedy each of the two has; another measurement keeps its own."""
    valued = record(estimate(1.0), void=HOT)
    second = record(estimate(1.0), key=SECOND, void=HOT)
    other = Unmeasured(metric="energy", reason="no NVML", remedy="install it")
    vain = replace(Unmeasured.of_metric("time", HOT.gap), remedy="read another value")

    def kept(refusal: Unmeasured) -> list[tuple[RecordKey, Outcome]]:
        found = lacking(
            Measured(test_id=TEST_ID, records=(valued, second), refusals=(refusal,))
        )
        return [(verdict.key, verdict.outcome) for verdict in without_repeats(found)]

    assert kept(vain) == [
        (KEY, Outcome.UNMEASURED),
        (SECOND, Outcome.INCONCLUSIVE),
    ]
    assert kept(other) == [
        (KEY, Outcome.UNMEASURED),
        (KEY, Outcome.INCONCLUSIVE),
        (SECOND, Outcome.INCONCLUSIVE),
    ]


def test_a_test_that_failed_alone_has_failed() -> None:
    """Its last lines are the evidence."""
    verdict = lost_alone(TEST_ID, "boom\nexit 1")

    assert (verdict.key.test_id, verdict.metric) == (TEST_ID, "time")
    assert (verdict.outcome, verdict.reason) == (
        Outcome.FAILED,
        Reason.CHILD_GAVE_NO_VALUE,
    )
    assert verdict.evidence == VerdictEvidence(lines=("boom", "exit 1"))


def sessions(*values: float, gpu: str = "H200", source: str = "cupti") -> Stored:
    """Return stored sessions of a time."""
    return tuple(
        StoredRecord(
            key=KEY,
            session=session(number),
            values=(processes([value], source=source),),
            facts={"device-time": {"gpu_name": gpu}},
        )
        for number, value in enumerate(values)
    )


Stored = tuple[StoredRecord, ...]
NOW = record(estimate(1.0), facts={"device-time": {"gpu_name": "H200"}})


def spread_of_time(stored: Stored) -> Spread | None:
    """Return how far stored sessions of a time lie apart."""
    return spread_of("time", NOW, stored, dict)


def test_three_sessions_have_a_spread() -> None:
    """Two have none that anybody could use."""
    found = spread_of_time(sessions(1.0, 1.1, 1.2))

    assert found is not None
    assert found.session_count == 3
    assert spread_of_time(sessions(1.0, 1.1)) is None


def test_a_spread_is_of_what_can_be_compared() -> None:
    """Of the same hardware, by the same source."""
    same = sessions(1.0, 1.1, 1.2)
    for others in (sessions(9.0, gpu="L4"), sessions(9.0, source="events")):
        assert spread_of_time((*same, *others)) == spread_of_time(same)


@pytest.mark.parametrize("odd", [300.0, 9000.0, 0.0])
@pytest.mark.parametrize("with_usual", [True, False])
def test_one_odd_session_blinds_no_limit(odd: float, *, with_usual: bool) -> None:
    """What does not fit the others says nothing of how far they lie apart."""
    others = (900.0, 901.0, 899.0, 900.5, 900.0)
    usual = UsualSpread(points=((4e-6, 4, 1.0),))
    found = spread_of(
        "time",
        NOW,
        sessions(*others, odd),
        lambda: {"time device-time": usual} if with_usual else {},
    )
    never = spread_of(
        "time",
        NOW,
        sessions(*others),
        lambda: {"time device-time": usual} if with_usual else {},
    )

    assert found is not None
    assert found == never
    assert found.fraction < 0.05


def test_of_three_sessions_with_an_odd_one_two_are_left() -> None:
    """They do not say how far sessions lie apart."""
    usual = UsualSpread(points=((1e-6, 8, 1.0),))
    found = spread_of(
        "time",
        NOW,
        sessions(1.0, 1.001, 3.0),
        lambda: {"time device-time": usual},
    )

    assert found is None


def test_what_a_comparison_was_widened_by_is_no_evidence_of_its_sessions() -> None:
    """Its ends hold a guess of the spread that the sessions themselves show."""
    stored = tuple(
        replace(s, values=tuple(replace(v, half_widths=(0.5,)) for v in s.values))
        for s in sessions(1.0, 1.001, 0.999)
    )
    sides = replace(NOW, kind=Kind.COMPARE)
    wide, narrow = spread_of_time(stored), spread_of("time", sides, stored, dict)

    assert wide is not None
    assert narrow is not None
    assert wide.fraction > 0.2
    assert narrow.fraction < 0.02


def test_a_suite_says_how_much_such_tests_differ() -> None:
    """The prior of the metric and its family moderates the test's own spread."""
    same = sessions(1.0, 1.1, 1.2)
    usual = {"time device-time": UsualSpread(points=((1e-6, 8, 1.0),))}
    found, alone = spread_of("time", NOW, same, lambda: usual), spread_of_time(same)

    assert found is not None
    assert alone is not None
    assert found.fraction < alone.fraction
