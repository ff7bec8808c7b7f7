"""A measured loop in the words of training scorecards.

Scorecards count in milliseconds and percent, and hold the sum of all phases against one
step: so everything here is of one mean step, from the end of the step before to its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_gpuperf.compute.measured_scorecard import measured_scorecard
from pytest_gpuperf.compute.scorecard import training_scorecard
from pytest_gpuperf.model.measured_scorecard import MeasuredScorecard
from pytest_gpuperf.model.scorecard import Hardware, TrainingScorecard
from pytest_gpuperf.model.step_profile import Layer, Phase, StepProfile
from pytest_gpuperf.model.steps import PhaseTimes, SpanKind, StepSummary

__all__ = ["any_scorecard", "scorecard_of", "step_profile"]

_MS_PER_S = 1e3
_COPY = "h2d/d2h"  # what scorecards look for in the name of a phase that copies
_BETWEEN = "between steps"
_UNKNOWN = Hardware(peak_bw_gb_s=0.0, bytes_per_token=0.0, source="unavailable")


def step_profile(
    summary: StepSummary, *, periods_s: Sequence[float] = ()
) -> StepProfile:
    """
    Return a loop as the profile that scorecards are made of.

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


def _phases(summary: StepSummary) -> dict[str, Phase]:
    """Return the phases of a mean step by name."""
    inside = [phase for phase in summary.phases if not phase.beside]
    found = {_named(phase): _phase(phase, summary.period_s) for phase in inside}
    if not summary.data_was_recorded and summary.wait_s > 0:
        wait_ms = summary.wait_s * _MS_PER_S
        found[_BETWEEN] = Phase(
            total_ms=wait_ms,
            pct=_percent(summary.wait_s, summary.period_s),
            avg_ms=wait_ms,
            kind=SpanKind.DATA,
            exclusive_ms=wait_ms,
        )
    return found


def _named(phase: PhaseTimes) -> str:
    """Return a phase's name, in which scorecards can see whether it copies."""
    seen = any(word in phase.name for word in _COPY.split("/"))
    if phase.kind is SpanKind.TRANSFER and not seen:
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
