"""The clock: the only module that reads the time.

A small loop, timed between samples, shows the present speed of the core. On a shared
machine, other work on the same physical core slows this process by up to a factor of 2,
for some tenths of a second or for seconds. A sample cannot distinguish that from a
slower call, but a loop that never changes can.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from math import inf
from typing import Protocol, final

from pytest_gpuperf.collect.held_file import SystemFile
from pytest_gpuperf.collect.load import Load, LoadFile

NS_PER_S = 1_000_000_000
_LOOP_COUNT = 600  # About 20 us.
# One or two loops a millisecond take 2 to 4 % of the time.
_LOOP_EVERY_NS = 1_000_000
# The share of 20 us that a reading of the clock takes.
_LOOP_NOISE = 0.01
# Linux counts sectors of 512 B, and file systems write 4 KiB.
_SECTORS_OF_A_BLOCK = 8
# Of /proc/self/io: the first line has at most 27 bytes.
_READS_BYTES = 40


class Clock(Protocol):
    """A source of time. Tests replace it with a scripted clock."""

    def now_ns(self) -> int:
        """Return a monotonic time [ns]. Only differences are meaningful."""

    def thread_cpu_ns(self) -> int:
        """Return the processor time of the calling thread [ns]."""

    def process_cpu_ns(self) -> int:
        """Return the processor time of all threads of the process [ns]."""

    def threads_cpu_ns(self, native_ids: Sequence[int]) -> int:
        """Return the processor time of some threads of the process [ns], 0 if unknown."""

    def children_cpu_ns(self) -> int | None:
        """Return the processor time of running child processes [ns], or None without any."""

    def delay_ns(self) -> int:
        """Return how long the calling thread was kept from a processor [ns], 0 if unknown."""

    def waits_count(self) -> int | None:
        """
        Return the number of waits of the calling thread, or None if the system does not count.
        """

    def conditions(self) -> Mapping[str, str]:
        """Return the conditions that slow all code now, such as a tracer, as hard facts."""

    def blocks_count(self) -> int | None:
        """Return the number of disk blocks read and written by the process, or None."""

    def bytes_read(self) -> int | None:
        """Return the bytes that the process has read from files and pipes, or None."""

    def load(self) -> Load | None:
        """Return the machine's runnable threads and cores, or None."""

    def unix_s(self) -> float:
        """Return the wall-clock time since the epoch [s]."""

    def sleep(self, duration_s: float) -> None:
        """Sleep for a duration [s], >= 0."""

    def close(self) -> None:
        """Close the files. The load and the bytes read are unknown from then on."""


def _uncounted() -> None:
    return None


class SystemClock:
    """The machine's own clocks."""

    # The builtins themselves, because a Python frame would be part of every sample.
    now_ns = staticmethod(time.perf_counter_ns)
    thread_cpu_ns = staticmethod(time.thread_time_ns)
    process_cpu_ns = staticmethod(time.process_time_ns)

    def __init__(self) -> None:
        # Both are opened when they are first read.
        self._load_file = LoadFile()
        self._reads = SystemFile("/proc/self/io")
        self._pid = os.getpid()
        self._own_bytes = 0
        # The bound method itself, for the same reason as above.
        self.load = self._load_file.load

    def threads_cpu_ns(self, native_ids: Sequence[int]) -> int:
        """Return the processor time of some threads [ns], 0 if not on Linux."""
        # Imported here, because most calls leave no thread.
        from pytest_gpuperf.collect.processor_time import of_threads_ns

        return of_threads_ns(native_ids)

    def children_cpu_ns(self) -> int | None:
        """Return the processor time of running child processes [ns], or None without any."""
        # Most tests have no child, and nothing is opened while a test runs.
        if sys.platform != "linux":
            return None
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return None
        from pytest_gpuperf.collect.processor_time import of_children_ns

        return of_children_ns()

    def delay_ns(self) -> int:
        """Return how long the thread was kept from a processor [ns], 0 if not on Linux."""
        # Imported here, because few calls have a period.
        from pytest_gpuperf.collect.processor_time import delay_ns

        return delay_ns()

    # Functions that are made when first used, because most runs measure nothing. An
    # import inside of a function would cost as much as the reading.
    @cached_property
    def waits_count(self) -> Callable[[], int | None]:
        """Returns the voluntary context switches of the thread, or None if not on Linux."""
        if sys.platform != "linux":
            return _uncounted
        from resource import RUSAGE_THREAD, getrusage

        return lambda: getrusage(RUSAGE_THREAD).ru_nvcsw

    @cached_property
    def conditions(self) -> Callable[[], Mapping[str, str]]:
        """Returns the conditions that change the speed of all code now, as hard facts."""
        from pytest_gpuperf.collect.instrumentation import conditions

        return conditions

    @cached_property
    def blocks_count(self) -> Callable[[], int | None]:
        """Returns the disk blocks of the process, not counting access to memory, or None."""
        if sys.platform == "win32":
            return _uncounted
        from resource import RUSAGE_SELF, getrusage

        in_block = _SECTORS_OF_A_BLOCK if sys.platform == "linux" else 1

        def count() -> int:
            usage = getrusage(RUSAGE_SELF)
            return (usage.ru_inblock + usage.ru_oublock) // in_block

        return count

    def bytes_read(self) -> int | None:
        """Return the bytes that the process has read from files and pipes, or None."""
        # A child that was forked would read the count of its parent.
        if sys.platform != "linux" or os.getpid() != self._pid:
            return None
        # The first line is the name and the number, and there are more.
        number = b"".join(self._reads.read(_READS_BYTES).split()[1:2])
        if not number.isdigit():
            return None
        # Each reading of ours counts for the next ones.
        self._own_bytes += _READS_BYTES
        return int(number) - self._own_bytes

    def close(self) -> None:
        """Close the files. The load and the bytes read are unknown from then on."""
        self._load_file.close()
        self._reads.close()

    def unix_s(self) -> float:
        """Return the wall-clock time since the epoch [s]."""
        return time.time()

    def sleep(self, duration_s: float) -> None:
        """Sleep for a duration [s], >= 0."""
        time.sleep(duration_s)


@final
class CoreLoop:
    """
    Times the loop at most once a millisecond, and only in a plain process.

    Under a tracer, another allocator or a similar condition, the time of the loop would
    measure that condition.

    A collector keeps one object. The time measured after one call also counts as the
    time before the next call, if that starts within the millisecond.

    Args:
        clock: Source of the time.

    Attributes:
        due_ns: The time from which the loop is timed again [ns].

        last_s: The last processor time of the loop [s], or None if it is unknown.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.due_ns: float = -inf
        self.last_s: float | None = None
        self._loop_ns = 0

    def around_s(self) -> float | None:
        """
        Return the loop's processor time around the sample that has just ended [s].

        Returns:
            The mean of the last time before the sample and the time after it, or None
            if there was none before, the clock stood still, or the process is not
            plain.
        """
        before_ns = self._loop_ns
        now_ns = self._clock.now_ns()
        if now_ns >= self.due_ns:
            self.refresh(now_ns)
        if min(before_ns, self._loop_ns) <= 0:
            return None
        return (before_ns + self._loop_ns) / 2 / NS_PER_S

    def refresh(self, now_ns: int) -> None:
        """
        Time the loop again.

        Args:
            now_ns: The current time [ns], from `due_ns` on.
        """
        if self._clock.conditions():
            self._loop_ns = 0
        else:
            loop_ns = self._ran_ns()
            if abs(loop_ns - self._loop_ns) > _LOOP_NOISE * self._loop_ns:
                # The second loop is warm, so that the effect of a sample on the caches
                # is excluded.
                loop_ns = min(loop_ns, self._ran_ns())
            self._loop_ns = loop_ns
        self.last_s = self._loop_ns / NS_PER_S if self._loop_ns > 0 else None
        self.due_ns = now_ns + _LOOP_EVERY_NS

    def _ran_ns(self) -> int:
        """
        Return the processor time of a loop [ns], without waiting and other processes.
        """
        cpu_ns = self._clock.thread_cpu_ns
        begun_ns = cpu_ns()
        total = 0
        for number in range(_LOOP_COUNT):
            total += number & 7
        return cpu_ns() - begun_ns
