"""Reads what tests give it: binaries, reports and numbers, or a recording of them all.

Nothing here is timed. What only some tests read is imported by them.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from pytest_gpuperf.errors import CaptureFormatError, CollectorUnavailableError
from pytest_gpuperf.model.record import Kind, Note, Record, Void, VoidCode

if TYPE_CHECKING:
    from pytest_gpuperf.collect.base import TimedCall
    from pytest_gpuperf.collect.ncu.launches import CapturedLaunch
    from pytest_gpuperf.collect.step_profile import StepRecorder
    from pytest_gpuperf.config import Plan
    from pytest_gpuperf.measure.loops import EndLoop
    from pytest_gpuperf.measure.machine import Machine
    from pytest_gpuperf.measure.site import Site
    from pytest_gpuperf.model.record import RecordKey
    from pytest_gpuperf.model.sample import Unmeasured
    from pytest_gpuperf.model.scorecard import Hardware
    from pytest_gpuperf.model.work import Work

__all__ = ["Advise", "FileReader", "LookUp", "Replay"]

LookUp = Callable[[str], Record]  # returns the record with one more metric
Advise = Callable[[], tuple[Note, ...]]  # returns what a tool says of a record

_DISABLED = Void(
    code=VoidCode.DISABLED, reason="measuring is switched off (--gpuperf-disable)"
)
_ABSENT = Void(
    code=VoidCode.NOT_RECORDED, reason="the recording has no such measurement"
)
_Place = tuple[int, "CapturedLaunch"]  # with the number of its range
_STANDARD = ("registers", "waves", "occupancy.theoretical", "occupancy.achieved")


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
        self, key: RecordKey, path: str, *, kernel: str | None, plan: Plan
    ) -> tuple[Record, LookUp | None, Advise]:
        """Return a report's record, what looks up another counter, and what advises."""
        from pytest_gpuperf.measure.captured import capture_record, with_suggestions

        metrics = list(dict.fromkeys((*_STANDARD, *plan.counters, *plan.judged)))
        maker = self._machine.maker()

        def with_one_more(metric: str) -> Record:
            if metric not in metrics:
                metrics.append(metric)
            launches = [launch for _, launch in self._places(path, kernel, metrics)]
            record = capture_record(maker, key, launches, metrics, work=plan.work)
            return with_suggestions(record, path, runner=self._runner)

        def advise() -> tuple[Note, ...]:
            from pytest_gpuperf.measure.captured import advice, slowest

            place = slowest(self._places(path, kernel, metrics))
            return advice(path, *place, runner=self._runner)

        return with_one_more(metrics[0]), with_one_more, advise

    def number(
        self, key: RecordKey, values: Sequence[float], *, unit: str, better: str
    ) -> Record:
        """Return the record of a number of the user's own."""
        return self._machine.maker().number(key, values, unit=unit, better=better)

    def _places(
        self, path: str, kernel: str | None, metrics: Sequence[str]
    ) -> list[_Place]:
        """Return launches with their ranges and some metrics: all would take 16 MiB."""
        from pytest_gpuperf.collect.ncu.launches import read_capture
        from pytest_gpuperf.measure.captured import report_counters

        counters = report_counters(metrics)
        capture = read_capture(path, runner=self._runner, metrics=counters)
        places = [
            (index, launch)
            for index, part in enumerate(capture.ranges)
            for launch in part.launches
        ]
        return _matching(path, places, kernel)


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
        return self._record(key, Kind.CAPTURE), None, tuple

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


def _matching(path: str, places: Sequence[_Place], kernel: str | None) -> list[_Place]:
    """Return the launches of the kernels that were asked for, all of them measured."""
    chosen = [
        (number, launch)
        for number, launch in places
        if kernel is None
        or fnmatchcase(launch.kernel, kernel)
        or fnmatchcase(launch.demangled, kernel)
    ]
    if not chosen:
        names = ", ".join(
            list(dict.fromkeys(launch.kernel for _, launch in places))[:5]
        )
        message = f"no launch of a kernel {kernel!r}"
        raise CaptureFormatError(message, remedy=f"there are: {names}", path=path)
    failed = [launch.index for _, launch in chosen if not launch.measured]
    if failed:
        message = f"{path}: profiling launch {failed[0]} failed"
        raise CollectorUnavailableError(
            message, remedy="profile again, or choose other launches with kernel="
        )
    return chosen
