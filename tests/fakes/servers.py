"""The places of stores, with a PostgreSQL server where Debian's package is installed."""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import shutil
import subprocess
import tempfile
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import pytest

# Before a test runs pytest in its own process, which forgets what that run imports:
# compiled modules cannot be imported twice.
psycopg: Any = None
with contextlib.suppress(ImportError):
    psycopg = importlib.import_module("psycopg")

PLACES = (".gpuperf", "baseline.json", "sqlite:///perf.db", "postgresql:")
SKIPPED = "needs psycopg and the programs of Debian's package postgresql"
_NUMBERS = count(1)


def programs() -> Path | None:
    """Return the folder of the server's programs, the newest, or None without them."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    named = shutil.which("initdb")
    if found:
        return found[-1].parent
    return Path(named).resolve().parent if named else None


def as_server(*command: str | Path) -> list[str]:
    """Return a command that runs as the user of the server: never as root."""
    words = [str(word) for word in command]
    return ["runuser", "-u", "postgres", "--", *words] if os.geteuid() == 0 else words


@cache
def server() -> Path:
    """
    Start a server that is stopped with the tests, and return the folder of its socket.

    It listens on no network.
    """
    programs_folder = programs()
    assert programs_folder is not None
    folder = Path(tempfile.mkdtemp(prefix="pg"))
    folder.chmod(0o777)
    data = folder / "data"
    making = as_server(
        *(programs_folder / "initdb", "-D", data, "-A", "scram-sha-256", "-U", "owner"),
        *("-E", "UTF8", "--no-locale", "--no-sync"),
        *("--pwfile", password_file(folder)),
    )
    subprocess.run(making, check=True, capture_output=True, timeout=120, cwd=folder)
    options = f"-c listen_addresses= -k {folder} -c fsync=off -c max_connections=40"
    control = programs_folder / "pg_ctl"
    starting = as_server(
        *(control, "-D", data, "-l", folder / "log", "-o", options, "-w", "start")
    )
    # The server keeps the streams of pg_ctl, so a pipe would never end.
    subprocess.run(
        starting, check=True, stdout=subprocess.DEVNULL, timeout=120, cwd=folder
    )

    def stop() -> None:
        stopping = as_server(control, "-D", data, "-m", "immediate", "stop")
        subprocess.run(stopping, check=False, capture_output=True, cwd=folder)
        shutil.rmtree(folder, ignore_errors=True)

    atexit.register(stop)
    return folder


PASSWORD = "s3cr3t-of-the-owner"  # noqa: S105 - of a server that lives for these tests


def password_file(folder: Path) -> Path:
    """Write the password of the owner for initdb."""
    path = folder / "password"
    path.write_text(PASSWORD)
    path.chmod(0o644)
    return path


def url(database: str, user: str = "owner", password: str = PASSWORD) -> str:
    """Return the URL of a database of the server."""
    return f"postgresql://{user}:{password}@/{database}?host={server()}"


def sql(statement: str, database: str = "postgres") -> list[tuple[object, ...]]:
    """Run a statement as the owner of the server."""
    with psycopg.connect(url(database), autocommit=True) as connection:
        cursor = connection.execute(statement)
        return [*cursor.fetchall()] if cursor.description else []


def new_database() -> str:
    """Return the URL of a new, empty database, or skip the test by name."""
    if psycopg is None or programs() is None:
        pytest.skip(SKIPPED)
    name = f"perf{next(_NUMBERS)}"
    sql(f"CREATE DATABASE {name}")
    return url(name)


def place_of(request: pytest.FixtureRequest) -> str:
    """Return the name of an empty store of the kind that a fixture asks for."""
    return new_database() if request.param == "postgresql:" else str(request.param)
