"""The option `show --launches`: every launch of a recording."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpuperf.cli.output import GOOD, print_bytes, read_run
from pytest_gpuperf.collect.binary.demangle import native_demangler
from pytest_gpuperf.collect.replay import read_recording
from pytest_gpuperf.collect.traces import read_trace
from pytest_gpuperf.errors import CaptureFormatError, ConfigError
from pytest_gpuperf.report.launches import launch_blocks

if TYPE_CHECKING:
    from pytest_gpuperf.model.activity import Trace
    from pytest_gpuperf.model.record import Record
    from pytest_gpuperf.model.run import Run

__all__ = ["show_launches"]

_RECORDINGS = ("gpuperf_record", "gpuperf_replay")  # options that name one


def show_launches(file: str, form: str, *, is_run: bool) -> int:
    """
    Print every launch of a recording, or of the recording that a run names.

    Raises:
        ConfigError: It is neither a recording nor a run.

        CaptureFormatError: The recording is damaged, empty or missing.
    """
    is_folder = Path(file).is_dir()
    if not is_folder and not is_run:
        message = f"--launches: {file} is neither a recording nor a run"
        remedy = "name a folder of --gpuperf-record; of a capture, leave --launches out"
        raise ConfigError(message, remedy=remedy)
    folder = file if is_folder else _recording_of(read_run(file), file)
    for block in launch_blocks(_traces(folder), form, demangle=native_demangler()):
        print_bytes(block)
    return GOOD


def _traces(folder: str) -> Iterator[tuple[Record, Trace]]:
    """
    Yield the measurements of a recording with their traces; those without one are skipped.

    Raises:
        CaptureFormatError: It is not a recording, is damaged, or has no trace.
    """
    is_empty = True
    for record in read_recording(folder).records.values():
        place = None if record.activity is None else record.activity.kept
        if place is not None:
            is_empty = False
            yield record, read_trace(folder, place)
    if is_empty:
        message = "the recording has no launches: CUPTI did not record them"
        remedy = "record on a machine where CUPTI works; see gpuperf doctor"
        raise CaptureFormatError(message, remedy=remedy, path=folder)


def _recording_of(run: Run, path: str) -> str:
    """
    Return the recording that a run wrote, or was judged from.

    Args:
        run: The run.

        path: Its file; the recording's path starts from its folder, or from the current one.

    Raises:
        CaptureFormatError: The run has no recording, or it is missing.
    """
    options = run.header.options
    named = next((options[name] for name in _RECORDINGS if name in options), None)
    if named is None:
        message = "the run has no recording, so its launches were not stored"
        remedy = "measure with --gpuperf-record=DIR, which stores every launch"
        raise CaptureFormatError(message, remedy=remedy, path=path)
    for folder in (Path(named), Path(path).parent / named):
        if folder.is_dir():
            session = read_recording(str(folder)).session
            if session.id == run.header.session.id:
                return str(folder)
    message = f"the recording {named}, which has its launches, does not exist here"
    raise CaptureFormatError(
        message, remedy="name its folder: gpuperf show DIR --launches", path=path
    )
