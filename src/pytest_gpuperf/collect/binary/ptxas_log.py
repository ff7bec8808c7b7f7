"""What `ptxas -v` says of each kernel."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pytest_gpuperf.errors import CaptureFormatError
from pytest_gpuperf.model.frozen import Frozen, replace

__all__ = ["CompilerFacts", "read_ptxas_log"]

_ENTRY = re.compile(r"Compiling entry function '(.+?)' for '(\w+)'")
_FRAME = re.compile(
    r"\d+ bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads"
)
_BARRIERS = re.compile(r"Used \d+ registers.*?used (\d+) barriers")


class CompilerFacts(Frozen, frozen=True, kw_only=True):
    """
    What the compiler said of one kernel.

    Attributes:
        spills_bytes: Spill stores and loads of a thread [B], those of the functions
            compiled with the kernel included; None: they cannot be told apart.

        barriers_count: Barriers of a block; None: an old compiler does not say.
    """

    spills_bytes: int | None = 0
    barriers_count: int | None = None


def read_ptxas_log(log: str) -> Mapping[tuple[str, str], CompilerFacts]:
    """
    Return what a compiler's log says, by kernel and target.

    A function that a kernel calls follows it in the log, so its spills are counted
    with the kernel. In a log of separate compilation a function may stand before any
    kernel; if such a function spills, nobody knows whose spills they are.

    Args:
        log: What nvcc or ptxas printed; other lines are passed over.

    Raises:
        CaptureFormatError: No kernel is named in it.
    """
    facts: dict[tuple[str, str], CompilerFacts] = {}
    kernel: tuple[str, str] | None = None
    ownerless_bytes = 0
    for line in log.splitlines():
        if entry := _ENTRY.search(line):
            kernel = (entry[1], entry[2])
            facts[kernel] = CompilerFacts()
        elif frame := _FRAME.search(line):
            spills_bytes = int(frame[1]) + int(frame[2])
            if kernel is None:
                ownerless_bytes += spills_bytes
            else:
                known = facts[kernel].spills_bytes or 0
                facts[kernel] = replace(
                    facts[kernel], spills_bytes=known + spills_bytes
                )
        elif kernel is not None and (used := _BARRIERS.search(line)):
            facts[kernel] = replace(facts[kernel], barriers_count=int(used[1]))
    if not facts:
        raise CaptureFormatError(
            "names no kernel",
            remedy="compile with -Xptxas -v and hand over all that it prints",
            path="the compiler's log",
        )
    if ownerless_bytes:
        return {name: replace(said, spills_bytes=None) for name, said in facts.items()}
    return facts
