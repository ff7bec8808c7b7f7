"""The changes of many comparisons with noise at once; PYTEST_DONT_REWRITE."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from pytest_gpuperf.compute.columns import Array, Columns, columns
from pytest_gpuperf.compute.spread import (
    LEAST_DEVIATION,
    Prior,
    fit_prior,
)
from pytest_gpuperf.compute.student import cumulative, quantile
from pytest_gpuperf.model.change import Change, Comparison, Level, Shift
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.metric import Better

__all__ = [
    "class_centres",
    "group_priors",
    "log_differences",
    "noisy_changes",
    "session_shifts",
]

_P_99 = 0.995  # two-sided 99 %
_MOST = 700.0  # exp of more is not finite
_MEDIAN_VARIANCE = math.pi / 2  # of a median of normal values, over that of their mean
_NORMAL_MAD = 1.4826  # standard deviation over median absolute deviation, normal values
_NO_SHIFT = Shift(log_shift=0.0, control_count=0)
_NOTHING = Prior(dof=0.0, variance=0.0)


def group_priors(comparisons: Sequence[Comparison]) -> dict[str, Prior]:
    """Return what the variances of each group have in common, where it can be known."""
    return _priors([c.group for c in comparisons], columns(comparisons, {}))


def noisy_changes(
    comparisons: Sequence[Comparison],
    *,
    priors: Mapping[str, Prior],
    level: Level,
    shifts: Mapping[str, Shift],
) -> list[Change]:
    """Return the change of each comparison of a metric with noise, in their order."""
    import numpy as np

    table = columns(comparisons, shifts)
    deviation, dof = _moderated(table, _priors_of(comparisons, table, priors, shifts))
    process_share = _process_share(comparisons, table, deviation)
    known_shifts = [shifts.get(c.shift_group) for c in comparisons]
    shift = np.array([0.0 if s is None else s.log_shift for s in known_shifts])
    share = 1 / table.count + _now_share(table, process_share)
    share += _shift_share(table, process_share, known_shifts)
    error, dof = _with_common(deviation**2 * share, dof, table, known_shifts)
    difference = table.now - table.mean - shift
    logarithmic = table.scale == 0
    threshold = level.noise_threshold
    noise = np.where(logarithmic, math.log1p(threshold), threshold)
    known = np.where(dof > 0, dof, 1.0).tolist()  # without freedom they are dropped
    with np.errstate(over="ignore", invalid="ignore"):
        half = _quantiles(known, _P_99) * error
        surely = _quantiles(known, 1 - level.alpha / level.pair_count)
        seen = noise + (surely + _quantiles(known, level.power)) * error
    more = _cumulative(known, (difference - noise) / -error)
    less = _cumulative(known, (difference + noise) / error)
    higher = np.array([c.better is Better.HIGHER for c in comparisons])
    worse: Array = np.where(higher, less, more)
    better: Array = np.where(higher, more, less)
    rows = zip(
        _relative(difference, logarithmic),
        _relative(difference - half, logarithmic),
        _relative(difference + half, logarithmic),
        worse.tolist(),
        better.tolist(),
        _relative(seen, logarithmic),
        _absolute(table.now, table.scale),
        _absolute(table.mean, table.scale),
        (dof > 0).tolist(),
        strict=True,
    )
    return [_change(c, *row) for c, row in zip(comparisons, rows, strict=True)]


def log_differences(
    comparisons: Sequence[Comparison], shifts: Mapping[str, Shift]
) -> list[float]:
    """
    Return how far each comparison's current session is from its stored ones.

    Args:
        comparisons: What to compare, all of one scale.

        shifts: By shift group; of these the stored sessions' shifts are taken away.
    """
    if not comparisons:
        return []
    table = columns(comparisons, shifts)
    return [float(difference) for difference in table.now - table.mean]


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
    table = columns(comparisons, {})
    residuals = table.session_values - table.mean[table.owner]
    sessions = ((c.shift_group, s.session_id) for c in comparisons for s in c.stored)
    gathered: dict[tuple[str, str], list[float]] = {}
    for name, residual in zip(sessions, residuals.tolist(), strict=True):
        gathered.setdefault(name, []).append(residual)
    found: dict[str, dict[str, float]] = {}
    for (group, session_id), several in gathered.items():
        if group and len(several) >= least_count:
            found.setdefault(group, {})[session_id] = float(np.median(several))
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
    import numpy as np

    if not comparisons:
        return {}
    stored = {g: replace(_NO_SHIFT, sessions=known) for g, known in sessions.items()}
    table = columns(comparisons, stored)
    deviation, _ = _moderated(table, _priors_of(comparisons, table, priors, stored))
    difference = table.now - table.mean
    expected = deviation * np.sqrt(1 + 1 / table.count)
    members: dict[str, list[int]] = {}
    for index, comparison in enumerate(comparisons):
        members.setdefault(comparison.shift_group, []).append(index)
    found = {}
    for group, several in members.items():
        if not group or len(several) < least_count:
            continue
        centre = float(np.median(difference[several]))
        apart = np.abs(difference[several] - centre) / expected[several]
        found[group] = Shift(
            log_shift=centre,
            control_count=0,
            test_count=len(several),
            widening=max(1.0, _NORMAL_MAD * float(np.median(apart))),
            sessions=sessions.get(group, {}),
        )
    return found


def _priors_of(
    comparisons: Sequence[Comparison],
    table: Columns,
    priors: Mapping[str, Prior],
    shifts: Mapping[str, Shift],
) -> list[Prior]:
    """
    Return each comparison's prior.

    Where the machine's spread was taken out, the variances left are smaller, and have a
    prior of their own if there are enough of them.
    """
    usual = [priors.get(c.group, _NOTHING) for c in comparisons]
    if not shifts:
        return usual
    names = [f"{c.group} {c.shift_group}" for c in comparisons]
    fitted = _priors(names, table)
    return [
        fitted.get(name, prior) if c.shift_group in shifts else prior
        for c, name, prior in zip(comparisons, names, usual, strict=True)
    ]


def _priors(groups: Sequence[str], table: Columns) -> dict[str, Prior]:
    """Return what the variances of each group have in common, where it can be known."""
    by_group: dict[str, list[tuple[float, float]]] = {}
    dofs = (table.count - 1).tolist()
    for group, variance, dof in zip(groups, table.variance.tolist(), dofs, strict=True):
        by_group.setdefault(group, []).append((variance, dof))
    fitted = {group: fit_prior(own) for group, own in by_group.items()}
    return {group: prior for group, prior in fitted.items() if prior is not None}


def _moderated(table: Columns, priors: Sequence[Prior]) -> tuple[Array, Array]:
    """Return the standard deviation of each comparison, and its degrees of freedom."""
    import numpy as np

    prior_dof = np.array([prior.dof for prior in priors])
    prior_variance = np.array([prior.variance for prior in priors])
    own_dof = table.count - 1
    dof = prior_dof + own_dof
    weighted = prior_dof * prior_variance + own_dof * table.variance
    deviation = np.sqrt(weighted / np.maximum(dof, np.finfo(float).tiny))
    return np.maximum(deviation, np.maximum(table.floor, LEAST_DEVIATION)), dof


def _process_share(
    comparisons: Sequence[Comparison], table: Columns, deviation: Array
) -> Array:
    """
    Return how much of the stored sessions' variance is that between processes.

    The current session's processes say how they differ. Those of one test are few: the
    share is that of its whole group, or the test's own where that is smaller, so that a
    test whose sessions differ for other reasons does not profit from the others.
    """
    import numpy as np

    several = table.run_count > 1
    if not several.any():
        return np.zeros(len(comparisons))
    between_runs = np.where(several, table.run_variance * table.run_share, 0.0)
    variance = deviation**2
    code = {
        name: i for i, name in enumerate(dict.fromkeys(c.group for c in comparisons))
    }
    group = np.array([code[c.group] for c in comparisons])
    top = np.bincount(group, between_runs)
    bottom = np.bincount(group, np.where(several, variance, 0.0))
    pooled = top / np.maximum(bottom, np.finfo(float).tiny)
    return np.minimum(1.0, np.minimum(pooled[group], between_runs / variance))


def _now_share(table: Columns, process_share: Array) -> Array:
    """Return the current session's variance over a stored one's: more processes, less."""
    return 1 - process_share + process_share / (table.run_share * table.run_count)


def _shift_share(
    table: Columns, process_share: Array, shifts: Sequence[Shift | None]
) -> Array:
    """Return what a shift adds to the variance: it is not known exactly either."""
    import numpy as np

    known = [shift or _NO_SHIFT for shift in shifts]
    there = np.array([shift.control_count > 0 for shift in known])
    controls = np.maximum([shift.control_count for shift in known], 1)
    tests = np.array([shift.test_count for shift in known])
    widening = np.array([shift.widening for shift in known]) ** 2 - 1
    session = 1 + 1 / table.count
    by_tests = session / np.maximum(tests, 1)
    by_tests += process_share / table.run_share * (1 + 1 / table.run_count) / controls
    unknown = _MEDIAN_VARIANCE * np.where(tests > 0, by_tests, session / controls)
    return np.where(there, unknown, 0.0) + widening * session


def _with_common(
    variance: Array, dof: Array, table: Columns, shifts: Sequence[Shift | None]
) -> tuple[Array, Array]:
    """
    Return the standard error with what moves all tests together, and its freedom.

    A suite has as many draws of the machine as sessions, not as tests: the two parts have
    the freedom of Satterthwaite's sum.
    """
    import numpy as np

    known = [shift or _NO_SHIFT for shift in shifts]
    common = np.array([shift.common_variance for shift in known])
    common = common * (1 + 1 / table.count)
    if not common.any():
        return np.sqrt(variance), dof
    least = np.finfo(float).tiny
    freedom = np.array([max(shift.common_dof, 1.0) for shift in known])
    total = variance + common
    parts = variance**2 / np.maximum(dof, least) + common**2 / freedom
    # a test of no freedom gets none by what moves the others
    return np.sqrt(total), np.where((common > 0) & (dof > 0), total**2 / parts, dof)


def _quantiles(dofs: Sequence[float], probability: float) -> Array:
    """Return a quantile of Student's t by degrees of freedom, most of which repeat."""
    import numpy as np

    return np.array([quantile(dof, probability) for dof in dofs])


def _cumulative(dofs: Sequence[float], values: Array) -> Array:
    """Return the probabilities of Student's t up to some values."""
    import numpy as np

    return np.array(list(map(cumulative, dofs, values.tolist())))


def _relative(difference: Array, logarithmic: Array) -> list[float]:
    """Return differences as fractions."""
    import numpy as np

    bounded = np.clip(difference, -_MOST, _MOST)
    found: list[float] = np.where(logarithmic, np.expm1(bounded), difference).tolist()
    return found


def _absolute(values: Array, scale: Array) -> list[float]:
    """Return values in their metric's unit."""
    import numpy as np

    bounded = np.minimum(values, _MOST)
    found: list[float] = np.where(scale == 0, np.exp(bounded), values * scale).tolist()
    return found


def _change(
    comparison: Comparison,
    effect: float,
    low: float,
    high: float,
    p_worse: float,
    p_better: float,
    detectable: float,
    current: float,
    reference: float,
    known: bool,  # noqa: FBT001 - a cell
) -> Change:
    """Return a row as a record: without freedom, or relative to 0, little is known."""
    known = known and reference != 0
    bounded = known and math.isfinite(low) and math.isfinite(high)
    return Change(
        effect=effect if reference != 0 else None,
        low=low if bounded else None,
        high=high if bounded else None,
        p_worse=p_worse if known else None,
        p_better=p_better if known else None,
        detectable_effect=detectable if bounded else None,
        current=current,
        reference=reference,
        session_count=len(comparison.stored),
        run_count=len(comparison.current.run_values),
    )
