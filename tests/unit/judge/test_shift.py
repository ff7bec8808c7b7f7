"""The rules of judge/shift: what controls say of the machine, and whom it moved."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import stdev, variance
from typing import Any

import pytest
from scipy.special import stdtrit

from pytest_gpuperf.judge.case import Case, Confirmation, Policy
from pytest_gpuperf.judge.shift import Name, class_shifts, machine_shifts
from pytest_gpuperf.model.change import Shift
from pytest_gpuperf.model.record import BoundClass, RecordKey
from unit.judge.building import case, confirmation, estimate, stored

THEN = (1.0,) * 5
FIRST, AGAIN = 1.1, 1.2  # of a class that moved, and moved on before its controls
GROUP = "memory time"


def one(name: str, now: float = FIRST, **fields: Any) -> Case:
    """One memory-bound test, unless more is said."""
    given: dict[str, Any] = {
        "then": THEN,
        "key": RecordKey(test_id=name),
        "bound_class": BoundClass.MEMORY,
    }
    return case(now, **(given | fields))


def suite(count: int, name: str = "t", now: float = FIRST, **fields: Any) -> list[Case]:
    """Some tests that are alike."""
    return [one(f"{name}{number}", now, **fields) for number in range(count)]


def repeated(
    cases: Sequence[Case], *values: float, control: bool = False
) -> dict[Name, Confirmation]:
    """Fresh processes of each case."""
    return {c.name: confirmation(*(values or (AGAIN,)), control=control) for c in cases}


def shifts(
    cases: Sequence[Case],
    *confirmed: dict[Name, Confirmation],
    policy: Policy | None = None,
) -> dict[str, Shift]:
    """What the machine did to each class, without priors."""
    merged = {name: found for some in confirmed for name, found in some.items()}
    return class_shifts(cases, merged, {}, policy or Policy())


# controls


def test_unsuspected_tests_say_what_moved_and_controls_what_has_moved_since() -> None:
    """A suspect says nothing, nor does who stands before the controls unmeasured."""
    calm, suspect = suite(11), one("suspect", 9.0)
    everyone = [*calm[8:], *calm[:8], suspect]
    found = shifts(everyone, repeated(calm[:8], control=True), repeated([suspect], 9.0))

    assert found.keys() == {GROUP}
    assert found[GROUP].log_shift == pytest.approx(math.log(AGAIN))
    assert (found[GROUP].test_count, found[GROUP].control_count) == (11, 8)


def test_where_nothing_is_suspected_nothing_is_asked() -> None:
    """Controls without a suspect are nobody's."""
    calm = suite(8)

    assert shifts(calm, repeated(calm, control=True)) == {}


def test_a_class_without_a_suspect_is_left_alone() -> None:
    """Another class's suspect is not a reason to look for a shift of this one."""
    calm, suspects = suite(8), suite(8, "s", bound_class=BoundClass.COMPUTE)

    assert shifts([*calm, *suspects], repeated(suspects)).keys() == {"compute time"}


@pytest.mark.parametrize(
    ("suspected", "controls", "told"),
    [
        (3, 3, True),  # enough controls, and 5 of 8 tests that nobody suspects
        (3, 2, False),  # two controls are one test's noise
        (4, 4, False),  # half of the class is suspected
    ],
)
def test_controls_stand_for_a_class_that_is_mostly_calm(
    suspected: int, controls: int, *, told: bool
) -> None:
    """Else all are asked, and stored sessions that never moved know of no shift."""
    calm, suspects = suite(8 - suspected), suite(suspected, "s")
    again = (repeated(calm[:controls], control=True), repeated(suspects))
    found = shifts([*calm, *suspects], *again)[GROUP]

    assert found.control_count == (controls if told else 0)
    assert found.log_shift == pytest.approx(math.log(AGAIN) if told else 0.0)


def test_the_controls_of_few_tests_stand_for_them_however_many_are_suspected() -> None:
    """A class of seven has no median of its own to be told by."""
    calm, suspects = suite(3), suite(4, "s", 9.0)
    again = (repeated(calm, control=True), repeated(suspects, 9.0))
    found = shifts([*calm, *suspects], *again)[GROUP]

    assert found.log_shift == pytest.approx(math.log(AGAIN))
    assert (found.control_count, found.test_count) == (3, 0)


def test_controls_alone_are_held_against_sessions_without_their_shifts() -> None:
    """A control that lacks a session that moved is not moved by its absence."""
    policy = Policy(class_count=4, least_controls=1)
    moved = stored((1.0, 1.0, 1.0, 1.5))
    suspects = suite(2, "s", stored=moved)
    control, *calm = suite(3, stored=moved)
    control = one("control", stored=moved[1:])
    everyone = [*suspects, control, *calm]
    again = (repeated(suspects), repeated([control], control=True))
    found = shifts(everyone, *again, policy=policy)[GROUP]

    step = math.log(1.5)
    assert found.test_count == 0
    assert found.sessions["s3"] == pytest.approx(0.75 * step)
    # without its own shift each of the control's sessions is a quarter step higher
    assert found.log_shift == pytest.approx(math.log(AGAIN) - 0.25 * step)


@pytest.mark.parametrize(("first", "again"), [(0.0, 1.0), (1.0, 0.0), (1.0, -1.0)])
def test_a_value_without_a_logarithm_is_no_control(first: float, again: float) -> None:
    """Neither a first value nor one of a fresh process."""
    controls, suspect = suite(3), one("suspect", 9.0)
    odd = one("odd", first)
    found = shifts(
        [odd, *controls, suspect],
        repeated([odd], again, control=True),
        repeated(controls, control=True),
        repeated([suspect]),
    )

    assert found[GROUP].control_count == 3


@pytest.mark.parametrize(
    "fields",
    [
        {"metric": "dram.bytes"},
        {"metric": "registers"},
        {"estimate": estimate(1.0, source="ncu-report")},
    ],
)
def test_what_no_machine_moves_has_no_shift(fields: dict[str, Any]) -> None:
    """Bytes with noise, a count, and a time that every reading of a file gives again."""
    *controls, suspect = suite(4, **fields)

    assert (
        shifts(
            [*controls, suspect], repeated(controls, control=True), repeated([suspect])
        )
        == {}
    )


def test_a_case_that_no_number_decides_is_passed_over() -> None:
    """Those that come after it are not."""
    new, controls, suspect = one("new", then=()), suite(3), one("suspect")
    again = (repeated(controls, control=True), repeated([suspect]))

    assert shifts([new, *controls, suspect], *again)[GROUP].control_count == 3


# a class that is suspected as a whole


def on_boards(moves: Sequence[float], now: float, classes: int = 1) -> dict[str, Shift]:
    """A suspected class whose stored sessions moved so far, and other classes."""
    then = tuple(math.exp(move) for move in moves)
    policy = Policy(class_count=3, least_sessions=1)
    suspects = suite(3, now=math.exp(now), then=then)
    rest = list(BoundClass)[: classes - 1]
    assert BoundClass.MEMORY not in rest
    alone = [one(bound.value, bound_class=bound, then=then) for bound in rest]
    return shifts([*suspects, *alone], repeated(suspects, math.exp(now)), policy=policy)


@pytest.mark.parametrize("classes", [1, 2])
@pytest.mark.parametrize(
    "moves", [(-0.1, 0.1), (-0.1, 0.0, 0.1), (-0.2, -0.1, 0.0, 0.1, 0.2)]
)
def test_what_sessions_did_not_do_is_not_the_machines(
    moves: tuple[float, ...], classes: int
) -> None:
    """The interval of a new session is the border, of all classes at once."""
    count = len(moves)
    upper = 1 - Policy().alpha / classes / 2
    sure = float(stdtrit(count - 1, upper))
    border = sure * stdev(moves) * math.sqrt(1 + 1 / count)
    within = on_boards(moves, 0.999 * border, classes)[GROUP]
    beyond = on_boards(moves, 1.001 * border, classes)[GROUP]

    assert (within.control_count, within.test_count) == (3, 3)
    assert within.log_shift == pytest.approx(0.999 * border)
    assert (beyond.control_count, beyond.test_count, beyond.log_shift) == (0, 0, 0.0)
    assert list(beyond.sessions.values()) == pytest.approx(moves)
    assert beyond.common_variance == pytest.approx(variance(moves))
    assert beyond.common_dof == count - 1


def test_one_session_says_nothing_of_how_far_sessions_move() -> None:
    """Its shift is not known, and its spread is not either."""
    found = on_boards((0.0,), 0.1)[GROUP]

    assert (found.control_count, found.log_shift) == (0, 0.0)
    assert (found.common_variance, found.common_dof) == (0.0, 1)


def test_a_machine_that_stood_still_again_is_as_usual() -> None:
    """No move is within an interval without width."""
    found = on_boards((0.0, 0.0, 0.0), 0.0)[GROUP]

    assert (found.control_count, found.log_shift) == (3, 0.0)


def test_two_of_a_class_are_too_few_to_be_asked() -> None:
    """However usual its move, as long as nobody else was measured again."""
    then = (0.9, 1.0, 1.1)
    everyone = suite(8, now=1.0, then=then)
    two = shifts(everyone, repeated(everyone[:2], 1.0))[GROUP]
    three = shifts(everyone, repeated(everyone[:3], 1.0))[GROUP]

    assert (two.control_count, three.control_count) == (0, 3)


# what a report says of it


def test_a_move_counts_beyond_the_noise_threshold() -> None:
    """At the threshold itself the machine has not moved."""
    everyone = suite(4, now=1.0)
    again = {
        **repeated(everyone[:3], 1.0, control=True),
        **repeated(everyone[3:], 1.0),
    }
    (still,) = machine_shifts(everyone, again, Policy(noise_threshold=0.0))

    assert (still.effect, still.control_count, still.moved) == (0.0, 3, False)


def test_the_moves_of_classes_are_told_in_order() -> None:
    """By class and metric, each with its own size."""
    cases: list[Case] = []
    again: dict[Name, Confirmation] = {}
    for bound, value in ((BoundClass.MEMORY, 1.3), (BoundClass.COMPUTE, 1.002)):
        four = suite(4, bound.value, bound_class=bound)
        cases += four
        again |= repeated(four[:3], value, control=True) | repeated(four[3:])
    found = machine_shifts(cases, again)

    assert [shift.bound_class for shift in found] == [
        BoundClass.COMPUTE,
        BoundClass.MEMORY,
    ]
    assert [shift.effect for shift in found] == pytest.approx([0.002, 0.3])
    assert [shift.moved for shift in found] == [False, True]
