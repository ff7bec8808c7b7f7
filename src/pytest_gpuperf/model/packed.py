"""The values of a metric in several sessions, packed."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice, repeat
from operator import attrgetter
from types import MappingProxyType
from typing import TypeAlias, TypeVar, overload

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
_OF_CORE = (attrgetter("loop_s"), attrgetter("slope"), attrgetter("precision"))
# Of a process whose session lacks a column. A record holds no such number.
_MISSING = math.nan
_MISSING_CORE = CoreSpeed(loop_s=_MISSING, slope=_MISSING, precision=_MISSING)
_NO_COLUMN = b""
_T = TypeVar("_T")
# Packed floats, or other numbers.
_Column: TypeAlias = "bytes | tuple[float, ...]"

_NOTHING_ODD: Mapping[int, SessionValue] = MappingProxyType({})


class SessionValues(Sequence[SessionValue]):
    """
    The values of a metric in several sessions, packed.

    The number of a session takes 8 bytes, and a rule reads those of all sessions at once.
    As records they would take 300. A record is made when it is asked for.

    Attributes:
        interrupted: Whether the samples of each session were interrupted, as a byte.

        counts: The number of processes of each session, or None if each has one.

        odd: By place, the values that are kept as records: those of sessions that also
            measured the test alone, or that share less with the others than usual.
    """

    __slots__ = ("_columns", "_like", "counts", "interrupted", "odd")

    def __init__(
        self,
        like: SessionValue | None,
        interrupted: bytes,
        counts: tuple[int, ...] | None,
        columns: tuple[_Column, ...],
        odd: Mapping[int, SessionValue],
    ) -> None:
        self._like, self.interrupted = like, interrupted
        self._columns = columns  # Values, half-widths, clocks, and three of the cores.
        self.counts, self.odd = counts, odd

    @classmethod
    def of(cls, values: Sequence[SessionValue]) -> SessionValues:
        """Pack values, unless they are packed already."""
        if isinstance(values, cls):
            return values
        if not values:
            return cls(None, b"", None, (_NO_COLUMN,) * 6, _NOTHING_ODD)
        runs = [*map(_RUNS, values)]
        counts = [*map(len, runs)]
        shared = [*map(_SHARED, values)]
        like = values[0]
        odd: dict[int, SessionValue] = {}
        if like.alone_values or shared.count(shared[0]) < len(shared):
            like = next((v for v in values if not v.alone_values), like)
            usual = _SHARED(like)
            odd = {
                place: value
                for place, value in enumerate(values)
                if value.alone_values or shared[place] != usual
            }
        widths = [*map(_WIDTHS, values)]
        for place, several in enumerate(widths):
            if len(several) not in {0, counts[place]}:
                odd[place] = values[place]
                widths[place] = ()
        cores = _flat([*map(_CORES, values)], counts, _MISSING_CORE)
        return cls(
            like,
            bytes(map(_INTERRUPTED, values)),
            None if len(counts) == sum(counts) else tuple(counts),
            (
                _packed(chain.from_iterable(runs)),
                _packed(_flat(widths, counts, _MISSING)),
                _packed(_flat([*map(_CLOCKS, values)], counts, _MISSING)),
                *[_packed(map(number, cores)) for number in _OF_CORE],
            ),
            odd or _NOTHING_ODD,
        )

    @property
    def runs(self) -> Sequence[float]:
        """The values of all processes, session by session [unit]."""
        return _numbers(self._columns[0])

    @property
    def cores(self) -> tuple[Sequence[float], Sequence[float], Sequence[float]]:
        """
        The loop [s], slope and precision of each process, or three times nothing.

        They are NaN for the processes of a session without them.
        """
        _, _, _, loops, slopes, precisions = self._columns
        return _numbers(loops), _numbers(slopes), _numbers(precisions)

    def run_values(self) -> list[tuple[float, ...]]:
        """Return the values of the processes of each session."""
        runs = self.runs
        if self.counts is None:
            return [*zip(runs)]
        rest = iter(runs)
        return [tuple(islice(rest, count)) for count in self.counts]

    def with_runs(
        self, runs: Iterable[float], alone: Mapping[int, tuple[float, ...]]
    ) -> SessionValues:
        """
        Return the sessions with other values.

        Args:
            runs: The value of each process, as `runs` has them.

            alone: The values of the test alone that change, by place.
        """
        changed = SessionValues(
            self._like,
            self.interrupted,
            self.counts,
            (_packed(runs), *self._columns[1:]),
            _NOTHING_ODD,
        )
        if self.odd:
            several = changed.run_values()
            odd = self.odd.items()
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
        columns = [*map(_numbers, self._columns)]
        counts = self.counts or repeat(1)
        end = 0
        for place, (interrupted, count) in enumerate(
            zip(self.interrupted, counts, strict=False)
        ):
            start, end = end, end + count
            if place in self.odd:
                yield self.odd[place]
                continue
            runs, widths, clocks, *cores = (tuple(c[start:end]) for c in columns)
            (value,) = with_checked(
                [self._like] if self._like is not None else [],
                run_values=[runs],
                half_widths=[_known(widths)],
                sm_clocks_hz=[_known(clocks)],
                cores=[tuple(map(_core, *map(_known, cores)))],
                interrupted=[bool(interrupted)],
            )
            yield value

    def __eq__(self, other: object) -> bool:
        """Return True for equal values in the same order, packed or not."""
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        """Return the hash of the values."""
        return hash(tuple(self))

    def __repr__(self) -> str:
        """Return the values, for messages."""
        return repr(tuple(self))


def _packed(numbers: Iterable[float]) -> _Column:
    several = [*numbers]
    # A whole number, of a count, may be larger than a float can be exact.
    is_usual = {float}.issuperset(map(type, several))
    return array("d", several).tobytes() if is_usual else tuple(several)


def _numbers(column: _Column) -> Sequence[float]:
    return array("d", column) if isinstance(column, bytes) else column


def _flat(
    several: Sequence[Sequence[_T]], counts: Sequence[int], missing: _T
) -> Iterable[_T]:
    """Return the numbers of all processes, or nothing if no session has them."""
    lengths = [*map(len, several)]
    if lengths == counts:  # Either of the two is usual.
        return [*chain.from_iterable(several)]
    if not any(lengths):
        return ()
    whole = (some or (missing,) * n for some, n in zip(several, counts, strict=True))
    return [*chain.from_iterable(whole)]


def _known(numbers: tuple[float, ...]) -> tuple[float, ...]:
    """Return the numbers of a session, or none if they are missing."""
    return () if numbers and math.isnan(numbers[0]) else numbers


def _core(loop_s: float, slope: float, precision: float) -> CoreSpeed:
    return CoreSpeed(loop_s=loop_s, slope=slope, precision=precision)
