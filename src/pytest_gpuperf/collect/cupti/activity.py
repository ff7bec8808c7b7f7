"""CUPTI's activity records around a measurement."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from pytest_gpuperf.collect.cupti.calls import ActivityCalls, process_calls
from pytest_gpuperf.collect.cupti.libcupti import loaded_version
from pytest_gpuperf.collect.cupti.modules import ASKED, LoadedModules
from pytest_gpuperf.collect.cupti.subscription import (
    CLOSED,
    INSTALL,
    attached_tool,
    failed,
    failures_of,
    lost,
    missing,
    overfull,
    take,
)
from pytest_gpuperf.collect.processor_time import child_pids
from pytest_gpuperf.collect.translate.activity import (
    Bounds,
    LaunchSink,
    read_samples,
    read_trace,
)
from pytest_gpuperf.errors import CollectorUnavailableError, MeasureError
from pytest_gpuperf.model.activity import Trace
from pytest_gpuperf.model.gap import Gap
from pytest_gpuperf.model.record import Void
from pytest_gpuperf.model.sample import Source

_WINDOWS = 3  # CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0
_COMPLETE, _FORCED = 0, 1  # Flush flags: complete buffers, or all buffers.
# Limit of one window or sample: a million launches with calls and labels, which take
# 0.6 GiB in cupti-python 13.4 (benchmarks/launch_list.py).
MOST_RECORDS = 3_000_000


class Sink:
    """
    Holds batches of records until they are read.

    CUPTI adds batches in its own thread or in the calling thread. Each of the two
    counts has a single writer, so that no lock is needed.

    Args:
        most_count: The maximum number of held records.

    Attributes:
        full: True if more records arrived. These are lost.
    """

    def __init__(self, most_count: int) -> None:
        self.full = False
        self._most_count = most_count
        self._batches: deque[Sequence[Any]] = deque()  # Records have no type.
        self._put_count = self._taken_count = 0

    def __len__(self) -> int:
        """Return the number of held records."""
        return self._put_count - self._taken_count

    def put(self, records: Sequence[Any]) -> None:
        """Add a batch, or set `full` if the batch exceeds the limit."""
        if len(self) + len(records) > self._most_count:
            self.full = True
            return
        self._put_count += len(records)
        self._batches.append(records)

    def taken(self) -> Iterator[Sequence[Any]]:
        """Yield and remove all batches."""
        while self._batches:
            records = self._batches.popleft()
            self._taken_count += len(records)
            yield records

    def clear(self) -> None:
        """Remove all batches."""
        self._taken_count = self._put_count
        self._batches.clear()


class ActivityCollector:
    """
    Records the device's work for this process.

    Args:
        synchronize: Waits until the device is idle.

        cupti: The module `cupti.cupti`, or None to import it in `open`.

        environment: The environment variables of this process.

        device_pids: Returns the processes that use a GPU now, or None if unknown.

        whole_graphs: True to record a graph launch as one piece of work. This costs
            less, and does not show the graph's kernels.

        most_count: The maximum number of records of one window or sample. With more
            records, the window or sample is void.

        api_version: Returns the API version of the libcupti in use, or None if unknown.

    Attributes:
        modules: The code of the modules that were loaded since CUPTI was opened, or none
            if the user has not asked for the code.
    """

    def __init__(
        self,
        synchronize: Callable[[], None],
        *,
        cupti: Any = None,  # noqa: ANN401 - an optional library has no types
        environment: Mapping[str, str] = os.environ,
        device_pids: Callable[[], Collection[int]] | None = None,
        whole_graphs: bool = False,
        most_count: int = MOST_RECORDS,
        api_version: Callable[[], int | None] = loaded_version,
    ) -> None:
        self.api_version: int | None = None
        self._ask_api_version = api_version
        self.most_count = most_count
        self.modules = LoadedModules()
        self.unrecorded: dict[str, str] = {}
        self.dropped_count = 0
        self._synchronize = synchronize
        self._cupti = cupti
        self._environment = environment
        self._device_pids = device_pids
        self._whole_graphs = whole_graphs
        self._undo: contextlib.ExitStack | None = None
        self._calls: ActivityCalls | None = None
        self._sinks: tuple[Sink, ...] = ()
        self._label = 0
        self._pid = os.getpid()

    def absent(self) -> Gap | None:
        """Return why CUPTI cannot be used, as far as known without opening it, or None."""
        attached = attached_tool(self._environment)
        if attached is not None or self._cupti is not None:
            return attached
        return missing()

    @property
    def is_open(self) -> bool:
        """True if the collector records in the current process, not in a parent process."""
        return self._undo is not None and self._pid == os.getpid()

    def open(self) -> None:
        """
        Subscribe to CUPTI and begin to record.

        Raises:
            CollectorUnavailableError: CUPTI is missing, held by another tool, or refuses.
        """
        if self.is_open:
            return
        absence = self.absent()
        if absence is not None:
            raise CollectorUnavailableError(absence.reason, remedy=absence.remedy)
        try:
            cupti = self.library
        except ImportError as error:
            message = f"cupti-python does not load: {error}"
            raise CollectorUnavailableError(message, remedy=INSTALL) from error
        self._undo, self.unrecorded, self._calls = take(
            cupti,
            self._completed,
            environment=self._environment,
            whole_graphs=self._whole_graphs,
            modules=self.modules if self._environment.get(ASKED) else None,
        )
        self.api_version = self._ask_api_version()
        self._pid = os.getpid()

    def close(self) -> None:
        """Stop recording, and end the subscription. Does nothing in a forked process."""
        undo, self._undo = self._undo, None
        if undo is None or self._pid != os.getpid():
            return  # The subscription belongs to the parent of a forked process.
        with contextlib.suppress(*self.failures):
            self._synchronize()
            self.calls.flush(_FORCED)
        undo.close()

    @contextlib.contextmanager
    def window(self) -> Iterator[Window]:
        """
        Record the device's work during a block. Windows may be nested.

        Errors of the block pass through. An error of CUPTI makes the window void and is
        never raised, because it is not the test's fault.
        """
        window = Window(self)
        window.begin(self._synchronize)
        try:
            yield window
        finally:
            window.end(self._synchronize)

    @property
    def library(self) -> Any:  # noqa: ANN401 - an optional library has no types
        """The module `cupti.cupti`."""
        if self._cupti is None:
            self._cupti = importlib.import_module("cupti.cupti")
        return self._cupti

    @property
    def calls(self) -> ActivityCalls:
        """The functions of the last subscription, or of the process before the first."""
        if self._calls is None:
            self._calls = process_calls(self.library)
        return self._calls

    @property
    def failures(self) -> tuple[type[Exception], ...]:
        """The errors of the module, including missing functions and a driver that is too old."""
        return failures_of(self.library)

    def next_label(self) -> int:
        """Return a new label, unique in the process."""
        self._label += 1
        return self._label

    def listen(self) -> Sink:
        """Add a new sink, which receives batches of records from now on."""
        sink = Sink(self.most_count)
        self._sinks = (*self._sinks, sink)
        return sink

    def leave(self, sink: Sink) -> None:
        """Stop adding to a sink."""
        self._sinks = tuple(joined for joined in self._sinks if joined is not sink)

    def flush(self) -> None:
        """Make CUPTI deliver all complete records. The device must be idle."""
        calls, count = self.calls, ctypes.c_size_t()
        calls.flush(_COMPLETE)
        calls.read_dropped(0, 0, ctypes.addressof(count))
        self.dropped_count += count.value

    def users_among(self, pids: Collection[int]) -> tuple[int, ...]:
        """Return the given processes that use a GPU, or () if unknown."""
        if not pids or self._device_pids is None:
            return ()
        return tuple(sorted(frozenset(pids) & frozenset(self._device_pids())))

    def childless_since(self, ended_s: float) -> bool:
        """
        Return True if no child process can have used a device since an earlier moment.

        Args:
            ended_s: The result of `_ended_children_s` at that moment [s].
        """
        return not child_pids() and _ended_children_s() == ended_s

    def _completed(self, records: Sequence[Any]) -> None:
        """Add a batch to all sinks. CUPTI calls this in its own thread or in the calling thread."""
        for sink in self._sinks:
            sink.put(records)


class Window:
    """
    The device's work in one block.

    Attributes:
        void: Why the window must not be judged, or None if it may.
    """

    def __init__(self, collector: ActivityCollector) -> None:
        self.void: Void | None = None
        self._collector = collector
        self._sink = Sink(0)
        self._bounds: Bounds | None = None
        self._first = 0
        self._begun_ns = 0
        self._returned_ns: int | None = None
        self._dropped_before = 0
        self._children_before: frozenset[int] = frozenset()
        self._ended_before = 0.0
        self._remarks: dict[str, Any] = {}  # Further arguments of `read_trace`.
        self._trace: Trace | None = None

    def trace(self, sink: Callable[[], LaunchSink] | None = None) -> Trace:
        """
        Decode the records and return the trace. Decoding takes some microseconds per
        kernel.

        Args:
            sink: Opens the storage for more launches than fit in memory, or None to
                keep all launches in memory.

        Raises:
            MeasureError: The window is still open, or CUPTI failed in it.
        """
        if self._trace is None:
            if self._bounds is None:
                is_open = "the window is still open, or its records were lost"
                message = self.void.text if self.void else is_open
                raise MeasureError(message, remedy="read the trace after the block")
            batches, bounds = self._sink.taken(), self._bounds
            self._bounds = None  # The batches can be read only once.
            self._trace = read_trace(batches, bounds, sink=sink, **self._remarks)
        return self._trace

    def body_begins(self) -> None:
        """Discard earlier waits of the host, which do not belong to the body."""
        if self.void is None:
            self._begun_ns = self._collector.calls.now_ns()

    def body_returned(self) -> None:
        """Ignore later waits of the host."""
        if self.void is None:
            self._returned_ns = self._collector.calls.now_ns()

    def begin(self, synchronize: Callable[[], None]) -> None:
        """Flush earlier records, and label the work submitted by the current thread."""
        collector = self._collector
        if not collector.is_open:
            self.void = CLOSED
            return
        synchronize()
        self._children_before = frozenset(child_pids())
        self._ended_before = _ended_children_s()
        self._first = collector.next_label()
        calls = collector.calls
        try:
            collector.flush()
            # The record of this wait makes CUPTI request a new buffer now, so that the
            # first launch of the body does not wait for the buffer.
            synchronize()
            self._dropped_before = collector.dropped_count
            self._sink = collector.listen()
            calls.push(_WINDOWS, self._first)
            self._begun_ns = calls.now_ns()
        except collector.failures as error:
            self._give_up(failed(error))

    def end(self, synchronize: Callable[[], None]) -> None:
        """Wait for the device, and flush the records of the block."""
        if self.void is not None:
            return
        collector = self._collector
        calls = collector.calls
        try:
            returned_ns = self._returned_ns or calls.now_ns()
            calls.pop(_WINDOWS)
            synchronize()
            ended_ns = calls.now_ns()
            collector.flush()
        except collector.failures as error:
            self._give_up(failed(error))
            return
        finally:
            collector.leave(self._sink)
        if self._sink.full:
            self._give_up(overfull(collector.most_count))
            return
        dropped_count = collector.dropped_count - self._dropped_before
        if dropped_count:
            self.void = lost(dropped_count)
        live = self._children_before | frozenset(child_pids())
        names = [str(pid) for pid in sorted(live)]
        if _ended_children_s() != self._ended_before:
            names.append("one that has ended")
        self._remarks = {
            "dropped_count": dropped_count,
            "children": tuple(names),
            "device_children": collector.users_among(live),
            "unrecorded": dict(collector.unrecorded),
            "api_version": collector.api_version,
        }
        self._bounds = Bounds(
            label_kind=_WINDOWS,
            first=self._first,
            begun_ns=self._begun_ns,
            returned_ns=returned_ns,
            ended_ns=ended_ns,
        )

    def _give_up(self, void: Void) -> None:
        self._collector.leave(self._sink)
        self._sink.clear()
        self.void = void


def _ended_children_s() -> float:
    """Return the CPU time of all ended children [s], which grows whenever a child ends."""
    # Only POSIX has this module. There is no CUPTI activity on other systems.
    import resource

    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


_SAMPLES = 4  # CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM1. CUSTOM0 labels windows.
# The label of work that is submitted between samples. 0 is avoided, because no header
# documents if an external id 0 is recorded like other ids (libcupti 13.0 does that).
_BETWEEN = 1
# The number of records that triggers reading: about 22 of CUPTI's buffers, 20 MiB in
# cupti-python 13.4, 0.2 s to read (benchmarks/activity_speed.py).
_MANY_RECORDS = 90_000


class ActivityTimer:
    """
    Times samples from the first start to the last end of any work on the device.

    A `DeviceTimer` that is also `Sequenced`, `Holding` and a `Witness`. Samples are
    labelled, so that windows and samples may be nested. The span of every sample is
    kept, and the sequence of launches of the last sample.

    Args:
        collector: An open collector.

        many_count: The number of unread records from which they should be read.
    """

    name: str = Source.CUPTI

    def __init__(
        self, collector: ActivityCollector, *, many_count: int = _MANY_RECORDS
    ) -> None:
        self._collector = collector
        self._many_count = many_count
        self._sink: Sink | None = None
        self._failure: Void | None = None
        self._dropped_before = 0
        self._first = _BETWEEN + 1  # The label of the first unread sample.
        self._label = _BETWEEN
        # Unread samples: the start [ns], and False if the sample raised an exception.
        self._begins_ns: list[int] = []
        self._ended: list[bool] = []
        # Samples that were read, but not returned by `taken` yet.
        self._spans_s: list[float | None] = []
        # The launches of the last sample.
        self._sequence: bytes | None = None
        # The number of each distinct kernel, copy, fill or graph.
        self._places: dict[object, int] = {}
        # True if any sample of the set had records or work.
        self._has_records = self._has_work = False
        self._ended_before_s = 0.0

    def begin(self) -> None:
        """Begin a sample by labelling the work that the current thread submits from now on."""
        if self._failure is not None:
            return
        collector = self._collector
        if not collector.is_open:
            self._failure = CLOSED
            return
        calls = collector.calls
        try:
            if self._sink is None:
                collector.flush()
                self._dropped_before = collector.dropped_count
                self._sink = collector.listen()
                self._first = self._label + 1
                self._ended_before_s = _ended_children_s()
                calls.push(_SAMPLES, _BETWEEN)
            self._abandon()
            self._label += 1
            calls.push(_SAMPLES, self._label)
            self._begins_ns.append(calls.now_ns())
        except collector.failures as error:
            self._give_up(failed(error))

    def end(self) -> None:
        """End the sample by removing the label."""
        if self._failure is not None:
            self._spans_s.append(None)
            return
        calls = self._collector.calls
        try:
            calls.pop(_SAMPLES)
            self._ended.append(True)
        except self._collector.failures as error:
            self._give_up(failed(error))
            self._spans_s.append(None)

    def taken(self) -> Sequence[float | None]:
        """Return the spans of all samples since the last call [s], None if unknown."""
        self._drain()
        spans_s, self._spans_s = self._spans_s, []
        return spans_s

    def sequence(self) -> object:
        """Return the launches of the last sample in order, or None if unknown."""
        self._drain()
        return self._sequence

    def holds_much(self) -> bool:
        """Return True if the number of unread records has reached the limit for reading."""
        return self._sink is not None and len(self._sink) >= self._many_count

    def saw_nothing(self) -> bool:
        """
        Return True if nothing ran on the device in any sample so far.

        False also if CUPTI delivered no record at all, not even of the timer's own
        waits and flushes, and if a child process may have used a device.
        """
        idle = self._failure is None and self._has_records and not self._has_work
        return idle and self._collector.childless_since(self._ended_before_s)

    def refusal(self) -> Void | None:
        """End the set, and return why no sample of the set may be used, or None."""
        void = self._failure
        if self._sink is not None:
            dropped_count = self._collector.dropped_count - self._dropped_before
            if void is None and dropped_count:
                void = lost(dropped_count)
            self._collector.leave(self._sink)
            with contextlib.suppress(*self._collector.failures):
                self._collector.calls.pop(_SAMPLES)
        self._sink = self._failure = self._sequence = None
        self._places = {}
        self._has_records = self._has_work = False
        return void

    def _abandon(self) -> None:
        if len(self._begins_ns) > len(self._ended):
            self._collector.calls.pop(_SAMPLES)
            self._ended.append(False)

    def _drain(self) -> None:
        """Read the records since the last call. The device must be idle."""
        if self._sink is None or self._failure is not None:
            return
        collector = self._collector
        try:
            self._abandon()
            if not self._ended:
                return
            collector.flush()
        except collector.failures as error:
            self._give_up(failed(error))
            return
        if self._sink.full:
            self._give_up(overfull(collector.most_count))
            return
        self._has_records = self._has_records or len(self._sink) > 0
        samples = read_samples(
            self._sink.taken(),
            label_kind=_SAMPLES,
            first=self._first,
            begins_ns=self._begins_ns,
            places=self._places,
        )
        self._has_work = self._has_work or any(sample.sequence for sample in samples)
        ended = [
            s for s, has_ended in zip(samples, self._ended, strict=True) if has_ended
        ]
        self._spans_s += [sample.span_s for sample in ended]
        self._sequence = ended[-1].sequence if ended else None
        self._first = self._label + 1
        self._begins_ns, self._ended = [], []

    def _give_up(self, void: Void) -> None:
        self._failure = void
        self._spans_s += [None] * sum(self._ended)
        self._begins_ns, self._ended = [], []
        self._sequence = None
        if self._sink is not None:
            self._collector.leave(self._sink)
            self._sink.clear()
