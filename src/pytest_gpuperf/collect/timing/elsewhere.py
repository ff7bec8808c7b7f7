"""Work that a call leaves to threads, child processes or the end of the process.

The clock of a call stops when the call returns. A thread that still works then, or a child
process that works in the time that counts as interruptions, does work that is in no sample.
"""

from __future__ import annotations

import atexit
import sys
import threading
from _thread import _count as threads_count
from typing import TYPE_CHECKING, Any

from pytest_gpuperf.collect.clock import Clock
from pytest_gpuperf.collect.timing.hidden import is_projects
from pytest_gpuperf.model.record import WORK_ELSEWHERE, Note

if TYPE_CHECKING:
    from pytest_gpuperf.collect.timing.pools import Pools

# Modules of the standard library whose threads are given work.
_POOLS = ("concurrent.futures", "multiprocessing.pool")
# Calls of which each may leave a thread or an exit handler.
_LEAST_CALLS = 3
_SHARE = 0.5
# The module of event loops that has their tasks.
_TASKS = "asyncio.tasks"


class Elsewhere:
    """
    Looks for work outside of the thread and the time that are measured.

    Args:
        clock: The clock.

    Attributes:
        pools: What watches threads that were there before, or None without any.
    """

    def __init__(self, clock: Clock) -> None:
        self.pools: Pools | None = None
        self._clock = clock
        self._before = frozenset(threading.enumerate())
        self._first_count = self._threads_count = threads_count()
        self._exits_count = atexit._ncallbacks()  # noqa: SLF001 - no public name counts them
        self._tasks_count = 0

    def begin(self) -> None:
        """Note the threads and exit handlers before the first sample."""
        self._threads_count = threads_count()
        self._exits_count = atexit._ncallbacks()  # noqa: SLF001 - as above
        # Most programs have no event loop.
        self._tasks_count = _tasks_count() if _TASKS in sys.modules else 0
        threads = [*filter(_may_be_given_work, self._before)]
        if threads:
            # Imported here, because few tests have threads.
            from pytest_gpuperf.collect.timing.pools import Pools

            self.pools = Pools(self._clock, threads)

    def left(self, calls_count: int = 1) -> list[Note]:
        """
        Return doubts about work that goes on now, or was put off to the end of the process.

        Args:
            calls_count: Calls since `begin`, >= 1.
        """
        count = threads_count()
        leaves_tasks = _TASKS in sys.modules and _is_each(
            _tasks_count() - self._tasks_count, calls_count
        )
        # The usual call ends here.
        if (
            count <= self._first_count
            and not leaves_tasks
            and not self._left_exits(calls_count)
        ):
            return []
        parts = []
        if leaves_tasks:
            parts.append(
                "each call leaves a task on an event loop; await it in the call"
            )
        grown = count - self._threads_count
        if _is_each(grown, calls_count) or self._threads_work():
            parts.append(
                "threads that it started go on after the call; join them in it"
            )
        if self._left_exits(calls_count):
            parts.append("each call leaves work to the end of the process (atexit)")
        return [
            Note(
                code=WORK_ELSEWHERE,
                text=f"the time leaves work out: {part}",
                doubt=True,
            )
            for part in parts
        ]

    def _left_exits(self, calls_count: int) -> bool:
        count = atexit._ncallbacks() - self._exits_count  # noqa: SLF001 - as above
        return count > 0 and _is_each(count, calls_count)

    def _threads_work(self) -> bool:
        # Imported here, because few calls leave threads.
        from pytest_gpuperf.collect.timing.pools import PAUSES, work_in_a_pause

        started = [t for t in threading.enumerate() if t not in self._before]
        ids = [t.native_id for t in started if t.native_id is not None]
        return any(work_in_a_pause(self._clock, ids) for _ in range(PAUSES))


def _may_be_given_work(thread: threading.Thread) -> bool:
    """Return True for a thread of the project, or of a pool. Others are services."""
    target = getattr(thread, "_target", None)
    module = getattr(target, "__module__", None) or type(thread).__module__
    return module.startswith(_POOLS) or is_projects(module)


def _tasks_count() -> int:
    """Return the number of tasks of asyncio that have not ended, or 0 if unknown."""
    tasks: Any = sys.modules[_TASKS]
    # Python 3.12 has renamed it. The public function knows the tasks of one loop.
    known: Any = getattr(tasks, "_all_tasks", getattr(tasks, "_scheduled_tasks", ()))
    return sum(not task.done() for task in [*known])


def _is_each(count: int, calls_count: int) -> bool:
    """Return True if most calls have left one more."""
    return calls_count >= _LEAST_CALLS and count >= _SHARE * calls_count
