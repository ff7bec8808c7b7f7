"""Foreign text made safe to print, for commands that load no records, too."""

from __future__ import annotations

import unicodedata

__all__ = ["code", "csv_cell", "escape", "inert", "prose", "quoted"]

_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
# how a line begins that a CI runner takes for a command, blanks before it left out
_COMMANDS = ("::", "##[")
_FORMULA = ("=", "+", "-", "@")  # what a spreadsheet computes begins so
# below this character: digits and letter of its escape, as Python writes them
_ESCAPES = ((0x100, (2, "x")), (0x10000, (4, "u")), (0x110000, (8, "U")))


def escape(text: str) -> str:
    r"""
    Return a text that can do nothing to a terminal.

    Control characters, line breaks, marks of writing direction, invisible characters,
    noncharacters (which no XML may hold) and lone surrogates are written as Python would:
    \x1b, \u202e.
    """
    if text.isprintable():
        return text
    return "".join(_visible(character) for character in text)


def inert(line: str) -> str:
    r"""
    Return a line that no CI runner takes for one of its commands.

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
    """Return a name as Markdown code that is safe in a cell: nothing in it is markup."""
    plain = escape(text).replace("|", "\\|")
    fence = "`"
    while fence in plain:
        fence += "`"
    gap = " " if plain.startswith("`") or plain.endswith("`") else ""
    return f"{fence}{gap}{plain}{gap}{fence}" if plain else ""


def csv_cell(text: str) -> str:
    """
    Return a text that no spreadsheet takes for a formula.

    Example:
        >>> csv_cell("=1+1")
        "'=1+1"
    """
    text = escape(text)
    return f"'{text}" if text.startswith(_FORMULA) else text


def prose(text: str) -> str:
    r"""
    Return a text that Markdown shows as it is, on one line.

    Example:
        >>> prose("a_b | c")
        'a\\_b \\| c'
    """
    text = escape(text)
    for letter in "\\`*_{}[]<>|~&":
        text = text.replace(letter, f"\\{letter}")
    for letter in "@#":  # a forge looks for people and issues after Markdown is read
        text = text.replace(letter, f"{letter}\u200b")
    return text


def quoted(text: str) -> str:
    """
    Return a text as one word of a shell, in double quotes where these are enough.

    Example:
        >>> quoted("test_a.py::test_b[4]"), quoted(".gpuperf")
        ('"test_a.py::test_b[4]"', '.gpuperf')
    """
    if text and all(letter.isalnum() or letter in "_-./:=,%+@" for letter in text):
        return text
    if any(letter in '"$`\\!' for letter in text):
        return "'" + text.replace("'", "'\"'\"'") + "'"
    return f'"{text}"'


def _visible(character: str) -> str:
    """Return a character, or its code where it is not one that is seen."""
    number = ord(character)
    is_no_character = number & 0xFFFE == 0xFFFE  # noqa: PLR2004 - of each plane
    if is_no_character or unicodedata.category(character) in _UNSEEN:
        width, letter = next(spelling for end, spelling in _ESCAPES if number < end)
        return f"\\{letter}{number:0{width}x}"
    return character
