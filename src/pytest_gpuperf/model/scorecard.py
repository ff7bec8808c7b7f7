"""The scorecard of a training step.

Milliseconds and percent, as in the JSON that it is read from and written to.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from enum import Enum
from types import MappingProxyType

from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.grade import Grade
from pytest_gpuperf.model.mistakes import (
    Mistake,
    not_finite,
    refuse,
    shown,
    stated,
)
from pytest_gpuperf.model.sample import SourceLabel

__all__ = [
    "BOTTLENECK_LIMITS",
    "HARDWARE",
    "Bottleneck",
    "BottleneckLimits",
    "Hardware",
    "Hotspot",
    "LayerSummary",
    "Recommendation",
    "ScorecardRegression",
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
    given = {"source": source} | {f"sources.{name}": sources[name] for name in sources}
    for path, label in given.items():
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
