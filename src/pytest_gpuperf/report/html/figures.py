"""Figures that need no session: axes, changes, limits, blocks, time.

A figure has positions and texts, but no drawing: x is a share of the width, y is in pixels. A
figure therefore stretches with the page while text and marks keep their size, on a phone and on
paper, without a script.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter

from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.metric import METRICS, Better
from pytest_gpuperf.model.telemetry import TimeLine, UtilizationWindow
from pytest_gpuperf.model.verdict import Verdict
from pytest_gpuperf.report import display
from pytest_gpuperf.report.display import listed, typed_percent

# Changes up to about 5 % are drawn in proportion, larger changes by their logarithm.
_LINEAR = math.log(1.05)
# The axis shows at least this change.
_LEAST_REACH = 0.3
# The widest change stays this factor away from the edge.
_AIR = 1.12
_LABEL_WIDTH = 0.085  # Width of a tick's text [share of the axis].
# Replaces 0 in a logarithm.
_SMALLEST = 1e-300
# A smaller span is drawn wider than it is, like a span of 0.1 per mille.
_FLAT = 1.0001
_TICKS = (
    (-0.875, "÷8"),
    (-0.5, "÷2"),
    (-0.2, "−20"),
    (-0.05, "−5"),
    (0.0, "0"),
    (0.05, "+5"),
    (0.25, "+25"),
    (1.0, "×2"),
    (7.0, "×8"),
    (63.0, "×64"),
)
_BAND_PX = 28  # Height of a sensor's band.
# The width of a band, in units of its own, because a band stretches with the page.
_BAND_WIDTH = 1000
_NAMED = 0.016  # Share of the width per letter of a class name.
_TIME_TICKS = 6  # Of a time line. More have no room on a phone.
# From here on, the text of a tick is set to the left of its place.
_NEAR_END = 0.94
_BLOCK_PX = 12  # The line of a block.
# The track of a limit is longer than its larger end by this factor.
_BULLET_ROOM = 1.25


def clean(number: float) -> float:
    """Return the number of a tick without rounding errors."""
    return float(f"{number:.6g}")


class ChangeAxis:
    """
    The changes of all tests on one axis, worse to the right.

    Args:
        changes: All shown changes [fraction]. The axis is symmetric about 0.
    """

    def __init__(self, changes: Sequence[float]) -> None:
        widest = max(map(abs, map(_bent, (*changes, _LEAST_REACH))))
        self._reach = widest * _AIR
        inside = [(self.at(c), text) for c, text in _TICKS if not self.is_beyond(c)]
        chosen: list[tuple[float, str]] = []
        for place, text in sorted(inside, key=lambda tick: abs(tick[0] - 0.5)):
            apart = all(abs(place - other) >= _LABEL_WIDTH for other, _ in chosen)
            if apart and _LABEL_WIDTH / 2 < place < 1 - _LABEL_WIDTH / 2:
                chosen.append((place, text))
        self.ticks = tuple((typed_percent(place), text) for place, text in chosen)

    def at(self, change: float) -> float:
        """Return the place of a change [share of the width], cut at both ends."""
        share = _bent(change) / self._reach
        return 0.5 + 0.5 * max(-1.0, min(1.0, share))

    def is_beyond(self, change: float) -> bool:
        """Return True if a change lies past an end of the axis."""
        return abs(_bent(change)) > self._reach


class LogAxis:
    """
    A logarithmic axis across the width, with few ticks at round numbers.

    Args:
        low: The smallest number, > 0.

        high: The largest number, >= `low`.

        most: Largest number of ticks.
    """

    def __init__(self, low: float, high: float, *, most: int = 6) -> None:
        high = max(high, low * _FLAT)
        air = 0.06 * math.log(high / low)
        self._low, self._high = math.log(low) - air, math.log(high) + air
        self._most = most

    @functools.cached_property
    def ticks(self) -> tuple[float, ...]:
        """The numbers of the ticks, which not every figure draws."""
        ends = math.exp(self._low), math.exp(self._high)
        return _round_numbers(*ends, self._most)

    def at(self, number: float) -> float:
        """Return the place of a number [share of the width], cut at both ends."""
        share = (math.log(max(number, _SMALLEST)) - self._low) / (
            self._high - self._low
        )
        # Without calls, because a page asks for tens of places a test.
        return 0.0 if share <= 0 else min(share, 1.0)


class LevelAxis:
    """
    A logarithmic axis from bottom to top, with few ticks at round numbers.

    Args:
        low: The smallest number, > 0.

        high: The largest number, >= `low`.

        height_px: Height of the figure [px].

        most: Largest number of ticks.
    """

    def __init__(
        self, low: float, high: float, *, height_px: int, most: int = 5
    ) -> None:
        self._across = LogAxis(low, high, most=most)
        self._height_px = height_px

    @property
    def ticks(self) -> tuple[float, ...]:
        """The numbers of the ticks."""
        return self._across.ticks

    def at(self, number: float) -> float:
        """Return the place of a number [px from the top]."""
        return round(self._height_px * (1 - self._across.at(number)), 1)


def _bent(change: float) -> float:
    factor = max(1 + change, 1e-9)  # -100 % has no logarithm.
    return math.asinh(math.log(factor) / _LINEAR)


def _round_numbers(low: float, high: float, most: int) -> tuple[float, ...]:
    if high < 3 * low:  # A decade has too few round numbers.
        return _even_steps(low, high, most)
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    numbers: list[float] = []
    for digits in ((1, 2, 3, 5), (1, 2, 5), (1, 3), (1,)):
        numbers = [
            clean(digit * 10.0**power)
            for power in range(first, last + 1)
            for digit in digits
            if low <= digit * 10.0**power <= high
        ]
        if len(numbers) <= most:
            return tuple(numbers)
    return tuple(numbers[:: math.ceil(len(numbers) / most)])


def _even_steps(low: float, high: float, most: int) -> tuple[float, ...]:
    power = 10.0 ** (math.floor(math.log10(high - low)) - 1)
    steps = (digit * power for digit in (1, 2, 5, 10, 20, 50, 100))
    step = next(step for step in steps if high / step - low / step < most)
    first, last = math.ceil(low / step), math.floor(high / step)
    return tuple(clean(place * step) for place in range(first, last + 1))


class ChangeStrip(Frozen, frozen=True, kw_only=True):
    """
    One change on the axis of all changes, worse to the right.

    Attributes:
        at: Place of the change.

        low: Lower end of the interval, cut at the edge of the axis.

        high: Upper end of the interval, cut at the edge of the axis.

        stops: Ends that lie inside the axis.

        allowed: Start and width of the band that the limit allows, or None without a limit.

        unseen: Start and width of the band that this baseline cannot detect, or None.

        fresh: Places of the changes in fresh processes.

        text: The figure in words.
    """

    at: str
    low: str
    high: str
    stops: tuple[str, ...]
    allowed: tuple[str, str] | None
    unseen: tuple[str, str] | None
    fresh: tuple[str, ...]
    text: str


class Blocks(Frozen, frozen=True, kw_only=True):
    """
    The differences of the blocks of a comparison with a revision, worse to the right.

    Attributes:
        height: Height of the figure [px].

        ticks: Places and texts of the axis.

        null: Start and width of the difference of equal code, or None if unknown.

        allowed: Start and width of the band that the limit allows, or None without a limit.

        points: The difference of each block with its text, the first block on top.

        at: The judged change: place, low and high end, and distance from the top [px].

        text: The figure in words.
    """

    height: int
    ticks: tuple[tuple[str, str], ...]
    null: tuple[str, str] | None
    allowed: tuple[str, str] | None
    points: tuple[tuple[str, float, str], ...]
    at: tuple[str, str, str, float]
    text: str


class Bullet(Frozen, frozen=True, kw_only=True):
    """A value as a bar, with a mark at its limit."""

    value: str
    limit: str
    text: str


def change_strip(verdict: Verdict, axis: ChangeAxis, text: str) -> ChangeStrip | None:
    """
    Return the figure of a verdict's change, or None without a relative change.

    Args:
        verdict: The verdict.

        axis: The axis of all changes.

        text: The change in words, for people who cannot see the figure.
    """
    change = verdict.change
    if change is None or change.effect is None:
        return None
    is_flipped = higher_is_better(verdict)
    effect = worsening(change.effect, is_flipped=is_flipped)
    ends = [effect if end is None else end for end in (change.low, change.high)]
    if change.low is not None and change.high is not None:
        ends = sorted(worsening(end, is_flipped=is_flipped) for end in ends)
    low, high = places = [typed_percent(axis.at(end)) for end in ends]
    return ChangeStrip(
        at=typed_percent(axis.at(effect)),
        low=low,
        high=high,
        stops=tuple(
            place
            for place, end in zip(places, ends, strict=True)
            if not axis.is_beyond(end)
        ),
        allowed=_band(axis, verdict.threshold),
        unseen=_band(axis, None if change.exact else change.detectable_effect),
        fresh=tuple(
            typed_percent(axis.at(worsening(end, is_flipped=is_flipped)))
            for end in verdict.confirmations
        ),
        text=text,
    )


def blocks(verdict: Verdict, text: str) -> Blocks | None:
    """Return the figure of the blocks against a revision, or None without blocks or a change."""
    against, change = verdict.against, verdict.change
    if against is None or change is None or change.effect is None:
        return None
    is_flipped = higher_is_better(verdict)

    def worse(effect: float) -> float:
        return worsening(effect, is_flipped=is_flipped)

    ends = [change.effect if e is None else e for e in (change.low, change.high)]
    low, high = sorted(map(worse, ends))
    effects = [*map(worse, against.effects)]
    axis = ChangeAxis([low, high, *effects, against.null_fraction or 0.0])
    height = _BLOCK_PX * (len(effects) + 2)
    return Blocks(
        height=height,
        ticks=axis.ticks,
        null=_band(axis, against.null_fraction),
        allowed=_band(axis, verdict.threshold),
        points=tuple(
            (
                typed_percent(axis.at(effect)),
                _BLOCK_PX * (place + 0.5),
                f"block {place + 1}: {display.change(effect)}",
            )
            for place, effect in enumerate(effects)
        ),
        at=(
            typed_percent(axis.at(worse(change.effect))),
            typed_percent(axis.at(low)),
            typed_percent(axis.at(high)),
            height - 0.75 * _BLOCK_PX,
        ),
        text=text,
    )


def higher_is_better(verdict: Verdict) -> bool:
    """Return True if a metric improves when it grows."""
    estimate, metric = verdict.estimate, METRICS.get(verdict.metric)
    if estimate is not None and estimate.better is not None:
        return estimate.better == Better.HIGHER.value
    return metric is not None and metric.better is Better.HIGHER


def worsening(effect: float, *, is_flipped: bool) -> float:
    """Return a change as a worsening: half the throughput counts as twice the time."""
    if not is_flipped:
        return effect
    # A throughput of 0 is worse by any factor.
    return 1 / max(1 + effect, 1e-9) - 1


def _band(axis: ChangeAxis, width: float | None) -> tuple[str, str] | None:
    """Return start and width of the changes up to a size, or None for size 0 or None."""
    if not width:
        return None
    left = axis.at(-min(width, 0.999))  # A decrease is at most 100 %.
    return typed_percent(left), typed_percent(axis.at(width) - left)


def bullet(value: float, threshold: float, text: str) -> Bullet | None:
    """Return the figure of a value with a limit, or None if negative or both 0."""
    longest = max(value, threshold)
    if min(value, threshold) < 0 or longest <= 0:
        return None
    whole = longest * _BULLET_ROOM
    return Bullet(
        value=typed_percent(value / whole),
        limit=typed_percent(threshold / whole),
        text=text,
    )


class SensorBand(Frozen, frozen=True, kw_only=True):
    """One sensor over time: name, range, and line [units of the band]."""

    name: str
    range: str
    points: str


class ThrottleBand(Frozen, frozen=True, kw_only=True):
    """
    The times at which one reason held the clock down.

    Attributes:
        name: The reason.

        share: The total time, and its share of the time line.

        spans: Start, width and text of each stretch.

        text: The figure in words.
    """

    name: str
    share: str
    spans: tuple[tuple[str, str, str], ...]
    text: str


class TimeLineFigure(Frozen, frozen=True, kw_only=True):
    """
    The sensors of a GPU during a measurement.

    Attributes:
        duration: The duration of the measurement.

        count: Number of drawn readings.

        bands: The sensors.

        classes: Start, width and name of each stretch of one class of work, and whether the name
            fits.

        throttled: The reasons that held the clock down.

        shades: Start and width of each stretch with a clock held down for any reason [units of the
            band].

        clock: Whether the clock was held down, in words.

        ticks: Place, text and anchor of round times.
    """

    duration: str
    count: int
    bands: tuple[SensorBand, ...]
    classes: tuple[tuple[str, str, str, bool], ...]
    throttled: tuple[ThrottleBand, ...]
    shades: tuple[tuple[str, str], ...]
    clock: str
    ticks: tuple[tuple[str, str, str], ...]


class Share(Frozen, frozen=True, kw_only=True):
    """A part of a time. It begins at the end of the part above."""

    name: str
    left: str
    width: str
    text: str
    time: str


def shares(parts: Iterable[tuple[str, float]], whole_s: float) -> tuple[Share, ...]:
    """
    Return parts of a time, placed end to end.

    Args:
        parts: Name and length [s] of each part.

        whole_s: The whole time [s].
    """
    if whole_s <= 0:
        return ()
    rows, left = [], 0.0
    for name, part_s in parts:
        share = part_s / whole_s
        rows.append(
            Share(
                name=name,
                left=typed_percent(min(left, 1.0)),
                width=typed_percent(max(0.0, min(share, 1 - left))),
                text=display.whole_percent(share),
                time=display.value(part_s, "s"),
            )
        )
        left += share
    return tuple(rows)


def time_line(line: TimeLine) -> TimeLineFigure | None:
    """Return the figure of a GPU's sensors, or None for fewer than two readings."""
    if len(line.since_s) < 2:  # noqa: PLR2004 - two ends
        return None
    spans_s = line.throttled_spans_s
    ends_s = (end_s for spans in spans_s.values() for _, end_s in spans)
    span_s = max([line.since_s[-1], *ends_s]) or 1.0
    places = [since_s / span_s for since_s in line.since_s]
    bands = (
        _band_of(name, line.readings[name], places)
        for name in display.SENSORS
        if name in line.readings
    )
    clock = "nothing held the clock down"
    if line.throttled_s is None:
        clock = "whether a limit held the clock down is not recorded"
    elif line.throttled_s:
        clock = "shaded: the clock was held down"
    # Reasons may hold the clock down at the same time, and are shaded once.
    held = sorted(span for spans in spans_s.values() for span in spans)
    shades = []
    while held:
        begin_s, end_s = held.pop(0)
        while held and held[0][0] <= end_s:
            end_s = max(end_s, held.pop(0)[1])
        shades.append(
            (_of_band(begin_s / span_s), _of_band((end_s - begin_s) / span_s))
        )
    return TimeLineFigure(
        duration=display.value(span_s, "s"),
        count=len(places),
        bands=tuple(band for band in bands if band is not None),
        classes=tuple(_class_parts(line.classes, places)),
        throttled=tuple(
            _throttle_band(reason.value, held_s, spans_s.get(reason, ()), span_s)
            for reason, held_s in (line.throttled_s or {}).items()
        ),
        shades=tuple(shades),
        clock=clock,
        ticks=tuple(time_ticks(span_s)),
    )


def time_ticks(span_s: float) -> Iterator[tuple[str, str, str]]:
    """Yield place, text and anchor of round times, starting at 0."""
    for time_s in _even_steps(0.0, span_s, _TIME_TICKS):
        share = time_s / span_s
        anchor = "start" if not time_s else "end" if share > _NEAR_END else "middle"
        text = display.exactly(time_s, "s") if time_s else "0"
        yield typed_percent(share), text, anchor


def _of_band(share: float) -> str:
    return f"{_BAND_WIDTH * share:.1f}"


def _throttle_band(
    name: str, held_s: float, spans: Sequence[tuple[float, float]], whole_s: float
) -> ThrottleBand:
    texts = [display.interval(begin_s, end_s, "s") for begin_s, end_s in spans]
    share = f"{display.value(held_s, 's')}, {display.whole_percent(held_s / whole_s)}"
    return ThrottleBand(
        name=name,
        share=share,
        spans=tuple(
            (
                typed_percent(begin_s / whole_s),
                typed_percent((end_s - begin_s) / whole_s),
                text,
            )
            for (begin_s, end_s), text in zip(spans, texts, strict=True)
        ),
        text=f"{name} held the clock down for {share}: {listed(texts)}",
    )


def _band_of(
    name: str, values: Sequence[float | None], places: Sequence[float]
) -> SensorBand | None:
    """Return the line of a sensor, or None for fewer than two values."""
    label, unit = display.SENSORS[name]
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
    if not any(classes):
        return
    begin = end = 0.0  # A reading describes the time since the previous reading.
    for name, several in itertools.groupby(
        zip(classes, places, strict=True), key=itemgetter(0)
    ):
        begin, end = end, [*several][-1][1]
        share = end - begin
        if share > 0:
            text = name or "not known"
            yield (
                typed_percent(begin),
                typed_percent(share),
                text,
                share > _NAMED * len(text),
            )


def utilization_shares(window: UtilizationWindow) -> tuple[Share, ...]:
    """Return the classes of a GPU's time as shares, the longest class first."""
    return shares(display.utilization_parts(window), window.duration_s)
