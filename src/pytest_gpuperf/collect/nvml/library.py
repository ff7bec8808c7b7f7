"""NVML as a library: opening and reading one GPU, and the meaning of each error code.

GPM gives the averages of a GPU's hardware counters between two samples. One sample before
the code under test and one after it give one exact reading of the time in between.

References:
    nvml.h of the 580 driver: the metrics' numbers, names and units.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from math import isfinite
from pathlib import Path
from types import ModuleType
from typing import Any

from pytest_gpuperf.collect.clock import NS_PER_S, Clock
from pytest_gpuperf.collect.leases import descends_from
from pytest_gpuperf.collect.listed_devices import HZ_PER_MHZ
from pytest_gpuperf.collect.nvml.child import GPM_GAP_S
from pytest_gpuperf.errors import CollectorUnavailableError
from pytest_gpuperf.model.gap import Gap, GapCode
from pytest_gpuperf.model.quantity import MiB
from pytest_gpuperf.model.telemetry import ClockReason, Sharing

_SUCCESS, _INVALID, _NOT_FOUND, _NO_FUNCTION = 0, 2, 6, 13  # nvml.h
_NO_GPU, _UNKNOWN = 28, 999
# nvml.h, nvmlValueType_t: the union member of each value type.
VALUE_TYPES = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
_USE = "use by process"
# Linux, PROC_PID_INIT_INO: the PID namespace of the host.
_FIRST_PID_NAMESPACE = "pid:[4026531836]"

_DRIVER = "start the NVIDIA driver (modprobe nvidia), or measure on another machine"
_UPGRADE = "use a newer driver"
_BINDING = "use the nvidia-ml-py of the driver's branch"
_RESET = "reset the GPU (nvidia-smi --gpu-reset) or restart the machine"
_AGAIN = "run it again"
# nvml.h, nvmlReturn_t: code, reason and remedy of each status except success.
_GAPS = {
    1: (
        GapCode.TEMPORARY,
        "NVML was shut down during the run",
        "find out what calls nvmlShutdown",
    ),
    2: (GapCode.UNSUPPORTED, "NVML does not know this reading", _BINDING),
    3: (GapCode.UNSUPPORTED, "this board has no such sensor", "measure on another GPU"),
    4: (
        GapCode.COUNTER_PERMISSION,
        "the driver does not permit this user to read it",
        "ask the machine's administrator for permission",
    ),
    5: (GapCode.TEMPORARY, "NVML was started twice", _AGAIN),
    6: (GapCode.TEMPORARY, "NVML has no value yet", _AGAIN),
    7: (GapCode.TEMPORARY, "the answer of NVML is larger than its buffer", _AGAIN),
    8: (
        GapCode.DEVICE_LOST,
        "the board's external power is not connected",
        "connect the power cables of the board",
    ),
    9: (GapCode.COLLECTOR_UNAVAILABLE, "the NVIDIA driver is not loaded", _DRIVER),
    10: (GapCode.TEMPORARY, "NVML did not answer in time", _AGAIN),
    11: (
        GapCode.TEMPORARY,
        "the driver reports a problem with the GPU's interrupts",
        _AGAIN,
    ),
    12: (GapCode.COLLECTOR_UNAVAILABLE, "the NVML library is not installed", _DRIVER),
    13: (GapCode.UNSUPPORTED, "this driver has no such function", _UPGRADE),
    14: (
        GapCode.COLLECTOR_FAILED,
        "the board's information memory is damaged",
        "have the board replaced",
    ),
    15: (GapCode.DEVICE_LOST, "the GPU has fallen off the bus", _RESET),
    16: (GapCode.DEVICE_LOST, "the GPU needs a reset", _RESET),
    17: (GapCode.TEMPORARY, "the operating system refused the reading", _AGAIN),
    18: (
        GapCode.COLLECTOR_UNAVAILABLE,
        "the driver was replaced while it was in use",
        "restart the machine, so that driver and library have the same version",
    ),
    19: (GapCode.TEMPORARY, "another process uses the sensor", _AGAIN),
    20: (GapCode.TEMPORARY, "NVML has too little memory", _AGAIN),
    21: (GapCode.TEMPORARY, "NVML has no data yet", _AGAIN),
    22: (
        GapCode.NOT_STATED,
        "a virtual GPU has no such sensor while ECC is on",
        "measure on a whole GPU",
    ),
    23: (GapCode.TEMPORARY, "the driver has too few resources for it", _AGAIN),
    24: (GapCode.NOT_STATED, "the board does not know this clock", _UPGRADE),
    25: (
        GapCode.UNSUPPORTED,
        "driver and nvidia-ml-py disagree on the layout of a structure",
        _BINDING,
    ),
    26: (GapCode.UNSUPPORTED, "the driver no longer has this reading", _BINDING),
    27: (GapCode.TEMPORARY, "the GPU is not ready", _AGAIN),
    28: (GapCode.DEVICE_LOST, "the GPU is no longer there", _RESET),
    29: (GapCode.TEMPORARY, "the GPU is in a state without this reading", _AGAIN),
    30: (GapCode.COLLECTOR_FAILED, "the board cannot be reset that way", _RESET),
    999: (GapCode.TEMPORARY, "NVML gives no reason", _AGAIN),
}
_UNKNOWN_CODE = (GapCode.TEMPORARY, "NVML gave an unknown error code", _BINDING)
# UUID prefixes of a whole GPU and of a MIG instance.
_WHOLE, _INSTANCE = "GPU-", "MIG-"


def open_board(
    uuid: str, *, pci_bus_id: str | None = None, nvml: ModuleType | None = None
) -> Board:
    """
    Start NVML and open the sensors of a GPU.

    The caller must close the board, which shuts NVML down. The GPU is identified by UUID or
    PCI bus id, because the driver and CUDA number GPUs differently (CUDA_VISIBLE_DEVICES,
    CUDA_DEVICE_ORDER).

    Args:
        uuid: The UUID of the GPU, with or without the `GPU-` or `MIG-` prefix.

        pci_bus_id: The PCI bus id, as `0000:18:00.0`. Used if NVML does not know the UUID.

        nvml: The binding, or None to import pynvml.

    Raises:
        CollectorUnavailableError: NVML does not start, or does not know the GPU.
    """
    if nvml is None:
        try:
            nvml = importlib.import_module("pynvml")
        except ImportError as error:
            raise CollectorUnavailableError(
                "NVML cannot be used: pynvml is not installed",
                remedy="pip install nvidia-ml-py",
            ) from error
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise why_unavailable("NVML does not start", _code(error)) from error
    try:
        return Board(nvml, *_handle(nvml, uuid, pci_bus_id))
    except nvml.NVMLError as error:
        nvml.nvmlShutdown()
        message = f"NVML does not open GPU {uuid}"
        raise why_unavailable(message, _code(error)) from error


class Board:
    """
    One GPU, as read through NVML.

    Attributes:
        nvml: The binding.

        handle: NVML's handle of the whole GPU, also for a MIG instance.

        uuid: The UUID of the GPU or of the instance.

        index: The index of the GPU in the driver's order.

        instance: The GPU instance id of a MIG instance, or None for a whole GPU.

        part: NVML's handle of the device that tests use: the GPU, or the MIG instance.

        split: True if the GPU is split into MIG instances.

        sliced: True if the GPU is a vGPU, shared with other virtual machines.

        lost: The reason why the GPU is gone, or None if it is present.
    """

    def __init__(self, nvml: ModuleType, handle: Any, uuid: str) -> None:  # noqa: ANN401 - the library has no types
        self.nvml = nvml
        self.handle = handle
        self.uuid = uuid
        self.lost: Gap | None = None
        self._silent: dict[str, Gap] = {}
        self._temporary: dict[str, Gap] = {}
        self.part = handle
        self.instance: int | None = None
        if uuid.startswith(_INSTANCE):
            self.instance = nvml.nvmlDeviceGetGpuInstanceId(handle)
            self.handle = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
        self.index: int = nvml.nvmlDeviceGetIndex(self.handle)
        self.split = bool((self.call("MIG mode", "nvmlDeviceGetMigMode") or (0, 0))[0])
        mode = self.call("virtualization", "nvmlDeviceGetVirtualizationMode")
        self.sliced = mode == _VGPU

    @property
    def silent(self) -> Mapping[str, Gap]:
        """The gaps of sensors without a value at the last reading, by sensor."""
        return {**self._silent, **self._temporary}

    def close(self) -> None:
        """Shut NVML down."""
        try:
            self.nvml.nvmlShutdown()
        except self.nvml.NVMLError as error:
            self.note("NVML", error)

    def call(self, sensor: str, function: str, *arguments: object) -> Any:  # noqa: ANN401 - the library has no types
        """
        Call a function of the binding for the GPU, and return None if the call fails.

        Args:
            sensor: The key under which `silent` keeps the reason of a failure.

            function: The name of the function in the binding.

            arguments: The arguments after the handle of the GPU.
        """
        binding = getattr(self.nvml, function, None)
        # Older bindings lack newer functions.
        if binding is None:
            self.refused(sensor, _NO_FUNCTION)
            return None
        return self.read(sensor, lambda: binding(self.handle, *arguments))

    def read(self, sensor: str, reading: Callable[[], Any]) -> Any:  # noqa: ANN401 - the library has no types
        """Return the value of a reading, or None with the reason in `silent`."""
        if sensor in self._silent or self.lost is not None:
            return None
        try:
            value = reading()
        except self.nvml.NVMLError as error:
            self.note(sensor, error)
            return None
        except self.nvml.NVMLLibraryMismatchError:
            self.refused(sensor, _NO_FUNCTION)
            return None
        self._temporary.pop(sensor, None)
        return value

    def release(self, sensor: str, function: str, resource: object) -> None:
        """Free a resource of NVML, even if the sensor or the GPU has failed."""
        try:
            getattr(self.nvml, function)(resource)
        except self.nvml.NVMLError as error:
            self.note(sensor, error)

    def note(self, sensor: str, error: Exception) -> None:
        """Store an exception as the reason why a sensor has no value."""
        self.refused(sensor, _code(error))

    def refused(self, sensor: str, code: int) -> None:
        """Store an NVML error code as the reason why a sensor has no value."""
        gap = gap_of(code)
        if gap.code is GapCode.DEVICE_LOST:
            self.lost = self.lost or gap
        self._temporary.pop(sensor, None)
        temporary = gap.code is GapCode.TEMPORARY
        (self._temporary if temporary else self._silent)[sensor] = gap

    def sm_clock_hz(self) -> float | None:
        """Return the current SM clock [Hz], or None."""
        mhz = self.call("SM clock", "nvmlDeviceGetClockInfo", self.nvml.NVML_CLOCK_SM)
        return None if mhz is None else float(mhz * HZ_PER_MHZ)

    def energy_joules(self) -> float | None:
        """Return the energy drawn since the driver was loaded [J], or None."""
        millijoules = self.call("energy", "nvmlDeviceGetTotalEnergyConsumption")
        return None if millijoules is None else millijoules / 1000

    def ring(self, sensor: str, kind: int, since_us: int) -> tuple[float, ...]:
        """Return the samples that the driver has buffered since a time [us since 1970]."""
        if sensor in self._silent or self.lost is not None:
            return ()
        try:
            value_type, samples = self.nvml.nvmlDeviceGetSamples(
                self.handle, kind, since_us
            )
        except self.nvml.NVMLError as error:
            # NVML reports "not found" if there are no new samples.
            if _code(error) != _NOT_FOUND:
                self.note(sensor, error)
            return ()
        member = VALUE_TYPES[value_type]
        return tuple(float(getattr(sample.sampleValue, member)) for sample in samples)

    def working_pids(self, since_us: int) -> frozenset[int] | None:
        """
        Return the processes that used the GPU since a time [us since 1970], or None.

        The driver samples the use of each process a few times a second. A process
        without use has no sample. MIG, vGPU and WSL2 have no such samples.
        """
        if _USE in self._silent or self.lost is not None:
            return None
        try:
            samples = self.nvml.nvmlDeviceGetProcessUtilization(self.handle, since_us)
        except self.nvml.NVMLError as error:
            # NVML reports "not found" if no process used the GPU.
            if _code(error) in {_SUCCESS, _NOT_FOUND}:
                return frozenset()
            self.note(_USE, error)
            return None
        return frozenset(
            int(sample.pid)
            for sample in samples
            if sample.timeStamp > since_us
            and (sample.smUtil or sample.memUtil or sample.encUtil or sample.decUtil)
        )


class Neighbours:
    """
    Separates this process and its children from other processes on a GPU.

    NVML reports process ids of the host, which have no meaning inside a container.

    Args:
        pid: The process id of this process.

        proc: The directory in which Linux lists processes.

        environment: The environment of the process, which shows if MPS is in use.
    """

    def __init__(
        self,
        pid: int | None = None,
        proc: Path = Path("/proc"),
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self._pid = os.getpid() if pid is None else pid
        self._proc = proc
        self._mps = "CUDA_MPS_PIPE_DIRECTORY" in environment
        try:
            self._namespace = str((proc / "self" / "ns" / "pid").readlink())
        except OSError:
            self._namespace = ""

    def on_gpu(self, board: Board) -> tuple[Sharing, tuple[int, ...], str | None]:
        """
        Return the state of sharing, foreign process ids, and why the state is unknown.

        The reason is None unless the state is UNKNOWN.
        """
        processes = board.call("processes", "nvmlDeviceGetComputeRunningProcesses")
        hidden = self._hidden(board, are_listed=processes is not None)
        if hidden is not None:
            return Sharing.UNKNOWN, (), hidden
        pids = {int(process.pid) for process in processes}
        foreign = tuple(
            pid for pid in sorted(pids) if not descends_from(self._pid, pid, self._proc)
        )
        return (Sharing.FOREIGN if foreign else Sharing.ALONE), foreign, None

    def _hidden(self, board: Board, *, are_listed: bool) -> str | None:
        """Return why processes cannot be distinguished, or None."""
        if board.sliced or board.split or board.instance is not None:
            parts = ("a vGPU", "virtual machines")
            if not board.sliced:
                parts = ("split (MIG)", "instances")
            return f"the GPU is {parts[0]}, and {parts[1]} do not see each other"
        if not are_listed:
            gap = board.lost or board.silent.get("processes")
            return f"the driver lists no processes: {gap.reason if gap else ''}"
        if self._mps or board.call("MPS", "nvmlDeviceGetMPSComputeRunningProcesses"):
            return "MPS shares the GPU between processes"
        if not self._namespace:
            return "this system does not say whether process ids are the host's own"
        if self._namespace != _FIRST_PID_NAMESPACE:
            return "this is a container, and the driver lists process ids of the host"
        return None


def gap_of(code: int) -> Gap:
    """Return the gap for an NVML error code."""
    gap_code, reason, remedy = _GAPS.get(code, _UNKNOWN_CODE)
    return Gap(code=gap_code, reason=reason, remedy=remedy)


def why_unavailable(what: str, code: int) -> CollectorUnavailableError:
    """Return the exception for a request that NVML refused with an error code."""
    gap = gap_of(code)
    return CollectorUnavailableError(f"{what}: {gap.reason}", remedy=gap.remedy)


def _handle(nvml: ModuleType, uuid: str, pci_bus_id: str | None) -> tuple[object, str]:
    bare = uuid.removeprefix(_WHOLE).removeprefix(_INSTANCE)
    # A UUID from the CUDA driver has no prefix and may belong to an instance.
    for name in dict.fromkeys((uuid, _WHOLE + bare, _INSTANCE + bare)):
        try:
            return nvml.nvmlDeviceGetHandleByUUID(name.encode()), name
        except nvml.NVMLError as error:
            if _code(error) not in {_INVALID, _NOT_FOUND}:
                raise
    if pci_bus_id is None:
        raise nvml.NVMLError(_NO_GPU)
    handle = nvml.nvmlDeviceGetHandleByPciBusId(pci_bus_id.encode())
    name = nvml.nvmlDeviceGetUUID(handle)
    return handle, name.decode() if isinstance(name, bytes) else name


def _code(error: Exception) -> int:
    code = getattr(error, "value", _UNKNOWN)
    return code if isinstance(code, int) else _UNKNOWN


_NOT_SUPPORTED = 3  # nvml.h
_VGPU = 2  # nvml.h, NVML_GPU_VIRTUALIZATION_MODE_VGPU
# nvml.h, NVML_GPM_METRIC_*.
_FRACTIONS = {
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
# The numbers of all metrics that are read.
GPM_METRICS = (*_FRACTIONS, *_RATES, *_NVLINK)


class GpmPair:
    """
    Two GPM samples of a GPU, and the averages between them.

    Args:
        board: The GPU, Hopper or newer. Older GPUs have no GPM.

        clock: The clock that times the samples.
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
        Take the second sample, and return the averages since `begin`.

        Returns:
            The averages by field name of a CanonicalRecord, and None. If there are no
            averages, an empty dictionary and the reason as a fragment of a sentence.
        """
        duration_s = (self._clock.now_ns() - self._since_ns) / NS_PER_S
        if duration_s <= GPM_GAP_S and self._began:
            return {}, (
                f"it took {duration_s:.3g} s, and GPM needs more than {GPM_GAP_S:g} s"
            )
        values: dict[int, float | None] | None = None
        if self._began and self._take(1):
            nvml = self._board.nvml
            request = nvml.c_nvmlGpmMetricsGet_t()
            request.version = nvml.NVML_GPM_METRICS_GET_VERSION
            request.numMetrics = len(GPM_METRICS)
            request.sample1, request.sample2 = self._samples
            for i, metric in enumerate(GPM_METRICS):
                request.metrics[i].metricId = metric
            done = self._board.read("GPM", lambda: nvml.nvmlGpmMetricsGet(request))
            if done is not None:
                values = {
                    metric.metricId: None if metric.nvmlReturn else metric.value
                    for metric in request.metrics[: len(GPM_METRICS)]
                }
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
        if self._samples is None:
            return False
        board, sample = self._board, self._samples[i]
        if board.instance is None:
            taken = board.call("GPM", "nvmlGpmSampleGet", sample)
        else:
            taken = board.call("GPM", "nvmlGpmMigSampleGet", board.instance, sample)
        return taken is not None


# nvml.h, nvmlClocksEventReason*. The remaining bits are settings.
_CLOCK_REASONS = {
    0x4: ClockReason.SOFTWARE_POWER_CAP,
    0x8: ClockReason.HARDWARE_SLOWDOWN,
    0x10: ClockReason.SYNC_BOOST,
    0x20: ClockReason.SOFTWARE_THERMAL,
    0x40: ClockReason.HARDWARE_THERMAL,
    0x80: ClockReason.POWER_BRAKE,
}


def clock_reasons(bits: int) -> frozenset[ClockReason]:
    """
    Return the reasons for a reduced clock from NVML's bits.

    Args:
        bits: The result of nvmlDeviceGetCurrentClocksEventReasons.

    Example:
        >>> [reason.value for reason in clock_reasons(0x1 | 0x4)]  # 0x1: idle
        ['software power cap']
    """
    return frozenset(reason for bit, reason in _CLOCK_REASONS.items() if bit & bits)


def gpm_readings(values: Mapping[int, float | None]) -> dict[str, float | None]:
    """
    Convert GPM metrics to the fields of a CanonicalRecord.

    Args:
        values: Percentages or rates [MiB/s] by metric number, None if NVML refused the
            metric, NaN if NVML left it blank. Metrics without a field are ignored.

    Returns:
        Fractions (0 to 1) and rates [B/s], or None if NVML gave no finite number, or a
        rate below 0. NVLink has a rate only if both directions have one.

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
    if percent is None or not isfinite(percent):
        return None
    return min(1.0, max(0.0, percent / 100.0))


def _rate(mib_per_s: float | None) -> float | None:
    """Convert MiB/s to B/s. The result is None if the rate is absent, not finite, or below 0."""
    if mib_per_s is None or not isfinite(mib_per_s) or mib_per_s < 0:
        return None
    return mib_per_s * MiB
