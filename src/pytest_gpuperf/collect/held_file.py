"""A file that stays open while tests run, whatever they do to files."""

from __future__ import annotations

import io
import os
import sys
import weakref

__all__ = ["Files", "HeldFile"]


class Files:
    """
    What opens, reads and writes files, as it was when pytest began.

    Tests put other functions into os and io, and fake file systems into the globals of every
    module; a class keeps its own.
    """

    open = staticmethod(os.open)
    close = staticmethod(os.close)
    fstat = staticmethod(os.fstat)
    fsync = staticmethod(os.fsync)
    ftruncate = staticmethod(os.ftruncate)
    raw = io.FileIO
    buffered = io.BufferedWriter
    if sys.platform != "win32":  # it has neither
        pread = staticmethod(os.pread)
        pwrite = staticmethod(os.pwrite)


class HeldFile:
    """
    An open file, whose descriptor a test may close and open anew for another file.

    It is closed when this object is no longer in use, unless a test has done so.

    Args:
        descriptor: The descriptor.

        mark: What the file begins with, and no other file does. A file without a name needs
            one: the system gives its inode to the next file as soon as it is closed.
    """

    def __init__(self, descriptor: int, mark: bytes = b"") -> None:
        self.descriptor = descriptor
        self._mark = mark
        self._identity = _identity(descriptor)
        end = weakref.finalize(self, _close, descriptor, self._identity, mark)
        end.atexit = False  # the system closes it then

    def is_open(self) -> bool:
        """Return whether the descriptor still belongs to the file."""
        return _is_open(self.descriptor, self._identity, self._mark)


def _is_open(descriptor: int, identity: tuple[int, int] | None, mark: bytes) -> bool:
    """Return whether a descriptor belongs to a file of an identity that begins so."""
    if identity is None or _identity(descriptor) != identity:
        return False
    return not mark or Files.pread(descriptor, len(mark), 0) == mark


def _identity(descriptor: int) -> tuple[int, int] | None:
    """Return device and inode of an open file; None: it is closed."""
    try:
        state = Files.fstat(descriptor)
    except OSError:
        return None
    return state.st_dev, state.st_ino


def _close(descriptor: int, identity: tuple[int, int] | None, mark: bytes) -> None:
    """Close a descriptor that still belongs to its file."""
    if _is_open(descriptor, identity, mark):
        Files.close(descriptor)
