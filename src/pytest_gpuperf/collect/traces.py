"""Traces kept on disk, every launch of them, and read in pieces.

The short traces of a process share a file. One with more launches than are held in memory
has a file of its own, which is written while the launches are found.
"""

from __future__ import annotations

import contextlib
import os
from array import array
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from pytest_gpuperf.collect.translate.trace_lines import (
    End,
    Head,
    LaunchColumns,
    Part,
    Pieces,
    columns_of,
    end_of,
    launch_parts,
    line_of,
    other_parts,
    part_of,
    trace_of,
)
from pytest_gpuperf.errors import CaptureFormatError, RecordError, ReportError
from pytest_gpuperf.model.activity import Trace
from pytest_gpuperf.model.launch import (
    COLUMNS,
    WHOLE_COUNT,
    KernelShape,
    Launches,
    TracePlace,
)
from pytest_gpuperf.model.record import RecordKey, Role

__all__ = ["LaunchStream", "StreamWriter", "TraceKeeper", "read_trace"]

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
