"""The rules of model/quantity: what tools write beside a counter."""

from __future__ import annotations

import pytest

from pytest_gpuperf.model.quantity import counter_unit


@pytest.mark.parametrize(
    ("text", "si", "factor"),
    [
        ("byte", "bytes", 1.0),
        ("Kbyte", "bytes", 1e3),
        ("Gbyte", "bytes", 1e9),
        ("B", "bytes", 1.0),
        ("nsecond", "s", 1e-9),
        ("ns", "s", 1e-9),
        ("msecond", "s", 1e-3),
        ("%", "fraction", 0.01),
        ("hz", "Hz", 1.0),
        ("Ghz", "Hz", 1e9),
        ("cycle/nsecond", "Hz", 1e9),
        ("Gbyte/second", "bytes/s", 1e9),
        ("byte/nsecond", "bytes/s", 1e9),
        ("Kbyte/block", "bytes", 1e3),
        ("byte/thread", "bytes", 1.0),
    ],
)
def test_known_spellings(text: str, si: str, factor: float) -> None:
    """A tool's word becomes an SI unit and a factor."""
    unit = counter_unit(text)
    assert unit is not None
    assert unit.si == si
    assert unit.factor == pytest.approx(factor)


@pytest.mark.parametrize(
    "text", ["", "inst", "sector", "register/thread", "inst/cycle", "inst/second", "/"]
)
def test_words_for_counts_convert_to_nothing(text: str) -> None:
    """What is counted has no unit to convert."""
    assert counter_unit(text) is None
