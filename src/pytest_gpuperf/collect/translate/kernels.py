"""CUPTI's records of kernels as columns."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from operator import attrgetter
from typing import Any, Protocol

from pytest_gpuperf.collect.translate.cupti import Sorted
from pytest_gpuperf.model.launch import (
    COLUMNS,
    PIECE_COUNT,
    WHOLE_COUNT,
    KernelShape,
    Launches,
    LaunchList,
)

__all__ = ["UNKNOWN", "Kernels", "LaunchSink", "shape_key"]

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
