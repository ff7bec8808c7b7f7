"""What the machine did to a class of tests, and what is left without it.

A machine that is slower today is slower for many tests at once. The common shift is the
median of the other tests and of reference workloads, which no change of the code can move.
How much of the shift a test follows cannot be known for each test alone: one share beta
serves a whole class, shrunk to the usual share, and the differences between tests are added
to the variance.

Before that, values are converted to one speed of the core. On a shared machine a neighbour
on the same physical core slows it by up to a factor of 2, for tenths of a second or for
seconds: a session that samples for that long is fast or slow by chance. A loop timed
between the samples shows the speed. The power of the speed that a test follows (1 for
Python's own work, 0.3 for work that waits for memory) is learned from how the samples moved
with the loop inside each process, and from how the processes did.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, compress, islice, repeat
from operator import attrgetter, mul, sub
from statistics import median
from typing import TYPE_CHECKING, TypeAlias

from pytest_gpuperf.compute.spread import LEAST_VARIANCE, about_trend
from pytest_gpuperf.model.frozen import BulkRecord, Frozen, with_checked
from pytest_gpuperf.model.packed import SessionValues
from pytest_gpuperf.model.record import SessionValue
from pytest_gpuperf.model.sample import CoreSpeed

if TYPE_CHECKING:
    from pytest_gpuperf.compute.contrast import Contrast

# docs/judging.md section 2: how a class follows the machine.
LEAST_CONTROLS = 3  # The median of fewer is one test's own noise.
# In a class of up to 10 tests, a test is left out of its own median. In a larger class,
# one test hardly moves the median.
_FEW_TESTS = 10
_USUAL_SHARE = 0.7  # The usual share of the machine's move that tests follow.
_SHARE_PRECISION = 1 / 0.5**2  # One over the variance of the usual share.
_UNEQUAL_SHARES = 0.3**2  # Variance of the share between the tests of a class.
# Noise of a class whose tests follow the median exactly.
_LEAST_NOISE = 1e-8


# docs/judging.md section 2: how a test follows its core.
_LEAST_RANGE = 0.15  # A smaller range of the loop's logarithm is the loop's own noise.
_LEAST_SAMPLES = 3  # At either speed.
# More samples do not count, because neighbours in time are not independent.
_MOST_SAMPLES = 8
_LOOP_NOISE = 0.02**2  # Variance of a median of the loop's logarithm.
_SLOPE_NOISE = 0.2**2  # Variance of the slope between processes.
# Variance of a process's logarithm at constant speed of the core.
_PROCESS_NOISE = 0.1**2
_USUAL_SLOPE = 0.7  # Before anything is measured.
_USUAL_PRECISION = 1 / 0.5**2  # One over the variance of the usual slope.
_MOST_SLOPE = 1.5
# The largest distance of a slope from the usual slope.
_OTHER_SLOPES = max(_USUAL_SLOPE, _MOST_SLOPE - _USUAL_SLOPE)
# Largest change of a process's logarithm at constant speed of the core. A process that
# is further off was not slowed by the core.
_MOST_CHANGE = 0.2
_LOOP, _CORES = attrgetter("loop_s"), attrgetter("cores")
_SLOPES = attrgetter("slope", "precision")
# Neighbours, clocks and kinds of core change the time of a loop by less.
_MOST_APART = math.log(10)
# Assumed variance of the loop's logarithm between two releases or builds of Python.
_PYTHON_NOISE = 0.05**2
# Standard deviation of normal values over their median distance from the median.
_DEVIATION = 1.4826


class AtOneSpeed(Frozen, frozen=True, kw_only=True):
    """
    Values of a metric, converted to one speed of the core.

    Attributes:
        current: The current session.

        stored: The stored sessions, whose mean is unchanged.

        log_shift: Correction of the current session's values, on a log scale.

        variance: Variance of `log_shift`, independent of the test's own variance.

        distance: Distance of the current session's core from the stored ones, on a log
            scale.

        precision: One over the variance of the power with which the test follows the core.
    """

    current: SessionValue
    stored: SessionValues
    log_shift: float
    variance: float
    distance: float
    precision: float


class Residual(BulkRecord, frozen=True, kw_only=True):
    """
    A contrast, corrected for machine drift.

    Attributes:
        difference: The current session's distance from the stored sessions.

        variance: Variance of a stored session, at least 0.001 squared.

        extra: Variance of the correction.

        shift: The correction that was subtracted from the difference.
    """

    difference: float
    variance: float
    extra: float = 0.0
    shift: float = 0.0


class CommonMove(Frozen, frozen=True, kw_only=True):
    """
    The shift of a class's controls, relative to their stored sessions.

    Attributes:
        log_shift: Median of the current session.

        sessions: Median of each stored session with enough controls, by session id.

        control_count: Number of controls.
    """

    log_shift: float
    sessions: Mapping[str, float]
    control_count: int


class FollowedShare(Frozen, frozen=True, kw_only=True):
    """
    The share of machine drift that a class of tests follows.

    Attributes:
        share: From 0 to 1.

        precision: One over the variance of the share.
    """

    share: float
    precision: float

    def variance_left(self, move: float) -> float:
        """Return the variance left after correcting for a move of the machine."""
        return move * move * (_UNEQUAL_SHARES + 1 / self.precision)


def core_speed(
    samples_s: Sequence[float], loops_s: Sequence[float]
) -> CoreSpeed | None:
    """
    Estimate the speed of the core, and how the samples followed changes of the speed.

    Args:
        samples_s: Time of a call [s]. The slope needs all times > 0.

        loops_s: Processor time of the loop at each sample [s], or empty if unknown.

    Returns:
        The speed. None if the loop was not timed at each sample, or if a time of the loop is
        not above 0.
    """
    if not loops_s or len(loops_s) != len(samples_s) or min(loops_s) <= 0:
        return None
    loop_s = median(loops_s)
    if min(samples_s) <= 0:
        return CoreSpeed(loop_s=loop_s)
    loops, ordered = [*map(math.log, loops_s)], sorted(map(math.log, loops_s))
    outermost = len(ordered) // 10
    low, high = ordered[outermost], ordered[-1 - outermost]
    if high - low < _LEAST_RANGE:
        return CoreSpeed(loop_s=loop_s)
    third = (high - low) / 3
    pairs = list(zip(loops, map(math.log, samples_s), strict=True))
    fast = [pair for pair in pairs if pair[0] <= low + third]
    slow = [pair for pair in pairs if pair[0] >= high - third]
    if min(len(fast), len(slow)) < _LEAST_SAMPLES:
        return CoreSpeed(loop_s=loop_s)
    (fast_loop, fast_time, fast_noise), (slow_loop, slow_time, slow_noise) = map(
        _middle, (fast, slow)
    )
    change = slow_loop - fast_loop
    noise = fast_noise + slow_noise + _LOOP_NOISE
    return CoreSpeed(
        loop_s=loop_s,
        # Rounded, so that baselines are not filled with meaningless digits.
        slope=round((slow_time - fast_time) / change, 3),
        precision=round(1 / (noise / change**2 + _SLOPE_NOISE), 1),
    )


def clock_shift(current: SessionValue, stored: Sequence[SessionValue]) -> float | None:
    """
    Return the shift of a device's clock since the stored sessions, on a log scale.

    Args:
        current: The current session.

        stored: The stored sessions.

    Returns:
        The shift, or None if the clock is unknown for the current session or for half of the
        stored sessions.
    """
    then_hz = [median(s.sm_clocks_hz) for s in stored if s.sm_clocks_hz]
    if not current.sm_clocks_hz or 2 * len(then_hz) <= len(stored):
        return None
    return math.log(median(current.sm_clocks_hz) / median(then_hz))


def at_one_speed(
    current: SessionValue,
    stored: Sequence[SessionValue],
    *,
    other_python: bool = False,
    also: SessionValue | None = None,
) -> AtOneSpeed | None:
    """
    Convert values to the mean speed of the stored sessions' cores.

    A stored session without a known speed keeps its values. The speed may have been any, and
    the resulting deviation widens the interval.

    Args:
        current: The current session.

        stored: The stored sessions, >= 1 of them.

        other_python: Whether another release of Python ran the stored loops.

        also: More processes of the current session, which also show how the test follows
            the core. None if there are no others.

    Returns:
        The converted values. None if the speed is unknown for a process of the current session
        or for half of the stored sessions, if the loops differ by more than a core can, or if
        a value is not positive.
    """
    values = stored if type(stored) is SessionValues else SessionValues.of(stored)
    known, count = values, len(values.interrupted)
    loops_s = values.cores[0]
    if not (current.cores and loops_s):
        return None
    if math.isnan(sum(loops_s)):  # Unusual: some sessions lack the speed.
        known = SessionValues.of([*filter(_CORES, values)])
    if 2 * len(known.interrupted) <= count:
        return None
    runs, now, counts = known.runs, current.run_values, known.counts
    logs = _logs(runs, now) if known is values or min(values.runs) > 0 else None
    if logs is None:
        return None
    loops = [*map(math.log, known.cores[0])]
    now_loops = [*map(math.log, map(_LOOP, current.cores))]
    # Current processes are compared among themselves only, because the change between
    # current and stored ones is still unknown. So are those of the suite and those alone.
    groups: list[_Timed] = [
        (logs[0], loops, zip(*known.cores[1:], strict=True)),
        (logs[1], now_loops, map(_SLOPES, current.cores)),
    ]
    if also is not None and also.cores and min(also.run_values) > 0:
        of_also = [*map(math.log, map(_LOOP, also.cores))]
        also_times = [*map(math.log, also.run_values)]
        groups.append((also_times, of_also, map(_SLOPES, also.cores)))
    slope, precision = _slope(groups)
    timed = [*loops, *now_loops]
    if max(timed) - min(timed) > _MOST_APART or not math.isfinite(slope):
        return None  # Only an edited file has such loops.
    means = loops if counts is None else _means(loops, counts)
    usual = math.fsum(means) / len(means)
    every = _at_speed([*runs, *now], timed, usual, slope)
    # A value measured alone is compared with the suite's, so both need one speed.
    alone = _odd_at_speed(known.odd, usual, slope) if known.odd else {}
    now_alone = _alone_at_speed(current, usual, slope) if current.alone_values else ()
    if math.inf in every or math.inf in chain(now_alone, *alone.values()):
        return None  # No float holds a converted value.
    converted = known.with_runs(every[: len(runs)], alone)
    distance = _core_distance(
        (median(now_loops) if len(now_loops) > 1 else now_loops[0]) - usual
    )
    (at_speed,) = with_checked(
        (current,), run_values=(tuple(every[len(runs) :]),), alone_values=(now_alone,)
    )
    return AtOneSpeed(
        current=at_speed,
        stored=converted if known is values else _merged(values, converted),
        log_shift=slope * distance,
        variance=distance**2 / precision
        + (slope**2 * _PYTHON_NOISE if other_python else 0.0),
        distance=distance,
        precision=precision,
    )


def _logs(*several: Sequence[float]) -> list[list[float]] | None:
    """Return the logarithms of some values, or None if one is not above 0."""
    try:
        return [[*map(math.log, values)] for values in several]
    except ValueError:
        return None


def _merged(values: SessionValues, converted: SessionValues) -> SessionValues:
    of_known = iter(converted)
    return SessionValues.of([next(of_known) if s.cores else s for s in values])


def _means(loops: Sequence[float], counts: Iterable[int]) -> list[float]:
    rest = iter(loops)
    return [math.fsum(islice(rest, count)) / count for count in counts]


def followed_share(*, squares: float, products: float, noise: float) -> FollowedShare:
    """
    Estimate the share of machine drift that a class follows, shrunk to the usual share.

    Args:
        squares: Sum of the squares of the class's moves.

        products: Sum of the products of the class's moves and the tests' moves.

        noise: Variance of the tests' own noise.
    """
    noise += _LEAST_NOISE
    precision = squares / noise + _SHARE_PRECISION
    share = (products / noise + _USUAL_SHARE * _SHARE_PRECISION) / precision
    return FollowedShare(share=min(max(share, 0.0), 1.0), precision=precision)


def without_machine(
    tests: Sequence[Contrast],
    controls: Sequence[bool],
    references: Iterable[Contrast] = (),
) -> list[Residual]:
    """
    Correct contrasts for the machine drift of their classes, keeping the order.

    Args:
        tests: All tests with stored sessions.

        controls: Whether each test is a control, used to estimate the drift.

        references: Reference workloads, which always count as controls.
    """
    corrected: dict[int, Residual] = {}
    witnesses = [*references]
    by_class = _by_class(witnesses)
    for name, members in _by_class(tests).items():
        contrasts = [tests[place] for place in members]
        marked = [tests[place] for place in members if controls[place]]
        others = [witnesses[place] for place in by_class.get(name, ())]
        moves = (
            [_move([*marked, *others])] * len(members)
            if len(members) > _FEW_TESTS
            else [
                _move([*(t for t in marked if t is not c), *others]) for c in contrasts
            ]
        )
        if any(move is not None for move in moves):
            corrected |= zip(members, _without_moves(contrasts, moves), strict=True)
    return [
        corrected.get(place)
        or Residual(
            difference=test.now - test.mean,
            variance=_variance(test, test.stored),
            extra=test.comparison.core_variance,
        )
        for place, test in enumerate(tests)
    ]


def common_moves(controls: Iterable[Contrast]) -> dict[str, CommonMove]:
    """Return the shifts of all classes with enough controls, by shift group."""
    every = [*controls]
    moves = {
        name: _move([every[place] for place in places])
        for name, places in _by_class(every).items()
    }
    return {name: move for name, move in moves.items() if move is not None}


def _by_class(tests: Sequence[Contrast]) -> dict[str, list[int]]:
    groups: dict[str, list[int]] = {}
    for place, contrast in enumerate(tests):
        if contrast.comparison.shift_group and not contrast.scale:
            groups.setdefault(contrast.comparison.shift_group, []).append(place)
    return groups


def _move(controls: Sequence[Contrast]) -> CommonMove | None:
    """Return the median shift of controls, or None with too few controls."""
    if len(controls) < LEAST_CONTROLS:
        return None
    # Most tests of a class have the same sessions.
    rows: dict[Sequence[str], list[Iterable[float]]] = {}
    ids: Sequence[str] | None = None
    row: list[Iterable[float]] = []
    for control in controls:
        if control.session_ids is not ids:  # Not as the control before.
            ids = control.session_ids
            row = rows.setdefault(ids, [])
        row.append(map(sub, control.stored, repeat(control.mean)))
    apart: dict[str, list[float]] = {}
    for names, several in rows.items():
        for name, of_session in zip(names, zip(*several, strict=True), strict=True):
            apart.setdefault(name, []).extend(of_session)
    return CommonMove(
        log_shift=median([control.now - control.mean for control in controls]),
        sessions={
            name: median(distances)
            for name, distances in apart.items()
            if len(distances) >= LEAST_CONTROLS
        },
        control_count=len(controls),
    )


def _without_moves(
    tests: Sequence[Contrast], moves: Sequence[CommonMove | None]
) -> list[Residual]:
    steps: list[_Steps] = []
    # Most tests of a class have the same sessions, and all of a large one the same move.
    known: dict[tuple[Sequence[str], int], _Steps] = {}
    squares = products = about_mean = about_move = 0.0
    ids: Sequence[str] | None = None
    last: CommonMove | None = None
    of_test: _Steps | None = None
    for test, move in zip(tests, moves, strict=True):
        if of_test is None or test.session_ids is not ids or move is not last:
            ids, last = test.session_ids, move
            name = ids, id(move)
            of_test = known.get(name)
            if of_test is None:  # Not as a test before.
                of_test = known[name] = _steps(ids, move)
        steps.append(of_test)
        mean = test.mean
        for value, step in zip(test.stored, of_test[0], strict=True):
            distance = value - mean
            squares += step * step
            products += step * distance
            about_mean += distance * distance
            about_move += (distance - step) ** 2
    noise = min(about_move, about_mean) / max(1, sum([test.dof for test in tests]))
    followed = followed_share(squares=squares, products=products, noise=noise)
    residuals: list[Residual] = []
    of_steps: _Steps | None = None
    left: list[float] = []
    share, shift, left_variance = followed.share, 0.0, 0.0
    for test, each in zip(tests, steps, strict=True):
        if each is not of_steps:  # Not as the test before.
            of_steps, (sessions, now) = each, each
            left = [*map(mul, repeat(share), sessions)]
            shift, left_variance = share * now, followed.variance_left(now)
        rest = [*map(sub, test.stored, left)]
        of_core = test.comparison.core_variance
        residuals.append(
            Residual(
                difference=test.now - test.mean - shift,
                variance=_variance(test, rest),
                # Most tests of a class share one number.
                extra=left_variance + of_core if of_core else left_variance,
                shift=shift,
            )
        )
    return residuals


# The common shift in each stored session and now, less the mean of the stored sessions.
_Steps: TypeAlias = "tuple[list[float], float]"


def _steps(session_ids: Sequence[str], move: CommonMove | None) -> _Steps:
    then = {} if move is None else move.sessions
    now = 0.0 if move is None else move.log_shift
    shifts = [*map(then.get, session_ids, repeat(0.0))]
    middle = math.fsum(shifts) / len(shifts)
    return [*map(sub, shifts, repeat(middle))], now - middle


def _variance(test: Contrast, values: Sequence[float]) -> float:
    """
    Return the variance of a test's sessions, at least 0.001 squared.

    Of many sessions it is the variance about their trend: if a value drifts, its sessions
    are far from their mean, and no change would be found.
    """
    if test.of_trend:
        squares = about_trend(values)
    else:
        squares, middle = 0.0, test.mean
        # A loop, because a map of operators takes twice as long.
        for value in values:
            apart = value - middle
            squares += apart * apart
    variance = squares / (test.dof or 1)
    # A comparison, because a maximum is slow.
    return max(LEAST_VARIANCE, variance)


def _middle(pairs: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    loop = median(loop for loop, _ in pairs)
    times = [time for _, time in pairs]
    middle = median(times)
    deviation = _DEVIATION * median(abs(time - middle) for time in times)
    return loop, middle, deviation**2 / min(len(times), _MOST_SAMPLES)


# Processes that are compared among themselves: the logarithms of the value of each and of its
# loop, and its slope with the precision.
_Timed: TypeAlias = (
    "tuple[Sequence[float], Sequence[float], Iterable[tuple[float, float]]]"
)


def _slope(groups: Iterable[_Timed]) -> tuple[float, float]:
    weighted, precision = _USUAL_SLOPE * _USUAL_PRECISION, _USUAL_PRECISION
    for times, loops, slopes in groups:
        for slope, of_slope in slopes:
            weighted += slope * of_slope
            precision += of_slope
        if len(loops) <= 1:
            continue  # A single process shows no power.
        rests: list[float] = []
        # Loops, because each comprehension of each test is a call.
        for loop, time in zip(loops, times, strict=True):
            rests.append(time - _USUAL_SLOPE * loop)
        near_loops, near_times = loops, times
        ordered = sorted(rests)
        usual_rest = median(ordered)
        if max(ordered[-1] - usual_rest, usual_rest - ordered[0]) > _MOST_CHANGE:
            usual_loop = median(loops)
            near: list[bool] = []
            for loop, rest in zip(loops, rests, strict=True):
                apart = _OTHER_SLOPES * abs(loop - usual_loop) + _MOST_CHANGE
                # A process that is further off was not slowed by the core.
                near.append(abs(rest - usual_rest) <= apart)
            near_loops, near_times = [*compress(loops, near)], [*compress(times, near)]
        if near_loops:
            middle = math.fsum(near_loops) / len(near_loops)
            products, squares = [], []
            for loop, time in zip(near_loops, near_times, strict=True):
                from_middle = loop - middle
                products.append(from_middle * time)
                squares.append(from_middle**2)
            weighted += math.fsum(products) / _PROCESS_NOISE
            precision += math.fsum(squares) / _PROCESS_NOISE
    return min(max(weighted / precision, 0.0), _MOST_SLOPE), precision


def _core_distance(distance: float) -> float:
    """Return the core's part of the distance of a loop, nearly all of a large distance."""
    square = distance * distance
    return distance * square / (square + _LOOP_NOISE)


def _at_speed(
    values: Sequence[float], loops: Sequence[float], usual: float, slope: float
) -> list[float]:
    """Convert values to the speed of the usual loop, given as a logarithm."""
    converted: list[float] = []
    # A loop, because each comprehension of each test is a call.
    for value, loop in zip(values, loops, strict=True):
        distance = loop - usual
        square = distance * distance  # As `_core_distance` has it.
        distance = distance * square / (square + _LOOP_NOISE)
        converted.append(value * math.exp(-slope * distance))
    return converted


def _odd_at_speed(
    odd: Mapping[int, SessionValue], usual: float, slope: float
) -> dict[int, tuple[float, ...]]:
    """Convert the values measured alone, by the place of their session."""
    return {
        place: _alone_at_speed(value, usual, slope)
        for place, value in odd.items()
        if value.alone_values
    }


def _alone_at_speed(
    session: SessionValue, usual: float, slope: float
) -> tuple[float, ...]:
    loops = map(math.log, map(_LOOP, session.alone_cores))
    factors = [math.exp(-slope * _core_distance(loop - usual)) for loop in loops]
    return tuple(map(mul, session.alone_values, factors))
