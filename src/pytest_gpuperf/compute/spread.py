"""The spread between sessions, by what is usual in a test's group, and between processes.

Few sessions of one test give a poor estimate of its variance v. The tests of a group show
which variances are usual. With k degrees of freedom

    v / lambda^2 ~ F(k, d0)

where lambda is the usual deviation, and a smaller d0 means more unequal tests. Both are
known on a grid alone. The prediction for a session is then a mixture of Student's t, with
one part for each place of the grid.

lambda^2 and d0 are powers of 2, so that ln(d0 + k v / lambda^2) is needed at 22 products
lambda^2 d0 and not at 76 places: that is most of the time.

The spread between processes widens the ratio of two sides that one process measured
alternately.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from operator import itemgetter
from statistics import NormalDist, fmean
from types import MappingProxyType

from pytest_gpuperf.compute.stats import (
    CONFIDENCE,
    median,
    mixed_tails,
    series_interval,
)
from pytest_gpuperf.model.change import TimeBase
from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.record import SessionValue
from pytest_gpuperf.model.sample import Source

# docs/judging.md section 4: with fewer sessions, a limit uses a declared spread.
LEAST_SESSIONS = 3
# Far beyond the grid. A larger variance adds no information.
_MOST_VARIANCE = 1e12
# Nothing repeats better. Values rounded by a clock only seem to.
LEAST_VARIANCE = 0.001**2
# A 99 % half-width divided by 1.96 is a cautious standard error (section 4).
Z_95 = 1.96

# docs/judging.md section 2: from this number of sessions on, their spread is taken about
# their trend, and a drift is looked for.
TREND_SESSIONS = 8
DRIFT_SESSIONS = 8

# docs/judging.md section 2: the grid, and the range of the usual deviation of sessions.
_STEPS = 19  # lambda = 0.1 % ... 51 %, in steps of a factor of sqrt(2).
_FIRST_VARIANCE = 0.001**2  # The smallest lambda, squared.
_EQUALITIES = (1, 2, 4, 8)  # The values of d0.
_PLATEAUS: Mapping[TimeBase, tuple[float, float]] = MappingProxyType(
    {TimeBase.HOST: (0.02, 0.25), TimeBase.DEVICE: (0.004, 0.08)}
)
# The weight falls off outside a plateau with this deviation of ln lambda.
_SHOULDER = 0.5
# Sessions have heavier tails than a normal distribution, even with a known variance.
_MOST_DOF = 6
_NEGLIGIBLE = 1e-10  # A place with a smaller weight is dropped.

_OVERFLOWS = 1e250  # A larger product is replaced by its logarithm.
_MOST_ITERATIONS = 80  # The search below needs fewer than 20.
_CONVERGED = 1e-8  # Of a probability, relative.
# Relative to a probability. A place with less weight hardly contributes.
_INVISIBLE = 1e-4
# Replaces a tail that is rounded to 0, so that the tail has a logarithm.
_LEAST_P = 1e-300


class UsualSpread(Frozen, frozen=True, kw_only=True):
    """
    The usual spread between the sessions of a group's tests.

    Attributes:
        points: Places of the grid with weight, as (lambda^2, d0, weight). The weights add up
            to 1, and the greatest comes first.
    """

    points: tuple[tuple[float, int, float], ...]

    @property
    def deviation(self) -> float:
        """The mean of lambda, the usual deviation of a test's sessions on a log scale."""
        return sum(weight * math.sqrt(square) for square, _, weight in self.points)

    def mixture(self, dof: int, *, more_sessions: int = 0) -> Mixture:
        """
        Return the prediction for a test with a variance of `dof` degrees of freedom.

        Args:
            dof: Degrees of freedom of the variance, >= 0.

            more_sessions: Number of future sessions. They are expected to show the variance that
                is predicted without them, so they only make the prediction surer.
        """
        return _mixture(self.points, dof, more_sessions)


class Mixture(Frozen, frozen=True, kw_only=True):
    """
    The distribution of a difference, for tests with equally many sessions.

    Attributes:
        dof: Degrees of freedom of a test's variance, >= 0.

        parts: (d0 lambda^2, d0 + dof, degrees of freedom of the tail, weight) of each
            place of the grid.
    """

    dof: int
    parts: tuple[tuple[float, int, int, float], ...]

    def beyond(
        self,
        difference: float,
        variance: float,
        *,
        ratio: float = 1.0,
        floor: float = 0.0,
        extra: float = 0.0,
        enough: float = 1.0,
    ) -> float:
        """
        Return the probability of a larger difference without a change, one-sided.

        Args:
            difference: The difference, on a log scale.

            variance: The test's own variance of a session.

            ratio: The variance of the difference over that of a session.

            floor: The smallest variance of a session.

            extra: Variance independent of the test's own.

            enough: Probability from which the exact value does not matter. The result may then be
                any value of at least `enough`.
        """
        (p_value,) = self.beyond_each(
            (difference,),
            variance,
            ratio=ratio,
            floor=floor,
            extra=extra,
            enough=enough,
        )
        return p_value

    def beyond_each(
        self,
        differences: Sequence[float],
        variance: float,
        *,
        ratio: float = 1.0,
        floor: float = 0.0,
        extra: float = 0.0,
        enough: float = 1.0,
    ) -> list[float]:
        """Return the probabilities of larger differences, as `beyond`."""
        squares = self.dof * variance
        parts = []
        # A loop, because each comprehension of each test is a call.
        for prior, whole, dof, weight in self.parts:
            of_session = (prior + squares) / whole
            if of_session < floor:  # noqa: PLR1730 - a maximum takes four times as long
                of_session = floor
            parts.append((weight, dof, math.sqrt(of_session * ratio + extra)))
        return mixed_tails(differences, parts, enough=enough)

    def reach(
        self,
        p_value: float,
        variance: float,
        *,
        ratio: float = 1.0,
        floor: float = 0.0,
        extra: float = 0.0,
    ) -> float:
        """Return the difference with a given probability below 0.5, inverting `beyond`."""
        squares = self.dof * variance
        parts = [
            (weight, max((prior + squares) / whole, floor) * ratio + extra, dof)
            for prior, whole, dof, weight in self.parts
        ]
        return _reach(parts, p_value)


@lru_cache(maxsize=256)
def _mixture(
    points: tuple[tuple[float, int, float], ...], dof: int, more_sessions: int
) -> Mixture:
    return Mixture(
        dof=dof,
        parts=tuple(
            (d0 * square, d0 + dof, min(d0 + dof + more_sessions, _MOST_DOF), weight)
            for square, d0, weight in points
        ),
    )


def usual_spread(
    variances: Iterable[tuple[float, int]],
    clock: TimeBase,
    *,
    least_equality: int = 0,
) -> UsualSpread:
    """
    Estimate the usual spread of a group from the variances of the tests.

    Args:
        variances: For each test, the variance of a session, > 0, and its degrees of freedom.
            A variance without degrees of freedom is ignored. The group may be empty.

        clock: The time base of the values.

        least_equality: Smallest d0 to allow, if tests are assumed to be at least this equal.
    """
    logs = [[prior] * len(_EQUALITIES) for prior in _log_prior(clock)]
    by_dof: dict[int, list[float]] = {}
    for variance, dof in variances:
        if dof > 0 and math.isfinite(variance):
            by_dof.setdefault(dof, []).append(min(variance, _MOST_VARIANCE))
    for dof, spreads in by_dof.items():
        _weigh(logs, spreads, dof)
    most = max(map(max, logs))
    weights = [
        (_FIRST_VARIANCE * 2.0**step, d0, math.exp(log - most))
        for step, row in enumerate(logs)
        for d0, log in zip(_EQUALITIES, row, strict=True)
        if d0 >= least_equality
    ]
    total = math.fsum(weight for _, _, weight in weights)
    points = [
        (square, d0, weight / total)
        for square, d0, weight in weights
        if weight > _NEGLIGIBLE * total
    ]
    return UsualSpread(points=tuple(sorted(points, key=itemgetter(2), reverse=True)))


@cache  # There are two clocks.
def _log_prior(clock: TimeBase) -> tuple[float, ...]:
    low, high = _PLATEAUS[clock]
    logs = []
    for step in range(_STEPS):
        usual = math.sqrt(_FIRST_VARIANCE * 2.0**step)
        outside = math.log(max(low / usual, usual / high, 1.0)) / _SHOULDER
        logs.append(-outside * outside / 2)
    return tuple(logs)


def _weigh(logs: list[list[float]], variances: Sequence[float], dof: int) -> None:
    count, half = len(variances), dof / 2
    scale = dof / _FIRST_VARIANCE
    log_sum = math.fsum(map(math.log, variances)) + count * math.log(scale)
    products = [
        _sum_of_log1p(variances, scale / 2.0**power)
        for power in range(_STEPS + len(_EQUALITIES) - 1)
    ]
    for place, d0 in enumerate(_EQUALITIES):
        constant = count * (
            math.lgamma(half + d0 / 2)
            - math.lgamma(half)
            - math.lgamma(d0 / 2)
            - half * math.log(d0)
        )
        for step in range(_STEPS):
            density = half * (log_sum - count * step * math.log(2))
            density -= (half + d0 / 2) * products[step + place]
            logs[step][place] += constant + density


def _sum_of_log1p(values: Iterable[float], scale: float) -> float:
    """Return the sum of ln(1 + value * scale), by way of products to be faster."""
    total, product = 0.0, 1.0
    for value in values:
        product *= 1.0 + value * scale
        if product > _OVERFLOWS:
            total += math.log(product)
            product = 1.0
    return total + math.log(product)


class Spread(Frozen, frozen=True, kw_only=True):
    """
    The spread of one metric of one test between sessions.

    Attributes:
        fraction: Standard deviation of a session's value, relative to the value, >= 0.

        parts: Weight, variance and degrees of freedom of each Student's t in the mixture.
            Empty for a declared spread, which is normal.

        session_count: Sessions of the estimate, or 0 for a declared spread.
    """

    fraction: float
    parts: tuple[tuple[float, float, int], ...] = ()
    session_count: int = 0


def session_spread(
    stored: Sequence[SessionValue], usual: UsualSpread | None = None
) -> Spread | None:
    """
    Estimate the spread between the stored sessions of a test and metric.

    The spread is at least the standard error within a session.

    Args:
        stored: The stored sessions, with values > 0.

        usual: Usual spread of the group, or None to estimate it from the test alone.

    Returns:
        The spread, or None with fewer than 3 sessions or a value that is not positive.
    """
    values = [value for session in stored for value in session.run_values]
    if len(stored) < LEAST_SESSIONS or min(values) <= 0:
        return None
    runs = [moments([math.log(v) for v in session.run_values]) for session in stored]
    _, squares = moments([mean for mean, _ in runs])
    dof = len(stored) - 1
    variance = max(squares / dof, LEAST_VARIANCE)
    share = fmean(1 / len(session.run_values) for session in stored)
    within = sum(apart for _, apart in runs) / max(len(values) - len(stored), 1)
    widths = [width for session in stored for width in session.half_widths]
    sampling_error = sum(widths) / len(widths) / Z_95 if widths else 0.0
    floor = max(within * share, sampling_error**2, LEAST_VARIANCE)
    group_spread = usual or usual_spread([(variance, dof)], TimeBase.HOST)
    parts = tuple(
        (weight, max((prior + dof * variance) / whole, floor), freedom)
        for prior, whole, freedom, weight in group_spread.mixture(dof).parts
    )
    deviation = math.sqrt(sum(weight * square for weight, square, _ in parts))
    return Spread(fraction=deviation, parts=parts, session_count=len(stored))


def half_width(spread: Spread, *, fraction: float | None = None) -> float:
    """
    Return half the width of the two-sided interval of a session's value.

    Args:
        spread: The spread between sessions.

        fraction: Standard deviation to use instead of the spread's own.

    Returns:
        A share of the value, on a log scale, >= 0.
    """
    outside = (1 - CONFIDENCE) / 2
    deviation = spread.fraction if fraction is None else fraction
    if not spread.parts:
        return NormalDist().inv_cdf(1 - outside) * deviation
    return _reach(spread.parts, outside) * deviation / spread.fraction


def moments(values: Sequence[float]) -> tuple[float, float]:
    """
    Return the mean of values, and the sum of the squared distances from the mean.

    Args:
        values: Numbers, >= 1 of them.

    Example:
        >>> moments([1.0, 3.0])
        (2.0, 2.0)
    """
    mean = sum(values) / len(values)
    return mean, sum([(value - mean) * (value - mean) for value in values])


def standard_errors(p_value: float) -> float:
    """
    Return the number of standard errors that is exceeded with a one-sided probability.

    The heaviest tail of the rule is used.

    Args:
        p_value: Above 0 and below one half.
    """
    return _reach([(1.0, 1.0, _MOST_DOF)], p_value)


def _reach(parts: Iterable[tuple[float, float, int]], p_value: float) -> float:
    """
    Return the difference that a mixture of Student's t exceeds with a probability.

    The logarithm of a tail is nearly linear in the logarithm of the difference. A secant method
    on the two, kept between two values that enclose the answer, therefore needs few steps.

    Args:
        parts: Weight, variance > 0 and degrees of freedom of each part.

        p_value: Above 0 and below one half.
    """
    scaled = [
        (weight, dof, math.sqrt(variance))
        for weight, variance, dof in parts
        if weight > _INVISIBLE * p_value
    ]
    target = math.log(p_value)

    def excess(log_difference: float) -> float:
        (tail,) = mixed_tails((math.exp(log_difference),), scaled)
        return math.log(tail or _LEAST_P) - target

    low = high = math.log(sum(weight * error for weight, _, error in scaled))
    above = below = excess(low)
    while above <= 0:
        low -= 1.0
        above = excess(low)
    while below > 0:
        low, above = high, below
        high += 1.0
        below = excess(high)
    side, place = 0, low
    # The value of the end that stays is halved, so that both ends close in.
    for _ in range(_MOST_ITERATIONS):
        place = low + (high - low) * above / (above - below)
        value = excess(place)
        if abs(value) < _CONVERGED:
            break
        if value > 0:
            low, above = place, value
            below *= 0.5 if side > 0 else 1.0
            side = 1
        else:
            high, below = place, value
            above *= 0.5 if side < 0 else 1.0
            side = -1
    return math.exp(place)


# docs/judging.md section 3: deviation between processes of the ratio of two callables.
_HOST_SPREAD = 0.02
_DEVICE_SPREAD = 0.005
# Enough to estimate the spread between processes from their own ratios.
ENOUGH_PROCESSES = 3


class PairedRatio(Frozen, frozen=True, kw_only=True):
    """
    The ratio of the first side to the second.

    Attributes:
        value: The ratio, > 0.

        low: Lower end of the two-sided 99 % interval, or None with too few pairs.

        high: Upper end of the interval, or None with too few pairs.
    """

    value: float
    low: float | None
    high: float | None


def process_spread(source: str) -> float:
    """Return the usual deviation of a ratio of times between processes, by source."""
    return _HOST_SPREAD if source == Source.HOST else _DEVICE_SPREAD


def paired_ratio(
    above: Sequence[float], below: Sequence[float], *, spread: float = _HOST_SPREAD
) -> PairedRatio:
    """
    Return the ratio of two interleaved sides.

    One process draws one placement and one choice of kernels for each side, and no number of
    samples averages this out. The interval is therefore widened by the usual spread between
    processes.

    Args:
        above: Samples of the numerator, > 0, in the order they were taken.

        below: Samples of the denominator. The i-th belongs to the i-th of `above`.

        spread: Standard deviation between processes, relative to the value.

    Raises:
        ValueError: A side has no samples.

    Example:
        >>> paired_ratio([2.0] * 8, [1.0] * 8, spread=0.0).low
        2.0
    """
    ratios = [a / b for a, b in zip(above, below, strict=False)]
    middle = median([math.log(ratio) for ratio in ratios])
    interval = series_interval(ratios)
    if interval is None:
        return PairedRatio(value=math.exp(middle), low=None, high=None)
    between = half_width(Spread(fraction=spread))
    return PairedRatio(
        value=math.exp(middle),
        low=math.exp(middle - math.hypot(middle - math.log(interval[0]), between)),
        high=math.exp(middle + math.hypot(math.log(interval[1]) - middle, between)),
    )


def with_spread(
    ratio: PairedRatio, *, spread: Spread, instead_of: float
) -> PairedRatio:
    """
    Replace the spread between processes in the interval of a ratio.

    Args:
        ratio: A ratio of one process.

        spread: The observed spread between processes or sessions.

        instead_of: Standard deviation that the interval was widened by before.
    """
    if ratio.low is None or ratio.high is None:
        return ratio
    assumed, between = half_width(Spread(fraction=instead_of)), half_width(spread)
    below, above = (
        math.sqrt(max(math.log(end / ratio.value) ** 2 - assumed**2, 0.0) + between**2)
        for end in (ratio.low, ratio.high)
    )
    return PairedRatio(
        value=ratio.value,
        low=ratio.value * math.exp(-below),
        high=ratio.value * math.exp(above),
    )


def ratio_of_processes(ratios: Sequence[float]) -> PairedRatio:
    """
    Return the mean ratio of several processes, with an interval from the spread.

    Args:
        ratios: Ratio of each process, > 0, from 3 processes or more.
    """
    mean, squares = moments([math.log(ratio) for ratio in ratios])
    dof = len(ratios) - 1
    variance = max(squares / dof, LEAST_VARIANCE) / len(ratios)
    spread = Spread(fraction=math.sqrt(variance), parts=((1.0, variance, dof),))
    half = half_width(spread)
    return PairedRatio(
        value=math.exp(mean), low=math.exp(mean - half), high=math.exp(mean + half)
    )


def about_trend(values: Sequence[float]) -> float:
    """
    Return the sum of the squared distances from the straight line through values.

    The number of degrees of freedom is that of the values less 2.

    Args:
        values: Logarithms or shares in order, >= 2 of them.
    """
    places, squares = _places(len(values))
    middle = math.fsum(values) / len(values)
    products = about_mean = 0.0
    # A loop, because a map of operators takes twice as long.
    for place, value in zip(places, values, strict=True):
        distance = value - middle
        products += place * distance
        about_mean += distance**2
    left = about_mean - products**2 / squares
    return max(0.0, left)


@cache
def _places(count: int) -> tuple[Sequence[float], float]:
    middle = (count - 1) / 2
    return [place - middle for place in range(count)], count * (count**2 - 1) / 12
