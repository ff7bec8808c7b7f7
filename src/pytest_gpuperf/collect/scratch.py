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
import os
import shutil
import stat
import sys
import tempfile
import weakref
from pathlib import Path

# The name of our folder in a cache.
_OWN = "pytest-gpuperf"
_PREFIX = "gpuperf-"
# The lock file gets this name only after it is locked, so that no other process can
# lock it first.
_LOCK = ".owner"
_UNLOCKED = ".new"


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
