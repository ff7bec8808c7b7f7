"""The scorecard that says what it does not know.

Milliseconds, as in the step profile that it is made from; shares are fractions.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from pytest_gpuperf.model.counters import Evidence
from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.grade import Grade
from pytest_gpuperf.model.mistakes import Mistake, not_finite, refuse, stated
from pytest_gpuperf.model.sample import SourceLabel
from pytest_gpuperf.model.scorecard import Recommendation
from pytest_gpuperf.model.step_profile import DeviceTime
from pytest_gpuperf.model.verdict import Outcome

__all__ = [
    "UNATTRIBUTED",
    "Basis",
    "Decision",
    "Invariant",
    "InvariantResult",
    "LayerTime",
    "MeasuredScorecard",
    "OperationTime",
    "PhaseShare",
    "StepLimiter",
    "StepTime",
]


UNATTRIBUTED = "unattributed"  # the kind of the time in no phase


class StepLimiter(str, Enum):
    """What holds a training step back, as far as a step profile can say."""

    TRANSFER = "transfer"
    COMMUNICATION = "communication"
    DATA = "data"
    LAUNCH = "launch"  # the device idles while the host launches
    WAIT = "wait"  # it idles and the host does something else
    COMPUTE = "compute"
    MEMORY_BW = "memory_bw"
    GRID = "grid too small"
    LATENCY = "latency"


class Basis(str, Enum):
    """What a decision rests on."""

    SAMPLES = "samples"  # intervals of medians
    SESSIONS = "sessions"  # single numbers, and how much they differ between sessions
    MEANS = "means"  # one number on a side: nothing is known of its noise
    NOTHING = "nothing"  # a side has no number


class StepTime(Frozen, frozen=True, kw_only=True):
    """
    How long a step takes.

    Attributes:
        mean_ms: Mean [ms].

        count: Steps whose own times are known; 0: only the mean is.

        median_ms: Median [ms]; None: no steps' times are known.

        low_ms: Lower end of the median's interval [ms]; None: too few steps.

        high_ms: Its upper end [ms].

        p95_ms: 95 of 100 steps take less [ms]; None: no steps' times are known.
    """

    mean_ms: float
    count: int = 0
    median_ms: float | None = None
    low_ms: float | None = None
    high_ms: float | None = None
    p95_ms: float | None = None


class PhaseShare(Frozen, frozen=True, kw_only=True):
    """
    Time of all phases of a kind.

    Attributes:
        kind: The kind; "unattributed" for the time in no phase.

        ms: Their exclusive time in a step [ms].

        fraction: Its share of the step.
    """

    kind: str
    ms: float
    fraction: float


class LayerTime(Frozen, frozen=True, kw_only=True):
    """
    One layer.

    Attributes:
        layer: Its place, from 0.

        fwd_ms: Its forward pass [ms].

        bwd_ms: Its backward pass [ms].

        ratio: Backward over forward; None where one of the two took no time.

        top_op: Its longest operation, of equals the first by name; None: none known.

        top_op_fraction: That operation's share of the layer's operations.
    """

    layer: int
    fwd_ms: float
    bwd_ms: float
    ratio: float | None = None
    top_op: str | None = None
    top_op_fraction: float | None = None


class OperationTime(Frozen, frozen=True, kw_only=True):
    """
    An operation with its time over all layers.

    Attributes:
        name: Its name.

        ms: Its time [ms].

        fraction: Its share of all operations; None where they took no time.
    """

    name: str
    ms: float
    fraction: float | None


class Decision(Frozen, frozen=True, kw_only=True):
    """
    One quantity against the baseline.

    Attributes:
        metric: The quantity.

        outcome: What was decided.

        basis: What the decision rests on.

        now: Its value now; None: it was not measured.

        base: The baseline's; None: the baseline has none.

        tolerance: Change that passes: relative, of the coverage absolute; None: nothing
            was held against one.

        noise_fraction: How much it differs between the baseline's sessions, relative;
            None: not known, for there are fewer than three.

        log_ratio: Natural logarithm of how many times worse it is: above 0 it is worse.
            None: nothing to compare, or judged by its difference, as the coverage is.

        low: Lower end of the log ratio's interval; None: no samples.

        high: Its upper end.

        shared_by: Metrics that follow from this one and share its decision.

        why: A fragment that explains an outcome which is not a change.
    """

    metric: str
    outcome: Outcome
    basis: Basis
    now: float | None = None
    base: float | None = None
    tolerance: float | None = None
    noise_fraction: float | None = None
    log_ratio: float | None = None
    low: float | None = None
    high: float | None = None
    shared_by: tuple[str, ...] = ()
    why: str = ""


class Invariant(Frozen, frozen=True, kw_only=True):
    """
    What must hold of a step whatever its speed: a ratio, or a number, between bounds.

    Attributes:
        name: What it is called, and shown as.

        part: The quantity, by a name of `compute.scorecard_invariants`.

        whole: What it is divided by; None: nothing.

        low: The least that it may be; None: there is no least.

        high: The most; None: there is no most.
    """

    name: str
    part: str
    whole: str | None = None
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        """Refuse bounds that are not numbers, that nothing lies between, or none at all."""
        bounds = stated({"low": self.low, "high": self.high})
        refuse(list(not_finite("invariant", bounds)))
        if not bounds:
            refuse([Mistake(path="invariant", text=f"{self.name} has no bound")])
        if self.low is not None and self.high is not None and self.low > self.high:
            text = f"nothing is between {self.low!r} and {self.high!r}"
            refuse([Mistake(path="invariant", text=text)])


class InvariantResult(Frozen, frozen=True, kw_only=True):
    """
    Whether an invariant holds.

    Attributes:
        name: The invariant's.

        outcome: PASSED, FAILED or UNMEASURED.

        value: The number that was held against the bounds; None: not known.

        low: The least that it may be.

        high: The most.

        why: Why it is not known, as a fragment.
    """

    name: str
    outcome: Outcome
    value: float | None = None
    low: float | None = None
    high: float | None = None
    why: str = ""


class MeasuredScorecard(Frozen, frozen=True, kw_only=True):
    """
    How good a training step is; None wherever the profile does not tell.

    Attributes:
        policy: "measured": tells its JSON from that of other tools.

        unit: What is counted in the throughput, as "token".

        grade: The grade; None without an efficiency, or with one well above 1.

        efficiency: Achieved over attainable throughput; never cut, so above 1 where the
            declared work or the peak is wrong.

        bound: Which roof is the lower one: "memory" or "compute"; None: only one is
            known.

        bandwidth_fraction: Achieved over peak bandwidth.

        compute_fraction: Achieved over peak arithmetic.

        bottleneck: What holds the step back.

        evidence: The numbers of counters that named the bottleneck, the deciding one
            first; empty: no counter did.

        device: What the device did in a mean step; None: nobody traced it.

        shares: Where a step's time goes, largest share first.

        coverage: Exclusive time of all phases over the step.

        throughput: Units per second.

        step: How long a step takes.

        step_ms: Each step [ms]: what a later run is compared with.

        backward_forward_ratio: All layers' backward time over all layers' forward time.

        layer_ratio_low: The smallest ratio of a layer.

        layer_ratio_median: Their median.

        layer_ratio_high: The largest.

        layers: The layers, in the model's order.

        operations: All operations, longest first, then by name.

        sources: The weakest label of what each known number is made of, by field. What
            a profile says counts as measured.

        machine: What it ran on; empty: the profile did not say.

        invariants: Whether what was asked for holds.

        decisions: Every quantity that the baseline has.

        recommendations: What to do.

        notes: What is not known and why, as sentences.
    """

    unit: str
    policy: str = "measured"
    grade: Grade | None = None
    efficiency: float | None = None
    bound: str | None = None
    bandwidth_fraction: float | None = None
    compute_fraction: float | None = None
    bottleneck: StepLimiter | None = None
    evidence: tuple[Evidence, ...] = ()
    device: DeviceTime | None = None
    shares: tuple[PhaseShare, ...] = ()
    coverage: float | None = None
    throughput: float | None = None
    step: StepTime | None = None
    step_ms: tuple[float, ...] = ()
    backward_forward_ratio: float | None = None
    layer_ratio_low: float | None = None
    layer_ratio_median: float | None = None
    layer_ratio_high: float | None = None
    layers: tuple[LayerTime, ...] = ()
    operations: tuple[OperationTime, ...] = ()
    sources: Mapping[str, SourceLabel] = {}
    machine: Mapping[str, str] = {}
    invariants: tuple[InvariantResult, ...] = ()
    decisions: tuple[Decision, ...] = ()
    recommendations: tuple[Recommendation, ...] = ()
    notes: tuple[str, ...] = ()
