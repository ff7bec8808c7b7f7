"""pipeline.roofs: which peaks a measurement is held against, and what follows."""

from __future__ import annotations

from pathlib import Path

import pytest

from fakes.clock import FakeClock
from fakes.nvml import FakeGpu, FakeNvml
from fakes.runtime import FakeRuntime
from pytest_gpuperf.collect.devices import DeviceQuery, query_devices
from pytest_gpuperf.collect.hardware.measured import FILE_VARIABLE, keep_peaks
from pytest_gpuperf.collect.runtime import DriverFacts
from pytest_gpuperf.measure.machine import peaks_in_use
from pytest_gpuperf.measure.roofs import Roof, held_against
from pytest_gpuperf.model.roofline import Peak, Peaks
from pytest_gpuperf.model.sample import Estimate, SourceLabel
from pytest_gpuperf.model.work import Work

USED = FakeGpu(uuid="GPU-fake")
TIME = Estimate(
    metric="time",
    value=2.0,
    unit="s",
    source="events",
    low=1.0,
    high=4.0,
    sample_count=9,
)


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
        memory_bus_bits=6144,
        l2_bytes=62_914_560,
        integrated=False,
    )
    return found


def peaks(*notes: str, l2_bytes: int | None = None, **values: float) -> Peaks:
    every = {
        name: Peak(value=value, label=SourceLabel.DATASHEET, source="a sheet")
        for name, value in values.items()
    }
    return Peaks(
        device="a GPU",
        flop_per_s={n: p for n, p in every.items() if n not in {"dram", "l2"}},
        bytes_per_s={n: p for n, p in every.items() if n in {"dram", "l2"}},
        unlisted="nobody says it",
        l2_bytes=l2_bytes,
        notes=notes,
    )


def held(
    work: Work | None, known: Peaks | None, time: Estimate = TIME, *, warm: bool = False
) -> Roof:
    return held_against(work, time, known, warm=warm, grades={})


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
    keep_peaks(device, {"bf16": 7e14})
    same = peaks_in_use(runtime(), machine(USED), {})
    kept.write_text(kept.read_text("utf-8").replace("580.95.05", "1.0"), "utf-8")
    changed = peaks_in_use(runtime(), machine(USED), {})

    assert same.of_dtype("bf16").label is SourceLabel.MEASURED
    assert changed.of_dtype("bf16").label is SourceLabel.DATASHEET
    assert "driver 1.0" in changed.notes[-1]


def test_a_slice_is_part_of_the_gpu_that_is_split() -> None:
    """NVML lists the GPU, the driver the slice: with one that is split it is clear."""
    query = machine(FakeGpu(uuid="GPU-whole", mig=1), FakeGpu(uuid="GPU-2"))
    keep_peaks(query.devices[0], {"bf16": 7e14})  # of the whole, before it was split
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


@pytest.mark.parametrize("work", [None, Work(bytes=1e12)])
def test_what_nobody_saw_use_the_device_is_held_against_nothing(
    work: Work | None,
) -> None:
    """Not even where peaks are given; a test that declares no work is told that first."""
    roof = held_against(
        work, TIME, peaks(dram=1e12), warm=False, grades={}, use_unknown=True
    )

    assert (roof.attained, roof.estimates) == (None, ())
    reason = roof.unmeasured[0].reason
    assert ("declares no work" in reason) is (work is None)
    assert ("whether it used the GPU" in reason) is (work is not None)


def test_a_fraction_has_the_interval_of_its_time() -> None:
    """Upside down: the longest time is the smallest fraction."""
    roof = held(Work(bytes=1e12), peaks(dram=1e12))
    (fraction,) = roof.estimates

    assert (fraction.low, fraction.value, fraction.high) == (0.25, 0.5, 1.0)
    assert (fraction.source, fraction.sample_count) == ("events", 9)
    assert fraction.label is SourceLabel.DATASHEET
    assert roof.attained is not None
    assert roof.attained.grade == "C"


def test_more_than_the_roof_has_no_grade() -> None:
    """An A is for what was reached, not for what cannot be."""
    roof = held(Work(bytes=3e12), peaks(dram=1e12))

    assert roof.attained is not None
    assert roof.attained.above_the_roof
    assert roof.attained.grade is None


def test_a_time_without_an_interval_gives_none() -> None:
    """One sample has no spread, and neither has what is made of it."""
    alone = Estimate(metric="time", value=2.0, unit="s", source="host")
    (fraction,) = held(Work(bytes=1e12), peaks(dram=1e12), alone).estimates

    assert (fraction.low, fraction.high) == (None, None)


def test_an_intensity_is_as_well_known_as_the_work() -> None:
    """It is made of nothing else; where one kind is not declared there is none."""
    both = held(Work.matmul(8, 8, 8, "bf16"), peaks(dram=1e12, bf16=1e14))
    intensity = both.estimates[1]

    assert (intensity.metric, intensity.unit) == ("roofline.intensity", "FLOP/B")
    assert intensity.value == 2 * 8**3 / (3 * 64 * 2)
    assert intensity.label is SourceLabel.ESTIMATED
    gap, _ = held(Work(bytes=1.0), peaks(dram=1.0)).unmeasured
    assert gap.reason == "the declared work has no FLOP"
    gap, _ = held(Work(flop=1.0, dtype="bf16"), peaks(bf16=1.0)).unmeasured
    assert gap.reason == "the declared work has no bytes"


def test_warm_data_need_the_roof_of_the_l2() -> None:
    """A fraction of DRAM's would flatter what never left the cache."""
    known = peaks(dram=1e12, l2=5e12, l2_bytes=2**20)
    cold, warm = (held(Work(bytes=1e6), known, warm=each) for each in (False, True))

    assert cold.attained is not None
    assert warm.attained is not None
    assert (cold.attained.roof, warm.attained.roof) == ("dram", "l2")


@pytest.mark.parametrize(
    ("work", "known", "reason"),
    [
        (None, peaks(dram=1.0), "the test declares no work"),
        (Work(bytes=1.0), None, "the peaks of this device are not known"),
        (
            Work(bytes=1.0),
            peaks("It is odd."),
            "the dram peak is not known: nobody says it; It is odd",
        ),
    ],
)
def test_without_a_roof_the_fraction_says_why(
    work: Work | None, known: Peaks | None, reason: str
) -> None:
    """A reason and a remedy, and no estimate."""
    roof = held(work, known)

    assert roof.estimates == ()
    assert roof.attained is None
    assert [gap.metric for gap in roof.unmeasured] == [
        "roofline.fraction",
        "roofline.intensity",
        "roofline.at_clock_fraction",
    ]
    assert roof.unmeasured[0].reason == roof.unmeasured[2].reason == reason
    assert all(gap.remedy for gap in roof.unmeasured)


@pytest.mark.parametrize("known", [None, peaks(), peaks(dram=1e12)])
def test_an_intensity_needs_no_peak(known: Peaks | None) -> None:
    """It is the declared work's alone, whatever is not known of the device."""
    work = Work(flop=6e9, bytes=2e9, dtype="bf16")
    roof = held(work, known)
    (intensity,) = roof.estimates
    gap, at_clock = roof.unmeasured

    assert (intensity.metric, intensity.value) == ("roofline.intensity", 3.0)
    assert intensity.label is SourceLabel.DECLARED
    assert gap.metric == "roofline.fraction"
    assert at_clock.metric == "roofline.at_clock_fraction"


def test_an_intensity_beyond_all_numbers_is_unmeasured() -> None:
    """A record holds no infinity: the reason says what is wrong with the work."""
    roof = held(Work(flop=1e308, bytes=1e-300, dtype="bf16"), None)

    assert roof.estimates == ()
    assert "inf is not a finite number" in roof.unmeasured[1].reason


def test_a_clock_that_was_read_gives_a_second_fraction() -> None:
    """Of the roof at that clock, with an interval that is as wide in proportion."""
    known = Peaks(
        device="d",
        flop_per_s={
            "bf16": Peak(
                value=1e12, label=SourceLabel.DATASHEET, source="s", clock_hz=2e9
            )
        },
        bytes_per_s={},
        unlisted="nobody says it",
    )
    time = Estimate(
        metric="time", value=2.0, unit="s", source="events", low=1.6, high=2.5
    )
    work = Work(flop=1e12, dtype="bf16")
    half = held_against(work, time, known, warm=False, grades={}, clock_hz=1e9)
    unread = held_against(work, time, known, warm=False, grades={})
    fraction, at_clock = half.estimates

    assert (fraction.value, at_clock.value) == (0.5, 1.0)
    assert (at_clock.metric, at_clock.source) == (
        "roofline.at_clock_fraction",
        "events",
    )
    assert [at_clock.low, at_clock.high] == pytest.approx([0.8, 1.25])
    assert at_clock.label is SourceLabel.DATASHEET
    (gap,) = (g for g in unread.unmeasured if g.metric == at_clock.metric)
    assert gap.reason == "the SM clock was not read during the call"
    assert unread.attained is not None
    assert unread.attained.at_clock_reason == gap.reason


def test_bytes_alone_follow_no_clock() -> None:
    """The reason says so, and says where the clock of a peak is not known."""
    for work, why in (
        (Work(bytes=1.0), "memory does not follow the SM clock"),
        (Work(flop=1.0, dtype="bf16"), "the clock of the compute peak is not known"),
    ):
        roof = held(work, peaks(dram=1.0, bf16=1.0))
        (gap,) = (g for g in roof.unmeasured if "at_clock" in g.metric)
        assert why in gap.reason


def test_a_cpu_has_no_l2_to_be_held_against() -> None:
    """Its caches are not told from its memory: what is warm has the roof of `dram`."""
    known = peaks_in_use(runtime(in_use=False), machine(), {"cpu": {"dram": 1e12}})
    roof = held(Work(bytes=1e9), known, warm=True)

    assert roof.attained is not None
    assert roof.attained.roof == "dram"


def test_a_time_of_zero_has_no_fraction() -> None:
    """It is a clock's limit, not a result: the reason names the time."""
    nothing = Estimate(metric="time", value=0.0, unit="s", source="host")
    roof = held(Work(bytes=1.0), peaks(dram=1.0), nothing)

    assert roof.estimates == ()
    assert "time_s=0.0" in roof.unmeasured[0].reason
