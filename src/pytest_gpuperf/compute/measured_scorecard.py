"""The scorecard that never clamps, guesses or skips in silence; PYTEST_DONT_REWRITE."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from pytest_gpuperf.compute.advice import (
    MEASURED_RULES,
    Rule,
    recommendations,
)
from pytest_gpuperf.compute.scorecard_decisions import (
    TOLERANCES,
    Tolerances,
    decisions,
)
from pytest_gpuperf.compute.stats import median, median_interval, quantile
from pytest_gpuperf.model.grade import Bands, Grade
from pytest_gpuperf.model.measured_scorecard import (
    UNATTRIBUTED,
    LayerTime,
    MeasuredScorecard,
    OperationTime,
    PhaseShare,
    StepLimiter,
    StepTime,
)
from pytest_gpuperf.model.mistakes import Mistake, not_finite, not_made, refuse
from pytest_gpuperf.model.scorecard import Hardware, TrainingScorecard
from pytest_gpuperf.model.step_profile import Layer, Phase, StepProfile
from pytest_gpuperf.model.steps import SpanKind, kind_of

__all__ = ["MEASURED", "MeasuredPolicy", "measured_scorecard"]

_LONGEST_MS = 1e15  # 30 thousand years; sums of such times stay finite
_WAITING = {
    SpanKind.TRANSFER.value: StepLimiter.TRANSFER,
    SpanKind.COMMUNICATION.value: StepLimiter.COMMUNICATION,
    SpanKind.DATA.value: StepLimiter.DATA,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPolicy:
    """
    Where the lines are drawn.

    Attributes:
        memory_bands: Where the grades begin when memory is the lower roof, or the only
            one that is known.

        compute_bands: The same, when arithmetic is the lower roof.

        waiting_fraction: Share of a step from which a kind of phase that does not
            compute is the bottleneck, when it is above it.

        least_coverage: Least share of the step that the phases must explain; below it
            no bottleneck is named.

        most_coverage: Above it phases overlap, and no bottleneck is named either.

        busy_fraction: Share of the bandwidth from which memory is the bottleneck where
            the arithmetic is not known.

        above_roof: Efficiency above which the declared work or the peak is doubted.

        tolerances: Changes that pass.
    """

    memory_bands: Bands = field(
        default_factory=lambda: Bands(a=0.85, b=0.70, c=0.50, d=0.25)
    )
    compute_bands: Bands = field(
        default_factory=lambda: Bands(a=0.70, b=0.55, c=0.35, d=0.15)
    )
    waiting_fraction: float = 0.30
    least_coverage: float = 0.80
    most_coverage: float = 1.05
    busy_fraction: float = 0.60
    above_roof: float = 1.05
    tolerances: Tolerances = TOLERANCES


MEASURED = MeasuredPolicy()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Roof:
    """What the hardware allows; None: not declared."""

    by_memory: float | None
    by_compute: float | None

    @property
    def attainable(self) -> float | None:
        """Units per second under the lower roof."""
        known = [each for each in (self.by_memory, self.by_compute) if each is not None]
        return min(known, default=None)

    @property
    def bound(self) -> str | None:
        """The lower roof, where both are known."""
        if self.by_memory is None or self.by_compute is None:
            return None
        return "memory" if self.by_memory < self.by_compute else "compute"


def measured_scorecard(
    profile: StepProfile,
    *,
    throughput: float,
    hardware: Hardware,
    baseline: MeasuredScorecard | TrainingScorecard | None = None,
    policy: MeasuredPolicy = MEASURED,
    rules: Sequence[Rule[MeasuredScorecard]] = MEASURED_RULES,
    unit: str = "token",
) -> MeasuredScorecard:
    """
    Return the scorecard of a training step, with None wherever the profile is silent.

    Args:
        profile: Where the time of a step goes; a phase without a kind has that of its
            name, if the whole name is well known.

        throughput: Units per second; finite. Zero or less counts as not measured.

        hardware: The hardware, and what a unit asks of it.

        baseline: An older scorecard of either policy.

        policy: Where the lines are drawn.

        rules: The rules of the recommendations.

        unit: What is counted, in the singular.

    Returns:
        The scorecard; its notes say what is not known.

    Raises:
        RecordError: The throughput is not finite, or a time is below zero; all
            of the mistakes are named.

    References:
        docs/scorecard.md, section 2.
    """
    wrong = [
        *not_made("profile", profile, StepProfile, "decode_step_profile"),
        *not_made("hardware", hardware, Hardware, "decode_hardware"),
        *not_finite("", {"throughput": throughput}),
    ]
    if isinstance(profile, StepProfile):
        wrong += _impossible(profile)
    refuse(wrong, remedy="give what was measured")
    rate = throughput if throughput > 0 else None
    roof = _roof(hardware)
    efficiency = _over(rate, roof.attainable)
    step = _step_time(profile)
    shares, coverage = _shares(profile, step)
    layers = tuple(map(_layer, profile.per_layer))
    ratios = [each.ratio for each in layers if each.ratio is not None]
    scorecard = MeasuredScorecard(
        unit=unit,
        grade=_grade(efficiency, roof, policy),
        efficiency=efficiency,
        bound=roof.bound,
        bandwidth_fraction=_over(rate, roof.by_memory),
        compute_fraction=_over(rate, roof.by_compute),
        shares=shares,
        coverage=coverage,
        throughput=rate,
        step=step,
        step_ms=profile.step_ms,
        backward_forward_ratio=_over(
            math.fsum(layer.bwd_ms for layer in layers),
            math.fsum(layer.fwd_ms for layer in layers),
        ),
        layer_ratio_low=min(ratios, default=None),
        layer_ratio_median=median(ratios) if ratios else None,
        layer_ratio_high=max(ratios, default=None),
        layers=layers,
        operations=_operations(profile.per_layer),
    )
    limiter = _bottleneck(scorecard, policy)
    scorecard = replace(
        scorecard,
        bottleneck=limiter,
        notes=tuple(_notes(scorecard, limiter, profile, policy)),
        decisions=()
        if baseline is None
        else decisions(scorecard, baseline, policy.tolerances),
    )
    advice = recommendations(scorecard, profile, rules=rules)
    return replace(scorecard, recommendations=advice)


def _impossible(profile: StepProfile) -> Iterator[Mistake]:
    """Yield the times that no step can take."""
    times = {"avg_step_ms": profile.avg_step_ms}
    times |= {f"step_ms[{at}]": ms for at, ms in enumerate(profile.step_ms)}
    for name, phase in profile.phases.items():
        times[f"phases.{name}"] = _exclusive(phase)
    for at, layer in enumerate(profile.per_layer):
        times[f"per_layer[{at}].fwd_ms"] = layer.fwd_ms
        times[f"per_layer[{at}].bwd_ms"] = layer.bwd_ms
        for name, ms in layer.ops.items():
            times[f"per_layer[{at}].ops.{name}"] = ms
    for path, ms in times.items():
        if not 0 <= ms <= _LONGEST_MS:
            yield Mistake(path=path, text=f"{ms!r} ms is no time of a step")


def _exclusive(phase: Phase) -> float:
    """Return a phase's own time in a step [ms]."""
    return phase.avg_ms if phase.exclusive_ms is None else phase.exclusive_ms


def _roof(hardware: Hardware) -> _Roof:
    """Return what the hardware allows; a number that is not above zero is none."""
    flop_per_s, flop = hardware.peak_flop_per_s, hardware.flop_per_token
    return _Roof(
        by_memory=_over(hardware.peak_bw_gb_s * 1e9, hardware.bytes_per_token),
        by_compute=_over(flop_per_s, flop),
    )


def _grade(
    efficiency: float | None, roof: _Roof, policy: MeasuredPolicy
) -> Grade | None:
    """Return the grade of an efficiency that can be true."""
    if efficiency is None or efficiency > policy.above_roof:
        return None
    bands = policy.compute_bands if roof.bound == "compute" else policy.memory_bands
    return bands.grade(efficiency)


def _over(part: float | None, whole: float | None) -> float | None:
    """Return a quotient of two numbers above zero; None where one is not, or missing."""
    if part is None or whole is None or part <= 0 or whole <= 0:
        return None
    quotient = part / whole
    return quotient if 0 < quotient < math.inf else None


def _step_time(profile: StepProfile) -> StepTime | None:
    """Return how long a step takes; None where no time is known."""
    samples = profile.step_ms
    if not samples:
        known = profile.avg_step_ms > 0
        return StepTime(mean_ms=profile.avg_step_ms) if known else None
    mean = math.fsum(samples) / len(samples)
    if mean <= 0:
        return None
    low, high = median_interval(samples) or (None, None)
    return StepTime(
        mean_ms=mean,
        count=len(samples),
        median_ms=median(samples),
        low_ms=low,
        high_ms=high,
        p95_ms=quantile(samples, 0.95),
    )


def _shares(
    profile: StepProfile, step: StepTime | None
) -> tuple[tuple[PhaseShare, ...], float | None]:
    """Return the time of each kind of phase, and the share that all explain together."""
    if step is None or not profile.phases:
        return (), None
    times: dict[str, list[float]] = {}
    for name, phase in profile.phases.items():
        kind = phase.kind or kind_of(name) or SpanKind.OTHER
        times.setdefault(kind.value, []).append(_exclusive(phase))
    totals = {kind: math.fsum(ms) for kind, ms in times.items()}
    explained = math.fsum(totals.values())
    totals[UNATTRIBUTED] = max(0.0, step.mean_ms - explained)
    shares = (
        PhaseShare(kind=kind, ms=ms, fraction=ms / step.mean_ms)
        for kind, ms in totals.items()
    )
    ordered = sorted(shares, key=lambda share: (-share.ms, share.kind))
    return tuple(ordered), explained / step.mean_ms


def _layer(layer: Layer) -> LayerTime:
    """Return one layer with its longest operation."""
    total = math.fsum(layer.ops.values())
    top = min(layer.ops, key=lambda name: (-layer.ops[name], name), default=None)
    return LayerTime(
        layer=layer.layer,
        fwd_ms=layer.fwd_ms,
        bwd_ms=layer.bwd_ms,
        ratio=_over(layer.bwd_ms, layer.fwd_ms),
        top_op=top,
        top_op_fraction=None if top is None else _over(layer.ops[top], total),
    )


def _operations(layers: Iterable[Layer]) -> tuple[OperationTime, ...]:
    """Return all operations with their times over all layers."""
    times: dict[str, list[float]] = {}
    for layer in layers:
        for name, ms in layer.ops.items():
            times.setdefault(name, []).append(ms)
    totals = {name: math.fsum(each) for name, each in times.items()}
    total = math.fsum(totals.values())
    found = (
        OperationTime(name=name, ms=ms, fraction=ms / total if total > 0 else None)
        for name, ms in totals.items()
    )
    return tuple(sorted(found, key=lambda each: (-each.ms, each.name)))


def _bottleneck(
    scorecard: MeasuredScorecard, policy: MeasuredPolicy
) -> StepLimiter | None:
    """Return the largest kind of waiting that is too large, else the lower roof."""
    if not _explained(scorecard.coverage, policy):
        return None
    for share in scorecard.shares:  # largest first
        if share.kind in _WAITING and share.fraction > policy.waiting_fraction:
            return _WAITING[share.kind]
    if scorecard.bound is not None:
        lower = {"memory": StepLimiter.MEMORY_BW, "compute": StepLimiter.COMPUTE}
        return lower[scorecard.bound]
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


def _notes(
    scorecard: MeasuredScorecard,
    limiter: StepLimiter | None,
    profile: StepProfile,
    policy: MeasuredPolicy,
) -> Iterator[str]:
    """Yield what is not known, and why."""
    if scorecard.throughput is None:
        yield "the throughput is not above zero: it was not measured"
    if scorecard.efficiency is None:
        yield "no efficiency: neither roof is known"
    elif scorecard.efficiency > policy.above_roof:
        yield "no grade: more than the roof allows; check the declared work and the peak"
    if scorecard.step is None:
        yield "no step time is known"
    elif scorecard.step.count == 0:
        yield "only the mean of the steps is known: nothing is said of its noise"
    yield from _coverage_notes(scorecard.coverage, policy)
    if limiter is None and _explained(scorecard.coverage, policy):
        yield "no bottleneck: copies are few and the work is declared for one roof only"
    if profile.absent:
        yield f"the profile does not have: {', '.join(sorted(profile.absent))}"


def _coverage_notes(coverage: float | None, policy: MeasuredPolicy) -> Iterator[str]:
    """Yield why the phases do not allow a bottleneck to be named."""
    if coverage is None:
        yield "no bottleneck: the profile has no phases, or no step time"
    elif coverage < policy.least_coverage:
        yield "no bottleneck: too much of the step is in no phase"
    elif coverage > policy.most_coverage:
        yield "no bottleneck: the phases overlap, or one is nested in another"
