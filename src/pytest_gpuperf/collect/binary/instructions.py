"""The instructions of a kernel by class, inside and outside loops."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from pytest_gpuperf.collect.binary.tools import NVDISASM, last_line, refusal
from pytest_gpuperf.collect.runner import Runner
from pytest_gpuperf.model.activity import LOOP, InstructionMix
from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.metric import INSTRUCTION_CLASSES

_LABEL = re.compile(r"^(\S+):\s*$")
_CODE = re.compile(
    r"^\s*/\*[0-9a-f]{4,}\*/\s+"
    r"(?:@(?P<guard>!?U?P\w+)\s+)?(?P<opcode>[A-Z][\w.]*)\s*(?P<operands>.*?)\s*;"
)
_REFERENCE = re.compile(r"`\(([^)]+)\)")
_TARGETS = re.compile(r'\(\*"BRANCH_TARGETS ([^"]+)"\*\)')
_NEVER = frozenset({"!PT", "!UPT"})  # No thread passes this guard.
_ALWAYS = frozenset({None, "PT", "UPT"})
# Jumps to a label. Control also falls through after a guarded jump, and after BSSY, which
# only sets the label as a meeting point of threads.
_JUMPS = frozenset({"BRA", "BSSY", "JMP", "WARPSYNC"})
_TABLES = frozenset({"BRX", "BRXU", "JMX", "JMXU"})  # Jumps to one of several labels.
_ENDS = frozenset({"EXIT", "RET", "KILL"})


class Instruction(Frozen, frozen=True, kw_only=True):
    """
    A machine instruction.

    Attributes:
        opcode: With modifiers, as `LDG.E.128`.

        operands: As nvdisasm lists them.

        guard: The predicate in front of the instruction, as `!P0`, or None.
    """

    opcode: str
    operands: str = ""
    guard: str | None = None

    @property
    def base(self) -> str:
        """The opcode without modifiers."""
        return self.opcode.partition(".")[0]

    @property
    def modifiers(self) -> tuple[str, ...]:
        """The modifiers of the opcode."""
        return tuple(self.opcode.split(".")[1:])

    @property
    def parts(self) -> tuple[str, ...]:
        """The operands without signs and hints, the destination first."""
        split = self.operands.split(",")
        return tuple(part.strip().strip("-~|").removesuffix(".reuse") for part in split)

    @property
    def never_runs(self) -> bool:
        """True if no thread passes the guard."""
        return self.guard in _NEVER


class CodeListing(Frozen, frozen=True, kw_only=True):
    """
    All code of one file.

    Attributes:
        instructions: In the order of the file.

        places: Index of the instruction after a label.
    """

    instructions: Sequence[Instruction]
    places: Mapping[str, int]


class KernelCode(Frozen, frozen=True, kw_only=True):
    """
    The code of one kernel.

    Attributes:
        instructions: All reachable instructions.

        in_loops: Instructions inside a loop, or called from a loop.

        doubt: Why the code may be incomplete, or None if the code is complete.
    """

    instructions: tuple[Instruction, ...]
    in_loops: tuple[Instruction, ...]
    doubt: str | None = None


def read_listing(text: str) -> CodeListing:
    """Parse the instructions and labels of the output of `nvdisasm -c`."""
    instructions: list[Instruction] = []
    places: dict[str, int] = {}
    for line in text.splitlines():
        if label := _LABEL.match(line):
            places[label[1]] = len(instructions)
        elif code := _CODE.match(line):
            instructions.append(
                Instruction(
                    opcode=code["opcode"],
                    operands=code["operands"],
                    guard=code["guard"],
                )
            )
    return CodeListing(instructions=instructions, places=places)


def kernel_code(listing: CodeListing, kernel: str) -> KernelCode | None:
    """
    Return the code of a kernel.

    A call of an absolute address leaves the file. Functions of the driver, as printf,
    are not part of the kernel. A call through a pointer within the file, or a jump with
    unlisted targets, leaves a doubt.

    Args:
        listing: The file's code.

        kernel: The kernel's name in the binary.

    Returns:
        The code, or None if the file has no kernel of that name.
    """
    start = listing.places.get(kernel)
    if start is None:
        return None
    flow = _Flow(listing)
    places = reach([start], flow.following)
    looped = cycles(start, flow.following)
    looped |= flow.called_from(looped)
    code = listing.instructions
    return KernelCode(
        instructions=tuple(code[at] for at in sorted(places)),
        in_loops=tuple(code[at] for at in sorted(looped)),
        doubt=next((d for at in sorted(places) if (d := flow.doubt(at))), None),
    )


class _Flow:
    """The control flow between instructions."""

    def __init__(self, listing: CodeListing) -> None:
        self._code = listing.instructions
        self._places = listing.places

    def following(self, at: int) -> list[int]:
        """Return the successors of an instruction, called functions included."""
        return self.called(at) + self.within(at)

    def within(self, at: int) -> list[int]:
        """Return the successors of an instruction in the same function."""
        instruction = self._code[at]
        base, targets = instruction.base, []
        if base in _JUMPS | _TABLES and not instruction.never_runs:
            targets += self._targets(instruction)
        # Control falls through after `BRA !P0, ...`, which is guarded, too.
        jumps = base in {"BRA", "JMP"} and instruction.operands.startswith("`")
        leaves = jumps or base in _TABLES | _ENDS
        falls_through = not leaves or instruction.guard not in _ALWAYS
        if falls_through and at + 1 < len(self._code):
            targets.append(at + 1)
        return targets

    def called(self, at: int) -> list[int]:
        """Return the functions of the file that an instruction calls."""
        instruction = self._code[at]
        direct = instruction.base == "CALL" and instruction.operands.startswith("`")
        return self._targets(instruction) if direct else []

    def called_from(self, places: Iterable[int]) -> set[int]:
        """Return the instructions of all functions called by the given instructions."""
        bodies: set[int] = set()
        todo = [entry for at in places for entry in self.called(at)]
        while todo:
            entry = todo.pop()
            body = reach([entry], self.within) if entry not in bodies else set()
            # A far jump is also written as a call, but does not return.
            if any(self._code[at].base == "RET" for at in body):
                todo += [more for at in body - bodies for more in self.called(at)]
                bodies |= body
        return bodies

    def doubt(self, at: int) -> str | None:
        """Return why the successors of an instruction are unknown, or None."""
        instruction = self._code[at]
        if instruction.base in _TABLES and not self._targets(instruction):
            return "jumps to targets that nvdisasm does not list"
        by_register = not instruction.operands.startswith("`")
        if instruction.opcode.startswith("CALL.REL") and by_register:
            return "calls functions through pointers"
        return None

    def _targets(self, instruction: Instruction) -> list[int]:
        names = _REFERENCE.findall(instruction.operands)
        if table := _TARGETS.search(instruction.operands):
            names += table[1].split(",")
        return [self._places[name] for name in names if name in self._places]


def reach(start: Iterable[int], following: Callable[[int], list[int]]) -> set[int]:
    """Return the instructions that can be reached from some."""
    todo = list(start)
    reached = set(todo)
    while todo:
        new = [place for place in following(todo.pop()) if place not in reached]
        reached.update(new)
        todo += new
    return reached


def cycles(start: int, following: Callable[[int], list[int]]) -> set[int]:
    """Return the instructions on a cycle (Kosaraju's algorithm)."""
    # Instructions in depth-first post-order, and their predecessors.
    order: list[int] = []
    before: dict[int, list[int]] = {start: []}
    walk = [(start, iter(following(start)))]
    while walk:
        place, rest = walk[-1]
        target = next(rest, None)
        if target is None:
            order.append(place)
            walk.pop()
        elif target in before:
            before[target].append(place)
        else:
            before[target] = [place]
            walk.append((target, iter(following(target))))
    # What reaches a root, and no root before, is on a cycle with the root.
    owner: dict[int, int] = {}
    for root in reversed(order):
        todo = [root]
        while todo:
            place = todo.pop()
            if place not in owner:
                owner[place] = root
                todo += before[place]
    sizes: dict[int, int] = {}
    for root in owner.values():
        sizes[root] = sizes.get(root, 0) + 1
    return {
        place
        for place, root in owner.items()
        if sizes[root] > 1 or place in before[place]
    }


_TIMEOUT_S = 120.0
# nvdisasm's words on a chip that older versions can read.
_DROPPED = "is deprecated"
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
# Bytes that a thread moves. Without such a modifier, there are 4.
_WIDTHS = MappingProxyType(
    {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16, "256": 32}
)
# Opcode -> classes other than the memory accesses in `_MEMORY`.
_KINDS = MappingProxyType(
    {
        "DFMA": ("fp64", "fma"),
        **dict.fromkeys(("DADD", "DMUL"), ("fp64",)),
        **dict.fromkeys(("FFMA", "FFMA32I"), ("fp32", "fma")),
        "FFMA2": ("fp32", "fp32_pair", "fma", "fma_pair"),
        **dict.fromkeys(("FADD", "FMUL"), ("fp32",)),
        **dict.fromkeys(("FADD2", "FMUL2"), ("fp32", "fp32_pair")),
        **dict.fromkeys(("FADD32I", "FMUL32I"), ("fp32",)),
        **dict.fromkeys(("HFMA2", "HFMA2_32I"), ("fp16", "fma")),
        **dict.fromkeys(("HADD2", "HADD2_32I", "HMUL2", "HMUL2_32I"), ("fp16",)),
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
_REGISTER_BYTES = 4
_STACK = "R1"  # The stack pointer of the ABI.
_OWN_PLACE = re.compile(rf"\[{_STACK}(?:\+-?0x[0-9a-f]+)?\]")


def instruction_mix(
    tool: str,
    cubin: Path,
    kernels: Iterable[str],
    *,
    runner: Runner,
    target: str = "it",
) -> tuple[InstructionMix, ...]:
    """
    Return the instruction mixes of kernels in a cubin.

    Args:
        tool: The path of nvdisasm.

        cubin: The file.

        kernels: The names of the kernels in the binary.

        runner: Starts the tool.

        target: The chip, for messages.

    Raises:
        CollectorFailedError: nvdisasm cannot read the file.
    """
    finished = runner.run([tool, "-c", str(cubin)], timeout_s=_TIMEOUT_S)
    listing = read_listing(finished.stdout.decode("utf-8", "replace"))
    if finished.exit_code or not listing.instructions:
        newer_helps = _DROPPED not in last_line(finished)
        raise refusal(NVDISASM, finished, target, newer_helps=newer_helps)
    mixes = []
    for name in kernels:
        code = kernel_code(listing, name)
        doubt = "nvdisasm does not list it" if code is None else code.doubt
        if code is None or doubt is not None:
            mixes.append(InstructionMix(kernel=name, counts=None, doubt=doubt))
            continue
        whole, looped = _counted(code.instructions), _counted(code.in_loops)
        counts = {kind: whole[kind] for kind in INSTRUCTION_CLASSES}
        counts |= {f"{LOOP}{kind}": looped[kind] for kind in INSTRUCTION_CLASSES}
        spills_bytes = spilled_bytes(code)
        mixes.append(
            InstructionMix(kernel=name, counts=counts, spills_bytes=spills_bytes)
        )
    return tuple(mixes)


def classes_of(instruction: Instruction) -> tuple[str, ...]:
    """
    Return the classes of an instruction.

    Example:
        >>> classes_of(Instruction(opcode="LDG.E.128"))
        ('global_load', 'global_load_16')
    """
    base = instruction.base
    if memory := _MEMORY.get(base):
        by_width = f"{memory}_{_width_bytes(instruction)}"
        return (memory, by_width) if memory in _BY_WIDTH else (memory,)
    if "MMA" in base:
        kinds = {
            "tensor": True,
            "wgmma": base in _WARPGROUP,
            "tcgen05": base.startswith("UTC"),
            base.lower(): base.lower() in INSTRUCTION_CLASSES,
        }
        return tuple(kind for kind, holds in kinds.items() if holds)
    if base in _ADDITIONS:
        # Adding zero changes a sign, takes an absolute value or converts a width.
        only_moves = "RZ" in instruction.parts[1:]
    else:
        only_moves = base == "HFMA2" and instruction.parts[1:3] == ("RZ", "RZ")
    return () if only_moves else _KINDS.get(base, ())


def spilled_bytes(code: KernelCode) -> int | None:
    """
    Return the bytes that a thread spills, stores and loads together [B], or None.

    A spilled register has a fixed address, which is the stack pointer plus a constant. It
    is stored and loaded, as a whole. Other accesses mean arrays, or arguments of external
    functions. Several moves of the stack pointer mean functions that save registers of
    their callers. In these cases the result is None.
    """
    accesses = [i for i in code.instructions if i.base in {"LDL", "STL"}]
    if not accesses:
        return 0
    both_ways = {"LDL", "STL"} == {i.base for i in accesses}
    fixed_places = both_ways and all(
        _OWN_PLACE.search(i.operands) and _width_bytes(i) >= _REGISTER_BYTES
        for i in accesses
    )
    # The address of a memory access, as [R1+0x8], is no source register.
    uses = [
        i
        for i in code.instructions
        if any(part.partition(".")[0] == _STACK for part in i.parts[1:])
    ]
    moves = sum(instruction.parts[0] == _STACK for instruction in uses)
    if not fixed_places or code.doubt or moves != len(uses) or moves > 1:
        return None
    return sum(_width_bytes(instruction) for instruction in accesses)


def _counted(instructions: Iterable[Instruction]) -> Counter[str]:
    """Count instructions by class, without NOPs and instructions that never run."""
    counts: Counter[str] = Counter()
    for instruction in instructions:
        if instruction.base != "NOP" and not instruction.never_runs:
            counts.update(("compiled", *classes_of(instruction)))
    return counts


def _width_bytes(instruction: Instruction) -> int:
    widths = (_WIDTHS[m] for m in instruction.modifiers if m in _WIDTHS)
    return next(widths, 4)
