"""The clock: the only module that reads the time."""

from __future__ import annotations

import sys
import time
from typing import Protocol

__all__ = ["NS_PER_S", "Clock", "SystemClock"]

NS_PER_S = 1_000_000_000


class Clock(Protocol):
    """A source of time; tests replace it with a scripted one."""

    def now_ns(self) -> int:
        """Return a monotonic time [ns]; only differences are meaningful."""

    def thread_cpu_ns(self) -> int:
        """Return the processor time of the calling thread [ns]."""

    def process_cpu_ns(self) -> int:
        """Return the processor time of all threads of this process [ns]."""

    def waits_count(self) -> int | None:
        """Return how often the calling thread has waited; None: nobody counts."""

    def unix_s(self) -> float:
        """Return the wall-clock time since the epoch [s]."""

    def sleep(self, duration_s: float) -> None:
        """Sleep [s], >= 0."""


class SystemClock:
    """The machine's own clocks."""

    # the bound builtins themselves: a Python frame would be part of every sample
    now_ns = staticmethod(time.perf_counter_ns)
    thread_cpu_ns = staticmethod(time.thread_time_ns)
    process_cpu_ns = staticmethod(time.process_time_ns)

    def waits_count(self) -> int | None:
        """Return the voluntary context switches of the thread; None: not on Linux."""
        if sys.platform != "linux":
            return None
        import resource  # most runs measure nothing

        return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw

    def unix_s(self) -> float:
        """Return the wall-clock time since the epoch [s]."""
        return time.time()

    def sleep(self, duration_s: float) -> None:
        """Sleep [s], >= 0."""
        time.sleep(duration_s)
