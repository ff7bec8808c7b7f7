"""One run at a time on a GPU, whoever started it; PYTEST_DONT_REWRITE."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pytest_gpuperf.errors import CollectError, DeviceHeldError

__all__ = ["FOLDER_VARIABLE", "exclusive", "lease_folder"]

FOLDER_VARIABLE = "GPUPERF_LOCK_DIR"


def lease_folder() -> Path:
    """Return where locks are: $GPUPERF_LOCK_DIR, or a folder of this user's own.

    Another user's file in a shared temporary folder cannot be opened on many systems,
    not even to wait for it: runs of several users need a folder that all may write to.
    """
    named = os.environ.get(FOLDER_VARIABLE)
    if named:
        return Path(named)
    user = os.getuid() if hasattr(os, "getuid") else os.environ.get("USERNAME", "")
    return Path(tempfile.gettempdir(), f"pytest-gpuperf-{user}")


@contextlib.contextmanager
def exclusive(
    device: str, *, folder: Path | None = None, timeout_s: float = 600.0
) -> Iterator[Path]:
    """
    Keep every other run off a GPU while the block runs; yield the lock's file.

    A process that dies gives its lock back. It is not to be asked for twice in one
    process: the second would wait for the first.

    Args:
        device: The GPU, by index or UUID: the same for all that are to wait.

        folder: Where the locks are; None: `lease_folder()`.

        timeout_s: How long to wait for another run [s], >= 0.

    Raises:
        DeviceHeldError: Another run held it all the time; it is named.

        CollectError: The place is no good for a lock.
    """
    from filelock import FileLock, Timeout

    folder = lease_folder() if folder is None else folder
    path = folder / f"gpu-{re.sub(r'[^A-Za-z0-9.-]', '_', device)}.lock"
    # not in the lock's own file, which whoever waits for it may empty
    told = path.with_name(f"{path.name}.pid")
    guard = FileLock(path, timeout=timeout_s)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        guard.acquire()
    except Timeout as error:
        raise _held(device, path, _holder(told), timeout_s) from error
    except (OSError, NotImplementedError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        message = f"{path}: GPU {device} cannot be locked ({reason})"
        remedy = f"name a folder on a local disk by {FOLDER_VARIABLE}"
        raise CollectError(message, remedy=remedy) from error
    try:
        with contextlib.suppress(OSError):  # who holds it is a courtesy, not the lock
            told.write_text(f"{os.getpid()}\n", encoding="ascii")
        yield path
    finally:
        with contextlib.suppress(OSError):
            told.unlink()
        guard.release()


def _holder(told: Path) -> int | None:
    """Return the process that wrote itself down; None: it cannot be known."""
    try:
        return int(told.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def _held(
    device: str, path: Path, holder: int | None, timeout_s: float
) -> DeviceHeldError:
    """Return the error of a lock that was not given up in time."""
    who = "another process" if holder is None else f"process {holder}"
    end = "the process that holds it" if holder is None else f"process {holder}"
    message = f"{who} has held GPU {device} for {timeout_s:g} s ({path})"
    remedy = f"wait until {end} has ended, or end it"
    return DeviceHeldError(message, remedy=remedy, path=str(path), holder=holder)
