"""Sessions added to the text of a file, whose other rows stay as they are written."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from pytest_gpuperf.baseline.changes import Append, in_series
from pytest_gpuperf.baseline.encoding import (
    Entries,
    RowTables,
    file_text,
    row_texts,
    section_lines,
    unwritable,
)
from pytest_gpuperf.baseline.history import keep_newest
from pytest_gpuperf.baseline.layout import version_of
from pytest_gpuperf.baseline.rows import (
    CONTENT,
    FACTS,
    HEAD,
    KERNELS,
    ROW,
    StoredSection,
    V,
    decoded,
    digest,
    is_summed,
    summed_prefix,
)
from pytest_gpuperf.model.environment import Session
from pytest_gpuperf.model.frozen import UNREADABLE, Frozen, collector_paused
from pytest_gpuperf.model.record import STORE_VERSION, RecordKey, StoredRecord


class _NumberedValue(Frozen, array_like=True, frozen=True, gc=False):
    """The fields of a value that decide its series. The others stay raw."""

    metric: str
    unit: msgspec.Raw
    source: msgspec.Raw
    run_values: msgspec.Raw
    half_widths: msgspec.Raw = msgspec.Raw()
    better: msgspec.Raw = msgspec.Raw()
    quantiles: msgspec.Raw = msgspec.Raw()
    cores: msgspec.Raw = msgspec.Raw()
    sm_clocks_hz: msgspec.Raw = msgspec.Raw()
    series: int = 0


class _KeptRow(Frozen, frozen=True, gc=False):
    """The fields of a row that decide whether it is kept. Skipping the rest saves a quarter."""

    test: str
    session: str
    facts: str
    values: tuple[_NumberedValue, ...]
    name: str = ""
    choice: str | None = None
    kernels: str = ""


class _KeptRecord(Frozen, frozen=True, kw_only=True, gc=False):
    """A stored record whose row is not decoded further, and its text."""

    row: _KeptRow
    session: Session
    arrival: int
    text: str

    @property
    def choice(self) -> str | None:
        """The hash of the kernels that ran."""
        return self.row.choice

    @property
    def values(self) -> tuple[_NumberedValue, ...]:
        """The values."""
        return self.row.values


class _UnusualError(Exception):
    """Raised for a file that the store would not have written so."""


_KEPT = msgspec.json.Decoder(_KeptRow)
_Records = dict[RecordKey, list["_KeptRecord | StoredRecord"]]


def with_sessions(text: bytes, module: str, changes: Sequence[Append]) -> bytes | None:
    """
    Return the text of a module's file with added sessions.

    The rows of other sessions are checked, and kept without being decoded.

    Args:
        text: The file.

        module: The module.

        changes: The sessions, with their arrival numbers.

    Returns:
        The text, or None if the file must be decoded to add them: it is damaged, has
        another layout, or was merged, or has one of the sessions.

    Raises:
        RecordError: A session could not be read back.
    """
    changes = [change for change in changes if change.record.values]
    if not changes or version_of(text) != STORE_VERSION:
        return None
    with collector_paused():
        try:
            section = _only_section(text, module)
            # Arrival number and session by the key that the rows use.
            heads = {}
            for key, raw in section.sessions.items():
                if key:
                    head, unknown = decoded(HEAD, raw)
                    heads[key] = (head.arrival, head.bare(unknown))
            kept = _kept(section, heads)
            _refuse_known(heads.values(), changes)
            added = _added(kept, changes)
        except (_UnusualError, *UNREADABLE):
            return None
        with unwritable():
            return _text_of(section, heads, kept, added)


def _only_section(text: bytes, module: str) -> StoredSection:
    content = CONTENT.decode(text)
    sections = [section for section in content.sections if section is not None]
    if content.keyed_by != "module" or [s.name for s in sections] != [module]:
        raise _UnusualError
    for table in (sections[0].sessions, sections[0].facts, sections[0].kernels):
        for key, raw in table.items():
            if key and digest(bytes(raw)) != key:
                raise _UnusualError
    return sections[0]


def _kept(section: StoredSection, heads: Mapping[str, tuple[int, Session]]) -> _Records:
    prefix = summed_prefix(section.name)
    kept: _Records = {}
    keys: dict[tuple[str, str], RecordKey] = {}
    for raw in section.records:
        text = bytes(raw)
        if text == b"null":  # The end of the list.
            continue
        row = _KEPT.decode(text) if is_summed(text, prefix) else None
        if row is None or row.session not in heads or row.facts not in section.facts:
            raise _UnusualError
        if row.kernels and row.kernels not in section.kernels:
            raise _UnusualError
        names = (row.test, row.name)
        if names not in keys:
            keys[names] = RecordKey(test_id=section.name + row.test, name=row.name)
        arrival, session = heads[row.session]
        kept.setdefault(keys[names], []).append(
            _KeptRecord(row=row, session=session, arrival=arrival, text=text.decode())
        )
    return kept


def _refuse_known(
    heads: Collection[tuple[int, Session]], changes: Sequence[Append]
) -> None:
    """Raise if a session is in the file already, or is older than one that is."""
    ids = {session.id for _, session in heads}
    newest = max((arrival for arrival, _ in heads), default=0)
    for change in changes:
        record = change.record
        if record.session.id in ids or record.arrival <= newest:
            raise _UnusualError


def _added(kept: _Records, changes: Sequence[Append]) -> list[StoredRecord]:
    """Add sessions to the kept records, and return the added sessions that stay."""
    for records in kept.values():
        series: dict[str, set[int]] = {}
        for record in records:
            for value in record.values:
                series.setdefault(value.metric, set()).add(value.series)
        if any(len(numbers) > 1 for numbers in series.values()):
            raise _UnusualError
    for change in changes:
        before = kept.setdefault(change.key, [])
        before.append(in_series(change, before))
    for key, records in kept.items():
        kept[key] = [*keep_newest(records)]
    return [
        record
        for key in sorted(kept)
        for record in kept[key]
        if isinstance(record, StoredRecord)
    ]


def _text_of(
    section: StoredSection,
    heads: Mapping[str, tuple[int, Session]],
    kept: _Records,
    added: Sequence[StoredRecord],
) -> bytes:
    tables = RowTables(added)
    texts = row_texts(section.name, added, tables, keyed_by="module")
    row_of = dict(zip(map(id, added), texts, strict=True))
    rows, used = [], set()
    for key in sorted(kept):
        for record in kept[key]:
            if isinstance(record, StoredRecord):
                rows.append(row_of[id(record)])
            else:
                rows.append(record.text)
                row = record.row
                used |= {row.session, row.facts, row.kernels} - {""}
    stored = sorted(
        ((heads[k][0], heads[k][1].started_unix_s, text), k)
        for k, text in _entries(section.sessions, used)
    )
    facts = dict([*_entries(section.facts, used), *tables.facts.table()])
    kernels = dict([*_entries(section.kernels, used), *tables.kernels.table()])
    new = tables.heads.table()
    _check(ROW, texts)
    _check(HEAD, [text for _, text in new])
    _check(FACTS, facts.values())
    _check(KERNELS, kernels.values())
    lines = section_lines(
        section.name,
        # The new sessions are the newest.
        heads=[*((k, text) for (_, _, text), k in stored), *new],
        facts=sorted(facts.items()),
        kernels=sorted(kernels.items()),
        rows=rows,
    )
    return file_text(lines, keyed_by="module")


def _entries(table: Mapping[str, msgspec.Raw], used: set[str]) -> Entries:
    return [(key, bytes(raw).decode()) for key, raw in table.items() if key in used]


def _check(decoder: msgspec.json.Decoder[V], texts: Iterable[str]) -> None:
    """Raise if an entry could not be read back."""
    for text in texts:
        decoded(decoder, text.encode())
