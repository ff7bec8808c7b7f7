"""pipeline.turn_server: who may run next, whoever skips, has enough or dies."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.measure.references import TURN_NAME
from pytest_gpuperf.measure.turns import GO, OVER, Stage, TurnRequest
from pytest_gpuperf.pipeline.turn_server import Rotation

TESTS = ("t0", "t1", "t2")
FOUR = ("old 1", "new 1", "new 2", "old 2")


def measuring(test_id: str, name: str = "", *, turns: int = 2) -> list[TurnRequest]:
    """Return what a process asks for in a measurement that takes some turns."""
    return [
        TurnRequest(stage=Stage.BEGIN, test_id=test_id, name=name),
        *[TurnRequest(stage=Stage.TURN)] * turns,
        TurnRequest(stage=Stage.ALONE),
        TurnRequest(stage=Stage.END),
    ]


class Simulation:
    """
    Processes that ask for what their scripts say, and die at their end.

    Attributes:
        log: Who went on, in order, with what it had asked for.
    """

    def __init__(self, scripts: Mapping[str, Sequence[TurnRequest]]) -> None:
        self.rotation = Rotation(tuple(scripts), TESTS)
        self.scripts = {name: list(script) for name, script in scripts.items()}
        self.log: list[tuple[str, Stage, bytes]] = []
        self.asked: dict[str, Stage] = {}

    def run(self, choose: Callable[[Sequence[str]], str]) -> None:
        """Let processes that work go on in any order, until all have ended."""
        while self.rotation.present:
            at_work = self.rotation.at_work
            if not at_work:
                self.grant()
                continue
            name = choose(at_work)
            if self.scripts[name]:
                request = self.scripts[name].pop(0)
                self.asked[name] = request.stage
                self.rotation.ask(name, request)
            else:
                self.rotation.leave(name)

    def grant(self) -> None:
        """Let go on whoever may; that is one alone, or all between measurements."""
        grants = list(self.rotation.grants())
        assert grants, "nobody works, and nobody may go on"
        stages = {self.asked[name] for name, _ in grants}
        assert stages == {Stage.END} or len(grants) == 1
        self.log += [(name, self.asked[name], answer) for name, answer in grants]

    def order(self, *stages: Stage) -> list[str]:
        """Return who went on in some stages, in order."""
        return [name for name, stage, _ in self.log if stage in stages]


def first(at_work: Sequence[str]) -> str:
    return at_work[0]


def last(at_work: Sequence[str]) -> str:
    return at_work[-1]


def test_a_round_is_reversed_after_each() -> None:
    """A B B A to prepare, then A B B A backwards, and so on: what drifts is in both."""
    simulation = Simulation({name: measuring("t0", turns=3) for name in FOUR})
    simulation.run(first)

    back = list(FOUR[::-1])
    assert simulation.order(Stage.BEGIN) == list(FOUR)
    assert simulation.order(Stage.TURN) == [*back, *FOUR, *back]
    assert simulation.order(Stage.ALONE) == list(FOUR)
    assert simulation.order(Stage.END) == sorted(FOUR)


def test_nobody_begins_while_one_works() -> None:
    """Imports of the last to come lie beside nobody's samples."""
    rotation = Rotation(FOUR, TESTS)
    for name in FOUR[:3]:
        rotation.ask(name, TurnRequest(stage=Stage.BEGIN, test_id="t0"))
        assert list(rotation.grants()) == []
    rotation.ask(FOUR[3], TurnRequest(stage=Stage.BEGIN, test_id="t0"))

    assert list(rotation.grants()) == [(FOUR[0], GO)]
    assert list(rotation.grants()) == []


def test_who_is_done_waits_for_the_others() -> None:
    """Its teardown and next fixtures would run beside their samples."""
    scripts = {"a": measuring("t0", turns=1), "b": measuring("t0", turns=5)}
    simulation = Simulation(scripts)
    simulation.run(first)

    stages = [(name, stage) for name, stage, _ in simulation.log]
    assert stages[-2:] == [("a", Stage.END), ("b", Stage.END)]
    assert stages.count(("b", Stage.TURN)) == 5


def test_samples_end_when_all_have_enough() -> None:
    """Who has enough takes more as long as another has not."""
    begin = TurnRequest(stage=Stage.BEGIN, test_id="t0")
    turn, enough = TurnRequest(stage=Stage.TURN), TurnRequest(stage=Stage.ENOUGH)
    end = TurnRequest(stage=Stage.END)
    rotation = Rotation(("a", "b"), TESTS)
    for name in ("a", "b"):
        rotation.ask(name, begin)
    answers = []
    for request in (turn, turn, enough, turn, enough, end, end):
        ((name, answer),) = rotation.grants()
        answers.append((name, answer))
        rotation.ask(name, request)

    prepared, sampled = [("a", GO), ("b", GO)], [("b", GO), ("a", GO), ("a", GO)]
    assert answers == [*prepared, *sampled, ("b", OVER), ("a", OVER)]


@pytest.mark.parametrize("choose", [first, last])
def test_who_skips_a_test_is_there_for_the_next(
    choose: Callable[[Sequence[str]], str],
) -> None:
    """The others measure without it, which is told."""
    both = [*measuring("t0"), *measuring("t1")]
    scripts = {"a": both, "b": measuring("t1"), "c": both}
    simulation = Simulation(scripts)
    simulation.run(choose)

    assert Counter(simulation.order(Stage.BEGIN)) == {"a": 2, "b": 1, "c": 2}
    assert simulation.rotation.left_out == [("t0", "", ("b",))]


def test_another_measurement_is_made_without_those_that_do_not_come_to_it() -> None:
    """They have the later ones in common, in whatever order they are reached."""
    scripts = {
        "a": [*measuring("t0", "x"), *measuring("t0", "y"), *measuring("t1")],
        "b": [*measuring("t0", "y"), *measuring("t1")],
    }
    simulation = Simulation(scripts)
    simulation.run(first)

    begun = simulation.order(Stage.BEGIN)
    assert begun[-2:] in (["a", "b"], ["b", "a"])
    assert ("t0", "x", ("b",)) in simulation.rotation.left_out


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_references_of_one_keep_nobody_from_measuring_together(
    order: tuple[str, str],
) -> None:
    """What is left of a budget differs; that of before a test, and of after it."""
    with_them = [
        *measuring("t0", TURN_NAME, turns=0),
        *measuring("t0"),
        *measuring("t0", "second"),
        *measuring("t0", TURN_NAME, turns=0),
        *measuring("t1"),
    ]
    without = [*measuring("t0"), *measuring("t0", "second"), *measuring("t1")]
    scripts = {"a": with_them, "b": without}
    simulation = Simulation({name: scripts[name] for name in order})
    simulation.run(first)

    assert simulation.rotation.left_out == []
    assert Counter(simulation.order(Stage.BEGIN)) == {"a": 5, "b": 3}


def test_a_test_that_nobody_named_comes_last() -> None:
    """It is measured all the same."""
    simulation = Simulation({"a": measuring("other"), "b": measuring("t2")})
    simulation.run(first)

    assert simulation.order(Stage.BEGIN) == ["b", "a"]


def test_what_the_dead_have_asked_for_is_not_answered() -> None:
    """It may arrive after their end is known."""
    rotation = Rotation(("a", "b"), TESTS)
    rotation.leave("a")
    rotation.ask("a", TurnRequest(stage=Stage.BEGIN, test_id="t0"))
    rotation.ask("b", TurnRequest(stage=Stage.BEGIN, test_id="t0"))

    assert rotation.present == ("b",)
    assert list(rotation.grants()) == [("b", GO)]


SCRIPTS = [
    [*measuring("t0", turns=1), *measuring("t1", turns=1)],
    measuring("t1", turns=1),
    [*measuring("t0", "x", turns=1), *measuring("t0", "y", turns=1)],
    measuring("t0")[:1] + measuring("t0")[-1:],  # its warm-up fails
]
# each of them, whole and cut off at every place: there the process dies
DEATHS = [script[:end] for script in SCRIPTS for end in range(len(script) + 1)]


@pytest.mark.parametrize("choose", [first, last])
def test_no_order_of_skips_and_deaths_stops_all(
    choose: Callable[[Sequence[str]], str],
) -> None:
    """Three processes with every script, of two of them cut off at every place."""
    for scripts in itertools.product(DEATHS, SCRIPTS, DEATHS):
        simulation = Simulation(dict(zip("abc", scripts, strict=True)))
        simulation.run(choose)

        assert not any(simulation.scripts.values())


requests = st.builds(
    TurnRequest,
    stage=st.sampled_from(Stage),
    test_id=st.sampled_from([*TESTS, "", "other"]),
    name=st.sampled_from(["", "x"]),
)


@given(
    scripts=st.lists(st.lists(requests, max_size=8), min_size=1, max_size=4),
    choices=st.randoms(use_true_random=False),
)
def test_whatever_they_ask_for_none_waits_for_ever(
    scripts: list[list[TurnRequest]], choices: random.Random
) -> None:
    """Also for what makes no sense, in any order."""
    simulation = Simulation({str(n): script for n, script in enumerate(scripts)})
    simulation.run(choices.choice)

    assert not any(simulation.scripts.values())


@given(
    turns=st.lists(st.integers(min_value=1, max_value=6), min_size=4, max_size=4),
    choices=st.randoms(use_true_random=False),
)
def test_turns_are_shared_out_evenly(turns: list[int], choices: random.Random) -> None:
    """At any time nobody who wants more has had two turns less than another."""
    simulation = Simulation(
        {
            name: measuring("t0", turns=count)
            for name, count in zip(FOUR, turns, strict=True)
        }
    )
    simulation.run(choices.choice)
    count: Counter[str] = Counter()
    wanted = dict(zip(FOUR, turns, strict=True))
    for name in simulation.order(Stage.TURN):
        count[name] += 1
        behind = [count[n] for n in FOUR if count[n] < wanted[n]]
        assert not behind or count[name] - min(behind) <= 2
    assert count == wanted
