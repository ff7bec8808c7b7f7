"""Which GPUs are there, and what is known of their kind; PYTEST_DONT_REWRITE."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from pytest_gpuperf.collect.chips import chip_limits, target_capability
from pytest_gpuperf.model.device import Device

__all__ = [
    "DeviceQuery",
    "chip_limits",
    "query_devices",
    "target_capability",
]

_HZ_PER_MHZ = 1_000_000
_MILLIWATTS_PER_WATT = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceQuery:
    """
    What the driver said of the GPUs of this machine.

    Attributes:
        devices: Those that could be read, in the driver's own order.

        reason: One sentence why none or not all could be read; None: all were.
    """

    devices: tuple[Device, ...]
    reason: str | None


def query_devices(nvml: ModuleType | None = None) -> DeviceQuery:
    """
    Return the NVIDIA GPUs of this machine, in the driver's own order.

    Args:
        nvml: The library to ask; None: pynvml, imported now.

    Returns:
        The devices, or why there are none: a machine without a GPU is no error.
    """
    if nvml is None:
        try:
            nvml = importlib.import_module("pynvml")
        except ImportError:
            return _none("pynvml is not installed (pip install nvidia-ml-py)")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return _none(f"NVML does not start: {error}")
    try:
        return _read_all(nvml)
    except nvml.NVMLError as error:
        return _none(f"NVML lists no devices: {error}")
    finally:
        _shut_down(nvml)


def _none(reason: str) -> DeviceQuery:
    """Return a query that found nothing."""
    return DeviceQuery(devices=(), reason=reason)


def _read_all(nvml: ModuleType) -> DeviceQuery:
    """Return every device that answers, and the first that does not."""
    driver_version = _text(nvml.nvmlSystemGetDriverVersion())
    count = nvml.nvmlDeviceGetCount()
    devices = []
    reason = None if count else "the driver knows no GPU"
    for index in range(count):
        try:
            devices.append(_read(nvml, index, driver_version))
        except nvml.NVMLError as error:
            reason = reason or f"GPU {index} does not answer: {error}"
    return DeviceQuery(devices=tuple(devices), reason=reason)


def _read(nvml: ModuleType, index: int, driver_version: str) -> Device:
    """Return one device; what it does not support is None."""
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = _known(nvml, "nvmlDeviceGetMemoryInfo", handle)
    capability = _known(nvml, "nvmlDeviceGetCudaComputeCapability", handle)
    limit_milliwatts = _known(nvml, "nvmlDeviceGetPowerManagementDefaultLimit", handle)
    return Device(
        index=index,
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        name=_text(nvml.nvmlDeviceGetName(handle)),
        memory_bytes=None if memory is None else int(memory.total),
        compute_capability=(
            None if capability is None else (int(capability[0]), int(capability[1]))
        ),
        mig=_enabled(nvml, "nvmlDeviceGetMigMode", handle),
        ecc=_enabled(nvml, "nvmlDeviceGetEccMode", handle),
        max_sm_clock_hz=_clock_hz(nvml, handle, nvml.NVML_CLOCK_SM),
        max_memory_clock_hz=_clock_hz(nvml, handle, nvml.NVML_CLOCK_MEM),
        power_limit_watts=(
            None
            if limit_milliwatts is None
            else limit_milliwatts / _MILLIWATTS_PER_WATT
        ),
        driver_version=driver_version,
    )


def _known(nvml: ModuleType, function: str, *arguments: object) -> Any:  # noqa: ANN401 - the library has no types
    """Return what NVML says, None where the device or the driver refuses."""
    try:
        return getattr(nvml, function)(*arguments)
    except nvml.NVMLError:
        return None


def _enabled(nvml: ModuleType, function: str, handle: object) -> bool | None:
    """Return whether a mode is on now; NVML says the current and the pending one."""
    modes = _known(nvml, function, handle)
    return None if modes is None else bool(modes[0])


def _clock_hz(nvml: ModuleType, handle: object, kind: int) -> int | None:
    """Return the highest clock of one kind."""
    clock_mhz = _known(nvml, "nvmlDeviceGetMaxClockInfo", handle, kind)
    return None if clock_mhz is None else int(clock_mhz) * _HZ_PER_MHZ


def _text(value: str | bytes) -> str:
    """Return text; pynvml before 12 answers in bytes."""
    return value.decode() if isinstance(value, bytes) else value


def _shut_down(nvml: ModuleType) -> None:
    """Let go of the library; what it says to that changes nothing."""
    try:
        nvml.nvmlShutdown()
    except nvml.NVMLError:
        return
