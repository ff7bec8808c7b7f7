"""One callable through a measurement: warm-up, batch, samples; PYTEST_DONT_REWRITE."""

from __future__ import annotations

import statistics
import sys
from collections import deque
from collections.abc import Callable
from math import ceil

from pytest_gpuperf.collect.base import TimedCall, Timing
from pytest_gpuperf.collect.calls import calls, settle, timed, unsettled
from pytest_gpuperf.collect.contract import Contract, refuse_function, refuse_result
from pytest_gpuperf.collect.runtime import DeviceRuntime
from pytest_gpuperf.errors import MeasureError
from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.record import Note

__all__ = ["NS_PER_S", "Bench", "Lane"]

NS_PER_S = 1_000_000_000
# docs/judging.md section 5: graph trees need warm-up, record and replay
_WARMUP_LEAST = 4
_WARMUP_ALIKE = 3  # calls running whose times are of one order
_ALIKE_RATIO = 2  # of one order: a compilation or a first touch is more than this
_SAMPLE_RESOLUTIONS = 100  # a sample this long loses at most 1 % to the clock
_BATCH_TRIES = 3  # each grows up to 110 times: enough for the shortest call there is
_BATCH_MARGIN = 1.1  # the first guess is from single calls, which the clock lengthens
_SHORT = 0.5  # of the shortest good sample; a batch may come out a little short of it


class Bench(Frozen, frozen=True, kw_only=True):
    """
    What all callables of one measurement are timed with.

    Attributes:
        now_ns: The clock.

        resolution_ns: The shortest time that it can tell from none [ns], > 0.

        runtime: The device's.

        sweep: Collects garbage if it is due; never in a sample.
    """

    now_ns: Callable[[], int]
    resolution_ns: int
    runtime: DeviceRuntime
    sweep: Callable[[], None]

    @property
    def sample_ns(self) -> int:
        """The shortest sample that the clock does not distort [ns]."""
        return _SAMPLE_RESOLUTIONS * self.resolution_ns


class Lane:
    """
    One callable and what is known of its time so far.

    Args:
        request: What to call.

        bench: What to time it with.

    Attributes:
        samples: Accepted samples [s of a call], in the order they were taken.

        discarded_count: Samples that were refused.
    """

    def __init__(self, request: TimedCall, bench: Bench) -> None:
        __tracebackhide__ = True
        refuse_function(request.fn)
        self.samples: list[float] = []
        self.discarded_count = 0
        self._request = request
        self._bench = bench
        self._contract = Contract(request)
        self._next_call = calls(request)
        self._synchronize: Callable[[], None] | None = None
        self._settle: Callable[[object], None] | None = settle
        self._flush: Callable[[], None] | None = None
        self._cache_mode = "none"
        self._batch_count = 1
        self._warmup_count = 0
        self._first_call_ns = 0
        self._output: object = None

    def warm_up(self) -> None:
        """
        Call until the time of a call is known to its order, then choose the batch.

        There is no launch sequence to be seen from the host: three calls running that
        loaded no module and took about the same time stand for it.
        """
        __tracebackhide__ = True
        self._first_call_ns = self._time_first_call()
        refuse_result(self._request.fn, self._output)
        call_ns = self._alike_ns()
        if self._may_batch:
            self._choose_batch(call_ns)

    def sample(self) -> float | None:
        """
        Take one sample.

        Returns:
            The time of a call [s]; None: a module was loaded in it, or the clock stood
            still, and it must be refused.
        """
        __tracebackhide__ = True
        elapsed_ns, loaded = self._take()
        if loaded or elapsed_ns <= 0:
            return None
        return elapsed_ns / (NS_PER_S * self._batch_count)

    def accept(self, value: float) -> None:
        """Keep the sample that was taken last."""
        __tracebackhide__ = True
        self.samples.append(value)
        if len(self.samples) == 1:
            self._contract.first_output(self._output)

    def timing(self, source: str) -> Timing:
        """
        Return what was measured, after a last look at the repetition contract.

        Raises:
            MeasureError: No sample was accepted.
        """
        __tracebackhide__ = True
        if not self.samples:
            message = "every sample loaded a module, or the clock stood still"
            raise MeasureError(message, remedy="import what it needs before measuring")
        if len(self.samples) > 1:
            self._contract.last_output(self._output)
        notes = self._contract.notes(self.samples, self._output)
        return Timing(
            samples=tuple(self.samples),
            source=source,
            iterations_count=self._batch_count,
            discarded_count=self.discarded_count,
            first_call_s=self._first_call_ns / NS_PER_S,
            warmup_count=self._warmup_count,
            cache_mode=self._cache_mode,
            result=self._output,
            notes=(*notes, *self._short_notes()),
            void=self._contract.void(),
        )

    def _time_first_call(self) -> int:
        """Time the very first call [ns]; it may be the first to use the device."""
        __tracebackhide__ = True
        used_before = self._choose_device()
        elapsed_ns, _ = self._warm_call()
        if not used_before and self._choose_device():  # wait for what it has started
            bench = self._bench
            rest_ns, _ = timed(bench.runtime.synchronize, 0, bench.now_ns)
            elapsed_ns += rest_ns
        if not unsettled(self._output):
            self._settle = None
        return elapsed_ns

    def _warm_call(self) -> tuple[int, bool]:
        """Call outside the samples; return its time [ns] and if it loaded a module."""
        __tracebackhide__ = True
        self._warmup_count += self._batch_count
        return self._take()

    def _alike_ns(self) -> int:
        """Call until times are of one order, or the budget is spent; return the least."""
        __tracebackhide__ = True
        request = self._request
        recent: deque[int] = deque(maxlen=_WARMUP_ALIKE)
        spent_ns = 0
        while True:
            elapsed_ns, loaded = self._warm_call()
            spent_ns += elapsed_ns
            if loaded:
                recent.clear()
            else:
                recent.append(elapsed_ns)
            if self._warmup_count < _WARMUP_LEAST:
                continue
            fixed = request.iterations is not None
            if fixed or self._alike(recent) or spent_ns >= request.budget_s * NS_PER_S:
                return min(recent, default=elapsed_ns)

    def _alike(self, recent: deque[int]) -> bool:
        """Return whether times are of one order, or all below what the clock can tell."""
        floor_ns = self._bench.sample_ns
        return (
            len(recent) == _WARMUP_ALIKE
            and max(recent) <= max(min(recent), floor_ns) * _ALIKE_RATIO
        )

    def _choose_device(self) -> bool:
        """Wait for the device and flush it from now on, if one is in use: is it?"""
        runtime = self._bench.runtime
        if not runtime.active():
            return False
        self._synchronize = runtime.synchronize
        self._cache_mode = self._request.cache
        if self._request.cache == "cold":
            self._flush = runtime.flush_l2
        return True

    @property
    def _may_batch(self) -> bool:
        """Whether calls may follow each other without anything between them."""
        request = self._request
        fixed = request.setup is not None or request.iterations is not None
        return not fixed and self._flush is None and self._settle is None

    def _choose_batch(self, call_ns: int) -> None:
        """Put as many calls into a sample as the clock needs to time it well."""
        __tracebackhide__ = True
        bench = self._bench
        elapsed_ns = call_ns
        for _ in range(_BATCH_TRIES):
            if elapsed_ns >= bench.sample_ns:
                return
            known_ns = max(elapsed_ns, bench.resolution_ns)
            growth = _BATCH_MARGIN * bench.sample_ns / known_ns
            self._batch_count = ceil(self._batch_count * growth)
            # the shorter of two: one that was interrupted would pass for a long one
            elapsed_ns = min(self._warm_call()[0], self._warm_call()[0])

    def _take(self) -> tuple[int, bool]:
        """Time one batch; return its time [ns] and whether it loaded a module."""
        __tracebackhide__ = True
        self._output = None  # the last output must not take room beside the next
        call = self._next_call()
        self._bench.sweep()
        if self._flush is not None:
            self._flush()
        if self._synchronize is not None:
            self._synchronize()
        modules_count = len(sys.modules)
        elapsed_ns, self._output = timed(
            call,
            self._batch_count - 1,
            self._bench.now_ns,
            settle=self._settle,
            synchronize=self._synchronize,
        )
        return elapsed_ns, len(sys.modules) != modules_count

    def _short_notes(self) -> tuple[Note, ...]:
        """Return a note if the samples are too short for the clock."""
        sample_s = statistics.median(self.samples) * self._batch_count
        if sample_s * NS_PER_S >= _SHORT * self._bench.sample_ns:
            return ()
        text = (
            "a call is too short to be timed alone, and setup, a cold cache, fixed"
            " iterations or an asynchronous result forbid to time several as one"
        )
        return (Note(code="short-call", text=text),)
