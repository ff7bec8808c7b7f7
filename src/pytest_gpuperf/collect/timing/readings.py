"""The samples of a measurement by source, which samples count, and signs of device use.

A process keeps its context from the first test that uses the device to its end. Without
CUPTI, there are three signs that a test used the device: it requires a GPU, its arrays
lie on the device, or the device was still busy when the call returned. A call without
any of these signs may have used the device and waited for it, or not: this cannot be
known.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import reduce
from itertools import chain, islice
from operator import attrgetter, sub
from typing import Any

import msgspec

from pytest_gpuperf.collect.base import (
    DeviceTimer,
    Holding,
    Sequenced,
    TimedCall,
    Timing,
    Watching,
    Witness,
    members_of,
    unsettled,
)
from pytest_gpuperf.collect.clock import Clock
from pytest_gpuperf.collect.instrumentation import named
from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.record import INTERRUPTED, Note, Void
from pytest_gpuperf.model.sample import Source

# Fraction of the median SM clock of the set (docs/judging.md section 5).
_SLOW_CLOCK = 0.75
# The shortest time that each source resolves [ns]. CUPTI's clock ticks in nanoseconds,
# and cudaEventElapsedTime resolves "around 0.5 microseconds" (CUDA runtime API).
_RESOLUTION_NS: Mapping[str, int] = {Source.CUPTI: 1, Source.EVENTS: 500}
# A source that misses more than one sample in ten is left out.
_LEAST_TIMED = 0.9
# A thread that ran for less of a sample was interrupted (docs/judging.md section 5).
RUNNING_FRACTION = 0.97
# Half-width of the median's interval (docs/judging.md section 5).
HOST_PRECISION = 0.01
# With fewer samples, all of them count (docs/judging.md section 5).
LEAST_UNINTERRUPTED = 5
# Getters, because each item of a comprehension's function or a generator is a call.
_WALL_S, _CLOCK_HZ = attrgetter("wall_s"), attrgetter("clock_hz")
_INTERRUPTED = attrgetter("interrupted")


class Reading(msgspec.Struct):
    """
    One sample with its time by each source. Device times are filled in later.

    Attributes:
        wall_s: Time per call, from the call to the end of the waiting [s].

        returned_s: Time per call until it returned [s], or None if there was no wait.

        calls_count: Number of calls in the sample, >= 1.

        interrupted: Whether something else ran on the sample's processor.

        waited: Whether it was not interrupted, but waited (for I/O, a lock or a timer).

        cpu_s: Processor time per call [s], or None if interruptions cannot be detected.

        core_loop_s: Processor time, around the sample, of the loop that measures the
            speed of the core [s], or None if unknown.

        clock_hz: The SM clock right after the sample [Hz], or None if unknown.

        device_s: The device's time per call by source [s], with None for sources that
            could not time it.
    """

    wall_s: float
    returned_s: float | None = None
    calls_count: int = 1
    interrupted: bool = False
    waited: bool = False
    cpu_s: float | None = None
    core_loop_s: float | None = None
    clock_hz: float | None = None
    # msgspec gives each reading a dict of its own.
    device_s: dict[str, float | None] = {}


class Timers:
    """
    The device timers of one measurement, and the readings that await their times.

    Args:
        timers: The device timers, the best first.

        sm_clock_hz: Returns the SM clock now [Hz], or None if it is unknown. None if
            the clock cannot be read.
    """

    def __init__(
        self,
        timers: Sequence[DeviceTimer] = (),
        sm_clock_hz: Callable[[], float | None] | None = None,
    ) -> None:
        self.names: tuple[str, ...] = ()
        self.begins: tuple[Callable[[], object], ...] = ()
        self.ends: tuple[Callable[[], object], ...] = ()
        self.sm_clock_hz = sm_clock_hz
        self._timers = tuple(timers)
        self._holding: tuple[Holding, ...] = ()
        self._pending: list[Reading | None] = []
        for timer in timers:
            self.names += (timer.name,)
            # The first timer is the outermost, so that the work of the others is not in
            # its time.
            self.begins += (timer.begin,)
            self.ends = (timer.end, *self.ends)
            if isinstance(timer, Holding):
                self._holding += (timer,)
            # Drop the values that an earlier measurement left when it raised.
            timer.taken()
            timer.refusal()

    @property
    def resolution_ns(self) -> int:
        """The shortest time that every source resolves [ns]."""
        return max((resolution_of(name) for name in self.names), default=1)

    def watched(self, synchronize: Callable[[], None]) -> Callable[[], None]:
        """Return a wait that also detects device work that outlives a sample."""
        watching = [timer for timer in self._timers if isinstance(timer, Watching)]
        return reduce(lambda wait, timer: timer.watched(wait), watching, synchronize)

    def sequence(self) -> object:
        """Return the launches of the last call, or None if no timer sees launches."""
        for timer in self._timers:
            if isinstance(timer, Sequenced):
                return timer.sequence()
        return None

    def unused(self) -> bool:
        """Return True if a timer saw that the device did nothing in the set."""
        return any(
            timer.saw_nothing() for timer in self._timers if isinstance(timer, Witness)
        )

    def took(self, reading: Reading | None) -> None:
        """
        Register the reading of the last pair of begin and end, or None for a pair
        without a reading.

        Call it on an idle device, when nothing is timed, because a timer that holds
        many records is read now.
        """
        self._pending.append(reading)
        if any(timer.holds_much() for timer in self._holding):
            self.collect()

    def collect(self) -> None:
        """
        Write the timers' values into the pending readings, on an idle device.

        A nested measurement takes the timers over. The outer measurement then loses its
        device times, and its samples are untimed.
        """
        pending, self._pending = self._pending, []
        for timer in self._timers:
            values = timer.taken()
            if len(values) != len(pending):
                values = [None] * len(pending)
            for reading, value in zip(pending, values, strict=True):
                if reading is not None:
                    call_s = None if value is None else value / reading.calls_count
                    reading.device_s[timer.name] = call_s

    def refusals(self) -> dict[str, Void]:
        """Return the reasons for refused sources by name, and end the set."""
        voids = {timer.name: timer.refusal() for timer in self._timers}
        return {name: void for name, void in voids.items() if void is not None}


class CountedSamples(Frozen, frozen=True, kw_only=True):
    """
    The samples of a measurement that count, and the sources that have all of them.

    Attributes:
        sources: Names of the sources, the best first. The last is "host".

        places: Places of the samples that count.

        unused: Whether it is known that the device did nothing in them.

        by_cpu: Whether the host's time is that of the processor, because too few
            samples were not interrupted.

        notes: The samples and sources left out, with the reason.
    """

    sources: tuple[str, ...]
    places: tuple[int, ...]
    unused: bool = False
    by_cpu: bool = False
    notes: tuple[Note, ...] = ()

    def of(self, readings: Sequence[Reading]) -> Sequence[Reading]:
        """Return the readings of the samples that count."""
        if len(self.places) == len(readings):  # The usual case.
            return readings
        return [readings[place] for place in self.places]

    def values(self, readings: Sequence[Reading], source: str) -> tuple[float, ...]:
        """Return the samples of a source that count [s]."""
        counted = self.of(readings)
        # The usual case, and called often.
        if source == Source.HOST and not self.by_cpu:
            return tuple(map(_WALL_S, counted))
        values = (
            reading.cpu_s if source == Source.HOST else reading.device_s.get(source)
            for reading in counted
        )
        # No value is None here.
        return tuple(value for value in values if value is not None)


def resolution_of(source: str) -> int:
    """Return the shortest time that a device source resolves [ns]."""
    return _RESOLUTION_NS.get(source, 1)


def counted_samples(
    readings: Sequence[Sequence[Reading]],
    names: Sequence[str],
    barred: Mapping[str, Void],
    *,
    unused: bool = False,
    ended: bool = False,
    waited: bool = False,
) -> CountedSamples:
    """
    Choose the sources, and the samples that all sources have.

    A sample counts for all callables and sources or for none, so that only samples
    taken side by side are compared.

    Args:
        readings: The readings of each callable, equally many.

        names: The device's sources that ran, the best first.

        barred: The reasons why some sources must be left out, by name.

        unused: Whether the device did nothing in any of the samples. Its sources and
            its clock then have no values.

        ended: Whether sampling is over. Interrupted samples then count, by their
            processor time, if fewer than 5 others do.

        waited: Whether the calls gave the processor up by themselves. Their waiting is
            then part of their time.
    """
    count = len(readings[0])
    every = tuple(range(count))
    if unused:
        return CountedSamples(
            sources=(Source.HOST,), places=every, unused=True, notes=(_UNUSED,)
        )
    every_reading = [*chain.from_iterable(readings)]
    if not names and not (
        any(map(_INTERRUPTED, every_reading)) or any(map(_CLOCK_HZ, every_reading))
    ):
        # The usual case of a call without a device.
        return CountedSamples(sources=(Source.HOST,), places=every)
    slow = {place for series in readings for place in _slow_places(series)}
    interrupted = {
        place
        for series in readings
        for place, reading in enumerate(series)
        if reading.interrupted
    }
    few = ended and count - len(slow | interrupted) < LEAST_UNINTERRUPTED
    left_out = slow if few else slow | interrupted
    whole = [place for place in range(count) if place not in left_out]
    sources, places, notes = _timed_sources(readings, names, barred, whole)
    if slow:
        several = "samples were" if len(slow) > 1 else "sample was"
        text = (
            f"{len(slow)} {several} left out: the SM clock was below {_SLOW_CLOCK:.0%} of"
            " the median"
        )
        notes.append(Note(code="slow-clock", text=text))
    by_cpu = False
    if few and interrupted:
        is_known = all(r.cpu_s is not None for series in readings for r in series)
        by_cpu = is_known and not waited
        were = "were" if len(interrupted) > 1 else "was"
        text = (
            f"{len(interrupted)} of {count} samples {were} interrupted: the machine was"
            " busy"
        )
        if by_cpu:
            text += ", so the time is that of the processor"
        notes.append(Note(code=INTERRUPTED, text=text, doubt=True))
    return CountedSamples(
        sources=(*sources, Source.HOST),
        places=tuple(places),
        by_cpu=by_cpu,
        notes=tuple(notes),
    )


_UNUSED = Note(
    code="unused-device",
    text="the device did nothing: the time is the host's, and the roof is the CPU's",
)


def _timed_sources(
    readings: Sequence[Sequence[Reading]],
    names: Sequence[str],
    barred: Mapping[str, Void],
    places: Sequence[int],
) -> tuple[list[str], Sequence[int], list[Note]]:
    sources: list[str] = []
    notes = [
        Note(
            code=barred[name].code.value,
            text=f"{name} is left out: {barred[name].text}",
        )
        for name in names
        if name in barred
    ]
    for name in names:
        if name in barred:
            continue
        timed = [
            place
            for place in places
            if all(series[place].device_s.get(name) is not None for series in readings)
        ]
        count, timed_count = len(places), len(timed)
        is_used = timed_count > 0 and timed_count >= _LEAST_TIMED * count
        if timed_count < count:
            what = "these samples are left out" if is_used else f"{name} is not used"
            text = f"{name} could not time {count - timed_count} of {count} samples: {what}"
            notes.append(Note(code="untimed-samples", text=text))
        if is_used:
            sources.append(name)
            places = timed
    return sources, places, notes


def median_clock_hz(readings: Iterable[Reading]) -> float | None:
    """Return the median SM clock of some samples [Hz], or None if unknown."""
    clocks_hz = [r.clock_hz for r in readings if r.clock_hz is not None]
    return statistics.median(clocks_hz) if clocks_hz else None


def _slow_places(readings: Sequence[Reading]) -> list[int]:
    clocks_hz = [r.clock_hz for r in readings if r.clock_hz is not None]
    if not clocks_hz:
        return []
    least_hz = _SLOW_CLOCK * statistics.median(clocks_hz)
    return [
        place
        for place, reading in enumerate(readings)
        if reading.clock_hz is not None and reading.clock_hz < least_hz
    ]


def tracer_notes(clock: Clock) -> tuple[Note, ...]:
    """Return a note on tools that change the speed of all code now, or () if there are none."""
    conditions = clock.conditions()
    if not conditions:
        return ()
    names = named(conditions)
    text = f"{names}: part of the time, since it changes how fast all code runs"
    return (Note(code="tracer", text=text),)


# Waiting for an idle device takes 1.6 us, and 2.2 us while CUPTI records (H200, p95
# 2.5). A wait twenty times as long was work.
_WORKED_S = 50e-6
_HOST_MEMORY = frozenset({1, 3, 11})  # DLDeviceType: kDLCPU, kDLCUDAHost, kDLROCMHost.
# Members of a container that are inspected, as many as collect.base.unsettled waits
# for.
_MEMBERS = 64


def use_is_known(
    timing: Timing, needs: Sequence[str], request: TimedCall | None = None
) -> bool:
    """
    Return True if a measurement is known to have used, or not used, the device.

    Args:
        timing: The timing of the measurement.

        needs: The requirements and counters of the test, which all need a GPU.

        request: The call, or None for a block.

    References:
        DLDeviceType in dlpack.h 1.1; the `__cuda_array_interface__` protocol.
    """
    if timing.unused or Source.CUPTI in {timing.source, *timing.other_samples} or needs:
        return True
    # jax goes on computing after the call, and perhaps on the CPU.
    if timing.returned and not unsettled(timing.result):
        on_host = timing.source == Source.HOST
        walls = timing.samples if on_host else timing.other_samples.get(Source.HOST, ())
        if len(walls) == len(timing.returned):
            waits = map(sub, walls, timing.returned)
            if statistics.median(waits) * timing.iterations_count > _WORKED_S:
                return True
    values = [timing.result]
    if request is not None:
        values += [*request.args, *request.kwargs.values()]
        values += islice(request.inputs or (), _MEMBERS)
        for cell in getattr(request.fn, "__closure__", None) or ():
            # The variable may have no value yet.
            with suppress(ValueError):
                values.append(cell.cell_contents)
    return any(map(lies_on_device, values))


def lies_on_device(value: object) -> bool:
    """Return True for a device array, or for a tuple, list or dict with a device array."""
    return any(map(_is_device_array, (value, *members_of(value, _MEMBERS))))


def _is_device_array(value: Any) -> bool:  # noqa: ANN401 - any framework's array
    kind = type(value)
    if not hasattr(kind, "__dlpack_device__"):
        return hasattr(kind, "__cuda_array_interface__")
    try:
        return int(value.__dlpack_device__()[0]) not in _HOST_MEMORY
    except Exception:  # noqa: BLE001 - a framework may raise what it likes: not known
        return False
