"""The text of a file as stored sessions."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection

import msgspec

from pytest_gpuperf.baseline.encode import (
    SCHEMA_VERSION,
    Content,
    Head,
    KeyedBy,
    Row,
    Section,
)
from pytest_gpuperf.baseline.history import by_key
from pytest_gpuperf.errors import (
    BaselineCorruptError,
    RecordError,
    SchemaVersionError,
)
from pytest_gpuperf.model.environment import Session
from pytest_gpuperf.model.frozen import Frozen, collector_paused
from pytest_gpuperf.model.metric import METRICS
from pytest_gpuperf.model.record import RecordKey, StoredRecord, StoredValue

__all__ = ["decode"]

_DECODER = msgspec.json.Decoder(Content)
_SCHEMAS = "pytest-gpuperf/baseline/"
_RESTORE = "restore it from version control, or remove it and measure again"
_BYTE = re.compile(r"^(?P<what>.*) \(byte (?P<byte>\d+)\)$")

# a line of the file never begins so: it begins with a brace, a quote, or null
_CONFLICT = re.compile(rb"^(?:<{7}|={7}|>{7}|\|{7})(?:\s|$)", re.MULTILINE)

# of the catalogue; a number of the user's own may be a difference
_NEVER_NEGATIVE = frozenset(
    name
    for name, metric in METRICS.items()
    if metric.unit in {"s", "bytes", "count"}  # as model.metric spells them
)
_BELOW_ZERO = re.compile(rb"[\[,]\s*-")  # in a list of numbers; most files have none
_LINE = msgspec.json.Decoder(Row[StoredValue])


class _SchemaOnly(Frozen, frozen=True):
    """As much of a file as every version has."""

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
    Return what a file holds.

    Args:
        text: Its bytes.

        path: Its name, for messages.

        keyed_by: What its sections must be.

        section: The one section to read; None: all.

        test_ids: The tests to read; None: all.

    Returns:
        By section, the sessions of each measurement, oldest first.

    Raises:
        BaselineCorruptError: It cannot be read; the place is named.

        SchemaVersionError: It is a baseline of another schema.
    """
    wanted = None if test_ids is None else frozenset(test_ids)
    try:
        with collector_paused():
            content = _DECODER.decode(text)
            _check_kind(content, keyed_by, path=path)
            found: dict[str, list[StoredRecord]] = {}  # a merge may double a section
            for each in content.sections:
                if each is not None and section in {None, each.name}:
                    records = found.setdefault(each.name, [])
                    records += _records(each, keyed_by, wanted, text)
            return {name: by_key(records) for name, records in found.items()}
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
    section: Section, keyed_by: KeyedBy, wanted: frozenset[str] | None, text: bytes
) -> list[StoredRecord]:
    """Return the sessions of one section."""
    prefix = section.name if keyed_by == "module" else ""
    rows = [
        row
        for row in section.records
        if row is not None and (wanted is None or prefix + row.test in wanted)
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


def _dangling(row: Row[StoredValue], field: str, key: str) -> RecordError:
    """Return the error for a line that refers to what is not there."""
    message = f"{key!r}, of {row.test!r}, is not in the file"
    return RecordError(message, path=f"records.{field}")


def _refuse_negative(row: Row[StoredValue], text: bytes) -> None:
    """Refuse a value that cannot be below zero and is."""
    for value in row.values:
        if min(value.run_values) < 0 and value.metric in _NEVER_NEGATIVE:
            raise _negative(value, row, text)


def _negative(value: StoredValue, row: Row[StoredValue], text: bytes) -> RecordError:
    """Return the error for a value below zero, with its line where it has its own."""
    message = (
        f"{value.metric} of {row.test!r} is {min(value.run_values):g} {value.unit}, "
        "and is never below zero"
    )
    for number, line in enumerate(text.splitlines(), start=1):
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
            if _LINE.decode(line.strip().rstrip(b",")) == row:
                return RecordError(message, path=f"line {number}")
    return RecordError(message, path="records.values")


def _check_kind(content: Content, keyed_by: KeyedBy, *, path: str) -> None:
    """Refuse another schema, and a file that is not for this kind of store."""
    _check_schema(content.schema, path=path)
    if content.keyed_by != keyed_by:
        raise BaselineCorruptError(
            f"its sections are by {content.keyed_by}, not by {keyed_by}",
            remedy="name the whole store: its folder, or a .json file of its own",
            path=path,
        )


def _check_schema(found: str, *, path: str) -> None:
    if not found.startswith(_SCHEMAS):
        raise BaselineCorruptError(
            f"is not a baseline (schema {found!r})",
            remedy="name a store that --gpuperf-update has written",
            path=path,
        )
    if found != SCHEMA_VERSION:
        raise SchemaVersionError(found=found, supported=SCHEMA_VERSION, path=path)


def _refuse_other_text(text: bytes, *, path: str) -> None:
    """Refuse what could not be read for a reason that has a remedy of its own."""
    conflict = _CONFLICT.search(text)
    if conflict is not None:
        line = text.count(b"\n", 0, conflict.start()) + 1
        raise BaselineCorruptError(
            f"line {line}: a merge conflict is not resolved",
            remedy="remove the marker lines; keeping both sides' lines is right",
            path=path,
        )
    try:
        found = msgspec.json.decode(text, type=_SchemaOnly).schema
    except msgspec.ValidationError:
        found = ""
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return  # no JSON at all: the caller says where it stops being any
    _check_schema(found, path=path)


def _fault(error: Exception, text: bytes) -> str:
    """Return what is wrong, with the place."""
    if isinstance(error, msgspec.ValidationError):
        what, _, field = str(error).partition(" - at `$")
        return f"{field.rstrip('`').lstrip('.') or 'the whole'}: {what}"
    if not isinstance(error, msgspec.DecodeError):
        return f"not JSON ({error})"
    match = _BYTE.match(str(error))
    if match is None:
        return f"cut off after line {len(text.splitlines())} ({error})"
    before = text[: int(match["byte"])]
    line, column = before.count(b"\n") + 1, len(before) - before.rfind(b"\n")
    return f"line {line}, column {column}: {match['what']}"
