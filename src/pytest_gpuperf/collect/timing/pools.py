"""Threads, pools, queues and child processes that work after a call, or beside it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Sequence

from pytest_gpuperf.collect.base import TimedCall
from pytest_gpuperf.collect.clock import NS_PER_S, Clock
from pytest_gpuperf.collect.timing.hidden import Place, grown_by, is_queue
from pytest_gpuperf.collect.timing.same_work import Probe
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.record import WORK_ELSEWHERE, Note

# Threads of a pool rest after a call. A thread that has work uses most of such a pause,
# even on a busy machine, in one of some pauses.
_PAUSE_S, PAUSES, _WORKING = 0.002, 5, 0.25
# Calls in which threads and child processes are watched.
_WATCHED_CALLS = 3
# Share of the work during or after a call that is done without one, too.
_IDLE = 0.2
# Children do so much more than a call takes, if its time leaves their work out.
_MOST_RATIO = 2
# Less processor time is that of services. Threads have done what calls gave to them after so
# many pauses, unless they work all the time.
_BUSY_NS, _REST_PAUSES = 5_000_000, 1_000
# Threads need some time to see that there is nothing to do.
_LEAST_S = 1e-4


class Pools:
    """
    The threads that were there before the samples, and what waits for them.

    Args:
        clock: The clock.

        threads: The threads, without those of services.
    """

    def __init__(self, clock: Clock, threads: Iterable[threading.Thread]) -> None:
        here = threading.current_thread()
        others = [t.native_id for t in threads if t is not here]
        self._clock = clock
        self._ids = [number for number in others if number is not None]
        self._before_ns = clock.threads_cpu_ns(self._ids)
        self._waiting_count = _waiting_count()

    def notes(
        self,
        request: TimedCall,
        probe_of: Callable[[TimedCall], Probe],
        usual_s: float,
        places: Sequence[Place],
    ) -> list[Note]:
        """
        Return a doubt if the threads work after the calls.

        Args:
            request: The call.

            probe_of: Returns what calls a function again.

            usual_s: The time of a call [s].

            places: What a call reaches.
        """
        # `setup` may take from a queue that threads then fill, as those of a loader do.
        waits = request.setup is None and (
            _waiting_count() > self._waiting_count or _fill(places)
        )
        if waits and any(
            work_in_a_pause(self._clock, self._ids) for _ in range(PAUSES)
        ):
            text = (
                "the time leaves work out: threads of a pool or a queue still do that of"
                " earlier calls; wait for it in the call"
            )
            return [Note(code=WORK_ELSEWHERE, text=text, doubt=True)]
        if self._clock.threads_cpu_ns(self._ids) - self._before_ns <= _BUSY_NS:
            return []
        idle = probe_of(replace(request, fn=_nothing))
        worked_s = self._worked_s(probe_of(request).call, idle.call)
        if worked_s <= max(usual_s, _LEAST_S):
            return []
        text = (
            f"the time leaves work out: threads of a pool or a queue work for {worked_s:.3g}"
            " s after a call; wait for them in it"
        )
        full_s = usual_s + worked_s
        return [Note(code=WORK_ELSEWHERE, text=text, doubt=True, full_s=full_s)]

    def _worked_s(
        self, call: Callable[[], object], idle: Callable[[], object]
    ) -> float:
        """
        Return how long the threads work after a call [s].

        Args:
            call: Calls the function.

            idle: Does the same without the function.

        Returns:
            The time, or 0 if the threads never rest, or work after `idle`, too.
        """
        # Earlier calls, of other tests as well, may have left work.
        if not self._come_to_rest():
            return 0.0
        worked_ns = 0
        for _ in range(_WATCHED_CALLS):
            # A thread with work of its own, or of `setup`, works without a call, too.
            idle_ns, after_ns = self._after_ns(idle), self._after_ns(call)
            if idle_ns is None or after_ns is None or idle_ns > _IDLE * after_ns:
                return 0.0
            worked_ns += after_ns
        return worked_ns / NS_PER_S / _WATCHED_CALLS

    def _after_ns(self, call: Callable[[], object]) -> int | None:
        """Return the work from the end of a call until the threads rest [ns], or None."""
        call()
        returned_ns = self._clock.threads_cpu_ns(self._ids)
        # A thread takes a moment to begin.
        self._clock.sleep(_PAUSE_S)
        if not self._come_to_rest():
            return None
        return self._clock.threads_cpu_ns(self._ids) - returned_ns

    def _come_to_rest(self) -> bool:
        resting_count = 0
        for _ in range(_REST_PAUSES):
            # A busy machine may let a thread wait for some pauses.
            resting_count = (
                0 if work_in_a_pause(self._clock, self._ids) else resting_count + 1
            )
            if resting_count == PAUSES:
                return True
        return False


def work_in_a_pause(clock: Clock, ids: Sequence[int]) -> bool:
    """
    Return True if threads use a pause of the calling one.

    Args:
        clock: The clock.

        ids: The native ids of the threads.
    """
    before_ns = clock.threads_cpu_ns(ids)
    clock.sleep(_PAUSE_S)
    return clock.threads_cpu_ns(ids) - before_ns > _WORKING * _PAUSE_S * NS_PER_S


def children_notes(
    call: Callable[[], object], usual_s: float, clock: Clock, before_ns: int
) -> list[Note]:
    """
    Return a doubt if child processes do the work of a call.

    A server or a loader that works all the time does no more in a call than beside it.

    Args:
        call: Calls the function.

        usual_s: The time of a call [s].

        clock: The clock.

        before_ns: The processor time of child processes [ns].
    """
    begun_ns = clock.now_ns()
    for _ in range(_WATCHED_CALLS):
        call()
    took_s = (clock.now_ns() - begun_ns) / NS_PER_S
    between_ns = clock.children_cpu_ns() or 0
    worked_ns = between_ns - before_ns
    worked_s = worked_ns / NS_PER_S / _WATCHED_CALLS
    # Where the call waits for it, the work of a child is most of its time.
    if worked_s <= _MOST_RATIO * usual_s:
        return []
    clock.sleep(took_s)
    if (clock.children_cpu_ns() or 0) - between_ns > _IDLE * worked_ns:
        return []
    text = (
        f"the time leaves work out: child processes work for {worked_s:.3g} s a call,"
        " in time that counts as interruptions"
    )
    full_s = usual_s + worked_s
    return [Note(code=WORK_ELSEWHERE, text=text, doubt=True, full_s=full_s)]


def _fill(places: Sequence[Place]) -> bool:
    """Return True if a queue has more items than before the first call."""
    try:
        return any(is_queue(place) and grown_by(place) > 0 for place in places)
    except Exception:  # noqa: BLE001 - an object of the test may raise anything
        return False


def _waiting_count() -> int:
    """Return the number of calls that wait in pools of threads."""
    pools = sys.modules.get("concurrent.futures.thread")
    queues = dict(getattr(pools, "_threads_queues", {}))
    return sum(queue.qsize() for queue in {*queues.values()})


def _nothing(*_: object, **__: object) -> None:
    """Stand in for the function."""
