"""measure.observations: what was seen besides the time, in the record; gaps carry reasons."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.collect.base import Timing
from pytest_gpuperf.collect.cupti.subscription import overfull
from pytest_gpuperf.collect.memory import MemoryUse
from pytest_gpuperf.measure.assemble import Maker
from pytest_gpuperf.measure.observations import with_observations
from pytest_gpuperf.measure.observers import Observations
from pytest_gpuperf.model.activity import Copy, KernelShape, Launches, Trace
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.gap import Gap, GapCode
from pytest_gpuperf.model.record import (
    BoundClass,
    Kind,
    Note,
    Record,
    RecordKey,
    Void,
    VoidCode,
)
from pytest_gpuperf.model.sample import CacheMode
from pytest_gpuperf.model.telemetry import (
    ClockReason,
    DeviceDeltas,
    SecondPass,
    Sharing,
)

KEY = RecordKey(test_id="tests/test_x.py::test_a")
FACTS = {"gpu_name": "NVIDIA H200", "cache_mode": "cold", "compute_capability": "9.0"}
MAKER = Maker(facts=FACTS, soft_facts={"torch": "2.11", "gpu_uuid": "GPU-0"})
SAMPLES = tuple(1e-3 + 1e-6 * number for number in range(20))
SHAPE = KernelShape(
    name="_Z4gemmPf",
    grid=(8, 1, 1),
    block=(128, 1, 1),
    registers_count=64,
    shared_bytes=0,
    dynamic_shared_bytes=1024,
    stack_bytes=0,
)
DELTAS = DeviceDeltas(
    gpu_uuid="GPU-7",
    gpu_index=0,
    duration_s=1.0,
    throttled_s={ClockReason.SOFTWARE_POWER_CAP: 0.0},
    memory_used_bytes=5_000,
    sm_clock_hz=1.98e9,
    temperature_celsius=47.0,
    sharing=Sharing.ALONE,
)
PASS = SecondPass(
    calls_count=100,
    duration_s=2.0,
    energy_joules=0.5,
    power_watts=25.0,
    deltas=DELTAS,
)


def trace(*busy_ns: tuple[int, int], **changed: Any) -> Trace:
    """Return a trace of kernels of one shape."""
    count = len(busy_ns)
    launches = Launches(
        shapes=(SHAPE,) if count else (),
        shape=array("I", [0] * count),
        start_ns=array("Q", [start for start, _ in busy_ns]),
        end_ns=array("Q", [end for _, end in busy_ns]),
        call_ns=array("Q", [1] * count),
        device=array("I", [0] * count),
        stream=array("I", [7] * count),
        graph=array("I", [0] * count),
    )
    kept = {"begun_ns": 0, "ended_ns": 10_000, "launches": launches, **changed}
    return Trace(**kept)


BUSY = trace(
    (1_000, 4_000),
    (4_100, 5_000),
    copies=(
        Copy(
            direction="device_to_host",
            source="device",
            target="pageable",
            size_bytes=64,
            count=1,
            start_ns=5_000,
            end_ns=5_500,
        ),
    ),
    host_launches_count=2,
    latencies_ns=array("q", [900, 1_100]),
    synchronizations={"context": 1},
    allocations=(512,),
)


def record(kind: Kind = Kind.MEASURE, source: str = "cupti") -> Record:
    """Return the record of a timing by one source of the device, or the host."""
    others = {} if source == "host" else {"host": SAMPLES}
    timing = Timing(
        samples=SAMPLES, source=source, other_samples=others, cache_mode=CacheMode.COLD
    )
    return MAKER.timed(KEY, timing, kind=kind, work=None)


def seen(
    kind: Kind = Kind.MEASURE,
    source: str = "cupti",
    *,
    strict: bool = False,
    **what: Any,
) -> Record:
    """Return the record of a measurement of which something was seen."""
    observed = Observations(device_used=True, **what)
    return with_observations(record(kind, source), observed, facts=FACTS, strict=strict)


def values(found: Record) -> dict[tuple[str, str], float]:
    """Return the values by metric and source."""
    return {(e.metric, e.source): e.value for e in found.estimates}


def gaps(found: Record) -> dict[str, str]:
    """Return the reasons by metric."""
    return {each.metric: each.reason for each in found.unmeasured}


def test_without_a_device_a_record_stays_what_it_is() -> None:
    """A test of the CPU has nothing of a GPU in its record, and misses none of it."""
    made = record(source="host")
    assert with_observations(made, Observations(deltas=DELTAS), facts=FACTS) is made


def test_what_cupti_saw_stands_beside_the_time() -> None:
    """Counts, bytes and the idle share, with cupti as their source."""
    found = values(seen(trace=BUSY))

    assert found["launches.count", "cupti"] == 2
    assert found["launches.host_count", "cupti"] == 2
    assert found["launches.latency", "cupti"] == pytest.approx(1e-6)
    assert found["transfers.device_to_host_bytes", "cupti"] == 64
    assert found["transfers.pageable_bytes", "cupti"] == 64
    assert found["transfers.host_to_device_bytes", "cupti"] == 0
    assert found["synchronizations.count", "cupti"] == 1
    assert found["allocations.count", "cupti"] == 1
    assert found["time.busy", "cupti"] == pytest.approx(4.4e-6)
    assert found["time.idle_fraction", "cupti"] == pytest.approx(0.1 / 4.5)


def test_what_ran_is_the_choice() -> None:
    """Equal kernels are an equal choice; without CUPTI nobody knows."""
    other = replace(SHAPE, registers_count=65)
    assert isinstance(BUSY.launches, Launches)
    launches = replace(BUSY.launches, shapes=(other,))

    first, again = seen(trace=BUSY), seen(trace=BUSY)
    changed = seen(trace=replace(BUSY, launches=launches))
    assert first.choice == again.choice is not None
    assert changed.choice not in {None, first.choice}
    assert seen(deltas=DELTAS).choice is None
    assert first.activity is not None
    assert first.activity.kernels[0].demangled == "gemm(float*)"


def test_work_of_child_processes_is_unmeasured_and_never_zero() -> None:
    """Every count says by pid what it lacks."""
    found = seen(trace=trace(children=("4711",), device_children=(4711,)))

    assert ("launches.count", "cupti") not in values(found)
    assert "4711" in gaps(found)["launches.count"]
    assert "4711" in gaps(found)["transfers.host_to_device_bytes"]


@pytest.mark.parametrize("kind", [Kind.MEASURE, Kind.RANGE])
def test_dropped_records_void_what_ran_once(kind: Kind) -> None:
    """A block cannot be repeated; a call was timed apart from the window."""
    void = Void(
        code=VoidCode.DROPPED_RECORDS,
        reason="CUPTI lost 3 records",
        remedy="measure less",
    )
    found = seen(kind, void=void)

    assert (found.void == void) == (kind is Kind.RANGE)
    assert gaps(found)["launches.count"] == "CUPTI lost 3 records"
    assert ("launches.count", "cupti") not in values(found)


def test_a_window_that_failed_leaves_reasons_alone() -> None:
    """CUPTI's failure is not the test's: its time by another source stands."""
    void = Void(
        code=VoidCode.CUPTI_FAILED,
        reason="CUPTI says no more",
        remedy="see gpuperf doctor",
    )
    found = seen(Kind.RANGE, "events", void=void)

    assert found.void is None
    (gap,) = (each for each in found.unmeasured if each.metric == "time.busy")
    assert (gap.reason, gap.remedy) == ("CUPTI says no more", "see gpuperf doctor")


def test_a_block_of_too_many_records_keeps_its_time() -> None:
    """What memory could not hold is unmeasured, and the reason has the number."""
    found = seen(Kind.RANGE, "events", void=overfull(3_000_000))

    assert found.void is None
    assert values(found)["time", "events"] > 0
    (gap,) = (each for each in found.unmeasured if each.metric == "launches.count")
    assert "more than 3,000,000 records" in gap.reason
    assert gap.remedy == "measure a shorter piece"


def test_what_nobody_sees_says_why() -> None:
    """The reason is CUPTI's, whichever source gave the time; allocators still count."""
    blind = Gap(
        code=GapCode.COUNTERS_BUSY,
        reason="Proton is another user",
        remedy="run without it",
    )
    use = MemoryUse(source="torch", peak_bytes=1, leaked_bytes=0, allocations_count=4)
    found = seen(source="events", blind=blind, memory=use)

    assert gaps(found)["launches.count"] == "Proton is another user"
    assert values(found)["allocations.count", "torch"] == 4
    assert "allocations.count" not in gaps(found)


def test_memory_has_its_allocator_as_source() -> None:
    """The driver's allocations are counted by one of them alone."""
    use = MemoryUse(
        source="torch",
        peak_bytes=300,
        leaked_bytes=0,
        allocations_count=2,
        notes=(Note(code="added-peaks", text="added"),),
    )
    alone, beside = seen(memory=use), seen(memory=use, trace=BUSY)

    assert values(alone)["memory.peak_bytes", "torch"] == 300
    assert values(alone)["memory.leaked_bytes", "torch"] == 0
    assert values(alone)["allocations.count", "torch"] == 2
    assert values(beside)["allocations.count", "cupti"] == 1
    assert ("allocations.count", "torch") not in values(beside)
    assert "added-peaks" in {note.code for note in alone.notes}


def test_memory_that_nobody_counts_says_who_does_not() -> None:
    """NVML's number is that of the whole device: it never stands in."""
    found = seen(memory=MemoryUse(reason="no framework counts"), deltas=DELTAS)

    assert gaps(found)["memory.peak_bytes"] == (
        "no framework counts, and NVML sees the whole device alone"
    )
    assert not any(metric.startswith("memory.") for metric, _ in values(found))


def test_energy_of_a_call_comes_from_calls_without_a_gap() -> None:
    """Where nobody asked for it, it is unmeasured, and the remedy says how to ask."""
    asked, unasked = seen(second=PASS, deltas=DELTAS), seen(deltas=DELTAS)

    assert values(asked)["energy", "nvml"] == 0.5
    assert values(asked)["power", "nvml"] == 25.0
    (gap,) = (each for each in unasked.unmeasured if each.metric == "energy")
    assert gap.remedy == "name it in the test's marker, in limits or max_regression"


def test_a_fixed_number_of_calls_has_no_energy() -> None:
    """All processes of a job call equally often: none goes on until it knows enough."""
    found = seen(deltas=DELTAS, unrepeated="the test fixes how often it is called")
    (gap,) = (each for each in found.unmeasured if each.metric == "power")

    assert gap.reason == "the test fixes how often it is called"
    assert gap.remedy.startswith("leave iterations out")


def test_energy_of_a_block_is_what_the_board_drew_meanwhile() -> None:
    """One too short for the board's counter has none, and says so."""
    long = replace(DELTAS, energy_joules=300.0, duration_s=2.0)
    short = replace(DELTAS, duration_s=0.01)
    silent = Gap(code=GapCode.UNSUPPORTED, reason="no such sensor", remedy="other GPU")

    found = values(seen(Kind.RANGE, deltas=long))
    assert (found["energy", "nvml"], found["power", "nvml"]) == (300.0, 150.0)
    assert gaps(seen(Kind.RANGE, deltas=short))["energy"] == (
        "0.01 s are too short for the board's counter"
    )
    without = seen(Kind.RANGE, deltas=replace(DELTAS, silent={"energy": silent}))
    assert gaps(without)["energy"] == "no such sensor"


def test_a_pass_that_could_not_tell_says_why() -> None:
    """Each of its sensors that said nothing is a reason."""
    silent = Gap(
        code=GapCode.COUNTER_PERMISSION, reason="kept from this user", remedy="ask"
    )
    failed = replace(
        PASS, energy_joules=None, power_watts=None, missing={"energy": silent}
    )

    assert gaps(seen(second=failed))["energy"] == "kept from this user"


@pytest.mark.parametrize(
    ("changed", "strict", "void", "note"),
    [
        ({"reasons": frozenset({ClockReason.POWER_BRAKE})}, False, "power-brake", None),
        ({"sharing": Sharing.FOREIGN, "foreign_pids": (9,)}, False, "foreign", None),
        ({"sharing": Sharing.UNKNOWN}, False, None, "company-unknown"),
        ({"sharing": Sharing.UNKNOWN}, True, "company-unknown", None),
        ({"throttled_s": {ClockReason.SOFTWARE_POWER_CAP: 0.1}}, False, None, "capped"),
        ({"ecc_changes": {"corrected errors": 1}}, False, "ecc-changed", None),
        ({}, False, None, None),
    ],
)
def test_the_gates_are_the_records(
    changed: dict[str, Any],
    strict: bool,
    void: str | None,
    note: str | None,
) -> None:
    """What voids or caps a measurement is in its record, whatever its time."""
    found = seen(deltas=replace(DELTAS, **changed), strict=strict)

    assert (found.void is not None) == (void is not None)
    assert found.void is None or found.void.code.startswith(str(void))
    assert [each.code for each in found.notes if each.code == note] == [note] * bool(
        note
    )


def test_the_void_of_the_samples_goes_first() -> None:
    """What made them worthless is not replaced by what the board did meanwhile."""
    own = Void(code=VoidCode.MUTATES_ITS_INPUTS, reason="it does", remedy="give setup")
    made = replace(record(), void=own)
    lost = Gap(code=GapCode.DEVICE_LOST, reason="fell off the bus", remedy="reset")
    observed = Observations(device_used=True, deltas=replace(DELTAS, lost=lost))

    assert with_observations(made, observed, facts=FACTS).void == own


def test_soft_facts_say_what_the_board_was_like() -> None:
    """Its name, the clock seen, and the temperature as far as it is news."""
    found = seen(deltas=DELTAS)

    assert found.soft_facts["gpu_uuid"] == "GPU-7"
    assert found.soft_facts["sm_clock"] == "1980 MHz"
    assert found.soft_facts["temperature"] == "about 50 °C"
    assert found.soft_facts["torch"] == "2.11"


def test_families_that_come_in_bring_their_facts() -> None:
    """Counts of cupti are compared on one chip; what was there stays."""
    made, found = record(), seen(trace=BUSY)

    assert found.facts["resource"] == {"compute_capability": "9.0"}
    assert found.facts["device-time"] == made.facts["device-time"]


IDLE = trace((1_000, 2_000), (5_000, 6_000))


@pytest.mark.parametrize(
    ("source", "what", "bound"),
    [
        ("host", {"trace": BUSY}, BoundClass.HOST),
        ("cupti", {"trace": IDLE}, BoundClass.HOST),
        ("cupti", {"trace": BUSY}, BoundClass.COMPUTE),
        ("events", {}, BoundClass.COMPUTE),
        (
            "events",
            {"second": replace(PASS, deltas=replace(DELTAS, gpm={}))},
            BoundClass.COMPUTE,
        ),
        (
            "events",
            {
                "second": replace(
                    PASS, deltas=replace(DELTAS, gpm={"dram_active_fraction": 0.8})
                )
            },
            BoundClass.MEMORY,
        ),
    ],
)
def test_what_moves_with_the_machine(
    source: str, what: dict[str, Any], bound: BoundClass
) -> None:
    """The host's times and waiting devices are the host's; else DRAM tells, or the clock."""
    assert seen(source=source, **what).bound_class is bound


@given(
    st.lists(st.integers(min_value=1, max_value=9_000), max_size=8),
    st.booleans(),
)
def test_no_metric_is_both_measured_and_missing(starts: list[int], lost: bool) -> None:
    """A value goes before every reason not to have it; each gap has a reason."""
    what: dict[str, Any] = {"deltas": DELTAS, "memory": MemoryUse(reason="nobody")}
    if lost:
        what["void"] = Void(code=VoidCode.DROPPED_RECORDS, reason="lost")
    else:
        what["trace"] = trace(*((start, start + 50) for start in starts))
    found = seen(**what)

    assert not {metric for metric, _ in values(found)} & set(gaps(found))
    assert len(found.unmeasured) == len(gaps(found))
    assert all(each.reason and each.remedy for each in found.unmeasured)
