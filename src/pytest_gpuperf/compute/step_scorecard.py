"""A measured loop in the words of training scorecards.

Scorecards count in milliseconds and percent, and hold the sum of all phases against one
step: so everything here is of one mean step, from the end of the step before to its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_gpuperf.compute.measured_scorecard import measured_scorecard
from pytest_gpuperf.compute.roofline import declared_roofline
from pytest_gpuperf.compute.scorecard import training_scorecard
from pytest_gpuperf.errors import MissingPeakError
from pytest_gpuperf.model.gap import GapCode
from pytest_gpuperf.model.roofline import Peak, Peaks
from pytest_gpuperf.model.sample import Estimate, Source, SourceLabel, Unmeasured
from pytest_gpuperf.model.scorecard import (
    Hardware,
    MeasuredScorecard,
    TrainingScorecard,
)
from pytest_gpuperf.model.steps import (
    Layer,
    Phase,
    PhaseTimes,
    SpanKind,
    StepProfile,
    StepSummary,
)
from pytest_gpuperf.model.work import Work

__all__ = [
    "any_scorecard",
    "hardware_of",
    "peaks_of",
    "scorecard_of",
    "step_profile",
    "utilisation_of",
]

_MS_PER_S = 1e3
_GIGA = 1e9
_COPY = "h2d/d2h"  # what scorecards look for in the name of a phase that copies
_BETWEEN = "between steps"
_UNKNOWN = Hardware(peak_bw_gb_s=0.0, bytes_per_token=0.0, source="unavailable")


def step_profile(
    summary: StepSummary, *, periods_s: Sequence[float] = ()
) -> StepProfile:
    """
    Return the step profile of a loop.

    A phase of kind transfer is named so that scorecards, which look at names alone, take
    it for one. Where no data was recorded, the time between steps is a phase of its own:
    it is known what was waited for. Phases beside the steps are left out.

    Args:
        summary: The loop.

        periods_s: The period of each step that counts [s]; empty: the mean alone.

    Returns:
        The profile of a mean step; what was not recorded is listed as absent.
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
        per_layer=_layers(summary),
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
    Return the training scorecard of a loop; a unit of its work stands for a token.

    Args:
        summary: The loop.

        hardware: What the hardware can do, and what a unit asks of it.

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
    Return the training scorecard of a loop, or as much of one as needs no hardware.

    Args:
        summary: The loop.

        profile: The same as a profile, with the samples that it has.

        hardware: What the hardware can do; None: not known, so that there is no grade.
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
    Return the hardware of a scorecard; None: it is not known.

    Args:
        work: What one step has to do.

        units: Units of a step: they stand for the scorecard's tokens.

        peaks: The roofs of the device.

        declared: The hardware that the test declares; it has precedence.
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

    The time is a step's mean period, so that waiting for data lowers it.

    Args:
        summary: The loop; None: no step of it counts.

        work: What one step has to do.

        peaks: The roofs of the device; None: not known.

        hardware: What the test declares; it has precedence over the device's peaks.
    """
    if work is None or work.flop is None:
        remedy = 'pass work=Work(flop=…, dtype="bf16"), the FLOP of one step'
        return _gap(
            "mfu", GapCode.NOT_DECLARED, "the test declares no FLOP of a step", remedy
        )
    if summary is None:
        return _gap(
            "mfu", GapCode.NO_KERNEL, "no step counts", "let a step come to its end"
        )
    device_peaks = peaks_of(work, peaks, hardware)
    if device_peaks is None:
        remedy = "declare it: hardware=Hardware(peak_flop_per_s=…, …)"
        return _gap(
            "mfu", GapCode.MISSING_PEAK, "the peak of this device is not known", remedy
        )
    alone = Work(flop=work.flop, dtype=work.dtype, label=work.label)
    try:
        attained = declared_roofline(alone, summary.period_s, device_peaks)
    except MissingPeakError as error:
        return _gap("mfu", GapCode.MISSING_PEAK, error.reason, error.remedy)
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
    """Return the peaks of a loop: declared ones have precedence."""
    return _declared_peaks(work, hardware) or peaks


def _phases(summary: StepSummary) -> dict[str, Phase]:
    """Return the phases of a mean step by name."""
    inside = [phase for phase in summary.phases if not phase.beside]
    phases = {_named(phase): _phase(phase, summary.period_s) for phase in inside}
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


def _named(phase: PhaseTimes) -> str:
    """Return a phase's name, with a copy marked for scorecards."""
    names_a_copy = any(word in phase.name for word in _COPY.split("/"))
    if phase.kind is SpanKind.TRANSFER and not names_a_copy:
        return f"{phase.name} ({_COPY})"
    return phase.name


def _phase(phase: PhaseTimes, period_s: float) -> Phase:
    """Return one phase of a mean step."""
    own_ms = phase.own_s * _MS_PER_S
    return Phase(
        total_ms=own_ms,
        pct=_percent(phase.own_s, period_s),
        avg_ms=phase.total_s * _MS_PER_S,
        kind=phase.kind,
        exclusive_ms=own_ms,
    )


def _layers(summary: StepSummary) -> tuple[Layer, ...]:
    """Return the layers with their operations."""
    return tuple(
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
    )


def _percent(part_s: float, whole_s: float) -> float:
    """Return a share [%]."""
    return part_s / whole_s * 100  # percent


def _declared_peaks(work: Work, hardware: Hardware | None) -> Peaks | None:
    """Return the peak that a test declares; None: it declares none."""
    if hardware is None or hardware.peak_flop_per_s is None or work.dtype is None:
        return None
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


def _gap(metric: str, code: GapCode, reason: str, remedy: str) -> Unmeasured:
    """Return an unmeasured metric with its reason."""
    return Unmeasured(metric=metric, code=code, reason=reason, remedy=remedy)
