"""Times and counts of the device activity of a measurement."""

from __future__ import annotations

import hashlib
import heapq
import re
from array import array
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from operator import sub
from statistics import median
from typing import Any, NamedTuple, TypeVar

from pytest_gpuperf.model.activity import (
    HOST_WAITS,
    ActivitySummary,
    Copy,
    KernelShape,
    KernelUse,
    Trace,
    Track,
    TransferUse,
)
from pytest_gpuperf.model.gap import Gap, GapCode
from pytest_gpuperf.model.metric import KERNEL_SET, METRICS, Kind, gpu_metrics
from pytest_gpuperf.model.record import Note
from pytest_gpuperf.model.sample import Estimate, Source, Unmeasured

Span = tuple[int, int]  # Start and end [ns], 0 if unknown.


class DeviceUse:
    """
    The use of the device in a window.

    Launches are read in pieces, since all of them may not fit into memory.

    Args:
        trace: The recorded activity.

    Attributes:
        counts: Number of launches, by the index of their shape.

        total_ns: Total time of launches, by the index of their shape [ns].

        starts_ns: Starts of the busy intervals, in order [ns].

        ends_ns: Ends of the busy intervals [ns].

        copying_ns: Time in which only copies ran [ns].
    """

    def __init__(self, trace: Trace) -> None:
        self.counts: Counter[int] = Counter()
        self.total_ns = [0] * len(trace.launches.shapes)
        self.starts_ns, self.ends_ns = array("Q"), array("Q")
        for piece in trace.launches.pieces():
            self.counts.update(piece.shape)
            for place, start, end in zip(
                piece.shape, piece.start_ns, piece.end_ns, strict=True
            ):
                self.total_ns[place] += length_ns(start, end)
            self._ran(zip(piece.start_ns, piece.end_ns, strict=True))
        self._ran((start, end) for _, start, end in trace.fills)
        self._ran(trace.graphs)
        worked_ns = self.busy_ns
        self._ran((copy.start_ns, copy.end_ns) for copy in trace.copies)
        self.copying_ns = self.busy_ns - worked_ns

    @property
    def busy_ns(self) -> int:
        """The time in which anything ran [ns]."""
        return sum(self.ends_ns) - sum(self.starts_ns)

    def longest_first(self) -> list[int]:
        """Return the indices of the shapes that ran, longest total time first."""
        return sorted(self.counts, key=lambda place: (-self.total_ns[place], place))

    def waited_ns(self, wait_ends_ns: Sequence[int]) -> int:
        """
        Return the total length of gaps in which a wait of the host ended [ns].

        Args:
            wait_ends_ns: End of each wait [ns], in order.
        """
        waited = 0
        for begin, end in zip(
            self.ends_ns, islice(self.starts_ns, 1, None), strict=False
        ):
            place = bisect_left(wait_ends_ns, begin)
            if place < len(wait_ends_ns) and wait_ends_ns[place] <= end:
                waited += end - begin
        return waited

    def _ran(self, spans: Iterable[Span]) -> None:
        """Merge spans into the busy intervals, skipping spans without both ends."""
        starts, ends = self.starts_ns, self.ends_ns
        last_start, last_end = (starts[-1], ends[-1]) if starts else (0, 0)
        late: list[Span] = []  # Spans that start before the last interval.
        for start, end in spans:
            if not start or not end or start == end:
                continue
            if start < last_start:
                late.append((start, end))
            elif start > last_end:
                starts.append(start)
                ends.append(end)
                last_start, last_end = start, end
            elif end > last_end:
                ends[-1] = last_end = end
        if late:
            late.sort()
            first = max(0, bisect_left(starts, late[0][0]) - 1)
            late += zip(starts[first:], ends[first:], strict=True)
            del starts[first:], ends[first:]
            self._ran(sorted(late))  # Sorted spans are never late.


def length_ns(start_ns: int, end_ns: int) -> int:
    """Return the length of a span [ns], or 0 if an end is unknown."""
    return end_ns - start_ns if start_ns and end_ns else 0


_NS_PER_S = 1e9
# A record is sent between processes, so the kernels are limited to 60 kB.
_LISTED_KERNELS = 256
# Pieces of work, which take 3 kB. More cannot be distinguished on a page.
_TRACKED = 120
# Of each kind. More are not needed, since the starts are nearly in order.
_SEARCHED = 1000
_ANONYMOUS = re.compile(r"(\d+)_GLOBAL__N_")
# Of SHA-256. Two of a million choices collide once in 10^7 suites.
_CHOICE_DIGITS = 16

# The kinds of record, and the metrics computed from a single kind.
_NEEDS = {
    "SYNCHRONIZATION": ("synchronizations.count",),
    "MEMORY2": ("allocations.count",),
    "JIT": ("compile.count", "compile.time"),
}
_N = TypeVar("_N", int, float)


def summarise(
    trace: Trace, *, demangle: Callable[[str], str | None] = lambda _: None
) -> ActivitySummary:
    """
    Summarise the device activity of a window.

    Args:
        trace: The recorded activity.

        demangle: Function that returns a demangled name, or None on failure.
    """
    use = DeviceUse(trace)
    counts, shapes = use.counts, trace.launches.shapes
    order = use.longest_first()
    waits = trace.synchronizations
    pieces_count = len(trace.launches) + len(trace.copies)
    pieces_count += len(trace.fills) + len(trace.graphs)
    # The child processes whose work is missing: those known to use a GPU. If the use is
    # unknown and nothing ran in this process, the test may have left its work to any child.
    unseen = tuple(map(str, trace.device_children))
    if not unseen and not pieces_count:
        unseen = trace.children

    def recorded(kind: str, value: _N) -> _N | None:
        return None if kind in trace.unrecorded else value

    return ActivitySummary(
        kernels=_kernels(use, order, shapes, demangle),
        kernels_count=len(shapes),
        launches_count=len(trace.launches),
        host_launches_count=trace.host_launches_count,
        launch_latency_s=(
            median(trace.latencies_ns) / _NS_PER_S if trace.latencies_ns else None
        ),
        transfers=_transfers(trace.copies),
        fills_count=len(trace.fills),
        fills_bytes=sum(size for size, _, _ in trace.fills),
        synchronizations_count=recorded(
            "SYNCHRONIZATION", sum(waits.get(kind, 0) for kind in HOST_WAITS)
        ),
        stream_waits_count=recorded("SYNCHRONIZATION", waits.get("stream_wait", 0)),
        allocations_count=recorded("MEMORY2", len(trace.allocations)),
        allocations_bytes=recorded("MEMORY2", sum(trace.allocations)),
        compilations_count=recorded("JIT", len(trace.compilations_ns)),
        compile_s=recorded("JIT", sum(trace.compilations_ns) / _NS_PER_S),
        overhead_s=recorded("OVERHEAD", sum(trace.overheads_ns.values()) / _NS_PER_S),
        choice=(
            choice_of({shapes[place]: count for place, count in counts.items()})
            if counts and not (unseen or trace.dropped_count or trace.graphs)
            else None
        ),
        unlabelled_count=trace.unlabelled_count,
        untimed_count=trace.untimed_count,
        dropped_count=trace.dropped_count,
        unseen=unseen,
        children=trace.children,
        unrecorded=trace.unrecorded,
        tracks=_tracks(trace, order[:_LISTED_KERNELS]),
        pieces_count=max(0, pieces_count - trace.untimed_count),
        **_times(use, trace),
    )


def choice_of(counts: Mapping[KernelShape, int]) -> str:
    """
    Return a hash of the kernels that ran and of the launch counts.

    Two runs with different choices are different experiments. Parts of names that change
    with every build, those of anonymous namespaces, are left out.

    Args:
        counts: Number of launches of each shape.

    References:
        docs/judging.md section 1.
    """
    lines = Counter[str]()
    for shape, count in counts.items():
        launch = (
            _family(shape.name),
            shape.grid,
            shape.block,
            shape.registers_count,
            shape.shared_bytes,
            shape.dynamic_shared_bytes,
        )
        lines[repr(launch)] += count
    text = "\n".join(f"{launch} x {count}" for launch, count in sorted(lines.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:_CHOICE_DIGITS]


def estimates(
    summary: ActivitySummary,
) -> tuple[tuple[Estimate, ...], tuple[Unmeasured, ...]]:
    """
    Return the metrics of a window, and the unmeasured metrics with reasons.

    A count that may be incomplete is unmeasured.
    """
    if summary.unseen:
        # The work of child processes is missing in every metric.
        elsewhere = Gap(
            code=GapCode.UNSUPPORTED,
            reason=f"child processes ran during the measurement ({', '.join(summary.unseen)}), and CUPTI records"
            " its own process only",
            remedy="do the work in the test's own process",
        )
        lost = gpu_metrics(Source.CUPTI, Kind.RANGE)
        return (), tuple(Unmeasured.of_metric(name, elsewhere) for name in lost)
    timeless = Gap(
        code=GapCode.NO_KERNEL,
        reason="nothing that CUPTI could time ran on the device",
        remedy="measure a call that uses the device",
    )
    gaps = dict.fromkeys(("time.busy", "time.idle_fraction"), timeless)
    gaps["launches.latency"] = Gap(
        code=GapCode.NO_KERNEL,
        reason="no call launched a kernel",
        remedy="measure a call that launches a kernel",
    )
    gaps[KERNEL_SET] = Gap(
        code=GapCode.INCOMPLETE,
        reason="which kernels ran is not known: none did, or a graph is one record, or"
        " records were lost",
        remedy="measure a call that launches its kernels in this process",
    )
    for kind, names in _NEEDS.items():
        unrecorded = Gap(
            code=GapCode.UNSUPPORTED,
            reason="CUPTI does not record it here:"
            f" {summary.unrecorded.get(kind, kind)}",
            remedy="pip install --upgrade nvidia-cuda-cupti, or update the driver",
        )
        gaps |= dict.fromkeys(names, unrecorded)
    estimated, unmeasured = [], []
    for name, value in _values(summary):
        if value is None:
            unmeasured.append(Unmeasured.of_metric(name, gaps[name]))
        else:
            unit = METRICS[name].unit or ""
            estimated.append(
                Estimate(
                    metric=name, value=float(value), unit=unit, source=Source.CUPTI
                )
            )
    return tuple(estimated), tuple(unmeasured)


def notes(summary: ActivitySummary) -> tuple[Note, ...]:
    """Return notes on work that may be missing in a window's times or counts."""
    remarks = []
    if summary.unlabelled_count:
        text = (
            f"{_pieces_of(summary.unlabelled_count)} launched by threads without a label,"
            " and assigned by time"
        )
        remarks.append(Note(code="unlabelled-work", text=text))
    if summary.untimed_count:
        text = (
            f"{_pieces_of(summary.untimed_count)} not timed by CUPTI, and missing in"
            " time.busy and time.idle_fraction"
        )
        remarks.append(Note(code="untimed-work", text=text))
    if summary.children and not summary.unseen:
        text = (
            f"child processes ran during the measurement ({', '.join(summary.children)}): their work on"
            " a GPU is not counted"
        )
        remarks.append(Note(code="child-processes", text=text))
    return tuple(remarks)


def _pieces_of(count: int) -> str:
    return f"{count} piece{'s' * (count > 1)} of work {'were' if count > 1 else 'was'}"


def _values(summary: ActivitySummary) -> Iterator[tuple[str, float | None]]:
    def moved(direction: str) -> int:
        return sum(t.size_bytes for t in summary.transfers if t.direction == direction)

    pageable = (
        t.size_bytes for t in summary.transfers if "pageable" in {t.source, t.target}
    )
    yield "time.busy", summary.busy_s
    yield "time.idle_fraction", summary.idle_fraction
    yield "launches.count", summary.launches_count
    yield "launches.host_count", summary.host_launches_count
    yield KERNEL_SET, None if summary.choice is None else summary.kernels_count
    yield "launches.latency", summary.launch_latency_s
    yield "synchronizations.count", summary.synchronizations_count
    yield "allocations.count", summary.allocations_count
    yield "transfers.host_to_device_bytes", moved("host_to_device")
    yield "transfers.device_to_host_bytes", moved("device_to_host")
    yield "transfers.pageable_bytes", sum(pageable)
    yield "compile.count", summary.compilations_count
    yield "compile.time", summary.compile_s


def _times(use: DeviceUse, trace: Trace) -> dict[str, Any]:
    """Return the times of a summary, or {} if nothing with both ends ran."""
    starts, ends = use.starts_ns, use.ends_ns
    if not starts:
        return {}
    span_ns, busy_ns = ends[-1] - starts[0], use.busy_ns
    waited_s = use.waited_ns(trace.wait_ends_ns) / _NS_PER_S
    gaps_ns = map(sub, islice(starts, 1, None), ends)
    return {
        "span_s": span_ns / _NS_PER_S,
        "busy_s": busy_ns / _NS_PER_S,
        "idle_fraction": 1 - busy_ns / span_ns,
        "gaps_count": len(starts) - 1,
        "longest_gap_s": max(gaps_ns, default=0) / _NS_PER_S,
        "copying_s": use.copying_ns / _NS_PER_S,
        "waited_s": None if "SYNCHRONIZATION" in trace.unrecorded else waited_s,
    }


def _kernels(
    use: DeviceUse,
    order: Sequence[int],
    shapes: Sequence[KernelShape],
    demangle: Callable[[str], str | None],
) -> tuple[KernelUse, ...]:
    return tuple(
        KernelUse(
            shape=shapes[place],
            demangled=demangle(shapes[place].name),
            count=use.counts[place],
            total_s=use.total_ns[place] / _NS_PER_S,
        )
        for place in order[:_LISTED_KERNELS]
    )


class _Piece(NamedTuple):
    """A piece of work, sorted by its start."""

    start_ns: int
    end_ns: int
    kind: str
    device: int = -1  # -1 if not recorded.
    stream: int = -1
    shape: int = -1


def _tracks(trace: Trace, listed: Sequence[int]) -> tuple[Track, ...]:
    """
    Return the first pieces of work by device and stream.

    Args:
        trace: The recorded activity.

        listed: Indices of the shapes in `ActivitySummary.kernels`, in the same order.
    """
    launched = chain.from_iterable(
        zip(p.start_ns, p.end_ns, p.device, p.stream, p.shape, strict=True)
        for p in trace.launches.pieces()
    )
    others = (
        ("copy", ((copy.start_ns, copy.end_ns) for copy in trace.copies)),
        ("memset", ((start_ns, end_ns) for _, start_ns, end_ns in trace.fills)),
        ("graph", trace.graphs),
    )
    pieces = chain(
        (
            _Piece(start_ns, end_ns, "kernel", device, stream, shape)
            for start_ns, end_ns, device, stream, shape in islice(launched, _SEARCHED)
        ),
        (
            _Piece(start_ns, end_ns, kind)
            for kind, spans in others
            for start_ns, end_ns in islice(spans, _SEARCHED)
        ),
    )
    timed = (piece for piece in pieces if piece.start_ns and piece.end_ns)
    first = heapq.nsmallest(_TRACKED, timed)
    kernels = {shape: place for place, shape in enumerate(listed)}
    by_track: dict[tuple[str, int, int], list[_Piece]] = {}
    for piece in first:
        by_track.setdefault((piece.kind, piece.device, piece.stream), []).append(piece)
    order = ("kernel", "graph", "copy", "memset")
    return tuple(
        Track(
            kind=kind,
            device=device if device >= 0 else None,
            stream=stream if stream >= 0 else None,
            starts_ns=tuple(p.start_ns - first[0].start_ns for p in own),
            ends_ns=tuple(p.end_ns - first[0].start_ns for p in own),
            kernels=tuple(kernels.get(p.shape, -1) for p in own)
            if kind == "kernel"
            else (),
        )
        for (kind, device, stream), own in sorted(
            by_track.items(), key=lambda item: (order.index(item[0][0]), *item[0][1:])
        )
    )


def _transfers(copies: tuple[Copy, ...]) -> tuple[TransferUse, ...]:
    groups: dict[tuple[str, str, str], list[Copy]] = defaultdict(list)
    for copy in copies:
        groups[copy.direction, copy.source, copy.target].append(copy)
    uses = (
        TransferUse(
            direction=direction,
            source=source,
            target=target,
            count=sum(copy.count for copy in group),
            size_bytes=sum(copy.size_bytes for copy in group),
            total_s=sum(length_ns(c.start_ns, c.end_ns) for c in group) / _NS_PER_S,
        )
        for (direction, source, target), group in groups.items()
    )
    return tuple(sorted(uses, key=lambda use: -use.size_bytes))


def _family(name: str) -> str:
    """
    Return a mangled name without the parts that change from build to build.

    An anonymous namespace is spelled with its own length in front, as all names are:
    `_ZN51_GLOBAL__N__4b7ac2d5_7_code_cu_0f1e2d3c_1234kernelEv`.
    """
    match = _ANONYMOUS.search(name)
    while match is not None:
        begin, length = match.start(), int(match[1])
        end = match.end(1) + length
        name = f"{name[:begin]}12_GLOBAL__N_1{name[end:]}"
        match = _ANONYMOUS.search(name, begin + len("12_GLOBAL__N_1"))
    return name
