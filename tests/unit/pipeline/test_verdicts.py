"""pipeline.verdicts: what confirming processes say of tests, and of their machine."""

from __future__ import annotations

import pytest

from pytest_gpuperf.judge.case import Case
from pytest_gpuperf.judge.confirmation import Retest
from pytest_gpuperf.judge.look import FirstLook, first_look
from pytest_gpuperf.judge.retests import confirmations
from pytest_gpuperf.model.record import BoundClass, Kind, Record, RecordKey, Role
from pytest_gpuperf.model.verdict import Outcome
from pytest_gpuperf.pipeline.verdicts import changes, shifts
from unit.judge.building import case, estimate

THEN = (1.0, 1.004, 0.996, 1.002, 0.998)
CONTROLS = tuple(f"test_{number}" for number in range(8))


def measured(test_id: str, now: float) -> Case:
    """A memory-bound test as its first process measured it."""
    key = RecordKey(test_id=test_id)
    return case(now, THEN, key=key, bound_class=BoundClass.MEMORY)


def looked_at(suspect: float, others: float) -> FirstLook:
    """A first look at one suspect and eight tests that can be its controls."""
    cases = (
        measured("suspect", suspect),
        *(measured(test_id, others) for test_id in CONTROLS),
    )
    return FirstLook(
        cases=cases,
        looks=first_look(cases),
        suspects=("suspect",),
        controls=CONTROLS,
    )


def again(looked: FirstLook, value: float) -> dict[str, Retest]:
    """What five fresh processes gave: of every test the same."""
    return {
        each.key.test_id: Retest(
            records=tuple(
                Record(
                    key=each.key,
                    kind=Kind.MEASURE,
                    estimates=(estimate(value),),
                    role=Role.CONFIRM,
                    process_index=number,
                    choice="A",
                )
                for number in range(1, 6)
            )
        )
        for each in looked.cases
    }


def test_a_machine_that_moved_is_told_once_and_is_no_regression() -> None:
    """Suspect and controls are slower alike: one sentence on their class, no verdict."""
    looked = looked_at(1.06, 1.0)
    found = confirmations(looked, again(looked, 1.06))
    (shift,) = shifts(looked, found, ())
    verdicts = changes(looked, found, (), complete=True)

    assert (shift.bound_class, shift.metric) == (BoundClass.MEMORY, "time")
    assert shift.effect == pytest.approx(0.06, abs=0.005)
    assert (shift.control_count, shift.moved) == (8, True)
    assert {verdict.outcome for verdict in verdicts} == {Outcome.UNCHANGED}
    confirmed = [effect for v in verdicts for effect in v.confirmations]
    assert confirmed == pytest.approx([0.0] * len(confirmed), abs=0.02)
    assert confirmed


def test_a_machine_that_stood_still_is_recorded_as_such() -> None:
    """What the controls show is kept; that it is not more than noise, too."""
    looked = looked_at(1.2, 1.0)
    (shift,) = shifts(looked, confirmations(looked, again(looked, 1.0)), ())

    assert abs(shift.effect) < 0.005
    assert not shift.moved


def test_where_nothing_was_measured_again_nothing_is_known_of_the_machine() -> None:
    """Without confirming processes there is no shift, moved or not."""
    looked = looked_at(1.2, 1.0)

    assert shifts(looked, confirmations(looked, {}), ()) == ()
