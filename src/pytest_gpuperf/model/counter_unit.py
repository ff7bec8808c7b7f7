"""Units of hardware counters, as their tools spell them, read into SI; PYTEST_DONT_REWRITE.

Values of counters keep their tool's unit everywhere; this is for the one moment when such
a value is held against a limit that somebody wrote in bytes, seconds or percent.
"""

from __future__ import annotations

import re
from types import MappingProxyType

from pytest_gpuperf.model.quantity import UNITS, Unit

__all__ = ["counter_unit"]

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


def counter_unit(text: str) -> Unit | None:
    """
    Return the unit that a tool wrote beside a counter.

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
