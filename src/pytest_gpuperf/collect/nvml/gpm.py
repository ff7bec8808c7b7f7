"""GPM: averages of a GPU's hardware counters between two samples.

One sample before the code under test and one after it give one exact reading of the time
between.

References:
    nvml.h of the 580 driver: the metrics' numbers, names and units.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite

from pytest_gpuperf.collect.clock import NS_PER_S, Clock
from pytest_gpuperf.collect.nvml.child import GPM_GAP_S
from pytest_gpuperf.collect.nvml.library import Board

__all__ = ["GPM_METRICS", "GpmPair", "gpm_readings"]

_NOT_SUPPORTED = 3  # nvml.h
_MIB_BYTES = 1024.0**2  # GPM's rates are MiB/s
_FRACTIONS = {  # nvml.h, NVML_GPM_METRIC_*
    1: "graphics_active_fraction",  # GRAPHICS_UTIL
    2: "sm_active_fraction",  # SM_UTIL
    3: "sm_occupancy_fraction",  # SM_OCCUPANCY
    5: "tensor_active_fraction",  # ANY_TENSOR_UTIL
    6: "tensor_dfma_active_fraction",  # DFMA_TENSOR_UTIL
    7: "tensor_hmma_active_fraction",  # HMMA_TENSOR_UTIL
    8: "tensor_dmma_active_fraction",  # DMMA_TENSOR_UTIL
    9: "tensor_imma_active_fraction",  # IMMA_TENSOR_UTIL
    10: "dram_active_fraction",  # DRAM_BW_UTIL
    11: "fp64_active_fraction",  # FP64_UTIL
    12: "fp32_active_fraction",  # FP32_UTIL
    13: "fp16_active_fraction",  # FP16_UTIL
}
_RATES = {
    20: "pcie_tx_bytes_per_s",  # PCIE_TX_PER_SEC
    21: "pcie_rx_bytes_per_s",  # PCIE_RX_PER_SEC
}
_NVLINK = (60, 61)  # NVLINK_TOTAL_RX_PER_SEC, NVLINK_TOTAL_TX_PER_SEC
GPM_METRICS = (*_FRACTIONS, *_RATES, *_NVLINK)  # the numbers of those that are read


class GpmPair:
    """
    Two samples of the GPU's own counters, and the averages between them.

    Args:
        board: Hopper or newer: older GPUs have no GPM.

        clock: When.
    """

    def __init__(self, board: Board, clock: Clock) -> None:
        self._board = board
        self._clock = clock
        self._since_ns = 0
        nvml = board.nvml
        support = board.call("GPM", "nvmlGpmQueryDeviceSupport")
        if support is not None and not support.isSupportedDevice:
            board.refused("GPM", _NOT_SUPPORTED)
        self._samples = board.read(
            "GPM", lambda: (nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc())
        )
        self._began = False

    def begin(self) -> None:
        """Take the first sample."""
        self._began = self._take(0)
        self._since_ns = self._clock.now_ns()

    def end(self) -> tuple[dict[str, float | None], str | None]:
        """
        Return the averages since `begin`, by the names of a CanonicalRecord.

        Returns:
            The averages, and None; or nothing, and why as a fragment.
        """
        duration_s = (self._clock.now_ns() - self._since_ns) / NS_PER_S
        if duration_s <= GPM_GAP_S and self._began:
            return {}, (
                f"it took {duration_s:.3g} s, and GPM needs more than {GPM_GAP_S:g} s"
            )
        values = self._metrics() if self._began and self._take(1) else None
        if values is None:
            gap = self._board.silent.get("GPM") or self._board.lost
            return {}, "its first sample is missing" if gap is None else gap.reason
        return gpm_readings(values), None

    def close(self) -> None:
        """Free both samples."""
        for sample in self._samples or ():
            self._board.release("GPM", "nvmlGpmSampleFree", sample)
        self._samples = None

    def _take(self, i: int) -> bool:
        """Take a sample; return whether that succeeded."""
        if self._samples is None:
            return False
        board, sample = self._board, self._samples[i]
        if board.instance is None:
            taken = board.call("GPM", "nvmlGpmSampleGet", sample)
        else:
            taken = board.call("GPM", "nvmlGpmMigSampleGet", board.instance, sample)
        return taken is not None

    def _metrics(self) -> dict[int, float | None] | None:
        """Return the averages as NVML gives them, by number."""
        nvml = self._board.nvml
        request = nvml.c_nvmlGpmMetricsGet_t()
        request.version = nvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(GPM_METRICS)
        request.sample1, request.sample2 = self._samples
        for i, metric in enumerate(GPM_METRICS):
            request.metrics[i].metricId = metric
        if self._board.read("GPM", lambda: nvml.nvmlGpmMetricsGet(request)) is None:
            return None
        return {
            metric.metricId: None if metric.nvmlReturn else metric.value
            for metric in request.metrics[: len(GPM_METRICS)]
        }


def gpm_readings(values: Mapping[int, float | None]) -> dict[str, float | None]:
    """
    Return GPM metrics by the names of a CanonicalRecord.

    Args:
        values: In percent or MiB/s, by the metric's number; None: NVML refused it, NaN:
            NVML's blank. Metrics that have no such name are ignored.

    Returns:
        Fractions (0 to 1) and rates [B/s]. None: NVML gave no finite number, or a rate
        below 0. NVLink counts only where both directions are there.

    Example:
        >>> gpm_readings({2: 62.5})
        {'sm_active_fraction': 0.625}
    """
    readings = {
        name: _fraction(values[metric])
        for metric, name in _FRACTIONS.items()
        if metric in values
    }
    readings |= {
        name: _rate(values[metric])
        for metric, name in _RATES.items()
        if metric in values
    }
    if not values.keys().isdisjoint(_NVLINK):
        received, sent = (_rate(values.get(metric)) for metric in _NVLINK)
        readings["nvlink_bytes_per_s"] = (
            None if received is None or sent is None else received + sent
        )
    return readings


def _fraction(percent: float | None) -> float | None:
    """Return a percentage as a fraction; None: absent, or not finite."""
    if percent is None or not isfinite(percent):
        return None
    return min(1.0, max(0.0, percent / 100.0))


def _rate(mib_per_s: float | None) -> float | None:
    """Return a rate in bytes; None: absent, not finite, or below 0."""
    if mib_per_s is None or not isfinite(mib_per_s) or mib_per_s < 0:
        return None
    return mib_per_s * _MIB_BYTES
