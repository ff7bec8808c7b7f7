"""Measuring the calls, blocks and loops of a test: time, and the values seen by observers.

Modules that only some measurements need are imported by the functions that use them, so
that a run of plain calls starts sooner.
"""

from __future__ import annotations

import contextlib
import functools
import math
import operator
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

from pytest_gpuperf.collect.registry import DEVICE_COLLECTORS, DEVICE_TIMERS
from pytest_gpuperf.collect.timing.elsewhere import Elsewhere
from pytest_gpuperf.collect.timing.host import HostCollector
from pytest_gpuperf.collect.timing.imported import ImportedData
from pytest_gpuperf.collect.timing.readings import HOST_PRECISION, use_is_known
from pytest_gpuperf.compute import stats
from pytest_gpuperf.config import Lock, Plan
from pytest_gpuperf.errors import ConfigError, MeasureError
from pytest_gpuperf.measure.observers import MeasuredCall, Observations, Observers
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.record import BoundClass, Kind, Record, RecordKey
from pytest_gpuperf.model.sample import CacheMode, Source, Unmeasured

if TYPE_CHECKING:
    from pytest_gpuperf.collect.base import DeviceTimer, TakeTurn, TimedCall, Timing
    from pytest_gpuperf.collect.gpu_workloads import CudaWorkloads
    from pytest_gpuperf.collect.runtime import DeviceRuntime
    from pytest_gpuperf.collect.step_profile import StepRecorder
    from pytest_gpuperf.measure.assemble import EndLoop
    from pytest_gpuperf.measure.counters import CuptiCounters, NcuCounters
    from pytest_gpuperf.measure.references import References
    from pytest_gpuperf.measure.site import Machine, Site
    from pytest_gpuperf.measure.turns import TurnClient, Turns
    from pytest_gpuperf.model.scorecard import Hardware
    from pytest_gpuperf.model.work import Work

# Half-width of the median's interval (docs/judging.md section 5).
_DEVICE_PRECISION = 0.005
# Sampling time of one process of a block, whose four processes share the budget of 1 s
# (section 3). On a quiet machine half of the samples is enough. A busy machine
# interrupts most samples, and the budget ends the measurement. Half the budget would
# then raise the variance of a block's difference by 1.2 to 1.5.
_BLOCK_ENOUGH_S = 0.1


# Receives the key of a measurement, the number of rounds of slow calls that follow, and
# the time of one round [s].
Expect: TypeAlias = "Callable[[RecordKey, int, float], object]"


class _MedianKnown:
    """
    Stop rule: sample until the interval of the median is narrow.

    Device times must be more precise than host times.
    """

    def __init__(self, runtime: DeviceRuntime) -> None:
        self._runtime = runtime

    def enough(self, values: Sequence[float]) -> bool:
        """Return True if the interval of the median is narrow enough."""
        in_use = self._runtime.active()
        return stats.is_known(values, _DEVICE_PRECISION if in_use else HOST_PRECISION)


class TimingMeasurer:
    """
    Measures for one process of a run.

    Args:
        site: Configuration, clock and devices of the process.

        machine: The devices that the process computes with.

        observers: The observers of the device.

        turn_client: Connection to the turn server, or None to measure without turns.

        has_references: Whether reference workloads are timed with the tests.

    Attributes:
        counters: The counters of the tests, set before they run, or None if no test needs
            any.

        imported: The data of test modules, kept before the first test runs.
    """

    def __init__(
        self,
        site: Site,
        machine: Machine,
        observers: Observers,
        *,
        turn_client: TurnClient | None = None,
        has_references: bool = True,
    ) -> None:
        self.observers = observers
        self.counters: NcuCounters | CuptiCounters | None = None
        self.imported = ImportedData()
        self._has_references = has_references
        self._turn_client = turn_client
        self._take_turn: TakeTurn = (
            operator.not_ if turn_client is None else turn_client.take_turn
        )
        self._site = site
        self._machine = machine
        self._stop = _MedianKnown(site.runtime)
        self._closing = contextlib.ExitStack()
        self._expect: Expect = lambda *_: None
        # The current measurement.
        self._key: RecordKey | None = None
        self._collector: HostCollector | None = None
        # The timers of `_collector`.
        self._timers: tuple[DeviceTimer, ...] = ()

    @property
    def in_block(self) -> bool:
        """True if the process belongs to a block of a comparison."""
        return self._turn_client is not None

    @property
    def _host(self) -> HostCollector:
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
                imported=self.imported,
            )
        return self._collector

    def _enough_s(self, plan: Plan) -> float:
        """
        Return the total sampling time that is enough for a test [s].

        If blocks decide, and no limit or store needs a precise value, the user's own run
        takes no longer than the blocks.
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
        Set the callbacks for progress. Must be called before anything is measured.

        Args:
            expect: Called before slow calls are repeated.

            sampled: Called before each sample, or None.
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
        if self._key is not None:
            # One more call observes the device, after the timed calls.
            self._expect(self._key, count + self._site.runtime.active(), round_s)

    @functools.cached_property
    def turns(self) -> Turns | None:
        """Turn-taking on the GPU, or None if tests do not wait for a turn."""
        if self._site.config.lock is Lock.OFF or self._site.device() is None:
            return None
        from pytest_gpuperf.measure.turns import Turns

        turns = Turns(self._site, in_block=self.in_block)
        self._closing.callback(turns.close)
        return turns

    @functools.cached_property
    def references(self) -> References | None:
        """The reference workloads, or None if they are not needed or nothing is timed."""
        if not self._has_references:
            return None
        collectors = self._site.config.collectors
        if collectors and frozenset((Source.HOST, *DEVICE_TIMERS)).isdisjoint(
            collectors
        ):
            return None
        # Imported here because processes without measurements do not need it.
        from pytest_gpuperf.collect.disk import DiskFile
        from pytest_gpuperf.collect.environment import workers_count
        from pytest_gpuperf.measure.references import References

        clock = self._site.clock
        counts_blocks = clock.blocks_count() is not None
        # Without a count of blocks, the use of a disk cannot be detected.
        disk = DiskFile() if counts_blocks else None
        if disk is not None:
            self._closing.callback(disk.close)
        return References(
            clock,
            turn_client=self._turn_client,
            disk=disk,
            gpu=self._gpu(),
            workers_count=workers_count(),
        )

    def _gpu(self) -> CudaWorkloads | None:
        """Return the GPU of reference workloads, or None without CUDA or its events."""
        site = self._site
        collectors = site.config.collectors
        is_asked = not collectors or any(name in collectors for name in DEVICE_TIMERS)
        if not is_asked or site.device() is None or site.devices.confidential:
            return None
        from pytest_gpuperf.collect.gpu_workloads import CudaWorkloads
        from pytest_gpuperf.collect.runtime import driver_library

        return CudaWorkloads(driver_library())

    def lacking(self, requires: Sequence[str]) -> Unmeasured | None:
        """Return the reason why a test cannot be measured in the process, or None."""
        if self.turns is not None and self.turns.refusal is not None:
            return self.turns.refusal
        if Source.CUPTI in requires:
            # Opening CUPTI shows if another process holds it.
            _ = self.observers.activity
        return self._site.lacking(requires)

    def ensure(self) -> None:
        """
        Check that everything requested by name can be used.

        Raises:
            DeviceHeldError: Another process kept the GPU until the lock timed out.

            ConfigError: A collector or lock requested by name cannot be used. Falling back
                or skipping would let a run without a single value pass.
        """
        if self.turns is not None:
            self.turns.ensure()
        site = self._site
        if frozenset(DEVICE_COLLECTORS).isdisjoint(site.config.collectors):
            return
        # Opens the observers of the device.
        _ = self._host
        for name in site.config.collectors:
            if name in site.lost:
                absence = site.lost[name]
                message = f"collector {name} cannot be used: {absence.reason}"
                raise ConfigError(message, remedy=absence.remedy)

    def rest(self) -> None:
        """Release CUPTI until the next measurement, so that a test can use a profiler."""
        self.observers.rest()

    def close(self) -> None:
        """Close everything opened for measuring."""
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
        """
        Time a function.

        Returns:
            The record, and a callable that returns the function's result.
        """
        self._key = key
        if self._turn_client is None:
            if self.references is not None:
                self.references.before_measuring()
            record, timing = self._timed(key, request, plan, work or plan.work)
        else:
            with self._measuring(key):
                record, timing = self._timed(key, request, plan, work or plan.work)
        if plan.accept:
            record = _accepted(record, plan)
        return record, lambda: timing.result

    def _timed(
        self, key: RecordKey, request: TimedCall, plan: Plan, work: Work | None
    ) -> tuple[Record, Timing]:
        observations = self.observers.begin()
        try:
            timing = self._host.measure(
                request, stop=self._stop, enough_s=self._enough_s(plan)
            )
        finally:
            self.observers.end(observations)
        if self._turn_client is not None:
            # Waits until all processes have their samples, to avoid disturbing them.
            self._turn_client.alone()
        use_unknown = work is not None and self._use_unknown(
            work, timing, plan, request
        )
        call = MeasuredCall(request, timing, observations)
        record = self._measured(
            key, call, plan=plan, work=work, use_unknown=use_unknown
        )
        return record, timing

    @contextlib.contextmanager
    def ranged(self, key: RecordKey, *, plan: Plan) -> Iterator[Callable[[], Record]]:
        """
        Measure a block.

        Yields:
            A callable that returns the record after the block has ended.
        """

        def ended() -> Record:
            timing = timer.timing
            if timing is None:
                message = "the block has not ended"
                remedy = "read its values after the with block"
                raise MeasureError(message, remedy=remedy)
            use_unknown = self._use_unknown(plan.work, timing, plan)
            record = self._machine.maker().timed(
                key, timing, kind=Kind.RANGE, work=plan.work, use_unknown=use_unknown
            )
            self._note_use(record)
            record = self._with_observations(record, observations, timing)
            return _accepted(self._with_counters(record, plan, plan.work), plan)

        # Opens the observers before the measurement.
        host = self._host
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
        """
        Start recording a loop.

        Returns:
            A callable that ends the loop and returns the record and the hardware.
        """
        declared = work or plan.work
        elsewhere = Elsewhere(self._site.clock)

        def ended(failure: BaseException | None) -> tuple[Record, Hardware | None]:
            with sensors:
                loop = recorder.end(failure)
            left = elsewhere.left()
            record, ran_on = self._machine.loop_record(
                key, loop, work=declared, hardware=hardware
            )
            record = replace(record, notes=(*record.notes, *left))
            record = self._with_observations(record, observations)
            record = self._with_counters(record, plan, declared)
            return _accepted(record, plan), ran_on

        with contextlib.ExitStack() as opened:
            opened.enter_context(self._measuring(key))
            observations = opened.enter_context(self.observers.sensing())
            recorder.begin(self._take_turn)
            sensors = opened.pop_all()
        return ended

    def compared(
        self, key: RecordKey, requests: tuple[TimedCall, TimedCall], *, plan: Plan
    ) -> tuple[Record, Record, Record]:
        """
        Compare two functions.

        Returns:
            The records of the comparison, of the first function and of the second.
        """
        # Few tests compare two functions.
        from pytest_gpuperf.collect.timing.differences import differing

        self._key = key
        with self._measuring(key):
            with self.observers.sensing() as observations:
                timings = [
                    *self._host.interleave(
                        *requests, stop=self._stop, enough_s=self._enough_s(plan)
                    )
                ]
            if self._turn_client is not None:
                self._turn_client.alone()
            unknowns = [
                self._use_unknown(plan.work, timing, plan, request)
                for timing, request in zip(timings, requests, strict=True)
            ]
            differences = differing(requests, timings)
            # The results are not needed, and must not occupy memory during the next call.
            timings = [replace(timing, result=None) for timing in timings]
            pair = self._machine.maker().compared(key, *timings)
            pair = self._with_observations(pair, observations, timings[0])
            pair = replace(pair, notes=(*pair.notes, *differences))
            a, b = (
                self._measured(
                    side,
                    # The time line covers both sides, not a single one.
                    MeasuredCall(request, timing, replace(observations, span=None)),
                    plan=plan,
                    work=plan.work,
                    use_unknown=unknown,
                )
                for side, request, timing, unknown in zip(
                    key.sides, requests, timings, unknowns, strict=True
                )
            )
            return _accepted(pair, plan), _accepted(a, plan), _accepted(b, plan)

    def _measuring(self, key: RecordKey) -> contextlib.AbstractContextManager[None]:
        """
        Return a context that holds the turn of the process.

        Without turns, the context is empty.
        """
        if self.references is not None:
            self.references.before_measuring()
        if self._turn_client is None:
            return contextlib.nullcontext()
        return self._turn_client.measuring(key.name)

    def _measured(
        self,
        key: RecordKey,
        call: MeasuredCall,
        *,
        plan: Plan,
        work: Work | None,
        use_unknown: bool,
    ) -> Record:
        request, timing, observations = call
        in_use, judged, fn = observations.device_used, plan.judged, request.fn
        if in_use:
            # `check` has seen the result of the timed call.
            self.observers.call(
                request, observations, result_kept=timing.result is not None
            )
            self.observers.second_pass(request, observations, judged)
        record = self._machine.maker(in_use=in_use).timed(
            key,
            timing,
            kind=Kind.MEASURE,
            work=work,
            use_unknown=use_unknown,
            judged=judged,
            function=getattr(fn, "__qualname__", type(fn).__qualname__),
        )
        if in_use or record.bound_class is BoundClass.DISK:
            self._note_use(record)
        if in_use:
            record = self._with_observations(record, observations, timing)
        if self.counters is None:
            return record
        return self._with_counters(record, plan, work, call)

    def _note_use(self, record: Record) -> None:
        if self.references is None:
            return
        if record.bound_class is BoundClass.DISK:
            self.references.note_disk()
        if any(each.source in DEVICE_TIMERS for each in record.estimates):
            self.references.note_gpu()

    def _use_unknown(
        self,
        work: Work | None,
        timing: Timing,
        plan: Plan,
        request: TimedCall | None = None,
    ) -> bool:
        """Return True if declared work may or may not have been done on the device."""
        if work is None or not self._site.runtime.active():
            return False
        needs = (*plan.requires, *plan.counters)
        return not use_is_known(timing, needs, request)

    def _with_observations(
        self, record: Record, observations: Observations, timing: Timing | None = None
    ) -> Record:
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
        record = self._with_code(record)
        void = record.void or self._machine.misplaced()
        if users is None:
            return replace(record, void=void)
        notes = (*record.notes, *users.notes)
        return replace(record, void=void or users.void, notes=notes)

    def _with_code(self, record: Record) -> Record:
        """Add the digest of the machine code, if that of all kernels is at hand."""
        activity = record.activity
        loaded = self.observers.loaded_code
        # Most programs load no compiler, and no code after CUPTI was opened.
        if activity is None or not (loaded or "triton" in sys.modules):
            return record
        if activity.choice is None or len(activity.kernels) < activity.kernels_count:
            return record
        from pytest_gpuperf.collect.binary.compiled import launched_identity

        shapes = [use.shape for use in activity.kernels]
        identity = launched_identity(shapes, runner=self._site.runner, loaded=loaded)
        digest = None if identity is None else str(identity)
        return replace(record, code_digest=digest)

    def _with_counters(
        self,
        record: Record,
        plan: Plan,
        work: Work | None,
        call: MeasuredCall | None = None,
    ) -> Record:
        if self.counters is None:
            return record
        facts = self._machine.maker().facts
        record = self.counters.joined(record, plan, call, work=work, facts=facts)
        with_value = {estimate.metric for estimate in record.estimates}
        gaps = tuple(gap for gap in record.unmeasured if gap.metric not in with_value)
        return replace(record, unmeasured=gaps)


def _accepted(record: Record, plan: Plan) -> Record:
    """Return the record without the doubts that the test accepts. Their notes stay."""
    if not plan.accept:
        return record
    notes = (
        replace(note, doubt=note.doubt and note.code not in plan.accept)
        for note in record.notes
    )
    return replace(record, notes=tuple(notes))
