"""Standard figures out of counters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import ceil, fsum

from pytest_gpuperf.compute.occupancy import kernel_occupancy, theoretical_occupancy
from pytest_gpuperf.model.counters import (
    DECLARED_BYTES,
    CounterGap,
    LaunchCounters,
    mode_conflict,
)
from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.gap import GapCode
from pytest_gpuperf.model.launch import Occupancy
from pytest_gpuperf.model.metric import Combine, metric_of

__all__ = [
    "FORMULAS",
    "LAUNCH_COUNTERS",
    "Formula",
    "Way",
    "aggregate",
    "derived",
    "kernel_occupancy",
    "launch_occupancy",
    "missing_counters",
    "needed_counters",
    "over_launches",
    "theoretical_occupancy",
    "value_of",
]


class Way(Frozen, frozen=True, kw_only=True):
    """
    One way to a quantity.

    Attributes:
        needs: Standard counters, all of them.

        of: Their numbers, in this order, into the quantity; None: they give none.
    """

    needs: tuple[str, ...]
    of: Callable[..., float | None]


class Formula(Frozen, frozen=True, kw_only=True):
    """
    A quantity of one launch.

    Attributes:
        ways: Ways to it, best first.

        undefined: Why counters that are all there may give no value, as a fragment;
            None: they always do.
    """

    ways: tuple[Way, ...]
    undefined: str | None = None


def _same(number: float) -> float:
    """Return a counter as it is."""
    return number


def _sum(*numbers: float) -> float:
    """Return counters added up."""
    return sum(numbers)


def _ratio(part: float, whole: float) -> float | None:
    """Return a share of a whole; None of nothing."""
    return part / whole if whole > 0 else None


def _hits(hits: float, misses: float) -> float | None:
    """Return the share of hits; None where nothing was looked up."""
    return _ratio(hits, hits + misses)


def _lost(done: float, needed: float) -> float:
    """Return the share that was not needed; of nothing, nothing is lost."""
    return max(0.0, done - needed) / done if done > 0 else 0.0


def _lost_part(lost: float, done: float) -> float:
    """Return the share of what was lost; of nothing, nothing is lost."""
    return lost / done if done > 0 else 0.0


def _of_elapsed(active: float, active_cycles: float, elapsed: float) -> float | None:
    """Return a share of active cycles as one of all cycles."""
    share = _ratio(active_cycles, elapsed)
    return None if share is None else active * share


def _tail(waves: float) -> float | None:
    """Return the share of all waves' block slots that the last one leaves empty."""
    return (ceil(waves) - waves) / ceil(waves) if waves > 0 else None


def _waves(grid: float, sms: float, *limits: float) -> float | None:
    """Return how often a grid fills all multiprocessors; None: no block fits one."""
    return _ratio(grid, sms * min(limits))


_CYCLES = ("sm_active_cycles_count", "sm_elapsed_cycles_count")
_BLOCK_LIMITS = {  # in the order of `theoretical_occupancy`
    "threads": "warps_limit_blocks_count",
    "blocks": "blocks_limit_blocks_count",
    "registers": "registers_limit_blocks_count",
    "shared": "shared_limit_blocks_count",
    "barriers": "barriers_limit_blocks_count",
}
_REQUIRED = tuple(  # older versions do not tell the barriers
    name for kind, name in _BLOCK_LIMITS.items() if kind != "barriers"
)


def _only(name: str) -> Formula:
    """Return the formula of a quantity that a counter is."""
    return Formula(ways=(Way(needs=(name,), of=_same),))


FORMULAS: Mapping[str, Formula] = {
    "registers": _only("registers_count"),
    "shared_bytes": Formula(
        ways=(Way(needs=("static_shared_bytes", "dynamic_shared_bytes"), of=_sum),)
    ),
    "waves": Formula(
        ways=(
            Way(needs=("waves_count",), of=_same),
            Way(needs=("grid_blocks_count", "sm_count", *_REQUIRED), of=_waves),
        )
    ),
    "occupancy.theoretical": _only("warps_possible_fraction"),
    "occupancy.achieved": _only("warps_active_fraction"),
    "dram.bytes": Formula(
        ways=(
            Way(needs=("dram_bytes",), of=_same),
            Way(needs=("dram_read_bytes", "dram_write_bytes"), of=_sum),
        )
    ),
    "dram.fraction": _only("dram_throughput_fraction"),
    "dram.excess_ratio": Formula(
        ways=(
            Way(needs=("dram_bytes", DECLARED_BYTES), of=_ratio),
            Way(
                needs=("dram_read_bytes", "dram_write_bytes", DECLARED_BYTES),
                of=lambda read, write, declared: _ratio(read + write, declared),
            ),
        )
    ),
    "l2.hit_fraction": Formula(
        ways=(
            # the tool's own rate first: on some chips a sector misses twice
            Way(needs=("l2_hit_fraction",), of=_same),
            Way(needs=("l2_hit_sectors_count", "l2_miss_sectors_count"), of=_hits),
        ),
        undefined="nothing was looked up in the L2 cache",
    ),
    "global.uncoalesced_fraction": Formula(
        ways=(
            Way(needs=("global_sectors_count", "global_ideal_sectors_count"), of=_lost),
        )
    ),
    "shared.bank_conflict_fraction": Formula(
        ways=(
            Way(
                needs=("shared_wavefronts_count", "shared_ideal_wavefronts_count"),
                of=_lost,
            ),
            Way(
                needs=("shared_conflicts_count", "shared_pipe_wavefronts_count"),
                of=_lost_part,
            ),
        )
    ),
    "tensor.fraction": Formula(
        ways=(
            Way(needs=("tensor_pipe_fraction",), of=_same),
            Way(needs=("tensor_active_pipe_fraction", *_CYCLES), of=_of_elapsed),
        )
    ),
    "instructions.count": _only("instructions_count"),
    # what follows is not a metric of the catalogue: it explains, and nobody limits it
    "l2.fraction": _only("l2_throughput_fraction"),
    "l1.hit_fraction": _only("l1_hit_fraction"),
    **{
        f"global.{op}_sectors_per_request": Formula(
            ways=(
                Way(
                    needs=(f"global_{op}_sectors_count", f"global_{op}_requests_count"),
                    of=_ratio,
                ),
            ),
            undefined=f"there were no global {op}s",
        )
        for op in ("load", "store")
    },
    "sm.clock_hz": _only("sm_clock_hz"),
    "l1.fraction": Formula(
        ways=(
            Way(needs=("l1_throughput_fraction",), of=_same),
            Way(needs=("l1_active_throughput_fraction", *_CYCLES), of=_of_elapsed),
        )
    ),
    "sm.active_fraction": Formula(ways=(Way(needs=_CYCLES, of=_ratio),)),
    "waves.tail_fraction": Formula(ways=(Way(needs=("waves_count",), of=_tail),)),
}


def value_of(metric: str, values: Mapping[str, float]) -> float | None:
    """
    Return a quantity of one launch.

    Args:
        metric: A name of FORMULAS.

        values: Standard counters, in SI units.

    Returns:
        The quantity; None where counters are missing (`missing_counters` says which)
        or give none (`Formula.undefined` says why).

    Example:
        >>> value_of("dram.bytes", {"dram_read_bytes": 3e6, "dram_write_bytes": 1e6})
        4000000.0
    """
    for way in FORMULAS[metric].ways:
        try:
            numbers = [values[name] for name in way.needs]
        except KeyError:
            continue
        return way.of(*numbers)
    return None


def derived(values: Mapping[str, float]) -> dict[str, float | None]:
    """Return every quantity of FORMULAS for one launch; see `value_of`."""
    return {metric: value_of(metric, values) for metric in FORMULAS}


def missing_counters(metric: str, values: Mapping[str, float]) -> tuple[str, ...]:
    """
    Return the fewest standard counters whose lack leaves a launch without a quantity.

    Args:
        metric: A name of FORMULAS.

        values: Standard counters.

    Returns:
        What the way that lacks least lacks, the best such way's; empty: nothing is
        missing.
    """
    lacks = (
        tuple(name for name in way.needs if name not in values)
        for way in FORMULAS[metric].ways
    )
    return min(lacks, key=len)


def needed_counters(metrics: Iterable[str]) -> tuple[str, ...]:
    """Return the standard counters that metrics can be made of, each once."""
    formulas = (FORMULAS[metric] for metric in metrics if metric in FORMULAS)
    counters = (n for formula in formulas for way in formula.ways for n in way.needs)
    return tuple(dict.fromkeys(counters))


_WARP = 32  # threads, on every chip
LAUNCH_COUNTERS = (
    *_BLOCK_LIMITS.values(),
    "block_threads_count",
    "warps_possible_fraction",
)


def launch_occupancy(values: Mapping[str, float]) -> Occupancy | None:
    """
    Return the theoretical occupancy of a launch with what limits it, as it was profiled.

    Args:
        values: Standard counters of the launch.

    Returns:
        The occupancy; None where the block, its limits or the fraction are missing.
    """
    stated_limits = {ours: values.get(name) for ours, name in _BLOCK_LIMITS.items()}
    limits = {
        name: int(most) for name, most in stated_limits.items() if most is not None
    }
    threads = values.get("block_threads_count")
    fraction = values.get("warps_possible_fraction")
    lacking = any(name not in values for name in _REQUIRED)
    if threads is None or fraction is None or lacking:
        return None
    limiter = min(limits, key=limits.__getitem__)
    return Occupancy(
        fraction=fraction,
        active_blocks=limits[limiter],
        warps=limits[limiter] * ceil(threads / _WARP),
        limiter=limiter,
        block_limits=limits,
    )


_WEIGHT = "duration_s"
_COMBINED: Mapping[Combine, Callable[[Sequence[float]], float]] = {
    Combine.LARGEST: max,
    Combine.SMALLEST: min,
    Combine.SUM: fsum,
}


def aggregate(
    metric: str, values: Sequence[float], *, weights: Sequence[float] = ()
) -> float | None:
    """
    Return the value of several launches taken together.

    The catalogue says how; a mean is weighted by the launches' durations.

    Args:
        metric: Its name.

        values: One for each launch [its unit], >= 1 of them.

        weights: Durations of the launches; empty where they are not known.

    Returns:
        The value; None where rates of several launches cannot be weighed.

    Example:
        >>> aggregate("dram__bytes.sum", (1.0, 2.0))
        3.0
    """
    if len(values) == 1:
        return values[0]
    combine = metric_of(metric).combine
    if combine is Combine.MEAN:
        return _weighted(values, weights)
    return _COMBINED[combine](values)


def over_launches(
    metric: str, launches: Sequence[LaunchCounters]
) -> float | CounterGap:
    """
    Return a metric of several launches taken together.

    A launch for which it is not defined (a hit rate of nothing looked up) is left out.

    Args:
        metric: A name of FORMULAS.

        launches: Their counters, >= 1 of them.

    Returns:
        The value, put together as `aggregate` says; or why there is none. Counters of
        different replay, cache or clock modes are never put together.
    """
    for launch in launches[1:]:
        conflict = mode_conflict(launches[0].mode, launch.mode)
        if conflict is not None:
            return CounterGap(
                code=GapCode.INCOMPLETE,
                reason=conflict,
                remedy="collect all of them in one mode",
            )
    derived = [(value_of(metric, launch.values), launch.values) for launch in launches]
    lacking = [
        missing_counters(metric, values) for value, values in derived if value is None
    ]
    missing = tuple(dict.fromkeys(name for names in lacking for name in names))
    if missing:
        count = sum(not names for names in lacking) + len(derived) - len(lacking)
        which = f"{count} of {len(derived)} launches" if count else "no launch"
        code = GapCode.NOT_COLLECTED if count else GapCode.NOT_IN_REPORT
        reason = f"{which} in the report has it"
        return CounterGap(code=code, reason=reason, missing=missing)
    return _together(
        metric,
        [
            (value, values.get(_WEIGHT))
            for value, values in derived
            if value is not None
        ],
    )


def _weighted(values: Sequence[float], weights: Sequence[float]) -> float | None:
    """Return a weighted mean; None without a weight for each value."""
    if len(weights) != len(values) or not sum(weights) > 0:
        return None
    total = fsum(v * w for v, w in zip(values, weights, strict=True))
    # rounding may carry a mean past the values that it is made of
    return min(max(total / fsum(weights), min(values)), max(values))


def _together(
    metric: str, pairs: Sequence[tuple[float, float | None]]
) -> float | CounterGap:
    """Return values, each with its weight, as one."""
    if not pairs:
        return CounterGap(
            code=GapCode.NOT_DEFINED,
            reason=FORMULAS[metric].undefined or "it is not defined",
            remedy="choose other launches with kernel=",
        )
    weights = [weight for _, weight in pairs if weight is not None]
    value = aggregate(
        metric,
        [value for value, _ in pairs],
        weights=weights if len(weights) == len(pairs) else (),
    )
    if value is not None:
        return value
    return CounterGap(
        code=GapCode.INCOMPLETE,
        reason=f"a rate of {len(pairs)} launches, whose durations are not known",
        remedy="choose one launch with kernel=",
    )
