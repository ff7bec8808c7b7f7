"""The rules of compute/stats."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.compute.stats import (
    change_point,
    correlation_factor,
    half_width_fraction,
    is_known,
    mean,
    median,
    median_interval,
    normal_quantile,
    order_rank,
    quantile,
    relative_change,
    samples_for_interval,
    series_interval,
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
    values = [float(1 + 5 * number % 12) for number in range(12)]

    assert median_interval(values) == (2, 11)
    assert half_width_fraction(values) == 4.5 / 6.5
    assert median_interval(values, 0.5) == (5, 8)
    assert half_width_fraction(values, 0.5) == 1.5 / 6.5


def test_half_width_at_a_median_of_zero() -> None:
    """Relative to 0 nothing has a width, unless there is no width at all."""
    assert half_width_fraction([0.0] * 8) == 0.0
    assert half_width_fraction([-1.0] * 4 + [1.0] * 4) is None
    assert half_width_fraction([1.0] * 7) is None


def _series(
    chance: Random, count: int, correlation: float, noise: str = "normal"
) -> list[float]:
    """Samples about 1, of which neighbours have a correlation."""
    own = math.sqrt(1 - correlation**2)
    last, values = chance.gauss(0, 1), []
    for _ in range(count):
        last = correlation * last + own * chance.gauss(0, 1)
        values.append(last)
    if noise == "lognormal":
        return [math.exp(0.3 * value) for value in values]
    if noise == "bimodal":  # 35 % in the slower mode.
        return [
            1 + 0.01 * chance.gauss(0, 1) + 0.1 * (value > 0.385) for value in values
        ]
    return [1 + 0.02 * value for value in values]


# The median of the bimodal noise is that of its faster mode at 0.5/0.65.
_TRUE = {"normal": 1.0, "lognormal": 1.0, "bimodal": 1 + 0.01 * 0.7363}


@pytest.mark.parametrize(
    ("noise", "correlation", "count", "least"),
    [
        ("normal", 0.5, 10, 0.975),
        ("normal", 0.5, 20, 0.98),
        ("normal", 0.5, 50, 0.98),
        ("normal", 0.5, 200, 0.985),
        # Few samples do not show how long their correlation lasts.
        ("normal", 0.9, 10, 0.84),
        ("normal", 0.9, 20, 0.92),
        ("normal", 0.9, 50, 0.98),
        ("normal", 0.9, 200, 0.985),
        ("lognormal", 0.5, 50, 0.98),
        ("lognormal", 0.9, 20, 0.91),
        ("lognormal", 0.9, 200, 0.985),
        ("bimodal", 0.5, 200, 0.98),
        ("bimodal", 0.9, 50, 0.88),
        ("bimodal", 0.9, 200, 0.97),
    ],
)
def test_the_interval_of_correlated_samples_holds_the_median(
    noise: str, correlation: float, count: int, least: float
) -> None:
    """Nearly as often as of independent samples, whose interval holds it less often."""
    chance = Random(7)
    series = [_series(chance, count, correlation, noise) for _ in range(600)]

    def held(
        interval_of: Callable[[Sequence[float]], tuple[float, float] | None],
    ) -> float:
        intervals = [interval_of(values) or (math.nan, math.nan) for values in series]
        return sum(low <= _TRUE[noise] <= high for low, high in intervals) / 600

    assert held(series_interval) >= least
    assert held(median_interval) < least


@pytest.mark.parametrize("noise", ["normal", "lognormal", "bimodal"])
@pytest.mark.parametrize(
    ("count", "most"), [(8, 1.5), (10, 1.4), (20, 1.25), (50, 1.2), (200, 1.2)]
)
def test_independent_samples_pay_little_for_the_correlation_of_others(
    noise: str, count: int, most: float
) -> None:
    """Their interval grows by a part in the mean, the more the fewer they are."""
    chance = Random(11)
    series = [_series(chance, count, 0.0, noise) for _ in range(600)]
    wide = narrow = 0.0
    for values in series:
        low, high = series_interval(values) or (math.nan, math.nan)
        inner = median_interval(values) or (math.nan, math.nan)
        assert low <= inner[0] <= inner[1] <= high
        wide, narrow = wide + high - low, narrow + inner[1] - inner[0]

    assert wide <= most * narrow


def test_a_slow_drift_below_noise_widens_the_interval() -> None:
    """Neighbours are little alike, but the means of four are."""
    chance = Random(3)
    held = narrow_held = 0
    for _ in range(300):
        noise = _series(chance, 200, 0.0)
        drift = _series(chance, 200, 0.98)
        values = [a + b - 1 for a, b in zip(noise, drift, strict=True)]
        low, high = series_interval(values) or (math.nan, math.nan)
        held += low <= 1 <= high
        low, high = median_interval(values) or (math.nan, math.nan)
        narrow_held += low <= 1 <= high

    assert narrow_held < 150
    assert held > 225


def test_samples_that_take_turns_are_not_correlated_neighbours() -> None:
    """Only likeness widens: what alternates is at least as well known as what does not."""
    values = [1.0, 1.1] * 20

    assert series_interval(values) == median_interval(values)
    assert correlation_factor(values) == 1.0


@pytest.mark.parametrize("count", [0, 1, 4, 7])
def test_few_samples_do_not_show_a_correlation(count: int) -> None:
    """They have no interval either; one of less confidence is as it was."""
    values = [float(number) for number in range(count)]

    assert correlation_factor(values) == 1.0
    assert series_interval(values) is None
    assert series_interval(values, 0.5) == median_interval(values, 0.5)


def test_a_single_outlier_does_not_hide_a_correlation() -> None:
    """Nor is it an end of the interval."""
    values = [1 + 0.01 * (number // 8 % 2) for number in range(64)]
    values[40] = 1000.0
    low, high = series_interval(values) or (math.nan, math.nan)

    assert correlation_factor(values) > 1.5
    assert 0.9 < low < high < 1.1


@pytest.mark.parametrize("place", [0, 4, 9])
def test_an_outlier_is_no_correlation_at_either_end(place: int) -> None:
    """The first sample is often the slowest, and has a neighbour on one side alone."""
    values = [1.0, 1.02, 0.99, 1.01, 0.98, 1.03, 0.97, 1.01, 0.99, 1.02]
    values[place] = 2.0

    assert correlation_factor(values) == 1.0
    assert is_known(values, 1.0)


def test_a_median_is_known_by_an_interval_that_is_narrow() -> None:
    """The interval itself decides, unless few samples are clearly correlated."""
    values = [1.0, 1.02, 0.99, 1.01, 0.98, 1.03, 0.97, 1.01, 0.99, 1.02]
    half_width = half_width_fraction(values) or math.nan

    assert is_known(values, half_width)
    assert not is_known(values, half_width * 0.999)
    assert not is_known(values[:7], 1.0)


def test_few_correlated_samples_do_not_know_their_median() -> None:
    """However narrow their interval is. Forty show how long the correlation lasts."""
    values = [1 + 1e-6 * (number // 4) for number in range(40)]

    assert not is_known(values[:10], 0.01)
    assert not is_known(values[:39], 0.01)
    assert is_known(values, 0.01)


def test_many_correlated_samples_are_enough() -> None:
    """A drift of the machine lasts longer than the samples of a short call."""
    values = [1 + 0.02 * math.sin(number / 3) for number in range(40)]
    precision = 0.015

    assert (half_width_fraction(values) or 0.0) > precision
    assert not is_known(values[:39], precision)
    assert is_known(values, precision)
    assert not is_known([1.0, 2.0] * 100, precision)


def test_equal_samples_with_outliers_have_no_correlation() -> None:
    """The rounding of a mean is not an order."""
    values = [0.1, 0.1, 0.1, 7.0, 0.1, 0.1, 0.1, 0.1, 0.01, 0.1] * 2

    assert correlation_factor(values) == 1.0


def test_the_ends_of_few_samples_that_drift_are_outside_of_them() -> None:
    """The lower end of times is a time; that of other numbers has any sign."""
    times = [float(number) for number in range(1, 11)]
    low, high = series_interval(times) or (math.nan, math.nan)
    around_zero = [number - 5.5 for number in times]

    assert 0 < low < 1
    assert high == pytest.approx(5.5 + 4.5 * math.sqrt(5))
    assert series_interval(around_zero) == pytest.approx((5.5 - high, high - 5.5))


@given(
    st.lists(st.floats(0, exclude_min=True, allow_infinity=False), min_size=8),
    st.booleans(),
)
def test_the_ends_enclose_those_of_independent_samples(
    values: list[float], is_sorted: bool
) -> None:
    """In any order and of any size; the lower end of positive samples is positive."""
    values = sorted(values) if is_sorted else values
    low, high = series_interval(values) or (math.nan, math.nan)
    inner = median_interval(values) or (math.nan, math.nan)

    assert 0 < low <= inner[0]
    assert inner[1] <= high


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
