"""model.environment.same_company: which sessions ran about as many tests."""

from __future__ import annotations

import pytest

from pytest_gpuperf.model.environment import Session, same_company


def session(ran_count: int | None) -> Session:
    """Return a session that ran a number of test bodies."""
    return Session(id="s", started_unix_s=0.0, host="h", ran_count=ran_count)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (40, 40, True),
        (40, 20, True),
        (40, 19, False),
        (1, 1, True),
        (1, 2, True),
        (1, 3, False),
        (0, 0, True),
        (0, 1, False),
        (None, 1, True),
        (None, None, True),
    ],
)
def test_half_as_many_tests_are_the_same_company(
    one: int | None, other: int | None, *, same: bool
) -> None:
    """Whichever of the two ran more; a session of before they were counted fits all."""
    assert same_company(session(one), session(other)) is same
    assert same_company(session(other), session(one)) is same
