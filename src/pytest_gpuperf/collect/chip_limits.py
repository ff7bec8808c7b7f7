"""The limits of the multiprocessors of chips, by what their vendors document."""

from __future__ import annotations

import re

from pytest_gpuperf.model.environment import ChipLimits

_KIB = 1024
_TARGET = re.compile(r"(?:sm|compute)_(\d+)(\d)[af]?")


def chip_limits(compute_capability: tuple[int, int]) -> ChipLimits | None:
    """
    Return the limits of a multiprocessor of a compute capability.

    Args:
        compute_capability: Major and minor number.

    Returns:
        The limits, or None for a compute capability that is not in the table.
    """
    return _CHIPS.get(compute_capability)


def target_limits(target: str, warp_size_count: int = 32) -> ChipLimits | None:
    """
    Return the limits of a multiprocessor of the chip that code was compiled for.

    Of RDNA, the limits are those of a work group processor, where LLVM lets a block run
    by default.

    Args:
        target: A target as compilers write it: `sm_90a`, `gfx942`,
            `gfx90a:sramecc+:xnack-`.

        warp_size_count: Threads per warp that the code was compiled for. Chips of RDNA run
            warps of 32 and of 64 threads.

    Returns:
        The limits, or None for a chip or a warp that is not in the table.
    """
    capability = target_capability(target)
    if capability is not None:
        return chip_limits(capability)
    return _AMD_CHIPS.get((target.partition(":")[0], warp_size_count))


def target_capability(target: str) -> tuple[int, int] | None:
    """
    Return the compute capability of a compiler's target name.

    Args:
        target: A target as compilers write it: `sm_90`, `sm_90a`, `sm_120f`,
            `compute_75`.

    Returns:
        Major and minor number, or None if the name is not such a target.

    Example:
        >>> target_capability("sm_103a")
        (10, 3)
    """
    match = _TARGET.fullmatch(target)
    return (int(match[1]), int(match[2])) if match else None


def _limits(
    capability: tuple[int, int], *, warps: int, blocks: int, shared_kib: int
) -> ChipLimits:
    reserved_bytes = _KIB if capability >= (8, 0) else 0  # Table 27: SM less block.
    two_barriers = capability in {(7, 0), (7, 5), (8, 0), (9, 0), (10, 0), (10, 3)}
    return ChipLimits(
        compute_capability=capability,
        registers_per_sm_count=64 * 1024,  # table 27, every chip
        max_registers_per_thread_count=255,  # table 27, every chip
        max_registers_per_block_count=64 * 1024,  # table 27, every chip
        register_allocation_count=256,  # cuda_occupancy.h, every chip
        warp_allocation_count=4,  # cuda_occupancy.h: sub-partitions of an SM
        max_warps_per_sm_count=warps,
        max_blocks_per_sm_count=blocks,
        max_threads_per_block_count=1024,  # table 27, every chip
        max_barriers_per_sm_count=(  # cuda_occupancy.h: counted from 9.0 on
            blocks * (2 if two_barriers else 1) if capability >= (9, 0) else None
        ),
        shared_per_sm_bytes=shared_kib * _KIB,
        max_shared_per_block_bytes=shared_kib * _KIB - reserved_bytes,  # table 27
        reserved_shared_per_block_bytes=reserved_bytes,
        shared_allocation_bytes=128
        if capability >= (8, 0)
        else 256,  # cuda_occupancy.h
        warp_size_count=32,  # table 27, every chip
    )


# Table 27 is "Technical Specifications per Compute Capability" of the CUDA C++
# Programming Guide 13.0. The header is cuda_occupancy.h of CUDA 13.0. ptxas 13.0
# confirms the warps and blocks of table 27: it refuses launch bounds beyond them.
_CHIPS = {
    limits.compute_capability: limits
    for limits in (
        # From the guide for CUDA 12 (dropped in 13). The reports of a Tesla V100 agree.
        _limits((7, 0), warps=64, blocks=32, shared_kib=96),
        # Table 27. The reports of a GeForce GTX 1660 Ti agree.
        _limits((7, 5), warps=32, blocks=16, shared_kib=64),
        # Table 27. The reports of two A100 agree.
        _limits((8, 0), warps=64, blocks=32, shared_kib=164),
        # Table 27. The reports of an A40 and an A10G agree.
        _limits((8, 6), warps=48, blocks=16, shared_kib=100),
        # Table 27. ptxas agrees.
        _limits((8, 7), warps=48, blocks=16, shared_kib=164),
        # Table 27. ptxas agrees.
        _limits((8, 9), warps=48, blocks=24, shared_kib=100),
        # Table 27. The reports of an H800 and a GH200 agree.
        _limits((9, 0), warps=64, blocks=32, shared_kib=228),
        # Table 27. ptxas agrees.
        _limits((10, 0), warps=64, blocks=32, shared_kib=228),
        # Warps and blocks from ptxas 13.0, shared memory from the header.
        _limits((10, 3), warps=64, blocks=32, shared_kib=228),
        # Table 27. ptxas agrees.
        _limits((11, 0), warps=48, blocks=24, shared_kib=228),
        # Table 27. ptxas agrees.
        _limits((12, 0), warps=48, blocks=24, shared_kib=100),
        # Warps and blocks from ptxas 13.0, shared memory from the header.
        _limits((12, 1), warps=48, blocks=24, shared_kib=100),
    )
}


_AMD_TARGET = re.compile(r"gfx(\d+)([0-9a-f])[0-9a-f]")


def _amd_limits(
    target: str,
    *,
    warp: int,
    warps: int,
    registers: int,
    granule: int,
    shared_kib: int = 64,
    shared_granule: int = 512,
) -> ChipLimits:
    """
    Return the limits of an AMD chip.

    Args:
        target: The chip, as gfx942.

        warp: Threads of a warp.

        warps: Warps that a SIMD holds.

        registers: Vector registers that a SIMD holds for each thread of a warp.

        granule: Vector registers are allocated in multiples of this number.

        shared_kib: Local data share of a compute unit, or of a work group processor [KiB].

        shared_granule: It is allocated in multiples of this size [B].
    """
    match = _AMD_TARGET.fullmatch(target)
    major, minor = (int(match[1]), int(match[2], 16)) if match else (0, 0)
    simds = 4
    is_rdna = major >= 10  # noqa: PLR2004 - gfx10 was the first
    has_all = target in {"gfx90a", "gfx942", "gfx950"}
    largest_kib = shared_kib // 2 if is_rdna else shared_kib
    return ChipLimits(
        compute_capability=(major, minor),
        registers_per_sm_count=registers * warp * simds,
        max_registers_per_thread_count=512 if has_all else 256,
        max_registers_per_block_count=registers * warp * simds,
        register_allocation_count=granule * warp,
        warp_allocation_count=simds,
        max_warps_per_sm_count=warps * simds,
        max_blocks_per_sm_count=warps * simds,
        max_threads_per_block_count=1024,
        max_barriers_per_sm_count=32 if is_rdna else 16,
        shared_per_sm_bytes=shared_kib * _KIB,
        max_shared_per_block_bytes=largest_kib * _KIB,
        reserved_shared_per_block_bytes=0,
        shared_allocation_bytes=shared_granule,
        warp_size_count=warp,
        scalar_registers_per_part_count=None if is_rdna else 800,
        scalar_allocation_count=1 if is_rdna else 16,
    )


# Warps, registers and granules are those of AMDGPUBaseInfo.cpp and AMDGPU.td of LLVM,
# whose comment "Occupancy" in assembly agrees.
_AMD_CHIPS = {
    (target, warp): _amd_limits(
        target,
        warp=warp,
        warps=warps,
        registers=registers * warps_of[0] // warp,
        granule=granule * warps_of[0] // warp,
        shared_kib=shared_kib,
        shared_granule=shared_granule,
    )
    for warps_of, warps, registers, granule, shared_kib, shared_granule, targets in (
        ((64,), 10, 256, 4, 64, 512, "gfx900 gfx906 gfx908"),
        ((64,), 8, 512, 8, 64, 512, "gfx90a gfx942"),
        ((64,), 8, 512, 8, 160, 1280, "gfx950"),
        ((32, 64), 16, 1024, 16, 128, 512, "gfx1030 gfx1031 gfx1032 gfx1034 gfx1035"),
        ((32, 64), 16, 1024, 16, 128, 512, "gfx1036 gfx1102 gfx1103 gfx1150 gfx1152"),
        ((32, 64), 16, 1536, 24, 128, 512, "gfx1100 gfx1101 gfx1151 gfx1200 gfx1201"),
    )
    for target in targets.split()
    for warp in warps_of
}
