"""What one kernel needs of a multiprocessor."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_gpuperf.errors import RecordError
from pytest_gpuperf.model.frozen import Frozen

__all__ = ["KernelResources", "Occupancy"]


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
