"""Which commit a search tries next, and what it is narrowed to."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.judge.against import AgainstPolicy
from pytest_gpuperf.pipeline.bisection import (
    MOST_BLOCKS,
    TrialOutcome,
    bounds,
    next_place,
    search_policy,
)

BAD, GOOD, SKIPPED = TrialOutcome.BAD, TrialOutcome.GOOD, TrialOutcome.SKIPPED


def searched(
    count: int, culprit: int, unusable: frozenset[int] = frozenset()
) -> tuple[tuple[int, int], int]:
    """Return the bounds and the trials of a whole search; the newest commit is bad."""
    outcomes: list[TrialOutcome | None] = [None] * count
    outcomes[-1] = BAD
    trial_count = 0
    while (place := next_place(outcomes)) is not None:
        assert outcomes[place] is None
        known = BAD if place >= culprit else GOOD
        outcomes[place] = SKIPPED if place in unusable else known
        trial_count += 1
    return bounds(outcomes), trial_count


@given(st.data())
def test_the_culprit_is_found_by_halves(data: st.DataObject) -> None:
    """One commit is left, after no more trials than halves of the history."""
    count = data.draw(st.integers(1, 200))
    culprit = data.draw(st.integers(0, count - 1))

    (low, high), trial_count = searched(count, culprit)

    assert (low, high) == (culprit - 1, culprit)
    assert trial_count <= math.ceil(math.log2(count))


@given(st.data())
def test_skipped_commits_leave_the_culprit_between_the_bounds(
    data: st.DataObject,
) -> None:
    """Only they are left beside it: no commit in between could say more."""
    count = data.draw(st.integers(1, 40))
    culprit = data.draw(st.integers(0, count - 1))
    unusable = data.draw(st.frozensets(st.integers(0, max(0, count - 2))))

    (low, high), _ = searched(count, culprit, unusable)

    assert low < culprit <= high
    assert all(place in unusable for place in range(low + 1, high))


@pytest.mark.parametrize(
    ("outcomes", "place"),
    [
        ([BAD], None),
        ([None, BAD], 0),
        ([None, None, None, BAD], 1),
        ([None, SKIPPED, None, BAD], 0),
        ([GOOD, SKIPPED, None, BAD], 2),
        ([GOOD, SKIPPED, BAD, None, BAD], None),
    ],
)
def test_the_nearest_to_the_middle_is_next(
    outcomes: list[TrialOutcome | None], place: int | None
) -> None:
    """Of what lies between the last good commit and the first bad one."""
    assert next_place(outcomes) == place


def test_a_good_commit_after_a_bad_one_says_nothing() -> None:
    """The first bad one is looked for: what came after it may have been mended."""
    assert bounds([GOOD, BAD, GOOD, BAD]) == (0, 1)


@pytest.mark.parametrize("trial_count", [2, 6])
def test_a_search_spends_no_more_than_one_comparison(trial_count: int) -> None:
    """Its looks begin as early and go on for longer, and nothing is given up early."""
    usual, policy = AgainstPolicy(), search_policy(trial_count)

    assert sum(policy.levels) * trial_count <= sum(usual.levels) * (1 + 1e-9)
    assert policy.look_blocks[:3] == usual.look_blocks
    assert policy.look_blocks[-1] == MOST_BLOCKS
    assert len(policy.levels) == len(policy.look_blocks)
    assert policy.hopeless_width == math.inf
