"""The rules of compute/paired: two sides that were measured in turns."""

from __future__ import annotations

import math
import statistics

import pytest
from scipy.special import stdtr, stdtrit

from pytest_gpuperf.compute.paired import paired_change, paired_ratio, paired_spread
from pytest_gpuperf.compute.spread import Prior
from pytest_gpuperf.model.change import Level
from pytest_gpuperf.model.metric import Better
from unit.compute.comparing import known

NOISE = math.log1p(0.005)


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


def test_blocks_are_a_paired_t() -> None:
    """The mean log ratio has n - 1 degrees of freedom and the error of a mean."""
    pairs = [(1.1, 1.0), (1.12, 1.0), (2.2, 2.0), (1.08, 1.0)]
    found = paired_change(pairs)
    logs = [math.log(now / then) for now, then in pairs]
    error = statistics.stdev(logs) / 2
    mean = statistics.fmean(logs)

    assert found is not None
    assert found.effect == pytest.approx(math.expm1(mean))
    assert found.low == pytest.approx(
        math.expm1(mean - float(stdtrit(3, 0.995)) * error)
    )
    assert found.p_worse == pytest.approx(float(stdtr(3, (NOISE - mean) / error)))
    assert found.p_better == pytest.approx(float(stdtr(3, (NOISE + mean) / error)))
    assert found.reference == pytest.approx(2**0.25)
    assert found.current == pytest.approx(2**0.25 * math.exp(mean))
    assert (found.session_count, found.run_count) == (4, 4)


@pytest.mark.parametrize("count", [1, 200])
def test_blocks_say_what_they_could_have_seen(count: int) -> None:
    """Noise, and as many errors as surety among all pairs and the power ask for."""
    pairs = [(1.1, 1.0), (1.12, 1.0), (2.2, 2.0), (1.08, 1.0)]
    found = paired_change(pairs, level=Level(pair_count=count))
    error = statistics.stdev(math.log(now / then) for now, then in pairs) / 2
    sure = float(stdtrit(3, 1 - 0.01 / count) + stdtrit(3, 0.9))

    assert found is not None
    assert found.detectable_effect == pytest.approx(math.expm1(NOISE + sure * error))


def test_swapping_the_sides_swaps_the_verdict() -> None:
    """The other side against this one is as much better as this one is worse."""
    pairs = [(1.1, 1.0), (1.12, 1.0), (2.2, 2.0), (1.08, 1.0)]
    one = paired_change(pairs)
    other = paired_change([(then, now) for now, then in pairs])
    higher = paired_change(pairs, better=Better.HIGHER)

    assert one is not None
    assert other is not None
    assert higher is not None
    assert other.p_better == pytest.approx(one.p_worse)
    assert higher.p_better == one.p_worse
    assert 1 + known(other.effect) == pytest.approx(1 / (1 + known(one.effect)))


def test_few_processes_widen_blocks_too() -> None:
    """Many pairs of one process are wider than as many processes."""
    pairs = [(1.1, 1.0), (1.12, 1.0), (2.2, 2.0), (1.08, 1.0)]
    many = paired_change(pairs)
    one = paired_change(pairs, process_count=1)
    assert many is not None
    assert one is not None
    assert known(one.low) < known(many.low)


def test_three_processes_show_by_themselves_how_they_differ() -> None:
    """Two pairs have one degree of freedom; the third process ends the widening."""
    pairs = [(1.1, 1.0), (1.0, 1.0)]
    spread = paired_spread(pairs, process_count=3)
    widened = paired_spread(pairs, process_count=2)

    assert spread is not None
    assert widened is not None
    assert (spread.dof, spread.pair_count) == (1, 2)
    assert spread.error == pytest.approx(math.log(1.1) / 2)
    assert widened.error == pytest.approx(math.hypot(math.log(1.1) / 2, 0.05))


def test_what_cannot_be_paired() -> None:
    """No pairs, values without a logarithm, one pair without a prior: nothing."""
    assert paired_change([]) is None
    assert paired_change([(1.0, 0.0), (1.0, 1.0)]) is None
    assert paired_change([(1.1, 1.0)]) is None
    alone = paired_change([(1.1, 1.0)], prior=Prior(dof=10, variance=1e-4))
    assert alone is not None
    assert known(alone.low) < 0.1 < known(alone.high)
    equal = paired_change([(1.1, 1.0)] * 3)
    assert equal is not None
    assert equal.effect == pytest.approx(0.1)
