"""The log of a database, which decides what counts."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

import msgspec

from pytest_gpuperf.baseline.tables import original
from pytest_gpuperf.model.frozen import Frozen

if TYPE_CHECKING:
    from pytest_gpuperf.baseline.engine import Engine


class StoreEvent(Frozen, frozen=True, kw_only=True):
    """An entry of the log of a store."""

    arrival: int
    kind: str
    test: int
    session: str
    content: str


class EventLog:
    """The log of some measurements, as far as it decides what counts."""

    def __init__(self, events: Iterable[StoreEvent]) -> None:
        self._hidden: dict[tuple[int, str], str] = {}
        # Session, last session before, number of the session, and metrics.
        self._accepts: dict[int, list[tuple[str, int, int, frozenset[str] | None]]] = {}
        self._contents: dict[int, list[tuple[str, str]]] = {}
        for event in sorted(events, key=lambda event: event.arrival):
            if event.kind == "accept":
                until, accepted, metrics = msgspec.json.decode(event.content)
                named = None if metrics is None else frozenset(metrics)
                entry = (event.session, until, accepted, named)
                self._accepts.setdefault(event.test, []).append(entry)
                at = (event.session, event.content)
                self._contents.setdefault(event.test, []).append(at)
            elif event.kind == "restore":
                self._hidden.pop((event.test, event.session), None)
            else:
                self._hidden[event.test, event.session] = event.kind
        self._by_test: dict[int, set[str]] = {}
        for test, session in self._hidden:
            self._by_test.setdefault(test, set()).add(session)

    def hidden(self, test: int, session: str) -> str:
        """Return "drop" or "remove" for a session that does not count, else ""."""
        return self._hidden.get((test, session), "")

    def hidden_in(self, session: str) -> set[int]:
        """Return the tests of which a session does not count."""
        return {test for test, name in self._hidden if name == session}

    def hides(self, test: int, sessions: Collection[str]) -> bool:
        """Return True if one of some sessions of a test does not count."""
        return not self._by_test.get(test, set()).isdisjoint(sessions)

    def accepts(self, test: int) -> list[tuple[str, str]]:
        """Return the session and the content of each entry that accepted a level."""
        return self._contents.get(test, [])

    def series(self, test: int, metric: str, session: str, arrival: int) -> int:
        """Return the number of times that a metric was accepted before a session."""
        if test not in self._accepts:  # The common case, asked for each value.
            return 0
        return sum(
            (metrics is None or metric in metrics)
            and (arrival > until or session == accepted)
            for accepted, until, _, metrics in self._accepts.get(test, ())
        )

    def start(self, test: int, metric: str) -> int:
        """Return the first session that may count of a metric, as far as it was accepted."""
        return max(
            (
                min(until, accepted)
                for _, until, accepted, metrics in self._accepts.get(test, ())
                if metrics is None or metric in metrics
            ),
            default=0,
        )

    def has_accepts(self, test: int) -> bool:
        """Return True if a metric of a test was accepted."""
        return test in self._accepts

    def accept_count(self, test: int, metric: str) -> int:
        """Return the number of times that a metric was accepted."""
        return sum(
            metrics is None or metric in metrics
            for _, _, _, metrics in self._accepts.get(test, ())
        )

    def removed(self) -> set[tuple[int, str]]:
        """Return the tests and sessions that were set aside."""
        return {at for at, kind in self._hidden.items() if kind == "remove"}


def events_in(engine: Engine, where: str, *arguments: object) -> list[StoreEvent]:
    """
    Return some entries of the log.

    Args:
        engine: The open database.

        where: The end of the statement, in which "e" is an entry.

        arguments: The arguments of the statement.
    """
    rows = engine.rows(
        "SELECT e.arrival, e.kind, e.test, e.session, e.content FROM event e "  # noqa: S608 - no text of a user
        f"{where}",
        *arguments,
    )
    return [
        StoreEvent(arrival=a, kind=k, test=t, session=original(s), content=c)
        for a, k, t, s, c in rows
    ]
