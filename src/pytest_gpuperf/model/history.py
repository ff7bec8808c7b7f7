"""The history of a test's values, with the sessions at which they changed."""

from __future__ import annotations

from enum import Enum

from pytest_gpuperf.model.frozen import BulkRecord, Frozen, finite
from pytest_gpuperf.model.record import RecordKey


class MoveKind(str, Enum):
    """What happened to a series."""

    SLOWER = "slower"  # Worse, also for a metric that is no time.
    FASTER = "faster"  # Better.
    DRIFT = "drift"  # Worse in steps that are too small to be seen.


class HistoryPoint(BulkRecord, frozen=True, kw_only=True):
    """
    The value of one session.

    Attributes:
        session_id: The session.

        started_unix_s: Start of the session [s].

        value: Mean of its processes [the metric's unit].

        commit: Revision of the project, or None if unknown.

        machine: The machine, or None if unknown.

        choice: Hash of the kernels that ran, or None if unknown.

        left_out: Whether the machine had moved, so that the value says nothing of the code.
    """

    session_id: str
    started_unix_s: float
    value: float
    commit: str | None = None
    machine: str | None = None
    choice: str | None = None
    left_out: bool = False

    def __post_init__(self) -> None:
        """Reject numbers that are not finite."""
        finite("point", self.started_unix_s, self.value)


class HistoryMove(Frozen, frozen=True, kw_only=True):
    """
    A lasting change of a series.

    Attributes:
        kind: What happened.

        place: Index of the first point at the new level, or of the last point of a drift.

        first: The earliest point that the change may have (95 %).

        last: The latest such point.

        effect: The change [fraction], positive for more.

        low: Lower end of its 95 % interval.

        high: Upper end of its 95 % interval.

        causes: Facts that changed at the same time, as "python_minor 3.11 -> 3.12".

        ended_at: Index of the point at which the old level came back, or None.
    """

    kind: MoveKind
    place: int
    first: int
    last: int
    effect: float
    low: float
    high: float
    causes: tuple[str, ...] = ()
    ended_at: int | None = None

    def __post_init__(self) -> None:
        """Reject numbers that are not finite."""
        finite("move", self.effect, self.low, self.high)

    @property
    def stands(self) -> bool:
        """True if the series is still worse because of this change."""
        return self.kind is not MoveKind.FASTER and self.ended_at is None


class HistoryMark(Frozen, frozen=True, kw_only=True):
    """
    An event that the series may depend on.

    Attributes:
        place: Index of the first point after it.

        text: What changed, as "python_minor 3.11 -> 3.12", or "accepted".
    """

    place: int
    text: str


class SeriesHistory(Frozen, frozen=True, kw_only=True):
    """
    All stored values of a metric of a test on one kind of machine.

    Attributes:
        key: The measurement.

        metric: The metric.

        unit: Its unit.

        source: The collector of the values.

        kind: The kind of machine.

        points: The values, oldest first.

        moves: The lasting changes, in order.

        marks: Changes of facts, and accepted levels.

        noise: Usual difference between sessions [fraction], or None with too few.
    """

    key: RecordKey
    metric: str
    unit: str
    source: str
    kind: str
    points: tuple[HistoryPoint, ...]
    moves: tuple[HistoryMove, ...] = ()
    marks: tuple[HistoryMark, ...] = ()
    noise: float | None = None


class MovedMachine(Frozen, frozen=True, kw_only=True):
    """
    A machine that got slower, or faster, while the others of its kind did not.

    Attributes:
        kind: The kind of machine.

        machine: The machine.

        since_unix_s: Start of the first session that moved [s].

        effect: The change [fraction].

        session_count: Sessions since then.

        agreeing_count: Tests that moved in this direction.

        test_count: Tests that were measured before and since.

        other_count: Other machines.

        is_sure: Whether this machine moved, and not one of the others.
    """

    kind: str
    machine: str
    since_unix_s: float
    effect: float
    session_count: int
    agreeing_count: int
    test_count: int
    other_count: int
    is_sure: bool


class StoreHistory(Frozen, frozen=True, kw_only=True):
    """
    The history of a store.

    Attributes:
        series: The series, in the order of the tests.

        machines: Machines that moved.
    """

    series: tuple[SeriesHistory, ...]
    machines: tuple[MovedMachine, ...] = ()
