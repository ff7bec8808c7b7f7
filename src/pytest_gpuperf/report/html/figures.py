"""What the figures of a test hold: positions and texts, nothing that is drawn."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pytest_gpuperf.compute.stats import change_point, quantile
from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.metric import METRICS, Better
from pytest_gpuperf.model.verdict import Verdict
from pytest_gpuperf.report import display
from pytest_gpuperf.report.display import css_percent
from pytest_gpuperf.report.html.axes import ChangeAxis, LevelAxis, LogAxis

__all__ = [
    "Blocks",
    "Bullet",
    "ChangeStrip",
    "History",
    "Samples",
    "SessionSamples",
    "blocks",
    "bullet",
    "change_strip",
    "history",
    "samples",
    "sides",
    "trend",
]

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)  # of a stored session
_MOST_DOTS = 24  # more samples are drawn by their quantiles
_LEAST_HISTORY = 8  # fewer sessions are all seen in the table of samples
_LEAST_TREND = 3
_LEAST_CHANGE = 0.02  # a smaller change of the level is not worth a line
_MOST_HISTORY = 120  # more points lie over each other
_HISTORY_PX = 120
_TREND_PX = 22
_BLOCK_PX = 12  # a block's line
_BULLET_ROOM = 1.25  # the track of a limit is so many times its larger end

Point = tuple[str, float]  # across [%], down [px]


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
    """
    The value of a metric, a point a session.

    Attributes:
        height: Of the figure [px].

        points: Place, kind and text of each session.

        band: Top and height of what the limit allows; None: no limit.

        level: Where the baseline stands; None: there is none.

        levels: Ticks of the value.

        days: Ticks of the time.

        text: All of it in words.

        change: Where the level changed, and what changed in words; None: it did not.
    """

    height: int
    points: tuple[tuple[str, float, str, str], ...]
    band: tuple[float, float] | None
    level: float | None
    levels: tuple[tuple[float, str], ...]
    days: tuple[tuple[str, str], ...]
    text: str
    change: tuple[str, str] | None = None


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


def sides(verdict: Verdict) -> list[SessionSamples]:
    """Return what the processes of each side of a comparison measured."""
    against = verdict.against
    if against is None:
        return []
    return [
        SessionSamples(
            kind=kind,
            label=label,
            value=quantile(values, 0.5),
            values=values,
            count=len(values),
        )
        for kind, label, values in (
            ("stored", "the revision", against.old_values),
            ("now", "the working tree", against.new_values),
        )
        if values
    ]


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


def trend(
    sessions: Sequence[SessionSamples], judged: float | None
) -> tuple[Point, ...]:
    """
    Return the values of the sessions as few small points, this run's last.

    Args:
        sessions: Oldest first, then this run and its fresh processes.

        judged: What stands for this run: fresh processes may have decided.
    """
    alike = [s for s in sessions if s.kind not in {"fresh", "left-out"}][-12:]
    values = _values(alike, judged)
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


def _values(sessions: Sequence[SessionSamples], judged: float | None) -> list[float]:
    """Return what stands for each session; for this run the judged value."""
    return [
        judged if s.kind == "now" and judged is not None else s.value for s in sessions
    ]


def history(
    sessions: Sequence[SessionSamples],
    unit: str,
    verdict: Verdict | None,
    judged: float | None = None,
) -> History | None:
    """
    Return a point for each session; None: they are few, or one has a value of 0.

    Args:
        sessions: Oldest first.

        unit: The unit of their values.

        verdict: What was decided of the change, for its level and its limit.

        judged: What stands for this run: fresh processes may have decided.
    """
    shown = [s for s in sessions if s.kind != "fresh"][-_MOST_HISTORY:]
    values = _values(shown, judged)
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
        change=_level_change(shown, values, unit),
    )


def _level_change(
    sessions: Sequence[SessionSamples], values: Sequence[float], unit: str
) -> tuple[str, str] | None:
    """Return where a history got another level, and what; None: it did not."""
    place = change_point(values, least=_LEAST_CHANGE)
    if place is None:
        return None
    before, after = (quantile(part, 0.5) for part in (values[:place], values[place:]))
    then, now = display.value(before, unit), display.value(after, unit)
    first = f"{sessions[place].label} {sessions[place].commit[:7]}".rstrip()
    moved = display.change(after / before - 1)
    return css_percent(place / len(values)), f"{moved} since {first}: {then} → {now}"
