"""The effect of a session against stored ones, with interval and power; PYTEST_DONT_REWRITE.

The session is the unit of evidence. Positive values are compared on a log scale, the
others relative to the size of the baseline's mean. With n stored sessions, d their
difference to the current one and s their standard deviation, moderated over the suite,
a new session that did not change lies in d +- t s sqrt(1 + 1/n).

What moves a whole class of tests is a shift of the machine. Where controls measured that
of the current session, it is taken from d; and those of the stored sessions, which the
class's tests show together, are taken from s: else the machine's spread, already out of
d, would still hide every change.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from types import MappingProxyType

from pytest_gpuperf.compute.spread import (
    LEAST_TESTS,
    Prior,
    Spread,
    half_width,
    moderated,
)
from pytest_gpuperf.compute.stats import median, median_interval
from pytest_gpuperf.compute.student import cumulative, quantile
from pytest_gpuperf.model.change import Change, Comparison, Level, Shift
from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.metric import Better

__all__ = [
    "Comparison",
    "Level",
    "PairedRatio",
    "PairedSpread",
    "Shift",
    "changes",
    "exact_change",
    "fit_priors",
    "holm",
    "is_exact",
    "paired_change",
    "paired_ratio",
    "paired_spread",
]

HOST_PROCESS_SPREAD = 0.05  # docs/judging.md section 4: the prior of host and wall time
DEVICE_PROCESS_SPREAD = 0.015  # the same, of device time
_ENOUGH_PROCESSES = 3  # so many show by themselves how much processes differ


def is_exact(comparison: Comparison) -> bool:
    """Return whether a comparison is judged by equality: all stored values agree."""
    if not comparison.exact:
        return False
    values = {value for session in comparison.stored for value in session.run_values}
    return len(values) == 1


def exact_change(comparison: Comparison) -> Change:
    """
    Return a change that is judged by equality.

    Several processes of the current session that disagree count as their mean. Against a
    baseline of 0 no effect is relative: it is None where anything changed.
    """
    reference = comparison.stored[0].run_values[0]
    runs = comparison.current.run_values
    current = runs[0] if len(set(runs)) == 1 else fmean(runs)
    effect: float | None = 0.0
    if current != reference:
        effect = (current - reference) / abs(reference) if reference else None
    return Change(
        effect=effect,
        current=current,
        reference=reference,
        session_count=len(comparison.stored),
        run_count=len(runs),
        exact=True,
    )


def fit_priors(comparisons: Sequence[Comparison]) -> dict[str, Prior]:
    """Return what the variances of each group have in common, where it can be known."""
    several = sum(len(c.stored) > 1 for c in comparisons)
    if several < LEAST_TESTS:  # whatever the numbers, and those of columns load numpy
        return {}
    from pytest_gpuperf.compute.bulk import group_priors

    return group_priors(comparisons)


def changes(
    comparisons: Sequence[Comparison],
    *,
    priors: Mapping[str, Prior],
    level: Level,
    shifts: Mapping[str, Shift] = MappingProxyType({}),
) -> tuple[Change, ...]:
    """
    Return the change of each comparison, in their order.

    Args:
        comparisons: What to compare.

        priors: What the variances of each group have in common; absent: nothing.

        level: How sure a change must be.

        shifts: By shift group, what the machine did; absent: not known.
    """
    found: list[Change | None] = [
        exact_change(each) if is_exact(each) else None for each in comparisons
    ]
    noisy = [index for index, change in enumerate(found) if change is None]
    if noisy:
        from pytest_gpuperf.compute.bulk import noisy_changes

        several = [comparisons[index] for index in noisy]
        computed = noisy_changes(several, priors=priors, level=level, shifts=shifts)
        for index, change in zip(noisy, computed, strict=True):
            found[index] = change
    return tuple(change for change in found if change is not None)


def holm(p_values: Sequence[float], *, count: int | None = None) -> tuple[float, ...]:
    """
    Return p-values adjusted so that the chance of any false alarm is the smallest's.

    Args:
        p_values: Of one family, in any order.

        count: Members of the family, where some have no p-value here and count as 1.

    Returns:
        Adjusted values up to 1, in the order given.

    Example:
        >>> holm([0.01, 0.04, 0.03])
        (0.03, 0.06, 0.06)
    """
    members = len(p_values) if count is None else max(count, len(p_values))
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(
        sorted(range(len(p_values)), key=p_values.__getitem__)
    ):
        largest = max(largest, min(1.0, (members - rank) * p_values[index]))
        adjusted[index] = largest
    return tuple(adjusted)


def paired_change(
    pairs: Sequence[tuple[float, float]],
    *,
    better: Better = Better.LOWER,
    prior: Prior | None = None,
    process_count: int | None = None,
    level: Level | None = None,
) -> Change | None:
    """
    Return the change between two sides that were measured in turns.

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
    seen = quantile(spread.dof, level.power)
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
        detectable_effect=math.expm1(noise + (sure + seen) * error),
    )


class PairedRatio(Frozen, frozen=True, kw_only=True):
    """
    How many times the first of two sides takes what the second takes.

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
    The mean log ratio of some pairs, and how surely it is known.

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
    Return the ratio of two sides that were sampled in turns.

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
    own = math.fsum((x - mean) ** 2 for x in ratios) / max(1, count - 1)
    variance, dof = moderated(own, count - 1, prior)
    if dof == 0:
        return None
    processes = count if process_count is None else process_count
    widening = process_spread if processes < _ENOUGH_PROCESSES else 0.0
    error = math.hypot(math.sqrt(variance / count), widening)
    return PairedSpread(mean=mean, error=error, dof=dof, pair_count=count)
