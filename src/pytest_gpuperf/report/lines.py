"""Lines of terminal text with a style; PYTEST_DONT_REWRITE."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from pytest_gpuperf.model.verdict import Outcome

__all__ = ["STYLES", "Line", "Style", "wrapped"]

_INDENT = "    "
_NO_BREAK = "\u00a0"  # keeps a number and its unit on one line


class Style(str, Enum):
    """What a line means to its reader; the terminal chooses the colour."""

    TITLE = "title"
    PLAIN = "plain"
    GOOD = "good"
    BAD = "bad"
    DOUBT = "doubt"
    FAINT = "faint"


# what a terminal makes of a style, in pytest's words
_MARKUP: Mapping[Style, Mapping[str, bool]] = {
    Style.TITLE: {"bold": True},
    Style.PLAIN: {},
    Style.GOOD: {"green": True},
    Style.BAD: {"red": True, "bold": True},
    Style.DOUBT: {"yellow": True},
    Style.FAINT: {"light": True},
}

STYLES = {
    Outcome.FAILED: Style.BAD,
    Outcome.REGRESSED: Style.BAD,
    Outcome.UNMEASURED: Style.DOUBT,
    Outcome.INCONCLUSIVE: Style.DOUBT,
    Outcome.INCOMPARABLE: Style.DOUBT,
    Outcome.NEW: Style.DOUBT,
    Outcome.IMPROVED: Style.GOOD,
    Outcome.UNCHANGED: Style.PLAIN,
    Outcome.PASSED: Style.PLAIN,
}


@dataclass(frozen=True, slots=True)
class Line:
    """
    One line of a report.

    Attributes:
        text: What it says; safe to print.

        style: What it means.
    """

    text: str
    style: Style = Style.PLAIN

    @property
    def markup(self) -> Mapping[str, bool]:
        """The keywords of pytest's `write_line` for the style."""
        return _MARKUP[self.style]

    def __str__(self) -> str:
        """Return the text."""
        return self.text


def wrapped(
    text: str, *, width: int, depth: int = 0, style: Style = Style.PLAIN
) -> Iterator[Line]:
    """
    Yield a text as lines no wider than the terminal; a number stays with its unit.

    Args:
        text: One sentence or list.

        width: Characters of a line.

        depth: How far its first line is indented; what follows is one further.

        style: The style of all of them.
    """
    glued = re.sub(
        r"(?<=\d) (?=\S)| (?=…)|(?<=…) |(?<=[<>]=) |(?<=limit) (?=\d)", _NO_BREAK, text
    )
    for part in textwrap.wrap(
        glued,
        width=max(width, 40),  # narrower, a line would hold its indent alone
        initial_indent=_INDENT * depth,
        subsequent_indent=_INDENT * (depth + 1),
        break_long_words=False,
        break_on_hyphens=False,
    ):
        yield Line(part.replace(_NO_BREAK, " "), style)
