"""Whole files: read, replaced atomically, locked."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from pytest_gpuperf.errors import BaselineError

# The suffix of files left behind by a killed run. .gitignore keeps them out of diffs,
# and the next run removes them.
TEMPORARY = ".tmp"

# 20 sessions of 100,000 tests in one module take some 600 MB.
_LARGEST_BYTES = 2_000_000_000
_NAME_STORE = "name a store: a folder, or a .json file"

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_SHUT = {errno.EACCES, errno.EPERM, errno.EROFS}


def kind_of(path: Path) -> Literal["folder", "file"] | None:
    """
    Return "folder" or "file", or None if the path does not exist.

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
    Return the bytes of a file without a byte order mark, or None if the file does not exist.

    Raises:
        BaselineError: The path exists but cannot be read, is not a file, or is too
            large.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
            raise BaselineError(
                f"{path}: cannot be read (it is a pipe or a device)", remedy=_NAME_STORE
            )
        if status.st_size > _LARGEST_BYTES:
            raise BaselineError(
                f"{path}: cannot be read (it has {status.st_size / 1e6:.0f} MB, and a "
                f"store at most {_LARGEST_BYTES / 1e6:.0f})",
                remedy="name another store, or split it: a folder has a file per module",
            )
        # Editors on Windows add the byte order mark.
        return path.read_bytes().removeprefix(BOM_UTF8)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unusable("read", error, path) from error


def listed(folder: Path, pattern: str) -> list[Path]:
    """
    Return the entries of a folder, sorted by name, or [] if the folder does not exist.

    Raises:
        BaselineError: The folder exists but cannot be listed.
    """
    try:
        # glob would hide a folder without permission.
        paths = sorted(folder.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise _unusable("read", error, folder) from error
    return [path for path in paths if path.match(pattern)]


def make_folder(folder: Path) -> None:
    """
    Create a folder, with missing parents.

    Raises:
        BaselineError: The folder cannot be created.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unusable("written", error, folder) from error


@contextlib.contextmanager
def locked(lock: Path, *, timeout_s: float) -> Iterator[None]:
    """
    Hold an exclusive lock while the block runs. The folder of the lock is created.

    Args:
        lock: The lock file. It is never removed, because that would admit two holders.

        timeout_s: Time limit for getting the lock from another process [s], >= 0.

    Raises:
        BaselineError: Another process held the lock for the whole time, or the lock
            cannot be created.
    """
    from filelock import FileLock, Timeout

    make_folder(lock.parent)
    guard = FileLock(lock, timeout=timeout_s)
    try:
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
        # A link concerns the lock itself, any other error its folder.
        place = lock if error.errno == errno.ELOOP else lock.parent
        raise _unusable("written", error, place) from error
    try:
        yield
    finally:
        guard.release()


def write_whole(texts: Mapping[Path, bytes]) -> None:
    """
    Replace files atomically. The caller must hold their lock.

    All texts are on the disk before the first file is replaced, so that a full disk or
    a missing permission leaves every file unchanged. A process that is killed in
    between leaves each file either old or new.

    Args:
        texts: The new bytes of each file. If a path is a link, its target is replaced.
            A replaced file keeps its mode.

    Raises:
        BaselineError: A file could not be written.
    """
    targets = {path: Path(os.path.realpath(path)) for path in texts}
    waiting = {
        target: target.with_name(target.name + TEMPORARY) for target in targets.values()
    }
    current = Path()
    try:
        for current, text in texts.items():
            target = targets[current]
            _write_synced(waiting[target], text, like=target)
        for current, temporary in waiting.items():
            _put(temporary, current)
        for current in {target.parent for target in waiting}:
            _sync_folder(current)
    except OSError as error:
        for temporary in waiting.values():
            with contextlib.suppress(OSError):
                temporary.unlink()
        raise _unusable("written", error, current) from error


def _put(temporary: Path, target: Path) -> None:
    """Replace a file. A mounted file, as in a container, is overwritten in place."""
    try:
        temporary.replace(target)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        target.write_bytes(temporary.read_bytes())
        temporary.unlink()


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
    """Remove temporary files of killed runs. The caller must hold the folder's lock."""
    for path in listed(folder, f"*{TEMPORARY}"):
        # A temporary file that stays is harmless.
        with contextlib.suppress(OSError):
            path.unlink()


def _write_synced(path: Path, text: bytes, *, like: Path) -> None:
    """Write a new file with the mode of `like`, and wait until the bytes are on the disk."""
    # The path may be a leftover of a killed run, or a link.
    path.unlink(missing_ok=True)
    with path.open("xb") as stream:
        with contextlib.suppress(FileNotFoundError):
            mode = stat.S_IMODE(like.stat().st_mode)
            if hasattr(os, "fchmod"):
                os.fchmod(stream.fileno(), mode)
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())


def _sync_folder(folder: Path) -> None:
    """Flush the entries of a folder to the disk, if the system can."""
    # Windows cannot open a folder.
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unusable(action: str, error: OSError, path: Path) -> BaselineError:
    reason = error.strerror or str(error)
    if error.errno in _FULL:
        remedy = "free space on the disk and store again; stored sessions are intact"
    elif error.errno in _SHUT:
        remedy = "change its permissions, or name another store"
    else:
        remedy = _NAME_STORE
    return BaselineError(f"{path}: cannot be {action} ({reason})", remedy=remedy)
