"""model.quantity: numbers with units, as people write them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pytest_gpuperf
from pytest_gpuperf.errors import UnitError
from pytest_gpuperf.model import quantity
from pytest_gpuperf.model.quantity import UNITS, Unit, parse_quantity, unit_named

MODEST = st.floats(min_value=1e-12, max_value=1e12).flatmap(
    lambda number: st.sampled_from((number, -number))
)


@pytest.mark.parametrize("unit", UNITS)
def test_every_unit_is_read(unit: str) -> None:
    """A number and a known unit give that many of its SI unit, spaced or not."""
    expected = UNITS[unit]

    texts = [f"2 {unit}", f"  2 \t{unit} \n", f"+2.0e0 {unit}"]
    if not unit[0].isdigit():  # "21/s" would be 21 of something
        texts += [f"2{unit}", f"2.{unit}"]
    for text in texts:
        found = parse_quantity(text)
        assert found.si == expected.si
        assert found.value == pytest.approx(2 * expected.factor, rel=1e-15)


@pytest.mark.parametrize("unit", UNITS)
@settings(max_examples=10)
@given(value=MODEST)
def test_a_unit_is_inverted_by_dividing(unit: str, value: float) -> None:
    """What was read, over the unit's factor, is the number that was written."""
    found = parse_quantity(f"{value!r} {unit}")

    assert found.value / UNITS[unit].factor == pytest.approx(value, rel=1e-14, abs=0)


@given(number=st.integers(min_value=0, max_value=10**6))
def test_a_quantity_is_the_nearest_number_there_is(number: int) -> None:
    """60 us is the float 60e-6, which 60 * 1e-6 is not."""
    for unit, exponent in (("ms", -3), ("us", -6), ("ns", -9), ("%", -2), ("mJ", -3)):
        assert parse_quantity(f"{number} {unit}").value == float(f"{number}e{exponent}")
        assert UNITS[unit].to_si(number) == float(f"{number}e{exponent}")


@given(number=st.floats(), unit=st.sampled_from(sorted(UNITS)))
def test_a_factor_never_changes_a_sign(number: float, unit: str) -> None:
    """What is negative stays so, and what is not a number stays none."""
    found = UNITS[unit].to_si(number)

    if not math.isnan(number):
        assert math.copysign(1, found) == math.copysign(1, number)
    else:
        assert math.isnan(found)


def test_a_unit_of_nothing_is_no_division_by_zero() -> None:
    """Any factor multiplies, also one that nobody would write."""
    assert Unit(si="s", factor=0.0).to_si(3.0) == 0.0


@pytest.mark.parametrize(
    ("text", "value", "si"),
    [
        ("60us", 60e-6, "s"),
        ("60 \N{MICRO SIGN}s", 60e-6, "s"),
        ("60 \N{GREEK SMALL LETTER MU}s", 60e-6, "s"),
        ("60\N{NO-BREAK SPACE}us", 60e-6, "s"),
        ("5%", 0.05, "fraction"),
        ("-5 %", -0.05, "fraction"),
        ("1e3 ns", 1e-6, "s"),
        ("1E-3s", 1e-3, "s"),
        ("1_000 us", 1e-3, "s"),
        ("1_0.2_5 s", 10.25, "s"),
        (".5 ms", 0.5e-3, "s"),
        ("5. ms", 5e-3, "s"),
        ("64", 64.0, None),
        (" 1.5 ", 1.5, None),
        ("2 KB", 2000.0, "bytes"),
        ("2 KiB", 2048.0, "bytes"),
        ("1.1e9 B", 1.1e9, "bytes"),
        ("3 TB/s", 3e12, "bytes/s"),
        ("1 byte/s", 1.0, "bytes/s"),
        ("2 PFLOP/s", 2e15, "FLOP/s"),
        ("2 min", 120.0, "s"),
        ("700 W", 700.0, "W"),
    ],
)
def test_what_people_write_is_read(text: str, value: float, si: str | None) -> None:
    """Both micro signs, a percent sign, exponents, digit groups and bare numbers."""
    found = parse_quantity(text)

    assert (found.value, found.si) == (value, si)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   ",
        "us",
        "nan",
        "inf",
        "-inf us",
        "NaN %",
        "\N{ARABIC-INDIC DIGIT THREE} us",
        "6\N{SUPERSCRIPT TWO} us",
        "\N{FULLWIDTH DIGIT SIX}0 us",
        "\N{MINUS SIGN}5 %",
        ".",
        "e3",
        "_1 us",
    ],
)
def test_what_does_not_begin_with_a_number_is_refused(text: str) -> None:
    """A digit of another script is not a digit here: readers take it for another number."""
    with pytest.raises(UnitError) as caught:
        parse_quantity(text)

    assert repr(text) in caught.value.message or "unknown unit" in caught.value.message
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        ("2KBfoo", "KBfoo"),
        ("2 KB foo", "KB foo"),
        ("1 000 us", "000 us"),
        ("1,5 ms", ",5 ms"),
        ("1__0 us", "__0 us"),
        ("1_ us", "_ us"),
        ("1._5 us", "_5 us"),
        ("1e us", "e us"),
        ("0x10", "x10"),
        ("5 %%", "%%"),
        ("60 US", "US"),
        ("60 \N{MICRO SIGN}S", "\N{MICRO SIGN}S"),
    ],
)
def test_the_whole_text_must_be_read(text: str, unit: str) -> None:
    """What follows a number is a unit or a mistake, which is quoted."""
    with pytest.raises(UnitError) as caught:
        parse_quantity(text)

    assert caught.value.message == f"unknown unit {unit!r}"


@pytest.mark.parametrize("text", ["1e400", "1e400 us", "1e308 GB", "-1e308 min"])
def test_a_quantity_is_finite(text: str) -> None:
    """A number that no float can hold is refused, in its own unit and in SI."""
    with pytest.raises(UnitError, match="is not a finite number"):
        parse_quantity(text)


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    """Whatever is written: a finite quantity of a known unit, or a UnitError."""
    try:
        found = parse_quantity(text)
    except UnitError:
        return
    assert math.isfinite(found.value)
    assert found.si is None or found.si in {unit.si for unit in UNITS.values()}


@pytest.mark.parametrize(
    ("text", "close"), [("usec", "us"), ("Gib", "GiB"), ("FLOPs/s", "FLOP/s")]
)
def test_an_unknown_unit_names_close_ones(text: str, close: str) -> None:
    """A misspelt unit is answered with what was meant."""
    with pytest.raises(UnitError) as caught:
        unit_named(text)

    assert caught.value.message == f"unknown unit {text!r}"
    assert close in caught.value.remedy.removeprefix("write one of: ").split(", ")


@pytest.mark.parametrize(
    ("text", "si", "proposed"),
    [
        ("m", "s", "ms, min"),
        ("m", "J", "mJ"),
        ("Gb", "bytes", "GB, GiB"),
        ("xyz", "s", "s, ms, us, ns"),
        ("sec", "s", "s, us, ns, ms"),
        ("milliseconds", "s", "s, ms, us, ns"),
        ("xyz", "W", "W, mW, kW"),
    ],
)
def test_units_of_another_kind_are_not_proposed(
    text: str, si: str, proposed: str
) -> None:
    """Where it is known what is measured, nothing else can have been meant."""
    with pytest.raises(UnitError) as caught:
        parse_quantity(f"60 {text}", si=si)

    assert caught.value.remedy == f"write one of: {proposed}"


def test_a_unit_that_is_like_none_gets_the_common_ones() -> None:
    """There is always something to choose from."""
    with pytest.raises(UnitError, match="write one of: s, ms, us, B, kB, MB, GB, %"):
        unit_named("\N{SNOWMAN}" * 9)


def test_units_that_differ_in_case_alone_are_kept_apart() -> None:
    """No spelling is folded: mW is not MW, and Gb is not a GB."""
    assert UNITS["mJ"].factor != UNITS["kJ"].factor
    for text in ("Gb", "gb", "Ms", "S", "hz"):
        with pytest.raises(UnitError):
            unit_named(text)


@pytest.mark.parametrize(
    "name", ["s", "ms", "us", "ns", "mJ", "kB", "MB", "GB", "KiB", "MiB", "GiB"]
)
def test_the_constants_are_the_units(name: str) -> None:
    """`60 * us` in a test is "60 us" in a limit; they are plain floats, and public."""
    constant = getattr(quantity, name)

    assert type(constant) is float
    assert constant == UNITS[name].factor == getattr(pytest_gpuperf, name)
