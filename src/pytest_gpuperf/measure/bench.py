"""The measuring equipment of one process.

It hands the stop rule and the time to the collectors, and makes records of what they give.
What only some measurements need is imported by them: a run of plain calls starts sooner.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pytest_gpuperf.collect.base import TimedCall, Timing
from pytest_gpuperf.collect.registry import DEVICE_COLLECTORS
from pytest_gpuperf.collect.timing.host import HostCollector, RangeTimer
from pytest_gpuperf.compute import stats
from pytest_gpuperf.config import Lock
from pytest_gpuperf.errors import ConfigError, MeasureError
from pytest_gpuperf.measure.observers import Again, Observers
from pytest_gpuperf.measure.reading import Reader, judged
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.record import Kind, Record, RecordKey

if TYPE_CHECKING:
    from pytest_gpuperf.collect.runtime import DeviceRuntime
    from pytest_gpuperf.collect.step_profile import StepRecorder
    from pytest_gpuperf.config import Plan
    from pytest_gpuperf.measure.counted import CountsHere
    from pytest_gpuperf.measure.counters import Counts, Refusal
    from pytest_gpuperf.measure.observers import Observed
    from pytest_gpuperf.measure.turns import Turns
    from pytest_gpuperf.model.sample import Unmeasured
    from pytest_gpuperf.model.scorecard import Hardware
    from pytest_gpuperf.model.work import Work

__all__ = ["Bench"]

# docs/judging.md section 5: half-width of the median's interval
_HOST_PRECISION, _DEVICE_PRECISION = 0.01, 0.005
_BUDGET_S = 1.0  # docs/judging.md section 5: for one metric
_Ended = tuple[Record, "Hardware | None"]  # of a loop, with what it ran on


class _MedianKnown:
    """Enough is a narrow interval of the median; a device's times are the steadier."""

    def __init__(self, runtime: DeviceRuntime) -> None:
        self._runtime = runtime

    def enough(self, values: Sequence[float]) -> bool:
        """Return whether more samples would add nothing."""
        half_width = stats.half_width_fraction(values)
        in_use = self._runtime.active()
        precision = _DEVICE_PRECISION if in_use else _HOST_PRECISION
        return half_width is not None and half_width <= precision


class Bench(Reader):
    """Measures for one process of a run, with what that process has."""

    @functools.cached_property
    def _host(self) -> HostCollector:
        """The collector of times: the host's, and the device's beside them."""
        observers = self._observers
        return HostCollector(
            self.clock,
            self.runtime,
            observers.timers,
            sm_clock_hz=observers.sm_clock_hz,
        )

    @functools.cached_property
    def _observers(self) -> Observers:
        """Who looks at the device meanwhile."""
        return Observers(self)

    @functools.cached_property
    def turns(self) -> Turns | None:
        """The turns that tests take on the GPU; None: nobody is waited for."""
        config = self.config
        idle = config.disable or config.replay is not None
        if self.placeholder or idle or config.lock is Lock.OFF or self.device() is None:
            return None  # under a tool, whoever started it has the GPU
        from pytest_gpuperf.measure.turns import Turns

        return Turns(self)

    def lacking(self, requires: Sequence[str]) -> Unmeasured | None:
        """Return what a test requires and this process does not have; None: nothing."""
        if self.turns is not None and self.turns.refusal is not None:
            return self.turns.refusal
        if self.placeholder is not None:  # a tool counts here, and so holds CUPTI
            requires = [name for name in requires if name != "cupti"]
        elif "cupti" in requires and self.recording is None:
            _ = self._observers.activity  # who holds CUPTI shows when it is opened
        return super().lacking(requires)

    def need(self, collector: str) -> None:
        """
        Refuse a measurement whose collectors were left out, or asked for in vain.

        Raises:
            CollectorUnavailableError: One was left out.

            DeviceHeldError: Another process measured on the GPU all the time.

            ConfigError: One that was named refuses. No other stands in, and no test is
                skipped: a run without a value would end well.
        """
        super().need(collector)
        if self.turns is not None:
            self.turns.ensure()
        named = not frozenset(DEVICE_COLLECTORS).isdisjoint(self.config.collectors)
        if not named or self.placeholder or self.config.disable or self.config.replay:
            return
        _ = self._host  # opens what looks at the device
        for name in self.config.collectors:
            if name in self.lost:
                absence = self.lost[name]
                message = (
                    f"collector {name} was asked for and refuses: {absence.reason}"
                )
                raise ConfigError(message, remedy=absence.remedy)

    def close(self) -> None:
        """Let others have what was opened to look at the device."""
        if "_observers" in self.__dict__:
            self._observers.close()
        if self.__dict__.get("turns") is not None:
            self.__dict__.pop("turns").close()

    # makes values that pass every comparison, where nothing is measured
    placeholder: Callable[[str, Any], Any] | None = None
    # what was counted for tests in another process, or what counts in this one
    counts: Counts | CountsHere | None = None

    def count_here(self, instead_of: Refusal) -> None:
        """Count what tests ask for in this process, for another one may not."""
        from pytest_gpuperf.measure.counted import CountsHere

        self.counts = CountsHere(self, self._observers, instead_of=instead_of)

    def timed(
        self,
        key: RecordKey,
        fn: Callable[..., Any],
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
        *,
        plan: Plan,
        work: Work | None = None,
        setup: Callable[[], object] | None = None,
        inputs: Sequence[object] | None = None,
        check: Callable[[Any], object] | None = None,
        cache: str | None = None,
    ) -> tuple[Record, Callable[[], object]]:
        """Return the record of a function, and how to get what it returned."""
        self.need("host")
        request = TimedCall(
            fn=fn,
            args=args,
            kwargs=kwargs,
            setup=setup,
            inputs=inputs,
            check=check,
            cache=cache or plan.cache or "cold",
            iterations=plan.iterations,
            budget_s=_BUDGET_S,
        )
        kept = self._kept(key, Kind.MEASURE)
        if kept is not None:
            return kept, functools.cache(lambda: fn(*args, **kwargs))
        with self._observers.sensing() as observed:
            timing = self._host.measure(request, stop=_MedianKnown(self.runtime))
        declared = work or plan.work
        unseen = self._unseen(declared, timing, plan, request)
        record = self._measured(
            key, request, timing, observed, plan=plan, work=declared, unseen=unseen
        )
        return record, lambda: timing.result

    @contextlib.contextmanager
    def ranged(self, key: RecordKey, *, plan: Plan) -> Iterator[Callable[[], Record]]:
        """Measure a block; what is yielded returns its record once it has ended."""
        self.need("host")
        kept = self._kept(key, Kind.RANGE)
        if kept is not None:
            yield lambda: kept
            return

        def ended() -> Record:
            timing = _timing_of(timer)
            unseen = self._unseen(plan.work, timing, plan)
            record = self._maker().timed(
                key, timing, kind=Kind.RANGE, work=plan.work, unseen=unseen
            )
            record = self._with_observed(record, observed, timing)
            return self._counted(record, plan, plan.work)

        host = self._host  # opens what looks, before anything is looked at
        with self._observers.watching() as observed, host.measure_range() as timer:
            observed.begins()
            yield ended
            observed.returned()

    def stepped(
        self,
        key: RecordKey,
        *,
        plan: Plan,
        work: Work | None = None,
        hardware: Hardware | None = None,
        **how: Any,  # noqa: ANN401 - passed on to StepRecorder, which types each
    ) -> tuple[StepRecorder, Callable[[BaseException | None], _Ended]]:
        """Return the recorder of a loop that begins now, and what ends it."""
        from pytest_gpuperf.collect.step_profile import StepRecorder
        from pytest_gpuperf.measure.loops import loop_values
        from pytest_gpuperf.measure.roofs import hardware_of

        self.need("host")
        kept = self._kept(key, Kind.STEPS)
        recorder = StepRecorder(self.clock, self.runtime, **how)
        declared = work or plan.work
        sensors = contextlib.ExitStack()
        observed: Observed | None = None

        def ended(failure: BaseException | None) -> _Ended:
            loop = recorder.end(failure)
            sensors.close()
            # a device that has just failed is not asked: what it says would hide why
            unasked = declared is None or failure is not None
            peaks = None if unasked else self.peaks()
            known = hardware_of(declared, loop.units, peaks, hardware)
            if kept is not None:
                return kept, known
            values = loop_values(loop, work=declared, peaks=peaks, hardware=hardware)
            record = self._maker().steps(key, values, work=declared)
            if observed is not None:
                record = self._with_observed(record, observed)
            return self._counted(record, plan, declared), known

        if kept is None and self.placeholder is None:
            observed = sensors.enter_context(self._observers.sensing())
        recorder.begin()
        return recorder, ended

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
        """Return the records of a comparison and of its two sides."""
        self.need("host")
        sides = self.sides(key)
        kept = self._kept(key, Kind.COMPARE)
        if kept is not None:
            a, b = (self._kept(side, Kind.MEASURE) or kept for side in sides)
            return kept, a, b
        first, second = (
            TimedCall(
                fn=fn,
                args=args,
                kwargs=kwargs,
                setup=setup,
                cache=plan.cache or "cold",
                iterations=plan.iterations,
                budget_s=_BUDGET_S,
            )
            for fn in functions
        )
        with self._observers.sensing() as observed:
            stop = _MedianKnown(self.runtime)
            timings = [*self._host.interleave(first, second, stop=stop)]
        unseen = [
            self._unseen(plan.work, timing, plan, request)
            for timing, request in zip(timings, (first, second), strict=True)
        ]
        # nobody asks for their results, which must not take room beside the next
        timings = [replace(timing, result=None) for timing in timings]
        pair = self._maker().compared(key, *timings)
        pair = self._with_observed(pair, observed, timings[0])
        a, b = (
            self._measured(
                side,
                request,
                timing,
                replace(observed, span=None),  # the time of both is no side's own
                plan=plan,
                work=plan.work,
                unseen=nobody_knows,
            )
            for side, request, timing, nobody_knows in zip(
                sides, (first, second), timings, unseen, strict=True
            )
        )
        return pair, a, b

    @staticmethod
    def sides(key: RecordKey) -> tuple[RecordKey, RecordKey]:
        """Return the keys of the two sides of a comparison."""
        first, second = (f"{key.name}.{side}".lstrip(".") for side in "ab")
        return replace(key, name=first), replace(key, name=second)

    def _measured(
        self,
        key: RecordKey,
        request: TimedCall,
        timing: Timing,
        observed: Observed,
        *,
        plan: Plan,
        work: Work | None,
        unseen: bool,
    ) -> Record:
        """Return the record of a function that was timed."""
        # the timed call's result is the one that `check` has seen
        self._observers.call(request, observed, beside=timing.result is not None)
        self._observers.again(request, observed, judged(plan))
        record = self._maker().timed(
            key, timing, kind=Kind.MEASURE, work=work, unseen=unseen
        )
        record = self._with_observed(record, observed, timing)
        again = Again(request, timing, observed)
        return self._counted(record, plan, work, again)

    def _unseen(
        self,
        work: Work | None,
        timing: Timing,
        plan: Plan,
        request: TimedCall | None = None,
    ) -> bool:
        """Return whether nobody knows if declared work was done on the device."""
        if work is None or not self.runtime.active():
            return False
        from pytest_gpuperf.collect.timing.device_used import use_is_known

        needs = (*plan.requires, *plan.counters)
        return not use_is_known(timing, needs, request)

    def _with_observed(
        self, record: Record, observed: Observed, timing: Timing | None = None
    ) -> Record:
        """Return a record with what was seen of the same measurement."""
        if not observed.device_used:
            return record
        from pytest_gpuperf.measure.observed import with_observed

        beside = None if self.turns is None else self.turns.beside(observed.deltas)
        if beside is not None:
            observed.deltas = beside.deltas
        cache_mode = "none" if timing is None else timing.cache_mode
        facts = {**self._maker().facts, "cache_mode": cache_mode}
        found = with_observed(record, observed, facts=facts, strict=self.config.strict)
        found = self.keep_trace(found, observed.trace)
        void = found.void or self.misplaced()
        if beside is None:
            return replace(found, void=void)
        notes = (*found.notes, *beside.notes)
        return replace(found, void=void or beside.void, notes=notes)

    def _counted(
        self,
        record: Record,
        plan: Plan,
        work: Work | None,
        again: Again | None = None,
    ) -> Record:
        """Return a record with the counters of the same call, where some are wanted."""
        if self.counts is None:
            return record
        facts = self._maker().facts
        record = self.counts.joined(record, plan, again, work=work, facts=facts)
        known = {estimate.metric for estimate in record.estimates}
        gaps = tuple(gap for gap in record.unmeasured if gap.metric not in known)
        return replace(record, unmeasured=gaps)


def _timing_of(timer: RangeTimer) -> Timing:
    """Return what a block gave."""
    if timer.timing is None:
        raise MeasureError(
            "the block has not ended", remedy="read its values after the with block"
        )
    return timer.timing
