"""Limits, and verdicts with their reasons and evidence."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from pytest_gpuperf.model.change import Change
from pytest_gpuperf.model.frozen import BulkRecord, Frozen
from pytest_gpuperf.model.mistakes import finite
from pytest_gpuperf.model.record import RecordKey
from pytest_gpuperf.model.sample import Estimate

__all__ = [
    "JUDGED",
    "BaselineSpan",
    "Limit",
    "Operator",
    "Outcome",
    "Reason",
    "Verdict",
]


class Outcome(str, Enum):
    """What was decided."""

    FAILED = "failed"
    REGRESSED = "regressed"
    UNMEASURED = "unmeasured"
    INCONCLUSIVE = "inconclusive"
    INCOMPARABLE = "incomparable"
    NEW = "new"
    IMPROVED = "improved"
    UNCHANGED = "unchanged"
    PASSED = "passed"


JUDGED = frozenset(
    {
        Outcome.PASSED,
        Outcome.FAILED,
        Outcome.REGRESSED,
        Outcome.IMPROVED,
        Outcome.UNCHANGED,
    }
)


class Reason(str, Enum):
    """The stable code of why; each is explained in docs/messages.md."""

    WITHIN_LIMIT = "within-limit"
    BEYOND_LIMIT = "beyond-limit"
    STRADDLES_LIMIT = "straddles-limit"
    ABOVE_THE_ROOF = "above-the-roof"
    NOT_MEASURED = "not-measured"
    CHILD_GAVE_NO_VALUE = "child-gave-no-value"
    NOTHING_STORED = "nothing-stored"
    FINGERPRINT_DIFFERS = "fingerprint-differs"
    OTHER_SOURCE = "other-source"
    VOID = "void"
    TOO_FEW_SESSIONS = "too-few-sessions"
    OTHER_KERNEL = "other-kernel"
    INCOMPLETE_RUN = "incomplete-run"
    SLOWER_THAN_LIMIT = "slower-than-limit"
    FASTER_THAN_LIMIT = "faster-than-limit"
    NOT_CONFIRMED = "not-confirmed"
    NOT_SIGNIFICANT = "not-significant"
    SLOWER_IN_SUITE = "slower-in-suite"
    WITHIN_NOISE = "within-noise"
    EQUAL = "equal"


class BaselineSpan(BulkRecord, frozen=True, kw_only=True):
    """
    The stored sessions behind a change.

    Attributes:
        session_count: How many there are.

        first_unix_s: When the oldest began [s].

        last_unix_s: When the newest began [s].

        first_commit: Its revision; None: not known.

        last_commit: The newest's.

        moved: Soft facts that differ from the newest session's: name to (then, now).
    """

    session_count: int
    first_unix_s: float
    last_unix_s: float
    first_commit: str | None = None
    last_commit: str | None = None
    moved: Mapping[str, tuple[str, str]] = {}

    def __post_init__(self) -> None:
        """Refuse what is not finite."""
        finite("baseline.unix_s", self.first_unix_s, self.last_unix_s)


class Verdict(BulkRecord, frozen=True, kw_only=True):
    """
    One judgement with its evidence; words and units are put on by report.

    Attributes:
        key: The measurement it is about.

        metric: The metric.

        outcome: What was decided.

        reason: Why.

        limit: The limit that was judged; None for a change.

        threshold: The largest change allowed (a fraction); None for a limit, or where a
            change is only shown.

        estimate: The value now; None where there is none.

        low: Lower end of the interval that decided a limit [unit].

        high: Its upper end.

        change: The effect against the baseline.

        confirmations: The effect in each confirming process.

        in_suite: The change that the suite saw, where it is clearly worse than that of
            the fresh processes, which decide; None: it is not, or there were none.

        baseline: The stored sessions.

        detail: What this case adds: facts that differ, a tool's words.

        remedy: What to do about it; "" where there is nothing to do.
    """

    key: RecordKey
    metric: str
    outcome: Outcome
    reason: Reason
    limit: Limit | None = None
    threshold: float | None = None
    estimate: Estimate | None = None
    low: float | None = None
    high: float | None = None
    change: Change | None = None
    confirmations: tuple[float, ...] = ()
    in_suite: Change | None = None
    baseline: BaselineSpan | None = None
    detail: tuple[str, ...] = ()
    remedy: str = ""

    def __post_init__(self) -> None:
        """Refuse what is not finite."""
        finite("verdict.threshold", self.threshold)
        finite("verdict.low", self.low)
        finite("verdict.high", self.high)
        finite("verdict.confirmations", *self.confirmations)

    @property
    def decides(self) -> bool:
        """Whether something was allowed or forbidden; else a change is only shown."""
        only_shown = self.limit is None and self.threshold is None
        return self.change is None or not only_shown


Operator = str  # one of "<=", "<", ">=", ">", "=="; the grammar lets no other through


class Limit(Frozen, frozen=True, kw_only=True):
    """
    One bound on one metric, read from its text.

    Attributes:
        text: The limit as it was written.

        metric: The metric's name.

        operator: One of <=, <, >=, >, ==.

        threshold: The number on the right, in `unit`.

        unit: The SI unit of `threshold`; None where a bare number was written.

        kernel: A pattern of kernel names that it is for; None: the whole record.
    """

    text: str
    metric: str
    operator: Operator
    threshold: float
    unit: str | None
    kernel: str | None = None

    def __post_init__(self) -> None:
        """Refuse a threshold that is not finite."""
        finite("limit.threshold", self.threshold)
