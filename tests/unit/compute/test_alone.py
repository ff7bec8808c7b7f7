"""The rules of compute/alone: the step from the suite to alone, and what it may hide."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from pytest_gpuperf.compute.alone import (
    NO_STEP,
    Offset,
    Twice,
    common_step,
    judged_alone,
    judged_together,
    narrowed,
    own_offset,
    reference_gaps,
)
from pytest_gpuperf.compute.contrast import contrasts
from pytest_gpuperf.compute.machine import Residual
from pytest_gpuperf.compute.spread import usual_spread
from pytest_gpuperf.model.change import TimeBase
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.packed import SessionValues
from unit.compute.comparing import comparison, value

THEN = (1.0, 1.01, 0.99, 1.02, 0.98)
FIVE = (-0.02, -0.01, 0.0, 0.012, 0.03)  # logarithms of fresh processes, about one
SIZES = (0.005, 0.01, 0.02, 0.04, 0.08)
USUAL = usual_spread([(0.02**2, 4)] * 5, TimeBase.HOST).mixture(4)


def twice(
    first: float, alone: float, *, spread: float = 1.0, then: Sequence[float] = THEN
) -> Twice:
    """A test by its value in the suite, and by five processes about another value."""
    fresh = [alone * math.exp(spread * log) for log in FIVE]
    suite, again = contrasts(
        [comparison([first], then), comparison(fresh, then, fresh=True)]
    )
    return Twice(suite=suite, alone=again)


def normal(distance: float, variance: float) -> float:
    """The density of a normal value."""
    return math.exp(-distance * distance / (2 * variance)) / math.sqrt(variance)


def test_the_step_holds_no_change_of_the_test() -> None:
    """A test that got slower did so in the suite and alone."""
    assert twice(1.0, 1.2).step == pytest.approx(math.log(1.2))
    assert twice(1.5, 1.5 * 1.2).step == pytest.approx(math.log(1.2))


def test_what_all_have_in_common_is_the_median_of_tests_and_references() -> None:
    """Each shows the same drift, whatever else it is off by."""
    controls = [twice(1.0, v) for v in (1.09, 1.10, 1.11, 2.0)]
    references = [twice(1.0, v) for v in (1.08, 1.12, 1.10)]
    found = common_step([twice(1.0, 1.1)], controls, references)

    assert found.log_step == pytest.approx(math.log(1.10))
    assert not found.of_tests
    variance = twice(1.0, 1.1).variance
    noise = math.pi / 2 * (1 + math.pi / 10) * variance
    assert found.pool == pytest.approx(variance)
    assert found.variance == pytest.approx(noise / 7 + (0.3 * math.log(1.10)) ** 2)


def test_tests_that_left_the_references_say_alone_what_they_have_in_common() -> None:
    """Cold caches are no drift: the references have none."""
    controls = [twice(1.0, v) for v in (1.19, 1.20, 1.21)]
    references = [twice(1.0, v) for v in (0.99, 1.0, 1.01)]

    assert common_step([], controls, references).of_tests
    assert common_step([], controls, references).log_step == pytest.approx(
        math.log(1.2)
    )
    few = common_step([], controls[:2], references)
    assert not few.of_tests
    assert few.log_step == pytest.approx(math.log(1.01))


def test_fewer_than_three_have_nothing_in_common() -> None:
    """The median of two is one's own noise, or its own offset."""
    assert common_step([twice(1, 1.5)], [twice(1, 2)], [twice(1, 2)]).log_step == 0.0
    assert common_step([], [], []) == NO_STEP


def test_usual_sizes_are_learned_from_the_controls() -> None:
    """What none of them is off by is not usual; a far one leaves it as it was."""
    calm = [twice(1.0, 1.0, spread=0.1) for _ in range(8)]
    loose = [twice(1.0, v, spread=0.1) for v in (0.93, 1.07, 0.95, 1.06, 1.0, 1.08)]
    begin = (0.9 * 0.15, 0.9 * 0.25, 0.9 * 0.3, 0.9 * 0.2, 0.9 * 0.1)

    assert NO_STEP.weights == pytest.approx(begin)
    assert sum(common_step([], calm, []).weights) == pytest.approx(0.9)
    assert common_step([], calm, []).weights[0] > 0.3
    assert common_step([], loose, []).weights[4] > 0.4


def test_learned_weights_are_the_product_over_the_controls() -> None:
    """Of the chance that each size, or something far off, gives to its step."""
    controls = [twice(1.0, v) for v in (1.0, 1.03, 0.98, 1.4)]
    found = common_step([], controls, [])
    gaps = [control.step - found.log_step for control in controls]
    share = math.pi / 10
    noise = [(1 + share) * c.spread(found.pool) + found.variance for c in controls]
    weights = [
        start
        * math.prod(
            0.9 * normal(gap, size**2 + v) + 0.1 * normal(gap, 0.25 + v)
            for gap, v in zip(gaps, noise, strict=True)
        )
        for start, size in zip((0.15, 0.25, 0.3, 0.2, 0.1), SIZES, strict=True)
    ]

    assert found.weights == pytest.approx([0.9 * w / sum(weights) for w in weights])


def test_the_rule_is_what_it_says() -> None:
    """Each place by itself, and their mean by how well they explain the step."""
    test = twice(1.2, 1.3)
    controls = [twice(1.0, v) for v in (1.0, 1.02, 0.98)]
    common = common_step([test], controls, [])
    residual = Residual(difference=math.log(1.18), variance=0.015**2, extra=1e-5)
    own = Offset(mean=0.06, weight=0.8)

    def beyond(difference: float, **fields: float) -> float:
        return USUAL.beyond(difference, residual.variance, **fields)

    found = judged_together(
        test,
        residual,
        common,
        beyond,
        own=own,
        process_share=0.4,
        noise=0.005,
        limit=0.05,
    )
    spread = max(math.sqrt(test.variance * common.pool), 1e-6)
    share = math.pi / 10
    v = (1 + share) * spread + common.variance
    gap = test.step - common.log_step
    variances = [*(size**2 for size in SIZES), 0.25]
    prior = [*common.weights, 0.1]
    var_h = spread / own.weight
    expected = own.mean + common.ahead
    weights = [
        w * normal(expected, t + var_h) for w, t in zip(prior, variances, strict=True)
    ]
    places = [
        (
            0.95 * w / sum(weights),
            expected * t / (t + var_h),
            t * var_h / (t + var_h) + 2.5e-5,
        )
        for w, t in zip(weights, variances, strict=True)
    ]
    usual = sum(w * m for w, m, _ in places) / 0.95
    places += [(0.05 * w, 0.0, t) for w, t in zip(prior, variances, strict=True)]
    told = [w * normal(gap - m, v + t) for w, m, t in places]
    told = [w / sum(told) for w in told]
    p_value = effect = 0.0
    for w, (_, m, t) in zip(told, places, strict=True):
        part = spread / (v + t)
        z = residual.difference + part * (gap - m)
        effect += w * z
        p_value += w * beyond(
            z - 0.005, ratio=1 / 5 + 1 - 0.4 * part, floor=spread, extra=1e-5
        )
    allowed = residual.difference + gap - usual

    assert found.allowed == pytest.approx(allowed)
    assert found.effect == pytest.approx(min(effect, allowed))
    assert found.more == pytest.approx(p_value)
    assert found.gap == pytest.approx(gap)
    assert found.far == pytest.approx(told[-1])


@pytest.mark.parametrize("alone", [1.5, 1.35])
def test_a_move_of_the_suite_counts_as_often_as_an_offset_is_as_close(
    alone: float,
) -> None:
    """The mean over the sizes of an offset, for the share of tests that the suite moves."""
    test = twice(1.45, alone)
    residual = Residual(difference=math.log(1.45), variance=1e-4)

    def chance(shifted: float) -> float:
        return judged_together(
            test,
            residual,
            NO_STEP,
            lambda difference, **_: 0.0,
            own=None,
            process_share=0.4,
            noise=0.005,
            limit=0.05,
            shifted=shifted,
        ).more

    near, far = (
        residual.difference - abs(test.step),
        residual.difference + abs(test.step),
    )
    likely = sum(
        weight * (math.erf(far / size / 2**0.5) - math.erf(near / size / 2**0.5)) / 2
        for weight, size in [*zip(NO_STEP.weights, SIZES, strict=True), (0.1, 0.5)]
    )
    assert chance(0.0) == 0.0
    assert chance(0.25) == pytest.approx(0.25 * likely)
    assert 0.001 < likely < 0.03


def at_distances(test: Twice, in_suite: float, alone: float) -> Twice:
    """The same test, on cores that are off by so much."""
    suite, again = (
        replace(
            contrast,
            comparison=replace(
                contrast.comparison, core_distance=distance, core_precision=25.0
            ),
        )
        for contrast, distance in ((test.suite, in_suite), (test.alone, alone))
    )
    return Twice(suite=suite, alone=again)


@pytest.mark.parametrize(
    ("in_suite", "alone"),
    [(0.0, 0.0), (0.3, 0.0), (0.0, 0.3), (0.3, 0.3), (0.3, -0.2), (0.1, 0.4)],
)
def test_an_error_of_the_core_counts_as_far_as_it_is_left(
    in_suite: float, alone: float
) -> None:
    """Suite and fresh processes share it, and are weighed so that the least is left."""
    test = at_distances(twice(1.6, 1.6), in_suite, alone)
    u, variance = 1 / 25.0, (in_suite / 5.0) ** 2
    residual = Residual(difference=math.log(1.6), variance=1e-4, extra=variance + 1e-5)
    found = judged_together(
        test,
        residual,
        NO_STEP,
        lambda difference, **_: 0.0,
        own=Offset(mean=0.0, weight=1e9),
        process_share=1.0,
        noise=0.005,
        limit=0.05,
    )
    spread, share = test.spread(NO_STEP.pool), math.pi / 10
    offset = 0.005**2

    def whole(weight: float) -> float:
        processes = (1 - weight) ** 2 * spread + weight**2 * (share * spread + offset)
        return processes + u * (in_suite + weight * (alone - in_suite)) ** 2

    least = min(whole(weight / 1000) for weight in range(1001))
    left = (found.ratio - 1 / 5) * spread + found.extra - 1e-5
    assert left == pytest.approx(least, rel=1e-3)


def test_a_part_is_judged_by_its_stored_offset() -> None:
    """The mean over what it may be alone; without a stored value 1 in 10 is far off."""
    test = twice(1.3, 1.3).alone
    residual = Residual(difference=math.log(1.3), variance=0.015**2)

    def beyond(difference: float, **fields: float) -> float:
        return USUAL.beyond(difference, residual.variance, **fields)

    def judged(own: Offset | None) -> float:
        return judged_alone(
            test, residual, beyond, own=own, pool=1e-4, ratio=0.9, noise=0.005
        ).more

    assert judged(None) == pytest.approx(0.1 * 0.3, rel=0.2)
    assert judged(Offset(mean=0.0, weight=0.5)) < 1e-3
    assert judged(Offset(mean=math.log(1.3), weight=0.5)) > 0.3


def test_an_offset_is_the_mean_of_the_sessions_that_know_it() -> None:
    """Less what the references were off by; a suspect's value in the suite was high."""
    now = comparison([1.0], (1.0, 1.0, 1.0))
    oldest, middle, newest = now.stored
    sessions = (
        replace(oldest, alone_values=(1.2,)),
        replace(middle, alone_values=(1.1, 1.1, 1.1), suspected=True),
        newest,
    )
    (test,) = contrasts([replace(now, stored=SessionValues.of(sessions))])
    plain, suspect = 1 / 2, 1 / (1 + math.pi / 6 + 4)
    found = own_offset(test, {"s0": 0.05})

    assert found is not None
    assert found.weight == pytest.approx(plain + suspect)
    mean = plain * (math.log(1.2) - 0.05) + suspect * math.log(1.1)
    assert found.mean == pytest.approx(mean / found.weight)
    assert own_offset(contrasts([now])[0]) is None


def test_what_references_were_off_by_is_the_median_of_a_session() -> None:
    """That was the machine, between the suite and the process alone."""
    several = []
    for alone in (1.1, 1.2, 1.9):
        now = comparison([1.0], (1.0, 1.0), fresh=True)
        known = replace(now.stored[0], alone_values=(alone,))
        (test,) = contrasts(
            [replace(now, stored=SessionValues.of((known, now.stored[1])))]
        )
        several.append(Twice(suite=test, alone=test))

    assert reference_gaps(several) == {"s0": pytest.approx(math.log(1.2))}


def test_a_value_alone_that_has_no_logarithm_tells_nothing() -> None:
    """On a log scale 0 is no offset."""
    now = comparison([1.0], (1.0, 1.0))
    known = replace(now.stored[0], alone_values=(0.0,))
    (test,) = contrasts([replace(now, stored=SessionValues.of((known, value(1.0))))])

    assert own_offset(test) is None


@pytest.mark.parametrize(
    ("count", "share"), [(1, 1.0), (2, math.pi / 4), (5, math.pi / 10)]
)
def test_a_median_of_processes_is_narrower_than_one(count: int, share: float) -> None:
    """By pi / 2 less than their mean; of one it is that one."""
    assert narrowed(count) == pytest.approx(share)


def test_one_process_far_off_makes_the_suite_doubtful() -> None:
    """Where nothing explains the step, the suite's value is one process like it."""
    test = twice(1.25, 2.0)
    residual = Residual(difference=math.log(1.25), variance=0.015**2)

    def chance(outlier: float) -> float:
        controls = [twice(1.0, 1.0) for _ in range(3)]
        common = replace(common_step([test], controls, []), doubt_more=outlier)
        return judged_together(
            twice(1.25, 1.5),
            residual,
            common,
            lambda z, **fields: USUAL.beyond(z, residual.variance, **fields),
            own=None,
            process_share=0.4,
            noise=0.005,
            limit=0.05,
        ).more

    assert chance(1.0) < 0.01
    assert chance(12.0) > 0.3
