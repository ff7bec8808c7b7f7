"""Counters of a GPU that are read in one call each."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

from pytest_gpuperf.collect.clock import Clock
from pytest_gpuperf.collect.nvml import VALUE_TYPES, Board, fault_of
from pytest_gpuperf.collect.translate.gpm import GPM_METRICS, GpmValue, gpm_readings
from pytest_gpuperf.model.deltas import ClockReason

__all__ = ["ECC", "GPM_GAP_S", "THROTTLED", "Counters", "GpmPair"]

GPM_GAP_S = 0.1  # NVML reference: GPM needs more than 100 ms between two samples
_NOT_SUPPORTED = 3  # nvml.h
_NS_PER_S = 1_000_000_000
_ALL_LINKS = 0xFFFF_FFFF  # scope of an NVLink field: the sum over links

THROTTLED = {  # nvml.h, NVML_FI_DEV_*: ns since the driver was loaded
    ClockReason.SOFTWARE_POWER_CAP: 74,
    ClockReason.THERMAL: 75,
    ClockReason.SYNC_BOOST: 76,
    ClockReason.BOARD_LIMIT: 77,
    ClockReason.SOFTWARE_THERMAL: 269,
    ClockReason.HARDWARE_THERMAL: 270,
    ClockReason.POWER_BRAKE: 271,
}
ECC = {
    "corrected errors": (3, 0),
    "uncorrected errors": (4, 0),
    "rows replaced for corrected errors": (142, 0),
    "rows replaced for uncorrected errors": (143, 0),
    "rows waiting to be replaced": (144, 0),
    "rows that could not be replaced": (145, 0),
}
_FIELDS: Mapping[str, tuple[int, int]] = {  # sensor -> field, scope
    **{f"time under {reason.value}": (i, 0) for reason, i in THROTTLED.items()},
    **ECC,
    "PCIe replays": (94, 0),
    "PCIe bytes sent": (197, 0),
    "PCIe bytes received": (198, 0),
    "NVLink data sent": (138, _ALL_LINKS),
    "NVLink data received": (139, _ALL_LINKS),
}


class Counters:
    """Counters that are read in one call, into an array that is made once."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._wanted = dict(_FIELDS)
        # pynvml builds the array anew in each call: four fifths of what it costs
        self._read = board.tell(
            "counters",
            lambda: board.nvml._nvmlGetFunctionPointer("nvmlDeviceGetFieldValues"),  # noqa: SLF001 - the only way past that
        )
        self._prepare()

    def read(self) -> dict[str, int]:
        """Return each counter that speaks."""
        if self._read is None or self._board.lost is not None or not self._wanted:
            return {}
        code = int(self._read(self._board.handle, self._length, self._array))
        if code:
            self._board.refused("counters", code)
            return {}
        found: dict[str, int] = {}
        dropped = False
        for sensor, value in zip(self._wanted, self._array, strict=True):
            code = value.nvmlReturn
            if not code:
                found[sensor] = getattr(value.value, VALUE_TYPES[value.valueType])
                continue
            self._board.refused(sensor, code)
            dropped = dropped or fault_of(code).lasting
        if dropped:
            silent = {each.sensor for each in self._board.silent}
            self._wanted = {k: v for k, v in self._wanted.items() if k not in silent}
            self._prepare()
        return found

    def _prepare(self) -> None:
        """Make the array for what is still to be asked."""
        self._array = (self._board.nvml.c_nvmlFieldValue_t * len(self._wanted))()
        self._length = ctypes.c_int(len(self._wanted))
        for value, wanted in zip(self._array, self._wanted.values(), strict=True):
            value.fieldId, value.scopeId = wanted


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
        support = board.ask("GPM", "nvmlGpmQueryDeviceSupport")
        if support is not None and not support.isSupportedDevice:
            board.refused("GPM", _NOT_SUPPORTED)
        self._samples = board.tell(
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
        duration_s = (self._clock.now_ns() - self._since_ns) / _NS_PER_S
        if duration_s <= GPM_GAP_S and self._began:
            return {}, (
                f"it took {duration_s * 1e3:.3g} ms, and GPM needs more than"
                f" {GPM_GAP_S * 1e3:g} ms: it has to be repeated"
            )
        values = self._metrics() if self._began and self._take(1) else None
        if values is None:
            silent = self._board.silent_named("GPM") or self._board.lost
            return {}, "it was never begun" if silent is None else silent.reason
        return gpm_readings(values), None

    def close(self) -> None:
        """Give both samples back."""
        for sample in self._samples or ():
            self._board.release("GPM", "nvmlGpmSampleFree", sample)
        self._samples = None

    def _take(self, i: int) -> bool:
        """Take a sample; return whether that went well."""
        if self._samples is None:
            return False
        board, sample = self._board, self._samples[i]
        if board.instance is None:
            taken = board.ask("GPM", "nvmlGpmSampleGet", sample)
        else:
            taken = board.ask("GPM", "nvmlGpmMigSampleGet", board.instance, sample)
        return taken is not None

    def _metrics(self) -> list[GpmValue] | None:
        """Return the averages as NVML gives them."""
        nvml = self._board.nvml
        asked = nvml.c_nvmlGpmMetricsGet_t()
        asked.version = nvml.NVML_GPM_METRICS_GET_VERSION
        asked.numMetrics = len(GPM_METRICS)
        asked.sample1, asked.sample2 = self._samples
        for i, metric in enumerate(GPM_METRICS):
            asked.metrics[i].metricId = metric
        if self._board.tell("GPM", lambda: nvml.nvmlGpmMetricsGet(asked)) is None:
            return None
        return [
            GpmValue(
                metric=each.metricId, value=each.value, nvml_return=each.nvmlReturn
            )
            for each in asked.metrics[: len(GPM_METRICS)]
        ]
