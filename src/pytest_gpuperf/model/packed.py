"""The values of a metric in several sessions, packed."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, islice, repeat
from operator import attrgetter, getitem
from struct import Struct
from types import MappingProxyType
from typing import TypeVar, overload

from pytest_gpuperf.model.frozen import with_checked
from pytest_gpuperf.model.record import SessionValue
from pytest_gpuperf.model.sample import CoreSpeed

# What the sessions of a measurement usually share.
_SHARED = attrgetter(
    *("metric", "unit", "source", "better", "quantiles", "series"),
    *("alone_values", "alone_cores", "suspected", "accepted"),
)
_RUNS, _INTERRUPTED = attrgetter("run_values"), attrgetter("interrupted")
_WIDTHS, _CLOCKS = attrgetter("half_widths"), attrgetter("sm_clocks_hz")
_CORES = attrgetter("cores")
_LOOP, _SLOPE = attrgetter("loop_s"), attrgetter("slope")
_PRECISION = attrgetter("precision")
# What a session without half-widths, clocks or cores has in their columns. A record holds no
# such number.
_MISSING = math.nan
_MISSING_CORE = CoreSpeed(loop_s=_MISSING, slope=_MISSING, precision=_MISSING)
_NO_NUMBERS: array[float] = array("d")
_NO_CORES = (_NO_NUMBERS, _NO_NUMBERS, _NO_NUMBERS)
_NOTHING_ODD: Mapping[int, SessionValue] = MappingProxyType({})
_T = TypeVar("_T")


@lru_cache(maxsize=64)
def packing(count: int) -> Struct:
    """
    Return what packs some floats.

    An array takes twice as long to be made of a list, because it calls a function for each
    number.
    """
    return Struct(f"{count}d")


# Many series have the same.
_FLAGS: dict[bytes, bytes] = {}
# So have they what their sessions share: one record keeps it for all of them.
_LIKES: dict[tuple[object, ...], SessionValue] = {}
_MOST_LIKES = 1024  # Series that share nothing must not be kept for ever.


class SessionValues(Sequence[SessionValue]):
    """
    The values of a metric in several sessions, packed.

    The number of a session takes 8 bytes, and a rule reads those of all sessions at once.
    As records they would take 300. A record is made when it is asked for.

    Attributes:
        runs: The values of all processes, session by session [unit].

        cores: The loop [s], slope and precision of each process, or three times nothing.
            They are NaN for the processes of a session without them.

        interrupted: Whether the samples of each session were interrupted, as a byte.

        counts: The number of processes of each session, or None if each has one.

        odd: By place, the values that are kept as records: those of sessions that also
            measured the test alone, or that share less with the others than usual.
    """

    __slots__ = (
        *("_clocks", "_like", "_widths"),
        *("cores", "counts", "interrupted", "odd", "runs"),
    )

    def __init__(self, like: SessionValue | None, runs: Sequence[float]) -> None:
        self._like, self.runs = like, runs
        self.cores = _NO_CORES
        self._widths = self._clocks = b""
        self.interrupted, self.odd = b"", _NOTHING_ODD
        self.counts: tuple[int, ...] | None = None

    @classmethod
    def of(cls, values: Sequence[SessionValue]) -> SessionValues:
        """Pack values, unless they are packed already."""
        if type(values) is cls:
            return values
        if not values:
            return cls(None, _NO_NUMBERS)
        runs = [*map(_RUNS, values)]
        counts = [*map(len, runs)]
        flat = [*chain.from_iterable(runs)]
        # A whole number, of a count, may be larger than a float can be exact.
        is_usual = {float}.issuperset(map(type, flat))
        packed = cls(values[0], array("d", flat) if is_usual else flat)
        if len(flat) > len(values):
            packed.counts = tuple(counts)
        interrupted = bytes(map(_INTERRUPTED, values))
        packed.interrupted = _FLAGS.setdefault(interrupted, interrupted)
        shared = [*map(_SHARED, values)]
        if values[0].alone_values or shared.count(shared[0]) < len(shared):
            packed._keep_odd(values)
        elif len(_LIKES) < _MOST_LIKES:
            packed._like = _LIKES.setdefault(shared[0], values[0])
        widths, clocks = [*map(_WIDTHS, values)], [*map(_CLOCKS, values)]
        if any(widths) or any(clocks):
            packed._keep_columns(values, widths, clocks, counts)
        cores = [*map(_CORES, values)]
        if any(cores):
            # Without a call in the usual case.
            several = [*chain.from_iterable(cores)]
            if [*map(len, cores)] != counts:
                several = _flat(cores, counts, _MISSING_CORE)
            packed.cores = (
                array("d", map(_LOOP, several)),
                array("d", map(_SLOPE, several)),
                array("d", map(_PRECISION, several)),
            )
        return packed

    def _keep_odd(self, values: Sequence[SessionValue]) -> None:
        like = next((v for v in values if not v.alone_values), values[0])
        usual = _SHARED(like)
        self._like = like
        self.odd = {
            place: value
            for place, value in enumerate(values)
            if value.alone_values or _SHARED(value) != usual
        }

    def _keep_columns(
        self,
        values: Sequence[SessionValue],
        widths: list[tuple[float, ...]],
        clocks: list[tuple[float, ...]],
        counts: Sequence[int],
    ) -> None:
        for place, several in enumerate(widths):
            if len(several) not in {0, counts[place]}:  # Of some processes.
                self.odd = {**self.odd, place: values[place]}
                widths[place] = ()
        self._widths = array("d", _flat(widths, counts, _MISSING)).tobytes()
        self._clocks = array("d", _flat(clocks, counts, _MISSING)).tobytes()

    def run_values(self) -> list[tuple[float, ...]]:
        """Return the values of the processes of each session."""
        if self.counts is None:
            return [*zip(self.runs)]
        rest = iter(self.runs)
        return [tuple(islice(rest, count)) for count in self.counts]

    def with_runs(
        self, runs: Sequence[float], alone: Mapping[int, tuple[float, ...]]
    ) -> SessionValues:
        """
        Return the sessions with other values.

        Args:
            runs: The value of each process, as `runs` has them.

            alone: The values of the test alone that change, by place.
        """
        packed = array("d", packing(len(runs)).pack(*runs))
        changed = SessionValues(self._like, packed)
        changed._widths, changed._clocks = self._widths, self._clocks
        changed.cores = self.cores
        changed.interrupted, changed.counts = self.interrupted, self.counts
        if self.odd:
            several, odd = changed.run_values(), self.odd.items()
            copies = with_checked(
                self.odd.values(),
                run_values=[several[place] for place in self.odd],
                alone_values=[alone.get(p, value.alone_values) for p, value in odd],
            )
            changed.odd = dict(zip(self.odd, copies, strict=True))
        return changed

    def __len__(self) -> int:
        """Return the number of sessions."""
        return len(self.interrupted)

    @overload
    def __getitem__(self, place: int) -> SessionValue: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[SessionValue, ...]: ...
    def __getitem__(
        self, place: int | slice
    ) -> SessionValue | tuple[SessionValue, ...]:
        """Return the value of a session, or of several."""
        return tuple(self)[place]

    def __iter__(self) -> Iterator[SessionValue]:
        """Make the value of each session."""
        packed = (array("d", column) for column in (self._widths, self._clocks))
        columns = [self.runs, *packed, *self.cores]
        counts = self.counts or repeat(1)
        end = 0
        for place, (interrupted, count) in enumerate(
            zip(self.interrupted, counts, strict=False)
        ):
            start, end = end, end + count
            if place in self.odd:
                yield self.odd[place]
                continue
            # Without a generator, whose steps are calls.
            parts = map(getitem, columns, repeat(slice(start, end)))
            runs, widths, clocks, *cores = map(tuple, parts)
            yield from with_checked(
                [self._like] if self._like is not None else [],
                run_values=[runs],
                half_widths=[_known(widths)],
                sm_clocks_hz=[_known(clocks)],
                cores=[tuple(map(_core, *map(_known, cores)))],
                interrupted=[bool(interrupted)],
            )

    def __eq__(self, other: object) -> bool:
        """Return True for equal values in the same order, packed or not."""
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        """Return the hash of the values."""
        return hash(tuple(self))


def _flat(
    several: Sequence[Sequence[_T]], counts: Sequence[int], missing: _T
) -> list[_T]:
    """Return the numbers of all processes, or nothing if no session has them."""
    if not any(several):
        return []
    whole = [some or (missing,) * n for some, n in zip(several, counts, strict=True)]
    return [*chain.from_iterable(whole)]


def _known(numbers: tuple[float, ...]) -> tuple[float, ...]:
    """Return the numbers of a session, or none if they are missing."""
    return () if numbers and math.isnan(numbers[0]) else numbers


def _core(loop_s: float, slope: float, precision: float) -> CoreSpeed:
    return CoreSpeed(loop_s=loop_s, slope=slope, precision=precision)
