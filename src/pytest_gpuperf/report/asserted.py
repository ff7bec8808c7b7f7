"""Failed plain asserts on measured values: the comparison, and where its values are from."""

from __future__ import annotations

import math

from pytest_gpuperf.model.sample import Estimate
from pytest_gpuperf.report import display, words
from pytest_gpuperf.report.escape import escape

# Characters of an operand that is not a number.
_LONGEST_REPR = 200


def assert_lines(
    op: str,
    left: object,
    right: object,
    *,
    left_estimate: Estimate | None = None,
    right_estimate: Estimate | None = None,
) -> list[str]:
    """
    Return the lines about a failed plain assert on measured values. Never raises.

    Args:
        op: The operator, as `<=`.

        left: The left operand. A number is in the unit of the measured operand.

        right: The right operand.

        left_estimate: The measurement on the left, or None for any other operand.

        right_estimate: The measurement on the right, or None for any other operand.

    Returns:
        The comparison with units, then the source of each measured operand.
    """
    measured = left_estimate or right_estimate
    operator = escape(op)
    if measured is None:
        return [f"{safe_repr(left)} {operator} {safe_repr(right)}"]
    first, second = _finite(left), _finite(right)
    numbers = (first, second)
    texts = ["" if n is None else display.value(n, measured.unit) for n in numbers]
    if first is not None and second is not None:
        is_limit = right_estimate is None
        texts = [*display.pair(first, second, measured.unit, is_limit=is_limit)]
    parts, origins = [], []
    for operand, number, text, estimate in (
        (left, first, texts[0], left_estimate),
        (right, second, texts[1], right_estimate),
    ):
        part = text or safe_repr(operand)
        if estimate is not None:
            name = words.metric_name(estimate.metric, estimate.kernel)
            origin = display.value(estimate.value, estimate.unit)
            spread = display.spread(estimate)
            if spread and estimate.low is not None and estimate.high is not None:
                ends = display.interval(estimate.low, estimate.high, estimate.unit)
                origin += f" {spread} ({ends})"
            samples = display.plural(estimate.sample_count, "sample")
            source = f"{estimate.label.value} by {escape(estimate.source)}"
            origins.append(f"    {name}: {origin}, {samples}, {source}")
            if number is not None and number != estimate.value:
                suffixes = {estimate.low: ".low", estimate.high: ".high"}
                name += suffixes.get(number, "")
            part = f"{name} {part}"
        parts.append(part)
    compared = f"{parts[0]} {operator} {parts[1]}"
    return [compared, *origins, *_difference(op, first, second)]


def _difference(op: str, left: float | None, right: float | None) -> list[str]:
    """Return the relative difference as a line, or an empty list if it has no meaning."""
    if left is None or not right or op not in {"<", "<=", ">", ">=", "=="}:
        return []
    fraction = (left - right) / abs(right)
    if not math.isfinite(fraction):
        return []
    if left / right >= words.MANY_TIMES:
        return [f"    {left / right:.0f} times as much"]
    return [f"    off by {display.change(fraction, limits=(0.0,))}"]


def _finite(operand: object) -> float | None:
    """Return a finite number as a float, or None for anything else."""
    if isinstance(operand, bool) or not isinstance(operand, (int, float)):
        return None
    try:
        number = float(operand)
    except (OverflowError, ValueError, TypeError):
        return None
    return number if math.isfinite(number) else None


def safe_repr(operand: object) -> str:
    """Return an operand as text. Never raises."""
    try:
        text = repr(operand)
    except Exception:  # noqa: BLE001 - a foreign repr may raise anything
        text = f"<{type(operand).__name__}>"
    clean = escape(text)
    return clean if len(clean) <= _LONGEST_REPR else f"{clean[:_LONGEST_REPR]}…"
