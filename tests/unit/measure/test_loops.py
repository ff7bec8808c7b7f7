"""measure.loop_record: a recorded loop becomes the values of a record."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_gpuperf.compute.scorecard import hardware_of
from pytest_gpuperf.errors import MeasureError
from pytest_gpuperf.measure.assemble import Maker
from pytest_gpuperf.measure.loop_record import loop_record
from pytest_gpuperf.model.environment import family_of
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.metric import METRICS, Family
from pytest_gpuperf.model.record import Kind, Record, RecordKey
from pytest_gpuperf.model.roofline import Peak, Peaks
from pytest_gpuperf.model.sample import Estimate, SourceLabel
from pytest_gpuperf.model.scorecard import Hardware
from pytest_gpuperf.model.steps import (
    Compiled,
    Loop,
    Span,
    SpanKind,
    SpanLevel,
    Step,
    Waiting,
)
from pytest_gpuperf.model.work import Work

KEY = RecordKey(test_id="tests/test_x.py::test_train")
PEAKS = Peaks(
    device="NVIDIA H200",
    flop_per_s={
        "bf16": Peak(value=1e12, label=SourceLabel.DATASHEET, source="a datasheet")
    },
    bytes_per_s={
        "dram": Peak(value=2e9, label=SourceLabel.DATASHEET, source="a datasheet")
    },
    unlisted="no datasheet lists it",
)
WORK = Work(flop=2e11, dtype="bf16")


def step(index: int, work_s: float = 0.9, **more: Any) -> Step:
    """Return a step with a period of a second and a forward phase of half of one."""
    begin_s = float(index)
    end_s = begin_s + 1.0
    forward = Span(
        name="forward",
        kind=SpanKind.FORWARD,
        level=SpanLevel.PHASE,
        start_s=end_s - 0.5,
        end_s=end_s,
    )
    given = {"units": 100.0, "spans": (forward,), **more}
    return Step(
        index=index, begin_s=begin_s, start_s=end_s - work_s, end_s=end_s, **given
    )


def loop(*steps: Step, **more: Any) -> Loop:
    given = {"unit": "token", "units": 100.0, "warmup_count": 1, **more}
    return Loop(steps=steps or tuple(step(index) for index in range(11)), **given)


def record_of(recorded: Loop, **roofs: Any) -> Record:
    """Return the record of a loop of this process."""
    maker = Maker(facts={"cpu_model": "Xeon"}, soft_facts={})
    return loop_record(maker, KEY, recorded, **roofs)


def values(found: Record) -> dict[str, Estimate]:
    return {estimate.metric: estimate for estimate in found.estimates}


def reason(found: Record, metric: str) -> str:
    (gap,) = (gap for gap in found.unmeasured if gap.metric == metric)
    assert gap.remedy
    return gap.reason


def test_throughput_is_all_units_over_all_time() -> None:
    """One slow step is not outvoted, and waiting for data is part of the time."""
    slow = Step(index=11, begin_s=11.0, start_s=11.0, end_s=21.0, units=100.0)
    found = values(record_of(loop(*loop().steps, slow)))["throughput"]

    assert found.value == pytest.approx(1100 / 20)
    assert found.unit == "1/s"
    assert found.low is not None
    assert found.low < found.value


def test_the_times_of_a_step_leave_waiting_out() -> None:
    """Median, tail, fastest and the very first, warm-up or not."""
    steps = [step(0, 1.0), *(step(index, 0.5 + index / 100) for index in range(1, 12))]
    found = values(record_of(loop(*steps)))

    assert found["time"].value == found["time.p50"].value == pytest.approx(0.56)
    assert found["time.min"].value == pytest.approx(0.51)
    assert found["time.p95"].value == pytest.approx(0.605)
    assert found["time.first_call"].value == pytest.approx(1.0)
    assert found["time"].low is not None


def test_one_step_has_no_spread() -> None:
    """Nor a tail: the median of one is that one."""
    found = values(record_of(loop(step(0), step(1))))

    assert found["time"].low is None
    assert "time.p95" not in found


def test_the_share_of_waiting_says_where_it_is_from() -> None:
    """Recorded data is measured, the time between steps only stands for it."""
    data = Span(
        name="data",
        kind=SpanKind.DATA,
        level=SpanLevel.PHASE,
        start_s=1.0,
        end_s=1.05,
    )
    guessed = values(record_of(loop()))["data.wait_fraction"]
    told = values(record_of(loop(step(0), step(1, spans=(data,)))))

    assert guessed.value == pytest.approx(0.1)
    assert guessed.label is SourceLabel.ESTIMATED
    assert told["data.wait_fraction"].value == pytest.approx(0.05)
    assert told["data.wait_fraction"].label is SourceLabel.MEASURED


def test_a_phase_is_a_metric_of_its_own() -> None:
    """So that its growth is found by the name of the phase."""
    found = values(record_of(loop()))["phase.forward"]

    assert found.value == pytest.approx(0.5)
    assert found.better == "lower"
    assert found.label is SourceLabel.MEASURED


def test_phases_beside_a_device_are_the_hosts_guess() -> None:
    """The device may run behind the host, and the record says so."""
    found = record_of(loop(waiting=Waiting.STEP))

    assert values(found)["phase.forward"].label is SourceLabel.ESTIMATED
    assert [note.code for note in found.notes] == ["host-phases"]
    waited = record_of(loop(waiting=Waiting.SPAN))
    assert values(waited)["phase.forward"].label is SourceLabel.MEASURED
    assert [note.code for note in waited.notes] == ["waited-for-spans"]


def test_idle_share_is_never_made_up() -> None:
    """The host's clock cannot see it."""
    assert "does not see" in reason(record_of(loop()), "time.idle_fraction")


def test_compilations_count_in_the_steps_that_count() -> None:
    """Those of the warm-up are told apart."""
    none = Compiled(count=0, graph_breaks_count=0, time_s=0.0)
    one = Compiled(count=1, graph_breaks_count=2, time_s=0.5)
    steps = [step(0, compiled=one), step(1, compiled=none), step(2, compiled=one)]
    found = record_of(loop(*steps))
    of = values(found)

    assert of["compile.count"].value == 1.0
    assert of["compile.graph_breaks"].value == 2.0
    assert of["compile.time"].value == 0.5
    assert found.steps is not None
    assert found.steps.warmup_compiled == one
    assert found.steps.recompiled_steps == (2,)


def test_compilations_that_nobody_saw_are_unmeasured() -> None:
    """Never 0; with what kept them from being seen."""
    unseen = record_of(loop(uncompiled_reason="torch is not loaded"))
    timeless = Compiled(count=1, graph_breaks_count=0)
    untimed = record_of(loop(step(0), step(1, compiled=timeless)))

    assert reason(unseen, "compile.count") == "torch is not loaded"
    assert "cleared" in reason(record_of(loop()), "compile.time")
    assert "how long" in reason(untimed, "compile.time")
    assert values(untimed)["compile.count"].value == 1.0


def test_peak_memory_is_there_or_has_a_reason() -> None:
    """Who does not know does not say 0."""
    known = values(record_of(loop(peak_memory_bytes=4096)))

    assert known["memory.peak_bytes"].value == 4096.0
    assert "torch" in reason(record_of(loop()), "memory.peak_bytes")


def test_exposed_communication_has_a_reason_where_it_is_unknown() -> None:
    """Nothing was recorded, or a device was used."""
    found = record_of(loop())
    device = record_of(loop(waiting=Waiting.STEP))

    assert "no span of kind communication" in reason(found, "comm.exposed_time")
    assert "does not see" in reason(device, "comm.exposed_time")


# what a loop is held against


def test_utilisation_is_declared_work_over_time_and_peak() -> None:
    """Of a step's whole period, with the weakest label of what it is made of."""
    found = values(record_of(loop(), work=WORK, peaks=PEAKS))["mfu"]

    assert found.value == pytest.approx(0.2)
    assert found.label is SourceLabel.DATASHEET


def test_a_declared_peak_goes_before_a_datasheet() -> None:
    """The test knows its own hardware."""
    declared = Hardware(peak_bw_gb_s=1.0, bytes_per_token=1.0, peak_flop_per_s=4e11)
    found = values(record_of(loop(), work=WORK, peaks=PEAKS, hardware=declared))

    assert found["mfu"].value == pytest.approx(0.5)
    assert found["mfu"].label is SourceLabel.DECLARED


@pytest.mark.parametrize(
    ("work", "peaks", "told"),
    [
        (None, PEAKS, "declares no FLOP"),
        (Work(bytes=1e6), PEAKS, "declares no FLOP"),
        (WORK, None, "peak of this device is not known"),
        (Work(flop=1e9, dtype="fp8"), PEAKS, "no datasheet lists it"),
    ],
)
def test_utilisation_without_work_or_peak_is_unmeasured(
    work: Work | None, peaks: Peaks | None, told: str
) -> None:
    """With what is missing, and what to do about it."""
    assert told in reason(record_of(loop(), work=work, peaks=peaks), "mfu")


def test_hardware_is_what_the_test_says_or_what_its_work_and_device_say() -> None:
    """Bytes of a step are shared out over its units; each number has its own label."""
    given = Hardware(peak_bw_gb_s=1.0, bytes_per_token=1.0)
    work = Work(bytes=5e6, flop=1e9, dtype="bf16")
    found = hardware_of(work, 100.0, PEAKS, None)

    assert hardware_of(work, 100.0, PEAKS, given) is given
    assert found == Hardware(
        peak_bw_gb_s=2.0,
        bytes_per_token=5e4,
        peak_flop_per_s=1e12,
        flop_per_token=1e7,
        source="declared",
        sources={"peak_bw_gb_s": "datasheet", "peak_flop_per_s": "datasheet"},
    )
    assert hardware_of(WORK, 100.0, PEAKS, None) is None
    assert hardware_of(work, 100.0, None, None) is None
    assert hardware_of(work, 100.0, replace(PEAKS, bytes_per_s={}), None) is None


def test_a_loop_on_known_hardware_has_a_grade() -> None:
    """One letter, beside the number that it is made of."""
    hardware = Hardware(peak_bw_gb_s=1.0, bytes_per_token=5e6)  # 200 a second
    graded = record_of(loop(), hardware=hardware).steps
    ungraded = record_of(loop()).steps

    assert graded is not None
    assert graded.grade == "B"
    assert graded.efficiency_fraction == pytest.approx(0.5)
    assert ungraded is not None
    assert ungraded.grade is None


# what does not count


def test_a_loop_that_counts_no_step_is_an_error_of_the_test() -> None:
    """It recorded none, or too few: nothing would ever be judged."""
    with pytest.raises(MeasureError, match="recorded no step"):
        record_of(Loop(unit="step", units=1.0, warmup_count=1, steps=()))
    with pytest.raises(MeasureError, match=r"all 2 steps .* \(warmup=3\)"):
        record_of(loop(step(0), step(1), warmup_count=3))


def test_a_loop_whose_steps_all_raised_is_void() -> None:
    """It has no value, and says why."""
    found = record_of(loop(step(0), step(1, void="ValueError was raised in it")))

    assert found.void is not None
    assert "ValueError was raised in it" in found.void.text
    assert found.steps is None
    assert set(values(found)) == {"time.first_call"}


def test_void_steps_are_told() -> None:
    """The first few by name; the others count."""
    bad = [step(index, void="KeyError was raised in it") for index in range(2, 7)]
    found = record_of(loop(step(0), step(1), *bad, step(7)))

    (note,) = found.notes
    assert note.text.startswith("5 of the steps did not count (step 2: KeyError")
    assert note.text.endswith("; 2 more)")
    assert found.void is None


def test_a_loop_that_an_exception_ended_is_void_with_its_values() -> None:
    """They are shown, and neither judged nor stored."""
    found = record_of(loop(failure="OSError"))

    assert found.void is not None
    assert found.void.text == "the loop was ended by OSError after 11 steps"
    assert "throughput" in values(found)
    nothing = record_of(
        Loop(unit="step", units=1.0, warmup_count=1, steps=(), failure="OSError")
    )
    assert nothing.estimates == ()


# the record


def test_a_record_keeps_what_a_loop_amounts_to() -> None:
    """Summary, samples and facts; the spans stay behind."""
    record = record_of(loop(), work=WORK)

    assert record.kind is Kind.STEPS
    assert record.steps is not None
    assert record.steps.counted_count == 10
    assert record.work is WORK
    assert [(s.metric, len(s.values)) for s in record.series] == [
        ("time", 10),
        ("period", 10),
        ("throughput", 10),
    ]


def test_steps_of_other_size_are_another_measurement() -> None:
    """A batch of half the size is no faster step: the baseline must not compare them."""
    facts = [record_of(loop(units=units)).facts for units in (100.0, 50.0)]

    for family in (Family.HOST_TIME.value, Family.RECORDED.value):
        assert facts[0][family]["cpu_model"] == facts[1][family]["cpu_model"]
        assert facts[0][family]["parameters"] != facts[1][family]["parameters"]


def test_every_value_has_its_metric_and_its_unit() -> None:
    """What the catalogue knows is in the catalogue's unit."""
    compiled = Compiled(count=1, graph_breaks_count=2, time_s=0.5)
    steps = [step(index, compiled=compiled) for index in range(3)]
    found = record_of(loop(*steps, peak_memory_bytes=1), work=WORK, peaks=PEAKS)

    for estimate in found.estimates:
        if not estimate.metric.startswith("phase."):
            assert METRICS[estimate.metric].unit == estimate.unit
        else:
            assert family_of(estimate.metric, "host") is Family.RECORDED


def test_the_peak_of_the_arithmetic_is_a_fact_of_its_share() -> None:
    """What the test says of its hardware goes before what is known of the device."""
    declared = Hardware(peak_bw_gb_s=2.0, bytes_per_token=1.0, peak_flop_per_s=2e12)
    datasheet = record_of(loop(), work=WORK, peaks=PEAKS)
    own = record_of(loop(), work=WORK, peaks=PEAKS, hardware=declared)

    for record, fact in (
        (datasheet, "bf16 1000 GFLOP/s (datasheet)"),
        (own, "bf16 2000 GFLOP/s (declared)"),
    ):
        peaks = {facts["peak"] for facts in record.facts.values() if "peak" in facts}
        assert peaks == {fact}
