"""A slow change of many sessions, and nothing else, is a drift."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from itertools import permutations

import pytest

from pytest_gpuperf.compute.drift import drift_level, drift_of
from pytest_gpuperf.compute.spread import about_trend

LEAST = math.log(1.1)


def steady(draw: random.Random, count: int) -> list[float]:
    """Sessions that differ by 10 %."""
    return [draw.gauss(0, 0.1) for _ in range(count)]


def heavy(draw: random.Random, count: int) -> list[float]:
    """Sessions of which some are far off."""
    return [draw.gauss(0, 0.05) / max(draw.random(), 0.1) for _ in range(count)]


def two_speeds(draw: random.Random, count: int) -> list[float]:
    """Sessions of a test that is 20 % slower in every other process or so."""
    return [draw.choice((0, 0.18)) + draw.gauss(0, 0.01) for _ in range(count)]


def slow_days(draw: random.Random, count: int) -> list[float]:
    """A machine whose level stays for some days."""
    values: list[float] = []
    while len(values) < count:
        level = draw.choice((0, 0.18))
        values += [level + draw.gauss(0, 0.01) for _ in range(draw.randint(1, 8))]
    return values[:count]


@pytest.mark.parametrize("count", [8, 12, 23, 200])
@pytest.mark.parametrize("noise", [steady, heavy, two_speeds, slow_days])
def test_noise_does_not_drift(
    noise: Callable[[random.Random, int], list[float]], count: int
) -> None:
    """In 400 histories that did not change, at most two drifts are found."""
    draw = random.Random(1)
    found = [drift_of(noise(draw, count), least=LEAST) for _ in range(400)]

    assert sum(trend is not None for trend in found) <= 2


@pytest.mark.parametrize("step", [0.02, -0.02, 0.03])
def test_small_steps_that_add_up_are_a_drift(step: float) -> None:
    """Each session is 2 % from the one before, below any limit."""
    draw = random.Random(2)
    logs = [step * place + draw.gauss(0, 0.01) for place in range(20)]

    trend = drift_of(logs, least=LEAST)

    assert trend is not None
    assert trend.log_change == pytest.approx(17 * step, rel=0.1)
    assert trend.log_slope == pytest.approx(step, rel=0.1)
    assert trend.p_value < 1e-6


def test_an_improvement_that_was_taken_back_is_no_drift() -> None:
    """The newest sessions are where the oldest were."""
    draw = random.Random(3)
    logs = [(-0.5 if 6 <= n < 12 else 0) + draw.gauss(0, 0.01) for n in range(18)]

    assert drift_of(logs, least=LEAST) is None


def test_a_machine_that_slows_down_is_no_drift() -> None:
    """What the reference workloads did as well is not the test's."""
    logs = [0.02 * place for place in range(20)]

    assert drift_of(logs, machine=logs, least=LEAST) is None
    assert drift_of(logs, machine=[0.0] * 20, least=LEAST) is not None


def test_reference_workloads_show_no_drift_of_their_own() -> None:
    """A value that did not move has not drifted, whatever the references did."""
    moves = [-0.02 * place for place in range(20)]

    assert drift_of([0.0] * 20, machine=moves, least=LEAST) is None


def test_a_drift_needs_eight_sessions() -> None:
    """Seven sessions in order are too little evidence."""
    logs = [0.05 * place for place in range(8)]

    assert drift_of(logs[:7], least=LEAST) is None
    assert drift_of(logs, least=LEAST) is not None


def test_the_chance_of_an_order_is_exact() -> None:
    """Of all orders of 8 values, as many have so many rising pairs as the chance says."""

    def rising(order: Sequence[int]) -> int:
        return sum(b > a for n, b in enumerate(order) for a in order[:n])

    logs = [0.0, 0.1, 0.2, 0.4, 0.3, 0.5, 0.7, 0.6]
    trend = drift_of(logs, least=LEAST, level=1.0)
    orders = [rising(order) for order in permutations(range(8))]
    count = sum(number >= 26 for number in orders)

    assert trend is not None
    assert trend.p_value == pytest.approx(count / len(orders))


def test_a_large_suite_needs_surer_drifts() -> None:
    """A thousand tests together drift by chance as seldom as five."""
    assert drift_level(1) == 0.001
    assert drift_level(1000) * 1000 == pytest.approx(drift_level(5) * 5)


def test_the_spread_about_a_trend_is_that_of_the_noise() -> None:
    """A straight line has none, and a flat series that about its mean."""
    assert about_trend([0.1 * n for n in range(9)]) == pytest.approx(0.0, abs=1e-12)
    assert about_trend([1.0, -1.0, -1.0, 1.0]) == pytest.approx(4.0)
