"""What happened to a series, in the order in which it is explained."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from pytest_gpuperf.judge.history import history_of, slow_machines
from pytest_gpuperf.model.environment import Session
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.history import MoveKind, SeriesHistory
from pytest_gpuperf.model.record import (
    REFERENCES,
    RecordKey,
    SessionValue,
    StoredRecord,
)

KEY = RecordKey(test_id="test_a.py::test_x")


def records(
    level: Callable[[int], float],
    count: int = 30,
    *,
    key: RecordKey = KEY,
    session: Callable[[int], Mapping[str, Any]] = lambda _: {},
    value: Callable[[int], Mapping[str, Any]] = lambda _: {},
    record: Callable[[int], Mapping[str, Any]] = lambda _: {},
    seed: int = 1,
) -> tuple[StoredRecord, ...]:
    """Sessions of one measurement, whose value is the exponential of a level."""
    draw = random.Random(seed)
    found = []
    for n in range(count):
        own: dict[str, Any] = {
            "id": f"s{n:03}",
            "started_unix_s": 1.78e9 + 86400.0 * n,
            "host": "h",
            "commit": f"c{n:03}",
        } | dict(session(n))
        one: dict[str, Any] = {
            "metric": "time",
            "unit": "s",
            "source": "host",
            "run_values": (math.exp(level(n) + draw.gauss(0, 0.01)),),
        } | dict(value(n))
        found.append(
            StoredRecord(
                key=key,
                session=Session(**own),
                values=(SessionValue(**one),),
                **record(n),
            )
        )
    return tuple(found)


def series(stored: tuple[StoredRecord, ...]) -> SeriesHistory:
    """The only series of a measurement."""
    (one,) = history_of({"h200": {stored[0].key: stored}}, ("time", "rate")).series
    return one


def test_a_slowdown_stands() -> None:
    """The first session at the new level is told, with the size and its interval."""
    (move,) = series(records(lambda n: 0.1 * (n >= 12))).moves

    assert move.kind is MoveKind.SLOWER
    assert move.stands
    assert move.first <= 12 <= move.last
    assert move.low < math.expm1(0.1) < move.high


def test_a_slowdown_that_went_away() -> None:
    """Its end is no improvement of its own."""
    (move,) = series(records(lambda n: 0.15 * (10 <= n < 18))).moves

    assert move.kind is MoveKind.SLOWER
    assert move.ended_at == 18
    assert not move.stands


def test_an_improvement() -> None:
    """It is told, and is nothing that stands against the test."""
    (move,) = series(records(lambda n: -0.2 * (n >= 12))).moves

    assert move.kind is MoveKind.FASTER
    assert not move.stands


@pytest.mark.parametrize("step", [0.01, 0.02, 0.03])
def test_a_staircase_is_a_drift(step: float) -> None:
    """Small steps of one direction are one drift, from the first to the last session."""
    (move,) = series(records(lambda n: step * n)).moves

    assert move.kind is MoveKind.DRIFT
    assert (move.first, move.place) == (0, 29)
    assert move.effect == pytest.approx(math.expm1(27 * step), rel=0.12)
    assert move.low < move.effect < move.high


def test_a_step_is_no_drift() -> None:
    """One change that is most of the difference has a place."""
    (move,) = series(records(lambda n: 0.3 * (n >= 15))).moves

    assert move.kind is MoveKind.SLOWER


def test_two_steps_are_no_drift() -> None:
    """Each has its own place, although both go the same way."""
    moves = series(records(lambda n: 0.1 * (n >= 10) + 0.1 * (n >= 40), 60)).moves

    assert [move.kind for move in moves] == [MoveKind.SLOWER] * 2
    assert [move.place for move in moves] == [10, 40]


def test_an_exact_slope_is_a_drift() -> None:
    """Recorded numbers may have no noise, and no level either."""
    exact = records(lambda _: 0.0, 10)
    values = [
        replace(one, values=(replace(one.values[0], run_values=(1.02**n,)),))
        for n, one in enumerate(exact)
    ]

    assert [move.kind for move in series(tuple(values)).moves] == [MoveKind.DRIFT]


def test_a_rate_that_falls_got_slower() -> None:
    """More is better: the direction is stored with the value."""
    falling = records(
        lambda n: -0.2 * (n >= 15),
        value=lambda _: {"metric": "rate", "unit": "1/s", "better": "higher"},
    )
    (move,) = series(falling).moves

    assert move.kind is MoveKind.SLOWER
    assert move.effect < 0


def test_a_fact_that_changed_is_the_first_cause() -> None:
    """A new Python at the place of a change is told beside it; one elsewhere is a mark."""

    def changing_at(place: int) -> tuple[StoredRecord, ...]:
        def facts(n: int) -> Mapping[str, Any]:
            python = "3.12" if n >= place else "3.11"
            return {"facts": {"host-time": {"python_minor": python}}}

        return records(lambda n: 0.2 * (n >= 15), record=facts)

    together, apart = map(series, map(changing_at, (15, 5)))

    assert together.moves[0].causes == ("python_minor 3.11 -> 3.12",)
    assert apart.moves[0].causes == ()
    assert [mark.place for mark in apart.marks] == [5]


def test_an_accepted_level_and_other_kernels_are_marks() -> None:
    """The series goes on, and what happened is told where it happened."""
    marked = series(
        records(
            lambda _: 0.0,
            value=lambda n: {"series": int(n >= 10)},
            record=lambda n: {"choice": "b" if n >= 20 else "a"},
        )
    )

    assert [(m.place, m.text) for m in marked.marks] == [
        (10, "accepted"),
        (20, "other kernels"),
    ]


def test_values_of_nothing_have_no_moves() -> None:
    """No change is a share of 0."""
    none = series(records(lambda _: 0.0, value=lambda _: {"run_values": (0.0,)}))

    assert none.moves == ()
    assert none.noise is None


def test_a_steady_series_is_told_without_a_move() -> None:
    """Its noise is that of its sessions."""
    steady = series(records(lambda _: 0.0))

    assert steady.moves == ()
    assert steady.noise == pytest.approx(0.01, rel=0.5)


def test_a_slow_machine_is_left_out() -> None:
    """Six machines take turns; what one does since it moved says nothing of the code."""

    def machine(n: int) -> Mapping[str, Any]:
        return {"machine": f"m{n % 6}", "started_unix_s": 1.78e9 + 3600.0 * n}

    def level(n: int) -> float:
        return 0.12 * (n % 6 == 2 and n >= 60)

    stored = {
        RecordKey(test_id=f"t{number}"): records(
            level,
            120,
            key=RecordKey(test_id=f"t{number}"),
            session=machine,
            seed=number,
        )
        for number in range(12)
    }
    stored[RecordKey(test_id=REFERENCES, name="loop")] = records(
        lambda _: 0.0,
        120,
        key=RecordKey(test_id=REFERENCES, name="loop"),
        session=machine,
    )
    (moved,) = machines = slow_machines({"h200": stored})
    history = history_of({"h200": stored}, ("time",), machines)

    assert (moved.machine, moved.other_count, moved.is_sure) == ("m2", 5, True)
    assert moved.effect == pytest.approx(math.expm1(0.12), abs=0.02)
    assert len(history.series) == 12
    for one in history.series:
        left_out = [n for n, point in enumerate(one.points) if point.left_out]
        assert left_out == [n for n in range(60, 120) if n % 6 == 2]
        assert one.moves == ()
