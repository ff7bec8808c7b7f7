"""The steps of a loop: measured facts and tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import fsum

from pytest_gpuperf.model.record import Record, Role
from pytest_gpuperf.model.run import Run
from pytest_gpuperf.model.sample import Estimate, SourceLabel
from pytest_gpuperf.model.steps import Compiled, StepSummary
from pytest_gpuperf.report import display
from pytest_gpuperf.report.escape import code, escape, prose
from pytest_gpuperf.report.lines import (
    Column,
    Line,
    Style,
    column,
    markdown_table,
    text_table,
    wrapped,
)
from pytest_gpuperf.report.rows import names, rows

# More layers hide the slow ones. The JSON report has all layers.
_MOST_LAYERS = 8
_MOST_OPERATIONS = 10

_Spelled = Callable[[str], str]
_Rows = list[tuple[str, ...]]


def step_tables(steps: StepSummary, spelled: _Spelled) -> Iterator[tuple[Column, ...]]:
    """
    Yield the tables of a loop, without empty tables.

    Args:
        steps: The loop.

        spelled: Escapes a name that comes from the test.
    """
    if steps.phases:
        heads: tuple[str, ...] = (
            "phase",
            "kind",
            "self time",
            "share",
            "total time",
            "p95",
            "calls",
        )
        yield _table(heads, _phases(steps, spelled))
    if steps.layers:
        heads = ("layer", "forward", "backward", "longest operation")
        yield _table(heads, _layers(steps, spelled))
    if steps.operations:
        heads = ("operation", "self time", "share", "calls")
        yield _table(heads, _operations(steps, spelled))


def _phases(steps: StepSummary, spelled: _Spelled) -> _Rows:
    table: _Rows = [
        (
            spelled(phase.name) + (" (in another thread)" if phase.beside else ""),
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
    return [*table, (*rest, "", "", "")]


def _layers(steps: StepSummary, spelled: _Spelled) -> _Rows:
    slow = sorted(
        steps.layers,
        key=lambda layer: (-(layer.forward_s + layer.backward_s), layer.layer),
    )
    shown = sorted(slow[:_MOST_LAYERS], key=lambda layer: layer.layer)
    table: _Rows = []
    for layer in shown:
        longest = next((o for o in steps.operations if o.layer == layer.layer), None)
        table.append(
            (
                str(layer.layer),
                display.value(layer.forward_s, "s"),
                display.value(layer.backward_s, "s"),
                ""
                if longest is None
                else f"{spelled(longest.name)} {display.value(longest.own_s, 's')}",
            )
        )
    rest = slow[_MOST_LAYERS:]
    if rest:
        forward_s = fsum(layer.forward_s for layer in rest)
        backward_s = fsum(layer.backward_s for layer in rest)
        table.append(
            (
                f"{len(rest)} others",
                display.value(forward_s, "s"),
                display.value(backward_s, "s"),
                "",
            )
        )
    return table


def _operations(steps: StepSummary, spelled: _Spelled) -> _Rows:
    times: dict[str, float] = {}
    calls: dict[str, int] = {}
    for operation in steps.operations:
        times[operation.name] = times.get(operation.name, 0.0) + operation.own_s
        calls[operation.name] = calls.get(operation.name, 0) + operation.calls_count
    order = sorted(times, key=lambda name: (-times[name], name))
    table: _Rows = [
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
        table.append((f"{len(rest)} others", text, _share(rest_s, steps), str(count)))
    return table


def _table(heads: Sequence[str], lines: _Rows) -> tuple[Column, ...]:
    """Return rows as columns. The first column may be shortened, the last columns dropped."""
    columns = zip(*lines, strict=True)
    return tuple(
        Column(head=head, cells=cells, shrinks=place == 0, rank=max(0, place - 3))
        for place, (head, cells) in enumerate(zip(heads, columns, strict=True))
    )


def _share(part_s: float, steps: StepSummary) -> str:
    return display.value(part_s / steps.period_s, "fraction", digits=2)


_INDENT = "    "
_GAP = "  "
_WIDTH = 100
# More blocks push the verdicts out of sight.
_MOST_BLOCKS = 5
# Metrics listed as not measured if missing, with their display names.
_EXPECTED = {
    "mfu": "MFU",
    "time.idle_fraction": "idle share",
    "compile.count": "recompiles",
    "comm.exposed_time": "exposed communication",
    "memory.peak_bytes": "peak memory",
}


def run_steps_lines(
    run: Run, *, width: int = _WIDTH, verbose: bool = False
) -> Iterator[Line]:
    """
    Yield a block per loop that the main processes of a run measured.

    Args:
        run: The run.

        width: Characters of a line.

        verbose: Whether many loops get a block each, and not only a line.
    """
    loops = _loops(run)
    for called, record in loops:
        if verbose or len(loops) <= _MOST_BLOCKS:
            yield from steps_lines(record, called=called, width=width)
        else:
            facts = dict(step_facts(record))
            heading = _heading(record.steps, called) if record.steps else called
            shown = [facts[label] for label in ("throughput", "step") if label in facts]
            yield from wrapped("; ".join([heading, *shown]), width=width)
    if not verbose and len(loops) > _MOST_BLOCKS:
        text = "show phases, layers and operations of each loop with -v"
        yield Line(text, Style.FAINT)


def run_steps_markdown(run: Run) -> Iterator[str]:
    """Yield a Markdown text per loop that the main processes of a run measured."""
    for called, record in _loops(run):
        yield steps_markdown(record, called=code(called))


def steps_lines(
    record: Record, *, called: str = "", width: int = _WIDTH
) -> Iterator[Line]:
    """
    Yield a loop as terminal text, or nothing if no step counts.

    Args:
        record: The loop's record.

        called: The escaped name of the loop, or "" to omit the name.

        width: Characters of a line.
    """
    if record.steps is None:
        return
    yield Line(_heading(record.steps, called), Style.TITLE)
    facts = step_facts(record)
    left = max((len(label) for label, _ in facts), default=0) + len(_GAP)
    for label, text in facts:
        room = width - len(_INDENT) - left
        for place, part in enumerate(wrapped(text, width=room)):
            yield Line(f"{_INDENT}{'' if place else label:{left}}{part.text}")
    texts = [f"{name} ({escape(reason)})" for name, reason in _missing(record)]
    if texts:
        text = f"not measured: {', '.join(texts)}"
        yield from wrapped(text, width=width, depth=1, style=Style.FAINT)
    for note in record.notes:
        text = f"note: {escape(note.text)}"
        yield from wrapped(text, width=width, depth=1, style=Style.FAINT)
    for table in step_tables(record.steps, escape):
        for place, text in enumerate(text_table(table, width=width - len(_INDENT))):
            yield Line(_INDENT + text, Style.PLAIN if place else Style.FAINT)


def steps_markdown(record: Record, *, called: str = "") -> str:
    """
    Return a loop as Markdown, or "" if no step counts.

    Args:
        record: The loop's record.

        called: The name of the loop as Markdown, or "" to omit the name.
    """
    if record.steps is None:
        return ""
    lines = [f"#### {_heading(record.steps, called, spelled=code)}", ""]
    facts = step_facts(record, spelled=code)
    table = (
        column("measured", (label for label, _ in facts)),
        column("value", (text for _, text in facts)),
    )
    lines += [*markdown_table(table), ""]
    for columns in step_tables(record.steps, code):
        lines += [*markdown_table(columns), ""]
    items = [f"- {name}: {prose(reason)}" for name, reason in _missing(record)]
    if items:
        lines += ["not measured:", "", *items, ""]
    for note in record.notes:
        lines += [prose(f"note: {note.text}"), ""]
    return "\n".join(lines)


def _loops(run: Run) -> list[tuple[str, Record]]:
    called = names(row.key for row in rows(run))
    return [
        (called[record.key], record)
        for record in run.records
        if record.steps is not None and record.role is Role.MAIN
    ]


def _heading(
    steps: StepSummary, called: str, *, spelled: Callable[[str], str] = escape
) -> str:
    aside = [f"{steps.warmup_count} warm-up"] if steps.warmup_count else []
    aside += [f"{steps.void_count} void"] if steps.void_count else []
    counted = f"{steps.counted_count} of {display.plural(steps.step_count, 'step')}"
    counted += f" counted ({', '.join(aside)})" if aside else " counted"
    work = f"{display.exactly(steps.units, 'count')} {spelled(steps.unit)} a step"
    head = f"{called}: {counted}" if called else counted
    return head if steps.unit == "step" and steps.units == 1 else f"{head}, {work}"


def step_facts(
    record: Record, *, spelled: Callable[[str], str] = escape
) -> list[tuple[str, str]]:
    """Return the facts of a loop, as labels and values."""
    steps = record.steps
    if steps is None:
        return []
    throughput = waiting = exposed = coverage = grade = ""
    estimates = {e.metric: e for e in record.estimates}
    rate, wait = estimates.get("throughput"), estimates.get("data.wait_fraction")
    if rate is not None:
        number = display.value(rate.value, "/s").removesuffix("/s")  # Keeps the space.
        throughput = f"{number}{spelled(steps.unit)}/s {display.spread(rate)}".rstrip()
    if wait is not None:
        share = display.value(wait.value, "fraction")
        waiting = f"{share}, {display.value(steps.wait_s, 's')} a step"
        if not steps.data_was_recorded:
            waiting += " (all time between steps)"
    if steps.exposed_s is not None:
        share = display.value(steps.exposed_s / steps.period_s, "fraction")
        exposed = f"{display.value(steps.exposed_s, 's')} a step, {share}"
    if steps.covered_fraction is not None:
        share = display.value(steps.covered_fraction, "fraction")
        coverage = f"{share} of the time is in spans"
    if steps.grade is not None and steps.efficiency_fraction is not None:
        share = display.value(steps.efficiency_fraction, "fraction")
        bound = f"training scorecard: {share} of the bandwidth bound"
        grade = f"{steps.grade} ({bound})"
    facts = [
        ("throughput", throughput),
        ("MFU", _labelled(estimates.get("mfu"))),
        ("step", _step_times(estimates)),
        ("data wait", waiting),
        ("recompiles", _compilations(steps)),
        ("exposed communication", exposed),
        ("peak memory", _labelled(estimates.get("memory.peak_bytes"))),
        ("coverage", coverage),
        ("grade", grade),
        ("void", escape(record.void.text) if record.void else ""),
    ]
    return [(label, text) for label, text in facts if text]


def _labelled(estimate: Estimate | None) -> str:
    if estimate is None:
        return ""
    text = display.value(estimate.value, estimate.unit)
    measured = estimate.label in {SourceLabel.MEASURED, SourceLabel.DETECTED}
    return text if measured else f"{text} ({estimate.label.value})"


def _step_times(estimates: dict[str, Estimate]) -> str:
    times = {"time": "p50", "time.p95": "p95", "time.first_call": "first"}
    texts = []
    for metric, name in times.items():
        estimate = estimates.get(metric)
        if estimate is not None:
            spread = display.spread(estimate)
            number = display.value(estimate.value, "s")
            texts.append(" ".join(filter(None, (name, number, spread))))
    return ", ".join(texts)


def _compilations(steps: StepSummary) -> str:
    if steps.compiled is None:
        return ""
    text = _compiled(steps.compiled)
    if steps.recompiled_steps:
        first = ", ".join(str(index) for index in steps.recompiled_steps[:5])
        more = ", …" if len(steps.recompiled_steps) > 5 else ""  # noqa: PLR2004 - as many as are named
        word = "step" if len(steps.recompiled_steps) == 1 else "steps"
        text += f" in {word} {first}{more}"
    if steps.warmup_compiled is not None and steps.warmup_compiled.count:
        text += f"; {_compiled(steps.warmup_compiled)} in the warm-up"
    return text


def _compiled(compiled: Compiled) -> str:
    text = str(compiled.count)
    if compiled.graph_breaks_count:
        text += f" with {display.plural(compiled.graph_breaks_count, 'graph break')}"
    if compiled.count and compiled.time_s is not None:
        text += f", {display.value(compiled.time_s, 's')}"
    return text


def _missing(record: Record) -> Iterator[tuple[str, str]]:
    gaps = {gap.metric: gap.reason for gap in record.unmeasured}
    for metric, name in _EXPECTED.items():
        if metric in gaps:
            yield name, gaps[metric]
    if record.steps is not None and record.steps.grade is None:
        yield "grade", "it needs hardware=Hardware(…)"
