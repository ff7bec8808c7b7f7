"""The rules of compute/contrast: comparisons as numbers, and what a suite adds to them."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.compute.change import contrasts, fit_priors
from pytest_gpuperf.compute.spread import fit_prior
from pytest_gpuperf.model.change import Comparison
from pytest_gpuperf.model.record import SessionValue
from unit.compute.comparing import THEN, comparison, value


def between(current: SessionValue, *stored: SessionValue) -> Comparison:
    """A comparison of sessions."""
    ids = tuple(f"s{n}" for n in range(len(stored)))
    return Comparison(current=current, stored=stored, session_ids=ids, group="time")


def test_positive_values_are_compared_by_their_logarithms() -> None:
    """Each session is the mean of its processes' logarithms."""
    (found,) = contrasts([between(value(3.0), value(1.0, 4.0), value(8.0))])
    then = (math.log(2.0), math.log(8.0))

    assert found.now == math.log(3.0)
    assert found.stored == pytest.approx(then)
    assert found.mean == pytest.approx(math.log(4.0))
    assert found.variance == pytest.approx(statistics.variance(then))
    assert found.difference == pytest.approx(math.log(0.75))
    assert found.relative(math.log(0.75)) == pytest.approx(-0.25)
    assert found.in_unit(found.mean) == pytest.approx(4.0)


@pytest.mark.parametrize("now", [-3.0, 0.0, 3.0])
def test_others_are_shares_of_the_size_of_what_is_stored(now: float) -> None:
    """The mean of the stored sessions, whatever its sign and however many processes."""
    stored = (value(-1.0, -3.0), value(0.0), value(-4.0))
    (found,) = contrasts([between(value(now), *stored)])

    assert found.scale == 2.0
    assert found.stored == [-1.0, 0.0, -2.0]
    assert found.now == now / 2
    assert found.mean == -1.0
    assert found.relative(0.25) == 0.25
    assert found.in_unit(found.now) == now


def test_what_is_stored_and_has_no_size_is_shared_by_one() -> None:
    """There is nothing else to divide by."""
    (found,) = contrasts([between(value(3.0), value(-1.0), value(1.0))])

    assert (found.scale, found.now, found.stored) == (1.0, 3.0, [-1.0, 1.0])


def test_one_value_without_a_logarithm_is_enough() -> None:
    """Be it one of the current session alone."""
    (found,) = contrasts([between(value(2.0, 0.0), value(2.0), value(6.0))])

    assert found.scale == 4.0


def test_processes_say_what_they_leave_open() -> None:
    """Their pooled variance, by as many as the smaller side has of them."""
    now, then = (math.exp(1.0), math.exp(3.0)), (math.exp(0.0), math.exp(2.0))
    (found,) = contrasts([between(value(*now), value(*then), value(1.0))])

    # squares of 2 and 2 have 2 degrees of freedom; of the stored sessions one has one
    assert found.floor == pytest.approx(math.sqrt((2 + 2) / 2 * 0.75))
    assert found.run_share == 0.75
    assert found.process_variance == pytest.approx(2 * 0.75)
    assert found.run_count == 2


def test_single_processes_say_nothing_of_others() -> None:
    """Each is its session, and nothing of a variance is known to be theirs."""
    (found,) = contrasts([comparison([1.1], THEN)])

    assert (found.floor, found.run_share, found.process_variance) == (0.0, 1.0, 0.0)


def test_samples_say_what_they_leave_open() -> None:
    """The mean of all half-widths as a standard error, where processes leave less."""
    stored = (value(1.0, widths=(0.03,)), value(1.0))
    (found,) = contrasts([between(value(1.0, 1.0, widths=(0.04, 0.05)), *stored)])

    assert found.floor == pytest.approx(0.04 / 1.96)


def test_a_known_shift_is_taken_from_its_session() -> None:
    """From none of another name, and from no test of another group."""
    pairs = [comparison([1.0], THEN, shift_group=group) for group in "gh"]
    plain = contrasts(pairs)
    found = contrasts(pairs, {"g": {"s1": 0.25, "other": 1.0}})
    apart = [a - b for a, b in zip(plain[0].stored, found[0].stored, strict=True)]

    assert apart == pytest.approx([0, 0.25, 0, 0, 0])
    assert found[0].mean == pytest.approx(plain[0].mean - 0.05)
    assert found[0].variance != plain[0].variance
    assert found[1] == plain[1]


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
    assert twice.variance == pytest.approx(once.variance)
    assert (once.floor, twice.floor, twice.process_variance) == (0, 0, 0)


def test_priors_are_of_each_group() -> None:
    """Ten tests of a group give a prior; nine of another give none."""
    pairs = [comparison([1.0], [1.0, 1.0 + 0.01 * (n + 1), 0.99]) for n in range(10)]
    others = [comparison([1.0], THEN, group="energy")] * 9
    assert list(fit_priors([*pairs, *others])) == ["time"]
    assert fit_priors([]) == {}


def test_the_prior_of_a_group_is_that_of_its_tests() -> None:
    """Each test's variance of logarithms counts with n - 1; ten of them are enough."""
    stored = [[1.0, 1.0 + 0.02 * (n + 1), 0.99][: 2 + n % 2] for n in range(10)]
    own = [
        (statistics.variance(map(math.log, then)), len(then) - 1.0) for then in stored
    ]
    prior = fit_prior(own)
    (found,) = fit_priors([comparison([1.0], then) for then in stored]).values()

    assert prior is not None
    assert found.dof == pytest.approx(prior.dof)
    assert found.variance == pytest.approx(prior.variance)
