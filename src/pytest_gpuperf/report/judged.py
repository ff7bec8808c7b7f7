"""How many tests were judged, and why the others were not: the last line of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from pytest_gpuperf.judge.tally import Complaint, Tally, tally, worst
from pytest_gpuperf.model.run import Run
from pytest_gpuperf.model.verdict import FAILING, JUDGED, Outcome, Verdict
from pytest_gpuperf.report import display, words
from pytest_gpuperf.report.lines import STYLES, Line, Style
from pytest_gpuperf.report.rows import XFAILED

__all__ = ["complaint", "held_tests", "incompleteness", "judged_line"]

_SHOWN_REASONS = 2  # of one outcome in the last line; more are counted
_JUDGED_ORDER = ("failed", "regressed", "improved", "unchanged", "passed")
_OPEN_ORDER = ("inconclusive", "unmeasured", "incomparable", "new")


def judged_line(run: Run, counted: Tally | None = None) -> Line:
    """Return the last line: how many tests were judged, and why the others were not."""
    counted = counted or tally(run)
    interrupted = display.escape(run.header.completeness.interrupted)
    parts = (_decided(counted), (*_undecided(counted, run.header.options), interrupted))
    text = "; ".join(filter(None, (", ".join(filter(None, part)) for part in parts)))
    head = f"judged {counted.judged_count} of {counted.expected_count}"
    return Line(f"{head}: {text}" if text else head, _style(counted))


def incompleteness(run: Run) -> str:
    """Return why a run is not complete, and how many tests it holds; "": it is."""
    completeness = run.header.completeness
    if completeness.complete:
        return ""
    missing = display.plural(len(completeness.missing), "test")
    why = completeness.interrupted or f"{missing} without a result"
    return f"not complete: {why}; {held_tests(run)}"


def held_tests(run: Run) -> str:
    """Return how many tests a run holds, of those that were selected."""
    count = len(run.test_ids)
    selected = max(count, run.header.completeness.expected_count)
    if not count:
        return "it holds no test"
    return f"it holds {count} of {display.plural(selected, 'test')}"


def complaint(code: Complaint, counted: Tally) -> str:
    """Return why a run fails as a whole, in words."""
    if code is Complaint.NOTHING_AGAINST:
        return "no test was compared with the revision: see the reasons above"
    if code is Complaint.NOTHING_COMPARED:
        return (
            "a baseline was named, but no test was compared with it: see the reasons "
            "above, or store sessions with --gpuperf-update=new"
        )
    if code is Complaint.TOO_FEW_JUDGED:
        count = counted.expected_count + counted.absent_count
        return (
            f"judged {counted.judged_count} of {count} tests; "
            "--gpuperf-min-judged requires more"
        )
    tests = display.plural(counted.missing_count, "test")
    return f"{tests} without a result (--gpuperf-strict)"


def _decided(counted: Tally) -> list[str]:
    """Return how many tests were judged in which way; "" for none of a way."""
    return [
        *(_counted(counted, name) for name in _JUDGED_ORDER),
        _by_own(counted.own_failed_count, "failed"),
        _by_own(counted.asserted_count, "passed"),
        _count_of(counted.xfailed_count, XFAILED),
    ]


def _undecided(counted: Tally, options: Mapping[str, str]) -> list[str]:
    """Return how many tests were not judged, and why; "" for none of a reason."""
    undecided = [_counted(counted, name) for name in _OPEN_ORDER]
    return [
        *_unlimited(counted, options, undecided),
        _beside(counted),
        _count_of(counted.broken_count, "failed before being judged"),
        _count_of(counted.skipped_count, "skipped or xfailed before being judged"),
        _count_of(
            counted.ungated_count, "with no gated metric: name it in max_regression"
        ),
        _count_of(counted.one_sided_count, "in the working tree alone"),
        _count_of(counted.missing_count, "without a result"),
        _count_of(counted.empty_count, "without a measurement"),
        _count_of(counted.absent_count, "of the baseline did not run"),
    ]


def _by_own(count: int, verb: str) -> str:
    """Return how many tests an assert of their own decided; "" for none."""
    own = "its own assert" if count == 1 else "their own asserts"
    return _count_of(count, f"{verb} {own}")


def _count_of(count: int, tests: str) -> str:
    """Return a count with what it is of; "" for none."""
    return f"{count} {tests}" if count else ""


def _unlimited(
    counted: Tally, options: Mapping[str, str], undecided: list[str]
) -> list[str]:
    """Return the undecided tests, those without limit and baseline included."""
    count = counted.unlimited_count
    if "gpuperf_disable" in options:  # one reason for all
        count += len(counted.of(Outcome.UNMEASURED))
        undecided = [_counted(counted, n) for n in _OPEN_ORDER if n != "unmeasured"]
        reason = "disabled"
    elif options.get("gpuperf_max_regression", "").strip() == "off":
        reason = "without a limit (--gpuperf-max-regression=off)"
    elif "gpuperf_against" in options:
        reason = "not compared with the revision"
    else:
        reason = "without marker limit or baseline"
    return [*undecided, f"{count} {reason}"] if count else undecided


def _style(counted: Tally) -> Style:
    """Return the style of the worst verdict; bad: a gate was asked for and judged nothing."""
    outcomes = {verdict.outcome for verdict in counted.verdicts.values()}
    if outcomes <= {Outcome.NEW}:  # nothing is gated yet
        return Style.DOUBT
    if counted.own_failed_count or not counted.judged_count:
        return Style.BAD
    gravest = worst(counted.verdicts.values()).outcome
    good = gravest in JUDGED and gravest not in FAILING
    return STYLES[Outcome.NEW if good and counted.of(Outcome.NEW) else gravest]


def _beside(counted: Tally) -> str:
    """Return which judged tests have a second verdict that is open, and why."""
    parts = [
        _outcome_count(verdicts, name)
        for name in _OPEN_ORDER
        if (verdicts := [v for v in counted.open_beside.values() if v.outcome == name])
    ]
    return f"also {', '.join(parts)} in judged tests" if parts else ""


def _counted(counted: Tally, name: str) -> str:
    """Return the number of tests with an outcome, and why."""
    verdicts = counted.of(Outcome(name))
    return _outcome_count(verdicts, name) if verdicts else ""


def _outcome_count(verdicts: Sequence[Verdict], name: str) -> str:
    """Return how many verdicts of an outcome there are, and what to know of them."""
    if name == "unchanged":
        aside = _blind(verdicts)
    else:
        aside = _reasons_of(verdicts) if name in _OPEN_ORDER[:3] else ""
    return f"{len(verdicts)} {name}{f' ({aside})' if aside else ''}"


def _blind(verdicts: Sequence[Verdict]) -> str:
    """Return how many unchanged tests could not have seen a change as large as the limit."""
    limits = [
        verdict.threshold
        for verdict in verdicts
        if verdict.change is not None
        and verdict.threshold is not None
        and verdict.change.blind
    ]
    if not limits:
        return ""
    same = len(set(limits)) == 1
    size = display.exactly(limits[0], "fraction") if same else "their limits"
    return f"{len(limits)} could not have seen {size}"


def _reasons_of(verdicts: Sequence[Verdict]) -> str:
    """Return why tests were not judged, the most frequent reason first."""
    reasons = Counter(
        display.escape(verdict.detail[0])
        if verdict.outcome is Outcome.UNMEASURED and verdict.detail
        else words.short(verdict.reason)
        for verdict in verdicts
    )
    if len(reasons) == 1:
        return next(iter(reasons))
    most = reasons.most_common(_SHOWN_REASONS)
    texts = [f"{count} {reason}" for reason, count in most]
    if len(reasons) > _SHOWN_REASONS:
        left = len(verdicts) - sum(count for _, count in most)
        texts.append(f"{left} other{'s' if left > 1 else ''}")
    return ", ".join(texts)
