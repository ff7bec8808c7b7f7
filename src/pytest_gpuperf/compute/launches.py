"""One value of a metric out of those of several launches."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum

from pytest_gpuperf.compute.derive import FORMULAS, missing_counters, value_of
from pytest_gpuperf.model.counters import LaunchCounters, Unknown, mode_conflict

__all__ = ["aggregate", "over_launches"]

_MAXIMA = frozenset(
    {"registers", "stack_bytes", "spills_bytes", "shared_bytes", "waves"}
)
_SUMS = frozenset({"dram.bytes", "dram.excess_ratio"})  # the bytes declared are of all

_WEIGHT = "duration_s"


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


def over_launches(metric: str, launches: Sequence[LaunchCounters]) -> float | Unknown:
    """
    Return a metric of several launches taken together.

    A launch for which it is not defined (a hit rate of nothing looked up) is left out.

    Args:
        metric: A name of FORMULAS.

        launches: Their counters, >= 1 of them.

    Returns:
        The value, put together as `aggregate` says; or why there is none. Counters of
        different replay, cache or clock modes are never put together.
    """
    for launch in launches[1:]:
        conflict = mode_conflict(launches[0].mode, launch.mode)
        if conflict is not None:
            return Unknown(reason=conflict, remedy="collect all of them in one mode")
    found = [(value_of(metric, each.values), each.values) for each in launches]
    lacking = [
        missing_counters(metric, values) for value, values in found if value is None
    ]
    missing = tuple(dict.fromkeys(name for names in lacking for name in names))
    if missing:
        count = sum(not names for names in lacking) + len(found) - len(lacking)
        which = f"{count} of {len(found)} launches" if count else "no launch"
        return Unknown(reason=f"{which} in the report has it", missing=missing)
    return _together(
        metric,
        [(value, values.get(_WEIGHT)) for value, values in found if value is not None],
    )


def _weighted(values: Sequence[float], weights: Sequence[float]) -> float | None:
    """Return a weighted mean; None without a weight for each value."""
    if len(weights) != len(values) or not sum(weights) > 0:
        return None
    total = fsum(v * w for v, w in zip(values, weights, strict=True))
    # rounding may carry a mean past the values that it is made of
    return min(max(total / fsum(weights), min(values)), max(values))


def _together(
    metric: str, pairs: Sequence[tuple[float, float | None]]
) -> float | Unknown:
    """Return values, each with its weight, as one."""
    if not pairs:
        return Unknown(
            reason=FORMULAS[metric].undefined or "it is not defined",
            remedy="choose other launches with kernel=",
        )
    weights = [weight for _, weight in pairs if weight is not None]
    value = aggregate(
        metric,
        [value for value, _ in pairs],
        weights=weights if len(weights) == len(pairs) else (),
    )
    if value is not None:
        return value
    return Unknown(
        reason=f"a rate of {len(pairs)} launches, whose durations are not known",
        remedy="choose one launch with kernel=",
    )
