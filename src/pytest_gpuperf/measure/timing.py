"""Measures what a test calls: its time, and what observers see besides.

What only some measurements need is imported by them: a run of plain calls starts sooner.
"""

from __future__ import annotations

import contextlib
import functools
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

from pytest_gpuperf.collect.registry import DEVICE_COLLECTORS, DEVICE_TIMERS
from pytest_gpuperf.collect.timing.host import HostCollector, RangeTimer
from pytest_gpuperf.collect.timing.readings import HOST_PRECISION, use_is_known
from pytest_gpuperf.compute import stats
from pytest_gpuperf.config import Lock, Plan
from pytest_gpuperf.errors import ConfigError, MeasureError
from pytest_gpuperf.measure.observers import MeasuredCall, Observations, Observers
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.record import BoundClass, Kind, Record, RecordKey
from pytest_gpuperf.model.sample import CacheMode, Source, Unmeasured

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpuperf.collect.base import DeviceTimer, TakeTurn, TimedCall, Timing
    from pytest_gpuperf.collect.runtime import DeviceRuntime
    from pytest_gpuperf.collect.step_profile import StepRecorder
    from pytest_gpuperf.measure.assemble import EndLoop
    from pytest_gpuperf.measure.references import References
    from pytest_gpuperf.measure.site import Machine, Site
    from pytest_gpuperf.measure.turns import TurnClient, Turns
    from pytest_gpuperf.model.scorecard import Hardware
    from pytest_gpuperf.model.work import Work

__all__ = ["CounterSource", "TimingMeasurer"]

# docs/judging.md section 5: half-width of the median's interval
_DEVICE_PRECISION = 0.005
# section 3: of one process of a block, whose four share the budget of 1 s. On a quiet machine
# half of their samples is enough; a busy one interrupts most, and the budget ends it: there
# half of it would raise the variance of a block's difference by 1.2 to 1.5
_BLOCK_ENOUGH_S = 0.1


# told of a measurement how many rounds of slow calls follow, and how long one takes [s]
Expect: TypeAlias = "Callable[[RecordKey, int, float], object]"


class CounterSource(Protocol):
    """The hardware counters of tests, wherever they are counted."""

    def joined(
        self,
        record: Record,
        plan: Plan,
        call: MeasuredCall | None = None,
        *,
        work: Work | None,
        facts: Mapping[str, str],
    ) -> Record:
        """
        Return a record with its counters, or why it has none.

        Args:
            record: What was measured.

            plan: What its test asks for.

            call: The call that was measured; None: it was a block or a loop.

            work: What one call has to do.

            facts: Hard facts of this process.
        """


class _MedianKnown:
    """Enough is a narrow interval of the median; a device's times are the steadier."""

    def __init__(self, runtime: DeviceRuntime) -> None:
        self._runtime = runtime

    def enough(self, values: Sequence[float]) -> bool:
        """Return whether more samples would add nothing."""
        half_width = stats.half_width_fraction(values)
        in_use = self._runtime.active()
        precision = _DEVICE_PRECISION if in_use else HOST_PRECISION
        return half_width is not None and half_width <= precision


class TimingMeasurer:
    """
    Measures for one process of a run.

    Args:
        site: What the process has.

        machine: What it computes with.

        observers: Who looks at the device meanwhile.

        turn_client: Asks for turns; None: this process waits for no other.

    Attributes:
        counters: Those of the tests, set before they run; None: no test asks for any.
    """

    def __init__(
        self,
        site: Site,
        machine: Machine,
        observers: Observers,
        *,
        turn_client: TurnClient | None = None,
    ) -> None:
        self.observers = observers
        self.counters: CounterSource | None = None
        self._turn_client = turn_client
        self._take_turn: TakeTurn = (
            operator.not_ if turn_client is None else turn_client.take_turn
        )
        self._site = site
        self._machine = machine
        self._stop = _MedianKnown(site.runtime)
        self._closing = contextlib.ExitStack()
        self._expect: Expect = lambda *_: None
        self._key: RecordKey | None = None  # what is measured now
        self._collector: HostCollector | None = None
        self._timers: tuple[DeviceTimer, ...] = ()  # those of `_collector`

    @property
    def in_block(self) -> bool:
        """Whether this process is one of a block of a comparison."""
        return self._turn_client is not None

    @property
    def _host(self) -> HostCollector:
        """The collector of times: the host's, and the device's beside them."""
        timers = self.observers.timers
        if self._collector is None or self._timers is not timers:
            self._timers = timers
            self._collector = HostCollector(
                self._site.clock,
                self._site.runtime,
                timers,
                sm_clock_hz=self.observers.sm_clock_hz,
                take_turn=self._take_turn,
                expect=self._expected,
            )
        return self._collector

    def _enough_s(self, plan: Plan) -> float:
        """
        Return which time in samples is enough of a test [s].

        Where blocks decide, and no limit or store needs a precise value, the user's own
        run does not take longer than they do.
        """
        config = self._site.config
        judges = config.baseline_named or config.update is not None
        judges = judges or bool(plan.limits) or plan.min_grade is not None
        is_shown = config.against is not None and not judges
        return _BLOCK_ENOUGH_S if self.in_block or is_shown else math.inf

    def tell(
        self, expect: Expect, *, sampled: Callable[[], object] | None = None
    ) -> None:
        """
        Tell how far measurements are; nothing may be measured yet.

        Args:
            expect: Called before slow calls are repeated.

            sampled: Called before each sample; None: nobody looks on.
        """
        self._expect = expect
        if sampled is None:
            return
        take_turn = self._take_turn

        def take_turn_told(enough: bool) -> bool:  # noqa: FBT001 - as TakeTurn has it
            sampled()
            return take_turn(enough)

        self._take_turn = take_turn_told

    def _expected(self, count: int, round_s: float) -> None:
        """Tell how often slow calls are going to be repeated."""
        if self._key is not None:
            # once more to observe the device, when they have been timed
            self._expect(self._key, count + self._site.runtime.active(), round_s)

    @functools.cached_property
    def turns(self) -> Turns | None:
        """The turns that tests take on the GPU; None: they take none."""
        if self._site.config.lock is Lock.OFF or self._site.device() is None:
            return None
        from pytest_gpuperf.measure.turns import Turns

        turns = Turns(self._site, in_block=self.in_block)
        self._closing.callback(turns.close)
        return turns

    @functools.cached_property
    def references(self) -> References | None:
        """The reference workloads of this process; None: it was asked to time nothing."""
        collectors = self._site.config.collectors
        if collectors and frozenset((Source.HOST, *DEVICE_TIMERS)).isdisjoint(
            collectors
        ):
            return None
        # who measures nothing does not load it
        from pytest_gpuperf.collect.disk import DiskFile
        from pytest_gpuperf.measure.references import References

        clock = self._site.clock
        counts_blocks = clock.blocks_count() is not None
        disk = DiskFile() if counts_blocks else None  # else no test is known to use one
        if disk is not None:
            self._closing.callback(disk.close)
        return References(clock, turn_client=self._turn_client, disk=disk)

    def lacking(self, requires: Sequence[str]) -> Unmeasured | None:
        """Return what a test requires and this process does not have; None: nothing."""
        if self.turns is not None and self.turns.refusal is not None:
            return self.turns.refusal
        if Source.CUPTI in requires:
            _ = self.observers.activity  # who holds CUPTI shows when it is opened
        return self._site.lacking(requires)

    def ensure(self) -> None:
        """Refuse to measure where something that was asked for by name is not possible."""
        if self.turns is not None:
            self.turns.ensure()
        site = self._site
        if frozenset(DEVICE_COLLECTORS).isdisjoint(site.config.collectors):
            return
        _ = self._host  # opens what looks at the device
        for name in site.config.collectors:
            if name in site.lost:
                absence = site.lost[name]
                message = (
                    f"collector {name} was asked for and refuses: {absence.reason}"
                )
                raise ConfigError(message, remedy=absence.remedy)

    def rest(self) -> None:
        """Release CUPTI until something is measured: a test may use a profiler."""
        self.observers.rest()

    def close(self) -> None:
        """Close what was opened to observe the device."""
        self.observers.close()
        self._closing.close()

    def timed(
        self,
        key: RecordKey,
        request: TimedCall,
        *,
        plan: Plan,
        work: Work | None = None,
    ) -> tuple[Record, Callable[[], object]]:
        """Return the record of a function, and how to get what it returned."""
        self._key = key
        with self._measuring(key):
            with self.observers.sensing() as observations:
                timing = self._host.measure(
                    request, stop=self._stop, enough_s=self._enough_s(plan)
                )
            self._wait_for_samples()
            declared = work or plan.work
            use_unknown = self._use_unknown(declared, timing, plan, request)
            call = MeasuredCall(request, timing, observations)
            record = self._measured(
                key, call, plan=plan, work=declared, use_unknown=use_unknown
            )
        return record, lambda: timing.result

    @contextlib.contextmanager
    def ranged(self, key: RecordKey, *, plan: Plan) -> Iterator[Callable[[], Record]]:
        """Measure a block; what is yielded returns its record once it has ended."""

        def ended() -> Record:
            timing = _timing_of(timer)
            use_unknown = self._use_unknown(plan.work, timing, plan)
            record = self._machine.maker().timed(
                key, timing, kind=Kind.RANGE, work=plan.work, use_unknown=use_unknown
            )
            self._note_disk(record)
            record = self._with_observations(record, observations, timing)
            return self._with_counters(record, plan, plan.work)

        host = self._host  # opens what looks, before anything is looked at
        with (
            self._measuring(key),
            self.observers.watching() as observations,
            host.measure_range() as timer,
        ):
            observations.begins()
            yield ended
            observations.returned()

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

        def ended(failure: BaseException | None) -> tuple[Record, Hardware | None]:
            with sensors:
                loop = recorder.end(failure)
            record, ran_on = self._machine.loop_record(
                key, loop, work=declared, hardware=hardware
            )
            record = self._with_observations(record, observations)
            return self._with_counters(record, plan, declared), ran_on

        with contextlib.ExitStack() as opened:
            opened.enter_context(self._measuring(key))
            observations = opened.enter_context(self.observers.sensing())
            recorder.begin(self._take_turn)
            sensors = opened.pop_all()
        return ended

    def compared(
        self, key: RecordKey, requests: tuple[TimedCall, TimedCall], *, plan: Plan
    ) -> tuple[Record, Record, Record]:
        """Return the records of a comparison and of its two sides."""
        self._key = key
        with self._measuring(key):
            with self.observers.sensing() as observations:
                timings = [
                    *self._host.interleave(
                        *requests, stop=self._stop, enough_s=self._enough_s(plan)
                    )
                ]
            self._wait_for_samples()
            return self._compared(key, requests, timings, observations, plan=plan)

    def _measuring(self, key: RecordKey) -> contextlib.AbstractContextManager[None]:
        """Return a context in which this process has the turn; without turns, an empty one."""
        if self.references is not None:
            self.references.before_measuring()
        if self._turn_client is None:
            return contextlib.nullcontext()
        return self._turn_client.measuring(key.name)

    def _wait_for_samples(self) -> None:
        """Wait until others have their samples too: what follows would disturb them."""
        if self._turn_client is not None:
            self._turn_client.alone()

    def _compared(
        self,
        key: RecordKey,
        requests: tuple[TimedCall, TimedCall],
        timings: Sequence[Timing],
        observations: Observations,
        *,
        plan: Plan,
    ) -> tuple[Record, Record, Record]:
        """Return the records of two functions that were timed by turns."""
        unknowns = [
            self._use_unknown(plan.work, timing, plan, request)
            for timing, request in zip(timings, requests, strict=True)
        ]
        # nobody asks for their results, which must not take room beside the next
        timings = [replace(timing, result=None) for timing in timings]
        pair = self._machine.maker().compared(key, *timings)
        pair = self._with_observations(pair, observations, timings[0])
        a, b = (
            self._measured(
                side,
                # the time of both is not a side's own
                MeasuredCall(request, timing, replace(observations, span=None)),
                plan=plan,
                work=plan.work,
                use_unknown=unknown,
            )
            for side, request, timing, unknown in zip(
                key.sides, requests, timings, unknowns, strict=True
            )
        )
        return pair, a, b

    def _measured(
        self,
        key: RecordKey,
        call: MeasuredCall,
        *,
        plan: Plan,
        work: Work | None,
        use_unknown: bool,
    ) -> Record:
        """Return the record of a function that was timed."""
        request, timing, observations = call
        # the timed call's result is the one that `check` has seen
        self.observers.call(
            request, observations, result_kept=timing.result is not None
        )
        self.observers.second_pass(request, observations, plan.judged)
        record = self._machine.maker().timed(
            key, timing, kind=Kind.MEASURE, work=work, use_unknown=use_unknown
        )
        self._note_disk(record)
        record = self._with_observations(record, observations, timing)
        return self._with_counters(record, plan, work, call)

    def _note_disk(self, record: Record) -> None:
        """Ask for reference workloads of the disk after the test if it waits for one."""
        if record.bound_class is BoundClass.DISK and self.references is not None:
            self.references.note_disk()

    def _use_unknown(
        self,
        work: Work | None,
        timing: Timing,
        plan: Plan,
        request: TimedCall | None = None,
    ) -> bool:
        """Return whether it is unknown if declared work was done on the device."""
        if work is None or not self._site.runtime.active():
            return False
        needs = (*plan.requires, *plan.counters)
        return not use_is_known(timing, needs, request)

    def _with_observations(
        self, record: Record, observations: Observations, timing: Timing | None = None
    ) -> Record:
        """Return a record with what was seen of the same measurement."""
        if not observations.device_used:
            return record
        from pytest_gpuperf.measure.observations import with_observations

        users = (
            None if self.turns is None else self.turns.other_users(observations.deltas)
        )
        if users is not None:
            observations.deltas = users.deltas
        elif self._turn_client is not None:
            from pytest_gpuperf.measure.turns import without_siblings

            observations.deltas = without_siblings(observations.deltas)
        cache_mode = CacheMode.UNTOUCHED if timing is None else timing.cache_mode
        facts = {**self._machine.maker().facts, "cache_mode": cache_mode}
        strict = self._site.config.strict
        record = with_observations(record, observations, facts=facts, strict=strict)
        record = self._site.keep_trace(record, observations.trace)
        void = record.void or self._machine.misplaced()
        if users is None:
            return replace(record, void=void)
        notes = (*record.notes, *users.notes)
        return replace(record, void=void or users.void, notes=notes)

    def _with_counters(
        self,
        record: Record,
        plan: Plan,
        work: Work | None,
        call: MeasuredCall | None = None,
    ) -> Record:
        """Return a record with the counters of the same call, where some are wanted."""
        if self.counters is None:
            return record
        facts = self._machine.maker().facts
        record = self.counters.joined(record, plan, call, work=work, facts=facts)
        with_value = {estimate.metric for estimate in record.estimates}
        gaps = tuple(gap for gap in record.unmeasured if gap.metric not in with_value)
        return replace(record, unmeasured=gaps)


def _timing_of(timer: RangeTimer) -> Timing:
    """Return what a block gave."""
    if timer.timing is None:
        raise MeasureError(
            "the block has not ended", remedy="read its values after the with block"
        )
    return timer.timing
