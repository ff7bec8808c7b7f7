"""Kernels, their launches, and the device activity in one window of a process.

Moments are nanoseconds of one clock, as whole numbers, because a float cannot
distinguish two nanoseconds of this century. Durations in a summary are seconds.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Protocol

import msgspec

from pytest_gpuperf.errors import RecordError
from pytest_gpuperf.model.frozen import BulkRecord, Frozen, finite
from pytest_gpuperf.model.kernel import Extent, KernelLaunch, KernelTotal


class KernelResources(Frozen, frozen=True, kw_only=True):
    """
    The resources that the compiler gave one kernel for one target.

    Attributes:
        name: The mangled name, as in the binary.

        demangled: The readable name, or None if no demangler was found or the demangler
            failed.

        target: The chip it was compiled for, as the tools write it: `sm_90a`,
            `gfx90a:xnack-`.

        registers_count: Registers per thread. Of AMD's code the vector registers,
            accumulation registers included.

        stack_bytes: Local memory of a thread [B], on AMD's GPUs scratch memory: spills and
            arrays indexed at run time. None if not bounded at compile time (recursion, function pointers).

        shared_bytes: Static shared memory of a block [B], without the share that
            the driver keeps for itself.

        dynamic_shared_bytes: Shared memory of a block requested at launch [B], or None
            if the source does not state it.

        spills_bytes: Spill stores and loads of a thread [B], including the functions it
            calls. None if no compiler log was given or the log is not certain to be
            about the kernel. Of AMD's code 4 B for each spilled vector register.

        threads_per_block: Threads per block, or None if the source does not state them.

        constant_bytes: Constant memory counted for the kernel [B]: its parameters
            and the literals of its code.

        barriers_count: Barriers per block, or None if no compiler log states them.

        scalar_registers_count: Registers per warp of AMD's code, or None for other code.

        accumulation_registers_count: The accumulation registers of `registers_count`, or
            None for other code.

        scalar_spills_count: Spilled scalar registers of AMD's code, or None for other
            code. They usually go to vector registers.

        warp_size_count: Threads per warp that the code was compiled for.
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
    scalar_registers_count: int | None = None
    accumulation_registers_count: int | None = None
    scalar_spills_count: int | None = None
    warp_size_count: int = 32

    def __post_init__(self) -> None:
        """Reject negative counts, and a block without threads."""
        counts = {
            "registers_count": self.registers_count,
            "stack_bytes": self.stack_bytes,
            "shared_bytes": self.shared_bytes,
            "constant_bytes": self.constant_bytes,
            "dynamic_shared_bytes": self.dynamic_shared_bytes,
            "spills_bytes": self.spills_bytes,
            "barriers_count": self.barriers_count,
            "scalar_registers_count": self.scalar_registers_count,
            "accumulation_registers_count": self.accumulation_registers_count,
            "scalar_spills_count": self.scalar_spills_count,
        }
        for field, value in counts.items():
            if value is not None and value < 0:
                message = f"{value} of kernel {self.name} is negative"
                raise RecordError(message, path=field)
        if self.threads_per_block is not None and self.threads_per_block < 1:
            message = f"a block of {self.threads_per_block} threads"
            raise RecordError(message, path="threads_per_block")


LOOP = "loop."  # A prefix: the instructions of a class inside loops.


class InstructionMix(Frozen, frozen=True, kw_only=True):
    """
    The composition of one kernel.

    Attributes:
        kernel: The kernel's name in the binary.

        counts: Instruction counts by metric name without `instructions.`, for every class.
            None if unknown.

        spills_bytes: Spilled registers stored and loaded by a thread [B], or None if spills
            cannot be distinguished from arrays, or if the code is incomplete.

        doubt: Why something is unknown, or None if everything is known.

        remedy: What makes it known, or "".
    """

    kernel: str
    counts: Mapping[str, int] | None
    spills_bytes: int | None = None
    doubt: str | None = None
    remedy: str = ""

    def classes(self, *, in_loops: bool = False) -> dict[str, int]:
        """Return the counts above zero, of all code or of loops, the largest first."""
        counts = (self.counts or {}).items()
        present = {n: c for n, c in counts if c and n.startswith(LOOP) == in_loops}
        return dict(sorted(present.items(), key=lambda item: -item[1]))


def chips_in_doubt(
    mixes: Iterable[tuple[str, InstructionMix]],
) -> dict[str, tuple[str, ...]]:
    """
    Return the reasons why the code of whole chips is unknown, each with those chips.

    Args:
        mixes: The chip and the composition of each kernel.
    """
    doubts: dict[str, set[str | None]] = {}
    for target, mix in mixes:
        doubt = mix.doubt if mix.counts is None else None
        doubts.setdefault(target, set()).add(doubt)
    found: dict[str, tuple[str, ...]] = {}
    for target, (doubt, *others) in doubts.items():
        if doubt is not None and not others:
            found[doubt] = (*found.get(doubt, ()), target)
    return found


class FailedKernel(Frozen, frozen=True, kw_only=True):
    """
    A kernel of a binary whose value failed a comparison.

    Attributes:
        kernel: The kernel.

        metric: The value's metric.

        value: The value [unit].

        unit: The metric's unit.

        classes: The instructions of the kernel by class, the most frequent first, or
            None if not requested.
    """

    kernel: KernelResources
    metric: str
    value: float
    unit: str
    classes: Mapping[str, int] | None = None


class Occupancy(Frozen, frozen=True, kw_only=True):
    """
    How full the blocks of a kernel can make a multiprocessor.

    Attributes:
        fraction: Resident warps over the maximum of the chip, 0 to 1. 0 means that the
            block cannot be launched there.

        active_blocks: Blocks resident on a multiprocessor at once.

        warps: Warps resident on a multiprocessor at once.

        limiter: The resource that allows no more blocks: threads, blocks, registers,
            shared or barriers. If several do, the first in this order.

        block_limits: Blocks that each resource alone would allow. Resources that the
            kernel does not use are absent.
    """

    fraction: float
    active_blocks: int
    warps: int
    limiter: str
    block_limits: Mapping[str, int]

    @property
    def limiters(self) -> tuple[str, ...]:
        """
        All resources that allow no more blocks. Freeing only part of them gains
        nothing.
        """
        limits = self.block_limits.items()
        least = tuple(name for name, most in limits if most == self.active_blocks)
        return least or (self.limiter,)


# 8 MB of columns. A longer list that is kept becomes a stream.
WHOLE_COUNT = 200_000
# Launches in one piece of a stream, 0.3 MB as text.
PIECE_COUNT = 4096

# Columns of Launches, with the type code of `array` for the numbers that CUPTI reports.
COLUMNS = {
    "shape": "I",
    "start_ns": "Q",
    "end_ns": "Q",
    "call_ns": "Q",
    "device": "I",
    "stream": "I",
    "graph": "I",
}

HOST_WAITS = ("event", "stream", "context")  # Waits of the host, by kind.


class KernelShape(BulkRecord, frozen=True, kw_only=True):
    """
    A kernel with its launch configuration. Launches of equal shape are the same kernel
    choice.

    Attributes:
        name: The mangled name, as in the device's code.

        grid: Blocks in x, y and z.

        block: Threads of a block in x, y and z.

        registers_count: Registers per thread.

        shared_bytes: Static shared memory of a block [B].

        dynamic_shared_bytes: Shared memory of a block requested at launch [B].

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
    """Launches, either completely in memory or as a stream of pieces."""

    @property
    def shapes(self) -> tuple[KernelShape, ...]:
        """All shapes of the launches."""

    def __len__(self) -> int:
        """Return the number of launches."""

    def pieces(self) -> Iterator[Launches]:
        """
        Yield the launches in order, some thousands at a time, with `shapes` of the
        whole list.
        """


class Launches(Frozen, frozen=True, kw_only=True):
    """
    Kernel launches as columns of equal length, some 40 bytes per launch.

    Attributes:
        shapes: All shapes of the launches.

        shape: Index of each kernel's shape in `shapes`.

        start_ns: Start of the kernel [ns], or 0 if unknown.

        end_ns: End of the kernel [ns], or 0 if unknown.

        call_ns: Start of the call that launched it [ns], or 0 if not seen.

        device: Number of the device in this process.

        stream: Number of the stream, as CUPTI counts.

        graph: Number of the graph that contains the kernel as a node, or 0.
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
        """Return the number of launches."""
        return len(self.shape)

    def pieces(self, count: int = PIECE_COUNT) -> Iterator[Launches]:
        """Yield the launches in order, `count` at a time."""
        for begin in range(0, len(self), count):
            columns = {n: getattr(self, n)[begin : begin + count] for n in COLUMNS}
            yield Launches(shapes=self.shapes, **columns)


class TracePlace(Frozen, frozen=True, kw_only=True):
    """
    Position of a measurement's whole trace in a recording.

    Attributes:
        file: Name of the file in the recording's folder.

        line: First line of the trace, from 1.

        offset_bytes: Offset of that line [B].
    """

    file: str
    line: int
    offset_bytes: Annotated[int, msgspec.Meta(ge=0)]


class Copy(BulkRecord, frozen=True, kw_only=True):
    """
    A memory copy, or several that the driver did as one.

    Attributes:
        direction: "host_to_device", "device_to_host", "device_to_device",
            "host_to_host", "peer_to_peer" or "unknown".

        source: The memory read: "pageable", "pinned", "device", "array", "managed"…

        target: The memory written.

        size_bytes: Bytes copied [B].

        count: Number of copies, >= 1.

        start_ns: Start [ns], or 0 if unknown.

        end_ns: End [ns].
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
        name: Text of the range.

        domain: The domain, or "" for the default domain.

        start_ns: Start [ns].

        end_ns: End [ns].
    """

    name: str
    domain: str
    start_ns: int
    end_ns: int


class Trace(Frozen, frozen=True, kw_only=True):
    """
    Activity that CUPTI recorded in one window.

    Attributes:
        begun_ns: Start of the window, on an idle device [ns].

        ended_ns: End of the window, when the device was idle again [ns].

        launches: The kernel launches. If more than 200,000 are kept, they are a stream.

        copies: The memory copies.

        fills: Size [B], start and end [ns] of each memset.

        graphs: Start and end [ns] of each graph that was recorded as a whole.

        host_launches_count: Calls that launched kernels or a graph.

        latencies_ns: Time from the start of each such call to the start of its first
            kernel [ns].

        synchronizations: Number of waits by kind: "event", "stream" and "context" for
            waits of the host, and "stream_wait" for waits of a stream for an event of
            another stream.

        wait_ends_ns: Ends of the host's waits [ns], in order.

        allocations: Sizes [B] of the driver's allocations.

        compilations_ns: Durations of the driver's compilations of PTX [ns].

        overheads_ns: Overhead of CUPTI and the driver by kind [ns].

        ranges: NVTX ranges that ended.

        unlabelled_count: Activities whose thread carried no label of the window. They
            are assigned to the window by their launch time.

        untimed_count: Activities without a start or an end.

        dropped_count: Lost records.

        children: Child processes that ran during the window, as numbers or words. CUPTI
            sees only its own process.

        device_children: Child processes that are known to use a GPU.

        unrecorded: Kinds of activity that could not be recorded, with reasons.
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
        shape: The kernel with its launch configuration.

        demangled: The readable name, or None if there is no demangler or the demangler
            does not know the name.

        count: Number of launches.

        total_s: Duration of all launches together [s].
    """

    shape: KernelShape
    demangled: str | None
    count: int
    total_s: float

    def __post_init__(self) -> None:
        """Reject a time that is not finite."""
        finite("kernels.total_s", self.total_s)

    @property
    def total(self) -> KernelTotal:
        """The stored form of all launches of this shape."""
        shape = self.shape
        launch = KernelLaunch(
            count=self.count,
            grid=shape.grid,
            block=shape.block,
            registers_count=shape.registers_count,
            shared_bytes=shape.shared_bytes + shape.dynamic_shared_bytes,
            stack_bytes=shape.stack_bytes,
        )
        return KernelTotal(
            name=self.demangled or shape.name, total_s=self.total_s, launch=launch
        )


class TransferUse(Frozen, frozen=True, kw_only=True):
    """
    All copies of one direction between two kinds of memory.

    Attributes:
        direction: See `Copy.direction`.

        source: The memory read.

        target: The memory written.

        count: Number of copies.

        size_bytes: Bytes copied, together [B].

        total_s: Duration, together [s].
    """

    direction: str
    source: str
    target: str
    count: int
    size_bytes: int
    total_s: float

    def __post_init__(self) -> None:
        """Reject a time that is not finite."""
        finite("transfers.total_s", self.total_s)


class Track(BulkRecord, frozen=True, kw_only=True):
    """
    Activities on one stream, or of one kind whose stream is not kept, in order.

    Attributes:
        kind: "kernel", "copy", "memset" or "graph".

        device: Number of the device in this process, or None if not kept.

        stream: Number of the stream, as CUPTI counts, or None if not kept.

        starts_ns: Start of each activity, relative to the first activity of all tracks
            [ns].

        ends_ns: End of each activity, on the same scale [ns].

        kernels: Index of each kernel in `ActivitySummary.kernels`, or -1 if not listed
            there. Empty if no kernel ran.
    """

    kind: str
    device: int | None
    stream: int | None
    starts_ns: tuple[int, ...]
    ends_ns: tuple[int, ...]
    kernels: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Reject columns of different lengths."""
        count = len(self.starts_ns)
        if len(self.ends_ns) != count or len(self.kernels) not in {0, count}:
            message = f"{count} pieces of work, and not as many ends or kernels"
            raise RecordError(message, path="tracks")


class ActivitySummary(Frozen, frozen=True, kw_only=True):
    """
    Summary of a window. All counts are for the whole window.

    Attributes:
        kernels: The kernels, most time first. Shapes beyond the first 256 are not
            listed, but included in `kernels_count` and `choice`.

        kernels_count: Number of shapes.

        launches_count: Number of launches. Kernels of graphs recorded as a whole are
            unknown.

        host_launches_count: Calls that launched kernels. A graph is one call.

        launch_latency_s: Median time from the start of such a call to the start of its
            first kernel [s], or None if no call was seen.

        transfers: Copies by direction and kinds of memory, most bytes first.

        fills_count: Number of memsets.

        fills_bytes: Bytes written by memsets [B].

        synchronizations_count: Waits of the host, or None if not recorded.

        stream_waits_count: Waits of a stream for another stream's event, or None if not
            recorded.

        allocations_count: Allocations of the driver, or None if not recorded.

        allocations_bytes: Sizes of the allocations together [B].

        compilations_count: The driver's compilations of PTX, or None if not recorded.

        compile_s: Duration of the compilations together [s].

        span_s: First start to last end of any activity on any device [s], or None if
            nothing ran or the times are unknown.

        busy_s: Time with activity [s].

        idle_fraction: Share of the span without activity.

        gaps_count: Gaps in the span without activity.

        longest_gap_s: The longest gap [s], or 0 if there was none.

        copying_s: Time of the span in which only copies ran [s], or None if unknown.

        waited_s: Duration of the gaps in which a wait of the host ended [s], or None if
            waits were not recorded.

        overhead_s: Overhead according to CUPTI's records [s], or None if not recorded.

        choice: Hash of the kernels that ran and their counts, or None if no kernel ran
            or some were not seen.

        unlabelled_count: See `Trace`.

        untimed_count: See `Trace`.

        dropped_count: See `Trace`.

        unseen: Known child processes whose work on the device is missing, as numbers or
            words, or empty.

        children: See `Trace`.

        unrecorded: See `Trace`.

        tracks: The first activities with a start and an end, 120 at most, by device and
            stream. Copies, memsets and graphs have a track each.

        pieces_count: Activities with a start and an end, or None in files of earlier
            versions.

        kept: Position of the whole trace in the recording, or None if not kept.
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
        """All kernels, most time first, or empty if not all of them are listed."""
        if len(self.kernels) < self.kernels_count:
            return ()
        return tuple(use.total for use in self.kernels)

    def __post_init__(self) -> None:
        """Reject times that are not finite."""
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
