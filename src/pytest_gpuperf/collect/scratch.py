"""Folders that end with their process; files written whole, or opened through no link.

    with ScratchFolder("child") as folder:
        ...

A process that is killed leaves its folders; the next one that makes a folder removes them.
The lock in each, which the kernel releases with its process, says which are left over.
What outlives a process lies in this user's cache.
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

__all__ = [
    "AppendedFile",
    "ScratchFolder",
    "open_unlinked",
    "refuse_link",
    "user_cache",
    "write_whole",
]

_OWN = "pytest-gpuperf"  # the folder in a cache
_PREFIX = "gpuperf-"
_LOCK = ".owner"  # has this name once it is locked: nobody takes it before its owner
_UNLOCKED = ".new"
# where another user may place files, a link or a named pipe is not opened; not on Windows
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_NO_WAIT = getattr(os, "O_NONBLOCK", 0)
_BINARY = getattr(os, "O_BINARY", 0)  # Windows changes line ends without it


def user_cache(name: str, platform: str = sys.platform) -> Path:
    """
    Return the path of a name in our folder of this user's cache; nothing is made.

    Args:
        name: Of a file or folder.

        platform: As sys.platform.

    Source: the XDG Base Directory Specification 0.8; a path that is not absolute there is
    as good as none.
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


def write_whole(path: Path, content: bytes) -> None:
    """
    Write a file, in a folder that is made if need be: whole, or not at all.

    Raises:
        OSError: It cannot be written; nothing is left of it.
    """
    half = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        half.unlink(missing_ok=True)  # left by a killed run, or somebody's link
        with half.open("xb") as file:
            file.write(content)
        half.replace(path)
    except OSError:
        with contextlib.suppress(OSError):  # it may not exist
            half.unlink()
        raise


def open_unlinked(path: str | Path, flags: int) -> int:
    """
    Open a file in a folder that others may write to; return its descriptor.

    A new file may be read and written as this process's mask says, never run.

    Raises:
        OSError: It is a link, or cannot be opened. A named pipe is not waited for.
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
    A file that stays open between two writes, because a test may take files away.

    Fake file systems, a mocked `open`, a new root and an exhausted limit of descriptors do
    not reach a file that is open. A test that closes every descriptor does: then the file
    is opened again, and the number that now belongs to another file is left alone. A fork
    shares the file, to which each of both appends whole lines.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None
        self._identity: tuple[int, int] | None = None  # of the file: device and inode

    def open(self) -> None:
        """
        Open the file, which is made if need be, unless it is open.

        Raises:
            OSError: It is a link, or cannot be opened.
        """
        self._opened()

    @contextlib.contextmanager
    def appending(self) -> Iterator[tuple[BinaryIO, int]]:
        """
        Yield a stream to append to, and the file's size so far [B].

        What fails leaves the file as it was.

        Raises:
            OSError: It is a link, or cannot be written.
        """
        descriptor = self._opened()
        size_bytes = Files.fstat(descriptor).st_size
        try:
            raw = Files.raw(descriptor, "ab", closefd=False)
            with Files.buffered(raw) as stream:
                yield stream, size_bytes
        except BaseException:  # Ctrl-C, too: half a line would spoil the next one
            with contextlib.suppress(OSError):
                Files.ftruncate(descriptor, size_bytes)
            raise

    def close(self) -> None:
        """Close the file, unless the test has."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None and self._is_file(descriptor):
            Files.close(descriptor)

    def _opened(self) -> int:
        """Return the descriptor of the open file."""
        if self._descriptor is not None and self._is_file(self._descriptor):
            return self._descriptor
        # what it was may be the number of the test's own file by now
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | _BINARY
        self._descriptor = descriptor = open_unlinked(self.path, flags)
        state = Files.fstat(descriptor)
        self._identity = state.st_dev, state.st_ino
        return descriptor

    def _is_file(self, descriptor: int) -> bool:
        """Return whether a descriptor is still that of the file, which has a name."""
        try:
            state = Files.fstat(descriptor)
        except OSError:
            return False
        return (state.st_dev, state.st_ino) == self._identity and state.st_nlink > 0


def refuse_link(path: str | Path, state: os.stat_result) -> None:
    """Raise OSError unless a file has one name, and is not a symbolic link."""
    if stat.S_ISLNK(state.st_mode) or state.st_nlink > 1:
        raise PermissionError(errno.EPERM, "the file is a link", str(path))


class ScratchFolder:
    """
    A new folder that only this user can use; gone with this object, or its process.

    Args:
        kind: What it is for, in its name.

    Raises:
        OSError: It cannot be made.
    """

    def __init__(self, kind: str) -> None:
        _sweep(Path(tempfile.gettempdir()))
        self.path = tempfile.mkdtemp(prefix=f"{_PREFIX}{kind}-")
        new = Path(self.path, _UNLOCKED)
        lock = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        _take(lock)
        new.rename(Path(self.path, _LOCK))
        self._end = weakref.finalize(self, _remove, self.path, lock, os.getpid())

    def __enter__(self) -> str:
        """Return the folder's path."""
        return self.path

    def __exit__(self, *_: object) -> None:
        """Remove the folder."""
        self.remove()

    def remove(self) -> None:
        """Remove the folder, unless it is gone."""
        self._end()

    def is_empty(self) -> bool:
        """Return whether nothing has been put there."""
        return all(path.name == _LOCK for path in Path(self.path).iterdir())


def _remove(path: str, lock: int, pid: int) -> None:
    """Remove a folder of this process; a fork of it leaves the folder alone."""
    # code that became a daemon has closed every file, and another may have the number
    with contextlib.suppress(OSError):
        if os.path.samestat(os.fstat(lock), Path(path, _LOCK).stat()):
            os.close(lock)  # first: Windows removes no open file
    if os.getpid() == pid:
        shutil.rmtree(path, ignore_errors=True)


def _take(lock: int) -> None:
    """Lock an open file; raise OSError if another process has it."""
    with contextlib.suppress(ImportError):  # Windows: nothing is swept there
        import fcntl

        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _sweep(parent: Path) -> None:
    """Remove what killed processes of this user have left."""
    if not hasattr(os, "getuid"):
        return
    for path in parent.glob(f"{_PREFIX}*"):
        # another process may remove it at the same time
        with contextlib.suppress(OSError):
            _remove_left(path)


def _remove_left(path: Path) -> None:
    """Remove a folder of this user whose process has ended."""
    state = path.lstat()
    if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.getuid():
        return
    lock = os.open(path / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
    try:
        _take(lock)
        shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(lock)
