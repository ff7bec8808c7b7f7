"""The number of runnable threads of the machine at a moment, and the cores (Linux)."""

from __future__ import annotations

import os
import re
import sys
from typing import NamedTuple

from pytest_gpuperf.collect.held_file import Files, HeldFile

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

    The file is opened at the first reading and stays open, because a test may interfere
    with files. A test that closes every descriptor closes this file, too. The load is
    then unknown, and the descriptor number, which may belong to another file, is left
    alone.

    Args:
        path: The file.
    """

    def __init__(self, path: str = _PATH) -> None:
        self._path = path
        self._file: HeldFile | None = None
        self._core_count: int | None = None
        self._is_known = sys.platform == "linux"

    def load(self) -> Load | None:
        """Return the present load, or None if not reported by the system."""
        if not self._is_known:
            return None
        text = None
        try:
            if self._file is None:
                self._file = HeldFile(Files.open(self._path, os.O_RDONLY))
                self._core_count = os.cpu_count()
            if self._file.is_open():
                content = Files.pread(self._file.descriptor, _READ_BYTES, 0)
                text = _TEXT.fullmatch(content)
        except OSError:
            text = None
        # The calling thread is running, so a sandbox that reports no thread is ignored.
        runnable_count = 0 if text is None else int(text[1])
        self._is_known = runnable_count >= 1 and self._core_count is not None
        if not self._is_known or self._core_count is None:
            return None
        return Load(runnable_count, self._core_count)

    def close(self) -> None:
        """Close the file. The load is unknown from then on."""
        self._is_known = False
        self._file = None
