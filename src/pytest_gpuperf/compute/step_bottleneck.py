"""The bottleneck of a training step, and its change against older sessions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from pytest_gpuperf.compute.limiter import limiter
from pytest_gpuperf.compute.spread import half_width, session_spread
from pytest_gpuperf.compute.stats import series_interval
from pytest_gpuperf.compute.steps import length_s, merged, uncovered
from pytest_gpuperf.model.counters import CounterGap, Evidence, LimiterName
from pytest_gpuperf.model.frozen import Frozen, replace
from pytest_gpuperf.model.record import SessionValue
from pytest_gpuperf.model.roofline import Bands
from pytest_gpuperf.model.scorecard import (
    Basis,
    Decision,
    MeasuredScorecard,
    StepLimiter,
    TrainingScorecard,
)
from pytest_gpuperf.model.steps import DeviceTime, SpanKind, StepProfile
from pytest_gpuperf.model.verdict import Outcome


class Tolerances(Frozen, frozen=True, kw_only=True):
    """
    The changes that pass.

    Attributes:
        samples: Relative change, if every step's time is known on both sides, or if the
            spread between sessions is known.

        means: Relative change, if a side has a single number of unknown noise.

        coverage: Absolute change of the coverage.
    """

    samples: float = 0.05
    means: float = 0.10
    coverage: float = 0.05


TOLERANCES = Tolerances()

Card = MeasuredScorecard | TrainingScorecard

_MISSING = "the baseline has it, this run does not"
_STRADDLES = "the interval reaches over the tolerance"


class _Side(Frozen, frozen=True, kw_only=True):
    """The speed of one scorecard, None if not measured."""

    throughput: float | None
    step_ms: float | None
    coverage: float | None
    interval: tuple[float, float] | None = None
    # Whether the coverage was computed, not reported by the profile's writer.
    computed: bool = True


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
    Judge every quantity that the baseline has.

    Throughput and step time are one quantity as long as a step does the same work. The step
    time is then judged, and the throughput shares its decision. Nothing is judged against
    another machine.

    Args:
        now: The current scorecard.

        older: Scorecards of older sessions, the oldest first. The last one is compared
            with. Three or more of this machine widen the tolerances to their noise.

        tolerances: The changes that pass.
    """
    if not older:
        return ()
    sides = _side(now), _side(older[-1])
    difference = _other_machine(now, older[-1])
    judged = (*_speed(*sides, tolerances), *_coverage(*sides, tolerances))
    if difference:
        return tuple(
            decision
            if decision.outcome is Outcome.UNMEASURED
            else Decision(
                metric=decision.metric,
                outcome=Outcome.INCOMPARABLE,
                basis=Basis.NOTHING,
                now=decision.now,
                base=decision.base,
                shared_by=decision.shared_by,
                why=difference,
            )
            for decision in judged
        )
    alike = [_side(card) for card in older if not _other_machine(now, card)]
    return tuple(_with_noise(decision, alike, tolerances) for decision in judged)


def _other_machine(now: MeasuredScorecard, older: Card) -> str:
    """Return how the machine of an older scorecard differs, or "" without known differences."""
    machine = older.machine if isinstance(older, MeasuredScorecard) else {}
    moved = [
        f"{name} {machine[name]}, now {now.machine[name]}"
        for name in sorted(machine.keys() & now.machine.keys())
        if machine[name] != now.machine[name]
    ]
    return (
        f"the baseline comes from another machine: {'; '.join(moved)}" if moved else ""
    )


def _with_noise(
    decision: Decision, sessions: Sequence[_Side], tolerances: Tolerances
) -> Decision:
    """Widen the tolerance of a time or a rate to the noise between enough sessions."""
    metric = decision.metric
    field = {"step_time_ms": "step_ms", "throughput": "throughput"}.get(metric)
    if field is None or decision.basis not in {Basis.SAMPLES, Basis.MEANS}:
        return decision
    values = [getattr(session, field) for session in sessions]
    noise = session_spread(
        [
            SessionValue(metric=metric, unit="", source="", run_values=(value,))
            for value in values
            if value is not None
        ]
    )
    if noise is None:
        return decision
    sampled = decision.basis is Basis.SAMPLES
    # A difference of two sessions has sqrt(2) times the deviation of a session.
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
    most = math.log1p(tolerance)
    if low > most:
        return Outcome.REGRESSED
    if high < -most:
        return Outcome.IMPROVED
    if -most <= low and high <= most:
        return Outcome.UNCHANGED
    return Outcome.INCONCLUSIVE


def _side(scorecard: MeasuredScorecard | TrainingScorecard) -> _Side:
    """Return the speed of a scorecard of either policy, None if not above 0."""
    if isinstance(scorecard, TrainingScorecard):
        return _Side(
            throughput=_finite(scorecard.throughput_tok_s),
            step_ms=_finite(scorecard.step_time_ms),
            coverage=_finite(scorecard.wall_coverage),
            computed=False,
        )
    step = scorecard.step
    return _Side(
        throughput=scorecard.throughput,
        step_ms=None if step is None else step.median_ms or step.mean_ms,
        coverage=scorecard.coverage,
        interval=series_interval(scorecard.step_ms),
    )


def _finite(number: float) -> float | None:
    return number if 0 < number < math.inf else None


def _speed(now: _Side, base: _Side, tolerances: Tolerances) -> Iterator[Decision]:
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
    """Return the units of a step, up to a constant factor, or None if unknown."""
    if side.throughput is None or side.step_ms is None:
        return None
    return side.throughput * side.step_ms


def _worse(larger: float | None, smaller: float | None) -> float | None:
    if larger is None or smaller is None or larger <= 0 or smaller <= 0:
        return None
    return math.log(larger) - math.log(smaller)


def _step(
    now: _Side, base: _Side, tolerances: Tolerances, shared: tuple[str, ...]
) -> Decision:
    log_ratio = _worse(now.step_ms, base.step_ms)
    # Ends of the log ratio of the medians, None with too few samples.
    low = high = None
    if now.interval is not None and base.interval is not None:
        low = _worse(now.interval[0], base.interval[1])
        high = _worse(now.interval[1], base.interval[0])
    if log_ratio is None or low is None or high is None:
        return _of_means(
            "step_time_ms", now.step_ms, base.step_ms, log_ratio, tolerances, shared
        )
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


def _of_means(
    metric: str,
    now: float | None,
    base: float | None,
    log_ratio: float | None,
    tolerances: Tolerances,
    shared: tuple[str, ...] = (),
) -> Decision:
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
    """Yield the decision on the coverage, a loss of information and not of speed."""
    if base.coverage is None:
        return
    lost = None if now.coverage is None else base.coverage - now.coverage
    basis, outcome, reason = Basis.MEANS, Outcome.UNCHANGED, ""
    if lost is None:
        basis, outcome, reason = Basis.NOTHING, Outcome.UNMEASURED, _MISSING
    elif not base.computed:
        basis, outcome = Basis.NOTHING, Outcome.INCOMPARABLE
        reason = "the baseline's was not computed from its phases"
    elif abs(lost) > tolerances.coverage:
        outcome = Outcome.REGRESSED if lost > 0 else Outcome.IMPROVED
    yield Decision(
        metric="coverage",
        outcome=outcome,
        basis=basis,
        now=now.coverage,
        base=base.coverage,
        tolerance=None if basis is Basis.NOTHING else tolerances.coverage,
        why=reason,
    )


_MS_PER_S = 1e3
_Interval = tuple[float, float]
_Idle = tuple[tuple[StepLimiter, Evidence], ...]
_WAITING = {
    SpanKind.TRANSFER.value: StepLimiter.TRANSFER,
    SpanKind.COMMUNICATION.value: StepLimiter.COMMUNICATION,
    SpanKind.DATA.value: StepLimiter.DATA,
}
_LOWER = {"memory": StepLimiter.MEMORY_BW, "compute": StepLimiter.COMPUTE}
_COUNTED = {
    LimiterName.DRAM: StepLimiter.MEMORY_BW,
    LimiterName.L2: StepLimiter.MEMORY_BW,
    LimiterName.L1: StepLimiter.MEMORY_BW,
    LimiterName.MEMORY: StepLimiter.MEMORY_BW,
    LimiterName.TENSOR: StepLimiter.COMPUTE,
    LimiterName.PIPE: StepLimiter.COMPUTE,
    LimiterName.GRID: StepLimiter.GRID,
    LimiterName.LATENCY: StepLimiter.LATENCY,
}


class MeasuredPolicy(Frozen, frozen=True, kw_only=True):
    """
    The thresholds of grades, bottlenecks and decisions.

    Attributes:
        memory_bands: Lower bounds of the grades if memory is the lower roof, or the only
            known roof.

        compute_bands: Lower bounds of the grades if arithmetic is the lower roof.

        waiting_fraction: Share of a step above which a kind of phase that does not compute,
            or the idle time of the device, is the bottleneck.

        least_coverage: Smallest share of the step that the phases must explain. Below this
            share no bottleneck is named.

        most_coverage: Share above which phases overlap, so that no bottleneck is named either.

        busy_fraction: Share of the bandwidth from which memory is the bottleneck if the
            arithmetic is unknown.

        above_roof: Efficiency above which the declared work or the peak is doubted.

        trace_tolerance: Largest difference between the parts of a device's trace and the
            step, relative to the step.

        tolerances: The changes that pass.
    """

    memory_bands: Bands = Bands(a=0.85, b=0.70, c=0.50, d=0.25)
    compute_bands: Bands = Bands(a=0.70, b=0.55, c=0.35, d=0.15)
    waiting_fraction: float = 0.30
    least_coverage: float = 0.80
    most_coverage: float = 1.05
    busy_fraction: float = 0.60
    above_roof: float = 1.05
    trace_tolerance: float = 0.05
    tolerances: Tolerances = TOLERANCES


MEASURED = MeasuredPolicy()


class StepLimit(NamedTuple):
    """The limiter of a step, with the numbers of counters or of a trace as evidence."""

    limiter: StepLimiter | None = None
    evidence: tuple[Evidence, ...] = ()


def device_time(
    busy: Iterable[_Interval],
    launching: Iterable[_Interval],
    *,
    start_s: float,
    end_s: float,
    step_count: int = 1,
) -> DeviceTime:
    """
    Return the times of a device in a trace, averaged over the steps.

    Args:
        busy: Intervals in which the device worked, by stream or kernel [s]. They may overlap.

        launching: Intervals of launching calls of the host, in any thread [s].

        start_s: Start of the first step [s].

        end_s: End of the last step [s], not before `start_s`.

        step_count: Number of steps, >= 1.

    Returns:
        Three parts that add up to the mean step. Time with several kernels running counts
        once, and time outside the steps does not count.

    Raises:
        ValueError: The steps end before they begin, or there is no step.

    Example:
        >>> device_time([(0, 4), (2, 5)], [(5, 7)], start_s=0, end_s=10)
        DeviceTime(busy_ms=5000.0, launching_ms=2000.0, waiting_ms=3000.0)
    """
    if not end_s >= start_s or step_count < 1:
        message = f"{step_count} steps from {start_s!r} to {end_s!r} are none"
        raise ValueError(message)
    idle = uncovered([(start_s, end_s)], merged(busy))
    waiting_s = length_s(uncovered(idle, merged(launching)))
    idle_s = length_s(idle)
    scale = _MS_PER_S / step_count
    return DeviceTime(
        busy_ms=max(0.0, end_s - start_s - idle_s) * scale,
        launching_ms=max(0.0, idle_s - waiting_s) * scale,
        waiting_ms=waiting_s * scale,
    )


def bottleneck(
    scorecard: MeasuredScorecard, counters: Mapping[str, float], policy: MeasuredPolicy
) -> StepLimit:
    """
    Return the limiter of a step, by the first rule that holds.

    1. The largest kind of phase that does not compute, above its share. Waiting for data
       counts only while the device, if it was traced, idles as long.
    2. The device idle above that share in its trace: launching or waiting, whichever
       is longer.
    3. The limiter by counters.
    4. The lower of two declared roofs. With one roof, memory if it is nearly reached.

    Phases and declared roofs are ignored if the phases do not explain the step.

    Args:
        scorecard: The scorecard, as far as known.

        counters: Counters of a mean step, by standard names.

        policy: The thresholds.
    """
    explained = _explained(scorecard.coverage, policy)
    device, step = scorecard.device, scorecard.step
    idle: _Idle | None = None
    if device is not None and step is not None and _adds_up(scorecard, policy):
        launching, waited = device.launching_ms, device.waiting_ms
        idle = (
            (
                StepLimiter.LAUNCH,
                Evidence(name="launching", value=launching / step.mean_ms),
            ),
            (StepLimiter.WAIT, Evidence(name="waiting", value=waited / step.mean_ms)),
        )
    device_busy = idle is not None and not _idles(idle, policy)
    waiting = [
        share.kind
        for share in scorecard.shares  # Largest first.
        if share.kind in _WAITING
        and share.fraction > policy.waiting_fraction
        # A wait for data during which the device was busy does not count.
        and not (share.kind == SpanKind.DATA.value and device_busy)
    ]
    if explained and waiting:
        return StepLimit(limiter=_WAITING[waiting[0]])
    longest = max(idle or (), key=lambda way: way[1].value, default=None)
    if longest is not None and _idles(idle, policy):
        return StepLimit(limiter=longest[0], evidence=(longest[1],))
    counted = limiter(counters)
    if not isinstance(counted, CounterGap):
        return StepLimit(limiter=_COUNTED[counted.name], evidence=counted.evidence)
    if not explained:
        return StepLimit()
    if scorecard.bound is not None:
        return StepLimit(limiter=_LOWER[scorecard.bound])
    busy = scorecard.bandwidth_fraction
    near_roof = busy is not None and busy >= policy.busy_fraction
    return StepLimit(limiter=StepLimiter.MEMORY_BW if near_roof else None)


def _idles(idle: _Idle | None, policy: MeasuredPolicy) -> bool:
    fraction = sum(evidence.value for _, evidence in idle or ())
    return fraction > policy.waiting_fraction


def _adds_up(scorecard: MeasuredScorecard, policy: MeasuredPolicy) -> bool:
    device, step = scorecard.device, scorecard.step
    if device is None or step is None:
        return False
    traced_ms = device.busy_ms + device.launching_ms + device.waiting_ms
    return abs(traced_ms - step.mean_ms) <= policy.trace_tolerance * step.mean_ms


def _explained(coverage: float | None, policy: MeasuredPolicy) -> bool:
    return (
        coverage is not None
        and policy.least_coverage <= coverage <= policy.most_coverage
    )


def unknowns(
    scorecard: MeasuredScorecard, profile: StepProfile, policy: MeasuredPolicy
) -> Iterator[str]:
    """
    Yield the unknowns of a step with reasons, as fragments.

    Args:
        scorecard: The step's scorecard, with its bottleneck.

        profile: The profile behind the scorecard.

        policy: The thresholds.
    """
    yield from _unmeasured(scorecard, policy)
    if scorecard.device is not None and not _adds_up(scorecard, policy):
        yield "the parts of the device's trace do not add up to the step: not used"
    counted = limiter(profile.counters) if profile.counters else None
    if isinstance(counted, CounterGap):
        lacking = f" ({', '.join(counted.missing)})" if counted.missing else ""
        yield f"the counters name no bottleneck: {counted.reason}{lacking}"
    coverage = scorecard.coverage
    if scorecard.bottleneck is None:
        if coverage is None:
            yield "no bottleneck: the profile has no phases, or no step time"
        elif coverage < policy.least_coverage:
            yield "no bottleneck: too much of the step is in no phase"
        elif coverage > policy.most_coverage:
            yield "no bottleneck: the phases overlap, or one is nested in another"
        else:
            yield "no bottleneck: copies are few and the work is declared for one roof only"
    elif not _explained(coverage, policy):
        yield "the phases do not explain the step: they named no bottleneck"
    if profile.absent:
        yield f"the profile does not have: {', '.join(sorted(profile.absent))}"


def _unmeasured(scorecard: MeasuredScorecard, policy: MeasuredPolicy) -> Iterator[str]:
    if scorecard.throughput is None:
        yield "no efficiency: the throughput is not above zero, so it was not measured"
    elif scorecard.efficiency is None:
        yield "no efficiency: neither roof is known"
    elif scorecard.efficiency > policy.above_roof:
        yield "no grade: more than the roof allows; check the declared work and the peak"
    if scorecard.step is None:
        yield "no step time is known"
    elif scorecard.step.count == 0:
        yield "only the mean of the steps is known, so its noise is unknown"
