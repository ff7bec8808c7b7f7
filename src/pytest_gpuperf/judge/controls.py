"""Which tests fresh processes measure again: suspects, and controls beside them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from pytest_gpuperf.compute.spread import Prior
from pytest_gpuperf.config import Config, Update
from pytest_gpuperf.judge.case import (
    Case,
    Confirmation,
    Policy,
    Retest,
    confirmation_of,
)
from pytest_gpuperf.judge.regression import Look, first_look, priors_of
from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.record import RecordKey

__all__ = ["FirstLook", "choose_controls", "confirmations", "plan_retests"]


class FirstLook(Frozen, frozen=True, kw_only=True):
    """
    What the first values of a whole run suggest.

    Attributes:
        cases: Every pair of measurement and metric.

        looks: What each of them suggests, in the same order.

        priors: How much sessions of such tests differ, by group.

        suspects: Ids of the tests that fresh processes must confirm.

        controls: Ids of tests that show what the machine itself did.
    """

    cases: tuple[Case, ...] = ()
    looks: tuple[Look, ...] = ()
    priors: Mapping[str, Prior] = {}
    suspects: tuple[str, ...] = ()
    controls: tuple[str, ...] = ()


def plan_retests(
    cases: Sequence[Case],
    config: Config,
    *,
    straddling: Iterable[str] = (),
) -> FirstLook:
    """
    Return what the first values suggest, and which tests to measure again.

    Args:
        cases: Every pair of measurement and metric.

        config: What the run was asked to judge and to store.

        straddling: Ids of tests with a limit that one process could not decide.
    """
    policy = Policy()
    priors = priors_of(cases)
    looks = first_look(cases, priors=priors)
    pairs = list(zip(cases, looks, strict=True))
    noisy = [case for case, look in pairs if _must_confirm(look, config)]
    suspects = dict.fromkeys((*(case.key.test_id for case in noisy), *straddling))
    tests = {case.key.test_id for case in noisy}
    classes = {case.bound_class for case in cases if case.key.test_id in tests}
    steady = [
        case
        for case, look in pairs
        if case.bound_class in classes
        and case.key.test_id not in suspects
        and _is_steady(case, look, policy)
    ]
    return FirstLook(
        cases=tuple(cases),
        looks=looks,
        priors=priors,
        suspects=tuple(suspects),
        controls=choose_controls(steady, policy),
    )


def choose_controls(steady: Sequence[Case], policy: Policy) -> tuple[str, ...]:
    """
    Return some tests of each class, from all over the run.

    The first ones alone would show the machine as it was when the run began.

    Args:
        steady: Cases that can show what the machine did, in the order of the run.

        policy: The rule's constants.
    """
    by_class: dict[str, dict[str, None]] = {}
    for case in steady:
        by_class.setdefault(case.bound_class.value, {})[case.key.test_id] = None
    chosen: dict[str, None] = {}
    for test_ids in map(list, by_class.values()):
        count = min(policy.class_count, len(test_ids))
        places = (place * len(test_ids) // count for place in range(count))
        chosen |= dict.fromkeys(test_ids[place] for place in places)
    return tuple(chosen)


def confirmations(
    first: FirstLook, retests: Mapping[str, Retest]
) -> dict[tuple[RecordKey, str], Confirmation]:
    """
    Return what fresh processes gave for each suspected case, and for the controls.

    Args:
        first: The first look at the run.

        retests: What fresh processes gave, by test id.
    """
    confirmed: dict[tuple[RecordKey, str], Confirmation] = {}
    controls: Collection[str] = frozenset(first.controls)
    for case, look in zip(first.cases, first.looks, strict=True):
        retest = retests.get(case.key.test_id)
        control = case.key.test_id in controls
        if retest is not None and (control or look.suspect):
            confirmed[case.name] = confirmation_of(case, retest, control=control)
    return confirmed


def _must_confirm(look: Look, config: Config) -> bool:
    """Return whether fresh processes must decide about a case."""
    if not look.suspect:
        return False
    if look.worse:
        return config.baseline_named or config.update is Update.ALL
    return look.better and config.update in {Update.IMPROVED, Update.ALL}


def _is_steady(case: Case, look: Look, policy: Policy) -> bool:
    """Return whether a case can show what the machine did."""
    return (
        not (look.worse or look.better)
        and case.limit is not None
        and not case.counts
        and len(case.stored) >= policy.least_sessions
    )
