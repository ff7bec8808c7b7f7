"""What `dcgmi dmon` prints, as records, and what any text of telemetry has.

References:
    dcgmi/DeviceMonitor.cpp of DCGM 3.3: the lines, and that the rows of a GPU's instances
    stand below its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_gpuperf.collect.translate.dcgm_fields import (
    Field,
    field_named,
    number,
    readings,
)
from pytest_gpuperf.errors import CaptureFormatError
from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.telemetry import CanonicalRecord

__all__ = [
    "LeftOut",
    "Moment",
    "Telemetry",
    "dmon_records",
    "record_at",
    "refuse_mistakes",
    "sentences",
]

LeftOut = dict[str, list[str]]  # why -> what and where
_MOST_TOLD = 20  # mistakes of a text, and places of a reason; who has more starts over
_STOPPED = "dmon was stopped"  # its last line after Ctrl-C
_ROW = re.compile(
    r"(?:(?P<stamp>\d+(?:\.\d+)?)\s+)?"
    r"(?P<kind>[A-Za-z][\w-]*)\s+(?P<id>\d+)(?P<values>(?:\s.*)?)"
)


class Moment(Frozen, frozen=True, kw_only=True):
    """
    One time by two clocks.

    Attributes:
        monotonic_s: By a clock that never goes back [s].

        unix_s: Since 1970 [s].
    """

    monotonic_s: float
    unix_s: float

    def after(self, elapsed_s: float) -> Moment:
        """Return the moment so many seconds later."""
        return Moment(
            monotonic_s=self.monotonic_s + elapsed_s, unix_s=self.unix_s + elapsed_s
        )


class Telemetry(Frozen, frozen=True, kw_only=True):
    """
    What a text says of GPUs.

    Attributes:
        records: In the order of the text.

        model_names: The products' names, by GPU index, where the text gives them.

        notes: One sentence for each thing that was left out.
    """

    records: tuple[CanonicalRecord, ...]
    model_names: Mapping[int, str]
    notes: tuple[str, ...]


def dmon_records(
    text: str,
    *,
    start: Moment,
    interval_s: float,
    fields: Sequence[str] | None = None,
    uuids: Mapping[int, str] | None = None,
    path: str = "dcgmi dmon",
) -> Telemetry:
    """
    Return the records of what `dcgmi dmon` printed.

    Args:
        text: Its lines, whole or cut. A row may begin with the time it was read, in
            seconds since 1970, as `ts %.s` writes it; then that is its time.

        start: When the first rows were read, where they do not say it.

        interval_s: From the rows of a GPU to its next [s].

        fields: Numbers or names of the fields that were asked for, in order; by default
            the text's own header says them.

        uuids: The GPUs' names for life, by index.

        path: What the text is, for the message.

    Returns:
        One record for each row of a GPU, or of an instance of one: that has the GPU's
        uuid with its own name behind it.

    Raises:
        CaptureFormatError: Lines that are none of dmon's, all of them by number.
    """
    reader = _Dmon(start=start, interval_s=interval_s, uuids=uuids or {})
    if fields is not None:
        reader.take_header(fields)
    for line_number, line in enumerate(text.splitlines(), 1):
        reader.take(line_number, line.strip())
    refuse_mistakes(reader.mistakes, path)
    return Telemetry(
        records=tuple(reader.records), model_names={}, notes=sentences(reader.left_out)
    )


def record_at(
    moment: Moment, gpu_index: int, gpu_uuid: str, found: Mapping[str, Any]
) -> CanonicalRecord:
    """Return a record of readings by name."""
    return CanonicalRecord(
        gpu_index=gpu_index,
        gpu_uuid=gpu_uuid,
        monotonic_s=moment.monotonic_s,
        unix_s=moment.unix_s,
        **found,
    )


def sentences(left_out: LeftOut) -> tuple[str, ...]:
    """Return what was left out, one sentence for each reason."""
    return tuple(f"{reason}: {_told(them, ', ')}" for reason, them in left_out.items())


def refuse_mistakes(mistakes: Sequence[str], path: str) -> None:
    """
    Refuse a text with lines that cannot be read.

    Raises:
        CaptureFormatError: There are such lines; they are all told, up to a bound.
    """
    if not mistakes:
        return
    raise CaptureFormatError(
        _told(mistakes, "; "),
        remedy="give what dcgmi dmon or dcgm-exporter printed, unchanged",
        path=path,
    )


@dataclass(slots=True, kw_only=True)
class _Dmon:
    """A reader of dmon's lines, one after the other."""

    start: Moment
    interval_s: float
    uuids: Mapping[int, str]
    columns: list[Field | None] | None = None
    records: list[CanonicalRecord] = field(default_factory=list)
    mistakes: list[str] = field(default_factory=list)
    left_out: LeftOut = field(default_factory=dict)
    tick: int = 0
    seen: set[tuple[str, int]] = field(default_factory=set)
    gpu_index: int | None = None  # of the GPU whose row was the last
    first_stamp_s: float | None = None

    def take_header(self, names: Iterable[str]) -> None:
        """Take the names of the columns."""
        self.columns = [field_named(name) for name in names]

    def take(self, line_number: int, line: str) -> None:
        """Take a line."""
        words = line.lstrip("#").split()
        if not words or line.startswith(_STOPPED):
            return
        if line.startswith("#"):
            if words[0].lower() == "entity":  # any other is a remark
                self.take_header(words[1:])
        elif words[0].lower() != "id":  # the line of the units
            try:
                self._take_row(f"line {line_number}", line)
            except ValueError as error:
                self.mistakes.append(f"line {line_number}: {error}")

    def _take_row(self, where: str, line: str) -> None:
        """
        Take a row of values.

        Raises:
            ValueError: It is none; the text says why.
        """
        match = _ROW.fullmatch(line)
        if match is None:
            message = f"{line[:60]!r} is no entity and its values"
            raise ValueError(message)
        kind, words = match["kind"], match["values"].split()
        if self.columns is None:
            message = "values without a header above them"
            raise ValueError(message)
        if len(words) > len(self.columns):
            message = f"{len(words)} values under {len(self.columns)} names"
            raise ValueError(message)
        entity = kind, int(match["id"])
        if entity in self.seen:
            self.tick += 1
            self.seen.clear()
            self.gpu_index = None
        self.seen.add(entity)
        if kind == "GPU":
            self.gpu_index = entity[1]
        if self.gpu_index is None or not kind.startswith("GPU"):
            reason = "of no GPU, or of one that the text does not tell"
            self.left_out.setdefault(reason, []).append(f"{kind} {entity[1]} ({where})")
            return
        uuid = self.uuids.get(self.gpu_index, "")
        found, notes = readings(
            {
                column: number(word)
                for column, word in zip(self.columns, words, strict=False)
                if column is not None
            }
        )
        for note in notes:
            self.left_out.setdefault(note, []).append(f"GPU {self.gpu_index} ({where})")
        self.records.append(
            record_at(
                self._moment(match["stamp"]),
                self.gpu_index,
                uuid if kind == "GPU" else f"{uuid}/{kind}{entity[1]}",
                found,
            )
        )

    def _moment(self, stamp: str | None) -> Moment:
        """Return when a row was read."""
        if stamp is None:
            return self.start.after(self.tick * self.interval_s)
        stamp_s = float(stamp)
        if self.first_stamp_s is None:
            self.first_stamp_s = stamp_s
        elapsed_s = stamp_s - self.first_stamp_s
        return Moment(monotonic_s=self.start.monotonic_s + elapsed_s, unix_s=stamp_s)


def _told(them: Sequence[str], between: str) -> str:
    """Return the first few of many, and how many more there are."""
    more = len(them) - _MOST_TOLD
    told = [*them[:_MOST_TOLD], *([f"and {more} more"] if more > 0 else [])]
    return between.join(told)
