"""Explanations outside the code: second modes, shared cores, slow caches."""

from __future__ import annotations

import math
from statistics import median, median_low
from typing import TYPE_CHECKING

from pytest_gpuperf.judge.case import SEVERAL_THREADS, Case, Policy
from pytest_gpuperf.model.change import Change, Comparison
from pytest_gpuperf.model.record import OVERSUBSCRIBED, BoundClass
from pytest_gpuperf.model.verdict import SeenValue

if TYPE_CHECKING:
    from pytest_gpuperf.judge.confirmation import Confirmation

# Two sessions are a mode. A single bad session of a test that computes is not. A test that
# waits or has threads is as slow as the thing it waits for, so a single session is enough
# (docs/judging.md section 2).
_MODE_SESSIONS, _MODE_SESSIONS_WAITING = 2, 1
# A stored value is near the current value within half a limit ...
_NEAR_LIMITS = 0.5
# ... and within this on a log scale, however large the limit is.
_NEAR = math.log1p(0.05)
# Share of a change. A value closer to the usual value is no other mode.
_HALF_WAY = 0.5
# Processes of a session, of which one may be disturbed.
_SEVERAL = 3
# Processes in one state differ by as much.
_NEAR_ALONE = math.log1p(0.1)
_INTERRUPTED = (
    "the samples were interrupted, those of some stored sessions were not: other programs"
    " empty the caches, and to fill them takes time of the processor"
)
_UNINTERRUPTED = (
    "the samples of most stored sessions were interrupted, those of this run were not:"
    " other programs had emptied the caches"
)
_SHARED_THEN = (
    "in most stored sessions other programs ran at the same time, and in this run they did"
    " not: threads that share cores take other times"
)
# An unchanged pool of threads took 1.95 times as long without other programs.
_MOST_SHARED = 1.5
# The load that a neighbour puts on a disk or a core varies.
_NEAR_WAITING = math.log1p(0.25)
_WAITING = frozenset({BoundClass.DISK, BoundClass.WAIT})
# With busy programs, unchanged tests that wait for a disk took 12 and 24 times as long in
# the suite, and 1.1 and 1.5 times in fresh processes. Slower code is as slow in both.
_FAR_APART = 2.0
# Processes that all confirm a slowdown of this size show one of the code.
_MOST_CONFIRMED = 1.0
# Times as slow as a test may be where the disk's workloads became faster.
_MOST_OTHER_WAY = 1.5


def seen_before(
    case: Case,
    comparison: Comparison | None,
    confirmation: Confirmation | None,
    change: Change,
) -> tuple[SeenValue, ...]:
    """
    Return the stored values that form a mode with the current value, or ().

    Values left out of the change also count, because a slow mode may have been left out.

    Args:
        case: The case.

        comparison: The values of the case at one core speed, or None.

        confirmation: The results of fresh processes, or None if there were none.

        change: The change to explain. Values that fresh processes measure alone may be far
            from the values of the suite, and this change is based on one of the two.
    """
    effect = change.effect
    if comparison is None or not effect:
        return ()
    stored = comparison.stored.run_values()
    if min(comparison.current.run_values) <= 0 or min(comparison.stored.runs) <= 0:
        return ()
    if change.reference <= 0 or effect <= -1:
        return ()
    usual, moved = math.log(change.reference), math.log1p(effect)
    sign = math.copysign(1.0, effect)
    waits = case.notes or (confirmation is not None and confirmation.notes)
    near = min(_NEAR, _NEAR_LIMITS * math.log1p(case.limit or 0.0))
    least = max(
        sign * (usual + moved) - (_NEAR_WAITING if waits else near),
        sign * (usual + _HALF_WAY * moved),
    )
    alone = _seen_alone(comparison, usual, sign)
    alike = [
        session_id
        for session_id, values in zip(comparison.session_ids, stored, strict=True)
        if sign * math.log(median(values)) >= least
    ]
    enough = _MODE_SESSIONS_WAITING if waits else _MODE_SESSIONS
    if alone:
        return (_seen(case, alone, alone=True),)
    if len(alike) < enough:  # The usual case.
        return ()
    return tuple(_seen(case, session_id) for session_id in alike)


def _seen_alone(comparison: Comparison, usual: float, sign: float) -> str:
    """
    Return a session in which the test alone was as slow as the fresh processes, or "".

    The tests that ran before a test in its process can make it fast or slow, through the
    thresholds of the allocator, caches and modules. Several processes of a session show such
    a state. A single process may have been disturbed, so that two sessions must agree.
    """
    if not comparison.fresh:
        return ""
    several: list[tuple[float, str]] = []
    single: list[tuple[float, str]] = []
    for place, value in comparison.stored.odd.items():
        session_id = comparison.session_ids[place]
        if not value.alone_values or min(value.alone_values) <= 0:
            continue
        logs = [sign * (math.log(alone) - usual) for alone in value.alone_values]
        level = median(logs)
        if len(logs) < _SEVERAL:
            single.append((level, session_id))
        elif min(logs) >= _HALF_WAY * level:
            several.append((level, session_id))
    level, session_id = max(several + sorted(single)[:-1], default=(0.0, ""))
    now = sign * (math.log(median(comparison.current.run_values)) - usual)
    near = min(_NEAR_ALONE, _HALF_WAY * level)
    return session_id if level > 0 and now <= level + near else ""


def text_of_oversubscription(
    case: Case, confirmation: Confirmation | None, worsening: float
) -> str:
    """
    Return the sentence on threads that shared the cores now, or in stored sessions, or "".

    Threads that pass a lock to one another are slower on two cores than on one that they
    share, so that a test can become slower because the machine has less to do.
    """
    fresh = {} if confirmation is None else confirmation.notes
    text = case.notes.get(OVERSUBSCRIBED) or fresh.get(OVERSUBSCRIBED)
    if text is not None:
        return text
    if SEVERAL_THREADS not in case.notes and SEVERAL_THREADS not in fresh:
        return ""
    stored = case.stored.values.interrupted
    is_usual = worsening < _MOST_SHARED and 2 * sum(stored) > len(stored)
    return _SHARED_THEN if is_usual else ""


def text_of_disk(shift: float, worsening: float, policy: Policy) -> str:
    """
    Return the sentence on a disk whose change of speed explains that of a test, or "".

    The operations of a disk change by different factors, so a test may change by more than
    the disk's workloads. Where these became faster, a test may have become slower by as
    much.

    Args:
        shift: The slowdown of the workloads [fraction], negative if they are faster.

        worsening: The slowdown of the test [fraction], without that of the workloads.

        policy: The rule's constants.
    """
    most = (1 + shift) ** policy.disk_power - 1
    is_explained = 0 < worsening <= most or most <= worsening < 0
    if shift < 0 < worsening:
        # The test's change by itself, against that of the workloads the other way.
        most = min(1 / (1 + shift), _MOST_OTHER_WAY)
        is_explained = (1 + worsening) * (1 + shift) <= most
    if not is_explained or abs(shift) <= policy.disk_shift:
        return ""
    return f"the disk is {1 + shift:.3g} times as slow as in the stored sessions"


def text_of_waits(case: Case, change: Change, worsening: float) -> str:
    """
    Return the sentence on a suite that waited far longer than fresh processes, or "".

    Fresh processes confirm a slowdown of the code by one of the same size. With busy
    programs, each wait in the suite lasts until the scheduler returns to the test.

    Args:
        case: The case.

        change: The change of the fresh processes.

        worsening: The slowdown of the fresh processes [fraction].
    """
    suite, usual = case.estimate, case.stored.values.run_values()
    if (
        case.bound_class not in _WAITING
        or suite is None
        or not change.fresh
        or not usual
    ):
        return ""
    usual_s = median(map(median, usual))
    if not 0 < worsening < _MOST_CONFIRMED or usual_s <= 0:
        return ""
    slower = suite.value / usual_s
    if slower <= _FAR_APART * (1 + worsening):
        return ""
    return (
        f"the suite waited {slower:.3g} times as long as in the stored sessions, and fresh"
        f" processes {1 + worsening:.3g} times: other programs keep the processor busy"
    )


def text_of_interruptions(
    case: Case, confirmation: Confirmation | None, worsening: float
) -> str:
    """
    Return the sentence on samples that were interrupted on one side of a change, or "".

    What runs in between empties the caches. The processor's time of interrupted samples has
    the time to fill them, and that of others has not.
    """
    current = case.current
    if confirmation is not None and confirmation.value is not None:
        current = confirmation.value
    if current is None or current.interrupted != (worsening > 0):
        return ""
    stored = case.stored.values.interrupted
    # On a machine that is always busy, the values are alike. Where some sessions met less,
    # they do not show how slow other programs make the test.
    if current.interrupted:
        return "" if all(stored) else _INTERRUPTED
    return _UNINTERRUPTED if 2 * sum(stored) > len(stored) else ""


def _seen(case: Case, session_id: str, *, alone: bool = False) -> SeenValue:
    listed, values = case.stored.listed, case.stored.values
    place = listed.ids.index(session_id)
    of_suite = values.run_values()[place]
    return SeenValue(
        session_id=session_id,
        started_unix_s=listed.sessions[place].started_unix_s,
        # The mean of two numbers may be larger than a float can be.
        value=median_low(values.odd[place].alone_values if alone else of_suite),
        alone=alone,
    )
