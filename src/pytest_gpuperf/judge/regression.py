"""Regressed or not: a whole run held against its baseline."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import median
from types import MappingProxyType

from pytest_gpuperf.compute.change import (
    changes,
    detectable_effects,
    holm,
    is_exact,
    usual_spreads,
)
from pytest_gpuperf.compute.kernels import account
from pytest_gpuperf.compute.spread import UsualSpread
from pytest_gpuperf.compute.stats import relative_change
from pytest_gpuperf.judge.case import (
    POLICY,
    Case,
    Confirmation,
    Policy,
    Reference,
)
from pytest_gpuperf.judge.rule import (
    Ruling,
    clock_of,
    comparable,
    comparison_of,
    early_verdict,
    group_of,
    kernel_verdict,
    reference_comparisons,
    rule,
    suffices,
    verdict_of,
    worsening_of,
)
from pytest_gpuperf.model.activity import KernelTotal
from pytest_gpuperf.model.change import Change, Comparison, Sureness
from pytest_gpuperf.model.frozen import BulkRecord, replace
from pytest_gpuperf.model.record import (
    Record,
    RecordKey,
    Role,
    SessionValue,
    StoredRecord,
)
from pytest_gpuperf.model.sample import Estimate, Source
from pytest_gpuperf.model.verdict import (
    KernelChoice,
    Outcome,
    Reason,
    Verdict,
    VerdictEvidence,
)

__all__ = [
    "MORE_SESSIONS",
    "Look",
    "Name",
    "baseline_spreads",
    "first_look",
    "settle",
    "shown",
    "smallest_seen",
    "with_kernels",
    "with_suite",
]

Name = tuple[RecordKey, str]
_NOTHING: Mapping[Name, Confirmation] = MappingProxyType({})

# docs/judging.md section 2: what a baseline would see with so many more is told with it
MORE_SESSIONS = 2
# docs/judging.md section 2: no machine was seen to move most tests of a class by more and
# to leave the reference workloads as they were [fraction]
_FARTHEST_MOVE = 0.25
# docs/judging.md section 2: a clock is read in steps of 15 MHz, 0.8 % of an H200's, and does
# not fall in the sample after which it is read [on a log scale]
_CLOCK_NOISE = 0.01


class Look(BulkRecord, frozen=True, kw_only=True):
    """
    What the first measurement of a case suggests; no verdict.

    Attributes:
        worse: Whether it may turn out to have regressed: its test's outcome must wait.

        better: Whether it may turn out to have improved.

        suspect: Whether only fresh processes can tell; False for what is judged by
            equality, and for what a file says.

        shared: Whether most tests of its class moved as it did and the reference
            workloads did not: a change that tests share, and no control.

        change: The change; None where nothing is comparable.
    """

    worse: bool = False
    better: bool = False
    suspect: bool = False
    shared: bool = False
    change: Change | None = None


def baseline_spreads(stored: Iterable[StoredRecord]) -> dict[str, UsualSpread]:
    """
    Return what the sessions of a whole baseline usually differ by, by group.

    It needs nothing of the current run: a test can be looked at while others still run.
    """
    values: dict[tuple[RecordKey, str, str, str | None], list[SessionValue]] = {}
    for record in stored:
        for value in record.values:
            name = (record.key, value.metric, value.source, record.choice)
            values.setdefault(name, []).append(value)
    return usual_spreads(
        [
            Comparison(
                current=several[-1],
                stored=tuple(several),
                session_ids=tuple(map(str, range(len(several)))),
                group=group_of(metric, source),
                clock=clock_of(metric, source),
            )
            for (_, metric, source, _), several in values.items()
        ]
    )


def first_look(
    cases: Sequence[Case],
    policy: Policy = POLICY,
    *,
    references: Sequence[Reference] = (),
    compared: Sequence[Comparison | None] | None = None,
) -> tuple[Look, ...]:
    """
    Return which cases may have changed, generously.

    Args:
        cases: All pairs of test and metric that the run has; those without a limit help
            to know what is usual, and are never suspected.

        policy: The rule's constants.

        references: What this session and the stored ones timed of reference workloads.

        compared: The cases as numbers, where they were made already.

    Returns:
        One for each case, in their order.
    """
    if compared is None:
        compared = [comparable(case, policy) for case in cases]
    comparisons = [c for c in compared if c is not None]
    first_changes = iter(
        changes(
            comparisons,
            level=_level(cases, compared, policy),
            references=reference_comparisons(references, comparisons),
        )
    )
    looks = [
        Look() if comparison is None else _look(case, next(first_changes), policy)
        for case, comparison in zip(cases, compared, strict=True)
    ]
    level = _level(cases, compared, policy)
    for places in _moved_classes(cases, compared, looks, policy):
        members = [cases[place] for place in places]
        several = [c for place in places if (c := compared[place]) is not None]
        witnesses = reference_comparisons(references, several)
        alone = _looks_by(witnesses, members, several, level, policy)
        told = bool(witnesses) or _is_beyond_the_clock(members, alone)
        if _is_shared(alone, has_witnesses=told):
            for place, look in zip(places, alone, strict=True):
                looks[place] = look
    return tuple(looks)


def _moved_classes(
    cases: Sequence[Case],
    compared: Sequence[Comparison | None],
    looks: Sequence[Look],
    policy: Policy,
) -> list[list[int]]:
    """Return the places of each class whose tests say that the machine moved them."""
    classes: dict[str, list[int]] = {}
    moved: set[str] = set()
    for place, (case, comparison, look) in enumerate(
        zip(cases, compared, looks, strict=True)
    ):
        if comparison is None or look.change is None or look.change.exact:
            continue
        group = comparison.shift_group
        classes.setdefault(group, []).append(place)
        if case.limit is None:
            continue
        least = max(policy.suspect_share * case.limit, policy.noise_threshold)
        if abs(look.change.machine_shift or 0.0) > least:
            moved.add(group)
    return [places for group, places in classes.items() if group in moved]


def _looks_by(
    witnesses: Sequence[Comparison],
    cases: Sequence[Case],
    comparisons: Sequence[Comparison],
    level: Sureness,
    policy: Policy,
) -> list[Look]:
    """Return the looks of a class where reference workloads alone show the machine."""
    controls = [False] * len(comparisons)
    alone = changes(comparisons, level=level, references=witnesses, controls=controls)
    looks = (
        _look(case, change, policy) for case, change in zip(cases, alone, strict=True)
    )
    return [
        replace(look, shared=_is_beyond(case, look, policy))
        for case, look in zip(cases, looks, strict=True)
    ]


def _is_beyond(case: Case, look: Look, policy: Policy) -> bool:
    """Return whether a value is off by more than is suspected, as it was measured."""
    if case.limit is None or look.change is None:
        return False
    return abs(_with_machine(case, look.change)) > policy.suspect_share * case.limit


def _is_shared(looks: Sequence[Look], *, has_witnesses: bool) -> bool:
    """
    Return whether a class moved, and not the machine, by looks at references alone.

    Most of its tests are off: so that noise is an unlikely explanation for most of those,
    or, as where there is no reference, farther than a machine takes tests alone.
    """
    beyond = [look for look in looks if look.shared]
    unlikely = sum(look.worse or look.better for look in beyond) if has_witnesses else 0
    telling = max(unlikely, sum(map(_is_far, beyond)))
    return 2 * len(beyond) >= len(looks) and 2 * telling >= len(beyond) > 0


def _is_beyond_the_clock(cases: Sequence[Case], looks: Sequence[Look]) -> bool:
    """
    Return whether a class of a GPU moved by more than the GPU's clock explains.

    Args:
        cases: Those of the class.

        looks: A look at each that takes nothing out for the machine.
    """
    known = [
        (case.sign * math.log1p(change.effect), -math.log1p(change.clock_shift))
        for case, look in zip(cases, looks, strict=True)
        if (change := look.change) is not None
        and change.clock_shift is not None
        and change.effect is not None
        and change.effect > -1
    ]
    if 2 * len(known) <= len(looks):
        return False
    move, by_clock = (median(several) for several in zip(*known, strict=True))
    low, high = sorted((0.0, by_clock))
    return not low - _CLOCK_NOISE <= move <= high + _CLOCK_NOISE


def _is_far(look: Look) -> bool:
    """Return whether a change is larger than what a machine does to tests alone."""
    return look.change is not None and abs(look.change.effect or 0.0) > _FARTHEST_MOVE


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
    Return the verdict of each gated case.

    Args:
        cases: All pairs of test and metric that the run has; those without a limit help
            to know what is usual and get no verdict.

        confirmations: What fresh processes gave, by the case's name: of suspects and of
            controls.

        policy: The rule's constants.

        complete: Whether every test reported; an incomplete run regresses nothing.

        looks: The first look at `cases`, where it was taken already.

        references: What this session, the stored ones and the fresh processes timed of
            reference workloads.

    Returns:
        Verdicts of the cases with a limit, in their order.
    """
    if looks is None:
        looks = first_look(cases, policy, references=references)
    decisive = _decisive_changes(cases, looks, confirmations, references, policy)
    gated = [
        (case, change)
        for case, change in zip(cases, decisive, strict=True)
        if case.limit is not None
    ]
    early = [_early(case, change, confirmations, policy) for case, change in gated]
    open_pairs = [
        (case, change)
        for (case, change), verdict in zip(gated, early, strict=True)
        if verdict is None and change is not None
    ]
    shared = {case.name for case, look in zip(cases, looks, strict=True) if look.shared}
    rulings = _rulings(open_pairs, confirmations, policy, shared, complete=complete)
    ruled = map(
        rule, (case for case, _ in open_pairs), rulings, itertools.repeat(policy)
    )
    return tuple(next(ruled) if verdict is None else verdict for verdict in early)


def shown(
    cases: Sequence[Case],
    policy: Policy = POLICY,
    *,
    looks: Sequence[Look] | None = None,
) -> tuple[Verdict, ...]:
    """
    Return the changes of the cases that nothing gates, for reports.

    Nothing is allowed or forbidden, so nothing is decided: each is *unchanged* without a
    threshold, and no part of what was judged. A case with nothing to compare has none.
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
    *,
    references: Sequence[Reference] = (),
    more_sessions: int = 0,
) -> tuple[float | None, ...]:
    """
    Return the smallest change of each gated case that a run like this would find.

    Args:
        cases: All pairs of test and metric that the run has.

        references: What this session and the stored ones timed of reference workloads.

        more_sessions: Sessions that are to be stored besides.

    Returns:
        Relative effects in the cases' order; None for a case without a limit, with too few
        sessions, or that equality decides.
    """
    compared = [comparable(case, POLICY) for case in cases]
    comparisons = [c for c in compared if c is not None]
    effects = iter(
        detectable_effects(
            comparisons,
            level=_level(cases, compared, POLICY),
            references=reference_comparisons(references, comparisons),
            more_sessions=more_sessions,
        )
    )
    of_cases = [None if c is None else next(effects) for c in compared]
    return tuple(
        effect if case.limit is not None and suffices(case, POLICY) else None
        for case, effect in zip(cases, of_cases, strict=True)
    )


def _level(
    cases: Sequence[Case], compared: Sequence[Comparison | None], policy: Policy
) -> Sureness:
    """Return how sure a change of a run must be: of all its pairs that have noise."""
    count = sum(
        case.limit is not None
        and comparison is not None
        and not is_exact(comparison)
        and suffices(case, policy)
        for case, comparison in zip(cases, compared, strict=True)
    )
    return Sureness(
        alpha=policy.level(count),
        pair_count=max(1, count),
        noise_threshold=policy.noise_threshold,
        power=policy.power,
    )


def _early(
    case: Case,
    change: Change | None,
    confirmations: Mapping[Name, Confirmation],
    policy: Policy,
) -> Verdict | None:
    """Return the verdict of a case that no number decides; too few sessions show one."""
    confirmation = _confirmation(case, confirmations)
    early = early_verdict(case, policy, confirmation)
    if early is not None and early.reason is Reason.TOO_FEW_SESSIONS:
        return verdict_of(
            case, early.outcome, early.reason, evidence=early.evidence, change=change
        )
    return early or kernel_verdict(case, policy, confirmation)


def _confirmation(
    case: Case, confirmations: Mapping[Name, Confirmation]
) -> Confirmation | None:
    """Return what confirms a case; a control confirms nothing of itself."""
    if not confirmations:  # as a rule, and a case's name takes long to look up
        return None
    confirmation = confirmations.get(case.name)
    return None if confirmation is None or confirmation.control else confirmation


def _decisive_changes(
    cases: Sequence[Case],
    looks: Sequence[Look],
    confirmations: Mapping[Name, Confirmation],
    references: Sequence[Reference],
    policy: Policy,
) -> list[Change | None]:
    """Return each case's change: of its confirming processes, or of its first value."""
    decisive = [look.change for look in looks]
    confirmed = [_fresh_values(case, confirmations) for case in cases]
    suspects = [c is not None and not c.control for c in confirmed]
    if not any(suspects):
        return decisive
    compared = [
        comparable(case, policy)
        if fresh is None
        else comparison_of(case, policy, fresh)
        for case, fresh in zip(cases, confirmed, strict=True)
    ]
    level = _level(cases, compared, policy)
    # what is usual in a group, and what the machine did to a class, is of these alone
    groups = {c.group for c, s in zip(compared, suspects, strict=True) if s and c}
    places = [p for p, c in enumerate(compared) if c is not None and c.group in groups]
    several = [c for p in places if (c := compared[p]) is not None]
    fresh_changes = changes(
        several,
        level=level,
        references=reference_comparisons(references, several, fresh=True),
        controls=[
            (fresh := confirmed[p]) is not None and fresh.control for p in places
        ],
        judged=[suspects[p] for p in places],
    )
    for place, change in zip(places, fresh_changes, strict=True):
        decisive[place] = change or decisive[place]
    return decisive


def _fresh_values(
    case: Case, confirmations: Mapping[Name, Confirmation]
) -> Confirmation | None:
    """Return the fresh processes of a case, if they gave values; a control's, too."""
    confirmation = confirmations.get(case.name) if confirmations else None
    return (
        confirmation if confirmation is not None and confirmation.run_values else None
    )


def _rulings(
    pairs: Sequence[tuple[Case, Change]],
    confirmations: Mapping[Name, Confirmation],
    policy: Policy,
    shared: Collection[Name],
    *,
    complete: bool,
) -> list[Ruling]:
    """Return each change with its adjusted probabilities: what the last rows need."""
    confirmed = [_confirmation(case, confirmations) for case, _ in pairs]
    # what was not measured again was not suspected: it counts as a pair, without a p
    judged = [
        not policy.selected
        or case.of_file
        or (confirmation is not None and bool(confirmation.run_values))
        for (case, _), confirmation in zip(pairs, confirmed, strict=True)
    ]
    marked = list(zip(pairs, judged, strict=True))
    worse = _adjusted(
        [c.p_worse if is_judged else None for (_, c), is_judged in marked], pairs
    )
    better = _adjusted(
        [c.p_better if is_judged else None for (_, c), is_judged in marked], pairs
    )
    level = policy.level(sum(change.p_worse is not None for _, change in pairs))
    return [
        Ruling(
            change=change,
            p_worse=p_worse,
            p_better=p_better,
            level=level,
            confirmation=confirmation,
            complete=complete,
            worsening=worsening_of(case, change),
            selected=policy.selected and not case.of_file,
            shared=case.name in shared,
        )
        for (case, change), confirmation, p_worse, p_better in zip(
            pairs, confirmed, worse, better, strict=True
        )
    ]


def _adjusted(
    p_values: Sequence[float | None], pairs: Sequence[tuple[Case, Change]]
) -> list[float]:
    """Return p-values adjusted over all pairs that have noise; 1 where there is none."""
    count = sum(change.p_worse is not None for _, change in pairs)
    adjusted = iter(holm([p for p in p_values if p is not None], count=count))
    return [1.0 if p is None else next(adjusted) for p in p_values]


def _look(case: Case, change: Change | None, policy: Policy) -> Look:
    """Return what a change suggests."""
    if change is None or case.limit is None or not suffices(case, policy):
        return Look(change=change)
    effect = worsening_of(case, change)
    if change.exact:
        return Look(
            worse=effect > case.limit, better=effect < -case.limit, change=change
        )
    share = policy.suspect_share * case.limit
    raw = _with_machine(case, change)
    worse = raw > share and _unlikely(change.p_worse, policy)
    better = raw < -share and _unlikely(change.p_better, policy)
    suspect = (worse or better) and not case.of_file
    return Look(worse=worse, better=better, suspect=suspect, change=change)


def _with_machine(case: Case, change: Change) -> float:
    """Return an effect with what the machine did, so that more is worse."""
    if not change.reference:
        return worsening_of(case, change)
    return case.sign * _relative(change.current, change)


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
    """
    least = _least_gaps(cases, looks)
    by_name = {case.name: (case, look) for case, look in zip(cases, looks, strict=True)}
    return tuple(
        _with_suite(verdict, *by_name[name], least[name], strict=strict)
        if (name := (verdict.key, verdict.metric)) in least
        else verdict
        for verdict in verdicts
    )


def with_kernels(
    verdict: Verdict, records: Sequence[Record], sessions: Sequence[StoredRecord]
) -> Verdict:
    """
    Return a verdict with the kernels of then and now, and what each of them took.

    Args:
        verdict: The verdict on a change.

        records: All that was measured of the same; fresh processes count, where there are
            any.

        sessions: The stored sessions of the same.
    """
    evidence = verdict.evidence or VerdictEvidence()
    moved = verdict.outcome in {Outcome.REGRESSED, Outcome.IMPROVED}
    if verdict.of_revision or not (moved or evidence.kernels is not None):
        return verdict
    deciding = [record for record in records if record.role is Role.CONFIRM] or records
    then, now = evidence.kernels or (
        _most([session.choice for session in sessions]),
        _most([record.choice for record in deciding]),
    )
    if None in {then.choice, now.choice}:
        return verdict
    kernels = evidence.kernels
    if then.choice != now.choice:
        names = _kernel_names(records, sessions)
        kernels = (
            replace(then, names=names.get(then.choice, ())),
            replace(now, names=names.get(now.choice, ())),
        )
    own_number = verdict.estimate is not None and verdict.estimate.source == Source.USER
    found = None
    if not own_number:
        found = account(
            [session.kernels for session in sessions if session.choice == then.choice],
            totals_of(record for record in deciding if record.choice == now.choice),
        )
    if kernels is None and found is None:
        return verdict
    return replace(verdict, evidence=replace(evidence, kernels=kernels, account=found))


def totals_of(records: Iterable[Record]) -> list[tuple[KernelTotal, ...]]:
    """Return the kernels of each process that saw them."""
    seen = (record.activity for record in records)
    return [activity.totals for activity in seen if activity is not None]


def _kernel_names(
    records: Sequence[Record], sessions: Sequence[StoredRecord]
) -> dict[str | None, tuple[str, ...]]:
    """Return the names of the kernels of each choice, as far as they are known."""
    names = {
        one.choice: tuple(dict.fromkeys(kernel.name for kernel in one.kernels))
        for one in sessions
    }
    now = {r.choice: r.activity.names for r in records if r.activity is not None}
    return {choice: some for choice, some in {**names, **now}.items() if some}


def _most(choices: Sequence[str | None]) -> KernelChoice:
    """Return the choice that most of some made; not known where there are none."""
    choice, count = Counter(choices or [None]).most_common(1)[0]
    return KernelChoice(choice=choice, count=count, total_count=len(choices))


def _least_gaps(cases: Sequence[Case], looks: Sequence[Look]) -> dict[Name, float]:
    """Return by how much a first value that is hardly noise must differ from those alone."""
    likely = [
        (case, look.change.p_worse)
        for case, look in zip(cases, looks, strict=True)
        if case.limit is not None
        and look.change is not None
        and look.change.p_worse is not None
    ]
    adjusted = holm([p_value for _, p_value in likely])
    level = POLICY.level(len(likely))
    return {
        case.name: max(_GAP_LIMITS * (case.limit or 0.0), 0.0 if sure < level else _FAR)
        for (case, p_value), sure in zip(likely, adjusted, strict=True)
        if p_value < POLICY.alpha
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
    sign = case.sign
    # with what the machine did meanwhile, and without it: the smaller gap counts
    worst_alone = max(sign * alone.effect, sign * _relative(alone.current, alone))
    if (
        sign * _relative(_best_of(case.estimate, sign), first) - worst_alone
        <= least_gap
    ):
        return verdict
    marked = replace(verdict, in_suite=first)
    if not strict or verdict.outcome not in _CLEARED:
        return marked
    return replace(marked, outcome=Outcome.INCONCLUSIVE, reason=Reason.SLOWER_IN_SUITE)


def _best_of(estimate: Estimate, sign: float) -> float:
    """Return the better end of an interval: a short disturbance makes that wide."""
    end = estimate.high if sign < 0 else estimate.low
    return estimate.value if end is None else end


def _relative(value: float, change: Change) -> float:
    """Return a value as a change from the same reference."""
    return relative_change(value, change.reference)
