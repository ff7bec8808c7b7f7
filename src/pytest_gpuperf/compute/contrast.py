"""Comparisons as numbers on a scale of their own.

Values that are all positive are compared by their logarithms, others as shares of their
baseline's size.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
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
from pytest_gpuperf.model.change import Comparison, SessionValue
from pytest_gpuperf.model.frozen import BulkRecord

__all__ = ["Contrast", "contrasts", "fit_priors", "moderated_variances"]

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
        ids = [session.session_id for session in comparison.stored]
        shifts = [known.get(session_id, 0.0) for session_id in ids]
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
