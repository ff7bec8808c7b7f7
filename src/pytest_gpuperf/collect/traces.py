"""Traces kept on disk, every launch of them, and read in pieces.

The short traces of a process share a file. One with more launches than are held in memory
has a file of its own, which is written while the launches are found.
Each line has a checksum and a part of the trace: at most some thousands of launches,
copies or other pieces.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, Union

import msgspec

from pytest_gpuperf.errors import CaptureFormatError, RecordError, ReportError
from pytest_gpuperf.model.activity import Copy, NamedRange, Trace
from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.launch import (
    COLUMNS,
    PIECE_COUNT,
    WHOLE_COUNT,
    KernelShape,
    Launches,
    LaunchList,
    TracePlace,
)
from pytest_gpuperf.model.record import RecordKey, Role

__all__ = [
    "End",
    "Head",
    "LaunchColumns",
    "LaunchStream",
    "Part",
    "Pieces",
    "StreamWriter",
    "TraceKeeper",
    "columns_of",
    "end_of",
    "launch_parts",
    "line_of",
    "other_parts",
    "part_of",
    "read_trace",
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


_REMEDY = "record it again with --gpuperf-record"


class LaunchStream:
    """
    Launches in a file, read in pieces whenever they are asked for.

    Args:
        path: The file.

        place: Where their trace begins in it.

        shapes: The shapes of all of them.

        count: How many there are.
    """

    def __init__(
        self, path: Path, place: TracePlace, shapes: Iterable[KernelShape], count: int
    ) -> None:
        self.path = path
        self.place = place
        self.shapes = tuple(shapes)
        self._count = count

    def __len__(self) -> int:
        """Return how many kernels ran."""
        return self._count

    def pieces(self) -> Iterator[Launches]:
        """
        Yield them in order, some thousands at a time.

        Raises:
            CaptureFormatError: The file has changed since.
        """
        left_count = self._count
        for spot, part in _parts(self.path, self.place):
            if isinstance(part, LaunchColumns):
                columns = spot.columns(part, len(self.shapes))
                yield Launches(shapes=self.shapes, **columns)
                left_count -= len(part.shape)
            elif isinstance(part, End):
                raise spot.refusal(f"comes {left_count} launches too early")
            if left_count <= 0:
                return


class StreamWriter:
    """
    Writes launches into a file of their own as they are found.

    Args:
        path: The file.

    Raises:
        ReportError: It cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._shapes: tuple[KernelShape, ...] = ()
        self._count = 0
        _append(path, [Head()])

    def put(self, launches: Launches) -> None:
        """
        Append launches; their `shapes` begin with those of the ones before them.

        Raises:
            ReportError: The file cannot be written; none of these is in it.
        """
        _append(self._path, launch_parts(launches, known_count=len(self._shapes)))
        self._shapes = launches.shapes
        self._count += len(launches)

    def end(self) -> LaunchStream:
        """Return what was put, to be read from the file."""
        place = TracePlace(file=self._path.name, line=1, offset_bytes=0)
        return LaunchStream(self._path, place, self._shapes, self._count)


class TraceKeeper:
    """
    Keeps the traces of one process in a recording.

    Args:
        folder: The recording.

        writer: A name that no other process of the run has.

        role: What the process measures for.

        process_index: As `Record`'s.
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
        self._begun: list[Path] = []  # streams whose trace has no end yet

    def stream(self) -> StreamWriter:
        """
        Return what writes the launches of a trace that is going to be kept.

        Raises:
            ReportError: The file cannot be written.
        """
        self._streams_count += 1
        path = self._folder / f"traces-{self._writer}.{self._streams_count}.jsonl"
        self._begun.append(path)
        return StreamWriter(path)

    def keep(self, key: RecordKey, trace: Trace) -> TracePlace:
        """
        Append a trace, all of it or nothing; return where it stands.

        Raises:
            ReportError: The file cannot be written.
        """
        launches = trace.launches
        end = end_of(trace, key, self._role, self._process_index)
        rest = chain(other_parts(trace), [end])
        if isinstance(launches, LaunchStream) and launches.path in self._begun:
            self._begun.remove(launches.path)
            _append(launches.path, rest)
            return launches.place
        path = self._folder / f"traces-{self._writer}.jsonl"
        parts = chain([Head()], launch_parts(launches, known_count=0), rest)
        line = self._lines_count + 1
        offset_bytes, count = _append(path, parts)
        self._lines_count += count
        return TracePlace(file=path.name, line=line, offset_bytes=offset_bytes)


def read_trace(folder: str, place: TracePlace) -> Trace:
    """
    Return a trace; more than 200,000 launches stay in their file, as a stream.

    Args:
        folder: The recording.

        place: Where it stands there.

    Raises:
        CaptureFormatError: It is not there, was cut off or is damaged; the file, the
            line and the byte are named.
    """
    path = _path_of(folder, place)
    shapes: list[KernelShape] = []
    columns = {name: array(code) for name, code in COLUMNS.items()}
    others: list[Pieces] = []
    count = 0
    parts = _parts(path, place)
    while True:  # the last part is the end
        spot, part = next(parts)
        if isinstance(part, LaunchColumns):
            shapes += part.shapes
            count += len(part.shape)
            piece = spot.columns(part, len(shapes))
            for name, column in columns.items() if count <= WHOLE_COUNT else ():
                column.extend(piece[name])
        elif isinstance(part, Pieces):
            others.append(part)
        elif isinstance(part, End):
            break
    if part.launches_count != count:
        what = f"tells of {part.launches_count} launches, and {count} are there"
        raise spot.refusal(what)
    if count > WHOLE_COUNT:
        return trace_of(LaunchStream(path, place, shapes, count), others, part)
    return trace_of(Launches(shapes=tuple(shapes), **columns), others, part)


def _path_of(folder: str, place: TracePlace) -> Path:
    """Return the file of a trace; a recording may come from anywhere."""
    path = Path(folder) / place.file
    if path.name != place.file:
        message = f"{place.file!r} is no file of a recording"
        raise CaptureFormatError(message, remedy=_REMEDY, path=folder)
    return path


class _Spot(NamedTuple):
    """Where a line stands."""

    path: Path
    line: int
    offset_bytes: int

    def refusal(self, what: str) -> CaptureFormatError:
        """Return what is wrong with this line."""
        message = f"line {self.line} (byte {self.offset_bytes}) {what}"
        return CaptureFormatError(message, remedy=_REMEDY, path=str(self.path))

    def columns(self, part: LaunchColumns, shapes_count: int) -> dict[str, array[int]]:
        """Return the columns of this line."""
        try:
            return columns_of(part, shapes_count)
        except RecordError as error:
            raise self.refusal(error.message) from error


def _parts(path: Path, place: TracePlace) -> Iterator[tuple[_Spot, Part]]:
    """Yield the parts of a trace up to its end, and where each stands."""
    spot = _Spot(path, place.line, place.offset_bytes)
    try:
        with path.open("rb") as file:
            file.seek(place.offset_bytes)
            for line in file:
                part = part_of(line)
                if isinstance(part, Head) != (spot.line == place.line):
                    raise spot.refusal("is not where a trace begins")
                yield spot, part
                if isinstance(part, End):
                    return
                spot = _Spot(path, spot.line + 1, spot.offset_bytes + len(line))
    except RecordError as error:
        raise spot.refusal(error.message) from error
    except OSError as error:
        message = f"it cannot be read ({error.strerror})"
        raise CaptureFormatError(message, remedy=_REMEDY, path=str(path)) from error
    raise spot.refusal("is missing: the file ends before the trace does")


def _append(path: Path, parts: Iterable[Part]) -> tuple[int, int]:
    """Append lines, all or none; return where they begin [B], and how many they are."""
    size_bytes = path.stat().st_size if path.exists() else 0
    count = 0
    try:
        with path.open("ab") as file:
            for part in parts:
                file.write(line_of(part))
                count += 1
    except OSError as error:
        with contextlib.suppress(OSError):  # half a line would spoil the next one
            os.truncate(path, size_bytes)
        message = f"{path} cannot be written ({error.strerror})"
        raise ReportError(
            message, remedy="make room, or choose another folder"
        ) from error
    return size_bytes, count
