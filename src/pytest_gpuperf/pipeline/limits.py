"""The limits of one test, each with the value that it is for; PYTEST_DONT_REWRITE."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytest_gpuperf.judge.limit import judge_limit
from pytest_gpuperf.model.record import Kind, Record, RecordKey

if TYPE_CHECKING:
    from pytest_gpuperf.config import Plan
    from pytest_gpuperf.model.limit import Limit
    from pytest_gpuperf.model.verdict import Verdict

__all__ = ["judge_limits"]


def judge_limits(
    plan: Plan, test_id: str, records: Sequence[Record]
) -> tuple[Verdict, ...]:
    """
    Return a verdict for each limit of a test and each measurement that it is for.

    A limit is for every measurement that has its metric; where none has, for the first.
    """
    return tuple(
        judge_limit(limit, record, spread=None)
        for limit in plan.limits
        for record in _meant(limit, test_id, records)
    )


def _meant(limit: Limit, test_id: str, records: Sequence[Record]) -> Sequence[Record]:
    """Return the measurements that a limit is for."""
    having = [r for r in records if any(e.metric == limit.metric for e in r.estimates)]
    if having:
        return having
    nothing = Record(key=RecordKey(test_id=test_id), kind=Kind.RANGE, estimates=())
    return (records or (nothing,))[:1]
