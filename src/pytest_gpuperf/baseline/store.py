"""Stores of sessions: a folder with a file for each module, or a single file."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from pytest_gpuperf.baseline.files import (
    kind_of,
    listed,
    locked,
    make_folder,
    read_whole,
    sweep,
    write_files,
    write_new,
)
from pytest_gpuperf.baseline.history import (
    Append,
    Drop,
    Move,
    PutBack,
    Restart,
    StoreChange,
    applied,
    arrived,
    slugs_holding,
)
from pytest_gpuperf.baseline.protocol import Repair, Store
from pytest_gpuperf.baseline.text import (
    Damage,
    KeyedBy,
    decode,
    digest,
    encode,
    numbered_sessions,
)
from pytest_gpuperf.disk import TEMPORARY
from pytest_gpuperf.errors import (
    BaselineCorruptError,
    BaselineError,
    BaselineMissingError,
    ConfigError,
    GpuPerfError,
    SchemaVersionError,
)
from pytest_gpuperf.model.environment import slug as slugged
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.record import RecordKey, StoredRecord
from pytest_gpuperf.model.url import masked

if TYPE_CHECKING:
    from pytest_gpuperf.baseline.database import DatabaseStore
    from pytest_gpuperf.baseline.engine import SqliteEngine

__all__ = [
    "Append",
    "DirectoryStore",
    "Drop",
    "Move",
    "PutBack",
    "Repair",
    "Restart",
    "SingleFileStore",
    "Store",
    "StoreChange",
    "file_name",
    "folder_name",
    "open_store",
    "storing_command",
]

_SCHEME = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):(?://|$)")
_DATABASES = frozenset({"sqlite", "postgresql", "postgres"})
_KINDS = "name a directory, a .json file, sqlite:///FILE.db or postgresql://HOST/NAME"
_LOCK = "store.lock"
# The name of the file with dropped sessions, or the end of that name.
_ASIDE = "dropped"
# A series that was set aside is kept until this number of sessions has arrived after
# its last session.
_SESSIONS_ASIDE = 100
_GIT_FILES = {
    ".gitignore": f"*.lock\n*{TEMPORARY}\n".encode(),
    # A session adds only lines, so that the sessions of two branches can be merged.
    ".gitattributes": b"*.json merge=union\n",
}

# A plain name is valid on every file system: one case, no leading dash or dot, short.
# All other names get a tilde and a digest, which no plain name has.
_PART = r"[a-z0-9_][a-z0-9_-]*"
_PLAIN_MODULE = re.compile(rf"(?=.{{1,100}}\Z)(?P<stem>{_PART}(?:/{_PART})*)\.py")
_PLAIN_SLUG = re.compile(r"[a-z0-9][a-z0-9-]{0,99}(?:~[0-9a-f]{16})?")
_READABLE_LENGTH = 80
# Reserved names of devices on Windows.
_DEVICES = re.compile(r"(?:con|prn|aux|nul|com\d|lpt\d)(?:\Z|\.)")

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
    """Return the folder name of a slug, which is the slug itself if that is a plain name."""
    if _PLAIN_SLUG.fullmatch(slug) and not _DEVICES.match(slug):
        return slug
    return _mangled(slug)


def storing_command(place: str | None, *, what: str = "new") -> str:
    """
    Return the command that stores a session in a store.

    Args:
        place: The store, or None for the default store.

        what: The value of `--gpuperf-update`.
    """
    command = f"pytest --gpuperf-update={what}"
    if place is None:
        return command
    return f"{command} {shlex.quote(f'--gpuperf-baseline={place}')}"


def open_store(
    place: str, root: str | Path, *, create: bool = False, lenient: bool = False
) -> Store:
    """
    Open the store of a name.

    Args:
        place: A directory, a file whose name ends in .json, or the URL of a database.

        root: The folder that a relative name is resolved against.

        create: Whether a missing store counts as empty. The first write creates the
            store.

        lenient: Whether unreadable files of a folder are left out.

    Raises:
        ConfigError: The name is not the name of a store.

        BaselineMissingError: The store does not exist, and `create` is false.

        BaselineError: The path exists but is not a store.
    """
    scheme = _SCHEME.match(place)
    if scheme is not None:
        name = scheme["scheme"].lower()
        if name == "sqlite":
            return _in_sqlite(place, root, create=create)
        if name in {"postgresql", "postgres"}:
            return _in_postgresql(place, create=create)
        raise ConfigError(f"there are no {name} stores", remedy=_KINDS)
    if not place.strip() or "\0" in place:
        raise ConfigError(f"{place!r} is not the name of a store", remedy=_KINDS)
    path = Path(root) / Path(place).expanduser()
    kind = kind_of(path)
    single = path.suffix.lower() == ".json" and kind != "folder"
    if kind == "file" and not single:
        raise BaselineError(f"{path} is a file without the .json suffix", remedy=_KINDS)
    if kind is None and not create:
        raise BaselineMissingError(
            f"there is no baseline at {path}",
            remedy=f"create it: {storing_command(place)}",
        )
    if single:
        return SingleFileStore(path)
    return DirectoryStore(path, lenient=lenient)


def names_database(place: str) -> bool:
    """Return True if the name of a store is the URL of a database."""
    scheme = _SCHEME.match(place)
    return scheme is not None and scheme["scheme"].lower() in _DATABASES


def _in_sqlite(place: str, root: str | Path, *, create: bool) -> DatabaseStore:
    # Both take time to import, and most runs name files.
    from pytest_gpuperf.baseline.database import DatabaseStore
    from pytest_gpuperf.baseline.engine import SqliteEngine

    path = _database_path(place, root)
    if kind_of(path) == "folder":
        raise BaselineError(f"{path} is a folder", remedy=_KINDS)
    if not create and not path.exists():
        raise BaselineMissingError(
            f"there is no baseline at {path}",
            remedy=f"create it: {storing_command(place)}",
        )

    def connect(*, create: bool) -> SqliteEngine | None:
        exists = create or path.exists()
        return SqliteEngine(path, create=create) if exists else None

    return DatabaseStore(place, connect)


def _in_postgresql(place: str, *, create: bool) -> DatabaseStore:
    from pytest_gpuperf.baseline.database import DatabaseStore
    from pytest_gpuperf.baseline.postgresql import PostgresqlEngine

    def connect(*, create: bool) -> PostgresqlEngine:  # noqa: ARG001 - of all databases
        return PostgresqlEngine(place)

    shown = masked(place)
    with contextlib.closing(connect(create=create)) as engine:
        if engine.schema() is None and not create:
            raise BaselineMissingError(
                f"there is no baseline at {shown}",
                remedy=f"create it: {storing_command(shown)}",
            )
    return DatabaseStore(shown, connect)


def _database_path(place: str, root: str | Path) -> Path:
    """
    Return the file of a URL: three slashes for a path below the root, four for another.
    """
    rest = place.partition(":")[2]
    name = rest.removeprefix("///")
    if name == rest or not name.strip("/") or "\0" in name or "?" in name:
        raise ConfigError(
            f"{place!r} does not name a file",
            remedy="write sqlite:///perf.db, or sqlite:////srv/perf.db for a whole path",
        )
    return Path(root) / Path(name).expanduser()


class _StoreReader:
    """Reads the files of one store, and collects their damage."""

    def __init__(self, place: Path, keyed_by: KeyedBy) -> None:
        self._place = place
        self._keyed_by = keyed_by
        self._damage: dict[Damage, None] = {}
        self.of_earlier_schema = False

    @property
    def damage(self) -> tuple[Damage, ...]:
        """The damaged lines that were left out."""
        return tuple(self._damage)

    def read(
        self,
        path: Path,
        *,
        section: str | None = None,
        test_ids: Collection[str] | None = None,
        whole: bool = False,
    ) -> dict[str, _Sessions]:
        """
        Return the sessions of a file, or {} if the file does not exist.

        Args:
            path: The file.

            section: The section to read, or None for all.

            test_ids: The tests to read, or None for all.

            whole: Whether damage is an error. A file that is written back must be
                complete.
        """
        text = read_whole(path)
        if text is None:
            return {}
        stored = decode(
            text,
            path=str(path),
            keyed_by=self._keyed_by,
            section=section,
            test_ids=test_ids,
        )
        self._damage |= dict.fromkeys(stored.damage)
        self.of_earlier_schema |= stored.of_earlier_schema
        if whole and stored.damage:
            first, *rest = stored.damage
            more = f" and {len(rest)} more" if rest else ""
            where = f"line {first.line}: " if first.line else ""
            raise BaselineCorruptError(
                f"{where}{first.reason}{more}",
                remedy=(
                    "restore the file from version control, or accept the change with "
                    f"gpuperf baseline accept {shlex.quote(str(self._place))} --edited"
                ),
                path=str(path),
            )
        return stored.sections

    def accept_edits(self, paths: Iterable[Path]) -> Repair:
        """Rewrite the damaged files without the damage. The caller must hold the lock."""
        accepted: list[Damage] = []
        removed: list[Damage] = []
        texts = {}
        for path in paths:
            text = read_whole(path) or b""
            damage = decode(text, path=str(path), keyed_by=self._keyed_by).damage
            if not damage:
                continue
            lenient = decode(text, path=str(path), keyed_by=self._keyed_by, edited=True)
            texts[path] = encode(lenient.sections, keyed_by=self._keyed_by)
            lost = {entry.line for entry in lenient.damage}
            accepted += [entry for entry in damage if entry.line not in lost]
            removed += lenient.damage
        write_files(texts)
        return Repair(accepted=tuple(accepted), removed=tuple(removed))


class _FileStore(ABC):
    """
    A store of files that share a reader.

    Args:
        path: The folder, or the file.

        lock_timeout_s: Time limit for getting the lock [s], >= 0.

        lenient: Whether unreadable files of a folder are left out.
    """

    keyed_by: ClassVar[KeyedBy]
    reads_by_test = False

    def __init__(
        self, path: Path, *, lock_timeout_s: float = 60.0, lenient: bool = False
    ) -> None:
        self._path = path
        self._lock_timeout_s = lock_timeout_s
        self._lenient = lenient
        self._unread: dict[Path, GpuPerfError] = {}
        self._reader = _StoreReader(path, self.keyed_by)

    @property
    def damage(self) -> tuple[Damage, ...]:
        """The damaged lines that were left out so far."""
        return self._reader.damage

    @property
    def of_earlier_schema(self) -> bool:
        """True if a file read so far is in an earlier version of the format."""
        return self._reader.of_earlier_schema

    @property
    def unread(self) -> tuple[GpuPerfError, ...]:
        """The errors of the files that a lenient store left out so far."""
        return tuple(self._unread.values())

    def aside(self) -> Mapping[str, Mapping[RecordKey, tuple[StoredRecord, ...]]]:
        """Return the sessions that were set aside, by slug and measurement."""
        aside = self._aside()
        return {slug: aside.load(slug) for slug in aside.slugs()}

    def set_aside(self, slug: str, drops: Sequence[Drop]) -> None:
        """Move sessions from the store to the file of dropped sessions, for `put_back`."""
        stored = self.load(slug, {drop.key.test_id for drop in drops})
        kept = []
        for drop in drops:
            ids, sessions = drop.session_ids, stored.get(drop.key, ())
            records = tuple(r for r in sessions if r.session.id in ids)
            kept.append(PutBack(key=drop.key, records=records))
        arrivals = [r.arrival for change in kept for r in change.records]
        oldest = max(arrivals, default=0) - _SESSIONS_ASIDE
        aside = self._aside()
        outdated = [
            Drop(key=key, session_ids=frozenset(r.session.id for r in records))
            for key, records in aside.load(slug).items()
            if records[-1].arrival < oldest
        ]
        # The copy is written first: an interruption here leaves a session twice, but
        # loses none.
        aside.write(slug, [*outdated, *kept])
        self.write(slug, drops)

    def put_back(self, slug: str, keys: Collection[RecordKey]) -> None:
        """Put back sessions of some measurements that were set aside."""
        aside = self._aside()
        stored = {k: r for k, r in aside.load(slug).items() if k in keys}
        self.write(slug, [PutBack(key=k, records=r) for k, r in stored.items()])
        drops = [
            Drop(key=key, session_ids=frozenset(r.session.id for r in records))
            for key, records in stored.items()
        ]
        aside.write(slug, drops)

    @abstractmethod
    def write(self, slug: str, changes: Sequence[StoreChange]) -> None:
        """Apply changes in order, under the store's lock."""

    @abstractmethod
    def load(
        self, slug: str, test_ids: Collection[str] | None = None
    ) -> Mapping[RecordKey, tuple[StoredRecord, ...]]:
        """Return the sessions by measurement, in order of arrival."""

    def history(
        self,
        slug: str,
        test_ids: Collection[str] | None = None,
        *,
        metrics: Collection[str] | None = None,
    ) -> Mapping[RecordKey, tuple[StoredRecord, ...]]:
        """Return the sessions that the files still have."""
        stored = self.load(slug, test_ids)
        if metrics is None:
            return stored
        return {
            key: tuple(
                replace(record, values=values)
                for record in records
                if (values := tuple(v for v in record.values if v.metric in metrics))
            )
            for key, records in stored.items()
        }

    def write_all(self, changes: Mapping[str, Sequence[StoreChange]]) -> None:
        """Apply the changes of several slugs, one after the other."""
        for slug, of_slug in changes.items():
            self.write(slug, of_slug)

    @abstractmethod
    def names(self, slug: str) -> Mapping[RecordKey, bool]:
        """Return the measurements of a slug, and whether a pytest id is the key."""

    @abstractmethod
    def _aside(self) -> SingleFileStore:
        """Return the store of dropped sessions, a file next to the store."""


class DirectoryStore(_FileStore):
    """
    A folder under version control, next to the tests.

    The folder has a subfolder for each slug, with a file for each module.
    """

    keyed_by = "module"

    def slugs(self) -> tuple[str, ...]:
        """Return the slugs that have sessions, sorted."""
        return tuple(
            folder.name
            for folder in listed(self._path, "*")
            if kind_of(folder) == "folder" and listed(folder, "*.json")
        )

    def load(
        self, slug: str, test_ids: Collection[str] | None = None
    ) -> Mapping[RecordKey, tuple[StoredRecord, ...]]:
        """Return the sessions by measurement, in order of arrival."""
        folder = self._path / folder_name(slug)
        if test_ids is None:
            paths = listed(folder, "*.json")
        else:
            modules = {_module(test_id) for test_id in test_ids}
            paths = sorted(folder / file_name(module) for module in modules)
        sessions: _Sessions = {}
        for path in paths:
            try:
                sections = self._read(path, test_ids)
            except (BaselineError, SchemaVersionError) as error:
                if not self._lenient:
                    raise
                self._unread[path] = error
                continue
            for records in sections.values():
                sessions.update(records)
        return sessions

    def names(self, slug: str) -> Mapping[RecordKey, bool]:
        """Return the measurements of a slug, and whether a pytest id is the key."""
        loaded = self.load(slug)
        return {key: any(r.has_node_id for r in loaded[key]) for key in loaded}

    def other_slugs(
        self, slug: str, keys: Collection[RecordKey]
    ) -> Mapping[RecordKey, tuple[str, ...]]:
        """Return the other slugs that hold sessions of the given measurements."""
        candidates = (name for name in self.slugs() if name != folder_name(slug))
        return slugs_holding(keys, candidates, self.load)

    def write(self, slug: str, changes: Sequence[StoreChange]) -> None:
        """Apply changes in order, under the store's lock."""
        folder = self._path / folder_name(slug)
        if not changes:
            return
        with self._locked():
            make_folder(folder)
            sweep(folder)
            texts = {}
            paths = {module: folder / file_name(module) for module in _modules(changes)}
            stored: _Sessions = {}
            for module, path in paths.items():
                stored |= self._read(path, whole=True).get(module, {})
            numbers = {**self._aside().arrivals(), **self._arrivals()}
            left = applied(stored, arrived(changes, numbers))
            for module, path in paths.items():
                records = {
                    key: left[key] for key in left if _module(key.test_id) == module
                }
                text = encode({module: records}, keyed_by="module")
                before = read_whole(path)
                if text != before and (records or before is not None):
                    texts[path] = text
            for name, content in _GIT_FILES.items():
                write_new(self._path / name, content)
            write_files(texts)

    def accept_edits(self) -> Repair:
        """Give edited lines a new checksum, and remove unreadable lines."""
        with self._locked():
            return self._reader.accept_edits(self._files())

    def _aside(self) -> SingleFileStore:
        """Return the store of dropped sessions, a file next to the folders of the slugs."""
        path = self._path / f"{_ASIDE}.json"
        return SingleFileStore(path, lock_timeout_s=self._lock_timeout_s)

    def _locked(self) -> contextlib.AbstractContextManager[None]:
        """Return the lock of all slugs. A session has the same arrival number in every slug."""
        return locked(self._path / _LOCK, timeout_s=self._lock_timeout_s)

    def _files(self) -> list[Path]:
        return [
            path
            for slug in self.slugs()
            for path in listed(self._path / slug, "*.json")
        ]

    def _arrivals(self) -> dict[str, int]:
        """Return the arrival numbers of all readable files, by session id."""
        numbers: dict[str, int] = {}
        for path in self._files():
            # A damaged file does not concern the other modules.
            with contextlib.suppress(BaselineError):
                numbers |= numbered_sessions(read_whole(path) or b"")
        return numbers

    def _read(
        self,
        path: Path,
        test_ids: Collection[str] | None = None,
        *,
        whole: bool = False,
    ) -> dict[str, _Sessions]:
        """Return the sessions of the file of a module, or {} if the file does not exist."""
        sections = self._reader.read(path, test_ids=test_ids, whole=whole)
        for module in sections:
            if file_name(module) != path.name:
                raise BaselineCorruptError(
                    f"the file holds {module!r}, which belongs in {file_name(module)}",
                    remedy="rename it back, or remove it if it is a copy",
                    path=str(path),
                )
        return sections


class SingleFileStore(_FileStore):
    """
    One file with a section for each slug: easy to send, slower to merge.

    If the path is a link, the link stays and its target is replaced.
    """

    keyed_by = "slug"

    def slugs(self) -> tuple[str, ...]:
        """Return the slugs that have sessions, sorted."""
        sections = self._reader.read(self._path, test_ids=())
        return tuple(sorted(sections))

    def arrivals(self) -> dict[str, int]:
        """
        Return the arrival numbers of the sessions, by session id, or {} if the file is unreadable.
        """
        # The caller that needs the records reports the error.
        with contextlib.suppress(BaselineError):
            return numbered_sessions(read_whole(self._path) or b"")
        return {}

    def load(
        self, slug: str, test_ids: Collection[str] | None = None
    ) -> Mapping[RecordKey, tuple[StoredRecord, ...]]:
        """Return the sessions by measurement, in order of arrival."""
        sections = self._reader.read(self._path, section=slug, test_ids=test_ids)
        return sections.get(slug, {})

    def names(self, slug: str) -> Mapping[RecordKey, bool]:
        """Return the measurements of a slug, and whether a pytest id is the key."""
        loaded = self.load(slug)
        return {key: any(r.has_node_id for r in loaded[key]) for key in loaded}

    def other_slugs(
        self, slug: str, keys: Collection[RecordKey]
    ) -> Mapping[RecordKey, tuple[str, ...]]:
        """Return the other slugs that hold sessions of the given measurements."""
        held = self._reader.read(self._path, test_ids={key.test_id for key in keys})
        candidates = (name for name in sorted(held) if name != slug)
        return slugs_holding(keys, candidates, lambda name, _: held[name])

    def write(self, slug: str, changes: Sequence[StoreChange]) -> None:
        """Apply changes in order, under the store's lock."""
        if not changes:
            return
        with self._locked():
            sections = self._reader.read(self._path, whole=True)
            text = read_whole(self._path)
            numbers = {**self._aside().arrivals(), **numbered_sessions(text or b"")}
            numbered = arrived(changes, numbers)
            sections[slug] = applied(sections.get(slug, {}), numbered)
            changed = encode(sections, keyed_by="slug")
            if changed != text:
                file = self._path.resolve()
                sweep(file.parent, file.name)
                write_files({file: changed})

    def accept_edits(self) -> Repair:
        """Give edited lines a new checksum, and remove unreadable lines."""
        with self._locked():
            return self._reader.accept_edits([self._path])

    def _aside(self) -> SingleFileStore:
        """Return the store of dropped sessions, a file next to the store."""
        path = self._path.with_suffix(f".{_ASIDE}.json")
        return SingleFileStore(path, lock_timeout_s=self._lock_timeout_s)

    def _locked(self) -> contextlib.AbstractContextManager[None]:
        """Return the lock of the file. All links to a file share one lock."""
        target = Path(os.path.realpath(self._path))
        lock = target.with_name(f".{target.name}.lock")
        return locked(lock, timeout_s=self._lock_timeout_s)


def _mangled(text: str) -> str:
    unique = digest(text.encode("utf-8", "surrogatepass"), length=16)
    return f"{slugged(text)[:_READABLE_LENGTH]}~{unique}"


def _module(test_id: str) -> str:
    return test_id.partition("::")[0]


def _modules(changes: Iterable[StoreChange]) -> dict[str, None]:
    modules: dict[str, None] = {}
    for change in changes:
        modules[_module(change.key.test_id)] = None
        if isinstance(change, Move):
            modules[_module(change.old.test_id)] = None
    return modules
