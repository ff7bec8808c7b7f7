"""The bench of a process that Nsight Compute watches.

Its parent wants to know which kernels belong to which measurement of which test, so each
of these runs once inside a range of its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pytest_gpuperf.collect.base import TimedCall, calls, settle
from pytest_gpuperf.collect.ncu.command import paired_modes
from pytest_gpuperf.collect.ncu.ranges import Ranges, range_name
from pytest_gpuperf.collect.timing.contract import refuse_function
from pytest_gpuperf.measure.bench import Bench
from pytest_gpuperf.measure.counters import AS_IT_COMES, COUNT, SOURCE, wanted_metrics
from pytest_gpuperf.model.child import ChildAnswer, ProfiledRange
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.record import Kind, Record, RecordKey
from pytest_gpuperf.model.sample import Estimate

if TYPE_CHECKING:
    from pytest_gpuperf.collect.step_profile import StepRecorder
    from pytest_gpuperf.config import Plan
    from pytest_gpuperf.model.scorecard import Hardware
    from pytest_gpuperf.model.work import Work

__all__ = ["CountingBench"]

# docs/judging.md section 5: graph trees need warm-up, record and replay
_WARMUP_COUNT = 4
_TIMED = ("time", "time.wall", "time.p50", "time.p95", "time.min", "time.first_call")


class CountingBench(Bench):
    """
    It marks calls and times none.

    Attributes:
        tell: Takes what a test has come to.

        ranges: What the profiler sees.
    """

    tell: Callable[[ChildAnswer], None]
    ranges: Ranges

    def timed(
        self,
        key: RecordKey,
        fn: Callable[..., Any],
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
        *,
        plan: Plan,
        cache: str | None = None,
        **how: Any,  # noqa: ANN401 - of which a counted call needs its arguments alone
    ) -> tuple[Record, Callable[[], object]]:
        """Call a function some times, then once in a range."""
        given = {name: how.get(name) for name in ("setup", "inputs")}
        output = self._call(key, fn, args, kwargs, plan=plan, cache=cache, **given)
        return self._record(key, Kind.MEASURE, plan), lambda: output

    @contextlib.contextmanager
    def ranged(self, key: RecordKey, *, plan: Plan) -> Iterator[Callable[[], Record]]:
        """Mark a block."""
        with self._marked(key, AS_IT_COMES):
            yield lambda: self._record(key, Kind.RANGE, plan)

    def stepped(
        self,
        key: RecordKey,
        *,
        plan: Plan,
        work: Work | None = None,
        hardware: Hardware | None = None,
        **how: Any,  # noqa: ANN401 - passed on to Bench.stepped
    ) -> tuple[
        StepRecorder,
        Callable[[BaseException | None], tuple[Record, Hardware | None]],
    ]:
        """Record a loop, all of it inside one range."""
        mark = contextlib.ExitStack()
        mark.enter_context(self._marked(key, AS_IT_COMES))
        recorder, ended = super().stepped(
            key, plan=plan, work=work, hardware=hardware, **how
        )

        def closed(failure: BaseException | None) -> tuple[Record, Hardware | None]:
            kind = None if failure is None else type(failure)
            mark.__exit__(kind, failure, None)
            record, known = ended(failure)
            placed = self._record(key, Kind.STEPS, plan).estimates
            return replace(record, estimates=(*record.estimates, *placed)), known

        return recorder, closed

    def compared(
        self,
        key: RecordKey,
        functions: tuple[Callable[..., Any], Callable[..., Any]],
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
        *,
        plan: Plan,
        setup: Callable[[], object] | None = None,
    ) -> tuple[Record, Record, Record]:
        """Mark a call of each of two functions."""
        sides = self.sides(key)
        for side, fn in zip(sides, functions, strict=True):
            self._call(side, fn, args, kwargs, plan=plan, cache=None, setup=setup)
        first, second = (self._record(side, Kind.MEASURE, plan) for side in sides)
        return self._record(key, Kind.COMPARE, plan), first, second

    def _call(
        self,
        key: RecordKey,
        fn: Callable[..., Any],
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
        *,
        plan: Plan,
        cache: str | None,
        **given: Any,  # noqa: ANN401 - passed on to TimedCall, which types each
    ) -> object:
        """Call a function outside of its range, then once in it; return what it gave."""
        self.need("host")  # as the process that measures does
        refuse_function(fn)
        mode = cache or plan.cache or "cold"
        request = TimedCall(fn=fn, args=args, kwargs=kwargs, cache=mode, **given)
        next_call = calls(request)
        for _ in range(_WARMUP_COUNT):
            settle(next_call()())
        call = next_call()
        with self._marked(key, paired_modes(mode).cache_control):
            output = call()
            settle(output)
        return output

    @contextlib.contextmanager
    def _marked(self, key: RecordKey, cache_control: str) -> Iterator[None]:
        """Open a range around what runs, from an idle device to an idle device."""
        name = range_name(key.test_id, key.name)
        self.runtime.synchronize()
        opened = self.ranges.open(name)
        try:
            yield
            self.runtime.synchronize()
        finally:
            self.ranges.close(opened)
        reached = ProfiledRange(name=key.name, range=name, cache_control=cache_control)
        self.tell(ChildAnswer(test_id=key.test_id, reached=(reached,)))

    def _record(self, key: RecordKey, kind: Kind, plan: Plan) -> Record:
        """Return a record that has a value of all that its process may ask for."""
        metrics = (*_TIMED, COUNT, *wanted_metrics(plan, (SOURCE,)))
        estimates = tuple(
            Estimate(metric=name, value=1.0, unit="", source=SOURCE)
            for name in dict.fromkeys(metrics)
        )
        return Record(key=key, kind=kind, estimates=estimates)
