"""
# 7. A report that somebody else made

A `.ncu-rep` file of Nsight Compute holds counters of every kernel launch. It is read in a
short-lived process, needs no GPU, and its counters keep their own names, numbers and units.

The folder with reports is named by the environment variable GPUPERF_CAPTURES. Without it
these tests are *unmeasured*, and say so.
"""

import os
from pathlib import Path

import pytest


@pytest.fixture
def captures(gpuperf):
    folder = os.environ.get("GPUPERF_CAPTURES", "")
    if not Path(folder, "mistic_154actions_a100.ncu-rep").is_file():
        pytest.skip("unmeasured: GPUPERF_CAPTURES names no folder with the report")
    return Path(folder)


def test_radix_sort(gpuperf, captures):
    report = captures / "mistic_154actions_a100.ncu-rep"

    perf = gpuperf.capture(report, kernel="DeviceRadixSortHistogramKernel")

    assert perf.launches.count == 22
    assert perf.registers <= 64
    assert perf["dram__bytes_read.sum"] <= 1e9
