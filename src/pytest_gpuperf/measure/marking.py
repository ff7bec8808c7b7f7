"""Marks what a test calls for Nsight Compute, which watches this process.

Its parent wants to know which kernels belong to which measurement of which test, so each
of these runs once inside a range of its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pytest_gpuperf.collect.base import TimedCall, calls, settle
from pytest_gpuperf.collect.ncu.command import paired_modes
from pytest_gpuperf.collect.ncu.nvtx import Ranges, range_name
from pytest_gpuperf.collect.timing.contract import refuse_function
from pytest_gpuperf.measure.bench import Bench
from pytest_gpuperf.measure.counters import AS_IT_COMES, COUNT, counter_metrics
from pytest_gpuperf.measure.reading import FileReader
from pytest_gpuperf.measure.site import Machine
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.record import Kind, Record, RecordKey
from pytest_gpuperf.model.run import ChildAnswer, ProfiledRange
from pytest_gpuperf.model.sample import Estimate, Source, Unmeasured

if TYPE_CHECKING:
    from pytest_gpuperf.collect.step_profile import StepRecorder
    from pytest_gpuperf.config import Plan
    from pytest_gpuperf.measure.loops import EndLoop
    from pytest_gpuperf.measure.site import Site
    from pytest_gpuperf.model.scorecard import Hardware
    from pytest_gpuperf.model.work import Work

__all__ = ["MarkingMeasurer", "marking_bench"]

# docs/judging.md section 5: graph trees need warm-up, record and replay
_WARMUP_COUNT = 4
_TIMED = ("time", "time.wall", "time.p50", "time.p95", "time.min", "time.first_call")


def marking_bench(
    site: Site,
    *,
    tell: Callable[[ChildAnswer], None],
    ranges: Ranges,
    placeholder: Callable[[str, Any], Any],
) -> Bench:
    """
    Return the bench of a process that Nsight Compute watches.

    Args:
        site: What the process has.

        tell: Takes what a test has come to.

        ranges: What the profiler sees.

        placeholder: As of a `Bench`.
    """
    machine = Machine(site)
    measurer = MarkingMeasurer(site, machine, tell=tell, ranges=ranges)
    reader = FileReader(site, machine)
    return Bench(site, measurer, reader, placeholder=placeholder)


class MarkingMeasurer:
    """
    Marks calls, and times none; its parameters are those of `marking_bench`.

    Its records have a value of all that its process may ask for.
    """

    turns = None  # who started this process has the GPU
    references = None  # the profiler's work would be in them

    def __init__(
        self,
        site: Site,
        machine: Machine,
        *,
        tell: Callable[[ChildAnswer], None],
        ranges: Ranges,
    ) -> None:
        self._site = site
        self._machine = machine
        self._tell = tell
        self._ranges = ranges

    def lacking(self, requires: Sequence[str]) -> Unmeasured | None:
        """Return what a test requires and this process lacks: the profiler has CUPTI."""
        return self._site.lacking([name for name in requires if name != Source.CUPTI])

    def ensure(self) -> None:
        """Refuse nothing: the process that times did."""

    def close(self) -> None:
        """Do nothing: nothing was opened."""

    def timed(
        self, key: RecordKey, request: TimedCall, *, plan: Plan, **_: object
    ) -> tuple[Record, Callable[[], object]]:
        """Call a function some times, then once in a range."""
        output = self._call(key, request)
        return _record(key, Kind.MEASURE, plan), lambda: output

    @contextlib.contextmanager
    def ranged(self, key: RecordKey, *, plan: Plan) -> Iterator[Callable[[], Record]]:
        """Mark a block."""
        with self._marked(key, AS_IT_COMES):
            yield lambda: _record(key, Kind.RANGE, plan)

    def stepped(
        self,
        key: RecordKey,
        recorder: StepRecorder,
        *,
        plan: Plan,
        work: Work | None = None,
        hardware: Hardware | None = None,
    ) -> EndLoop:
        """Begin a loop, all of it inside one range."""
        mark = contextlib.ExitStack()
        mark.enter_context(self._marked(key, AS_IT_COMES))
        recorder.begin()

        def ended(failure: BaseException | None) -> tuple[Record, Hardware | None]:
            kind = None if failure is None else type(failure)
            mark.__exit__(kind, failure, None)
            loop = recorder.end(failure)
            record, ran_on = self._machine.loop_record(
                key, loop, work=work or plan.work, hardware=hardware
            )
            placed = _record(key, Kind.STEPS, plan).estimates
            return replace(record, estimates=(*record.estimates, *placed)), ran_on

        return ended

    def compared(
        self, key: RecordKey, requests: tuple[TimedCall, TimedCall], *, plan: Plan
    ) -> tuple[Record, Record, Record]:
        """Mark a call of each of two functions."""
        for side, request in zip(key.sides, requests, strict=True):
            self._call(side, request)
        first, second = (_record(side, Kind.MEASURE, plan) for side in key.sides)
        return _record(key, Kind.COMPARE, plan), first, second

    def _call(self, key: RecordKey, request: TimedCall) -> object:
        """Call a function outside of its range, then once in it; return what it gave."""
        refuse_function(request.fn)
        next_call = calls(request)
        for _ in range(_WARMUP_COUNT):
            settle(next_call()())
        call = next_call()
        with self._marked(key, paired_modes(request.cache).cache_control):
            output = call()
            settle(output)
        return output

    @contextlib.contextmanager
    def _marked(self, key: RecordKey, cache_control: str) -> Iterator[None]:
        """Open a range around what runs, from an idle device to an idle device."""
        name = range_name(key.test_id, key.name)
        self._site.runtime.synchronize()
        opened = self._ranges.open(name)
        try:
            yield
            self._site.runtime.synchronize()
        finally:
            self._ranges.close(opened)
        reached = ProfiledRange(name=key.name, range=name, cache_control=cache_control)
        self._tell(ChildAnswer(test_id=key.test_id, reached=(reached,)))


def _record(key: RecordKey, kind: Kind, plan: Plan) -> Record:
    """Return a record that has a value of all that its process may ask for."""
    metrics = (*_TIMED, COUNT, *counter_metrics(plan, (Source.NCU,)))
    estimates = tuple(
        Estimate(metric=name, value=1.0, unit="", source=Source.NCU)
        for name in dict.fromkeys(metrics)
    )
    return Record(key=key, kind=kind, estimates=estimates)
