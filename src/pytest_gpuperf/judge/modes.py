"""Second modes: stored values that were as slow, or as fast, as a value of now."""

from __future__ import annotations

import math
from statistics import median

from pytest_gpuperf.judge.case import OVERSUBSCRIBED, Case, Confirmation, StoredValue
from pytest_gpuperf.model.change import Change, Comparison
from pytest_gpuperf.model.verdict import SeenValue

__all__ = ["seen_before", "text_of_oversubscription"]

# docs/judging.md section 2: two sessions are a mode, one bad session of a test that computes
# is not, and a test that waits or has threads is as slow as what it waits for
_MODE_SESSIONS, _MODE_SESSIONS_WAITING = 2, 1
_NEAR_LIMITS = 0.5  # a stored value is near one of now within half a limit
_NEAR = math.log1p(0.05)  # and within this on a log scale, however large the limit
_HALF_WAY = 0.5  # of a change: what is nearer to the usual value is no other mode
_SEVERAL = 3  # processes of a session of which one may be disturbed
_NEAR_ALONE = math.log1p(0.1)  # how much the processes of one state differ
_NEAR_WAITING = math.log1p(0.25)  # what a neighbour takes of a disk or a core varies


def seen_before(
    case: Case,
    comparison: Comparison | None,
    confirmation: Confirmation | None,
    change: Change,
) -> tuple[SeenValue, ...]:
    """
    Return the stored values that are a mode with the value now; empty: they are none.

    Values that a change is judged without count: the slow mode may be what was left out.

    Args:
        case: The case.

        comparison: Its values at one speed of the core; None: there is none.

        confirmation: What fresh processes gave; None: there were none.

        change: The change that it is: what fresh processes measured alone may be far
            from the suite's values, and this is one of them.
    """
    effect = change.effect
    if comparison is None or not effect or not _is_positive(comparison):
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
    by_session = {stored.session.id: stored for stored in case.stored}
    if alone := _seen_alone(comparison, usual, sign):
        return (_seen(by_session[alone], alone=True),)
    alike = tuple(
        _seen(by_session[session_id])
        for session_id, value in zip(
            comparison.session_ids, comparison.stored, strict=True
        )
        if sign * math.log(median(value.run_values)) >= least
    )
    enough = _MODE_SESSIONS_WAITING if waits else _MODE_SESSIONS
    return alike if len(alike) >= enough else ()


def _seen_alone(comparison: Comparison, usual: float, sign: float) -> str:
    """
    Return the session whose test alone was as slow as fresh processes are now, or "".

    A test may be fast or slow alone, by the tests that ran before it in its process: by the
    thresholds of the allocator, caches, modules. Several processes of a session show such a
    state; of single processes a neighbour may have slowed one, so two sessions must.
    """
    if not comparison.fresh:
        return ""
    several: list[tuple[float, str]] = []
    single: list[tuple[float, str]] = []
    for session_id, value in zip(
        comparison.session_ids, comparison.stored, strict=True
    ):
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


def text_of_oversubscription(case: Case, confirmation: Confirmation | None) -> str:
    """Return the note of threads that had to share the cores; "": they had not."""
    fresh = {} if confirmation is None else confirmation.notes
    return case.notes.get(OVERSUBSCRIBED) or fresh.get(OVERSUBSCRIBED) or ""


def _is_positive(comparison: Comparison) -> bool:
    """Return whether all values have a logarithm."""
    sessions = (comparison.current, *comparison.stored)
    return all(value > 0 for session in sessions for value in session.run_values)


def _seen(stored: StoredValue, *, alone: bool = False) -> SeenValue:
    """Return a stored value as evidence: that of the suite, or of the test alone."""
    value = stored.value
    return SeenValue(
        session_id=stored.session.id,
        started_unix_s=stored.session.started_unix_s,
        value=median(value.alone_values if alone else value.run_values),
        alone=alone,
    )
