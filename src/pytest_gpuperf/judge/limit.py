"""One limit against one record, as one of four verdicts.

The value of one session is compared as an interval that says where other sessions would
have found it: the spread between sessions, never the narrow one between samples.
Wholly beyond the limit: failed. Wholly within: passed. Else: inconclusive.

Without a baseline the spread is a prior: 1.5 % for what a device measured, 5 % for what a
host's clock measured. Nothing is assumed of counts, resources, compiled kernels, captures
(a file has no spread) and numbers of the user's own (of which nothing is known until
three sessions are stored): they are compared as points.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import fmean
from types import MappingProxyType

from pytest_gpuperf.compute.spread import Z_95, Spread, half_width
from pytest_gpuperf.errors import UnitError
from pytest_gpuperf.judge.case import lacking_again
from pytest_gpuperf.judge.selection import Gap, select
from pytest_gpuperf.model.fingerprint import family_of
from pytest_gpuperf.model.frozen import Frozen, replace
from pytest_gpuperf.model.metric import Family
from pytest_gpuperf.model.record import Kind, Record, Void
from pytest_gpuperf.model.roofline import ABOVE_THE_ROOF
from pytest_gpuperf.model.sample import Estimate, Unmeasured
from pytest_gpuperf.model.verdict import Limit, Outcome, Reason, Verdict

__all__ = ["PRIORS", "judge_limit"]

# docs/judging.md section 4; counters are taken on the device, so its prior is theirs
PRIORS = MappingProxyType(
    {
        Family.DEVICE_TIME: Spread(fraction=0.015),
        Family.COUNTER: Spread(fraction=0.015),
        Family.HOST_TIME: Spread(fraction=0.05),
    }
)
_SPREAD_LEAST = 2  # one value has no spread
_MOST_FACTOR = 1e9  # an interval wider than this says nothing; exp stays finite
_POINTS = frozenset(
    {Kind.BINARY, Kind.CAPTURE}
)  # read, not measured: there is no spread

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
    """Where other sessions would find the value, in the estimate's unit."""

    low: float
    high: float


def judge_limit(
    limit: Limit,
    record: Record,
    *,
    spread: Spread | None = None,
    confirming: Sequence[Record] = (),
    lost: Sequence[str] = (),
    unmeasured: Sequence[Unmeasured] = (),
) -> Verdict:
    """
    Return the verdict of one limit on one record.

    Args:
        limit: What is allowed.

        record: What was measured.

        spread: Between sessions, from a baseline of at least 3; None: the prior.

        confirming: What fresh processes measured of the same; the void ones are left out.
            They decide alone: the first value was measured again because of what it was.

        lost: The last lines of a fresh process in which the test failed; empty: none.

        unmeasured: What it asked for in one of them and the machine did not give.

    Returns:
        Passed, failed, inconclusive or unmeasured. Its estimate is in the limit's unit.

    Raises:
        UnitError: The limit is on a number of the test's own that has another unit, which
            only the record says: a mistake of whoever wrote both, not a value that lacks.
    """
    void = record.void
    if void is not None and record.estimates:
        return _void(limit, record, void)
    found = _nothing(void) if void is not None else select(limit, record)
    if isinstance(found, Gap):
        if record.kind is Kind.RECORD and _has(record, limit.metric):
            raise UnitError(found.reason, path=limit.text, remedy=found.remedy)
        return Verdict(
            key=record.key,
            metric=limit.metric,
            outcome=Outcome.UNMEASURED,
            reason=Reason.NOT_MEASURED,
            limit=limit,
            detail=(found.reason,),
            remedy=found.remedy,
        )
    if lost:
        return Verdict(
            key=record.key,
            metric=limit.metric,
            outcome=Outcome.FAILED,
            reason=Reason.CHILD_GAVE_NO_VALUE,
            limit=limit,
            estimate=found,
            detail=tuple(lost),
            remedy="make the test pass when it runs alone",
        )
    usable = [again for again in confirming if again.void is None]
    repeated = [select(limit, again) for again in usable]
    again = [
        e for e in repeated if isinstance(e, Estimate) and e.source == found.source
    ]
    verdict = _decide(limit, record, found, again, spread)
    own = (u for r in usable for u in r.unmeasured if u.metric == limit.metric)
    told = () if again else lacking_again((*own, *unmeasured))
    if not told or verdict.outcome is not Outcome.INCONCLUSIVE:
        return verdict
    return replace(verdict, detail=told, remedy="measure it again when that is over")


def _has(record: Record, metric: str) -> bool:
    """Return whether a record has a value of a metric."""
    return any(estimate.metric == metric for estimate in record.estimates)


def _nothing(void: Void) -> Gap:
    """Return why a measurement that gave no value at all decides nothing."""
    remedy = void.remedy or "measure it, then judge it"
    return Gap(reason=void.reason, remedy=remedy)


def _decide(
    limit: Limit,
    record: Record,
    first: Estimate,
    again: Sequence[Estimate],
    spread: Spread | None,
) -> Verdict:
    """Return the verdict on a value that is there."""
    estimate = _together(first, again)
    interval = _interval(limit, record, estimate, again, spread)
    outcome, reason = _outcome(limit, estimate.value, interval)
    verdict = Verdict(
        key=record.key,
        metric=limit.metric,
        outcome=outcome,
        reason=reason,
        limit=limit,
        estimate=estimate,
        low=None if interval is None else interval.low,
        high=None if interval is None else interval.high,
        confirmations=_relative(limit, again),
    )
    if outcome is not Outcome.INCONCLUSIVE:
        return verdict
    return replace(verdict, remedy=_remedy(reason, confirmed=bool(again)))


def _outcome(
    limit: Limit, value: float, interval: _Interval | None
) -> tuple[Outcome, Reason]:
    """Return what a value and its interval decide."""
    holds = _HOLDS[limit.operator]
    lower_bound = limit.operator in {">=", ">"}
    if limit.metric == "roofline.fraction" and lower_bound and value > ABOVE_THE_ROOF:
        return Outcome.INCONCLUSIVE, Reason.ABOVE_THE_ROOF
    ends = (value,) if interval is None else (interval.low, interval.high)
    within = [holds(end, limit.threshold) for end in ends]
    if all(within):
        return Outcome.PASSED, Reason.WITHIN_LIMIT
    if any(within):
        return Outcome.INCONCLUSIVE, Reason.STRADDLES_LIMIT
    return Outcome.FAILED, Reason.BEYOND_LIMIT


def _interval(
    limit: Limit,
    record: Record,
    estimate: Estimate,
    again: Sequence[Estimate],
    spread: Spread | None,
) -> _Interval | None:
    """Return where other sessions would find a value; None: it is compared as a point."""
    if limit.operator == "==" or record.kind in _POINTS:
        return None
    low, high = estimate.low, estimate.high
    if record.kind is Kind.COMPARE and low is not None and high is not None:
        return _Interval(low=low, high=high)  # it holds the processes' spread already
    known = spread or _prior(estimate)
    if known is None:
        return None
    deviation = _deviation(known, estimate, again)
    factor = math.exp(
        min(half_width(known, fraction=deviation), math.log(_MOST_FACTOR))
    )
    ends = sorted((estimate.value / factor, estimate.value * factor))
    return _Interval(low=ends[0], high=ends[1])


def _prior(estimate: Estimate) -> Spread | None:
    """Return the spread to assume of a metric without a baseline; None: it has none."""
    return PRIORS.get(family_of(estimate.metric, estimate.source))


def _deviation(spread: Spread, estimate: Estimate, again: Sequence[Estimate]) -> float:
    """
    Return the standard deviation of a session's value, as several runs narrow it.

    The spread between sessions holds that between processes; averaging k of them takes
    away the latter's share alone, so that a k-th of the whole variance remains at least.
    What samples leave open is never less than their own half-width.
    """
    measured = again or (estimate,)
    widths = [e.half_width for e in measured if e.half_width is not None]
    floor = sum(widths) / len(widths) / Z_95 if widths else 0.0
    if len(again) < _SPREAD_LEAST or min(e.value for e in again) <= 0:
        return max(spread.fraction, floor)
    logs = [math.log(e.value) for e in again]
    mean = math.fsum(logs) / len(logs)
    between_runs = math.fsum((x - mean) ** 2 for x in logs) / (len(logs) - 1)
    averaged = between_runs / len(logs)
    left = max(spread.fraction**2 - between_runs, 0.0) + averaged
    return max(math.sqrt(left), floor)


def _together(first: Estimate, again: Sequence[Estimate]) -> Estimate:
    """Return the estimate that decides: the first, or the mean of the confirming."""
    if not again:
        return first
    lows = [e.low for e in again if e.low is not None]
    highs = [e.high for e in again if e.high is not None]
    complete = len(lows) == len(highs) == len(again)
    return replace(
        first,
        value=fmean(e.value for e in again),
        low=fmean(lows) if complete else None,
        high=fmean(highs) if complete else None,
        sample_count=sum(e.sample_count for e in again),
    )


def _relative(limit: Limit, again: Sequence[Estimate]) -> tuple[float, ...]:
    """Return how far beyond its limit each confirming process was; none for a limit of 0."""
    if limit.threshold == 0:
        return ()
    threshold = limit.threshold
    return tuple((e.value - threshold) / abs(threshold) for e in again)


def _void(limit: Limit, record: Record, void: Void) -> Verdict:
    """Return the verdict on a record that must not be judged."""
    return Verdict(
        key=record.key,
        metric=limit.metric,
        outcome=Outcome.INCONCLUSIVE,
        reason=Reason.VOID,
        limit=limit,
        detail=(void.reason,),
        remedy=void.remedy or "measure it again when that is over",
    )


def _remedy(reason: Reason, *, confirmed: bool) -> str:
    """Return what to do about a limit that could not be decided."""
    if reason is Reason.ABOVE_THE_ROOF:
        return "check the declared work, or enlarge the data beyond the caches"
    if confirmed:
        return "move the limit away from the value, or make the value steadier"
    return "let fresh processes confirm it (--gpuperf-confirm), or move the limit"
