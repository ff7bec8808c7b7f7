"""report.lines: a text that fits is one line, and the same as if it were wrapped."""

from __future__ import annotations

import textwrap

from hypothesis import assume, given
from hypothesis import strategies as st

from pytest_gpuperf.report.lines import INDENT, wrapped


@given(
    text=st.text(st.sampled_from("ab1 …\t\n\u00a0<=-"), max_size=60),
    width=st.integers(40, 70),
    depth=st.integers(0, 2),
)
def test_a_text_that_fits_is_one_line(text: str, width: int, depth: int) -> None:
    """Only a text that is too long is wrapped."""
    text, indent = text.rstrip(), INDENT * depth
    assume(len(f"{indent}{text.expandtabs()}") <= width)
    lines = [line.text for line in wrapped(text, width=width, depth=depth)]

    whole = textwrap.wrap(text, width=1000, initial_indent=indent)
    assert lines == [line.replace("\u00a0", " ") for line in whole]


def test_a_blank_at_the_end_is_dropped() -> None:
    """It does not stay with the sign that it is kept together with."""
    assert [line.text for line in wrapped("a … ", width=40)] == ["a …"]
