"""Limits against records, each judged with one of four verdicts.

The value of one session is compared as an interval of the values that other sessions would
have measured. Its width is the spread between sessions, never the narrow spread between
samples. Wholly beyond the limit: failed. Wholly within: passed. Otherwise: inconclusive.

Without a baseline the spread is a prior: 1.5 % for values measured on a device, 5 % for
times of a host's clock. There is no prior for counts, resources, compiled kernels, captures
(a file has no spread) and numbers recorded by the test (unknown until three sessions are
stored), which are compared as points.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING

from pytest_gpuperf.compute.contrast import fitting
from pytest_gpuperf.compute.spread import (
    ENOUGH_PROCESSES,
    LEAST_SESSIONS,
    Z_95,
    PairedRatio,
    Spread,
    UsualSpread,
    half_width,
    moments,
    process_spread,
    ratio_of_processes,
    session_spread,
    with_spread,
)
from pytest_gpuperf.compute.stats import mean, relative_change
from pytest_gpuperf.config import Plan
from pytest_gpuperf.errors import UnitError
from pytest_gpuperf.judge.case import values_alike
from pytest_gpuperf.judge.grade import GRADE, grade_limit, rate_limit
from pytest_gpuperf.judge.look import straddles
from pytest_gpuperf.judge.rule import clock_of, group_of
from pytest_gpuperf.judge.ruling import unusable
from pytest_gpuperf.judge.selection import select
from pytest_gpuperf.model.environment import family_of
from pytest_gpuperf.model.frozen import Frozen, replace
from pytest_gpuperf.model.gap import Gap, GapCode
from pytest_gpuperf.model.metric import WITH_GARBAGE, Family
from pytest_gpuperf.model.record import (
    HOLDS_LAUNCH,
    WORK_DOUBTS,
    Kind,
    Note,
    Record,
    RecordKey,
    StoredRecord,
)
from pytest_gpuperf.model.roofline import ABOVE_THE_ROOF, Bands
from pytest_gpuperf.model.sample import Estimate, Source, Unmeasured
from pytest_gpuperf.model.verdict import (
    Cause,
    Limit,
    Outcome,
    Reason,
    Verdict,
    VerdictEvidence,
)

if TYPE_CHECKING:
    from pytest_gpuperf.judge.confirmation import Retest

# Returns the spread of a metric between sessions, for the record that holds the value.
SpreadOf = Callable[[str, Record], "Spread | None"]
_FRACTION = "roofline.fraction"

# docs/judging.md section 4. Counters are taken on the device, so the prior of device
# times applies to them.
PRIORS = MappingProxyType(
    {
        Family.DEVICE_TIME: Spread(fraction=0.015),
        Family.COUNTER: Spread(fraction=0.015),
        Family.HOST_TIME: Spread(fraction=0.05),
    }
)
# This many processes, all this far beyond a limit, decide the limit, however large the
# spread between sessions is (docs/judging.md section 4).
_FAR_PROCESSES = 5
_FAR = 1.5  # Times the limit.
_FAR_WITHIN = 10.0  # A value within a limit must be surer: it ends the question.
# One value has no spread.
_SPREAD_LEAST = 2
# The largest finite float.
_LARGEST = 1.7976931348623157e308
# A wider interval carries no information, and exp stays finite.
_MOST_FACTOR = 1e9
# Values of these kinds are read from a file, so they have no spread.
_POINTS = frozenset({Kind.BINARY, Kind.CAPTURE})

_Compare = Callable[[float, float], bool]
_HOLDS: MappingProxyType[str, _Compare] = MappingProxyType(
    {
        "<=": lambda value, threshold: value <= threshold,
        "<": lambda value, threshold: value < threshold,
        ">=": lambda value, threshold: value >= threshold,
        ">": lambda value, threshold: value > threshold,
        "==": lambda value, threshold: value == threshold,
    }
)


class _Interval(Frozen, frozen=True, kw_only=True):
    """The range of values that other sessions would measure, in the unit of the estimate."""

    low: float
    high: float


def judge_limit(
    limit: Limit,
    record: Record,
    *,
    spread: Spread | None = None,
    retest: Retest | None = None,
) -> Verdict:
    """
    Judge one limit on one record.

    Args:
        limit: The limit.

        record: The measured record.

        spread: Spread between at least 3 stored sessions, or None to use the prior.

        retest: The results of fresh processes for the test, or None if there were none.
            Only their valid values decide: the first value was measured again because of
            what it was, so it is biased.

    Returns:
        Passed, failed, inconclusive or unmeasured. The estimate is in the unit of the
        limit.

    Raises:
        UnitError: The limit is on a number recorded by the test in another unit. Only the
            record shows that unit. The test contradicts itself, so the value does not count
            as missing.
    """
    if record.void is not None:
        return _without_value(
            limit, record, Unmeasured.of_metric(limit.metric, record.void.gap)
        )
    first = select(limit, record)
    if isinstance(first, Gap):
        if record.kind is Kind.RECORD and _has(record, limit.metric):
            raise UnitError(first.reason, path=limit.text, remedy=first.remedy)
        gap = Unmeasured.of_metric(limit.metric, first)
        return _without_value(limit, record, gap)
    if retest is None:
        return _decide(limit, record, first, (), spread)
    if retest.failure:
        return Verdict(
            key=record.key,
            metric=limit.metric,
            outcome=Outcome.FAILED,
            reason=Reason.CHILD_GAVE_NO_VALUE,
            limit=limit,
            estimate=first,
            evidence=VerdictEvidence(lines=tuple(retest.failure.splitlines())),
        )
    from pytest_gpuperf.judge.confirmation import is_measured_alike

    fresh = [r for r in retest.records if r.key == record.key and r.void is None]
    usable = [
        r
        for r in fresh
        if is_measured_alike(limit.metric, r, record, source=first.source)
    ]
    repeated = (select(limit, retested) for retested in usable)
    estimates = [
        e for e in repeated if isinstance(e, Estimate) and e.source == first.source
    ]
    verdict = _decide(limit, record, first, estimates, spread)
    if fresh and not usable:
        return replace(verdict, cause=Cause.MEASURED_ELSEWHERE)
    missing = () if estimates else retest.lacking(limit.metric, usable)
    if missing and verdict.outcome is Outcome.INCONCLUSIVE:
        evidence = VerdictEvidence(lacking=missing)
        verdict = replace(verdict, cause=unusable(missing), evidence=evidence)
    return verdict


def _has(record: Record, metric: str) -> bool:
    return any(estimate.metric == metric for estimate in record.estimates)


def _without_value(limit: Limit, record: Record, gap: Unmeasured) -> Verdict:
    """
    Return the verdict of a limit without a value: unmeasured, void, or failed.

    A kernel that does not exist fails, so that renaming it does not remove the limit.
    """
    outcome, reason = Outcome.UNMEASURED, Reason.NOT_MEASURED
    if record.void is not None and record.estimates:
        outcome, reason = Outcome.INCONCLUSIVE, Reason.VOID
    elif gap.code is GapCode.NO_SUCH_KERNEL:
        # A renamed kernel would otherwise remove the limit.
        outcome = Outcome.FAILED
    return Verdict(
        key=record.key,
        metric=limit.metric,
        outcome=outcome,
        reason=reason,
        limit=limit,
        evidence=VerdictEvidence(gap=gap),
    )


def _decide(
    limit: Limit,
    record: Record,
    first: Estimate,
    retested: Sequence[Estimate],
    spread: Spread | None,
) -> Verdict:
    estimate = _together(first, retested)
    interval = _interval(limit, record, estimate, retested, spread)
    held_s = 0.0 if interval is None else _held_launch_s(record, estimate)
    if interval is not None and held_s:
        interval = replace(interval, low=max(0.0, interval.low - held_s))
    ends = (estimate.value,) if interval is None else (interval.low, interval.high)
    holds = _HOLDS[limit.operator]
    within = [holds(end, limit.threshold) for end in ends]
    outcome, reason = Outcome.INCONCLUSIVE, Reason.STRADDLES_LIMIT
    is_share = limit.metric == _FRACTION and limit.operator in {">=", ">"}
    if is_share and estimate.value > ABOVE_THE_ROOF:
        reason = Reason.ABOVE_THE_ROOF
    elif all(within):
        outcome, reason = Outcome.PASSED, Reason.WITHIN_LIMIT
    elif not any(within):
        outcome, reason = Outcome.FAILED, Reason.BEYOND_LIMIT
    elif far := _far_off(limit, retested, held_s):
        interval = far
        outcome, reason = Outcome.FAILED, Reason.BEYOND_LIMIT
        if holds(far.high, limit.threshold):
            outcome, reason = Outcome.PASSED, Reason.WITHIN_LIMIT
    cause = Cause.STILL_STRADDLES if retested else None
    if held_s and not holds(estimate.value, limit.threshold):
        cause = Cause.STRADDLES_LAUNCH
    return Verdict(
        key=record.key,
        metric=limit.metric,
        outcome=outcome,
        reason=reason,
        cause=cause if reason is Reason.STRADDLES_LIMIT else None,
        limit=limit,
        estimate=estimate,
        low=None if interval is None else interval.low,
        high=None if interval is None else interval.high,
        assumed=interval is not None
        and spread is None
        and record.kind is not Kind.COMPARE,
        # Nothing is relative to a limit of 0.
        confirmations=tuple(
            relative_change(e.value, limit.threshold)
            for e in retested
            if limit.threshold != 0
        ),
    )


def _held_launch_s(record: Record, estimate: Estimate) -> float:
    """
    Return how much of a time by events may be the host's launch [s], or 0.

    The device has reached the first event before the call submits its work, so that its
    own time is shorter by at most the time until the call returned.
    """
    is_held = any(note.code == HOLDS_LAUNCH for note in record.notes)
    if not is_held or estimate.source != Source.EVENTS or estimate.unit != "s":
        return 0.0
    returned = (e.value for e in record.estimates if e.metric == "time.host")
    return min(next(returned, 0.0), estimate.value)


def _far_off(
    limit: Limit, retested: Sequence[Estimate], held_s: float
) -> _Interval | None:
    """
    Return the interval of the fresh processes if all are far from the limit, else None.

    They are all beyond it, or all within it.

    Args:
        limit: The limit.

        retested: The values of fresh processes.

        held_s: How much of each value may be the host's launch [s].
    """
    if len(retested) < _FAR_PROCESSES or limit.threshold <= 0:
        return None
    values = [estimate.value for estimate in retested]
    low, high = min(values) - held_s, max(values)
    below, above = _FAR_WITHIN, _FAR
    if limit.operator in {">=", ">"}:
        below, above = _FAR, _FAR_WITHIN
    far = high < limit.threshold / below or low > limit.threshold * above
    return _Interval(low=low, high=high) if far else None


def _interval(
    limit: Limit,
    record: Record,
    estimate: Estimate,
    retested: Sequence[Estimate],
    spread: Spread | None,
) -> _Interval | None:
    """Return the interval of a value, or None if the value is compared as a point."""
    if limit.operator == "==" or record.kind in _POINTS:
        return None
    if record.kind is Kind.COMPARE:
        sides = PairedRatio(value=estimate.value, low=estimate.low, high=estimate.high)
        if len(retested) >= ENOUGH_PROCESSES:
            sides = ratio_of_processes([e.value for e in retested])
        elif spread is not None:
            # The interval already includes the usual spread.
            usual = process_spread(estimate.source)
            sides = with_spread(sides, spread=spread, instead_of=usual)
        if sides.low is not None and sides.high is not None:
            return _Interval(low=sides.low, high=sides.high)
    prior = spread or PRIORS.get(family_of(estimate.metric, estimate.source))
    if prior is None:
        return None
    # The interval is never narrower than that of the samples, as a standard error.
    measured = retested or (estimate,)
    widths = [e.half_width for e in measured if e.half_width is not None]
    floor = sum(widths) / len(widths) / Z_95 if widths else 0.0
    deviation = prior.fraction
    if len(retested) >= _SPREAD_LEAST and min(e.value for e in retested) > 0:
        # The spread between sessions includes the spread between processes. Averaging k
        # processes divides only the latter by k.
        logs = [math.log(e.value) for e in retested]
        between_runs = moments(logs)[1] / (len(logs) - 1)
        averaged = between_runs / len(logs)
        deviation = math.sqrt(max(prior.fraction**2 - between_runs, 0.0) + averaged)
    deviation = max(deviation, floor)
    factor = math.exp(
        min(half_width(prior, fraction=deviation), math.log(_MOST_FACTOR))
    )
    farthest = min(max(estimate.value * factor, -_LARGEST), _LARGEST)
    ends = sorted((estimate.value / factor, farthest))
    return _Interval(low=ends[0], high=ends[1])


def _together(first: Estimate, retested: Sequence[Estimate]) -> Estimate:
    if not retested:
        return first
    lows = [e.low for e in retested if e.low is not None]
    highs = [e.high for e in retested if e.high is not None]
    complete = len(lows) == len(highs) == len(retested)
    return replace(
        first,
        value=mean([e.value for e in retested]),
        low=mean(lows) if complete else None,
        high=mean(highs) if complete else None,
        sample_count=sum(e.sample_count for e in retested),
    )


def judge_limits(
    plan: Plan,
    test_id: str,
    records: Sequence[Record],
    spread_of: SpreadOf,
    *,
    grades: Mapping[str, Bands] | None = None,
) -> tuple[Verdict, ...]:
    """
    Judge all limits of a test.

    A limit applies to every measurement with the metric, or to the first measurement if
    none has it. A minimum grade adds a limit to every measurement with a grade: a call with
    a roofline result, and a loop with a scorecard.

    Args:
        plan: The limits.

        test_id: The test.

        records: The records of the test.

        spread_of: Returns the spread between stored sessions.

        grades: The thresholds of the grades, by roof. Missing roofs use the defaults.
    """
    verdicts: list[Verdict] = []
    for limit in plan.limits:
        meant = [record for record in records if _has(record, limit.metric)]
        if not meant:
            key = RecordKey(test_id=test_id)
            nothing = Record(key=key, kind=Kind.RANGE, estimates=())
            meant = [*records, nothing][:1]
        verdicts += [
            judge_limit(limit, record, spread=spread_of(limit.metric, record))
            for record in meant
        ]
    if plan.min_grade is None:
        return tuple(verdicts)
    graded = []
    for record in records:
        if record.kind is Kind.STEPS:
            least = rate_limit(record, plan.min_grade)
        elif record.roofline is not None:
            least = grade_limit(record.roofline, plan.min_grade, grades)
        else:
            continue
        if least is None:
            continue
        spread = spread_of(least.metric, record)
        verdict = judge_limit(least, record, spread=spread)
        share = None if record.steps is None else record.steps.efficiency_fraction
        # The scorecard limits the share to 1. More than the bandwidth allows is never a
        # pass.
        if share is not None and share >= 1 and verdict.outcome is Outcome.PASSED:
            verdict = replace(
                verdict,
                outcome=Outcome.INCONCLUSIVE,
                reason=Reason.ABOVE_THE_ROOF,
                cause=Cause.OF_A_LOOP,
            )
        graded.append(verdict)
    return (*verdicts, *(graded or [_ungraded(plan.min_grade, test_id, records)]))


def confirm_limit(
    verdict: Verdict,
    records: Sequence[Record],
    retest: Retest | None,
    spread_of: SpreadOf,
    *,
    ended_early: bool,
) -> Verdict:
    """
    Judge a limit again by fresh processes, if the first value could not decide.

    Args:
        verdict: The verdict on the first value.

        records: The records of the test.

        retest: The results of fresh processes for the test, or None if there were none.

        spread_of: Returns the spread between stored sessions.

        ended_early: Whether the run ended before fresh processes could be started.
    """
    limit = verdict.limit
    if limit is None or not straddles(verdict):
        return verdict
    record = next(record for record in records if record.key == verdict.key)
    if record.host is not None:
        return replace(verdict, cause=Cause.MEASURED_ELSEWHERE)
    if retest is None:
        return replace(verdict, cause=Cause.ENDED_EARLY) if ended_early else verdict
    spread = spread_of(limit.metric, record)
    return judge_limit(limit, record, spread=spread, retest=retest)


def doubted(verdict: Verdict, records: Sequence[Record]) -> Verdict:
    """
    Return an undecided verdict if only a call whose work is in doubt is good enough.

    A limit that a call with all the work keeps, too, stays passed, and an improvement with
    all the work stays one.

    Args:
        verdict: The verdict on a limit or a change.

        records: The records of the test, those of fresh processes included.
    """
    if verdict.outcome not in {Outcome.PASSED, Outcome.IMPROVED}:
        return verdict

    def decides(note: Note) -> bool:
        if not note.doubt or note.code not in WORK_DOUBTS:
            return False
        # The time of a call with all its work. The metric of garbage has a part of it.
        if note.full_s is None or verdict.metric not in {"time", WITH_GARBAGE}:
            return True
        return not _is_good(note.full_s, verdict)

    notes = chain.from_iterable(r.notes for r in records if r.key == verdict.key)
    decisive = {note.code: note.text for note in filter(decides, notes)}
    lines = [f"{text} ({code})" for code, text in decisive.items()]
    if not lines:
        return verdict
    return replace(
        verdict,
        outcome=Outcome.INCONCLUSIVE,
        reason=Reason.IN_DOUBT,
        evidence=VerdictEvidence(lines=tuple(lines)),
    )


def _is_good(time_s: float, verdict: Verdict) -> bool:
    """Return True if a time [s] would keep the limit of a verdict, or improve as much."""
    limit, change = verdict.limit, verdict.change
    if limit is not None:
        return _HOLDS[limit.operator](time_s, limit.threshold)
    return change is not None and time_s < change.reference * (
        1 - (verdict.threshold or 0.0)
    )


def spread_of(
    metric: str,
    record: Record,
    stored: Iterable[StoredRecord],
    usual: Callable[[], Mapping[str, UsualSpread]],
) -> Spread | None:
    """
    Return the spread between stored sessions of a metric, or None if too few are stored.

    A value that does not fit the rest is left out, as in the judgement of changes.

    Args:
        metric: The metric's name.

        record: The current record.

        stored: The stored sessions of the same measurement.

        usual: Returns the usual spread between sessions, by group.
    """
    estimate = next((e for e in record.estimates if e.metric == metric), None)
    if estimate is None:
        return None
    source = estimate.source
    values = values_alike(estimate, record, stored)
    if len(values) < LEAST_SESSIONS:
        return None
    # The intervals of a comparison already include a guess of the same spread.
    if record.kind is Kind.COMPARE:
        values = [replace(value, half_widths=()) for value in values]
    of_group = usual().get(group_of(metric, source))
    fit = fitting(values, clock_of(metric, source), of_group)
    return session_spread(fit, of_group)


def _ungraded(grade: str, test_id: str, records: Sequence[Record]) -> Verdict:
    metric, cause = _FRACTION, Cause.NOTHING_TIMED
    gap = next(
        (u for r in records for u in r.unmeasured if u.metric == _FRACTION), None
    )
    if gap is None:
        void = next((r.void for r in records if r.void is not None), None)
        if any(record.kind is Kind.STEPS for record in records):
            metric = GRADE
            cause = Cause.NO_HARDWARE if void is None else Cause.ENDED_EARLY
        gap = None if void is None else Unmeasured.of_metric(metric, void.gap)
    return Verdict(
        key=records[0].key if records else RecordKey(test_id=test_id),
        metric=metric,
        outcome=Outcome.UNMEASURED,
        reason=Reason.NOT_MEASURED,
        cause=cause,
        evidence=VerdictEvidence(gap=gap, grade=grade),
    )
