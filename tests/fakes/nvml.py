"""A double of pynvml: the functions that devices reads; PYTEST_DONT_REWRITE."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace

import pynvml


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
    power_limit_milliwatts: int = 700_000
    ecc: int = 1
    mig: int = 0
    core_count: int = 16_896
    memory_bus_bits: int = 6144
    slice_sm_count: int = 16
    errors: dict[str, int] = field(default_factory=dict)


class FakeNvml(ModuleType):
    """NVML with scripted GPUs; its errors are the real library's own classes."""

    NVMLError = pynvml.NVMLError
    NVML_CLOCK_SM = pynvml.NVML_CLOCK_SM
    NVML_CLOCK_MEM = pynvml.NVML_CLOCK_MEM

    def __init__(
        self,
        *gpus: FakeGpu,
        driver_version: str | bytes = "580.95.05",
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
            "nvmlDeviceGetName": lambda gpu: gpu.name,
            "nvmlDeviceGetUUID": lambda gpu: gpu.uuid,
            "nvmlDeviceGetMemoryInfo": lambda gpu: SimpleNamespace(
                total=gpu.memory_bytes
            ),
            "nvmlDeviceGetCudaComputeCapability": lambda gpu: gpu.compute_capability,
            "nvmlDeviceGetMaxClockInfo": lambda gpu, kind: gpu.max_clocks_mhz[kind],
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
            if name in refusals:
                raise pynvml.NVMLError(refusals[name])
            return function(*arguments)

        return call
