"""Value sets by key, read without ncu and its reader."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pytest_gpuperf.collect.clock import Clock, SystemClock
from pytest_gpuperf.collect.ncu.folder import (
    FOLDER_VARIABLE,
    LIMIT_BYTES,
    MANIFEST,
    MAX_AGE_S,
    Folder,
    Kept,
    cache_folder,
)
from pytest_gpuperf.errors import CollectError, CollectorTimeoutError

if TYPE_CHECKING:
    from pytest_gpuperf.collect.ncu.key import Digests

__all__ = [
    "DIGESTS_NAME",
    "LOG_NAME",
    "REPORT_NAME",
    "VALUES_NAME",
    "Seal",
    "Values",
    "manifest_of",
    "sealed",
    "seals_of",
]

REPORT_NAME = "report.ncu-rep"
LOG_NAME = "ncu.log"
VALUES_NAME = "values.json"
DIGESTS_NAME = "digests.json"
_MAGIC = "gpuperf-cache/1"
_LONGEST_SEAL = 400  # bytes of its line
_READABLE = f"make them readable, or name another folder by {FOLDER_VARIABLE}"


class Seal(NamedTuple):
    """
    What is known of some bytes, so that damage is seen.

    Attributes:
        name: What they are: the key of values, the name of a report's file.

        created_unix_s: When they were made.

        size_bytes: How many there are [B].

        digest: Their digest.
    """

    name: str
    created_unix_s: float
    size_bytes: int
    digest: str

    def line(self) -> bytes:
        """Return it as a line of text."""
        words = (
            _MAGIC,
            self.name,
            repr(self.created_unix_s),
            str(self.size_bytes),
            self.digest,
        )
        return f"{' '.join(words)}\n".encode()

    @classmethod
    def read(cls, line: bytes) -> Seal | None:
        """Return what a line says; None: it is no such line."""
        try:
            magic, name, created, size, digest = line.decode("ascii").split()
            seal = cls(name, float(created), int(size), digest)
        except ValueError:  # UnicodeDecodeError is one
            return None
        return seal if magic == _MAGIC else None

    def fits(self, name: str, content: bytes) -> bool:
        """Return whether these are the bytes."""
        return (
            self.name == name
            and self.size_bytes == len(content)
            and self.digest == _digest(content)
        )


def sealed(name: str, content: bytes, created_unix_s: float) -> Seal:
    """Return the seal of some bytes."""
    return Seal(name, created_unix_s, len(content), _digest(content))


def _digest(content: bytes) -> str:
    from blake3 import blake3

    return blake3(content).hexdigest()


class Values:
    """
    Value sets by key, as bytes: reading one needs neither ncu nor its reader.

    Only what was measured is kept: no report, so no source text, command line or path.
    Any number of threads and processes may use one folder.

    Args:
        folder: Where they are; None: $GPUPERF_CACHE_DIR, else the user's cache folder.

        limit_bytes: How much all entries may take [B], > 0; what was used longest ago
            goes first.

        max_age_s: How long one is kept that nobody uses [s], > 0.

        clock: The wall clock.

    Attributes:
        remarks: What kept the cache from its work, a sentence each: a cache that cannot
            be used costs time and is no reason to fail.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        limit_bytes: int = LIMIT_BYTES,
        max_age_s: float = MAX_AGE_S,
        clock: Clock | None = None,
    ) -> None:
        self._folder = Folder(
            cache_folder() if folder is None else folder,
            limit_bytes=limit_bytes,
            max_age_s=max_age_s,
            clock=clock or SystemClock(),
        )
        self.remarks: list[str] = []

    @property
    def folder(self) -> Path:
        """Where they are."""
        return self._folder.path

    @property
    def limit_bytes(self) -> int:
        """How much all entries may take [B]."""
        return self._folder.limit_bytes

    def get(self, key: str) -> bytes | None:
        """
        Return the values of a key; None: there are none.

        A damaged entry, and one that nobody has used for too long, is removed.

        Args:
            key: As `key_of` returns it.
        """
        place = self._folder.place("values", key)
        try:
            content, used_unix_s = _unsealed(place, key)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            what = f"{self.folder}: values in it cannot be read ({error.strerror})"
            self.remark(f"{what}; {_READABLE}")
            return None
        if content is None:
            self._folder.remove(place)
            self.remark(f"{place}: it was damaged and is removed")
            return None
        if self._folder.is_too_old(used_unix_s):
            self._folder.remove(place)
            return None
        self._folder.use(place)
        return content

    def put(self, key: str, content: bytes) -> None:
        """
        Keep values under a key, in place of those that are there.

        Args:
            key: As `key_of` returns it.

            content: Anything but records of a person: it is kept as it is.

        Raises:
            CollectError: The cache cannot be written; it is as it was.
        """
        place = self._folder.place("values", key)
        line = sealed(key, content, self._folder.now_unix_s()).line()
        with self._folder.staged() as staging:
            self._folder.write(staging / key, line, content)
            self._folder.keep(staging / key, place, len(line) + len(content))

    def keep(self, key: str, content: bytes) -> None:
        """Keep values as `put` does; that they cannot be kept is a remark."""
        try:
            self.put(key, content)
        except CollectError as error:
            self.remark(str(error))

    def populated(
        self, key: str, make: Callable[[], bytes], *, timeout_s: float
    ) -> bytes:
        """
        Return the values of a key, made if there are none: by one process at a time.

        Args:
            key: As `key_of` returns it.

            make: Makes them; what it raises is raised here, and nothing is kept.

            timeout_s: How long to wait for another process that makes them [s], >= 0.

        Raises:
            CollectorTimeoutError: Another process took longer.
        """
        found = self.get(key)
        if found is not None:
            return found
        with contextlib.ExitStack() as held:
            try:
                held.enter_context(self.lock(key, timeout_s=timeout_s))
                found = self.get(key)  # whoever had the lock may have made them
            except CollectorTimeoutError:
                raise
            except CollectError as error:
                self.remark(str(error))
            if found is not None:
                return found
            content = make()
            self.keep(key, content)
            return content

    def lock(
        self, name: str, *, timeout_s: float
    ) -> contextlib.AbstractContextManager[None]:
        """
        Return what keeps every other process and thread out while a block runs.

        Args:
            name: What is locked: a key, or any name of letters and digits.

            timeout_s: How long to wait for another [s], >= 0.

        Raises:
            CollectorTimeoutError: Another held it all the time.

            CollectError: The place is no good for locks.
        """
        return self._folder.lock(name, timeout_s=timeout_s)

    def digests(self) -> Digests:
        """Return what digests files, and remembers large ones beside the values."""
        from pytest_gpuperf.collect.ncu.key import Digests

        return Digests(self._folder.path / DIGESTS_NAME)

    def entries(self) -> tuple[Kept, ...]:
        """Return all entries, values and reports, the one used last first."""
        return tuple(sorted(self._folder.entries(), key=lambda each: -each.used_unix_s))

    def verify(self) -> tuple[Kept, ...]:
        """Read every entry, remove what is damaged, and return that."""
        damaged = tuple(each for each in self.entries() if not _is_whole(each))
        for each in damaged:
            self._folder.remove(each.path)
        return damaged

    def clear(self) -> tuple[Kept, ...]:
        """Remove every entry, and return those; what else is in the folder stays."""
        removed = tuple(e for e in self.entries() if self._folder.remove(e.path))
        with contextlib.suppress(OSError):
            (self._folder.path / DIGESTS_NAME).unlink()
        return removed

    def remark(self, sentence: str) -> None:
        """Note what kept the cache from its work, once."""
        if sentence not in self.remarks:
            self.remarks.append(sentence)


def _unsealed(path: Path, name: str) -> tuple[bytes | None, float]:
    """
    Return what stands below the seal of a file, and when it was last used.

    Returns:
        None for the content where it is not what the seal says.

    Raises:
        OSError: It is not there, or cannot be read.
    """
    with path.open("rb") as stream:
        used_unix_s = os.fstat(stream.fileno()).st_mtime
        seal = Seal.read(stream.readline(_LONGEST_SEAL))
        content = stream.read()
    is_whole = seal is not None and seal.fits(name, content)
    return content if is_whole else None, used_unix_s


def _is_whole(entry: Kept) -> bool:
    """Return whether an entry is what was put there; one that has gone is."""
    try:
        if entry.kind == "reports":
            return bool(seals_of(entry.path))
        return _unsealed(entry.path, entry.key)[0] is not None
    except FileNotFoundError:
        return not entry.path.exists()
    except OSError:
        return False


def manifest_of(key: str, seals: Iterable[Seal], created_unix_s: float) -> bytes:
    """Return the manifest of a report: the seal of each file, under one of their own."""
    lines = b"".join(seal.line() for seal in seals)
    return sealed(key, lines, created_unix_s).line() + lines


def seals_of(folder: Path) -> dict[str, Seal]:
    """
    Return the seals of a report's files; nothing where one of them is broken.

    Raises:
        OSError: One of them is not there, or cannot be read.
    """
    lines, _ = _unsealed(folder / MANIFEST, folder.name)
    seals = [Seal.read(line) for line in (lines or b"").splitlines()]
    good = {s.name: s for s in seals if s is not None and _fits(folder, s)}
    return good if len(good) == len(seals) else {}


def _fits(folder: Path, seal: Seal) -> bool:
    """Return whether a file of a report is what was put there."""
    # what the manifest names must lie beside it
    is_plain = seal.name in {REPORT_NAME, LOG_NAME, VALUES_NAME}
    return is_plain and seal.fits(seal.name, (folder / seal.name).read_bytes())
