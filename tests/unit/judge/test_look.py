"""judge.look: which tests are measured again, and which show the machine."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from pytest_gpuperf.config import Config, ConfirmBy, Update
from pytest_gpuperf.judge.case import POLICY, Case, Policy, Reference
from pytest_gpuperf.judge.confirmation import Retest
from pytest_gpuperf.judge.look import (
    FirstLook,
    choose_controls,
    plan_retests,
)
from pytest_gpuperf.judge.regression import settle
from pytest_gpuperf.judge.retests import confirmations
from pytest_gpuperf.judge.rule import comparison_of, reference_comparisons
from pytest_gpuperf.model.environment import Host
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.identity import Sameness
from pytest_gpuperf.model.record import BoundClass, RecordKey
from pytest_gpuperf.model.verdict import Cause, Outcome
from unit.judge.building import case, estimate, processes, record, stored

THEN = (1.0, 1.004, 0.996, 1.002, 0.998)
GATED = Config(root=".", baseline=".gpuperf", baseline_named=True)


def measured(test_id: str, now: float = 1.0, **fields: Any) -> Case:
    """A memory-bound test as its first process measured it."""
    given = {"then": THEN, "bound_class": BoundClass.MEMORY} | fields
    return case(now, given.pop("then"), key=RecordKey(test_id=test_id), **given)


SLOW = measured("slow", 1.2)


def looked(*cases: Case, config: Config = GATED, **fields: Any) -> FirstLook:
    """The first look at a run."""
    return plan_retests(cases, config, **fields)


def controls_beside_slow(*cases: Case) -> tuple[str, ...]:
    """The controls among some tests of a run with a suspect."""
    return looked(SLOW, *cases).controls


def test_a_steady_test_of_the_same_class_is_a_control() -> None:
    """It shows what the machine did to the suspect."""
    first = looked(SLOW, measured("steady"))

    assert first.suspects == ("slow",)
    assert first.controls == ("steady",)


@pytest.mark.parametrize("how", ConfirmBy)
def test_one_session_finds_what_a_comparison_decides(how: ConfirmBy) -> None:
    """Fresh processes cannot decide it: nobody knows what sessions differ by."""
    slow = measured("slow", 1.2, then=(1.0,))
    others = [measured(f"other {n}", then=(1.0,)) for n in range(4)]
    first = looked(slow, *others, config=replace(GATED, confirm_by=how))

    assert first.suspects == (() if how is ConfirmBy.FRESH else ("slow",))
    assert not first.controls


@pytest.mark.parametrize(("count", "is_one"), [(1, False), (2, True), (3, True)])
def test_a_control_has_a_baseline_of_its_own(count: int, *, is_one: bool) -> None:
    """With one stored session nobody knows how far its own noise reaches."""
    young = measured("young", then=THEN[:count])

    assert controls_beside_slow(young) == (("young",) if is_one else ())


@pytest.mark.parametrize(
    "fields",
    [
        {"bound_class": BoundClass.HOST},
        {"limit": None},
        {"now": 1.2},
        {"now": 0.8},
        {"now": 1.0, "estimate": estimate(1.0, source="ncu-report")},
    ],
    ids=["other class", "not gated", "suspect", "better", "from a file"],
)
def test_what_shows_nothing_of_the_machine_is_no_control(
    fields: dict[str, Any],
) -> None:
    """Of another class, not gated, changed itself, or without noise."""
    assert controls_beside_slow(measured("other", **fields)) == ()


def test_a_count_is_no_control() -> None:
    """Equal code gives equal counts, whatever the machine does."""
    key = RecordKey(test_id="count")
    count = case(64, (64, 64, 64), "registers", key=key, bound_class=BoundClass.MEMORY)

    assert controls_beside_slow(count) == ()


def test_a_test_is_no_control_of_itself() -> None:
    """A suspect's other measurements say nothing of the machine alone."""
    key = RecordKey(test_id="slow", name="second")
    second = case(1.0, THEN, key=key, bound_class=BoundClass.MEMORY)

    assert controls_beside_slow(second) == ()


def test_without_a_suspect_nothing_is_measured_again() -> None:
    """Controls stand beside suspects alone."""
    first = looked(measured("a"), measured("b"))

    assert (first.suspects, first.controls) == ((), ())
    assert [look.worse for look in first.looks] == [False, False]
    assert looked() == FirstLook()


def test_a_straddled_limit_needs_no_controls() -> None:
    """It is held against a number, which no machine moves; and it is measured again."""
    first = looked(measured("a"), measured("b"), straddling=["b"])

    assert (first.suspects, first.controls) == (("b",), ())


def test_a_straddled_limit_is_no_control() -> None:
    """Nor is it told twice where it is suspected, too."""
    first = looked(SLOW, measured("a"), straddling=["a", "slow"])

    assert (first.suspects, first.controls) == (("slow", "a"), ())


@pytest.mark.parametrize(
    ("named", "update", "worse", "better"),
    [
        (True, None, True, False),
        (False, None, False, False),
        (True, Update.NEW, True, False),
        (True, Update.IMPROVED, True, True),
        (False, Update.IMPROVED, False, True),
        (False, Update.ALL, True, True),
    ],
)
def test_only_what_a_run_acts_on_is_confirmed(
    update: Update | None, *, named: bool, worse: bool, better: bool
) -> None:
    """A worsening where it may fail or be stored, an improvement where it is stored."""
    config = Config(root=".", baseline_named=named, update=update)
    first = looked(SLOW, measured("fast", 0.8), measured("same"), config=config)

    assert ("slow" in first.suspects, "fast" in first.suspects) == (worse, better)
    assert "same" not in first.suspects


def workloads(now: float = 1.0) -> list[Reference]:
    """Three reference workloads, of one value in each stored session."""
    return [
        Reference(
            name=name,
            bound_class=BoundClass.MEMORY,
            current=processes((now,), source="host"),
            stored=stored(THEN),
        )
        for name in ("python", "array", "copy")
    ]


@pytest.mark.parametrize(
    ("of_test", "source", "count"),
    [
        (BoundClass.COMPUTE, "cupti", 3),
        (BoundClass.MEMORY, "events", 3),
        (BoundClass.MEMORY, "host", 0),
        (BoundClass.HOST, "cupti", 0),
    ],
)
def test_workloads_of_a_gpu_stand_for_both_classes_of_its_times(
    of_test: BoundClass, source: str, count: int
) -> None:
    """Not for what the host's clock measured beside them."""
    timed = estimate(1.1, source=source)
    each = replace(measured("slow", 1.1, bound_class=of_test), estimate=timed)
    compared = comparison_of(each, POLICY)
    assert compared is not None
    of_gpu = [replace(w, bound_class=BoundClass.GPU) for w in workloads()]

    assert len(reference_comparisons(of_gpu, [compared])) == count


def moved_alike(
    count: int, now: float, *, steady: int = 0, references: float | None = 1.0
) -> FirstLook:
    """The first look at a class of which most tests moved; None: no references."""
    slow = [measured(f"{n}", now * (1 + n % 3 / 200)) for n in range(count)]
    rest = [measured(f"steady {n}") for n in range(steady)]
    witnesses = [] if references is None else workloads(references)
    return looked(*slow, *rest, references=witnesses)


@pytest.mark.parametrize("count", [4, 6, 12])
def test_what_all_tests_share_is_suspected_where_references_stood_still(
    count: int,
) -> None:
    """A change of code that they share is not the machine's; eight tell as much as all."""
    first = moved_alike(count, 1.2)

    assert len(first.suspects) == min(count, 8)
    assert not first.controls
    for look in first.looks:
        assert look.change is not None
        assert look.change.effect == pytest.approx(0.2, abs=0.02)


def test_a_limit_of_nothing_sees_what_tests_share() -> None:
    """Any change is beyond it, and the machine's part is no smaller for it."""
    strict = [measured(f"{n}", 1.2, limit=0.0) for n in range(6)]

    assert len(looked(*strict, references=workloads()).suspects) == 6


def test_tests_that_stood_still_have_not_improved() -> None:
    """The others, which are the most, are no machine that they were quicker than."""
    first = moved_alike(9, 2.0, steady=3)

    assert not any(look.better for look in first.looks)
    assert first.controls == ("steady 0", "steady 1", "steady 2")


def test_what_references_did_as_well_the_machine_did() -> None:
    """Nothing is suspected for it."""
    first = moved_alike(12, 1.2, references=1.2)

    assert not first.suspects
    assert not any(look.shared for look in first.looks)


@pytest.mark.parametrize(("now", "count"), [(1.2, 0), (1.3, 6)])
def test_without_references_only_a_far_move_is_suspected(
    now: float, count: int
) -> None:
    """A machine takes tests by some percent, and not by a quarter of their time."""
    assert len(moved_alike(6, now, references=None).suspects) == count


def test_a_far_move_that_noise_explains_is_undecided() -> None:
    """Sessions that differ by half hide it, and no machine is said to have done it."""
    then = (1.0, 1.6)
    suite = [measured(f"{n}", 2.5, then=then) for n in range(6)]
    verdicts = settle(suite, looks=looked(*suite, references=workloads()).looks)

    assert {v.outcome for v in verdicts} == {Outcome.INCONCLUSIVE}
    assert {v.cause for v in verdicts} == {Cause.SHARED_MOVE}


def test_the_rest_of_a_class_that_moved_is_undecided() -> None:
    """Some of its tests were measured again; of the others the cause is told."""
    first = moved_alike(12, 1.2)
    retests = {
        test_id: Retest(
            records=tuple(
                record(estimate(1.2), key=RecordKey(test_id=test_id)) for _ in range(5)
            )
        )
        for test_id in first.suspects
    }
    verdicts = settle(
        first.cases,
        confirmations(first, retests),
        looks=first.looks,
        references=[replace(r, fresh=r.current) for r in workloads()],
    )
    outcomes = Counter((v.outcome, v.cause) for v in verdicts)

    assert outcomes == {
        (Outcome.REGRESSED, None): 8,
        (Outcome.INCONCLUSIVE, Cause.SHARED_MOVE): 4,
    }


def chosen(count: int) -> list[int]:
    """The places of the controls among some tests of one class."""
    cases = [measured(str(place)) for place in range(count)]
    return [int(test_id) for test_id in choose_controls(cases, Policy())]


@pytest.mark.parametrize("count", [0, 1, 7, 8])
def test_of_few_tests_all_are_controls(count: int) -> None:
    """Eight are asked for."""
    assert chosen(count) == list(range(count))


@pytest.mark.parametrize("count", [9, 15, 16, 100, 1001])
def test_controls_are_from_all_over_the_run(count: int) -> None:
    """Evenly: the first ones would show the machine as it began."""
    places = chosen(count)
    steps = {after - place for place, after in pairwise([*places, count])}

    assert len(places) == 8
    assert places[0] == 0
    assert max(steps) - min(steps) <= 1


def test_each_class_has_controls_of_its_own() -> None:
    """And a test with two measurements is one control."""
    second = RecordKey(test_id="0", name="second")
    memory = [measured("0"), measured("1")]
    twice = case(1.0, THEN, key=second, bound_class=BoundClass.MEMORY)
    host = [measured(f"h{n}", bound_class=BoundClass.HOST) for n in range(9)]
    found = choose_controls([*memory, twice, *host], Policy())

    assert found[:2] == ("0", "1")
    assert len(found) == 2 + 8


def test_tests_with_the_same_machine_code_are_the_first_controls() -> None:
    """No change of the code can have moved them; other tests fill up what they leave."""
    others = [measured(str(n)) for n in range(20)]
    proven = [measured(f"p{n}", code=Sameness.SAME) for n in range(6)]
    chosen = choose_controls([*others, *proven], Policy())

    assert chosen == ("p0", "p1", "p2", "p3", "p4", "p5", "0", "10")
    assert controls_beside_slow(*others, *proven)[:6] == chosen[:6]


@pytest.mark.parametrize(
    "fields",
    [
        {"code": Sameness.SAME_CODE},
        {"code": Sameness.CHANGED},
        {"code": Sameness.SAME, "choice": "other launches"},
        {"code": Sameness.SAME, "estimate": estimate(1.0, source="host")},
        {"code": Sameness.SAME, "estimate": None},
    ],
)
def test_only_the_same_code_data_shape_and_launches_are_preferred(
    fields: dict[str, Any],
) -> None:
    """Anything else may come from a change of the code; so may a time of the host."""
    first, second = measured("first"), measured("second", **fields)
    few = Policy(control_count=1)

    assert choose_controls([first, second], few) == ("first",)
    same = measured("second", code=Sameness.SAME)
    assert choose_controls([first, same], few) == ("second",)


def test_fresh_processes_confirm_suspects_and_controls_alone() -> None:
    """What they gave for other measurements of the same test confirms nothing."""
    steady = measured("steady")
    other = case(1.0, THEN, key=RecordKey(test_id="slow", name="second"))
    first = looked(SLOW, other, steady, measured("lost"))
    retests = {
        test_id: Retest(
            records=(record(estimate(1.1), key=RecordKey(test_id=test_id)),)
        )
        for test_id in ("slow", "steady")
    }
    found = confirmations(first, retests)

    assert set(found) == {SLOW.name, steady.name}
    assert (found[SLOW.name].control, found[steady.name].control) == (False, True)
    assert found[SLOW.name].run_values == (1.1,)


THERE = Host(id="there", machine="h100-3", core_count=8)
HERE = Host(id="here", machine="head-1", core_count=2)


def test_what_was_measured_elsewhere_is_confirmed_by_nothing_here() -> None:
    """It is no suspect of fresh processes and no control of theirs, and its cause is told."""
    slow = replace(SLOW, host=THERE)
    first = looked(slow, replace(measured("steady"), host=THERE))
    found = confirmations(first, {}, HERE)
    verdicts = settle(first.cases, found, looks=first.looks)
    told = {v.key.test_id: (v.outcome, v.cause) for v in verdicts}

    assert (first.suspects, first.elsewhere, first.controls) == ((), ("slow",), ())
    assert told["slow"] == (Outcome.INCONCLUSIVE, Cause.MEASURED_ELSEWHERE)
    assert found[slow.name].differences == {
        "core_count": ("8", "2"),
        "machine": ("h100-3", "head-1"),
    }


def test_a_machine_moves_its_own_tests_alone() -> None:
    """Tests and references of another host are another class: they are no controls here."""
    slower = [measured(f"{n}", 1.2) for n in range(6)]
    there = [replace(measured(f"there {n}", 1.0), host=THERE) for n in range(6)]
    moved = [replace(case, host=THERE) for case in slower]
    still = [replace(reference, host=THERE) for reference in workloads()]

    suspects = looked(*slower, references=workloads()).suspects
    assert suspects
    assert looked(*slower).suspects == looked(*slower, *there).suspects == ()
    assert looked(*moved, references=workloads()).elsewhere == ()
    assert looked(*moved, references=still).elsewhere == suspects


BOOST_HZ = 1980e6  # an H200's clock; nothing but its power and its heat lower it
# five sessions of one board, as far apart as those of kernels of 0.1 and 0.5 ms were
STEADY = (1.0, 1.0005, 0.9995, 1.001, 0.9992)


def clocked(test_id: str, now: float, *, clock_hz: float = BOOST_HZ) -> Case:
    """A test of a GPU with its clock now; in the stored sessions it was the highest."""
    each = measured(test_id, now, then=STEADY, limit=0.02)
    assert each.current is not None
    return replace(
        each,
        current=replace(each.current, sm_clocks_hz=(clock_hz,)),
        stored=tuple(
            replace(s, value=replace(s.value, sm_clocks_hz=(BOOST_HZ,)))
            for s in each.stored
        ),
    )


def test_a_gpu_whose_clock_stood_still_moved_no_test() -> None:
    """
    Six of eight tests got slower by 3, 5 and 10 %, and the clock is what it was.

    Their median is no drift: the others have not improved by it.
    """
    factors = {"same": 1.0, "three": 1.03, "five": 1.05, "ten": 1.10}
    suite = [
        clocked(f"{kind} {name}", factor)
        for kind in ("cycles", "bytes")
        for name, factor in factors.items()
    ]
    first = looked(*suite)
    retests = {
        test_id: Retest(
            records=tuple(
                record(
                    estimate(
                        factors[test_id.split()[1]] * (1 + n / 5000),
                        sm_clock_hz=BOOST_HZ,
                    ),
                    key=RecordKey(test_id=test_id),
                )
                for n in range(5)
            )
        )
        for test_id in first.suspects
    }
    verdicts = settle(first.cases, confirmations(first, retests), looks=first.looks)
    found = {v.key.test_id: v.outcome for v in verdicts}

    assert found == {
        f"{kind} {name}": Outcome.UNCHANGED if name == "same" else Outcome.REGRESSED
        for kind in ("cycles", "bytes")
        for name in factors
    }


@pytest.mark.parametrize(
    ("clock_hz", "count"),
    [(BOOST_HZ, 6), (BOOST_HZ / 1.2, 0), (BOOST_HZ / 1.05, 6), (BOOST_HZ * 1.05, 6)],
)
def test_a_clock_explains_as_much_as_it_fell(clock_hz: float, count: int) -> None:
    """All tests of a GPU take a fifth longer: its clock did that, or it did not."""
    suite = [clocked(f"{n}", 1.2, clock_hz=clock_hz) for n in range(6)]

    assert len(looked(*suite).suspects) == count


def test_a_slowdown_is_one_in_cycles_too() -> None:
    """With a clock that fell as far as the time grew, nobody knows that code got slower."""
    suite = [clocked(f"{n}", 1.0) for n in range(6)]
    slow = clocked("slow", 1.2, clock_hz=BOOST_HZ / 1.2)
    slower = clocked("slower", 1.3, clock_hz=BOOST_HZ / 1.2)
    first = looked(*suite, slow, slower)
    retests = {
        each.key.test_id: Retest(
            records=tuple(
                record(
                    estimate(value * (1 + n / 5000), sm_clock_hz=BOOST_HZ / 1.2),
                    key=each.key,
                )
                for n in range(5)
            )
        )
        for each, value in ((slow, 1.2), (slower, 1.3))
    }
    verdicts = settle(first.cases, confirmations(first, retests), looks=first.looks)
    found = {v.key.test_id: (v.outcome, v.cause) for v in verdicts[-2:]}

    assert found == {
        "slow": (Outcome.INCONCLUSIVE, Cause.CLOCK_MOVED),
        "slower": (Outcome.REGRESSED, None),
    }
