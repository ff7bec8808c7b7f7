"""Limits, and verdicts with reasons and evidence."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from pytest_gpuperf.model.change import AgainstEvidence, Change, KernelAccount
from pytest_gpuperf.model.frozen import BulkRecord, Frozen, finite
from pytest_gpuperf.model.record import RecordKey, Void
from pytest_gpuperf.model.sample import Estimate, Unmeasured


class Outcome(str, Enum):
    """The outcome of a judgement."""

    FAILED = "failed"
    REGRESSED = "regressed"
    UNMEASURED = "unmeasured"
    INCONCLUSIVE = "inconclusive"
    INCOMPARABLE = "incomparable"
    NEW = "new"
    IMPROVED = "improved"
    BLIND = "blind"
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
FAILING = frozenset({Outcome.FAILED, Outcome.REGRESSED})  # Worse than allowed.


class Reason(str, Enum):
    """The stable code of a verdict's reason. docs/messages.md explains each code."""

    WITHIN_LIMIT = "within-limit"
    BEYOND_LIMIT = "beyond-limit"
    STRADDLES_LIMIT = "straddles-limit"
    ABOVE_THE_ROOF = "above-the-roof"
    IN_DOUBT = "in-doubt"
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
    SIDE_WITHOUT_VALUE = "side-without-value"
    TEST_CHANGED = "test-changed"
    SAME_FILES = "same-files"
    TOO_FEW_BLOCKS = "too-few-blocks"
    BLOCKS_DIFFER = "blocks-differ"
    NOT_DETECTABLE = "not-detectable"
    WITHIN_NOISE = "within-noise"
    EQUAL = "equal"


class Cause(str, Enum):
    """The stable code of a special case of a reason that needs another remedy."""

    BEFORE_FIRST_LOOK = "before-first-look"  # Too few blocks for any decision.
    BLOCKS_HOPELESS = "blocks-hopeless"  # More blocks would not decide either.
    BLOCKS_SPENT = "blocks-spent"  # The maximum number of blocks was run.
    BOTH_SIDES = "both-sides"  # Both sides lack a value.
    # The device clock moved. In cycles, the change is within the limit.
    CLOCK_MOVED = "clock-moved"
    ENDED_EARLY = "ended-early"  # The run or the loop ended early.
    # More stored sessions are planned, and would show more.
    FEW_SESSIONS = "few-sessions"
    # The two sides chose different kernels in every process.
    KERNEL_PER_SIDE = "kernel-per-side"
    LOOKED_BETTER = "looked-better"  # An improvement is not confirmed yet.
    # Measured on a machine other than that of the fresh processes.
    MEASURED_ELSEWHERE = "measured-elsewhere"
    NEVER_TOGETHER = "never-together"  # No block has values of both sides.
    NEW_SIDE = "new-side"  # The working tree lacks a value.
    NOISY_MACHINE = "noisy-machine"  # Too noisy for a stored baseline.
    # The hardware's limits for a unit of work are unknown.
    NO_HARDWARE = "no-hardware"
    NOTHING_TIMED = "nothing-timed"
    NOT_REACHED = "not-reached"  # Its processes were ended in an earlier test.
    NOTHING_USABLE = "nothing-usable"  # Fresh processes gave no value that counts.
    OF_A_LOOP = "of-a-loop"  # The limit is for the grade of a loop.
    OF_NOTHING = "of-nothing"  # The mean of the stored values is 0.
    OLD_SIDE = "old-side"  # The revision lacks a value.
    # One process gave the value. More processes would show more.
    ONE_PROCESS = "one-process"
    # The test alone gives other values than in the suite.
    OTHER_ALONE = "other-alone"
    OTHER_LAUNCHER = "other-launcher"  # No process can be started like the suite.
    OTHER_MACHINE = "other-machine"  # Only another machine has stored sessions.
    SAME_COMMIT = "same-commit"  # A small change without a change of a file.
    SEEN_BEFORE = "seen-before"  # Stored sessions were as slow.
    SHARED_MOVE = "shared-move"  # Most tests of its class moved alike.
    SHORT_LOOP = "short-loop"  # A loop with few steps.
    STILL_STRADDLES = "still-straddles"  # Also in fresh processes.
    # Only with the part of a time by events that may be the host's launch.
    STRADDLES_LAUNCH = "straddles-launch"
    STOPPED = "stopped"  # A comparison, by Ctrl-C or an error.


class Origin(str, Enum):
    """Where a worsening likely comes from."""

    CODE = "code"
    METHOD = "method"  # The test, its settings, or packages.
    MACHINE = "machine"
    NOISE = "noise"


class Clue(str, Enum):
    """The stable code of the evidence for an origin."""

    CLOCK = "clock"  # The device clock moved.
    DATA_OR_SHAPE = "data-or-shape"  # Of kernels with the same code.
    EXACT = "exact"  # A number that no machine changes.
    MACHINE_CODE = "machine-code"  # The machine code of the kernels changed.
    NOISY_MACHINE = "noisy-machine"
    NOT_REPEATED = "not-repeated"  # Fresh processes do not confirm it.
    OTHER_BOARD = "other-board"  # A slower GPU of the same kind.
    OTHER_COMMIT = "other-commit"  # Nothing else that is recorded differs.
    OTHER_FILES = "other-files"  # Both trees were measured side by side.
    SAME_COMMIT = "same-commit"  # No file differs.
    SAME_MACHINE_CODE = "same-machine-code"
    SAME_ON_BOTH_SIDES = "same-on-both-sides"  # The machine code of two trees.
    SEEN_BEFORE = "seen-before"  # Stored sessions were as slow.
    SETTINGS = "settings"  # Packages, threads or workers differ.
    SHARED_MOVE = "shared-move"  # Most tests of the class moved alike.
    TEST_CHANGED = "test-changed"
    WITHIN_NULL = "within-null"  # Processes of one side differ as much.
    WITHIN_SPREAD = "within-spread"  # Stored sessions differ as much.


class OriginEvidence(BulkRecord, frozen=True, kw_only=True):
    """
    The likely origin of a worsening, also of one that was corrected, with its evidence.

    Attributes:
        origin: The origin.

        clue: The evidence.

        names: The recorded facts that differ, if these are the evidence.
    """

    origin: Origin
    clue: Clue
    names: tuple[str, ...] = ()


class FailedComparison(NamedTuple):
    """
    A failed comparison with a value of a record.

    Attributes:
        metric: Metric of the value.

        operator: Operator of the comparison, as "<=". The value is on its left.

        kernel: A pattern of kernel names, or None for the whole record.
    """

    metric: str
    operator: str
    kernel: str | None = None


class KernelChoice(BulkRecord, frozen=True, kw_only=True):
    """
    The kernels that most sessions, or most processes, ran.

    Attributes:
        choice: Hash of the kernels, or None if unknown.

        count: Number of sessions or processes that ran these kernels.

        total_count: Number of all sessions or processes.

        names: Names of the kernels, most time first, or empty if unknown.
    """

    choice: str | None
    count: int
    total_count: int
    names: tuple[str, ...] = ()


class LeftOut(BulkRecord, frozen=True, kw_only=True):
    """
    A stored value that does not match the other sessions of the test.

    Attributes:
        session_id: Session of the value.

        started_unix_s: Start of that session [s].

        ratio: The value over the mean of the others, or None if that mean is 0.
    """

    session_id: str
    started_unix_s: float
    ratio: float | None

    def __post_init__(self) -> None:
        """Reject numbers that are not finite."""
        finite("left_out", self.started_unix_s, self.ratio)


class SeenValue(BulkRecord, frozen=True, kw_only=True):
    """
    A stored value close to the current value, or beyond it.

    Attributes:
        session_id: Session of the value.

        started_unix_s: Start of that session [s].

        value: The value [the metric's unit].

        alone: True for a value of the test alone, in fresh processes.
    """

    session_id: str
    started_unix_s: float
    value: float
    alone: bool = False

    def __post_init__(self) -> None:
        """Reject numbers that are not finite."""
        finite("seen", self.started_unix_s, self.value)


class VerdictEvidence(BulkRecord, frozen=True, kw_only=True):
    """
    Evidence other than numbers. `report` turns it into text.

    Attributes:
        gap: Why there is no value, or why it is void, in the words of its origin.

        lines: Quoted text: the end of a test that failed in a fresh process.

        voids: Why values of fresh processes are left out. In files of earlier versions,
            this is in `lines`.

        lacking: Values that fresh processes could not measure.

        differences: Hard facts that differ from all stored sessions, or from the fresh
            processes that are left out, as name to (then, now).

        stored_sources: Sources of the stored sessions, if none is the current source.

        kernels: Kernels of most stored sessions, and kernels of most current processes.

        account: Time of each kernel then and now. None if unknown, or if the change is
            not a device time.

        least_count: Required number of stored sessions, steps of a loop, or blocks.

        grade: The lowest accepted grade, if there was no grade to compare, else "".

        building: Number of stored sessions of the measurement including this one, and
            the planned number. None if its baseline is not being built.

        left_out: The stored value excluded from the comparison, or None.

        ended_in: The earlier test in which the processes that did not reach this test
            were ended, or "".

        machines: The other machines or GPUs, if only they have stored sessions.

        alike: Stored sessions that were as slow, or as fast, as the current value.

        ran: Number of tests in this run, and the largest number in the stored sessions,
            if they differ so much that values of the test do not compare. None if they
            are alike.

        launches: Launches behind a total of a captured report: the mean of the stored
            sessions, and the number now. None if they are equal or unknown.
    """

    gap: Unmeasured | None = None
    lines: tuple[str, ...] = ()
    voids: tuple[Void, ...] = ()
    lacking: tuple[Unmeasured, ...] = ()
    differences: Mapping[str, tuple[str, str]] = {}
    stored_sources: tuple[str, ...] = ()
    kernels: tuple[KernelChoice, KernelChoice] | None = None
    account: KernelAccount | None = None
    least_count: int = 0
    grade: str = ""
    building: tuple[int, int] | None = None
    left_out: LeftOut | None = None
    ended_in: str = ""
    machines: tuple[str, ...] = ()
    alike: tuple[SeenValue, ...] = ()
    ran: tuple[int, int] | None = None
    launches: tuple[float, float] | None = None


class BaselineSpan(BulkRecord, frozen=True, kw_only=True):
    """
    The stored sessions behind a change.

    Attributes:
        session_count: Number of sessions.

        first_unix_s: Start of the oldest session [s].

        last_unix_s: Start of the newest session [s].

        first_commit: Revision of the oldest session, or None if unknown.

        last_commit: Revision of the newest session, or None if unknown.

        moved: Soft facts that differ from the newest session's, as name to (then, now).

        alone_count: Number of sessions that also measured the test alone.

        of_suite: Whether these sessions ran more tests, so that a run of this test
            alone does not compare.
    """

    session_count: int
    first_unix_s: float
    last_unix_s: float
    first_commit: str | None = None
    last_commit: str | None = None
    moved: Mapping[str, tuple[str, str]] = {}
    alone_count: int = 0
    of_suite: bool = False

    def __post_init__(self) -> None:
        """Reject numbers that are not finite."""
        finite("baseline.unix_s", self.first_unix_s, self.last_unix_s)


class NextCommand(BulkRecord, frozen=True, kw_only=True):
    """
    A command to type after a verdict, in the folder where pytest was started.

    Attributes:
        kind: `reproduce` to measure and judge this test again, or `accept` to store the
            measured values as the baseline.

        argv: Program and arguments, not quoted.
    """

    kind: str
    argv: tuple[str, ...]


class Verdict(BulkRecord, frozen=True, kw_only=True):
    """
    A judgement with its evidence. `report` adds words and units.

    `judge` leaves `detail` and `remedy` empty, and `report` fills them in.

    Attributes:
        key: The measurement.

        metric: The metric.

        outcome: The outcome.

        reason: The reason.

        cause: The special case of the reason, or None for the only or the usual case.

        limit: The limit that was judged, or None for a change.

        threshold: The largest change allowed (a fraction). None for a limit, or if a
            change is only shown.

        default_limit: Whether `threshold` is the plugin's default, because neither a
            marker nor an option sets one.

        estimate: The current value, or None.

        low: Lower end of the interval that decided a limit [unit].

        high: Upper end of that interval.

        assumed: Whether the interval is the usual one of such a metric, because there
            are fewer than 3 stored sessions to estimate the spread from.

        change: The effect against the baseline.

        confirmations: The effect in each confirming process, corrected for machine
            drift and for the known difference between the test alone and the suite.

        alone: The change in fresh processes alone, if it leads to another decision than
            together with the suite's value. Otherwise, or without fresh processes,
            None.

        in_suite: The change in the suite, if it is clearly worse than in fresh
            processes, which decide. Otherwise, or without fresh processes, None.

        baseline: The stored sessions.

        evidence: Evidence other than numbers, or None.

        against: The blocks that decided a comparison with a revision, or None.

        origin: Where a worsening likely comes from. None if the evidence does not show
            it.

        detail: The evidence in words, as lines.

        remedy: The remedy, or "" if nothing needs to be done.

        sentence: The reason in words. "" if the test passed, and before reporting.

        commands: Commands to type next. Empty if the test passed, and before reporting.

        typed: The test as an argument, from the folder in which pytest was started, or
            "" if equal to the id, from pytest's root folder.
    """

    key: RecordKey
    metric: str
    outcome: Outcome
    reason: Reason
    cause: Cause | None = None
    limit: Limit | None = None
    threshold: float | None = None
    default_limit: bool = False
    estimate: Estimate | None = None
    low: float | None = None
    high: float | None = None
    assumed: bool = False
    change: Change | None = None
    confirmations: tuple[float, ...] = ()
    alone: Change | None = None
    in_suite: Change | None = None
    baseline: BaselineSpan | None = None
    evidence: VerdictEvidence | None = None
    against: AgainstEvidence | None = None
    origin: OriginEvidence | None = None
    detail: tuple[str, ...] = ()
    remedy: str = ""
    sentence: str = ""
    commands: tuple[NextCommand, ...] = ()
    typed: str = ""

    def __post_init__(self) -> None:
        """Reject numbers that are not finite."""
        if self.threshold is not None:
            finite("verdict.threshold", self.threshold)
        if self.low is not None or self.high is not None:  # Only for limits.
            finite("verdict.low", self.low)
            finite("verdict.high", self.high)
        if self.confirmations:
            finite("verdict.confirmations", *self.confirmations)

    @property
    def decides(self) -> bool:
        """
        True if the verdict has a limit or an allowed change. Otherwise, a change is
        only shown.
        """
        only_shown = self.limit is None and self.threshold is None
        return self.change is None or not only_shown

    @property
    def of_revision(self) -> bool:
        """True if the verdict is about a revision only, not about a stored baseline."""
        return self.against is not None and self.baseline is None


# One of "<=", "<", ">=", ">", "==", as the grammar ensures.
Operator = str


class Limit(Frozen, frozen=True, kw_only=True):
    """
    A bound on a metric, read from its text.

    Attributes:
        text: The limit as it was written.

        metric: Name of the metric.

        operator: One of <=, <, >=, >, ==.

        threshold: The number on the right, in `unit`.

        unit: SI unit of `threshold`, or None if a bare number was written.

        kernel: A pattern of kernel names, or None for the whole record.
    """

    text: str
    metric: str
    operator: Operator
    threshold: float
    unit: str | None
    kernel: str | None = None

    def __post_init__(self) -> None:
        """Reject a threshold that is not finite."""
        finite("limit.threshold", self.threshold)
