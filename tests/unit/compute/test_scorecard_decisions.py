"""compute.scorecard_decisions: each kind of decision as a whole, and its borders."""

from __future__ import annotations

import math
import statistics

import pytest

from pytest_gpuperf.compute.spread import Spread, half_width, session_spread
from pytest_gpuperf.compute.stats import median_interval
from pytest_gpuperf.compute.step_bottleneck import TOLERANCES, Tolerances, decisions
from pytest_gpuperf.model.scorecard import (
    Basis,
    Bottleneck,
    Decision,
    MeasuredScorecard,
    StepTime,
    TrainingScorecard,
)
from pytest_gpuperf.model.verdict import Outcome
from unit.compute.comparing import value

LOST = "the baseline has it, this run does not"
STRADDLES = "the interval reaches over the tolerance"


def card(
    ms: float | None = None,
    rate: float | None = None,
    coverage: float | None = None,
    *,
    samples: tuple[float, ...] = (),
    gpu: str = "a",
    driver: str = "1",
) -> MeasuredScorecard:
    """Return a card that says so much of speed."""
    if samples:
        ms = statistics.median(samples)
    return MeasuredScorecard(
        unit="token",
        throughput=rate,
        step=None if ms is None else StepTime(mean_ms=ms),
        step_ms=samples,
        coverage=coverage,
        machine={"gpu": gpu, "driver": driver},
    )


def trained(ms: float, rate: float, coverage: float) -> TrainingScorecard:
    """Return a card of the other policy."""
    return TrainingScorecard(
        grade="A",
        efficiency=0.9,
        bottleneck=Bottleneck.COMPUTE,
        throughput_tok_s=rate,
        step_time_ms=ms,
        forward_backward_ratio=2.0,
        wall_coverage=coverage,
    )


def log_ratio(now: float, base: float) -> float:
    return math.log(now) - math.log(base)


def test_a_step_time_shares_its_decision_with_the_throughput() -> None:
    """Of two means: both values, the tolerance, and how many times worse it is."""
    assert decisions(card(104.0, 38.0), [card(100.0, 40.0)], TOLERANCES) == (
        Decision(
            metric="step_time_ms",
            outcome=Outcome.UNCHANGED,
            basis=Basis.MEANS,
            now=104.0,
            base=100.0,
            tolerance=0.10,
            log_ratio=log_ratio(104.0, 100.0),
            shared_by=("throughput",),
        ),
    )


def test_what_was_lost_is_unmeasured() -> None:
    """The throughput is judged by itself then: lower is worse."""
    base = card(100.0, 40.0, 0.9)

    assert decisions(card(rate=30.0), [base], TOLERANCES) == (
        Decision(
            metric="step_time_ms",
            outcome=Outcome.UNMEASURED,
            basis=Basis.NOTHING,
            base=100.0,
            why=LOST,
        ),
        Decision(
            metric="throughput",
            outcome=Outcome.REGRESSED,
            basis=Basis.MEANS,
            now=30.0,
            base=40.0,
            tolerance=0.10,
            log_ratio=log_ratio(40.0, 30.0),
        ),
        Decision(
            metric="coverage",
            outcome=Outcome.UNMEASURED,
            basis=Basis.NOTHING,
            base=0.9,
            why=LOST,
        ),
    )


def test_another_machine_leaves_the_values_beside_each_other() -> None:
    """Nothing is held against a tolerance, and what was shared stays shared."""
    why = "the baseline comes from another machine: driver 0, now 1; gpu b, now a"
    now = card(150.0, 27.0, 0.5)
    base = card(100.0, 40.0, 0.9, gpu="b", driver="0")

    assert decisions(now, [base], TOLERANCES) == (
        Decision(
            metric="step_time_ms",
            outcome=Outcome.INCOMPARABLE,
            basis=Basis.NOTHING,
            now=150.0,
            base=100.0,
            shared_by=("throughput",),
            why=why,
        ),
        Decision(
            metric="coverage",
            outcome=Outcome.INCOMPARABLE,
            basis=Basis.NOTHING,
            now=0.5,
            base=0.9,
            why=why,
        ),
    )


def test_a_step_of_other_work_is_not_compared() -> None:
    """Twice the units in a step: the rate alone says something."""
    assert decisions(card(200.0, 40.0), [card(100.0, 40.0)], TOLERANCES) == (
        Decision(
            metric="step_time_ms",
            outcome=Outcome.INCOMPARABLE,
            basis=Basis.NOTHING,
            now=200.0,
            base=100.0,
            why="a step does other work than the baseline's",
        ),
        Decision(
            metric="throughput",
            outcome=Outcome.UNCHANGED,
            basis=Basis.MEANS,
            now=40.0,
            base=40.0,
            tolerance=0.10,
            log_ratio=0.0,
        ),
    )


@pytest.mark.parametrize(
    ("rate", "basis"), [(0.5, Basis.MEANS), (0.4999, Basis.NOTHING)]
)
def test_work_may_differ_by_the_tolerance_of_means(rate: float, basis: Basis) -> None:
    """Half the units in the same time: as much less as is tolerated here."""
    found, *_ = decisions(card(1.0, rate), [card(1.0, 1.0)], Tolerances(means=1.0))

    assert (found.metric, found.basis) == ("step_time_ms", basis)


@pytest.mark.parametrize(
    ("factor", "outcome", "why"),
    [
        (1.00, Outcome.UNCHANGED, ""),
        (1.05, Outcome.INCONCLUSIVE, STRADDLES),
        (1.20, Outcome.REGRESSED, ""),
        (0.80, Outcome.IMPROVED, ""),
    ],
)
def test_samples_are_judged_by_the_ends_of_their_medians(
    factor: float, outcome: Outcome, why: str
) -> None:
    """The slowest that now may be over the fastest that the baseline may be."""
    then = (99.0, 100.0, 101.0, 100.5, 99.5, 100.2, 99.8, 100.1, 99.9, 100.0)
    now = tuple(ms * factor for ms in then)
    ours, theirs = median_interval(now), median_interval(then)
    (found,) = decisions(card(samples=now), [card(samples=then)], TOLERANCES)

    assert ours is not None
    assert theirs is not None
    assert found == Decision(
        metric="step_time_ms",
        outcome=outcome,
        basis=Basis.SAMPLES,
        now=statistics.median(now),
        base=100.0,
        tolerance=0.05,
        log_ratio=log_ratio(statistics.median(now), 100.0),
        low=log_ratio(ours[0], theirs[1]),
        high=log_ratio(ours[1], theirs[0]),
        why=why,
    )


@pytest.mark.parametrize("broken", [(0.0, 1.0), (1.0, 0.0)])
def test_an_interval_that_reaches_zero_has_no_logarithm(
    broken: tuple[float, float],
) -> None:
    """On either side: the step time is then that of means."""
    good = (1.0,) * 6
    now, base = ((first,) * 4 + good for first in broken)
    (found,) = decisions(card(samples=now), [card(samples=base)], TOLERANCES)

    assert (found.basis, found.low, found.high) == (Basis.MEANS, None, None)
    assert (found.now, found.base, found.outcome) == (1.0, 1.0, Outcome.UNCHANGED)


@pytest.mark.parametrize(
    ("ms", "outcome"),
    [
        (2.0, Outcome.UNCHANGED),
        (2.0001, Outcome.REGRESSED),
        (0.5, Outcome.UNCHANGED),
        (0.4999, Outcome.IMPROVED),
    ],
)
def test_a_change_as_large_as_the_tolerance_passes(ms: float, outcome: Outcome) -> None:
    """Twice as slow and twice as fast are equally far."""
    (found,) = decisions(card(ms), [card(1.0)], Tolerances(means=1.0))

    assert found.outcome is outcome


SESSIONS = (100.0, 101.0, 99.0, 102.0, 98.0)


def noise() -> Spread:
    """Return how much the sessions differ."""
    spread = session_spread([value(each) for each in SESSIONS])
    assert spread is not None
    return spread


@pytest.mark.parametrize(
    ("ms", "outcome"), [(98.0, Outcome.UNCHANGED), (120.0, Outcome.REGRESSED)]
)
def test_sessions_that_differ_widen_the_tolerance_of_means(
    ms: float, outcome: Outcome
) -> None:
    """To the interval of the difference of two sessions, of which one is the last."""
    older = [card(each) for each in SESSIONS]

    (found,) = decisions(card(ms), older, TOLERANCES)

    assert found.tolerance == pytest.approx(
        math.expm1(math.sqrt(2) * half_width(noise())), rel=1e-6
    )
    assert found.noise_fraction == pytest.approx(noise().fraction)
    assert (found.basis, found.outcome, found.why) == (Basis.SESSIONS, outcome, "")
    assert (found.now, found.base) == (ms, 98.0)
    assert found.log_ratio == log_ratio(ms, 98.0)


@pytest.mark.parametrize(
    ("factor", "outcome", "why"),
    [
        (1.0, Outcome.UNCHANGED, ""),
        (1.13, Outcome.INCONCLUSIVE, STRADDLES),
        (0.885, Outcome.INCONCLUSIVE, STRADDLES),
        (1.2, Outcome.REGRESSED, ""),
    ],
)
def test_sessions_that_differ_widen_the_tolerance_of_samples(
    factor: float, outcome: Outcome, why: str
) -> None:
    """It is still the ends of the interval that must be inside or outside."""
    spread = tuple(1.0 + 0.002 * n for n in range(-5, 6))
    older = [card(samples=tuple(ms * s for s in spread)) for ms in SESSIONS]
    now = card(samples=tuple(98.0 * factor * s for s in spread))

    (found,) = decisions(now, older, TOLERANCES)

    assert found.tolerance == pytest.approx(
        math.expm1(math.sqrt(2) * half_width(noise())), rel=1e-6
    )
    assert (found.basis, found.outcome, found.why) == (Basis.SAMPLES, outcome, why)


@pytest.mark.parametrize(
    ("now", "outcome"),
    [
        (0.75, Outcome.UNCHANGED),
        (0.5, Outcome.UNCHANGED),
        (1.0, Outcome.UNCHANGED),
        (0.4999, Outcome.REGRESSED),
        (1.0001, Outcome.IMPROVED),
    ],
)
def test_coverage_is_judged_by_its_difference(now: float, outcome: Outcome) -> None:
    """As large a loss as is tolerated passes."""
    policy = Tolerances(coverage=0.25)

    assert decisions(card(coverage=now), [card(coverage=0.75)], policy) == (
        Decision(
            metric="coverage",
            outcome=outcome,
            basis=Basis.MEANS,
            now=now,
            base=0.75,
            tolerance=0.25,
        ),
    )


def test_a_card_of_the_other_policy_is_a_baseline() -> None:
    """Its zeros were not measured, and its coverage is not comparable."""
    now = card(104.0, 40.0, 0.9)
    bare = decisions(now, [trained(100.0, 0.0, 0.0)], TOLERANCES)
    full = decisions(now, [trained(100.0, 41.0, 0.8)], TOLERANCES)

    endless = decisions(now, [trained(100.0, 41.0, math.inf)], TOLERANCES)

    assert [(each.metric, each.shared_by) for each in bare] == [("step_time_ms", ())]
    assert [each.metric for each in endless] == ["step_time_ms"]
    assert full == (
        Decision(
            metric="step_time_ms",
            outcome=Outcome.UNCHANGED,
            basis=Basis.MEANS,
            now=104.0,
            base=100.0,
            tolerance=0.10,
            log_ratio=log_ratio(104.0, 100.0),
            shared_by=("throughput",),
        ),
        Decision(
            metric="coverage",
            outcome=Outcome.INCOMPARABLE,
            basis=Basis.NOTHING,
            now=0.9,
            base=0.8,
            why="the baseline's was not computed from its phases",
        ),
    )
