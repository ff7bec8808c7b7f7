"""The rule that turns a case into a verdict, written as a table of rows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, TypeAlias

from pytest_gpuperf.compute.change import exact_change, is_exact
from pytest_gpuperf.compute.machine import at_one_speed, clock_shift
from pytest_gpuperf.compute.stats import mean, mean_logs, relative_change
from pytest_gpuperf.judge.case import (
    HARMLESS,
    POLICY,
    Case,
    Policy,
    Reference,
    StoredValue,
    StoredValues,
    direction,
)
from pytest_gpuperf.model.change import Change, Comparison, TimeBase
from pytest_gpuperf.model.environment import family_of
from pytest_gpuperf.model.frozen import Frozen, replace
from pytest_gpuperf.model.gap import GapCode
from pytest_gpuperf.model.metric import KERNEL_SET, METRICS, Better, Family
from pytest_gpuperf.model.packed import SessionValues
from pytest_gpuperf.model.record import (
    BoundClass,
    Kind,
    SessionValue,
    VoidCode,
)
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

if TYPE_CHECKING:
    from pytest_gpuperf.compute.alone import Weighed
    from pytest_gpuperf.judge.confirmation import Confirmation

# Suite and fresh processes are alike if they are this much of a change apart.
_ALIKE = 0.25
# With fewer steps, the slowest steps move the median of a loop (docs/steps.md).
_ENOUGH_STEPS = 30
# A smaller move of the clock may be an error of reading: the clock has steps of 15 MHz,
# 0.8 % of an H200's (docs/judging.md section 2). [fraction; as much on a log scale]
CLOCK_STEP = 0.01
# Getters, because each comprehension of each test is a call.
_RAN_COUNT, _ALONE = attrgetter("ran_count"), attrgetter("alone_values")

# A case, and the same case as numbers.
ComparedCase: TypeAlias = "tuple[Case, Comparison | None]"


class Ruling(Frozen, frozen=True, kw_only=True):
    """
    Input of the last rows of the rule.

    Attributes:
        change: The change to judge.

        worsening: The effect, signed so that more is worse. Infinite if 0 became something.

        p_worse: Chance of the change without a worsening, adjusted over all pairs of the
            run.

        p_better: Chance of the change without an improvement, adjusted in the same way.

        level: The chance below which the change is significant.

        confirmation: The fresh processes, or None if there were none.

        complete: Whether every test reported.

        selected: Whether suspects need to be confirmed.

        shared: Whether most tests of the class moved alike.

        weighed: The change by the suite and by the fresh processes, separately. None if the
            change does not come from both.

        p_alone: Chance of the change of the fresh processes by themselves, in the direction
            of that change, adjusted in the same way.

        p_suite: The same chance for the value of the suite, in the direction of `change`.
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
    """Return a verdict on a case, with the span of the stored sessions that were compared."""
    if change is not None and change.left_out:
        left_out = _left_out(case, change)
        evidence = replace(evidence or VerdictEvidence(), left_out=left_out)
    if change is not None and case.launches is not None:
        evidence = replace(evidence or VerdictEvidence(), launches=case.launches)
    return Verdict(
        key=case.key,
        metric=case.metric.name,
        outcome=outcome,
        reason=reason,
        cause=cause,
        threshold=case.limit,
        default_limit=case.default_limit,
        estimate=case.estimate,
        baseline=_span(case),
        change=change,
        evidence=evidence,
    )


def _left_out(case: Case, change: Change) -> LeftOut:
    stored = next(s for s in case.stored if s.session.id == change.left_out)
    ratio = None  # To a mean of 0.
    if change.reference != 0:
        ratio = min(max(_mean(stored.value) / change.reference, -_MOST), _MOST)
    return LeftOut(
        session_id=stored.session.id,
        started_unix_s=stored.session.started_unix_s,
        ratio=ratio,
    )


def rule(
    case: Case,
    ruling: Ruling,
    policy: Policy,
    *,
    cache_slowdown: float | None = None,
) -> Verdict:
    """
    Return the verdict of a gated case by the numbers of a ruling.

    Args:
        case: The case.

        ruling: The change and its chances.

        policy: The rule's constants.

        cache_slowdown: Factor by which reads beyond a core's caches are slower than in all
            stored sessions, or None if unknown.
    """
    outcome, reason = _by_numbers(case, ruling, policy)
    is_confirmed = ruling.confirmation is not None or ruling.weighed is not None
    if outcome in _SAME and not is_confirmed:
        return verdict_of(case, outcome, reason, change=ruling.change)
    moved = outcome in {Outcome.REGRESSED, Outcome.IMPROVED}
    # A run that ended early measures nothing again, so the early end is the reason.
    if not ruling.complete and (moved or reason is Reason.NOT_CONFIRMED):
        outcome, reason = Outcome.INCONCLUSIVE, Reason.INCOMPLETE_RUN
    is_open = reason in {Reason.NOT_SIGNIFICANT, Reason.NOT_CONFIRMED}
    cause = _cause(case, ruling, reason, policy) if is_open else None
    if outcome is Outcome.REGRESSED and not _holds_in_cycles(case, ruling.change):
        outcome, reason = Outcome.INCONCLUSIVE, Reason.NOT_SIGNIFICANT
        cause = Cause.CLOCK_MOVED
    undecided = outcome is Outcome.INCONCLUSIVE
    evidence = (
        _evidence(case, ruling, cause, undecided=undecided)
        if undecided or cause is Cause.OTHER_ALONE
        else None
    )
    is_exact = ruling.change.exact or case.metric.name == KERNEL_SET
    if (outcome, reason) in _DOUBTED and not is_exact:
        doubt = _doubt_of(case, ruling, policy, cache_slowdown or 0.0)
        if doubt is None and moved and _is_of_one_commit(case, ruling, policy):
            doubt = Cause.SAME_COMMIT, VerdictEvidence()
        if doubt is not None:
            (outcome, reason), cause, evidence = _DOUBTED[outcome, reason], *doubt
    verdict = verdict_of(
        case, outcome, reason, cause=cause, evidence=evidence, change=ruling.change
    )
    confirmations = _confirmations(case, ruling, policy) if is_confirmed else ()
    if not confirmations:
        return verdict
    # The change of the fresh processes, if they would decide differently.
    alone, weighed = None, ruling.weighed
    if weighed is not None and weighed.alone is not None:
        far = abs(weighed.allowed) > (case.limit or 0.0)
        differs = outcome in _SAME and far and ruling.p_alone < ruling.level
        if differs or cause is Cause.OTHER_ALONE:
            alone = weighed.alone
    return replace(verdict, confirmations=confirmations, alone=alone)


def verdict_within_limit(case: Case, change: Change, policy: Policy) -> Verdict | None:
    """
    Return the verdict of a gated case that changed by its limit at most, or None.

    The case was not measured again, so its change alone decides.
    """
    worsening, limit = worsening_of(case, change), case.limit or 0.0
    if not -limit <= worsening <= limit or case.metric.name == KERNEL_SET:
        return None
    if change.exact:
        outcome, reason = by_equality(worsening, limit)
    else:
        outcome, reason = _within(case, change, policy)
    return verdict_of(case, outcome, reason, change=change)


def _by_numbers(case: Case, ruling: Ruling, policy: Policy) -> tuple[Outcome, Reason]:
    limit = case.limit or 0.0
    # The numbers of two sets may differ, and each set is exact.
    if ruling.change.exact or case.metric.name == KERNEL_SET:
        return _by_count(case, ruling, limit)
    if abs(ruling.worsening) <= limit:
        return _within(case, ruling.change, policy)
    return _by_evidence(case, ruling, policy)


def _within(case: Case, change: Change, policy: Policy) -> tuple[Outcome, Reason]:
    return _NOT_SEEN if _is_blind(case, change, policy) else _WITHIN


_SAME = frozenset({Outcome.UNCHANGED, Outcome.BLIND})
# A member of an enum takes as long to look up as a call, and nearly all cases need these.
_WITHIN = Outcome.UNCHANGED, Reason.WITHIN_NOISE
_NOT_SEEN = Outcome.BLIND, Reason.NOT_DETECTABLE
_EQUAL = Outcome.UNCHANGED, Reason.EQUAL


def _is_blind(case: Case, change: Change, policy: Policy) -> bool:
    """
    Return True if only a change far beyond the limit would be detected.

    A change that equality decides has no detectable effect, and one stored session has no
    spread of its own.
    """
    if change.reference == 0 or change.session_count < policy.least_sessions:
        return False
    limit = case.limit or 0.0
    most = policy.blind_fraction if case.default_limit else policy.blind_limits * limit
    detectable = change.detectable_effect
    return detectable is None or detectable > most  # None is infinite.


# A worsening that the machine may have caused fails no test, and such an improvement is
# not stored.
_OPEN = (Outcome.INCONCLUSIVE, Reason.NOT_SIGNIFICANT)
_DOUBTED = {
    (Outcome.REGRESSED, Reason.SLOWER_THAN_LIMIT): _OPEN,
    (Outcome.IMPROVED, Reason.FASTER_THAN_LIMIT): (
        Outcome.IMPROVED,
        Reason.NOT_CONFIRMED,
    ),
    # The machine is the better explanation.
    _OPEN: _OPEN,
}


_SLOW_READS = (
    "reads beyond a core's caches take {:.3g} times as long as in the stored sessions: "
    "other programs use the memory"
)


def _doubt_of(
    case: Case, ruling: Ruling, policy: Policy, cache_slowdown: float
) -> tuple[Cause, VerdictEvidence] | None:
    """Return a cause outside the code that may explain a change, or None."""
    # Needed only where a value moved.
    from pytest_gpuperf.judge.modes import (
        seen_before,
        text_of_disk,
        text_of_interruptions,
        text_of_oversubscription,
        text_of_waits,
    )

    compared = comparison_of(case, policy, ruling.confirmation)
    alike = seen_before(case, compared, ruling.confirmation, ruling.change)
    if alike:
        return Cause.SEEN_BEFORE, VerdictEvidence(alike=alike)
    text = text_of_oversubscription(case, ruling.confirmation, ruling.worsening)
    if case.bound_class is BoundClass.DISK and not text:
        shift = ruling.change.machine_shift or 0.0
        text = text_of_disk(shift, ruling.worsening, policy)
    text = text or text_of_waits(case, ruling.change, ruling.worsening)
    # No test is slowed by more than the reads.
    is_explained = 0 < ruling.worsening < cache_slowdown - 1
    if cache_slowdown > policy.cache_slowdown and is_explained and not text:
        of_host = case.bound_class is BoundClass.HOST and not case.counts
        text = _SLOW_READS.format(cache_slowdown) if of_host else ""
    if not text and abs(ruling.worsening) < policy.most_refilling:
        text = text_of_interruptions(case, ruling.confirmation, ruling.worsening)
    if text:
        return Cause.NOISY_MACHINE, VerdictEvidence(lines=(text,))
    return None


def _is_of_one_commit(case: Case, ruling: Ruling, policy: Policy) -> bool:
    """Return True if a host time moved by a little while no file and no package did."""
    if abs(ruling.worsening) >= policy.same_commit_change or case.estimate is None:
        return False
    _, clock, is_time = _grouping(case.metric.name, case.estimate.source)
    return is_time and clock is TimeBase.HOST and case.is_same_commit


def _holds_in_cycles(case: Case, change: Change) -> bool:
    """
    Return True unless a moved device clock explains the slowdown.

    If the clock moved, the slowdown must exceed the limit in cycles, too.
    """
    clock = change.clock_shift
    if clock is None or abs(clock) < CLOCK_STEP or change.reference == 0:
        return True
    ratio = change.current / change.reference
    in_cycles = ratio * (1 + clock) if case.sign > 0 else ratio / (1 + clock)
    return case.sign * (in_cycles - 1) > (case.limit or 0.0)


def _cause(case: Case, ruling: Ruling, reason: Reason, policy: Policy) -> Cause | None:
    """
    Return the cause of an undecided change, or None if only interleaving can help.

    Interleaving is a comparison with a revision, in alternating processes.
    """
    if ruling.shared and ruling.confirmation is None:
        return Cause.SHARED_MOVE
    if reason is Reason.NOT_CONFIRMED:
        return _unconfirmed(ruling)
    steps = case.estimate.sample_count if case.estimate is not None else None
    change, cause = ruling.change, None
    if case.kind is Kind.STEPS and steps is not None and steps < _ENOUGH_STEPS:
        cause = Cause.SHORT_LOOP
    elif change.reference == 0:
        cause = Cause.OF_NOTHING
    elif (change.session_spread or 0.0) > policy.noisy_spread:
        cause = Cause.NOISY_MACHINE
    elif change.session_count < policy.usual_sessions:
        cause = Cause.FEW_SESSIONS
    elif change.run_count == 1:
        cause = Cause.ONE_PROCESS
    return cause


def _unconfirmed(ruling: Ruling) -> Cause | None:
    """Return the cause of a missing confirmation, or None if nothing was measured again."""
    if ruling.confirmation is not None and not ruling.confirmation.run_values:
        # Processes ran but none is usable, or none could be started.
        codes = {void.code for void in ruling.confirmation.voids}
        elsewhere = codes == {VoidCode.OTHER_MACHINE}
        lacking = ruling.confirmation.lacking
        return Cause.MEASURED_ELSEWHERE if elsewhere else unusable(lacking)
    if _is_confirmed(ruling) and _is_sure_by_itself(ruling):
        return Cause.OTHER_ALONE
    return Cause.LOOKED_BETTER if ruling.worsening < 0 else None


def unusable(lacking: Iterable[Unmeasured]) -> Cause:
    """
    Return the cause for a verdict without a usable fresh process.

    Args:
        lacking: The gaps reported by the fresh processes.
    """
    codes = {gap.code for gap in lacking}
    if codes == {GapCode.OTHER_LAUNCHER}:
        return Cause.OTHER_LAUNCHER
    return Cause.NOTHING_USABLE  # Processes ran.


def _evidence(
    case: Case, ruling: Ruling, cause: Cause | None, *, undecided: bool
) -> VerdictEvidence | None:
    evidence, again = VerdictEvidence(), ruling.confirmation
    if undecided and again is not None:
        evidence = VerdictEvidence(
            voids=again.voids, differences=again.differences, lacking=again.lacking
        )
    if undecided and cause is Cause.SHORT_LOOP:
        evidence = replace(evidence, least_count=_ENOUGH_STEPS)
    session = case.session
    # Some stored sessions may have run another number of tests.
    of_part = session is not None and len(case.company) < len(case.stored)
    if cause is Cause.OTHER_ALONE and session is not None and of_part:
        most = max(s.session.ran_count or 0 for s in case.stored)
        evidence = replace(evidence, ran=(session.ran_count or 0, most))
    both = ruling.weighed
    if cause is Cause.OTHER_ALONE and both is not None and both.shifted_count:
        text = f"tests that moved in the suite and not alone: {both.shifted_count}"
        evidence = replace(evidence, lines=(text,))
    return None if evidence == VerdictEvidence() else evidence


def worsening_of(case: Case, change: Change) -> float:
    """
    Return the effect of a change, signed so that more is worse.

    The effect is infinite if 0 became something.
    """
    if change.effect is not None:
        return case.sign * change.effect
    if change.current == change.reference:
        return 0.0
    return case.sign * math.copysign(math.inf, change.current - change.reference)


def by_equality(worsening: float, limit: float) -> tuple[Outcome, Reason]:
    """
    Return the outcome and reason of an exact metric.

    No change is tolerated but that of the user's limit.
    """
    if worsening > limit:
        return Outcome.REGRESSED, Reason.SLOWER_THAN_LIMIT
    if worsening < -limit:
        return Outcome.IMPROVED, Reason.FASTER_THAN_LIMIT
    return _EQUAL if worsening == 0 else _WITHIN


def _by_count(case: Case, ruling: Ruling, limit: float) -> tuple[Outcome, Reason]:
    """
    Return the outcome and reason of an exact metric.

    A set of kernels is judged by which kernels ran and how often. A set that any stored
    session had is no change, because an autotuner may choose again.
    """
    if case.metric.name != KERNEL_SET:
        return by_equality(ruling.worsening, limit)
    confirmation = ruling.confirmation
    made: Collection[str | None] = {case.choice}
    if confirmation is not None and confirmation.run_values:
        made = confirmation.made_choices
    known = set(case.stored.listed.choices)
    if None in made or None in known or not known.isdisjoint(made):
        return Outcome.UNCHANGED, Reason.EQUAL
    return Outcome.REGRESSED, Reason.OTHER_KERNEL


def _by_evidence(case: Case, ruling: Ruling, policy: Policy) -> tuple[Outcome, Reason]:
    worse = ruling.worsening > 0
    sure = (ruling.p_worse if worse else ruling.p_better) < ruling.level
    p_value = ruling.change.p_worse if worse else ruling.change.p_better
    suspect = p_value is not None and p_value < policy.suspect_p
    confirmed = _is_confirmed(ruling)
    other_alone = not sure and _is_sure_by_itself(ruling)
    alone = None if ruling.weighed is None else ruling.weighed.alone
    # An effect is None if 0 became something.
    same_way = (
        alone is not None and (alone.effect or 0.0) * (ruling.change.effect or 0.0) > 0
    )
    better = not worse and (suspect or (other_alone and same_way))
    if better and not (sure and confirmed):
        return Outcome.IMPROVED, Reason.NOT_CONFIRMED  # Never a reason to fail.
    contradict = other_alone and not _agree(case, ruling)
    if (suspect and not confirmed) or contradict:
        return Outcome.INCONCLUSIVE, Reason.NOT_CONFIRMED
    if not (sure and confirmed):
        return Outcome.INCONCLUSIVE, Reason.NOT_SIGNIFICANT
    if worse:
        return Outcome.REGRESSED, Reason.SLOWER_THAN_LIMIT
    return Outcome.IMPROVED, Reason.FASTER_THAN_LIMIT


def _agree(case: Case, ruling: Ruling) -> bool:
    """
    Return True if suite and fresh processes are evidence of the same change.

    In a run of a part of the suite, and in a suite that moves tests by itself, they may be
    alike by chance.
    """
    both, suite = ruling.weighed, case.estimate
    of_part = len(case.company) < len(case.stored)
    if both is None or both.alone is None or both.shifted_count or of_part:
        return False
    if suite is None or suite.value <= 0 or both.alone.measured <= 0:
        return False
    apart = abs(math.log(both.alone.measured) - math.log(suite.value))
    return apart < _ALIKE * math.log1p(abs(ruling.change.effect or 0.0))


def _is_sure_by_itself(ruling: Ruling) -> bool:
    if ruling.weighed is None or ruling.weighed.alone is None:
        return False
    return min(ruling.p_alone, ruling.p_suite) < ruling.level


def _is_confirmed(ruling: Ruling) -> bool:
    if not ruling.selected:
        return True
    return ruling.confirmation is not None and bool(ruling.confirmation.run_values)


def _confirmations(case: Case, ruling: Ruling, policy: Policy) -> tuple[float, ...]:
    if ruling.weighed is not None and ruling.weighed.alone is not None:
        return ruling.weighed.confirmations
    shifted = ruling.change.reference * (1 + (ruling.change.machine_shift or 0.0))
    if ruling.confirmation is None or ruling.confirmation.value is None or not shifted:
        return ()
    compared = comparison_of(case, policy, ruling.confirmation)
    values = () if compared is None else compared.current.run_values
    return tuple(relative_change(value, shifted) for value in values)


def _span(case: Case) -> BaselineSpan | None:
    listed, odd = case.stored.listed, case.stored.values.odd
    if odd or case.moved:
        return _made_span(case)
    counts = case.counts
    if counts not in listed.spans:
        listed.spans[counts] = _made_span(case)
    return listed.spans[counts]


def _made_span(case: Case) -> BaselineSpan | None:
    listed, odd = case.stored.listed, case.stored.values.odd
    sessions = listed.sessions
    if not sessions:
        return None
    first, last = sessions[0], sessions[-1]
    of_suite = False
    if not case.counts:
        count = len(listed.company(1))
        of_suite = count < min(POLICY.least_sessions, len(sessions))
    return BaselineSpan(
        session_count=len(sessions),
        first_unix_s=first.started_unix_s,
        last_unix_s=last.started_unix_s,
        first_commit=first.commit,
        last_commit=last.commit,
        moved=case.moved,
        alone_count=sum(map(bool, map(_ALONE, odd.values()))) if odd else 0,
        of_suite=of_suite,
    )


# Machine drift moves these families.
_TIMES = frozenset({Family.DEVICE_TIME, Family.HOST_TIME})
# These families are measured on the device.
_OF_DEVICE = frozenset({Family.DEVICE_TIME, Family.COUNTER})
# The exponential of a larger number is not finite.
_MOST_LOG = 700.0
# Bound of a ratio, to keep it finite.
_MOST = 1e308
# With this many stored sessions or fewer, no value is left out.
_LEAST_OTHERS = 2


def early_verdict(
    case: Case, policy: Policy, confirmation: Confirmation | None
) -> Verdict | None:
    """Return the first verdict that rules out a judgement by numbers, or None."""
    if case.void is None and case.current is None:
        return verdict_of(
            case,
            Outcome.UNMEASURED,
            Reason.NOT_MEASURED,
            evidence=VerdictEvidence(gap=case.unmeasured),
        )
    stored_count = case.stored.listed.count
    if not stored_count or case.differences or case.other_sources:
        return _incomparable(case)
    if confirmation is not None and confirmation.lost is not None:
        return verdict_of(
            case,
            Outcome.FAILED,
            Reason.CHILD_GAVE_NO_VALUE,
            evidence=VerdictEvidence(lines=confirmation.lost),
        )
    if case.void is not None:
        gap = Unmeasured.of_metric(case.metric.name, case.void.gap)
        return verdict_of(
            case,
            Outcome.INCONCLUSIVE,
            Reason.VOID,
            evidence=VerdictEvidence(gap=gap),
        )
    # The first condition is only faster.
    if stored_count >= policy.least_sessions or _enough(case, policy):
        return None
    return verdict_of(
        case,
        Outcome.INCONCLUSIVE,
        Reason.TOO_FEW_SESSIONS,
        evidence=VerdictEvidence(least_count=policy.least_sessions),
    )


def kernel_verdict(
    case: Case, policy: Policy, confirmation: Confirmation | None
) -> Verdict | None:
    """
    Return *inconclusive* if the confirming processes ran other kernels, else None.

    The processes are judged within the choice of kernels that most of them made. If all of
    them made a choice that no stored session has, total time is judged: the code now always
    picks another kernel.
    """
    if confirmation is None or not confirmation.run_values:
        return None
    if case.metric.name == KERNEL_SET:  # Other kernels are the change.
        return None
    choice, count = _usual(confirmation.made_choices)
    total = len(confirmation.run_values)
    inside = case.stored.with_choice(choice)
    unanimous = count == total
    enough = unanimous or count >= policy.least_choice_runs
    if enough and (_suffices(case, inside, policy) or (unanimous and not inside)):
        return None
    stored, often = _usual(case.stored.listed.choices)
    then = KernelChoice(choice=stored, count=often, total_count=len(case.stored))
    now = KernelChoice(choice=choice, count=count, total_count=total)
    return verdict_of(
        case,
        Outcome.INCONCLUSIVE,
        Reason.OTHER_KERNEL,
        evidence=VerdictEvidence(kernels=(then, now)),
    )


def comparison_of(
    case: Case,
    policy: Policy,
    confirmation: Confirmation | None = None,
    *,
    also: SessionValue | None = None,
) -> Comparison | None:
    """
    Return the current value and the stored values to compare with.

    The stored values are those of the same choice of kernels, or all values if too few
    sessions made that choice.

    Args:
        case: The case.

        policy: The rule's constants.

        confirmation: The fresh processes that replace the first value, or None to use the
            first value.

        also: Other processes of this run, which also show how the test follows its core.

    Returns:
        The comparison, or None without a value or without anything to compare with.
    """
    if case.current is None or not case.stored.listed.count:
        return None
    current, choice = case.current, case.choice
    if confirmation is not None and confirmation.value is not None:
        choice, _ = _usual(confirmation.made_choices)
        current = _of_choice(confirmation.value, confirmation.made_choices, choice)
    alike, of_part = case.stored, False
    counts = case.counts
    # Counts do not depend on the other tests that ran.
    if case.session is not None and not counts:
        company = case.company
        # If too few sessions ran about as many tests, only a part of the suite ran.
        of_part = len(company) < min(len(alike), policy.least_sessions)
        alike = alike if of_part else company
    used, choices = alike, alike.listed.choices
    if choices.count(choice) < len(choices):
        inside = alike.with_choice(choice)
        used = inside if _suffices(case, inside, policy) else alike
    source = case.estimate.source if case.estimate is not None else ""
    group, clock, is_time = _grouping(case.metric.name, source)
    stored = used.values
    level = None
    if current.cores:  # Few metrics have the speed of the core.
        other = "python" in case.moved
        level = at_one_speed(current, stored, other_python=other, also=also)
    # Values corrected for core speed are moved only by the rest of the machine drift.
    left = "" if level is None else " at one speed"
    name = f"{_class_prefix(case)}{case.metric.name}{left}" if is_time else ""
    # Fifteen arguments at most, because more are passed as a dictionary.
    comparison = Comparison(
        current=current if level is None else level.current,
        stored=stored if level is None else level.stored,
        session_ids=used.listed.ids,
        group=group,
        better=direction(case.metric),
        exact=counts,
        shift_group=_GROUP_NAMES.setdefault(name, name),
        clock=clock,
        limit=case.limit,
        fresh=confirmation is not None and confirmation.value is not None,
        clock_shift=clock_shift(current, stored)
        if is_time and current.sm_clocks_hz
        else None,
        of_part=of_part,
        moved=bool(case.moved) and not HARMLESS.issuperset(case.moved),
    )
    if level is None:
        return comparison
    return replace(
        comparison,
        core_shift=level.log_shift,
        core_variance=level.variance,
        core_distance=level.distance,
        core_precision=level.precision,
    )


def confirmed_comparison(
    case: Case, policy: Policy, confirmation: Confirmation
) -> Comparison | None:
    """
    Return the comparison of the fresh processes, with that of the suite in `suite`.

    None if there is nothing to compare.
    """
    comparison = comparison_of(case, policy, confirmation, also=case.current)
    if comparison is None:
        return None
    suite = comparison_of(case, policy, also=confirmation.value)
    return replace(comparison, suite=suite)


def reference_comparisons(
    references: Iterable[Reference],
    comparisons: Iterable[Comparison],
    *,
    fresh: bool = False,
) -> list[Comparison]:
    """
    Return reference workloads as controls of the classes and metrics they stand for.

    Args:
        references: The timed reference workloads.

        comparisons: The comparisons that need controls.

        fresh: Whether to use the times of fresh processes instead of this session's.
    """
    classes = {c.shift_group: c for c in comparisons if c.shift_group}
    return [
        comparison
        for reference in references
        for name, like in classes.items()
        if _stands_for(reference, name, like)
        and (comparison := _reference_comparison(reference, like, fresh=fresh))
        is not None
    ]


def _stands_for(reference: Reference, name: str, like: Comparison) -> bool:
    """Return True if a workload moves with a class. A GPU's moves with both of its classes."""
    if reference.bound_class is not BoundClass.GPU:
        return name.startswith(_class_prefix(reference))
    of_device = (BoundClass.COMPUTE, BoundClass.MEMORY)
    prefixes = tuple(
        _class_prefix(replace(reference, bound_class=each)) for each in of_device
    )
    return like.clock is TimeBase.DEVICE and name.startswith(prefixes)


def _reference_comparison(
    reference: Reference,
    like: Comparison,
    *,
    fresh: bool,
    also: SessionValue | None = None,
) -> Comparison | None:
    """
    Return a workload as a control of a class, or None without comparable times.

    A fresh comparison carries the suite's value in `suite`.
    """
    value = reference.fresh if fresh else reference.current
    if value is None:
        return None
    then: Sequence[StoredValue] = reference.stored
    if like.core_shift is not None:
        # Raw times would bring back the core speed that the tests are corrected for.
        # Sessions from before the core loop existed have no speed.
        then = [s for s in then if s.value.cores]
        also = reference.current if fresh else also
        alike = (
            at_one_speed(value, [s.value for s in then], also=also) if then else None
        )
        if alike is None:
            return None
        value = alike.current
        then = [replace(s, value=v) for s, v in zip(then, alike.stored, strict=True)]
    if not then:
        return None
    return replace(
        like,
        current=_as_metric(value, like),
        stored=SessionValues.of([_as_metric(s.value, like) for s in then]),
        session_ids=tuple(s.session.id for s in then),
        exact=False,
        limit=None,
        fresh=fresh,
        suite=_reference_comparison(reference, like, fresh=False, also=reference.fresh)
        if fresh
        else None,
        of_part=False,
    )


def _as_metric(value: SessionValue, like: Comparison) -> SessionValue:
    """Convert times to the direction of a metric: a rate falls when a time grows."""
    if like.better is not Better.HIGHER:
        return value
    rates, alone = (
        tuple(1 / time for time in times)
        for times in (value.run_values, value.alone_values)
    )
    return replace(
        value, run_values=rates, cores=(), alone_values=alone, alone_cores=()
    )


# A run has few combinations, and looks up one per test.
@lru_cache(maxsize=1024)
def _grouping(metric: str, source: str) -> tuple[str, TimeBase, bool]:
    """Return the group, the clock, and True if machine drift moves the metric."""
    is_time = family_of(metric, source) in _TIMES
    # Both times of a speedup were taken alternately, so the machine moves both.
    is_ratio = metric in METRICS and METRICS[metric].kinds == (Kind.COMPARE,)
    return group_of(metric, source), clock_of(metric, source), is_time and not is_ratio


def clock_of(metric: str, source: str) -> TimeBase:
    """Return the clock that the values of a metric come from."""
    of_device = family_of(metric, source) in _OF_DEVICE
    return TimeBase.DEVICE if of_device else TimeBase.HOST


def comparable(case: Case, policy: Policy) -> Comparison | None:
    """Return the comparison of a case, or None if an early row decides the case."""
    if case.differences or case.other_sources or case.void is not None:
        return None
    return comparison_of(case, policy)


def suffices(case: Case, policy: Policy) -> bool:
    """Return True if enough sessions are stored to judge a case by numbers."""
    return case.stored.listed.count > 0 and _enough(case, policy)


def group_of(metric: str, source: str) -> str:
    """Return the name of the group that shares a variance: metric and family."""
    return f"{metric} {family_of(metric, source).value}"


# The value of an enum takes two calls.
_CLASS_NAMES = {each: each.value for each in BoundClass}


# The names of groups, so that the comparisons of a group share one.
_GROUP_NAMES: dict[str, str] = {}


def _class_prefix(subject: Case | Reference) -> str:
    on_host = "" if subject.host is None else f"{subject.host.key} "
    return f"{on_host}{_CLASS_NAMES[subject.bound_class]} "


def may_change(
    case: Case,
    comparison: Comparison | None,
    policy: Policy = POLICY,
    *,
    either_way: bool = False,
) -> bool:
    """
    Return True if a case may become a suspect once the whole suite has run.

    A test whose outcome was reported cannot fail afterwards, and the probability of a
    change depends on the variances of all tests. Only the size of the change counts here,
    with the same values and on the same scale as at the end.

    Args:
        case: One pair of test and metric, as measured by the first process.

        comparison: The comparison of the case, or None.

        policy: The rule's constants.

        either_way: Whether improvements are also confirmed, and may then fail.
    """
    if case.limit is None or comparison is None or not suffices(case, policy):
        return False
    if case.metric.name == KERNEL_SET:
        return case.choice not in case.stored.listed.choices
    if is_exact(comparison):
        share, effects = 1.0, [exact_change(comparison).effect]
    else:
        companies = set(map(_RAN_COUNT, case.stored.listed.sessions)) - {None}
        of_parts = len(companies) > 1 and not case.counts
        few = policy.least_sessions if of_parts else 0
        share, effects = policy.suspect_share, _effects(comparison, few)
    sign, least = case.sign, share * case.limit
    for effect in effects:
        change = effect
        if change is None:  # 0 became something, which exceeds any limit.
            change = math.copysign(math.inf, _mean(comparison.current))
        if sign * change > least:
            return True
        # As far in the other direction, on a log scale.
        if either_way and -sign * change > least / (1 + least):
            return True
    return False


def _of_choice(
    value: SessionValue, choices: Sequence[str | None], choice: str | None
) -> SessionValue:
    places = [place for place, made in enumerate(choices) if made == choice]
    return replace(
        value,
        run_values=tuple(value.run_values[place] for place in places),
        cores=tuple(value.cores[place] for place in places) if value.cores else (),
        sm_clocks_hz=tuple(value.sm_clocks_hz[place] for place in places)
        if value.sm_clocks_hz
        else (),
    )


def _incomparable(case: Case) -> Verdict:
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
    if not case.other_machines:
        return verdict_of(case, Outcome.NEW, Reason.NOTHING_STORED)
    return verdict_of(
        case,
        Outcome.INCOMPARABLE,
        Reason.FINGERPRINT_DIFFERS,
        cause=Cause.OTHER_MACHINE,
        evidence=VerdictEvidence(machines=case.other_machines),
    )


def _enough(case: Case, policy: Policy) -> bool:
    # The usual case, asked four times for each test.
    if case.stored.listed.count >= policy.least_sessions:
        return True
    if _suffices(case, case.stored, policy):
        return True
    inside = case.stored.with_choice(case.choice)
    return len(inside) < len(case.stored) and _suffices(case, inside, policy)


def _suffices(case: Case, stored: StoredValues, policy: Policy) -> bool:
    """
    Return True if there are enough sessions.

    If all counts agree, a single session is enough.
    """
    if len(stored) >= policy.least_sessions:
        return True
    if not case.counts:
        return False
    return len(set(stored.values.runs)) == 1


def _usual(choices: Sequence[str | None]) -> tuple[str | None, int]:
    """Return the most frequent choice and the count. The first wins a tie."""
    return Counter(choices).most_common(1)[0]


def _effects(comparison: Comparison, few: int = 0) -> list[float | None]:
    """
    Return the effect against all stored values, and against plausible subsets.

    An effect is None if 0 became something.

    Args:
        comparison: The comparison.

        few: Size of the subsets at both ends that may turn out to count, or 0 to use all
            values.
    """
    values = [comparison.current.run_values, *comparison.stored.run_values()]
    is_log = min(map(min, values)) > 0
    now, *then = mean_logs(values) if is_log else map(mean, values)
    several = [then]
    if len(then) > _LEAST_OTHERS:
        then.sort()
        several += [then[1:], then[:-1]]
        if few:
            several += [then[:few], then[-few:]]
    # Sums of logarithms are finite.
    if is_log:
        return [
            math.expm1(min(now - math.fsum(part) / len(part), _MOST_LOG))
            for part in several
        ]
    means = map(mean, several)
    return [
        relative_change(now, middle) if middle else (None if now else 0.0)
        for middle in means
    ]


def _mean(session: SessionValue) -> float:
    return mean(session.run_values)
