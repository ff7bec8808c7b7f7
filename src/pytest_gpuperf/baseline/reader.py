"""Reads sessions from the tables of a database."""

from __future__ import annotations

import contextlib
from collections.abc import (
    Callable,
    Collection,
    Container,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from typing import TYPE_CHECKING, Any

import msgspec

from pytest_gpuperf.baseline.contents import SessionContent, contents_of, python_in
from pytest_gpuperf.baseline.engine import METRICS, chunks
from pytest_gpuperf.baseline.events import EventLog, StoreEvent, events_in
from pytest_gpuperf.baseline.history import OLDEST_LIMIT, SESSION_LIMIT, joined
from pytest_gpuperf.baseline.tables import (
    UNREADABLE_ROW,
    MetricRow,
    check_value,
    detail_of,
    is_readable_detail,
    original,
    plain,
    quantiles_of,
    record_of,
    session_of,
    setting_of,
    value_like,
    value_of,
)
from pytest_gpuperf.errors import BaselineCorruptError
from pytest_gpuperf.model.environment import Session
from pytest_gpuperf.model.frozen import Frozen, replace
from pytest_gpuperf.model.record import RecordKey, SessionValue, StoredRecord

if TYPE_CHECKING:
    from pytest_gpuperf.baseline.engine import Engine

# With fewer tests, each is looked up; otherwise whole sessions are read.
_FEW_TESTS = 1_000
# Records that are looked at for what all records of a session share.
_FEW_FACTS = 50
# With fewer names, the database looks through its tests for them. It takes 999 arguments.
_FEW_NAMES = 900

# The sessions that do not count of some tests, as the log has it. Joined, because SQLite
# searches the pairs of an IN one by one.
_HIDDEN = (
    "LEFT JOIN (SELECT g.test, g.session FROM (SELECT e.test, e.session, e.kind, ROW_NUMBER() OVER "
    "(PARTITION BY e.test, e.session ORDER BY e.arrival DESC) AS age FROM event e "
    "WHERE e.kind <> 'accept' AND e.test IN ({tests})) g "
    "WHERE g.age = 1 AND g.kind <> 'restore') h ON h.test = v.test AND h.session = s.id"
)
# The last revision of sessions that were stored again. The others no longer count.
_AGAIN = (
    "LEFT JOIN (SELECT w.test, w.session, w.setting, MAX(w.revision) AS newest "
    "FROM value w WHERE w.revision > 0 AND {where} GROUP BY w.test, w.session, w.setting"
    ") a ON a.test = v.test AND a.session = v.session AND a.setting = v.setting"
)
_COLUMNS = (
    "v.session, v.metric, v.test, v.setting, v.revision, v.value, v.half_width, v.rest"
)
_IS_LAST = "(a.newest IS NULL OR v.revision = a.newest)"

# Bits of the id of a test.
_LOW_HALF = 2**31 - 1

StoredSeries = Mapping[RecordKey, tuple[StoredRecord, ...]]


class _Head(Frozen, frozen=True, kw_only=True):
    """A session of the store."""

    arrival: int
    session: Session
    soft: Mapping[str, str]


# Session, test, setting and revision: together they name a record.
_Place = tuple[int, int, int, int]
# The columns of a value.
_Row = tuple[Any, ...]
# A record until it is asked for: session, setting, detail, and of each value the metric,
# the number, its half-width and the rest. It takes a fifth of the memory.
_PACKED = msgspec.msgpack.Decoder(
    tuple[
        int,
        int,
        bytes | None,
        tuple[tuple[int, float, float | None, bytes | None], ...],
    ]
)


class SeriesByKey(Mapping[RecordKey, tuple[StoredRecord, ...]]):
    """
    The sessions of many measurements, each decoded anew when it is asked for.

    Args:
        packed: The packed records of each measurement, in the order of arrival.

        decode: Returns the sessions of some packed records of a measurement.
    """

    def __init__(
        self,
        packed: Mapping[RecordKey, Sequence[bytes]],
        decode: Callable[[RecordKey, Sequence[bytes]], tuple[StoredRecord, ...]],
    ) -> None:
        self._packed = packed
        self._decode = decode

    def __getitem__(self, key: RecordKey) -> tuple[StoredRecord, ...]:
        """Return the sessions of a measurement."""
        return self._decode(key, self._packed[key])

    def __iter__(self) -> Iterator[RecordKey]:
        """Iterate over the measurements, sorted."""
        return iter(self._packed)

    def __len__(self) -> int:
        """Return the number of measurements."""
        return len(self._packed)


class SessionReader:
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
        metrics: Container[str] | None = None,
        quantiles: bool = True,
        newest: bool = True,
    ) -> StoredSeries:
        """
        Return sessions by measurement.

        Args:
            slug: The kind of machine.

            test_ids: The tests, or None for all.

            metrics: The metrics, or None for all.

            quantiles: Whether to read the quantiles of samples.

            newest: Whether only the sessions are read that may count.
        """
        keys = self._keys(slug, test_ids)
        if not keys:
            return {}
        numbers = self._metrics(metrics)
        events = self._events(slug, keys)
        sessions = self._values(slug, keys, numbers, events if newest else None)
        return self._series(
            keys, numbers, sessions, events, quantiles=quantiles, newest=newest
        )

    def outdated(self, slug: str, *, newest_count: int) -> list[_Row]:
        """
        Return the keys of values that no comparison uses any more, as rows.

        Of each series, the newest sessions stay, and the oldest, from which a drift is
        measured. As many stay of those that were dropped, which may be put back. Of a
        test whose level was accepted, all sessions since then stay.

        Args:
            slug: The kind of machine.

            newest_count: Sessions that stay of each series.
        """
        keys = self._keys(slug, None)
        events = self._events(slug, keys)
        metrics = self._metrics(None)
        kind = plain(slug)
        tests = "SELECT t.id FROM test t WHERE t.kind = ?"
        again = _AGAIN.format(where=f"w.test IN ({tests})")
        hidden = _HIDDEN.format(tests=tests)
        alike = (
            "PARTITION BY v.test, v.metric, v.setting, v.company, v.hidden, v.replaced"
        )
        rows = self._engine.rows(
            "SELECT n.session, n.metric, n.test, n.setting, n.revision FROM (SELECT v.*, "  # noqa: S608 - numbers
            f"ROW_NUMBER() OVER ({alike} ORDER BY v.session DESC) AS age, "
            f"ROW_NUMBER() OVER ({alike} ORDER BY v.session) AS place FROM (SELECT "
            "v.session, v.metric, v.test, v.setting, v.revision, s.company, "
            "CASE WHEN v.revision < a.newest THEN 1 ELSE 0 END AS replaced, "
            "CASE WHEN h.test IS NULL THEN 0 ELSE 1 END AS hidden "
            f"FROM value v JOIN session s ON s.arrival = v.session {again} {hidden} "
            f"WHERE v.test IN ({tests})) v) n "
            f"WHERE n.replaced = 1 OR n.age > {newest_count} AND n.place > {OLDEST_LIMIT}",
            *[kind] * 3,
        )
        return [
            row
            for row in rows
            for name in [metrics[row[1]][0]]
            if not events.accept_count(row[2], name)
            or row[0] < events.start(row[2], name)
        ]

    def records_left(self, sessions: Iterable[int]) -> Iterator[_Place]:
        """Yield the records of some sessions that have a value."""
        for some in chunks(sessions):
            yield from self._engine.rows(
                "SELECT DISTINCT session, test, setting, revision FROM value "  # noqa: S608 - numbers
                f"WHERE session IN ({some})"
            )

    def dropped(self, tests: Collection[int]) -> set[int]:
        """Return those of some tests whose sessions were all dropped."""
        rows = self._engine.rows("SELECT DISTINCT test FROM event")
        gone = {test for (test,) in rows}.intersection(tests)
        for some in [*chunks(gone)]:
            hidden = _HIDDEN.format(tests=some)
            gone.difference_update(
                test
                for (test,) in self._engine.rows(
                    "SELECT DISTINCT v.test FROM value v "  # noqa: S608 - numbers
                    f"JOIN session s ON s.arrival = v.session {hidden} "
                    f"WHERE v.test IN ({some}) AND h.test IS NULL"
                )
            )
        return gone

    def removed(self, slug: str) -> StoredSeries:
        """Return the sessions of a slug that were set aside."""
        keys = self._keys(slug, None)
        events = self._events(slug, keys)
        wanted = events.removed()
        tests = {test for test, _ in wanted}
        keys = {test: key for test, key in keys.items() if test in tests}
        if not keys:
            return {}
        numbers = self._metrics(None)
        sessions = self._values(slug, keys, numbers, None)
        found = self._series(keys, numbers, sessions, EventLog(()))
        at = {key: test for test, key in keys.items()}
        of_key = (
            (key, tuple(r for r in records if (at[key], r.session.id) in wanted))
            for key, records in found.items()
        )
        return {key: records for key, records in of_key if records}

    def heads(self, slug: str) -> list[Session]:
        """Return the sessions of a slug, without values."""
        statement = (
            "SELECT s.content FROM session s JOIN part p ON p.session = s.arrival "
            "WHERE p.kind = ?"
        )
        rows = self._engine.rows(statement, plain(slug))
        with self._readable():
            return [session_of(content) for (content,) in rows]

    def contents(
        self, slug: str, test_ids: Collection[str] | None = None
    ) -> list[SessionContent]:
        """
        Return the newest and oldest sessions of a slug, without values.

        A test whose level was accepted is read with its values, which tell whether the
        session still counts.

        Args:
            slug: The kind of machine.

            test_ids: The tests to look for, or None for all.
        """
        if test_ids is not None:
            return contents_of(self.load(slug, test_ids, quantiles=False))
        keys = self._keys(slug, None)
        events = self._events(slug, keys)
        accepted = {
            key.test_id for test, key in keys.items() if events.has_accepts(test)
        }
        held: dict[str, frozenset[RecordKey]] = {}
        if accepted:
            for each in contents_of(self.load(slug, accepted, quantiles=False)):
                held[each.session.id] = each.keys
        # Most sessions have the same tests, and sets of 100,000 take long to make.
        alike: dict[object, frozenset[RecordKey]] = {}
        chosen = self._chosen_sessions(slug)[0]
        digests = self._digests(chosen)
        found = []
        for arrival, head in self._heads(chosen).items():
            name = head.session.id
            hidden = frozenset(events.hidden_in(name))
            at = (digests.get(arrival), hidden)
            if at not in alike:
                alike[at] = frozenset(
                    key
                    for test in self._tests_of(arrival) - hidden
                    if (key := keys.get(test)) and key.test_id not in accepted
                )
            of_session = alike[at]
            if name in held:
                of_session |= held[name]
            if of_session:
                python_minor = python_in(self._some_facts(arrival))
                found.append(
                    SessionContent(
                        arrival=arrival,
                        session=head.session,
                        keys=of_session,
                        python_minor=python_minor,
                    )
                )
        return found

    def _tests_of(self, arrival: int) -> set[int]:
        rows = self._engine.rows(
            f"SELECT DISTINCT test FROM value WHERE session = {arrival}"  # noqa: S608 - a number
        )
        return {test for (test,) in rows}

    def _digests(self, arrivals: Iterable[int]) -> dict[int, tuple[object, ...]]:
        """
        Return what is equal for sessions with values of the same tests and metrics.

        Ids of tests are digests, so the sums of two sets of them differ. Halves of the
        ids, because the sum of a few whole ones is too large for SQLite.
        """
        found: dict[int, tuple[object, ...]] = {}
        for some in chunks(arrivals):
            for session, *sums in self._engine.rows(
                f"SELECT session, metric, COUNT(*), SUM(test & {_LOW_HALF}), "  # noqa: S608 - numbers
                f"SUM(test >> {_LOW_HALF.bit_length()}) FROM value "
                f"WHERE session IN ({some}) GROUP BY session, metric "
                "ORDER BY session, metric"
            ):
                found[session] = (*found.get(session, ()), *sums)
        return found

    def _some_facts(self, arrival: int) -> Iterator[Mapping[str, Mapping[str, str]]]:
        """Yield the hard facts of a few records of a session."""
        rows = self._engine.rows(
            "SELECT g.content FROM (SELECT setting FROM value WHERE session = ? "  # noqa: S608 - a number
            f"LIMIT {_FEW_FACTS}) v JOIN setting g ON g.id = v.setting",
            arrival,
        )
        with self._readable():
            for (content,) in rows:
                yield setting_of(content).facts

    def of_run(self, slug: str, run: str) -> dict[Session, set[RecordKey]]:
        """Return the sessions of a run with measurements, without values."""
        rows = self._engine.rows(
            "SELECT DISTINCT v.session, v.test FROM session s "
            "JOIN part p ON p.session = s.arrival "
            "JOIN value v ON v.session = s.arrival WHERE s.run = ? AND p.kind = ?",
            plain(run),
            plain(slug),
        )
        keys = self._keys(slug, None) if rows else {}
        heads = self._heads({session for session, _ in rows})
        events = self._events(slug, {test for _, test in rows})
        found: dict[Session, set[RecordKey]] = {}
        for arrival, test in rows:
            session = heads[arrival].session
            if test in keys and not events.hidden(test, session.id):
                found.setdefault(session, set()).add(keys[test])
        return found

    def _keys(
        self, slug: str, test_ids: Collection[str] | None
    ) -> dict[int, RecordKey]:
        """Return the measurements by the id of their row."""
        statement = "SELECT id, node, name FROM test WHERE kind = ?"
        # Ids of tests may be longer than an index of PostgreSQL can hold.
        wanted = (
            None
            if test_ids is None
            else sorted(
                plain(test_id) for test_id in set(test_ids) if _can_be_stored(test_id)
            )
        )
        named: list[str] = []
        if wanted is not None and len(wanted) <= _FEW_NAMES:
            statement += f" AND node IN ({','.join('?' * len(wanted)) or 'NULL'})"
            named = wanted
        rows = self._engine.rows(statement, plain(slug), *named)
        chosen = None if wanted is None else frozenset(wanted)
        return {
            number: RecordKey(test_id=original(node), name=original(name))
            for number, node, name in rows
            if chosen is None or node in chosen
        }

    def _metrics(self, names: Container[str] | None) -> dict[int, MetricRow]:
        rows = {
            number: (original(name), original(unit), original(source), original(better))
            for number, name, unit, source, better in self._engine.rows(METRICS)
        }
        return {n: row for n, row in rows.items() if names is None or row[0] in names}

    def _events(self, slug: str, keys: Collection[int]) -> EventLog:
        if len(keys) > _FEW_TESTS:
            where = "JOIN test t ON t.id = e.test WHERE t.kind = ?"
            return EventLog(events_in(self._engine, where, plain(slug)))
        found: list[StoreEvent] = []
        for some in chunks(keys):
            found += events_in(self._engine, f"WHERE e.test IN ({some})")
        return EventLog(found)

    def _values(
        self,
        slug: str,
        keys: Collection[int],
        numbers: Mapping[int, MetricRow],
        events: EventLog | None,
    ) -> Iterator[list[_Row]]:
        """
        Yield the rows of the values of each session, in order of arrival.

        Args:
            slug: The kind of machine.

            keys: The tests.

            numbers: The metrics.

            events: The log, to read only the sessions that may count, or None to read
                all.
        """
        if not numbers:
            return
        metrics = ",".join(map(str, sorted(numbers)))
        few: Collection[int] = keys
        chosen: Collection[int] = ()
        if events is not None and len(keys) > _FEW_TESTS:
            chosen, few = self._bulk(slug, keys, metrics, events)
        by_session: dict[int, list[_Row]] = {session: [] for session in chosen}
        for (start, some), tests in _alike(few, numbers, events).items():
            for row in self._of_tests(tests, some, start):
                by_session.setdefault(row[0], []).append(row)
        whole = set(keys).difference(few)
        for session in sorted(by_session):
            rows = by_session.pop(session)
            if session in chosen:
                rows += self._of_session(session, metrics, whole)
            if rows:
                yield rows

    def _bulk(
        self, slug: str, keys: Collection[int], metrics: str, events: EventLog
    ) -> tuple[Collection[int], Collection[int]]:
        """
        Return the sessions to read as a whole, and the tests that must be looked up.

        A test that some of these sessions lack may have others that count, as has one of
        which some were dropped.
        """
        by_arrival, is_all = self._chosen_sessions(slug)
        chosen, names = sorted(by_arrival), set(by_arrival.values())
        if is_all:
            return chosen, ()
        counts: dict[int, int] = dict(
            self._engine.rows(
                "SELECT test, COUNT(DISTINCT session) FROM value WHERE session IN "  # noqa: S608 - numbers
                f"({','.join(map(str, chosen))}) AND metric IN ({metrics}) GROUP BY test"
            )
        )
        wanted = SESSION_LIMIT + OLDEST_LIMIT
        return chosen, {
            k
            for k in keys
            if counts.get(k, 0) < wanted
            or events.has_accepts(k)
            or events.hides(k, names)
        }

    def _chosen_sessions(self, slug: str) -> tuple[dict[int, str], bool]:
        """
        Return the ids of the newest and oldest sessions of each size and shard by arrival
        number, and True if there are no other sessions.
        """
        rows = self._engine.rows(
            "SELECT s.arrival, s.id, s.company, s.shard FROM session s JOIN part p ON "
            "p.session = s.arrival WHERE p.kind = ? ORDER BY s.arrival DESC",
            plain(slug),
        )
        alike: dict[tuple[int, str | None], list[int]] = {}
        ids = {}
        for arrival, name, company, shard in rows:
            alike.setdefault((company, shard), []).append(arrival)
            ids[arrival] = original(name)
        chosen = {
            arrival: ids[arrival]
            for several in alike.values()
            for arrival in (*several[:SESSION_LIMIT], *several[-OLDEST_LIMIT:])
        }
        return chosen, len(chosen) == len(rows)

    def _of_session(
        self, session: int, metrics: str, keys: Collection[int]
    ) -> list[_Row]:
        again = _AGAIN.format(where=f"w.session = {session}")
        return [
            row
            for row in self._engine.rows(
                f"SELECT {_COLUMNS} FROM value v {again} WHERE {_IS_LAST} "  # noqa: S608 - numbers
                f"AND v.session = {session} AND v.metric IN ({metrics})"
            )
            if row[2] in keys
        ]

    def _of_tests(
        self, keys: Collection[int], metrics: str, start: int | None
    ) -> list[_Row]:
        """
        Return the rows of some tests.

        Args:
            keys: The tests.

            metrics: The metrics, as in a statement.

            start: The first session that may count, or None to read all sessions.
        """
        rows: list[_Row] = []
        for some in chunks(keys):
            again = _AGAIN.format(where=f"w.test IN ({some})")
            hidden = _HIDDEN.format(tests=some)
            where = f"v.test IN ({some}) AND v.metric IN ({metrics}) AND {_IS_LAST}"
            if start is None:
                statement = f"SELECT {_COLUMNS} FROM value v {again} WHERE {where}"  # noqa: S608 - numbers
            else:
                # The ages are counted on the index alone.
                alike = "PARTITION BY v.test, v.metric, v.setting, s.company"
                # SQLite keeps the order of a CROSS JOIN: it would read the whole table.
                statement = (
                    f"SELECT {_COLUMNS} FROM (SELECT v.session, v.metric, "  # noqa: S608 - numbers
                    "v.test, v.setting, v.revision, "
                    f"ROW_NUMBER() OVER ({alike} ORDER BY v.session DESC) AS age, "
                    f"ROW_NUMBER() OVER ({alike} ORDER BY v.session) AS place "
                    f"FROM value v CROSS JOIN session s {again} {hidden} WHERE "
                    f"s.arrival = v.session AND {where} AND v.session >= {start} "
                    "AND h.test IS NULL) n CROSS JOIN value v "
                    "WHERE n.session = v.session AND n.metric = v.metric "
                    "AND n.test = v.test AND n.setting = v.setting "
                    "AND n.revision = v.revision "
                    f"AND (n.age <= {SESSION_LIMIT} OR n.place <= {OLDEST_LIMIT})"
                )
            rows += self._engine.rows(statement)
        return rows

    def _details(self, session: int, tests: Collection[int]) -> dict[_Place, bytes]:
        columns = "session, test, setting, revision, content"
        statement = f"SELECT {columns} FROM detail WHERE session = {session}"  # noqa: S608 - a number
        parts = [statement]
        if len(tests) <= _FEW_TESTS:
            parts = [f"{statement} AND test IN ({some})" for some in chunks(tests)]
        return {
            (s, t, g, r): bytes(content)
            for part in parts
            for s, t, g, r, content in self._engine.rows(part)
        }

    def _series(
        self,
        keys: Mapping[int, RecordKey],
        numbers: Mapping[int, MetricRow],
        sessions: Iterable[list[_Row]],
        events: EventLog,
        *,
        quantiles: bool = True,
        newest: bool = False,
    ) -> StoredSeries:
        """
        Return sessions by measurement.

        Args:
            keys: The measurements, by the id of their row.

            numbers: The metrics, by number.

            sessions: The rows of each session, in the order of arrival.

            events: The log.

            quantiles: Whether to read the quantiles of samples.

            newest: Whether only values count that were not accepted away.
        """
        packed: dict[int, list[bytes]] = {}
        decoder = _Decoder(numbers, events, quantiles=quantiles)
        with self._readable():
            for rows in sessions:
                session = rows[0][0]
                (head,) = self._heads([session]).values()
                decoder.heads[session] = head
                self._learn_settings(decoder.settings, {row[3] for row in rows})
                details = self._details(session, {row[2] for row in rows})
                for place, values in _by_place(rows).items():
                    _, test, setting, _ = place
                    if not events.hidden(test, head.session.id):
                        one = (session, setting, details.get(place), values)
                        packed.setdefault(test, []).append(decoder.packed(one))
        at = {keys[test]: test for test in packed}

        def decode(
            key: RecordKey, several: Sequence[bytes]
        ) -> tuple[StoredRecord, ...]:
            with self._readable():
                records = [decoder.record(key, at[key], one) for one in several]
            if not newest:
                return _whole(records)
            if events.has_accepts(at[key]):
                records = [_counting(record, at[key], events) for record in records]
            return joined([record for record in records if record.values])

        series = SeriesByKey({key: packed[at[key]] for key in sorted(at)}, decode)
        if len(series) > _FEW_TESTS:
            return series
        return {key: records for key, records in series.items() if records}

    @contextlib.contextmanager
    def _readable(self) -> Iterator[None]:
        """Name the store in the error of a row that cannot be read."""
        try:
            yield
        except (*UNREADABLE_ROW, KeyError) as error:
            raise BaselineCorruptError(
                f"a row cannot be read ({error})",
                remedy="restore the database from a copy",
                path=self._place,
            ) from error

    def _learn_settings(self, settings: dict[int, Any], wanted: set[int]) -> None:
        for some in chunks(wanted - settings.keys()):
            statement = f"SELECT id, content FROM setting WHERE id IN ({some})"  # noqa: S608 - numbers
            settings |= {n: setting_of(c) for n, c in self._engine.rows(statement)}

    def _heads(self, arrivals: Collection[int]) -> dict[int, _Head]:
        heads = {}
        for some in chunks(arrivals):
            for arrival, content, soft in self._engine.rows(
                f"SELECT arrival, content, soft FROM session WHERE arrival IN ({some})"  # noqa: S608 - numbers
            ):
                heads[arrival] = _Head(
                    arrival=arrival,
                    session=session_of(content),
                    soft=msgspec.json.decode(soft),
                )
        return heads


def _alike(
    tests: Iterable[int], numbers: Mapping[int, MetricRow], events: EventLog | None
) -> dict[tuple[int | None, str], list[int]]:
    """Return tests by the first session that may count and the metrics, as in a statement."""
    alike: dict[tuple[int | None, str], list[int]] = {}
    for test in tests:
        starts: dict[int | None, list[str]] = {}
        for number, row in numbers.items():
            start = None if events is None else events.start(test, row[0])
            starts.setdefault(start, []).append(str(number))
        for start, some in starts.items():
            alike.setdefault((start, ",".join(some)), []).append(test)
    return alike


_Packed = tuple[int, int, bytes | None, Sequence[tuple[Any, ...]]]


def _by_place(rows: Iterable[_Row]) -> dict[_Place, list[tuple[Any, ...]]]:
    """Return the last columns of rows by record, in the order of the revisions."""
    places: dict[_Place, list[tuple[Any, ...]]] = {}
    is_again = False
    for session, metric, test, setting, revision, *columns in rows:
        place = (session, test, setting, revision)
        is_again = is_again or revision > 0
        places.setdefault(place, []).append((metric, *columns))
    if not is_again:
        return places
    return {place: places[place] for place in sorted(places, key=lambda p: p[3])}


class _Decoder:
    """
    Makes records of rows.

    Args:
        numbers: The metrics, by number.

        events: The log.

        quantiles: Whether records have the quantiles of samples.
    """

    def __init__(
        self, numbers: Mapping[int, MetricRow], events: EventLog, *, quantiles: bool
    ) -> None:
        self.heads: dict[int, _Head] = {}
        self.settings: dict[int, Any] = {}
        self._numbers = numbers
        self._events = events
        self._quantiles = quantiles
        # A value without a rest of each metric and series.
        self._usual: dict[tuple[int, int], SessionValue] = {}

    def packed(self, record: _Packed) -> bytes:
        """
        Return the columns of a record as one text.

        Raises:
            ValueError: The record cannot be read.
        """
        session, setting, detail, values = record
        if not is_readable_detail(detail, quantiles=self._quantiles):
            detail = None
        for _, number, half_width, rest in values:
            check_value(number, half_width, rest)
        return msgspec.msgpack.encode((session, setting, detail, values))

    def record(self, key: RecordKey, test: int, packed: bytes) -> StoredRecord:
        """Return a record of its packed columns."""
        session, setting, content, columns = _PACKED.decode(packed)
        head, detail = self.heads[session], detail_of(content)
        quantiles = quantiles_of(detail) if self._quantiles else {}
        values = []
        for metric, number, width, rest in columns:
            row = self._numbers[metric]
            series = self._events.series(test, row[0], head.session.id, session)
            of_metric = quantiles.get(metric, ())
            is_usual = rest is None and not of_metric
            usual = self._usual.get((metric, series)) if is_usual else None
            if usual is not None:
                values.append(value_like(usual, number, width))
                continue
            made = value_of(
                row, number, width, rest, series=series, quantiles=of_metric
            )
            if is_usual:
                self._usual[metric, series] = made
            values.append(made)
        return record_of(
            key,
            head.session,
            tuple(values),
            setting=self.settings[setting],
            detail=detail,
            shared=head.soft,
            arrival=session,
        )


def _whole(records: Iterable[StoredRecord]) -> tuple[StoredRecord, ...]:
    """Return all sessions of a measurement, in the order of arrival."""
    whole: dict[tuple[int, str | None], StoredRecord] = {}
    for record in sorted(records, key=lambda record: record.arrival):
        # The last revision of a session counts.
        whole[record.arrival, record.choice] = record
    return tuple(whole.values())


def _counting(record: StoredRecord, test: int, events: EventLog) -> StoredRecord:
    """Return a record with the values that were not accepted away."""
    return replace(
        record,
        values=tuple(
            value
            for value in record.values
            if value.series == events.accept_count(test, value.metric)
        ),
    )


def _can_be_stored(text: str) -> bool:
    """Return False for a text that is not Unicode, which no database holds."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
