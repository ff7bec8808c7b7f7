"""The effect of a run against its baseline or a revision, and what it was computed from."""

from __future__ import annotations

from enum import Enum

from pytest_gpuperf.model.activity import KernelTotal
from pytest_gpuperf.model.frozen import BulkRecord, Frozen, all_finite, finite
from pytest_gpuperf.model.gap import Gap
from pytest_gpuperf.model.metric import Better
from pytest_gpuperf.model.record import SessionValue

__all__ = [
    "NOISE_THRESHOLD",
    "Against",
    "AgainstEvidence",
    "Change",
    "Comparison",
    "KernelAccount",
    "KernelMove",
    "Progress",
    "Side",
    "Sureness",
    "TimeBase",
]

# docs/judging.md section 2: a change too small to mean anything
NOISE_THRESHOLD = 0.005


class TimeBase(str, Enum):
    """Whose times values are: sessions of hosts usually differ more than those of devices."""

    HOST = "host"
    DEVICE = "device"


class Change(BulkRecord, frozen=True, kw_only=True):
    """
    The effect of the current session against the stored ones.

    Positive is more: slower for a time, more for a count. All effects are relative: 0.05
    is 5 % more than the baseline.

    Attributes:
        effect: Relative difference; None where the baseline is 0 and nothing is relative.

        low: Lower end of its two-sided 98 % interval, whose ends are the one-sided bounds
            of 99 %; None where there is none.

        high: Its upper end.

        p_worse: One-sided probability of such an effect without a worsening beyond the
            noise threshold; None for exact metrics.

        p_better: The same for an improvement.

        detectable_effect: Smallest effect found in 9 of 10 tries, beyond the limit if
            there is one; None: not known.

        current: The current value [the metric's unit]; of a suspect that fresh processes
            measured, what these and the suite's value say together.

        reference: The baseline's value [the metric's unit].

        session_count: Stored sessions behind the reference; against a revision, blocks.

        run_count: Processes behind the current value.

        exact: Whether it was judged by equality.

        machine_shift: What the machine moved it by, as its controls tell, relative; it is
            not in `effect` any more. None: too few controls tell.

        session_spread: What the sessions, or blocks, of its group usually differ by
            [fraction]; None: it was not asked.

        core_shift: What the speed of the core moved it by, as a loop between the samples
            tells, relative; it is neither in `effect` nor in `current`. None: not known.

        clock_shift: By how much the clock of the device's multiprocessors is another than
            it was, relative; nothing was taken out for that. None: not known.

        left_out: Id of the stored session whose value does not fit the others and is no
            part of the reference; "": all fit.

        fresh: Whether fresh processes have a say in `current`.
    """

    effect: float | None
    current: float
    reference: float
    session_count: int
    run_count: int
    low: float | None = None
    high: float | None = None
    p_worse: float | None = None
    p_better: float | None = None
    detectable_effect: float | None = None
    exact: bool = False
    machine_shift: float | None = None
    session_spread: float | None = None
    core_shift: float | None = None
    clock_shift: float | None = None
    left_out: str = ""
    fresh: bool = False

    def __post_init__(self) -> None:
        """Refuse what is not finite."""
        values = (self.effect, self.low, self.high, self.current, self.reference)
        chances = (self.p_worse, self.p_better, self.detectable_effect)
        machine = (self.machine_shift, self.session_spread)
        clocks = (self.core_shift, self.clock_shift)
        numbers = (*values, *chances, *machine, *clocks)
        if all_finite([number or 0.0 for number in numbers]):
            return  # nearly all are, and a run has tens of thousands
        finite("change", *values)
        finite("change.p", *chances)
        finite("change.machine_shift", *machine)
        finite("change.core_shift", *clocks)

    @property
    def adjusted(self) -> float | None:
        """The value that is judged, without the machine's part; None: no relative change."""
        return None if self.effect is None else self.reference * (1.0 + self.effect)

    @property
    def measured(self) -> float:
        """
        The current value as it was measured: with what the core's speed did to it.

        It is `reference` times all that moved it: core, machine and effect, each 1 + x.
        """
        return self.current * (1 + (self.core_shift or 0.0))

    @property
    def is_of_others(self) -> bool:
        """Whether further processes have a say in `current`."""
        return self.fresh or self.run_count > 1


class Comparison(BulkRecord, frozen=True, kw_only=True):
    """
    One metric of one test, now and in stored sessions.

    Attributes:
        current: This session.

        stored: The stored ones, oldest first, >= 1 of them.

        session_ids: The id of each stored session.

        group: Whose variances are alike: metric and family.

        better: Which way it gets better; NEITHER counts as LOWER.

        exact: Whether it is judged by equality where all stored sessions agree.

        shift_group: What a change of the machine moves together; "" for nothing.

        clock: Whose times they are.

        limit: Largest change that passes [fraction]; None: it is only shown.

        fresh: Whether the current values are of fresh processes, whose median decides.

        core_shift: What was taken out of the current values because their cores were
            slower than those of the stored sessions, on a log scale; None: not known.

        core_variance: Its variance.

        clock_shift: By how much the clock of the device's multiprocessors is another than
            it was in the stored sessions, on a log scale; None: not known.

        suite: The same comparison with the suite's value, where the current ones are of
            fresh processes, which run a test alone; None: there is none.

        of_part: Whether the suite was a part of the tests that the stored sessions ran, so
            that its value is as much of a test alone as those of fresh processes.

        moved: Whether a soft fact differs from the newest stored session's.
    """

    current: SessionValue
    stored: tuple[SessionValue, ...]
    session_ids: tuple[str, ...]
    group: str
    better: Better = Better.LOWER
    exact: bool = False
    shift_group: str = ""
    clock: TimeBase = TimeBase.HOST
    limit: float | None = None
    fresh: bool = False
    core_shift: float | None = None
    core_variance: float = 0.0
    clock_shift: float | None = None
    suite: Comparison | None = None
    of_part: bool = False
    moved: bool = False


class Sureness(Frozen, frozen=True, kw_only=True):
    """
    How sure a change must be.

    Attributes:
        alpha: Nominal chance of a false alarm in the whole run.

        pair_count: (test, metric) pairs judged in the run, >= 1.

        noise_threshold: The change that is too small to mean anything [fraction].

        power: How often the detectable effect is found.
    """

    alpha: float = 0.01
    pair_count: int = 1
    noise_threshold: float = NOISE_THRESHOLD
    power: float = 0.9


class Side(str, Enum):
    """Which of two states of the source tree a process runs."""

    OLD = "old"  # the revision that was named
    NEW = "new"  # the working tree as it is


class AgainstEvidence(BulkRecord, frozen=True, kw_only=True):
    """
    What the blocks of one metric of one test say besides the change.

    A block is two processes of each side that take turns.

    Attributes:
        block_count: Blocks that have a difference.

        old_values: The value of each process of the revision [the metric's unit], in
            order.

        new_values: The value of each process of the working tree, likewise.

        effects: The difference of each block [fraction], without what the machine did;
            the mean of its processes less that of the revision's.

        null_fraction: Within this, up and down, 19 of 20 comparisons of the same code
            with itself would lie that have so many blocks: from the differences of the
            processes of one side. None: judged by equality, or too few processes.

        decidable_limit: The smallest limit [fraction] that as many blocks as there can be
            would decide about if nothing changed, and no less than these blocks see,
            where the test was given up before because its own is far below that. None:
            it was not given up.
    """

    block_count: int
    old_values: tuple[float, ...] = ()
    new_values: tuple[float, ...] = ()
    effects: tuple[float, ...] = ()
    null_fraction: float | None = None
    decidable_limit: float | None = None

    def __post_init__(self) -> None:
        """Refuse what is not finite."""
        finite("against.values", *self.old_values, *self.new_values)
        finite("against.effects", *self.effects, self.null_fraction)
        finite("against.decidable_limit", self.decidable_limit)


class KernelMove(BulkRecord, frozen=True, kw_only=True):
    """
    A kernel then and now.

    Attributes:
        then: As it was; None: it is new.

        now: As it is, or what has replaced it; None: it is gone.
    """

    then: KernelTotal | None = None
    now: KernelTotal | None = None

    @property
    def difference_s(self) -> float:
        """How much longer it takes now [s]."""
        then_s = 0.0 if self.then is None else self.then.total_s
        return (0.0 if self.now is None else self.now.total_s) - then_s


class KernelAccount(BulkRecord, frozen=True, kw_only=True):
    """
    How much each kernel has to do with a change.

    Attributes:
        then_s: What all kernels took together in a stored session [s].

        now_s: What they take in a process now [s].

        moves: The kernels, those first whose times differ most.
    """

    then_s: float
    now_s: float
    moves: tuple[KernelMove, ...]

    def __post_init__(self) -> None:
        """Refuse times that are not finite."""
        finite("account", self.then_s, self.now_s)

    @property
    def difference_s(self) -> float:
        """How much longer all kernels take now [s]."""
        return self.now_s - self.then_s


class Against(Frozen, frozen=True, kw_only=True):
    """
    A run's comparison of the working tree with a revision.

    Attributes:
        revision: The revision, as it was named.

        commit: Its full id; "": it is not known.

        level: How the processes of both sides find their own files: 0 by the working
            directory, 1 by their import paths, 2 because both were built; None: by none.

        modules: Own modules that differ between the two, by dotted name; empty: none does.

        block_count: Blocks that were run.

        elapsed_s: How long it took [s].

        null_fraction: The usual one of its tests: what the same code differs by here. None:
            no test says.

        gap: Why nothing was compared, or not to the end; None: all of it was.

        changed: Ids of tests whose source differs between the two: they are not compared.

        only_old: Ids of tests that the revision alone has.

        only_new: Ids of tests that the working tree alone has.
    """

    revision: str
    commit: str = ""
    level: int | None = None
    modules: tuple[str, ...] = ()
    block_count: int = 0
    elapsed_s: float = 0.0
    null_fraction: float | None = None
    gap: Gap | None = None
    changed: tuple[str, ...] = ()
    only_old: tuple[str, ...] = ()
    only_new: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what is not finite."""
        finite("against", self.elapsed_s, self.null_fraction)


class Progress(Frozen, frozen=True, kw_only=True):
    """
    How far a comparison is.

    Attributes:
        revision: The revision, as it was named.

        block_count: Blocks that have ended.

        most_blocks: As many as there can be.

        open_count: Tests that are undecided.

        test_count: Tests that are compared.

        elapsed_s: How long it has taken so far [s].

        left_s: How long it can take yet [s]; None: not known before the first block.

        looked: Whether the blocks so far were judged just now; else a block begins.

        text: What it does instead of measuring; "": it measures.
    """

    revision: str
    block_count: int = 0
    most_blocks: int = 0
    open_count: int = 0
    test_count: int = 0
    elapsed_s: float = 0.0
    left_s: float | None = None
    looked: bool = False
    text: str = ""
