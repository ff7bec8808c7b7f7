"""The rules of compute/machine: what moved a class of tests, and what is left of each."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.compute.contrast import Contrast, contrasts
from pytest_gpuperf.compute.machine import Residual, common_moves, without_machine
from unit.compute.comparing import comparison

MOVES = (0.0, 0.08, -0.06, 0.05, -0.07)  # of the stored sessions


def row(
    moves: Sequence[float], now: float, *, noise: float = 0.0, **fields: object
) -> Contrast:
    """A test that did what the machine did, and something of its own in every second."""
    own = [noise * (-1) ** n for n in range(len(moves))]
    then = [math.exp(move + mine) for move, mine in zip(moves, own, strict=True)]
    given_fields = {"shift_group": "host time"} | fields
    (found,) = contrasts([comparison([math.exp(now)], then, **given_fields)])
    return found


def left(tests: Sequence[Contrast], *references: Contrast) -> list[Residual]:
    """What is left of tests that are controls of each other."""
    return without_machine(tests, [True] * len(tests), references)


def by_hand(tests: Sequence[Contrast]) -> list[tuple[float, float, float]]:
    """Difference, variance and extra of a class whose tests have the same sessions."""
    y = np.array([test.stored for test in tests])
    now = np.array([test.difference for test in tests])
    y = y - y.mean(1, keepdims=True)
    count, n = y.shape
    others = [[j for j in range(count) if j != i or count > 10] for i in range(count)]
    x = np.array([np.median(y[rows], 0) for rows in others])
    middle = x.mean(1)
    x = x - middle[:, None]
    moved = np.array([np.median(now[rows]) for rows in others]) - middle
    noise = min(((y - x) ** 2).sum(), (y * y).sum()) / (count * (n - 1)) + 1e-8
    precision = (x * x).sum() / noise + 4
    share = np.clip(((x * y).sum() / noise + 0.7 * 4) / precision, 0, 1)
    z = y - share * x
    return [
        (
            now[i] - share * moved[i],
            max((z[i] ** 2).sum() / (n - 1), 1e-6),
            moved[i] ** 2 * (0.09 + 1 / precision),
        )
        for i in range(count)
    ]


@pytest.mark.parametrize("count", [4, 10, 11, 30])
def test_a_class_is_judged_without_what_its_median_did(count: int) -> None:
    """Up to ten tests each without itself; one share of it for the whole class."""
    draw = np.random.default_rng(count)
    machine = draw.normal(0, 0.05, 6)
    tests = []
    for _ in range(count):
        follows, own = draw.normal(1, 0.2), draw.normal(0, 0.02, 6)
        *then, now = (follows * machine + own).tolist()
        tests.append(row(then, now))
    for residual, expected in zip(left(tests), by_hand(tests), strict=True):
        found = (residual.difference, residual.variance, residual.extra)
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_what_all_did_is_taken_out_of_all() -> None:
    """Where stored sessions have shown that they follow."""
    tests = [row(MOVES, 0.2, noise=0.002 * n) for n in range(5)]
    for residual in left(tests):
        assert residual.difference == pytest.approx(0.0, abs=0.01)
        assert residual.shift == pytest.approx(0.2, abs=0.02)
        assert residual.variance < 1e-4 < statistics.variance(MOVES)


def test_a_machine_that_never_moved_before_is_followed_as_is_usual() -> None:
    """By 0.7 of it, and nobody is sure of that."""
    tests = [row((0.0,) * 5, 0.1) for _ in range(5)]
    residual = left(tests)[0]

    assert residual.shift == pytest.approx(0.07)
    assert residual.difference == pytest.approx(0.03)
    assert residual.extra == pytest.approx(0.1**2 * (0.09 + 0.25))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_three_others_are_needed(count: int) -> None:
    """A test is no control of itself."""
    tests = [row(MOVES, 0.2) for _ in range(count)]

    assert {residual.shift for residual in left(tests)} == {0.0}
    assert all(residual.extra == 0 for residual in left(tests))
    assert left([*tests, row(MOVES, 0.2)])[0].shift == (
        pytest.approx(0.2, abs=0.01) if count == 3 else 0.0
    )


def test_references_are_controls_of_the_only_test() -> None:
    """They stand for the class that they are of."""
    test = row(MOVES, 0.2)
    other = row(MOVES, 0.2, shift_group="memory time")

    (alone,) = left([test], *[row(MOVES, 0.2)] * 3)
    (unmoved,) = left([other], *[row(MOVES, 0.2)] * 3)

    assert alone.shift == pytest.approx(0.2, abs=0.01)
    assert unmoved.shift == 0


def test_who_is_no_control_says_nothing() -> None:
    """A suspect's own slowdown is not the machine's."""
    tests = [row(MOVES, 0.9) for _ in range(3)] + [row(MOVES, 0.0) for _ in range(4)]
    found = without_machine(tests, [False] * 3 + [True] * 4)

    assert [r.difference for r in found[:3]] == pytest.approx([0.9] * 3, abs=0.01)


@pytest.mark.parametrize("fields", [{"shift_group": ""}, {}])
def test_what_no_machine_moves_is_left_as_it_is(fields: dict[str, str]) -> None:
    """A metric without a class, and values without a logarithm."""
    pairs = [
        comparison([3.0], [1.0, 2.0 if fields else 0.0], shift_group="host time")
        for _ in range(5)
    ]
    tests = contrasts(
        [comparison([3.0], [1.0, 2.0], **fields) for _ in range(5)] if fields else pairs
    )

    assert [r.difference for r in left(tests)] == [t.difference for t in tests]


def test_sessions_are_aligned_by_their_ids() -> None:
    """A test that lacks the sessions in which the machine moved has none taken out."""
    names = ("s0", "s1", "s2", "s3", "s4")
    others = [row(MOVES, 0.0, session_ids=names) for _ in range(4)]
    late = row(MOVES[1:3], 0.0, session_ids=names[1:3])
    residual = left([*others, late])[-1]

    # its mean is of a fast and of a slow session; today is as the mean of all
    assert residual.difference == pytest.approx(0.0, abs=0.01)
    assert residual.variance < 1e-4


@given(st.permutations(range(6)))
def test_the_order_of_tests_does_not_matter(order: list[int]) -> None:
    """Each gets its own residual wherever it stands."""
    tests = [row(MOVES, 0.01 * n, noise=0.01 * n) for n in range(6)]
    plain, shuffled = left(tests), left([tests[n] for n in order])

    assert [r.difference for r in shuffled] == pytest.approx(
        [plain[n].difference for n in order]
    )
    assert [r.variance for r in shuffled] == pytest.approx(
        [plain[n].variance for n in order]
    )


def test_common_moves_are_of_each_class_with_enough_controls() -> None:
    """The median of the controls, from their own sessions."""
    host = [row(MOVES, now) for now in (0.1, 0.2, 0.3)]
    memory = [row(MOVES, 0.5, shift_group="memory time") for _ in range(2)]
    found = common_moves([*host, *memory])

    assert found.keys() == {"host time"}
    assert found["host time"].log_shift == pytest.approx(0.2)
    assert found["host time"].control_count == 3
    assert [*found["host time"].sessions.values()] == pytest.approx(MOVES)
