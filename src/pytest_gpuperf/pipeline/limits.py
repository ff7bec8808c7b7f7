"""The limits of one test, each with the value that it is for; PYTEST_DONT_REWRITE."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytest_gpuperf.compute.spread import LEAST_SESSIONS, session_spread
from pytest_gpuperf.judge.limit import judge_limit
from pytest_gpuperf.judge.rows import group_of
from pytest_gpuperf.model.change import SessionValue
from pytest_gpuperf.model.fingerprint import differences, family_of
from pytest_gpuperf.model.record import Kind, Record, RecordKey
from pytest_gpuperf.model.verdict import Outcome, Reason, Verdict

if TYPE_CHECKING:
    from pytest_gpuperf.compute.spread import Spread
    from pytest_gpuperf.config import Plan
    from pytest_gpuperf.model.limit import Limit
    from pytest_gpuperf.pipeline.memory import Memory

__all__ = ["judge_limits", "spread_of"]


def judge_limits(
    plan: Plan, test_id: str, records: Sequence[Record], memory: Memory
) -> tuple[Verdict, ...]:
    """
    Return a verdict for each limit of a test and each measurement that it is for.

    A limit is for every measurement that has its metric; where none has, for the first.
    """
    verdicts = [
        judge_limit(limit, record, spread=spread_of(limit.metric, record, memory))
        for limit in plan.limits
        for record in _meant(limit, test_id, records)
    ]
    if plan.min_grade is not None:
        key = records[0].key if records else RecordKey(test_id=test_id)
        verdicts.append(_ungraded(key, plan.min_grade))
    return tuple(verdicts)


def _ungraded(key: RecordKey, grade: str) -> Verdict:
    """Return the verdict on a grade: a kernel is graded by its roof, which is unknown."""
    return Verdict(
        key=key,
        metric="roofline.fraction",
        outcome=Outcome.UNMEASURED,
        reason=Reason.NOT_MEASURED,
        detail=(f'min_grade="{grade}" needs a roofline that was measured on a GPU',),
        remedy="drop min_grade, or give limits on what is measured here",
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
        and (value := stored.value_of(metric, source)) is not None
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
