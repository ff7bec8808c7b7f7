"""The content of a run's HTML page."""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence

from pytest_gpuperf.judge.tally import speaking, tally
from pytest_gpuperf.model.counters import CounterGap
from pytest_gpuperf.model.frozen import Frozen, replace
from pytest_gpuperf.model.run import MachineShift, Run
from pytest_gpuperf.model.sample import Estimate
from pytest_gpuperf.model.verdict import FAILING, JUDGED, Outcome, Verdict
from pytest_gpuperf.report import display, sentences, words
from pytest_gpuperf.report.captures import limiter_text
from pytest_gpuperf.report.explanation import commands, evidence
from pytest_gpuperf.report.html import figures, rendered
from pytest_gpuperf.report.html.figures import ChangeAxis
from pytest_gpuperf.report.html.kernels import kernels_before
from pytest_gpuperf.report.html.panel import (
    Detail,
    Gaps,
    Panel,
    bullet_of,
    facts_of,
    gaps_of,
    panel_of,
)
from pytest_gpuperf.report.html.sessions import Point, Sessions, SessionSamples, trend
from pytest_gpuperf.report.rows import (
    Row,
    RowEnding,
    judged_value,
    rows,
    short_id,
    short_names,
)
from pytest_gpuperf.report.summary import held_tests, judged_line, left_unmeasured
from pytest_gpuperf.report.terminal import remarks, title

# Characters. The browser breaks lines.
_UNWRAPPED = 10_000
# Facts shown in the line of the machine, or as a part of another fact.
_OF_MACHINE = {"core_count", "cpu_model", "platform", "python_minor"}
# A fact of more than this share of the tests is shown once, at the end of the page.
_USUAL = 0.5
# A page with more rows is large: the browser lays out only the visible part.
_MANY = 200
# Panels with tracks on a large page, the worst tests first. One panel takes 25 kB.
_MOST_WITH_TRACKS = 20
# Two of 10,000 tests share an address once in 20,000 pages.
_ID_BYTES = 5


def html_bytes(run: Run, older: Sequence[Run] = ()) -> bytes:
    """
    Return a run as one HTML file [UTF-8] that needs no network.

    Args:
        run: The run, judged.

        older: Earlier runs with samples to show next to the run, oldest first.

    Raises:
        ReportError: Jinja2 is not installed.
    """
    return rendered(lambda: RunPage(run, older))


class PageStatus(Frozen, frozen=True, kw_only=True):
    """
    The page's name for the state of a test.

    Attributes:
        name: The name, also used as a CSS class.

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
    Outcome.BLIND,
    Outcome.UNCHANGED,
    Outcome.PASSED,
)
_BROKEN = PageStatus(
    name="broken",
    meaning="The test itself failed: see the output of pytest. Nothing was judged.",
    fails=True,
)
_SKIPPED = PageStatus(
    name="skipped", meaning="It was skipped before anything was judged."
)
_VOID = PageStatus(name="void", meaning="Its measurement must not be judged.")
_XFAILED = PageStatus(name="xfailed", meaning="It failed as its xfail mark expects.")
_UNJUDGED = PageStatus(name="unjudged", meaning="It was measured, and has no limit.")
_OF_OUTCOMES = {
    outcome: PageStatus(
        name=outcome.value,
        meaning=sentences.OUTCOMES[outcome],
        fails=outcome in FAILING,
    )
    for outcome in _OUTCOMES_IN_ORDER
}
_OF_ENDINGS = {
    RowEnding.MISSED: _OF_OUTCOMES[Outcome.FAILED],
    RowEnding.BROKEN: _BROKEN,
    RowEnding.VOID: _VOID,
    RowEnding.SKIPPED: _SKIPPED,
    RowEnding.HELD: _OF_OUTCOMES[Outcome.PASSED],
}
# Worst first, in the order of the page.
STATUSES = (
    _OF_OUTCOMES[Outcome.FAILED],
    _OF_OUTCOMES[Outcome.REGRESSED],
    _BROKEN,
    _VOID,
    *(_OF_OUTCOMES[outcome] for outcome in _OUTCOMES_IN_ORDER[2:]),
    _XFAILED,
    _SKIPPED,
    _UNJUDGED,
)
_ASSERT_HELD = "Its own assert on a measured value held."
# Panels of these tests have no list of changed facts, because nothing needs explaining.
_QUIET = (_OF_OUTCOMES[Outcome.UNCHANGED], _OF_OUTCOMES[Outcome.PASSED])
_RANKS = {status.name: place for place, status in enumerate(STATUSES)}


class Test(Frozen, frozen=True, kw_only=True):
    """
    One row of the page.

    Attributes:
        id: The anchor of the row, the same in every run.

        is_own_assert: Whether an assert in the test failed, and not a limit.

        panel: The details shown when the row is opened, or None if the page would be too large.
    """

    id: str
    test_id: str
    full_name: str
    file: str
    name: str
    group: str
    place: str
    status: PageStatus
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
    trend: tuple[Point, ...]
    measured: str
    is_own_assert: bool = False
    panel: Panel | None = None

    @property
    def caption(self) -> str:
        """The display name with the file, shortened in the middle if long."""
        return f"{self.file}::{self.name}" if self.file else self.name


class Chip(Frozen, frozen=True, kw_only=True):
    """
    A state of measurements, with their number.

    Attributes:
        status: The state.

        count: Number of measurements in this state.

        tests: Number of tests with these measurements as text, or "" if every test has one
            measurement.
    """

    status: PageStatus
    count: int
    tests: str = ""


class Undecided(Frozen, frozen=True, kw_only=True):
    """Tests that were not judged for the same reason."""

    status: str
    sentence: str
    remedy: str
    count: int


class Page(ABC):
    """
    A page: a row per measurement, and the texts around the rows.

    Args:
        run: The run, which may be judged.

        older: Earlier runs with samples to show next to the run, oldest first.

        most_panels: Number of tests with a panel, the worst first. Failing tests always have one.
            With a panel for each of 10,000 tests, a page would have 60 MB.
    """

    def __init__(
        self, run: Run, older: Sequence[Run] = (), *, most_panels: int = 1000
    ) -> None:
        self._most_panels = most_panels
        self.run = run
        self._sessions = Sessions(run, older)
        every = rows(run)
        names = {}
        for key in (row.key for row in every):
            file, _, name = key.test_id.partition("::")
            names[key] = f"{name or file} {key.name}".rstrip()
        self._called = short_names(names)
        self.is_large = len(every) > _MANY
        self._groups = {test.test_id: test for test in run.tests}
        effects = [
            figures.worsening(v.change.effect, is_flipped=figures.higher_is_better(v))
            for v in run.verdicts
            if v.change is not None and v.change.effect is not None
        ]
        self.axis = ChangeAxis(effects)
        records = [row.record for row in every if row.record is not None]
        usual = _USUAL * len(records)
        facts = Counter(fact for record in records for fact in facts_of(record))
        self.common_facts = {
            name: text for (name, text), n in facts.items() if n > usual
        }
        # Of more than a quarter of the measurements, and at least 3.
        self._common_gaps = {
            key: gap
            for key, gap in gaps_of(records).items()
            if gap.count > max(2, usual / 2)
        }
        ordered = sorted(every, key=self._place)
        self.tests = tuple(
            self._test(row, place=place) for place, row in enumerate(ordered)
        )

    def _place(self, row: Row) -> tuple[int, float]:
        """Return the sort key of a row: the worst state first, then the largest change."""
        effect = _effect(row)
        size = 0.0 if effect is None else abs(math.log(max(1 + effect, 1e-9)))
        return _RANKS[self._status(row).name], -size

    def _status(self, row: Row) -> PageStatus:
        if row.xfailed:
            return _XFAILED
        if row.outcome is not None:
            return _OF_OUTCOMES[row.outcome]
        return _UNJUDGED if row.ending is None else _OF_ENDINGS[row.ending]

    # Texts above and below the rows.

    statuses = STATUSES  # The possible states of a row.
    noun: str  # The subject of a row.
    opens = False  # Whether panels are open at first.

    @property
    @abstractmethod
    def headline(self) -> str:
        """The headline of the page."""

    @property
    @abstractmethod
    def judged(self) -> str:
        """The extent of the judgement, or the reason for none."""

    @property
    @abstractmethod
    def measured_on(self) -> tuple[str, ...]:
        """The hardware and software of the measurement."""

    @property
    @abstractmethod
    def facts(self) -> Iterable[tuple[str, str]]:
        """Names and values of facts that the rows share. "" is unknown."""

    @property
    def remarks(self) -> tuple[str, ...]:
        """Sentences about the hardware and software of the measurement."""
        return ()

    @property
    def started(self) -> str:
        """The time of the measurement, or "" if unknown."""
        return ""

    @property
    def chips(self) -> tuple[Chip, ...]:
        """The states of measurements, worst first, or an empty tuple if nothing is judged."""
        return ()

    @property
    def parts(self) -> str:
        """The numbers of measurements and tests, or "" if every test has one measurement."""
        return ""

    @property
    def without_row(self) -> str:
        """The number of tests without a measurement as text, or "" for none."""
        return ""

    @property
    def undecided(self) -> tuple[Undecided, ...]:
        """The reasons for missing judgements, the most frequent reason first."""
        return ()

    @property
    def options(self) -> tuple[tuple[str, str], ...]:
        """The options of the run, as in an ini file."""
        return ()

    @property
    def conditions(self) -> tuple[tuple[str, str], ...]:
        """Facts that the rows share, as people read them."""
        return tuple(
            (display.fact_label(name), display.fact(name, text))
            for name, text in self.facts
            if text and name not in _OF_MACHINE
        )

    @property
    def fails(self) -> bool:
        """True if a test fails the run."""
        return any(test.status.fails for test in self.tests)

    @property
    def has_changes(self) -> bool:
        """True if a change is drawn."""
        return any(test.strip for test in self.tests)

    @property
    def adjusted(self) -> str:
        """The meaning of the mark after a change, or "" if no change is marked."""
        marked = any(test.change.endswith(words.MARK) for test in self.tests)
        return words.ADJUSTED if marked else ""

    @property
    def has_limits(self) -> bool:
        """True if a value is drawn with a limit."""
        return any(test.bullet for test in self.tests)

    @property
    def has_values(self) -> bool:
        """True if a row shows a value."""
        return any(test.value for test in self.tests)

    @property
    def has_effects(self) -> bool:
        """True if a row shows a change."""
        return any(test.change for test in self.tests)

    @property
    def has_rooflines(self) -> bool:
        """True if a row shows a share of a roof. Grades alone use the same column."""
        return any(test.roofline for test in self.tests)

    @property
    def absent(self) -> tuple[str, ...]:
        """CSS classes for the empty columns."""
        present = {
            "x": self.has_values,
            "f": self.has_changes or self.has_limits,
            "d": self.has_effects,
            "r": self.has_rooflines or any(test.grade for test in self.tests),
            "t": any(test.trend for test in self.tests),
        }
        return tuple(f"no-{name}" for name, is_there in present.items() if not is_there)

    @property
    def has_groups(self) -> bool:
        """True if a marker names a group."""
        return any(test.group for test in self.tests)

    @property
    def panels_count(self) -> int:
        """The number of tests with a panel."""
        return sum(test.panel is not None for test in self.tests)

    @property
    def common_gaps(self) -> tuple[Gaps, ...]:
        """Metrics that many tests could not measure."""
        return tuple(self._common_gaps.values())

    # The rows.

    def _test(self, row: Row, *, place: int) -> Test:
        file, _, name = row.key.test_id.partition("::")
        status = self._status(row)
        deciding = [v for v in row.verdicts if v.decides] or row.verdicts
        verdict = speaking(deciding) if deciding else None
        shown = _shown_estimate(row, verdict)
        sessions = self._sessions.of(row, shown)
        has_panel = place < self._most_panels or status.fails
        test = self._groups.get(row.key.test_id)
        if test is not None and test.typed:
            file = test.file
        changes = row.change, row.revision_change
        if verdict is not None and verdict.of_revision:
            changes = changes[::-1]
        change = changes[0] or changes[1]
        strips = (figures.change_strip(v, self.axis, change) for v in row.verdicts)
        key = str(row.key).encode(errors="replace")
        value, spread, measured = _value_texts(row, shown)
        return Test(
            id=f"t-{hashlib.blake2s(key, digest_size=_ID_BYTES).hexdigest()}",
            test_id=row.key.test_id,
            full_name=str(row.key),
            file=file if name else "",
            name=self._called[row.key],
            group=(test.group if test is not None else None) or "",
            place=f"{file}:{test.line}" if test is not None and test.line else "",
            status=status,
            label=status.name if row.outcome is None else row.label.lower(),
            value=value,
            spread=spread,
            number=None if shown is None else shown.value,
            change=change,
            effect=_effect(row),
            strip=next(filter(None, strips), None),
            bullet=bullet_of(verdict),
            line=row.missed or _line(status, verdict),
            roofline=row.roofline,
            grade=row.grade,
            trend=trend(sessions, None if shown is None else shown.value),
            measured=measured,
            is_own_assert=row.outcome is None and row.ending is RowEnding.MISSED,
            panel=self._panel(row, status, verdict, sessions, place=place)
            if has_panel
            else None,
        )

    def _panel(
        self,
        row: Row,
        status: PageStatus,
        verdict: Verdict | None,
        sessions: Sequence[SessionSamples],
        *,
        place: int,
    ) -> Panel:
        detail = Detail.ALL
        if self.is_large and status in _QUIET:
            detail = Detail.BRIEF
        elif self.is_large and place >= _MOST_WITH_TRACKS:
            detail = Detail.NO_TRACKS
        state = ""
        if row.missed:
            state = f"{row.missed[0].upper()}{row.missed[1:]}."
        elif not row.verdicts:
            held = row.ending is RowEnding.HELD
            state = _ASSERT_HELD if held else status.meaning
        changed = next((v for v in row.verdicts if v.change is not None), None)
        return panel_of(
            row,
            state=state,
            shown=_shown_estimate(row, verdict),
            sessions=sessions,
            before=kernels_before(
                self._sessions.earlier(row), self._sessions.stored_with_kernels(row)
            ),
            detail=detail,
            commands=()
            if verdict is None
            else commands(verdict, self.run.header.options),
            moved=() if status in _QUIET else self._moved(changed),
            common_facts=self.common_facts,
            common_gaps=self._common_gaps,
        )

    def _moved(self, verdict: Verdict | None) -> tuple[tuple[str, str, str], ...]:
        """
        Return the facts that changed since the newest stored session: name, old and new value.
        """
        span = verdict.baseline if verdict is not None else None
        if span is None:
            return ()
        moved = [
            (display.fact_label(name), *display.moved_fact(name, *values))
            for name, values in sorted(span.moved.items())
        ]
        session = self.run.header.session
        then, now = map(display.commit, (span.last_commit, session.commit))
        now += " and uncommitted changes" if session.dirty else ""
        if then and session.commit and now != then:
            moved.insert(0, ("commit", then, now))
        return tuple(moved)


class RunPage(Page):
    """The page of a run."""

    noun = "test"

    @property
    def headline(self) -> str:
        """The headline of the run."""
        first: dict[str, Test] = {}
        # The worst measurement of a test comes first.
        for test in self.tests:
            first.setdefault(test.test_id, test)
        failing = Counter(
            "own" if test.is_own_assert else test.status.name
            for test in first.values()
            if test.status.fails
        )
        count = sum(failing.values())
        if ended := self.run.header.completeness.interrupted:
            return f"Incomplete: {ended}; {held_tests(self.run)}"
        if not count:
            return (
                "Nothing failed"
                if tally(self.run).judged_count
                else "Nothing was judged"
            )
        own = "its own assert" if failing["own"] == 1 else "their own asserts"
        called = {
            "failed": "missed a limit",
            "own": f"failed {own}",
            "broken": "failed before being judged",
        }
        parts = ", ".join(
            f"{n} {called.get(name, name)}" for name, n in failing.items()
        )
        verb = "fails" if count == 1 else "fail"
        tests = display.plural(tally(self.run).expected_count, "test")
        return f"{count} of {tests} {verb}: {parts}"

    @property
    def judged(self) -> str:
        """The number of judged tests, and the reasons for missing verdicts."""
        text = judged_line(self.run).text
        return text[0].upper() + text[1:]

    @property
    def remarks(self) -> tuple[str, ...]:
        """Sentences about the comparison, machine drift, missing stored tests and noise."""
        texts = (line.text for line in remarks(self.run, width=_UNWRAPPED))
        return tuple(text[0].upper() + text[1:] for text in texts)

    @property
    def measured_on(self) -> tuple[str, ...]:
        """The hardware and collectors of the measurement."""
        head = title(self.run, width=_UNWRAPPED)
        collectors = self.run.header.collectors
        facts = [f for f in head.partition(": ")[2].split(", ") if f not in collectors]
        by = f"measured by {', '.join(collectors)}" if collectors else ""
        return tuple(filter(None, (*facts, by)))

    @property
    def started(self) -> str:
        """The start time of the run."""
        return display.moment(self.run.header.session.started_unix_s)

    @property
    def chips(self) -> tuple[Chip, ...]:
        """The states of measurements, worst first."""
        return tuple(
            Chip(
                status=status,
                count=len(several),
                tests=f"in {_of_tests(len(set(several)))}" if self.parts else "",
            )
            for status in STATUSES
            if (several := [t.test_id for t in self.tests if t.status == status])
        )

    @property
    def parts(self) -> str:
        """The numbers of measurements and tests, or "" if every test has one measurement."""
        count = len({test.test_id for test in self.tests})
        if len(self.tests) == count:
            return ""
        return f"{len(self.tests)} measurements of {_of_tests(count)}"

    @property
    def without_row(self) -> str:
        """The number of tests without a measurement as text, or "" for none."""
        count = len({test.test_id for test in self.tests})
        missing = tally(self.run).expected_count - count
        return f"{_of_tests(missing)} without a measurement" if missing > 0 else ""

    @property
    def undecided(self) -> tuple[Undecided, ...]:
        """The reasons for missing judgements, the most frequent reason first."""
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
    def facts(self) -> Iterable[tuple[str, str]]:
        """The machine, the session, the completeness, the drift and facts that the tests share."""
        header = self.run.header
        environment, session = header.environment, header.session
        complete = header.completeness
        cores = f"{environment.core_count} cores" if environment.core_count else ""
        machine = (environment.cpu_model or "", cores, environment.platform)
        dirty = " with uncommitted changes" if session.dirty else ""
        return (
            ("machine", ", ".join(filter(None, machine))),
            ("session", session.id),
            ("commit", f"{session.commit}{dirty}" if session.commit else ""),
            ("collectors", ", ".join(header.collectors)),
            (
                "reported",
                f"{complete.reported_count} of {complete.expected_count} tests",
            ),
            ("without a result", ", ".join(map(short_id, complete.missing))),
            ("unmeasured", left_unmeasured(complete)),
            *map(_drift, self.run.shifts),
            *sorted({**environment.versions, **self.common_facts}.items()),
        )

    @property
    def options(self) -> tuple[tuple[str, str], ...]:
        """The options of the run, as in an ini file."""
        return tuple(sorted(self.run.header.options.items()))


def _drift(shift: MachineShift) -> tuple[str, str]:
    metric = "" if shift.metric == "time" else f" {shift.metric}"
    controls = display.plural(shift.control_count, "control")
    others = shift.control_count - len(shift.controls)
    references = [display.plural(others, "reference workload")] if others > 0 else []
    named = ", ".join([*map(short_id, shift.controls), *references])
    name = f"drift of {shift.bound_class.value}-bound{metric or ' times'}"
    moved = display.change(shift.effect, limits=())
    noise = "" if shift.moved else ", which is noise"
    return name, f"{moved}{noise}, from {controls}: {named}"


def _of_tests(count: int) -> str:
    return display.plural(count, "test")


def _shown_estimate(row: Row, verdict: Verdict | None) -> Estimate | None:
    """
    Return the judged value of a row, else the time, else the only value, or None.

    If a limit on another metric was kept, the time is shown, because a value such as 1 launch is
    less informative.
    """
    time = row.estimate("time")
    kept = (
        verdict is not None
        and verdict.outcome is Outcome.PASSED
        and verdict.metric != "time"
        and time is not None
    )
    if verdict is not None and verdict.estimate is not None and not kept:
        judged = judged_value(verdict.estimate, (verdict,))
        if judged is None or math.isclose(judged, verdict.estimate.value):
            return verdict.estimate
        return replace(verdict.estimate, value=judged, low=None, high=None)
    if time is not None or row.record is None:
        return time
    whole = [e for e in row.record.estimates if e.kernel is None]
    return whole[0] if len(whole) == 1 else None


def _value_texts(row: Row, shown: Estimate | None) -> tuple[str, str, str]:
    """
    Return a value, the text below it, and the other values of a row without a value.

    The text below is the spread of a time, or the name of another metric.
    """
    if shown is not None:
        text = display.value(shown.value, shown.unit)
        if shown.metric == "time":
            return row.time or text, row.spread, ""
        return text, words.noun(shown.metric), ""
    texts = [*row.measured()]
    analyses = row.record.analyses if row.record is not None else ()
    if analyses and not isinstance(analyses[0].analysis.limiter, CounterGap):
        which = "longest kernel limited" if len(analyses) > 1 else "limited"
        texts.append(f"{which} by {limiter_text(analyses[0].analysis.limiter)}")
    return "", "", ", ".join(texts)


def _effect(row: Row) -> float | None:
    """Return the worsening of a row [fraction], or None without a relative change."""
    for verdict in row.verdicts:
        if verdict.change is not None and verdict.change.effect is not None:
            is_flipped = figures.higher_is_better(verdict)
            return figures.worsening(verdict.change.effect, is_flipped=is_flipped)
    return None


def _line(status: PageStatus, verdict: Verdict | None) -> str:
    """Return the text below a row, or "" if the row needs no explanation."""
    if verdict is None or verdict.outcome in JUDGED - FAILING:
        return status.meaning if status in {_BROKEN, _VOID, _SKIPPED} else ""
    return evidence(verdict) if status.fails else _why(verdict)


def _why(verdict: Verdict) -> str:
    if verdict.outcome is Outcome.UNMEASURED and verdict.detail:
        return verdict.detail[0]
    return sentences.sentence(verdict)
