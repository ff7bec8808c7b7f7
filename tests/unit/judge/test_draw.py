"""judge.look: which tests a session that stores measures alone."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from pytest_gpuperf.judge.retests import Candidate, draw_alone


def suite_of(
    count: int, *, known: Sequence[int] = (), duration_s: float = 1.0
) -> list[Candidate]:
    """Return tests in the order of a run; those of some places have an alone value."""
    return [
        Candidate(
            test_id=str(place), alone_count=int(place in known), duration_s=duration_s
        )
        for place in range(count)
    ]


def places(
    candidates: Sequence[Candidate], *, budget_s: float = 0.0, turn: int = 0
) -> list[int]:
    """Return the places of the tests that are drawn."""
    return [*map(int, draw_alone(candidates, budget_s=budget_s, turn=turn))]


def test_all_of_a_few_are_drawn() -> None:
    """In the order of the run, whatever their time."""
    assert places(suite_of(3)) == [0, 1, 2]
    assert places([]) == []


@pytest.mark.parametrize(("budget_s", "count"), [(0.0, 8), (8.0, 8), (20.0, 20)])
def test_more_than_eight_are_drawn_while_they_fit(budget_s: float, count: int) -> None:
    """A tenth of the time of a large suite holds more tests than eight."""
    assert len(places(suite_of(200), budget_s=budget_s)) == count


def test_one_that_does_not_fit_leaves_the_rest_to_others() -> None:
    """A test of a minute is no reason to measure none of the short ones."""
    quick = suite_of(100, duration_s=0.1)
    drawn = places(quick, budget_s=2.05)
    (long, *_) = {*drawn} - {*places(quick)}
    slow = [*quick]
    slow[long] = Candidate(test_id=str(long), alone_count=0, duration_s=60.0)
    instead = places(slow, budget_s=2.05)

    assert len(drawn) == len(instead) == 20
    assert long not in instead


@pytest.mark.parametrize("count", [9, 40, 200, 1000])
def test_they_come_from_all_over_the_run(count: int) -> None:
    """No stretch of three eighths of the run is left out."""
    drawn = [-1, *places(suite_of(count)), count]
    gaps = [later - before for before, later in itertools.pairwise(drawn)]

    assert len(drawn) == 10
    assert max(gaps) <= 3 * count / 8 + 1


def test_those_with_the_fewest_values_come_first() -> None:
    """Each test has one before any has two."""
    known = [place for place in range(40) if place not in {3, 17, 39}]

    assert {3, 17, 39} <= {*places(suite_of(40, known=known))}


def test_every_test_has_its_turn() -> None:
    """Session after session, until all have a value: 8 of 40 take five."""
    known: set[int] = set()
    for turn in range(5):
        known.update(places(suite_of(40, known=[*known]), turn=turn))

    assert known == {*range(40)}


def test_tests_that_never_have_a_value_leave_others_theirs() -> None:
    """Ten of 40 fail alone; the 30 others have a value after some sessions."""
    failing = {*range(0, 40, 4)}
    known: set[int] = set()
    for turn in range(30):
        drawn = places(suite_of(40, known=[*known]), turn=turn)
        known.update(place for place in drawn if place not in failing)

    assert known == {*range(40)} - failing
