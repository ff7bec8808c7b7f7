"""Two runtimes that do the same work, side by side.

Milliseconds, as in the JSON that it is read from and written to.
"""

from __future__ import annotations

from collections.abc import Mapping

from pytest_gpuperf.model.frozen import Frozen, not_finite, refuse

__all__ = [
    "MeasuredParity",
    "OperationGap",
    "ParityComparison",
    "ParityGap",
    "ParityProfile",
]


class ParityProfile(Frozen, frozen=True, kw_only=True):
    """
    What one runtime needs for a step.

    Attributes:
        runtime: Its name.

        throughput_tok_s: Tokens per second.

        step_time_ms: Mean wall time of a step [ms].

        kernel_launches_per_step: Kernels that a step launches.

        ops: Time of each operation in a step [ms] by name.
    """

    runtime: str
    throughput_tok_s: float
    step_time_ms: float
    kernel_launches_per_step: int
    ops: Mapping[str, float] = {}

    def __post_init__(self) -> None:
        """Refuse what is not a finite number."""
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
    One operation that both runtimes have.

    Attributes:
        op: Its name.

        ours_ms: Its time in our runtime [ms].

        reference_ms: Its time in the other [ms].

        ratio: Ours over the other's; above 1 ours is slower.
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
    Two runtimes compared, by the rules of the comparisons in the wild.

    Attributes:
        ours_runtime: Our runtime.

        reference_runtime: The other.

        throughput_ratio: The other's throughput over ours; above 1 ours is slower; 0:
            ours has none.

        launch_ratio: Our launches over the other's; 0: the other has none.

        top_gaps: The operations with the largest ratios, largest first.

        parity_achieved: Whether no operation that both have is too much slower.
    """

    ours_runtime: str
    reference_runtime: str
    throughput_ratio: float
    launch_ratio: float
    top_gaps: tuple[ParityGap, ...]
    parity_achieved: bool


class OperationGap(Frozen, frozen=True, kw_only=True):
    """
    One operation that both runtimes have, by the time that it costs.

    Attributes:
        op: Its name in the reference.

        ours_ms: Its time in our runtime [ms].

        reference_ms: Its time in the other [ms].

        gap_ms: Ours less the other's [ms].

        gap_fraction: Its share of all that ours loses; None where ours does not lose.

        ratio: Ours over the other's; None where the other's is 0.

        counts: Whether it takes a share of the step that is worth judging.
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
    Two runtimes compared by time; None wherever a side does not tell.

    Attributes:
        ours_runtime: Our runtime.

        reference_runtime: The other.

        achieved: Whether ours is as fast; None: too little is known to say.

        reasons: Why it is not, or why that is not known.

        throughput_ratio: The other's throughput over ours; above 1 ours is slower.

        launch_ratio: Our launches over the other's.

        matched_ratio: Our time in shared operations over the other's.

        ours_overlap: Share of our operations' time that the other has too.

        reference_overlap: Share of the other's operations' time that ours has too.

        gaps: All shared operations, the largest loss first, then by name.

        ours_only: Operations that only ours has, with their times [ms].

        reference_only: Operations that only the other has.
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
