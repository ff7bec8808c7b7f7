"""The lines of a store's files, as they are decoded and written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Generic, TypeVar, get_origin

import msgspec
from blake3 import blake3

from pytest_gpuperf.model.activity import KernelLaunch, KernelTotal
from pytest_gpuperf.model.environment import Session
from pytest_gpuperf.model.frozen import Frozen, replace
from pytest_gpuperf.model.record import (
    STORE_VERSION,
    BoundClass,
    FileList,
    RecordKey,
    SessionValue,
    StoredRecord,
)
from pytest_gpuperf.model.sample import CoreSpeed

# The sessions of each measurement, oldest first.
Records = Mapping[RecordKey, tuple[StoredRecord, ...]]

# A SessionValue when reading, a list when writing.
V = TypeVar("V")

# Either "module", whose name is left out of the test ids in the lines, or "slug".
KeyedBy = str
# A higher number cannot be a count of runs.
_Arrival = Annotated[int, msgspec.Meta(ge=0, le=10**9)]


class StoredRow(
    Frozen,
    Generic[V],
    frozen=True,
    gc=False,
    omit_defaults=True,
    forbid_unknown_fields=True,
):
    """
    A StoredRecord as one line. The last field is the checksum of the text before it.

    Attributes:
        test: The test id, without the module if sections are modules.

        session: The digest of the session's head.

        facts: The digest of the hard facts.

        values: The values.

        name: The measurement inside the test.

        choice: Hash of the kernels that ran.

        soft_facts: Soft facts that the head of the session does not have.

        bound_class: The class of measurements that move together when the machine
            drifts.

        kernels: The digest of the kernels.

        kernel_times_s: The time of each kernel [s], in the order of the kernels.

        parameters: Digest of the values of the test's parameters.

        source: Digest of the test function's syntax tree.

        code: Digest of the machine code of the kernels.

        schema: The version of the format in which the line was first written, or 0 for
            the version of the file.

        node_id: The pytest id under which the line was first written, if the test has
            been given another key since.

        files: The files of the session.

        sum: The checksum.
    """

    test: str
    session: str
    facts: str
    values: tuple[V, ...]
    name: str = ""
    choice: str | None = None
    soft_facts: Mapping[str, str] = {}
    bound_class: BoundClass = BoundClass.HOST
    kernels: str = ""
    kernel_times_s: tuple[float, ...] = ()
    parameters: str | None = None
    source: str | None = None
    code: str | None = None
    schema: int = 0
    node_id: str = ""
    files: FileList | None = None
    sum: str = ""


class NamedRow(Frozen, frozen=True, gc=False):
    """The fields of a row that name its measurement."""

    test: str
    name: str = ""
    schema: int = 0
    node_id: str = ""


class _NamedValue(Frozen, array_like=True, frozen=True, gc=False):
    """The field of a value that names its metric."""

    metric: str


class StoreHead(
    Session,
    frozen=True,
    kw_only=True,
    gc=False,
    omit_defaults=True,
    forbid_unknown_fields=True,
):
    """A Session with its arrival number and the soft facts that its records share."""

    soft_facts: Mapping[str, str] = {}
    arrival: _Arrival = 0

    def bare(self, unknown: Fields) -> Session:
        """Return the session, with its fields of a later version."""
        fields = {name: getattr(self, name) for name in _OF_SESSION}
        return Session(**fields, unknown=unknown)


# The fields of a session in a head. The unknown fields are stored next to the known
# fields.
_OF_SESSION = tuple(name for name in Session.__struct_fields__ if name != "unknown")
Facts = dict[str, dict[str, str]]
# Names and JSON texts of fields that a later version added.
Fields = tuple[tuple[str, str], ...]


class LaunchedKernel(Frozen, array_like=True, frozen=True, gc=False):
    """A kernel with its launch, stored as a list."""

    name: str
    launch: KernelLaunch


# The kernels that ran, most time first. Files of earlier versions hold names only.
Kernels = tuple[str | LaunchedKernel, ...]


class StoredSection(Frozen, frozen=True):
    """The sessions of one module or slug. Lines stay raw and are decoded one by one."""

    name: str
    sessions: dict[str, msgspec.Raw]
    facts: dict[str, msgspec.Raw]
    records: list[msgspec.Raw]
    # Files of earlier versions have no kernels.
    kernels: Mapping[str, msgspec.Raw] = {}


class StoredContent(Frozen, frozen=True):
    """The whole file."""

    schema: str
    keyed_by: str
    sections: list[StoredSection | None]


_ENCODER = msgspec.json.Encoder(order="deterministic")
SECTION = msgspec.json.Decoder(StoredSection)
CONTENT = msgspec.json.Decoder(StoredContent)
ROW = msgspec.json.Decoder(StoredRow[SessionValue])
PARTS = msgspec.json.Decoder(StoredRow[msgspec.Raw])
VALUE = msgspec.json.Decoder(SessionValue)
METRIC = msgspec.json.Decoder(_NamedValue)
HEAD = msgspec.json.Decoder(StoreHead)
FACTS = msgspec.json.Decoder(Facts)
KERNELS = msgspec.json.Decoder(Kernels)
NAMES = msgspec.json.Decoder(NamedRow)
TABLE = msgspec.json.Decoder(dict[str, msgspec.Raw])

# The start of the last field of a row.
SUM = b',"sum":"'
SUM_LENGTH = len(SUM) + 12 + len('"}')


def digest(text: bytes, *, length: int = 12) -> str:
    """Return the first hexadecimal digits of the blake3 hash of a text."""
    return blake3(text).hexdigest()[:length]


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
    Return the rows of some records, with their checksums.

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
            values=tuple(map(_value, record.values)),
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


def with_fields(text: str, fields: Fields) -> str:
    """Add fields of a later version to the text of an entry."""
    if not fields:
        return text
    more = "".join(f",{json_of(name)}:{value}" for name, value in fields)
    return f"{text[:-1]}{more}}}"


def summed_prefix(section: str) -> bytes:
    """Return the checksum's prefix, by which a row in the wrong section counts as damaged."""
    return section.encode() + b"\0"


def _value(value: SessionValue) -> list[object]:
    """Return a value as a list, without trailing defaults."""
    fields: list[object] = [value.metric, value.unit, value.source]
    # 64 and 64.0 must give the same text.
    fields.append([*map(float, value.run_values)])
    rest: list[object] = [
        [*map(float, value.half_widths)],
        value.better,
        [*map(float, value.quantiles)],
        _cores(value.cores),
        [*map(float, value.sm_clocks_hz)],
        value.series,
        [*map(float, value.alone_values)],
        _cores(value.alone_cores),
        value.suspected,
        value.accepted,
        value.interrupted,
    ]
    while rest and not rest[-1]:
        rest.pop()
    fields += rest
    return fields


def _cores(cores: Sequence[CoreSpeed]) -> list[list[float]]:
    return [[*map(float, msgspec.structs.astuple(core))] for core in cores]


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
            fields = {name: getattr(session, name) for name in _OF_SESSION}
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


def json_of(value: object) -> str:
    """Return the JSON text of an entry. Equal entries give equal texts."""
    return _ENCODER.encode(value).decode()


def decoded(
    decoder: msgspec.json.Decoder[V], text: bytes | msgspec.Raw
) -> tuple[V, Fields]:
    """Return an entry, and its fields of a later version."""
    try:
        return decoder.decode(text), ()
    except msgspec.ValidationError:
        kind = get_origin(decoder.type) or decoder.type
        known = getattr(kind, "__struct_fields__", ())
        if not known:
            raise
        fields = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        names = [name for name in fields if name not in known]
        if not names:
            raise
    # One line, regardless of the layout of the file.
    unknown = tuple(
        (name, msgspec.json.format(bytes(fields.pop(name)), indent=-1).decode())
        for name in names
    )
    return decoder.decode(msgspec.json.encode(fields)), unknown


def is_unchanged(
    row: StoredRow[SessionValue], unknown: Fields, text: bytes, prefix: bytes
) -> bool:
    """
    Return True if a row matches the checksum, in the layout of the file or of the store.
    """
    if text[-SUM_LENGTH:].startswith(SUM):
        return is_summed(text, prefix)
    values = tuple(map(_value, row.values))
    ours = with_fields(json_of(replace(row, values=values, sum="")), unknown)
    return digest(prefix + ours.encode()) == row.sum


def is_summed(text: bytes, prefix: bytes) -> bool:
    """Return True if the text of a row ends with its checksum."""
    body, checksum = text[:-SUM_LENGTH], text[-SUM_LENGTH:]
    if not checksum.startswith(SUM):
        return False
    return checksum[len(SUM) : -2] == digest(b"%b%b}" % (prefix, body)).encode()
