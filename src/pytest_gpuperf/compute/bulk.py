"""Many comparisons at once: columns of numbers in place of objects; PYTEST_DONT_REWRITE.

A suite of 10,000 tests with 5 metrics and 10 sessions has half a million values; each is
touched by Python once, when the columns are filled.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from pytest_gpuperf.compute.spread import (
    LEAST_DEVIATION,
    Z_95,
    Prior,
    fit_prior,
)
from pytest_gpuperf.model.change import Change
from pytest_gpuperf.model.metric import Better

if TYPE_CHECKING:
    from pytest_gpuperf.compute.change import Comparison, Shift, Test

__all__ = ["fit_priors", "log_differences", "noisy_changes", "session_shifts"]

_Array = Any  # of numpy, which is imported where it is needed
_P_99 = 0.995  # two-sided 99 %
_LOGS_OF_SMALLEST = 700.0  # exp of more is not finite
_MEDIAN_VARIANCE = (
    math.pi / 2
)  # of the median of normal values, over that of their mean


@dataclass(frozen=True, slots=True, kw_only=True)
class _Columns:
    """
    One entry for each comparison, except where it says otherwise.

    Attributes:
        now: Current value, on the comparison's own scale.

        mean: Mean of the stored sessions, on the same scale.

        variance: Their variance; 0 for a single one.

        count: How many they are.

        floor: What samples and processes leave open, as a standard deviation.

        scale: What was divided by where the scale is linear; 0 where it is the logarithm.

        session_values: Of each stored session, in order: its value on that scale.

        owner: Of each stored session: its comparison.
    """

    now: _Array
    mean: _Array
    variance: _Array
    count: _Array
    floor: _Array
    scale: _Array
    session_values: _Array
    owner: _Array


def fit_priors(comparisons: Sequence[Comparison]) -> dict[str, Prior]:
    """Return what the variances of each group have in common, where it can be known."""
    return _priors(comparisons, _columns(comparisons, {})) if comparisons else {}


def noisy_changes(
    comparisons: Sequence[Comparison],
    *,
    priors: Mapping[str, Prior],
    test: Test,
    shifts: Mapping[str, Shift],
) -> list[Change]:
    """Return the change of each comparison of a metric with noise, in their order."""
    import numpy as np
    from scipy.special import stdtr, stdtrit

    columns = _columns(comparisons, shifts)
    shift, widening = _shift_columns(comparisons, shifts)
    if shifts:  # without the machine's spread the tests' own is smaller
        priors = {**priors, **_priors(comparisons, columns)}
    deviation, dof = _moderated(comparisons, columns, priors)
    error = deviation * np.sqrt((1 + 1 / columns.count) * (1 + widening))
    difference = columns.now - columns.mean - shift
    logarithmic = columns.scale == 0
    noise = np.where(
        logarithmic, math.log1p(test.noise_threshold), test.noise_threshold
    )
    known = np.maximum(dof, np.finfo(float).tiny)  # no freedom: its numbers are dropped
    with np.errstate(over="ignore", invalid="ignore"):
        half = stdtrit(known, _P_99) * error
        seen = stdtrit(known, 1 - test.alpha / test.pair_count)
        seen = noise + (seen + stdtrit(known, test.power)) * error
    more = stdtr(known, (noise - difference) / error)
    less = stdtr(known, (noise + difference) / error)
    higher = np.array([c.better is Better.HIGHER for c in comparisons])
    table = (
        _relative(difference, logarithmic),
        _relative(difference - half, logarithmic),
        _relative(difference + half, logarithmic),
        np.where(higher, less, more),
        np.where(higher, more, less),
        _relative(seen, logarithmic),
        _absolute(columns.now, columns.scale),
        _absolute(columns.mean, columns.scale),
        columns.count.astype(int),
        dof > 0,
    )
    rows = zip(comparisons, *(column.tolist() for column in table), strict=True)
    return [_change(*row) for row in rows]


def log_differences(
    comparisons: Sequence[Comparison], shifts: Mapping[str, Shift]
) -> list[float]:
    """
    Return how far each comparison's current session is from its stored ones.

    Args:
        comparisons: What to compare.

        shifts: By shift group; of these the stored sessions' shifts are taken away.
    """
    columns = _columns(comparisons, shifts)
    return list((columns.now - columns.mean).tolist())


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
    import numpy as np

    if not comparisons:
        return {}
    columns = _columns(comparisons, {})
    residuals = (columns.session_values - columns.mean[columns.owner]).tolist()
    sessions = ((c.shift_group, s.session_id) for c in comparisons for s in c.stored)
    gathered: dict[tuple[str, str], list[float]] = {}
    for name, residual in zip(sessions, residuals, strict=True):
        gathered.setdefault(name, []).append(residual)
    found: dict[str, dict[str, float]] = {}
    for (group, session_id), several in gathered.items():
        if group and len(several) >= least_count:
            found.setdefault(group, {})[session_id] = float(np.median(several))
    return found


def _columns(
    comparisons: Sequence[Comparison], shifts: Mapping[str, Shift]
) -> _Columns:
    """Return comparisons as columns, stored sessions without their known shifts."""
    import numpy as np

    sessions = [s for c in comparisons for s in (*c.stored, c.current)]
    count = _counted(len(c.stored) for c in comparisons)
    run_count = _counted(len(s.run_values) for s in sessions)
    owner = np.repeat(np.arange(len(comparisons)), count.astype(int) + 1)
    last = (
        np.cumsum(count.astype(int) + 1) - 1
    )  # the current session follows its stored
    is_stored = np.ones(len(sessions), dtype=bool)
    is_stored[last] = False
    values = np.fromiter(
        chain.from_iterable(s.run_values for s in sessions), dtype=float
    )
    scaled, scale = _scaled(values, run_count, owner, is_stored)
    session_values, within = _per_session(scaled, run_count)
    stored_values = session_values[is_stored] - _known_shifts(comparisons, shifts)
    stored_owner = owner[is_stored]
    mean, variance = _moments(stored_values, stored_owner, count)
    return _Columns(
        now=session_values[last],
        mean=mean,
        variance=variance,
        count=count,
        floor=np.maximum(
            _within_error(within, run_count, owner, last, count),
            _sampling(sessions, owner),
        ),
        scale=scale,
        session_values=stored_values,
        owner=stored_owner,
    )


def _counted(counts: Iterable[int]) -> _Array:
    """Return counts as a column of floats."""
    import numpy as np

    return np.fromiter(counts, dtype=float)


def _scaled(
    values: _Array, run_count: _Array, owner: _Array, is_stored: _Array
) -> tuple[_Array, _Array]:
    """Return values as logarithms, or over their baseline's size where one is <= 0."""
    import numpy as np

    run_owner = np.repeat(owner, run_count.astype(int))
    size = int(owner[-1]) + 1
    positive = np.ones(size, dtype=bool)
    positive[run_owner[values <= 0]] = False
    scale = np.zeros(size)
    if not positive.all():
        means = _sums(values, run_count) / run_count
        stored = np.bincount(owner[is_stored], means[is_stored], size)
        mean = np.abs(stored / np.bincount(owner[is_stored], minlength=size))
        scale = np.where(positive, 0.0, np.where(mean > 0, mean, 1.0))
    divisor = scale[run_owner]
    with np.errstate(divide="ignore", invalid="ignore"):
        logarithms = np.log(values)
        return np.where(divisor == 0, logarithms, values / divisor), scale


def _sums(values: _Array, run_count: _Array) -> _Array:
    """Return the sum over the runs of each session."""
    import numpy as np

    starts = np.concatenate(([0], np.cumsum(run_count.astype(int))[:-1]))
    return np.add.reduceat(values, starts)


def _per_session(scaled: _Array, run_count: _Array) -> tuple[_Array, _Array]:
    """Return the mean of each session's runs, and their sum of squares about it."""
    import numpy as np

    mean = _sums(scaled, run_count) / run_count
    squares = (scaled - np.repeat(mean, run_count.astype(int))) ** 2
    return mean, _sums(squares, run_count)


def _moments(values: _Array, owner: _Array, count: _Array) -> tuple[_Array, _Array]:
    """Return mean and variance of the stored sessions of each comparison."""
    import numpy as np

    mean = np.bincount(owner, values, len(count)) / count
    squares = np.bincount(owner, (values - mean[owner]) ** 2, len(count))
    return mean, squares / np.maximum(count - 1, 1)


def _within_error(
    within: _Array, run_count: _Array, owner: _Array, last: _Array, count: _Array
) -> _Array:
    """Return the standard error of a session over its processes; 0: unknown."""
    import numpy as np

    squares = np.bincount(owner, within, len(count))
    dof = np.bincount(owner, run_count - 1, len(count))
    shares = np.bincount(owner, 1 / run_count, len(count)) - 1 / run_count[last]
    share = np.maximum(shares / count, 1 / run_count[last])
    return np.sqrt(squares / np.maximum(dof, 1) * share)


def _sampling(sessions: Sequence[Any], owner: _Array) -> _Array:
    """Return the standard error that samples leave to a process; 0: unknown."""
    import numpy as np

    number = _counted(len(s.half_widths) for s in sessions)
    size = int(owner[-1]) + 1
    total = np.bincount(owner, number, size)
    flat = chain.from_iterable(s.half_widths for s in sessions)
    widths = np.fromiter(flat, dtype=float)
    sums = np.bincount(np.repeat(owner, number.astype(int)), widths, size)
    return sums / np.maximum(total, 1) / Z_95


def _known_shifts(
    comparisons: Sequence[Comparison], shifts: Mapping[str, Shift]
) -> _Array:
    """Return the known shift of each stored session, 0 where there is none."""
    import numpy as np

    if not shifts:
        return 0.0
    empty: Mapping[str, float] = {}
    known = {group: shift.sessions for group, shift in shifts.items()}
    return np.fromiter(
        (
            known.get(c.shift_group, empty).get(s.session_id, 0.0)
            for c in comparisons
            for s in c.stored
        ),
        dtype=float,
    )


def _shift_columns(
    comparisons: Sequence[Comparison], shifts: Mapping[str, Shift]
) -> tuple[_Array, _Array]:
    """Return the current session's shift, and what not knowing it well adds."""
    import numpy as np

    if not shifts:
        return 0.0, 0.0
    known = [shifts.get(c.shift_group) for c in comparisons]
    shift = np.array([0.0 if s is None else s.log_shift for s in known])
    widening = [0.0 if s is None else _MEDIAN_VARIANCE / s.control_count for s in known]
    return shift, np.array(widening)


def _priors(comparisons: Sequence[Comparison], columns: _Columns) -> dict[str, Prior]:
    """Return what the variances of each group have in common."""
    by_group: dict[str, list[tuple[float, float]]] = {}
    rows = zip(
        comparisons,
        columns.variance.tolist(),
        (columns.count - 1).tolist(),
        strict=True,
    )
    for comparison, variance, dof in rows:
        by_group.setdefault(comparison.group, []).append((variance, dof))
    fitted = {group: fit_prior(own) for group, own in by_group.items()}
    return {group: prior for group, prior in fitted.items() if prior is not None}


def _moderated(
    comparisons: Sequence[Comparison], columns: _Columns, priors: Mapping[str, Prior]
) -> tuple[_Array, _Array]:
    """Return the standard deviation of each comparison, and its degrees of freedom."""
    import numpy as np

    nothing = Prior(dof=0.0, variance=0.0)
    known = [priors.get(c.group, nothing) for c in comparisons]
    prior_dof = np.array([prior.dof for prior in known])
    prior_variance = np.array([prior.variance for prior in known])
    own_dof = columns.count - 1
    dof = prior_dof + own_dof
    weighted = prior_dof * prior_variance + own_dof * columns.variance
    deviation = np.sqrt(weighted / np.maximum(dof, np.finfo(float).tiny))
    floor = np.maximum(columns.floor, LEAST_DEVIATION)
    return np.maximum(deviation, floor), dof


def _relative(difference: _Array, logarithmic: _Array) -> _Array:
    """Return differences as fractions."""
    import numpy as np

    bounded = np.clip(difference, -_LOGS_OF_SMALLEST, _LOGS_OF_SMALLEST)
    return np.where(logarithmic, np.expm1(bounded), difference)


def _absolute(values: _Array, scale: _Array) -> _Array:
    """Return values in their metric's unit."""
    import numpy as np

    bounded = np.minimum(values, _LOGS_OF_SMALLEST)
    return np.where(scale == 0, np.exp(bounded), values * scale)


def _change(  # noqa: PLR0913, PLR0917 - a row of the table
    comparison: Comparison,
    effect: float,
    low: float,
    high: float,
    p_worse: float,
    p_better: float,
    detectable: float,
    current: float,
    reference: float,
    count: int,
    known: bool,  # noqa: FBT001 - a column of the table
) -> Change:
    """Return one row as a record; without freedom only its values are known."""
    finite = known and math.isfinite(high) and math.isfinite(low)
    return Change(
        effect=effect if reference != 0 else None,
        low=low if finite and reference != 0 else None,
        high=high if finite and reference != 0 else None,
        p_worse=p_worse if known and reference != 0 else None,
        p_better=p_better if known and reference != 0 else None,
        detectable_effect=detectable if finite else None,
        current=current,
        reference=reference,
        session_count=count,
        run_count=len(comparison.current.run_values),
    )
