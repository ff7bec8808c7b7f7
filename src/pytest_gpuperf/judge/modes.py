"""Second modes: stored values that were as slow, or as fast, as a current value."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import median

from pytest_gpuperf.judge.case import OVERSUBSCRIBED, Case, Confirmation, StoredValue
from pytest_gpuperf.model.change import Change, Comparison
from pytest_gpuperf.model.verdict import SeenValue

__all__ = ["seen_before", "text_of_oversubscription"]

# Two sessions are a mode. A test that waits or has threads is as slow as the thing it
# waits for, so a single session is enough (docs/judging.md section 2).
_MODE_SESSIONS, _MODE_SESSIONS_WAITING = 2, 1
# A stored value is near the current value within half a limit ...
_NEAR_LIMITS = 0.5
# ... and within this on a log scale, however large the limit is.
_NEAR = math.log1p(0.05)
# Share of a change. A value closer to the usual value is no other mode.
_HALF_WAY = 0.5
# The load that a neighbour puts on a disk or a core varies.
_NEAR_WAITING = math.log1p(0.25)
# A mode of memory or caches that lasts for minutes varies as much. Simulated changes of
# other sizes are found as often as without this rule.
_NEAR_LEFT_OUT = _NEAR_WAITING


def seen_before(
    case: Case,
    comparison: Comparison | None,
    confirmation: Confirmation | None,
    change: Change,
    in_suite: Comparison | None = None,
) -> tuple[SeenValue, ...]:
    """
    Return the stored values that form a mode with the current value, or ().

    Values left out of the change also count. The slow mode of a computing test may have
    been sampled once and left out. A current value near that mode is no change either.

    Args:
        case: The case.

        comparison: The values of the case at one core speed, or None.

        confirmation: The results of fresh processes, or None if there were none.

        change: The change to explain. Values that fresh processes measure alone may be far
            from the values of the suite, and this change is based on one of the two.

        in_suite: The comparison by the value in the suite, or None if `comparison` is that.
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
    """Return the session left out of a change if the current value is near it, else ()."""
    left_out = dict(_stored_logs(measured[0]))[change.left_out]
    distance = abs(left_out - math.log(change.reference))
    near = min(_NEAR_LEFT_OUT, _HALF_WAY * distance)
    now = [math.log(median(c.current.run_values)) for c in measured]
    is_near = any(abs(value - left_out) <= near for value in now)
    return (change.left_out,) if is_near else ()


def _stored_logs(comparison: Comparison) -> Iterator[tuple[str, float]]:
    """Yield the id of every stored session and the logarithm of the value."""
    for session_id, value in zip(
        comparison.session_ids, comparison.stored, strict=True
    ):
        yield session_id, math.log(median(value.run_values))


def text_of_oversubscription(case: Case, confirmation: Confirmation | None) -> str:
    """Return the note about threads that shared the cores, or ""."""
    fresh = {} if confirmation is None else confirmation.notes
    return case.notes.get(OVERSUBSCRIBED) or fresh.get(OVERSUBSCRIBED) or ""


def _is_positive(comparison: Comparison) -> bool:
    sessions = (comparison.current, *comparison.stored)
    return all(value > 0 for session in sessions for value in session.run_values)


def _seen(stored: StoredValue) -> SeenValue:
    return SeenValue(
        session_id=stored.session.id,
        started_unix_s=stored.session.started_unix_s,
        value=median(stored.value.run_values),
    )
