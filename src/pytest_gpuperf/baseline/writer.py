"""Adds sessions to the tables of a database."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import msgspec

from pytest_gpuperf.baseline.engine import chunks, id_of_test, known_ids, metric_numbers
from pytest_gpuperf.baseline.events import EventLog, StoreEvent, events_in
from pytest_gpuperf.baseline.history import (
    Append,
    Drop,
    Move,
    PutBack,
    Restart,
    StoreChange,
    of_newest_series,
)
from pytest_gpuperf.baseline.reader import SessionReader
from pytest_gpuperf.baseline.tables import (
    MetricRow,
    company_of,
    detail_bytes,
    digest_id,
    json_text,
    metric_row,
    plain,
    session_text,
    setting_text,
    value_columns,
)
from pytest_gpuperf.model.environment import Session
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.record import RecordKey, StoredRecord

if TYPE_CHECKING:
    from pytest_gpuperf.baseline.engine import Engine

# The first columns of a row, which are the key of its table.
_KEY_OF_VALUE, _KEY_OF_DETAIL = itemgetter(slice(5)), itemgetter(slice(4))


class SessionWriter:
    """
    Adds the sessions of a slug, inside of a transaction.

    Args:
        engine: The open database.

        slug: The kind of machine.

        new: The numbers of the sessions that this transaction has added. All writers of
            the transaction share it.
    """

    def __init__(self, engine: Engine, slug: str, new: set[int] | None = None) -> None:
        self._engine = engine
        self._slug = slug
        self._new = set() if new is None else new
        # The sessions of which this writer has added records.
        self._written: set[int] = set()

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
            (kind, id_of_test(self._slug, drop.key), session, "")
            for drop in drops
            for session in sorted(self._dropped(drop))
        )

    def _dropped(self, drop: Drop) -> Collection[str]:
        """
        Return the sessions that a change drops.

        If none is left that counts, those before them are dropped, too. They would count
        in their place.
        """
        reader = SessionReader(self._engine, self._slug)
        tests = [drop.key.test_id]
        counting = reader.load(self._slug, tests).get(drop.key, ())
        if not drop.session_ids.issuperset(r.session.id for r in counting):
            return drop.session_ids
        whole = reader.load(self._slug, tests, newest=False).get(drop.key, ())
        return drop.session_ids.union(r.session.id for r in of_newest_series(whole))

    def unhide(self, records: Iterable[StoredRecord]) -> None:
        """Let sessions count again that were hidden."""
        self._log(
            ("restore", id_of_test(self._slug, r.key), r.session.id, "")
            for r in records
        )

    def _accept(self, change: Restart) -> None:
        ((until,),) = self._engine.rows("SELECT MAX(arrival) FROM session")
        metrics = None if change.metrics is None else sorted(change.metrics)
        ((accepted, _),) = self._session_row(change.record.session) or [(0, "")]
        content = json_text([until or 0, accepted, metrics])
        test = id_of_test(self._slug, change.key)
        self._log([("accept", test, change.record.session.id, content)])

    def _move(self, change: Move) -> None:
        reader = SessionReader(self._engine, self._slug)
        stored = reader.load(self._slug, [change.old.test_id], newest=False)
        moved = [
            record
            for record in stored.get(change.old, ())
            if change.renamed or record.has_node_id
        ]
        old, new = (id_of_test(self._slug, key) for key in (change.old, change.key))
        # Sessions before an accepted level do not count again under the new key.
        log = EventLog(events_in(self._engine, f"WHERE e.test IN ({old},{new})"))
        known = {*log.accepts(new)}
        accepts = [entry for entry in log.accepts(old) if moved and entry not in known]
        self._add(
            replace(
                record,
                key=change.key,
                node_id=record.key.test_id if record.has_node_id else record.node_id,
            )
            for record in moved
        )
        gone = [("drop", old, r.session.id, "") for r in moved]
        self._log([*(("accept", new, *entry) for entry in accepts), *gone])

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
        arrival, shared = self._session(session, records)
        is_new = arrival in self._new and arrival not in self._written
        self._written.add(arrival)
        tests = {record.key: id_of_test(self._slug, record.key) for record in records}
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
        # In the order of their keys, which fills the pages of a database.
        self._engine.insert("value", sorted(values, key=_KEY_OF_VALUE))
        self._engine.insert("detail", sorted(details, key=_KEY_OF_DETAIL))
        if not is_new:
            self._show_again(records)

    def _session(
        self, session: Session, records: Sequence[StoredRecord]
    ) -> tuple[int, Mapping[str, str]]:
        """Store a session unless known, and return its number and its soft facts."""
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
        if is_new:
            self._new.add(arrival)
        self._engine.insert("part", [(arrival, plain(self._slug))])
        return arrival, msgspec.json.decode(soft)

    def _session_row(self, session: Session) -> Sequence[tuple[int, str]]:
        statement = "SELECT arrival, soft FROM session WHERE id = ?"
        return [(a, s) for a, s in self._engine.rows(statement, plain(session.id))]

    def _metrics(self, records: Iterable[StoredRecord]) -> dict[MetricRow, int]:
        wanted = {metric_row(value) for record in records for value in record.values}
        known = metric_numbers(self._engine)
        if missing := sorted(wanted - known.keys()):
            self._engine.insert("metric", missing)
            known = metric_numbers(self._engine)
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
        known = known_ids(self._engine, table, {row[0] for row in rows})
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
        tests = {id_of_test(self._slug, record.key): record for record in records}
        found: list[StoreEvent] = []
        for some in chunks(tests):
            found += events_in(self._engine, f"WHERE e.test IN ({some})")
        events = EventLog(found)
        self.unhide(
            record
            for test, record in tests.items()
            if events.hidden(test, record.session.id)
        )
