"""Room cli: the `gpuperf` command.

In: the arguments of a command line.
Out: text on standard output, errors on standard error, an exit code.
Never: a measurement, a decision, an import other than argparse before the command is known.
"""

from __future__ import annotations

import os
import signal
import sys

from pytest_gpuperf import __version__

TYPE_CHECKING = False  # The module typing takes 4 ms.
if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from pytest_gpuperf.collect.begun import BegunProcess

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """
    Run a command with the given arguments, or with the arguments of the process for
    None.

    Returns:
        The exit code.
    """
    if argv is not None:
        return _answer(argv)
    from pytest_gpuperf.cli.early import begin_reading

    words = sys.argv[1:]
    begun = begin_reading(words) if _knows_ends() else None
    try:
        return _answer(words, begun)
    finally:
        if begun is not None:
            begun.end()


def _knows_ends() -> bool:
    number = getattr(signal, "SIGCHLD", None)
    if number is None:
        return True
    # Some supervisors ignore the signal, which is inherited. Exit statuses would be lost.
    if signal.getsignal(number) is signal.SIG_IGN:
        try:
            signal.signal(number, signal.SIG_DFL)
        except ValueError:
            return False  # Only the main thread may change it.
    # A handler may wait for every child. Popen bears that, and a begun process does not.
    return signal.getsignal(number) is signal.SIG_DFL


def _answer(argv: Sequence[str], begun: BegunProcess | None = None) -> int:
    # A capture is being read while these are imported.
    from pytest_gpuperf.cli.arguments import parse
    from pytest_gpuperf.cli.output import (
        INTERRUPTED,
        PIPE_CLOSED,
        UNREADABLE,
        WRONG_USAGE,
        say,
    )
    from pytest_gpuperf.errors import ConfigError, GpuPerfError, RevisionError

    try:
        arguments = parse(argv)
        arguments.begun = begun
        try:
            code = _run(arguments)
        except GpuPerfError as error:
            lines = [f"gpuperf: error: {error.message}"]
            lines += [f"    remedy: {error.remedy}"] if error.remedy else []
            say(lines)
            # Errors of the command line, not of the content of a file.
            is_misused = isinstance(error, (ConfigError, RevisionError))
            code = WRONG_USAGE if is_misused else UNREADABLE
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
    from importlib import import_module

    from pytest_gpuperf.cli.output import print_bytes
    from pytest_gpuperf.errors import ConfigError

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
