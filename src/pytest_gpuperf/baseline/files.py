"""Files that are read whole and replaced whole."""

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

# what a killed run leaves behind; .gitignore keeps it out of diffs, the next run sweeps
TEMPORARY = ".tmp"

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_SHUT = {errno.EACCES, errno.EPERM, errno.EROFS}


def kind_of(path: Path) -> Literal["folder", "file"] | None:
    """
    Return what stands at a path; None: nothing does.

    Raises:
        BaselineError: It cannot be known.
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
    Return the bytes of a file; None: there is none.

    Raises:
        BaselineError: It is there and cannot be read.
    """
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unusable("read", error, path) from error


def listed(folder: Path, pattern: str) -> list[Path]:
    """
    Return what a folder holds, sorted by name; nothing where there is no folder.

    Raises:
        BaselineError: It is there and cannot be listed.
    """
    try:
        paths = sorted(folder.iterdir())  # glob would hide a folder that is shut
    except FileNotFoundError:
        return []
    except OSError as error:
        raise _unusable("read", error, folder) from error
    return [path for path in paths if path.match(pattern)]


@contextlib.contextmanager
def locked(lock: Path, *, timeout_s: float) -> Iterator[None]:
    """
    Keep every other process out while the block runs; make the lock's folder.

    Args:
        lock: The lock's file; it stays behind, for removing it would let two in.

        timeout_s: How long to wait for another process [s], >= 0.

    Raises:
        BaselineError: Another process held it all the time, or the place is no good.
    """
    from filelock import FileLock, Timeout

    guard = FileLock(lock, timeout=timeout_s)
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        guard.acquire()
    except Timeout as error:
        raise BaselineError(
            f"another run has held {lock} for {timeout_s:g} s",
            remedy="wait until it has ended, then store again",
        ) from error
    except NotImplementedError as error:
        raise BaselineError(
            f"{lock}: this file system has no locks ({error})",
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
    Replace files, each of them whole or not at all; call it under their lock.

    All texts are on the disk before the first file is replaced: a full disk or a refused
    permission leaves every file as it was. A process that is killed in between leaves
    each file either old or new.

    Args:
        texts: What each file is to hold, files of one folder.

    Raises:
        BaselineError: One could not be written.
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
    Write a file that is not there yet; leave one that is.

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
    """Remove what killed runs left in a folder; call it under the folder's lock."""
    for path in listed(folder, f"*{TEMPORARY}"):
        with contextlib.suppress(OSError):  # in nobody's way if it stays
            path.unlink()


def _write_synced(path: Path, text: bytes) -> None:
    """Write a file anew; when this returns its bytes are on the disk."""
    path.unlink(missing_ok=True)  # what a killed run left, or somebody's link
    with path.open("xb") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())


def _sync_folder(folder: Path) -> None:
    """Put a folder's names on the disk, where the system can."""
    if os.name == "nt":  # a folder cannot be opened there
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unusable(deed: str, error: OSError, path: Path) -> BaselineError:
    """Return an error that says what could not be done, and what to do."""
    reason = error.strerror or str(error)
    if error.errno in _FULL:
        remedy = "make room on the disk and store again; what was stored is unharmed"
    elif error.errno in _SHUT:
        remedy = "give yourself the permission, or name another store"
    else:
        remedy = "name a directory or a .json file that can be used"
    return BaselineError(f"{path}: cannot be {deed} ({reason})", remedy=remedy)
