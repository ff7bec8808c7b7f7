"""Room cli: the `gpuperf` command.

In: the arguments of a command line.
Out: text on standard output, errors on standard error, an exit code.
Never: a measurement, a decision, an import other than argparse before the command is known.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING

from pytest_gpuperf import __version__
from pytest_gpuperf.cli.arguments import parse
from pytest_gpuperf.cli.output import (
    INTERRUPTED,
    PIPE_CLOSED,
    UNREADABLE,
    WRONG_USAGE,
    print_bytes,
    say,
)
from pytest_gpuperf.errors import ConfigError, GpuPerfError, RevisionError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

__all__ = ["main"]

# Errors of the command line, not of the content of a file.
_MISUSED = (ConfigError, RevisionError)


def main(argv: Sequence[str] | None = None) -> int:
    """
    Run a command with the given arguments, or with the arguments of the process for
    None.

    Returns:
        The exit code.
    """
    try:
        arguments = parse(sys.argv[1:] if argv is None else argv)
        try:
            code = _run(arguments)
        except GpuPerfError as error:
            lines = [f"gpuperf: error: {error.message}"]
            lines += [f"    remedy: {error.remedy}"] if error.remedy else []
            say(lines)
            code = WRONG_USAGE if isinstance(error, _MISUSED) else UNREADABLE
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        # The buffered rest would raise again when Python exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except KeyboardInterrupt:
        return INTERRUPTED
    return code


def _run(arguments: argparse.Namespace) -> int:
    if arguments.version:
        return print_bytes(f"gpuperf {__version__}\n".encode())
    if arguments.command is None:
        message = "no command was named"
        raise ConfigError(
            message, remedy="name one: gpuperf show FILE; see gpuperf --help"
        )
    module, _, function = arguments.command.partition(":")
    run = getattr(import_module(f"{__name__}.{module}"), function)
    code: int = run(arguments)
    return code
