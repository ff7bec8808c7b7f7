"""The stored sessions of a measurement, as values."""

from __future__ import annotations

from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)

from pytest_gpuperf.model.activity import KernelTotal
from pytest_gpuperf.model.environment import (
    Session,
    differences,
    facts_of,
    same_company,
)
from pytest_gpuperf.model.frozen import Frozen, replace
from pytest_gpuperf.model.record import (
    REFERENCES,
    STORE_VERSION,
    Record,
    RecordKey,
    SessionValue,
    StoredRecord,
)
from pytest_gpuperf.model.sample import Estimate

__all__ = [
    "SESSION_LIMIT",
    "Append",
    "Drop",
    "Move",
    "PutBack",
    "Restart",
    "StoreChange",
    "applied",
    "arrived",
    "by_key",
    "dropped_by",
    "joined",
    "keep_newest",
    "of_project",
    "slugs_holding",
    "stored_record",
    "with_alone",
]

# docs/judging.md section 2: a baseline has at most so many sessions of a test and choice
SESSION_LIMIT = 20
_MOST_KERNELS = 64  # of a test whose kernels are stored: more make its lines long
_TIME_DIGITS = 4  # of a kernel's time, which no verdict uses


class Append(Frozen, frozen=True, kw_only=True):
    """
    Add one session to the store.

    Attributes:
        record: The session; without values it adds nothing. It replaces an earlier record
            of the same session, measurement and choice.
    """

    record: StoredRecord

    @property
    def key(self) -> RecordKey:
        """The measurement that it is of."""
        return self.record.key


class Restart(Frozen, frozen=True, kw_only=True):
    """
    Drop the stored sessions of a measurement, of every choice, then add one.

    Attributes:
        record: The session to add, as in `Append`; its key selects what to drop.

        metrics: Drop only the values of these metrics; None: whole sessions.
    """

    record: StoredRecord
    metrics: frozenset[str] | None = None

    @property
    def key(self) -> RecordKey:
        """The measurement that it is of."""
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

        old: The measurement with the key that the sessions have.

        renamed: Whether its test was renamed, and all sessions are meant. Otherwise those
            that were stored under an id of pytest get the key of their test.
    """

    key: RecordKey
    old: RecordKey
    renamed: bool = False


class PutBack(Frozen, frozen=True, kw_only=True):
    """
    Put sessions back that were removed from the store; newer ones go on with their series.

    Attributes:
        key: The measurement.

        records: Its sessions as they were stored.
    """

    key: RecordKey
    records: tuple[StoredRecord, ...]


StoreChange = Append | Restart | Drop | Move | PutBack


def keep_newest(records: Iterable[StoredRecord]) -> tuple[StoredRecord, ...]:
    """
    Return the sessions of one measurement, none twice, in the order of their arrival.

    Args:
        records: Sessions of one key, in any order; of two with equal id and choice the
            later one in this order stays. Of each choice and company `SESSION_LIMIT` are
            kept: runs of a part must not push out those of the whole.
    """
    unique = {(record.choice, record.session.id): record for record in records}
    ordered = sorted(unique.values(), key=_age)
    if len(ordered) <= SESSION_LIMIT:
        return tuple(ordered)
    newest_first: list[StoredRecord] = []
    for record in reversed(ordered):
        newer_count = sum(
            newer.choice == record.choice
            and same_company(newer.session, record.session)
            for newer in newest_first
        )
        if newer_count < SESSION_LIMIT:
            newest_first.append(record)
    return tuple(reversed(newest_first))


def by_key(
    records: Iterable[StoredRecord],
) -> dict[RecordKey, tuple[StoredRecord, ...]]:
    """
    Return the sessions of each measurement, in the order of the keys.

    A merge of two branches brings back the lines that one of them has replaced: values of
    an earlier series are left out.
    """
    lists: dict[RecordKey, list[StoredRecord]] = {}
    for record in records:
        lists.setdefault(record.key, []).append(record)
    return {key: joined(lists[key]) for key in sorted(lists)}


def joined(records: Sequence[StoredRecord]) -> tuple[StoredRecord, ...]:
    """Return the sessions of one measurement, out of several places, as `by_key` does."""
    return keep_newest(_newest_series(records))


def _keyed(record: StoredRecord, key: RecordKey) -> StoredRecord:
    """Return a session with another key; an id of pytest is no key from now on."""
    node_id = record.key.test_id if record.has_node_id else record.node_id
    return replace(record, key=key, node_id=node_id)


def _put_back(
    records: Sequence[StoredRecord], newer: Sequence[StoredRecord]
) -> Sequence[StoredRecord]:
    """Return sessions that are put back, and newer ones in the series of these."""
    series = _series(records)
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


def _newest_series(records: Sequence[StoredRecord]) -> Sequence[StoredRecord]:
    """Return the sessions of a measurement without values of earlier series."""
    newest = _series(records)
    if not any(newest.values()):
        return records
    return [
        replace(record, values=values)
        for record in records
        if (values := tuple(v for v in record.values if v.series == newest[v.metric]))
    ]


def _series(records: Iterable[StoredRecord]) -> dict[str, int]:
    """Return the newest series of each metric of a measurement."""
    newest: dict[str, int] = {}
    for record in records:
        for value in record.values:
            newest[value.metric] = max(value.series, newest.get(value.metric, 0))
    return newest


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
            keyed = [_keyed(record, change.key) for record in moved]
            lists[change.key] = [*joined((*keyed, *before))]
            continue
        if isinstance(change, PutBack):
            lists[change.key] = [*_put_back(change.records, before)]
            continue
        sessions = _left_by(change, before)
        if not isinstance(change, Drop) and change.record.values:
            sessions = [*sessions, _in_series(change, before)]
        lists[change.key] = sessions
    return {key: keep_newest(lists[key]) for key in sorted(lists) if lists[key]}


def arrived(
    changes: Iterable[StoreChange], arrivals: Mapping[str, int]
) -> list[StoreChange]:
    """
    Return changes whose sessions have arrival numbers.

    Args:
        changes: The changes, in order.

        arrivals: The number of each session of the store, by id; a session that is not
            among them gets the next one.
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
    """Return from how many stored sessions of its measurement a change takes values."""
    left = _left_by(change, stored)
    return sum(record not in left for record in stored)


def of_project(
    records: Collection[StoredRecord],
    test_ids: Collection[str],
    commits: Collection[str],
) -> frozenset[str]:
    """
    Return the ids of the sessions that are certain to be of one project.

    Several projects may share a store. Sessions are of one if they measured one test, or if
    their commits are one, or parent and child, also by way of other sessions.

    Args:
        records: The stored sessions.

        test_ids: The keys of tests of the project.

        commits: Commits of it.
    """
    tests, known = set(test_ids), set(commits)
    by_session: dict[str, list[StoredRecord]] = {}
    for record in records:
        by_session.setdefault(record.session.id, []).append(record)
    found: set[str] = set()
    while True:
        linked = [
            session_id
            for session_id, several in by_session.items()
            if session_id not in found
            and (
                not known.isdisjoint(_commits(several[0].session))
                or any(record.key.test_id in tests for record in several)
            )
        ]
        if not linked:
            return frozenset(found)
        found.update(linked)
        for session_id in linked:
            ids = {record.key.test_id for record in by_session[session_id]}
            tests.update(ids - {REFERENCES})  # which all projects have
            known.update(_commits(by_session[session_id][0].session))


def _commits(session: Session) -> list[str]:
    """Return the commit of a session and its parent, if they are known."""
    return [*filter(None, (session.commit, session.parent))]


def stored_record(
    records: Sequence[Record], session: Session, version: int = STORE_VERSION
) -> StoredRecord:
    """
    Return one session's records, of several processes, as a baseline stores them.

    Values of single kernels are dropped; key, choice, facts and kernels are those of the
    first record.

    Args:
        records: One for each process, of one key and none void, >= 1 of them.

        session: When and where.

        version: The version of the format that the records were first written in.
    """
    first = records[0]
    series: dict[tuple[str, str, str], list[Estimate]] = {}
    for record in records:
        for estimate in record.estimates:
            if estimate.kernel is None:
                name = (estimate.metric, estimate.unit, estimate.source)
                series.setdefault(name, []).append(estimate)
    return StoredRecord(
        key=first.key,
        session=session,
        values=tuple(SessionValue.of(estimates) for estimates in series.values()),
        choice=first.choice,
        facts=first.facts,
        soft_facts=first.soft_facts,
        bound_class=first.bound_class,
        parameters_digest=first.parameters_digest,
        test_digest=first.test_digest,
        code_digest=first.code_digest,
        kernels=tuple(_stored_kernels(first)),
        schema_version=version,
    )


def with_alone(
    session: StoredRecord, records: Sequence[Record], *, suspected: bool = False
) -> StoredRecord:
    """
    Return a session with what fresh processes measured that ran its test alone.

    A value counts if it has the source, the unit, the choice of kernels and the hard facts
    of the session's own.

    Args:
        session: What the suite measured.

        records: One for each fresh process, of the same key, in any order.

        suspected: Whether the test ran alone because it was a suspect.
    """
    alike = [
        record
        for record in sorted(records, key=lambda record: record.process_index)
        if record.void is None and record.choice == session.choice
    ]
    values = []
    for value in session.values:
        estimates = _measured_alike(value, session, alike)
        if estimates:
            alone = SessionValue.of(estimates)
            value = replace(  # noqa: PLW2901 - the same value, completed
                value,
                alone_values=alone.run_values,
                alone_cores=alone.cores,
                suspected=suspected,
            )
        values.append(value)
    return replace(session, values=tuple(values))


def _measured_alike(
    value: SessionValue, session: StoredRecord, records: Sequence[Record]
) -> list[Estimate]:
    metric, source = value.metric, value.source
    facts = facts_of(session.facts, metric, source)
    return [
        estimate
        for record in records
        for estimate in record.estimates
        if (estimate.metric, estimate.unit, estimate.source, estimate.kernel)
        == (metric, value.unit, source, None)
        and not differences(facts_of(record.facts, metric, source), facts)
    ]


def _stored_kernels(record: Record) -> Iterator[KernelTotal]:
    """Yield the kernels of a record; none of many: half a list says nothing is new."""
    activity = record.activity
    if activity is None or activity.kernels_count > _MOST_KERNELS:
        return
    for total in activity.totals:
        yield replace(total, total_s=float(f"{total.total_s:.{_TIME_DIGITS}g}"))


def slugs_holding(
    keys: Collection[RecordKey],
    slugs: Iterable[str],
    load: Callable[[str, Collection[str]], Mapping[RecordKey, object]],
) -> dict[RecordKey, tuple[str, ...]]:
    """
    Return the slugs that have sessions of each measurement.

    Args:
        keys: The measurements to look for.

        slugs: The slugs to search.

        load: Loads the sessions of some test ids from a slug.

    Returns:
        The slugs by measurement, in the order given; measurements without any are absent.
    """
    test_ids = {key.test_id for key in keys}
    holding: dict[RecordKey, tuple[str, ...]] = {}
    for slug in slugs if test_ids else ():
        held = load(slug, test_ids)
        for key in keys:
            if key in held:
                holding[key] = (*holding.get(key, ()), slug)
    return holding


def _age(record: StoredRecord) -> tuple[int, float, str, bool, str]:
    """Return the sort key of sessions: by arrival, because a clock may go back."""
    choice = record.choice
    return (
        record.arrival,
        record.session.started_unix_s,  # of two branches that were merged
        record.session.id,
        choice is not None,
        choice or "",
    )


def _in_series(
    change: Append | Restart, before: Iterable[StoredRecord]
) -> StoredRecord:
    """Return the session that a change adds, each value in the series it goes on or starts."""
    newest = _series(before)
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
    """Return the stored sessions of a measurement that a change leaves."""
    if isinstance(change, Append):
        return list(records)
    if isinstance(change, Drop):
        return [r for r in records if r.session.id not in change.session_ids]
    left = (_without(record, change.metrics) for record in records)
    return [record for record in left if record is not None]


def _without(
    record: StoredRecord, metrics: frozenset[str] | None
) -> StoredRecord | None:
    """Return a session without some metrics; None: no value is left."""
    if metrics is None:
        return None
    values = tuple(value for value in record.values if value.metric not in metrics)
    return replace(record, values=values) if values else None
