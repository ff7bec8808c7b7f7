"""The part of a run's tests that one of several processes runs."""

from __future__ import annotations

import re

from pytest_gpuperf.model.frozen import Frozen

_FORM = re.compile(r"\s*([0-9]{1,5})\s*/\s*([0-9]{1,5})\s*")


class Shard(Frozen, frozen=True, kw_only=True):
    """
    One of the parts into which the tests of a run are divided.

    Attributes:
        number: Number of the part, from 1.

        count: Number of parts, >= 1. With 1, the part is the whole run.
    """

    number: int
    count: int

    @classmethod
    def of(cls, number: int | None, count: int | None) -> Shard | None:
        """Return a part, or None if its number or the count is unknown or out of range."""
        if number is None or count is None or not 1 <= number <= count:
            return None
        return cls(number=number, count=count)

    @classmethod
    def read(cls, text: str | None) -> Shard | None:
        """
        Return the part that a text names, or None if it names none.

        Example:
            >>> Shard.read("3/8")
            Shard(number=3, count=8)
        """
        match = _FORM.fullmatch(text or "")
        return None if match is None else cls.of(int(match[1]), int(match[2]))

    @property
    def is_whole(self) -> bool:
        """True if there are no other parts."""
        return self.count == 1

    def __str__(self) -> str:
        """Return the text that `read` reads."""
        return f"{self.number}/{self.count}"
