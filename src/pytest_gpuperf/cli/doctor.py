"""`gpuperf doctor`: what stops a measurement here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pytest_gpuperf.cli.output import BLOCKED, DEGRADED, GOOD, print_bytes
from pytest_gpuperf.collect.devices import query_devices, with_driver_facts
from pytest_gpuperf.collect.hardware.measured import (
    keep_peaks,
    kept_peaks,
    measure_peaks,
)
from pytest_gpuperf.collect.hardware.peaks import find_peaks
from pytest_gpuperf.errors import CollectError, CollectorUnavailableError
from pytest_gpuperf.model.finding import Concern, Finding, Readiness, Status
from pytest_gpuperf.model.frozen import Frozen

if TYPE_CHECKING:
    import argparse

    from pytest_gpuperf.collect.clock import Clock
    from pytest_gpuperf.collect.devices import DeviceQuery
    from pytest_gpuperf.collect.hardware.measured import ArrayFramework
    from pytest_gpuperf.collect.runtime import DeviceRuntime
    from pytest_gpuperf.model.environment import Device
    from pytest_gpuperf.model.roofline import Peaks

__all__ = ["Examined", "doctor", "examine", "measure"]

_GPU = "gpu"  # the finding that says whether there is one
# what a GPU is there for; that its time is taken is the least
_FOR: tuple[Concern, ...] = ("timing", "counters", "launches", "energy", "memory")


class Examined(Frozen, frozen=True, kw_only=True):
    """
    What a machine has.

    Attributes:
        peaks: The peaks of each GPU.

        findings: What stands in the way of measuring, and what does not.

        remarks: What is to be said besides, a sentence each.

        state: Whether all that a GPU is there for can be measured.

        verdict: The same as a sentence, with why.
    """

    peaks: tuple[Peaks, ...]
    findings: tuple[Finding, ...]
    remarks: tuple[str, ...]
    state: Readiness
    verdict: str

    @property
    def ready(self) -> bool:
        """Whether all that a GPU is there for can be measured."""
        return self.state is Readiness.READY


def examine(
    runtime: DeviceRuntime,
    query: DeviceQuery | None = None,
    findings: Sequence[Finding] = (),
    *,
    refused: str | None = None,
) -> Examined:
    """
    Return the GPUs of this machine with their peaks, and whether it is ready.

    Args:
        runtime: Knows what the driver says of them.

        query: The GPUs; None: those of this machine.

        findings: What was found on this machine.

        refused: What was asked for and could not be done, as a sentence; None: nothing.
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
    there = bool(found) or any(
        each.id == _GPU and each.status is Status.OK for each in findings
    )
    state, verdict = _readiness(findings, there=there, refused=refused)
    return Examined(
        peaks=tuple(found),
        findings=tuple(findings),
        remarks=tuple(remarks),
        state=state,
        verdict=verdict,
    )


def _readiness(
    findings: Sequence[Finding], *, there: bool, refused: str | None
) -> tuple[Readiness, str]:
    """Return whether a machine is ready, and why; what bends a number leaves it ready."""
    stopped = {
        concern
        for each in findings
        if each.status is Status.STOPS
        for concern in each.concerns
    }
    if refused is not None:
        return Readiness.BLOCKED, "what was asked for could not be done"
    if not there:
        return Readiness.DEGRADED, "there is no GPU to measure with"
    if "timing" in stopped:
        return (
            Readiness.BLOCKED,
            "there is a GPU, and not even its time can be measured",
        )
    if lost := [each for each in _FOR if each in stopped]:
        return Readiness.DEGRADED, f"stopped on this machine: {', '.join(lost)}"
    return Readiness.READY, "nothing stops a measurement of the GPU"


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
        known = with_driver_facts(device, runtime.facts_of(device.uuid))
        values = measure_peaks(framework, clock, l2_bytes=known.l2_bytes)
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


_CODES = {"ready": GOOD, "degraded": DEGRADED, "blocked": BLOCKED}


def doctor(arguments: argparse.Namespace) -> int:
    """Print what this machine can measure, what stops it, and the peaks of its GPUs."""
    from pytest_gpuperf.collect.clock import SystemClock
    from pytest_gpuperf.collect.doctor import look
    from pytest_gpuperf.collect.hardware.measured import find_framework
    from pytest_gpuperf.collect.runtime import CudaRuntime, load_driver
    from pytest_gpuperf.report.doctor import doctor_bytes

    findings = look()  # before this process has a context on a GPU itself
    runtime = CudaRuntime(load_driver)
    said, done = "", True
    if arguments.measure_peaks:
        said, done = measure(find_framework, runtime, SystemClock())
    found = examine(runtime, findings=findings, refused=None if done else said)
    print_bytes(
        doctor_bytes(
            found.findings,
            found.peaks,
            (*found.remarks, *filter(None, (said,))),
            arguments.format,
            state=found.state,
            verdict=found.verdict,
        )
    )
    return _CODES[found.state.value]
