"""Disks: one that is full, and one of known speed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping

import pytest

from fakes.clock import FakeClock
from pytest_gpuperf.collect.disk import DISK_WORKLOADS


@contextlib.contextmanager
def files_end_at(size_bytes: int) -> Iterator[None]:
    """Limit how large a file may get, as a full disk does."""
    resource = pytest.importorskip("resource", reason="this system has no such limits")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


class FakeDisk:
    """
    A disk that takes the same time for each write (collect.disk.Disk).

    Args:
        clock: Moves with each write.

        write_ns: How long one takes [ns].

        blocks: How many blocks the process writes with each: none to memory.
    """

    def __init__(self, clock: FakeClock, write_ns: int, *, blocks: int = 8) -> None:
        self._clock = clock
        self._write_ns = write_ns
        self._blocks = blocks
        self.failure: OSError | None = None
        self.workloads: Mapping[str, Callable[[], object]] = dict.fromkeys(
            DISK_WORKLOADS, self._write
        )

    def begin(self) -> None:
        if self.failure is not None:
            raise self.failure

    def _write(self) -> None:
        self._clock.wait(self._write_ns)
        self._clock.blocks = (self._clock.blocks or 0) + self._blocks
