"""The text of a store's file, as it is written."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from pytest_gpuperf.baseline.layout import SCHEMA_VERSION
from pytest_gpuperf.baseline.rows import (
    CONTENT,
    FACTS,
    HEAD,
    KERNELS,
    OF_SESSION,
    ROW,
    KeyedBy,
    LaunchedKernel,
    Records,
    StoredRow,
    StoreHead,
    decoded,
    digest,
    json_of,
    summed_prefix,
    value_fields,
    with_fields,
)
from pytest_gpuperf.errors import RecordError
from pytest_gpuperf.model.environment import Session
from pytest_gpuperf.model.kernel import KernelTotal
from pytest_gpuperf.model.record import STORE_VERSION, StoredRecord


class RowTables:
    """
    The tables that the rows of a section refer to.

    Args:
        records: The records of the section. Their rows fill the tables of facts and
            kernels.
    """

    def __init__(self, records: Sequence[StoredRecord]) -> None:
        self.heads = HeadTable(records)
        self.facts = FactTable()
        self.kernels = KernelSets()


def row_texts(
    section: str,
    records: Sequence[StoredRecord],
    tables: RowTables,
    *,
    keyed_by: KeyedBy,
) -> list[str]:
    """
    Return the rows of some records, with checksums.

    Args:
        section: The name of the section.

        records: The records, in the order of the rows.

        tables: The tables of the section, which get the facts and kernels of the rows.

        keyed_by: The kind of the sections.
    """
    prefix = section if keyed_by == "module" else ""
    prefix_of_sum = summed_prefix(section)
    rows = [
        StoredRow[list[object]](
            test=record.key.test_id.removeprefix(prefix),
            name=record.key.name,
            session=tables.heads.digest(record),
            facts=tables.facts.digest(record.facts),
            choice=record.choice,
            values=tuple(map(value_fields, record.values)),
            soft_facts=tables.heads.rest(record),
            bound_class=record.bound_class,
            kernels=tables.kernels.digest(record.kernels),
            # msgspec leaves out the default only if it is the same object, and Python
            # 3.10 creates a new () here.
            kernel_times_s=tuple(float(k.total_s) for k in record.kernels) or (),
            parameters=record.parameters_digest,
            source=record.test_digest,
            code=record.code_digest,
            schema=record.schema_version
            if record.schema_version != STORE_VERSION
            else 0,
            node_id=record.node_id,
            files=record.files,
        )
        for record in records
    ]
    texts = (
        with_fields(json_of(row), record.unknown)
        for row, record in zip(rows, records, strict=True)
    )
    return [
        f'{text[:-1]},"sum":"{digest(prefix_of_sum + text.encode())}"}}'
        for text in texts
    ]


# Digests and texts of the entries of a table.
Entries = Iterable[tuple[str, str]]


def section_lines(
    name: str, *, heads: Entries, facts: Entries, kernels: Entries, rows: Iterable[str]
) -> Iterator[str]:
    """Yield the lines of a section. Each list and each table ends with null."""
    yield f'{{"name":{json_of(name)},"sessions":{{'
    yield from (f'"{key}":{head},' for key, head in heads)
    yield '"":null},"facts":{'
    yield from (f'"{key}":{text},' for key, text in facts)
    yield '"":null},"kernels":{'
    yield from (f'"{key}":{text},' for key, text in kernels)
    yield '"":null},"records":['
    yield from (f"{row}," for row in rows)
    yield "null]},"


# A session of a store, with the arrival number.
Arrived = tuple[int, Session]


class HeadTable:
    """The heads of the sessions, without duplicates."""

    def __init__(self, records: Iterable[StoredRecord]) -> None:
        self._shared: dict[Arrived, dict[str, str]] = {}
        for record in records:
            arrived = (record.arrival, record.session)
            soft = self._shared.setdefault(arrived, dict(record.soft_facts))
            if soft != record.soft_facts:
                both = soft.items() & record.soft_facts.items()
                self._shared[arrived] = dict(both)
        self._texts: dict[Arrived, str] = {}
        for (arrival, session), soft in self._shared.items():
            fields = {name: getattr(session, name) for name in OF_SESSION}
            fields["started_unix_s"] = float(session.started_unix_s)
            head = StoreHead(**fields, soft_facts=soft, arrival=arrival)
            text = with_fields(json_of(head), session.unknown)
            self._texts[arrival, session] = text
        self._digests = {
            arrived: digest(text.encode()) for arrived, text in self._texts.items()
        }

    def digest(self, record: StoredRecord) -> str:
        """Return the key of the session of a record, as used in the lines."""
        return self._digests[record.arrival, record.session]

    def rest(self, record: StoredRecord) -> dict[str, str]:
        """Return the soft facts of a record that the head of the session lacks."""
        shared = self._shared[record.arrival, record.session]
        if len(shared) == len(record.soft_facts):
            return {}
        return {
            name: fact for name, fact in record.soft_facts.items() if name not in shared
        }

    def table(self) -> list[tuple[str, str]]:
        """Return digests and texts of the heads, in the order of arrival."""
        ordered = sorted(
            self._texts,
            key=lambda head: (head[0], head[1].started_unix_s, self._texts[head]),
        )
        return [(self._digests[head], self._texts[head]) for head in ordered]


class FactTable:
    """The sets of hard facts, without duplicates."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        # By identity, because decoded records share their facts.
        self._keys: dict[int, str] = {}

    def digest(self, facts: Mapping[str, Mapping[str, str]]) -> str:
        """Register a set of facts, and return the key that the lines use."""
        key = self._keys.get(id(facts))
        if key is None:
            text = json_of({family: dict(names) for family, names in facts.items()})
            key = self._keys[id(facts)] = digest(text.encode())
            self._texts[key] = text
        return key

    def table(self) -> list[tuple[str, str]]:
        """Return digests and texts of the sets, sorted by digest."""
        return sorted(self._texts.items())


class KernelSets:
    """The sets of kernels that ran together, without duplicates."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def digest(self, kernels: Sequence[KernelTotal]) -> str:
        """
        Register a set of kernels, and return the key that the lines use, or "" for no kernels.
        """
        if not kernels:
            return ""
        # Without the times, and without a launch that is unknown.
        text = json_of(
            [
                k.name if k.launch is None else LaunchedKernel(k.name, k.launch)
                for k in kernels
            ]
        )
        key = digest(text.encode())
        self._texts[key] = text
        return key

    def table(self) -> list[tuple[str, str]]:
        """Return digests and texts of the sets, sorted by digest."""
        return sorted(self._texts.items())


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
