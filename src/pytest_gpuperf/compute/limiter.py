"""The limiter of a launch, from its counters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from pytest_gpuperf.compute.derive import (
    LAUNCH_COUNTERS,
    STALL_COUNTERS,
    launch_occupancy,
    needed_counters,
    stall_shares,
    top_stall,
    value_of,
)
from pytest_gpuperf.model.activity import ActivitySummary
from pytest_gpuperf.model.counters import (
    PIPES,
    Analysis,
    Bound,
    BoundSide,
    CounterGap,
    Evidence,
    Limiter,
    LimiterName,
)
from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.gap import GapCode

# Product rule. Nsight Compute calls a lower share of every roof a latency issue.
_REACHED = 0.6
# Our choice. At a lower share of every roof, the closest roof bounds nothing.
_NEAR = 0.1
# Product rule. More idle time hides the effects of all kernels.
_IDLE = 0.3
# Our choice. Two passes of one launch differ by less.
_SLACK = 0.02
# Waves. Fewer leave multiprocessors, or slots of multiprocessors, without a block.
_FULL = 1.0
# Number of roofs shown next to the deciding roof, so that they fit into a line.
_SHOWN = 3

_Head = tuple[BoundSide, LimiterName, str]
# Roofs and their quantities. The order breaks ties.
_MEMORY = {
    LimiterName.DRAM: "dram.fraction",
    LimiterName.L2: "l2.fraction",
    LimiterName.L1: "l1.fraction",
}
_DERIVED_ROOFS: tuple[tuple[_Head, str], ...] = (
    *(((BoundSide.MEMORY, n, n.value), metric) for n, metric in _MEMORY.items()),
    ((BoundSide.COMPUTE, LimiterName.TENSOR, "tensor"), "tensor.fraction"),
)
_PIPE_ROOFS: tuple[tuple[_Head, str], ...] = tuple(
    ((BoundSide.COMPUTE, LimiterName.PIPE, pipe), f"{pipe}_pipe_fraction")
    for pipe in PIPES
)
_LSU = "lsu_pipe_fraction"  # A part of L1, and therefore no roof of its own.
# The share of the busiest part of a side, without the name of that part.
_WHOLE = {
    BoundSide.MEMORY: "memory_throughput_fraction",
    BoundSide.COMPUTE: "sm_throughput_fraction",
}
# Evidence for L1: accesses that a better layout would save.
_WASTED = {
    "uncoalesced": "global.uncoalesced_fraction",
    "bank conflicts": "shared.bank_conflict_fraction",
}
# Our choice. A smaller share is not worth a line.
_WORTH = 0.05
_METRICS = (
    *(metric for _, metric in _DERIVED_ROOFS),
    *_WASTED.values(),
    "waves",
    "waves.tail_fraction",
    "occupancy.achieved",
    "sm.active_fraction",
)
# Enough to name a limiter, though not every pipe and every stall.
LIMITING = (
    "duration_s",
    "dram_throughput_fraction",
    "l2_throughput_fraction",
    "l1_throughput_fraction",
    "tensor_pipe_fraction",
    _WHOLE[BoundSide.COMPUTE],
    "warps_active_fraction",
    "waves_count",
)
ANALYSIS_COUNTERS = (
    "duration_s",
    *needed_counters(_METRICS),
    *LAUNCH_COUNTERS,
    *(counter for _, counter in _PIPE_ROOFS),
    _LSU,
    *_WHOLE.values(),
    *STALL_COUNTERS,
)


class IdleShare(Frozen, frozen=True, kw_only=True):
    """
    The share of time in which no kernel ran.

    Attributes:
        fraction: Share of the whole time, 0 to 1.

        filled_by: The main filler: LAUNCH, SYNCHRONIZATION or TRANSFER. A gap with the reason
            if unknown.

        parts: The fillers, as shares of the whole time.
    """

    fraction: float
    filled_by: LimiterName | CounterGap
    parts: tuple[Evidence, ...] = ()


# A NamedTuple, because about fifteen are created per launch.
class _CountedRoof(NamedTuple):
    """One roof with its used share."""

    side: BoundSide
    limiter: LimiterName
    name: str
    fraction: float

    @property
    def evidence(self) -> Evidence:
        """The roof as evidence."""
        return Evidence(name=self.name, value=self.fraction)


def idle_share(activity: ActivitySummary | None) -> IdleShare | None:
    """
    Return the time without a kernel in a CUPTI recording, with the causes.

    Copies fill the time in which only copies ran. A gap in which a wait of the host ended is
    attributed to the wait, since the host could not launch ahead. Every other gap is
    attributed to launches, since the host was late with the next launch.

    Args:
        activity: The CUPTI recording, or None without a recording.

    Returns:
        The share. None if nothing was recorded, if no recorded work has a time, or if the
        recording comes from an earlier version without copying times.
    """
    if activity is None or not activity.span_s or activity.busy_s is None:
        return None
    if activity.copying_s is None:  # A file of an earlier version.
        return None
    whole_s, gaps_s = activity.span_s, activity.span_s - activity.busy_s
    fraction = (gaps_s + activity.copying_s) / whole_s
    unknown: CounterGap | None = None
    # Work that was not seen may have filled the gaps.
    if activity.untimed_count:
        unknown = CounterGap(
            code=GapCode.UNSUPPORTED,
            reason="no kernel seems to run for much of the time, but CUPTI did not time"
            f" {activity.untimed_count} of those that did",
            remedy="update the driver, or measure without other profilers",
        )
    elif activity.unseen:
        unknown = CounterGap(
            code=GapCode.UNSUPPORTED,
            reason="no kernel seems to run for much of the time, but child processes"
            f" ({', '.join(activity.unseen)}) may have run some",
            remedy="do the work in the test's own process",
        )
    if unknown is not None or activity.waited_s is None:
        return IdleShare(fraction=fraction, filled_by=unknown or _NO_WAITS)
    parts_s = {
        LimiterName.LAUNCH: gaps_s - activity.waited_s,
        LimiterName.SYNCHRONIZATION: activity.waited_s,
        LimiterName.TRANSFER: activity.copying_s,
    }
    ordered = sorted(parts_s, key=lambda name: -parts_s[name])
    return IdleShare(
        fraction=fraction,
        filled_by=ordered[0],
        parts=tuple(
            Evidence(name=name.value, value=parts_s[name] / whole_s)
            for name in ordered
            if parts_s[name] >= _WORTH * whole_s
        ),
    )


_NO_WAITS = CounterGap(
    code=GapCode.UNSUPPORTED,
    reason="no kernel ran for much of the time, and whether the host waited then"
    " is not recorded",
    remedy="pip install --upgrade nvidia-cuda-cupti, or update the driver",
)


def analyse(values: Mapping[str, float], *, idle: IdleShare | None = None) -> Analysis:
    """
    Analyse the counters of a launch.

    Args:
        values: Standard counters of the launch, those of ANALYSIS_COUNTERS.

        idle: Idle time around the launch, or None if unknown, as in a profiler's report.
    """
    roofs = _roofs(values)
    return Analysis(
        duration_s=values.get("duration_s"),
        bound=_bound(roofs),
        limiter=_limiter(values, roofs, idle),
    )


def bound(values: Mapping[str, float]) -> Bound | None:
    """
    Return the roof that a launch comes closest to.

    Ties are broken in the order DRAM, L2, L1, tensor, other pipes. None if no roof was
    collected or no roof is used to a tenth, as the launch is then bound by something else.
    """
    return _bound(_roofs(values))


def limiter(
    values: Mapping[str, float], *, idle: IdleShare | None = None
) -> Limiter | CounterGap:
    """
    Return the limiter of a launch, by the first rule that holds.

    1. More than 0.3 of the time without a kernel: what fills it, or why that is not known.
    2. The highest of DRAM, L2, L1, tensor and the other pipes, at 0.6 or more. Or
       the whole of memory or of the SMs, if no part that was seen accounts for it.
    3. Less than one wave of blocks: the grid is too small.
    4. Both sides below 0.6, warps resident: latency, with the most frequent stall.

    Args:
        values: Standard counters of the launch.

        idle: Idle time around the launch, or None if unknown.

    Returns:
        The limiter, or why the counters name none.
    """
    return _limiter(values, _roofs(values), idle)


def _bound(roofs: list[_CountedRoof]) -> Bound | None:
    """Return the closest roof, or None if no roof is used to a tenth."""
    closest = max(roofs, key=_fraction, default=None)
    if closest is None or closest.fraction < _NEAR:
        return None
    return Bound(side=closest.side, roof=closest.name, fraction=closest.fraction)


def _limiter(
    values: Mapping[str, float], roofs: list[_CountedRoof], idle: IdleShare | None
) -> Limiter | CounterGap:
    if idle is not None and idle.fraction > _IDLE:
        if isinstance(idle.filled_by, CounterGap):
            return idle.filled_by
        share = Evidence(name="no kernel", value=idle.fraction)
        return Limiter(name=idle.filled_by, evidence=(share, *idle.parts))
    ranked = sorted(roofs, key=_fraction, reverse=True)
    if ranked and ranked[0].fraction >= _REACHED:
        reached, *rest = ranked
        parts = []
        if reached.limiter is LimiterName.L1:
            # The evidence separates the number of accesses from the bytes moved, and names the
            # avoidable part.
            parts += [
                Evidence(name="lsu", value=values[n]) for n in (_LSU,) if n in values
            ]
            parts += [e for e in _named(values, _WASTED) if e.value >= _WORTH]
        lower_roofs = [roof.evidence for roof in rest[: _SHOWN - bool(parts)]]
        is_pipe = reached.limiter is LimiterName.PIPE
        return Limiter(
            name=reached.limiter,
            detail=reached.name if is_pipe else None,
            evidence=(reached.evidence, *parts, *lower_roofs),
        )
    waves = value_of("waves", values)
    if waves is not None and waves < _FULL:
        return Limiter(
            name=LimiterName.GRID,
            evidence=(
                Evidence(name="waves", value=waves, unit="count"),
                *_named(values, {"SM active": "sm.active_fraction"}),
                *(roof.evidence for roof in ranked[:2]),
            ),
        )
    return _latency(values, ranked)


def _latency(
    values: Mapping[str, float], ranked: list[_CountedRoof]
) -> Limiter | CounterGap:
    needed = [_WHOLE[BoundSide.COMPUTE]]
    if not _MEMORY.keys() <= {roof.limiter for roof in ranked}:
        needed.insert(0, _WHOLE[BoundSide.MEMORY])
    if value_of("waves", values) is None:
        needed += ["warps_active_fraction", "waves_count"]
    lacking = tuple(name for name in needed if name not in values)
    if lacking:
        reason = "no counter of its utilization was collected"
        if ranked:
            reason = "a counter that decides between the limiters was not collected"
        return CounterGap(code=GapCode.NOT_COLLECTED, reason=reason, missing=lacking)
    # A grid that fills the device had resident warps, even if they were not counted.
    if not values.get("warps_active_fraction", _FULL) > 0:
        return CounterGap(code=GapCode.NOT_DEFINED, reason="no warp was resident")
    shares = stall_shares(values)
    top = top_stall(shares) if shares is not None else None
    stall = () if top is None else (Evidence(name=f"stall {top[0]}", value=top[1]),)
    possible = []
    occupancy = launch_occupancy(values)
    if occupancy is not None and occupancy.fraction < 1:
        name = f"theoretical by {' and '.join(occupancy.limiters)}"
        possible.append(Evidence(name=name, value=occupancy.fraction))
    return Limiter(
        name=LimiterName.LATENCY,
        detail=None if top is None else top[0],
        evidence=(
            *stall,
            *(roof.evidence for roof in ranked[:2]),
            *_named(values, {"occupancy": "occupancy.achieved"}),
            *possible,
            *_named(values, {"SM active": "sm.active_fraction"}),
            *_named(values, {"tail": "waves.tail_fraction"}),
        ),
    )


def _roofs(values: Mapping[str, float]) -> list[_CountedRoof]:
    """
    Return the collected roofs, in the order that breaks ties.

    A whole side is a roof if it is busier than all its collected parts.
    """
    measured = [
        *((*head, value_of(metric, values)) for head, metric in _DERIVED_ROOFS),
        *((*head, values.get(counter)) for head, counter in _PIPE_ROOFS),
    ]
    named = [
        _CountedRoof(side, limiter, name, fraction)
        for side, limiter, name, fraction in measured
        if fraction is not None
    ]
    accounted = dict.fromkeys(BoundSide, 0.0)
    accounted[BoundSide.COMPUTE] = values.get(_LSU, 0.0)
    for roof in named:
        accounted[roof.side] = max(accounted[roof.side], roof.fraction)
    sides = {
        BoundSide.MEMORY: (LimiterName.MEMORY, "memory"),
        BoundSide.COMPUTE: (LimiterName.PIPE, "sm"),
    }
    wholes = [
        _CountedRoof(side, name, text, values[_WHOLE[side]])
        for side, (name, text) in sides.items()
        if values.get(_WHOLE[side], 0.0) > accounted[side] + _SLACK
    ]
    return [*named, *wholes]


def _named(values: Mapping[str, float], metrics: Mapping[str, str]) -> list[Evidence]:
    quantities = ((name, value_of(metric, values)) for name, metric in metrics.items())
    return [Evidence(name=name, value=value) for name, value in quantities if value]


def _fraction(roof: _CountedRoof) -> float:
    return roof.fraction
