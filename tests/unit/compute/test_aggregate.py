"""compute.launches: one value out of those of several launches."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.compute.derive import aggregate

NUMBERS = st.floats(min_value=-1e15, max_value=1e15)
DURATIONS = st.floats(min_value=1e-9, max_value=1e9)
PAIRS = st.lists(st.tuples(NUMBERS, DURATIONS), min_size=1, max_size=20)
NAMES = st.sampled_from(
    [
        "registers",
        "stack_bytes",
        "launch__grid_size",
        "a__b.max",
        "a__b.min",
        "a__b.sum",
        "launches.count",
        "a__b.avg",
        "a__b.sum.per_second",
        "occupancy.achieved",
    ]
)


def split(pairs: list[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [value for value, _ in pairs], [weight for _, weight in pairs]


@pytest.mark.parametrize(
    ("metric", "value"),
    [
        ("registers", 4.0),
        ("stack_bytes", 4.0),
        ("spills_bytes", 4.0),
        ("shared_bytes", 4.0),
        ("waves", 4.0),
        ("dram.bytes", 5.0),
        ("dram.excess_ratio", 5.0),
        ("instructions.count", 5.0),
        ("dram.fraction", 3.25),
        ("launch__grid_size", 4.0),
        ("a__b.max", 4.0),
        ("a__b.min", 1.0),
        ("a__b.sum", 5.0),
        ("a__b.c.sum", 5.0),
        ("launches.count", 5.0),
        ("a__b.avg", 3.25),
        ("a__b.sum.per_second", 3.25),
        ("a__b.max.pct_of_peak_sustained_active", 3.25),
        ("occupancy.achieved", 3.25),
    ],
)
def test_each_kind_has_its_rule(metric: str, value: float) -> None:
    """The largest, the smallest, the sum, or the mean by duration."""
    assert aggregate(metric, (1.0, 4.0), weights=(1.0, 3.0)) == value


@given(NAMES, NUMBERS)
def test_one_launch_is_itself(metric: str, value: float) -> None:
    """Nothing is weighed, and nothing rounded."""
    assert aggregate(metric, (value,)) == value


@given(NAMES, PAIRS, st.randoms())
def test_the_order_of_launches_means_nothing(
    metric: str, pairs: list[tuple[float, float]], chance: random.Random
) -> None:
    """The same launches in another order give the same value, to the last bit."""
    mixed = chance.sample(pairs, len(pairs))
    values, weights = split(pairs)
    other_values, other_weights = split(mixed)

    assert aggregate(metric, values, weights=weights) == aggregate(
        metric, other_values, weights=other_weights
    )


@given(NAMES, PAIRS)
def test_all_but_sums_lie_among_the_values(
    metric: str, pairs: list[tuple[float, float]]
) -> None:
    """A rate of several launches is never beyond that of each of them."""
    values, weights = split(pairs)

    found = aggregate(metric, values, weights=weights)

    assert found is not None
    if metric in {"a__b.sum", "launches.count"}:
        assert found == math.fsum(values)
    else:
        assert min(values) <= found <= max(values)


@given(st.lists(DURATIONS, min_size=1), NUMBERS)
def test_equal_launches_have_their_value(weights: list[float], value: float) -> None:
    """No rounding: an occupancy of 1 never becomes more."""
    assert aggregate("a__b.avg", [value] * len(weights), weights=weights) == value


def test_launches_of_microseconds_are_weighed_like_others() -> None:
    """Durations are in seconds: a second of them together is nothing special."""
    assert aggregate("a__b.avg", (0.5, 1.0), weights=(1e-6, 3e-6)) == 0.875


@pytest.mark.parametrize("weights", [(), (1.0,), (0.0, 0.0), (1.0, 2.0, 3.0)])
def test_rates_that_cannot_be_weighed_have_no_value(weights: tuple[float, ...]) -> None:
    """A plain mean would let a launch of a microsecond count like one of a second."""
    assert aggregate("occupancy.achieved", (0.5, 0.7), weights=weights) is None
    assert aggregate("registers", (32.0, 64.0), weights=weights) == 64.0
