"""Take one callable through a measurement: warm-up, batch, samples."""

from __future__ import annotations

import gc
import os
import statistics
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import repeat
from math import ceil, inf
from operator import attrgetter, is_not, itemgetter

from pytest_gpuperf.collect.base import (
    Garbage,
    TimedCall,
    Timing,
    calls,
    calls_the_test,
    settle,
    unsettled,
)
from pytest_gpuperf.collect.clock import NS_PER_S, Clock, CoreLoop, SystemClock
from pytest_gpuperf.collect.environment import has_several_ranks
from pytest_gpuperf.collect.runtime import DeviceRuntime, wait_for_all
from pytest_gpuperf.collect.timing.contention import CoreContention
from pytest_gpuperf.collect.timing.contract import (
    Contract,
    refuse_function,
    refuse_result,
)
from pytest_gpuperf.collect.timing.doubts import Doubts
from pytest_gpuperf.collect.timing.imported import ImportedData
from pytest_gpuperf.collect.timing.originals import Originals
from pytest_gpuperf.collect.timing.presence import (
    SEVERAL_THREADS,
    ThreadPresence,
    notes_of_waits,
    waited,
)
from pytest_gpuperf.collect.timing.readings import (
    RUNNING_FRACTION,
    CountedSamples,
    Reading,
    Timers,
    median_clock_hz,
    resolution_of,
    tracer_notes,
)
from pytest_gpuperf.collect.timing.results import has_finalizer
from pytest_gpuperf.collect.timing.same_work import (
    Argument,
    SameWork,
    SingleCalls,
    compare_work,
)
from pytest_gpuperf.errors import MeasureError
from pytest_gpuperf.model.frozen import Frozen, replace
from pytest_gpuperf.model.record import HOLDS_LAUNCH, Note, Void, VoidCode
from pytest_gpuperf.model.sample import CacheMode, Source

# A first call this long is warm-up enough (docs/judging.md section 5).
SLOW_S = 1.0
# Graph trees need warm-up, record and replay (docs/judging.md section 5).
_WARMUP_LEAST = 4
# Consecutive calls that must have times of the same order of magnitude.
_WARMUP_ALIKE = 3
# A compilation or a first touch takes more than twice as long as a usual call.
_ALIKE_RATIO = 2
# Samples that may still show that only the first calls were slow. CUDA graph trees
# record in the second call, and replay in the third.
_TRIALS = 2
# The median of fewer samples has no 99 % interval.
_INTERVAL_LEAST = 8
# Half the range of few samples over their median.
_WIDE = 0.1
# A sample this long loses at most 1 % to the clock.
SAMPLE_RESOLUTIONS = 100
# Each try grows the batch up to 110 times, which is enough for the shortest call.
_BATCH_TRIES = 3
# The first guess is made from single calls, which the clock lengthens.
_BATCH_MARGIN = 1.1
# Fraction of the shortest good sample. A batch may come out a little short of it.
_SHORT = 0.5
# New threads of OpenBLAS spin for 2^26 cycles, 30 ms.
_THREADS_REST_NS = 50_000_000
# A single clock tick hardly distorts this much processor time.
_THREADS_LOOK_NS = 10_000_000
# Changed arguments of longer calls are not put back, because the calls on them would
# take longer than the samples (docs/judging.md section 5).
_MOST_COMPARED_S = 1.0
# Of a shorter time by events, the host's launch may be a large part (8 to 27 us on an
# H200). A smaller share than this is within what sessions differ by.
_HOLDS_LAUNCH_S, _HOLDS_LAUNCH_SHARE = 1e-4, 0.1
# A smaller part is within what sessions differ by. A larger one than the call is a doubt.
_GARBAGE_SHARE = 0.05
# After a pause this long, a GeForce has lowered its clock, and raises it during the
# sample. The clock of an H200 stayed for 2 s.
_PAUSE_NS = 20_000_000
# A clock that moved by more than this during a sample is not that of the sample.
_CLOCK_MOVED = 0.05
# Getters, because each comprehension is a call.
_CORE_LOOP_S, _RETURNED_S = attrgetter("core_loop_s"), attrgetter("returned_s")
_WAITED, _WALL_S = attrgetter("waited"), attrgetter("wall_s")
_IS_KNOWN, _FIRST = partial(is_not, None), itemgetter(0)


class Instruments(Frozen, frozen=True, kw_only=True):
    """
    The clock, device and timers of one measurement, shared by its callables.

    Attributes:
        clock: The clock.

        now_ns: Its function that reads the time [ns].

        resolution_ns: The shortest time that the clock resolves [ns], > 0.

        sample_ns: The shortest sample that the clock does not distort [ns].

        cpu_clock_is_fine: Whether the clock of processor time resolves a single sample.

        runtime: The device runtime.

        timers: The device timers, in use as soon as the device is.

        core_loop: The loop that measures the speed of the core.

        originals: Copies of the arguments.

        imported: The data of test modules before the first test, or None if unknown.

        sweep: Collects garbage if it is due, and returns the time that it took [ns] and
            the number of collected objects. Never called in a sample.

        young_due: Number of young objects above which `sweep` may be due, or infinity
            if it never is.

        thresholds: The thresholds of garbage collection before the measurement.
    """

    clock: Clock
    now_ns: Callable[[], int]
    resolution_ns: int
    sample_ns: int
    cpu_clock_is_fine: bool
    runtime: DeviceRuntime
    timers: Timers
    core_loop: CoreLoop
    originals: Originals
    imported: ImportedData | None
    sweep: Callable[[], tuple[int, int]]
    young_due: float
    thresholds: tuple[int, int, int]


class _Batch(Frozen, frozen=True):
    """
    Clock readings of one batch of calls.

    Attributes:
        elapsed_ns: The time [ns].

        returned_ns: The time until the last call returned [ns], or None if there was no
            wait.

        cpu_ns: The thread's processor time [ns], or None if it was not read.

        loaded: Whether a module was loaded.
    """

    elapsed_ns: int
    returned_ns: int | None
    cpu_ns: int | None
    loaded: bool


class CallSampler:
    """
    Warm up one callable and take its samples.

    Args:
        request: The call to time.

        instruments: The clock, device and timers.

        paired: Whether the call is one of two that are compared.

    Attributes:
        readings: Accepted samples, in the order they were taken.

        discarded_count: Number of refused samples.

        first_call_s: Time of the very first call [s], or 0 before it.

        is_cold: Whether the last sample was dropped, because it is far shorter than the
            slow calls before it.

        on_device: Whether the call uses the device, which is then synchronized and
            timed.
    """

    def __init__(
        self, request: TimedCall, instruments: Instruments, *, paired: bool = False
    ) -> None:
        __tracebackhide__ = True
        refuse_function(request.fn)
        self.readings: list[Reading] = []
        self.discarded_count = 0
        self.first_call_s = 0.0
        self.is_cold = self.on_device = False
        self._request = request
        self._paired = paired
        self._instruments = instruments
        # A fixed number of calls leaves none for a call on the original content.
        fixed = request.iterations is not None
        self._contract = Contract(request, None if fixed else instruments.originals)
        self._doubts = (
            None
            if fixed
            else Doubts(
                request,
                instruments.clock,
                paired=paired,
                imported=instruments.imported,
            )
        )
        self._next_call = calls(request)
        self._synchronize: Callable[[], None] | None = None
        # The next sample whose result is checked, and the last one.
        self._check_at, self._checked_count = 1, 0
        # Time of collecting garbage and of dropping results, objects of garbage, and the
        # calls that left them.
        self._swept_ns = self._dropped_ns = self._swept_count = self._called_count = 0
        # The wait of the warm-up.
        self._watched: Callable[[], None] | None = None
        self._settle: Callable[[object], None] | None = settle
        self._flush: Callable[[], None] | None = None
        self._cache_mode = CacheMode.UNTOUCHED
        self._batch_count = 1
        self._warmup_count = 0
        self._trials_left = 0
        self._output: object = None
        # ThreadPresence of the thread during the warm-up.
        self._presence: ThreadPresence | None = None
        self._tells_interruptions = True
        # A sample that gave the processor up has waited.
        self._tells_waits = True
        # Count before the last batch.
        self._waits_before: int | None = None
        # The end of the last call on a device [ns], or 0 before it.
        self._ended_ns = 0
        # The SM clock before a sample after a pause [Hz], or None.
        self._clock_before_hz: float | None = None
        # None if the samples do not show the speed of the core.
        self._core_loop: CoreLoop | None = None
        # Counts before the first sample.
        self._waits_count: int | None = None
        self._blocks_count: int | None = None
        self._waiting_notes: tuple[Note, ...] = ()
        # Contention during the samples, or None if the calls use one thread.
        self._contention: CoreContention | None = None

    def warm_up(self) -> None:
        """
        Call until the order of magnitude of the time is known, then choose the batch.

        Three consecutive calls must load no module and launch the same sequence. If
        launches cannot be seen, about equal times are the criterion.

        After a first call of a second the samples begin at once. If they are far
        shorter, `is_cold` is set, and the warm-up goes on in `begin_anew`.
        """
        __tracebackhide__ = True
        instruments = self._instruments
        if self._doubts is not None:
            self._doubts.before_first()
        fixed_count = self._request.iterations
        # Only the first of a fixed number of calls may be a sample.
        before = None if fixed_count is None else ThreadPresence(instruments.clock)
        used_before = self._choose_device()
        batch = self._warm_call()
        elapsed_ns = batch.elapsed_ns
        # Wait for the work that the call has started.
        if self._choose_device() and not used_before:
            wait = instruments.runtime.synchronize
            elapsed_ns += _timed(wait, 0, instruments.now_ns)[0]
        if not unsettled(self._output):
            self._settle = None
        self.first_call_s = elapsed_ns / NS_PER_S
        refuse_result(self._request.fn, self._output)
        if self._doubts is not None:
            # References of the attribute and of the count itself.
            is_shared = sys.getrefcount(self._output) > 2  # noqa: PLR2004
            self._doubts.after_first(
                self.first_call_s,
                self._output if is_shared and not self.on_device else None,
                loaded=batch.loaded,
            )
        self._contract.very_first_output(self._output, on_device=self.on_device)
        may_count = fixed_count is not None and not (batch.loaded or self.on_device)
        self._presence = ThreadPresence(instruments.clock)
        if not self.is_slow:
            self._warm_up_further()
            return
        self._trials_left = _TRIALS
        # The first call is a sample, and shows whether calls wait.
        if may_count:
            self._warmup_count = 0
            self._presence = before
            self._note_presence(batch)
            self._end_warm_up()
            reading = self._reading_of(batch)
            if reading is not None:
                self.accept(reading)

    @property
    def is_slow(self) -> bool:
        """True if a long first call is warm-up enough, and no other rank counts calls."""
        fixed = self._request.iterations is not None
        return self.first_call_s >= SLOW_S and not (fixed and has_several_ranks())

    def forget_first_call(self) -> None:
        """Make the first call part of the warm-up again, outside of any pair of calls."""
        if self.readings:
            self.readings.clear()
            self._check_at, self._checked_count = 1, 0
            self._warmup_count = 1

    def begin_anew(self) -> None:
        """Turn the samples into warm-up calls, and continue the warm-up if the call is cold."""
        __tracebackhide__ = True
        self._warmup_count += self._batch_count * len(self.readings)
        self.readings.clear()
        self._check_at, self._checked_count = 1, 0
        self.discarded_count = 0
        if self.is_cold:
            self.is_cold, self._trials_left = False, 0
            self._presence = ThreadPresence(self._instruments.clock)
            self._tells_interruptions = True
            self._warm_up_further()

    def _warm_up_further(self) -> None:
        __tracebackhide__ = True
        request, instruments = self._request, self._instruments
        elapsed_ns = self._alike_ns()
        fixed = request.setup is not None or request.iterations is not None
        if not fixed and self._flush is None and self._settle is None:
            sample_ns = instruments.sample_ns
            # One batch serves all sources.
            if self.on_device:
                device_ns = SAMPLE_RESOLUTIONS * instruments.timers.resolution_ns
                sample_ns = max(sample_ns, device_ns)
            for _ in range(_BATCH_TRIES):
                if elapsed_ns >= sample_ns:
                    break
                known_ns = max(elapsed_ns, instruments.resolution_ns)
                growth = _BATCH_MARGIN * sample_ns / known_ns
                self._batch_count = ceil(self._batch_count * growth)
                # The shorter of two is used, because an interrupted call would look
                # long.
                trials = (self._warm_call(), self._warm_call())
                elapsed_ns = min(trial.elapsed_ns for trial in trials)
        self._end_warm_up()

    def _end_warm_up(self) -> None:
        __tracebackhide__ = True
        instruments, presence = self._instruments, self._presence
        if not self.on_device and presence is not None:
            # The wait for a device is part of every sample.
            self._waiting_notes = presence.notes(
                several_threads=self._several_threads_work(),
                fine=instruments.cpu_clock_is_fine,
            )
        self._tells_interruptions = not (self.on_device or self._waiting_notes)
        has_threads = SEVERAL_THREADS in self._waiting_notes
        self._contention = CoreContention(instruments.clock) if has_threads else None
        self._core_loop = instruments.core_loop if self._tells_interruptions else None
        self._waits_count = instruments.clock.waits_count()
        self._blocks_count = instruments.clock.blocks_count()
        # The first collection finds what was left before the measurement.
        self._swept_ns = self._dropped_ns = self._swept_count = self._called_count = 0
        if self._doubts is not None:
            self._doubts.begin()

    @property
    def waited(self) -> bool:
        """True if samples may have given the processor up by themselves."""
        clock, count = self._instruments.clock, len(self.readings)
        return waited(clock, self._waits_count, count)

    @property
    def barred(self) -> dict[str, Void]:
        """Reasons why sources cannot time the callable, by source name."""
        if self._settle is None:
            return {}
        reason = "the call returns before its work is in a stream (jax)"
        return {Source.EVENTS: Void(code=VoidCode.NO_STREAM, reason=reason)}

    def sample(self) -> Reading | None:
        """
        Take a sample.

        Returns:
            The reading, or None if the sample is refused because a module was loaded in
            it or the clock stood still, or if only the first call was slow.
        """
        __tracebackhide__ = True
        if self._trials_left:
            is_first = self._trials_left == _TRIALS
            self._trials_left -= 1
            if is_first and not self.on_device:
                self._core_loop = self._instruments.core_loop
            batch = self._observed() if is_first else self._take(self._synchronize)
            shortest_s = min(SLOW_S, self.first_call_s / _ALIKE_RATIO)
            reading = None
            # Only the first call was slow.
            if batch.elapsed_ns < shortest_s * NS_PER_S:
                self.is_cold = True
                self._warmup_count += 1
            else:
                if is_first:
                    self._end_warm_up()
                reading = self._reading_of(batch)
        else:
            reading = self._reading_of(self._take(self._synchronize))
        if self.on_device:
            timers = self._instruments.timers
            if reading is not None and timers.sm_clock_hz is not None:
                # Read at once, because the clock falls while the device is idle.
                reading.clock_hz = self._clock_of_sample(timers.sm_clock_hz())
            timers.took(reading)
        return reading

    def _clock_of_sample(self, after_hz: float | None) -> float | None:
        """Return the SM clock of a sample [Hz], or None if it moved during the sample."""
        before_hz = self._clock_before_hz
        if after_hz is None or before_hz is None:
            return after_hz
        moved = abs(after_hz - before_hz) > _CLOCK_MOVED * before_hz
        return None if moved else after_hz

    def _reading_of(self, batch: _Batch) -> Reading | None:
        """
        Return the reading of a batch, or None if a module was loaded or the clock stood
        still.
        """
        elapsed_ns, returned_ns = batch.elapsed_ns, batch.returned_ns
        if batch.loaded or elapsed_ns <= 0:
            return None
        cpu_ns = batch.cpu_ns if self._tells_interruptions else None
        if self._settle is None and not self.on_device:
            # The first call was waited for, in case its work was still going on.
            returned_ns = None
        lost = cpu_ns is not None and cpu_ns < RUNNING_FRACTION * elapsed_ns
        waited = lost and self._tells_waits and self._gave_up()
        total_ns = NS_PER_S * self._batch_count
        loop, core_loop_s = self._core_loop, None
        if loop is not None:
            # Nearly always the last time counts before and after the sample.
            core_loop_s = loop.last_s
            if core_loop_s is None or self._instruments.clock.now_ns() >= loop.due_ns:
                core_loop_s = loop.around_s()
        return Reading(
            wall_s=elapsed_ns / total_ns,
            returned_s=None if returned_ns is None else returned_ns / total_ns,
            calls_count=self._batch_count,
            interrupted=lost and not waited,
            waited=waited,
            cpu_s=None if cpu_ns is None else cpu_ns / total_ns,
            core_loop_s=core_loop_s,
        )

    def accept(self, reading: Reading) -> None:
        """Keep the last sample."""
        __tracebackhide__ = True
        self.readings.append(reading)
        if self._contention is not None:
            self._contention.look()
        count = len(self.readings)
        if count == self._check_at:
            if count == 1:
                self._contract.first_output(self._output)
            elif self._request.check is not None:
                self._contract.some_output(self._output)
            self._checked_count = count
            # The function cannot know which of its results are checked.
            self._check_at += 1 + int.from_bytes(os.urandom(8), "big") % count

    def look(self) -> None:
        """Find the changed arguments now, before calls of a second function change more."""
        self._contract.look()

    def timing(self, chosen: CountedSamples) -> Timing:
        """
        Return the timing, after a last check of the repetition contract.

        Args:
            chosen: The sources, and the samples that count.

        Raises:
            MeasureError: No sample counts.
        """
        __tracebackhide__ = True
        if not self.readings:
            message = "every sample loaded a module, or the clock stood still"
            raise MeasureError(message, remedy="import what it needs before measuring")
        if not chosen.places:
            message = "every sample was taken at an SM clock far below the median"
            raise MeasureError(message, remedy="let the GPU cool, or lock its clock")
        # Before anything else takes time, in which threads that were left could end.
        left = [] if self._doubts is None else self._doubts.left(self._called_count)
        if self._request.check is not None and len(self.readings) > self._checked_count:
            self._contract.last_output(self._output)
        best, *other_sources = chosen.sources
        samples = chosen.values(self.readings, best)
        void = self._contract.void(partial(self._compare, samples, chosen))
        used_device = self.on_device and not chosen.unused
        # A device compiles its kernels in the first call.
        alone_s = None if used_device else self.first_call_s
        notes = [*self._contract.notes(samples, self._output, alone_s), *left]
        used_up = bool(notes) and any(note.code == "used-up" for note in notes)
        if self._doubts is not None and void is None and not used_up:
            notes += self._doubtful(samples, chosen, self._doubts)
        counted = chosen.of(self.readings)
        traced = tracer_notes(self._instruments.clock)
        loops_s = tuple(map(_CORE_LOOP_S, counted))
        mostly_waits = 2 * sum(map(_WAITED, counted)) >= len(counted)
        has_loops = not (traced or mostly_waits or None in loops_s)
        waiting_notes = self._waiting_notes
        if mostly_waits and not (waiting_notes or self.on_device):
            waiting_notes = self._notes_of_waits(len(counted))
        return Timing(
            samples=samples,
            source=best,
            other_samples={
                name: chosen.values(self.readings, name) for name in other_sources
            }
            if other_sources
            else {},
            returned=tuple(filter(_IS_KNOWN, map(_RETURNED_S, counted))),
            iterations_count=self._batch_count,
            discarded_count=self.discarded_count + len(self.readings) - len(counted),
            first_call_s=self.first_call_s,
            warmup_count=self._warmup_count,
            cache_mode=self._cache_mode,
            result=self._output,
            core_loops_s=loops_s if has_loops else (),
            sm_clock_hz=median_clock_hz(counted) if used_device else None,
            unused=chosen.unused,
            garbage=None if self._paired else self._garbage(),
            notes=(
                *chosen.notes,
                *notes,
                *self._sample_notes(samples, best),
                *(() if _parts() == _AS_LOADED else (_REPLACED,)),
                *waiting_notes,
                *(() if self._contention is None else self._contention.notes()),
                *traced,
            ),
            void=void,
        )

    def single_s(
        self,
        next_call: Callable[[], Callable[[], object]],
        chosen: CountedSamples,
        prepare: Callable[[], object],
    ) -> float:
        """
        Return the time of a single call, taken as an extra sample [s], or infinity if
        refused.

        Args:
            next_call: Returns the function with its arguments.

            chosen: The sources of the samples.

            prepare: Called before the call, untimed.
        """
        __tracebackhide__ = True

        def prepared() -> Callable[[], object]:
            prepare()
            return next_call()

        self._next_call, self._batch_count = prepared, 1
        reading = self.sample()
        if reading is None:
            return inf
        if self.on_device:
            self._instruments.timers.collect()
        device_s = reading.device_s.get(chosen.sources[0])
        cpu_s = reading.cpu_s if chosen.by_cpu or reading.interrupted else None
        return device_s or cpu_s or reading.wall_s

    def _compare(
        self,
        samples: Sequence[float],
        chosen: CountedSamples,
        changed: Sequence[Argument],
    ) -> SameWork:
        __tracebackhide__ = True
        request, usual_s = self._request, statistics.median(samples)
        if request.iterations is not None or usual_s > _MOST_COMPARED_S:
            why = "iterations= fixes the number of calls"
            if request.iterations is None:
                why = f"a call takes more than {_MOST_COMPARED_S:.0f} s"
            reason = f"{why}, so none was made on the original content"
            return SameWork(same=False, reason=reason, called=False)
        pool = request.inputs or (None,)
        if len(pool) > 1:
            # Each entry may have a time of its own.
            usual_s = 0.0
        kept = self._begin_extra_calls()
        calls_count = self._batch_count
        try:
            return compare_work(
                changed,
                lambda entry: self._probe(
                    replace(request, inputs=request.inputs and (pool[entry],)),
                    chosen,
                    usual_s=usual_s,
                    calls_count=calls_count,
                ),
            )
        finally:
            self._output, self._batch_count = kept

    def _doubtful(
        self, samples: Sequence[float], chosen: CountedSamples, doubts: Doubts
    ) -> Iterator[Note]:
        __tracebackhide__ = True
        kept = self._begin_extra_calls()
        calls_count = self._batch_count
        try:
            yield from doubts.notes(
                self._output,
                samples,
                first_call_s=self.first_call_s,
                readings=self.readings,
                again=partial(self._sample_again, self._next_call, calls_count),
                garbage=self._garbage(),
                dropped_s=self._finalized_s(),
                calls_count=calls_count,
                interrupted=len(chosen.places) < len(self.readings) or chosen.by_cpu,
                probe_of=lambda request: self._probe(
                    request, chosen, usual_s=0.0, calls_count=calls_count
                ),
            )
        finally:
            self._output, self._batch_count = kept

    def _sample_again(
        self, next_call: Callable[[], Callable[[], object]], calls_count: int
    ) -> Reading | None:
        """Return a reading taken as the samples were, with equal inputs, after extra calls."""
        __tracebackhide__ = True
        pool = self._request.inputs
        if pool is not None and len(pool) > 1:
            next_call = calls(replace(self._request, inputs=pool[:1]))
        self._next_call, self._batch_count = next_call, calls_count
        reading = self.sample()
        if self.on_device:
            self._instruments.timers.collect()
        return reading

    def _notes_of_waits(self, samples_count: int) -> tuple[Note, ...]:
        calls_count = samples_count * self._batch_count
        clock = self._instruments.clock
        return notes_of_waits(clock, self._blocks_count, calls_count)

    def _finalized_s(self) -> float:
        """Return the time of finalizing a result [s], or 0 if it is only freed."""
        if not has_finalizer(self._output):
            return 0.0
        # A batch keeps its last result alone.
        count = max(1, self._called_count) / self._batch_count
        return self._dropped_ns / NS_PER_S / count

    def _probe(
        self,
        request: TimedCall,
        chosen: CountedSamples,
        *,
        usual_s: float,
        calls_count: int,
    ) -> SingleCalls:
        next_call = calls(request)
        return SingleCalls(
            partial(self.single_s, next_call, chosen),
            next_call,
            usual_s=usual_s,
            calls_count=1 if self.on_device else calls_count,
            now_ns=self._instruments.now_ns,
        )

    def _begin_extra_calls(self) -> tuple[object, int]:
        """Return the output and the batch of the samples, before calls that are no samples."""
        self._core_loop, self._trials_left = None, 0
        return self._output, self._batch_count

    def _warm_call(self) -> _Batch:
        __tracebackhide__ = True
        self._warmup_count += self._batch_count
        if self._synchronize is None:
            batch = self._take(None)
            self._note_presence(batch)
            return batch
        batch = self._observed()
        if self._watched is not None:
            self._instruments.timers.took(None)
        return batch

    def _observed(self) -> _Batch:
        __tracebackhide__ = True
        if self._synchronize is not None and self._watched is None:
            wait = partial(wait_for_all, self._instruments.runtime)
            self._watched = self._instruments.timers.watched(wait)
        batch = self._take(self._watched)
        self._note_presence(batch)
        return batch

    def _note_presence(self, batch: _Batch) -> None:
        """Note if the thread ran through a call. The first call is not counted."""
        if self._presence is None:
            return
        cpu_ns = batch.cpu_ns
        ran_through = (
            cpu_ns is not None and cpu_ns >= RUNNING_FRACTION * batch.elapsed_ns
        )
        self._presence.samples_count += 1
        self._presence.ran_through |= ran_through
        # One such call is enough, and each reading costs a system call.
        if ran_through:
            self._tells_interruptions = False
            # A thread that gives the processor up for a moment and runs on may be
            # interrupted as well.
            self._tells_waits = not self._gave_up()

    def _alike_ns(self) -> int:
        """Call until times agree or the budget is spent, and return the shortest time [ns]."""
        __tracebackhide__ = True
        request, instruments = self._request, self._instruments
        recent: deque[tuple[int, object]] = deque(maxlen=_WARMUP_ALIKE)
        spent_ns = 0
        while True:
            batch = self._warm_call()
            elapsed_ns = batch.elapsed_ns
            spent_ns += elapsed_ns
            if batch.loaded:
                recent.clear()
            else:
                # None if launches cannot be seen.
                sequence = instruments.timers.sequence() if self.on_device else None
                recent.append((elapsed_ns, sequence))
            if self._warmup_count < _WARMUP_LEAST:
                continue
            fixed = request.iterations is not None
            if fixed or self._alike(recent) or spent_ns >= request.budget_s * NS_PER_S:
                return min(map(_FIRST, recent), default=elapsed_ns)

    def _several_threads_work(self) -> bool:
        """
        Return True if other threads work during the calls.

        Calling continues while they do, because threads started by an import soon rest.
        """
        __tracebackhide__ = True
        now_ns, presence = self._instruments.clock.now_ns, self._presence
        if presence is None:
            return False
        end_ns = presence.begun_ns + _THREADS_REST_NS
        while presence.several_threads():
            if now_ns() >= end_ns:
                return True
            presence.look_anew()
            look_end_ns = now_ns() + _THREADS_LOOK_NS
            while now_ns() < look_end_ns:
                self._warm_call()
        return False

    def _alike(self, recent: deque[tuple[int, object]]) -> bool:
        if len(recent) < _WARMUP_ALIKE:
            return False
        times_ns, sequences = zip(*recent, strict=True)
        if None not in sequences:
            return all(sequence == sequences[0] for sequence in sequences)
        # Times below the resolution of the clock are alike, too.
        floor_ns = self._instruments.sample_ns
        return bool(max(times_ns) <= max(min(times_ns), floor_ns) * _ALIKE_RATIO)

    def _choose_device(self) -> bool:
        """Synchronize and flush from now on if a device is in use, and return True if so."""
        runtime = self._instruments.runtime
        if not runtime.active():
            return False
        self._synchronize, self.on_device = runtime.synchronize, True
        self._cache_mode = CacheMode(self._request.cache)
        if self._cache_mode is CacheMode.COLD:
            self._flush = runtime.flush_l2
        return True

    def _take(self, wait: Callable[[], None] | None) -> _Batch:
        """
        Time a batch.

        Args:
            wait: Waits for the device after the batch, or None if no device is in use.
        """
        __tracebackhide__ = True
        instruments = self._instruments
        now_ns, thread_cpu_ns = (
            instruments.clock.now_ns,
            instruments.clock.thread_cpu_ns,
        )
        # Frees the memory of the last output before the next call.
        begun_ns = now_ns()
        self._output = None
        self._dropped_ns += now_ns() - begun_ns
        # Before a setup makes objects that live longer than the call.
        if gc.get_count()[0] > instruments.young_due:
            took_ns, found_count = instruments.sweep()
            self._swept_ns += took_ns if found_count else 0
            self._swept_count += found_count
        self._called_count += self._batch_count
        call = self._next_call()
        if self._flush is not None:
            self._flush()
        if self._synchronize is not None:
            self._synchronize()
        timers = instruments.timers
        paused_ns = 0 if not self._ended_ns else now_ns() - self._ended_ns
        self._clock_before_hz = None
        if timers.sm_clock_hz is not None and paused_ns > _PAUSE_NS:
            self._clock_before_hz = timers.sm_clock_hz()
        # A setup, or the turn of another process, may take seconds.
        core_loop = self._core_loop
        if core_loop is not None and (at_ns := now_ns()) >= core_loop.due_ns:
            core_loop.refresh(at_ns)
        repeat_count = self._batch_count - 1
        returned_ns = cpu_ns = None
        modules_count = len(sys.modules)
        # Read outside of the sample, because the readings take 1 us and 0.3 us.
        if self._tells_interruptions:
            self._waits_before = instruments.clock.waits_count()
            cpu_ns = -thread_cpu_ns()
        if wait is None and self._settle is None:
            elapsed_ns, self._output = _timed(call, repeat_count, now_ns)
        else:
            elapsed_ns, returned_ns, self._output = _timed_waiting(
                call,
                repeat_count,
                now_ns,
                timers=instruments.timers if wait is not None else None,
                settle=self._settle,
                synchronize=wait,
            )
        if cpu_ns is not None:
            cpu_ns += thread_cpu_ns()
        loaded = len(sys.modules) != modules_count
        if wait is not None:
            self._ended_ns = now_ns()
        return _Batch(elapsed_ns, returned_ns, cpu_ns, loaded)

    def _garbage(self) -> Garbage | None:
        """Return the garbage of a call, or None if the test has switched the collector off."""
        if self._instruments.young_due == inf:
            return None
        count = max(1, self._called_count)
        return Garbage(
            objects_count=self._swept_count / count,
            time_s=self._swept_ns / NS_PER_S / count,
        )

    def _gave_up(self) -> bool:
        before, now = self._waits_before, self._instruments.clock.waits_count()
        return before is not None and now is not None and now > before

    def _sample_notes(self, samples: Sequence[float], source: str) -> Iterator[Note]:
        request, middle_s = self._request, statistics.median(samples)
        is_cold = request.cache_asked and request.cache == CacheMode.COLD
        if is_cold and self._cache_mode is CacheMode.UNTOUCHED:
            text = (
                'cache="cold" had no effect: the call uses no GPU, and caches of a CPU are'
                " as the last call left them"
            )
            yield Note(code="cache-not-cold", text=text, doubt=True)
        resolution_ns = self._instruments.resolution_ns
        if source != Source.HOST:
            resolution_ns = resolution_of(source)
        least_ns = _SHORT * SAMPLE_RESOLUTIONS * resolution_ns
        if middle_s * self._batch_count * NS_PER_S < least_ns:
            yield _SHORT_CALL
        if self._swept_ns and not self._paired:
            yield from self._garbage_notes()
        if source == Source.EVENTS and middle_s < _HOLDS_LAUNCH_S:
            yield from self._launch_notes(middle_s)
        if self._doubts is None and (request.make or request.reference):
            text = (
                "iterations= fixes the number of calls: make= and reference= had none"
            )
            yield Note(code="not-checked", text=text)
        count = len(samples)
        if not self.is_slow or count >= _INTERVAL_LEAST:
            return
        reason = f"because a call takes {middle_s:.3g} s"
        if request.iterations is not None:
            reason = "as iterations= says"
        if count == 1:
            first = "" if self._warmup_count else ", which is the first call"
            text = f"1 sample, {reason}{first}: its spread is not known"
            yield Note(code="few-samples", text=text)
            return
        first = "" if self._warmup_count else ", the first call among them"
        fraction = (max(samples) - min(samples)) / 2 / middle_s
        text = (
            f"{count} samples, {reason}{first}: they lie within ±{fraction:.2%} of their"
            f" median, and {_INTERVAL_LEAST} are needed for an interval"
        )
        yield Note(code="few-samples", text=text, doubt=fraction > _WIDE)

    def _garbage_notes(self) -> Iterator[Note]:
        garbage = self._garbage()
        wall_s = statistics.median([r.wall_s for r in self.readings])
        if garbage is None or not _GARBAGE_SHARE < garbage.time_s / wall_s <= 1:
            return
        text = (
            f"a call leaves {garbage.objects_count:,.0f} objects of garbage, and collecting"
            f" them takes {garbage.time_s / wall_s:.0%} of its time (time.with_gc)"
        )
        yield Note(code="garbage", text=text)

    def _launch_notes(self, middle_s: float) -> Iterator[Note]:
        returned_s = [r.returned_s for r in self.readings if r.returned_s is not None]
        held_s = min(statistics.median(returned_s or [0.0]), middle_s)
        # In a batch, a device that is slower than the host idles before the first call.
        is_busy = self._batch_count > 1 and held_s < middle_s
        if held_s > _HOLDS_LAUNCH_SHARE * middle_s and not is_busy:
            text = (
                f"up to {held_s / middle_s:.0%} of the time may be the host's launch, which"
                " events begin before; cupti leaves it out"
            )
            yield Note(code=HOLDS_LAUNCH, text=text)


_SHORT_CALL = Note(
    code="short-call",
    text="a call is too short to be timed alone; setup, a cold cache, fixed iterations or an"
    " asynchronous result rule out timing several calls as one sample",
)


@calls_the_test
def _timed(
    call: Callable[[], object], repeat_count: int, now_ns: Callable[[], int]
) -> tuple[int, object]:
    """
    Return the time of a batch [ns] and its last output.

    Only locals are used between the two readings. The loop's own time (some 10 ns a
    call) is not subtracted, because a calibrated loop would be a second measurement
    with its own error.
    """
    __tracebackhide__ = True
    repeats = repeat(None, repeat_count)
    start_ns = now_ns()
    for _ in repeats:
        call()
    output = call()
    return now_ns() - start_ns, output


@calls_the_test
def _timed_waiting(
    call: Callable[[], object],
    repeat_count: int,
    now_ns: Callable[[], int],
    *,
    timers: Timers | None,
    settle: Callable[[object], None] | None,
    synchronize: Callable[[], None] | None,
) -> tuple[int, int, object]:
    """
    Return the time of a batch [ns], the time until the return [ns] and the last
    output.

    The device timers begin before the first reading and end after the second. Their
    cost is not part of the time until the call returned, and the ends count as waiting.
    """
    __tracebackhide__ = True
    begins = () if timers is None else timers.begins
    ends = () if timers is None else timers.ends
    repeats = repeat(None, repeat_count)
    for begin in begins:
        begin()
    start_ns = now_ns()
    for _ in repeats:
        call()
    output = call()
    returned_ns = now_ns()
    for end in ends:
        end()
    if settle is not None:
        settle(output)
    if synchronize is not None:
        synchronize()
    return now_ns() - start_ns, returned_ns - start_ns, output


def _parts() -> list[object]:
    """Return the code that takes samples. Only the first parts are written in Python."""
    parts = [*map(getattr, _OWNERS, _NAMES)]
    codes = map(getattr, parts[:_IN_PYTHON_COUNT], repeat("__code__"), repeat(None))
    return [*parts, *codes]


_OWNERS = (
    *repeat(sys.modules[__name__], 2),
    *repeat(CallSampler, 3),
    *repeat(SystemClock, 2),
)
_NAMES = (
    *("_timed", "_timed_waiting", "sample", "_take", "_reading_of"),
    *("now_ns", "thread_cpu_ns"),
)
_IN_PYTHON_COUNT = 5
# Taken when this module is loaded, which is before anything can replace a part of it.
_AS_LOADED = _parts()
_REPLACED = Note(
    code="replaced-code",
    text="code that takes samples has been replaced: the time may be any number",
    doubt=True,
)
