"""Shares out turns among processes of this run, and sees to it that none is waited for in vain."""

from __future__ import annotations

import selectors
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from pytest_gpuperf.collect.clock import NS_PER_S
from pytest_gpuperf.errors import RecordError
from pytest_gpuperf.measure.references import TURN_NAME
from pytest_gpuperf.measure.turn_client import TurnRequest
from pytest_gpuperf.model import codec
from pytest_gpuperf.pipeline.rotation import Rotation

if TYPE_CHECKING:
    import socket

    from pytest_gpuperf.collect.clock import Clock
    from pytest_gpuperf.collect.runner import LiveProcess

__all__ = ["Connection", "TurnServer"]

_POLL_S = 0.1  # how often it is looked for processes that have ended, or hang
_MOST_BYTES = 1 << 16  # at once; a request is much shorter
_PAUSE_S = 0.01  # between two looks at a process that is about to end


class Connection(msgspec.Struct, kw_only=True, eq=False):
    """
    A process that asks for turns.

    Attributes:
        process: The process.

        socket: Our end of the connection to it.

        unread: What came of a request that is not complete.

        since_ns: Since when it works on its own [ns].

        place: The test that it asked for last, and what it measures in it.

        fate: Why it was ended; "": it was not.
    """

    process: LiveProcess
    socket: socket.socket
    unread: bytes = b""
    since_ns: int = 0
    place: str = ""
    fate: str = ""


class TurnServer:
    """
    Shares out turns until all processes have ended.

    Args:
        connections: The processes by name, in the order of a round.

        test_ids: The tests, in the order in which each runs them.

        clock: Gives the time.

        timeout_s: How long a process may work without asking for anything [s].
    """

    def __init__(
        self,
        connections: Mapping[str, Connection],
        test_ids: Sequence[str],
        *,
        clock: Clock,
        timeout_s: float,
    ) -> None:
        self._connections = connections
        self._rotation = Rotation(tuple(connections), test_ids)
        self._clock = clock
        self._timeout_s = timeout_s

    def serve(self) -> tuple[str, ...]:
        """
        Share out turns until the last process has ended.

        Returns:
            Which measurements were not made by all processes that were there, a sentence
            each.
        """
        begun_ns = self._clock.now_ns()
        with selectors.DefaultSelector() as selector:
            for name, connection in self._connections.items():
                connection.since_ns = begun_ns
                selector.register(connection.socket, selectors.EVENT_READ, name)
            while self._rotation.present:
                for name, answer in self._rotation.grants():
                    self._answer(name, answer)
                for key, _ in selector.select(_POLL_S):
                    if not self._read(key.data):
                        selector.unregister(key.fileobj)
                        self._wait_for_end(key.data)
                self._end_those_that_hang()
        return tuple(
            f"{', '.join(names)} did not measure {_place(test_id, name)} with the others"
            for test_id, name, names in self._rotation.left_out
        )

    def _answer(self, name: str, answer: bytes) -> None:
        """Let a process go on."""
        connection = self._connections[name]
        connection.since_ns = self._clock.now_ns()
        try:
            connection.socket.sendall(answer)
        except OSError:  # it has died; reading finds out
            return

    def _read(self, name: str) -> bool:
        """Take what a process asks for; return whether it can still ask."""
        connection = self._connections[name]
        try:
            received = connection.socket.recv(_MOST_BYTES)
        except OSError:
            received = b""
        *lines, connection.unread = (connection.unread + received).split(b"\n")
        for line in lines:
            try:
                request = codec.from_text(line, TurnRequest)
            except RecordError:
                self._end(name, "wrote something else than a request to its connection")
                return False
            connection.place = _place(request.test_id, request.name) or connection.place
            self._rotation.ask(name, request)
        return bool(received)

    def _wait_for_end(self, name: str) -> None:
        """Wait until a process that asks for nothing any more is gone."""
        connection = self._connections[name]
        ends_ns = self._clock.now_ns() + self._timeout_s * NS_PER_S
        while connection.process.exit_code is None:
            if self._clock.now_ns() >= ends_ns:
                self._end(name, f"did not end within {self._timeout_s:g} s")
            else:
                self._clock.sleep(_PAUSE_S)
        self._rotation.leave(name)

    def _end_those_that_hang(self) -> None:
        """Leave out processes that have ended, or have not been heard of for too long."""
        now_ns = self._clock.now_ns()
        for name in self._rotation.present:
            connection = self._connections[name]
            silent_s = (now_ns - connection.since_ns) / NS_PER_S
            if connection.process.exit_code is not None:
                self._rotation.leave(name)
            elif name in self._rotation.at_work and silent_s >= self._timeout_s:
                where = f" after {connection.place}" if connection.place else ""
                text = f"was not heard of for {self._timeout_s:g} s{where}"
                self._end(name, text)
                self._rotation.leave(name)

    def _end(self, name: str, reason: str) -> None:
        """End a process, and keep the reason."""
        connection = self._connections[name]
        connection.fate = f"the process {reason}, and was ended"
        connection.process.end()


def _place(test_id: str, name: str) -> str:
    """Return what is measured where, for a sentence; "" where it is not known."""
    if not test_id or not name:
        return test_id
    return f"{name} of {test_id}" if name != TURN_NAME else f"references of {test_id}"
