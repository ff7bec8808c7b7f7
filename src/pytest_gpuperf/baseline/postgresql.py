"""PostgreSQL, by psycopg."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from types import ModuleType
from typing import ClassVar

from pytest_gpuperf.baseline.engine import Rows, Statement, columns_of
from pytest_gpuperf.baseline.tables import CREATOR, SCHEMA, TABLES, definitions
from pytest_gpuperf.errors import BaselineError, ConfigError
from pytest_gpuperf.model.url import masked

# The tables have a schema of their own, unless the URL names another.
_SCHEMA = "gpuperf"
# The first name of a search path.
_SCHEMA_NAME = re.compile(r'\s*(?:"(?P<quoted>(?:[^"]|"")+)"|(?P<plain>[^\s,"]+))')
_TYPES = {
    "serial": "integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
    "id": "bigint",
    "number": "integer",
    "small": "smallint",
    "real": "double precision",
    "text": "text",
    "bytes": "bytea",
}
# The types of the columns of a row that is sent.
_SENT = {
    "id": "int8",
    "number": "int4",
    "small": "int2",
    "real": "float8",
    "text": "text",
    "bytes": "bytea",
}
_CONNECT_S = 10
_STATEMENT_MS = 60_000
# Rows that are sent in one statement.
_ROWS = 20_000
# This number of rows is copied, which takes both sides half the time of a statement.
_LEAST_COPIED = 20
_UNREACHABLE = (
    "start the server, or check its name, the user and the password (PGPASSWORD, "
    "~/.pgpass or a service); if it has too many clients, wait until some have ended"
)


def _library() -> ModuleType:
    try:
        importlib.import_module("psycopg.conninfo")
        return importlib.import_module("psycopg")
    except ImportError as error:
        raise ConfigError(
            f"a store in PostgreSQL needs psycopg ({error})",
            remedy="install it: pip install 'pytest-gpuperf[db]'",
        ) from error


class PostgresqlEngine:
    """
    A schema of a PostgreSQL database.

    Args:
        place: The URL. libpq reads it, and what it lacks from the environment.

    Raises:
        BaselineError: The server cannot be reached, or refuses the user.

        ConfigError: The URL cannot be read, or psycopg is not installed.
    """

    # The time of the server.
    time_statement: ClassVar[str] = (
        "SELECT extract(epoch FROM clock_timestamp())::float8"
    )

    def __init__(self, place: str) -> None:
        self._place = masked(place)
        self._psycopg = _library()
        try:
            self._settings = self._psycopg.conninfo.conninfo_to_dict(place)
        except self._psycopg.Error as error:
            raise ConfigError(
                f"{self._place} is not a URL of PostgreSQL",
                remedy="write postgresql://USER@HOST/DATABASE, and % of a name as %25",
            ) from error
        options = str(self._settings.get("options") or os.environ.get("PGOPTIONS", ""))
        with self._errors():
            settings = {
                "connect_timeout": _CONNECT_S,
                "application_name": CREATOR,
                **self._settings,
            }
            host = str(self._settings.get("host") or os.environ.get("PGHOST") or "/")
            service = self._settings.get("service") or os.environ.get("PGSERVICE")
            chosen = self._settings.get("sslmode") or os.environ.get("PGSSLMODE")
            # The certificate of another machine is checked.
            if not (chosen or service or all(map(_is_local, host.split(",")))):
                settings["sslmode"] = "verify-full"
            self._connection = self._psycopg.connect(autocommit=True, **settings)
            of_session = {"statement_timeout": str(_STATEMENT_MS)}
            if "search_path" not in options:
                of_session["search_path"] = _SCHEMA
            calls = ", ".join(["set_config(?, ?, false)"] * len(of_session))
            self.rows(f"SELECT {calls}", *chain.from_iterable(of_session.items()))

    def rows(self, statement: str, *arguments: object) -> Rows:
        """Return the rows that a statement selects."""
        with self._errors(), self._connection.cursor(binary=True) as cursor:
            cursor.execute(statement.replace("?", "%s"), arguments or None)
            rows: Rows = cursor.fetchall()
            return rows

    def rows_of_each(self, statements: Sequence[Statement]) -> list[Rows]:
        """Return the rows of several statements, which are sent together."""
        # libpq before version 14 sends one statement at a time.
        together = self._psycopg.Pipeline.is_supported()
        pipeline = self._connection.pipeline() if together else contextlib.nullcontext()
        with self._errors(), pipeline:
            cursors = [
                self._connection.cursor(binary=True).execute(
                    statement.replace("?", "%s"), arguments or None
                )
                for statement, arguments in statements
            ]
            return [cursor.fetchall() for cursor in cursors]

    def insert(self, table: str, rows: Iterable[Sequence[object]]) -> None:
        """Add rows to a table. Rows with an existing key are left out."""
        names = columns_of(table)
        types = [_SENT[TABLES[table][name].removesuffix("?")] for name in names]
        marks = ", ".join(f"%s::{kind}[]" for kind in types)
        statement = (
            f"INSERT INTO {table} ({', '.join(names)}) "  # noqa: S608 - names of this package
            f"SELECT * FROM unnest({marks}) ON CONFLICT DO NOTHING"
        )
        whole = [*rows]
        with self._errors(), self._connection.cursor() as cursor:
            if table in {"value", "detail"} and len(whole) >= _LEAST_COPIED:
                # Their key has the number of a session and a revision that only this
                # transaction adds.
                copied = f"COPY {table} ({', '.join(names)}) FROM STDIN (FORMAT BINARY)"
                with cursor.copy(copied) as copy:
                    copy.set_types(types)
                    for row in whole:
                        copy.write_row(row)
                return
            for start in range(0, len(whole), _ROWS):
                columns = zip(*whole[start : start + _ROWS], strict=True)
                cursor.execute(statement, [list(column) for column in columns])

    def delete(
        self, table: str, rows: Iterable[Sequence[object]], names: Sequence[str]
    ) -> None:
        """Remove rows from a table."""
        where = " AND ".join(f"{name} = %s" for name in names)
        with self._errors(), self._connection.cursor() as cursor:
            cursor.executemany(f"DELETE FROM {table} WHERE {where}", list(rows))  # noqa: S608 - names of this package

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Return a context that commits changes, or rolls back after an exception."""
        with self._errors(), self._connection.transaction():
            yield

    def schema(self) -> int | None:
        """Return the number of the tables, or None if there are none."""
        names = {
            name
            for (name,) in self.rows(
                "SELECT n FROM unnest(?::text[]) n WHERE to_regclass(n) IS NOT NULL",
                [*TABLES],
            )
        }
        if "meta" not in names:
            return None
        meta: dict[str, str] = {}
        if names >= TABLES.keys():
            meta = dict(self.rows("SELECT name, value FROM meta"))
        if meta.get("created_by") != CREATOR:
            raise BaselineError(
                f"{self._place} has tables of another program",
                remedy="name another database, or a schema: ?options=-csearch_path%3DNAME",
            )
        return int(meta["schema"])

    def create(self) -> None:
        """Create the tables, inside of a transaction."""
        with self._errors(), self._connection.cursor() as cursor:
            # Of several first runs, one creates the tables and the others wait.
            cursor.execute("SELECT pg_advisory_xact_lock(hashtext('pytest-gpuperf'))")
            # Only a statement that reads a table learns of schemas that others created.
            cursor.execute("SELECT count(*) FROM pg_catalog.pg_namespace")
            if self.schema() is not None:
                return
            cursor.execute("SELECT current_schema(), current_setting('search_path')")
            ((current, path),) = cursor.fetchall()
            if current is None:  # No schema of the path exists.
                name = _first_schema(path, user=self._connection.info.user)
                quoted = name.replace('"', '""')
                cursor.execute(f'CREATE SCHEMA IF NOT EXISTS "{quoted}"')
            for statement in definitions(_TYPES, clustered=""):
                cursor.execute(statement)
        self.insert("meta", [("schema", str(SCHEMA)), ("created_by", CREATOR)])

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn errors of psycopg into errors with a remedy and without a password."""
        try:
            yield
        except self._psycopg.Error as error:
            text = masked(str(error).strip().partition("\n")[0])
            for secret in (
                self._settings.get("password"),
                os.environ.get("PGPASSWORD"),
            ):
                if secret:
                    text = text.replace(str(secret), "***")
            # The chained error would show the text of the server with the password.
            raise BaselineError(
                f"{self._place}: {text}", remedy=self._remedy(error)
            ) from None

    def _remedy(self, error: Exception) -> str:
        errors = self._psycopg.errors
        if isinstance(error, errors.InsufficientPrivilege):
            return (
                "name a role that may do this: gpuperf_write stores, and the owner of "
                "the tables prunes"
            )
        if isinstance(error, errors.QueryCanceled | errors.LockNotAvailable):
            return "wait until the other runs have ended, then try again"
        if isinstance(error, errors.DiskFull):
            return (
                "free space on the server and store again; stored sessions are intact"
            )
        if isinstance(error, self._psycopg.OperationalError):
            return _UNREACHABLE
        return "name another store"


def _first_schema(path: str, *, user: str) -> str:
    """
    Return the first schema of a search path, as the server looks it up.

    Example:
        >>> _first_schema('"My-Schema", public', user="ci")
        'My-Schema'
    """
    found = _SCHEMA_NAME.match(path)
    if found is None:
        return _SCHEMA
    if found["quoted"] is None:
        return found["plain"].lower()
    name = found["quoted"].replace('""', '"')
    return user if name == "$user" else name


def _is_local(host: str) -> bool:
    return host.startswith(("/", "@", "127.")) or host in {"localhost", "::1", ""}
