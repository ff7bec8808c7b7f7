"""Calls of which each n-th does the work of the calls between."""

from __future__ import annotations

import operator
import os
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import compress, count
from math import inf

from pytest_gpuperf.collect.clock import NS_PER_S, Clock
from pytest_gpuperf.collect.timing.readings import Reading
from pytest_gpuperf.model.record import Note

# Some calls among the samples may take so much longer.
_MOST_RATIO = 3
# The least number of equal distances between slow calls, and their share of all.
_PERIODS, _PERIODIC = 3, 0.8
# Periods that are called again, and the longest pauses before such a call, which is more
# than a turn of a scheduler, and in such a period.
_PERIODS_AGAIN, _MOST_PAUSE_S, _PAUSES_S = 6, 0.005, 0.1
_BYTE = 255
# The mean of calls over their median, where the slow ones count.
_UNEVEN = 1.5


def notes(
    readings: Sequence[Reading], again: Callable[[], Reading | None], clock: Clock
) -> Iterator[Note]:
    """
    Yield a doubt if each n-th call does the work of the calls between.

    A scheduler and a neighbour have a period in time, too. So calls are made again,
    after pauses of any length, and only a period of calls is found again.

    Args:
        readings: The samples, in the order they were taken.

        again: Takes one more sample, or returns None if it is refused.

        clock: The clock.
    """
    __tracebackhide__ = True
    times_s = [*map(_own_s, readings)]
    period = _period_of(times_s)
    if not period:
        return
    again_s = [
        _after_a_pause_s(again, period, clock) for _ in range(period * _PERIODS_AGAIN)
    ]
    if _period_of(again_s) != period:
        return
    mean_s = statistics.fmean(times_s)
    text = (
        f"each {period}th call takes more than {_MOST_RATIO} times as long, and the"
        f" median leaves it out: the mean is {mean_s:.3g} s"
    )
    yield Note(code="uneven-calls", text=text, doubt=True, full_s=mean_s)


def _after_a_pause_s(
    again: Callable[[], Reading | None], period: int, clock: Clock
) -> float:
    """Return the own time of a call after a pause [s], or 0 if refused."""
    __tracebackhide__ = True
    share = int.from_bytes(os.urandom(1), "big") / _BYTE
    clock.sleep(share * min(_MOST_PAUSE_S, _PAUSES_S / period))
    delayed_ns = clock.delay_ns()
    reading = again()
    if reading is None:
        return 0.0
    if reading.cpu_s is not None:
        return _own_s(reading)
    delay_s = (clock.delay_ns() - delayed_ns) / NS_PER_S
    return max(0.0, reading.wall_s - delay_s / reading.calls_count)


def _own_s(reading: Reading) -> float:
    """Return the time of a call without that of what has interrupted it [s]."""
    if reading.interrupted and reading.cpu_s is not None:
        return reading.cpu_s
    return reading.wall_s


def _period_of(times_s: Sequence[float]) -> int:
    """Return n if each n-th call does the work of the calls between, else 0."""
    usual_s = statistics.median(times_s)
    mean_s = sum(times_s) / len(times_s)
    # Of calls below a microsecond, the one after a slow one is slow, too, on its own scale.
    least_s = max(_MOST_RATIO * usual_s, mean_s / 2)
    places = [*compress(count(), map(least_s.__lt__, times_s))]
    gaps = Counter(map(operator.sub, places[1:], places))
    period, found_count = gaps.most_common(1)[0] if gaps else (0, 0)
    # Interruptions have no period, or come one after the other for a while.
    expected_count = max(len(places), len(times_s) / period) if period > 1 else inf
    is_regular = found_count >= max(_PERIODS, _PERIODIC * expected_count)
    return period if is_regular and mean_s >= _UNEVEN * usual_s else 0
