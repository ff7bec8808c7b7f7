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
from math import isfinite, nan

from pytest_gpuperf.collect.translate.telemetry import (
    GOES_BACK,
    LeftOut,
    Moment,
    Telemetry,
    Times,
    excerpt,
    has_values,
    read_lines,
    record_at,
    sentences,
    split_stamp,
)
from pytest_gpuperf.model.frozen import Frozen, replace
from pytest_gpuperf.model.quantity import MiB
from pytest_gpuperf.model.telemetry import CanonicalRecord, GpuKey

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
    """The unit of a field's number, of DCGM or of nvidia-smi."""

    RATIO = "ratio"
    PERCENT = "percent"
    NVLINK = "1000 KiB/s"
    BYTES_PER_S = "B/s"
    MIB_PER_S = "MiB/s"
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
    DcgmUnit.MIB_PER_S: lambda v: v * MiB,
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

# Shares are clamped to these limits.
_MOST = {DcgmUnit.RATIO: 1.0, DcgmUnit.PERCENT: 100.0}
# A share is a quotient of counters that are not read at one moment, so it may exceed its
# limit a little. A larger excess is likely another unit, and is said.
_SLACK = 1.05


class Field(Frozen, frozen=True, kw_only=True):
    """
    A field of DCGM, or a column of `nvidia-smi dmon`.

    Attributes:
        reading: The field of a CanonicalRecord, or a name for one of two halves of it.

        unit: The unit of the number.

        number: DCGM's own number, or None if the field has only a name.

        names: DCGM's names, old and new, without `DCGM_FI_`, or nvidia-smi's.

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
    value = float(text) if _is_number(text) else nan
    return value if isfinite(value) and value not in _BLANKS else None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def readings(
    values: Mapping[Field, float | None],
) -> tuple[dict[str, Value | None], list[str]]:
    """
    Convert the values of a GPU to fields of a CanonicalRecord.

    Args:
        values: Values by field in DCGM's units, or None if absent.

    Returns:
        The readings in standard units, and a sentence for each invalid value. Shares are
        from 0 to 1. The rate of all NVLinks is field 449, else the sum of 1011 and 1012.
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
        most = _MOST.get(source.unit)
        if most is not None and value > _SLACK * most:
            notes.append(f"{source.names[0]} is above {most:g} and read as {most:g}")
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
250  FBTTL mib         memory_total_bytes DEV_FB_TOTAL
251  FBFRE mib         memory_free_bytes DEV_FB_FREE
252  FBUSD mib         memory_used_bytes DEV_FB_USED
253  FBRSV mib         memory_reserved_bytes DEV_FB_RESERVED
254  FBUSP ratio       memory_used_fraction DEV_FB_USED_PERCENT DEV_FB_USED_RATIO
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


# The last line of dmon after Ctrl-C.
_STOPPED = "dmon was stopped"
# A heading of Markdown has other words.
_HEAD = re.compile(r"#\s*Entity(?:\s+[A-Z0-9_]+)+")
_ROW = re.compile(r"(?P<kind>[A-Za-z][\w-]*)\s+(?P<id>\d+)(?P<values>(?:\s.*)?)")
# dmon's name of a MIG instance, and the name in the id of a GPU.
_INSTANCES = {"GPU-I": "GI", "GPU-CI": "CI"}
# dcgm_structs.h, DCGM_MAX_INSTANCES_PER_GPU: instances 8 to 15 belong to GPU 1.
_INSTANCES_PER_GPU = 8
_NO_NUMBERS = "not numbers, and left out"
_ORPHANS = (
    "instances without a row of their GPU are shown as GPUs of their own "
    "(dcgmi dmon -i 0,i:0,i:1 has the rows of GPU 0, too)"
)


def is_dmon(line: str) -> bool:
    """Return True if an unstamped line is a header or a row of `dcgmi dmon`."""
    return _HEAD.fullmatch(line) is not None or (
        line.split(maxsplit=1)[:1] in (["GPU"], *([kind] for kind in _INSTANCES))
        and _ROW.fullmatch(line) is not None
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
        text: Its lines, whole or cut. A line may begin with its time, as `ts` writes it.

        start: The time of the first rows, if rows have no time.

        interval_s: The time between two rows of a GPU [s], if rows have no time.

        fields: Numbers or names of the requested fields, in order, or None to use the
            header of the text.

        uuids: The UUIDs of the GPUs, by index.

        path: The name of the text, for the message.

    Returns:
        One record for each row of a GPU or of an instance. The id of an instance is the
        GPU's UUID with the instance appended. Without a row of its GPU, it is the instance
        alone, and the number of the instance stands for the index of the GPU.

    Raises:
        CaptureFormatError: Some lines have another format. The message lists them by
            number.
    """
    reader = _Dmon(times=Times(start=start, interval_s=interval_s), uuids=uuids or {})
    if fields is not None:
        reader.take_header(fields)
    left_out = read_lines(
        text, reader, path=path, remedy="give the unchanged output of dcgmi dmon"
    )
    return Telemetry(
        records=reader.times.apart(reader.records),
        model_names={},
        notes=sentences(left_out | reader.left_out),
    )


@dataclass(slots=True, kw_only=True)
class _Dmon:
    """Reads the lines of dmon in order."""

    times: Times
    uuids: Mapping[int, str]
    columns: list[Field | None] | None = None
    records: list[CanonicalRecord] = field(default_factory=list)
    left_out: LeftOut = field(default_factory=dict)
    tick: int = 0
    # The entities already seen in this tick.
    entities: set[tuple[str, int]] = field(default_factory=set)

    def take_header(self, names: Iterable[str]) -> None:
        """Set the columns by name."""
        self.columns = [field_named(name) for name in names]

    def take(self, line: str, where: str) -> bool:
        """
        Read a line, and return True for a row of values.

        Raises:
            ValueError: The line is not of dmon.
        """
        stamp, line = split_stamp(line)
        words = line.lstrip("#").split()
        if not words or line.startswith(_STOPPED):
            return False
        if line.startswith("#"):
            # Any other line of this kind is a comment.
            if _HEAD.fullmatch(line):
                self.take_header(words[1:])
            return False
        if words[0].lower() == "id":  # The line of units begins with ID.
            return False
        match = _ROW.fullmatch(line)
        if match is None:
            message = f"{excerpt(line)} is not an entity and its values"
            raise ValueError(message)
        words = match["values"].split()
        if self.columns is None:
            message = "values without a header above them"
            raise ValueError(message)
        # A blank is N/A, so that a row with fewer values is cut, or has a value under the
        # name of another.
        if len(words) != len(self.columns):
            message = f"{len(words)} values under {len(self.columns)} names"
            raise ValueError(message)
        if words and not has_values(words, len(words)):
            message = f"none of its values is a number: {excerpt(line)}"
            raise ValueError(message)
        gpu = self._gpu(match["kind"], int(match["id"]), where)
        if gpu is not None:
            moment = self._moment(stamp, where)
            values = self._readings(words, self.columns, f"GPU {gpu[1]} ({where})")
            self.records.append(record_at(moment, gpu, values))
        return True

    def is_data(self, line: str) -> bool:
        """Return True if an unreadable line has values."""
        _, bare = split_stamp(line)
        return has_values(bare.split()[1:], 0)  # The first word is GPU.

    def _moment(self, stamp: str, where: str) -> Moment:
        if not stamp:
            return self.times.of_row(self.tick)
        moment = self.times.of_stamp(stamp)
        if self.times.went_back:
            self.left_out.setdefault(GOES_BACK, []).append(where)
        return moment

    def _gpu(self, kind: str, number: int, where: str) -> GpuKey | None:
        """Return the GPU or the instance of a row, or None for any other entity."""
        entity = kind, number
        if entity in self.entities:
            self.tick += 1
            self.entities.clear()
        self.entities.add(entity)
        if kind == "GPU":
            return "", number, self.uuids.get(number, "")
        if kind not in _INSTANCES:
            reason = "rows that belong to no GPU of the text"
            self.left_out.setdefault(reason, []).append(f"{kind} {number} ({where})")
            return None
        instance = f"{_INSTANCES[kind]}{number}"
        gpu_index = number // _INSTANCES_PER_GPU
        if ("GPU", gpu_index) in self.entities:
            return "", gpu_index, f"{self.uuids.get(gpu_index, '')}/{instance}"
        orphans = self.left_out.setdefault(_ORPHANS, [])
        if instance not in orphans:
            orphans.append(instance)
        return "", number, instance

    def _readings(
        self, words: Sequence[str], columns: Sequence[Field | None], where: str
    ) -> dict[str, Value | None]:
        known: dict[Field, float | None] = {}
        for column, word in zip(columns, words, strict=True):
            if column is None:
                continue
            known[column] = number(word)
            if not _is_number(word) and word.lower() != "n/a":
                item = f"{column.names[0]} {excerpt(word)}, {where}"
                self.left_out.setdefault(_NO_NUMBERS, []).append(item)
        values, notes = readings(known)
        for note in notes:
            self.left_out.setdefault(note, []).append(where)
        return values


_SERIES = re.compile(
    r"(?P<name>[A-Za-z_:][\w:]*)\s*(?:\{(?P<labels>.*)\})?\s*"
    r"(?P<value>[^\s{}]+)(?:\s+(?P<stamp>-?\d+(?:\.\d+)?))?"
)
_BEGINS_SERIES = re.compile(r"DCGM_FI_|[A-Za-z_:][\w:]*\s*\{")
_LABEL = re.compile(r'\s*(\w+)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|$)')
_ESCAPES = {r"\n": "\n", r"\"": '"', r"\\": "\\"}
_LEAST_MS = 1e11  # In 1973. As seconds, it is in the year 5138.
_DEVICE = re.compile(r"nvidia(\d+)")
# Of the exporter, of its later versions, and of Prometheus.
_HOST_LABELS = ("Hostname", "hostname", "instance")


def is_exporter(line: str) -> bool:
    """Return True for a line of dcgm-exporter: a series of DCGM, or a comment on one."""
    return "DCGM_FI_" in line and (line[:1] == "#" or "{" in line)


def exporter_records(
    text: str, *, start: Moment, interval_s: float, path: str = "dcgm-exporter"
) -> Telemetry:
    """
    Return the records of the output of dcgm-exporter.

    Args:
        text: One page or several pages, one after the other, in the text format of
            Prometheus or OpenMetrics.

        start: The time of the first page, or of the earliest line if lines have times.

        interval_s: The time between two pages [s], if lines have no times.

        path: The name of the text, for the message.

    Returns:
        One record for each GPU, instance and time.

    Raises:
        CaptureFormatError: Lines have another format. The message lists their numbers.
    """
    pages = _Pages()
    remedy = "give the unchanged output of dcgm-exporter"
    left_out = read_lines(text, pages, path=path, remedy=remedy)
    pages.join_hostless()
    records, notes = pages.records(start, interval_s)
    return Telemetry(
        records=records,
        model_names={
            record.gpu: pages.model_names[_whole_gpu(record.gpu)]
            for record in records
            if _whole_gpu(record.gpu) in pages.model_names
        },
        notes=sentences(left_out | pages.left_out | notes),
    )


def _whole_gpu(gpu: GpuKey) -> GpuKey:
    hostname, gpu_index, gpu_uuid = gpu
    return hostname, gpu_index, gpu_uuid.partition("/")[0]


class _Entity(Frozen, frozen=True, kw_only=True):
    """A GPU or a MIG instance, at one time or on one page."""

    gpu: GpuKey
    stamp_s: float | None
    page: int


@dataclass(slots=True, kw_only=True)
class _Gathered:
    """The values of one entity. A field with two different values has no value."""

    values: dict[Field, float | None] = field(default_factory=dict)
    labels: dict[Field, Mapping[str, str]] = field(default_factory=dict)
    # The labels by which two different values of a field differ.
    conflicts: dict[Field, frozenset[str]] = field(default_factory=dict)

    def take(
        self, source: Field, value: float | None, labels: Mapping[str, str]
    ) -> None:
        """Add a value. Equal values, as for two pods on one GPU, count once."""
        first = self.values.get(source)
        if first is None:
            self.values[source] = value
            self.labels[source] = labels
        elif value is not None and value != first:
            differing = self.labels[source].items() ^ labels.items()
            names = frozenset(name for name, _ in differing)
            self.conflicts[source] = self.conflicts.get(source, frozenset()) | names

    def merge(self, other: _Gathered) -> None:
        """Add the values of another entity."""
        for source, value in other.values.items():
            self.take(source, value, other.labels[source])
        for source, names in other.conflicts.items():
            self.conflicts[source] = self.conflicts.get(source, frozenset()) | names

    def known(self) -> dict[Field, float | None]:
        """Return the values, or None for a field with different values."""
        return self.values | dict.fromkeys(self.conflicts)


class _FieldSeries(Frozen, frozen=True, kw_only=True):
    """One line of the exporter."""

    name: str
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
            message = f"{excerpt(line)} is not a name, labels and value"
            raise ValueError(message)
        if not _is_number(match["value"]):
            message = f"{excerpt(match['value'])} is not a number"
            raise ValueError(message)
        labels: dict[str, str] = {}
        text, place = match["labels"] or "", 0
        while text[place:].strip():
            label = _LABEL.match(text, place)
            if label is None:
                message = f"{excerpt(text[place:])} is not a label"
                raise ValueError(message)
            labels[label[1]] = re.sub(
                r"\\.", lambda escape: _ESCAPES.get(escape[0], escape[0]), label[2]
            )
            place = label.end()
        stamp = match["stamp"]
        # Prometheus writes whole milliseconds, OpenMetrics seconds, often with a point.
        is_s = stamp and ("." in stamp or abs(float(stamp)) < _LEAST_MS)
        per_s = 1.0 if is_s else 1000.0
        return cls(
            name=match["name"],
            labels=labels,
            value=number(match["value"]),
            stamp_s=float(stamp) / per_s if stamp else None,
        )

    def gpu(self) -> GpuKey | None:
        """Return the GPU or instance of the line, or None if no label names a GPU."""
        index = self.labels.get("gpu", "")
        if not index.isdecimal():
            device = _DEVICE.fullmatch(self.labels.get("device", ""))
            if device is None:
                return None
            index = device[1]
        host = next((self.labels[n] for n in _HOST_LABELS if self.labels.get(n)), "")
        uuid = self.labels.get("UUID") or self.labels.get("uuid") or ""
        instance = self.labels.get("GPU_I_ID")
        return host, int(index), f"{uuid}/GI{instance}" if instance else uuid


@dataclass(slots=True, kw_only=True)
class _Pages:
    """Reads the lines of the exporter's pages in order."""

    page: int = 0
    # What was read of this page: its series, and the first name with a comment.
    series: set[tuple[object, ...]] = field(default_factory=set)
    first_comment: tuple[str, ...] = ()
    entities: dict[_Entity, _Gathered] = field(default_factory=dict)
    model_names: dict[GpuKey, str] = field(default_factory=dict)
    left_out: LeftOut = field(default_factory=dict)

    def take(self, line: str, where: str) -> bool:
        """
        Read a line, and return True for a series.

        Raises:
            ValueError: The line has another format.
        """
        if line.startswith("#"):
            comment = tuple(line.lstrip("#").split()[:2])
            self.first_comment = self.first_comment or comment
            # A page comments on each name once.
            if self.series and comment == self.first_comment:
                self._turn()
            return False
        if not line:
            return False
        series = _FieldSeries.read(line)
        key = (series.name, series.stamp_s, frozenset(series.labels.items()))
        # A page has each series once.
        if key in self.series:
            self._turn()
        self.series.add(key)
        is_dcgm = series.name.startswith("DCGM_FI_")
        source = field_named(series.name) if is_dcgm else None
        if source is None:
            return True
        gpu = series.gpu()
        if gpu is None:
            item = f"{source.names[0]} ({where})"
            reason = "lines without a label of a GPU"
            self.left_out.setdefault(reason, []).append(item)
            return True
        if "modelName" in series.labels:
            self.model_names[_whole_gpu(gpu)] = series.labels["modelName"]
        entity = _Entity(gpu=gpu, stamp_s=series.stamp_s, page=self.page)
        gathered = self.entities.setdefault(entity, _Gathered())
        gathered.take(source, series.value, series.labels)
        return True

    def is_data(self, line: str) -> bool:
        """Return True if an unreadable line begins as a series."""
        return _BEGINS_SERIES.match(line) is not None

    def join_hostless(self) -> None:
        """
        Add the lines without a host to the GPU of the same UUID on a host.

        Exporters write some lines without the label of the host. A UUID names one GPU in
        the world. With several hosts, the host of such a line is unknown.
        """
        hosts: dict[str, set[str]] = {}
        for entity in self.entities:
            hostname, _, gpu_uuid = _whole_gpu(entity.gpu)
            if hostname and gpu_uuid:
                hosts.setdefault(gpu_uuid, set()).add(hostname)
        joined: dict[_Entity, _Gathered] = {}
        for entity, gathered in self.entities.items():
            hostname, gpu_index, gpu_uuid = entity.gpu
            whole = _whole_gpu(entity.gpu)
            named = hosts.get(whole[2], set())
            place = entity
            if not hostname and len(named) == 1:
                (hostname,) = named
                place = replace(entity, gpu=(hostname, gpu_index, gpu_uuid))
                if whole in self.model_names:
                    model = self.model_names[whole]
                    self.model_names.setdefault(_whole_gpu(place.gpu), model)
            joined.setdefault(place, _Gathered()).merge(gathered)
        self.entities = joined

    def _turn(self) -> None:
        self.page += 1
        self.series.clear()

    def records(
        self, start: Moment, interval_s: float
    ) -> tuple[tuple[CanonicalRecord, ...], LeftOut]:
        """Return the records and the omissions, by reason."""
        stamps = [e.stamp_s for e in self.entities if e.stamp_s is not None]
        first_s = min(stamps, default=0.0)
        # Pages of several hosts may stand side by side: each host counts its own.
        counts: dict[str, dict[int, int]] = {}
        left_out: LeftOut = {}
        records = []
        for entity, gathered in self.entities.items():
            gpu = f"GPU {entity.gpu[1]}"
            for source, names in sorted(
                gathered.conflicts.items(), key=lambda pair: pair[0].names
            ):
                what = (
                    f"differ in {', '.join(sorted(names))} alone" if names else "repeat"
                )
                reason = f"lines that {what} and have different values, left out"
                items = left_out.setdefault(reason, [])
                if (item := f"{source.names[0]} ({gpu})") not in items:
                    items.append(item)
            values, notes = readings(gathered.known())
            for note in notes:
                left_out.setdefault(note, []).append(gpu)
            pages = counts.setdefault(entity.gpu[0], {})
            page = pages.setdefault(entity.page, len(pages))
            moment = start.after(page * interval_s)
            if entity.stamp_s is not None:
                elapsed_s = entity.stamp_s - first_s
                moment = Moment(
                    monotonic_s=start.monotonic_s + elapsed_s, unix_s=entity.stamp_s
                )
            records.append(record_at(moment, entity.gpu, values))
        return tuple(records), left_out
