"""The command `doctor`; PYTEST_DONT_REWRITE."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpuperf.cli.output import BLOCKED, DEGRADED, GOOD, print_bytes

if TYPE_CHECKING:
    import argparse

__all__ = ["doctor"]


def doctor(arguments: argparse.Namespace) -> int:
    """Print the GPUs of this machine with their peaks, measured anew if asked for."""
    from pytest_gpuperf.collect.clock import SystemClock
    from pytest_gpuperf.collect.hardware.measuring import find_framework
    from pytest_gpuperf.collect.runtime import CudaRuntime, load_driver
    from pytest_gpuperf.pipeline.doctor import examine, measure
    from pytest_gpuperf.report.forms import peaks_bytes

    runtime = CudaRuntime(load_driver)
    remarks, done = [], True
    if arguments.measure_peaks:
        said, done = measure(find_framework, runtime, SystemClock())
        remarks.append(said)
    found = examine(runtime)
    print_bytes(peaks_bytes(found.peaks, (*found.remarks, *remarks), arguments.format))
    if not done:
        return BLOCKED
    return GOOD if found.ready else DEGRADED
