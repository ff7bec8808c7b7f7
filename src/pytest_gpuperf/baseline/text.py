"""The text format of a store: a line for each record, with a checksum."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import msgspec
from blake3 import blake3
from msgspec.structs import force_setattr as set_field

from pytest_gpuperf.baseline.history import by_key
from pytest_gpuperf.baseline.layout import (
    READABLE,
    SCHEMA_VERSION,
    SCHEMAS,
    SECTION_NAME,
    STRING,
    OtherLayoutError,
    schema_in,
    sections_in,
)
from pytest_gpuperf.baseline.rows import (
    CONTENT,
    FACTS,
    HEAD,
    KERNELS,
    METRIC,
    NAMES,
    PARTS,
    ROW,
    SUM,
    SUM_LENGTH,
    VALUE,
    Facts,
    Fields,
    Kernels,
    KeyedBy,
    StoredContent,
    StoredRow,
    StoredSection,
    StoreHead,
    V,
    decoded,
    digest,
    is_unchanged,
    json_of,
    summed_prefix,
    with_fields,
)
from pytest_gpuperf.errors import (
    BaselineCorruptError,
    SchemaVersionError,
)
from pytest_gpuperf.model.environment import Session
from pytest_gpuperf.model.frozen import UNREADABLE, BulkRecord, Frozen, collector_paused
from pytest_gpuperf.model.kernel import KernelTotal
from pytest_gpuperf.model.metric import METRICS
from pytest_gpuperf.model.record import (
    KEYED_SINCE,
    STORE_VERSION,
    RecordKey,
    SessionValue,
    StoredRecord,
)
from pytest_gpuperf.model.sample import CoreSpeed

# The heads, facts and kernels of a section, by the keys that its rows use.
_Tables = tuple[
    dict[str, tuple[StoreHead, Session]],
    dict[str, tuple[Facts, Fields]],
    dict[str, tuple[Kernels, Fields]],
]


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


class NamedBy(Frozen, frozen=True, kw_only=True):
    """
    How the sessions of a measurement are named.

    Attributes:
        any_id: Whether the key of any session is a pytest id.

        all_ids: Whether the keys of all sessions are pytest ids.
    """

    any_id: bool = False
    all_ids: bool = False

    def merged(self, other: NamedBy) -> NamedBy:
        """Return how the sessions of two sections are named."""
        return NamedBy(
            any_id=self.any_id or other.any_id, all_ids=self.all_ids and other.all_ids
        )


class BaselineFile(BulkRecord, frozen=True, kw_only=True):
    """
    The content of a file.

    Attributes:
        sections: The sessions of each selected measurement by section, oldest first.

        names: All measurements by section.

        damage: The lines that were left out.

        of_earlier_schema: Whether the file was written by a version that stored less.
    """

    sections: dict[str, dict[RecordKey, tuple[StoredRecord, ...]]]
    names: dict[str, dict[RecordKey, NamedBy]]
    damage: tuple[Damage, ...] = ()
    of_earlier_schema: bool = False


_RESTORE = "restore it from version control, or remove it and measure again"
_CHANGED = "it differs from its checksum"
_BYTE = re.compile(r"^(?P<what>.*) \(byte (?P<byte>\d+)\)$")

# No line of a file starts like this: lines start with a brace, a quote or null.
_CONFLICT = re.compile(rb"^(?:<{7}|={7}|>{7}|\|{7})(?:\s|$)", re.MULTILINE)
# A file is still whole without any other line, which is a record or an entry of a
# table.
_STRUCTURE = re.compile(rb'^(?:\{"schema":|\{"name":|"":null\}|null\]|$)')
# The first field of a record.
_TEST_NAME = re.compile(rb'^\{"test":' + STRING)

# Only metrics of the catalogue, because a number recorded by a test may be a
# difference.
_NEVER_NEGATIVE = frozenset(
    name for name, metric in METRICS.items() if metric.never_negative
)


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
    metrics: Container[str] | None = None,
    quantiles: bool = True,
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

        metrics: The metrics to read, or None for all. Sessions without them are left
            out.

        quantiles: Whether to keep the quantiles of samples, which only reports show.

        edited: Whether to accept lines that differ from their checksum.

    Raises:
        BaselineCorruptError: The file is damaged as a whole. The message names the
            place.

        SchemaVersionError: The file is a baseline of a later schema version.
    """
    reader = _LineReader(
        text, path=path, edited=edited, metrics=metrics, quantiles=quantiles
    )
    with _refusing(text, path=path), collector_paused():
        parts = [
            (part, map(bytes, part.records))
            for part in reader.sections(keyed_by)
            if section in {None, part.name}
        ]
        return _content_of(reader, parts, keyed_by, test_ids)


def decode_stream(
    stream: BinaryIO,
    *,
    path: str,
    keyed_by: KeyedBy,
    test_ids: Collection[str] | None = None,
    metrics: Container[str] | None = None,
    quantiles: bool = True,
) -> BaselineFile | None:
    """
    Decode a file line by line, without holding its text.

    Returns:
        As `decode` of the text, or None for a file that is damaged or has another
        layout than that of the store.
    """
    reader = _LineReader(
        b"", path=path, edited=False, metrics=metrics, quantiles=quantiles
    )
    try:
        with collector_paused():
            reader.version = schema_in(stream, keyed_by=keyed_by)
            file = _content_of(reader, sections_in(stream), keyed_by, test_ids)
    except (OtherLayoutError, *UNREADABLE):
        return None
    # The lines of damage are counted in the whole text.
    return None if file.damage else file


def _content_of(
    reader: _LineReader,
    parts: Iterable[tuple[StoredSection, Iterable[bytes]]],
    keyed_by: KeyedBy,
    test_ids: Collection[str] | None,
) -> BaselineFile:
    """Return the content of a file from its sections and their rows."""
    selected = None if test_ids is None else frozenset(test_ids)
    # After a merge, a section may occur twice.
    records: dict[str, list[StoredRecord]] = {}
    names: dict[str, dict[RecordKey, NamedBy]] = {}
    for part, texts in parts:
        rows, named = reader.records(part, texts, keyed_by, selected)
        records.setdefault(part.name, []).extend(rows)
        known = names.setdefault(part.name, {})
        known |= {k: n.merged(known.get(k, n)) for k, n in named.items()}
    return BaselineFile(
        sections={name: by_key(rows) for name, rows in records.items()},
        names=names,
        damage=tuple(dict.fromkeys(sorted(reader.damage))),
        of_earlier_schema=reader.version < STORE_VERSION,
    )


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

        metrics: The metrics to read, or None for all.

        quantiles: Whether to keep the quantiles of samples.
    """

    def __init__(
        self,
        text: bytes,
        *,
        path: str,
        edited: bool,
        metrics: Container[str] | None,
        quantiles: bool,
    ) -> None:
        self._text = text
        self._path = path
        self.checked = not edited
        self._metrics = metrics
        self._most = None if quantiles else 0  # Quantiles that are kept.
        self._texts: dict[str | None, str | None] = {}
        # The core is as fast for most tests of a session, so that these are few.
        self._cores: dict[tuple[CoreSpeed, ...], tuple[CoreSpeed, ...]] = {}
        # By the beginning of a value.
        self._is_wanted: dict[bytes, bool] = {}
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
        self.version = READABLE[content.schema]
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
            self._section = _text_in(SECTION_NAME, line) or self._section
            if not (_STRUCTURE.match(line) or _is_entry(line)):
                self._leave_out("it is not JSON", line, number=index + 1)
                lines[index] = b""
        return b"\n".join(lines)

    def records(
        self,
        section: StoredSection,
        rows: Iterable[bytes],
        keyed_by: KeyedBy,
        selected: Collection[str] | None,
    ) -> tuple[list[StoredRecord], dict[RecordKey, NamedBy]]:
        """Return the selected sessions of a section, and all of its measurements."""
        self._section = section.name
        prefix = section.name if keyed_by == "module" else ""
        prefix_of_sum = summed_prefix(section.name)
        heads = {
            key: (head, head.bare(more))
            for key, (head, more) in self._entries(section.sessions, HEAD).items()
        }
        facts = self._entries(section.facts, FACTS)
        tables = (heads, facts, self._entries(section.kernels, KERNELS))
        keys: dict[tuple[str, str], RecordKey] = {}
        with_ids: dict[RecordKey, set[bool]] = {}
        records = []
        for text in rows:
            # As `is_summed`, because each call is one for each of 100,000 rows.
            body = b"%b%b}" % (prefix_of_sum, text[:-SUM_LENGTH])
            checksum = blake3(body).hexdigest(length=6).encode()
            is_summed = text.endswith(b'%b%b"}' % (SUM, checksum))
            if not is_summed and not self._is_equal(text, prefix_of_sum):
                continue
            try:
                named = NAMES.decode(text)
                names = (named.test, named.name)
                if names not in keys:
                    keys[names] = RecordKey(
                        test_id=prefix + named.test, name=named.name
                    )
                key, version = keys[names], named.schema or self.version
                with_ids.setdefault(key, set()).add(
                    version < KEYED_SINCE and not named.node_id
                )
                if selected is None or key.test_id in selected:
                    records.append(self._record(text, key, version, tables))
            except UNREADABLE as error:
                self._leave_out(_without_place(error), text)
        return [*filter(None, records)], {
            key: NamedBy(any_id=True in ids, all_ids=False not in ids)
            for key, ids in with_ids.items()
        }

    def _is_equal(self, text: bytes, prefix: bytes) -> bool:
        """Return True if a row without a checksum of its own text is undamaged."""
        if text == b"null":  # The end of the list.
            return False
        if not text or text.endswith(b"\n"):
            raise OtherLayoutError
        try:
            row, unknown = decoded(ROW, text)
        except UNREADABLE as error:
            self._leave_out(_without_place(error), text)
            return False
        if self.checked and not is_unchanged(row, unknown, text, prefix):
            self._leave_out(_CHANGED, text)
            return False
        return True

    def _record(
        self, text: bytes, key: RecordKey, version: int, tables: _Tables
    ) -> StoredRecord | None:
        """Return the session of a row, or None if it is damaged or lacks the metrics."""
        row: StoredRow[Any]
        values: Sequence[SessionValue]
        # This layout has no blanks, and a minus sign before a number is not that of an
        # exponent. Such a row may have a value that must not be negative.
        is_odd = b"[-" in text or b",-" in text or b" " in text or b"\n" in text
        if is_odd or self._metrics is None:
            row, unknown = decoded(ROW, text)
            values = row.values
        else:
            unknown = ()
            try:
                row = PARTS.decode(text)
            except msgspec.ValidationError:  # It may have fields of a later version.
                row, unknown = decoded(PARTS, text)
            values = []
            # Here, because a call for each row is one of 100,000.
            for part in map(bytes, row.values):
                start = part[: part.find(b",")]
                is_wanted = self._is_wanted.get(start)
                if is_wanted is None:
                    is_wanted = self._asks_for(part, start)
                if is_wanted:
                    value = VALUE.decode(part)
                    cores = value.cores
                    set_field(value, "cores", self._cores.setdefault(cores, cores))
                    set_field(value, "quantiles", value.quantiles[: self._most])
                    values.append(value)
            if not values:
                return None
        heads, facts, kernels = tables
        is_held = row.session in heads and row.facts in facts
        if (is_odd or not is_held) and self._is_wrong(row, values, text, held=is_held):
            return None
        head, session = heads[row.session]
        shared_text = self._texts.setdefault
        shared = head.soft_facts
        # No verdict needs the kernels, so a record without them is kept.
        of_row = row.kernels and kernels.get(row.kernels)
        return StoredRecord(
            key=key,
            session=session,
            values=tuple(values),
            choice=row.choice,
            facts=facts[row.facts][0],
            soft_facts={**shared, **row.soft_facts} if row.soft_facts else shared,
            bound_class=row.bound_class,
            arrival=head.arrival,
            # The sessions of a test nearly always share these.
            parameters_digest=shared_text(row.parameters, row.parameters),
            test_digest=shared_text(row.source, row.source),
            code_digest=row.code,
            kernels=_totals(of_row[0], row.kernel_times_s) if of_row else (),
            schema_version=version,
            node_id=row.node_id,
            files=row.files,
            unknown=unknown,
        )

    def _is_wrong(
        self,
        row: StoredRow[Any],
        values: Sequence[SessionValue],
        text: bytes,
        *,
        held: bool,
    ) -> bool:
        wrong = "" if held else "its session or its facts are left out"
        for value in () if wrong else values:
            least = min(value.run_values)
            if least < 0 and value.metric in _NEVER_NEGATIVE:
                wrong = (
                    f"{value.metric} of {row.test!r} is {least:g} {value.unit}, but "
                    "cannot be negative"
                )
                break
        if wrong:
            self._leave_out(wrong, text)
        return bool(wrong)

    def _asks_for(self, part: bytes, start: bytes) -> bool:
        """Return True if the metric of a value is wanted. Its beginning then shows that."""
        metric = METRIC.decode(part).metric
        is_wanted = metric in (self._metrics or ())
        # Other values may begin alike, if the name has a comma.
        if start == b'["%b"' % metric.encode():
            self._is_wanted[start] = is_wanted
        return is_wanted

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


def _totals(
    kernels: Kernels, kernel_times_s: Sequence[float]
) -> tuple[KernelTotal, ...]:
    """Return the kernels with their times, or () if a line lost some of them."""
    if len(kernels) != len(kernel_times_s):
        return ()
    return tuple(
        KernelTotal(name=kernel, total_s=total_s)
        if isinstance(kernel, str)
        else KernelTotal(name=kernel.name, total_s=total_s, launch=kernel.launch)
        for kernel, total_s in zip(kernels, kernel_times_s, strict=True)
    )


def _check_schema(schema: str, *, path: str) -> None:
    if not schema.startswith(SCHEMAS):
        raise BaselineCorruptError(
            f"it is not a baseline (schema {schema!r})",
            remedy="name a store that --gpuperf-update has written",
            path=path,
        )
    if schema not in READABLE:
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
