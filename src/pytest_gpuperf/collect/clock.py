"""The clock: the only module that reads the time."""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["NS_PER_S", "Clock", "SystemClock"]

NS_PER_S = 1_000_000_000


class Clock(Protocol):
    """A source of time; tests replace it with a scripted one."""

    def now_ns(self) -> int:
        """Return a monotonic time [ns]; only differences are meaningful."""

    def unix_s(self) -> float:
        """Return the wall-clock time since the epoch [s]."""

    def sleep(self, duration_s: float) -> None:
        """Sleep [s], >= 0."""


class SystemClock:
    """The machine's own clocks."""

    # the bound builtin itself: a Python frame around it would be part of every sample
    now_ns = staticmethod(time.perf_counter_ns)

    def unix_s(self) -> float:
        """Return the wall-clock time since the epoch [s]."""
        return time.time()

    def sleep(self, duration_s: float) -> None:
        """Sleep [s], >= 0."""
        time.sleep(duration_s)
