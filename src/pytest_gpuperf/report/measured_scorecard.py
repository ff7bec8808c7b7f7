"""Measured scorecards as people read them."""

from __future__ import annotations

import math

from pytest_gpuperf.model.counters import Evidence
from pytest_gpuperf.model.measured_scorecard import (
    Basis,
    Decision,
    InvariantResult,
    MeasuredScorecard,
    StepTime,
)
from pytest_gpuperf.model.sample import SourceLabel
from pytest_gpuperf.model.scorecard import Recommendation
from pytest_gpuperf.model.verdict import Outcome
from pytest_gpuperf.report import display
from pytest_gpuperf.report.lines import Column
from pytest_gpuperf.report.sheet import Item, Listing, Sheet, Table, fixed

__all__ = ["advice_listing", "measured_sheet"]

_NOT_KNOWN = "n/a"
_SHOWN_OPERATIONS = 10  # the rest is one row
_BASES = {
    Basis.MEANS: "one number on a side, no noise known",
    Basis.SESSIONS: "one number on a side",
}


def advice_listing(found: tuple[Recommendation, ...]) -> Listing:
    """Return recommendations as a list, each with its evidence."""
    items = tuple(
        Item(name=each.rule, text=f"{each.text}{_evidence(each)}") for each in found
    )
    return Listing(heading="Advice", items=items)


def _evidence(recommendation: Recommendation) -> str:
    """Return the numbers of an advice in brackets."""
    told = [
        f"{name.replace('_', ' ')} {fixed(number, 3)}"
        for name, number in recommendation.evidence.items()
    ]
    return f" ({', '.join(told)})" if told else ""


def measured_sheet(card: MeasuredScorecard) -> Sheet:
    """Return a measured scorecard as a page."""
    limiter = card.bottleneck
    facts = (
        ("grade", _NOT_KNOWN if card.grade is None else str(card.grade)),
        ("efficiency", _labelled(card, "efficiency")),
        ("bottleneck", _NOT_KNOWN if limiter is None else limiter.value),
        *((("by", _numbers(card.evidence)),) if card.evidence else ()),
        ("throughput", _number(card.throughput, 0, f" {card.unit}/s")),
        ("step time", _step_time(card.step)),
        ("backward / forward", _number(card.backward_forward_ratio, 2)),
        ("of a layer", _layer_ratios(card)),
        ("of the bandwidth", _labelled(card, "bandwidth_fraction")),
        ("of the arithmetic", _labelled(card, "compute_fraction")),
        ("in phases", _percent(card.coverage, limits=[1])),
        *_device(card),
    )
    return Sheet(
        title="Training scorecard, measured policy",
        facts=facts,
        tables=(_share_table(card), _operations(card)),
        listings=(
            Listing(
                heading="Against the baseline",
                items=tuple(_decision(each) for each in card.decisions),
            ),
            Listing(
                heading="What must hold",
                items=tuple(_invariant(each) for each in card.invariants),
            ),
            advice_listing(card.recommendations),
            Listing(
                heading="Not known",
                items=tuple(Item(text=note) for note in card.notes),
            ),
        ),
    )


def _labelled(card: MeasuredScorecard, name: str) -> str:
    """Return a fraction in percent, with the label of what it is made of."""
    label = card.sources.get(name, SourceLabel.MEASURED)
    told = "" if label is SourceLabel.MEASURED else f" ({label.value})"
    return f"{_percent(getattr(card, name), limits=[1])}{told}"


def _numbers(evidence: tuple[Evidence, ...]) -> str:
    """Return the numbers that named a bottleneck."""
    told = (f"{e.name} {display.value(e.value, e.unit)}" for e in evidence)
    return ", ".join(told)


def _device(card: MeasuredScorecard) -> tuple[tuple[str, str], ...]:
    """Return what the device did in a step; nothing where nobody traced it."""
    device = card.device
    if device is None:
        return ()
    parts = {
        "device busy": device.busy_ms,
        "idle, launching": device.launching_ms,
        "idle, waiting": device.waiting_ms,
    }
    return tuple((name, f"{fixed(ms, 2)} ms") for name, ms in parts.items())


def _invariant(found: InvariantResult) -> Item:
    """Return whether one invariant holds."""
    outcome = found.outcome
    bounds = [bound for bound in (found.low, found.high) if bound is not None]
    said = found.why if found.value is None else fixed(found.value, 3, limits=bounds)
    held = outcome is Outcome.PASSED
    word = outcome.value if held else outcome.value.upper()
    return Item(name=found.name, text=f"{word}; {said}", strong=not held)


def _percent(number: float | None, limits: list[float]) -> str:
    """Return a fraction in percent."""
    if number is None:
        return _NOT_KNOWN
    return fixed(number, 1, limits=limits, percent=True)


def _number(number: float | None, places: int, unit: str = "") -> str:
    """Return a number with its unit."""
    return _NOT_KNOWN if number is None else f"{fixed(number, places)}{unit}"


def _step_time(step: StepTime | None) -> str:
    """Return how long a step takes, with what is known of its spread."""
    if step is None:
        return _NOT_KNOWN
    if step.median_ms is None or step.p95_ms is None:
        return f"{fixed(step.mean_ms, 2)} ms (mean)"
    interval = ""
    if step.low_ms is not None and step.high_ms is not None:
        interval = f" ({fixed(step.low_ms, 2)} … {fixed(step.high_ms, 2)})"
    steps = display.plural(step.count, "step")
    return (
        f"{fixed(step.median_ms, 2)} ms{interval}, p95 {fixed(step.p95_ms, 2)} ms, "
        f"{steps}"
    )


def _layer_ratios(card: MeasuredScorecard) -> str:
    """Return how the layers' ratios are spread."""
    ends = card.layer_ratio_low, card.layer_ratio_median, card.layer_ratio_high
    known = [fixed(end, 2) for end in ends if end is not None]
    return " … ".join(known) or _NOT_KNOWN


def _share_table(card: MeasuredScorecard) -> Table:
    """Return where a step's time goes as a table."""
    shares = card.shares
    return Table(
        columns=(
            Column(head="time in", cells=tuple(s.kind for s in shares)),
            Column(head="ms", cells=tuple(fixed(s.ms, 2) for s in shares), right=True),
            Column(
                head="share",
                cells=tuple(fixed(s.fraction, 1, percent=True) for s in shares),
                right=True,
            ),
        ),
    )


def _operations(card: MeasuredScorecard) -> Table:
    """Return the longest operations as a table, the others in one row."""
    shown = card.operations[:_SHOWN_OPERATIONS]
    rest = card.operations[_SHOWN_OPERATIONS:]
    rows = [(each.name, each.ms, each.fraction) for each in shown]
    if rest:
        left = sum(each.ms for each in rest), sum(each.fraction or 0 for each in rest)
        rows.append((f"{len(rest)} others", *left))
    return Table(
        columns=(
            Column(head="operation", cells=tuple(r[0] for r in rows), shrinks=True),
            Column(head="ms", cells=tuple(fixed(r[1], 2) for r in rows), right=True),
            Column(
                head="share",
                cells=tuple(
                    "" if r[2] is None else fixed(r[2], 1, percent=True) for r in rows
                ),
                right=True,
            ),
        ),
        names=frozenset({"operation"}),
    )


def _decision(decision: Decision) -> Item:
    """Return what became of one quantity."""
    outcome = decision.outcome
    worse = outcome in {Outcome.REGRESSED, Outcome.UNMEASURED}
    said = [outcome.value.upper() if worse else outcome.value]
    if decision.log_ratio:
        said.append(_by_how_much(decision, decision.log_ratio))
    if decision.now is not None and decision.base is not None:
        said.append(f"{fixed(decision.now, 2)}, was {fixed(decision.base, 2)}")
    if decision.log_ratio is not None and decision.basis in _BASES:
        said.append(_BASES[decision.basis])
    if decision.noise_fraction is not None:
        noise = fixed(decision.noise_fraction, 1, percent=True)
        said.append(f"sessions differ by {noise}")
    said += [decision.why] if decision.why else []
    said += [f"so is {other}" for other in decision.shared_by]
    return Item(name=decision.metric, text="; ".join(said), strong=worse)


def _by_how_much(decision: Decision, log_ratio: float) -> str:
    """Return a log ratio as a relative change, on its side of the tolerance."""
    limits = [] if decision.tolerance is None else [decision.tolerance]
    size = fixed(math.expm1(abs(log_ratio)), 1, limits=limits, percent=True)
    return f"{size} {'worse' if log_ratio > 0 else 'better'}"
