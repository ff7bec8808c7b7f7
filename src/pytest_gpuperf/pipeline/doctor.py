"""What this machine can do, and measuring it where it is asked for; PYTEST_DONT_REWRITE."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pytest_gpuperf.collect.devices import query_devices, with_driver_facts
from pytest_gpuperf.collect.hardware.measured import keep_peaks, kept_peaks
from pytest_gpuperf.collect.hardware.measuring import measure_peaks
from pytest_gpuperf.collect.hardware.peaks import find_peaks
from pytest_gpuperf.errors import CollectError, CollectorUnavailableError
from pytest_gpuperf.model.frozen import Frozen

if TYPE_CHECKING:
    from pytest_gpuperf.collect.clock import Clock
    from pytest_gpuperf.collect.devices import DeviceQuery
    from pytest_gpuperf.collect.hardware.measuring import ArrayFramework
    from pytest_gpuperf.collect.runtime import DeviceRuntime
    from pytest_gpuperf.model.device import Device
    from pytest_gpuperf.model.roofline import Peaks

__all__ = ["Examined", "examine", "measure"]


class Examined(Frozen, frozen=True, kw_only=True):
    """
    What a machine has.

    Attributes:
        peaks: The peaks of each GPU.

        remarks: What is to be said besides, a sentence each.

        ready: Whether there is a GPU, and what was asked for was done.
    """

    peaks: tuple[Peaks, ...]
    remarks: tuple[str, ...]
    ready: bool


def examine(runtime: DeviceRuntime, query: DeviceQuery | None = None) -> Examined:
    """
    Return the GPUs of this machine with their peaks.

    Args:
        runtime: Knows what the driver says of them.

        query: The GPUs; None: those of this machine.
    """
    query = query or query_devices()
    found: list[Peaks] = []
    remarks = [] if query.reason is None else [f"{query.reason}."]
    for device in query.devices:
        kept = kept_peaks(device)
        known = with_driver_facts(device, runtime.facts_of(device.uuid))
        found.append(find_peaks(known, measured=kept.values))
        remarks += [f"{kept.reason}."] if kept.reason else []
    remarks.append(
        "Peaks that an ini file declares (gpuperf_peaks) are not read here: they belong "
        "to its project."
    )
    return Examined(peaks=tuple(found), remarks=tuple(remarks), ready=bool(found))


def measure(
    find: Callable[[], ArrayFramework],
    runtime: DeviceRuntime,
    clock: Clock,
    query: DeviceQuery | None = None,
) -> tuple[str, bool]:
    """
    Measure the GPU that a framework uses and keep its peaks for this user.

    Args:
        find: Returns the framework to measure with.

        runtime: Knows which GPU it uses.

        clock: Gives the time.

        query: The GPUs; None: those of this machine.

    Returns:
        One sentence, and whether it was done.
    """
    query = query or query_devices()
    try:
        framework = find()
        framework.synchronize()  # from now on it has a context on its GPU
        device = _used(runtime, query)
        values = measure_peaks(framework, clock)
        file = keep_peaks(device, values)
    except CollectError as error:
        return f"Nothing was measured: {error}.", False
    names = ", ".join(values)
    return f"{names} of {device.name} were measured and are kept in {file}.", True


def _used(runtime: DeviceRuntime, query: DeviceQuery) -> Device:
    """
    Return the GPU that this process uses.

    Raises:
        CollectorUnavailableError: NVML does not list it.
    """
    uuid = runtime.device_uuid()
    for device in query.devices:
        if device.uuid == uuid:
            return device
    message = f"NVML does not list the GPU in use ({uuid or 'none is'})"
    raise CollectorUnavailableError(
        message, remedy=query.reason or "measure on a whole GPU, not on a slice of one"
    )
