"""Readings from nvidia-smi: tables (`--query-gpu=… --format=csv`) and `dmon`."""

from __future__ import annotations

import contextlib
import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import isfinite

from pytest_gpuperf.collect.translate.dcgm import (
    DcgmUnit,
    Field,
    Value,
    number,
    readings,
)
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
from pytest_gpuperf.errors import CaptureFormatError
from pytest_gpuperf.model.telemetry import CanonicalRecord, GpuKey

# Column, unit and reading.
_TABLE = """
utilization.gpu             percent gpu_busy_fraction
utilization.memory          percent memory_busy_fraction
memory.used                 mib     memory_used_bytes
memory.free                 mib     memory_free_bytes
memory.reserved             mib     memory_reserved_bytes
memory.total                mib     memory_total_bytes
power.draw                  watts   power_watts
power.draw.instant          watts   power_watts
enforced.power.limit        watts   power_limit_watts
power.limit                 watts   power_limit_watts
power.default_limit         watts   power_limit_default_watts
temperature.gpu             celsius temperature_celsius
temperature.memory          celsius memory_temperature_celsius
clocks.current.sm           mhz     sm_clock_hz
clocks.sm                   mhz     sm_clock_hz
clocks.current.memory       mhz     memory_clock_hz
clocks.mem                  mhz     memory_clock_hz
remapped_rows.uncorrectable count   uncorrectable_remapped_row_count
remapped_rows.correctable   count   correctable_remapped_row_count
"""


def _fields(table: str) -> dict[str, Field]:
    return {
        name: Field(
            reading=reading,
            unit=DcgmUnit[unit.upper()],
            number=None,
            names=(name,),
            tag="",
        )
        for name, unit, reading in map(str.split, filter(None, table.splitlines()))
    }


_COLUMNS = _fields(_TABLE)
# How nvidia-smi writes the units, of which old versions write MB for MiB.
_WRITTEN = {
    DcgmUnit.PERCENT: {"%"},
    DcgmUnit.MIB: {"mib", "mb"},
    DcgmUnit.WATTS: {"w"},
    DcgmUnit.CELSIUS: {"c"},
    DcgmUnit.MHZ: {"mhz"},
    DcgmUnit.COUNT: set[str](),
}
# Columns that name a GPU in any order of rows. The GPUs of one board share its serial.
_IDS = ("uuid", "gpu_uuid", "pci.bus_id", "gpu_bus_id")
_SERIALS = ("serial", "gpu_serial")
_NAMING = {*_IDS, *_SERIALS, "timestamp", "index", "name", "gpu_name"}
_KNOWN = {*_COLUMNS, *_NAMING}
_PROCESS_COLUMNS = {"pid", "process_name"}
_SHOWN = 20  # Characters of a cell that a note shows.
# [N/A], [Not Supported] and [Unknown Error] mean an absent value.
_NO_VALUES = ("[", "n/a")
_UNREAD_COLUMNS = "columns without a reading of ours"
_UNREAD_CELLS = "not numbers in the unit of nvidia-smi, and left out"
_GOES_BACK = f"{GOES_BACK} (add uuid to --query-gpu)"
_NUMBERED = (
    "no column has the index of a GPU, so GPUs are numbered in the order of their first "
    "rows (add index to --query-gpu)"
)
_ONE_GPU = (
    "no column names the GPU of a row, so all rows are read as rows of one GPU "
    "(add index to --query-gpu)"
)
# One query has the rows of all GPUs at once: short gaps, and a long one to the next query.
_BURST_S, _LEAST_RATIO, _MOST_GPUS = 0.1, 5.0, 32
QUERY = (
    "nvidia-smi --query-gpu=timestamp,index,uuid,name,utilization.gpu,memory.used,"
    "memory.total,temperature.gpu --format=csv -l 1"
)
MONITOR = "nvidia-smi dmon --gpm-metrics=1,2,5,10"


def is_smi_table(line: str) -> bool:
    """Return True if an unstamped line is the header of a table of nvidia-smi."""
    names = _names(line)
    known = _KNOWN | _PROCESS_COLUMNS if len(names) > 1 else {*_COLUMNS}
    return not known.isdisjoint(names) and not any(
        re.search(r"[\s:<>|]", n) for n in names
    )


def smi_records(
    text: str, *, start: Moment, interval_s: float, path: str = "nvidia-smi"
) -> Telemetry:
    """
    Return the records of a table of nvidia-smi.

    Args:
        text: The table with its header, with units or without (`csv,nounits`). A line may
            begin with its time, as `ts` writes it.

        start: The time of the first rows, if rows have no time.

        interval_s: The time between two rows of a GPU [s], if rows have no time.

        path: The name of the text, for the message.

    Returns:
        One record for each row. The table has no counters of SM, tensor or DRAM
        activity, so they are absent.

    Raises:
        CaptureFormatError: Some rows do not fit the table. The message lists them. Or the
            table lists processes, none of its columns is a reading, or its rows belong
            to several GPUs and no column tells them apart.
    """
    table = _Table(times=Times(start=start, interval_s=interval_s))
    remedy = "give the unchanged output of nvidia-smi --format=csv"
    left_out = read_lines(text, table, path=path, remedy=remedy)
    if table.names and not table.has_readings:
        message = f"none of its columns is a reading: {excerpt(', '.join(table.names))}"
        if not _PROCESS_COLUMNS.isdisjoint(table.names):
            message = "it is a table of processes, without readings of GPUs"
        raise CaptureFormatError(message, remedy=f"record GPUs: {QUERY}", path=path)
    in_bursts = any(map(_in_bursts, table.nameless_s.values()))
    mixed = table.mixed or ("rows come in bursts" if in_bursts else "")
    if mixed:
        message = f"it has rows of several GPUs, and no column says which ({mixed})"
        remedy = "add index and uuid to --query-gpu, as in " + QUERY
        raise CaptureFormatError(message, remedy=remedy, path=path)
    return Telemetry(
        records=table.times.apart(table.records),
        model_names=table.model_names,
        notes=sentences(left_out | table.left_out),
    )


@dataclass(slots=True, kw_only=True)
class _Table:
    """Reads the lines of a table in order."""

    times: Times
    names: list[str] = field(default_factory=list)
    # Whether each line begins with a time that is not nvidia-smi's own.
    is_stamped: bool = False
    # Whether the current header, and any header, has a reading.
    is_of_gpus: bool = False
    has_readings: bool = False
    records: list[CanonicalRecord] = field(default_factory=list)
    model_names: dict[GpuKey, str] = field(default_factory=dict)
    left_out: LeftOut = field(default_factory=dict)
    # Number of rows by GPU.
    counts: dict[GpuKey, int] = field(default_factory=dict)
    # In the order of their first rows, which numbers the GPUs if no column does.
    ids: list[str] = field(default_factory=list)
    # The times of the rows of a GPU that may be several ones.
    nameless_s: dict[GpuKey, list[float]] = field(default_factory=dict)
    # Why rows belong to several GPUs, or "".
    mixed: str = ""

    def take(self, line: str, where: str) -> bool:
        """
        Read a line, and return True for a row of values.

        Raises:
            ValueError: The row does not fit the table.

            csv.Error: The line is not CSV.
        """
        stamp, bare = split_stamp(line)
        if is_smi_table(bare):  # With --loop, nvidia-smi may repeat the header.
            self.is_stamped = bool(stamp)
            self._take_header(_names(bare))
            return False
        if not self.is_stamped:
            stamp, bare = "", line
        row = _cells(bare)
        if not row:
            return False
        values = _by_name(self.names, [cell.strip() for cell in row])
        if self.is_of_gpus:
            self._take_row(values, stamp, where)
        return True

    def is_data(self, line: str) -> bool:
        """Return True if an unreadable line has values."""
        bare = split_stamp(line)[1] if self.is_stamped else line
        # A line that is not CSV, as one with a cell of 131,072 characters.
        with contextlib.suppress(csv.Error):
            return has_values(_cells(bare), len(self.names))
        return False

    def _take_header(self, names: list[str]) -> None:
        self.names = names
        self.is_of_gpus = not _COLUMNS.keys().isdisjoint(names)
        self.has_readings = self.has_readings or self.is_of_gpus
        for name in names:
            unread = self.left_out.get(_UNREAD_COLUMNS, [])
            if name not in _KNOWN and name not in unread:
                self.left_out[_UNREAD_COLUMNS] = [*unread, name]

    def _take_row(self, values: Mapping[str, str], stamp: str, where: str) -> None:
        found, unread = _table_readings(values, where)
        stamp = values.get("timestamp", stamp)
        has_time = "timestamp" in values or bool(stamp)
        moment = self.times.of_stamp(stamp) if has_time else None
        gpu = self._gpu(values)
        count = self.counts.get(gpu, 0)
        self.counts[gpu] = count + 1
        self.records.append(record_at(moment or self.times.of_row(count), gpu, found))
        for reason, items in unread.items():
            self.left_out.setdefault(reason, []).extend(items)
        model = values.get("name") or values.get("gpu_name") or ""
        known_model = self.model_names.setdefault(gpu, model) if model else model
        if any(_stated(values, name) for name in _IDS):
            return
        if model != known_model:
            self.mixed = f"{where} has {model}, others have {known_model}"
        if moment is None:
            return
        times_s = self.nameless_s.setdefault(gpu, [])
        if times_s and moment.monotonic_s < times_s[-1]:
            self.left_out.setdefault(_GOES_BACK, []).append(where)
        if "index" not in values and moment.monotonic_s in times_s[-_MOST_GPUS:]:
            self.mixed = self.mixed or f"{where} repeats the time {stamp}"
        times_s.append(moment.monotonic_s)

    def _gpu(self, values: Mapping[str, str]) -> GpuKey:
        """
        Return the GPU of a row, numbered in the order of first rows without an index.

        Raises:
            ValueError: The index is not a number.
        """
        ids = (_stated(values, name) for name in (*_IDS, *_SERIALS))
        gpu_id = next(filter(None, ids), "")
        index = values.get("index")
        if index is not None:
            if not index.isdecimal():
                message = f"{excerpt(index)} is not the index of a GPU"
                raise ValueError(message)
            return "", int(index), gpu_id
        if gpu_id not in self.ids:
            self.ids.append(gpu_id)
            reason = _NUMBERED if gpu_id else _ONE_GPU
            item = f"{len(self.ids) - 1} is {gpu_id}" if gpu_id else "GPU 0"
            self.left_out.setdefault(reason, []).append(item)
        return "", self.ids.index(gpu_id), gpu_id


def _by_name(names: Sequence[str], cells: Sequence[str]) -> dict[str, str]:
    """Return the cells of a row by column. Raises ValueError if the header does not fit."""
    if not names:
        message = "values without a header above them"
        raise ValueError(message)
    if len(cells) != len(names):
        message = f"{len(cells)} values under {len(names)} names"
        raise ValueError(message)
    return dict(zip(names, cells, strict=True))


def _stated(values: Mapping[str, str], name: str) -> str:
    text = values.get(name, "")
    return "" if _is_absent(text) else text


def _table_readings(
    values: Mapping[str, str], where: str
) -> tuple[dict[str, Value | None], LeftOut]:
    """
    Return the readings of a row, and its cells that are left out.

    Raises:
        ValueError: No cell is a number, so that the line is not a row.
    """
    known: dict[Field, float | None] = {}
    unread = []
    for name, text in values.items():
        source = _COLUMNS.get(name)
        if source is None:
            continue
        known[source] = None
        try:
            known[source] = _number(text, source.unit)
        except ValueError:
            unread.append(f"{name} {text[:_SHOWN]!r} ({where})")
    if unread and {*known.values()} == {None}:
        message = f"none of its values is a number: {', '.join(unread)}"
        raise ValueError(message)
    found, notes = readings(known)
    left_out = {note: [where] for note in notes}
    return found, left_out | ({_UNREAD_CELLS: unread} if unread else {})


def _is_absent(text: str) -> bool:
    return not text or text.lower().startswith(_NO_VALUES)


def _in_bursts(times_s: Sequence[float]) -> bool:
    """
    Return True if rows come in bursts of equal size, as the rows of several GPUs do.

    Args:
        times_s: The times of the rows [s].
    """
    gaps_s = [later_s - earlier_s for earlier_s, later_s in pairwise(times_s)]
    short_s = [gap_s for gap_s in gaps_s if abs(gap_s) < _BURST_S]
    long_s = [gap_s for gap_s in gaps_s if abs(gap_s) >= _BURST_S]
    if not short_s or not long_s or min(long_s) < _LEAST_RATIO * max(short_s):
        return False
    sizes = [1]
    for gap_s in gaps_s:
        if abs(gap_s) < _BURST_S:
            sizes[-1] += 1
        else:
            sizes.append(1)
    first, *rest = sizes
    # The last burst may be cut.
    return 1 < first <= _MOST_GPUS and {first} >= {*rest[:-1]} and rest[-1] <= first


def _number(text: str, unit: DcgmUnit) -> float | None:
    """
    Return the number of a cell, or None if absent.

    Raises:
        ValueError: The cell is not a finite number, or has another unit.
    """
    if _is_absent(text):
        return None
    digits, _, written = text.partition(" ")
    value = float(digits)
    if not isfinite(value) or written.strip().lower() not in {"", *_WRITTEN[unit]}:
        raise ValueError(text)
    return value


def _names(line: str) -> list[str]:
    # A cell of 131,072 characters raises an error.
    with contextlib.suppress(csv.Error):
        return [_plain(cell) for cell in _cells(line)]
    return []


def _cells(line: str) -> list[str]:
    return next(csv.reader([line], skipinitialspace=True), [])


def _plain(name: str) -> str:
    """Return the name of a column without its unit, or with a unit of another tool."""
    name = name.strip().lower()
    head, bracket, unit = name.rpartition("[")
    if not bracket or not unit.endswith("]") or "]" in unit[:-1]:
        return name
    head = head.rstrip()
    source = _COLUMNS.get(head)
    is_own = source is None or unit[:-1].strip() in _WRITTEN[source.unit]
    return head if is_own else f"{head}[{unit}"


# Column of dmon, unit and reading: of all GPUs, and of --gpm-metrics.
_MONITOR_TABLE = """
pwr   watts     power_watts
gtemp celsius   temperature_celsius
temp  celsius   temperature_celsius
mtemp celsius   memory_temperature_celsius
sm    percent   gpu_busy_fraction
mem   percent   memory_busy_fraction
mclk  mhz       memory_clock_hz
pclk  mhz       sm_clock_hz
fb    mib       memory_used_bytes
pci   count     pcie_replay_count

gract   percent   graphics_active_fraction
smutil  percent   sm_active_fraction
smocc   percent   sm_occupancy_fraction
mmaact  percent   tensor_active_fraction
dfmaact percent   tensor_dfma_active_fraction
hmmaact percent   tensor_hmma_active_fraction
immaact percent   tensor_imma_active_fraction
dram    percent   dram_active_fraction
fp64    percent   fp64_active_fraction
fp32    percent   fp32_active_fraction
fp16    percent   fp16_active_fraction
pcitx   mib_per_s pcie_tx_bytes_per_s
pcirx   mib_per_s pcie_rx_bytes_per_s
nvltx   mib_per_s nvlink_transmitted
nvlrx   mib_per_s nvlink_received
"""
_MONITOR_COLUMNS = _fields(_MONITOR_TABLE)
_MONITOR_TIMES = {"date", "time"}
# A column with the number of a part of the GPU, as --gpm-options=m adds one for each level
# of MIG: by its name, or by its unit. Its exact name is not documented.
_PART_NAME = re.compile(
    r"(?:gpu|compute)?[_-]?(?:gi|ci|mig|inst(?:ance)?)[_-]?(?:id|idx)?"
)
_PART_UNITS = {"idx", "id", "#"}
_ABSENT = {"-", "\N{EN DASH}", "n/a"}
_SURE_COLUMNS = 2  # This number of known columns makes a header.
# Columns without a reading of ours, of which a header may consist.
_UNREAD_NAMES = {
    *("enc", "dec", "jpg", "ofa", "bar1", "ccpm", "pviol", "tviol"),
    *("sbecc", "dbecc", "rxpci", "txpci"),
}


def is_monitor(line: str) -> bool:
    """Return True if an unstamped line is the header of `nvidia-smi dmon`."""
    names = _monitor_cells(line)
    if line[:1] != "#" or "gpu" not in names:
        return False
    place = names.index("gpu")
    columns = {*names[place + 1 :]}
    known = columns & (_MONITOR_COLUMNS.keys() | _UNREAD_NAMES)
    # A heading of Markdown has other words. The columns of GPM may all be unknown.
    is_head = len(known) >= _SURE_COLUMNS or 2 * len(known) >= len(columns) > 0
    return is_head and "pid" not in columns and {*names[:place]} <= _MONITOR_TIMES


def monitor_records(
    text: str, *, start: Moment, interval_s: float, path: str = "nvidia-smi dmon"
) -> Telemetry:
    """
    Return the records of the output of `nvidia-smi dmon`.

    Args:
        text: Its lines, with or without the columns of `-o DT`, `--gpm-metrics` and
            `--format csv`. A line may begin with its time, as `ts` writes it.

        start: The time of the first rows, if rows have no time.

        interval_s: The time between two rows of a GPU [s], if rows have no time.

        path: The name of the text, for the message.

    Returns:
        One record for each row. The id of a MIG instance is its number.

    Raises:
        CaptureFormatError: Some lines have another format. The message lists them.
    """
    monitor = _Monitor(times=Times(start=start, interval_s=interval_s))
    remedy = "give the unchanged output of nvidia-smi dmon"
    left_out = read_lines(text, monitor, path=path, remedy=remedy)
    return Telemetry(
        records=monitor.times.apart(monitor.records),
        model_names={},
        notes=sentences(left_out | monitor.left_out),
    )


@dataclass(slots=True, kw_only=True)
class _Monitor:
    """Reads the lines of dmon in order."""

    times: Times
    names: list[str] = field(default_factory=list)
    # Whether each line begins with a time that is not dmon's own.
    is_stamped: bool = False
    records: list[CanonicalRecord] = field(default_factory=list)
    left_out: LeftOut = field(default_factory=dict)
    # The columns with the number of a part of a GPU.
    parts: list[str] = field(default_factory=list)
    # Number of rows by GPU or part of a GPU.
    counts: dict[GpuKey, int] = field(default_factory=dict)

    def take(self, line: str, where: str) -> bool:
        """
        Read a line, and return True for a row of values.

        Raises:
            ValueError: The line is not of dmon.
        """
        stamp, bare = split_stamp(line)
        if bare.startswith("#"):
            if is_monitor(bare):
                self.is_stamped = bool(stamp)
                self._take_header(_monitor_cells(bare))
            else:  # The units, or a comment.
                units = _monitor_cells(bare)
                if len(units) == len(self.names):
                    named = dict(zip(self.names, units, strict=True))
                    known = {*_MONITOR_COLUMNS, *_MONITOR_TIMES, *self.parts, "gpu"}
                    self.parts += [
                        name
                        for name, unit in named.items()
                        if unit in _PART_UNITS and name not in known
                    ]
                    self._tell_unread()
            return False
        cells = _monitor_cells(bare if self.is_stamped else line)
        if not cells:
            return False
        values = _by_name(self.names, cells)
        if not values["gpu"].isdecimal():
            message = f"{excerpt(values['gpu'])} is not the index of a GPU"
            raise ValueError(message)
        gpu_index = int(values["gpu"])
        part = "".join(
            f"/{name.upper()}{values[name]}"
            for name in self.parts
            if values[name] not in _ABSENT
        )
        gpu = "", gpu_index, part
        moment = self._moment(values, gpu, stamp if self.is_stamped else "")
        if self.times.went_back:
            self.left_out.setdefault(GOES_BACK, []).append(where)
        found = self._readings(values, f"GPU {gpu_index} ({where})")
        self.records.append(record_at(moment, gpu, found))
        return True

    def _take_header(self, names: list[str]) -> None:
        self.names = names
        self.parts = [name for name in names if _PART_NAME.fullmatch(name)]
        self._tell_unread()

    def _tell_unread(self) -> None:
        read = {*_MONITOR_COLUMNS, *_MONITOR_TIMES, *self.parts, "gpu"}
        unread = [name for name in self.names if name not in read]
        self.left_out.pop(_UNREAD_COLUMNS, None)
        if unread:
            self.left_out[_UNREAD_COLUMNS] = unread

    def is_data(self, line: str) -> bool:
        """Return True if an unreadable line has values."""
        bare = split_stamp(line)[1] if self.is_stamped else line
        return has_values(_monitor_cells(bare), len(self.names))

    def _moment(self, values: Mapping[str, str], gpu: GpuKey, stamp: str) -> Moment:
        count = self.counts.get(gpu, 0)
        self.counts[gpu] = count + 1
        if "time" in values:
            stamp = f"{values.get('date', '')} {values['time']}".strip()
        return self.times.of_stamp(stamp) if stamp else self.times.of_row(count)

    def _readings(
        self, values: Mapping[str, str], where: str
    ) -> dict[str, Value | None]:
        known: dict[Field, float | None] = {}
        for name, text in values.items():
            if name not in _MONITOR_COLUMNS:
                continue
            known[_MONITOR_COLUMNS[name]] = value = number(text)
            if value is None and text not in _ABSENT:
                message = f"{excerpt(text)} is not a number"
                raise ValueError(message)
        found, notes = readings(known)
        for note in notes:
            self.left_out.setdefault(note, []).append(where)
        return found


def _monitor_cells(line: str) -> list[str]:
    line = line.lstrip("#").lower()
    cells = line.split(",") if "," in line else line.split()
    return [cell.strip() for cell in cells]
