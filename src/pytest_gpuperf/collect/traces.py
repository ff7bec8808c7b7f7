"""Traces on disk, with every launch, read in pieces.

The short traces of a process share a file. A trace with more launches than fit in
memory has its own file, which is written while the launches arrive. Each line has a
checksum and a part of the trace: at most some thousands of launches, copies or other
items.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, Union

import msgspec

from pytest_gpuperf.collect.appended_file import AppendedFile
from pytest_gpuperf.errors import CaptureFormatError, RecordError, ReportError
from pytest_gpuperf.model.activity import (
    COLUMNS,
    PIECE_COUNT,
    WHOLE_COUNT,
    Copy,
    KernelShape,
    Launches,
    LaunchList,
    NamedRange,
    Trace,
    TracePlace,
)
from pytest_gpuperf.model.frozen import UNREADABLE, Frozen
from pytest_gpuperf.model.record import RecordKey, Role

_SCHEMA = "pytest-gpuperf/trace/1"


class _TracePart(Frozen, frozen=True, kw_only=True, tag_field="kind"):
    """The content of a line."""


class Head(_TracePart, frozen=True, kw_only=True, tag="head"):
    """The first line of a trace."""

    schema: str = _SCHEMA


class LaunchColumns(_TracePart, frozen=True, kw_only=True, tag="launches"):
    """Columns of launches. `shapes` holds only shapes that are not in earlier lines."""

    shapes: tuple[KernelShape, ...]
    shape: list[int]
    start_ns: list[int]
    end_ns: list[int]
    call_ns: list[int]
    device: list[int]
    stream: list[int]
    graph: list[int]


class Pieces(_TracePart, frozen=True, kw_only=True, tag="pieces", omit_defaults=True):
    """Items of the other sequences of a trace, by the field's name."""

    copies: tuple[Copy, ...] = ()
    fills: tuple[tuple[int, int, int], ...] = ()
    graphs: tuple[tuple[int, int], ...] = ()
    latencies_ns: tuple[int, ...] = ()
    wait_ends_ns: tuple[int, ...] = ()
    allocations: tuple[int, ...] = ()
    compilations_ns: tuple[int, ...] = ()
    ranges: tuple[NamedRange, ...] = ()


class End(_TracePart, frozen=True, kw_only=True, tag="end"):
    """The last line: key of the record, number of launches and remaining fields."""

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
    """A line with a part as text, and the checksum of that text."""

    crc32: str
    part: msgspec.Raw


Part = Union[Head, LaunchColumns, Pieces, End]  # noqa: UP007 - msgspec takes it at run time on 3.10
_SEQUENCES = Pieces.__struct_fields__
# The fields of a trace that are in its last line.
_REST = tuple(n for n in End.__struct_fields__ if n in Trace.__struct_fields__)
_decode_line = msgspec.json.Decoder(_Line).decode
_decode_part = msgspec.json.Decoder(Part).decode


def line_of(part: Part) -> bytes:
    """Return a part as a line [UTF-8]."""
    text = msgspec.json.encode(part)
    return b'{"crc32":"%b","part":%b}\n' % (_checksum(text), text)


def part_of(line: bytes) -> Part:
    """
    Decode the part in a line.

    Raises:
        RecordError: The line was cut off, or was not written by `line_of`.
    """
    if not line.endswith(b"\n"):
        raise RecordError("is cut off", path="")
    try:
        outer = _decode_line(line)
        if outer.crc32.encode() != _checksum(bytes(outer.part)):
            raise RecordError("is damaged: its checksum does not match", path="")
        part: Part = _decode_part(outer.part)
    except UNREADABLE as error:
        raise RecordError(f"is damaged: {error}", path="") from error
    if isinstance(part, Head) and part.schema != _SCHEMA:
        message = f"has schema {part.schema!r}, which is not {_SCHEMA!r}"
        raise RecordError(message, path="")
    return part


def columns_of(part: LaunchColumns, shapes_count: int) -> dict[str, array[int]]:
    """
    Return the columns of a part.

    Args:
        part: The part as read.

        shapes_count: The number of shapes so far.

    Raises:
        RecordError: The columns cannot be columns of launches.
    """
    try:
        columns = {n: array(code, getattr(part, n)) for n, code in COLUMNS.items()}
    except OverflowError as error:
        raise RecordError(f"has no launches: {error}", path="") from error
    if len(set(map(len, columns.values()))) > 1:
        raise RecordError("has columns of different lengths", path="")
    if max(part.shape, default=-1) >= shapes_count:
        raise RecordError("has the index of a missing shape", path="")
    return columns


def launch_parts(launches: LaunchList, *, known_count: int) -> Iterator[Part]:
    """Yield launches in parts. The first part has the shapes after `known_count`."""
    shapes = launches.shapes[known_count:]
    for piece in launches.pieces():
        columns = {name: list(getattr(piece, name)) for name in COLUMNS}
        yield LaunchColumns(shapes=shapes, **columns)
        shapes = ()


def _trace_of(launches: LaunchList, pieces: Sequence[Pieces], end: End) -> Trace:
    values: dict[str, Any] = {
        name: tuple(value for piece in pieces for value in getattr(piece, name))
        for name in _SEQUENCES
    }
    values["latencies_ns"] = array("q", values["latencies_ns"])
    rest = {name: getattr(end, name) for name in _REST}
    return Trace(launches=launches, **values, **rest)


def _checksum(text: bytes) -> bytes:
    return b"%08x" % zlib.crc32(text)


_REMEDY = "record it again with --gpuperf-record"


class LaunchStream:
    """
    Launches in a file, read in pieces.

    Args:
        path: The file.

        place: The beginning of the trace in the file.

        shapes: The shapes of all launches.

        count: The number of launches.
    """

    def __init__(
        self, path: Path, place: TracePlace, shapes: Iterable[KernelShape], count: int
    ) -> None:
        self.path = path
        self.place = place
        self.shapes = tuple(shapes)
        self._count = count

    def __len__(self) -> int:
        """Return the number of launches."""
        return self._count

    def pieces(self) -> Iterator[Launches]:
        """
        Yield the launches in order, some thousands at a time.

        Raises:
            CaptureFormatError: The file has changed since it was written.
        """
        left_count = self._count
        for position, part in _parts(self.path, self.place):
            if isinstance(part, LaunchColumns):
                columns = position.columns(part, len(self.shapes))
                yield Launches(shapes=self.shapes, **columns)
                left_count -= len(part.shape)
            elif isinstance(part, End):
                raise position.refusal(
                    f"ends the trace {left_count} launches too early"
                )
            if left_count <= 0:
                return


class StreamWriter:
    """
    Writes launches into a separate file as they arrive.

    Args:
        path: The file.

    Raises:
        ReportError: The file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.file = AppendedFile(path)
        self._shapes: tuple[KernelShape, ...] = ()
        self._count = 0
        _append(self.file, [Head()])

    def put(self, launches: Launches) -> None:
        """
        Append launches. Their `shapes` must begin with the shapes of earlier launches.

        Raises:
            ReportError: The file cannot be written. It contains none of these launches.
        """
        _append(self.file, launch_parts(launches, known_count=len(self._shapes)))
        self._shapes = launches.shapes
        self._count += len(launches)

    def end(self) -> LaunchStream:
        """Return all launches as a stream that reads the file."""
        path = self.file.path
        place = TracePlace(file=path.name, line=1, offset_bytes=0)
        return LaunchStream(path, place, self._shapes, self._count)


class TraceKeeper:
    """
    Writes the traces of one process into a recording.

    Args:
        folder: The recording.

        writer: A name that is unique in the run.

        role: The role of the process.

        process_index: The index of the process, as in `Record`.
    """

    def __init__(
        self,
        folder: str,
        *,
        writer: str,
        role: Role = Role.MAIN,
        process_index: int = 0,
    ) -> None:
        self._folder = Path(folder)
        self._writer = writer
        self._role = role
        self._process_index = process_index
        self._lines_count = 0
        self._streams_count = 0
        self._file = AppendedFile(self._folder / f"traces-{writer}.jsonl")
        # Streams whose trace has no end yet.
        self._begun: dict[Path, AppendedFile] = {}

    def stream(self) -> StreamWriter:
        """
        Create the writer for the launches of a trace that will be kept.

        Raises:
            ReportError: The file cannot be written.
        """
        self._streams_count += 1
        path = self._folder / f"traces-{self._writer}.{self._streams_count}.jsonl"
        writer = StreamWriter(path)
        self._begun[path] = writer.file
        return writer

    def keep(self, key: RecordKey, trace: Trace) -> TracePlace:
        """
        Append a trace, whole or not at all, and return the place.

        Raises:
            ReportError: The file cannot be written.
        """
        launches = trace.launches
        end = End(
            key=key,
            role=self._role,
            process_index=self._process_index,
            launches_count=len(launches),
            **{name: getattr(trace, name) for name in _REST},
        )
        pieces = (
            Pieces(**{name: tuple(getattr(trace, name)[begin : begin + PIECE_COUNT])})
            for name in _SEQUENCES
            for begin in range(0, len(getattr(trace, name)), PIECE_COUNT)
        )
        rest: Iterator[Part] = chain(pieces, [end])
        if isinstance(launches, LaunchStream) and launches.path in self._begun:
            file = self._begun.pop(launches.path)
            _append(file, rest)
            file.close()
            return launches.place
        parts = chain([Head()], launch_parts(launches, known_count=0), rest)
        line = self._lines_count + 1
        offset_bytes, count = _append(self._file, parts)
        self._lines_count += count
        name = self._file.path.name
        return TracePlace(file=name, line=line, offset_bytes=offset_bytes)

    def close(self) -> None:
        """Close the files."""
        for file in (self._file, *self._begun.values()):
            file.close()


def read_trace(folder: str, place: TracePlace) -> Trace:
    """
    Read a trace. More than 200,000 launches stay in their file, as a stream.

    Args:
        folder: The recording.

        place: The place of the trace in the recording.

    Raises:
        CaptureFormatError: The trace is missing, cut off or damaged. The message names
            the file, the line and the byte.
    """
    path = Path(folder) / place.file
    # A foreign recording must not refer to files elsewhere.
    if path.name != place.file:
        message = f"{place.file!r} is not a file of a recording"
        raise CaptureFormatError(message, remedy=_REMEDY, path=folder)
    shapes: list[KernelShape] = []
    columns = {name: array(code) for name, code in COLUMNS.items()}
    pieces: list[Pieces] = []
    count = 0
    parts = _parts(path, place)
    # The last part is the end.
    while True:
        position, part = next(parts)
        if isinstance(part, LaunchColumns):
            shapes += part.shapes
            count += len(part.shape)
            more = position.columns(part, len(shapes))
            for name, column in columns.items() if count <= WHOLE_COUNT else ():
                column.extend(more[name])
        elif isinstance(part, Pieces):
            pieces.append(part)
        elif isinstance(part, End):
            break
    if part.launches_count != count:
        mismatch = f"counts {part.launches_count} launches, the trace has {count}"
        raise position.refusal(mismatch)
    if count > WHOLE_COUNT:
        return _trace_of(LaunchStream(path, place, shapes, count), pieces, part)
    return _trace_of(Launches(shapes=tuple(shapes), **columns), pieces, part)


class _Position(NamedTuple):
    """The position of a line."""

    path: Path
    line: int
    offset_bytes: int

    def refusal(self, fault: str) -> CaptureFormatError:
        """Create the error for the line."""
        message = f"line {self.line} (byte {self.offset_bytes}) {fault}"
        return CaptureFormatError(message, remedy=_REMEDY, path=str(self.path))

    def columns(self, part: LaunchColumns, shapes_count: int) -> dict[str, array[int]]:
        """Return the columns of the line."""
        try:
            return columns_of(part, shapes_count)
        except RecordError as error:
            raise self.refusal(error.message) from error


def _parts(path: Path, place: TracePlace) -> Iterator[tuple[_Position, Part]]:
    position = _Position(path, place.line, place.offset_bytes)
    try:
        with path.open("rb") as file:
            file.seek(place.offset_bytes)
            for line in file:
                part = part_of(line)
                if isinstance(part, Head) != (position.line == place.line):
                    raise position.refusal("is not the beginning of a trace")
                yield position, part
                if isinstance(part, End):
                    return
                position = _Position(
                    path, position.line + 1, position.offset_bytes + len(line)
                )
    except RecordError as error:
        raise position.refusal(error.message) from error
    except OSError as error:
        message = f"it cannot be read ({error.strerror})"
        raise CaptureFormatError(message, remedy=_REMEDY, path=str(path)) from error
    raise position.refusal("is missing: the file ends before the trace does")


def _append(file: AppendedFile, parts: Iterable[Part]) -> tuple[int, int]:
    """Append lines, all or none. Returns the offset [B] and the number of lines."""
    count = 0
    try:
        with file.appending() as (stream, size_bytes):
            for part in parts:
                stream.write(line_of(part))
                count += 1
    except OSError as error:
        message = f"{file.path} cannot be written ({error.strerror})"
        raise ReportError(
            message, remedy="make room, or choose another folder"
        ) from error
    return size_bytes, count
