"""What each kind of report says of a measurement."""

from __future__ import annotations

import itertools
import math
import os
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum

from pytest_gpuperf.compute.stats import quantile
from pytest_gpuperf.judge.tally import expected_failures, speaking, worst
from pytest_gpuperf.model.frozen import Frozen, replace
from pytest_gpuperf.model.record import Record, RecordKey, Role
from pytest_gpuperf.model.roofline import Attainment
from pytest_gpuperf.model.run import Run
from pytest_gpuperf.model.sample import Estimate
from pytest_gpuperf.model.telemetry import UtilizationWindow
from pytest_gpuperf.model.verdict import FAILING, JUDGED, Outcome, Verdict
from pytest_gpuperf.model.work import Work
from pytest_gpuperf.report import display, words
from pytest_gpuperf.report.lines import shorten

__all__ = [
    "XFAILED",
    "Row",
    "RowEnding",
    "judged_value",
    "names",
    "rows",
    "sample_statistics",
    "short_id",
    "short_names",
]

XFAILED = "xfailed"  # pytest's word for a failure that is expected
_IN_COLUMNS = frozenset({"time", "roofline.fraction"})  # have columns
_ALIASES = frozenset({"time.p50", "time.wall"})  # often the very value of time
_BESIDE = (Outcome.INCONCLUSIVE, Outcome.INCOMPARABLE, Outcome.NEW)
_QUIET = frozenset({Outcome.UNCHANGED, Outcome.PASSED, None})
_FENCES_IQR = 1.5  # Tukey's: what lies farther from the quartiles is an outlier
_LONGEST_NAME = 120  # letters of a test's: two lines of a terminal
_BEFORE = 4  # letters shown before the first that differs
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
        return None if self._speaking is None else self._speaking.outcome

    @property
    def _speaking(self) -> Verdict | None:
        """The verdict that has this outcome."""
        deciding = [verdict for verdict in self.verdicts if verdict.decides]
        return speaking(deciding) if deciding else None

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
        said = self._speaking
        if building := next(filter(None, map(words.building, self.verdicts)), ""):
            return building
        if said is not None:
            label = words.label(said.outcome, said.reason)
            return label + self._open_beside(said.outcome)
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
    def is_adjusted(self) -> bool:
        """Whether one of these two is marked: it is without the machine's part."""
        return any(t.endswith(words.MARK) for t in (self.change, self.revision_change))

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
            v.change.measured
            for v in self.verdicts
            if v.metric == "time" and v.change is not None and v.change.is_of_others
        )
        first = self.estimate("time")
        limited = None if first is None else judged_value(first, self.verdicts)
        return next(changed, limited)

    def measured(self) -> tuple[str, ...]:
        """Return the metrics without a column, as `registers 40`; kernels named."""
        estimates = self.record.estimates if self.record is not None else ()
        best = {e.metric: e for e in reversed(estimates) if e.kernel is None}
        whole = [e for e in best.values() if not self._has_column(e)]
        whole.sort(key=estimates.index)
        parts = [e for e in estimates if e.kernel is not None]
        kernels = {e.kernel for e in estimates if e.kernel is not None}
        first = self._first_time()
        if len(kernels) != 1:  # of each of several, the panel shows them
            texts = [_named(_as_judged(e, self.verdicts)) for e in whole]
            return (*first, *_headed(self._kernels(kernels), texts))
        same = {(e.metric, e.value) for e in parts}
        own = [e for e in whole if (e.metric, e.value) in same] or parts
        others = [_named(_as_judged(e, self.verdicts)) for e in whole if e not in own]
        return (*first, *others, *_headed(self._kernels(kernels), map(_named, own)))

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


def _headed(whose: str, texts: Iterable[str]) -> tuple[str, ...]:
    """Return values, the first one behind the name of what they are of."""
    first, *others = (*texts, "")
    return (f"{whose}{first}", *others[:-1]) if first else ()


def _change(verdicts: Iterable[Verdict]) -> str:
    """Return the change that counts most; "" where there is none."""
    changed = [verdict for verdict in verdicts if verdict.change is not None]
    if not changed:
        return ""
    return words.change(worst(sorted(changed, key=lambda v: v.metric != "time")))


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
    changed = (change.measured for change in changes if change.is_of_others)
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


def names(keys: Iterable[RecordKey]) -> dict[RecordKey, str]:
    """
    Return the name of each measurement: without its file, unless two would be equal.

    Args:
        keys: All of one report.
    """
    distinct = tuple(dict.fromkeys(keys))
    brief = {key: _brief(key) for key in distinct}
    counts = Counter(brief.values())
    return short_names(
        {
            key: brief[key] if counts[brief[key]] == 1 else display.escape(str(key))
            for key in distinct
        }
    )


def short_names(whole: Mapping[RecordKey, str]) -> dict[RecordKey, str]:
    """
    Return names, those that are too long to read without their middle.

    Of names whose ends are the same, the first letters that differ are shown, too.

    Args:
        whole: The names of one report.
    """
    alike: dict[str, list[RecordKey]] = {}
    for key, name in whole.items():
        alike.setdefault(shorten(name, _LONGEST_NAME), []).append(key)
    short = {}
    for text, keys in alike.items():
        several = {whole[key] for key in keys}
        same = os.path.commonprefix([*several])  # noqa: RUF071 - of letters
        start = len(same) if len(several) > 1 else None
        for key in keys:
            short[key] = text if start is None else _with_middle(whole[key], start)
    return short


def short_id(test_id: str) -> str:
    """Return the id of a test in a sentence, or a group's heading, safe to print."""
    return shorten(display.escape(test_id), _LONGEST_NAME)


def _with_middle(name: str, start: int) -> str:
    """Return both ends of a name, and what stands from some letter on."""
    third = _LONGEST_NAME // 3
    middle = name[start - _BEFORE : start - _BEFORE + third - 2]
    return f"{name[: third - 1]}…{middle}…{name[-third:]}"


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
