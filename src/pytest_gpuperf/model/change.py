"""The effect of a run compared with a baseline or a revision, and the data behind it."""

from __future__ import annotations

from enum import Enum
from math import isfinite
from operator import attrgetter

from pytest_gpuperf.model.frozen import BulkRecord, Frozen, finite
from pytest_gpuperf.model.gap import Gap
from pytest_gpuperf.model.identity import Sameness
from pytest_gpuperf.model.kernel import KernelTotal
from pytest_gpuperf.model.metric import Better
from pytest_gpuperf.model.packed import SessionValues
from pytest_gpuperf.model.record import SessionValue

# A smaller change is irrelevant (docs/judging.md section 2).
NOISE_THRESHOLD = 0.005


class TimeBase(str, Enum):
    """
    Clock of the values. Sessions of host times usually differ more than those of device
    times.
    """

    HOST = "host"
    DEVICE = "device"


class Drift(BulkRecord, frozen=True, kw_only=True):
    """
    A slow worsening over many sessions, none of which differs much from its neighbours.

    Attributes:
        effect: Relative difference of the newest sessions from the oldest stored sessions,
            with the sign of a `Change`.

        since_unix_s: Start of the oldest stored session [s].

        session_count: Sessions, including the current one.

        p_value: Probability of such an order of sessions by noise.
    """

    effect: float
    since_unix_s: float
    session_count: int
    p_value: float

    def __post_init__(self) -> None:
        """Reject numbers that are not finite."""
        finite("drift", self.effect, self.since_unix_s, self.p_value)


_NUMBERS = attrgetter(
    *("effect", "low", "high", "current", "reference"),
    *("p_worse", "p_better", "detectable_effect"),
    *("machine_shift", "session_spread"),
    *("core_shift", "clock_shift"),
)


class Change(BulkRecord, frozen=True, kw_only=True):
    """
    The effect of the current session compared with the stored sessions.

    Positive means more: slower for a time, more for a count. All effects are relative:
    0.05 is 5 % more than the baseline.

    Attributes:
        effect: Relative difference, or None if the baseline is 0.

        low: Lower end of the two-sided 98 % interval of the effect, or None. The ends
            are the one-sided bounds of 99 %.

        high: Upper end of the interval, or None.

        p_worse: One-sided probability of such an effect without a worsening beyond the
            noise threshold, or None for exact metrics.

        p_better: The same for an improvement.

        detectable_effect: Smallest effect found in 9 of 10 tries, beyond the limit if
            there is one. None if unknown.

        current: The current value [the metric's unit]. For a suspect measured by fresh
            processes, these are combined with the suite's value.

        reference: The baseline's value [the metric's unit].

        session_count: Stored sessions behind the reference, or blocks of a comparison
            with a revision.

        run_count: Processes behind the current value.

        exact: Whether the change was judged by equality.

        machine_shift: Relative machine drift according to the controls, already removed
            from `effect`. None with too few controls.

        session_spread: Usual spread of the sessions, or blocks, of the group
            [fraction], or None if not computed.

        core_shift: Relative effect of the core's speed according to a loop between the
            samples, already removed from `effect` and `current`. None if unknown.

        clock_shift: Relative change of the clock of the device's multiprocessors,
            without any correction for it. None if unknown.

        left_out: Id of the stored session that does not match the others and is not
            part of the reference, or "".

        fresh: Whether fresh processes contribute to `current`.

        drift: The drift of the sessions, or None if the sessions did not drift.
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
    drift: Drift | None = None

    def __post_init__(self) -> None:
        """Reject numbers that are not finite."""
        # The common case. A run has tens of thousands, and a sum checks all at once.
        try:
            total = self.current + self.reference + (self.effect or 0.0)
            total += (self.low or 0.0) + (self.high or 0.0) + (self.p_worse or 0.0)
            total += (self.p_better or 0.0) + (self.detectable_effect or 0.0)
            total += (self.machine_shift or 0.0) + (self.session_spread or 0.0)
            if isfinite(total + (self.core_shift or 0.0) + (self.clock_shift or 0.0)):
                return
        except (TypeError, OverflowError):
            pass  # The checks below say what is wrong.
        numbers = _NUMBERS(self)
        finite("change", *numbers[:5])
        finite("change.p", *numbers[5:8])
        finite("change.machine_shift", *numbers[8:10])
        finite("change.core_shift", *numbers[10:])

    @property
    def adjusted(self) -> float | None:
        """
        The value that is judged, corrected for machine drift, or None without a
        relative change.
        """
        return None if self.effect is None else self.reference * (1.0 + self.effect)

    @property
    def measured(self) -> float:
        """
        The current value as measured, including the effect of the core's speed.

        It is `reference` times the factors 1 + x for core, machine and effect.
        """
        return self.current * (1 + (self.core_shift or 0.0))

    @property
    def is_of_others(self) -> bool:
        """True if other processes contribute to `current`."""
        return self.fresh or self.run_count > 1


class Comparison(BulkRecord, frozen=True, kw_only=True):
    """
    A metric of a test, now and in stored sessions.

    Attributes:
        current: The current session.

        stored: The stored sessions, oldest first, >= 1 of them.

        session_ids: The id of each stored session.

        group: Metric and family. Comparisons of a group have similar variances.

        better: Direction in which the metric improves. NEITHER counts as LOWER.

        exact: Whether the metric is judged by equality if all stored sessions agree.

        shift_group: Group that machine drift moves together, or "" for none.

        clock: Clock of the values.

        limit: Largest change that passes [fraction], or None if it is only shown.

        fresh: Whether the current values are from fresh processes. Their median
            decides.

        core_shift: Correction of the current values for cores slower than in the stored
            sessions, on a log scale, or None if unknown.

        core_variance: Variance of `core_shift`.

        core_distance: Distance of the current core from the stored ones, on a log scale.

        core_precision: One over the variance of the power with which the test follows the
            core, or 0 if `core_shift` is unknown.

        clock_shift: Change of the clock of the device's multiprocessors since the
            stored sessions, on a log scale, or None if unknown.

        suite: The comparison with the suite's value, if the current values are from
            fresh processes, which run a test alone. Otherwise None.

        of_part: Whether the suite was only a part of the tests of the stored sessions.
            Its value is then like that of a test alone, as from fresh processes.

        moved: Whether a soft fact differs from the newest stored session's.
    """

    current: SessionValue
    stored: SessionValues
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
    core_distance: float = 0.0
    core_precision: float = 0.0
    clock_shift: float | None = None
    suite: Comparison | None = None
    of_part: bool = False
    moved: bool = False


class Sureness(Frozen, frozen=True, kw_only=True):
    """
    Required certainty of a change.

    Attributes:
        alpha: Nominal probability of a false alarm in the whole run.

        pair_count: (test, metric) pairs judged in the run, >= 1.

        noise_threshold: Changes below this size are irrelevant [fraction].

        power: Probability of finding the detectable effect.
    """

    alpha: float = 0.01
    pair_count: int = 1
    noise_threshold: float = NOISE_THRESHOLD
    power: float = 0.9


class Side(str, Enum):
    """The state of the source tree that a process runs."""

    OLD = "old"  # The named revision.
    NEW = "new"  # The working tree.


class AgainstEvidence(BulkRecord, frozen=True, kw_only=True):
    """
    The blocks of a metric and test in a comparison with a revision.

    A block is two processes of each side, run alternately.

    Attributes:
        block_count: Blocks with a difference.

        old_values: The value of each process of the revision [the metric's unit], in
            order.

        new_values: The value of each process of the working tree [the metric's unit],
            in order.

        effects: The difference of each block [fraction], corrected for machine drift:
            the mean of the working tree's processes minus that of the revision's.

        null_fraction: Half-width that contains 19 of 20 comparisons of identical code
            with this number of blocks, from differences of processes of the same side.
            None if judged by equality or with too few processes.

        decidable_limit: The smallest limit [fraction] that the maximum number of blocks
            could decide if nothing changed, at least what these blocks detect. Only for
            a test that was given up early because its own limit is far smaller, else
            None.

        code: Whether the kernels of both sides have the same machine code. None if
            unknown.
    """

    block_count: int
    old_values: tuple[float, ...] = ()
    new_values: tuple[float, ...] = ()
    effects: tuple[float, ...] = ()
    null_fraction: float | None = None
    decidable_limit: float | None = None
    code: Sameness | None = None

    def __post_init__(self) -> None:
        """Reject numbers that are not finite."""
        finite("against.values", *self.old_values, *self.new_values)
        finite("against.effects", *self.effects, self.null_fraction)
        finite("against.decidable_limit", self.decidable_limit)


class KernelMove(BulkRecord, frozen=True, kw_only=True):
    """
    A kernel then and now.

    Attributes:
        then: The earlier kernel, or None if the kernel is new.

        now: The current kernel, or the kernel that replaced it, or None if it is gone.
    """

    then: KernelTotal | None = None
    now: KernelTotal | None = None

    @property
    def difference_s(self) -> float:
        """Increase of the kernel's time [s]."""
        then_s = 0.0 if self.then is None else self.then.total_s
        return (0.0 if self.now is None else self.now.total_s) - then_s


class KernelAccount(BulkRecord, frozen=True, kw_only=True):
    """
    Contribution of each kernel to a change.

    Attributes:
        then_s: Time of all kernels in a stored session [s].

        now_s: Time of all kernels in a current process [s].

        moves: The kernels, the largest difference (up or down) first.
    """

    then_s: float
    now_s: float
    moves: tuple[KernelMove, ...]

    def __post_init__(self) -> None:
        """Reject times that are not finite."""
        finite("account", self.then_s, self.now_s)

    @property
    def difference_s(self) -> float:
        """Increase of the time of all kernels [s]."""
        return self.now_s - self.then_s


class Against(Frozen, frozen=True, kw_only=True):
    """
    A run's comparison of the working tree with a revision.

    Attributes:
        revision: The revision as the user named it.

        commit: The full commit id, or "" if unknown.

        level: How the processes of both sides find their own files: 0 by the working
            directory, 1 by import paths, 2 because both were built. None if not at all.

        modules: The project's modules that differ between the two, by dotted name, or
            empty.

        block_count: Blocks that were run.

        elapsed_s: Duration of the comparison [s].

        null_fraction: Usual `null_fraction` of the tests: the difference between runs
            of identical code here. None if unknown for all tests.

        gap: Why nothing was compared, or not until the end, or None if complete.

        changed: Ids of tests whose source differs between the two. They are not
            compared.

        only_old: Ids of tests that only the revision has.

        only_new: Ids of tests that only the working tree has.
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
        """Reject numbers that are not finite."""
        finite("against", self.elapsed_s, self.null_fraction)


class Progress(Frozen, frozen=True, kw_only=True):
    """
    Progress of a comparison.

    Attributes:
        revision: The revision as the user named it.

        block_count: Finished blocks.

        most_blocks: Maximum number of blocks.

        open_count: Undecided tests.

        test_count: Compared tests.

        elapsed_s: Time so far [s].

        left_s: Expected remaining time if all blocks are needed [s], or None before the
            end of the first block.

        looked: Whether the blocks so far have just been judged. If not, a block begins.

        text: Current activity other than measuring, or "".
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
