"""Peaks as a person declares them in the ini file, read from text; PYTEST_DONT_REWRITE."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from pytest_gpuperf.errors import ConfigError, UnitError
from pytest_gpuperf.model.quantity import parse_quantity
from pytest_gpuperf.model.roofline import LEVELS
from pytest_gpuperf.model.work import DTYPE_BYTES

__all__ = ["DeclaredPeaks", "parse_peaks"]

DeclaredPeaks = Mapping[str, Mapping[str, float]]

_EXAMPLE = "NVIDIA H200: fp8 1500 TFLOP/s, l2 5.5 TB/s"  # what is never detected
_PART = re.compile(r"[^,]+")
_UNITS = dict.fromkeys(LEVELS, "bytes/s") | dict.fromkeys(DTYPE_BYTES, "FLOP/s")


def parse_peaks(text: str) -> DeclaredPeaks:
    """
    Read declared peaks, a device a line.

    Args:
        text: Lines as `NVIDIA H200: fp8 1500 TFLOP/s, l2 5.5 TB/s`: the name as the
            driver spells it, or `cpu`; then a level of memory with bytes/s, or a data
            type with FLOP/s. Empty lines and those that begin with # say nothing.

    Returns:
        Peak by field and by device [B/s or FLOP/s].

    Raises:
        ConfigError: Something is wrong; every mistake is named with line and column.

    Example:
        >>> parse_peaks("cpu: dram 20 GB/s")
        {'cpu': {'dram': 20000000000.0}}
    """
    found: dict[str, dict[str, float]] = {}
    mistakes: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            for column, mistake in _read_line(line, found):
                mistakes.append(f"line {number}, column {column + 1}: {mistake}")
    if mistakes:
        raise ConfigError("; ".join(mistakes), remedy=f"write {_EXAMPLE}")
    return found


def _read_line(
    line: str, found: dict[str, dict[str, float]]
) -> Iterator[tuple[int, str]]:
    """Put the peaks of a line into what was found; yield its mistakes with their place."""
    name, colon, rest = line.partition(":")
    device = name.strip()
    start = line.index(line.lstrip())
    if not colon or not device:
        yield start, "no device is named before a colon"
    elif device in found:
        yield start, f"{device} has a line already"
    peaks: dict[str, float] = {}
    found.setdefault(device, peaks)
    if not colon:
        return
    if device and not rest.strip():
        yield len(line.rstrip()), f"{device} has no peak"
    for part in _PART.finditer(rest):
        said = part[0].strip()
        column = len(name) + 1 + part.start() + part[0].find(said)
        field, _, amount = said.partition(" ")
        if field in peaks:
            yield column, f"{field} stands there twice"
        mistake = _read_part(field, amount, peaks)
        if mistake:
            yield column, mistake


def _read_part(field: str, amount: str, peaks: dict[str, float]) -> str:
    """Put one peak into those of its device; return what is wrong with it, or ""."""
    unit = _UNITS.get(field)
    if unit is None:
        return f"{field!r} is neither memory nor a data type: {', '.join(_UNITS)}"
    peaks[field] = 0.0  # it was there, whatever is wrong with it
    try:
        quantity = parse_quantity(amount)
    except UnitError as error:
        return f"{field}: {error.message}"
    if quantity.si != unit:
        return f"{field} is given in {unit}, as {_like(unit)}"
    if quantity.value <= 0:
        return f"{field}: a peak is above zero"
    peaks[field] = quantity.value
    return ""


def _like(unit: str) -> str:
    """Return an amount in a unit, to show how it is written."""
    return "4.5 TB/s" if unit == "bytes/s" else "800 TFLOP/s"
