"""What the table says of each measurement, for every kind of report."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum

from pytest_gpuperf.compute.stats import quantile
from pytest_gpuperf.config import USUAL_COLUMNS
from pytest_gpuperf.judge.tally import PRECEDENCE, expected_failures, speaking, worst
from pytest_gpuperf.model.change import Change
from pytest_gpuperf.model.frozen import Frozen, replace
from pytest_gpuperf.model.record import Record, RecordKey, Role
from pytest_gpuperf.model.roofline import Attainment
from pytest_gpuperf.model.run import Run
from pytest_gpuperf.model.sample import Estimate
from pytest_gpuperf.model.telemetry import UtilizationWindow
from pytest_gpuperf.model.verdict import FAILING, JUDGED, Outcome, Verdict
from pytest_gpuperf.model.work import Work
from pytest_gpuperf.report import display, words
from pytest_gpuperf.report.lines import (
    STYLES,
    Column,
    Line,
    Style,
    shorten,
    text_table,
    wrapped,
)

__all__ = [
    "XFAILED",
    "Row",
    "RowEnding",
    "View",
    "by_group",
    "columns",
    "judged_value",
    "names",
    "ordered",
    "rows",
    "sample_statistics",
    "table_lines",
    "utilization_lines",
]

XFAILED = "xfailed"  # pytest's word for a failure that is expected
_MANY_ROWS = 40  # a longer table hides what matters
_SHOWN_CLASSES = 3  # of a line on utilization; the rest is one part of it
_IN_COLUMNS = frozenset({"time", "roofline.fraction"})  # have columns
_ALIASES = frozenset({"time.p50", "time.wall"})  # often the very value of time
_BESIDE = (Outcome.INCONCLUSIVE, Outcome.INCOMPARABLE, Outcome.NEW)
_QUIET = frozenset({Outcome.UNCHANGED, Outcome.PASSED, None})
_NO_GROUP = "no group"  # heads the rows of none, where others have one
_FENCES_IQR = 1.5  # Tukey's: what lies farther from the quartiles is an outlier
_NAME_WIDTH = 60  # of a number of the test's own, or of a template's instance


class RowEnding(Enum):
    """What a measurement without a verdict came to, as a table prints it."""

    MISSED = words.label(Outcome.FAILED)
    BROKEN = "BROKEN"  # as loud as the labels of the outcomes that fail
    VOID = "void"
    SKIPPED = "skipped"
    HELD = words.label(Outcome.PASSED)


class Row(Frozen, frozen=True, kw_only=True):
    """
    One measurement of a run.

    Attributes:
        key: Its name.

        record: What the main process measured; None where it measured nothing.

        verdicts: All that were given; the one that speaks for it is the first.

        xfailed: Whether it failed as the xfail mark of its test expects.

        asserted: Whether its test passed by asserts of its own on measured values.

        missed: What its test asserted of its values in vain, as a sentence; "": nothing.

        broken: Whether its test failed before anything was judged.

        skipped: Whether its test was skipped after it had measured.

        group: The heading that its marker names; "": none.
    """

    key: RecordKey
    record: Record | None
    verdicts: tuple[Verdict, ...]
    xfailed: bool = False
    asserted: bool = False
    missed: str = ""
    broken: bool = False
    skipped: bool = False
    group: str = ""

    @property
    def outcome(self) -> Outcome | None:
        """The outcome that speaks for it; None where nothing was judged."""
        deciding = [verdict for verdict in self.verdicts if verdict.decides]
        return speaking(deciding).outcome if deciding else None

    @property
    def is_loud(self) -> bool:
        """Whether it fails without an xfail mark that expects it."""
        if self.outcome is None:
            return self.ending in {RowEnding.MISSED, RowEnding.BROKEN}
        return self.outcome in FAILING and not self.xfailed

    @property
    def needs_attention(self) -> bool:
        """Whether it neither passed nor stayed as it was, or its value is doubtful."""
        is_quiet = self.outcome in _QUIET and not self.is_loud
        return not is_quiet or bool(self.doubts())

    @property
    def label(self) -> str:
        """The worst outcome as a table prints it."""
        if self.xfailed:
            return XFAILED
        outcome = self.outcome
        if building := next(filter(None, map(words.building, self.verdicts)), ""):
            return building
        if outcome is not None:
            return words.label(outcome) + self._open_beside(outcome)
        return "" if self.ending is None else self.ending.value

    @property
    def ending(self) -> RowEnding | None:
        """What it came to without a verdict; None: it has one, or was only measured."""
        if self.outcome is not None:
            return None
        holds = {
            RowEnding.MISSED: self.missed,
            RowEnding.BROKEN: self.broken,
            RowEnding.VOID: self.record is not None and self.record.void is not None,
            RowEnding.SKIPPED: self.skipped,
            RowEnding.HELD: self.asserted,
        }
        return next((ending for ending, is_so in holds.items() if is_so), None)

    def _open_beside(self, outcome: Outcome) -> str:
        """Return what was left open beside the outcome; "" for nothing."""
        if outcome not in JUDGED:
            return ""
        beside = Counter(
            v.outcome for v in self.verdicts if v.decides and v.outcome in _BESIDE
        )
        return "".join(f", {count} {o.value}" for o, count in beside.items())

    def estimate(self, metric: str) -> Estimate | None:
        """Return the value of a metric of the whole record; None: there is none."""
        for estimate in self.record.estimates if self.record is not None else ():
            if estimate.metric == metric and estimate.kernel is None:
                return estimate
        return None

    @property
    def time(self) -> str:
        """The time of a call that was judged, else the first one; "" where there is none."""
        number_s = self.judged_time
        return "" if number_s is None else display.value(number_s, "s")

    @property
    def judged_time(self) -> float | None:
        """The same [s]; None where there is none."""
        time = self.estimate("time")
        if time is None:
            return None
        judged = self._judged_time()
        return time.value if judged is None else judged

    @property
    def recorded(self) -> Estimate | None:
        """The number of the test's own that the row is named after, as it was judged."""
        if not self.key.name or self.estimate("time") is not None:
            return None
        first = self.estimate(self.key.name)
        return None if first is None else _as_judged(first, self.verdicts)

    def statistics(self) -> Mapping[str, float | str | list[float]]:
        """Return what pytest-benchmark says of the samples; empty: there are none."""
        for series in self.record.series if self.record is not None else ():
            if series.metric == "time" and series.values:
                values = sample_statistics(series.values)
                return {**values, "iterations": series.iterations_count}
        return {}

    @property
    def spread(self) -> str:
        """How far the interval of the value reaches; "" beside one of fresh processes."""
        time, judged = self.estimate("time"), self._judged_time()
        if time is None:
            return "" if self.recorded is None else display.spread(self.recorded)
        is_confirmed = judged is not None and not math.isclose(judged, time.value)
        return "" if is_confirmed else display.spread(time)

    @property
    def change(self) -> str:
        """The change against the baseline that counts most."""
        return _change(v for v in self.verdicts if not v.of_revision)

    @property
    def revision_change(self) -> str:
        """The same against a revision."""
        return _change(v for v in self.verdicts if v.of_revision)

    @property
    def is_limited(self) -> bool:
        """Whether only limits were judged, and no change."""
        return bool(self.verdicts) and all(v.limit is not None for v in self.verdicts)

    def in_suite(self) -> tuple[str, ...]:
        """Return a sentence for each metric that was worse in the suite than alone."""
        return tuple(filter(None, map(words.in_suite, self.verdicts)))

    def doubts(self) -> tuple[str, ...]:
        """Return why the value is doubtful, a sentence each, safe to print."""
        if self.record is None:
            return self.in_suite()
        void = self.record.void
        texts = [] if void is None else [f"void: {void.text}"]
        texts += [note.text for note in self.record.notes if note.doubt]
        return (*self.in_suite(), *map(display.escape, texts))

    def notes(self) -> tuple[str, ...]:
        """Return the other notes, likewise."""
        notes = self.record.notes if self.record is not None else ()
        texts = (note.text for note in notes if not note.doubt)
        return tuple(map(display.escape, texts))

    @property
    def roofline(self) -> str:
        """The fraction of the roof that was reached, and the roof's name."""
        share = self.estimate("roofline.fraction")
        if share is None:
            return ""
        if self.attained is not None:
            roof = self.attained.roof
        else:
            roof = _roof(self.record.work if self.record is not None else None)
        text = display.value(share.value, share.unit, digits=2)
        return f"{text} {display.escape(roof)}".strip()

    @property
    def utilization(self) -> tuple[UtilizationWindow, ...]:
        """What GPUs were busy with meanwhile; empty: not recorded."""
        return () if self.record is None else self.record.utilization

    @property
    def attained(self) -> Attainment | None:
        """The fraction of its roof that it reached; None: not known."""
        return None if self.record is None else self.record.roofline

    @property
    def grade(self) -> str:
        """The grade by the roof, or of a loop; "" where it has none."""
        if self.attained is not None:
            return self.attained.grade or ""
        steps = None if self.record is None else self.record.steps
        return "" if steps is None else steps.grade or ""

    @property
    def bound(self) -> str:
        """Whether memory or compute is the roof; "" where that is not known."""
        if self.attained is not None:
            return self.attained.bound
        work = self.record.work if self.record is not None else None
        if work is None or (work.flop is not None and work.bytes is not None):
            return ""
        return "memory" if work.flop is None else "compute"

    def _judged_time(self) -> float | None:
        """Return the time that was judged, fresh processes included; None: none was."""
        changed = (
            v.change.current
            for v in self.verdicts
            if v.metric == "time" and v.change is not None and _is_of_others(v.change)
        )
        first = self.estimate("time")
        limited = None if first is None else judged_value(first, self.verdicts)
        return next(changed, limited)

    def measured(self) -> tuple[str, ...]:
        """Return the metrics without a column, as `registers 40`; kernels named."""
        estimates = self.record.estimates if self.record is not None else ()
        kernels = {e.kernel for e in estimates if e.kernel is not None}
        whole = [e for e in estimates if e.kernel is None and not self._has_column(e)]
        if len(kernels) != 1:  # only the best source of a metric
            best = {e.metric: e for e in reversed(whole)}
            shown = [e for e in whole if best[e.metric] is e]
            texts = [_named(_as_judged(e, self.verdicts)) for e in shown]
        else:
            shown = whole or [e for e in estimates if e.kernel is not None]
            texts = [_named(e) for e in shown]
        whose = self._kernels(kernels)
        first = self._first_time()
        return (*first, f"{whose}{texts[0]}", *texts[1:]) if texts else first

    def _first_time(self) -> tuple[str, ...]:
        """Return the time of the suite, where the column has that of fresh processes."""
        first, shown = self.estimate("time"), self.judged_time
        if first is None or shown is None or math.isclose(shown, first.value):
            return ()
        return (f"time in the suite {display.value(first.value, first.unit)}",)

    def _kernels(self, names: Collection[str]) -> str:
        """Return whose values a row shows, as `saxpy (sm_90): `; "": the whole call's."""
        compiled = self.record.kernels if self.record is not None else ()
        chips = ", ".join(sorted({kernel.target for kernel in compiled}))
        of_chips = f" ({display.escape(chips)})" if chips else ""
        if len(names) == 1:
            (name,) = names
            called = {k.name: k.demangled or k.name for k in compiled}.get(name, name)
            return f"{_short(called)}{of_chips}: "
        if not compiled:
            return ""
        return f"worst of {display.plural(len(compiled), 'kernel')}{of_chips}: "

    def _has_column(self, estimate: Estimate) -> bool:
        """Return whether the table's columns show a value already."""
        time = self.estimate("time")
        if time is None and estimate.metric == self.key.name:
            return True
        return estimate.metric in _IN_COLUMNS or (
            time is not None
            and estimate.metric in _ALIASES
            and estimate.value == time.value
        )


def _change(verdicts: Iterable[Verdict]) -> str:
    """Return the change that counts most; "" where there is none."""
    changed = [verdict for verdict in verdicts if verdict.change is not None]
    if not changed:
        return ""
    return words.change(worst(sorted(changed, key=lambda v: v.metric != "time")))


def _is_of_others(change: Change) -> bool:
    """
    Return whether further processes have a say in the current value of a change.

    What one process measured stands: the value of its change is that without what its core
    was faster by, which nothing measured and no limit was held against.
    """
    return change.fresh or change.run_count > 1


def judged_value(first: Estimate, verdicts: Iterable[Verdict]) -> float | None:
    """
    Return the value that was judged in place of a first one; None: nothing was.

    Args:
        first: What the suite measured.

        verdicts: Those of its measurement.
    """
    same_metric = [
        verdict
        for verdict in verdicts
        if verdict.metric == first.metric
        and verdict.estimate is not None
        and (verdict.estimate.source, verdict.estimate.unit, verdict.estimate.kernel)
        == (first.source, first.unit, first.kernel)
    ]
    changes = (v.change for v in same_metric if v.change is not None)
    changed = (change.current for change in changes if _is_of_others(change))
    limited = (v.estimate.value for v in same_metric if v.confirmations and v.estimate)
    return next(itertools.chain(changed, limited), None)


def rows(run: Run) -> tuple[Row, ...]:
    """
    Return one row for each measurement: as measured, then what was only judged.

    A test that failed before it measured anything has a row, too.
    """
    records = {
        record.key: record
        for record in reversed(run.records)  # the first of a key is kept
        if record.role is Role.MAIN
    }
    order = [record.key for record in run.records if record.role is Role.MAIN]
    verdicts: dict[RecordKey, list[Verdict]] = {}
    for verdict in run.verdicts:
        verdicts.setdefault(verdict.key, []).append(verdict)
    expected = expected_failures(run)
    ended = set(run.xfailed) - expected  # in their bodies
    broken, skipped = set(run.broken), set(run.skipped) - ended
    asserted = set(run.asserted)
    missed = {one.key: words.missed_assert(one.comparison) for one in run.missed}
    groups = {test.test_id: test.group or "" for test in run.tests}
    keys = dict.fromkeys([*order, *verdicts])
    has_row = {key.test_id for key in keys}
    unseen = [RecordKey(test_id=t) for t in run.broken if t not in has_row]
    return tuple(
        Row(
            key=key,
            record=records.get(key),
            verdicts=_speaking_first(judged),
            xfailed=any(v.outcome in FAILING for v in judged)
            if key.test_id in expected
            else key.test_id in ended and not judged,
            asserted=key.test_id in asserted,
            missed=missed.get(key, ""),
            broken=key.test_id in broken and not judged,
            skipped=key.test_id in skipped and not judged,
            group=groups.get(key.test_id, ""),
        )
        for key in (*keys, *unseen)
        for judged in (verdicts.get(key, ()),)
    )


def _speaking_first(verdicts: Sequence[Verdict]) -> tuple[Verdict, ...]:
    """Return the verdicts of a row: its value and its change are those of the first."""
    if not verdicts:
        return ()
    first = speaking([v for v in verdicts if v.decides] or verdicts)
    return (first, *(verdict for verdict in verdicts if verdict is not first))


def by_group(table: Iterable[Row]) -> list[tuple[str, list[Row]]]:
    """
    Return rows by the heading of their group, as the first of each stands.

    Args:
        table: The rows; where none has a group, the only heading is empty.
    """
    groups: dict[str, list[Row]] = {}
    for row in table:
        groups.setdefault(row.group, []).append(row)
    if not any(groups):
        return [*groups.items()]
    return [(group or _NO_GROUP, members) for group, members in groups.items()]


def sample_statistics(samples: Sequence[float]) -> dict[str, float | str | list[float]]:
    """
    Return what pytest-benchmark says of samples, by its names.

    Args:
        samples: Times [s], >= 1 of them.
    """
    count, total = len(samples), math.fsum(samples)
    mean = total / count
    variance = math.fsum((sample - mean) ** 2 for sample in samples) / max(1, count - 1)
    stddev = math.sqrt(variance)
    q1, median, q3 = (quantile(samples, share) for share in (0.25, 0.5, 0.75))
    reach = _FENCES_IQR * (q3 - q1)
    within = [sample for sample in samples if q1 - reach <= sample <= q3 + reach]
    far_count = sum(abs(sample - mean) > stddev for sample in samples)
    outlier_count = count - len(within)
    return {
        "min": min(samples),
        "max": max(samples),
        "mean": mean,
        "stddev": stddev,
        "rounds": count,
        "median": median,
        "iqr": q3 - q1,
        "q1": q1,
        "q3": q3,
        "iqr_outliers": outlier_count,
        "stddev_outliers": far_count,
        "outliers": f"{far_count};{outlier_count}",
        "ld15iqr": min(within),
        "hd15iqr": max(within),
        "ops": count / total if total else 0.0,
        "total": total,
        "data": [*samples],
    }


def ordered(table: Sequence[Row], sort: str | None) -> list[Row]:
    """
    Return rows in the order that was asked for; those without a value stand last.

    Args:
        table: The rows.

        sort: A name of `config.SORTS`; None: as they are.
    """
    if sort is None:
        return [*table]
    if sort in {"name", "fullname"}:
        called = names(row.key for row in table) if sort == "name" else {}
        return sorted(table, key=lambda row: called.get(row.key, str(row.key)))
    places = {row.key: _place(row, sort) for row in table}
    return sorted(table, key=lambda row: (places[row.key] is None, places[row.key]))


def _place(row: Row, sort: str) -> float | None:
    """Return what a row is sorted by; None: it has no such value."""
    if sort == "verdict":
        if row.outcome is None:
            return -1 if row.is_loud else None
        return PRECEDENCE.index(row.outcome)
    if sort == "change":
        effects = (v.change.effect for v in row.verdicts if v.change is not None)
        largest = max((abs(e) for e in effects if e is not None), default=None)
        return None if largest is None else -largest
    if sort == "time":
        return row.judged_time
    value = row.statistics().get(sort)
    return value if isinstance(value, (int, float)) else None


class View(Frozen, frozen=True, kw_only=True):
    """
    How a person wants to see the table.

    Attributes:
        columns: Names of `config.COLUMNS`, in their order.

        sort: What its rows are sorted by; None: the order of the tests.

        time_unit: The unit of its times; None: that which suits each.
    """

    columns: tuple[str, ...] = USUAL_COLUMNS
    sort: str | None = None
    time_unit: str | None = None

    def time(self, number_s: float) -> str:
        """Return a time as the table shows it."""
        return display.time_in(number_s, self.time_unit)


def columns(
    shown: Sequence[Row], called: Mapping[RecordKey, str], view: View | None = None
) -> tuple[Column, ...]:
    """
    Return the table of some rows.

    Args:
        shown: The rows.

        called: What each measurement is called.

        view: Which columns it has; None: the usual ones.
    """
    view = view or View()
    cells = tuple(called[row.key] for row in shown)
    test = Column(head="test", cells=cells, shrinks=True)
    return (test, *(_column(name, shown, view) for name in view.columns))


# of the usual columns: what stands above them, and for no value; the rank; and the
# attribute of a row that fills them, "" where it takes more
_HEADS: Mapping[str, tuple[str, str, int, str]] = {
    "time": ("time", "-", 0, ""),
    "spread": ("±", "", 0, "spread"),
    "baseline": ("vs baseline", "-", 0, ""),
    "revision": ("vs revision", "-", 0, "revision_change"),
    "verdict": ("verdict", "-", 0, "label"),
    "roofline": ("roofline", "n/a", 1, "roofline"),
    "grade": ("grade", "-", 3, "grade"),
    "bound": ("bound", "-", 2, "bound"),
}


def _column(name: str, shown: Sequence[Row], view: View) -> Column:
    """Return one column."""
    head, blank, rank, attribute = _HEADS.get(name, (name, "-", 0, ""))
    if attribute:
        cells = tuple(getattr(row, attribute) for row in shown)
    elif name == "baseline":
        cells = _changes(shown)
    elif name == "time":
        head = "value" if any(row.recorded for row in shown) else head
        cells = tuple(_value_text(row, view) for row in shown)
    else:
        cells = tuple(_statistic(row, name, view) for row in shown)
    return Column(head=head, cells=cells, blank=blank, rank=rank)


def _value_text(row: Row, view: View) -> str:
    """Return the time of a row, or the number it is named after; "": it has neither."""
    number_s, recorded = row.judged_time, row.recorded
    if recorded is not None:
        return display.value(recorded.value, recorded.unit)
    return "" if number_s is None else view.time(number_s)


def _statistic(row: Row, name: str, view: View) -> str:
    """Return what pytest-benchmark calls so; "" where nothing was sampled."""
    value = row.statistics().get(name)
    if value is None or isinstance(value, list):
        return ""
    if isinstance(value, str) or name in {"rounds", "iterations"}:
        return str(value)
    return display.value(value, "1/s") if name == "ops" else view.time(value)


def _changes(shown: Sequence[Row]) -> tuple[str, ...]:
    """Return the changes; `limit only` beside them for what no baseline judged."""
    changes = tuple(row.change for row in shown)
    if not any(changes):
        return changes
    return tuple(
        text or ("limit only" if row.is_limited else "")
        for text, row in zip(changes, shown, strict=True)
    )


def utilization_lines(windows: Sequence[UtilizationWindow]) -> list[str]:
    """
    Return a line for each GPU: its score, and where its time went, longest first.

    Args:
        windows: What each GPU did; the GPU is named where there are several.

    Example:
        >>> utilization_lines(
        ...     [
        ...         UtilizationWindow(
        ...             gpu_index=0,
        ...             gpu_uuid="",
        ...             duration_s=2.0,
        ...             reading_count=20,
        ...             class_s={"compute-heavy": 1.5, "idle": 0.5},
        ...             incomplete_s=0.0,
        ...             unobserved_s=0.0,
        ...             real_util=48.2,
        ...             real_util_p50=61.0,
        ...             real_util_p95=64.0,
        ...         )
        ...     ]
        ... )
        ['utilization 48 of 100 (p50 61, p95 64): 75 % compute-heavy, 25 % idle']
    """
    numbered = len(windows) > 1
    return [_gpu_line(window, numbered=numbered) for window in windows]


def names(keys: Iterable[RecordKey]) -> dict[RecordKey, str]:
    """
    Return the name of each measurement: without its file, unless two would be equal.

    Args:
        keys: All of one report.
    """
    distinct = tuple(dict.fromkeys(keys))
    brief = {key: _brief(key) for key in distinct}
    counts = Counter(brief.values())
    return {
        key: brief[key] if counts[brief[key]] == 1 else display.escape(str(key))
        for key in distinct
    }


def _brief(key: RecordKey) -> str:
    """Return a test's name without its file, the measurement's name behind it."""
    _, _, name = key.test_id.partition("::")
    return display.escape(f"{name or key.test_id} {key.name}".strip())


def _named(estimate: Estimate) -> str:
    """Return a value behind its metric's name."""
    text = display.value(estimate.value, estimate.unit)
    noun = _short(words.noun(estimate.metric))
    return f"{noun} {text} {display.spread(estimate)}".strip()


def _as_judged(first: Estimate, verdicts: Iterable[Verdict]) -> Estimate:
    """Return a value as it was judged: of fresh processes it has no interval."""
    value = judged_value(first, verdicts)
    if value is None or math.isclose(value, first.value):
        return first
    return replace(first, value=value, low=None, high=None)


def _short(name: str) -> str:
    """Return a user's or a compiler's name, shortened to fit a line."""
    return shorten(display.escape(name), _NAME_WIDTH)


def _roof(work: Work | None) -> str:
    """Return the name of the roof of declared work."""
    if work is None:
        return ""
    return work.dtype or "" if work.flop is not None else "dram"


def _gpu_line(window: UtilizationWindow, *, numbered: bool) -> str:
    """Return what one GPU did."""
    head = f"GPU {window.gpu_index} utilization" if numbered else "utilization"
    if window.reading_count == 0 or window.duration_s <= 0:
        return f"{head} n/a: no reading during the test"
    parts = ", ".join(_parts(window))
    return f"{head} {_score(window)}: {parts}"


def _score(window: UtilizationWindow) -> str:
    """Return the score with its spread."""
    if window.real_util is None:
        return "n/a"
    ends = {"p50": window.real_util_p50, "p95": window.real_util_p95}
    percentiles = [f"{name} {end:.0f}" for name, end in ends.items() if end is not None]
    spread = f" ({', '.join(percentiles)})" if percentiles else ""
    return f"{window.real_util:.0f} of 100{spread}"


def _parts(window: UtilizationWindow) -> list[str]:
    """Return the shares of time: the longest classes, the rest, the unobserved."""
    ordered = sorted(window.class_s.items(), key=lambda item: (-item[1], item[0]))
    shown, rest = ordered[:_SHOWN_CLASSES], ordered[_SHOWN_CLASSES:]
    seconds = [(display.escape(label), part_s) for label, part_s in shown]
    seconds.append((f"{len(rest)} other classes", sum(part_s for _, part_s in rest)))
    seconds.append(("without SM, tensor or DRAM activity", window.incomplete_s))
    seconds.append(("not observed", window.unobserved_s))
    return [
        f"{display.whole_percent(part_s / window.duration_s)} {label}"
        for label, part_s in seconds
        if part_s > 0
    ]


def table_lines(
    table: Sequence[Row],
    *,
    width: int,
    verbose: bool = False,
    view: View | None = None,
) -> Iterator[Line]:
    """
    Yield the table as text, group by group: below each row what has no column.

    Args:
        table: The rows.

        width: Characters of a line; test names are shortened, then columns dropped.

        verbose: Whether a long table shows what passed, and rows show all metrics.

        view: Which columns it has, and how it is sorted; None: as usual.
    """
    called = names(row.key for row in table)
    shown = [row for row in table if row.needs_attention]
    if verbose or len(table) <= _MANY_ROWS:
        shown = list(table)
    groups = by_group(ordered(shown, None if view is None else view.sort))
    shown = [row for _, members in groups for row in members]
    heads, *lines = text_table(columns(shown, called, view), width=width) or ("",)
    if shown:
        yield Line(heads, Style.FAINT)
    texts = iter(lines)
    for group, members in groups:
        if group:
            yield Line(f"{display.escape(group)}:", Style.TITLE)
        for row in members:
            yield Line(next(texts), _row_style(row))
            yield from _below(row, width, verbose=verbose)
    if len(shown) < len(table):
        hidden = display.plural(len(table) - len(shown), "row")
        yield Line(f"{hidden} passed or unchanged: show with -v", Style.FAINT)


def _row_style(row: Row) -> Style:
    """Return what a row means to its reader."""
    outcome = row.outcome
    if outcome is None:
        return Style.BAD if row.is_loud else Style.PLAIN
    return Style.PLAIN if row.xfailed else STYLES[outcome]


def _below(row: Row, width: int, *, verbose: bool) -> Iterator[Line]:
    """Yield what a row's columns have no room for."""
    if verbose or row.estimate("time") is None:
        measured = ", ".join(row.measured())
        yield from wrapped(measured, width=width, depth=1)
    for text in row.doubts():
        yield from wrapped(text, width=width, depth=1, style=Style.DOUBT)
    if row.utilization:
        for text in utilization_lines(row.utilization):
            yield from wrapped(text, width=width, depth=1, style=Style.FAINT)
    for text in row.notes() if verbose else ():
        yield from wrapped(f"note: {text}", width=width, depth=1, style=Style.FAINT)
