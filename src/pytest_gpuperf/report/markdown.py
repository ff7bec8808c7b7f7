"""A run as Markdown, for a pull request or a job summary."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.record import RecordKey
from pytest_gpuperf.model.run import Run
from pytest_gpuperf.report import display
from pytest_gpuperf.report.captures import capture_markdown
from pytest_gpuperf.report.escape import prose
from pytest_gpuperf.report.lines import Column, markdown_table
from pytest_gpuperf.report.rows import (
    Row,
    columns,
    names,
    rows,
    utilization_lines,
)
from pytest_gpuperf.report.steps import run_steps_markdown
from pytest_gpuperf.report.terminal import (
    explanation_lines,
    judged_line,
    title,
)

__all__ = ["capture_markdown", "run_markdown"]

_WIDE = 10_000  # a block of code is not wrapped


def run_markdown(run: Run, *, commands: bool = True) -> str:
    """
    Return a run as Markdown: how much was judged, the table, the explanations.

    Below the table stands what GPUs were busy with, and what makes a value doubtful.

    Args:
        run: The run, judged.

        commands: Whether it says how to reproduce and accept what it shows.
    """
    lines = [
        f"### {prose(title(run, width=_WIDE))}",
        "",
        prose(judged_line(run).text),
        "",
    ]
    every = rows(run)
    safe = {
        key: display.code(name) for key, name in names(e.key for e in every).items()
    }
    lines += [*_table(every, safe), "", *_below(every, safe)]
    lines += run_steps_markdown(run)
    blocks = explanation_lines(run, commands=commands, width=_WIDE)
    texts = [line.text for line in blocks]
    if texts:
        lines += [*_fenced(texts), ""]
    return "\n".join(lines)


def _table(every: tuple[Row, ...], called: Mapping[RecordKey, str]) -> list[str]:
    """Return the table, names as code."""
    table = [_marked(each, every) for each in columns(every, called)]
    others = ("" if row.time else prose(", ".join(row.others())) for row in every)
    return list(markdown_table([*table, Column(head="measured", cells=tuple(others))]))


def _below(every: tuple[Row, ...], called: Mapping[RecordKey, str]) -> list[str]:
    """Return what the table has no column for: doubts, and what GPUs were busy with."""
    lines = [
        f"- {called[row.key]}: {prose(text)}"
        for row in every
        for text in (*row.doubts(), *utilization_lines(row.utilization))
    ]
    return [*lines, ""] if lines else []


def _marked(column: Column, every: tuple[Row, ...]) -> Column:
    """Return a column as Markdown; a verdict that fails is bold, a measured text code."""
    if column.head == "test":
        return replace(column, shrinks=False)
    if column.head != "verdict":
        return replace(column, cells=tuple(prose(cell) for cell in column.cells))
    bold = (
        f"**{cell}**" if row.is_loud else cell
        for row, cell in zip(every, column.cells, strict=True)
    )
    return replace(column, cells=tuple(bold))


def _fenced(texts: list[str]) -> list[str]:
    """Return lines as a block of code that none of them can end."""
    fence = "```"
    while any(fence in text for text in texts):
        fence += "`"
    return [f"{fence}text", *texts, fence]
