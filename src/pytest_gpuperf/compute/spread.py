"""The spread between sessions, moderated by the variances of the suite.

Few sessions of one test give a poor estimate of its variance; the tests of a suite
together show which variances are usual. Empirical Bayes combines the two:

    s^2 = (d0 s0^2 + d s_own^2) / (d0 + d)

References:
    Smyth 2004, Stat. Appl. Genet. Mol. Biol. 3(1) art. 3, section 6.2 for d0 and s0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import NormalDist, fmean

from pytest_gpuperf.compute.stats import CONFIDENCE, median
from pytest_gpuperf.compute.student import digamma, quantile, tetragamma, trigamma
from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.record import SessionValue

__all__ = [
    "LEAST_DEVIATION",
    "LEAST_SESSIONS",
    "LEAST_TESTS",
    "Z_95",
    "Prior",
    "Spread",
    "fit_prior",
    "half_width",
    "moderated",
    "moments",
    "sampling_error",
    "session_spread",
]

# docs/judging.md section 2: fewer variances cannot say how variances vary
LEAST_TESTS = 10
LEAST_SESSIONS = 3  # docs/judging.md section 2: fewer do not show how much they differ
LEAST_DEVIATION = 0.001  # nothing repeats better; values rounded by a clock seem to
Z_95 = 1.96  # a 99 % half-width over it is a cautious standard error (section 2)
_LEAST_SHARE = (
    1e-5  # of the median variance; a variance of 0 has no logarithm (limma's)
)
_NEWTON_STEPS = 50  # it converges in fewer than 10
_CONVERGED = 1e-10
_HUGE, _TINY = 1e7, 1e-6  # outside them the inverse trigamma is its own asymptote


class Prior(Frozen, frozen=True, kw_only=True):
    """
    The prior distribution of the variances of a suite's tests.

    Attributes:
        dof: The degrees of freedom that it is worth (d0), >= 0.

        variance: The usual variance of a session's value, on a log scale (s0^2), > 0.
    """

    dof: float
    variance: float


class Spread(Frozen, frozen=True, kw_only=True):
    """
    The spread of one metric of one test between sessions.

    Attributes:
        fraction: Standard deviation of a session's value, relative to it, >= 0.

        dof: Degrees of freedom of the estimate, > 0; None: it is declared, not estimated.

        session_count: Sessions of the estimate; 0 where it is declared.
    """

    fraction: float
    dof: float | None = None
    session_count: int = 0


def session_spread(
    stored: Sequence[SessionValue], prior: Prior | None = None
) -> Spread | None:
    """
    Return the spread of the stored sessions of one metric of one test.

    It is at least the standard error within a session.

    Args:
        stored: Its sessions, with values > 0.

        prior: The prior of the suite's variances.

    Returns:
        None where there are fewer than 3 sessions, or a value is not positive.
    """
    values = [value for session in stored for value in session.run_values]
    if len(stored) < LEAST_SESSIONS or min(values) <= 0:
        return None
    runs = [moments([math.log(v) for v in session.run_values]) for session in stored]
    _, squares = moments([mean for mean, _ in runs])
    variance, dof = moderated(squares / (len(stored) - 1), len(stored) - 1, prior)
    share = fmean(1 / len(session.run_values) for session in stored)
    within = sum(apart for _, apart in runs) / max(len(values) - len(stored), 1)
    floor = max(math.sqrt(within * share), sampling_error(stored), LEAST_DEVIATION)
    deviation = max(math.sqrt(variance), floor)
    return Spread(fraction=deviation, dof=dof, session_count=len(stored))


def half_width(
    spread: Spread, *, fraction: float | None = None, confidence: float = CONFIDENCE
) -> float:
    """
    Return half the width of the two-sided interval of one session's value.

    Args:
        spread: Between sessions.

        fraction: A standard deviation to take instead of the spread's own.

        confidence: Of the interval, above 0 and below 1.

    Returns:
        A share of the value, on a log scale, >= 0.
    """
    deviation = spread.fraction if fraction is None else fraction
    upper = (1 + confidence) / 2
    if spread.dof is None:
        return NormalDist().inv_cdf(upper) * deviation
    return quantile(spread.dof, upper) * deviation


def moments(values: Sequence[float]) -> tuple[float, float]:
    """
    Return the mean of values, and the sum of their squares about it.

    Args:
        values: Numbers, >= 1 of them.

    Example:
        >>> moments([1.0, 3.0])
        (2.0, 2.0)
    """
    mean = sum(values) / len(values)
    return mean, sum((value - mean) * (value - mean) for value in values)


def sampling_error(sessions: Iterable[SessionValue]) -> float:
    """
    Return the standard error of a process's value from its samples; 0: unknown.

    Args:
        sessions: Those of one metric of one test.
    """
    widths = [width for session in sessions for width in session.half_widths]
    return sum(widths) / len(widths) / Z_95 if widths else 0.0


def moderated(variance: float, dof: float, prior: Prior | None) -> tuple[float, float]:
    """
    Return a test's variance moderated by its suite's, and its degrees of freedom.

    Args:
        variance: The test's own, >= 0.

        dof: Degrees of freedom of it, >= 0.

        prior: The suite's; None: the test stands alone.
    """
    if prior is None or prior.dof == 0:
        return variance, dof
    total = prior.dof + dof
    return (prior.dof * prior.variance + dof * variance) / total, total


def fit_prior(variances: Iterable[tuple[float, float]]) -> Prior | None:
    """
    Return the prior of the variances of a suite's tests.

    Args:
        variances: Variance and degrees of freedom of each test; those without freedom are left
            out.

    Returns:
        The prior; None where fewer than 10 tests have degrees of freedom, or none varies.
    """
    usable = [(variance, dof) for variance, dof in variances if dof > 0]
    if len(usable) < LEAST_TESTS:
        return None
    least = _LEAST_SHARE * median([variance for variance, _ in usable])
    if least <= 0:
        return None
    # few distinct values: most tests have equally many sessions
    halves = {dof: dof / 2 for _, dof in usable}
    offset = {dof: math.log(half) - digamma(half) for dof, half in halves.items()}
    expected = {dof: trigamma(half) for dof, half in halves.items()}
    logs = [math.log(max(s2, least)) + offset[dof] for s2, dof in usable]
    mean = fmean(logs)
    scatter = math.fsum((x - mean) ** 2 for x in logs) / (len(logs) - 1)
    excess = scatter - fmean(expected[dof] for _, dof in usable)
    # the prior cannot be worth more than the tests behind it
    most = math.fsum(dof for _, dof in usable)
    if excess <= 0:  # no more scatter than equal variances would show
        return Prior(dof=most, variance=math.exp(mean))
    dof = 2 * _inverse_trigamma(excess)
    variance = math.exp(mean + digamma(dof / 2) - math.log(dof / 2))
    return Prior(dof=min(dof, most), variance=variance)


def _inverse_trigamma(value: float) -> float:
    """Return x > 0 with trigamma(x) = value > 0; Newton on 1/trigamma, as Smyth does."""
    if value > _HUGE:
        return 1 / math.sqrt(value)
    if value < _TINY:
        return 1 / value
    x = 0.5 + 1 / value
    for _ in range(_NEWTON_STEPS):
        estimate = trigamma(x)
        step = estimate * (1 - estimate / value) / tetragamma(x)
        x += step
        if -step / x < _CONVERGED:
            break
    return x
