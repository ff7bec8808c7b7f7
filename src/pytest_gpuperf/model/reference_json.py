"""Step profiles, scorecards and parity in the JSON of other tools.

What is read is what the Rust reader of these files takes (serde_json): unknown fields
are let through, whole numbers stand for floats, and never null for a number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from pytest_gpuperf.model.fields import Fields, load_json
from pytest_gpuperf.model.grade import Grade
from pytest_gpuperf.model.mistakes import Mistake, refuse
from pytest_gpuperf.model.parity import ParityComparison, ParityProfile
from pytest_gpuperf.model.sample import SourceLabel
from pytest_gpuperf.model.scorecard import (
    Bottleneck,
    Hardware,
    Hotspot,
    LayerSummary,
    Recommendation,
    ScorecardRegression,
    TrainingScorecard,
)
from pytest_gpuperf.model.step_profile import (
    DeviceTime,
    Layer,
    Phase,
    StepProfile,
)
from pytest_gpuperf.model.steps import SpanKind

__all__ = [
    "decode_hardware",
    "decode_parity_profile",
    "decode_scorecard",
    "decode_step_profile",
    "encode_parity",
    "encode_scorecard",
    "encode_step_profile",
    "load_json",
]

_REMEDY = "correct the file, or the program that wrote it"
_HARDWARE = ("peak_bw_gb_s", "bytes_per_token", "peak_flop_per_s", "flop_per_token")
_DEVICE = ("busy_ms", "launching_ms", "waiting_ms")

_T = TypeVar("_T")


def decode_step_profile(obj: object, *, ours: bool = False) -> StepProfile:
    """
    Return the step profile of JSON.

    Args:
        obj: The parsed object, or its text; all of its fields may be missing.

        ours: Whether to read also what only pytest-gpuperf knows: `step_ms`, `device`,
            `counters`, `machine`, and of a phase `kind` and `exclusive_ms`. Other tools
            ignore these, and so does this without it.

    Raises:
        RecordError: What other readers refuse too; all mistakes are named.
    """
    return _decoded(obj, lambda fields: _profile(fields, ours=ours))


def decode_hardware(obj: object, *, ours: bool = False) -> Hardware:
    """
    Return the hardware of JSON.

    Args:
        obj: The parsed object, or its text: `peak_bw_gb_s`, `bytes_per_token`.

        ours: Whether to read also what only pytest-gpuperf knows: `peak_flop_per_s`,
            `flop_per_token`, and `source` and `sources`, which label the numbers.

    Raises:
        RecordError: What other readers refuse too; all mistakes are named.
    """

    def build(fields: Fields) -> Hardware:
        return Hardware(
            peak_bw_gb_s=fields.number("peak_bw_gb_s"),
            bytes_per_token=fields.number("bytes_per_token"),
            peak_flop_per_s=fields.optional_number("peak_flop_per_s") if ours else None,
            flop_per_token=fields.optional_number("flop_per_token") if ours else None,
            **(_labels(fields) if ours else {}),
        )

    return _decoded(obj, build)


def decode_scorecard(obj: object) -> TrainingScorecard:
    """
    Return the scorecard of JSON.

    Args:
        obj: The parsed object, or its text, with all of its fields; the grade may be
            any text.

    Raises:
        RecordError: What other readers refuse too; all mistakes are named.
    """
    return _decoded(obj, _scorecard)


def decode_parity_profile(obj: object) -> ParityProfile:
    """
    Return one side of a parity comparison.

    Args:
        obj: The parsed object, or its text, with all of its fields.

    Raises:
        RecordError: What other readers refuse too; all mistakes are named.
    """
    return _decoded(
        obj,
        lambda fields: ParityProfile(
            runtime=fields.text("runtime"),
            throughput_tok_s=fields.number("throughput_tok_s"),
            step_time_ms=fields.number("step_time_ms"),
            kernel_launches_per_step=fields.count("kernel_launches_per_step"),
            ops=fields.numbers("ops"),
        ),
    )


def encode_scorecard(scorecard: TrainingScorecard) -> dict[str, Any]:
    """
    Return a scorecard as builtins, under the names that other tools use.

    Numbers that overflowed stay infinite: JSON has no word for them, so a writer puts
    null, which no reader takes.
    """
    return {
        "grade": str(scorecard.grade),
        "efficiency": scorecard.efficiency,
        "bottleneck": scorecard.bottleneck.value,
        "throughput_tok_s": scorecard.throughput_tok_s,
        "step_time_ms": scorecard.step_time_ms,
        "forward_backward_ratio": scorecard.forward_backward_ratio,
        "wall_coverage": scorecard.wall_coverage,
        "per_layer_summary": [
            {
                "layer": each.layer,
                "fwd_ms": each.fwd_ms,
                "bwd_ms": each.bwd_ms,
                "ratio": each.ratio,
                "top_op": each.top_op,
                "top_op_pct": each.top_op_pct,
            }
            for each in scorecard.per_layer_summary
        ],
        "hotspot_ops": [
            [each.name, each.ms, each.pct] for each in scorecard.hotspot_ops
        ],
        "regressions": [
            {"metric": each.metric, "delta": each.delta, "severity": each.severity}
            for each in scorecard.regressions
        ],
        "recommendations": [each.text for each in scorecard.recommendations],
    }


def encode_step_profile(profile: StepProfile) -> dict[str, Any]:
    """
    Return a step profile as builtins, under the names that other tools use.

    What only pytest-gpuperf reads stands beside them where it is known; a field that the
    source did not have is left out again.
    """
    known: dict[str, Any] = {
        "steps": profile.steps,
        "avg_step_ms": profile.avg_step_ms,
        "wall_coverage": profile.wall_coverage,
        "phases": {name: _plain_phase(each) for name, each in profile.phases.items()},
        "per_layer": [
            {
                "layer": each.layer,
                "fwd_ms": each.fwd_ms,
                "bwd_ms": each.bwd_ms,
                "ops": dict(each.ops),
            }
            for each in profile.per_layer
        ],
        "bottleneck": profile.bottleneck,
        "gemm_pct": profile.gemm_pct,
        "total_ms": profile.total_ms,
    }
    return {
        name: each for name, each in known.items() if name not in profile.absent
    } | _of_ours(profile)


def encode_parity(comparison: ParityComparison) -> dict[str, Any]:
    """Return a parity comparison as builtins, under the names that other tools use."""
    return {
        "apr_runtime": comparison.ours_runtime,
        "baseline_runtime": comparison.reference_runtime,
        "throughput_ratio": comparison.throughput_ratio,
        "launch_ratio": comparison.launch_ratio,
        "top_gaps": [
            {
                "op": gap.op,
                "apr_ms": gap.ours_ms,
                "baseline_ms": gap.reference_ms,
                "ratio": gap.ratio,
            }
            for gap in comparison.top_gaps
        ],
        "parity_achieved": comparison.parity_achieved,
    }


def _decoded(obj: object, build: Callable[[Fields], _T]) -> _T:
    """Return a record, or refuse its object with all of its mistakes."""
    if isinstance(obj, str | bytes):
        obj = load_json(obj)
    mistakes: list[Mistake] = []
    record = build(Fields(obj, "", mistakes))
    refuse(mistakes, remedy=_REMEDY)
    return record


def _profile(fields: Fields, *, ours: bool) -> StepProfile:
    """Return a step profile."""
    names = (
        "steps",
        "avg_step_ms",
        "wall_coverage",
        "phases",
        "per_layer",
        "bottleneck",
        "gemm_pct",
        "total_ms",
    )
    phases = fields.objects_by_name("phases")
    has_device = fields.has("device")
    return StepProfile(
        steps=fields.count("steps", 0),
        avg_step_ms=fields.number("avg_step_ms", 0.0),
        wall_coverage=fields.number("wall_coverage", 0.0),
        phases={name: _phase(each, ours=ours) for name, each in phases.items()},
        per_layer=tuple(map(_layer, fields.objects("per_layer", optional=True))),
        bottleneck=fields.optional_text("bottleneck"),
        gemm_pct=fields.number("gemm_pct", 0.0),
        total_ms=fields.number("total_ms", 0.0),
        step_ms=fields.number_list("step_ms") if ours else (),
        device=_device(fields.record("device")) if ours and has_device else None,
        counters=fields.numbers("counters", optional=True) if ours else {},
        machine=fields.texts_by_name("machine") if ours else {},
        absent=frozenset(name for name in names if not fields.has(name)),
    )


def _labels(fields: Fields) -> dict[str, Any]:
    """Return where the numbers of hardware come from, as far as a file says."""
    found: dict[str, Any] = {}
    if fields.has("source"):
        found["source"] = fields.choice("source", _label, "declared")
    if fields.has("sources"):
        labels = fields.record("sources")
        found["sources"] = {
            name: labels.choice(name, _label, "declared")
            for name in _HARDWARE
            if labels.has(name)
        }
    return found


def _label(text: str) -> str:
    """Return a text that is a source's label."""
    return SourceLabel(text).value


def _of_ours(profile: StepProfile) -> dict[str, Any]:
    """Return what only pytest-gpuperf reads of a profile, as far as it is known."""
    device = profile.device
    found: dict[str, Any] = {
        "step_ms": list(profile.step_ms),
        "device": device and {name: getattr(device, name) for name in _DEVICE},
        "counters": dict(profile.counters),
        "machine": dict(profile.machine),
    }
    return {name: each for name, each in found.items() if each}


def _device(fields: Fields) -> DeviceTime:
    """Return what a device did in a step."""
    return DeviceTime(**{name: fields.number(name) for name in _DEVICE})


def _phase(fields: Fields, *, ours: bool) -> Phase:
    """Return a phase."""
    kind = ours and fields.has("kind")
    return Phase(
        total_ms=fields.number("total_ms"),
        pct=fields.number("pct"),
        avg_ms=fields.number("avg_ms"),
        kind=fields.choice("kind", SpanKind, SpanKind.OTHER) if kind else None,
        exclusive_ms=fields.optional_number("exclusive_ms") if ours else None,
    )


def _plain_phase(phase: Phase) -> dict[str, Any]:
    """Return a phase as builtins."""
    plain: dict[str, Any] = {
        "total_ms": phase.total_ms,
        "pct": phase.pct,
        "avg_ms": phase.avg_ms,
    }
    if phase.kind is not None:
        plain["kind"] = phase.kind.value
    if phase.exclusive_ms is not None:
        plain["exclusive_ms"] = phase.exclusive_ms
    return plain


def _layer(fields: Fields) -> Layer:
    """Return a layer."""
    return Layer(
        layer=fields.count("layer"),
        fwd_ms=fields.number("fwd_ms"),
        bwd_ms=fields.number("bwd_ms"),
        ops=fields.numbers("ops", optional=True),
    )


def _scorecard(fields: Fields) -> TrainingScorecard:
    """Return a scorecard."""
    return TrainingScorecard(
        grade=_grade(fields.text("grade")),
        efficiency=fields.number("efficiency"),
        bottleneck=fields.choice("bottleneck", Bottleneck, Bottleneck.MEMORY_BW),
        throughput_tok_s=fields.number("throughput_tok_s"),
        step_time_ms=fields.number("step_time_ms"),
        forward_backward_ratio=fields.number("forward_backward_ratio"),
        wall_coverage=fields.number("wall_coverage"),
        per_layer_summary=tuple(
            map(_layer_summary, fields.objects("per_layer_summary"))
        ),
        hotspot_ops=tuple(map(_hotspot, fields.entries("hotspot_ops", 3))),
        regressions=tuple(map(_regression, fields.objects("regressions"))),
        recommendations=tuple(
            Recommendation(text=text) for text in fields.texts("recommendations")
        ),
    )


def _layer_summary(fields: Fields) -> LayerSummary:
    """Return a layer in short."""
    return LayerSummary(
        layer=fields.count("layer"),
        fwd_ms=fields.number("fwd_ms"),
        bwd_ms=fields.number("bwd_ms"),
        ratio=fields.number("ratio"),
        top_op=fields.text("top_op"),
        top_op_pct=fields.number("top_op_pct"),
    )


def _hotspot(fields: Fields) -> Hotspot:
    """Return an operation; the file has it as a list of name, time and share."""
    return Hotspot(name=fields.text("0"), ms=fields.number("1"), pct=fields.number("2"))


def _regression(fields: Fields) -> ScorecardRegression:
    """Return what got worse."""
    return ScorecardRegression(
        metric=fields.text("metric"),
        delta=fields.number("delta"),
        severity=fields.text("severity"),
    )


def _grade(text: str) -> Grade | str:
    """Return a grade, or the text that is none."""
    return Grade(text) if text in Grade.__members__ else text
