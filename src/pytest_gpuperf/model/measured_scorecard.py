"""The scorecard that says what it does not know; PYTEST_DONT_REWRITE.

Milliseconds, as in the step profile that it is made from; shares are fractions.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from pytest_gpuperf.model.grade import Grade
from pytest_gpuperf.model.scorecard import Recommendation
from pytest_gpuperf.model.verdict import Outcome

__all__ = [
    "UNATTRIBUTED",
    "Basis",
    "Decision",
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
    COMPUTE = "compute"
    MEMORY_BW = "memory_bw"


class Basis(str, Enum):
    """What a decision rests on."""

    SAMPLES = "samples"  # intervals of medians
    MEANS = "means"  # one number on a side: nothing is known of its noise
    NOTHING = "nothing"  # a side has no number


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseShare:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTime:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationTime:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """
    One quantity against the baseline.

    Attributes:
        metric: The quantity.

        outcome: What was decided.

        basis: What the decision rests on.

        now: Its value now; None: it was not measured.

        base: The baseline's; None: the baseline has none.

        log_ratio: Natural logarithm of how many times worse it is: above 0 it is worse.
            None: nothing to compare, or judged by its difference, as the coverage is.

        low: Lower end of the log ratio's interval; None: no samples.

        high: Its upper end.

        shared_by: Metrics that follow from this one and share its decision.

        why: A fragment that explains an outcome which is no change.
    """

    metric: str
    outcome: Outcome
    basis: Basis
    now: float | None = None
    base: float | None = None
    log_ratio: float | None = None
    low: float | None = None
    high: float | None = None
    shared_by: tuple[str, ...] = ()
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredScorecard:
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
    decisions: tuple[Decision, ...] = ()
    recommendations: tuple[Recommendation, ...] = ()
    notes: tuple[str, ...] = ()
