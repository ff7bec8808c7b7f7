"""What sessions did to whole classes of tests."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median

from pytest_gpuperf.compute.contrast import contrasts, moderated_variances
from pytest_gpuperf.compute.spread import Prior
from pytest_gpuperf.model.change import Comparison, Shift

__all__ = ["class_centres", "log_differences", "session_shifts"]

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
        for session, value in zip(each.comparison.stored, each.stored, strict=True):
            name = (group, session.session_id)
            residuals.setdefault(name, []).append(value - each.mean)
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
