"""Change and ratio of two interleaved sides."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from pytest_gpuperf.compute.spread import Prior, Spread, half_width, moderated
from pytest_gpuperf.compute.stats import median, median_interval
from pytest_gpuperf.compute.student import cumulative, quantile
from pytest_gpuperf.model.change import Change, Level
from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.metric import Better

__all__ = [
    "DEVICE_PROCESS_SPREAD",
    "HOST_PROCESS_SPREAD",
    "PairedRatio",
    "PairedSpread",
    "paired_change",
    "paired_ratio",
    "paired_spread",
]

HOST_PROCESS_SPREAD = 0.05  # docs/judging.md section 4: the prior of host and wall time
DEVICE_PROCESS_SPREAD = 0.015  # the same, of device time
_ENOUGH_PROCESSES = 3  # so many show by themselves how much processes differ


def paired_change(
    pairs: Sequence[tuple[float, float]],
    *,
    better: Better = Better.LOWER,
    prior: Prior | None = None,
    process_count: int | None = None,
    level: Level | None = None,
) -> Change | None:
    """
    Return the change between two interleaved sides.

    Args:
        pairs: Current and reference value of each block, > 0.

        better: Which way the metric gets better; NEITHER counts as LOWER.

        prior: What the variances of the suite's log ratios have in common.

        process_count: Processes of each side; None: every pair has its own. Below 3 the
            interval is widened by what processes usually differ by.

        level: How sure a change must be.

    Returns:
        None where a value is not positive, or where there is but one pair and no prior.
    """
    spread = paired_spread(pairs, prior=prior, process_count=process_count)
    if spread is None:
        return None
    level = level or Level()
    noise = math.log1p(level.noise_threshold)
    error = max(spread.error, math.ulp(1.0))
    half = quantile(spread.dof, 0.995) * error
    more = cumulative(spread.dof, (noise - spread.mean) / error)
    less = cumulative(spread.dof, (noise + spread.mean) / error)
    worse, better_p = (less, more) if better is Better.HIGHER else (more, less)
    sure = quantile(spread.dof, 1 - level.alpha / level.pair_count)
    power_t = quantile(spread.dof, level.power)
    reference = math.exp(fmean(math.log(then) for _, then in pairs))
    return Change(
        effect=math.expm1(spread.mean),
        low=math.expm1(spread.mean - half),
        high=math.expm1(spread.mean + half),
        current=reference * math.exp(spread.mean),
        reference=reference,
        session_count=spread.pair_count,
        run_count=spread.pair_count,
        p_worse=worse,
        p_better=better_p,
        detectable_effect=math.expm1(noise + (sure + power_t) * error),
    )


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


class PairedSpread(Frozen, frozen=True, kw_only=True):
    """
    The mean log ratio of pairs, with its standard error.

    Attributes:
        mean: Mean of log(current / reference).

        error: Standard error of the mean, >= 0.

        dof: Degrees of freedom of the error.

        pair_count: Pairs behind it.
    """

    mean: float
    error: float
    dof: float
    pair_count: int


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


def paired_spread(
    pairs: Sequence[tuple[float, float]],
    *,
    prior: Prior | None = None,
    process_count: int | None = None,
    process_spread: float = HOST_PROCESS_SPREAD,
) -> PairedSpread | None:
    """
    Return the mean log ratio of pairs, with its moderated standard error.

    Args:
        pairs: Current and reference value of each block, > 0.

        prior: What the variances of the suite's log ratios have in common.

        process_count: Processes of each side; None: every pair has its own.

        process_spread: Standard deviation between processes, used below 3 of them.

    Returns:
        None where a value is not positive, or where nothing says how ratios vary.
    """
    if not pairs or min(map(min, pairs)) <= 0:
        return None
    count = len(pairs)
    ratios = [math.log(now / then) for now, then in pairs]
    mean = math.fsum(ratios) / count
    pair_variance = math.fsum((x - mean) ** 2 for x in ratios) / max(1, count - 1)
    variance, dof = moderated(pair_variance, count - 1, prior)
    if dof == 0:
        return None
    processes = count if process_count is None else process_count
    widening = process_spread if processes < _ENOUGH_PROCESSES else 0.0
    error = math.hypot(math.sqrt(variance / count), widening)
    return PairedSpread(mean=mean, error=error, dof=dof, pair_count=count)
