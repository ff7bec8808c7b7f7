"""The rules of compute/spread: variances of a test and of its suite."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import digamma, polygamma, stdtrit

from pytest_gpuperf.compute.spread import (
    Prior,
    Spread,
    _inverse_trigamma,
    fit_prior,
    half_width,
    moderated,
    moments,
    session_spread,
)
from pytest_gpuperf.model.record import SessionValue
from unit.compute.comparing import value


def sessions(
    *values: tuple[float, ...], widths: tuple[float, ...] = ()
) -> list[SessionValue]:
    """Stored sessions."""
    return [value(*runs, widths=widths) for runs in values]


@pytest.mark.parametrize(("dof", "variance"), [(4.0, 1e-4), (20.0, 4e-6)])
def test_the_prior_is_found_again(dof: float, variance: float) -> None:
    """Variances drawn with a prior give that prior back (Smyth 2004)."""
    draw = np.random.default_rng(1)
    true = variance * dof / draw.chisquare(dof, 5000)
    own = true * draw.chisquare(4, 5000) / 4

    prior = fit_prior([(value, 4) for value in own])

    assert prior is not None
    assert prior.dof == pytest.approx(dof, rel=0.15)
    assert prior.variance == pytest.approx(variance, rel=0.05)


def test_a_prior_of_ten_tests_by_hand() -> None:
    """Its trigamma is what the logs vary beyond chance, with n - 1 (Smyth 2004)."""
    own = [(1e-4 * 3**n, 4 + n % 3) for n in range(10)]
    logs = [math.log(v) - float(digamma(d / 2)) + math.log(d / 2) for v, d in own]
    chance = statistics.fmean(float(polygamma(1, d / 2)) for _, d in own)
    prior = fit_prior(own)

    assert prior is not None
    half = prior.dof / 2
    assert float(polygamma(1, half)) == pytest.approx(
        statistics.variance(logs) - chance
    )
    assert math.log(prior.variance) == pytest.approx(
        statistics.fmean(logs) + float(digamma(half)) - math.log(half)
    )


def test_equal_variances_are_worth_all_their_freedom() -> None:
    """Where variances scatter as chance alone would, the prior is worth them all."""
    prior = fit_prior([(1e-4, 4)] * 20)

    assert prior is not None
    assert prior.dof == 80
    assert (
        1e-4 < prior.variance < 1.5e-4
    )  # the mean log of a chi-square is below its mean


def test_too_few_tests_have_no_prior() -> None:
    """Nine variances say nothing of variances; ten do; without freedom none counts."""
    varied = [(1e-4 * (n + 1), 4.0) for n in range(10)]

    assert fit_prior(varied[:9]) is None
    assert fit_prior(varied) is not None
    assert fit_prior([(v, 0.0) for v, _ in varied]) is None
    assert fit_prior([(0.0, 4.0)] * 10) is None


def test_a_variance_of_zero_does_not_break_the_prior() -> None:
    """Values that a clock rounds to the same have a variance of 0."""
    prior = fit_prior([(1e-4, 4.0)] * 9 + [(0.0, 4.0)])
    assert prior is not None
    assert math.isfinite(prior.dof)
    assert prior.variance > 0


@given(st.floats(1e-9, 1e9))
def test_the_inverse_trigamma_inverts(value: float) -> None:
    """trigamma(inverse(x)) is x."""
    x = _inverse_trigamma(value)
    assert float(polygamma(1, x)) == pytest.approx(value, rel=1e-5)


def test_variances_are_weighed_by_their_freedom() -> None:
    """d0 and d weigh s0 and s; without a prior the test stands alone."""
    assert moderated(4.0, 2, Prior(dof=6, variance=8.0)) == (7.0, 8)
    assert moderated(4.0, 2, None) == (4.0, 2)
    assert moderated(4.0, 2, Prior(dof=1, variance=7.0)) == (5.0, 3)
    assert moderated(4.0, 2, Prior(dof=0, variance=8.0)) == (4.0, 2)
    assert moderated(4.0, 0, Prior(dof=0, variance=8.0)) == (4.0, 0)


def test_values_far_from_zero_keep_their_variance() -> None:
    """Squares are taken about the mean, and not from those of the values."""
    values = [1e9, 1e9 + 0.1, 1e9 + 0.3]
    mean, squares = moments(values)

    assert mean == pytest.approx(statistics.fmean(values))
    assert squares == pytest.approx(2 * statistics.variance(values))


def test_half_width_of_a_given_and_of_an_estimated_spread() -> None:
    """What is given is normal; what few sessions say has the wider tails of t."""
    assert half_width(Spread(fraction=0.01)) == pytest.approx(0.02575829)
    estimated = Spread(fraction=0.01, dof=2, session_count=3)
    assert half_width(estimated) == pytest.approx(0.01 * float(stdtrit(2, 0.995)))
    assert half_width(estimated, fraction=0.02) == 2 * half_width(estimated)


def test_spread_of_stored_sessions() -> None:
    """It is the standard deviation of the sessions' mean logarithms, with n - 1."""
    values = [(1.0,), (1.02,), (1.05,), (0.99,)]
    spread = session_spread(sessions(*values))

    assert spread is not None
    assert spread.dof == 3
    assert spread.session_count == 4
    logs = [math.log(runs[0]) for runs in values]
    assert spread.fraction == pytest.approx(statistics.stdev(logs))


def test_too_few_sessions_or_no_logarithm_have_no_spread() -> None:
    """Three sessions are needed, of values above 0."""
    assert session_spread(sessions((1.0,), (1.1,))) is None
    assert session_spread(sessions((1.0,), (1.1,), (0.0,))) is None


def test_what_is_open_within_sessions_is_the_least_spread() -> None:
    """Sessions that agree by luck are not better known than their processes, samples."""
    equal = session_spread(sessions((1.0,), (1.0,), (1.0,)))
    processes = session_spread(sessions((0.9, 1.1), (0.9, 1.1), (0.9, 1.1)))
    one = session_spread(sessions((0.9, 1.1), (0.99,), (0.99,)))
    samples = session_spread(sessions((1.0,), (1.0,), (1.0,), widths=(0.0196,)))

    assert equal is not None
    assert equal.fraction == 0.001
    assert processes is not None
    within = statistics.stdev([math.log(0.9), math.log(1.1)]) / math.sqrt(2)
    assert processes.fraction == pytest.approx(within)
    assert one is not None
    share = (1 / 2 + 1 + 1) / 3
    assert one.fraction == pytest.approx(within * math.sqrt(2 * share))
    assert samples is not None
    assert samples.fraction == pytest.approx(0.01)


def test_a_prior_moderates_the_spread() -> None:
    """The suite's prior adds its freedom."""
    prior = Prior(dof=8, variance=1e-4)
    spread = session_spread(sessions((1.0,), (1.0,), (1.0,)), prior)
    assert spread is not None
    assert spread.dof == 10
    assert spread.fraction == pytest.approx(math.sqrt(0.8e-4))
