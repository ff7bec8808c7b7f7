"""Standard figures of a launch, from its counters: quantities, occupancy and stalls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import ceil, fsum
from operator import mul

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

# Per issued instruction from the hardware, else by sampling the program counter.
_KINDS = tuple(
    {reason: f"stall_{reason}_{unit}" for reason in STALLS}
    for unit in ("ratio", "samples_count")
)
# Stalls that some chips do not have (base metrics of libnvperf_host, GV100 to GR100).
_OF_SOME = frozenset({"gmma", "imc_miss", "tex_throttle", "warpgroup_arrive"})
_CORE = tuple(reason for reason in STALLS if reason not in _OF_SOME)
# The warp was ready, but another warp was issued instead. This costs no time.
_HARMLESS = "not_selected"

STALL_COUNTERS = tuple(name for kind in _KINDS for name in kind.values())


def theoretical_occupancy(
    *,
    registers_count: int,
    threads_per_block: int,
    shared_bytes: int,
    limits: ChipLimits,
    barriers_count: int = 0,
    scalar_registers_count: int = 0,
) -> Occupancy:
    """
    Return the theoretical occupancy of a kernel on a chip.

    The rules are those of NVIDIA's occupancy calculator, with shared memory at its
    largest setting, which is the driver's default.

    Args:
        registers_count: Registers of a thread, >= 0.

        threads_per_block: Threads of a block, >= 1.

        shared_bytes: Static and dynamic shared memory of a block [B], >= 0, without
            the driver's share.

        limits: The chip's limits.

        barriers_count: Barriers of a block, >= 0. 0 means none or unknown.

        scalar_registers_count: Scalar registers of a warp, >= 0. 0 means none or unknown.

    Returns:
        The occupancy. The fraction is 0 if a block is larger than the chip allows, and the
        limiter is then the resource that forbids the block.

    Example:
        >>> from pytest_gpuperf.collect.chip_limits import chip_limits
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
    by_threads = limits.max_warps_per_sm_count // warps
    if threads_per_block > limits.max_threads_per_block_count:
        by_threads = 0
    per_block = _round_up(
        shared_bytes + limits.reserved_shared_per_block_bytes,
        limits.shared_allocation_bytes,
    )
    by_shared = limits.shared_per_sm_bytes // per_block if per_block else None
    if shared_bytes > limits.max_shared_per_block_bytes:
        by_shared = 0
    most_barriers, by_barriers = limits.max_barriers_per_sm_count, None
    if barriers_count and most_barriers is not None:
        by_barriers = most_barriers // barriers_count
    allowed = {
        "threads": by_threads,
        "blocks": limits.max_blocks_per_sm_count,
        "registers": _by_registers(warps, registers_count, limits),
        "scalar registers": _by_scalar_registers(warps, scalar_registers_count, limits),
        "shared": by_shared,
        "barriers": by_barriers,
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
        resources: Resources that the compiler assigned. Dynamic shared memory counts as
            none if the source did not name an amount.

        limits: The limits of the chip that the kernel was compiled for.

    Returns:
        The occupancy, or None if the block size is unknown.
    """
    if resources.threads_per_block is None:
        return None
    return theoretical_occupancy(
        registers_count=resources.registers_count,
        threads_per_block=resources.threads_per_block,
        shared_bytes=resources.shared_bytes + (resources.dynamic_shared_bytes or 0),
        limits=limits,
        barriers_count=resources.barriers_count or 0,
        scalar_registers_count=resources.scalar_registers_count or 0,
    )


def stall_shares(values: Mapping[str, float]) -> dict[str, float] | None:
    """
    Return the shares of the stall reasons of a launch.

    Args:
        values: Standard counters of the launch.

    Returns:
        The share of each stall that the chip has, with a sum of 1. None if a stall that
        every chip has was not collected, or if no warp ever stalled.

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
    Return the most frequent stall with the share, or None if no warp stalled.

    Warps that were ready while another warp issued are left out, because they cost no time.
    """
    costly = costly_stalls(shares)
    name = max(sorted(costly), key=costly.__getitem__, default=None)
    return None if name is None else (name, costly[name])


def _by_registers(warps: int, registers_count: int, limits: ChipLimits) -> int | None:
    """
    Return the blocks that fit the register file, or None for a kernel without registers.

    Registers are allocated partition by partition.
    """
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


def _by_scalar_registers(
    warps: int, registers_count: int, limits: ChipLimits
) -> int | None:
    """Return the blocks whose scalar registers fit, or None if they never limit."""
    most = limits.scalar_registers_per_part_count
    if most is None or not registers_count:
        return None
    per_warp = _round_up(registers_count, limits.scalar_allocation_count)
    return most // per_warp * limits.warp_allocation_count // warps


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


class Way(Frozen, frozen=True, kw_only=True):
    """
    One way to calculate a quantity.

    Attributes:
        needs: The standard counters needed, all of them.

        of: Function from the counters, in this order, to the quantity, or to None if the
            quantity is undefined.
    """

    needs: tuple[str, ...]
    of: Callable[..., float | None]


class Formula(Frozen, frozen=True, kw_only=True):
    """
    A quantity of one launch.

    Attributes:
        ways: Ways to calculate the quantity, best first.

        undefined: Why complete counters may give no value, as a fragment. None if they always
            give one.

        shares: Ways to calculate the total that the quantity is a share of. Several launches
            are weighted by this total, or by time if empty.
    """

    ways: tuple[Way, ...]
    undefined: str | None = None
    shares: tuple[Way, ...] = ()


def _same(number: float) -> float:
    return number


def _sum(*numbers: float) -> float:
    return sum(numbers)


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None


def _hits(hits: float, misses: float) -> float | None:
    return _ratio(hits, hits + misses)


def _lost(done: float, needed: float) -> float:
    return max(0.0, done - needed) / done if done > 0 else 0.0


def _of_elapsed(active: float, active_cycles: float, elapsed: float) -> float | None:
    """Convert a share of active cycles to a share of all cycles, or None without cycles."""
    share = _ratio(active_cycles, elapsed)
    return None if share is None else active * share


def _tail(waves: float) -> float | None:
    """Return the share of block slots in all waves that the last wave leaves empty."""
    return (ceil(waves) - waves) / ceil(waves) if waves > 0 else None


def _waves(grid: float, sms: float, *limits: float) -> float | None:
    """Return how often a grid fills all multiprocessors, or None if no block fits."""
    return _ratio(grid, sms * min(limits))


_OPERATIONS = ("add", "mul", "fma")  # In the order of `_flop_rate`.
_CYCLES = ("sm_active_cycles_count", "sm_elapsed_cycles_count")
_BLOCK_LIMITS = {  # In the order of `theoretical_occupancy`.
    "threads": "warps_limit_blocks_count",
    "blocks": "blocks_limit_blocks_count",
    "registers": "registers_limit_blocks_count",
    "shared": "shared_limit_blocks_count",
    "barriers": "barriers_limit_blocks_count",
}
# Older versions do not report the barriers.
_REQUIRED = tuple(name for kind, name in _BLOCK_LIMITS.items() if kind != "barriers")


def _only(name: str) -> Formula:
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
            # The tool's own rate comes first, because on some chips a sector misses twice.
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
                of=lambda lost, done: lost / done if done > 0 else 0.0,
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
    # The remaining quantities are no metrics of the catalogue. They explain a result and
    # cannot be limited.
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
        ways=(Way(needs=("dram_peak_bytes_per_cycle_ratio", "dram_clock_hz"), of=mul),)
    ),
    **{
        f"{dtype}.flop_per_s": Formula(
            ways=(
                Way(
                    needs=(
                        *(f"{dtype}_{op}_per_cycle_ratio" for op in _OPERATIONS),
                        "sm_clock_hz",
                    ),
                    of=lambda add, mul, fma, clock: (add + mul + 2 * fma) * clock,
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
    Return a quantity of a launch.

    Args:
        metric: A name of FORMULAS.

        values: Standard counters, in SI units.

    Returns:
        The quantity. None if counters are missing (see `missing_counters`), or if the
        quantity is undefined (see `Formula.undefined`).

    Example:
        >>> value_of("dram.bytes", {"dram_read_bytes": 3e6, "dram_write_bytes": 1e6})
        4000000.0
    """
    return _first(FORMULAS[metric].ways, values)


def _first(ways: Iterable[Way], values: Mapping[str, float]) -> float | None:
    for way in ways:
        try:
            numbers = [values[name] for name in way.needs]
        except KeyError:
            continue
        return way.of(*numbers)
    return None


def derived(values: Mapping[str, float]) -> dict[str, float | None]:
    """Return every quantity of FORMULAS for a launch, as `value_of` does."""
    return {metric: value_of(metric, values) for metric in FORMULAS}


def missing_counters(metric: str, values: Mapping[str, float]) -> tuple[str, ...]:
    """
    Return the fewest standard counters that are missing for a quantity of a launch.

    Args:
        metric: A name of FORMULAS.

        values: Standard counters.

    Returns:
        The missing counters of the way that lacks the fewest, preferring better ways.
        Empty if nothing is missing.
    """
    lacks = (
        tuple(name for name in way.needs if name not in values)
        for way in FORMULAS[metric].ways
    )
    return min(lacks, key=len)


def needed_counters(metrics: Iterable[str]) -> tuple[str, ...]:
    """Return the standard counters of all ways to calculate metrics, without duplicates."""
    formulas = (FORMULAS[metric] for metric in metrics if metric in FORMULAS)
    counters = (n for formula in formulas for way in formula.ways for n in way.needs)
    return tuple(dict.fromkeys(counters))


_WARP = 32  # Threads, on every chip.
LAUNCH_COUNTERS = (
    *_BLOCK_LIMITS.values(),
    "block_threads_count",
    "warps_possible_fraction",
)


def launch_occupancy(values: Mapping[str, float]) -> Occupancy | None:
    """
    Return the theoretical occupancy of a profiled launch, with the limiter.

    Args:
        values: Standard counters of the launch.

    Returns:
        The occupancy. None if the block, its limits or the fraction are missing.
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
    Combine the values of several launches.

    The catalogue defines how. A mean is weighted.

    Args:
        metric: Name of the metric.

        values: One value per launch [the metric's unit], >= 1 of them.

        weights: Weights of the launches in a mean, such as their durations. Empty if unknown.

    Returns:
        The value. None if rates of several launches have no weights.

    Example:
        >>> aggregate("dram__bytes.sum", (1.0, 2.0))
        3.0
    """
    if len(values) == 1:
        return values[0]
    combine = metric_of(metric).combine
    if combine is not Combine.MEAN:
        return _COMBINED[combine](values)
    if len(weights) != len(values) or not sum(weights) > 0:
        return None
    total = fsum(v * w for v, w in zip(values, weights, strict=True))
    # Rounding may move a mean past the smallest or largest value.
    return min(max(total / fsum(weights), min(values)), max(values))


def over_launches(
    metric: str, launches: Sequence[LaunchCounters]
) -> float | CounterGap:
    """
    Return a metric of several launches taken together.

    A launch is left out if the metric is not defined for it, as a hit rate without lookups.

    Args:
        metric: A name of FORMULAS.

        launches: Counters of the launches, >= 1 of them.

    Returns:
        The value, combined as in `aggregate`, or the reason why there is none. Counters of
        different replay, cache or clock modes are never combined.
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
    pairs = [(value, values) for value, values in derived if value is not None]
    if not pairs:
        return CounterGap(
            code=GapCode.NOT_DEFINED,
            reason=FORMULAS[metric].undefined or "it is not defined",
            remedy="choose other launches with kernel=",
        )
    weights = _weights(metric, [values for _, values in pairs])
    combined = aggregate(metric, [value for value, _ in pairs], weights=weights)
    if combined is not None:
        return combined
    return CounterGap(
        code=GapCode.INCOMPLETE,
        reason=f"a rate of {len(pairs)} launches, whose durations are not known",
        remedy="choose one launch with kernel=",
    )


def _weights(metric: str, launches: Sequence[Mapping[str, float]]) -> list[float]:
    """
    Return the weights of launches for a share, or [] if a weight is unknown.

    A share of accesses is weighted by the number of accesses, which gives the share of all
    accesses.
    """
    accesses = [_first(FORMULAS[metric].shares, values) for values in launches]
    known = [count for count in accesses if count is not None]
    if len(known) == len(launches) and sum(known) > 0:
        return known
    durations = [values[_WEIGHT] for values in launches if _WEIGHT in values]
    return durations if len(durations) == len(launches) else []
