"""Measurements under Nsight Compute: ranges for the profiler in place of times."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from pytest_gpuperf.collect.base import TimedCall, calls, settle
from pytest_gpuperf.collect.clock import NS_PER_S
from pytest_gpuperf.collect.timing.contract import refuse_function
from pytest_gpuperf.collect.timing.sampling import SLOW_S
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.record import Kind, Record, RecordKey
from pytest_gpuperf.model.run import ChildAnswer, ProfiledRange
from pytest_gpuperf.model.sample import Estimate, Source, Unmeasured

if TYPE_CHECKING:
    from pytest_gpuperf.collect.ncu.nvtx import Ranges
    from pytest_gpuperf.collect.step_profile import StepRecorder
    from pytest_gpuperf.config import Plan
    from pytest_gpuperf.measure.assemble import EndLoop
    from pytest_gpuperf.measure.site import Machine, Site
    from pytest_gpuperf.model.scorecard import Hardware
    from pytest_gpuperf.model.work import Work

# CUDA graph trees need calls to warm up, record and replay (docs/judging.md section 5).
_WARMUP_COUNT = 4
# Warm-up calls of a second or longer. The second call compiles nothing.
_SLOW_WARMUP_COUNT = 2
_TIMED = ("time", "time.wall", "time.p50", "time.p95", "time.min", "time.first_call")


class MarkingMeasurer:
    """
    Runs measurements inside profiler ranges instead of timing them.

    The parent process assigns kernels to measurements, so every measurement runs once in a
    range of its own. The records hold placeholder values. See `bench.marking_bench` for
    the parameters.
    """

    # The parent process holds the GPU.
    turns = None
    # The profiler would distort their times.
    references = imported = None

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
        """Check all requirements but CUPTI, because the profiler itself occupies CUPTI."""
        return self._site.lacking([name for name in requires if name != Source.CUPTI])

    def ensure(self) -> None:
        """Do nothing, because the process that measures times has already checked."""

    def rest(self) -> None:
        """Do nothing, because nothing was opened."""

    def close(self) -> None:
        """Do nothing, because nothing was opened."""

    def timed(
        self, key: RecordKey, request: TimedCall, *, plan: Plan, **_: object
    ) -> tuple[Record, Callable[[], object]]:
        """Call a function inside a range, after warm-up calls."""
        output = self._call(key, request)
        return _record(key, Kind.MEASURE, plan), lambda: output

    @contextlib.contextmanager
    def ranged(self, key: RecordKey, *, plan: Plan) -> Iterator[Callable[[], Record]]:
        """Run a block inside a range."""
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
        """Start recording a loop inside a single range."""
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
        """Run both functions, in separate ranges."""
        for side, request in zip(key.sides, requests, strict=True):
            self._call(side, request)
        first, second = (_record(side, Kind.MEASURE, plan) for side in key.sides)
        return _record(key, Kind.COMPARE, plan), first, second

    def _call(self, key: RecordKey, request: TimedCall) -> object:
        refuse_function(request.fn)
        next_call = calls(request)
        now_ns, slow_count = self._site.clock.now_ns, 0
        for _ in range(_WARMUP_COUNT):
            begun_ns = now_ns()
            settle(next_call()())
            is_slow = now_ns() - begun_ns >= SLOW_S * NS_PER_S
            slow_count = slow_count + 1 if is_slow else 0
            if slow_count == _SLOW_WARMUP_COUNT:
                break
        call = next_call()
        with self._marked(key, request.cache):
            output = call()
            settle(output)
        return output

    @contextlib.contextmanager
    def _marked(self, key: RecordKey, cache: str | None = None) -> Iterator[None]:
        """
        Open a range while the block runs, and report the range to the parent process.

        The device is idle at both ends, so that the range holds the kernels of the block
        and no others.
        """
        # Imported here because only profiled processes need these modules.
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
    """Return a record with the value 1.0 for all times, launches and requested counters."""
    from pytest_gpuperf.measure.captured import COUNT
    from pytest_gpuperf.measure.counters import counter_metrics

    metrics = (*_TIMED, COUNT, *counter_metrics(plan, (Source.NCU,)))
    estimates = tuple(
        Estimate(metric=name, value=1.0, unit="", source=Source.NCU)
        for name in dict.fromkeys(metrics)
    )
    return Record(key=key, kind=kind, estimates=estimates)
