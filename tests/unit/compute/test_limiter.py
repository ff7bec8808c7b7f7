"""compute.limiter: the first rule that holds, with its numbers."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.compute.limiter import (
    ANALYSIS_COUNTERS,
    IdleShare,
    analyse,
    bound,
    idle_share,
    limiter,
)
from pytest_gpuperf.model.activity import ActivitySummary
from pytest_gpuperf.model.counters import (
    PIPES,
    STALLS,
    STANDARD,
    Bound,
    BoundSide,
    CounterGap,
    Evidence,
    Limiter,
    LimiterName,
)
from pytest_gpuperf.model.frozen import replace

ROOFS = {
    "dram": "dram_throughput_fraction",
    "l2": "l2_throughput_fraction",
    "l1": "l1_throughput_fraction",
    "tensor": "tensor_pipe_fraction",
    **{pipe: f"{pipe}_pipe_fraction" for pipe in PIPES},
}
MEMORY = ("dram", "l2", "l1")


def launch(**changed: float | None) -> dict[str, float]:
    """Return a launch that reaches nothing: 0.1 of every roof, 8 waves."""
    values: dict[str, float | None] = {
        **dict.fromkeys(ROOFS.values(), 0.1),
        "memory_throughput_fraction": 0.1,
        "sm_throughput_fraction": 0.1,
        "waves_count": 8.0,
        "warps_active_fraction": 0.5,
        **changed,
    }
    return {name: number for name, number in values.items() if number is not None}


def known(values: dict[str, float], idle: IdleShare | None = None) -> Limiter:
    found = limiter(values, idle=idle)
    assert isinstance(found, Limiter)
    return found


def unknown(values: dict[str, float]) -> CounterGap:
    found = limiter(values)
    assert isinstance(found, CounterGap)
    return found


# 1. idle


@pytest.mark.parametrize(
    "filled_by",
    [LimiterName.LAUNCH, LimiterName.SYNCHRONIZATION, LimiterName.TRANSFER],
)
def test_idle_time_comes_first(filled_by: LimiterName) -> None:
    """A kernel at its roof is not what a step waits for that is idle half the time."""
    found = known(
        launch(dram_throughput_fraction=0.95),
        IdleShare(fraction=0.31, filled_by=filled_by),
    )

    assert found.name is filled_by
    assert [(each.name, each.value) for each in found.evidence] == [("no kernel", 0.31)]


def test_a_little_idle_time_is_none() -> None:
    """At 0.3 the kernels still count."""
    idle = IdleShare(fraction=0.3, filled_by=LimiterName.LAUNCH)

    more = IdleShare(fraction=0.3001, filled_by=LimiterName.LAUNCH)

    assert known(launch(dram_throughput_fraction=0.95), idle).name is LimiterName.DRAM
    assert known(launch(dram_throughput_fraction=0.95), more).name is LimiterName.LAUNCH


RECORDED = ActivitySummary(span_s=1.0, busy_s=0.6, copying_s=0.1, waited_s=0.3)


def test_what_fills_the_time_without_a_kernel_is_the_longest_part() -> None:
    """Copies that run alone, gaps of waits, and all other gaps."""
    found = idle_share(RECORDED)

    assert found is not None
    assert found.fraction == pytest.approx(0.5)
    assert found.filled_by is LimiterName.SYNCHRONIZATION
    assert [each.name for each in found.parts] == [
        *("synchronization", "launch", "transfer")
    ]
    assert [each.value for each in found.parts] == pytest.approx([0.3, 0.1, 0.1])
    assert known(launch(), found).evidence[1:] == found.parts


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"waited_s": None}, "whether the host waited then is not recorded"),
        ({"untimed_count": 2}, "CUPTI did not time 2 of those that did"),
        ({"unseen": ("4711",)}, r"child processes \(4711\) may have run some"),
    ],
)
def test_what_may_have_filled_the_time_is_not_guessed(
    change: dict[str, object], reason: str
) -> None:
    """Where most of the time has no kernel, that alone is said, with what helps."""
    share = idle_share(replace(RECORDED, **change))
    found = limiter(launch(dram_throughput_fraction=0.95), idle=share)

    assert isinstance(found, CounterGap)
    assert re.search(reason, found.reason)
    assert found.remedy


def test_a_busy_device_needs_no_reason_for_its_gaps() -> None:
    """What filled a tenth of the time limits nothing, known or not."""
    busy = replace(RECORDED, busy_s=0.9, copying_s=0.0, waited_s=None)

    found = known(launch(dram_throughput_fraction=0.95), idle_share(busy))

    assert found.name is LimiterName.DRAM


@pytest.mark.parametrize(
    "activity", [None, ActivitySummary(), replace(RECORDED, copying_s=None)]
)
def test_without_recorded_times_no_time_is_idle(
    activity: ActivitySummary | None,
) -> None:
    """Nothing was recorded, nothing has a time, or a file is of an earlier version."""
    assert idle_share(activity) is None


# 2. roofs


@pytest.mark.parametrize(("roof", "counter"), ROOFS.items())
def test_the_highest_roof_that_is_reached_limits(roof: str, counter: str) -> None:
    """From 0.6 on; it stands first in the evidence."""
    found = known(launch(**{counter: 0.6}))
    is_pipe = roof in PIPES

    assert found.name.value == ("pipe" if is_pipe else roof)
    assert found.detail == (roof if is_pipe else None)
    assert (found.evidence[0].name, found.evidence[0].value) == (roof, 0.6)
    assert known(launch(**{counter: 0.599})).name is LimiterName.LATENCY


def test_three_roofs_are_shown_beside_the_one_that_limits() -> None:
    """The closest ones, falling; a longer line says less."""
    fractions = {"dram": 0.9, "l2": 0.5, "tensor": 0.4, "fma": 0.3, "xu": 0.2}
    found = known(launch(**{ROOFS[roof]: each for roof, each in fractions.items()}))

    assert [each.name for each in found.evidence] == ["dram", "l2", "tensor", "fma"]


def test_a_roof_comes_before_the_grid() -> None:
    """One resident wave that saturates DRAM is not a small grid."""
    found = known(launch(dram_throughput_fraction=0.8, waves_count=0.5))

    assert found.name is LimiterName.DRAM


def test_of_equal_roofs_the_first_limits() -> None:
    """Memory before tensor before the other pipes, as the rule lists them."""
    values = launch(**dict.fromkeys(ROOFS.values(), 0.7))

    assert known(values).name is LimiterName.DRAM
    del values["dram_throughput_fraction"]
    assert known(values).name is LimiterName.L2


@pytest.mark.parametrize(
    ("whole", "name", "detail"),
    [
        ("memory_throughput_fraction", LimiterName.MEMORY, None),
        ("sm_throughput_fraction", LimiterName.PIPE, "sm"),
    ],
)
def test_a_whole_side_stands_in_for_its_parts(
    whole: str, name: LimiterName, detail: str | None
) -> None:
    """A part that has no name here, or was not collected, shows in the whole."""
    found = known({whole: 0.7})

    assert (found.name, found.detail) == (name, detail)
    assert known(launch(**{whole: 0.7})).name is name
    # beside a roof that is reached, too
    assert known(launch(**{whole: 0.9, "xu_pipe_fraction": 0.6})).name is name


def test_a_part_that_accounts_for_the_whole_says_more() -> None:
    """Two passes differ a little; the load and store instructions are L1's."""
    fma = known(launch(sm_throughput_fraction=0.9, fma_pipe_fraction=0.89))
    dram = known(launch(memory_throughput_fraction=0.9, dram_throughput_fraction=0.885))
    l1 = known(
        launch(
            sm_throughput_fraction=0.9,
            lsu_pipe_fraction=0.9,
            memory_throughput_fraction=0.9,
            l1_throughput_fraction=0.89,
        )
    )

    assert fma.detail == "fma"
    assert dram.name is LimiterName.DRAM
    assert l1.name is LimiterName.L1


def test_a_whole_may_be_ahead_of_its_parts_by_two_hundredths() -> None:
    """So much two passes of one launch differ; only more is a part without a name."""
    values = launch(dram_throughput_fraction=0.7)
    at_it = bound({**values, "memory_throughput_fraction": 0.7 + 0.02})
    beyond = bound({**values, "memory_throughput_fraction": 0.7201})

    assert at_it is not None
    assert beyond is not None
    assert (at_it.roof, beyond.roof) == ("dram", "memory")


def test_l1_is_of_all_cycles() -> None:
    """A cache that is busy while its SM is active is not busy when most SMs idle."""
    values = launch(
        l1_throughput_fraction=None,
        l1_active_throughput_fraction=0.8,
        sm_active_cycles_count=50,
        sm_elapsed_cycles_count=100,
    )

    assert known(values).name is LimiterName.LATENCY
    values["sm_active_cycles_count"] = 90
    assert known(values).name is LimiterName.L1


# 3. grid


def test_less_than_a_wave_is_a_small_grid() -> None:
    """At one whole wave it is none."""
    found = known(launch(waves_count=0.99))

    assert found.name is LimiterName.GRID
    assert found.evidence[0] == Evidence(name="waves", value=0.99, unit="count")
    assert known(launch(waves_count=1.0)).name is LimiterName.LATENCY


def test_a_small_grid_shows_how_few_multiprocessors_work() -> None:
    """Behind the waves the share of active ones, and the two closest roofs."""
    cycles = {"sm_active_cycles_count": 25.0, "sm_elapsed_cycles_count": 100.0}
    found = known(
        launch(
            **cycles,
            waves_count=0.5,
            dram_throughput_fraction=0.3,
            l2_throughput_fraction=0.2,
        )
    )

    assert [(each.name, each.value) for each in found.evidence] == [
        ("waves", 0.5),
        ("SM active", 0.25),
        ("dram", 0.3),
        ("l2", 0.2),
    ]


# 4. latency


def test_nothing_reached_with_warps_resident_is_latency() -> None:
    """The stall that takes most is its detail, and the first number."""
    stalls = {f"stall_{reason}_ratio": 1.0 for reason in STALLS}
    found = known(launch(**{**stalls, "stall_long_scoreboard_ratio": 18.0}))

    assert (found.name, found.detail) == (LimiterName.LATENCY, "long_scoreboard")
    assert found.evidence[0].name == "stall long_scoreboard"
    assert found.evidence[0].value == pytest.approx(0.5)


def test_latency_without_stalls_says_so() -> None:
    """The roofs and the occupancy are there; the stall is not made up."""
    found = known(launch())

    assert (found.name, found.detail) == (LimiterName.LATENCY, None)
    assert "occupancy" in [each.name for each in found.evidence]


def test_latency_shows_how_much_of_the_device_worked() -> None:
    """The two closest roofs, and what of the SMs and of the last wave lay idle."""
    cycles = {"sm_active_cycles_count": 50.0, "sm_elapsed_cycles_count": 100.0}
    found = known(
        launch(
            **cycles,
            waves_count=1.5,
            l2_throughput_fraction=0.3,
            tensor_pipe_fraction=0.2,
        )
    )

    assert [(each.name, each.value) for each in found.evidence] == [
        ("l2", 0.3),
        ("tensor", 0.2),
        ("occupancy", 0.5),
        ("SM active", 0.5),
        ("tail", 0.25),
    ]


def test_latency_shows_what_limits_the_occupancy() -> None:
    """With few warps resident, this is the number to change."""
    limits = {
        f"{kind}_limit_blocks_count": 8.0 for kind in ("warps", "blocks", "shared")
    }
    found = known(
        launch(
            **limits,
            registers_limit_blocks_count=2.0,
            block_threads_count=128.0,
            warps_possible_fraction=0.125,
        )
    )
    shown = {each.name: each.value for each in found.evidence}

    assert shown["theoretical by registers"] == 0.125
    assert shown["occupancy"] == 0.5


def test_a_full_occupancy_is_not_shown_as_a_limit() -> None:
    """Where all warps fit, no resource keeps any out."""
    limits = {
        f"{kind}_limit_blocks_count": 8.0
        for kind in ("warps", "blocks", "shared", "registers")
    }
    found = known(
        launch(**limits, block_threads_count=128.0, warps_possible_fraction=1.0)
    )

    assert not any(each.name.startswith("possible") for each in found.evidence)


# 5. not known


@pytest.mark.parametrize("name", ["sm_throughput_fraction", "waves_count"])
def test_what_was_not_collected_may_be_the_limiter(name: str) -> None:
    """Nobody knows that all roofs are below 0.6 who has not seen the whole."""
    found = unknown(launch(**{name: None}))

    assert found.missing == (name,)
    assert found.reason == (
        "a counter that decides between the limiters was not collected"
    )


def test_a_grid_that_fills_the_device_had_warps() -> None:
    """Its occupancy need not be collected: below every roof it waits for latency."""
    found = known(launch(warps_active_fraction=None, waves_count=119.0))

    assert found.name is LimiterName.LATENCY
    assert "occupancy" not in {evidence.name for evidence in found.evidence}


def test_needless_accesses_are_evidence_of_a_full_l1() -> None:
    """Uncoalesced ones and bank conflicts, where they are worth a line."""
    found = known(
        launch(
            l1_throughput_fraction=0.887,
            lsu_pipe_fraction=0.3,
            global_sectors_count=4.0,
            global_ideal_sectors_count=1.0,
            shared_wavefronts_count=100.0,
            shared_ideal_wavefronts_count=99.0,
        )
    )

    assert found.name is LimiterName.L1
    shares = {evidence.name: evidence.value for evidence in found.evidence}
    assert shares["uncoalesced"] == 0.75
    assert list(shares)[:3] == ["l1", "lsu", "uncoalesced"]
    assert "bank conflicts" not in shares


def test_memory_is_seen_by_its_parts_or_as_a_whole() -> None:
    """Either is enough."""
    without_whole = launch(memory_throughput_fraction=None)
    without_part = launch(l2_throughput_fraction=None)

    assert known(without_whole).name is LimiterName.LATENCY
    assert known(without_part).name is LimiterName.LATENCY
    del without_whole["l2_throughput_fraction"]
    assert unknown(without_whole).missing == ("memory_throughput_fraction",)
    parts_alone = {ROOFS[roof]: 0.1 for roof in MEMORY}
    assert unknown(parts_alone).missing == (
        "sm_throughput_fraction",
        "warps_active_fraction",
        "waves_count",
    )
    assert unknown({}).missing[0] == "memory_throughput_fraction"


def test_a_launch_without_counters_has_no_limiter() -> None:
    """And no bound, and names what would tell."""
    found = analyse({})

    assert isinstance(found.limiter, CounterGap)
    assert set(found.limiter.missing) <= set(ANALYSIS_COUNTERS)
    assert (found.bound, found.duration_s) == (None, None)


def test_an_analysis_is_the_bound_and_the_limiter_together() -> None:
    """Of one launch, with its time, as each of them is told alone."""
    values = launch(dram_throughput_fraction=0.9, duration_s=3e-6)
    idle = IdleShare(fraction=0.5, filled_by=LimiterName.LAUNCH)
    found = analyse(values, idle=idle)

    assert found.duration_s == 3e-6
    assert found.bound == bound(values)
    assert found.limiter == limiter(values, idle=idle)
    assert known(values, idle).name is LimiterName.LAUNCH
    assert analyse(values).limiter == limiter(values) != found.limiter


def test_without_a_resident_warp_there_is_no_latency() -> None:
    """Nothing waited."""
    found = unknown(launch(warps_active_fraction=0.0))

    assert (found.reason, found.missing) == ("no warp was resident", ())


# bound


def test_the_bound_is_the_closest_roof_reached_or_not() -> None:
    """Memory or compute, and never anything else."""
    assert bound(launch(l2_throughput_fraction=0.2)) == Bound(
        side=BoundSide.MEMORY, roof="l2", fraction=0.2
    )
    assert bound(launch(fp64_pipe_fraction=0.3)) == Bound(
        side=BoundSide.COMPUTE, roof="fp64", fraction=0.3
    )
    assert bound({"memory_throughput_fraction": 0.4}) == Bound(
        side=BoundSide.MEMORY, roof="memory", fraction=0.4
    )
    assert bound({"sm_throughput_fraction": 0.4}) == Bound(
        side=BoundSide.COMPUTE, roof="sm", fraction=0.4
    )


def test_a_launch_far_from_every_roof_has_no_bound() -> None:
    """One block that uses 1 % of L2 is not bound by memory."""
    assert bound(dict.fromkeys(ROOFS.values(), 0.099)) is None
    assert bound(dict.fromkeys(ROOFS.values(), 0.1)) is not None


def test_l1_says_whether_it_is_the_number_of_accesses() -> None:
    """The load and store instructions are a part of L1 and never a roof beside it."""
    found = known(launch(l1_throughput_fraction=0.9, lsu_pipe_fraction=0.95))

    assert found.name is LimiterName.L1
    assert found.evidence[0] == Evidence(name="l1", value=0.9)
    assert found.evidence[1] == Evidence(name="lsu", value=0.95)


FRACTIONS = st.floats(min_value=0, max_value=1)
NEAR = st.floats(min_value=0.1, max_value=1)


@given(st.dictionaries(st.sampled_from(sorted(ROOFS)), NEAR, min_size=1))
def test_a_limiter_at_a_roof_is_the_bound(fractions: dict[str, float]) -> None:
    """Both columns of a table tell one story."""
    values = {ROOFS[roof]: fraction for roof, fraction in fractions.items()}
    closest, found = bound(values), limiter(values)

    assert closest is not None
    assert closest.fraction == max(fractions.values())
    assert closest.side is (
        BoundSide.MEMORY if closest.roof in MEMORY else BoundSide.COMPUTE
    )
    if closest.fraction >= 0.6:
        assert isinstance(found, Limiter)
        assert found.evidence[0].name == closest.roof


@given(st.sampled_from(sorted(ROOFS)), FRACTIONS, FRACTIONS)
def test_more_of_a_roof_never_makes_it_less_of_a_limiter(
    roof: str, first: float, second: float
) -> None:
    """A roof that limits at some share limits at every larger one."""
    low, high = sorted((first, second))
    at_low, at_high = (known(launch(**{ROOFS[roof]: each})) for each in (low, high))

    if at_low.name is not LimiterName.LATENCY:
        assert (at_high.name, at_high.detail) == (at_low.name, at_low.detail)


def test_an_analysis_asks_for_standard_counters() -> None:
    """Every one has a name and a spelling, and is asked for by it."""
    assert set(ANALYSIS_COUNTERS) <= set(STANDARD)
