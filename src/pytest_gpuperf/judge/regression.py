"""Regressed or not: the comparison of a whole run with the baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from pytest_gpuperf.compute.change import detectable_effects
from pytest_gpuperf.compute.spread import DRIFT_SESSIONS
from pytest_gpuperf.judge.case import POLICY, Case, Policy, Reference
from pytest_gpuperf.judge.look import Look, Name, first_look, sureness_of
from pytest_gpuperf.judge.rule import (
    comparable,
    early_verdict,
    reference_comparisons,
    suffices,
    verdict_of,
    verdict_within_limit,
)
from pytest_gpuperf.model.change import Change
from pytest_gpuperf.model.verdict import (
    Outcome,
    Reason,
    Verdict,
)

if TYPE_CHECKING:
    from pytest_gpuperf.compute.alone import Weighed
    from pytest_gpuperf.judge.confirmation import Confirmation

_NOTHING: Mapping[Name, Confirmation] = MappingProxyType({})

# The detectable change with this many more sessions is reported with a verdict
# (docs/judging.md section 2).
MORE_SESSIONS = 2


def settle(
    cases: Sequence[Case],
    confirmations: Mapping[Name, Confirmation] = _NOTHING,
    policy: Policy = POLICY,
    *,
    complete: bool = True,
    looks: Sequence[Look] | None = None,
    references: Sequence[Reference] = (),
) -> tuple[Verdict, ...]:
    """
    Return the verdict of every gated case.

    Args:
        cases: All pairs of test and metric of the run. Cases without a limit help to learn
            the usual spread and get no verdict.

        confirmations: The results of fresh processes for suspects and controls, by the name
            of the case.

        policy: The rule's constants.

        complete: Whether every test reported. An incomplete run has no regressions.

        looks: The first look at `cases`, or None to take it now.

        references: Times of reference workloads in this session, the stored sessions and
            the fresh processes.

    Returns:
        Verdicts of the cases with a limit, in the order of the cases.
    """
    if looks is None:
        looks = first_look(cases, policy, references=references)
    weighed, decisive = _changes(cases, confirmations, policy, looks, references)
    verdicts: list[Verdict | None] = []
    pairs: list[tuple[Case, Change]] = []
    by_both: list[Weighed | None] = []
    confirmed: list[Confirmation | None] = []
    # The place of each pair that its change does not decide, and that of its verdict.
    undecided: dict[int, int] = {}
    for case, change, both in zip(cases, decisive, weighed, strict=True):
        if case.limit is None:
            continue
        # A name is slow to look up, and nearly no run has confirmations.
        confirmation = _confirmation(case, confirmations) if confirmations else None
        verdict = early_verdict(case, policy, confirmation)
        if verdict is not None or confirmation is not None:
            verdict = _told(case, change, verdict, confirmation, policy)
        if verdict is None and change is not None:
            if confirmation is None and both is None:  # Nearly all cases.
                verdict = verdict_within_limit(case, change, policy)
            if verdict is None:
                undecided[len(pairs)] = len(verdicts)
            pairs.append((case, change))
            by_both.append(both)
            confirmed.append(confirmation)
        verdicts.append(verdict)
    if undecided:
        # Needed only where a change is beyond its limit.
        from pytest_gpuperf.judge.ruling import cache_slowdowns, rule, rulings_of

        rulings = rulings_of(
            *(pairs, by_both, confirmed, policy, _shared(cases, looks)),
            undecided=undecided,
            complete=complete,
        )
        slowdowns = cache_slowdowns(references)
        for place, (case, ruling) in zip(undecided.values(), rulings, strict=True):
            slowdown = slowdowns.get(case.host)
            verdicts[place] = rule(case, ruling, policy, cache_slowdown=slowdown)
    decided = [verdict for verdict in verdicts if verdict is not None]
    return _with_drifts(decided, cases, references, policy)


def _with_drifts(
    decided: Sequence[Verdict],
    cases: Sequence[Case],
    references: Sequence[Reference],
    policy: Policy,
) -> tuple[Verdict, ...]:
    counts = [case.oldest.listed.count + case.stored.listed.count for case in cases]
    if max(counts, default=0) + 1 < DRIFT_SESSIONS:
        return tuple(decided)
    # Needed only by long series.
    from pytest_gpuperf.judge.drift import with_drifts

    return with_drifts(decided, cases, references, policy)


def _changes(
    cases: Sequence[Case],
    confirmations: Mapping[Name, Confirmation],
    policy: Policy,
    looks: Sequence[Look],
    references: Sequence[Reference],
) -> tuple[Sequence[Weighed | None], Sequence[Change | None]]:
    """Return the change of each case by both kinds of processes, and the one that decides."""
    if not confirmations:
        return [None] * len(cases), [look.change for look in looks]
    # Needed only by runs with fresh processes.
    from pytest_gpuperf.judge.retests import decisive_changes, weighed_cases

    weighed = weighed_cases(cases, confirmations, references, policy)
    return weighed, decisive_changes(cases, looks, weighed, references, policy)


def _shared(cases: Sequence[Case], looks: Sequence[Look]) -> set[Name]:
    return {case.name for case, look in zip(cases, looks, strict=True) if look.shared}


def _told(
    case: Case,
    change: Change | None,
    early: Verdict | None,
    confirmation: Confirmation | None,
    policy: Policy,
) -> Verdict | None:
    """Return the verdict that rules out a judgement by numbers, with the change, or None."""
    if early is None:
        # Needed only by runs with fresh processes.
        from pytest_gpuperf.judge.ruling import kernel_verdict

        return kernel_verdict(case, policy, confirmation)
    if early.reason is not Reason.TOO_FEW_SESSIONS:
        return early
    return verdict_of(
        case, early.outcome, early.reason, evidence=early.evidence, change=change
    )


def shown(
    cases: Sequence[Case],
    policy: Policy = POLICY,
    *,
    looks: Sequence[Look] | None = None,
) -> tuple[Verdict, ...]:
    """
    Return the changes of the ungated cases, for reports.

    Nothing is allowed or forbidden, so nothing is decided: every change is *unchanged*
    without a threshold and does not count as judged. A case without anything to compare has
    no change.
    """
    if all(case.limit is not None for case in cases):
        return ()
    if looks is None:
        looks = first_look(cases, policy)
    return tuple(
        verdict_of(
            case,
            Outcome.UNCHANGED,
            Reason.EQUAL if look.change.effect == 0 else Reason.WITHIN_NOISE,
            change=look.change,
        )
        for case, look in zip(cases, looks, strict=True)
        if case.limit is None and look.change is not None
    )


def smallest_seen(
    cases: Sequence[Case],
    policy: Policy = POLICY,
    *,
    references: Sequence[Reference] = (),
    more_sessions: int = 0,
) -> tuple[float | None, ...]:
    """
    Return the smallest change of every gated case that a similar run would find.

    Args:
        cases: All pairs of test and metric of the run.

        policy: The rule's constants.

        references: Times of reference workloads in this session and the stored sessions.

        more_sessions: Number of sessions assumed to be stored in addition.

    Returns:
        Relative effects in the order of the cases. None for a case without a limit, with
        too few sessions, or decided by equality.
    """
    compared = [comparable(case, policy) for case in cases]
    comparisons = [c for c in compared if c is not None]
    effects = iter(
        detectable_effects(
            comparisons,
            level=sureness_of(cases, compared, policy),
            references=reference_comparisons(references, comparisons),
            more_sessions=more_sessions,
        )
    )
    of_cases = [None if c is None else next(effects) for c in compared]
    return tuple(
        effect if case.limit is not None and suffices(case, policy) else None
        for case, effect in zip(cases, of_cases, strict=True)
    )


def _confirmation(
    case: Case, confirmations: Mapping[Name, Confirmation]
) -> Confirmation | None:
    confirmation = confirmations.get(case.name)
    return None if confirmation is None or confirmation.control else confirmation
