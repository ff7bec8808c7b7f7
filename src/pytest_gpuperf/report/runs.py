"""A run in each form: text, Markdown, JSON; and as a JSON file, written whole."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from pytest_gpuperf.errors import ReportError
from pytest_gpuperf.model.codec import encode_run
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.run import Header, Run
from pytest_gpuperf.report.lines import line_width, text_bytes
from pytest_gpuperf.report.markdown import run_markdown
from pytest_gpuperf.report.terminal import run_lines

__all__ = [
    "STANDARD_OUTPUT",
    "is_stream",
    "only_metrics",
    "report_bytes",
    "run_bytes",
    "write_report",
    "write_whole",
]

STANDARD_OUTPUT = "-"
_READER_TRIES = 100  # 2 s: a reader that was started beside the run is there by then
_TRY_AGAIN_S = 0.02
_REMEDY = "name a file in a folder that exists and can be written to"
_FREE = "free space, or name a file on another disk"
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def run_bytes(run: Run, form: str, *, width: int | None = None) -> bytes:
    """
    Return a run as it is printed [UTF-8]; without commands: they belong to its machine.

    Args:
        run: The run.

        form: text, json or markdown.

        width: Characters of a line of text; None: the terminal's, 100 where there is
            none.
    """
    if form == "json":
        return encode_run(run)
    if form == "markdown":
        return run_markdown(run, commands=False).encode()
    shown = replace(run, header=_without_advice(run.header))
    width = line_width(width)
    return text_bytes(run_lines(shown, commands=False, width=width, verbose=True))


def only_metrics(run: Run, metrics: Sequence[str]) -> Run:
    """Return a run with only the metrics that were asked for."""
    records = tuple(
        replace(
            record,
            estimates=tuple(e for e in record.estimates if e.metric in metrics),
            series=tuple(s for s in record.series if s.metric in metrics),
            unmeasured=tuple(gap for gap in record.unmeasured if gap.metric in metrics),
        )
        for record in run.records
    )
    verdicts = tuple(v for v in run.verdicts if v.metric in metrics)
    return replace(run, records=records, verdicts=verdicts)


def write_report(run: Run, form: str, path: str) -> None:
    """
    Write a run to a file, or to standard output.

    Args:
        run: The run.

        form: json, html, markdown or csv.

        path: The file, "-" for standard output; an older file of that name is replaced
            when all is written.

    Raises:
        ReportError: It cannot be written, or Jinja2 is not installed; an older file is
            left as it was.
    """
    write_whole(path, report_bytes(run, form))


def report_bytes(run: Run, form: str, *, older: Sequence[Run] = ()) -> bytes:
    """
    Return a run as a report file has it [UTF-8].

    Args:
        run: The run.

        form: json, html, markdown or csv.

        older: Earlier runs whose samples are shown beside it in HTML, oldest first.

    Raises:
        ReportError: Jinja2 is not installed.
    """
    if form == "json":
        return encode_run(run)
    if form == "html":  # what follows is loaded for those alone who ask for it
        from pytest_gpuperf.report.html.page import html_bytes

        return html_bytes(run, older)
    if form == "csv":
        from pytest_gpuperf.report.exports import csv_bytes

        return csv_bytes(run)
    return run_markdown(run).encode()


def write_whole(path: str, content: bytes) -> None:
    """
    Write a file so that a reader sees the old one or the new one, and never a part.

    Args:
        path: The file; a link is followed, a pipe or a terminal is written to as it is;
            "-": standard output.

        content: All of it.

    Raises:
        ReportError: It cannot be written; nothing half-written is left behind.
    """
    try:
        if is_stream(path):
            _write_stream(path, content)
        else:
            _replace(_target(path), content)
    except OSError as error:
        remedy = _FREE if error.errno in _FULL else _REMEDY
        raise _refusal(path, error.strerror or str(error), remedy) from error


def is_stream(path: str) -> bool:
    """Return whether a path is a pipe, a terminal, a device or "-": nothing to replace."""
    target = Path(path)
    if path == STANDARD_OUTPUT:
        return True
    if target.parent == Path("/dev"):  # /dev/stdout may lead to an ordinary file
        return target.exists()
    return target.exists() and not target.is_file() and not target.is_dir()


def _without_advice(header: Header) -> Header:
    """Return a header without what its reader could only have done when it ran."""
    notes = tuple(note for note in header.notes if note.about == "gpu" and note.code)
    return replace(header, sentences=tuple(note.text for note in notes), notes=notes)


def _target(path: str) -> Path:
    """Return the file that a path leads to; refuses one that cannot be written."""
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise _refusal(path, "it is a folder")
    if not target.parent.is_dir():
        raise _refusal(path, f"the folder {target.parent} does not exist")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise _refusal(path, f"the folder {target.parent} cannot be written to")
    return target


def _write_stream(path: str, content: bytes) -> None:
    """Write to a pipe or a device; a pipe that nobody reads is an error after a while."""
    if path == STANDARD_OUTPUT:
        sys.stdout.write("\n")  # pytest may be in the middle of a line
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
        sys.stdout.flush()
        return
    if os.name == "nt" or not stat.S_ISFIFO(Path(path).stat().st_mode):
        Path(path).write_bytes(content)
        return
    descriptor = _opened_pipe(path)
    os.set_blocking(descriptor, True)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def _opened_pipe(path: str) -> int:
    """Return a pipe opened for writing as soon as it has a reader."""
    pause = threading.Event()
    for _ in range(_READER_TRIES):
        with contextlib.suppress(OSError):  # ENXIO: it has none yet
            return os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        pause.wait(_TRY_AGAIN_S)
    return os.open(path, os.O_WRONLY | os.O_NONBLOCK)


def _replace(target: Path, content: bytes) -> None:
    """Write beside a file and put it in its place, with its mode; clean up."""
    half = target.with_name(f".{target.name}.{os.getpid()}.half")
    try:
        half.unlink(missing_ok=True)  # left by a killed run, or somebody's link
        with half.open("xb") as file:
            with contextlib.suppress(FileNotFoundError):
                mode = stat.S_IMODE(target.stat().st_mode)
                if hasattr(os, "fchmod"):
                    os.fchmod(file.fileno(), mode)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        half.replace(target)
    except BaseException:  # Ctrl-C too must leave no half-written file
        with contextlib.suppress(OSError):
            half.unlink(missing_ok=True)
        raise


def _refusal(path: str, reason: str, remedy: str = _REMEDY) -> ReportError:
    """Return the error that names the file."""
    message = f"{path}: the report cannot be written: {reason}"
    return ReportError(message, remedy=remedy)
