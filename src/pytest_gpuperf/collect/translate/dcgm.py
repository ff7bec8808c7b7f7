"""DCGM's text outputs as records, and DCGM's fields as standard readings and units.

References:
    dcgm_fields.h and dcgm_fields.cpp of DCGM 3.3 to 4.6: numbers, old and new names, the
    column headers of dcgmi, units. dcgm_structs.h: the blank values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import isfinite
from typing import Any

from pytest_gpuperf.errors import CaptureFormatError
from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.quantity import MiB
from pytest_gpuperf.model.telemetry import CanonicalRecord

Value = float | int | bool

_MHZ = 1e6
# DCGM divides the difference of a KiB counter by 1000 and calls the result "MB/s".
_NVLINK_BYTES_PER_S = 1000 * 1024.0
# Both directions are added up to one reading.
_NVLINK_TX, _NVLINK_RX = "nvlink_transmitted", "nvlink_received"
# dcgm_structs.h: blank, not found, not supported, not permitted.
_BLANKS = frozenset(
    float(base + i)
    for base in (0x7FFFFFF0, 0x7FFFFFFFFFFFFFF0, 2**47)
    for i in range(4)
)


class DcgmUnit(Enum):
    """The unit of a field's number."""

    RATIO = "ratio"
    PERCENT = "percent"
    NVLINK = "1000 KiB/s"
    BYTES_PER_S = "B/s"
    MILLIJOULES = "mJ"
    MHZ = "MHz"
    MIB = "MiB"
    WATTS = "W"
    CELSIUS = "C"
    COUNT = "count"
    FLAG = "flag"


_CONVERT: Mapping[DcgmUnit, Callable[[float], Value]] = {
    DcgmUnit.RATIO: lambda v: min(1.0, max(0.0, v)),
    DcgmUnit.PERCENT: lambda v: min(1.0, max(0.0, v / 100.0)),
    DcgmUnit.NVLINK: lambda v: max(0.0, v * _NVLINK_BYTES_PER_S),
    DcgmUnit.BYTES_PER_S: float,
    DcgmUnit.MILLIJOULES: lambda v: v / 1000.0,
    DcgmUnit.MHZ: lambda v: v * _MHZ,
    DcgmUnit.MIB: lambda v: v * MiB,  # DCGM calls it MB.
    DcgmUnit.WATTS: float,
    DcgmUnit.CELSIUS: float,
    DcgmUnit.COUNT: int,
    DcgmUnit.FLAG: lambda v: v > 0,
}
# Clamped, or valid below 0. A negative number in any other unit is a sensor error.
_MAY_BE_NEGATIVE = {
    DcgmUnit.RATIO,
    DcgmUnit.PERCENT,
    DcgmUnit.NVLINK,
    DcgmUnit.CELSIUS,
    DcgmUnit.FLAG,
}


class Field(Frozen, frozen=True, kw_only=True):
    """
    A field of DCGM.

    Attributes:
        reading: The field of a CanonicalRecord, or a name for one of two halves of it.

        unit: The unit of the number.

        number: DCGM's own number, or None if the field has only a name.

        names: DCGM's names, old and new, without `DCGM_FI_`.

        tag: The column header in `dcgmi dmon`, or "" if unknown.
    """

    reading: str
    unit: DcgmUnit
    number: int | None
    names: tuple[str, ...]
    tag: str


def field_named(text: str) -> Field | None:
    """
    Return the field with a number, name or column header, or None if there is none.

    Example:
        >>> field_named("DCGM_FI_PROF_SM_ACTIVE") is field_named("1002")
        True
    """
    return _BY_NAME.get(text.upper().removeprefix("DCGM_FI_"))


def number(text: str) -> float | None:
    """Parse a number, and return None for text, non-finite numbers and DCGM's blanks."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if isfinite(value) and value not in _BLANKS else None


def readings(
    values: Mapping[Field, float | None],
) -> tuple[dict[str, Value | None], list[str]]:
    """
    Convert the values of a GPU to fields of a CanonicalRecord.

    Args:
        values: Values by field in DCGM's units, or None if absent.

    Returns:
        The readings in standard units, and a sentence for each invalid value. The rate
        of all NVLinks is field 449, else the sum of 1011 and 1012.
    """
    by_name: dict[str, Value | None] = {}
    notes = []
    for source, value in values.items():
        by_name.setdefault(source.reading, None)
        if value is None:
            continue
        if value < 0 and source.unit not in _MAY_BE_NEGATIVE:
            notes.append(f"{source.names[0]} is below 0 and left out")
            continue
        converted = _CONVERT[source.unit](value)
        if not isfinite(converted):
            notes.append(f"{source.names[0]} is infinite and left out")
        elif by_name[source.reading] is None:
            by_name[source.reading] = converted
    sent, received = by_name.pop(_NVLINK_TX, None), by_name.pop(_NVLINK_RX, None)
    total = "nvlink_bytes_per_s"
    if by_name.get(total) is None and sent is not None and received is not None:
        by_name[total] = max(0.0, sent + received)
    return by_name, notes


# DCGM's number, dmon's column, unit, reading, and DCGM's names. "-" means none.
_TABLE = """
100  SMCLK mhz         sm_clock_hz DEV_SM_CLOCK
101  MMCLK mhz         memory_clock_hz DEV_MEM_CLOCK
140  MMTMP celsius     memory_temperature_celsius
    DEV_MEMORY_TEMP DEV_MEMORY_TEMP_CELSIUS
150  TMPTR celsius     temperature_celsius DEV_GPU_TEMP DEV_GPU_TEMP_CELSIUS
155  POWER watts       power_watts DEV_POWER_USAGE DEV_BOARD_POWER_WATTS
156  TOTEC millijoules energy_joules DEV_TOTAL_ENERGY_CONSUMPTION
163  PMDEF watts       power_limit_default_watts
    DEV_POWER_MGMT_LIMIT_DEF DEV_BOARD_POWER_LIMIT_DEFAULT_WATTS
164  EPLMT watts       power_limit_watts
    DEV_ENFORCED_POWER_LIMIT DEV_BOARD_POWER_LIMIT_ENFORCED_WATTS
202  RPCTR count       pcie_replay_count DEV_PCIE_REPLAY_COUNTER DEV_PCIE_REPLAY_TOTAL
203  GPUTL percent     gpu_busy_fraction DEV_GPU_UTIL DEV_GPU_UTIL_RATIO
204  MCUTL percent     memory_busy_fraction DEV_MEM_COPY_UTIL
230  XIDER count       last_xid DEV_XID_ERRORS DEV_XID_ERROR
251  FBFRE mib         memory_free_bytes DEV_FB_FREE
252  FBUSD mib         memory_used_bytes DEV_FB_USED
253  FBRSV mib         memory_reserved_bytes DEV_FB_RESERVED
393  URMPS count       uncorrectable_remapped_row_count
    DEV_UNCORRECTABLE_REMAPPED_ROWS DEV_ROW_REMAP_UNCORRECTABLE_TOTAL
394  CRMPS count       correctable_remapped_row_count
    DEV_CORRECTABLE_REMAPPED_ROWS DEV_ROW_REMAP_CORRECTABLE_TOTAL
395  RRF   flag        row_remap_failed DEV_ROW_REMAP_FAILURE DEV_ROW_REMAP_FAILED
449  NBWLT nvlink      nvlink_bytes_per_s
    DEV_NVLINK_BANDWIDTH_TOTAL DEV_NVLINK_THROUGHPUT_TOTAL
1001 GRACT ratio       graphics_active_fraction
    PROF_GR_ENGINE_ACTIVE PROF_GR_ENGINE_UTIL_RATIO
1002 SMACT ratio       sm_active_fraction PROF_SM_ACTIVE PROF_SM_UTIL_RATIO
1003 SMOCC ratio       sm_occupancy_fraction PROF_SM_OCCUPANCY PROF_SM_OCCUPANCY_RATIO
1004 TENSO ratio       tensor_active_fraction
    PROF_PIPE_TENSOR_ACTIVE PROF_TENSOR_UTIL_RATIO
1005 DRAMA ratio       dram_active_fraction PROF_DRAM_ACTIVE PROF_DRAM_UTIL_RATIO
1006 FP64A ratio       fp64_active_fraction PROF_PIPE_FP64_ACTIVE PROF_FP64_UTIL_RATIO
1007 FP32A ratio       fp32_active_fraction PROF_PIPE_FP32_ACTIVE PROF_FP32_UTIL_RATIO
1008 FP16A ratio       fp16_active_fraction PROF_PIPE_FP16_ACTIVE PROF_FP16_UTIL_RATIO
1009 PCITX bytes_per_s pcie_tx_bytes_per_s PROF_PCIE_TX_BYTES
1010 PCIRX bytes_per_s pcie_rx_bytes_per_s PROF_PCIE_RX_BYTES
1011 NVLTX bytes_per_s nvlink_transmitted PROF_NVLINK_TX_BYTES
1012 NVLRX bytes_per_s nvlink_received PROF_NVLINK_RX_BYTES
1013 TIMMA ratio       tensor_imma_active_fraction
    PROF_PIPE_TENSOR_IMMA_ACTIVE PROF_IMMA_UTIL_RATIO
1014 THMMA ratio       tensor_hmma_active_fraction
    PROF_PIPE_TENSOR_HMMA_ACTIVE PROF_HMMA_UTIL_RATIO
1015 TDFMA ratio       tensor_dfma_active_fraction
    PROF_PIPE_TENSOR_DFMA_ACTIVE PROF_DFMA_UTIL_RATIO
-    -     ratio       tensor_dmma_active_fraction PROF_PIPE_TENSOR_DMMA_ACTIVE
-    -     ratio       tensor_qmma_active_fraction PROF_PIPE_TENSOR_QMMA_ACTIVE
"""


# An indented line continues the row above.
_ROWS = _TABLE.replace("\n    ", " ").strip().splitlines()
_FIELDS = tuple(
    Field(
        reading=reading,
        unit=DcgmUnit[unit.upper()],
        number=None if code == "-" else int(code),
        names=tuple(names),
        tag="" if tag == "-" else tag,
    )
    for code, tag, unit, reading, *names in map(str.split, _ROWS)
)
_BY_NAME = {
    name: field
    for field in _FIELDS
    for name in (*field.names, field.tag, str(field.number))
    if name not in {"", "None"}
}


LeftOut = dict[str, list[str]]  # The omitted items and their positions, by reason.
# Limit of the listed mistakes of a text, and of the positions listed for a reason.
_MOST_LISTED = 20
# The last line of dmon after Ctrl-C.
_STOPPED = "dmon was stopped"
_ROW = re.compile(
    r"(?:(?P<stamp>\d+(?:\.\d+)?)\s+)?"
    r"(?P<kind>[A-Za-z][\w-]*)\s+(?P<id>\d+)(?P<values>(?:\s.*)?)"
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

        model_names: The product names by GPU index, if the text has them.

        notes: One sentence for each reason to leave something out.
    """

    records: tuple[CanonicalRecord, ...]
    model_names: Mapping[int, str]
    notes: tuple[str, ...]


def is_dmon(text: str) -> bool:
    """Return True if any line of a text is a header or a row of `dcgmi dmon`."""
    lines = map(str.strip, text.splitlines())
    return any(
        line.lower().startswith("#entity") or _ROW.fullmatch(line) for line in lines
    )


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
    Return the records of the output of `dcgmi dmon`.

    Args:
        text: Its lines, whole or cut. A row may begin with its time in seconds since
            1970, as `ts %.s` writes it.

        start: The time of the first rows, if rows have no time.

        interval_s: The time between two rows of a GPU [s].

        fields: Numbers or names of the requested fields, in order, or None to use the
            header of the text.

        uuids: The UUIDs of the GPUs, by index.

        path: The name of the text, for the message.

    Returns:
        One record for each row of a GPU or of an instance. The UUID of an instance is the
        GPU's UUID with the instance appended.

    Raises:
        CaptureFormatError: Some lines have another format. The message lists them by
            number.
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
    moment: Moment, gpu_index: int, gpu_uuid: str, values: Mapping[str, Any]
) -> CanonicalRecord:
    """Return a record of readings by name."""
    return CanonicalRecord(
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


def refuse_mistakes(
    mistakes: Sequence[str], path: str, *, tool: str = "dcgmi dmon or dcgm-exporter"
) -> None:
    """
    Raise an exception if a tool's text has invalid lines.

    Raises:
        CaptureFormatError: There are such lines. The message lists the first 20.
    """
    if not mistakes:
        return
    raise CaptureFormatError(
        _listed(mistakes, "; "),
        remedy=f"give the unchanged output of {tool}",
        path=path,
    )


@dataclass(slots=True, kw_only=True)
class _Dmon:
    """Reads the lines of dmon in order."""

    start: Moment
    interval_s: float
    uuids: Mapping[int, str]
    columns: list[Field | None] | None = None
    records: list[CanonicalRecord] = field(default_factory=list)
    mistakes: list[str] = field(default_factory=list)
    left_out: LeftOut = field(default_factory=dict)
    tick: int = 0
    # The entities already seen in this tick.
    entities: set[tuple[str, int]] = field(default_factory=set)
    # The GPU of the most recent GPU row.
    gpu_index: int | None = None
    first_stamp_s: float | None = None

    def take_header(self, names: Iterable[str]) -> None:
        """Set the columns by name."""
        self.columns = [field_named(name) for name in names]

    def take(self, line_number: int, line: str) -> None:
        """Read a line."""
        words = line.lstrip("#").split()
        if not words or line.startswith(_STOPPED):
            return
        if line.startswith("#"):
            # Any other line of this kind is a comment.
            if words[0].lower() == "entity":
                self.take_header(words[1:])
        elif words[0].lower() != "id":  # The line of units begins with ID.
            try:
                self._take_row(f"line {line_number}", line)
            except ValueError as error:
                self.mistakes.append(f"line {line_number}: {error}")

    def _take_row(self, where: str, line: str) -> None:
        """
        Read a row of values.

        Raises:
            ValueError: The line is not a row.
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
        if entity in self.entities:
            self.tick += 1
            self.entities.clear()
            self.gpu_index = None
        self.entities.add(entity)
        if kind == "GPU":
            self.gpu_index = entity[1]
        if self.gpu_index is None or not kind.startswith("GPU"):
            reason = "rows that belong to no GPU of the text"
            self.left_out.setdefault(reason, []).append(f"{kind} {entity[1]} ({where})")
            return
        uuid = self.uuids.get(self.gpu_index, "")
        values, notes = readings(
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
                values,
            )
        )

    def _moment(self, stamp: str | None) -> Moment:
        if stamp is None:
            return self.start.after(self.tick * self.interval_s)
        stamp_s = float(stamp)
        if self.first_stamp_s is None:
            self.first_stamp_s = stamp_s
        elapsed_s = stamp_s - self.first_stamp_s
        return Moment(monotonic_s=self.start.monotonic_s + elapsed_s, unix_s=stamp_s)


def _listed(items: Sequence[str], separator: str) -> str:
    more = len(items) - _MOST_LISTED
    rest = [f"and {more} more"] if more > 0 else []
    return separator.join([*items[:_MOST_LISTED], *rest])


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
    Return the records of the output of dcgm-exporter.

    Args:
        text: In the text format of Prometheus or OpenMetrics.

        start: The time of the text, or of its earliest line if lines have times.

        path: The name of the text, for the message.

    Returns:
        One record for each GPU, instance and time.

    Raises:
        CaptureFormatError: Lines have another format. The message lists their numbers.
    """
    mistakes: list[str] = []
    left_out: LeftOut = {}
    entities: dict[_Entity, _Gathered] = {}
    model_names: dict[int, str] = {}
    for line_number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            series = _FieldSeries.read(line.strip())
        except ValueError as error:
            mistakes.append(f"line {line_number}: {error}")
            continue
        if series.field is None:
            continue
        entity = series.entity()
        where = f"{series.field.names[0]} (line {line_number})"
        if entity is None:
            left_out.setdefault("lines without a label of a GPU", []).append(where)
            continue
        if "modelName" in series.labels:
            model_names[entity.gpu_index] = series.labels["modelName"]
        gathered = entities.setdefault(entity, _Gathered())
        gathered.take(series.field, series.value)
    refuse_mistakes(mistakes, path)
    return _gathered_records(entities, start, model_names, left_out)


class _Entity(Frozen, frozen=True, kw_only=True):
    """A GPU or a MIG instance, at one time."""

    gpu_index: int
    gpu_uuid: str
    stamp_s: float | None


@dataclass(slots=True, kw_only=True)
class _Gathered:
    """The values of one entity. A field with two different values has no value."""

    values: dict[Field, float | None] = field(default_factory=dict)
    conflicts: set[Field] = field(default_factory=set)

    def take(self, source: Field, value: float | None) -> None:
        """Add a value. Equal values, as for two pods on one GPU, count once."""
        first = self.values.get(source)
        if first is not None and value is not None and first != value:
            self.conflicts.add(source)
        merged = value if first is None else first
        self.values[source] = None if source in self.conflicts else merged


class _FieldSeries(Frozen, frozen=True, kw_only=True):
    """One line of the exporter."""

    field: Field | None
    labels: Mapping[str, str]
    value: float | None
    stamp_s: float | None

    @classmethod
    def read(cls, line: str) -> _FieldSeries:
        """
        Return the content of a line.

        Raises:
            ValueError: The line has another format.
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
        labels: dict[str, str] = {}
        text, place = match["labels"] or "", 0
        while text[place:].strip():
            label = _LABEL.match(text, place)
            if label is None:
                message = f"{text[place : place + 60]!r} is not a label"
                raise ValueError(message)
            labels[label[1]] = re.sub(
                r"\\.", lambda escape: _ESCAPES.get(escape[0], escape[0]), label[2]
            )
            place = label.end()
        stamp = match["stamp"]
        # Prometheus writes whole milliseconds, OpenMetrics seconds with a point.
        per_s = 1.0 if stamp and "." in stamp else 1000.0
        name = match["name"]
        return cls(
            field=field_named(name) if name.startswith("DCGM_FI_") else None,
            labels=labels,
            value=number(match["value"]),
            stamp_s=float(stamp) / per_s if stamp else None,
        )

    def entity(self) -> _Entity | None:
        """Return the GPU or instance of the line, or None if no label names a GPU."""
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
    stamps = [e.stamp_s for e in entities if e.stamp_s is not None]
    first_s = min(stamps, default=0.0)
    records = []
    for entity, gathered in entities.items():
        gpu = f"GPU {entity.gpu_index}"
        for conflict in sorted(gathered.conflicts, key=lambda f: f.names):
            reason = "two lines with the same labels have different values"
            left_out.setdefault(reason, []).append(f"{conflict.names[0]} ({gpu})")
        values, notes = readings(gathered.values)
        for note in notes:
            left_out.setdefault(note, []).append(gpu)

        moment = start
        if entity.stamp_s is not None:
            moment = Moment(
                monotonic_s=start.monotonic_s + entity.stamp_s - first_s,
                unix_s=entity.stamp_s,
            )
        records.append(record_at(moment, entity.gpu_index, entity.gpu_uuid, values))
    return Telemetry(
        records=tuple(records), model_names=model_names, notes=sentences(left_out)
    )
