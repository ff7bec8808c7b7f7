"""Units as people and tools write them, read into SI.

The one place outside report/display that knows a percent from a fraction.
"""

from __future__ import annotations

import difflib
import math
import re
from types import MappingProxyType

from pytest_gpuperf.errors import UnitError
from pytest_gpuperf.model.frozen import Frozen

__all__ = [
    "GB",
    "MB",
    "UNITS",
    "GiB",
    "KiB",
    "MiB",
    "Quantity",
    "Unit",
    "counter_unit",
    "kB",
    "mJ",
    "ms",
    "ns",
    "parse_quantity",
    "s",
    "unit_named",
    "us",
]

_PREFIXES = MappingProxyType({"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12})
_SECONDS = MappingProxyType(
    {
        "second": 1.0,
        "msecond": 1e-3,
        "usecond": 1e-6,
        "nsecond": 1e-9,
        "s": 1.0,
        "ms": 1e-3,
        "us": 1e-6,
        "ns": 1e-9,
    }
)
_PLAIN = MappingProxyType({"byte": "bytes", "hz": "Hz"})
_PREFIXED = re.compile(r"(?P<prefix>[KMGT]?)(?P<unit>byte|hz)")
# "Kbyte/block" is a size and "register/thread" a count: what it is for adds no dimension
_SHARES = frozenset({"block", "thread", "warp", "SM", "request", "sector"})


class Unit(Frozen, frozen=True, kw_only=True):
    """
    One spelling of a unit.

    Attributes:
        si: The SI unit that it measures: "s", "bytes", "fraction", "count"…

        factor: How many of `si` it is.
    """

    si: str
    factor: float

    def to_si(self, number: float) -> float:
        """
        Return so many of this unit in `si`.

        The nearest number there is: 60 us is 60 / 1e6, which 60 * 1e-6 is not.

        Example:
            >>> Unit(si="s", factor=1e-6).to_si(60)
            6e-05
        """
        if 0 < self.factor < 1:
            return number / round(1 / self.factor)
        return number * self.factor


def _spelled() -> dict[str, Unit]:
    """Return every spelling that is read, as Unit by text."""
    table: dict[str, Unit] = {
        "%": Unit(si="fraction", factor=0.01),
        "fraction": Unit(si="fraction", factor=1.0),
        "count": Unit(si="count", factor=1.0),
        "s": Unit(si="s", factor=1.0),
        "ms": Unit(si="s", factor=1e-3),
        "us": Unit(si="s", factor=1e-6),
        "µs": Unit(si="s", factor=1e-6),  # U+00B5, the micro sign
        "\u03bcs": Unit(si="s", factor=1e-6),  # U+03BC, the Greek letter
        "ns": Unit(si="s", factor=1e-9),
        "min": Unit(si="s", factor=60.0),
        "J": Unit(si="J", factor=1.0),
        "mJ": Unit(si="J", factor=1e-3),
        "kJ": Unit(si="J", factor=1e3),
        "W": Unit(si="W", factor=1.0),
        "mW": Unit(si="W", factor=1e-3),
        "kW": Unit(si="W", factor=1e3),
        "Hz": Unit(si="Hz", factor=1.0),
        "kHz": Unit(si="Hz", factor=1e3),
        "MHz": Unit(si="Hz", factor=1e6),
        "GHz": Unit(si="Hz", factor=1e9),
        "1/s": Unit(si="1/s", factor=1.0),
        "/s": Unit(si="1/s", factor=1.0),
        "FLOP/B": Unit(si="FLOP/B", factor=1.0),
    }
    decimal = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
    binary = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
    for prefix, factor in (decimal | binary).items():
        table[f"{prefix}B"] = Unit(si="bytes", factor=factor)
        table[f"{prefix}B/s"] = Unit(si="bytes/s", factor=factor)
    for prefix, factor in decimal.items():
        table[f"{prefix}FLOP"] = Unit(si="FLOP", factor=factor)
        table[f"{prefix}FLOP/s"] = Unit(si="FLOP/s", factor=factor)
    table["bytes"] = table["byte"] = table["B"]
    table["bytes/s"] = table["byte/s"] = table["B/s"]
    table["KB"] = table["kB"]  # the common misspelling; 1000, as SI says
    return table


UNITS = MappingProxyType(_spelled())
_COMMON = ("s", "ms", "us", "B", "kB", "MB", "GB", "%", "FLOP/s")
_FEW = 4  # of one kind: more spellings hide the one that is meant

s = 1.0
ms = 1e-3
us = 1e-6
ns = 1e-9
mJ = 1e-3  # noqa: N816 - the unit's own spelling
kB = 1e3  # noqa: N816 - the unit's own spelling
MB = 1e6
GB = 1e9
KiB = 2.0**10
MiB = 2.0**20
GiB = 2.0**30

# ASCII digits alone: a reader takes those of other scripts for others than float() does
_DIGITS = r"[0-9]+(?:_[0-9]+)*"
_NUMBER = rf"[-+]?(?:{_DIGITS}(?:\.(?:{_DIGITS})?)?|\.{_DIGITS})(?:[eE][-+]?[0-9]+)?"
_QUANTITY = re.compile(rf"\s*(?P<number>{_NUMBER})\s*(?P<unit>.*?)\s*")


class Quantity(Frozen, frozen=True, kw_only=True):
    """
    A number with its unit.

    Attributes:
        value: The number, in `si`.

        si: Its SI unit; None where none was written.
    """

    value: float
    si: str | None


def unit_named(text: str, *, si: str | None = None) -> Unit:
    """
    Return the unit of one spelling.

    Args:
        text: The spelling.

        si: The SI unit that is expected: no unit of another kind is proposed; None: any.

    Raises:
        UnitError: There is none; the message names close ones.
    """
    if text in UNITS:
        return UNITS[text]
    proposed = [
        name for name, unit in UNITS.items() if si in {None, unit.si} and name.isascii()
    ]
    close = difflib.get_close_matches(text, proposed, n=3, cutoff=0.4)
    usual = _COMMON if si is None else proposed[:_FEW]
    message = f"unknown unit {text!r}"
    remedy = f"write one of: {', '.join(close or usual)}"
    raise UnitError(message, path="", remedy=remedy)


def parse_quantity(text: str, *, si: str | None = None) -> Quantity:
    """
    Read a number and its unit, as in "60 us" or "5 %".

    Args:
        text: The whole text; nothing may follow the unit.

        si: The SI unit that is expected, for what is proposed instead of an unknown one.

    Returns:
        The value in SI; a bare number has no unit.

    Raises:
        UnitError: It is not a finite number, or the unit is unknown.

    Example:
        >>> parse_quantity("60 us")
        Quantity(value=6e-05, si='s')
    """
    match = _QUANTITY.fullmatch(text)
    if match is None:
        message = f"{text!r} does not begin with a number"
        raise UnitError(message, path="", remedy="write a number and a unit: 60 us")
    number = float(match["number"])
    unit = unit_named(match["unit"], si=si) if match["unit"] else None
    value = number if unit is None else unit.to_si(number)
    if not math.isfinite(value):
        message = f"{text!r} is not a finite number"
        raise UnitError(message, path="", remedy="write a smaller number")
    return Quantity(value=value, si=None if unit is None else unit.si)


def counter_unit(text: str) -> Unit | None:
    """
    Return the unit that a tool wrote beside a counter.

    Values of counters keep their tool's unit everywhere; this is for the one moment when
    such a value is held against a limit that somebody wrote in bytes, seconds or percent.

    Args:
        text: As Nsight Compute or CUPTI spell it, or an SI unit of ours.

    Returns:
        The SI unit and the factor; None where it is a word for a count of something
        ("inst", "sector", "cycle"), which nothing converts.

    Example:
        >>> counter_unit("Kbyte").factor
        1000.0
    """
    if text in UNITS:
        return UNITS[text]
    if text in _SECONDS:
        return Unit(si="s", factor=_SECONDS[text])
    match = _PREFIXED.fullmatch(text)
    if match is not None:
        factor = _PREFIXES[match["prefix"]]
        return Unit(si=_PLAIN[match["unit"]], factor=factor)
    return _quotient(*text.partition("/")[::2])


def _quotient(top: str, bottom: str) -> Unit | None:
    """Return the unit of a rate or of a share; None where it is neither."""
    if bottom in _SHARES:
        return counter_unit(top)
    if bottom not in _SECONDS:
        return None
    if top == "cycle":  # older versions write a clock so
        return Unit(si="Hz", factor=1 / _SECONDS[bottom])
    upper = counter_unit(top)
    if upper is None or upper.si != "bytes":
        return None
    return Unit(si="bytes/s", factor=upper.factor / _SECONDS[bottom])
