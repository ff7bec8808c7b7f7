"""The clock: the only module that reads the time.

A small loop, timed between samples, tells how fast the core is at the moment. On a shared
machine another's work on the same physical core slows this one by up to a factor of 2, for
some tenths of a second or for seconds. No sample tells that from a slower call; a loop that
never changes does.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Protocol, final

from pytest_gpuperf.collect.load import Load, LoadFile

__all__ = ["NS_PER_S", "Clock", "CoreLoop", "SystemClock"]

NS_PER_S = 1_000_000_000
_LOOP_COUNT = 600  # about 20 us
_LOOP_EVERY_NS = 1_000_000  # one or two loops a millisecond: 2 to 4 % of the time
_LOOP_NOISE = 0.01  # what the clock's own reading takes of 20 us
_SECTORS_OF_A_BLOCK = 8  # Linux counts 512 B each, and file systems write 4 KiB


class Clock(Protocol):
    """A source of time; tests replace it with a scripted one."""

    def now_ns(self) -> int:
        """Return a monotonic time [ns]; only differences are meaningful."""

    def thread_cpu_ns(self) -> int:
        """Return the processor time of the calling thread [ns]."""

    def process_cpu_ns(self) -> int:
        """Return the processor time of all threads of this process [ns]."""

    def waits_count(self) -> int | None:
        """Return how often the calling thread has waited; None: the system does not count."""

    def conditions(self) -> Mapping[str, str]:
        """Return the hard facts of what slows all code now, as a tracer; empty: nothing."""

    def blocks_count(self) -> int | None:
        """Return how many disk blocks this process has read and written, or None."""

    def load(self) -> Load | None:
        """Return the machine's runnable threads and cores, or None."""

    def unix_s(self) -> float:
        """Return the wall-clock time since the epoch [s]."""

    def sleep(self, duration_s: float) -> None:
        """Sleep [s], >= 0."""

    def close(self) -> None:
        """Close the file that the load is read from, which is unknown from then on."""


class SystemClock:
    """The machine's own clocks."""

    # the bound builtins themselves: a Python frame would be part of every sample
    now_ns = staticmethod(time.perf_counter_ns)
    thread_cpu_ns = staticmethod(time.thread_time_ns)
    process_cpu_ns = staticmethod(time.process_time_ns)

    def __init__(self) -> None:
        load_file = LoadFile()  # opened by the first look
        self.load = load_file.load  # as above
        self.close = load_file.close

    def waits_count(self) -> int | None:
        """Return the voluntary context switches of the thread; None: not on Linux."""
        if sys.platform != "linux":
            return None
        import resource  # most runs measure nothing

        return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw

    def conditions(self) -> Mapping[str, str]:
        """Return what changes how fast all code runs now, as hard facts."""
        # An xdist controller has a clock before anything measures.
        from pytest_gpuperf.collect.instrumentation import conditions

        return conditions()

    def blocks_count(self) -> int | None:
        """Return the disk blocks of the process, those of memory left out, or None."""
        if sys.platform == "win32":
            return None
        import resource  # as above

        usage = resource.getrusage(resource.RUSAGE_SELF)
        count = usage.ru_inblock + usage.ru_oublock
        return count // _SECTORS_OF_A_BLOCK if sys.platform == "linux" else count

    def unix_s(self) -> float:
        """Return the wall-clock time since the epoch [s]."""
        return time.time()

    def sleep(self, duration_s: float) -> None:
        """Sleep [s], >= 0."""
        time.sleep(duration_s)


@final
class CoreLoop:
    """
    Times the loop at most once a millisecond, and only in a plain process.

    Under a tracer, another allocator or the like it would tell what that costs.

    A collector keeps one: what it timed beside one call is beside the next, if that comes
    within the millisecond.

    Args:
        clock: Gives the time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._next_ns: int | None = None
        self._loop_ns = 0

    def around_s(self) -> float | None:
        """
        Return the loop's processor time around the sample that has just ended [s].

        Returns:
            The mean of the last time before it and of one after it; None: there was none
            before, the clock stood still, or the process is not a plain one.
        """
        before_ns = self._loop_ns
        self.refresh()
        if min(before_ns, self._loop_ns) <= 0:
            return None
        return (before_ns + self._loop_ns) / 2 / NS_PER_S

    def refresh(self) -> None:
        """Time the loop again if its last time is of another millisecond."""
        now_ns = self._clock.now_ns()
        if self._next_ns is not None and now_ns < self._next_ns:
            return
        if self._clock.conditions():
            self._loop_ns = 0
        else:
            loop_ns = self._ran_ns()
            if abs(loop_ns - self._loop_ns) > _LOOP_NOISE * self._loop_ns:
                # the second is warm: what a sample did to the caches is not part of it
                loop_ns = min(loop_ns, self._ran_ns())
            self._loop_ns = loop_ns
        self._next_ns = now_ns + _LOOP_EVERY_NS

    def _ran_ns(self) -> int:
        """Return the processor time of one loop [ns]: waiting and other work is none."""
        cpu_ns = self._clock.thread_cpu_ns
        begun_ns = cpu_ns()
        total = 0
        for number in range(_LOOP_COUNT):
            total += number & 7
        return cpu_ns() - begun_ns
