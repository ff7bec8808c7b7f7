"""The machine code of kernels, as nvdisasm lists it.

What a kernel consists of is what can be reached from its first instruction, the functions
that it calls included. What lies in a cycle of the control flow is inside a loop, and so
is all that is called from there. Both are properties of the code, not of a run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from pytest_gpuperf.model.frozen import Frozen

__all__ = ["Instruction", "KernelCode", "Listing", "kernel_code", "read_listing"]

_LABEL = re.compile(r"^(\S+):\s*$")
_CODE = re.compile(
    r"^\s*/\*[0-9a-f]{4,}\*/\s+"
    r"(?:@(?P<guard>!?U?P\w+)\s+)?(?P<opcode>[A-Z][\w.]*)\s*(?P<operands>.*?)\s*;"
)
_REFERENCE = re.compile(r"`\(([^)]+)\)")
_TARGETS = re.compile(r'\(\*"BRANCH_TARGETS ([^"]+)"\*\)')
_NEVER = frozenset({"!PT", "!UPT"})  # a guard that no thread passes
_ALWAYS = frozenset({None, "PT", "UPT"})
# to a label; past it where guarded, and where threads only agree to meet there (BSSY)
_JUMPS = frozenset({"BRA", "BSSY", "JMP", "WARPSYNC"})
_TABLES = frozenset({"BRX", "BRXU", "JMX", "JMXU"})  # to one label of several
_ENDS = frozenset({"EXIT", "RET", "KILL"})


class Instruction(Frozen, frozen=True, kw_only=True):
    """
    One machine instruction.

    Attributes:
        opcode: With its modifiers, as `LDG.E.128`.

        operands: As they are listed.

        guard: The predicate before it, as `!P0`; None: none.
    """

    opcode: str
    operands: str = ""
    guard: str | None = None

    @property
    def base(self) -> str:
        """The opcode without its modifiers."""
        return self.opcode.partition(".")[0]

    @property
    def modifiers(self) -> tuple[str, ...]:
        """What follows the opcode."""
        return tuple(self.opcode.split(".")[1:])

    @property
    def parts(self) -> tuple[str, ...]:
        """The operands without signs and hints, the destination first."""
        split = self.operands.split(",")
        return tuple(part.strip().strip("-~|").removesuffix(".reuse") for part in split)

    @property
    def never_runs(self) -> bool:
        """Whether its guard lets no thread pass."""
        return self.guard in _NEVER


class Listing(Frozen, frozen=True, kw_only=True):
    """
    All code of one file.

    Attributes:
        instructions: In the order of the file.

        places: Which instruction stands behind a label.
    """

    instructions: Sequence[Instruction]
    places: Mapping[str, int]


class KernelCode(Frozen, frozen=True, kw_only=True):
    """
    The code of one kernel.

    Attributes:
        instructions: All that can be reached.

        in_loops: Those of them that lie in a loop, or are called from one.

        doubt: What keeps this from being all of the code; None: it is all.
    """

    instructions: tuple[Instruction, ...]
    in_loops: tuple[Instruction, ...]
    doubt: str | None = None


def read_listing(text: str) -> Listing:
    """Return the instructions and labels of what `nvdisasm -c` printed."""
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
    return Listing(instructions=instructions, places=places)


def kernel_code(listing: Listing, kernel: str) -> KernelCode | None:
    """
    Return the code of a kernel.

    A call of an absolute address leaves the file: the driver's functions, as printf, are
    not part of the kernel. A call through a pointer within the file, or a jump whose
    targets are not listed, leaves a doubt.

    Args:
        listing: The file's code.

        kernel: The kernel's name, as the binary has it.

    Returns:
        Its code; None: the file has no kernel of that name.
    """
    start = listing.places.get(kernel)
    if start is None:
        return None
    flow = _Flow(listing)
    reached = _reach([start], flow.following)
    looped = _cycles(start, flow.following)
    looped |= flow.called_from(looped)
    code = listing.instructions
    return KernelCode(
        instructions=tuple(code[at] for at in sorted(reached)),
        in_loops=tuple(code[at] for at in sorted(looped)),
        doubt=next((d for at in sorted(reached) if (d := flow.doubt(at))), None),
    )


class _Flow:
    """Where control goes from each instruction."""

    def __init__(self, listing: Listing) -> None:
        self._code = listing.instructions
        self._places = listing.places

    def following(self, at: int) -> list[int]:
        """Return what may run after an instruction, what it calls included."""
        return self.called(at) + self.within(at)

    def within(self, at: int) -> list[int]:
        """Return what may run after an instruction, in the same function."""
        instruction = self._code[at]
        targets = []
        if instruction.base in _JUMPS | _TABLES and not instruction.never_runs:
            targets += self._targets(instruction)
        if not _leaves(instruction) and at + 1 < len(self._code):
            targets.append(at + 1)
        return targets

    def called(self, at: int) -> list[int]:
        """Return the functions of this file that an instruction calls."""
        instruction = self._code[at]
        direct = instruction.base == "CALL" and instruction.operands.startswith("`")
        return self._targets(instruction) if direct else []

    def called_from(self, places: Iterable[int]) -> set[int]:
        """Return all functions, instruction by instruction, that some places call."""
        bodies: set[int] = set()
        todo = [entry for at in places for entry in self.called(at)]
        while todo:
            entry = todo.pop()
            body = _reach([entry], self.within) if entry not in bodies else set()
            # a far jump is written as a call too: there is no way back from it
            if any(self._code[at].base == "RET" for at in body):
                todo += [more for at in body - bodies for more in self.called(at)]
                bodies |= body
        return bodies

    def doubt(self, at: int) -> str | None:
        """Return why it is not known where control goes; None: it is."""
        instruction = self._code[at]
        if instruction.base in _TABLES and not self._targets(instruction):
            return "jumps to targets that nvdisasm does not list"
        by_register = not instruction.operands.startswith("`")
        if instruction.opcode.startswith("CALL.REL") and by_register:
            return "calls functions through pointers"
        return None

    def _targets(self, instruction: Instruction) -> list[int]:
        """Return the places of the labels that an instruction names."""
        names = _REFERENCE.findall(instruction.operands)
        if table := _TARGETS.search(instruction.operands):
            names += table[1].split(",")
        return [self._places[name] for name in names if name in self._places]


def _leaves(instruction: Instruction) -> bool:
    """Return whether the next instruction cannot be what follows."""
    if instruction.guard not in _ALWAYS:
        return False
    if instruction.base in _TABLES:
        return True
    if instruction.base in {"BRA", "JMP"}:  # `BRA !P0, ...` is guarded too
        return instruction.operands.startswith("`")
    return instruction.base in _ENDS


def _reach(start: Iterable[int], following: Callable[[int], list[int]]) -> set[int]:
    """Return the places that can be reached from some."""
    todo = list(start)
    reached = set(todo)
    while todo:
        new = [place for place in following(todo.pop()) if place not in reached]
        reached.update(new)
        todo += new
    return reached


def _cycles(start: int, following: Callable[[int], list[int]]) -> set[int]:
    """Return the places from which the flow can come back (Kosaraju's algorithm)."""
    order, before = _finished(start, following)
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


def _finished(
    start: int, following: Callable[[int], list[int]]
) -> tuple[list[int], dict[int, list[int]]]:
    """Return places in the order in which a depth-first walk leaves them, and what
    comes before each.
    """
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
    return order, before
