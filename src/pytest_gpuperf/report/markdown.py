"""A run as Markdown, for a comment or a job's summary: what fails comes first."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

from pytest_gpuperf.judge.tally import PRECEDENCE
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.record import RecordKey
from pytest_gpuperf.model.run import Run
from pytest_gpuperf.report import display
from pytest_gpuperf.report.escape import prose
from pytest_gpuperf.report.lines import Column, Line, markdown_table
from pytest_gpuperf.report.rows import (
    Row,
    by_group,
    columns,
    names,
    rows,
    utilization_lines,
)
from pytest_gpuperf.report.steps import run_steps_markdown
from pytest_gpuperf.report.terminal import explanation_blocks, judged_line, title

__all__ = ["run_markdown"]

_MOST_BYTES = 65_536  # of a comment on GitHub; a job's summary may have a megabyte
_MORE_BYTES = 200  # room for what says how much is left out
_LEAST_ROW_BYTES = 40  # of a row of a table: a longer table is cut before it is made
_SHARE = 0.5  # of the room that is left: what a part may take from those below it
_FEW_ROWS = 10  # that need no attention: more are folded away
_HEAD = ("heads", "rule")  # lines above the rows of a table
_UNWRAPPED = 10_000  # characters: a block of code is not wrapped


def run_markdown(
    run: Run, *, commands: bool = True, most_bytes: int = _MOST_BYTES
) -> str:
    """
    Return a run as Markdown: how many tests were judged, what needs attention, the rest.

    Args:
        run: The run, judged.

        commands: Whether it says how to reproduce and accept what it shows.

        most_bytes: Its largest size [B, UTF-8]; each part says how many more there are.
    """
    table = rows(run)
    called = names(row.key for row in table)
    codes = {key: display.code(name) for key, name in called.items()}
    loud = [row for row in table if row.needs_attention]
    quiet = [row for row in table if not row.needs_attention]
    if len(quiet) <= _FEW_ROWS:
        loud, quiet = [*loud, *quiet], []
    loud.sort(key=_rank)
    paper = _Paper(most_bytes)
    paper.add(f"### {prose(title(run, width=_UNWRAPPED))}", "")
    paper.add(prose(judged_line(run).text), "")
    paper.add_tables(loud, codes)
    paper.add_blocks(
        explanation_blocks(run, called, commands=commands, width=_UNWRAPPED)
    )
    paper.add_notes(_notes(loud, codes))
    for text in run_steps_markdown(run):
        paper.add_whole(text)
    if quiet:
        count = display.plural(len(quiet), "measurement")
        paper.add(f"<details><summary>{count} passed or unchanged</summary>", "")
        paper.add_tables(quiet, codes, share=1.0)
        paper.add("</details>", "")
    return paper.text


class _Paper:
    """
    Lines that together stay within a size.

    Args:
        most_bytes: The size [B, UTF-8].
    """

    def __init__(self, most_bytes: int) -> None:
        self._lines: list[str] = []
        self._left_bytes = most_bytes - _MORE_BYTES

    @property
    def text(self) -> str:
        """All that was written."""
        return "\n".join(self._lines)

    def add(self, *lines: str) -> None:
        """Write lines, whatever their size."""
        self._lines += lines
        self._left_bytes -= sum(map(_size, lines))

    def add_whole(self, text: str) -> None:
        """Write a text if there is room for all of it."""
        if _size(text) <= self._left_bytes:
            self.add(text)

    def add_tables(
        self,
        table: Sequence[Row],
        codes: Mapping[RecordKey, str],
        *,
        share: float = _SHARE,
    ) -> None:
        """Write rows below the headings of their groups, in a share of the room."""
        least = max(0.0, self._left_bytes * (1 - share))
        shown_count = 0
        for group, members in by_group(table):
            room = self._left_bytes - least
            lines = _table(members[: int(max(0.0, room) / _LEAST_ROW_BYTES)], codes)
            heading = [f"#### {prose(group)}", ""] if group else []
            count = _fitting([*heading, *lines], room)
            if count < len(heading) + len(_HEAD) + 1:
                break
            self.add(*[*heading, *lines][:count], "")
            shown_count += count - len(heading) - len(_HEAD)
        self._add_more(len(table) - shown_count, "measurement")

    def add_notes(self, notes: Sequence[str]) -> None:
        """Write notes in a share of the room."""
        count = _fitting(notes, self._left_bytes * _SHARE)
        if count:
            self.add(*notes[:count], "")
        self._add_more(len(notes) - count, "note")

    def add_blocks(self, blocks: Sequence[Iterable[Line]]) -> None:
        """Write blocks of lines as code in a share of the room."""
        room = self._left_bytes * _SHARE
        texts: list[str] = []
        for block in blocks:
            text = "\n".join(line.text for line in block)
            room -= _size(text)
            if room < 0:
                break
            texts.append(text)
        if texts:
            self.add(*_fenced(texts), "")
        self._add_more(len(blocks) - len(texts), "explanation")

    def _add_more(self, count: int, noun: str) -> None:
        """Say how many of a part were left out."""
        if count:
            self.add(f"*{display.plural(count, f'more {noun}')}*", "")


def _size(text: str) -> int:
    """Return the size of a line with its break [B]."""
    return len(text.encode(errors="replace")) + 1


def _fitting(lines: Iterable[str], room_bytes: float) -> int:
    """Return how many of some lines there is room for."""
    sizes = itertools.accumulate(map(_size, lines))
    return sum(1 for _ in itertools.takewhile(lambda size: size <= room_bytes, sizes))


def _rank(row: Row) -> int:
    """Return where a row stands: failures first, then what speaks first of a test."""
    if row.outcome is None:
        return len(PRECEDENCE)
    return PRECEDENCE.index(row.outcome) + (not row.is_loud)


def _table(table: Sequence[Row], codes: Mapping[RecordKey, str]) -> list[str]:
    """Return a table, names as code."""
    shown = [_marked(column, table) for column in columns(table, codes)]
    measured = ("" if row.time else prose(", ".join(row.measured())) for row in table)
    return [*markdown_table([*shown, Column(head="measured", cells=tuple(measured))])]


def _notes(table: Iterable[Row], codes: Mapping[RecordKey, str]) -> list[str]:
    """Return what the table has no column for: doubts and utilization."""
    return [
        f"- {codes[row.key]}: {prose(text)}"
        for row in table
        for text in (*row.doubts(), *utilization_lines(row.utilization))
    ]


def _marked(column: Column, table: Sequence[Row]) -> Column:
    """Return a column as Markdown; a verdict that fails is bold."""
    if column.head == "test":
        return replace(column, shrinks=False)
    if column.head != "verdict":
        return replace(column, cells=tuple(prose(cell) for cell in column.cells))
    bold = (
        f"**{cell}**" if row.is_loud else cell
        for row, cell in zip(table, column.cells, strict=True)
    )
    return replace(column, cells=tuple(bold))


def _fenced(texts: Sequence[str]) -> list[str]:
    """Return texts as a block of code that none of them can end."""
    fence = "```"
    while any(fence in text for text in texts):
        fence += "`"
    return [f"{fence}text", *texts, fence]
