"""Shares out turns among processes of this run that measure the same tests.

One measurement after another, and one process at a time: each prepares it alone, then all
take samples by turns, then each finishes it alone. Only between two measurements do they
run side by side, for imports and fixtures. Whoever ends is waited for no longer; whoever
does not come to a measurement is waited for at a later one.
"""

from __future__ import annotations

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


__all__ = ["Connection", "Patience", "Rotation", "TurnServer"]

_POLL_S = 0.1  # how often it is looked for processes that have ended, or hang
_MOST_BYTES = 1 << 16  # at once; a request is much shorter
_PAUSE_S = 0.01  # between two looks at a process that is about to end
_LEAST_PATIENCE_S = 60.0  # a revision may need its time where the other side needs none
_PATIENCE_FACTOR = 10.0  # times what the other side took for the same
_LEAST_PATIENCE_AGAIN_S = 10.0  # where another process of its side has hung


class _TurnState(Enum):
    """What a process of a rotation does."""

    FREE = "free"  # works between two measurements, beside others
    RUNNING = "running"  # has the machine alone
    WAITING = "waiting"  # has asked for something
    GONE = "gone"


class _Process(msgspec.Struct, kw_only=True):
    """
    One process.

    Attributes:
        state: What it does.

        stage: What it asked for last.

        key: The measurement that it is in: test and name; of what it asks for to begin,
            too. None: it is in none.

        count: How many measurements of its test it has begun.
    """

    state: _TurnState = _TurnState.FREE
    stage: Stage = Stage.END
    key: tuple[str, str] | None = None
    count: int = 0


class Rotation:
    """
    The turns of some processes.

    Args:
        names: The processes, in the order of a round; the next round is reversed.

        test_ids: The tests, in the order in which each process runs them.

    Attributes:
        left_out: Measurements of a test to which a process did not come that was there,
            and those that did not: (test, name, processes).
    """

    def __init__(self, names: Sequence[str], test_ids: Sequence[str]) -> None:
        self.left_out: list[tuple[str, str, tuple[str, ...]]] = []
        self._place = {test_id: place for place, test_id in enumerate(test_ids)}
        self._processes = {name: _Process() for name in names}
        self._order = list(names)
        self._round: list[str] = []  # who has not had a turn in this round
        self._members: set[str] = set()  # of the measurement that is made now

    def ask(self, name: str, request: TurnRequest) -> None:
        """Note what a process asks for: from now on it waits, or a test of it has begun."""
        process = self._processes[name]
        # what one that is gone has sent comes late
        if process.state is _TurnState.GONE or request.stage is Stage.TEST:
            return
        process.state, process.stage = _TurnState.WAITING, request.stage
        if request.stage is Stage.BEGIN:
            same = process.key is not None and process.key[0] == request.test_id
            before = process.count if same else 0
            process.count = before + (request.name != TURN_NAME)
            process.key = (request.test_id, request.name)

    def close(self, name: str) -> None:
        """Note that a process asks for nothing more: it works until it has ended."""
        process = self._processes[name]
        if process.state is not _TurnState.GONE:
            process.state = _TurnState.FREE
            self._members.discard(name)

    def leave(self, name: str) -> None:
        """Drop a process from the rotation: it has ended."""
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
        """The processes that have been told to go on, or were never stopped."""
        return tuple(
            name
            for name, process in self._processes.items()
            if process.state in {_TurnState.FREE, _TurnState.RUNNING}
        )

    def grants(self) -> Iterator[tuple[str, bytes]]:
        """Yield who may go on, each with the answer that it gets."""
        if self.at_work or not self.present:
            return
        if not self._members:
            self._choose()
        if all(self._stage(name) is Stage.END for name in self._members):
            yield from self._release()
            return
        name, answer = self._next()
        self._processes[name].state = _TurnState.RUNNING
        yield name, answer

    def _choose(self) -> None:
        """Choose the earliest measurement that a process waits for."""
        first = min(self.present, key=self._position)
        key = self._processes[first].key
        self._members = {n for n in self.present if self._processes[n].key == key}
        missing = tuple(n for n in self.present if n not in self._members)
        if key is not None and missing and key[1] != TURN_NAME:
            self.left_out.append((*key, missing))

    def _position(self, name: str) -> tuple[int, int, bool]:
        """
        Return how far a process has come: its test, and its measurement in that.

        References lie between two measurements: a process that has no time left for them
        must not be ahead of one that has.
        """
        process = self._processes[name]
        test_id, part = process.key or ("", "")
        place = self._place.get(test_id, len(self._place))
        return place, process.count, part == TURN_NAME

    def _next(self) -> tuple[str, bytes]:
        """Return the member whose turn it is, with its answer."""
        for stages in ({Stage.BEGIN}, {Stage.TURN, Stage.ENOUGH}, {Stage.ALONE}):
            asking = {n for n in self._members if self._stage(n) in stages}
            if asking:
                enough = all(self._stage(n) is Stage.ENOUGH for n in asking)
                return self._in_turn(asking), OVER if enough else GO
        raise AssertionError("unreachable")

    def _in_turn(self, asking: set[str]) -> str:
        """Return the first of some processes that has not had a turn in this round."""
        if asking.isdisjoint(self._round):
            self._round = list(self._order)
            self._order.reverse()
        name = next(name for name in self._round if name in asking)
        self._round.remove(name)
        return name

    def _release(self) -> Iterator[tuple[str, bytes]]:
        """Let all members go on to what comes between two measurements."""
        for name in sorted(self._members):
            self._processes[name].state = _TurnState.FREE
            yield name, GO
        self._members = set()

    def _stage(self, name: str) -> Stage:
        """Return what a process asked for last."""
        return self._processes[name].stage


Step = TurnRequest  # the last one: what a process does from its answer to the next


class Patience:
    """
    How long a process may be silent: the other side's processes do the same.

    Args:
        timeout_s: The most, and where the other side has not done it yet [s].

    Attributes:
        spent_s: How long processes that hung were waited for [s].
    """

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.spent_s = 0.0
        self._hung: set[tuple[Side, Step]] = set()
        self._test_ids: tuple[str, ...] = ()
        self._taken_s: dict[tuple[Side, Step], float] = {}

    def begin(self, test_ids: Sequence[str]) -> None:
        """
        Forget what other tests took: fixtures that tests share are made by the first.

        Args:
            test_ids: The tests, in the order in which all processes run them.
        """
        if self._test_ids != tuple(test_ids):
            self._test_ids = tuple(test_ids)
            self._taken_s.clear()
            self._hung.clear()

    def note(self, side: Side, step: Step, elapsed_s: float) -> None:
        """Note how long a process of a side took for a step [s]."""
        longest_s = self._taken_s.get((side, step), 0.0)
        self._taken_s[side, step] = max(longest_s, elapsed_s)

    def note_hang(self, side: Side, step: Step, waited_s: float) -> None:
        """
        Note that a process of a side has hung in a step.

        Args:
            side: The side.

            step: What it was at.

            waited_s: How long nothing but such processes was waited for [s].
        """
        self._hung.add((side, step))
        self.spent_s += waited_s

    def with_step(self, side: Side, step: Step) -> tuple[float, str]:
        """Return how long a side has for a step [s], and why, to end a sentence."""
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

        side: Whose files it runs.

        socket: Our end of the connection to it.

        unread: What came of a request that is not complete.

        since_ns: Since when it works on its own [ns].

        step: What it asked for last: what it works at, once it is answered.

        test_id: The test that it runs, or ran last; "": it has come to none.

        ended_tests: Those that it ran before that one.

        is_over: Whether its last test has run.

        is_closed: Whether it can ask for nothing any more.

        fate: Why it was ended; "": it was not.
    """

    process: LiveProcess
    side: Side
    socket: socket.socket
    unread: bytes = b""
    since_ns: int = 0
    step: Step = Step(stage=Stage.END)  # before its first request: it starts
    test_id: str = ""
    ended_tests: list[str] = []
    is_over: bool = False
    is_closed: bool = False
    fate: str = ""

    @property
    def is_outside(self) -> bool:
        """Whether it has come to no test yet, or has run its last one."""
        return self.is_over or not self.test_id

    def begin(self, test_id: str) -> None:
        """Note which test it runs from now on; "": none any more."""
        self.is_over = not test_id
        if self.is_over:
            return
        if self.test_id not in {"", test_id}:
            self.ended_tests.append(self.test_id)
        self.test_id = test_id

    @property
    def where(self) -> str:
        """How far it has come, to follow a verb."""
        if not self.test_id:
            return " before its first test"
        if self.is_over:
            return " after its last test"
        # a test's references are not a measurement that its author knows
        name = "" if self.step.name == TURN_NAME else self.step.name
        if not name:
            return f" in {self.test_id}"
        if self.step.stage is Stage.END:
            return f" in {self.test_id}, after {name}"
        return f" in {_place(self.test_id, name)}"


class TurnServer:
    """
    Shares out turns until all processes have ended.

    Args:
        connections: The processes by name, in the order of a round.

        test_ids: The tests, in the order in which each runs them.

        clock: Gives the time.

        patience: How long a process may work without asking for anything.
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
        self._ended_ns = 0  # when the last process was ended that hung
        patience.begin(test_ids)

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
                heard = selector.select(self._poll_s())
                for key, _ in heard:
                    if not self._read(key.data):
                        selector.unregister(key.fileobj)
                        self._connections[key.data].is_closed = True
                        self._rotation.close(key.data)
                if not heard:  # whoever has asked meanwhile is heard first
                    self._end_those_that_hang()
        return tuple(
            f"{', '.join(names)} did not measure {_place(test_id, name)} with the others"
            for test_id, name, names in self._rotation.left_out
        )

    def _poll_s(self) -> float:
        """Return how long to wait for requests [s]: less while a process is ending."""
        present = (self._connections[name] for name in self._rotation.present)
        return _PAUSE_S if any(c.is_closed for c in present) else _POLL_S

    def _answer(self, name: str, answer: bytes) -> None:
        """Let a process go on."""
        connection = self._connections[name]
        connection.since_ns = self._clock.now_ns()
        try:
            connection.socket.sendall(answer)
        except OSError:  # it has died; reading finds out
            return

    def _read(self, name: str) -> bool:
        """Read what a process asks for; return whether it can still ask."""
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
            self._note(connection, request)
            if request.stage is Stage.TEST:
                connection.begin(request.test_id)
                connection.since_ns = self._clock.now_ns()
            self._rotation.ask(name, request)
        return bool(received)

    def _note(self, connection: Connection, request: TurnRequest) -> None:
        """Note how long a process worked, where all of them do the same until then."""
        step, stage = connection.step, request.stage
        place = self._places.get
        begins = stage in {Stage.TEST, Stage.BEGIN}
        # one that skips a test, or has no time for references, says nothing of the others
        is_next = place(request.test_id, 0) <= place(step.test_id, -1) + 1
        skips = stage is step.stage is Stage.TEST
        if not begins or (is_next and not skips and request.name != TURN_NAME):
            self._patience.note(connection.side, step, self._silent_s(connection))
        connection.step = request if begins else replace(step, stage=stage)

    def _silent_s(self, connection: Connection) -> float:
        """Return how long a process has worked on its own [s]."""
        return (self._clock.now_ns() - connection.since_ns) / NS_PER_S

    def _leave(self, name: str) -> None:
        """Drop a process; note how long its end took, if it ended well."""
        connection = self._connections[name]
        ends_well = (connection.process.exit_code or 0) >= 0 and not connection.fate
        if connection.is_over and ends_well:
            elapsed_s = self._silent_s(connection)
            self._patience.note(connection.side, connection.step, elapsed_s)
        self._rotation.leave(name)

    def _end_those_that_hang(self) -> None:
        """Drop processes that have ended, or were silent for too long."""
        for name in self._rotation.present:
            connection = self._connections[name]
            if connection.process.exit_code is not None:
                self._leave(name)
            elif name in self._rotation.at_work:
                allowed_s, why = self._patience.with_step(
                    connection.side, connection.step
                )
                if self._silent_s(connection) >= allowed_s:
                    did = "was not heard of for"
                    if connection.is_closed:
                        did = "did not end within"
                    text = f"{did} {allowed_s:.3g} s{connection.where}{why}"
                    self._note_hang(connection)
                    self._end(name, text)
                    self._leave(name)

    def _note_hang(self, connection: Connection) -> None:
        """Note that a process hangs; several that hang at once are waited for once."""
        now_ns = self._clock.now_ns()
        waited_ns = now_ns - max(connection.since_ns, self._ended_ns)
        self._ended_ns = now_ns
        self._patience.note_hang(connection.side, connection.step, waited_ns / NS_PER_S)

    def _end(self, name: str, reason: str) -> None:
        """End a process, and keep the reason."""
        connection = self._connections[name]
        connection.fate = f"the process {reason}, and was ended"
        connection.process.end()


def _place(test_id: str, name: str) -> str:
    """Return what is measured where, for a sentence."""
    return f"{name} of {test_id}" if name else test_id
