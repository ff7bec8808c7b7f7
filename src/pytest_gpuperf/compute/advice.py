"""What to do about a slow training step: rules as data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.roofline import Grade
from pytest_gpuperf.model.scorecard import (
    UNATTRIBUTED,
    Bottleneck,
    MeasuredScorecard,
    Recommendation,
    StepLimiter,
    TrainingScorecard,
)
from pytest_gpuperf.model.steps import StepProfile

# Above this share of unattributed time, a bad grade gets a second advice.
LAUNCH_FRACTION = 0.30  # The training scorecard's limit (aprender/entrenar).
# At a larger share the measured policy names no bottleneck.
_UNATTRIBUTED_FRACTION = 0.20


_COPY_LESS = (
    "Copy less and copy earlier: keep on the device what the next step needs, "
    "use pinned host memory, and let copies overlap with kernels on a stream of "
    "their own."
)
_FIND_GAPS = (
    "Find what the device waits for outside the phases: give every part of "
    "the step a phase, then replay repeated launches as a graph and remove "
    "synchronisation between them."
)
_CHEAPER_ARITHMETIC = (
    "Make the arithmetic cheaper: use the matrix units with the narrowest "
    "type that the loss allows, and sizes that fill their tiles."
)
_FEWER_BYTES = (
    "Move fewer bytes for each token: fuse element-wise operations into "
    "their neighbours, store weights in a narrower type, or work on more tokens "
    "for each read of the weights."
)
_TIMELINE = (
    "Record a timeline of one step: time in no phase is either a gap between "
    "kernels or work that has no phase yet, and the two need different cures."
)
_CHECK_TIMER = (
    "Check the timing: a backward pass computes two gradients where the "
    "forward pass computes one product. Frozen layers explain it; a timer "
    "that does not wait for the device would look the same."
)
_OVERLAP_EXCHANGE = (
    "Hide the exchange: start it for each bucket of gradients while the backward pass "
    "still runs, and make the buckets large enough to fill the link."
)
_LOAD_AHEAD = (
    "Prepare batches ahead of the step: more loader processes, a queue of batches that "
    "are already on the device, and less decoding in the loop."
)

_LAUNCH_LESS = (
    "Launch less: replay the step's launches as a graph, or fuse its small kernels; the "
    "device had nothing to do while the host was still launching."
)
_RUN_AHEAD = (
    "Let the host run ahead: nothing in the step should read a value back from the "
    "device (a loss that is printed, a shape that depends on data) or wait for it."
)
_LARGER_GRID = (
    "Give each launch more work: its blocks do not fill the device once. A larger batch, "
    "or kernels side by side on several streams, would."
)
_HIDE_LATENCY = (
    "Give each multiprocessor more to switch between: more warps (fewer registers, less "
    "shared memory), or more independent loads in each."
)

_Card = TypeVar("_Card", TrainingScorecard, MeasuredScorecard)


class Rule(Frozen, Generic[_Card], frozen=True, kw_only=True):
    """
    One advice and the condition for giving it.

    Attributes:
        id: Permanent name of the rule.

        condition: The condition in words.

        fires: The condition as a function.

        evidence: Fields of the scorecard to show next to the advice.

        text: The advice.
    """

    id: str
    condition: str
    fires: Callable[[_Card, StepProfile], bool]
    evidence: tuple[str, ...]
    text: str

    def recommendation(self, scorecard: _Card) -> Recommendation:
        """Return the advice with the numbers of a scorecard."""
        return Recommendation(
            rule=self.id,
            condition=self.condition,
            evidence={
                name: number
                for name in self.evidence
                if (number := getattr(scorecard, name)) is not None
            },
            text=self.text,
        )


def recommendations(
    scorecard: _Card, profile: StepProfile, *, rules: Sequence[Rule[_Card]]
) -> tuple[Recommendation, ...]:
    """
    Return the advice of the rules that fire, in order.

    Args:
        scorecard: The scorecard, without recommendations.

        profile: The profile behind the scorecard.

        rules: The rules.
    """
    return tuple(
        rule.recommendation(scorecard)
        for rule in rules
        if rule.fires(scorecard, profile)
    )


def _slow_by(
    bottleneck: Bottleneck,
) -> Callable[[TrainingScorecard, StepProfile], bool]:
    def fires(scorecard: TrainingScorecard, _: StepProfile) -> bool:
        return scorecard.grade <= Grade.C and scorecard.bottleneck is bottleneck

    return fires


def _launches_too(scorecard: TrainingScorecard, _: StepProfile) -> bool:
    share = scorecard.launch_fraction
    return scorecard.grade <= Grade.D and share is not None and share > LAUNCH_FRACTION


def _limited_by(
    limiter: StepLimiter,
) -> Callable[[MeasuredScorecard, StepProfile], bool]:
    def fires(scorecard: MeasuredScorecard, _: StepProfile) -> bool:
        grade = scorecard.grade
        return (
            grade is not None and grade <= Grade.C and scorecard.bottleneck is limiter
        )

    return fires


def _unexplained(scorecard: MeasuredScorecard, _: StepProfile) -> bool:
    grade = scorecard.grade
    return (
        grade is not None
        and grade <= Grade.C
        and any(
            share.kind == UNATTRIBUTED and share.fraction > _UNATTRIBUTED_FRACTION
            for share in scorecard.shares
        )
    )


RULES: tuple[Rule[TrainingScorecard], ...] = (
    Rule(
        id="slow-transfer",
        condition="grade C or worse, and copies are the bottleneck",
        fires=_slow_by(Bottleneck.TRANSFER),
        evidence=("transfer_fraction",),
        text=_COPY_LESS,
    ),
    Rule(
        id="slow-launch",
        condition="grade C or worse, and time outside all phases is the bottleneck",
        fires=_slow_by(Bottleneck.LAUNCH),
        evidence=("launch_fraction",),
        text=_FIND_GAPS,
    ),
    Rule(
        id="slow-compute",
        condition="grade C or worse, and arithmetic is the bottleneck",
        fires=_slow_by(Bottleneck.COMPUTE),
        evidence=("efficiency",),
        text=_CHEAPER_ARITHMETIC,
    ),
    Rule(
        id="slow-memory",
        condition="grade C or worse, and no other bottleneck is found",
        fires=_slow_by(Bottleneck.MEMORY_BW),
        evidence=("efficiency",),
        text=_FEWER_BYTES,
    ),
    Rule(
        id="unexplained-time",
        condition="grade D or worse, and over 30 % of the step is in no phase",
        fires=_launches_too,
        evidence=("launch_fraction", "wall_coverage"),
        text=_TIMELINE,
    ),
    Rule(
        id="fast-backward",
        condition="the backward pass takes less time than the forward pass",
        fires=lambda scorecard, _: 0 < scorecard.forward_backward_ratio < 1,
        evidence=("forward_backward_ratio",),
        text=_CHECK_TIMER,
    ),
)

MEASURED_RULES: tuple[Rule[MeasuredScorecard], ...] = (
    Rule(
        id="slow-transfer",
        condition="grade C or worse, and copies are the bottleneck",
        fires=_limited_by(StepLimiter.TRANSFER),
        evidence=("efficiency",),
        text=_COPY_LESS,
    ),
    Rule(
        id="slow-communication",
        condition="grade C or worse, and exchange between devices is the bottleneck",
        fires=_limited_by(StepLimiter.COMMUNICATION),
        evidence=("efficiency",),
        text=_OVERLAP_EXCHANGE,
    ),
    Rule(
        id="slow-data",
        condition="grade C or worse, and waiting for data is the bottleneck",
        fires=_limited_by(StepLimiter.DATA),
        evidence=("efficiency",),
        text=_LOAD_AHEAD,
    ),
    Rule(
        id="slow-launch",
        condition="grade C or worse, and the device idles while the host launches",
        fires=_limited_by(StepLimiter.LAUNCH),
        evidence=("efficiency",),
        text=_LAUNCH_LESS,
    ),
    Rule(
        id="slow-wait",
        condition="grade C or worse, and the device idles while nothing is launched",
        fires=_limited_by(StepLimiter.WAIT),
        evidence=("efficiency",),
        text=_RUN_AHEAD,
    ),
    Rule(
        id="small-grid",
        condition="grade C or worse, and by the counters the grid is too small",
        fires=_limited_by(StepLimiter.GRID),
        evidence=("efficiency",),
        text=_LARGER_GRID,
    ),
    Rule(
        id="slow-latency",
        condition="grade C or worse, and by the counters latency is what limits",
        fires=_limited_by(StepLimiter.LATENCY),
        evidence=("efficiency",),
        text=_HIDE_LATENCY,
    ),
    Rule(
        id="slow-compute",
        condition="grade C or worse, and arithmetic is the bottleneck",
        fires=_limited_by(StepLimiter.COMPUTE),
        evidence=("compute_fraction",),
        text=_CHEAPER_ARITHMETIC,
    ),
    Rule(
        id="slow-memory",
        condition="grade C or worse, and memory is the bottleneck",
        fires=_limited_by(StepLimiter.MEMORY_BW),
        evidence=("bandwidth_fraction",),
        text=_FEWER_BYTES,
    ),
    Rule(
        id="unexplained-time",
        condition="grade C or worse, and over 20 % of the step is in no phase",
        fires=_unexplained,
        evidence=("coverage",),
        text=_TIMELINE,
    ),
)
