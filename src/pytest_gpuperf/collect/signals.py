"""Signals that end processes: their names, and passing them on to a command."""

from __future__ import annotations

import contextlib
import signal
import subprocess  # noqa: TID251 - the command has the terminal, a Runner's has pipes
import sys
import threading
from collections.abc import Callable, Iterator, Sequence

from pytest_gpuperf.collect.runner import guarded

# The signals of a cancelled job. Windows has no SIGHUP.
_ENDING_SIGNALS = ("SIGTERM", "SIGHUP")
_MEANINGS = {
    "SIGXCPU": ", more processor time than `ulimit -t` allows",
    "SIGXFSZ": ", a larger file than `ulimit -f` allows",
}


@contextlib.contextmanager
def ending_signals(handler: Callable[[int, object], object]) -> Iterator[None]:
    """
    Handle the signals that cancel a job or close a terminal.

    Signals that this process already ignores or handles are left unchanged. In other
    threads than the main thread nothing is changed, because Python allows handlers only
    there.

    Args:
        handler: Called with the signal's number and the interrupted frame.
    """
    is_main = threading.current_thread() is threading.main_thread()
    numbers = [getattr(signal, name, None) for name in _ENDING_SIGNALS]
    changed = [
        number
        for number in numbers
        if is_main and number and signal.getsignal(number) is signal.SIG_DFL
    ]
    try:
        for number in changed:
            signal.signal(number, handler)
        yield
    finally:
        for number in changed:
            signal.signal(number, signal.SIG_DFL)


def signal_name(number: int) -> str:
    """Return the name of a signal."""
    try:
        return signal.Signals(number).name
    except ValueError:
        # Python has no names for real-time signals.
        return f"signal {number}"


def ending(exit_code: int) -> str:
    """Return the end of a process as text, with the meaning of a limit's signal."""
    if exit_code >= 0:
        return f"exit {exit_code}"
    name = signal_name(-exit_code)
    return name + _MEANINGS.get(name, "")


def largest_file_bytes() -> int | None:
    """Return the maximum size of written files [B], or None without a limit."""
    try:
        import resource
    except ImportError:
        # Windows has no such limit.
        return None
    most_bytes, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    return None if most_bytes == resource.RLIM_INFINITY else most_bytes


def run_here(argv: Sequence[str], *, quiet: bool = False) -> tuple[int, bool]:
    """
    Run a command on the same terminal, and wait for the end.

    Ctrl-C reaches the command, too. A signal that ends this process's job is passed on,
    and the command is waited for, because it may have to clean up.

    Args:
        argv: The executable and its arguments. Never a shell string.

        quiet: Whether standard output of the command goes to standard error.

    Returns:
        The exit status (negative: the signal that ended the command), and whether
        Ctrl-C or a job signal was received.
    """
    process: subprocess.Popen[bytes] | None = None
    received: list[int] = []

    def pass_on(number: int, _: object) -> None:
        received.append(number)
        if process is not None:
            process.send_signal(number)

    with ending_signals(pass_on):
        process = subprocess.Popen(  # noqa: S603 - a list, never a shell text
            argv, stdout=sys.stderr if quiet else None
        )
        # Signals received while the command was being started.
        for number in received:
            process.send_signal(number)
        interrupted = False
        with guarded("TERM", str(process.pid)):
            while True:
                try:
                    return process.wait(), interrupted or bool(received)
                except KeyboardInterrupt:
                    # The command has received Ctrl-C, too, and cleans up.
                    interrupted = True
