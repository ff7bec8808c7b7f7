"""The lines of a store's files, as they are decoded and written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Generic, TypeVar, get_origin

import msgspec
from blake3 import blake3

from pytest_gpuperf.model.environment import Session
from pytest_gpuperf.model.frozen import Frozen, replace
from pytest_gpuperf.model.kernel import KernelLaunch
from pytest_gpuperf.model.record import (
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
        fields = {name: getattr(self, name) for name in OF_SESSION}
        return Session(**fields, unknown=unknown)


# The fields of a session in a head. The unknown fields are stored next to the known
# fields.
OF_SESSION = tuple(name for name in Session.__struct_fields__ if name != "unknown")
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


def with_fields(text: str, fields: Fields) -> str:
    """Add fields of a later version to the text of an entry."""
    if not fields:
        return text
    more = "".join(f",{json_of(name)}:{value}" for name, value in fields)
    return f"{text[:-1]}{more}}}"


def summed_prefix(section: str) -> bytes:
    """Return the checksum's prefix, by which a row in the wrong section counts as damaged."""
    return section.encode() + b"\0"


def value_fields(value: SessionValue) -> list[object]:
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
    values = tuple(map(value_fields, row.values))
    ours = with_fields(json_of(replace(row, values=values, sum="")), unknown)
    return digest(prefix + ours.encode()) == row.sum


def is_summed(text: bytes, prefix: bytes) -> bool:
    """Return True if the text of a row ends with its checksum."""
    body, checksum = text[:-SUM_LENGTH], text[-SUM_LENGTH:]
    if not checksum.startswith(SUM):
        return False
    return checksum[len(SUM) : -2] == digest(b"%b%b}" % (prefix, body)).encode()
