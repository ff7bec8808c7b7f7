"""A page of facts, tables and lists, as text and as Markdown."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from decimal import Decimal

from pytest_gpuperf.model.frozen import Frozen, replace
from pytest_gpuperf.report.escape import code, escape, prose
from pytest_gpuperf.report.lines import Column, markdown_table, text_table, wrapped

__all__ = ["Item", "Listing", "Sheet", "Table", "fixed", "sheet_markdown", "sheet_text"]

_MOST_PLACES = 340  # the smallest float shows itself
_PERCENT = " %"  # as everywhere in a report


class Table(Frozen, frozen=True, kw_only=True):
    """
    One table.

    Attributes:
        columns: Its columns; their cells are foreign text.

        names: Heads of the columns whose cells are names: code in Markdown.
    """

    columns: tuple[Column, ...]
    names: frozenset[str] = frozenset()


class Item(Frozen, frozen=True, kw_only=True):
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


class Listing(Frozen, frozen=True, kw_only=True):
    """
    A list under a heading.

    Attributes:
        heading: The heading.

        items: Its points.
    """

    heading: str
    items: tuple[Item, ...]


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
    tables: tuple[Table, ...] = ()
    listings: tuple[Listing, ...] = ()


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
    (first, grade), *others = sheet.facts
    facts = [(first, f"**{prose(grade)}**")]
    facts += [(label, prose(fact)) for label, fact in others]
    columns = (
        Column(head="", cells=tuple(label for label, _ in facts)),
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


def fixed(
    number: float, places: int, *, limits: Iterable[float] = (), percent: bool = False
) -> str:
    """
    Return a number with so many places, more where it would seem to pass a limit.

    Args:
        number: The number; infinity and NaN are named.

        places: Digits behind the point.

        limits: Numbers that the text must stay on the right side of.

        percent: Whether a fraction is shown in percent.

    Example:
        >>> fixed(0.125, 2), fixed(0.5999, 1, limits=[0.6], percent=True)
        ('0.12', '59.99 %')
    """
    text = _written(number, places, percent=percent)
    if not math.isfinite(number):
        return text
    sides = [(Decimal(repr(float(limit))), limit) for limit in limits]
    while places < _MOST_PLACES and any(
        _side(_read(text), exact) != _side(number, limit) for exact, limit in sides
    ):
        places += 1
        text = _written(number, places, percent=percent)
    return text


def _written(number: float, places: int, *, percent: bool) -> str:
    """Return a number with so many places."""
    if not percent:
        return f"{number:.{places}f}"
    return f"{number:.{places}%}".replace("%", _PERCENT)


def _read(text: str) -> Decimal:
    """Return the number that a reader sees."""
    if text.endswith(_PERCENT):
        return Decimal(text.removesuffix(_PERCENT)).scaleb(-2)
    return Decimal(text)


def _side(number: Decimal | float, limit: Decimal | float) -> int:
    """Return -1, 0 or 1: below, at or above the limit."""
    return (number > limit) - (number < limit)


def _mapped(column: Column, safe: Callable[[str], str]) -> Column:
    """Return a column with its cells made safe."""
    return replace(column, cells=tuple(safe(cell) for cell in column.cells))


def _joined(item: Item) -> str:
    """Return a point of a list in one line."""
    return f"{item.name}: {item.text}" if item.name else item.text


def _points(items: Iterable[Item]) -> list[str]:
    """Return the points of a list as Markdown."""
    return [_point(item) for item in items]


def _point(item: Item) -> str:
    """Return one point as Markdown."""
    text = prose(item.text)
    named = f"{code(item.name)}: {text}" if item.name else text
    return f"- **{named}**" if item.strong and not item.name else f"- {named}"
