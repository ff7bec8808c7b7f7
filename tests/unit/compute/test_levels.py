"""Lasting changes are found where they are, and noise has none."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from itertools import pairwise, product
from statistics import median

import pytest

from pytest_gpuperf.compute.levels import level_changes, usual_noise

Noise = Callable[[random.Random, int], list[float]]
SPREAD = 0.017


def normal(draw: random.Random, count: int) -> list[float]:
    """Sessions that differ by 1.7 %."""
    return [draw.gauss(0, SPREAD) for _ in range(count)]


def skewed(draw: random.Random, count: int) -> list[float]:
    """Sessions that are slow more often than fast."""
    return [(draw.gammavariate(4, 1) - 4) / 2 * SPREAD for _ in range(count)]


def bursts(draw: random.Random, count: int) -> list[float]:
    """Sessions of which one in 25 is 10 to 60 % slower."""
    return [
        draw.gauss(0, SPREAD) + (draw.random() < 0.04) * draw.uniform(0.1, 0.6)
        for _ in range(count)
    ]


def outage(draw: random.Random, count: int) -> list[float]:
    """Two sessions in the middle are 30 % slower."""
    values = normal(draw, count)
    for place in (count // 2, count // 2 + 1):
        values[place] += 0.3
    return values


def heavy(draw: random.Random, count: int) -> list[float]:
    """Sessions of Student's t with three degrees of freedom."""
    return [
        SPREAD * draw.gauss(0, 1) / math.sqrt(draw.gammavariate(1.5, 2))
        for _ in range(count)
    ]


def test_two_sessions_are_no_level() -> None:
    """Wherever they are, at least three sessions are nearer to a level than to the next."""
    draw = random.Random(8)
    found = 0
    for count, _ in product((24, 40), range(6)):
        for start in range(count - 1):
            logs = [log / 2 for log in heavy(draw, count)]
            logs[start] += 0.3
            logs[start + 1] += 0.3
            places = [change.place for change in level_changes(logs)]
            parts = [logs[a:b] for a, b in pairwise([0, *places, count])]
            found += bool(places)
            for one, other in permuted(parts):
                near = [
                    log
                    for log in one
                    if abs(log - median(one)) < abs(log - median(other))
                ]
                assert len(near) >= 3, (start, places)

    assert found <= 15  # Of 372 series.


def permuted(parts: list[list[float]]) -> Iterator[tuple[list[float], list[float]]]:
    """Yield each part with each of its neighbours."""
    for one, other in pairwise(parts):
        yield one, other
        yield other, one


@pytest.mark.parametrize("count", [12, 24, 60, 200])
@pytest.mark.parametrize("noise", [normal, skewed, heavy, bursts, outage])
def test_noise_has_no_levels(noise: Noise, count: int) -> None:
    """Of 150 histories that did not change, at most 5 % have one."""
    draw = random.Random(4)
    found = sum(bool(level_changes(noise(draw, count))) for _ in range(150))

    assert found <= 7


@pytest.mark.parametrize(
    ("size", "count", "share"), [(0.08, 12, 0.95), (0.04, 60, 0.9), (0.04, 200, 0.98)]
)
def test_a_step_is_found_at_its_place(size: float, count: int, share: float) -> None:
    """Within 5 % of the length; the range that is told holds the true place."""
    draw = random.Random(5)
    hits = covered = 0
    for _ in range(100):
        logs = normal(draw, count)
        logs = [log + size * (n >= count // 2) for n, log in enumerate(logs)]
        changes = level_changes(logs)
        near = [c for c in changes if abs(c.place - count // 2) <= max(2, count // 20)]
        hits += bool(near)
        covered += any(c.first <= count // 2 <= c.last for c in near)

    assert hits >= 100 * share
    assert covered >= 0.95 * hits


def test_what_went_away_is_two_changes() -> None:
    """A slow week has a beginning and an end."""
    draw = random.Random(6)
    logs = [log + 0.15 * (40 <= n < 47) for n, log in enumerate(normal(draw, 100))]

    begun, ended = level_changes(logs)

    assert (begun.place, ended.place) == (40, 47)
    assert begun.log_change == pytest.approx(0.15, abs=0.03)
    assert ended.log_change == pytest.approx(-0.15, abs=0.03)
    assert abs(begun.log_change - 0.15) <= begun.log_error


def test_exact_values_have_exact_places() -> None:
    """Counts have no noise, and the first other value is the change."""
    (change,) = level_changes([0.0] * 9 + [0.5] * 9)

    assert (change.place, change.first, change.last) == (9, 9, 9)
    assert change.log_change == pytest.approx(0.5)


@pytest.mark.parametrize("count", range(9))
def test_few_sessions_have_one_level(count: int) -> None:
    """Seven sessions or fewer show no lasting change, and eight equal ones none."""
    logs = [0.0] * count if count >= 8 else [0.5 * (n > 3) for n in range(count)]

    assert level_changes(logs) == ()


def test_a_change_does_not_count_as_noise() -> None:
    """The noise of a series is that about its levels."""
    draw = random.Random(7)
    logs = [log + 0.5 * (n >= 20) for n, log in enumerate(normal(draw, 40))]

    assert usual_noise(logs) < 2 * SPREAD
    assert usual_noise([0.0, 1.0]) == 0.0
