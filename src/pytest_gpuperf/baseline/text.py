"""The text format of a store: a line for each record, with a checksum."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from pytest_gpuperf.baseline.history import by_key
from pytest_gpuperf.baseline.rows import (
    CONTENT,
    FACTS,
    HEAD,
    KERNELS,
    NAMES,
    ROW,
    TABLE,
    Facts,
    Fields,
    Kernels,
    KeyedBy,
    NamedRow,
    Records,
    RowTables,
    StoredContent,
    StoredRow,
    StoredSection,
    StoreHead,
    V,
    decoded,
    digest,
    is_summed,
    is_unchanged,
    json_of,
    row_texts,
    section_lines,
    summed_prefix,
    with_fields,
)
from pytest_gpuperf.errors import (
    BaselineCorruptError,
    RecordError,
    SchemaVersionError,
)
from pytest_gpuperf.model.activity import KernelTotal
from pytest_gpuperf.model.environment import Session
from pytest_gpuperf.model.frozen import BulkRecord, Frozen, collector_paused
from pytest_gpuperf.model.metric import METRICS
from pytest_gpuperf.model.record import (
    STORE_VERSION,
    RecordKey,
    SessionValue,
    StoredRecord,
    is_node_id,
)

_SCHEMAS = "pytest-gpuperf/baseline/"
SCHEMA_VERSION = f"{_SCHEMAS}{STORE_VERSION}"
# The version of the lines, by schema. Lines of version 2 are lines of version 3 that lack
# some facts about a value.
_READABLE = {SCHEMA_VERSION: STORE_VERSION, f"{_SCHEMAS}2": 2}


class Damage(Frozen, frozen=True, kw_only=True, order=True):
    """
    A line that was left out.

    Attributes:
        path: The file.

        line: The line number, from 1, or 0 if the file is not in lines.

        reason: The fault of the line, as a fragment of a sentence.

        test_id: The test that the line names, without the module if sections are
            modules, or "" if the line names none or cannot be read.

        section: The section of the line, or "" if unknown.
    """

    path: str
    line: int
    reason: str
    test_id: str = ""
    section: str = ""

    def __str__(self) -> str:
        """Return the place and the fault of the line."""
        place = f"{self.path}, line {self.line}" if self.line else self.path
        return f"{place}: {self.reason}"


class BaselineFile(BulkRecord, frozen=True, kw_only=True):
    """
    The content of a file.

    Attributes:
        sections: The sessions of each measurement by section, oldest first.

        damage: The lines that were left out.

        of_earlier_schema: Whether the file was written by a version that stored less.
    """

    sections: dict[str, dict[RecordKey, tuple[StoredRecord, ...]]]
    damage: tuple[Damage, ...] = ()
    of_earlier_schema: bool = False


def encode(sections: Mapping[str, Records], *, keyed_by: KeyedBy) -> bytes:
    """
    Return the text of a file [UTF-8]. Equal sessions give equal bytes.

    Args:
        sections: The sessions by section.

        keyed_by: The kind of the sections.

    Raises:
        RecordError: A session could not be read back.
    """
    lines: list[str] = []
    with unwritable():
        for name, records in sorted(sections.items()):
            ordered = [record for key in sorted(records) for record in records[key]]
            tables = RowTables(ordered)
            rows = row_texts(name, ordered, tables, keyed_by=keyed_by)
            lines += section_lines(
                name,
                heads=tables.heads.table(),
                facts=tables.facts.table(),
                kernels=tables.kernels.table(),
                rows=rows,
            )
        text = file_text(lines, keyed_by=keyed_by)
        _check_rows(text)
    return text


def file_text(lines: Iterable[str], *, keyed_by: KeyedBy) -> bytes:
    """Return the text of a file from the lines of its sections."""
    header = f'{{"schema":"{SCHEMA_VERSION}","keyed_by":"{keyed_by}","sections":['
    return "\n".join([header, *lines, "null]}", ""]).encode()


@contextlib.contextmanager
def unwritable() -> Iterator[None]:
    """
    Turn the errors of a text that could not be read back.

    Raises:
        RecordError: The block has raised such an error.
    """
    try:
        yield
    except UnicodeEncodeError as error:
        raise RecordError(
            f"{error.object!a} cannot be encoded as UTF-8",
            path="baseline",
            remedy="rename the test",
        ) from error
    except msgspec.ValidationError as error:
        raise RecordError(str(error), path="baseline") from error


def _check_rows(text: bytes) -> None:
    for section in filter(None, CONTENT.decode(text).sections):
        tables: tuple[tuple[msgspec.json.Decoder[Any], Iterable[msgspec.Raw]], ...] = (
            (ROW, section.records),
            (HEAD, section.sessions.values()),
            (FACTS, section.facts.values()),
            (KERNELS, section.kernels.values()),
        )
        for decoder, entries in tables:
            for entry in entries:
                # Each list and each table ends with null.
                if bytes(entry) != b"null":
                    decoded(decoder, entry)


_RESTORE = "restore it from version control, or remove it and measure again"
_CHANGED = "it differs from its checksum"
_BYTE = re.compile(r"^(?P<what>.*) \(byte (?P<byte>\d+)\)$")

# No line of a file starts like this: lines start with a brace, a quote or null.
_CONFLICT = re.compile(rb"^(?:<{7}|={7}|>{7}|\|{7})(?:\s|$)", re.MULTILINE)
# A file is still whole without any other line, which is a record or an entry of a
# table.
_STRUCTURE = re.compile(rb'^(?:\{"schema":|\{"name":|"":null\}|null\]|$)')
_STRING = rb'"((?:[^"\\]|\\.)*)"'
_SECTION_NAME = re.compile(rb'^\{"name":' + _STRING)
# The layout that the store writes.
_HEADER = re.compile(
    rb'\{"schema":"(pytest-gpuperf/baseline/\d+)","keyed_by":"(\w+)","sections":\[\n'
)
_END = b"null]}\n"
_SECTION = b'\n{"name":'
_SECTION_START = re.compile(
    _SECTION.replace(b"{", rb"\{") + _STRING + rb',"sessions":\{'
)
_END_OF_TABLE = b'\n"":null}'
_MARKERS = tuple(b"\n" + mark * 7 for mark in (b"<", b"=", b">", b"|"))
# The first field of a record.
_TEST_NAME = re.compile(rb'^\{"test":' + _STRING)

# Only metrics of the catalogue, because a number recorded by a test may be a
# difference.
_NEVER_NEGATIVE = frozenset(
    name for name, metric in METRICS.items() if metric.never_negative
)
# The errors of a text that is not in the format.
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class _SchemaOnly(Frozen, frozen=True):
    """The one field that every version of the format has."""

    schema: str = ""


def numbered_sessions(text: bytes) -> dict[str, int]:
    """
    Return the arrival numbers of the sessions of a file, by session id, or {} if the
    file is unreadable.

    In the layout of the store, only the heads of the sessions are decoded.
    """
    try:
        tables = _tables_of_sessions(text)
        raws = [bytes(raw) for table in tables for raw in table.values()]
        heads = [decoded(HEAD, raw)[0] for raw in raws if raw != b"null"]
    except UNREADABLE:
        # The caller that needs the records reports the error.
        return {}
    return {head.id: head.arrival for head in heads}


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
    header = _HEADER.match(text)
    if header is None or not text.endswith(_END):
        return None
    if any(marker in text for marker in _MARKERS):
        return None
    return _READABLE.get(header[1].decode())


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
    found = _SECTION_NAME.match(start[header.end() :])
    return None if found is None else str(msgspec.json.decode(b'"%b"' % found[1]))


def decode(
    text: bytes,
    *,
    path: str,
    keyed_by: KeyedBy,
    section: str | None = None,
    test_ids: Collection[str] | None = None,
    edited: bool = False,
) -> BaselineFile:
    """
    Decode the content of a file. Damaged lines are left out and listed in `damage`.

    Args:
        text: The bytes of the file.

        path: The name of the file, for messages.

        keyed_by: The kind of sections that the file must have.

        section: The section to read, or None for all.

        test_ids: The tests to read, or None for all.

        edited: Whether to accept lines that differ from their checksum.

    Raises:
        BaselineCorruptError: The file is damaged as a whole. The message names the
            place.

        SchemaVersionError: The file is a baseline of a later schema version.
    """
    selected = None if test_ids is None else frozenset(test_ids)
    reader = _LineReader(text, path=path, edited=edited)
    with _refusing(text, path=path), collector_paused():
        # After a merge, a section may occur twice.
        records: dict[str, list[StoredRecord]] = {}
        for part in reader.sections(keyed_by):
            if section in {None, part.name}:
                rows = records.setdefault(part.name, [])
                rows += reader.records(part, keyed_by, selected)
        return BaselineFile(
            sections={name: by_key(rows) for name, rows in records.items()},
            damage=tuple(dict.fromkeys(sorted(reader.damage))),
            of_earlier_schema=reader.version < STORE_VERSION,
        )


class NamedBy(Frozen, frozen=True, kw_only=True):
    """
    How the sessions of a measurement are named.

    Attributes:
        any_id: Whether the key of any session is a pytest id.

        all_ids: Whether the keys of all sessions are pytest ids.
    """

    any_id: bool = False
    all_ids: bool = False


def names_in(
    text: bytes, *, path: str, keyed_by: KeyedBy
) -> dict[str, dict[RecordKey, NamedBy]]:
    """
    Return the measurements of a file by section. The values are not decoded.

    Args:
        text: The bytes of the file.

        path: The name of the file, for messages.

        keyed_by: The kind of sections that the file must have.

    Raises:
        BaselineCorruptError: As for `decode`.

        SchemaVersionError: As for `decode`.
    """
    reader = _LineReader(text, path=path, edited=False)
    with _refusing(text, path=path), collector_paused():
        names: dict[str, dict[RecordKey, NamedBy]] = {}
        for part in reader.sections(keyed_by):
            of_part = names.setdefault(part.name, {})
            for key, has_id in reader.names(part, keyed_by):
                known = of_part.get(key, NamedBy(any_id=has_id, all_ids=has_id))
                of_part[key] = NamedBy(
                    any_id=known.any_id or has_id, all_ids=known.all_ids and has_id
                )
        return names


@contextlib.contextmanager
def _refusing(text: bytes, *, path: str) -> Iterator[None]:
    """Turn the errors of a file that is damaged as a whole into one with its place."""
    try:
        yield
    except UNREADABLE as error:
        _refuse_other_text(text, path=path)
        raise BaselineCorruptError(
            _fault(error, text), remedy=_RESTORE, path=path
        ) from error


class _LineReader:
    """
    Reads one file, and collects the damaged lines.

    Args:
        text: The bytes of the file.

        path: The name of the file, for messages.

        edited: Whether to accept lines that differ from their checksum.
    """

    def __init__(self, text: bytes, *, path: str, edited: bool) -> None:
        self._text = text
        self._path = path
        self.checked = not edited
        self.version = STORE_VERSION
        self.damage: list[Damage] = []
        # The section of the lines that are being read.
        self._section = ""

    def sections(self, keyed_by: KeyedBy) -> list[StoredSection]:
        """
        Return the sections of a file of a known version.

        Raises:
            BaselineCorruptError: It has other sections, or is no baseline.

            SchemaVersionError: It is a baseline of a later version.
        """
        content = self._content()
        _check_schema(content.schema, path=self._path)
        if content.keyed_by != keyed_by:
            raise BaselineCorruptError(
                f"the file is keyed by {content.keyed_by}, not by {keyed_by}",
                remedy="name the whole store: its folder, or a single-file store",
                path=self._path,
            )
        self.version = _READABLE[content.schema]
        return [part for part in content.sections if part is not None]

    def _content(self) -> StoredContent:
        """Decode the content, without the lines that break the JSON."""
        try:
            return CONTENT.decode(self._text)
        except UNREADABLE as error:
            if _CONFLICT.search(self._text):
                raise
            whole = self._without_broken_lines()
            try:
                return CONTENT.decode(whole)
            except UNREADABLE:
                # This error names the place in the whole text.
                raise error from None

    def _without_broken_lines(self) -> bytes:
        """Blank the lines that are not valid JSON, and note the damage."""
        lines = self._text.split(b"\n")
        for index, line in enumerate(lines):
            self._section = _text_in(_SECTION_NAME, line) or self._section
            if not (_STRUCTURE.match(line) or _is_entry(line)):
                self._leave_out("it is not JSON", line, number=index + 1)
                lines[index] = b""
        return b"\n".join(lines)

    def records(
        self, section: StoredSection, keyed_by: KeyedBy, selected: frozenset[str] | None
    ) -> list[StoredRecord]:
        """Return the sessions of a section."""
        self._section = section.name
        prefix = section.name if keyed_by == "module" else ""
        heads: dict[str, tuple[StoreHead, Session]] = {}
        for key, (head, more) in self._entries(section.sessions, HEAD).items():
            heads[key] = (head, head.bare(more))
        facts = self._entries(section.facts, FACTS)
        kernels = self._entries(section.kernels, KERNELS)
        keys: dict[tuple[str, str], RecordKey] = {}
        prefix_of_sum = summed_prefix(section.name)
        tests = None
        if selected is not None:
            whole = (name for name in selected if name.startswith(prefix))
            tests = _Selected(name.removeprefix(prefix) for name in whole)
        records = []
        for raw in section.records:
            row, unknown = self._row(raw, prefix_of_sum, tests)
            if row is None:
                continue
            if row.session not in heads or row.facts not in facts:
                self._leave_out("its session or its facts are left out", raw)
                continue
            names = (row.test, row.name)
            if names not in keys:
                keys[names] = RecordKey(test_id=prefix + row.test, name=row.name)
            record = _record(
                row,
                keys[names],
                *heads[row.session],
                facts[row.facts][0],
                # No verdict needs the kernels, so a record without them is kept.
                kernels[row.kernels][0] if row.kernels in kernels else (),
                unknown=unknown,
                version=row.schema or self.version,
            )
            records.append(record)
        return records

    def names(
        self, section: StoredSection, keyed_by: KeyedBy
    ) -> Iterator[tuple[RecordKey, bool]]:
        """Yield the measurement of each row, and whether a pytest id is its key."""
        self._section = section.name
        prefix = section.name if keyed_by == "module" else ""
        prefix_of_sum = summed_prefix(section.name)
        keys: dict[tuple[str, str], RecordKey] = {}
        for raw in section.records:
            text = bytes(raw)
            if is_summed(text, prefix_of_sum):
                row = NAMES.decode(text)
            else:
                edited, _ = self._row(raw, prefix_of_sum, None)
                if edited is None:
                    continue
                row = NamedRow(edited.test, edited.name, edited.schema, edited.node_id)
            names = (row.test, row.name)
            if names not in keys:
                keys[names] = RecordKey(test_id=prefix + row.test, name=row.name)
            yield keys[names], is_node_id(row.schema or self.version, row.node_id)

    def _row(
        self, raw: msgspec.Raw, prefix: bytes, selected: _Selected | None
    ) -> tuple[StoredRow[SessionValue] | None, Fields]:
        """
        Return a row, and the unknown fields of the row.

        The row is None if it is damaged or not selected, or if it is the end of the
        list.
        """
        text = bytes(raw)
        if text == b"null":
            return None, ()
        if selected is not None and selected.leaves_out(text, prefix):
            return None, ()
        try:
            row, unknown = decoded(ROW, text)
        except UNREADABLE as error:
            self._leave_out(_without_place(error), raw)
            return None, ()
        wrong = ""
        if self.checked and not is_unchanged(row, unknown, text, prefix):
            wrong = _CHANGED
        elif b"[-" in text or b",-" in text or b" " in text or b"\n" in text:
            # This layout has no blanks, and a minus sign before a number is not that of
            # an exponent.
            wrong = _negative(row)
        if wrong:
            self._leave_out(wrong, raw)
        if wrong or not (selected is None or row.test in selected.tests):
            return None, unknown
        return row, unknown

    def _entries(
        self, table: Mapping[str, msgspec.Raw], decoder: msgspec.json.Decoder[V]
    ) -> dict[str, tuple[V, Fields]]:
        """
        Return the entries of a table with their unknown fields.

        An unreadable entry is left out, as is a key that is not the digest of its entry.
        """
        entries: dict[str, tuple[V, Fields]] = {}
        for key, raw in table.items():
            text = bytes(raw)
            if text == b"null":  # The end of the table.
                continue
            try:
                entry, unknown = decoded(decoder, text)
            except UNREADABLE as error:
                self._leave_out(_without_place(error), raw)
                continue
            ours = with_fields(json_of(entry), unknown).encode()
            if self.checked and key not in {digest(text), digest(ours)}:
                self._leave_out(_CHANGED, raw)
            else:
                entries[key] = (entry, unknown)
        return entries

    def _leave_out(
        self, reason: str, raw: msgspec.Raw | bytes, *, number: int = 0
    ) -> None:
        """Note a damaged line. A `number` of 0 means that the line number is looked up."""
        text = bytes(raw)
        # A line break inside an entry means that the file was reformatted.
        if not number and b"\n" not in text:
            number = self._text.count(b"\n", 0, self._text.find(text)) + 1
        self.damage.append(
            Damage(
                path=self._path,
                line=number,
                reason=reason,
                test_id=_text_in(_TEST_NAME, text),
                section=self._section,
            )
        )


class _Selected:
    """
    The tests to read of a section.

    Args:
        tests: The tests, as they are written in the rows.
    """

    def __init__(self, tests: Iterable[str]) -> None:
        self.tests = frozenset(tests)
        self._written: set[bytes] = set()
        for test in self.tests:
            # No file has a name that is not Unicode.
            with contextlib.suppress(UnicodeEncodeError):
                self._written.add(json_of(test).encode()[1:-1])

    def leaves_out(self, text: bytes, prefix: bytes) -> bool:
        """Return True if a row is an unchanged one of another test. It is not decoded."""
        name = _TEST_NAME.match(text)
        return (
            name is not None
            and name[1] not in self._written
            and is_summed(text, prefix)
        )


def _text_in(pattern: re.Pattern[bytes], line: bytes) -> str:
    """Return the text that a pattern finds in a line, or ""."""
    found = pattern.match(line)
    if found is None:
        return ""
    try:
        return str(msgspec.json.decode(b'"%b"' % found[1]))
    except UNREADABLE:
        # The text itself is damaged.
        return found[1].decode("utf-8", "replace")


def _is_entry(line: bytes) -> bool:
    """Return True for a line of valid JSON, a record or an entry of a table."""
    body = line.rstrip()
    if not body.endswith(b","):
        return False
    body = body[:-1]
    try:
        msgspec.json.decode(body if body.startswith(b"{") else b"{%b}" % body)
    except UNREADABLE:
        return False
    return True


def _record(
    row: StoredRow[SessionValue],
    key: RecordKey,
    head: StoreHead,
    session: Session,
    facts: Facts,
    kernels: Kernels,
    *,
    unknown: Fields,
    version: int,
) -> StoredRecord:
    soft_facts = head.soft_facts
    totals: tuple[KernelTotal, ...] = ()
    # The counts differ if a line lost some.
    if len(kernels) == len(row.kernel_times_s):
        totals = tuple(
            KernelTotal(name=kernel, total_s=total_s)
            if isinstance(kernel, str)
            else KernelTotal(name=kernel.name, total_s=total_s, launch=kernel.launch)
            for kernel, total_s in zip(kernels, row.kernel_times_s, strict=True)
        )
    return StoredRecord(
        key=key,
        session=session,
        values=row.values,
        choice=row.choice,
        facts=facts,
        soft_facts={**soft_facts, **row.soft_facts} if row.soft_facts else soft_facts,
        bound_class=row.bound_class,
        arrival=head.arrival,
        parameters_digest=row.parameters,
        test_digest=row.source,
        code_digest=row.code,
        kernels=totals,
        schema_version=version,
        node_id=row.node_id,
        files=row.files,
        unknown=unknown,
    )


def _negative(row: StoredRow[SessionValue]) -> str:
    """Return the fault of a value that is negative but must not be, or ""."""
    for value in row.values:
        if min(value.run_values) < 0 and value.metric in _NEVER_NEGATIVE:
            return (
                f"{value.metric} of {row.test!r} is {min(value.run_values):g} "
                f"{value.unit}, but cannot be negative"
            )
    return ""


def _check_schema(schema: str, *, path: str) -> None:
    if not schema.startswith(_SCHEMAS):
        raise BaselineCorruptError(
            f"it is not a baseline (schema {schema!r})",
            remedy="name a store that --gpuperf-update has written",
            path=path,
        )
    if schema not in _READABLE:
        raise SchemaVersionError(schema=schema, supported=SCHEMA_VERSION, path=path)


def _refuse_other_text(text: bytes, *, path: str) -> None:
    """Raise for a merge conflict, an unknown schema, or JSON that is not a baseline."""
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
    except UNREADABLE:
        # The text is not JSON. The caller reports the place of the error.
        return
    _check_schema(schema, path=path)


def _without_place(error: Exception) -> str:
    what, _, field = str(error).partition(" - at `$")
    return f"{field.rstrip('`').lstrip('.')}: {what}" if field else what


def _fault(error: Exception, text: bytes) -> str:
    if isinstance(error, msgspec.ValidationError):
        what, _, field = str(error).partition(" - at `$")
        return f"{field.rstrip('`').lstrip('.') or 'the whole'}: {what}"
    if not isinstance(error, msgspec.DecodeError):
        return f"it is not JSON ({error})"
    match = _BYTE.match(str(error))
    if match is None:
        return f"truncated after line {len(text.splitlines())} ({error})"
    before = text[: int(match["byte"])]
    line, column = before.count(b"\n") + 1, len(before) - before.rfind(b"\n")
    return f"line {line}, column {column}: {match['what']}"
