"""Regressed or not: a whole run held against its baseline."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from pytest_gpuperf.compute.change import changes, fit_priors, holm, is_exact
from pytest_gpuperf.compute.spread import Prior
from pytest_gpuperf.judge.case import Case, Confirmation, Policy, direction
from pytest_gpuperf.judge.rule import (
    Ruling,
    comparable,
    comparison_of,
    early_verdict,
    group_of,
    kernel_verdict,
    rule,
    verdict_of,
)
from pytest_gpuperf.model.change import Change, Comparison, Level, Shift
from pytest_gpuperf.model.frozen import BulkRecord, replace
from pytest_gpuperf.model.metric import Better
from pytest_gpuperf.model.record import RecordKey, SessionValue, StoredRecord
from pytest_gpuperf.model.sample import Estimate
from pytest_gpuperf.model.verdict import Outcome, Reason, Verdict

__all__ = [
    "Look",
    "baseline_priors",
    "first_look",
    "priors_of",
    "settle",
    "shown",
    "with_suite",
]

Name = tuple[RecordKey, str]
Priors = Mapping[str, Prior]
_NOTHING: Mapping[Name, Confirmation] = MappingProxyType({})


class Look(BulkRecord, frozen=True, kw_only=True):
    """
    What the first measurement of a case suggests; no verdict.

    Attributes:
        worse: Whether it may turn out to have regressed: its test's outcome must wait.

        better: Whether it may turn out to have improved.

        suspect: Whether only fresh processes can tell; False for what is judged by
            equality, and for what a file says.

        change: The change; None where nothing is comparable.
    """

    worse: bool = False
    better: bool = False
    suspect: bool = False
    change: Change | None = None


def priors_of(cases: Iterable[Case], policy: Policy | None = None) -> dict[str, Prior]:
    """Return what the stored sessions of a suite say of its variances, by group."""
    policy = policy or Policy()
    comparisons = (comparison_of(case, policy) for case in cases)
    return fit_priors([c for c in comparisons if c is not None and not is_exact(c)])


def baseline_priors(stored: Iterable[StoredRecord]) -> dict[str, Prior]:
    """
    Return what a whole baseline says of its variances, by group.

    It needs nothing of the current run: a test can be looked at while others still run.
    """
    values: dict[tuple[RecordKey, str, str, str | None], list[SessionValue]] = {}
    for record in stored:
        for value in record.values:
            name = (record.key, value.metric, value.source, record.choice)
            values.setdefault(name, []).append(value)
    return fit_priors(
        [
            Comparison(
                current=several[-1],
                stored=tuple(several),
                session_ids=(),  # nothing is taken out of them
                group=group_of(metric, source),
            )
            for (_, metric, source, _), several in values.items()
        ]
    )


def first_look(
    cases: Sequence[Case],
    policy: Policy | None = None,
    *,
    priors: Priors | None = None,
) -> tuple[Look, ...]:
    """
    Return which cases may have changed, generously.

    Args:
        cases: Gated ones and others; only the gated are suspected.

        policy: The rule's constants.

        priors: Of the whole suite, where `cases` are a part of it.

    Returns:
        One for each case, in their order.
    """
    policy = policy or Policy()
    if priors is None:
        priors = priors_of(cases, policy)
    compared = [comparable(case, policy) for case in cases]
    found = iter(_changes([c for c in compared if c is not None], priors, policy))
    pairs = zip(cases, compared, strict=True)
    return tuple(
        Look() if comparison is None else _look(case, next(found), policy)
        for case, comparison in pairs
    )


def settle(
    cases: Sequence[Case],
    confirmations: Mapping[Name, Confirmation] = _NOTHING,
    policy: Policy | None = None,
    *,
    complete: bool = True,
    priors: Priors | None = None,
) -> tuple[Verdict, ...]:
    """
    Return the verdict of each gated case.

    Args:
        cases: All pairs of test and metric that the run has; those without a limit help
            to know the variances and get no verdict.

        confirmations: What fresh processes gave, by the case's name: of suspects and of
            controls.

        policy: The rule's constants.

        complete: Whether every test reported; an incomplete run regresses nothing.

        priors: Those of `cases`, where they are known already.

    Returns:
        Verdicts of the cases with a limit, in their order.
    """
    policy = policy or Policy()
    gated = [case for case in cases if case.limit is not None]
    early = [_without_statistics(case, confirmations, policy) for case in gated]
    open_cases = [c for c, verdict in zip(gated, early, strict=True) if verdict is None]
    if priors is None:
        priors = priors_of(cases, policy)
    found = _decisive_changes(open_cases, cases, confirmations, priors, policy)
    rulings = _rulings(open_cases, found, confirmations, policy, complete=complete)
    ruled = map(rule, open_cases, rulings, itertools.repeat(policy))
    return tuple(next(ruled) if verdict is None else verdict for verdict in early)


def shown(
    cases: Sequence[Case],
    policy: Policy | None = None,
    *,
    priors: Priors | None = None,
) -> tuple[Verdict, ...]:
    """
    Return the changes of the cases that nothing gates, for reports.

    Nothing is allowed or forbidden, so nothing is decided: each is *unchanged* without a
    threshold, and no part of what was judged. A case with nothing to compare has none.
    """
    policy = policy or Policy()
    ungated = [case for case in cases if case.limit is None]
    compared = [(case, comparable(case, policy)) for case in ungated]
    numbers = [(case, c) for case, c in compared if c is not None]
    if not numbers:
        return ()
    if priors is None:
        priors = priors_of(cases, policy)
    found = _changes([c for _, c in numbers], priors, policy)
    return tuple(
        replace(
            verdict_of(
                case,
                Outcome.UNCHANGED,
                Reason.EQUAL if change.effect == 0 else Reason.WITHIN_NOISE,
            ),
            change=change,
        )
        for (case, _), change in zip(numbers, found, strict=True)
    )


def _without_statistics(
    case: Case, confirmations: Mapping[Name, Confirmation], policy: Policy
) -> Verdict | None:
    """Return the verdict of a case that no number decides."""
    confirmation = _confirmation(case, confirmations)
    return early_verdict(case, policy, confirmation) or kernel_verdict(
        case, policy, confirmation
    )


def _confirmation(
    case: Case, confirmations: Mapping[Name, Confirmation]
) -> Confirmation | None:
    """Return what confirms a case; a control confirms nothing of itself."""
    if not confirmations:  # as a rule, and a case's name takes long to look up
        return None
    found = confirmations.get(case.name)
    return None if found is None or found.control else found


def _changes(
    comparisons: Sequence[Comparison],
    priors: Priors,
    policy: Policy,
    shifts: Mapping[str, Shift] = MappingProxyType({}),
    *,
    among: Sequence[Comparison] = (),
) -> tuple[Change, ...]:
    """Return the change of each comparison, as sure as the whole run must be."""
    count = sum(not is_exact(comparison) for comparison in among or comparisons)
    level = Level(
        alpha=policy.alpha,
        pair_count=max(1, count),
        noise_threshold=policy.noise_threshold,
        power=policy.power,
    )
    return changes(comparisons, priors=priors, level=level, shifts=shifts)


def _decisive_changes(
    open_cases: Sequence[Case],
    cases: Sequence[Case],
    confirmations: Mapping[Name, Confirmation],
    priors: Priors,
    policy: Policy,
) -> list[Change]:
    """Return each case's change: of its confirming processes, or of its first value."""
    again = [_confirmation(case, confirmations) for case in open_cases]
    compared = [
        comparison
        for case, confirmation in zip(open_cases, again, strict=True)
        if (comparison := comparison_of(case, policy, confirmation)) is not None
    ]
    found = list(_changes(compared, priors, policy))
    if not any(again):
        return found
    from pytest_gpuperf.judge.shift import class_shifts  # of confirmed runs alone

    shifts = class_shifts(cases, confirmations, priors, policy)
    moved = [i for i, c in enumerate(compared) if c.shift_group in shifts]
    shifted = _changes(
        [compared[i] for i in moved], priors, policy, shifts, among=compared
    )
    for index, change in zip(moved, shifted, strict=True):
        if (
            again[index] is not None
        ):  # whoever is decided by its first value is not moved
            found[index] = _with_shift(change, shifts[compared[index].shift_group])
    return found


def _with_shift(change: Change, shift: Shift) -> Change:
    """Return a change that says what was taken out of it."""
    if change.exact or not shift.control_count:
        return change
    return replace(change, machine_shift=math.expm1(shift.log_shift))


def _rulings(
    cases: Sequence[Case],
    found: Sequence[Change],
    confirmations: Mapping[Name, Confirmation],
    policy: Policy,
    *,
    complete: bool,
) -> list[Ruling]:
    """Return each change with its adjusted probabilities: what the last rows need."""
    worse = _adjusted([change.p_worse for change in found])
    better = _adjusted([change.p_better for change in found])
    rows = zip(cases, found, worse, better, strict=True)
    return [
        Ruling(
            change=change,
            p_worse=p_worse,
            p_better=p_better,
            confirmation=_confirmation(case, confirmations),
            complete=complete,
            worsening=_worsening(case, change),
            selected=policy.selected and not case.of_file,
        )
        for case, change, p_worse, p_better in rows
    ]


def _adjusted(p_values: Sequence[float | None]) -> list[float]:
    """Return p-values adjusted over all pairs that have one; 1 where there is none."""
    adjusted = iter(holm([p for p in p_values if p is not None]))
    return [1.0 if p is None else next(adjusted) for p in p_values]


def _worsening(case: Case, change: Change) -> float:
    """Return an effect so that more is worse; infinite where 0 became something."""
    sign = -1.0 if direction(case.metric) is Better.HIGHER else 1.0
    if change.effect is not None:
        return sign * change.effect
    if change.current == change.reference:
        return 0.0
    return sign * math.copysign(math.inf, change.current - change.reference)


def _look(case: Case, change: Change, policy: Policy) -> Look:
    """Return what a change suggests."""
    if case.limit is None:
        return Look(change=change)
    effect = _worsening(case, change)
    if change.exact:
        return Look(
            worse=effect > case.limit, better=effect < -case.limit, change=change
        )
    share = policy.suspect_share * case.limit
    worse = effect > share and _unlikely(change.p_worse, policy)
    better = effect < -share and _unlikely(change.p_better, policy)
    suspect = (worse or better) and not case.of_file
    return Look(worse=worse, better=better, suspect=suspect, change=change)


def _unlikely(p_value: float | None, policy: Policy) -> bool:
    """Return whether noise is an unlikely explanation, by itself."""
    return p_value is not None and p_value < policy.suspect_p


# docs/judging.md section 2: what is unchanged alone may be better by a whole limit, so that
# a gap of two leaves the suite's own value beyond the limit wherever the other lies
_GAP_LIMITS = 2.0
# docs/judging.md section 2: so far apart, one test's own p-value is enough; half as large
# again is what noise hardly reaches, and with few sessions no test's adjusted one is small
_FAR = 0.5
_CLEARED = frozenset({Outcome.UNCHANGED, Outcome.IMPROVED})


def with_suite(
    verdicts: Sequence[Verdict],
    cases: Sequence[Case],
    looks: Sequence[Look],
    *,
    strict: bool = False,
    policy: Policy | None = None,
) -> tuple[Verdict, ...]:
    """
    Return verdicts with what the suite saw, where it was far worse than fresh processes.

    It is told of a suspect that was measured again (else the value is the first one, and
    there is no gap) and did not regress, if its first value
    would be a regression by the rule of the whole run, and the whole interval of its
    samples lies more than two limits from the value of the fresh processes. If it lies
    very far from that, the test's own probability is enough.

    Args:
        verdicts: Those of the gated cases, by the fresh processes where there were any.

        cases: All pairs of test and metric that the run has.

        looks: What the first value of each suggests, in the same order.

        strict: Whether that leaves the test undecided, instead of being told alone.

        policy: The rule's constants.
    """
    policy = policy or Policy()
    least = _least_gaps(cases, looks, policy)
    known = {case.name: (case, look) for case, look in zip(cases, looks, strict=True)}
    return tuple(
        _with_suite(verdict, *known[name], least[name], strict=strict)
        if (name := (verdict.key, verdict.metric)) in least
        else verdict
        for verdict in verdicts
    )


def _least_gaps(
    cases: Sequence[Case], looks: Sequence[Look], policy: Policy
) -> dict[Name, float]:
    """Return by how much a first value that is hardly noise must differ from those alone."""
    seen = [
        (case, look.change.p_worse)
        for case, look in zip(cases, looks, strict=True)
        if case.limit is not None
        and look.change is not None
        and look.change.p_worse is not None
    ]
    adjusted = holm([p_value for _, p_value in seen])
    return {
        case.name: max(
            _GAP_LIMITS * (case.limit or 0.0), 0.0 if sure < policy.alpha else _FAR
        )
        for (case, p_value), sure in zip(seen, adjusted, strict=True)
        if p_value < policy.alpha
    }


def _with_suite(
    verdict: Verdict, case: Case, look: Look, least_gap: float, *, strict: bool
) -> Verdict:
    """Return a verdict with the change that the suite saw, if that is far worse."""
    first, alone = look.change, verdict.change
    if first is None or alone is None or case.estimate is None:
        return verdict
    # of several processes all but the first are fresh ones already
    if verdict.outcome is Outcome.REGRESSED or first.run_count > 1:
        return verdict
    if first.effect is None or alone.effect is None:  # nothing is relative to 0
        return verdict
    sign = -1.0 if direction(case.metric) is Better.HIGHER else 1.0
    # with what the machine did meanwhile, and without it: the smaller gap counts
    worst_alone = max(sign * alone.effect, sign * _relative(alone.current, alone))
    if (
        sign * _relative(_best_of(case.estimate, sign), first) - worst_alone
        <= least_gap
    ):
        return verdict
    told = replace(verdict, in_suite=first)
    if not strict or verdict.outcome not in _CLEARED:
        return told
    return replace(told, outcome=Outcome.INCONCLUSIVE, reason=Reason.SLOWER_IN_SUITE)


def _best_of(estimate: Estimate, sign: float) -> float:
    """Return the better end of an interval: a short disturbance makes that wide."""
    end = estimate.high if sign < 0 else estimate.low
    return estimate.value if end is None else end


def _relative(value: float, change: Change) -> float:
    """Return a value as a change from the same reference."""
    return (value - change.reference) / abs(change.reference)
