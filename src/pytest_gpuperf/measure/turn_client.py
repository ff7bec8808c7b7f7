"""A process that takes turns with others: how it asks, and what it may do meanwhile.

Another process shares out the turns (pipeline/turn_server says by which rule). This one asks
over a socket, and waits for one byte.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from enum import Enum
from typing import TYPE_CHECKING

from pytest_gpuperf.errors import CollectError
from pytest_gpuperf.model import codec
from pytest_gpuperf.model.frozen import Frozen

if TYPE_CHECKING:
    from pytest_gpuperf.collect.clock import Clock

__all__ = ["GO", "OVER", "Stage", "TurnClient", "TurnRequest"]

GO, OVER = b"g", b"o"  # the answers: go on; no sample more of this measurement
# docs/judging.md section 3: much shorter than the spells in which a core is slow, much
# longer than what it costs to change places
_TURN_NS = 15_000_000


class Stage(str, Enum):
    """What a process asks for."""

    BEGIN = "begin"  # to prepare a measurement, while all others wait
    TURN = "turn"  # to take samples
    ENOUGH = "enough"  # likewise; it has enough, and others may not
    ALONE = "alone"  # to finish what belongs to the measurement, while all others wait
    END = "end"  # to go on when all others have measured it


class TurnRequest(Frozen, frozen=True, kw_only=True):
    """
    What a process tells the one that shares out turns.

    Attributes:
        stage: What it asks for.

        test_id: The test that it runs; with BEGIN alone.

        name: What is to be measured in it; with BEGIN alone.
    """

    stage: Stage
    test_id: str = ""
    name: str = ""


class TurnClient:
    """
    The turns of this process.

    Args:
        descriptor: The file descriptor of a stream socket, as this process got it.

        clock: Gives the time.

    Raises:
        OSError: The descriptor is not open: it was another process's.
    """

    def __init__(self, descriptor: int, clock: Clock) -> None:
        os.set_inheritable(descriptor, False)  # noqa: FBT003 - what tests start has no part in this
        # a pytest that a test runs in this process may close its own
        self._socket = socket.socket(fileno=os.dup(descriptor))
        self._now_ns = clock.now_ns
        self._test_id = ""
        self._open: object | None = None  # the measurement that is made now
        self._inner_count = 0  # measurements inside it
        self._turn_ends_ns = 0

    def begin_test(self, test_id: str) -> None:
        """Name the test that runs now; what the last one has left open ends."""
        self._test_id = test_id
        self._inner_count = 0
        if self._open is not None:
            self._open = None
            self._ask(Stage.END)

    @contextlib.contextmanager
    def measuring(self, name: str) -> Iterator[None]:
        """
        Measure in the block while others wait, and go on when all have measured it.

        A measurement inside another one is part of it, and asks for nothing.

        Args:
            name: What is measured in the test that runs now.

        Raises:
            CollectError: Nobody shares out turns any more.
        """
        if self._open is not None:
            self._inner_count += 1
            try:
                yield
            finally:
                self._inner_count = max(self._inner_count - 1, 0)
            return
        self._ask(Stage.BEGIN, test_id=self._test_id, name=name)
        self._turn_ends_ns = 0
        self._open = opened = object()
        try:
            yield
        finally:
            if self._open is opened:
                self._open = None
                self._ask(Stage.END)

    def take_turn(self, enough: bool) -> bool:  # noqa: FBT001 - as a sampler calls it
        """
        Wait until a sample may be taken, unless the turn of this process lasts.

        Args:
            enough: Whether it has as many samples as it needs; where others have not, it
                takes more, so that all meet the same machine.

        Returns:
            Whether to take one; False: all processes have enough.
        """
        if not self._takes_part:
            return not enough
        if self._now_ns() < self._turn_ends_ns:
            return True
        goes_on = self._ask(Stage.ENOUGH if enough else Stage.TURN) == GO
        self._turn_ends_ns = self._now_ns() + _TURN_NS
        return goes_on

    def alone(self) -> None:
        """Wait until no other process takes samples of this measurement, or works on it."""
        if self._takes_part:
            self._ask(Stage.ALONE)

    def close(self) -> None:
        """Ask for nothing any more."""
        self._socket.close()

    @property
    def _takes_part(self) -> bool:
        """Whether what is measured now is a measurement of its own."""
        return self._open is not None and not self._inner_count

    def _ask(self, stage: Stage, *, test_id: str = "", name: str = "") -> bytes:
        """Ask for something, and return the answer when it comes."""
        request = TurnRequest(stage=stage, test_id=test_id, name=name)
        try:
            self._socket.sendall(codec.to_text(request).encode() + b"\n")
            answer = self._socket.recv(1)
        except OSError:
            answer = b""
        if not answer:
            message = "the process that shares out turns has ended"
            raise CollectError(message, remedy="run the comparison again")
        return answer
