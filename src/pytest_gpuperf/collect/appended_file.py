"""Files that are opened through no link, and one that stays open between writes."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from pytest_gpuperf.collect.held_file import Files

# In folders where another user may place files, links and named pipes are not opened.
# Windows lacks these flags.
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_NO_WAIT = getattr(os, "O_NONBLOCK", 0)
# Windows changes line ends without this flag.
_BINARY = getattr(os, "O_BINARY", 0)


def open_unlinked(path: str | Path, flags: int) -> int:
    """
    Open a file in a folder that other users may write to, and return the descriptor.

    A new file gets read and write permission as the process's umask allows, but is
    never executable.

    Raises:
        OSError: The file is a link, or cannot be opened. Opening does not wait for a
            named pipe.
    """
    file = Files.open(str(path), flags | _NO_LINK | _NO_WAIT, 0o666)
    try:
        refuse_link(path, Files.fstat(file))
    except OSError:
        Files.close(file)
        raise
    return file


class AppendedFile:
    """
    A file that stays open between writes, because a test may interfere with files.

    Fake file systems, a mocked `open`, a new root and an exhausted limit of descriptors
    do not affect a file that is already open. A test that closes every descriptor does.
    The file is then opened again, and the descriptor number, which may now belong to
    another file, is left alone. After a fork, both processes append whole lines to the
    same file.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None
        # Device and inode of the file.
        self._identity: tuple[int, int] | None = None

    def open(self) -> None:
        """
        Open the file, unless already open. A missing file is created.

        Raises:
            OSError: The file is a link, or cannot be opened.
        """
        self._opened()

    @contextlib.contextmanager
    def appending(self) -> Iterator[tuple[BinaryIO, int]]:
        """
        Yield a stream to append to, and the present size of the file [B].

        If writing fails, the file is restored to that size.

        Raises:
            OSError: The file is a link, or cannot be written.
        """
        descriptor = self._opened()
        size_bytes = Files.fstat(descriptor).st_size
        try:
            raw = Files.raw(descriptor, "ab", closefd=False)
            with Files.buffered(raw) as stream:
                yield stream, size_bytes
        except BaseException:
            # Also for Ctrl-C, because half a line would damage the next line.
            with contextlib.suppress(OSError):
                Files.ftruncate(descriptor, size_bytes)
            raise

    def close(self) -> None:
        """Close the file, unless already closed by the test."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None and self._is_file(descriptor):
            Files.close(descriptor)

    def _opened(self) -> int:
        """Return the descriptor of the open file. The file is opened again if necessary."""
        if self._descriptor is not None and self._is_file(self._descriptor):
            return self._descriptor
        # The old descriptor is not closed, because it may now belong to a file of the
        # test.
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | _BINARY
        self._descriptor = descriptor = open_unlinked(self.path, flags)
        state = Files.fstat(descriptor)
        self._identity = state.st_dev, state.st_ino
        return descriptor

    def _is_file(self, descriptor: int) -> bool:
        """Return True if a descriptor still belongs to the file, and the file still has a name."""
        try:
            state = Files.fstat(descriptor)
        except OSError:
            return False
        return (state.st_dev, state.st_ino) == self._identity and state.st_nlink > 0


def refuse_link(path: str | Path, state: os.stat_result) -> None:
    """Raise OSError for a symbolic link, or for a file with several names."""
    if stat.S_ISLNK(state.st_mode) or state.st_nlink > 1:
        raise PermissionError(errno.EPERM, "the file is a link", str(path))
