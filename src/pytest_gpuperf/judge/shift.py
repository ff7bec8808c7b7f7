"""What the machine did to whole classes of tests, as its controls show it; PYTEST_DONT_REWRITE."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from pytest_gpuperf.compute.bulk import log_differences, session_shifts
from pytest_gpuperf.compute.change import is_exact
from pytest_gpuperf.compute.comparison import Comparison, Shift
from pytest_gpuperf.judge.case import Case, Confirmation, Policy
from pytest_gpuperf.judge.rows import comparable, comparison_of, shift_group
from pytest_gpuperf.model.record import BoundClass, RecordKey

__all__ = ["MachineShift", "class_shifts", "machine_shifts"]

Name = tuple[RecordKey, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineShift:
    """
    How far the controls of a class moved in the confirming processes.

    Attributes:
        bound_class: The class.

        metric: The metric's name.

        effect: Median of the controls' effects.

        control_count: How many they are.

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
        for group, shift in sorted(class_shifts(cases, confirmations, policy).items())
    )


def class_shifts(
    cases: Sequence[Case],
    confirmations: Mapping[Name, Confirmation],
    policy: Policy,
) -> dict[str, Shift]:
    """Return what the machine did to each class, as its controls say."""
    controls: dict[str, list[Comparison]] = {}
    for case in cases:
        again = confirmations.get(case.name)
        if again is None or not again.control or not again.run_values:
            continue
        comparison = _comparable_again(case, again, policy)
        if comparison is not None and comparison.shift_group:
            controls.setdefault(comparison.shift_group, []).append(comparison)
    if not controls:
        return {}
    known = _known_sessions(cases, policy)
    return {
        group: _shift(group, several, known.get(group, {}))
        for group, several in controls.items()
        if len(several) >= policy.least_controls
    }


def _comparable_again(
    case: Case, again: Confirmation, policy: Policy
) -> Comparison | None:
    """Return a control as numbers, by its confirming processes; None: it has none."""
    if comparable(case, policy) is None or case.limit is None:
        return None
    comparison = comparison_of(case, policy, again)
    if comparison is None or is_exact(comparison):
        return None
    values = [*comparison.current.run_values]
    values += [v for session in comparison.stored for v in session.run_values]
    return comparison if min(values) > 0 else None


def _known_sessions(
    cases: Sequence[Case], policy: Policy
) -> dict[str, dict[str, float]]:
    """Return what the machine did to each class in each stored session."""
    compared = (comparison_of(case, policy) for case in cases)
    noisy = [c for c in compared if c is not None and not is_exact(c)]
    return session_shifts(noisy, least_count=policy.class_count)


def _shift(
    group: str, controls: Sequence[Comparison], sessions: Mapping[str, float]
) -> Shift:
    """Return the shift of one class."""
    stored = Shift(log_shift=0.0, control_count=len(controls), sessions=sessions)
    return replace(stored, log_shift=median(log_differences(controls, {group: stored})))
