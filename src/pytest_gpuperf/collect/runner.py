"""Child processes. Only `begun`, which is for this module, and `signals` start others."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from pytest_gpuperf.errors import CollectorTimeoutError, CollectorUnavailableError

if TYPE_CHECKING:
    from pytest_gpuperf.collect.begun import BegunProcess, TakenProcess

# Enough for a traceback and the lines before it.
_TAIL_LINES = 40
# The pipes of a killed process are read in milliseconds.
_DRAIN_S = 1.0
# The shell reads one line at the end of the work. If the pipe closes without a line,
# this process has died, and the shell signals the process or group. The shell starts in
# a millisecond.
_GUARD = ("/bin/sh", "-c", 'read -r _ || kill -s "$1" -- "$2"', "sh")


# A dataclass would slow down `gpuperf show` by 7 ms.
class Finished(NamedTuple):
    """
    A process that has ended.

    Attributes:
        argv: The command line.

        exit_code: The exit status, or the negative number of the signal that ended the
            process.

        stdout: All standard output.

        stderr: All standard error output.
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
    """A process that was started and is not waited for."""

    @property
    def exit_code(self) -> int | None:
        """The exit status, or a negative signal number, or None while the process runs."""

    def end(self) -> None:
        """Kill the process group, unless already ended, and close the guard."""


class Runner(Protocol):
    """Starts processes. Tests replace it with a scripted runner."""

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
        Run a command to the end.

        Args:
            argv: The executable and its arguments. Never a shell string.

            timeout_s: Time limit [s], > 0.

            cwd: The working folder, or None for the folder of this process.

            env: The complete environment, or None for the environment of this process.

            stdin: The standard input of the command.

        Raises:
            CollectorUnavailableError: The executable cannot be started.

            CollectorTimeoutError: The time limit was exceeded. The process group was
                killed.
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
        Start a command and return at once. The caller must call `end`.

        Args:
            argv: The executable and its arguments. Never a shell string.

            log: The file for standard output and standard error. Standard input is
                empty.

            cwd: The working folder, or None for the folder of this process.

            env: The complete environment, or None for the environment of this process.

            descriptors: File descriptors that are shared with the command.

        Raises:
            CollectorUnavailableError: The executable cannot be started.
        """


class ProcessRunner:
    """
    Runs real processes in separate process groups, which are killed as a whole.

    A group is killed at a timeout, and also when this process dies, because a guard
    process watches it. Without a POSIX shell and process groups (Windows) there is no
    guard, and a child survives a killed parent.

    Args:
        while_running:
            Called in this process while the command runs, for example for imports that
            the output needs. If it raises an exception, the command is killed.

        begun: A process that is taken over by the first run of the same command in the
            same environment, or None.
    """

    def __init__(
        self,
        while_running: Callable[[], object] | None = None,
        *,
        begun: BegunProcess | None = None,
    ) -> None:
        self._while_running = while_running
        self._begun = begun

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
    ) -> Finished:
        """Run a command to the end, see `Runner.run`."""
        command = tuple(argv)
        begun = self._begun
        process: subprocess.Popen[bytes] | TakenProcess
        if begun is not None and begun.serves(command, env, cwd=cwd, stdin=stdin):
            process = begun.take()
        else:
            process = _started(command, cwd, env, stdin=subprocess.PIPE)
        try:
            with _group_guarded(process):
                if self._while_running is not None:
                    self._while_running()
                stdout, stderr = process.communicate(stdin, timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            _end_group(process)
            message = f"{command[0]} did not end within {timeout_s:g} s"
            raise CollectorTimeoutError(
                message, remedy="give it more time, or find out what it waits for"
            ) from error
        except BaseException:
            # Ctrl-C must not leave anything running, either.
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
        """Start a command and return at once, see `Runner.start`."""
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


class _GuardedProcess:
    """A process whose group is killed by `end`, and also when this process dies."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._guard = contextlib.ExitStack()
        self._guard.enter_context(_group_guarded(process))

    @property
    def exit_code(self) -> int | None:
        """The exit status, or a negative signal number, or None while the process runs."""
        return self._process.poll()

    def end(self) -> None:
        """Kill the process group, unless already ended, and close the guard."""
        if self.exit_code is None:
            _end_group(self._process)
        self._guard.close()


_INSTALL = "install {0} or put it on PATH"
# Remedies by error number, for a process that cannot be started.
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
    """Return the remedy for a process that cannot be started, by the system's error."""
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
    process: subprocess.Popen[bytes] | TakenProcess,
) -> contextlib.AbstractContextManager[None]:
    return guarded("KILL", f"-{process.pid}")


@contextlib.contextmanager
def guarded(name: str, target: str) -> Iterator[None]:
    """
    Send a signal if the process dies inside the block.

    Args:
        name: The name of the signal, without SIG.

        target: The target of the signal, as an argument of `kill`.
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
            # A signal to our group must not end the guard.
            start_new_session=True,
        )
    except OSError:
        # A system without a shell has no guard.
        yield
        return
    try:
        yield
    finally:
        guard.communicate(b"\n")


def _end_group(process: subprocess.Popen[bytes] | TakenProcess) -> None:
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    else:
        # Windows has no process groups of this kind.
        process.kill()
    try:
        process.communicate(timeout=_DRAIN_S)
    except subprocess.TimeoutExpired:
        # A process outside the group holds the pipes open.
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
        process.wait()
