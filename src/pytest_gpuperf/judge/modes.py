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
    alike = tuple(
        _seen(by_session[session_id])
        for session_id, value in zip(
            comparison.session_ids, comparison.stored, strict=True
        )
        if sign * math.log(median(value.run_values)) >= least
    )
    enough = _MODE_SESSIONS_WAITING if waits else _MODE_SESSIONS
    return alike if len(alike) >= enough else ()


def text_of_oversubscription(case: Case, confirmation: Confirmation | None) -> str:
    """Return the note of threads that had to share the cores; "": they had not."""
    fresh = {} if confirmation is None else confirmation.notes
    return case.notes.get(OVERSUBSCRIBED) or fresh.get(OVERSUBSCRIBED) or ""


def _is_positive(comparison: Comparison) -> bool:
    """Return whether all values have a logarithm."""
    sessions = (comparison.current, *comparison.stored)
    return all(value > 0 for session in sessions for value in session.run_values)


def _seen(stored: StoredValue) -> SeenValue:
    """Return a stored value as evidence."""
    return SeenValue(
        session_id=stored.session.id,
        started_unix_s=stored.session.started_unix_s,
        value=median(stored.value.run_values),
    )
