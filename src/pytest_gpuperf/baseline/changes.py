"""Changes of a store, and the sessions that they leave."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pytest_gpuperf.baseline.history import Numbered, joined, keep_newest, newest_series
from pytest_gpuperf.model.frozen import Frozen, replace
from pytest_gpuperf.model.record import RecordKey, StoredRecord, module_of


class Append(Frozen, frozen=True, kw_only=True):
    """
    Add one session to the store.

    Attributes:
        record: The session to add. Without values, nothing is added. The session
            replaces an earlier record of the same session, measurement and choice.
    """

    record: StoredRecord

    @property
    def key(self) -> RecordKey:
        """The measurement of the session."""
        return self.record.key


class Restart(Frozen, frozen=True, kw_only=True):
    """
    Drop the stored sessions of a measurement, for every choice, then add one session.

    Attributes:
        record: The session to add, as in `Append`. Its key selects the sessions to
            drop.

        metrics: The metrics whose values are dropped, or None to drop whole sessions.
    """

    record: StoredRecord
    metrics: frozenset[str] | None = None

    @property
    def key(self) -> RecordKey:
        """The measurement of the session to add."""
        return self.record.key


class Drop(Frozen, frozen=True, kw_only=True):
    """
    Remove sessions of a measurement.

    Attributes:
        key: The measurement.

        session_ids: The sessions.
    """

    key: RecordKey
    session_ids: frozenset[str]


class Move(Frozen, frozen=True, kw_only=True):
    """
    Give stored sessions of a measurement another key.

    Attributes:
        key: The measurement.

        old: The measurement with its present key.

        renamed: Whether the test was renamed, so that all sessions move. Otherwise only
            sessions stored under a pytest id get the key of their test.
    """

    key: RecordKey
    old: RecordKey
    renamed: bool = False


class PutBack(Frozen, frozen=True, kw_only=True):
    """
    Put sessions back that were removed. Newer sessions continue their series.

    Attributes:
        key: The measurement.

        records: The sessions as they were stored.
    """

    key: RecordKey
    records: tuple[StoredRecord, ...]


StoreChange = Append | Restart | Drop | Move | PutBack


def _put_back(
    records: Sequence[StoredRecord], newer: Sequence[StoredRecord]
) -> Sequence[StoredRecord]:
    """Return the sessions put back, and the newer sessions renumbered to continue their series."""
    series = newest_series(records)
    known = {record.session.id for record in records}
    gone_on = [
        replace(
            record,
            values=tuple(
                replace(value, series=value.series + series.get(value.metric, 0))
                for value in record.values
            ),
        )
        for record in newer
        if record.session.id not in known
    ]
    others = [record for record in newer if record.session.id in known]
    return joined([*others, *records, *gone_on])


def applied(
    stored: Mapping[RecordKey, Sequence[StoredRecord]], changes: Iterable[StoreChange]
) -> dict[RecordKey, tuple[StoredRecord, ...]]:
    """
    Return the stored sessions after some changes, in the order of the keys.

    Args:
        stored: The sessions of each measurement before.

        changes: The changes, in order.
    """
    lists = {key: list(records) for key, records in stored.items()}
    for change in changes:
        before = lists.get(change.key, [])
        if isinstance(change, Move):
            earlier = lists.get(change.old, [])
            moved = [r for r in earlier if change.renamed or r.has_node_id]
            lists[change.old] = [r for r in earlier if r not in moved]
            keyed = [
                # A pytest id moves from the key to `node_id`.
                replace(
                    r,
                    key=change.key,
                    node_id=r.key.test_id if r.has_node_id else r.node_id,
                )
                for r in moved
            ]
            lists[change.key] = [*joined((*keyed, *before))]
            continue
        if isinstance(change, PutBack):
            lists[change.key] = [*_put_back(change.records, before)]
            continue
        sessions = _left_by(change, before)
        if not isinstance(change, Drop) and change.record.values:
            sessions = [*sessions, in_series(change, before)]
        lists[change.key] = sessions
    return {key: keep_newest(lists[key]) for key in sorted(lists) if lists[key]}


def arrived(
    changes: Iterable[StoreChange], arrivals: Mapping[str, int]
) -> list[StoreChange]:
    """
    Add arrival numbers to the sessions of changes.

    Args:
        changes: The changes, in order.

        arrivals: The arrival number of each stored session, by session id. A session
            that is not listed gets the next number.
    """
    numbers = dict(arrivals)
    numbered: list[StoreChange] = []
    for change in changes:
        if isinstance(change, (Drop, Move, PutBack)):
            numbered.append(change)
            continue
        session_id = change.record.session.id
        if session_id not in numbers:
            numbers[session_id] = max(numbers.values(), default=0) + 1
        record = replace(change.record, arrival=numbers[session_id])
        numbered.append(replace(change, record=record))
    return numbered


def dropped_by(change: Append | Restart | Drop, stored: Sequence[StoredRecord]) -> int:
    """Return the number of stored sessions that lose values by a change."""
    left = _left_by(change, stored)
    return sum(record not in left for record in stored)


def in_series(change: Append | Restart, before: Iterable[Numbered]) -> StoredRecord:
    """
    Return the session that a change adds, with the series of each value.
    """
    newest = newest_series(before)
    values = []
    for value in change.record.values:
        number = newest.get(value.metric)
        if number is not None and isinstance(change, Restart):
            number += change.metrics is None or value.metric in change.metrics
        values.append(replace(value, series=number or 0))
    return replace(change.record, values=tuple(values))


def _left_by(
    change: Append | Restart | Drop, records: Sequence[StoredRecord]
) -> list[StoredRecord]:
    if isinstance(change, Append):
        return list(records)
    if isinstance(change, Drop):
        return [r for r in records if r.session.id not in change.session_ids]
    if change.metrics is None:
        return []
    return [
        replace(record, values=values)
        for record in records
        if (values := tuple(v for v in record.values if v.metric not in change.metrics))
    ]


def modules_of(changes: Iterable[StoreChange]) -> dict[str, None]:
    """Return the modules of the tests whose sessions changes concern, without duplicates."""
    modules: dict[str, None] = {}
    for change in changes:
        modules[module_of(change.key.test_id)] = None
        if isinstance(change, Move):
            modules[module_of(change.old.test_id)] = None
    return modules
