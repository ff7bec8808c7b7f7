"""What the figures of a test hold: positions and texts, nothing that is drawn."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from pytest_gpuperf.compute.stats import quantile
from pytest_gpuperf.model.counters import KernelAnalysis
from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.metric import METRICS, Better
from pytest_gpuperf.model.record import Record
from pytest_gpuperf.model.roofline import Attainment
from pytest_gpuperf.model.telemetry import TimeLine, UtilizationWindow
from pytest_gpuperf.model.verdict import Verdict
from pytest_gpuperf.report import display
from pytest_gpuperf.report.captures import evidence_text, limiter_text, roof_text
from pytest_gpuperf.report.display import css_percent
from pytest_gpuperf.report.html.axes import ChangeAxis, LevelAxis, LogAxis

__all__ = [
    "Bar",
    "Bullet",
    "ChangeStrip",
    "History",
    "KernelLimits",
    "KernelRow",
    "Roofline",
    "Samples",
    "SensorBand",
    "SessionSamples",
    "Share",
    "TimeLineFigure",
    "bullet",
    "change_strip",
    "history",
    "kernel_rows",
    "roofline",
    "samples",
    "shares",
    "time_line",
    "trend",
    "utilization_shares",
]

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)  # of a stored session
_MOST_DOTS = 24  # more samples are drawn by their quantiles
_LEAST_HISTORY = 8  # fewer sessions are all seen in the table of samples
_LEAST_TREND = 3
_MOST_HISTORY = 120  # more points lie over each other
_HISTORY_PX = 120
_ROOFLINE_PX = 220
_TREND_PX = 22
_BULLET_ROOM = 1.25  # the track of a limit is so many times its larger end
_TINY = 0.001  # a smaller share is said to be smaller
_NEAR_EDGE = 0.94  # from here on a label is set to the left of its place
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

Point = tuple[str, float]  # across [%], down [px]


class Bar(Frozen, frozen=True, kw_only=True):
    """A part of a whole, drawn and as text."""

    width: str
    text: str


class ChangeStrip(Frozen, frozen=True, kw_only=True):
    """
    One change on the axis of all changes, worse to the right.

    Attributes:
        at: The change.

        low: Lower end of its interval, cut at the edge of the axis.

        high: Its upper end.

        stops: Which ends are inside the axis.

        allowed: Start and width of the band that the limit allows; None: no limit.

        unseen: Start and width of the band that this baseline cannot see.

        fresh: The change in each fresh process.

        text: All of it in words.
    """

    at: str
    low: str
    high: str
    stops: tuple[str, ...]
    allowed: tuple[str, str] | None
    unseen: tuple[str, str] | None
    fresh: tuple[str, ...]
    text: str


class Bullet(Frozen, frozen=True, kw_only=True):
    """A value as a bar, with an upright at its limit."""

    value: str
    limit: str
    text: str


class SessionSamples(Frozen, frozen=True, kw_only=True):
    """
    What one session, or one fresh process, measured of a metric.

    Attributes:
        kind: stored, left-out, older, now or fresh.

        label: When, in words.

        value: What stands for it [unit].

        commit: Its revision; "": not known.

        values: Its samples [unit]; may be empty.

        quantiles: The 5, 25, 50, 75 and 95 % quantiles of more of them; may be empty.

        count: Samples behind it; None: not known.
    """

    kind: str
    label: str
    value: float
    commit: str = ""
    values: tuple[float, ...] = ()
    quantiles: tuple[float, ...] = ()
    count: int | None = None

    @property
    def spread(self) -> tuple[float, ...]:
        """The quantiles, of the samples where those are here; else the value alone."""
        if self.quantiles:
            return self.quantiles
        if len(self.values) > _MOST_DOTS:
            return tuple(quantile(self.values, share) for share in QUANTILES)
        return ()


class SampleRow(Frozen, frozen=True, kw_only=True):
    """A line of the table of samples."""

    kind: str
    label: str
    commit: str
    dots: tuple[str, ...]
    tail: tuple[str, str] | None
    box: tuple[str, str] | None
    median: str
    value: str
    count: str


class Samples(Frozen, frozen=True, kw_only=True):
    """
    This run's samples of a metric beside those of every stored session.

    Attributes:
        metric: The metric.

        rows: The sessions, oldest first, then this run, then its fresh processes.

        ticks: Places and texts of the axis.

        expected: Where the baseline stands; "": there is none.

        limit: Where a limit stands; "": there is none.

        limit_text: The limit as it was written.
    """

    metric: str
    rows: tuple[SampleRow, ...]
    ticks: tuple[tuple[str, str], ...]
    expected: str
    limit: str
    limit_text: str

    @property
    def has_left_out(self) -> bool:
        """Whether a stored session does not fit the others."""
        return any(row.kind == "left-out" for row in self.rows)


class History(Frozen, frozen=True, kw_only=True):
    """The value of a metric, a point a session."""

    height: int
    points: tuple[tuple[str, float, str, str], ...]
    band: tuple[float, float] | None
    level: float | None
    levels: tuple[tuple[float, str], ...]
    days: tuple[tuple[str, str], ...]
    text: str


class KernelLimits(Frozen, frozen=True, kw_only=True):
    """The roof that a kernel comes closest to, and what limits it."""

    roof: Bar | None
    limiter: str
    evidence: str


class KernelRow(Frozen, frozen=True, kw_only=True):
    """A line of the kernel table; "" or None for what is not known."""

    number: int
    name: str
    share: Bar | None
    time: str
    launches: str
    registers: str = ""
    shared: str = ""
    shape: str = ""
    limits: KernelLimits | None = None


class RooflinePoint(Frozen, frozen=True, kw_only=True):
    """A call, or a kernel, under the roofs."""

    x: str
    y: float
    roof_y: float
    text: str


class Roofline(Frozen, frozen=True, kw_only=True):
    """
    Points under a roof of two parts, both axes logarithmic.

    Attributes:
        height: Of the figure [px].

        slope: The memory roof: from x, y to x, y.

        flat: The compute roof: from x, at y.

        memory_label: Where the name of the memory roof stands, and the name.

        compute_label: The name of the compute roof.

        points: What lies under them.

        across: Ticks of the intensity.

        up: Ticks of the rate.
    """

    height: int
    slope: tuple[str, float, str, float]
    flat: tuple[str, float]
    memory_label: tuple[str, float, str]
    compute_label: str
    points: tuple[RooflinePoint, ...]
    across: tuple[tuple[str, str, str], ...]
    up: tuple[tuple[float, str], ...]


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


def change_strip(verdict: Verdict, axis: ChangeAxis, text: str) -> ChangeStrip | None:
    """
    Return a verdict's change as it is drawn; None: nothing is relative.

    Args:
        verdict: It.

        axis: The axis of all changes.

        text: The change in words, for who cannot see the figure.
    """
    change = verdict.change
    if change is None or change.effect is None:
        return None
    is_flipped = higher_is_better(verdict)
    effect = worsening(change.effect, is_flipped=is_flipped)
    ends = [effect if end is None else end for end in (change.low, change.high)]
    if change.low is not None and change.high is not None:
        ends = sorted(worsening(end, is_flipped=is_flipped) for end in ends)
    low, high = ends
    return ChangeStrip(
        at=css_percent(axis.at(effect)),
        low=css_percent(axis.at(low)),
        high=css_percent(axis.at(high)),
        stops=tuple(
            css_percent(axis.at(end)) for end in ends if not axis.is_beyond(end)
        ),
        allowed=_band(axis, verdict.threshold),
        unseen=_band(axis, None if change.exact else change.detectable_effect),
        fresh=tuple(
            css_percent(axis.at(worsening(end, is_flipped=is_flipped)))
            for end in verdict.confirmations
        ),
        text=text,
    )


def higher_is_better(verdict: Verdict) -> bool:
    """Return whether a metric gets better when it grows."""
    estimate, metric = verdict.estimate, METRICS.get(verdict.metric)
    if estimate is not None and estimate.better is not None:
        return estimate.better == Better.HIGHER.value
    return metric is not None and metric.better is Better.HIGHER


def worsening(effect: float, *, is_flipped: bool) -> float:
    """Return a change by how much worse it is: half the throughput is twice the time."""
    if not is_flipped:
        return effect
    return 1 / max(1 + effect, 1e-9) - 1  # a throughput of 0 is worse by any factor


def _band(axis: ChangeAxis, width: float | None) -> tuple[str, str] | None:
    """Return start and width of the changes up to some size."""
    if not width:
        return None
    left = axis.at(-min(width, 0.999))  # nothing falls by more than all
    return css_percent(left), css_percent(axis.at(width) - left)


def bullet(value: float, threshold: float, text: str) -> Bullet | None:
    """Return a value against its limit; None: below 0 nothing is drawn."""
    longest = max(value, threshold)
    if min(value, threshold) < 0 or longest <= 0:
        return None
    whole = longest * _BULLET_ROOM
    return Bullet(
        value=css_percent(value / whole),
        limit=css_percent(threshold / whole),
        text=text,
    )


def samples(
    sessions: Sequence[SessionSamples],
    metric: str,
    unit: str,
    verdicts: Iterable[Verdict],
) -> Samples | None:
    """
    Return the table of samples; None: there is no session, or one has a value of 0.

    Args:
        sessions: Oldest first, then this run and its fresh processes.

        metric: What they measured.

        unit: Its unit.

        verdicts: Those of the measurement, for the baseline and the limit.
    """
    of_metric = [v for v in verdicts if v.metric == metric]
    expected = next(
        (v.change.reference for v in of_metric if v.change is not None), None
    )
    limit = next((v.limit for v in of_metric if v.limit is not None), None)
    shown = [x for s in sessions for x in (s.value, *s.values, *s.spread)]
    marks = [expected, None if limit is None else limit.threshold]
    ends = [*shown, *(mark for mark in marks if mark is not None and mark > 0)]
    if not shown or min(shown) <= 0:
        return None
    axis = LogAxis(min(ends), max(ends), most=5)
    at = ["" if m is None or m <= 0 else css_percent(axis.at(m)) for m in marks]
    return Samples(
        metric=metric,
        rows=tuple(_sample_row(session, axis, unit) for session in sessions),
        ticks=tuple(
            (css_percent(axis.at(t)), display.exactly(t, unit)) for t in axis.ticks
        ),
        expected=at[0],
        limit=at[1],
        limit_text="" if limit is None else limit.text,
    )


def _sample_row(session: SessionSamples, axis: LogAxis, unit: str) -> SampleRow:
    """Return one line: every sample where they are few, else their quantiles."""
    spread = [axis.at(end) for end in session.spread]
    median = spread[2] if spread else axis.at(session.value)
    dots = () if spread else session.values or (session.value,)
    return SampleRow(
        kind=session.kind,
        label=session.label,
        commit=session.commit[:7],
        dots=tuple(css_percent(axis.at(value)) for value in dots),
        tail=(css_percent(spread[0]), css_percent(spread[4] - spread[0]))
        if spread
        else None,
        box=(css_percent(spread[1]), css_percent(max(spread[3] - spread[1], 0.003)))
        if spread
        else None,
        median=css_percent(median),
        value=display.value(session.value, unit),
        count="" if session.count is None else str(session.count),
    )


def trend(sessions: Sequence[SessionSamples]) -> tuple[Point, ...]:
    """Return the values of the sessions as few small points, this run's last."""
    values = [s.value for s in sessions if s.kind not in {"fresh", "left-out"}][-12:]
    if len(values) < _LEAST_TREND or min(values) <= 0:
        return ()
    low, high = min(values), max(values)
    if high < 1.08 * low:  # noise must not look like a cliff
        low, high = low / 1.04, high * 1.04
    axis = LevelAxis(low, high, height_px=_TREND_PX)
    step = 0.88 / (len(values) - 1)
    return tuple(
        (css_percent(0.06 + place * step), axis.at(value))
        for place, value in enumerate(values)
    )


def history(
    sessions: Sequence[SessionSamples], unit: str, verdict: Verdict | None
) -> History | None:
    """
    Return a point for each session; None: they are few, or one has a value of 0.

    Args:
        sessions: Oldest first.

        unit: The unit of their values.

        verdict: What was decided of the change, for its level and its limit.
    """
    shown = [s for s in sessions if s.kind != "fresh"][-_MOST_HISTORY:]
    values = [session.value for session in shown]
    if len(shown) < _LEAST_HISTORY or min(values) <= 0:
        return None
    change = verdict.change if verdict is not None else None
    level = change.reference if change is not None and change.reference > 0 else None
    allowed = verdict.threshold if verdict is not None else None
    axis = LevelAxis(
        min([*values, *([level] if level else [])]) / 1.005,
        max([*values, *([level] if level else [])]) * 1.005,
        height_px=_HISTORY_PX,
    )
    step = 1 / len(shown)
    places = [css_percent((place + 0.5) * step) for place in range(len(shown))]
    band = None
    if level and allowed:
        top, bottom = axis.at(level * (1 + allowed)), axis.at(level / (1 + allowed))
        band = top, round(bottom - top, 1)
    texts = [display.value(value, unit) for value in values]
    return History(
        height=_HISTORY_PX,
        points=tuple(
            (x, axis.at(s.value), s.kind, f"{s.label} {s.commit[:7]}: {text}")
            for x, s, text in zip(places, shown, texts, strict=True)
        ),
        band=band,
        level=axis.at(level) if level else None,
        levels=tuple((axis.at(t), display.exactly(t, unit)) for t in axis.ticks),
        days=tuple(
            (places[place], shown[place].label)
            for place in sorted({0, len(shown) // 2, len(shown) - 1})
        ),
        text=f"{len(shown)} sessions, {texts[0]} in the first, {texts[-1]} in this run",
    )


def kernel_rows(record: Record) -> tuple[KernelRow, ...]:
    """Return the kernels of a measurement, the longest first: CUPTI's, else counters'."""
    uses = record.activity.kernels if record.activity is not None else ()
    if not uses:
        return _analysed_rows(record.analyses)
    analyses = {analysis.kernel: analysis for analysis in record.analyses}
    whole_s = math.fsum(use.total_s for use in uses)
    return tuple(
        KernelRow(
            number=number,
            name=use.demangled or use.shape.name,
            share=_part(use.total_s, whole_s),
            time=display.value(use.total_s, "s"),
            launches=str(use.count),
            registers=str(use.shape.registers_count),
            shared=display.value(
                use.shape.shared_bytes + use.shape.dynamic_shared_bytes, "bytes"
            ),
            shape=f"{_extent(use.shape.grid)} × {_extent(use.shape.block)}",
            limits=_limits(analyses.get(use.shape.name)),
        )
        for number, use in enumerate(uses, 1)
    )


def _analysed_rows(analyses: Sequence[KernelAnalysis]) -> tuple[KernelRow, ...]:
    """Return the kernels that counters were collected of."""
    times_s = [analysis.total_s or 0.0 for analysis in analyses]
    whole_s = math.fsum(times_s)
    return tuple(
        KernelRow(
            number=number,
            name=analysis.demangled,
            share=_part(time_s, whole_s) if time_s else None,
            time=display.value(time_s, "s") if time_s else "",
            launches=str(analysis.launches_count),
            limits=_limits(analysis),
        )
        for number, (analysis, time_s) in enumerate(
            zip(analyses, times_s, strict=True), 1
        )
    )


def _limits(analysis: KernelAnalysis | None) -> KernelLimits | None:
    """Return what limits a kernel; None: nothing was counted."""
    if analysis is None:
        return None
    bound = analysis.analysis.bound
    return KernelLimits(
        roof=None
        if bound is None
        else Bar(
            width=css_percent(min(bound.fraction, 1.0)),
            text=f"{display.value(bound.fraction, 'fraction', digits=2)} "
            f"{roof_text(bound.roof)}",
        ),
        limiter=limiter_text(analysis.analysis.limiter),
        evidence=evidence_text(analysis.analysis.limiter),
    )


def _part(part: float, whole: float) -> Bar | None:
    """Return a part of a whole; None: there is no whole."""
    if whole <= 0:
        return None
    share = part / whole
    text = display.value(share, "fraction", digits=2) if share >= _TINY else "< 0.1 %"
    return Bar(width=css_percent(min(share, 1.0)), text=text)


def _extent(extent: tuple[int, int, int]) -> str:
    """Return a grid or a block, its trailing ones left out."""
    x, y, z = extent
    numbers = (x, y, z) if z > 1 else (x, y) if y > 1 else (x,)
    return ",".join(map(str, numbers))


def roofline(attained: Attainment) -> Roofline | None:
    """Return a call under its roofs; None: a roof or its intensity is not known."""
    flat, slope = attained.peak_flop_per_s, attained.peak_bytes_per_s
    intensity = attained.intensity_flop_per_byte
    if flat is None or slope is None or not intensity:
        return None
    ridge = flat / slope
    roof = min(intensity * slope, flat)
    rate = attained.fraction * roof
    across = LogAxis(min(intensity, ridge) / 8, max(intensity, ridge) * 8)
    floor = min(rate, roof, slope * min(intensity, ridge)) / 4
    up = LevelAxis(floor, max(flat, rate) * 1.3, height_px=_ROOFLINE_PX, most=4)
    start = max(min(intensity, ridge) / 8, floor / slope)  # where it leaves the floor
    middle = math.sqrt(start * ridge)
    return Roofline(
        height=_ROOFLINE_PX,
        slope=(
            css_percent(across.at(start)),
            up.at(start * slope),
            css_percent(across.at(ridge)),
            up.at(flat),
        ),
        flat=(css_percent(across.at(ridge)), up.at(flat)),
        memory_label=(
            css_percent(max(across.at(middle) - 0.015, 0.02)),
            up.at(middle * slope) - 6,
            display.value(slope, "bytes/s"),
        ),
        compute_label=display.value(flat, "FLOP/s"),
        points=(
            RooflinePoint(
                x=css_percent(across.at(intensity)),
                y=up.at(rate),
                roof_y=up.at(roof),
                text=f"{display.value(rate, 'FLOP/s')} at "
                f"{display.value(intensity, '')} FLOP/B",
            ),
        ),
        across=tuple(
            (
                css_percent(x),
                display.exactly(tick, ""),
                "end" if x > _NEAR_EDGE else "middle",
            )
            for tick in across.ticks
            for x in (across.at(tick),)
        ),
        up=tuple((up.at(tick), display.exactly(tick, "FLOP/s")) for tick in up.ticks),
    )


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
