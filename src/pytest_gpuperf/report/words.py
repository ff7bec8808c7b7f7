"""One sentence for every outcome and every reason; PYTEST_DONT_REWRITE."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pytest_gpuperf.model.verdict import Outcome, Reason

__all__ = ["OUTCOMES", "REASONS", "label", "noun", "short"]

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
            "More was achieved than the roof allows: the work stays in the L2 cache, or "
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
            "It looked worse by more than the limit, and no fresh process confirmed it."
        ),
        Reason.NOT_SIGNIFICANT: (
            "It moved by more than the limit, and noise may explain that."
        ),
        Reason.WITHIN_NOISE: "The change is no larger than the limit.",
        Reason.EQUAL: "It equals what is stored.",
    }
)

# what is printed in capitals: the eye must find it in a long table
_LOUD = frozenset({Outcome.FAILED, Outcome.REGRESSED})


def label(outcome: Outcome) -> str:
    """Return an outcome as tables print it."""
    return outcome.value.upper() if outcome in _LOUD else outcome.value


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
    if "__" in metric:  # a hardware counter keeps its name
        return metric
    for tail in ("_bytes", ".bytes", ".count", "_fraction", ".fraction"):
        metric = metric.removesuffix(tail)
    return metric.removesuffix(".theoretical")
