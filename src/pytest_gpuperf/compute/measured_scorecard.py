"""The scorecard of a measured loop."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from pytest_gpuperf.compute.advice import (
    MEASURED_RULES,
    Rule,
    recommendations,
)
from pytest_gpuperf.compute.stats import median, quantile, series_interval
from pytest_gpuperf.compute.step_bottleneck import (
    MEASURED,
    MeasuredPolicy,
    bottleneck,
    decisions,
    older_sessions,
    unknowns,
)
from pytest_gpuperf.errors import RecordError
from pytest_gpuperf.model.counters import STANDARD
from pytest_gpuperf.model.frozen import (
    Mistake,
    not_finite,
    not_made,
    refuse,
    replace,
)
from pytest_gpuperf.model.roofline import weakest
from pytest_gpuperf.model.sample import SourceLabel
from pytest_gpuperf.model.scorecard import (
    UNATTRIBUTED,
    Hardware,
    Invariant,
    InvariantResult,
    LayerTime,
    MeasuredScorecard,
    OperationTime,
    PhaseShare,
    StepTime,
    TrainingScorecard,
)
from pytest_gpuperf.model.steps import Layer, Phase, SpanKind, StepProfile, kind_of
from pytest_gpuperf.model.verdict import Outcome

__all__ = [
    "MEASURED",
    "QUANTITIES",
    "MeasuredPolicy",
    "checked",
    "measured_scorecard",
    "parse_invariant",
]

_KINDS = (*(kind.value for kind in SpanKind), UNATTRIBUTED)  # [ms]
_DEVICE = ("busy", "launching", "waiting")  # [ms]
_NUMBERS = (
    "throughput",
    "efficiency",
    "bandwidth_fraction",
    "compute_fraction",
    "coverage",
    "backward_forward_ratio",
    "layer_ratio_low",
    "layer_ratio_median",
    "layer_ratio_high",
)
_STEP = "step"  # [ms]
QUANTITIES = (_STEP, *_KINDS, *_DEVICE, *_NUMBERS)
# Followed by a name, as in phase["loss"] [ms].
_NAMED = ("phase", "op", "counter")
_ALL = (*QUANTITIES, *(f'{kind}["…"]' for kind in _NAMED))

_QUANTITY = r'[a-z_]+(?:\["[^"]+"\])?'
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?:\s*%)?"
_INVARIANT = re.compile(
    rf"\s*(?P<part>{_QUANTITY})(?:\s*/\s*(?P<whole>{_QUANTITY}))?\s*"
    rf"(?:\bbetween\s+(?P<low>{_NUMBER})\s+and\s+(?P<high>{_NUMBER})"
    rf"|>=\s*(?P<least>{_NUMBER})|<=\s*(?P<most>{_NUMBER}))\s*"
)
_ONE = re.compile(r'(?P<kind>[a-z_]+)\["(?P<name>[^"]+)"\]')
_EXAMPLE = 'write it as "backward / forward between 1.5 and 3"'


def parse_invariant(text: str) -> Invariant:
    """
    Read an invariant.

    Args:
        text: A quantity, or one over another, and its bounds: `between X and Y`,
            `>= X` or `<= Y`. Quantities are those of `QUANTITIES`, `phase["loss"]`,
            `op["softmax"]` and `counter["dram_bytes"]`. A bound may be in percent.

    Raises:
        RecordError: The text does not parse, or names an unknown quantity.

    Example:
        >>> invariant = parse_invariant("backward / forward between 1.5 and 3")
        >>> invariant.part, invariant.whole, invariant.low, invariant.high
        ('backward', 'forward', 1.5, 3.0)
    """
    match = _INVARIANT.fullmatch(text)
    if match is None:
        message = f"{text!r} is not an invariant"
        raise RecordError(message, path="invariants", remedy=_EXAMPLE)
    invariant = Invariant(
        name=" ".join(text.split()),
        part=match["part"],
        whole=match["whole"],
        low=_bound(match["low"] or match["least"]),
        high=_bound(match["high"] or match["most"]),
    )
    refuse(list(_unknown(invariant)), remedy=_EXAMPLE)
    return invariant


def checked(
    invariants: Sequence[Invariant],
    scorecard: MeasuredScorecard,
    profile: StepProfile,
) -> tuple[InvariantResult, ...]:
    """
    Check invariants of a step, with an unmeasured outcome for unknown quantities.

    Args:
        invariants: The conditions.

        scorecard: The step's scorecard.

        profile: The profile behind the scorecard.
    """
    if not invariants:
        return ()
    values: dict[str, float | None] = {s.kind: s.ms for s in scorecard.shares}
    values |= {name: getattr(scorecard, name) for name in _NUMBERS}
    if scorecard.step is not None:
        values[_STEP] = scorecard.step.median_ms or scorecard.step.mean_ms
    if scorecard.device is not None:
        device = scorecard.device
        values |= {name: getattr(device, f"{name}_ms") for name in _DEVICE}
    phases = profile.phases.items()
    values |= {f'phase["{name}"]': _own_ms(phase) for name, phase in phases}
    values |= {
        f'op["{operation.name}"]': operation.ms for operation in scorecard.operations
    }
    values |= {f'counter["{name}"]': v for name, v in profile.counters.items()}
    return tuple(_held(invariant, values) for invariant in invariants)


def _parsed(
    invariants: Sequence[Invariant | str],
) -> tuple[list[Invariant], list[Mistake]]:
    mistakes: list[Mistake] = []
    parsed: list[Invariant] = []
    for place, entry in enumerate(invariants):
        try:
            invariant = parse_invariant(entry) if isinstance(entry, str) else entry
        except RecordError as error:
            path = f"invariants[{place}]"
            mistakes.append(Mistake(path=path, text=error.message))
            continue
        if invariant is entry:
            mistakes += _unknown(invariant)
        parsed.append(invariant)
    return parsed, mistakes


def _held(invariant: Invariant, values: Mapping[str, float | None]) -> InvariantResult:
    names = [name for name in (invariant.part, invariant.whole) if name is not None]
    lacking = [name for name in names if values.get(name) is None]
    part, *whole = (values.get(name) or 0.0 for name in names)
    value, reason = None, ""
    if lacking:
        reason = f"{' and '.join(lacking)}: not in the profile"
    elif not whole:
        value = part
    elif whole[0] <= 0:
        reason = f"{invariant.whole} is {whole[0]!r}"
    elif math.isfinite(part / whole[0]):
        value = part / whole[0]
    else:
        reason = "no float holds the ratio"
    if value is None:
        outcome = Outcome.UNMEASURED
    else:
        low = -math.inf if invariant.low is None else invariant.low
        high = math.inf if invariant.high is None else invariant.high
        outcome = Outcome.PASSED if low <= value <= high else Outcome.FAILED
    return InvariantResult(
        name=invariant.name,
        outcome=outcome,
        value=value,
        low=invariant.low,
        high=invariant.high,
        why=reason,
    )


def _own_ms(phase: Phase) -> float:
    return phase.avg_ms if phase.exclusive_ms is None else phase.exclusive_ms


def _unknown(invariant: Invariant) -> Iterator[Mistake]:
    for name in (invariant.part, invariant.whole):
        if name is None or name in QUANTITIES:
            continue
        match = _ONE.fullmatch(name)
        if match is None or match["kind"] not in _NAMED:
            text = f"{name} is not a quantity of a step; write one of {', '.join(_ALL)}"
            yield Mistake(path=invariant.name, text=text)


def _bound(text: str | None) -> float | None:
    """Convert the text of a bound, a number or percentage, or return None if absent."""
    if text is None:
        return None
    number, percent, _ = text.partition("%")
    return float(number) / 100 if percent else float(number)


Scorecards = (
    MeasuredScorecard
    | TrainingScorecard
    | Sequence[MeasuredScorecard | TrainingScorecard]
)

_LONGEST_MS = 1e15  # 30 thousand years. Sums of such times stay finite.
_BY_MEMORY = ("peak_bw_gb_s", "bytes_per_token")
_BY_COMPUTE = ("peak_flop_per_s", "flop_per_token")
# The numbers of a scorecard, and the hardware's numbers behind them.
_MADE_OF: dict[str, tuple[str, ...]] = {
    "bandwidth_fraction": _BY_MEMORY,
    "compute_fraction": _BY_COMPUTE,
    "coverage": (),
    "throughput": (),
    "step": (),
    "device": (),
    "backward_forward_ratio": (),
    "layer_ratio_low": (),
    "layer_ratio_median": (),
    "layer_ratio_high": (),
}


def measured_scorecard(
    profile: StepProfile,
    *,
    throughput: float,
    hardware: Hardware,
    baseline: Scorecards | None = None,
    invariants: Sequence[Invariant | str] = (),
    policy: MeasuredPolicy = MEASURED,
    rules: Sequence[Rule[MeasuredScorecard]] = MEASURED_RULES,
    unit: str = "token",
) -> MeasuredScorecard:
    """
    Build the scorecard of a training step, with None for all missing values.

    Args:
        profile: The times of a step. A phase without a kind has the kind of its name, if the
            whole name is well known.

        throughput: Units per second, finite. Zero or less counts as not measured.

        hardware: The hardware, and the work of a unit.

        baseline: An older scorecard of either policy, or several of them, the oldest
            first. The last one is compared with, and three or more show how much sessions
            differ.

        invariants: Conditions on the step at any speed, as text for `parse_invariant` or as
            objects.

        policy: The thresholds.

        rules: The rules of the recommendations.

        unit: The counted unit, in the singular.

    Returns:
        The scorecard. Its notes name what is not known.

    Raises:
        RecordError: The throughput is not finite, a time is below zero or above 1e15 ms, a
            counter is below zero or not a standard counter, or an invariant names an unknown
            quantity. All mistakes are named.

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
    conditions, misread = _parsed(invariants)
    remedies = {"give what was measured": wrong, _EXAMPLE: misread}
    refuse(
        [*wrong, *misread],
        remedy="; ".join(remedy for remedy, mistakes in remedies.items() if mistakes),
    )
    scorecard = _numbers(profile, throughput, hardware, policy, unit)
    holding = bottleneck(scorecard, profile.counters, policy)
    scorecard = replace(
        scorecard,
        bottleneck=holding.limiter,
        evidence=holding.evidence,
        sources=_sources(scorecard, hardware),
        invariants=checked(conditions, scorecard, profile),
    )
    older = older_sessions(baseline)
    notes = [*unknowns(scorecard, profile, policy)]
    if older:
        base = older[-1]
        named = isinstance(base, MeasuredScorecard) and base.machine
        if not (named and scorecard.machine):
            side = "this run" if named else "the baseline"
            notes.append(
                f"{side} names no machine: another one may have been compared with"
            )
    scorecard = replace(
        scorecard,
        notes=tuple(notes),
        decisions=decisions(scorecard, older, policy.tolerances),
    )
    advice = recommendations(scorecard, profile, rules=rules)
    return replace(scorecard, recommendations=advice)


def _numbers(
    profile: StepProfile,
    throughput: float,
    hardware: Hardware,
    policy: MeasuredPolicy,
    unit: str,
) -> MeasuredScorecard:
    rate = throughput if throughput > 0 else None
    by_memory = by_compute = bound = grade = None
    if _labelled(hardware, _BY_MEMORY):
        by_memory = _over(hardware.peak_bw_gb_s * 1e9, hardware.bytes_per_token)
    if _labelled(hardware, _BY_COMPUTE):
        by_compute = _over(hardware.peak_flop_per_s, hardware.flop_per_token)
    if by_memory is not None and by_compute is not None:
        bound = "memory" if by_memory < by_compute else "compute"
    roofs = [roof for roof in (by_memory, by_compute) if roof is not None]
    efficiency = _over(rate, min(roofs, default=None))
    # An efficiency far above the roof is implausible and gets no grade.
    if efficiency is not None and efficiency <= policy.above_roof:
        bands = policy.compute_bands if bound == "compute" else policy.memory_bands
        grade = bands.grade(efficiency)
    step = _step_time(profile)
    shares, coverage = _shares(profile, step)
    layers = tuple(map(_layer, profile.per_layer))
    ratios = [layer.ratio for layer in layers if layer.ratio is not None]
    return MeasuredScorecard(
        unit=unit,
        grade=grade,
        efficiency=efficiency,
        bound=bound,
        bandwidth_fraction=_over(rate, by_memory),
        compute_fraction=_over(rate, by_compute),
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
        device=profile.device,
        machine=profile.machine,
    )


def _impossible(profile: StepProfile) -> Iterator[Mistake]:
    times = {"avg_step_ms": profile.avg_step_ms}
    times |= {f"step_ms[{at}]": ms for at, ms in enumerate(profile.step_ms)}
    for name, phase in profile.phases.items():
        times[f"phases.{name}"] = _own_ms(phase)
    for at, layer in enumerate(profile.per_layer):
        times[f"per_layer[{at}].fwd_ms"] = layer.fwd_ms
        times[f"per_layer[{at}].bwd_ms"] = layer.bwd_ms
        for name, ms in layer.ops.items():
            times[f"per_layer[{at}].ops.{name}"] = ms
    device = profile.device
    if device is not None:
        times["device.busy_ms"] = device.busy_ms
        times["device.launching_ms"] = device.launching_ms
        times["device.waiting_ms"] = device.waiting_ms
    for path, ms in times.items():
        if not 0 <= ms <= _LONGEST_MS:
            yield Mistake(path=path, text=f"{ms!r} ms is not a time of a step")
    for name, value in profile.counters.items():
        if name not in STANDARD:
            yield Mistake(path=f"counters.{name}", text="unknown counter")
        elif value < 0:
            yield Mistake(path=f"counters.{name}", text=f"{value!r} is below zero")


def _labelled(hardware: Hardware, names: Iterable[str]) -> bool:
    return all(hardware.label(name) is not SourceLabel.UNAVAILABLE for name in names)


def _sources(
    scorecard: MeasuredScorecard, hardware: Hardware
) -> dict[str, SourceLabel]:
    roofs = ("bandwidth_fraction", "compute_fraction")
    made_of = {
        name: parts
        for name, parts in _MADE_OF.items()
        if getattr(scorecard, name) is not None
    }
    used = [part for roof in roofs for part in made_of.get(roof, ())]
    if scorecard.efficiency is not None:
        made_of["efficiency"] = tuple(used)
    if scorecard.grade is not None:
        made_of["grade"] = tuple(used)
    return {
        name: weakest(SourceLabel.MEASURED, *map(hardware.label, parts))
        for name, parts in made_of.items()
    }


def _over(part: float | None, whole: float | None) -> float | None:
    """Return a quotient, or None unless both numbers are known and above zero."""
    if part is None or whole is None or part <= 0 or whole <= 0:
        return None
    quotient = part / whole
    return quotient if 0 < quotient < math.inf else None


def _step_time(profile: StepProfile) -> StepTime | None:
    """Return the time of a step, or None if no time above zero is known."""
    samples = profile.step_ms
    if not samples:
        has_mean = profile.avg_step_ms > 0
        return StepTime(mean_ms=profile.avg_step_ms) if has_mean else None
    mean = math.fsum(samples) / len(samples)
    if mean <= 0:
        return None
    low, high = series_interval(samples) or (None, None)
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
    """
    Return the times by kind of phase, and the total share of the step.

    The share is None without phases or a step time.
    """
    if step is None or not profile.phases:
        return (), None
    times: dict[str, list[float]] = {}
    for name, phase in profile.phases.items():
        kind = phase.kind or kind_of(name) or SpanKind.OTHER
        times.setdefault(kind.value, []).append(_own_ms(phase))
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
    times: dict[str, list[float]] = {}
    for layer in layers:
        for name, ms in layer.ops.items():
            times.setdefault(name, []).append(ms)
    totals = {name: math.fsum(ms) for name, ms in times.items()}
    total = math.fsum(totals.values())
    operations = (
        OperationTime(name=name, ms=ms, fraction=ms / total if total > 0 else None)
        for name, ms in totals.items()
    )
    return tuple(
        sorted(operations, key=lambda operation: (-operation.ms, operation.name))
    )
