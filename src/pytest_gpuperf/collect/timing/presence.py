"""Observe whether threads run or wait during calls."""

from __future__ import annotations

from pytest_gpuperf.collect.clock import Clock
from pytest_gpuperf.collect.timing.contention import USES_DISK, uses_disk
from pytest_gpuperf.model.record import Note

# Processor time of the process over that of the calling thread.
_THREADS_RATIO = 1.2
# A call that waits does so nearly each time.
_WAITS_OF_A_SAMPLE = 0.5


class ThreadPresence:
    """
    Observes if a thread runs or waits during calls.

    It is created after the first call, unless that call is a sample: its imports and
    compilations show nothing about later calls.

    Attributes:
        begun_ns: Start of the observation [ns].

        samples_count: Number of calls seen.

        ran_through: Whether the thread ran all the time in one of them.
    """

    def __init__(self, clock: Clock) -> None:
        self.begun_ns = clock.now_ns()
        self._clock = clock
        self.ran_through = False
        self.samples_count = 0
        self._waits_count = clock.waits_count()
        self._blocks_count = clock.blocks_count()
        # As `look_anew`, without a call for each test.
        self._thread_ns = clock.thread_cpu_ns()
        self._process_ns = clock.process_cpu_ns()

    def look_anew(self) -> None:
        """Ignore the work of other threads until now."""
        self._thread_ns = self._clock.thread_cpu_ns()
        self._process_ns = self._clock.process_cpu_ns()

    def several_threads(self) -> bool:
        """Return True if other threads of the process have worked since the last look."""
        process_ns = self._clock.process_cpu_ns() - self._process_ns
        thread_ns = self._clock.thread_cpu_ns() - self._thread_ns
        return process_ns > _THREADS_RATIO * thread_ns

    def notes(self, *, several_threads: bool, fine: bool) -> tuple[Note, ...]:
        """
        Return the reasons why interruptions cannot be detected, or () if possible.

        Args:
            several_threads: Whether other threads of the process work during a call.

            fine: Whether the clock of processor time resolves a single sample.
        """
        if several_threads:
            return (SEVERAL_THREADS,)
        if not fine:
            return (_COARSE_CLOCK,)
        if self.ran_through:
            return ()
        if not waited(self._clock, self._waits_count, self.samples_count):
            return ()
        disk = uses_disk(self._clock, self._blocks_count, self.samples_count)
        return (_WAITS, USES_DISK) if disk else (_WAITS,)


def waited(clock: Clock, before: int | None, count: int) -> bool:
    """Return True if at least half of the calls may have waited, or waits are not counted."""
    now = clock.waits_count()
    if now is None or before is None:
        return True
    return now - before >= _WAITS_OF_A_SAMPLE * count


def notes_of_waits(
    clock: Clock, blocks_count: int | None, calls_count: int
) -> tuple[Note, ...]:
    """
    Return notes on samples that waited, although the calls of the warm-up did not.

    Args:
        clock: The clock.

        blocks_count: Blocks of a disk before the samples, or None if they are not counted.

        calls_count: Calls of all samples.
    """
    disk = uses_disk(clock, blocks_count, calls_count)
    return (_WAITED, USES_DISK) if disk else (_WAITED,)


SEVERAL_THREADS = Note(
    code="several-threads",
    text="other threads of the process work during a call: interrupted samples cannot be"
    " identified, and all of them count",
)
_COARSE_CLOCK = Note(
    code="coarse-cpu-clock",
    text="the machine's clock of processor time is too coarse: neither interrupted samples"
    " nor the speed of the core can be determined, and all samples count",
)
_WAITS = Note(
    code="waits",
    text="no warm-up call ran without waiting (for I/O, a lock or a timer), so all"
    " samples count",
)
_WAITED = Note(
    code="waits",
    text="most samples waited (for I/O, a lock or a timer), the calls of the warm-up did not",
)
