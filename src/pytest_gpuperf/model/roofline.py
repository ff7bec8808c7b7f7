"""Peaks of a device, the share of a roof that a call reached, and grades."""

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

Bound = Literal["memory", "compute"]  # "latency" is not a bound, but a limiter.
LEVELS = ("l1", "l2", "dram")
# Above the roof, with 5 % tolerance for measurement noise.
ABOVE_THE_ROOF = 1.05

_ORDER = tuple(SourceLabel)

DeclaredPeaks = Mapping[str, Mapping[str, float]]

# With peaks that are never detected.
_EXAMPLE = "NVIDIA H200: fp8 1500 TFLOP/s, l2 5.5 TB/s"
_PART = re.compile(r"[^,]+")
_UNITS = dict.fromkeys(LEVELS, "bytes/s") | dict.fromkeys(DTYPE_BYTES, "FLOP/s")


def weakest(*labels: SourceLabel) -> SourceLabel:
    """
    Return the weakest of some labels. At least one is required.

    Example:
        >>> weakest(SourceLabel.DETECTED, SourceLabel.DATASHEET).value
        'datasheet'
    """
    return max(labels, key=_ORDER.index)


class Peak(Frozen, frozen=True, kw_only=True):
    """
    The maximum of a device for a data type or memory level, or why it is unknown.

    Attributes:
        value: FLOP/s or bytes/s, according to the field of `Peaks`, or None if unknown.

        label: How the value was determined, or UNAVAILABLE if unknown.

        source: The source of the value as a phrase, or why the value is unknown.

        clock_hz: The multiprocessor clock of the value [Hz]. None if the peak does not
            depend on that clock, or if the clock is unknown.
    """

    value: float | None
    label: SourceLabel
    source: str
    clock_hz: float | None = None

    def __post_init__(self) -> None:
        """Reject values labelled as unavailable, and missing values with another label."""
        positive("peak.value", self.value)
        positive("peak.clock_hz", self.clock_hz)
        if (self.value is None) is not (self.label is SourceLabel.UNAVAILABLE):
            message = f"the value {self.value!r} is labelled {self.label.value}"
            raise RecordError(message, path="peak.label")


class Peaks(Frozen, frozen=True, kw_only=True):
    """
    The roofs of one device.

    Attributes:
        device: Name of the device according to the driver, or "cpu".

        flop_per_s: Peaks by data type [FLOP/s], operations for int4 and int8.

        bytes_per_s: Peaks by level of memory [B/s]: "dram", "l2", "l1".

        unlisted: Why peaks that are not in the mappings are unknown.

        l2_bytes: Size of the L2 cache [B]. 0 if the cache is not distinguished from the
            memory behind it, as on a CPU. None if unknown.

        notes: Notes for readers of the figures, as sentences.
    """

    device: str
    flop_per_s: Mapping[str, Peak]
    bytes_per_s: Mapping[str, Peak]
    unlisted: str
    l2_bytes: int | None = None
    notes: tuple[str, ...] = ()

    def of_dtype(self, dtype: str) -> Peak:
        """Return the peak of a data type, or an unavailable peak with the reason."""
        return self.flop_per_s.get(dtype) or self._unknown()

    def of_memory(self, level: str) -> Peak:
        """Return the peak of a memory level, or an unavailable peak with the reason."""
        return self.bytes_per_s.get(level) or self._unknown()

    def _unknown(self) -> Peak:
        return Peak(value=None, label=SourceLabel.UNAVAILABLE, source=self.unlisted)


class Roofline(Frozen, frozen=True, kw_only=True):
    """
    Position of a call under a roof with two parts, and how near the call came.

    Attributes:
        intensity_flop_per_byte: FLOP per byte moved. Infinite if no bytes are moved.

        ridge_flop_per_byte: The intensity at which the roof's two parts meet.

        bound: "memory" below the ridge, "compute" from the ridge on.

        attainable_flop_per_s: Maximum of the roof at that intensity [FLOP/s].

        achieved_flop_per_s: Achieved rate [FLOP/s].

        achieved_bytes_per_s: Bytes moved per time [B/s].

        fraction: Achieved over attainable, never clamped. 1.3 means that the time, the
            work or a peak is wrong.
    """

    intensity_flop_per_byte: float
    ridge_flop_per_byte: float
    bound: Bound
    attainable_flop_per_s: float
    achieved_flop_per_s: float
    achieved_bytes_per_s: float
    fraction: float

    def __post_init__(self) -> None:
        """Reject results outside of the range of floats."""
        positive("roofline.ridge_flop_per_byte", self.ridge_flop_per_byte)
        positive("roofline.attainable_flop_per_s", self.attainable_flop_per_s)
        finite("roofline.achieved_flop_per_s", self.achieved_flop_per_s)
        finite("roofline.achieved_bytes_per_s", self.achieved_bytes_per_s)
        finite("roofline.fraction", self.fraction)


class Attainment(Frozen, frozen=True, kw_only=True):
    """
    Share of its roof that a call with declared work reached.

    Attributes:
        fraction: Achieved over the maximum of the roof, never clamped.

        bound: The part of the roof above the call.

        roof: The limiting peak: "dram", "l2", or a data type.

        label: The weakest label among the inputs of the fraction.

        peak_label: The label of the limiting peak.

        source: The source of that peak.

        intensity_flop_per_byte: Declared FLOP per declared byte, or None if only one of
            them was declared.

        at_clock_fraction: The fraction with compute peaks scaled to the clock during
            the call. None if no clock was measured or the peaks do not depend on it.

        at_clock_reason: Why `at_clock_fraction` is None, as a fragment, else "".

        grade: Letter from A to F, or None without a grade or above the roof.

        peak_flop_per_s: The compute roof [FLOP/s], or None if no FLOP were declared.

        peak_bytes_per_s: The memory roof [B/s], or None if no bytes were declared.

        dtype: The data type of the FLOP and of the compute roof. None if no FLOP were
            declared, or in files of earlier versions.
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
        """Reject numbers that are not finite."""
        finite("attainment.fraction", self.fraction, self.at_clock_fraction)
        finite("attainment.intensity_flop_per_byte", self.intensity_flop_per_byte)
        finite("attainment.peak", self.peak_flop_per_s, self.peak_bytes_per_s)

    @property
    def above_the_roof(self) -> bool:
        """
        True if the fraction is above the hardware's maximum by more than measurement
        noise.
        """
        return self.fraction > ABOVE_THE_ROOF


class TimeBound(Frozen, frozen=True, kw_only=True):
    """
    The minimum time of any call with some work. It implies no efficiency.

    Attributes:
        time_s: The bound [s], > 0.

        bound: The dominating part: moving the bytes, or computing.

        label: Always estimated, although peaks and work may be better known.
    """

    time_s: float
    bound: Bound
    label: SourceLabel = SourceLabel.ESTIMATED

    def __post_init__(self) -> None:
        """Reject a bound that is not a positive time."""
        positive("time_bound.time_s", self.time_s)


def parse_peaks(text: str) -> DeclaredPeaks:
    """
    Parse declared peaks, with a line per device.

    Args:
        text: Lines as `NVIDIA H200: fp8 1500 TFLOP/s, l2 5.5 TB/s`. The name is as the
            driver spells it, or `cpu`. It is followed by levels of memory with bytes/s,
            or data types with FLOP/s. Empty lines and lines beginning with # are
            ignored.

    Returns:
        Peak by field and by device [B/s or FLOP/s].

    Raises:
        ConfigError: The text has mistakes. The error lists all of them with line and
            column.

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
    """Add a peak to `peaks`, and return the mistake or ""."""
    unit = _UNITS.get(field)
    if unit is None:
        return f"{field!r} is neither memory nor a data type: {', '.join(_UNITS)}"
    peaks[field] = 0.0  # The field was there, valid or not.
    try:
        quantity = parse_quantity(amount)
    except UnitError as error:
        return f"{field}: {error.message}"
    if quantity.si != unit:
        example = "4.5 TB/s" if unit == "bytes/s" else "800 TFLOP/s"
        return f"{field} is given in {unit}, as {example}"
    if quantity.value <= 0:
        return f"{field}: a peak is above zero"
    peaks[field] = quantity.value
    return ""


_LETTERS = "FDCBA"  # Worst first.


class Grade(Enum):
    """
    A letter for an efficiency. A is the best, and there is no E.

    Grades compare with each other and with text, as in `grade >= "B"`. A text that is
    not a grade is unequal to every grade, and raises in the other comparisons.
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
            efficiency: Achieved over possible. Must be finite.

            bands: Lower bounds of the grades, or None for those of the training
                scorecard.

        Raises:
            RecordError: The efficiency is not a finite number.

        Example:
            >>> Grade.from_efficiency(0.6), Grade.from_efficiency(0.6) >= "B"
            (<Grade.A: 'A'>, True)
        """
        wrong = not_finite("", {"efficiency": efficiency})
        refuse(list(wrong), remedy="ask only for values that were measured")
        return (bands or TRAINING_BANDS).grade(efficiency)

    @property
    def rank(self) -> int:
        """Rank from the worst grade, 0 to 4."""
        return _LETTERS.index(self.value)

    def __str__(self) -> str:
        return self.value

    def __hash__(self) -> int:
        # A grade equals its text, so the hashes must be equal too.
        return hash(self.value)

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
    Minimum efficiency of each grade. Below the last, the grade is F.

    Attributes:
        a: Minimum for an A.

        b: Minimum for a B, below `a`.

        c: Minimum for a C, below `b`.

        d: Minimum for a D, below `c`.
    """

    a: float
    b: float
    c: float
    d: float

    def __post_init__(self) -> None:
        """Reject bands that are not numbers, or not in falling order."""
        remedy = "name four numbers, the largest first"
        numbers = {"a": self.a, "b": self.b, "c": self.c, "d": self.d}
        refuse(list(not_finite("bands", numbers)), remedy=remedy)
        if not self.a > self.b > self.c > self.d:
            message = f"{self.a!r}, {self.b!r}, {self.c!r}, {self.d!r} do not fall"
            raise RecordError(message, path="bands", remedy=remedy)

    def least(self, grade: Grade) -> float:
        """Return the minimum efficiency of a grade, or 0 for the worst."""
        by_rank = (0.0, self.d, self.c, self.b, self.a)
        return by_rank[grade.rank]

    def grade(self, efficiency: float) -> Grade:
        """Return the grade of an efficiency. A bound itself belongs to the better grade."""
        better = (g for g in Grade if g is not Grade.F and efficiency >= self.least(g))
        return next(better, Grade.F)


# Cut-offs of the training scorecard (aprender/entrenar).
TRAINING_BANDS = Bands(a=0.60, b=0.40, c=0.20, d=0.10)


def _rank(grade: object) -> int:
    """Return the rank of a grade or its text. Raises RecordError for other texts."""
    if isinstance(grade, Grade):
        return grade.rank
    if not isinstance(grade, str) or len(grade) != 1 or grade not in _LETTERS:
        message = f"{grade!r} is not a grade"
        raise RecordError(message, path="grade", remedy="write one of A, B, C, D, F")
    return _LETTERS.index(grade)
