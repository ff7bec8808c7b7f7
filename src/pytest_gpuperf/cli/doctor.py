"""The command `doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpuperf.cli.output import BLOCKED, DEGRADED, GOOD, print_bytes

if TYPE_CHECKING:
    import argparse

__all__ = ["doctor"]

_CODES = {"ready": GOOD, "degraded": DEGRADED, "blocked": BLOCKED}


def doctor(arguments: argparse.Namespace) -> int:
    """Print what this machine can measure, what stops it, and the peaks of its GPUs."""
    from pytest_gpuperf.collect.clock import SystemClock
    from pytest_gpuperf.collect.doctor import look
    from pytest_gpuperf.collect.hardware.measuring import find_framework
    from pytest_gpuperf.collect.runtime import CudaRuntime, load_driver
    from pytest_gpuperf.pipeline.doctor import examine, measure
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
