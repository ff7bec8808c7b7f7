"""Occupancy of a multiprocessor, and the stalls of its warps."""

from __future__ import annotations

from collections.abc import Mapping
from math import fsum

from pytest_gpuperf.model.counters import STALLS
from pytest_gpuperf.model.environment import ChipLimits
from pytest_gpuperf.model.launch import KernelResources, Occupancy

__all__ = [
    "STALL_COUNTERS",
    "kernel_occupancy",
    "stall_shares",
    "theoretical_occupancy",
    "top_stall",
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
        The occupancy; None where nobody said how large its blocks are.
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


def top_stall(shares: Mapping[str, float]) -> tuple[str, float] | None:
    """
    Return the most frequent stall and its share; None where no warp stalled.

    A warp that was ready while another one issued is left out: it costs nothing.
    """
    costly = {name: share for name, share in shares.items() if name != _HARMLESS}
    name = max(sorted(costly), key=costly.__getitem__, default=None)
    return (name, costly[name]) if name is not None and costly[name] > 0 else None


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
