"""The change of a value between two sides: effect, interval, significance."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from statistics import fmean, median
from types import MappingProxyType
from typing import TypeVar

from pytest_gpuperf.compute.spread import (
    LEAST_DEVIATION,
    Prior,
    fit_prior,
    moderated,
    moments,
    sampling_error,
)
from pytest_gpuperf.compute.student import cumulative, quantile
from pytest_gpuperf.model.change import Change, Comparison, Level, Shift
from pytest_gpuperf.model.frozen import BulkRecord
from pytest_gpuperf.model.metric import Better
from pytest_gpuperf.model.record import SessionValue

__all__ = [
    "Comparison",
    "Contrast",
    "Level",
    "Shift",
    "changes",
    "class_centres",
    "contrasts",
    "exact_change",
    "fit_priors",
    "holm",
    "is_exact",
    "log_differences",
    "moderated_variances",
    "session_shifts",
]

Sessions = Mapping[str, float]  # the known shift of each stored session, by its id
_Name = TypeVar("_Name")
_MOST = 700.0  # exp of more is not finite
_LEAST_VARIANCE = LEAST_DEVIATION**2


class Contrast(BulkRecord, frozen=True, kw_only=True):
    """
    One comparison on its own scale.

    Attributes:
        comparison: What it is of.

        now: Value of the current session.

        stored: Value of each stored session, in order, without its known shift.

        mean: Their mean.

        variance: Their variance; 0 for a single one.

        floor: What samples and processes leave open, as a standard deviation.

        run_share: Mean of 1 / (processes of a session) over the stored sessions.

        process_variance: What processes add to the variance of a stored session, if they
            always differ as in the current one; 0 where that has a single one.

        scale: What was divided by where the scale is linear; 0 where it is the logarithm.
    """

    comparison: Comparison
    now: float
    stored: Sequence[float]
    mean: float
    variance: float
    floor: float
    run_share: float
    process_variance: float
    scale: float

    @property
    def run_count(self) -> int:
        """Processes of the current session."""
        return len(self.comparison.current.run_values)

    @property
    def dof(self) -> int:
        """Degrees of freedom of the variance."""
        return len(self.stored) - 1

    @property
    def difference(self) -> float:
        """The current session's distance from the mean of the stored ones."""
        return self.now - self.mean

    @property
    def session_ratio(self) -> float:
        """Variance of that difference over the variance of one session."""
        return 1 + 1 / len(self.stored)

    def relative(self, difference: float) -> float:
        """Return a difference on this scale as a fraction."""
        if self.scale:
            return difference
        return math.expm1(max(min(difference, _MOST), -_MOST))

    def in_unit(self, value: float) -> float:
        """Return a value on this scale in its metric's unit."""
        return value * self.scale if self.scale else math.exp(min(value, _MOST))


def contrasts(
    comparisons: Iterable[Comparison],
    sessions: Mapping[str, Sessions] = MappingProxyType({}),
) -> list[Contrast]:
    """
    Return comparisons as numbers, in their order.

    Args:
        comparisons: What to compare.

        sessions: The known shifts of stored sessions, by shift group.
    """
    return [_contrast(c, sessions.get(c.shift_group)) for c in comparisons]


def fit_priors(comparisons: Iterable[Comparison]) -> dict[str, Prior]:
    """Return the prior of each group's variances, where it can be estimated."""
    return _fitted(
        (contrast.comparison.group, contrast) for contrast in contrasts(comparisons)
    )


def moderated_variances(
    several: Sequence[Contrast],
    priors: Mapping[str, Prior],
    sessions: Mapping[str, Sessions],
) -> list[tuple[float, float]]:
    """
    Return the moderated variance of each comparison, and its degrees of freedom.

    Where session shifts were subtracted, the remaining variances are smaller, and have
    a separate prior if there are enough of them.

    Args:
        several: The comparisons of a run.

        priors: The prior of each group's variances; absent: none.

        sessions: The subtracted session shifts, by shift group.
    """
    own_priors = _fitted(
        ((contrast.comparison.group, contrast.comparison.shift_group), contrast)
        for contrast in several
        if contrast.comparison.shift_group in sessions
    )
    variances = []
    for contrast in several:
        group, shift_group = contrast.comparison.group, contrast.comparison.shift_group
        prior = own_priors.get((group, shift_group), priors.get(group))
        variance, dof = moderated(contrast.variance, contrast.dof, prior)
        variances.append(
            (max(variance, contrast.floor * contrast.floor, _LEAST_VARIANCE), dof)
        )
    return variances


def _fitted(named: Iterable[tuple[_Name, Contrast]]) -> dict[_Name, Prior]:
    """Return the prior of the variances under each name."""
    variances: dict[_Name, list[tuple[float, float]]] = {}
    for name, contrast in named:
        variances.setdefault(name, []).append((contrast.variance, contrast.dof))
    fitted = {name: fit_prior(several) for name, several in variances.items()}
    return {name: prior for name, prior in fitted.items() if prior is not None}


def _contrast(comparison: Comparison, session_shifts: Sessions | None) -> Contrast:
    """Return a comparison as numbers, with the shifts of stored sessions subtracted."""
    sessions = (*comparison.stored, comparison.current)
    values = [value for session in sessions for value in session.run_values]
    scale = 0.0 if min(values) > 0 else _size(comparison.stored)
    scaled = [value / scale for value in values] if scale else [*map(math.log, values)]
    within, run_share, process_variance = 0.0, 1.0, 0.0
    if len(values) > len(sessions):  # usually each session has one process
        runs = _split(scaled, [len(session.run_values) for session in sessions])
        scaled = [sum(run) / len(run) for run in runs]
        within, run_share, process_variance = _between_processes(runs)
    *stored, now = scaled
    if session_shifts:
        ids = comparison.session_ids
        shifts = [session_shifts.get(session_id, 0.0) for session_id in ids]
        stored = [*map(operator.sub, stored, shifts)]
    mean, squares = moments(stored)
    return Contrast(
        comparison=comparison,
        now=now,
        stored=stored,
        mean=mean,
        variance=squares / max(len(stored) - 1, 1),
        floor=max(within, sampling_error(sessions)),
        run_share=run_share,
        process_variance=process_variance,
        scale=scale,
    )


def _size(stored: Sequence[SessionValue]) -> float:
    """Return the absolute mean of the stored sessions; 1 where it is 0."""
    means = [sum(session.run_values) / len(session.run_values) for session in stored]
    return abs(sum(means) / len(means)) or 1.0


def _split(values: Iterable[float], counts: Iterable[int]) -> list[list[float]]:
    """Return values split into runs of the given lengths."""
    rest = iter(values)
    return [list(islice(rest, count)) for count in counts]


def _between_processes(runs: Sequence[Sequence[float]]) -> tuple[float, float, float]:
    """
    Return the spread between the processes of sessions.

    Args:
        runs: The processes of each session, the current one last; some have several.

    Returns:
        The standard error of a session from its processes; `run_share` and
        `process_variance` of the contrast.
    """
    *counts, now = map(len, runs)
    share = sum(1 / count for count in counts) / len(counts)
    squares = [moments(values)[1] for values in runs]
    variance = sum(squares) / (sum(counts) + now - len(runs))
    error = math.sqrt(variance * max(share, 1 / now))
    return error, share, squares[-1] / max(now - 1, 1) * share


_NORMAL_MAD = 1.4826  # standard deviation over median absolute deviation, normal values


def log_differences(
    comparisons: Sequence[Comparison], shifts: Mapping[str, Shift]
) -> list[float]:
    """
    Return the distance of each comparison's current session from its stored ones.

    Args:
        comparisons: What to compare, all of one scale.

        shifts: By shift group; the shifts of stored sessions are subtracted.
    """
    sessions = {group: shift.sessions for group, shift in shifts.items()}
    return [contrast.difference for contrast in contrasts(comparisons, sessions)]


def session_shifts(
    comparisons: Sequence[Comparison], *, least_count: int
) -> dict[str, dict[str, float]]:
    """
    Return the common shift of each stored session in each shift group.

    Args:
        comparisons: The comparisons of a run.

        least_count: Fewest tests of a group that give a session's shift.

    Returns:
        Median log ratio of a session's values to their tests' means, by session id, by
        shift group.
    """
    residuals: dict[tuple[str, str], list[float]] = {}
    for contrast in contrasts(comparisons):
        group = contrast.comparison.shift_group
        ids = contrast.comparison.session_ids
        for session_id, value in zip(ids, contrast.stored, strict=True):
            residual = value - contrast.mean
            residuals.setdefault((group, session_id), []).append(residual)
    shifts: dict[str, dict[str, float]] = {}
    for (group, session_id), group_residuals in residuals.items():
        if group and len(group_residuals) >= least_count:
            shifts.setdefault(group, {})[session_id] = median(group_residuals)
    return shifts


def class_centres(
    comparisons: Sequence[Comparison],
    *,
    priors: Mapping[str, Prior],
    sessions: Mapping[str, Mapping[str, float]],
    least_count: int,
) -> dict[str, Shift]:
    """
    Return the common shift of the current session in each shift group.

    Args:
        comparisons: The comparisons of a run, by their first values.

        priors: The prior of each group's variances.

        sessions: The shifts of the stored sessions, by id, by shift group.

        least_count: Fewest tests of a group that give a shift.

    Returns:
        Shifts without controls yet, by shift group.
    """
    several = contrasts(comparisons, sessions)
    moderated = moderated_variances(several, priors, sessions)
    members: dict[str, list[tuple[float, float]]] = {}
    for contrast, (variance, _) in zip(several, moderated, strict=True):
        expected = math.sqrt(variance * contrast.session_ratio)
        member = (contrast.difference, expected)
        members.setdefault(contrast.comparison.shift_group, []).append(member)
    centres = {}
    for group, group_members in members.items():
        if not group or len(group_members) < least_count:
            continue
        centre = median(difference for difference, _ in group_members)
        apart = median(abs(moved - centre) / usual for moved, usual in group_members)
        centres[group] = Shift(
            log_shift=centre,
            control_count=0,
            test_count=len(group_members),
            widening=max(1.0, _NORMAL_MAD * apart),
            sessions=sessions.get(group, {}),
        )
    return centres


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

        priors: The prior of each group's variances; absent: none.

        level: The significance that a change needs.

        shifts: The machine's shift by shift group; absent: not known.
    """
    exact = [is_exact(comparison) for comparison in comparisons]
    pairs = list(zip(comparisons, exact, strict=True))
    noisy = [comparison for comparison, equal in pairs if not equal]
    noisy_changes = iter(
        _noisy_changes(noisy, priors=priors, level=level, shifts=shifts)
    )
    return tuple(
        exact_change(c) if equal else next(noisy_changes) for c, equal in pairs
    )


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
    noisy_changes = []
    for contrast, (variance, dof) in zip(noisy, variances, strict=True):
        shift = shifts.get(contrast.comparison.shift_group, _NO_SHIFT)
        between = contrast.process_variance / variance
        part = min(1.0, pooled.get(contrast.comparison.group, 0.0), between)
        own_variance = variance * _variance_ratio(contrast, part, shift)
        common = shift.common_variance * contrast.session_ratio
        error, freedom = _error(own_variance, dof, common, shift.common_dof)
        difference = contrast.difference - shift.log_shift
        noisy_changes.append(_noisy_change(contrast, difference, error, freedom, level))
    return noisy_changes


def _pooled_shares(
    noisy: Sequence[Contrast], variances: Sequence[tuple[float, float]]
) -> dict[str, float]:
    """
    Return the share of process variance in the stored sessions' variance, by group.

    It is estimated from the current session's processes, pooled over a group because one
    test has few. A test whose own share is smaller has that instead, so that sessions that
    differ for other reasons do not count as processes that differ.
    """
    between: dict[str, float] = {}
    whole: dict[str, float] = {}
    for contrast, (variance, _) in zip(noisy, variances, strict=True):
        if contrast.run_count > 1:
            group = contrast.comparison.group
            between[group] = between.get(group, 0.0) + contrast.process_variance
            whole[group] = whole.get(group, 0.0) + variance
    return {group: between[group] / whole[group] for group in whole}


def _variance_ratio(contrast: Contrast, part: float, shift: Shift) -> float:
    """
    Return the variance of a difference over that of a stored session.

    Args:
        contrast: The sessions.

        part: Share of process variance in a stored session's variance: it shrinks with
            more processes in the current session.

        shift: The subtracted shift, whose own uncertainty is added.
    """
    now = 1 - part + part / (contrast.run_share * contrast.run_count)
    ratio = (
        1 / len(contrast.stored)
        + now
        + (shift.widening**2 - 1) * contrast.session_ratio
    )
    controls = shift.control_count
    if controls and shift.test_count:
        control_variance = (
            part / contrast.run_share * (1 + 1 / contrast.run_count) / controls
        )
        ratio += _MEDIAN_VARIANCE * (
            contrast.session_ratio / shift.test_count + control_variance
        )
    elif controls:
        ratio += _MEDIAN_VARIANCE * contrast.session_ratio / controls
    return ratio


def _error(
    variance: float, dof: float, common: float, common_dof: float
) -> tuple[float, float]:
    """
    Return the standard error including the common variance, and its degrees of freedom.

    A suite has as many draws of the machine as sessions, not as tests: the sum of the two
    variances has Satterthwaite's degrees of freedom. A test without freedom gains none
    from the common variance.
    """
    total = variance + common
    if common > 0 and dof > 0:
        parts = variance * variance / dof + common * common / max(common_dof, 1.0)
        dof = total * total / parts
    return math.sqrt(total), dof


def _noisy_change(
    contrast: Contrast, difference: float, error: float, dof: float, level: Level
) -> Change:
    """Return a difference as a change, without p-values where it has no freedom."""
    reference = contrast.in_unit(contrast.mean)
    change = partial(
        Change,
        effect=contrast.relative(difference) if reference != 0 else None,
        current=contrast.in_unit(contrast.now),
        reference=reference,
        session_count=len(contrast.stored),
        run_count=contrast.run_count,
    )
    if reference == 0 or not dof > 0:  # not dof > 0: NaN after an overflow
        return change()
    threshold = level.noise_threshold
    noise = threshold if contrast.scale else math.log1p(threshold)
    worse = cumulative(dof, (noise - difference) / error)
    better = cumulative(dof, (noise + difference) / error)
    if contrast.comparison.better is Better.HIGHER:
        worse, better = better, worse
    half = quantile(dof, _P_99) * error
    low = contrast.relative(difference - half)
    high = contrast.relative(difference + half)
    if not (math.isfinite(low) and math.isfinite(high)):
        return change(p_worse=worse, p_better=better)
    surely = quantile(dof, 1 - level.alpha / level.pair_count)
    detectable = noise + (surely + quantile(dof, level.power)) * error
    return change(
        p_worse=worse,
        p_better=better,
        low=low,
        high=high,
        detectable_effect=contrast.relative(detectable),
    )
