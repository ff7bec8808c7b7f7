"""The values of a metric in several sessions, packed."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, chain, islice, repeat
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
_T = TypeVar("_T")
# Packed floats, or other numbers.
_Column: TypeAlias = "bytes | tuple[float, ...]"
# How many numbers each column has, and the packed numbers of all: half-widths, clocks, and
# three of the cores.
_Columns: TypeAlias = "tuple[tuple[int, ...], bytes]"
_NO_COLUMNS: _Columns = (0, 0, 0, 0, 0), b""
# What many series share.
_FLAGS: dict[bytes, bytes] = {}
_LENGTHS: dict[tuple[int, ...], tuple[int, ...]] = {}

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

    __slots__ = (
        *("_columns", "_lengths", "_like", "_runs"),
        *("counts", "interrupted", "odd"),
    )

    def __init__(
        self,
        like: SessionValue | None,
        runs: _Column,
        columns: _Columns,
        *,
        interrupted: bytes = b"",
        counts: tuple[int, ...] | None = None,
    ) -> None:
        self._like, self._runs = like, runs
        self._lengths, self._columns = columns
        self.interrupted, self.counts = interrupted, counts
        self.odd = _NOTHING_ODD

    @classmethod
    def of(cls, values: Sequence[SessionValue]) -> SessionValues:
        """Pack values, unless they are packed already."""
        if isinstance(values, cls):
            return values
        if not values:
            return cls(None, b"", _NO_COLUMNS)
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
        interrupted = bytes(map(_INTERRUPTED, values))
        packed = cls(
            like,
            _packed([*chain.from_iterable(runs)]),
            _joined(
                _flat(widths, counts, _MISSING),
                _flat([*map(_CLOCKS, values)], counts, _MISSING),
                *[[*map(number, cores)] for number in _OF_CORE],
            ),
            interrupted=_FLAGS.setdefault(interrupted, interrupted),
            counts=None if len(counts) == sum(counts) else tuple(counts),
        )
        if odd:
            packed.odd = odd
        return packed

    @property
    def runs(self) -> Sequence[float]:
        """The values of all processes, session by session [unit]."""
        return _numbers(self._runs)

    @property
    def cores(self) -> tuple[Sequence[float], Sequence[float], Sequence[float]]:
        """
        The loop [s], slope and precision of each process, or three times nothing.

        They are NaN for the processes of a session without them.
        """
        _, _, loops, slopes, precisions = _apart(self._lengths, self._columns)
        return loops, slopes, precisions

    def run_values(self) -> list[tuple[float, ...]]:
        """Return the values of the processes of each session."""
        runs = self.runs
        if self.counts is None:
            return [*zip(runs)]
        rest = iter(runs)
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
        changed = SessionValues(
            self._like,
            _packed(runs),
            (self._lengths, self._columns),
            interrupted=self.interrupted,
            counts=self.counts,
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
        columns = [self.runs, *_apart(self._lengths, self._columns)]
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


def _packed(numbers: Sequence[float]) -> _Column:
    # A whole number, of a count, may be larger than a float can be exact.
    is_usual = {float}.issuperset(map(type, numbers))
    return array("d", numbers).tobytes() if is_usual else tuple(numbers)


def _numbers(column: _Column) -> Sequence[float]:
    return array("d", column) if isinstance(column, bytes) else column


def _joined(*columns: Sequence[float]) -> _Columns:
    """Pack columns of one length, of which some have no numbers."""
    lengths = tuple(map(len, columns))
    return _LENGTHS.setdefault(lengths, lengths), array(
        "d", chain.from_iterable(columns)
    ).tobytes()


def _apart(lengths: tuple[int, ...], columns: bytes) -> list[Sequence[float]]:
    numbers = array("d", columns)
    ends = accumulate(lengths)
    return [
        numbers[end - length : end] for end, length in zip(ends, lengths, strict=True)
    ]


def _flat(
    several: Sequence[Sequence[_T]], counts: Sequence[int], missing: _T
) -> Sequence[_T]:
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
