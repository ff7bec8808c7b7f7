"""The tables of a database of sessions, and the rows of a stored record."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise

import msgspec
from blake3 import blake3

from pytest_gpuperf.model.environment import Session
from pytest_gpuperf.model.frozen import UNREADABLE, BulkRecord, Frozen, replace
from pytest_gpuperf.model.kernel import KernelLaunch, KernelTotal
from pytest_gpuperf.model.record import (
    STORE_VERSION,
    AcceptedLevel,
    BoundClass,
    FileList,
    RecordKey,
    SessionValue,
    StoredRecord,
)
from pytest_gpuperf.model.sample import CoreSpeed

# The number of the tables below. A store with a higher number is refused.
SCHEMA = 1
CREATOR = "pytest-gpuperf"

# Columns with their type. "serial" is a number that the database gives. The ids are
# digests made by the client, so nothing has to be read before a row is added.
TABLES: Mapping[str, Mapping[str, str]] = {
    "meta": {"name": "text", "value": "text"},
    "metric": {
        "id": "serial",
        "name": "text",
        "unit": "text",
        "source": "text",
        "better": "text",
    },
    # A measurement on a kind of machine: kind is the slug, node the test.
    "test": {"id": "id", "kind": "text", "node": "text", "name": "text"},
    # What is alike in most sessions of a test: facts, digests and names of kernels.
    "setting": {"id": "id", "content": "text"},
    "session": {
        "arrival": "serial",
        "id": "text",
        "started": "real",
        "stored": "real",
        "commit_id": "text?",
        "branch": "text?",
        "machine": "text?",
        "run": "text?",
        "shard": "text?",
        "company": "number",
        "soft": "text",
        "content": "text",
    },
    "part": {"session": "number", "kind": "text"},
    "value": {
        "session": "number",
        "metric": "number",
        "test": "id",
        "setting": "id",
        "revision": "small",
        "value": "real",
        "half_width": "real?",
        "rest": "bytes?",
    },
    "detail": {
        "session": "number",
        "test": "id",
        "setting": "id",
        "revision": "small",
        "content": "bytes",
    },
    # accept, drop, remove and restore. Nothing is ever changed or deleted.
    "event": {
        "arrival": "serial",
        "id": "id",
        "at": "real",
        "kind": "text",
        "test": "id",
        "session": "text",
        "content": "text",
    },
}
_KEYS = {
    "meta": "name",
    "test": "id",
    "setting": "id",
    "part": "session, kind",
    "value": "session, metric, test, setting, revision",
    "detail": "session, test, setting, revision",
}
_UNIQUE = {"metric": "name, unit, source, better", "session": "id", "event": "id"}
_INDEXES = (
    "CREATE INDEX value_test ON value (test, metric, session)",
    "CREATE INDEX part_kind ON part (kind, session)",
    "CREATE INDEX test_kind ON test (kind)",
    "CREATE INDEX event_test ON event (test)",
)
# Rows of these tables are found by their key only.
_CLUSTERED = {"value", "detail", "part"}

_DETERMINISTIC = msgspec.json.Encoder(order="deterministic")
_LEAST_DEFLATED_BYTES = 64
# Digits of the numbers that are stored as decimals.
_DIGITS = 4
# Two sessions that ran about as many tests have equal or neighbouring numbers.
_COMPANY_STEP = 2.0


def definitions(types: Mapping[str, str], *, clustered: str) -> Iterator[str]:
    """
    Yield the statements that create the tables.

    Args:
        types: The database's name of each type of column.

        clustered: What the database adds to a table that is stored in the order of its
            key.
    """
    for table, columns in TABLES.items():
        parts = [_column(name, kind, types) for name, kind in columns.items()]
        if table in _KEYS:
            parts.append(f"PRIMARY KEY ({_KEYS[table]})")
        if table in _UNIQUE:
            parts.append(f"UNIQUE ({_UNIQUE[table]})")
        end = clustered if table in _CLUSTERED else ""
        yield f"CREATE TABLE {table} ({', '.join(parts)}){end}"
    yield from _INDEXES


def _column(name: str, kind: str, types: Mapping[str, str]) -> str:
    bare = kind.removesuffix("?")
    null = "" if kind != bare or kind == "serial" else " NOT NULL"
    return f"{name} {types[bare]}{null}"


def digest_id(*parts: str) -> int:
    """Return the id of a row: 63 bits of a digest, which a database holds as an integer."""
    text = "\0".join(f"{len(part)}:{part}" for part in parts)
    whole = blake3(text.encode("utf-8", "surrogatepass")).digest(length=8)
    return int.from_bytes(whole, "big") >> 1


def plain(text: str) -> str:
    """Return a text without the character that PostgreSQL refuses."""
    return text.replace("\x1a", "\x1a1").replace("\0", "\x1a0")


def original(text: str) -> str:
    """Return the text that `plain` was given."""
    return text.replace("\x1a0", "\0").replace("\x1a1", "\x1a")


def company_of(session: Session) -> int:
    """
    Return the number by which sessions of about as many tests are found together.

    Sessions that compare never differ by more than one, and an unknown count has a
    number of its own.
    """
    if session.ran_count is None:
        return -1
    return int(math.log(session.ran_count + 1, _COMPANY_STEP))


class _Setting(Frozen, frozen=True, kw_only=True, omit_defaults=True):
    """What is alike in most sessions of a measurement."""

    choice: str | None = None
    facts: Mapping[str, Mapping[str, str]] = {}
    bound_class: BoundClass = BoundClass.HOST
    parameters: str | None = None
    test: str | None = None
    code: str | None = None
    schema: int = STORE_VERSION
    node_id: str = ""
    kernels: tuple[tuple[str, KernelLaunch | None], ...] = ()


class _Rest(BulkRecord, frozen=True, kw_only=True, omit_defaults=True):
    """
    What a value has in addition to one number and its half-width.

    The names are short because a row for each value of each session has them.
    """

    r: tuple[float, ...] = ()  # run_values, unless there is one.
    h: tuple[float, ...] = ()  # half_widths, unless there is one or none.
    c: tuple[CoreSpeed, ...] = ()
    m: tuple[float, ...] = ()  # Clocks of the multiprocessors [Hz].
    a: tuple[float, ...] = ()  # alone_values.
    b: tuple[CoreSpeed, ...] = ()  # alone_cores.
    s: bool = False
    l: AcceptedLevel | None = None  # noqa: E741 - one letter a field
    i: bool = False  # interrupted.


class _Detail(Frozen, frozen=True, kw_only=True, omit_defaults=True):
    """What no value is compared by: quantiles, times of kernels, soft facts, files."""

    quantiles: Mapping[int, tuple[float, ...]] = {}
    # Those that have few digits, which take a third of the bytes so.
    q: Mapping[int, tuple[int, ...]] = {}
    kernel_times_s: tuple[float, ...] = ()
    soft_facts: Mapping[str, str] = {}
    without: tuple[str, ...] = ()
    files: FileList | None = None
    unknown: tuple[tuple[str, str], ...] = ()


_NO_REST = _Rest()
_NO_DETAIL = _Detail()
_REST = msgspec.msgpack.Decoder(_Rest)
_DETAIL = msgspec.msgpack.Decoder(_Detail)
_SETTING = msgspec.json.Decoder(_Setting)
_SESSION = msgspec.json.Decoder(Session)
# The fault of a row that cannot be read.
UNREADABLE_ROW = (*UNREADABLE, zlib.error, ValueError)

# A metric: name, unit, source and better direction, "" if the record has none.
MetricRow = tuple[str, str, str, str]


def metric_row(value: SessionValue) -> MetricRow:
    """Return the row of the metric of a value."""
    return _metric_row(value.metric, value.unit, value.source, value.better or "")


# A session has few metrics and many values.
@lru_cache(maxsize=1024)
def _metric_row(name: str, unit: str, source: str, better: str) -> MetricRow:
    return plain(name), plain(unit), plain(source), plain(better)


def session_text(session: Session) -> str:
    """Return the content of a session's row."""
    return msgspec.json.encode(session).decode()


def session_of(text: str) -> Session:
    """Return the session of a row."""
    return _SESSION.decode(text)


def setting_text(record: StoredRecord) -> str:
    """Return the content of the row of a record's setting."""
    setting = _Setting(
        choice=record.choice,
        facts={family: dict(facts) for family, facts in record.facts.items()},
        bound_class=record.bound_class,
        parameters=record.parameters_digest,
        test=record.test_digest,
        code=record.code_digest,
        schema=record.schema_version,
        node_id=record.node_id,
        kernels=tuple((kernel.name, kernel.launch) for kernel in record.kernels),
    )
    return _DETERMINISTIC.encode(setting).decode()


def setting_of(text: str) -> _Setting:
    """Return the setting of a row."""
    return _SETTING.decode(text)


def value_columns(value: SessionValue) -> tuple[float, float | None, bytes | None]:
    """Return the last columns of a value's row: the number, its half-width and the rest."""
    runs, widths = value.run_values, value.half_widths
    number = runs[0] if len(runs) == 1 else math.fsum(run / len(runs) for run in runs)
    rest = _Rest(
        r=() if len(runs) == 1 else runs,
        h=() if len(widths) == 1 else widths,
        c=value.cores,
        m=value.sm_clocks_hz,
        a=value.alone_values,
        b=value.alone_cores,
        s=value.suspected,
        l=value.accepted,
        i=value.interrupted,
    )
    packed = None if rest == _NO_REST else msgspec.msgpack.encode(rest)
    return number, widths[0] if len(widths) == 1 else None, packed


def value_of(
    metric: MetricRow,
    number: float,
    half_width: float | None,
    packed: bytes | None,
    *,
    series: int,
    quantiles: tuple[float, ...],
) -> SessionValue:
    """Return the value of a row."""
    rest = _REST.decode(packed) if packed is not None else _NO_REST
    name, unit, source, better = metric
    return SessionValue(
        metric=name,
        unit=unit,
        source=source,
        better=better or None,
        run_values=rest.r or (number,),
        half_widths=rest.h if half_width is None else (half_width,),
        quantiles=quantiles,
        cores=rest.c,
        sm_clocks_hz=rest.m,
        series=series,
        alone_values=rest.a,
        alone_cores=rest.b,
        suspected=rest.s,
        accepted=rest.l,
        interrupted=rest.i,
    )


def detail_bytes(
    record: StoredRecord, numbers: Mapping[MetricRow, int], shared: Mapping[str, str]
) -> bytes | None:
    """
    Return the content of a record's detail, or None if it has none.

    Args:
        record: The record.

        numbers: The number of each metric.

        shared: The soft facts of the session.
    """
    soft = record.soft_facts
    exact: dict[int, tuple[float, ...]] = {}
    short: dict[int, tuple[int, ...]] = {}
    for value in record.values:
        if value.quantiles:
            number, decimals = numbers[metric_row(value)], _decimals(value.quantiles)
            if decimals:
                short[number] = decimals
            else:
                exact[number] = value.quantiles
    detail = _Detail(
        quantiles=exact,
        q=short,
        # msgspec leaves out the empty tuple itself, and Python 3.10 makes others.
        kernel_times_s=tuple(kernel.total_s for kernel in record.kernels) or (),
        soft_facts={n: fact for n, fact in soft.items() if shared.get(n) != fact},
        without=tuple(sorted(shared.keys() - soft.keys())),
        files=record.files,
        unknown=record.unknown,
    )
    if detail == _NO_DETAIL:
        return None
    packed = msgspec.msgpack.encode(detail)
    # The first byte tells whether the rest is deflated.
    if len(packed) < _LEAST_DEFLATED_BYTES:
        return b"\0" + packed
    return b"\1" + zlib.compress(packed, 1)


def _decimals(numbers: Sequence[float]) -> tuple[int, ...]:
    """
    Return numbers of few digits as integers: a power of ten, how many of it the first
    number is, and how many more each other number is than the one before.

    Returns:
        The integers, or () if the numbers have too many digits.

    Example:
        >>> _decimals((0.0951, 0.0998, 0.1013))
        (-5, 9510, 470, 150)
    """
    texts = [f"{number:.{_DIGITS - 1}e}" for number in numbers]
    if [*map(float, texts)] != [*numbers]:
        return ()
    parts = [text.replace(".", "").split("e") for text in texts]
    powers = [int(power) - _DIGITS + 1 for _, power in parts]
    least = min(powers)
    if max(powers) - least > _DIGITS:
        return ()
    counts = [
        int(count) * 10 ** (power - least)
        for (count, _), power in zip(parts, powers, strict=True)
    ]
    return (least, counts[0], *(after - before for before, after in pairwise(counts)))


def quantiles_of(detail: _Detail) -> Mapping[int, tuple[float, ...]]:
    """Return the quantiles of a detail, by the number of the metric."""
    short = {
        # The decimal text gives the same float as that of the number itself.
        number: tuple(float(f"{count}e{power}") for count in accumulate(counts))
        for number, (power, *counts) in detail.q.items()
    }
    return {**detail.quantiles, **short}


def detail_of(content: bytes | None) -> _Detail:
    """Return the detail of a row, which is empty for None."""
    if content is None:
        return _NO_DETAIL
    packed = content[1:] if content[:1] == b"\0" else zlib.decompress(content[1:])
    return _DETAIL.decode(packed)


def value_like(
    value: SessionValue, number: float, half_width: float | None
) -> SessionValue:
    """
    Return a value with another number and half-width, which were checked.

    It takes a quarter of the time of a new one, and a large store has a million.
    """
    copied: SessionValue = value.__copy__()  # type: ignore[attr-defined] # not in msgspec's stubs
    msgspec.structs.force_setattr(copied, "run_values", (number,))
    widths = () if half_width is None else (half_width,)
    msgspec.structs.force_setattr(copied, "half_widths", widths)
    return copied


def check_value(number: object, half_width: object, packed: bytes | None) -> None:
    """
    Check the columns of a value without the record.

    Raises:
        ValueError: They cannot be read.
    """
    for column in (number, 0.0 if half_width is None else half_width):
        if not isinstance(column, float) or not math.isfinite(column):
            message = f"{column!r} is not a finite number"
            raise ValueError(message)
    if half_width is not None and half_width < 0.0:  # type: ignore[operator] # a float
        message = f"a half-width of {half_width!r}"
        raise ValueError(message)
    if packed is not None:
        _REST.decode(packed)


def is_readable_detail(content: bytes | None, *, quantiles: bool) -> bool:
    """
    Return True if the detail of a row has more than quantiles, or if these are wanted.

    Raises:
        ValueError: It cannot be read.
    """
    if content is None:
        return False
    detail = detail_of(content)
    return quantiles or replace(detail, quantiles={}, q={}) != _NO_DETAIL


def record_of(
    key: RecordKey,
    session: Session,
    values: tuple[SessionValue, ...],
    *,
    setting: _Setting,
    detail: _Detail,
    shared: Mapping[str, str],
    arrival: int,
) -> StoredRecord:
    """Return the record that several rows hold together."""
    soft = shared
    if detail.soft_facts or detail.without:
        left = {n: fact for n, fact in shared.items() if n not in detail.without}
        soft = {**left, **detail.soft_facts}
    times = detail.kernel_times_s
    kernels: tuple[KernelTotal, ...] = ()
    if len(times) == len(setting.kernels):
        kernels = tuple(
            KernelTotal(name=name, total_s=total_s, launch=launch)
            for (name, launch), total_s in zip(setting.kernels, times, strict=True)
        )
    return StoredRecord(
        key=key,
        session=session,
        values=values,
        choice=setting.choice,
        facts=setting.facts,
        soft_facts=soft,
        bound_class=setting.bound_class,
        arrival=arrival,
        kernels=kernels,
        parameters_digest=setting.parameters,
        test_digest=setting.test,
        code_digest=setting.code,
        schema_version=setting.schema,
        node_id=setting.node_id,
        files=detail.files,
        unknown=detail.unknown,
    )


def json_text(content: object) -> str:
    """Return a JSON text that is equal for equal content."""
    return _DETERMINISTIC.encode(content).decode()
