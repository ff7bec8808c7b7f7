"""The rules of databases: what SQLite and PostgreSQL do beyond every store."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import re
import sqlite3
import subprocess
import sys
import tempfile
import time
import tracemalloc
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fakes.privileges import no_privileges
from fakes.servers import PASSWORD, new_database, sql, url
from pytest_gpuperf.baseline import engine, tables
from pytest_gpuperf.baseline.changes import Append, Drop, Move, Restart
from pytest_gpuperf.baseline.protocol import Store
from pytest_gpuperf.baseline.store import open_database, open_store
from pytest_gpuperf.baseline.stored_record import shown_digits
from pytest_gpuperf.errors import BaselineCorruptError, BaselineError, ConfigError
from pytest_gpuperf.model.frozen import replace
from unit.baseline.samples import TEST, key, session, stored, value

SQLITE = "sqlite:///perf.db"
# Kept out: SQLite 3.31 and PostgreSQL 13 do not have them.
NEWER = re.compile(
    r"\b(?:RETURNING|STRICT|MERGE|MATERIALIZED|UPSERT|I{2}F|FORMAT\s*\(|GENERATED ALWAYS "
    r"AS \(|DROP COLUMN|RIGHT JOIN|FULL JOIN|ANY_VALUE|JSON_\w+|NULLS NOT DISTINCT)\b|->",
    re.IGNORECASE,
)


def test_no_statement_is_newer_than_the_oldest_database() -> None:
    """Debian 11 has SQLite 3.34, and servers are older than clients."""
    statements = [
        each
        for path in Path(str(tables.__file__)).parent.glob("*.py")
        for each in re.findall(
            r'["\'][^"\'\n]*\b(?:SELECT|INSERT|CREATE|COPY|DELETE|FROM|JOIN)\b.*',
            path.read_text(encoding="utf-8"),
        )
    ]

    assert len(statements) > 30
    assert not [s for s in statements if NEWER.search(s)]


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest) -> str:
    """Return the name of a database that does not exist yet."""
    return SQLITE if request.param == "sqlite" else new_database()


def test_history_outlives_an_accept(place: str, tmp_path: Path) -> None:
    """What was accepted away no longer counts, but is still read as history."""
    store = open_store(place, tmp_path, create=True)
    for number in range(1, 26):
        store.write("gpu", [Append(record=stored(number, "time", "memory"))])
    store.write("gpu", [Restart(record=stored(26))])

    assert [r.session.id for r in store.load("gpu")[key()]] == ["s0026"]
    whole = store.load("gpu", [key().test_id], metrics=["time"], past=True)[key()]
    assert [r.session.id for r in whole] == [f"s{n:04}" for n in range(1, 27)]
    assert {v.metric for r in whole for v in r.values} == {"time"}
    assert [r.values[0].series for r in whole] == [0] * 25 + [1]


def test_pruning_changes_no_comparison(place: str, tmp_path: Path) -> None:
    """What counts is loaded as before, and only the history is shorter."""
    store = open_database(place, tmp_path, create=True)
    other = "tests/test_other.py::test"
    for number in range(1, 41):
        quantiles = (1.0, 2.0, 3.0, 4.0, 5.0)
        record = stored(number, values=(value(quantiles=quantiles), value("memory")))
        store.write("gpu", [Append(record=record)])
        if number <= 12:
            store.write("gpu", [Append(record=stored(number, test_id=other))])
    store.write("gpu", [Restart(record=stored(41), metrics=frozenset({"time"}))])
    for number in range(42, 72):
        store.write("gpu", [Append(record=stored(number, "time", "memory"))])
    before, past = store.load("gpu"), store.load("gpu", past=True)

    counted = store.prune(20, dry_run=True)
    assert store.load("gpu", past=True) == past
    removed = store.prune(20, dry_run=False)
    again = store.prune(20, dry_run=False)

    assert removed == counted
    assert again == {"gpu": 0}
    assert store.load("gpu") == before
    left = store.load("gpu", past=True)
    assert left[key(other)] == past[key(other)]
    metrics = [v.metric for record in left[key()] for v in record.values]
    whole = [v.metric for record in past[key()] for v in record.values]
    # Of time, the oldest 3 and all since it was accepted; of memory, 3 and the newest 20.
    assert (metrics.count("time"), metrics.count("memory")) == (3 + 31, 23)
    assert len(whole) - len(metrics) == removed["gpu"]
    detailed = [r for r in left[key()] if any(v.quantiles for v in r.values)]
    assert [r.session.id for r in detailed] == ["s0001", "s0002", "s0003"]
    if place == SQLITE:
        with sqlite3.connect(tmp_path / "perf.db") as connection:
            assert [*connection.execute("SELECT COUNT(*) FROM detail")] == [(3,)]
        connection.close()


@pytest.mark.parametrize(
    "quantiles",
    [
        (9.505e-05, 9.702e-05, 9.8e-05, 9.996e-05, 1.039e-04),
        (0.0, 1234.0, 1.235e6, 1.235e6, 1.236e6),
        (-2.0, -1.0, 0.0, 0.001, 3.0),
        (1 / 3, 0.34, 0.35, 0.36, 0.37),
        (5e-324, 1e-300, 1.0, 1e300, 1.7e308),
    ],
)
def test_quantiles_come_back_as_they_were(
    place: str, tmp_path: Path, quantiles: tuple[float, ...]
) -> None:
    """With few digits, as a run stores them, with more, and far apart."""
    store = open_store(place, tmp_path, create=True)
    record = stored(1, values=(value(quantiles=quantiles), value("memory")))
    store.write("gpu", [Append(record=record)])

    ((loaded,),) = store.load("gpu").values()
    ((gated,),) = store.load("gpu", quantiles=False).values()

    found = {v.metric: v.quantiles for v in loaded.values}
    assert found == {"time": quantiles, "memory": ()}
    assert not any(v.quantiles for v in gated.values)


def test_quantiles_of_few_digits_take_few_bytes() -> None:
    """Five take 14 bytes, and not the 46 of five floats; those of old stores are read."""
    quantiles = tuple(
        shown_digits(1.0271e-4 * q) for q in (0.97, 0.99, 1.0, 1.02, 1.06)
    )
    record = stored(1, values=(value(quantiles=quantiles),))
    numbers = {tables.metric_row(record.values[0]): 1}

    content = tables.detail_bytes(record, numbers, record.soft_facts)

    assert content is not None
    assert len(content) <= 20
    old = b"\0" + msgspec.msgpack.encode({"quantiles": {1: quantiles}})
    for each in (content, old):
        assert tables.quantiles_of(tables.detail_of(each)) == {1: quantiles}


def names_of(store: Store, *, past: bool = False, test: str = TEST) -> list[str]:
    """Return the ids of the sessions of a test, in order of arrival."""
    loaded = store.load("gpu", [test], past=past)
    return [record.session.id for record in loaded.get(key(test), ())]


def between(*ends: tuple[int, int]) -> list[str]:
    """Return the ids of sessions of some ranges, with both ends."""
    return [f"s{n:04}" for first, last in ends for n in range(first, last + 1)]


@pytest.mark.parametrize("test_count", [1, 1_001])
def test_dropped_sessions_take_no_place(
    place: str, tmp_path: Path, test_count: int
) -> None:
    """The newest 20 and the oldest 3 are those that were not dropped."""
    store = open_store(place, tmp_path, create=True)
    others = [f"t.py::t[{n}]" for n in range(test_count - 1)]
    for number in range(1, 51):
        changes = [Append(record=stored(number))]
        changes += [Append(record=stored(number, test_id=test)) for test in others]
        store.write("gpu", changes)
    gone = frozenset(between((26, 50), (1, 1)))
    store.write("gpu", [Drop(key=key(), session_ids=gone)])

    kept = between((2, 4), (6, 25))
    assert names_of(store) == kept
    assert [r.session.id for r in store.load("gpu")[key()]] == kept
    assert names_of(store, past=True) == between((2, 25))
    if others:
        assert names_of(store, test=others[-1]) == between((1, 3), (31, 50))


def test_pruning_keeps_what_counts(place: str, tmp_path: Path) -> None:
    """As many of the sessions that were dropped stay as of the others."""
    store = open_database(place, tmp_path, create=True)
    for number in range(1, 131):
        store.write("gpu", [Append(record=stored(number))])
    gone = frozenset(between((66, 130)))
    store.write("gpu", [Drop(key=key(), session_ids=gone)])
    before = store.load("gpu")

    removed = store.prune(60, dry_run=False)

    # 65 of each: the newest 60 and the oldest 3 stay.
    assert removed == {"gpu": 4}
    assert store.load("gpu") == before
    assert names_of(store, past=True) == between((1, 3), (6, 65))


@pytest.mark.parametrize("past", [False, True])
def test_a_session_stored_often_has_its_last_values(
    place: str, tmp_path: Path, past: bool
) -> None:
    """It takes one place, and what its last record lacks is gone."""
    store = open_database(place, tmp_path, create=True)
    for number in range(1, 31):
        store.write("gpu", [Append(record=stored(number, "time", "memory"))])
    for again in range(100, 125):
        record = replace(stored(30), values=(value("time", float(again)),))
        store.write("gpu", [Append(record=record)])

    loaded = store.load("gpu", past=past)[key()]
    assert [r.session.id for r in loaded] == (
        between((1, 30)) if past else between((1, 3), (11, 30))
    )
    assert [v.run_values for v in loaded[-1].values] == [(124.0,)]
    of_memory = store.load("gpu", metrics=["memory"], past=past)[key()]
    assert of_memory[-1].session.id == "s0029"
    # 25 values of time and one of memory were replaced.
    assert store.prune(60, dry_run=False) == {"gpu": 26}
    assert store.load("gpu", past=past)[key()] == loaded


def test_a_rename_keeps_the_history(place: str, tmp_path: Path) -> None:
    """All sessions move, also those before a level was accepted, and back again."""
    store = open_store(place, tmp_path, create=True)
    other = "tests/test_other.py::test"
    for number in range(1, 31):
        store.write("gpu", [Append(record=stored(number, "time", "memory"))])
    accepted = Restart(record=stored(31, "time"), metrics=frozenset({"time"}))
    store.write("gpu", [accepted])
    for number in range(32, 61):
        store.write("gpu", [Append(record=stored(number, "time", "memory"))])
    before = [store.load("gpu", past=past)[key()] for past in (False, True)]

    store.write("gpu", [Move(key=key(other), old=key(), renamed=True)])
    moved = [store.load("gpu", past=past) for past in (False, True)]
    store.write("gpu", [Move(key=key(), old=key(other), renamed=True)])
    back = [store.load("gpu", past=past) for past in (False, True)]

    for found, name in ((moved, other), (back, TEST)):
        assert [[*each] for each in found] == [[key(name)]] * 2
        assert [
            tuple(replace(record, key=key()) for record in each[key(name)])
            for each in found
        ] == before
    assert len(before[1]) == 60


def test_what_is_set_aside_is_whole(place: str, tmp_path: Path) -> None:
    """Older sessions do not count in place of a removed test's, and all come back."""
    store = open_store(place, tmp_path, create=True)
    for number in range(1, 61):
        store.write("gpu", [Append(record=stored(number))])
    counting = names_of(store)

    store.set_aside("gpu", [Drop(key=key(), session_ids=frozenset(counting))])
    assert names_of(store) == names_of(store, past=True) == []
    assert len(store.aside()["gpu"][key()]) == 60
    store.put_back("gpu", [key()])

    assert names_of(store) == counting
    assert names_of(store, past=True) == between((1, 60))


def test_a_newer_schema_is_refused(place: str, tmp_path: Path) -> None:
    """A store of a later version is not read with the wrong tables."""
    store = open_store(place, tmp_path, create=True)
    store.write("gpu", [Append(record=stored(1))])
    if place == SQLITE:
        with sqlite3.connect(tmp_path / "perf.db") as connection:
            connection.execute("UPDATE meta SET value = '99' WHERE name = 'schema'")
        connection.close()
    else:
        sql(
            "UPDATE gpuperf.meta SET value = '99' WHERE name = 'schema'",
            database_of(place),
        )

    with pytest.raises(BaselineError, match="tables of version 99") as caught:
        open_store(place, tmp_path).load("gpu")
    assert caught.value.remedy == "update pytest-gpuperf"


def test_another_programs_database_is_refused(place: str, tmp_path: Path) -> None:
    """Nothing is added to a database that has tables of its own."""
    if place == SQLITE:
        with sqlite3.connect(tmp_path / "perf.db") as connection:
            connection.execute("CREATE TABLE meta (name TEXT)")
        connection.close()
    else:
        sql("CREATE SCHEMA gpuperf", database_of(place))
        sql("CREATE TABLE gpuperf.meta (name text)", database_of(place))

    with pytest.raises(BaselineError, match="another program"):
        open_store(place, tmp_path, create=True).write(
            "gpu", [Append(record=stored(1))]
        )


def database_of(place: str) -> str:
    """Return the name of the database of a URL."""
    return place.partition("@/")[2].partition("?")[0]


WRITER = """
import sys
from pathlib import Path
from pytest_gpuperf.baseline.changes import Append
from pytest_gpuperf.baseline.store import open_store
from unit.baseline.samples import session, stored
place, root, writer, count = sys.argv[1:]
store = open_store(place, root, create=True)
for number in range(int(count)):
    head = session(number, id=f"{writer}-{number}")
    changes = [
        Append(record=stored(number, "time", "memory", test_id=f"t.py::t[{t}]", session=head))
        for t in range(20)
    ]
    store.write_all({"gpu": changes, "host": changes[:5]})
    print(head.id, flush=True)
"""


def writer(place: str, root: Path, name: str, count: int) -> subprocess.Popen[str]:
    """Start a process that stores sessions, and prints the id of each when it is stored."""
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, place, str(root), name, str(count)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def assert_whole(place: str, root: Path, said: set[str]) -> int:
    """Check that each session has all of its values, and return how many there are."""
    store = open_store(place, root)
    counts: dict[str, int] = {}
    for kind in ("gpu", "host"):
        for records in store.load(kind, past=True).values():
            for record in records:
                assert len(record.values) == 2
                counts[record.session.id] = counts.get(record.session.id, 0) + 1
    assert said <= counts.keys()
    assert set(counts.values()) <= {25}
    return len(counts)


def test_writers_lose_nothing(place: str, tmp_path: Path) -> None:
    """Sessions that several processes store at once are all there, and whole."""
    processes = [writer(place, tmp_path, f"w{n}", 15) for n in range(4)]
    said = {
        line.strip()
        for each in processes
        for line in each.communicate()[0].splitlines()
    }

    assert [each.returncode for each in processes] == [0] * 4
    assert assert_whole(place, tmp_path, said) == len(said) == 60


def test_a_killed_writer_leaves_whole_sessions(place: str, tmp_path: Path) -> None:
    """A session is stored as a whole or not at all, whenever its process is killed."""
    open_store(place, tmp_path, create=True).write("gpu", [])
    said: set[str] = set()
    for number in range(4):
        process = writer(place, tmp_path, f"k{number}", 1_000)
        assert process.stdout is not None
        said.add(process.stdout.readline().strip())
        time.sleep(0.01 * number)
        process.kill()
        said |= {line for line in process.communicate()[0].split("\n") if line}

    # The last line may have been cut.
    whole = {line for line in said if re.fullmatch(r"k\d-\d+", line)}
    assert assert_whole(place, tmp_path, {w for w in whole if w.endswith("-0")}) >= 4


@pytest.mark.parametrize(
    ("system", "mount"),
    [("nfs4", "/"), ("fuse.sshfs", "/data"), ("lustre", "/data/with\\040blank")],
)
def test_a_network_file_system_is_known(
    tmp_path: Path, system: str, mount: str
) -> None:
    """The innermost mount decides."""
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/a / ext4 rw 0 0\nserver:/x {mount} {system} rw 0 0\n")
    place = Path(mount.replace("\\040", " ")) / "new" / "perf.db"

    assert engine.file_system_of(place, mounts) == system
    assert engine.file_system_of(Path("/datax/perf.db"), mounts) == (
        "nfs4" if mount == "/" else "ext4"
    )
    assert engine.file_system_of(place, tmp_path / "absent") == ""


def test_sqlite_on_a_network_file_system_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite's locks do not hold there."""
    monkeypatch.setattr(engine, "file_system_of", lambda path: "nfs4")

    with pytest.raises(BaselineError, match=r"network file system \(nfs4\)"):
        open_store(SQLITE, tmp_path, create=True).write(
            "gpu", [Append(record=stored(1))]
        )


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    """The error has the file and a remedy."""
    (tmp_path / "perf.db").write_text("x" * 5_000)

    with pytest.raises(BaselineError, match=r"perf\.db.*not a database"):
        open_store(SQLITE, tmp_path).slugs()


def test_a_file_that_cannot_be_written_is_read() -> None:
    """A snapshot may be read-only; storing into it fails by name."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        open_store(SQLITE, folder, create=True).write("gpu", [Append(record=stored(1))])
        (folder / "perf.db").chmod(0o444)
        folder.chmod(0o555)
        with no_privileges():
            store = open_store(SQLITE, folder)
            assert key() in store.load("gpu")
            with pytest.raises(BaselineError, match="readonly"):
                store.write("gpu", [Append(record=stored(2))])
        folder.chmod(0o755)


# ---------------------------------------------------------------- PostgreSQL


@pytest.mark.parametrize("password", [PASSWORD, "wr0ng-s3cr3t"])
def test_a_password_is_in_no_error(password: str) -> None:
    """Whether it is right or wrong, it is not shown."""
    right = new_database()
    place = url(database_of(right), password=password)
    if password == PASSWORD:
        place = place.replace(database_of(right), "absent")

    with pytest.raises(BaselineError) as caught:
        open_store(place, ".", create=True)

    error: BaseException | None = caught.value
    while error is not None:
        assert password not in f"{error!r} {error}"
        error = error.__cause__
    assert "***" in caught.value.message
    assert caught.value.remedy


@pytest.mark.parametrize(
    "place",
    [
        "postgresql:me:s3cr3t@host/perf",
        "'postgresql://me:s3cr3t@host/perf'",
        "postgres://me:s3cr3t",
        "sqlite://me:s3cr3t@host/perf.db",
    ],
)
def test_a_password_is_in_no_error_about_a_mistyped_url(
    place: str, tmp_path: Path
) -> None:
    """Whichever kind of store the name was taken for."""
    pytest.importorskip("psycopg")
    with pytest.raises((BaselineError, ConfigError)) as caught:
        open_store(place, tmp_path)

    assert "s3cr3t" not in f"{caught.value}"
    assert "***" in caught.value.message


def test_an_unreachable_server_is_named(tmp_path: Path) -> None:
    """The error has the server and a remedy."""
    pytest.importorskip("psycopg")
    with pytest.raises(BaselineError, match="connection") as caught:
        open_store(f"postgresql:///d?host={tmp_path}", ".")
    assert "start the server" in caught.value.remedy


def test_psycopg_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The remedy installs the extra."""
    monkeypatch.setitem(sys.modules, "psycopg", None)

    with pytest.raises(ConfigError) as caught:
        open_store("postgresql://h/d", ".")
    assert "pytest-gpuperf[db]" in caught.value.remedy


@pytest.mark.parametrize(
    ("place", "mode"),
    [
        ("postgresql://db.example/perf", "verify-full"),
        ("postgresql://a,localhost/perf", "verify-full"),
        ("postgresql://db.example/perf?sslmode=require", "require"),
        ("postgresql://localhost/perf", None),
        ("postgresql:///perf?host=/run/postgresql", None),
        ("postgresql:///perf?service=ci", None),
    ],
)
def test_another_machine_must_prove_itself(
    place: str, mode: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a word in the URL, the certificate of another machine is checked."""
    psycopg = pytest.importorskip("psycopg")
    seen: dict[str, object] = {}

    def connect(**given: object) -> None:
        seen.update(given)
        raise psycopg.OperationalError("no")

    monkeypatch.setattr(psycopg, "connect", connect)
    with pytest.raises(BaselineError):
        open_store(place, ".")

    assert seen.get("sslmode") == mode
    assert seen["application_name"] == "pytest-gpuperf"
    assert seen["connect_timeout"] == 10


def test_a_role_that_only_adds_can_store() -> None:
    """Storing, accepting and dropping need SELECT and INSERT; nothing else is allowed."""
    owner = new_database()
    name = database_of(owner)
    open_store(owner, ".", create=True).write("gpu", [Append(record=stored(1))])
    for role, rights in ((f"w_{name}", "SELECT, INSERT"), (f"r_{name}", "SELECT")):
        sql(f"CREATE ROLE {role} LOGIN PASSWORD 'pw'")
        sql(f"GRANT USAGE ON SCHEMA gpuperf TO {role}", name)
        sql(f"GRANT {rights} ON ALL TABLES IN SCHEMA gpuperf TO {role}", name)

    writing = open_store(url(name, f"w_{name}", "pw"), ".")
    changes = [Append(record=stored(n, session=session(n))) for n in range(2, 5)]
    writing.write("gpu", [*changes, Restart(record=stored(5))])
    reading = open_store(url(name, f"r_{name}", "pw"), ".")
    assert [r.session.id for r in reading.load("gpu")[key()]] == ["s0005"]

    with pytest.raises(BaselineError, match="permission denied") as caught:
        reading.write("gpu", [Append(record=stored(6))])
    assert "gpuperf_write" in caught.value.remedy
    many = [stored(n, test_id="tests/test_b.py::test") for n in range(10, 40)]
    writing.write("gpu", [Append(record=record) for record in many])
    with pytest.raises(BaselineError, match="permission denied") as pruning:
        open_database(url(name, f"w_{name}", "pw"), ".").prune(20, dry_run=False)
    assert "the owner of the tables prunes" in pruning.value.remedy
    psycopg = pytest.importorskip("psycopg")
    for statement in (
        "DROP TABLE value",
        "DELETE FROM value",
        "UPDATE value SET value = 0",
    ):
        with psycopg.connect(url(name, f"w_{name}", "pw")) as connection:
            connection.execute("SET search_path TO gpuperf")
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement)


def test_a_session_takes_a_server_few_statements(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As many for several machines as for one, because each costs more than its rows."""
    psycopg = pytest.importorskip("psycopg")
    usual: Any = psycopg.Cursor
    sent: list[str] = []

    class Counting(usual):  # type: ignore[misc] # the base is Any
        def execute(self, query: str, *arguments: object, **named: object) -> object:
            sent.append(query)
            return super().execute(query, *arguments, **named)

        def copy(self, statement: str, *arguments: object, **named: object) -> object:
            sent.append(statement)
            return super().copy(statement, *arguments, **named)

    connect = functools.partial(psycopg.connect, cursor_factory=Counting)
    place = new_database()
    tests = [f"t.py::t[{number}]" for number in range(40)]
    store = open_store(place, ".", create=True)
    store.write("gpu", [Append(record=stored(1, test_id=each)) for each in tests])
    store.write("host", [Append(record=stored(1, test_id=each)) for each in tests])
    monkeypatch.setattr(psycopg, "connect", connect)
    counts = []
    for number, slugs in enumerate((["gpu"], ["gpu", "host"]), start=2):
        sent.clear()
        changes = [Append(record=stored(number, test_id=each)) for each in tests]
        store.write_all(dict.fromkeys(slugs, changes))
        counts.append(len(sent))
        assert [s.split()[:2] for s in sent[-2:]] == [
            ["INSERT", "INTO"],
            ["COPY", "value"],
        ]

    # Settings, two for the tables, five looks, the session, its number, its parts, values.
    assert counts == [12, 12]


def with_many(place: str, root: Path, *, sessions: int) -> list[str]:
    """Store sessions of more tests than are looked up one by one, and return these."""
    tests = [f"tests/test_m.py::test[{n}]" for n in range(1_100)]
    store = open_database(place, root, create=True)
    for number in range(1, sessions + 1):
        store.write(
            "gpu",
            [
                Append(record=stored(number, test_id=t, soft_facts={}, facts={}))
                for t in tests
            ],
        )
    return tests


def test_many_sessions_take_little_memory(place: str, tmp_path: Path) -> None:
    """They are decoded when they are asked for, as often as that is."""
    tests = with_many(place, tmp_path, sessions=10)
    store = open_store(place, tmp_path)
    store.load("gpu", tests[:1])  # What is imported and compiled once.
    gc.collect()
    tracemalloc.start()
    try:
        loaded = store.load("gpu", tests, metrics=["time"])
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    # 2,000,000 values in 0.8 GB are 400 bytes each, with all that a process has besides.
    assert held_bytes / (10 * len(tests)) < 300
    one = loaded[key(tests[7])]
    assert [r.session.id for r in one] == between((1, 10))
    assert one == loaded[key(tests[7])] == store.load("gpu", tests[7:8])[key(tests[7])]
    assert len(loaded) == len([*loaded]) == len(tests)


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE value SET rest = x'c1'",
        "UPDATE value SET value = 9e999",
        # Arrays of one array, as the value of a field of a later version.
        f"UPDATE value SET rest = x'81a17a{'91' * 10_000}'",  # noqa: S608 - a constant
        "INSERT INTO detail SELECT session, test, setting, revision, x'01ff' FROM value",
    ],
)
def test_a_damaged_row_of_many_is_found_before_it_is_used(
    tmp_path: Path, damage: str
) -> None:
    """A run ends before its first test, not when one is judged."""
    tests = with_many(SQLITE, tmp_path, sessions=1)
    with contextlib.closing(sqlite3.connect(tmp_path / "perf.db")) as connection:
        connection.execute(damage)
        connection.commit()

    with pytest.raises(BaselineCorruptError, match="a row cannot be read"):
        open_store(SQLITE, tmp_path).load("gpu", tests)


def test_a_run_is_found_without_the_others(place: str, tmp_path: Path) -> None:
    """With its measurements, as far as they were not dropped."""
    store = open_database(place, tmp_path, create=True)
    other, again = "test_a.py::test_a", "test_a.py::test_b"
    for number in range(1, 4):
        head = session(number, run="7" if number > 1 else "6", shard=f"{number}/3")
        changes = [
            Append(record=stored(number, "time", "memory", test_id=t, session=head))
            for t in (TEST, other, again)[:number]
        ]
        store.write("gpu", changes)
    gone = Drop(key=key(other), session_ids=frozenset({"s0003"}))
    store.write("gpu", [gone])

    found = store.of_run("gpu", "7")
    assert {s.id: keys for s, keys in found.items()} == {
        "s0002": {key(), key(other)},
        "s0003": {key(), key(again)},
    }
    assert {s.shard for s in found} == {"2/3", "3/3"}
    assert store.of_run("gpu", "5") == store.of_run("host", "7") == {}


class Waiting:
    """A clock that stands still between pauses, and frees a lock after some time."""

    def __init__(self, holder: sqlite3.Connection, *, free_s: float) -> None:
        self.now_s = 0.0
        self.pauses_s: list[float] = []
        self._holder, self._free_s = holder, free_s

    def monotonic(self) -> float:
        """Return the time."""
        return self.now_s

    def sleep(self, pause_s: float) -> None:
        """Let a pause go by, and every hundredth one take a second, as on a busy machine."""
        self.pauses_s.append(pause_s)
        self.now_s += 1.0 if len(self.pauses_s) % 100 == 0 else pause_s
        if self.now_s >= self._free_s:
            self._holder.rollback()


def test_who_waits_longer_looks_more_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sees within a millisecond that the lock is free; after a minute it gives up."""
    store = open_store(SQLITE, tmp_path, create=True)
    store.write("gpu", [Append(record=stored(1))])
    with contextlib.closing(sqlite3.connect(tmp_path / "perf.db")) as holder:
        holder.isolation_level = None
        holder.execute("BEGIN IMMEDIATE")
        waiting = Waiting(holder, free_s=2.0)
        monkeypatch.setattr(engine, "time", waiting)
        store.write("gpu", [Append(record=stored(2))])

        assert names_of(store) == ["s0001", "s0002"]
        assert waiting.pauses_s == sorted(waiting.pauses_s, reverse=True)
        assert (waiting.pauses_s[0], waiting.pauses_s[-1]) == (0.02, 0.001)

        holder.execute("BEGIN IMMEDIATE")
        monkeypatch.setattr(engine, "time", Waiting(holder, free_s=1e9))
        with pytest.raises(BaselineError, match="locked") as refused:
            store.write("gpu", [Append(record=stored(3))])
        holder.rollback()

    assert "another run wrote for 60 s" in str(refused.value.remedy)
    assert names_of(store) == ["s0001", "s0002"]
