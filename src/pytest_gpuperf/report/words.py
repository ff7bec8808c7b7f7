"""The words of a verdict in tables and lines, and the door to its sentences."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pytest_gpuperf.model.change import Change
from pytest_gpuperf.model.environment import TEST
from pytest_gpuperf.model.gap import Gap, GapCode
from pytest_gpuperf.model.verdict import (
    FAILING,
    Clue,
    Outcome,
    Reason,
    Verdict,
)
from pytest_gpuperf.report import display
from pytest_gpuperf.report.escape import escape

NO_HARDWARE = "the peak bandwidth or the bytes of a unit of work are not known"
GIVE_HARDWARE = (
    "pass hardware=Hardware(peak_bw_gb_s=…, bytes_per_token=…), or work=Work(bytes=…) "
    "of a step on a GPU whose peaks are known"
)

# Remedies of gaps found by judge, which knows no option of pytest.
_OF_GAPS: Mapping[GapCode, str] = MappingProxyType(
    {GapCode.NOT_SAMPLED: "use a GPU, and run pytest with --gpuperf-telemetry=10"}
)

# Printed behind a change that differs from the plain difference of the two values.
MARK = "*"

ADJUSTED = f"{MARK} corrected for CPU speed and machine drift"

# Less machine drift does not change a printed digit.
_DRIFT = 0.001

# Smaller corrections get no mark, because a mark on every row of a quiet run is useless.
_MARKED = 0.01

# From this factor on, percentages would be in the thousands and unreadable.
MANY_TIMES = 10.0

# Without a cause and evidence, these verdicts need no sentence, and they have no remedy.
PLAIN = frozenset(
    {
        (Outcome.PASSED, Reason.WITHIN_LIMIT),
        (Outcome.UNCHANGED, Reason.WITHIN_NOISE),
        (Outcome.UNCHANGED, Reason.EQUAL),
    }
)

# Names of metrics that would be equal or ambiguous without their suffix.
_NOUNS = {
    "dram.bytes": "dram traffic",
    "dram.fraction": "dram use",
    "occupancy.achieved": "achieved occupancy",
    "occupancy.theoretical": "theoretical occupancy",
}


def is_plain(verdict: Verdict) -> bool:
    """Return True if a verdict needs no sentence, which holds for nearly all verdicts."""
    said = verdict.cause or verdict.evidence or verdict.alone or verdict.against
    return not said and (verdict.outcome, verdict.reason) in PLAIN


def same_code(fraction: float) -> str:
    """Return the sentence about the difference measured between identical code."""
    return f"noise floor ±{display.change(fraction, signed=False)}"


def gap_remedy(gap: Gap) -> str:
    """Return the remedy in pytest for a missing value, or "" if unknown."""
    return gap.remedy or _OF_GAPS.get(gap.code, "")


def label(outcome: Outcome, reason: Reason | None = None) -> str:
    """
    Return an outcome as printed in tables: failing outcomes in capitals, doubts in parentheses.
    """
    if (outcome, reason) == (Outcome.IMPROVED, Reason.NOT_CONFIRMED):
        return f"{outcome.value} (not confirmed)"
    return outcome.value.upper() if outcome in FAILING else outcome.value


def building(verdict: Verdict) -> str:
    """Return the number of sessions stored for an unfinished baseline as text, or ""."""
    evidence = verdict.evidence
    if evidence is None or evidence.building is None:
        return ""
    stored, needed = evidence.building
    return f"{stored} of {needed} stored"


def missed_assert(text: str) -> str:
    """Return the sentence about a failed assert on measured values."""
    return f"its own assert failed: {escape(text)}"


def change(verdict: Verdict) -> str:
    """
    Return the change of a verdict for a table cell, as `+7.9 %`, or "" without a change.

    The metric is named unless it is the time, or the measurement has the same name. A change is
    marked with `*` if CPU speed or machine drift account for a percent or more, as `ADJUSTED`
    explains.
    """
    moved, limit = verdict.change, verdict.threshold
    if moved is None:
        return ""
    if moved.effect is not None:
        limits = () if limit is None else (limit, -limit)
        text = display.change(moved.effect, limits=limits)
    else:
        unit = verdict.estimate.unit if verdict.estimate is not None else ""
        now, was = display.pair(moved.measured, moved.reference, unit)
        text = f"{was} -> {now}"
    if taken_out(moved, _MARKED):
        text += MARK
    if verdict.metric in {"time", verdict.key.name}:
        return text
    return f"{escape(noun(verdict.metric))} {text}"


def changed_test(verdict: Verdict) -> str:
    """Return the sentence about a test that changed since the stored sessions, or ""."""
    span, found = verdict.baseline, verdict.origin
    if span is None or TEST not in span.moved:
        return ""
    # The line about the origin says it.
    if found is not None and found.clue is Clue.TEST_CHANGED:
        return ""
    return "the test itself changed since the stored sessions"


def short(reason: Reason) -> str:
    """Return a reason in a few words, for the last line of a run."""
    return reason.value.replace("-", " ")


def noun(metric: str) -> str:
    """
    Return a metric's name without the suffix that repeats the unit.

    Example:
        >>> noun("stack_bytes"), noun("launches.count"), noun("dram__bytes.sum")
        ('stack', 'launches', 'dram__bytes.sum')
    """
    if metric in _NOUNS:
        return _NOUNS[metric]
    # A hardware counter keeps its name.
    if "__" in metric:
        return metric
    for tail in ("_bytes", ".bytes", ".count", "_fraction", ".fraction"):
        metric = metric.removesuffix(tail)
    return metric


def metric_name(metric: str, kernel: str | None) -> str:
    """Return the name of a metric, with the kernel of its value."""
    return escape(metric if kernel is None else f'{metric}["{kernel}"]')


def taken_out(change: Change, least: float = _DRIFT) -> list[str]:
    """
    Return the effects of the machine removed from a change, as texts. Empty if there are none.

    Args:
        change: The change.

        least: Smallest effect to mention [fraction], > 0.
    """
    core, drift = change.core_shift or 0.0, change.machine_shift or 0.0
    parts = []
    if abs(core) >= least:
        speed = "slower" if core > 0 else "faster"
        parts.append(f"a {speed} CPU ({display.change(core)})")
    if abs(drift) >= least:
        parts.append(f"machine drift ({display.change(drift)})")
    return parts if change.effect else []
