"""The host's clock around any callable.

A sample lasts from the call to the device synchronise if the process uses a device, and
covers only the call otherwise. Device timers, if there are any, time the same calls:
the best of them gives the samples, and the host's times are kept as another source.
`cache="cold"` needs a device. Without a device caches are left alone,
`Timing.cache_mode` is "none", and the header reports it once (registry).
"""

from __future__ import annotations

import gc
import operator
import statistics
import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain, pairwise
from math import inf
from operator import attrgetter
from types import TracebackType
from typing import final

from pytest_gpuperf.collect.base import (
    DeviceTimer,
    StopRule,
    TakeTurn,
    TimedCall,
    Timing,
)
from pytest_gpuperf.collect.clock import NS_PER_S, Clock, CoreLoop
from pytest_gpuperf.collect.runtime import DeviceRuntime, wait_for_all
from pytest_gpuperf.collect.timing.contention import USES_DISK, uses_disk
from pytest_gpuperf.collect.timing.elsewhere import Elsewhere
from pytest_gpuperf.collect.timing.imported import ImportedData
from pytest_gpuperf.collect.timing.originals import Originals
from pytest_gpuperf.collect.timing.readings import (
    CountedSamples,
    Reading,
    Timers,
    counted_samples,
    tracer_notes,
)
from pytest_gpuperf.collect.timing.sampling import (
    SAMPLE_RESOLUTIONS,
    CallSampler,
    Instruments,
)
from pytest_gpuperf.errors import MeasureError
from pytest_gpuperf.model.record import Note, Void
from pytest_gpuperf.model.sample import Source

# Slow calls get fewer samples, until they take 10 s (docs/judging.md section 5).
_LEAST_SAMPLES, _LEAST_SLOW_SAMPLES = 10, 3
_LEAST_S = 10.0
# More samples would narrow the spread inside this process only, which is not what
# limits a verdict. A short noisy call takes 25 ms instead of its whole budget.
_MOST_SAMPLES = 4096
# The stop rule sorts all samples, so it is called at 10, 12, 15, 18 … samples. Few more show
# that a correlation was none.
_CHECK_GROWTH = 1.25
# Most samples may be interrupted, and each check looks at all of them.
_LATE_FRACTION = 0.1
# Fraction of a block. A brief wait in a block that computes is not a sign of waiting.
_MOSTLY_RUNNING = 0.5
_CLOCK_READINGS = 200
# Getters, because each item of a generator is a call between two samples.
_IS_COLD, _IS_SLOW = attrgetter("is_cold"), attrgetter("is_slow")
_ON_DEVICE, _WAITED = attrgetter("on_device"), attrgetter("waited")
_READINGS, _INTERRUPTED = attrgetter("readings"), attrgetter("interrupted")
_MINIMUM_S = attrgetter("minimum_s")
# Objects found by a collection that are more than those of the sampler.
_LEAST_GARBAGE = 100
# The coarsest usable tick. The loop that measures the speed of the core takes 20 of them.
_FINE_NS = 1_000


class HostCollector:
    """
    Times a callable with the host's clock, and with a device's clock if there is a
    device.

    Garbage is collected between samples, never in one. The collector is restored even
    if the callable raises, and its exceptions pass through untouched.

    Args:
        clock: The clock.

        runtime: Waits for the device, if there is one.

        timers: The device timers, the best first.

        sm_clock_hz: Returns the SM clock now [Hz], or None if it is unknown. None if
            the clock cannot be read. Called after each sample, never in one.

        take_turn: Called before each sample, with whether there are enough samples. It
            waits until a sample may be taken, and returns whether to take it. A process
            alone never waits, and takes no sample more than enough.

        expect: Called before the samples of slow calls, with the number of rounds, if
            all are as long as the first, and the time of one round [s]. None if not
            requested.

        imported: The data of test modules before the first test, or None if unknown.
    """

    name = Source.HOST

    def __init__(
        self,
        clock: Clock,
        runtime: DeviceRuntime,
        timers: Sequence[DeviceTimer] = (),
        *,
        sm_clock_hz: Callable[[], float | None] | None = None,
        take_turn: TakeTurn = operator.not_,
        expect: Callable[[int, float], object] | None = None,
        imported: ImportedData | None = None,
    ) -> None:
        self._clock = clock
        self._runtime = runtime
        self._timers = tuple(timers)
        self._sm_clock_hz = sm_clock_hz
        self._take_turn = take_turn
        self._expect = expect
        self._imported = imported
        self._core_loop = CoreLoop(clock)
        self._resolution_ns: int | None = None
        self._cpu_clock_is_fine = False

    def measure(
        self, request: TimedCall, *, stop: StopRule, enough_s: float = inf
    ) -> Timing:
        """
        Call until the stop rule has enough samples, or the budget is spent.

        At least 10 samples are taken, or as many as 10 s hold, but at least 3, however
        long they take, and at most 4,096.

        Args:
            request: The call and its options.

            stop: Called at growing numbers of samples.

            enough_s: Uninterrupted time in samples that is enough, regardless of the
                stop rule [s], > 0.

        Raises:
            MeasureError: A call does no work that could be timed, or no sample counts.

            CollectError: The device reports an error.
        """
        __tracebackhide__ = True
        instruments = self._instruments()
        try:
            sampler = CallSampler(request, instruments)
            sampler.warm_up()
            self._fill(
                (sampler,), (request,), instruments, stop=stop, enough_s=enough_s
            )
            return sampler.timing(_counted((sampler,), instruments.timers, ended=True))
        finally:
            _collect_again(instruments)

    def interleave(
        self,
        first: TimedCall,
        second: TimedCall,
        *,
        stop: StopRule,
        enough_s: float = inf,
    ) -> tuple[Timing, Timing]:
        """
        Measure two callables in alternating order: A B, B A, A B and so on.

        Samples i of the two are taken one after the other, so that drift is in both. If
        one of a pair is refused, both are. The budget is the sum of the two, and the
        stop rule must have enough samples of each.

        Args:
            first: A.

            second: B, with the same number of iterations.

            stop: Called at growing numbers of pairs.

            enough_s: As in `measure`, for each of the two.

        Returns:
            Two timings with equally many samples.

        Raises:
            MeasureError: As `measure`.
        """
        __tracebackhide__ = True
        if first.iterations != second.iterations:
            message = "the two callables of a comparison have different iterations"
            raise MeasureError(message, remedy="give both the same number, or none")
        instruments = self._instruments()
        try:
            samplers = (
                CallSampler(first, instruments, paired=True),
                CallSampler(second, instruments, paired=True),
            )
            for sampler in samplers:
                sampler.warm_up()
                sampler.forget_first_call()
            self._fill(
                samplers, (first, second), instruments, stop=stop, enough_s=enough_s
            )
            chosen = _counted(samplers, instruments.timers, ended=True)
            for sampler in samplers:
                sampler.look()
            return samplers[0].timing(chosen), samplers[1].timing(chosen)
        finally:
            _collect_again(instruments)

    def measure_range(self) -> RangeTimer:
        """
        Return a context manager that times a block once.

        There is no warm-up and no flush, and garbage collection is left as it is. The
        single sample lasts from an idle device to an idle device.
        """
        return RangeTimer(
            self._clock, self._runtime, self._timers, sm_clock_hz=self._sm_clock_hz
        )

    def _fill(  # noqa: C901, PLR0912 - each helper would be a call between two samples
        self,
        samplers: Sequence[CallSampler],
        requests: Sequence[TimedCall],
        instruments: Instruments,
        *,
        stop: StopRule,
        enough_s: float,
    ) -> None:
        __tracebackhide__ = True
        now_ns, take_turn = instruments.now_ns, self._take_turn
        fixed = requests[0].iterations
        if fixed is not None and len(samplers[0].readings) >= fixed:
            # The first call was the sample.
            return
        minimum_ns = sum(map(_MINIMUM_S, requests)) * NS_PER_S
        check_at: float = _LEAST_SAMPLES
        order = list(samplers)
        self._tell_time(samplers, fixed)
        take_turn(False)  # noqa: FBT003 - there is no sample yet
        begun_ns = now_ns()
        while True:
            if len(order) == 1:  # Nearly all measurements.
                reading = order[0].sample()
                if reading is None:
                    order[0].discarded_count += 1
                else:
                    order[0].accept(reading)
            else:
                _sample_by_turns(samplers, order)
                order.reverse()
            if any(map(_IS_COLD, samplers)):
                for sampler in samplers:
                    sampler.begin_anew()
                begun_ns = now_ns()
            spent_ns = now_ns() - begun_ns
            if fixed is not None:
                # Refused samples count too, because all ranks must call equally often.
                if len(samplers[0].readings) + samplers[0].discarded_count >= fixed:
                    return
            elif _is_over(samplers, requests, spent_ns):
                return
            is_due = fixed is None and len(samplers[0].readings) >= check_at
            if is_due and spent_ns >= minimum_ns:
                check_at = _next_check(
                    samplers, instruments.timers, stop=stop, enough_s=enough_s
                )
            if not take_turn(check_at == inf):
                return

    def _tell_time(self, samplers: Sequence[CallSampler], fixed: int | None) -> None:
        if self._expect is None or not any(map(_IS_SLOW, samplers)):
            return
        round_s = sum(sampler.first_call_s for sampler in samplers)
        count = _least_count(round_s * NS_PER_S, len(samplers))
        if fixed is not None:
            count = fixed - len(samplers[0].readings)
        self._expect(count, round_s)

    def _instruments(self) -> Instruments:
        __tracebackhide__ = True
        if self._resolution_ns is None:
            steps_ns = _steps_ns(self._clock.now_ns)
            # The median step between two readings. A clock that never moved has none.
            self._resolution_ns = statistics.median_low(steps_ns) if steps_ns else 1
            self._cpu_clock_is_fine = _cpu_clock_is_fine(self._clock)
        thresholds = gc.get_threshold()
        collecting = gc.isenabled() and thresholds[0] > 0
        instruments = Instruments(
            clock=self._clock,
            now_ns=self._clock.now_ns,
            cpu_clock_is_fine=self._cpu_clock_is_fine,
            resolution_ns=self._resolution_ns,
            sample_ns=SAMPLE_RESOLUTIONS * self._resolution_ns,
            runtime=self._runtime,
            timers=Timers(self._timers, self._sm_clock_hz),
            core_loop=self._core_loop,
            originals=Originals(self._runtime.free_bytes),
            imported=self._imported,
            sweep=_Sweeper(self._clock.now_ns, thresholds),
            young_due=thresholds[0] if collecting else inf,
            thresholds=thresholds,
        )
        # `gc.isenabled` stays true, so that code cannot see that it is measured.
        gc.set_threshold(0)
        return instruments


def _collect_again(instruments: Instruments) -> None:
    """Turn the collector on again, unless the code under test has set its thresholds."""
    if gc.get_threshold()[0] == 0:
        gc.set_threshold(*instruments.thresholds)


@final
class RangeTimer:
    """
    The time of one block.

    Attributes:
        timing: The timing, or None before the block has ended or if it raised.
    """

    def __init__(
        self,
        clock: Clock,
        runtime: DeviceRuntime,
        timers: Sequence[DeviceTimer] = (),
        *,
        sm_clock_hz: Callable[[], float | None] | None = None,
    ) -> None:
        self.timing: Timing | None = None
        self._clock = clock
        self._now_ns = clock.now_ns
        self._runtime = runtime
        # The block may start a device.
        self._wait: Callable[[], None] = partial(wait_for_all, runtime)
        self._device_timers = timers
        self._sm_clock_hz = sm_clock_hz
        # None if the device was not in use when the block began.
        self._timers: Timers | None = None
        self._modules_count = 0
        self._waits_count: int | None = None
        self._blocks_count: int | None = None
        self._cpu_ns = self._start_ns = 0
        self._elsewhere = Elsewhere(clock)

    def __enter__(self) -> RangeTimer:
        """Wait for the device, then start."""
        self._runtime.synchronize()
        if self._device_timers and self._runtime.active():
            self._timers = Timers(self._device_timers, self._sm_clock_hz)
            self._wait = self._timers.watched(self._wait)
            for begin in self._timers.begins:
                begin()
        self._modules_count = len(sys.modules)
        self._waits_count = self._clock.waits_count()
        self._blocks_count = self._clock.blocks_count()
        self._cpu_ns = self._clock.thread_cpu_ns()
        self._start_ns = self._now_ns()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Wait for the device, then stop. An exception of the block passes through."""
        if kind is not None:
            return
        returned_ns = self._now_ns() - self._start_ns
        waits = (
            self._clock.waits_count() not in {None, self._waits_count}
            and self._clock.thread_cpu_ns() - self._cpu_ns
            < _MOSTLY_RUNNING * returned_ns
        )
        if self._timers is not None:
            for end in self._timers.ends:
                end()
        self._wait()
        elapsed_ns = self._now_ns() - self._start_ns
        clock_hz = None
        if self._timers is not None and self._timers.sm_clock_hz is not None:
            # Read at once, because the clock falls while the device is idle.
            clock_hz = self._timers.sm_clock_hz()
        loaded = len(sys.modules) != self._modules_count
        in_use = self._runtime.active()
        reading = Reading(
            wall_s=elapsed_ns / NS_PER_S,
            returned_s=returned_ns / NS_PER_S if in_use else None,
            clock_hz=clock_hz,
        )
        notes = [_LOADED_NOTE] if loaded else []
        # The wait for a device is part of a block.
        notes += self._elsewhere.left()
        if waits and not in_use:
            notes.append(_WAITS_NOTE)
            if uses_disk(self._clock, self._blocks_count, calls_count=1):
                notes.append(USES_DISK)
        self.timing = self._timing(reading, notes, in_use=in_use)

    def _timing(self, reading: Reading, notes: list[Note], *, in_use: bool) -> Timing:
        timers = self._timers
        if timers is None:
            chosen = counted_samples(((reading,),), (), {})
            if self._device_timers and in_use:
                notes.append(_STARTED_NOTE)
        else:
            timers.took(reading)
            timers.collect()
            unused = timers.unused()
            chosen = counted_samples(
                ((reading,),), timers.names, timers.refusals(), unused=unused
            )
        best, *slower_sources = chosen.sources
        returned_s = reading.returned_s
        return Timing(
            samples=chosen.values((reading,), best),
            source=best,
            other_samples={
                name: chosen.values((reading,), name) for name in slower_sources
            },
            returned=() if returned_s is None else (returned_s,),
            sm_clock_hz=None if chosen.unused else reading.clock_hz,
            unused=chosen.unused,
            notes=(*chosen.notes, *notes, *tracer_notes(self._clock)),
        )


_LOADED_NOTE = Note(
    code="loaded-modules",
    text="the block imported modules, which is part of its time",
)
_WAITS_NOTE = Note(
    code="waits",
    text="the block waited for most of its time (for I/O, a lock or a timer)",
)
_STARTED_NOTE = Note(
    code="started-device",
    text="the block was the first use of the device, so its time is the host's",
)


def _next_check(
    samplers: Sequence[CallSampler], timers: Timers, *, stop: StopRule, enough_s: float
) -> float:
    """
    Return the number of samples at which to ask the stop rule again, or infinity if
    enough.
    """
    chosen = _counted(samplers, timers)
    best, count = chosen.sources[0], len(samplers[0].readings)
    missing_count = _LEAST_SAMPLES - len(chosen.places)
    if missing_count > 0:
        return count + max(missing_count, int(count * _LATE_FRACTION))
    is_enough = all(
        stop.enough(chosen.values(sampler.readings, best))
        or sum(r.wall_s * r.calls_count for r in sampler.readings if not r.interrupted)
        >= enough_s
        for sampler in samplers
    )
    return inf if is_enough else int(count * _CHECK_GROWTH)


def _counted(
    samplers: Sequence[CallSampler], timers: Timers, *, ended: bool = False
) -> CountedSamples:
    """Return the sources and samples that count. `ended` means that sampling is over."""
    names: tuple[str, ...] = ()
    barred: dict[str, Void] = {}
    unused = False
    if any(map(_ON_DEVICE, samplers)):
        timers.collect()
        names = timers.names
        for sampler in samplers:
            barred |= sampler.barred
        if ended:
            unused = timers.unused()
            barred |= timers.refusals()
    interrupted = ended and any(
        map(_INTERRUPTED, chain.from_iterable(map(_READINGS, samplers)))
    )
    return counted_samples(
        [sampler.readings for sampler in samplers],
        names,
        barred,
        unused=unused,
        ended=ended,
        # Only asked if interrupted samples may have to count, because each answer takes
        # a system call.
        waited=interrupted and any(map(_WAITED, samplers)),
    )


def _least_count(round_ns: float, callables_count: int) -> int:
    """
    Return the minimum number of samples per callable.

    Args:
        round_ns: Time of one sample of each callable, with its setup and waiting [ns].

        callables_count: Number of callables.
    """
    if round_ns <= 0:
        return _LEAST_SAMPLES
    allowed_count = round(_LEAST_S * NS_PER_S * callables_count / round_ns)
    return max(_LEAST_SLOW_SAMPLES, min(_LEAST_SAMPLES, allowed_count))


def _is_over(
    samplers: Sequence[CallSampler], requests: Sequence[TimedCall], spent_ns: int
) -> bool:
    count, refused = len(samplers[0].readings), samplers[0].discarded_count
    if count >= _MOST_SAMPLES:
        return True
    least = _least_count(spent_ns / max(count + refused, 1), len(samplers))
    budget_ns = sum(request.budget_s for request in requests) * NS_PER_S
    hopeless = refused >= count + least
    return hopeless or (spent_ns >= budget_ns and count + refused >= least)


def _sample_by_turns(
    samplers: Sequence[CallSampler], order: Sequence[CallSampler]
) -> None:
    """Take a sample of all callables in the given order, and keep all samples or none."""
    __tracebackhide__ = True
    accepted = [*filter(None, map(CallSampler.sample, order))]
    if len(accepted) < len(samplers):
        for sampler in samplers:
            sampler.discarded_count += 1
        return
    for sampler, reading in zip(order, accepted, strict=True):
        sampler.accept(reading)


class _Sweeper:
    """
    Collects garbage when Python would, and counts that of the calls alone.

    Other code leaves garbage before a measurement. To collect it then would take as long
    as all other collections of a run with short tests, whose calls leave none. So the
    first sweep takes off what may be of other code, and may count too few objects.

    Args:
        now_ns: The clock.

        thresholds: The thresholds of garbage collection before the measurement.
    """

    def __init__(
        self, now_ns: Callable[[], int], thresholds: tuple[int, int, int]
    ) -> None:
        self._now_ns = now_ns
        self._young_due, self._older_due, _ = thresholds
        # Young objects of other code, or None after the first sweep. `gc.get_count` is
        # not their number: each older object that was freed makes it smaller.
        self._left_count: int | None = len(gc.get_objects(0))

    def __call__(self) -> tuple[int, int]:
        """Collect garbage if it is due, and return the time [ns] and the number of objects."""
        young_count, older_count, _ = gc.get_count()
        if young_count <= self._young_due:
            return 0, 0
        left_count, self._left_count = self._left_count, None
        is_older_due = left_count is None and older_count > self._older_due
        begun_ns = self._now_ns()
        found_count = gc.collect(1 if is_older_due else 0)
        took_ns = self._now_ns() - begun_ns
        if left_count is not None:
            found_count -= left_count
            gc.collect(1)  # Older garbage is not that of the calls.
        # Looking at objects that are no garbage is not a cost of the calls.
        return (took_ns, found_count) if found_count > _LEAST_GARBAGE else (0, 0)


def _cpu_clock_is_fine(clock: Clock) -> bool:
    begun_ns = clock.now_ns()
    steps = _steps_ns(clock.thread_cpu_ns)
    if not steps:
        # Both clocks stand still.
        return clock.now_ns() == begun_ns
    # A reading may cost more than a microsecond, and few readings see a tick.
    moves = 2 * len(steps) > _CLOCK_READINGS
    return moves or statistics.median_low(steps) <= _FINE_NS


def _steps_ns(now_ns: Callable[[], int]) -> list[int]:
    readings = [now_ns() for _ in range(_CLOCK_READINGS)]
    return [late - early for early, late in pairwise(readings) if late > early]
