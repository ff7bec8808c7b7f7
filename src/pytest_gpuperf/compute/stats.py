"""Medians, quantiles and their distribution-free intervals, and the tail of Student's t.

The interval of a median is made of two order statistics: the r-th smallest and the
r-th largest of n samples hold the true median unless fewer than r samples fell on one
side of it, which for independent samples of any distribution is a binomial tail:

    P(hold) = 1 - 2 P(Bin(n, 1/2) <= r - 1)

99 % needs at least 8 samples (1 - 2/256 = 99.2 %; 7 give 98.4 %). Samples of one process
resemble their neighbours, and are worth fewer independent ones: the interval of a series is
as many ranks wider as the standard error of a mean of the series is larger.

With a = atan(t / sqrt(dof)), of whole degrees of freedom, the probability of Student's t
inside [-t, t] is a finite sum of powers of cos(a)^2 (Abramowitz and Stegun 1964, Handbook
of Mathematical Functions, 26.7.3 and 26.7.4). The library that has it takes 0.2 s to load,
which is more than all the judging of a suite of a thousand tests.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from operator import add

# Of every displayed interval (docs/judging.md section 2).
CONFIDENCE = 0.99
# Limits a change relative to a tiny reference, so that the change stays finite.
_MOST_EFFECT = 1e304
_MOST_LOG = 700.0  # The exponential of more is not finite.
_HUGE = 1e150  # The square of more is not finite.
# Degrees of freedom of the chances between sessions (docs/judging.md section 2).
_USUAL_DOF = 6
# Values on each side of a change. Two are too few to estimate a spread.
_LEAST_PART = 3
# Probability of finding a change point by chance. It is low, because every history has
# many places.
_CHANCE = 0.001
_SAME = 1e-9  # Values with a smaller relative difference are equal.
# One sample in 16 on each side, and at least one, may be an outlier, which would hide that
# the others are alike.
_EDGE = 16
# The batches of samples whose likeness is estimated. Simulated, the interval of 200 samples
# with a slow drift below noise of the same size holds the median in 53 of 100 cases with
# batches of 1 alone, and in 84 with these. Larger ones made 2 of 111 measurements on a busy
# machine +-50 % and more.
_BATCHES = (1, 2, 4)
_LEAST_BATCHES = 16  # The correlation of fewer is hardly more than chance.
# A correlation must explain ln n (Schwarz) less this, and fewer than `_MANY` samples with a
# larger one than `_CLEAR` are sampled on. Of the values that were simulated, these take the
# fewest samples where the interval of a correlation of 0.9 holds the median in 90 of 100
# cases: 11.3 independent ones instead of 10. Their interval is 1.16 times as wide.
_LENIENCY, _CLEAR = 2.0, 0.38
# More samples than `_MANY` only repeat the drift of the machine: on a busy one, a third of
# the calls suffice.
_MANY = 40
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
    return sorted_quantile(sorted(values), fraction)


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
        return math.fsum(values) / len(values)
    except OverflowError:
        half = math.fsum(value / 2 / len(values) for value in values)
        return min(max(2 * half, min(values)), max(values))


def mean_logs(groups: Iterable[Sequence[float]]) -> list[float]:
    """
    Return the mean logarithm of each group.

    Args:
        groups: Numbers > 0, >= 1 of them in each group. A usual group has one.
    """
    logs: list[float] = []
    # A loop, because each comprehension of each test is a call.
    for values in groups:
        of_group = [*map(math.log, values)]
        logs.append(of_group[0] if len(of_group) == 1 else mean(of_group))
    return logs


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
    # Comparisons, because a minimum is slow.
    is_usual = -_MOST_EFFECT < change < _MOST_EFFECT
    return change if is_usual else math.copysign(_MOST_EFFECT, change)


def fraction_of(log_change: float) -> float:
    """
    Return a change on a log scale as a fraction, always finite.

    Args:
        log_change: Logarithm of the quotient of two values.

    Example:
        >>> fraction_of(0.0), fraction_of(-1e9)
        (0.0, -1.0)
    """
    if not -_MOST_LOG < log_change < _MOST_LOG:
        log_change = math.copysign(_MOST_LOG, log_change)
    return math.expm1(log_change)


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


def series_interval(
    values: Sequence[float], confidence: float = CONFIDENCE
) -> tuple[float, float] | None:
    """
    Return the interval of the median of samples that may be correlated.

    It is the interval of `median_interval` unless neighbours are significantly alike.

    Args:
        values: Samples in the order they were taken.

        confidence: Probability that the interval holds the median, above 0 and below 1.

    Returns:
        Lower and upper end, possibly outside of the samples. The lower end of positive
        samples is positive. None with too few samples for the confidence.
    """
    count = len(values)
    rank = order_rank(count, confidence)
    if rank == 0:
        return None
    ordered = sorted(values)
    # The distance of the ends from the median, in ranks. It grows by the factor up to the
    # outliers, from where on the ends themselves move away.
    distance = (count + 1) / 2 - rank
    most = max(distance, (count - 1) / 2 - count // _EDGE)
    distance *= correlation_factor(values)
    rank = int((count + 1) / 2 - min(distance, most))
    low, high = ordered[rank - 1], ordered[-rank]
    if distance <= most:
        return low, high
    middle, stretch = sorted_quantile(ordered, 0.5), distance / most
    high = middle + stretch * (high - middle)
    if low <= 0:
        return middle - stretch * (middle - low), high
    # A time stays above 0: its inverse is stretched. The smallest float is not divided.
    share = low / middle
    return low / (share + stretch * (1 - share)) or low, high


def half_width_fraction(
    values: Sequence[float], confidence: float = CONFIDENCE
) -> float | None:
    """
    Return half the width of the median's interval, relative to the median.

    Args:
        values: Samples in the order they were taken.

        confidence: Probability that the interval holds the median, above 0 and below 1.

    Returns:
        A fraction >= 0. None with too few samples, or with a median of 0 and an interval that
        is not 0.
    """
    interval = series_interval(values, confidence)
    if interval is None:
        return None
    half_width = (interval[1] - interval[0]) / 2
    if half_width == 0:
        return 0.0
    middle = abs(median(values))
    return half_width / middle if middle else None


def is_known(values: Sequence[float], precision: float) -> bool:
    """
    Return True if the interval of the median is narrow, and shows all that it must.

    Few samples with a clear correlation of neighbours do not show how long it lasts, so
    that their interval is too narrow. Of many, it is enough that it would be narrow without
    their correlation: more of them would hardly narrow it.

    Args:
        values: Samples in the order they were taken.

        precision: The largest half-width of the interval relative to the median, >= 0.
    """
    half_width = half_width_fraction(values)
    if half_width is None:
        return False
    if half_width > precision:
        low, high = median_interval(values) or (-math.inf, math.inf)
        is_enough = len(values) >= _MANY
        return is_enough and (high - low) / 2 <= precision * abs(median(values))
    if len(values) >= _MANY:
        return True
    return _neighbours_correlation(_without_outliers(values)) <= _CLEAR


def correlation_factor(values: Sequence[float]) -> float:
    """
    Return the factor by which correlation widens the interval of a mean or a median.

    Args:
        values: Samples in the order they were taken.

    Returns:
        At least 1. 1 for fewer than 8 samples, and without significant correlation.

    References:
        Law and Kelton, Simulation Modeling and Analysis (2000), section 9.5.3: batch means;
        von Neumann, Annals of Mathematical Statistics 12 (1941): the correlation; Kendall,
        Biometrika 41 (1954): its bias.
    """
    if len(values) < samples_for_interval():
        return 1.0
    batches = _without_outliers(values)
    # The variance of the mean of a batch, then of all samples, over that of independent
    # samples. Neighbours with correlation c have 1 + c, and a long series with correlations
    # c, c^2, c^3 … has (1 + c) / (1 - c).
    of_batch = largest = 1.0
    for size in _BATCHES:
        if size > 1:
            batches = list(map(add, batches[::2], batches[1::2]))
            if len(batches) < _LEAST_BATCHES:
                break
        count = len(batches)
        alike = _neighbours_correlation(batches)
        if alike * alike * count > math.log(len(values)) - _LENIENCY:
            # Correlated samples are worth two independent ones, at least.
            alike = min(alike / (1 - 4 / count), (count - 2) / (count + 2))
        else:
            alike = 0.0
        largest = max(largest, of_batch * (1 + alike) / (1 - alike))
        of_batch *= 1 + alike
    return math.sqrt(largest)


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
    (tail,) = mixed_tails((t,), ((1.0, dof, 1.0),))
    return tail


def mixed_tails(  # noqa: PLR0912 - a call for each part would take most of the time
    differences: Iterable[float],
    parts: Collection[tuple[float, int, float]],
    *,
    enough: float = math.inf,
) -> list[float]:
    """
    Return the sum of weighted tails of Student's t for each difference.

    A mixture has dozens of parts, and a call for each of them would take most of the time.

    Args:
        differences: Any numbers, including infinity.

        parts: Weight, degrees of freedom and standard error of each part.

        enough: The sum from which further parts do not matter, and are left out.
    """
    sqrt, sums = math.sqrt, []
    for difference in differences:
        sum_of_tails = 0.0
        for weight, dof, error in parts:
            t = difference / error
            if t > _HUGE or t < -_HUGE:
                tail = 0.0 if t > 0 else 1.0
            else:
                square = t * t
                whole = dof + square
                cosine2 = dof / whole
                sine = sqrt(square / whole)
                if dof == _USUAL_DOF:  # Written out, because most parts have it.
                    total = (0.375 * cosine2 + 0.5) * cosine2 + 1.0
                else:
                    total = 0.0
                    for coefficient in _cosine_coefficients(dof):
                        total = total * cosine2 + coefficient
                if dof % 2:
                    angle = math.atan(abs(t) / sqrt(dof))
                    inside = (angle + sine * sqrt(cosine2) * total) * 2 / math.pi
                else:
                    inside = sine * total
                upper = (1.0 - inside) / 2
                # NaN stays NaN.
                if upper < 0.0:  # noqa: PLR1730 - a maximum takes four times as long
                    upper = 0.0
                tail = upper if t >= 0 else 1.0 - upper
            sum_of_tails += weight * tail
            if sum_of_tails >= enough:
                break
        sums.append(sum_of_tails)
    return sums


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


def _without_outliers(values: Sequence[float]) -> list[float]:
    """Return samples above the lowest, with outliers replaced by their next neighbours."""
    ordered, edge = sorted(values), max(1, len(values) // _EDGE)
    low, high = ordered[edge], ordered[-1 - edge]
    span = high - low
    return [0.0 if v < low else span if v > high else v - low for v in values]


def _neighbours_correlation(batches: Sequence[float]) -> float:
    """Return the correlation of neighbours, or 0 without any differences."""
    count = len(batches)
    deviation = math.dist(batches, [sum(batches) / count] * count)
    if deviation == 0:
        return 0.0
    apart = math.dist(batches[1:], batches[:-1]) / deviation
    # Samples about their own mean seem less alike: c is estimated as c - (1 + 4 c)/n. What
    # is not a number is no correlation.
    alike = 1 - apart * apart / 2 + 1 / count
    return alike if alike > 0 else 0.0


def sorted_quantile(ordered: Sequence[float], fraction: float) -> float:
    """
    Return a quantile of sorted numbers, as `quantile` does, without a check of either.
    """
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
