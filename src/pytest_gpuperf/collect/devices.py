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
    What the driver said of the GPUs of this machine.

    Attributes:
        devices: Those that could be read, in the driver's own order.

        reason: One sentence why none or not all could be read; None: all were.

        slices: The instances of those that are split, by the index of their GPU.
    """

    devices: tuple[Device, ...]
    reason: str | None
    slices: tuple[Device, ...] = ()


def query_devices(
    nvml: ModuleType | None = None, *, library: str = "libnvidia-ml.so.1"
) -> DeviceQuery:
    """
    Return the NVIDIA GPUs of this machine, in the driver's own order.

    Args:
        nvml: The binding to ask; None: pynvml, imported now.

        library: What pynvml needs on Linux; without it, it is not even imported.

    Returns:
        The devices, or why there are none: a machine without a GPU is no error.
    """
    if nvml is None:
        if not _is_there(library):
            return _none("NVML does not start: its library is not on this machine")
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


def bare_uuid(uuid: str) -> str:
    """Return a UUID without what tells a GPU from a part of one: CUDA's never does."""
    return _PREFIX.sub("", uuid.lower(), count=1)


def _is_there(library: str) -> bool:
    """Return whether pynvml has a library to load: importing it takes 40 ms."""
    if sys.platform != "linux":  # elsewhere pynvml knows several places to look at
        return True
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def with_driver_facts(device: Device, facts: DriverFacts | None) -> Device:
    """
    Return a device with what the CUDA driver says of it beside what NVML said.

    Args:
        device: As NVML knows it.

        facts: As the driver knows it; None: nobody has started the driver.
    """
    if facts is None:
        return device
    profile = _profile(facts.name)
    own_name = facts.name if profile is not None else device.name
    return replace(
        device,
        name=own_name,
        mig_profile=profile or device.mig_profile,
        sm_count=facts.sm_count or device.sm_count,
        rated_clock_hz=facts.rated_clock_hz,
        max_memory_clock_hz=device.max_memory_clock_hz or facts.memory_clock_hz,
        memory_bus_bits=facts.memory_bus_bits or device.memory_bus_bits,
        l2_bytes=facts.l2_bytes,
        integrated=facts.integrated,
    )


def _none(reason: str) -> DeviceQuery:
    """Return a query that found nothing."""
    return DeviceQuery(devices=(), reason=reason)


def _read_all(nvml: ModuleType) -> DeviceQuery:
    """Return every device that answers, and the first that does not."""
    driver_version = _text(nvml.nvmlSystemGetDriverVersion())
    count = nvml.nvmlDeviceGetCount()
    devices: list[Device] = []
    slices: list[Device] = []
    reason = None if count else "the driver knows no GPU"
    for index in range(count):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            device = _read(nvml, handle, index, driver_version)
            devices.append(device)
            if device.mig:
                parts = _parts(nvml, handle)
                slices += [_read(nvml, each, index, driver_version) for each in parts]
        except nvml.NVMLError as error:
            reason = reason or f"GPU {index} does not answer: {error}"
    return DeviceQuery(devices=tuple(devices), reason=reason, slices=tuple(slices))


def _parts(nvml: ModuleType, handle: object) -> list[object]:
    """Return NVML's handles of the instances of a GPU; a place may be empty."""
    count = _known(nvml, "nvmlDeviceGetMaxMigDeviceCount", handle) or 0
    found = (
        _known(nvml, "nvmlDeviceGetMigDeviceHandleByIndex", handle, place)
        for place in range(count)
    )
    return [each for each in found if each is not None]


def _read(nvml: ModuleType, handle: object, index: int, driver_version: str) -> Device:
    """Return one device; what it does not support is None."""
    memory = _known(nvml, "nvmlDeviceGetMemoryInfo", handle)
    capability = _known(nvml, "nvmlDeviceGetCudaComputeCapability", handle)
    limit_milliwatts = _known(nvml, "nvmlDeviceGetPowerManagementDefaultLimit", handle)
    found = None if capability is None else (int(capability[0]), int(capability[1]))
    name = _text(nvml.nvmlDeviceGetName(handle))
    profile = _profile(name)
    bus_bits = _known(nvml, "nvmlDeviceGetMemoryBusWidth", handle)
    return Device(
        index=index,
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        name=name,
        memory_bytes=None if memory is None else int(memory.total),
        sm_count=(
            _sm_count(nvml, handle, found)
            if profile is None
            else _slice_sm_count(nvml, handle)
        ),
        compute_capability=found,
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
    cores = _known(nvml, "nvmlDeviceGetNumGpuCores", handle)
    if not cores or capability is None or capability < _OLDEST:
        return None
    return int(cores) // (128 if capability >= _WIDER else 64)


def _slice_sm_count(nvml: ModuleType, handle: object) -> int | None:
    """Return the multiprocessors of a slice of a GPU."""
    attributes = _known(nvml, "nvmlDeviceGetAttributes", handle)
    return None if attributes is None else int(attributes.multiprocessorCount)


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
    return None if clock_mhz is None else int(clock_mhz) * HZ_PER_MHZ


def _text(value: str | bytes) -> str:
    """Return text; pynvml before 12 answers in bytes."""
    return value.decode() if isinstance(value, bytes) else value


def _shut_down(nvml: ModuleType) -> None:
    """Let go of the library; what it says to that changes nothing."""
    try:
        nvml.nvmlShutdown()
    except nvml.NVMLError:
        return


def chip_limits(compute_capability: tuple[int, int]) -> ChipLimits | None:
    """
    Return what a multiprocessor of a compute capability can hold.

    Args:
        compute_capability: Major and minor number.

    Returns:
        The limits; None where no source that we read says them.
    """
    return _CHIPS.get(compute_capability)


def target_capability(target: str) -> tuple[int, int] | None:
    """
    Return the compute capability that a compiler's target name stands for.

    Args:
        target: As compilers write it: `sm_90`, `sm_90a`, `sm_120f`, `compute_75`.

    Returns:
        Major and minor number; None where it is no such name.

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
        max_threads_per_sm_count=warps * 32,
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
        # the guide for CUDA 12 (13 has it no more); the reports of a Tesla V100 agree
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
UNORDERED = "this machine has GPUs of several kinds, which CUDA numbers by their speed"
ORDER_REMEDY = f"set {_ORDER}={_BY_BUS}"
_WHOLE, _PART = "GPU-", "MIG-"  # before the UUID of a GPU, or of a part of one
_LEAVE_OUT = "or leave --gpuperf-device out"


class Chosen(Frozen, frozen=True, kw_only=True):
    """
    The GPU that tests are to run on.

    Attributes:
        device: As NVML knows it; None: there is none, or CUDA shows none.

        ordinal: Its number in this process's CUDA, from 0.

        reason: Why there is none, as a fragment; "": there is one.
    """

    device: Device | None
    ordinal: int = 0
    reason: str = ""


def choose_device(
    query: DeviceQuery, asked: str | None, environment: Mapping[str, str]
) -> Chosen:
    """
    Return the GPU that was asked for, or the first that CUDA shows.

    A GPU that is hidden is never replaced by another one.

    Args:
        query: The GPUs of this machine.

        asked: An index as NVML counts, or the beginning of a UUID that only one has;
            None: nobody asked.

        environment: What CUDA reads which GPUs to show from, and in which order.

    Raises:
        ConfigError: There is no such GPU, it cannot be used, or it is hidden.

    References:
        CUDA C++ Programming Guide, "CUDA Environment Variables".
    """
    shown = _shown(query, environment)
    if asked is None:
        return _first(query, shown, environment)
    device = _named(query, asked)
    if device.mig and any(each.index == device.index for each in query.slices):
        message = f"GPU {device.index} is split into instances"
        remedy = f"name one of them: {_listed(_slices_of(query, device))}"
        raise ConfigError(message, remedy=remedy)
    if device in shown:
        _refuse_unordered(query, environment)
        return Chosen(device=device, ordinal=shown.index(device))
    visible = environment.get(_VISIBLE, "")
    message = f"{_called(device)} is hidden by {_VISIBLE}={visible}"
    name = device.uuid if device.uuid.startswith(_PART) else str(device.index)
    raise ConfigError(message, remedy=f"set {_VISIBLE}={name}, {_LEAVE_OUT}")


def order_is_known(query: DeviceQuery, environment: Mapping[str, str]) -> bool:
    """Return whether CUDA's numbers of GPUs can be told from NVML's."""
    visible = environment.get(_VISIBLE, "").upper()
    by_name = _WHOLE in visible or _PART in visible
    kinds = {each.name for each in query.devices}
    return by_name or len(kinds) <= 1 or environment.get(_ORDER) == _BY_BUS


def same_device(one: str, other: str) -> bool:
    """Return whether two UUIDs are of one GPU, or of one part of one."""
    return bare_uuid(one) == bare_uuid(other)


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


def _named(query: DeviceQuery, asked: str) -> Device:
    """Return the GPU, or the part of one, that an index or a UUID names."""
    if not query.devices:
        message = f"there is no GPU: {query.reason}"
        raise ConfigError(message, remedy=f"run it where there is one, {_LEAVE_OUT}")
    every = (*query.devices, *query.slices)
    if asked.isdecimal():
        found = [each for each in query.devices if each.index == int(asked)]
    else:
        head = asked.lower()
        found = [each for each in every if each.uuid.lower().startswith(head)]
    if len(found) == 1:
        return found[0]
    if found:
        message = f"{asked} begins the names of {len(found)} GPUs"
        raise ConfigError(message, remedy=f"write more of it: {_listed(found)}")
    message = f"no GPU {asked}: this machine has {_listed(every)}"
    raise ConfigError(message, remedy=f"name one of these, {_LEAVE_OUT}")


def _shown(query: DeviceQuery, environment: Mapping[str, str]) -> list[Device]:
    """Return the GPUs that CUDA shows to this process, in its order."""
    text = environment.get(_VISIBLE)
    if text is None:
        return list(query.devices)
    shown: list[Device] = []
    for token in text.split(","):
        device = _token(query, token.strip())
        if device is None:  # CUDA reads on to the first that it does not know
            break
        if device in shown:  # and shows none at all where one is named twice
            return []
        shown.append(device)
    return shown


def _token(query: DeviceQuery, token: str) -> Device | None:
    """Return what one entry of CUDA_VISIBLE_DEVICES stands for; None: nothing."""
    if token.isdecimal():
        number = int(token)
        return next((each for each in query.devices if each.index == number), None)
    head = token.lower()
    if not head.startswith((_WHOLE.lower(), _PART.lower())):
        return None
    every = (*query.devices, *query.slices)
    found = [each for each in every if each.uuid.lower().startswith(head)]
    if not found and head.startswith(_PART.lower()):  # of a driver that lists no parts
        found = [each for each in query.devices if each.mig]
    return found[0] if len(found) == 1 else None


def _refuse_unordered(query: DeviceQuery, environment: Mapping[str, str]) -> None:
    """Refuse a machine on which CUDA's numbers of GPUs cannot be told from NVML's."""
    if not order_is_known(query, environment):
        raise ConfigError(UNORDERED, remedy=f"{ORDER_REMEDY}, {_LEAVE_OUT}")


def _slices_of(query: DeviceQuery, device: Device) -> list[Device]:
    """Return the parts of a GPU that is split."""
    return [each for each in query.slices if each.index == device.index]


def _called(device: Device) -> str:
    """Return a GPU by its index and its UUID."""
    return f"GPU {device.index} ({device.uuid})"


def _listed(devices: Sequence[Device]) -> str:
    """Return GPUs with what each can be named by."""
    return ", ".join(f"{each.index} ({each.uuid}, {each.name})" for each in devices)
