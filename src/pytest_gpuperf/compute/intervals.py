"""Sets of intervals on a line of time; PYTEST_DONT_REWRITE."""

from __future__ import annotations

from collections.abc import Iterable
from math import fsum

__all__ = ["Interval", "length_s", "merged", "uncovered"]

Interval = tuple[float, float]  # start and end [s], in this order


def merged(intervals: Iterable[Interval]) -> list[Interval]:
    """
    Return the union of some intervals as disjoint ones, in order; empty ones vanish.

    Example:
        >>> merged([(3, 4), (0, 2), (1, 3)])
        [(0, 4)]
    """
    union: list[Interval] = []
    for start_s, end_s in sorted(intervals):
        if start_s == end_s:
            continue
        if union and start_s <= union[-1][1]:
            union[-1] = (union[-1][0], max(union[-1][1], end_s))
        else:
            union.append((start_s, end_s))
    return union


def length_s(intervals: Iterable[Interval]) -> float:
    """Return how long the union of some intervals is [s]."""
    return fsum(end_s - start_s for start_s, end_s in merged(intervals))


def uncovered(
    intervals: Iterable[Interval], cover: Iterable[Interval]
) -> list[Interval]:
    """
    Return the parts of some intervals that no other covers, disjoint and in order.

    Example:
        >>> uncovered([(0, 10)], [(2, 3), (8, 12)])
        [(0, 2), (3, 8)]
    """
    left: list[Interval] = []
    covers = merged(cover)
    place = 0  # of the first cover that may still reach what comes
    for start_s, end_s in merged(intervals):
        begun_s = start_s
        while place < len(covers) and covers[place][1] <= start_s:
            place += 1
        for from_s, to_s in covers[place:]:
            if from_s >= end_s:
                break
            if from_s > begun_s:
                left.append((begun_s, from_s))
            begun_s = max(begun_s, to_s)
        if begun_s < end_s:
            left.append((begun_s, end_s))
    return left
