"""What the device did in one window of a process, and what that amounts to.

Moments are nanoseconds of one clock, whole numbers: a float cannot tell two nanoseconds
of this century apart. Lengths of time in a summary are seconds.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence

from pytest_gpuperf.model.frozen import BulkRecord, Frozen, finite
from pytest_gpuperf.model.launch import (
    KernelShape,
    Launches,
    LaunchList,
    TracePlace,
)

__all__ = [
    "ActivitySummary",
    "Copy",
    "KernelShape",
    "KernelUse",
    "LaunchList",
    "Launches",
    "NamedRange",
    "Trace",
    "TracePlace",
    "TransferUse",
]


class Copy(BulkRecord, frozen=True, kw_only=True):
    """
    One copy of memory, or several that the driver did as one.

    Attributes:
        direction: "host_to_device", "device_to_host", "device_to_device",
            "host_to_host", "peer_to_peer" or "unknown".

        source: The memory read: "pageable", "pinned", "device", "array", "managed"…

        target: The memory written.

        size_bytes: How much [B].

        count: Copies in it, >= 1.

        start_ns: When it began [ns]; 0: not known.

        end_ns: When it ended [ns].
    """

    direction: str
    source: str
    target: str
    size_bytes: int
    count: int
    start_ns: int
    end_ns: int


class NamedRange(BulkRecord, frozen=True, kw_only=True):
    """
    An NVTX range of the host.

    Attributes:
        name: Its text.

        domain: The domain; "": the default one.

        start_ns: When it began [ns].

        end_ns: When it ended [ns].
    """

    name: str
    domain: str
    start_ns: int
    end_ns: int


class Trace(Frozen, frozen=True, kw_only=True):
    """
    What CUPTI saw of one window.

    Attributes:
        begun_ns: When it began, on an idle device [ns].

        ended_ns: When the device was idle again [ns].

        launches: The kernels; above 200,000 that are kept, a stream of them.

        copies: The copies.

        fills: Size [B], start and end [ns] of each memset.

        graphs: Start and end [ns] of each graph that was recorded as a whole.

        host_launches_count: Calls that launched kernels or a graph.

        latencies_ns: Of each such call, from its start to its first kernel's [ns].

        synchronizations: Waits of the host by kind: "event", "stream", "context"; and of
            one stream for an event of another: "stream_wait".

        allocations: Sizes [B] of the driver's allocations.

        compilations_ns: Lengths [ns] of the driver's compilations of PTX.

        overheads_ns: CUPTI's and the driver's own cost by kind [ns].

        ranges: NVTX ranges that ended.

        unlabelled_count: Pieces of work whose thread carried no label of the window, and
            that are counted to it by when they were launched.

        untimed_count: Pieces of work without a start or an end.

        dropped_count: Records that were lost.

        children: Child processes that ran meanwhile, by number or in words: CUPTI sees
            its own process alone.

        device_children: Those that are known to use a GPU.

        unrecorded: What could not be recorded, and why, by the name of the kind.
    """

    begun_ns: int
    ended_ns: int
    launches: LaunchList
    copies: tuple[Copy, ...] = ()
    fills: tuple[tuple[int, int, int], ...] = ()
    graphs: tuple[tuple[int, int], ...] = ()
    host_launches_count: int = 0
    latencies_ns: Sequence[int] = array("q")
    synchronizations: Mapping[str, int] = {}
    allocations: tuple[int, ...] = ()
    compilations_ns: tuple[int, ...] = ()
    overheads_ns: Mapping[str, int] = {}
    ranges: tuple[NamedRange, ...] = ()
    unlabelled_count: int = 0
    untimed_count: int = 0
    dropped_count: int = 0
    children: tuple[str, ...] = ()
    device_children: tuple[int, ...] = ()
    unrecorded: Mapping[str, str] = {}


class KernelUse(Frozen, frozen=True, kw_only=True):
    """
    All launches of one shape.

    Attributes:
        shape: The kernel as it was launched.

        demangled: Its name as a reader writes it; None: no demangler is there, or it
            does not know the name.

        count: How often it ran.

        total_s: How long, all of them together [s].
    """

    shape: KernelShape
    demangled: str | None
    count: int
    total_s: float

    def __post_init__(self) -> None:
        """Refuse a time that is not finite."""
        finite("kernels.total_s", self.total_s)


class TransferUse(Frozen, frozen=True, kw_only=True):
    """
    All copies of one direction between two kinds of memory.

    Attributes:
        direction: As `Copy.direction`.

        source: The memory read.

        target: The memory written.

        count: How many.

        size_bytes: How much, together [B].

        total_s: How long, together [s].
    """

    direction: str
    source: str
    target: str
    count: int
    size_bytes: int
    total_s: float

    def __post_init__(self) -> None:
        """Refuse a time that is not finite."""
        finite("transfers.total_s", self.total_s)


class ActivitySummary(Frozen, frozen=True, kw_only=True):
    """
    What a window amounts to; all counts are of the whole window.

    Attributes:
        kernels: What ran, most time first; the shapes beyond the first 256 are not
            listed, and counted in `kernels_count` and `choice`.

        kernels_count: Shapes there were.

        launches_count: Kernels that ran; of graphs recorded as a whole none is known.

        host_launches_count: Calls that launched them; a graph is one.

        launch_latency_s: Median from such a call's start to its first kernel's [s];
            None: no call was seen.

        transfers: Copies by direction and kinds of memory, most bytes first.

        fills_count: Memsets.

        fills_bytes: What they wrote [B].

        synchronizations_count: Waits of the host; None: not recorded.

        stream_waits_count: Waits of a stream for another's event; None: not recorded.

        allocations_count: The driver's allocations; None: not recorded.

        allocations_bytes: Their sizes together [B].

        compilations_count: The driver's compilations of PTX; None: not recorded.

        compile_s: How long they took together [s].

        span_s: First start to last end of anything on any device [s]; None: nothing
            ran, or its time is not known.

        busy_s: Time in which something ran [s].

        idle_fraction: Share of the span in which nothing ran.

        gaps_count: Times in the span in which nothing ran.

        longest_gap_s: The longest of them [s]; 0: there was none.

        overhead_s: What CUPTI's records call overhead [s]; None: not recorded.

        choice: Hash of what ran and how often; None: no kernel ran, or not all are seen.

        unlabelled_count: As `Trace`'s.

        untimed_count: As `Trace`'s.

        dropped_count: As `Trace`'s.

        unseen: Child processes whose work on the device is missing, as far as anybody
            knows, by number or in words; empty: none is.

        children: As `Trace`'s.

        unrecorded: As `Trace`'s.

        kept: Where every launch and all else of the trace is kept, in the recording;
            None: it is not.
    """

    kernels: tuple[KernelUse, ...] = ()
    kernels_count: int = 0
    launches_count: int = 0
    host_launches_count: int = 0
    launch_latency_s: float | None = None
    transfers: tuple[TransferUse, ...] = ()
    fills_count: int = 0
    fills_bytes: int = 0
    synchronizations_count: int | None = None
    stream_waits_count: int | None = None
    allocations_count: int | None = None
    allocations_bytes: int | None = None
    compilations_count: int | None = None
    compile_s: float | None = None
    span_s: float | None = None
    busy_s: float | None = None
    idle_fraction: float | None = None
    gaps_count: int = 0
    longest_gap_s: float = 0.0
    overhead_s: float | None = None
    choice: str | None = None
    unlabelled_count: int = 0
    untimed_count: int = 0
    dropped_count: int = 0
    unseen: tuple[str, ...] = ()
    children: tuple[str, ...] = ()
    unrecorded: Mapping[str, str] = {}
    kept: TracePlace | None = None

    def __post_init__(self) -> None:
        """Refuse times that are not finite."""
        finite(
            "activity",
            self.launch_latency_s,
            self.compile_s,
            self.span_s,
            self.busy_s,
            self.idle_fraction,
            self.longest_gap_s,
            self.overhead_s,
        )
