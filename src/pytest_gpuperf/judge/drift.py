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
    long = [
        place
        for place, case in enumerate(gated)
        if case.oldest.listed.count + case.stored.listed.count + 1 >= DRIFT_SESSIONS
    ]
    level = drift_level(len(long))
    found = list(verdicts)
    for place in long:
        case, verdict = gated[place], verdicts[place]
        if case.oldest.listed.count:
            stored = StoredValues.of((*case.oldest, *case.stored))
            case = replace(case, stored=stored)
        if verdict.change is None or not _may_drift(case):  # Nearly all cases.
            continue
        drift = _drift(case, references, policy, level)
        if drift is not None:
            change = replace(verdict.change, drift=drift)
            found[place] = replace(verdict, change=change)
    return tuple(found)


def _drift(
    case: Case, references: Sequence[Reference], policy: Policy, level: float
) -> Drift | None:
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


def _may_drift(case: Case) -> bool:
    """Return True unless the ends of a series are near each other, which is quickly said."""
    stored = case.stored
    listed = stored.listed
    # With other tests or kernels, or several processes, only some values are compared.
    is_whole = case.session is None and listed.is_of_one_choice
    if not is_whole or case.current is None:
        return True
    runs = [*stored.values.runs, *case.current.run_values]
    if len(runs) > listed.count + 1:
        return True
    # The median of an odd number of logarithms is that of the median.
    first, last = sorted(runs[:ENDS])[ENDS // 2], sorted(runs[-ENDS:])[ENDS // 2]
    if case.sign < 0:
        first, last = last, first
    # Half of the smallest drift, without a logarithm. Values of 0 or less do not drift.
    if first <= 0 or last < first * (1 + (case.limit or 0.0)):
        return False
    return math.log(last) - math.log(first) > _least(case)


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
