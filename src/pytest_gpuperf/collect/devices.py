"""The GPUs of this machine, and the GPU that the tests run on."""

from __future__ import annotations

import ctypes
import importlib
import re
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING

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
    List the NVIDIA GPUs of the machine, in the driver's order.

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
    """
    if name is None and not query.devices:
        return Chosen(device=None, reason=query.reason or "no GPU")
    # Loaded with the GPUs themselves, if there are any.
    from pytest_gpuperf.collect.listed_devices import ListedDevices, choose

    listed = ListedDevices(query.devices, query.reason, query.slices)
    device, ordinal, reason = choose(listed, name, environment)
    return Chosen(device=device, ordinal=ordinal, reason=reason)


def same_device(first_uuid: str, second_uuid: str) -> bool:
    """Return True if two UUIDs name the same GPU or MIG instance."""
    return bare_uuid(first_uuid) == bare_uuid(second_uuid)
