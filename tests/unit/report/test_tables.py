"""report.lines: text that fits."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from pytest_gpuperf.report.lines import (
    Column,
    markdown_table,
    shorten,
    text_table,
    wrapped,
)


@given(text=st.text(max_size=40), width=st.integers(min_value=0, max_value=50))
def test_a_shortened_text_fits_and_keeps_both_ends(text: str, width: int) -> None:
    """A text is never longer than its place; one that fits is left alone."""
    short = shorten(text, width)

    assert len(short) <= max(width, len(text))
    assert short == text or "…" in short or width == 0


def test_both_ends_tell_tests_apart() -> None:
    """The middle is left out: the parameters at the end are what differs."""
    assert shorten("test_attention[bf16-4096-causal]", 20) == "test_atte…96-causal]"
    assert shorten("ab", 1) == "…"


def test_wide_letters_take_two_places() -> None:
    """Columns stay straight behind names in any script."""
    columns = (
        Column(head="test", cells=("日本", "abcd", "e\u0301")),
        Column(head="x", cells=("1", "2", "3")),
    )

    assert text_table(columns, width=80) == (
        "test  x",
        "日本  1",
        "abcd  2",
        "e\u0301     3",
    )
    assert shorten("日本語日本語", 7) == "日…語"


def test_columns_go_by_rank_when_there_is_no_room() -> None:
    """First what can shrink shrinks, then the highest rank goes; rank 0 stays."""
    columns = (
        Column(head="name", cells=("n" * 30,), shrinks=True),
        Column(head="kept", cells=("k" * 10,)),
        Column(head="first", cells=("f" * 10,), rank=1),
        Column(head="second", cells=("s" * 10,), rank=2),
    )
    widths = {
        width: text_table(columns, width=width)[0].split() for width in (70, 60, 50, 1)
    }

    assert widths[70] == ["name", "kept", "first", "second"]
    assert widths[60] == ["name", "kept", "first", "second"]
    assert widths[50] == ["name", "kept", "first"]
    assert widths[1] == ["name", "kept"]


def test_what_has_no_room_stands_below_or_above() -> None:
    """Nothing but what has a rank is lost: first below each row, then above the rows."""
    columns = (
        Column(head="kernel", cells=("gemm", "gemm", "copy"), above=True),
        Column(head="metric", cells=("m" * 10, "n" * 10, "o" * 10)),
        Column(head="why", cells=("because", "", "so"), blank="n/a", below=1),
    )

    assert text_table(columns, width=80)[1] == "gemm    mmmmmmmmmm  because"
    assert text_table(columns, width=20) == (
        "kernel  metric",
        "gemm    mmmmmmmmmm",
        "        why because",
        "gemm    nnnnnnnnnn",
        "        why n/a",
        "copy    oooooooooo",
        "        why so",
    )
    assert text_table(columns[:2], width=12) == (
        "  metric",
        "gemm",
        "  mmmmmmmmmm",
        "  nnnnnnnnnn",
        "copy",
        "  oooooooooo",
    )


def test_a_column_says_how_it_is_cut() -> None:
    """The head of a kernel's name tells it from others, both ends a test's."""
    cells = ("abcdefghijklmnopqrstuvwxyz",)
    column = Column(head="x", cells=cells, shrinks=True, cut=lambda x, n: x[:n])

    assert text_table((column,), width=20)[1] == "abcdefghijklmnopqrst"


def test_numbers_stand_to_the_right_and_nothing_has_its_sign() -> None:
    """A column of numbers is read from the right; an absent one is marked."""
    columns = (
        Column(head="n", cells=("1", "100", ""), right=True, blank="-"),
        Column(head="empty", cells=("", "", "")),
        Column(head="t", cells=("a", "", "b")),
    )

    assert text_table(columns, width=80) == ("  n  t", "  1  a", "100", "  -  b")
    assert list(markdown_table(columns)) == [
        "| n | t |",
        "| ---: | --- |",
        "| 1 | a |",
        "| 100 |  |",
        "| - | b |",
    ]


def test_no_columns_are_no_table() -> None:
    """Nothing to show is nothing shown."""
    assert text_table((), width=80) == ()
    assert list(markdown_table((Column(head="a", cells=("",)),))) == []


@given(st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), max_size=200))
@example("::error::x ##[group]y")
def test_wrapping_loses_no_word(text: str) -> None:
    """All words of a text are there, in order, whatever the width."""
    lines = wrapped(text, width=40, depth=1)
    shown, given_text = (
        each.replace("\\x3a", ":").replace("\\x23", "#")  # a CI runner's command
        for each in (" ".join(line.text for line in lines), text)
    )

    assert shown.split() == given_text.split()


def test_a_number_stays_with_its_unit() -> None:
    """A line never ends between a number and its unit, nor inside an interval."""
    text = "it was measured at 41.2 us and then (+7.1 … +8.6 %), limit x <= 60 us"
    lines = [line.text for line in wrapped(text, width=40)]

    assert lines == [
        "it was measured at 41.2 us and then",
        "    (+7.1 … +8.6 %), limit x <= 60 us",
    ]
