"""The limits of one test, judged and put into words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pytest_gpuperf.judge import limit
from pytest_gpuperf.report.words import for_pytest

if TYPE_CHECKING:
    from pytest_gpuperf.compute.spread import Spread
    from pytest_gpuperf.config import Plan
    from pytest_gpuperf.model.grade import Bands
    from pytest_gpuperf.model.record import Record
    from pytest_gpuperf.model.verdict import Verdict
    from pytest_gpuperf.pipeline.memory import Memory

__all__ = ["judge_limits", "spread_of"]


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

    Args:
        plan: The limits.

        test_id: The test.

        records: What it measured.

        memory: Stored sessions, for how far they lie apart.

        grades: Where grades begin, by roof; those not named are the plugin's own.
    """
    verdicts = limit.judge_limits(
        plan,
        test_id,
        records,
        lambda metric, record: spread_of(metric, record, memory),
        grades=grades,
    )
    return tuple(map(for_pytest, verdicts))


def spread_of(metric: str, record: Record, memory: Memory) -> Spread | None:
    """Return how much stored sessions of a metric differ; None: too few are stored."""
    stored = memory.sessions(record)
    return limit.spread_of(metric, record, stored, lambda: memory.priors(record))
