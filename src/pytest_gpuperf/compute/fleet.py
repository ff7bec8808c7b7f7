"""Machines of one kind that moved apart from the others.

If the code gets slower, it does so on all machines. A session is one number: the median
distance of its tests from their usual values. What the other machines did at that time is
subtracted, and a lasting change of the rest belongs to the machine.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Hashable, Mapping, Sequence
from statistics import median

from pytest_gpuperf.compute.levels import LevelChange, level_changes
from pytest_gpuperf.compute.stats import fraction_of
from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.history import MovedMachine

# Of two machines, neither is the majority. From this number on, a machine is blamed
# without reference workloads.
ENOUGH_MACHINES = 5
_NEAREST = 6  # Sessions of other machines that a session is compared with.
_LEAST_DEVIATIONS = 4.5  # Each machine is looked at after each session.
_LEAST_SHARE = 0.75  # Of the tests that moved in the direction of their machine.


class FleetSession(Frozen, frozen=True, kw_only=True):
    """
    The values of one session.

    Attributes:
        machine: The machine.

        started_unix_s: Start of the session [s].

        logs: Logarithm of the value of each series.

        reference_logs: The same of reference workloads.
    """

    machine: str
    started_unix_s: float
    logs: Mapping[Hashable, float]
    reference_logs: Mapping[Hashable, float] = {}


def moved_machines(
    kind: str, sessions: Sequence[FleetSession]
) -> tuple[MovedMachine, ...]:
    """
    Return the machines whose newest level is not that of the other machines.

    Args:
        kind: The kind of machine.

        sessions: The sessions of all machines of this kind, in order of time.
    """
    places: dict[str, list[int]] = {}
    for place, session in enumerate(sessions):
        places.setdefault(session.machine, []).append(place)
    if len(places) < 2:  # noqa: PLR2004 - one machine has no others
        return ()
    whole: dict[Hashable, list[float]] = {}
    for session in sessions:
        for name, log in session.logs.items():
            whole.setdefault(name, []).append(log)
    usual = {name: median(logs) for name, logs in whole.items()}
    # The distance of each session from the usual level of its machine.
    apart = [
        median(log - usual[name] for name, log in session.logs.items())
        if session.logs
        else 0.0
        for session in sessions
    ]
    for own in places.values():
        level = median(apart[place] for place in own)
        for place in own:
            apart[place] -= level
    found = (_moved(kind, sessions, own, apart, len(places)) for own in places.values())
    return tuple(moved for moved in found if moved is not None)


def _moved(
    kind: str,
    sessions: Sequence[FleetSession],
    own: Sequence[int],
    apart: Sequence[float],
    machine_count: int,
) -> MovedMachine | None:
    mine = sessions[own[0]].machine
    others = [n for n, session in enumerate(sessions) if session.machine != mine]
    rest = [apart[n] - _around(sessions, others, apart, n) for n in own]
    changes = level_changes(rest, least_deviations=_LEAST_DEVIATIONS)
    if not changes:
        return None
    change = changes[-1]
    before = [sessions[n].logs for n in own[: change.place]]
    since = [sessions[n].logs for n in own[change.place :]]
    moves = _moves(before, since)
    agreeing_count = sum(move * change.log_change > 0 for move in moves)
    if agreeing_count < _LEAST_SHARE * max(len(moves), 1):
        return None
    return MovedMachine(
        kind=kind,
        machine=mine,
        since_unix_s=sessions[own[change.place]].started_unix_s,
        effect=fraction_of(change.log_change),
        session_count=len(since),
        agreeing_count=agreeing_count,
        test_count=len(moves),
        other_count=machine_count - 1,
        is_sure=machine_count >= ENOUGH_MACHINES
        or _references_agree([sessions[n] for n in own], change),
    )


def _around(
    sessions: Sequence[FleetSession],
    others: Sequence[int],
    apart: Sequence[float],
    place: int,
) -> float:
    # The nearest in time are among as many neighbours on either side.
    at = bisect_left(others, place)
    near = others[max(at - _NEAREST, 0) : at + _NEAREST]
    now_s = sessions[place].started_unix_s
    nearest = sorted(near, key=lambda n: abs(sessions[n].started_unix_s - now_s))[
        :_NEAREST
    ]
    return median(apart[n] for n in nearest)


def _moves(
    before: Sequence[Mapping[Hashable, float]],
    since: Sequence[Mapping[Hashable, float]],
) -> list[float]:
    sides: list[dict[Hashable, list[float]]] = [{}, {}]
    for side, several in zip(sides, (before, since), strict=True):
        for logs in several:
            for name, log in logs.items():
                side.setdefault(name, []).append(log)
    old, new = sides
    return [median(new[name]) - median(old[name]) for name in old if name in new]


def _references_agree(own: Sequence[FleetSession], change: LevelChange) -> bool:
    """Return True if reference workloads moved by half as much or more: no code moves them."""
    moves = _moves(
        [session.reference_logs for session in own[: change.place]],
        [session.reference_logs for session in own[change.place :]],
    )
    if not moves:
        return False
    moved = math.copysign(1.0, change.log_change) * median(moves)
    return moved > abs(change.log_change) / 2
