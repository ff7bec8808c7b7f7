"""Folders that end with their process, and files opened through no link.

    with ScratchFolder("child") as folder:
        ...

The folders of a killed process are removed by the next process that creates a scratch
folder. Each folder has a lock that the kernel releases when the process ends, which
shows the folders that are left over. Files that outlive a process are kept in this
user's cache.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import sys
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from pytest_gpuperf.collect.held_file import Files

# The name of our folder in a cache.
_OWN = "pytest-gpuperf"
_PREFIX = "gpuperf-"
# The lock file gets this name only after it is locked, so that no other process can
# lock it first.
_LOCK = ".owner"
_UNLOCKED = ".new"
# In folders where another user may place files, links and named pipes are not opened.
# Windows lacks these flags.
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_NO_WAIT = getattr(os, "O_NONBLOCK", 0)
# Windows changes line ends without this flag.
_BINARY = getattr(os, "O_BINARY", 0)


def user_cache(name: str, platform: str = sys.platform) -> Path:
    """
    Return a path in our folder of the user's cache. Nothing is created.

    Args:
        name: The name of a file or folder.

        platform: A value of sys.platform.

    Source: the XDG Base Directory Specification 0.8, which ignores a path that is not
    absolute.
    """
    home = Path(os.path.expanduser("~"))  # noqa: PTH111 - raises nothing without a home
    if platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        base = Path(local) if local else home / "AppData" / "Local"
        return base / _OWN / "Cache" / name
    if platform == "darwin":
        return home / "Library" / "Caches" / _OWN / name
    named = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(named) if os.path.isabs(named) else home / ".cache"  # noqa: PTH117 - a string
    return base / _OWN / name


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


class ScratchFolder:
    """
    A new folder that only this user can use, removed with the object or the process.

    Args:
        kind: The purpose of the folder, which becomes part of the name.

    Raises:
        OSError: The folder cannot be created.
    """

    def __init__(self, kind: str) -> None:
        # Folders of processes that have ended. On Windows, nothing is swept.
        left = Path(tempfile.gettempdir()).glob(f"{_PREFIX}*")
        for path in left if hasattr(os, "getuid") else ():
            # Another process may remove the folder at the same time.
            with contextlib.suppress(OSError):
                state = path.lstat()
                if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.getuid():
                    continue
                held = os.open(path / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
                try:
                    _take(held)
                    shutil.rmtree(path, ignore_errors=True)
                finally:
                    os.close(held)
        self.path = tempfile.mkdtemp(prefix=f"{_PREFIX}{kind}-")
        new = Path(self.path, _UNLOCKED)
        lock = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        _take(lock)
        new.rename(Path(self.path, _LOCK))
        self._end = weakref.finalize(self, _remove, self.path, lock, os.getpid())

    def __enter__(self) -> str:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.remove()

    def remove(self) -> None:
        """Remove the folder, if still present."""
        self._end()

    def is_empty(self) -> bool:
        """Return True if the folder contains nothing but the lock."""
        return all(path.name == _LOCK for path in Path(self.path).iterdir())


def _remove(path: str, lock: int, pid: int) -> None:
    """Remove a folder of the process. A forked child leaves the folder alone."""
    # A process that became a daemon has closed every file, so the number may belong to
    # another file.
    with contextlib.suppress(OSError):
        if os.path.samestat(os.fstat(lock), Path(path, _LOCK).stat()):
            # Closed first, because Windows cannot remove an open file.
            os.close(lock)
    if os.getpid() == pid:
        shutil.rmtree(path, ignore_errors=True)


def _take(lock: int) -> None:
    """Lock an open file, or raise OSError if another process holds the lock."""
    # On Windows, nothing is swept.
    with contextlib.suppress(ImportError):
        import fcntl

        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
