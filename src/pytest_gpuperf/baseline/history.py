"""The stored sessions of a measurement, as values."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from pytest_gpuperf.model.environment import Session
from pytest_gpuperf.model.frozen import Frozen, replace
from pytest_gpuperf.model.record import Record, RecordKey, SessionValue, StoredRecord
from pytest_gpuperf.model.sample import Estimate

__all__ = [
    "SESSION_LIMIT",
    "Append",
    "Restart",
    "StoreChange",
    "applied",
    "by_key",
    "keep_newest",
    "slugs_holding",
    "stored_record",
]

# docs/judging.md section 2: a baseline has at most so many sessions of a test and choice
SESSION_LIMIT = 20


class Append(Frozen, frozen=True, kw_only=True):
    """
    Add one session to what is stored.

    Attributes:
        record: The session; without values it adds nothing. It replaces what the same
            session had stored for the same measurement and choice.
    """

    record: StoredRecord


class Restart(Frozen, frozen=True, kw_only=True):
    """
    Drop the stored sessions of a measurement, then add one.

    Attributes:
        record: The session to add, as in `Append`; its key and choice say what to drop.

        metrics: Drop only the values of these metrics; None: whole sessions.

        every_choice: Drop the sessions of every choice, not only of the record's own.
    """

    record: StoredRecord
    metrics: frozenset[str] | None = None
    every_choice: bool = False


StoreChange = Append | Restart


def keep_newest(
    records: Iterable[StoredRecord], *, limit: int = SESSION_LIMIT
) -> tuple[StoredRecord, ...]:
    """
    Return the sessions of one measurement, oldest first, none twice.

    Args:
        records: Sessions of one key, in any order; of two with equal id and choice the
            later one in this order stays.

        limit: The most to keep of each choice, >= 1.
    """
    unique = {(each.choice, each.session.id): each for each in records}
    ordered = sorted(unique.values(), key=_age)
    if len(ordered) <= limit:
        return tuple(ordered)
    kept_count: dict[str | None, int] = {}
    newest_first = []
    for record in reversed(ordered):
        count = kept_count.get(record.choice, 0)
        if count < limit:
            kept_count[record.choice] = count + 1
            newest_first.append(record)
    return tuple(reversed(newest_first))


def by_key(
    records: Iterable[StoredRecord],
) -> dict[RecordKey, tuple[StoredRecord, ...]]:
    """Return the sessions of each measurement, in the order of the keys."""
    lists: dict[RecordKey, list[StoredRecord]] = {}
    for record in records:
        lists.setdefault(record.key, []).append(record)
    return {key: keep_newest(lists[key]) for key in sorted(lists)}


def applied(
    stored: Mapping[RecordKey, Sequence[StoredRecord]], changes: Iterable[StoreChange]
) -> dict[RecordKey, tuple[StoredRecord, ...]]:
    """
    Return what is stored after some changes, in the order of the keys.

    Args:
        stored: The sessions of each measurement before.

        changes: What to do, in this order.
    """
    lists = {key: list(records) for key, records in stored.items()}
    for change in changes:
        key = change.record.key
        kept = lists.get(key, [])
        if isinstance(change, Restart):
            kept = _restarted(kept, change)
        if change.record.values:
            kept = [*kept, change.record]
        lists[key] = kept
    return {key: keep_newest(lists[key]) for key in sorted(lists) if lists[key]}


def stored_record(records: Sequence[Record], session: Session) -> StoredRecord:
    """
    Return what one session measured in several processes, as a baseline keeps it.

    Values of single kernels are left out; key, choice and facts are the first's.

    Args:
        records: One for each process, of one key and none void, >= 1 of them.

        session: When and where.
    """
    first = records[0]
    series: dict[tuple[str, str, str], list[Estimate]] = {}
    for record in records:
        for each in record.estimates:
            if each.kernel is None:
                name = (each.metric, each.unit, each.source)
                series.setdefault(name, []).append(each)
    return StoredRecord(
        key=first.key,
        session=session,
        values=tuple(SessionValue.of(estimates) for estimates in series.values()),
        choice=first.choice,
        facts=first.facts,
        soft_facts=first.soft_facts,
    )


def slugs_holding(
    keys: Collection[RecordKey],
    slugs: Iterable[str],
    load: Callable[[str, Collection[str]], Mapping[RecordKey, object]],
) -> dict[RecordKey, tuple[str, ...]]:
    """
    Return in which of some slugs each measurement has sessions.

    Args:
        keys: The measurements that are looked for.

        slugs: Where to look.

        load: Gives what one slug has of some test ids.

    Returns:
        The slugs by measurement, in the order given; one that nobody has is left out.
    """
    test_ids = {key.test_id for key in keys}
    found: dict[RecordKey, tuple[str, ...]] = {}
    for slug in slugs if test_ids else ():
        held = load(slug, test_ids)
        for key in keys:
            if key in held:
                found[key] = (*found.get(key, ()), slug)
    return found


def _age(record: StoredRecord) -> tuple[float, str, bool, str]:
    """Return what orders sessions, whatever order they come in."""
    choice = record.choice
    return (
        record.session.started_unix_s,
        record.session.id,
        choice is not None,
        choice or "",
    )


def _restarted(records: list[StoredRecord], change: Restart) -> list[StoredRecord]:
    """Return the stored sessions without what a restart drops."""
    kept = []
    for record in records:
        concerned = change.every_choice or record.choice == change.record.choice
        left = _without(record, change.metrics) if concerned else record
        if left is not None:
            kept.append(left)
    return kept


def _without(
    record: StoredRecord, metrics: frozenset[str] | None
) -> StoredRecord | None:
    """Return a session without some metrics; None: nothing is left of it."""
    if metrics is None:
        return None
    values = tuple(each for each in record.values if each.metric not in metrics)
    return replace(record, values=values) if values else None
