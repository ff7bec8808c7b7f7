"""Figures that need no session: axes, changes, limits, blocks, time.

A figure has positions and texts, nothing that is drawn: x as a share of its width, y in
pixels. So it stretches with the page while its text and marks keep their size, on a phone
and on paper, without a script.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter

from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.metric import METRICS, Better
from pytest_gpuperf.model.telemetry import TimeLine, UtilizationWindow
from pytest_gpuperf.model.verdict import Verdict
from pytest_gpuperf.report import display
from pytest_gpuperf.report.display import css_percent
from pytest_gpuperf.report.explanation import listed

__all__ = [
    "Blocks",
    "Bullet",
    "ChangeAxis",
    "ChangeStrip",
    "LevelAxis",
    "LogAxis",
    "SensorBand",
    "Share",
    "ThrottleBand",
    "TimeLineFigure",
    "blocks",
    "bullet",
    "change_strip",
    "clean",
    "higher_is_better",
    "shares",
    "time_line",
    "time_ticks",
    "utilization_shares",
    "worsening",
]

# a change up to some 5 % is drawn in proportion, beyond in logs
_LINEAR = math.log(1.05)
_LEAST_REACH = 0.3  # the axis shows at least that change
_AIR = 1.12  # the widest change stays this factor away from the edge
_LABEL_WIDTH = 0.085  # of a tick's text [share of the axis]
_SMALLEST = 1e-300  # what a logarithm of 0 is taken of
_FLAT = 1.0001  # a span below it is drawn as if it were a per mille
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
_BAND_PX = 28  # height of a sensor's band
_BAND_WIDTH = 1000  # its width, in units of its own: it stretches
_NAMED = 0.016  # of the width, for each letter of the name of a class
_TIME_TICKS = 6  # of a time line: more have no room on a phone
_NEAR_END = 0.94  # from here on a tick's text is set to the left of its place
_BLOCK_PX = 12  # a block's line
_BULLET_ROOM = 1.25  # the track of a limit is so many times its larger end


def clean(number: float) -> float:
    """Return a number of a tick without the rounding of its making."""
    return float(f"{number:.6g}")


class ChangeAxis:
    """
    The changes of all tests on one axis, worse to the right.

    Args:
        changes: All that are shown [fraction]; the axis is symmetric about none.
    """

    def __init__(self, changes: Sequence[float]) -> None:
        widest = max(map(abs, map(_bent, (*changes, _LEAST_REACH))))
        self._reach = widest * _AIR
        self.ticks = tuple(self._chosen_ticks())

    def at(self, change: float) -> float:
        """Return where a change stands [share of the width], cut at both ends."""
        share = _bent(change) / self._reach
        return 0.5 + 0.5 * max(-1.0, min(1.0, share))

    def is_beyond(self, change: float) -> bool:
        """Return whether a change lies past an end of the axis."""
        return abs(_bent(change)) > self._reach

    def _chosen_ticks(self) -> list[tuple[str, str]]:
        """Return places and texts from the middle outwards, none over another."""
        inside = [(self.at(c), text) for c, text in _TICKS if not self.is_beyond(c)]
        chosen: list[tuple[float, str]] = []
        for place, text in sorted(inside, key=lambda tick: abs(tick[0] - 0.5)):
            apart = all(abs(place - other) >= _LABEL_WIDTH for other, _ in chosen)
            if apart and _LABEL_WIDTH / 2 < place < 1 - _LABEL_WIDTH / 2:
                chosen.append((place, text))
        return [(css_percent(place), text) for place, text in chosen]


class LogAxis:
    """
    A logarithmic axis across the width, with few ticks at round numbers.

    Args:
        low: The smallest number, > 0.

        high: The largest, >= `low`.

        most: Ticks that have room.
    """

    def __init__(self, low: float, high: float, *, most: int = 6) -> None:
        high = max(high, low * _FLAT)
        air = 0.06 * math.log(high / low)
        self._low, self._high = math.log(low) - air, math.log(high) + air
        self.ticks = _round_numbers(math.exp(self._low), math.exp(self._high), most)

    def at(self, number: float) -> float:
        """Return where a number stands [share of the width], cut at both ends."""
        share = (math.log(max(number, _SMALLEST)) - self._low) / (
            self._high - self._low
        )
        return max(0.0, min(1.0, share))


class LevelAxis:
    """
    The same from bottom to top.

    Args:
        low: The smallest number, > 0.

        high: The largest, >= `low`.

        height_px: Height of the figure [px].

        most: Ticks that have room.
    """

    def __init__(
        self, low: float, high: float, *, height_px: int, most: int = 5
    ) -> None:
        self._across = LogAxis(low, high, most=most)
        self._height_px = height_px
        self.ticks = self._across.ticks

    def at(self, number: float) -> float:
        """Return where a number stands [px from the top]."""
        return round(self._height_px * (1 - self._across.at(number)), 1)


def _bent(change: float) -> float:
    """Return a change as it is drawn: in proportion near 0, by its logarithm beyond."""
    factor = max(1 + change, 1e-9)  # -100 % has no logarithm
    return math.asinh(math.log(factor) / _LINEAR)


def _round_numbers(low: float, high: float, most: int) -> tuple[float, ...]:
    """Return round numbers from low to high, at most so many."""
    if high < 3 * low:  # a decade has too few of them
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
    """Return multiples of 1, 2 or 5 times a power of ten, at most so many."""
    power = 10.0 ** (math.floor(math.log10(high - low)) - 1)
    steps = (digit * power for digit in (1, 2, 5, 10, 20, 50, 100))
    step = next(step for step in steps if high / step - low / step < most)
    first, last = math.ceil(low / step), math.floor(high / step)
    return tuple(clean(place * step) for place in range(first, last + 1))


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


class Blocks(Frozen, frozen=True, kw_only=True):
    """
    What each block of a comparison with a revision differed by, worse to the right.

    Attributes:
        height: Of the figure [px].

        ticks: Places and texts of the axis.

        null: Start and width of what the same code differs by; None: not known.

        allowed: Start and width of the band that the limit allows; None: no limit.

        points: The difference of each block, the first on top, with its text.

        at: The change as it was judged: place, low and high end, and how far down.

        text: All of it in words.
    """

    height: int
    ticks: tuple[tuple[str, str], ...]
    null: tuple[str, str] | None
    allowed: tuple[str, str] | None
    points: tuple[tuple[str, float, str], ...]
    at: tuple[str, str, str, float]
    text: str


class Bullet(Frozen, frozen=True, kw_only=True):
    """A value as a bar, with an upright at its limit."""

    value: str
    limit: str
    text: str


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


def blocks(verdict: Verdict, text: str) -> Blocks | None:
    """Return the blocks behind a verdict against a revision; None: it has none."""
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
                css_percent(axis.at(effect)),
                _BLOCK_PX * (place + 0.5),
                f"block {place + 1}: {display.change(effect)}",
            )
            for place, effect in enumerate(effects)
        ),
        at=(
            css_percent(axis.at(worse(change.effect))),
            css_percent(axis.at(low)),
            css_percent(axis.at(high)),
            height - 0.75 * _BLOCK_PX,
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


class SensorBand(Frozen, frozen=True, kw_only=True):
    """One sensor over time: its name, what it ranged over, and its line [band's units]."""

    name: str
    range: str
    points: str


class ThrottleBand(Frozen, frozen=True, kw_only=True):
    """
    When one reason held the clock down.

    Attributes:
        name: The reason.

        share: How long, and which share of the time line.

        spans: Start, width and text of each stretch.

        text: All of it in words.
    """

    name: str
    share: str
    spans: tuple[tuple[str, str, str], ...]
    text: str


class TimeLineFigure(Frozen, frozen=True, kw_only=True):
    """
    The sensors of a GPU over a measurement, from its begin on.

    Attributes:
        duration: How long it took.

        count: Readings that are drawn.

        bands: The sensors.

        classes: Start, width and name of each stretch of one class of work, and whether
            the name has room in it.

        throttled: The reasons that held the clock down.

        shades: Start and width of each stretch in which any of them did [band's units].

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
    spans_s = line.throttled_spans_s
    ends_s = (end_s for spans in spans_s.values() for _, end_s in spans)
    span_s = max([line.since_s[-1], *ends_s]) or 1.0
    places = [since_s / span_s for since_s in line.since_s]
    bands = (
        _band_of(name, line.readings[name], places)
        for name in display.SENSORS
        if name in line.readings
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
        shades=tuple(
            (_of_band(begin_s / span_s), _of_band((end_s - begin_s) / span_s))
            for begin_s, end_s in _united(spans_s.values())
        ),
        clock=_clock_text(line),
        ticks=tuple(time_ticks(span_s)),
    )


def time_ticks(span_s: float) -> Iterator[tuple[str, str, str]]:
    """Yield place, text and anchor of round times from the begin on."""
    for time_s in _even_steps(0.0, span_s, _TIME_TICKS):
        share = time_s / span_s
        anchor = "start" if not time_s else "end" if share > _NEAR_END else "middle"
        text = display.exactly(time_s, "s") if time_s else "0"
        yield css_percent(share), text, anchor


def _clock_text(line: TimeLine) -> str:
    """Return whether something held the clock down, in words."""
    if line.throttled_s is None:
        return "whether a limit held the clock down is not recorded"
    if line.throttled_s:
        return "shaded: the clock was held down"
    return "nothing held the clock down"


def _of_band(share: float) -> str:
    """Return a share of a band's width in its units."""
    return f"{_BAND_WIDTH * share:.1f}"


def _throttle_band(
    name: str, held_s: float, spans: Sequence[tuple[float, float]], whole_s: float
) -> ThrottleBand:
    """Return when one reason held the clock down."""
    texts = [display.interval(begin_s, end_s, "s") for begin_s, end_s in spans]
    share = f"{display.value(held_s, 's')}, {display.whole_percent(held_s / whole_s)}"
    return ThrottleBand(
        name=name,
        share=share,
        spans=tuple(
            (
                css_percent(begin_s / whole_s),
                css_percent((end_s - begin_s) / whole_s),
                text,
            )
            for (begin_s, end_s), text in zip(spans, texts, strict=True)
        ),
        text=f"{name} held the clock down for {share}: {listed(texts)}",
    )


def _united(
    spans: Iterable[Sequence[tuple[float, float]]],
) -> Iterator[tuple[float, float]]:
    """Yield stretches without their overlaps."""
    ordered = sorted(span for several in spans for span in several)
    while ordered:
        begin_s, end_s = ordered.pop(0)
        while ordered and ordered[0][0] <= end_s:
            end_s = max(end_s, ordered.pop(0)[1])
        yield begin_s, end_s


def _band_of(
    name: str, values: Sequence[float | None], places: Sequence[float]
) -> SensorBand | None:
    """Return one sensor as a line; None: it said something once at most."""
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
    """Yield start, width and name of each stretch of one class, and if a name fits."""
    if not any(classes):
        return
    begin = end = 0.0  # a reading describes the time since the one before it
    for name, several in itertools.groupby(
        zip(classes, places, strict=True), key=itemgetter(0)
    ):
        begin, end = end, [*several][-1][1]
        share = end - begin
        if share > 0:
            text = name or "not known"
            yield (
                css_percent(begin),
                css_percent(share),
                text,
                share > _NAMED * len(text),
            )


def utilization_shares(window: UtilizationWindow) -> tuple[Share, ...]:
    """Return where the time of a GPU went, the longest class first."""
    return shares(display.utilization_parts(window), window.duration_s)
