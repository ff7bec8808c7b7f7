"""Standard figures of a launch: out of its counters, its occupancy and its stalls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import ceil, fsum

from pytest_gpuperf.model.activity import KernelResources, Occupancy
from pytest_gpuperf.model.counters import (
    COUNTED_DTYPES,
    DECLARED_BYTES,
    STALLS,
    CounterGap,
    LaunchCounters,
    mode_conflict,
)
from pytest_gpuperf.model.environment import ChipLimits
from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.gap import GapCode
from pytest_gpuperf.model.metric import Combine, metric_of

__all__ = [
    "FORMULAS",
    "LAUNCH_COUNTERS",
    "STALL_COUNTERS",
    "Formula",
    "Way",
    "aggregate",
    "costly_stalls",
    "derived",
    "kernel_occupancy",
    "launch_occupancy",
    "missing_counters",
    "needed_counters",
    "over_launches",
    "stall_shares",
    "theoretical_occupancy",
    "top_stall",
    "value_of",
]

# per issued instruction from the hardware, else by sampling the program counter
_KINDS = tuple(
    {reason: f"stall_{reason}_{unit}" for reason in STALLS}
    for unit in ("ratio", "samples_count")
)
# what some chips have no stall of (base metrics of libnvperf_host, GV100 to GR100)
_OF_SOME = frozenset({"gmma", "imc_miss", "tex_throttle", "warpgroup_arrive"})
_CORE = tuple(reason for reason in STALLS if reason not in _OF_SOME)
# such a warp could have issued and another one did: it costs nothing
_HARMLESS = "not_selected"

STALL_COUNTERS = tuple(name for kind in _KINDS for name in kind.values())


def theoretical_occupancy(
    *,
    registers_count: int,
    threads_per_block: int,
    shared_bytes: int,
    limits: ChipLimits,
    barriers_count: int = 0,
) -> Occupancy:
    """
    Return the theoretical occupancy of a kernel on one chip.

    The rules are those of NVIDIA's occupancy calculator, with shared memory at its
    largest setting, which the driver chooses unless it is told otherwise.

    Args:
        registers_count: Registers of a thread, >= 0.

        threads_per_block: Threads of a block, >= 1.

        shared_bytes: Static and dynamic shared memory of a block [B], >= 0, without
            the driver's share.

        limits: The chip's limits.

        barriers_count: Barriers of a block, >= 0; 0: none, or not known.

    Returns:
        The occupancy; fraction 0 where a block is larger than the chip allows, with
        the resource that forbids it as limiter.

    Example:
        >>> from pytest_gpuperf.collect.devices import chip_limits
        >>> theoretical_occupancy(
        ...     registers_count=77,
        ...     threads_per_block=128,
        ...     shared_bytes=2112,
        ...     limits=chip_limits((9, 0)),
        ... ).fraction
        0.375

    References:
        CUDA C++ Programming Guide 13.0, table 27; cuda_occupancy.h of CUDA 13.0.
    """
    warps = -(-threads_per_block // limits.warp_size_count)
    allowed = {
        "threads": _by_threads(warps, threads_per_block, limits),
        "blocks": limits.max_blocks_per_sm_count,
        "registers": _by_registers(warps, registers_count, limits),
        "shared": _by_shared(shared_bytes, limits),
        "barriers": _by_barriers(barriers_count, limits),
    }
    block_limits = {name: most for name, most in allowed.items() if most is not None}
    limiter = min(block_limits, key=block_limits.__getitem__)
    blocks = block_limits[limiter]
    return Occupancy(
        fraction=blocks * warps / limits.max_warps_per_sm_count,
        active_blocks=blocks,
        warps=blocks * warps,
        limiter=limiter,
        block_limits=block_limits,
    )


def kernel_occupancy(
    resources: KernelResources, limits: ChipLimits
) -> Occupancy | None:
    """
    Return the theoretical occupancy of a compiled kernel.

    Args:
        resources: What the compiler gave it; dynamic shared memory that the source
            did not name counts as none.

        limits: The limits of the chip it was compiled for.

    Returns:
        The occupancy; None: not known how large its blocks are.
    """
    if resources.threads_per_block is None:
        return None
    return theoretical_occupancy(
        registers_count=resources.registers_count,
        threads_per_block=resources.threads_per_block,
        shared_bytes=resources.shared_bytes + (resources.dynamic_shared_bytes or 0),
        limits=limits,
        barriers_count=resources.barriers_count or 0,
    )


def stall_shares(values: Mapping[str, float]) -> dict[str, float] | None:
    """
    Return the share of each stall reason of a launch.

    Args:
        values: Standard counters of the launch.

    Returns:
        The share of each stall that the chip has, their sum 1; None where a stall that
        every chip has was not collected, or no warp ever stalled.

    References:
        Nsight Compute, Kernel Profiling Guide, section "Statistical Sampler".
    """
    for kind in _KINDS:
        samples = {
            reason: values[name] for reason, name in kind.items() if name in values
        }
        total = fsum(samples.values())
        if total > 0 and all(reason in samples for reason in _CORE):
            return {reason: number / total for reason, number in samples.items()}
    return None


def costly_stalls(shares: Mapping[str, float]) -> dict[str, float]:
    """Return the shares of the stalls that cost time."""
    return {n: s for n, s in shares.items() if n != _HARMLESS and s > 0}


def top_stall(shares: Mapping[str, float]) -> tuple[str, float] | None:
    """
    Return the most frequent stall and its share; None where no warp stalled.

    A warp that was ready while another one issued is left out: it costs nothing.
    """
    costly = costly_stalls(shares)
    name = max(sorted(costly), key=costly.__getitem__, default=None)
    return None if name is None else (name, costly[name])


def _by_threads(warps: int, threads_per_block: int, limits: ChipLimits) -> int:
    """Return the blocks that fit the warp slots."""
    if threads_per_block > limits.max_threads_per_block_count:
        return 0
    return limits.max_warps_per_sm_count // warps


def _by_registers(warps: int, registers_count: int, limits: ChipLimits) -> int | None:
    """Return the blocks that fit the register file, partition by partition."""
    if registers_count == 0:
        return None
    if registers_count > limits.max_registers_per_thread_count:
        return 0
    per_warp = _round_up(
        registers_count * limits.warp_size_count, limits.register_allocation_count
    )
    parts = limits.warp_allocation_count
    if per_warp * _round_up(warps, parts) > limits.max_registers_per_block_count:
        return 0
    warps_per_part = limits.registers_per_sm_count // parts // per_warp
    return warps_per_part * parts // warps


def _by_shared(shared_bytes: int, limits: ChipLimits) -> int | None:
    """Return the blocks that fit the shared memory."""
    if shared_bytes > limits.max_shared_per_block_bytes:
        return 0
    per_block = _round_up(
        shared_bytes + limits.reserved_shared_per_block_bytes,
        limits.shared_allocation_bytes,
    )
    return limits.shared_per_sm_bytes // per_block if per_block else None


def _by_barriers(barriers_count: int, limits: ChipLimits) -> int | None:
    """Return the blocks that fit the barriers."""
    if barriers_count == 0 or limits.max_barriers_per_sm_count is None:
        return None
    return limits.max_barriers_per_sm_count // barriers_count


def _round_up(value: int, unit: int) -> int:
    """Return a number rounded up to a multiple of the unit."""
    return -(-value // unit) * unit


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

        shares: Ways to what the quantity is a share of, by which several launches are
            weighted; empty: of their time.
    """

    ways: tuple[Way, ...]
    undefined: str | None = None
    shares: tuple[Way, ...] = ()


def _same(number: float) -> float:
    """Return a counter as it is."""
    return number


def _sum(*numbers: float) -> float:
    """Return counters added up."""
    return sum(numbers)


def _ratio(part: float, whole: float) -> float | None:
    """Return a share of a whole; None of nothing."""
    return part / whole if whole > 0 else None


def _product(number: float, rate: float) -> float:
    """Return a rate as often."""
    return number * rate


def _flop_rate(add: float, mul: float, fma: float, clock: float) -> float:
    """Return the operations of a second; a multiply-add is two."""
    return (add + mul + 2 * fma) * clock


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


_OPERATIONS = ("add", "mul", "fma")  # in the order of `_flop_rate`
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
        shares=(Way(needs=("l2_hit_sectors_count", "l2_miss_sectors_count"), of=_sum),),
    ),
    "global.uncoalesced_fraction": Formula(
        ways=(
            Way(needs=("global_sectors_count", "global_ideal_sectors_count"), of=_lost),
        ),
        shares=(Way(needs=("global_sectors_count",), of=_same),),
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
        ),
        shares=(
            Way(needs=("shared_wavefronts_count",), of=_same),
            Way(needs=("shared_pipe_wavefronts_count",), of=_same),
        ),
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
    "dram.bytes_per_s": Formula(
        ways=(
            Way(needs=("dram_bytes", "duration_s"), of=_ratio),
            Way(
                needs=("dram_read_bytes", "dram_write_bytes", "duration_s"),
                of=lambda read, write, time: _ratio(read + write, time),
            ),
        ),
        undefined="it took no time",
    ),
    "dram.peak_bytes_per_s": Formula(
        ways=(
            Way(
                needs=("dram_peak_bytes_per_cycle_ratio", "dram_clock_hz"), of=_product
            ),
        )
    ),
    **{
        f"{dtype}.flop_per_s": Formula(
            ways=(
                Way(
                    needs=(
                        *(f"{dtype}_{op}_per_cycle_ratio" for op in _OPERATIONS),
                        "sm_clock_hz",
                    ),
                    of=_flop_rate,
                ),
            )
        )
        for dtype in COUNTED_DTYPES
    },
    **{
        f"{dtype}.peak_flop_per_s": Formula(
            ways=(
                Way(
                    needs=(f"{dtype}_peak_fma_per_cycle_ratio", "sm_clock_hz"),
                    of=lambda fma, clock: 2 * fma * clock,
                ),
            )
        )
        for dtype in COUNTED_DTYPES
    },
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
    return _first(FORMULAS[metric].ways, values)


def _first(ways: Iterable[Way], values: Mapping[str, float]) -> float | None:
    """Return what the first way gives whose counters are there; None: none are."""
    for way in ways:
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

    The catalogue says how; a mean is weighted.

    Args:
        metric: Its name.

        values: One for each launch [its unit], >= 1 of them.

        weights: What a mean weighs the launches by, as their durations; empty: not known.

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
        metric, [(value, values) for value, values in derived if value is not None]
    )


def _weighted(values: Sequence[float], weights: Sequence[float]) -> float | None:
    """Return a weighted mean; None without a weight for each value."""
    if len(weights) != len(values) or not sum(weights) > 0:
        return None
    total = fsum(v * w for v, w in zip(values, weights, strict=True))
    # rounding may carry a mean past the values that it is made of
    return min(max(total / fsum(weights), min(values)), max(values))


def _together(
    metric: str, pairs: Sequence[tuple[float, Mapping[str, float]]]
) -> float | CounterGap:
    """Return values, each with the counters that it is made of, as one."""
    if not pairs:
        return CounterGap(
            code=GapCode.NOT_DEFINED,
            reason=FORMULAS[metric].undefined or "it is not defined",
            remedy="choose other launches with kernel=",
        )
    counters = [values for _, values in pairs]
    value = aggregate(
        metric, [value for value, _ in pairs], weights=_weights(metric, counters)
    )
    if value is not None:
        return value
    return CounterGap(
        code=GapCode.INCOMPLETE,
        reason=f"a rate of {len(pairs)} launches, whose durations are not known",
        remedy="choose one launch with kernel=",
    )


def _weights(metric: str, launches: Sequence[Mapping[str, float]]) -> list[float]:
    """
    Return what a share of several launches is weighted by; empty: one is not known.

    A share of accesses is weighted by the accesses, which is the share of them all.
    """
    accesses = [_first(FORMULAS[metric].shares, values) for values in launches]
    known = [count for count in accesses if count is not None]
    if len(known) == len(launches) and sum(known) > 0:
        return known
    durations = [values[_WEIGHT] for values in launches if _WEIGHT in values]
    return durations if len(durations) == len(launches) else []
