"""What a run says of what it stored; PYTEST_DONT_REWRITE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pytest_gpuperf.report import display

__all__ = ["nothing_stored", "stored_line"]


def nothing_stored(why: str) -> str:
    """Return the line of a run that was to store and did not."""
    return f"nothing was stored: {why}"


def stored_line(
    changes: Mapping[str, Sequence[object]], place: str, barred_count: int
) -> str:
    """
    Return the line that says what was stored, and where.

    Args:
        changes: Stored sessions by GPU, chip or host.

        place: The store.

        barred_count: Measurements that must not be stored.
    """
    count = sum(map(len, changes.values()))
    barred = display.plural(barred_count, "measurement")
    left_out = f"{barred} failed, void or inconclusive" if barred_count else ""
    if not count:
        return nothing_stored(left_out or "every series has what it needs")
    stored = display.plural(count, "measurement")
    folders = ", ".join(sorted(changes))
    text = display.escape(f"stored {stored} in {place} ({folders})")
    return f"{text}; not stored: {left_out}" if left_out else text
