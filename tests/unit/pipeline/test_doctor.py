"""pipeline.doctor: what a machine has, and measuring it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fakes.clock import FakeClock
from fakes.framework import FakeFramework
from fakes.nvml import FakeGpu, FakeNvml
from fakes.runtime import FakeRuntime
from pytest_gpuperf.cli.machine import examine, measure
from pytest_gpuperf.collect.cuda_device import DriverFacts
from pytest_gpuperf.collect.devices import DeviceQuery, query_devices
from pytest_gpuperf.collect.measured_peaks import FILE_VARIABLE
from pytest_gpuperf.errors import CollectorUnavailableError
from pytest_gpuperf.model.gap import Finding, Obstacle, Readiness, Status, Topic
from pytest_gpuperf.report.doctor import peaks_bytes

FACTS = DriverFacts(
    name="NVIDIA H200",
    sm_count=132,
    rated_clock_hz=1_980_000_000,
    memory_clock_hz=3_201_000_000,
    memory_bus_bits=6016,
    l2_bytes=62_914_560,
    integrated=False,
)
FORMS = ["text", "json", "markdown"]


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep measured peaks in a folder of the test's own."""
    file = tmp_path / "peaks.json"
    monkeypatch.setenv(FILE_VARIABLE, str(file))
    return file


def machine(*gpus: FakeGpu) -> DeviceQuery:
    return query_devices(FakeNvml(*(gpus or (FakeGpu(uuid="GPU-fake"),))))


def runtime() -> FakeRuntime:
    found = FakeRuntime(FakeClock())
    found.facts = FACTS
    return found


def framework(clock: FakeClock) -> FakeFramework:
    return FakeFramework(clock, bytes_per_s=2e12, flop_per_s={"bf16": 7e14})


def test_every_gpu_has_its_peaks() -> None:
    """In the driver's order, with what NVML and the CUDA driver say of each."""
    found = examine(runtime(), machine(FakeGpu(uuid="GPU-fake"), FakeGpu(name="X")))

    assert [peaks.device for peaks in found.peaks] == ["NVIDIA H200", "X"]
    assert found.peaks[0].l2_bytes == 62_914_560
    assert found.peaks[1].l2_bytes is None
    assert found.condition.state is Readiness.READY


def test_a_machine_without_a_gpu_says_why() -> None:
    """That is not an error: it is degraded, and has a remark."""
    found = examine(runtime(), query_devices(FakeNvml()))

    assert found.peaks == ()
    assert found.condition.state is not Readiness.READY
    assert found.remarks[0] == "No peaks of a GPU: the driver lists no GPU."


def test_what_was_measured_is_kept_and_shown(kept: Path) -> None:
    """The next examination of the same GPU shows it as measured."""
    clock = FakeClock()
    said, done = measure(lambda: framework(clock), runtime(), clock, machine())

    assert done
    assert str(kept) in said
    assert "dram, l2, bf16 of NVIDIA H200" in said
    (peaks,) = examine(runtime(), machine()).peaks
    assert peaks.of_dtype("bf16").label.value == "measured"
    assert peaks.of_dtype("bf16").value == pytest.approx(7e14, rel=1e-3)
    assert peaks.of_memory("dram").label.value == "detected"
    assert peaks.of_memory("l2").label.value == "measured"


def test_peaks_of_another_driver_are_a_remark(kept: Path) -> None:
    """Measured peaks that are not used are never left out silently."""
    clock = FakeClock()
    measure(lambda: framework(clock), runtime(), clock, machine())
    kept.write_text(kept.read_text("utf-8").replace("580.95.05", "1.0"), "utf-8")

    assert any("driver 1.0" in text for text in examine(runtime(), machine()).remarks)


def test_nothing_to_measure_with_is_a_sentence(kept: Path) -> None:
    """The command does not fail with a traceback, and keeps nothing."""

    def find() -> FakeFramework:
        message = "nothing can measure peaks"
        raise CollectorUnavailableError(message, remedy="install torch")

    said, done = measure(find, runtime(), FakeClock(), machine())

    assert not done
    assert said == "Nothing was measured: nothing can measure peaks; install torch."
    assert not kept.exists()


@pytest.mark.parametrize("how", ["another GPU", "no GPU in use"])
def test_a_gpu_that_nvml_does_not_list_is_not_measured(how: str, kept: Path) -> None:
    """Peaks belong to a UUID: without one there is nobody to keep them for."""
    clock = FakeClock()
    used = FakeRuntime(clock, in_use=how == "another GPU")
    said, done = measure(
        lambda: framework(clock), used, clock, machine(FakeGpu(uuid="GPU-b"))
    )

    assert not done
    assert "NVML does not list the GPU in use" in said
    assert not kept.exists()


@pytest.mark.parametrize("form", FORMS)
def test_every_form_shows_value_label_and_source(form: str) -> None:
    """And what is not known with its reason, in place of a number."""
    found = examine(runtime(), machine())
    text = peaks_bytes(found.peaks, ("A remark.",), form).decode()

    for part in ("NVIDIA H200", "datasheet", "detected", "unavailable", "A remark."):
        assert part in text
    assert "no datasheet lists the bandwidth of L2" in text


def test_text_has_units_for_people() -> None:
    """4.81 TB/s, where JSON has the number in bytes a second."""
    found = examine(runtime(), machine())
    text = peaks_bytes(found.peaks, (), "text").decode()
    loaded = json.loads(peaks_bytes(found.peaks, (), "json"))
    dram = loaded["devices"][0]["peaks"]["dram"]

    assert "4.81 TB/s" in text
    assert dram["value"] == pytest.approx(4.8143e12, rel=1e-4)
    assert (dram["unit"], dram["label"]) == ("bytes/s", "detected")
    assert loaded["devices"][0]["peaks"]["fp6"]["value"] is None


@pytest.mark.parametrize("form", ["text", "markdown"])
def test_notes_of_a_card_are_shown(form: str) -> None:
    """A power limit below the sheet's is told where the peaks are."""
    weak = machine(FakeGpu(uuid="GPU-fake", power_limit_milliwatts=500_000))
    found = examine(runtime(), weak)

    assert b"power limit is 500 W" in peaks_bytes(found.peaks, (), form)


@pytest.mark.parametrize("width", [60, 80, 100, 300])
def test_peaks_keep_to_the_width(width: int) -> None:
    """A source that has no room beside its peak stands below it, whole."""
    found = examine(runtime(), machine())
    lines = peaks_bytes(found.peaks, ("A remark.",), "text", width=width).decode()
    words = " ".join(lines.split())

    assert max(map(len, lines.splitlines())) <= width
    assert all(peak.source in words for peak in found.peaks[0].flop_per_s.values())


def test_the_condition_of_a_machine_counts_the_gpus_and_the_findings() -> None:
    """A GPU that was found without NVML is one; what NVML gives is what is lost."""
    there = Topic(id="gpu", concerns=("timing",)).ok(
        "there is a GPU", "/dev/nvidia0: present"
    )
    torn = Topic(id="nvml", concerns=("energy",)).stops(
        "it is so", "it: was read", remedy="change it"
    )
    nobody = query_devices(FakeNvml())

    def obstacle(
        query: DeviceQuery, *findings: Finding, has_peaks: bool = True
    ) -> Obstacle | None:
        examined = examine(runtime(), query, findings, has_peaks=has_peaks)
        assert examined.findings == findings
        return examined.condition.obstacle

    assert obstacle(machine()) is None
    assert obstacle(machine(), torn) is Obstacle.LOST
    assert obstacle(nobody) is Obstacle.NO_GPU
    assert obstacle(nobody, there, torn) is Obstacle.LOST
    assert obstacle(machine(), has_peaks=False) is Obstacle.PEAKS_FAILED


def test_statuses_are_ordered_from_the_worst() -> None:
    """As reports list them."""
    assert [status.value for status in Status] == ["stops", "bends", "unknown", "ok"]
