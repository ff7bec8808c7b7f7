"""Slow changes: a value that moved a little in each of many sessions.

No two neighbouring sessions differ by much, so a comparison with the mean of the stored
sessions follows the change. The oldest sessions do not move: they are the reference here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from statistics import NormalDist, median

from pytest_gpuperf.compute.stats import mean
from pytest_gpuperf.model.frozen import Frozen, replace

# docs/judging.md section 2: a drift.
LEAST_SESSIONS = 8
# From this number on, the spread of stored sessions is taken about their trend.
TREND_SESSIONS = 8
# Sessions of the reference, and sessions that tell the present level.
ENDS = 3
LIMITS = 2.0  # A drift is at least this many limits.
_MACHINE_LEVEL = 0.05  # A doubt is enough to blame the machine.
_LEVEL = 0.001  # Chance of noise of a single test.
_SUITE_LEVEL = 0.005  # Chance of noise of all tests of a run together.
# A longer history is judged by medians of this many blocks. The time grows with the
# square of the number, and a slow change needs no more.
_MOST_BLOCKS = 64
_MOST_MEMORY = 0.9  # Correlation of neighbours that is believed at most.
_UNBIASED = 10  # Fewer values say too little about their memory to correct for.
_HALF = 0.5  # A likelier order needs no correction.
_NORMAL = NormalDist()


class Trend(Frozen, frozen=True, kw_only=True):
    """
    A slow change of a series.

    Attributes:
        log_change: The median of the newest three values less that of the oldest three.

        log_slope: The usual change from one value to the next, by Theil and Sen.

        p_value: Chance that the order of the values is noise, by Kendall, one-sided.
    """

    log_change: float
    log_slope: float
    p_value: float


def drift_level(pair_count: int) -> float:
    """Return the chance of noise that a drift needs in a run of some pairs of test and metric."""
    return min(_LEVEL, _SUITE_LEVEL / max(1, pair_count))


def drift_of(
    logs: Sequence[float],
    machine: Sequence[float] | None = None,
    *,
    least: float,
    level: float = _LEVEL,
) -> Trend | None:
    """
    Return the drift of a series, or None without one.

    A drift of the machine in the same direction is subtracted. Its noise is not: reference
    workloads may differ more between sessions than the values do.

    Args:
        logs: Logarithms of the values, oldest first.

        machine: Logarithm of the machine's slowness at each value, or None if unknown.

        least: The smallest drift, on the logarithmic scale.

        level: The chance of noise that a drift needs.
    """
    trend = _trend(logs, least, level)
    if trend is None or machine is None:
        return trend
    of_machine = _trend(machine, 0.0, _MACHINE_LEVEL)
    if of_machine is None or of_machine.log_change * trend.log_change <= 0:
        return trend
    left = abs(trend.log_change) - abs(of_machine.log_change)
    if left <= least:
        return None
    return replace(trend, log_change=math.copysign(left, trend.log_change))


def end_change(logs: Sequence[float]) -> float:
    """Return the median of the newest three values less that of the oldest three."""
    return median(logs[-ENDS:]) - median(logs[:ENDS])


def about_trend(values: Sequence[float]) -> float:
    """
    Return the sum of the squared distances from the straight line through values.

    The number of degrees of freedom is that of the values less 2.

    Args:
        values: Numbers in order, >= 2 of them.
    """
    places, squares = _places(len(values))
    middle = mean(values)
    products = about_mean = 0.0
    # A loop, because a map of operators takes twice as long.
    for place, value in zip(places, values, strict=True):
        distance = value - middle
        products += place * distance
        about_mean += distance**2
    left = about_mean - products**2 / squares
    return max(left, 0.0)


@cache
def _places(count: int) -> tuple[Sequence[float], float]:
    middle = (count - 1) / 2
    return [place - middle for place in range(count)], count * (count**2 - 1) / 12


def _trend(logs: Sequence[float], least: float, level: float) -> Trend | None:
    if len(logs) < LEAST_SESSIONS:
        return None
    log_change = end_change(logs)
    if not abs(log_change) > least:
        return None
    blocks = _blocks(logs)
    slopes: list[float] = []
    score = 0
    for later, value in enumerate(blocks):
        for earlier, before in enumerate(blocks[:later]):
            slopes.append((value - before) / (later - earlier))
            score += (value > before) - (value < before)
    slope = median(slopes)
    p_value = _chance(math.copysign(score, score * log_change), blocks, slope)
    if p_value >= level:
        return None
    return Trend(
        log_change=log_change,
        log_slope=slope * len(blocks) / len(logs),
        p_value=p_value,
    )


def _blocks(logs: Sequence[float]) -> list[float]:
    """Return the values, or medians of consecutive values if there are many."""
    if len(logs) <= _MOST_BLOCKS:
        return [*logs]
    edges = [place * len(logs) // _MOST_BLOCKS for place in range(_MOST_BLOCKS + 1)]
    return [median(logs[a:b]) for a, b in pairwise(edges)]


def _chance(score: float, values: Sequence[float], slope: float) -> float:
    """
    Return the chance that values without a trend have at least a score.

    Neighbours that are alike, as on a machine that is slow for some sessions, are fewer
    independent values.
    """
    count = len(values)
    exact = (
        _tails(count)[int((score + count * (count - 1) / 2) // 2)] if score > 0 else 1.0
    )
    if not 0.0 < exact < _HALF:
        return exact
    rest = [value - slope * place for place, value in enumerate(values)]
    center = mean(rest)
    squares = sum((value - center) ** 2 for value in rest)
    products = sum((a - center) * (b - center) for a, b in pairwise(rest))
    memory = products / squares if squares else 0.0
    # Residuals about a fitted line are less alike than the noise was. One standard error
    # is left to chance.
    if count > _UNBIASED:
        memory = (memory * count + 2) / (count - 6) - 1 / math.sqrt(count)
    memory = min(max(memory, 0.0), _MOST_MEMORY)
    deviations = -_NORMAL.inv_cdf(exact) * math.sqrt((1 - memory) / (1 + memory))
    return _NORMAL.cdf(-deviations)


@cache
def _tails(count: int) -> tuple[float, ...]:
    """
    Return the chance of each number of rising pairs or more, in a random order of values.
    """
    chances = [1.0]
    for size in range(2, count + 1):
        grown = [0.0] * (len(chances) + size - 1)
        for place, chance in enumerate(chances):
            for more in range(size):
                grown[place + more] += chance / size
        chances = grown
    total, tails = 0.0, []
    for chance in reversed(chances):
        total += chance
        tails.append(total)
    return tuple(reversed(tails))
