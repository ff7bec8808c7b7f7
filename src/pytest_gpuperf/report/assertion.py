"""What a failed plain assert shows."""

from __future__ import annotations

import math

from pytest_gpuperf.model.sample import Estimate
from pytest_gpuperf.report import display

__all__ = ["assert_lines", "estimate_lines"]

_LONGEST = 200  # of the text of a thing that is not a number
_MANY_TIMES = 10.0  # from here on percent are thousands, which nobody reads


def assert_lines(
    op: str,
    left: object,
    right: object,
    *,
    left_estimate: Estimate | None = None,
    right_estimate: Estimate | None = None,
) -> list[str]:
    """
    Return the lines of a failed comparison of measured values; it never raises.

    Args:
        op: The operator, as `<=`.

        left: What stands on its left; a number is in the unit of the measured side.

        right: What stands on its right.

        left_estimate: The measurement on the left; None: it is something else.

        right_estimate: The measurement on the right.

    Returns:
        The comparison with units, then where each measured side came from.
    """
    known = left_estimate or right_estimate
    if known is None:
        return [f"{_text(left)} {_clean(op)} {_text(right)}"]
    numbers = _number(left), _number(right)
    texts = _sides(numbers, known.unit, is_limit=right_estimate is None)
    names = [
        f"{_name(estimate)} {text or _text(side)}" if estimate else text or _text(side)
        for side, text, estimate in (
            (left, texts[0], left_estimate),
            (right, texts[1], right_estimate),
        )
    ]
    lines = [f"{names[0]} {_clean(op)} {names[1]}"]
    for each in (left_estimate, right_estimate):
        lines += [] if each is None else estimate_lines(each)
    lines += _distance(op, *numbers)
    return lines


def estimate_lines(estimate: Estimate) -> list[str]:
    """Return where a value came from and how far it is known, indented."""
    parts = [display.value(estimate.value, estimate.unit)]
    spread = display.spread(estimate)
    if spread and estimate.low is not None and estimate.high is not None:
        ends = display.interval(estimate.low, estimate.high, estimate.unit)
        parts[0] += f" {spread} ({ends})"
    parts.append(display.plural(estimate.sample_count, "sample"))
    parts.append(f"{estimate.label.value} by {display.escape(estimate.source)}")
    return [f"    {_name(estimate)}: {', '.join(parts)}"]


def _sides(
    numbers: tuple[float | None, float | None], unit: str, *, is_limit: bool
) -> tuple[str, str]:
    """Return both sides in their unit; "" for a side that is not a number."""
    left, right = numbers
    if left is not None and right is not None:
        return display.beside(left, right, unit, is_limit=is_limit)
    return (
        "" if left is None else display.value(left, unit),
        "" if right is None else display.value(right, unit),
    )


def _distance(op: str, left: float | None, right: float | None) -> list[str]:
    """Return how far apart the sides are; nothing where that has no meaning."""
    if left is None or not right or op not in {"<", "<=", ">", ">=", "=="}:
        return []
    share = (left - right) / abs(right)
    if not math.isfinite(share):
        return []
    if left / right >= _MANY_TIMES:
        return [f"    {left / right:.0f} times as much"]
    return [f"    off by {display.change(share, limits=(0.0,))}"]


def _name(estimate: Estimate) -> str:
    """Return a metric, and its kernel where it is one's alone."""
    metric = estimate.metric
    text = metric if estimate.kernel is None else f'{metric}["{estimate.kernel}"]'
    return display.escape(text)


def _number(side: object) -> float | None:
    """Return a finite number; None for anything else."""
    if isinstance(side, bool) or not isinstance(side, (int, float)):
        return None
    try:
        number = float(side)
    except (OverflowError, ValueError, TypeError):
        return None
    return number if math.isfinite(number) else None


def _text(side: object) -> str:
    """Return a thing as text, whatever it is."""
    try:
        text = repr(side)
    except Exception:  # noqa: BLE001 - somebody else's repr may raise anything
        text = f"<{type(side).__name__}>"
    clean = display.escape(text)
    return clean if len(clean) <= _LONGEST else f"{clean[:_LONGEST]}…"


def _clean(op: str) -> str:
    """Return an operator, safe to print."""
    return display.escape(op)
