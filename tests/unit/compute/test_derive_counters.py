"""compute.derive: metrics out of the counters of one launch."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.collect.translate.counters import SPELLINGS
from pytest_gpuperf.compute.derive import (
    FORMULAS,
    derived,
    launch_occupancy,
    missing_counters,
    needed_counters,
    stall_shares,
    top_stall,
    value_of,
)
from pytest_gpuperf.model.counters import DECLARED_BYTES, STALLS, STANDARD
from pytest_gpuperf.model.metric import METRICS

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"
COUNTS = st.integers(min_value=0, max_value=10**15).map(float)
POSITIVE = st.integers(min_value=1, max_value=10**15).map(float)
FRACTIONS = st.floats(min_value=0, max_value=1)
CORE = [
    reason
    for reason in STALLS
    if reason not in {"gmma", "imc_miss", "tex_throttle", "warpgroup_arrive"}
]


def values_for(metric: str, way: int = 0) -> dict[str, float]:
    """Return what one way to a metric needs, each a number of its own."""
    needs = FORMULAS[metric].ways[way].needs
    return {name: float(number) for number, name in enumerate(needs, start=2)}


def stalls(unit: str = "ratio", /, **changed: float) -> dict[str, float]:
    """Return the stalls that every chip has, 1 each but for some."""
    numbers = {**dict.fromkeys(CORE, 1.0), **changed}
    return {f"stall_{reason}_{unit}": number for reason, number in numbers.items()}


def top(values: dict[str, float]) -> tuple[str, float]:
    """Return the top stall of a launch that has one."""
    shares = stall_shares(values)
    assert shares is not None
    found = top_stall(shares)
    assert found is not None
    return found


# formulas


@pytest.mark.parametrize(
    ("metric", "values", "expected"),
    [
        (
            "shared_bytes",
            {"static_shared_bytes": 16, "dynamic_shared_bytes": 2096},
            2112,
        ),
        (
            "dram.bytes",
            {"dram_bytes": 7, "dram_read_bytes": 1, "dram_write_bytes": 1},
            7,
        ),
        ("dram.bytes", {"dram_read_bytes": 3, "dram_write_bytes": 4}, 7),
        ("dram.excess_ratio", {"dram_bytes": 30, DECLARED_BYTES: 20}, 1.5),
        (
            "dram.excess_ratio",
            {"dram_read_bytes": 10, "dram_write_bytes": 20, DECLARED_BYTES: 20},
            1.5,
        ),
        # the tool's rate is its own, whatever its parts say
        (
            "l2.hit_fraction",
            {
                "l2_hit_fraction": 0.5,
                "l2_hit_sectors_count": 1,
                "l2_miss_sectors_count": 3,
            },
            0.5,
        ),
        (
            "l2.hit_fraction",
            {"l2_hit_sectors_count": 1, "l2_miss_sectors_count": 3},
            0.25,
        ),
        (
            "global.uncoalesced_fraction",
            {"global_sectors_count": 49152, "global_ideal_sectors_count": 32768},
            1 / 3,
        ),
        (
            "shared.bank_conflict_fraction",
            {"shared_wavefronts_count": 8, "shared_ideal_wavefronts_count": 2},
            0.75,
        ),
        (
            "shared.bank_conflict_fraction",
            {"shared_conflicts_count": 3, "shared_pipe_wavefronts_count": 4},
            0.75,
        ),
        # one access alone is enough to lose a share
        (
            "global.uncoalesced_fraction",
            {"global_sectors_count": 1, "global_ideal_sectors_count": 0},
            1,
        ),
        (
            "shared.bank_conflict_fraction",
            {"shared_conflicts_count": 1, "shared_pipe_wavefronts_count": 1},
            1,
        ),
        (
            "tensor.fraction",
            {
                "tensor_active_pipe_fraction": 0.8,
                "sm_active_cycles_count": 50,
                "sm_elapsed_cycles_count": 100,
            },
            0.4,
        ),
        (
            "waves",
            {
                "grid_blocks_count": 96,
                "sm_count": 108,
                "warps_limit_blocks_count": 16,
                "blocks_limit_blocks_count": 32,
                "registers_limit_blocks_count": 2,
                "shared_limit_blocks_count": 3,
            },
            96 / 216,
        ),
        ("waves.tail_fraction", {"waves_count": 1.5}, 0.25),
        ("waves.tail_fraction", {"waves_count": 3}, 0),
        ("waves.tail_fraction", {"waves_count": 0.25}, 0.75),
        (
            "global.load_sectors_per_request",
            {"global_load_sectors_count": 32, "global_load_requests_count": 8},
            4,
        ),
    ],
)
def test_a_metric_is_its_formula(
    metric: str, values: dict[str, float], expected: float
) -> None:
    """What product.md says of it, worked out by hand."""
    assert value_of(metric, values) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("metric", "values", "expected"),
    [
        (
            "global.uncoalesced_fraction",
            {"global_sectors_count": 0, "global_ideal_sectors_count": 0},
            0,
        ),
        (
            "shared.bank_conflict_fraction",
            {"shared_wavefronts_count": 0, "shared_ideal_wavefronts_count": 0},
            0,
        ),
        (
            "shared.bank_conflict_fraction",
            {"shared_conflicts_count": 0, "shared_pipe_wavefronts_count": 0},
            0,
        ),
        (
            "l2.hit_fraction",
            {"l2_hit_sectors_count": 0, "l2_miss_sectors_count": 0},
            None,
        ),
        (
            "sm.active_fraction",
            {"sm_active_cycles_count": 0, "sm_elapsed_cycles_count": 0},
            None,
        ),
        (
            "tensor.fraction",
            {
                "tensor_active_pipe_fraction": 0.0,
                "sm_active_cycles_count": 0,
                "sm_elapsed_cycles_count": 0,
            },
            None,
        ),
        ("waves.tail_fraction", {"waves_count": 0}, None),
    ],
)
def test_a_denominator_of_zero_is_met_before_dividing(
    metric: str, values: dict[str, float], expected: float | None
) -> None:
    """Of nothing, nothing is lost; a hit rate of nothing is none at all."""
    assert value_of(metric, values) == expected
    assert missing_counters(metric, values) == ()


@pytest.mark.parametrize("metric", FORMULAS)
def test_a_missing_counter_is_named_and_nothing_is_made_up(metric: str) -> None:
    """Without one of its counters a way is closed; the name says which it is."""
    for way, each in enumerate(FORMULAS[metric].ways):
        values = values_for(metric, way)

        assert value_of(metric, values) is not None
        assert missing_counters(metric, values) == ()
        for name in each.needs:
            fewer = {other: values[other] for other in values if other != name}

            assert value_of(metric, fewer) is None
            assert len(missing_counters(metric, fewer)) == 1
    assert value_of(metric, {}) is None
    assert missing_counters(metric, {})


def test_the_way_that_lacks_least_is_named() -> None:
    """Who has the reads is asked for the writes or the sum, not for both."""
    assert missing_counters("dram.bytes", {"dram_read_bytes": 1.0}) == ("dram_bytes",)
    assert missing_counters(
        "shared.bank_conflict_fraction", {"shared_conflicts_count": 1.0}
    ) == ("shared_pipe_wavefronts_count",)


def test_formulas_are_made_of_counters_that_are_spelled() -> None:
    """A name that no tool gives would never have a value."""
    needed = needed_counters(FORMULAS)

    assert set(needed) <= set(STANDARD)
    assert set(needed) - {DECLARED_BYTES} <= set(SPELLINGS)
    assert len(needed) == len(set(needed))


def test_nothing_is_needed_for_what_is_no_formula() -> None:
    """A counter by its own name has no standard one behind it."""
    assert needed_counters(["time", "a__b.sum"]) == ()
    assert needed_counters(["dram.bytes", "dram.bytes"]) == (
        "dram_bytes",
        "dram_read_bytes",
        "dram_write_bytes",
    )


def test_the_page_says_what_each_metric_is_made_of() -> None:
    """Every metric with a formula has an entry that names a counter of its first way."""
    if not PAGE.is_file():
        pytest.skip("the documents are not beside the tests")
    entries = [
        line
        for line in PAGE.read_text(encoding="utf-8").splitlines()
        if line.startswith("* `")
    ]
    for metric in METRICS.keys() & FORMULAS.keys():
        (entry,) = (line for line in entries if line.startswith(f"* `{metric}`:"))
        first = [n for n in FORMULAS[metric].ways[0].needs if n != DECLARED_BYTES]
        counters = [SPELLINGS[name][0].counter for name in first]

        assert metric == "dram.excess_ratio" or counters[0] in entry, metric


# rules that hold for every launch


@given(COUNTS, COUNTS, POSITIVE, st.integers(min_value=1, max_value=1000))
def test_ratios_do_not_depend_on_the_unit(
    part: float, rest: float, declared: float, scale: int
) -> None:
    """Bytes or kilobytes, launches counted once or a thousand times: the same share."""
    values = {
        "l2_hit_sectors_count": part,
        "l2_miss_sectors_count": rest,
        "global_sectors_count": part + rest,
        "global_ideal_sectors_count": part,
        "shared_pipe_wavefronts_count": part + rest,
        "shared_conflicts_count": rest,
        "dram_bytes": part,
        DECLARED_BYTES: declared,
    }
    larger = {name: scale * number for name, number in values.items()}

    for metric in (
        "l2.hit_fraction",
        "global.uncoalesced_fraction",
        "shared.bank_conflict_fraction",
        "dram.excess_ratio",
    ):
        before, after = value_of(metric, values), value_of(metric, larger)

        assert after == (None if before is None else pytest.approx(before))


@given(COUNTS, COUNTS)
def test_shares_are_between_nothing_and_all(part: float, rest: float) -> None:
    """A part of a whole is never below 0 nor above 1."""
    whole = part + rest
    values = {
        "l2_hit_sectors_count": part,
        "l2_miss_sectors_count": rest,
        "global_sectors_count": whole,
        "global_ideal_sectors_count": part,
        "shared_wavefronts_count": whole,
        "shared_ideal_wavefronts_count": part,
    }
    found = [value for value in derived(values).values() if value is not None]

    assert len(found) == (3 if whole else 2)
    assert all(0 <= value <= 1 for value in found)


@given(POSITIVE, COUNTS, POSITIVE)
def test_more_lost_is_a_larger_share(ideal: float, excess: float, more: float) -> None:
    """More sectors for the same need, more traffic for the same work: never less."""

    def found(extra: float) -> list[float | None]:
        values = {
            "global_sectors_count": ideal + extra,
            "global_ideal_sectors_count": ideal,
            "dram_bytes": ideal + extra,
            DECLARED_BYTES: ideal,
        }
        metrics = ("global.uncoalesced_fraction", "dram.excess_ratio")
        return [value_of(metric, values) for metric in metrics]

    for less, now in zip(found(excess), found(excess + more), strict=True):
        assert less is not None
        assert now is not None
        assert less <= now


def test_fewer_sectors_than_the_fewest_lose_nothing() -> None:
    """Two passes may count differently; a loss is never negative."""
    values = {"global_sectors_count": 9.0, "global_ideal_sectors_count": 10.0}

    assert value_of("global.uncoalesced_fraction", values) == 0


@given(st.dictionaries(st.sampled_from(sorted(STANDARD)), POSITIVE), st.randoms())
def test_the_order_of_counters_means_nothing(
    values: dict[str, float], chance: random.Random
) -> None:
    """A mapping has no first entry."""
    mixed = dict(chance.sample(sorted(values.items()), len(values)))

    assert derived(mixed) == derived(values)
    assert stall_shares(mixed) == stall_shares(values)


# occupancy of a launch

LIMITS = {
    "warps_limit_blocks_count": 16.0,
    "blocks_limit_blocks_count": 32.0,
    "registers_limit_blocks_count": 6.0,
    "shared_limit_blocks_count": 17.0,
    "block_threads_count": 100.0,
    "warps_possible_fraction": 0.375,
}


def test_a_launch_says_what_limits_its_occupancy() -> None:
    """The resource that allows the fewest blocks; a part of a warp is a warp."""
    occupancy = launch_occupancy(LIMITS)

    assert occupancy is not None
    assert (occupancy.limiter, occupancy.active_blocks) == ("registers", 6)
    assert (occupancy.fraction, occupancy.warps) == (0.375, 24)
    assert "barriers" not in occupancy.block_limits


def test_barriers_limit_where_they_are_told() -> None:
    """Newer versions of the tool count them."""
    occupancy = launch_occupancy({**LIMITS, "barriers_limit_blocks_count": 2.0})

    assert occupancy is not None
    assert occupancy.limiter == "barriers"


@pytest.mark.parametrize("name", LIMITS)
def test_half_the_limits_are_none(name: str) -> None:
    """The smallest of those that are known need not be the smallest."""
    fewer = {other: LIMITS[other] for other in LIMITS if other != name}

    assert launch_occupancy(fewer) is None


# stalls


@given(st.lists(FRACTIONS, min_size=len(CORE), max_size=len(CORE)))
def test_stall_shares_are_shares_of_one_whole(numbers: list[float]) -> None:
    """They sum to 1, or there was no stall at all."""
    shares = stall_shares(stalls("ratio", **dict(zip(CORE, numbers, strict=True))))

    if sum(numbers) == 0:
        assert shares is None
    else:
        assert shares is not None
        assert sum(shares.values()) == pytest.approx(1)
        assert min(shares.values()) >= 0


def test_a_stall_of_some_chips_counts_where_it_is() -> None:
    """Hopper waits for warp groups; an older chip has no such stall and lacks nothing."""
    shares = stall_shares({**stalls(), "stall_gmma_ratio": float(len(CORE))})

    assert shares is not None
    assert shares["gmma"] == pytest.approx(0.5)
    assert "gmma" not in (stall_shares(stalls()) or {})


def test_samples_stand_in_for_ratios() -> None:
    """The hardware's ratio where all are there, else the sampler's."""
    sampled = stalls("samples_count", barrier=100.0)
    both = {**sampled, **stalls("ratio", wait=100.0)}

    assert top(sampled)[0] == "barrier"
    assert top(both)[0] == "wait"


@pytest.mark.parametrize("reason", CORE)
def test_one_stall_that_was_not_collected_hides_all(reason: str) -> None:
    """Its share may be the largest: the shares of the others would be too large."""
    values = stalls()
    del values[f"stall_{reason}_ratio"]

    assert stall_shares(values) is None
    assert stall_shares(stalls()) is not None


def test_the_top_stall_is_one_that_costs_something() -> None:
    """A warp that was ready while another one issued cost nothing."""
    values = stalls(not_selected=100.0, long_scoreboard=5.0)

    assert top(values)[0] == "long_scoreboard"
    assert top(values)[1] == pytest.approx(5 / 118)
    assert top_stall({"not_selected": 1.0, "wait": 0.0}) is None
    assert top_stall({}) is None


def test_of_equal_stalls_the_first_by_name_is_the_top() -> None:
    """The answer does not change from run to run."""
    assert top_stall({"wait": 0.5, "barrier": 0.5}) == ("barrier", 0.5)
