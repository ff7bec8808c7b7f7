"""What would stop or bend a measurement, found without running a kernel.

In: files below a root, environment variables, NVML, versions of installed tools.
Out: Findings, one of each topic on every machine, each with what it was read from.
Never: a CUDA context, a setting that is changed, an "ok" for what could not be read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpuperf.collect.doctor.gpus import gpu_findings, read_gpus
from pytest_gpuperf.collect.doctor.machine import this_machine
from pytest_gpuperf.collect.doctor.neighbours import neighbour_findings
from pytest_gpuperf.collect.doctor.software import software_findings
from pytest_gpuperf.collect.doctor.system import system_findings

if TYPE_CHECKING:
    from types import ModuleType

    from pytest_gpuperf.collect.doctor.machine import Machine
    from pytest_gpuperf.model.finding import Finding

__all__ = ["look"]


def look(
    machine: Machine | None = None, nvml: ModuleType | None = None
) -> tuple[Finding, ...]:
    """
    Return what was found on a machine, one finding of each topic.

    Args:
        machine: Where to look; None: this machine.

        nvml: The binding to ask of GPUs; None: pynvml, if NVML can be loaded.

    Returns:
        The findings in a fixed order; the user's home is written as ~ in them.
    """
    machine = machine or this_machine()
    seen = read_gpus(machine, nvml)
    found = (
        *system_findings(machine, seen),
        *gpu_findings(seen),
        *neighbour_findings(machine, seen),
        *software_findings(machine, seen),
    )
    return tuple(map(machine.masked, found))
