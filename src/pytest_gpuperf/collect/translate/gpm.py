"""NVML's GPM metrics in our names and units.

GPM gives the average between two samples that one takes oneself: one before the code under
test and one after it make one exact reading of the time between.

References:
    nvml.h of the 580 driver: the metrics' numbers, names and units.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isfinite

from pytest_gpuperf.model.frozen import Frozen

__all__ = ["GPM_METRICS", "GpmValue", "gpm_readings"]

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
_RATES = {
    20: ("PCIE_TX_PER_SEC", "pcie_tx_bytes_per_s"),
    21: ("PCIE_RX_PER_SEC", "pcie_rx_bytes_per_s"),
}
_NVLINK = {60: "NVLINK_TOTAL_RX_PER_SEC", 61: "NVLINK_TOTAL_TX_PER_SEC"}

GPM_METRICS: Mapping[int, str] = (  # number -> name, of those that are asked for
    {i: name for i, (name, _) in (_FRACTIONS | _RATES).items()} | _NVLINK
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
    for i, (_, reading) in _RATES.items():
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
