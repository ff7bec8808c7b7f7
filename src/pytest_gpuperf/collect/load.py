"""How many threads the machine has to run at a moment, and on how many cores (Linux)."""

from __future__ import annotations

import os
import re
import sys
from typing import NamedTuple

from pytest_gpuperf.collect.held_file import Files, HeldFile

__all__ = ["Load", "LoadFile"]

_PATH = "/proc/loadavg"
_READ_BYTES = 128  # three averages, two counts and a process id take some 30
# as proc(5) has it: averages, runnable and existing threads, the newest process
_TEXT = re.compile(rb"\d+\.\d\d \d+\.\d\d \d+\.\d\d (\d+)/\d+ \d+\n")


class Load(NamedTuple):
    """
    Threads and cores of a machine.

    Attributes:
        runnable_count: Threads that run or could run, the one that asks among them, >= 1.

        core_count: Logical cores, >= 1.
    """

    runnable_count: int
    core_count: int


class LoadFile:
    """
    The system's count of runnable threads.

    The count is one of the whole machine, also in a container and under an affinity. So it
    is held against all cores: what other processes run on cores that this one may not use
    takes nothing from it.

    The file is opened by the first look and stays open, because a test may take files away.
    A test that closes every descriptor closes this one: the load is unknown from then on,
    and whatever has the number now is left alone.

    Args:
        path: The file.
    """

    def __init__(self, path: str = _PATH) -> None:
        self._path = path
        self._file: HeldFile | None = None
        self._core_count: int | None = None
        self._is_known = sys.platform == "linux"

    def load(self) -> Load | None:
        """Return the load of this moment, or None if the system does not report it."""
        if not self._is_known:
            return None
        try:
            runnable_count = self._runnable_count()
        except OSError:
            runnable_count = 0
        # the thread that asks runs: a sandbox that reports none does not count
        self._is_known = runnable_count >= 1 and self._core_count is not None
        if not self._is_known or self._core_count is None:
            return None
        return Load(runnable_count, self._core_count)

    def close(self) -> None:
        """Close the file; the load is unknown from then on."""
        self._is_known = False
        self._file = None

    def _runnable_count(self) -> int:
        """Return what the file says, or 0 if it says something else."""
        if self._file is None:
            self._file = HeldFile(Files.open(self._path, os.O_RDONLY))
            self._core_count = os.cpu_count()
        if not self._file.is_open():
            return 0
        text = _TEXT.fullmatch(Files.pread(self._file.descriptor, _READ_BYTES, 0))
        return 0 if text is None else int(text[1])
