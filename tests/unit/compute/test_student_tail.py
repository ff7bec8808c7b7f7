"""compute.stats: the tail of Student's t is the one that others have written."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import stdtr

from pytest_gpuperf.compute.stats import student_tail as tail

DOFS = range(1, 31)
NUMBERS = st.floats(allow_nan=False)


@pytest.mark.parametrize("dof", DOFS)
@pytest.mark.parametrize("t", [0.0, 0.1, 1.0, 2.5, 7.0, 40.0, 1e4])
def test_the_tail_is_that_of_the_t_distribution(dof: int, t: float) -> None:
    """On both sides, to fifteen digits after the point."""
    assert tail(dof, t) == pytest.approx(float(stdtr(dof, -t)), abs=1e-15)
    assert tail(dof, -t) == pytest.approx(float(stdtr(dof, t)), abs=1e-15)


def test_the_first_three_by_hand() -> None:
    """Closed forms that anybody can check."""
    t = 1.7
    root = math.sqrt(2 + t * t)
    angle = math.atan(t / math.sqrt(3))
    third = 0.5 - (angle + math.sqrt(3) * t / (3 + t * t)) / math.pi

    assert tail(1, t) == pytest.approx(0.5 - math.atan(t) / math.pi, abs=1e-15)
    assert tail(2, t) == pytest.approx((1 - t / root) / 2, abs=1e-15)
    assert tail(3, t) == pytest.approx(third, abs=1e-15)


@given(st.sampled_from(DOFS), NUMBERS)
def test_it_is_a_probability_and_symmetrical(dof: int, t: float) -> None:
    """Of any number, infinite ones too."""
    assert 0.0 <= tail(dof, t) <= 1.0
    assert tail(dof, t) + tail(dof, -t) == pytest.approx(1.0, abs=1e-15)


@given(st.sampled_from(DOFS), NUMBERS, NUMBERS)
def test_more_is_never_more_probable(dof: int, one: float, other: float) -> None:
    """But for the last digit."""
    low, high = sorted((one, other))
    assert tail(dof, low) >= tail(dof, high) - 1e-15


def test_what_is_no_number_has_no_probability() -> None:
    """It does not look like a sure one."""
    assert math.isnan(tail(3, math.nan))
