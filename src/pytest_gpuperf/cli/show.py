"""The command `show`: a capture as JSON is printed as the reader's bytes, unparsed.

The other forms are in `records`, which takes 60 ms to import: a fifth of the time in which
a capture of 154 launches and three metrics is printed as JSON.
"""

from __future__ import annotations

import contextlib
import os
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_gpuperf.cli.output import GOOD, print_bytes
from pytest_gpuperf.collect.ncu.text import capture_text, check_file
from pytest_gpuperf.collect.runner import ProcessRunner
from pytest_gpuperf.errors import ConfigError

if TYPE_CHECKING:
    import argparse

__all__ = ["show"]

_CAPTURE = b"NVR\0"  # the first bytes of every report of Nsight Compute
_BINARIES = (b"\x7fELF", b"\x50\xed\x55\xba", b"!<arch>\n")  # ELF, fatbin, archive
_NO_VALUE = b'"value":null'  # the reader's JSON for a counter that a launch lacks


def show(arguments: argparse.Namespace) -> int:
    """Print a capture, a run or a binary."""
    if _is_binary(arguments.file):
        return _show_binary(arguments)
    if arguments.block is not None:
        message = f"--block is of a binary, and {arguments.file} is not one"
        raise ConfigError(message, remedy="drop it")
    return _show_measured(arguments)


def _show_measured(arguments: argparse.Namespace) -> int:
    """Print a capture or a run."""
    file, form, metrics = arguments.file, arguments.format, arguments.metrics
    is_run = _is_run(file)
    if arguments.launches == ():
        return _show_launches(file, form, metrics, is_run=is_run)
    filters = {
        "kernels": arguments.kernel,
        "includes": arguments.nvtx,
        "excludes": arguments.exclude,
        "indices": arguments.launches,
    }
    if any(filters.values()):
        return _show_chosen(file, form, metrics, filters, is_run=is_run)
    if form == "json" and not is_run:
        return _show_counters(file, metrics)
    text = None
    if not is_run and metrics is None:
        # the records are imported while another process reads: a tenth of the time that
        # 154 launches take, and more of a shorter report
        runner = ProcessRunner(lambda: import_module("pytest_gpuperf.cli.records"))
        text = capture_text(file, runner=runner)
    elif not is_run:
        check_file(os.path.abspath(file))  # noqa: PTH100 - links stay as they are
    from pytest_gpuperf.cli import records

    if is_run:
        return records.show_run(file, form, metrics)
    return records.show_capture(file, form, metrics, text)


def _show_binary(arguments: argparse.Namespace) -> int:
    """Print the kernels of a binary."""
    chosen = (arguments.metrics, arguments.nvtx, arguments.exclude, arguments.launches)
    if any(value not in (None, []) for value in chosen):
        message = f"{arguments.file} is a binary: it has kernels and no launches"
        raise ConfigError(message, remedy="choose kernels with --kernel")
    from pytest_gpuperf.cli.binary import show_binary

    return show_binary(
        arguments.file,
        arguments.format,
        pattern=arguments.kernel,
        block=arguments.block,
    )


def _show_chosen(
    file: str,
    form: str,
    metrics: tuple[str, ...] | None,
    filters: dict[str, Any],
    *,
    is_run: bool,
) -> int:
    """Print some launches of a capture."""
    if is_run:
        message = (
            "--kernel, --nvtx, --exclude and --launches choose launches of a capture"
        )
        raise ConfigError(message, remedy=f"drop them: {file} is a run")
    from pytest_gpuperf.cli import records
    from pytest_gpuperf.collect.ncu.nvtx import LaunchFilter

    check_file(os.path.abspath(file))  # noqa: PTH100 - links stay as they are
    return records.show_chosen(file, form, metrics, LaunchFilter(**filters))


def _show_launches(
    file: str, form: str, metrics: tuple[str, ...] | None, *, is_run: bool
) -> int:
    """Print the launches of a recording."""
    if metrics is not None:
        message = "--launches and --metrics exclude each other"
        raise ConfigError(message, remedy="drop one of them")
    from pytest_gpuperf.cli.records import show_launches

    return show_launches(file, form, is_run=is_run)


def _show_counters(file: str, metrics: tuple[str, ...] | None) -> int:
    """Print the counters of a capture as JSON."""
    if any("__" not in name for name in metrics or ()):  # every counter's name has it
        from pytest_gpuperf.cli.records import refuse_catalogue

        refuse_catalogue(metrics or ())
    content = capture_text(file, runner=ProcessRunner(), metrics=metrics)
    print_bytes(content)
    if metrics is not None and _NO_VALUE in content:
        from pytest_gpuperf.cli.records import say_what_lacks

        say_what_lacks(file, metrics)
    return GOOD


def _start_of(path: str) -> bytes:
    """Return the first bytes of a file; none where it is not one."""
    if Path(path).is_file():  # reading a pipe would block
        with (
            contextlib.suppress(OSError),  # the reader reports the error
            Path(path).open("rb") as file,
        ):
            return file.read(64)
    return b""


def _is_binary(path: str) -> bool:
    """Return whether a file may hold compiled kernels."""
    return _start_of(path).startswith(_BINARIES)


def _is_run(path: str) -> bool:
    """Return whether a file is a run, by its first bytes or else by its name."""
    start = _start_of(path).lstrip()
    if start.startswith((b"{", _CAPTURE)):
        return start.startswith(b"{")
    return path.endswith(".json")
