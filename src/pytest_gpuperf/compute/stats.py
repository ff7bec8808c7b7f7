"""Medians, quantiles and their distribution-free intervals, and the tail of Student's t.

The interval of a median is made of two order statistics: the r-th smallest and the
r-th largest of n samples hold the true median unless fewer than r samples fell on one
side of it, which for independent samples of any distribution is a binomial tail:

    P(hold) = 1 - 2 P(Bin(n, 1/2) <= r - 1)

99 % needs at least 8 samples (1 - 2/256 = 99.2 %; 7 give 98.4 %).

With a = atan(t / sqrt(dof)), of whole degrees of freedom, the probability of Student's t
inside [-t, t] is a finite sum of powers of cos(a)^2 (Abramowitz and Stegun 1964, Handbook
of Mathematical Functions, 26.7.3 and 26.7.4). The library that has it takes 0.2 s to load,
which is more than all the judging of a suite of a thousand tests.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import fmean

# Of every displayed interval (docs/judging.md section 2).
CONFIDENCE = 0.99
# Limits a change relative to a tiny reference, so that the change stays finite.
_MOST_EFFECT = 1e304
_HUGE = 1e150  # The square of more is not finite.
# Values on each side of a change. Two are too few to estimate a spread.
_LEAST_PART = 3
# Probability of finding a change point by chance. It is low, because every history has
# many places.
_CHANCE = 0.001
_SAME = 1e-9  # Values with a smaller relative difference are equal.
# A term below half an ulp of the sum so far ends the sum.
_NEGLIGIBLE = 1e-17


def quantile(values: Sequence[float], fraction: float) -> float:
    """
    Return a quantile, linear between the two nearest order statistics.

    Args:
        values: Numbers in any order, >= 1 of them.

        fraction: The quantile to return, 0 to 1.

    Raises:
        ValueError: There are no values, or the fraction is outside 0 to 1.
    """
    if not values:
        message = "a quantile needs at least 1 value"
        raise ValueError(message)
    if not 0 <= fraction <= 1:
        message = f"{fraction!r} is not between 0 and 1"
        raise ValueError(message)
    return _quantile_of_sorted(sorted(values), fraction)


def mean(values: Sequence[float]) -> float:
    """
    Return the mean, also of values with a sum that no float holds.

    Args:
        values: Finite numbers, >= 1 of them.

    Example:
        >>> mean([1e308, 1e308, 1e308])
        1e+308
    """
    try:
        return fmean(values)
    except OverflowError:
        half = math.fsum(value / 2 / len(values) for value in values)
        return min(max(2 * half, min(values)), max(values))


def relative_change(value: float, reference: float) -> float:
    """
    Return the change of a value relative to the size of a reference, always finite.

    Args:
        value: A finite number.

        reference: A finite number other than 0.

    Example:
        >>> relative_change(-3.0, -4.0), relative_change(1e200, -1e-200)
        (0.25, 1e+304)
    """
    size = abs(reference)
    change = (value - reference) / size
    if not math.isfinite(change):
        change = value / size - math.copysign(1.0, reference)
    return min(max(change, -_MOST_EFFECT), _MOST_EFFECT)


def median(values: Sequence[float]) -> float:
    """
    Return the median, or the mean of the middle two of an even number of values.

    Raises:
        ValueError: There are no values.
    """
    return quantile(values, 0.5)


@lru_cache(maxsize=4096)
def order_rank(count: int, confidence: float = CONFIDENCE) -> int:
    """
    Return r such that the r-th smallest and r-th largest sample enclose the median.

    Args:
        count: Number of samples, >= 0.

        confidence: Probability of enclosing the median, above 0 and below 1.

    Returns:
        The largest such r, from 1. 0 if the samples are too few for the confidence.

    Raises:
        ValueError: The confidence is not between 0 and 1.
    """
    if not 0 < confidence < 1:
        message = f"{confidence!r} is not between 0 and 1"
        raise ValueError(message)
    allowed = (1 - confidence) / 2
    # The normal approximation is within 2 ranks of the answer, and the exact tail decides.
    rank = max(0, int(count / 2 - normal_quantile(allowed) * math.sqrt(count) / 2) + 1)
    while rank > 0 and _lower_tail(count, rank - 1) > allowed:
        rank -= 1
    while 2 * (rank + 1) <= count and _lower_tail(count, rank) <= allowed:
        rank += 1
    return rank


def median_interval(
    values: Sequence[float], confidence: float = CONFIDENCE
) -> tuple[float, float] | None:
    """
    Return the order-statistic interval of the median.

    No distribution is assumed.

    Args:
        values: Independent samples, in any order.

        confidence: Probability that the interval holds the median, above 0 and below 1.

    Returns:
        Two of the samples, or None with too few samples for the confidence.
    """
    rank = order_rank(len(values), confidence)
    if rank == 0:
        return None
    ordered = sorted(values)
    return ordered[rank - 1], ordered[-rank]


def half_width_fraction(
    values: Sequence[float], confidence: float = CONFIDENCE
) -> float | None:
    """
    Return half the width of the median's interval, relative to the median.

    Args:
        values: Independent samples, in any order.

        confidence: Probability that the interval holds the median, above 0 and below 1.

    Returns:
        A fraction >= 0. None with too few samples, or with a median of 0 and an interval that
        is not 0.
    """
    rank = order_rank(len(values), confidence)
    if rank == 0:
        return None
    ordered = sorted(values)
    half_width = (ordered[-rank] - ordered[rank - 1]) / 2
    if half_width == 0:
        return 0.0
    middle = abs(_quantile_of_sorted(ordered, 0.5))
    return half_width / middle if middle else None


def samples_for_interval(confidence: float = CONFIDENCE) -> int:
    """Return the smallest number of samples for an interval of the median: 8 for 99 %."""
    return max(2, math.ceil(1 - math.log2(1 - confidence)))


def student_tail(dof: int, t: float) -> float:
    """
    Return the probability that Student's t is more than t.

    Args:
        dof: Degrees of freedom, >= 1.

        t: Any number, including infinity. NaN gives NaN.

    Returns:
        From 0 to 1, with an absolute error below 1e-15.

    Example:
        >>> round(student_tail(1, 1.0), 12)
        0.25
    """
    if abs(t) > _HUGE:
        return 0.0 if t > 0 else 1.0
    square = t * t
    cosine2 = dof / (dof + square)
    sine = math.sqrt(square / (dof + square))
    total = 0.0
    for coefficient in _cosine_coefficients(dof):
        total = total * cosine2 + coefficient
    if dof % 2:
        angle = math.atan(abs(t) / math.sqrt(dof))
        inside = (angle + sine * math.sqrt(cosine2) * total) * 2 / math.pi
    else:
        inside = sine * total
    upper = max((1.0 - inside) / 2, 0.0)  # In this order NaN stays NaN.
    return upper if t >= 0 else 1.0 - upper


def change_point(values: Sequence[float], *, least: float) -> int | None:
    """
    Return the place of a change of level in a series of positive values, or None.

    The place is the split with the largest t of two means of logarithms. The split must be
    significant even though every split was tried.

    Args:
        values: Values in the order of time, > 0.

        least: Smallest change of the level to report [fraction].

    Returns:
        The first place of the new level, or None if the values show a single level.

    Example:
        >>> change_point([1.0, 1.01, 0.99, 1.0, 1.3, 1.31, 1.29], least=0.05)
        4
    """
    logs = [math.log(value) for value in values]
    splits = range(_LEAST_PART, len(logs) - _LEAST_PART + 1)
    best = max(splits, key=lambda place: _step(logs, place)[0], default=None)
    if best is None:
        return None
    t, moved = _step(logs, best)
    chance = 2 * student_tail(len(logs) - 2, t) * len(splits)
    return best if chance < _CHANCE and abs(moved) > math.log1p(least) else None


def _step(logs: Sequence[float], place: int) -> tuple[float, float]:
    """Return the t and the difference of the means before and from a place on."""
    parts = logs[:place], logs[place:]
    means = [math.fsum(part) / len(part) for part in parts]
    squares = math.fsum(
        (log - mean) ** 2
        for part, mean in zip(parts, means, strict=True)
        for log in part
    )
    variance = max(squares / (len(logs) - 2), _SAME**2)
    error = math.sqrt(variance * sum(1 / len(part) for part in parts))
    return abs(means[1] - means[0]) / error, means[1] - means[0]


def _quantile_of_sorted(ordered: Sequence[float], fraction: float) -> float:
    place = fraction * (len(ordered) - 1)
    below = int(place)
    weight = place - below
    low = ordered[below]
    if weight == 0:
        return low
    # A convex sum cannot overflow. The result is clamped against rounding.
    between = (1 - weight) * low + weight * ordered[below + 1]
    return min(max(between, low), ordered[below + 1])


def _lower_tail(count: int, largest: int) -> float:
    """Return P(Bin(count, 1/2) <= largest), summed from the largest term down."""
    term = math.exp(
        math.lgamma(count + 1)
        - math.lgamma(largest + 1)
        - math.lgamma(count - largest + 1)
        - count * math.log(2)
    )
    total = 0.0
    for successes in range(largest, -1, -1):
        total += term
        if term < _NEGLIGIBLE * total:
            break
        term *= successes / (count - successes + 1)
    return total


def normal_quantile(upper_tail: float) -> float:
    """Return z with P(N > z) about `upper_tail` (Abramowitz and Stegun 26.2.23)."""
    t = math.sqrt(-2 * math.log(min(upper_tail, 0.5)))
    top = 2.515517 + t * (0.802853 + t * 0.010328)
    bottom = 1 + t * (1.432788 + t * (0.189269 + t * 0.001308))
    return t - top / bottom


@lru_cache(maxsize=64)
def _cosine_coefficients(dof: int) -> tuple[float, ...]:
    """Return the coefficients of the sum, highest power first, or () for dof 1."""
    if dof == 1:
        return ()
    coefficients = [1.0]
    for k in range(dof % 2 + 2, dof - 1, 2):
        coefficients.append(coefficients[-1] * (k - 1) / k)
    return tuple(reversed(coefficients))
