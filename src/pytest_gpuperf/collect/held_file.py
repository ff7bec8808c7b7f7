"""A file that stays open while tests run, regardless of their file operations."""

from __future__ import annotations

import io
import os
import sys
import weakref


class Files:
    """
    The functions that open, read and write files, as they were when pytest began.

    Tests patch functions of os and io, and fake file systems patch the globals of every
    module. The attributes of a class are not affected.
    """

    open = staticmethod(os.open)
    close = staticmethod(os.close)
    fstat = staticmethod(os.fstat)
    fsync = staticmethod(os.fsync)
    ftruncate = staticmethod(os.ftruncate)
    raw = io.FileIO
    buffered = io.BufferedWriter
    # Windows has neither function.
    if sys.platform != "win32":
        pread = staticmethod(os.pread)
        pwrite = staticmethod(os.pwrite)


class SystemFile:
    """
    A file that the system writes anew for each reading, as those of /proc.

    The file is opened at the first reading and stays open, because a test may interfere
    with files. A test that closes every descriptor closes this file, too. It is then
    unreadable, and the descriptor number, which may belong to another file, is left alone.

    Args:
        path: The file.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: HeldFile | None = None
        self._is_closed = False

    def read(self, most_bytes: int) -> bytes:
        """Return the beginning of the present content, or b"" if the file is unreadable."""
        try:
            if self._file is None and not self._is_closed:
                self._file = HeldFile(Files.open(self._path, os.O_RDONLY))
            if self._file is not None and self._file.is_open():
                return Files.pread(self._file.descriptor, most_bytes, 0)
        except OSError:
            # What cannot be read once is not opened while another test runs.
            self.close()
        return b""

    def close(self) -> None:
        """Close the file. It is unreadable from then on."""
        self._is_closed = True
        self._file = None


class HeldFile:
    """
    An open file, whose descriptor a test may close and reuse for another file.

    The file is closed when the object is no longer in use, unless a test has closed it.

    Args:
        descriptor: The descriptor.

        mark: The beginning of the file, which no other file has. A file without a name
            needs a mark, because the system reuses the inode as soon as the file is
            closed.
    """

    def __init__(self, descriptor: int, mark: bytes = b"") -> None:
        self.descriptor = descriptor
        self._mark = mark
        self._identity = _identity(descriptor)
        end = weakref.finalize(self, _close, descriptor, self._identity, mark)
        # At exit, the system closes the file.
        end.atexit = False

    def is_open(self) -> bool:
        """Return True if the descriptor still belongs to the file."""
        return _is_open(self.descriptor, self._identity, self._mark)


def _is_open(descriptor: int, identity: tuple[int, int] | None, mark: bytes) -> bool:
    if identity is None or _identity(descriptor) != identity:
        return False
    return not mark or Files.pread(descriptor, len(mark), 0) == mark


def _identity(descriptor: int) -> tuple[int, int] | None:
    """Return device and inode of an open file, or None if closed."""
    try:
        state = Files.fstat(descriptor)
    except OSError:
        return None
    return state.st_dev, state.st_ino


def _close(descriptor: int, identity: tuple[int, int] | None, mark: bytes) -> None:
    if _is_open(descriptor, identity, mark):
        Files.close(descriptor)
