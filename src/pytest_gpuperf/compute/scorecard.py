"""The scorecard of a training step, by the rules of other tools, and of a measured loop.

Every sum runs from left to right, in the order of the names' bytes, because the order
changes the last bit of a sum of numbers of different size. The builtin `sum` is not used,
because it compensates.

Scorecards count in milliseconds and percent, and compare the sum of all phases with one
step. A measured loop is therefore one mean step here, from the end of the step before to
its own.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce

from pytest_gpuperf.compute.advice import RULES, Rule, recommendations
from pytest_gpuperf.compute.measured_scorecard import measured_scorecard
from pytest_gpuperf.compute.roofline import declared_roofline
from pytest_gpuperf.errors import MissingPeakError
from pytest_gpuperf.model.frozen import (
    Frozen,
    not_finite,
    not_made,
    refuse,
    replace,
)
from pytest_gpuperf.model.gap import GapCode
from pytest_gpuperf.model.roofline import TRAINING_BANDS, Bands, Grade, Peak, Peaks
from pytest_gpuperf.model.sample import (
    Estimate,
    Source,
    SourceLabel,
    Unmeasured,
    unmeasured,
)
from pytest_gpuperf.model.scorecard import (
    BOTTLENECK_LIMITS,
    HARDWARE,
    Bottleneck,
    BottleneckLimits,
    Hardware,
    Hotspot,
    LayerSummary,
    MeasuredScorecard,
    Recommendation,
    ScorecardRegression,
    TrainingScorecard,
)
from pytest_gpuperf.model.steps import (
    Layer,
    Phase,
    SpanKind,
    StepProfile,
    StepSummary,
)
from pytest_gpuperf.model.work import Work

__all__ = [
    "HARDWARE",
    "REFERENCE",
    "Bottleneck",
    "Grade",
    "Hardware",
    "Hotspot",
    "LayerSummary",
    "Recommendation",
    "ReferencePolicy",
    "ScorecardRegression",
    "TrainingScorecard",
    "added",
    "any_scorecard",
    "hardware_of",
    "peaks_of",
    "scorecard_of",
    "step_profile",
    "training_scorecard",
    "utilisation_of",
]

# Parts of a phase's name that mark a copy.
_COPIES = ("h2d", "d2h")


class ReferencePolicy(Frozen, frozen=True, kw_only=True):
    """
    The built-in limits of other tools, as parameters.

    Attributes:
        bands: Lower bounds of the grades.

        bottleneck: Shares above which a bottleneck is named.

        warning: Relative change for the worse above which a metric is flagged.

        critical: The same, for a severity of critical.

        coverage: Absolute loss of wall coverage above which the coverage is flagged.

        hotspot_count: Number of operations to keep.
    """

    bands: Bands = TRAINING_BANDS
    bottleneck: BottleneckLimits = BOTTLENECK_LIMITS
    warning: float = 0.10
    critical: float = 0.20
    coverage: float = 0.05
    hotspot_count: int = 10


# The numbers of aprender/entrenar.
REFERENCE = ReferencePolicy()


def training_scorecard(
    profile: StepProfile,
    *,
    throughput: float,
    hardware: Hardware,
    baseline: TrainingScorecard | None = None,
    policy: ReferencePolicy = REFERENCE,
    rules: Sequence[Rule[TrainingScorecard]] = RULES,
) -> TrainingScorecard:
    """
    Build the scorecard of a training step by the rules of other tools.

    The rules have known faults (see docs/scorecard.md). The numbers are kept so that
    scorecards of different tools can be compared. `measured_scorecard` is free of the faults.

    Args:
        profile: The times of a step.

        throughput: Tokens per second, finite.

        hardware: The hardware, and the work of a token.

        baseline: An older scorecard to compare with.

        policy: The limits.

        rules: The rules of the recommendations. To add advice of other rules, apply
            `model.frozen.replace` to the result.

    Returns:
        The scorecard. Finite input may overflow, so that a ratio can be infinite.

    Raises:
        RecordError: An argument has the wrong type, or the throughput or a number of the
            baseline is not finite. All mistakes are named.

    References:
        docs/scorecard.md, section 1.
    """
    mistakes = [
        *not_made("profile", profile, StepProfile, "decode_step_profile"),
        *not_made("hardware", hardware, Hardware, "decode_hardware"),
        *not_finite("", {"throughput": throughput}),
    ]
    if baseline is not None:
        mistakes += not_made(
            "baseline", baseline, TrainingScorecard, "decode_scorecard"
        )
    if isinstance(baseline, TrainingScorecard):
        names = ("throughput_tok_s", "step_time_ms", "wall_coverage")
        numbers = {name: getattr(baseline, name) for name in names}
        mistakes += not_finite("baseline", numbers)
    refuse(mistakes, remedy="give what was measured")
    peak = hardware.peak_throughput_tok_s
    efficiency = min(max(throughput / peak, 0.0), 1.0) if peak > 0 else 0.0
    transfer = transfer_fraction(profile.phases)
    launch = launch_fraction(profile)
    layers = tuple(_layer_summary(layer) for layer in profile.per_layer)
    ratios = [layer.ratio for layer in layers if layer.ratio > 0 and layer.bwd_ms > 0]
    scorecard = TrainingScorecard(
        grade=policy.bands.grade(efficiency),
        efficiency=efficiency,
        bottleneck=Bottleneck.of(
            transfer, launch, efficiency, limits=policy.bottleneck
        ),
        throughput_tok_s=float(throughput),
        step_time_ms=profile.avg_step_ms,
        forward_backward_ratio=added(ratios) / len(ratios) if ratios else 0.0,
        wall_coverage=profile.wall_coverage,
        per_layer_summary=layers,
        hotspot_ops=hotspots(profile.per_layer)[: policy.hotspot_count],
        peak_throughput_tok_s=peak,
        transfer_fraction=transfer,
        launch_fraction=launch,
    )
    worse = () if baseline is None else tuple(_worse(scorecard, baseline, policy))
    advice = recommendations(scorecard, profile, rules=rules)
    return replace(scorecard, regressions=worse, recommendations=advice)


def transfer_fraction(phases: Mapping[str, Phase]) -> float:
    """Return the share of a step in phases with the name of a copy."""
    copies = (
        phases[name].pct
        for name in sorted(phases)
        if any(copy in name for copy in _COPIES)
    )
    return added(copies) / 100  # From percent.


def launch_fraction(profile: StepProfile) -> float:
    """Return the share of a step outside all phases, or 0 for a step without time."""
    if profile.avg_step_ms <= 0:
        return 0.0
    phases = profile.phases
    explained = added(phases[name].total_ms for name in sorted(phases))
    return 1.0 - min(explained / profile.avg_step_ms, 1.0)


def hotspots(layers: Iterable[Layer]) -> tuple[Hotspot, ...]:
    """Sum the times of operations over all layers, longest first."""
    times: dict[str, float] = {}
    for layer in layers:
        for name, ms in layer.ops.items():
            times[name] = times.get(name, 0.0) + ms
    total = added(times[name] for name in sorted(times))
    spots = (
        Hotspot(name=name, ms=times[name], pct=percent(times[name], total))
        for name in sorted(times)
    )
    return tuple(sorted(spots, key=lambda spot: spot.ms, reverse=True))


def percent(part: float, total: float) -> float:
    """Return a part of a total [%], or 0 if the total is not above 0."""
    return part / total * 100 if total > 0 else 0.0


def added(numbers: Iterable[float]) -> float:
    """Return a sum, added up from left to right without compensation."""
    return reduce(operator.add, numbers, 0.0)


def _layer_summary(layer: Layer) -> LayerSummary:
    names = sorted(layer.ops)
    total = added(layer.ops[name] for name in names)
    top = max(names, key=lambda name: (layer.ops[name], name), default="")
    return LayerSummary(
        layer=layer.layer,
        fwd_ms=layer.fwd_ms,
        bwd_ms=layer.bwd_ms,
        ratio=layer.bwd_ms / layer.fwd_ms if layer.fwd_ms > 0 else 0.0,
        top_op=top,
        top_op_pct=percent(layer.ops[top], total) if names else 0.0,
    )


def _worse(
    now: TrainingScorecard, base: TrainingScorecard, policy: ReferencePolicy
) -> Iterator[ScorecardRegression]:
    if base.throughput_tok_s > 0:
        delta = (now.throughput_tok_s - base.throughput_tok_s) / base.throughput_tok_s
        yield from _flagged("throughput_tok_s", delta, delta, policy)
    if now.step_time_ms > 0 and base.step_time_ms > 0:
        delta = (now.step_time_ms - base.step_time_ms) / base.step_time_ms
        yield from _flagged("step_time_ms", delta, -delta, policy)
    if now.wall_coverage > 0 and base.wall_coverage > 0:
        delta = now.wall_coverage - base.wall_coverage
        if delta < -policy.coverage:
            yield ScorecardRegression(
                metric="wall_coverage", delta=delta, severity="warning"
            )


def _flagged(
    metric: str, delta: float, gain: float, policy: ReferencePolicy
) -> Iterator[ScorecardRegression]:
    if gain < -policy.warning:
        severity = "critical" if gain < -policy.critical else "warning"
        yield ScorecardRegression(metric=metric, delta=delta, severity=severity)


_MS_PER_S = 1e3
_GIGA = 1e9
_COPY = "h2d/d2h"  # Marks a copy in the name of a phase.
_BETWEEN = "between steps"
_UNKNOWN = Hardware(peak_bw_gb_s=0.0, bytes_per_token=0.0, source="unavailable")


def step_profile(
    summary: StepSummary, *, periods_s: Sequence[float] = ()
) -> StepProfile:
    """
    Build the step profile of a loop.

    The name of a transfer phase is marked as a copy, because scorecards look at names alone. If
    no data phase was recorded, the time between steps becomes a phase of its own, as the cause
    of that wait is known. Phases of other threads are left out.

    Args:
        summary: The loop.

        periods_s: Period of each counted step [s], or empty to use the mean alone.

    Returns:
        The profile of a mean step. Values that were not recorded are listed as absent.
    """
    absent = {
        "gemm_pct": True,
        "per_layer": not summary.layers,
        "phases": not summary.phases,
        "wall_coverage": summary.covered_fraction is None,
    }
    return StepProfile(
        steps=summary.counted_count,
        avg_step_ms=summary.period_s * _MS_PER_S,
        wall_coverage=summary.covered_fraction or 0.0,
        phases=_phases(summary),
        per_layer=tuple(
            Layer(
                layer=layer.layer,
                fwd_ms=layer.forward_s * _MS_PER_S,
                bwd_ms=layer.backward_s * _MS_PER_S,
                ops={
                    operation.name: operation.own_s * _MS_PER_S
                    for operation in summary.operations
                    if operation.layer == layer.layer
                },
            )
            for layer in summary.layers
        ),
        total_ms=summary.period_s * summary.counted_count * _MS_PER_S,
        step_ms=tuple(period_s * _MS_PER_S for period_s in periods_s),
        absent=frozenset(name for name, missing in absent.items() if missing),
    )


def scorecard_of(
    summary: StepSummary,
    hardware: Hardware,
    *,
    baseline: TrainingScorecard | None = None,
) -> TrainingScorecard:
    """
    Build the training scorecard of a loop, with a unit of work in place of a token.

    Args:
        summary: The loop.

        hardware: The hardware, and the work of a unit.

        baseline: An older scorecard to compare with.
    """
    return training_scorecard(
        step_profile(summary),
        throughput=summary.units / summary.period_s,
        hardware=hardware,
        baseline=baseline,
    )


def any_scorecard(
    summary: StepSummary, profile: StepProfile, hardware: Hardware | None
) -> TrainingScorecard | MeasuredScorecard:
    """
    Build the training scorecard of a loop, or the part that needs no hardware.

    Args:
        summary: The loop.

        profile: The profile of the same loop, with the available samples.

        hardware: The hardware, or None if unknown, so that there is no grade.
    """
    if hardware is not None:
        return scorecard_of(summary, hardware)
    return measured_scorecard(
        profile,
        throughput=summary.units / summary.period_s,
        hardware=_UNKNOWN,
        unit=summary.unit,
    )


def hardware_of(
    work: Work | None,
    units: float,
    peaks: Peaks | None,
    declared: Hardware | None,
) -> Hardware | None:
    """
    Return the hardware of a scorecard, or None if unknown.

    Args:
        work: The declared work of one step.

        units: Units of a step, in place of the scorecard's tokens.

        peaks: The roofs of the device.

        declared: The hardware that the test declares. It has precedence.
    """
    if declared is not None or work is None or work.bytes is None or peaks is None:
        return declared
    memory = peaks.of_memory("dram")
    if memory.value is None:
        return None
    arithmetic = None if work.dtype is None else peaks.of_dtype(work.dtype)
    sources = {"peak_bw_gb_s": memory.label.value}
    if arithmetic is not None and arithmetic.value is not None:
        sources["peak_flop_per_s"] = arithmetic.label.value
    return Hardware(
        peak_bw_gb_s=memory.value / _GIGA,
        bytes_per_token=work.bytes / units,
        peak_flop_per_s=None if arithmetic is None else arithmetic.value,
        flop_per_token=None if work.flop is None else work.flop / units,
        source=work.label.value,
        sources=sources,
    )


def utilisation_of(
    summary: StepSummary | None,
    work: Work | None,
    peaks: Peaks | None,
    hardware: Hardware | None,
) -> Estimate | Unmeasured:
    """
    Return the share of the compute peak that the declared work of a step reached.

    The time is a step's mean period, so that waiting for data lowers the share.

    Args:
        summary: The loop, or None if no step counts.

        work: The declared work of one step.

        peaks: The roofs of the device, or None if unknown.

        hardware: The hardware that the test declares. It has precedence over the device's
            peaks.
    """
    if work is None or work.flop is None:
        remedy = 'pass work=Work(flop=…, dtype="bf16"), the FLOP of one step'
        return unmeasured(
            "mfu", GapCode.NOT_DECLARED, "the test declares no FLOP of a step", remedy
        )
    if summary is None:
        return unmeasured(
            "mfu", GapCode.NO_KERNEL, "no step counts", "let a step come to its end"
        )
    device_peaks = peaks_of(work, peaks, hardware)
    if device_peaks is None:
        remedy = "declare it: hardware=Hardware(peak_flop_per_s=…, …)"
        return unmeasured(
            "mfu", GapCode.MISSING_PEAK, "the peak of this device is not known", remedy
        )
    alone = Work(flop=work.flop, dtype=work.dtype, label=work.label)
    try:
        attained = declared_roofline(alone, summary.period_s, device_peaks)
    except MissingPeakError as error:
        return unmeasured("mfu", GapCode.MISSING_PEAK, error.reason, error.remedy)
    return Estimate(
        metric="mfu",
        value=attained.fraction,
        unit="fraction",
        source=Source.HOST,
        label=attained.label,
        sample_count=summary.counted_count,
    )


def peaks_of(
    work: Work, peaks: Peaks | None, hardware: Hardware | None
) -> Peaks | None:
    """Return the peaks of a loop, preferring declared peaks."""
    if hardware is None or hardware.peak_flop_per_s is None or work.dtype is None:
        return peaks
    peak = Peak(
        value=hardware.peak_flop_per_s,
        label=SourceLabel.DECLARED,
        source="the test's hardware=",
    )
    return Peaks(
        device="declared",
        flop_per_s={work.dtype: peak},
        bytes_per_s={},
        unlisted="it is not declared",
    )


def _phases(summary: StepSummary) -> dict[str, Phase]:
    phases = {}
    for phase in summary.phases:
        if phase.beside:
            continue
        name = phase.name
        if phase.kind is SpanKind.TRANSFER and not any(c in name for c in _COPIES):
            name = f"{name} ({_COPY})"
        own_ms = phase.own_s * _MS_PER_S
        phases[name] = Phase(
            total_ms=own_ms,
            pct=_percent(phase.own_s, summary.period_s),
            avg_ms=phase.total_s * _MS_PER_S,
            kind=phase.kind,
            exclusive_ms=own_ms,
        )
    if not summary.data_was_recorded and summary.wait_s > 0:
        wait_ms = summary.wait_s * _MS_PER_S
        phases[_BETWEEN] = Phase(
            total_ms=wait_ms,
            pct=_percent(summary.wait_s, summary.period_s),
            avg_ms=wait_ms,
            kind=SpanKind.DATA,
            exclusive_ms=wait_ms,
        )
    return phases


def _percent(part_s: float, whole_s: float) -> float:
    return part_s / whole_s * 100  # In percent.
