"""The history of a store as one HTML page."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import median

from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.history import HistoryPoint, SeriesHistory, StoreHistory
from pytest_gpuperf.report import display
from pytest_gpuperf.report import history as words
from pytest_gpuperf.report.html import still_page
from pytest_gpuperf.report.lines import Column

# Size of a chart, and its margins [SVG units].
WIDTH, HEIGHT = 900.0, 150.0
_LEFT, _TOP, _BOTTOM = 90.0, 12.0, 24.0
# Colours of machines. More machines share them.
_COLOURS = 6


class Dot(Frozen, frozen=True, kw_only=True):
    """
    The point of one session.

    Attributes:
        x: Place from the left.

        y: Place from the top.

        text: Date, commit, machine and value.

        colour: Number of the machine's colour.

        left_out: Whether the machine had moved.
    """

    x: float
    y: float
    text: str
    colour: int
    left_out: bool


class Stroke(Frozen, frozen=True, kw_only=True):
    """
    A level, the range of a change, or a change of facts.

    Attributes:
        x: Place of its left end.

        x2: Place of its right end.

        y: Place of a level from the top.

        text: What it stands for.
    """

    x: float
    x2: float
    y: float = 0.0
    text: str = ""


class Chart(Frozen, frozen=True, kw_only=True):
    """
    The chart of one series, with its table and sentences.

    Attributes:
        title: Its heading.

        dots: The sessions.

        levels: The level before, between and after the changes.

        ranges: Where each change may lie.

        marks: Changes of facts, and accepted levels.

        ticks: Places from the top with their values.

        table: The changes.

        remarks: The sentences below the table.

        largest: The largest change as text, or "".
    """

    title: str
    dots: tuple[Dot, ...]
    levels: tuple[Stroke, ...]
    ranges: tuple[Stroke, ...]
    marks: tuple[Stroke, ...]
    ticks: tuple[tuple[float, str], ...]
    table: tuple[Column, ...]
    remarks: tuple[str, ...]
    largest: str


def history_html(
    history: StoreHistory,
    series: Sequence[SeriesHistory],
    shown: Callable[[str], str],
    *,
    store: str,
) -> bytes:
    """
    Return the history of a store as one HTML file [UTF-8] that needs no network.

    Args:
        history: The history.

        series: The series to show.

        shown: Returns a test as pytest shows it.

        store: The name of the store.

    Raises:
        ReportError: Jinja2 is not installed.
    """
    ordered = sorted(
        series,
        key=lambda one: max((abs(move.effect) for move in one.moves), default=0.0),
        reverse=True,
    )
    return still_page(
        "history.html.j2",
        store=store,
        charts=[_chart(one, shown(one.key.test_id)) for one in ordered],
        count=display.plural(len(history.series), "series", "series"),
        machines=[words.machine_text(machine) for machine in history.machines],
        width=WIDTH,
        height=HEIGHT,
        left=_LEFT,
    )


def _chart(series: SeriesHistory, test: str) -> Chart:
    points = series.points
    values = [point.value for point in points]
    is_log = min(values) > 0
    heights = [*map(math.log, values)] if is_log else values
    low, high = min(heights), max(heights)
    span = (high - low) or 1.0
    step = (WIDTH - _LEFT) / max(len(points), 1)

    def across(place: float) -> float:
        return round(_LEFT + step * (place + 0.5), 1)

    def down(height: float) -> float:
        share = (high - height) / span
        return round(_TOP + share * (HEIGHT - _TOP - _BOTTOM), 1)

    machines = [*dict.fromkeys(point.machine for point in points)]
    return Chart(
        title=words.title(series, test),
        dots=tuple(
            Dot(
                x=across(place),
                y=down(heights[place]),
                text=_dot_text(point, series.unit),
                colour=machines.index(point.machine) % _COLOURS,
                left_out=point.left_out,
            )
            for place, point in enumerate(points)
        ),
        levels=tuple(
            Stroke(x=across(a - 0.4), x2=across(b - 0.6), y=down(median(heights[a:b])))
            for a, b in pairwise(words.edges(series))
        ),
        ranges=tuple(
            Stroke(
                x=across(move.first - 0.5),
                x2=across(move.last + 0.5),
                text=f"{move.kind.value} {display.change(move.effect)}",
            )
            for move in series.moves
        ),
        marks=tuple(
            Stroke(x=across(m.place - 0.5), x2=across(m.place - 0.5), text=m.text)
            for m in series.marks
        ),
        ticks=tuple(
            (down(heights[values.index(end)]), display.value(end, series.unit))
            for end in dict.fromkeys([min(values), max(values)])
        ),
        table=words.columns(series),
        remarks=tuple(words.remarks(series, test)),
        largest=display.change(max((m.effect for m in series.moves), key=abs))
        if series.moves
        else "",
    )


def _dot_text(point: HistoryPoint, unit: str) -> str:
    texts = [
        display.date(point.started_unix_s),
        display.commit(point.commit),
        point.machine or "",
        display.value(point.value, unit),
        "left out" if point.left_out else "",
    ]
    return " ".join(filter(None, texts))
