"""Units as people and tools write them, converted to SI.

Only this module and report/display distinguish a percent from a fraction.
"""

from __future__ import annotations

import difflib
import math
import re
from types import MappingProxyType

from pytest_gpuperf.errors import UnitError
from pytest_gpuperf.model.frozen import Frozen

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
# "Kbyte/block" is a size and "register/thread" a count. These words add no dimension.
_SHARES = frozenset({"block", "thread", "warp", "SM", "request", "sector"})


class Unit(Frozen, frozen=True, kw_only=True):
    """
    A spelling of a unit.

    Attributes:
        si: The SI unit that the spelling measures: "s", "bytes", "fraction", "count"…

        factor: Number of `si` in one unit.
    """

    si: str
    factor: float

    def to_si(self, number: float) -> float:
        """
        Convert a number of this unit to `si`.

        The result is the nearest float: 60 us is 60 / 1e6, which differs from 60 *
        1e-6.

        Example:
            >>> Unit(si="s", factor=1e-6).to_si(60)
            6e-05
        """
        if 0 < self.factor < 1:
            return number / round(1 / self.factor)
        return number * self.factor


def _spelled() -> dict[str, Unit]:
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
    table["KB"] = table["kB"]  # A common misspelling. 1000, as in SI.
    return table


UNITS = MappingProxyType(_spelled())
_COMMON = ("s", "ms", "us", "B", "kB", "MB", "GB", "%", "FLOP/s")
_FEW = 4  # Suggested spellings of a kind. More would hide the intended one.

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

# ASCII digits only, because readers may mistake digits of other scripts.
_DIGITS = r"[0-9]+(?:_[0-9]+)*"
_NUMBER = rf"[-+]?(?:{_DIGITS}(?:\.(?:{_DIGITS})?)?|\.{_DIGITS})(?:[eE][-+]?[0-9]+)?"
_QUANTITY = re.compile(rf"\s*(?P<number>{_NUMBER})\s*(?P<unit>.*?)\s*")


class Quantity(Frozen, frozen=True, kw_only=True):
    """
    A number with a unit.

    Attributes:
        value: The number, in `si`.

        si: The SI unit, or None if no unit was written.
    """

    value: float
    si: str | None


def unit_named(text: str, *, si: str | None = None) -> Unit:
    """
    Look up the unit of a spelling.

    Args:
        text: The spelling.

        si: The expected SI unit, or None for any. Only units of that kind are
            suggested.

    Raises:
        UnitError: The unit is unknown. The message suggests similar units.
    """
    if text in UNITS:
        return UNITS[text]
    proposed = [
        name for name, unit in UNITS.items() if si in {None, unit.si} and name.isascii()
    ]
    # A whole word, as milliseconds, is like a wrong symbol by chance.
    is_word = len(text) > max(map(len, proposed), default=0)
    close = (
        [] if is_word else difflib.get_close_matches(text, proposed, n=_FEW, cutoff=0.4)
    )
    usual = _COMMON if si is None else proposed[:_FEW]
    message = f"unknown unit {text!r}"
    remedy = f"write one of: {', '.join(close or usual)}"
    raise UnitError(message, path="", remedy=remedy)


def parse_quantity(text: str, *, si: str | None = None) -> Quantity:
    """
    Parse a number and a unit, as in "60 us" or "5 %".

    Args:
        text: The whole text. Nothing may follow the unit.

        si: The expected SI unit, for suggestions instead of an unknown unit.

    Returns:
        The value in SI. A bare number has no unit.

    Raises:
        UnitError: The text is not a finite number, or the unit is unknown.

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
    Return the unit that a tool wrote next to a counter.

    Counter values keep the unit of their tool everywhere. This function is only for
    comparing such a value with a limit in bytes, seconds or percent.

    Args:
        text: As spelled by Nsight Compute or CUPTI, or an SI unit of this package.

    Returns:
        The SI unit and the factor, or None for a count of something ("inst", "sector",
        "cycle") that nothing converts.

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
    """Return the unit of a rate or a share, or None for other quotients."""
    if bottom in _SHARES:
        return counter_unit(top)
    if bottom not in _SECONDS:
        return None
    if top == "cycle":  # Older versions write a clock like this.
        return Unit(si="Hz", factor=1 / _SECONDS[bottom])
    upper = counter_unit(top)
    if upper is None or upper.si != "bytes":
        return None
    return Unit(si="bytes/s", factor=upper.factor / _SECONDS[bottom])
