"""The command `doctor`: what stops a measurement on this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pytest_gpuperf.cli.output import BLOCKED, DEGRADED, GOOD, print_bytes
from pytest_gpuperf.collect.clock import Clock, SystemClock
from pytest_gpuperf.collect.devices import DeviceQuery, query_devices, with_driver_facts
from pytest_gpuperf.collect.doctor import look
from pytest_gpuperf.collect.measured_peaks import (
    ArrayFramework,
    find_framework,
    measure_peaks,
    store_peaks,
    stored_peaks,
)
from pytest_gpuperf.collect.peaks import find_peaks
from pytest_gpuperf.collect.runtime import CudaRuntime, DeviceRuntime, load_driver
from pytest_gpuperf.errors import CollectError, CollectorUnavailableError
from pytest_gpuperf.judge.grade import condition_of
from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.gap import Condition, Finding, Status
from pytest_gpuperf.report.doctor import doctor_bytes

if TYPE_CHECKING:
    import argparse

    from pytest_gpuperf.model.environment import Device
    from pytest_gpuperf.model.roofline import Peaks

__all__ = ["Examined", "doctor", "examine", "measure"]

_GPU = "gpu"  # the finding on the presence of a GPU


class Examined(Frozen, frozen=True, kw_only=True):
    """
    The doctor's examination of a machine.

    Attributes:
        peaks: The peaks of each GPU.

        findings: One finding for each topic.

        remarks: Further remarks, a sentence each.

        condition: Whether every concern of a GPU can be measured, and why not.
    """

    peaks: tuple[Peaks, ...]
    findings: tuple[Finding, ...]
    remarks: tuple[str, ...]
    condition: Condition


def examine(
    runtime: DeviceRuntime,
    query: DeviceQuery | None = None,
    findings: Sequence[Finding] = (),
    *,
    has_peaks: bool = True,
) -> Examined:
    """
    Return the GPUs of this machine with their peaks, and whether it is ready.

    Args:
        runtime: Gives the driver's facts of a GPU.

        query: The GPUs; None: those of this machine.

        findings: The findings on this machine.

        has_peaks: Whether peaks that were to be measured have been.
    """
    query = query or query_devices()
    gpu_peaks: list[Peaks] = []
    remarks = [] if query.reason is None else [f"{query.reason}."]
    for device in query.devices:
        measured = stored_peaks(device)
        detailed = with_driver_facts(device, runtime.facts_of(device.uuid))
        gpu_peaks.append(find_peaks(detailed, measured=measured.values))
        remarks += [f"{measured.reason}."] if measured.reason else []
    remarks.append(
        "Peaks declared in an ini file (gpuperf_peaks) are not read here: they belong to "
        "that project."
    )
    has_gpu = bool(gpu_peaks) or any(
        finding.id == _GPU and finding.status is Status.OK for finding in findings
    )
    return Examined(
        peaks=tuple(gpu_peaks),
        findings=tuple(findings),
        remarks=tuple(remarks),
        condition=condition_of(findings, has_gpu=has_gpu, has_peaks=has_peaks),
    )


def measure(
    find: Callable[[], ArrayFramework],
    runtime: DeviceRuntime,
    clock: Clock,
    query: DeviceQuery | None = None,
) -> tuple[str, bool]:
    """
    Measure the GPU that a framework uses and store its peaks for this user.

    Args:
        find: Returns the framework to measure with.

        runtime: Tells which GPU it uses.

        clock: Gives the time.

        query: The GPUs; None: those of this machine.

    Returns:
        One sentence, and whether the peaks were measured.
    """
    query = query or query_devices()
    try:
        framework = find()
        framework.synchronize()  # creates a context on its GPU
        device = _used(runtime, query)
        detailed = with_driver_facts(device, runtime.facts_of(device.uuid))
        values = measure_peaks(framework, clock, l2_bytes=detailed.l2_bytes)
        file = store_peaks(device, values)
    except CollectError as error:
        return f"Nothing was measured: {error}.", False
    names = ", ".join(values)
    return f"{names} of {device.name} were measured and stored in {file}.", True


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


_CODES = {"ready": GOOD, "degraded": DEGRADED, "blocked": BLOCKED}


def doctor(arguments: argparse.Namespace) -> int:
    """Print what this machine can measure, what stops it, and the peaks of its GPUs."""
    findings = look()  # before this process has a context on a GPU
    runtime = CudaRuntime(load_driver)
    sentence, measured = "", True
    if arguments.measure_peaks:
        sentence, measured = measure(find_framework, runtime, SystemClock())
    examined = examine(runtime, findings=findings, has_peaks=measured)
    print_bytes(
        doctor_bytes(
            examined.findings,
            examined.peaks,
            (*examined.remarks, *filter(None, (sentence,))),
            arguments.format,
            condition=examined.condition,
        )
    )
    return _CODES[examined.condition.state.value]
