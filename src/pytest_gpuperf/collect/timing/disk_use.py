"""Whether a call that waits uses a disk."""

from __future__ import annotations

from pytest_gpuperf.collect.clock import Clock
from pytest_gpuperf.model.record import Note

__all__ = ["USES_DISK", "uses_disk"]

_BLOCKS_OF_A_CALL = 0.5  # a call that waits for a disk uses it nearly each time
USES_DISK = Note(
    code="uses-disk",
    text="disk blocks were read or written meanwhile: it may have waited for a disk",
)


def uses_disk(clock: Clock, before: int | None, calls_count: int) -> bool:
    """
    Return whether calls used a disk, as far as the system counts it.

    Args:
        clock: Counts the blocks of this process.

        before: Its count before the calls; None: not known.

        calls_count: How many calls there were.
    """
    now = clock.blocks_count()
    if now is None or before is None:
        return False
    return now - before >= max(1, _BLOCKS_OF_A_CALL * calls_count)
