"""Whole files: read, replaced atomically, locked."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from pytest_gpuperf.errors import BaselineError

__all__ = [
    "TEMPORARY",
    "kind_of",
    "listed",
    "locked",
    "read_whole",
    "sweep",
    "write_new",
    "write_whole",
]

# left behind by a killed run; .gitignore keeps it out of diffs, the next run removes it
TEMPORARY = ".tmp"

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_SHUT = {errno.EACCES, errno.EPERM, errno.EROFS}


def kind_of(path: Path) -> Literal["folder", "file"] | None:
    """
    Return what kind of entry a path is; None: it does not exist.

    Raises:
        BaselineError: The path cannot be read.
    """
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _unusable("read", error, path) from error
    return "folder" if stat.S_ISDIR(mode) else "file"


def read_whole(path: Path) -> bytes | None:
    """
    Return the bytes of a file; None: it does not exist.

    Raises:
        BaselineError: It exists and cannot be read.
    """
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unusable("read", error, path) from error


def listed(folder: Path, pattern: str) -> list[Path]:
    """
    Return the entries of a folder, sorted by name; empty where it does not exist.

    Raises:
        BaselineError: It exists and cannot be listed.
    """
    try:
        paths = sorted(folder.iterdir())  # glob would hide a folder without permission
    except FileNotFoundError:
        return []
    except OSError as error:
        raise _unusable("read", error, folder) from error
    return [path for path in paths if path.match(pattern)]


@contextlib.contextmanager
def locked(lock: Path, *, timeout_s: float) -> Iterator[None]:
    """
    Hold an exclusive lock while the block runs; create the lock's folder.

    Args:
        lock: The lock's file; it is not removed, because that would admit two holders.

        timeout_s: How long to wait for another process [s], >= 0.

    Raises:
        BaselineError: Another process held it for the whole time, or it cannot be created.
    """
    from filelock import FileLock, Timeout

    guard = FileLock(lock, timeout=timeout_s)
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        guard.acquire()
    except Timeout as error:
        raise BaselineError(
            f"another run held the lock {lock} for {timeout_s:g} s",
            remedy="wait until that run has ended, then store again",
        ) from error
    except NotImplementedError as error:
        raise BaselineError(
            f"{lock}: the file system does not support locks ({error})",
            remedy="name a store on a local disk",
        ) from error
    except OSError as error:
        raise _unusable("written", error, lock.parent) from error
    try:
        yield
    finally:
        guard.release()


def write_whole(texts: Mapping[Path, bytes]) -> None:
    """
    Replace files atomically; call it under their lock.

    All texts are on the disk before the first file is replaced: a full disk or a refused
    permission leaves every file as it was. A process that is killed in between leaves
    each file either old or new.

    Args:
        texts: The new bytes by file, files of one folder.

    Raises:
        BaselineError: A file could not be written.
    """
    waiting = {path: path.with_name(path.name + TEMPORARY) for path in texts}
    current = Path()
    try:
        for current, text in texts.items():
            _write_synced(waiting[current], text)
        for current, temporary in waiting.items():
            temporary.replace(current)
        for current in {path.parent for path in texts}:
            _sync_folder(current)
    except OSError as error:
        for temporary in waiting.values():
            with contextlib.suppress(OSError):
                temporary.unlink()
        raise _unusable("written", error, current) from error


def write_new(path: Path, text: bytes) -> None:
    """
    Write a file unless it exists.

    Raises:
        BaselineError: It could not be written.
    """
    try:
        with path.open("xb") as stream:
            stream.write(text)
    except FileExistsError:
        return
    except OSError as error:
        raise _unusable("written", error, path) from error


def sweep(folder: Path) -> None:
    """Remove temporary files of killed runs; call it under the folder's lock."""
    for path in listed(folder, f"*{TEMPORARY}"):
        with contextlib.suppress(OSError):  # harmless if it stays
            path.unlink()


def _write_synced(path: Path, text: bytes) -> None:
    """Write a new file and wait until its bytes are on the disk."""
    path.unlink(missing_ok=True)  # left by a killed run, or a link
    with path.open("xb") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())


def _sync_folder(folder: Path) -> None:
    """Sync a folder's entries to the disk, where the system can."""
    if os.name == "nt":  # a folder cannot be opened there
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unusable(action: str, error: OSError, path: Path) -> BaselineError:
    """Return the error for a path that cannot be read or written."""
    reason = error.strerror or str(error)
    if error.errno in _FULL:
        remedy = "free space on the disk and store again; stored sessions are intact"
    elif error.errno in _SHUT:
        remedy = "change its permissions, or name another store"
    else:
        remedy = "name a writable directory or .json file"
    return BaselineError(f"{path}: cannot be {action} ({reason})", remedy=remedy)
