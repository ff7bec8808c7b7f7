"""A scorecard against an older one, one decision a quantity."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from pytest_gpuperf.compute.spread import Spread, half_width, session_spread
from pytest_gpuperf.compute.stats import median_interval
from pytest_gpuperf.model.change import SessionValue
from pytest_gpuperf.model.frozen import Frozen, replace
from pytest_gpuperf.model.measured_scorecard import (
    Basis,
    Decision,
    MeasuredScorecard,
)
from pytest_gpuperf.model.scorecard import TrainingScorecard
from pytest_gpuperf.model.verdict import Outcome

__all__ = ["TOLERANCES", "Tolerances", "decisions", "older_sessions"]


class Tolerances(Frozen, frozen=True, kw_only=True):
    """
    Changes that pass.

    Attributes:
        samples: Relative change, where every step's time is known on both sides, or how
            much sessions differ.

        means: Relative change, where a side has a single number and nothing is known of
            its noise.

        coverage: Change of coverage, absolute.
    """

    samples: float = 0.05
    means: float = 0.10
    coverage: float = 0.05


TOLERANCES = Tolerances()

Card = MeasuredScorecard | TrainingScorecard

_MISSING = "the baseline has it, this run does not"
_STRADDLES = "the interval reaches over the tolerance"


class _Side(Frozen, frozen=True, kw_only=True):
    """What one scorecard says of speed; None: not measured."""

    throughput: float | None
    step_ms: float | None
    coverage: float | None
    interval: tuple[float, float] | None = None
    computed: bool = True  # the coverage; else the profile's writer said it


def older_sessions(baseline: Card | Sequence[Card] | None) -> tuple[Card, ...]:
    """Return the scorecards of a baseline, the oldest first."""
    if baseline is None:
        return ()
    if isinstance(baseline, (MeasuredScorecard, TrainingScorecard)):
        return (baseline,)
    return tuple(baseline)


def decisions(
    now: MeasuredScorecard, older: Sequence[Card], tolerances: Tolerances
) -> tuple[Decision, ...]:
    """
    Return what became of every quantity that the baseline has.

    Throughput and step time are one quantity as long as a step does the same work:
    then the step time is judged and the throughput shares its decision. Nothing is
    judged against another machine.

    Args:
        now: The scorecard.

        older: Scorecards of older sessions, the oldest first; the last one is compared
            with. Three or more of this machine widen the tolerances to what is noise.

        tolerances: Changes that pass.
    """
    if not older:
        return ()
    sides = _side(now), _side(older[-1])
    other = _other_machine(now, older[-1])
    found = (*_speed(*sides, tolerances), *_coverage(*sides, tolerances))
    if other:
        return tuple(_incomparable(each, other) for each in found)
    alike = [_side(each) for each in older if not _other_machine(now, each)]
    return tuple(
        _with_noise(each, _noise(each.metric, alike), tolerances) for each in found
    )


def _other_machine(now: MeasuredScorecard, older: Card) -> str:
    """Return how the machine of an older scorecard differs; "": not that anyone knows."""
    then = older.machine if isinstance(older, MeasuredScorecard) else {}
    moved = [
        f"{name} {then[name]}, now {now.machine[name]}"
        for name in sorted(then.keys() & now.machine.keys())
        if then[name] != now.machine[name]
    ]
    return f"the baseline is of another machine: {'; '.join(moved)}" if moved else ""


def _incomparable(decision: Decision, why: str) -> Decision:
    """Return that two values are of two machines; one that was lost stays lost."""
    if decision.outcome is Outcome.UNMEASURED:
        return decision
    return Decision(
        metric=decision.metric,
        outcome=Outcome.INCOMPARABLE,
        basis=Basis.NOTHING,
        now=decision.now,
        base=decision.base,
        shared_by=decision.shared_by,
        why=why,
    )


def _noise(metric: str, sessions: Sequence[_Side]) -> Spread | None:
    """Return how much sessions differ in a time or a rate; None: too few say so."""
    field = {"step_time_ms": "step_ms", "throughput": "throughput"}.get(metric)
    values = [] if field is None else [getattr(each, field) for each in sessions]
    known = [
        SessionValue(session_id=str(place), run_values=(value,))
        for place, value in enumerate(values)
        if value is not None
    ]
    return session_spread(known)


def _with_noise(
    decision: Decision, noise: Spread | None, tolerances: Tolerances
) -> Decision:
    """Return a decision by the larger of the tolerance and what sessions differ."""
    if noise is None or decision.basis not in {Basis.SAMPLES, Basis.MEANS}:
        return decision
    sampled = decision.basis is Basis.SAMPLES
    # the difference of two sessions, each as far off as one alone can be
    floor = math.expm1(math.sqrt(2) * half_width(noise))
    tolerance = max(tolerances.samples, floor)
    log_ratio = decision.log_ratio or 0.0
    low = log_ratio if decision.low is None else decision.low
    high = log_ratio if decision.high is None else decision.high
    outcome = _outcome(low, high, tolerance)
    return replace(
        decision,
        outcome=outcome,
        basis=Basis.SAMPLES if sampled else Basis.SESSIONS,
        tolerance=tolerance,
        noise_fraction=noise.fraction,
        why=_STRADDLES if outcome is Outcome.INCONCLUSIVE else "",
    )


def _outcome(low: float, high: float, tolerance: float) -> Outcome:
    """Return what the ends of a log ratio, which may be one, say of a change."""
    most = math.log1p(tolerance)
    if low > most:
        return Outcome.REGRESSED
    if high < -most:
        return Outcome.IMPROVED
    if -most <= low and high <= most:
        return Outcome.UNCHANGED
    return Outcome.INCONCLUSIVE


def _side(scorecard: MeasuredScorecard | TrainingScorecard) -> _Side:
    """Return what a scorecard of either policy says; what is not above 0 is missing."""
    if isinstance(scorecard, TrainingScorecard):
        return _Side(
            throughput=_known(scorecard.throughput_tok_s),
            step_ms=_known(scorecard.step_time_ms),
            coverage=_known(scorecard.wall_coverage),
            computed=False,
        )
    step = scorecard.step
    return _Side(
        throughput=scorecard.throughput,
        step_ms=None if step is None else step.median_ms or step.mean_ms,
        coverage=scorecard.coverage,
        interval=median_interval(scorecard.step_ms),
    )


def _known(number: float) -> float | None:
    """Return a number above zero; None for another, which means nothing."""
    return number if 0 < number < math.inf else None


def _speed(now: _Side, base: _Side, tolerances: Tolerances) -> Iterator[Decision]:
    """Yield the decision on the step time, on the throughput, or on both."""
    work = _worse(_work(base), _work(now))
    same_work = work is None or abs(work) <= math.log1p(tolerances.means)
    timed = now.step_ms is not None and base.step_ms is not None
    if base.step_ms is not None:
        shared = ("throughput",) if same_work and base.throughput else ()
        if same_work:
            yield _step(now, base, tolerances, shared if timed else ())
        else:
            yield Decision(
                metric="step_time_ms",
                outcome=Outcome.INCOMPARABLE,
                basis=Basis.NOTHING,
                now=now.step_ms,
                base=base.step_ms,
                why="a step does other work than the baseline's",
            )
    if base.throughput is not None and not (same_work and timed):
        yield _of_means(
            "throughput",
            now.throughput,
            base.throughput,
            _worse(base.throughput, now.throughput),
            tolerances,
        )


def _work(side: _Side) -> float | None:
    """Return the units of a step, times a constant."""
    if side.throughput is None or side.step_ms is None:
        return None
    return side.throughput * side.step_ms


def _worse(larger: float | None, smaller: float | None) -> float | None:
    """Return how much larger one number is, as a log ratio."""
    if larger is None or smaller is None or larger <= 0 or smaller <= 0:
        return None
    return math.log(larger) - math.log(smaller)


def _step(
    now: _Side, base: _Side, tolerances: Tolerances, shared: tuple[str, ...]
) -> Decision:
    """Return the decision on the step time."""
    log_ratio = _worse(now.step_ms, base.step_ms)
    ends = _ends(now, base)
    if log_ratio is None or ends is None:
        return _of_means(
            "step_time_ms", now.step_ms, base.step_ms, log_ratio, tolerances, shared
        )
    low, high = ends
    outcome = _outcome(low, high, tolerances.samples)
    return Decision(
        metric="step_time_ms",
        outcome=outcome,
        basis=Basis.SAMPLES,
        now=now.step_ms,
        base=base.step_ms,
        tolerance=tolerances.samples,
        log_ratio=log_ratio,
        low=low,
        high=high,
        shared_by=shared,
        why=_STRADDLES if outcome is Outcome.INCONCLUSIVE else "",
    )


def _ends(now: _Side, base: _Side) -> tuple[float, float] | None:
    """Return an interval of the log ratio of the medians; None: too few samples."""
    if now.interval is None or base.interval is None:
        return None
    low = _worse(now.interval[0], base.interval[1])
    high = _worse(now.interval[1], base.interval[0])
    return None if low is None or high is None else (low, high)


def _of_means(
    metric: str,
    now: float | None,
    base: float | None,
    log_ratio: float | None,
    tolerances: Tolerances,
    shared: tuple[str, ...] = (),
) -> Decision:
    """Return a decision on two numbers without samples."""
    if log_ratio is None:
        return Decision(
            metric=metric,
            outcome=Outcome.UNMEASURED,
            basis=Basis.NOTHING,
            now=now,
            base=base,
            why=_MISSING,
        )
    return Decision(
        metric=metric,
        outcome=_outcome(log_ratio, log_ratio, tolerances.means),
        basis=Basis.MEANS,
        now=now,
        base=base,
        tolerance=tolerances.means,
        log_ratio=log_ratio,
        shared_by=shared,
    )


def _coverage(now: _Side, base: _Side, tolerances: Tolerances) -> Iterator[Decision]:
    """Yield the decision on the coverage: a loss of sight, not of speed."""
    if base.coverage is None:
        return
    lost = None if now.coverage is None else base.coverage - now.coverage
    basis, outcome, why = Basis.MEANS, Outcome.UNCHANGED, ""
    if lost is None:
        basis, outcome, why = Basis.NOTHING, Outcome.UNMEASURED, _MISSING
    elif not base.computed:
        basis, outcome = Basis.NOTHING, Outcome.INCOMPARABLE
        why = "the baseline's was not computed from its phases"
    elif abs(lost) > tolerances.coverage:
        outcome = Outcome.REGRESSED if lost > 0 else Outcome.IMPROVED
    yield Decision(
        metric="coverage",
        outcome=outcome,
        basis=basis,
        now=now.coverage,
        base=base.coverage,
        tolerance=None if basis is Basis.NOTHING else tolerances.coverage,
        why=why,
    )
