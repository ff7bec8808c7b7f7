"""Whole files on the disk: read up to a size, replaced atomically, locked.

All functions raise OSError. A caller turns it into an error with the remedy for its kind
of file.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, BinaryIO, TypeAlias

if TYPE_CHECKING:
    from pathlib import Path

_Path: TypeAlias = "str | os.PathLike[str]"

# The suffix of files left behind by a killed process.
TEMPORARY = ".tmp"


def regular_size_bytes(path: _Path) -> int:
    """
    Return the size of a regular file [B].

    Raises:
        OSError: The file is missing or not regular: reading a pipe would block.
    """
    state = os.stat(path)
    if not stat.S_ISREG(state.st_mode):
        why = "it is a folder, a pipe or a device"
        raise OSError(errno.EINVAL, why, os.fspath(path))
    return state.st_size


def read_regular(path: _Path, *, most_bytes: int) -> bytes:
    """
    Return the content of a regular file.

    Args:
        path: The file.

        most_bytes: Size of the largest file to be read [B].

    Raises:
        OSError: As for `open_regular`.
    """
    with open_regular(path, most_bytes=most_bytes) as file:
        return file.read()


def open_regular(path: _Path, *, most_bytes: int) -> BinaryIO:
    """
    Return a regular file, opened to be read.

    Args:
        path: The file.

        most_bytes: Size of the largest file to be read [B].

    Raises:
        OSError: The file is missing, not regular, or cannot be read. A file that is too
            large has errno EFBIG.
    """
    size_bytes = regular_size_bytes(path)
    if size_bytes > most_bytes:
        why = f"it has {size_bytes / 1e6:.0f} MB, more than {most_bytes / 1e6:.0f}"
        raise OSError(errno.EFBIG, why, os.fspath(path))
    return open(path, "rb")


def read_start(path: _Path, *, most_bytes: int) -> bytes:
    """
    Return the first bytes of a regular file.

    Args:
        path: The file.

        most_bytes: The number of bytes to read at most [B].

    Raises:
        OSError: The file is missing, not regular, or cannot be read.
    """
    regular_size_bytes(path)
    with open(path, "rb") as file:
        return file.read(most_bytes)


def write_whole(path: Path, content: bytes, *, sync: bool = True) -> None:
    """
    Replace a file atomically.

    Args:
        path: The file. If it is a link, the link is replaced.

        content: The new content.

        sync: Wait until the content is on the disk. A cache can do without.

    Raises:
        OSError: The file cannot be written. It is unchanged, and nothing is left behind.
    """
    # The folder is not synchronized: to open the folder of a project would look as if the
    # tests had listed it.
    _replace({os.fspath(path): content}, sync=sync)


def write_all(contents: Mapping[Path, bytes]) -> None:
    """
    Replace files atomically.

    All contents are on the disk before the first file is replaced, so that a full disk or
    a missing permission leaves every file unchanged. A process that is killed in between
    leaves each file either old or new.

    Args:
        contents: The new content of each file. If a path is a link, its target is
            replaced. A replaced file keeps its mode.

    Raises:
        OSError: A file cannot be written. `filename` is its path.
    """
    targets = {os.path.realpath(path): text for path, text in contents.items()}
    _replace(targets, sync=True)
    # Windows cannot open a folder.
    for folder in set(map(os.path.dirname, targets)) if os.name != "nt" else ():
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _replace(contents: Mapping[str, bytes], *, sync: bool) -> None:
    waiting = {}
    for path in contents:
        folder, name = os.path.split(path)
        waiting[path] = os.path.join(folder, f".{name}.{os.getpid()}{TEMPORARY}")
    current = ""
    try:
        for path, content in contents.items():
            current = path
            _write_new(waiting[path], content, like=path, sync=sync)
        for path, temporary in waiting.items():
            current = path
            try:
                os.replace(temporary, path)
            except OSError as error:
                # A file that is mounted into a container can only be overwritten.
                if error.errno != errno.EBUSY:
                    raise
                with open(temporary, "rb") as new, open(path, "wb") as old:
                    old.write(new.read())
                os.unlink(temporary)
    # Ctrl-C must not leave temporary files either.
    except BaseException as error:
        for temporary in waiting.values():
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        if isinstance(error, OSError):
            error.filename = current
        raise


def _write_new(path: str, content: bytes, *, like: str, sync: bool) -> None:
    """Write a new file with the mode of `like`, if there is such a file."""
    # The path may be a leftover of a killed process, or a link placed by another user.
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    with open(path, "xb") as file:
        with contextlib.suppress(FileNotFoundError):
            mode = stat.S_IMODE(os.stat(like).st_mode)
            if hasattr(os, "fchmod"):
                os.fchmod(file.fileno(), mode)
        file.write(content)
        if sync:
            file.flush()
            os.fsync(file.fileno())


@contextlib.contextmanager
def locked(path: _Path, *, timeout_s: float) -> Iterator[None]:
    """
    Hold an exclusive lock on a file while the block runs.

    Args:
        path: The lock file. It is never removed, because that would admit two holders.

        timeout_s: Time limit for getting the lock from another process [s], >= 0.

    Raises:
        TimeoutError: Another process held the lock for the whole time.

        OSError: The lock file cannot be opened. A file system without locks has errno
            ENOLCK.
    """
    # Imported here, because most runs lock nothing.
    from filelock import FileLock

    guard = FileLock(path, timeout=timeout_s)
    try:
        guard.acquire()
    except NotImplementedError as error:
        why = f"the file system has no locks ({error})"
        raise OSError(errno.ENOLCK, why, os.fspath(path)) from error
    try:
        yield
    finally:
        guard.release()
