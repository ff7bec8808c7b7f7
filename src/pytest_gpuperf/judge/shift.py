"""What the machine did to whole classes of tests, as its controls show it; PYTEST_DONT_REWRITE."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from types import MappingProxyType

from pytest_gpuperf.compute.bulk import (
    class_centres,
    log_differences,
    session_shifts,
)
from pytest_gpuperf.compute.change import is_exact
from pytest_gpuperf.compute.comparison import Comparison, Shift
from pytest_gpuperf.compute.spread import Prior
from pytest_gpuperf.judge.case import Case, Confirmation, Policy
from pytest_gpuperf.judge.rows import comparable, comparison_of, shift_group
from pytest_gpuperf.model.change import SessionValue
from pytest_gpuperf.model.record import BoundClass, RecordKey

__all__ = ["MachineShift", "class_shifts", "machine_shifts"]

Name = tuple[RecordKey, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineShift:
    """
    How far the machine moved a class, up to the confirming processes.

    Attributes:
        bound_class: The class.

        metric: The metric's name.

        effect: Of the class as a whole.

        control_count: Controls that show it.

        moved: Whether it is more than noise.
    """

    bound_class: BoundClass
    metric: str
    effect: float
    control_count: int
    moved: bool


def machine_shifts(
    cases: Sequence[Case],
    confirmations: Mapping[Name, Confirmation],
    policy: Policy | None = None,
    *,
    priors: Mapping[str, Prior] = MappingProxyType({}),
) -> tuple[MachineShift, ...]:
    """Return how far the controls of each class moved: the machine, not the tests."""
    policy = policy or Policy()
    threshold = policy.noise_threshold
    by_group = {
        shift_group(case): (case.bound_class, case.metric.name) for case in cases
    }
    return tuple(
        MachineShift(
            bound_class=by_group[group][0],
            metric=by_group[group][1],
            effect=math.expm1(shift.log_shift),
            control_count=shift.control_count,
            moved=abs(shift.log_shift) > math.log1p(threshold),
        )
        for group, shift in sorted(
            class_shifts(cases, confirmations, priors, policy).items()
        )
    )


def class_shifts(
    cases: Sequence[Case],
    confirmations: Mapping[Name, Confirmation],
    priors: Mapping[str, Prior],
    policy: Policy,
) -> dict[str, Shift]:
    """
    Return what the machine did to each class that has controls.

    What the session did, all tests of the class show by their first values; what has
    changed since, the controls show by their confirming processes. The median of a whole
    class is known better than that of eight controls, and so is a change between two
    values of one session. A class of few tests has its controls alone.
    """
    controls = _controls(cases, confirmations, policy)
    if not controls:
        return {}
    compared = (comparable(case, policy) for case in cases)
    noisy = [c for c in compared if c is not None and not is_exact(c)]
    least = policy.class_count
    known = session_shifts(noisy, least_count=least)
    centres = class_centres(noisy, priors=priors, sessions=known, least_count=least)
    return {
        group: _shift(group, several, centres.get(group), known.get(group, {}))
        for group, several in controls.items()
        if len(several) >= policy.least_controls
    }


def _controls(
    cases: Sequence[Case], confirmations: Mapping[Name, Confirmation], policy: Policy
) -> dict[str, list[tuple[Comparison, Comparison]]]:
    """Return the controls of each class, by first value and by confirming processes."""
    found: dict[str, list[tuple[Comparison, Comparison]]] = {}
    for case in cases:
        again = confirmations.get(case.name)
        if again is None or not again.control or not again.run_values:
            continue
        first = comparable(case, policy)
        repeated = comparison_of(case, policy, again)
        if first is None or repeated is None or case.limit is None:
            continue
        if first.shift_group and not is_exact(first) and _is_positive(first, repeated):
            found.setdefault(first.shift_group, []).append((first, repeated))
    return found


def _is_positive(*comparisons: Comparison) -> bool:
    """Return whether every value has a logarithm."""
    return all(
        value > 0
        for comparison in comparisons
        for session in (comparison.current, *comparison.stored)
        for value in session.run_values
    )


def _shift(
    group: str,
    controls: Sequence[tuple[Comparison, Comparison]],
    centre: Shift | None,
    sessions: Mapping[str, float],
) -> Shift:
    """Return the shift of one class."""
    count = len(controls)
    if centre is None:
        alone = Shift(log_shift=0.0, control_count=count, sessions=sessions)
        repeated = [again for _, again in controls]
        return replace(
            alone, log_shift=median(log_differences(repeated, {group: alone}))
        )
    drift = median(
        _mean_log(again.current) - _mean_log(first.current) for first, again in controls
    )
    return replace(centre, log_shift=centre.log_shift + drift, control_count=count)


def _mean_log(session: SessionValue) -> float:
    """Return the mean of a session's values on a log scale."""
    return fmean(map(math.log, session.run_values))
