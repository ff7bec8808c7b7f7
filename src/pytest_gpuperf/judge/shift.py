"""What the machine did to whole classes of tests, as its controls show it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median, stdev, variance
from types import MappingProxyType

from pytest_gpuperf.compute.change import (
    class_centres,
    is_exact,
    log_differences,
    session_shifts,
)
from pytest_gpuperf.compute.spread import Prior, Spread, half_width
from pytest_gpuperf.judge.case import Case, Confirmation, Policy
from pytest_gpuperf.judge.rule import comparable, comparison_of, shift_group
from pytest_gpuperf.model.change import Comparison, Shift
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.record import RecordKey, SessionValue
from pytest_gpuperf.model.run import MachineShift

__all__ = ["class_shifts", "machine_shifts"]

Name = tuple[RecordKey, str]
_Twice = tuple[Comparison, Comparison]  # by first value, and by confirming processes


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
        if shift.control_count
    )


def class_shifts(
    cases: Sequence[Case],
    confirmations: Mapping[Name, Confirmation],
    priors: Mapping[str, Prior],
    policy: Policy,
) -> dict[str, Shift]:
    """
    Return what the machine did to each class that was measured again.

    What the session did, the unsuspected tests of the class show by their first values;
    what has changed since, its controls show by their confirming processes. The median of
    a whole class is known better than that of eight controls, and so is a change between
    two values of one session. A class of few tests has its controls alone.

    Where most of a class is suspected, a machine that moved and a change that the tests
    have in common look alike. If the stored sessions moved that far too, it is taken for
    the machine; if they did not, nothing is taken out, and what they did move is part of
    the spread: with the freedom of as many sessions, however many tests there are.
    """
    classes = _classes(cases, confirmations, policy)
    if not any(members.suspected for members in classes.values()):
        return {}
    least = policy.class_count
    everyone = [c for members in classes.values() for c in members.all]
    known = session_shifts(everyone, least_count=least)
    telling = {g: members.tells(policy) for g, members in classes.items()}
    whole = [c for g, m in classes.items() for c in (m.calm if telling[g] else m.all)]
    centres = class_centres(whole, priors=priors, sessions=known, least_count=least)
    confidence = 1 - policy.alpha / max(1, len(classes))  # for all classes together
    found = {}
    for group, members in classes.items():
        sessions, centre = known.get(group, {}), centres.get(group)
        if telling[group]:
            found[group] = _shift(group, members.controls, centre, sessions)
        elif members.suspected and centre is not None and sessions:
            enough = len(members.repeated) >= policy.least_controls
            found[group] = (
                _shift(group, members.repeated, centre, sessions)
                if enough and _is_usual(centre, confidence)
                else _unknown_shift(sessions)
            )
    return found


@dataclass(slots=True)
class _Members:
    """
    The tests of one class.

    Attributes:
        all: Every one, by its first value.

        calm: Those that are not suspected.

        controls: By first value and by confirming processes.

        repeated: The same of all that were measured again, suspects too.
    """

    all: list[Comparison] = field(default_factory=list)
    calm: list[Comparison] = field(default_factory=list)
    controls: list[_Twice] = field(default_factory=list)
    repeated: list[_Twice] = field(default_factory=list)

    @property
    def suspected(self) -> int:
        """How many of them fresh processes confirm."""
        return len(self.all) - len(self.calm)

    def tells(self, policy: Policy) -> bool:
        """Return whether its controls can stand for the class."""
        few = len(self.all) < policy.class_count
        return len(self.controls) >= policy.least_controls and (
            few or 2 * self.suspected < len(self.all)
        )


def _classes(
    cases: Sequence[Case], confirmations: Mapping[Name, Confirmation], policy: Policy
) -> dict[str, _Members]:
    """Return the tests of each class, of metrics that a machine moves."""
    found: dict[str, _Members] = {}
    for case in cases:
        first = comparable(case, policy)
        if first is None or not first.shift_group or is_exact(first):
            continue
        members = found.setdefault(first.shift_group, _Members())
        members.all.append(first)
        again = confirmations.get(case.name)
        if again is None or again.control:
            members.calm.append(first)
        if again is None or not again.run_values:
            continue
        repeated = comparison_of(case, policy, again)
        if repeated is not None and _is_positive(first, repeated):
            members.repeated.append((first, repeated))
            if again.control:
                members.controls.append((first, repeated))
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
    controls: Sequence[_Twice],
    centre: Shift | None,
    sessions: Mapping[str, float],
) -> Shift:
    """Return the shift of one class, as its controls tell it."""
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


def _is_usual(centre: Shift, confidence: float) -> bool:
    """Return whether a shift is within the interval of the stored sessions'."""
    count = len(centre.sessions)
    if count <= 1:
        return False
    usual = Spread(fraction=stdev(centre.sessions.values()), dof=count - 1)
    return abs(centre.log_shift) <= (
        half_width(usual, confidence=confidence) * math.sqrt(1 + 1 / count)
    )


def _unknown_shift(sessions: Mapping[str, float]) -> Shift:
    """Return a shift that nobody can tell, as wide as those of the stored sessions."""
    count = len(sessions)
    spread = variance(sessions.values()) if count > 1 else 0.0
    return Shift(
        log_shift=0.0,
        control_count=0,
        sessions=sessions,
        common_variance=spread,
        common_dof=max(1, count - 1),
    )


def _mean_log(session: SessionValue) -> float:
    """Return the mean of a session's values on a log scale."""
    return fmean(map(math.log, session.run_values))
