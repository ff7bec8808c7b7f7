"""A process that is started before the modules that wait for it are imported.

`runner` imports subprocess, threading and more, which takes 20 ms. A process of `begin`
works at the same time. `ProcessRunner` takes it over if a run asks for the same command.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # The module typing takes 4 ms.
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from io import FileIO
    from selectors import BaseSelector

# Of a stream that is read at once: a pipe of Linux holds no more.
_PART_BYTES = 65_536


class BegunProcess:
    """
    A process in a group of its own, with empty standard input.

    Attributes:
        argv: The command line.

        env: The complete environment.

        pid: The process and its group.
    """

    def __init__(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        *,
        pid: int,
        streams: tuple[int, int],
    ) -> None:
        self.argv = tuple(argv)
        self.env = dict(env)
        self.pid = pid
        self._streams = streams
        self._is_taken = False

    def serves(
        self,
        argv: Sequence[str],
        env: Mapping[str, str] | None,
        *,
        cwd: str | None,
        stdin: bytes,
    ) -> bool:
        """Return True if the process is still to be taken, and a run asks for the same command."""
        is_same = (self.argv, self.env) == (tuple(argv), env)
        return is_same and cwd is None and not stdin and not self._is_taken

    def take(self) -> TakenProcess:
        """Return the process for a caller that waits for the end."""
        self._is_taken = True
        return TakenProcess(self.pid, self._streams)

    def end(self) -> None:
        """Kill the group, unless the process was taken."""
        if self._is_taken:
            return
        import signal

        # It was not waited for, so its number is not another's.
        os.killpg(self.pid, signal.SIGKILL)
        self._is_taken = True
        for stream in self._streams:
            os.close(stream)
        os.waitpid(self.pid, 0)


class TakenProcess:
    """
    A taken process, with the part of Popen's interface that the runner uses.

    It keeps a standard stream open until its end, as any Python does.

    Args:
        pid: The process and its group.

        streams: The pipes of its standard output and standard error.
    """

    stdin = None

    def __init__(self, pid: int, streams: tuple[int, int]) -> None:
        self.pid = pid
        self.returncode: int = 0
        self.stdout, self.stderr = (os.fdopen(n, "rb", 0) for n in streams)
        self._contents = {self.stdout: bytearray(), self.stderr: bytearray()}
        self._is_waited_for = False

    def communicate(
        self, _: bytes = b"", timeout: float | None = None
    ) -> tuple[bytes, bytes]:
        """Return both streams at the end of the process."""
        # Imported while the process works.
        import selectors
        from subprocess import TimeoutExpired  # noqa: TID251 - the error of Popen

        from pytest_gpuperf.collect.clock import NS_PER_S, SystemClock

        begin_ns = SystemClock.now_ns()
        with selectors.DefaultSelector() as selector:
            for stream in self._contents:
                if not stream.closed:
                    selector.register(stream, selectors.EVENT_READ, stream)
            while selector.get_map():
                passed_s = (SystemClock.now_ns() - begin_ns) / NS_PER_S
                rest_s = None if timeout is None else timeout - passed_s
                ready = selector.select(rest_s)
                if not ready:
                    raise TimeoutExpired((), timeout or 0.0)
                for key, _mask in ready:
                    self._read(key.data, selector)
        self.wait()
        stdout, stderr = map(bytes, self._contents.values())
        return stdout, stderr

    def wait(self) -> None:
        """Wait for the end of the process, whose exit status is then known."""
        if not self._is_waited_for:
            _, status = os.waitpid(self.pid, 0)
            self._is_waited_for = True
            self.returncode = os.waitstatus_to_exitcode(status)

    def kill(self) -> None:
        """Kill the process."""
        import signal

        os.kill(self.pid, signal.SIGKILL)

    def _read(self, stream: FileIO, selector: BaseSelector) -> None:
        part = os.read(stream.fileno(), _PART_BYTES)
        self._contents[stream] += part
        if not part:
            selector.unregister(stream)
            stream.close()


def begin(argv: Sequence[str], env: Mapping[str, str]) -> BegunProcess | None:
    """
    Start a process, or return None if the system cannot start it in this way.

    Descriptors that this process inherited as inheritable stay open in the process.

    Args:
        argv: The executable, as a path, and its arguments.

        env: The complete environment.
    """
    # A pipe with the number of a closed standard stream would be lost.
    if sys.platform != "linux" or None in (sys.stdin, sys.stdout, sys.stderr):
        return None
    pipes: list[tuple[int, int]] = []
    try:
        pipes += [os.pipe()]
        pipes += [os.pipe()]
        (out, out_sink), (err, err_sink) = pipes
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, out_sink, 1),
            (os.POSIX_SPAWN_DUP2, err_sink, 2),
        ]
        pid = os.posix_spawn(
            argv[0], tuple(argv), env, file_actions=actions, setsid=True
        )
    # The runner starts it again, and says what is wrong.
    except (OSError, NotImplementedError, ValueError):
        for stream, _ in pipes:
            os.close(stream)
        return None
    finally:
        for _, sink in pipes:
            os.close(sink)
    return BegunProcess(argv, env, pid=pid, streams=(out, err))
