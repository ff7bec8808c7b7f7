"""Stored sessions as the text of a file; PYTEST_DONT_REWRITE."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from pytest_gpuperf.baseline.layout import (
    SCHEMA_VERSION,
    Head,
    KeyedBy,
    Records,
    Row,
    Value,
    digest,
)
from pytest_gpuperf.errors import RecordError
from pytest_gpuperf.model.border import finite
from pytest_gpuperf.model.environment import Session
from pytest_gpuperf.model.history import StoredRecord

__all__ = ["encode"]

_ENCODER = msgspec.json.Encoder(order="deterministic")


def encode(sections: Mapping[str, Records], *, keyed_by: KeyedBy) -> bytes:
    """
    Return the text of a file [UTF-8]; equal sessions give equal bytes.

    Args:
        sections: The sessions by section.

        keyed_by: What the sections' names are: "module" (of which the test ids then keep
            the rest) or "slug".

    Raises:
        RecordError: A session holds what no file can.
    """
    lines = [f'{{"schema":"{SCHEMA_VERSION}","keyed_by":"{keyed_by}","sections":{{']
    try:
        for name, records in sorted(sections.items()):
            lines += _section_lines(name, records, keyed_by=keyed_by)
    except UnicodeEncodeError as error:
        raise RecordError(
            f"{ascii(error.object)} is no text that UTF-8 can write",
            path="baseline",
            remedy="rename the test",
        ) from error
    return "\n".join([*lines, '"":null}}', ""]).encode()


def _section_lines(
    name: str, records: Records, *, keyed_by: KeyedBy
) -> Iterator[str]:
    """Yield the lines of one section, each of them without its end."""
    prefix = name if keyed_by == "module" else ""
    sorted_records = [each for key in sorted(records) for each in records[key]]
    heads = _Heads(sorted_records)
    facts = _FactTable()
    rows = [
        _json(
            Row(
                test=record.key.test_id.removeprefix(prefix),
                name=record.key.name,
                session=heads.digest(record.session),
                facts=facts.digest(record.facts),
                choice=record.choice,
                values=values,
                soft_facts=heads.rest(record),
            )
        )
        for record, values in zip(sorted_records, _rows(sorted_records), strict=True)
    ]
    yield f'{_json(name)}:{{"sessions":{{'
    yield from (f'"{key}":{head},' for key, head in heads.table())
    yield '"":null},"facts":{'
    yield from (f'"{key}":{text},' for key, text in sorted(facts.table.items()))
    yield '"":null},"records":['
    yield from (f"{row}," for row in rows)
    yield "null]},"


def _rows(records: list[StoredRecord]) -> list[tuple[Value, ...]]:
    """Return the values as a line has them; what could not be read back is refused."""
    for record in records:
        finite("session.started_unix_s", record.session.started_unix_s)
    try:
        return msgspec.convert(
            [record.values for record in records],
            list[tuple[Value, ...]],
            from_attributes=True,
        )
    except msgspec.ValidationError as error:
        raise RecordError(str(error), path="baseline.values") from error


class _Heads:
    """The heads of the sessions, with the soft facts that all their records share."""

    def __init__(self, records: Iterable[StoredRecord]) -> None:
        self._shared: dict[Session, dict[str, str]] = {}
        for record in records:
            soft = self._shared.setdefault(record.session, dict(record.soft_facts))
            if soft != record.soft_facts:
                both = soft.items() & record.soft_facts.items()
                self._shared[record.session] = dict(both)
        self._texts = {
            session: _json(
                Head(
                    id=session.id,
                    started_unix_s=float(session.started_unix_s),
                    host=session.host,
                    commit=session.commit,
                    dirty=session.dirty,
                    soft_facts=soft,
                )
            )
            for session, soft in self._shared.items()
        }
        self._digests = {
            session: digest(text.encode()) for session, text in self._texts.items()
        }

    def digest(self, session: Session) -> str:
        """Return what the lines of a session call it."""
        return self._digests[session]

    def rest(self, record: StoredRecord) -> dict[str, str]:
        """Return the soft facts of a record that its session's head does not have."""
        return dict(record.soft_facts.items() - self._shared[record.session].items())

    def table(self) -> list[tuple[str, str]]:
        """Return digest and text of each head, oldest session first."""
        sessions = sorted(
            self._texts, key=lambda each: (each.started_unix_s, self._texts[each])
        )
        return [(self._digests[each], self._texts[each]) for each in sessions]


class _FactTable:
    """The hard facts, each set of them once."""

    def __init__(self) -> None:
        self.table: dict[str, str] = {}
        self._known: dict[int, str] = {}  # by identity: most records share theirs

    def digest(self, facts: Mapping[str, Mapping[str, str]]) -> str:
        """Return what the lines call a set of facts, and keep it."""
        known = self._known.get(id(facts))
        if known is None:
            text = _json({family: dict(each) for family, each in facts.items()})
            known = self._known[id(facts)] = digest(text.encode())
            self.table[known] = text
        return known


def _json(value: object) -> str:
    return _ENCODER.encode(value).decode()
