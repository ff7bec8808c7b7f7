"""A Clock whose time moves only as scripted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain, repeat


class FakeClock:
    """
    Stands still until it is advanced.

    Attributes:
        reading_ns: The monotonic reading [ns].

        wall_s: The wall-clock time [s].
    """

    def __init__(self, *, wall_s: float = 1_700_000_000.0) -> None:
        self.reading_ns = 0
        self.wall_s = wall_s

    def now_ns(self) -> int:
        return self.reading_ns

    def unix_s(self) -> float:
        return self.wall_s

    def advance(self, elapsed_ns: int) -> None:
        self.reading_ns += elapsed_ns
        self.wall_s += elapsed_ns / 1e9

    def sleep(self, duration_s: float) -> None:
        self.advance(round(duration_s * 1e9))

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
