"""The rules of compute/spread: two sides that were measured in turns."""

from __future__ import annotations

import math
import statistics

import pytest

from pytest_gpuperf.compute.spread import (
    PairedRatio,
    Spread,
    paired_ratio,
    process_spread,
    ratio_of_processes,
    with_spread,
)
from unit.compute.comparing import known


def ends(ratio: PairedRatio) -> tuple[float, float]:
    """The ends of a ratio that has them."""
    return known(ratio.low), known(ratio.high)


def test_a_ratio_of_samples_taken_in_turns() -> None:
    """It is the median of the pairs' ratios: drift that both sides share cancels."""
    below = [1.0 + 0.1 * n for n in range(20)]
    above = [2.0 * v for v in below]
    ratio = paired_ratio(above, below, spread=0.0)
    assert ratio.value == pytest.approx(2.0)
    assert ratio.low == pytest.approx(2.0)
    assert ratio.high == pytest.approx(2.0)


def test_one_process_widens_a_ratio() -> None:
    """It drew one placement and one choice of kernels: 2 % by the host."""
    one = paired_ratio([2.0] * 8, [1.0] * 8)
    device = paired_ratio([2.0] * 8, [1.0] * 8, spread=0.005)

    assert known(one.low) == pytest.approx(2 * math.exp(-0.02 * 2.5758293))
    assert known(one.high) == pytest.approx(2 * math.exp(0.02 * 2.5758293))
    assert known(device.low) > known(one.low)


def test_ratios_that_are_like_their_neighbours_widen_a_ratio() -> None:
    """The same pairs in another order say more, and the ends need not be among them."""
    drifting = [2.0 + 0.01 * n for n in range(10)]
    mixed = [2.0 + 0.01 * (7 * n % 10) for n in range(10)]
    wide = paired_ratio(drifting, [1.0] * 10, spread=0.0)
    narrow = paired_ratio(mixed, [1.0] * 10, spread=0.0)

    assert ends(narrow) == pytest.approx((2.0, 2.09))
    assert known(wide.low) < 1.97
    assert known(wide.high) > 2.12
    assert wide.value == narrow.value


@pytest.mark.parametrize("spread", [0.02, 0.0])
def test_the_ends_of_a_ratio_are_those_of_its_samples(spread: float) -> None:
    """From the middle to the smallest and to the largest of 8, widened by the spread."""
    above = [1.8, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.6]
    ratio = paired_ratio(above, [1.0] * 8, spread=spread)
    between = spread * 2.5758293

    assert ratio.value == pytest.approx(2.0)
    assert known(ratio.low) == pytest.approx(
        2 * math.exp(-math.hypot(math.log(0.9), between))
    )
    assert known(ratio.high) == pytest.approx(
        2 * math.exp(math.hypot(math.log(1.3), between))
    )


def test_samples_without_a_partner_make_no_ratio() -> None:
    """What one side has more of is left out."""
    assert paired_ratio([2.0] * 9, [1.0] * 8) == paired_ratio([2.0] * 8, [1.0] * 8)


def test_too_few_pairs_have_no_interval() -> None:
    """Seven pairs have a ratio; without any there is nothing."""
    ratio = paired_ratio([2.0] * 7, [1.0] * 7)
    assert ratio.value == pytest.approx(2.0)
    assert (ratio.low, ratio.high) == (None, None)
    with pytest.raises(ValueError, match="at least 1"):
        paired_ratio([], [])


def test_processes_usually_differ_by_so_much() -> None:
    """2 % of host times, 0.5 % of those of a device."""
    assert process_spread("host") == 0.02
    assert [process_spread(s) for s in ("cupti", "events")] == [0.005, 0.005]


def test_what_was_seen_takes_the_place_of_what_is_usual() -> None:
    """The part of the samples stays, that of the processes is exchanged."""
    above = [1.8, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.6]
    alone = paired_ratio(above, [1.0] * 8, spread=0.0)
    one = paired_ratio(above, [1.0] * 8, spread=0.02)
    seen = with_spread(one, spread=Spread(fraction=0.1), instead_of=0.02)
    none = with_spread(one, spread=Spread(fraction=0.0), instead_of=0.02)

    assert seen.value == one.value
    assert ends(seen) == pytest.approx(ends(paired_ratio(above, [1.0] * 8, spread=0.1)))
    assert ends(none) == pytest.approx(ends(alone))


def test_samples_that_left_nothing_open_leave_nothing() -> None:
    """Not even where the interval is rounded below what it was widened by."""
    narrow = PairedRatio(value=1.0, low=0.999, high=1.001)
    left = with_spread(narrow, spread=Spread(fraction=0.01), instead_of=0.02)

    assert known(left.high) == pytest.approx(math.exp(0.01 * 2.5758293))
    assert known(left.low) == pytest.approx(math.exp(-0.01 * 2.5758293))


def test_a_ratio_without_an_interval_has_none() -> None:
    """Whatever is known of processes."""
    bare = PairedRatio(value=1.0, low=None, high=None)

    assert with_spread(bare, spread=Spread(fraction=0.01), instead_of=0.02) == bare


def test_several_processes_are_as_sure_as_they_are_alike() -> None:
    """Student's interval of the mean of their logarithms, 99 %, two-sided."""
    logs = [0.30, 0.32, 0.37, 0.31]
    ratio = ratio_of_processes([math.exp(log) for log in logs])
    half = 5.840909 * statistics.stdev(logs) / 2  # of 3 degrees of freedom

    assert ratio.value == pytest.approx(math.exp(0.325))
    assert known(ratio.low) == pytest.approx(math.exp(0.325 - half), rel=1e-5)
    assert known(ratio.high) == pytest.approx(math.exp(0.325 + half), rel=1e-5)


def test_processes_that_agree_are_not_taken_for_exact() -> None:
    """Nothing repeats better than 0.1 %."""
    ratio = ratio_of_processes([2.0, 2.0, 2.0])
    half = 9.924843 * 0.001 / math.sqrt(3)

    assert known(ratio.high) == pytest.approx(2 * math.exp(half), rel=1e-5)
