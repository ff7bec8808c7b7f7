"""The host's clock around any callable.

A sample is call to device synchronise where the process uses a device, and the call alone
where it does not. Timers of the device's side, where they are given, time the same calls:
the best of them gives the samples, and the host's stand beside them. `cache="cold"` can be honoured with a device only: without one, nothing
is done about caches, `Timing.cache_mode` says "none", the header says it once
(registry), and no test carries a note about it.
"""

from __future__ import annotations

import gc
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from types import TracebackType
from typing import final

from pytest_gpuperf.collect.base import DeviceTimer, StopRule, TimedCall, Timing
from pytest_gpuperf.collect.clock import NS_PER_S, Clock
from pytest_gpuperf.collect.runtime import DeviceRuntime
from pytest_gpuperf.collect.timing.readings import Reading, Sieve, Timers, sieve
from pytest_gpuperf.collect.timing.sampling import Bench, Lane
from pytest_gpuperf.errors import MeasureError
from pytest_gpuperf.model.record import Note, Void

__all__ = ["HostCollector", "RangeTimer"]

_LEAST_SAMPLES = 10  # docs/judging.md section 5
# More would narrow the spread inside this process only, which is not what limits a
# verdict; a short noisy call takes 25 ms instead of its whole budget.
_MOST_SAMPLES = 4096
_CHECK_GROWTH = 1.5  # the stop rule sorts all samples: asked at 10, 15, 22, 33 …
_CLOCK_READINGS = 200


class HostCollector:
    """
    Times a callable with the host's clock, and with the device's where it has one.

    Garbage is collected between samples, never in one; the collector is left as it was
    found, whatever the callable raises. What it raises passes through untouched.

    Args:
        clock: Gives the time.

        runtime: Waits for the device, if there is one.

        timers: Of the device's side, the best first.

        sm_clock_hz: Returns the SM clock now [Hz], None where it is not known; None:
            nobody can say. Asked after each sample, never in one.
    """

    name = "host"

    def __init__(
        self,
        clock: Clock,
        runtime: DeviceRuntime,
        timers: Sequence[DeviceTimer] = (),
        *,
        sm_clock_hz: Callable[[], float | None] | None = None,
    ) -> None:
        self._clock = clock
        self._runtime = runtime
        self._timers = tuple(timers)
        self._sm_clock_hz = sm_clock_hz
        self._resolution_ns: int | None = None

    def measure(self, request: TimedCall, *, stop: StopRule) -> Timing:
        """
        Call until the stop rule has enough, or the budget is spent.

        At least 10 samples, however long they take, and at most 4,096.

        Args:
            request: What to call, and how.

            stop: Asked at growing numbers of samples.

        Raises:
            MeasureError: A call does no work that could be timed, or no sample is good.

            CollectError: The device reports an error.
        """
        __tracebackhide__ = True
        with self._bench() as bench:
            lane = Lane(request, bench)
            lane.warm_up()
            _fill((lane,), (request,), stop, bench)
            return lane.timing(_sieved((lane,), bench.timers, ended=True))

    def interleave(
        self, first: TimedCall, second: TimedCall, *, stop: StopRule
    ) -> tuple[Timing, Timing]:
        """
        Measure two callables by turns: A B, B A, A B and so on.

        Sample i of the one was taken right beside sample i of the other, so that drift
        is in both; where one of a pair is refused, both are. The budget is the sum of
        theirs, and the stop rule must have enough of each.

        Args:
            first: A.

            second: B; it must ask for as many iterations.

            stop: Asked at growing numbers of pairs.

        Returns:
            Two timings with equally many samples.

        Raises:
            MeasureError: As `measure`.
        """
        __tracebackhide__ = True
        if first.iterations != second.iterations:
            message = "the two callables of a comparison ask for different iterations"
            raise MeasureError(message, remedy="give both the same number, or none")
        with self._bench() as bench:
            lanes = (Lane(first, bench), Lane(second, bench))
            for lane in lanes:
                lane.warm_up()
            _fill(lanes, (first, second), stop, bench)
            chosen = _sieved(lanes, bench.timers, ended=True)
            return lanes[0].timing(chosen), lanes[1].timing(chosen)

    def measure_range(self) -> RangeTimer:
        """
        Return a context whose block is timed once, as it comes.

        No warm-up, no flush, garbage collection as it is: one sample, from an idle device
        to an idle device.
        """
        return RangeTimer(self._clock.now_ns, self._runtime, self._timers)

    @contextmanager
    def _bench(self) -> Iterator[Bench]:
        """Hold back the garbage collector as long as something is timed."""
        __tracebackhide__ = True
        if self._resolution_ns is None:
            self._resolution_ns = _resolution_ns(self._clock.now_ns)
        collecting = gc.isenabled()
        gc.disable()
        try:
            yield Bench(
                now_ns=self._clock.now_ns,
                resolution_ns=self._resolution_ns,
                runtime=self._runtime,
                timers=Timers(self._timers, self._sm_clock_hz),
                sweep=_sweep if collecting else _leave,
            )
        finally:
            if collecting:
                gc.enable()


@final
class RangeTimer:
    """
    The time of one block.

    Attributes:
        timing: What was measured; None before the block has ended, and where it raised.
    """

    def __init__(
        self,
        now_ns: Callable[[], int],
        runtime: DeviceRuntime,
        timers: Sequence[DeviceTimer] = (),
    ) -> None:
        self.timing: Timing | None = None
        self._now_ns = now_ns
        self._runtime = runtime
        self._wait = runtime.synchronize
        self._given = timers
        self._timers: Timers | None = None  # none where the device was not in use yet
        self._modules_count = 0
        self._start_ns = 0

    def __enter__(self) -> RangeTimer:
        """Wait for the device, then start."""
        self._runtime.synchronize()
        if self._given and self._runtime.active():
            self._timers = Timers(self._given)
            self._wait = self._timers.watched(self._wait)
            for begin in self._timers.begins:
                begin()
        self._modules_count = len(sys.modules)
        self._start_ns = self._now_ns()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Wait for the device, then stop; what the block raised passes through."""
        if kind is not None:
            return
        returned_ns = self._now_ns() - self._start_ns
        if self._timers is not None:
            for end in self._timers.ends:
                end()
        self._wait()
        elapsed_ns = self._now_ns() - self._start_ns
        loaded = len(sys.modules) != self._modules_count
        in_use = self._runtime.active()
        reading = Reading(
            wall_s=elapsed_ns / NS_PER_S,
            returned_s=returned_ns / NS_PER_S if in_use else None,
        )
        self.timing = self._timing(reading, in_use=in_use, loaded=loaded)

    def _timing(self, reading: Reading, *, in_use: bool, loaded: bool) -> Timing:
        """Return the timing of the one sample, by the best source that has it."""
        notes = [_LOADED_NOTE] if loaded else []
        timers = self._timers
        if timers is None:
            chosen = sieve(((reading,),), (), {})
            if self._given and in_use:
                notes.append(_STARTED_NOTE)
        else:
            timers.took(reading)
            timers.collect()
            unused = timers.unused()
            chosen = sieve(
                ((reading,),), timers.names, timers.refusals(), unused=unused
            )
        best, *others = chosen.sources
        returned_s = reading.returned_s
        return Timing(
            samples=chosen.values((reading,), best),
            source=best,
            others={name: chosen.values((reading,), name) for name in others},
            returned=() if returned_s is None else (returned_s,),
            unused=chosen.unused,
            notes=(*chosen.notes, *notes),
        )


_LOADED_NOTE = Note(
    code="loaded-modules",
    text="the block imported modules, and that is part of its time",
)
_STARTED_NOTE = Note(
    code="started-device",
    text="the block was the first to use the device, so that its time is the host's",
)


def _fill(
    lanes: Sequence[Lane],
    requests: Sequence[TimedCall],
    stop: StopRule,
    bench: Bench,
) -> None:
    """Take samples from each lane by turns until there are enough."""
    __tracebackhide__ = True
    now_ns = bench.now_ns
    budget_ns = sum(request.budget_s for request in requests) * NS_PER_S
    minimum_ns = sum(request.minimum_s for request in requests) * NS_PER_S
    fixed = requests[0].iterations
    begun_ns = now_ns()
    check_at = _LEAST_SAMPLES
    order = list(lanes)
    while True:
        _take_one_each(lanes, order)
        order.reverse()
        count, refused = len(lanes[0].readings), lanes[0].discarded_count
        if fixed is not None:  # refused ones too: all ranks must call equally often
            if count + refused >= fixed:
                return
            continue
        spent_ns = now_ns() - begun_ns
        if _exhausted(count, refused, spent_ns >= budget_ns):
            return
        if count >= check_at and spent_ns >= minimum_ns:
            if _enough(lanes, stop, bench.timers):
                return
            check_at = int(count * _CHECK_GROWTH)


def _enough(lanes: Sequence[Lane], stop: StopRule, timers: Timers) -> bool:
    """Return whether more samples of the best source would add nothing."""
    chosen = _sieved(lanes, timers)
    best = chosen.sources[0]
    return len(chosen.kept) >= _LEAST_SAMPLES and all(
        stop.enough(chosen.values(lane.readings, best)) for lane in lanes
    )


def _sieved(lanes: Sequence[Lane], timers: Timers, *, ended: bool = False) -> Sieve:
    """Return the sources and the samples that count; `ended`: there will be no more."""
    names: tuple[str, ...] = ()
    barred: dict[str, Void] = {}
    unused = False
    if any(lane.on_device for lane in lanes):
        timers.collect()
        names = timers.names
        for lane in lanes:
            barred |= lane.barred
        if ended:
            unused = timers.unused()
            barred |= timers.refusals()
    return sieve([lane.readings for lane in lanes], names, barred, unused=unused)


def _exhausted(count: int, refused: int, spent: bool) -> bool:  # noqa: FBT001 - a finding, not a switch
    """Return whether going on is no use, or not allowed."""
    hopeless = refused >= count + _LEAST_SAMPLES
    return (
        hopeless
        or count >= _MOST_SAMPLES
        or (spent and count + refused >= _LEAST_SAMPLES)
    )


def _take_one_each(lanes: Sequence[Lane], order: Sequence[Lane]) -> None:
    """Take a sample from each lane in the given order; keep all of them or none."""
    __tracebackhide__ = True
    taken = [lane.sample() for lane in order]
    kept = [reading for reading in taken if reading is not None]
    if len(kept) < len(lanes):
        for lane in lanes:
            lane.discarded_count += 1
        return
    for lane, reading in zip(order, kept, strict=True):
        lane.accept(reading)


def _sweep() -> None:
    """Collect the young generations if they are due, as Python would have done."""
    young_count, older_count, _ = gc.get_count()
    young_due, older_due, _ = gc.get_threshold()
    if young_count > young_due > 0:
        gc.collect(1 if older_count > older_due else 0)


def _leave() -> None:
    """Collect nothing: it was switched off before us."""


def _resolution_ns(now_ns: Callable[[], int]) -> int:
    """Return the usual step between two readings [ns]; 1: the clock never moved."""
    readings = [now_ns() for _ in range(_CLOCK_READINGS)]
    steps = [late - early for early, late in pairwise(readings) if late > early]
    return statistics.median_low(steps) if steps else 1
