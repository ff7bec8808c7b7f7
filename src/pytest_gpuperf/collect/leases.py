"""Exclusive use of a GPU, or of the whole machine, by one run at a time.

A lock file names the holder. Each measuring process also publishes what it does, because
the driver lists a context that waits for its turn like one that computes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from pytest_gpuperf.collect.appended_file import open_unlinked, refuse_link
from pytest_gpuperf.collect.clock import NS_PER_S, Clock, SystemClock
from pytest_gpuperf.collect.devices import bare_uuid, query_devices
from pytest_gpuperf.errors import CollectError, DeviceHeldError
from pytest_gpuperf.model.frozen import UNREADABLE, Frozen, replace

if TYPE_CHECKING:
    from filelock import BaseFileLock

FOLDER_VARIABLE = "GPUPERF_LOCK_DIR"
# The temporary folder of all systems but Windows. TMPDIR may name a different folder
# for each run and each job.
_SYSTEM_FOLDER = "/tmp"  # noqa: S108 - what others place there is refused: see below
# The name of the machine in messages.
_MACHINE = "this machine"
# Interval at which a waiting process checks for a new holder.
_POLL_S = 1.0
# The permissions of a folder that apply to the files in it.
_FILE_MODE = 0o666
# Published characters of a test's name.
_LONGEST_TEST = 300
# Enough for a state with such a name.
_RECORD_BYTES = 2048
# Maximum number of parents of a process that are followed, in case of a loop.
_MOST_PARENTS = 64
# Files with other names are never removed.
_STATE_NAME = re.compile(r"gpu-[\w.-]+\.user-\d+-[0-9a-f]{8}")
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
# The thread of this process that holds each lock.
_HOLDERS: dict[Path, int] = {}


class ProcessActivity(str, Enum):
    """The activity of a process that uses a GPU."""

    MEASURING = "measuring"
    # The process runs a test that measures nothing.
    WORKING = "working"
    # The process is between tests, or waiting for its turn.
    QUIET = "quiet"


class ProcessState(Frozen, frozen=True, kw_only=True):
    """
    The published state of a process.

    Attributes:
        pid: The process id, in the namespace of the process.

        place: The namespace, or "" if the system has none.

        test: The test that runs, or ran last.

        activity: The current activity.

        since_ns: Start of the activity [ns], by the machine's monotonic clock.

        measured_ns: End of the last measurement [ns], by the same clock, or None if
            there was none.
    """

    pid: int
    place: str
    test: str = ""
    activity: ProcessActivity = ProcessActivity.QUIET
    since_ns: int = 0
    measured_ns: int | None = None


def lease_folder() -> Path:
    """
    Return the folder of the locks: $GPUPERF_LOCK_DIR, or a folder of this user.

    The folder of the user is in the system's temporary folder, not in $TMPDIR, because
    runs with different values of TMPDIR would not share a lock. Many systems forbid
    opening another user's file in a shared temporary folder, even to wait for it. Runs
    of several users therefore need a folder that all may write to.
    """
    named = os.environ.get(FOLDER_VARIABLE)
    return Path(named) if named else _private_folder()


def _private_folder() -> Path:
    user = os.getuid() if hasattr(os, "getuid") else os.environ.get("USERNAME", "")
    is_posix = os.name == "posix" and os.access(_SYSTEM_FOLDER, os.W_OK | os.X_OK)
    shared = _SYSTEM_FOLDER if is_posix else tempfile.gettempdir()
    return Path(shared, f"pytest-gpuperf-{user}")


def make_lease_folder(folder: Path) -> None:
    """
    Create a folder of locks, if missing.

    In the shared temporary folder, another user may have created the folder first, to
    place links in it. A folder named by $GPUPERF_LOCK_DIR may be for several users.

    Raises:
        OSError: The folder cannot be created, or it is this user's and others can place
            files in it.
    """
    if folder != _private_folder():
        folder.mkdir(parents=True, exist_ok=True)
        return
    folder.mkdir(mode=stat.S_IRWXU, parents=True, exist_ok=True)
    state = folder.lstat()
    if stat.S_ISLNK(state.st_mode):
        raise _refused(folder, "the folder is a link")
    # On Windows, the temporary folder belongs to the user.
    if not hasattr(os, "getuid"):
        return
    if state.st_uid != os.getuid():
        raise _refused(folder, "the folder belongs to another user")
    if state.st_mode & _OTHERS_WRITE:
        raise _refused(folder, "other users can write to the folder")


def _refused(path: Path, reason: str) -> PermissionError:
    return PermissionError(errno.EPERM, reason, str(path))


@contextlib.contextmanager
def exclusive(
    device: str,
    *,
    test: str = "",
    folder: Path | None = None,
    timeout_s: float = 600.0,
) -> Iterator[Path]:
    """
    Keep all other runs off a GPU while the block runs.

    A process that dies releases its lock. A thread that already holds the lock, and a
    process started by the holder, do not wait.

    Args:
        device: The GPU, by index or UUID. Both give the same lock if NVML knows the
            GPU.

        test: The test that needs the GPU, shown to waiting runs.

        folder: The folder of the locks, or None for `lease_folder()`.

        timeout_s: Time limit for waiting for one holder [s], >= 0.

    Yields:
        The lock's file.

    Raises:
        DeviceHeldError: A test of another run held the lock all the time. The message
            names it.

        CollectError: The folder cannot hold a lock.
    """
    with _held(_path(device, folder, ".lock"), device, test, timeout_s) as path:
        yield path


@contextlib.contextmanager
def exclusive_machine(
    *,
    test: str,
    folder: Path | None = None,
    timeout_s: float = 600.0,
    waiting: Callable[[ProcessState], object] | None = None,
) -> Iterator[Path]:
    """
    Block all other runs that request the machine while the block runs.

    Args:
        test: The purpose that is shown to waiting runs.

        folder: The folder of the locks, or None for `lease_folder()`.

        timeout_s: Time limit for waiting for one holder [s], >= 0.

        waiting: Called once for each holder that the run waits for.

    Raises:
        DeviceHeldError: One holder kept the lock all the time. The message names it.

        CollectError: The folder cannot hold a lock.
    """
    path = (lease_folder() if folder is None else folder) / "machine.lock"
    with _held(path, _MACHINE, test, timeout_s, waiting):
        yield path


@contextlib.contextmanager
def _held(
    path: Path,
    device: str,
    test: str,
    timeout_s: float,
    waiting: Callable[[ProcessState], object] | None = None,
) -> Iterator[Path]:
    """Hold a lock while the block runs, unless already held by the thread or an ancestor."""
    if _HOLDERS.get(path) == threading.get_ident():
        yield path
        return
    try:
        make_lease_folder(path.parent)
        guard = file_lock(path)
        acquired = _acquired(guard, path, timeout_s, waiting)
    except TimeoutError as error:
        holder = _read(_holder_file(path))
        who = "another process" if holder is None else f"process {holder.pid}"
        end = "the process that holds it" if holder is None else who
        its_test = f", now for {holder.test}" if holder and holder.test else ""
        what = f"{_device_text(device)} for {timeout_s:g} s{its_test}"
        raise DeviceHeldError(
            f"{who} has held {what} ({path})",
            remedy=f"wait until {end} has ended, or end it",
            path=str(path),
            holder=None if holder is None else holder.pid,
        ) from error
    except (OSError, NotImplementedError) as error:
        raise _lock_error(path, device, error) from error
    if not acquired:
        yield path
        return
    _HOLDERS[path] = threading.get_ident()
    try:
        # Naming the holder is optional.
        with contextlib.suppress(OSError):
            now = ProcessState(pid=os.getpid(), place=_namespace(), test=test)
            _write(_holder_file(path), replace(now, since_ns=SystemClock.now_ns()))
        yield path
    finally:
        del _HOLDERS[path]
        with contextlib.suppress(OSError):
            _write(_holder_file(path), None)
        guard.release()


class Presence:
    """
    The published states of this process and of other processes that use the same GPU.

    The state of this process is removed when the process ends, even by a kill.

    Args:
        device: The GPU, by index or UUID.

        clock: Source of the time. All processes of the machine share this clock.

        folder: The folder of the locks, or None for `lease_folder()`.

    Raises:
        CollectError: The folder cannot hold a lock.
    """

    def __init__(
        self,
        device: str,
        clock: Clock,
        *,
        folder: Path | None = None,
    ) -> None:
        self._clock = clock
        # Not in a subfolder, because the user who created the subfolder could replace
        # it by a link.
        self._prefix = _path(device, folder, ".user-")
        # Processes of two namespaces may have the same id.
        name = f"{self._prefix.name}{os.getpid()}-{os.urandom(4).hex()}"
        self._file = self._prefix.with_name(name)
        self._state = ProcessState(
            pid=os.getpid(), place=_namespace(), since_ns=clock.now_ns()
        )
        try:
            make_lease_folder(self._file.parent)
            self._alive = file_lock(_alive(self._file), timeout_s=0)
            self._alive.acquire()
            _write(self._file, self._state)
        except (OSError, NotImplementedError) as error:
            raise _lock_error(self._file.parent, device, error) from error

    def publish(self, activity: ProcessActivity, test: str = "") -> None:
        """
        Publish the new activity of the process.

        Raises:
            CollectError: The file can no longer be written.
        """
        now_ns, before = self._clock.now_ns(), self._state
        measured = before.activity is ProcessActivity.MEASURING
        self._state = replace(
            before,
            activity=activity,
            test=test or before.test,
            since_ns=now_ns,
            measured_ns=now_ns if measured else before.measured_ns,
        )
        try:
            _write(self._file, self._state)
        except OSError as error:
            device = self._prefix.name.removeprefix("gpu-").removesuffix(".user-")
            raise _lock_error(self._file, device, error) from error

    def other_processes(self) -> tuple[ProcessState, ...]:
        """Return the states of the other running processes, in no particular order."""
        states = []
        for path in self._prefix.parent.glob(f"{self._prefix.name}*"):
            if path == self._file or not _STATE_NAME.fullmatch(path.name):
                continue
            try:
                # Another user's files may stay. The runs of that user remove them.
                with file_lock(_alive(path), timeout_s=0), contextlib.suppress(OSError):
                    # The process has ended.
                    path.unlink(missing_ok=True)
                    _alive(path).unlink(missing_ok=True)
            except OSError:
                # The lock is in use, or cannot be opened.
                states.append(_read(path))
        return tuple(state for state in states if state is not None)

    def is_local(self, state: ProcessState) -> bool:
        """Return True if the id of a process is valid in this namespace."""
        return state.place == self._state.place

    def close(self) -> None:
        """Remove the published state."""
        with contextlib.suppress(OSError):
            self._file.unlink(missing_ok=True)
            self._alive.release()
            _alive(self._file).unlink(missing_ok=True)


def descends_from(ancestor: int, pid: int, proc: Path = Path("/proc")) -> bool:
    """
    Return True if a process is the ancestor itself or a descendant.

    Args:
        ancestor: Id of the ancestor.

        pid: Id of the process.

        proc: Linux's process folder. Without it, no process has a parent.
    """
    for _ in range(_MOST_PARENTS):
        if pid == ancestor:
            return True
        try:
            stat = (proc / str(pid) / "stat").read_text(errors="replace")
        except OSError:
            return False
        # The name is in parentheses and may contain parentheses. State and parent
        # follow.
        pid = int(stat.rpartition(")")[2].split()[1])
    return False


def _acquired(
    guard: BaseFileLock,
    path: Path,
    timeout_s: float,
    waiting: Callable[[ProcessState], object] | None,
) -> bool:
    """Wait for a lock, `timeout_s` per holder. Returns False if an ancestor holds the lock."""
    begun_ns, pause_s, announced_pid = SystemClock.now_ns(), 0.0, None
    holder = _read(_holder_file(path))
    while True:
        try:
            guard.acquire(timeout=pause_s)
        except TimeoutError:
            current = _read(_holder_file(path))
            now_ns = SystemClock.now_ns()
            pid = os.getpid()
            if (
                current is not None
                and current.place == _namespace()
                and current.pid != pid
                and descends_from(current.pid, pid)
            ):
                return False
            if current is not None and current != holder:
                begun_ns, holder = now_ns, current
            if (
                waiting is not None
                and holder is not None
                and holder.pid != announced_pid
            ):
                announced_pid = holder.pid
                waiting(holder)
            left_s = timeout_s - (now_ns - begun_ns) / NS_PER_S
            if left_s <= 0:
                raise
            pause_s = min(_POLL_S, left_s)
        else:
            return True


def _path(device: str, folder: Path | None, ending: str) -> Path:
    name = device
    if device.isdecimal():
        uuids = (
            gpu.uuid for gpu in query_devices().devices if gpu.index == int(device)
        )
        name = next(uuids, device)
    name = re.sub(r"[^A-Za-z0-9.-]", "_", bare_uuid(name))
    return (lease_folder() if folder is None else folder) / f"gpu-{name}{ending}"


def _holder_file(path: Path) -> Path:
    """Return the file that names the holder. The lock file may be emptied by a waiting process."""
    return path.with_name(f"{path.name}.pid")


def _alive(path: Path) -> Path:
    return path.with_name(f"{path.name}.alive")


def file_mode(folder: Path) -> int:
    """Return the mode for a file in a folder: the mode of the folder, without execution."""
    return stat.S_IMODE(folder.stat().st_mode) & _FILE_MODE


def file_lock(path: Path, *, timeout_s: float = -1) -> BaseFileLock:
    """
    Create a lock on a file, usable by all users of the folder.

    Links are refused. The lock itself does not open a symbolic link, but it would change
    the mode of the target of a hard link.

    Args:
        path: The file.

        timeout_s: Time limit of `acquire` [s], or a negative number to wait for ever.

    Raises:
        OSError: The file is a link, or the folder cannot be read.
    """
    # Imported here, because a process of a comparison waits for no lock.
    from filelock import FileLock

    with contextlib.suppress(FileNotFoundError):
        refuse_link(path, path.lstat())
    return FileLock(path, timeout=timeout_s, mode=file_mode(path.parent))


def _namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def _write(path: Path, state: ProcessState | None) -> None:
    """
    Overwrite a file with a state, or with blanks for None, in one call and at a fixed length.

    A new file would take milliseconds. Readers see either the old or the new state.
    """
    text = b""
    if state is not None:
        test = state.test[:_LONGEST_TEST].encode(errors="replace").decode()
        text = msgspec.json.encode(replace(state, test=test))
    file = open_unlinked(path, os.O_WRONLY | os.O_CREAT)
    try:
        # For a new file, set the mode regardless of the umask.
        if not os.fstat(file).st_size and hasattr(os, "fchmod"):
            os.fchmod(file, file_mode(path.parent))
        os.write(file, text.ljust(_RECORD_BYTES))
    finally:
        os.close(file)


def _read(path: Path) -> ProcessState | None:
    try:
        with os.fdopen(open_unlinked(path, os.O_RDONLY), "rb") as file:
            return msgspec.json.decode(file.read(_RECORD_BYTES), type=ProcessState)
    except (OSError, *UNREADABLE):
        return None


def _device_text(device: str) -> str:
    return f"GPU {device}" if device.isdecimal() else device


def _lock_error(path: Path, device: str, error: Exception) -> CollectError:
    reason = getattr(error, "strerror", None) or str(error)
    message = f"{path}: {_device_text(device)} cannot be locked ({reason})"
    place = "on a local disk"
    if isinstance(error, PermissionError):
        place = "that only this user can write to"
    return CollectError(message, remedy=f"set {FOLDER_VARIABLE} to a folder {place}")
