"""Whether a test's outcome must wait, seen from one test alone; PYTEST_DONT_REWRITE."""

from __future__ import annotations

import math
from statistics import fmean

from pytest_gpuperf.compute.change import exact_change, is_exact
from pytest_gpuperf.compute.comparison import Comparison
from pytest_gpuperf.judge.case import Case, Policy, direction
from pytest_gpuperf.judge.rows import comparable
from pytest_gpuperf.model.change import SessionValue
from pytest_gpuperf.model.metric import Better

__all__ = ["may_regress"]


def may_regress(case: Case, policy: Policy | None = None) -> bool:
    """
    Return whether a case may be suspected once the whole suite is known.

    A test whose outcome was told cannot fail afterwards, and how unlikely a change is
    follows from the variances of all tests: so the size of the change alone counts here,
    of the same values and on the same scale as at the end.

    Args:
        case: One pair of test and metric, as its first process measured it.

        policy: The rule's constants.
    """
    policy = policy or Policy()
    comparison = comparable(case, policy)
    if case.limit is None or comparison is None:
        return False
    if is_exact(comparison):
        share, change = 1.0, exact_change(comparison).effect
    else:
        share, change = policy.suspect_share, _effect(comparison)
    if change is None:  # something became of nothing: no limit is a share of that
        change = math.copysign(math.inf, _mean(comparison.current))
    worse = -change if direction(case.metric) is Better.HIGHER else change
    return worse > share * case.limit


def _effect(comparison: Comparison) -> float | None:
    """Return a change as a fraction; None: it is from 0."""
    sessions = (comparison.current, *comparison.stored)
    if all(value > 0 for session in sessions for value in session.run_values):
        now, *then = map(_log_mean, sessions)
        return math.expm1(now - fmean(then))
    current, *stored = (_mean(session) for session in sessions)
    reference = fmean(stored)
    if reference == 0:
        return None if current else 0.0
    return (current - reference) / abs(reference)


def _log_mean(session: SessionValue) -> float:
    """Return the mean of the logarithms of a session's processes; most have one."""
    first, *others = session.run_values
    return fmean(map(math.log, session.run_values)) if others else math.log(first)


def _mean(session: SessionValue) -> float:
    """Return the mean of a session's processes."""
    return fmean(session.run_values)
