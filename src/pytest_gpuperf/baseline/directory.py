"""A store in a folder: one folder for each slug, one file for each module."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from pytest_gpuperf.baseline.files import (
    TEMPORARY,
    kind_of,
    listed,
    locked,
    read_whole,
    sweep,
    write_new,
    write_whole,
)
from pytest_gpuperf.baseline.history import StoreChange, applied, slugs_holding
from pytest_gpuperf.baseline.text import decode, digest, encode
from pytest_gpuperf.errors import BaselineCorruptError
from pytest_gpuperf.model.fingerprint import slug as slugged
from pytest_gpuperf.model.record import RecordKey, StoredRecord

__all__ = ["DirectoryStore", "file_name", "folder_name"]

_LOCK = "store.lock"
_IGNORED = f"*.lock\n*{TEMPORARY}\n".encode()

# A plain name is valid on every file system: one case, no leading dash or dot, short. Any
# other name gets a tilde and a digest, which no plain name has.
_PART = r"[a-z0-9_][a-z0-9_-]*"
_PLAIN_MODULE = re.compile(rf"(?=.{{1,100}}\Z)(?P<stem>{_PART}(?:/{_PART})*)\.py")
_PLAIN_SLUG = re.compile(r"[a-z0-9][a-z0-9-]{0,99}(?:~[0-9a-f]{16})?")
_READABLE_LENGTH = 80
_DEVICES = re.compile(r"(?:con|prn|aux|nul|com\d|lpt\d)(?:\Z|\.)")  # files of Windows

_Sessions = dict[RecordKey, tuple[StoredRecord, ...]]


def file_name(module: str) -> str:
    """
    Return the file name of a module, unique for each module.

    Args:
        module: The path of a test file as test ids have it, or any other text.

    Example:
        >>> file_name("tests/kernels/test_gemm.py")
        'tests.kernels.test_gemm.json'
        >>> file_name("tests/Test_Gemm.py")
        'tests-test-gemm-py~4bc9ebce712ebc15.json'
    """
    plain = _PLAIN_MODULE.fullmatch(module)
    stem = plain["stem"].replace("/", ".") if plain else ""
    if not stem or _DEVICES.match(stem):
        stem = _mangled(module)
    return f"{stem}.json"


def folder_name(slug: str) -> str:
    """Return the folder name of a slug: the slug itself where it is a plain name."""
    if _PLAIN_SLUG.fullmatch(slug) and not _DEVICES.match(slug):
        return slug
    return _mangled(slug)


class DirectoryStore:
    """
    A folder under version control, next to the tests.

    Args:
        path: The folder.

        lock_timeout_s: How long a write waits for another run's lock [s], >= 0.
    """

    def __init__(self, path: Path, *, lock_timeout_s: float = 60.0) -> None:
        self._path = path
        self._lock_timeout_s = lock_timeout_s

    def slugs(self) -> tuple[str, ...]:
        """Return the slugs that have sessions, sorted."""
        folders = listed(self._path, "*")
        return tuple(
            folder.name
            for folder in folders
            if kind_of(folder) == "folder" and listed(folder, "*.json")
        )

    def load(
        self, slug: str, test_ids: Collection[str] | None = None
    ) -> Mapping[RecordKey, tuple[StoredRecord, ...]]:
        """Return the sessions of each measurement, oldest first."""
        folder = self._path / folder_name(slug)
        if test_ids is None:
            paths = listed(folder, "*.json")
        else:
            modules = {_module(test_id) for test_id in test_ids}
            paths = sorted(folder / file_name(module) for module in modules)
        sessions: _Sessions = {}
        for path in paths:
            for records in _read(path, test_ids).values():
                sessions.update(records)
        return sessions

    def other_slugs(
        self, slug: str, keys: Collection[RecordKey]
    ) -> Mapping[RecordKey, tuple[str, ...]]:
        """Return the other slugs that have sessions of each measurement."""
        candidates = (name for name in self.slugs() if name != folder_name(slug))
        return slugs_holding(keys, candidates, self.load)

    def write(self, slug: str, changes: Sequence[StoreChange]) -> None:
        """Apply changes in order, under the store's lock."""
        folder = self._path / folder_name(slug)
        if not changes:
            return
        with locked(folder / _LOCK, timeout_s=self._lock_timeout_s):
            sweep(folder)
            texts = {}
            for module, module_changes in _by_module(changes).items():
                path = folder / file_name(module)
                stored = _read(path).get(module, {})
                text = encode(
                    {module: applied(stored, module_changes)}, keyed_by="module"
                )
                if text != read_whole(path):
                    texts[path] = text
            write_new(self._path / ".gitignore", _IGNORED)
            write_whole(texts)


def _mangled(text: str) -> str:
    """Return a text as a file name, made unique by a digest of the text."""
    unique = digest(text.encode("utf-8", "surrogatepass"), length=16)
    return f"{slugged(text)[:_READABLE_LENGTH]}~{unique}"


def _module(test_id: str) -> str:
    """Return the test file of a test id."""
    return test_id.partition("::")[0]


def _by_module(changes: Iterable[StoreChange]) -> dict[str, list[StoreChange]]:
    lists: dict[str, list[StoreChange]] = {}
    for change in changes:
        lists.setdefault(_module(change.record.key.test_id), []).append(change)
    return lists


def _read(path: Path, test_ids: Collection[str] | None = None) -> dict[str, _Sessions]:
    """Return the sessions of a module's file; empty where it does not exist."""
    text = read_whole(path)
    if text is None:
        return {}
    sections = decode(text, path=str(path), keyed_by="module", test_ids=test_ids)
    for module in sections:
        if file_name(module) != path.name:
            raise BaselineCorruptError(
                f"the file holds {module!r}, which belongs in {file_name(module)}",
                remedy="rename it back, or remove it if it is a copy",
                path=str(path),
            )
    return sections
