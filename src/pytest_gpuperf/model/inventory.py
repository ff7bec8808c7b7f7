"""The kernels of compiled libraries: what each needs, and what has changed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from enum import Enum

import msgspec

from pytest_gpuperf.errors import GpuPerfError, RecordError
from pytest_gpuperf.model.frozen import UNREADABLE, Frozen

INVENTORY_SCHEMA = "pytest-gpuperf/inventory/1"
_HEAD = json.dumps({"schema": INVENTORY_SCHEMA})
_REMEDY = (
    "delete it, and write it again with gpuperf inventory LIB --baseline FILE --update"
)
_ANOTHER = (
    "name a file that gpuperf inventory LIB --baseline FILE --update has written, or write "
    "a new one"
)
_MOST_BAD_LINES = 5  # Lines that an error names.


class ListedKernel(Frozen, kw_only=True, frozen=True, omit_defaults=True):
    """
    A kernel of a library for one target.

    Attributes:
        kernel: The readable name, without the digests of files that a compiler adds.

        target: The chip, as `sm_90a` or `gfx942`.

        number: Counts the kernels of this name and target from 1, in order of size. Several
            units of a library may have the same kernel.

        registers: Registers of a thread.

        scalar_registers: Registers of a warp of AMD's code, or None for other code.

        accumulation_registers: The accumulation registers of `registers`, or None.

        stack_bytes: Local memory of a thread [B], or None if it has no bound.

        spills_bytes: Spilled registers [B], or None if unknown.

        scalar_spills: Spilled scalar registers of AMD's code, or None for other code.

        shared_bytes: Static shared memory of a block [B].

        code_bytes: Size of the machine code [B].

        digest: Digest of the machine code and of what it needs, without the name.

        occupancy: Theoretical occupancy, 0 to 1, or None without a block.

        classes: Instructions by class, or None if not read.
    """

    kernel: str
    target: str
    number: int = 1
    registers: int
    scalar_registers: int | None = None
    accumulation_registers: int | None = None
    stack_bytes: int | None = None
    spills_bytes: int | None = None
    scalar_spills: int | None = None
    shared_bytes: int
    code_bytes: int
    digest: str
    occupancy: float | None = None
    classes: Mapping[str, int] | None = None

    @property
    def key(self) -> tuple[str, str, int]:
        """The name, the target and the number, unique to the kernel."""
        return self.kernel, self.target, self.number


class Fate(str, Enum):
    """The result of comparing a kernel of two builds."""

    SAME = "same"
    RENAMED = "renamed"  # The same code under another name.
    BETTER = "better"
    MOVED = "moved"  # Other code that needs as much.
    WORSE = "worse"
    NEW = "new"
    GONE = "gone"
    UNREAD = "not read"  # In one build, code for this chip could not be read.


class CodeStep(Frozen, frozen=True, kw_only=True):
    """
    One difference between two builds of a kernel.

    Attributes:
        fact: A field of `ListedKernel`, or a change of the instructions: `fma`, `loads`,
            `stores`, `tensor`, `async_copy`.

        was: The value in the first build: a number, for `loads` and `stores` the bits of
            an access.

        now: The value in the second build.

        is_worse: Whether the change is for the worse, or None if it is neither.
    """

    fact: str
    was: float
    now: float
    is_worse: bool | None


class KernelChange(Frozen, frozen=True, kw_only=True):
    """
    A kernel in two builds.

    Attributes:
        was: The kernel in the first build, or None if it is new or was not read.

        now: The kernel in the second build, or None if it is gone or was not read.

        fate: The result.

        steps: What is different, the worse first.
    """

    was: ListedKernel | None
    now: ListedKernel | None
    fate: Fate
    steps: tuple[CodeStep, ...] = ()

    @property
    def kernel(self) -> ListedKernel:
        """The kernel in the second build, or in the first if it is gone."""
        kernel = self.now or self.was
        assert kernel is not None  # noqa: S101 - one of the builds has it
        return kernel


def inventory_text(kernels: Iterable[ListedKernel]) -> bytes:
    """
    Return an inventory as text that git can merge: a line for each kernel, sorted.

    Instructions and occupancy are left out, because they depend on the tools at hand and
    on the block.
    """
    lines = [_HEAD]
    for kernel in sorted(kernels, key=lambda k: k.key):
        facts = msgspec.to_builtins(kernel)
        facts.pop("classes", None)
        facts.pop("occupancy", None)
        lines.append(json.dumps(facts, ensure_ascii=False))
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogatepass")


def read_inventory(content: bytes, path: str) -> tuple[ListedKernel, ...]:
    """
    Return the kernels of an inventory's text.

    Args:
        content: The text.

        path: The file, for messages.

    Raises:
        RecordError: The text is no inventory. The error names each line that is none of a
            kernel, as those that git leaves in a conflict, and each kernel that has two
            lines.
    """
    head, *lines = content.split(b"\n")
    if head.strip() != _HEAD.encode():
        message = "it is no inventory of kernels, or of another version"
        raise RecordError(message, path=path, remedy=_ANOTHER)
    kernels: dict[tuple[str, str, int], ListedKernel] = {}
    bad = []
    for place, line in enumerate(lines, 2):
        if not line.strip():
            continue
        try:
            kernel = msgspec.json.decode(line, type=ListedKernel)
        except (*UNREADABLE, GpuPerfError) as error:
            bad.append(f"line {place}: {error}")
            continue
        if kernel.key in kernels:
            name = f"{kernel.kernel} for {kernel.target}"
            bad.append(f"line {place}: {name} has two lines")
        kernels[kernel.key] = kernel
    if bad:
        more = len(bad) - _MOST_BAD_LINES
        tail = [f"{more} more lines"] if more > 0 else []
        message = "; ".join([*bad[:_MOST_BAD_LINES], *tail])
        raise RecordError(message, path=path, remedy=f"mend the lines, or {_REMEDY}")
    return tuple(kernels.values())
