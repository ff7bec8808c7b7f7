"""Which tests fresh processes measure again, and what their controls say.

Suspects are measured again because of what they are, and controls beside them because
they are not: what moved these, the machine did.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

from pytest_gpuperf.compute.change import is_exact
from pytest_gpuperf.compute.contrast import contrasts
from pytest_gpuperf.compute.machine import common_moves
from pytest_gpuperf.config import Config, ConfirmBy, Update
from pytest_gpuperf.judge.case import (
    POLICY,
    Case,
    Confirmation,
    Policy,
    Reference,
    Retest,
    confirmation_of,
)
from pytest_gpuperf.judge.regression import Look, Name, first_look
from pytest_gpuperf.judge.rule import (
    comparison_of,
    reference_comparisons,
)
from pytest_gpuperf.model.change import Comparison
from pytest_gpuperf.model.frozen import Frozen, replace
from pytest_gpuperf.model.run import MachineShift

__all__ = [
    "FirstLook",
    "choose_controls",
    "confirmations",
    "look_policy",
    "machine_shifts",
    "plan_retests",
]


class FirstLook(Frozen, frozen=True, kw_only=True):
    """
    What the first values of a whole run suggest.

    Attributes:
        cases: Every pair of measurement and metric.

        looks: What each of them suggests, in the same order.

        suspects: Ids of the tests that fresh processes must confirm.

        controls: Ids of tests that show what the machine itself did.
    """

    cases: tuple[Case, ...] = ()
    looks: tuple[Look, ...] = ()
    suspects: tuple[str, ...] = ()
    controls: tuple[str, ...] = ()


def plan_retests(
    cases: Sequence[Case],
    config: Config,
    *,
    straddling: Iterable[str] = (),
    references: Sequence[Reference] = (),
    compared: Sequence[Comparison | None] | None = None,
) -> FirstLook:
    """
    Return what the first values suggest, and which tests to measure again.

    Args:
        cases: Every pair of measurement and metric.

        config: What the run was asked to judge and to store.

        straddling: Ids of tests with a limit that one process could not decide.

        references: What this session and the stored ones timed of reference workloads.

        compared: The cases as numbers, where they were made already.
    """
    policy = look_policy(config)
    looks = first_look(cases, policy, references=references, compared=compared)
    pairs = list(zip(cases, looks, strict=True))
    noisy = [case for case, look in pairs if _must_confirm(look, config)]
    # of what many tests share a few tell as much as all of them
    shared = {case.name for case, look in pairs if look.shared}
    few = choose_controls([case for case in noisy if case.name in shared], policy)
    own = (case.key.test_id for case in noisy if case.name not in shared)
    suspects = dict.fromkeys((*own, *few, *straddling))
    tests = {case.key.test_id for case in noisy}
    classes = {case.bound_class for case in cases if case.key.test_id in tests}
    steady = [
        case
        for case, look in pairs
        if case.bound_class in classes
        and case.key.test_id not in suspects
        and _is_steady(case, look)
    ]
    return FirstLook(
        cases=tuple(cases),
        looks=looks,
        suspects=tuple(suspects),
        controls=choose_controls(steady, policy),
    )


def look_policy(config: Config) -> Policy:
    """Return the rule's constants for a first look, which a comparison may decide."""
    if config.confirm_by is ConfirmBy.FRESH:
        return POLICY
    # the store only finds suspects then, and one session is enough for that
    return replace(POLICY, suspect_p=POLICY.against_suspect_p, least_sessions=1)


def choose_controls(steady: Sequence[Case], policy: Policy) -> tuple[str, ...]:
    """
    Return some tests of each class, from all over the run.

    The first ones alone would show the machine as it was when the run began.

    Args:
        steady: Cases that can stand for their class, in the order of the run.

        policy: The rule's constants.
    """
    by_class: dict[str, dict[str, None]] = {}
    for case in steady:
        by_class.setdefault(case.bound_class.value, {})[case.key.test_id] = None
    chosen: dict[str, None] = {}
    for test_ids in map(list, by_class.values()):
        count = min(policy.control_count, len(test_ids))
        places = (place * len(test_ids) // count for place in range(count))
        chosen |= dict.fromkeys(test_ids[place] for place in places)
    return tuple(chosen)


def confirmations(
    first: FirstLook, retests: Mapping[str, Retest]
) -> dict[Name, Confirmation]:
    """
    Return what fresh processes gave for each suspected case, and for the controls.

    Args:
        first: The first look at the run.

        retests: What fresh processes gave, by test id.
    """
    confirmed: dict[Name, Confirmation] = {}
    controls: Collection[str] = frozenset(first.controls)
    for case, look in zip(first.cases, first.looks, strict=True):
        retest = retests.get(case.key.test_id)
        control = case.key.test_id in controls
        if retest is not None and (control or look.suspect):
            confirmed[case.name] = confirmation_of(case, retest, control=control)
    return confirmed


def machine_shifts(
    cases: Sequence[Case],
    confirmed: Mapping[Name, Confirmation],
    *,
    references: Sequence[Reference] = (),
) -> tuple[MachineShift, ...]:
    """
    Return how far the controls of each class with a suspect moved: the machine did it.

    Args:
        cases: All pairs of test and metric that the run has.

        confirmed: What fresh processes gave, by the case's name.

        references: What fresh processes timed of reference workloads.
    """
    classes: dict[str, Case] = {}
    suspects: list[Comparison] = []
    controls: list[Comparison] = []
    names: dict[str, list[str]] = {}
    for case in cases:
        confirmation = confirmed.get(case.name)
        if confirmation is None or not confirmation.run_values:
            continue
        comparison = comparison_of(case, POLICY, confirmation)
        if comparison is not None and not is_exact(comparison):
            classes[comparison.shift_group] = case
            (controls if confirmation.control else suspects).append(comparison)
            if confirmation.control:
                names.setdefault(comparison.shift_group, []).append(case.key.test_id)
    controls += reference_comparisons(references, suspects, fresh=True)
    groups = {comparison.shift_group for comparison in suspects}
    moves = common_moves(contrasts(controls))
    return tuple(
        MachineShift(
            bound_class=classes[group].bound_class,
            metric=classes[group].metric.name,
            effect=math.expm1(move.log_shift),
            control_count=move.control_count,
            moved=abs(move.log_shift) > math.log1p(POLICY.noise_threshold),
            controls=tuple(dict.fromkeys(names.get(group, ()))),
        )
        for group, move in sorted(moves.items())
        if group in groups
    )


def _must_confirm(look: Look, config: Config) -> bool:
    """Return whether fresh processes must decide about a case."""
    if not look.suspect:
        return False
    if look.worse:
        return config.baseline_named or config.update is Update.ALL
    return look.better and config.update in {Update.IMPROVED, Update.ALL}


def _is_steady(case: Case, look: Look) -> bool:
    """Return whether a case can show what the machine did to fresh processes."""
    return (
        not (look.worse or look.better or look.shared)
        and case.limit is not None
        and not case.counts
        and len(case.stored) >= POLICY.least_sessions
    )
