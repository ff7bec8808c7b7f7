"""What slow tests cost a comparison with a revision, before it is paid."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import TYPE_CHECKING

from pytest_gpuperf.collect.timing.sampling import SLOW_S
from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.gap import Gap, GapCode
from pytest_gpuperf.model.record import Kind
from pytest_gpuperf.report.display import about, some_of

if TYPE_CHECKING:
    from pytest_gpuperf.model.record import Record
    from pytest_gpuperf.model.run import Measured

__all__ = ["TimePlan", "least_process_s", "plan"]

_PROCESSES = 4  # of a block: two of each side
_LEAST_SAMPLES = 3  # of a slow call; collect.timing.host takes no fewer
_SECONDS_OF_MINUTE = 60
_MARGIN = 1.5  # processes start, and other tests are measured beside


class TimePlan(Frozen, frozen=True, kw_only=True):
    """
    The slow tests that the budget of a comparison holds.

    Attributes:
        least_s: What those that it holds take in the first blocks at least [s].

        left_out: Why each of the others is not compared, by test id.
    """

    least_s: float = 0.0
    left_out: Mapping[str, Gap] = {}


def plan(
    tests: Mapping[str, Measured], *, budget_s: float, block_count: int
) -> TimePlan:
    """
    Return which tests have time for the first decision, the shortest first.

    Args:
        tests: What the tests measured in the suite, by id.

        budget_s: How long the comparison may take [s].

        block_count: Blocks that the first decision takes.
    """
    factor = _PROCESSES * block_count
    costs_s = {
        test_id: factor * least_process_s(measured)
        for test_id, measured in tests.items()
    }
    kept_s, left_out = 0.0, []
    for test_id in sorted(costs_s, key=costs_s.__getitem__):
        if kept_s + costs_s[test_id] > budget_s:
            left_out.append(test_id)
        else:
            kept_s += costs_s[test_id]
    if not left_out:
        return TimePlan(least_s=kept_s)
    wanted_s = _MARGIN * sum(costs_s.values())
    minutes = ceil(wanted_s / _SECONDS_OF_MINUTE)
    more_s = sum(costs_s[test_id] for test_id in left_out)
    it = "it is" if len(left_out) == 1 else "they are"
    gap = Gap(
        code=GapCode.INCOMPLETE,
        reason=f"{block_count} blocks of {some_of(left_out)} take {about(more_s)} or more,"
        f" and the budget is {about(budget_s)}: {it} not compared",
        remedy=f"give it more (--gpuperf-budget={minutes}min), or fewer calls (the "
        "marker's iterations=)",
    )
    return TimePlan(least_s=kept_s, left_out=dict.fromkeys(left_out, gap))


def least_process_s(measured: Measured) -> float:
    """Return what the slow calls and blocks of a test take in one process, at least [s]."""
    return sum(map(_slow_s, measured.records))


def _slow_s(record: Record) -> float:
    """Return what a slow measurement takes at least [s]; 0 where it is not slow."""
    times = {e.metric: e for e in reversed(record.estimates) if e.kernel is None}
    time = times.get("time.wall") or times.get("time")
    if time is None or time.unit != "s" or time.value < SLOW_S:
        return 0.0
    if record.kind is not Kind.MEASURE:  # a block runs once; a loop is as long as it is
        return time.value if record.kind is Kind.RANGE else 0.0
    samples_count = min(time.sample_count or 1, _LEAST_SAMPLES)
    first = times.get("time.first_call")
    # with fewer, the first call is one of them
    warm_up_s = 0.0 if first is None or samples_count < _LEAST_SAMPLES else first.value
    return samples_count * time.value + warm_up_s
