"""The mistakes of one input, told together; PYTEST_DONT_REWRITE."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_gpuperf.errors import RecordError

__all__ = ["Mistake", "not_finite", "refuse"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistake:
    """
    One thing that is wrong with an input.

    Attributes:
        path: The field, as `phases.h2d.pct`.

        text: What is wrong with it, as a fragment.
    """

    path: str
    text: str

    def __str__(self) -> str:
        """Return the fragment behind its field."""
        return f"{self.path}: {self.text}" if self.path else self.text


def not_finite(path: str, numbers: Mapping[str, float]) -> Iterator[Mistake]:
    """
    Yield a mistake for every number that is NaN or infinite.

    Args:
        path: What the numbers belong to.

        numbers: Numbers by field.
    """
    for field, number in numbers.items():
        if not math.isfinite(number):
            where = f"{path}.{field}" if path else field
            yield Mistake(path=where, text=f"{number!r} is not a finite number")


def refuse(mistakes: Sequence[Mistake], *, remedy: str = "") -> None:
    """
    Refuse an input that has mistakes; one without any passes.

    Args:
        mistakes: All of them.

        remedy: One imperative sentence; "" for the general one.

    Raises:
        RecordError: There are some; the message names every one, the path is that of
            the first.
    """
    if not mistakes:
        return
    first, *others = mistakes
    text = "; ".join([first.text, *map(str, others)])
    raise RecordError(text, path=first.path, remedy=remedy)
