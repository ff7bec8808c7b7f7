"""What outlives a run: sessions for the baseline, samples for a report."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from pytest_gpuperf.baseline.history import Append, Restart, stored_record
from pytest_gpuperf.collect import replay
from pytest_gpuperf.config import Update
from pytest_gpuperf.judge.case import Policy, comparable_sessions
from pytest_gpuperf.judge.tally import accepted_outcomes, bars_storing
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.record import Role
from pytest_gpuperf.model.verdict import Verdict
from pytest_gpuperf.pipeline.memory import slug_of
from pytest_gpuperf.pipeline.verdicts import gates, grouped
from pytest_gpuperf.report import terminal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuperf.baseline.history import StoreChange
    from pytest_gpuperf.model.record import (
        Record,
        RecordKey,
        SessionValue,
        StoredRecord,
    )
    from pytest_gpuperf.model.run import Run
    from pytest_gpuperf.pipeline.suite import Suite

__all__ = ["confirming", "store", "write_reports"]


def store(suite: Suite, run: Run) -> None:
    """
    Store what this run may store: nothing of an incomplete one, nothing that failed.

    Raises:
        BaselineError: The store cannot be written; it is as it was.
    """
    if suite.config.update is None:
        return
    if not run.header.completeness.complete:
        suite.remark(terminal.nothing_stored("not every test reported"))
        return
    judged: dict[RecordKey, list[Verdict]] = {}
    for verdict in run.verdicts:
        judged.setdefault(verdict.key, []).append(verdict)
    changes: dict[str, list[StoreChange]] = {}
    barred_count = alone_count = 0
    for key, records in grouped(run.records).items():
        verdicts = judged.get(key, [])
        void = any(record.void is not None for record in records)
        if key.test_id not in suite.passed or void or bars_storing(verdicts):
            barred_count += 1
            continue
        # what another test has left behind is not a value of this one's
        alone = any(verdict.in_suite is not None for verdict in verdicts)
        measured = confirming(records) if alone else _in_suite(records)
        change = _change(suite, measured, verdicts) if measured else None
        if change is not None:
            changes.setdefault(slug_of(measured[0]), []).append(change)
            alone_count += alone
    suite.memory.write(changes)
    place = suite.memory.place()
    suite.remark(terminal.stored_line(changes, place, barred_count, alone_count))


def _in_suite(records: Sequence[Record]) -> list[Record]:
    """Return what the suite measured; empty: only processes that confirm came to it."""
    return [record for record in records if record.role is not Role.CONFIRM]


def confirming(records: Sequence[Record]) -> list[Record]:
    """Return what fresh processes measured, of the kernels that most of them chose."""
    found = [record for record in records if record.role is Role.CONFIRM]
    ((usual, _),) = Counter(record.choice for record in found).most_common(1)
    return [record for record in found if record.choice == usual]


def _change(
    suite: Suite, measured: Sequence[Record], judged: Sequence[Verdict]
) -> StoreChange | None:
    """Return what to do with a measurement; None: nothing."""
    session = stored_record(measured, suite.site.session)
    update = suite.config.update
    if not session.values:
        return None
    if update is Update.NEW:
        few = _fewest(suite, session, measured[0], judged) < Policy().least_sessions
        return Append(record=session) if few else None
    accepted = accepted_outcomes(update)
    metrics = frozenset(v.metric for v in judged if v.outcome in accepted)
    if metrics:
        return Restart(record=session, metrics=_family_of(metrics, session.values))
    return Append(record=session) if update is Update.ALL else None


def _fewest(
    suite: Suite, session: StoredRecord, first: Record, judged: Sequence[Verdict]
) -> int:
    """
    Return how many stored sessions a measurement may be compared with, now.

    Of several metrics that are held against something the one with the fewest counts; of
    several sources of a metric the one with the most, which is what is compared.
    """
    measured = suite.results[first.key.test_id]
    held = gates(measured, suite.config).keys() | {v.metric for v in judged}
    wanted = [v for v in session.values if v.metric in held] or session.values
    stored = suite.memory.sessions(first)
    across = suite.config.compare_across
    most: dict[str, int] = {}
    for value in wanted:
        count = comparable_sessions(value, session, stored, across=across)
        most[value.metric] = max(count, most.get(value.metric, 0))
    return min(most.values())


def _family_of(
    metrics: frozenset[str], values: Sequence[SessionValue]
) -> frozenset[str]:
    """Return metrics with those that are parts of them: time.p95 goes with time."""
    names = {value.metric for value in values}
    return frozenset(
        name for name in names if name in metrics or name.partition(".")[0] in metrics
    )


def write_reports(suite: Suite, run: Run) -> None:
    """
    Write the reports that were asked for.

    Raises:
        ReportError: A file cannot be written.
    """
    if suite.config.json is not None:
        from pytest_gpuperf.report.runs import write_json

        write_json(_with_samples(suite, run), suite.config.json)


def _with_samples(suite: Suite, run: Run) -> Run:
    """Return a run with the samples that its processes kept, for the JSON report."""
    spool = suite.site.identity.spool
    if spool is None:
        return run
    kept = replay.read_readings(spool)
    return replace(
        run,
        records=tuple(
            kept.get((record.key, record.role, record.process_index), record)
            for record in run.records
        ),
    )
