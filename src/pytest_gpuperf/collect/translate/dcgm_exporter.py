"""What dcgm-exporter prints, as records.

References:
    The text format of Prometheus 0.0.4, and that of OpenMetrics 1.0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_gpuperf.collect.translate.dcgm import (
    LeftOut,
    Moment,
    Telemetry,
    record_at,
    refuse_mistakes,
    sentences,
)
from pytest_gpuperf.collect.translate.dcgm_fields import (
    Field,
    field_named,
    number,
    readings,
)
from pytest_gpuperf.model.frozen import Frozen

__all__ = ["exporter_records"]

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
            message = f"{line[:60]!r} is no name, labels and value"
            raise ValueError(message)
        try:
            float(match["value"])
        except ValueError:
            message = f"{match['value'][:60]!r} is no number"
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
            message = f"{text[place : place + 60]!r} is no label"
            raise ValueError(message)
        labels[match[1]] = re.sub(
            r"\\.", lambda escape: _ESCAPES.get(escape[0], escape[0]), match[2]
        )
        place = match.end()
    return labels
