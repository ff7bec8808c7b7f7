"""How often kernels ran in a window, how long, and when anything ran."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable

from pytest_gpuperf.model.activity import Trace

__all__ = ["DeviceUse", "length_ns"]

Span = tuple[int, int]  # start and end [ns]; 0: not known


class DeviceUse:
    """
    What a window used the device for.

    Launches are taken in pieces: there may be more than memory should hold.

    Args:
        trace: What was seen.

    Attributes:
        counts: Launches by the place of their shape.

        total_ns: How long they ran, likewise [ns].

        starts_ns: When something began to run after nothing did, in order [ns].

        ends_ns: When nothing ran any more, likewise [ns].
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
        self._ran((copy.start_ns, copy.end_ns) for copy in trace.copies)
        self._ran((start, end) for _, start, end in trace.fills)
        self._ran(trace.graphs)

    def _ran(self, spans: Iterable[Span]) -> None:
        """Take more times in which something ran; those without both ends are none."""
        starts, ends = self.starts_ns, self.ends_ns
        last_start, last_end = (starts[-1], ends[-1]) if starts else (0, 0)
        late: list[Span] = []  # what began before the last that is known
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
            self._ran(sorted(late))  # in order, none of them is late


def length_ns(start_ns: int, end_ns: int) -> int:
    """Return how long something took [ns]; 0: one end of it is not known."""
    return end_ns - start_ns if start_ns and end_ns else 0
