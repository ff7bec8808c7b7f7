"""The evidence behind a value or a verdict, without a word of text; PYTEST_DONT_REWRITE."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_gpuperf.model.change import Change
from pytest_gpuperf.model.limit import Limit
from pytest_gpuperf.model.record import Note, Record
from pytest_gpuperf.model.sample import Estimate, SourceLabel
from pytest_gpuperf.model.verdict import BaselineSpan, Verdict

__all__ = ["Evidence", "evidence_of_estimate", "evidence_of_verdict"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """
    What a value is worth.

    Attributes:
        metric: The metric's name.

        value: The value [unit]; None where there is none.

        unit: Its unit; "" where there is no value.

        source: The collector that gave it; "" where there is no value.

        label: How it came to be.

        low: Lower end of the interval that belongs to the value [unit]; None: none.

        high: Its upper end.

        half_width_fraction: Half the interval over the value; None: there is no ratio.

        sample_count: Samples behind it.

        discarded_count: Samples that were taken and refused.

        kernel: The kernel that it is for; None: the whole record.

        limit: What it was held against; None: a plain comparison, or a change.

        change: Its effect against the baseline; None: not compared.

        confirmations: What fresh processes found.

        baseline: The stored sessions; None: none.

        notes: What a reader of the measurement should know.
    """

    metric: str
    value: float | None
    unit: str
    source: str
    label: SourceLabel
    low: float | None = None
    high: float | None = None
    half_width_fraction: float | None = None
    sample_count: int = 0
    discarded_count: int = 0
    kernel: str | None = None
    limit: Limit | None = None
    change: Change | None = None
    confirmations: tuple[float, ...] = ()
    baseline: BaselineSpan | None = None
    notes: tuple[Note, ...] = ()


def evidence_of_estimate(estimate: Estimate, record: Record | None = None) -> Evidence:
    """
    Return the evidence of a value that a plain assert compared.

    Args:
        estimate: The value.

        record: What it is from; None: not known.
    """
    series = record.series if record is not None else ()
    discarded = (
        each.discarded_count
        for each in series
        if (each.metric, each.source) == (estimate.metric, estimate.source)
    )
    return Evidence(
        metric=estimate.metric,
        value=estimate.value,
        unit=estimate.unit,
        source=estimate.source,
        label=estimate.label,
        low=estimate.low,
        high=estimate.high,
        half_width_fraction=_half_width(estimate.value, estimate.low, estimate.high),
        sample_count=estimate.sample_count,
        discarded_count=sum(discarded),
        kernel=estimate.kernel,
        notes=record.notes if record is not None else (),
    )


def evidence_of_verdict(verdict: Verdict, record: Record | None = None) -> Evidence:
    """
    Return the evidence of a verdict: its interval is the one that decided.

    Args:
        verdict: The judgement.

        record: What it judged; None: not known.
    """
    estimate = verdict.estimate
    known = evidence_of_estimate(estimate, record) if estimate is not None else None
    low, high = verdict.low, verdict.high
    if known is not None and (low is None or high is None):
        low, high = known.low, known.high
    value = estimate.value if estimate is not None else None
    return Evidence(
        metric=verdict.metric,
        value=value,
        unit=known.unit if known else "",
        source=known.source if known else "",
        label=known.label if known else SourceLabel.UNAVAILABLE,
        low=low,
        high=high,
        half_width_fraction=_half_width(value, low, high),
        sample_count=known.sample_count if known else 0,
        discarded_count=known.discarded_count if known else 0,
        kernel=known.kernel if known else None,
        limit=verdict.limit,
        change=verdict.change,
        confirmations=verdict.confirmations,
        baseline=verdict.baseline,
        notes=record.notes if record is not None else (),
    )


def _half_width(
    value: float | None, low: float | None, high: float | None
) -> float | None:
    """Return half an interval over its value; None: there is none, or no ratio."""
    if not value or low is None or high is None:
        return None
    return (high - low) / 2 / abs(value)
