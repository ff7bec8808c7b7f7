"""What holds a training step back, and what nobody can say of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from pytest_gpuperf.compute.limiter import limiter
from pytest_gpuperf.compute.scorecard_decisions import TOLERANCES, Tolerances
from pytest_gpuperf.compute.steps import length_s, merged, uncovered
from pytest_gpuperf.model.counters import Evidence, LimiterName, Unknown
from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.grade import Bands
from pytest_gpuperf.model.measured_scorecard import MeasuredScorecard, StepLimiter
from pytest_gpuperf.model.step_profile import DeviceTime, StepProfile
from pytest_gpuperf.model.steps import SpanKind

__all__ = [
    "MEASURED",
    "Bottleneck",
    "MeasuredPolicy",
    "bottleneck",
    "device_time",
    "unknowns",
]

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
    Where the lines are drawn.

    Attributes:
        memory_bands: Where the grades begin when memory is the lower roof, or the only
            one that is known.

        compute_bands: The same, when arithmetic is the lower roof.

        waiting_fraction: Share of a step from which a kind of phase that does not
            compute, or the device's idling, is the bottleneck, when it is above it.

        least_coverage: Least share of the step that the phases must explain; below it
            no bottleneck is named.

        most_coverage: Above it phases overlap, and no bottleneck is named either.

        busy_fraction: Share of the bandwidth from which memory is the bottleneck where
            the arithmetic is not known.

        above_roof: Efficiency above which the declared work or the peak is doubted.

        trace_tolerance: How far the parts of a device's trace may be from the step,
            relative to it.

        tolerances: Changes that pass.
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


class Bottleneck(NamedTuple):
    """What holds a step back, and the numbers of counters or of a trace that said so."""

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
    Return what a device did in the mean of some steps, out of a trace.

    Args:
        busy: When it worked, by stream or kernel; they may overlap [s].

        launching: When the host was in a call that launches, by any thread [s].

        start_s: When the first step began [s].

        end_s: When the last one ended [s], not before.

        step_count: How many steps there were, >= 1.

    Returns:
        Three parts that add up to the mean step: time in which several kernels ran
        counts once, and time outside the steps not at all.

    Raises:
        ValueError: The steps end before they begin, or there is none.

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
) -> Bottleneck:
    """
    Return what holds a step back, by the first of these that says something.

    1. The largest kind of phase that does not compute, above its share. Waiting for data
       counts only while the device, where it was traced, idles as long.
    2. The device idle above that share, as it was traced: launching or waiting, whichever
       is longer.
    3. What counters say.
    4. The lower of two declared roofs; of one, memory where it is nearly reached.

    Phases and declared roofs are not asked where the phases do not explain the step.

    Args:
        scorecard: The scorecard, as far as it is known.

        counters: What counters say of a mean step, by standard names.

        policy: Where the lines are drawn.
    """
    explained = _explained(scorecard.coverage, policy)
    idle = _idle(scorecard, policy)
    named = _waiting(scorecard, idle, policy) if explained else None
    if named is not None:
        return Bottleneck(limiter=named)
    longest = max(idle or (), key=lambda each: each[1].value, default=None)
    if longest is not None and _idles(idle, policy):
        return Bottleneck(limiter=longest[0], evidence=(longest[1],))
    counted = limiter(counters)
    if not isinstance(counted, Unknown):
        return Bottleneck(limiter=_COUNTED[counted.name], evidence=counted.evidence)
    return Bottleneck(limiter=_by_roof(scorecard, policy) if explained else None)


def _waiting(
    scorecard: MeasuredScorecard, idle: _Idle | None, policy: MeasuredPolicy
) -> StepLimiter | None:
    """Return the largest kind of phase that waits for too long."""
    beside = idle is not None and not _idles(idle, policy)
    for share in scorecard.shares:  # largest first
        if share.kind == SpanKind.DATA.value and beside:
            continue  # the device was busy beside it
        if share.kind in _WAITING and share.fraction > policy.waiting_fraction:
            return _WAITING[share.kind]
    return None


def _idle(scorecard: MeasuredScorecard, policy: MeasuredPolicy) -> _Idle | None:
    """Return the two ways in which the device idled; None: not known."""
    device, step = scorecard.device, scorecard.step
    if device is None or step is None or not _adds_up(scorecard, policy):
        return None
    return (
        (
            StepLimiter.LAUNCH,
            Evidence(name="launching", value=device.launching_ms / step.mean_ms),
        ),
        (
            StepLimiter.WAIT,
            Evidence(name="waiting", value=device.waiting_ms / step.mean_ms),
        ),
    )


def _idles(idle: _Idle | None, policy: MeasuredPolicy) -> bool:
    """Return whether the device idles for too long."""
    fraction = sum(evidence.value for _, evidence in idle or ())
    return fraction > policy.waiting_fraction


def _adds_up(scorecard: MeasuredScorecard, policy: MeasuredPolicy) -> bool:
    """Return whether the parts of a trace make the step that was timed."""
    device, step = scorecard.device, scorecard.step
    if device is None or step is None:
        return False
    traced_ms = device.busy_ms + device.launching_ms + device.waiting_ms
    return abs(traced_ms - step.mean_ms) <= policy.trace_tolerance * step.mean_ms


def _by_roof(
    scorecard: MeasuredScorecard, policy: MeasuredPolicy
) -> StepLimiter | None:
    """Return the lower of the declared roofs; of one, memory where it is reached."""
    if scorecard.bound is not None:
        return _LOWER[scorecard.bound]
    busy = scorecard.bandwidth_fraction
    if busy is not None and busy >= policy.busy_fraction:
        return StepLimiter.MEMORY_BW
    return None


def _explained(coverage: float | None, policy: MeasuredPolicy) -> bool:
    """Return whether the phases say enough of a step, and nothing twice."""
    return (
        coverage is not None
        and policy.least_coverage <= coverage <= policy.most_coverage
    )


def unknowns(
    scorecard: MeasuredScorecard, profile: StepProfile, policy: MeasuredPolicy
) -> Iterator[str]:
    """
    Yield what is not known of a step and why, a fragment each.

    Args:
        scorecard: Its scorecard, with its bottleneck.

        profile: What it was made from.

        policy: Where the lines were drawn.
    """
    yield from _unmeasured(scorecard, policy)
    if scorecard.device is not None and not _adds_up(scorecard, policy):
        yield "the parts of the device's trace do not add up to the step: not used"
    counted = limiter(profile.counters) if profile.counters else None
    if isinstance(counted, Unknown):
        lacking = f" ({', '.join(counted.missing)})" if counted.missing else ""
        yield f"the counters name no bottleneck: {counted.reason}{lacking}"
    if scorecard.bottleneck is None:
        yield from _unnamed(scorecard.coverage, policy)
    elif not _explained(scorecard.coverage, policy):
        yield "the phases do not explain the step: they named no bottleneck"
    if profile.absent:
        yield f"the profile does not have: {', '.join(sorted(profile.absent))}"


def _unmeasured(scorecard: MeasuredScorecard, policy: MeasuredPolicy) -> Iterator[str]:
    """Yield which numbers of a step are not known."""
    if scorecard.throughput is None:
        yield "no efficiency: the throughput is not above zero, so it was not measured"
    elif scorecard.efficiency is None:
        yield "no efficiency: neither roof is known"
    elif scorecard.efficiency > policy.above_roof:
        yield "no grade: more than the roof allows; check the declared work and the peak"
    if scorecard.step is None:
        yield "no step time is known"
    elif scorecard.step.count == 0:
        yield "only the mean of the steps is known: nothing is said of its noise"


def _unnamed(coverage: float | None, policy: MeasuredPolicy) -> Iterator[str]:
    """Yield why no bottleneck is named."""
    if coverage is None:
        yield "no bottleneck: the profile has no phases, or no step time"
    elif coverage < policy.least_coverage:
        yield "no bottleneck: too much of the step is in no phase"
    elif coverage > policy.most_coverage:
        yield "no bottleneck: the phases overlap, or one is nested in another"
    else:
        yield (
            "no bottleneck: copies are few and the work is declared for one roof only"
        )
