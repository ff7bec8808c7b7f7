"""Readings of DCGM's text outputs."""

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
    "exporter_records",
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
            message = f"{line[:60]!r} is not an entity and its values"
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


_SERIES = re.compile(
    r"(?P<name>[A-Za-z_:][\w:]*)\s*(?:\{(?P<labels>.*)\})?\s*"
    r"(?P<value>[^\s{}]+)(?:\s+(?P<stamp>-?\d+(?:\.\d+)?))?"
)
_LABEL = re.compile(r'\s*(\w+)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|$)')
_ESCAPES = {r"\n": "\n", r"\"": '"', r"\\": "\\"}
_DEVICE = re.compile(r"nvidia(\d+)")


def exporter_records(
    text: str, *, start: Moment, path: str = "dcgm-exporter"
) -> Telemetry:
    """
    Return the records of what dcgm-exporter, or whoever kept its lines, printed.

    Args:
        text: In the text format of Prometheus or OpenMetrics.

        start: When it was read. A line with a time of its own is a record of that time,
            and `start` is the time of the text's first.

        path: What the text is, for the message.

    Returns:
        One record for each GPU, instance and time.

    Raises:
        CaptureFormatError: Lines of no such format, all of them by number.
    """
    mistakes: list[str] = []
    left_out: LeftOut = {}
    entities: dict[_Entity, _Gathered] = {}
    model_names: dict[int, str] = {}
    for line_number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            series = _Series.read(line.strip())
        except ValueError as error:
            mistakes.append(f"line {line_number}: {error}")
            continue
        if series.field is None:
            continue
        entity = series.entity()
        where = f"{series.field.names[0]} (line {line_number})"
        if entity is None:
            left_out.setdefault("no label says which GPU it is of", []).append(where)
            continue
        if "modelName" in series.labels:
            model_names[entity.gpu_index] = series.labels["modelName"]
        gathered = entities.setdefault(entity, _Gathered())
        gathered.take(series.field, series.value)
    refuse_mistakes(mistakes, path)
    return _gathered_records(entities, start, model_names, left_out)


class _Entity(Frozen, frozen=True, kw_only=True):
    """A GPU or an instance of it, at one time."""

    gpu_index: int
    gpu_uuid: str
    stamp_s: float | None


@dataclass(slots=True, kw_only=True)
class _Gathered:
    """The values of one entity; a field that two lines give differently has none."""

    values: dict[Field, float | None] = field(default_factory=dict)
    disputed: set[Field] = field(default_factory=set)

    def take(self, of: Field, value: float | None) -> None:
        """Take a value; the same twice, as for two pods on one GPU, is one."""
        known = self.values.get(of)
        if known is not None and value is not None and known != value:
            self.disputed.add(of)
        one = value if known is None else known
        self.values[of] = None if of in self.disputed else one


class _Series(Frozen, frozen=True, kw_only=True):
    """One line of the exporter."""

    field: Field | None
    labels: Mapping[str, str]
    value: float | None
    stamp_s: float | None

    @classmethod
    def read(cls, line: str) -> _Series:
        """
        Return what a line says.

        Raises:
            ValueError: It is none; the text says why.
        """
        match = _SERIES.fullmatch(line)
        if match is None:
            message = f"{line[:60]!r} is not a name, labels and value"
            raise ValueError(message)
        try:
            float(match["value"])
        except ValueError:
            message = f"{match['value'][:60]!r} is not a number"
            raise ValueError(message) from None
        stamp = match["stamp"]
        # Prometheus writes whole milliseconds, OpenMetrics seconds with a point
        per_s = 1.0 if stamp and "." in stamp else 1000.0
        name = match["name"]
        return cls(
            field=field_named(name) if name.startswith("DCGM_FI_") else None,
            labels=_labels(match["labels"] or ""),
            value=number(match["value"]),
            stamp_s=float(stamp) / per_s if stamp else None,
        )

    def entity(self) -> _Entity | None:
        """Return what the line is of; None where no label says which GPU."""
        index = self.labels.get("gpu", "")
        if not index.isdecimal():
            device = _DEVICE.fullmatch(self.labels.get("device", ""))
            if device is None:
                return None
            index = device[1]
        uuid = self.labels.get("UUID") or self.labels.get("uuid") or ""
        instance = self.labels.get("GPU_I_ID")
        return _Entity(
            gpu_index=int(index),
            gpu_uuid=f"{uuid}/GI{instance}" if instance else uuid,
            stamp_s=self.stamp_s,
        )


def _gathered_records(
    entities: Mapping[_Entity, _Gathered],
    start: Moment,
    model_names: Mapping[int, str],
    left_out: LeftOut,
) -> Telemetry:
    """Return the records of what the exporter's lines said."""
    stamps = [e.stamp_s for e in entities if e.stamp_s is not None]
    first_s = min(stamps, default=0.0)
    records = []
    for entity, gathered in entities.items():
        of = f"GPU {entity.gpu_index}"
        for disputed in sorted(gathered.disputed, key=lambda f: f.names):
            reason = "two lines with the same labels for its GPU differ"
            left_out.setdefault(reason, []).append(f"{disputed.names[0]} ({of})")
        found, notes = readings(gathered.values)
        for note in notes:
            left_out.setdefault(note, []).append(of)
        moment = start
        if entity.stamp_s is not None:
            moment = Moment(
                monotonic_s=start.monotonic_s + entity.stamp_s - first_s,
                unix_s=entity.stamp_s,
            )
        records.append(record_at(moment, entity.gpu_index, entity.gpu_uuid, found))
    return Telemetry(
        records=tuple(records), model_names=model_names, notes=sentences(left_out)
    )


def _labels(text: str) -> dict[str, str]:
    """
    Return the labels between the braces of a line.

    Raises:
        ValueError: They are none.
    """
    labels = {}
    place = 0
    while text[place:].strip():
        match = _LABEL.match(text, place)
        if match is None:
            message = f"{text[place : place + 60]!r} is not a label"
            raise ValueError(message)
        labels[match[1]] = re.sub(
            r"\\.", lambda escape: _ESCAPES.get(escape[0], escape[0]), match[2]
        )
        place = match.end()
    return labels
