"""The history of stored series: lasting changes, drifts, and machines that moved."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import fmean

from pytest_gpuperf.compute.drift import drift_of
from pytest_gpuperf.compute.fleet import FleetSession, moved_machines
from pytest_gpuperf.compute.levels import LevelChange, level_changes, usual_noise
from pytest_gpuperf.compute.spread import DRIFT_SESSIONS, about_trend, moments
from pytest_gpuperf.compute.stats import fraction_of
from pytest_gpuperf.judge.case import Case, Reference, case_of, direction, values_of
from pytest_gpuperf.model.environment import differences, facts_of
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.history import (
    HistoryMark,
    HistoryMove,
    HistoryPoint,
    MovedMachine,
    MoveKind,
    SeriesHistory,
    StoreHistory,
)
from pytest_gpuperf.model.metric import Better, metric_of
from pytest_gpuperf.model.record import (
    REFERENCES,
    Kind,
    Record,
    RecordKey,
    SessionValue,
    StoredRecord,
)
from pytest_gpuperf.model.sample import Estimate, Source

# docs/history.md.
_LEAST_DRIFT = math.log(1.05)
# A level is the old one again if no more than this part of the change is left, or 1 %.
_LEFT, _LEFT_LOG = 0.25, 0.01

Stored = Mapping[RecordKey, Sequence[StoredRecord]]
# A session with its value.
_Valued = tuple[StoredRecord, SessionValue]


def history_of(
    kinds: Mapping[str, Stored],
    metrics: Sequence[str],
    machines: Sequence[MovedMachine] = (),
) -> StoreHistory:
    """
    Return the history of some tests.

    Args:
        kinds: The sessions of each measurement in order of arrival, by kind of machine.

        metrics: The metrics to show.

        machines: The machines that moved. If one is sure to have moved, its values since
            then are left out.
    """
    series: list[SeriesHistory] = []
    for kind, stored in kinds.items():
        since = {
            moved.machine: moved.since_unix_s
            for moved in machines
            if moved.is_sure and moved.kind == kind
        }
        for key, records in stored.items():
            if key.test_id != REFERENCES:
                series += _series(kind, key, records, metrics, since)
    return StoreHistory(series=tuple(series), machines=tuple(machines))


def slow_machines(kinds: Mapping[str, Stored]) -> tuple[MovedMachine, ...]:
    """
    Return the machines that moved apart from the others of their kind.

    Args:
        kinds: The sessions of all measurements, by kind of machine.
    """
    return tuple(
        moved for kind, stored in kinds.items() for moved in _machines(kind, stored)
    )


def _series(
    kind: str,
    key: RecordKey,
    records: Sequence[StoredRecord],
    metrics: Sequence[str],
    since: Mapping[str, float],
) -> Iterator[SeriesHistory]:
    valued: dict[tuple[str, str, str], list[_Valued]] = {}
    for record in records:
        for value in record.values:
            if value.metric in metrics or value.metric == key.name:
                name = (value.metric, value.source, value.unit)
                valued.setdefault(name, []).append((record, value))
    for (metric, source, unit), pairs in valued.items():
        points = tuple(_point(record, value, since) for record, value in pairs)
        marks = tuple(_marks(pairs))
        moves, noise = _moves(points, marks, pairs)
        yield SeriesHistory(
            key=key,
            metric=metric,
            unit=unit,
            source=source,
            kind=kind,
            points=points,
            moves=moves,
            marks=marks,
            noise=noise,
        )


def _point(
    record: StoredRecord, value: SessionValue, since: Mapping[str, float]
) -> HistoryPoint:
    session = record.session
    moved_s = since.get(session.machine or "", math.inf)
    return HistoryPoint(
        session_id=session.id,
        started_unix_s=session.started_unix_s,
        value=fmean(value.run_values),
        commit=session.commit,
        machine=session.machine,
        choice=record.choice,
        left_out=session.started_unix_s >= moved_s,
    )


def _marks(pairs: Sequence[_Valued]) -> Iterator[HistoryMark]:
    for place, ((was, old), (now, new)) in enumerate(pairwise(pairs), start=1):
        if new.series > old.series:
            yield HistoryMark(place=place, text="accepted")
        if now.choice != was.choice:
            yield HistoryMark(place=place, text="other kernels")
        if now.facts is was.facts or now.facts == was.facts:
            continue
        then = facts_of(was.facts, old.metric, old.source)
        moved = differences(facts_of(now.facts, new.metric, new.source), then)
        for name, (before, after) in sorted(moved.items()):
            yield HistoryMark(place=place, text=f"{name} {before} -> {after}")


def _moves(
    points: Sequence[HistoryPoint],
    marks: Sequence[HistoryMark],
    pairs: Sequence[_Valued],
) -> tuple[tuple[HistoryMove, ...], float | None]:
    places = [n for n, point in enumerate(points) if not point.left_out]
    if not places or min(points[n].value for n in places) <= 0:
        return (), None  # No change is a share of 0.
    logs = [math.log(points[n].value) for n in places]
    noise = usual_noise(logs)
    first = pairs[0][1]
    better = Better(first.better) if first.better else Better.NEITHER
    metric = metric_of(first.metric, unit=first.unit, better=better)
    sign = -1.0 if direction(metric) is Better.HIGHER else 1.0
    changes = level_changes(logs)
    drift = _drift(logs, changes, sign)
    if drift is not None:
        return (_placed(drift, places, marks),), math.expm1(noise)
    moves = [_move(change, sign) for change in changes]
    ended = list(_without_ends(moves, changes))
    placed = tuple(_placed(move, places, marks) for move in ended)
    return placed, math.expm1(noise) if len(logs) > 2 else None  # noqa: PLR2004 - of two nothing is known


def _drift(
    logs: Sequence[float], changes: Sequence[LevelChange], sign: float
) -> HistoryMove | None:
    """Return the drift of a series that a line describes better than levels, or None."""
    edges = [0, *(change.place for change in changes), len(logs)]
    about_levels = sum(moments(logs[a:b])[1] for a, b in pairwise(edges))
    if len(logs) < DRIFT_SESSIONS or about_trend(logs) > about_levels:
        return None
    trend = drift_of(logs, least=_LEAST_DRIFT)
    if trend is None or sign * trend.log_change < 0:
        return None
    # The ends are medians of three.
    error = 2 * usual_noise(logs)
    return HistoryMove(
        kind=MoveKind.DRIFT,
        place=len(logs) - 1,
        first=0,
        last=len(logs) - 1,
        effect=fraction_of(trend.log_change),
        low=fraction_of(trend.log_change - error),
        high=fraction_of(trend.log_change + error),
    )


def _move(change: LevelChange, sign: float) -> HistoryMove:
    worse = sign * change.log_change > 0
    return HistoryMove(
        kind=MoveKind.SLOWER if worse else MoveKind.FASTER,
        place=change.place,
        first=change.first,
        last=change.last,
        effect=fraction_of(change.log_change),
        low=fraction_of(change.log_change - change.log_error),
        high=fraction_of(change.log_change + change.log_error),
    )


def _without_ends(
    moves: Sequence[HistoryMove], changes: Sequence[LevelChange]
) -> Iterator[HistoryMove]:
    """Yield changes, without the later changes that restore an earlier level."""
    ends: set[int] = set()
    for number, (move, change) in enumerate(zip(moves, changes, strict=True)):
        if number in ends:
            continue
        left = change.log_change
        most = max(_LEFT * abs(left), _LEFT_LOG)
        ended_at = None
        for later in range(number + 1, len(changes)):
            left += changes[later].log_change
            if abs(left) <= most:
                ended_at = changes[later].place
                ends.add(later)
                break
        yield replace(move, ended_at=ended_at)


def _placed(
    move: HistoryMove, places: Sequence[int], marks: Iterable[HistoryMark]
) -> HistoryMove:
    first, last = places[move.first], places[move.last]
    near = [mark.text for mark in marks if first <= mark.place <= last]
    return replace(
        move,
        place=places[move.place],
        first=first,
        last=last,
        causes=() if move.kind is MoveKind.DRIFT else tuple(near),
        ended_at=None if move.ended_at is None else places[move.ended_at],
    )


def _machines(kind: str, stored: Stored) -> tuple[MovedMachine, ...]:
    sessions: dict[str, tuple[StoredRecord, dict[object, float], dict[object, float]]]
    sessions = {}
    for key, records in stored.items():
        for record in records:
            if record.session.machine is None:
                continue
            _, tests, references = sessions.setdefault(
                record.session.id, (record, {}, {})
            )
            logs = references if key.test_id == REFERENCES else tests
            for value in record.values:
                is_time = value.unit == "s" and value.source != Source.USER
                if value.metric == "time" and is_time and min(value.run_values) > 0:
                    name = (key, value.source, record.choice)
                    logs[name] = math.log(fmean(value.run_values))
    ordered = sorted(
        (each for each in sessions.values() if each[1]),
        key=lambda each: each[0].session.started_unix_s,
    )
    fleet = [
        FleetSession(
            machine=record.session.machine or "",
            started_unix_s=record.session.started_unix_s,
            logs=tests,
            reference_logs=references,
        )
        for record, tests, references in ordered
    ]
    return moved_machines(kind, fleet)


def newest_case(
    sessions: Sequence[StoredRecord], metric: str, *, limit: float | None = None
) -> Case:
    """
    Build a case that compares the newest stored session with all stored sessions.

    Args:
        sessions: The stored sessions of one measurement in order of arrival, at least one.

        metric: The metric's name.

        limit: Largest change that passes [fraction], or None if the metric is only shown.
    """
    newest = next((s for s in reversed(sessions) if values_of(s, metric)), sessions[-1])
    counts = [len(value.run_values) for value in values_of(newest, metric)]
    processes = [
        Record(
            key=newest.key,
            kind=Kind.MEASURE,
            estimates=tuple(
                Estimate(
                    metric=metric,
                    value=value.run_values[number],
                    unit=value.unit,
                    source=value.source,
                    better=value.better,
                    core=value.cores[number] if value.cores else None,
                    sm_clock_hz=value.sm_clocks_hz[number]
                    if value.sm_clocks_hz
                    else None,
                )
                for value in values_of(newest, metric)
                if number < len(value.run_values)
            ),
            facts=newest.facts,
            soft_facts=newest.soft_facts,
            choice=newest.choice,
            parameters_digest=newest.parameters_digest,
            test_digest=newest.test_digest,
            bound_class=newest.bound_class,
        )
        for number in range(max(counts, default=1))
    ]
    return case_of(processes, sessions, metric=metric, limit=limit, session_id="")


def newest_reference(sessions: Sequence[StoredRecord]) -> Reference:
    """Return a reference workload with the time of the newest stored session."""
    case = newest_case(sessions, "time")
    return Reference(
        name=case.key.name,
        bound_class=case.bound_class,
        current=case.current,
        stored=case.stored,
    )
