"""report.display: numbers tell the truth, foreign text does nothing."""

from __future__ import annotations

import math
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.model.quantity import UNITS, parse_quantity
from pytest_gpuperf.model.sample import Estimate
from pytest_gpuperf.report import display
from pytest_gpuperf.report.escape import code, escape, quoted

SI_UNITS = sorted(
    ("s", "bytes", "bytes/s", "FLOP", "FLOP/s", "fraction", "J", "W", "Hz", "1/s")
)
numbers = st.floats(allow_nan=False, allow_infinity=False)
measured = st.floats(min_value=1e-12, max_value=1e18)


def shown_number(text: str) -> Decimal:
    """Return what a reader takes a text for, in SI, without rounding."""
    number, _, unit = text.partition(" ")
    factor = UNITS[unit].factor if unit else 1.0
    return Decimal(number) * Decimal(repr(factor))


def order(left: Decimal | float, right: Decimal | float) -> int:
    """Return -1, 0 or 1."""
    return (left > right) - (left < right)


@pytest.mark.parametrize(
    ("number", "unit", "text"),
    [
        (41.23e-6, "s", "41.2 us"),
        (183e-6, "s", "183 us"),
        (9.1e-6, "s", "9.10 us"),
        (999.96e-6, "s", "1.00 ms"),
        (2.5e-10, "s", "0.250 ns"),
        (1234.5, "s", "1234 s"),
        (0.0, "s", "0 s"),
        (-0.0, "s", "0 s"),
        (98304, "bytes", "98.3 kB"),
        (98305, "bytes", "98.3 kB"),
        (1048576, "bytes", "1.05 MB"),
        (40, "bytes", "40 B"),
        (1.1e9, "bytes", "1.1 GB"),
        (3.35e12, "bytes/s", "3.35 TB/s"),
        (9.895e14, "FLOP/s", "990 TFLOP/s"),
        (0.87, "fraction", "87.0 %"),
        (1.0, "fraction", "100 %"),
        (0.0, "fraction", "0 %"),
        (40, "count", "40"),
        (1.5, "count", "1.5"),
        (1234567890, "count", "1234567890"),
        (0.0123, "J", "12.3 mJ"),
        (412.3, "W", "412 W"),
        (1.98e9, "Hz", "1.98 GHz"),
        (76800000, "byte", "76.8 MB"),
        (64, "byte", "64 B"),
        (32.768, "Kbyte", "32.8 kB"),
        (2.4e12, "byte/second", "2.40 TB/s"),
        (1.5, "Gbyte/s", "1.50 GB/s"),
        (32.768, "Kbyte/block", "32.8 Kbyte/block"),
        (4.0, "MiB", "4 MiB"),
        (12.3456, "inst/cycle", "12.3 inst/cycle"),
        (40, "", "40"),
        (1e-30, "count", "1e-30"),
    ],
)
def test_a_value_has_three_digits_and_a_unit_of_its_size(
    number: float, unit: str, text: str
) -> None:
    """In the unit of its size; of a tool's units those of bytes alone are read as SI."""
    assert display.value(number, unit) == text


@given(left=st.integers(0, 10**15), right=st.integers(0, 10**15))
def test_bytes_look_alike_whoever_counted_them(left: int, right: int) -> None:
    """A counter's `byte` is our `bytes` in a value, beside another and in an interval."""
    assert display.value(left, "byte") == display.value(left, "bytes")
    assert display.exactly(left, "byte") == display.exactly(left, "bytes")
    for show in (display.pair, display.interval):
        low, high = sorted((left, right))
        assert show(low, high, "byte") == show(low, high, "bytes")


@pytest.mark.parametrize("number", [0.99996, 0.999999, 1e-7, 1.00001])
def test_a_fraction_is_all_or_nothing_only_when_it_is(number: float) -> None:
    """0 % and 100 % are written for exactly 0 and 1."""
    text = display.value(number, "fraction")

    assert order(shown_number(text), 1) == order(number, 1.0)
    assert shown_number(text) > 0


@given(number=numbers, limit=numbers, unit=st.sampled_from([*SI_UNITS, "count"]))
def test_a_value_never_looks_on_the_other_side_of_its_limit(
    number: float, limit: float, unit: str
) -> None:
    """However near, a value beside its limit reads as it is: below, equal or above."""
    value, held = display.pair(number, limit, unit, is_limit=True)

    assert order(shown_number(value), shown_number(held)) == order(number, limit)


@given(
    limit=st.sampled_from([60e-6, 0.8, 1.0, 64.0, 1.1e9]),
    steps=st.integers(min_value=-3, max_value=3),
    unit=st.sampled_from([*SI_UNITS, "count"]),
)
def test_the_nearest_floats_are_told_apart(limit: float, steps: int, unit: str) -> None:
    """A value one float away from its limit shows it."""
    number = limit * (1 + steps * 2.3e-16)
    value, held = display.pair(number, limit, unit, is_limit=True)

    assert order(shown_number(value), shown_number(held)) == order(number, limit)
    assert held == display.exactly(limit, unit)


@given(number=numbers, other=numbers, unit=st.sampled_from(SI_UNITS))
def test_what_is_more_looks_like_more(number: float, other: float, unit: str) -> None:
    """A value and what it was are in the order that they are in, unless it is rounding."""
    now, then = display.pair(number, other, unit)
    expected = 0 if math.isclose(number, other, rel_tol=1e-9) else order(number, other)

    assert order(shown_number(now), shown_number(then)) == expected


@pytest.mark.parametrize("share", [1e-15, -1e-15, 1e-10])
def test_what_rounding_left_is_not_a_difference(share: float) -> None:
    """Nobody reads sixteen digits to learn that a time is what it was."""
    assert display.pair(300e-6 * (1 + share), 300e-6, "s") == ("300 us", "300 us")


class OtherFloat(float):
    """A number that is written by way of a decimal, as any that is no plain float."""


near_ties = st.builds(
    lambda digits, exponent: digits * 10.0**exponent,
    st.integers(-99_999, 99_999),
    st.integers(-14, 12),
)


@given(
    number=numbers | near_ties | st.floats(-1.1, 1.1),
    unit=st.sampled_from(SI_UNITS),
    digits=st.integers(1, 5),
    limits=st.lists(st.sampled_from([0.05, -0.05, 0.1]), max_size=2),
)
def test_a_float_reads_as_its_decimal(
    number: float, unit: str, digits: int, limits: list[float]
) -> None:
    """Usual numbers are written without decimals, and no digit differs."""
    other = OtherFloat(number)

    assert display.value(number, unit, digits=digits) == display.value(
        other, unit, digits=digits
    )
    for signed in (True, False):
        assert display.change(number, limits=limits, signed=signed) == display.change(
            other, limits=limits, signed=signed
        )


@given(number=measured, unit=st.sampled_from(SI_UNITS))
def test_a_printed_value_is_a_limit_that_can_be_written(
    number: float, unit: str
) -> None:
    """What is printed may be typed into a marker, and means nearly the same."""
    quantity = parse_quantity(display.value(number, unit))

    assert quantity.si == unit
    assert quantity.value == pytest.approx(number, rel=0.005)


@given(number=measured, unit=st.sampled_from(SI_UNITS))
def test_a_limit_is_shown_with_all_its_digits(number: float, unit: str) -> None:
    """Nothing of what a person wrote is rounded away."""
    assert shown_number(display.exactly(number, unit)) == Decimal(repr(number))


@given(
    effect=st.floats(min_value=-1, max_value=1e6),
    limit=st.sampled_from([0.05, 0.02, 0.0]),
)
def test_a_change_never_looks_on_the_other_side_of_its_limit(
    effect: float, limit: float
) -> None:
    """+5.0 % is never written for what is more than 5 %."""
    text = display.change(effect, limits=(limit,))

    assert order(Decimal(text.removesuffix(" %")), Decimal(str(limit)) * 100) == order(
        effect, limit
    )


@pytest.mark.parametrize(
    ("effect", "text"),
    [
        (0.079, "+7.9 %"),
        (-0.0123, "-1.2 %"),
        (0.0, "0.0 %"),
        (-0.00001, "0.0 %"),
        (1.5, "+150 %"),
        (0.9999, "+100.0 %"),
    ],
)
def test_a_change_has_a_sign_and_one_place(effect: float, text: str) -> None:
    """A change is written in percent, with its sign."""
    assert display.change(effect) == text


def test_the_last_digits_of_a_rate_are_noise() -> None:
    """A count is exact to its last digit; what is divided by a time is not."""
    assert display.value(95_697.0, "sample/s") == "95700 sample/s"
    assert display.value(95_697.0, "sample") == "95697 sample"
    assert display.value(0.123456, "row/s") == "0.123 row/s"
    assert display.pair(95_697.0, 95_698.0, "row/s") == ("95697 row/s", "95698 row/s")


@pytest.mark.parametrize(
    ("name", "text", "label", "shown"),
    [
        ("gpu_memory_bytes", "150754820096", "gpu memory", "151 GB"),
        ("max_sm_clock_hz", "1980000000", "max sm clock", "1.98 GHz"),
        ("power_limit_watts", "700", "power limit", "700 W"),
        ("peak", "dram 4814.3 GB/s (declared)", "peak", "dram 4.81 TB/s (declared)"),
        ("peak", "fp8 1.97921e+06 GFLOP/s (x)", "peak", "fp8 1.98 PFLOP/s (x)"),
        ("driver", "580.159.04", "driver", "580.159.04"),
        ("parameters", "bytes=150754820096", "parameters", "bytes=150754820096"),
    ],
)
def test_a_fact_is_told_in_units_that_people_read(
    name: str, text: str, label: str, shown: str
) -> None:
    """A record has SI numbers, its name their unit; what is no number stays."""
    assert (display.fact_label(name), display.fact(name, text)) == (label, shown)


def test_two_facts_that_differ_look_different() -> None:
    """Else a report would say that 80.0 GB became 80.0 GB."""
    near = ("80000000001", "80000000002")

    assert display.moved_fact("gpu_memory_bytes", *near) == near
    assert display.moved_fact("power_limit_watts", "700", "600") == ("700 W", "600 W")


def test_limits_alone_are_written_in_kib() -> None:
    """They are shown as they were written; values of one column have one kind of unit."""
    assert display.exactly(49152, "bytes") == "48 KiB"
    assert display.pair(65536, 49152, "bytes", is_limit=True) == ("64 KiB", "48 KiB")
    assert display.pair(4224, 4096, "bytes") == ("4.22 kB", "4.10 kB")
    assert display.pair(8192, 4096, "bytes") == ("8.19 kB", "4.10 kB")


def test_an_interval_names_its_unit_once() -> None:
    """Both ends share a unit where they can, and are told apart."""
    assert display.interval(61.1e-6, 61.5e-6, "s") == "61.1 … 61.5 us"
    assert display.interval(999e-9, 1.2e-6, "s") == "999 ns … 1.20 us"
    assert display.interval(1, 2, "count") == "1 … 2"
    assert display.interval(61.11e-6, 61.12e-6, "s") == "61.11 … 61.12 us"
    assert display.change_interval(0.071, 0.086) == "+7.1 … +8.6 %"


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (99.7, 100.3, "±0.3 %"),
        (94.0, 101.0, "±6 %"),
        (98.5, 100.0, "±1.5 %"),
        (99.75, 100.0, "±0.2 %"),  # Ties go to the even digit.
        (99.65, 100.0, "±0.4 %"),  # As written: the nearest float is below the tie.
        (98.85, 100.0, "±1.2 %"),
        (98.04, 100.0, "±2 %"),
        (98.06, 100.0, "±1.9 %"),
        (18.5, 100.0, "±82 %"),
        (18.51, 100.0, "±81 %"),
        (100.0, 100.0, "±0 %"),
        (100.0, 350.0, "±250 %"),
        (100.0, 2600.0, "±2,500 %"),
        (100.0, 12345.0, "±12,245 %"),
        (100.0, 1e300, "±1e+300 %"),
        (None, None, ""),
    ],
)
def test_a_spread_is_the_longer_half_of_the_interval(
    low: float | None, high: float | None, text: str
) -> None:
    """One digit says how far a value is known; without an interval nothing is said."""
    estimate = Estimate(
        metric="m", value=100.0, unit="s", source="host", low=low, high=high
    )

    assert display.spread(estimate) == text


def test_a_day_is_utc_and_a_wrong_time_is_no_error() -> None:
    """A report is the same wherever it is read."""
    assert display.date(1793600000) == "2026-11-02"
    assert display.date(1e300) == "?"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("void rmsnorm<float, 4>(T*)", "void rmsnorm<float, 4>(T*)"),
        ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),
        ("a\r\nb\tc", r"a\x0d\x0ab\x09c"),
        ("\x9b2J", r"\x9b2J"),
        ("\u202eevil\u2066", r"\u202eevil\u2066"),
        ("zero\u200bwidth\u2028", r"zero\u200bwidth\u2028"),
        ("\udc80", r"\udc80"),
        ("\U000e0041", r"\U000e0041"),
        ("größe", "größe"),
    ],
)
def test_nothing_in_a_name_reaches_the_terminal_as_a_command(
    text: str, shown: str
) -> None:
    """Control characters, writing direction and what is invisible are spelled out."""
    assert escape(text) == shown


@given(st.text())
def test_escaped_text_is_one_line_that_can_be_encoded(text: str) -> None:
    """Whatever a name holds, it is printable, on one line, and UTF-8."""
    shown = escape(text)

    assert len(shown.splitlines()) <= 1
    assert shown.encode("utf-8")[:0] == b""


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("a|b", r"`a\|b`"),
        ("<script>", "`<script>`"),
        ("tick ` tick", "``tick ` tick``"),
        ("`", "`` ` ``"),
        ("", ""),
    ],
)
def test_markdown_takes_a_name_as_code(text: str, cell: str) -> None:
    """No name is markup, ends its cell or mentions anybody."""
    assert code(text) == cell


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("tests/test_a.py::test_b", "tests/test_a.py::test_b"),
        ("test_a.py::test_b[4 x]", '"test_a.py::test_b[4 x]"'),
        ("test[$HOME]", "'test[$HOME]'"),
        ("it's $", "'it'\"'\"'s $'"),
        ("", '""'),
    ],
)
def test_a_command_can_be_pasted(text: str, word: str) -> None:
    """A test id is one word of a shell, whatever is in it."""
    assert quoted(text) == word


def test_counts_have_their_noun() -> None:
    """One is one; all others are many."""
    assert display.plural(1, "session") == "1 session"
    assert display.plural(0, "process", "processes") == "0 processes"
