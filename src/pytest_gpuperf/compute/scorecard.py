"""The scorecard of a training step, by the rules of other tools.

Every sum runs from left to right, in the order of the names' bytes: with numbers of
different size the last bit depends on it. So `sum` is not used: it compensates.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce

from pytest_gpuperf.compute.advice import RULES, Rule, recommendations
from pytest_gpuperf.model.frozen import (
    Frozen,
    Mistake,
    not_finite,
    not_made,
    refuse,
    replace,
)
from pytest_gpuperf.model.grade import TRAINING_BANDS, Bands, Grade
from pytest_gpuperf.model.scorecard import (
    BOTTLENECK_LIMITS,
    HARDWARE,
    Bottleneck,
    BottleneckLimits,
    Hardware,
    Hotspot,
    LayerSummary,
    Recommendation,
    ScorecardRegression,
    TrainingScorecard,
)
from pytest_gpuperf.model.steps import Layer, Phase, StepProfile

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
    "training_scorecard",
]

_COPIES = ("h2d", "d2h")  # a phase with one of them in its name is a copy


class ReferencePolicy(Frozen, frozen=True, kw_only=True):
    """
    The limits that other tools have built in, as parameters.

    Attributes:
        bands: Where the grades begin.

        bottleneck: Above which shares a bottleneck is named.

        warning: Relative change for the worse above which a metric is flagged.

        critical: The same, for a severity of critical.

        coverage: Loss of wall coverage above which it is flagged, absolute.

        hotspot_count: Operations that are kept.
    """

    bands: Bands = TRAINING_BANDS
    bottleneck: BottleneckLimits = BOTTLENECK_LIMITS
    warning: float = 0.10
    critical: float = 0.20
    coverage: float = 0.05
    hotspot_count: int = 10


# aprender/entrenar's numbers
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
    Return the scorecard of a training step, as other tools of its kind compute it.

    The rules have known faults (docs/scorecard.md lists them); their numbers are kept so
    that scorecards of different tools compare. `measured_scorecard` is without them.

    Args:
        profile: Where the time of a step goes.

        throughput: Tokens per second; finite.

        hardware: The hardware, and what a token asks of it.

        baseline: An older scorecard to be compared with.

        policy: The limits.

        rules: The rules of the recommendations; advice of others is added to what is
            returned with `model.frozen.replace`.

    Returns:
        The scorecard. Finite input may overflow: a ratio can be infinite.

    Raises:
        RecordError: An argument has the wrong type, or the throughput or a number of the
            baseline is not finite; all mistakes are named.

    References:
        docs/scorecard.md, section 1.
    """
    refuse(
        [
            *not_made("profile", profile, StepProfile, "decode_step_profile"),
            *not_made("hardware", hardware, Hardware, "decode_hardware"),
            *not_finite("", {"throughput": throughput}),
            *_unfit(baseline),
        ],
        remedy="give what was measured",
    )
    peak = hardware.peak_throughput_tok_s
    efficiency = _within_one(throughput / peak) if peak > 0 else 0.0
    transfer = transfer_fraction(profile.phases)
    launch = launch_fraction(profile)
    layers = tuple(_layer_summary(layer) for layer in profile.per_layer)
    scorecard = TrainingScorecard(
        grade=policy.bands.grade(efficiency),
        efficiency=efficiency,
        bottleneck=Bottleneck.of(
            transfer, launch, efficiency, limits=policy.bottleneck
        ),
        throughput_tok_s=float(throughput),
        step_time_ms=profile.avg_step_ms,
        forward_backward_ratio=_mean_ratio(layers),
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
    """Return the share of a step in phases whose name marks a copy."""
    copies = (
        phases[name].pct
        for name in sorted(phases)
        if any(copy in name for copy in _COPIES)
    )
    return added(copies) / 100  # percent


def launch_fraction(profile: StepProfile) -> float:
    """Return the share of a step in none of its phases, 0 where the step has no time."""
    if profile.avg_step_ms <= 0:
        return 0.0
    phases = profile.phases
    explained = added(phases[name].total_ms for name in sorted(phases))
    return 1.0 - min(explained / profile.avg_step_ms, 1.0)


def hotspots(layers: Iterable[Layer]) -> tuple[Hotspot, ...]:
    """Return all operations with their times over all layers, longest first."""
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
    """Return a part of a total [%]; 0 of a total that is not above 0."""
    return part / total * 100 if total > 0 else 0.0


def added(numbers: Iterable[float]) -> float:
    """Return a sum, added up from left to right without compensation."""
    return reduce(operator.add, numbers, 0.0)


def _within_one(share: float) -> float:
    """Return a share cut to 0 … 1."""
    return 0.0 if share < 0 else min(share, 1.0)


def _layer_summary(layer: Layer) -> LayerSummary:
    """Return the summary of a layer; among equally long operations the last name wins."""
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


def _mean_ratio(layers: Sequence[LayerSummary]) -> float:
    """Return the mean of the layers' ratios, of those that have both passes."""
    ratios = [layer.ratio for layer in layers if layer.ratio > 0 and layer.bwd_ms > 0]
    return added(ratios) / len(ratios) if ratios else 0.0


def _worse(
    now: TrainingScorecard, base: TrainingScorecard, policy: ReferencePolicy
) -> Iterator[ScorecardRegression]:
    """Yield regressions; numbers that one of the two lacks are skipped."""
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
    """Yield a metric whose relative gain is a loss beyond the limit."""
    if gain < -policy.warning:
        severity = "critical" if gain < -policy.critical else "warning"
        yield ScorecardRegression(metric=metric, delta=delta, severity=severity)


def _unfit(baseline: TrainingScorecard | None) -> Iterator[Mistake]:
    """Yield the mistakes of a baseline."""
    if baseline is None:
        return
    yield from not_made("baseline", baseline, TrainingScorecard, "decode_scorecard")
    if isinstance(baseline, TrainingScorecard):
        numbers = {
            "throughput_tok_s": baseline.throughput_tok_s,
            "step_time_ms": baseline.step_time_ms,
            "wall_coverage": baseline.wall_coverage,
        }
        yield from not_finite("baseline", numbers)
