"""The tables of a measured loop: phases, layers, operations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import fsum

from pytest_gpuperf.model.step_summary import LayerTimes, OperationTimes, StepSummary
from pytest_gpuperf.report import display
from pytest_gpuperf.report.lines import Column

__all__ = ["step_tables"]

_MOST_LAYERS = 8  # more of them hide the slow ones; the JSON report has all
_MOST_OPERATIONS = 10

_Spelled = Callable[[str], str]
_Rows = list[tuple[str, ...]]


def step_tables(steps: StepSummary, spelled: _Spelled) -> Iterator[tuple[Column, ...]]:
    """
    Yield the tables of a loop, those without rows left out.

    Args:
        steps: The loop.

        spelled: Makes a name of the test's own safe to print.
    """
    if steps.phases:
        heads: tuple[str, ...] = (
            "phase",
            "kind",
            "own time",
            "share",
            "with its parts",
            "p95",
            "calls",
        )
        yield _table(heads, _phases(steps, spelled))
    if steps.layers:
        heads = ("layer", "forward", "backward", "longest operation")
        yield _table(heads, _layers(steps, spelled))
    if steps.operations:
        heads = ("operation", "own time", "share", "calls")
        yield _table(heads, _operations(steps, spelled))


def _phases(steps: StepSummary, spelled: _Spelled) -> _Rows:
    """Return the rows of the phases, and of the time in none of them."""
    found: _Rows = [
        (
            spelled(phase.name) + (" (beside the steps)" if phase.beside else ""),
            phase.kind.value,
            display.value(phase.own_s, "s"),
            _share(phase.own_s, steps),
            display.value(phase.total_s, "s"),
            display.value(phase.p95_s, "s"),
            str(phase.calls_count),
        )
        for phase in steps.phases
    ]
    own_s = fsum(phase.own_s for phase in steps.phases if not phase.beside)
    rest_s = max(0.0, steps.period_s - own_s)
    rest = ("in no phase", "", display.value(rest_s, "s"), _share(rest_s, steps))
    return [*found, (*rest, "", "", "")]


def _layers(steps: StepSummary, spelled: _Spelled) -> _Rows:
    """Return the rows of the slowest layers, and how many are left out."""
    slow = sorted(steps.layers, key=lambda each: (-_both(each), each.layer))
    shown = sorted(slow[:_MOST_LAYERS], key=lambda each: each.layer)
    found: _Rows = [
        (
            str(layer.layer),
            display.value(layer.forward_s, "s"),
            display.value(layer.backward_s, "s"),
            _longest(steps.operations, layer.layer, spelled),
        )
        for layer in shown
    ]
    rest = slow[_MOST_LAYERS:]
    if rest:
        forward_s = fsum(layer.forward_s for layer in rest)
        backward_s = fsum(layer.backward_s for layer in rest)
        found.append(
            (
                f"{len(rest)} others",
                display.value(forward_s, "s"),
                display.value(backward_s, "s"),
                "",
            )
        )
    return found


def _operations(steps: StepSummary, spelled: _Spelled) -> _Rows:
    """Return the rows of the longest operations over all layers, and of the others."""
    times: dict[str, float] = {}
    calls: dict[str, int] = {}
    for each in steps.operations:
        times[each.name] = times.get(each.name, 0.0) + each.own_s
        calls[each.name] = calls.get(each.name, 0) + each.calls_count
    order = sorted(times, key=lambda name: (-times[name], name))
    found: _Rows = [
        (
            spelled(name),
            display.value(times[name], "s"),
            _share(times[name], steps),
            str(calls[name]),
        )
        for name in order[:_MOST_OPERATIONS]
    ]
    rest = order[_MOST_OPERATIONS:]
    if rest:
        rest_s = fsum(times[name] for name in rest)
        count = sum(calls[name] for name in rest)
        text = display.value(rest_s, "s")
        found.append((f"{len(rest)} others", text, _share(rest_s, steps), str(count)))
    return found


def _table(heads: Sequence[str], found: _Rows) -> tuple[Column, ...]:
    """Return rows as columns; the first may be shortened, the last ones dropped."""
    columns = zip(*found, strict=True)
    return tuple(
        Column(head=head, cells=cells, shrinks=place == 0, rank=max(0, place - 3))
        for place, (head, cells) in enumerate(zip(heads, columns, strict=True))
    )


def _longest(
    operations: Sequence[OperationTimes], layer: int, spelled: _Spelled
) -> str:
    """Return a layer's longest operation, with its time."""
    own = next((each for each in operations if each.layer == layer), None)
    return "" if own is None else f"{spelled(own.name)} {display.value(own.own_s, 's')}"


def _both(layer: LayerTimes) -> float:
    """Return the time of both passes of a layer [s]."""
    return layer.forward_s + layer.backward_s


def _share(part_s: float, steps: StepSummary) -> str:
    """Return a share of a step's period."""
    return display.value(part_s / steps.period_s, "fraction", digits=2)
