"""The time of a GPU as its figures show it: sensors over time, and shares of a whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.telemetry import TimeLine, UtilizationWindow
from pytest_gpuperf.report import display
from pytest_gpuperf.report.display import css_percent

__all__ = [
    "SensorBand",
    "Share",
    "TimeLineFigure",
    "shares",
    "time_line",
    "utilization_shares",
]

_BAND_PX = 28  # height of a sensor's band
_BAND_WIDTH = 1000  # its width, in units of its own: it stretches
_NAMED = 0.14  # a narrower stretch has no room for the name of its class
# what a time line shows, in order: name and unit by the field of a CanonicalRecord
_SENSORS = {
    "sm_clock_hz": ("SM clock", "Hz"),
    "power_watts": ("power", "W"),
    "temperature_celsius": ("temperature", "°C"),
    "sm_active_fraction": ("SM active", "fraction"),
    "tensor_active_fraction": ("tensor active", "fraction"),
    "dram_active_fraction": ("DRAM active", "fraction"),
    "gpu_busy_fraction": ("GPU busy", "fraction"),
}


class SensorBand(Frozen, frozen=True, kw_only=True):
    """One sensor over time: its name, what it ranged over, and its line [band's units]."""

    name: str
    range: str
    points: str


class TimeLineFigure(Frozen, frozen=True, kw_only=True):
    """
    The sensors of a GPU over a measurement.

    Attributes:
        duration: How long it took.

        count: Readings that are drawn.

        bands: The sensors.

        classes: Start, width and name of each stretch of one class of work, and whether
            the name has room in it.
    """

    duration: str
    count: int
    bands: tuple[SensorBand, ...]
    classes: tuple[tuple[str, str, str, bool], ...]


class Share(Frozen, frozen=True, kw_only=True):
    """A part of a time that begins where the one above ended."""

    name: str
    left: str
    width: str
    text: str
    time: str


def shares(parts: Iterable[tuple[str, float]], whole_s: float) -> tuple[Share, ...]:
    """
    Return parts of a time, each beginning where the one above ended.

    Args:
        parts: Name and length [s] of each.

        whole_s: All of it [s].
    """
    if whole_s <= 0:
        return ()
    rows, left = [], 0.0
    for name, part_s in parts:
        share = part_s / whole_s
        rows.append(
            Share(
                name=name,
                left=css_percent(min(left, 1.0)),
                width=css_percent(max(0.0, min(share, 1 - left))),
                text=display.whole_percent(share),
                time=display.value(part_s, "s"),
            )
        )
        left += share
    return tuple(rows)


def time_line(line: TimeLine) -> TimeLineFigure | None:
    """Return the sensors of a GPU as bands; None: a single reading is not a line."""
    if len(line.since_s) < 2:  # noqa: PLR2004 - two ends
        return None
    start_s, end_s = line.since_s[0], line.since_s[-1]
    span_s = (end_s - start_s) or 1.0
    places = [(since_s - start_s) / span_s for since_s in line.since_s]
    bands = (
        _band_of(name, line.readings[name], places)
        for name in _SENSORS
        if name in line.readings
    )
    return TimeLineFigure(
        duration=display.value(span_s, "s"),
        count=len(places),
        bands=tuple(band for band in bands if band is not None),
        classes=tuple(_class_parts(line.classes, places)),
    )


def _band_of(
    name: str, values: Sequence[float | None], places: Sequence[float]
) -> SensorBand | None:
    """Return one sensor as a line; None: it said something once at most."""
    label, unit = _SENSORS[name]
    known = [(x, v) for x, v in zip(places, values, strict=True) if v is not None]
    if len(known) < 2:  # noqa: PLR2004 - two ends
        return None
    numbers = [value for _, value in known]
    low, high = min(numbers), max(numbers)
    bottom = 0.0 if unit == "fraction" else low * 0.9
    top = 1.0 if unit == "fraction" else high * 1.02
    scale = _BAND_PX / ((top - bottom) or 1.0)
    points = (f"{_BAND_WIDTH * x:.0f},{(top - v) * scale:.1f}" for x, v in known)
    return SensorBand(
        name=label,
        range=display.value(low, unit)
        if low == high
        else display.interval(low, high, unit),
        points=" ".join(points),
    )


def _class_parts(
    classes: Sequence[str], places: Sequence[float]
) -> Iterator[tuple[str, str, str, bool]]:
    """Yield start, width and name of each stretch of one class, and if a name fits."""
    if not any(classes):
        return
    first = 0
    for place in range(1, len(classes) + 1):
        if place == len(classes) or classes[place] != classes[first]:
            begin = places[first]
            end = places[min(place, len(classes) - 1)]
            share = end - begin
            name = classes[first] or "not known"
            yield css_percent(begin), css_percent(share), name, share > _NAMED
            first = place


def utilization_shares(window: UtilizationWindow) -> tuple[Share, ...]:
    """Return where the time of a GPU went, the longest class first."""
    parts = sorted(window.class_s.items(), key=lambda part: (-part[1], part[0]))
    parts.append(("without SM, tensor or DRAM activity", window.incomplete_s))
    parts.append(("not observed", window.unobserved_s))
    return shares([part for part in parts if part[1] > 0], window.duration_s)
