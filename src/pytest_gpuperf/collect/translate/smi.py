"""Readings from tables of nvidia-smi (`--query-gpu=… --format=csv`)."""

from __future__ import annotations

import contextlib
import csv
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from decimal import Decimal
from math import isfinite

from pytest_gpuperf.collect.translate.dcgm import (
    Moment,
    Telemetry,
    record_at,
    refuse_mistakes,
    sentences,
)
from pytest_gpuperf.model.quantity import MiB
from pytest_gpuperf.model.telemetry import CanonicalRecord

# Column name without unit -> field of a CanonicalRecord, and the factor of the unit.
_COLUMNS: dict[str, tuple[str, float]] = {
    "utilization.gpu": ("gpu_busy_fraction", 0.01),
    "utilization.memory": ("memory_busy_fraction", 0.01),
    "memory.used": ("memory_used_bytes", MiB),
    "memory.free": ("memory_free_bytes", MiB),
    "memory.reserved": ("memory_reserved_bytes", MiB),
    "power.draw": ("power_watts", 1.0),
    "power.draw.instant": ("power_watts", 1.0),
    "enforced.power.limit": ("power_limit_watts", 1.0),
    "power.limit": ("power_limit_watts", 1.0),
    "power.default_limit": ("power_limit_default_watts", 1.0),
    "temperature.gpu": ("temperature_celsius", 1.0),
    "temperature.memory": ("memory_temperature_celsius", 1.0),
    "clocks.current.sm": ("sm_clock_hz", 1e6),
    "clocks.sm": ("sm_clock_hz", 1e6),
    "clocks.current.memory": ("memory_clock_hz", 1e6),
    "clocks.mem": ("memory_clock_hz", 1e6),
}
_COUNTS = {
    "remapped_rows.uncorrectable": "uncorrectable_remapped_row_count",
    "remapped_rows.correctable": "correctable_remapped_row_count",
}
_IDENTITY = frozenset({"timestamp", "index", "uuid", "gpu_uuid", "name", "gpu_name"})
_SHOWN = 20  # Characters of a cell that a note shows.
_STAMP = "%Y/%m/%d %H:%M:%S.%f"
# [N/A], [Not Supported] and [Unknown Error] mean an absent value.
_NO_VALUES = ("[", "n/a")


def is_smi_table(text: str) -> bool:
    """Return True if a text begins with the header of a table of nvidia-smi."""
    names = _names(text.partition("\n")[0])
    return len(names) > 1 and any(n in _COLUMNS or n in _IDENTITY for n in names)


def smi_records(
    text: str, *, start: Moment, interval_s: float, path: str = "nvidia-smi"
) -> Telemetry:
    """
    Return the records of a table of nvidia-smi.

    Args:
        text: The table with its header, with units or without (`csv,nounits`).

        start: The time of the first rows, if rows have no timestamp.

        interval_s: The time between two rows of a GPU [s], if rows have no timestamp.

        path: The name of the text, for the message.

    Returns:
        One record for each row. The table has no counters of SM, tensor or DRAM
        activity, so they are absent.

    Raises:
        CaptureFormatError: Some rows do not fit the table. The message lists them.
    """
    head, *rows = text.splitlines()
    table = _Table(names=_names(head), start=start, interval_s=interval_s)
    for line_number, line in enumerate(rows, 2):
        try:
            table.take(_cells(line), f"line {line_number}")
        except (ValueError, csv.Error) as error:
            table.mistakes.append(f"line {line_number}: {error}")
    refuse_mistakes(table.mistakes, path, tool="nvidia-smi --format=csv")
    ours = {*_COLUMNS, *_COUNTS, *_IDENTITY}
    left_out = {
        "columns without a reading of ours": [n for n in table.names if n not in ours],
        "not numbers, and left out": table.unread,
    }
    return Telemetry(
        records=tuple(table.records),
        model_names=table.model_names,
        notes=sentences({reason: what for reason, what in left_out.items() if what}),
    )


@dataclass(slots=True, kw_only=True)
class _Table:
    """Reads the rows of a table in order."""

    names: list[str]
    start: Moment
    interval_s: float
    records: list[CanonicalRecord] = field(default_factory=list)
    model_names: dict[int, str] = field(default_factory=dict)
    mistakes: list[str] = field(default_factory=list)
    # Cells that are not numbers, with their lines.
    unread: list[str] = field(default_factory=list)
    # Number of rows by GPU.
    counts: dict[int, int] = field(default_factory=dict)
    # In the order of their first rows, which numbers the GPUs if no column does.
    uuids: list[str] = field(default_factory=list)
    first_s: float | None = None

    def take(self, row: Sequence[str], where: str) -> None:
        """
        Read a row.

        Raises:
            ValueError: The row does not fit the table.
        """
        # With --loop, nvidia-smi may repeat the header.
        if not row or [_plain(cell) for cell in row] == self.names:
            return
        if len(row) != len(self.names):
            message = f"{len(row)} values under {len(self.names)} names"
            raise ValueError(message)
        values = dict(zip(self.names, (cell.strip() for cell in row), strict=True))
        uuid = values.get("uuid") or values.get("gpu_uuid") or ""
        stated = values.get("index")
        if stated is None:
            if uuid not in self.uuids:
                self.uuids.append(uuid)
            index = self.uuids.index(uuid)
        elif stated.isdecimal():
            index = int(stated)
        else:
            message = f"{stated!r} is not the index of a GPU"
            raise ValueError(message)
        moment = self._moment(values.get("timestamp"), index)
        model = values.get("name") or values.get("gpu_name")
        if model:
            self.model_names[index] = model
        readings = self._readings(values, where)
        self.records.append(record_at(moment, index, uuid, readings))

    def _moment(self, text: str | None, index: int) -> Moment:
        """Return the time of a row, counted from the row number if there is no timestamp."""
        count = self.counts.get(index, 0)
        self.counts[index] = count + 1
        if text is None:
            return self.start.after(count * self.interval_s)
        try:
            # nvidia-smi does not print the time zone. UTC is assumed.
            parsed = datetime.strptime(text, _STAMP).replace(tzinfo=timezone.utc)
        except ValueError as error:
            message = f"{text!r} is not a time as 2025/03/01 12:00:00.000"
            raise ValueError(message) from error
        stamp_s = parsed.timestamp()
        self.first_s = stamp_s if self.first_s is None else self.first_s
        elapsed_s = stamp_s - self.first_s
        return Moment(monotonic_s=self.start.monotonic_s + elapsed_s, unix_s=stamp_s)

    def _readings(
        self, values: dict[str, str], where: str
    ) -> dict[str, float | int | None]:
        readings: dict[str, float | int | None] = {}
        for name, text in values.items():
            reading, factor = _COLUMNS.get(name) or (_COUNTS.get(name), 1.0)
            if reading is None:
                continue
            number: float | int | None = None
            try:
                number = _number(text, factor)
            except ValueError:
                self.unread.append(f"{name} {text[:_SHOWN]!r} ({where})")
            if number is not None and name in _COUNTS:
                number = int(number)
            # Two columns may give the same reading.
            if readings.get(reading) is None:
                readings[reading] = number
        return readings


def _number(text: str, factor: float) -> float | None:
    """
    Return the number of a cell in the standard unit, or None if absent.

    Raises:
        ValueError: The cell is not a finite number.
    """
    if not text or text.lower().startswith(_NO_VALUES):
        return None
    number = float(text.split(" ", maxsplit=1)[0])
    if isfinite(number):
        # In decimal, so that 41 % is exactly 0.41.
        number = float(Decimal(repr(number)) * Decimal(repr(factor)))
    if not isfinite(number):
        raise ValueError(text)
    return number


def _names(line: str) -> list[str]:
    """Return the column names of a header, or [] if the line is not a row of a table."""
    # A cell of 131,072 characters raises an error.
    with contextlib.suppress(csv.Error):
        return [_plain(cell) for cell in _cells(line)]
    return []


def _cells(line: str) -> list[str]:
    return next(csv.reader([line], skipinitialspace=True), [])


def _plain(name: str) -> str:
    name = name.strip()
    head, bracket, unit = name.rpartition("[")
    has_unit = bracket and unit.endswith("]") and "]" not in unit[:-1]
    return (head.rstrip() if has_unit else name).lower()
