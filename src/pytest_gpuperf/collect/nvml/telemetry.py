"""A sampler's records of the sensors, in our names and units."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pytest_gpuperf.collect.nvml.child import COLUMNS
from pytest_gpuperf.collect.nvml.library import HZ_PER_MHZ
from pytest_gpuperf.collect.translate.gpm import GPM_METRICS, GpmValue, gpm_readings
from pytest_gpuperf.model.telemetry import CanonicalRecord

__all__ = ["FIRST_COLUMN", "canonical"]

_GPM = tuple(GPM_METRICS)
_BYTES_PER_KIB = 1024
FIRST_COLUMN = 4  # in a record: its number, two times, the GPU; then the columns
_PLAIN = {  # column -> reading of a CanonicalRecord, and what it is multiplied with
    "memory_celsius": ("memory_temperature_celsius", 1.0),
    "power_milliwatts": ("power_watts", 1e-3),
    "energy_millijoules": ("energy_joules", 1e-3),
    "gpu_percent": ("gpu_busy_fraction", 1e-2),
    "memory_percent": ("memory_busy_fraction", 1e-2),
    "sm_mhz": ("sm_clock_hz", float(HZ_PER_MHZ)),
    "memory_mhz": ("memory_clock_hz", float(HZ_PER_MHZ)),
    "celsius": ("temperature_celsius", 1.0),
    "used_bytes": ("memory_used_bytes", 1.0),
    "free_bytes": ("memory_free_bytes", 1.0),
    "reserved_bytes": ("memory_reserved_bytes", 1.0),
    "limit_milliwatts": ("power_limit_watts", 1e-3),
    "default_limit_milliwatts": ("power_limit_default_watts", 1e-3),
}
_COUNTS = {
    "pcie_replays": "pcie_replay_count",
    "remapped_corrected": "correctable_remapped_row_count",
    "remapped_uncorrected": "uncorrectable_remapped_row_count",
}
_RATES = {
    "pcie_tx_bytes_per_s": (("pcie_tx_bytes",), 1),
    "pcie_rx_bytes_per_s": (("pcie_rx_bytes",), 1),
    "nvlink_bytes_per_s": (("nvlink_tx_kib", "nvlink_rx_kib"), _BYTES_PER_KIB),
}


def canonical(
    rows: Sequence[Sequence[float]], uuids: Sequence[str], indexes: Sequence[int]
) -> list[CanonicalRecord]:
    """
    Return records of a ring by the names of a CanonicalRecord, in their order.

    A GPM average holds for the time since the one before: for each sample in between.

    Args:
        rows: Records as the ring has them; of each GPU in order.

        uuids: The GPUs in the order in which they were asked for.

        indexes: The place of each in the driver's order.
    """
    latest: dict[float, tuple[float, dict[str, float | None]]] = {}
    averages: list[dict[str, float | None]] = []
    for row in reversed(rows):
        values = _named(row)
        if "gpm_since_s" in values:
            latest[row[3]] = values["gpm_since_s"], _gpm(row)
        since_s, found = latest.get(row[3], (math.inf, {}))
        averages.append(found if row[1] > since_s else {})
    before: dict[float, Sequence[float]] = {}
    records = []
    for row, found in zip(rows, reversed(averages), strict=True):
        gpu = int(row[3])
        readings: dict[str, Any] = {
            **_rates(row, before.get(row[3])),
            **_plain(row),
            **{name: value for name, value in found.items() if value is not None},
        }
        records.append(
            CanonicalRecord(
                gpu_index=indexes[gpu],
                gpu_uuid=uuids[gpu],
                monotonic_s=row[1],
                unix_s=row[2],
                **readings,
            )
        )
        before[row[3]] = row
    return records


def _named(row: Sequence[float]) -> dict[str, float]:
    """Return the columns that gave something."""
    columns = row[FIRST_COLUMN : FIRST_COLUMN + len(COLUMNS)]
    named = zip(COLUMNS, columns, strict=True)
    return {column: value for column, value in named if not math.isnan(value)}


def _gpm(row: Sequence[float]) -> dict[str, float | None]:
    """Return the GPM averages of a record."""
    values = row[FIRST_COLUMN + len(COLUMNS) : -1]
    return gpm_readings(
        GpmValue(metric=metric, value=value)
        for metric, value in zip(_GPM, values, strict=True)
    )


def _plain(row: Sequence[float]) -> dict[str, float | int | bool]:
    """Return what one record says by itself."""
    values = _named(row)
    found: dict[str, float | int | bool] = {
        reading: values[column] * scale
        for column, (reading, scale) in _PLAIN.items()
        if column in values
    }
    found |= {
        reading: int(values[column])
        for column, reading in _COUNTS.items()
        if column in values
    }
    if "remap_failed" in values:
        found["row_remap_failed"] = values["remap_failed"] > 0
    return found


def _rates(row: Sequence[float], before: Sequence[float] | None) -> dict[str, float]:
    """Return what only the difference of two records says."""
    if before is None:
        return {}
    elapsed_s, new, old = row[1] - before[1], _named(row), _named(before)
    found = {}
    for reading, (columns, scale) in _RATES.items():
        if elapsed_s > 0 and all(each in new and each in old for each in columns):
            moved = sum(new[each] - old[each] for each in columns)
            if moved >= 0:
                found[reading] = moved * scale / elapsed_s
    return found
