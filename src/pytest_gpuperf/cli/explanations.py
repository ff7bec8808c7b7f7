"""The command `explain`: what the documentation says about a code, a metric or an option.

The pages are part of the wheel. In a checkout they are read from its folder docs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpuperf import errors
from pytest_gpuperf.cli.output import each, print_bytes
from pytest_gpuperf.errors import ConfigError
from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.report.escape import escape
from pytest_gpuperf.report.lines import (
    Line,
    Style,
    document,
    json_bytes,
    line_width,
    text_bytes,
    wrapped,
)

if TYPE_CHECKING:
    import argparse

# Also the order of the answers.
_PAGES = ("start", "messages", "metrics", "reference", "measuring-well", "glossary")
_HEADING = re.compile(r"(#+) (.*)")
_CODE = re.compile(r"`([^`]+)`")
# A point of a list that begins with names alone.
_SUBJECT = re.compile(r"\* `[^`]+`(?:(?:,| and|, and) `[^`]+`)*")
_STRONG = re.compile(r"\*\*([^*]+)\*\*")
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
# Enough to show a misspelled name, few enough to read.
_MOST_LIKE = 3


class PageEntry(Frozen, frozen=True, kw_only=True):
    """
    A section or a table row of a page.

    Attributes:
        page: The name of the page, without its suffix.

        title: The heading of the section, or of the table's section.

        names: The names that the entry explains, in lower case.

        text: Its Markdown: the section without its heading, or a paragraph for each cell.
    """

    page: str
    title: str
    names: tuple[str, ...]
    text: str


def explain(arguments: argparse.Namespace) -> int:
    """Print the sections of the documentation about some names."""
    entries = [entry for page in _PAGES for entry in _entries(page, _page(page))]
    found = each(arguments.names, lambda name: _found(name, entries))
    if arguments.format == "json":
        content = [
            {
                "name": name,
                "page": entry.page,
                "title": entry.title,
                "markdown": entry.text,
            }
            for name, some in zip(arguments.names, found, strict=True)
            for entry in some
        ]
        return print_bytes(json_bytes(document("explain", {"entries": content})))
    several = [entry for some in found for entry in some]
    if arguments.format == "markdown":
        texts = [f"## {entry.title}\n\n{entry.text}\n" for entry in several]
        return print_bytes("\n".join(texts).encode())
    lines: list[Line] = []
    width = line_width()
    for entry in several:
        lines += [Line("")] if lines else []
        lines.append(Line(f"{_plain(entry.title)} ({entry.page})", Style.TITLE))
        for paragraph in re.split(r"\n\n|\n(?=\* |\d+\. )", entry.text):
            # An indented block is program output, and a table is read by its columns.
            if paragraph.startswith(("    ", "|", "```")):
                lines += [Line(escape(line)) for line in paragraph.splitlines()]
            else:
                lines += wrapped(_plain(paragraph), width=width, depth=1)
    return print_bytes(text_bytes(lines))


def _page(name: str) -> str:
    installed = files("pytest_gpuperf") / "pages" / f"{name}.md"
    if installed.is_file():
        return installed.read_text("utf-8")
    checkout = Path(__file__).parents[3] / "docs" / f"{name}.md"
    try:
        return checkout.read_text("utf-8")
    except OSError as error:
        message = f"the page {name}.md is not part of this installation"
        remedy = "install pytest-gpuperf again, from its wheel or its checkout"
        raise ConfigError(message, remedy=remedy) from error


def _entries(page: str, text: str) -> Iterator[PageEntry]:
    """Yield the sections of the lowest level, and the rows and points with names, of a page."""
    title, body, head = "", list[str](), list[str]()
    for line in [*text.splitlines(), "# "]:
        if heading := _HEADING.fullmatch(line):
            if title and (section := "\n".join(body).strip()):
                yield PageEntry(
                    page=page, title=title, names=(title.lower(),), text=section
                )
            title, body, head = heading[2], [], []
            continue
        body.append(line)
        if not line.startswith("|"):
            head = []
            subject, colon, _ = line.partition(": ")
            # A point that begins with names and a colon, such as a formula of metrics.
            if colon and _SUBJECT.fullmatch(subject):
                names = tuple(name.lower() for name in _CODE.findall(subject))
                yield PageEntry(page=page, title=title, names=names, text=line[2:])
            continue
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if not head:
            head = cells
        elif set(cells[0]) != {"-"} and len(cells) == len(head):
            named = [*_CODE.findall(cells[0]), *_STRONG.findall(cells[0])]
            # The reference has the ini name of an option in a cell of its own.
            named += [c[1:-1] for c in cells[1:] if re.fullmatch(r"`gpuperf_\w+`", c)]
            plain = [name.split(" ")[0].split("=")[0].lower() for name in named]
            # Names of more than one word, as the glossary has them.
            spoken = [name.lower() for name in named if " " in name]
            pairs = zip(head, cells, strict=True)
            section = "\n\n".join(f"**{name}**: {cell}" for name, cell in pairs if cell)
            yield PageEntry(
                page=page, title=title, names=(*plain, *spoken), text=section
            )


def _found(name: str, entries: Sequence[PageEntry]) -> Sequence[PageEntry]:
    """
    Return the entries that explain a name.

    Raises:
        ConfigError: No page explains it.
    """
    wanted = name.strip("*`").split("=")[0].lower()
    spellings = {wanted, f"--{wanted}", f"--gpuperf-{wanted}", wanted.replace("_", "-")}
    # A traceback prints the class of an error, with its module.
    kind = getattr(errors, name.strip(":").rpartition(".")[2], None)
    spellings |= {getattr(kind, "slug", wanted)}
    # The page has one row for the instructions of a class, in loops and in all code.
    spellings.add(wanted.replace("instructions.loop.", "instructions."))
    found = [entry for entry in entries if spellings.intersection(entry.names)]
    if found:
        return found
    known = sorted({known for entry in entries for known in entry.names})
    like = get_close_matches(wanted, known, n=_MOST_LIKE)
    message = f"no page explains {name}"
    remedy = (
        f"did you mean {' or '.join(like)}?"
        if like
        else (
            "name a verdict, a reason or an error (docs/messages.md), a metric, an option, a "
            "note or a word of the glossary"
        )
    )
    raise ConfigError(message, remedy=remedy)


def _plain(markdown: str) -> str:
    text = _LINK.sub(r"\1", " ".join(markdown.split()))
    return escape(_STRONG.sub(r"\1", text).replace("`", "").replace("\\|", "|"))
