"""measure.site: which peaks a measurement is held against."""

from __future__ import annotations

from pathlib import Path

import pytest

from fakes.clock import FakeClock
from fakes.nvml import FakeGpu, FakeNvml
from fakes.runtime import FakeRuntime
from pytest_gpuperf.collect.cuda_device import DriverFacts
from pytest_gpuperf.collect.devices import DeviceQuery, query_devices
from pytest_gpuperf.collect.measured_peaks import (
    FILE_VARIABLE,
    peaks_in_use,
    store_peaks,
)
from pytest_gpuperf.compute.roofline import roof_of
from pytest_gpuperf.model.sample import Estimate, SourceLabel
from pytest_gpuperf.model.work import Work

USED = FakeGpu(uuid="GPU-fake")


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep measured peaks in a folder of the test's own."""
    file = tmp_path / "peaks.json"
    monkeypatch.setenv(FILE_VARIABLE, str(file))
    return file


def machine(*gpus: FakeGpu) -> DeviceQuery:
    return query_devices(FakeNvml(*gpus))


def runtime(*, in_use: bool = True, name: str = "NVIDIA H200") -> FakeRuntime:
    found = FakeRuntime(FakeClock(), in_use=in_use)
    found.facts = DriverFacts(
        name=name,
        sm_count=132 if " MIG " not in name else 16,
        rated_clock_hz=1_980_000_000,
        memory_clock_hz=3_201_000_000,
        memory_bus_bits=6016,
        l2_bytes=62_914_560,
        integrated=False,
    )
    return found


def test_a_function_that_uses_no_gpu_is_the_cpus() -> None:
    """A GPU in the machine says nothing of what never touched it."""
    found = peaks_in_use(runtime(in_use=False), machine(USED), {"cpu": {"dram": 2e10}})

    assert found.device == "cpu"
    assert found.of_memory("dram").value == 2e10


def test_the_gpu_in_use_is_found_by_its_uuid() -> None:
    """NVML and CUDA order GPUs differently: places are never compared."""
    other = FakeGpu(uuid="GPU-other", name="NVIDIA L4", compute_capability=(8, 9))
    found = peaks_in_use(runtime(), machine(other, USED), {})

    assert found.device == "NVIDIA H200"
    assert found.l2_bytes == 62_914_560


def test_declared_peaks_are_those_of_its_name() -> None:
    """By the driver's own spelling; a declaration for others alone is told."""
    mine = {"NVIDIA H200": {"fp8": 1.5e15}, "NVIDIA L4": {"fp8": 2e14}}
    others = {"NVIDIA L4": {"fp8": 2e14}}

    assert peaks_in_use(runtime(), machine(USED), mine).of_dtype("fp8").value == 1.5e15
    found = peaks_in_use(runtime(), machine(USED), others)
    assert found.of_dtype("fp8").value == 1.979e15
    assert found.notes[-1] == (
        "gpuperf_peaks declares those of NVIDIA L4, and this is NVIDIA H200"
    )


def test_measured_peaks_are_those_of_its_uuid(kept: Path) -> None:
    """As long as its driver is the one that was measured; else a note says so."""
    (device,) = machine(USED).devices
    store_peaks(device, {"bf16": 7e14})
    same = peaks_in_use(runtime(), machine(USED), {})
    kept.write_text(kept.read_text("utf-8").replace("580.95.05", "1.0"), "utf-8")
    changed = peaks_in_use(runtime(), machine(USED), {})

    assert same.of_dtype("bf16").label is SourceLabel.MEASURED
    assert changed.of_dtype("bf16").label is SourceLabel.DATASHEET
    assert "driver 1.0" in changed.notes[-1]


def test_a_slice_is_part_of_the_gpu_that_is_split() -> None:
    """NVML lists the GPU, the driver the slice: with one that is split it is clear."""
    query = machine(FakeGpu(uuid="GPU-whole", mig=1), FakeGpu(uuid="GPU-2"))
    store_peaks(query.devices[0], {"bf16": 7e14})  # of the whole, before it was split
    found = peaks_in_use(runtime(name="NVIDIA H200 MIG 1g.18gb"), query, {})
    peak = found.of_dtype("bf16")

    assert found.device == "NVIDIA H200 MIG 1g.18gb"
    assert peak.value == pytest.approx(989.5e12 * 16 / 132)
    assert peak.label is SourceLabel.ESTIMATED


@pytest.mark.parametrize("splits", [0, 2])
def test_a_gpu_that_nvml_does_not_list_has_no_peaks(splits: int) -> None:
    """Nor has a slice of one of several GPUs that are split."""
    gpus = [FakeGpu(uuid=f"GPU-{index}", mig=1) for index in range(splits)]
    found = peaks_in_use(runtime(), machine(*gpus), {})

    assert found.of_memory("dram").value is None
    assert "NVML does not list the GPU in use" in found.of_memory("dram").source


def test_a_cpu_has_no_l2_to_be_held_against() -> None:
    """Its caches are not told from its memory: what is warm has the roof of `dram`."""
    known = peaks_in_use(runtime(in_use=False), machine(), {"cpu": {"dram": 1e12}})
    time = Estimate(metric="time", value=2.0, unit="s", source="host")
    roof = roof_of(Work(bytes=1e9), time, known, warm=True)

    assert roof.attained is not None
    assert roof.attained.roof == "dram"
