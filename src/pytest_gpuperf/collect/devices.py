"""The GPUs of this machine, and the one that tests are to run on."""

from __future__ import annotations

import ctypes
import importlib
import re
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pytest_gpuperf.errors import ConfigError
from pytest_gpuperf.model.environment import ChipLimits, Device
from pytest_gpuperf.model.frozen import Frozen, replace

if TYPE_CHECKING:
    from pytest_gpuperf.collect.runtime import DriverFacts

__all__ = [
    "HZ_PER_MHZ",
    "ORDER_REMEDY",
    "UNORDERED",
    "Chosen",
    "DeviceQuery",
    "bare_uuid",
    "chip_limits",
    "choose_device",
    "order_is_known",
    "query_devices",
    "same_device",
    "target_capability",
    "with_driver_facts",
]

HZ_PER_MHZ = 1_000_000
_MILLIWATTS_PER_WATT = 1000
_OLDEST, _WIDER = (7, 0), (8, 6)  # 64 cores a multiprocessor, and from here on 128
_PREFIX = re.compile("^(gpu|mig)-")  # before the UUID of a GPU, or of a part of one
_SLICE = " MIG "  # between a GPU's name and the profile of a slice of it

_KIB = 1024
_TARGET = re.compile(r"(?:sm|compute)_(\d+)(\d)[af]?")


class DeviceQuery(Frozen, frozen=True, kw_only=True):
    """
    The GPUs of this machine, as the driver lists them.

    Attributes:
        devices: The GPUs that could be read, in the driver's order.

        reason: One sentence why none or not all could be read; None: all were.

        slices: The MIG instances, with the index of their GPU.

        confidential: Whether confidential computing is on: CUDA events then give times
            that are wrong, even below zero.
    """

    devices: tuple[Device, ...]
    reason: str | None
    slices: tuple[Device, ...] = ()
    confidential: bool = False


def query_devices(
    nvml: ModuleType | None = None, *, library: str = "libnvidia-ml.so.1"
) -> DeviceQuery:
    """
    Return the NVIDIA GPUs of this machine, in the driver's order.

    Args:
        nvml: The NVML binding; None: pynvml, imported now.

        library: The library that pynvml needs on Linux; without it, pynvml is not imported.

    Returns:
        The devices, or why there are none: a machine without a GPU is not an error.
    """
    if nvml is None:
        if not _is_there(library):
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
    Return the memory of a GPU, or of a slice, that new processes can have [B].

    Args:
        uuid: The device's name for life.

        nvml: The NVML binding; None: pynvml, imported now.

    Returns:
        The memory; None: NVML does not say.
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
    """Return a UUID without its GPU or MIG prefix, which CUDA leaves out."""
    return _PREFIX.sub("", uuid.lower(), count=1)


def _is_there(library: str) -> bool:
    """Return whether NVML's library can be loaded: importing pynvml takes 40 ms."""
    if sys.platform != "linux":  # elsewhere pynvml searches several folders
        return True
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def with_driver_facts(device: Device, facts: DriverFacts | None) -> Device:
    """
    Return a device with the CUDA driver's facts added to those of NVML.

    Args:
        device: The device as NVML reports it.

        facts: The CUDA driver's facts; None: the driver has not been started.
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
    """Return a query without a GPU."""
    return DeviceQuery(devices=(), reason=reason)


def _read_all(nvml: ModuleType) -> DeviceQuery:
    """Return the devices that answer, and the error of the first that does not."""
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
                parts = _parts(nvml, handle)
                slices += [_read(nvml, part, index, driver_version) for part in parts]
        except nvml.NVMLError as error:
            reason = reason or f"GPU {index} does not answer: {error}"
    state = _answer(nvml, "nvmlSystemGetConfComputeState")
    return DeviceQuery(
        devices=tuple(devices),
        reason=reason,
        slices=tuple(slices),
        confidential=bool(state and state.ccFeature),
    )


def _parts(nvml: ModuleType, handle: object) -> list[object]:
    """Return NVML's handles of the MIG instances of a GPU; an index may be unused."""
    count = _answer(nvml, "nvmlDeviceGetMaxMigDeviceCount", handle) or 0
    handles = (
        _answer(nvml, "nvmlDeviceGetMigDeviceHandleByIndex", handle, index)
        for index in range(count)
    )
    return [handle for handle in handles if handle is not None]


def _read(nvml: ModuleType, handle: object, index: int, driver_version: str) -> Device:
    """Return one device; an unsupported property is None."""
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
        sm_count=(
            _sm_count(nvml, handle, compute_capability)
            if profile is None
            else _slice_sm_count(nvml, handle)
        ),
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
    """Return the profile in the name of a slice, as "1g.10gb"; None: a whole GPU."""
    return name.partition(_SLICE)[2] or None


def _sm_count(
    nvml: ModuleType, handle: object, capability: tuple[int, int] | None
) -> int | None:
    """Return the multiprocessors of a GPU, from its cores."""
    cores = _answer(nvml, "nvmlDeviceGetNumGpuCores", handle)
    if not cores or capability is None or capability < _OLDEST:
        return None
    return int(cores) // (128 if capability >= _WIDER else 64)


def _slice_sm_count(nvml: ModuleType, handle: object) -> int | None:
    """Return the multiprocessors of a slice of a GPU."""
    attributes = _answer(nvml, "nvmlDeviceGetAttributes", handle)
    return None if attributes is None else int(attributes.multiprocessorCount)


def _answer(nvml: ModuleType, function: str, *arguments: object) -> Any:  # noqa: ANN401 - the library has no types
    """Return NVML's answer; None where device or driver refuses."""
    try:
        return getattr(nvml, function)(*arguments)
    except nvml.NVMLError:
        return None


def _enabled(nvml: ModuleType, function: str, handle: object) -> bool | None:
    """Return whether a mode is on now; NVML returns the current and the pending one."""
    modes = _answer(nvml, function, handle)
    return None if modes is None else bool(modes[0])


def _clock_hz(nvml: ModuleType, handle: object, kind: int) -> int | None:
    """Return the highest clock of one kind."""
    clock_mhz = _answer(nvml, "nvmlDeviceGetMaxClockInfo", handle, kind)
    return None if clock_mhz is None else int(clock_mhz) * HZ_PER_MHZ


def _application_clock_hz(nvml: ModuleType, handle: object, kind: int) -> int | None:
    """
    Return the clock that applications are to get; None: the driver does not say.

    CUDA 14 drops it, and NVML reads back no range that was locked.
    """
    name = "nvmlDeviceGetApplicationsClock"
    if not hasattr(nvml, name):
        return None
    clock_mhz = _answer(nvml, name, handle, kind)
    return None if not clock_mhz else int(clock_mhz) * HZ_PER_MHZ


def _watts(nvml: ModuleType, function: str, handle: object) -> float | None:
    """Return a power limit [W]."""
    milliwatts = _answer(nvml, function, handle)
    return None if milliwatts is None else milliwatts / _MILLIWATTS_PER_WATT


def _text(value: str | bytes) -> str:
    """Return text; pynvml before 12 answers in bytes."""
    return value.decode() if isinstance(value, bytes) else value


def _shut_down(nvml: ModuleType) -> None:
    """Shut NVML down and ignore its errors."""
    try:
        nvml.nvmlShutdown()
    except nvml.NVMLError:
        return


def chip_limits(compute_capability: tuple[int, int]) -> ChipLimits | None:
    """
    Return the limits of a multiprocessor of a compute capability.

    Args:
        compute_capability: Major and minor number.

    Returns:
        The limits; None for a compute capability that is not in the table.
    """
    return _CHIPS.get(compute_capability)


def target_capability(target: str) -> tuple[int, int] | None:
    """
    Return the compute capability that a compiler's target name stands for.

    Args:
        target: As compilers write it: `sm_90`, `sm_90a`, `sm_120f`, `compute_75`.

    Returns:
        Major and minor number; None where it is not such a name.

    Example:
        >>> target_capability("sm_103a")
        (10, 3)
    """
    match = _TARGET.fullmatch(target)
    return (int(match[1]), int(match[2])) if match else None


def _limits(
    capability: tuple[int, int], *, warps: int, blocks: int, shared_kib: int
) -> ChipLimits:
    """Return the limits of a chip from the four numbers in which chips differ."""
    reserved_bytes = _KIB if capability >= (8, 0) else 0  # table 27: SM less block
    two_barriers = capability in {(7, 0), (7, 5), (8, 0), (9, 0), (10, 0), (10, 3)}
    return ChipLimits(
        compute_capability=capability,
        registers_per_sm_count=64 * 1024,  # table 27, every chip
        max_registers_per_thread_count=255,  # table 27, every chip
        max_registers_per_block_count=64 * 1024,  # table 27, every chip
        register_allocation_count=256,  # cuda_occupancy.h, every chip
        warp_allocation_count=4,  # cuda_occupancy.h: sub-partitions of an SM
        max_warps_per_sm_count=warps,
        max_blocks_per_sm_count=blocks,
        max_threads_per_block_count=1024,  # table 27, every chip
        max_barriers_per_sm_count=(  # cuda_occupancy.h: counted from 9.0 on
            blocks * (2 if two_barriers else 1) if capability >= (9, 0) else None
        ),
        shared_per_sm_bytes=shared_kib * _KIB,
        max_shared_per_block_bytes=shared_kib * _KIB - reserved_bytes,  # table 27
        reserved_shared_per_block_bytes=reserved_bytes,
        shared_allocation_bytes=128 if capability >= (8, 0) else 256,  # the header
        warp_size_count=32,  # table 27, every chip
    )


# Table 27 is "Technical Specifications per Compute Capability" of the CUDA C++
# Programming Guide 13.0; the header is cuda_occupancy.h of CUDA 13.0. What table 27
# says of warps and blocks, ptxas 13.0 says too: it refuses launch bounds beyond them.
_CHIPS = {
    limits.compute_capability: limits
    for limits in (
        # the guide for CUDA 12 (dropped in 13); the reports of a Tesla V100 agree
        _limits((7, 0), warps=64, blocks=32, shared_kib=96),
        # table 27; the reports of a GeForce GTX 1660 Ti agree
        _limits((7, 5), warps=32, blocks=16, shared_kib=64),
        # table 27; the reports of two A100 agree
        _limits((8, 0), warps=64, blocks=32, shared_kib=164),
        # table 27; the reports of an A40 and an A10G agree
        _limits((8, 6), warps=48, blocks=16, shared_kib=100),
        # table 27; ptxas agrees
        _limits((8, 7), warps=48, blocks=16, shared_kib=164),
        # table 27; ptxas agrees
        _limits((8, 9), warps=48, blocks=24, shared_kib=100),
        # table 27; the reports of an H800 and a GH200 agree
        _limits((9, 0), warps=64, blocks=32, shared_kib=228),
        # table 27; ptxas agrees
        _limits((10, 0), warps=64, blocks=32, shared_kib=228),
        # warps and blocks from ptxas 13.0, shared memory from the header
        _limits((10, 3), warps=64, blocks=32, shared_kib=228),
        # table 27; ptxas agrees
        _limits((11, 0), warps=48, blocks=24, shared_kib=228),
        # table 27; ptxas agrees
        _limits((12, 0), warps=48, blocks=24, shared_kib=100),
        # warps and blocks from ptxas 13.0, shared memory from the header
        _limits((12, 1), warps=48, blocks=24, shared_kib=100),
    )
}


_VISIBLE, _ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"
_BY_BUS = "PCI_BUS_ID"  # of CUDA_DEVICE_ORDER: NVML's own order
UNORDERED = "this machine has GPUs of several kinds, which CUDA orders by their speed"
ORDER_REMEDY = f"set {_ORDER}={_BY_BUS}"
_WHOLE, _PART = "GPU-", "MIG-"  # before the UUID of a GPU, or of a part of one
_LEAVE_OUT = "or leave --gpuperf-device out"


class Chosen(Frozen, frozen=True, kw_only=True):
    """
    The GPU that tests are to run on.

    Attributes:
        device: As NVML reports it; None: there is none, or CUDA hides all.

        ordinal: Its index in this process's CUDA, from 0.

        reason: Why there is no device, as a fragment; "": there is one.
    """

    device: Device | None
    ordinal: int = 0
    reason: str = ""


def choose_device(
    query: DeviceQuery, name: str | None, environment: Mapping[str, str]
) -> Chosen:
    """
    Return the requested GPU, or the first that CUDA shows.

    A hidden GPU is never replaced by another one.

    Args:
        query: The GPUs of this machine.

        name: An NVML index, or a unique prefix of a UUID; None: not requested.

        environment: The variables with which CUDA selects and orders GPUs.

    Raises:
        ConfigError: The GPU does not exist, cannot be used, or is hidden.

    References:
        CUDA C++ Programming Guide, "CUDA Environment Variables".
    """
    shown = _shown(query, environment)
    if name is None:
        return _first(query, shown, environment)
    device = _named(query, name)
    if device.mig and any(part.index == device.index for part in query.slices):
        message = f"GPU {device.index} is split into instances"
        remedy = f"name one of them: {_listed(_slices_of(query, device))}"
        raise ConfigError(message, remedy=remedy)
    if device in shown:
        _refuse_unordered(query, environment)
        return Chosen(device=device, ordinal=shown.index(device))
    visible = environment.get(_VISIBLE, "")
    message = f"{_called(device)} is hidden by {_VISIBLE}={visible}"
    alternative = device.uuid if device.uuid.startswith(_PART) else str(device.index)
    raise ConfigError(message, remedy=f"set {_VISIBLE}={alternative}, {_LEAVE_OUT}")


def order_is_known(query: DeviceQuery, environment: Mapping[str, str]) -> bool:
    """Return whether CUDA's indexes of GPUs follow from NVML's."""
    visible = environment.get(_VISIBLE, "").upper()
    by_name = _WHOLE in visible or _PART in visible
    kinds = {device.name for device in query.devices}
    return by_name or len(kinds) <= 1 or environment.get(_ORDER) == _BY_BUS


def same_device(first_uuid: str, second_uuid: str) -> bool:
    """Return whether two UUIDs name one GPU or one MIG instance."""
    return bare_uuid(first_uuid) == bare_uuid(second_uuid)


def _first(
    query: DeviceQuery, shown: Sequence[Device], environment: Mapping[str, str]
) -> Chosen:
    """Return the first GPU that CUDA shows."""
    if shown:
        return Chosen(device=shown[0])
    reason = query.reason or "no GPU"
    if query.devices:
        reason = f"{_VISIBLE}={environment.get(_VISIBLE, '')} hides every GPU"
    return Chosen(device=None, reason=reason)


def _named(query: DeviceQuery, text: str) -> Device:
    """Return the GPU or MIG instance that an index or a UUID names."""
    if not query.devices:
        message = f"there is no GPU: {query.reason}"
        raise ConfigError(
            message, remedy=f"run it on a machine with a GPU, {_LEAVE_OUT}"
        )
    every = (*query.devices, *query.slices)
    if text.isdecimal():
        matches = [device for device in query.devices if device.index == int(text)]
    else:
        head = text.lower()
        matches = [device for device in every if device.uuid.lower().startswith(head)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        message = f"{text} matches {len(matches)} GPUs"
        raise ConfigError(message, remedy=f"give a longer prefix: {_listed(matches)}")
    message = f"no GPU {text}: this machine has {_listed(every)}"
    raise ConfigError(message, remedy=f"name one of these, {_LEAVE_OUT}")


def _shown(query: DeviceQuery, environment: Mapping[str, str]) -> list[Device]:
    """Return the GPUs that CUDA shows to this process, in its order."""
    text = environment.get(_VISIBLE)
    if text is None:
        return list(query.devices)
    shown: list[Device] = []
    for token in text.split(","):
        device = _token(query, token.strip())
        if device is None:  # CUDA stops at the first entry that it does not know
            break
        if device in shown:  # and shows no GPU where one is named twice
            return []
        shown.append(device)
    return shown


def _token(query: DeviceQuery, token: str) -> Device | None:
    """Return the device of one entry of CUDA_VISIBLE_DEVICES; None: no device."""
    if token.isdecimal():
        number = int(token)
        return next(
            (device for device in query.devices if device.index == number), None
        )
    head = token.lower()
    if not head.startswith((_WHOLE.lower(), _PART.lower())):
        return None
    every = (*query.devices, *query.slices)
    matches = [device for device in every if device.uuid.lower().startswith(head)]
    if not matches and head.startswith(_PART.lower()):  # the driver lists no instances
        matches = [device for device in query.devices if device.mig]
    return matches[0] if len(matches) == 1 else None


def _refuse_unordered(query: DeviceQuery, environment: Mapping[str, str]) -> None:
    """Raise where CUDA's indexes of GPUs do not follow from NVML's."""
    if not order_is_known(query, environment):
        raise ConfigError(UNORDERED, remedy=f"{ORDER_REMEDY}, {_LEAVE_OUT}")


def _slices_of(query: DeviceQuery, device: Device) -> list[Device]:
    """Return the MIG instances of a GPU."""
    return [part for part in query.slices if part.index == device.index]


def _called(device: Device) -> str:
    """Return a GPU by its index and its UUID."""
    return f"GPU {device.index} ({device.uuid})"


def _listed(devices: Sequence[Device]) -> str:
    """Return GPUs by index, UUID and name."""
    return ", ".join(
        f"{device.index} ({device.uuid}, {device.name})" for device in devices
    )
