"""The GPUs of this machine as NVML reads them, and the choice among them."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_gpuperf.errors import ConfigError
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
_VISIBLE, _ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"
# The value of CUDA_DEVICE_ORDER that matches NVML's order.
_BY_BUS = "PCI_BUS_ID"
UNORDERED = "this machine has GPUs of several kinds, which CUDA orders by their speed"
ORDER_REMEDY = f"set {_ORDER}={_BY_BUS}"
# The prefixes of the UUID of a GPU and of a part of a GPU.
_WHOLE, _PART = "GPU-", "MIG-"
_LEAVE_OUT = "or leave --gpuperf-device out"


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


def choose(
    listed: ListedDevices, name: str | None, environment: Mapping[str, str]
) -> tuple[Device | None, int, str]:
    """
    Return the requested GPU, or the first GPU that CUDA shows, as for `choose_device`.

    Returns:
        The GPU, or None if CUDA hides all, its index in this process's CUDA, and the
        reason that there is none, or "".

    Raises:
        ConfigError: The GPU does not exist, cannot be used, or is hidden.

    References:
        CUDA C++ Programming Guide, "CUDA Environment Variables".
    """
    shown = _shown(listed, environment)
    visible = environment.get(_VISIBLE, "")
    if name is None:
        if shown:
            return shown[0], 0, ""
        return None, 0, f"{_VISIBLE}={visible} hides every GPU"
    device = _named(listed, name)
    parts = [part for part in listed.slices if part.index == device.index]
    if device.mig and parts:
        message = f"GPU {device.index} is split into instances"
        raise ConfigError(message, remedy=f"name one of them: {_listed(parts)}")
    if device in shown:
        if not order_is_known(listed.devices, environment):
            raise ConfigError(UNORDERED, remedy=f"{ORDER_REMEDY}, {_LEAVE_OUT}")
        return device, shown.index(device), ""
    message = f"GPU {device.index} ({device.uuid}) is hidden by {_VISIBLE}={visible}"
    alternative = device.uuid if device.uuid.startswith(_PART) else str(device.index)
    raise ConfigError(message, remedy=f"set {_VISIBLE}={alternative}, {_LEAVE_OUT}")


def order_is_known(devices: Sequence[Device], environment: Mapping[str, str]) -> bool:
    """Return True if CUDA's indexes of GPUs follow from NVML's."""
    visible = environment.get(_VISIBLE, "").upper()
    by_name = _WHOLE in visible or _PART in visible
    kinds = {device.name for device in devices}
    return by_name or len(kinds) <= 1 or environment.get(_ORDER) == _BY_BUS


def _named(listed: ListedDevices, text: str) -> Device:
    if not listed.devices:
        message = f"there is no GPU: {listed.reason}"
        raise ConfigError(
            message, remedy=f"run it on a machine with a GPU, {_LEAVE_OUT}"
        )
    matches = _matches(listed, text)
    if len(matches) == 1:
        return matches[0]
    if matches:
        message = f"{text} matches {len(matches)} GPUs"
        raise ConfigError(message, remedy=f"give a longer prefix: {_listed(matches)}")
    every = _listed((*listed.devices, *listed.slices))
    message = f"no GPU {text}: this machine has {every}"
    raise ConfigError(message, remedy=f"name one of these, {_LEAVE_OUT}")


def _matches(listed: ListedDevices, text: str) -> list[Device]:
    if text.isdecimal():
        return [device for device in listed.devices if device.index == int(text)]
    every = (*listed.devices, *listed.slices)
    head = text.lower()
    return [device for device in every if device.uuid.lower().startswith(head)]


def _shown(listed: ListedDevices, environment: Mapping[str, str]) -> list[Device]:
    text = environment.get(_VISIBLE)
    if text is None:
        return list(listed.devices)
    shown: list[Device] = []
    for token in map(str.strip, text.split(",")):
        is_part = token.upper().startswith(_PART)
        is_name = token.isdecimal() or is_part or token.upper().startswith(_WHOLE)
        matches = _matches(listed, token) if is_name else []
        # The driver lists no instances.
        if is_part and not matches:
            matches = [device for device in listed.devices if device.mig]
        # CUDA stops at the first entry that it does not know.
        if len(matches) != 1:
            break
        # CUDA shows no GPU at all if one is named twice.
        if matches[0] in shown:
            return []
        shown += matches
    return shown


def _listed(devices: Sequence[Device]) -> str:
    return ", ".join(
        f"{device.index} ({device.uuid}, {device.name})" for device in devices
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
