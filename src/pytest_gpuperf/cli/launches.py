"""What `show --launches` prints: every launch of a recording."""

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
    Print every launch that a recording has; a run names its recording.

    Raises:
        ConfigError: It is neither a recording nor a run.

        CaptureFormatError: The recording is damaged, has no launches or is not there.
    """
    is_folder = Path(file).is_dir()
    if not is_folder and not is_run:
        message = f"--launches: {file} is no recording, and no run"
        remedy = "name a folder of --gpuperf-record; of a capture, leave --launches out"
        raise ConfigError(message, remedy=remedy)
    folder = file if is_folder else _recording_of(read_run(file), file)
    for block in launch_blocks(_traces(folder), form, demangle=native_demangler()):
        print_bytes(block)
    return GOOD


def _traces(folder: str) -> Iterator[tuple[Record, Trace]]:
    """
    Yield the measurements of a recording that have a trace, each with it.

    Raises:
        CaptureFormatError: It is no recording, is damaged, or has no trace.
    """
    is_empty = True
    for record in read_recording(folder).records.values():
        place = None if record.activity is None else record.activity.kept
        if place is not None:
            is_empty = False
            yield record, read_trace(folder, place)
    if is_empty:
        message = "it has no launches: nobody saw what the GPU did"
        remedy = "record where the header of a run names cupti; see gpuperf doctor"
        raise CaptureFormatError(message, remedy=remedy, path=folder)


def _recording_of(run: Run, path: str) -> str:
    """
    Return the recording that a run made, or was judged from.

    Args:
        run: The run.

        path: Its file: a folder may be named from where that lies, or from here.

    Raises:
        CaptureFormatError: The run kept none, or it is not there any more.
    """
    options = run.header.options
    named = next((options[name] for name in _RECORDINGS if name in options), None)
    if named is None:
        message = "its launches were not kept"
        remedy = "measure with --gpuperf-record=DIR: the launches are kept in there"
        raise CaptureFormatError(message, remedy=remedy, path=path)
    for folder in (Path(named), Path(path).parent / named):
        if folder.is_dir():
            session = read_recording(str(folder)).session
            if session.id == run.header.session.id:
                return str(folder)
    message = f"its launches are in the recording {named}, which is not here"
    raise CaptureFormatError(
        message, remedy="name that folder: gpuperf show DIR --launches", path=path
    )
