"""The GPUs of this machine as NVML reads them."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_gpuperf.model.environment import Device
from pytest_gpuperf.model.frozen import replace

if TYPE_CHECKING:
    from pytest_gpuperf.collect.cuda_device import DriverFacts

# From 7.0 on, a multiprocessor has 64 cores, and from 8.6 on, 128.
_OLDEST, _WIDER = (7, 0), (8, 6)
HZ_PER_MHZ = 1_000_000
_MILLIWATTS_PER_WATT = 1000
# Separates a GPU's name from the profile of a slice.
_SLICE = " MIG "


class ListedDevices(NamedTuple):
    """
    What NVML lists.

    Attributes:
        devices: The GPUs that could be read, in the driver's order.

        reason: As for `DeviceQuery`.

        slices: The MIG instances, with the index of their GPU.

        confidential: Whether confidential computing is on.
    """

    devices: tuple[Device, ...] = ()
    reason: str | None = None
    slices: tuple[Device, ...] = ()
    confidential: bool = False


def list_devices(nvml: ModuleType) -> ListedDevices:
    """Read all GPUs, or return the reason why there are none."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return ListedDevices(reason=f"NVML does not start: {error}")
    try:
        return _read_all(nvml)
    except nvml.NVMLError as error:
        return ListedDevices(reason=f"NVML lists no devices: {error}")
    finally:
        _shut_down(nvml)


def free_device_bytes(uuid: str, nvml: ModuleType | None = None) -> int | None:
    """
    Return the memory of a GPU, or of a slice, that is free for new processes [B].

    Args:
        uuid: The UUID of the device.

        nvml: The NVML binding, or None to import pynvml.

    Returns:
        The free memory, or None if NVML does not report it.
    """
    if nvml is None:
        try:
            nvml = importlib.import_module("pynvml")
        except ImportError:
            return None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return None
    try:
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
        return int(nvml.nvmlDeviceGetMemoryInfo(handle).free)
    except nvml.NVMLError:
        return None
    finally:
        _shut_down(nvml)


def with_driver_facts(device: Device, facts: DriverFacts | None) -> Device:
    """
    Add the CUDA driver's facts to the facts of NVML.

    Args:
        device: The device as NVML reports it.

        facts: The CUDA driver's facts, or None if the driver has not been started.
    """
    if facts is None:
        return device
    profile = _profile(facts.name)
    return replace(
        device,
        name=facts.name if profile is not None else device.name,
        mig_profile=profile or device.mig_profile,
        sm_count=facts.sm_count or device.sm_count,
        rated_clock_hz=facts.rated_clock_hz,
        max_memory_clock_hz=device.max_memory_clock_hz or facts.memory_clock_hz,
        memory_bus_bits=facts.memory_bus_bits or device.memory_bus_bits,
        l2_bytes=facts.l2_bytes,
        integrated=facts.integrated,
    )


def _read_all(nvml: ModuleType) -> ListedDevices:
    driver_version = _text(nvml.nvmlSystemGetDriverVersion())
    count = nvml.nvmlDeviceGetCount()
    devices: list[Device] = []
    slices: list[Device] = []
    reason = None if count else "the driver lists no GPU"
    for index in range(count):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            device = _read(nvml, handle, index, driver_version)
            devices.append(device)
            if device.mig:
                most = _answer(nvml, "nvmlDeviceGetMaxMigDeviceCount", handle) or 0
                parts = [
                    _answer(nvml, "nvmlDeviceGetMigDeviceHandleByIndex", handle, place)
                    for place in range(most)
                ]
                slices += [
                    _read(nvml, part, index, driver_version)
                    for part in parts
                    # Some places may be unused.
                    if part is not None
                ]
        except nvml.NVMLError as error:
            reason = reason or f"GPU {index} does not answer: {error}"
    state = _answer(nvml, "nvmlSystemGetConfComputeState")
    return ListedDevices(
        devices=tuple(devices),
        reason=reason,
        slices=tuple(slices),
        confidential=bool(state and state.ccFeature),
    )


def _read(nvml: ModuleType, handle: object, index: int, driver_version: str) -> Device:
    """Return a device. Unsupported properties are None."""
    memory = _answer(nvml, "nvmlDeviceGetMemoryInfo", handle)
    capability = _answer(nvml, "nvmlDeviceGetCudaComputeCapability", handle)
    compute_capability = (
        None if capability is None else (int(capability[0]), int(capability[1]))
    )
    name = _text(nvml.nvmlDeviceGetName(handle))
    profile = _profile(name)
    bus_bits = _answer(nvml, "nvmlDeviceGetMemoryBusWidth", handle)
    return Device(
        index=index,
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        name=name,
        memory_bytes=None if memory is None else int(memory.total),
        sm_count=_sm_count(nvml, handle, compute_capability, profile),
        compute_capability=compute_capability,
        mig=_enabled(nvml, "nvmlDeviceGetMigMode", handle),
        ecc=_enabled(nvml, "nvmlDeviceGetEccMode", handle),
        max_sm_clock_hz=_clock_hz(nvml, handle, nvml.NVML_CLOCK_SM),
        max_memory_clock_hz=_clock_hz(nvml, handle, nvml.NVML_CLOCK_MEM),
        power_limit_watts=_watts(
            nvml, "nvmlDeviceGetPowerManagementDefaultLimit", handle
        ),
        enforced_power_limit_watts=_watts(
            nvml, "nvmlDeviceGetEnforcedPowerLimit", handle
        ),
        application_sm_clock_hz=_application_clock_hz(nvml, handle, nvml.NVML_CLOCK_SM),
        application_memory_clock_hz=_application_clock_hz(
            nvml, handle, nvml.NVML_CLOCK_MEM
        ),
        driver_version=driver_version,
        memory_bus_bits=bus_bits or None,
        mig_profile=profile,
    )


def _profile(name: str) -> str | None:
    """Return the profile in the name of a slice, such as "1g.10gb", or None for a whole GPU."""
    return name.partition(_SLICE)[2] or None


def _sm_count(
    nvml: ModuleType,
    handle: object,
    capability: tuple[int, int] | None,
    profile: str | None,
) -> int | None:
    """
    Return the number of multiprocessors, for a GPU calculated from the cores, or None.
    """
    if profile is not None:
        attributes = _answer(nvml, "nvmlDeviceGetAttributes", handle)
        return None if attributes is None else int(attributes.multiprocessorCount)
    cores = _answer(nvml, "nvmlDeviceGetNumGpuCores", handle)
    if not cores or capability is None or capability < _OLDEST:
        return None
    return int(cores) // (128 if capability >= _WIDER else 64)


def _answer(nvml: ModuleType, function: str, *arguments: object) -> Any:  # noqa: ANN401 - the library has no types
    try:
        return getattr(nvml, function)(*arguments)
    except nvml.NVMLError:
        return None


def _enabled(nvml: ModuleType, function: str, handle: object) -> bool | None:
    """Return True if a mode is on now, or None if unknown. NVML also returns the pending state."""
    modes = _answer(nvml, function, handle)
    return None if modes is None else bool(modes[0])


def _clock_hz(nvml: ModuleType, handle: object, kind: int) -> int | None:
    clock_mhz = _answer(nvml, "nvmlDeviceGetMaxClockInfo", handle, kind)
    return None if clock_mhz is None else int(clock_mhz) * HZ_PER_MHZ


def _application_clock_hz(nvml: ModuleType, handle: object, kind: int) -> int | None:
    """
    Return the application clock [Hz], or None if not reported by the driver.

    CUDA 14 drops application clocks, and NVML cannot read back a locked range.
    """
    name = "nvmlDeviceGetApplicationsClock"
    if not hasattr(nvml, name):
        return None
    clock_mhz = _answer(nvml, name, handle, kind)
    return None if not clock_mhz else int(clock_mhz) * HZ_PER_MHZ


def _watts(nvml: ModuleType, function: str, handle: object) -> float | None:
    milliwatts = _answer(nvml, function, handle)
    return None if milliwatts is None else milliwatts / _MILLIWATTS_PER_WATT


def _text(value: str | bytes) -> str:
    """Return text. pynvml before 12 answers in bytes."""
    return value.decode() if isinstance(value, bytes) else value


def _shut_down(nvml: ModuleType) -> None:
    try:
        nvml.nvmlShutdown()
    except nvml.NVMLError:
        return
