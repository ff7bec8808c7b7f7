"""Readings kept on disk: written while measuring, read to judge again.

A recording is a folder: `recording.json` says whose it is, `readings-*.jsonl` hold one
record a line, `traces-*.jsonl` what the GPU did in each (traces.py); each file is written
by one process alone.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from pytest_gpuperf.errors import CaptureFormatError, RecordError, ReportError
from pytest_gpuperf.model import codec
from pytest_gpuperf.model.environment import Environment, Session
from pytest_gpuperf.model.frozen import Frozen, replace
from pytest_gpuperf.model.record import Record, RecordKey, Role

__all__ = [
    "Recorder",
    "Recording",
    "read_expected",
    "read_readings",
    "read_recording",
    "start_recording",
    "tell_expected",
    "without_samples",
]

SCHEMA = "pytest-gpuperf/recording/1"
_HEAD = "recording.json"
_PARTIAL = f"{_HEAD}.tmp"  # what a kill may leave of it
_KEPT_FILES = ("readings", "traces")
_REMEDY = "record it again with --gpuperf-record"

Address = tuple[RecordKey, Role, int]


class _Stamp(Frozen, frozen=True, kw_only=True):
    """What `recording.json` of any version has: the rest may differ."""

    schema: str


class _Head(Frozen, frozen=True, kw_only=True):
    """What stands in `recording.json`."""

    schema: str
    session: Session
    environment: Environment


class Recording(Frozen, frozen=True, kw_only=True):
    """
    A kept run.

    Attributes:
        session: The session that made it.

        environment: Its machine and software.

        records: By key, role and process.
    """

    session: Session
    environment: Environment
    records: Mapping[Address, Record]

    def main(self, key: RecordKey) -> Record | None:
        """Return what the main process measured of a key; None: nothing."""
        return self.records.get((key, Role.MAIN, 0))

    def of_role(self, role: Role, test_ids: Iterable[str]) -> list[Record]:
        """Return what the fresh processes of one role measured of some tests."""
        wanted = set(test_ids)
        return [
            record
            for (key, made_by, _), record in self.records.items()
            if made_by is role and key.test_id in wanted
        ]


class Recorder:
    """
    Appends the records of one process to its own file.

    Args:
        folder: The recording.

        writer: A name that no other process of the run has.
    """

    def __init__(self, folder: str, *, writer: str) -> None:
        self.path = Path(folder) / f"readings-{writer}.jsonl"

    def keep(self, record: Record) -> None:
        """
        Append a record as a line: all of it, or nothing where the disk is full.

        Raises:
            ReportError: The file cannot be written.
        """
        size = self.path.stat().st_size if self.path.exists() else 0
        try:
            with self.path.open("ab") as file:
                file.write(codec.to_text(record).encode() + b"\n")
        except OSError as error:
            with contextlib.suppress(OSError):  # half a line would spoil the next one
                os.truncate(self.path, size)
            message = f"{self.path} cannot be written ({error.strerror})"
            raise ReportError(
                message, remedy="make room, or choose another folder"
            ) from error


def start_recording(folder: str, session: Session, environment: Environment) -> None:
    """
    Make the folder of a recording; one without a reading in it is replaced.

    Raises:
        ReportError: The folder holds readings or something else, or cannot be written.
    """
    path = Path(folder)
    head = _Head(schema=SCHEMA, session=session, environment=environment)
    try:
        path.mkdir(parents=True, exist_ok=True)
        _clear(path)
        partial = path / _PARTIAL
        partial.write_text(codec.to_text(head) + "\n", encoding="utf-8")
        partial.replace(path / _HEAD)
    except OSError as error:
        message = f"{folder} cannot be written ({error.strerror})"
        raise ReportError(message, remedy="choose a folder of your own") from error


def _clear(path: Path) -> None:
    """Remove what an empty run left, and refuse a folder with anything else in it."""
    names = {entry.name for entry in path.iterdir()}
    readings = {
        entry.name for kept in _KEPT_FILES for entry in path.glob(f"{kept}-*.jsonl")
    }
    strange = names - readings - {_HEAD, _PARTIAL}
    if strange:
        message = f"{path} holds {min(strange)}, which is no part of a recording"
        raise ReportError(message, remedy="choose an empty folder")
    if any((path / name).stat().st_size for name in readings):
        message = f"{path} holds the readings of an earlier run"
        raise ReportError(message, remedy="remove them, or choose another folder")
    for name in names:
        (path / name).unlink()


def read_recording(folder: str) -> Recording:
    """
    Return a kept run.

    Raises:
        CaptureFormatError: It is no recording, or a line of it is broken; a last line
            that was cut off by a kill is left out.
    """
    path = Path(folder)
    try:
        text = (path / _HEAD).read_bytes()
        schema = codec.from_text(text, _Stamp).schema
        if schema != SCHEMA:
            message = f"schema {schema!r} is not {SCHEMA!r}"
            raise CaptureFormatError(message, remedy=_REMEDY, path=str(path / _HEAD))
        head = codec.from_text(text, _Head)
    except OSError as error:
        message = f"no recording ({error.strerror})"
        raise CaptureFormatError(message, remedy=_REMEDY, path=str(path)) from error
    except RecordError as error:
        message = f"no recording ({error.message})"
        raise CaptureFormatError(
            message, remedy=_REMEDY, path=str(path / _HEAD)
        ) from error
    return Recording(
        session=head.session,
        environment=head.environment,
        records=read_readings(folder),
    )


def read_readings(folder: str) -> dict[Address, Record]:
    """
    Return the records of a folder, whoever wrote them.

    Raises:
        CaptureFormatError: A file cannot be read, or a line of it is broken.
    """
    records: dict[Address, Record] = {}
    for file in sorted(Path(folder).glob("readings-*.jsonl")):
        for record in _lines(file):
            records[record.key, record.role, record.process_index] = record
    return records


def _lines(file: Path) -> list[Record]:
    """Return the records of one file."""
    try:
        *whole, rest = file.read_bytes().split(b"\n")
    except OSError as error:
        message = f"it cannot be read ({error.strerror})"
        raise CaptureFormatError(message, remedy=_REMEDY, path=str(file)) from error
    del rest  # what a killed process did not finish; "" after a whole line
    records = []
    for number, line in enumerate(whole, start=1):
        try:
            records.append(codec.from_text(line, Record))
        except RecordError as error:
            message = f"line {number}: {error.message}"
            raise CaptureFormatError(message, remedy=_REMEDY, path=str(file)) from error
    return records


def tell_expected(folder: str, writer: str, test_ids: list[str]) -> None:
    """Write down which tests a worker is going to measure, before it may crash."""
    target = Path(folder) / f"expected-{writer}.json"
    partial = target.with_suffix(".tmp")
    partial.write_text(codec.to_text(test_ids), encoding="utf-8")
    partial.replace(target)


def read_expected(folder: str) -> list[str]:
    """Return the tests that all workers together are going to measure, once each."""
    ids: dict[str, None] = {}
    for file in sorted(Path(folder).glob("expected-*.json")):
        told = codec.from_text(file.read_bytes(), list[str], path=str(file))
        ids |= dict.fromkeys(told)
    return list(ids)


def without_samples(record: Record) -> Record:
    """Return a record without its samples: what travels between processes."""
    if not record.series:
        return record
    return replace(record, series=())
