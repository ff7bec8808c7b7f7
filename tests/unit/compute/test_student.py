"""compute.student: Student's t and the polygammas are those that others have written."""

from __future__ import annotations

import itertools
import math
from statistics import NormalDist

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import digamma, polygamma, stdtr, stdtrit

from pytest_gpuperf.compute import student

DOFS = st.floats(-2, 6).map(lambda power: 10.0**power)
TAILS = st.floats(-12, math.log10(0.49)).map(lambda power: 10.0**power)
# on both sides of where another series or the fraction takes over, and far from it
PLACES = (1e-8, 0.1, 0.5, 1.0, 1.7, 2.999, 3.0, 3.001, 5.0, 8.0, 30.0, 1e3)
GRID = (
    0.01,
    0.1,
    0.5,
    1.0,
    2.0,
    2.5,
    3.0,
    8.999,
    9.0,
    9.001,
    19.0,
    23.999,
    24.0,
    24.001,
)


def close(found: float, wanted: float, error: float) -> bool:
    """Return whether a relative error is kept."""
    return math.isclose(found, wanted, rel_tol=error, abs_tol=0.0)


@pytest.mark.parametrize("dof", [*GRID, 57.3, 400.0, 19_000.0, 1e6])
@pytest.mark.parametrize("t", PLACES[1:])  # nearer to the middle scipy rounds
def test_the_lower_tail_has_its_relative_accuracy(dof: float, t: float) -> None:
    """However small a probability is, twelve digits of it are right."""
    wanted = float(stdtr(dof, -t))
    assert close(student.cumulative(dof, -t), wanted, 2e-12) or wanted < 1e-300


@given(dof=DOFS, t=st.floats(1e-2, 1e6))
def test_probabilities_are_those_of_scipy(dof: float, t: float) -> None:
    """Any degrees of freedom, any t: both sides, which add up to 1."""
    below, above = student.cumulative(dof, -t), student.cumulative(dof, t)
    assert close(below, float(stdtr(dof, -t)), 2e-12) or below < 1e-300
    assert above == pytest.approx(float(stdtr(dof, t)), abs=1e-14)
    assert below + above == pytest.approx(1.0, abs=1e-15)


@given(dof=DOFS, tail=TAILS)
def test_quantiles_are_those_of_scipy(dof: float, tail: float) -> None:
    """What scipy calls finite is found, to the eight digits that its old versions have."""
    wanted = float(stdtrit(dof, tail))
    if abs(wanted) < 1e99:  # where its old versions stop
        assert close(student.quantile(dof, tail), wanted, 1e-8 / min(dof, 1.0))


@given(dof=DOFS, tail=TAILS)
def test_a_quantile_leaves_its_probability(dof: float, tail: float) -> None:
    """The tail beyond a quantile is the one that was asked for."""
    found = student.quantile(dof, tail)
    assert math.isinf(found) or close(student.cumulative(dof, found), tail, 1e-11)


@given(dof=DOFS, share=st.floats(1e-6, 0.5))
def test_quantiles_are_symmetric(dof: float, share: float) -> None:
    """Both sides of the middle are alike, as far as 1 - p is a float."""
    low, high = student.quantile(dof, share), student.quantile(dof, 1 - share)
    if math.isfinite(high):
        assert high == pytest.approx(-low, rel=1e-8 / min(dof, 1.0), abs=1e-12)


def test_one_and_two_degrees_of_freedom_have_closed_forms() -> None:
    """Cauchy's distribution, and the next: no library is asked."""
    for t in PLACES:
        assert close(student.cumulative(1.0, -t), math.atan(1 / t) / math.pi, 1e-13)
        below = 1 / (math.hypot(t, math.sqrt(2)) * (math.hypot(t, math.sqrt(2)) + t))
        assert close(student.cumulative(2.0, -t), below, 1e-13)
    for p in (1e-12, 1e-5, 0.005, 0.1, 0.25, 0.3, 0.499):
        assert close(student.quantile(1.0, p), -1 / math.tan(math.pi * p), 1e-12)
        wanted = (2 * p - 1) / math.sqrt(2 * p * (1 - p))
        assert close(student.quantile(2.0, p), wanted, 1e-12)


def test_the_middle_and_the_ends_are_exact() -> None:
    """Half at 0, nothing and all at the infinities; what is not a number has none."""
    for dof in GRID:
        assert student.cumulative(dof, 0.0) == 0.5
        assert student.cumulative(dof, -math.inf) == 0.0
        assert student.cumulative(dof, math.inf) == 1.0
        assert student.quantile(dof, 0.5) == 0.0
    assert math.isnan(student.cumulative(3.0, math.nan))
    assert student.cumulative(2.0, -1e200) == 0.0  # below the smallest float
    far = student.cumulative(0.01, -1e200)  # its square is beyond the largest
    assert student.quantile(0.01, far) == pytest.approx(-1e200, rel=1e-9)


@pytest.mark.parametrize("dof", [1e16, 1e308, math.inf])
def test_without_end_it_is_the_normal_distribution(dof: float) -> None:
    """As it is where degrees of freedom are more than a float tells apart."""
    assert student.quantile(dof, 0.975) == NormalDist().inv_cdf(0.975)
    assert student.cumulative(dof, -1.0) == NormalDist().cdf(-1.0)
    below = student.quantile(1e15, 1e-7)
    assert close(below, NormalDist().inv_cdf(1e-7), 1e-9)


def test_what_no_float_holds_is_infinite() -> None:
    """A hundredth of a degree of freedom has quantiles beyond the largest float."""
    assert student.quantile(0.01, 1e-12) == -math.inf
    assert student.quantile(0.01, 1 - 1e-12) == math.inf


def test_nothing_jumps_where_the_method_changes() -> None:
    """Probabilities grow with t across every seam."""
    for dof in (*GRID, 400.0, 1e5):
        seams = (3.0, math.sqrt(dof))
        for seam in seams:
            steps = [seam * (1 + k * 1e-9) for k in range(-5, 6)]
            tails = [student.cumulative(dof, -t) for t in steps]
            assert all(late <= early for early, late in itertools.pairwise(tails))


@given(x=st.floats(-3, 7).map(lambda power: 10.0**power))
def test_polygammas_are_those_of_scipy(x: float) -> None:
    """Digamma, and its first two derivatives."""
    wanted = float(digamma(x))
    assert student.digamma(x) == pytest.approx(wanted, rel=1e-12, abs=1e-13)
    assert close(student.trigamma(x), float(polygamma(1, x)), 1e-12)
    assert close(student.tetragamma(x), float(polygamma(2, x)), 1e-12)


def test_polygammas_at_one_are_constants() -> None:
    """Euler's constant, and zeta of 2 and of 3."""
    assert student.digamma(1.0) == pytest.approx(-0.5772156649015329, rel=1e-13)
    assert student.trigamma(1.0) == pytest.approx(math.pi**2 / 6, rel=1e-13)
    assert student.tetragamma(1.0) == pytest.approx(-2 * 1.2020569031595942, rel=1e-13)
