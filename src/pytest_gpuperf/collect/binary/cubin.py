"""The functions of a cubin, from its symbols and its code."""

from __future__ import annotations

import re
import struct
from collections.abc import Collection, Mapping

from pytest_gpuperf.collect.binary.compiler_log import CodeParts
from pytest_gpuperf.collect.binary.elf import Symbol
from pytest_gpuperf.collect.binary.module import CODE, read_module
from pytest_gpuperf.errors import CaptureFormatError

# Functions that ptxas itself adds, as a division. They have no lines in its log.
_COMPILERS_OWN = ("$__internal_", "__cuda_sm")
_CHIP = re.compile(r"sm_(\d+)")
# From Volta on, an instruction has 16 bytes: the opcode in the lowest 12 bits, the target
# of a call in the first 8 bytes (seen with nvdisasm 13.5, for chips 75 to 120).
_FIXED_FROM, _SPLIT_FROM = 70, 90
_INSTRUCTION_BYTES = 16
_WORD = struct.Struct("<Q")
# CALL.REL of an address (0x944), and through a register (0x344). The guard stands above.
_CALL = re.compile(
    rb"\x44(?:([\x09\x19\x29\x39\x49\x59\x69\x79\x89\x99\xa9\xb9\xc9\xd9\xe9\xf9])"
    rb"|[\x03\x13\x23\x33\x43\x53\x63\x73\x83\x93\xa3\xb3\xc3\xd3\xe3\xf3])"
)


def code_parts(content: bytes, kernels: Collection[str]) -> CodeParts:
    """
    Return the functions of a cubin.

    Args:
        content: A whole cubin.

        kernels: The names of the kernels. A kernel without a symbol is in no part.
    """
    inside: dict[str, set[str]] = {}
    apart = set()
    try:
        functions = read_module(content).functions
    except CaptureFormatError:  # A damaged table has no symbols.
        functions = ()
    for name, owner in functions:
        if owner not in kernels:
            apart.add(name)
            continue
        own = inside.setdefault(owner, set())
        called = name.removeprefix(f"${owner}$")
        if called != owner and not called.startswith(_COMPILERS_OWN):
            own.add(called)
    return CodeParts(
        inside={name: frozenset(own) for name, own in inside.items()},
        apart=frozenset(apart),
    )


def without_stack_bound(
    content: bytes, kernels: Collection[str], target: str
) -> frozenset[str]:
    """
    Return the kernels that may take more stack than the cubin states.

    Since CUDA 12.9, ptxas states a stack of 0, or that of the other functions, for a kernel
    with a recursive function or a call through a pointer. The calls in its code tell.

    Args:
        content: A whole cubin.

        kernels: The names of the kernels.

        target: The chip of the cubin. In code for chips before Volta, calls are not
            read, so that each kernel with functions of its own is returned.
    """
    chip = _CHIP.match(target)
    number = int(chip[1]) if chip else 0
    try:
        module = read_module(content)
    except CaptureFormatError:  # A damaged table has no symbols.
        return frozenset()
    inside: dict[int, list[Symbol]] = {}
    for symbol in module.symbols:
        if symbol.is_function and symbol.section is not None:
            inside.setdefault(symbol.section, []).append(symbol)
    found = set()
    for index, functions in inside.items():
        section = module.sections[index]
        kernel = section.name.removeprefix(CODE)
        if kernel in kernels and _is_unbounded(
            section.content, kernel, functions, number
        ):
            found.add(kernel)
    return frozenset(found)


def _is_unbounded(
    code: bytes, kernel: str, functions: Collection[Symbol], chip: int
) -> bool:
    if chip < _FIXED_FROM:
        names = (f.name.removeprefix(f"${kernel}$") for f in functions)
        return any(n != kernel and not n.startswith(_COMPILERS_OWN) for n in names)
    starts = {function.start: function.name for function in functions}
    # The kernel's own symbol has the size of the whole section.
    inner = [function for function in functions if function.start]
    calls: dict[str, set[str]] = {}
    for match in _CALL.finditer(code):
        at = match.start()
        if at % _INSTRUCTION_BYTES or at + _WORD.size > len(code):
            continue
        if match[1] is None:
            return True
        # A call of any other address is a far jump, or leaves the section.
        (word,) = _WORD.unpack_from(code, at)
        called = starts.get(_target(word, at, chip))
        if called is not None:
            owners = (f.name for f in inner if f.start <= at < f.start + f.size)
            calls.setdefault(next(owners, kernel), set()).add(called)
    return any(name in _reached(calls, name) for name in calls)


def _target(word: int, at: int, chip: int) -> int:
    """Return the address that a call leads to, relative to the section."""
    distance = word >> 32
    if distance >= 1 << 31:
        distance -= 1 << 32
    if chip >= _SPLIT_FROM:  # Its lowest 8 bits, of words, stand next to the opcode.
        distance = ((distance >> 2 << 8) | (word >> 16 & 0xFF)) * 4
    return at + _INSTRUCTION_BYTES + distance


def _reached(calls: Mapping[str, Collection[str]], name: str) -> set[str]:
    reached: set[str] = set()
    todo = [name]
    while todo:
        new = {*calls.get(todo.pop(), ())} - reached
        reached |= new
        todo += new
    return reached
