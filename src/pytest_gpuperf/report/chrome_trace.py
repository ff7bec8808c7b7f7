"""The launches of a recording as a trace that Perfetto and chrome://tracing open."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import msgspec

from pytest_gpuperf.model.activity import Trace
from pytest_gpuperf.model.record import Record
from pytest_gpuperf.report.escape import escape

__all__ = ["chrome_trace_bytes"]

_NS_PER_US = 1000
_US_PER_S = 1e6


class _Slice(NamedTuple):
    """Something that took its time on a track."""

    track: str
    name: str
    category: str
    start_ns: int
    end_ns: int
    details: dict[str, object]


def chrome_trace_bytes(
    traces: Iterable[tuple[Record, Trace]],
    *,
    demangle: Callable[[str], str | None] = lambda _: None,
) -> bytes:
    """
    Return measurements as trace events [JSON]: a process each, a thread for each stream.

    Kernels, copies, memsets, graphs and NVTX ranges are slices, and the readings of the
    GPU's sensors are counters. What has no start or end is left out.

    Args:
        traces: Measurements with their traces.

        demangle: Returns a readable name; None: it does not know.
    """
    events: list[dict[str, object]] = []
    first_ns: int | None = None
    for number, (record, trace) in enumerate(traces, start=1):
        first_ns = trace.begun_ns if first_ns is None else first_ns
        events += _process_events(number, record)
        events += _slice_events(number, _slices(trace, demangle), first_ns)
        since_us = (trace.begun_ns - first_ns) / _NS_PER_US
        events += _counter_events(number, record, since_us)
    return msgspec.json.encode({"displayTimeUnit": "ns", "traceEvents": events})


def _process_events(number: int, record: Record) -> Iterator[dict[str, object]]:
    """Yield the name of a measurement's process, and its place among them."""
    name = escape(str(record.key))
    if record.process_index:
        name = f"{name} ({record.role.value} {record.process_index})"
    for kind, value in (
        ("process_name", {"name": name}),
        ("process_sort_index", {"sort_index": number}),
    ):
        yield {"ph": "M", "name": kind, "pid": number, "tid": 0, "args": value}


def _slices(trace: Trace, demangle: Callable[[str], str | None]) -> Iterator[_Slice]:
    """Yield all that has a start and an end."""
    yield from _kernels(trace, demangle)
    for copy in trace.copies:
        details = {
            "bytes": copy.size_bytes,
            "count": copy.count,
            "source": copy.source,
            "target": copy.target,
        }
        name = escape(copy.direction.replace("_", " "))
        yield _Slice("copies", name, "copy", copy.start_ns, copy.end_ns, details)
    for size_bytes, start_ns, end_ns in trace.fills:
        details = {"bytes": size_bytes}
        yield _Slice("memsets", "memset", "memset", start_ns, end_ns, details)
    for start_ns, end_ns in trace.graphs:
        yield _Slice("graphs", "graph", "graph", start_ns, end_ns, {})
    for named in trace.ranges:
        track = f"NVTX {escape(named.domain)}".rstrip()
        name = escape(named.name)
        yield _Slice(track, name, "nvtx", named.start_ns, named.end_ns, {})


def _kernels(trace: Trace, demangle: Callable[[str], str | None]) -> Iterator[_Slice]:
    """Yield the kernels, by device and stream."""
    shapes = trace.launches.shapes
    names = [escape(demangle(shape.name) or shape.name) for shape in shapes]
    details: list[dict[str, object]] = [
        {
            "grid": shape.grid,
            "block": shape.block,
            "registers": shape.registers_count,
            "static_shared_bytes": shape.shared_bytes,
            "dynamic_shared_bytes": shape.dynamic_shared_bytes,
        }
        for shape in shapes
    ]
    for piece in trace.launches.pieces():
        for place, start_ns, end_ns, device, stream in zip(
            *(piece.shape, piece.start_ns, piece.end_ns, piece.device, piece.stream),
            strict=True,
        ):
            track = f"GPU {device} stream {stream}"
            name, more = names[place], details[place]
            yield _Slice(track, name, "kernel", start_ns, end_ns, more)


def _slice_events(
    number: int, slices: Iterable[_Slice], first_ns: int
) -> Iterator[dict[str, object]]:
    """Yield slices on threads: those of a thread that overlap stand on further ones."""
    threads: dict[tuple[str, int], int] = {}  # by track and lane
    ends: dict[str, list[int]] = {}  # of the last slice of each lane [ns]
    for one in sorted(slices, key=lambda each: (each.start_ns, -each.end_ns)):
        if not one.start_ns or not one.end_ns:
            continue
        lanes = ends.setdefault(one.track, [])
        lane = next((i for i, end in enumerate(lanes) if end <= one.start_ns), None)
        if lane is None:
            lane = len(lanes)
            lanes.append(0)
        lanes[lane] = one.end_ns
        thread = threads.setdefault((one.track, lane), len(threads) + 1)
        yield {
            "ph": "X",
            "name": one.name,
            "cat": one.category,
            "pid": number,
            "tid": thread,
            "ts": (one.start_ns - first_ns) / _NS_PER_US,
            "dur": (one.end_ns - one.start_ns) / _NS_PER_US,
            "args": one.details,
        }
    for (track, lane), thread in threads.items():
        name = f"{track} ({lane + 1})" if lane else track
        args = {"name": name}
        yield {
            "ph": "M",
            "name": "thread_name",
            "pid": number,
            "tid": thread,
            "args": args,
        }


def _counter_events(
    number: int, record: Record, since_us: float
) -> Iterator[dict[str, object]]:
    """Yield what sensors said of the GPUs."""
    for line in record.time_lines:
        for name, values in line.readings.items():
            for since_s, value in zip(line.since_s, values, strict=True):
                if value is not None:
                    yield {
                        "ph": "C",
                        "name": f"GPU {line.gpu_index} {escape(name)}",
                        "pid": number,
                        "ts": since_us + since_s * _US_PER_S,
                        "args": {name: value},
                    }
