"""Rules of the measured scorecard: labels, traces, counters, sessions, invariants."""

from __future__ import annotations

import itertools
import math
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.compute.measured_scorecard import (
    QUANTITIES,
    measured_scorecard,
    parse_invariant,
)
from pytest_gpuperf.compute.scorecard import training_scorecard
from pytest_gpuperf.compute.step_bottleneck import MeasuredPolicy, device_time
from pytest_gpuperf.errors import RecordError
from pytest_gpuperf.model.codec import (
    decode_hardware,
    encode_scorecard,
    encode_step_profile,
    from_text,
    to_text,
)
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.reference_json import decode_step_profile
from pytest_gpuperf.model.roofline import weakest
from pytest_gpuperf.model.sample import SourceLabel
from pytest_gpuperf.model.scorecard import (
    HARDWARE,
    Basis,
    Decision,
    Hardware,
    Invariant,
    MeasuredScorecard,
    StepLimiter,
)
from pytest_gpuperf.model.steps import DeviceTime, Layer, Phase, SpanKind, StepProfile
from pytest_gpuperf.model.verdict import Outcome

MEMORY = Hardware(peak_bw_gb_s=1.0, bytes_per_token=1e7)  # 100 tokens/s
BOTH = replace(MEMORY, peak_flop_per_s=1e12, flop_per_token=2e10)  # 50 tokens/s
KNOWN = [each.value for each in SourceLabel if each is not SourceLabel.UNAVAILABLE]
STEPS = (99.0, 100.0, 101.0, 100.5, 99.5, 100.2, 99.8, 100.1, 99.9, 100.0)
TIMES = st.floats(min_value=0, max_value=100)


def profile(**phases: float) -> StepProfile:
    """Return a profile whose phases take so much of a step of 100 ms."""
    return StepProfile(
        avg_step_ms=100.0,
        phases={
            name: Phase(total_ms=1e6, pct=0.0, avg_ms=ms) for name, ms in phases.items()
        },
    )


def score(
    steps: StepProfile, throughput: float = 40.0, **options: Any
) -> MeasuredScorecard:
    """Return a scorecard on hardware that allows 100 tokens/s."""
    hardware = options.pop("hardware", MEMORY)
    return measured_scorecard(
        steps, throughput=throughput, hardware=hardware, **options
    )


def traced(busy: float, launching: float, waiting: float, **phases: float) -> Any:
    """Return a profile whose device did this in a step of 100 ms."""
    device = DeviceTime(busy_ms=busy, launching_ms=launching, waiting_ms=waiting)
    return replace(profile(**phases), device=device)


def said(card: MeasuredScorecard) -> str:
    """Return all of a card's notes."""
    return "; ".join(card.notes)


# -- where the numbers come from


@given(labels=st.tuples(*[st.sampled_from(KNOWN)] * 4))
def test_a_fraction_carries_the_weakest_label(labels: tuple[str, ...]) -> None:
    """Each roof its own; the efficiency and the grade that of both."""
    names = ("peak_bw_gb_s", "bytes_per_token", "peak_flop_per_s", "flop_per_token")
    hardware = replace(BOTH, sources=dict(zip(names, labels, strict=True)))
    sources = score(profile(), 20.0, hardware=hardware).sources
    memory = weakest(SourceLabel.MEASURED, *map(SourceLabel, labels[:2]))
    compute = weakest(SourceLabel.MEASURED, *map(SourceLabel, labels[2:]))

    assert sources["bandwidth_fraction"] is memory
    assert sources["compute_fraction"] is compute
    assert sources["efficiency"] is sources["grade"] is weakest(memory, compute)


def test_every_known_number_has_a_label_and_no_other() -> None:
    """What a profile says counts as measured; one roof says nothing of the other."""
    layers = (Layer(layer=0, fwd_ms=1.0, bwd_ms=2.0),)
    card = score(replace(traced(90.0, 5.0, 5.0, forward=95.0), per_layer=layers))
    ratios = ("backward_forward_ratio", *(f"layer_ratio_{e}" for e in _ENDS))
    measured = {"coverage", "device", "step", "throughput", *ratios}
    declared = {"bandwidth_fraction", "efficiency", "grade"}

    assert card.sources == {
        **dict.fromkeys(measured, SourceLabel.MEASURED),
        **dict.fromkeys(declared, SourceLabel.DECLARED),
    }
    assert score(StepProfile(), 0.0).sources == {}


_ENDS = ("low", "median", "high")


@pytest.mark.parametrize("name", ["peak_flop_per_s", "flop_per_token"])
def test_what_is_unavailable_makes_no_roof(name: str) -> None:
    """A value that comes from nowhere is not divided by."""
    hardware = replace(BOTH, sources={name: "unavailable"})
    card = score(profile(), 20.0, hardware=hardware)
    nothing = score(profile(), 20.0, hardware=replace(BOTH, source="unavailable"))

    assert (card.compute_fraction, card.bandwidth_fraction) == (None, 0.2)
    assert nothing.efficiency is None


def test_labels_that_are_none_are_refused() -> None:
    """All of them at once, and those of numbers that hardware does not have."""
    with pytest.raises(RecordError) as raised:
        replace(MEMORY, source="hearsay", sources={"bytes_per_token": "", "l2": "user"})

    for path in ("source: ", "sources.bytes_per_token: ", "sources.l2: "):
        assert f"hardware.{path}" in f"{raised.value.path}: {raised.value.message}"


def test_a_presets_bytes_are_somebody_elses() -> None:
    """Its bandwidth stands in a sheet, the model that reads so much does not."""
    for hardware in HARDWARE.values():
        assert hardware.label("peak_bw_gb_s") is SourceLabel.DATASHEET
        assert hardware.label("bytes_per_token") is SourceLabel.ESTIMATED
        assert score(profile(), hardware=hardware).sources["efficiency"] == "estimated"


def test_a_file_labels_its_numbers() -> None:
    """Only to our own reader; what is not a label is refused with every other mistake."""
    obj: dict[str, Any] = {
        "peak_bw_gb_s": 1,
        "bytes_per_token": 1,
        "source": "datasheet",
        "sources": {"bytes_per_token": "declared", "colour": "red"},
    }
    ours = decode_hardware(obj, ours=True)

    assert (ours.source, dict(ours.sources)) == (
        "datasheet",
        {"bytes_per_token": "declared"},
    )
    assert decode_hardware(obj).source == "declared"
    obj |= {"peak_bw_gb_s": None, "source": "rumour"}
    obj["sources"]["bytes_per_token"] = 3
    with pytest.raises(RecordError) as raised:
        decode_hardware(obj, ours=True)
    for path in ("peak_bw_gb_s", "source", "sources.bytes_per_token"):
        assert path in str(raised.value)


# -- the device's trace


@given(
    busy=st.lists(st.tuples(TIMES, TIMES).map(sorted)),
    launching=st.lists(st.tuples(TIMES, TIMES).map(sorted)),
    ends=st.tuples(TIMES, TIMES).map(sorted),
)
def test_the_parts_of_a_trace_are_the_time_that_was_traced(
    busy: list[list[float]], launching: list[list[float]], ends: list[float]
) -> None:
    """Overlapping kernels count once, and none of the parts is below zero."""
    start_s, end_s = ends
    pairs = [(a, b) for a, b in busy], [(a, b) for a, b in launching]
    found = device_time(*pairs, start_s=start_s, end_s=end_s)
    twice = device_time(pairs[0] * 2, pairs[1] * 2, start_s=start_s, end_s=end_s)
    parts = (found.busy_ms, found.launching_ms, found.waiting_ms)

    assert min(parts) >= 0
    assert math.fsum(parts) == pytest.approx((end_s - start_s) * 1e3, abs=1e-6)
    assert twice == found


def test_launching_counts_only_while_the_device_idles() -> None:
    """A host that runs ahead launches for free; the mean is of the steps."""
    found = device_time(
        [(0.0, 0.4), (0.3, 0.5)],
        [(0.45, 0.7), (-1.0, 0.1)],
        start_s=0.0,
        end_s=1.0,
        step_count=2,
    )

    assert found.busy_ms == pytest.approx(250)
    assert found.launching_ms == pytest.approx(100)
    assert found.waiting_ms == pytest.approx(150)


@pytest.mark.parametrize(("end_s", "count"), [(-1.0, 1), (1.0, 0), (math.nan, 1)])
def test_steps_that_are_none_are_refused(end_s: float, count: int) -> None:
    """There is nothing to take a mean of."""
    with pytest.raises(ValueError, match="are none"):
        device_time([], [], start_s=0.0, end_s=end_s, step_count=count)


@pytest.mark.parametrize(
    ("parts", "limiter", "evidence"),
    [
        ((60.0, 25.0, 15.0), StepLimiter.LAUNCH, ("launching", 0.25)),
        ((60.0, 15.0, 25.0), StepLimiter.WAIT, ("waiting", 0.25)),
        ((60.0, 20.0, 20.0), StepLimiter.LAUNCH, ("launching", 0.20)),
        ((70.0, 25.0, 5.0), None, None),
    ],
)
def test_an_idle_device_is_launched_to_or_waits(
    parts: tuple[float, ...],
    limiter: StepLimiter | None,
    evidence: tuple[str, float] | None,
) -> None:
    """Above its share the longer of the two; it needs no phases."""
    card = score(traced(*parts))

    assert card.bottleneck is limiter
    found = [(each.name, each.value) for each in card.evidence]
    assert found == ([] if evidence is None else [evidence])
    named = "the phases do not explain the step" in said(card)
    assert named is (limiter is not None)


def test_data_is_waited_for_only_by_an_idle_device() -> None:
    """What is loaded beside a busy device holds nothing back; a copy does."""
    beside = traced(95.0, 2.0, 3.0, data=60.0, forward=38.0)

    assert score(beside).bottleneck is None
    assert score(replace(beside, device=None)).bottleneck is StepLimiter.DATA
    assert score(traced(40.0, 2.0, 58.0, data=60.0, forward=38.0)).bottleneck is (
        StepLimiter.DATA
    )
    assert score(traced(95.0, 2.0, 3.0, h2d=60.0, forward=38.0)).bottleneck is (
        StepLimiter.TRANSFER
    )


@pytest.mark.parametrize(
    ("busy", "used"), [(65.0, True), (64.9, False), (75.0, True), (75.1, False)]
)
def test_a_trace_of_something_else_is_not_used(busy: float, used: bool) -> None:
    """Its parts must make the step that was timed, to 5 %."""
    card = score(traced(busy, 0.0, 30.0), policy=MeasuredPolicy(waiting_fraction=0.2))

    assert (card.bottleneck is StepLimiter.WAIT) is used
    assert ("do not add up" in said(card)) is not used


# -- counters


@pytest.mark.parametrize(
    ("counters", "limiter", "first"),
    [
        ({"dram_throughput_fraction": 0.9}, StepLimiter.MEMORY_BW, "dram"),
        ({"l2_throughput_fraction": 0.7}, StepLimiter.MEMORY_BW, "l2"),
        ({"l1_throughput_fraction": 0.7}, StepLimiter.MEMORY_BW, "l1"),
        ({"memory_throughput_fraction": 0.7}, StepLimiter.MEMORY_BW, "memory"),
        ({"tensor_pipe_fraction": 0.8}, StepLimiter.COMPUTE, "tensor"),
        ({"fma_pipe_fraction": 0.8}, StepLimiter.COMPUTE, "fma"),
        ({"waves_count": 0.5}, StepLimiter.GRID, "waves"),
        (
            {
                "memory_throughput_fraction": 0.2,
                "sm_throughput_fraction": 0.1,
                "warps_active_fraction": 0.3,
                "waves_count": 2.0,
            },
            StepLimiter.LATENCY,
            "memory",
        ),
    ],
)
def test_counters_go_before_what_was_declared(
    counters: dict[str, float], limiter: StepLimiter, first: str
) -> None:
    """They saw what happened, where declared work says what had to."""
    steps = replace(profile(forward=95.0), counters=counters)

    for hardware in (MEMORY, BOTH, replace(BOTH, flop_per_token=1e9)):
        card = score(steps, 20.0, hardware=hardware)
        assert card.bottleneck is limiter
        assert card.evidence[0].name == first
    assert score(replace(steps, phases={})).bottleneck is limiter


def test_counters_that_say_nothing_leave_the_declared_roof() -> None:
    """And a note says which are missing."""
    steps = replace(profile(forward=95.0), counters={"dram_throughput_fraction": 0.1})
    card = score(steps, 20.0, hardware=BOTH)

    assert (card.bottleneck, card.evidence) == (StepLimiter.COMPUTE, ())
    assert "the counters name no bottleneck: a counter that decides" in said(card)
    assert "warps_active_fraction" in said(card)


def test_waiting_goes_before_counters() -> None:
    """A kernel at its roof in a tenth of the step holds nothing back."""
    full = {"dram_throughput_fraction": 0.9}
    steps = replace(traced(30.0, 60.0, 10.0), counters=full)

    assert score(steps).bottleneck is StepLimiter.LAUNCH


def test_what_no_trace_and_no_counter_says_is_refused() -> None:
    """All of it at once."""
    steps = replace(
        traced(-1.0, -2.0, 1e16), counters={"flux": 1.0, "dram_bytes": -1.0}
    )
    with pytest.raises(RecordError) as raised:
        score(steps)

    for path in (
        "device.busy_ms",
        "device.launching_ms",
        "device.waiting_ms",
        "counters.flux",
        "counters.dram_bytes",
    ):
        assert f"{path}: " in f"{raised.value.path}: {raised.value.message}"
    assert "counters.flux: unknown counter;" in raised.value.message
    assert "counters.dram_bytes: -1.0 is below zero" in raised.value.message
    with pytest.raises(RecordError, match="launching_ms"):
        DeviceTime(busy_ms=1.0, launching_ms=math.nan, waiting_ms=math.inf)


@pytest.mark.parametrize(
    ("steps", "rule"),
    [
        (traced(30.0, 60.0, 10.0), "slow-launch"),
        (traced(30.0, 10.0, 60.0), "slow-wait"),
        (replace(profile(), counters={"waves_count": 0.5}), "small-grid"),
    ],
)
def test_each_bottleneck_has_its_advice(steps: StepProfile, rule: str) -> None:
    """Of a grade of C or worse."""
    assert [e.rule for e in score(steps, 10.0).recommendations] == [rule]
    assert score(steps, 75.0).recommendations == ()


def test_a_profile_of_ours_keeps_all_that_it_holds() -> None:
    """Written and read again; other readers see none of it."""
    steps = replace(
        traced(70.0, 20.0, 10.0, forward=90.0),
        counters={"dram_bytes": 5.0},
        machine={"gpu": "NVIDIA H200"},
    )
    text = to_text(encode_step_profile(steps))
    theirs = decode_step_profile(text)

    assert decode_step_profile(text, ours=True) == steps
    assert (theirs.device, theirs.counters, theirs.machine) == (None, {}, {})
    with pytest.raises(RecordError, match=r"device\.waiting_ms: it is missing"):
        decode_step_profile('{"device": {"busy_ms": 1, "launching_ms": 1}}', ours=True)


# -- older sessions


def one(card: MeasuredScorecard, metric: str = "step_time_ms") -> Decision:
    """Return the decision on one metric."""
    return next(each for each in card.decisions if each.metric == metric)


def of_mean(ms: float, **options: Any) -> MeasuredScorecard:
    """Return the card of a step of which only the mean is known."""
    return score(replace(profile(), avg_step_ms=ms), 4000.0 / ms, **options)


def sampled(factor: float, **options: Any) -> MeasuredScorecard:
    """Return the card of a step whose samples are known."""
    steps = replace(profile(), step_ms=tuple(ms * factor for ms in STEPS))
    return score(steps, 40.0 / factor, **options)


def test_three_sessions_say_how_much_they_differ() -> None:
    """Two do not; then a single number rests on the noise, and may decide more finely."""
    quiet = [of_mean(ms) for ms in (100.0, 100.1, 99.9, 100.0, 100.05)]
    few = one(of_mean(107.0, baseline=quiet[:2]))
    found = one(of_mean(107.0, baseline=quiet))

    assert (few.basis, few.outcome) == (Basis.MEANS, Outcome.UNCHANGED)
    assert (few.tolerance, few.noise_fraction) == (0.10, None)
    assert (found.basis, found.outcome) == (Basis.SESSIONS, Outcome.REGRESSED)
    assert found.tolerance == 0.05
    assert found.noise_fraction is not None
    assert 0.001 < found.noise_fraction < 0.01  # three that agree promise no fourth


@pytest.mark.parametrize("make", [of_mean, lambda ms, **o: sampled(ms / 100, **o)])
def test_noise_widens_the_tolerance(make: Any) -> None:
    """A change that the sessions show among themselves is none."""
    loud = [make(ms) for ms in (90.0, 110.0, 95.0, 105.0, 100.0)]
    alone = one(make(120.0, baseline=loud[-1]))
    found = one(make(120.0, baseline=loud))

    assert alone.outcome is Outcome.REGRESSED
    assert found.outcome is Outcome.UNCHANGED
    assert found.tolerance is not None
    assert found.tolerance > 0.3
    assert found.base == alone.base  # the last one is compared with
    assert one(make(300.0, baseline=loud)).outcome is Outcome.REGRESSED


@given(
    older=st.lists(st.floats(50.0, 200.0), min_size=3, max_size=6),
    now=st.floats(50.0, 200.0),
)
def test_noise_never_makes_a_change_of_none(older: list[float], now: float) -> None:
    """Beside the sampled intervals it can only take decisions back."""
    cards = [sampled(ms / 100) for ms in older]
    alone = one(sampled(now / 100, baseline=cards[-1]))
    found = one(sampled(now / 100, baseline=cards))

    assert found.outcome in {alone.outcome, Outcome.UNCHANGED, Outcome.INCONCLUSIVE}
    assert (found.tolerance or 0.0) >= (alone.tolerance or 0.0)


def test_the_noise_of_a_throughput_is_its_own() -> None:
    """Where no step time is known the rate is judged, by how much rates differ."""
    steps = replace(profile(), avg_step_ms=0.0)
    older = [score(steps, rate) for rate in (36.0, 44.0, 38.0, 42.0, 40.0)]
    found = one(score(steps, 34.0, baseline=older), "throughput")

    assert (found.basis, found.outcome) == (Basis.SESSIONS, Outcome.UNCHANGED)
    assert one(score(steps, 34.0, baseline=older[-1]), "throughput").outcome is (
        Outcome.REGRESSED
    )


def test_sessions_of_others_count_too() -> None:
    """A scorecard of either policy is a session."""
    steps = [replace(profile(), avg_step_ms=ms) for ms in (90.0, 110.0, 100.0)]
    older = [training_scorecard(s, throughput=40.0, hardware=MEMORY) for s in steps]

    assert one(of_mean(115.0, baseline=older)).basis is Basis.SESSIONS
    assert encode_scorecard(older[0])["step_time_ms"] == 90.0


def test_nothing_is_judged_against_another_machine() -> None:
    """Every quantity is incomparable, and what was lost is lost there too."""
    here = {"gpu": "NVIDIA H200", "driver": "581.2"}
    base = score(replace(profile(forward=90.0), machine={**here, "driver": "580.1"}))
    steps = replace(profile(forward=90.0), avg_step_ms=150.0, machine=here)
    card = score(steps, 40.0 / 1.5, baseline=base)
    lost = score(replace(steps, phases={}), 40.0 / 1.5, baseline=base)

    assert {each.outcome for each in card.decisions} == {Outcome.INCOMPARABLE}
    assert one(card).why == (
        "the baseline comes from another machine: driver 580.1, now 581.2"
    )
    assert one(lost, "coverage").outcome is Outcome.UNMEASURED
    assert one(score(steps, 40.0 / 1.5, baseline=card)).outcome is Outcome.UNCHANGED


def test_sessions_of_another_machine_are_no_noise() -> None:
    """They differ because it does."""
    here, there = {"gpu": "a"}, {"gpu": "b"}
    older = [
        score(replace(profile(), avg_step_ms=ms, machine=where), 4000.0 / ms)
        for ms, where in ((50.0, there), (200.0, there), (100.0, here))
    ]
    card = score(replace(profile(), machine=here), baseline=older)

    assert one(card).noise_fraction is None


@pytest.mark.parametrize(
    ("then", "now", "side"),
    [
        ({}, {"gpu": "a"}, "the baseline names no machine"),
        ({"gpu": "a"}, {}, "this run names no machine"),
        ({"gpu": "a"}, {"gpu": "a"}, ""),
    ],
)
def test_a_baseline_without_a_machine_is_noted(
    then: dict[str, str], now: dict[str, str], side: str
) -> None:
    """It is judged, and may be of another one."""
    base = score(replace(profile(), machine=then))
    card = score(replace(profile(), machine=now), baseline=base)

    assert one(card).outcome is Outcome.UNCHANGED
    assert ("names no machine" in said(card)) is bool(side)
    assert side in said(card)
    assert "names no machine" not in said(base)


# -- invariants


def held(text: str, steps: StepProfile, **options: Any) -> tuple[Outcome, Any]:
    """Return what became of one invariant, and the number."""
    (found,) = score(steps, invariants=[text], **options).invariants
    return found.outcome, found.value


@given(
    forward=st.floats(0.01, 1e3),
    backward=st.floats(0.0, 1e3),
    bounds=st.tuples(st.floats(0, 1e3), st.floats(0, 1e3)).map(sorted),
)
def test_an_invariant_holds_between_its_bounds(
    forward: float, backward: float, bounds: list[float]
) -> None:
    """The bounds themselves are allowed."""
    low, high = bounds
    steps = profile(forward=forward, backward=backward)
    text = f"backward / forward between {low!r} and {high!r}"
    outcome, value = held(text, steps)

    assert value == backward / forward
    assert (outcome is Outcome.PASSED) is (low <= value <= high)
    assert (outcome is Outcome.FAILED) is not (low <= value <= high)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("step <= 100", 100.0),
        ("busy / step >= 65 %", 0.7),
        ("launching<=20", 20.0),
        ("waiting / busy <= .15", 10 / 70),
        ("coverage >= 0.9", 0.95),
        ("throughput between 3.9e1 and +41", 40.0),
        ("efficiency <= 1", 0.4),
        ("unattributed / step <= 10%", 0.05),
        ('phase["forward"] / phase["a b/c"] >= 18', 18.0),
        ('op["soft max"] <= 3', 3.0),
        ('counter["dram_bytes"] <= 1e9', 5.0),
        ("layer_ratio_high <= 2", 2.0),
    ],
)
def test_every_quantity_can_be_asked_for(text: str, value: float) -> None:
    """Times in milliseconds, fractions, and what has a name of its own."""
    layer = Layer(layer=0, fwd_ms=1.0, bwd_ms=2.0, ops={"soft max": 3.0})
    steps = replace(
        traced(70.0, 20.0, 10.0, forward=90.0, **{"a b/c": 5.0}),
        per_layer=(layer,),
        counters={"dram_bytes": 5.0},
    )

    assert held(text, steps) == (Outcome.PASSED, pytest.approx(value))


def test_a_nested_phase_counts_for_itself() -> None:
    """As in the shares: the time inside it is another phase's."""
    steps = profile(forward=60.0, h2d=35.0)
    outer = replace(steps.phases["forward"], exclusive_ms=25.0)
    steps = replace(steps, phases={**steps.phases, "forward": outer})

    assert held('phase["forward"] <= 30', steps) == (Outcome.PASSED, 25.0)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("busy / step <= 1", "busy: not in the profile"),
        ("backward / launching <= 1", "backward and launching: not in the profile"),
        ('phase["loss"] <= 1', 'phase["loss"]: not in the profile'),
        ("forward / optimizer <= 1", "optimizer is 0.0"),
    ],
)
def test_what_is_not_known_does_not_hold(text: str, why: str) -> None:
    """It is unmeasured, and says why."""
    steps = profile(forward=60.0, optimizer=0.0)
    (found,) = score(steps, invariants=[text]).invariants

    assert (found.outcome, found.value, found.why) == (Outcome.UNMEASURED, None, why)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "forward",
        "forward < 3",
        "forward <= x",
        "forward between 3 and",
        "a / b / c <= 1",
        "forwards <= 3",
        'time["x"] <= 3',
        "phase <= 3",
        "forward between 3 and 1",
        "forward <= 1e999",
    ],
)
def test_text_that_is_no_invariant_is_refused(text: str) -> None:
    """A typing error must not be an invariant that is never checked."""
    with pytest.raises(RecordError):
        parse_invariant(text)


def test_all_wrong_invariants_are_named() -> None:
    """Whether text or made, in one message."""
    made = Invariant(name="mine", part="speed", whole="lihgt", high=1.0)
    with pytest.raises(RecordError) as raised:
        score(profile(), invariants=["nonsense", "step >= 0", made, "warp <= 9"])

    for part in ("invariants[0]", "'nonsense' is no", "speed", "lihgt", "warp is no"):
        assert part in str(raised.value)
    assert raised.value.remedy == 'write it as "backward / forward between 1.5 and 3"'
    with pytest.raises(RecordError, match="has no bound"):
        Invariant(name="mine", part="step")


def test_a_wrong_number_does_not_hide_a_wrong_invariant() -> None:
    """Whoever mends one has heard of the other."""
    with pytest.raises(RecordError) as raised:
        score(profile(forward=-1.0), invariants=["nonsense"])

    for part in ("forward", "'nonsense'"):
        assert part in str(raised.value)
    assert "what was measured; write it as" in raised.value.remedy


def test_an_invariant_can_be_made() -> None:
    """A ratio of its own name, open on one side."""
    invariant = Invariant(name="gradients", part="backward", whole="forward", low=1.5)
    (found,) = score(
        profile(forward=30.0, backward=45.0), invariants=[invariant]
    ).invariants

    assert (found.name, found.outcome, found.value) == (
        "gradients",
        Outcome.PASSED,
        1.5,
    )
    assert {kind.value for kind in SpanKind} <= set(QUANTITIES)


def test_an_invariant_keeps_its_bounds_and_its_words() -> None:
    """Its name is its text in single spaces; a percentage is a hundredth."""
    text = "  forward /  step   between 25 % and  75% "
    (found,) = score(profile(forward=60.0), invariants=[text]).invariants

    assert found.name == "forward / step between 25 % and 75%"
    assert (found.low, found.high, found.value) == (0.25, 0.75, 0.6)
    assert found.why == ""
    (alone,) = score(profile(forward=60.0), invariants=["forward <= 61"]).invariants
    assert (alone.low, alone.high, alone.why) == (None, 61.0, "")


def test_a_ratio_that_no_float_holds_is_not_known() -> None:
    """A limit above cannot be told from one below."""
    steps = replace(profile(forward=1e-9), counters={"dram_bytes": 1e308})
    text = 'counter["dram_bytes"] / forward >= 1'
    (found,) = score(steps, invariants=[text]).invariants

    assert (found.outcome, found.value) == (Outcome.UNMEASURED, None)
    assert found.why == "no float holds the ratio"


@pytest.mark.parametrize(
    ("text", "path", "words"),
    [
        ("nonsense", "invariants", "'nonsense' is not an invariant"),
        (
            "forwards <= 3",
            "forwards <= 3",
            "forwards is not a quantity of a step; write",
        ),
        ("step / warp <= 3", "step / warp <= 3", "write one of step, data, forward, "),
    ],
)
def test_a_wrong_invariant_says_where_and_how_it_is_written(
    text: str, path: str, words: str
) -> None:
    """Its second quantity is looked at too; the remedy is an example."""
    with pytest.raises(RecordError, match=re.escape(words)) as raised:
        parse_invariant(text)

    assert raised.value.path == path
    assert raised.value.remedy == 'write it as "backward / forward between 1.5 and 3"'


def test_all_of_it_travels_as_json() -> None:
    """A card with evidence, labels, machine and invariants is read as it was written."""
    steps = replace(
        traced(30.0, 60.0, 10.0, forward=95.0),
        machine={"gpu": "a"},
        counters={"dram_bytes": 1.0},
    )
    card = score(steps, invariants=["step <= 1", "busy >= 1"], baseline=score(steps))

    assert from_text(to_text(card), MeasuredScorecard) == card
    assert all(itertools.chain(card.evidence, card.invariants, card.decisions))


# -- what holds a step back, at its borders


def test_data_beside_a_busy_device_hides_no_other_wait() -> None:
    """The next largest kind of phase is asked."""
    steps = traced(99.0, 0.5, 0.5, data=40.0, forward=24.0, h2d=31.0)

    assert score(steps).bottleneck is StepLimiter.TRANSFER


@pytest.mark.parametrize(
    ("forward", "note"),
    [
        (80.0, "no bottleneck: copies are few and the work is declared for one roof"),
        (79.0, "no bottleneck: too much of the step is in no phase"),
        (120.0, "no bottleneck: copies are few and the work is declared for one roof"),
        (121.0, "no bottleneck: the phases overlap, or one is nested in another"),
    ],
)
def test_why_no_bottleneck_is_named(forward: float, note: str) -> None:
    """At its borders the coverage explains the step still."""
    policy = MeasuredPolicy(least_coverage=0.8, most_coverage=1.2)
    card = score(profile(forward=forward), policy=policy)

    assert card.bottleneck is None
    assert any(each.startswith(note) for each in card.notes)


@pytest.mark.parametrize(
    ("forward", "named"), [(80.0, True), (80.5, False), (40.0, True), (39.5, False)]
)
def test_phases_name_a_bottleneck_from_border_to_border(
    forward: float, *, named: bool
) -> None:
    """Explaining as little, and as much, as the policy allows is enough."""
    policy = MeasuredPolicy(least_coverage=0.8, most_coverage=1.2)
    card = score(profile(forward=forward, h2d=40.0), policy=policy)

    assert card.bottleneck is (StepLimiter.TRANSFER if named else None)


def test_a_profile_without_counters_is_not_told_that_they_name_nothing() -> None:
    """Nor one without a trace that its parts do not add up; one that has is."""
    apart = "the parts of the device's trace do not add up to the step: not used"

    assert not any("counters" in each for each in score(profile(forward=99.0)).notes)
    assert apart not in score(traced(70.0, 20.0, 10.0)).notes
    assert apart in score(traced(30.0, 20.0, 10.0)).notes
    assert "no bottleneck: the profile has no phases, or no step time" in (
        score(profile()).notes
    )


def test_what_was_not_measured_of_a_step_is_told() -> None:
    """A mean alone has no noise, and no work declared has no roof."""
    alone = "only the mean of the steps is known, so its noise is unknown"
    unknown = Hardware(peak_bw_gb_s=0.0, bytes_per_token=0.0)
    bare = score(profile(forward=99.0), hardware=unknown).notes
    timed = score(replace(profile(forward=99.0), step_ms=STEPS)).notes

    assert alone in bare
    assert "no efficiency: neither roof is known" in bare
    assert alone not in timed
    assert "no efficiency: neither roof is known" not in timed


_MEAN = "only the mean of the steps is known, so its noise is unknown"
_ONE_ROOF = "no bottleneck: copies are few and the work is declared for one roof only"


@pytest.mark.parametrize(
    ("throughput", "notes"),
    [
        (
            0.0,
            (
                "no efficiency: the throughput is not above zero, so it was not measured",
            ),
        ),
        (105.0, ()),
        (
            106.0,
            (
                (
                    "no grade: more than the roof allows; "
                    "check the declared work and the peak"
                ),
            ),
        ),
    ],
)
def test_why_there_is_no_grade_is_told(
    throughput: float, notes: tuple[str, ...]
) -> None:
    """A roof that is known is not blamed for a throughput that is not."""
    steps = profile(forward=90.0, data=5.0)

    known = score(steps, throughput, policy=MeasuredPolicy(busy_fraction=2.0)).notes
    assert known == (*notes, _MEAN, _ONE_ROOF)


def test_a_step_without_a_time_has_no_trace_either() -> None:
    """Its parts have nothing that they could add up to."""
    device = DeviceTime(busy_ms=1.0, launching_ms=1.0, waiting_ms=1.0)

    assert score(StepProfile(device=device, absent=frozenset("ab"))).notes == (
        "no step time is known",
        "the parts of the device's trace do not add up to the step: not used",
        "no bottleneck: the profile has no phases, or no step time",
        "the profile does not have: a, b",
    )


@pytest.mark.parametrize(
    ("counters", "told"),
    [
        (
            {"dram_throughput_fraction": 0.3},
            (
                "a counter that decides between the limiters was not collected "
                "(memory_throughput_fraction, sm_throughput_fraction, "
                "warps_active_fraction, waves_count)"
            ),
        ),
        (
            {
                "memory_throughput_fraction": 0.2,
                "sm_throughput_fraction": 0.1,
                "warps_active_fraction": 0.0,
                "waves_count": 2.0,
            },
            "no warp was resident",
        ),
    ],
)
def test_counters_say_why_they_name_nothing(
    counters: dict[str, float], told: str
) -> None:
    """Those that are missing stand in brackets, where any are."""
    card = score(replace(profile(forward=99.0), counters=counters))

    assert card.notes[1] == f"the counters name no bottleneck: {told}"


@pytest.mark.parametrize(("forward", "explained"), [(80.0, True), (79.0, False)])
def test_phases_that_explain_too_little_are_told(
    forward: float, *, explained: bool
) -> None:
    """Also where counters named what the phases could not."""
    counters = {"dram_throughput_fraction": 0.9}
    card = score(replace(profile(forward=forward), counters=counters))
    note = "the phases do not explain the step: they named no bottleneck"

    assert card.bottleneck is StepLimiter.MEMORY_BW
    assert card.notes == ((_MEAN,) if explained else (_MEAN, note))
