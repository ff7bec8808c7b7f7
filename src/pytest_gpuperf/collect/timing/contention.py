"""What a call had to wait for during its samples: cores for its threads, or a disk."""

from __future__ import annotations

import statistics

from pytest_gpuperf.collect.clock import Clock
from pytest_gpuperf.collect.environment import thread_limits
from pytest_gpuperf.model.record import OVERSUBSCRIBED, Note

# A look takes some 3 us.
_LOOK_EVERY_NS = 1_000_000
# A call that waits for a disk uses it nearly each time.
_BLOCKS_OF_A_CALL = 0.5
USES_DISK = Note(
    code="uses-disk",
    text="disk blocks were read or written during the call: it may have waited for a disk",
)


class CoreContention:
    """
    The number of threads that the machine had to run during the samples of one call.

    Used only for calls that work in several threads. A thread that has to wait for a
    core holds up all the others, so that a call takes a multiple of its time.

    Args:
        clock: Provides time and load.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._next_ns = clock.now_ns()
        self._runnable_counts: list[int] = []
        self._core_count = 0

    def look(self) -> None:
        """Read the load, at most once per millisecond and never in a sample."""
        now_ns = self._clock.now_ns()
        if now_ns < self._next_ns:
            return
        self._next_ns = now_ns + _LOOK_EVERY_NS
        load = self._clock.load()
        if load is not None:
            self._runnable_counts.append(load.runnable_count)
            self._core_count = load.core_count

    def notes(self) -> tuple[Note, ...]:
        """Return a note if the machine had more threads to run than cores, or ()."""
        if not self._runnable_counts:
            return ()
        # The lower median, because a single look that sees a short-lived thread is no
        # contention.
        usual_count = statistics.median_low(self._runnable_counts)
        if usual_count <= self._core_count:
            return ()
        limits = "".join(f"; {n}={value}" for n, value in thread_limits().items())
        text = (
            f"threads had to share the cores: {usual_count} runnable threads, those of the"
            f" call among them, on {self._core_count} cores{limits}"
        )
        return (Note(code=OVERSUBSCRIBED, text=text),)


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
