"""A store in a database: rows are added, and never changed or removed."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from pytest_gpuperf.baseline.history import (
    OLDEST_LIMIT,
    SESSION_LIMIT,
    Append,
    Drop,
    Move,
    PutBack,
    Restart,
    StoreChange,
    by_key,
)
from pytest_gpuperf.baseline.protocol import Repair
from pytest_gpuperf.baseline.tables import (
    SCHEMA,
    UNREADABLE,
    MetricRow,
    company_of,
    detail_bytes,
    detail_of,
    digest_id,
    json_text,
    metric_row,
    original,
    plain,
    record_of,
    session_of,
    session_text,
    setting_of,
    setting_text,
    value_columns,
    value_of,
)
from pytest_gpuperf.baseline.text import Damage
from pytest_gpuperf.errors import (
    BaselineCorruptError,
    BaselineError,
    GpuPerfError,
)
from pytest_gpuperf.model.environment import Session
from pytest_gpuperf.model.frozen import Frozen, collector_paused, replace
from pytest_gpuperf.model.record import RecordKey, SessionValue, StoredRecord

if TYPE_CHECKING:
    from pytest_gpuperf.baseline.engine import Engine

# With fewer tests, each is looked up; otherwise whole sessions are read.
_FEW_TESTS = 1_000
# Ids in one statement.
_CHUNK = 500
_READ_ONLY = (
    "a database cannot be edited, so there is nothing to accept",
    "name a run: gpuperf baseline accept STORE RUN.json",
)

_Series = dict[RecordKey, tuple[StoredRecord, ...]]


class Connect(Protocol):
    """Opens a database."""

    def __call__(self, *, create: bool) -> Engine | None:
        """
        Return the open database, or None if it does not exist and must not be created.
        """


class DatabaseStore:
    """
    The sessions in a database.

    The database is open only during a call, so that nothing is held while tests are
    timed.

    Args:
        place: The name of the store for messages, without a password.

        connect: Opens the database.
    """

    reads_by_test = True

    def __init__(self, place: str, connect: Connect) -> None:
        self._place = place
        self._connect = connect

    @property
    def damage(self) -> tuple[Damage, ...]:
        """No lines: the database checks its rows."""
        return ()

    @property
    def of_earlier_schema(self) -> bool:
        """False: the tables have one version."""
        return False

    @property
    def unread(self) -> tuple[GpuPerfError, ...]:
        """No files."""
        return ()

    def slugs(self) -> tuple[str, ...]:
        """Return the slugs that have sessions, sorted."""
        with self._reading() as engine:
            if engine is None:
                return ()
            return tuple(sorted(kind for kind in _kinds(engine)))

    def names(self, slug: str) -> Mapping[RecordKey, bool]:
        """Return the measurements of a slug, and whether a pytest id is the key."""
        with self._reading() as engine:
            if engine is None:
                return {}
            rows = engine.rows(
                "SELECT node, name FROM test WHERE kind = ?", plain(slug)
            )
        keys = (RecordKey(test_id=original(t), name=original(n)) for t, n in rows)
        return dict.fromkeys(sorted(keys), False)

    def load(
        self, slug: str, test_ids: Collection[str] | None = None
    ) -> Mapping[RecordKey, tuple[StoredRecord, ...]]:
        """Return the sessions by measurement, in order of arrival."""
        return self._selected(slug, test_ids, metrics=None, newest=True)

    def history(
        self,
        slug: str,
        test_ids: Collection[str] | None = None,
        *,
        metrics: Collection[str] | None = None,
    ) -> Mapping[RecordKey, tuple[StoredRecord, ...]]:
        """Return all sessions, also those before a level was accepted."""
        return self._selected(slug, test_ids, metrics=metrics, newest=False)

    def other_slugs(
        self, slug: str, keys: Collection[RecordKey]
    ) -> Mapping[RecordKey, tuple[str, ...]]:
        """Return the other slugs that hold sessions of the given measurements."""
        with self._reading() as engine:
            if engine is None:
                return {}
            kinds = [kind for kind in _kinds(engine) if kind != slug]
            ids = {_test_id(kind, key): (kind, key) for kind in kinds for key in keys}
            held = _known(engine, "test", ids)
        found: dict[RecordKey, tuple[str, ...]] = {}
        for kind, key in sorted(ids[one] for one in held):
            found[key] = (*found.get(key, ()), kind)
        return found

    def write(self, slug: str, changes: Sequence[StoreChange]) -> None:
        """Apply changes in order, in one transaction."""
        self.write_all({slug: changes})

    def write_all(self, changes: Mapping[str, Sequence[StoreChange]]) -> None:
        """Apply the changes of several slugs, all or none."""
        if not any(changes.values()):
            return
        with self._writing() as engine:
            for slug, of_slug in changes.items():
                _SessionWriter(engine, slug).apply(of_slug)

    def set_aside(self, slug: str, drops: Sequence[Drop]) -> None:
        """Hide sessions of removed tests, for `put_back`."""
        if drops:
            with self._writing() as engine:
                _SessionWriter(engine, slug).hide(drops, kind="remove")

    def aside(self) -> Mapping[str, Mapping[RecordKey, tuple[StoredRecord, ...]]]:
        """Return the sessions that were set aside, by slug and measurement."""
        with self._reading() as engine:
            if engine is None:
                return {}
            reader = _Reader(engine, self._place)
            return {
                kind: series
                for kind in _kinds(engine)
                if (series := reader.removed(kind))
            }

    def put_back(self, slug: str, keys: Collection[RecordKey]) -> None:
        """Put back sessions of some measurements that were set aside."""
        with self._writing() as engine:
            removed = _Reader(engine, self._place).removed(slug)
            records = [r for key in keys for r in removed.get(key, ())]
            _SessionWriter(engine, slug).unhide(records)

    def accept_edits(self) -> Repair:
        """Refuse: nothing was edited by hand."""
        message, remedy = _READ_ONLY
        raise BaselineError(f"{self._place}: {message}", remedy=remedy)

    def _selected(
        self,
        slug: str,
        test_ids: Collection[str] | None,
        *,
        metrics: Collection[str] | None,
        newest: bool,
    ) -> _Series:
        with self._reading() as engine:
            if engine is None:
                return {}
            reader = _Reader(engine, self._place)
            with collector_paused():
                return reader.load(slug, test_ids, metrics=metrics, newest=newest)

    @contextlib.contextmanager
    def _reading(self) -> Iterator[Engine | None]:
        """Open the database, or None if it has no tables yet."""
        engine = self._connect(create=False)
        if engine is None:
            yield None
            return
        with contextlib.closing(engine):
            schema = engine.schema()
            self._check(schema)
            yield None if schema is None else engine

    @contextlib.contextmanager
    def _writing(self) -> Iterator[Engine]:
        """Open the database in a transaction, with its tables."""
        engine = self._connect(create=True)
        assert engine is not None  # noqa: S101 - it was to be created
        with contextlib.closing(engine), engine.transaction():
            schema = engine.schema()
            self._check(schema)
            if schema is None:
                engine.create()
            yield engine

    def _check(self, schema: int | None) -> None:
        if schema is not None and schema > SCHEMA:
            raise BaselineError(
                f"{self._place} has tables of version {schema}, this version reads {SCHEMA}",
                remedy="update pytest-gpuperf",
            )


def _kinds(engine: Engine) -> list[str]:
    rows = engine.rows("SELECT DISTINCT kind FROM part")
    return sorted(original(kind) for (kind,) in rows)


def _test_id(slug: str, key: RecordKey) -> int:
    return digest_id("test", slug, key.test_id, key.name)


def _chunks(ids: Iterable[int]) -> Iterator[str]:
    """Yield ids as lists for a statement, sorted."""
    ordered = sorted(ids)
    for start in range(0, len(ordered), _CHUNK):
        yield ",".join(map(str, ordered[start : start + _CHUNK]))


def _known(engine: Engine, table: str, ids: Iterable[int]) -> set[int]:
    """Return the ids that a table has."""
    return {
        found
        for some in _chunks(ids)
        for (found,) in engine.rows(f"SELECT id FROM {table} WHERE id IN ({some})")  # noqa: S608 - numbers
    }


class _Event(Frozen, frozen=True, kw_only=True):
    """An entry of the log of a store."""

    arrival: int
    kind: str
    test: int
    session: str
    content: str


class _Events:
    """The log of some measurements, as far as it decides what counts."""

    def __init__(self, events: Iterable[_Event]) -> None:
        self._hidden: dict[tuple[int, str], str] = {}
        # Session, last session before, number of the session, and metrics.
        self._accepts: dict[int, list[tuple[str, int, int, frozenset[str] | None]]] = {}
        for event in sorted(events, key=lambda event: event.arrival):
            if event.kind == "accept":
                until, accepted, metrics = msgspec.json.decode(event.content)
                named = None if metrics is None else frozenset(metrics)
                entry = (event.session, until, accepted, named)
                self._accepts.setdefault(event.test, []).append(entry)
            elif event.kind == "restore":
                self._hidden.pop((event.test, event.session), None)
            else:
                self._hidden[event.test, event.session] = event.kind

    def hidden(self, test: int, session: str) -> str:
        """Return "drop" or "remove" for a session that does not count, else ""."""
        return self._hidden.get((test, session), "")

    def series(self, test: int, metric: str, session: str, arrival: int) -> int:
        """Return the number of times that a metric was accepted before a session."""
        return sum(
            (metrics is None or metric in metrics)
            and (arrival > until or session == accepted)
            for accepted, until, _, metrics in self._accepts.get(test, ())
        )

    def start(self, test: int, metric: str) -> int:
        """Return the first session that may count of a metric, as far as it was accepted."""
        return max(
            (
                min(until, accepted)
                for _, until, accepted, metrics in self._accepts.get(test, ())
                if metrics is None or metric in metrics
            ),
            default=0,
        )

    def has_accepts(self, test: int) -> bool:
        """Return True if a metric of a test was accepted."""
        return test in self._accepts

    def accept_count(self, test: int, metric: str) -> int:
        """Return the number of times that a metric was accepted."""
        return sum(
            metrics is None or metric in metrics
            for _, _, _, metrics in self._accepts.get(test, ())
        )

    def removed(self) -> set[tuple[int, str]]:
        """Return the tests and sessions that were set aside."""
        return {at for at, kind in self._hidden.items() if kind == "remove"}


def _events(engine: Engine, where: str, *arguments: object) -> list[_Event]:
    rows = engine.rows(
        "SELECT e.arrival, e.kind, e.test, e.session, e.content FROM event e "  # noqa: S608 - no text of a user
        f"{where}",
        *arguments,
    )
    return [
        _Event(arrival=a, kind=k, test=t, session=original(s), content=c)
        for a, k, t, s, c in rows
    ]


class _Head(Frozen, frozen=True, kw_only=True):
    """A session of the store."""

    arrival: int
    session: Session
    soft: Mapping[str, str]


# Session, test, setting and revision: together they name a record.
_Place = tuple[int, int, int, int]


class _Reader:
    """
    Reads the sessions of a slug.

    Args:
        engine: The open database.

        place: The name of the store, for messages.
    """

    def __init__(self, engine: Engine, place: str) -> None:
        self._engine = engine
        self._place = place

    def load(
        self,
        slug: str,
        test_ids: Collection[str] | None,
        *,
        metrics: Collection[str] | None = None,
        newest: bool = True,
    ) -> _Series:
        """
        Return sessions by measurement.

        Args:
            slug: The kind of machine.

            test_ids: The tests, or None for all.

            metrics: The metrics, or None for all.

            newest: Whether only the sessions are read that may count.
        """
        keys = self._keys(slug, test_ids)
        if not keys:
            return {}
        numbers = {
            number: row
            for row, number in _metrics(self._engine).items()
            if metrics is None or original(row[0]) in metrics
        }
        events = self._events(slug, keys)
        counted = events if newest else None
        places, rows = self._values(slug, keys, numbers, counted)
        found = self._records(keys, numbers, rows, places, events)
        if newest:
            at = {key: test for test, key in keys.items()}
            return by_key(
                replace(record, values=values)
                for record in found
                if (
                    values := tuple(
                        value
                        for value in record.values
                        if value.series
                        == events.accept_count(at[record.key], value.metric)
                    )
                )
            )
        whole: dict[RecordKey, list[StoredRecord]] = {}
        for record in sorted(found, key=lambda record: record.arrival):
            whole.setdefault(record.key, []).append(record)
        return {key: tuple(whole[key]) for key in sorted(whole)}

    def removed(self, slug: str) -> _Series:
        """Return the sessions of a slug that were set aside."""
        keys = self._keys(slug, None)
        events = self._events(slug, keys)
        wanted = events.removed()
        tests = {test for test, _ in wanted}
        keys = {test: key for test, key in keys.items() if test in tests}
        if not keys:
            return {}
        numbers = {number: row for row, number in _metrics(self._engine).items()}
        places, rows = self._values(slug, keys, numbers, None)
        found = self._records(keys, numbers, rows, places, _Events(()))
        at = {key: test for test, key in keys.items()}
        return by_key(r for r in found if (at[r.key], r.session.id) in wanted)

    def _keys(
        self, slug: str, test_ids: Collection[str] | None
    ) -> dict[int, RecordKey]:
        """Return the measurements by the id of their row."""
        # Ids of tests may be longer than an index of PostgreSQL can hold.
        wanted = None if test_ids is None else set(map(plain, test_ids))
        return {
            number: RecordKey(test_id=original(node), name=original(name))
            for number, node, name in self._engine.rows(
                "SELECT id, node, name FROM test WHERE kind = ?", plain(slug)
            )
            if wanted is None or node in wanted
        }

    def _events(self, slug: str, keys: Collection[int]) -> _Events:
        if len(keys) > _FEW_TESTS:
            where = "JOIN test t ON t.id = e.test WHERE t.kind = ?"
            return _Events(_events(self._engine, where, plain(slug)))
        found: list[_Event] = []
        for some in _chunks(keys):
            found += _events(self._engine, f"WHERE e.test IN ({some})")
        return _Events(found)

    def _values(
        self,
        slug: str,
        keys: Collection[int],
        numbers: Mapping[int, MetricRow],
        events: _Events | None,
    ) -> tuple[dict[_Place, bytes], list[tuple[Any, ...]]]:
        """
        Return the details by record, and the rows of the values.

        Args:
            slug: The kind of machine.

            keys: The tests.

            numbers: The metrics.

            events: The log, to read only the sessions that may count, or None to read
                all.
        """
        if not numbers:
            return {}, []
        rows: list[tuple[Any, ...]] = []
        few: Collection[int] = keys
        if events is not None and len(keys) > _FEW_TESTS:
            metrics = ",".join(map(str, sorted(numbers)))
            rows, few = self._bulk(slug, keys, metrics, events)
        alike: dict[tuple[int | None, str], list[int]] = {}
        for test in few:
            starts: dict[int | None, list[str]] = {}
            for number, row in numbers.items():
                start = None if events is None else events.start(test, original(row[0]))
                starts.setdefault(start, []).append(str(number))
            for start, some in starts.items():
                alike.setdefault((start, ",".join(some)), []).append(test)
        for (start, metrics), tests in alike.items():
            rows += self._of_tests(tests, metrics, start)
        return self._details(rows, keys), rows

    def _bulk(
        self, slug: str, keys: Collection[int], metrics: str, events: _Events
    ) -> tuple[list[tuple[Any, ...]], Collection[int]]:
        """
        Return the rows of whole sessions, and the tests that must be looked up.

        A test that some of these sessions lack may have others that count.
        """
        chosen, is_all = self._chosen_sessions(slug)
        rows: list[tuple[Any, ...]] = []
        counts: dict[int, int] = {}
        for session in chosen:
            of_session = self._of_session(session, metrics, keys)
            rows += of_session
            for test in {row[2] for row in of_session}:
                counts[test] = counts.get(test, 0) + 1
        if is_all:
            return rows, ()
        wanted = SESSION_LIMIT + OLDEST_LIMIT
        few = {k for k in keys if counts.get(k, 0) < wanted or events.has_accepts(k)}
        return [row for row in rows if row[2] not in few], few

    def _chosen_sessions(self, slug: str) -> tuple[list[int], bool]:
        """
        Return the newest and oldest sessions of each size and shard, and whether these
        are all.
        """
        rows = self._engine.rows(
            "SELECT s.arrival, s.company, s.shard FROM session s JOIN part p ON "
            "p.session = s.arrival WHERE p.kind = ? ORDER BY s.arrival DESC",
            plain(slug),
        )
        alike: dict[tuple[int, str | None], list[int]] = {}
        for arrival, company, shard in rows:
            alike.setdefault((company, shard), []).append(arrival)
        chosen = {
            arrival
            for several in alike.values()
            for arrival in (*several[:SESSION_LIMIT], *several[-OLDEST_LIMIT:])
        }
        return sorted(chosen), len(chosen) == len(rows)

    def _of_session(
        self, session: int, metrics: str, keys: Collection[int]
    ) -> list[tuple[Any, ...]]:
        return [
            row
            for row in self._engine.rows(
                "SELECT session, metric, test, setting, revision, value, half_width, "  # noqa: S608 - numbers
                f"rest FROM value WHERE session = {session} AND metric IN ({metrics})"
            )
            if row[2] in keys
        ]

    def _of_tests(
        self, keys: Collection[int], metrics: str, start: int | None
    ) -> list[tuple[Any, ...]]:
        """
        Return the rows of some tests.

        Args:
            keys: The tests.

            metrics: The metrics, as in a statement.

            start: The first session that may count, or None to read all sessions.
        """
        rows: list[tuple[Any, ...]] = []
        columns = (
            "v.session, v.metric, v.test, v.setting, v.revision, v.value, "
            "v.half_width, v.rest"
        )
        for some in _chunks(keys):
            where = f"v.test IN ({some}) AND v.metric IN ({metrics})"
            if start is None:
                statement = f"SELECT {columns} FROM value v WHERE {where}"  # noqa: S608 - numbers
            else:
                # The ages are counted on the index alone.
                alike = "PARTITION BY v.test, v.metric, v.setting, s.company"
                # SQLite keeps the order of a CROSS JOIN: it would read the whole table.
                statement = (
                    f"SELECT {columns} FROM (SELECT v.session, v.metric, "  # noqa: S608 - numbers
                    "v.test, v.setting, v.revision, "
                    f"ROW_NUMBER() OVER ({alike} ORDER BY v.session DESC) AS age, "
                    f"ROW_NUMBER() OVER ({alike} ORDER BY v.session) AS place "
                    "FROM value v CROSS JOIN session s WHERE s.arrival = v.session "
                    f"AND {where} AND v.session >= {start}) n CROSS JOIN value v "
                    "WHERE n.session = v.session AND n.metric = v.metric "
                    "AND n.test = v.test AND n.setting = v.setting "
                    "AND n.revision = v.revision "
                    f"AND (n.age <= {SESSION_LIMIT} OR n.place <= {OLDEST_LIMIT})"
                )
            rows += self._engine.rows(statement)
        return rows

    def _details(
        self, rows: Sequence[tuple[Any, ...]], keys: Collection[int]
    ) -> dict[_Place, bytes]:
        """Return the details of the records of some rows."""
        found: dict[_Place, bytes] = {}
        statement = (
            "SELECT session, test, setting, revision, content FROM detail WHERE session"
        )
        for session in sorted({row[0] for row in rows}):
            if len(keys) > _FEW_TESTS:
                parts = [f"{statement} = {session}"]
            else:
                parts = [
                    f"{statement} = {session} AND test IN ({some})"
                    for some in _chunks(keys)
                ]
            for part in parts:
                found |= {
                    (s, t, g, r): bytes(content)
                    for s, t, g, r, content in self._engine.rows(part)
                }
        return found

    def _records(
        self,
        keys: Mapping[int, RecordKey],
        numbers: Mapping[int, MetricRow],
        rows: Sequence[tuple[Any, ...]],
        details: Mapping[_Place, bytes],
        events: _Events,
    ) -> Iterator[StoredRecord]:
        """Yield the records that some rows hold, in the order of arrival and revision."""
        grouped: dict[_Place, list[tuple[Any, ...]]] = {}
        for row in rows:
            grouped.setdefault((row[0], row[2], row[3], row[4]), []).append(row)
        try:
            heads = self._heads({place[0] for place in grouped})
            settings = {
                number: setting_of(content)
                for some in _chunks({place[2] for place in grouped})
                for number, content in self._engine.rows(
                    f"SELECT id, content FROM setting WHERE id IN ({some})"  # noqa: S608 - numbers
                )
            }
            for place in sorted(grouped, key=lambda place: (place[0], place[3])):
                session, test, setting, _ = place
                head = heads[session]
                if events.hidden(test, head.session.id):
                    continue
                detail = detail_of(details.get(place))
                values: list[SessionValue] = []
                for _, metric, _, _, _, number, width, rest in grouped[place]:
                    series = events.series(
                        test, numbers[metric][0], head.session.id, session
                    )
                    quantiles = detail.quantiles.get(metric, ())
                    values.append(
                        value_of(
                            numbers[metric],
                            number,
                            width,
                            rest if rest is None else bytes(rest),
                            series=series,
                            quantiles=quantiles,
                        )
                    )
                yield record_of(
                    keys[test],
                    head.session,
                    tuple(values),
                    setting=settings[setting],
                    detail=detail,
                    shared=head.soft,
                    arrival=session,
                )
        except (*UNREADABLE, KeyError) as error:
            raise BaselineCorruptError(
                f"a row cannot be read ({error})",
                remedy="restore the database from a copy",
                path=self._place,
            ) from error

    def _heads(self, arrivals: Collection[int]) -> dict[int, _Head]:
        heads = {}
        for some in _chunks(arrivals):
            for arrival, content, soft in self._engine.rows(
                f"SELECT arrival, content, soft FROM session WHERE arrival IN ({some})"  # noqa: S608 - numbers
            ):
                heads[arrival] = _Head(
                    arrival=arrival,
                    session=session_of(content),
                    soft=msgspec.json.decode(soft),
                )
        return heads


class _SessionWriter:
    """
    Adds the sessions of a slug, inside of a transaction.

    Args:
        engine: The open database.

        slug: The kind of machine.
    """

    def __init__(self, engine: Engine, slug: str) -> None:
        self._engine = engine
        self._slug = slug

    def apply(self, changes: Sequence[StoreChange]) -> None:
        """Apply changes in order."""
        added: list[StoredRecord] = []
        for change in changes:
            if isinstance(change, (Append, Restart)):
                if change.record.values:
                    added.append(change.record)
                if isinstance(change, Append):
                    continue
            # What came before is needed to drop, to move or to restart it.
            self._add(added)
            added = []
            if isinstance(change, Drop):
                self.hide([change], kind="drop")
            elif isinstance(change, Restart):
                self._accept(change)
            elif isinstance(change, Move):
                self._move(change)
            elif isinstance(change, PutBack):
                self._add(change.records)
                self.unhide(change.records)
        self._add(added)

    def hide(self, drops: Iterable[Drop], *, kind: str) -> None:
        """Let sessions no longer count."""
        self._log(
            (kind, _test_id(self._slug, drop.key), session, "")
            for drop in drops
            for session in sorted(drop.session_ids)
        )

    def unhide(self, records: Iterable[StoredRecord]) -> None:
        """Let sessions count again that were hidden."""
        self._log(
            ("restore", _test_id(self._slug, r.key), r.session.id, "") for r in records
        )

    def _accept(self, change: Restart) -> None:
        ((until,),) = self._engine.rows("SELECT MAX(arrival) FROM session")
        metrics = None if change.metrics is None else sorted(change.metrics)
        ((accepted, _),) = self._session_row(change.record.session) or [(0, "")]
        content = json_text([until or 0, accepted, metrics])
        test = _test_id(self._slug, change.key)
        self._log([("accept", test, change.record.session.id, content)])

    def _move(self, change: Move) -> None:
        reader = _Reader(self._engine, self._slug)
        # Sessions before an accepted level do not count again under the new name.
        stored, counting = (
            reader.load(self._slug, [change.old.test_id], newest=newest)
            for newest in (False, True)
        )
        whole, moved = (
            [r for r in several.get(change.old, ()) if change.renamed or r.has_node_id]
            for several in (stored, counting)
        )
        ids = frozenset(record.session.id for record in whole)
        self._add(
            replace(
                record,
                key=change.key,
                node_id=record.key.test_id if record.has_node_id else record.node_id,
            )
            for record in moved
        )
        self.hide([Drop(key=change.old, session_ids=ids)], kind="drop")

    def _log(self, events: Iterable[tuple[str, int, str, str]]) -> None:
        now = self._engine.now_unix_s()
        ((last,),) = self._engine.rows("SELECT MAX(arrival) FROM event")
        rows = []
        for number, (kind, test, session, content) in enumerate(events, (last or 0)):
            parts = (kind, str(test), session, content, repr(now), str(number))
            event_id = digest_id("event", *parts)
            rows.append((event_id, now, kind, test, plain(session), content))
        self._engine.insert("event", rows)

    def _add(self, records: Iterable[StoredRecord]) -> None:
        """Add records, in place of those of the same session, measurement and choice."""
        by_session: dict[str, list[StoredRecord]] = {}
        for record in records:
            by_session.setdefault(record.session.id, []).append(record)
        for several in by_session.values():
            # The last record of a measurement and choice counts.
            unique = {(record.key, record.choice): record for record in several}
            self._add_session([*unique.values()])

    def _add_session(self, records: Sequence[StoredRecord]) -> None:
        session = records[0].session
        numbers = self._metrics(records)
        arrival, shared, is_new = self._session(session, records)
        tests = {record.key: _test_id(self._slug, record.key) for record in records}
        self._insert_named("test", self._test_rows(tests))
        settings: dict[int, str] = {}
        of_record = []
        for record in records:
            text = setting_text(record)
            setting = digest_id("setting", text)
            settings[setting] = text
            of_record.append(setting)
        self._insert_named("setting", [*settings.items()])
        present = {} if is_new else self._present(arrival, tests)
        values: list[tuple[object, ...]] = []
        details: list[tuple[object, ...]] = []
        for record, setting in zip(records, of_record, strict=True):
            test = tests[record.key]
            rows = [
                (numbers[metric_row(value)], *value_columns(value))
                for value in record.values
            ]
            detail = detail_bytes(record, numbers, shared)
            earlier = present.get(test, {})
            revision = max(earlier, default=-1) + 1
            # A session is sent again if the answer of the database was lost.
            if earlier and earlier[revision - 1] == (setting, sorted(rows), detail):
                continue
            values += ((arrival, r[0], test, setting, revision, *r[1:]) for r in rows)
            if detail is not None:
                details.append((arrival, test, setting, revision, detail))
        self._engine.insert("value", values)
        self._engine.insert("detail", details)
        if not is_new:
            self._show_again(records)

    def _session(
        self, session: Session, records: Sequence[StoredRecord]
    ) -> tuple[int, Mapping[str, str], bool]:
        """Return the number of a session, its soft facts, and whether it is new."""
        found = self._session_row(session)
        is_new = not found
        if is_new:
            shared = dict(records[0].soft_facts)
            for record in records:
                if record.soft_facts != shared:
                    shared = dict(shared.items() & record.soft_facts.items())
            row = (
                plain(session.id),
                session.started_unix_s,
                self._engine.now_unix_s(),
                *(
                    text if text is None else plain(text)
                    for text in (
                        session.commit,
                        session.branch,
                        session.machine,
                        session.run,
                        session.shard,
                    )
                ),
                company_of(session),
                json_text(shared),
                session_text(session),
            )
            self._engine.insert("session", [row])
            found = self._session_row(session)
        ((arrival, soft),) = found
        self._engine.insert("part", [(arrival, plain(self._slug))])
        return arrival, msgspec.json.decode(soft), is_new

    def _session_row(self, session: Session) -> Sequence[tuple[int, str]]:
        statement = "SELECT arrival, soft FROM session WHERE id = ?"
        return [(a, s) for a, s in self._engine.rows(statement, plain(session.id))]

    def _metrics(self, records: Iterable[StoredRecord]) -> dict[MetricRow, int]:
        wanted = {metric_row(value) for record in records for value in record.values}
        known = _metrics(self._engine)
        if missing := sorted(wanted - known.keys()):
            self._engine.insert("metric", missing)
            known = _metrics(self._engine)
        return known

    def _test_rows(
        self, tests: Mapping[RecordKey, int]
    ) -> list[tuple[int, str, str, str]]:
        kind = plain(self._slug)
        return [
            (number, kind, plain(key.test_id), plain(key.name))
            for key, number in tests.items()
        ]

    def _insert_named(self, table: str, rows: Iterable[tuple[Any, ...]]) -> None:
        """
        Add rows whose id is a digest of the rest.

        They are sorted, so that two writers wait for each other and never in a circle.
        """
        rows = [*rows]
        known = _known(self._engine, table, {row[0] for row in rows})
        self._engine.insert(table, sorted(row for row in rows if row[0] not in known))

    def _present(
        self, arrival: int, tests: Mapping[RecordKey, int]
    ) -> dict[int, dict[int, tuple[int, list[tuple[Any, ...]], bytes | None]]]:
        """Return setting, values and detail of a session's records, by test and revision."""
        found: dict[int, dict[int, tuple[int, list[tuple[Any, ...]], bytes | None]]]
        found = {}
        wanted = set(tests.values())
        for test, revision, setting, *value in self._engine.rows(
            "SELECT test, revision, setting, metric, value, half_width, rest FROM value "
            "WHERE session = ?",
            arrival,
        ):
            if test in wanted:
                metric, number, width, rest = value
                row = (metric, number, width, None if rest is None else bytes(rest))
                entry = found.setdefault(test, {}).setdefault(
                    revision, (setting, [], None)
                )
                entry[1].append(row)
        details = {
            (test, revision): bytes(content)
            for test, revision, content in self._engine.rows(
                "SELECT test, revision, content FROM detail WHERE session = ?", arrival
            )
        }
        return {
            test: {
                revision: (setting, sorted(rows), details.get((test, revision)))
                for revision, (setting, rows, _) in revisions.items()
            }
            for test, revisions in found.items()
        }

    def _show_again(self, records: Sequence[StoredRecord]) -> None:
        """Let a dropped session count again that was stored again."""
        tests = {_test_id(self._slug, record.key): record for record in records}
        found: list[_Event] = []
        for some in _chunks(tests):
            found += _events(self._engine, f"WHERE e.test IN ({some})")
        events = _Events(found)
        self.unhide(
            record
            for test, record in tests.items()
            if events.hidden(test, record.session.id)
        )


def _metrics(engine: Engine) -> dict[MetricRow, int]:
    return {
        (name, unit, source, better): number
        for number, name, unit, source, better in engine.rows(
            "SELECT id, name, unit, source, better FROM metric"
        )
    }
