"""Lines and tables of text."""

from __future__ import annotations

import json
import re
import shutil
import textwrap
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum

from msgspec.structs import force_setattr

from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.verdict import Outcome
from pytest_gpuperf.report.escape import inert

INDENT = "    "

# JSON schemas by command. The number is raised when a key is removed or changes its
# meaning. docs/tables.py makes a table of these. Runs use `SCHEMA_VERSION`, and
# scorecards have only the keys of the reference.
SCHEMAS = {
    "show FILE.ncu-rep": "pytest-gpuperf/capture/1",
    "show BINARY": "pytest-gpuperf/binary/1",
    "show FILE --launches": "pytest-gpuperf/launches/1",
    "compare A.ncu-rep B.ncu-rep": "pytest-gpuperf/capture-comparison/2",
    "compare BINARY BINARY": "pytest-gpuperf/code-comparison/1",
    "inventory": "pytest-gpuperf/inventory-list/1",
    "inventory --baseline": "pytest-gpuperf/code-comparison/1",
    "bisect": "pytest-gpuperf/bisection/1",
    "history": "pytest-gpuperf/history/1",
    "baseline list": "pytest-gpuperf/baseline-list/1",
    "baseline show": "pytest-gpuperf/baseline-show/1",
    "baseline drop": "pytest-gpuperf/baseline-drop/1",
    "baseline accept": "pytest-gpuperf/baseline-accept/1",
    "baseline rename": "pytest-gpuperf/baseline-rename/1",
    "baseline restore": "pytest-gpuperf/baseline-restore/1",
    "baseline copy": "pytest-gpuperf/baseline-copy/1",
    "merge": "pytest-gpuperf/merge/1",
    "baseline import": "pytest-gpuperf/baseline-import/1",
    "baseline send": "pytest-gpuperf/baseline-send/1",
    "baseline prune": "pytest-gpuperf/baseline-prune/1",
    "baseline migrate": "pytest-gpuperf/baseline-migrate/1",
    "verify": "pytest-gpuperf/verify/1",
    "verify --run-id": "pytest-gpuperf/verify-shards/1",
    "doctor": "pytest-gpuperf/doctor/1",
    "utilization": "pytest-gpuperf/utilization/1",
    "metrics chips": "pytest-gpuperf/metrics-chips/1",
    "explain": "pytest-gpuperf/explain/1",
    "metrics list": "pytest-gpuperf/metrics-list/1",
    "metrics search": "pytest-gpuperf/metrics-list/1",
    "metrics describe": "pytest-gpuperf/metrics-describe/1",
    "metrics check": "pytest-gpuperf/metrics-check/1",
    "metrics passes": "pytest-gpuperf/metrics-passes/1",
    "cache info": "pytest-gpuperf/cache-info/1",
    "cache verify": "pytest-gpuperf/cache-verify/1",
    "cache clear": "pytest-gpuperf/cache-clear/1",
}
_NO_BREAK = "\u00a0"  # Keeps a number and its unit on one line.

_GAP = "  "
# Characters of a shortened column. A shorter test name is useless.
_LEAST_WIDTH = 20


class Style(str, Enum):
    """The meaning of a line. The terminal chooses the colour."""

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
        text: The escaped text.

        style: The meaning of the line.
    """

    text: str
    style: Style = Style.PLAIN

    def __post_init__(self) -> None:
        """Escape a text that a CI runner would take for a command."""
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
    Yield a text as lines that fit the terminal, with numbers and units kept together.

    Args:
        text: One sentence or list.

        width: Characters of a line.

        depth: Indent of the first line. Further lines are indented by one more.

        style: The style of all lines.

        is_name: Whether to break a word that is wider than a line. Allowed only for names that are
            never typed.
    """
    whole, most = f"{INDENT * depth}{text}", max(width, 40)
    # The usual case. No blanks have to be dropped, and no line breaks.
    if 0 < len(whole) <= most and text.isprintable() and text == text.strip():
        if text:
            yield Line(whole, style)
        return
    # A blank at the end would stay, as part of what is kept together.
    glued = re.sub(
        r"(?<=\d) (?=\S)| (?=…)|(?<=…) |(?<=[<>]=) |(?<=limit) (?=\d)",
        _NO_BREAK,
        text.rstrip(),
    )
    for part in textwrap.wrap(
        glued,
        # A narrower line would hold only its indent.
        width=most,
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
        head: The heading.

        cells: The texts, from the first row to the last.

        blank: Text of an empty cell.

        shrinks: Whether cells may be shortened.

        cut: Shortens a cell to a width, or None to cut the middle.

        wanted: Width to which cells are shortened before any column is dropped, or shortened to
            less than its own `wanted`.

        least: Width below which no cell is shortened.

        right: Whether cells are aligned to the right, as whole numbers are.

        rank: Columns of the highest rank are dropped first if the table is too wide. 0 is never
            dropped.

        below: If the table is still too wide, columns with the highest number move to a line below
            each row. 0 never moves.

        above: Whether cells move to a line above their rows if the table is still too wide. Equal
            neighbours share a line.
    """

    head: str
    cells: tuple[str, ...]
    blank: str = ""
    shrinks: bool = False
    cut: Callable[[str, int], str] | None = None
    wanted: int = _LEAST_WIDTH
    least: int = _LEAST_WIDTH
    right: bool = False
    rank: int = 0
    below: int = 0
    above: bool = False


def column(
    head: str,
    cells: Iterable[str],
    *,
    blank: str = "",
    right: bool = False,
    rank: int = 0,
) -> Column:
    """Create a column with cells of any length, never shortened. See `Column` for the arguments."""
    return Column(head=head, cells=tuple(cells), blank=blank, right=right, rank=rank)


def text_table(columns: Sequence[Column], *, width: int) -> tuple[str, ...]:
    """
    Return a table as lines: the headings, then a line per row.

    Args:
        columns: The columns. A column without any text is dropped.

        width: Characters of a line. A table that is too wide is first shortened to the wanted
            widths. Then columns are dropped by rank, or moved below or above the rows. Then cells
            are shortened further. A table that still does not fit is printed wider.
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
    indent = _GAP if titles else ""
    widths = [_natural(column) for column in shown]
    excess = sum(widths) + len(_GAP) * (len(widths) - 1) - (width - len(indent))
    # Columns that shrink share the excess.
    wanted = [(place, c.wanted) for place, c in enumerate(shown) if c.shrinks]
    least = [(place, shown[place].least) for place, _ in wanted]
    for place, floor in (*wanted, *least):
        room = max(0, min(widths[place] - floor, excess))
        widths[place] -= room
        excess -= room
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
    """Yield a table as Markdown lines. The cells must be Markdown already."""
    shown = [column for column in columns if any(column.cells)]
    if not shown:
        return
    yield _barred([column.head for column in shown])
    yield _barred(["---:" if column.right else "---" for column in shown])
    for cells in zip(*(_filled(column) for column in shown), strict=True):
        yield _barred(cells)


def shorten(text: str, width: int) -> str:
    """
    Shorten a text to a width by cutting the middle, because both ends distinguish tests.

    Example:
        >>> shorten("test_attention[bfloat16-4096-causal]", 20)
        'test_atte…96-causal]'
    """
    if _width(text) <= width:
        return text
    if width < 2:  # noqa: PLR2004 - no room for an end and the dots
        return "…"[:width]
    right = width // 2
    left = width - 1 - right
    while _width(text[:left]) + 1 + _width(text[-right:]) > width and left > 1:
        left, right = left - 1, max(1, right - 1)
    return f"{text[:left]}…{text[-right:]}"


def text_bytes(lines: Iterable[str | Line]) -> bytes:
    """Return lines as printed output [UTF-8]."""
    return "".join(f"{inert(str(line))}\n" for line in lines).encode()


def document(command: str, content: Mapping[str, object]) -> dict[str, object]:
    """Return the JSON document of a command, with the schema first."""
    return {"schema": SCHEMAS[command], **content}


def json_bytes(content: Mapping[str, object] | Sequence[object]) -> bytes:
    """Return builtins as JSON, indented [UTF-8]."""
    return f"{json.dumps(content, indent=1, ensure_ascii=False)}\n".encode()


def line_width(width: int | None = None, *, elsewhere: int = 100) -> int:
    """Return a width [characters]. None is the width of the terminal, else `elsewhere`."""
    return width or shutil.get_terminal_size((elsewhere, 24)).columns


def _filled(column: Column) -> tuple[str, ...]:
    return tuple(cell or column.blank for cell in column.cells)


def _wanted(columns: Sequence[Column]) -> int:
    needs = [
        min(_natural(column), column.wanted) if column.shrinks else _natural(column)
        for column in columns
    ]
    return sum(needs) + len(_GAP) * max(0, len(needs) - 1)


def _natural(column: Column) -> int:
    return max(_width(text) for text in (column.head, *column.cells))


def _row(cells: Sequence[str], columns: Sequence[Column], widths: Sequence[int]) -> str:
    padded = []
    for cell, column, width in zip(cells, columns, widths, strict=True):
        text = (column.cut or shorten)(cell, width)
        blank = " " * (width - _width(text))
        padded.append(blank + text if column.right else text + blank)
    return _GAP.join(padded).rstrip()


def _barred(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _width(text: str) -> int:
    """Return the columns that a text occupies: 2 for wide letters, 0 for combining marks."""
    if text.isascii():
        return len(text)
    return sum(
        2 if unicodedata.east_asian_width(character) in {"W", "F"} else 1
        for character in text
        if not unicodedata.combining(character)
    )
