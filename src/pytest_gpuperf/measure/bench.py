"""The measuring equipment of one process: how it measures or marks, and how it reads."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from pytest_gpuperf.collect.base import TimedCall, calls, settle
from pytest_gpuperf.collect.timing.contract import refuse_function
from pytest_gpuperf.measure.observers import Observers
from pytest_gpuperf.measure.reading import Advise, FileReader, LookUp, Replay
from pytest_gpuperf.measure.site import Machine
from pytest_gpuperf.measure.timing import TimingMeasurer
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.record import Kind, Record, RecordKey
from pytest_gpuperf.model.run import ChildAnswer, ProfiledRange
from pytest_gpuperf.model.sample import CacheMode, Estimate, Source, Unmeasured

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager

    from pytest_gpuperf.collect.ncu.nvtx import LaunchFilter, Ranges
    from pytest_gpuperf.collect.step_profile import StepRecorder
    from pytest_gpuperf.config import Plan
    from pytest_gpuperf.measure.assemble import EndLoop
    from pytest_gpuperf.measure.references import References
    from pytest_gpuperf.measure.site import Site
    from pytest_gpuperf.measure.turns import TurnClient, Turns
    from pytest_gpuperf.model.scorecard import Hardware
    from pytest_gpuperf.model.work import Work

__all__ = [
    "Bench",
    "MarkingMeasurer",
    "Measurer",
    "Reader",
    "bench_of",
    "marking_bench",
    "timed_call",
]

_BUDGET_S = 1.0  # docs/judging.md section 5: for one metric


class Measurer(Protocol):
    """Runs what a test asks to have measured, and makes its records."""

    @property
    def turns(self) -> Turns | None:
        """The turns that tests take on the GPU; None: nobody is waited for."""

    @property
    def references(self) -> References | None:
        """The reference workloads of this process; None: it times nothing."""

    def lacking(self, requires: Sequence[str]) -> Unmeasured | None:
        """Return what a test requires and this process does not have; None: nothing."""

    def ensure(self) -> None:
        """
        Refuse to measure where something that was asked for by name is not possible.

        Raises:
            DeviceHeldError: Another process measured on the GPU all the time.

            ConfigError: A collector that was named refuses. No other stands in, and no
                test is skipped: a run without a value would end well.
        """

    def timed(
        self,
        key: RecordKey,
        request: TimedCall,
        /,
        *,
        plan: Plan,
        work: Work | None = None,
    ) -> tuple[Record, Callable[[], object]]:
        """Return the record of a function, and how to get what it returned."""

    def ranged(
        self, key: RecordKey, /, *, plan: Plan
    ) -> AbstractContextManager[Callable[[], Record]]:
        """Measure a block; what is yielded returns its record once it has ended."""

    def stepped(
        self,
        key: RecordKey,
        recorder: StepRecorder,
        /,
        *,
        plan: Plan,
        work: Work | None = None,
        hardware: Hardware | None = None,
    ) -> EndLoop:
        """Begin a loop, and return what ends it."""

    def compared(
        self, key: RecordKey, requests: tuple[TimedCall, TimedCall], /, *, plan: Plan
    ) -> tuple[Record, Record, Record]:
        """Return the records of a comparison and of its two sides."""

    def rest(self) -> None:
        """Let others have what one process has one of, until something is measured."""

    def close(self) -> None:
        """Let others have what was opened to look at the device."""


class Reader(Protocol):
    """Makes records of what a test gives it: binaries, reports and numbers."""

    def binary(
        self,
        key: RecordKey,
        source: object,
        *,
        plan: Plan,
        **facts: Any,  # noqa: ANN401 - as the binary's reader types them
    ) -> tuple[Record, LookUp | None, Advise]:
        """Return a binary's record, what looks into its code, and what names kernels."""

    def capture(
        self, key: RecordKey, path: str, /, *, launch_filter: LaunchFilter, plan: Plan
    ) -> tuple[Record, LookUp | None, Advise]:
        """Return a report's record, what looks up another counter, and what advises."""

    def number(
        self, key: RecordKey, values: Sequence[float], /, *, unit: str, better: str
    ) -> Record:
        """Return the record of a number of the user's own."""


class Bench:
    """
    The measuring equipment of one process of a run.

    Args:
        site: What the process has.

        measurer: Measures calls, blocks and loops.

        reader: Reads binaries, reports and numbers.

        lenient: Whether nothing is measured, so that every comparison must hold.
    """

    def __init__(
        self,
        site: Site,
        measurer: Measurer,
        reader: Reader,
        *,
        lenient: bool = False,
    ) -> None:
        self.site = site
        self.measurer = measurer
        self.reader = reader
        self.lenient = lenient

    def need(self, collector: str) -> None:
        """
        Refuse a measurement whose collector was left out, or asked for in vain.

        Raises:
            CollectorUnavailableError: It was left out.

            GpuPerfError: As `Measurer.ensure`.
        """
        self.site.need(collector)
        self.measurer.ensure()


def bench_of(site: Site, *, turn_client: TurnClient | None = None) -> Bench:
    """
    Return the bench of a process: it measures, or replays what was recorded.

    Args:
        site: What the process has.

        turn_client: Asks for turns; None: the process waits for no other.
    """
    machine = Machine(site)
    reader = FileReader(site, machine)
    if site.config.disable or site.config.replay is not None:
        replay = Replay(site, machine, reader)
        return Bench(site, replay, replay)
    measurer = TimingMeasurer(site, machine, Observers(site), turn_client=turn_client)
    return Bench(site, measurer, reader)


def timed_call(
    plan: Plan,
    fn: Callable[..., Any],
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
    *,
    setup: Callable[[], object] | None = None,
    inputs: Sequence[object] | None = None,
    check: Callable[[Any], object] | None = None,
    cache: str | None = None,
) -> TimedCall:
    """
    Return what is to be timed of a function.

    Raises:
        MeasureError: The cache mode is not one, or the arguments exclude each other.
    """
    asked = plan.cache if cache is None else cache
    return TimedCall(
        fn=fn,
        args=args,
        kwargs=kwargs,
        setup=setup,
        inputs=inputs,
        check=check,
        cache=CacheMode.COLD if asked is None else asked,
        cache_asked=asked is not None,
        iterations=plan.iterations,
        budget_s=_BUDGET_S,
    )


# docs/judging.md section 5: graph trees need warm-up, record and replay
_WARMUP_COUNT = 4
_TIMED = ("time", "time.wall", "time.p50", "time.p95", "time.min", "time.first_call")


def marking_bench(
    site: Site,
    *,
    tell: Callable[[ChildAnswer], None],
    ranges: Ranges,
) -> Bench:
    """
    Return the bench of a process that Nsight Compute watches.

    Args:
        site: What the process has.

        tell: Takes what a test has come to.

        ranges: What the profiler sees.
    """
    machine = Machine(site)
    measurer = MarkingMeasurer(site, machine, tell=tell, ranges=ranges)
    reader = FileReader(site, machine)
    return Bench(site, measurer, reader, lenient=True)


class MarkingMeasurer:
    """
    Marks calls for Nsight Compute, and times none; its parameters: see `marking_bench`.

    The parent wants to know which kernels belong to which measurement of which test: each
    runs once inside a range of its own. Its records have a value of all that may be asked.
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

    def rest(self) -> None:
        """Do nothing: nothing was opened."""

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
        with self._marked(key):
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
        mark.enter_context(self._marked(key))
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
        with self._marked(key, request.cache):
            output = call()
            settle(output)
        return output

    @contextlib.contextmanager
    def _marked(self, key: RecordKey, cache: str | None = None) -> Iterator[None]:
        """Open a range around what runs, from an idle device to an idle device."""
        # only a process that is profiled needs them
        from pytest_gpuperf.collect.ncu.command import paired_modes
        from pytest_gpuperf.collect.ncu.nvtx import range_name
        from pytest_gpuperf.measure.counters import AS_IT_COMES

        control = AS_IT_COMES if cache is None else paired_modes(cache).cache_control
        name = range_name(key.test_id, key.name)
        self._site.runtime.synchronize()
        opened = self._ranges.open(name)
        try:
            yield
            self._site.runtime.synchronize()
        finally:
            self._ranges.close(opened)
        reached = ProfiledRange(name=key.name, range=name, cache_control=control)
        self._tell(ChildAnswer(test_id=key.test_id, reached=(reached,)))


def _record(key: RecordKey, kind: Kind, plan: Plan) -> Record:
    """Return a record that has a value of all that its process may ask for."""
    from pytest_gpuperf.measure.captured import COUNT
    from pytest_gpuperf.measure.counters import counter_metrics

    metrics = (*_TIMED, COUNT, *counter_metrics(plan, (Source.NCU,)))
    estimates = tuple(
        Estimate(metric=name, value=1.0, unit="", source=Source.NCU)
        for name in dict.fromkeys(metrics)
    )
    return Record(key=key, kind=kind, estimates=estimates)
