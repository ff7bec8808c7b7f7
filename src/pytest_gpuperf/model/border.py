"""The checks that every record makes when it is built; PYTEST_DONT_REWRITE."""

from __future__ import annotations

import math

from pytest_gpuperf.errors import RecordError
from pytest_gpuperf.model.mistakes import no_number

__all__ = ["finite", "positive"]


def finite(path: str, *values: float | None) -> None:
    """
    Refuse NaN and infinity, and what is no number at all.

    Args:
        path: The field, for the message.

        values: Numbers; None means that the source did not say, and passes.

    Raises:
        RecordError: One of them is not finite.
    """
    for value in values:
        if value is None or (type(value) is float and math.isfinite(value)):
            continue  # nearly always, and records are many
        wrong = no_number(value)
        if wrong:
            raise RecordError(wrong, path=path)


def positive(path: str, *values: float | None) -> None:
    """
    Refuse what is zero, below it, or not finite.

    Args:
        path: The field, for the message.

        values: Numbers; None passes.

    Raises:
        RecordError: One of them is not above zero, or not finite.
    """
    finite(path, *values)
    for value in values:
        if value is not None and value <= 0:
            message = f"{value!r} is not above zero"
            raise RecordError(message, path=path)
