"""The samples of a measurement by source, which of them count, and whether they saw it.

A process keeps its context from the first test that uses the device to its end. Without
CUPTI, that a test used it shows in what it asks for, in where its arrays lie, and in a
device that goes on when the call has returned. A call that has none of these may have used
the device and waited for it, or not: nobody can tell.
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
from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.record import Note, Void

__all__ = [
    "HOST",
    "Reading",
    "Sieve",
    "Timers",
    "lies_on_device",
    "median_clock_hz",
    "resolution_of",
    "sieve",
    "use_is_known",
]

HOST = "host"
_SLOW_CLOCK = 0.75  # docs/judging.md section 5: of the median SM clock of the set
# how short a time each source can tell from none [ns]; CUPTI's clock ticks in
# nanoseconds, cudaEventElapsedTime resolves "around 0.5 microseconds" (CUDA runtime API)
_RESOLUTION_NS: Mapping[str, int] = {"cupti": 1, "events": 500}
_LEAST_TIMED = 0.9  # a source that misses more than one sample in ten is left out


class Reading(msgspec.Struct):
    """
    One sample, by every source; those of the device come in later.

    Attributes:
        wall_s: Call to the end of the waiting, of a call [s].

        returned_s: Until the call returned, of a call [s]; None: nothing was waited for.

        calls_count: Calls in it, >= 1.

        clock_hz: The SM clock right after it [Hz]; None: not known.

        device_s: The device's time of a call by source [s]; None: it could not be timed.
    """

    wall_s: float
    returned_s: float | None = None
    calls_count: int = 1
    clock_hz: float | None = None
    device_s: dict[str, float | None] = {}  # each gets one of its own


class Timers:
    """
    The device timers of one measurement, and whose samples they have taken.

    Args:
        timers: The best first.

        sm_clock_hz: Returns the SM clock now [Hz], None where it is not known; None:
            nobody can say.
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
        self._holding = tuple(each for each in timers if isinstance(each, Holding))
        self._pending: list[Reading | None] = []
        for timer in timers:  # what an earlier measurement left when it raised
            timer.taken()
            timer.refusal()

    @property
    def resolution_ns(self) -> int:
        """The shortest time that every source can tell from none [ns]."""
        return max((resolution_of(name) for name in self.names), default=1)

    def watched(self, synchronize: Callable[[], None]) -> Callable[[], None]:
        """Return a wait for the device in which timers see if it outlives a sample."""
        watching = [timer for timer in self._timers if isinstance(timer, Watching)]
        return reduce(lambda wait, timer: timer.watched(wait), watching, synchronize)

    def sequence(self) -> object:
        """Return what the last call launched; None: nobody sees it."""
        for timer in self._timers:
            if isinstance(timer, Sequenced):
                return timer.sequence()
        return None

    def unused(self) -> bool:
        """Return whether a timer knows that the device did nothing in the set."""
        return any(
            timer.saw_nothing() for timer in self._timers if isinstance(timer, Witness)
        )

    def took(self, reading: Reading | None) -> None:
        """
        Say for which reading the last pair of begin and end was; None: for none.

        To be said on an idle device, when nothing is timed: what a timer holds too much
        of is read now.
        """
        self._pending.append(reading)
        if any(timer.holds_much() for timer in self._holding):
            self.collect()

    def collect(self) -> None:
        """
        Put what the timers have by now into the readings, on an idle device.

        A measurement inside a callable that is being measured takes the timers over: what
        they took of the outer one is lost, and its samples are untimed.
        """
        pending, self._pending = self._pending, []
        for timer in self._timers:
            values = timer.taken()
            if len(values) != len(pending):
                values = [None] * len(pending)
            for reading, value in zip(pending, values, strict=True):
                if reading is not None:
                    known = None if value is None else value / reading.calls_count
                    reading.device_s[timer.name] = known

    def refusals(self) -> dict[str, Void]:
        """Return why sources must be left out, by name; this ends the set."""
        found = {timer.name: timer.refusal() for timer in self._timers}
        return {name: void for name, void in found.items() if void is not None}


class Sieve(Frozen, frozen=True, kw_only=True):
    """
    Which samples of a measurement count, and by which sources.

    Attributes:
        sources: Names, the best first; the last is "host".

        kept: Places of the samples that count.

        unused: Whether it is known that the device did nothing in them.

        notes: What was left out, and why.
    """

    sources: tuple[str, ...]
    kept: tuple[int, ...]
    unused: bool = False
    notes: tuple[Note, ...] = ()

    def values(self, readings: Sequence[Reading], source: str) -> tuple[float, ...]:
        """Return the samples of one source that count [s]."""
        found = (_value(readings[place], source) for place in self.kept)
        return tuple(value for value in found if value is not None)  # all of them are


def resolution_of(source: str) -> int:
    """Return the shortest time that a source of the device can tell from none [ns]."""
    return _RESOLUTION_NS.get(source, 1)


def sieve(
    lanes: Sequence[Sequence[Reading]],
    names: Sequence[str],
    barred: Mapping[str, Void],
    *,
    unused: bool = False,
) -> Sieve:
    """
    Choose the sources, and the samples that all of them have.

    A sample counts in all lanes or in none, and for all sources or for none, so that what
    is compared was taken side by side.

    Args:
        lanes: The readings of each callable, equally many.

        names: The device's sources that ran, the best first.

        barred: Why some of them must be left out.

        unused: Whether the device did nothing in any of them: then its own sources have
            nothing to say, and nor has its clock.
    """
    if unused:
        everything = tuple(range(len(lanes[0])))
        return Sieve(sources=(HOST,), kept=everything, unused=True, notes=(_UNUSED,))
    slow = {place for readings in lanes for place in _slow_places(readings)}
    notes = [
        Note(
            code=barred[name].code.value,
            text=f"{name} is left out: {barred[name].text}",
        )
        for name in names
        if name in barred
    ]
    sources: list[str] = []
    kept = [place for place in range(len(lanes[0])) if place not in slow]
    for name in names:
        if name in barred:
            continue
        timed = [p for p in kept if all(_value(r[p], name) is not None for r in lanes)]
        if len(timed) < len(kept):
            notes.append(_untimed_note(name, len(kept) - len(timed), len(kept)))
        if timed and len(timed) >= _LEAST_TIMED * len(kept):
            sources.append(name)
            kept = timed
    if slow:
        notes.append(_slow_note(len(slow)))
    return Sieve(sources=(*sources, HOST), kept=tuple(kept), notes=tuple(notes))


_UNUSED = Note(
    code="unused-device",
    text="the device did nothing in it: its time is the host's, and its roof the CPU's",
)


def _value(reading: Reading, source: str) -> float | None:
    """Return a sample by one source [s]; None: it could not time it."""
    return reading.wall_s if source == HOST else reading.device_s.get(source)


def median_clock_hz(readings: Iterable[Reading]) -> float | None:
    """Return the usual SM clock of some samples [Hz]; None: nobody read it."""
    clocks_hz = [r.clock_hz for r in readings if r.clock_hz is not None]
    return statistics.median(clocks_hz) if clocks_hz else None


def _slow_places(readings: Sequence[Reading]) -> list[int]:
    """Return the places of samples whose SM clock is far below the others'."""
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
    what = "it is left out" if left_out else "these samples are left out"
    text = f"{name} could not time {missing_count} of {count} samples: {what}"
    return Note(code="untimed-samples", text=text)


def _slow_note(count: int) -> Note:
    """Return a note on samples that were taken at a low clock."""
    several = "samples were" if count > 1 else "sample was"
    text = (
        f"{count} {several} taken at an SM clock below {_SLOW_CLOCK:.0%} of the others'"
        " median and left out"
    )
    return Note(code="slow-clock", text=text)


_CUPTI, _HOST = "cupti", "host"
# Waiting for an idle device takes some 5 us (*unverified on hardware*): what is ten times
# as long was work
_WORKED_S = 50e-6
_HOST_MEMORY = frozenset({1, 3, 11})  # DLDeviceType: kDLCPU, kDLCUDAHost, kDLROCMHost
_MEMBERS = 64  # of a container: as many as are waited for (collect.base.unsettled)


def use_is_known(
    timing: Timing, needs: Sequence[str], request: TimedCall | None = None
) -> bool:
    """
    Return whether it is known if a measurement used the device that is in use.

    Args:
        timing: What was measured.

        needs: What the test requires, and asks to be counted: all of it is a GPU's.

        request: What was called; None: a block was measured.

    References:
        DLDeviceType in dlpack.h 1.1; the `__cuda_array_interface__` protocol.
    """
    if timing.unused or _CUPTI in {timing.source, *timing.others} or needs:
        return True
    given = () if request is None else _given(request)
    return _went_on(timing) or any(map(lies_on_device, (timing.result, *given)))


def lies_on_device(value: object) -> bool:
    """Return whether a value, or a member of a tuple, list or dict, is a device's array."""
    members: Iterable[object] = (value,)
    if isinstance(value, (tuple, list)):
        members = value[:_MEMBERS]
    elif isinstance(value, dict):
        members = islice(value.values(), _MEMBERS)
    return any(map(_is_device_array, members))


def _is_device_array(value: Any) -> bool:  # noqa: ANN401 - any framework's array
    """Return whether a value says that its memory is a device's."""
    kind = type(value)
    if not hasattr(kind, "__dlpack_device__"):
        return hasattr(kind, "__cuda_array_interface__")
    try:
        return int(value.__dlpack_device__()[0]) not in _HOST_MEMORY
    except Exception:  # noqa: BLE001 - a framework may raise what it likes: not known
        return False


def _given(request: TimedCall) -> Iterator[object]:
    """Yield what a function works on, as far as it can be seen from outside."""
    yield from request.args
    yield from request.kwargs.values()
    yield from islice(request.inputs or (), _MEMBERS)
    yield from _enclosed(request.fn)


def _enclosed(fn: Callable[..., object]) -> Iterator[object]:
    """Yield the variables that a function has from those around it."""
    for cell in getattr(fn, "__closure__", None) or ():
        try:
            yield cell.cell_contents
        except ValueError:  # a name that has no value yet
            continue


def _went_on(timing: Timing) -> bool:
    """Return whether the device usually went on when the call had returned."""
    if unsettled(timing.result):
        return False  # jax computes on, and perhaps on the CPU
    walls = timing.samples if timing.source == _HOST else timing.others.get(_HOST, ())
    if not timing.returned or len(walls) != len(timing.returned):
        return False
    waits = (wall - back for wall, back in zip(walls, timing.returned, strict=True))
    return statistics.median(waits) * timing.iterations_count > _WORKED_S
