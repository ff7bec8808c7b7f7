"""The GPUs of this machine, and the GPU that the tests run on."""

from __future__ import annotations

import ctypes
import importlib
import re
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING

from pytest_gpuperf.errors import ConfigError
from pytest_gpuperf.model.environment import Device
from pytest_gpuperf.model.frozen import Frozen

if TYPE_CHECKING:
    pass

# The prefix of the UUID of a GPU, or of a part of a GPU.
_PREFIX = re.compile("^(gpu|mig)-")


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
    # Many machines have no GPU.
    from pytest_gpuperf.collect.listed_devices import list_devices

    return DeviceQuery(**list_devices(nvml)._asdict())


def bare_uuid(uuid: str) -> str:
    """Return a UUID without the GPU or MIG prefix, which CUDA leaves out."""
    return _PREFIX.sub("", uuid.lower(), count=1)


def _none(reason: str) -> DeviceQuery:
    return DeviceQuery(devices=(), reason=reason)


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
