"""The history of a store as text and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from statistics import median

import msgspec

from pytest_gpuperf.model.history import (
    HistoryMove,
    HistoryPoint,
    MovedMachine,
    MoveKind,
    SeriesHistory,
    StoreHistory,
)
from pytest_gpuperf.report import display
from pytest_gpuperf.report.explanation import typed_command
from pytest_gpuperf.report.lines import Column, column

_BARS = "▁▂▃▄▅▆▇█"
_MOST_BARS = 60
# Commits that a remark names.
_SHOWN = 3


def title(series: SeriesHistory, test: str) -> str:
    """Return the heading of a series: test, metric, machines, sessions and dates."""
    points = series.points
    first, last = points[0].started_unix_s, points[-1].started_unix_s
    dates = dict.fromkeys([display.date(first), display.date(last)])
    machines = {point.machine for point in points} - {None}
    where = f" on {display.plural(len(machines), 'machine')}" if machines else ""
    return (
        f"{test} {series.metric} [{series.source}] ({series.kind}): "
        f"{display.plural(len(points), 'session')}{where}, {' … '.join(dates)}"
    )


def columns(series: SeriesHistory) -> tuple[Column, ...]:
    """Return the table of the changes of a series, or () without a change."""
    moves = series.moves
    if not moves:
        return ()
    return (
        column("change", (move.kind.value for move in moves)),
        column("where", (_where(series, move) for move in moves)),
        column(
            "size (95 %)",
            (
                f"{display.change(move.effect)} "
                f"({display.change(move.low)} … {display.change(move.high)})"
                for move in moves
            ),
        ),
        column("what", (_what(series, m) for m in moves), blank=""),
    )


def remarks(series: SeriesHistory, test: str) -> Iterator[str]:
    """Yield the sentences below the table of a series."""
    values = [point.value for point in series.points]
    least, most = min(values), max(values)
    ends = " … ".join(
        dict.fromkeys(display.value(value, series.unit) for value in (least, most))
    )
    noise = ""
    if series.noise is not None:
        noise = f", sessions differ by {display.change(series.noise, signed=False)}"
    yield f"{bars(values)}  {ends}{noise}"
    near = {p for move in series.moves for p in range(move.first, move.last + 1)}
    for mark in series.marks:
        if mark.place not in near:
            date = display.date(series.points[mark.place].started_unix_s)
            yield f"{date} {mark.text}: no change"
    left_out = [point for point in series.points if point.left_out]
    if left_out:
        names = display.listed(point.machine or "" for point in left_out)
        count = display.plural(len(left_out), "session")
        yield f"left out: {count} of {names}, because the machine moved"
    for move in series.moves:
        good = series.points[max(move.first - 1, 0)].commit
        bad = series.points[move.place].commit
        if move.stands and good and bad and good != bad:
            command = typed_command(
                *("gpuperf", "bisect", test),
                *("--good", display.commit(good), "--bad", display.commit(bad)),
            )
            yield f"next: {command}"


def machine_text(machine: MovedMachine) -> str:
    """Return the sentence about a machine that moved."""
    since = display.date(machine.since_unix_s)
    moved = display.change(machine.effect)
    tests = f"{machine.agreeing_count} of {display.plural(machine.test_count, 'test')}"
    others = display.plural(machine.other_count, "other")
    sessions = display.plural(machine.session_count, "session")
    if machine.is_sure:
        return (
            f"{machine.machine} has been {moved} since {since} against {others} on "
            f"{tests} ({sessions}): the machine, not the code"
        )
    return (
        f"one of {machine.other_count + 1} machines moved: {machine.machine} is {moved} "
        f"since {since} against {others} on {tests} ({sessions}); five machines, or "
        "reference workloads that move alike, would show which"
    )


def _where(series: SeriesHistory, move: HistoryMove) -> str:
    points = series.points
    commits = _commits(points[move.first : move.place + 1])
    named = display.commit(points[move.place].commit)
    if move.kind is MoveKind.DRIFT and len(commits) > 1:
        first = display.commit(commits[0])
        return f"{first} … {named}, {display.plural(len(commits), 'commit')}"
    date = display.date(points[move.place].started_unix_s)
    if not named:
        return date
    later = _commits(points[move.place + 1 : move.last + 1])
    several = [
        f"one of {count} {side}"
        for count, side in (
            (len(set(commits) - {points[move.place].commit}), "before it"),
            (len(set(later) - {points[move.place].commit}), "behind it"),
        )
        if count
    ]
    return " or ".join([f"{date} {named}", *several])


def _commits(points: Sequence[HistoryPoint]) -> list[str]:
    return [*dict.fromkeys(point.commit for point in points if point.commit)]


def _what(series: SeriesHistory, move: HistoryMove) -> str:
    texts = []
    if move.ended_at is not None:
        point = series.points[move.ended_at]
        at = display.commit(point.commit) or display.date(point.started_unix_s)
        count = display.plural(move.ended_at - move.place, "session")
        texts.append(f"went away at {at} ({count} later)")
    if move.kind is MoveKind.DRIFT:
        texts.append("no step that one comparison sees")
    texts += [f"at the same time: {cause}" for cause in move.causes[:_SHOWN]]
    return "; ".join(texts)


def bars(values: Sequence[float]) -> str:
    """Return a series as bars, medians of blocks if there are many values."""
    count = min(len(values), _MOST_BARS)
    parts = [place * len(values) // count for place in range(count + 1)]
    levels = [median(values[a:b]) for a, b in pairwise(parts)]
    least, most = min(levels), max(levels)
    steps = (most - least) or 1.0
    top = len(_BARS) - 1
    return "".join(_BARS[round((level - least) / steps * top)] for level in levels)


def content(
    history: StoreHistory, series: Sequence[SeriesHistory], shown: Callable[[str], str]
) -> dict[str, object]:
    """
    Return the history for JSON.

    Args:
        history: The history.

        series: The series to show.

        shown: Returns a test as pytest shows it.
    """
    return {
        "series": [
            {
                "test": shown(one.key.test_id),
                "name": one.key.name,
                "metric": one.metric,
                "unit": one.unit,
                "source": one.source,
                "kind": one.kind,
                "noise": one.noise,
                "points": [_plain(point) for point in one.points],
                "segments": [
                    {
                        "first": start,
                        "last": end - 1,
                        "n": end - start,
                        "median": median(
                            point.value for point in one.points[start:end]
                        ),
                    }
                    for start, end in pairwise(edges(one))
                ],
                "changes": [
                    {
                        **_plain(move),
                        "commits": _commits(one.points[move.first : move.last + 1]),
                        "stands": move.stands,
                    }
                    for move in one.moves
                ],
                "marks": [_plain(mark) for mark in one.marks],
            }
            for one in series
        ],
        "machines": [_plain(machine) for machine in history.machines],
    }


def edges(series: SeriesHistory) -> list[int]:
    """Return the places at which a level of a series begins, and the end of the last."""
    steps = [move for move in series.moves if move.kind is not MoveKind.DRIFT]
    starts = {place for m in steps for place in (m.place, m.ended_at)} - {None}
    return sorted({0, *filter(None, starts), len(series.points)})


def _plain(record: object) -> dict[str, object]:
    plain: dict[str, object] = msgspec.to_builtins(record)
    return plain
