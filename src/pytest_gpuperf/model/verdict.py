"""Limits, and verdicts with their reasons and evidence."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from pytest_gpuperf.model.change import AgainstEvidence, Change, KernelAccount
from pytest_gpuperf.model.frozen import BulkRecord, Frozen, finite
from pytest_gpuperf.model.record import RecordKey, Void
from pytest_gpuperf.model.sample import Estimate, Unmeasured

__all__ = [
    "FAILING",
    "JUDGED",
    "BaselineSpan",
    "Cause",
    "KernelChoice",
    "LeftOut",
    "Limit",
    "NextCommand",
    "Operator",
    "Outcome",
    "Reason",
    "SeenValue",
    "Verdict",
    "VerdictEvidence",
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
FAILING = frozenset({Outcome.FAILED, Outcome.REGRESSED})  # worse than was allowed


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
    SIDE_WITHOUT_VALUE = "side-without-value"
    TEST_CHANGED = "test-changed"
    SAME_FILES = "same-files"
    TOO_FEW_BLOCKS = "too-few-blocks"
    BLOCKS_DIFFER = "blocks-differ"
    NOT_DETECTABLE = "not-detectable"
    WITHIN_NOISE = "within-noise"
    EQUAL = "equal"


class Cause(str, Enum):
    """The stable code of a case of a reason, where another thing is to be done."""

    BEFORE_FIRST_LOOK = "before-first-look"  # there are too few blocks for any decision
    BLOCKS_HOPELESS = "blocks-hopeless"  # more of them would not decide either
    BLOCKS_SPENT = "blocks-spent"  # as many as there ever are
    BOTH_SIDES = "both-sides"  # it is without a value on
    CLOCK_MOVED = (
        "clock-moved"  # the device's; in cycles the change is within the limit
    )
    ENDED_EARLY = "ended-early"  # the run, or the loop, did not come to its end
    FEW_SESSIONS = "few-sessions"  # more of them are wanted, and would show more
    KERNEL_PER_SIDE = "kernel-per-side"  # which each of its processes chose
    LOOKED_BETTER = "looked-better"  # an improvement waits for its confirmation
    MEASURED_ELSEWHERE = "measured-elsewhere"  # than where fresh processes run
    NEVER_TOGETHER = "never-together"  # no block has a value of both sides
    NEW_SIDE = "new-side"  # the working tree is without a value
    NOISY_MACHINE = "noisy-machine"  # too noisy for a stored baseline
    NO_HARDWARE = "no-hardware"  # what it could do for a unit of work is not known
    NOTHING_TIMED = "nothing-timed"
    NOT_REACHED = "not-reached"  # its processes were ended in an earlier test
    NOTHING_USABLE = "nothing-usable"  # fresh processes gave no value that counts
    OF_A_LOOP = "of-a-loop"  # the limit is of a loop's grade
    OF_NOTHING = "of-nothing"  # the stored values are 0 in the mean
    OLD_SIDE = "old-side"  # the revision is without a value
    ONE_PROCESS = "one-process"  # gave the value, and more of them would show more
    OTHER_ALONE = "other-alone"  # the test, than in the suite
    OTHER_LAUNCHER = "other-launcher"  # no process can be started as the suite was
    OTHER_MACHINE = "other-machine"  # which alone has stored sessions
    SEEN_BEFORE = "seen-before"  # stored sessions were as slow
    SHARED_MOVE = "shared-move"  # most tests of its class moved alike
    SHORT_LOOP = "short-loop"  # a loop of few steps
    STILL_STRADDLES = "still-straddles"  # in fresh processes, too
    STOPPED = "stopped"  # a comparison, by Ctrl-C or by what failed


class FailedComparison(NamedTuple):
    """
    A comparison that a value of a record failed.

    Attributes:
        metric: The value's metric.

        operator: What it was held by, as "<="; the value is on its left.

        kernel: A pattern of the kernels that it is of; None: the whole record.
    """

    metric: str
    operator: str
    kernel: str | None = None


class KernelChoice(BulkRecord, frozen=True, kw_only=True):
    """
    The kernels that most sessions, or processes, ran.

    Attributes:
        choice: Their hash; None: not known.

        count: How many ran them.

        total_count: How many there are.

        names: What they are called, most time first; empty: not known.
    """

    choice: str | None
    count: int
    total_count: int
    names: tuple[str, ...] = ()


class LeftOut(BulkRecord, frozen=True, kw_only=True):
    """
    A stored value that does not fit the test's other sessions.

    Attributes:
        session_id: The session that it is of.

        started_unix_s: When that began [s].

        ratio: The value over the mean of the others; None: they are 0.
    """

    session_id: str
    started_unix_s: float
    ratio: float | None

    def __post_init__(self) -> None:
        """Refuse what is not finite."""
        finite("left_out", self.started_unix_s, self.ratio)


class SeenValue(BulkRecord, frozen=True, kw_only=True):
    """
    A stored value that is near a value of now, or beyond it.

    Attributes:
        session_id: The session that it is of.

        started_unix_s: When that began [s].

        value: The value [the metric's unit].

        alone: True for a value of the test alone, in fresh processes.
    """

    session_id: str
    started_unix_s: float
    value: float
    alone: bool = False

    def __post_init__(self) -> None:
        """Refuse what is not finite."""
        finite("seen", self.started_unix_s, self.value)


class VerdictEvidence(BulkRecord, frozen=True, kw_only=True):
    """
    What decided besides numbers; report puts it into words.

    Attributes:
        gap: Why there is no value, or why it is void, as the one says who knew it.

        lines: What others wrote: the end of a test that failed in a fresh process.

        voids: Why values of fresh processes are left out; in files of earlier versions
            it stands in `lines`.

        lacking: What fresh processes could not measure.

        differences: Hard facts on which all stored sessions differ, or the fresh
            processes that are left out: name to (then, now).

        stored_sources: Sources of the stored sessions, where none is now's.

        kernels: What most stored sessions ran, and what most processes run now.

        account: What each of the kernels took then and now; None: not known, or it is no
            device's time that changed.

        least_count: Stored sessions, steps of a loop, or blocks, that it takes.

        grade: The least grade that nothing could be held against; "": none.

        building: How many sessions of the measurement are stored, this one too, and how
            many are wanted; None: its baseline is not being built.

        left_out: The stored value that the change was judged without; None: there is
            none.

        ended_in: The earlier test in which the processes were ended that did not come to
            this one; "": there are none.

        machines: The other machines or GPUs that alone have stored sessions.

        alike: The stored sessions that were as slow, or as fast, as the value now.

        ran: How many tests this run ran, and the largest of the stored ones, where they
            are so unlike that the test's values are not those of one suite; None: they
            are alike.
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

        alone_count: How many of them measured the test alone, too.

        of_suite: Whether a run of this test alone cannot be compared with them, because
            they ran more tests.
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
        """Refuse what is not finite."""
        finite("baseline.unix_s", self.first_unix_s, self.last_unix_s)


class NextCommand(BulkRecord, frozen=True, kw_only=True):
    """
    What to type next about a verdict, where pytest was started.

    Attributes:
        kind: `reproduce`: measure and judge this test again; `accept`: make what was
            measured the baseline.

        argv: Program and arguments, not quoted.
    """

    kind: str
    argv: tuple[str, ...]


class Verdict(BulkRecord, frozen=True, kw_only=True):
    """
    One judgement with its evidence; words and units are put on by report.

    Judge leaves `detail` and `remedy` empty: report fills them for whoever reads them.

    Attributes:
        key: The measurement it is about.

        metric: The metric.

        outcome: What was decided.

        reason: Why.

        cause: Which case of the reason it is; None: it has one, or the usual one.

        limit: The limit that was judged; None for a change.

        threshold: The largest change allowed (a fraction); None for a limit, or where a
            change is only shown.

        default_limit: Whether `threshold` is the plugin's own, because neither a marker
            nor an option names one.

        estimate: The value now; None where there is none.

        low: Lower end of the interval that decided a limit [unit].

        high: Its upper end.

        assumed: Whether the interval is the usual one of such a metric, because fewer
            than 3 stored sessions say how far they lie apart here.

        change: The effect against the baseline.

        confirmations: The effect in each confirming process, without the machine's part
            and what is known of how the test alone differs from the suite.

        alone: The change of the fresh processes by themselves, where they would decide
            otherwise than together with the suite's value; None: they would not, or there
            were none.

        in_suite: The change that the suite saw, where it is clearly worse than that of
            the fresh processes, which decide; None: it is not, or there were none.

        baseline: The stored sessions.

        evidence: What decided besides numbers; None: numbers alone.

        against: The blocks that decided, where it is against a revision; None: it is not.

        detail: The evidence in words, a line each.

        remedy: What to do about it; "" where there is nothing to do.

        sentence: Its reason in words; "" where it passed, and before it is reported.

        commands: What to type next; likewise.

        typed: Its test as an argument, from the folder where pytest was started; "": its
            id, from pytest's root folder.
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
    detail: tuple[str, ...] = ()
    remedy: str = ""
    sentence: str = ""
    commands: tuple[NextCommand, ...] = ()
    typed: str = ""

    def __post_init__(self) -> None:
        """Refuse what is not finite."""
        finite("verdict.threshold", self.threshold)
        if self.low is not None or self.high is not None:  # of a limit alone
            finite("verdict.low", self.low)
            finite("verdict.high", self.high)
        if self.confirmations:
            finite("verdict.confirmations", *self.confirmations)

    @property
    def decides(self) -> bool:
        """Whether something was allowed or forbidden; else a change is only shown."""
        only_shown = self.limit is None and self.threshold is None
        return self.change is None or not only_shown

    @property
    def of_revision(self) -> bool:
        """Whether it is against a revision alone, and not about a stored baseline."""
        return self.against is not None and self.baseline is None


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
