"""compute.steps: unions and differences of pieces of time."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.compute.steps import Interval, length_s, merged, uncovered

POINTS = st.integers(0, 60)
INTERVALS = st.lists(
    st.tuples(POINTS, POINTS).map(lambda ends: (float(min(ends)), float(max(ends)))),
    max_size=12,
)


def cells(intervals: list[Interval]) -> set[int]:
    """Return the unit cells that intervals with whole ends cover."""
    return {cell for start, end in intervals for cell in range(int(start), int(end))}


@given(INTERVALS)
def test_a_union_covers_what_its_intervals_cover(intervals: list[Interval]) -> None:
    """Nothing more, nothing twice, and in order."""
    union = merged(intervals)

    assert cells(union) == cells(intervals)
    assert length_s(intervals) == len(cells(intervals))
    assert all(a[1] < b[0] for a, b in itertools.pairwise(union))


@given(INTERVALS, INTERVALS)
def test_what_is_left_is_in_the_one_and_not_in_the_other(
    intervals: list[Interval], cover: list[Interval]
) -> None:
    """Cell by cell."""
    left = uncovered(intervals, cover)

    assert cells(left) == cells(intervals) - cells(cover)
    assert left == merged(left)


@given(INTERVALS, INTERVALS)
def test_covered_and_uncovered_add_up(a: list[Interval], b: list[Interval]) -> None:
    """The length of a union is that of the one and of what the other adds."""
    together = length_s([*a, *b])

    assert together == pytest.approx(length_s(a) + length_s(uncovered(b, a)))


def test_nothing_covers_nothing() -> None:
    """Both may be empty."""
    assert uncovered([], [(0.0, 1.0)]) == []
    assert uncovered([(0.0, 1.0)], []) == [(0.0, 1.0)]
    assert length_s([]) == 0
