"""Two runtimes that do the same work, compared; PYTEST_DONT_REWRITE."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_gpuperf.model.parity import ParityComparison, ParityGap, ParityProfile

__all__ = [
    "ParityComparison",
    "ParityGap",
    "ParityProfile",
    "compare_parity",
]

# aprender/entrenar's numbers
_LARGEST_RATIO = 1.10
_GAP_COUNT = 5


def compare_parity(ours: ParityProfile, reference: ParityProfile) -> ParityComparison:
    """
    Return two runtimes compared, as other tools of this kind compare them.

    Parity holds unless an operation that both have is more than a tenth slower in ours,
    however short it is, whatever the throughput says, and also where they share none.
    `measured_parity` weighs by time.

    Args:
        ours: Our runtime.

        reference: The other.

    Returns:
        The comparison. Finite input may overflow: a ratio can be infinite.

    References:
        docs/scorecard.md, section 1.
    """
    gaps = sorted(_gaps(ours, reference), key=lambda gap: gap.ratio, reverse=True)
    throughput = ours.throughput_tok_s
    launches = float(reference.kernel_launches_per_step)
    return ParityComparison(
        ours_runtime=ours.runtime,
        reference_runtime=reference.runtime,
        throughput_ratio=(
            reference.throughput_tok_s / throughput if throughput > 0 else 0.0
        ),
        launch_ratio=(
            float(ours.kernel_launches_per_step) / launches if launches > 0 else 0.0
        ),
        top_gaps=tuple(gaps[:_GAP_COUNT]),
        parity_achieved=all(gap.ratio <= _LARGEST_RATIO for gap in gaps),
    )


def _gaps(ours: ParityProfile, reference: ParityProfile) -> Iterator[ParityGap]:
    """Yield the operations that take time in both, by name."""
    for name in sorted(ours.ops.keys() & reference.ops.keys()):
        mine, others = ours.ops[name], reference.ops[name]
        if mine > 0 and others > 0:
            yield ParityGap(
                op=name, ours_ms=mine, reference_ms=others, ratio=mine / others
            )
