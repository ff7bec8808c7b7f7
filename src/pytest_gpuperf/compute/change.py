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
        """How far the current session is from the stored ones."""
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
    """Return what the variances of each group have in common, where it can be known."""
    return _fitted((each.comparison.group, each) for each in contrasts(comparisons))


def moderated_variances(
    several: Sequence[Contrast],
    priors: Mapping[str, Prior],
    sessions: Mapping[str, Sessions],
) -> list[tuple[float, float]]:
    """
    Return the variance of each one's sessions, and its degrees of freedom.

    Where the machine's spread was taken out, the variances left are smaller, and have a
    prior of their own if there are enough of them.

    Args:
        several: All there are.

        priors: What the variances of each group have in common; absent: nothing.

        sessions: The shifts that were taken out, by shift group.
    """
    own = _fitted(
        ((each.comparison.group, each.comparison.shift_group), each)
        for each in several
        if each.comparison.shift_group in sessions
    )
    found = []
    for each in several:
        group, shift_group = each.comparison.group, each.comparison.shift_group
        prior = own.get((group, shift_group), priors.get(group))
        variance, dof = moderated(each.variance, each.dof, prior)
        found.append((max(variance, each.floor * each.floor, _LEAST_VARIANCE), dof))
    return found


def _fitted(named: Iterable[tuple[_Name, Contrast]]) -> dict[_Name, Prior]:
    """Return what the variances under each name have in common."""
    own: dict[_Name, list[tuple[float, float]]] = {}
    for name, each in named:
        own.setdefault(name, []).append((each.variance, each.dof))
    fitted = {name: fit_prior(several) for name, several in own.items()}
    return {name: prior for name, prior in fitted.items() if prior is not None}


def _contrast(comparison: Comparison, known: Sessions | None) -> Contrast:
    """Return a comparison as numbers, stored sessions without their known shifts."""
    sessions = (*comparison.stored, comparison.current)
    values = [value for session in sessions for value in session.run_values]
    scale = 0.0 if min(values) > 0 else _size(comparison.stored)
    scaled = [value / scale for value in values] if scale else [*map(math.log, values)]
    within, run_share, process_variance = 0.0, 1.0, 0.0
    if len(values) > len(sessions):  # as a rule each has one process
        runs = _split(scaled, [len(session.run_values) for session in sessions])
        scaled = [sum(each) / len(each) for each in runs]
        within, run_share, process_variance = _between_processes(runs)
    *stored, now = scaled
    if known:
        shifts = [known.get(session_id, 0.0) for session_id in comparison.session_ids]
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
    """Return the size of the stored sessions' mean; 1 where it is 0."""
    means = [sum(each.run_values) / len(each.run_values) for each in stored]
    return abs(sum(means) / len(means)) or 1.0


def _split(values: Iterable[float], counts: Iterable[int]) -> list[list[float]]:
    """Return values in runs of so many."""
    rest = iter(values)
    return [list(islice(rest, count)) for count in counts]


def _between_processes(runs: Sequence[Sequence[float]]) -> tuple[float, float, float]:
    """
    Return what is known of sessions whose processes differ.

    Args:
        runs: The processes of each session, the current one last; some have several.

    Returns:
        The standard error that they leave to a session; `run_share` and
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
    Return how far each comparison's current session is from its stored ones.

    Args:
        comparisons: What to compare, all of one scale.

        shifts: By shift group; of these the stored sessions' shifts are taken away.
    """
    sessions = {group: shift.sessions for group, shift in shifts.items()}
    return [each.difference for each in contrasts(comparisons, sessions)]


def session_shifts(
    comparisons: Sequence[Comparison], *, least_count: int
) -> dict[str, dict[str, float]]:
    """
    Return how far each stored session moved the tests of each shift group together.

    Args:
        comparisons: All there are.

        least_count: Tests of a group that a session needs for it.

    Returns:
        Median log ratio of a session's values to their tests' means, by session id, by
        shift group.
    """
    residuals: dict[tuple[str, str], list[float]] = {}
    for each in contrasts(comparisons):
        group = each.comparison.shift_group
        ids = each.comparison.session_ids
        for session_id, value in zip(ids, each.stored, strict=True):
            residuals.setdefault((group, session_id), []).append(value - each.mean)
    found: dict[str, dict[str, float]] = {}
    for (group, session_id), several in residuals.items():
        if group and len(several) >= least_count:
            found.setdefault(group, {})[session_id] = median(several)
    return found


def class_centres(
    comparisons: Sequence[Comparison],
    *,
    priors: Mapping[str, Prior],
    sessions: Mapping[str, Mapping[str, float]],
    least_count: int,
) -> dict[str, Shift]:
    """
    Return what the current session did to each shift group, as all its tests show.

    Args:
        comparisons: All there are, by their first values.

        priors: What the variances of each group have in common.

        sessions: The shifts of the stored sessions, by id, by shift group.

        least_count: Tests of a group that it takes to know.

    Returns:
        Shifts without controls yet, by shift group.
    """
    several = contrasts(comparisons, sessions)
    moderated = moderated_variances(several, priors, sessions)
    members: dict[str, list[tuple[float, float]]] = {}
    for each, (variance, _) in zip(several, moderated, strict=True):
        expected = math.sqrt(variance * each.session_ratio)
        member = (each.difference, expected)
        members.setdefault(each.comparison.shift_group, []).append(member)
    found = {}
    for group, own in members.items():
        if not group or len(own) < least_count:
            continue
        centre = median(difference for difference, _ in own)
        apart = median(abs(difference - centre) / usual for difference, usual in own)
        found[group] = Shift(
            log_shift=centre,
            control_count=0,
            test_count=len(own),
            widening=max(1.0, _NORMAL_MAD * apart),
            sessions=sessions.get(group, {}),
        )
    return found


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
