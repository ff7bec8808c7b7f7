"""Escaping of foreign text for output. Commands that load no records use this module, too."""

from __future__ import annotations

import re
import unicodedata

_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
# A CI runner takes a line with such a beginning for a command, leading blanks ignored.
_COMMANDS = ("::", "##[")
# A spreadsheet computes a cell that begins with one of these.
_FORMULA = ("=", "+", "-", "@")
# No shell changes these letters.
_PLAIN_WORD = re.compile(r"[\w\-./:=,%+@]+")
# Digits and letter of an escape, as Python writes them, for characters below a bound.
_ESCAPES = ((0x100, (2, "x")), (0x10000, (4, "u")), (0x110000, (8, "U")))


def escape(text: str) -> str:
    r"""
    Escape a text so that it cannot control a terminal.

    Control characters, line breaks, marks of writing direction, invisible characters, noncharacters
    (which no XML may hold) and lone surrogates are written as Python would: \x1b, \u202e.
    """
    if text.isprintable():
        return text
    shown = []
    for character in text:
        number = ord(character)
        is_no_character = number & 0xFFFE == 0xFFFE  # noqa: PLR2004 - of each plane
        if is_no_character or unicodedata.category(character) in _UNSEEN:
            width, letter = next(spelling for end, spelling in _ESCAPES if number < end)
            shown.append(f"\\{letter}{number:0{width}x}")
        else:
            shown.append(character)
    return "".join(shown)


def inert(line: str) -> str:
    r"""
    Escape a line that a CI runner would take for a command.

    Example:
        >>> inert("  ::error::x")
        '  \\x3a:error::x'
    """
    rest = line.lstrip()
    if not rest.startswith(_COMMANDS):
        return line
    indent = line[: len(line) - len(rest)]
    return f"{indent}\\x{ord(rest[0]):02x}{rest[1:]}"


def code(text: str) -> str:
    """Return a name as Markdown code for a table cell, with all markup escaped."""
    plain = escape(text).replace("|", "\\|")
    fence = "`"
    while fence in plain:
        fence += "`"
    gap = " " if plain.startswith("`") or plain.endswith("`") else ""
    return f"{fence}{gap}{plain}{gap}{fence}" if plain else ""


def csv_cell(text: str) -> str:
    """
    Escape a text that a spreadsheet would take for a formula.

    Example:
        >>> csv_cell("=1+1")
        "'=1+1"
    """
    text = escape(text)
    return f"'{text}" if text.startswith(_FORMULA) else text


def prose(text: str) -> str:
    r"""
    Escape a text so that Markdown shows it unchanged, on a single line.

    Example:
        >>> prose("a_b | c")
        'a\\_b \\| c'
    """
    text = escape(text)
    for letter in "\\`*_{}[]<>|~&":
        text = text.replace(letter, f"\\{letter}")
    # A forge looks for people and issues after rendering the Markdown.
    for letter in "@#":
        text = text.replace(letter, f"{letter}\u200b")
    return text


def quoted(text: str) -> str:
    """
    Quote a text as a single word of a shell, in double quotes if sufficient.

    Example:
        >>> quoted("test_a.py::test_b[4]"), quoted(".gpuperf")
        ('"test_a.py::test_b[4]"', '.gpuperf')
    """
    if _PLAIN_WORD.fullmatch(text):
        return text
    if any(letter in '"$`\\!' for letter in text):
        return "'" + text.replace("'", "'\"'\"'") + "'"
    return f'"{text}"'
