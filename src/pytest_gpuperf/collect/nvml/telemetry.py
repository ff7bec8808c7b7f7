"""NVML's sensors and GPM metrics in our names and units.

GPM gives the average between two samples that one takes oneself: one before the code under
test and one after it make one exact reading of the time between.

References:
    nvml.h of the 580 driver: the metrics' numbers, names and units.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import Any

from pytest_gpuperf.collect.devices import HZ_PER_MHZ
from pytest_gpuperf.collect.nvml.child import COLUMNS
from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.telemetry import CanonicalRecord

__all__ = ["FIRST_COLUMN", "GPM_METRICS", "GpmValue", "canonical", "gpm_readings"]

_MIB_BYTES = 1024.0**2  # GPM's rates are MiB/s
_FRACTIONS = {
    1: ("GRAPHICS_UTIL", "graphics_active_fraction"),
    2: ("SM_UTIL", "sm_active_fraction"),
    3: ("SM_OCCUPANCY", "sm_occupancy_fraction"),
    5: ("ANY_TENSOR_UTIL", "tensor_active_fraction"),
    6: ("DFMA_TENSOR_UTIL", "tensor_dfma_active_fraction"),
    7: ("HMMA_TENSOR_UTIL", "tensor_hmma_active_fraction"),
    8: ("DMMA_TENSOR_UTIL", "tensor_dmma_active_fraction"),
    9: ("IMMA_TENSOR_UTIL", "tensor_imma_active_fraction"),
    10: ("DRAM_BW_UTIL", "dram_active_fraction"),
    11: ("FP64_UTIL", "fp64_active_fraction"),
    12: ("FP32_UTIL", "fp32_active_fraction"),
    13: ("FP16_UTIL", "fp16_active_fraction"),
}
_GPM_RATES = {
    20: ("PCIE_TX_PER_SEC", "pcie_tx_bytes_per_s"),
    21: ("PCIE_RX_PER_SEC", "pcie_rx_bytes_per_s"),
}
_NVLINK = {60: "NVLINK_TOTAL_RX_PER_SEC", 61: "NVLINK_TOTAL_TX_PER_SEC"}

GPM_METRICS: Mapping[int, str] = (  # number -> name, of those that are asked for
    {i: name for i, (name, _) in (_FRACTIONS | _GPM_RATES).items()} | _NVLINK
)
_NUMBERS = {name: i for i, name in GPM_METRICS.items()}


class GpmValue(Frozen, frozen=True, kw_only=True):
    """
    One metric as NVML gives it.

    Attributes:
        metric: Its number, or its name with or without `NVML_GPM_METRIC_`.

        value: In percent or MiB/s; NaN is NVML's blank.

        nvml_return: NVML's own result for it; 0: good.
    """

    metric: int | str
    value: float
    nvml_return: int = 0


def gpm_readings(values: Iterable[GpmValue]) -> dict[str, float | None]:
    """
    Return GPM metrics by the names of a CanonicalRecord.

    Args:
        values: As NVML gave them; metrics that are not ours are passed over.

    Returns:
        Fractions (0 to 1) and rates [B/s]. None: NVML refused it, or gave a number that
        is not finite, or a rate below 0. NVLink counts only where both directions are
        there.

    Example:
        >>> gpm_readings([GpmValue(metric="SM_UTIL", value=62.5)])
        {'sm_active_fraction': 0.625}
    """
    given = {_numbered(v.metric): _known(v) for v in values}
    found: dict[str, float | None] = {}
    for i, (_, reading) in _FRACTIONS.items():
        if i in given:
            percent = given[i]
            found[reading] = (
                None if percent is None else min(1.0, max(0.0, percent / 100.0))
            )
    for i, (_, reading) in _GPM_RATES.items():
        if i in given:
            found[reading] = _rate(given[i])
    if given.keys() & _NVLINK.keys():
        received, sent = (_rate(given.get(i)) for i in _NVLINK)
        found["nvlink_bytes_per_s"] = (
            None if received is None or sent is None else received + sent
        )
    return found


def _numbered(metric: int | str) -> int | None:
    """Return a metric's number; None: not one of ours."""
    if isinstance(metric, int):
        return metric if metric in GPM_METRICS else None
    return _NUMBERS.get(metric.removeprefix("NVML_GPM_METRIC_"))


def _rate(mib_per_s: float | None) -> float | None:
    """Return a rate in bytes; None where it is absent or below 0."""
    if mib_per_s is None or mib_per_s < 0:
        return None
    return mib_per_s * _MIB_BYTES


def _known(value: GpmValue) -> float | None:
    """Return a metric's number; None where NVML did not say it."""
    good = value.nvml_return == 0 and isfinite(value.value)
    return value.value if good else None


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
