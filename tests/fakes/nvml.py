"""A double of pynvml: the functions that devices reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace

import pynvml

OLDER_DRIVER = -1  # of `errors`: the binding knows no such record of the driver


@dataclass(kw_only=True)
class FakeGpu:
    """One GPU; `errors` maps a function's name to the code with which it refuses."""

    name: str | bytes = "NVIDIA H200"
    uuid: str | bytes = "GPU-00000000-0000-0000-0000-000000000000"
    memory_bytes: int = 150_754_820_096
    compute_capability: tuple[int, int] = (9, 0)
    max_clocks_mhz: dict[int, int] = field(
        default_factory=lambda: {
            pynvml.NVML_CLOCK_SM: 1980,
            pynvml.NVML_CLOCK_MEM: 3201,
        }
    )
    application_clocks_mhz: dict[int, int] = field(
        default_factory=lambda: {
            pynvml.NVML_CLOCK_SM: 1980,
            pynvml.NVML_CLOCK_MEM: 3201,
        }
    )
    power_limit_milliwatts: int = 700_000
    ecc: int = 1
    mig: int = 0
    core_count: int = 16_896
    memory_bus_bits: int = 6016
    slice_sm_count: int = 16
    slices: tuple[FakeGpu | None, ...] = ()  # None: an empty place
    free_bytes: int = 150_000_000_000
    persistence: int = 1
    compute_mode: int = 0
    virtualization: int = 0
    sm_clock_mhz: int = 1485
    reasons: int = 0x2  # held by a setting
    enforced_milliwatts: int = 700_000
    users: dict[int, int | None] = field(default_factory=dict)  # pid: bytes held
    viewers: dict[int, int | None] = field(default_factory=dict)  # the same of graphics
    errors: dict[str, int] = field(default_factory=dict)


class FakeNvml(ModuleType):
    """NVML with scripted GPUs; its errors are the real library's own classes."""

    NVMLError = pynvml.NVMLError
    NVMLLibraryMismatchError = pynvml.NVMLLibraryMismatchError
    NVML_CLOCK_SM = pynvml.NVML_CLOCK_SM
    NVML_CLOCK_MEM = pynvml.NVML_CLOCK_MEM

    def __init__(
        self,
        *gpus: FakeGpu,
        driver_version: str | bytes = "580.95.05",
        cuda_version: int = 13000,
        confidential: int = 0,
        dev_tools: int = 0,
        errors: dict[str, int] | None = None,
    ) -> None:
        super().__init__("pynvml")
        self.open_count = 0
        self.functions: dict[str, Callable[..., object]] = {
            "nvmlInit": lambda: self._open(1),
            "nvmlShutdown": lambda: self._open(-1),
            "nvmlSystemGetDriverVersion": lambda: driver_version,
            "nvmlDeviceGetCount": lambda: len(gpus),
            "nvmlDeviceGetHandleByIndex": gpus.__getitem__,
            "nvmlDeviceGetHandleByUUID": lambda uuid: next(
                gpu for gpu in gpus if gpu.uuid == uuid
            ),
            "nvmlDeviceGetName": lambda gpu: gpu.name,
            "nvmlDeviceGetUUID": lambda gpu: gpu.uuid,
            "nvmlDeviceGetMemoryInfo": lambda gpu: SimpleNamespace(
                total=gpu.memory_bytes, free=gpu.free_bytes
            ),
            "nvmlDeviceGetCudaComputeCapability": lambda gpu: gpu.compute_capability,
            "nvmlDeviceGetMaxClockInfo": lambda gpu, kind: gpu.max_clocks_mhz[kind],
            "nvmlDeviceGetApplicationsClock": (
                lambda gpu, kind: gpu.application_clocks_mhz[kind]
            ),
            "nvmlDeviceGetPowerManagementDefaultLimit": (
                lambda gpu: gpu.power_limit_milliwatts
            ),
            "nvmlDeviceGetEccMode": lambda gpu: [gpu.ecc, gpu.ecc],
            "nvmlDeviceGetNumGpuCores": lambda gpu: gpu.core_count,
            "nvmlDeviceGetMemoryBusWidth": lambda gpu: gpu.memory_bus_bits,
            "nvmlDeviceGetAttributes": lambda gpu: SimpleNamespace(
                multiprocessorCount=gpu.slice_sm_count
            ),
            "nvmlDeviceGetMigMode": lambda gpu: [gpu.mig, gpu.mig],
            "nvmlDeviceGetMaxMigDeviceCount": lambda gpu: len(gpu.slices),
            "nvmlDeviceGetMigDeviceHandleByIndex": _slice,
            "nvmlSystemGetCudaDriverVersion": lambda: cuda_version,
            "nvmlSystemGetConfComputeState": lambda: SimpleNamespace(
                environment=0, ccFeature=confidential, devToolsMode=dev_tools
            ),
            "nvmlDeviceGetPersistenceMode": lambda gpu: gpu.persistence,
            "nvmlDeviceGetComputeMode": lambda gpu: gpu.compute_mode,
            "nvmlDeviceGetVirtualizationMode": lambda gpu: gpu.virtualization,
            "nvmlDeviceGetClockInfo": lambda gpu, kind: gpu.sm_clock_mhz,
            "nvmlDeviceGetCurrentClocksEventReasons": lambda gpu: gpu.reasons,
            "nvmlDeviceGetEnforcedPowerLimit": lambda gpu: gpu.enforced_milliwatts,
            "nvmlDeviceGetComputeRunningProcesses": lambda gpu: _processes(gpu.users),
            "nvmlDeviceGetGraphicsRunningProcesses": (
                lambda gpu: _processes(gpu.viewers)
            ),
        }
        for name, function in self.functions.items():
            setattr(self, name, self._refusing(name, function, errors or {}))

    def _open(self, step: int) -> None:
        self.open_count += step

    @staticmethod
    def _refusing(
        name: str, function: Callable[..., object], errors: dict[str, int]
    ) -> Callable[..., object]:
        """Return a function that raises what was scripted for it."""

        def call(*arguments: object) -> object:
            refusals = dict(errors)
            for argument in arguments:
                if isinstance(argument, FakeGpu):
                    refusals.update(argument.errors)
            if refusals.get(name) == OLDER_DRIVER:
                raise pynvml.NVMLLibraryMismatchError(name)
            if name in refusals:
                raise pynvml.NVMLError(refusals[name])
            return function(*arguments)

        return call


def _slice(gpu: FakeGpu, place: int) -> FakeGpu:
    """Return an instance of a GPU, as NVML does: it refuses an empty place."""
    found = gpu.slices[place]
    if found is None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
    return found


def _processes(held: dict[int, int | None]) -> list[SimpleNamespace]:
    """Return processes as pynvml lists them."""
    return [SimpleNamespace(pid=pid, usedGpuMemory=held[pid]) for pid in held]
