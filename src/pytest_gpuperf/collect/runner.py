"""Child processes: the only module that starts one."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from pytest_gpuperf.errors import CollectorTimeoutError, CollectorUnavailableError

__all__ = [
    "Finished",
    "LiveProcess",
    "ProcessRunner",
    "Runner",
    "ending",
    "ending_signals",
    "largest_file_bytes",
    "run_here",
    "start_remedy",
]

_TAIL_LINES = 40  # enough for a traceback and the lines before it
_ENDING_SIGNALS = ("SIGTERM", "SIGHUP")  # of a cancelled job; Windows lacks the latter
_MEANINGS = {
    "SIGXCPU": ", more processor time than `ulimit -t` allows",
    "SIGXFSZ": ", a larger file than `ulimit -f` allows",
}
_DRAIN_S = 1.0  # the pipes of a killed process are read in milliseconds
# Reads one line at the end of the work; where the pipe closes without it, this process
# has died, and the shell signals the process or group. It starts in a millisecond.
_GUARD = ("/bin/sh", "-c", 'read -r _ || kill -s "$1" -- "$2"', "sh")


class Finished(NamedTuple):  # `gpuperf show` is slower by 7 ms with a dataclass
    """
    A process that has ended.

    Attributes:
        argv: The command as it was started.

        exit_code: Its exit status; negative: the signal that ended it.

        stdout: All that it wrote to standard output.

        stderr: All that it wrote to standard error.
    """

    argv: tuple[str, ...]
    exit_code: int
    stdout: bytes
    stderr: bytes

    @property
    def log_tail(self) -> str:
        """The last lines of both streams, as text."""
        text = (self.stdout + b"\n" + self.stderr).decode("utf-8", "replace")
        lines = [line for line in text.splitlines() if line.strip()]
        return "\n".join(lines[-_TAIL_LINES:])


class LiveProcess(Protocol):
    """A process that was started and not waited for."""

    @property
    def exit_code(self) -> int | None:
        """Its exit status; negative: the signal that ended it. None: it runs."""

    def end(self) -> None:
        """Kill it and its process group, if it runs; let go of what watched it."""


class Runner(Protocol):
    """Starts processes; tests replace it with a scripted one."""

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
    ) -> Finished:
        """
        Run a command to its end.

        Args:
            argv: The executable and its arguments; never a shell string.

            timeout_s: How long it may take [s], > 0.

            cwd: The folder to start it in; None: this process's.

            env: Its whole environment; None: this process's.

            stdin: What it reads on standard input.

        Raises:
            CollectorUnavailableError: The executable cannot be started.

            CollectorTimeoutError: It took longer; its process group was ended.
        """

    def start(
        self,
        argv: Sequence[str],
        *,
        log: str,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        descriptors: Sequence[int] = (),
    ) -> LiveProcess:
        """
        Start a command and return at once; whoever does so must call its `end`.

        Args:
            argv: The executable and its arguments; never a shell string.

            log: The file that both of its streams go to; it reads nothing.

            cwd: The folder to start it in; None: this process's.

            env: Its whole environment; None: this process's.

            descriptors: File descriptors that it shares with this process.

        Raises:
            CollectorUnavailableError: The executable cannot be started.
        """


class ProcessRunner:
    """
    Runs real processes, each in its own process group, which is killed as a whole.

    A group is killed at a timeout, and also when this process dies: a guard process
    watches it. Without a POSIX shell and process groups (Windows) there is no guard, and
    a child survives a killed parent.

    Args:
        meanwhile:
            Called here while the process runs, as for imports that its output needs; if
            it raises, the process is killed.
    """

    def __init__(self, meanwhile: Callable[[], object] | None = None) -> None:
        self._meanwhile = meanwhile

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
    ) -> Finished:
        """Run a command to its end; see `Runner.run`."""
        command = tuple(argv)
        process = _started(command, cwd, env, stdin=subprocess.PIPE)
        try:
            with _group_guarded(process):
                if self._meanwhile is not None:
                    self._meanwhile()
                stdout, stderr = process.communicate(stdin, timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            _end_group(process)
            message = f"{command[0]} did not end within {timeout_s:g} s"
            raise CollectorTimeoutError(
                message, remedy="give it more time, or find out what it waits for"
            ) from error
        except BaseException:  # Ctrl-C too must leave nothing running
            _end_group(process)
            raise
        return Finished(
            argv=command, exit_code=process.returncode, stdout=stdout, stderr=stderr
        )

    def start(
        self,
        argv: Sequence[str],
        *,
        log: str,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        descriptors: Sequence[int] = (),
    ) -> LiveProcess:
        """Start a command and return at once; see `Runner.start`."""
        with open(log, "wb") as sink:  # noqa: PTH123 - `gpuperf show` does not need pathlib
            return _GuardedProcess(
                _started(
                    tuple(argv),
                    cwd,
                    env,
                    stdin=subprocess.DEVNULL,
                    output=sink.fileno(),
                    descriptors=descriptors,
                )
            )


@contextlib.contextmanager
def ending_signals(handler: Callable[[int, object], object]) -> Iterator[None]:
    """
    Handle signals that end a job: of a cancelled one, or of a closed terminal.

    Those that this process ignores or handles already are left as they are, and so are
    all in a thread, for which Python has no handlers.

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
    """Return what a signal is called."""
    try:
        return signal.Signals(number).name
    except ValueError:  # Python names no real-time signal
        return f"signal {number}"


def ending(exit_code: int) -> str:
    """Return how a process has ended, with what a limit's signal means."""
    if exit_code >= 0:
        return f"exit {exit_code}"
    name = signal_name(-exit_code)
    return name + _MEANINGS.get(name, "")


def largest_file_bytes() -> int | None:
    """Return the largest file [B] that this process and its children may write."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return None
    most_bytes, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    return None if most_bytes == resource.RLIM_INFINITY else most_bytes


def run_here(argv: Sequence[str], *, quiet: bool = False) -> tuple[int, bool]:
    """
    Run a command in this process's place: on the same terminal, Ctrl-C included.

    A signal that ends this process's job is passed on, and the command waited for: it
    may have something to tidy up.

    Args:
        argv: The executable and its arguments; never a shell string.

        quiet: Whether what it prints goes to standard error.

    Returns:
        Its exit status (negative: the signal that ended it), and whether Ctrl-C or such
        a signal came.
    """
    process: subprocess.Popen[bytes] | None = None
    received: list[int] = []

    def pass_on(number: int, _: object) -> None:
        received.append(number)
        if process is not None:
            process.send_signal(number)

    with ending_signals(pass_on):
        process = subprocess.Popen(argv, stdout=sys.stderr if quiet else None)
        for number in received:  # while it was started
            process.send_signal(number)
        interrupted = False
        with _guarded("TERM", str(process.pid)):
            while True:
                try:
                    return process.wait(), interrupted or bool(received)
                except KeyboardInterrupt:  # it has got it, too, and tidies up
                    interrupted = True


class _GuardedProcess:
    """A process whose group is killed by `end`, and when this process dies."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._guard = contextlib.ExitStack()
        self._guard.enter_context(_group_guarded(process))

    @property
    def exit_code(self) -> int | None:
        """Its exit status; negative: the signal that ended it. None: it runs."""
        return self._process.poll()

    def end(self) -> None:
        """Kill it and its process group, if it runs; let go of what watched it."""
        if self.exit_code is None:
            _end_group(self._process)
        self._guard.close()


_INSTALL = "install {0} or put it on PATH"
# by the system's error, what to do where a process cannot be started
_START_REMEDIES = {
    errno.EMFILE: "close the files that the tests leave open, or allow more: ulimit -n",
    errno.ENFILE: "close files: the system has as many open as it allows (fs.file-max)",
    errno.EAGAIN: (
        "end processes, or allow more: ulimit -u, or pids.max of the container"
    ),
    errno.ENOMEM: "free memory, or allow more: ulimit -v, or the container's limit",
    errno.EACCES: "make {0} executable, on a file system that is not mounted noexec",
    errno.ENOEXEC: "install {0} for this machine",
    errno.E2BIG: "pass fewer tests, or shorten the environment variables",
}


def start_remedy(error: OSError, program: str) -> str:
    """Return what to do where a process cannot be started, by the system's error."""
    is_folder = os.path.isdir(program)  # noqa: PTH112 - as above; its error is EACCES, too
    remedy = _INSTALL if is_folder else _START_REMEDIES.get(error.errno or 0, _INSTALL)
    return remedy.format(program)


def _started(
    command: tuple[str, ...],
    cwd: str | None,
    env: Mapping[str, str] | None,
    *,
    stdin: int,
    output: int = subprocess.PIPE,
    descriptors: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a process in a group of its own."""
    try:
        return subprocess.Popen(
            command,
            cwd=cwd,
            env=None if env is None else dict(env),
            stdin=stdin,
            stdout=output,
            stderr=output,
            start_new_session=True,
            pass_fds=descriptors,
        )
    except OSError as error:
        message = f"{command[0]} cannot be started ({error.strerror})"
        remedy = start_remedy(error, command[0])
        if cwd is not None and error.filename == cwd:
            message = f"{command[0]} cannot be started in {cwd} ({error.strerror})"
            remedy = "give a folder that exists"
        raise CollectorUnavailableError(message, remedy=remedy) from error


def _group_guarded(
    process: subprocess.Popen[bytes],
) -> contextlib.AbstractContextManager[None]:
    """Kill a process group if this process dies inside the block."""
    return _guarded("KILL", f"-{process.pid}")


@contextlib.contextmanager
def _guarded(name: str, target: str) -> Iterator[None]:
    """
    Send a signal if this process dies inside the block.

    Args:
        name: The signal's, without SIG.

        target: What gets it, as `kill` takes it.
    """
    if not hasattr(os, "killpg"):
        yield
        return
    try:
        guard = subprocess.Popen(
            (*_GUARD, name, target),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a signal to our group must not end the guard
        )
    except OSError:  # a system without a shell has no guard
        yield
        return
    try:
        yield
    finally:
        guard.communicate(b"\n")


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and its group."""
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    else:  # Windows has no process groups of this kind
        process.kill()
    try:
        process.communicate(timeout=_DRAIN_S)
    except subprocess.TimeoutExpired:  # a process outside the group holds the pipes
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
        process.wait()
