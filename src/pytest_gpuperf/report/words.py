"""One sentence for every outcome and every reason."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pytest_gpuperf.model.verdict import Outcome, Reason, Verdict
from pytest_gpuperf.report import display

__all__ = [
    "LOUD",
    "OUTCOMES",
    "REASONS",
    "change",
    "in_suite",
    "label",
    "noun",
    "sentence",
    "short",
]

OUTCOMES: Mapping[Outcome, str] = MappingProxyType(
    {
        Outcome.FAILED: "It was measured and missed its limit.",
        Outcome.REGRESSED: "It got worse than its baseline by more than is allowed.",
        Outcome.UNMEASURED: "It could not be measured, so nothing is known about it.",
        Outcome.INCONCLUSIVE: "It was measured, and the evidence decides nothing.",
        Outcome.INCOMPARABLE: "What is stored was measured under other conditions.",
        Outcome.NEW: "Nothing is stored to compare it with.",
        Outcome.IMPROVED: "It got better than its baseline by more than the limit.",
        Outcome.UNCHANGED: "It did not move by more than the limit.",
        Outcome.PASSED: "It was measured and keeps its limit.",
    }
)

REASONS: Mapping[Reason, str] = MappingProxyType(
    {
        Reason.WITHIN_LIMIT: "The whole interval lies within the limit.",
        Reason.BEYOND_LIMIT: "The whole interval lies beyond the limit.",
        Reason.STRADDLES_LIMIT: "The limit lies inside the interval of the value.",
        Reason.ABOVE_THE_ROOF: (
            "More was achieved than the roof allows: the data stay in a cache, or "
            "the declared work is wrong."
        ),
        Reason.NOT_MEASURED: "The metric could not be measured here.",
        Reason.CHILD_GAVE_NO_VALUE: (
            "The test gave no value when it ran alone in a fresh process."
        ),
        Reason.NOTHING_STORED: "The baseline holds no session of this measurement.",
        Reason.FINGERPRINT_DIFFERS: (
            "The baseline was measured on other hardware, or in another way."
        ),
        Reason.OTHER_SOURCE: (
            "The baseline was measured by another collector, and sources are never "
            "compared."
        ),
        Reason.VOID: "The measurement is void, so it is neither judged nor stored.",
        Reason.TOO_FEW_SESSIONS: (
            "The baseline has too few sessions to know how much they differ."
        ),
        Reason.OTHER_KERNEL: "Another kernel was chosen than in the baseline.",
        Reason.INCOMPLETE_RUN: (
            "The run ended early, and an incomplete run calls nothing regressed."
        ),
        Reason.SLOWER_THAN_LIMIT: (
            "It is worse than the baseline by more than the limit, and fresh processes "
            "confirm it."
        ),
        Reason.FASTER_THAN_LIMIT: (
            "It is better than the baseline by more than the limit, and fresh processes "
            "confirm it."
        ),
        Reason.NOT_CONFIRMED: (
            "It moved by more than the limit, and no fresh process confirmed it."
        ),
        Reason.NOT_SIGNIFICANT: (
            "It moved by more than the limit, and noise may explain that."
        ),
        Reason.SLOWER_IN_SUITE: (
            "Fresh processes find no regression, and in the suite it was worse by far."
        ),
        Reason.WITHIN_NOISE: "The change is no larger than the limit.",
        Reason.EQUAL: "It equals what is stored.",
    }
)

# what is printed in capitals: the eye must find it in a long table
LOUD = frozenset({Outcome.FAILED, Outcome.REGRESSED})


# two metrics that would be called the same
_NOUNS = {"dram.bytes": "dram traffic", "dram.fraction": "dram use"}


def label(outcome: Outcome) -> str:
    """Return an outcome as tables print it."""
    return outcome.value.upper() if outcome in LOUD else outcome.value


def sentence(verdict: Verdict) -> str:
    """Return the sentence of a verdict's reason, with its direction where that is known."""
    text, moved = REASONS[verdict.reason], verdict.change
    if verdict.reason is not Reason.NOT_CONFIRMED or moved is None:
        return text
    if moved.p_worse is None or moved.p_better is None:
        return text
    way = "worse" if moved.p_worse < moved.p_better else "better"
    return text.replace("It moved by", f"It looked {way} by")


def change(verdict: Verdict) -> str:
    """Return a verdict's change in a cell's length, as `+7.9 %`; "" where it has none."""
    text = _moved(verdict)
    if verdict.metric == "time" or not text:
        return text
    return f"{display.escape(noun(verdict.metric))} {text}"


def in_suite(verdict: Verdict) -> str:
    """Return what the suite saw where it was worse than alone; "" where it was not."""
    suite, alone = verdict.in_suite, verdict.change
    if suite is None or alone is None or suite.effect is None:
        return ""
    unit = verdict.estimate.unit if verdict.estimate is not None else ""
    there, here = display.beside(suite.current, alone.current, unit)
    moved = display.change(suite.effect, limits=())
    metric = "" if verdict.metric == "time" else f"{noun(verdict.metric)} "
    return display.escape(
        f"{metric}{there} in the suite, {moved}; {here} alone: another test may have "
        "left something behind, or the machine was busy meanwhile"
    )


def short(reason: Reason) -> str:
    """Return a reason in a few words, as the last line prints it."""
    return reason.value.replace("-", " ")


def noun(metric: str) -> str:
    """
    Return a metric's name without the words that its unit says already.

    Example:
        >>> noun("stack_bytes"), noun("launches.count"), noun("dram__bytes.sum")
        ('stack', 'launches', 'dram__bytes.sum')
    """
    if metric in _NOUNS:
        return _NOUNS[metric]
    if "__" in metric:  # a hardware counter keeps its name
        return metric
    for tail in ("_bytes", ".bytes", ".count", "_fraction", ".fraction"):
        metric = metric.removesuffix(tail)
    return metric.removesuffix(".theoretical")


def _moved(verdict: Verdict) -> str:
    """Return how far a value moved; both values where nothing is relative."""
    moved, limit = verdict.change, verdict.threshold
    if moved is None:
        return ""
    if moved.effect is not None:
        limits = () if limit is None else (limit, -limit)
        return display.change(moved.effect, limits=limits)
    unit = verdict.estimate.unit if verdict.estimate is not None else ""
    now, then = display.beside(moved.current, moved.reference, unit)
    return f"{then} -> {now}"
