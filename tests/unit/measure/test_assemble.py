"""measure.assemble: readings become records with estimates, facts and gaps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.collect.base import Garbage, Timing
from pytest_gpuperf.compute import stats
from pytest_gpuperf.compute.spread import process_spread
from pytest_gpuperf.errors import RecordError
from pytest_gpuperf.measure.assemble import Maker
from pytest_gpuperf.measure.captured import capture_record
from pytest_gpuperf.measure.reading import binary_record
from pytest_gpuperf.model.activity import KernelResources
from pytest_gpuperf.model.environment import Device
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.launch import CapturedLaunch, CapturedValue
from pytest_gpuperf.model.metric import Family
from pytest_gpuperf.model.quantity import parse_quantity
from pytest_gpuperf.model.record import (
    BoundClass,
    Kind,
    Note,
    Record,
    RecordKey,
    Role,
    Void,
    VoidCode,
)
from pytest_gpuperf.model.roofline import Peak, Peaks
from pytest_gpuperf.model.sample import CacheMode, Estimate, SourceLabel, Unmeasured
from pytest_gpuperf.model.work import Work

KEY = RecordKey(test_id="tests/test_x.py::test_a")
FACTS = {
    "cpu_model": "Xeon",
    "python_minor": "3.12",
    "gpu_name": "NVIDIA H200",
    "unrelated": "no",
}
MAKER = Maker(facts=FACTS, soft_facts={"torch": "2.11"})
SAMPLES = tuple(1e-3 + 1e-6 * (7 * number % 20) for number in range(20))
HOST = Timing(
    samples=SAMPLES, source="host", first_call_s=0.5, cache_mode=CacheMode.UNTOUCHED
)
WALLS = tuple(sample + 1e-5 for sample in SAMPLES)
EVENTS = Timing(
    samples=SAMPLES,
    source="events",
    other_samples={"host": WALLS},
    cache_mode=CacheMode.COLD,
)

KERNEL = KernelResources(
    name="_Z3fooPf",
    demangled="foo(float*)",
    target="sm_90",
    registers_count=32,
    stack_bytes=0,
    shared_bytes=0,
    constant_bytes=0,
    spills_bytes=0,
    threads_per_block=256,
)


def other(**changed: Any) -> KernelResources:
    """Return another kernel of the same binary."""
    changed = {"name": "_Z3barPf", "demangled": "bar(float*)", **changed}
    return replace(KERNEL, **changed)


def launch(
    kernel: str = "gemm", /, **metrics: tuple[float | str, str]
) -> CapturedLaunch:
    return CapturedLaunch(
        index=0,
        kernel=kernel,
        demangled=f"{kernel}()",
        nvtx={},
        measured=True,
        metrics={
            name: CapturedValue(value=value, unit=unit)
            for name, (value, unit) in metrics.items()
        },
    )


def timed(timing: Timing, **more: Any) -> Record:
    given = {"kind": Kind.MEASURE, "work": None, **more}
    return MAKER.timed(KEY, timing, **given)


def estimate(record: Record, metric: str, kernel: str | None = None) -> Estimate:
    """Return the one estimate of a metric."""
    (found,) = (
        e for e in record.estimates if e.metric == metric and e.kernel == kernel
    )
    return found


@pytest.mark.parametrize(
    ("garbage_s", "judged", "expected_s"),
    [
        (0.5, (), 2.5),
        (0.5, ("time.with_gc",), 2.5),
        (0.0, ("time.with_gc",), 2.0),
        (0.0, ("time",), None),
        (None, ("time.with_gc",), None),
    ],
)
@pytest.mark.parametrize("source", ["host", "cupti"])
def test_garbage_is_added_to_the_time_until_the_device_is_idle(
    source: str,
    garbage_s: float | None,
    judged: tuple[str, ...],
    expected_s: float | None,
) -> None:
    """Where there is some, or where a test is judged by it; never to a device's time."""
    device = source != "host"
    garbage = None
    if garbage_s is not None:
        garbage = Garbage(objects_count=3.0, time_s=garbage_s)
    timing = Timing(
        samples=(1.0,) * 9 if device else (2.0,) * 9,
        source=source,
        other_samples={"host": (2.0,) * 9} if device else {},
        garbage=garbage,
    )
    found = [
        e for e in timed(timing, judged=judged).estimates if e.metric == "time.with_gc"
    ]

    assert [e.value for e in found] == ([] if expected_s is None else [expected_s])
    assert [(e.low, e.high) for e in found] == [(e.value, e.value) for e in found]
    assert {e.source for e in found} <= {"host"}


@pytest.mark.parametrize(
    ("code", "bound"), [("waits", BoundClass.WAIT), ("interrupted", BoundClass.HOST)]
)
def test_a_call_that_waits_is_in_a_class_of_its_own(
    code: str, bound: BoundClass
) -> None:
    """By the note that its timing carries; a busy machine makes no call one that waits."""
    record = timed(replace(HOST, notes=(Note(code=code, text="…"),)))

    assert record.bound_class is bound
    assert timed(HOST).bound_class is BoundClass.HOST


def values(record: Record, kernel: str | None = None) -> Mapping[str, float]:
    return {e.metric: e.value for e in record.estimates if e.kernel == kernel}


def gap(record: Record, metric: str) -> Unmeasured:
    """Return why a metric has no value; it has none indeed."""
    assert metric not in values(record)
    (found,) = (u for u in record.unmeasured if u.metric == metric)
    return found


# timed


def test_a_timing_gives_the_times_of_its_calls() -> None:
    """The median with its interval, quantiles, the fastest, and the first call."""
    record = timed(HOST)
    median, interval = stats.median(SAMPLES), stats.median_interval(SAMPLES)

    assert values(record) == {
        "time": median,
        "time.wall": median,
        "time.p50": median,
        "time.p95": pytest.approx(stats.quantile(SAMPLES, 0.95)),
        "time.min": min(SAMPLES),
        "time.first_call": 0.5,
    }
    assert {(e.unit, e.source, e.label) for e in record.estimates} == {
        ("s", "host", SourceLabel.MEASURED)
    }
    spread = {e.metric: (e.low, e.high) for e in record.estimates}
    assert spread["time"] == spread["time.wall"] == spread["time.p50"] == interval
    assert spread["time.min"] == spread["time.first_call"] == (None, None)
    assert estimate(record, "time").sample_count == 20
    assert estimate(record, "time.first_call").sample_count == 1


def test_one_sample_has_no_spread() -> None:
    """A block is measured once: no quantiles, no interval, no first call."""
    record = timed(Timing(samples=(2.0,), source="host"), kind=Kind.RANGE)

    assert values(record) == {"time": 2.0, "time.wall": 2.0}
    assert estimate(record, "time").low is None
    assert record.kind is Kind.RANGE


def test_too_few_samples_have_quantiles_and_no_interval() -> None:
    """Seven samples bound no median with 99 %."""
    record = timed(replace(HOST, samples=SAMPLES[:7]))

    assert "time.p95" in values(record)
    assert estimate(record, "time").high is None


def test_samples_are_kept_as_they_were_taken() -> None:
    """In their order, with their batching and what was refused."""
    timing = replace(HOST, iterations_count=8, discarded_count=3)

    (series,) = timed(timing).series

    assert (series.metric, series.unit, series.source) == ("time", "s", "host")
    assert series.values == SAMPLES
    assert (series.iterations_count, series.discarded_count) == (8, 3)


def test_every_source_that_ran_is_kept_the_best_first() -> None:
    """A time of each; wall and host times and the first call are the host's alone."""
    timing = replace(EVENTS, first_call_s=0.5, returned=(3e-6,) * 20)
    record = timed(timing)

    times = [(e.source, e.value) for e in record.estimates if e.metric == "time"]
    assert times == [("events", stats.median(SAMPLES)), ("host", stats.median(WALLS))]
    hosts = {
        e.metric: e.value
        for e in record.estimates
        if e.metric in {"time.wall", "time.host", "time.first_call"}
    }
    assert hosts == {
        "time.wall": stats.median(WALLS),
        "time.host": 3e-6,
        "time.first_call": 0.5,
    }
    assert [(s.source, s.values) for s in record.series] == [
        ("events", SAMPLES),
        ("host", WALLS),
    ]


def test_a_comparison_is_made_within_each_source() -> None:
    """A ratio is of two times by one source; none mixes them."""
    slow = replace(
        EVENTS,
        samples=tuple(2 * sample for sample in SAMPLES),
        other_samples={"host": tuple(3 * wall for wall in WALLS)},
    )
    record = MAKER.compared(KEY, EVENTS, slow)

    assert [e.source for e in record.estimates] == ["events", "host"]
    assert [e.value for e in record.estimates] == pytest.approx([2.0, 3.0])


def test_a_comparison_is_as_sure_as_processes_of_its_source_are_alike() -> None:
    """Times of a device differ less from process to process than those of the host."""
    same = (1e-3,) * 20
    steady = replace(EVENTS, samples=same, other_samples={"host": same})
    device, host = MAKER.compared(KEY, steady, steady).estimates

    assert device.high is not None
    assert host.high is not None
    ratio = math.log(device.high) / math.log(host.high)
    assert ratio == pytest.approx(process_spread("events") / process_spread("host"))


def test_a_host_time_shares_the_facts_of_the_host() -> None:
    """Neither a GPU's nor those of other families, and nothing that no family asks for."""
    record = timed(HOST)

    assert record.facts == {
        Family.HOST_TIME.value: {"cpu_model": "Xeon", "python_minor": "3.12"}
    }
    assert record.soft_facts == {"torch": "2.11"}


def test_a_device_time_shares_the_facts_of_the_device() -> None:
    """With how its caches were; its wall time is the host's, and the GPU's in part."""
    record = timed(EVENTS)

    assert record.facts == {
        Family.DEVICE_TIME.value: {"gpu_name": "NVIDIA H200", "cache_mode": "cold"},
        Family.HOST_TIME.value: {
            "cpu_model": "Xeon",
            "python_minor": "3.12",
            "gpu_name": "NVIDIA H200",
            "cache_mode": "cold",
        },
    }


def test_events_say_that_cupti_recorded_beside_them() -> None:
    """It lengthens them; and the clock of the samples is with every time of the device."""
    record = timed(
        replace(
            EVENTS,
            source="cupti",
            other_samples={"events": SAMPLES, "host": WALLS},
            sm_clock_hz=1.98e9,
        )
    )
    clocks_hz = {
        each.source: each.sm_clock_hz
        for each in record.estimates
        if each.metric == "time"
    }

    assert record.facts[Family.DEVICE_TIME.value]["timed_beside"] == "cupti"
    assert clocks_hz == {"cupti": 1.98e9, "events": 1.98e9, "host": None}


def test_a_record_says_who_made_it() -> None:
    """The GPU, the role and the process are the maker's."""
    device = Device(index=0, uuid="GPU-0", name="NVIDIA H200")
    maker = replace(MAKER, device=device, role=Role.CONFIRM, process_index=2)

    record = maker.timed(KEY, HOST, kind=Kind.MEASURE, work=None)

    assert (record.device, record.role, record.process_index) == (
        device,
        Role.CONFIRM,
        2,
    )
    assert (record.key, record.kind) == (KEY, Kind.MEASURE)


def test_notes_and_a_void_travel_with_their_timing() -> None:
    """What the collector said of a measurement is said of its record."""
    note, void = (
        Note(code="trend", text="It rose."),
        Void(code=VoidCode.DEVICE_LOST, reason="No."),
    )

    record = timed(replace(HOST, notes=(note,), void=void))

    assert (record.notes, record.void) == ((note,), void)


@pytest.mark.parametrize(
    ("work", "reason", "remedy"),
    [
        (None, "declares no work", "work=Work(bytes="),
        (Work(bytes=1e9), "peaks of this device are not known", "run it on a GPU"),
    ],
)
def test_a_fraction_of_the_roof_that_is_missing_says_why(
    work: Work | None, reason: str, remedy: str
) -> None:
    """Without declared work, or without the peaks of the device."""
    record = timed(HOST, work=work)

    assert reason in gap(record, "roofline.fraction").reason
    assert remedy in gap(record, "roofline.fraction").remedy
    assert record.work is work


@pytest.mark.parametrize(("unused", "roof"), [(False, "gpu"), (True, "cpu")])
def test_what_used_no_device_is_held_against_the_cpu(
    *, unused: bool, roof: str
) -> None:
    """Also in a process that has a context of a GPU."""

    def peaks_of(device: str) -> Peaks:
        why = f"it is the {device}'s"
        return Peaks(device=device, flop_per_s={}, bytes_per_s={}, unlisted=why)

    work = Work(flop=1e9, dtype="fp32")
    maker = replace(
        MAKER, peaks=lambda: peaks_of("gpu"), host_peaks=lambda: peaks_of("cpu")
    )
    record = maker.timed(
        KEY, replace(HOST, unused=unused), kind=Kind.MEASURE, work=work
    )

    assert f"it is the {roof}'s" in gap(record, "roofline.fraction").reason


def test_what_nobody_saw_use_the_device_has_no_roof() -> None:
    """Its peaks are not even looked up; the reason is about the use, not about them."""

    def refused() -> Peaks:
        raise AssertionError

    maker = replace(MAKER, peaks=refused, host_peaks=refused)
    work = Work(bytes=1e9, flop=1e9, dtype="fp32")
    record = maker.timed(KEY, HOST, kind=Kind.MEASURE, work=work, use_unknown=True)

    assert record.roofline is None
    why = gap(record, "roofline.fraction")
    assert why.reason.startswith("whether it used the GPU is not known")
    assert 'requires="gpu"' in why.remedy
    assert gap(record, "roofline.at_clock_fraction").reason == why.reason
    assert {e.metric for e in record.estimates} >= {"time", "roofline.intensity"}


@pytest.mark.parametrize(("reached", "grade"), [(0.5, "C"), (3.0, None)])
def test_a_share_of_the_roof_has_a_grade(reached: float, grade: str | None) -> None:
    """An A is for what was reached, not for what cannot be."""
    dram = Peak(value=1e12, label=SourceLabel.DATASHEET, source="a datasheet")
    known = Peaks(
        device="a GPU",
        flop_per_s={},
        bytes_per_s={"dram": dram},
        unlisted="no datasheet lists it",
    )
    timing = replace(EVENTS, samples=(2.0,), other_samples={})
    work = Work(bytes=reached * 2.0 * 1e12)
    maker = replace(MAKER, peaks=lambda: known)
    record = maker.timed(KEY, timing, kind=Kind.MEASURE, work=work)

    assert record.roofline is not None
    assert record.roofline.fraction == pytest.approx(reached)
    assert record.roofline.grade == grade


# compared


def test_a_comparison_says_how_many_times_faster() -> None:
    """The first of two functions takes half the time: it is twice as fast."""
    slow = replace(HOST, samples=tuple(2 * s for s in SAMPLES))

    record = MAKER.compared(KEY, HOST, slow)
    speedup = estimate(record, "speedup")

    assert speedup.value == pytest.approx(2.0)
    assert speedup.unit == "ratio"
    assert speedup.low is not None
    assert speedup.high is not None
    assert speedup.low < 2.0 < speedup.high
    assert [(s.metric, s.values) for s in record.series] == [
        ("time.a", HOST.samples),
        ("time.b", slow.samples),
    ]
    assert record.kind is Kind.COMPARE


def test_both_sides_of_a_comparison_are_heard() -> None:
    """The notes of both, once each; one void side makes it void."""
    shared, own = Note(code="trend", text="t"), Note(code="own", text="o")
    void = Void(code=VoidCode.DEVICE_LOST, reason="No.")
    a = replace(HOST, notes=(shared,))
    b = replace(HOST, notes=(shared, own))

    assert MAKER.compared(KEY, a, b).notes == (shared, own)
    assert MAKER.compared(KEY, a, b).void is None
    for sides in ((a, replace(b, void=void)),) * 2:
        assert MAKER.compared(KEY, *sides).void is void
        assert MAKER.compared(KEY, *reversed(sides)).void is void


# binary


def test_a_kernel_gives_its_resources() -> None:
    """Each value exact, from the binary, once for the kernel and once for the whole."""
    record = binary_record(MAKER, KEY, [KERNEL])
    expected = {
        "registers": 32.0,
        "stack_bytes": 0.0,
        "spills_bytes": 0.0,
        "shared_bytes": 0.0,
        "occupancy.theoretical": 1.0,
    }

    assert values(record) == values(record, KERNEL.name) == expected
    assert {e.source for e in record.estimates} == {"binary"}
    assert all(e.low is None for e in record.estimates)
    assert record.unmeasured == ()
    assert record.kernels == (KERNEL,)
    assert record.facts == {Family.RESOURCE.value: {"compute_capability": "9.0"}}


def test_a_binary_is_its_worst_kernel() -> None:
    """The most of every resource, and the least occupancy."""
    heavy = other(registers_count=128, stack_bytes=64, shared_bytes=4096)
    record = binary_record(MAKER, KEY, [KERNEL, heavy])

    assert values(record) == {
        "registers": 128.0,
        "stack_bytes": 64.0,
        "spills_bytes": 0.0,
        "shared_bytes": 4096.0,
        "occupancy.theoretical": values(record, heavy.name)["occupancy.theoretical"],
    }
    assert values(record, KERNEL.name)["occupancy.theoretical"] == 1.0
    assert values(record)["occupancy.theoretical"] < 1.0


@pytest.mark.parametrize(
    ("unknown", "metric", "reason", "remedy"),
    [
        (
            {"stack_bytes": None},
            "stack_bytes",
            "the stack of bar(float*) has no bound",
            "by their names",
        ),
        (
            {"spills_bytes": None},
            "spills_bytes",
            "does not say what was spilled",
            "ptxas_log=",
        ),
        (
            {"threads_per_block": None},
            "occupancy.theoretical",
            "how many threads",
            "block=",
        ),
        (
            {"target": "sm_50"},
            "occupancy.theoretical",
            "a multiprocessor of sm_50",
            "sm_90",
        ),
        (
            {"target": "gfx942", "demangled": None, "stack_bytes": None},
            "stack_bytes",
            "the stack of _Z3barPf has no bound",
            "by their names",
        ),
    ],
)
def test_one_unknown_kernel_leaves_the_whole_unknown(
    unknown: dict[str, Any], metric: str, reason: str, remedy: str
) -> None:
    """The largest of the known ones is not the largest; each known one keeps its own."""
    record = binary_record(MAKER, KEY, [KERNEL, other(**unknown)])

    assert reason in gap(record, metric).reason
    assert remedy in gap(record, metric).remedy
    assert metric in values(record, KERNEL.name)
    assert metric not in values(record, "_Z3barPf")
    assert "registers" in values(record)


def test_a_binary_alone_does_not_say_what_was_spilled() -> None:
    """The compiler's log does, and the remedy asks for it."""
    record = binary_record(MAKER, KEY, [replace(KERNEL, spills_bytes=None)])

    assert "ptxas_log=" in gap(record, "spills_bytes").remedy


@pytest.mark.parametrize(
    ("targets", "fact"),
    [
        (("sm_90a", "sm_90"), "9.0"),
        (("sm_90", "sm_80"), "8.0, 9.0"),
        (("sm_120f",), "12.0"),
        (("gfx942",), "gfx942"),
    ],
)
def test_a_binary_is_comparable_on_the_chips_it_is_for(
    targets: tuple[str, ...], fact: str
) -> None:
    """Registers for one chip are not compared with those for another, nor for two."""
    kernels = [replace(KERNEL, target=target) for target in targets]

    assert binary_record(MAKER, KEY, kernels).facts == {
        Family.RESOURCE.value: {"compute_capability": fact}
    }


# capture

DURATION = "gpu__time_duration.sum"


def test_a_report_gives_its_launches_and_its_counters() -> None:
    """Counters by their own name and unit, over all launches and for each kernel."""
    launches = [
        launch("gemm", **{"dram__bytes.sum": (100, "byte")}),
        launch("gemm", **{"dram__bytes.sum": (50, "byte")}),
        launch("relu", **{"dram__bytes.sum": (7, "byte")}),
    ]

    record = capture_record(MAKER, KEY, launches, ["dram__bytes.sum"])

    assert values(record) == {"launches.count": 3.0, "dram__bytes.sum": 157.0}
    assert estimate(record, "dram__bytes.sum", "gemm").value == 150.0
    assert estimate(record, "dram__bytes.sum", "relu").value == 7.0
    assert estimate(record, "dram__bytes.sum").unit == "byte"
    assert {e.source for e in record.estimates} == {"ncu-report"}
    assert record.unmeasured == ()


def test_a_rate_is_weighed_by_how_long_launches_took() -> None:
    """Three quarters of the time at 0.2, one at 1: 0.4."""
    name = "sm__warps_active.avg.pct_of_peak_sustained_active"
    launches = [
        launch("a", **{name: (20, "%"), DURATION: (3000, "nsecond")}),
        launch("b", **{name: (100, "%"), DURATION: (1000, "nsecond")}),
    ]

    record = capture_record(MAKER, KEY, launches, ["occupancy.achieved"])

    assert values(record)["occupancy.achieved"] == pytest.approx(0.4)
    assert values(record, "b")["occupancy.achieved"] == pytest.approx(1.0)


def test_a_rate_that_cannot_be_weighed_is_a_gap() -> None:
    """Launches of unknown length have no common rate; each kernel keeps its own."""
    launches = [launch("a", x__y=(1, "%")), launch("b", x__y=(3, "%"))]

    record = capture_record(MAKER, KEY, launches, ["x__y"])

    assert "2 launches, whose durations are not known" in gap(record, "x__y").reason
    assert "kernel=" in gap(record, "x__y").remedy
    assert values(record, "a") == {"x__y": 1.0}


@pytest.mark.parametrize(
    ("metric", "reason", "remedy"),
    [
        (
            "dram__bytes.sum",
            "no launch in the report",
            "collect it: ncu --metrics dram__bytes.sum",
        ),
        ("l2__x.sum", "1 of 2 launches", "collect it: ncu --metrics l2__x.sum"),
        (
            "registers",
            "no launch in the report",
            "collect it: ncu --metrics launch__registers_per_thread",
        ),
        ("energy", "none of them is this metric", "a counter by its own name"),
    ],
)
def test_a_counter_that_is_not_there_is_a_gap(
    metric: str, reason: str, remedy: str
) -> None:
    """The remedy is a command that works: the counter's own name."""
    launches = [launch("a", **{"l2__x.sum": (1, "sector")}), launch("b")]

    record = capture_record(MAKER, KEY, launches, [metric])

    assert reason in gap(record, metric).reason
    assert remedy in gap(record, metric).remedy


def test_a_limit_on_the_number_of_launches_asks_for_nothing_more() -> None:
    """What is there already is neither given twice nor missing."""
    record = capture_record(MAKER, KEY, [launch()], ["launches.count"])

    assert values(record) == {"launches.count": 1.0}
    assert record.unmeasured == ()


def test_a_report_says_itself_where_it_was_made() -> None:
    """Not this machine's facts: the report may be from another one."""
    major, minor = (
        f"device__attribute_compute_capability_{part}" for part in ("major", "minor")
    )
    metrics: dict[str, tuple[float | str, str]] = {
        "device__attribute_display_name": ("NVIDIA A100", ""),
        major: (8, ""),
        minor: (0, ""),
        "dram__bytes.sum": (1, "byte"),
    }

    record = capture_record(MAKER, KEY, [launch(**metrics)], ["dram__bytes.sum"])

    assert record.facts == {
        Family.COUNTER.value: {"gpu_name": "NVIDIA A100"},
        Family.RESOURCE.value: {"compute_capability": "8.0"},
    }


# number


@pytest.mark.parametrize(
    ("unit", "si"), [("us", "s"), ("ms", "s"), ("%", "fraction"), ("GB", "bytes")]
)
@given(value=st.integers(min_value=0, max_value=10**6))
def test_an_own_number_is_what_a_limit_would_say(
    unit: str, si: str, value: int
) -> None:
    """`record(60, unit="us")` holds `== 60 us`: both are the nearest float."""
    key = RecordKey(test_id="t", name="ttft")

    record = MAKER.number(key, [value], unit=unit, better="lower")
    found = estimate(record, "ttft")

    assert found.value == parse_quantity(f"{value} {unit}").value
    assert found.unit == si


def test_an_own_unit_stays_as_it_is() -> None:
    """Tokens are not SI, and nobody converts them."""
    key = RecordKey(test_id="t", name="rate")

    found = estimate(MAKER.number(key, [7.0], unit="token/s", better="higher"), "rate")

    assert (found.value, found.unit, found.better) == (7.0, "token/s", "higher")
    assert (found.source, found.label) == ("user", SourceLabel.DECLARED)


def test_own_samples_have_a_median_and_an_interval() -> None:
    """Several numbers are samples of one; one number has no spread."""
    key = RecordKey(test_id="t", name="ttft")

    record = MAKER.number(key, [1000 * s for s in SAMPLES], unit="ms", better="lower")
    found = estimate(record, "ttft")

    assert found.value == pytest.approx(stats.median(SAMPLES))
    assert found.sample_count == 20
    assert (found.low, found.high) == pytest.approx(stats.median_interval(SAMPLES))
    assert record.kind is Kind.RECORD
    assert record.facts == {
        Family.RECORDED.value: {
            "cpu_model": "Xeon",
            "python_minor": "3.12",
            "unit": "ms",  # as the test writes it
        }
    }


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e308])
def test_an_own_number_is_finite(value: float) -> None:
    """Neither as it is given, nor in SI, may it be beyond all numbers."""
    key = RecordKey(test_id="t", name="ttft")

    with pytest.raises(RecordError, match=r"estimate\[ttft\]"):
        MAKER.number(key, [value], unit="GB", better="lower")
