"""Drifts: changes too slow for a comparison with the mean of the stored sessions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from statistics import fmean, median

from pytest_gpuperf.compute.change import is_exact
from pytest_gpuperf.compute.drift import (
    ENDS,
    LIMITS,
    drift_level,
    drift_of,
    end_change,
)
from pytest_gpuperf.compute.machine import LEAST_CONTROLS
from pytest_gpuperf.compute.spread import DRIFT_SESSIONS
from pytest_gpuperf.compute.stats import mean_logs
from pytest_gpuperf.judge.case import Case, Policy, Reference, StoredValues
from pytest_gpuperf.judge.rule import comparison_of, reference_comparisons
from pytest_gpuperf.model.change import Comparison, Drift
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.verdict import Verdict

# A getter, because each comprehension of each test is a call.
_RUN_VALUES = attrgetter("run_values")


def with_drifts(
    verdicts: Sequence[Verdict],
    cases: Iterable[Case],
    references: Sequence[Reference],
    policy: Policy,
) -> tuple[Verdict, ...]:
    """
    Add the drift of the stored sessions to the change of each verdict.

    Args:
        verdicts: The verdicts of the cases with a limit, in the order of the cases.

        cases: All pairs of test and metric of the run.

        references: Times of reference workloads in this session and the stored sessions.

        policy: The rule's constants.
    """
    gated = [case for case in cases if case.limit is not None]
    level = drift_level(sum(map(_is_long, gated)))
    found = list(verdicts)
    for place, (case, verdict) in enumerate(zip(gated, verdicts, strict=True)):
        if verdict.change is None or not _is_long(case):
            continue
        drift = _drift(case, references, policy, level)
        if drift is not None:
            change = replace(verdict.change, drift=drift)
            found[place] = replace(verdict, change=change)
    return tuple(found)


def _is_long(case: Case) -> bool:
    count = case.oldest.listed.count + case.stored.listed.count
    return count + 1 >= DRIFT_SESSIONS


def _drift(
    case: Case, references: Sequence[Reference], policy: Policy, level: float
) -> Drift | None:
    if case.oldest.listed.count:
        stored = StoredValues.of((*case.oldest, *case.stored))
        case = replace(case, stored=stored)
    # Without other tests or kernels, all sessions are compared. Nearly all series end here.
    is_whole = case.session is None and len(set(case.stored.listed.choices)) == 1
    if is_whole and case.current is not None and not _may_have_moved(case):
        return None
    whole = comparison_of(case, policy)
    if whole is None or is_exact(whole):  # Equality finds the first step.
        return None
    by_session = {stored.session.id: stored for stored in case.stored}
    first = by_session[whole.session_ids[0]].session
    raw = [by_session[name].value for name in whole.session_ids]
    timed = [*raw, case.current or whole.current]
    logs = _moved_logs(case, [*map(_RUN_VALUES, timed)])
    if logs is None:  # References need not be compared.
        return None
    moves = _moves(whole, reference_comparisons(references, [whole]))
    if moves and not moves.keys() >= {*whole.session_ids, _NOW}:
        # A session without references does not show whether the machine moved, for
        # example an early session of a test whose changes were accepted.
        return None
    converted = (*whole.stored, whole.current)
    at_one_speed = mean_logs(map(_RUN_VALUES, converted))
    machine = [
        log - at_speed + moves.get(name, 0.0)
        for log, at_speed, name in zip(
            logs, at_one_speed, (*whole.session_ids, _NOW), strict=True
        )
    ]
    trend = drift_of(logs, machine, least=_least(case), level=level)
    if trend is None:
        return None
    return Drift(
        effect=math.expm1(trend.log_change),
        since_unix_s=first.started_unix_s,
        session_count=len(logs),
        p_value=trend.p_value,
    )


def _may_have_moved(case: Case) -> bool:
    """Return True if the ends of a series are apart, which is quickly said."""
    stored = case.stored.values
    runs = [*stored.runs, *(case.current.run_values if case.current else ())]
    if min(runs) <= 0:
        return False
    if len(runs) > case.stored.listed.count + 1 or len(runs) < DRIFT_SESSIONS:
        return True  # To be seen more closely.
    # The median of an odd number of logarithms is that of the median.
    first, last = sorted(runs[:ENDS])[ENDS // 2], sorted(runs[-ENDS:])[ENDS // 2]
    return case.sign * (math.log(last) - math.log(first)) > _least(case)


def _least(case: Case) -> float:
    """Return the smallest drift of a case, on a log scale."""
    return math.log1p(LIMITS * (case.limit or 0.0))


def _moved_logs(case: Case, values: Sequence[Sequence[float]]) -> list[float] | None:
    """
    Return the logarithms of a series, or None if its ends are near each other.

    Args:
        case: The case.

        values: The values of the processes of each session.
    """
    if len(values) < DRIFT_SESSIONS or min(map(min, values)) <= 0:
        return None
    logs = mean_logs(values)
    return logs if case.sign * end_change(logs) > _least(case) else None


_NOW = ""  # Stands for the current session, which no stored session is called.


def _moves(whole: Comparison, references: Iterable[Comparison]) -> Mapping[str, float]:
    """
    Return the median move of the reference workloads in each session, on a log scale.

    Other tests do not count: if all tests of a project drift, the machine is not the reason.
    """
    apart: dict[str, list[float]] = {}
    for reference in references:
        if reference.shift_group != whole.shift_group:
            continue
        timed = (*reference.stored, reference.current)
        *logs, now = mean_logs([session.run_values for session in timed])
        usual = fmean(logs)
        for name, log in zip((*reference.session_ids, _NOW), (*logs, now), strict=True):
            apart.setdefault(name, []).append(log - usual)
    return {
        name: median(distances)
        for name, distances in apart.items()
        if len(distances) >= LEAST_CONTROLS
    }
