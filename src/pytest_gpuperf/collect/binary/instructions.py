"""Of which instructions a compiled kernel consists.

Counts are of the code: an instruction in a loop counts once, and so does a function that
is called from two places. What is never reached, padding and instructions that no thread
runs do not count.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from pytest_gpuperf.collect.binary.sass import (
    Instruction,
    KernelCode,
    kernel_code,
    read_listing,
)
from pytest_gpuperf.collect.binary.tools import NVDISASM, refusal
from pytest_gpuperf.collect.runner import Runner
from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.metric import INSTRUCTION_CLASSES

__all__ = ["InstructionMix", "classes_of", "instruction_mix", "spilled_bytes"]

_TIMEOUT_S = 120.0
_MEMORY = MappingProxyType(
    {
        "LDG": "global_load",
        "STG": "global_store",
        "LD": "generic_load",
        "ST": "generic_store",
        "LDS": "shared_load",
        "LDSM": "shared_load",  # ldmatrix
        "STS": "shared_store",
        "STSM": "shared_store",  # stmatrix
        "STAS": "shared_store",  # st.async
        "LDL": "local_load",
        "STL": "local_store",
    }
)
_BY_WIDTH = frozenset({"global_load", "global_store"})
_WIDTHS = MappingProxyType(  # what a thread moves [B]; no such modifier: 4
    {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16, "256": 32}
)
_KINDS = MappingProxyType(  # by opcode: the classes that are no access to memory
    {
        **dict.fromkeys(("DADD", "DFMA", "DMUL"), ("fp64",)),
        **dict.fromkeys(("FADD", "FADD2", "FFMA", "FFMA2", "FMUL", "FMUL2"), ("fp32",)),
        **dict.fromkeys(("FADD32I", "FFMA32I", "FMUL32I"), ("fp32",)),
        **dict.fromkeys(("HADD2", "HFMA2", "HMUL2"), ("fp16",)),
        **dict.fromkeys(("HADD2_32I", "HFMA2_32I", "HMUL2_32I"), ("fp16",)),
        **dict.fromkeys(("BAR", "UCGABAR_ARV", "UCGABAR_WAIT"), ("barrier",)),
        **dict.fromkeys(("ARRIVES", "SYNCS", "UTCBAR"), ("mbarrier",)),
        **dict.fromkeys(("ATOM", "ATOMG", "RED", "REDG"), ("atomic", "atomic_global")),
        **dict.fromkeys(("ATOMS", "REDAS"), ("atomic", "atomic_shared")),
        "LDGSTS": ("async_copy", "ldgsts"),
        **dict.fromkeys(("UBLKCP", "UBLKRED"), ("async_copy", "bulk_copy")),
        **dict.fromkeys(("UTMALDG", "UTMAREDG", "UTMASTG"), ("async_copy", "tma")),
        **dict.fromkeys(("BRA", "BRX", "BRXU", "JMP", "JMX", "JMXU"), ("branch",)),
        "CALL": ("call",),
    }
)
_WARPGROUP = frozenset({"BGMMA", "HGMMA", "IGMMA", "QGMMA"})
_ADDITIONS = frozenset({"DADD", "FADD", "FADD2", "HADD2"})
_STACK = "R1"  # the stack pointer of the ABI
_OWN_PLACE = re.compile(rf"\[{_STACK}(?:\+-?0x[0-9a-f]+)?\]")


class InstructionMix(Frozen, frozen=True, kw_only=True):
    """
    What one kernel consists of.

    Attributes:
        kernel: Its name, as the binary has it.

        counts: By the names of the metrics without `instructions.`; every class is in
            it. None: not known.

        spills_bytes: Spilled registers stored and loaded by a thread [B]; None: they
            cannot be told apart from arrays, or the code is not all known.

        doubt: Why something is not known; None: all is.
    """

    kernel: str
    counts: Mapping[str, int] | None
    spills_bytes: int | None = None
    doubt: str | None = None


def instruction_mix(
    tool: str, cubin: Path, kernels: Iterable[str], *, runner: Runner
) -> tuple[InstructionMix, ...]:
    """
    Return the mix of some kernels of a cubin.

    Args:
        tool: The path of nvdisasm.

        cubin: The file.

        kernels: Their names, as the binary has them.

        runner: Starts the tool.

    Raises:
        CollectorFailedError: nvdisasm cannot read the file.
    """
    finished = runner.run([tool, "-c", str(cubin)], timeout_s=_TIMEOUT_S)
    listing = read_listing(finished.stdout.decode("utf-8", "replace"))
    if finished.exit_code or not listing.instructions:
        raise refusal(NVDISASM, finished)
    return tuple(_mix(name, kernel_code(listing, name)) for name in kernels)


def classes_of(instruction: Instruction) -> tuple[str, ...]:
    """
    Return the classes that an instruction counts in.

    Example:
        >>> classes_of(Instruction(opcode="LDG.E.128"))
        ('global_load', 'global_load_16')
    """
    base = instruction.base
    if memory := _MEMORY.get(base):
        by_width = f"{memory}_{_width_bytes(instruction)}"
        return (memory, by_width) if memory in _BY_WIDTH else (memory,)
    if "MMA" in base:
        return tuple(_tensor_classes(base))
    kinds = _KINDS.get(base, ())
    return () if kinds and _only_moves(instruction) else kinds


def spilled_bytes(code: KernelCode) -> int | None:
    """
    Return what a thread spills, stores and loads together [B].

    A spilled register has a place of its own, so its address is the stack pointer and a
    number. Where the stack is addressed in another way there are arrays in it too, or
    arguments of functions outside; where the pointer moves more than once, functions
    that save registers for their callers: then None.
    """
    accesses = [i for i in code.instructions if i.base in {"LDL", "STL"}]
    if not accesses:
        return 0
    own = all(_OWN_PLACE.search(i.operands) for i in accesses)
    uses = [i for i in code.instructions if _STACK in _registers(i)]
    moves = sum(instruction.parts[0] == _STACK for instruction in uses)
    if not own or code.doubt or moves != len(uses) or moves > 1:
        return None
    return sum(_width_bytes(instruction) for instruction in accesses)


def _mix(kernel: str, code: KernelCode | None) -> InstructionMix:
    """Return what one kernel consists of."""
    if code is None:
        doubt = "nvdisasm does not list it"
        return InstructionMix(kernel=kernel, counts=None, doubt=doubt)
    if code.doubt is not None:
        return InstructionMix(kernel=kernel, counts=None, doubt=code.doubt)
    whole, looped = _counted(code.instructions), _counted(code.in_loops)
    counts = {name: whole[name] for name in INSTRUCTION_CLASSES}
    counts |= {f"loop.{name}": looped[name] for name in INSTRUCTION_CLASSES}
    return InstructionMix(
        kernel=kernel, counts=counts, spills_bytes=spilled_bytes(code)
    )


def _counted(instructions: Iterable[Instruction]) -> Counter[str]:
    """Return how many instructions are in each class."""
    counts: Counter[str] = Counter()
    for instruction in instructions:
        if instruction.base != "NOP" and not instruction.never_runs:
            counts.update(("compiled", *classes_of(instruction)))
    return counts


def _tensor_classes(base: str) -> Iterator[str]:
    """Yield the classes of an instruction of the tensor cores."""
    yield "tensor"
    if base in _WARPGROUP:
        yield "wgmma"
    if base.startswith("UTC"):
        yield "tcgen05"
    if base.lower() in INSTRUCTION_CLASSES:
        yield base.lower()


def _width_bytes(instruction: Instruction) -> int:
    """Return what a thread moves in one access [B]."""
    found = (_WIDTHS[m] for m in instruction.modifiers if m in _WIDTHS)
    return next(found, 4)


def _only_moves(instruction: Instruction) -> bool:
    """Return whether an arithmetic instruction computes nothing: a move, a constant."""
    sources = instruction.parts[1:]
    if instruction.base in _ADDITIONS:  # to zero: a sign, an absolute value, a width
        return "RZ" in sources
    return instruction.base == "HFMA2" and sources[:2] == ("RZ", "RZ")


def _registers(instruction: Instruction) -> set[str]:
    """Return what an instruction computes with; nothing where it accesses memory."""
    return {part.partition(".")[0] for part in instruction.parts[1:]}
