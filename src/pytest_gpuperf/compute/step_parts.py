"""The phases, layers and operations of a measured loop.

Time is counted once: a phase's own time leaves out the phases inside it, an operation's
the operations inside it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from math import fsum

from pytest_gpuperf.compute import stats
from pytest_gpuperf.model.step_summary import LayerTimes, OperationTimes, PhaseTimes
from pytest_gpuperf.model.steps import Level, Span, SpanKind, Step

__all__ = ["layers_of", "operations_of", "phases_of"]

_P95 = 0.95
_Place = tuple[str, bool]  # a phase's name, and whether it is beside the steps
_Key = tuple[int | None, str]  # an operation's layer and name


def phases_of(counted: Sequence[Step]) -> tuple[PhaseTimes, ...]:
    """
    Return the phases of some steps, the longest own time first.

    Args:
        counted: The steps that count, >= 1 of them.
    """
    own: dict[_Place, float] = defaultdict(float)
    calls: Counter[_Place] = Counter()
    kinds: dict[_Place, SpanKind] = {}
    totals: dict[_Place, list[float]] = defaultdict(lambda: [0.0] * len(counted))
    for index, step in enumerate(counted):
        for span, outer in _nested(step.spans, Level.PHASE):
            key = _place(span)
            calls[key] += 1
            kinds.setdefault(key, span.kind)
            own[key] += span.duration_s
            if outer:
                own[_place(outer[0])] -= span.duration_s
            if all(each.name != span.name for each in outer):
                totals[key][index] += span.duration_s
    found = [
        PhaseTimes(
            name=key[0],
            kind=kind,
            own_s=max(0.0, own[key]) / len(counted),
            total_s=fsum(totals[key]) / len(counted),
            p50_s=stats.median(totals[key]),
            p95_s=stats.quantile(totals[key], _P95),
            calls_count=calls[key],
            beside=key[1],
        )
        for key, kind in kinds.items()
    ]
    return tuple(sorted(found, key=lambda p: (p.beside, -p.own_s, p.name)))


def operations_of(counted: Sequence[Step]) -> tuple[OperationTimes, ...]:
    """
    Return the operations of some steps, the longest own time first.

    Args:
        counted: The steps that count, >= 1 of them.
    """
    own: dict[_Key, float] = defaultdict(float)
    calls: Counter[_Key] = Counter()
    for step in counted:
        for span, outer in _nested(step.spans, Level.OPERATION):
            calls[span.layer, span.name] += 1
            own[span.layer, span.name] += span.duration_s
            if outer:
                own[outer[0].layer, outer[0].name] -= span.duration_s
    found = [
        OperationTimes(
            name=name,
            layer=layer,
            own_s=max(0.0, own[layer, name]) / len(counted),
            calls_count=count,
        )
        for (layer, name), count in calls.items()
    ]
    found.sort(key=lambda op: (op.name, op.layer is None, op.layer or 0))
    return tuple(sorted(found, key=lambda op: -op.own_s))


def layers_of(counted: Sequence[Step]) -> tuple[LayerTimes, ...]:
    """
    Return the layers of some steps, by number.

    Args:
        counted: The steps that count, >= 1 of them.
    """
    passes: dict[tuple[int, bool], float] = defaultdict(float)
    for step in counted:
        for span in step.spans:
            if span.level is Level.LAYER and span.layer is not None:
                passes[span.layer, span.kind is SpanKind.BACKWARD] += span.duration_s
    return tuple(
        LayerTimes(
            layer=layer,
            forward_s=passes[layer, False] / len(counted),
            backward_s=passes[layer, True] / len(counted),
        )
        for layer in sorted({layer for layer, _ in passes})
    )


def _nested(
    spans: Sequence[Span], level: Level
) -> Iterator[tuple[Span, tuple[Span, ...]]]:
    """Yield the spans of a level, each with those of it around it, innermost first."""
    around: list[tuple[Span, ...]] = []
    for span in spans:
        outer: tuple[Span, ...] = ()
        if span.parent is not None:
            parent = spans[span.parent]
            above = around[span.parent]
            outer = (parent, *above) if parent.level is level else above
        around.append(outer)
        if span.level is level:
            yield span, outer


def _place(span: Span) -> _Place:
    """Return what a phase is counted under."""
    return span.name, span.thread != 0
