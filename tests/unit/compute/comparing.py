"""Sessions and comparisons that tests of changes are made of."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_gpuperf.model.change import Comparison, SessionValue

THEN = (1.0, 1.01, 0.99, 1.02, 0.98)


def value(
    *runs: float, name: str = "now", widths: tuple[float, ...] = ()
) -> SessionValue:
    """A session."""
    return SessionValue(session_id=name, run_values=runs, half_widths=widths)


def comparison(
    now: Sequence[float], then: Sequence[float], **fields: object
) -> Comparison:
    """A comparison of one process a session."""
    stored = tuple(value(v, name=f"s{n}") for n, v in enumerate(then))
    given = {"current": value(*now), "stored": stored, "group": "time"}
    return Comparison(**(given | fields))  # type: ignore[arg-type] # a test's shorthand


def known(number: float | None) -> float:
    """A number that must be there."""
    assert number is not None
    return number
