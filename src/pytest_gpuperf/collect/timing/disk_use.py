"""Detect calls that wait for a disk."""

from __future__ import annotations

from pytest_gpuperf.collect.clock import Clock
from pytest_gpuperf.model.record import Note

# A call that waits for a disk uses it nearly each time.
_BLOCKS_OF_A_CALL = 0.5
USES_DISK = Note(
    code="uses-disk",
    text="disk blocks were read or written during the call: it may have waited for a disk",
)


def uses_disk(clock: Clock, before: int | None, calls_count: int) -> bool:
    """
    Return True if calls used a disk, or False if the system does not count disk blocks.

    Args:
        clock: Counts the disk blocks of this process.

        before: The count before the calls, or None if unknown.

        calls_count: The number of calls.
    """
    now = clock.blocks_count()
    if now is None or before is None:
        return False
    return now - before >= max(1, _BLOCKS_OF_A_CALL * calls_count)
