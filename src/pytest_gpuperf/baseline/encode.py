"""Stored sessions as the text of a file, and what its lines hold.

Schema of a baseline: 1 — the first.

A file is JSON with one session on a line. Each table ends with a null, so that every
line before it ends with a comma: a session more is a line more and changes no other, and
after a merge the lines of both sides together are a text that can be read. What many
lines share (the head of a session, the hard facts) stands once, under its digest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Generic, TypeVar

import msgspec

from pytest_gpuperf.errors import RecordError
from pytest_gpuperf.model.environment import Session
from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.record import RecordKey, StoredRecord, StoredValue

__all__ = [
    "SCHEMA_VERSION",
    "Content",
    "Head",
    "KeyedBy",
    "Records",
    "Row",
    "Section",
    "digest",
    "encode",
]

SCHEMA_VERSION = "pytest-gpuperf/baseline/1"

# the sessions of each measurement, oldest first
Records = Mapping[RecordKey, tuple[StoredRecord, ...]]

_V = TypeVar("_V")  # a StoredValue when it is read, a list when it is written

KeyedBy = str  # "module", of whose name the lines leave out the beginning, or "slug"


class Row(Frozen, Generic[_V], frozen=True, gc=False, omit_defaults=True):
    """
    A StoredRecord: one line.

    Attributes:
        test: The test id; where sections are modules, what follows the module.

        session: The digest of the session's head.

        facts: The digest of the hard facts.

        values: The values.

        name: The measurement inside the test.

        choice: Hash of the kernels that ran.

        soft_facts: Those that the session's head does not have.
    """

    test: str
    session: str
    facts: str
    values: tuple[_V, ...]
    name: str = ""
    choice: str | None = None
    soft_facts: Mapping[str, str] = {}


class Head(Frozen, frozen=True, gc=False, omit_defaults=True):
    """A Session, with the soft facts that all its records share."""

    id: str
    started_unix_s: float
    host: str
    commit: str | None = None
    dirty: bool | None = None
    soft_facts: Mapping[str, str] = {}


class Section(Frozen, frozen=True):
    """The sessions of one module, or of one slug."""

    name: str
    sessions: dict[str, Head | None]
    facts: dict[str, dict[str, dict[str, str]] | None]
    records: list[Row[StoredValue] | None]


class Content(Frozen, frozen=True):
    """All that a file holds."""

    schema: str
    keyed_by: str
    sections: list[Section | None]


_ENCODER = msgspec.json.Encoder(order="deterministic")
_DECODER = msgspec.json.Decoder(Content)


def digest(text: bytes, *, length: int = 12) -> str:
    """Return the first hexadecimal digits of a text's blake3."""
    from blake3 import blake3

    return blake3(text).hexdigest()[:length]


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
