"""The limits of a test, each judged on the value that it is for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pytest_gpuperf.compute.spread import LEAST_SESSIONS, session_spread
from pytest_gpuperf.judge.grade import grade_limit
from pytest_gpuperf.judge.limit import judge_limit
from pytest_gpuperf.judge.rule import group_of
from pytest_gpuperf.model.fingerprint import differences, facts_of
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.grade import TRAINING_BANDS
from pytest_gpuperf.model.record import Kind, Record, RecordKey
from pytest_gpuperf.model.verdict import Limit, Outcome, Reason, Verdict

if TYPE_CHECKING:
    from pytest_gpuperf.compute.spread import Spread
    from pytest_gpuperf.config import Plan
    from pytest_gpuperf.model.grade import Bands
    from pytest_gpuperf.pipeline.memory import Memory

__all__ = [
    "GIVE_HARDWARE",
    "NO_HARDWARE",
    "judge_limits",
    "spread_of",
]

NO_HARDWARE = "what the hardware can do for a unit of work is not known"
GIVE_HARDWARE = (
    "pass hardware=Hardware(peak_bw_gb_s=…, bytes_per_token=…), or work=Work(bytes=…) "
    "of a step on a GPU whose peaks are known"
)
_FRACTION = "roofline.fraction"
_GRADE = "scorecard.grade"
_RATE = "throughput"
_SHARES = {  # of the bandwidth bound, from which on a loop has the grade
    "A": TRAINING_BANDS.a,
    "B": TRAINING_BANDS.b,
    "C": TRAINING_BANDS.c,
    "D": TRAINING_BANDS.d,
    "F": 0.0,
}


def judge_limits(
    plan: Plan,
    test_id: str,
    records: Sequence[Record],
    memory: Memory,
    *,
    grades: Mapping[str, Bands] | None = None,
) -> tuple[Verdict, ...]:
    """
    Return a verdict for each limit of a test and each measurement that it is for.

    A limit is for every measurement that has its metric; where none has, for the first.
    A least grade is one more, for every measurement that has a grade: a call that reached
    a part of its roof, and a loop whose scorecard has one.

    Args:
        plan: The limits.

        test_id: The test.

        records: What it measured.

        memory: Stored sessions, for how far they lie apart.

        grades: Where grades begin, by roof; those not named are the plugin's own.
    """
    verdicts = [
        judge_limit(limit, record, spread=spread_of(limit.metric, record, memory))
        for limit in plan.limits
        for record in _meant(limit, test_id, records)
    ]
    if plan.min_grade is not None:
        verdicts += _graded(plan.min_grade, test_id, records, memory, grades)
    return tuple(verdicts)


def spread_of(metric: str, record: Record, memory: Memory) -> Spread | None:
    """Return how much stored sessions of a metric differ; None: too few are stored."""
    source = next((e.source for e in record.estimates if e.metric == metric), "")
    now = facts_of(record.facts, metric, source)
    values = [
        value
        for stored in memory.sessions(record)
        if not differences(now, facts_of(stored.facts, metric, source))
        for value in stored.values
        if value.metric == metric and value.source == source
    ]
    if len(values) < LEAST_SESSIONS:
        return None
    prior = memory.priors(record).get(group_of(metric, source))
    return session_spread(values, prior)


def _graded(
    grade: str,
    test_id: str,
    records: Sequence[Record],
    memory: Memory,
    grades: Mapping[str, Bands] | None,
) -> list[Verdict]:
    """Return the verdicts on a least grade: each is a limit on what the grade is of."""
    meant = [(_least(grade, record, grades), record) for record in records]
    found = [
        _believed(
            judge_limit(limit, record, spread=spread_of(limit.metric, record, memory)),
            record,
        )
        for limit, record in meant
        if limit is not None
    ]
    return found or [_ungraded(grade, test_id, records)]


def _least(
    grade: str, record: Record, grades: Mapping[str, Bands] | None
) -> Limit | None:
    """Return the limit that a least grade is for a measurement; None: it has no grade."""
    if record.kind is Kind.STEPS:
        return _least_rate(grade, record)
    roof = record.roofline
    return None if roof is None else grade_limit(roof, grade, grades)


def _least_rate(grade: str, record: Record) -> Limit | None:
    """
    Return the least throughput of a loop that has a grade; None: its scorecard has none.

    The grade is of the throughput's share of what the hardware allows, so that the noise
    of a grade is that of the throughput, and fresh processes can decide it.
    """
    rate = next((e for e in record.estimates if e.metric == _RATE), None)
    steps = record.steps
    if rate is None or steps is None or not steps.efficiency_fraction:
        return None
    share = _SHARES[grade]
    least = share * rate.value / steps.efficiency_fraction
    digits = f"{least:.0f}" if least >= 1000 else f"{least:.4g}"  # noqa: PLR2004 - four
    said = f"{share * 100:g} % of the bandwidth bound, {_RATE} >= {digits} /s"
    return Limit(
        text=f'min_grade="{grade}" ({said})',
        metric=_RATE,
        operator=">=",
        threshold=least,
        unit=rate.unit,
    )


def _believed(verdict: Verdict, record: Record) -> Verdict:
    """Return a verdict; of more than the bandwidth allows no grade is believed."""
    steps = record.steps
    share = None if steps is None else steps.efficiency_fraction
    # the scorecard cuts a share at the whole
    if share is None or share < 1 or verdict.outcome is not Outcome.PASSED:
        return verdict
    return replace(
        verdict,
        outcome=Outcome.INCONCLUSIVE,
        reason=Reason.ABOVE_THE_ROOF,
        remedy="check hardware=, or the bytes that its work declares",
    )


def _ungraded(grade: str, test_id: str, records: Sequence[Record]) -> Verdict:
    """Return the verdict on a least grade where no measurement has one, and why not."""
    gap = next(
        (g for r in records for g in r.unmeasured if g.metric == _FRACTION), None
    )
    void = next((r.void.text for r in records if r.void is not None), None)
    if gap is not None:
        metric, reason, remedy = _FRACTION, gap.reason, gap.remedy
    elif any(record.kind is Kind.STEPS for record in records):
        metric, reason = _GRADE, void or NO_HARDWARE
        remedy = "let the loop come to its end" if void else GIVE_HARDWARE
    else:
        metric, reason = _FRACTION, void or "nothing was timed"
        remedy = "time a call, and declare its work"
    share = "the bandwidth bound" if metric == _GRADE else "the roof"
    return Verdict(
        key=records[0].key if records else RecordKey(test_id=test_id),
        metric=metric,
        outcome=Outcome.UNMEASURED,
        reason=Reason.NOT_MEASURED,
        detail=(f'min_grade="{grade}" is a share of {share}: {reason}',),
        remedy=remedy,
    )


def _meant(limit: Limit, test_id: str, records: Sequence[Record]) -> Sequence[Record]:
    """Return the measurements that a limit is for."""
    having = [r for r in records if any(e.metric == limit.metric for e in r.estimates)]
    if having:
        return having
    nothing = Record(key=RecordKey(test_id=test_id), kind=Kind.RANGE, estimates=())
    return (records or (nothing,))[:1]
