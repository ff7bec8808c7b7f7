"""CUPTI's activity records as a Trace, or as the times of samples.

The *label* of the submitting call, which is CUPTI's external id of the thread, decides to
which window work belongs. Threads of autograd or of a framework have no label. Their work
is assigned by the time of submission, and is counted as unlabelled.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from operator import attrgetter, le
from typing import Any, Protocol

from pytest_gpuperf.collect.clock import NS_PER_S
from pytest_gpuperf.collect.translate.cupti import (
    ALLOCATION,
    COMPILE,
    COPIES,
    COPY_COUNT_SINCE,
    DIRECTIONS,
    FILL,
    GRAPH,
    KERNEL,
    MEMORY,
    OVERHEADS,
    RANGE_END,
    RANGE_START,
    STATIC,
    WAITS,
    Batches,
    Sorted,
    let_go,
)
from pytest_gpuperf.model.activity import (
    COLUMNS,
    HOST_WAITS,
    PIECE_COUNT,
    WHOLE_COUNT,
    Copy,
    KernelShape,
    Launches,
    LaunchList,
    NamedRange,
    Trace,
)
from pytest_gpuperf.model.frozen import Frozen, collector_paused, replace

UNKNOWN = "unknown"
# The fields of a kernel record that identify its shape.
_shape_key: Callable[[Any], tuple[Any, ...]] = attrgetter(
    "name",
    *("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z"),
    *("registers_per_thread", "static_shared_memory", "dynamic_shared_memory"),
    "local_memory_per_thread",
)


class LaunchSink(Protocol):
    """Stores more launches than fit in memory."""

    def put(self, launches: Launches) -> None:
        """Append launches. Their `shapes` begin with the shapes of all earlier launches."""

    def end(self) -> LaunchList:
        """Return all launches."""


class Kernels:
    """
    Turns kernel records into columns and collects their latencies.

    Args:
        records: The sorted records.

    Attributes:
        untimed_count: Kernels without a start or an end.
    """

    def __init__(self, records: Sorted) -> None:
        self.untimed_count = 0
        self._records = records
        self._places: dict[tuple[Any, ...], int] = {}
        self._shapes: tuple[KernelShape, ...] = ()
        # Start of the first kernel of a call [ns], by correlation id.
        self._firsts: dict[int, int] = {}

    def launches(
        self, kernels: Iterator[Any], sink: Callable[[], LaunchSink] | None
    ) -> LaunchList:
        """Return the launches in order, in memory or through a sink."""
        held = self._columns([])
        open_sink: LaunchSink | None = None
        while batch := list(islice(kernels, PIECE_COUNT)):
            piece = self._columns(batch)
            many = len(held) + len(piece) > WHOLE_COUNT
            if open_sink is None and sink is not None and many:
                open_sink = sink()
                open_sink.put(held)
            if open_sink is None:
                # The columns that are held grow in place.
                for name in COLUMNS:
                    getattr(held, name).extend(getattr(piece, name))
                held = replace(held, shapes=piece.shapes)
            else:
                open_sink.put(piece)
        return held if open_sink is None else open_sink.end()

    def latencies_ns(self, graphs: Iterable[Any]) -> array[int]:
        """
        Return the time from every launching call to the call's first kernel [ns].

        CUPTI interpolates the device's clock onto the host's, so that a kernel may seem to
        begin before its call. Such a latency is 0.
        """
        for graph in graphs:
            self._began(graph.correlation_id, graph.start)
        calls, firsts = self._records.calls, self._firsts
        return array(
            "q",
            (
                max(0, start_ns - calls[correlation])
                for correlation, start_ns in firsts.items()
            ),
        )

    def _began(self, correlation: int, start_ns: int) -> None:
        counted = start_ns and correlation in self._records.launching
        if counted and start_ns < self._firsts.get(correlation, start_ns + 1):
            self._firsts[correlation] = start_ns

    def _columns(self, kernels: Iterable[Any]) -> Launches:
        places, calls, began = self._places, self._records.calls, self._began
        place_of = places.setdefault
        columns = {name: array(code) for name, code in COLUMNS.items()}
        shape, start_ns, end_ns, call_ns, device, stream, graph = columns.values()
        for k in kernels:
            correlation, start, end = k.correlation_id, k.start, k.end
            began(correlation, start)
            if not (start and end):
                self.untimed_count += 1
            shape.append(place_of(_shape_key(k), len(places)))
            start_ns.append(start)
            end_ns.append(end)
            call_ns.append(calls.get(correlation, 0))
            device.append(k.device_id)
            stream.append(k.stream_id)
            graph.append(k.graph_id)
        self._shapes += tuple(map(_shape, islice(places, len(self._shapes), None)))
        return Launches(shapes=self._shapes, **columns)


def _shape(key: tuple[Any, ...]) -> KernelShape:
    name, *numbers = key
    return KernelShape(
        name=name or UNKNOWN,
        grid=(numbers[0], numbers[1], numbers[2]),
        block=(numbers[3], numbers[4], numbers[5]),
        registers_count=numbers[6],
        shared_bytes=numbers[7],
        dynamic_shared_bytes=numbers[8],
        stack_bytes=numbers[9],
    )


class Bounds(Frozen, frozen=True, kw_only=True):
    """
    Begin and end of a window.

    Attributes:
        label_kind: The kind of CUPTI's external ids that are labels.

        first: The window's label. Higher labels were set while the window was open.

        begun_ns: The beginning [ns].

        returned_ns: The return of the body, before the wait for the device [ns].

        ended_ns: The time when the device was idle again [ns].
    """

    label_kind: int
    first: int
    begun_ns: int
    returned_ns: int
    ended_ns: int


class Sampled(Frozen, frozen=True, kw_only=True):
    """
    The device work of one sample.

    Attributes:
        span_s: First start to last end [s], or None if nothing ran or a time is missing.

        sequence: The launches in order, four bytes each. Equal work gives equal bytes
            if the same table of places is used.
    """

    span_s: float | None
    sequence: bytes


class _Owner:
    """
    Decides which work belongs to a window.

    Attributes:
        unlabelled_count: Pieces of work that were assigned by time.
    """

    def __init__(self, records: Sorted, bounds: Bounds) -> None:
        self.unlabelled_count = 0
        self._labels, self._calls = records.labels, records.calls
        self._bounds = bounds

    def owns(self, correlation: int, start_ns: int) -> bool:
        """Return True if a piece of work belongs to the window. Unlabelled work is counted."""
        bounds = self._bounds
        label = self._labels.get(correlation)
        if label is not None:
            return label >= bounds.first
        moment_ns = self._calls.get(correlation, start_ns)
        inside = bounds.begun_ns <= moment_ns <= bounds.ended_ns
        self.unlabelled_count += inside
        return inside

    def owns_call(self, correlation: int) -> bool:
        """Return True if a call belongs to the window, without counting unlabelled calls."""
        bounds = self._bounds
        label = self._labels.get(correlation)
        if label is not None:
            return label >= bounds.first
        return bounds.begun_ns <= self._calls[correlation] <= bounds.ended_ns

    def of(self, records: Iterable[Any]) -> Iterator[Any]:
        """Yield the work that belongs to the window."""
        owns = self.owns
        return (
            record for record in records if owns(record.correlation_id, record.start)
        )


def read_trace(
    batches: Batches,
    bounds: Bounds,
    *,
    dropped_count: int = 0,
    children: tuple[str, ...] = (),
    device_children: tuple[int, ...] = (),
    unrecorded: dict[str, str] | None = None,
    api_version: int | None = None,
    sink: Callable[[], LaunchSink] | None = None,
) -> Trace:
    """
    Return the trace of a window.

    Args:
        batches: Lists of records, as CUPTI delivered them.

        bounds: Begin and end of the window.

        dropped_count: See `Trace`.

        children: See `Trace`.

        device_children: See `Trace`.

        unrecorded: See `Trace`.

        api_version: The API version of the loaded libcupti, or None if unknown.

        sink: Opens a sink for more than 200,000 launches, or None to keep all launches in
            memory.
    """
    with collector_paused():
        records = Sorted(batches, bounds.label_kind)
        owner = _Owner(records, bounds)
        kernels = Kernels(records)
        owned = owner.of(let_go(records.work[KERNEL]))
        launches = kernels.launches(owned, sink)
        copies = _copies(records, owner, api_version)
        fills = tuple((r.bytes, r.start, r.end) for r in owner.of(records.work[FILL]))
        graph_records = tuple(owner.of(records.work[GRAPH]))
        graphs = tuple((r.start, r.end) for r in graph_records)
        spans = chain(
            ((copy.start_ns, copy.end_ns) for copy in copies),
            ((start, end) for _, start, end in fills),
            graphs,
        )
        began = bounds.begun_ns.__le__
        waits = _waits(records, bounds)
        return Trace(
            begun_ns=bounds.begun_ns,
            ended_ns=bounds.ended_ns,
            launches=launches,
            copies=copies,
            fills=fills,
            graphs=graphs,
            host_launches_count=sum(map(owner.owns_call, records.launching)),
            latencies_ns=kernels.latencies_ns(graph_records),
            synchronizations=Counter(WAITS.get(r.type, UNKNOWN) for r in waits),
            wait_ends_ns=tuple(
                sorted(r.end for r in waits if WAITS.get(r.type) in HOST_WAITS)
            ),
            allocations=_allocations(records, bounds),
            compilations_ns=tuple(
                r.end - r.start
                for r in records.of_kind("JIT")
                if r.jit_operation_type == COMPILE and _inside(r, bounds)
            ),
            overheads_ns=_overheads(records, bounds),
            ranges=tuple(r for r in _ranges(records) if began(r.start_ns)),
            unlabelled_count=owner.unlabelled_count,
            untimed_count=kernels.untimed_count
            + sum(not (start and end) for start, end in spans),
            dropped_count=dropped_count,
            children=children,
            device_children=device_children,
            unrecorded=unrecorded or {},
        )


def read_samples(
    batches: Batches,
    *,
    label_kind: int,
    first: int,
    begins_ns: Sequence[int],
    places: dict[object, int],
) -> list[Sampled]:
    """
    Return the device work of each sample.

    Work with an earlier label than the first sample's was submitted between samples, like a
    cache flush, and belongs to no sample. Work without a label belongs to the sample in
    which it was submitted. A sample extends to the start of the next sample, where the
    device was idle.

    Args:
        batches: Lists of records, as CUPTI delivered them.

        label_kind: The kind of external ids that are labels.

        first: The label of the first sample. The labels of later samples follow.

        begins_ns: The start of each sample [ns].

        places: The number of each distinct kernel, copy, fill or graph so far. New entries
            are added.
    """
    with collector_paused():
        activity = Sorted(batches, label_kind)
        labels, calls = activity.labels, activity.calls
        count = len(begins_ns)
        samples = [_Sample() for _ in begins_ns]
        for kind, records in activity.work.items():
            named = _IDENTITIES[kind]
            for record in let_go(records):
                correlation, start = record.correlation_id, record.start
                label = labels.get(correlation)
                if label is None:
                    moment_ns = calls.get(correlation, start)
                    place = bisect_right(begins_ns, moment_ns) - 1
                else:
                    place = label - first
                if 0 <= place < count:
                    what = places.setdefault(named(record), len(places))
                    samples[place].add(start, record.end, what)
    return [sample.sampled() for sample in samples]


class _Sample:
    """Device work of one sample as it arrives, twenty bytes per piece."""

    __slots__ = ("_ends_ns", "_starts_ns", "_what")

    def __init__(self) -> None:
        self._starts_ns, self._ends_ns = array("Q"), array("Q")
        self._what = array("I")

    def add(self, start_ns: int, end_ns: int, what: int) -> None:
        """Add a piece of work. A time of 0 is missing."""
        self._starts_ns.append(start_ns)
        self._ends_ns.append(end_ns)
        self._what.append(what)

    def sampled(self) -> Sampled:
        """Return the work in order."""
        starts_ns, ends_ns, what = self._starts_ns, self._ends_ns, self._what
        if not all(map(le, starts_ns, islice(starts_ns, 1, None))):
            order = sorted(range(len(what)), key=starts_ns.__getitem__)
            what = array("I", map(what.__getitem__, order))
        timed = len(what) > 0 and all(starts_ns) and all(ends_ns)
        span_s = (max(ends_ns) - min(starts_ns)) / NS_PER_S if timed else None
        return Sampled(span_s=span_s, sequence=what.tobytes())


def _copies(
    records: Sorted, owner: _Owner, api_version: int | None
) -> tuple[Copy, ...]:
    counted = (api_version or 0) >= COPY_COUNT_SINCE
    return tuple(
        Copy(
            direction=DIRECTIONS.get(copy.copy_kind, UNKNOWN),
            source=MEMORY.get(copy.src_kind, UNKNOWN),
            target=MEMORY.get(copy.dst_kind, UNKNOWN),
            size_bytes=copy.bytes,
            # A record of a copy between peers has no count.
            count=max(1, getattr(copy, "copy_count", 1)) if counted else 1,
            start_ns=copy.start,
            end_ns=copy.end,
        )
        for kind in sorted(COPIES)
        for copy in owner.of(records.work[kind])
    )


def _inside(record: Any, bounds: Bounds) -> bool:  # noqa: ANN401 - a record has no type
    return bool(bounds.begun_ns <= record.start <= bounds.ended_ns)


def _waits(records: Sorted, bounds: Bounds) -> list[Any]:
    return [
        record
        for record in records.of_kind("SYNCHRONIZATION")
        if bounds.begun_ns <= record.start < bounds.returned_ns
    ]


def _allocations(records: Sorted, bounds: Bounds) -> tuple[int, ...]:
    """Return the sizes of the driver's allocations [B]."""
    return tuple(
        r.bytes
        for r in records.of_kind("MEMORY2")
        if r.memory_operation_type == ALLOCATION
        and r.memory_kind not in STATIC
        and bounds.begun_ns <= r.timestamp <= bounds.ended_ns
    )


def _overheads(records: Sorted, bounds: Bounds) -> dict[str, int]:
    """Return CUPTI's overhead by kind [ns]."""
    total: Counter[str] = Counter()
    for r in records.of_kind("OVERHEAD"):
        if _inside(r, bounds):
            total[OVERHEADS.get(r.overhead_kind, UNKNOWN)] += r.end - r.start
    return total


def _ranges(records: Sorted) -> Iterator[NamedRange]:
    open_ranges: dict[int, Any] = {}
    for r in records.of_kind("MARKER"):
        if r.flags_ & RANGE_START:
            open_ranges[r.id] = r
        elif r.flags_ & RANGE_END and r.id in open_ranges:
            start = open_ranges.pop(r.id)
            yield NamedRange(
                name=start.name or "",
                domain=start.domain or "",
                start_ns=start.timestamp,
                end_ns=r.timestamp,
            )


_IDENTITIES: dict[int, Callable[[Any], object]] = {
    KERNEL: _shape_key,
    FILL: lambda r: ("memset", r.bytes),
    GRAPH: lambda r: ("graph", r.graph_id),
    **dict.fromkeys(COPIES, lambda r: ("memcpy", r.copy_kind, r.bytes)),
}
