"""A run as a JSON file, whole or not at all."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from pytest_gpuperf.errors import ReportError
from pytest_gpuperf.model.codec import encode_run
from pytest_gpuperf.model.run import Run

__all__ = ["check_writable", "write_json", "write_whole"]

_REMEDY = "name a file in a folder that exists and can be written to"


def write_json(run: Run, path: str) -> None:
    """
    Write a run to a JSON file.

    Args:
        run: The run.

        path: The file; an older one of that name is replaced when all is written.

    Raises:
        ReportError: It cannot be written; an older file is left as it was.
    """
    write_whole(path, encode_run(run))


def check_writable(path: str) -> None:
    """
    Refuse a report path that could not be written to at the end.

    Called before anything is measured: an hour of measuring is not lost to a typing error.

    Raises:
        ReportError: The folder is missing or read-only, or the path is a folder.
    """
    if _is_stream(path):
        return
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise _refusal(path, "it is a folder")
    if not target.parent.is_dir():
        raise _refusal(path, f"the folder {target.parent} does not exist")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise _refusal(path, f"the folder {target.parent} cannot be written to")


def write_whole(path: str, content: bytes) -> None:
    """
    Write a file so that a reader sees the old one or the new one, and never a part.

    Args:
        path: The file; a link is followed, a pipe or a terminal is written to as it is.

        content: All of it.

    Raises:
        ReportError: It cannot be written; nothing half-written is left behind.
    """
    check_writable(path)
    try:
        if _is_stream(path):
            Path(path).write_bytes(content)
        else:
            _replace(Path(os.path.realpath(path)), content)
    except OSError as error:
        raise _refusal(path, error.strerror or str(error)) from error


def _replace(target: Path, content: bytes) -> None:
    """Write beside a file and put it in its place; clean up whatever happens."""
    half = target.with_name(f".{target.name}.{os.getpid()}.half")
    try:
        with half.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        half.replace(target)
    except BaseException:  # Ctrl-C too must leave no half-written file
        with contextlib.suppress(OSError):
            half.unlink(missing_ok=True)
        raise


def _is_stream(path: str) -> bool:
    """Return whether a path is a pipe, a terminal or a device: nothing to replace."""
    target = Path(path)
    if target.parent == Path("/dev"):  # /dev/stdout may lead to an ordinary file
        return target.exists()
    return target.exists() and not target.is_file() and not target.is_dir()


def _refusal(path: str, why: str) -> ReportError:
    """Return the error that names the file."""
    message = f"{path}: the report cannot be written: {why}"
    return ReportError(message, remedy=_REMEDY)
