"""Reads what tests give it: binaries, reports and numbers, or a recording of them all.

Nothing here is timed. What only some tests read is imported by them.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_gpuperf.errors import CollectorUnavailableError
from pytest_gpuperf.model.record import Kind, Note, Record, Void, VoidCode

if TYPE_CHECKING:
    from pytest_gpuperf.collect.base import TimedCall
    from pytest_gpuperf.collect.ncu.launches import (
        CapturedLaunch,
        PlacedLaunch,
        ReadReport,
    )
    from pytest_gpuperf.collect.ncu.nvtx import LaunchFilter
    from pytest_gpuperf.collect.runner import Runner
    from pytest_gpuperf.collect.step_profile import StepRecorder
    from pytest_gpuperf.config import Plan
    from pytest_gpuperf.measure.loops import EndLoop
    from pytest_gpuperf.measure.machine import Machine
    from pytest_gpuperf.measure.site import Site
    from pytest_gpuperf.model.record import RecordKey
    from pytest_gpuperf.model.sample import Unmeasured
    from pytest_gpuperf.model.scorecard import Hardware
    from pytest_gpuperf.model.verdict import Comparison
    from pytest_gpuperf.model.work import Work

__all__ = ["Advise", "FileReader", "LookUp", "Replay"]

LookUp = Callable[[str], Record]  # returns the record with one more metric
# returns what a tool says of a record, where some comparisons of its values failed
Advise = Callable[[Sequence["Comparison"]], tuple[Note, ...]]

_DISABLED = Void(
    code=VoidCode.DISABLED, reason="measuring is switched off (--gpuperf-disable)"
)
_ABSENT = Void(
    code=VoidCode.NOT_RECORDED, reason="the recording has no such measurement"
)
_STANDARD = ("registers", "waves", "occupancy.theoretical", "occupancy.achieved")


_MOST_REPORTS = 16  # that are kept: a suite goes from one to the next
_MOST_VALUES = 1_000_000  # of one report, 32 MB: of a larger one only what is asked for


class _Kept(NamedTuple):
    """A report as far as it was read; counters None: all that it has."""

    report: ReadReport
    counters: frozenset[str] | None


class _Reports:
    """
    The reports that this process reads, each of them at most twice.

    The first reading has all counters that a metric of the catalogue or the limiter is
    made of. A counter by its own name that it lacks is read with all others.

    Args:
        runner: Starts the reading processes.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._kept: dict[tuple[int, ...], _Kept] = {}

    def read(self, path: str, metrics: Sequence[str]) -> ReadReport:
        """Return a report that has all that it can have of some metrics."""
        from pytest_gpuperf.measure.captured import first_counters, report_counters

        status = _status(path)
        kept = self._kept.get(status)
        counters = report_counters(metrics)
        if kept is None:
            return self._keep(path, status, (*first_counters(), *counters))
        report, present = kept.report, kept.report.names
        done = present if kept.counters is None else kept.counters
        if all(name in done or name not in present for name in counters):
            return report
        if len(report.launches) * len(present) <= _MOST_VALUES:
            return self._keep(path, status, None)
        return self._keep(path, status, (*done, *counters))

    def _keep(
        self, path: str, status: tuple[int, ...], counters: Sequence[str] | None
    ) -> ReadReport:
        """Read a report, and keep it instead of the one that was read first."""
        from pytest_gpuperf.collect.ncu.launches import read_report

        names = None if counters is None else tuple(dict.fromkeys(counters))
        report = read_report(path, names, runner=self._runner)
        self._kept.pop(status, None)
        if len(self._kept) >= _MOST_REPORTS:
            del self._kept[next(iter(self._kept))]
        kept_names = None if names is None else frozenset(names)
        self._kept[status] = _Kept(report, kept_names)
        return report


def _status(path: str) -> tuple[int, ...]:
    """Return what differs when a file was written again; empty: it cannot be read."""
    try:
        status = os.stat(path)  # noqa: PTH116 - a path of the user's, as it is
    except (OSError, ValueError):  # the reader says why
        return ()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


class FileReader:
    """
    Reads for one process of a run.

    Args:
        site: What the process has.

        machine: What it computes with.
    """

    def __init__(self, site: Site, machine: Machine) -> None:
        self._runner = site.runner
        self._machine = machine
        self._reports = _Reports(site.runner)

    def binary(
        self,
        key: RecordKey,
        source: object,
        *,
        plan: Plan,
        **facts: Any,  # noqa: ANN401 - passed on to read_cubins, which types each
    ) -> tuple[Record, LookUp | None]:
        """Return the record of a compiled binary, and what looks into its code."""
        from pytest_gpuperf.collect.binary.read import read_cubins, read_mixes
        from pytest_gpuperf.measure.compiled import binary_record, code_of, is_in_code

        cubins = read_cubins(source, runner=self._runner, **facts)
        kernels = [kernel for cubin in cubins for kernel in cubin.kernels]
        mixes = functools.cache(lambda: read_mixes(cubins, runner=self._runner))
        in_code = [metric for metric in plan.judged if is_in_code(metric)]
        maker = self._machine.maker()

        def with_one_more(metric: str | None = None) -> Record:
            if metric is not None and is_in_code(metric) and metric not in in_code:
                in_code.append(metric)
            return binary_record(maker, key, kernels, code_of(in_code, mixes))

        return with_one_more(), with_one_more

    def capture(
        self, key: RecordKey, path: str, *, launch_filter: LaunchFilter, plan: Plan
    ) -> tuple[Record, LookUp | None, Advise]:
        """Return a report's record, what looks up another counter, and what advises."""
        from pytest_gpuperf.measure.captured import advice, capture_record, with_metric

        metrics = list(dict.fromkeys((*_STANDARD, *plan.counters, *plan.judged)))

        def read() -> tuple[list[CapturedLaunch], frozenset[str]]:
            report = self._reports.read(path, metrics)
            launches = [
                placed.launch for placed in _chosen(path, report, launch_filter)
            ]
            return launches, report.names

        launches, names = read()
        maker = self._machine.maker()
        record = capture_record(
            maker, key, launches, metrics, names=names, work=plan.work
        )

        def with_one_more(metric: str) -> Record:
            nonlocal record
            if metric not in metrics:
                metrics.append(metric)
                launches, names = read()
                record = with_metric(
                    record, metric, launches, names=names, work=plan.work
                )
            return record

        def advise(failed: Sequence[Comparison]) -> tuple[Note, ...]:
            placed = _chosen(path, self._reports.read(path, metrics), launch_filter)
            return advice(path, placed, failed, runner=self._runner)

        return record, with_one_more, advise

    def number(
        self, key: RecordKey, values: Sequence[float], *, unit: str, better: str
    ) -> Record:
        """Return the record of a number of the user's own."""
        return self._machine.maker().number(key, values, unit=unit, better=better)


class Replay:
    """
    Gives the records of a recording, or void ones where measuring is switched off.

    What tests call runs once, unmeasured, for its side effects.

    Args:
        site: What the process has.

        machine: What it computes with.

        reader: Makes the records of numbers that were not recorded.
    """

    turns = None  # nothing runs that others must wait for
    references = None  # nothing is timed

    def __init__(self, site: Site, machine: Machine, reader: FileReader) -> None:
        self._site = site
        self._machine = machine
        self._reader = reader

    def lacking(self, requires: Sequence[str]) -> Unmeasured | None:
        """Return what a test requires and this process does not have; None: nothing."""
        return self._site.lacking(requires)

    def ensure(self) -> None:
        """Refuse nothing: nothing is measured."""

    def close(self) -> None:
        """Do nothing: nothing was opened."""

    def timed(
        self, key: RecordKey, request: TimedCall, **_: object
    ) -> tuple[Record, Callable[[], object]]:
        """Return the record of a function, and what calls it where its result is read."""
        result = functools.cache(lambda: request.fn(*request.args, **request.kwargs))
        return self._record(key, Kind.MEASURE), result

    @contextlib.contextmanager
    def ranged(self, key: RecordKey, **_: object) -> Iterator[Callable[[], Record]]:
        """Run a block; what is yielded returns its record."""
        record = self._record(key, Kind.RANGE)
        yield lambda: record

    def stepped(
        self,
        key: RecordKey,
        recorder: StepRecorder,
        *,
        plan: Plan,
        work: Work | None = None,
        hardware: Hardware | None = None,
    ) -> EndLoop:
        """Begin a loop, and return what ends it."""
        declared = work or plan.work
        record = self._record(key, Kind.STEPS)

        def ended(failure: BaseException | None) -> tuple[Record, Hardware | None]:
            loop = recorder.end(failure)
            _, ran_on = self._machine.loop_roofs(loop, declared, hardware)
            return record, ran_on

        recorder.begin()
        return ended

    def compared(
        self, key: RecordKey, _requests: tuple[TimedCall, TimedCall], **_: object
    ) -> tuple[Record, Record, Record]:
        """Return the records of a comparison and of its two sides."""
        a, b = (self._record(side, Kind.MEASURE) for side in key.sides)
        return self._record(key, Kind.COMPARE), a, b

    def binary(
        self,
        key: RecordKey,
        source: object,  # noqa: ARG002 - as a Reader has it
        **_: object,
    ) -> tuple[Record, LookUp | None]:
        """Return the record of a compiled binary, of which nothing more is known."""
        return self._record(key, Kind.BINARY), None

    def capture(
        self, key: RecordKey, _path: str, **_: object
    ) -> tuple[Record, LookUp | None, Advise]:
        """Return a report's record, of which nothing more is known."""
        return self._record(key, Kind.CAPTURE), None, lambda _: ()

    def number(
        self, key: RecordKey, values: Sequence[float], *, unit: str, better: str
    ) -> Record:
        """Return the record of a number: the test itself knows one that is not there."""
        record = self._record(key, Kind.RECORD)
        if record.void is None:
            return record
        return self._reader.number(key, values, unit=unit, better=better)

    def _record(self, key: RecordKey, kind: Kind) -> Record:
        """Return the record that stands for a measurement."""
        recording = None if self._site.config.disable else self._site.recording
        if recording is None:
            return Record(key=key, kind=kind, estimates=(), void=_DISABLED)
        record = recording.main(key)
        if record is not None:
            return record
        return Record(key=key, kind=kind, estimates=(), void=_ABSENT)


def _chosen(
    path: str, report: ReadReport, launch_filter: LaunchFilter
) -> list[PlacedLaunch]:
    """Return the chosen launches, all of them measured."""
    chosen = report.chosen(launch_filter, path)
    failed = [placed.index for placed in chosen if not placed.launch.measured]
    if failed:
        message = f"{path}: profiling launch {failed[0]} failed"
        last = max(placed.index for placed in chosen)
        # ncu ends with the launch that failed
        rest = f"slice({last})" if failed == [last] and last else "[…]"
        raise CollectorUnavailableError(
            message, remedy=f"profile again, or leave it out: launches={rest}"
        )
    return chosen
