"""model.counter_unit: units as profilers spell them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.model.counter_unit import counter_unit
from pytest_gpuperf.model.quantity import UNITS


@pytest.mark.parametrize(
    ("text", "si", "factor"),
    [
        ("byte", "bytes", 1.0),
        ("Kbyte", "bytes", 1e3),
        ("Gbyte", "bytes", 1e9),
        ("Kbyte/block", "bytes", 1e3),
        ("byte/second", "bytes/s", 1.0),
        ("Gbyte/s", "bytes/s", 1e9),
        ("byte/nsecond", "bytes/s", 1e9),
        ("usecond", "s", 1e-6),
        ("ns", "s", 1e-9),
        ("hz", "Hz", 1.0),
        ("Ghz", "Hz", 1e9),
        ("cycle/nsecond", "Hz", 1e9),
        ("cycle/second", "Hz", 1.0),
        ("%", "fraction", 0.01),
    ],
)
def test_a_size_a_time_or_a_rate_becomes_si(text: str, si: str, factor: float) -> None:
    """What a limit can be written in is read, whatever it is a share of."""
    found = counter_unit(text)

    assert found is not None
    assert found.si == si
    assert found.factor == pytest.approx(factor, rel=1e-12)


@pytest.mark.parametrize(
    "text",
    ["inst", "sector", "cycle", "register/thread", "", "/", "byte/", "/second"]
    + ["inst/cycle", "byte/cycle", "Xbyte", "KKbyte", "byte/byte", "cycle/second/s"],
)
def test_a_word_for_a_count_is_not_converted(text: str) -> None:
    """Instructions, sectors and cycles have no SI unit."""
    assert counter_unit(text) is None


@pytest.mark.parametrize("text", UNITS)
def test_a_unit_of_ours_is_itself(text: str) -> None:
    """An SI spelling means what it means in a limit."""
    assert counter_unit(text) == UNITS[text]


@given(st.text())
def test_any_text_is_read_or_not(text: str) -> None:
    """No unit of any tool breaks the reader."""
    found = counter_unit(text)

    assert found is None or found.factor > 0
