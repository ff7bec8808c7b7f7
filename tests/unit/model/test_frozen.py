"""model.frozen: what is not a number, and how a message shows it."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.model.frozen import (
    no_number,
    not_finite,
    shown,
    stated,
    with_checked,
)
from pytest_gpuperf.model.record import SessionValue


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**70), 2**70))
def test_what_a_float_holds_is_a_number(value: float) -> None:
    """Of any size and sign, and of other libraries too."""
    assert no_number(value) == ""
    assert no_number(Fraction(1, 3)) == ""


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 10**400, -(10**400)])
def test_what_no_float_holds_is_not_finite(value: float) -> None:
    """An integer may be too large as well: it is not converted to find out later."""
    assert no_number(value).endswith("is not a finite number")


@pytest.mark.parametrize("value", [None, "1", b"1", True, 1j, [], {}, Decimal(1)])
def test_what_is_of_another_type_is_no_number(value: object) -> None:
    """A text is not read, a truth not counted."""
    assert no_number(value) == f"{value!r} is not a number"


def test_a_copy_with_checked_fields_leaves_the_record_as_it_is() -> None:
    """Both are whole records: only the named fields differ."""
    value = SessionValue(metric="time", unit="s", source="host", run_values=(1.0,))
    copied = with_checked(value, run_values=(2.0,), half_widths=(0.1,))
    assert value.run_values == (1.0,)
    assert copied == SessionValue(
        metric="time", unit="s", source="host", run_values=(2.0,), half_widths=(0.1,)
    )


def test_a_message_stays_short() -> None:
    """Neither a long value nor an integer that Python refuses to print fills it."""
    assert shown("x" * 100) == "'" + "x" * 39 + "…"
    assert shown(10**5000) == f"an integer of {(10**5000).bit_length()} bits"
    assert shown(2**64) == "18446744073709551616"


def test_every_field_that_is_no_number_is_told() -> None:
    """With its path; what gives no numbers by name is one mistake."""
    numbers: dict[str, Any] = {"a": 1.0, "b": None, "c": math.nan}

    assert [each.path for each in not_finite("p", numbers)] == ["p.b", "p.c"]
    assert [each.path for each in not_finite("", numbers)] == ["b", "c"]
    assert [str(each) for each in not_finite("p", None)] == [
        "p: None does not give numbers by name"
    ]


def test_a_zero_is_stated() -> None:
    """Only None means that the source did not say."""
    assert stated({"a": 0.0, "b": None, "c": ""}) == {"a": 0.0, "c": ""}
