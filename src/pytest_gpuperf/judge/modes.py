"""Second modes: stored values that were as slow, or as fast, as a value of now."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import median

from pytest_gpuperf.judge.case import OVERSUBSCRIBED, Case, Confirmation, StoredValue
from pytest_gpuperf.model.change import Change, Comparison
from pytest_gpuperf.model.verdict import SeenValue

__all__ = ["seen_before", "text_of_oversubscription"]

# docs/judging.md section 2: two sessions are a mode, and a test that waits or has threads is
# as slow as what it waits for
_MODE_SESSIONS, _MODE_SESSIONS_WAITING = 2, 1
_NEAR_LIMITS = 0.5  # a stored value is near one of now within half a limit
_NEAR = math.log1p(0.05)  # and within this on a log scale, however large the limit
_HALF_WAY = 0.5  # of a change: what is nearer to the usual value is no other mode
_NEAR_WAITING = math.log1p(0.25)  # what a neighbour takes of a disk or a core varies
# a mode that the memory or the caches are in for minutes varies as much: simulated changes of
# other sizes are found as often as without this rule
_NEAR_LEFT_OUT = _NEAR_WAITING


def seen_before(
    case: Case,
    comparison: Comparison | None,
    confirmation: Confirmation | None,
    change: Change,
    in_suite: Comparison | None = None,
) -> tuple[SeenValue, ...]:
    """
    Return the stored values that are a mode with the value now; empty: they are none.

    Values that a change is judged without count, too. The slow mode of a test that computes
    may have been drawn once and left out: a value now that is near it is no change either.

    Args:
        case: The case.

        comparison: Its values at one speed of the core; None: there is none.

        confirmation: What fresh processes gave; None: there were none.

        change: The change that it is: what fresh processes measured alone may be far
            from the suite's values, and this is one of them.

        in_suite: The case by its value in the suite; None: `comparison` is that.
    """
    effect = change.effect
    if comparison is None or not effect or not _is_positive(comparison):
        return ()
    if change.reference <= 0 or effect <= -1:
        return ()
    by_session = {stored.session.id: stored for stored in case.stored}
    waits = bool(case.notes or (confirmation is not None and confirmation.notes))
    usual, moved = math.log(change.reference), math.log1p(effect)
    ids = _mode(case, comparison, usual, moved, waits=waits)
    if not ids and change.left_out:
        measured = [c for c in (comparison, in_suite) if c is not None]
        ids = _left_out_alike(measured, change)
    return tuple(_seen(by_session[session_id]) for session_id in ids)


def _mode(
    case: Case, comparison: Comparison, usual: float, moved: float, *, waits: bool
) -> tuple[str, ...]:
    """Return the sessions that were as slow as a change or slower, if they are enough."""
    sign = math.copysign(1.0, moved)
    near = min(_NEAR, _NEAR_LIMITS * math.log1p(case.limit or 0.0))
    least = max(
        sign * (usual + moved) - (_NEAR_WAITING if waits else near),
        sign * (usual + _HALF_WAY * moved),
    )
    alike = tuple(
        session_id
        for session_id, value in _stored_logs(comparison)
        if sign * value >= least
    )
    enough = _MODE_SESSIONS_WAITING if waits else _MODE_SESSIONS
    return alike if len(alike) >= enough else ()


def _left_out_alike(measured: Sequence[Comparison], change: Change) -> tuple[str, ...]:
    """Return the session that a change was judged without, where a value now is near it."""
    left_out = dict(_stored_logs(measured[0]))[change.left_out]
    distance = abs(left_out - math.log(change.reference))
    near = min(_NEAR_LEFT_OUT, _HALF_WAY * distance)
    now = [math.log(median(c.current.run_values)) for c in measured]
    is_near = any(abs(value - left_out) <= near for value in now)
    return (change.left_out,) if is_near else ()


def _stored_logs(comparison: Comparison) -> Iterator[tuple[str, float]]:
    """Yield the id and the value of each stored session, on a log scale."""
    for session_id, value in zip(
        comparison.session_ids, comparison.stored, strict=True
    ):
        yield session_id, math.log(median(value.run_values))


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
