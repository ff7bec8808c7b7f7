"""What a store has of each session, without the values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pytest_gpuperf.model.environment import Session
from pytest_gpuperf.model.frozen import Frozen, replace
from pytest_gpuperf.model.record import RecordKey, StoredRecord


class SessionContent(Frozen, frozen=True, kw_only=True):
    """
    What a store has of a session on a kind of machine, without the values.

    Attributes:
        arrival: The number of the session.

        session: The session.

        keys: The measurements.

        python_minor: The version of Python, or "" if not recorded.
    """

    arrival: int
    session: Session
    keys: frozenset[RecordKey]
    python_minor: str


def contents_of(
    stored: Mapping[RecordKey, Sequence[StoredRecord]],
) -> list[SessionContent]:
    """Return what some records say of their sessions, in no order."""
    by_session: dict[str, list[StoredRecord]] = {}
    for records in stored.values():
        for record in records:
            by_session.setdefault(record.session.id, []).append(record)
    return [
        SessionContent(
            arrival=several[0].arrival,
            session=several[0].session,
            keys=frozenset(record.key for record in several),
            python_minor=python_in(record.facts for record in several),
        )
        for several in by_session.values()
    ]


def joined_contents(
    parts: Iterable[Iterable[SessionContent]],
) -> list[SessionContent]:
    """Return what several parts of a store have of each session, in no order."""
    by_session: dict[str, SessionContent] = {}
    for part in parts:
        for content in part:
            known = by_session.get(content.session.id, content)
            by_session[content.session.id] = replace(
                known,
                keys=known.keys | content.keys,
                python_minor=known.python_minor or content.python_minor,
            )
    return [*by_session.values()]


def python_in(facts_of_records: Iterable[Mapping[str, Mapping[str, str]]]) -> str:
    """Return the first version of Python among the hard facts of some records, or ""."""
    families = (each for facts in facts_of_records for each in facts.values())
    return next((f["python_minor"] for f in families if "python_minor" in f), "")
