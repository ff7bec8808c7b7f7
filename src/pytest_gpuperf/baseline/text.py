"""The text format of a store: a line for each record, with a checksum."""

from __future__ import annotations

import re
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from typing import Any, BinaryIO

import msgspec
from blake3 import blake3
from msgspec.structs import force_setattr as set_field

from pytest_gpuperf.baseline.history import by_key
from pytest_gpuperf.baseline.layout import (
    STRING,
    OtherLayoutError,
    schema_in,
    sections_in,
)
from pytest_gpuperf.baseline.rows import (
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


_CHANGED = "it differs from its checksum"
# The first field of a record.
_TEST_NAME = re.compile(rb'^\{"test":' + STRING)

# Only metrics of the catalogue, because a number recorded by a test may be a
# difference.
_NEVER_NEGATIVE = frozenset(
    name for name, metric in METRICS.items() if metric.never_negative
)


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
        As `whole_text.decode` of the text, or None for a file that is damaged or has another
        layout than that of the store.
    """
    reader = RowReader(
        b"", path=path, edited=False, metrics=metrics, quantiles=quantiles
    )
    try:
        with collector_paused():
            reader.version = schema_in(stream, keyed_by=keyed_by)
            file = content_of(reader, sections_in(stream), keyed_by, test_ids)
    except (OtherLayoutError, *UNREADABLE):
        return None
    # The lines of damage are counted in the whole text.
    return None if file.damage else file


def content_of(
    reader: RowReader,
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


class RowReader:
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
        self.file_text = text
        self.path = path
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
        self.section = ""

    def records(
        self,
        section: StoredSection,
        rows: Iterable[bytes],
        keyed_by: KeyedBy,
        selected: Collection[str] | None,
    ) -> tuple[list[StoredRecord], dict[RecordKey, NamedBy]]:
        """Return the selected sessions of a section, and all of its measurements."""
        self.section = section.name
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
                self.leave_out(_without_place(error), text)
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
            self.leave_out(_without_place(error), text)
            return False
        if self.checked and not is_unchanged(row, unknown, text, prefix):
            self.leave_out(_CHANGED, text)
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
            self.leave_out(wrong, text)
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
                self.leave_out(_without_place(error), raw)
                continue
            ours = with_fields(json_of(entry), unknown).encode()
            if self.checked and key not in {digest(text), digest(ours)}:
                self.leave_out(_CHANGED, raw)
            else:
                entries[key] = (entry, unknown)
        return entries

    def leave_out(
        self, reason: str, raw: msgspec.Raw | bytes, *, number: int = 0
    ) -> None:
        """Note a damaged line. A `number` of 0 means that the line number is looked up."""
        text = bytes(raw)
        # A line break inside an entry means that the file was reformatted.
        if not number and b"\n" not in text:
            number = self.file_text.count(b"\n", 0, self.file_text.find(text)) + 1
        self.damage.append(
            Damage(
                path=self.path,
                line=number,
                reason=reason,
                test_id=text_in(_TEST_NAME, text),
                section=self.section,
            )
        )


def text_in(pattern: re.Pattern[bytes], line: bytes) -> str:
    """Return the text that a pattern finds in a line, or ""."""
    found = pattern.match(line)
    if found is None:
        return ""
    try:
        return str(msgspec.json.decode(b'"%b"' % found[1]))
    except UNREADABLE:
        # The text itself is damaged.
        return found[1].decode("utf-8", "replace")


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


def _without_place(error: Exception) -> str:
    what, _, field = str(error).partition(" - at `$")
    return f"{field.rstrip('`').lstrip('.')}: {what}" if field else what
