"""Every kernel that ran in a window, and where the list of them is kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Protocol

import msgspec

from pytest_gpuperf.model.frozen import BulkRecord, Frozen

__all__ = [
    "COLUMNS",
    "PIECE_COUNT",
    "WHOLE_COUNT",
    "KernelShape",
    "LaunchList",
    "Launches",
    "TracePlace",
]

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
