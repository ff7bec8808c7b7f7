"""The scorecard of a training step, and the one that says what it does not know.

Milliseconds and percent, as in the JSON that they are read from and written to; shares
of a measured scorecard are fractions.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
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

__all__ = [
    "BOTTLENECK_LIMITS",
    "HARDWARE",
    "UNATTRIBUTED",
    "Basis",
    "Bottleneck",
    "BottleneckLimits",
    "Decision",
    "Hardware",
    "Hotspot",
    "Invariant",
    "InvariantResult",
    "LayerSummary",
    "LayerTime",
    "MeasuredScorecard",
    "OperationTime",
    "PhaseShare",
    "Recommendation",
    "ScorecardRegression",
    "StepLimiter",
    "StepTime",
    "TrainingScorecard",
]


class BottleneckLimits(Frozen, frozen=True, kw_only=True):
    """
    Shares above which a bottleneck is named; a share that equals its limit is not.

    Attributes:
        transfer_fraction: Of the step, spent on copies between host and device.

        launch_fraction: Of the step, in none of its phases.

        compute_utilization: Of what the hardware could do.
    """

    transfer_fraction: float
    launch_fraction: float
    compute_utilization: float


# the training scorecard's limits (aprender/entrenar)
BOTTLENECK_LIMITS = BottleneckLimits(
    transfer_fraction=0.30, launch_fraction=0.40, compute_utilization=0.50
)


class Bottleneck(str, Enum):
    """What holds a training step back."""

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

            launch_fraction: Share of the step in none of its phases.

            compute_utilization: Share of what the hardware could do.

            limits: The limits.

        Raises:
            RecordError: A share is not a finite number; all of them are named.

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
        refuse(list(not_finite("", shares)), remedy="ask only for what was measured")
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
        """Return what `classify` does, of shares that may have overflowed."""
        if transfer_fraction > limits.transfer_fraction:
            return cls.TRANSFER
        if launch_fraction > limits.launch_fraction:
            return cls.LAUNCH
        if compute_utilization > limits.compute_utilization:
            return cls.COMPUTE
        return cls.MEMORY_BW


class Hardware(Frozen, frozen=True, kw_only=True):
    """
    What the hardware can do, and what one token asks of it.

    Attributes:
        peak_bw_gb_s: Peak DRAM bandwidth [GB/s].

        bytes_per_token: Bytes that a token must move [B].

        peak_flop_per_s: Peak of the arithmetic that a token uses [FLOP/s]; None: not
            said.

        flop_per_token: Operations that a token needs [FLOP]; None: not said.

        source: Where the numbers come from: a label, as "declared" or "datasheet".

        sources: The labels of single numbers, by field, where they are not `source`.
    """

    peak_bw_gb_s: float
    bytes_per_token: float
    peak_flop_per_s: float | None = None
    flop_per_token: float | None = None
    source: SourceLabel | str = "declared"
    sources: Mapping[str, SourceLabel | str] = {}

    def __post_init__(self) -> None:
        """Refuse what is not a finite number, and a label that is none."""
        needed = {
            "peak_bw_gb_s": self.peak_bw_gb_s,
            "bytes_per_token": self.bytes_per_token,
        }
        optional = {
            "peak_flop_per_s": self.peak_flop_per_s,
            "flop_per_token": self.flop_per_token,
        }
        refuse(
            [
                *not_finite("hardware", needed | stated(optional)),
                *_mislabelled(self.source, self.sources, {*needed, *optional}),
            ]
        )

    def label(self, name: str) -> SourceLabel:
        """Return where one of the numbers comes from, by the name of its field."""
        return SourceLabel(self.sources.get(name, self.source))

    @property
    def peak_throughput_tok_s(self) -> float:
        """Tokens that the bandwidth alone allows [1/s]; of no bytes, infinitely many."""
        bytes_per_s = self.peak_bw_gb_s * 1e9  # GB/s
        if self.bytes_per_token == 0:
            return bytes_per_s * math.copysign(math.inf, self.bytes_per_token)
        return bytes_per_s / self.bytes_per_token


def _mislabelled(
    source: object, sources: Mapping[str, object], fields: Collection[str]
) -> Iterator[Mistake]:
    """Yield the labels of hardware that are none, or of no field."""
    labels = [label.value for label in SourceLabel]
    labelled = {"source": source} | {
        f"sources.{name}": sources[name] for name in sources
    }
    for path, label in labelled.items():
        if label not in labels:
            text = f"{shown(label)} is not a label; write one of {', '.join(labels)}"
            yield Mistake(path=f"hardware.{path}", text=text)
    for name in sorted(sources.keys() - set(fields)):
        text = f"hardware has no number {name!r}"
        yield Mistake(path=f"hardware.sources.{name}", text=text)


def _preset(peak_bw_gb_s: float) -> Hardware:
    """Return a preset: a sheet's bandwidth, and the bytes of somebody's model."""
    return Hardware(
        peak_bw_gb_s=peak_bw_gb_s,
        # one small quantised model with adapters (aprender/entrenar's presets)
        bytes_per_token=158e6,
        source="datasheet",
        sources={"bytes_per_token": "estimated"},
    )


HARDWARE: Mapping[str, Hardware] = MappingProxyType(
    {"rtx-4060-laptop": _preset(256.0), "gb10": _preset(273.0)}
)


class LayerSummary(Frozen, frozen=True, kw_only=True):
    """
    One layer in short.

    Attributes:
        layer: Its place, from 0.

        fwd_ms: Its forward pass [ms].

        bwd_ms: Its backward pass [ms].

        ratio: Backward over forward; 0 where the forward pass took no time.

        top_op: Its longest operation; "" where none is known.

        top_op_pct: That operation's share of the layer's operations [%].
    """

    layer: int
    fwd_ms: float
    bwd_ms: float
    ratio: float
    top_op: str = ""
    top_op_pct: float = 0.0


class Hotspot(Frozen, frozen=True, kw_only=True, array_like=True):
    """
    An operation with its time over all layers; in a file, a list.

    Attributes:
        name: Its name.

        ms: Its time [ms].

        pct: Its share of all operations [%].
    """

    name: str
    ms: float
    pct: float


class ScorecardRegression(Frozen, frozen=True, kw_only=True):
    """
    A number of a scorecard that got worse than the baseline's.

    Attributes:
        metric: The field that got worse.

        delta: Its change: relative to the baseline; of the coverage, the difference.

        severity: "warning" or "critical".
    """

    metric: str
    delta: float
    severity: str


class Recommendation(Frozen, frozen=True, kw_only=True):
    """
    One advice, and why it is given.

    Attributes:
        rule: The rule's stable name; "" where a file gave the text alone.

        condition: When the rule fires, in words.

        evidence: The numbers that made it fire, by name.

        text: The advice.
    """

    text: str
    rule: str = ""
    condition: str = ""
    evidence: Mapping[str, float] = {}


class TrainingScorecard(Frozen, frozen=True, kw_only=True):
    """
    How good a training step is, by the rules of the scorecards in the wild.

    Its last three fields are how the bottleneck was found; None in a scorecard that was
    read from a file, which does not hold them.

    Attributes:
        grade: The grade; of a file, any text.

        efficiency: Achieved over possible throughput, 0 to 1.

        bottleneck: What holds the step back.

        throughput_tok_s: Tokens per second.

        step_time_ms: Mean wall time of a step [ms].

        forward_backward_ratio: Mean of the layers' backward over forward; 0: not known.

        wall_coverage: Share of the wall time that the phases explain.

        per_layer_summary: The layers, in the model's order.

        hotspot_ops: The longest operations, longest first.

        regressions: What got worse.

        recommendations: What to do.

        peak_throughput_tok_s: Tokens per second that the hardware allows.

        transfer_fraction: Share of the step spent on copies.

        launch_fraction: Share of the step in none of its phases.
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
        """Why the efficiency cannot be, as a sentence; None: it can."""
        peak, rate = self.peak_throughput_tok_s, self.throughput_tok_s
        if peak is None or rate <= peak or peak <= 0:
            return None
        return (
            f"{_plain(rate)} tokens/s are more than the {_plain(peak)} that the hardware "
            f"allows ({_plain(rate / peak)} times): the throughput, the bandwidth or the "
            "bytes per token are wrong, and the grade means nothing"
        )


def _plain(number: float) -> str:
    """Return a number above 0 with three digits or more, and no exponent if it is large."""
    return f"{number:.0f}" if number >= 100 else f"{number:.3g}"  # noqa: PLR2004 - three digits before the point


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

        device: What the device did in a mean step; None: it was not traced.

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
