"""The spread between sessions, by what is usual in a test's group, and between processes.

Few sessions of one test give a poor estimate of its variance v; the tests of a group show
which variances are usual. With k degrees of freedom

    v / lambda^2 ~ F(k, d0)

where lambda is the usual deviation and d0 tells how unequal tests are: the smaller, the
more. Both are known on a grid alone. What a session will show is then a mixture of
Student's t, one for each place of the grid.

lambda^2 and d0 are powers of 2, so that ln(d0 + k v / lambda^2) is needed at 22 products
lambda^2 d0 and not at 76 places: that is most of the time.

Between processes it widens the ratio of two sides that one process measured by turns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, lru_cache
from operator import itemgetter
from statistics import NormalDist, fmean
from types import MappingProxyType

from pytest_gpuperf.compute.stats import (
    CONFIDENCE,
    median,
    median_interval,
    student_tail,
)
from pytest_gpuperf.model.change import TimeBase
from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.record import SessionValue
from pytest_gpuperf.model.sample import Source

__all__ = [
    "ENOUGH_PROCESSES",
    "LEAST_SESSIONS",
    "LEAST_VARIANCE",
    "Z_95",
    "Mixture",
    "PairedRatio",
    "Spread",
    "UsualSpread",
    "half_width",
    "moments",
    "paired_ratio",
    "process_spread",
    "ratio_of_processes",
    "session_spread",
    "standard_errors",
    "usual_spread",
    "with_spread",
]

LEAST_SESSIONS = (
    3  # docs/judging.md section 4: with fewer a limit has a declared spread
)
_MOST_VARIANCE = 1e12  # far beyond the grid: what is larger tells no more of it
LEAST_VARIANCE = 0.001**2  # nothing repeats better; values rounded by a clock seem to
Z_95 = 1.96  # a 99 % half-width over it is a cautious standard error (section 4)

# docs/judging.md section 2: the grid, and where the usual deviation of sessions may lie
_STEPS = 19  # lambda = 0.1 % ... 51 %, each sqrt(2) times the one before
_FIRST_VARIANCE = 0.001**2  # the smallest lambda, squared
_EQUALITIES = (1, 2, 4, 8)  # d0
_PLATEAUS: Mapping[TimeBase, tuple[float, float]] = MappingProxyType(
    {TimeBase.HOST: (0.02, 0.25), TimeBase.DEVICE: (0.004, 0.08)}
)
_SHOULDER = 0.5  # how fast it falls off outside, as a deviation of ln lambda
_MOST_DOF = (
    6  # sessions have heavier tails than normal ones, whatever one knows of them
)
_NEGLIGIBLE = 1e-10  # weight of a place that is not looked at

_OVERFLOWS = 1e250  # a product is turned into its logarithm before
_MOST_ITERATIONS = 80  # the search below needs fewer than 20
_CONVERGED = 1e-8  # of a probability, relative
_INVISIBLE = 1e-4  # of a probability: a place of so little weight hardly adds to it
_LEAST_P = 1e-300  # stands for a tail that is rounded to nothing, and has a logarithm


class UsualSpread(Frozen, frozen=True, kw_only=True):
    """
    What the sessions of a group's tests differ by, and how unequal the tests are.

    Attributes:
        points: Each place of the grid that has weight, as (lambda^2, d0, weight); the
            weights add up to 1, the greatest comes first.
    """

    points: tuple[tuple[float, int, float], ...]

    @property
    def deviation(self) -> float:
        """The mean of lambda: what the sessions of a test differ by, on a log scale."""
        return sum(weight * math.sqrt(square) for square, _, weight in self.points)

    def mixture(self, dof: int, *, more_sessions: int = 0) -> Mixture:
        """
        Return what it predicts for a test whose variance has so much freedom.

        Args:
            dof: Degrees of freedom of the variance, >= 0.

            more_sessions: Sessions to come. The variance that they are expected to show is
                the one that is predicted without them: they only make it surer.
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
        Return the one-sided probability of a larger difference without a change.

        Args:
            difference: The difference, on a log scale.

            variance: The test's own variance of a session.

            ratio: The variance of the difference over that of a session.

            floor: The least variance of a session.

            extra: Variance that has nothing to do with the test's own.

            enough: A probability that need not be known better than "not below it".
        """
        squares, p_value = self.dof * variance, 0.0
        for prior, whole, dof, weight in self.parts:
            error = math.sqrt(max((prior + squares) / whole, floor) * ratio + extra)
            p_value += weight * student_tail(dof, difference / error)
            if p_value >= enough:
                break
        return p_value

    def reach(
        self,
        p_value: float,
        variance: float,
        *,
        ratio: float = 1.0,
        floor: float = 0.0,
        extra: float = 0.0,
    ) -> float:
        """Return the difference that has a probability below one half: the inverse."""
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
    """Return the mixture of some places of the grid."""
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
    Return what the variances of a group's tests say of what is usual.

    Args:
        variances: Variance of a session, > 0, and its degrees of freedom, of each test;
            one without freedom says nothing. There may be none.

        clock: Whose times they are of.

        least_equality: The least d0: the tests are taken to be at least so equal.
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


@cache  # there are two clocks
def _log_prior(clock: TimeBase) -> tuple[float, ...]:
    """Return the logarithm of what each lambda weighs before anything was measured."""
    low, high = _PLATEAUS[clock]
    logs = []
    for step in range(_STEPS):
        usual = math.sqrt(_FIRST_VARIANCE * 2.0**step)
        outside = math.log(max(low / usual, usual / high, 1.0)) / _SHOULDER
        logs.append(-outside * outside / 2)
    return tuple(logs)


def _weigh(logs: list[list[float]], variances: Sequence[float], dof: int) -> None:
    """Add what variances of so much freedom say to the weights of the grid."""
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
    """Return the sum of ln(1 + value * scale): of products, which is faster."""
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
        fraction: Standard deviation of a session's value, relative to it, >= 0.

        parts: Weight, variance and degrees of freedom of each Student's t whose mixture
            it is; empty: it is declared, and normal.

        session_count: Sessions of the estimate; 0 where it is declared.
    """

    fraction: float
    parts: tuple[tuple[float, float, int], ...] = ()
    session_count: int = 0


def session_spread(
    stored: Sequence[SessionValue], usual: UsualSpread | None = None
) -> Spread | None:
    """
    Return the spread of the stored sessions of one metric of one test.

    It is at least the standard error within a session.

    Args:
        stored: Its sessions, with values > 0.

        usual: What is usual in its group; None: the test stands alone.

    Returns:
        None where there are fewer than 3 sessions, or a value is not positive.
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
    floor = max(within * share, _sampling_error(stored) ** 2, LEAST_VARIANCE)
    group_spread = usual or usual_spread([(variance, dof)], TimeBase.HOST)
    parts = tuple(
        (weight, max((prior + dof * variance) / whole, floor), freedom)
        for prior, whole, freedom, weight in group_spread.mixture(dof).parts
    )
    deviation = math.sqrt(sum(weight * square for weight, square, _ in parts))
    return Spread(fraction=deviation, parts=parts, session_count=len(stored))


def half_width(spread: Spread, *, fraction: float | None = None) -> float:
    """
    Return half the width of the two-sided interval of one session's value.

    Args:
        spread: Between sessions.

        fraction: A standard deviation to take instead of the spread's own.

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
    Return the mean of values, and the sum of their squares about it.

    Args:
        values: Numbers, >= 1 of them.

    Example:
        >>> moments([1.0, 3.0])
        (2.0, 2.0)
    """
    mean = sum(values) / len(values)
    return mean, sum((value - mean) * (value - mean) for value in values)


def _sampling_error(sessions: Iterable[SessionValue]) -> float:
    """Return the standard error of a process's value from its samples; 0: unknown."""
    widths = [width for session in sessions for width in session.half_widths]
    return sum(widths) / len(widths) / Z_95 if widths else 0.0


def standard_errors(p_value: float) -> float:
    """
    Return how many standard errors leave a one-sided probability beyond them.

    At the heaviest tail that the rule has.

    Args:
        p_value: Above 0 and below one half.
    """
    return _reach([(1.0, 1.0, _MOST_DOF)], p_value)


def _reach(parts: Iterable[tuple[float, float, int]], p_value: float) -> float:
    """
    Return the difference beyond which a mixture of Student's t has a probability.

    The logarithm of a tail is nearly a line of that of the difference, so that a secant
    of the two, kept between two that enclose the answer, needs few steps.

    Args:
        parts: Weight, variance > 0 and degrees of freedom of each.

        p_value: Above 0 and below one half.
    """
    scaled = [
        (weight, math.sqrt(variance), dof)
        for weight, variance, dof in parts
        if weight > _INVISIBLE * p_value
    ]
    target = math.log(p_value)

    def excess(log_difference: float) -> float:
        difference, p = math.exp(log_difference), 0.0
        for weight, error, dof in scaled:
            p += weight * student_tail(dof, difference / error)
        return math.log(p or _LEAST_P) - target

    low = high = math.log(sum(weight * error for weight, error, _ in scaled))
    above = below = excess(low)
    while above <= 0:
        low -= 1.0
        above = excess(low)
    while below > 0:
        low, above = high, below
        high += 1.0
        below = excess(high)
    return math.exp(_root(excess, (low, above), (high, below)))


def _root(
    excess: Callable[[float], float],
    first: tuple[float, float],
    last: tuple[float, float],
) -> float:
    """Return where a falling function is 0: secants, the end that stays counts half."""
    (low, above), (high, below) = first, last
    side, place = 0, low
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
    return place


# docs/judging.md section 3: what two callables of one process differ by in another one
_HOST_SPREAD = 0.02
_DEVICE_SPREAD = 0.005
ENOUGH_PROCESSES = 3  # so many show by themselves how much processes differ


class PairedRatio(Frozen, frozen=True, kw_only=True):
    """
    The ratio of the first side to the second.

    Attributes:
        value: The ratio, > 0.

        low: Lower end of its two-sided 99 % interval; None: too few pairs for one.

        high: Its upper end.
    """

    value: float
    low: float | None
    high: float | None


def process_spread(source: str) -> float:
    """Return what a ratio of times by one source usually differs by between processes."""
    return _HOST_SPREAD if source == Source.HOST else _DEVICE_SPREAD


def paired_ratio(
    above: Sequence[float], below: Sequence[float], *, spread: float = _HOST_SPREAD
) -> PairedRatio:
    """
    Return the ratio of two interleaved sides.

    One process draws one placement and one choice of kernels for each side, which no
    number of samples averages out: the interval is widened by what processes usually
    differ by.

    Args:
        above: Samples of the side on top, > 0, in the order they were taken.

        below: Samples of the other side; the i-th belongs to the i-th of `above`.

        spread: Standard deviation between processes, relative to the value.

    Raises:
        ValueError: A side has no samples.

    Example:
        >>> paired_ratio([2.0] * 8, [1.0] * 8, spread=0.0).low
        2.0
    """
    ratios = [math.log(a / b) for a, b in zip(above, below, strict=False)]
    middle = median(ratios)
    interval = median_interval(ratios)
    if interval is None:
        return PairedRatio(value=math.exp(middle), low=None, high=None)
    between = half_width(Spread(fraction=spread))
    return PairedRatio(
        value=math.exp(middle),
        low=math.exp(middle - math.hypot(middle - interval[0], between)),
        high=math.exp(middle + math.hypot(interval[1] - middle, between)),
    )


def with_spread(
    ratio: PairedRatio, *, spread: Spread, instead_of: float
) -> PairedRatio:
    """
    Return a ratio whose interval is widened by another spread between processes.

    Args:
        ratio: A ratio of one process.

        spread: What processes, or sessions, have been seen to differ by.

        instead_of: The standard deviation that its interval was widened by.
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
    Return the mean of the ratios of several processes, as sure as they are alike.

    Args:
        ratios: One of each process, > 0, of 3 processes or more.
    """
    mean, squares = moments([math.log(ratio) for ratio in ratios])
    dof = len(ratios) - 1
    variance = max(squares / dof, LEAST_VARIANCE) / len(ratios)
    spread = Spread(fraction=math.sqrt(variance), parts=((1.0, variance, dof),))
    half = half_width(spread)
    return PairedRatio(
        value=math.exp(mean), low=math.exp(mean - half), high=math.exp(mean + half)
    )
