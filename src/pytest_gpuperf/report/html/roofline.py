"""A call and its kernels as points under their roofs."""

from __future__ import annotations

import math
from collections.abc import Iterator

from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.record import Record
from pytest_gpuperf.model.roofline import Attainment
from pytest_gpuperf.report import display
from pytest_gpuperf.report.captures import roof_text
from pytest_gpuperf.report.display import typed_percent
from pytest_gpuperf.report.html.figures import LevelAxis, LogAxis

_ROOFLINE_PX = 240
# From here on, a label is set to the left of its place.
_NEAR_EDGE = 0.94
# Roofs with a smaller ratio are drawn as one, because the clocks of launches differ.
_ALIKE = 1.15
_CALL_PX = 6.0  # Radius of the point of a whole call.
_LEAST_PX, _MOST_PX = 4.5, 10.0  # Radius of a point, by its share of the time.
# More points would overlap. The longest kernels are kept.
_MOST_POINTS = 40


class RooflinePoint(Frozen, frozen=True, kw_only=True):
    """
    A call or a kernel under the roofs.

    Attributes:
        number: The kernel's number in the table, or "" for the whole call.

        radius: Radius of the point [px], by the share of the time.
    """

    x: str
    y: float
    roof_y: float
    text: str
    number: str
    radius: float


class RoofFigure(Frozen, frozen=True, kw_only=True):
    """A flat roof: start, height and label."""

    x: str
    y: float
    label: str


class RooflineFigure(Frozen, frozen=True, kw_only=True):
    """
    Points under a memory roof and one or two compute roofs, with both axes logarithmic.

    Attributes:
        height: Height of the figure [px].

        slope: The memory roof, from x, y to x, y.

        flats: The compute roofs.

        memory_label: Place and text of the memory roof's label.

        sources: Origins of the roofs.

        points: The points under the roofs.

        across: Ticks of the intensity.

        up: Ticks of the rate.
    """

    height: int
    slope: tuple[str, float, str, float]
    flats: tuple[RoofFigure, ...]
    memory_label: tuple[str, float, str]
    sources: tuple[str, ...]
    points: tuple[RooflinePoint, ...]
    across: tuple[tuple[str, str, str], ...]
    up: tuple[tuple[float, str], ...]


class _Standing(Frozen, frozen=True, kw_only=True):
    """A call or kernel under the roofs: numbers without a place in the figure."""

    intensity: float
    rate: float
    flat: float
    slope: float
    text: str
    number: str
    radius: float

    @property
    def ridge(self) -> float:
        """The intensity at which the two roofs meet."""
        return self.flat / self.slope

    @property
    def roof(self) -> float:
        """The rate that the roofs allow."""
        return min(self.intensity * self.slope, self.flat)


def roofline(record: Record) -> RooflineFigure | None:
    """Return the figure of a call and its kernels under their roofs, or None without any point."""
    standings = [*_standings(record)]
    if not standings:
        return None
    slope = max(one.slope for one in standings)
    flats: list[float] = []
    for one in sorted(standings, key=lambda one: -one.flat):
        if not flats or flats[-1] > one.flat * _ALIKE:
            flats.append(one.flat)
    low = min(min(one.intensity, one.ridge) for one in standings)
    across = LogAxis(
        low / 4,
        max(max(one.intensity, one.ridge) for one in standings) * 4,
    )
    floor = min(slope * low, *(min(one.rate, one.roof) for one in standings)) / 4
    top = max(*flats, *(one.rate for one in standings))
    up = LevelAxis(floor, top * 1.3, height_px=_ROOFLINE_PX, most=4)
    ridge = max(flats) / slope
    memory = (a.roof for a in _attainments(record) if a.bound == "memory")
    start = max(low / 4, floor / slope)  # The memory roof leaves the floor here.
    middle = math.sqrt(start * ridge)
    return RooflineFigure(
        height=_ROOFLINE_PX,
        slope=(
            typed_percent(across.at(start)),
            up.at(start * slope),
            typed_percent(across.at(ridge)),
            up.at(max(flats)),
        ),
        flats=tuple(
            RoofFigure(
                x=typed_percent(across.at(flat / slope)),
                y=up.at(flat),
                label=f"{_compute_name(record, flat)} "
                f"{display.value(flat, 'FLOP/s')}".strip(),
            )
            for flat in flats
        ),
        memory_label=(
            typed_percent(max(across.at(middle) - 0.015, 0.02)),
            up.at(middle * slope) - 6,
            f"{roof_text(next(memory, ''))} {display.value(slope, 'bytes/s')}".strip(),
        ),
        sources=tuple(dict.fromkeys(a.source for a in _attainments(record))),
        points=tuple(_point(one, across, up) for one in standings),
        across=tuple(
            (
                typed_percent(x),
                display.exactly(tick, ""),
                "end" if x > _NEAR_EDGE else "middle",
            )
            for tick, x in zip(across.ticks, map(across.at, across.ticks), strict=True)
        ),
        up=tuple((up.at(tick), display.exactly(tick, "FLOP/s")) for tick in up.ticks),
    )


def place_text(attained: Attainment) -> str:
    """Return the place of a call or a kernel under its roofs as text, or "" without a place."""
    return next((one.text for one in _standing(attained, "", _CALL_PX)), "")


def _attainments(record: Record) -> Iterator[Attainment]:
    if record.roofline is not None:
        yield record.roofline
    for kernel in record.analyses:
        if kernel.analysis.roofline is not None:
            yield kernel.analysis.roofline


def _standings(record: Record) -> Iterator[_Standing]:
    if record.roofline is not None:
        yield from _standing(record.roofline, "", _CALL_PX)
    uses = record.activity.kernels if record.activity is not None else ()
    numbers = {use.shape.name: place for place, use in reversed([*enumerate(uses, 1)])}
    whole_s = math.fsum(kernel.total_s or 0.0 for kernel in record.analyses) or 1.0
    for place, kernel in enumerate(record.analyses[:_MOST_POINTS], 1):
        if kernel.analysis.roofline is not None:
            number = str(numbers.get(kernel.kernel, place))
            share = (kernel.total_s or 0.0) / whole_s
            radius = max(_LEAST_PX, _MOST_PX * math.sqrt(share))
            yield from _standing(kernel.analysis.roofline, number, radius)


def _standing(attained: Attainment, number: str, radius: float) -> Iterator[_Standing]:
    """Yield a point, or nothing if a roof or the intensity is unknown."""
    flat, slope = attained.peak_flop_per_s, attained.peak_bytes_per_s
    intensity = attained.intensity_flop_per_byte
    if flat is None or slope is None or not intensity or attained.fraction <= 0:
        return
    rate = attained.fraction * min(intensity * slope, flat)
    of_dtype = f"{display.value(rate, 'FLOP/s')} {attained.dtype or ''}".rstrip()
    yield _Standing(
        intensity=intensity,
        rate=rate,
        flat=flat,
        slope=slope,
        text=f"{of_dtype} at {display.value(intensity, '')} FLOP/B",
        number=number,
        radius=round(radius, 1),
    )


def _point(one: _Standing, across: LogAxis, up: LevelAxis) -> RooflinePoint:
    return RooflinePoint(
        x=typed_percent(across.at(one.intensity)),
        y=up.at(one.rate),
        roof_y=up.at(one.roof),
        text=one.text,
        number=one.number,
        radius=one.radius,
    )


def _compute_name(record: Record, flat: float) -> str:
    """Return the data types of a compute roof, or "" if unknown."""
    names = dict.fromkeys(
        dtype
        for a in _attainments(record)
        if (dtype := a.dtype or (a.roof if a.bound == "compute" else ""))
        and a.peak_flop_per_s
        and 1 / _ALIKE < a.peak_flop_per_s / flat <= 1
    )
    declared = record.work.dtype if record.work is not None else None
    return ", ".join(names) or (declared if record.roofline is not None else "") or ""
