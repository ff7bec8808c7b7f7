"""The instructions of a kernel of AMD by class, inside and outside loops."""

from __future__ import annotations

import os
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from pytest_gpuperf.collect.binary.instructions import cycles, reach
from pytest_gpuperf.collect.binary.tools import last_line
from pytest_gpuperf.collect.runner import Runner
from pytest_gpuperf.collect.scratch import ScratchFolder
from pytest_gpuperf.errors import CollectorFailedError, CollectorUnavailableError
from pytest_gpuperf.model.activity import LOOP, InstructionMix, KernelResources
from pytest_gpuperf.model.metric import INSTRUCTION_CLASSES

_TOOL = "llvm-objdump"
_TIMEOUT_S = 120.0
_NEWER = "install a newer LLVM (apt install llvm) or ROCm, whose llvm-objdump is taken"
_ROCM = "/opt/rocm"
# LLVM's words about a chip that it does not know. It goes on with another chip.
_UNKNOWN_CHIP = "not a recognized processor"

_FUNCTION = re.compile(r"^[0-9a-fA-F]+ <(.+)>:\s*$")
_CODE = re.compile(
    r"^\s+(?P<opcode>\S+)(?P<operands>.*?)\s*// (?P<place>[0-9A-F]+): [0-9A-F ]+"
    r"(?:<(?P<symbol>[^>+]+)(?:\+0x(?P<offset>[0-9a-f]+))?>)?\s*$"
)
_SECOND = re.compile(r"::\s*(\w+)")  # The other half of a dual instruction.
_PADDING = frozenset({"s_nop", "v_nop", "s_code_end"})
_ENDS = ("s_endpgm", "s_setpc_b64")
_CALLS = frozenset({"s_call_b64", "s_swappc_b64"})
# Opcode -> class.
_SINGLE = {
    **dict.fromkeys(_CALLS, "call"),
    **dict.fromkeys(("s_barrier", "s_barrier_signal"), "barrier"),
}

_ARITHMETIC = re.compile(
    r"v_(?P<pair>pk_)?(?:dual_)?(?P<verb>fma(?:c|ak|mk)?|ma[dc](?:ak|mk)?|add|sub(?:rev)?|mul)_"
    r"(?:legacy_|mix(?:lo|hi)?_)?(?P<kind>f64|f32|bf16|f16)"
)
_TYPES = {"f64": "fp64", "f32": "fp32", "f16": "fp16", "bf16": "fp16"}
_MATRIX = re.compile(r"v_(?:mfma|smfmac|wmma|swmmac)_")
_MEMORY = re.compile(r"(global|buffer|flat|scratch|ds)_(load|read|store|write|atomic)")
_SHARED_ATOMIC = re.compile(
    r"ds_(?:pk_)?(?:add|r?sub|inc|dec|min|max|and|or|xor|mskor|cmp|wrxchg|storexchg|cond)"
)
_SPACES = {"global": "global", "flat": "generic", "scratch": "local", "ds": "shared"}
_VERBS = {"load": "load", "read": "load", "store": "store", "write": "store"}
# Bytes that a thread moves, by a part of the opcode.
_WIDTHS = MappingProxyType(
    {
        **dict.fromkeys(("ubyte", "sbyte", "byte", "u8", "i8", "b8"), 1),
        **dict.fromkeys(("ushort", "sshort", "short", "u16", "i16", "b16"), 2),
        **dict.fromkeys(("dword", "b32"), 4),
        **dict.fromkeys(("dwordx2", "b64"), 8),
        **dict.fromkeys(("dwordx3", "b96"), 12),
        **dict.fromkeys(("dwordx4", "b128"), 16),
    }
)
# The descriptor of scratch memory in a kernel of gfx9, where spills use it.
_SCRATCH_DESCRIPTOR = "s[0:3]"


class AmdInstruction(NamedTuple):
    """
    A machine instruction.

    Attributes:
        place: Its address.

        opcode: As `global_load_dwordx4`.

        operands: As llvm-objdump lists them.

        target: The address that a jump leads to, or None.
    """

    place: int
    opcode: str
    operands: str = ""
    target: int | None = None


def find_disassembler(variables: Mapping[str, str] = os.environ) -> str:
    """
    Return the path of llvm-objdump, that of ROCm first.

    Raises:
        CollectorUnavailableError: There is none.
    """
    rocm = Path(variables.get("ROCM_PATH", _ROCM), "llvm", "bin")
    tool = shutil.which(_TOOL, path=str(rocm)) or shutil.which(_TOOL)
    if tool is None:
        message = f"{_TOOL} is neither on PATH nor in ROCm"
        raise CollectorUnavailableError(
            message, remedy="install LLVM (apt install llvm) or ROCm"
        )
    return tool


def amd_mixes(
    content: bytes, kernels: Sequence[KernelResources], *, tool: str, runner: Runner
) -> tuple[InstructionMix, ...]:
    """
    Return the instruction mixes of the kernels of a code object.

    Args:
        content: The code object.

        kernels: Its kernels, at least one.

        tool: The path of llvm-objdump.

        runner: Starts the tool.

    Raises:
        CollectorFailedError: The tool cannot read the code, or does not know the chip.
    """
    chip = kernels[0].target.partition(":")[0]
    with ScratchFolder("amd") as folder:
        path = Path(folder, "image.hsaco")
        path.write_bytes(content)
        argv = [tool, "-d", "--triple=amdgcn-amd-amdhsa", f"--mcpu={chip}", str(path)]
        finished = runner.run(argv, timeout_s=_TIMEOUT_S)
    text = finished.stdout.decode("utf-8", "replace")
    unknown = _UNKNOWN_CHIP in finished.stderr.decode("utf-8", "replace")
    functions = read_amd_listing(text)
    if unknown or finished.exit_code or not functions:
        why = f"does not know {chip}" if unknown else "lists no code"
        if finished.exit_code and not unknown:
            why = f"fails: {last_line(finished)}"
        raise CollectorFailedError(
            f"{_TOOL} {why}",
            remedy=_NEWER,
            argv=finished.argv,
            exit_code=finished.exit_code,
            log_tail=finished.log_tail,
        )
    return tuple(_mix(kernel, functions.get(kernel.name)) for kernel in kernels)


def read_amd_listing(text: str) -> dict[str, list[AmdInstruction]]:
    """Parse the instructions of each function in the output of `llvm-objdump -d`."""
    found: dict[str, list[tuple[re.Match[str], int]]] = {}
    starts: dict[str, int] = {}
    name = ""
    for line in text.splitlines():
        if function := _FUNCTION.match(line):
            name = function[1]
            found[name] = []
        elif name and (code := _CODE.match(line)):
            place = int(code["place"], 16)
            starts.setdefault(name, place)
            found[name].append((code, place))
    return {
        name: [
            AmdInstruction(
                place=place,
                opcode=code["opcode"],
                operands=code["operands"],
                target=(
                    starts[code["symbol"]] + int(code["offset"] or "0", 16)
                    if code["symbol"] in starts
                    else None
                ),
            )
            for code, place in several
        ]
        for name, several in found.items()
    }


def _mix(
    kernel: KernelResources, code: Sequence[AmdInstruction] | None
) -> InstructionMix:
    doubt = "llvm-objdump does not list it"
    counts = None
    if code:
        flow = _AmdFlow(code)
        all_of_it = sorted(reach([0], flow.following))
        doubt = next((d for at in all_of_it if (d := flow.doubt(at))), "")
        looped = cycles(0, flow.following)
        has_scratch = kernel.stack_bytes != 0
        whole = _counted((code[at] for at in all_of_it), has_scratch=has_scratch)
        inner = _counted((code[at] for at in sorted(looped)), has_scratch=has_scratch)
        counts = {kind: whole[kind] for kind in INSTRUCTION_CLASSES}
        counts |= {f"{LOOP}{kind}": inner[kind] for kind in INSTRUCTION_CLASSES}
    return InstructionMix(
        kernel=kernel.name,
        counts=None if doubt else counts,
        spills_bytes=kernel.spills_bytes,
        doubt=doubt or None,
    )


class _AmdFlow:
    """The control flow between the instructions of a kernel, by index."""

    def __init__(self, code: Sequence[AmdInstruction]) -> None:
        self._code = code
        self._index = {instruction.place: i for i, instruction in enumerate(code)}

    def following(self, at: int) -> list[int]:
        """Return the successors of an instruction."""
        instruction = self._code[at]
        targets = []
        if _jumps(instruction.opcode) and instruction.target in self._index:
            targets.append(self._index[instruction.target])
        ends = instruction.opcode.startswith(_ENDS) or instruction.opcode == "s_branch"
        if not ends and at + 1 < len(self._code):
            targets.append(at + 1)
        return targets

    def doubt(self, at: int) -> str | None:
        """Return why the successors of an instruction are unknown, or None."""
        opcode, target = self._code[at].opcode, self._code[at].target
        if opcode.startswith("<unknown"):
            return "llvm-objdump does not know an instruction"
        if opcode in _CALLS:
            return "calls functions through pointers"
        if opcode == "s_setpc_b64" or (_jumps(opcode) and target not in self._index):
            return "jumps to targets that llvm-objdump does not list"
        return None


def _jumps(opcode: str) -> bool:
    return opcode == "s_branch" or opcode.startswith("s_cbranch")


def _counted(
    instructions: Iterable[AmdInstruction], *, has_scratch: bool
) -> Counter[str]:
    counts: Counter[str] = Counter()
    for instruction in instructions:
        if instruction.opcode not in _PADDING:
            counts["compiled"] += 1
            counts.update(amd_classes_of(instruction, has_scratch=has_scratch))
    return counts


def amd_classes_of(
    instruction: AmdInstruction, *, has_scratch: bool = False
) -> tuple[str, ...]:
    """
    Return the classes of an instruction.

    Args:
        instruction: The instruction.

        has_scratch: Whether the kernel has scratch memory, which buffer instructions reach
            by the kernel's first registers.

    Example:
        >>> amd_classes_of(AmdInstruction(place=0, opcode="global_load_dwordx4"))
        ('global_load', 'global_load_16')
    """
    opcode, operands = instruction.opcode, instruction.operands
    if memory := _MEMORY.match(opcode):
        return tuple(_of_memory(memory, instruction, has_scratch=has_scratch))
    if _SHARED_ATOMIC.match(opcode):
        return ("atomic", "atomic_shared")
    if _MATRIX.match(opcode):
        return ("tensor",)
    if _jumps(opcode) or opcode in _SINGLE:
        return (_SINGLE.get(opcode, "branch"),)
    kinds: list[str] = []
    for half in (opcode, *_SECOND.findall(operands)):
        if arithmetic := _ARITHMETIC.match(half):
            names = [_TYPES[arithmetic["kind"]]]
            names += ["fma"] * arithmetic["verb"].startswith("fma")
            is_pair = arithmetic["pair"] and names[0] == "fp32"
            kinds += [*names, *(f"{name}_pair" for name in names if is_pair)]
    return tuple(kinds)


def _of_memory(
    memory: re.Match[str], instruction: AmdInstruction, *, has_scratch: bool
) -> Iterator[str]:
    space, verb = memory.groups()
    if space == "buffer":
        by_scratch = has_scratch and _SCRATCH_DESCRIPTOR in instruction.operands
        space = "scratch" if by_scratch else "global"
    if verb == "atomic":
        yield "atomic"
        if space == "global":
            yield "atomic_global"
        return
    parts = instruction.opcode.split("_")
    if "lds" in (*parts, *instruction.operands.split()):
        yield "async_copy"
        return
    kind = f"{_SPACES[space]}_{_VERBS[verb]}"
    yield kind
    width = next((_WIDTHS[part] for part in parts if part in _WIDTHS), 0)
    if space == "global" and f"{kind}_{width}" in INSTRUCTION_CLASSES:
        yield f"{kind}_{width}"
