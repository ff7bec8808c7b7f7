"""Give turns to processes of a run that measure the same tests.

Measurements follow one another, and only one process works at a time. Each process prepares
a measurement alone, then all take samples in alternation, then each finishes alone. The
processes run concurrently only between two measurements, for imports and fixtures. A
process that has ended is not waited for. A process that does not reach a measurement is
waited for at a later measurement.
"""

from __future__ import annotations

import contextlib
import selectors
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING

import msgspec

from pytest_gpuperf.collect.clock import NS_PER_S
from pytest_gpuperf.errors import RecordError
from pytest_gpuperf.measure.references import TURN_NAME
from pytest_gpuperf.measure.turns import GO, OVER, Stage, TurnRequest
from pytest_gpuperf.model import codec
from pytest_gpuperf.model.change import Side
from pytest_gpuperf.model.frozen import replace

if TYPE_CHECKING:
    import socket

    from pytest_gpuperf.collect.clock import Clock
    from pytest_gpuperf.collect.runner import LiveProcess


# The interval of checks for ended or hanging processes.
_POLL_S = 0.1
# Bytes per read. A request is much shorter.
_MOST_BYTES = 1 << 16
# The interval of checks while a process is about to end.
_PAUSE_S = 0.01
# The shortest limit, because a step may be slow on only one side.
_LEAST_PATIENCE_S = 60.0
# In durations of the same step on the other side.
_PATIENCE_FACTOR = 10.0
# The shortest limit if another process of the side has hung in the step.
_LEAST_PATIENCE_AGAIN_S = 10.0


class _TurnState(Enum):
    """The state of a process in a rotation."""

    FREE = "free"  # Works between two measurements, at the same time as others.
    RUNNING = "running"  # Has the machine alone.
    WAITING = "waiting"  # Has sent a request.
    GONE = "gone"


class _Process(msgspec.Struct, kw_only=True):
    """
    A process of a rotation.

    Attributes:
        state: The current state.

        stage: The stage requested last.

        key: The current measurement, as test and name, or the measurement the process
            asks to begin. None outside of measurements.

        count: Number of measurements of the test that the process has begun.
    """

    state: _TurnState = _TurnState.FREE
    stage: Stage = Stage.END
    key: tuple[str, str] | None = None
    count: int = 0


class Rotation:
    """
    The turns of some processes.

    Args:
        names: The processes, in the order of a round. The next round is reversed.

        test_ids: The tests, in the order in which each process runs them.

    Attributes:
        left_out: Measurements not reached by all processes that were present, as (test,
            name, missing processes).
    """

    def __init__(self, names: Sequence[str], test_ids: Sequence[str]) -> None:
        self.left_out: list[tuple[str, str, tuple[str, ...]]] = []
        self._place = {test_id: place for place, test_id in enumerate(test_ids)}
        self._processes = {name: _Process() for name in names}
        self._order = list(names)
        # The processes without a turn in this round.
        self._round: list[str] = []
        # The processes in the current measurement.
        self._members: set[str] = set()

    def ask(self, name: str, request: TurnRequest) -> None:
        """
        Record a request, after which the process waits for its turn.

        The announcement of a test does not make a process wait.
        """
        process = self._processes[name]
        # Late requests of a process that is gone are ignored.
        if process.state is _TurnState.GONE or request.stage is Stage.TEST:
            return
        process.state, process.stage = _TurnState.WAITING, request.stage
        if request.stage is Stage.BEGIN:
            same = process.key is not None and process.key[0] == request.test_id
            before = process.count if same else 0
            process.count = before + (request.name != TURN_NAME)
            process.key = (request.test_id, request.name)

    def close(self, name: str) -> None:
        """Note that a process sends no more requests and works until the end."""
        process = self._processes[name]
        if process.state is not _TurnState.GONE:
            process.state = _TurnState.FREE
            self._members.discard(name)

    def leave(self, name: str) -> None:
        """Drop a process that has ended from the rotation."""
        self._processes[name].state = _TurnState.GONE
        self._members.discard(name)

    @property
    def present(self) -> tuple[str, ...]:
        """The processes that have not ended."""
        return tuple(
            n for n, p in self._processes.items() if p.state is not _TurnState.GONE
        )

    @property
    def at_work(self) -> tuple[str, ...]:
        """The processes that are working, after an answer or before their first request."""
        return tuple(
            name
            for name, process in self._processes.items()
            if process.state in {_TurnState.FREE, _TurnState.RUNNING}
        )

    def grants(self) -> Iterator[tuple[str, bytes]]:
        """Yield the processes that may go on, with the answers to send."""
        if self.at_work or not self.present:
            return
        if not self._members:
            first = min(self.present, key=self._position)
            key = self._processes[first].key
            self._members = {n for n in self.present if self._processes[n].key == key}
            missing = tuple(n for n in self.present if n not in self._members)
            if key is not None and missing and key[1] != TURN_NAME:
                self.left_out.append((*key, missing))
        if all(self._stage(name) is Stage.END for name in self._members):
            for name in sorted(self._members):
                self._processes[name].state = _TurnState.FREE
                yield name, GO
            self._members = set()
            return
        name, answer = self._next()
        self._processes[name].state = _TurnState.RUNNING
        yield name, answer

    def _position(self, name: str) -> tuple[int, int, bool]:
        """
        Return the progress of a process: the index of the test and of the measurement in it.

        References run between two measurements. A process without time left for
        references must not be ahead of a process that has some.
        """
        process = self._processes[name]
        test_id, part = process.key or ("", "")
        place = self._place.get(test_id, len(self._place))
        return place, process.count, part == TURN_NAME

    def _next(self) -> tuple[str, bytes]:
        for stages in ({Stage.BEGIN}, {Stage.TURN, Stage.ENOUGH}, {Stage.ALONE}):
            asking = {n for n in self._members if self._stage(n) in stages}
            if not asking:
                continue
            enough = all(self._stage(n) is Stage.ENOUGH for n in asking)
            if asking.isdisjoint(self._round):
                self._round = list(self._order)
                self._order.reverse()
            name = next(name for name in self._round if name in asking)
            self._round.remove(name)
            return name, OVER if enough else GO
        raise AssertionError("unreachable")

    def _stage(self, name: str) -> Stage:
        return self._processes[name].stage


# A step is the work of a process between the answer to a request and the next request.
Step = TurnRequest


class Patience:
    """
    The time limits of silent processes, derived from the same steps on the other side.

    Args:
        timeout_s: The largest limit, also used if the other side has not done the step
            yet [s].

    Attributes:
        spent_s: Total time spent waiting for hanging processes [s].
    """

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.spent_s = 0.0
        self._hung: set[tuple[Side, Step]] = set()
        self._test_ids: tuple[str, ...] = ()
        self._taken_s: dict[tuple[Side, Step], float] = {}

    def begin(self, test_ids: Sequence[str]) -> None:
        """
        Forget the durations of other tests, because the first test creates shared fixtures.

        Args:
            test_ids: The tests, in the order in which all processes run them.
        """
        if self._test_ids != tuple(test_ids):
            self._test_ids = tuple(test_ids)
            self._taken_s.clear()
            self._hung.clear()

    def note(self, side: Side, step: Step, elapsed_s: float) -> None:
        """Note the duration of a step on a side [s]."""
        longest_s = self._taken_s.get((side, step), 0.0)
        self._taken_s[side, step] = max(longest_s, elapsed_s)

    def note_hang(self, side: Side, step: Step, waited_s: float) -> None:
        """
        Note that a process of a side hangs in a step.

        Args:
            side: The side.

            step: The step.

            waited_s: Time spent waiting for nothing but hanging processes [s].
        """
        self._hung.add((side, step))
        self.spent_s += waited_s

    def with_step(self, side: Side, step: Step) -> tuple[float, str]:
        """
        Return the time limit of a step on a side [s], and the reason to end a sentence, or "".
        """
        other = Side.NEW if side is Side.OLD else Side.OLD
        taken_s = self._taken_s.get((other, step))
        if taken_s is None:
            hangs = any(hung_step == step for _, hung_step in self._hung)
            most_s = _LEAST_PATIENCE_S if hangs else self.timeout_s
            return min(most_s, self.timeout_s), ""
        least_s = _LEAST_PATIENCE_S
        if (side, step) in self._hung:
            least_s = _LEAST_PATIENCE_AGAIN_S
        allowed_s = least_s + _PATIENCE_FACTOR * taken_s
        if allowed_s >= self.timeout_s:
            return self.timeout_s, ""
        return allowed_s, f", where the {other.value} side took {taken_s:.2g} s"


class Connection(msgspec.Struct, kw_only=True, eq=False):
    """
    A process that asks for turns.

    Attributes:
        process: The process.

        side: The side of the process.

        socket: Our end of the connection.

        unread: The received part of an incomplete request.

        since_ns: Start of the current work [ns].

        step: The last request, which is also the current work once answered.

        test_id: The current or last test, or "" before the first test.

        ended_tests: The tests that ended before `test_id`.

        is_over: True if the last test has run.

        is_closed: True if the process can send no more requests.

        fate: The reason for ending the process, or "".
    """

    process: LiveProcess
    side: Side
    socket: socket.socket
    unread: bytes = b""
    since_ns: int = 0
    step: Step = Step(stage=Stage.END)  # Starting, before the first request.
    test_id: str = ""
    ended_tests: list[str] = []
    is_over: bool = False
    is_closed: bool = False
    fate: str = ""

    @property
    def is_outside(self) -> bool:
        """True before the first test and after the last test."""
        return self.is_over or not self.test_id

    def begin(self, test_id: str) -> None:
        """Note the start of a test, or "" after the last test."""
        self.is_over = not test_id
        if self.is_over:
            return
        if self.test_id not in {"", test_id}:
            self.ended_tests.append(self.test_id)
        self.test_id = test_id

    @property
    def where(self) -> str:
        """The progress of the process, to follow a verb."""
        if not self.test_id:
            return " before its first test"
        if self.is_over:
            return " after its last test"
        # The author of a test does not know the reference workloads.
        name = "" if self.step.name == TURN_NAME else self.step.name
        if not name:
            return f" in {self.test_id}"
        if self.step.stage is Stage.END:
            return f" in {self.test_id}, after {name}"
        return f" in {_place(self.test_id, name)}"


class TurnServer:
    """
    Give turns until all processes have ended.

    Args:
        connections: The processes by name, in the order of a round.

        test_ids: The tests, in the order in which each process runs them.

        clock: The clock.

        patience: The time limits of silent processes.
    """

    def __init__(
        self,
        connections: Mapping[str, Connection],
        test_ids: Sequence[str],
        *,
        clock: Clock,
        patience: Patience,
    ) -> None:
        self._connections = connections
        self._rotation = Rotation(tuple(connections), test_ids)
        self._places = {test_id: place for place, test_id in enumerate(test_ids)}
        self._clock = clock
        self._patience = patience
        # The time at which the last hanging process was ended.
        self._ended_ns = 0
        patience.begin(test_ids)

    def serve(self) -> tuple[str, ...]:
        """
        Give turns until the last process has ended.

        Returns:
            A sentence for each measurement that was not made by all present processes.
        """
        begun_ns = self._clock.now_ns()
        with selectors.DefaultSelector() as selector:
            for name, connection in self._connections.items():
                connection.since_ns = begun_ns
                selector.register(connection.socket, selectors.EVENT_READ, name)
            while self._rotation.present:
                for name, answer in self._rotation.grants():
                    connection = self._connections[name]
                    connection.since_ns = self._clock.now_ns()
                    # The next read detects a process that has died.
                    with contextlib.suppress(OSError):
                        connection.socket.sendall(answer)
                present = map(self._connections.__getitem__, self._rotation.present)
                # The end of a process is not announced by a request.
                is_ending = any(connection.is_closed for connection in present)
                heard = selector.select(_PAUSE_S if is_ending else _POLL_S)
                for key, _ in heard:
                    if not self._read(key.data):
                        selector.unregister(key.fileobj)
                        self._connections[key.data].is_closed = True
                        self._rotation.close(key.data)
                # Pending requests are read before processes are declared hanging.
                if not heard:
                    self._end_those_that_hang()
        return tuple(
            f"{', '.join(names)} did not measure {_place(test_id, name)} with the others"
            for test_id, name, names in self._rotation.left_out
        )

    def _read(self, name: str) -> bool:
        """Read the requests of a process, and return False if no more can arrive."""
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
                self._end(name, "sent an invalid request")
                return False
            self._note(connection, request)
            if request.stage is Stage.TEST:
                connection.begin(request.test_id)
                connection.since_ns = self._clock.now_ns()
            self._rotation.ask(name, request)
        return bool(received)

    def _note(self, connection: Connection, request: TurnRequest) -> None:
        """Note the duration of a step, if all processes do the same work until then."""
        step, stage = connection.step, request.stage
        place = self._places.get
        begins = stage in {Stage.TEST, Stage.BEGIN}
        # A process that skips a test or has no time for references gives no limit for others.
        is_next = place(request.test_id, 0) <= place(step.test_id, -1) + 1
        skips = stage is step.stage is Stage.TEST
        if not begins or (is_next and not skips and request.name != TURN_NAME):
            self._patience.note(connection.side, step, self._silent_s(connection))
        connection.step = request if begins else replace(step, stage=stage)

    def _silent_s(self, connection: Connection) -> float:
        return (self._clock.now_ns() - connection.since_ns) / NS_PER_S

    def _leave(self, name: str) -> None:
        connection = self._connections[name]
        ends_well = (connection.process.exit_code or 0) >= 0 and not connection.fate
        if connection.is_over and ends_well:
            elapsed_s = self._silent_s(connection)
            self._patience.note(connection.side, connection.step, elapsed_s)
        self._rotation.leave(name)

    def _end_those_that_hang(self) -> None:
        for name in self._rotation.present:
            connection = self._connections[name]
            if connection.process.exit_code is not None:
                self._leave(name)
                continue
            if name not in self._rotation.at_work:
                continue
            side, step = connection.side, connection.step
            allowed_s, why = self._patience.with_step(side, step)
            if self._silent_s(connection) < allowed_s:
                continue
            did = "did not end within" if connection.is_closed else "sent nothing for"
            text = f"{did} {allowed_s:.3g} s{connection.where}{why}"
            # Processes that hang at the same time are counted once.
            now_ns = self._clock.now_ns()
            waited_ns = now_ns - max(connection.since_ns, self._ended_ns)
            self._ended_ns = now_ns
            self._patience.note_hang(side, step, waited_ns / NS_PER_S)
            self._end(name, text)
            self._leave(name)

    def _end(self, name: str, reason: str) -> None:
        connection = self._connections[name]
        connection.fate = f"the process {reason}, and was ended"
        connection.process.end()


def _place(test_id: str, name: str) -> str:
    return f"{name} of {test_id}" if name else test_id
