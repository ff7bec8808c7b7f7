"""The training scorecard, and a scorecard that states which values are unknown.

Milliseconds and percent, as in the JSON files. Shares of a measured scorecard are
fractions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType

from pytest_gpuperf.model.counters import Evidence
from pytest_gpuperf.model.frozen import (
    Frozen,
    Mistake,
    not_finite,
    refuse,
    shown,
    stated,
)
from pytest_gpuperf.model.roofline import Grade
from pytest_gpuperf.model.sample import SourceLabel
from pytest_gpuperf.model.steps import DeviceTime
from pytest_gpuperf.model.verdict import Outcome


class BottleneckLimits(Frozen, frozen=True, kw_only=True):
    """
    Shares above which a bottleneck is named. A share equal to its limit is not above
    it.

    Attributes:
        transfer_fraction: Share of the step spent on copies between host and device.

        launch_fraction: Share of the step outside of all phases.

        compute_utilization: Share of the hardware's peak.
    """

    transfer_fraction: float
    launch_fraction: float
    compute_utilization: float


# Limits of the training scorecard (aprender/entrenar).
BOTTLENECK_LIMITS = BottleneckLimits(
    transfer_fraction=0.30, launch_fraction=0.40, compute_utilization=0.50
)


class Bottleneck(str, Enum):
    """The bottleneck of a training step."""

    TRANSFER = "transfer"
    LAUNCH = "launch"
    COMPUTE = "compute"
    MEMORY_BW = "memory_bw"

    def __str__(self) -> str:
        return self.value

    @classmethod
    def classify(
        cls,
        *,
        transfer_fraction: float,
        launch_fraction: float,
        compute_utilization: float,
        limits: BottleneckLimits = BOTTLENECK_LIMITS,
    ) -> Bottleneck:
        """
        Return the bottleneck: the first share above its limit, else the memory.

        Args:
            transfer_fraction: Share of the step spent on copies.

            launch_fraction: Share of the step outside of all phases.

            compute_utilization: Share of the hardware's peak.

            limits: The limits.

        Raises:
            RecordError: A share is not a finite number. The error lists all of them.

        Example:
            >>> Bottleneck.classify(
            ...     transfer_fraction=0.3, launch_fraction=0.4, compute_utilization=0.6
            ... ).value
            'compute'
        """
        shares = {
            "transfer_fraction": transfer_fraction,
            "launch_fraction": launch_fraction,
            "compute_utilization": compute_utilization,
        }
        refuse(
            list(not_finite("", shares)),
            remedy="ask only for values that were measured",
        )
        return cls.of(
            transfer_fraction, launch_fraction, compute_utilization, limits=limits
        )

    @classmethod
    def of(
        cls,
        transfer_fraction: float,
        launch_fraction: float,
        compute_utilization: float,
        *,
        limits: BottleneckLimits = BOTTLENECK_LIMITS,
    ) -> Bottleneck:
        """Classify like `classify`, but accept shares that may have overflowed."""
        if transfer_fraction > limits.transfer_fraction:
            return cls.TRANSFER
        if launch_fraction > limits.launch_fraction:
            return cls.LAUNCH
        if compute_utilization > limits.compute_utilization:
            return cls.COMPUTE
        return cls.MEMORY_BW


class Hardware(Frozen, frozen=True, kw_only=True):
    """
    Limits of the hardware, and the work of one token.

    Attributes:
        peak_bw_gb_s: Peak DRAM bandwidth [GB/s].

        bytes_per_token: Bytes that a token must move [B].

        peak_flop_per_s: Peak of the arithmetic that a token uses [FLOP/s], or None if
            not stated.

        flop_per_token: Operations that a token needs [FLOP], or None if not stated.

        source: Label of the numbers' source, as "declared" or "datasheet".

        sources: Labels of single numbers, by field, if they differ from `source`.
    """

    peak_bw_gb_s: float
    bytes_per_token: float
    peak_flop_per_s: float | None = None
    flop_per_token: float | None = None
    source: SourceLabel | str = "declared"
    sources: Mapping[str, SourceLabel | str] = {}

    def __post_init__(self) -> None:
        """Reject values that are not finite numbers, and invalid labels."""
        needed = {
            "peak_bw_gb_s": self.peak_bw_gb_s,
            "bytes_per_token": self.bytes_per_token,
        }
        optional = {
            "peak_flop_per_s": self.peak_flop_per_s,
            "flop_per_token": self.flop_per_token,
        }
        mistakes = [*not_finite("hardware", needed | stated(optional))]
        labels = [label.value for label in SourceLabel]
        labelled = {"source": self.source} | {
            f"sources.{name}": label for name, label in self.sources.items()
        }
        for path, label in labelled.items():
            if label not in labels:
                text = (
                    f"{shown(label)} is not a label; write one of {', '.join(labels)}"
                )
                mistakes.append(Mistake(path=f"hardware.{path}", text=text))
        for name in sorted(self.sources.keys() - {*needed, *optional}):
            text = f"hardware has no number {name!r}"
            mistakes.append(Mistake(path=f"hardware.sources.{name}", text=text))
        refuse(mistakes)

    def label(self, name: str) -> SourceLabel:
        """Return the source label of a number, by field name."""
        return SourceLabel(self.sources.get(name, self.source))

    @property
    def peak_throughput_tok_s(self) -> float:
        """Tokens that the bandwidth alone allows [1/s], infinite for 0 bytes per token."""
        bytes_per_s = self.peak_bw_gb_s * 1e9  # GB/s
        if self.bytes_per_token == 0:
            return bytes_per_s * math.copysign(math.inf, self.bytes_per_token)
        return bytes_per_s / self.bytes_per_token


def _preset(peak_bw_gb_s: float) -> Hardware:
    """
    Create a preset from a datasheet's bandwidth [GB/s] and the bytes of an example
    model.
    """
    return Hardware(
        peak_bw_gb_s=peak_bw_gb_s,
        # One small quantised model with adapters (presets of aprender/entrenar).
        bytes_per_token=158e6,
        source="datasheet",
        sources={"bytes_per_token": "estimated"},
    )


HARDWARE: Mapping[str, Hardware] = MappingProxyType(
    {"rtx-4060-laptop": _preset(256.0), "gb10": _preset(273.0)}
)


class LayerSummary(Frozen, frozen=True, kw_only=True):
    """
    Short summary of one layer.

    Attributes:
        layer: Index of the layer, from 0.

        fwd_ms: Forward pass [ms].

        bwd_ms: Backward pass [ms].

        ratio: Backward over forward, or 0 if the forward pass took no time.

        top_op: The longest operation, or "" if unknown.

        top_op_pct: Share of that operation in the layer's operations [%].
    """

    layer: int
    fwd_ms: float
    bwd_ms: float
    ratio: float
    top_op: str = ""
    top_op_pct: float = 0.0


class Hotspot(Frozen, frozen=True, kw_only=True, array_like=True):
    """
    An operation with its time over all layers. In a file, a list.

    Attributes:
        name: Name of the operation.

        ms: Time of the operation [ms].

        pct: Share of all operations [%].
    """

    name: str
    ms: float
    pct: float


class ScorecardRegression(Frozen, frozen=True, kw_only=True):
    """
    A number of a scorecard that got worse than in the baseline.

    Attributes:
        metric: The field that got worse.

        delta: Change relative to the baseline, or for the coverage the difference.

        severity: "warning" or "critical".
    """

    metric: str
    delta: float
    severity: str


class Recommendation(Frozen, frozen=True, kw_only=True):
    """
    A recommendation, and why it is given.

    Attributes:
        rule: Stable name of the rule, or "" if a file has only the text.

        condition: Condition of the rule, in words.

        evidence: The numbers that triggered the rule, by name.

        text: The recommendation.
    """

    text: str
    rule: str = ""
    condition: str = ""
    evidence: Mapping[str, float] = {}


class TrainingScorecard(Frozen, frozen=True, kw_only=True):
    """
    Rating of a training step, by the rules of other tools' scorecards.

    The last three fields show how the bottleneck was found. They are None in a
    scorecard that was read from a file, because files do not have them.

    Attributes:
        grade: The grade. From a file, any text.

        efficiency: Achieved over possible throughput, 0 to 1.

        bottleneck: The bottleneck of the step.

        throughput_tok_s: Tokens per second.

        step_time_ms: Mean wall time of a step [ms].

        forward_backward_ratio: Mean of the layers' backward over forward, or 0 if
            unknown.

        wall_coverage: Share of the wall time that the phases explain.

        per_layer_summary: The layers, in the model's order.

        hotspot_ops: The longest operations, longest first.

        regressions: The numbers that got worse.

        recommendations: Recommended actions.

        peak_throughput_tok_s: Tokens per second that the hardware allows.

        transfer_fraction: Share of the step spent on copies.

        launch_fraction: Share of the step outside of all phases.
    """

    grade: Grade | str
    efficiency: float
    bottleneck: Bottleneck
    throughput_tok_s: float
    step_time_ms: float
    forward_backward_ratio: float
    wall_coverage: float
    per_layer_summary: tuple[LayerSummary, ...] = ()
    hotspot_ops: tuple[Hotspot, ...] = ()
    regressions: tuple[ScorecardRegression, ...] = ()
    recommendations: tuple[Recommendation, ...] = ()
    peak_throughput_tok_s: float | None = None
    transfer_fraction: float | None = None
    launch_fraction: float | None = None

    @property
    def impossible(self) -> str | None:
        """A sentence explaining why the efficiency is impossible, or None if possible."""
        peak, rate = self.peak_throughput_tok_s, self.throughput_tok_s
        if peak is None or rate <= peak or peak <= 0:
            return None
        return (
            f"{_plain(rate)} tokens/s are more than the {_plain(peak)} that the hardware "
            f"allows ({_plain(rate / peak)} times): the throughput, the bandwidth or the "
            "bytes per token are wrong, and the grade means nothing"
        )


def _plain(number: float) -> str:
    """
    Return a positive number with at least three digits, without exponent if it is
    large.
    """
    return f"{number:.0f}" if number >= 100 else f"{number:.3g}"  # noqa: PLR2004 - three digits before the point


UNATTRIBUTED = "unattributed"  # Kind of the time outside of all phases.


class StepLimiter(str, Enum):
    """The limiter of a training step, as far as a step profile shows it."""

    TRANSFER = "transfer"
    COMMUNICATION = "communication"
    DATA = "data"
    LAUNCH = "launch"  # The device idles while the host launches.
    WAIT = "wait"  # The device idles while the host does something else.
    COMPUTE = "compute"
    MEMORY_BW = "memory_bw"
    GRID = "grid too small"
    LATENCY = "latency"


class Basis(str, Enum):
    """The data behind a decision."""

    SAMPLES = "samples"  # Intervals of medians.
    SESSIONS = "sessions"  # Single numbers and their spread between sessions.
    MEANS = "means"  # One number on a side, so that its noise is unknown.
    NOTHING = "nothing"  # A side has no number.


class StepTime(Frozen, frozen=True, kw_only=True):
    """
    Duration of a step.

    Attributes:
        mean_ms: Mean [ms].

        count: Steps with a known duration. With 0, only the mean is known.

        median_ms: Median [ms], or None if no step's duration is known.

        low_ms: Lower end of the median's interval [ms], or None with too few steps.

        high_ms: Upper end of the interval [ms].

        p95_ms: 95th percentile [ms], or None if no step's duration is known.
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
        kind: The kind, or "unattributed" for the time outside of all phases.

        ms: Exclusive time in a step [ms].

        fraction: Share of the step.
    """

    kind: str
    ms: float
    fraction: float


class LayerTime(Frozen, frozen=True, kw_only=True):
    """
    Time of one layer.

    Attributes:
        layer: Index of the layer, from 0.

        fwd_ms: Forward pass [ms].

        bwd_ms: Backward pass [ms].

        ratio: Backward over forward, or None if either took no time.

        top_op: The longest operation, the first by name among equals, or None if
            unknown.

        top_op_fraction: Share of that operation in the layer's operations.
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
        name: Name of the operation.

        ms: Time of the operation [ms].

        fraction: Share of all operations, or None if they took no time.
    """

    name: str
    ms: float
    fraction: float | None


class Decision(Frozen, frozen=True, kw_only=True):
    """
    A quantity compared with the baseline.

    Attributes:
        metric: The quantity.

        outcome: The outcome.

        basis: The data behind the decision.

        now: Current value, or None if not measured.

        base: Baseline value, or None if the baseline has none.

        tolerance: Change that passes, relative or for the coverage absolute. None if no
            limit applied.

        noise_fraction: Relative spread between the baseline's sessions, or None with
            fewer than three sessions.

        log_ratio: Natural logarithm of the worsening factor. Above 0 means worse. None
            if there is nothing to compare, or if the difference is judged, as for the
            coverage.

        low: Lower end of the log ratio's interval, or None without samples.

        high: Upper end of the interval.

        shared_by: Metrics that follow from this quantity and share its decision.

        why: Explanation of an outcome that is not a change, as a fragment.
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
    A ratio or a number of a step that must stay within bounds at any speed.

    Attributes:
        name: Name of the invariant, also shown in reports.

        part: The quantity, by a name of `compute.scorecard_invariants`.

        whole: The divisor, or None for no division.

        low: Lower bound, or None.

        high: Upper bound, or None.
    """

    name: str
    part: str
    whole: str | None = None
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        """Reject bounds that are not numbers or exclude every value, and missing bounds."""
        bounds = stated({"low": self.low, "high": self.high})
        refuse(list(not_finite("invariant", bounds)))
        if not bounds:
            refuse([Mistake(path="invariant", text=f"{self.name} has no bound")])
        if self.low is not None and self.high is not None and self.low > self.high:
            text = f"nothing is between {self.low!r} and {self.high!r}"
            refuse([Mistake(path="invariant", text=text)])


class InvariantResult(Frozen, frozen=True, kw_only=True):
    """
    Result of an invariant.

    Attributes:
        name: Name of the invariant.

        outcome: PASSED, FAILED or UNMEASURED.

        value: The number that was checked, or None if unknown.

        low: Lower bound.

        high: Upper bound.

        why: Why the value is unknown, as a fragment.
    """

    name: str
    outcome: Outcome
    value: float | None = None
    low: float | None = None
    high: float | None = None
    why: str = ""


class MeasuredScorecard(Frozen, frozen=True, kw_only=True):
    """
    Rating of a training step, with None for everything that the profile does not show.

    Attributes:
        policy: "measured", to distinguish the JSON from that of other tools.

        unit: Unit of work of the throughput, as "token".

        grade: The grade, or None without an efficiency or with an efficiency well above
            1.

        efficiency: Achieved over attainable throughput. Never clamped, so above 1 if
            the declared work or the peak is wrong.

        bound: The lower roof, "memory" or "compute", or None if only one roof is known.

        bandwidth_fraction: Achieved over peak bandwidth.

        compute_fraction: Achieved over peak arithmetic.

        bottleneck: The limiter of the step.

        evidence: The counter values that decided the bottleneck, the deciding one
            first. Empty if counters did not decide.

        device: Device activity in a mean step, or None without a trace.

        shares: Shares of a step's time, largest first.

        coverage: Exclusive time of all phases over the step.

        throughput: Units per second.

        step: Duration of a step.

        step_ms: Duration of each step [ms], to compare later runs with.

        backward_forward_ratio: All layers' backward time over all layers' forward time.

        layer_ratio_low: The smallest ratio of a layer.

        layer_ratio_median: Median ratio of the layers.

        layer_ratio_high: The largest ratio of a layer.

        layers: The layers, in the model's order.

        operations: All operations, longest first, then by name.

        sources: The weakest label among the inputs of each known number, by field.
            Values of a profile count as measured.

        machine: The machine of the profile, or empty if not stated.

        invariants: Results of the requested invariants.

        decisions: Decisions on all quantities of the baseline.

        recommendations: Recommended actions.

        notes: Unknown values with reasons, as sentences.
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
