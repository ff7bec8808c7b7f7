"""Shared by the commands: exit codes, output, reading runs."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pytest_gpuperf.errors import RecordError, ReportError

if TYPE_CHECKING:
    from pytest_gpuperf.model.run import Run

__all__ = [
    "BLOCKED",
    "DEGRADED",
    "GOOD",
    "UNDECIDED",
    "UNREADABLE",
    "WORSE",
    "WRONG_USAGE",
    "print_bytes",
    "read_run",
    "read_runs",
    "say",
]

GOOD, WORSE, WRONG_USAGE, UNDECIDED, UNREADABLE = range(5)
DEGRADED, BLOCKED = 1, 2  # of doctor, explained in docs/doctor.md


def print_bytes(content: bytes) -> int:
    """Write bytes to standard output, independent of its encoding."""
    if sys.stdout is None:  # closed by the caller: `>&-`
        message = "standard output is closed"
        raise ReportError(message, remedy="leave it open, or redirect it to a file")
    rest = memoryview(content)
    try:
        while rest:  # with PYTHONUNBUFFERED a pipe takes 64 KiB at a time
            rest = rest[sys.stdout.buffer.write(rest) :]
        sys.stdout.buffer.flush()
    except BrokenPipeError:  # the reader has closed the pipe
        raise
    except OSError as error:
        message = f"standard output cannot be written ({error.strerror})"
        raise ReportError(message, remedy="free space, or write elsewhere") from error
    return GOOD


def say(lines: Iterable[str]) -> None:
    """Write lines to standard error, safe to print."""
    from pytest_gpuperf.report.escape import escape

    if sys.stderr is not None:  # where it is closed, the exit code must do
        sys.stderr.write("".join(f"{escape(line)}\n" for line in lines))


def read_run(path: str) -> Run:
    """Return the run of a JSON file."""
    from pytest_gpuperf.model.codec import decode_run

    try:
        with open(path, "rb") as file:  # noqa: PTH123 - pathlib is not imported on this path
            text = file.read()
    except OSError as error:
        message = f"it cannot be read ({error.strerror})"
        raise RecordError(
            message, path=path, remedy="check the path and its permissions"
        ) from error
    return decode_run(text, path=path)


def read_runs(paths: Sequence[str]) -> list[Run]:
    """Return the runs of JSON files; the error names every unreadable one."""
    runs: list[Run] = []
    errors: list[RecordError] = []
    for path in paths:
        try:
            runs.append(read_run(path))
        except RecordError as error:
            errors.append(error)
    if len(errors) > 1:
        remedies = "; ".join(dict.fromkeys(error.remedy for error in errors))
        messages = "; ".join(dict.fromkeys(error.message for error in errors))
        raise RecordError(messages, path="", remedy=remedies) from errors[0]
    if errors:
        raise errors[0]
    return runs
