"""Who may run next, of several processes that measure the same tests by turns.

One measurement after another, and one process at a time: each prepares it alone, then all
take samples by turns, then each finishes it alone. Only between two measurements do they
run side by side, for imports and fixtures. Whoever ends is waited for no longer; whoever
does not come to a measurement is waited for at a later one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum

import msgspec

from pytest_gpuperf.measure.references import TURN_NAME
from pytest_gpuperf.measure.turn_client import GO, OVER, Stage, TurnRequest

__all__ = ["Rotation"]


class _State(Enum):
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

    state: _State = _State.FREE
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
        """Take what a process asks for; it waits from now on."""
        process = self._processes[name]
        if process.state is _State.GONE:  # what it sent last comes late
            return
        process.state, process.stage = _State.WAITING, request.stage
        if request.stage is Stage.BEGIN:
            same = process.key is not None and process.key[0] == request.test_id
            before = process.count if same else 0
            process.count = before + (request.name != TURN_NAME)
            process.key = (request.test_id, request.name)

    def leave(self, name: str) -> None:
        """Wait for a process no longer: it has ended."""
        self._processes[name].state = _State.GONE
        self._members.discard(name)

    @property
    def present(self) -> tuple[str, ...]:
        """The processes that have not ended."""
        return tuple(
            n for n, p in self._processes.items() if p.state is not _State.GONE
        )

    @property
    def at_work(self) -> tuple[str, ...]:
        """The processes that have been told to go on, or were never stopped."""
        return tuple(
            name
            for name, process in self._processes.items()
            if process.state in {_State.FREE, _State.RUNNING}
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
        self._processes[name].state = _State.RUNNING
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
            self._processes[name].state = _State.FREE
            yield name, GO
        self._members = set()

    def _stage(self, name: str) -> Stage:
        """Return what a process asked for last."""
        return self._processes[name].stage
