"""
# 7. A report that somebody else made

A `.ncu-rep` file of Nsight Compute holds counters of every kernel launch. It is read in a
short-lived process, needs no GPU, and its counters keep their own names, numbers and
units. A counter that the report does not hold makes the test *unmeasured*.

It needs `pip install 'pytest-gpuperf[ncu]'`. The report read here is in no package: the
environment variable GPUPERF_CAPTURES names the folder it is in. Without it this test is
skipped, and says so.
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
