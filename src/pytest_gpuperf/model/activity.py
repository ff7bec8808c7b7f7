"""Kernels, their launches, and what the device did in one window of a process.

Moments are nanoseconds of one clock, whole numbers: a float cannot tell two nanoseconds
of this century apart. Lengths of time in a summary are seconds.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Protocol

import msgspec

from pytest_gpuperf.errors import RecordError
from pytest_gpuperf.model.frozen import BulkRecord, Frozen, finite

__all__ = [
    "COLUMNS",
    "HOST_WAITS",
    "PIECE_COUNT",
    "WHOLE_COUNT",
    "ActivitySummary",
    "Copy",
    "FailedKernel",
    "KernelLaunch",
    "KernelResources",
    "KernelShape",
    "KernelTotal",
    "KernelUse",
    "LaunchList",
    "Launches",
    "NamedRange",
    "Occupancy",
    "Trace",
    "TracePlace",
    "Track",
    "TransferUse",
    "fits_kernel",
]


def fits_kernel(pattern: str, name: str, demangled: str | None = None) -> bool:
    """
    Return whether a kernel is one that a pattern means.

    Args:
        pattern: As of fnmatch, as "saxpy<4>*" or "rmsnorm".

        name: As the binary has it, mangled.

        demangled: As a reader writes it, with or without what is left out in speech: the
            result's type, which a kernel does not have, and the parameters' types.
    """
    plain = (demangled or name).removeprefix("void ")
    names = (name, demangled or name, plain, plain.rpartition("(")[0])
    return any(fnmatchcase(candidate, pattern) for candidate in names)


class KernelResources(Frozen, frozen=True, kw_only=True):
    """
    What the compiler gave one kernel for one target.

    Attributes:
        name: As the binary has it, mangled.

        demangled: As a reader writes it; None: no demangler was found or it failed.

        target: The chip it was compiled for, as the tools write it: `sm_90a`.

        registers_count: Registers of a thread.

        stack_bytes: Local memory of a thread [B]: spills and arrays indexed at run
            time; None: not bounded at compile time (recursion, function pointers).

        shared_bytes: Static shared memory of a block [B], without the share that
            the driver keeps for itself.

        dynamic_shared_bytes: Shared memory of a block asked for at launch [B]; None:
            the source did not say.

        spills_bytes: Spill stores and loads of a thread [B], the functions it calls
            included; None: no compiler log was given or it does not name the kernel.

        threads_per_block: Threads of a block; None: the source did not say.

        constant_bytes: Constant memory counted for the kernel [B]: its parameters
            and the literals of its code.

        barriers_count: Barriers of a block; None: no compiler log names them.
    """

    name: str
    demangled: str | None
    target: str
    registers_count: int
    stack_bytes: int | None
    shared_bytes: int
    constant_bytes: int
    dynamic_shared_bytes: int | None = None
    spills_bytes: int | None = None
    threads_per_block: int | None = None
    barriers_count: int | None = None

    def __post_init__(self) -> None:
        """Refuse counts that are negative, and a block without threads."""
        counts = {
            "registers_count": self.registers_count,
            "stack_bytes": self.stack_bytes,
            "shared_bytes": self.shared_bytes,
            "constant_bytes": self.constant_bytes,
            "dynamic_shared_bytes": self.dynamic_shared_bytes,
            "spills_bytes": self.spills_bytes,
            "barriers_count": self.barriers_count,
        }
        for field, value in counts.items():
            if value is not None and value < 0:
                message = f"{value} of kernel {self.name} is negative"
                raise RecordError(message, path=field)
        if self.threads_per_block is not None and self.threads_per_block < 1:
            message = f"a block of {self.threads_per_block} threads"
            raise RecordError(message, path="threads_per_block")


class FailedKernel(Frozen, frozen=True, kw_only=True):
    """
    A kernel of a binary whose value failed a comparison.

    Attributes:
        kernel: The kernel.

        metric: The value's metric.

        value: The value [unit].

        unit: The metric's unit.

        classes: The instructions that the kernel has, by class, the most frequent first;
            None: they were not asked for.
    """

    kernel: KernelResources
    metric: str
    value: float
    unit: str
    classes: Mapping[str, int] | None = None


class Occupancy(Frozen, frozen=True, kw_only=True):
    """
    How full a kernel's blocks can make a multiprocessor.

    Attributes:
        fraction: Resident warps over the most that the chip holds, 0 to 1; 0: the
            block cannot be launched there.

        active_blocks: Blocks resident on a multiprocessor at once.

        warps: Warps resident on a multiprocessor at once.

        limiter: What allows no more blocks: threads, blocks, registers, shared or
            barriers; of several, the first in this order.

        block_limits: Blocks that each of them alone would allow; what the kernel
            does not use is not in it.
    """

    fraction: float
    active_blocks: int
    warps: int
    limiter: str
    block_limits: Mapping[str, int]

    @property
    def limiters(self) -> tuple[str, ...]:
        """All that allow no more blocks: to free one of them alone gains nothing."""
        limits = self.block_limits.items()
        least = tuple(name for name, most in limits if most == self.active_blocks)
        return least or (self.limiter,)


WHOLE_COUNT = 200_000  # 8 MB of columns; a longer list is a stream where it is kept
PIECE_COUNT = 4096  # of one piece of a stream: 0.3 MB as text

COLUMNS = {  # of Launches, and array's code of the numbers that CUPTI has in each
    "shape": "I",
    "start_ns": "Q",
    "end_ns": "Q",
    "call_ns": "Q",
    "device": "I",
    "stream": "I",
    "graph": "I",
}

HOST_WAITS = ("event", "stream", "context")  # what the host waits for

Extent = tuple[int, int, int]  # x, y, z


class KernelShape(BulkRecord, frozen=True, kw_only=True):
    """
    A kernel as it was launched: two launches of one shape are the same choice.

    Attributes:
        name: As the device's code has it, mangled.

        grid: Blocks.

        block: Threads of a block.

        registers_count: Registers of a thread.

        shared_bytes: Static shared memory of a block [B].

        dynamic_shared_bytes: Shared memory of a block asked for at launch [B].

        stack_bytes: Local memory of a thread [B].
    """

    name: str
    grid: Extent
    block: Extent
    registers_count: int
    shared_bytes: int
    dynamic_shared_bytes: int
    stack_bytes: int


class LaunchList(Protocol):
    """Launches that are whole in memory, or a stream of pieces that are not."""

    @property
    def shapes(self) -> tuple[KernelShape, ...]:
        """The shapes there are."""

    def __len__(self) -> int:
        """Return how many kernels ran."""

    def pieces(self) -> Iterator[Launches]:
        """Yield them in order, some thousands at a time; `shapes` is that of all."""


class Launches(Frozen, frozen=True, kw_only=True):
    """
    Kernels that ran, as columns of equal length: some 40 bytes a kernel.

    Attributes:
        shapes: The shapes there are.

        shape: Place of each kernel's shape in `shapes`.

        start_ns: When it began [ns]; 0: not known.

        end_ns: When it ended [ns]; 0: not known.

        call_ns: When the call that launched it began [ns]; 0: not seen.

        device: The device's number in this process.

        stream: The stream's number, as CUPTI counts.

        graph: The number of the graph that it is a node of; 0: none.
    """

    shapes: tuple[KernelShape, ...]
    shape: Sequence[int]
    start_ns: Sequence[int]
    end_ns: Sequence[int]
    call_ns: Sequence[int]
    device: Sequence[int]
    stream: Sequence[int]
    graph: Sequence[int]

    def __len__(self) -> int:
        """Return how many kernels ran."""
        return len(self.shape)

    def pieces(self, count: int = PIECE_COUNT) -> Iterator[Launches]:
        """Yield them in order, `count` at a time."""
        for begin in range(0, len(self), count):
            columns = {n: getattr(self, n)[begin : begin + count] for n in COLUMNS}
            yield Launches(shapes=self.shapes, **columns)


class TracePlace(Frozen, frozen=True, kw_only=True):
    """
    Where the whole trace of a measurement stands in a recording.

    Attributes:
        file: The file's name in the recording's folder.

        line: The trace's first line, from 1.

        offset_bytes: Where that line begins [B].
    """

    file: str
    line: int
    offset_bytes: Annotated[int, msgspec.Meta(ge=0)]


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

        wait_ends_ns: When each wait of the host ended [ns], in order.

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
    wait_ends_ns: tuple[int, ...] = ()
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


class KernelLaunch(BulkRecord, array_like=True, frozen=True, kw_only=True):
    """
    How the launches of one shape were made; in a file, a list.

    Attributes:
        count: How often the kernel ran.

        grid: Blocks.

        block: Threads of a block.

        registers_count: Registers of a thread.

        shared_bytes: Shared memory of a block, static and asked for at launch [B].

        stack_bytes: Local memory of a thread [B].
    """

    count: int
    grid: Extent
    block: Extent
    registers_count: int
    shared_bytes: int
    stack_bytes: int


class KernelTotal(BulkRecord, array_like=True, frozen=True, kw_only=True):
    """
    What a session keeps of a kernel of one shape; in a file, a list.

    Attributes:
        name: As a reader writes it, where a demangler was there.

        total_s: How long all of its launches took, together [s].

        launch: How it was launched; None: the file is of an earlier version.
    """

    name: str
    total_s: float
    launch: KernelLaunch | None = None

    def __post_init__(self) -> None:
        """Refuse a time that is not finite."""
        finite("session.kernels", self.total_s)

    @classmethod
    def of(cls, use: KernelUse) -> KernelTotal:
        """Return what is kept of all launches of one shape."""
        shape = use.shape
        launch = KernelLaunch(
            count=use.count,
            grid=shape.grid,
            block=shape.block,
            registers_count=shape.registers_count,
            shared_bytes=shape.shared_bytes + shape.dynamic_shared_bytes,
            stack_bytes=shape.stack_bytes,
        )
        return cls(name=use.demangled or shape.name, total_s=use.total_s, launch=launch)


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


class Track(BulkRecord, frozen=True, kw_only=True):
    """
    What ran on one stream, or of one kind whose stream is not kept, piece by piece.

    Attributes:
        kind: "kernel", "copy", "memset" or "graph".

        device: The device's number in this process; None: not kept.

        stream: The stream's number, as CUPTI counts; None: not kept.

        starts_ns: When each piece began, from the first one of all tracks on [ns].

        ends_ns: When it ended [ns].

        kernels: Place of each kernel in `ActivitySummary.kernels`; -1: not listed there.
            Empty where no kernel ran.
    """

    kind: str
    device: int | None
    stream: int | None
    starts_ns: tuple[int, ...]
    ends_ns: tuple[int, ...]
    kernels: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Refuse columns of different lengths."""
        count = len(self.starts_ns)
        if len(self.ends_ns) != count or len(self.kernels) not in {0, count}:
            message = f"{count} pieces of work, and not as many ends or kernels"
            raise RecordError(message, path="tracks")


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

        copying_s: Time of the span in which copies alone ran [s]; None: not known.

        waited_s: Length of the gaps in which a wait of the host ended [s]; None: waits
            were not recorded.

        overhead_s: What CUPTI's records call overhead [s]; None: not recorded.

        choice: Hash of what ran and how often; None: no kernel ran, or not all are seen.

        unlabelled_count: As `Trace`'s.

        untimed_count: As `Trace`'s.

        dropped_count: As `Trace`'s.

        unseen: Child processes whose work on the device is missing, as far as anybody
            knows, by number or in words; empty: none is.

        children: As `Trace`'s.

        unrecorded: As `Trace`'s.

        tracks: The first pieces of work that have a start and an end, 120 at most, by
            device and stream; copies, memsets and graphs have a track each.

        pieces_count: Pieces of work that have a start and an end; None: the file is of
            an earlier version.

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
    copying_s: float | None = None
    waited_s: float | None = None
    overhead_s: float | None = None
    choice: str | None = None
    unlabelled_count: int = 0
    untimed_count: int = 0
    dropped_count: int = 0
    unseen: tuple[str, ...] = ()
    children: tuple[str, ...] = ()
    unrecorded: Mapping[str, str] = {}
    tracks: tuple[Track, ...] = ()
    pieces_count: int | None = None
    kept: TracePlace | None = None

    @property
    def totals(self) -> tuple[KernelTotal, ...]:
        """Its kernels, most time first; empty: not all of them are listed."""
        if len(self.kernels) < self.kernels_count:
            return ()
        return tuple(map(KernelTotal.of, self.kernels))

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
            self.copying_s,
            self.waited_s,
            self.overhead_s,
        )
