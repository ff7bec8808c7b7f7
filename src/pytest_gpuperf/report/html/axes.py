"""Where numbers stand in a figure: x as a share of its width, y in pixels.

A figure stretches with the page while its text and marks keep their size, on a phone and
on paper, without a script.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pytest_gpuperf.report.display import css_percent

__all__ = ["ChangeAxis", "LevelAxis", "LogAxis", "clean"]

_LINEAR = math.log(
    1.05
)  # a change up to some 5 % is drawn in proportion, beyond in logs
_LEAST_REACH = 0.3  # the axis shows at least that change
_AIR = 1.12  # the widest change stays this factor away from the edge
_LABEL_WIDTH = 0.085  # of a tick's text [share of the axis]
_SMALLEST = 1e-300  # what a logarithm of 0 is taken of
_FLAT = 1.0001  # a span below it is drawn as if it were a per mille
_TICKS = (
    (-0.875, "÷8"),
    (-0.5, "÷2"),
    (-0.2, "−20"),
    (-0.05, "−5"),
    (0.0, "0"),
    (0.05, "+5"),
    (0.25, "+25"),
    (1.0, "×2"),
    (7.0, "×8"),
    (63.0, "×64"),
)


def clean(number: float) -> float:
    """Return a number of a tick without the rounding of its making."""
    return float(f"{number:.6g}")


class ChangeAxis:
    """
    The changes of all tests on one axis, worse to the right.

    Args:
        changes: All that are shown [fraction]; the axis is symmetric about none.
    """

    def __init__(self, changes: Sequence[float]) -> None:
        widest = max(map(abs, map(_bent, (*changes, _LEAST_REACH))))
        self._reach = widest * _AIR
        self.ticks = tuple(self._chosen_ticks())

    def at(self, change: float) -> float:
        """Return where a change stands [share of the width], cut at both ends."""
        share = _bent(change) / self._reach
        return 0.5 + 0.5 * max(-1.0, min(1.0, share))

    def is_beyond(self, change: float) -> bool:
        """Return whether a change lies past an end of the axis."""
        return abs(_bent(change)) > self._reach

    def _chosen_ticks(self) -> list[tuple[str, str]]:
        """Return places and texts from the middle outwards, none over another."""
        inside = [(self.at(c), text) for c, text in _TICKS if not self.is_beyond(c)]
        chosen: list[tuple[float, str]] = []
        for place, text in sorted(inside, key=lambda tick: abs(tick[0] - 0.5)):
            apart = all(abs(place - other) >= _LABEL_WIDTH for other, _ in chosen)
            if apart and _LABEL_WIDTH / 2 < place < 1 - _LABEL_WIDTH / 2:
                chosen.append((place, text))
        return [(css_percent(place), text) for place, text in chosen]


class LogAxis:
    """
    A logarithmic axis across the width, with few ticks at round numbers.

    Args:
        low: The smallest number, > 0.

        high: The largest, >= `low`.

        most: Ticks that have room.
    """

    def __init__(self, low: float, high: float, *, most: int = 6) -> None:
        high = max(high, low * _FLAT)
        air = 0.06 * math.log(high / low)
        self._low, self._high = math.log(low) - air, math.log(high) + air
        self.ticks = _round_numbers(math.exp(self._low), math.exp(self._high), most)

    def at(self, number: float) -> float:
        """Return where a number stands [share of the width], cut at both ends."""
        share = (math.log(max(number, _SMALLEST)) - self._low) / (
            self._high - self._low
        )
        return max(0.0, min(1.0, share))


class LevelAxis:
    """
    The same from bottom to top.

    Args:
        low: The smallest number, > 0.

        high: The largest, >= `low`.

        height_px: Height of the figure [px].

        most: Ticks that have room.
    """

    def __init__(
        self, low: float, high: float, *, height_px: int, most: int = 5
    ) -> None:
        self._across = LogAxis(low, high, most=most)
        self._height_px = height_px
        self.ticks = self._across.ticks

    def at(self, number: float) -> float:
        """Return where a number stands [px from the top]."""
        return round(self._height_px * (1 - self._across.at(number)), 1)


def _bent(change: float) -> float:
    """Return a change as it is drawn: in proportion near 0, by its logarithm beyond."""
    return math.asinh(
        math.log(max(1 + change, 1e-9)) / _LINEAR
    )  # -100 % has no logarithm


def _round_numbers(low: float, high: float, most: int) -> tuple[float, ...]:
    """Return round numbers from low to high, at most so many."""
    if high < 3 * low:  # a decade has too few of them
        return _even_steps(low, high, most)
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    numbers: list[float] = []
    for digits in ((1, 2, 3, 5), (1, 2, 5), (1, 3), (1,)):
        numbers = [
            clean(digit * 10.0**power)
            for power in range(first, last + 1)
            for digit in digits
            if low <= digit * 10.0**power <= high
        ]
        if len(numbers) <= most:
            return tuple(numbers)
    return tuple(numbers[:: math.ceil(len(numbers) / most)])


def _even_steps(low: float, high: float, most: int) -> tuple[float, ...]:
    """Return multiples of 1, 2 or 5 times a power of ten, at most so many."""
    power = 10.0 ** (math.floor(math.log10(high - low)) - 1)
    steps = (digit * power for digit in (1, 2, 5, 10, 20, 50, 100))
    step = next(step for step in steps if high / step - low / step < most)
    first, last = math.ceil(low / step), math.floor(high / step)
    return tuple(clean(place * step) for place in range(first, last + 1))
