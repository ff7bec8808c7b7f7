"""The runs of some files against each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytest_gpuperf.baseline.history import stored_record
from pytest_gpuperf.judge.case import Case, Policy, case_of
from pytest_gpuperf.judge.regression import settle, shown
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.metric import METRICS, Better
from pytest_gpuperf.model.record import Record, RecordKey, Role
from pytest_gpuperf.pipeline.verdicts import grouped
from pytest_gpuperf.report.words import for_files

if TYPE_CHECKING:
    from pytest_gpuperf.model.record import StoredRecord
    from pytest_gpuperf.model.run import Run

__all__ = ["compare_runs"]

# whole runs stand in the files: nothing was selected, so nothing needs confirming
_POLICY = Policy(selected=False)
_CURRENT = "current"  # no session's id: a file may be compared with itself


def compare_runs(runs: Sequence[Run], *, max_regression: float | None) -> Run:
    """
    Return the last run, judged against the sessions of those before it.

    Time is judged, and what needs no statistics: counts and resources.

    Args:
        runs: At least two, the current one last.

        max_regression: Largest change that passes [fraction]; None: only shown.
    """
    *earlier, current = runs
    stored = _stored(earlier)
    cases: list[Case] = []
    for key, records in _measured(current).items():
        names = {e.metric for r in records for e in r.estimates if e.kernel is None}
        cases += [
            case_of(
                records,
                stored.get(key, ()),
                metric=metric,
                limit=max_regression,
                session_id=_CURRENT,
            )
            for metric in sorted(names)
            if _is_judged(metric)
        ]
    limits = tuple(v for v in current.verdicts if v.limit is not None)
    changes = (*settle(cases, policy=_POLICY), *shown(cases, _POLICY))
    return replace(current, verdicts=(*limits, *map(for_files, changes)))


def _stored(runs: Sequence[Run]) -> dict[RecordKey, list[StoredRecord]]:
    """Return the sessions of some runs by what they measured."""
    stored: dict[RecordKey, list[StoredRecord]] = {}
    # a file that is named twice is one session, not two that agree
    for run in {run.header.session.id: run for run in runs}.values():
        for key, records in _measured(run).items():
            session = stored_record(records, run.header.session)
            stored.setdefault(key, []).append(session)
    return stored


def _measured(run: Run) -> dict[RecordKey, list[Record]]:
    """Return what a run measured of everything, by key; not what it confirmed."""
    return grouped(
        record
        for record in run.records
        if record.role is not Role.CONFIRM and record.void is None
    )


def _is_judged(metric: str) -> bool:
    """Return whether files are compared by a metric."""
    known = METRICS.get(metric)
    if known is None or known.better is Better.NEITHER:
        return False
    return known.exact or metric == "time"
