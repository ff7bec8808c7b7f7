"""The ratio of two interleaved sides."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pytest_gpuperf.compute.spread import Spread, half_width
from pytest_gpuperf.compute.stats import median, median_interval
from pytest_gpuperf.model.frozen import Frozen

__all__ = [
    "DEVICE_PROCESS_SPREAD",
    "HOST_PROCESS_SPREAD",
    "PairedRatio",
    "paired_ratio",
]

HOST_PROCESS_SPREAD = 0.05  # docs/judging.md section 4: the prior of host and wall time
DEVICE_PROCESS_SPREAD = 0.015  # the same, of device time
_ENOUGH_PROCESSES = 3  # so many show by themselves how much processes differ


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


def paired_ratio(
    above: Sequence[float],
    below: Sequence[float],
    *,
    process_count: int = 1,
    process_spread: float = HOST_PROCESS_SPREAD,
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

        process_spread: Standard deviation between processes, relative to the value.

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
    if process_count < _ENOUGH_PROCESSES:
        between = half_width(Spread(fraction=process_spread))
    return PairedRatio(
        value=math.exp(middle),
        low=math.exp(middle - math.hypot(middle - interval[0], between)),
        high=math.exp(middle + math.hypot(interval[1] - middle, between)),
    )
