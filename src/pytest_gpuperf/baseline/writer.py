"""Adds sessions to the tables of a database."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import msgspec

from pytest_gpuperf.baseline.changes import (
    Append,
    Drop,
    Move,
    PutBack,
    Restart,
    StoreChange,
)
from pytest_gpuperf.baseline.engine import (
    METRICS,
    chunks,
    id_of_test,
    id_statements,
    metric_numbers,
)
from pytest_gpuperf.baseline.events import EventLog, StoreEvent, events_in
from pytest_gpuperf.baseline.history import of_newest_series
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
from pytest_gpuperf.model.record import StoredRecord

if TYPE_CHECKING:
    from pytest_gpuperf.baseline.engine import Engine, Rows, Statement

# The first columns of a row, which are the key of its table.
_KEY_OF_VALUE, _KEY_OF_DETAIL = itemgetter(slice(5)), itemgetter(slice(4))
_FIND_SESSION = "SELECT arrival, soft FROM session WHERE id = ?"

# A kind of machine and one of its records.
Entry = tuple[str, StoredRecord]
# An entry of the log: kind, test, session and content.
Event = tuple[str, int, str, str]


class SessionWriter:
    """
    Changes the sessions of a slug, inside of a transaction.

    Args:
        adder: Adds the records of the transaction. Its owner flushes it at the end.

        slug: The kind of machine.
    """

    def __init__(self, adder: RecordAdder, slug: str) -> None:
        self._adder = adder
        self._engine = adder.engine
        self._slug = slug

    def apply(self, changes: Sequence[StoreChange]) -> None:
        """Apply changes in order."""
        for change in changes:
            if isinstance(change, (Append, Restart)):
                if change.record.values:
                    self._adder.add(self._slug, change.record)
                if isinstance(change, Append):
                    continue
            # What came before is needed to drop, to move or to restart it.
            self._adder.flush()
            if isinstance(change, Drop):
                self.hide([change], kind="drop")
            elif isinstance(change, Restart):
                self._accept(change)
            elif isinstance(change, Move):
                self._move(change)
            elif isinstance(change, PutBack):
                self._add(change.records)
                self.unhide(change.records)

    def hide(self, drops: Iterable[Drop], *, kind: str) -> None:
        """Let sessions no longer count."""
        events = [
            (kind, id_of_test(self._slug, drop.key), session, "")
            for drop in drops
            for session in sorted(self._dropped(drop))
        ]
        log_events(self._engine, events)

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
        events = [
            ("restore", id_of_test(self._slug, r.key), r.session.id, "")
            for r in records
        ]
        log_events(self._engine, events)

    def _add(self, records: Iterable[StoredRecord]) -> None:
        for record in records:
            self._adder.add(self._slug, record)
        self._adder.flush()

    def _accept(self, change: Restart) -> None:
        ((until,),) = self._engine.rows("SELECT MAX(arrival) FROM session")
        metrics = None if change.metrics is None else sorted(change.metrics)
        accepted = self._adder.arrival_of(change.record.session)
        content = json_text([until or 0, accepted, metrics])
        test = id_of_test(self._slug, change.key)
        log_events(self._engine, [("accept", test, change.record.session.id, content)])

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
        log_events(
            self._engine, [*(("accept", new, *entry) for entry in accepts), *gone]
        )


def log_events(engine: Engine, events: Sequence[Event]) -> None:
    """Add entries to the log of a database, if there are any."""
    if not events:
        return
    ((now,),) = engine.rows(engine.time_statement)
    ((last,),) = engine.rows("SELECT MAX(arrival) FROM event")
    rows = []
    for number, (kind, test, session, content) in enumerate(events, last or 0):
        parts = (kind, str(test), session, content, repr(now), str(number))
        event_id = digest_id("event", *parts)
        rows.append((event_id, now, kind, test, plain(session), content))
    engine.insert("event", rows)


class RecordAdder:
    """
    Adds records, inside of a transaction.

    Those of all slugs of a session are added together. A server gets few statements so,
    each of which costs it more than a hundred rows.

    Args:
        engine: The open database.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        # By session. The last record of a slug, measurement and choice counts.
        self._pending: dict[str, dict[tuple[object, ...], Entry]] = {}
        self._metrics: dict[MetricRow, int] = {}
        # What is known to be in a table, because it was looked up or added.
        self._known: dict[str, set[int]] = {"test": set(), "setting": set()}
        # Number and soft facts by the id of a session.
        self._sessions: dict[str, tuple[int, Mapping[str, str]]] = {}
        # The sessions that this transaction has added, and the parts of them that have
        # no records yet.
        self._new: set[str] = set()
        self._now_unix_s = 0.0  # Of the last look at the database.
        self._written: set[tuple[str, str]] = set()

    def add(self, slug: str, record: StoredRecord) -> None:
        """Take a record, in place of that of the same session, measurement and choice."""
        entries = self._pending.setdefault(record.session.id, {})
        entries[slug, record.key, record.choice] = (slug, record)

    def flush(self) -> None:
        """Add the records that were taken."""
        pending, self._pending = self._pending, {}
        for entries in pending.values():
            self._add_session([*entries.values()])

    def arrival_of(self, session: Session) -> int:
        """Return the number of a session, or 0 if it has none."""
        self._look_up(session.id, {})
        return self._sessions[session.id][0] if session.id in self._sessions else 0

    def _look_up(self, session_id: str, ids: Mapping[str, Collection[int]]) -> None:
        """Learn which rows of a session the database has, and the time."""
        asked: list[tuple[str, Statement]] = [
            ("time", (self.engine.time_statement, ())),
            ("metric", (METRICS, ())),
            ("session", (_FIND_SESSION, (plain(session_id),))),
        ]
        for table, wanted in ids.items():
            new = {*wanted} - self._known[table]
            asked += [(table, statement) for statement in id_statements(table, new)]
        answers = self.engine.rows_of_each([statement for _, statement in asked])
        for (table, _), rows in zip(asked, answers, strict=True):
            if table == "time":
                ((self._now_unix_s,),) = rows
            elif table == "metric":
                self._metrics = metric_numbers(rows)
            elif table == "session":
                self._keep_session(session_id, rows)
            else:
                self._known[table].update(number for (number,) in rows)

    def _keep_session(self, session_id: str, rows: Rows) -> None:
        for arrival, soft in rows:
            self._sessions[session_id] = (arrival, msgspec.json.decode(soft))

    def _add_session(self, entries: Sequence[Entry]) -> None:
        session = entries[0][1].session
        tests = [id_of_test(slug, record.key) for slug, record in entries]
        texts = [setting_text(record) for _, record in entries]
        settings = {text: digest_id("setting", text) for text in dict.fromkeys(texts)}
        self._look_up(session.id, {"test": tests, "setting": settings.values()})
        self._insert_metrics(entries)
        self._insert_session(session, entries)
        self._insert_named(
            "test",
            {
                number: (plain(slug), plain(record.key.test_id), plain(record.key.name))
                for number, (slug, record) in zip(tests, entries, strict=True)
            },
        )
        self._insert_named("setting", {n: (text,) for text, n in settings.items()})
        again = {
            number: record
            for number, (slug, record) in zip(tests, entries, strict=True)
            if session.id not in self._new or (session.id, slug) in self._written
        }
        self._written |= {(session.id, slug) for slug, _ in entries}
        rows = (
            (n, settings[t], r)
            for n, t, (_, r) in zip(tests, texts, entries, strict=True)
        )
        self._insert_values(session.id, rows, again)
        self._show_again(again)

    def _insert_values(
        self,
        session_id: str,
        rows: Iterable[tuple[int, int, StoredRecord]],
        again: Collection[int],
    ) -> None:
        """
        Add the values and the details of records.

        Args:
            session_id: The session.

            rows: Test, setting and record.

            again: The tests of which the session may have records.
        """
        arrival, shared = self._sessions[session_id]
        present = self._present(arrival, again) if again else {}
        values: list[tuple[object, ...]] = []
        details: list[tuple[object, ...]] = []
        for test, setting, record in rows:
            columns = [
                (self._metrics[metric_row(value)], *value_columns(value))
                for value in record.values
            ]
            detail = detail_bytes(record, self._metrics, shared)
            earlier = present.get(test, {})
            revision = max(earlier, default=-1) + 1
            # A session is sent again if the answer of the database was lost.
            if earlier and earlier[revision - 1] == (setting, sorted(columns), detail):
                continue
            values += (
                (arrival, c[0], test, setting, revision, *c[1:]) for c in columns
            )
            if detail is not None:
                details.append((arrival, test, setting, revision, detail))
        # In the order of their keys, which fills the pages of a database.
        self.engine.insert("value", sorted(values, key=_KEY_OF_VALUE))
        self.engine.insert("detail", sorted(details, key=_KEY_OF_DETAIL))

    def _insert_session(self, session: Session, entries: Sequence[Entry]) -> None:
        """Add a session unless it is known, and its parts."""
        if session.id not in self._sessions:
            shared = dict(entries[0][1].soft_facts)
            for _, record in entries:
                if record.soft_facts != shared:
                    shared = dict(shared.items() & record.soft_facts.items())
            row = (
                plain(session.id),
                session.started_unix_s,
                self._now_unix_s,
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
            self.engine.insert("session", [row])
            found = self.engine.rows(_FIND_SESSION, plain(session.id))
            self._keep_session(session.id, found)
            self._new.add(session.id)
        arrival, _ = self._sessions[session.id]
        slugs = sorted({slug for slug, _ in entries})
        self.engine.insert("part", [(arrival, plain(slug)) for slug in slugs])

    def _insert_metrics(self, entries: Iterable[Entry]) -> None:
        wanted = {metric_row(value) for _, record in entries for value in record.values}
        if missing := sorted(wanted - self._metrics.keys()):
            self.engine.insert("metric", missing)
            self._metrics = metric_numbers(self.engine.rows(METRICS))

    def _insert_named(self, table: str, rows: Mapping[int, tuple[str, ...]]) -> None:
        """
        Add rows whose id is a digest of the rest.

        They are sorted, so that two writers wait for each other and never in a circle.
        """
        new = sorted(rows.keys() - self._known[table])
        self.engine.insert(table, [(number, *rows[number]) for number in new])
        self._known[table].update(new)

    def _present(
        self, arrival: int, wanted: Collection[int]
    ) -> dict[int, dict[int, tuple[int, list[tuple[Any, ...]], bytes | None]]]:
        """Return setting, values and detail of a session's records, by test and revision."""
        found: dict[int, dict[int, tuple[int, list[tuple[Any, ...]], bytes | None]]]
        found = {}
        for test, revision, setting, *value in self.engine.rows(
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
            for test, revision, content in self.engine.rows(
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

    def _show_again(self, again: Mapping[int, StoredRecord]) -> None:
        """Let a dropped session count again that was stored again."""
        found: list[StoreEvent] = []
        for some in chunks(again):
            found += events_in(self.engine, f"WHERE e.test IN ({some})")
        log = EventLog(found)
        log_events(
            self.engine,
            [
                ("restore", test, record.session.id, "")
                for test, record in again.items()
                if log.hidden(test, record.session.id)
            ],
        )
