"""A process that is started before the modules that wait for it are imported.

`runner` imports subprocess, threading and more, which takes 20 ms. A process of `begin`
works meanwhile, and `ProcessRunner` takes it over if it is asked for the same command.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # The module typing takes 4 ms.
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


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
        """Return True if nobody has taken the process, and the same one is asked for."""
        is_same = (self.argv, self.env) == (tuple(argv), env)
        return is_same and cwd is None and not stdin and not self._is_taken

    def take(self) -> tuple[int, int]:
        """Return the pipes to whoever waits for the process from now on."""
        self._is_taken = True
        return self._streams

    def end(self) -> None:
        """Kill the group, unless somebody has taken the process."""
        if self._is_taken:
            return
        import signal

        # It was not waited for, so its number is not another's.
        os.killpg(self.pid, signal.SIGKILL)
        for stream in self.take():
            os.close(stream)
        os.waitpid(self.pid, 0)


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
