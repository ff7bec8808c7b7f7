"""The rules of compute/spread: two sides that were measured in turns."""

from __future__ import annotations

import math

import pytest

from pytest_gpuperf.compute.spread import paired_ratio
from unit.compute.comparing import known


def test_a_ratio_of_samples_taken_in_turns() -> None:
    """It is the median of the pairs' ratios: drift that both sides share cancels."""
    below = [1.0 + 0.1 * n for n in range(20)]
    above = [2.0 * v for v in below]
    ratio = paired_ratio(above, below, process_count=3)
    assert ratio.value == pytest.approx(2.0)
    assert ratio.low == pytest.approx(2.0)
    assert ratio.high == pytest.approx(2.0)


def test_one_process_widens_a_ratio() -> None:
    """Fewer than 3 processes drew too few placements and choices: 5 % by the host."""
    one = paired_ratio([2.0] * 8, [1.0] * 8)
    device = paired_ratio([2.0] * 8, [1.0] * 8, process_spread=0.015)

    assert known(one.low) == pytest.approx(2 * math.exp(-0.05 * 2.5758293))
    assert known(one.high) == pytest.approx(2 * math.exp(0.05 * 2.5758293))
    assert known(device.low) > known(one.low)


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_the_ends_of_a_ratio_are_those_of_its_samples(processes: int) -> None:
    """From the middle to the smallest and to the largest of 8, and widened below 3."""
    above = [1.8, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.6]
    ratio = paired_ratio(above, [1.0] * 8, process_count=processes)
    between = 0.05 * 2.5758293 if processes < 3 else 0.0

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
