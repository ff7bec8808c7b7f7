"""Lines, tables and sheets of text."""

from __future__ import annotations

import json
import re
import shutil
import textwrap
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum

from msgspec.structs import force_setattr

from pytest_gpuperf.model.frozen import Frozen, replace
from pytest_gpuperf.model.verdict import Outcome
from pytest_gpuperf.report.escape import code, escape, inert, prose

__all__ = [
    "INDENT",
    "SCHEMAS",
    "STYLES",
    "Column",
    "Line",
    "Sheet",
    "SheetItem",
    "SheetList",
    "SheetTable",
    "Style",
    "document",
    "json_bytes",
    "line_width",
    "markdown_table",
    "sheet_markdown",
    "sheet_text",
    "shorten",
    "text_bytes",
    "text_table",
    "wrapped",
]

INDENT = "    "

# What a command prints as JSON, and the schema that it names: the number is raised when a
# key goes or means something else. docs/tables.py makes a table of these; runs are
# `SCHEMA_VERSION`, and scorecards have the keys of the reference alone.
SCHEMAS = {
    "show FILE.ncu-rep": "pytest-gpuperf/capture/1",
    "show BINARY": "pytest-gpuperf/binary/1",
    "show FILE --launches": "pytest-gpuperf/launches/1",
    "compare A.ncu-rep B.ncu-rep": "pytest-gpuperf/capture-comparison/1",
    "bisect": "pytest-gpuperf/bisection/1",
    "baseline list": "pytest-gpuperf/baseline-list/1",
    "baseline show": "pytest-gpuperf/baseline-show/1",
    "baseline drop": "pytest-gpuperf/baseline-drop/1",
    "baseline accept": "pytest-gpuperf/baseline-accept/1",
    "baseline rename": "pytest-gpuperf/baseline-rename/1",
    "baseline restore": "pytest-gpuperf/baseline-restore/1",
    "verify": "pytest-gpuperf/verify/1",
    "doctor": "pytest-gpuperf/doctor/1",
    "utilization": "pytest-gpuperf/utilization/1",
    "metrics chips": "pytest-gpuperf/metrics-chips/1",
    "metrics list": "pytest-gpuperf/metrics-list/1",
    "metrics search": "pytest-gpuperf/metrics-list/1",
    "metrics describe": "pytest-gpuperf/metrics-describe/1",
    "metrics check": "pytest-gpuperf/metrics-check/1",
    "metrics passes": "pytest-gpuperf/metrics-passes/1",
    "cache info": "pytest-gpuperf/cache-info/1",
    "cache verify": "pytest-gpuperf/cache-verify/1",
    "cache clear": "pytest-gpuperf/cache-clear/1",
}
_NO_BREAK = "\u00a0"  # keeps a number and its unit on one line

_GAP = "  "
_LEAST_WIDTH = 20  # of a shortened column: less of a test's name says nothing


class Style(str, Enum):
    """What a line means to its reader; the terminal chooses the colour."""

    TITLE = "title"
    PLAIN = "plain"
    GOOD = "good"
    BAD = "bad"
    DOUBT = "doubt"
    FAINT = "faint"


STYLES = {
    Outcome.FAILED: Style.BAD,
    Outcome.REGRESSED: Style.BAD,
    Outcome.UNMEASURED: Style.DOUBT,
    Outcome.INCONCLUSIVE: Style.DOUBT,
    Outcome.INCOMPARABLE: Style.DOUBT,
    Outcome.NEW: Style.DOUBT,
    Outcome.IMPROVED: Style.GOOD,
    Outcome.BLIND: Style.DOUBT,
    Outcome.UNCHANGED: Style.PLAIN,
    Outcome.PASSED: Style.PLAIN,
}


class Line(Frozen, frozen=True):
    """
    One line of a report.

    Attributes:
        text: What it says; safe to print.

        style: What it means.
    """

    text: str
    style: Style = Style.PLAIN

    def __post_init__(self) -> None:
        """Let no line be a command of a CI runner."""
        force_setattr(self, "text", inert(self.text))

    def __str__(self) -> str:
        """Return the text."""
        return self.text


def wrapped(
    text: str,
    *,
    width: int,
    depth: int = 0,
    style: Style = Style.PLAIN,
    is_name: bool = False,
) -> Iterator[Line]:
    """
    Yield a text as lines no wider than the terminal; a number stays with its unit.

    Args:
        text: One sentence or list.

        width: Characters of a line.

        depth: How far its first line is indented; what follows is one further.

        style: The style of all of them.

        is_name: Whether a word that is wider than a line is broken, as only what nobody
            types may be.
    """
    glued = re.sub(
        r"(?<=\d) (?=\S)| (?=…)|(?<=…) |(?<=[<>]=) |(?<=limit) (?=\d)", _NO_BREAK, text
    )
    for part in textwrap.wrap(
        glued,
        width=max(width, 40),  # narrower, a line would hold its indent alone
        initial_indent=INDENT * depth,
        subsequent_indent=INDENT * (depth + 1),
        break_long_words=is_name,
        break_on_hyphens=False,
    ):
        yield Line(part.replace(_NO_BREAK, " "), style)


class Column(Frozen, frozen=True, kw_only=True):
    """
    One column of a table.

    Attributes:
        head: What stands above it.

        cells: Its text, from the first row to the last.

        blank: What stands for a cell without text.

        shrinks: Whether its cells may be shortened.

        cut: Shortens a cell to a width; None: in its middle.

        wanted: Characters to which they are shortened before a column is dropped, or one
            that wants fewer is shortened further.

        right: Whether it is set to the right, as whole numbers are.

        rank: Columns of the highest rank go first where the width is too small; 0 is
            never dropped.

        below: Where all that can be dropped is, columns of the highest go into a line
            below each row; 0 never does.

        above: Whether its cells stand in a line above their rows where the width is still
            too small, once for neighbours that are equal.
    """

    head: str
    cells: tuple[str, ...]
    blank: str = ""
    shrinks: bool = False
    cut: Callable[[str, int], str] | None = None
    wanted: int = _LEAST_WIDTH
    right: bool = False
    rank: int = 0
    below: int = 0
    above: bool = False


def text_table(columns: Sequence[Column], *, width: int) -> tuple[str, ...]:
    """
    Return a table as lines: the heads, then one line a row.

    Args:
        columns: The columns; one without any text is dropped.

        width: Characters of a line. What does not fit is first shortened to what it
            wants; then columns are dropped by their rank, or stand below or above the
            rows; then it is shortened further. A table that still does not fit is wider.
    """
    shown = [column for column in columns if any(column.cells)]
    while _wanted(shown) > width and any(column.rank for column in shown):
        last = max(column.rank for column in shown)
        shown = [column for column in shown if column.rank != last]
    moved = []
    while _wanted(shown) > width and any(column.below for column in shown):
        last = max(column.below for column in shown)
        moved += [column for column in shown if column.below == last]
        shown = [column for column in shown if column.below != last]
    titles: list[Column] = []
    if _wanted(shown) > width:
        titles = [column for column in shown if column.above]
        shown = [column for column in shown if not column.above]
    if not shown:
        return ()
    below = [column for column in columns if column in moved]
    return tuple(_table_lines(shown, titles, below, width))


def _table_lines(
    shown: Sequence[Column],
    titles: Sequence[Column],
    below: Sequence[Column],
    width: int,
) -> Iterator[str]:
    """Yield the heads, then each row with what stands above and below it."""
    indent = _GAP if titles else ""
    widths = _widths(shown, width - len(indent))
    yield indent + _row([column.head for column in shown], shown, widths)
    cells = zip(*(_filled(column) for column in shown), strict=True)
    title: list[str] = []
    for place, row in enumerate(cells):
        above = [
            (column.cut or shorten)(column.cells[place], width) for column in titles
        ]
        if above != title:
            yield from above
        title = above
        yield indent + _row(row, shown, widths)
        parts = ((c.head, c.cells[place] or c.blank) for c in below)
        text = "; ".join(f"{head}{_NO_BREAK}{cell}" for head, cell in parts if cell)
        yield from (line.text for line in wrapped(text, width=width, depth=2))


def markdown_table(columns: Sequence[Column]) -> Iterator[str]:
    """Yield a table as Markdown lines; the cells are Markdown already."""
    shown = [column for column in columns if any(column.cells)]
    if not shown:
        return
    yield _barred([column.head for column in shown])
    yield _barred(["---:" if column.right else "---" for column in shown])
    for cells in zip(*(_filled(column) for column in shown), strict=True):
        yield _barred(cells)


def shorten(text: str, width: int) -> str:
    """
    Return a text that is no wider, its middle left out: both ends tell tests apart.

    Example:
        >>> shorten("test_attention[bfloat16-4096-causal]", 20)
        'test_atte…96-causal]'
    """
    if _width(text) <= width:
        return text
    if width < 2:  # noqa: PLR2004 - no room for an end beside the dots
        return "…"[:width]
    right = width // 2
    left = width - 1 - right
    while _width(text[:left]) + 1 + _width(text[-right:]) > width and left > 1:
        left, right = left - 1, max(1, right - 1)
    return f"{text[:left]}…{text[-right:]}"


def text_bytes(lines: Iterable[str | Line]) -> bytes:
    """Return lines as they are printed [UTF-8]."""
    return "".join(f"{inert(str(line))}\n" for line in lines).encode()


def document(command: str, content: Mapping[str, object]) -> dict[str, object]:
    """Return what a command prints as JSON, its schema first."""
    return {"schema": SCHEMAS[command], **content}


def json_bytes(content: Mapping[str, object] | Sequence[object]) -> bytes:
    """Return builtins as JSON, indented [UTF-8]."""
    return f"{json.dumps(content, indent=1, ensure_ascii=False)}\n".encode()


def line_width(width: int | None = None, *, elsewhere: int = 100) -> int:
    """Return a width [characters]; None: the terminal's, `elsewhere` where there is none."""
    return width or shutil.get_terminal_size((elsewhere, 24)).columns


def _filled(column: Column) -> tuple[str, ...]:
    """Return a column's cells, empty ones as its `blank`."""
    return tuple(cell or column.blank for cell in column.cells)


def _wanted(columns: Sequence[Column]) -> int:
    """Return the width that columns want when all that shrinks has shrunk."""
    needs = [
        min(_natural(column), column.wanted) if column.shrinks else _natural(column)
        for column in columns
    ]
    return sum(needs) + len(_GAP) * max(0, len(needs) - 1)


def _natural(column: Column) -> int:
    """Return the width of a column's widest text."""
    return max(_width(text) for text in (column.head, *column.cells))


def _widths(columns: Sequence[Column], width: int) -> list[int]:
    """Return the width of every column; those that shrink share what is too much."""
    widths = [_natural(column) for column in columns]
    excess = sum(widths) + len(_GAP) * (len(widths) - 1) - width
    wanted = [(place, c.wanted) for place, c in enumerate(columns) if c.shrinks]
    least = [(place, _LEAST_WIDTH) for place, _ in wanted]
    for place, floor in (*wanted, *least):
        room = max(0, min(widths[place] - floor, excess))
        widths[place] -= room
        excess -= room
    return widths


def _row(cells: Sequence[str], columns: Sequence[Column], widths: Sequence[int]) -> str:
    """Return one line of a table."""
    padded = []
    for cell, column, width in zip(cells, columns, widths, strict=True):
        text = (column.cut or shorten)(cell, width)
        blank = " " * (width - _width(text))
        padded.append(blank + text if column.right else text + blank)
    return _GAP.join(padded).rstrip()


def _barred(cells: Sequence[str]) -> str:
    """Return one line of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def _width(text: str) -> int:
    """Return how many places a text takes: wide letters two, combining marks none."""
    if text.isascii():
        return len(text)
    return sum(_places(character) for character in text)


def _places(character: str) -> int:
    """Return how many places a character takes."""
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in {"W", "F"} else 1


class SheetTable(Frozen, frozen=True, kw_only=True):
    """
    One table.

    Attributes:
        columns: Its columns; their cells are foreign text.

        names: Heads of the columns whose cells are names: code in Markdown.
    """

    columns: tuple[Column, ...]
    names: frozenset[str] = frozenset()


class SheetItem(Frozen, frozen=True, kw_only=True):
    """
    One point of a list.

    Attributes:
        text: A sentence; it may be foreign.

        name: What it is about; "" for nothing.

        strong: Whether it must be seen.
    """

    text: str
    name: str = ""
    strong: bool = False


class SheetList(Frozen, frozen=True, kw_only=True):
    """
    A list under a heading.

    Attributes:
        heading: The heading.

        items: Its points.
    """

    heading: str
    items: tuple[SheetItem, ...]


class Sheet(Frozen, frozen=True, kw_only=True):
    """
    A page. What is empty is not shown.

    Attributes:
        title: What it is.

        facts: Labels with their values; a value that begins the page is strong.

        tables: Its tables.

        listings: Its lists.
    """

    title: str
    facts: tuple[tuple[str, str], ...]
    tables: tuple[SheetTable, ...] = ()
    listings: tuple[SheetList, ...] = ()


def sheet_text(sheet: Sheet, *, width: int) -> str:
    """
    Return a page as text for a terminal.

    Args:
        sheet: The page.

        width: Characters of a line.
    """
    longest = max(len(label) for label, _ in sheet.facts)
    facts = [f"{label:{longest}}  {escape(fact)}" for label, fact in sheet.facts]
    blocks = [[escape(sheet.title)], facts]
    for table in sheet.tables:
        safe = [_mapped(column, escape) for column in table.columns]
        blocks.append(list(text_table(safe, width=width)))
    for listing in sheet.listings:
        lines = [
            line.text
            for item in listing.items
            for line in wrapped(escape(_joined(item)), width=width, depth=1)
        ]
        blocks.append([listing.heading, *lines] if lines else [])
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def sheet_markdown(sheet: Sheet) -> str:
    """Return a page as Markdown; no name or text in it is markup."""
    (first, grade), *rest = sheet.facts
    facts = [(first, f"**{prose(grade)}**")]
    facts += [(label, prose(fact)) for label, fact in rest]
    columns = (
        Column(head="quantity", cells=tuple(label for label, _ in facts)),
        Column(head="value", cells=tuple(fact for _, fact in facts)),
    )
    blocks = [[f"## {prose(sheet.title)}"], list(markdown_table(columns))]
    for table in sheet.tables:
        safe = [
            _mapped(column, code if column.head in table.names else prose)
            for column in table.columns
        ]
        if any(column.cells for column in safe):
            blocks.append(list(markdown_table(safe)))
    for listing in sheet.listings:
        if listing.items:
            blocks += [[f"### {prose(listing.heading)}"], _points(listing.items)]
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def _mapped(column: Column, safe: Callable[[str], str]) -> Column:
    """Return a column with its cells made safe."""
    return replace(column, cells=tuple(safe(cell) for cell in column.cells))


def _joined(item: SheetItem) -> str:
    """Return a point of a list in one line."""
    return f"{item.name}: {item.text}" if item.name else item.text


def _points(items: Iterable[SheetItem]) -> list[str]:
    """Return the points of a list as Markdown."""
    return [_point(item) for item in items]


def _point(item: SheetItem) -> str:
    """Return one point as Markdown."""
    text = prose(item.text)
    named = f"{code(item.name)}: {text}" if item.name else text
    return f"- **{named}**" if item.strong and not item.name else f"- {named}"
