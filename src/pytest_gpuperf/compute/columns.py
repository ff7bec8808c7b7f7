"""Comparisons as columns of numbers, for many at once; PYTEST_DONT_REWRITE.

A suite of 10,000 tests with 5 metrics and 10 sessions has half a million values; each is
touched by Python once, when the columns are filled.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from pytest_gpuperf.compute.spread import Z_95
from pytest_gpuperf.model.change import Comparison, SessionValue, Shift
from pytest_gpuperf.model.frozen import Frozen

__all__ = ["Array", "Columns", "columns"]

Array = Any  # of numpy, which is imported where it is needed


class Columns(Frozen, frozen=True, kw_only=True):
    """
    One entry for each comparison, except where it says otherwise.

    Attributes:
        now: Current value, on the comparison's own scale.

        mean: Mean of the stored sessions, on the same scale.

        variance: Their variance; 0 for a single one.

        count: How many they are.

        floor: What samples and processes leave open, as a standard deviation.

        run_count: Processes of the current session.

        run_variance: Variance between them; 0 for a single one.

        run_share: Mean of 1 / (processes of a session) over the stored sessions.

        scale: What was divided by where the scale is linear; 0 where it is the logarithm.

        session_values: Of each stored session, in order: its value on that scale.

        owner: Of each stored session: its comparison.
    """

    now: Array
    mean: Array
    variance: Array
    count: Array
    floor: Array
    run_count: Array
    run_variance: Array
    run_share: Array
    scale: Array
    session_values: Array
    owner: Array


def columns(comparisons: Sequence[Comparison], shifts: Mapping[str, Shift]) -> Columns:
    """Return comparisons as columns, stored sessions without their known shifts."""
    import numpy as np

    sessions = [s for c in comparisons for s in (*c.stored, c.current)]
    count = _counted(len(c.stored) for c in comparisons)
    run_count = _counted(len(s.run_values) for s in sessions)
    owner = np.repeat(np.arange(len(comparisons)), count.astype(int) + 1)
    last = np.cumsum(count.astype(int) + 1) - 1  # the current one follows its stored
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
    now_count = run_count[last]
    return Columns(
        now=session_values[last],
        mean=mean,
        variance=variance,
        count=count,
        floor=np.maximum(
            _within_error(within, run_count, owner, last, count),
            _sampling(sessions, owner),
        ),
        run_count=now_count,
        run_variance=within[last] / np.maximum(now_count - 1, 1),
        run_share=_share(run_count, owner, last, count),
        scale=scale,
        session_values=stored_values,
        owner=stored_owner,
    )


def _counted(counts: Iterable[int]) -> Array:
    """Return counts as a column of floats."""
    import numpy as np

    return np.fromiter(counts, dtype=float)


def _scaled(
    values: Array, run_count: Array, owner: Array, is_stored: Array
) -> tuple[Array, Array]:
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


def _sums(values: Array, run_count: Array) -> Array:
    """Return the sum over the runs of each session."""
    import numpy as np

    starts = np.concatenate(([0], np.cumsum(run_count.astype(int))[:-1]))
    return np.add.reduceat(values, starts)


def _per_session(scaled: Array, run_count: Array) -> tuple[Array, Array]:
    """Return the mean of each session's runs, and their sum of squares about it."""
    import numpy as np

    mean = _sums(scaled, run_count) / run_count
    squares = (scaled - np.repeat(mean, run_count.astype(int))) ** 2
    return mean, _sums(squares, run_count)


def _moments(values: Array, owner: Array, count: Array) -> tuple[Array, Array]:
    """Return mean and variance of the stored sessions of each comparison."""
    import numpy as np

    mean = np.bincount(owner, values, len(count)) / count
    squares = np.bincount(owner, (values - mean[owner]) ** 2, len(count))
    return mean, squares / np.maximum(count - 1, 1)


def _within_error(
    within: Array, run_count: Array, owner: Array, last: Array, count: Array
) -> Array:
    """Return the standard error of a session over its processes; 0: unknown."""
    import numpy as np

    squares = np.bincount(owner, within, len(count))
    dof = np.bincount(owner, run_count - 1, len(count))
    share = np.maximum(_share(run_count, owner, last, count), 1 / run_count[last])
    return np.sqrt(squares / np.maximum(dof, 1) * share)


def _share(run_count: Array, owner: Array, last: Array, count: Array) -> Array:
    """Return the mean of 1 / processes over the stored sessions."""
    import numpy as np

    total = np.bincount(owner, 1 / run_count, len(count))
    return (total - 1 / run_count[last]) / count


def _sampling(sessions: Sequence[SessionValue], owner: Array) -> Array:
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
) -> Array:
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
