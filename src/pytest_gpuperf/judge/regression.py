"""Regressed or not: the comparison of a whole run with the baseline."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import median
from types import MappingProxyType
from typing import TYPE_CHECKING

from pytest_gpuperf.compute.change import changes, detectable_effects, holm
from pytest_gpuperf.compute.spread import DRIFT_SESSIONS
from pytest_gpuperf.judge.case import POLICY, Case, Policy, Reference
from pytest_gpuperf.judge.look import Look, Name, first_look, sureness_of
from pytest_gpuperf.judge.rule import (
    Ruling,
    comparable,
    confirmed_comparison,
    early_verdict,
    kernel_verdict,
    reference_comparisons,
    rule,
    suffices,
    verdict_of,
    verdict_within_limit,
    worsening_of,
)
from pytest_gpuperf.model.change import Change
from pytest_gpuperf.model.environment import Host
from pytest_gpuperf.model.record import BoundClass
from pytest_gpuperf.model.verdict import (
    Outcome,
    Reason,
    Verdict,
)

if TYPE_CHECKING:
    from pytest_gpuperf.compute.alone import Weighed
    from pytest_gpuperf.judge.confirmation import Confirmation

# One suspect among this many tests. A smaller share does not move the median of a class
# far.
_LEADING = 5

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
    weighed = _weighed(cases, confirmations, references, policy)
    decisive = _decisive_changes(cases, looks, weighed, references, policy)
    verdicts: list[Verdict | None] = []
    pairs: list[tuple[Case, Change]] = []
    by_both: list[Weighed | None] = []
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
        verdicts.append(verdict)
    if undecided:
        rulings = _rulings(
            *(pairs, by_both, confirmations, policy, _shared(cases, looks)),
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
        return kernel_verdict(case, policy, confirmation)
    if early.reason is not Reason.TOO_FEW_SESSIONS:
        return early
    return verdict_of(
        case, early.outcome, early.reason, evidence=early.evidence, change=change
    )


def cache_slowdowns(references: Iterable[Reference]) -> dict[Host | None, float]:
    """
    Return how many times as slow reads beyond a core's caches are, by host.

    Args:
        references: Times of reference workloads in this session, the stored sessions and
            the fresh processes, which count where they are faster.

    Returns:
        The factor against the slowest stored session. A host without such reads, now or in
        a stored session, is left out.
    """
    factors: dict[Host | None, float] = {}
    for reference in references:
        stored = [median(s.value.run_values) for s in reference.stored]
        now = [
            median(value.run_values)
            for value in (reference.current, reference.fresh)
            if value is not None
        ]
        if reference.bound_class is BoundClass.CACHE and stored and now:
            factors[reference.host] = min(now) / max(stored)
    return factors


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


def _weighed(
    cases: Sequence[Case],
    confirmations: Mapping[Name, Confirmation],
    references: Sequence[Reference],
    policy: Policy,
) -> list[Weighed | None]:
    changed: list[Weighed | None] = [None] * len(cases)
    if not confirmations:  # The usual case, and a name is slow to look up.
        return changed
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
    # Needed only by runs with fresh processes.
    from pytest_gpuperf.compute.suspects import weighed_changes

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


def _decisive_changes(
    cases: Sequence[Case],
    looks: Sequence[Look],
    weighed: Sequence[Weighed | None],
    references: Sequence[Reference],
    policy: Policy,
) -> list[Change | None]:
    decisive = [
        look.change if both is None else both.change
        for look, both in zip(looks, weighed, strict=True)
    ]
    if not any(weighed):  # The usual case.
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


def _rulings(
    pairs: Sequence[tuple[Case, Change]],
    weighed: Sequence[Weighed | None],
    confirmations: Mapping[Name, Confirmation],
    policy: Policy,
    shared: Collection[Name],
    *,
    undecided: Iterable[int],
    complete: bool,
) -> list[tuple[Case, Ruling]]:
    confirmed: list[Confirmation | None] = [None] * len(pairs)
    if confirmations:
        confirmed = [_confirmation(case, confirmations) for case, _ in pairs]
    # A case that was not measured again was not suspected. It counts as a pair without
    # a p-value.
    judged = [
        not policy.selected
        or case.of_file
        or (confirmation is not None and bool(confirmation.run_values))
        for (case, _), confirmation in zip(pairs, confirmed, strict=True)
    ]
    marked = list(zip(pairs, judged, strict=True))
    count = len([1 for _, change in pairs if change.p_worse is not None])
    worse = _adjusted(
        [c.p_worse if is_judged else None for (_, c), is_judged in marked], count
    )
    better = _adjusted(
        [c.p_better if is_judged else None for (_, c), is_judged in marked], count
    )
    by_itself = _by_itself(pairs, weighed, count)
    level = policy.level(count)
    rulings: list[tuple[Case, Ruling]] = []
    for place in undecided:
        case, change = pairs[place]
        p_alone, p_suite = by_itself[place]
        ruling = Ruling(
            change=change,
            p_worse=worse[place],
            p_better=better[place],
            level=level,
            confirmation=confirmed[place],
            complete=complete,
            worsening=worsening_of(case, change),
            selected=policy.selected and not case.of_file,
            shared=bool(shared) and case.name in shared,
            weighed=weighed[place],
            p_alone=p_alone,
            p_suite=p_suite,
        )
        rulings.append((case, ruling))
    return rulings


def _by_itself(
    pairs: Sequence[tuple[Case, Change]],
    weighed: Sequence[Weighed | None],
    count: int,
) -> list[tuple[float, float]]:
    """
    Return the adjusted chances of changes by fresh processes alone, and by the suite alone.
    """
    if not any(weighed):  # The usual case.
        return [(1.0, 1.0)] * len(pairs)
    alone: list[float | None] = []
    suite: list[float | None] = []
    for (case, change), both in zip(pairs, weighed, strict=True):
        if both is None or both.alone is None:
            alone.append(None)
            suite.append(None)
            continue
        is_worse = worsening_of(case, both.alone) > 0
        alone.append(both.alone.p_worse if is_worse else both.alone.p_better)
        is_worse = worsening_of(case, change) > 0
        suite.append(both.suite_worse if is_worse else both.suite_better)
    return list(zip(_adjusted(alone, count), _adjusted(suite, count), strict=True))


def _adjusted(p_values: Sequence[float | None], count: int) -> list[float]:
    adjusted = iter(holm([p for p in p_values if p is not None], count=count))
    return [1.0 if p is None else next(adjusted) for p in p_values]
