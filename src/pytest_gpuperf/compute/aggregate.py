"""One value of a record out of those of its launches; PYTEST_DONT_REWRITE."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum

__all__ = ["aggregate"]

_MAXIMA = frozenset(
    {"registers", "stack_bytes", "spills_bytes", "shared_bytes", "waves"}
)
_SUMS = frozenset({"dram.bytes", "dram.excess_ratio"})  # the bytes declared are of all


def aggregate(
    metric: str, values: Sequence[float], *, weights: Sequence[float] = ()
) -> float | None:
    """
    Return the value of several launches taken together.

    Resources and `.max` roll-ups are the largest, `.min` the smallest; `.sum`, bytes and
    counts are added up; every other rate is the mean, weighted by the launches' durations.

    Args:
        metric: Its name.

        values: One for each launch [its unit], >= 1 of them.

        weights: Durations of the launches; empty where they are not known.

    Returns:
        The value; None where rates of several launches cannot be weighed.

    Example:
        >>> aggregate("dram__bytes.sum", (1.0, 2.0))
        3.0
    """
    if len(values) == 1:
        return values[0]
    rollup = metric.rpartition(".")[2]
    if metric in _MAXIMA or rollup == "max" or metric.startswith("launch__"):
        return max(values)
    if rollup == "min":
        return min(values)
    if metric in _SUMS or rollup in {"sum", "count"}:
        return fsum(values)
    return _weighted(values, weights)


def _weighted(values: Sequence[float], weights: Sequence[float]) -> float | None:
    """Return a weighted mean; None without a weight for each value."""
    if len(weights) != len(values) or not sum(weights) > 0:
        return None
    total = fsum(v * w for v, w in zip(values, weights, strict=True))
    # rounding may carry a mean past the values that it is made of
    return min(max(total / fsum(weights), min(values)), max(values))
