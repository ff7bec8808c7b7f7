"""judge.holding: whose outcome waits until the whole suite is known."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.judge.case import Case
from pytest_gpuperf.judge.holding import may_regress
from pytest_gpuperf.judge.regression import first_look
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.metric import Better, Family, Metric
from unit.judge.building import case, stored

THEN = (1.0, 1.01, 0.99)
VALUES = st.one_of(st.floats(0.5, 2.0), st.sampled_from([-1.0, 0.0, 1.0, 64.0]))
METRICS = st.sampled_from(["time", "throughput", "registers", "memory.peak_bytes"])


@pytest.mark.parametrize(
    ("now", "choice", "waits"),
    [(1.2, "A", True), (1.01, "A", False), (2.4, "B", True), (2.0, "B", False)],
)
def test_a_choice_is_compared_with_its_own_sessions(
    now: float, choice: str, waits: bool
) -> None:
    """Slower than the sessions of its kernels waits, whatever other kernels took."""
    then = (*stored(THEN, choice="A"), *stored((2.0, 2.02, 1.98), choice="B"))

    assert may_regress(case(now, (), stored=then, choice=choice)) is waits


def test_a_mean_is_the_one_that_decides() -> None:
    """One slow stored session hides nothing that the judgement by logarithms sees."""
    assert may_regress(case(1.18, (0.9, 1.0, 1.6)))


@given(
    now=VALUES,
    then=st.lists(st.tuples(VALUES, st.sampled_from("AB")), min_size=1, max_size=7),
    choice=st.sampled_from("AB"),
    metric=METRICS,
)
def test_whoever_looks_worse_at_the_end_has_waited(
    now: float, then: list[tuple[float, str]], choice: str, metric: str
) -> None:
    """No test fails whose outcome was told before."""
    sessions = tuple(s for value, made in then for s in stored([value], choice=made))
    subject = case(now, (), metric, stored=sessions, choice=choice)
    (look,) = first_look([subject])

    assert may_regress(subject) or not look.worse


def own(value: float, then: tuple[float, ...], better: Better) -> Case:
    """A case of a number of the user's own, of which any value is possible."""
    metric = Metric(
        name="x", unit="", better=better, family=Family.RECORDED, meaning="a number"
    )
    return replace(case(value, then), metric=metric)


@pytest.mark.parametrize(
    ("now", "better", "waits"),
    [
        (1.0, Better.LOWER, True),
        (0.0, Better.LOWER, False),
        (-1.0, Better.LOWER, False),
        (-1.0, Better.HIGHER, True),
        (1.0, Better.HIGHER, False),
    ],
)
def test_what_came_of_nothing_waits_where_it_is_worse(
    now: float, better: Better, waits: bool
) -> None:
    """Against a baseline of 0 no limit is a share: any step the wrong way waits."""
    assert may_regress(own(now, (0.0, 0.0, 0.0), better)) is waits


def test_a_count_waits_beyond_its_limit_alone() -> None:
    """What is judged by equality is decided by one value: the limit is the border."""
    assert may_regress(case(68, (64, 64, 64), "registers"))
    assert not may_regress(case(67, (64, 64, 64), "registers"))


@pytest.mark.parametrize("limit", [None, 0.05])
def test_what_cannot_be_judged_does_not_wait(limit: float | None) -> None:
    """Without a limit, or with too few sessions, nothing can regress."""
    then = THEN if limit is None else THEN[:2]

    assert not may_regress(case(9.0, then, limit=limit))
