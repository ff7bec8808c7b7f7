"""The effect of a session against stored ones, with interval and power.

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
from functools import partial
from statistics import fmean
from types import MappingProxyType

from pytest_gpuperf.compute.contrast import Contrast, contrasts, moderated_variances
from pytest_gpuperf.compute.spread import Prior
from pytest_gpuperf.compute.student import cumulative, quantile
from pytest_gpuperf.model.change import Change, Comparison, Level, Shift
from pytest_gpuperf.model.metric import Better

__all__ = [
    "Comparison",
    "Level",
    "Shift",
    "changes",
    "exact_change",
    "holm",
    "is_exact",
]

_P_99 = 0.995  # two-sided 99 %
_MEDIAN_VARIANCE = math.pi / 2  # of a median of normal values, over that of their mean
_NO_SHIFT = Shift(log_shift=0.0, control_count=0)


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
    exact = [is_exact(comparison) for comparison in comparisons]
    pairs = list(zip(comparisons, exact, strict=True))
    noisy = [comparison for comparison, equal in pairs if not equal]
    found = iter(_noisy_changes(noisy, priors=priors, level=level, shifts=shifts))
    return tuple(exact_change(c) if equal else next(found) for c, equal in pairs)


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


def _noisy_changes(
    comparisons: Sequence[Comparison],
    *,
    priors: Mapping[str, Prior],
    level: Level,
    shifts: Mapping[str, Shift],
) -> list[Change]:
    """Return the change of each comparison of a metric with noise, in their order."""
    sessions = {group: shift.sessions for group, shift in shifts.items()}
    noisy = contrasts(comparisons, sessions)
    variances = moderated_variances(noisy, priors, sessions)
    pooled = _pooled_shares(noisy, variances)
    found = []
    for each, (variance, dof) in zip(noisy, variances, strict=True):
        shift = shifts.get(each.comparison.shift_group, _NO_SHIFT)
        between = each.process_variance / variance
        part = min(1.0, pooled.get(each.comparison.group, 0.0), between)
        own = variance * _variance_ratio(each, part, shift)
        common = shift.common_variance * each.session_ratio
        error, freedom = _error(own, dof, common, shift.common_dof)
        difference = each.difference - shift.log_shift
        found.append(_noisy_change(each, difference, error, freedom, level))
    return found


def _pooled_shares(
    noisy: Sequence[Contrast], variances: Sequence[tuple[float, float]]
) -> dict[str, float]:
    """
    Return how much of the stored sessions' variance is that between processes, by group.

    The current session's processes say how they differ. Those of one test are few: the
    share is that of its whole group, or the test's own where that is smaller, so that a
    test whose sessions differ for other reasons does not profit from the others.
    """
    between: dict[str, float] = {}
    whole: dict[str, float] = {}
    for each, (variance, _) in zip(noisy, variances, strict=True):
        if each.run_count > 1:
            group = each.comparison.group
            between[group] = between.get(group, 0.0) + each.process_variance
            whole[group] = whole.get(group, 0.0) + variance
    return {group: between[group] / whole[group] for group in whole}


def _variance_ratio(each: Contrast, part: float, shift: Shift) -> float:
    """
    Return the variance of a difference over that of a stored session.

    Args:
        each: The sessions.

        part: How much of a stored session's variance is that between processes: with
            more of them, the current session has less.

        shift: What is taken out. It is not known exactly either, and adds its own.
    """
    now = 1 - part + part / (each.run_share * each.run_count)
    ratio = 1 / len(each.stored) + now + (shift.widening**2 - 1) * each.session_ratio
    controls = shift.control_count
    if controls and shift.test_count:
        again = part / each.run_share * (1 + 1 / each.run_count) / controls
        ratio += _MEDIAN_VARIANCE * (each.session_ratio / shift.test_count + again)
    elif controls:
        ratio += _MEDIAN_VARIANCE * each.session_ratio / controls
    return ratio


def _error(
    own: float, dof: float, common: float, common_dof: float
) -> tuple[float, float]:
    """
    Return the standard error with what moves all tests together, and its freedom.

    A suite has as many draws of the machine as sessions, not as tests: the two variances
    have the freedom of Satterthwaite's sum. A test of no freedom gets none by what moves
    the others.
    """
    total = own + common
    if common > 0 and dof > 0:
        parts = own * own / dof + common * common / max(common_dof, 1.0)
        dof = total * total / parts
    return math.sqrt(total), dof


def _noisy_change(
    each: Contrast, difference: float, error: float, dof: float, level: Level
) -> Change:
    """Return a difference as a change: without freedom, or against 0, little is known."""
    reference = each.in_unit(each.mean)
    change = partial(
        Change,
        effect=each.relative(difference) if reference != 0 else None,
        current=each.in_unit(each.now),
        reference=reference,
        session_count=len(each.stored),
        run_count=each.run_count,
    )
    if reference == 0 or not dof > 0:  # where a variance overflowed it is no number
        return change()
    threshold = level.noise_threshold
    noise = threshold if each.scale else math.log1p(threshold)
    worse = cumulative(dof, (noise - difference) / error)
    better = cumulative(dof, (noise + difference) / error)
    if each.comparison.better is Better.HIGHER:
        worse, better = better, worse
    half = quantile(dof, _P_99) * error
    low, high = each.relative(difference - half), each.relative(difference + half)
    if not (math.isfinite(low) and math.isfinite(high)):
        return change(p_worse=worse, p_better=better)
    surely = quantile(dof, 1 - level.alpha / level.pair_count)
    seen = noise + (surely + quantile(dof, level.power)) * error
    return change(
        p_worse=worse,
        p_better=better,
        low=low,
        high=high,
        detectable_effect=each.relative(seen),
    )
