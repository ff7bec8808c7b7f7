"""Measure tests alone in a session that is stored.

A baseline holds values from a whole suite, but a fresh process measures a test alone. The
difference between the two is known only if a session has measured both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from pytest_gpuperf.judge.case import FILES
from pytest_gpuperf.judge.retests import Candidate, draw_alone
from pytest_gpuperf.model.environment import family_of
from pytest_gpuperf.model.metric import METRICS, Family
from pytest_gpuperf.model.record import Record, RecordKey, SessionValue, StoredRecord
from pytest_gpuperf.model.sample import Source
from pytest_gpuperf.report import notices

if TYPE_CHECKING:
    from pytest_gpuperf.judge.confirmation import Retest
    from pytest_gpuperf.pipeline.suite import Suite

# Measures tests in fresh processes that confirm nothing. The suite keeps the records.
MeasureAlone = Callable[[Sequence[str]], Mapping[str, "Retest"]]

# The time for measurements alone, as a fraction of the run.
_TIME_FRACTION = 0.1

_Sessions = Mapping[RecordKey, tuple[StoredRecord, Sequence[StoredRecord]]]


def measure_alone(suite: Suite, sessions: _Sessions, measure: MeasureAlone) -> None:
    """
    Measure some tests of a session alone before the session is stored.

    Args:
        suite: The collected data of the run. The new records are added here.

        sessions: The session to store for each measurement, and the sessions stored
            before.

        measure: Measures tests in fresh processes.
    """
    if suite.config.replay is not None:
        measure(tuple(suite.results))  # Uses the values in the recording.
        return
    # Confirmation switched off means no fresh processes at all.
    if not (suite.config.alone and suite.config.confirm):
        return
    gap = suite.command.launcher.gap
    if gap is not None:
        suite.remark_if_verbose(notices.not_alone_line(gap.text))
        return
    test_ids = _drawn(suite, sessions)
    if not test_ids:
        return
    begun_s = suite.elapsed_s()
    try:
        retests = measure(test_ids)
    except KeyboardInterrupt:
        # The run itself has ended, and its values are valid.
        suite.remark(notices.ALONE_INTERRUPTED)
        return
    gaps = [gap for retest in retests.values() for gap in retest.unmeasured[:1]]
    if len(gaps) == len(test_ids):
        suite.remark(notices.not_alone_line(gaps[0].text))
        return
    failed_count = len(suite.failed_fresh.intersection(test_ids))
    suite.remark_if_verbose(
        notices.alone_line(
            len(test_ids),
            suite.config.alone,
            failed_count=failed_count,
            elapsed_s=suite.elapsed_s() - begun_s,
        )
    )


def alone_records(suite: Suite) -> dict[RecordKey, list[Record]]:
    """Return the records of fresh processes, without tests that failed in a fresh process."""
    records: dict[RecordKey, list[Record]] = {}
    for record in (*suite.repeated, *suite.reference_records()):
        failed = record.key.test_id in suite.failed_fresh
        if not (record.role.of_suite or failed):
            records.setdefault(record.key, []).append(record)
    return records


def _drawn(suite: Suite, sessions: _Sessions) -> tuple[str, ...]:
    known = {key.test_id for key in alone_records(suite)} | suite.failed_fresh
    counts: dict[str, int] = {}
    for key, (session, before) in sessions.items():
        if key.test_id in known or not any(map(has_noise, session.values)):
            continue
        if any(value.source == Source.NCU for value in session.values):
            # A profiler would start for the test, which takes longer than all other tests.
            continue
        # Stored sessions of the same kernels with a value measured alone.
        count = sum(
            stored.choice == session.choice
            and any(value.alone_values for value in stored.values)
            for stored in before
        )
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


def has_noise(value: SessionValue) -> bool:
    """
    Return True if repeated runs of the same code may give different values.

    Only then does a value measured alone add information.
    """
    if value.source in FILES:
        return False
    exact = value.metric in METRICS and METRICS[value.metric].exact
    return not exact and family_of(value.metric, value.source) is not Family.RESOURCE
