"""The folder of the cache: entries put in whole, found by name, the oldest let go.

    values/3f/3fa9…      one file: a line that says what it is, then the values
    reports/3f/3fa9…/    one folder: files, and `manifest` with the same line for each
    locks/               one file for each thing that one process at a time may do
    staging/             what is being written

The folders are the index: an entry is where its key says, and was last used when its time
says. Nothing is shared between threads or kept open.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from pytest_gpuperf.collect.clock import Clock
from pytest_gpuperf.errors import (
    CollectError,
    CollectorTimeoutError,
    ConfigError,
)

__all__ = [
    "FOLDER_VARIABLE",
    "LIMIT_BYTES",
    "MANIFEST",
    "MAX_AGE_S",
    "Folder",
    "Kept",
    "cache_folder",
]

FOLDER_VARIABLE = "GPUPERF_CACHE_DIR"
LIMIT_BYTES = 1 << 30  # 400 value sets of 41,000 values, or 300 reports of 3 MB
MAX_AGE_S = 30 * 86_400.0  # unused for a month: the code has moved on
MANIFEST = "manifest"

_KINDS = ("values", "reports")
_NAME = re.compile(r"[0-9a-f]{64}")  # a key
_FAN = 2  # its first digits name a folder: 256 folders of 40 at 10,000 entries
_LOCK_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")
_STALE_S = 86_400.0  # what was being written a day ago never will be
_PRIVATE = 0o700
# https://bford.info/cachedir/: backups leave such a folder out
_TAG = b"Signature: 8a477f597d28d172789f06886806bc55\n# Made by pytest-gpuperf.\n"
_FIRST_FILES = {"CACHEDIR.TAG": _TAG, ".gitignore": b"*\n"}


class Kept(NamedTuple):
    """
    One entry.

    Attributes:
        kind: "values" or "reports".

        key: Its key.

        path: Its file or folder.

        size_bytes: All of it [B].

        used_unix_s: When it was last used.
    """

    kind: str
    key: str
    path: Path
    size_bytes: int
    used_unix_s: float


def cache_folder() -> Path:
    """Return where the cache is: $GPUPERF_CACHE_DIR, or in the user's cache folder."""
    named = os.environ.get(FOLDER_VARIABLE)
    if named:
        return Path(named)
    from platformdirs import user_cache_path

    return user_cache_path("pytest-gpuperf", appauthor=False) / "ncu"


class Folder:
    """
    The folder of the cache.

    Args:
        path: Where it is; it is made when something is put into it.

        limit_bytes: How much all entries may take [B], > 0.

        max_age_s: How long one is kept that nobody uses [s], > 0.

        clock: The wall clock.

    Raises:
        ConfigError: A limit is not above zero.
    """

    def __init__(
        self, path: Path, *, limit_bytes: int, max_age_s: float, clock: Clock
    ) -> None:
        wrong = [
            f"{name} is {value!r}"
            for name, value in (("limit_bytes", limit_bytes), ("max_age_s", max_age_s))
            if not value > 0
        ]
        if wrong:
            message = f"the cache: {'; '.join(wrong)}"
            raise ConfigError(message, remedy="give more than zero")
        self.path = path.absolute()  # a test may change into another folder
        self.limit_bytes = limit_bytes
        self._max_age_s = max_age_s
        self._clock = clock
        self._room_bytes = 0  # what may be added before entries are counted again

    def now_unix_s(self) -> float:
        """Return the time."""
        return self._clock.unix_s()

    def place(self, kind: str, key: str) -> Path:
        """
        Return where an entry is, or would be.

        Raises:
            ConfigError: That is no key.
        """
        if not _NAME.fullmatch(key):
            message = f"{key!r} is no key of the cache"
            raise ConfigError(message, remedy="give what key_of returns")
        return self.path / kind / key[:_FAN] / key

    def is_too_old(self, used_unix_s: float) -> bool:
        """Return whether an entry has not been used for too long."""
        return self.now_unix_s() - used_unix_s > self._max_age_s

    def use(self, path: Path) -> None:
        """Note that a file has been used now."""
        now = self.now_unix_s()
        with contextlib.suppress(OSError):  # a cache that others filled for reading
            os.utime(path, (now, now))

    @contextlib.contextmanager
    def staged(self) -> Iterator[Path]:
        """
        Give a private folder whose files become entries by `keep`; nothing else stays.

        Raises:
            CollectError: The cache cannot be written.
        """
        folder = self.path / "staging" / f"{os.getpid()}-{os.urandom(8).hex()}"
        with self._written():
            self._make(folder)
        try:
            with self._written():
                yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def write(self, path: Path, *parts: bytes) -> None:
        """Write a private file that is not there yet."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as stream:
            # not synced, which takes 6 ms: what a power cut damages is seen
            stream.writelines(parts)

    def keep(self, staged: Path, place: Path, size_bytes: int) -> None:
        """Make a staged file or folder an entry, in place of one that is there."""
        self._make(place.parent)
        self.use(staged / MANIFEST if staged.is_dir() else staged)
        if staged.is_dir():
            self.remove(place)  # a folder cannot be put over another
        staged.replace(place)
        self._room_bytes -= size_bytes
        if self._room_bytes < 0:
            self.make_room(place)

    def remove(self, place: Path) -> bool:
        """Remove an entry; return whether this call did."""
        try:
            if not place.is_dir():
                place.unlink()
                return True
            # out of sight at once: whoever reads it finds all of it or nothing
            aside = self.path / "staging" / f"removed-{os.urandom(8).hex()}"
            self._make(aside.parent)
            place.replace(aside)
        except OSError:  # another process was faster, or it cannot be changed
            return False
        shutil.rmtree(aside, ignore_errors=True)
        return True

    def entries(self) -> Iterator[Kept]:
        """Yield all entries, in no order."""
        for kind in _KINDS:
            for fan in _listed(self.path / kind):
                for each in _listed(fan):
                    if _NAME.fullmatch(each.name) and each.name[:_FAN] == fan.name:
                        with contextlib.suppress(OSError):  # removed meanwhile
                            yield _kept(kind, each)

    def make_room(self, spared: Path | None = None) -> list[Kept]:
        """
        Remove what is too old, then what was used longest ago, until the rest fits.

        Args:
            spared: An entry that stays: it has just been put there.

        Returns:
            What was removed.
        """
        entries = sorted(self.entries(), key=lambda each: each.used_unix_s)
        total = sum(each.size_bytes for each in entries)
        removed = []
        for each in entries:
            if each.path == spared or not (
                total > self.limit_bytes or self.is_too_old(each.used_unix_s)
            ):
                continue
            if self.remove(each.path):
                removed.append(each)
            total -= each.size_bytes
        self._room_bytes = self.limit_bytes - total
        self._sweep()
        return removed

    def _sweep(self) -> None:
        """Remove what killed processes left, and locks that nobody has taken for a day."""
        for name in ("staging", "locks"):
            for each in _listed(self.path / name):
                with contextlib.suppress(OSError):
                    if self.now_unix_s() - each.stat().st_mtime <= _STALE_S:
                        continue
                    if each.is_dir():
                        shutil.rmtree(each, ignore_errors=True)
                    else:
                        each.unlink()

    @contextlib.contextmanager
    def lock(self, name: str, *, timeout_s: float) -> Iterator[None]:
        """
        Keep every other process and thread out while the block runs.

        Args:
            name: What is locked.

            timeout_s: How long to wait for another [s], >= 0.

        Raises:
            CollectorTimeoutError: Another held it all the time.

            CollectError: The place is no good for locks.
        """
        from filelock import FileLock, Timeout

        if not _LOCK_NAME.fullmatch(name):
            message = f"{name!r} cannot be the name of a lock"
            raise ConfigError(message, remedy="use letters, digits, '-', '_' and '.'")
        file = self.path / "locks" / f"{name}.lock"
        with self._written():
            self._make(file.parent)
        guard = FileLock(file, timeout=timeout_s, mode=0o600)
        try:
            guard.acquire()
        except Timeout as error:
            message = f"another process has held {file} for {timeout_s:g} s"
            raise CollectorTimeoutError(
                message, remedy="wait until it has ended, or give it more time"
            ) from error
        except NotImplementedError as error:
            message = f"{file}: this file system has no locks ({error})"
            raise CollectError(
                message, remedy=f"name a folder on a local disk by {FOLDER_VARIABLE}"
            ) from error
        except OSError as error:
            raise self._unwritable(error) from error
        self.use(file)  # so that no sweep takes it
        try:
            yield
        finally:
            guard.release()

    def _make(self, folder: Path) -> None:
        """Make a folder of ours that nobody else can look into."""
        if folder.is_dir():
            return
        fresh = not self.path.is_dir()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        each = self.path
        each.mkdir(mode=_PRIVATE, exist_ok=True)
        for part in folder.relative_to(self.path).parts:
            each /= part
            each.mkdir(mode=_PRIVATE, exist_ok=True)
        if fresh:
            for name, content in _FIRST_FILES.items():
                with contextlib.suppress(FileExistsError):
                    self.write(self.path / name, content)

    @contextlib.contextmanager
    def _written(self) -> Iterator[None]:
        """Say of an error of the file system what can be done about it."""
        try:
            yield
        except OSError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> CollectError:
        """Return what to say of an error of the file system."""
        message = f"{self.path}: the cache cannot be written ({error.strerror})"
        remedy = f"make room, or name another folder by {FOLDER_VARIABLE}"
        return CollectError(message, remedy=remedy)


def _listed(folder: Path) -> Iterable[Path]:
    """Return what a folder holds; nothing where it cannot be listed."""
    try:
        return list(folder.iterdir())
    except OSError:
        return ()


def _kept(kind: str, path: Path) -> Kept:
    """Return an entry with its size and time."""
    if kind == "values":
        seen = path.stat()
        return Kept(kind, path.name, path, seen.st_size, seen.st_mtime)
    sizes = [each.stat().st_size for each in path.iterdir()]
    manifest = path / MANIFEST
    used = (manifest if manifest.exists() else path).stat().st_mtime
    return Kept(kind, path.name, path, sum(sizes), used)
