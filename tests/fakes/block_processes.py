"""A Runner whose processes are threads that take turns and answer in their files."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fakes.runner import FakeRunner
from pytest_gpuperf.collect.clock import SystemClock
from pytest_gpuperf.errors import CollectError, CollectorUnavailableError
from pytest_gpuperf.measure.turns import TurnClient
from pytest_gpuperf.model import codec
from pytest_gpuperf.model.run import ChildAnswer
from pytest_gpuperf.pipeline.repeat import ChildSpec

VARIABLE = "CHILD"


class ThreadProcess:
    """
    One such process.

    Attributes:
        spec: What it was told.

        env: Its environment.

        folder: Where it was started.

        exit_code: How it ended; None: it runs.

        client: What it asks for turns with.
    """

    def __init__(
        self,
        spec: ChildSpec,
        env: Mapping[str, str],
        folder: str,
        log: str,
        body: Callable[[ThreadProcess], int],
    ) -> None:
        self.spec = spec
        self.env = env
        self.folder = folder
        self.exit_code: int | None = None
        self._log = log
        self._body = body
        assert spec.turns is not None
        descriptor = os.dup(spec.turns)
        self._socket = socket.socket(fileno=os.dup(descriptor))
        self.client = TurnClient(descriptor, SystemClock())
        os.close(descriptor)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> None:
        if self.exit_code is None:
            self.exit_code = -9
        self.hang_up()  # also for a thread that waits
        self._thread.join()
        self._socket.close()

    def answer(self, answer: ChildAnswer) -> None:
        """Write a line of answers."""
        with Path(self.spec.out).open("ab") as file:
            file.write(codec.to_text(answer).encode() + b"\n")

    def print(self, text: str) -> None:
        """Write something to the log."""
        Path(self._log).write_text(text, encoding="utf-8")

    def hang(self) -> None:
        """Wait until somebody ends it."""
        while self.exit_code is None:
            time.sleep(0.01)

    def hang_for_good(self) -> int:
        """Do so, and nothing else."""
        self.hang()
        return 0

    def say(self, text: bytes) -> None:
        """Write to its connection."""
        self._socket.sendall(text)

    def hang_up(self) -> None:
        """Close its connection for good."""
        with contextlib.suppress(OSError):  # the other end may be closed
            self._socket.shutdown(socket.SHUT_RDWR)

    def _run(self) -> None:
        code = -6
        try:
            code = self._body(self)
        except CollectError:  # it was ended while it waited
            code = -9
        finally:
            if self.exit_code is None:
                self.exit_code = code
            self.client.close()
            self.hang_up()


class ThreadRunner(FakeRunner):
    """
    Starts such processes.

    Args:
        body: What each does; returns its exit code.

        most_count: How many can be started.

    Attributes:
        processes: Those that were started, in order.
    """

    def __init__(
        self, body: Callable[[ThreadProcess], int], *, most_count: int = 99
    ) -> None:
        super().__init__()
        self._body = body
        self._most_count = most_count
        self.processes: list[ThreadProcess] = []

    def start(
        self,
        argv: Sequence[str],
        *,
        log: str,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        descriptors: Sequence[int] = (),
    ) -> ThreadProcess:
        if len(self.processes) == self._most_count:
            message = f"{argv[0]} cannot be started"
            raise CollectorUnavailableError(message, remedy=f"install {argv[0]}")
        assert env is not None
        assert cwd is not None
        spec = codec.from_text(Path(env[VARIABLE]).read_bytes(), ChildSpec)
        assert (spec.turns,) == tuple(descriptors)
        Path(log).touch()
        process = ThreadProcess(spec, env, cwd, log, self._body)
        self.processes.append(process)
        return process
