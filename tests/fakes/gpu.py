"""A GPU of known speed, for reference workloads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fakes.clock import FakeClock
from pytest_gpuperf.errors import CollectError


class FakeGpu:
    """
    A GPU whose workloads take a known time (collect.gpu_workloads.WorkingGpu).

    Attributes:
        is_used: Whether there is a context.

        sets_count: Sets that were begun.

        spent_ns: The time that the workloads took [ns].
    """

    def __init__(
        self, clock: FakeClock, *, time_ns: int = 100_000, refusal: str = ""
    ) -> None:
        self.is_used = True
        self.sets_count = self.spent_ns = 0
        self._clock, self._time_ns, self._refusal = clock, time_ns, refusal

    @contextmanager
    def ready(self) -> Iterator[FakeGpu | None]:
        """Begin a set."""
        self.sets_count += 1
        if self._refusal:
            raise CollectError(self._refusal, remedy="free memory")
        yield self if self.is_used else None

    def time_s(self, name: str) -> float:
        """Run a workload."""
        self._clock.advance(self._time_ns)
        self.spent_ns += self._time_ns
        return self._time_ns / 1e9
