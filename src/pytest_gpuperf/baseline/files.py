"""Files of a store, with errors that name the store's remedies."""

from __future__ import annotations

import contextlib
import errno
import stat
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, Literal

from pytest_gpuperf import disk
from pytest_gpuperf.disk import TEMPORARY, read_regular
from pytest_gpuperf.errors import BaselineError

# 20 sessions of 100,000 tests in one module take some 600 MB.
_LARGEST_BYTES = 2_000_000_000
# The header of a file and the name of its first section.
_START_BYTES = 16_384
_NAME_STORE = "name a store: a folder, or a .json file"

_FULL = {errno.ENOSPC, errno.EDQUOT}
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
        # Editors on Windows add the byte order mark.
        return read_regular(path, most_bytes=_LARGEST_BYTES).removeprefix(BOM_UTF8)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unusable("read", error, path) from error


@contextlib.contextmanager
def opened(path: Path) -> Iterator[BinaryIO | None]:
    """
    Hold a file open after its byte order mark, or None if the file does not exist.

    Raises:
        BaselineError: As for `read_whole`.
    """
    try:
        with disk.open_regular(path, most_bytes=_LARGEST_BYTES) as stream:
            if stream.read(len(BOM_UTF8)) != BOM_UTF8:
                stream.seek(0)
            yield stream
    except FileNotFoundError:
        yield None
    except OSError as error:
        raise _unusable("read", error, path) from error


def read_start(path: Path) -> bytes:
    """
    Return the first bytes of a file without a byte order mark, or b"" if the file does not exist.

    Raises:
        BaselineError: As for `read_whole`.
    """
    try:
        return disk.read_start(path, most_bytes=_START_BYTES).removeprefix(BOM_UTF8)
    except FileNotFoundError:
        return b""
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
    make_folder(lock.parent)
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(disk.locked(lock, timeout_s=timeout_s))
        except TimeoutError as error:
            raise BaselineError(
                f"another run held the lock {lock} for {timeout_s:g} s",
                remedy="wait until that run has ended, then store again",
            ) from error
        except OSError as error:
            # A link concerns the lock itself, any other error its folder.
            place = lock if error.errno in {errno.ELOOP, errno.ENOLCK} else lock.parent
            raise _unusable("written", error, place) from error
        yield


def write_files(contents: Mapping[Path, bytes]) -> None:
    """
    Replace files atomically. The caller must hold their lock.

    Args:
        contents: The new content of each file.

    Raises:
        BaselineError: A file could not be written.
    """
    try:
        disk.write_all(contents)
    except OSError as error:
        raise _unusable(
            "written", error, Path(error.filename or next(iter(contents)))
        ) from error


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


def sweep(folder: Path, of_file: str = "") -> None:
    """
    Remove temporary files of killed runs. The caller must hold the lock.

    .gitignore keeps them out of diffs until then.

    Args:
        folder: The folder.

        of_file: The name of the only file whose temporary files are removed, or "".
    """
    for path in listed(folder, f"*{TEMPORARY}"):
        if of_file and not path.name.startswith(f".{of_file}."):
            continue
        # A temporary file that stays is harmless.
        with contextlib.suppress(OSError):
            path.unlink()


def _unusable(action: str, error: OSError, path: Path) -> BaselineError:
    reason = error.strerror or str(error)
    if error.errno == errno.EFBIG and action == "read":
        remedy = "name another store, or split it: a folder has a file per module"
    elif error.errno == errno.ENOLCK:
        remedy = "name a store on a local disk"
    elif error.errno == errno.EFBIG:
        remedy = "allow larger files, as by ulimit -f, and store again"
    elif error.errno in _FULL:
        remedy = "free space on the disk and store again; stored sessions are intact"
    elif error.errno in _SHUT:
        remedy = "change its permissions, or name another store"
    else:
        remedy = _NAME_STORE
    return BaselineError(f"{path}: cannot be {action} ({reason})", remedy=remedy)
