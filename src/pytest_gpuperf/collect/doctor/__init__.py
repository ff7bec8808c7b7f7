"""Checks of a machine before a measurement, without running a kernel.

In: files below a root, environment variables, NVML, versions of installed tools.
Out: one Finding per topic on every machine, each with its evidence.
Never: a CUDA context, a changed setting, an "ok" for a topic that could not be read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpuperf.collect.doctor.gpus import gpu_findings, read_gpus
from pytest_gpuperf.collect.doctor.machine import MachineFacts, this_machine
from pytest_gpuperf.collect.doctor.software import software_findings
from pytest_gpuperf.collect.doctor.system import process_findings, system_findings

if TYPE_CHECKING:
    from types import ModuleType

    from pytest_gpuperf.model.gap import Finding

__all__ = ["look"]


def look(
    machine: MachineFacts | None = None, nvml: ModuleType | None = None
) -> tuple[Finding, ...]:
    """
    Examine a machine, and return a finding for every topic.

    Args:
        machine: The machine to examine, or None for this machine.

        nvml: The NVML binding, or None to import pynvml if NVML can be loaded.

    Returns:
        The findings in a fixed order, with the user's home written as ~.
    """
    machine = machine or this_machine()
    report = read_gpus(machine, nvml)
    findings = (
        *system_findings(machine, report),
        *gpu_findings(report),
        *process_findings(machine, report),
        *software_findings(machine, report),
    )
    return tuple(map(machine.masked, findings))
