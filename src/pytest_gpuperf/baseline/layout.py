"""The layout of a file as the store writes it: a line for each row and each entry.

What is in this layout is found without decoding the rest of the file.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping
from itertools import repeat
from typing import BinaryIO

import msgspec

from pytest_gpuperf.baseline.rows import (
    CONTENT,
    HEAD,
    SECTION,
    TABLE,
    KeyedBy,
    StoredSection,
    StoreHead,
    decoded,
)
from pytest_gpuperf.model.frozen import UNREADABLE
from pytest_gpuperf.model.record import STORE_VERSION

SCHEMAS = "pytest-gpuperf/baseline/"
SCHEMA_VERSION = f"{SCHEMAS}{STORE_VERSION}"
# The version of the lines, by schema. Lines of version 2 are lines of version 3 that lack
# some facts about a value.
READABLE = {SCHEMA_VERSION: STORE_VERSION, f"{SCHEMAS}2": 2}

STRING = rb'"((?:[^"\\]|\\.)*)"'
SECTION_NAME = re.compile(rb'^\{"name":' + STRING)
# The layout that the store writes.
_HEADER = re.compile(
    rb'\{"schema":"(pytest-gpuperf/baseline/\d+)","keyed_by":"(\w+)","sections":\[\n'
)
_END = b"null]}\n"
_SECTION = b'\n{"name":'
_SECTION_START = re.compile(
    _SECTION.replace(b"{", rb"\{") + STRING + rb',"sessions":\{'
)
_END_OF_TABLE = b'\n"":null}'
# The last line of a section before its rows, and the first after them.
_START_OF_ROWS = b'"":null},"records":[\n'
_END_OF_ROWS = b"null]},\n"
_END_OF_ROW = b",\n"
# A file is searched for conflict markers in parts of this size. If the allocator freed
# larger ones, it would keep more memory, and tests that allocate would run faster.
_PART_BYTES = 1 << 16
_MARKERS = tuple(b"\n" + mark * 7 for mark in (b"<", b"=", b">", b"|"))
_LONGEST_END = max(map(len, (_END, *_MARKERS)))


class OtherLayoutError(Exception):
    """Raised for a file that the store would not have written so."""


def heads_in(text: bytes) -> list[StoreHead]:
    """
    Return the heads of the sessions of a file, or [] if the file is unreadable.

    In the layout of the store, nothing else is decoded.
    """
    try:
        tables = _tables_of_sessions(text)
        raws = [bytes(raw) for table in tables for raw in table.values()]
        return [decoded(HEAD, raw)[0] for raw in raws if raw != b"null"]
    except UNREADABLE:
        # The caller that needs the records reports the error.
        return []


def numbered_sessions(text: bytes) -> dict[str, int]:
    """Return the arrival numbers of the sessions of a file, by session id."""
    return {head.id: head.arrival for head in heads_in(text)}


def _tables_of_sessions(text: bytes) -> list[Mapping[str, msgspec.Raw]]:
    tables: list[Mapping[str, msgspec.Raw]] = []
    place = text.find(_SECTION) if version_of(text) is not None else -1
    while place >= 0:
        start = _SECTION_START.match(text, place)
        end = text.find(_END_OF_TABLE, place)
        if start is None or end < 0:
            break
        table = text[start.end() : end + len(_END_OF_TABLE)]
        tables.append(TABLE.decode(b"{%b" % table))
        place = text.find(_SECTION, end)
    else:
        if tables:
            return tables
    return [part.sessions for part in CONTENT.decode(text).sections if part]


def version_of(text: bytes) -> int | None:
    """
    Return the version of a file that begins and ends as the store writes it, without
    conflict markers, else None. Its lines may still be damaged.
    """
    return version_in(io.BytesIO(text))


def version_in(stream: BinaryIO) -> int | None:
    """Return `version_of` a file, of which a part at a time is held."""
    header = _HEADER.fullmatch(stream.readline())
    end = b"\n"
    while part := stream.read(_PART_BYTES):
        part = end + part
        if any(map(part.__contains__, _MARKERS)):
            return None
        end = part[-_LONGEST_END:]
    if header is None or not end.endswith(_END):
        return None
    return READABLE.get(header[1].decode())


def schema_in(stream: BinaryIO, *, keyed_by: KeyedBy) -> int:
    """
    Return the version of a file, whose first line is read.

    Raises:
        OtherLayoutError: The line is no header, or that of a version or a kind of
            sections that is not wanted.
    """
    header = _HEADER.fullmatch(stream.readline())
    if header is None or header[2].decode() != keyed_by:
        raise OtherLayoutError
    version = READABLE.get(header[1].decode())
    if version is None:
        raise OtherLayoutError
    return version


def sections_in(stream: BinaryIO) -> Iterator[tuple[StoredSection, Iterator[bytes]]]:
    """
    Yield the sections after the header, with their rows, which are read from the stream
    and must be read before the next section. A line that is no row ends with a line
    break, and the end of the file is an endless number of empty rows.

    Raises:
        OtherLayoutError: A section is not followed by a section or the end.

        DecodeError: As for `UNREADABLE`.
    """
    while (line := stream.readline()) != _END:
        head = [line]
        while line != _START_OF_ROWS:
            line = stream.readline()
            if not line:
                raise OtherLayoutError
            head.append(line)
        # No generator, because each row would be a call.
        lines = iter(stream.readline, _END_OF_ROWS)
        rows = map(bytes.removesuffix, lines, repeat(_END_OF_ROW))
        yield SECTION.decode(b"%bnull]}" % b"".join(head)), rows
    if stream.read(1):
        raise OtherLayoutError


def section_of(start: bytes, *, keyed_by: KeyedBy) -> str | None:
    """
    Return the first section of a file in the layout of the store, else None.

    Args:
        start: The first bytes of the file.

        keyed_by: The kind of sections that the file must have.
    """
    header = _HEADER.match(start)
    if header is None or header[2].decode() != keyed_by:
        return None
    found = SECTION_NAME.match(start[header.end() :])
    return None if found is None else str(msgspec.json.decode(b'"%b"' % found[1]))
