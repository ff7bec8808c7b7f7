"""The text format of a store: a line for each record, with a checksum."""

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
    FileList,
    RecordKey,
    SessionValue,
    StoredRecord,
)
from pytest_gpuperf.model.sample import CoreSpeed

_SCHEMAS = "pytest-gpuperf/baseline/"
SCHEMA_VERSION = f"{_SCHEMAS}{STORE_VERSION}"
# The version of the lines, by schema. Lines of version 2 are lines of version 3 that lack
# some facts about a value.
_READABLE = {SCHEMA_VERSION: STORE_VERSION, f"{_SCHEMAS}2": 2}

# The sessions of each measurement, oldest first.
Records = Mapping[RecordKey, tuple[StoredRecord, ...]]

# A SessionValue when reading, a list when writing.
_V = TypeVar("_V")

# Either "module", whose name is left out of the test ids in the lines, or "slug".
KeyedBy = str
# A higher number cannot be a count of runs.
_Arrival = Annotated[int, msgspec.Meta(ge=0, le=10**9)]


class _StoredRow(
    Frozen,
    Generic[_V],
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
    files: FileList | None = None
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


# The fields of a session in a head. The unknown fields are stored next to the known
# fields.
_OF_SESSION = tuple(name for name in Session.__struct_fields__ if name != "unknown")
_Facts = dict[str, dict[str, str]]
# Names and JSON texts of fields that a later version added.
_Fields = tuple[tuple[str, str], ...]


class _LaunchedKernel(Frozen, array_like=True, frozen=True, gc=False):
    """A kernel with its launch, stored as a list."""

    name: str
    launch: KernelLaunch


# The kernels that ran, most time first. Files of earlier versions hold names only.
_Kernels = tuple[str | _LaunchedKernel, ...]


class _Section(Frozen, frozen=True):
    """The sessions of one module or slug. Lines stay raw and are decoded one by one."""

    name: str
    sessions: dict[str, msgspec.Raw]
    facts: dict[str, msgspec.Raw]
    records: list[msgspec.Raw]
    # Files of earlier versions have no kernels.
    kernels: Mapping[str, msgspec.Raw] = {}


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


_ENCODER = msgspec.json.Encoder(order="deterministic")
_DECODER = msgspec.json.Decoder(_Content)
_ROW = msgspec.json.Decoder(_StoredRow[SessionValue])
_HEAD = msgspec.json.Decoder(_StoreHead)
_FACTS = msgspec.json.Decoder(_Facts)
_KERNELS = msgspec.json.Decoder(_Kernels)

# The start of the last field of a row.
_SUM = b',"sum":"'
_SUM_LENGTH = len(_SUM) + 12 + len('"}')


def digest(text: bytes, *, length: int = 12) -> str:
    """Return the first hexadecimal digits of the blake3 hash of a text."""
    return blake3(text).hexdigest()[:length]


def encode(sections: Mapping[str, Records], *, keyed_by: KeyedBy) -> bytes:
    """
    Return the text of a file [UTF-8]. Equal sessions give equal bytes.

    Args:
        sections: The sessions by section.

        keyed_by: The kind of the sections.

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
    for section in filter(None, _DECODER.decode(text).sections):
        tables: tuple[tuple[msgspec.json.Decoder[Any], Iterable[msgspec.Raw]], ...] = (
            (_ROW, section.records),
            (_HEAD, section.sessions.values()),
            (_FACTS, section.facts.values()),
            (_KERNELS, section.kernels.values()),
        )
        for decoder, entries in tables:
            for entry in entries:
                # Each list and each table ends with null.
                if bytes(entry) != b"null":
                    _decoded(decoder, entry)


def _section_lines(name: str, records: Records, *, keyed_by: KeyedBy) -> Iterator[str]:
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
            kernels=kernels.digest(record.kernels),
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
    for text in texts:
        yield f'{text[:-1]},"sum":"{digest(prefix_of_sum + text.encode())}"}},'
    yield "null]},"


def _with_fields(text: str, fields: _Fields) -> str:
    if not fields:
        return text
    more = "".join(f",{_json(name)}:{value}" for name, value in fields)
    return f"{text[:-1]}{more}}}"


def _summed_prefix(section: str) -> bytes:
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
    ]
    while rest and not rest[-1]:
        rest.pop()
    fields += rest
    return fields


def _cores(cores: Sequence[CoreSpeed]) -> list[list[float]]:
    return [[*map(float, msgspec.structs.astuple(core))] for core in cores]


# A session of a store, with the arrival number.
_Arrived = tuple[int, Session]


class _Heads:
    """The heads of the sessions, without duplicates."""

    def __init__(self, records: Iterable[StoredRecord]) -> None:
        self._shared: dict[_Arrived, dict[str, str]] = {}
        for record in records:
            arrived = (record.arrival, record.session)
            soft = self._shared.setdefault(arrived, dict(record.soft_facts))
            if soft != record.soft_facts:
                both = soft.items() & record.soft_facts.items()
                self._shared[arrived] = dict(both)
        self._texts: dict[_Arrived, str] = {}
        for (arrival, session), soft in self._shared.items():
            fields = {name: getattr(session, name) for name in _OF_SESSION}
            fields["started_unix_s"] = float(session.started_unix_s)
            head = _StoreHead(**fields, soft_facts=soft, arrival=arrival)
            text = _with_fields(_json(head), session.unknown)
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


class _FactTable:
    """The sets of hard facts, without duplicates."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        # By identity, because decoded records share their facts.
        self._keys: dict[int, str] = {}

    def digest(self, facts: Mapping[str, Mapping[str, str]]) -> str:
        """Register a set of facts, and return the key that the lines use."""
        key = self._keys.get(id(facts))
        if key is None:
            text = _json({family: dict(names) for family, names in facts.items()})
            key = self._keys[id(facts)] = digest(text.encode())
            self._texts[key] = text
        return key

    def table(self) -> list[tuple[str, str]]:
        """Return digests and texts of the sets, sorted by digest."""
        return sorted(self._texts.items())


class _KernelTable:
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
        text = _json(
            [
                k.name if k.launch is None else _LaunchedKernel(k.name, k.launch)
                for k in kernels
            ]
        )
        key = digest(text.encode())
        self._texts[key] = text
        return key

    def table(self) -> list[tuple[str, str]]:
        """Return digests and texts of the sets, sorted by digest."""
        return sorted(self._texts.items())


def _json(value: object) -> str:
    return _ENCODER.encode(value).decode()


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
# The first field of a record.
_TEST_NAME = re.compile(rb'^\{"test":' + _STRING)

# Only metrics of the catalogue, because a number recorded by a test may be a
# difference.
_NEVER_NEGATIVE = frozenset(
    name for name, metric in METRICS.items() if metric.never_negative
)
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class _SchemaOnly(Frozen, frozen=True):
    """The one field that every version of the format has."""

    schema: str = ""


def numbered_sessions(text: bytes) -> dict[str, int]:
    """
    Return the arrival numbers of the sessions of a file, by session id, or {} if the
    file is unreadable.
    """
    try:
        sections = filter(None, _DECODER.decode(text).sections)
        raws = [bytes(raw) for part in sections for raw in part.sessions.values()]
        heads = [_decoded(_HEAD, raw)[0] for raw in raws if raw != b"null"]
    except _UNREADABLE:
        # The caller that needs the records reports the error.
        return {}
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
    try:
        with collector_paused():
            content = reader.content()
            _check_schema(content.schema, path=path)
            if content.keyed_by != keyed_by:
                raise BaselineCorruptError(
                    f"the file is keyed by {content.keyed_by}, not by {keyed_by}",
                    remedy="name the whole store: its folder, or a single-file store",
                    path=path,
                )
            reader.version = _READABLE[content.schema]
            # After a merge, a section may occur twice.
            records: dict[str, list[StoredRecord]] = {}
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

    def content(self) -> _Content:
        """Decode the content, without the lines that break the JSON."""
        try:
            return _DECODER.decode(self._text)
        except _UNREADABLE as error:
            if _CONFLICT.search(self._text):
                raise
            whole = self._without_broken_lines()
            try:
                return _DECODER.decode(whole)
            except _UNREADABLE:
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
        self, section: _Section, keyed_by: KeyedBy, selected: frozenset[str] | None
    ) -> list[StoredRecord]:
        """Return the sessions of a section."""
        self._section = section.name
        prefix = section.name if keyed_by == "module" else ""
        heads: dict[str, tuple[_StoreHead, Session]] = {}
        for key, (head, more) in self._entries(section.sessions, _HEAD).items():
            fields = {name: getattr(head, name) for name in _OF_SESSION}
            heads[key] = (head, Session(**fields, unknown=more))
        facts = self._entries(section.facts, _FACTS)
        kernels = self._entries(section.kernels, _KERNELS)
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

    def _row(
        self, raw: msgspec.Raw, prefix: bytes, selected: frozenset[str] | None
    ) -> tuple[_StoredRow[SessionValue] | None, _Fields]:
        """
        Return a row, and the unknown fields of the row.

        The row is None if it is damaged or not selected, or if it is the end of the
        list.
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
        elif b"[-" in text or b",-" in text or b" " in text or b"\n" in text:
            # This layout has no blanks, and a minus sign before a number is not that of
            # an exponent.
            wrong = _negative(row)
        if wrong:
            self._leave_out(wrong, raw)
        return None if wrong else row, unknown

    def _entries(
        self, table: Mapping[str, msgspec.Raw], decoder: msgspec.json.Decoder[_V]
    ) -> dict[str, tuple[_V, _Fields]]:
        """
        Return the entries of a table with their unknown fields.

        An unreadable entry is left out, as is a key that is not the digest of its entry.
        """
        entries: dict[str, tuple[_V, _Fields]] = {}
        for key, raw in table.items():
            text = bytes(raw)
            if text == b"null":  # The end of the table.
                continue
            try:
                entry, unknown = _decoded(decoder, text)
            except _UNREADABLE as error:
                self._leave_out(_without_place(error), raw)
                continue
            ours = _with_fields(_json(entry), unknown).encode()
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
    except _UNREADABLE:
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
    except _UNREADABLE:
        return False
    return True


def _decoded(
    decoder: msgspec.json.Decoder[_V], text: bytes | msgspec.Raw
) -> tuple[_V, _Fields]:
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


def _is_unchanged(
    row: _StoredRow[SessionValue], unknown: _Fields, text: bytes, prefix: bytes
) -> bool:
    """
    Return True if a row matches the checksum, in the layout of the file or of the store.
    """
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
    kernels: _Kernels,
    *,
    unknown: _Fields,
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


def _negative(row: _StoredRow[SessionValue]) -> str:
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
    except _UNREADABLE:
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
