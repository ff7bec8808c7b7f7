"""
# 7. A captured report

A `.ncu-rep` file of Nsight Compute holds the counters of every kernel launch. It is read
in a short-lived process and needs no GPU. The counters keep their names, numbers and
units. A counter that is not in the report makes the test *unmeasured*.

This needs `pip install 'pytest-gpuperf[ncu]'`. The report is not part of the package: the
environment variable GPUPERF_CAPTURES names its folder. Without it, the test is skipped.
"""

import os
from pathlib import Path

import pytest


@pytest.fixture
def report():
    folder = os.environ.get("GPUPERF_CAPTURES", "")
    path = Path(folder, "mistic_154actions_a100.ncu-rep")
    if not path.is_file():
        pytest.skip("unmeasured: GPUPERF_CAPTURES names no folder with the report")
    return path


def test_radix_sort(gpuperf, report):
    perf = gpuperf.capture(report, kernel="DeviceRadixSortHistogramKernel")

    assert perf.launches.count == 22
    assert perf.registers <= 64
    assert (
        perf["gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"] <= 80
    )  # percent
