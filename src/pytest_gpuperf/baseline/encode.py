"""Stored sessions as the text of a file; PYTEST_DONT_REWRITE."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from pytest_gpuperf.baseline.layout import (
    SCHEMA_VERSION,
    Content,
    Head,
    KeyedBy,
    Records,
    Row,
    digest,
)
from pytest_gpuperf.errors import RecordError
from pytest_gpuperf.model.environment import Session
from pytest_gpuperf.model.history import StoredRecord, StoredValue

__all__ = ["encode"]

_ENCODER = msgspec.json.Encoder(order="deterministic")
_DECODER = msgspec.json.Decoder(Content)


def encode(sections: Mapping[str, Records], *, keyed_by: KeyedBy) -> bytes:
    """
    Return the text of a file [UTF-8]; equal sessions give equal bytes.

    Args:
        sections: The sessions by section.

        keyed_by: What the sections are.

    Raises:
        RecordError: A session holds what could not be read back.
    """
    lines = [f'{{"schema":"{SCHEMA_VERSION}","keyed_by":"{keyed_by}","sections":[']
    try:
        for name, records in sorted(sections.items()):
            lines += _section_lines(name, records, keyed_by=keyed_by)
        text = "\n".join([*lines, "null]}", ""]).encode()
        _DECODER.decode(text)
    except UnicodeEncodeError as error:
        raise RecordError(
            f"{error.object!a} is no text that UTF-8 can write",
            path="baseline",
            remedy="rename the test",
        ) from error
    except msgspec.ValidationError as error:
        raise RecordError(str(error), path="baseline") from error
    return text


def _section_lines(name: str, records: Records, *, keyed_by: KeyedBy) -> Iterator[str]:
    """Yield the lines of one section, each of them without its end."""
    prefix = name if keyed_by == "module" else ""
    ordered = [each for key in sorted(records) for each in records[key]]
    heads = _Heads(ordered)
    facts = _FactTable()
    rows = [
        Row[list[object]](
            test=record.key.test_id.removeprefix(prefix),
            name=record.key.name,
            session=heads.digest(record.session),
            facts=facts.digest(record.facts),
            choice=record.choice,
            values=tuple(map(_value, record.values)),
            soft_facts=heads.rest(record),
        )
        for record in ordered
    ]
    yield f'{{"name":{_json(name)},"sessions":{{'
    yield from (f'"{key}":{head},' for key, head in heads.table())
    yield '"":null},"facts":{'
    yield from (f'"{key}":{each},' for key, each in facts.table())
    yield '"":null},"records":['
    yield from (f"{_json(row)}," for row in rows)
    yield "null]},"


def _value(value: StoredValue) -> list[object]:
    """Return a value as a line has it, without what it need not say."""
    named: list[object] = [value.metric, value.unit, value.source]
    named.append([*map(float, value.run_values)])  # 64 and 64.0 are one text
    if value.half_widths or value.better is not None:
        named.append([*map(float, value.half_widths)])
    if value.better is not None:
        named.append(value.better)
    return named


class _Heads:
    """The heads of the sessions, each once."""

    def __init__(self, records: Iterable[StoredRecord]) -> None:
        self._shared = _shared_soft_facts(records)
        self._texts = {each: _head(each, soft) for each, soft in self._shared.items()}
        self._digests = {
            each: digest(text.encode()) for each, text in self._texts.items()
        }

    def digest(self, session: Session) -> str:
        """Return what the lines call a session."""
        return self._digests[session]

    def rest(self, record: StoredRecord) -> dict[str, str]:
        """Return the soft facts of a record that its session's head does not have."""
        shared = self._shared[record.session]
        if len(shared) == len(record.soft_facts):
            return {}
        return {
            name: fact for name, fact in record.soft_facts.items() if name not in shared
        }

    def table(self) -> list[tuple[str, str]]:
        """Return digest and text of each head, oldest session first."""
        sessions = sorted(
            self._texts, key=lambda each: (each.started_unix_s, self._texts[each])
        )
        return [(self._digests[each], self._texts[each]) for each in sessions]


class _FactTable:
    """The hard facts, each set of them once."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._known: dict[int, str] = {}  # by identity: what was read shares its facts

    def digest(self, facts: Mapping[str, Mapping[str, str]]) -> str:
        """Return what the lines call a set of facts, and keep the set."""
        known = self._known.get(id(facts))
        if known is None:
            text = _json({family: dict(each) for family, each in facts.items()})
            known = self._known[id(facts)] = digest(text.encode())
            self._texts[known] = text
        return known

    def table(self) -> list[tuple[str, str]]:
        """Return digest and text of each set, by digest."""
        return sorted(self._texts.items())


def _shared_soft_facts(
    records: Iterable[StoredRecord],
) -> dict[Session, dict[str, str]]:
    """Return the soft facts that all records of a session have, by session."""
    shared: dict[Session, dict[str, str]] = {}
    for record in records:
        soft = shared.setdefault(record.session, dict(record.soft_facts))
        if soft != record.soft_facts:
            both = soft.items() & record.soft_facts.items()
            shared[record.session] = dict(both)
    return shared


def _head(session: Session, soft_facts: dict[str, str]) -> str:
    return _json(
        Head(
            id=session.id,
            started_unix_s=float(session.started_unix_s),
            host=session.host,
            commit=session.commit,
            dirty=session.dirty,
            soft_facts=soft_facts,
        )
    )


def _json(value: object) -> str:
    return _ENCODER.encode(value).decode()
