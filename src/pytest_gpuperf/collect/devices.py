"""The GPUs of this machine, and the GPU that the tests run on."""

from __future__ import annotations

import ctypes
import importlib
import re
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pytest_gpuperf.errors import ConfigError
from pytest_gpuperf.model.environment import Device
from pytest_gpuperf.model.frozen import Frozen, replace

if TYPE_CHECKING:
    from pytest_gpuperf.collect.runtime import DriverFacts

HZ_PER_MHZ = 1_000_000
_MILLIWATTS_PER_WATT = 1000
# From 7.0 on, a multiprocessor has 64 cores, and from 8.6 on, 128.
_OLDEST, _WIDER = (7, 0), (8, 6)
# The prefix of the UUID of a GPU, or of a part of a GPU.
_PREFIX = re.compile("^(gpu|mig)-")
# Separates a GPU's name from the profile of a slice.
_SLICE = " MIG "


class DeviceQuery(Frozen, frozen=True, kw_only=True):
    """
    The GPUs of this machine, as the driver lists them.

    Attributes:
        devices: The GPUs that could be read, in the driver's order.

        reason: A sentence that explains why not all GPUs could be read, or None if all
            could.

        slices: The MIG instances, with the index of their GPU.

        confidential: Whether confidential computing is on. CUDA events then give wrong
            times, even negative ones.
    """

    devices: tuple[Device, ...]
    reason: str | None
    slices: tuple[Device, ...] = ()
    confidential: bool = False


def query_devices(
    nvml: ModuleType | None = None, *, library: str = "libnvidia-ml.so.1"
) -> DeviceQuery:
    """
    List the NVIDIA GPUs of this machine, in the driver's order.

    Args:
        nvml: The NVML binding, or None to import pynvml.

        library: The library that pynvml needs on Linux. Without it, pynvml is not
            imported.

    Returns:
        The devices, or the reason that there are none. A machine without a GPU is not
        an error.
    """
    if nvml is None:
        try:
            # Importing pynvml to try the library takes 40 ms. On other systems, pynvml
            # searches several folders.
            if sys.platform == "linux":
                ctypes.CDLL(library)
        except OSError:
            return _none("no NVIDIA driver is installed")
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


def bare_uuid(uuid: str) -> str:
    """Return a UUID without the GPU or MIG prefix, which CUDA leaves out."""
    return _PREFIX.sub("", uuid.lower(), count=1)


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


def _none(reason: str) -> DeviceQuery:
    return DeviceQuery(devices=(), reason=reason)


def _read_all(nvml: ModuleType) -> DeviceQuery:
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
    return DeviceQuery(
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


_VISIBLE, _ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"
# The value of CUDA_DEVICE_ORDER that matches NVML's order.
_BY_BUS = "PCI_BUS_ID"
UNORDERED = "this machine has GPUs of several kinds, which CUDA orders by their speed"
ORDER_REMEDY = f"set {_ORDER}={_BY_BUS}"
# The prefixes of the UUID of a GPU and of a part of a GPU.
_WHOLE, _PART = "GPU-", "MIG-"
_LEAVE_OUT = "or leave --gpuperf-device out"


class Chosen(Frozen, frozen=True, kw_only=True):
    """
    The GPU that the tests run on.

    Attributes:
        device: The GPU as NVML reports it, or None if there is none or CUDA hides all.

        ordinal: The index of the GPU in this process's CUDA, from 0.

        reason: The reason that there is no device, as a fragment, or "" if there is a
            device.
    """

    device: Device | None
    ordinal: int = 0
    reason: str = ""


def choose_device(
    query: DeviceQuery, name: str | None, environment: Mapping[str, str]
) -> Chosen:
    """
    Return the requested GPU, or the first GPU that CUDA shows.

    A hidden GPU is never replaced by another GPU.

    Args:
        query: The GPUs of this machine.

        name: An NVML index, or a unique prefix of a UUID, or None if no GPU was
            requested.

        environment: The variables with which CUDA selects and orders GPUs.

    Raises:
        ConfigError: The GPU does not exist, cannot be used, or is hidden.

    References:
        CUDA C++ Programming Guide, "CUDA Environment Variables".
    """
    shown = _shown(query, environment)
    visible = environment.get(_VISIBLE, "")
    if name is None:
        if shown:
            return Chosen(device=shown[0])
        hidden = f"{_VISIBLE}={visible} hides every GPU"
        reason = hidden if query.devices else query.reason or "no GPU"
        return Chosen(device=None, reason=reason)
    device = _named(query, name)
    parts = [part for part in query.slices if part.index == device.index]
    if device.mig and parts:
        message = f"GPU {device.index} is split into instances"
        raise ConfigError(message, remedy=f"name one of them: {_listed(parts)}")
    if device in shown:
        if not order_is_known(query, environment):
            raise ConfigError(UNORDERED, remedy=f"{ORDER_REMEDY}, {_LEAVE_OUT}")
        return Chosen(device=device, ordinal=shown.index(device))
    message = f"GPU {device.index} ({device.uuid}) is hidden by {_VISIBLE}={visible}"
    alternative = device.uuid if device.uuid.startswith(_PART) else str(device.index)
    raise ConfigError(message, remedy=f"set {_VISIBLE}={alternative}, {_LEAVE_OUT}")


def order_is_known(query: DeviceQuery, environment: Mapping[str, str]) -> bool:
    """Return True if CUDA's indexes of GPUs follow from NVML's."""
    visible = environment.get(_VISIBLE, "").upper()
    by_name = _WHOLE in visible or _PART in visible
    kinds = {device.name for device in query.devices}
    return by_name or len(kinds) <= 1 or environment.get(_ORDER) == _BY_BUS


def same_device(first_uuid: str, second_uuid: str) -> bool:
    """Return True if two UUIDs name the same GPU or MIG instance."""
    return bare_uuid(first_uuid) == bare_uuid(second_uuid)


def _named(query: DeviceQuery, text: str) -> Device:
    if not query.devices:
        message = f"there is no GPU: {query.reason}"
        raise ConfigError(
            message, remedy=f"run it on a machine with a GPU, {_LEAVE_OUT}"
        )
    matches = _matches(query, text)
    if len(matches) == 1:
        return matches[0]
    if matches:
        message = f"{text} matches {len(matches)} GPUs"
        raise ConfigError(message, remedy=f"give a longer prefix: {_listed(matches)}")
    every = _listed((*query.devices, *query.slices))
    message = f"no GPU {text}: this machine has {every}"
    raise ConfigError(message, remedy=f"name one of these, {_LEAVE_OUT}")


def _matches(query: DeviceQuery, text: str) -> list[Device]:
    if text.isdecimal():
        return [device for device in query.devices if device.index == int(text)]
    every = (*query.devices, *query.slices)
    head = text.lower()
    return [device for device in every if device.uuid.lower().startswith(head)]


def _shown(query: DeviceQuery, environment: Mapping[str, str]) -> list[Device]:
    text = environment.get(_VISIBLE)
    if text is None:
        return list(query.devices)
    shown: list[Device] = []
    for token in map(str.strip, text.split(",")):
        is_part = token.upper().startswith(_PART)
        is_name = token.isdecimal() or is_part or token.upper().startswith(_WHOLE)
        matches = _matches(query, token) if is_name else []
        # The driver lists no instances.
        if is_part and not matches:
            matches = [device for device in query.devices if device.mig]
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
