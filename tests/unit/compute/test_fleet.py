"""A slow machine is told from slow code."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence

import pytest

from pytest_gpuperf.compute.fleet import FleetSession, moved_machines

DAYS = 24


def fleet(
    machines: int,
    *,
    slow: Mapping[str, float] = {},
    code: float = 0.0,
    references: float = 0.0,
    seed: int = 1,
) -> list[FleetSession]:
    """A session a day of each machine; after half of the days, something moves."""
    draw = random.Random(seed)
    boards = [draw.gauss(0, 0.03) for _ in range(machines)]
    tests = [draw.gauss(0, 1) for _ in range(20)]
    sessions = []
    for day in range(DAYS):
        for number in range(machines):
            name, late = f"m{number}", day >= DAYS // 2
            moved = (slow.get(name, 0.0) + code) * late
            session = boards[number] + moved + draw.gauss(0, 0.008)
            references_moved = references * late * (name in slow)
            sessions.append(
                FleetSession(
                    machine=name,
                    started_unix_s=86400.0 * day + number,
                    logs={
                        test: level + session + draw.gauss(0, 0.02)
                        for test, level in enumerate(tests)
                    },
                    reference_logs={
                        workload: references_moved + draw.gauss(0, 0.01)
                        for workload in ("loop", "array", "copy")
                    },
                )
            )
    return sessions


def blamed(sessions: Sequence[FleetSession]) -> set[str]:
    """The machines that surely moved."""
    return {
        moved.machine for moved in moved_machines("h200", sessions) if moved.is_sure
    }


@pytest.mark.parametrize("machines", [5, 9])
def test_a_slow_machine_is_found(machines: int) -> None:
    """At +8 % in at least 19 of 20 fleets, and no other machine is blamed in 18."""
    told = [blamed(fleet(machines, slow={"m1": 0.08}, seed=seed)) for seed in range(20)]

    assert sum("m1" in names for names in told) >= 19
    assert sum(names <= {"m1"} for names in told) >= 18


@pytest.mark.parametrize("code", [0.0, 0.04, 0.1])
def test_slow_code_is_no_machine(code: float) -> None:
    """What got slower on all machines blames none, in 19 of 20 fleets."""
    told = [blamed(fleet(6, code=code, seed=seed)) for seed in range(20)]

    assert sum(map(bool, told)) <= 1


def test_few_machines_blame_none() -> None:
    """Of three machines, one moved, and it is not told which."""
    for seed in range(10):
        assert blamed(fleet(3, slow={"m1": 0.08}, seed=seed)) == set()


def test_reference_workloads_blame_one_of_few() -> None:
    """No code moves them, so the machine on which they moved is the slow one."""
    told = [
        blamed(fleet(3, slow={"m1": 0.2}, references=0.2, seed=seed))
        for seed in range(10)
    ]

    assert sum(names == {"m1"} for names in told) >= 8


def test_what_is_told_of_a_machine() -> None:
    """Since when, by how much, on how many tests, against how many others."""
    (moved,) = moved_machines("h200", fleet(6, slow={"m2": 0.1}))

    assert moved.machine == "m2"
    assert moved.effect == pytest.approx(math.expm1(0.1), abs=0.02)
    assert moved.session_count == DAYS // 2
    assert moved.since_unix_s == 86400.0 * (DAYS // 2) + 2
    assert (moved.agreeing_count, moved.test_count) == (20, 20)
    assert moved.other_count == 5


def test_one_machine_has_no_others() -> None:
    """Nothing can be told of it, nor of none."""
    assert moved_machines("h200", fleet(1, slow={"m0": 0.5})) == ()
    assert moved_machines("h200", []) == ()
