"""The checks that every record makes when it is built; PYTEST_DONT_REWRITE."""

from __future__ import annotations

import math

from pytest_gpuperf.errors import RecordError

__all__ = ["finite", "not_negative"]


def finite(path: str, *values: float | None) -> None:
    """
    Refuse NaN and infinity.

    Args:
        path: The field, for the message.

        values: Numbers; None means that the source did not say, and passes.

    Raises:
        RecordError: One of them is not finite.
    """
    for value in values:
        if value is not None and not math.isfinite(value):
            message = f"{value!r} is not a finite number"
            raise RecordError(message, path=path)


def not_negative(path: str, *values: float | None) -> None:
    """
    Refuse what is below zero, or not finite.

    Args:
        path: The field, for the message.

        values: Numbers; None passes.

    Raises:
        RecordError: One of them is negative or not finite.
    """
    finite(path, *values)
    for value in values:
        if value is not None and value < 0:
            message = f"{value!r} is negative"
            raise RecordError(message, path=path)
