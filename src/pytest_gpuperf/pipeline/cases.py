"""What a run measured into the cases that are judged against a baseline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from pytest_gpuperf.judge.case import Case
from pytest_gpuperf.judge.pairing import case_of
from pytest_gpuperf.model.record import Record, RecordKey, Role

if TYPE_CHECKING:
    from pytest_gpuperf.config import Config
    from pytest_gpuperf.model.run import Measured
    from pytest_gpuperf.pipeline.suite import Suite

__all__ = ["cases_of_suite", "cases_of_test", "gates", "grouped"]


def grouped(records: Iterable[Record]) -> dict[RecordKey, list[Record]]:
    """Return records by what they are a measurement of, the main process's first."""
    groups: dict[RecordKey, list[Record]] = {}
    for record in sorted(records, key=lambda record: record.process_index):
        groups.setdefault(record.key, []).append(record)
    return groups


def gates(measured: Measured, config: Config) -> Mapping[str, float | None]:
    """Return the largest change by metric that a test allows; None: it is only shown."""
    return measured.max_regression or {"time": config.max_regression}


def cases_of_suite(suite: Suite) -> list[Case]:
    """Return the cases of a whole run: of tests whose body passed, if there is a store."""
    if suite.config.disable or suite.memory.store() is None:
        return []
    records = [r for r in suite.records() if r.role is not Role.CONFIRM]
    groups = {
        key: several
        for key, several in grouped(records).items()
        if key.test_id in suite.passed
    }
    elsewhere = suite.memory.elsewhere([several[0] for several in groups.values()])
    cases: list[Case] = []
    for key, several in groups.items():
        known = suite.first_cases.get(key)
        if known is None or len(several) > 1 or key in elsewhere:
            measured, there = suite.results[key.test_id], key in elsewhere
            known = _cases(suite, measured, several, other_slug_exists=there)
        cases += known
    return cases


def cases_of_test(suite: Suite, measured: Measured) -> list[Case]:
    """Return the cases of one test by its first process alone; the suite keeps them."""
    cases: list[Case] = []
    for key, several in grouped(measured.records).items():
        suite.first_cases[key] = _cases(suite, measured, several)
        cases += suite.first_cases[key]
    return cases


def _cases(
    suite: Suite,
    measured: Measured,
    records: list[Record],
    *,
    other_slug_exists: bool = False,
) -> tuple[Case, ...]:
    """Return the cases of one measurement of a test."""
    stored = suite.memory.sessions(records[0])
    return tuple(
        case_of(
            records,
            stored,
            metric=metric,
            limit=limit,
            session_id=suite.bench.session.id,
            across=suite.config.compare_across,
            other_slug_exists=other_slug_exists,
        )
        for metric, limit in gates(measured, suite.config).items()
        if _has(records, metric) or _stands_for(records[0], metric, measured)
    )


def _has(records: Sequence[Record], metric: str) -> bool:
    """Return whether any of some records has a metric."""
    return any(e.metric == metric for r in records for e in r.estimates)


def _stands_for(record: Record, metric: str, measured: Measured) -> bool:
    """Return whether a record tells of a metric that its test has no value of."""
    first = not record.key.name
    return metric != "time" and first and not _has(measured.records, metric)
