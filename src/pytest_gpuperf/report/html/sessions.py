"""The sessions of a measurement: samples side by side, and history."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from pytest_gpuperf.compute.stats import change_point, quantile, sorted_quantile
from pytest_gpuperf.model.environment import Session
from pytest_gpuperf.model.frozen import Frozen, replace
from pytest_gpuperf.model.record import (
    QUANTILES,
    Record,
    RecordKey,
    Role,
    SessionValue,
    StoredRecord,
)
from pytest_gpuperf.model.run import Run
from pytest_gpuperf.model.sample import Estimate
from pytest_gpuperf.model.verdict import Verdict
from pytest_gpuperf.report import display
from pytest_gpuperf.report.display import typed_percent
from pytest_gpuperf.report.html.figures import LevelAxis, LogAxis
from pytest_gpuperf.report.rows import Row

# More samples are drawn as quantiles.
MOST_DOTS = 24
# Fewer sessions all fit in the table of samples.
_LEAST_HISTORY = 8
_LEAST_TREND = 3
# A smaller change of the level is not marked.
_LEAST_CHANGE = 0.02
# More points would overlap.
_MOST_HISTORY = 120
_HISTORY_PX = 120
_TREND_PX = 22
Point = tuple[str, float]  # Across [%], down [px].


class SessionSamples(Frozen, frozen=True, kw_only=True):
    """
    The samples of a metric in one session or one fresh process.

    Attributes:
        kind: stored, left-out, older, now or fresh.

        label: The time of the session, or the name of the process.

        value: The representative value [unit].

        commit: The revision, or "" if unknown.

        values: The samples [unit], may be empty.

        quantiles: The 5, 25, 50, 75 and 95 % quantiles of more samples, may be empty.

        count: Number of samples, or None if unknown.
    """

    kind: str
    label: str
    value: float
    commit: str = ""
    values: tuple[float, ...] = ()
    quantiles: tuple[float, ...] = ()
    count: int | None = None

    def spread(self, most_dots: int) -> tuple[float, ...]:
        """Return the quantiles of more samples than dots, or an empty tuple for few samples."""
        if self.quantiles:
            return self.quantiles
        if len(self.values) > most_dots:
            ordered = sorted(self.values)
            return tuple([sorted_quantile(ordered, share) for share in QUANTILES])
        return ()


class SampleRow(NamedTuple):
    """A line of the table of samples, which the template takes apart."""

    kind: str
    label: str
    commit: str
    dots: tuple[str, ...]
    tail: tuple[str, str] | None
    box: tuple[str, str] | None
    median: str
    value: str
    sample_count: str


class Samples(Frozen, frozen=True, kw_only=True):
    """
    Samples of a metric in this run and in every stored session.

    Attributes:
        metric: The metric.

        rows: The sessions, oldest first, then this run, then its fresh processes.

        ticks: Places and texts of the axis.

        expected: Place of the baseline, or "" without a baseline.

        limit: Place of the limit, or "" without a limit.

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
        """True if a stored session was excluded from the baseline."""
        return any(row.kind == "left-out" for row in self.rows)


class History(Frozen, frozen=True, kw_only=True):
    """
    The value of a metric, with a point per session.

    Attributes:
        height: Height of the figure [px].

        points: Place, kind and text of each session.

        band: Top and height of the band that the limit allows, or None without a limit.

        level: Height of the baseline, or None without a baseline.

        levels: Ticks of the value.

        days: Ticks of the time.

        text: The figure in words.

        change: Place and text of a change of the level, or None without a change.
    """

    height: int
    points: tuple[tuple[str, float, str, str], ...]
    band: tuple[float, float] | None
    level: float | None
    levels: tuple[tuple[float, str], ...]
    days: tuple[tuple[str, str], ...]
    text: str
    change: tuple[str, str] | None = None


class Sessions:
    """
    The sessions of a run: stored sessions, earlier runs, and the run's own processes.

    Args:
        run: The run.

        older: Earlier runs, oldest first.
    """

    def __init__(self, run: Run, older: Sequence[Run] = ()) -> None:
        self._run = run
        self._older: list[tuple[Run, Mapping[RecordKey, Record]]] = []
        for earlier in older:
            # Reversed, so that the first record of a key wins.
            of_main = (r for r in reversed(earlier.records) if r.role is Role.MAIN)
            self._older.append((earlier, {record.key: record for record in of_main}))
        self._fresh: dict[RecordKey, list[Record]] = defaultdict(list)
        for record in run.records:
            if record.role not in {Role.MAIN, Role.ALONE}:
                self._fresh[record.key].append(record)
        self._stored: dict[RecordKey, list[StoredRecord]] = defaultdict(list)
        for stored in run.stored:
            self._stored[stored.key].append(stored)
        sessions = [s.session for s in run.stored] + [r.header.session for r in older]
        begun = {session.id: session.started_unix_s for session in sessions}
        minutes = set(map(display.moment, begun.values()))
        self._moment = display.moment if len(minutes) == len(begun) else display.second

    def of(self, row: Row, shown: Estimate | None) -> list[SessionSamples]:
        """Return the samples of a metric in every session, oldest first, then in this run."""
        if shown is None or row.record is None:
            return []
        sessions = self._before(row, shown)
        session = self._run.header.session
        first = row.estimate(shown.metric) or shown
        now = _of_record(row.record, first, kind="now", label="this run")
        sessions.append(replace(now, commit=session.commit or ""))
        for record in self._fresh.get(row.key, ()):
            for estimate in record.estimates:
                if _is_alike(estimate, shown):
                    label = f"fresh process {record.process_index}"
                    sessions.append(
                        _of_record(record, estimate, kind="fresh", label=label)
                    )
        return sessions

    def earlier(self, row: Row) -> Record | None:
        """Return the record in the newest earlier run, or None."""
        several = (records.get(row.key) for _, records in reversed(self._older))
        return next(filter(None, several), None)

    def stored_with_kernels(self, row: Row) -> StoredRecord | None:
        """Return the newest stored session with known kernels, or None."""
        several = reversed(self._stored.get(row.key, ()))
        return next((stored for stored in several if stored.kernels), None)

    def _before(self, row: Row, shown: Estimate) -> list[SessionSamples]:
        """Return the samples of a metric in stored sessions and earlier runs, oldest first."""
        by_session: dict[tuple[float, str], SessionSamples] = {}  # By start [s] and id.
        left_out = {v.change.left_out for v in row.verdicts if v.change is not None}
        for stored in self._stored.get(row.key, ()):
            for value in stored.values:
                if _is_alike(value, shown):
                    session = stored.session
                    by_session[session.started_unix_s, session.id] = SessionSamples(
                        kind="left-out" if session.id in left_out else "stored",
                        label=self._label(session),
                        value=sorted(value.run_values)[len(value.run_values) // 2],
                        commit=session.commit or "",
                        values=() if value.quantiles else value.run_values,
                        quantiles=value.quantiles,
                    )
        # The samples of an earlier run are more detailed than a stored session.
        for run, records in self._older:
            record, session = records.get(row.key), run.header.session
            if record is None:
                continue
            for estimate in record.estimates:
                if _is_alike(estimate, shown):
                    label = self._label(session)
                    samples = _of_record(record, estimate, kind="older", label=label)
                    by_session[session.started_unix_s, session.id] = replace(
                        samples, commit=session.commit or ""
                    )
        return [by_session[session] for session in sorted(by_session)]

    def _label(self, session: Session) -> str:
        """Return the start of a session, to the second if two sessions began within a minute."""
        return self._moment(session.started_unix_s).removesuffix(" UTC")


def _of_record(
    record: Record, estimate: Estimate, *, kind: str, label: str
) -> SessionSamples:
    values = next(
        (
            series.values
            for series in record.series
            if (series.metric, series.unit, series.source)
            == (estimate.metric, estimate.unit, estimate.source)
        ),
        (),
    )
    return SessionSamples(
        kind=kind,
        label=label,
        value=estimate.value,
        values=values,
        count=estimate.sample_count,
    )


def _is_alike(value: Estimate | SessionValue, shown: Estimate) -> bool:
    if value.metric != shown.metric:  # Quickly said of most.
        return False
    kernel = value.kernel if isinstance(value, Estimate) else None
    name = (value.source, value.unit, kernel)
    return name == (shown.source, shown.unit, shown.kernel)


def sides(verdict: Verdict) -> list[SessionSamples]:
    """Return the samples of both sides of a comparison with a revision."""
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


def samples(
    sessions: Sequence[SessionSamples],
    metric: str,
    unit: str,
    verdicts: Iterable[Verdict],
    *,
    most_dots: int = MOST_DOTS,
) -> Samples | None:
    """
    Return the table of samples, or None without a session or if a number is not positive.

    Args:
        sessions: The sessions, oldest first, then this run and its fresh processes.

        metric: The metric.

        unit: The unit of the metric.

        verdicts: The verdicts of the measurement, for the baseline and the limit.

        most_dots: Largest number of samples drawn as dots. More samples are drawn as quantiles.
    """
    of_metric = [v for v in verdicts if v.metric == metric]
    expected = next(
        (v.change.reference for v in of_metric if v.change is not None), None
    )
    limit = next((v.limit for v in of_metric if v.limit is not None), None)
    spreads = [session.spread(most_dots) for session in sessions]
    shown = [
        x
        for s, spread in zip(sessions, spreads, strict=True)
        for x in (s.value, *s.values, *spread)
    ]
    marks = [expected, None if limit is None else limit.threshold]
    ends = [*shown, *(mark for mark in marks if mark is not None and mark > 0)]
    if not shown or min(shown) <= 0:
        return None
    axis = LogAxis(min(ends), max(ends), most=5)
    at = ["" if m is None or m <= 0 else typed_percent(axis.at(m)) for m in marks]
    return Samples(
        metric=metric,
        rows=tuple(
            _sample_row(session, spread, axis, unit)
            for session, spread in zip(sessions, spreads, strict=True)
        ),
        ticks=tuple(
            (typed_percent(axis.at(t)), display.exactly(t, unit)) for t in axis.ticks
        ),
        expected=at[0],
        limit=at[1],
        limit_text="" if limit is None else limit.text,
    )


def _sample_row(
    session: SessionSamples, quantiles: Sequence[float], axis: LogAxis, unit: str
) -> SampleRow:
    spread = [axis.at(end) for end in quantiles]
    median = spread[2] if spread else axis.at(session.value)
    dots = () if spread else session.values or (session.value,)
    return SampleRow(
        kind=session.kind,
        label=session.label,
        commit=session.commit[:7],
        dots=tuple(typed_percent(axis.at(value)) for value in dots),
        tail=(typed_percent(spread[0]), typed_percent(spread[4] - spread[0]))
        if spread
        else None,
        box=(typed_percent(spread[1]), typed_percent(max(spread[3] - spread[1], 0.003)))
        if spread
        else None,
        median=typed_percent(median),
        value=display.value(session.value, unit),
        sample_count="" if session.count is None else str(session.count),
    )


def trend(
    sessions: Sequence[SessionSamples], judged: float | None
) -> tuple[Point, ...]:
    """
    Return the values of the sessions as a few small points, with this run last.

    Args:
        sessions: The sessions, oldest first, then this run and its fresh processes.

        judged: The value of this run, which fresh processes may have decided, or None.
    """
    alike = [s for s in sessions if s.kind not in {"fresh", "left-out"}][-12:]
    values = _values(alike, judged)
    if len(values) < _LEAST_TREND or min(values) <= 0:
        return ()
    low, high = min(values), max(values)
    if high < 1.08 * low:  # Noise must not look like a cliff.
        low, high = low / 1.04, high * 1.04
    axis = LevelAxis(low, high, height_px=_TREND_PX)
    step = 0.88 / (len(values) - 1)
    return tuple(
        (typed_percent(0.06 + place * step), axis.at(value))
        for place, value in enumerate(values)
    )


def _values(sessions: Sequence[SessionSamples], judged: float | None) -> list[float]:
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
    Return a point per session, or None for few sessions or if a value is not positive.

    Args:
        sessions: The sessions, oldest first.

        unit: The unit of their values.

        verdict: The verdict on the change, for the level and the limit, or None.

        judged: The value of this run, which fresh processes may have decided, or None.
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
    places = [typed_percent((place + 0.5) * step) for place in range(len(shown))]
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
    """Return place and text of a change of level between stored sessions, or None."""
    stored = [v for s, v in zip(sessions, values, strict=True) if s.kind != "now"]
    place = change_point(stored, least=_LEAST_CHANGE)
    if place is None:
        return None
    before, after = (quantile(part, 0.5) for part in (stored[:place], stored[place:]))
    then, now = display.value(before, unit), display.value(after, unit)
    first = f"{sessions[place].label} {sessions[place].commit[:7]}".rstrip()
    moved = display.change(after / before - 1)
    return typed_percent(place / len(values)), f"{moved} since {first}: {then} → {now}"
