"""An ArrayFramework whose copies and products take as long as they were scripted to."""

from __future__ import annotations

from collections.abc import Callable

from fakes.clock import FakeClock


class FakeFramework:
    """
    Arrays on a device that exists in name only.

    Attributes:
        bytes_per_s: How fast it copies, counted once [B/s].

        flop_per_s: How fast it multiplies, by data type; others it cannot.

        failing: What a product raises; None: nothing.

        first_calls_slower: By how much the first three calls of anything are slower.
    """

    name = "fake"

    def __init__(
        self,
        clock: FakeClock,
        *,
        bytes_per_s: float = 1e12,
        flop_per_s: dict[str, float] | None = None,
    ) -> None:
        self.bytes_per_s = bytes_per_s
        self.flop_per_s = flop_per_s or {}
        self.failing: Exception | None = None
        self.first_calls_slower = 10
        self._clock = clock
        self._pending_ns = 0

    def copier(self, size_bytes: int) -> Callable[[], object]:
        return self._work(size_bytes / self.bytes_per_s)

    def multiplier(self, size: int, dtype: str) -> Callable[[], object] | None:
        if self.failing is not None:
            raise self.failing
        rate = self.flop_per_s.get(dtype)
        return None if rate is None else self._work(2 * size**3 / rate)

    def synchronize(self) -> None:
        self._clock.advance(self._pending_ns)
        self._pending_ns = 0

    def _work(self, time_s: float) -> Callable[[], object]:
        """Return what keeps the device busy; the first three times for longer."""
        calls: list[int] = []

        def call() -> None:
            calls.append(1)
            slower = self.first_calls_slower if len(calls) <= 3 else 1
            self._pending_ns += round(time_s * slower * 1e9)

        return call
