"""
Tests measured alone by a session that stores.

A baseline holds what a test takes in its suite, and a fresh process measures it alone:
what lies between the two is known only where a session has measured both.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from pytest_gpuperf.judge.case import FILES
from pytest_gpuperf.judge.look import Candidate, draw_alone
from pytest_gpuperf.model.environment import family_of
from pytest_gpuperf.model.metric import METRICS, Family
from pytest_gpuperf.model.record import Record, RecordKey, SessionValue, StoredRecord
from pytest_gpuperf.model.sample import Source
from pytest_gpuperf.report import terminal

if TYPE_CHECKING:
    from pytest_gpuperf.judge.case import Retest
    from pytest_gpuperf.pipeline.suite import Suite

__all__ = ["MeasureAlone", "alone_records", "has_noise", "measure_alone"]

# Measures tests in fresh processes that confirm nothing. The suite keeps the records.
MeasureAlone = Callable[[Sequence[str]], Mapping[str, "Retest"]]

_TIME_FRACTION = 0.1  # of the run: what a session may cost more because it stores

_Sessions = Mapping[RecordKey, tuple[StoredRecord, Sequence[StoredRecord]]]


def measure_alone(suite: Suite, sessions: _Sessions, measure: MeasureAlone) -> None:
    """
    Measure some tests of a session that is going to be stored alone.

    Args:
        suite: All that the run has gathered. It keeps what is measured.

        sessions: What is stored of each measurement, and what was stored before.

        measure: Measures tests in fresh processes.
    """
    if suite.config.replay is not None:
        measure(tuple(suite.results))  # whatever the recording has of them
        return
    if not _may_start(suite):
        return
    test_ids = _drawn(suite, sessions)
    if not test_ids:
        return
    begun_s = suite.elapsed_s()
    try:
        retests = measure(test_ids)
    except KeyboardInterrupt:  # the run itself has ended, and its values are valid
        suite.remark(terminal.ALONE_INTERRUPTED)
        return
    gaps = [gap for retest in retests.values() for gap in retest.unmeasured[:1]]
    if len(gaps) == len(test_ids):
        suite.remark(terminal.not_alone_line(gaps[0].text))
        return
    failed_count = len(suite.failed_fresh.intersection(test_ids))
    suite.remark_if_verbose(
        terminal.alone_line(
            len(test_ids),
            suite.config.alone,
            failed_count=failed_count,
            elapsed_s=suite.elapsed_s() - begun_s,
        )
    )


def alone_records(suite: Suite) -> dict[RecordKey, list[Record]]:
    """Return what fresh processes measured alone, without tests that failed in one."""
    records: dict[RecordKey, list[Record]] = {}
    for record in (*suite.repeated, *suite.reference_records()):
        failed = record.key.test_id in suite.failed_fresh
        if not (record.role.of_suite or failed):
            records.setdefault(record.key, []).append(record)
    return records


def _may_start(suite: Suite) -> bool:
    """
    Return whether fresh processes may be started to measure alone.

    Where no fresh process may confirm, none measures alone either.
    """
    if not (suite.config.alone and suite.config.confirm):
        return False
    gap = suite.command.launcher.gap
    if gap is not None:
        suite.remark_if_verbose(terminal.not_alone_line(gap.text))
    return gap is None


def _drawn(suite: Suite, sessions: _Sessions) -> tuple[str, ...]:
    """Return the tests to measure alone, of those that no fresh process has measured."""
    known = {key.test_id for key in alone_records(suite)} | suite.failed_fresh
    counts: dict[str, int] = {}
    for key, (session, before) in sessions.items():
        if key.test_id in known or not any(map(has_noise, session.values)):
            continue
        if any(value.source == Source.NCU for value in session.values):
            continue  # a profiler would start for it, which takes longer than all others
        count = _alone_count(session, before)
        counts[key.test_id] = min(count, counts.get(key.test_id, count))
    durations_s = suite.durations_s()
    measured_s = sum(durations_s.get(test_id, 0.0) for test_id in suite.results)
    return draw_alone(
        [
            Candidate(
                test_id=test_id,
                alone_count=counts[test_id],
                duration_s=durations_s.get(test_id, 0.0),
            )
            for test_id in suite.results
            if test_id in counts
        ],
        budget_s=_TIME_FRACTION * measured_s / suite.workers_count(),
        turn=max((len(before) for _, before in sessions.values()), default=0),
    )


def _alone_count(session: StoredRecord, before: Collection[StoredRecord]) -> int:
    """Return how many stored sessions of the same kernels have a value alone."""
    return sum(
        stored.choice == session.choice
        and any(value.alone_values for value in stored.values)
        for stored in before
    )


def has_noise(value: SessionValue) -> bool:
    """Return whether equal code may give other values, so that one alone says anything."""
    if value.source in FILES:
        return False
    exact = value.metric in METRICS and METRICS[value.metric].exact
    return not exact and family_of(value.metric, value.source) is not Family.RESOURCE
