"""What the doctor says of this machine is what the collectors then meet."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuperf.collect.clock import SystemClock
from pytest_gpuperf.collect.devices import query_devices
from pytest_gpuperf.collect.doctor import look
from pytest_gpuperf.collect.listed_devices import with_driver_facts
from pytest_gpuperf.collect.measured_peaks import find_framework, measure_peaks
from pytest_gpuperf.collect.peaks import find_peaks
from pytest_gpuperf.collect.runtime import DeviceRuntime
from pytest_gpuperf.errors import CollectError
from pytest_gpuperf.model.gap import Finding, Status
from pytest_gpuperf.model.roofline import Peaks
from pytest_gpuperf.model.sample import SourceLabel


@pytest.fixture(scope="module")
def findings() -> dict[str, Finding]:
    """What was found, by its stable name."""
    return {each.id: each for each in look()}


@pytest.fixture
def peaks(runtime: DeviceRuntime) -> Peaks:
    """The peaks of the GPU that torch uses."""
    uuid = runtime.device_uuid()
    assert uuid is not None
    (known,) = (each for each in query_devices().devices if each.uuid == uuid)
    return find_peaks(with_driver_facts(known, runtime.facts_of(uuid)))


def test_there_is_a_gpu(findings: dict[str, Finding]) -> None:
    """A GPU that NVML lists is there for the doctor too."""
    assert findings["gpu"].status is Status.OK


def test_each_finding_says_what_it_was_read_from(findings: dict[str, Finding]) -> None:
    """Whatever stops or bends has evidence or a remedy; an unknown has its reason."""
    for each in findings.values():
        assert each.cause
        if each.status in {Status.STOPS, Status.DISTORTS}:
            assert each.remedy, each.id


def test_the_command_ends_as_documented(own: Path) -> None:
    """0, or 1 where something is degraded; its JSON names the GPU and its peaks."""
    command = [sys.executable, "-m", "pytest_gpuperf", "doctor", "--format=json"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    said = json.loads(ended.stdout)

    assert ended.returncode in {0, 1}, ended.stderr
    assert json.dumps(said).count(query_devices().devices[0].name) > 0


def test_counting_works_where_nothing_stops_it(
    torch: Any, findings: dict[str, Finding], runtime: DeviceRuntime
) -> None:
    """What stops counters stops them, and where all of it is well, one is counted."""
    from pytest_gpuperf.collect.cupti.range_profiler import RangeProfiler

    # Nsight Compute is one way to count, and this is the other
    looked_at = {
        each.id: each.status
        for each in findings.values()
        if "counters" in each.concerns and not each.id.startswith("ncu")
    }
    stopping = {name for name, status in looked_at.items() if status is Status.STOPS}
    unknown = {name for name, status in looked_at.items() if status is Status.UNKNOWN}
    x = torch.ones(1 << 20, device="cuda")
    refused = ""
    try:
        profiler = RangeProfiler(
            ["dram__bytes_read.sum"], synchronize=runtime.synchronize
        )
        profiler.count_kernels(lambda: x.add_(1))
        profiler.close()
    except CollectError as error:
        refused = str(error)

    assert not stopping or refused
    assert not refused or stopping or unknown, refused


def test_the_bandwidth_is_detected(peaks: Peaks) -> None:
    """A board with memory of its own has its bandwidth from the live clock and width."""
    dram = peaks.of_memory("dram")

    assert dram.label in {SourceLabel.DETECTED, SourceLabel.DATASHEET}
    assert dram.value is not None
    assert 1e11 < dram.value < 3e13


def test_what_is_reached_is_below_the_roof(
    peaks: Peaks, torch: Any, clock: SystemClock
) -> None:
    """A copy reaches 60 to 102 % of the bandwidth, a product 40 to 105 % of its peak."""
    torch.cuda.empty_cache()
    reached = measure_peaks(find_framework(), clock)
    dram, bf16 = peaks.of_memory("dram").value, peaks.of_dtype("bf16").value

    assert dram is not None
    assert 0.60 <= reached["dram"] / dram <= 1.02
    if bf16 is not None:
        assert 0.40 <= reached["bf16"] / bf16 <= 1.05


def test_a_product_is_compute_bound_in_a_profile_of_its_own(
    peaks: Peaks, gemm: Callable[[], object], runtime: DeviceRuntime, clock: SystemClock
) -> None:
    """The roofline of a large product lies under the peak of its data type."""
    from pytest_gpuperf.compute.roofline import roofline

    flop, moved = 2.0 * 4096**3, 3.0 * 2 * 4096**2
    peak, bandwidth = peaks.of_dtype("bf16").value, peaks.of_memory("dram").value
    if peak is None or bandwidth is None:
        pytest.skip("the peaks of this GPU are not known")
    for _ in range(20):
        gemm()
    runtime.synchronize()
    begun_ns = clock.now_ns()
    for _ in range(50):
        gemm()
    runtime.synchronize()
    time_s = (clock.now_ns() - begun_ns) / 50 / 1e9
    found = roofline(
        flop=flop,
        bytes_moved=moved,
        time_s=time_s,
        peak_flop_per_s=peak,
        peak_bytes_per_s=bandwidth,
    )

    assert found.bound == "compute"
    assert 0.2 < found.fraction < 1.05
