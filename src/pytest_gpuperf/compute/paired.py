"""The ratio of two interleaved sides."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pytest_gpuperf.compute.spread import LEAST_VARIANCE, Spread, half_width, moments
from pytest_gpuperf.compute.stats import median, median_interval
from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.sample import Source

__all__ = [
    "ENOUGH_PROCESSES",
    "PairedRatio",
    "paired_ratio",
    "process_spread",
    "ratio_of_processes",
    "with_spread",
]

# docs/judging.md section 3: what two callables of one process differ by in another one
_HOST_SPREAD = 0.02
_DEVICE_SPREAD = 0.005
ENOUGH_PROCESSES = 3  # so many show by themselves how much processes differ


class PairedRatio(Frozen, frozen=True, kw_only=True):
    """
    The ratio of the first side to the second.

    Attributes:
        value: The ratio, > 0.

        low: Lower end of its two-sided 99 % interval; None: too few pairs for one.

        high: Its upper end.
    """

    value: float
    low: float | None
    high: float | None


def process_spread(source: str) -> float:
    """Return what a ratio of times by one source usually differs by between processes."""
    return _HOST_SPREAD if source == Source.HOST else _DEVICE_SPREAD


def paired_ratio(
    above: Sequence[float],
    below: Sequence[float],
    *,
    process_count: int = 1,
    spread: float = _HOST_SPREAD,
) -> PairedRatio:
    """
    Return the ratio of two interleaved sides.

    One process draws one placement and one choice of kernels for each side, which no
    number of samples averages out: unless 3 processes or more were measured, the interval
    is widened by what processes usually differ by.

    Args:
        above: Samples of the side on top, > 0, in the order they were taken.

        below: Samples of the other side; the i-th belongs to the i-th of `above`.

        process_count: Processes that the samples come from.

        spread: Standard deviation between processes, relative to the value.

    Raises:
        ValueError: A side has no samples.

    Example:
        >>> paired_ratio([2.0] * 8, [1.0] * 8, process_count=3).low
        2.0
    """
    ratios = [math.log(a / b) for a, b in zip(above, below, strict=False)]
    middle = median(ratios)
    interval = median_interval(ratios)
    if interval is None:
        return PairedRatio(value=math.exp(middle), low=None, high=None)
    between = 0.0
    if process_count < ENOUGH_PROCESSES:
        between = half_width(Spread(fraction=spread))
    return PairedRatio(
        value=math.exp(middle),
        low=math.exp(middle - math.hypot(middle - interval[0], between)),
        high=math.exp(middle + math.hypot(interval[1] - middle, between)),
    )


def with_spread(
    ratio: PairedRatio, *, spread: Spread, instead_of: float
) -> PairedRatio:
    """
    Return a ratio whose interval is widened by another spread between processes.

    Args:
        ratio: A ratio of one process.

        spread: What processes, or sessions, have been seen to differ by.

        instead_of: The standard deviation that its interval was widened by.
    """
    if ratio.low is None or ratio.high is None:
        return ratio
    assumed, between = half_width(Spread(fraction=instead_of)), half_width(spread)
    below, above = (
        math.sqrt(max(math.log(end / ratio.value) ** 2 - assumed**2, 0.0) + between**2)
        for end in (ratio.low, ratio.high)
    )
    return PairedRatio(
        value=ratio.value,
        low=ratio.value * math.exp(-below),
        high=ratio.value * math.exp(above),
    )


def ratio_of_processes(ratios: Sequence[float]) -> PairedRatio:
    """
    Return the mean of the ratios of several processes, as sure as they are alike.

    Args:
        ratios: One of each process, > 0, of 3 processes or more.
    """
    mean, squares = moments([math.log(ratio) for ratio in ratios])
    dof = len(ratios) - 1
    variance = max(squares / dof, LEAST_VARIANCE) / len(ratios)
    spread = Spread(fraction=math.sqrt(variance), parts=((1.0, variance, dof),))
    half = half_width(spread)
    return PairedRatio(
        value=math.exp(mean), low=math.exp(mean - half), high=math.exp(mean + half)
    )
