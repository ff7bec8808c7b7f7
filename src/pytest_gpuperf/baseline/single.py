"""A store in one .json file; PYTEST_DONT_REWRITE."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from pytest_gpuperf.baseline.decode import decode
from pytest_gpuperf.baseline.encode import encode
from pytest_gpuperf.baseline.files import locked, read_whole, write_whole
from pytest_gpuperf.baseline.history import StoreChange, applied, slugs_holding
from pytest_gpuperf.model.history import StoredRecord
from pytest_gpuperf.model.record import RecordKey

__all__ = ["SingleFileStore"]


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
