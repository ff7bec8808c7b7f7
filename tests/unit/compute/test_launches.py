"""compute.launches: a metric of several launches taken together."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.compute.derive import over_launches
from pytest_gpuperf.model.counters import CounterGap, CounterMode, LaunchCounters

BYTES = st.integers(min_value=0, max_value=10**12).map(float)
DURATIONS = st.floats(min_value=1e-6, max_value=10)


def launch(mode: CounterMode | None = None, **values: float) -> LaunchCounters:
    return LaunchCounters(values=values, mode=mode or CounterMode())


def number(metric: str, *launches: LaunchCounters) -> float:
    found = over_launches(metric, launches)
    assert not isinstance(found, CounterGap)
    return found


def gap(metric: str, *launches: LaunchCounters) -> CounterGap:
    found = over_launches(metric, launches)
    assert isinstance(found, CounterGap)
    return found


def test_bytes_and_counts_are_added_up() -> None:
    """Two launches move the bytes of both, beside the bytes declared for both."""
    both = [
        launch(dram_bytes=each, instructions_count=each, declared_bytes=20.0)
        for each in (10.0, 30.0)
    ]

    assert number("dram.bytes", *both) == 40
    assert number("instructions.count", *both) == 40
    assert number("dram.excess_ratio", *both) == 2


def test_resources_are_the_largest() -> None:
    """What one kernel needs, the next one does not give back."""
    both = [launch(registers_count=each, waves_count=each) for each in (32.0, 255.0)]

    assert number("registers", *both) == 255
    assert number("waves", *both) == 255


def test_fractions_are_weighed_by_time() -> None:
    """Three quarters of the time at 0.2, one at 1: 0.4."""
    long = launch(dram_throughput_fraction=0.2, duration_s=3.0)
    short = launch(dram_throughput_fraction=1.0, duration_s=1.0)

    assert number("dram.fraction", long, short) == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("metric", "whole", "part", "share"),
    [
        # 30 of 100 hit, and 900 of 900
        ("l2.hit_fraction", "l2_hit_sectors_count", "l2_miss_sectors_count", 0.93),
        # 70 of 100 are needless, and none of 900
        (
            "global.uncoalesced_fraction",
            "global_sectors_count",
            "global_ideal_sectors_count",
            0.07,
        ),
        (
            "shared.bank_conflict_fraction",
            "shared_wavefronts_count",
            "shared_ideal_wavefronts_count",
            0.07,
        ),
    ],
)
def test_a_share_of_accesses_is_the_share_of_all_of_them(
    metric: str, whole: str, part: str, share: float
) -> None:
    """A launch without accesses may last as long as it likes."""
    first, second = (30.0, 70.0), (900.0, 0.0)
    if metric != "l2.hit_fraction":  # all accesses, and the needed ones
        first, second = (100.0, 30.0), (900.0, 900.0)
    launches = [
        LaunchCounters(values={whole: done, part: rest, "duration_s": time_s})
        for (done, rest), time_s in ((first, 9.0), (second, 1.0), ((0.0, 0.0), 90.0))
    ]

    assert number(metric, *launches) == pytest.approx(share)


def test_the_tools_own_hit_rate_is_weighed_by_what_was_looked_up() -> None:
    """Where that was not collected, by time."""
    rates = ((0.3, 100.0, 9.0), (1.0, 900.0, 1.0))
    counted = [
        launch(
            l2_hit_fraction=rate,
            l2_hit_sectors_count=rate * sectors,
            l2_miss_sectors_count=(1 - rate) * sectors,
            duration_s=time_s,
        )
        for rate, sectors, time_s in rates
    ]
    timed = [launch(l2_hit_fraction=r, duration_s=time_s) for r, _, time_s in rates]

    assert number("l2.hit_fraction", *counted) == pytest.approx(0.93)
    assert number("l2.hit_fraction", *timed) == pytest.approx(0.37)


def test_a_launch_without_an_opinion_is_left_out() -> None:
    """Nothing was looked up there: neither its 0 nor its 1 would be true."""
    silent = launch(l2_hit_sectors_count=0.0, l2_miss_sectors_count=0.0, duration_s=9.0)
    heard = launch(l2_hit_sectors_count=3.0, l2_miss_sectors_count=1.0, duration_s=1.0)

    assert number("l2.hit_fraction", silent, heard, heard) == 0.75
    nothing = gap("l2.hit_fraction", silent, silent)
    assert "nothing was looked up" in nothing.reason
    assert nothing.remedy == "choose other launches with kernel="


def test_a_ratio_to_nothing_is_not_defined() -> None:
    """Where its formula has no words of its own for that, these are the words."""
    found = gap("dram.excess_ratio", launch(dram_bytes=1.0, declared_bytes=0.0))

    assert found.reason == "it is not defined"
    assert found.missing == ()


def test_one_launch_that_lacks_a_counter_leaves_the_whole_unknown() -> None:
    """The sum of the others is not the sum."""
    found = gap("dram.bytes", launch(dram_bytes=1.0), launch(), launch())

    assert found.reason == "1 of 3 launches in the report has it"
    assert found.missing == ("dram_bytes",)
    assert gap("dram.bytes", launch()).reason == "no launch in the report has it"


def test_rates_of_unknown_durations_have_no_mean() -> None:
    """One of them alone needs no weight."""
    fast = launch(dram_throughput_fraction=0.2)

    assert number("dram.fraction", fast) == 0.2
    timed = launch(dram_throughput_fraction=0.2, duration_s=1.0)
    for other in (fast, timed):  # one that is known weighs nothing alone
        found = gap("dram.fraction", fast, other)
        assert found.reason == "a rate of 2 launches, whose durations are not known"
        assert found.remedy == "choose one launch with kernel="


@pytest.mark.parametrize(
    ("mode", "sentence"),
    [
        (
            CounterMode(replay="application", cache="all", clock="base"),
            "counters of replay mode kernel and application are not mixed",
        ),
        (
            CounterMode(replay="kernel", cache="none", clock="base"),
            "counters of cache mode all and none are not mixed",
        ),
        (
            CounterMode(replay="kernel", cache="all"),
            "counters of clock mode base and unknown are not mixed",
        ),
    ],
)
def test_counters_of_two_modes_never_meet(mode: CounterMode, sentence: str) -> None:
    """They are two experiments: refused by name."""
    ours = CounterMode(replay="kernel", cache="all", clock="base")
    found = gap(
        "dram.bytes", launch(ours, dram_bytes=1.0), launch(mode, dram_bytes=1.0)
    )

    assert found.reason == sentence
    assert found.remedy == "collect all of them in one mode"


@given(st.lists(st.tuples(BYTES, DURATIONS), min_size=1, max_size=8), st.randoms())
def test_the_order_of_launches_means_nothing(
    pairs: list[tuple[float, float]], chance: random.Random
) -> None:
    """The same launches in another order are the same work."""
    launches = [
        launch(dram_bytes=moved, l1_throughput_fraction=moved / 1e12, duration_s=time)
        for moved, time in pairs
    ]
    mixed = chance.sample(launches, len(launches))

    for metric in ("dram.bytes", "l1.fraction"):
        assert number(metric, *launches) == number(metric, *mixed)
