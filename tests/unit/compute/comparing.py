"""Sessions and comparisons that tests of changes are made of."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_gpuperf.model.change import Comparison
from pytest_gpuperf.model.packed import SessionValues
from pytest_gpuperf.model.record import SessionValue

THEN = (1.0, 1.01, 0.99, 1.02, 0.98)


def value(*runs: float, widths: tuple[float, ...] = ()) -> SessionValue:
    """The values of a session's processes."""
    return SessionValue(
        metric="time", unit="s", source="cupti", run_values=runs, half_widths=widths
    )


def comparison(
    now: Sequence[float], then: Sequence[float], **fields: object
) -> Comparison:
    """A comparison of one process a session."""
    stored = tuple(value(v) for v in then)
    ids = tuple(f"s{n}" for n in range(len(then)))
    given = {
        "current": value(*now),
        "stored": SessionValues.of(stored),
        "session_ids": ids,
        "group": "time",
    }
    return Comparison(**(given | fields))  # type: ignore[arg-type] # a test's shorthand


def known(number: float | None) -> float:
    """A number that must be there."""
    assert number is not None
    return number
