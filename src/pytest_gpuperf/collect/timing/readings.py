"""The samples of a measurement by source, and which of them count."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce

import msgspec

from pytest_gpuperf.collect.base import (
    DeviceTimer,
    Holding,
    Sequenced,
    Watching,
    Witness,
)
from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.record import Note, Void

__all__ = [
    "HOST",
    "Reading",
    "Sieve",
    "Timers",
    "median_clock_hz",
    "resolution_of",
    "sieve",
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
        Note(code=barred[name].code, text=f"{name} is left out: {barred[name].text}")
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
