"""The rule that turns a case into a verdict: what is compared, and its first rows.

Nearly all cases end in these rows. `ruling` has the last ones.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, TypeAlias

from pytest_gpuperf.compute.change import exact_change, is_exact
from pytest_gpuperf.compute.machine import AtOneSpeed, at_one_speed, clock_shift
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
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.metric import KERNEL_SET, METRICS, Better, Family
from pytest_gpuperf.model.packed import SessionValues
from pytest_gpuperf.model.record import (
    BoundClass,
    Kind,
    SessionValue,
)
from pytest_gpuperf.model.sample import Unmeasured
from pytest_gpuperf.model.verdict import (
    BaselineSpan,
    Cause,
    LeftOut,
    Outcome,
    Reason,
    Verdict,
    VerdictEvidence,
)

if TYPE_CHECKING:
    from pytest_gpuperf.judge.confirmation import Confirmation

# A smaller move of the clock may be an error of reading: the clock has steps of 15 MHz,
# 0.8 % of an H200's (docs/judging.md section 2). [fraction; as much on a log scale]
CLOCK_STEP = 0.01
# Getters, because each comprehension of each test is a call.
_RAN_COUNT, _ALONE = attrgetter("ran_count"), attrgetter("alone_values")

# A case, and the same case as numbers.
ComparedCase: TypeAlias = "tuple[Case, Comparison | None]"


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
        outcome, reason = within_limit(case, change, policy)
    return verdict_of(case, outcome, reason, change=change)


def within_limit(case: Case, change: Change, policy: Policy) -> tuple[Outcome, Reason]:
    """Return the outcome and reason of a change with noise that is within its limit."""
    return _NOT_SEEN if _is_blind(case, change, policy) else _WITHIN


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
        choice, _ = usual_choice(confirmation.made_choices)
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
        used = inside if is_enough(case, inside, policy) else alike
    source = case.estimate.source if case.estimate is not None else ""
    group, clock, is_time = grouping(case.metric.name, source)
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
        current=current,
        stored=stored,
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
    return comparison if level is None else _at_one_speed(comparison, level)


def _at_one_speed(comparison: Comparison, level: AtOneSpeed) -> Comparison:
    return replace(
        comparison,
        current=level.current,
        stored=level.stored,
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
def grouping(metric: str, source: str) -> tuple[str, TimeBase, bool]:
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
    if is_enough(case, case.stored, policy):
        return True
    inside = case.stored.with_choice(case.choice)
    return len(inside) < len(case.stored) and is_enough(case, inside, policy)


def is_enough(case: Case, stored: StoredValues, policy: Policy) -> bool:
    """
    Return True if there are enough sessions.

    If all counts agree, a single session is enough.
    """
    if len(stored) >= policy.least_sessions:
        return True
    if not case.counts:
        return False
    return len(set(stored.values.runs)) == 1


def usual_choice(choices: Sequence[str | None]) -> tuple[str | None, int]:
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
