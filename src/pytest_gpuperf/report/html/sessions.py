"""The samples of a measurement in every session that a page knows of."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from pytest_gpuperf.model.environment import Session
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.record import (
    Record,
    RecordKey,
    Role,
    SessionValue,
    StoredRecord,
)
from pytest_gpuperf.model.run import Run
from pytest_gpuperf.model.sample import Estimate
from pytest_gpuperf.report import display
from pytest_gpuperf.report.html.figures import SessionSamples
from pytest_gpuperf.report.rows import Row

__all__ = ["Sessions"]

_SessionName = tuple[float, str]  # when it began [s], its id


class Sessions:
    """
    The sessions of a run: those of its store, of earlier runs, and its own processes.

    Args:
        run: The run.

        older: Earlier runs, oldest first.
    """

    def __init__(self, run: Run, older: Sequence[Run] = ()) -> None:
        self._run = run
        self._older = [(earlier, _first_records(earlier)) for earlier in older]
        self._fresh = _fresh_records(run)
        self._stored: dict[RecordKey, list[StoredRecord]] = defaultdict(list)
        for stored in run.stored:
            self._stored[stored.key].append(stored)

    def of(self, row: Row, shown: Estimate | None) -> list[SessionSamples]:
        """Return what every session measured of a metric, oldest first, then now."""
        if shown is None or row.record is None:
            return []
        stored = dict(self._stored_sessions(row, shown))
        older = dict(self._older_sessions(row, shown))
        by_session = {**stored, **older}  # the samples of a run say more
        sessions = [by_session[session] for session in sorted(by_session)]
        session = self._run.header.session
        first = row.estimate(shown.metric) or shown
        now = _of_record(row.record, first, kind="now", label="this run")
        sessions.append(replace(now, commit=session.commit or ""))
        for record in self._fresh.get(row.key, ()):
            for estimate in record.estimates:
                if _is_alike(estimate, shown):
                    label = f"fresh process {record.process_index}"
                    sessions.append(
                        _of_record(record, estimate, kind="fresh", label=label)
                    )
        return sessions

    def earlier(self, row: Row) -> Record | None:
        """Return the measurement in the newest earlier run; None: there is none."""
        several = (records.get(row.key) for _, records in reversed(self._older))
        return next(filter(None, several), None)

    def _stored_sessions(
        self, row: Row, shown: Estimate
    ) -> Iterator[tuple[_SessionName, SessionSamples]]:
        """Yield the stored sessions of a measurement, with when they began."""
        left_out = {v.change.left_out for v in row.verdicts if v.change is not None}
        for stored in self._stored.get(row.key, ()):
            for value in stored.values:
                if _is_alike(value, shown):
                    session = stored.session
                    middle = sorted(value.run_values)[len(value.run_values) // 2]
                    samples = SessionSamples(
                        kind="left-out" if session.id in left_out else "stored",
                        label=_when(session),
                        value=middle,
                        commit=session.commit or "",
                        values=() if value.quantiles else value.run_values,
                        quantiles=value.quantiles,
                    )
                    yield (session.started_unix_s, session.id), samples

    def _older_sessions(
        self, row: Row, shown: Estimate
    ) -> Iterator[tuple[_SessionName, SessionSamples]]:
        """Yield the earlier runs that are shown beside this one, with when they began."""
        for run, records in self._older:
            record = records.get(row.key)
            for estimate in record.estimates if record is not None else ():
                if record is not None and _is_alike(estimate, shown):
                    session = run.header.session
                    label = _when(session)
                    samples = _of_record(record, estimate, kind="older", label=label)
                    samples = replace(samples, commit=session.commit or "")
                    yield (session.started_unix_s, session.id), samples


def _first_records(run: Run) -> Mapping[RecordKey, Record]:
    """Return what the main process of a run measured."""
    return {r.key: r for r in reversed(run.records) if r.role is Role.MAIN}


def _fresh_records(run: Run) -> Mapping[RecordKey, Sequence[Record]]:
    """Return what fresh processes measured."""
    fresh: dict[RecordKey, list[Record]] = {}
    for record in run.records:
        if record.role is not Role.MAIN:
            fresh.setdefault(record.key, []).append(record)
    return fresh


def _when(session: Session) -> str:
    """Return the minute in which a session began."""
    return display.moment(session.started_unix_s).removesuffix(" UTC")


def _of_record(
    record: Record, estimate: Estimate, *, kind: str, label: str
) -> SessionSamples:
    """Return the samples of one value in one process."""
    values = next(
        (
            series.values
            for series in record.series
            if (series.metric, series.unit, series.source)
            == (estimate.metric, estimate.unit, estimate.source)
        ),
        (),
    )
    return SessionSamples(
        kind=kind,
        label=label,
        value=estimate.value,
        values=values,
        count=estimate.sample_count,
    )


def _is_alike(value: Estimate | SessionValue, shown: Estimate) -> bool:
    """Return whether a value is of the same metric, source, unit and kernel."""
    kernel = value.kernel if isinstance(value, Estimate) else None
    name = (value.metric, value.source, value.unit, kernel)
    return name == (shown.metric, shown.source, shown.unit, shown.kernel)
