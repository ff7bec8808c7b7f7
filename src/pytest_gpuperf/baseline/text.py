"""The text format of a store: one line for each record, each with its checksum."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Generic, TypeVar, get_origin

import msgspec
from blake3 import blake3

from pytest_gpuperf.baseline.history import by_key
from pytest_gpuperf.errors import (
    BaselineCorruptError,
    RecordError,
    SchemaVersionError,
)
from pytest_gpuperf.model.activity import KernelLaunch, KernelTotal
from pytest_gpuperf.model.environment import Session
from pytest_gpuperf.model.frozen import BulkRecord, Frozen, collector_paused, replace
from pytest_gpuperf.model.metric import METRICS
from pytest_gpuperf.model.record import (
    STORE_VERSION,
    BoundClass,
    RecordKey,
    SessionValue,
    StoredRecord,
)
from pytest_gpuperf.model.sample import CoreSpeed

__all__ = [
    "SCHEMA_VERSION",
    "BaselineFile",
    "Damage",
    "KeyedBy",
    "Records",
    "decode",
    "digest",
    "encode",
    "numbered_sessions",
]

_SCHEMAS = "pytest-gpuperf/baseline/"
SCHEMA_VERSION = f"{_SCHEMAS}{STORE_VERSION}"
# by schema: the version that its lines are of. Those of 2 are lines of 3 without what a
# value is of.
_READABLE = {SCHEMA_VERSION: STORE_VERSION, f"{_SCHEMAS}2": 2}

# the sessions of each measurement, oldest first
Records = Mapping[RecordKey, tuple[StoredRecord, ...]]

_V = TypeVar("_V")  # a SessionValue when reading, a list when writing

KeyedBy = str  # "module", whose name the lines omit from test ids, or "slug"
_Arrival = Annotated[int, msgspec.Meta(ge=0, le=10**9)]  # more is not a count of runs


class _StoredRow(
    Frozen,
    Generic[_V],
    frozen=True,
    gc=False,
    omit_defaults=True,
    forbid_unknown_fields=True,
):
    """
    A StoredRecord: one line, whose last field is the checksum of what precedes it.

    Attributes:
        test: The test id; where sections are modules, without the module.

        session: The digest of the session's head.

        facts: The digest of the hard facts.

        values: The values.

        name: The measurement inside the test.

        choice: Hash of the kernels that ran.

        soft_facts: Soft facts that the session's head does not have.

        bound_class: What moves together with it when the machine moves.

        kernels: The digest of its kernels.

        kernel_times_s: How long each of them took [s], in their order.

        parameters: Digest of the values of the test's parameters.

        source: Digest of the test function's syntax tree.

        code: Digest of the machine code of its kernels.

        schema: The version of the format that the line was first written in; 0: the
            file's own.

        node_id: The id of pytest that the line was first written under, if its test was
            given another since.

        sum: The checksum.
    """

    test: str
    session: str
    facts: str
    values: tuple[_V, ...]
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
    sum: str = ""


class _StoreHead(
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


# what a line has of a session, whose unknown fields stand beside the known ones
_OF_SESSION = tuple(name for name in Session.__struct_fields__ if name != "unknown")
_Facts = dict[str, dict[str, str]]
_Fields = tuple[tuple[str, str], ...]  # of a later version: names and JSON texts


class _LaunchedKernel(Frozen, array_like=True, frozen=True, gc=False):
    """A kernel with how it was launched: a list."""

    name: str
    launch: KernelLaunch


# what ran, most time first; names alone in files of earlier versions
_Kernels = tuple[str | _LaunchedKernel, ...]


class _Section(Frozen, frozen=True):
    """The sessions of one module, or of one slug; lines are decoded one by one."""

    name: str
    sessions: dict[str, msgspec.Raw]
    facts: dict[str, msgspec.Raw]
    records: list[msgspec.Raw]
    kernels: Mapping[str, msgspec.Raw] = {}  # none in files of earlier versions


class _Content(Frozen, frozen=True):
    """The whole file."""

    schema: str
    keyed_by: str
    sections: list[_Section | None]


class Damage(Frozen, frozen=True, kw_only=True, order=True):
    """
    A line that was left out.

    Attributes:
        path: The file.

        line: Its number, from 1; 0 where the file is not in lines.

        reason: What is wrong with it, as a fragment.

        test_id: The test that it names, without its module where sections are modules;
            "": it names none, or that cannot be read.

        section: The section that it stands in; "": unknown.
    """

    path: str
    line: int
    reason: str
    test_id: str = ""
    section: str = ""

    def __str__(self) -> str:
        """Return where it is and what is wrong."""
        place = f"{self.path}, line {self.line}" if self.line else self.path
        return f"{place}: {self.reason}"


class BaselineFile(BulkRecord, frozen=True, kw_only=True):
    """
    The content of a file.

    Attributes:
        sections: By section, the sessions of each measurement, oldest first.

        damage: The lines that were left out.

        of_earlier_schema: Whether it was written by a version that stored less.
    """

    sections: dict[str, dict[RecordKey, tuple[StoredRecord, ...]]]
    damage: tuple[Damage, ...] = ()
    of_earlier_schema: bool = False


_ENCODER = msgspec.json.Encoder(order="deterministic")
_DECODER = msgspec.json.Decoder(_Content)
_ROW = msgspec.json.Decoder(_StoredRow[SessionValue])
_HEAD = msgspec.json.Decoder(_StoreHead)
_FACTS = msgspec.json.Decoder(_Facts)
_KERNELS = msgspec.json.Decoder(_Kernels)

_SUM = b',"sum":"'  # how the last field of a row begins
_SUM_LENGTH = len(_SUM) + 12 + len('"}')


def digest(text: bytes, *, length: int = 12) -> str:
    """Return the first hexadecimal digits of a text's blake3."""
    return blake3(text).hexdigest()[:length]


def encode(sections: Mapping[str, Records], *, keyed_by: KeyedBy) -> bytes:
    """
    Return the text of a file [UTF-8]; equal sessions give equal bytes.

    Args:
        sections: The sessions by section.

        keyed_by: What the sections are.

    Raises:
        RecordError: A session could not be read back.
    """
    lines = [f'{{"schema":"{SCHEMA_VERSION}","keyed_by":"{keyed_by}","sections":[']
    try:
        for name, records in sorted(sections.items()):
            lines += _section_lines(name, records, keyed_by=keyed_by)
        text = "\n".join([*lines, "null]}", ""]).encode()
        _check_rows(text)
    except UnicodeEncodeError as error:
        raise RecordError(
            f"{error.object!a} cannot be encoded as UTF-8",
            path="baseline",
            remedy="rename the test",
        ) from error
    except msgspec.ValidationError as error:
        raise RecordError(str(error), path="baseline") from error
    return text


def _check_rows(text: bytes) -> None:
    """Refuse a text with a line that could not be read back."""
    for section in filter(None, _DECODER.decode(text).sections):
        tables: tuple[tuple[msgspec.json.Decoder[Any], Iterable[msgspec.Raw]], ...] = (
            (_ROW, section.records),
            (_HEAD, section.sessions.values()),
            (_FACTS, section.facts.values()),
            (_KERNELS, section.kernels.values()),
        )
        for decoder, entries in tables:
            for entry in entries:
                if bytes(entry) != b"null":  # which ends each list and each table
                    _decoded(decoder, entry)


def _section_lines(name: str, records: Records, *, keyed_by: KeyedBy) -> Iterator[str]:
    """Yield the lines of one section, without line ends."""
    prefix = name if keyed_by == "module" else ""
    ordered = [record for key in sorted(records) for record in records[key]]
    heads = _Heads(ordered)
    facts = _FactTable()
    kernels = _KernelTable()
    rows = [
        _StoredRow[list[object]](
            test=record.key.test_id.removeprefix(prefix),
            name=record.key.name,
            session=heads.digest(record),
            facts=facts.digest(record.facts),
            choice=record.choice,
            values=tuple(map(_value, record.values)),
            soft_facts=heads.rest(record),
            bound_class=record.bound_class,
            kernels=kernels.digest(tuple(map(_launched, record.kernels))),
            # msgspec leaves out this very (), and Python 3.10 makes another one
            kernel_times_s=tuple(float(k.total_s) for k in record.kernels) or (),
            parameters=record.parameters_digest,
            source=record.test_digest,
            code=record.code_digest,
            schema=record.schema_version
            if record.schema_version != STORE_VERSION
            else 0,
            node_id=record.node_id,
        )
        for record in ordered
    ]
    yield f'{{"name":{_json(name)},"sessions":{{'
    yield from (f'"{key}":{head},' for key, head in heads.table())
    yield '"":null},"facts":{'
    yield from (f'"{key}":{text},' for key, text in facts.table())
    yield '"":null},"kernels":{'
    yield from (f'"{key}":{text},' for key, text in kernels.table())
    yield '"":null},"records":['
    prefix_of_sum = _summed_prefix(name)
    texts = (
        _with_fields(_json(row), record.unknown)
        for row, record in zip(rows, ordered, strict=True)
    )
    yield from (f"{_with_checksum(text, prefix_of_sum)}," for text in texts)
    yield "null]},"


def _with_fields(text: str, fields: _Fields) -> str:
    """Return an object of JSON with some more fields."""
    if not fields:
        return text
    more = "".join(f",{_json(name)}:{value}" for name, value in fields)
    return f"{text[:-1]}{more}}}"


def _with_checksum(row: str, prefix: bytes) -> str:
    """Return a row with its checksum as the last field."""
    return f'{row[:-1]},"sum":"{digest(prefix + row.encode())}"}}'


def _summed_prefix(section: str) -> bytes:
    """Return what the checksum of a row has before it: a row of another section is wrong."""
    return section.encode() + b"\0"


def _value(value: SessionValue) -> list[object]:
    """Return a value as a list, without trailing defaults."""
    fields: list[object] = [value.metric, value.unit, value.source]
    fields.append([*map(float, value.run_values)])  # 64 and 64.0 are one text
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
    ]
    while rest and not rest[-1]:
        rest.pop()
    fields += rest
    return fields


def _cores(cores: Sequence[CoreSpeed]) -> list[list[float]]:
    """Return the speeds of some cores as lists of floats."""
    return [[*map(float, msgspec.structs.astuple(core))] for core in cores]


_Arrived = tuple[int, Session]  # a session of one store


class _Heads:
    """The heads of the sessions, each once."""

    def __init__(self, records: Iterable[StoredRecord]) -> None:
        self._shared = _shared_soft_facts(records)
        self._texts = {
            arrived: _head(*arrived, soft) for arrived, soft in self._shared.items()
        }
        self._digests = {
            arrived: digest(text.encode()) for arrived, text in self._texts.items()
        }

    def digest(self, record: StoredRecord) -> str:
        """Return the key of a record's session in the lines."""
        return self._digests[record.arrival, record.session]

    def rest(self, record: StoredRecord) -> dict[str, str]:
        """Return the soft facts of a record that its session's head does not have."""
        shared = self._shared[record.arrival, record.session]
        if len(shared) == len(record.soft_facts):
            return {}
        return {
            name: fact for name, fact in record.soft_facts.items() if name not in shared
        }

    def table(self) -> list[tuple[str, str]]:
        """Return digest and text of each head, the session that arrived first at the top."""
        ordered = sorted(
            self._texts,
            key=lambda head: (head[0], head[1].started_unix_s, self._texts[head]),
        )
        return [(self._digests[head], self._texts[head]) for head in ordered]


class _FactTable:
    """The hard facts, each set of them once."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        # by identity: decoded records share their facts
        self._keys: dict[int, str] = {}

    def digest(self, facts: Mapping[str, Mapping[str, str]]) -> str:
        """Return the key of a set of facts in the lines, and register the set."""
        key = self._keys.get(id(facts))
        if key is None:
            text = _json({family: dict(names) for family, names in facts.items()})
            key = self._keys[id(facts)] = digest(text.encode())
            self._texts[key] = text
        return key

    def table(self) -> list[tuple[str, str]]:
        """Return digest and text of each set, by digest."""
        return sorted(self._texts.items())


def _launched(total: KernelTotal) -> str | _LaunchedKernel:
    """Return a kernel without its time."""
    if total.launch is None:
        return total.name
    return _LaunchedKernel(total.name, total.launch)


class _KernelTable:
    """The kernels that ran together, each set of them once."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def digest(self, kernels: _Kernels) -> str:
        """Return the key of some kernels in the lines, and register them; "": none."""
        if not kernels:
            return ""
        text = _json(kernels)
        key = digest(text.encode())
        self._texts[key] = text
        return key

    def table(self) -> list[tuple[str, str]]:
        """Return digest and text of each set, by digest."""
        return sorted(self._texts.items())


def _shared_soft_facts(
    records: Iterable[StoredRecord],
) -> dict[_Arrived, dict[str, str]]:
    """Return the soft facts that all records of a session have, by session."""
    shared: dict[_Arrived, dict[str, str]] = {}
    for record in records:
        arrived = (record.arrival, record.session)
        soft = shared.setdefault(arrived, dict(record.soft_facts))
        if soft != record.soft_facts:
            both = soft.items() & record.soft_facts.items()
            shared[arrived] = dict(both)
    return shared


def _head(arrival: int, session: Session, soft_facts: dict[str, str]) -> str:
    fields = {name: getattr(session, name) for name in _OF_SESSION}
    fields["started_unix_s"] = float(session.started_unix_s)
    head = _StoreHead(**fields, soft_facts=soft_facts, arrival=arrival)
    return _with_fields(_json(head), session.unknown)


def _json(value: object) -> str:
    return _ENCODER.encode(value).decode()


_RESTORE = "restore it from version control, or remove it and measure again"
_CHANGED = "it differs from its checksum"
_BYTE = re.compile(r"^(?P<what>.*) \(byte (?P<byte>\d+)\)$")

# a line of the file never begins so: it begins with a brace, a quote, or null
_CONFLICT = re.compile(rb"^(?:<{7}|={7}|>{7}|\|{7})(?:\s|$)", re.MULTILINE)
# without any other line, a record or an entry of a table, the file is still whole
_STRUCTURE = re.compile(rb'^(?:\{"schema":|\{"name":|"":null\}|null\]|$)')
_STRING = rb'"((?:[^"\\]|\\.)*)"'
_SECTION_NAME = re.compile(rb'^\{"name":' + _STRING)
_TEST_NAME = re.compile(rb'^\{"test":' + _STRING)  # the first field of a record

# metrics of the catalogue; a user's own number may be a difference
_NEVER_NEGATIVE = frozenset(
    name for name, metric in METRICS.items() if metric.never_negative
)
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class _SchemaOnly(Frozen, frozen=True):
    """The one field that every version of the format has."""

    schema: str = ""


def numbered_sessions(text: bytes) -> dict[str, int]:
    """Return the arrival number of each session of a file, by id; {}: it is unreadable."""
    try:
        sections = filter(None, _DECODER.decode(text).sections)
        raws = [bytes(raw) for part in sections for raw in part.sessions.values()]
        heads = [_decoded(_HEAD, raw)[0] for raw in raws if raw != b"null"]
    except _UNREADABLE:
        return {}  # whoever needs its records reports it
    return {head.id: head.arrival for head in heads}


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
    Return the content of a file; lines that are damaged are left out and named.

    Args:
        text: Its bytes.

        path: Its name, for messages.

        keyed_by: What its sections must be.

        section: The one section to read; None: all.

        test_ids: The tests to read; None: all.

        edited: Whether to take lines that differ from their checksum.

    Raises:
        BaselineCorruptError: It is damaged as a whole; the message names the place.

        SchemaVersionError: It is a baseline of a later schema version.
    """
    selected = None if test_ids is None else frozenset(test_ids)
    reader = _LineReader(text, path=path, edited=edited)
    try:
        with collector_paused():
            content = reader.content()
            reader.version = _check_kind(content, keyed_by, path=path)
            records: dict[str, list[StoredRecord]] = {}  # a merge may double a section
            for part in content.sections:
                if part is not None and section in {None, part.name}:
                    rows = records.setdefault(part.name, [])
                    rows += reader.records(part, keyed_by, selected)
            return BaselineFile(
                sections={name: by_key(rows) for name, rows in records.items()},
                damage=tuple(dict.fromkeys(sorted(reader.damage))),
                of_earlier_schema=reader.version < STORE_VERSION,
            )
    except _UNREADABLE as error:
        _refuse_other_text(text, path=path)
        raise BaselineCorruptError(
            _fault(error, text), remedy=_RESTORE, path=path
        ) from error


class _LineReader:
    """
    Reads one file, and collects the lines that it leaves out.

    Args:
        text: Its bytes.

        path: Its name, for messages.

        edited: Whether to take lines that differ from their checksum.
    """

    def __init__(self, text: bytes, *, path: str, edited: bool) -> None:
        self._text = text
        self._path = path
        self.checked = not edited
        self.version = STORE_VERSION
        self.damage: list[Damage] = []
        self._section = ""  # that of the lines that are read now

    def content(self) -> _Content:
        """Return the content; where a line breaks the JSON, without that line."""
        try:
            return _DECODER.decode(self._text)
        except _UNREADABLE as error:
            if _CONFLICT.search(self._text):
                raise
            whole = self._without_broken_lines()
            try:
                return _DECODER.decode(whole)
            except _UNREADABLE:
                raise error from None  # it names the place in the whole text

    def _without_broken_lines(self) -> bytes:
        """Return the text without lines that are not JSON by themselves."""
        lines = self._text.split(b"\n")
        for index, line in enumerate(lines):
            self._section = _text_in(_SECTION_NAME, line) or self._section
            if not (_STRUCTURE.match(line) or _is_entry(line)):
                self._leave_out("it is not JSON", line, number=index + 1)
                lines[index] = b""
        return b"\n".join(lines)

    def records(
        self, section: _Section, keyed_by: KeyedBy, selected: frozenset[str] | None
    ) -> list[StoredRecord]:
        """Return the sessions of one section."""
        self._section = section.name
        prefix = section.name if keyed_by == "module" else ""
        heads = self._heads(section)
        facts = self._facts(section)
        kernels_of = self._kernels(section)
        keys: dict[tuple[str, str], RecordKey] = {}
        prefix_of_sum = _summed_prefix(section.name)
        tests = None
        if selected is not None:
            whole = (name for name in selected if name.startswith(prefix))
            tests = frozenset(name.removeprefix(prefix) for name in whole)
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
            record = _record(row, keys[names], *heads[row.session], facts[row.facts])
            if unknown or self.version < STORE_VERSION:
                version = row.schema or self.version
                record = replace(record, unknown=unknown, schema_version=version)
            if row.kernels in kernels_of:  # else no verdict misses them
                kernels = _timed(kernels_of[row.kernels], row.kernel_times_s)
                record = replace(record, kernels=kernels)
            records.append(record)
        return records

    def _row(
        self, raw: msgspec.Raw, prefix: bytes, selected: frozenset[str] | None
    ) -> tuple[_StoredRow[SessionValue] | None, _Fields]:
        """
        Return a row, and its unknown fields.

        None: it is left out, or not selected, or it ends the list.
        """
        text = bytes(raw)
        if text == b"null":
            return None, ()
        try:
            row, unknown = _decoded(_ROW, text)
        except _UNREADABLE as error:
            self._leave_out(_without_place(error), raw)
            return None, ()
        if selected is not None and row.test not in selected:
            return None, ()
        wrong = ""
        if self.checked and not _is_unchanged(row, unknown, text, prefix):
            wrong = _CHANGED
        # our layout has no blanks, and a minus before a number is not an exponent's
        elif b"[-" in text or b",-" in text or b" " in text or b"\n" in text:
            wrong = _negative(row)
        if wrong:
            self._leave_out(wrong, raw)
        return None if wrong else row, unknown

    def _heads(self, section: _Section) -> dict[str, tuple[_StoreHead, Session]]:
        """Return the heads of a section by their keys."""
        heads: dict[str, tuple[_StoreHead, Session]] = {}
        for key, raw in section.sessions.items():
            entry = self._entry(key, raw, _HEAD)
            if entry is not None:
                heads[key] = (entry[0], _session(*entry))
        return heads

    def _facts(self, section: _Section) -> dict[str, _Facts]:
        """Return the facts of a section by their keys."""
        entries = {
            key: self._entry(key, raw, _FACTS) for key, raw in section.facts.items()
        }
        return {key: entry[0] for key, entry in entries.items() if entry is not None}

    def _kernels(self, section: _Section) -> dict[str, _Kernels]:
        """Return the kernels of a section by their keys."""
        entries = {
            key: self._entry(key, raw, _KERNELS) for key, raw in section.kernels.items()
        }
        return {key: entry[0] for key, entry in entries.items() if entry is not None}

    def _entry(
        self, key: str, raw: msgspec.Raw, decoder: msgspec.json.Decoder[_V]
    ) -> tuple[_V, _Fields] | None:
        """
        Return an entry of a table and its unknown fields.

        None: it is left out, because its key is not its digest.
        """
        text = bytes(raw)
        if text == b"null":
            return None
        try:
            entry, unknown = _decoded(decoder, text)
        except _UNREADABLE as error:
            self._leave_out(_without_place(error), raw)
            return None
        ours = _with_fields(_json(entry), unknown).encode()
        if self.checked and key not in {digest(text), digest(ours)}:
            self._leave_out(_CHANGED, raw)
            return None
        return entry, unknown

    def _leave_out(
        self, reason: str, raw: msgspec.Raw | bytes, *, number: int = 0
    ) -> None:
        """Note a line that is left out; 0: its number is not known yet."""
        text = bytes(raw)
        # a line break in it: the file was laid out anew
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
    except _UNREADABLE:  # it is damaged itself
        return found[1].decode("utf-8", "replace")


def _is_entry(line: bytes) -> bool:
    """Return whether a line is JSON by itself: a record, or an entry of a table."""
    body = line.rstrip()
    if not body.endswith(b","):
        return False
    body = body[:-1]
    try:
        msgspec.json.decode(body if body.startswith(b"{") else b"{%b}" % body)
    except _UNREADABLE:
        return False
    return True


def _decoded(
    decoder: msgspec.json.Decoder[_V], text: bytes | msgspec.Raw
) -> tuple[_V, _Fields]:
    """Return an object, and its fields that this version does not know."""
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
    # on one line, whatever the file's layout
    unknown = tuple(
        (name, msgspec.json.format(bytes(fields.pop(name)), indent=-1).decode())
        for name in names
    )
    return decoder.decode(msgspec.json.encode(fields)), unknown


def _is_unchanged(
    row: _StoredRow[SessionValue], unknown: _Fields, text: bytes, prefix: bytes
) -> bool:
    """Return whether a row is what its checksum was made of, in this layout or ours."""
    body, checksum = text[:-_SUM_LENGTH], text[-_SUM_LENGTH:]
    if checksum.startswith(_SUM):
        return checksum[len(_SUM) : -2] == digest(b"%b%b}" % (prefix, body)).encode()
    values = tuple(map(_value, row.values))
    ours = _with_fields(_json(replace(row, values=values, sum="")), unknown)
    return digest(prefix + ours.encode()) == row.sum


def _record(
    row: _StoredRow[SessionValue],
    key: RecordKey,
    head: _StoreHead,
    session: Session,
    facts: _Facts,
) -> StoredRecord:
    """Return the record of a row."""
    soft_facts = head.soft_facts
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
        schema_version=row.schema or STORE_VERSION,
        node_id=row.node_id,
    )


def _timed(kernels: _Kernels, times_s: Sequence[float]) -> tuple[KernelTotal, ...]:
    """Return the kernels of a row; () where a line lost some."""
    if len(kernels) != len(times_s):
        return ()
    return tuple(
        KernelTotal(name=kernel, total_s=total_s)
        if isinstance(kernel, str)
        else KernelTotal(name=kernel.name, total_s=total_s, launch=kernel.launch)
        for kernel, total_s in zip(kernels, times_s, strict=True)
    )


def _session(head: _StoreHead, unknown: _Fields) -> Session:
    fields = {name: getattr(head, name) for name in _OF_SESSION}
    return Session(**fields, unknown=unknown)


def _negative(row: _StoredRow[SessionValue]) -> str:
    """Return what is wrong with a value that cannot be negative and is; "": nothing."""
    for value in row.values:
        if min(value.run_values) < 0 and value.metric in _NEVER_NEGATIVE:
            return (
                f"{value.metric} of {row.test!r} is {min(value.run_values):g} "
                f"{value.unit}, but cannot be negative"
            )
    return ""


def _check_kind(content: _Content, keyed_by: KeyedBy, *, path: str) -> int:
    """Refuse another schema or kind of store; return the version of its lines."""
    _check_schema(content.schema, path=path)
    if content.keyed_by != keyed_by:
        raise BaselineCorruptError(
            f"the file is keyed by {content.keyed_by}, not by {keyed_by}",
            remedy="name the whole store: its folder, or a single-file store",
            path=path,
        )
    return _READABLE[content.schema]


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
    """Refuse a merge conflict, another schema, or JSON that is not a baseline."""
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
    except _UNREADABLE:
        return  # not JSON: the caller reports where it breaks off
    _check_schema(schema, path=path)


def _without_place(error: Exception) -> str:
    """Return an error of the decoder without its place in the line."""
    what, _, field = str(error).partition(" - at `$")
    return f"{field.rstrip('`').lstrip('.')}: {what}" if field else what


def _fault(error: Exception, text: bytes) -> str:
    """Return the fault with its place."""
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
