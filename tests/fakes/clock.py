"""A Clock whose time moves only as scripted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain, repeat

from pytest_gpuperf.collect.load import Load


class FakeClock:
    """
    Stands still until it is advanced.

    Attributes:
        reading_ns: The monotonic reading [ns].

        wall_s: The wall-clock time [s].

        waited_ns: How much of the time this thread did not run [ns].

        delayed_ns: How much of that time something else ran on its processor [ns].

        waits: How often this thread has waited; None: nobody counts.

        others_ns: The processor time of other threads [ns].

        children_ns: The processor time of running child processes [ns]; None: there are none.

        blocks: Disk blocks that the process has read or written; None: nobody counts.

        read: Bytes that the process has read from files; None: nobody counts.

        machine_load: The machine's runnable threads and cores; None: not known.

        traced_by: The package that traces this thread; "": none.

        also: What else changes how fast all code runs, as facts.
    """

    def __init__(self, *, wall_s: float = 1_700_000_000.0) -> None:
        self.reading_ns = 0
        self.wall_s = wall_s
        self.waited_ns = 0
        self.delayed_ns = 0
        self.waits: int | None = 0
        self.others_ns = 0
        self.children_ns: int | None = None
        self.blocks: int | None = 0
        self.read: int | None = 0
        self.machine_load: Load | None = Load(1, 2)
        self.traced_by = ""
        self.also: dict[str, str] = {}

    def now_ns(self) -> int:
        return self.reading_ns

    def unix_s(self) -> float:
        return self.wall_s

    def thread_cpu_ns(self) -> int:
        return self.reading_ns - self.waited_ns

    def process_cpu_ns(self) -> int:
        return self.thread_cpu_ns() + self.others_ns

    def threads_cpu_ns(self, native_ids: Sequence[int]) -> int:
        return self.others_ns if native_ids else 0

    def children_cpu_ns(self) -> int | None:
        return self.children_ns

    def delay_ns(self) -> int:
        return self.delayed_ns

    def waits_count(self) -> int | None:
        return self.waits

    def conditions(self) -> dict[str, str]:
        traced = {"tracer": self.traced_by} if self.traced_by else {}
        return {**traced, **self.also}

    def blocks_count(self) -> int | None:
        return self.blocks

    def bytes_read(self) -> int | None:
        return self.read

    def load(self) -> Load | None:
        return self.machine_load

    def close(self) -> None:
        self.machine_load = None

    def advance(self, elapsed_ns: int) -> None:
        self.reading_ns += elapsed_ns
        self.wall_s += elapsed_ns / 1e9

    def interrupt(self, elapsed_ns: int) -> None:
        """Let time pass in which something else runs on this thread's processor."""
        self.advance(elapsed_ns)
        self.waited_ns += elapsed_ns
        self.delayed_ns += elapsed_ns

    def wait(self, elapsed_ns: int) -> None:
        """Let time pass in which this thread waits."""
        self.advance(elapsed_ns)
        self.waited_ns += elapsed_ns
        if self.waits is not None:
            self.waits += 1

    def sleep(self, duration_s: float) -> None:
        self.wait(round(duration_s * 1e9))

    def taking(self, *first_ns: int, then_ns: int) -> Callable[[], int]:
        """Return a function whose calls take these times, and return their number."""
        times: Iterable[int] = chain(first_ns, repeat(then_ns))
        left = iter(times)
        calls = 0

        def call() -> int:
            nonlocal calls
            calls += 1
            self.advance(next(left))
            return calls

        return call
