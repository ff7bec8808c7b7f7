"""The limits of one test, each with the value that it is for; PYTEST_DONT_REWRITE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pytest_gpuperf.compute.spread import LEAST_SESSIONS, session_spread
from pytest_gpuperf.judge.grade import grade_limit
from pytest_gpuperf.judge.limit import judge_limit
from pytest_gpuperf.judge.rows import group_of
from pytest_gpuperf.model.change import SessionValue
from pytest_gpuperf.model.fingerprint import differences, family_of
from pytest_gpuperf.model.record import Kind, Record, RecordKey
from pytest_gpuperf.model.verdict import Outcome, Reason, Verdict

if TYPE_CHECKING:
    from pytest_gpuperf.compute.spread import Spread
    from pytest_gpuperf.config import Plan
    from pytest_gpuperf.model.grade import Bands
    from pytest_gpuperf.model.limit import Limit
    from pytest_gpuperf.pipeline.memory import Memory

__all__ = ["judge_limits", "spread_of"]

_FRACTION = "roofline.fraction"


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
    A least grade is one more, for every measurement that reached a part of its roof.

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


def _graded(
    grade: str,
    test_id: str,
    records: Sequence[Record],
    memory: Memory,
    grades: Mapping[str, Bands] | None,
) -> list[Verdict]:
    """Return the verdicts on a least grade: each is a limit under a measurement's roof."""
    found = [
        judge_limit(
            grade_limit(record.roofline, grade, grades),
            record,
            spread=spread_of(_FRACTION, record, memory),
        )
        for record in records
        if record.roofline is not None
    ]
    return found or [_ungraded(grade, test_id, records)]


def _ungraded(grade: str, test_id: str, records: Sequence[Record]) -> Verdict:
    """Return the verdict on a least grade where no measurement has a roof, and why not."""
    gap = next(
        (g for r in records for g in r.unmeasured if g.metric == _FRACTION), None
    )
    void = next((r.void.text for r in records if r.void is not None), None)
    reason = gap.reason if gap else void or "nothing was timed"
    return Verdict(
        key=records[0].key if records else RecordKey(test_id=test_id),
        metric=_FRACTION,
        outcome=Outcome.UNMEASURED,
        reason=Reason.NOT_MEASURED,
        detail=(f'min_grade="{grade}" is a share of the roof: {reason}',),
        remedy=gap.remedy if gap else "time a call, and declare its work",
    )


def spread_of(metric: str, record: Record, memory: Memory) -> Spread | None:
    """Return how much stored sessions of a metric differ; None: too few are stored."""
    source = next((e.source for e in record.estimates if e.metric == metric), "")
    family = family_of(metric, source).value
    now = record.facts.get(family, {})
    values = [
        SessionValue(
            session_id=stored.session.id,
            run_values=value.run_values,
            half_widths=value.half_widths,
        )
        for stored in memory.sessions(record)
        if not differences(now, stored.facts.get(family, {}))
        for value in stored.values
        if value.metric == metric and value.source == source
    ]
    if len(values) < LEAST_SESSIONS:
        return None
    prior = memory.priors(record).get(group_of(metric, source))
    return session_spread(values, prior)


def _meant(limit: Limit, test_id: str, records: Sequence[Record]) -> Sequence[Record]:
    """Return the measurements that a limit is for."""
    having = [r for r in records if any(e.metric == limit.metric for e in r.estimates)]
    if having:
        return having
    nothing = Record(key=RecordKey(test_id=test_id), kind=Kind.RANGE, estimates=())
    return (records or (nothing,))[:1]
