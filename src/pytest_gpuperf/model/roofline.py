"""Peaks of a device, as found or declared, what a call reached of them, and its grade."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Literal

from pytest_gpuperf.errors import ConfigError, RecordError, UnitError
from pytest_gpuperf.model.frozen import Frozen, finite, not_finite, positive, refuse
from pytest_gpuperf.model.quantity import parse_quantity
from pytest_gpuperf.model.sample import SourceLabel
from pytest_gpuperf.model.work import DTYPE_BYTES

__all__ = [
    "ABOVE_THE_ROOF",
    "LEVELS",
    "TRAINING_BANDS",
    "Attainment",
    "Bands",
    "Bound",
    "DeclaredPeaks",
    "Grade",
    "Peak",
    "Peaks",
    "Roofline",
    "TimeBound",
    "parse_peaks",
    "weakest",
]

Bound = Literal["memory", "compute"]  # "latency" is an answer of the limiter
LEVELS = ("l1", "l2", "dram")
# more than the roof allows, and 5 % for the noise of the measurement
ABOVE_THE_ROOF = 1.05

_ORDER = tuple(SourceLabel)

DeclaredPeaks = Mapping[str, Mapping[str, float]]

_EXAMPLE = "NVIDIA H200: fp8 1500 TFLOP/s, l2 5.5 TB/s"  # what is never detected
_PART = re.compile(r"[^,]+")
_UNITS = dict.fromkeys(LEVELS, "bytes/s") | dict.fromkeys(DTYPE_BYTES, "FLOP/s")


def weakest(*labels: SourceLabel) -> SourceLabel:
    """
    Return the weakest of some labels, at least one.

    Example:
        >>> weakest(SourceLabel.DETECTED, SourceLabel.DATASHEET).value
        'datasheet'
    """
    return max(labels, key=_ORDER.index)


class Peak(Frozen, frozen=True, kw_only=True):
    """
    The most that a device can do of one thing, or why that is not known.

    Attributes:
        value: FLOP/s or bytes/s, as the field of `Peaks` says; None: not known.

        label: How it came to be known; unavailable where it is not.

        source: Where it came from, as a phrase; why it is not known, where it is not.

        clock_hz: The multiprocessor clock at which it holds [Hz]; None where it does not
            follow that clock, or the clock is not known.
    """

    value: float | None
    label: SourceLabel
    source: str
    clock_hz: float | None = None

    def __post_init__(self) -> None:
        """Refuse a peak without a value that claims a source, and the reverse."""
        positive("peak.value", self.value)
        positive("peak.clock_hz", self.clock_hz)
        if (self.value is None) is not (self.label is SourceLabel.UNAVAILABLE):
            message = f"the value {self.value!r} is labelled {self.label.value}"
            raise RecordError(message, path="peak.label")


class Peaks(Frozen, frozen=True, kw_only=True):
    """
    The roofs of one device.

    Attributes:
        device: Whose they are: the driver's name, or "cpu".

        flop_per_s: Peak by data type [FLOP/s]; operations for int4 and int8.

        bytes_per_s: Peak by level of memory [B/s]: "dram", "l2", "l1".

        unlisted: Why a peak that is not in the mappings is not known.

        l2_bytes: Size of the L2 cache [B]; 0: no cache is told from the memory behind
            it, as on a CPU; None: not known.

        notes: What a reader of the figures should know, a sentence each.
    """

    device: str
    flop_per_s: Mapping[str, Peak]
    bytes_per_s: Mapping[str, Peak]
    unlisted: str
    l2_bytes: int | None = None
    notes: tuple[str, ...] = ()

    def of_dtype(self, dtype: str) -> Peak:
        """Return the peak of a data type; unavailable with the reason if not known."""
        return self.flop_per_s.get(dtype) or self._unknown()

    def of_memory(self, level: str) -> Peak:
        """Return the peak of a level of memory; unavailable if not known."""
        return self.bytes_per_s.get(level) or self._unknown()

    def _unknown(self) -> Peak:
        """Return a peak that is not known."""
        return Peak(value=None, label=SourceLabel.UNAVAILABLE, source=self.unlisted)


class Roofline(Frozen, frozen=True, kw_only=True):
    """
    Where a call stands under a roof of two parts, and how near it came.

    Attributes:
        intensity_flop_per_byte: FLOP for each byte moved; infinite where none is moved.

        ridge_flop_per_byte: The intensity at which the roof's two parts meet.

        bound: "memory" below the ridge, "compute" from it on.

        attainable_flop_per_s: What the roof allows at that intensity [FLOP/s].

        achieved_flop_per_s: What was reached [FLOP/s].

        achieved_bytes_per_s: Bytes moved by time [B/s].

        fraction: Achieved over attainable, never clamped: 1.3 says that the time, the
            work or a peak is not what it seems.
    """

    intensity_flop_per_byte: float
    ridge_flop_per_byte: float
    bound: Bound
    attainable_flop_per_s: float
    achieved_flop_per_s: float
    achieved_bytes_per_s: float
    fraction: float

    def __post_init__(self) -> None:
        """Refuse results that left the range of numbers."""
        positive("roofline.ridge_flop_per_byte", self.ridge_flop_per_byte)
        positive("roofline.attainable_flop_per_s", self.attainable_flop_per_s)
        finite("roofline.achieved_flop_per_s", self.achieved_flop_per_s)
        finite("roofline.achieved_bytes_per_s", self.achieved_bytes_per_s)
        finite("roofline.fraction", self.fraction)


class Attainment(Frozen, frozen=True, kw_only=True):
    """
    How much of its roof a call with declared work reached.

    Attributes:
        fraction: Achieved over what the roof allows, never clamped.

        bound: Which part of the roof it stands under.

        roof: The peak that is meant: "dram", "l2", or a data type.

        label: The weakest label of what the fraction was made of.

        peak_label: The label of the peak that is the roof.

        source: Where that peak came from.

        intensity_flop_per_byte: Declared FLOP for each declared byte; None where only
            one of them was declared.

        at_clock_fraction: The same with compute peaks scaled to the clock measured
            during the call; None where no clock was measured or they do not follow it.

        at_clock_reason: Why it is None, as a fragment; "" where it is not.

        grade: Its letter, A to F; None: it has none, or it is above the roof.

        peak_flop_per_s: The compute roof [FLOP/s]; None: no FLOP were declared.

        peak_bytes_per_s: The memory roof [B/s]; None: no bytes were declared.

        dtype: The data type of the FLOP, and so of the compute roof; None: no FLOP were
            declared, or the file is of an earlier version.
    """

    fraction: float
    bound: Bound
    roof: str
    label: SourceLabel
    peak_label: SourceLabel
    source: str
    intensity_flop_per_byte: float | None = None
    at_clock_fraction: float | None = None
    at_clock_reason: str = ""
    grade: str | None = None
    peak_flop_per_s: float | None = None
    peak_bytes_per_s: float | None = None
    dtype: str | None = None

    def __post_init__(self) -> None:
        """Refuse what is not finite."""
        finite("attainment.fraction", self.fraction, self.at_clock_fraction)
        finite("attainment.intensity_flop_per_byte", self.intensity_flop_per_byte)
        finite("attainment.peak", self.peak_flop_per_s, self.peak_bytes_per_s)

    @property
    def above_the_roof(self) -> bool:
        """Whether it is more than the hardware allows, beyond measuring noise."""
        return self.fraction > ABOVE_THE_ROOF


class TimeBound(Frozen, frozen=True, kw_only=True):
    """
    The time that no call with some work can be faster than; no efficiency follows.

    Attributes:
        time_s: The bound [s], > 0.

        bound: What it is made of: moving the bytes, or computing.

        label: Estimated, always; peaks and work may be better known.
    """

    time_s: float
    bound: Bound
    label: SourceLabel = SourceLabel.ESTIMATED

    def __post_init__(self) -> None:
        """Refuse a bound that is not a time."""
        positive("time_bound.time_s", self.time_s)


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
    by_device: dict[str, dict[str, float]] = {}
    mistakes: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            for column, mistake in _read_line(line, by_device):
                mistakes.append(f"line {number}, column {column + 1}: {mistake}")
    if mistakes:
        raise ConfigError("; ".join(mistakes), remedy=f"write {_EXAMPLE}")
    return by_device


def _read_line(
    line: str, by_device: dict[str, dict[str, float]]
) -> Iterator[tuple[int, str]]:
    """Put the peaks of a line into what was found; yield its mistakes with their place."""
    name, colon, rest = line.partition(":")
    device = name.strip()
    start = line.index(line.lstrip())
    if not colon or not device:
        yield start, "no device is named before a colon"
    elif device in by_device:
        yield start, f"{device} has a line already"
    peaks: dict[str, float] = {}
    by_device.setdefault(device, peaks)
    if not colon:
        return
    if device and not rest.strip():
        yield len(line.rstrip()), f"{device} has no peak"
    for part in _PART.finditer(rest):
        declaration = part[0].strip()
        column = len(name) + 1 + part.start() + part[0].find(declaration)
        field, _, amount = declaration.partition(" ")
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


_LETTERS = "FDCBA"  # worst first


class Grade(Enum):
    """
    A letter for an efficiency; A is the best, there is no E.

    Grades order among themselves and against text: `grade >= "B"`. A text that is no
    grade equals none and is refused by the other comparisons.
    """

    A = "A"
    B = "B"
    C = "C"
    D = "D"
    F = "F"

    @classmethod
    def from_efficiency(cls, efficiency: float, bands: Bands | None = None) -> Grade:
        """
        Return the grade of an efficiency.

        Args:
            efficiency: Achieved over possible; finite.

            bands: Where the grades begin; None: those of the training scorecard.

        Raises:
            RecordError: The efficiency is not a finite number.

        Example:
            >>> Grade.from_efficiency(0.6), Grade.from_efficiency(0.6) >= "B"
            (<Grade.A: 'A'>, True)
        """
        wrong = not_finite("", {"efficiency": efficiency})
        refuse(list(wrong), remedy="ask only for what was measured")
        return (bands or TRAINING_BANDS).grade(efficiency)

    @property
    def rank(self) -> int:
        """Its place from the worst, 0 to 4."""
        return _LETTERS.index(self.value)

    def __str__(self) -> str:
        return self.value

    def __hash__(self) -> int:
        return hash(self.value)  # equal to its text, so also found by it

    def __eq__(self, other: object) -> bool:
        return self.value == (other.value if isinstance(other, Grade) else other)

    def __lt__(self, other: Grade | str) -> bool:
        return self.rank < _rank(other)

    def __le__(self, other: Grade | str) -> bool:
        return self.rank <= _rank(other)

    def __gt__(self, other: Grade | str) -> bool:
        return self.rank > _rank(other)

    def __ge__(self, other: Grade | str) -> bool:
        return self.rank >= _rank(other)


class Bands(Frozen, frozen=True, kw_only=True):
    """
    The least efficiency of each grade; below the last it is an F.

    Attributes:
        a: Of an A.

        b: Of a B, below `a`.

        c: Of a C, below `b`.

        d: Of a D, below `c`.
    """

    a: float
    b: float
    c: float
    d: float

    def __post_init__(self) -> None:
        """Refuse bands that are not numbers, or do not fall."""
        remedy = "name four numbers, the largest first"
        numbers = {"a": self.a, "b": self.b, "c": self.c, "d": self.d}
        refuse(list(not_finite("bands", numbers)), remedy=remedy)
        if not self.a > self.b > self.c > self.d:
            message = f"{self.a!r}, {self.b!r}, {self.c!r}, {self.d!r} do not fall"
            raise RecordError(message, path="bands", remedy=remedy)

    def least(self, grade: Grade) -> float:
        """Return the efficiency from which on there is a grade; 0 for the worst."""
        by_rank = (0.0, self.d, self.c, self.b, self.a)
        return by_rank[grade.rank]

    def grade(self, efficiency: float) -> Grade:
        """Return the grade of an efficiency; a limit itself belongs to the better one."""
        better = (g for g in Grade if g is not Grade.F and efficiency >= self.least(g))
        return next(better, Grade.F)


# the training scorecard's cut-offs (aprender/entrenar)
TRAINING_BANDS = Bands(a=0.60, b=0.40, c=0.20, d=0.10)


def _rank(grade: object) -> int:
    """Return the place of a grade or its text."""
    if isinstance(grade, Grade):
        return grade.rank
    if not isinstance(grade, str) or len(grade) != 1 or grade not in _LETTERS:
        message = f"{grade!r} is not a grade"
        raise RecordError(message, path="grade", remedy="write one of A, B, C, D, F")
    return _LETTERS.index(grade)
