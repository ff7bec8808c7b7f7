"""Retests: the tests that fresh processes measure, and what these show of a whole run."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from pytest_gpuperf.compute.alone import Weighed
from pytest_gpuperf.compute.change import changes, holm, is_exact
from pytest_gpuperf.compute.contrast import contrasts
from pytest_gpuperf.compute.machine import common_moves
from pytest_gpuperf.compute.stats import relative_change
from pytest_gpuperf.compute.suspects import classes_apart, weighed_changes
from pytest_gpuperf.judge.case import POLICY, Case, Policy, Reference
from pytest_gpuperf.judge.confirmation import (
    Confirmation,
    Retest,
    confirmation_elsewhere,
    confirmation_of,
)
from pytest_gpuperf.judge.look import FirstLook, Look, Name, sureness_of
from pytest_gpuperf.judge.rule import (
    comparable,
    confirmed_comparison,
    reference_comparisons,
    worsening_of,
)
from pytest_gpuperf.model.change import Change, Comparison
from pytest_gpuperf.model.environment import Host
from pytest_gpuperf.model.frozen import Frozen, replace
from pytest_gpuperf.model.run import MachineShift
from pytest_gpuperf.model.verdict import Outcome, Reason, Verdict

# The multiples of this fraction of a circle never lie close together, for any number of
# multiples. Any first part of the tests in this order comes from all over the run.
_GOLDEN_FRACTION = (math.sqrt(5) - 1) / 2

# A case that is unchanged in fresh processes may still be better by a whole limit. With
# a gap of two limits, the value of the suite lies beyond the limit in any case
# (docs/judging.md section 2).
_GAP_LIMITS = 2.0
# One suspect among this many tests. A smaller share does not move the median of a class
# far.
_LEADING = 5
# At this distance the p-value of the test alone is enough: noise hardly makes a value
# larger by a half, and with few sessions no adjusted p-value of a test is small
# (docs/judging.md section 2).
_FAR = 0.5
_CLEARED = frozenset({Outcome.UNCHANGED, Outcome.BLIND, Outcome.IMPROVED})


class Candidate(Frozen, frozen=True, kw_only=True):
    """
    A test that may be measured alone.

    Attributes:
        test_id: The test.

        alone_count: Number of stored sessions that measured the test alone.

        duration_s: Duration of the test in the suite, with its setup [s].
    """

    test_id: str
    alone_count: int
    duration_s: float


def draw_alone(
    candidates: Sequence[Candidate], *, budget_s: float, turn: int
) -> tuple[str, ...]:
    """
    Choose the tests to measure alone, and return their ids in the order of the run.

    Tests with the fewest stored alone values come first, spread over the whole run. As many
    tests as controls are drawn, however long they take, and more if they fit into the
    budget.

    Args:
        candidates: The tests that may be measured, in the order of the run.

        budget_s: Time limit for all chosen tests together [s].

        turn: Number of sessions stored before. The next session starts elsewhere in the
            run, so that tests that fail alone, and never get a value, do not block the
            rest.
    """
    order = sorted(
        range(len(candidates)),
        key=lambda place: (
            candidates[place].alone_count,
            (place + turn) * _GOLDEN_FRACTION % 1.0,
        ),
    )
    drawn: list[int] = []
    spent_s = 0.0
    for place in order:
        duration_s = candidates[place].duration_s
        if len(drawn) < POLICY.control_count or spent_s + duration_s <= budget_s:
            drawn.append(place)
            spent_s += duration_s
    return tuple(candidates[place].test_id for place in sorted(drawn))


def confirmations(
    first: FirstLook, retests: Mapping[str, Retest], here: Host | None = None
) -> dict[Name, Confirmation]:
    """
    Return the results of fresh processes for all suspected cases and controls.

    Args:
        first: The first look at the run.

        retests: The results of fresh processes, by test id.

        here: The host of the fresh processes, or None if unknown.
    """
    confirmed: dict[Name, Confirmation] = {}
    controls: Collection[str] = frozenset(first.controls)
    elsewhere = frozenset(first.elsewhere)
    for case, look in zip(first.cases, first.looks, strict=True):
        if look.suspect and case.key.test_id in elsewhere:
            confirmed[case.name] = confirmation_elsewhere(case, here)
            continue
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
    Return the machine drift of every class with a suspect, measured on the controls.

    If the tests of a class changed between the suite and the fresh processes and the
    reference workloads did not, the drift is that of the reference workloads.

    Args:
        cases: All pairs of test and metric of the run.

        confirmed: The results of fresh processes, by the name of the case.

        references: Times of reference workloads in fresh processes.
    """
    classes: dict[str, Case] = {}
    suspects: list[Comparison] = []
    controls: list[Comparison] = []
    names: dict[str, list[str]] = {}
    for case in cases:
        confirmation = confirmed.get(case.name)
        if confirmation is None or not confirmation.run_values:
            continue
        comparison = confirmed_comparison(case, POLICY, confirmation)
        if comparison is not None and not is_exact(comparison):
            classes[comparison.shift_group] = case
            (controls if confirmation.control else suspects).append(comparison)
            if confirmation.control:
                names.setdefault(comparison.shift_group, []).append(case.key.test_id)
    witnesses = reference_comparisons(references, suspects, fresh=True)
    # A move common to the tests that no reference workload shares is not drift.
    apart = classes_apart(controls, witnesses)
    controls = [c for c in controls if c.shift_group not in apart]
    groups = {comparison.shift_group for comparison in suspects}
    moves = common_moves(contrasts([*controls, *witnesses]))
    return tuple(
        MachineShift(
            bound_class=classes[group].bound_class,
            metric=classes[group].metric.name,
            effect=math.expm1(move.log_shift),
            control_count=move.control_count,
            moved=abs(move.log_shift) > math.log1p(POLICY.noise_threshold),
            controls=()
            if group in apart
            else tuple(dict.fromkeys(names.get(group, ()))),
        )
        for group, move in sorted(moves.items())
        if group in groups
    )


def with_suite(
    verdicts: Sequence[Verdict],
    cases: Sequence[Case],
    looks: Sequence[Look],
    policy: Policy = POLICY,
    *,
    strict: bool = False,
) -> tuple[Verdict, ...]:
    """
    Add the change seen in the suite to verdicts, if far worse than in fresh processes.

    The change is reported for a suspect that was measured again and did not regress.
    (Without a second measurement the value is the first one, and there is no gap.) The
    first value must be a regression by the rule of the whole run, and the whole interval of
    its samples must lie more than two limits from the value of the fresh processes. If the
    interval lies very far from that value, the probability of the test alone is enough.

    Args:
        verdicts: The verdicts of the gated cases, by fresh processes if there were any.

        cases: All pairs of test and metric of the run.

        looks: The first look at the cases, in the same order.

        policy: The rule's constants.

        strict: Whether such a test becomes undecided, instead of only being reported.
    """
    likely = [
        (case, look.change.p_worse)
        for case, look in zip(cases, looks, strict=True)
        if case.limit is not None
        and look.change is not None
        and look.change.p_worse is not None
    ]
    adjusted = holm([p_value for _, p_value in likely])
    level = policy.level(len(likely))
    # The smallest gap to report, for every case unlikely to be noise.
    least = {
        case.name: max(_GAP_LIMITS * (case.limit or 0.0), 0.0 if sure < level else _FAR)
        for (case, p_value), sure in zip(likely, adjusted, strict=True)
        if p_value < policy.alpha
    }
    by_name = {case.name: (case, look) for case, look in zip(cases, looks, strict=True)}
    return tuple(
        _with_suite(verdict, *by_name[name], least[name], strict=strict)
        if (name := (verdict.key, verdict.metric)) in least
        else verdict
        for verdict in verdicts
    )


def _with_suite(
    verdict: Verdict, case: Case, look: Look, least_gap: float, *, strict: bool
) -> Verdict:
    first, alone = look.change, verdict.change
    if first is None or alone is None or case.estimate is None:
        return verdict
    lacks = verdict.evidence is not None and bool(verdict.evidence.lacking)
    # With several processes, all but the first are fresh processes already.
    if verdict.outcome is Outcome.REGRESSED or first.run_count > 1 or lacks:
        return verdict
    if first.effect is None or alone.effect is None:  # No change is relative to 0.
        return verdict
    sign = case.sign
    fresh = min((sign * effect for effect in verdict.confirmations), default=0.0)
    # All fresh processes have most of it, too. A strict run must not be cleared by that.
    is_alone = verdict.outcome not in _CLEARED and fresh > sign * first.effect / 2
    # Machine drift is both included and corrected for, and the smaller gap counts.
    worst_alone = max(sign * alone.effect, sign * _relative(alone.current, alone))
    # The better end of the interval, because a short disturbance widens the interval.
    end = case.estimate.high if sign < 0 else case.estimate.low
    best = case.estimate.value if end is None else end
    if is_alone or sign * _relative(best, first) - worst_alone <= least_gap:
        return verdict
    marked = replace(verdict, in_suite=first)
    if not strict or verdict.outcome not in _CLEARED:
        return marked
    return replace(marked, outcome=Outcome.INCONCLUSIVE, reason=Reason.SLOWER_IN_SUITE)


def _relative(value: float, change: Change) -> float:
    return relative_change(value, change.reference)


def weighed_cases(
    cases: Sequence[Case],
    confirmations: Mapping[Name, Confirmation],
    references: Sequence[Reference],
    policy: Policy,
) -> list[Weighed | None]:
    """
    Return the change of each suspect by the suite and its fresh processes, in order.

    Args:
        cases: All pairs of test and metric of the run.

        confirmations: The results of fresh processes, by the name of the case.

        references: Times of reference workloads, of the fresh processes, too.

        policy: The rule's constants.
    """
    changed: list[Weighed | None] = [None] * len(cases)
    found = [confirmations.get(case.name) for case in cases]
    confirmed = [c if c is not None and c.run_values else None for c in found]
    suspects = [c is not None and not c.control for c in confirmed]
    if not any(suspects):
        return changed
    compared = [
        comparable(case, policy)
        if fresh is None
        else confirmed_comparison(case, policy, fresh)
        for case, fresh in zip(cases, confirmed, strict=True)
    ]
    # Only these cases determine the usual spread of a group and the machine drift of a
    # class.
    groups = {c.group for c, s in zip(compared, suspects, strict=True) if s and c}
    places = [p for p, c in enumerate(compared) if c is not None and c.group in groups]
    several = [c for p in places if (c := compared[p]) is not None]
    of_places = weighed_changes(
        several,
        level=sureness_of(cases, compared, policy),
        references=reference_comparisons(references, several, fresh=True),
        controls=[
            (fresh := confirmed[p]) is not None and fresh.control for p in places
        ],
        judged=[suspects[p] for p in places],
    )
    for place, weighed in zip(places, of_places, strict=True):
        changed[place] = weighed
    return changed


def decisive_changes(
    cases: Sequence[Case],
    looks: Sequence[Look],
    weighed: Sequence[Weighed | None],
    references: Sequence[Reference],
    policy: Policy,
) -> list[Change | None]:
    """
    Return the change of each case that decides, corrected for machine drift by other tests.

    Args:
        cases: All pairs of test and metric of the run.

        looks: The first look at each.

        weighed: The change of each suspect by the suite and its fresh processes.

        references: Times of reference workloads.

        policy: The rule's constants.
    """
    decisive = [
        look.change if both is None else both.change
        for look, both in zip(looks, weighed, strict=True)
    ]
    if not any(weighed):
        return decisive
    moved = [
        look.suspect
        and change is not None
        and case.limit is not None
        and abs(worsening_of(case, change)) > policy.suspect_share * case.limit
        for case, look, change in zip(cases, looks, decisive, strict=True)
    ]
    if not any(moved):
        return decisive
    # In the first look, suspects also count as evidence of machine drift. If a fifth of a
    # class or more did change, the median of the class may be the change of these suspects,
    # and all other tests would seem to move the other way. Only such classes are calculated
    # again, without the suspects.
    compared = [comparable(case, policy) for case in cases]
    classes: dict[str, list[bool]] = {}
    for comparison, is_moved in zip(compared, moved, strict=True):
        if comparison is not None and comparison.shift_group:  # "": nothing moves it.
            classes.setdefault(comparison.shift_group, []).append(is_moved)
    led = {name for name, of in classes.items() if _LEADING * sum(of) >= len(of)}
    groups = {c.group for c in compared if c is not None and c.shift_group in led}
    level = sureness_of(cases, compared, policy)
    # The usual spread is learned from the whole group.
    places = [p for p, c in enumerate(compared) if c is not None and c.group in groups]
    several = [c for p in places if (c := compared[p]) is not None]
    again = changes(
        several,
        level=level,
        references=reference_comparisons(references, several),
        controls=[not moved[p] for p in places],
        judged=[
            c.shift_group in led and not (looks[p].suspect or looks[p].shared)
            for p, c in zip(places, several, strict=True)
        ],
    )
    for place, change in zip(places, again, strict=True):
        if change is not None:
            decisive[place] = change
    return decisive
