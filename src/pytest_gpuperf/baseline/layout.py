"""What the lines of a store's file hold; PYTEST_DONT_REWRITE.

Schema of a baseline: 1 — the first.

A file is JSON with one session on a line. Each table ends with a null, so that every
line before it ends with a comma: a session more is a line more and changes no other, and
after a merge the lines of both sides together are a text that can be read. What many
lines share (the head of a session, the hard facts) stands once, under its digest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar

import msgspec

from pytest_gpuperf.model.history import StoredRecord, StoredValue
from pytest_gpuperf.model.record import RecordKey

__all__ = [
    "SCHEMA_VERSION",
    "Content",
    "Head",
    "KeyedBy",
    "Records",
    "Row",
    "Section",
    "digest",
]

SCHEMA_VERSION = "pytest-gpuperf/baseline/1"

# the sessions of each measurement, oldest first
Records = Mapping[RecordKey, tuple[StoredRecord, ...]]

_V = TypeVar("_V")  # a StoredValue when it is read, a list when it is written

KeyedBy = str  # "module", of whose name the lines leave out the beginning, or "slug"


class Row(msgspec.Struct, Generic[_V], frozen=True, gc=False, omit_defaults=True):
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
    soft_facts: dict[str, str] = {}


class Head(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A Session, with the soft facts that all its records share."""

    id: str
    started_unix_s: float
    host: str
    commit: str | None = None
    dirty: bool | None = None
    soft_facts: dict[str, str] = {}


class Section(msgspec.Struct, frozen=True):
    """The sessions of one module, or of one slug."""

    name: str
    sessions: dict[str, Head | None]
    facts: dict[str, dict[str, dict[str, str]] | None]
    records: list[Row[StoredValue] | None]


class Content(msgspec.Struct, frozen=True):
    """All that a file holds."""

    schema: str
    keyed_by: str
    sections: list[Section | None]


def digest(text: bytes, *, length: int = 12) -> str:
    """Return the first hexadecimal digits of a text's blake3."""
    from blake3 import blake3

    return blake3(text).hexdigest()[:length]
