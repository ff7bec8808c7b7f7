"""The text of a file as stored sessions, or what is wrong with it; PYTEST_DONT_REWRITE."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import TypeVar

import msgspec

from pytest_gpuperf.baseline.history import by_key
from pytest_gpuperf.baseline.layout import (
    SCHEMA_VERSION,
    Content,
    Head,
    KeyedBy,
    Records,
    Row,
    Section,
)
from pytest_gpuperf.errors import (
    BaselineCorruptError,
    GpuPerfError,
    SchemaVersionError,
)
from pytest_gpuperf.model.environment import Session
from pytest_gpuperf.model.history import StoredRecord, StoredValue
from pytest_gpuperf.model.record import RecordKey

__all__ = ["decode"]

_DECODER = msgspec.json.Decoder(Content)
_KIND = "pytest-gpuperf/baseline/"
_RESTORE = "restore it from version control, or remove it and measure again"
_CONFLICT = re.compile(rb"^(?:<{7}|={7}|>{7}|\|{7})(?:[ \r\n]|$)", re.MULTILINE)

_T = TypeVar("_T")


def decode(
    text: bytes,
    *,
    path: str,
    keyed_by: str,
    section: str | None = None,
    test_ids: Collection[str] | None = None,
) -> dict[str, dict[RecordKey, tuple[StoredRecord, ...]]]:
    """
    Return what a file holds.

    Args:
        text: Its bytes.

        path: Its name, for messages.

        keyed_by: What its sections' names must be: "module" or "slug".

        section: The one section to read; None: all.

        test_ids: The tests to read; None: all.

    Returns:
        By section, the sessions of each measurement, oldest first.

    Raises:
        BaselineCorruptError: It cannot be read; the place is named.

        SchemaVersionError: It is a baseline of another schema.
    """
    try:
        content = _DECODER.decode(text)
        if content.schema == SCHEMA_VERSION and content.keyed_by == keyed_by:
            return {
                name: _records(name, each, keyed_by, test_ids)
                for name, each in content.sections.items()
                if each is not None and section in {None, name}
            }
    except (msgspec.DecodeError, UnicodeError, RecursionError, RecordError) as error:
        raise _refusal(text, path, error) from error
    if content.schema == SCHEMA_VERSION:
        raise BaselineCorruptError(
            f"its sections are named by {content.keyed_by}, not by {keyed_by}",
            remedy="name the whole store: its folder, or a .json file of its own",
            path=path,
        )
    raise _other_schema(content.schema, path)


def _records(
    name: str, section: _Section, keyed_by: str, test_ids: Collection[str] | None
) -> dict[RecordKey, tuple[StoredRecord, ...]]:
    """Return the sessions of one section."""
    prefix = name if keyed_by == "module" else ""
    wanted = None if test_ids is None else frozenset(test_ids)
    rows = [
        row
        for row in section.records
        if row is not None and (wanted is None or prefix + row.test in wanted)
    ]
    values = msgspec.convert(
        [row.values for row in rows],
        list[tuple[StoredValue, ...]],
        from_attributes=True,
    )
    keys = {
        (row.test, row.name): RecordKey(test_id=prefix + row.test, name=row.name)
        for row in rows
    }
    sessions = {
        key: _session(head) for key, head in section.sessions.items() if head is not None
    }
    return by_key(
        StoredRecord(
            key=keys[row.test, row.name],
            session=_found(sessions, row.session, f"session of {row.test!r}"),
            values=each,
            choice=row.choice,
            facts=_found(section.facts, row.facts, f"facts of {row.test!r}"),
            soft_facts=_soft_facts(section, row),
        )
        for row, each in zip(rows, values, strict=True)
    )


def _found(table: Mapping[str, _T | None], key: str, what: str) -> _T:
    """Return what a line refers to."""
    found = table.get(key)
    if found is None:
        raise _DanglingError(f"the {what} are not in their table: {key!r}")
    return found
