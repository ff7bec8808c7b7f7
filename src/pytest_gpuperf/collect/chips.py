"""What a multiprocessor of each NVIDIA chip can hold; PYTEST_DONT_REWRITE."""

from __future__ import annotations

import re

from pytest_gpuperf.model.device import ChipLimits

__all__ = ["chip_limits", "target_capability"]

_KIB = 1024
_TARGET = re.compile(r"(?:sm|compute)_(\d+)(\d)[af]?")


def chip_limits(compute_capability: tuple[int, int]) -> ChipLimits | None:
    """
    Return what a multiprocessor of a compute capability can hold.

    Args:
        compute_capability: Major and minor number.

    Returns:
        The limits; None where no source that we read says them.
    """
    return _CHIPS.get(compute_capability)


def target_capability(target: str) -> tuple[int, int] | None:
    """
    Return the compute capability that a compiler's target name stands for.

    Args:
        target: As compilers write it: `sm_90`, `sm_90a`, `sm_120f`, `compute_75`.

    Returns:
        Major and minor number; None where it is no such name.

    Example:
        >>> target_capability("sm_103a")
        (10, 3)
    """
    match = _TARGET.fullmatch(target)
    return (int(match[1]), int(match[2])) if match else None


def _limits(
    capability: tuple[int, int], *, warps: int, blocks: int, shared_kib: int
) -> ChipLimits:
    """Return the limits of a chip from the four numbers in which chips differ."""
    reserved_bytes = _KIB if capability >= (8, 0) else 0  # table 27: SM less block
    two_barriers = capability in {(7, 0), (7, 5), (8, 0), (9, 0), (10, 0), (10, 3)}
    return ChipLimits(
        compute_capability=capability,
        registers_per_sm_count=64 * 1024,  # table 27, every chip
        max_registers_per_thread_count=255,  # table 27, every chip
        max_registers_per_block_count=64 * 1024,  # table 27, every chip
        register_allocation_count=256,  # cuda_occupancy.h, every chip
        warp_allocation_count=4,  # cuda_occupancy.h: sub-partitions of an SM
        max_warps_per_sm_count=warps,
        max_threads_per_sm_count=warps * 32,
        max_blocks_per_sm_count=blocks,
        max_threads_per_block_count=1024,  # table 27, every chip
        max_barriers_per_sm_count=(  # cuda_occupancy.h: counted from 9.0 on
            blocks * (2 if two_barriers else 1) if capability >= (9, 0) else None
        ),
        shared_per_sm_bytes=shared_kib * _KIB,
        max_shared_per_block_bytes=shared_kib * _KIB - reserved_bytes,  # table 27
        reserved_shared_per_block_bytes=reserved_bytes,
        shared_allocation_bytes=128 if capability >= (8, 0) else 256,  # the header
        warp_size_count=32,  # table 27, every chip
    )


# Table 27 is "Technical Specifications per Compute Capability" of the CUDA C++
# Programming Guide 13.0; the header is cuda_occupancy.h of CUDA 13.0. What table 27
# says of warps and blocks, ptxas 13.0 says too: it refuses launch bounds beyond them.
_CHIPS = {
    limits.compute_capability: limits
    for limits in (
        # the guide for CUDA 12 (13 has it no more); the reports of a Tesla V100 agree
        _limits((7, 0), warps=64, blocks=32, shared_kib=96),
        # table 27; the reports of a GeForce GTX 1660 Ti agree
        _limits((7, 5), warps=32, blocks=16, shared_kib=64),
        # table 27; the reports of two A100 agree
        _limits((8, 0), warps=64, blocks=32, shared_kib=164),
        # table 27; the reports of an A40 and an A10G agree
        _limits((8, 6), warps=48, blocks=16, shared_kib=100),
        # table 27; ptxas agrees
        _limits((8, 7), warps=48, blocks=16, shared_kib=164),
        # table 27; ptxas agrees
        _limits((8, 9), warps=48, blocks=24, shared_kib=100),
        # table 27; the reports of an H800 and a GH200 agree
        _limits((9, 0), warps=64, blocks=32, shared_kib=228),
        # table 27; ptxas agrees
        _limits((10, 0), warps=64, blocks=32, shared_kib=228),
        # warps and blocks from ptxas 13.0, shared memory from the header
        _limits((10, 3), warps=64, blocks=32, shared_kib=228),
        # table 27; ptxas agrees
        _limits((11, 0), warps=48, blocks=24, shared_kib=228),
        # table 27; ptxas agrees
        _limits((12, 0), warps=48, blocks=24, shared_kib=100),
        # warps and blocks from ptxas 13.0, shared memory from the header
        _limits((12, 1), warps=48, blocks=24, shared_kib=100),
    )
}
