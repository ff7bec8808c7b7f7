"""Stores of sessions: the interface, the single file, and opening one by name."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from pytest_gpuperf.baseline.directory import DirectoryStore
from pytest_gpuperf.baseline.files import kind_of, locked, read_whole, write_whole
from pytest_gpuperf.baseline.history import (
    Append,
    Restart,
    StoreChange,
    applied,
    slugs_holding,
)
from pytest_gpuperf.baseline.text import decode, encode
from pytest_gpuperf.errors import BaselineError, BaselineMissingError, ConfigError
from pytest_gpuperf.model.record import RecordKey, StoredRecord

__all__ = ["Append", "Restart", "SingleFileStore", "Store", "StoreChange", "open_store"]

_SCHEME = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):(?://|$)")
_KINDS = "name a directory or a .json file"


class Store(Protocol):
    """
    Sessions by slug: the device they were measured on.

    Every method may raise BaselineError, BaselineCorruptError or SchemaVersionError.
    """

    def slugs(self) -> tuple[str, ...]:
        """Return the slugs that have sessions, sorted."""

    def load(
        self, slug: str, test_ids: Collection[str] | None = None
    ) -> Mapping[RecordKey, tuple[StoredRecord, ...]]:
        """
        Return the sessions of each measurement, oldest first.

        Args:
            slug: The device; an unknown one has no sessions.

            test_ids: The tests to read; None: all.
        """

    def other_slugs(
        self, slug: str, keys: Collection[RecordKey]
    ) -> Mapping[RecordKey, tuple[str, ...]]:
        """
        Return the other slugs that have sessions of each measurement.

        Args:
            slug: The slug to skip.

            keys: The measurements to look for.

        Returns:
            Slugs by measurement; measurements without any are absent.
        """

    def write(self, slug: str, changes: Sequence[StoreChange]) -> None:
        """
        Apply changes in order, under the store's lock.

        The newest 20 sessions of each measurement and choice are kept.

        Args:
            slug: The device of the sessions.

            changes: The changes.

        Raises:
            RecordError: A session could not be read back; nothing is written.
        """


def open_store(place: str, root: str | Path, *, create: bool = False) -> Store:
    """
    Return the store of a name.

    Args:
        place: A directory, or a file whose name ends in .json.

        root: The folder that a relative name starts from.

        create: Whether a missing store counts as empty; the first write creates it.

    Raises:
        ConfigError: The name is not that of a store.

        BaselineMissingError: It does not exist, and `create` was not given.

        BaselineError: It exists and is not a store.
    """
    scheme = _SCHEME.match(place)
    if scheme is not None:
        raise ConfigError(
            f"{scheme['scheme'].lower()} stores are not supported in this version",
            remedy=_KINDS,
        )
    if not place.strip() or "\0" in place:
        raise ConfigError(f"{place!r} is not the name of a store", remedy=_KINDS)
    path = Path(root) / Path(place).expanduser()
    kind = kind_of(path)
    single = path.suffix.lower() == ".json" and kind != "folder"
    if kind == "file" and not single:
        raise BaselineError(f"{path} is a file without the .json suffix", remedy=_KINDS)
    if kind is None and not create:
        raise BaselineMissingError(
            f"there is no baseline at {path}", remedy="create it: --gpuperf-update=new"
        )
    return SingleFileStore(path) if single else DirectoryStore(path)


class SingleFileStore:
    """
    One file with a section for each slug: easy to send, slower to merge.

    Args:
        path: The file.

        lock_timeout_s: How long a write waits for another run's lock [s], >= 0.
    """

    def __init__(self, path: Path, *, lock_timeout_s: float = 60.0) -> None:
        self._path = path
        self._lock_timeout_s = lock_timeout_s

    def slugs(self) -> tuple[str, ...]:
        """Return the slugs that have sessions, sorted."""
        sections = self._sections(test_ids=())
        return tuple(sorted(sections))

    def load(
        self, slug: str, test_ids: Collection[str] | None = None
    ) -> Mapping[RecordKey, tuple[StoredRecord, ...]]:
        """Return the sessions of each measurement, oldest first."""
        return self._sections(section=slug, test_ids=test_ids).get(slug, {})

    def other_slugs(
        self, slug: str, keys: Collection[RecordKey]
    ) -> Mapping[RecordKey, tuple[str, ...]]:
        """Return the other slugs that have sessions of each measurement."""
        held = self._sections(test_ids={key.test_id for key in keys})
        candidates = (name for name in sorted(held) if name != slug)
        return slugs_holding(keys, candidates, lambda name, _: held[name])

    def write(self, slug: str, changes: Sequence[StoreChange]) -> None:
        """Apply changes in order, under the store's lock."""
        if not changes:
            return
        lock = self._path.with_name(f".{self._path.name}.lock")
        with locked(lock, timeout_s=self._lock_timeout_s):
            sections = self._sections()
            sections[slug] = applied(sections.get(slug, {}), changes)
            text = encode(sections, keyed_by="slug")
            if text != read_whole(self._path):
                write_whole({self._path: text})

    def _sections(
        self,
        *,
        section: str | None = None,
        test_ids: Collection[str] | None = None,
    ) -> dict[str, dict[RecordKey, tuple[StoredRecord, ...]]]:
        """Return the sessions of the file; empty where it does not exist."""
        text = read_whole(self._path)
        if text is None:
            return {}
        return decode(
            text,
            path=str(self._path),
            keyed_by="slug",
            section=section,
            test_ids=test_ids,
        )
