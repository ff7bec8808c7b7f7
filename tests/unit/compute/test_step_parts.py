"""compute.step_parts: phases, operations and layers of the mean step, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_gpuperf.compute.steps import layers_of, operations_of, phases_of
from pytest_gpuperf.model.steps import (
    LayerTimes,
    OperationTimes,
    Span,
    SpanKind,
    SpanLevel,
    Step,
)


def span(
    name: str, start_s: float, end_s: float, parent: int | None = None, **more: Any
) -> Span:
    given = {"level": SpanLevel.PHASE, "kind": SpanKind.OTHER, **more}
    return Span(name=name, start_s=start_s, end_s=end_s, parent=parent, **given)


def operation(
    name: str, start_s: float, end_s: float, parent: int | None = None, **more: Any
) -> Span:
    return span(name, start_s, end_s, parent, level=SpanLevel.OPERATION, **more)


def step(*spans: Span) -> Step:
    return Step(index=0, begin_s=0.0, start_s=0.0, end_s=1.0, spans=spans)


def test_the_phases_of_two_steps_by_hand() -> None:
    """Their time in a mean step, the largest own one first, those beside last."""
    backward, reduce = SpanKind.BACKWARD, SpanKind.COMMUNICATION
    first = step(
        span("reduce", 0.0, 0.5, kind=reduce, thread=1),
        span("loss", 0.5, 0.625),
        span("backward", 0.0, 0.5, kind=backward),
        span("reduce", 0.0, 0.125, 2, kind=reduce),
        span("reduce", 0.25, 0.3125, 2, kind=reduce),
    )
    second = step(span("backward", 0.0, 0.25, kind=backward), span("clip", 0.5, 0.625))

    found = phases_of([first, second])

    assert [(p.name, p.kind, p.calls_count, p.beside) for p in found] == [
        ("backward", backward, 2, False),
        ("reduce", reduce, 2, False),
        ("clip", SpanKind.OTHER, 1, False),
        ("loss", SpanKind.OTHER, 1, False),
        ("reduce", reduce, 1, True),
    ]
    lost = 0.125 + 0.0625  # to what is nested in it
    times = [  # own, whole, median and 95th percentile
        ((0.5 - lost + 0.25) / 2, 0.375, 0.375, 0.25 + 0.95 * 0.25),
        (lost / 2, lost / 2, lost / 2, 0.95 * lost),
        *((0.0625, 0.0625, 0.0625, 0.95 * 0.125),) * 2,
        (0.25, 0.25, 0.25, 0.95 * 0.5),
    ]
    for phase, expected in zip(found, times, strict=True):
        assert (
            phase.own_s,
            phase.total_s,
            phase.p50_s,
            phase.p95_s,
        ) == pytest.approx(expected)


def test_a_phase_inside_an_operation_is_inside_the_phase_around_it() -> None:
    """What is not of its level is looked through; the innermost loses the time."""
    found = phases_of(
        [
            step(
                span("backward", 0.0, 1.0),
                span("bucket", 0.25, 1.0, 0),
                operation("hook", 0.5, 1.0, 1),
                span("reduce", 0.5, 0.75, 2),
            )
        ]
    )

    assert {phase.name: phase.own_s for phase in found} == {
        "backward": 0.25,
        "bucket": 0.5,
        "reduce": 0.25,
    }


def test_a_phase_inside_more_than_itself_owns_nothing() -> None:
    """Clocks that overlap take no time below zero."""
    (outer, *_) = phases_of(
        [step(span("a", 0.0, 0.5), span("b", 0.0, 0.5, 0), span("b", 0.25, 0.5, 0))]
    )[::-1]

    assert (outer.name, outer.own_s) == ("a", 0.0)


def test_the_operations_of_two_steps_by_hand() -> None:
    """Each by its layer: an operation inside another one takes its time from it."""
    first = step(
        operation("softmax", 0.0, 0.125, layer=0),
        operation("attention", 0.0, 0.75, layer=1),
        operation("matmul", 0.0, 0.25, 1, layer=2),
        operation("copy", 0.0, 0.0625, 2, layer=3),
        operation("matmul", 0.5, 0.625, 1, layer=2),
    )
    second = step(operation("attention", 0.0, 0.5, layer=1))

    assert operations_of([first, second]) == (
        OperationTimes(
            name="attention", layer=1, own_s=(0.75 - 0.375 + 0.5) / 2, calls_count=2
        ),
        OperationTimes(
            name="matmul", layer=2, own_s=(0.375 - 0.0625) / 2, calls_count=2
        ),
        OperationTimes(name="softmax", layer=0, own_s=0.0625, calls_count=1),
        OperationTimes(name="copy", layer=3, own_s=0.03125, calls_count=1),
    )


def test_equal_operations_stand_by_name_and_layer() -> None:
    """One that is of no layer stands behind those that are."""
    places = [("b", 0), ("a", None), ("a", 2), ("a", 1), ("a", 0)]
    found = operations_of(
        [step(*(operation(name, 0.0, 1.0, layer=layer) for name, layer in places))]
    )

    assert [(each.name, each.layer) for each in found] == [
        ("a", 0),
        ("a", 1),
        ("a", 2),
        ("a", None),
        ("b", 0),
    ]


def test_the_layers_of_two_steps_by_hand() -> None:
    """Passes of one step add up; what is not a layer, or has no number, is none."""
    forward: dict[str, Any] = {"level": SpanLevel.LAYER, "kind": SpanKind.FORWARD}
    backward: dict[str, Any] = {"level": SpanLevel.LAYER, "kind": SpanKind.BACKWARD}
    first = step(
        span("block", 0.0, 0.25, layer=4, **forward),
        span("block", 0.25, 0.375, layer=4, **forward),
        span("block", 0.5, 1.0, layer=4, **backward),
        span("block", 0.0, 0.5, layer=1, **backward),
        span("norm", 0.0, 0.5, **forward),
        operation("gemm", 0.0, 0.5, layer=9),
    )
    second = step(span("block", 0.0, 0.5, layer=4, **backward))

    assert layers_of([first, second]) == (
        LayerTimes(layer=1, forward_s=0.0, backward_s=0.25),
        LayerTimes(layer=4, forward_s=0.1875, backward_s=0.5),
    )
