"""Recordings: records on disk, written while measuring and read to judge again.

A recording is a folder: `recording.json` names the session, `readings-*.jsonl` hold one
record per line, and `traces-*.jsonl` hold the GPU activity of each record (traces.py).
Each file has one writer.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from pytest_gpuperf.collect.appended_file import AppendedFile
from pytest_gpuperf.disk import TEMPORARY, write_whole
from pytest_gpuperf.errors import CaptureFormatError, RecordError, ReportError
from pytest_gpuperf.model import codec
from pytest_gpuperf.model.environment import Environment, Session
from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.record import Kind, Record, RecordKey, Role

SCHEMA = "pytest-gpuperf/recording/1"
# In the folder of a recording.
HEAD_FILE = "recording.json"
_KEPT_FILES = ("readings", "traces")
_REMEDY = "record it again with --gpuperf-record"

Address = tuple[RecordKey, Role, int]


class _Stamp(Frozen, frozen=True, kw_only=True):
    """The part of `recording.json` that every version has."""

    schema: str


class _RecordingHead(Frozen, frozen=True, kw_only=True):
    """The content of `recording.json`."""

    schema: str
    session: Session
    environment: Environment


class Recording(Frozen, frozen=True, kw_only=True):
    """
    A recorded run.

    Attributes:
        session: The session of the recording.

        environment: The machine and software of the session.

        records: The records by key, role and process index.
    """

    session: Session
    environment: Environment
    records: Mapping[Address, Record]

    def main(self, key: RecordKey) -> Record | None:
        """Return the main process's record of a key, or None."""
        return self.records.get((key, Role.MAIN, 0))

    def references(self) -> tuple[Record, ...]:
        """Return the records of reference workloads, of all processes."""
        records = self.records.values()
        return tuple(record for record in records if record.kind is Kind.REFERENCE)

    def of_role(self, role: Role, test_ids: Iterable[str]) -> list[Record]:
        """Return the records of a role for some tests."""
        ids = set(test_ids)
        return [
            record
            for (key, made_by, _), record in self.records.items()
            if made_by is role and key.test_id in ids
        ]


class Recorder:
    """
    Appends the records of a process to a file of that process.

    Args:
        folder: The recording.

        writer: A name that is unique in the run.
    """

    def __init__(self, folder: str, *, writer: str) -> None:
        self.path = Path(folder) / f"readings-{writer}.jsonl"
        self._file = AppendedFile(self.path)

    def open(self) -> None:
        """
        Open the file early, because opening may fail during a test.

        Raises:
            ReportError: The file cannot be written.
        """
        with self._writing():
            self._file.open()

    def keep(self, record: Record) -> None:
        """
        Append a record as one line, whole or not at all.

        Raises:
            ReportError: The file cannot be written.
        """
        with self._writing(), self._file.appending() as (file, _):
            file.write(codec.to_text(record).encode() + b"\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            message = f"{self.path} cannot be written ({error.strerror})"
            raise ReportError(
                message, remedy="make room, or choose another folder"
            ) from error


def start_recording(folder: str, session: Session, environment: Environment) -> None:
    """
    Create the folder of a recording. A recording without readings is replaced.

    Raises:
        ReportError: The folder holds readings or something else, or cannot be written.
    """
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
        # Only an empty recording is replaced.
        names = {entry.name for entry in path.iterdir()}
        readings = {
            entry.name for kind in _KEPT_FILES for entry in path.glob(f"{kind}-*.jsonl")
        }
        partial = {entry.name for entry in path.glob(f".{HEAD_FILE}.*{TEMPORARY}")}
        foreign = names - readings - partial - {HEAD_FILE}
        if foreign:
            message = f"{path} holds {min(foreign)}, which is not part of a recording"
            raise ReportError(message, remedy="choose an empty folder")
        if any((path / name).stat().st_size for name in readings):
            message = f"{path} holds the readings of an earlier run"
            raise ReportError(message, remedy="remove them, or choose another folder")
        for name in names:
            (path / name).unlink()
    except OSError as error:
        raise _unwritten(folder, error) from error
    write_head(folder, session, environment)


def write_head(folder: str, session: Session, environment: Environment) -> None:
    """
    Write the head of a recording, replacing an earlier head of the same run.

    Raises:
        ReportError: The head cannot be written.
    """
    path = Path(folder)
    head = _RecordingHead(schema=SCHEMA, session=session, environment=environment)
    try:
        write_whole(path / HEAD_FILE, f"{codec.to_text(head)}\n".encode())
    except OSError as error:
        raise _unwritten(folder, error) from error


def _unwritten(folder: str, error: OSError) -> ReportError:
    message = f"{folder} cannot be written ({error.strerror})"
    return ReportError(message, remedy="choose a folder of your own")


def read_recording(folder: str) -> Recording:
    """
    Read a recorded run.

    Raises:
        CaptureFormatError: The folder is not a recording, or a line is broken. A last
            line that was cut off by a kill is left out.
    """
    path = Path(folder)
    try:
        text = (path / HEAD_FILE).read_bytes()
        schema = codec.from_text(text, _Stamp).schema
        if schema != SCHEMA:
            message = f"schema {schema!r} is not {SCHEMA!r}"
            raise CaptureFormatError(
                message, remedy=_REMEDY, path=str(path / HEAD_FILE)
            )
        head = codec.from_text(text, _RecordingHead)
    except (FileNotFoundError, NotADirectoryError) as error:
        message = f"it is not a recording ({HEAD_FILE}: {error.strerror})"
        raise CaptureFormatError(
            message, remedy="name a folder of --gpuperf-record", path=str(path)
        ) from error
    except OSError as error:
        raise _unread(path / HEAD_FILE, error) from error
    except RecordError as error:
        message = f"it is not a recording ({error.message})"
        raise CaptureFormatError(
            message, remedy=_REMEDY, path=str(path / HEAD_FILE)
        ) from error
    return Recording(
        session=head.session,
        environment=head.environment,
        records=read_readings(folder),
    )


def read_readings(folder: str) -> dict[Address, Record]:
    """
    Return the records of a folder, from all writers.

    Raises:
        CaptureFormatError: A file cannot be read, or a line is broken.
    """
    records: dict[Address, Record] = {}
    for file in sorted(Path(folder).glob("readings-*.jsonl")):
        try:
            # The last line is the unfinished line of a killed process, or "".
            lines = file.read_bytes().split(b"\n")[:-1]
        except OSError as error:
            raise _unread(file, error) from error
        for number, line in enumerate(lines, start=1):
            try:
                record = codec.from_text(line, Record)
            except RecordError as error:
                message = f"line {number}: {error.message}"
                raise CaptureFormatError(
                    message, remedy=_REMEDY, path=str(file)
                ) from error
            records[record.key, record.role, record.process_index] = record
    return records


def _unread(file: Path, error: OSError) -> CaptureFormatError:
    message = f"it cannot be read ({error.strerror})"
    denied = isinstance(error, PermissionError)
    remedy = "make it and its folder readable" if denied else _REMEDY
    return CaptureFormatError(message, remedy=remedy, path=str(file))
