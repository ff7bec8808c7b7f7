"""The functions of a cubin, from its symbols and its code."""

from __future__ import annotations

import re
import struct
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from pytest_gpuperf.collect.binary.compiler_log import CodeParts

# Functions that ptxas itself adds, as a division. They have no lines in its log.
_COMPILERS_OWN = ("$__internal_", "__cuda_sm")
_CODE = ".text."  # The start of the name of a section with the code of a function.
_TYPE_RELOCATABLE = 1
_SECTION_WITHOUT_BYTES = 8  # SHT_NOBITS
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")  # Elf64_Ehdr
_SECTION = struct.Struct("<IIQQQQIIQQ")  # Elf64_Shdr
_SYMBOL = struct.Struct("<IBBHQQ")  # Elf64_Sym
_SYMBOL_TABLE = 2  # SHT_SYMTAB
_FUNCTION_SYMBOL = 2  # STT_FUNC

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


def is_relocatable(content: bytes) -> bool:
    """Return True if a cubin is not linked yet."""
    kind: int = _HEADER.unpack_from(content)[1]
    return kind == _TYPE_RELOCATABLE


def is_whole(content: bytes) -> bool:
    """Return True if the file has the length stated in the header."""
    if len(content) < _HEADER.size:
        return False
    *_, table_start, _, _, _, _, entry_bytes, count, _ = _HEADER.unpack_from(content)
    if entry_bytes < _SECTION.size or table_start + count * entry_bytes > len(content):
        return False
    for index in range(count):
        section = _SECTION.unpack_from(content, table_start + index * entry_bytes)
        kind, start, size = section[1], section[4], section[5]
        if kind != _SECTION_WITHOUT_BYTES and start + size > len(content):
            return False
    return True


def code_parts(content: bytes, kernels: Collection[str]) -> CodeParts:
    """
    Return the functions of a cubin.

    Args:
        content: A whole cubin.

        kernels: The names of the kernels. A kernel without a symbol is in no part.
    """
    inside: dict[str, set[str]] = {}
    apart = set()
    for name, owner, *_ in _functions(content):
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
    inside: dict[str, list[_Function]] = {}
    for function in _functions(content):
        if function.owner in kernels:
            inside.setdefault(function.owner, []).append(function)
    return frozenset(
        kernel
        for kernel, functions in inside.items()
        if _is_unbounded(content, kernel, functions, number)
    )


def _is_unbounded(
    content: bytes, kernel: str, functions: Collection[_Function], chip: int
) -> bool:
    if chip < _FIXED_FROM:
        names = (f.name.removeprefix(f"${kernel}$") for f in functions)
        return any(n != kernel and not n.startswith(_COMPILERS_OWN) for n in names)
    starts = {function.start: function.name for function in functions}
    # The kernel's own symbol has the size of the whole section.
    inner = [function for function in functions if function.start]
    calls: dict[str, set[str]] = {}
    whole = max(functions, key=lambda function: function.size)
    begin, end = whole.place - whole.start, whole.place + whole.size
    for match in _CALL.finditer(content, begin, end):
        at = match.start() - begin
        if at % _INSTRUCTION_BYTES or at + _WORD.size > end - begin:
            continue
        if match[1] is None:
            return True
        # A call of any other address is a far jump, or leaves the section.
        (word,) = _WORD.unpack_from(content, match.start())
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
    if chip >= _SPLIT_FROM:  # Its lowest 8 bits, of words, stand beside the opcode.
        distance = ((distance >> 2 << 8) | (word >> 16 & 0xFF)) * 4
    return at + _INSTRUCTION_BYTES + distance


def _reached(calls: Mapping[str, Collection[str]], name: str) -> set[str]:
    """Return the functions that a function calls, also through others."""
    reached: set[str] = set()
    todo = [name]
    while todo:
        new = {*calls.get(todo.pop(), ())} - reached
        reached |= new
        todo += new
    return reached


class _Function(NamedTuple):
    """
    A function with code in a cubin.

    Attributes:
        name: As in the binary.

        owner: The function whose section has the code, perhaps itself.

        start: Its start in that section [B].

        size: Its size [B].

        place: Its start in the file [B].
    """

    name: str
    owner: str
    start: int
    size: int
    place: int


def _functions(content: bytes) -> list[_Function]:
    try:
        return list(_read_functions(content))
    except (struct.error, IndexError, ValueError):  # A damaged table has no symbols.
        return []


def _read_functions(content: bytes) -> Iterator[_Function]:
    """Yield the functions that a cubin defines."""
    *_, table_start, _, _, _, _, entry_bytes, count, names = _HEADER.unpack_from(
        content
    )
    sections = [
        _SECTION.unpack_from(content, table_start + index * entry_bytes)
        for index in range(count)
    ]

    def text(table: int, offset: int) -> str:
        start = sections[table][4] + offset
        return content[start : content.index(b"\0", start)].decode("utf-8", "replace")

    for section in sections:
        _, kind, _, _, start, size, link, *_ = section
        if kind != _SYMBOL_TABLE:
            continue
        for offset in range(start, start + size, _SYMBOL.size):
            name, info, _, owner, value, length = _SYMBOL.unpack_from(content, offset)
            # The section of an undefined function is 0.
            if info & 0xF == _FUNCTION_SYMBOL and 0 < owner < count:
                yield _Function(
                    name=text(link, name),
                    owner=text(names, sections[owner][0]).removeprefix(_CODE),
                    start=value,
                    size=length,
                    place=sections[owner][4] + value,
                )
