"""compute.scorecard: a measured loop as the profile of a scorecard."""

from __future__ import annotations

import pytest

from pytest_gpuperf.compute.scorecard import any_scorecard, scorecard_of, step_profile
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.scorecard import (
    Bottleneck,
    Hardware,
    MeasuredScorecard,
    TrainingScorecard,
)
from pytest_gpuperf.model.steps import (
    LayerTimes,
    OperationTimes,
    PhaseTimes,
    SpanKind,
    StepSummary,
)


def phase(
    name: str, kind: SpanKind, own_s: float, total_s: float | None = None
) -> PhaseTimes:
    whole_s = own_s if total_s is None else total_s
    return PhaseTimes(
        name=name,
        kind=kind,
        own_s=own_s,
        total_s=whole_s,
        p50_s=whole_s,
        p95_s=whole_s,
        calls_count=10,
    )


LOOP = StepSummary(
    unit="token",
    units=100.0,
    step_count=11,
    counted_count=10,
    warmup_count=1,
    void_count=0,
    step_s=0.9,
    period_s=1.0,
    wait_s=0.1,
    data_was_recorded=True,
    covered_fraction=0.95,
    phases=(
        phase("data", SpanKind.DATA, 0.1),
        phase("forward", SpanKind.FORWARD, 0.3),
        phase("backward", SpanKind.BACKWARD, 0.4, 0.5),
        phase("to the GPU", SpanKind.TRANSFER, 0.1),
    ),
    layers=(LayerTimes(layer=0, forward_s=0.3, backward_s=0.4),),
    operations=(
        OperationTimes(name="gemm", own_s=0.2, layer=0),
        OperationTimes(name="print", own_s=0.1),
    ),
)
# 1,000 tokens a second are what the bandwidth allows
HARDWARE = Hardware(peak_bw_gb_s=1.0, bytes_per_token=1e6)


def test_a_profile_is_of_one_mean_step() -> None:
    """Milliseconds and percent of the period, each phase without those inside it."""
    profile = step_profile(LOOP, periods_s=(0.9, 1.1))

    assert profile.steps == 10
    assert profile.avg_step_ms == pytest.approx(1000)
    assert profile.total_ms == pytest.approx(10_000)
    assert profile.step_ms == pytest.approx((900, 1100))
    assert profile.wall_coverage == pytest.approx(0.95)
    backward = profile.phases["backward"]
    assert (backward.total_ms, backward.pct) == pytest.approx((400, 40))
    assert (backward.avg_ms, backward.exclusive_ms) == pytest.approx((500, 400))
    assert backward.kind is SpanKind.BACKWARD


def test_a_period_need_not_be_a_second() -> None:
    """Rates are units over it, percentages of it, totals it times the steps."""
    slow = replace(LOOP, period_s=4.0, units=100.0)
    profile = step_profile(slow)

    assert profile.phases["backward"].pct == pytest.approx(10)
    assert profile.total_ms == pytest.approx(40_000)
    assert scorecard_of(slow, HARDWARE).throughput_tok_s == pytest.approx(25)
    bare = any_scorecard(replace(slow, unit="image"), profile, None)
    assert isinstance(bare, MeasuredScorecard)
    assert (bare.throughput, bare.unit) == (25, "image")


def test_a_loop_is_compared_with_an_older_scorecard() -> None:
    """What got worse is told."""
    base = scorecard_of(LOOP, HARDWARE)
    worse = scorecard_of(replace(LOOP, units=50.0), HARDWARE, baseline=base)

    assert base.regressions == ()
    assert "throughput_tok_s" in {each.metric for each in worse.regressions}


def test_shares_add_up_to_what_was_recorded() -> None:
    """No time is in two phases."""
    shares = [each.pct for each in step_profile(LOOP).phases.values()]

    assert sum(shares) == pytest.approx(90)


def test_a_scorecard_sees_a_copy_whatever_it_is_called() -> None:
    """It looks for h2d and d2h in names; a phase of that kind has them there."""
    profile = step_profile(LOOP)

    assert "to the GPU (h2d/d2h)" in profile.phases
    assert scorecard_of(LOOP, HARDWARE).transfer_fraction == pytest.approx(0.1)
    known = replace(LOOP, phases=(phase("h2d", SpanKind.TRANSFER, 0.4),))
    assert list(step_profile(known).phases) == ["h2d"]


def test_time_between_steps_is_explained_time() -> None:
    """Waiting for data is not an overhead of launches, recorded or not."""
    unrecorded = replace(LOOP, data_was_recorded=False, phases=LOOP.phases[1:])

    between = step_profile(unrecorded).phases["between steps"]
    assert between.kind is SpanKind.DATA
    assert between.total_ms == pytest.approx(100)
    assert between.exclusive_ms == pytest.approx(100)
    back_to_back = replace(unrecorded, wait_s=0.0)
    assert "between steps" not in step_profile(back_to_back).phases
    assert "between steps" not in step_profile(LOOP).phases
    both = (scorecard_of(each, HARDWARE).launch_fraction for each in (LOOP, unrecorded))
    assert list(both) == pytest.approx([0.1, 0.1])


def test_what_runs_beside_the_steps_is_no_part_of_them() -> None:
    """Its time is not the steps'."""
    beside = replace(phase("prefetch", SpanKind.DATA, 0.8), beside=True)
    profile = step_profile(replace(LOOP, phases=(*LOOP.phases, beside)))

    assert "prefetch" not in profile.phases


def test_layers_bring_their_own_operations() -> None:
    """One that was recorded outside of layers belongs to none."""
    (layer,) = step_profile(LOOP).per_layer

    assert layer.layer == 0
    assert (layer.fwd_ms, layer.bwd_ms) == pytest.approx((300, 400))
    assert dict(layer.ops) == {"gemm": pytest.approx(200)}


def test_what_was_not_recorded_is_absent() -> None:
    """A zero that nobody measured is told from one that somebody did."""
    bare = replace(LOOP, phases=(), layers=(), operations=(), covered_fraction=None)

    assert step_profile(LOOP).absent == {"gemm_pct"}
    assert step_profile(bare).wall_coverage == 0.0
    assert step_profile(bare).absent == {
        "gemm_pct",
        "per_layer",
        "phases",
        "wall_coverage",
    }


@pytest.mark.parametrize(
    ("units", "grade"), [(600.0, "A"), (599.0, "B"), (100.0, "D"), (99.0, "F")]
)
def test_the_grade_is_of_throughput_over_what_the_bandwidth_allows(
    units: float, grade: str
) -> None:
    """Units of a period, over the peak."""
    scorecard = scorecard_of(replace(LOOP, units=units), HARDWARE)

    assert scorecard.grade == grade
    assert scorecard.efficiency == pytest.approx(units / 1000)
    assert scorecard.throughput_tok_s == pytest.approx(units)


def test_without_hardware_there_is_a_scorecard_without_a_grade() -> None:
    """What needs no hardware is there all the same."""
    profile = step_profile(LOOP, periods_s=(1.0,) * 10)
    card = any_scorecard(LOOP, profile, None)

    assert isinstance(card, MeasuredScorecard)
    assert card.grade is None
    assert card.throughput == pytest.approx(100)
    assert card.coverage == pytest.approx(0.9)


def test_with_hardware_the_training_scorecard_decides() -> None:
    """Its bottleneck is the one that others of its kind name."""
    card = any_scorecard(LOOP, step_profile(LOOP), HARDWARE)

    assert isinstance(card, TrainingScorecard)
    assert card.bottleneck is Bottleneck.MEMORY_BW
