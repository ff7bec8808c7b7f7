"""Kernels: what each needs, how it was launched, and the list of all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Protocol

import msgspec

from pytest_gpuperf.errors import RecordError
from pytest_gpuperf.model.frozen import BulkRecord, Frozen

__all__ = [
    "COLUMNS",
    "PIECE_COUNT",
    "WHOLE_COUNT",
    "KernelResources",
    "KernelShape",
    "LaunchList",
    "Launches",
    "Occupancy",
    "TracePlace",
]


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
