"""The panel of a test: all known details."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from pytest_gpuperf.model.frozen import Frozen, replace
from pytest_gpuperf.model.metric import METRICS
from pytest_gpuperf.model.record import Record
from pytest_gpuperf.model.sample import Estimate, Unmeasured
from pytest_gpuperf.model.verdict import JUDGED, NextCommand, Verdict
from pytest_gpuperf.report import display, sentences, words
from pytest_gpuperf.report.display import typed_percent
from pytest_gpuperf.report.explanation import body, command_text, evidence
from pytest_gpuperf.report.html import figures, kernels
from pytest_gpuperf.report.html.roofline import RooflineFigure, roofline
from pytest_gpuperf.report.html.sessions import (
    MOST_DOTS,
    History,
    Samples,
    SessionSamples,
    history,
    samples,
    sides,
)
from pytest_gpuperf.report.lines import Column, column
from pytest_gpuperf.report.rows import Row, judged_value
from pytest_gpuperf.report.steps import step_facts, step_tables

# Characters. The browser breaks lines.
_UNWRAPPED = 10_000
_FEW_DOTS = 4
_MOST_VALUES = 40  # Of a test. The rest is counted.
_COMPILED = {"registers", "stack_bytes", "spills_bytes"}  # Shown in a separate table.
# A smaller share of time without a kernel needs no figure.
_IDLE = 0.01
# Metrics shown per kernel. A wider table is not read.
_MOST_METRICS = 10

GapKey = tuple[str, str]  # Reason and remedy.


class Judgement(Frozen, frozen=True, kw_only=True):
    """One verdict in words."""

    outcome: str
    label: str
    subject: str
    text: str
    sentence: str
    lines: tuple[str, ...]
    remedy: str
    bullet: figures.Bullet | None


class Value(NamedTuple):
    """One measured value with its origin, which the template takes apart."""

    metric: str
    meaning: str
    value: str
    spread: str
    origin: str


class Gaps(Frozen, frozen=True, kw_only=True):
    """Metrics that could not be measured for the same reason."""

    metrics: tuple[str, ...]
    reason: str
    remedy: str
    count: int = 1


class Table(Frozen, frozen=True, kw_only=True):
    """Columns of text with a heading."""

    heading: str
    columns: tuple[Column, ...]

    @property
    def lines(self) -> Iterator[tuple[str, ...]]:
        """The rows."""
        return zip(*(c.cells for c in self.columns), strict=True)


class LoopCard(Frozen, frozen=True, kw_only=True):
    """The scorecard of a loop."""

    grade: str
    facts: tuple[tuple[str, str], ...]
    period: str
    phases: tuple[figures.Share, ...]
    tables: tuple[Table, ...]


class Utilization(Frozen, frozen=True, kw_only=True):
    """The utilization of a GPU."""

    text: str
    shares: tuple[figures.Share, ...]


class ActivityCard(Frozen, frozen=True, kw_only=True):
    """The parts of the time from the first to the last piece of a call's work."""

    span: str
    shares: tuple[figures.Share, ...]


class RevisionPart(Frozen, frozen=True, kw_only=True):
    """One metric of a test against a revision: the blocks, and the values of both sides."""

    metric: str
    blocks: figures.Blocks
    sides: Samples | None


class LaunchCard(Frozen, frozen=True, kw_only=True):
    """
    A launch of a capture, with known facts as labels and texts.

    Attributes:
        place: The text that distinguishes the launch from other launches of the same kernel on the
            page.
    """

    name: str
    place: str
    facts: tuple[tuple[str, str], ...]


class Panel(Frozen, frozen=True, kw_only=True):
    """All known details of a test, shown when its row is opened."""

    state: str
    judgements: tuple[Judgement, ...]
    doubts: tuple[str, ...]
    notes: tuple[str, ...]
    samples: Samples | None
    history: History | None
    against: tuple[RevisionPart, ...]
    utilization: tuple[Utilization, ...]
    commands: tuple[tuple[str, str], ...]
    moved: tuple[tuple[str, str, str], ...]
    facts: tuple[tuple[str, str], ...]
    gaps: tuple[Gaps, ...]
    roofline: RooflineFigure | None = None
    tracks: kernels.Tracks | None = None
    roof: kernels.Bar | None = None
    roof_origin: str = ""
    kernels: kernels.KernelTable | None = None
    per_kernel: Table | None = None
    binary: Table | None = None
    loop: LoopCard | None = None
    activity: ActivityCard | None = None
    time_lines: tuple[figures.TimeLineFigure, ...] = ()
    values: tuple[Value, ...] = ()
    more_values_count: int = 0
    launches: tuple[LaunchCard, ...] = ()
    more_launches_count: int = 0

    @property
    def figure_count(self) -> int:
        """The number of figures shown side by side."""
        tables = self.binary, self.activity
        drawn = (self.samples, self.history, self.roofline, self.roof, *tables)
        compared = sum(1 + bool(one.sides) for one in self.against)
        return sum(map(bool, (*drawn, *self.utilization))) + compared


class Detail(Enum):
    """The amount of drawing in a panel. Numbers are always shown."""

    ALL = "all"
    # Without the tracks of single pieces of work.
    NO_TRACKS = "no-tracks"
    # Also without figures of data in tables, and with samples as quantiles.
    BRIEF = "brief"


def panel_of(
    row: Row,
    *,
    state: str,
    shown: Estimate | None,
    sessions: Sequence[SessionSamples],
    before: kernels.KernelsBefore | None,
    detail: Detail,
    commands: tuple[NextCommand, ...],
    moved: tuple[tuple[str, str, str], ...],
    common_facts: Mapping[str, str],
    common_gaps: Mapping[GapKey, Gaps],
) -> Panel:
    """
    Return the panel of a test.

    Args:
        row: The row of the test.

        state: The failed assert, or the state of a test without a verdict, or "".

        shown: The value with samples to draw, or None.

        sessions: The sessions with samples, oldest first.

        before: The kernels of an earlier session, or None if unknown.

        detail: The amount of drawing.

        commands: The commands to type next.

        moved: Changed facts: name, old and new value.

        common_facts: Facts that most tests share, which are shown only once.

        common_gaps: Gaps that most tests share, which are shown only once.
    """
    record = row.record
    metric, unit, value = "", "", None
    if shown is not None:
        metric, unit, value = shown.metric, shown.unit, shown.value
    changed = next((v for v in row.verdicts if v.change is not None), None)
    of_store = [verdict for verdict in row.verdicts if not verdict.of_revision]
    drawn = len({x for s in sessions for x in (s.value, *s.values)}) > 1
    most_dots = _FEW_DOTS if detail is Detail.BRIEF else MOST_DOTS
    texts = display.utilization_lines(row.utilization)
    panel = Panel(
        state=state,
        judgements=tuple(map(_judgement, row.verdicts)),
        doubts=row.doubts(),
        notes=row.notes(),
        samples=samples(sessions, metric, unit, of_store, most_dots=most_dots)
        if drawn
        else None,
        history=history(sessions, unit, changed, value),
        against=tuple(_comparisons(row)),
        utilization=tuple(
            Utilization(text=text, shares=figures.utilization_shares(window))
            for window, text in zip(row.utilization, texts, strict=True)
        ),
        commands=tuple((one.kind, command_text(one)) for one in commands),
        moved=moved,
        facts=(
            *_function_of(record),
            *(
                (display.fact_label(name), display.fact(name, text))
                for name, text in facts_of(record)
                if common_facts.get(name) != text
            ),
        ),
        gaps=tuple(
            gap for key, gap in gaps_of([record]).items() if key not in common_gaps
        )
        if record is not None and record.unmeasured
        else (),
    )
    if record is None:
        return panel
    return _with_record(panel, row, record, before=before, detail=detail)


def _with_record(
    panel: Panel,
    row: Row,
    record: Record,
    *,
    before: kernels.KernelsBefore | None,
    detail: Detail,
) -> Panel:
    is_brief = detail is Detail.BRIEF
    table = kernels.kernel_rows(record, before)
    values = tuple(_values(record, row.verdicts))
    roof, roof_origin = None, ""
    share, attained = row.estimate("roofline.fraction"), row.attained
    if share is not None:
        width = typed_percent(max(0.0, min(share.value, 1.0)))
        roof = kernels.Bar(width=width, text=row.roofline)
    if attained is not None:
        source = f"{attained.peak_label.value}: {attained.source}"
        roof_origin = f"{attained.bound}-bound, roof {source}"
    return replace(
        panel,
        roof=roof,
        roof_origin=roof_origin,
        roofline=None if is_brief and table is not None else roofline(record),
        kernels=table,
        per_kernel=None if table is not None else _per_kernel(record),
        binary=_binary(record),
        loop=_loop(record),
        activity=None if is_brief else _activity(record),
        tracks=kernels.tracks(record) if detail is Detail.ALL else None,
        time_lines=tuple(filter(None, map(figures.time_line, record.time_lines))),
        values=values[:_MOST_VALUES],
        more_values_count=max(0, len(values) - _MOST_VALUES),
    )


def _comparisons(row: Row) -> Iterator[RevisionPart]:
    for verdict in row.verdicts:
        if verdict.against is None:
            continue
        drawn = figures.blocks(verdict, evidence(verdict))
        if drawn is not None and verdict.estimate is not None:
            unit = verdict.estimate.unit
            both = sides(verdict)
            yield RevisionPart(
                metric=verdict.metric,
                blocks=drawn,
                sides=samples(both, verdict.metric, unit, ()),
            )


def bullet_of(verdict: Verdict | None) -> figures.Bullet | None:
    """Return the figure of a value with a limit, or None without a limit or value."""
    if verdict is None or verdict.limit is None or verdict.estimate is None:
        return None
    return figures.bullet(
        verdict.estimate.value, verdict.limit.threshold, verdict.limit.text
    )


def _judgement(verdict: Verdict) -> Judgement:
    block = body(replace(verdict, remedy=""), None, _UNWRAPPED)
    lines = tuple(line.text.strip() for line in block)
    decided = verdict.outcome in JUDGED
    return Judgement(
        outcome=verdict.outcome.value,
        label=words.label(verdict.outcome, verdict.reason).lower(),
        subject=verdict.metric,
        text=evidence(verdict),
        sentence=sentences.sentence(verdict) if decided else "",
        lines=lines,
        remedy=verdict.remedy,
        bullet=bullet_of(verdict),
    )


def _values(record: Record, verdicts: Collection[Verdict]) -> Iterator[Value]:
    for estimate in record.estimates:
        if estimate.kernel is not None:  # Shown in a separate table.
            continue
        metric = METRICS.get(estimate.metric)
        several = estimate.sample_count > 1
        count = f", {estimate.sample_count} samples" if several else ""
        judged = judged_value(estimate, verdicts)
        if judged is not None and not math.isclose(judged, estimate.value):
            text = display.value(judged, estimate.unit)
            count = f"{count}, in the suite; judged {text}"
        yield Value(
            metric=estimate.metric,
            meaning=metric.meaning if metric is not None else "",
            value=display.value(estimate.value, estimate.unit),
            spread=display.spread(estimate),
            origin=f"{estimate.label.value} by {estimate.source}{count}",
        )


def _per_kernel(record: Record) -> Table | None:
    """Return the table of values per kernel, or None if nothing is left to show."""
    estimates = record.estimates
    shown_before = _COMPILED if record.kernels else ()
    own = [
        e for e in estimates if e.kernel is not None and e.metric not in shown_before
    ]
    values = {(e.kernel, e.metric): e for e in own}
    names = tuple(dict.fromkeys(kernel for kernel, _ in values))[:_MOST_VALUES]
    metrics = tuple(dict.fromkeys(metric for _, metric in values))[:_MOST_METRICS]
    whole = {e.metric: e.value for e in estimates if e.kernel is None}
    repeats = all(whole.get(e.metric) == e.value for e in own)
    # The values of the only kernel are already among the values of the test.
    if not names or (len(names) == 1 and repeats):
        return None
    columns = [column("kernel", map(str, names))]
    for metric in metrics:
        cells = (values.get((kernel, metric)) for kernel in names)
        texts = ("" if e is None else display.value(e.value, e.unit) for e in cells)
        columns.append(column(metric, texts, right=True))
    return Table(heading="Values of each kernel", columns=tuple(columns))


def _binary(record: Record) -> Table | None:
    compiled = record.kernels
    if not compiled:
        return None

    def sizes(field: str) -> tuple[str, ...]:
        numbers = [getattr(kernel, field) for kernel in compiled]
        return tuple("" if n is None else display.value(n, "bytes") for n in numbers)

    return Table(
        heading=display.plural(len(compiled), "compiled kernel"),
        columns=(
            column("kernel", (k.demangled or k.name for k in compiled)),
            column("target", (k.target for k in compiled)),
            column("registers", (str(k.registers_count) for k in compiled), right=True),
            column("stack", sizes("stack_bytes"), right=True),
            column("spills", sizes("spills_bytes"), right=True),
            column("shared", sizes("shared_bytes"), right=True),
            column(
                "threads",
                (str(k.threads_per_block or "") for k in compiled),
                right=True,
            ),
        ),
    )


def _loop(record: Record) -> LoopCard | None:
    steps = record.steps
    if steps is None:
        return None
    phases = [(phase.name, phase.own_s) for phase in steps.phases if not phase.beside]
    rest_s = steps.period_s - math.fsum(own_s for _, own_s in phases)
    if phases and rest_s > 0:
        phases.append(("in no phase", rest_s))
    tables = [Table(heading=t[0].head, columns=t) for t in step_tables(steps, str)]
    return LoopCard(
        grade=steps.grade or "",
        facts=tuple(step_facts(record)),
        period=display.value(steps.period_s, "s"),
        phases=figures.shares(phases, steps.period_s),
        tables=tuple(t for t in tables if t.heading != "phase"),  # Phases are drawn.
    )


def _activity(record: Record) -> ActivityCard | None:
    """Return the activity of the device, or None if unknown or hardly ever idle or copying."""
    activity = record.activity
    if activity is None or activity.span_s is None or activity.busy_s is None:
        return None
    copying_s, waited_s = activity.copying_s or 0.0, activity.waited_s or 0.0
    idle_s = activity.span_s - activity.busy_s
    if idle_s + copying_s < _IDLE * activity.span_s:
        return None
    gaps = "gaps" if activity.waited_s is None else "gaps between launches"
    parts = (
        ("kernels", activity.busy_s - copying_s),
        ("copies alone", copying_s),
        ("gaps in which the host waited", waited_s),
        (gaps, idle_s - waited_s),
    )
    shares = figures.shares([part for part in parts if part[1] > 0], activity.span_s)
    return ActivityCard(span=display.value(activity.span_s, "s"), shares=shares)


def _function_of(record: Record | None) -> Iterator[tuple[str, str]]:
    """Yield the name of the measured function. It is no fact: another name is no other work."""
    if record is not None and record.function is not None:
        yield "measured function", record.function


def facts_of(record: Record | None) -> Iterator[tuple[str, str]]:
    """Yield the hard and soft facts of a measurement, sorted and without duplicates."""
    if record is None:
        return
    facts: dict[str, str] = {}
    for family in record.facts.values():
        facts |= family
    if record.device is not None:
        facts.setdefault("gpu_name", record.device.name)
    yield from sorted({**facts, **record.soft_facts}.items())


def gaps_of(records: Iterable[Record]) -> dict[GapKey, Gaps]:
    """Return the gaps of some measurements by reason and remedy."""
    metrics: dict[GapKey, dict[str, None]] = {}
    counts: Counter[GapKey] = Counter()
    for record in records:
        keys = {(gap.reason, gap.remedy) for gap in record.unmeasured}
        counts.update(keys)
        gap: Unmeasured
        for gap in record.unmeasured:
            metrics.setdefault((gap.reason, gap.remedy), {})[gap.metric] = None
    return {
        (reason, remedy): Gaps(
            metrics=tuple(several),
            reason=reason,
            remedy=remedy,
            count=counts[reason, remedy],
        )
        for (reason, remedy), several in metrics.items()
    }
