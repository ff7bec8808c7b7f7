"""The rule of one verdict, as a table of rows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from statistics import fmean
from typing import TypeAlias

from pytest_gpuperf.compute.alone import Weighed
from pytest_gpuperf.compute.change import exact_change, is_exact
from pytest_gpuperf.compute.machine import at_one_speed, clock_shift
from pytest_gpuperf.compute.stats import mean, relative_change
from pytest_gpuperf.judge.case import (
    POLICY,
    Case,
    Confirmation,
    Policy,
    Reference,
    StoredValue,
    direction,
)
from pytest_gpuperf.judge.modes import seen_before, text_of_oversubscription
from pytest_gpuperf.model.change import Change, Comparison, TimeBase
from pytest_gpuperf.model.environment import Session, family_of, same_company
from pytest_gpuperf.model.frozen import Frozen, replace
from pytest_gpuperf.model.gap import GapCode
from pytest_gpuperf.model.metric import METRICS, Better, Family
from pytest_gpuperf.model.record import Kind, SessionValue, VoidCode
from pytest_gpuperf.model.sample import Unmeasured
from pytest_gpuperf.model.verdict import (
    BaselineSpan,
    Cause,
    KernelChoice,
    LeftOut,
    Outcome,
    Reason,
    Verdict,
    VerdictEvidence,
)

__all__ = [
    "CLOCK_STEP",
    "ComparedCase",
    "Ruling",
    "by_equality",
    "clock_of",
    "comparable",
    "comparison_of",
    "confirmed_comparison",
    "early_verdict",
    "group_of",
    "kernel_verdict",
    "may_change",
    "reference_comparisons",
    "rule",
    "suffices",
    "verdict_of",
    "worsening_of",
]

# soft facts that leave a test alone as it was: the GPU's number, and how many processes
# measure side by side
_HARMLESS = frozenset({"gpu_uuid", "xdist_workers"})
# docs/steps.md: with fewer, the median of a loop moves as its slowest steps do
_ENOUGH_STEPS = 30
# docs/judging.md section 2: a clock that moved by less is read as another by its steps of
# 15 MHz, 0.8 % of an H200's [fraction; as much on a log scale]
CLOCK_STEP = 0.01

ComparedCase: TypeAlias = "tuple[Case, Comparison | None]"  # and the case as numbers


class Ruling(Frozen, frozen=True, kw_only=True):
    """
    What the last rows decide by.

    Attributes:
        change: The change that counts.

        worsening: Its effect, so that more is worse; infinite where 0 became something.

        p_worse: Chance of it without a worsening, adjusted over all pairs of the run.

        p_better: The same without an improvement.

        level: The chance below which it is significant.

        confirmation: The fresh processes; None: there were none.

        complete: Whether every test reported.

        selected: Whether suspects need to be confirmed.

        shared: Whether most tests of its class moved alike.

        weighed: What the suite's value and the fresh processes say, each by itself; None:
            the change is not of both.

        p_alone: Chance of the fresh processes' change by themselves, in its direction,
            adjusted likewise.

        p_suite: The same of the suite's value, in the direction of `change`.
    """

    change: Change
    worsening: float
    p_worse: float
    p_better: float
    level: float
    confirmation: Confirmation | None
    complete: bool
    selected: bool
    shared: bool = False
    weighed: Weighed | None = None
    p_alone: float = 1.0
    p_suite: float = 1.0


def verdict_of(
    case: Case,
    outcome: Outcome,
    reason: Reason,
    *,
    cause: Cause | None = None,
    evidence: VerdictEvidence | None = None,
    change: Change | None = None,
) -> Verdict:
    """Return a verdict on a case, with the sessions that it was held against."""
    return Verdict(
        key=case.key,
        metric=case.metric.name,
        outcome=outcome,
        reason=reason,
        cause=cause,
        threshold=case.limit,
        default_limit=case.default_limit,
        estimate=case.estimate,
        baseline=_span(case, case.stored),
        change=change,
        evidence=_with_left_out(case, change, evidence),
    )


def rule(case: Case, ruling: Ruling, policy: Policy) -> Verdict:
    """Return the verdict of a gated case that numbers decide."""
    limit = case.limit or 0.0
    if ruling.change.exact:
        outcome, reason = by_equality(ruling.worsening, limit)
    else:
        outcome, reason = _by_evidence(ruling, limit, policy)
        if outcome is Outcome.UNCHANGED and _is_blind(case, ruling.change, policy):
            outcome, reason = Outcome.BLIND, Reason.NOT_DETECTABLE
    moved = outcome in {Outcome.REGRESSED, Outcome.IMPROVED}
    # nothing is measured again in a run that ended early: that is why
    if not ruling.complete and (moved or reason is Reason.NOT_CONFIRMED):
        outcome, reason = Outcome.INCONCLUSIVE, Reason.INCOMPLETE_RUN
    cause = _cause(case, ruling, reason, policy)
    if outcome is Outcome.REGRESSED and not _holds_in_cycles(case, ruling.change):
        outcome, reason = Outcome.INCONCLUSIVE, Reason.NOT_SIGNIFICANT
        cause = Cause.CLOCK_MOVED
    undecided = outcome is Outcome.INCONCLUSIVE
    evidence = _evidence(ruling, cause) if undecided else None
    if (outcome, reason) in _DOUBTED and not ruling.change.exact:
        doubt = _doubt_of(case, ruling, policy)
        if doubt is not None:
            (outcome, reason), cause, evidence = _DOUBTED[outcome, reason], *doubt
    evidence = _with_company(case, evidence, cause)
    verdict = verdict_of(
        case, outcome, reason, cause=cause, evidence=evidence, change=ruling.change
    )
    confirmations = _confirmations(case, ruling, policy)
    if not confirmations:  # nearly all
        return verdict
    alone = _alone(case, ruling, outcome, cause)
    return replace(verdict, confirmations=confirmations, alone=alone)


_SAME = frozenset({Outcome.UNCHANGED, Outcome.BLIND})


def _alone(
    case: Case, ruling: Ruling, outcome: Outcome, cause: Cause | None
) -> Change | None:
    """Return the change of fresh processes that would decide otherwise by themselves."""
    weighed = ruling.weighed
    if weighed is None or weighed.alone is None:
        return None
    far = abs(weighed.allowed) > (case.limit or 0.0)
    differs = outcome in _SAME and far and ruling.p_alone < ruling.level
    return weighed.alone if differs or cause is Cause.OTHER_ALONE else None


def _with_company(
    case: Case, evidence: VerdictEvidence | None, cause: Cause | None
) -> VerdictEvidence | None:
    """Return evidence with the tests that ran, where no run like this one is stored."""
    session, company = case.session, case.company
    of_part = session is not None and len(company) < len(case.stored)
    if cause is not Cause.OTHER_ALONE or session is None or not of_part:
        return evidence
    counts = [s.session.ran_count or 0 for s in case.stored]
    ran = session.ran_count or 0, max(counts)
    return replace(evidence or VerdictEvidence(), ran=ran)


def _is_blind(case: Case, change: Change, policy: Policy) -> bool:
    """
    Return whether only a change far beyond the limit would be found.

    A change that equality decides has no detectable effect, and one stored session has
    no spread of its own.
    """
    if change.reference == 0 or change.session_count < policy.least_sessions:
        return False
    limit = case.limit or 0.0
    most = policy.blind_fraction if case.default_limit else policy.blind_limits * limit
    detectable = change.detectable_effect
    return detectable is None or detectable > most  # None: it is not finite


# a worsening that may be of the machine fails nothing, and such an improvement is not stored
_OPEN = (Outcome.INCONCLUSIVE, Reason.NOT_SIGNIFICANT)
_DOUBTED = {
    (Outcome.REGRESSED, Reason.SLOWER_THAN_LIMIT): _OPEN,
    (Outcome.IMPROVED, Reason.FASTER_THAN_LIMIT): (
        Outcome.IMPROVED,
        Reason.NOT_CONFIRMED,
    ),
    _OPEN: _OPEN,  # the machine is the better reason
}


def _doubt_of(
    case: Case, ruling: Ruling, policy: Policy
) -> tuple[Cause, VerdictEvidence] | None:
    """Return why a change may be of what else the machine does; None: nothing says so."""
    compared = comparison_of(case, policy, ruling.confirmation)
    alike = seen_before(case, compared, ruling.confirmation, ruling.change)
    if alike:
        return Cause.SEEN_BEFORE, VerdictEvidence(alike=alike)
    text = text_of_oversubscription(case, ruling.confirmation)
    if text:
        return Cause.NOISY_MACHINE, VerdictEvidence(lines=(text,))
    return None


def _holds_in_cycles(case: Case, change: Change) -> bool:
    """Return whether a device's slowdown is one in cycles, too, where its clock moved."""
    clock = change.clock_shift
    if clock is None or abs(clock) < CLOCK_STEP or change.reference == 0:
        return True
    ratio = change.current / change.reference
    in_cycles = ratio * (1 + clock) if case.sign > 0 else ratio / (1 + clock)
    return case.sign * (in_cycles - 1) > (case.limit or 0.0)


def _with_left_out(
    case: Case, change: Change | None, evidence: VerdictEvidence | None
) -> VerdictEvidence | None:
    """Return evidence with the stored value that a change was judged without."""
    if change is None or not change.left_out:
        return evidence
    stored = next(s for s in case.stored if s.session.id == change.left_out)
    left_out = LeftOut(
        session_id=stored.session.id,
        started_unix_s=stored.session.started_unix_s,
        ratio=_times(_mean(stored.value), change.reference),
    )
    return replace(evidence or VerdictEvidence(), left_out=left_out)


def _times(value: float, others: float) -> float | None:
    """Return how often others go into a value; None: they are 0."""
    if others == 0:
        return None
    return min(max(value / others, -_MOST), _MOST)


def _cause(case: Case, ruling: Ruling, reason: Reason, policy: Policy) -> Cause | None:
    """Return why a change was not confirmed, or is not significant."""
    undecided = reason in {Reason.NOT_SIGNIFICANT, Reason.NOT_CONFIRMED}
    if undecided and ruling.shared and ruling.confirmation is None:
        return Cause.SHARED_MOVE
    if reason is Reason.NOT_SIGNIFICANT:
        if _is_short(case):
            return Cause.SHORT_LOOP
        return _noise(ruling.change, policy)
    return _unconfirmed(ruling) if reason is Reason.NOT_CONFIRMED else None


def _unconfirmed(ruling: Ruling) -> Cause | None:
    """Return why a change is not confirmed; None: nothing measured it again."""
    if ruling.confirmation is not None and not ruling.confirmation.run_values:
        # there were processes, and none counts; or there could be none
        codes = {void.code for void in ruling.confirmation.voids}
        elsewhere = codes == {VoidCode.OTHER_MACHINE}
        lacking = ruling.confirmation.lacking
        return Cause.MEASURED_ELSEWHERE if elsewhere else unusable(lacking)
    if _is_confirmed(ruling) and _is_sure_by_itself(ruling):
        return Cause.OTHER_ALONE
    return Cause.LOOKED_BETTER if ruling.worsening < 0 else None


def unusable(lacking: Iterable[Unmeasured]) -> Cause:
    """Return why no fresh process counts; `lacking`: what each says of it."""
    codes = {gap.code for gap in lacking}
    if codes == {GapCode.OTHER_LAUNCHER}:
        return Cause.OTHER_LAUNCHER
    return Cause.NOTHING_USABLE  # there were processes


def _noise(change: Change, policy: Policy) -> Cause | None:
    """Return what would make a change significant; None: a comparison by turns alone."""
    if change.reference == 0:
        return Cause.OF_NOTHING
    if (change.session_spread or 0.0) > policy.noisy_spread:
        return Cause.NOISY_MACHINE
    if change.session_count < policy.usual_sessions:
        return Cause.FEW_SESSIONS
    return Cause.ONE_PROCESS if change.run_count == 1 else None


def _evidence(ruling: Ruling, cause: Cause | None) -> VerdictEvidence | None:
    """Return why fresh processes do not count, and the steps that a loop needs."""
    confirmation = ruling.confirmation
    least_count = _ENOUGH_STEPS if cause is Cause.SHORT_LOOP else 0
    if confirmation is None:
        evidence = VerdictEvidence(least_count=least_count)
    else:
        evidence = VerdictEvidence(
            voids=confirmation.voids,
            differences=confirmation.differences,
            lacking=confirmation.lacking,
            least_count=least_count,
        )
    return None if evidence == VerdictEvidence() else evidence


def _is_short(case: Case) -> bool:
    """Return whether a case is of a loop of few steps."""
    steps = case.estimate.sample_count if case.estimate is not None else None
    return case.kind is Kind.STEPS and steps is not None and steps < _ENOUGH_STEPS


def worsening_of(case: Case, change: Change) -> float:
    """Return an effect so that more is worse; infinite where 0 became something."""
    if change.effect is not None:
        return case.sign * change.effect
    if change.current == change.reference:
        return 0.0
    return case.sign * math.copysign(math.inf, change.current - change.reference)


def by_equality(worsening: float, limit: float) -> tuple[Outcome, Reason]:
    """Return what a count decides: a tolerance is the user's."""
    if worsening > limit:
        return Outcome.REGRESSED, Reason.SLOWER_THAN_LIMIT
    if worsening < -limit:
        return Outcome.IMPROVED, Reason.FASTER_THAN_LIMIT
    reason = Reason.EQUAL if worsening == 0 else Reason.WITHIN_NOISE
    return Outcome.UNCHANGED, reason


def _by_evidence(
    ruling: Ruling, limit: float, policy: Policy
) -> tuple[Outcome, Reason]:
    """Return what a metric with noise decides."""
    if abs(ruling.worsening) <= limit:
        return Outcome.UNCHANGED, Reason.WITHIN_NOISE
    worse = ruling.worsening > 0
    sure = (ruling.p_worse if worse else ruling.p_better) < ruling.level
    p_value = ruling.change.p_worse if worse else ruling.change.p_better
    suspect = p_value is not None and p_value < policy.suspect_p
    confirmed = _is_confirmed(ruling)
    other_alone = not sure and _is_sure_by_itself(ruling)
    better = not worse and (suspect or (other_alone and _agrees(ruling)))
    if better and not (sure and confirmed):
        return Outcome.IMPROVED, Reason.NOT_CONFIRMED  # never a reason to fail
    if (suspect and not confirmed) or other_alone:
        return Outcome.INCONCLUSIVE, Reason.NOT_CONFIRMED
    if not (sure and confirmed):
        return Outcome.INCONCLUSIVE, Reason.NOT_SIGNIFICANT
    if worse:
        return Outcome.REGRESSED, Reason.SLOWER_THAN_LIMIT
    return Outcome.IMPROVED, Reason.FASTER_THAN_LIMIT


def _agrees(ruling: Ruling) -> bool:
    """Return whether fresh processes by themselves moved in the direction of the change."""
    alone = None if ruling.weighed is None else ruling.weighed.alone
    if alone is None or alone.effect is None or ruling.change.effect is None:
        return False
    return alone.effect * ruling.change.effect > 0


def _is_sure_by_itself(ruling: Ruling) -> bool:
    """Return whether suite or fresh processes would be sure, each by itself."""
    if ruling.weighed is None or ruling.weighed.alone is None:
        return False
    return min(ruling.p_alone, ruling.p_suite) < ruling.level


def _is_confirmed(ruling: Ruling) -> bool:
    """Return whether fresh processes gave values, or none are needed."""
    if not ruling.selected:
        return True
    return ruling.confirmation is not None and bool(ruling.confirmation.run_values)


def _confirmations(case: Case, ruling: Ruling, policy: Policy) -> tuple[float, ...]:
    """Return the effect in each deciding process, without the machine's part."""
    if ruling.weighed is not None and ruling.weighed.alone is not None:
        return ruling.weighed.confirmations
    shifted = ruling.change.reference * (1 + (ruling.change.machine_shift or 0.0))
    if ruling.confirmation is None or ruling.confirmation.value is None or not shifted:
        return ()
    compared = comparison_of(case, policy, ruling.confirmation)
    values = () if compared is None else compared.current.run_values
    return tuple(relative_change(value, shifted) for value in values)


def _span(case: Case, stored: Sequence[StoredValue]) -> BaselineSpan | None:
    """Return the stored sessions of a case, oldest and newest."""
    if not stored:
        return None
    first, last = stored[0].session, stored[-1].session
    return BaselineSpan(
        session_count=len(stored),
        first_unix_s=first.started_unix_s,
        last_unix_s=last.started_unix_s,
        first_commit=first.commit,
        last_commit=last.commit,
        moved=case.moved,
        alone_count=sum(bool(session.value.alone_values) for session in stored),
        of_suite=not case.counts and _is_of_suite(stored),
    )


def _is_of_suite(stored: Sequence[StoredValue]) -> bool:
    """Return whether too few of some sessions compare with a run of one test."""
    count = sum(same_company(session.session, _OF_ONE_TEST) for session in stored)
    return count < min(POLICY.least_sessions, len(stored))


_OF_ONE_TEST = Session(id="", started_unix_s=0.0, host="", ran_count=1)


_TIMES = frozenset({Family.DEVICE_TIME, Family.HOST_TIME})  # a shift moves them
_OF_DEVICE = frozenset({Family.DEVICE_TIME, Family.COUNTER})  # measured on it
_MOST_LOG = 700.0  # exp of more is not finite
_MOST = 1e308  # of how often others go into a value: it stays finite
_LEAST_OTHERS = 2  # sessions without which no value is left out


def early_verdict(
    case: Case, policy: Policy, confirmation: Confirmation | None
) -> Verdict | None:
    """Return the first row that says why a case cannot be judged; None: it can be."""
    return (
        _unmeasured(case)
        or _incomparable(case)
        or _lost(case, confirmation)
        or _void(case)
        or _too_few(case, policy)
    )


def kernel_verdict(
    case: Case, policy: Policy, confirmation: Confirmation | None
) -> Verdict | None:
    """
    Return *inconclusive* where confirming processes drew other kernels; None: go on.

    They are judged inside the choice that most of them have. A choice that no stored
    session has and all of them have is judged on total time: the code now always picks
    another kernel.
    """
    if confirmation is None or not confirmation.run_values:
        return None
    choice, count = _usual(confirmation.made_choices)
    total = len(confirmation.run_values)
    inside = [s for s in case.stored if s.choice == choice]
    unanimous = count == total
    enough = unanimous or count >= policy.least_choice_runs
    if enough and (_suffices(case, inside, policy) or (unanimous and not inside)):
        return None
    stored, often = _usual(tuple(s.choice for s in case.stored))
    then = KernelChoice(choice=stored, count=often, total_count=len(case.stored))
    now = KernelChoice(choice=choice, count=count, total_count=total)
    return verdict_of(
        case,
        Outcome.INCONCLUSIVE,
        Reason.OTHER_KERNEL,
        evidence=VerdictEvidence(kernels=(then, now)),
    )


def comparison_of(
    case: Case, policy: Policy, confirmation: Confirmation | None = None
) -> Comparison | None:
    """
    Return what is compared with what: values of one choice of kernels, if there are.

    Args:
        case: The case.

        policy: The rule's constants.

        confirmation: What decides in place of the first value; None: the first does.

    Returns:
        None where there is no value, or nothing to compare it with.
    """
    if case.current is None or not case.stored:
        return None
    current, choice = case.current, case.choice
    if confirmation is not None and confirmation.value is not None:
        choice, _ = _usual(confirmation.made_choices)
        current = _of_choice(confirmation.value, confirmation.made_choices, choice)
    alike, of_part = _of_company(case, policy)
    inside = [s for s in alike if s.choice == choice]
    used = inside if _suffices(case, inside, policy) else alike
    source = case.estimate.source if case.estimate is not None else ""
    group, clock, is_time = _grouping(case.metric.name, source)
    stored = tuple([s.value for s in used])
    level = at_one_speed(current, stored, other_python="python" in case.moved)
    return Comparison(
        current=current if level is None else level.current,
        stored=stored if level is None else level.stored,
        core_shift=None if level is None else level.log_shift,
        core_variance=0.0 if level is None else level.variance,
        session_ids=tuple([s.session.id for s in used]),
        group=group,
        better=direction(case.metric),
        exact=case.counts,
        shift_group=_shift_group(case, at_one_speed=level is not None)
        if is_time
        else "",
        clock=clock,
        limit=case.limit,
        fresh=confirmation is not None and confirmation.value is not None,
        clock_shift=clock_shift(current, stored) if is_time else None,
        of_part=of_part,
        moved=bool(case.moved) and not _HARMLESS.issuperset(case.moved),
    )


def confirmed_comparison(
    case: Case, policy: Policy, confirmation: Confirmation
) -> Comparison | None:
    """Return a case by its fresh processes, with the suite's value beside; None: neither."""
    comparison = comparison_of(case, policy, confirmation)
    if comparison is None:
        return None
    return replace(comparison, suite=comparison_of(case, policy))


def _of_company(case: Case, policy: Policy) -> tuple[tuple[StoredValue, ...], bool]:
    """
    Return the stored sessions whose suite was like this run's, and whether too few were.

    They are all of them then: this run is one of a part. What code counts, it counts in
    any company.
    """
    if case.session is None or case.counts:  # the first is the rule, and is fast
        return case.stored, False
    company = case.company
    if len(company) == len(case.stored) or len(company) >= policy.least_sessions:
        return company, False
    return case.stored, True


def reference_comparisons(
    references: Iterable[Reference],
    comparisons: Iterable[Comparison],
    *,
    fresh: bool = False,
) -> list[Comparison]:
    """
    Return reference workloads as controls of every class and metric that they stand for.

    Args:
        references: What was timed of them.

        comparisons: Those that they are controls of.

        fresh: Whether their fresh processes count in place of this session.
    """
    classes = {c.shift_group: c for c in comparisons if c.shift_group}
    return [
        comparison
        for reference in references
        for name, like in classes.items()
        if name.startswith(_class_prefix(reference))
        and (comparison := _reference_comparison(reference, like, fresh=fresh))
        is not None
    ]


def _reference_comparison(
    reference: Reference, like: Comparison, *, fresh: bool
) -> Comparison | None:
    """Return a workload as a control of a class, fresh with the suite's value beside."""
    value = reference.fresh if fresh else reference.current
    if value is None:
        return None
    now, then = _reference_values(value, reference.stored, like)
    if not then:
        return None
    return replace(
        like,
        current=_as_metric(now, like),
        stored=tuple(_as_metric(s.value, like) for s in then),
        session_ids=tuple(s.session.id for s in then),
        exact=False,
        limit=None,
        fresh=fresh,
        suite=_reference_comparison(reference, like, fresh=False) if fresh else None,
        of_part=False,
    )


def _reference_values(
    value: SessionValue, stored: Sequence[StoredValue], like: Comparison
) -> tuple[SessionValue, Sequence[StoredValue]]:
    """Return a workload's value and those that it is held against: at one speed or raw."""
    if like.core_shift is None:
        return value, stored
    # raw ones would show again what is taken out of the tests: stored before there was a loop
    told = [s for s in stored if s.value.cores]
    alike = at_one_speed(value, [s.value for s in told]) if told else None
    if alike is None:
        return value, ()
    values = zip(told, alike.stored, strict=True)
    return alike.current, [replace(s, value=v) for s, v in values]


def _as_metric(value: SessionValue, like: Comparison) -> SessionValue:
    """Return times so that they move as a metric does: a rate falls where a time grows."""
    if like.better is not Better.HIGHER:
        return value
    rates, alone = (
        tuple(1 / time for time in times)
        for times in (value.run_values, value.alone_values)
    )
    return replace(
        value, run_values=rates, cores=(), alone_values=alone, alone_cores=()
    )


@lru_cache(maxsize=1024)  # a run has few, and asks for each test
def _grouping(metric: str, source: str) -> tuple[str, TimeBase, bool]:
    """Return a metric's group and clock, and whether the machine moves it as a time."""
    is_time = family_of(metric, source) in _TIMES
    # a speedup is of two times that were taken by turns: the machine moves both
    is_ratio = metric in METRICS and METRICS[metric].kinds == (Kind.COMPARE,)
    return group_of(metric, source), clock_of(metric, source), is_time and not is_ratio


def clock_of(metric: str, source: str) -> TimeBase:
    """Return whose times the values of a metric are."""
    of_device = family_of(metric, source) in _OF_DEVICE
    return TimeBase.DEVICE if of_device else TimeBase.HOST


def comparable(case: Case, policy: Policy) -> Comparison | None:
    """Return a case as numbers; None: an early row says why it has none."""
    if case.differences or case.other_sources or case.void is not None:
        return None
    return comparison_of(case, policy)


def suffices(case: Case, policy: Policy) -> bool:
    """Return whether so many sessions are stored that numbers can decide a case."""
    return bool(case.stored) and _enough(case, policy)


def group_of(metric: str, source: str) -> str:
    """Return what values share whose variances are alike: metric and family."""
    return f"{metric} {family_of(metric, source).value}"


def _shift_group(case: Case, *, at_one_speed: bool) -> str:
    """Return what moves together with a case when the machine moves."""
    # where the core's speed is taken out already, the machine moves what is left
    left = " at one speed" if at_one_speed else ""
    return f"{_class_prefix(case)}{case.metric.name}{left}"


def _class_prefix(subject: Case | Reference) -> str:
    """Return what the names of a class begin with; on another host it is another class."""
    on_host = "" if subject.host is None else f"{subject.host.key} "
    return f"{on_host}{subject.bound_class.value} "


def may_change(
    case: Case,
    comparison: Comparison | None,
    policy: Policy = POLICY,
    *,
    either_way: bool = False,
) -> bool:
    """
    Return whether a case may be suspected once the whole suite is known.

    A test whose outcome was told cannot fail afterwards, and how unlikely a change is
    follows from the variances of all tests: so the size of the change alone counts here,
    of the same values and on the same scale as at the end.

    Args:
        case: One pair of test and metric, as its first process measured it.

        comparison: The case as numbers; None: it has none.

        policy: The rule's constants.

        either_way: Whether an improvement is confirmed, too, and may fail there.
    """
    if case.limit is None or comparison is None or not suffices(case, policy):
        return False
    if is_exact(comparison):
        share, effects = 1.0, [exact_change(comparison).effect]
    else:
        few = policy.least_sessions if _has_companies(case) else 0
        share, effects = policy.suspect_share, _effects(comparison, few)
    for effect in effects:
        # something that became of nothing: no limit is a share of that
        nothing = math.copysign(math.inf, _mean(comparison.current))
        change = nothing if effect is None else effect
        least = share * case.limit
        if case.sign * change > least:
            return True
        if either_way and -case.sign * change > least / (1 + least):  # as far, in logs
            return True
    return False


def _of_choice(
    value: SessionValue, choices: Sequence[str | None], choice: str | None
) -> SessionValue:
    """Return the values of the processes that made one choice."""
    places = [place for place, made in enumerate(choices) if made == choice]
    return replace(
        value,
        run_values=tuple(value.run_values[place] for place in places),
        cores=tuple(value.cores[place] for place in places) if value.cores else (),
        sm_clocks_hz=tuple(value.sm_clocks_hz[place] for place in places)
        if value.sm_clocks_hz
        else (),
    )


def _incomparable(case: Case) -> Verdict | None:
    """Return the row for other hardware, another source, or nothing stored."""
    if case.differences:
        return verdict_of(
            case,
            Outcome.INCOMPARABLE,
            Reason.FINGERPRINT_DIFFERS,
            evidence=VerdictEvidence(
                differences=dict(sorted(case.differences.items()))
            ),
        )
    if case.other_sources:
        return verdict_of(
            case,
            Outcome.INCOMPARABLE,
            Reason.OTHER_SOURCE,
            evidence=VerdictEvidence(stored_sources=case.other_sources),
        )
    if case.stored:
        return None
    if not case.other_machines:
        return verdict_of(case, Outcome.NEW, Reason.NOTHING_STORED)
    return verdict_of(
        case,
        Outcome.INCOMPARABLE,
        Reason.FINGERPRINT_DIFFERS,
        cause=Cause.OTHER_MACHINE,
        evidence=VerdictEvidence(machines=case.other_machines),
    )


def _unmeasured(case: Case) -> Verdict | None:
    """Return the row for a metric that has no value now."""
    if case.void is not None or case.current is not None:
        return None
    return verdict_of(
        case,
        Outcome.UNMEASURED,
        Reason.NOT_MEASURED,
        evidence=VerdictEvidence(gap=case.unmeasured),
    )


def _lost(case: Case, confirmation: Confirmation | None) -> Verdict | None:
    """Return the row for a test that gave no value when it ran alone."""
    if confirmation is None or confirmation.lost is None:
        return None
    return verdict_of(
        case,
        Outcome.FAILED,
        Reason.CHILD_GAVE_NO_VALUE,
        evidence=VerdictEvidence(lines=confirmation.lost),
    )


def _void(case: Case) -> Verdict | None:
    """Return the row for a measurement that must not be judged."""
    if case.void is None:
        return None
    evidence = VerdictEvidence(
        gap=Unmeasured.of_metric(case.metric.name, case.void.gap)
    )
    return verdict_of(case, Outcome.INCONCLUSIVE, Reason.VOID, evidence=evidence)


def _too_few(case: Case, policy: Policy) -> Verdict | None:
    """Return the row for a baseline that cannot know how much its sessions differ."""
    if _enough(case, policy):
        return None
    return verdict_of(
        case,
        Outcome.INCONCLUSIVE,
        Reason.TOO_FEW_SESSIONS,
        evidence=VerdictEvidence(least_count=policy.least_sessions),
    )


def _enough(case: Case, policy: Policy) -> bool:
    """Return whether a case's sessions, or those of its choice, can be judged by."""
    if _suffices(case, case.stored, policy):
        return True
    inside = [s for s in case.stored if s.choice == case.choice]
    return len(inside) < len(case.stored) and _suffices(case, inside, policy)


def _suffices(case: Case, stored: Sequence[StoredValue], policy: Policy) -> bool:
    """Return whether so many sessions can be judged by; 1, where counts agree."""
    if len(stored) >= policy.least_sessions:
        return True
    if not case.counts:
        return False
    return len({value for s in stored for value in s.value.run_values}) == 1


def _usual(choices: Sequence[str | None]) -> tuple[str | None, int]:
    """Return the choice that most of some have, and how many; of equal ones the first."""
    return Counter(choices).most_common(1)[0]


def _has_companies(case: Case) -> bool:
    """Return whether some stored sessions may be left out once this run's tests are counted."""
    counts = {s.session.ran_count for s in case.stored}
    return len(counts - {None}) > 1 and not case.counts


def _effects(comparison: Comparison, few: int = 0) -> list[float | None]:
    """
    Return a change with all stored values, and without any that may not fit.

    Args:
        comparison: The values.

        few: So many of the stored values may be those that count; 0: all of them do.
    """
    sessions = (comparison.current, *comparison.stored)
    is_log = all(value > 0 for session in sessions for value in session.run_values)
    now, *then = map(_log_mean if is_log else _mean, sessions)
    several = [then]
    if len(then) > _LEAST_OTHERS:
        then.sort()
        several += [then[1:], then[:-1]]
        if few:
            several += [then[:few], then[-few:]]
    means = [*map(mean, several)]
    if is_log:
        return [math.expm1(min(now - middle, _MOST_LOG)) for middle in means]
    return [_relative_to(middle, now) for middle in means]


def _relative_to(reference: float, value: float) -> float | None:
    """Return how far a value is from another, over it; None: it became of 0."""
    if reference == 0:
        return None if value else 0.0
    return relative_change(value, reference)


def _log_mean(session: SessionValue) -> float:
    """Return the mean of the logarithms of a session's processes; most have one."""
    first, *rest = session.run_values
    return fmean(map(math.log, session.run_values)) if rest else math.log(first)


def _mean(session: SessionValue) -> float:
    """Return the mean of a session's processes."""
    return mean(session.run_values)
