"""The samples of a measurement by source, which samples count, and signs of device use.

A process keeps its context from the first test that uses the device to its end. Without
CUPTI, the signs that this test used it: it requires a GPU, its arrays lie on the device,
or the device was still busy when the call returned. A call with none of these may have
used the device and waited for it, or not: it cannot be known.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import islice
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
    unsettled,
)
from pytest_gpuperf.collect.clock import Clock
from pytest_gpuperf.collect.instrumentation import named
from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.record import Note, Void
from pytest_gpuperf.model.sample import Source

__all__ = [
    "HOST_PRECISION",
    "LEAST_UNINTERRUPTED",
    "RUNNING_FRACTION",
    "CountedSamples",
    "Reading",
    "Timers",
    "counted_samples",
    "lies_on_device",
    "median_clock_hz",
    "resolution_of",
    "tracer_notes",
    "use_is_known",
]

_SLOW_CLOCK = 0.75  # docs/judging.md section 5: of the median SM clock of the set
# the shortest time that each source resolves [ns]; CUPTI's clock ticks in
# nanoseconds, cudaEventElapsedTime resolves "around 0.5 microseconds" (CUDA runtime API)
_RESOLUTION_NS: Mapping[str, int] = {Source.CUPTI: 1, Source.EVENTS: 500}
_LEAST_TIMED = 0.9  # a source that misses more than one sample in ten is left out
# docs/judging.md section 5: a thread that ran for less of a sample was interrupted
RUNNING_FRACTION = 0.97
HOST_PRECISION = 0.01  # likewise: half-width of the median's interval
LEAST_UNINTERRUPTED = 5  # likewise: with fewer, all samples count


class Reading(msgspec.Struct):
    """
    One sample with its time by each source; device times are filled in later.

    Attributes:
        wall_s: Call to the end of the waiting, of a call [s].

        returned_s: Until the call returned, of a call [s]; None: there was no wait.

        calls_count: Calls in it, >= 1.

        interrupted: Whether something else ran on its processor meanwhile.

        waited: Whether it was not, but waited (for I/O, a lock or a timer).

        cpu_s: Processor time of a call [s]; None: interruptions cannot be told.

        core_loop_s: Processor time of the loop that tells the core's speed, beside it [s];
            None: not known.

        clock_hz: The SM clock right after it [Hz]; None: not known.

        device_s: The device's time of a call by source [s]; None: it could not be timed.
    """

    wall_s: float
    returned_s: float | None = None
    calls_count: int = 1
    interrupted: bool = False
    waited: bool = False
    cpu_s: float | None = None
    core_loop_s: float | None = None
    clock_hz: float | None = None
    device_s: dict[str, float | None] = {}  # each gets one of its own


class Timers:
    """
    The device timers of one measurement, and the readings that await their times.

    Args:
        timers: The best first.

        sm_clock_hz: Returns the SM clock now [Hz], or None where it is not known; None:
            the clock cannot be read.
    """

    def __init__(
        self,
        timers: Sequence[DeviceTimer] = (),
        sm_clock_hz: Callable[[], float | None] | None = None,
    ) -> None:
        self.names = tuple(timer.name for timer in timers)
        # the first is the outermost, so that the others' own work is not in its time
        self.begins = tuple(timer.begin for timer in timers)
        self.ends = tuple(timer.end for timer in reversed(timers))
        self.sm_clock_hz = sm_clock_hz
        self._timers = tuple(timers)
        self._holding = tuple(timer for timer in timers if isinstance(timer, Holding))
        self._pending: list[Reading | None] = []
        for timer in timers:  # what an earlier measurement left when it raised
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
        """Return what the last call launched; None: no timer sees it."""
        for timer in self._timers:
            if isinstance(timer, Sequenced):
                return timer.sequence()
        return None

    def unused(self) -> bool:
        """Return whether a timer saw that the device did nothing in the set."""
        return any(
            timer.saw_nothing() for timer in self._timers if isinstance(timer, Witness)
        )

    def took(self, reading: Reading | None) -> None:
        """
        Register the reading of the last pair of begin and end; None: it has no reading.

        Call it on an idle device, when nothing is timed: a timer that holds many records
        is read now.
        """
        self._pending.append(reading)
        if any(timer.holds_much() for timer in self._holding):
            self.collect()

    def collect(self) -> None:
        """
        Write the timers' values into the pending readings, on an idle device.

        A nested measurement takes the timers over: the outer one loses its device times,
        and its samples are untimed.
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
        """Return why sources are refused, by name; this ends the set."""
        voids = {timer.name: timer.refusal() for timer in self._timers}
        return {name: void for name, void in voids.items() if void is not None}


class CountedSamples(Frozen, frozen=True, kw_only=True):
    """
    The samples of a measurement that count, and the sources that have all of them.

    Attributes:
        sources: Names, the best first; the last is "host".

        places: Places of the samples that count.

        unused: Whether it is known that the device did nothing in them.

        by_cpu: Whether the host's time is that of the processor: too few samples were
            not interrupted.

        notes: The samples and sources left out, with the reason.
    """

    sources: tuple[str, ...]
    places: tuple[int, ...]
    unused: bool = False
    by_cpu: bool = False
    notes: tuple[Note, ...] = ()

    def values(self, readings: Sequence[Reading], source: str) -> tuple[float, ...]:
        """Return the samples of one source that count [s]."""
        counted = [readings[place] for place in self.places]
        if source == Source.HOST and not self.by_cpu:  # nearly always, and often asked
            return tuple([reading.wall_s for reading in counted])
        values = (
            reading.cpu_s if source == Source.HOST else reading.device_s.get(source)
            for reading in counted
        )
        return tuple(value for value in values if value is not None)  # all of them are


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
    Choose the sources, and the samples that all of them have.

    A sample counts for all callables and sources or for none, so that what is compared
    was taken side by side.

    Args:
        readings: The readings of each callable, equally many.

        names: The device's sources that ran, the best first.

        barred: Why some of them must be left out.

        unused: Whether the device did nothing in any of them: then its sources and its
            clock have no values.

        ended: Whether sampling is over: then interrupted samples count where fewer than
            5 others do, by their processor time.

        waited: Whether the calls gave the processor up by themselves: then what they
            waited for is part of their time.
    """
    if unused:
        every = tuple(range(len(readings[0])))
        return CountedSamples(
            sources=(Source.HOST,), places=every, unused=True, notes=(_UNUSED,)
        )
    count = len(readings[0])
    slow = {place for series in readings for place in _slow_places(series)}
    interrupted = {
        place for place in range(count) if any(s[place].interrupted for s in readings)
    }
    few = ended and count - len(slow | interrupted) < LEAST_UNINTERRUPTED
    left_out = slow if few else slow | interrupted
    whole = [place for place in range(count) if place not in left_out]
    sources, places, notes = _timed_sources(readings, names, barred, whole)
    if slow:
        notes.append(_slow_note(len(slow)))
    by_cpu = False
    if few and interrupted:
        is_known = all(r.cpu_s is not None for series in readings for r in series)
        by_cpu = is_known and not waited
        notes.append(_interrupted_note(len(interrupted), count, by_cpu=by_cpu))
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
    """Return the sources that count, the samples that all of them timed, and notes."""
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
        timed = _timed_places(readings, name, places)
        if len(timed) < len(places):
            notes.append(_untimed_note(name, len(places) - len(timed), len(places)))
        if timed and len(timed) >= _LEAST_TIMED * len(places):
            sources.append(name)
            places = timed
    return sources, places, notes


def _timed_places(
    readings: Sequence[Sequence[Reading]], source: str, places: Sequence[int]
) -> list[int]:
    """Return the places of the samples that a device's source timed of all callables."""
    return [
        place
        for place in places
        if all(series[place].device_s.get(source) is not None for series in readings)
    ]


def median_clock_hz(readings: Iterable[Reading]) -> float | None:
    """Return the median SM clock of some samples [Hz]; None: it was not read."""
    clocks_hz = [r.clock_hz for r in readings if r.clock_hz is not None]
    return statistics.median(clocks_hz) if clocks_hz else None


def _slow_places(readings: Sequence[Reading]) -> list[int]:
    """Return the places of samples whose SM clock is far below the median."""
    clocks_hz = [r.clock_hz for r in readings if r.clock_hz is not None]
    if not clocks_hz:
        return []
    least_hz = _SLOW_CLOCK * statistics.median(clocks_hz)
    return [
        place
        for place, reading in enumerate(readings)
        if reading.clock_hz is not None and reading.clock_hz < least_hz
    ]


def _untimed_note(name: str, missing_count: int, count: int) -> Note:
    """Return a note on samples that a source could not time."""
    left_out = count - missing_count < _LEAST_TIMED * count or missing_count == count
    what = f"{name} is not used" if left_out else "these samples are left out"
    text = f"{name} could not time {missing_count} of {count} samples: {what}"
    return Note(code="untimed-samples", text=text)


def _slow_note(count: int) -> Note:
    """Return a note on samples left out for a low clock."""
    several = "samples were" if count > 1 else "sample was"
    text = (
        f"{count} {several} left out: the SM clock was below {_SLOW_CLOCK:.0%} of the"
        " median"
    )
    return Note(code="slow-clock", text=text)


def _interrupted_note(interrupted_count: int, count: int, *, by_cpu: bool) -> Note:
    """Return a note on interrupted samples that count for want of others."""
    were = "were" if interrupted_count > 1 else "was"
    text = f"{interrupted_count} of {count} samples {were} interrupted: the machine was busy"
    if by_cpu:
        text += ", so the time is that of the processor"
    return Note(code="interrupted", text=text, doubt=True)


def tracer_notes(clock: Clock) -> tuple[Note, ...]:
    """Return a note on what changes how fast all code runs now; empty: nothing does."""
    conditions = clock.conditions()
    if not conditions:
        return ()
    names = named(conditions)
    text = f"{names}: part of the time, since it changes how fast all code runs"
    return (Note(code="tracer", text=text),)


# Waiting for an idle device takes 1.6 us, and 2.2 us while CUPTI records (H200, p95 2.5):
# a wait twenty times as long was work
_WORKED_S = 50e-6
_HOST_MEMORY = frozenset({1, 3, 11})  # DLDeviceType: kDLCPU, kDLCUDAHost, kDLROCMHost
_MEMBERS = 64  # of a container: as many as are waited for (collect.base.unsettled)


def use_is_known(
    timing: Timing, needs: Sequence[str], request: TimedCall | None = None
) -> bool:
    """
    Return whether it is known if a measurement used the device in use.

    Args:
        timing: What was measured.

        needs: The requirements and counters of the test: each of them needs a GPU.

        request: The call; None: a block was measured.

    References:
        DLDeviceType in dlpack.h 1.1; the `__cuda_array_interface__` protocol.
    """
    if timing.unused or Source.CUPTI in {timing.source, *timing.other_samples} or needs:
        return True
    inputs = () if request is None else _call_inputs(request)
    return _went_on(timing) or any(map(lies_on_device, (timing.result, *inputs)))


def lies_on_device(value: object) -> bool:
    """Return whether a value, or a member of a tuple, list or dict, is a device array."""
    members: Iterable[object] = (value,)
    if isinstance(value, (tuple, list)):
        members = value[:_MEMBERS]
    elif isinstance(value, dict):
        members = islice(value.values(), _MEMBERS)
    return any(map(_is_device_array, members))


def _is_device_array(value: Any) -> bool:  # noqa: ANN401 - any framework's array
    """Return whether an array's own protocol places it on a device."""
    kind = type(value)
    if not hasattr(kind, "__dlpack_device__"):
        return hasattr(kind, "__cuda_array_interface__")
    try:
        return int(value.__dlpack_device__()[0]) not in _HOST_MEMORY
    except Exception:  # noqa: BLE001 - a framework may raise what it likes: not known
        return False


def _call_inputs(request: TimedCall) -> Iterator[object]:
    """Yield the arguments, inputs and closure variables of a call."""
    yield from request.args
    yield from request.kwargs.values()
    yield from islice(request.inputs or (), _MEMBERS)
    yield from _enclosed(request.fn)


def _enclosed(fn: Callable[..., object]) -> Iterator[object]:
    """Yield the closure variables of a function."""
    for cell in getattr(fn, "__closure__", None) or ():
        try:
            yield cell.cell_contents
        except ValueError:  # a name that has no value yet
            continue


def _went_on(timing: Timing) -> bool:
    """Return whether the device was usually still busy when the call returned."""
    if unsettled(timing.result):
        return False  # jax computes on, and perhaps on the CPU
    walls = (
        timing.samples
        if timing.source == Source.HOST
        else timing.other_samples.get(Source.HOST, ())
    )
    if not timing.returned or len(walls) != len(timing.returned):
        return False
    waits = (wall - back for wall, back in zip(walls, timing.returned, strict=True))
    return statistics.median(waits) * timing.iterations_count > _WORKED_S
