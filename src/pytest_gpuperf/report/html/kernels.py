"""The kernels of a test in its panel: a table, and the tracks over time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from pytest_gpuperf.compute.kernels import aligned
from pytest_gpuperf.model.activity import ActivitySummary, KernelUse, Track
from pytest_gpuperf.model.change import KernelMove
from pytest_gpuperf.model.counters import CounterGap, KernelAnalysis
from pytest_gpuperf.model.frozen import Frozen, replace
from pytest_gpuperf.model.kernel import KernelTotal
from pytest_gpuperf.model.record import Record, StoredRecord
from pytest_gpuperf.report import display
from pytest_gpuperf.report.captures import (
    evidence_text,
    limiter_text,
    plain_name,
    roof_text,
)
from pytest_gpuperf.report.display import typed_percent
from pytest_gpuperf.report.html.figures import time_ticks
from pytest_gpuperf.report.html.roofline import place_text
from pytest_gpuperf.report.kernels import launch_change

# Smallest share of a lane at which a piece has room for its number.
_LABELLED = 0.03
# Characters of a kernel's name. The style cuts a longer name.
_NAME_WIDTH = 90
# A smaller share is shown as `< 0.1 %`.
_TINY = 0.001
_UNKNOWN = "not known"


class Bar(Frozen, frozen=True, kw_only=True):
    """A part of a whole, drawn and as text."""

    width: str
    text: str


class KernelLimits(Frozen, frozen=True, kw_only=True):
    """The closest roof of a kernel, the limiter, and the place under the roofs."""

    roof: Bar | None
    limiter: str
    evidence: str
    standing: str = ""


class KernelRow(Frozen, frozen=True, kw_only=True):
    """
    A line of the kernel table. Unknown values are "" or None.

    Attributes:
        number: The number of the kernel in the table and of its point, or 0 for a kernel that is
            gone.

        name: The name without return type and parameters, if still distinct.

        full_name: The whole name if the page has no room for it, or "" if equal to `name`.

        before: The time in an earlier run.

        difference: The difference to that time.

        change: The difference as a share, or that the kernel is new or gone.

        moved: Changed launch parameters in words, or "" if unchanged or unknown.

        values: Values of other metrics, in the order of the table's headings.
    """

    number: int
    name: str
    share: Bar | None
    time: str
    launches: str
    full_name: str = ""
    registers: str = ""
    shared: str = ""
    grid: str = ""
    block: str = ""
    limits: KernelLimits | None = None
    before: str = ""
    difference: str = ""
    change: str = ""
    moved: str = ""
    values: tuple[str, ...] = ()


class KernelTable(Frozen, frozen=True, kw_only=True):
    """
    The kernels of a test, the longest first.

    Attributes:
        rows: The kernels.

        metrics: Headings of the metrics that only some tables have.

        before: The session that the rows are compared with, or "" for none.

        moved: The total time then and now, and the numbers of new and gone kernels in words, or ""
            without a comparison.
    """

    rows: tuple[KernelRow, ...]
    metrics: tuple[str, ...] = ()
    before: str = ""
    moved: str = ""

    @property
    def count(self) -> int:
        """The number of kernels that ran, without gone kernels."""
        return sum(row.number > 0 for row in self.rows)

    @property
    def is_launched(self) -> bool:
        """True if the launch parameters of any kernel are known."""
        return any(row.grid for row in self.rows)

    @property
    def is_timed(self) -> bool:
        """True if any kernel was timed."""
        return any(row.time for row in self.rows)

    @property
    def is_counted(self) -> bool:
        """True if counters give the limiter of any kernel."""
        return any(row.limits for row in self.rows)

    @property
    def is_placed(self) -> bool:
        """True if any kernel has a place under roofs."""
        return any(row.limits and row.limits.standing for row in self.rows)

    @property
    def is_compared(self) -> bool:
        """True if the kernels of an earlier session are known."""
        return bool(self.before)


class KernelsBefore(Frozen, frozen=True, kw_only=True):
    """
    The kernels of an earlier session, the longest first.

    Attributes:
        session: The name of the session.

        kernels: The kernels.
    """

    session: str
    kernels: tuple[KernelTotal, ...]


def kernels_before(
    earlier: Record | None, stored: StoredRecord | None
) -> KernelsBefore | None:
    """
    Return the kernels to compare with, or None if unknown.

    Args:
        earlier: The same measurement in an earlier run, which has the most details.

        stored: The same measurement in a stored session.
    """
    if earlier is not None and earlier.activity is not None:
        kernels = tuple(use.total for use in earlier.activity.kernels)
        if kernels:
            return KernelsBefore(
                session="the newest of the earlier runs", kernels=kernels
            )
    if stored is None or not stored.kernels:
        return None
    session = stored.session
    names = display.moment(session.started_unix_s), display.commit(session.commit)
    return KernelsBefore(
        session=f"the stored session of {' '.join(filter(None, names))}",
        kernels=stored.kernels,
    )


def kernel_rows(
    record: Record, before: KernelsBefore | None = None
) -> KernelTable | None:
    """
    Return the kernels of a measurement, from CUPTI if available, else from counters, or None.

    Args:
        record: The record of the measurement.

        before: The kernels of an earlier session, or None if unknown.
    """
    # Of the instances of a template, the longest is kept. CUPTI distinguishes instances
    # by name, counters do not.
    analyses = {analysis.kernel: analysis for analysis in reversed(record.analyses)}
    uses = record.activity.kernels if record.activity is not None else ()
    if not uses and not analyses:
        return None
    shown = ("registers", "shared_bytes") if uses else ()
    own = [e for e in record.estimates if e.kernel and e.metric not in shown]
    values = {(str(e.kernel), e.metric): display.value(e.value, e.unit) for e in own}
    rows = _used_rows(uses, analyses) if uses else _analysed_rows(record.analyses)
    keys = [use.shape.name for use in uses] or [a.kernel for a in record.analyses]
    for key in (key for key, count in Counter(keys).items() if count > 1):
        # A value shared by several kernels belongs to none of these.
        values = {place: text for place, text in values.items() if place[0] != key}
    had = {metric for _, metric in values} - {"launches.count"}
    metrics = tuple(dict.fromkeys(e.metric for e in own if e.metric in had))
    rows = [
        replace(row, values=tuple(values.get((key, metric), "") for metric in metrics))
        for key, row in zip(keys, rows, strict=True)
    ]
    if before is None or not uses:
        return KernelTable(rows=_shortened(rows), metrics=metrics)
    rows = [*_compared(rows, uses, before.kernels)]
    return KernelTable(
        rows=_shortened(rows),
        metrics=metrics,
        before=before.session,
        moved=_moved_text(rows, uses, before.kernels),
    )


def _shortened(rows: Sequence[KernelRow]) -> tuple[KernelRow, ...]:
    full: dict[str, set[str]] = {}
    for row in rows:
        full.setdefault(plain_name(row.name), set()).add(row.name)
    return tuple(
        replace(row, name=name, full_name="" if is_whole else row.name)
        for row in rows
        for plain in (plain_name(row.name),)
        for name in (plain if len(full[plain]) == 1 else row.name,)
        for is_whole in (name == row.name and len(name) <= _NAME_WIDTH,)
    )


_NEW, _GONE = "new", "gone"  # Shown instead of a change.


def _used_rows(
    uses: Sequence[KernelUse], analyses: Mapping[str, KernelAnalysis]
) -> list[KernelRow]:
    whole_s = math.fsum(use.total_s for use in uses)
    return [
        KernelRow(
            number=number,
            name=_name(use),
            share=_part(use.total_s, whole_s),
            time=display.value(use.total_s, "s"),
            launches=str(use.count),
            registers=str(use.shape.registers_count),
            shared=display.value(
                use.shape.shared_bytes + use.shape.dynamic_shared_bytes, "bytes"
            ),
            grid=display.extent(use.shape.grid),
            block=display.extent(use.shape.block),
            limits=_limits(analyses.get(use.shape.name)),
        )
        for number, use in enumerate(uses, 1)
    ]


def _analysed_rows(analyses: Sequence[KernelAnalysis]) -> list[KernelRow]:
    times_s = [analysis.total_s or 0.0 for analysis in analyses]
    whole_s = math.fsum(times_s)
    return [
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
    ]


def _compared(
    rows: Sequence[KernelRow], uses: Sequence[KernelUse], before: Sequence[KernelTotal]
) -> Iterator[KernelRow]:
    kernels = [use.total for use in uses]
    moves = aligned(before, kernels)
    by_now = {id(move.now): move for move in moves}  # Equal kernels have separate rows.
    for row, now in zip(rows, kernels, strict=True):
        move = by_now[id(now)]
        difference = display.signed(move.difference_s, "s")
        if move.then is None:
            yield replace(row, difference=difference, change=_NEW)
            continue
        was_s, name = move.then.total_s, move.then.name
        replaced = "" if name == now.name else f"replaces {name}"
        yield replace(
            row,
            before=display.value(was_s, "s"),
            difference=difference,
            change=display.change(move.difference_s / was_s) if was_s else "",
            moved=", ".join(filter(None, (replaced, launch_change(move)))),
        )
    for move in moves:
        if move.then is not None and move.now is None:
            yield _gone_row(move.then, move)


def _gone_row(kernel: KernelTotal, move: KernelMove) -> KernelRow:
    launch = kernel.launch
    row = KernelRow(
        number=0,
        name=kernel.name,
        share=None,
        time="",
        launches="" if launch is None else str(launch.count),
        before=display.value(kernel.total_s, "s"),
        difference=display.signed(move.difference_s, "s"),
        change=_GONE,
    )
    if launch is None:
        return row
    return replace(
        row,
        registers=str(launch.registers_count),
        shared=display.value(launch.shared_bytes, "bytes"),
        grid=display.extent(launch.grid),
        block=display.extent(launch.block),
    )


def _moved_text(
    rows: Sequence[KernelRow], uses: Sequence[KernelUse], before: Sequence[KernelTotal]
) -> str:
    """Return the total time then and now, if known, and the numbers of new and gone kernels."""
    counts = [(name, sum(row.change == name for row in rows)) for name in (_NEW, _GONE)]
    own = ", ".join(f"{count} {name}" for name, count in counts if count)
    own = own or "the same kernels"
    now_s = math.fsum(use.total_s for use in uses)
    then_s = math.fsum(then.total_s for then in before)
    if min(now_s, then_s) <= 0:
        return own
    now, then = display.pair(now_s, then_s, "s")
    moved = display.change(now_s / then_s - 1)
    return f"together {now}, was {then}: {moved}; {own}"


class Piece(Frozen, frozen=True, kw_only=True):
    """
    A piece of work on a lane.

    Attributes:
        x: The start.

        width: The length.

        number: The number of the kernel in the table, or "" for other work or an unlisted kernel.

        is_labelled: Whether the number fits.

        is_even: Whether the piece has the second shade, so that neighbours differ.

        text: The name, the start and the duration.
    """

    x: str
    width: str
    number: str
    is_labelled: bool
    is_even: bool
    text: str


class TrackLane(Frozen, frozen=True, kw_only=True):
    """The work on one stream."""

    name: str
    text: str
    pieces: tuple[Piece, ...]


class Tracks(Frozen, frozen=True, kw_only=True):
    """
    The work on the device over time, with a lane per stream.

    Attributes:
        duration: Time from the first start to the last end that is drawn.

        count: Number of drawn pieces of work, in words.

        lanes: The streams, followed by work without a stream.

        ticks: Place, text and anchor of times.
    """

    duration: str
    count: str
    lanes: tuple[TrackLane, ...]
    ticks: tuple[tuple[str, str, str], ...]


def tracks(record: Record) -> Tracks | None:
    """Return the work on the device over time, or None for fewer than two pieces."""
    activity = record.activity
    if activity is None:
        return None
    drawn_count = sum(len(track.starts_ns) for track in activity.tracks)
    span_ns = max((max(t.ends_ns, default=0) for t in activity.tracks), default=0)
    if drawn_count <= 1 or span_ns <= 0:
        return None
    count = activity.pieces_count or drawn_count
    devices = {t.device for t in activity.tracks if t.device is not None}
    whose = len(devices) > 1
    return Tracks(
        duration=display.value(span_ns / _NS_PER_S, "s"),
        count=f"the first {drawn_count} of {count:,} pieces of work"
        if count > drawn_count
        else f"{drawn_count} pieces of work",
        lanes=tuple(_lane(t, activity, span_ns, whose=whose) for t in activity.tracks),
        ticks=tuple(time_ticks(span_ns / _NS_PER_S)),
    )


_NS_PER_S = 1e9
_TRACK_NAMES = {"copy": "copies", "memset": "memsets", "graph": "graphs"}


def _lane(
    track: Track, activity: ActivitySummary, span_ns: int, *, whose: bool
) -> TrackLane:
    lane = _TRACK_NAMES.get(track.kind, f"stream {track.stream}")
    lane = f"GPU {track.device}, {lane}" if whose and track.stream is not None else lane
    pieces = []
    kernels = track.kernels or (-1,) * len(track.starts_ns)
    for place, (start_ns, end_ns, kernel) in enumerate(
        zip(track.starts_ns, track.ends_ns, kernels, strict=True)
    ):
        is_listed = 0 <= kernel < len(activity.kernels)
        name = _name(activity.kernels[kernel]) if is_listed else track.kind
        length_ns = max(0, end_ns - start_ns)
        length = display.value(length_ns / _NS_PER_S, "s")
        start = display.value(start_ns / _NS_PER_S, "s")
        piece = Piece(
            x=typed_percent(start_ns / span_ns),
            width=typed_percent(length_ns / span_ns),
            number=str(kernel + 1) if is_listed else "",
            is_labelled=is_listed and length_ns >= _LABELLED * span_ns,
            is_even=bool(place % 2),
            text=f"{name}: {length}, from {start} on",
        )
        pieces.append(piece)
    count = display.plural(len(pieces), track.kind, _TRACK_NAMES.get(track.kind, ""))
    return TrackLane(name=lane, text=f"{lane}: {count}", pieces=tuple(pieces))


def _name(use: KernelUse) -> str:
    return use.demangled or use.shape.name


def _limits(analysis: KernelAnalysis | None) -> KernelLimits | None:
    if analysis is None:
        return None
    bound, limiter = analysis.analysis.bound, analysis.analysis.limiter
    if isinstance(limiter, CounterGap):
        name, why = _UNKNOWN, limiter.reason
    else:
        name, why = limiter_text(limiter), evidence_text(limiter)
    attained, gap = analysis.analysis.roofline, analysis.analysis.roofline_gap
    standing = "" if gap is None else gap.reason
    if attained is not None:
        standing = place_text(attained)
    return KernelLimits(
        roof=None
        if bound is None
        else Bar(
            width=typed_percent(min(bound.fraction, 1.0)),
            text=f"{display.value(bound.fraction, 'fraction', digits=2)} "
            f"{roof_text(bound.roof)}",
        ),
        limiter=name,
        evidence=why,
        standing=standing,
    )


def _part(part: float, whole: float) -> Bar | None:
    if whole <= 0:
        return None
    share = part / whole
    text = display.value(share, "fraction", digits=2) if share >= _TINY else "< 0.1 %"
    return Bar(width=typed_percent(min(share, 1.0)), text=text)
