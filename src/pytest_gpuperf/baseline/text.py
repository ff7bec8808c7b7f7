"""The text format of a store: one line for each record."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Generic, TypeVar

import msgspec

from pytest_gpuperf.baseline.history import by_key
from pytest_gpuperf.errors import (
    BaselineCorruptError,
    RecordError,
    SchemaVersionError,
)
from pytest_gpuperf.model.environment import Session
from pytest_gpuperf.model.frozen import Frozen, collector_paused
from pytest_gpuperf.model.metric import METRICS
from pytest_gpuperf.model.record import RecordKey, SessionValue, StoredRecord

__all__ = [
    "SCHEMA_VERSION",
    "Content",
    "Head",
    "KeyedBy",
    "Records",
    "Row",
    "Section",
    "decode",
    "digest",
    "encode",
]

SCHEMA_VERSION = "pytest-gpuperf/baseline/1"

# the sessions of each measurement, oldest first
Records = Mapping[RecordKey, tuple[StoredRecord, ...]]

_V = TypeVar("_V")  # a SessionValue when reading, a list when writing

KeyedBy = str  # "module", whose name the lines omit from test ids, or "slug"


class Row(Frozen, Generic[_V], frozen=True, gc=False, omit_defaults=True):
    """
    A StoredRecord: one line.

    Attributes:
        test: The test id; where sections are modules, without the module.

        session: The digest of the session's head.

        facts: The digest of the hard facts.

        values: The values.

        name: The measurement inside the test.

        choice: Hash of the kernels that ran.

        soft_facts: Soft facts that the session's head does not have.
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
    records: list[Row[SessionValue] | None]


class Content(Frozen, frozen=True):
    """The whole file."""

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
        RecordError: A session could not be read back.
    """
    lines = [f'{{"schema":"{SCHEMA_VERSION}","keyed_by":"{keyed_by}","sections":[']
    try:
        for name, records in sorted(sections.items()):
            lines += _section_lines(name, records, keyed_by=keyed_by)
        text = "\n".join([*lines, "null]}", ""]).encode()
        _DECODER.decode(text)
    except UnicodeEncodeError as error:
        raise RecordError(
            f"{error.object!a} cannot be encoded as UTF-8",
            path="baseline",
            remedy="rename the test",
        ) from error
    except msgspec.ValidationError as error:
        raise RecordError(str(error), path="baseline") from error
    return text


def _section_lines(name: str, records: Records, *, keyed_by: KeyedBy) -> Iterator[str]:
    """Yield the lines of one section, without line ends."""
    prefix = name if keyed_by == "module" else ""
    ordered = [record for key in sorted(records) for record in records[key]]
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
    yield from (f'"{key}":{text},' for key, text in facts.table())
    yield '"":null},"records":['
    yield from (f"{_json(row)}," for row in rows)
    yield "null]},"


def _value(value: SessionValue) -> list[object]:
    """Return a value as a list, without trailing defaults."""
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
        self._texts = {
            session: _head(session, soft) for session, soft in self._shared.items()
        }
        self._digests = {
            session: digest(text.encode()) for session, text in self._texts.items()
        }

    def digest(self, session: Session) -> str:
        """Return the key of a session in the lines."""
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
            self._texts,
            key=lambda session: (session.started_unix_s, self._texts[session]),
        )
        return [(self._digests[session], self._texts[session]) for session in sessions]


class _FactTable:
    """The hard facts, each set of them once."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._keys: dict[
            int, str
        ] = {}  # by identity: decoded records share their facts

    def digest(self, facts: Mapping[str, Mapping[str, str]]) -> str:
        """Return the key of a set of facts in the lines, and register the set."""
        key = self._keys.get(id(facts))
        if key is None:
            text = _json({family: dict(names) for family, names in facts.items()})
            key = self._keys[id(facts)] = digest(text.encode())
            self._texts[key] = text
        return key

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


_SCHEMAS = "pytest-gpuperf/baseline/"
_RESTORE = "restore it from version control, or remove it and measure again"
_BYTE = re.compile(r"^(?P<what>.*) \(byte (?P<byte>\d+)\)$")

# a line of the file never begins so: it begins with a brace, a quote, or null
_CONFLICT = re.compile(rb"^(?:<{7}|={7}|>{7}|\|{7})(?:\s|$)", re.MULTILINE)

# metrics of the catalogue; a user's own number may be a difference
_NEVER_NEGATIVE = frozenset(
    name for name, metric in METRICS.items() if metric.never_negative
)
_BELOW_ZERO = re.compile(rb"[\[,]\s*-")  # a negative number in a list; rare
_LINE = msgspec.json.Decoder(Row[SessionValue])


class _SchemaOnly(Frozen, frozen=True):
    """The one field that every version of the format has."""

    schema: str = ""


def decode(
    text: bytes,
    *,
    path: str,
    keyed_by: KeyedBy,
    section: str | None = None,
    test_ids: Collection[str] | None = None,
) -> dict[str, dict[RecordKey, tuple[StoredRecord, ...]]]:
    """
    Return the sessions of a file.

    Args:
        text: Its bytes.

        path: Its name, for messages.

        keyed_by: What its sections must be.

        section: The one section to read; None: all.

        test_ids: The tests to read; None: all.

    Returns:
        By section, the sessions of each measurement, oldest first.

    Raises:
        BaselineCorruptError: It is damaged; the message names the place.

        SchemaVersionError: It is a baseline of another schema version.
    """
    selected = None if test_ids is None else frozenset(test_ids)
    try:
        with collector_paused():
            content = _DECODER.decode(text)
            _check_kind(content, keyed_by, path=path)
            records: dict[str, list[StoredRecord]] = {}  # a merge may double a section
            for part in content.sections:
                if part is not None and section in {None, part.name}:
                    rows = records.setdefault(part.name, [])
                    rows += _records(part, keyed_by, selected, text)
            return {name: by_key(rows) for name, rows in records.items()}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        _refuse_other_text(text, path=path)
        raise BaselineCorruptError(
            _fault(error, text), remedy=_RESTORE, path=path
        ) from error
    except RecordError as error:
        if isinstance(error, SchemaVersionError):
            raise
        raise BaselineCorruptError(error.message, remedy=_RESTORE, path=path) from error


def _records(
    section: Section, keyed_by: KeyedBy, selected: frozenset[str] | None, text: bytes
) -> list[StoredRecord]:
    """Return the sessions of one section."""
    prefix = section.name if keyed_by == "module" else ""
    rows = [
        row
        for row in section.records
        if row is not None and (selected is None or prefix + row.test in selected)
    ]
    keys = {
        names: RecordKey(test_id=prefix + names[0], name=names[1])
        for names in {(row.test, row.name) for row in rows}
    }
    heads = {
        key: (_session(head), head.soft_facts)
        for key, head in section.sessions.items()
        if head is not None
    }
    records = []
    suspicious = _BELOW_ZERO.search(text) is not None
    for row in rows:
        if suspicious:
            _refuse_negative(row, text)
        head, facts = heads.get(row.session), section.facts.get(row.facts)
        if head is None:
            raise _dangling(row, "session", row.session)
        if facts is None:
            raise _dangling(row, "facts", row.facts)
        session, soft_facts = head
        record = StoredRecord(
            key=keys[row.test, row.name],
            session=session,
            values=row.values,
            choice=row.choice,
            facts=facts,
            soft_facts={**soft_facts, **row.soft_facts}
            if row.soft_facts
            else soft_facts,
        )
        records.append(record)
    return records


def _session(head: Head) -> Session:
    return Session(
        id=head.id,
        started_unix_s=head.started_unix_s,
        host=head.host,
        commit=head.commit,
        dirty=head.dirty,
    )


def _dangling(row: Row[SessionValue], field: str, key: str) -> RecordError:
    """Return the error for a line with a dangling reference."""
    message = f"{key!r}, which {row.test!r} refers to, is not in the file"
    return RecordError(message, path=f"records.{field}")


def _refuse_negative(row: Row[SessionValue], text: bytes) -> None:
    """Refuse a negative value of a metric that cannot be negative."""
    for value in row.values:
        if min(value.run_values) < 0 and value.metric in _NEVER_NEGATIVE:
            raise _negative(value, row, text)


def _negative(value: SessionValue, row: Row[SessionValue], text: bytes) -> RecordError:
    """Return the error for a negative value, with its line number where there is one."""
    message = (
        f"{value.metric} of {row.test!r} is {min(value.run_values):g} {value.unit}, "
        "but cannot be negative"
    )
    for number, line in enumerate(text.splitlines(), start=1):
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
            if _LINE.decode(line.strip().rstrip(b",")) == row:
                return RecordError(message, path=f"line {number}")
    return RecordError(message, path="records.values")


def _check_kind(content: Content, keyed_by: KeyedBy, *, path: str) -> None:
    """Refuse another schema, and the file of another kind of store."""
    _check_schema(content.schema, path=path)
    if content.keyed_by != keyed_by:
        raise BaselineCorruptError(
            f"the file is keyed by {content.keyed_by}, not by {keyed_by}",
            remedy="name the whole store: its folder, or a single-file store",
            path=path,
        )


def _check_schema(schema: str, *, path: str) -> None:
    if not schema.startswith(_SCHEMAS):
        raise BaselineCorruptError(
            f"is not a baseline (schema {schema!r})",
            remedy="name a store that --gpuperf-update has written",
            path=path,
        )
    if schema != SCHEMA_VERSION:
        raise SchemaVersionError(found=schema, supported=SCHEMA_VERSION, path=path)


def _refuse_other_text(text: bytes, *, path: str) -> None:
    """Refuse a merge conflict, another schema, or JSON that is not a baseline."""
    conflict = _CONFLICT.search(text)
    if conflict is not None:
        line = text.count(b"\n", 0, conflict.start()) + 1
        raise BaselineCorruptError(
            f"line {line}: unresolved merge conflict",
            remedy="remove the marker lines and keep the lines of both sides",
            path=path,
        )
    try:
        schema = msgspec.json.decode(text, type=_SchemaOnly).schema
    except msgspec.ValidationError:
        schema = ""
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return  # not JSON: the caller reports where it breaks off
    _check_schema(schema, path=path)


def _fault(error: Exception, text: bytes) -> str:
    """Return the fault with its place."""
    if isinstance(error, msgspec.ValidationError):
        what, _, field = str(error).partition(" - at `$")
        return f"{field.rstrip('`').lstrip('.') or 'the whole'}: {what}"
    if not isinstance(error, msgspec.DecodeError):
        return f"not JSON ({error})"
    match = _BYTE.match(str(error))
    if match is None:
        return f"truncated after line {len(text.splitlines())} ({error})"
    before = text[: int(match["byte"])]
    line, column = before.count(b"\n") + 1, len(before) - before.rfind(b"\n")
    return f"line {line}, column {column}: {match['what']}"
