"""The number of runnable threads of the machine at a moment, and the cores (Linux)."""

from __future__ import annotations

import os
import re
import sys
from typing import NamedTuple

from pytest_gpuperf.collect.held_file import SystemFile

_PATH = "/proc/loadavg"
# Three averages, two counts and a process id take some 30 bytes.
_READ_BYTES = 128
# The format of proc(5): averages, runnable and existing threads, the newest process.
_TEXT = re.compile(rb"\d+\.\d\d \d+\.\d\d \d+\.\d\d (\d+)/\d+ \d+\n")


class Load(NamedTuple):
    """
    Threads and cores of a machine.

    Attributes:
        runnable_count: Threads that run or could run, including the calling thread, >=
            1.

        core_count: Logical cores, >= 1.
    """

    runnable_count: int
    core_count: int


class LoadFile:
    """
    The system's count of runnable threads.

    The count covers the whole machine, even in a container and with an affinity. It is
    therefore compared with all cores: the load of cores that this process may not use
    does not slow it down.

    Args:
        path: The file.
    """

    def __init__(self, path: str = _PATH) -> None:
        self._file = SystemFile(path)
        # Asked now: a test may take the file away that the answer is read from.
        self._core_count = os.cpu_count()
        self._is_known = sys.platform == "linux" and self._core_count is not None

    def load(self) -> Load | None:
        """Return the present load, or None if not reported by the system."""
        if not self._is_known:
            return None
        text = _TEXT.fullmatch(self._file.read(_READ_BYTES))
        # The calling thread is running, so a sandbox that reports no thread is ignored.
        runnable_count = 0 if text is None else int(text[1])
        self._is_known = runnable_count >= 1
        if not self._is_known or self._core_count is None:
            return None
        return Load(runnable_count, self._core_count)

    def close(self) -> None:
        """Close the file. The load is unknown from then on."""
        self._is_known = False
        self._file.close()
