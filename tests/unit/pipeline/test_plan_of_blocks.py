"""pipeline.blocks: what slow tests cost a comparison is known before it is paid."""

from __future__ import annotations

import pytest

from pytest_gpuperf.model.record import Kind, Record, RecordKey
from pytest_gpuperf.model.run import Measured
from pytest_gpuperf.model.sample import Estimate, Source
from pytest_gpuperf.pipeline.blocks import affordable, least_process_s, plan


def measured(
    *times_s: float, samples_count: int = 3, kind: Kind = Kind.MEASURE
) -> Measured:
    """Return a test that measured calls of some times, each as long as its first one."""
    key = RecordKey(test_id="test_it.py::test_it")
    records = []
    for time_s in times_s:
        time = Estimate(
            metric="time",
            value=time_s,
            unit="s",
            source=Source.HOST,
            sample_count=samples_count,
        )
        first = Estimate(
            metric="time.first_call", value=time_s, unit="s", source=Source.HOST
        )
        records.append(Record(key=key, kind=kind, estimates=(time, first)))
    return Measured(test_id=key.test_id, records=tuple(records))


@pytest.mark.parametrize(
    ("test", "least_s"),
    [
        (measured(0.99), 0.0),
        (measured(31.0), 4 * 31.0),
        (measured(2.0, samples_count=5), 4 * 2.0),
        (measured(31.0, samples_count=1), 31.0),
        (measured(31.0, samples_count=2), 2 * 31.0),
        (measured(2.0, 0.5, 3.0), 4 * 5.0),
        (measured(31.0, kind=Kind.RANGE), 31.0),
        (measured(31.0, kind=Kind.STEPS), 0.0),
        (measured(), 0.0),
    ],
)
def test_what_a_process_takes_at_least(test: Measured, least_s: float) -> None:
    """Three samples after the first call, or all iterations with it; a block once."""
    assert least_process_s(test) == least_s


def test_a_number_of_the_users_own_is_no_time() -> None:
    """Nor is a time without a unit of time."""
    key = RecordKey(test_id="test_it.py::test_it", name="time")
    own = Estimate(metric="time", value=99.0, unit="row", source=Source.USER)
    record = Record(key=key, kind=Kind.RECORD, estimates=(own,))

    assert least_process_s(Measured(test_id=key.test_id, records=(record,))) == 0


def test_the_budget_holds_the_shortest_tests() -> None:
    """One slow test must not take the time of all others."""
    tests = {"slow": measured(31.0), "fast": measured(0.1), "second": measured(2.0)}
    planned = plan(tests, budget_s=600.0, block_count=4)

    assert list(planned.left_out) == ["slow"]
    assert planned.least_s == 16 * 4 * 2.0
    gap = planned.left_out["slow"]
    assert gap.reason == (
        "4 blocks of slow take 33 min or more, and the budget is 10 min: it is not compared"
    )
    assert gap.remedy.startswith("give it more (--gpuperf-budget=53min)")


def test_the_remedy_of_a_budget_works() -> None:
    """What it names holds all tests."""
    tests = {"slow": measured(31.0), "second": measured(2.0)}
    assert plan(tests, budget_s=53 * 60.0, block_count=4).left_out == {}


def test_fast_tests_are_never_left_out() -> None:
    """However small the budget is: what they take is not known before."""
    tests = {f"test_{number}": measured(0.9) for number in range(500)}
    assert plan(tests, budget_s=1.0, block_count=4).left_out == {}


def test_several_tests_that_are_left_out_share_a_reason() -> None:
    """One line names them."""
    tests = {"a": measured(31.0), "b": measured(40.0)}
    planned = plan(tests, budget_s=60.0, block_count=4)

    assert len(set(planned.left_out.values())) == 1
    assert "they are not compared" in planned.left_out["a"].reason


@pytest.mark.parametrize(
    ("left_s", "kept"),
    [(1000.0, "abcd"), (160.0, "abcd"), (159.0, "abc"), (81.0, "ab"), (1.0, "a")],
)
def test_what_is_left_of_a_budget_is_for_the_first_tests(
    left_s: float, kept: str
) -> None:
    """Four blocks of a test take 40 s: fewer tests reach the next look, in their order."""
    first = affordable(tuple("abcd"), block_count=4, test_s=10.0, left_s=left_s)

    assert "".join(first) == kept


def test_before_the_first_block_every_test_is_measured() -> None:
    """What they take is not known."""
    assert affordable(("a", "b"), block_count=4, test_s=0.0, left_s=1.0) == ("a", "b")
