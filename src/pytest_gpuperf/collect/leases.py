"""One run at a time on a GPU, whoever started it.

A lock says who has a GPU now. Beside it, each process that measures says what it does:
a context that waits for its turn is listed by the driver like one that computes.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import tempfile
import threading
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from filelock import FileLock, Timeout

from pytest_gpuperf.collect.clock import NS_PER_S, Clock, SystemClock
from pytest_gpuperf.collect.devices import bare_uuid, query_devices
from pytest_gpuperf.errors import CollectError, DeviceHeldError
from pytest_gpuperf.model.frozen import Frozen, replace

if TYPE_CHECKING:
    from filelock import BaseFileLock

__all__ = [
    "FOLDER_VARIABLE",
    "Doing",
    "Presence",
    "Said",
    "descends_from",
    "exclusive",
    "file_mode",
    "lease_folder",
]

FOLDER_VARIABLE = "GPUPERF_LOCK_DIR"
_LOOK_S = 1.0  # how often who waits looks whether the GPU has changed hands
_FILE = 0o666  # of who may use a folder: who may use a file
_LONGEST_TEST = 300  # characters of a test's name that others are told
_RECORD_BYTES = 2048  # enough for what a process says with such a name
_DEEPEST = 64  # parents of a process that are looked at; a loop ends there
_HELD: dict[Path, int] = {}  # by this process: the thread that has it


class Doing(str, Enum):
    """What a process does that measures on a GPU, now and then."""

    MEASURING = "measuring"
    WORKING = "working"  # runs a test that measures nothing
    QUIET = "quiet"  # between tests, or waiting for its turn


class Said(Frozen, frozen=True, kw_only=True):
    """
    What a process says of itself.

    Attributes:
        pid: Its id, in its own namespace.

        place: That namespace; "": the system has none.

        test: The test that it runs, or ran last.

        doing: What it does.

        since_ns: For how long [ns], by the machine's monotonic clock.

        measured_ns: When it last ended to measure [ns], likewise; None: never.
    """

    pid: int
    place: str
    test: str = ""
    doing: Doing = Doing.QUIET
    since_ns: int = 0
    measured_ns: int | None = None


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
    device: str,
    *,
    test: str = "",
    folder: Path | None = None,
    timeout_s: float = 600.0,
) -> Iterator[Path]:
    """
    Keep every other run off a GPU while the block runs; yield the lock's file.

    A process that dies gives its lock back. Who has it already in this thread, or was
    started by the process that has it, does not wait.

    Args:
        device: The GPU, by index or UUID; both are one lock where NVML knows them.

        test: What it is wanted for, to be told to those who wait.

        folder: Where the locks are; None: `lease_folder()`.

        timeout_s: How long to wait while one and the same test has it [s], >= 0.

    Raises:
        DeviceHeldError: One test of another run held it all the time; it is named.

        CollectError: The place is no good for a lock.
    """
    path = _path(device, folder, ".lock")
    if _HELD.get(path) == threading.get_ident():
        yield path
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        guard = FileLock(path, mode=file_mode(path.parent))
        ours = _acquired(guard, path, timeout_s)
    except Timeout as error:
        raise _held(device, path, timeout_s) from error
    except (OSError, NotImplementedError) as error:
        raise _no_place(path, device, error) from error
    if not ours:
        yield path
        return
    _HELD[path] = threading.get_ident()
    try:
        with contextlib.suppress(OSError):  # who holds it is a courtesy, not the lock
            now = Said(pid=os.getpid(), place=_place(), test=test)
            _write(_told(path), replace(now, since_ns=SystemClock.now_ns()))
        yield path
    finally:
        del _HELD[path]
        with contextlib.suppress(OSError):
            _write(_told(path), None)
        guard.release()


class Presence:
    """
    What this process says to others that measure on one GPU, and hears of them.

    It is forgotten when the process ends, however it ends.

    Args:
        device: The GPU, by index or UUID.

        clock: Gives the time, which is one for all processes of the machine.

        folder: Where the locks are; None: `lease_folder()`.

    Raises:
        CollectError: The place is no good for a lock.
    """

    def __init__(
        self,
        device: str,
        clock: Clock,
        *,
        folder: Path | None = None,
    ) -> None:
        self._clock = clock
        self._folder = _path(device, folder, ".users")
        # two namespaces have processes of one number
        self._own = self._folder / f"{os.getpid()}-{os.urandom(4).hex()}"
        self._said = Said(pid=os.getpid(), place=_place(), since_ns=clock.now_ns())
        try:
            if not self._folder.exists():
                self._folder.mkdir(parents=True, exist_ok=True)
                self._folder.chmod(_mode(self._folder.parent))
            mode = file_mode(self._folder)
            self._alive = FileLock(_alive(self._own), timeout=0, mode=mode)
            self._alive.acquire()
            _write(self._own, self._said)
        except (OSError, NotImplementedError) as error:
            raise _no_place(self._folder, device, error) from error

    def say(self, doing: Doing, test: str = "") -> None:
        """
        Say what this process does from now on.

        Raises:
            CollectError: The place is no good any more.
        """
        now_ns, before = self._clock.now_ns(), self._said
        measured = before.doing is Doing.MEASURING
        self._said = replace(
            before,
            doing=doing,
            test=test or before.test,
            since_ns=now_ns,
            measured_ns=now_ns if measured else before.measured_ns,
        )
        try:
            _write(self._own, self._said)
        except OSError as error:
            raise _no_place(self._own, self._own.parent.name, error) from error

    def others(self) -> tuple[Said, ...]:
        """Return what other processes say that are there, in no order."""
        paths = [path for path in self._folder.glob("*-*") if not path.suffix]
        told = [
            _read(path) for path in paths if path != self._own and not _is_gone(path)
        ]
        return tuple(said for said in told if said is not None)

    def here(self, said: Said) -> bool:
        """Return whether a process is known here by the id that it gives."""
        return said.place == self._said.place

    def close(self) -> None:
        """Be forgotten."""
        with contextlib.suppress(OSError):
            self._own.unlink(missing_ok=True)
            self._alive.release()
            _alive(self._own).unlink(missing_ok=True)


def descends_from(ancestor: int, pid: int, proc: Path = Path("/proc")) -> bool:
    """
    Return whether a process is another one, or descends from it, as Linux shows it.

    Args:
        ancestor: The one.

        pid: The other.

        proc: Where Linux shows its processes; without it, no process has a parent.
    """
    for _ in range(_DEEPEST):
        if pid == ancestor:
            return True
        try:
            stat = (proc / str(pid) / "stat").read_text(errors="replace")
        except OSError:
            return False
        # its name stands in parentheses and may hold some; state, then parent
        pid = int(stat.rpartition(")")[2].split()[1])
    return False


def _acquired(guard: BaseFileLock, path: Path, timeout_s: float) -> bool:
    """
    Wait for a lock; return whether it is ours, not that of who started this process.

    The limit is for one holder: where many take turns, each of them ends.
    """
    begun_ns, holder, pause_s = SystemClock.now_ns(), _read(_told(path)), 0.0
    while True:
        try:
            guard.acquire(timeout=pause_s)
        except Timeout:
            seen = _read(_told(path))
            now_ns = SystemClock.now_ns()
            if seen is not None and _is_ours(seen):
                return False
            if seen is not None and seen != holder:
                begun_ns, holder = now_ns, seen
            left_s = timeout_s - (now_ns - begun_ns) / NS_PER_S
            if left_s <= 0:
                raise
            pause_s = min(_LOOK_S, left_s)
        else:
            return True


def _is_ours(holder: Said) -> bool:
    """Return whether the process that has a lock has started this one."""
    pid = os.getpid()
    same = holder.place == _place() and holder.pid != pid
    return same and descends_from(holder.pid, pid)


def _path(device: str, folder: Path | None, ending: str) -> Path:
    """Return where processes meet that use a GPU, by whatever name they know it."""
    name = device
    if device.isdecimal():
        found = (e.uuid for e in query_devices().devices if e.index == int(device))
        name = next(found, device)
    name = re.sub(r"[^A-Za-z0-9.-]", "_", bare_uuid(name))
    return (lease_folder() if folder is None else folder) / f"gpu-{name}{ending}"


def _told(path: Path) -> Path:
    """Return the file beside a lock: whoever waits for the lock may empty its own."""
    return path.with_name(f"{path.name}.pid")


def _alive(path: Path) -> Path:
    """Return the lock that a process holds for as long as it is there."""
    return path.with_name(f"{path.name}.alive")


def _is_gone(path: Path) -> bool:
    """Return whether a process has ended that said something; then remove what it said."""
    try:
        with FileLock(_alive(path), timeout=0, mode=file_mode(path.parent)):
            with contextlib.suppress(OSError):  # another user's, who will remove it
                path.unlink(missing_ok=True)
                _alive(path).unlink(missing_ok=True)
            return True
    except (Timeout, OSError):
        return False


def file_mode(folder: Path) -> int:
    """Return who may use a file of a folder: the same who may use that."""
    return _mode(folder) & _FILE


def _mode(folder: Path) -> int:
    """Return who may use a folder: the same may use what is made in it."""
    return stat.S_IMODE(folder.stat().st_mode)


def _place() -> str:
    """Return in which namespace this process has its id."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def _write(path: Path, said: Said | None) -> None:
    """
    Write what a process says; None: nothing any more.

    Over what is there, at once and of one length: a new file takes milliseconds, and who
    reads meanwhile has the old or the new.
    """
    text = b""
    if said is not None:
        test = said.test[:_LONGEST_TEST].encode(errors="replace").decode()
        text = msgspec.json.encode(replace(said, test=test))
    fresh = not path.exists()
    file = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        os.write(file, text.ljust(_RECORD_BYTES))
    finally:
        os.close(file)
    if fresh:
        path.chmod(file_mode(path.parent))


def _read(path: Path) -> Said | None:
    """Return what a process has said; None: it has not, or not that one can read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Said)
    except (OSError, msgspec.DecodeError):
        return None


def _held(device: str, path: Path, timeout_s: float) -> DeviceHeldError:
    """Return the error of a lock that was not given up in time."""
    holder = _read(_told(path))
    who = "another process" if holder is None else f"process {holder.pid}"
    end = "the process that holds it" if holder is None else who
    test = f", now for {holder.test}" if holder is not None and holder.test else ""
    message = f"{who} has held {_called(device)} for {timeout_s:g} s{test} ({path})"
    remedy = f"wait until {end} has ended, or end it"
    pid = None if holder is None else holder.pid
    return DeviceHeldError(message, remedy=remedy, path=str(path), holder=pid)


def _called(device: str) -> str:
    """Return a GPU as a sentence calls it."""
    return f"GPU {device}" if device.isdecimal() else device


def _no_place(path: Path, device: str, error: Exception) -> CollectError:
    """Return the error of a folder in which nothing can be locked."""
    reason = getattr(error, "strerror", None) or str(error)
    message = f"{path}: {_called(device)} cannot be locked ({reason})"
    remedy = f"name a folder on a local disk by {FOLDER_VARIABLE}"
    return CollectError(message, remedy=remedy)
