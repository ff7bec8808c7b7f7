"""Whether a test's outcome must wait, seen from one test alone; PYTEST_DONT_REWRITE."""

from __future__ import annotations

import math
from statistics import fmean

from pytest_gpuperf.judge.case import Case, Policy, direction
from pytest_gpuperf.judge.rows import early_verdict
from pytest_gpuperf.model.metric import Better

__all__ = ["may_regress"]


def may_regress(case: Case, policy: Policy | None = None) -> bool:
    """
    Return whether a case may be suspected once the whole suite is known.

    A test whose outcome was told cannot fail afterwards, and how unlikely a change is
    follows from the variances of all tests: so the size of the change alone counts here.

    Args:
        case: One pair of test and metric, as its first process measured it.

        policy: The rule's constants.
    """
    policy = policy or Policy()
    if case.limit is None or case.current is None or not case.stored:
        return False
    if early_verdict(case, policy, None) is not None:
        return False
    now = fmean(case.current.run_values)
    then = fmean(fmean(stored.value.run_values) for stored in case.stored)
    worse = then - now if direction(case.metric) is Better.HIGHER else now - then
    if worse <= 0:
        return False
    share = 0.0 if case.metric.exact else policy.suspect_share * case.limit
    return then == 0 or math.isclose(share, 0) or worse / abs(then) > share
