"""What the page shows: order, texts and figures of a run, no markup."""

from __future__ import annotations

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from pytest_gpuperf.judge.tally import speaking, tally
from pytest_gpuperf.model.environment import Session
from pytest_gpuperf.model.frozen import Frozen, replace
from pytest_gpuperf.model.metric import METRICS
from pytest_gpuperf.model.record import Record, RecordKey, Role
from pytest_gpuperf.model.run import Run
from pytest_gpuperf.model.sample import Estimate, Unmeasured
from pytest_gpuperf.model.verdict import FAILING, JUDGED, Outcome, Verdict
from pytest_gpuperf.report import display, words
from pytest_gpuperf.report.explanation import (
    accept_command,
    evidence,
    explanation,
    reproduce_command,
)
from pytest_gpuperf.report.html import figures
from pytest_gpuperf.report.html.axes import ChangeAxis, percent
from pytest_gpuperf.report.html.figures import SessionSamples
from pytest_gpuperf.report.lines import Column
from pytest_gpuperf.report.rows import Row, names, rows, utilization_lines
from pytest_gpuperf.report.steps import step_facts, step_tables
from pytest_gpuperf.report.terminal import judged_line, remarks, title

__all__ = ["STATUSES", "Page", "Status"]

_UNWRAPPED = 10_000  # characters: the browser breaks lines
_MOST_VALUES = 40  # of a test; more are counted
_MOST_METRICS = 10  # of each kernel: a wider table is not read
_OF_MACHINE = {
    "core_count",
    "cpu_model",
    "platform",
    "python_minor",
}  # stand in one line
_USUAL = 0.5  # a fact of more than this share of the tests is told once, at the end
_ID_BYTES = 5  # two of 10,000 tests share an address once in 20,000 pages


class Status(Frozen, frozen=True, kw_only=True):
    """
    What the page calls the state of a test.

    Attributes:
        name: Its word, a CSS class too.

        meaning: One sentence.

        fails: Whether the test fails the run.
    """

    name: str
    meaning: str
    fails: bool = False


_OUTCOMES_IN_ORDER = (
    Outcome.FAILED,
    Outcome.REGRESSED,
    Outcome.UNMEASURED,
    Outcome.INCONCLUSIVE,
    Outcome.INCOMPARABLE,
    Outcome.NEW,
    Outcome.IMPROVED,
    Outcome.UNCHANGED,
    Outcome.PASSED,
)
_BROKEN = Status(
    name="broken", meaning="It failed before anything was judged.", fails=True
)
_VOID = Status(name="void", meaning="Its measurement must not be judged.")
_XFAILED = Status(name="xfailed", meaning="It failed as its xfail mark expects.")
_UNJUDGED = Status(name="unjudged", meaning="It was measured, and has no limit.")
_OF_OUTCOMES = {
    outcome: Status(
        name=outcome.value,
        meaning=words.OUTCOMES[outcome],
        fails=outcome in FAILING,
    )
    for outcome in _OUTCOMES_IN_ORDER
}
# worst first: the order of the page
STATUSES = (
    _OF_OUTCOMES[Outcome.FAILED],
    _OF_OUTCOMES[Outcome.REGRESSED],
    _BROKEN,
    _VOID,
    *(_OF_OUTCOMES[outcome] for outcome in _OUTCOMES_IN_ORDER[2:]),
    _XFAILED,
    _UNJUDGED,
)
# their panels hold no list of what has changed: nothing has to be explained
_ASSERTED = "Its own assert on a measured value held."
_QUIET = (_OF_OUTCOMES[Outcome.UNCHANGED], _OF_OUTCOMES[Outcome.PASSED])
_RANKS = {status.name: place for place, status in enumerate(STATUSES)}


class Judgement(Frozen, frozen=True, kw_only=True):
    """One verdict in words."""

    outcome: str
    subject: str
    text: str
    sentence: str
    lines: tuple[str, ...]
    remedy: str
    bullet: figures.Bullet | None


class Value(Frozen, frozen=True, kw_only=True):
    """One measured value, and where it came from."""

    metric: str
    meaning: str
    value: str
    spread: str
    origin: str


class Gaps(Frozen, frozen=True, kw_only=True):
    """Metrics that could not be measured, for one reason."""

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


class Loop(Frozen, frozen=True, kw_only=True):
    """The scorecard of a loop."""

    grade: str
    facts: tuple[tuple[str, str], ...]
    period: str
    phases: tuple[figures.Share, ...]
    tables: tuple[Table, ...]


class Utilization(Frozen, frozen=True, kw_only=True):
    """What a GPU was busy with."""

    text: str
    shares: tuple[figures.Share, ...]


class Panel(Frozen, frozen=True, kw_only=True):
    """All that is known of a test, shown when its row is opened."""

    state: str
    judgements: tuple[Judgement, ...]
    doubts: tuple[str, ...]
    notes: tuple[str, ...]
    samples: figures.Samples | None
    history: figures.History | None
    roofline: figures.Roofline | None
    roof: figures.Bar | None
    roof_origin: str
    kernels: tuple[figures.KernelRow, ...]
    per_kernel: Table | None
    binary: Table | None
    loop: Loop | None
    utilization: tuple[Utilization, ...]
    time_lines: tuple[figures.TimeLineFigure, ...]
    commands: tuple[tuple[str, str], ...]
    moved: tuple[tuple[str, str, str], ...]
    values: tuple[Value, ...]
    more_values_count: int
    facts: tuple[tuple[str, str], ...]
    gaps: tuple[Gaps, ...]

    @property
    def figure_count(self) -> int:
        """How many figures stand beside each other."""
        drawn = (self.samples, self.history, self.roofline, self.roof, self.binary)
        return sum(map(bool, (*drawn, self.loop, *self.utilization)))


class Test(Frozen, frozen=True, kw_only=True):
    """
    One row of the page.

    Attributes:
        id: Its address on the page, the same in every run.

        panel: What is shown when it is opened; None: the page would be too large.
    """

    id: str
    test_id: str
    full_name: str
    file: str
    name: str
    group: str
    place: str
    status: Status
    label: str
    value: str
    spread: str
    number: float | None
    change: str
    effect: float | None
    strip: figures.ChangeStrip | None
    bullet: figures.Bullet | None
    line: str
    roofline: str
    grade: str
    trend: tuple[figures.Point, ...]
    measured: str
    panel: Panel | None = None


class Undecided(Frozen, frozen=True, kw_only=True):
    """Tests that were not judged, for one reason."""

    status: str
    sentence: str
    remedy: str
    count: int


_SessionName = tuple[float, str]  # when it began [s], its id


class Page:
    """
    The page of a run.

    Args:
        run: The run, judged.

        older: Earlier runs whose samples are shown beside it, oldest first.

        most_panels: Tests that have a panel, the worst first, beside those that fail:
            with all of 10,000 a page would have 60 MB.
    """

    def __init__(
        self, run: Run, older: Sequence[Run] = (), *, most_panels: int = 1000
    ) -> None:
        self._most_panels = most_panels
        self.run = run
        self._older = [_first_records(earlier) for earlier in older]
        self._older_runs = older
        self._fresh = _fresh_records(run)
        self._stored = defaultdict(list)
        for stored in run.stored:
            self._stored[stored.key].append(stored)
        every = rows(run)
        self._called = names(row.key for row in every)
        self._groups = {test.test_id: test for test in run.tests}
        effects = [
            figures.worsening(v.change.effect, is_flipped=figures.higher_is_better(v))
            for v in run.verdicts
            if v.change is not None and v.change.effect is not None
        ]
        self.axis = ChangeAxis(effects)
        self._common = _common_facts(every)
        self._common_gaps = _common_gaps(every)
        ordered = sorted(every, key=self._place)
        self.tests = tuple(
            self._test(row, place=place) for place, row in enumerate(ordered)
        )
        self.counted = tally(run)

    def _place(self, row: Row) -> tuple[int, float]:
        """Return where a row stands: the worst first, of them the largest change."""
        effect = _effect(row)
        size = 0.0 if effect is None else abs(math.log(max(1 + effect, 1e-9)))
        return _RANKS[self._status(row).name], -size

    def _status(self, row: Row) -> Status:
        """Return what the page calls the state of a row."""
        if row.xfailed:
            return _XFAILED
        if row.outcome is not None:
            return _OF_OUTCOMES[row.outcome]
        if row.key.test_id in self.run.broken:
            return _BROKEN
        if row.key.test_id in self.run.asserted:
            return _OF_OUTCOMES[Outcome.PASSED]
        return _VOID if row.record is not None and row.record.void else _UNJUDGED

    # what stands above and below the rows

    @property
    def headline(self) -> str:
        """The run in one sentence."""
        statuses: dict[str, Status] = {}
        for test in self.tests:  # the worst of a test's measurements comes first
            statuses.setdefault(test.test_id, test.status)
        failing = Counter(s.name for s in statuses.values() if s.fails)
        count = sum(failing.values())
        if ended := self.run.header.completeness.interrupted:
            return f"Incomplete: {ended}"
        if not count:
            return (
                "Nothing failed" if self.counted.judged_count else "Nothing was judged"
            )
        called = {"failed": "missed a limit", "broken": "failed before being judged"}
        parts = ", ".join(
            f"{n} {called.get(name, name)}" for name, n in failing.items()
        )
        verb = "fails" if count == 1 else "fail"
        tests = display.plural(self.counted.expected_count, "test")
        return f"{count} of {tests} {verb}: {parts}"

    @property
    def fails(self) -> bool:
        """Whether a test fails the run."""
        return any(test.status.fails for test in self.tests)

    @property
    def judged(self) -> str:
        """How many tests were judged, and why the others were not."""
        text = judged_line(self.run).text
        return text[0].upper() + text[1:]

    @property
    def remarks(self) -> tuple[str, ...]:
        """What the machine did, and which stored tests did not run."""
        texts = (line.text for line in remarks(self.run, width=_UNWRAPPED))
        return tuple(text[0].upper() + text[1:] for text in texts)

    @property
    def measured_on(self) -> tuple[str, ...]:
        """What was measured on and with."""
        head = title(self.run, width=_UNWRAPPED)
        return tuple(head.partition(": ")[2].split(", "))

    @property
    def started(self) -> str:
        """When the run began."""
        return display.moment(self.run.header.session.started_unix_s)

    @property
    def chips(self) -> tuple[tuple[Status, int], ...]:
        """Every state that a test has, worst first, with its count."""
        counts = Counter(test.status.name for test in self.tests)
        return tuple((s, counts[s.name]) for s in STATUSES if counts[s.name])

    @property
    def has_groups(self) -> bool:
        """Whether a marker names a group."""
        return any(test.group for test in self.tests)

    @property
    def panels_count(self) -> int:
        """How many tests have a panel."""
        return sum(test.panel is not None for test in self.tests)

    @property
    def undecided(self) -> tuple[Undecided, ...]:
        """Why tests were not judged, the most frequent reason first."""
        open_verdicts = [
            speaking([v for v in row.verdicts if v.decides])
            for row in rows(self.run)
            if row.outcome is not None and row.outcome not in JUDGED
        ]
        counts = Counter((v.outcome.value, _why(v), v.remedy) for v in open_verdicts)
        return tuple(
            Undecided(status=status, sentence=sentence, remedy=remedy, count=count)
            for (status, sentence, remedy), count in counts.most_common()
        )

    @property
    def conditions(self) -> tuple[tuple[str, str], ...]:
        """The facts of the run: machine, session, completeness, options."""
        header = self.run.header
        environment, session = header.environment, header.session
        complete = header.completeness
        cores = f"{environment.core_count} cores" if environment.core_count else ""
        machine = (environment.cpu_model or "", cores, environment.platform)
        dirty = " with uncommitted changes" if session.dirty else ""
        facts = [
            ("machine", ", ".join(filter(None, machine))),
            ("session", session.id),
            ("commit", f"{session.commit}{dirty}" if session.commit else ""),
            ("collectors", ", ".join(header.collectors)),
            (
                "reported",
                f"{complete.reported_count} of {complete.expected_count} tests",
            ),
            ("without a result", ", ".join(complete.missing)),
            *sorted({**environment.versions, **self._common}.items()),
        ]
        facts = [fact for fact in facts if fact[0] not in _OF_MACHINE]
        return tuple((name, text) for name, text in facts if text)

    @property
    def options(self) -> tuple[tuple[str, str], ...]:
        """The options of the run, as in an ini file."""
        return tuple(sorted(self.run.header.options.items()))

    @property
    def common_gaps(self) -> tuple[Gaps, ...]:
        """What many tests could not measure."""
        return tuple(self._common_gaps.values())

    # the rows

    def _test(self, row: Row, *, place: int) -> Test:
        """Return one row, and its panel where the page has room for it."""
        file, _, name = row.key.test_id.partition("::")
        status = self._status(row)
        verdict = _first_verdict(row)
        shown = _shown_estimate(row, verdict)
        sessions = self._sessions(row, shown)
        has_panel = place < self._most_panels or status.fails
        test = self._groups.get(row.key.test_id)
        text = row.change
        return Test(
            id=_address(str(row.key)),
            test_id=row.key.test_id,
            full_name=str(row.key),
            file=file if name else "",
            name=f"{name or file} {row.key.name}".rstrip(),
            group=(test.group if test is not None else None) or "",
            place=f"{file}:{test.line}" if test is not None and test.line else "",
            status=status,
            label=status.name if row.outcome is None else row.label.lower(),
            value=_value_text(row, shown),
            spread=_beside(row, shown),
            number=None if shown is None else shown.value,
            change=text,
            effect=_effect(row),
            strip=_strip(row, self.axis, text),
            bullet=_bullet(verdict),
            line=_line(status, verdict),
            roofline=row.roofline,
            grade=row.grade,
            trend=figures.trend(sessions),
            measured="" if shown is not None else ", ".join(row.measured()),
            panel=self._panel(row, status, verdict, shown, sessions)
            if has_panel
            else None,
        )

    def _panel(
        self,
        row: Row,
        status: Status,
        verdict: Verdict | None,
        shown: Estimate | None,
        sessions: Sequence[SessionSamples],
    ) -> Panel:
        """Return all that is known of a test."""
        record = row.record
        changed = next((v for v in row.verdicts if v.change is not None), None)
        metric, unit = ("", "") if shown is None else (shown.metric, shown.unit)
        drawn = len({x for s in sessions for x in (s.value, *s.values)}) > 1
        values = tuple(_values(record))
        return Panel(
            state=_ASSERTED if row.key.test_id in self.run.asserted else status.meaning,
            judgements=tuple(map(_judgement, row.verdicts)),
            doubts=row.doubts(),
            notes=row.notes(),
            samples=figures.samples(sessions, metric, unit, row.verdicts)
            if drawn
            else None,
            history=figures.history(sessions, unit, changed),
            roofline=figures.roofline(row.attained) if row.attained else None,
            roof=_roof(row),
            roof_origin=_roof_origin(row),
            kernels=figures.kernel_rows(record) if record is not None else (),
            per_kernel=_per_kernel(record),
            binary=_binary(record),
            loop=_loop(record),
            utilization=tuple(_utilization(row)),
            time_lines=_time_lines(record),
            commands=self._commands(verdict),
            moved=() if status in _QUIET else self._moved(changed),
            values=values[:_MOST_VALUES],
            more_values_count=max(0, len(values) - _MOST_VALUES),
            facts=tuple(f for f in _facts(record) if self._common.get(f[0]) != f[1]),
            gaps=tuple(
                gap
                for key, gap in _gaps([record] if record else []).items()
                if key not in self._common_gaps
            ),
        )

    def _sessions(self, row: Row, shown: Estimate | None) -> list[SessionSamples]:
        """Return what every session measured of a metric, oldest first, then now."""
        if shown is None or row.record is None:
            return []
        stored = dict(self._stored_sessions(row, shown))
        older = dict(self._older_sessions(row, shown))
        by_session = {**stored, **older}  # the samples of a run say more
        sessions = [by_session[session] for session in sorted(by_session)]
        session = self.run.header.session
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

    def _stored_sessions(
        self, row: Row, shown: Estimate
    ) -> Iterator[tuple[_SessionName, SessionSamples]]:
        """Yield the stored sessions of a measurement, with when they began."""
        left_out = {v.change.left_out for v in row.verdicts if v.change is not None}
        for stored in self._stored.get(row.key, ()):
            for value in stored.values:
                if _is_alike(value, shown):
                    session = stored.session
                    middle = sorted(value.run_values)[len(value.run_values) // 2]
                    samples = SessionSamples(
                        kind="left-out" if session.id in left_out else "stored",
                        label=_when(session),
                        value=middle,
                        commit=session.commit or "",
                        values=() if value.quantiles else value.run_values,
                        quantiles=value.quantiles,
                    )
                    yield (session.started_unix_s, session.id), samples

    def _older_sessions(
        self, row: Row, shown: Estimate
    ) -> Iterator[tuple[_SessionName, SessionSamples]]:
        """Yield the earlier runs that are shown beside this one, with when they began."""
        for run, records in zip(self._older_runs, self._older, strict=True):
            record = records.get(row.key)
            for estimate in record.estimates if record is not None else ():
                if record is not None and _is_alike(estimate, shown):
                    session = run.header.session
                    label = _when(session)
                    samples = _of_record(record, estimate, kind="older", label=label)
                    samples = replace(samples, commit=session.commit or "")
                    yield (session.started_unix_s, session.id), samples

    def _commands(self, verdict: Verdict | None) -> tuple[tuple[str, str], ...]:
        """Return what to type next."""
        options = self.run.header.options
        if verdict is None or verdict.outcome is Outcome.UNMEASURED:
            return ()
        commands = [("reproduce", reproduce_command(verdict, options))]
        moved = {Outcome.REGRESSED, Outcome.IMPROVED}
        if verdict.outcome in moved and options.get("gpuperf_update") != "all":
            commands.append(("accept", accept_command(verdict, options)))
        return tuple(commands)

    def _moved(self, verdict: Verdict | None) -> tuple[tuple[str, str, str], ...]:
        """Return the facts that are not those of the newest stored session."""
        span = verdict.baseline if verdict is not None else None
        if span is None:
            return ()
        moved = [(name, then, now) for name, (then, now) in sorted(span.moved.items())]
        commit = self.run.header.session.commit
        if span.last_commit and commit and commit != span.last_commit:
            moved.insert(0, ("commit", span.last_commit[:7], commit[:7]))
        return tuple(moved)


def _when(session: Session) -> str:
    """Return the minute in which a session began."""
    return display.moment(session.started_unix_s).removesuffix(" UTC")


def _address(name: str) -> str:
    """Return the address of a test on the page, the same in every run."""
    digest = hashlib.blake2s(name.encode(errors="replace"), digest_size=_ID_BYTES)
    return f"t-{digest.hexdigest()}"


def _first_records(run: Run) -> Mapping[RecordKey, Record]:
    """Return what the main process of a run measured."""
    return {r.key: r for r in reversed(run.records) if r.role is Role.MAIN}


def _fresh_records(run: Run) -> Mapping[RecordKey, Sequence[Record]]:
    """Return what fresh processes measured."""
    fresh: dict[RecordKey, list[Record]] = {}
    for record in run.records:
        if record.role is not Role.MAIN:
            fresh.setdefault(record.key, []).append(record)
    return fresh


def _first_verdict(row: Row) -> Verdict | None:
    """Return the verdict that speaks for a row; None: nothing was judged."""
    deciding = [v for v in row.verdicts if v.decides] or list(row.verdicts)
    return speaking(deciding) if deciding else None


def _shown_estimate(row: Row, verdict: Verdict | None) -> Estimate | None:
    """Return the value that a row shows: the judged one, else the time; None: neither."""
    if verdict is not None and verdict.estimate is not None:
        if verdict.change is None:
            return verdict.estimate
        return replace(
            verdict.estimate, value=verdict.change.current, low=None, high=None
        )
    time = row.estimate("time")
    if time is not None or row.record is None:
        return time
    return next((e for e in row.record.estimates if e.kernel is None), None)


def _value_text(row: Row, shown: Estimate | None) -> str:
    """Return the value of a row; a metric that is not the time is named."""
    if shown is None:
        return ""
    if shown.metric == "time" and row.time:
        return row.time
    return display.value(shown.value, shown.unit)


def _beside(row: Row, shown: Estimate | None) -> str:
    """Return what stands below the value: the spread of a time, the name of the rest."""
    if shown is None:
        return ""
    return row.spread if shown.metric == "time" else words.noun(shown.metric)


def _of_record(
    record: Record, estimate: Estimate, *, kind: str, label: str
) -> SessionSamples:
    """Return the samples of one value in one process."""
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


def _is_alike(value: object, shown: Estimate) -> bool:
    """Return whether a value is of the same metric, source and unit."""
    alike = ("metric", "source", "unit")
    same = all(getattr(value, name) == getattr(shown, name) for name in alike)
    return same and getattr(value, "kernel", None) == shown.kernel


def _effect(row: Row) -> float | None:
    """Return by how much a row got worse [fraction]; None: nothing is relative."""
    for verdict in row.verdicts:
        if verdict.change is not None and verdict.change.effect is not None:
            is_flipped = figures.higher_is_better(verdict)
            return figures.worsening(verdict.change.effect, is_flipped=is_flipped)
    return None


def _strip(row: Row, axis: ChangeAxis, text: str) -> figures.ChangeStrip | None:
    """Return the change of a row as it is drawn."""
    strips = (figures.change_strip(verdict, axis, text) for verdict in row.verdicts)
    return next(filter(None, strips), None)


def _bullet(verdict: Verdict | None) -> figures.Bullet | None:
    """Return a value against its limit."""
    if verdict is None or verdict.limit is None or verdict.estimate is None:
        return None
    return figures.bullet(
        verdict.estimate.value, verdict.limit.threshold, verdict.limit.text
    )


def _line(status: Status, verdict: Verdict | None) -> str:
    """Return what stands below a row that needs a word; "" for the others."""
    if verdict is None or verdict.outcome in JUDGED - FAILING:
        return status.meaning if status in {_BROKEN, _VOID} else ""
    return evidence(verdict) if status.fails else _why(verdict)


def _why(verdict: Verdict) -> str:
    """Return why a verdict is open: the tool's own words where it is unmeasured."""
    if verdict.outcome is Outcome.UNMEASURED and verdict.detail:
        return verdict.detail[0]
    return words.sentence(verdict)


def _judgement(verdict: Verdict) -> Judgement:
    """Return a verdict in words: those of the other reports."""
    block = explanation(
        replace(verdict, remedy=""), name="", options=None, width=_UNWRAPPED
    )
    lines = tuple(line.text.strip() for line in block)[1:]
    decided = verdict.outcome in JUDGED
    return Judgement(
        outcome=verdict.outcome.value,
        subject=verdict.metric,
        text=evidence(verdict),
        sentence=words.sentence(verdict) if decided else "",
        lines=lines,
        remedy=verdict.remedy,
        bullet=_bullet(verdict),
    )


def _values(record: Record | None) -> Iterator[Value]:
    """Yield every value of a measurement with where it came from."""
    for estimate in record.estimates if record is not None else ():
        if estimate.kernel is not None:  # they have a table of their own
            continue
        metric = METRICS.get(estimate.metric)
        several = estimate.sample_count > 1
        count = f", {estimate.sample_count} samples" if several else ""
        yield Value(
            metric=estimate.metric,
            meaning=metric.meaning if metric is not None else "",
            value=display.value(estimate.value, estimate.unit),
            spread=display.spread(estimate),
            origin=f"{estimate.label.value} by {estimate.source}{count}",
        )


def _per_kernel(record: Record | None) -> Table | None:
    """Return the values that each kernel has of its own."""
    estimates = record.estimates if record is not None else ()
    values = {(e.kernel, e.metric): e for e in estimates if e.kernel is not None}
    kernels = tuple(dict.fromkeys(kernel for kernel, _ in values))[:_MOST_VALUES]
    metrics = tuple(dict.fromkeys(metric for _, metric in values))[:_MOST_METRICS]
    if not kernels:
        return None
    columns = [Column(head="kernel", cells=tuple(map(str, kernels)))]
    for metric in metrics:
        cells = (values.get((kernel, metric)) for kernel in kernels)
        texts = ("" if e is None else display.value(e.value, e.unit) for e in cells)
        columns.append(Column(head=metric, cells=tuple(texts), right=True))
    return Table(heading="Values of each kernel", columns=tuple(columns))


def _roof(row: Row) -> figures.Bar | None:
    """Return the share of its roof that a measurement reached."""
    share = row.estimate("roofline.fraction")
    if share is None:
        return None
    width = percent(100 * max(0.0, min(share.value, 1.0)))
    return figures.Bar(width=width, text=row.roofline)


def _roof_origin(row: Row) -> str:
    """Return where the roof came from, and its side."""
    attained = row.attained
    if attained is None:
        return ""
    bound = f"{attained.bound}-bound"
    return f"{bound}, roof {attained.peak_label.value}: {attained.source}"


def _binary(record: Record | None) -> Table | None:
    """Return the resources of compiled kernels."""
    kernels = record.kernels if record is not None else ()
    if not kernels:
        return None

    def sizes(field: str) -> tuple[str, ...]:
        numbers = [getattr(kernel, field) for kernel in kernels]
        return tuple("" if n is None else display.value(n, "bytes") for n in numbers)

    return Table(
        heading=display.plural(len(kernels), "compiled kernel"),
        columns=(
            Column(head="kernel", cells=tuple(k.demangled or k.name for k in kernels)),
            Column(head="target", cells=tuple(k.target for k in kernels)),
            Column(
                head="registers",
                cells=tuple(str(k.registers_count) for k in kernels),
                right=True,
            ),
            Column(head="stack", cells=sizes("stack_bytes"), right=True),
            Column(head="spills", cells=sizes("spills_bytes"), right=True),
            Column(head="shared", cells=sizes("shared_bytes"), right=True),
            Column(
                head="threads",
                cells=tuple(str(k.threads_per_block or "") for k in kernels),
                right=True,
            ),
        ),
    )


def _loop(record: Record | None) -> Loop | None:
    """Return the scorecard of a loop; None: the test has none."""
    steps = record.steps if record is not None else None
    if record is None or steps is None:
        return None
    phases = [(phase.name, phase.own_s) for phase in steps.phases if not phase.beside]
    rest_s = steps.period_s - math.fsum(own_s for _, own_s in phases)
    if phases and rest_s > 0:
        phases.append(("in no phase", rest_s))
    tables = [Table(heading=t[0].head, columns=t) for t in step_tables(steps, str)]
    return Loop(
        grade=steps.grade or "",
        facts=tuple(step_facts(record)),
        period=display.value(steps.period_s, "s"),
        phases=figures.shares(phases, steps.period_s),
        tables=tuple(t for t in tables if t.heading != "phase"),  # they are drawn
    )


def _utilization(row: Row) -> Iterator[Utilization]:
    """Yield what each GPU was busy with."""
    texts = utilization_lines(row.utilization)
    for window, text in zip(row.utilization, texts, strict=True):
        yield Utilization(text=text, shares=figures.utilization_shares(window))


def _time_lines(record: Record | None) -> tuple[figures.TimeLineFigure, ...]:
    """Return what the sensors of each GPU said."""
    lines = record.time_lines if record is not None else ()
    return tuple(filter(None, map(figures.time_line, lines)))


def _facts(record: Record | None) -> Iterator[tuple[str, str]]:
    """Yield the hard and soft facts of a measurement, each once."""
    if record is None:
        return
    facts: dict[str, str] = {}
    for family in record.facts.values():
        facts |= family
    if record.device is not None:
        facts["gpu"] = record.device.name
    yield from sorted({**facts, **record.soft_facts}.items())


def _common_facts(every: Iterable[Row]) -> dict[str, str]:
    """Return the facts that most measurements share."""
    records = [row.record for row in every if row.record is not None]
    counts = Counter(fact for record in records for fact in _facts(record))
    return {
        name: text
        for (name, text), count in counts.items()
        if count > _USUAL * len(records)
    }


_GapKey = tuple[str, str]


def _gaps(records: Iterable[Record]) -> dict[_GapKey, Gaps]:
    """Return what could not be measured, one for each reason."""
    metrics: dict[_GapKey, dict[str, None]] = {}
    counts: Counter[_GapKey] = Counter()
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


def _common_gaps(every: Iterable[Row]) -> dict[_GapKey, Gaps]:
    """Return the gaps that most measurements share."""
    records = [row.record for row in every if row.record is not None]
    least = max(2, _USUAL * len(records) / 2)
    return {key: gap for key, gap in _gaps(records).items() if gap.count > least}
