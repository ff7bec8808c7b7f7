"""The rules of compute/stats."""

from __future__ import annotations

import math
import random
import statistics
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.compute.stats import (
    change_point,
    half_width_fraction,
    mean,
    median,
    median_interval,
    normal_quantile,
    order_rank,
    quantile,
    relative_change,
    samples_for_interval,
)

numbers = st.floats(-1e12, 1e12)
samples = st.lists(numbers, min_size=1, max_size=60)


def _hold(count: int, rank: int) -> float:
    """The exact probability that the interval of a rank holds the median."""
    fewer: int = sum(math.comb(count, k) for k in range(rank))
    return 1.0 - 2 * fewer / float(2**count)


@given(samples)
def test_median_is_the_standard_librarys(values: list[float]) -> None:
    """The median is the middle value, or the mean of the two in the middle."""
    assert median(values) == pytest.approx(statistics.median(values), rel=1e-12)


def test_median_of_huge_values_does_not_overflow() -> None:
    """The middle of two finite numbers is finite."""
    assert median([1.7e308, 1.7e308]) == 1.7e308


finite = st.floats(allow_nan=False, allow_infinity=False)


@given(st.lists(finite, min_size=1, max_size=9))
def test_a_mean_lies_among_its_values(values: list[float]) -> None:
    """Also of values whose sum no float holds."""
    slack = 1e-15 * max(map(abs, values))

    assert min(values) - slack <= mean(values) <= max(values) + slack
    assert mean([1.7e308] * 3) == 1.7e308
    assert mean([1.7e308, 1.7e308, -1.7e308]) == pytest.approx(1.7e308 / 3)


@given(finite, finite.filter(bool))
def test_a_relative_change_is_finite_and_has_the_sign_of_the_difference(
    value: float, reference: float
) -> None:
    """Whatever it is relative to; a reference below 0 has a size, too."""
    found = relative_change(value, reference)

    assert math.isfinite(found)
    assert (found > 0) <= (value > reference)
    assert (found < 0) <= (value < reference)
    assert relative_change(-3.0, -4.0) == 0.25


def test_quantile_is_linear_between_order_statistics() -> None:
    """The quantile is numpy's default one."""
    assert quantile([3.0, 1.0, 2.0], 0.25) == 1.5
    assert quantile([3.0, 1.0, 2.0], 0.0) == 1.0
    assert quantile([3.0, 1.0, 2.0], 1.0) == 3.0
    assert quantile([7.0], 0.95) == 7.0


@given(samples, st.floats(0, 1), st.floats(0, 1))
def test_quantile_rises_with_its_fraction(
    values: list[float], one: float, other: float
) -> None:
    """A quantile never falls as its fraction rises, and stays among the values."""
    low, high = sorted((one, other))
    assert min(values) <= quantile(values, low) <= quantile(values, high) <= max(values)


@pytest.mark.parametrize("fraction", [-0.1, 1.1, math.nan])
def test_quantile_refuses_what_is_no_fraction(fraction: float) -> None:
    """A quantile outside 0 to 1 has no meaning."""
    with pytest.raises(ValueError, match="between 0 and 1"):
        quantile([1.0], fraction)


def test_nothing_has_no_median() -> None:
    """There is no median of no values."""
    with pytest.raises(ValueError, match=r"^a quantile needs at least 1 value$"):
        median([])


@pytest.mark.parametrize(
    ("count", "rank"),
    [(0, 0), (1, 0), (7, 0), (8, 1), (10, 1), (11, 1), (12, 2), (20, 4), (100, 37)],
)
def test_rank_of_the_99_percent_interval(count: int, rank: int) -> None:
    """99 % needs 8 samples; 10 give it with their smallest and largest alone."""
    assert order_rank(count) == rank


@given(st.integers(0, 600), st.sampled_from([0.5, 0.9, 0.95, 0.99, 0.999]))
def test_rank_is_the_largest_that_is_sure_enough(count: int, confidence: float) -> None:
    """The rank holds the median as surely as asked, and the next one does not."""
    rank = order_rank(count, confidence)

    if rank:
        assert _hold(count, rank) >= confidence - 1e-12
    if 2 * (rank + 1) <= count:
        assert _hold(count, rank + 1) < confidence + 1e-12


@pytest.mark.parametrize("sure", [1e-6, 1e-9, 1e-12])
def test_rank_of_the_nearly_certain(sure: float) -> None:
    """Tails far below a double's last bit of 1 are added up as exactly as others."""
    confidence = 1 - sure
    rank = order_rank(600, confidence)

    def missed(rank: int) -> float:
        fewer: int = sum(math.comb(600, k) for k in range(rank))
        return 2 * fewer / 2**600

    assert missed(rank) <= (1 - confidence) * (1 + 1e-9) < missed(rank + 1)


@pytest.mark.parametrize("tail", [0.4, 0.25, 0.1, 0.025, 0.005, 0.0005])
def test_the_search_for_a_rank_begins_near_it(tail: float) -> None:
    """The formula's own error is 4.5e-4, so that few ranks need to be tried."""
    expected = statistics.NormalDist().inv_cdf(1 - tail)
    assert normal_quantile(tail) == pytest.approx(expected, abs=4.5e-4)


def test_rank_of_very_many_samples() -> None:
    """The rank of 100,000 samples is that of the normal approximation, nearly."""
    expected = 100_000 / 2 - 2.5758 * math.sqrt(100_000) / 2
    assert order_rank(100_000) == pytest.approx(expected, abs=2)


@pytest.mark.parametrize("confidence", [0.0, 1.0, -1.0, 2.0, math.nan])
def test_no_interval_of_impossible_confidence(confidence: float) -> None:
    """Certainty has no interval."""
    with pytest.raises(ValueError, match="between 0 and 1"):
        order_rank(10, confidence)


def test_too_few_samples_have_no_interval() -> None:
    """Seven samples cannot say where the median is with 99 %; eight can."""
    assert median_interval(range(7)) is None
    assert median_interval(range(8)) == (0, 7)


@given(st.lists(numbers, min_size=8, max_size=60), st.randoms())
def test_interval_holds_the_median_in_any_order(
    values: list[float], random: Random
) -> None:
    """The interval holds the sample median and does not know the samples' order."""
    interval = median_interval(values)
    random.shuffle(values)

    assert interval == median_interval(values)
    assert interval is not None
    assert interval[0] <= median(values) <= interval[1]


@given(st.lists(st.floats(1e-9, 1e3), min_size=8, max_size=40), st.floats(1e-6, 1e6))
def test_half_width_has_no_unit(values: list[float], factor: float) -> None:
    """The relative half-width does not change with the unit."""
    scaled = [factor * value for value in values]
    assert half_width_fraction(scaled) == pytest.approx(
        half_width_fraction(values), rel=1e-9, abs=1e-12
    )


def test_half_width_is_half_the_interval_over_the_median() -> None:
    """Of 1 to 12 the median is 6.5, and held by 2 to 11; less surely by 5 to 8."""
    values = [float(number) for number in range(12, 0, -1)]

    assert median_interval(values) == (2, 11)
    assert half_width_fraction(values) == 4.5 / 6.5
    assert median_interval(values, 0.5) == (5, 8)
    assert half_width_fraction(values, 0.5) == 1.5 / 6.5


def test_half_width_at_a_median_of_zero() -> None:
    """Relative to 0 nothing has a width, unless there is no width at all."""
    assert half_width_fraction([0.0] * 8) == 0.0
    assert half_width_fraction([-1.0] * 4 + [1.0] * 4) is None
    assert half_width_fraction([1.0] * 7) is None


@pytest.mark.parametrize(("confidence", "count"), [(0.5, 2), (0.95, 6), (0.99, 8)])
def test_samples_for_an_interval(confidence: float, count: int) -> None:
    """So many samples have an interval, and one fewer has none."""
    assert samples_for_interval(confidence) == count
    assert order_rank(count, confidence) == 1
    assert order_rank(count - 1, confidence) == 0


def test_a_level_that_holds_has_no_change_point() -> None:
    """Noise is not a change, however many places are tried; a step is found at its place."""
    rng = random.Random(5)
    quiet = [[rng.gauss(1, 0.02) for _ in range(20)] for _ in range(300)]
    found = [change_point(values, least=0.0) for values in quiet]
    stepped = [
        change_point(
            [v * (1 + (n >= 8) * 0.1) for n, v in enumerate(values)], least=0.02
        )
        for values in quiet
    ]

    assert sum(place is not None for place in found) <= 2
    assert sum(place == 8 for place in stepped) > 270
    assert change_point([1.0] * 4 + [1.01] * 4, least=0.02) is None
    assert change_point([1.0, 2.0, 2.0, 2.0], least=0.02) is None
