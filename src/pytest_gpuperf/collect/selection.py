"""Which GPU of a machine is measured, and what CUDA calls it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pytest_gpuperf.collect.devices import DeviceQuery, bare_uuid
from pytest_gpuperf.errors import ConfigError
from pytest_gpuperf.model.device import Device
from pytest_gpuperf.model.frozen import Frozen

__all__ = [
    "ORDER_REMEDY",
    "UNORDERED",
    "Chosen",
    "choose_device",
    "order_is_known",
    "same_device",
]

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
