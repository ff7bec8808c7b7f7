"""Work that a call leaves to threads, child processes or the end of the process.

The clock of a call stops when the call returns. A thread that still works then, or a child
process that works in the time that counts as interruptions, does work that is in no sample.
"""

from __future__ import annotations

import atexit
import sys
import threading
from _thread import _count as threads_count
from collections.abc import Callable, Iterable, Sequence

from pytest_gpuperf.collect.clock import NS_PER_S, Clock
from pytest_gpuperf.model.record import Note

WORK_ELSEWHERE = "work-elsewhere"
# Threads of a pool rest after a call. A thread that has work uses most of such a pause,
# even on a busy machine, in one of some pauses.
_PAUSE_S, _PAUSES, _WORKING = 0.002, 5, 0.25
# Less processor time of threads that were there before is that of services. They have done
# what calls gave to them after so many pauses, unless they work all the time.
_BUSY_NS, _REST_PAUSES = 5_000_000, 1_000
# Calls of which each may leave a thread or an exit handler.
_LEAST_CALLS = 3
_SHARE = 0.5
# Calls in which child processes and threads are watched.
_WATCHED_CALLS = 3
# Threads need some time to see that there is nothing to do.
_LEAST_S = 1e-4
# Share of the time after a call that they may work without one.
_IDLE = 0.2


class Elsewhere:
    """
    Looks for work outside of the thread and the time that are measured.

    Args:
        clock: The clock.

    Attributes:
        is_watching: Whether there were threads before the first sample that may be given
            work.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._before = frozenset(threading.enumerate())
        self._first_count = self._threads_count = threads_count()
        self._exits_count = atexit._ncallbacks()  # noqa: SLF001 - no public name counts them
        # Threads beside this one, and their processor time before the first sample.
        self._others: list[int] = []
        self._others_ns = self._in_pools_count = 0
        self.is_watching = False

    def begin(self) -> None:
        """Note the threads and exit handlers before the first sample."""
        self._threads_count = threads_count()
        self._exits_count = atexit._ncallbacks()  # noqa: SLF001 - as above
        if len(self._before) > 1:
            here = threading.current_thread()
            self._others = _ids(t for t in self._before if t is not here)
            self._others_ns = self._clock.threads_cpu_ns(self._others)
            self._in_pools_count = _in_pools_count()
            self.is_watching = True

    def left(self, calls_count: int = 1) -> list[Note]:
        """
        Return doubts about work that goes on now, or was put off to the end of the process.

        Args:
            calls_count: Calls since `begin`, >= 1.
        """
        count = threads_count()
        # The usual call ends here.
        if count <= self._first_count and not self._left_exits(calls_count):
            return []
        parts = []
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

    def in_children(self, call: Callable[[], object], usual_s: float) -> list[Note]:
        """
        Return a doubt if child processes do the work of a call.

        Args:
            call: Calls the function.

            usual_s: The time of a call [s].
        """
        before_ns = self._clock.children_cpu_ns()
        if before_ns is None:
            return []
        for _ in range(_WATCHED_CALLS):
            call()
        worked_ns = (self._clock.children_cpu_ns() or 0) - before_ns
        worked_s = worked_ns / NS_PER_S / _WATCHED_CALLS
        if worked_s <= usual_s:
            return []
        text = (
            f"the time leaves work out: child processes work for {worked_s:.3g} s a call,"
            " in time that counts as interruptions"
        )
        return [
            Note(code=WORK_ELSEWHERE, text=text, doubt=True, full_s=usual_s + worked_s)
        ]

    def in_threads(
        self, call: Callable[[], object], usual_s: float, *, queued: bool
    ) -> list[Note]:
        """
        Return a doubt if threads that were there before work after the calls.

        Args:
            call: Calls the function.

            usual_s: The time of a call [s].

            queued: Whether a queue that the call reaches has more items than before.
        """
        queued = queued or _in_pools_count() > self._in_pools_count
        if queued and any(self._work_on(self._others) for _ in range(_PAUSES)):
            text = (
                "the time leaves work out: threads of a pool or a queue still do that of"
                " earlier calls; wait for it in the call"
            )
            return [Note(code=WORK_ELSEWHERE, text=text, doubt=True)]
        if self._clock.threads_cpu_ns(self._others) - self._others_ns <= _BUSY_NS:
            return []
        # Earlier calls, of other tests as well, may have left work.
        if not self._come_to_rest():
            return []
        worked_ns = 0
        for _ in range(_WATCHED_CALLS):
            # A thread with work of its own works without a call, too.
            idle_ns, after_ns = (
                self._worked_after_ns(_nothing),
                self._worked_after_ns(call),
            )
            if idle_ns is None or after_ns is None or idle_ns > _IDLE * after_ns:
                return []
            worked_ns += after_ns
        worked_s = worked_ns / NS_PER_S / _WATCHED_CALLS
        if worked_s <= max(usual_s, _LEAST_S):
            return []
        text = (
            f"the time leaves work out: threads of a pool or a queue work for {worked_s:.3g}"
            " s after a call; wait for them in it"
        )
        return [
            Note(code=WORK_ELSEWHERE, text=text, doubt=True, full_s=usual_s + worked_s)
        ]

    def _left_exits(self, calls_count: int) -> bool:
        count = atexit._ncallbacks() - self._exits_count  # noqa: SLF001 - as above
        return count > 0 and _is_each(count, calls_count)

    def _threads_work(self) -> bool:
        ids = _ids(t for t in threading.enumerate() if t not in self._before)
        return any(self._work_on(ids) for _ in range(_PAUSES))

    def _work_on(self, ids: Sequence[int]) -> bool:
        """Return True if threads use a pause of this one."""
        before_ns = self._clock.threads_cpu_ns(ids)
        self._clock.sleep(_PAUSE_S)
        worked_ns = self._clock.threads_cpu_ns(ids) - before_ns
        return worked_ns > _WORKING * _PAUSE_S * NS_PER_S

    def _worked_after_ns(self, call: Callable[[], object]) -> int | None:
        """
        Return the processor time of threads from the end of a call until they rest [ns].

        None if they do not come to rest.
        """
        call()
        returned_ns = self._clock.threads_cpu_ns(self._others)
        # A thread takes a moment to begin.
        self._clock.sleep(_PAUSE_S)
        if not self._come_to_rest():
            return None
        return self._clock.threads_cpu_ns(self._others) - returned_ns

    def _come_to_rest(self) -> bool:
        """Return True if threads that were there before have nothing left to do."""
        resting_count = 0
        for _ in range(_REST_PAUSES):
            # A busy machine may let a thread wait for some pauses.
            resting_count = 0 if self._work_on(self._others) else resting_count + 1
            if resting_count == _PAUSES:
                return True
        return False


def _ids(threads: Iterable[threading.Thread]) -> list[int]:
    return [t.native_id for t in threads if t.native_id is not None]


def _in_pools_count() -> int:
    """Return the number of calls that wait in pools of threads."""
    pools = sys.modules.get("concurrent.futures.thread")
    queues = dict(getattr(pools, "_threads_queues", {}))
    return sum(queue.qsize() for queue in {*queues.values()})


def _is_each(count: int, calls_count: int) -> bool:
    """Return True if most calls have left one more."""
    return calls_count >= _LEAST_CALLS and count >= _SHARE * calls_count


def _nothing() -> None:
    """Make no call."""
