"""Readings of GPUs from the printed lines of a tool: rows, times and omitted lines."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timezone
from itertools import groupby
from typing import Any, NamedTuple, Protocol

from pytest_gpuperf.errors import CaptureFormatError
from pytest_gpuperf.model.frozen import Frozen, replace
from pytest_gpuperf.model.telemetry import CanonicalRecord, GpuKey

LeftOut = dict[str, list[str]]  # The omitted items and their positions, by reason.
# Limit of the listed mistakes of a text, and of the positions listed for a reason.
_MOST_LISTED = 20
_MOST_QUOTED = 100  # Characters of a line.
_CUT = "the last line has no line end, so it may be cut and is left out"
_GLUED = "rows that were cut before a tool was started again, left out"
_LEAST_HEAD = 10  # Characters of a header, by which it is found behind a cut row.
_MOST_HEADS = 100
_ABOVE, _BELOW = "lines above the rows, left out", "lines below the rows, left out"
GOES_BACK = "times go back, so rows may be of several machines"
_BETWEEN = "lines between two outputs of the tool, left out"

# A number with or without a unit, a time, or an absent value, as [N/A].
_VALUE = re.compile(
    r"[-+]?\d[\d.,:/-]*(?:e[-+]?\d+)?(?: [\d:.,]+)?(?:\s?[%A-Za-z/]{1,5})?"
    r"|\[?n/a\]?|nan|-|\[(?:not supported|unknown error|insufficient permissions)\]",
    re.IGNORECASE,
)

_DAY_S = 86_400.0
_MONTHS = (
    *("Jan", "Feb", "Mar", "Apr", "May", "Jun"),
    *("Jul", "Aug", "Sep", "Oct", "Nov", "Dec"),
)
# As `ts` and `date` write it: `%.s`, ISO 8601, with a named month, or the time alone. A
# small number in brackets or with a colon is the process that a launcher names (srun -l).
_STAMP = re.compile(
    rf"""\[?(?:
    (?:(?P<year>\d{{4}})[-/]?(?P<month>\d\d)[-/]?(?P<day>\d\d)(?:T|\s+)
      |(?:[A-Z][a-z]{{2}},?\s+)?(?P<named>{"|".join(_MONTHS)})\s+(?P<date>\d\d?)\s+)?
    (?P<hour>\d\d?):(?P<minute>[0-5]\d):(?P<second>[0-6]\d(?:[.,]\d+)?)
    (?:\s?(?P<zone>Z|[+-]\d\d:?\d\d))?(?:\s(?:[A-Z]{{3,4}}\s)?(?P<last>\d{{4}})(?!\d))?
    |(?P<unix>\d{{9,}}(?:\.\d+)?|\d+\.\d+|(?<!\[)\d+(?=\s|$))
    )\]?(?=:?(?:\s|$))""",
    re.VERBOSE,
)


class Moment(Frozen, frozen=True, kw_only=True):
    """
    A time on two clocks.

    Attributes:
        monotonic_s: Time on a clock that never goes back [s].

        unix_s: Time since 1970 [s].
    """

    monotonic_s: float
    unix_s: float

    def after(self, elapsed_s: float) -> Moment:
        """Return the moment `elapsed_s` seconds later."""
        return Moment(
            monotonic_s=self.monotonic_s + elapsed_s, unix_s=self.unix_s + elapsed_s
        )


class Telemetry(Frozen, frozen=True, kw_only=True):
    """
    The records of a text.

    Attributes:
        records: In the order of the text.

        model_names: The product names by GPU, if the text has them.

        notes: One sentence for each reason to leave something out.
    """

    records: tuple[CanonicalRecord, ...]
    model_names: Mapping[GpuKey, str]
    notes: tuple[str, ...]


def record_at(
    moment: Moment, gpu: GpuKey, values: Mapping[str, Any]
) -> CanonicalRecord:
    """Return a record of readings by name."""
    hostname, gpu_index, gpu_uuid = gpu
    return CanonicalRecord(
        hostname=hostname,
        gpu_index=gpu_index,
        gpu_uuid=gpu_uuid,
        monotonic_s=moment.monotonic_s,
        unix_s=moment.unix_s,
        **values,
    )


def sentences(left_out: LeftOut) -> tuple[str, ...]:
    """Return a sentence for each reason to leave something out."""
    return tuple(
        f"{reason}: {_listed(items, ', ')}" for reason, items in left_out.items()
    )


def excerpt(line: str) -> str:
    """Return the beginning of a line for a message."""
    return repr(line.strip()[:_MOST_QUOTED])


class LineReader(Protocol):
    """The reader of one tool's lines."""

    def take(self, line: str, where: str) -> bool:
        """
        Read a line at a position, and return True for a row, False for a header or comment.

        Raises:
            ValueError: The line is none of these.

            csv.Error: The line is not CSV.
        """
        ...

    def is_data(self, line: str) -> bool:
        """Return True if a line that cannot be read has values, as no message of a tool."""
        ...


def read_lines(text: str, reader: LineReader, *, path: str, remedy: str) -> LeftOut:
    """
    Pass the lines of a tool's output to a reader.

    Tools print warnings above their first row and errors below the last one, and a loop
    prints a date between two outputs. Such lines are left out, unless they have values. A
    last line without a line end may be cut and
    is left out, too, as is a row that was cut and goes on with the header of the next run.

    Args:
        text: The output.

        reader: Reads the lines in order.

        path: The name of the text, for the message.

        remedy: The remedy for lines that cannot be read.

    Returns:
        The lines that are left out, by reason.

    Raises:
        CaptureFormatError: Lines with values or between two rows cannot be read, or there
            is no row. The message lists the first 20 lines. Or the only row has no line
            end.
    """
    # Unlike str.splitlines, no character inside of a label ends a line.
    *lines, cut = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    left_out: LeftOut = {}
    rows: list[int] = []
    unread = _Unread()
    heads: set[str] = set()
    for number, line in enumerate(map(str.strip, lines), 1):
        where = f"line {number}"
        try:
            if reader.take(line, where):
                rows.append(number)
                unread.end_row()
            elif line in heads:
                unread.end_output()
            elif len(line) >= _LEAST_HEAD and len(heads) < _MOST_HEADS:
                heads.add(line)
        except (ValueError, csv.Error) as error:
            head = max(filter(line.endswith, heads), key=len, default=None)
            if head is None:
                fault = _Fault(number, line, str(error), is_data=reader.is_data(line))
                unread.faults.append(fault)
                continue
            reader.take(head, where)
            row = excerpt(line.removesuffix(head))
            left_out.setdefault(_GLUED, []).append(f"{row} ({where})")
    faults = unread.faults
    _refuse(faults, rows, path=path, remedy=remedy)
    if cut.strip():
        where = f"line {len(lines) + 1}"
        if not rows and reader.is_data(cut.strip()):
            message = f"its only row has no line end, so it may be cut: {excerpt(cut)}"
            remedy = "if the row is whole, add the line end: echo >> FILE"
            raise CaptureFormatError(message, remedy=remedy, path=path)
        left_out[_CUT] = [f"{excerpt(cut)} ({where})"]
    above = [fault for fault in faults if fault.number < rows[0]]
    below = [fault for fault in faults if fault.number > rows[-1]]
    for reason, found in ((_ABOVE, above), (_BETWEEN, unread.between), (_BELOW, below)):
        left_out |= _message(reason, found)
    return left_out


class _Fault(NamedTuple):
    """A line that cannot be read: its number, its text, why, and whether it has values."""

    number: int
    line: str
    message: str
    is_data: bool


@dataclass(slots=True, kw_only=True)
class _Unread:
    """
    The lines that a reader cannot read.

    Attributes:
        faults: Lines that may be a mistake.

        between: Lines between the last row of an output and the header of the next one.
    """

    faults: list[_Fault] = field(default_factory=list)
    between: list[_Fault] = field(default_factory=list)
    # The number of faults above the last row.
    above_count: int = 0

    def end_row(self) -> None:
        """Keep the lines above a row as faults."""
        self.above_count = len(self.faults)

    def end_output(self) -> None:
        """Move the lines below the last row, unless they have other values than a time."""
        below = self.faults[self.above_count :]
        if not any(fault.is_data and not _is_time(fault.line) for fault in below):
            self.between += below
            del self.faults[self.above_count :]


def _is_time(line: str) -> bool:
    stamp, rest = split_stamp(line)
    return bool(stamp) and not rest


def _refuse(
    faults: Sequence[_Fault], rows: Sequence[int], *, path: str, remedy: str
) -> None:
    mistakes = [
        f"line {fault.number}: {fault.message}"
        for fault in faults
        if fault.is_data or not rows or rows[0] < fault.number < rows[-1]
    ]
    if mistakes:
        raise CaptureFormatError(_listed(mistakes, "; "), remedy=remedy, path=path)


def has_values(cells: Sequence[str], count: int) -> bool:
    """
    Return True if cells are those of a row, and not the words of a message.

    Args:
        cells: The cells of a line.

        count: The number of columns. In such a number of cells, one value is enough.
            Otherwise most of the cells must be values.
    """
    values = sum(_VALUE.fullmatch(cell.strip()) is not None for cell in cells)
    return values > 0 and (len(cells) == count or 2 * values > len(cells))


def _message(reason: str, faults: Sequence[_Fault]) -> LeftOut:
    """Quote the first line of a tool's message, and count the others."""
    if not faults:
        return {}
    first, *rest = faults
    more = [f"and {len(rest)} more"] if rest else []
    return {reason: [f"{excerpt(first.line)} (line {first.number})", *more]}


def _listed(items: Sequence[str], separator: str) -> str:
    more = len(items) - _MOST_LISTED
    rest = [f"and {more} more"] if more > 0 else []
    return separator.join([*items[:_MOST_LISTED], *rest])


def split_stamp(line: str) -> tuple[str, str]:
    """Return the time at the beginning of a line, "" without one, and the rest."""
    match = _STAMP.match(line)
    if match is None:
        return "", line
    return match[0], line[match.end() :].lstrip(": \t")


@dataclass(slots=True, kw_only=True)
class Times:
    """
    The moments of the rows of a text.

    Attributes:
        start: The moment of the first row.

        interval_s: The time between two rows of a GPU without a time [s].
    """

    start: Moment
    interval_s: float
    first_s: float | None = None
    previous_s: float = 0.0
    # Whether the last time is earlier than the one before.
    went_back: bool = False
    # Added to times without a day or year after each midnight or New Year's Eve.
    turned_s: float = 0.0
    leaps: bool = False
    is_whole: bool = True

    def of_row(self, number: int) -> Moment:
        """Return the moment of a row without a time, given the number of rows before."""
        return self.start.after(number * self.interval_s)

    def of_stamp(self, text: str) -> Moment:
        """
        Return the moment of a row from the time at the row. Without a zone, UTC is assumed.

        Raises:
            ValueError: The text is not a time.
        """
        match = _STAMP.fullmatch(text)
        if match is None:
            message = f"{text!r} is not a time as 2025/03/01 12:00:00.000"
            raise ValueError(message)
        stamp_s, period_s = self._seconds(match)
        stamp_s += self.turned_s
        if period_s and stamp_s < self.previous_s - period_s / 2:
            self.turned_s += period_s
            stamp_s += period_s
        self.went_back = self.first_s is not None and stamp_s < self.previous_s
        self.previous_s = stamp_s
        self.is_whole = self.is_whole and stamp_s.is_integer()
        if self.first_s is None:
            self.first_s = stamp_s
        moment = self.start.after(stamp_s - self.first_s)
        return moment if period_s else replace(moment, unix_s=stamp_s)

    def _seconds(self, match: re.Match[str]) -> tuple[float, float]:
        """Return a time [s] and the period of repetition [s], or 0 without repetition."""
        if match["unix"]:
            return float(match["unix"]), 0.0
        time_s = int(match["hour"]) * 3600.0 + int(match["minute"]) * 60.0
        time_s += float(match["second"].replace(",", "."))
        month, day = match["month"], match["day"] or match["date"]
        if match["named"]:
            month = _MONTHS.index(match["named"]) + 1
        if not month:
            return time_s, _DAY_S
        year = int(match["year"] or match["last"] or 0)
        if not year:
            self.leaps = self.leaps or (int(month), int(day)) == (2, 29)
            begin = date(2000 if self.leaps else 2001, 1, 1)
            days = date(begin.year, int(month), int(day)) - begin
            return days.total_seconds() + time_s, _DAY_S * (366 if self.leaps else 365)
        midnight = datetime(year, int(month), int(day), tzinfo=timezone.utc)
        zone, zone_s = match["zone"], 0.0
        if zone and zone != "Z":
            zone_s = int(zone[:3]) * 3600.0 + int(zone[0] + zone[-2:]) * 60.0
        return midnight.timestamp() + time_s - zone_s, 0.0

    def apart(self, records: Sequence[CanonicalRecord]) -> tuple[CanonicalRecord, ...]:
        """
        Return the records, with readings of the same second spread evenly over the second.

        `ts` and `nvidia-smi dmon` write whole seconds, and a tool may read more often.

        Args:
            records: In the order of the text.
        """
        if self.first_s is None or not self.is_whole:
            return tuple(records)
        times: dict[GpuKey, list[tuple[int, CanonicalRecord]]] = {}
        for place, record in enumerate(records):
            times.setdefault(record.gpu, []).append((place, record))
        spread = list(records)
        for readings in times.values():
            for _, group in groupby(readings, key=lambda pair: pair[1].monotonic_s):
                together = list(group)
                for number, (place, record) in enumerate(together[1:], 1):
                    later_s = number / len(together)
                    spread[place] = replace(
                        record,
                        monotonic_s=record.monotonic_s + later_s,
                        unix_s=record.unix_s + later_s,
                    )
        return tuple(spread)
