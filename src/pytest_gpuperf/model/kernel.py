"""A kernel as a store and a limit name it: its patterns, its launches and its time."""

from __future__ import annotations

from fnmatch import fnmatchcase

from pytest_gpuperf.model.frozen import BulkRecord, finite

Extent = tuple[int, int, int]  # x, y, z


def fits_kernel(pattern: str, name: str, demangled: str | None = None) -> bool:
    """
    Return True if a kernel matches a pattern.

    Args:
        pattern: A pattern of fnmatch, as "saxpy<4>*" or "rmsnorm".

        name: The mangled name, as in the binary.

        demangled: The readable name, with or without the parts that people leave out:
            the result's type, which a kernel does not have, and the parameters' types.
    """
    plain = (demangled or name).removeprefix("void ")
    names = (name, demangled or name, plain, plain.rpartition("(")[0])
    return any(fnmatchcase(candidate, pattern) for candidate in names)


class KernelLaunch(BulkRecord, array_like=True, frozen=True, kw_only=True):
    """
    The launches of one shape. In a file, a list.

    Attributes:
        count: Number of launches.

        grid: Blocks in x, y and z.

        block: Threads of a block in x, y and z.

        registers_count: Registers per thread.

        shared_bytes: Shared memory of a block, static and requested at launch [B].

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
    A kernel of one shape as stored for a session. In a file, a list.

    Attributes:
        name: The readable name if a demangler was available, else the mangled name.

        total_s: Duration of all launches together [s].

        launch: The launches, or None in files of earlier versions.
    """

    name: str
    total_s: float
    launch: KernelLaunch | None = None

    def __post_init__(self) -> None:
        """Reject a time that is not finite."""
        finite("session.kernels", self.total_s)
