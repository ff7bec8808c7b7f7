"""The rules of compute/contrast: comparisons as numbers, and values that do not fit."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.compute.contrast import Contrast, contrasts
from pytest_gpuperf.compute.spread import usual_spread
from pytest_gpuperf.model.change import Comparison, TimeBase
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.packed import SessionValues
from pytest_gpuperf.model.record import SessionValue
from unit.compute.comparing import THEN, comparison, value


def between(current: SessionValue, *stored: SessionValue) -> Comparison:
    """A comparison of sessions."""
    ids = tuple(f"s{n}" for n in range(len(stored)))
    return Comparison(
        current=current,
        stored=SessionValues.of(stored),
        session_ids=ids,
        group="time",
    )


def test_positive_values_are_compared_by_their_logarithms() -> None:
    """Each session is the mean of its processes' logarithms."""
    (found,) = contrasts([between(value(3.0), value(1.0, 4.0), value(8.0))])
    then = (math.log(2.0), math.log(8.0))

    assert found.now == math.log(3.0)
    assert found.stored == pytest.approx(then)
    assert found.mean == pytest.approx(math.log(4.0))
    assert found.difference == pytest.approx(math.log(0.75))
    assert found.relative(math.log(0.75)) == pytest.approx(-0.25)
    assert found.in_unit(found.mean) == pytest.approx(4.0)


@pytest.mark.parametrize("now", [-3.0, 0.0, 3.0])
def test_others_are_shares_of_the_size_of_what_is_stored(now: float) -> None:
    """The mean of the stored sessions, whatever its sign and however many processes."""
    stored = (value(-1.0, -3.0), value(0.0), value(-4.0))
    (found,) = contrasts([between(value(now), *stored)])

    assert found.scale == 2.0
    assert [*found.stored] == [-1.0, 0.0, -2.0]
    assert found.now == now / 2
    assert found.mean == -1.0
    assert found.relative(0.25) == 0.25
    assert found.in_unit(found.now) == now


def test_what_is_stored_and_has_no_size_is_shared_by_one() -> None:
    """There is nothing else to divide by."""
    (found,) = contrasts([between(value(3.0), value(-1.0), value(1.0))])

    assert (found.scale, found.now, [*found.stored]) == (1.0, 3.0, [-1.0, 1.0])


def test_one_value_without_a_logarithm_is_enough() -> None:
    """Be it one of the current session alone."""
    (found,) = contrasts([between(value(2.0, 0.0), value(2.0), value(6.0))])

    assert found.scale == 4.0


def test_processes_say_what_they_leave_open() -> None:
    """Their pooled variance, by as many as the smaller side has of them."""
    now, then = (math.exp(1.0), math.exp(3.0)), (math.exp(0.0), math.exp(2.0))
    (found,) = contrasts([between(value(*now), value(*then), value(1.0))])

    # squares of 2 and 2 have 2 degrees of freedom; of the stored sessions one has one
    assert found.floor == pytest.approx((2 + 2) / 2 * 0.75)
    assert found.run_share == 0.75
    assert found.run_count == 2
    assert found.now == pytest.approx(2.0)


def test_fresh_processes_count_by_their_median() -> None:
    """One that was disturbed moves it little, and hardly widens what it may be off by."""
    logs = (0.0, 0.1, 0.2, 0.3, 2.0)
    (found,) = contrasts([comparison(list(map(math.exp, logs)), THEN, fresh=True)])

    assert found.now == pytest.approx(0.2)
    assert found.floor < statistics.variance(logs) / 10
    assert found.floor > statistics.variance(logs[:-1])


def test_two_disturbed_processes_of_five_show() -> None:
    """Then the median may be one of them."""
    logs = (0.0, 0.1, 0.2, 1.9, 2.0)
    (found,) = contrasts([comparison(list(map(math.exp, logs)), THEN, fresh=True)])

    assert found.floor > statistics.variance(logs)


@pytest.mark.parametrize("logs", [(0.0, 2.0), (0.0, 0.1, 2.0), (0.0, 0.1, 0.2, 2.0)])
def test_of_few_fresh_processes_each_counts(logs: tuple[float, ...]) -> None:
    """Two or three that are left hardly tell how far processes differ."""
    (found,) = contrasts([comparison(list(map(math.exp, logs)), THEN, fresh=True)])

    assert found.floor == pytest.approx(statistics.variance(logs))


@pytest.mark.parametrize("count", [5, 7, 10, 15])
def test_the_variance_of_undisturbed_processes_is_right_in_the_mean(count: int) -> None:
    """Leaving the farthest out is made up for."""
    draw = random.Random(count)
    rows = [[draw.lognormvariate(0, 0.1) for _ in range(count)] for _ in range(4000)]
    found = contrasts([comparison(row, THEN, fresh=True) for row in rows])

    mean = statistics.fmean(contrast.floor for contrast in found)
    assert mean == pytest.approx(0.1**2, rel=0.05)


def test_single_processes_say_nothing_of_others() -> None:
    """Each is its session, and nothing of a variance is known to be theirs."""
    (found,) = contrasts([comparison([1.1], THEN)])

    assert (found.floor, found.run_share, found.dof) == (0.0, 1.0, 4)


# values that do not fit


def suite(
    *first: float, count: int = 20, deviation: float = 0.02, **fields: object
) -> list[Contrast]:
    """A test with some stored sessions, and others that did not change."""
    draw = random.Random(3)
    rows = [[draw.lognormvariate(0, deviation) for _ in first] for _ in range(count)]
    return contrasts([comparison([1.0], then, **fields) for then in (first, *rows)])


@pytest.mark.parametrize("off", [3.0, 1 / 3, 1.3])
@pytest.mark.parametrize("place", [0, 1, 4])
def test_a_value_that_the_others_exclude_is_left_out(off: float, place: int) -> None:
    """Too slow or too fast, wherever it stands; at most one of a test."""
    then = [1.0, 1.01, 0.99, 1.02, 0.98]
    then[place] *= off
    found, *others = suite(*then)

    assert found.left_out == f"s{place}"
    assert found.session_ids == tuple(f"s{n}" for n in range(5) if n != place)
    assert len(found.stored) == 4
    assert found.mean == pytest.approx(statistics.fmean(found.stored))
    assert abs(found.mean) < 0.02
    assert {other.left_out for other in others} == {""}


@pytest.mark.parametrize(
    ("then", "why"),
    [
        ((1.0, 3.0), "of two nobody knows which is wrong"),
        ((1.0, 1.01, 0.99, 1.2), "it is off by less than a quarter"),
        ((1.0, 3.0, 9.0, 27.0), "all are off, so that far is usual for this test"),
        ((1.0, 1.0, 1.0, 1.0), "they are identical"),
    ],
)
def test_what_may_fit_stays(then: Sequence[float], why: str) -> None:
    """A value goes only where the others leave no doubt."""
    found, *_ = suite(*then)

    assert found.left_out == "", why
    assert len(found.stored) == len(then)


def test_on_a_machine_where_that_is_usual_a_value_stays() -> None:
    """What the group's sessions differ by decides what excludes a value."""
    calm, *_ = suite(1.0, 1.03, 0.97, 1.6, deviation=0.02)
    wild, *_ = suite(1.0, 1.03, 0.97, 1.6, deviation=0.4)

    assert (calm.left_out, wild.left_out) == ("s3", "")


def test_the_border_of_what_fits_is_a_probability() -> None:
    """Two-sided, of the distance to the others' mean, by what is usual without it."""
    then = (1.0, 1.05, 0.95, 1.45)
    logs = [math.log(each) for each in then]
    own = statistics.variance(logs[:3])
    usual = usual_spread([(own, 2)], TimeBase.HOST)
    distance = logs[3] - statistics.fmean(logs[:3])
    p_value = 2 * usual.mixture(2).beyond(distance, own, ratio=4 / 3)
    (found,) = contrasts([comparison([1.0], then)])

    assert (found.left_out == "s3") is (p_value < 0.001)
    assert 0.0001 < p_value < 0.05


def test_sessions_are_known_by_their_ids() -> None:
    """A test that lacks a session, or has it at another place, says what it knows."""
    draw = random.Random(4)
    names = [f"s{n}" for n in range(5)]
    shuffled = [
        comparison(
            [1.0],
            [draw.lognormvariate(0, 0.02) for _ in chosen],
            session_ids=tuple(chosen),
        )
        for chosen in ([*reversed(names)], names[:2], names[2:], names[:1], names)
        for _ in range(4)
    ]
    first, *_ = contrasts([comparison([1.0], (3.0, 1.0, 1.0, 1.01, 0.99)), *shuffled])

    assert first.left_out == "s0"


@pytest.mark.parametrize(
    ("then", "now", "fraction"),
    [
        ((10.0, 10.0, 10.0, 1000.0), 0.0, -1.0),
        ((100.0, 100.1, 99.9, 100.0, 0.0), 104.0, 0.04),
        ((-10.0, -10.0, -10.0, -1000.0), -15.0, -0.5),
        ((0.0, 0.0, 0.0, 5.0), 3.0, 3.0),
    ],
)
def test_what_is_left_out_is_no_part_of_the_size(
    then: Sequence[float], now: float, fraction: float
) -> None:
    """A change is a share of the others, as if the odd value had never been stored."""
    (found,) = contrasts([comparison([now], then)])
    (never,) = contrasts([comparison([now], then[:-1])])

    assert found.left_out == f"s{len(then) - 1}"
    assert found.relative(found.difference) == pytest.approx(fraction, abs=1e-3)
    assert replace(found, left_out="") == never


@given(
    st.floats(-100, 100).filter(lambda odd: abs(odd) > 5),
    st.lists(st.integers(-3, 3), min_size=5, max_size=6),
)
def test_fresh_processes_are_held_against_what_is_left(
    odd: float, again: list[int]
) -> None:
    """Their spread, and those nearest and farthest, are shares of the others too."""
    fresh = comparison([*map(float, again)], (1.0, 1.0, 1.0, 1.0, odd), fresh=True)
    (found,) = contrasts([fresh])
    (never,) = contrasts(
        [comparison([*map(float, again)], (1.0, 1.0, 1.0, 1.0), fresh=True)]
    )

    assert found.left_out == "s4"
    assert replace(found, left_out="") == never


# the smallest doubles are not values: what is divided by one is infinite
hundredths = st.integers(-200, 200).map(lambda number: number / 100)
several = st.lists(hundredths, min_size=1, max_size=6)


@given(several, hundredths)
def test_a_process_that_agrees_adds_nothing_to_its_session(
    then: list[float], now: float
) -> None:
    """Twice the same value is the same session."""
    once, twice = contrasts(
        [
            between(value(*[now] * n), *(value(*[each] * n) for each in then))
            for n in (1, 2)
        ]
    )

    assert twice.scale == pytest.approx(once.scale)
    assert twice.now == pytest.approx(once.now)
    assert twice.mean == pytest.approx(once.mean)
    assert (once.floor, twice.floor) == (0, 0)
