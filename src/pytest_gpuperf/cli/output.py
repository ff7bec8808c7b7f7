"""What the commands share: exit codes, standard output, runs read from files."""

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
DEGRADED, BLOCKED = 1, 2  # of doctor: what they mean is told in docs/doctor.md


def print_bytes(content: bytes) -> int:
    """Write to standard output, whatever its encoding is."""
    if sys.stdout is None:  # closed by whoever started this: `>&-`
        message = "there is no standard output to write to"
        raise ReportError(message, remedy="leave it open, or send it to a file")
    rest = memoryview(content)
    try:
        while rest:  # with PYTHONUNBUFFERED a pipe takes 64 KiB at a time
            rest = rest[sys.stdout.buffer.write(rest) :]
        sys.stdout.buffer.flush()
    except BrokenPipeError:  # whoever reads has seen enough
        raise
    except OSError as error:
        message = f"standard output cannot be written ({error.strerror})"
        raise ReportError(message, remedy="make room, or write elsewhere") from error
    return GOOD


def say(lines: Iterable[str]) -> None:
    """Write lines to standard error, safe to print."""
    from pytest_gpuperf.report.escape import escape

    if sys.stderr is not None:  # where nobody listens, the exit code tells
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
    """Return the runs of JSON files; all that cannot be read are named at once."""
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
