"""Levels of a history: the sessions at which a value changed for good.

Candidates are found by seeded binary segmentation: the largest change of the mean is sought
in intervals of many lengths. The narrowest interval with a significant change wins, because
a wide one may hold several changes. Changes that are weak between their neighbours are
dropped then, and the others are placed again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from statistics import median

from pytest_gpuperf.model.frozen import Frozen

# Found by simulation (docs/history.md).
_LEAST_LENGTH = 3  # Sessions of a level.
_FACTOR = 1.3  # Of the threshold of a sum of independent values.
_LEAST_DEVIATIONS = 3.3  # Between neighbouring levels.
_LEAST_CHANGE = 0.01  # On a log scale.
_LEAST_SPREAD = 1e-4  # Exact values differ by rounding.
# Lags at which values differ, so that noise slower than a session counts.
_LAGS = (1, 2, 4, 8)
_LEAST_LAGS = 5  # A series is longer than this many lags.
_ENOUGH = 8  # Differences that estimate a spread.
_BLOCKS = (5, 10)  # Sessions of a block.
_ENOUGH_BLOCKS = 12
_WITH_MEMORY = 1.35  # Block means vary as much more by chance.
_NEIGHBOURS = 4  # Sessions on either side that an outlier is compared with.
_OUTLIER, _FAR = 2.0, 2.5  # Spreads, before and after the levels are known.
_TURNS = 3
_NEAR = 8  # Sessions around a change in which its place is sought.
_PLACE = 6.0  # Squared spreads by which a place may fit worse, for 95 %.
_NORMAL = 1.4826  # Deviation of normal values over their median distance.
_Z_95 = 1.96


class LevelChange(Frozen, frozen=True, kw_only=True):
    """
    A lasting change of a series.

    Attributes:
        place: Index of the first value at the new level.

        first: The earliest index that the change may have (95 %).

        last: The latest such index.

        log_change: The new level less the old, on the scale of the series.

        log_error: Half-width of the 95 % interval of `log_change`.

        deviations: `log_change` in standard errors.
    """

    place: int
    first: int
    last: int
    log_change: float
    log_error: float
    deviations: float


def level_changes(
    logs: Sequence[float], *, least_deviations: float = _LEAST_DEVIATIONS
) -> tuple[LevelChange, ...]:
    """
    Return the lasting changes of a series, in order.

    Args:
        logs: Logarithms of the values, oldest first.

        least_deviations: Standard errors between two neighbouring levels.
    """
    if len(logs) < 2 * _LEAST_LENGTH + 2:
        return ()
    return _LevelSearch(logs, least_deviations).changes()


def usual_noise(logs: Sequence[float]) -> float:
    """Return the robust standard deviation of a series without its lasting changes."""
    largest = 0.0
    for lag in _LAGS:
        apart = [
            after - before for before, after in zip(logs, logs[lag:], strict=False)
        ]
        # At a longer lag, two changes of a short series would be half of the differences.
        if len(apart) < _ENOUGH or lag * _LEAST_LAGS >= len(logs):
            break
        largest = max(largest, _deviation(apart) / math.sqrt(2))
    return largest


class _LevelSearch:
    """
    The search for changes in one series.

    Args:
        logs: The series.

        least_deviations: As for `level_changes`.
    """

    def __init__(self, logs: Sequence[float], least_deviations: float) -> None:
        self._logs = logs
        self._least = least_deviations
        self._own = max(usual_noise(logs), _LEAST_SPREAD)
        calm = _without_outliers(logs, self._own)
        self._spread = self._own * _memory_factor(calm, self._own)
        self._sums = [0.0, *accumulate(calm)]

    def changes(self) -> tuple[LevelChange, ...]:
        """Return the changes."""
        places = self._candidates()
        for turn in range(_TURNS):
            if turn and places:
                self._sums = [0.0, *accumulate(self._near_levels(places))]
            for number in range(len(places)):
                before, after = self._edges(places, number)
                if after - before >= 2 * _LEAST_LENGTH:
                    places[number] = self._largest(before, after)[1]
            self._drop_weak(places)
        while places:
            for number in range(len(places)):
                before, after = self._edges(places, number)
                places[number] = self._by_distances(before, places[number], after)
            short = self._short_level(places)
            if short is None:
                break
            # Two sessions are outliers, and their changes go with them.
            del places[short]
            self._sums = [0.0, *accumulate(self._near_levels(places))]
            self._drop_weak(places)
        return tuple(self._told(places, number) for number in range(len(places)))

    def _candidates(self) -> list[int]:
        count = len(self._logs)
        threshold = _FACTOR * math.sqrt(2 * math.log(count)) * self._spread
        found: list[tuple[int, float, int, int]] = []
        for start, end in _intervals(count):
            height, place = self._largest(start, end)
            if height > threshold:
                found.append((end - start, -height, place, start))
        places: list[int] = []
        for length, _, place, start in sorted(found):
            if not any(start < other < start + length for other in places):
                places.append(place)
        return sorted(places)

    def _largest(self, start: int, end: int) -> tuple[float, int]:
        sums, count = self._sums, end - start
        base, total = sums[start], sums[end] - sums[start]
        largest, at = 0.0, start + _LEAST_LENGTH
        for place in range(start + _LEAST_LENGTH, end - _LEAST_LENGTH + 1):
            left = place - start
            apart = sums[place] - base - total * left / count
            height = apart * apart * count / (left * (count - left))
            if height > largest:
                largest, at = height, place
        return math.sqrt(largest), at

    def _edges(self, places: Sequence[int], number: int) -> tuple[int, int]:
        before = places[number - 1] if number else 0
        last = number + 1 == len(places)
        return before, len(self._logs) if last else places[number + 1]

    def _drop_weak(self, places: list[int]) -> None:
        """Remove changes until none is weak or small between its neighbours."""
        while places:
            sizes = [self._size(places, number) for number in range(len(places))]
            weakest = min(range(len(places)), key=lambda n: abs(sizes[n][1]))
            smallest = min(range(len(places)), key=lambda n: abs(sizes[n][0]))
            if abs(sizes[weakest][1]) < self._least:
                del places[weakest]
            elif abs(sizes[smallest][0]) < _LEAST_CHANGE:
                del places[smallest]
            else:
                return

    def _size(self, places: Sequence[int], number: int) -> tuple[float, float]:
        before, after = self._edges(places, number)
        place, sums = places[number], self._sums
        left, right = place - before, after - place
        change = (sums[after] - sums[place]) / right - (
            sums[place] - sums[before]
        ) / left
        return change, change / (self._spread * math.sqrt(1 / left + 1 / right))

    def _short_level(self, places: Sequence[int]) -> int | None:
        """
        Return the smaller change next to a level that too few sessions have, or None.

        A session has the level that is nearer to it, of its own and its neighbour's.
        """
        parts = [self._logs[a:b] for a, b in pairwise([0, *places, len(self._logs)])]
        levels = [median(part) for part in parts]
        for number, (part, level) in enumerate(zip(parts, levels, strict=True)):
            nearest = [n for n in (number - 1, number) if 0 <= n < len(places)]
            others = [levels[n + (n == number)] for n in nearest]
            for other in others:
                own_count = sum(abs(v - level) < abs(v - other) for v in part)
                if own_count < _LEAST_LENGTH:
                    sizes = [abs(self._size(places, n)[0]) for n in nearest]
                    return nearest[sizes.index(min(sizes))]
        return None

    def _near_levels(self, places: Sequence[int]) -> list[float]:
        """Return the series with outliers moved near the median of their level."""
        near: list[float] = []
        for start, end in pairwise([0, *places, len(self._logs)]):
            middle, most = median(self._logs[start:end]), _FAR * self._own
            near += [_clip(v, middle, most) for v in self._logs[start:end]]
        return near

    def _by_distances(self, before: int, place: int, after: int) -> int:
        """Return the place with the smallest absolute distances: exact values have no spread."""
        logs = self._logs
        old = median(logs[before : max(place - _LEAST_LENGTH - 1, before + 1)])
        new = median(logs[min(place + _LEAST_LENGTH + 1, after - 1) : after])
        low, high = max(before + 1, place - _NEAR), min(after - 1, place + _NEAR)
        costs = {low: sum(abs(value - new) for value in logs[low:high])}
        for at in range(low, high):
            costs[at + 1] = costs[at] + abs(logs[at] - old) - abs(logs[at] - new)
        least = min(costs.values())
        return min(at for at, cost in costs.items() if cost <= least + 1e-12)

    def _told(self, places: Sequence[int], number: int) -> LevelChange:
        before, after = self._edges(places, number)
        place = places[number]
        best = self._fit(before, place, after)
        worst = best - _PLACE * self._spread**2
        near = [
            at
            for at in range(before + 1, after)
            if self._fit(before, at, after) >= worst
        ]
        change, deviations = self._size(places, number)
        return LevelChange(
            place=place,
            first=min(place, *near),
            last=max(place, *near),
            log_change=change,
            log_error=_Z_95 * abs(change / deviations) if deviations else 0.0,
            deviations=abs(deviations),
        )

    def _fit(self, before: int, place: int, after: int) -> float:
        sums = self._sums
        left, right = sums[place] - sums[before], sums[after] - sums[place]
        return left * left / (place - before) + right * right / (after - place)


def _intervals(count: int) -> Iterator[tuple[int, int]]:
    """Yield intervals of all lengths, each overlapping the next of its length by half."""
    yield 0, count
    length, least = float(count), 2 * _LEAST_LENGTH
    while True:
        length /= math.sqrt(2)
        if length < least:
            return
        width = math.ceil(length)
        number = max(math.ceil(2 * count / width) - 1, 1)
        step = (count - width) / max(number - 1, 1)
        for place in range(number):
            start = int(place * step)
            yield start, start + width


def _memory_factor(logs: Sequence[float], spread: float) -> float:
    """Return how much more means of blocks vary than those of independent values, >= 1."""
    largest = 1.0
    for length in _BLOCKS:
        starts = range(0, len(logs) - length + 1, length)
        means = [sum(logs[start : start + length]) / length for start in starts]
        if len(means) < _ENOUGH_BLOCKS:
            break
        apart = [after - before for before, after in pairwise(means)]
        ratio = _deviation(apart) / math.sqrt(2) * math.sqrt(length) / spread
        largest = max(largest, ratio)
    return largest if largest > _WITH_MEMORY else 1.0


def _without_outliers(logs: Sequence[float], spread: float) -> list[float]:
    """Return a series in which no value is far from its neighbours on both sides."""
    width = 2 * _NEIGHBOURS + 1
    calm = []
    for place, value in enumerate(logs):
        start = max(0, min(place - _NEIGHBOURS, len(logs) - width))
        near = sorted(logs[start : start + width])
        calm.append(_clip(value, near[len(near) // 2], _OUTLIER * spread))
    return calm


def _clip(value: float, middle: float, most: float) -> float:
    return min(max(value, middle - most), middle + most)


def _deviation(values: Sequence[float]) -> float:
    middle = median(values)
    return _NORMAL * median([abs(value - middle) for value in values])
