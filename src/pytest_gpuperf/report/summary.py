"""The summary of a run: the table, and the line with the number of judged tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from pytest_gpuperf.config import USUAL_COLUMNS
from pytest_gpuperf.judge.tally import PRECEDENCE, Complaint, Tally, tally, worst
from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.record import RecordKey
from pytest_gpuperf.model.run import Completeness, Run
from pytest_gpuperf.model.verdict import FAILING, JUDGED, Outcome, Verdict
from pytest_gpuperf.report import display, words
from pytest_gpuperf.report.escape import escape
from pytest_gpuperf.report.lines import (
    STYLES,
    Column,
    Line,
    Style,
    column,
    text_table,
    wrapped,
)
from pytest_gpuperf.report.rows import XFAILED, Row, names, short_id

# A longer table hides the important rows.
_MANY_ROWS = 40
# Heading of rows without a group, if other rows have groups.
_NO_GROUP = "no group"
# Reasons shown for an outcome in the last line. The rest is counted.
_SHOWN_REASONS = 2
_JUDGED_ORDER = ("failed", "regressed", "improved", "unchanged", "passed")
_OPEN_ORDER: tuple[str, ...] = (
    "blind",
    "inconclusive",
    "unmeasured",
    "incomparable",
    "new",
)
_REASONED = frozenset(
    {"inconclusive", "unmeasured", "incomparable"}
)  # With several possible reasons.


class View(Frozen, frozen=True, kw_only=True):
    """
    A user's view of the table.

    Attributes:
        columns: Names of `config.COLUMNS`, in their order.

        sort: The sort key of the rows, or None for the order of the tests.

        time_unit: The unit of times, or None to choose a suitable unit for each time.
    """

    columns: tuple[str, ...] = USUAL_COLUMNS
    sort: str | None = None
    time_unit: str | None = None

    def time(self, number_s: float) -> str:
        """Return a time in the unit of the table."""
        return display.time_in(number_s, self.time_unit)


def table_lines(
    table: Sequence[Row],
    *,
    called: Mapping[RecordKey, str] | None = None,
    width: int,
    verbose: bool = False,
    view: View | None = None,
) -> Iterator[Line]:
    """
    Yield the table as text, group by group. Values without a column follow below their row.

    Args:
        table: The rows.

        called: The display names of all rows, or None to find them.

        width: Characters of a line. Test names are shortened first, then columns dropped.

        verbose: Whether a long table shows passed tests, and rows show all metrics.

        view: The columns and the order of the rows, or None for the defaults.
    """
    called = called or names(row.key for row in table)
    shown = [row for row in table if row.needs_attention]
    if verbose or len(table) <= _MANY_ROWS:
        shown = list(table)
    groups = by_group(_ordered(shown, None if view is None else view.sort))
    shown = [row for _, members in groups for row in members]
    cells = columns(shown, called, view)
    heads, *lines = text_table(cells, width=width) or ("",)
    if shown:
        yield Line(heads, Style.FAINT)
    texts = iter(lines)
    for group, members in groups:
        if group:
            yield Line(f"{group}:", Style.TITLE)
        for row in members:
            style = Style.BAD if row.is_loud else Style.PLAIN
            if row.outcome is not None:
                style = Style.PLAIN if row.xfailed else STYLES[row.outcome]
            yield Line(next(texts), style)
            yield from _below(row, width, verbose=verbose)
    if len(shown) < len(table):
        hidden = display.plural(len(table) - len(shown), "row")
        yield Line(f"{hidden} passed, unchanged or blind: show with -v", Style.FAINT)
    if any(cell.endswith(words.MARK) for column in cells[1:] for cell in column.cells):
        yield from wrapped(words.ADJUSTED, width=width, style=Style.FAINT)


def _below(row: Row, width: int, *, verbose: bool) -> Iterator[Line]:
    if verbose or row.estimate("time") is None:
        measured = ", ".join(row.measured())
        yield from wrapped(measured, width=width, depth=1)
    for text in row.doubts():
        yield from wrapped(text, width=width, depth=1, style=Style.DOUBT)
    if row.utilization:
        for text in display.utilization_lines(row.utilization):
            yield from wrapped(text, width=width, depth=1, style=Style.FAINT)
    for text in row.notes() if verbose else ():
        yield from wrapped(f"note: {text}", width=width, depth=1, style=Style.FAINT)


def by_group(
    table: Iterable[Row], *, is_grouped: bool = False
) -> list[tuple[str, list[Row]]]:
    """
    Return rows by the heading of their group, in order of first appearance.

    Args:
        table: The rows. If no row has a group, the only heading is empty.

        is_grouped: Whether rows in other parts of the report have groups.
    """
    groups: dict[str, list[Row]] = {}
    for row in table:
        groups.setdefault(row.group, []).append(row)
    if not (is_grouped or any(groups)):
        return [*groups.items()]
    return [
        (short_id(group) or _NO_GROUP, members) for group, members in groups.items()
    ]


def _ordered(table: Sequence[Row], sort: str | None) -> list[Row]:
    """
    Return rows in the requested order, with rows without a value last.

    Args:
        table: The rows.

        sort: A name of `config.SORTS`, or None to keep the order.
    """
    if sort is None:
        return [*table]
    if sort in {"name", "fullname"}:
        called = names(row.key for row in table) if sort == "name" else {}
        return sorted(table, key=lambda row: called.get(row.key, str(row.key)))
    places: dict[RecordKey, float | None] = {}
    for row in table:
        place: float | None = None
        if sort == "verdict":
            if row.outcome is not None:
                place = PRECEDENCE.index(row.outcome)
            elif row.is_loud:
                place = -1
        elif sort == "change":
            effects = (v.change.effect for v in row.verdicts if v.change is not None)
            sizes = [abs(effect) for effect in effects if effect is not None]
            place = -max(sizes) if sizes else None
        elif sort == "time":
            place = row.judged_time
        else:
            value = row.statistics().get(sort)
            place = value if isinstance(value, (int, float)) else None
        places[row.key] = place
    return sorted(table, key=lambda row: (places[row.key] is None, places[row.key]))


# The default columns: heading, text for a missing value, rank, and the attribute of a
# row that fills the column, or "" if a function is needed.
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


def columns(
    shown: Sequence[Row], called: Mapping[RecordKey, str], view: View | None = None
) -> tuple[Column, ...]:
    """
    Return the columns of a table.

    Args:
        shown: The rows.

        called: The display name of each measurement.

        view: The columns to show, or None for the defaults.
    """
    view = view or View()
    cells = tuple(called[row.key] for row in shown)
    found = [Column(head="test", cells=cells, shrinks=True)]
    for name in view.columns:
        head, blank, rank, attribute = _HEADS.get(name, (name, "-", 0, ""))
        if attribute:
            cells = tuple(getattr(row, attribute) for row in shown)
        elif name == "baseline":
            cells = tuple(row.change for row in shown)
            if any(cells):
                cells = tuple(
                    text or ("limit only" if row.is_limited else "")
                    for text, row in zip(cells, shown, strict=True)
                )
        else:
            cells = tuple(_cell(row, name, view) for row in shown)
        if name == "time" and any(row.recorded for row in shown):
            head = "value"
        found.append(column(head, cells, blank=blank, rank=rank))
    return tuple(found)


def _cell(row: Row, name: str, view: View) -> str:
    """Return a row's time, recorded value or statistic of pytest-benchmark, or ""."""
    if name == "time":
        recorded, time_s = row.recorded, row.judged_time
        if recorded is not None:
            return display.value(recorded.value, recorded.unit)
        return "" if time_s is None else view.time(time_s)
    value = row.statistics().get(name)
    if value is None or isinstance(value, list):
        return ""
    if isinstance(value, str) or name in {"rounds", "iterations"}:
        return str(value)
    return display.value(value, "1/s") if name == "ops" else view.time(value)


def judged_line(
    run: Run, counted: Tally | None = None, *, of_files: bool = False
) -> Line:
    """
    Return the last line: the number of judged tests, and the reasons for the others.

    Args:
        run: The run, judged.

        counted: The tally of the run, or None to count it here.

        of_files: Whether the run was compared with files, for which no marker counts.
    """
    counted = counted or tally(run)
    interrupted = escape(run.header.completeness.interrupted)
    decided = [
        *(_counted(counted, name) for name in _JUDGED_ORDER),
        _by_own(counted.own_failed_count, "failed"),
        _by_own(counted.asserted_count, "passed"),
        _count_of(counted.xfailed_count, XFAILED),
    ]
    undecided = _undecided(counted, run.header.options, of_files=of_files)
    parts = (decided, (*undecided, interrupted))
    text = "; ".join(filter(None, (", ".join(filter(None, part)) for part in parts)))
    blind = counted.of(Outcome.BLIND)
    if blind and len(blind) == counted.expected_count:
        remedy = "--gpuperf-against=REV detects smaller ones"
        seen = "; ".join(filter(None, (_smallest_detectable(blind), remedy)))
        return Line(f"0 judged, {len(blind)} blind: {seen}", Style.DOUBT)
    head = f"judged {counted.judged_count} of {counted.expected_count}"
    return Line(f"{head}: {text}" if text else head, _style(counted))


def incompleteness(run: Run) -> str:
    """Return the reason for an incomplete run and the number of its tests, or "" if complete."""
    completeness = run.header.completeness
    if completeness.complete:
        return ""
    missing = display.plural(len(completeness.missing), "test")
    why = completeness.interrupted or f"{missing} without a result"
    return f"not complete: {why}; {held_tests(run)}"


def left_unmeasured(completeness: Completeness) -> str:
    """Return the tests that ran unmeasured because nothing changed, as a text, or ""."""
    if not completeness.unchanged:
        return ""
    count = display.plural(len(completeness.unchanged), "test")
    tests = display.listed(map(short_id, completeness.unchanged))
    since = display.commit(completeness.unchanged_since)
    return (
        f"{count} not measured, using no file of the repository changed since {since} "
        f"(data elsewhere are not seen): {tests}"
    )


def held_tests(run: Run) -> str:
    """Return the number of tests in a run, out of the selected tests."""
    count = len(run.test_ids)
    selected = max(count, run.header.completeness.expected_count)
    if not count:
        return "it holds no test"
    return f"it holds {count} of {display.plural(selected, 'test')}"


_COMPLAINTS = {
    Complaint.NOTHING_AGAINST: (
        "no test was decided against the revision: see the reasons above"
    ),
    Complaint.NOTHING_JUDGED: (
        "nothing was judged: the command line or GPUPERF_BASELINE names a baseline, and "
        "PYTEST_ADDOPTS or the ini file switches measuring off; drop gpuperf_disable "
        "there, or type --gpuperf-disable on the command line"
    ),
    Complaint.NOTHING_COMPARED: (
        "a baseline was named, but no test was compared with it: see the reasons above, or "
        "store sessions with --gpuperf-update=new"
    ),
}


def complaint(code: Complaint, counted: Tally, least: float = 0.0) -> str:
    """Return why a run fails as a whole. At least a share of its tests must be judged."""
    if code is Complaint.NOTHING_AGAINST and not counted.expected_count:
        return "no test was compared with the revision: none that measures has run"
    if code is Complaint.TOO_FEW_JUDGED:
        count = counted.meant_count
        # The comparison by which the run failed, so that rounding is the same.
        wanted = next(n for n in range(count + 1) if n / count >= least)
        return (
            f"judged {counted.judged_count} of {display.plural(count, 'test')}; "
            f"--gpuperf-min-judged={display.typed_percent(least)} requires {wanted}"
        )
    if code is Complaint.NOT_MEASURED:
        tests = display.plural(counted.due_count, "test")
        return (
            f"{tests} of the baseline not measured, which the newest session with the same "
            "options measured (--gpuperf-strict): run them, or drop them from the baseline"
        )
    if code is Complaint.NEVER_REPORTED:
        tests = display.plural(counted.missing_count, "test")
        return f"{tests} without a result (--gpuperf-strict)"
    return _COMPLAINTS[code]


def _undecided(
    counted: Tally, options: Mapping[str, str], *, of_files: bool
) -> list[str]:
    """Return counts of tests that were not judged, by reason. "" for a reason without tests."""
    ungated = "it is only shown" if of_files else "give one a limit in max_regression"
    shown, unlimited_count = _OPEN_ORDER, counted.unlimited_count
    if "gpuperf_disable" in options:
        # All tests share this reason.
        unlimited_count += len(counted.of(Outcome.UNMEASURED))
        shown = tuple(name for name in _OPEN_ORDER if name != "unmeasured")
        reason = "disabled"
    elif of_files:
        reason = "without a limit"
    elif options.get("gpuperf_max_regression", "").strip() == "off":
        reason = "without a limit (--gpuperf-max-regression=off)"
    elif "gpuperf_against" in options:
        reason = "not compared with the revision"
    elif "gpuperf_baseline" in options:
        # The store has the test; its marker has max_regression="off".
        reason = "without a limit"
    else:
        reason = "without a limit or a baseline"
    texts = []  # Undecided second verdicts.
    for name in _OPEN_ORDER:
        verdicts = [v for v in counted.open_beside.values() if v.outcome == name]
        texts += [_outcome_count(verdicts, name)] if verdicts else []
    return [
        *(_counted(counted, name) for name in shown),
        _count_of(unlimited_count, reason),
        f"also {', '.join(texts)} in judged tests" if texts else "",
        _count_of(counted.drifted_count, "drifted"),
        _count_of(counted.broken_count, "failed before being judged"),
        _count_of(counted.skipped_count, "skipped or xfailed before being judged"),
        _count_of(counted.ungated_count, f"with no gated metric: {ungated}"),
        _count_of(counted.one_sided_count, "in the working tree alone"),
        _count_of(counted.missing_count, "without a result"),
        _count_of(counted.empty_count, "without a measurement"),
        _count_of(counted.absent_count, "of the baseline did not run"),
        _count_of(counted.left_out_count, "of the baseline left out by a plugin"),
    ]


def _by_own(count: int, verb: str) -> str:
    own = "its own assert" if count == 1 else "their own asserts"
    return _count_of(count, f"{verb} {own}")


def _count_of(count: int, tests: str) -> str:
    return f"{count} {tests}" if count else ""


def _style(counted: Tally) -> Style:
    """
    Return the style of the worst verdict.

    Good if all tests were judged and none failed. Bad if a gate was requested and judged nothing.
    """
    outcomes = {verdict.outcome for verdict in counted.verdicts.values()}
    failed = counted.own_failed_count or outcomes & FAILING
    all_judged = 0 < counted.judged_count == counted.expected_count
    if all_judged and not failed and not counted.open_beside:
        return Style.GOOD
    # Nothing is gated yet.
    if outcomes <= {Outcome.NEW}:
        return Style.DOUBT
    compared = counted.judged_count or counted.of(Outcome.BLIND)
    if counted.own_failed_count or not compared:
        return Style.BAD
    gravest = worst(counted.verdicts.values()).outcome
    good = gravest in JUDGED and gravest not in FAILING
    return STYLES[Outcome.NEW if good and counted.of(Outcome.NEW) else gravest]


def _counted(counted: Tally, name: str) -> str:
    verdicts = counted.of(Outcome(name))
    return _outcome_count(verdicts, name) if verdicts else ""


def _outcome_count(verdicts: Sequence[Verdict], name: str) -> str:
    # Unconfirmed improvements are counted separately.
    if name == Outcome.IMPROVED:
        labels = Counter(words.label(v.outcome, v.reason) for v in verdicts)
        return ", ".join(f"{labels[text]} {text}" for text in sorted(labels))
    aside = ""
    if name == Outcome.BLIND:
        aside = _smallest_detectable(verdicts)
    elif name in _REASONED:
        reasons = Counter(
            escape(verdict.detail[0])
            if verdict.outcome is Outcome.UNMEASURED and verdict.detail
            else words.short(verdict.reason)
            for verdict in verdicts
        )
        most = reasons.most_common(_SHOWN_REASONS)
        texts = [f"{count} {reason}" for reason, count in most]
        if len(reasons) > _SHOWN_REASONS:
            left = len(verdicts) - sum(count for _, count in most)
            texts.append(f"{left} other{'s' if left > 1 else ''}")
        # A reason of all tests needs no count.
        aside = ", ".join(reasons if len(reasons) == 1 else texts)
    return f"{len(verdicts)} {name}{f' ({aside})' if aside else ''}"


def _smallest_detectable(verdicts: Iterable[Verdict]) -> str:
    """Return the smallest change that any of the tests can detect as text, or "" if unknown."""
    known = [
        verdict.change.detectable_effect
        for verdict in verdicts
        if verdict.change is not None and verdict.change.detectable_effect is not None
    ]
    if not known:
        return ""
    return f"smallest slowdown detectable here {display.least(min(known))}"
