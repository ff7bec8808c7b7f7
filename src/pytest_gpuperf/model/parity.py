"""Comparison of two runtimes that do the same work.

Milliseconds, as in the JSON files.
"""

from __future__ import annotations

from collections.abc import Mapping

from pytest_gpuperf.model.frozen import Frozen, not_finite, refuse


class ParityProfile(Frozen, frozen=True, kw_only=True):
    """
    A runtime's profile of a step.

    Attributes:
        runtime: Name of the runtime.

        throughput_tok_s: Tokens per second.

        step_time_ms: Mean wall time of a step [ms].

        kernel_launches_per_step: Kernel launches per step.

        ops: Times of the operations in a step [ms] by name.
    """

    runtime: str
    throughput_tok_s: float
    step_time_ms: float
    kernel_launches_per_step: int
    ops: Mapping[str, float] = {}

    def __post_init__(self) -> None:
        """Reject values that are not finite numbers."""
        numbers = {
            "throughput_tok_s": self.throughput_tok_s,
            "step_time_ms": self.step_time_ms,
            "kernel_launches_per_step": self.kernel_launches_per_step,
        }
        refuse(
            [*not_finite("parity", numbers), *not_finite("parity.ops", self.ops)],
        )


class ParityGap(
    Frozen,
    frozen=True,
    kw_only=True,
    rename={"ours_ms": "apr_ms", "reference_ms": "baseline_ms"},
):
    """
    An operation that both runtimes have.

    Attributes:
        op: Name of the operation.

        ours_ms: Time in our runtime [ms].

        reference_ms: Time in the reference runtime [ms].

        ratio: Ours over the reference. Above 1, ours is slower.
    """

    op: str
    ours_ms: float
    reference_ms: float
    ratio: float


class ParityComparison(
    Frozen,
    frozen=True,
    kw_only=True,
    rename={"ours_runtime": "apr_runtime", "reference_runtime": "baseline_runtime"},
):
    """
    Two runtimes compared by the rules of other tools.

    Attributes:
        ours_runtime: Our runtime.

        reference_runtime: The reference runtime.

        throughput_ratio: The reference's throughput over ours. Above 1, ours is slower.
            0 if ours has no throughput.

        launch_ratio: Our launches over the reference's, or 0 if the reference has none.

        top_gaps: The operations with the largest ratios, largest first.

        parity_achieved: Whether no shared operation is too much slower.
    """

    ours_runtime: str
    reference_runtime: str
    throughput_ratio: float
    launch_ratio: float
    top_gaps: tuple[ParityGap, ...]
    parity_achieved: bool


class OperationGap(Frozen, frozen=True, kw_only=True):
    """
    An operation that both runtimes have, with the time it costs.

    Attributes:
        op: Name in the reference.

        ours_ms: Time in our runtime [ms].

        reference_ms: Time in the reference runtime [ms].

        gap_ms: Ours minus the reference [ms].

        gap_fraction: Share of our total loss, or None if ours does not lose.

        ratio: Ours over the reference, or None if the reference's time is 0.

        counts: Whether the operation's share of the step is large enough to judge.
    """

    op: str
    ours_ms: float
    reference_ms: float
    gap_ms: float
    gap_fraction: float | None
    ratio: float | None
    counts: bool


class MeasuredParity(Frozen, frozen=True, kw_only=True):
    """
    Two runtimes compared by time. None means that a profile lacks the data.

    Attributes:
        ours_runtime: Our runtime.

        reference_runtime: The reference runtime.

        achieved: Whether ours is as fast, or None if too little is known.

        reasons: Why ours is slower, or why that is unknown.

        throughput_ratio: The reference's throughput over ours. Above 1, ours is slower.

        launch_ratio: Our launches over the reference's.

        matched_ratio: Our time in shared operations over the reference's.

        ours_overlap: Share of our operations' time that the reference has too.

        reference_overlap: Share of the reference's operations' time that ours has too.

        gaps: All shared operations, the largest loss first, then by name.

        ours_only: Operations that only ours has, with their times [ms].

        reference_only: Operations that only the reference has, with their times [ms].
    """

    ours_runtime: str
    reference_runtime: str
    achieved: bool | None
    reasons: tuple[str, ...]
    throughput_ratio: float | None
    launch_ratio: float | None
    matched_ratio: float | None
    ours_overlap: float | None
    reference_overlap: float | None
    gaps: tuple[OperationGap, ...]
    ours_only: Mapping[str, float]
    reference_only: Mapping[str, float]
