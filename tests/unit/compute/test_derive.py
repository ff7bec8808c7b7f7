"""Rules of compute.derive: theoretical occupancy."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.collect.chip_limits import chip_limits
from pytest_gpuperf.compute.derive import kernel_occupancy, theoretical_occupancy
from pytest_gpuperf.errors import RecordError
from pytest_gpuperf.model.activity import KernelResources, Occupancy
from pytest_gpuperf.model.environment import ChipLimits
from pytest_gpuperf.model.frozen import replace

CAPABILITIES = [
    (7, 0), (7, 5), (8, 0), (8, 6), (8, 7), (8, 9),
    (9, 0), (10, 0), (10, 3), (11, 0), (12, 0), (12, 1),
]  # fmt: skip

# Facts out of Nsight Compute reports that others published: compute capability,
# threads of a block, registers of a thread, shared bytes (static + dynamic), the
# tool's limits by registers, warps and blocks, and its theoretical occupancy [%].
REPORTED = [
    # NCAR/GPU_workshop, MW_Baseline.ncu-rep: Tesla V100
    ((7, 0), 128, 34, 0, 12, 16, 32, 75.0),
    ((7, 0), 128, 37, 0, 12, 16, 32, 75.0),
    ((7, 0), 128, 64, 0, 8, 16, 32, 50.0),
    # josiahls/cuda_learning_mojo, profile.ncu-rep: GeForce GTX 1660 Ti
    ((7, 5), 64, 16, 0, 64, 16, 16, 100.0),
    # bwd29/self-join-MiSTIC, profile.ncu-rep: A100
    ((8, 0), 512, 16, 0, 8, 4, 32, 100.0),
    ((8, 0), 256, 23, 1184, 10, 8, 32, 100.0),
    ((8, 0), 512, 30, 0, 4, 4, 32, 100.0),
    ((8, 0), 128, 32, 4096, 16, 16, 32, 100.0),
    ((8, 0), 384, 79, 33280, 2, 5, 32, 37.5),
    # panjd123/cutlass, 384.ncu-rep: A100
    ((8, 0), 128, 188, 43008, 2, 16, 32, 12.5),
    ((8, 0), 128, 255, 92672, 2, 16, 32, 6.25),
    # eschnett/IndexSpaces.jl, profile.ncu-rep: A40
    ((8, 6), 256, 16, 0, 16, 6, 16, 100.0),
    ((8, 6), 768, 80, 76896, 1, 2, 16, 50.0),
    # AveryClapp/ESMM-Research, profile.ncu-rep: A10G
    ((8, 6), 32, 40, 8192, 48, 48, 16, 22.916666666666664),
    ((8, 6), 32, 56, 8192, 36, 48, 16, 22.916666666666664),
    # flyinglandlord/sglang, profile.ncu-rep: H800
    ((9, 0), 256, 40, 0, 6, 8, 32, 75.0),
    # bobschreiner/NuKEXC, profile.ncu-rep: GH200
    ((9, 0), 128, 77, 2112, 6, 16, 32, 37.5),
]

# Answers of cuda_occupancy.h (CUDA 13.0) for the same question, where no report is:
# capability, threads, registers, shared bytes, barriers, active blocks.
CALCULATED = [
    ((8, 7), 128, 32, 20_000, 0, 7),
    ((8, 9), 32, 16, 0, 0, 24),
    ((10, 0), 160, 200, 0, 0, 1),
    ((10, 3), 384, 168, 200_000, 16, 1),
    ((11, 0), 64, 40, 9000, 0, 23),
    ((12, 0), 256, 72, 12_000, 5, 3),
    ((12, 1), 1024, 64, 0, 0, 1),
]

launches = st.fixed_dictionaries(
    {
        "registers_count": st.integers(0, 300),
        "threads_per_block": st.integers(1, 1200),
        "shared_bytes": st.integers(0, 240_000),
        "barriers_count": st.integers(0, 16),
    }
)
chips = st.sampled_from(CAPABILITIES)


def limits_of(capability: tuple[int, int]) -> ChipLimits:
    """Return the limits of a chip that is in the table."""
    limits = chip_limits(capability)
    assert limits is not None
    return limits


def occupancy(capability: tuple[int, int], launch: dict[str, int]) -> Occupancy:
    """Return the occupancy of a launch on a chip."""
    return theoretical_occupancy(
        registers_count=launch["registers_count"],
        threads_per_block=launch["threads_per_block"],
        shared_bytes=launch["shared_bytes"],
        barriers_count=launch["barriers_count"],
        limits=limits_of(capability),
    )


@pytest.mark.parametrize(
    ("capability", "threads", "registers", "shared", "by_registers", "by_warps",
     "by_blocks", "percent"),
    REPORTED,
)  # fmt: skip
def test_occupancy_is_what_nsight_compute_reports(
    capability: tuple[int, int],
    threads: int,
    registers: int,
    shared: int,
    by_registers: int,
    by_warps: int,
    by_blocks: int,
    percent: float,
) -> None:
    """Every launch of the published reports has the tool's own numbers."""
    found = theoretical_occupancy(
        registers_count=registers,
        threads_per_block=threads,
        shared_bytes=shared,
        limits=limits_of(capability),
    )

    assert found.fraction * 100 == pytest.approx(percent, abs=1e-9)
    assert found.block_limits["registers"] == by_registers
    assert found.block_limits["threads"] == by_warps
    assert found.block_limits["blocks"] == by_blocks


@pytest.mark.parametrize(
    ("capability", "threads", "registers", "shared", "barriers", "blocks"), CALCULATED
)
def test_occupancy_is_what_nvidias_calculator_says(
    capability: tuple[int, int],
    threads: int,
    registers: int,
    shared: int,
    barriers: int,
    blocks: int,
) -> None:
    """Chips without a report follow the header of the toolkit."""
    found = theoretical_occupancy(
        registers_count=registers,
        threads_per_block=threads,
        shared_bytes=shared,
        barriers_count=barriers,
        limits=limits_of(capability),
    )

    assert found.active_blocks == blocks
    assert found.warps == blocks * -(-threads // 32)


@pytest.mark.parametrize(
    ("launch", "limiter"),
    [
        ({"threads_per_block": 1025}, "threads"),
        ({"registers_count": 256}, "registers"),
        ({"registers_count": 72, "threads_per_block": 1024}, "registers"),
        ({"registers_count": 255, "threads_per_block": 288}, "registers"),
        ({"shared_bytes": 232_449}, "shared"),
    ],
)
def test_a_block_that_is_too_large_has_occupancy_0(
    launch: dict[str, int], limiter: str
) -> None:
    """What cannot be launched says which resource forbids it."""
    small = {
        "registers_count": 16,
        "threads_per_block": 64,
        "shared_bytes": 0,
        "barriers_count": 0,
    }
    found = occupancy((9, 0), small | launch)

    assert found.fraction == 0.0
    assert found.active_blocks == 0
    assert found.warps == 0
    assert found.limiter == limiter


def test_the_largest_block_can_be_launched() -> None:
    """The opt-in limit itself, with the driver's share, fits."""
    found = occupancy(
        (9, 0),
        {
            "registers_count": 64,
            "threads_per_block": 1024,
            "shared_bytes": 232_448,
            "barriers_count": 16,
        },
    )

    assert found.active_blocks == 1
    assert found.limiter == "registers"


def test_what_is_not_used_limits_nothing() -> None:
    """No registers, no barriers and, before 8.0, no shared memory: no limit of it."""
    found = occupancy(
        (7, 5),
        {
            "registers_count": 0,
            "threads_per_block": 32,
            "shared_bytes": 0,
            "barriers_count": 0,
        },
    )

    assert set(found.block_limits) == {"threads", "blocks"}
    assert found.limiter == "blocks"
    assert found.fraction == 0.5


def test_barriers_may_limit() -> None:
    """From 9.0 on a multiprocessor's barriers are counted; before they are not."""
    launch = {
        "registers_count": 16,
        "threads_per_block": 32,
        "shared_bytes": 0,
        "barriers_count": 16,
    }

    assert occupancy((9, 0), launch).limiter == "barriers"
    assert occupancy((9, 0), launch).active_blocks == 4
    assert occupancy((8, 0), launch).limiter == "blocks"


@given(capability=chips, launch=launches)
def test_a_fraction_is_between_0_and_1(
    capability: tuple[int, int], launch: dict[str, int]
) -> None:
    """No launch fills more than the chip, and warps are whole blocks."""
    found = occupancy(capability, launch)

    assert 0.0 <= found.fraction <= 1.0
    assert (found.fraction == 0.0) == (found.active_blocks == 0)
    assert found.active_blocks == found.block_limits[found.limiter]
    assert found.active_blocks == min(found.block_limits.values())


@given(
    capability=chips,
    launch=launches,
    resource=st.sampled_from(["registers_count", "shared_bytes", "barriers_count"]),
    more=st.integers(1, 100_000),
)
def test_more_of_a_resource_never_raises_occupancy(
    capability: tuple[int, int], launch: dict[str, int], resource: str, more: int
) -> None:
    """A kernel that asks for more gets the same or less."""
    larger = launch | {resource: launch[resource] + more}

    assert (
        occupancy(capability, larger).fraction <= occupancy(capability, launch).fraction
    )


@given(capability=chips, launch=launches)
def test_threads_of_a_started_warp_are_free(
    capability: tuple[int, int], launch: dict[str, int]
) -> None:
    """A block that fills its last warp costs what it cost before."""
    full = launch | {"threads_per_block": -(-launch["threads_per_block"] // 32) * 32}

    if full["threads_per_block"] <= 1024:
        assert occupancy(capability, full) == occupancy(capability, launch)


KERNEL = KernelResources(
    name="k",
    demangled=None,
    target="sm_90",
    registers_count=77,
    stack_bytes=0,
    shared_bytes=16,
    constant_bytes=528,
    dynamic_shared_bytes=2096,
    threads_per_block=128,
)


def test_a_kernels_occupancy_counts_both_kinds_of_shared_memory() -> None:
    """Static and dynamic shared memory add up."""
    found = kernel_occupancy(KERNEL, limits_of((9, 0)))

    assert found is not None
    assert found.fraction == 0.375
    assert found.block_limits["shared"] == 233_472 // 3200


def test_blocks_are_whole() -> None:
    """What is left of a resource holds no part of a block; who names no barriers has none."""
    launch = {"registers_count": 33, "threads_per_block": 160, "shared_bytes": 5000}
    limits = limits_of((9, 0))
    found = theoretical_occupancy(**launch, barriers_count=5, limits=limits)
    none = theoretical_occupancy(**launch, limits=limits)

    assert {type(most) for most in found.block_limits.values()} == {int}
    assert found.block_limits["barriers"] == 64 // 5
    assert "barriers" not in none.block_limits


def test_a_block_may_have_fewer_registers_than_the_multiprocessor() -> None:
    """Where a chip says so, a larger block is refused though it would fit."""
    launch = {"registers_count": 32, "threads_per_block": 1024, "shared_bytes": 0}
    limits = replace(limits_of((9, 0)), max_registers_per_block_count=32_767)
    refused = theoretical_occupancy(**launch, limits=limits)
    allowed = theoretical_occupancy(
        **launch, limits=replace(limits, max_registers_per_block_count=32_768)
    )

    assert (refused.fraction, refused.limiter) == (0.0, "registers")
    assert allowed.active_blocks == 2


def test_a_kernels_occupancy_counts_its_barriers() -> None:
    """16 of them leave four blocks; where nobody says how many, none limit it."""
    several = kernel_occupancy(replace(KERNEL, barriers_count=16), limits_of((9, 0)))
    unsaid = kernel_occupancy(replace(KERNEL, barriers_count=None), limits_of((9, 0)))

    assert several is not None
    assert several.block_limits["barriers"] == 4
    assert unsaid is not None
    assert "barriers" not in unsaid.block_limits


def test_dynamic_shared_memory_that_nobody_named_is_none() -> None:
    """A byte more would round up to another block of it."""
    full = replace(KERNEL, shared_bytes=2048, dynamic_shared_bytes=None)
    found = kernel_occupancy(full, limits_of((9, 0)))

    assert found is not None
    assert found.block_limits["shared"] == 233_472 // (2048 + 1024)


def test_a_block_nobody_named_has_no_occupancy() -> None:
    """Without a block size there is no number, rather than a guessed one."""
    assert (
        kernel_occupancy(replace(KERNEL, threads_per_block=None), limits_of((9, 0)))
        is None
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [("registers_count", -1), ("spills_bytes", -4), ("threads_per_block", 0)],
)
def test_a_kernel_with_an_impossible_number_is_refused(field: str, value: int) -> None:
    """A record that exists is valid; the field is named."""
    facts: dict[str, int] = {field: value}

    with pytest.raises(RecordError) as caught:
        replace(KERNEL, **facts)
    assert caught.value.path == field
