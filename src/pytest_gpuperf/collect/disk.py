"""Work that waits for the disk of the temporary folder, and for nothing else.

All work uses one file that is opened before the first test and has no name. A fake file
system does not affect the file, no file is opened between tests, and nothing is left
behind, however the process ends.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from pytest_gpuperf.collect.held_file import Files, HeldFile

# docs/judging.md section 2: a class needs three controls.
DISK_WORKLOADS = ("disk-write", "disk-append", "disk-overwrite")
# A page, the size of a log line or of a database record on the disk.
_SMALL_BYTES = 4096
_LARGE_BYTES = 256 << 10
_MARK_BYTES = 32


class Disk(Protocol):
    """
    A disk that reference workloads write to. Tests replace it with a disk of known speed.

    Attributes:
        workloads: The workloads by name, to be called after `begin`. They raise only
            OSError.
    """

    workloads: Mapping[str, Callable[[], object]]

    def begin(self) -> None:
        """
        Prepare a set of workloads.

        Raises:
            OSError: The disk cannot be written.
        """


class DiskFile:
    """The disk of the temporary folder (Disk)."""

    def __init__(self) -> None:
        self.workloads: Mapping[str, Callable[[], object]] = dict(
            zip(
                DISK_WORKLOADS,
                (self._write, self._append, self._overwrite),
                strict=True,
            )
        )
        self._large = b""
        self._end = 0
        self._file: HeldFile | None = None
        self._failure: OSError | None = None
        try:
            descriptor, path = tempfile.mkstemp(prefix="gpuperf-disk-")
            mark = os.urandom(_MARK_BYTES)
            try:
                # Only the descriptor is left.
                Path(path).unlink()
                os.write(descriptor, mark)
            except OSError:
                os.close(descriptor)
                raise
            self._file = HeldFile(descriptor, mark)
        except OSError as error:
            # The file may never be needed.
            self._failure = error

    def begin(self) -> None:
        """
        Restore the initial size of the file.

        Raises:
            OSError: The file cannot be written, or a test has closed it.
        """
        if self._failure is not None:
            raise self._failure
        file = self._file
        if file is None or not file.is_open():
            raise OSError(errno.EBADF, "a test has closed its file")
        # Random content, because a compressing file system would write less.
        if not self._large:
            self._large = os.urandom(_LARGE_BYTES)
            self._put(self._large, _SMALL_BYTES)
        self._end = _SMALL_BYTES + _LARGE_BYTES
        Files.ftruncate(file.descriptor, self._end)

    def close(self) -> None:
        """Close the file, unless already closed by a test."""
        self._file = None

    def _append(self) -> None:
        self._put(self._large[:_SMALL_BYTES], self._end)
        self._end += _SMALL_BYTES
        self._sync()

    def _overwrite(self) -> None:
        self._put(self._large[:_SMALL_BYTES], _SMALL_BYTES)
        self._sync()

    def _write(self) -> None:
        self._put(self._large, _SMALL_BYTES)
        self._sync()

    def _put(self, content: bytes, offset: int) -> None:
        if self._file is None:
            raise OSError(errno.EBADF, "its file is closed")
        if Files.pwrite(self._file.descriptor, content, offset) < len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _sync(self) -> None:
        if self._file is not None:
            Files.fsync(self._file.descriptor)
