"""Comparison of two runtimes on the same work."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from pytest_gpuperf.model.frozen import Frozen, Mistake, refuse, replace
from pytest_gpuperf.model.parity import (
    MeasuredParity,
    OperationGap,
    ParityComparison,
    ParityGap,
    ParityProfile,
)

__all__ = [
    "MEASURED_PARITY",
    "ParityComparison",
    "ParityGap",
    "ParityPolicy",
    "ParityProfile",
    "compare_parity",
    "measured_parity",
]

# The numbers of aprender/entrenar.
_LARGEST_RATIO = 1.10
_GAP_COUNT = 5

_LONGEST_MS = 1e15  # 30 thousand years. Sums of such times stay finite.


def compare_parity(ours: ParityProfile, reference: ParityProfile) -> ParityComparison:
    """
    Compare two runtimes by the rules of other tools.

    Parity holds unless an operation of both runtimes is more than a tenth slower in ours. Short
    operations count like long ones, the throughput does not count, and parity also holds
    without shared operations. `measured_parity` weighs by time.

    Args:
        ours: Our runtime.

        reference: The other runtime.

    Returns:
        The comparison. Finite input may overflow, so that a ratio can be infinite.

    References:
        docs/scorecard.md, section 1.
    """
    gaps = [
        ParityGap(
            op=name,
            ours_ms=ours.ops[name],
            reference_ms=reference.ops[name],
            ratio=ours.ops[name] / reference.ops[name],
        )
        for name in sorted(ours.ops.keys() & reference.ops.keys())
        if ours.ops[name] > 0 and reference.ops[name] > 0
    ]
    gaps.sort(key=lambda gap: gap.ratio, reverse=True)
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


class ParityPolicy(Frozen, frozen=True, kw_only=True):
    """
    The thresholds of a comparison by time.

    Attributes:
        tolerance: Largest relative loss of ours in throughput, in shared time, and in an
            operation that counts. 0.10 is a tenth.

        least_op_fraction: Share of its runtime's operations from which an operation counts,
            on either side.

        least_overlap: Share of both sides' time that shared operations must take. Below this
            share nothing is decided.

        launch_tolerance: Largest relative excess of launches in ours. With None, launches are
            shown but decide nothing, as launches cost time and the time is judged.

        aliases: The reference's name of an operation by our name, if the names differ.
    """

    tolerance: float = 0.10
    least_op_fraction: float = 0.01
    least_overlap: float = 0.80
    launch_tolerance: float | None = None
    aliases: Mapping[str, str] = {}


MEASURED_PARITY = ParityPolicy()


def measured_parity(
    ours: ParityProfile,
    reference: ParityProfile,
    *,
    policy: ParityPolicy = MEASURED_PARITY,
) -> MeasuredParity:
    """
    Compare two runtimes by throughput and time.

    Parity holds if throughput, the time of all shared operations, and each operation that
    counts are within the tolerance, and if enough of both sides is shared.

    Args:
        ours: Our runtime.

        reference: The other runtime.

        policy: The thresholds.

    Raises:
        RecordError: A time is below zero or above 1e15 ms. All such times are named.

    References:
        docs/scorecard.md, section 2.
    """
    refuse([*_impossible("ours", ours), *_impossible("reference", reference)])
    renamed: dict[str, list[float]] = {}
    for name, ms in ours.ops.items():
        renamed.setdefault(policy.aliases.get(name, name), []).append(ms)
    our_ops = {name: math.fsum(parts) for name, parts in renamed.items()}
    reference_ops = dict(reference.ops)
    gaps = _operation_gaps(our_ops, reference_ops, policy)
    shared_ours = math.fsum(gap.ours_ms for gap in gaps)
    shared_reference = math.fsum(gap.reference_ms for gap in gaps)
    comparison = MeasuredParity(
        ours_runtime=ours.runtime,
        reference_runtime=reference.runtime,
        achieved=None,
        reasons=(),
        # A throughput of 0 means that none was measured.
        throughput_ratio=_over(reference.throughput_tok_s, ours.throughput_tok_s)
        or None,
        launch_ratio=_over(
            ours.kernel_launches_per_step, reference.kernel_launches_per_step
        ),
        matched_ratio=_over(shared_ours, shared_reference),
        ours_overlap=_share(shared_ours, our_ops),
        reference_overlap=_share(shared_reference, reference_ops),
        gaps=gaps,
        ours_only=_only(our_ops, reference_ops),
        reference_only=_only(reference_ops, our_ops),
    )
    unknown = []
    if comparison.throughput_ratio is None:
        unknown.append("the throughput of a side is unknown")
    overlaps = comparison.ours_overlap, comparison.reference_overlap
    if any(share is None or share < policy.least_overlap for share in overlaps):
        unknown.append("shared operations take too little of the time")
    most, slower = 1 + policy.tolerance, []
    if (comparison.throughput_ratio or 0.0) > most:
        slower.append("throughput")
    if (comparison.matched_ratio or 0.0) > most:
        slower.append("time in shared operations")
    slower += [
        f"operation {gap.op}"
        for gap in gaps
        if gap.counts and gap.ours_ms > most * gap.reference_ms
    ]
    launches = policy.launch_tolerance
    if launches is not None and (comparison.launch_ratio or 0.0) > 1 + launches:
        slower.append("launches")
    achieved = False if slower else None if unknown else True
    return replace(comparison, achieved=achieved, reasons=(*slower, *unknown))


def _impossible(side: str, profile: ParityProfile) -> Iterator[Mistake]:
    for name in sorted(profile.ops):
        ms = profile.ops[name]
        if not 0 <= ms <= _LONGEST_MS:
            yield Mistake(
                path=f"{side}.ops.{name}", text=f"{ms!r} ms is not a time of a step"
            )


def _operation_gaps(
    our_ops: Mapping[str, float],
    reference_ops: Mapping[str, float],
    policy: ParityPolicy,
) -> tuple[OperationGap, ...]:
    shared = sorted(our_ops.keys() & reference_ops.keys())
    lost = math.fsum(max(0.0, our_ops[name] - reference_ops[name]) for name in shared)
    totals = math.fsum(our_ops.values()), math.fsum(reference_ops.values())
    least = policy.least_op_fraction
    gaps = (
        OperationGap(
            op=name,
            ours_ms=our_ops[name],
            reference_ms=reference_ops[name],
            gap_ms=our_ops[name] - reference_ops[name],
            gap_fraction=_over(our_ops[name] - reference_ops[name], lost),
            ratio=_over(our_ops[name], reference_ops[name]),
            counts=our_ops[name] >= least * totals[0]
            or reference_ops[name] >= least * totals[1],
        )
        for name in shared
    )
    return tuple(sorted(gaps, key=lambda gap: (-gap.gap_ms, gap.op)))


def _over(part: float, whole: float) -> float | None:
    if part < 0 or whole <= 0:
        return None
    quotient = part / whole
    return quotient if math.isfinite(quotient) else None


def _share(shared: float, ops: Mapping[str, float]) -> float | None:
    return _over(shared, math.fsum(ops.values()))


def _only(ops: Mapping[str, float], other_ops: Mapping[str, float]) -> dict[str, float]:
    """Return the operations missing in the other runtime, longest first, then by name."""
    alone = sorted(ops.keys() - other_ops.keys(), key=lambda name: (-ops[name], name))
    return {name: ops[name] for name in alone}
