"""The rules of docs/judging.md section 2, suite and alone: one test in two states."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_gpuperf.judge.case import POLICY, Case, Reference
from pytest_gpuperf.judge.confirmation import Confirmation
from pytest_gpuperf.judge.look import first_look
from pytest_gpuperf.judge.regression import settle
from pytest_gpuperf.judge.retests import machine_shifts
from pytest_gpuperf.judge.rule import comparable, may_change
from pytest_gpuperf.model.change import Comparison
from pytest_gpuperf.model.environment import Session
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.metric import Better, metric_of
from pytest_gpuperf.model.record import BoundClass, RecordKey, SessionValue
from pytest_gpuperf.model.sample import CoreSpeed
from pytest_gpuperf.model.verdict import Cause, Outcome, Reason, Verdict
from unit.judge.building import case, confirmation, estimate, processes, stored

US = 1e-6
THEN = tuple(value * US for value in (221.0, 228.0, 232.0, 236.0, 242.0))
ALONE = tuple(value * US for value in (482.0, 500.0, 516.0, 495.0, 505.0))
QUIET = (1.0, 1.01, 0.99, 1.005, 0.995)
LIKE = (1.0, 1.004, 0.996, 1.002, 0.998)  # a value in some fresh processes


def quiet(number: int) -> Case:
    """A test that did not change, in the suite or alone."""
    return case(1.0, QUIET, key=RecordKey(test_id=f"quiet_{number}"))


def timed_alone(
    subject: Case, values: Sequence[float], *, suspected: bool = False
) -> Case:
    """The same with values alone in its oldest stored sessions."""
    several = list(subject.stored)
    for place, value in enumerate(values):
        own = replace(several[place].value, alone_values=(value,), suspected=suspected)
        several[place] = replace(several[place], value=own)
    return replace(subject, stored=tuple(several))


def judged(
    subject: Case,
    alone: Sequence[float],
    *,
    controls: int = 5,
    step: float = 1.0,
    references: Sequence[Reference] = (),
) -> Verdict:
    """The verdict on a suspect beside quiet tests, all slower alone by a factor."""
    cases = [subject, *map(quiet, range(controls))]
    found = {
        each.name: confirmation(*[step * value for value in LIKE], control=True)
        for each in cases[1:]
    }
    found[subject.name] = confirmation(*alone)
    verdict, *others = settle(cases, found, references=references)
    assert all(other.outcome is Outcome.UNCHANGED for other in others)
    return verdict


def test_what_is_twice_as_slow_alone_has_not_regressed() -> None:
    """The suite's value is like the stored ones; the fresh processes have other memory."""
    verdict = judged(case(245 * US, THEN), ALONE)

    assert (verdict.outcome, verdict.reason, verdict.cause) == (
        Outcome.INCONCLUSIVE,
        Reason.NOT_CONFIRMED,
        Cause.OTHER_ALONE,
    )
    assert verdict.change is not None
    assert verdict.change.effect == pytest.approx(0.0575, abs=0.003)
    assert verdict.alone is not None
    assert verdict.alone.effect == pytest.approx(1.158, abs=0.01)
    assert verdict.alone.p_worse is not None
    assert verdict.alone.p_worse < 1e-5  # by itself it would be a regression


def test_what_is_within_the_limit_in_the_suite_is_unchanged() -> None:
    """Whatever it takes alone; what that is, is told."""
    verdict = judged(case(242 * US, THEN), ALONE)

    assert (verdict.outcome, verdict.reason) == (
        Outcome.UNCHANGED,
        Reason.WITHIN_NOISE,
    )
    assert verdict.alone is not None


def test_a_stored_value_alone_tells_what_is_usual() -> None:
    """It is as slow alone as it was: nothing changed, and nothing is left to tell."""
    subject = timed_alone(case(245 * US, THEN), [478 * US])
    verdict = judged(subject, ALONE)

    assert verdict.outcome is Outcome.UNCHANGED
    assert verdict.change is not None
    assert verdict.change.effect == pytest.approx(0.0, abs=0.045)


def test_a_regression_is_found_though_the_test_is_another_alone() -> None:
    """By its stored value alone; without one, where both differ by no factor of 2."""
    slower = [1.5 * value for value in ALONE]
    known = timed_alone(case(1.5 * 232 * US, THEN), [500 * US])

    assert judged(known, slower).outcome is Outcome.REGRESSED
    assert judged(case(400 * US, THEN), ALONE).outcome is Outcome.REGRESSED


def test_a_change_in_the_suite_alone_is_not_confirmed() -> None:
    """Alone it takes what it took alone: another test left something behind."""
    subject = timed_alone(case(400 * US, THEN), [500 * US])

    assert judged(subject, ALONE).outcome is Outcome.UNCHANGED


def test_the_two_must_tell_the_same_within_a_factor_of_2() -> None:
    """Where nothing usual explains the step, neither is believed against the other."""
    assert judged(case(280 * US, THEN), ALONE).cause is Cause.OTHER_ALONE
    assert judged(case(350 * US, THEN), ALONE).outcome is Outcome.REGRESSED


def test_suite_and_fresh_processes_that_agree_do_not_contradict() -> None:
    """Two sessions of tests that differ by 15 % are too few for a change that both show."""
    subject = case(1.65, (1.0, 1.0))
    others = [
        case(1.0, (1.0, 1.15), key=RecordKey(test_id=f"other_{number}"))
        for number in range(2)
    ]
    found = {other.name: confirmation(*LIKE, control=True) for other in others}
    found[subject.name] = confirmation(1.57, 1.65, 1.7, 1.62, 1.67)
    verdict, *_ = settle([subject, *others], found)

    assert (verdict.outcome, verdict.reason, verdict.cause) == (
        Outcome.INCONCLUSIVE,
        Reason.NOT_SIGNIFICANT,
        Cause.FEW_SESSIONS,
    )


@pytest.mark.parametrize("shifted_count", [0, 1, 2])
@pytest.mark.parametrize("is_known", [False, True])
def test_a_suite_that_moves_tests_by_itself_may_have_moved_any(
    shifted_count: int, *, is_known: bool
) -> None:
    """Suite and fresh processes may agree by chance, unless it is known how it is alone."""
    subject = case(1.45, QUIET)
    if is_known:
        subject = timed_alone(subject, [1.0])
    shifted = [
        case(1.3, QUIET, key=RecordKey(test_id=f"shifted_{number}"))
        for number in range(shifted_count)
    ]
    cases = [subject, *shifted, *map(quiet, range(5))]
    found = {each.name: confirmation(*LIKE, control=True) for each in cases[-5:]}
    found |= {each.name: confirmation(*LIKE) for each in shifted}
    found[subject.name] = confirmation(*[1.35 * value for value in LIKE])
    verdict, *others = settle(cases, found)

    assert all(other.outcome is Outcome.UNCHANGED for other in others)
    if is_known or not shifted_count:
        assert (verdict.outcome, verdict.evidence) == (Outcome.REGRESSED, None)
        return
    assert (verdict.outcome, verdict.cause) == (
        Outcome.INCONCLUSIVE,
        Cause.OTHER_ALONE,
    )
    assert verdict.evidence is not None
    assert verdict.evidence.lines == (
        f"tests that moved in the suite and not alone: {shifted_count}",
    )


def test_a_process_that_is_as_far_off_makes_a_move_of_the_suite_doubtful() -> None:
    """On such a machine the suite's only process may have been one of them."""
    subject = case(1.45, QUIET)
    other = case(1.3, QUIET, key=RecordKey(test_id="other"))
    cases = [subject, other, *map(quiet, range(5))]
    found = {each.name: confirmation(*LIKE, control=True) for each in cases[2:]}
    found[subject.name] = confirmation(*[1.35 * value for value in LIKE])
    found[other.name] = confirmation(*LIKE)
    like_the_suite = {**found, other.name: confirmation(*LIKE[:4], 1.35)}

    assert settle(cases, found)[0].cause is Cause.OTHER_ALONE
    assert settle(cases, like_the_suite)[0].outcome is Outcome.REGRESSED


def test_what_agrees_to_a_percent_hardly_does_so_by_chance() -> None:
    """A change is found though the suite moved another test."""
    cases = [
        case(1.6, QUIET),
        case(1.3, QUIET, key=RecordKey(test_id="shifted")),
        *map(quiet, range(5)),
    ]
    found = {each.name: confirmation(*LIKE, control=True) for each in cases[2:]}
    found[cases[1].name] = confirmation(*LIKE)
    found[cases[0].name] = confirmation(*[1.605 * value for value in LIKE])

    assert settle(cases, found)[0].outcome is Outcome.REGRESSED


def test_what_all_tests_have_in_common_alone_is_no_change() -> None:
    """Cold caches: each is 20 % slower alone, and a real change is still found."""
    unchanged = judged(case(1.06, QUIET), [1.2 * v for v in LIKE], step=1.2)
    changed = judged(case(1.3, QUIET), [1.3 * 1.2 * v for v in LIKE], step=1.2)

    assert unchanged.outcome is Outcome.UNCHANGED
    assert changed.outcome is Outcome.REGRESSED
    assert changed.change is not None
    assert changed.change.effect == pytest.approx(0.3, abs=0.01)
    assert changed.confirmations == pytest.approx([1.3 * v - 1 for v in LIKE], abs=0.01)


def references(fresh: float = 1.0) -> list[Reference]:
    """Three workloads of the plugin's own, and what fresh processes took for them."""
    return [
        Reference(
            name=f"{number}",
            bound_class=BoundClass.HOST,
            current=processes([1.0]),
            stored=stored(QUIET),
            fresh=processes([fresh * value for value in LIKE]),
        )
        for number in range(3)
    ]


def test_a_step_that_no_reference_shares_is_no_drift_of_the_machine() -> None:
    """The tests alone are colder: the machine did what the references say."""
    cases = [case(1.3, QUIET), *map(quiet, range(5))]
    found = {
        each.name: confirmation(*[1.2 * value for value in LIKE], control=True)
        for each in cases[1:]
    }
    found[cases[0].name] = confirmation(*[1.5 * value for value in LIKE])
    (cold,) = machine_shifts(cases, found, references=references())
    (drift,) = machine_shifts(cases, found, references=references(1.2))

    assert (cold.moved, cold.control_count, cold.controls) == (False, 3, ())
    assert drift.effect == pytest.approx(0.2, abs=0.01)
    assert drift.control_count == 8


def own_number(now: float, then: Sequence[float], better: Better) -> Case:
    """A number of the test's own, that gets better in a direction."""
    subject = case(now, then)
    name = f"{better.value} is better"
    return replace(
        subject,
        metric=metric_of(name, unit="count", better=better),
        estimate=estimate(now, name, unit="count"),
    )


@pytest.mark.parametrize("now", [245.0, 300.0, 400.0, 180.0])
def test_a_number_that_is_better_when_it_is_higher_is_turned_round(now: float) -> None:
    """What falls by as much as another rises is as much worse, in the suite and alone."""
    then, alone = (
        (221.0, 228.0, 232.0, 236.0, 242.0),
        (482.0, 500.0, 516.0, 495.0, 505.0),
    )
    cost = own_number(now, then, Better.LOWER)
    rate = own_number(1 / now, [1 / value for value in then], Better.HIGHER)
    (of_cost,) = settle([cost], {cost.name: confirmation(*alone)})
    again = confirmation(*[1 / value for value in alone])
    (of_rate,) = settle([rate], {rate.name: again})
    one, other = of_cost.change, of_rate.change
    assert one is not None
    assert other is not None

    assert (of_rate.outcome, of_rate.reason, of_rate.cause) == (
        of_cost.outcome,
        of_cost.reason,
        of_cost.cause,
    )
    assert other.p_worse == pytest.approx(one.p_worse)
    assert other.p_better == pytest.approx(one.p_better)


@given(
    st.floats(0.7, 1.5),
    st.lists(st.floats(0.7, 1.5), min_size=5, max_size=5),
)
@settings(max_examples=25, deadline=None)
def test_an_improvement_is_the_mirror_image(now: float, again: list[float]) -> None:
    """What is as much faster as another is slower is told in the same way."""
    slower = judged_alone(now, QUIET, again)
    faster = judged_alone(1 / now, [1 / v for v in QUIET], [1 / v for v in again])
    one, other = slower.change, faster.change
    assert one is not None
    assert other is not None

    assert one.p_worse == pytest.approx(other.p_better, rel=1e-6)
    assert one.p_better == pytest.approx(other.p_worse, rel=1e-6)
    assert 1 + (one.effect or 0.0) == pytest.approx(1 / (1 + (other.effect or 0.0)))


def judged_alone(now: float, then: Sequence[float], again: Sequence[float]) -> Verdict:
    """The verdict on a test that no other one stands beside, without a limit's edge."""
    subject = case(now, then, limit=0.0)
    (verdict,) = settle([subject], {subject.name: confirmation(*again)})
    return verdict


VALUES = st.sampled_from([0.0, -1.0, 1e-300, 1e-9, 1.0, 1.01, 2.0, 1e12, 1e300])


@given(
    VALUES,
    st.lists(VALUES, min_size=1, max_size=4),
    st.lists(VALUES, min_size=1, max_size=5),
    st.lists(VALUES, max_size=2),
    st.integers(0, 4),
)
@settings(max_examples=150, deadline=None)
def test_no_value_breaks_the_rule(
    now: float,
    then: list[float],
    again: list[float],
    alone: list[float],
    controls: int,
) -> None:
    """Whatever is stored and measured, a verdict is finite: records refuse the rest."""
    subject = timed_alone(case(now, then), alone[: len(then)])
    verdict = settle(
        [subject, *map(quiet, range(controls))],
        {
            subject.name: confirmation(*again),
            **{
                quiet(n).name: confirmation(*LIKE, control=True)
                for n in range(controls)
            },
        },
    )[0]

    assert verdict.outcome in set(Outcome)


def test_a_control_that_is_far_off_alone_moves_nothing() -> None:
    """The median of the controls counts, and few of them say nothing."""
    subject = case(1.2, QUIET)
    cases = [subject, quiet(0)]
    found: dict[Any, Confirmation] = {
        subject.name: confirmation(*[1.2 * value for value in LIKE]),
        cases[1].name: confirmation(*[2.0] * 5, control=True),
    }

    assert settle(cases, found)[0].outcome is Outcome.REGRESSED
    assert settle([subject], found)[0].outcome is Outcome.REGRESSED


def of_session(subject: Case, ran_count: int | None, stored_count: int | None) -> Case:
    """The same, with the tests that this run and the stored sessions ran."""
    now = Session(id="now", started_unix_s=9.0, host="h", ran_count=ran_count)
    several = tuple(
        replace(s, session=replace(s.session, ran_count=stored_count))
        for s in subject.stored
    )
    return replace(subject, session=now, stored=several)


def test_a_run_of_a_part_is_alone_itself() -> None:
    """Its first value is no value of the suite: the two agree, and say nothing."""
    first = case(500 * US, THEN)
    whole = judged(of_session(first, 40, 40), ALONE)
    part = judged(of_session(first, 1, 40), ALONE)
    unknown = judged(of_session(first, None, 40), ALONE)

    assert whole.outcome is Outcome.REGRESSED  # so the suite says
    assert unknown.outcome is Outcome.REGRESSED  # stored before tests were counted
    assert (part.outcome, part.cause) == (Outcome.INCONCLUSIVE, Cause.OTHER_ALONE)
    assert part.evidence is not None
    assert part.evidence.ran == (1, 40)


def test_a_run_of_a_part_is_held_against_stored_values_alone() -> None:
    """Alone against alone: unchanged, and a change is found."""
    first = timed_alone(case(500 * US, THEN), [470 * US, 480 * US])
    unchanged = judged(of_session(first, 1, 40), ALONE)
    slower = replace(first, current=processes([750 * US]))
    changed = judged(of_session(slower, 1, 40), [1.5 * v for v in ALONE])

    assert unchanged.outcome is Outcome.UNCHANGED
    assert changed.outcome is Outcome.REGRESSED


def test_sessions_of_other_company_are_left_out() -> None:
    """A run of the whole suite is compared with such runs, if there are two."""
    subject = of_session(case(1.0, (2.0, 2.0, *QUIET)), 40, 40)
    parts = tuple(
        replace(s, session=replace(s.session, ran_count=1 if place < 2 else 40))
        for place, s in enumerate(subject.stored)
    )
    mixed = replace(subject, stored=parts)
    (verdict,) = settle([mixed])

    assert verdict.change is not None
    assert verdict.change.session_count == len(QUIET)
    assert not first_look([mixed])[0].better


def test_a_test_is_held_by_any_company_that_the_run_may_turn_out_to_have() -> None:
    """How many tests ran is known at the end, and its outcome must wait until then."""
    subject = case(1.3, (*[2.0] * 4, *QUIET[:2]))
    parts = tuple(
        replace(s, session=replace(s.session, ran_count=40 if place < 4 else 1))
        for place, s in enumerate(subject.stored)
    )
    mixed = replace(subject, stored=parts)

    assert not may_change(subject, comparable_of(subject))
    assert may_change(mixed, comparable_of(mixed))


def comparable_of(subject: Case) -> Comparison | None:
    """A case as numbers."""
    return comparable(subject, POLICY)


def test_an_upgrade_makes_a_stored_offset_doubtful() -> None:
    """Versions move what a test takes alone: then the stored value is not believed alone."""
    subject = of_session(timed_alone(case(1.2, QUIET), [1.0] * 4), 1, 40)
    slower = [1.2 * value for value in LIKE]
    upgraded = replace(subject, moved={"numpy": ("1.26", "2.0")})
    other_gpu = replace(subject, moved={"gpu_uuid": ("a", "b")})

    assert judged(subject, slower).outcome is Outcome.REGRESSED
    assert judged(other_gpu, slower).outcome is Outcome.REGRESSED
    assert judged(upgraded, slower).cause is Cause.OTHER_ALONE


def test_only_suspects_pay() -> None:
    """A run without any calls nothing of this rule, however many tests it has."""
    cases = [quiet(number) for number in range(50)]
    called: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            called.add(Path(frame.f_code.co_filename).stem)

    sys.setprofile(note)
    try:
        settle(cases)
    finally:
        sys.setprofile(None)

    assert "change" in called
    assert not called & {"alone", "suspects"}


def test_offsets_alone_make_no_alarm() -> None:
    """One test in ten is far slower alone; by fresh processes alone 5 of 60 runs fail."""
    draw = random.Random(4)
    alarms = by_alone = 0
    for _ in range(60):
        cases = [
            case(
                draw.lognormvariate(0, 0.02),
                [draw.lognormvariate(0, 0.02) for _ in range(3)],
                key=RecordKey(test_id=f"t{number}"),
            )
            for number in range(12)
        ]
        found = {}
        looks = first_look(cases)
        for number, (each, look) in enumerate(zip(cases, looks, strict=True)):
            assert each.current is not None
            slower = 1.6 if number % 3 == 0 else 1.0
            again = [
                slower * each.current.run_values[0] * draw.lognormvariate(0, 0.01)
                for _ in range(5)
            ]
            if look.suspect or number % 3:
                found[each.name] = confirmation(*again, control=not look.suspect)
        verdicts = settle(cases, found, looks=looks)
        alarms += any(v.outcome is Outcome.REGRESSED for v in verdicts)
        by_alone += any(v.alone is not None for v in verdicts)

    assert (alarms, by_alone >= 3) == (0, True)


FAST_S, SLOW_S = 20e-6, 32e-6


def at_cores(
    values: Sequence[float], loops_s: Sequence[float], *, power: float = 1.0
) -> SessionValue:
    """Processes that follow their cores, by a power that each of them hardly shows."""
    return processes(
        [
            v * (loop_s / FAST_S) ** power
            for v, loop_s in zip(values, loops_s, strict=True)
        ],
        cores=tuple(
            CoreSpeed(loop_s=loop_s, slope=power, precision=2.0) for loop_s in loops_s
        ),
    )


def on_cores(number: int, factor: float, loop_s: float) -> Case:
    """A test of steady sessions on fast cores, and of today on another one."""
    then = [at_cores([v], [FAST_S]) for v in QUIET]
    subject = case(factor, QUIET, key=RecordKey(test_id=f"at_core_{number}"))
    stored_alike = tuple(
        replace(s, value=value) for s, value in zip(subject.stored, then, strict=True)
    )
    now = at_cores([factor], [loop_s])
    return replace(subject, current=now, stored=stored_alike)


def judged_on_cores(factor: float, suite_s: float, fresh_s: Sequence[float]) -> Verdict:
    """The verdict on one of 40 tests: on one core in the suite, and on others alone."""
    cases = [on_cores(n, 1.0, FAST_S) for n in range(40)]
    cases[0] = on_cores(0, factor, suite_s)
    found = {
        each.name: replace(
            confirmation(*LIKE, control=True), value=at_cores(LIKE, [FAST_S] * 5)
        )
        for each in cases[1:9]
    }
    slow = at_cores([factor * v for v in LIKE], fresh_s)
    found[cases[0].name] = replace(confirmation(*LIKE), value=slow)
    return settle(cases, found)[0]


def test_fresh_processes_on_other_cores_tell_a_change_from_a_slow_core() -> None:
    """The suite's core was slow, and how a test follows it is unknown: theirs was not."""
    verdict = judged_on_cores(1.6, SLOW_S, [FAST_S] * 5)

    assert verdict.outcome is Outcome.REGRESSED
    assert verdict.change is not None
    assert verdict.change.effect == pytest.approx(0.6, abs=0.05)


def test_fresh_processes_on_the_same_slow_core_tell_nothing() -> None:
    """All five agree, and the core may have done to this test what the loop does not show."""
    verdict = judged_on_cores(1.6, 2 * FAST_S, [2 * FAST_S] * 5)

    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.reason is Reason.NOT_SIGNIFICANT
    assert min(verdict.confirmations) > 0.4


def test_no_core_makes_a_regression_of_an_unchanged_test() -> None:
    """Whichever of the suite and the fresh processes ran on the slow cores."""
    assert judged_on_cores(1.0, SLOW_S, [FAST_S] * 5).outcome is not Outcome.REGRESSED
    assert judged_on_cores(1.0, FAST_S, [SLOW_S] * 5).outcome is not Outcome.REGRESSED
