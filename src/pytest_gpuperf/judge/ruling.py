"""
The last rows of the rule: changes beyond a limit, and causes of them outside the code.

Such causes are second modes, shared cores and slow caches.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from statistics import median, median_low
from typing import TYPE_CHECKING

from pytest_gpuperf.compute.change import holm
from pytest_gpuperf.compute.stats import relative_change
from pytest_gpuperf.judge.case import SEVERAL_THREADS, Case, Policy, Reference
from pytest_gpuperf.judge.rule import (
    CLOCK_STEP,
    by_equality,
    comparison_of,
    grouping,
    is_enough,
    usual_choice,
    verdict_of,
    within_limit,
    worsening_of,
)
from pytest_gpuperf.model.change import Change, Comparison, TimeBase
from pytest_gpuperf.model.environment import Host
from pytest_gpuperf.model.frozen import Frozen, replace
from pytest_gpuperf.model.gap import GapCode
from pytest_gpuperf.model.metric import KERNEL_SET
from pytest_gpuperf.model.record import OVERSUBSCRIBED, BoundClass, Kind, VoidCode
from pytest_gpuperf.model.sample import Unmeasured
from pytest_gpuperf.model.verdict import (
    Cause,
    KernelChoice,
    Outcome,
    Reason,
    SeenValue,
    Verdict,
    VerdictEvidence,
)

if TYPE_CHECKING:
    from pytest_gpuperf.compute.alone import Weighed
    from pytest_gpuperf.judge.confirmation import Confirmation
    from pytest_gpuperf.judge.look import Name

# Two sessions are a mode. A single bad session of a test that computes is not. A test that
# waits or has threads is as slow as the thing it waits for, so a single session is enough
# (docs/judging.md section 2).
_MODE_SESSIONS, _MODE_SESSIONS_WAITING = 2, 1
# A stored value is near the current value within half a limit ...
_NEAR_LIMITS = 0.5
# ... and within this on a log scale, however large the limit is.
_NEAR = math.log1p(0.05)
# Share of a change. A value closer to the usual value is no other mode.
_HALF_WAY = 0.5
# Processes of a session, of which one may be disturbed.
_SEVERAL = 3
# Processes in one state differ by as much.
_NEAR_ALONE = math.log1p(0.1)
_INTERRUPTED = (
    "the samples were interrupted, those of some stored sessions were not: other programs"
    " empty the caches, and to fill them takes time of the processor"
)
_UNINTERRUPTED = (
    "the samples of most stored sessions were interrupted, those of this run were not:"
    " other programs had emptied the caches"
)
_SHARED_THEN = (
    "in most stored sessions other programs ran at the same time, and in this run they did"
    " not: threads that share cores take other times"
)
# An unchanged pool of threads took 1.95 times as long without other programs.
_MOST_SHARED = 1.5
# The load that a neighbour puts on a disk or a core varies.
_NEAR_WAITING = math.log1p(0.25)
_WAITING = frozenset({BoundClass.DISK, BoundClass.WAIT})
# With busy programs, unchanged tests that wait for a disk took 12 and 24 times as long in
# the suite, and 1.1 and 1.5 times in fresh processes. Slower code is as slow in both.
_FAR_APART = 2.0
# Processes that all confirm a slowdown of this size show one of the code.
_MOST_CONFIRMED = 1.0
# Times as slow as a test may be where the disk's workloads became faster.
_MOST_OTHER_WAY = 1.5
# Suite and fresh processes are alike if they are this much of a change apart.
_ALIKE = 0.25
# With fewer steps, the slowest steps move the median of a loop (docs/steps.md).
_ENOUGH_STEPS = 30
_SLOW_READS = (
    "reads beyond a core's caches take {:.3g} times as long as in the stored sessions: "
    "other programs use the memory"
)


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


def rulings_of(
    pairs: Sequence[tuple[Case, Change]],
    weighed: Sequence[Weighed | None],
    confirmed: Sequence[Confirmation | None],
    policy: Policy,
    shared: Collection[Name],
    *,
    undecided: Iterable[int],
    complete: bool,
) -> list[tuple[Case, Ruling]]:
    """
    Return the input of the last rows for the pairs that their change does not decide.

    Args:
        pairs: All pairs that numbers judge, with their changes.

        weighed: The change of each by the suite and by fresh processes, or None.

        confirmed: The fresh processes of each, or None.

        policy: The rule's constants.

        shared: The names of the cases that moved with most of their class.

        undecided: The places of the pairs.

        complete: Whether every test reported.
    """
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


def _by_numbers(case: Case, ruling: Ruling, policy: Policy) -> tuple[Outcome, Reason]:
    limit = case.limit or 0.0
    # The numbers of two sets may differ, and each set is exact.
    if ruling.change.exact or case.metric.name == KERNEL_SET:
        return _by_count(case, ruling, limit)
    if abs(ruling.worsening) <= limit:
        return within_limit(case, ruling.change, policy)
    return _by_evidence(case, ruling, policy)


_SAME = frozenset({Outcome.UNCHANGED, Outcome.BLIND})
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


def _doubt_of(
    case: Case, ruling: Ruling, policy: Policy, cache_slowdown: float
) -> tuple[Cause, VerdictEvidence] | None:
    """Return a cause outside the code that may explain a change, or None."""
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
    _, clock, is_time = grouping(case.metric.name, case.estimate.source)
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
    choice, count = usual_choice(confirmation.made_choices)
    total = len(confirmation.run_values)
    inside = case.stored.with_choice(choice)
    unanimous = count == total
    enough = unanimous or count >= policy.least_choice_runs
    if enough and (is_enough(case, inside, policy) or (unanimous and not inside)):
        return None
    stored, often = usual_choice(case.stored.listed.choices)
    then = KernelChoice(choice=stored, count=often, total_count=len(case.stored))
    now = KernelChoice(choice=choice, count=count, total_count=total)
    return verdict_of(
        case,
        Outcome.INCONCLUSIVE,
        Reason.OTHER_KERNEL,
        evidence=VerdictEvidence(kernels=(then, now)),
    )


def seen_before(
    case: Case,
    comparison: Comparison | None,
    confirmation: Confirmation | None,
    change: Change,
) -> tuple[SeenValue, ...]:
    """
    Return the stored values that form a mode with the current value, or ().

    Values left out of the change also count, because a slow mode may have been left out.

    Args:
        case: The case.

        comparison: The values of the case at one core speed, or None.

        confirmation: The results of fresh processes, or None if there were none.

        change: The change to explain. Values that fresh processes measure alone may be far
            from the values of the suite, and this change is based on one of the two.
    """
    effect = change.effect
    if comparison is None or not effect:
        return ()
    stored = comparison.stored.run_values()
    if min(comparison.current.run_values) <= 0 or min(comparison.stored.runs) <= 0:
        return ()
    if change.reference <= 0 or effect <= -1:
        return ()
    usual, moved = math.log(change.reference), math.log1p(effect)
    sign = math.copysign(1.0, effect)
    waits = case.notes or (confirmation is not None and confirmation.notes)
    near = min(_NEAR, _NEAR_LIMITS * math.log1p(case.limit or 0.0))
    least = max(
        sign * (usual + moved) - (_NEAR_WAITING if waits else near),
        sign * (usual + _HALF_WAY * moved),
    )
    alone = _seen_alone(comparison, usual, sign)
    alike = [
        session_id
        for session_id, values in zip(comparison.session_ids, stored, strict=True)
        if sign * math.log(median(values)) >= least
    ]
    enough = _MODE_SESSIONS_WAITING if waits else _MODE_SESSIONS
    if alone:
        return (_seen(case, alone, alone=True),)
    if len(alike) < enough:  # The usual case.
        return ()
    return tuple(_seen(case, session_id) for session_id in alike)


def _seen_alone(comparison: Comparison, usual: float, sign: float) -> str:
    """
    Return a session in which the test alone was as slow as the fresh processes, or "".

    The tests that ran before a test in its process can make it fast or slow, through the
    thresholds of the allocator, caches and modules. Several processes of a session show such
    a state. A single process may have been disturbed, so that two sessions must agree.
    """
    if not comparison.fresh:
        return ""
    several: list[tuple[float, str]] = []
    single: list[tuple[float, str]] = []
    for place, value in comparison.stored.odd.items():
        session_id = comparison.session_ids[place]
        if not value.alone_values or min(value.alone_values) <= 0:
            continue
        logs = [sign * (math.log(alone) - usual) for alone in value.alone_values]
        level = median(logs)
        if len(logs) < _SEVERAL:
            single.append((level, session_id))
        elif min(logs) >= _HALF_WAY * level:
            several.append((level, session_id))
    level, session_id = max(several + sorted(single)[:-1], default=(0.0, ""))
    now = sign * (math.log(median(comparison.current.run_values)) - usual)
    near = min(_NEAR_ALONE, _HALF_WAY * level)
    return session_id if level > 0 and now <= level + near else ""


def text_of_oversubscription(
    case: Case, confirmation: Confirmation | None, worsening: float
) -> str:
    """
    Return the sentence on threads that shared the cores now, or in stored sessions, or "".

    Threads that pass a lock to one another are slower on two cores than on one that they
    share, so that a test can become slower because the machine has less to do.
    """
    fresh = {} if confirmation is None else confirmation.notes
    text = case.notes.get(OVERSUBSCRIBED) or fresh.get(OVERSUBSCRIBED)
    if text is not None:
        return text
    if SEVERAL_THREADS not in case.notes and SEVERAL_THREADS not in fresh:
        return ""
    stored = case.stored.values.interrupted
    is_usual = worsening < _MOST_SHARED and 2 * sum(stored) > len(stored)
    return _SHARED_THEN if is_usual else ""


def text_of_disk(shift: float, worsening: float, policy: Policy) -> str:
    """
    Return the sentence on a disk whose change of speed explains that of a test, or "".

    The operations of a disk change by different factors, so a test may change by more than
    the disk's workloads. Where these became faster, a test may have become slower by as
    much.

    Args:
        shift: The slowdown of the workloads [fraction], negative if they are faster.

        worsening: The slowdown of the test [fraction], without that of the workloads.

        policy: The rule's constants.
    """
    most = (1 + shift) ** policy.disk_power - 1
    is_explained = 0 < worsening <= most or most <= worsening < 0
    if shift < 0 < worsening:
        # The test's change by itself, against that of the workloads the other way.
        most = min(1 / (1 + shift), _MOST_OTHER_WAY)
        is_explained = (1 + worsening) * (1 + shift) <= most
    if not is_explained or abs(shift) <= policy.disk_shift:
        return ""
    return f"the disk is {1 + shift:.3g} times as slow as in the stored sessions"


def text_of_waits(case: Case, change: Change, worsening: float) -> str:
    """
    Return the sentence on a suite that waited far longer than fresh processes, or "".

    Fresh processes confirm a slowdown of the code by one of the same size. With busy
    programs, each wait in the suite lasts until the scheduler returns to the test.

    Args:
        case: The case.

        change: The change of the fresh processes.

        worsening: The slowdown of the fresh processes [fraction].
    """
    suite, usual = case.estimate, case.stored.values.run_values()
    if (
        case.bound_class not in _WAITING
        or suite is None
        or not change.fresh
        or not usual
    ):
        return ""
    usual_s = median(map(median, usual))
    if not 0 < worsening < _MOST_CONFIRMED or usual_s <= 0:
        return ""
    slower = suite.value / usual_s
    if slower <= _FAR_APART * (1 + worsening):
        return ""
    return (
        f"the suite waited {slower:.3g} times as long as in the stored sessions, and fresh"
        f" processes {1 + worsening:.3g} times: other programs keep the processor busy"
    )


def text_of_interruptions(
    case: Case, confirmation: Confirmation | None, worsening: float
) -> str:
    """
    Return the sentence on samples that were interrupted on one side of a change, or "".

    What runs in between empties the caches. The processor's time of interrupted samples has
    the time to fill them, and that of others has not.
    """
    current = case.current
    if confirmation is not None and confirmation.value is not None:
        current = confirmation.value
    if current is None or current.interrupted != (worsening > 0):
        return ""
    stored = case.stored.values.interrupted
    # On a machine that is always busy, the values are alike. Where some sessions met less,
    # they do not show how slow other programs make the test.
    if current.interrupted:
        return "" if all(stored) else _INTERRUPTED
    return _UNINTERRUPTED if 2 * sum(stored) > len(stored) else ""


def _seen(case: Case, session_id: str, *, alone: bool = False) -> SeenValue:
    listed, values = case.stored.listed, case.stored.values
    place = listed.ids.index(session_id)
    of_suite = values.run_values()[place]
    return SeenValue(
        session_id=session_id,
        started_unix_s=listed.sessions[place].started_unix_s,
        # The mean of two numbers may be larger than a float can be.
        value=median_low(values.odd[place].alone_values if alone else of_suite),
        alone=alone,
    )
