"""CUPTI's activity records into a Trace, or into the times of samples.

A piece of work belongs to whom its *label* says, which CUPTI writes beside the call that
submitted it: the external id of the calling thread. Threads that nobody labelled
(autograd's, a framework's own) submit work without one; that is told by when it was
submitted, and counted.
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
from pytest_gpuperf.model.activity import Copy, NamedRange, Trace
from pytest_gpuperf.model.frozen import Frozen, collector_paused
from pytest_gpuperf.model.launch import (
    COLUMNS,
    PIECE_COUNT,
    WHOLE_COUNT,
    KernelShape,
    Launches,
    LaunchList,
)

__all__ = [
    "UNKNOWN",
    "Bounds",
    "Kernels",
    "LaunchSink",
    "Sampled",
    "read_samples",
    "read_trace",
    "shape_key",
]

UNKNOWN = "unknown"
# what tells one shape from another, of a kernel's record
shape_key: Callable[[Any], tuple[Any, ...]] = attrgetter(
    "name",
    *("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z"),
    *("registers_per_thread", "static_shared_memory", "dynamic_shared_memory"),
    "local_memory_per_thread",
)


class LaunchSink(Protocol):
    """Takes more launches than are held in memory."""

    def put(self, launches: Launches) -> None:
        """Take launches; their `shapes` begin with those of the ones before them."""

    def end(self) -> LaunchList:
        """Return all that it took."""


class Kernels:
    """
    Kernels as they become columns, and what is told of them on the way.

    Args:
        found: The records.

    Attributes:
        untimed_count: Kernels without a start or an end.
    """

    def __init__(self, found: Sorted) -> None:
        self.untimed_count = 0
        self._found = found
        self._places: dict[tuple[Any, ...], int] = {}
        self._shapes: tuple[KernelShape, ...] = ()
        self._firsts: dict[int, int] = {}  # start of a call's first kernel [ns]

    def launches(
        self, kernels: Iterator[Any], sink: Callable[[], LaunchSink] | None
    ) -> LaunchList:
        """Return them in order, in memory or by way of a sink."""
        held = self._columns([])
        taker: LaunchSink | None = None
        while some := list(islice(kernels, PIECE_COUNT)):
            piece = self._columns(some)
            many = len(held) + len(piece) > WHOLE_COUNT
            if taker is None and sink is not None and many:
                taker = sink()
                taker.put(held)
            if taker is None:
                held = _joined(held, piece)
            else:
                taker.put(piece)
        return held if taker is None else taker.end()

    def latencies_ns(self, graphs: Iterable[Any]) -> array[int]:
        """
        Return for each launching call the time to its first kernel [ns].

        CUPTI puts the device's clock onto the host's by interpolation, so that a kernel
        may seem to begin a little before its call; that is no time at all.
        """
        for graph in graphs:
            self._began(graph.correlation_id, graph.start)
        calls, firsts = self._found.calls, self._firsts
        return array("q", (max(0, s - calls[called]) for called, s in firsts.items()))

    def _began(self, called: int, start_ns: int) -> None:
        """Note when a call's work began, if nothing of it began before."""
        known = start_ns and called in self._found.launching
        if known and start_ns < self._firsts.get(called, start_ns + 1):
            self._firsts[called] = start_ns

    def _columns(self, kernels: Iterable[Any]) -> Launches:
        """Return some kernels as columns; the shapes are those of all so far."""
        places, calls, began = self._places, self._found.calls, self._began
        place_of = places.setdefault
        columns = {name: array(code) for name, code in COLUMNS.items()}
        shape, start_ns, end_ns, call_ns, device, stream, graph = columns.values()
        for k in kernels:
            correlation, start, end = k.correlation_id, k.start, k.end
            began(correlation, start)
            if not (start and end):
                self.untimed_count += 1
            shape.append(place_of(shape_key(k), len(places)))
            start_ns.append(start)
            end_ns.append(end)
            call_ns.append(calls.get(correlation, 0))
            device.append(k.device_id)
            stream.append(k.stream_id)
            graph.append(k.graph_id)
        self._shapes += tuple(map(_shape, islice(places, len(self._shapes), None)))
        return Launches(shapes=self._shapes, **columns)


def _joined(first: Launches, second: Launches) -> Launches:
    """Return launches after others, whose columns become those of both."""
    columns: dict[str, Any] = {name: getattr(first, name) for name in COLUMNS}
    for name, column in columns.items():
        column.extend(getattr(second, name))
    return Launches(shapes=second.shapes, **columns)


def _shape(key: tuple[Any, ...]) -> KernelShape:
    """Return the shape of a key."""
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
    Where a window begins and ends.

    Attributes:
        label_kind: Which of CUPTI's external ids are its labels.

        first: Its own label; higher ones were given while it was open.

        begun_ns: When it began [ns].

        returned_ns: When its body had returned, before the device was waited for [ns].

        ended_ns: When the device was idle again [ns].
    """

    label_kind: int
    first: int
    begun_ns: int
    returned_ns: int
    ended_ns: int


class Sampled(Frozen, frozen=True, kw_only=True):
    """
    What one sample did on the device.

    Attributes:
        span_s: First start to last end [s]; None: nothing ran, or its time is not known.

        sequence: What it launched, in order, four bytes a piece; equal for equal work
            of one table of places.
    """

    span_s: float | None
    sequence: bytes


class _Owner:
    """
    Says what belongs to a window.

    Attributes:
        unlabelled_count: How much of it was told by time.
    """

    def __init__(self, found: Sorted, bounds: Bounds) -> None:
        self.unlabelled_count = 0
        self._labels, self._calls = found.labels, found.calls
        self._bounds = bounds

    def owns(self, correlation: int, start_ns: int) -> bool:
        """Return whether a piece of work belongs to the window."""
        bounds = self._bounds
        label = self._labels.get(correlation)
        if label is not None:
            return label >= bounds.first
        moment_ns = self._calls.get(correlation, start_ns)
        mine = bounds.begun_ns <= moment_ns <= bounds.ended_ns
        self.unlabelled_count += mine
        return mine

    def owns_call(self, correlation: int) -> bool:
        """Return whether a call belongs to the window; it counts nothing."""
        bounds = self._bounds
        label = self._labels.get(correlation)
        if label is not None:
            return label >= bounds.first
        return bounds.begun_ns <= self._calls[correlation] <= bounds.ended_ns

    def of(self, records: Iterable[Any]) -> list[Any]:
        """Return the work that belongs to the window."""
        return list(self.each_of(records))

    def each_of(self, records: Iterable[Any]) -> Iterator[Any]:
        """Yield the work that belongs to the window."""
        owns = self.owns
        return (each for each in records if owns(each.correlation_id, each.start))


def read_trace(
    batches: Batches,
    bounds: Bounds,
    *,
    dropped_count: int = 0,
    children: tuple[str, ...] = (),
    device_children: tuple[int, ...] = (),
    unrecorded: dict[str, str] | None = None,
    sink: Callable[[], LaunchSink] | None = None,
) -> Trace:
    """
    Return what a window saw.

    Args:
        batches: Lists of records, as CUPTI handed them over.

        bounds: Where it begins and ends.

        dropped_count: As `Trace`'s.

        children: As `Trace`'s.

        device_children: As `Trace`'s.

        unrecorded: As `Trace`'s.

        sink: Returns what takes launches where there are more than 200,000; None: they
            stay in memory.
    """
    with collector_paused():
        found = Sorted(batches, bounds.label_kind)
        owner = _Owner(found, bounds)
        kernels = Kernels(found)
        mine = owner.each_of(let_go(found.work[KERNEL]))
        launches = kernels.launches(mine, sink)
        copies = tuple(
            _copy(each)
            for kind in sorted(COPIES)
            for each in owner.of(found.work[kind])
        )
        fills = tuple((r.bytes, r.start, r.end) for r in owner.of(found.work[FILL]))
        whole = owner.of(found.work[GRAPH])
        graphs = tuple((r.start, r.end) for r in whole)
        spans = chain(
            ((each.start_ns, each.end_ns) for each in copies),
            ((start, end) for _, start, end in fills),
            graphs,
        )
        began = bounds.begun_ns.__le__
        return Trace(
            begun_ns=bounds.begun_ns,
            ended_ns=bounds.ended_ns,
            launches=launches,
            copies=copies,
            fills=fills,
            graphs=graphs,
            host_launches_count=sum(map(owner.owns_call, found.launching)),
            latencies_ns=kernels.latencies_ns(whole),
            synchronizations=_waits(found, bounds),
            allocations=_allocations(found, bounds),
            compilations_ns=tuple(
                r.end - r.start
                for r in found.of_kind("JIT")
                if r.jit_operation_type == COMPILE and _inside(r, bounds)
            ),
            overheads_ns=_overheads(found, bounds),
            ranges=tuple(r for r in _ranges(found) if began(r.start_ns)),
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
    Return what each of some samples did on the device.

    Work labelled 0 was submitted between samples, as a flush of caches is, and counts in
    none. Work without a label is told by when it was submitted: from a sample's start to
    the next one's, for the device was idle there.

    Args:
        batches: Lists of records, as CUPTI handed them over.

        label_kind: Which external ids are labels.

        first: The label of the first sample; the others follow.

        begins_ns: When each sample began [ns].

        places: Number of each thing that was launched so far, which becomes longer.
    """
    with collector_paused():
        found = Sorted(batches, label_kind)
        labels, calls = found.labels, found.calls
        count = len(begins_ns)
        samples = [_Sample() for _ in begins_ns]
        for kind, records in found.work.items():
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
    return [each.sampled() for each in samples]


class _Sample:
    """Work of one sample as it is found, twenty bytes a piece."""

    __slots__ = ("_ends_ns", "_starts_ns", "_what")

    def __init__(self) -> None:
        self._starts_ns, self._ends_ns = array("Q"), array("Q")
        self._what = array("I")

    def add(self, start_ns: int, end_ns: int, what: int) -> None:
        """Add one piece; a moment of 0 is not known."""
        self._starts_ns.append(start_ns)
        self._ends_ns.append(end_ns)
        self._what.append(what)

    def sampled(self) -> Sampled:
        """Return what the sample did."""
        starts_ns, ends_ns, what = self._starts_ns, self._ends_ns, self._what
        if not all(map(le, starts_ns, islice(starts_ns, 1, None))):
            order = sorted(range(len(what)), key=starts_ns.__getitem__)
            what = array("I", map(what.__getitem__, order))
        timed = len(what) > 0 and all(starts_ns) and all(ends_ns)
        span_s = (max(ends_ns) - min(starts_ns)) / NS_PER_S if timed else None
        return Sampled(span_s=span_s, sequence=what.tobytes())


def _copy(r: Any) -> Copy:  # noqa: ANN401 - a record has no type
    """Return one copy."""
    return Copy(
        direction=DIRECTIONS.get(r.copy_kind, UNKNOWN),
        source=MEMORY.get(r.src_kind, UNKNOWN),
        target=MEMORY.get(r.dst_kind, UNKNOWN),
        size_bytes=r.bytes,
        count=max(1, getattr(r, "copy_count", 1)),  # a copy between peers has none
        start_ns=r.start,
        end_ns=r.end,
    )


def _inside(record: Any, bounds: Bounds) -> bool:  # noqa: ANN401 - a record has no type
    """Return whether something began inside a window."""
    return bool(bounds.begun_ns <= record.start <= bounds.ended_ns)


def _waits(found: Sorted, bounds: Bounds) -> dict[str, int]:
    """Return waits by kind; the one that ends the window is not one of them."""
    return Counter(
        WAITS.get(r.type, UNKNOWN)
        for r in found.of_kind("SYNCHRONIZATION")
        if bounds.begun_ns <= r.start < bounds.returned_ns
    )


def _allocations(found: Sorted, bounds: Bounds) -> tuple[int, ...]:
    """Return the sizes of what was asked of the driver [B]."""
    return tuple(
        r.bytes
        for r in found.of_kind("MEMORY2")
        if r.memory_operation_type == ALLOCATION
        and r.memory_kind not in STATIC
        and bounds.begun_ns <= r.timestamp <= bounds.ended_ns
    )


def _overheads(found: Sorted, bounds: Bounds) -> dict[str, int]:
    """Return CUPTI's own cost by kind [ns]."""
    total: Counter[str] = Counter()
    for r in found.of_kind("OVERHEAD"):
        if _inside(r, bounds):
            total[OVERHEADS.get(r.overhead_kind, UNKNOWN)] += r.end - r.start
    return total


def _ranges(found: Sorted) -> Iterator[NamedRange]:
    """Yield the NVTX ranges whose start and end were both seen."""
    open_ranges: dict[int, Any] = {}
    for r in found.of_kind("MARKER"):
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
    KERNEL: shape_key,
    FILL: lambda r: ("memset", r.bytes),
    GRAPH: lambda r: ("graph", r.graph_id),
    **dict.fromkeys(COPIES, lambda r: ("memcpy", r.copy_kind, r.bytes)),
}
