"""Stores of sessions: a folder with a file for each module, or a single file."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from abc import ABC, abstractmethod
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from pytest_gpuperf.baseline.files import (
    kind_of,
    listed,
    locked,
    make_folder,
    opened,
    read_start,
    read_whole,
    sweep,
    write_files,
    write_new,
)
from pytest_gpuperf.baseline.history import slugs_holding
from pytest_gpuperf.baseline.layout import (
    heads_in,
    numbered_sessions,
    section_of,
    version_in,
)
from pytest_gpuperf.baseline.protocol import Repair, Store
from pytest_gpuperf.baseline.rows import KeyedBy, digest
from pytest_gpuperf.baseline.text import (
    BaselineFile,
    Damage,
    NamedBy,
    decode_stream,
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
from pytest_gpuperf.model.record import (
    STORE_VERSION,
    RecordKey,
    StoredRecord,
    module_of,
)
from pytest_gpuperf.model.url import before_project, database_url, masked, sqlite_file

if TYPE_CHECKING:
    from pytest_gpuperf.baseline.changes import Append, Drop, StoreChange
    from pytest_gpuperf.baseline.contents import SessionContent
    from pytest_gpuperf.baseline.database import DatabaseStore
    from pytest_gpuperf.baseline.engine import SqliteEngine
    from pytest_gpuperf.model.environment import Session

__all__ = [
    "UNSENT",
    "DirectoryStore",
    "Repair",
    "SingleFileStore",
    "Store",
    "file_name",
    "folder_name",
    "names_database",
    "open_database",
    "open_store",
    "places_of",
    "storing_command",
]

_SCHEME = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):(?://|$)")
_DATABASES = frozenset({"sqlite", "postgresql", "postgres"})
# SQLite writes its files next to the database.
_OF_SQLITE = ("", "-wal", "-shm", "-journal")
_PROJECT = re.compile(r"[A-Za-z0-9._-]{1,100}")
_KINDS = "name a directory, a .json file, sqlite:///FILE.db or postgresql://HOST/NAME"
# The folder of the sessions that a run could not store in a database.
UNSENT = ".gpuperf-unsent"
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
    Return the unique file name of a module.

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
    if _SCHEME.match(place) is not None:
        return open_database(place, root, create=create)
    if not place.strip() or "\0" in place:
        raise ConfigError(f"{place!r} is not the name of a store", remedy=_KINDS)
    path = Path(root) / Path(place).expanduser()
    kind = kind_of(path)
    single = path.suffix.lower() == ".json" and kind != "folder"
    url = database_url(place)
    if url is not None and kind != "folder":
        message = f"{masked(place)} is not the URL of a database"
        raise ConfigError(message, remedy=f"write {masked(url)}")
    before = "" if kind else before_project(place)
    if before:
        message = (
            f"{place} is not the URL of a database, and only databases have projects"
        )
        raise ConfigError(message, remedy=f"write {before}")
    if kind == "file" and not single:
        raise BaselineError(f"{path} is a file without the .json suffix", remedy=_KINDS)
    if kind is None and not create:
        raise missing(place, path)
    if single:
        return SingleFileStore(path)
    return DirectoryStore(path, lenient=lenient)


def missing(place: str, path: Path) -> BaselineMissingError:
    """Return the error about a missing store of files, with a similar name if there is one."""
    found = path.parent.glob(f"*{path.suffix}" if path.suffix else "*/*/*.json")
    names = sorted({p.relative_to(path.parent).parts[0] for p in found})
    remedy = f"create it: {storing_command(place)}"
    for close in get_close_matches(path.name, names, n=1):
        head, _, tail = place.rpartition(path.name)
        remedy = f"did you mean {head}{close}{tail}? Else {remedy}"
    # A URL in quotes is taken for a path.
    message = masked(f"there is no baseline at {path}")
    return BaselineMissingError(message, remedy=masked(remedy))


def open_database(
    place: str, root: str | Path, *, create: bool = False
) -> DatabaseStore:
    """
    Open the store of a URL.

    Args:
        place: The URL of a database, which may end with # and the name of a project.

        root: The folder that a relative file is resolved against.

        create: As for `open_store`.

    Raises:
        ConfigError: As for `open_store`.

        BaselineError: As for `open_store`.
    """
    name = place.partition(":")[0].lower()
    if name == "sqlite":
        return _in_sqlite(place, root, create=create)
    if name in {"postgresql", "postgres"}:
        return _in_postgresql(place, create=create)
    raise ConfigError(f"there are no {name} stores", remedy=_KINDS)


def names_database(place: str) -> bool:
    """Return True if the name of a store is the URL of a database."""
    scheme = _SCHEME.match(place)
    return scheme is not None and scheme["scheme"].lower() in _DATABASES


def places_of(place: str, root: str | Path) -> tuple[str, ...]:
    """
    Return the paths of a store's files and folders, or () for a store on a server.

    Args:
        place: The name of a store.

        root: The folder that a relative path is resolved against.

    Raises:
        ConfigError: The URL of the store names no file.
    """
    scheme = _SCHEME.match(place)
    if scheme is None:
        path = Path(root) / Path(place).expanduser()
        return (str(path), str(_lock_of(path)), str(_aside_of(path)))
    if scheme["scheme"].lower() != "sqlite":
        return ()
    path = _database_path(_url_and_project(place)[0], root)
    return tuple(f"{path}{suffix}" for suffix in _OF_SQLITE)


def _in_sqlite(place: str, root: str | Path, *, create: bool) -> DatabaseStore:
    # Both take time to import, and most runs name files.
    from pytest_gpuperf.baseline.database import DatabaseStore
    from pytest_gpuperf.baseline.engine import SqliteEngine

    url, project = _url_and_project(place)
    path = _database_path(url, root)
    if kind_of(path) == "folder":
        raise BaselineError(f"{path} is a folder", remedy=_KINDS)
    if not create and not path.exists():
        raise missing(place, path)

    def find() -> SqliteEngine | None:
        return SqliteEngine(path, create=False) if path.exists() else None

    create_file = partial(SqliteEngine, path, create=True)
    return DatabaseStore(place, find=find, create=create_file, project=project)


def _in_postgresql(place: str, *, create: bool) -> DatabaseStore:
    from pytest_gpuperf.baseline.database import DatabaseStore
    from pytest_gpuperf.baseline.postgresql import PostgresqlEngine

    url, project = _url_and_project(place)
    connect = partial(PostgresqlEngine, url)
    shown = masked(place)
    with contextlib.closing(connect()) as engine:
        if engine.schema() is None and not create:
            raise BaselineMissingError(
                f"there is no baseline at {shown}",
                remedy=f"create it: {storing_command(shown)}",
            )
    return DatabaseStore(shown, find=connect, create=connect, project=project)


def _url_and_project(place: str) -> tuple[str, str]:
    """
    Return the URL of a database and the name of a project behind it, or "".

    Raises:
        ConfigError: The name has other characters.
    """
    url, mark, project = place.rpartition("#")
    # A password in front of the host may have the character, too.
    if not mark or "@" in project or "/" in project:
        return place, ""
    if not _PROJECT.fullmatch(project):
        raise ConfigError(
            f"{project!r} is not the name of a project",
            remedy="name it with letters, digits, dots, dashes and underscores",
        )
    return url, project


def _database_path(place: str, root: str | Path) -> Path:
    """
    Return the file of a URL: three slashes for a path below the root, four for another.
    """
    name = sqlite_file(place)
    if name is None or not name.strip("/") or "\0" in name or "?" in name:
        raise ConfigError(
            f"{masked(place)!r} does not name a file",
            remedy="write sqlite:///perf.db, or sqlite:////srv/perf.db for a whole path",
        )
    return Path(root) / Path(name).expanduser()


def _lock_of(single: Path) -> Path:
    return single.with_name(f".{single.name}.lock")


def _aside_of(single: Path) -> Path:
    return single.with_suffix(f".{_ASIDE}.json")


class _StoreReader:
    """Reads the files of one store, and collects their damage."""

    def __init__(self, place: Path, keyed_by: KeyedBy) -> None:
        self._place = place
        self._keyed_by = keyed_by
        self._damage: dict[Damage, None] = {}
        # The measurements of each file, with the state of the file before it was read.
        self._names: dict[Path, tuple[object, dict[str, dict[RecordKey, NamedBy]]]] = {}
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
        metrics: Container[str] | None = None,
        quantiles: bool = True,
        whole: bool = False,
    ) -> dict[str, _Sessions]:
        """
        Return the sessions of a file, or {} if the file does not exist.

        Args:
            path: The file.

            section: The section to read, or None for all.

            test_ids: The tests to read, or None for all.

            metrics: The metrics to read, or None for all.

            quantiles: Whether to read the quantiles of samples.

            whole: Whether damage is an error. A file that is written back must be
                complete.
        """
        state = _state_of(path)
        stored = self._decoded(
            path,
            section=section,
            test_ids=test_ids,
            metrics=metrics,
            quantiles=quantiles,
        )
        if stored is None:
            return {}
        if section is None:
            self._names[path] = (state, stored.names)
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

    def check(self, path: Path) -> None:
        """Decode a file unless it begins and ends as the store writes it."""
        with opened(path) as stream:
            if stream is None:
                return
            version = version_in(stream)
        start = read_start(path)
        if version is None or section_of(start, keyed_by=self._keyed_by) is None:
            self.read(path, test_ids=())
        else:
            self.of_earlier_schema |= version < STORE_VERSION

    def names(self, path: Path) -> dict[str, dict[RecordKey, NamedBy]]:
        """Return the measurements of a file by section, or {} if the file does not exist."""
        state = _state_of(path)
        if state is None or self._names.get(path, (None,))[0] != state:
            # Its damage concerns those that need its values.
            stored = self._decoded(path, test_ids=())
            if stored is None:
                return {}
            self._names[path] = (state, stored.names)
        return self._names[path][1]

    def _decoded(
        self,
        path: Path,
        *,
        section: str | None = None,
        test_ids: Collection[str] | None = None,
        metrics: Container[str] | None = None,
        quantiles: bool = True,
    ) -> BaselineFile | None:
        """Return the content of a file, or None if the file does not exist."""
        stored = None
        with opened(path) as stream:
            if stream is not None and section is None:
                stored = decode_stream(
                    stream,
                    path=str(path),
                    keyed_by=self._keyed_by,
                    test_ids=test_ids,
                    metrics=metrics,
                    quantiles=quantiles,
                )
        if stored is not None:
            return stored
        text = read_whole(path)
        if text is None:
            return None
        # Of a damaged file, of another layout, or of a section of a single file.
        from pytest_gpuperf.baseline.whole_text import decode

        return decode(
            text,
            path=str(path),
            keyed_by=self._keyed_by,
            section=section,
            test_ids=test_ids,
            metrics=metrics,
            quantiles=quantiles,
        )

    def accept_edits(self, paths: Iterable[Path]) -> Repair:
        """Rewrite the damaged files without the damage. The caller must hold the lock."""
        from pytest_gpuperf.baseline.encoding import encode
        from pytest_gpuperf.baseline.whole_text import decode

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

    def heads(self) -> Collection[Session]:
        """Return the sessions of all slugs, in any order, without values."""
        heads: dict[str, Session] = {}
        for path in self._files():
            # A damaged file does not concern the other modules.
            with contextlib.suppress(BaselineError):
                text = read_whole(path) or b""
                heads |= {head.id: head.bare(()) for head in heads_in(text)}
        return heads.values()

    def contents(
        self, slug: str, test_ids: Collection[str] | None = None
    ) -> Sequence[SessionContent]:
        """Return the sessions that count, in any order, without values."""
        # Only the commands about sessions need it.
        from pytest_gpuperf.baseline.contents import contents_of, joined_contents

        # Each file by itself, because the values of a large folder take gigabytes.
        return joined_contents(
            contents_of(sessions)
            for sessions in self._by_file(slug, test_ids, quantiles=False)
        )

    def set_aside(self, slug: str, drops: Sequence[Drop]) -> None:
        """Move sessions from the store to the file of dropped sessions, for `put_back`."""
        from pytest_gpuperf.baseline.changes import Drop, PutBack

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
        from pytest_gpuperf.baseline.changes import Drop, PutBack

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

    def load(
        self,
        slug: str,
        test_ids: Collection[str] | None = None,
        *,
        metrics: Container[str] | None = None,
        quantiles: bool = True,
        past: bool = False,  # noqa: ARG002 - files have what counts, and no more
    ) -> Mapping[RecordKey, tuple[StoredRecord, ...]]:
        """Return the sessions by measurement, in order of arrival."""
        sessions: _Sessions = {}
        for of_file in self._by_file(
            slug, test_ids, metrics=metrics, quantiles=quantiles
        ):
            sessions.update(of_file)
        return sessions

    def write_all(self, changes: Mapping[str, Sequence[StoreChange]]) -> None:
        """Apply the changes of several slugs in order."""
        for slug, of_slug in changes.items():
            self.write(slug, of_slug)

    @abstractmethod
    def names(
        self, slug: str, modules: Collection[str] | None = None
    ) -> Mapping[RecordKey, NamedBy]:
        """Return the stored measurements, without sessions."""

    @abstractmethod
    def _by_file(
        self,
        slug: str,
        test_ids: Collection[str] | None,
        *,
        metrics: Container[str] | None = None,
        quantiles: bool = True,
    ) -> Iterator[_Sessions]:
        """Yield what `load` returns, a file at a time."""

    @abstractmethod
    def _files(self) -> Sequence[Path]:
        """Return the files of the store."""

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

    def check(self) -> None:
        """Look at the beginning and the end of every file."""
        for path in self._files():
            with self._left_out(path):
                self._reader.check(path)
                self._module_in(path)

    def modules(self, slug: str) -> tuple[str, ...]:
        """Return the modules of the tests that have sessions, sorted."""
        modules = set()
        for path, _ in self._paths(slug, None):
            with self._left_out(path):
                modules.add(self._module_in(path))
        return tuple(sorted(filter(None, modules)))

    def names(
        self, slug: str, modules: Collection[str] | None = None
    ) -> Mapping[RecordKey, NamedBy]:
        """Return the stored measurements, without sessions."""
        names: dict[RecordKey, NamedBy] = {}
        for path, _ in self._paths(slug, modules):
            with self._left_out(path):
                sections = self._reader.names(path)
                for module, of_module in sections.items():
                    _refuse_copy(path, module)
                    names.update(of_module)
        return names

    def other_slugs(
        self, slug: str, keys: Collection[RecordKey]
    ) -> Mapping[RecordKey, tuple[str, ...]]:
        """Return the other slugs that hold sessions of the given measurements."""
        own = folder_name(slug)
        candidates = [name for name in self.slugs() if name != own]
        if not candidates:  # The usual case.
            return {}
        modules = {module_of(key.test_id) for key in keys}
        return slugs_holding(keys, candidates, lambda name: self.names(name, modules))

    def write(self, slug: str, changes: Sequence[StoreChange]) -> None:
        """Apply changes in order, under the store's lock."""
        folder = self._path / folder_name(slug)
        if not changes:
            return
        # Most runs store nothing.
        from pytest_gpuperf.baseline.changes import arrived

        with self._locked():
            make_folder(folder)
            sweep(folder)
            numbers = self._aside().arrivals()
            for path in self._files():
                # A damaged file does not concern the other modules.
                with contextlib.suppress(BaselineError):
                    numbers |= numbered_sessions(read_whole(path) or b"")
            texts = self._changed(folder, arrived(changes, numbers))
            for name, content in _GIT_FILES.items():
                write_new(self._path / name, content)
            write_files(texts)

    def _changed(
        self, folder: Path, changes: Sequence[StoreChange]
    ) -> dict[Path, bytes]:
        from pytest_gpuperf.baseline.additions import with_sessions
        from pytest_gpuperf.baseline.changes import Append, modules_of

        added: dict[str, list[Append]] = {}
        for change in changes:
            if isinstance(change, Append):
                added.setdefault(module_of(change.key.test_id), []).append(change)
        others = [change for change in changes if not isinstance(change, Append)]
        whole = set(modules_of(others))
        texts: dict[Path, bytes] = {}
        for module in added.keys() - whole:
            path = folder / file_name(module)
            text = read_whole(path)
            new = None if text is None else with_sessions(text, module, added[module])
            if new is None:
                whole.add(module)
            else:
                texts[path] = new
        decoded = [c for c in changes if not whole.isdisjoint(modules_of([c]))]
        return texts | self._rewritten(folder, whole, decoded)

    def _rewritten(
        self, folder: Path, modules: Collection[str], changes: Sequence[StoreChange]
    ) -> dict[Path, bytes]:
        """Return the new texts of files, after all of their sessions are decoded."""
        from pytest_gpuperf.baseline.changes import applied
        from pytest_gpuperf.baseline.encoding import encode

        paths = {module: folder / file_name(module) for module in sorted(modules)}
        stored: _Sessions = {}
        for module, path in paths.items():
            stored |= self._read(path, whole=True).get(module, {})
        by_module: dict[str, _Sessions] = {module: {} for module in paths}
        for key, records in applied(stored, changes).items():
            by_module[module_of(key.test_id)][key] = records
        texts = {}
        for module, path in paths.items():
            text = encode({module: by_module[module]}, keyed_by="module")
            before = read_whole(path)
            if text != before and (by_module[module] or before is not None):
                texts[path] = text
        return texts

    def accept_edits(self) -> Repair:
        """Give edited lines a new checksum, and remove unreadable lines."""
        with self._locked():
            return self._reader.accept_edits(self._files())

    def _by_file(
        self,
        slug: str,
        test_ids: Collection[str] | None,
        *,
        metrics: Container[str] | None = None,
        quantiles: bool = True,
    ) -> Iterator[_Sessions]:
        by_module: dict[str, set[str]] | None = None
        if test_ids is not None:
            by_module = {}
            for test_id in test_ids:
                by_module.setdefault(module_of(test_id), set()).add(test_id)
        for path, module in self._paths(slug, by_module):
            selected = None if by_module is None else by_module[module]
            sections: dict[str, _Sessions] = {}
            with self._left_out(path):
                sections = self._read(
                    path, selected, metrics=metrics, quantiles=quantiles
                )
            yield from sections.values()

    def _aside(self) -> SingleFileStore:
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

    def _read(
        self,
        path: Path,
        test_ids: Collection[str] | None = None,
        *,
        metrics: Container[str] | None = None,
        quantiles: bool = True,
        whole: bool = False,
    ) -> dict[str, _Sessions]:
        """Return the sessions of the file of a module, or {} if the file does not exist."""
        sections = self._reader.read(
            path, test_ids=test_ids, metrics=metrics, quantiles=quantiles, whole=whole
        )
        for module in sections:
            _refuse_copy(path, module)
        return sections

    def _paths(
        self, slug: str, modules: Collection[str] | None
    ) -> list[tuple[Path, str]]:
        """Return the files of a slug, sorted, and their modules if these are given."""
        folder = self._path / folder_name(slug)
        if modules is None:
            return [(path, "") for path in listed(folder, "*.json")]
        return sorted((folder / file_name(module), module) for module in modules)

    def _module_in(self, path: Path) -> str | None:
        """Return the module of a file, or None of a file without sessions."""
        module = section_of(read_start(path), keyed_by=self.keyed_by)
        if module is None:
            module = next(iter(self._read(path, ())), None)
        if module is not None:
            _refuse_copy(path, module)
        return module

    @contextlib.contextmanager
    def _left_out(self, path: Path) -> Iterator[None]:
        """Leave out a file that cannot be read, if the store is lenient."""
        try:
            yield
        except (BaselineError, SchemaVersionError) as error:
            if not self._lenient:
                raise
            self._unread[path] = error


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

    def check(self) -> None:
        """Look at the beginning and the end of the file."""
        self._reader.check(self._path)

    def modules(self, slug: str) -> tuple[str, ...]:
        """Return the modules of the tests that have sessions, sorted."""
        return tuple(sorted({module_of(key.test_id) for key in self.names(slug)}))

    def names(
        self, slug: str, modules: Collection[str] | None = None
    ) -> Mapping[RecordKey, NamedBy]:
        """Return the stored measurements, without sessions."""
        names = self._reader.names(self._path).get(slug, {})
        if modules is None:
            return names
        return {key: names[key] for key in names if module_of(key.test_id) in modules}

    def other_slugs(
        self, slug: str, keys: Collection[RecordKey]
    ) -> Mapping[RecordKey, tuple[str, ...]]:
        """Return the other slugs that hold sessions of the given measurements."""
        held = self._reader.names(self._path)
        candidates = (name for name in sorted(held) if name != slug)
        return slugs_holding(keys, candidates, held.__getitem__)

    def write(self, slug: str, changes: Sequence[StoreChange]) -> None:
        """Apply changes in order, under the store's lock."""
        if not changes:
            return
        from pytest_gpuperf.baseline.changes import applied, arrived
        from pytest_gpuperf.baseline.encoding import encode

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
            return self._reader.accept_edits(self._files())

    def _by_file(
        self,
        slug: str,
        test_ids: Collection[str] | None,
        *,
        metrics: Container[str] | None = None,
        quantiles: bool = True,
    ) -> Iterator[_Sessions]:
        sections = self._reader.read(
            self._path,
            section=slug,
            test_ids=test_ids,
            metrics=metrics,
            quantiles=quantiles,
        )
        yield sections.get(slug, {})

    def _files(self) -> Sequence[Path]:
        return [self._path]

    def _aside(self) -> SingleFileStore:
        path = _aside_of(self._path)
        return SingleFileStore(path, lock_timeout_s=self._lock_timeout_s)

    def _locked(self) -> contextlib.AbstractContextManager[None]:
        """Return the lock of the file. All links to a file share one lock."""
        target = Path(os.path.realpath(self._path))
        lock = _lock_of(target)
        return locked(lock, timeout_s=self._lock_timeout_s)


def _state_of(path: Path) -> tuple[int, int, int] | None:
    """Return what changes when a file is written, or None without a file."""
    with contextlib.suppress(OSError):
        state = path.stat()
        return state.st_ino, state.st_size, state.st_mtime_ns
    return None


def _mangled(text: str) -> str:
    unique = digest(text.encode("utf-8", "surrogatepass"), length=16)
    return f"{slugged(text)[:_READABLE_LENGTH]}~{unique}"


def _refuse_copy(path: Path, module: str) -> None:
    """Raise if a file has the name of another module, because sessions would count twice."""
    if file_name(module) != path.name:
        raise BaselineCorruptError(
            f"the file holds {module!r}, which belongs in {file_name(module)}",
            remedy="rename it back, or remove it if it is a copy",
            path=str(path),
        )
