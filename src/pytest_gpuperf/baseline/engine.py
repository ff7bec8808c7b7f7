"""A database as the store uses it, and SQLite."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time  # noqa: TID251 - a store has no Clock, and a test waits for a real lock
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

from pytest_gpuperf.baseline.tables import (
    CREATOR,
    SCHEMA,
    TABLES,
    MetricRow,
    definitions,
    digest_id,
    original,
)
from pytest_gpuperf.errors import BaselineError
from pytest_gpuperf.model.record import RecordKey

# SQLite keeps a file whole by locks that these file systems do not have, or not always.
_NETWORK = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "lustre", "gpfs", "beegfs", "ceph"}
    | {"afs", "fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.glusterfs"}
)
_MOUNTS = Path("/proc/self/mounts")
_TYPES = {
    "serial": "INTEGER PRIMARY KEY AUTOINCREMENT",
    "id": "INTEGER",
    "number": "INTEGER",
    "small": "INTEGER",
    "real": "REAL",
    "text": "TEXT",
    "bytes": "BLOB",
}
_WAIT_S = 60.0
# SQLite's own wait is unfair, because its pauses grow: one of eight writers waited for
# 11 s. Here they shrink, so that those that wait longest see first that it is free.
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.02, 0.001
_SHRINKING_S = 1.0  # After this time, pauses are shortest.
_OLDEST = (3, 31)
# Ids in one statement.
_CHUNK = 500
METRICS = "SELECT id, name, unit, source, better FROM metric"


Rows = Sequence[tuple[Any, ...]]
# Its text and its arguments.
Statement = tuple[str, tuple[object, ...]]


class Engine(Protocol):
    """
    An open database.

    Statements are those of both databases, with a question mark for each argument.

    Attributes:
        time_statement: The statement that selects the time since the epoch [s].
    """

    time_statement: ClassVar[str]

    def rows(self, statement: str, *arguments: object) -> Rows:
        """Return the rows that a statement selects."""

    def rows_of_each(self, statements: Sequence[Statement]) -> list[Rows]:
        """Return the rows of several statements. A server gets them all at once."""

    def insert(self, table: str, rows: Iterable[Sequence[object]]) -> None:
        """
        Add rows to a table. Rows with an existing key are left out.

        Args:
            table: The table.

            rows: The columns of each row in order, without a serial number.
        """

    def delete(
        self, table: str, rows: Iterable[Sequence[object]], names: Sequence[str]
    ) -> None:
        """
        Remove rows from a table.

        Args:
            table: The table.

            rows: Some columns of each row, which together name it.

            names: The names of these columns.
        """

    def transaction(self) -> contextlib.AbstractContextManager[None]:
        """Return a context that commits changes, or rolls back after an exception."""

    def schema(self) -> int | None:
        """Return the number of the tables, or None if there are none."""

    def create(self) -> None:
        """Create the tables, inside of a transaction."""

    def close(self) -> None:
        """Close the database."""


def columns_of(table: str) -> list[str]:
    """Return the names of the columns that a client fills."""
    return [name for name, kind in TABLES[table].items() if kind != "serial"]


def kinds_in(engine: Engine) -> list[str]:
    """Return the kinds of machine that have sessions, sorted."""
    rows = engine.rows("SELECT DISTINCT kind FROM part")
    return sorted(original(kind) for (kind,) in rows)


def id_of_test(slug: str, key: RecordKey) -> int:
    """Return the id of a measurement on a kind of machine."""
    return digest_id("test", slug, key.test_id, key.name)


def chunks(ids: Iterable[int]) -> Iterator[str]:
    """Yield ids as lists for a statement, sorted."""
    ordered = sorted(ids)
    for start in range(0, len(ordered), _CHUNK):
        yield ",".join(map(str, ordered[start : start + _CHUNK]))


def id_statements(table: str, ids: Iterable[int]) -> list[Statement]:
    """Return the statements that select those ids which a table has."""
    return [
        (f"SELECT id FROM {table} WHERE id IN ({some})", ())  # noqa: S608 - numbers
        for some in chunks(ids)
    ]


def known_ids(engine: Engine, table: str, ids: Iterable[int]) -> set[int]:
    """Return the ids that a table has."""
    several = engine.rows_of_each(id_statements(table, ids))
    return {found for rows in several for (found,) in rows}


def metric_numbers(rows: Rows) -> dict[MetricRow, int]:
    """Return the number of each metric, from the rows of `METRICS`."""
    return {
        (name, unit, source, better): number
        for number, name, unit, source, better in rows
    }


class SqliteEngine:
    """
    A file of SQLite.

    Args:
        path: The file.

        create: Whether a missing file is created.

    Raises:
        BaselineError: It cannot be opened, or lies on a network file system.
    """

    # The time of this machine.
    time_statement: ClassVar[str] = "SELECT (julianday('now') - 2440587.5) * 86400.0"

    def __init__(self, path: Path, *, create: bool) -> None:
        self._path = path
        if sqlite3.sqlite_version_info < _OLDEST:
            raise BaselineError(
                f"this Python has SQLite {sqlite3.sqlite_version}, which is older than "
                f"{'.'.join(map(str, _OLDEST))}",
                remedy="name a folder, or use a newer Python",
            )
        system = file_system_of(path)
        if system in _NETWORK:
            raise BaselineError(
                f"{path} is on a network file system ({system}), where SQLite may lose data",
                remedy="name a folder, a file on a local disk, or postgresql://",
            )
        mode = "rwc" if create else "rw"
        if path.exists() and not _may_write(path):
            # SQLite cannot keep its lock file next to a file in a closed folder.
            mode = "ro" if _may_write(path.parent) else "ro&immutable=1"
        uri = f"{path.absolute().as_uri()}?mode={mode}"
        with self._errors():
            self._connection = sqlite3.connect(
                uri, uri=True, timeout=0.0, isolation_level=None
            )
            try:
                self._rows_of("PRAGMA synchronous=FULL")
                if create:
                    # Readers and a writer work at the same time.
                    self._rows_of("PRAGMA journal_mode=WAL")
            except BaseException:  # Of a file that is no database.
                self._connection.close()
                raise

    def rows(self, statement: str, *arguments: object) -> Rows:
        """Return the rows that a statement selects."""
        with self._errors():
            return self._rows_of(statement, arguments)

    def rows_of_each(self, statements: Sequence[Statement]) -> list[Rows]:
        """Return the rows of several statements."""
        return [self.rows(statement, *arguments) for statement, arguments in statements]

    def insert(self, table: str, rows: Iterable[Sequence[object]]) -> None:
        """Add rows to a table. Rows with an existing key are left out."""
        names = columns_of(table)
        marks = ",".join("?" * len(names))
        statement = (
            f"INSERT OR IGNORE INTO {table} ({','.join(names)}) VALUES ({marks})"  # noqa: S608 - names of this package
        )
        with self._errors():
            self._connection.executemany(statement, rows)

    def delete(
        self, table: str, rows: Iterable[Sequence[object]], names: Sequence[str]
    ) -> None:
        """Remove rows from a table."""
        where = " AND ".join(f"{name} = ?" for name in names)
        with self._errors():
            self._connection.executemany(f"DELETE FROM {table} WHERE {where}", rows)  # noqa: S608 - names of this package

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Return a context that commits changes, or rolls back after an exception."""
        with self._errors():
            self._rows_of("BEGIN IMMEDIATE")
        try:
            yield
            with self._errors():
                self._rows_of("COMMIT")
        except BaseException:
            # SQLite has ended the transaction itself if the disk is full.
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise

    def schema(self) -> int | None:
        """Return the number of the tables, or None if there are none."""
        with self._errors():
            names = {
                name
                for (name,) in self._rows_of(
                    "SELECT name FROM sqlite_master WHERE type = 'table'"
                )
                if not str(name).startswith("sqlite_")
            }
            if not names:
                return None
            meta: dict[str, str] = {}
            if names >= TABLES.keys():
                meta = dict(self._rows_of("SELECT name, value FROM meta"))
        if meta.get("created_by") != CREATOR:
            raise BaselineError(
                f"{self._path} is the database of another program",
                remedy="name a file that --gpuperf-update has written, or a new one",
            )
        return int(meta["schema"])

    def create(self) -> None:
        """Create the tables, inside of a transaction."""
        with self._errors():
            for statement in definitions(_TYPES, clustered=" WITHOUT ROWID"):
                self._connection.execute(statement)
        self.insert("meta", [("schema", str(SCHEMA)), ("created_by", CREATOR)])

    def close(self) -> None:
        """Close the database."""
        self._connection.close()

    def _rows_of(
        self, statement: str, arguments: Sequence[object] = ()
    ) -> list[tuple[Any, ...]]:
        """Return the rows of a statement. Locks of others are waited for."""
        began_s = time.monotonic()
        while True:
            try:
                return self._connection.execute(statement, arguments).fetchall()
            except sqlite3.OperationalError as error:
                waited_s = time.monotonic() - began_s
                if not _is_busy(error) or waited_s > _WAIT_S:
                    raise
            pause_s = _FIRST_PAUSE_S * (1 - waited_s / _SHRINKING_S)
            time.sleep(max(pause_s, _LAST_PAUSE_S))

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise BaselineError(
                f"{self._path}: {error}", remedy=_remedy(error)
            ) from error


def _may_write(path: Path) -> bool:
    return os.access(
        path, os.W_OK, effective_ids=os.access in os.supports_effective_ids
    )


def _is_busy(error: sqlite3.Error) -> bool:
    return "locked" in str(error)


def _remedy(error: sqlite3.Error) -> str:
    text = str(error)
    if _is_busy(error):
        return f"another run wrote for {_WAIT_S:g} s: wait until it has ended, then store again"
    if "full" in text or "I/O" in text:
        return "free space on the disk and store again; stored sessions are intact"
    if "readonly" in text or "unable to open" in text:
        return "change its permissions, or name another store"
    if "not a database" in text or "malformed" in text:
        return (
            "name a file that --gpuperf-update has written, or restore it from a copy"
        )
    return "name another store"


def file_system_of(path: Path, mounts: Path = _MOUNTS) -> str:
    """
    Return the type of the file system of a path, or "" if unknown.

    Args:
        path: The path, which need not exist.

        mounts: The system's list of mounted file systems.
    """
    try:
        text = mounts.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    place = Path(os.path.realpath(path))
    found = ("", "")
    for line in text.splitlines():
        _, mount, system, *_ = [*line.split(" "), "", "", ""]
        mount = mount.replace("\\040", " ")
        # Of several mounts at one place, the last is seen.
        if place.is_relative_to(mount or "/-") and len(mount) >= len(found[0]):
            found = (mount, system)
    return found[1]
