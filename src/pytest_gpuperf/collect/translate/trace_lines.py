"""A trace as lines of text, and back.

Each line has a checksum and a part of the trace: at most some thousands of launches,
copies or other pieces.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Union

import msgspec

from pytest_gpuperf.errors import RecordError
from pytest_gpuperf.model.activity import Copy, NamedRange, Trace
from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.launch import (
    COLUMNS,
    PIECE_COUNT,
    KernelShape,
    LaunchList,
)
from pytest_gpuperf.model.record import RecordKey, Role

__all__ = [
    "End",
    "Head",
    "LaunchColumns",
    "Part",
    "Pieces",
    "columns_of",
    "end_of",
    "launch_parts",
    "line_of",
    "other_parts",
    "part_of",
    "trace_of",
]

_SCHEMA = "pytest-gpuperf/trace/1"


class _TracePart(Frozen, frozen=True, kw_only=True, tag_field="kind"):
    """What stands in a line."""


class Head(_TracePart, frozen=True, kw_only=True, tag="head"):
    """The first line of a trace."""

    schema: str = _SCHEMA


class LaunchColumns(_TracePart, frozen=True, kw_only=True, tag="launches"):
    """Columns of launches; `shapes`: those that no line before has."""

    shapes: tuple[KernelShape, ...]
    shape: list[int]
    start_ns: list[int]
    end_ns: list[int]
    call_ns: list[int]
    device: list[int]
    stream: list[int]
    graph: list[int]


class Pieces(_TracePart, frozen=True, kw_only=True, tag="pieces", omit_defaults=True):
    """Some of what else may be as long as the launches, by its name in a trace."""

    copies: tuple[Copy, ...] = ()
    fills: tuple[tuple[int, int, int], ...] = ()
    graphs: tuple[tuple[int, int], ...] = ()
    latencies_ns: tuple[int, ...] = ()
    allocations: tuple[int, ...] = ()
    compilations_ns: tuple[int, ...] = ()
    ranges: tuple[NamedRange, ...] = ()


class End(_TracePart, frozen=True, kw_only=True, tag="end"):
    """The last line: whose trace it is, how many launches it has, and the rest of it."""

    key: RecordKey
    role: Role
    process_index: int
    launches_count: int
    begun_ns: int
    ended_ns: int
    host_launches_count: int
    synchronizations: Mapping[str, int]
    overheads_ns: Mapping[str, int]
    unlabelled_count: int
    untimed_count: int
    dropped_count: int
    children: tuple[str, ...]
    device_children: tuple[int, ...]
    unrecorded: Mapping[str, str]


class _Line(Frozen, frozen=True, kw_only=True):
    """A line: a part as text, and the checksum of that text."""

    crc32: str
    part: msgspec.Raw


Part = Union[Head, LaunchColumns, Pieces, End]  # noqa: UP007 - msgspec takes it at run time on 3.10
_SEQUENCES = Pieces.__struct_fields__
# of a trace, what its last line has
_REST = tuple(n for n in End.__struct_fields__ if n in Trace.__struct_fields__)
_decode_line = msgspec.json.Decoder(_Line).decode
_decode_part = msgspec.json.Decoder(Part).decode


def line_of(part: Part) -> bytes:
    """Return a part as a line [UTF-8]."""
    text = msgspec.json.encode(part)
    return b'{"crc32":"%b","part":%b}\n' % (_checksum(text), text)


def part_of(line: bytes) -> Part:
    """
    Return what stands in a line.

    Raises:
        RecordError: The line was cut off, or is not what `line_of` wrote.
    """
    if not line.endswith(b"\n"):
        raise RecordError("is cut off", path="")
    try:
        outer = _decode_line(line)
        if outer.crc32.encode() != _checksum(bytes(outer.part)):
            raise RecordError("is damaged: its checksum is another", path="")
        part: Part = _decode_part(outer.part)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise RecordError(f"is damaged: {error}", path="") from error
    if isinstance(part, Head) and part.schema != _SCHEMA:
        message = f"has schema {part.schema!r}, which is not {_SCHEMA!r}"
        raise RecordError(message, path="")
    return part


def columns_of(part: LaunchColumns, shapes_count: int) -> dict[str, array[int]]:
    """
    Return the columns of a part.

    Args:
        part: As it was read.

        shapes_count: How many shapes there are by then.

    Raises:
        RecordError: They are no launches.
    """
    try:
        columns = {n: array(code, getattr(part, n)) for n, code in COLUMNS.items()}
    except OverflowError as error:
        raise RecordError(f"has no launches: {error}", path="") from error
    if len(set(map(len, columns.values()))) > 1:
        raise RecordError("has columns that are not of one length", path="")
    if max(part.shape, default=-1) >= shapes_count:
        raise RecordError("has a shape that is described nowhere", path="")
    return columns


def launch_parts(launches: LaunchList, *, known_count: int) -> Iterator[Part]:
    """Yield launches; the first part has their shapes but those known before."""
    shapes = launches.shapes[known_count:]
    for piece in launches.pieces():
        columns = {name: list(getattr(piece, name)) for name in COLUMNS}
        yield LaunchColumns(shapes=shapes, **columns)
        shapes = ()


def other_parts(trace: Trace) -> Iterator[Part]:
    """Yield what else of a trace may be as long as its launches."""
    for name in _SEQUENCES:
        values = getattr(trace, name)
        for begin in range(0, len(values), PIECE_COUNT):
            yield Pieces(**{name: tuple(values[begin : begin + PIECE_COUNT])})


def end_of(trace: Trace, key: RecordKey, role: Role, process_index: int) -> End:
    """Return the last part of a trace, with whose it is."""
    return End(
        key=key,
        role=role,
        process_index=process_index,
        launches_count=len(trace.launches),
        **{name: getattr(trace, name) for name in _REST},
    )


def trace_of(launches: LaunchList, others: Sequence[Pieces], end: End) -> Trace:
    """Return the trace that these parts were."""
    found: dict[str, Any] = {
        name: tuple(value for each in others for value in getattr(each, name))
        for name in _SEQUENCES
    }
    found["latencies_ns"] = array("q", found["latencies_ns"])
    rest = {name: getattr(end, name) for name in _REST}
    return Trace(launches=launches, **found, **rest)


def _checksum(text: bytes) -> bytes:
    """Return the CRC-32 of a text, as it is written."""
    return b"%08x" % zlib.crc32(text)
