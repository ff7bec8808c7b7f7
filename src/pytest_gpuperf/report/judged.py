"""How much of a run was judged, and why not the rest, in one line; PYTEST_DONT_REWRITE."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from pytest_gpuperf.model.run import Run
from pytest_gpuperf.model.verdict import Outcome, Verdict
from pytest_gpuperf.report import display, words
from pytest_gpuperf.report.lines import STYLES, Line, Style
from pytest_gpuperf.report.tally import Tally, tally, worst

__all__ = ["XFAILED", "judged_line"]

XFAILED = "xfailed"  # pytest's word for a failure that is expected
_SHOWN_REASONS = 2  # of one outcome in the last line; more are counted
_JUDGED_ORDER = ("failed", "regressed", "improved", "unchanged", "passed")
_OPEN_ORDER = ("inconclusive", "unmeasured", "incomparable", "new")


def judged_line(run: Run) -> Line:
    """Return the last line: how many tests were judged, and why the others were not."""
    counted = tally(run)
    decided = [_counted(counted, name) for name in _JUDGED_ORDER]
    if counted.xfailed_count:
        decided.append(f"{counted.xfailed_count} {XFAILED}")
    undecided = [_counted(counted, name) for name in _OPEN_ORDER]
    undecided = _unlimited(counted, run.header.options, undecided)
    if counted.missing_count:
        undecided.append(f"{counted.missing_count} never reported")
    if run.header.completeness.interrupted:
        undecided.append(display.escape(run.header.completeness.interrupted))
    parts = (", ".join(filter(None, some)) for some in (decided, undecided))
    text = "; ".join(filter(None, parts))
    head = f"judged {counted.judged_count} of {counted.expected_count}"
    style = Style.BAD if not counted.judged_count else _gravest(counted)
    return Line(f"{head}: {text}" if text else head, style)


def _unlimited(
    counted: Tally, options: Mapping[str, str], undecided: list[str]
) -> list[str]:
    """Return what was not decided, with the tests that nothing could decide."""
    count = counted.unlimited_count
    if (
        "gpuperf_disable" in options
    ):  # whatever a test says of it: one reason, said once
        count += len(counted.of(Outcome.UNMEASURED))
        undecided = [_counted(counted, n) for n in _OPEN_ORDER if n != "unmeasured"]
        why = "disabled"
    elif options.get("gpuperf_max_regression", "").strip() == "off":
        why = "only shown"
    else:
        why = "without marker limit or baseline"
    return [*undecided, f"{count} {why}"] if count else undecided


def _gravest(counted: Tally) -> Style:
    """Return the style of the worst verdict."""
    if not counted.verdicts:
        return Style.DOUBT
    return STYLES[worst(counted.verdicts.values()).outcome]


def _counted(counted: Tally, name: str) -> str:
    """Return how many tests have an outcome, and what the reader should know of it."""
    verdicts = counted.of(Outcome(name))
    if not verdicts:
        return ""
    if name == "unchanged":
        aside = _blind(verdicts)
    else:
        aside = _why(verdicts) if name in _OPEN_ORDER[:3] else ""
    return f"{len(verdicts)} {name}{f' ({aside})' if aside else ''}"


def _blind(verdicts: Sequence[Verdict]) -> str:
    """Return how many unchanged tests could not have seen a change of the limit's size."""
    limits = [
        verdict.threshold
        for verdict in verdicts
        if verdict.change is not None
        and verdict.threshold is not None
        and (verdict.change.detectable_effect or 0.0) > verdict.threshold
    ]
    if not limits:
        return ""
    same = len(set(limits)) == 1
    below = display.exactly(limits[0], "fraction") if same else "their limits"
    return f"{len(limits)} blind below {below}"


def _why(verdicts: Sequence[Verdict]) -> str:
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
        texts.append(f"{len(verdicts) - sum(count for _, count in most)} others")
    return ", ".join(texts)
