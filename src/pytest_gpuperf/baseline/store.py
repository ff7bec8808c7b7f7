"""The stores that sessions can be kept in."""

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
    Sessions by slug: by what they were measured on.

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
            slug: What they were measured on; one that is not stored has nothing.

            test_ids: The tests to read; None: all.
        """

    def other_slugs(
        self, slug: str, keys: Collection[RecordKey]
    ) -> Mapping[RecordKey, tuple[str, ...]]:
        """
        Return in which other slugs each measurement has sessions.

        Args:
            slug: The slug that is left out.

            keys: The measurements to look for.

        Returns:
            Slugs by measurement; one that has none is left out.
        """

    def write(self, slug: str, changes: Sequence[StoreChange]) -> None:
        """
        Change what is stored, in the order given; two runs at once lose nothing.

        At most 20 sessions are kept of each measurement and choice, the newest.

        Args:
            slug: What the sessions were measured on.

            changes: What to do.

        Raises:
            RecordError: A session holds what could not be read back; nothing is written.
        """


def open_store(place: str, root: str | Path, *, create: bool = False) -> Store:
    """
    Return the store of a name.

    Args:
        place: A directory, or a file whose name ends in .json.

        root: The folder that a relative name is relative to.

        create: Whether a store that is not there is an empty one; the first write makes
            it.

    Raises:
        ConfigError: The name is of no kind of store that there is.

        BaselineMissingError: It is not there, and `create` was not given.

        BaselineError: It is there and is something else.
    """
    scheme = _SCHEME.match(place)
    if scheme is not None:
        raise ConfigError(
            f"a store of kind {scheme['scheme'].lower()} cannot be opened",
            remedy=f"not in this version: {_KINDS}",
        )
    if not place.strip() or "\0" in place:
        raise ConfigError(f"{place!r} is no name of a store", remedy=_KINDS)
    path = Path(root) / Path(place).expanduser()
    kind = kind_of(path)
    single = path.suffix.lower() == ".json" and kind != "folder"
    if kind == "file" and not single:
        raise BaselineError(f"{path} is a file, and not a .json file", remedy=_KINDS)
    if kind is None and not create:
        raise BaselineMissingError(
            f"there is no baseline at {path}", remedy="--gpuperf-update=new creates it"
        )
    return SingleFileStore(path) if single else DirectoryStore(path)


class SingleFileStore:
    """
    One file with a section for each slug: easy to send, slower to merge.

    Args:
        path: The file.

        lock_timeout_s: How long a write waits for another run [s], >= 0.
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
        """Return in which other slugs each measurement has sessions."""
        held = self._sections(test_ids={key.test_id for key in keys})
        others = (each for each in sorted(held) if each != slug)
        return slugs_holding(keys, others, lambda each, _: held[each])

    def write(self, slug: str, changes: Sequence[StoreChange]) -> None:
        """Change what is stored, in the order given; two runs at once lose nothing."""
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
        """Return what the file holds; without a file nothing."""
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
