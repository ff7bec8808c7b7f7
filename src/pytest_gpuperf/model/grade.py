"""Letters for a share of what was possible."""

from __future__ import annotations

from enum import Enum

from pytest_gpuperf.errors import RecordError
from pytest_gpuperf.model.frozen import Frozen, not_finite, refuse

__all__ = ["TRAINING_BANDS", "Bands", "Grade"]

_LETTERS = "FDCBA"  # worst first


class Grade(Enum):
    """
    A letter for an efficiency; A is the best, there is no E.

    Grades order among themselves and against text: `grade >= "B"`. A text that is no
    grade equals none and is refused by the other comparisons.
    """

    A = "A"
    B = "B"
    C = "C"
    D = "D"
    F = "F"

    @classmethod
    def from_efficiency(cls, efficiency: float, bands: Bands | None = None) -> Grade:
        """
        Return the grade of an efficiency.

        Args:
            efficiency: Achieved over possible; finite.

            bands: Where the grades begin; None: those of the training scorecard.

        Raises:
            RecordError: The efficiency is not a finite number.

        Example:
            >>> Grade.from_efficiency(0.6), Grade.from_efficiency(0.6) >= "B"
            (<Grade.A: 'A'>, True)
        """
        wrong = not_finite("", {"efficiency": efficiency})
        refuse(list(wrong), remedy="ask only for what was measured")
        return (bands or TRAINING_BANDS).grade(efficiency)

    @property
    def rank(self) -> int:
        """Its place from the worst, 0 to 4."""
        return _LETTERS.index(self.value)

    def __str__(self) -> str:
        return self.value

    def __hash__(self) -> int:
        return hash(self.value)  # equal to its text, so also found by it

    def __eq__(self, other: object) -> bool:
        return self.value == (other.value if isinstance(other, Grade) else other)

    def __lt__(self, other: Grade | str) -> bool:
        return self.rank < _rank(other)

    def __le__(self, other: Grade | str) -> bool:
        return self.rank <= _rank(other)

    def __gt__(self, other: Grade | str) -> bool:
        return self.rank > _rank(other)

    def __ge__(self, other: Grade | str) -> bool:
        return self.rank >= _rank(other)


class Bands(Frozen, frozen=True, kw_only=True):
    """
    The least efficiency of each grade; below the last it is an F.

    Attributes:
        a: Of an A.

        b: Of a B, below `a`.

        c: Of a C, below `b`.

        d: Of a D, below `c`.
    """

    a: float
    b: float
    c: float
    d: float

    def __post_init__(self) -> None:
        """Refuse bands that are not numbers, or do not fall."""
        remedy = "name four numbers, the largest first"
        numbers = {"a": self.a, "b": self.b, "c": self.c, "d": self.d}
        refuse(list(not_finite("bands", numbers)), remedy=remedy)
        if not self.a > self.b > self.c > self.d:
            message = f"{self.a!r}, {self.b!r}, {self.c!r}, {self.d!r} do not fall"
            raise RecordError(message, path="bands", remedy=remedy)

    def least(self, grade: Grade) -> float:
        """Return the efficiency from which on there is a grade; 0 for the worst."""
        by_rank = (0.0, self.d, self.c, self.b, self.a)
        return by_rank[grade.rank]

    def grade(self, efficiency: float) -> Grade:
        """Return the grade of an efficiency; a limit itself belongs to the better one."""
        better = (g for g in Grade if g is not Grade.F and efficiency >= self.least(g))
        return next(better, Grade.F)


# the training scorecard's cut-offs (aprender/entrenar)
TRAINING_BANDS = Bands(a=0.60, b=0.40, c=0.20, d=0.10)


def _rank(grade: object) -> int:
    """Return the place of a grade or its text."""
    if isinstance(grade, Grade):
        return grade.rank
    if not isinstance(grade, str) or len(grade) != 1 or grade not in _LETTERS:
        message = f"{grade!r} is not a grade"
        raise RecordError(message, path="grade", remedy="write one of A, B, C, D, F")
    return _LETTERS.index(grade)
