"""The stored sessions of a measurement, as immutable values."""

from __future__ import annotations

from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Sequence,
)
from operator import attrgetter
from typing import Protocol, TypeVar

from pytest_gpuperf.model.environment import (
    Session,
    same_count,
)
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.record import (
    COMPARED_SESSIONS,
    REFERENCES,
    RecordKey,
    StoredRecord,
)

# docs/judging.md section 2: the newest sessions of a test and choice that are kept, and
# the oldest, from which a drift is measured.
SESSION_LIMIT = COMPARED_SESSIONS
OLDEST_LIMIT = 3


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
    newest = newest_series(records)
    if not any(newest.values()):
        return records
    return [
        replace(record, values=values)
        for record in records
        if (values := tuple(v for v in record.values if v.series == newest[v.metric]))
    ]


def newest_series(records: Iterable[Numbered]) -> dict[str, int]:
    """Return the number of the newest series of each metric."""
    newest: dict[str, int] = {}
    for record in records:
        for value in record.values:
            newest[value.metric] = max(value.series, newest.get(value.metric, 0))
    return newest


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
