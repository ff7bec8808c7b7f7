"""Rules of compute.measured_scorecard: what is not known is not zero."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.compute.advice import MEASURED_RULES, Rule, recommendations
from pytest_gpuperf.compute.measured_scorecard import (
    MEASURED,
    MeasuredPolicy,
    measured_scorecard,
)
from pytest_gpuperf.compute.scorecard import training_scorecard
from pytest_gpuperf.compute.step_bottleneck import Tolerances
from pytest_gpuperf.errors import RecordError
from pytest_gpuperf.model.codec import from_text, to_text
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.roofline import Grade
from pytest_gpuperf.model.scorecard import (
    Basis,
    Decision,
    Hardware,
    MeasuredScorecard,
    PhaseShare,
    StepLimiter,
)
from pytest_gpuperf.model.steps import Layer, Phase, SpanKind, StepProfile
from pytest_gpuperf.model.verdict import Outcome

MEMORY = Hardware(peak_bw_gb_s=1.0, bytes_per_token=1e7)  # 100 tokens/s
BOTH = replace(MEMORY, peak_flop_per_s=1e12, flop_per_token=2e10)  # 50 tokens/s
STEPS = (99.0, 100.0, 101.0, 100.5, 99.5, 100.2, 99.8, 100.1, 99.9, 100.0)
TIMES = st.floats(min_value=0, max_value=1e6)


def profile(step_ms: tuple[float, ...] = (), **phases: float) -> StepProfile:
    """Return a profile whose phases take so much of a step of 100 ms."""
    return StepProfile(
        avg_step_ms=100.0,
        step_ms=step_ms,
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


def test_an_efficiency_above_the_roof_is_shown_and_not_graded() -> None:
    """It is never cut: the declared work or the peak is wrong."""
    card = score(profile(forward=99.0), 130.0)

    assert card.efficiency == 1.3
    assert card.grade is None
    assert "no grade: more than the roof allows" in " ".join(card.notes)
    assert score(profile(), 105.0).grade is Grade.A


@pytest.mark.parametrize(
    ("hardware", "throughput", "bound", "efficiency", "grade"),
    [
        (MEMORY, 85.0, None, 0.85, Grade.A),
        (MEMORY, 84.0, None, 0.84, Grade.B),
        (BOTH, 35.0, "compute", 0.7, Grade.A),
        (BOTH, 7.0, "compute", 0.14, Grade.F),
        (replace(BOTH, flop_per_token=1e9), 70.0, "memory", 0.7, Grade.B),
    ],
)
def test_the_lower_roof_gives_efficiency_and_bands(
    hardware: Hardware,
    throughput: float,
    bound: str | None,
    efficiency: float,
    grade: Grade,
) -> None:
    """Bands differ by roof; a single roof leaves the bound unsaid."""
    card = score(profile(), throughput, hardware=hardware)

    assert (card.bound, card.grade) == (bound, grade)
    assert card.efficiency == pytest.approx(efficiency)


def test_both_fractions_are_reported() -> None:
    """Bandwidth use is not taken for the use of the arithmetic."""
    card = score(profile(), 20.0, hardware=BOTH)

    assert (card.bandwidth_fraction, card.compute_fraction) == (0.2, 0.4)
    assert score(profile(), 20.0).compute_fraction is None


@pytest.mark.parametrize(
    ("hardware", "throughput"),
    [
        (Hardware(peak_bw_gb_s=0.0, bytes_per_token=1.0), 5.0),
        (Hardware(peak_bw_gb_s=1.0, bytes_per_token=0.0), 5.0),
        (Hardware(peak_bw_gb_s=-1.0, bytes_per_token=-1.0), 5.0),
        (MEMORY, 0.0),
        (MEMORY, -3.0),
    ],
)
def test_what_is_not_above_zero_was_not_measured(
    hardware: Hardware, throughput: float
) -> None:
    """No efficiency is not an F."""
    card = score(profile(), throughput, hardware=hardware)

    assert (card.efficiency, card.grade, card.recommendations) == (None, None, ())
    assert any("no efficiency" in note for note in card.notes)


def test_less_than_one_a_second_is_a_throughput() -> None:
    """Of images or of sequences it often is."""
    card = score(profile(), 0.5)

    assert (card.throughput, card.unit) == (0.5, "token")
    assert card.efficiency == pytest.approx(0.005)


@pytest.mark.parametrize(
    ("throughput", "bandwidth"), [(5e-324, 1.0), (1e300, 1e-300), (1.0, 1e300)]
)
def test_an_efficiency_that_no_float_holds_is_not_known(
    throughput: float, bandwidth: float
) -> None:
    """Neither zero nor infinity is a share that was reached."""
    hardware = Hardware(peak_bw_gb_s=bandwidth, bytes_per_token=1e7)
    card = score(profile(), throughput, hardware=hardware)

    assert (card.efficiency, card.grade) == (None, None)


def test_steps_shorter_than_a_millisecond_have_times() -> None:
    """Of samples, of a mean alone, and of operations; all of it may be explained."""
    layer = Layer(layer=0, fwd_ms=0.25, bwd_ms=0.25, ops={"a": 0.125, "b": 0.375})
    phases = {"forward": Phase(total_ms=1.0, pct=100.0, avg_ms=0.5)}
    steps = StepProfile(avg_step_ms=0.5, phases=phases, per_layer=(layer,))
    card = score(steps)
    timed = score(replace(steps, step_ms=(0.5,) * 3))

    assert card.step is not None
    assert timed.step is not None
    assert card.step.mean_ms == timed.step.mean_ms == 0.5
    assert [(share.kind, share.ms) for share in card.shares] == [
        ("forward", 0.5),
        ("unattributed", 0.0),
    ]
    assert [each.fraction for each in card.operations] == [0.75, 0.25]


def test_the_longest_step_takes_thirty_thousand_years() -> None:
    """Only what is longer is not a time of one."""
    longest = score(replace(profile(), avg_step_ms=1e15)).step

    assert longest is not None
    assert longest.mean_ms == 1e15


def test_kinds_count_and_not_parts_of_names() -> None:
    """A kind that was given counts, else that of a well-known whole name."""
    steps = profile(path2d2htable=40.0, h2d=10.0, forward=30.0, memcpyHtoD=15.0)
    known = {
        **steps.phases,
        "memcpyHtoD": replace(steps.phases["memcpyHtoD"], kind=SpanKind.TRANSFER),
    }
    card = score(replace(steps, phases=known))

    assert [(share.kind, share.ms) for share in card.shares] == [
        ("other", 40.0),
        ("forward", 30.0),
        ("transfer", 25.0),
        ("unattributed", 5.0),
    ]


def test_nested_phases_count_once() -> None:
    """Exclusive time is without the phases inside."""
    steps = profile(forward=60.0, h2d=35.0)
    outer = replace(steps.phases["forward"], exclusive_ms=25.0)
    card = score(replace(steps, phases={**steps.phases, "forward": outer}))

    assert card.coverage == pytest.approx(0.6)
    assert card.shares[0].kind == "unattributed"


@pytest.mark.parametrize(
    ("kind", "share", "limiter"),
    [
        (SpanKind.TRANSFER, 30.5, StepLimiter.TRANSFER),
        (SpanKind.COMMUNICATION, 30.5, StepLimiter.COMMUNICATION),
        (SpanKind.DATA, 30.5, StepLimiter.DATA),
        (SpanKind.TRANSFER, 30.0, None),
        (SpanKind.OPTIMIZER, 90.0, None),
    ],
)
def test_waiting_is_the_bottleneck_above_its_share(
    kind: SpanKind, share: float, limiter: StepLimiter | None
) -> None:
    """What computes is not a waiting; at its limit a share is not named."""
    steps = profile(one=share, two=95.0 - share)
    one = replace(steps.phases["one"], kind=kind)
    card = score(replace(steps, phases={**steps.phases, "one": one}))

    assert card.bottleneck is limiter


def test_the_larger_waiting_is_named() -> None:
    """Not the first in a fixed order."""
    assert score(profile(h2d=31.0, data=60.0)).bottleneck is StepLimiter.DATA
    assert score(profile(h2d=60.0, data=31.0)).bottleneck is StepLimiter.TRANSFER


@pytest.mark.parametrize(
    ("steps", "note"),
    [
        (profile(), "the profile has no phases"),
        (replace(profile(h2d=90.0), avg_step_ms=0.0), "or no step time"),
        (profile(h2d=79.0), "too much of the step is in no phase"),
        (profile(h2d=60.0, forward=50.0), "the phases overlap"),
    ],
)
def test_a_bottleneck_needs_phases_that_explain_the_step(
    steps: StepProfile, note: str
) -> None:
    """No data is not a launch overhead, and time counted twice is not evidence."""
    card = score(steps)

    assert card.bottleneck is None
    assert any(note in each for each in card.notes)


def test_a_bottleneck_follows_the_roof() -> None:
    """Of two known roofs the lower; of one only where it is nearly reached."""
    steps = profile(forward=95.0)

    assert score(steps, 20.0, hardware=BOTH).bottleneck is StepLimiter.COMPUTE
    assert score(steps, 60.0).bottleneck is StepLimiter.MEMORY_BW
    assert score(steps, 59.0).bottleneck is None
    assert "declared for one roof only" in score(steps, 59.0).notes[-1]


def test_a_step_is_told_with_its_spread() -> None:
    """Median, interval and tail; of a mean nothing but the mean."""
    step = score(profile(STEPS)).step
    bare = score(profile()).step

    assert step is not None
    assert bare is not None
    assert (step.count, step.median_ms) == (10, 100.0)
    assert step.low_ms is not None
    assert step.high_ms is not None
    assert step.low_ms < 100.0 < step.high_ms <= 101.0
    assert step.p95_ms == pytest.approx(100.775)
    assert (bare.mean_ms, bare.count, bare.median_ms) == (100.0, 0, None)
    assert score(replace(profile(), avg_step_ms=0.0)).step is None
    assert score(replace(profile(), step_ms=(0.0,))).step is None


def test_ratios_are_of_sums_with_their_spread() -> None:
    """A layer that takes no time does not weigh as much as a large one."""
    layers = (
        Layer(layer=0, fwd_ms=1.0, bwd_ms=4.0),
        Layer(layer=1, fwd_ms=9.0, bwd_ms=9.0),
        Layer(layer=2, fwd_ms=0.0, bwd_ms=7.0),
    )
    card = score(replace(profile(), per_layer=layers))

    assert card.backward_forward_ratio == 2.0
    assert (card.layer_ratio_low, card.layer_ratio_median, card.layer_ratio_high) == (
        1.0,
        2.5,
        4.0,
    )
    assert [each.ratio for each in card.layers] == [4.0, 1.0, None]
    assert [(each.layer, each.fwd_ms, each.bwd_ms) for each in card.layers] == [
        (0, 1.0, 4.0),
        (1, 9.0, 9.0),
        (2, 0.0, 7.0),
    ]


def test_all_operations_are_kept_in_one_order() -> None:
    """Longest first, then by name, in the layer as over all of them."""
    ops = {f"op{n:02}": 1.0 for n in reversed(range(20))} | {"z": 2.0}
    card = score(
        replace(profile(), per_layer=(Layer(layer=0, fwd_ms=1.0, bwd_ms=1.0, ops=ops),))
    )

    assert len(card.operations) == 21
    assert [each.name for each in card.operations[:3]] == ["z", "op00", "op01"]
    assert math.fsum(each.fraction or 0 for each in card.operations) == pytest.approx(1)
    assert (card.layers[0].top_op, card.layers[0].top_op_fraction) == ("z", 2 / 22)


def test_operations_without_time_have_no_share() -> None:
    """Zero over zero is not known."""
    layer = Layer(layer=0, fwd_ms=1.0, bwd_ms=1.0, ops={"a": 0.0})
    card = score(replace(profile(), per_layer=(layer,)))

    assert card.operations[0].fraction is None
    assert card.layers[0].top_op_fraction is None


@pytest.mark.parametrize("wrong", [-1.0, 1e16])
def test_times_that_no_step_takes_are_refused(wrong: float) -> None:
    """All of them are named at once."""
    layer = Layer(layer=0, fwd_ms=wrong, bwd_ms=wrong, ops={"a": wrong})
    steps = replace(profile((wrong,), h2d=wrong), avg_step_ms=wrong, per_layer=(layer,))
    with pytest.raises(RecordError) as raised:
        score(steps, math.nan)

    for path in (
        "throughput",
        "avg_step_ms",
        "step_ms[0]",
        "phases.h2d",
        "per_layer[0].fwd_ms",
        "per_layer[0].bwd_ms",
        "per_layer[0].ops.a",
    ):
        assert f"{path}: " in raised.value.message
    assert raised.value.remedy == "give what was measured"


def test_missing_fields_are_named() -> None:
    """Zero by default is told from a zero that was measured."""
    steps = replace(profile(), absent=frozenset({"wall_coverage", "per_layer"}))

    assert score(steps).notes[-1] == (
        "the profile does not have: per_layer, wall_coverage"
    )


# -- against a baseline


def one(card: MeasuredScorecard, metric: str = "step_time_ms") -> Decision:
    """Return the decision on one metric."""
    return next(each for each in card.decisions if each.metric == metric)


def samples(factor: float) -> StepProfile:
    """Return a profile whose steps take so much longer."""
    return profile(tuple(ms * factor for ms in STEPS), forward=90.0)


@pytest.mark.parametrize(
    ("factor", "outcome"),
    [
        (1.0, Outcome.UNCHANGED),
        (1.02, Outcome.UNCHANGED),
        (1.05, Outcome.INCONCLUSIVE),
        (1.1, Outcome.REGRESSED),
        (0.9, Outcome.IMPROVED),
    ],
)
def test_samples_decide_by_their_interval(factor: float, outcome: Outcome) -> None:
    """An interval that reaches over the tolerance decides nothing."""
    base = score(samples(1.0), 40.0)
    found = one(score(samples(factor), 40.0 / factor, baseline=base))

    assert (found.outcome, found.basis) == (outcome, Basis.SAMPLES)
    assert found.shared_by == ("throughput",)
    assert found.low is not None
    assert found.high is not None
    assert found.low < (found.log_ratio or 0.0) + 1e-12 < found.high + 2e-12
    assert bool(found.why) == (outcome is Outcome.INCONCLUSIVE)


def test_one_quantity_gets_one_decision() -> None:
    """A slower step is a lower throughput: it is not counted twice."""
    base = score(samples(1.0), 40.0)
    card = score(samples(1.3), 40.0 / 1.3, baseline=base)

    assert [each.metric for each in card.decisions] == ["step_time_ms", "coverage"]


@pytest.mark.parametrize(
    ("now", "outcome"),
    [
        (1.099 * 50, Outcome.UNCHANGED),
        (1.11 * 50, Outcome.REGRESSED),
        (50 / 1.099, Outcome.UNCHANGED),
        (50 / 1.11, Outcome.IMPROVED),
    ],
)
def test_single_numbers_decide_by_a_wider_tolerance(
    now: float, outcome: Outcome
) -> None:
    """Alike for more and for less: the log ratio is judged."""
    base = score(replace(profile(), avg_step_ms=50.0), 40.0)
    card = score(replace(profile(), avg_step_ms=now), 40.0 * 50.0 / now, baseline=base)

    assert (one(card).outcome, one(card).basis) == (outcome, Basis.MEANS)


def test_steps_of_other_work_are_not_compared() -> None:
    """Twice the batch takes longer and is not slower."""
    base = score(profile(), 40.0)
    card = score(replace(profile(), avg_step_ms=200.0), 41.0, baseline=base)

    assert one(card).outcome is Outcome.INCOMPARABLE
    assert one(card, "throughput").outcome is Outcome.UNCHANGED


def test_what_the_baseline_has_must_not_get_lost() -> None:
    """A quantity that is gone is unmeasured, never passed over."""
    base = score(profile(forward=90.0), 40.0)
    card = score(replace(profile(), avg_step_ms=0.0), 0.0, baseline=base)

    assert {each.metric: each.outcome for each in card.decisions} == {
        "step_time_ms": Outcome.UNMEASURED,
        "throughput": Outcome.UNMEASURED,
        "coverage": Outcome.UNMEASURED,
    }


def test_what_the_baseline_lacks_is_not_judged() -> None:
    """There is nothing to compare with."""
    base = score(replace(profile(), avg_step_ms=0.0), 0.0)

    assert score(profile(), baseline=base).decisions == ()


@pytest.mark.parametrize(
    ("now", "outcome"),
    [
        (90.0, Outcome.UNCHANGED),
        (86.0, Outcome.UNCHANGED),
        (80.0, Outcome.REGRESSED),
        (99.0, Outcome.IMPROVED),
    ],
)
def test_coverage_is_computed_and_compared(now: float, outcome: Outcome) -> None:
    """From the phases, whatever the file says of it."""
    base = score(profile(forward=90.0))
    card = score(replace(profile(forward=now), wall_coverage=0.1), baseline=base)

    assert one(card, "coverage").outcome is outcome


def test_a_scorecard_of_others_can_be_the_baseline() -> None:
    """Its single numbers are compared; a coverage that it was told is not."""
    steps = replace(profile(forward=90.0), wall_coverage=0.9)
    base = training_scorecard(steps, throughput=40.0, hardware=MEMORY)
    card = score(replace(samples(1.2), wall_coverage=0.9), 40.0 / 1.2, baseline=base)

    assert (one(card).outcome, one(card).basis) == (Outcome.REGRESSED, Basis.MEANS)
    assert one(card, "coverage").outcome is Outcome.INCOMPARABLE


@given(
    now=st.lists(TIMES.filter(bool), min_size=8, max_size=12),
    base=st.lists(TIMES.filter(bool), min_size=8, max_size=12),
)
def test_swapped_sides_turn_the_decision(now: list[float], base: list[float]) -> None:
    """What regressed one way improved the other."""
    turned = {
        Outcome.REGRESSED: Outcome.IMPROVED,
        Outcome.IMPROVED: Outcome.REGRESSED,
    }
    mine = score(replace(profile(), step_ms=tuple(now)), 0.0)
    other = score(replace(profile(), step_ms=tuple(base)), 0.0)
    there = one(score(replace(profile(), step_ms=tuple(now)), 0.0, baseline=other))
    back = one(score(replace(profile(), step_ms=tuple(base)), 0.0, baseline=mine))

    assert back.outcome is turned.get(there.outcome, there.outcome)
    assert (back.low, back.high) == (-(there.high or 0), -(there.low or 0))


def test_the_lines_can_be_drawn_elsewhere() -> None:
    """The policy is a record."""
    policy = MeasuredPolicy(waiting_fraction=0.1, tolerances=Tolerances(means=0.5))
    base = score(profile())
    card = score(
        replace(profile(h2d=85.0), avg_step_ms=130.0),
        40.0 / 1.3,
        baseline=base,
        policy=replace(policy, least_coverage=0.5),
    )

    assert card.bottleneck is StepLimiter.TRANSFER
    assert one(card).outcome is Outcome.UNCHANGED
    assert MEASURED.waiting_fraction == 0.3


def test_a_measured_scorecard_travels_as_json() -> None:
    """It is what a later run is compared with."""
    base = score(samples(1.0))
    card = score(samples(1.3), 30.0, hardware=BOTH, baseline=base, unit="image")

    assert from_text(to_text(card), MeasuredScorecard) == card
    assert card.unit == "image"


@pytest.mark.parametrize(
    ("phases", "rules"),
    [
        ({"h2d": 60.0, "forward": 38.0}, ["slow-transfer"]),
        ({"data": 60.0, "forward": 38.0}, ["slow-data"]),
        ({"allreduce": 60.0, "forward": 38.0}, ["slow-communication"]),
        ({"forward": 98.0}, ["slow-compute"]),
        ({"forward": 70.0}, ["unexplained-time"]),
    ],
)
def test_advice_follows_the_bottleneck(
    phases: dict[str, float], rules: list[str]
) -> None:
    """Of a grade of C or worse; a step that nobody explains gets a timeline."""
    bad = score(profile((), **phases), 10.0, hardware=BOTH)
    fair = score(profile((), **phases), 25.0, hardware=BOTH)
    good = score(profile((), **phases), 45.0, hardware=BOTH)

    assert [each.rule for each in bad.recommendations] == rules
    assert fair.grade is Grade.C
    assert [each.rule for each in fair.recommendations] == rules
    assert good.recommendations == ()


def test_a_rule_may_ask_the_profile() -> None:
    """It is given both."""
    rule: Rule[MeasuredScorecard] = Rule(
        id="few-steps",
        condition="fewer than ten steps",
        fires=lambda _, steps: steps.steps < 10,
        evidence=("efficiency",),
        text="Profile more steps.",
    )
    few, many = (replace(profile(), steps=count) for count in (3, 10))

    assert [e.rule for e in score(few, rules=(rule,)).recommendations] == ["few-steps"]
    assert score(many, rules=(rule,)).recommendations == ()


@pytest.mark.parametrize(("share", "fires"), [(0.20, False), (0.21, True)])
def test_a_timeline_is_advised_above_a_share(share: float, *, fires: bool) -> None:
    """Not at 20 % of the step without a phase, but above; a grade must be known."""
    steps = profile((), forward=99.0)
    shares = (PhaseShare(kind="unattributed", ms=1.0, fraction=share),)
    card = replace(score(steps, 10.0), shares=shares)
    advice = recommendations(card, steps, rules=MEASURED_RULES)
    unknown = recommendations(replace(card, grade=None), steps, rules=MEASURED_RULES)

    assert ("unexplained-time" in {each.rule for each in advice}) is fires
    assert unknown == ()
