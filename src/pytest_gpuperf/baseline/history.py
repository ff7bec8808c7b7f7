"""The stored sessions of a measurement, as immutable values."""

from __future__ import annotations

from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from operator import attrgetter
from typing import Protocol, TypeVar

from pytest_gpuperf.model.activity import KernelTotal
from pytest_gpuperf.model.environment import (
    Session,
    differences,
    facts_of,
    same_count,
)
from pytest_gpuperf.model.frozen import Frozen, replace
from pytest_gpuperf.model.record import (
    COMPARED_SESSIONS,
    REFERENCES,
    STORE_VERSION,
    Record,
    RecordKey,
    SessionValue,
    StoredRecord,
)
from pytest_gpuperf.model.sample import Estimate

# docs/judging.md section 2: the newest sessions of a test and choice that are kept, and
# the oldest, from which a drift is measured.
SESSION_LIMIT = COMPARED_SESSIONS
OLDEST_LIMIT = 3
# A test with more kernels would make its lines long, so its kernels are not stored.
_MOST_KERNELS = 64
# Significant digits of what only reports show, and no verdict uses.
_SHOWN_DIGITS = 4


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


class Aged(Protocol):
    """What decides whether a record is kept: a StoredRecord, or one still as a text."""

    @property
    def choice(self) -> str | None:
        """The hash of the kernels that ran."""

    @property
    def session(self) -> Session:
        """The session."""

    @property
    def arrival(self) -> int:
        """The number of the session in its store."""


class NumberedValue(Protocol):
    """A value with the number of its series."""

    @property
    def metric(self) -> str:
        """The metric."""

    @property
    def series(self) -> int:
        """The number of times that the series was restarted."""


class Numbered(Protocol):
    """A record with numbered values: a StoredRecord, or one still as a text."""

    @property
    def values(self) -> Sequence[NumberedValue]:
        """The values."""


_A = TypeVar("_A", bound=Aged)
_CHOICE = attrgetter("choice")
# Arrival comes first, because a clock may be set back. The start decides between
# sessions of two merged branches.
_ARRIVED = attrgetter("arrival", "session.started_unix_s", "session.id")


def keep_newest(records: Iterable[_A]) -> tuple[_A, ...]:
    """
    Return the sessions of a measurement without duplicates, in the order of arrival.

    Args:
        records: Sessions of one key, in any order. The last session with the same id
            and choice is kept. At most the newest `SESSION_LIMIT` and the oldest
            `OLDEST_LIMIT` sessions of each choice and company are kept, because runs of a
            part must not push out runs of the whole suite.
    """
    unique = {(record.choice, record.session.id): record for record in records}
    several = [*unique.values()]
    # The choice decides last, and most records have none.
    ordered = sorted(several, key=_age if any(map(_CHOICE, several)) else _ARRIVED)
    if len(ordered) <= SESSION_LIMIT:
        return tuple(ordered)
    kept = [
        *_first_of_each(reversed(ordered), SESSION_LIMIT),
        *_first_of_each(ordered, OLDEST_LIMIT),
    ]
    ids = {(record.choice, record.session.id) for record in kept}
    return tuple([r for r in ordered if (r.choice, r.session.id) in ids])


def newest_of(records: Sequence[_A], count: int) -> list[_A]:
    """
    Return the newest sessions of a measurement, in their order.

    Args:
        records: The sessions, oldest first.

        count: How many sessions of each choice and company are returned.
    """
    return _first_of_each(reversed(records), count)[::-1]


def _first_of_each(records: Iterable[_A], limit: int) -> list[_A]:
    """Return the first records of each choice and company, up to a limit."""
    first: list[_A] = []
    counts: dict[tuple[str | None, int | None], int] = {}
    for record in records:
        choice, ran_count = record.choice, record.session.ran_count
        alike_count = sum(
            count
            for (other, other_count), count in counts.items()
            if other == choice and same_count(other_count, ran_count)
        )
        if alike_count < limit:
            first.append(record)
            counts[choice, ran_count] = counts.get((choice, ran_count), 0) + 1
    return first


def by_key(
    records: Iterable[StoredRecord],
) -> dict[RecordKey, tuple[StoredRecord, ...]]:
    """
    Group sessions by measurement, in the order of the keys.

    A merge of two branches brings back lines that one branch has replaced. Values of an
    earlier series are therefore left out.
    """
    lists: dict[RecordKey, list[StoredRecord]] = {}
    for record in records:
        lists.setdefault(record.key, []).append(record)
    return {key: joined(lists[key]) for key in sorted(lists)}


def joined(records: Sequence[StoredRecord]) -> tuple[StoredRecord, ...]:
    """Merge the sessions of a measurement from several places, as `by_key` does."""
    return keep_newest(of_newest_series(records))


def of_newest_series(records: Sequence[StoredRecord]) -> Sequence[StoredRecord]:
    """Return the sessions of a measurement, without the values of an earlier series."""
    newest = _series(records)
    if not any(newest.values()):
        return records
    return [
        replace(record, values=values)
        for record in records
        if (values := tuple(v for v in record.values if v.series == newest[v.metric]))
    ]


def _put_back(
    records: Sequence[StoredRecord], newer: Sequence[StoredRecord]
) -> Sequence[StoredRecord]:
    """Return the sessions put back, and the newer sessions renumbered to continue their series."""
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


def _series(records: Iterable[Numbered]) -> dict[str, int]:
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


def of_project(
    records: Collection[StoredRecord],
    test_ids: Collection[str],
    commits: Collection[str],
) -> frozenset[str]:
    """
    Return the ids of the sessions that certainly belong to the project.

    Several projects may share a store. Sessions belong together if they measured the
    same test, or if their commits are equal or parent and child, also by way of other
    sessions.

    Args:
        records: The stored sessions.

        test_ids: The keys of tests of the project.

        commits: Commits of the project.
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
            # All projects have the reference workloads.
            tests.update(ids - {REFERENCES})
            known.update(_commits(by_session[session_id][0].session))


def _commits(session: Session) -> list[str]:
    return [*filter(None, (session.commit, session.parent))]


def stored_record(
    records: Sequence[Record], session: Session, version: int = STORE_VERSION
) -> StoredRecord:
    """
    Combine the records of the processes of a session into a stored record.

    Values of single kernels are dropped. Key, choice, facts and kernels come from the
    first record.

    Args:
        records: The record of each process, all with the same key and none void, >= 1
            record.

        session: Time and place of the measurement.

        version: The version of the format in which the records were first written.
    """
    first = records[0]
    series: dict[tuple[str, str, str], list[Estimate]] = {}
    for record in records:
        for estimate in record.estimates:
            if estimate.kernel is None:
                name = (estimate.metric, estimate.unit, estimate.source)
                series.setdefault(name, []).append(estimate)
    kernels: tuple[KernelTotal, ...] = ()
    # An incomplete list cannot show that a kernel is not new.
    if first.activity is not None and first.activity.kernels_count <= _MOST_KERNELS:
        kernels = tuple(
            replace(total, total_s=shown_digits(total.total_s))
            for total in first.activity.totals
        )
    return StoredRecord(
        key=first.key,
        session=session,
        values=tuple(SessionValue.of(each, records) for each in series.values()),
        choice=first.choice,
        facts=first.facts,
        soft_facts=first.soft_facts,
        bound_class=first.bound_class,
        parameters_digest=first.parameters_digest,
        test_digest=first.test_digest,
        code_digest=first.code_digest,
        kernels=kernels,
        schema_version=version,
    )


def shown_digits(number: float) -> float:
    """
    Round a number that only reports show, so that it takes less of a store.

    Example:
        >>> shown_digits(0.000123456)
        0.0001235
    """
    return float(f"{number:.{_SHOWN_DIGITS}g}")


def with_alone(
    session: StoredRecord, records: Sequence[Record], *, suspected: bool = False
) -> StoredRecord:
    """
    Add the values of fresh processes that ran the test alone to a session.

    A value counts if it has the same source, unit, choice of kernels and hard facts as
    the value of the session.

    Args:
        session: The values measured by the suite.

        records: The record of each fresh process, of the same key, in any order.

        suspected: Whether the test ran alone because it was a suspect.
    """
    alike = [
        record
        for record in sorted(records, key=lambda record: record.process_index)
        if record.void is None and record.choice == session.choice
    ]
    values = []
    for value in session.values:
        metric, source = value.metric, value.source
        facts = facts_of(session.facts, metric, source)
        estimates = [
            estimate
            for record in alike
            for estimate in record.estimates
            if (estimate.metric, estimate.unit, estimate.source, estimate.kernel)
            == (metric, value.unit, source, None)
            and not differences(facts_of(record.facts, metric, source), facts)
        ]
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


def slugs_holding(
    keys: Collection[RecordKey],
    slugs: Iterable[str],
    names: Callable[[str], Collection[RecordKey]],
) -> dict[RecordKey, tuple[str, ...]]:
    """
    Return the slugs that hold sessions of the given measurements.

    Args:
        keys: The measurements to look for.

        slugs: The slugs to search.

        names: Returns the stored measurements of a slug.

    Returns:
        The slugs by measurement, in the given order. Measurements without sessions are
        absent.
    """
    holding: dict[RecordKey, tuple[str, ...]] = {}
    for slug in slugs if keys else ():
        held = names(slug)
        for key in keys:
            if key in held:
                holding[key] = (*holding.get(key, ()), slug)
    return holding


def _age(record: Aged) -> tuple[object, ...]:
    choice = record.choice
    return (*_ARRIVED(record), choice is not None, choice or "")


def in_series(change: Append | Restart, before: Iterable[Numbered]) -> StoredRecord:
    """
    Return the session that a change adds, with the series of each value.
    """
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
