"""The identity of the machine code of the kernels in a cubin or code object."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pytest_gpuperf.collect.binary.amd import is_code_object
from pytest_gpuperf.collect.binary.amd_identity import amd_parts
from pytest_gpuperf.collect.binary.elf import Relocation
from pytest_gpuperf.collect.binary.module import (
    ADDRESSES,
    CODE,
    CONSTANTS,
    INFO,
    CubinModule,
    read_module,
)
from pytest_gpuperf.collect.binary.tools import NVDISASM, find_tool, refusal
from pytest_gpuperf.collect.runner import Runner
from pytest_gpuperf.collect.scratch import ScratchFolder
from pytest_gpuperf.errors import CaptureFormatError, CollectorUnavailableError
from pytest_gpuperf.model.identity import CodeIdentity, digest_of

_TIMEOUT_S = 120.0
_INSTRUCTION = struct.Struct("<QQ")
_FIRST_CHIP = 70  # Instructions of earlier chips share their control bits.
_SECTION = re.compile(r"^//-+ \.text\.(\S+)\s+-+\s*$", re.MULTILINE)
_LINE = re.compile(
    r"^\s*(?:/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;|(\.?[\w$.]+):)", re.MULTILINE
)
_BANK = re.compile(r"c\[0x([0-9a-f]+)\]\[(?:(U?R\w+)\+?)?(-?0x[0-9a-f]+)?\]")
_ZERO = frozenset({None, "", "RZ", "URZ"})  # No register, or the one that holds 0.
_OFFSET_FIELD = (
    0xFFFF << 38
)  # The place in a bank, in the lower word of an instruction.
_CALL = re.compile(r"^(?:@!?U?P\w+\s+)?CALL\b")
# Instructions that put the upper half of their lower word into a register.
_PUTS_NUMBER = re.compile(r"^(?:MOV|UMOV|IMAD\.MOV\.U32|HFMA2(?:\.MMA)?) ")
# Shared memory repeats its 32 banks of 4 bytes.
_BANK_BYTES = 128
_ADDRESS_BYTES = 8

# Attributes of a kernel that follow from its code, not from the options of the compiler.
_OF_KERNEL = {
    0x05: "most threads",
    0x10: "required threads",
    0x17: "parameter",
    0x3D: "cluster",
    0x4C: "barriers",
}
_OF_SYMBOL = {0x12: "stack", 0x2F: "registers"}  # In the attributes of the whole file.

# The names of messages, which the compiler chooses.
_MESSAGES = ("$str", "__unnamed_")
_OWN_NAMES = "__unnamed_"
_ASSERTION = "__assertfail"
_PATH = re.compile(rb"^\S*/(\S+\.\w+)\0*$")


def code_identities(
    content: bytes, *, runner: Runner, label: str = "", tool: str | None = None
) -> Mapping[str, CodeIdentity]:
    """
    Return the identity of each kernel in a cubin or code object, by the kernel's name.

    nvdisasm is needed if a cubin has constants, variables or separate functions, because
    their places are part of the instructions. Code of AMD needs no tool.

    Args:
        content: A whole, linked cubin, or a code object of AMD.

        runner: Starts nvdisasm.

        label: The name of the file in messages.

        tool: The path of nvdisasm, or None to search for it.

    Raises:
        CaptureFormatError: The content is neither, or is damaged.

        CollectorUnavailableError: nvdisasm is needed and missing, or the chip is older than
            Volta.

        CollectorFailedError: nvdisasm cannot read the cubin.
    """
    try:
        if is_code_object(content):
            return {
                name: _identity(**parts._asdict())
                for name, parts in amd_parts(content).items()
            }
        module = read_module(content, label=label)
        if module.chip < _FIRST_CHIP:
            raise CollectorUnavailableError(
                f"the code of sm_{module.chip} has no identity: {label or 'it'} has "
                "instructions without control bits of their own",
                remedy=f"compile it for sm_{_FIRST_CHIP} or newer",
            )
        listing: Mapping[str, Mapping[int, str]] = {}
        if _needs_listing(module):
            tool = tool or find_tool(NVDISASM)
            listing = _listing(content, tool=tool, runner=runner)
        shapes = _Shapes(module)
        return {
            name: _Walk(module, listing).identity(name, shapes.of(name))
            for name in module.kernels
        }
    except (LookupError, OverflowError, ValueError, struct.error) as error:
        raise CaptureFormatError(
            f"its code is damaged ({type(error).__name__}: {error})",
            remedy="compile or copy it again",
            path=label or "the code",
        ) from error


def _identity(*, code: object, shape: object, data: object) -> CodeIdentity:
    return CodeIdentity(
        code=digest_of(code), shape=digest_of(shape), data=digest_of(data)
    )


def _needs_listing(module: CubinModule) -> bool:
    """Return True if the bytes do not show all that the code refers to."""
    kernels = {CODE + name for name in module.kernels}
    for section in module.sections:
        name = section.name
        if name.startswith(CODE) and name not in kernels:
            return True
        if name.startswith(CONSTANTS) and section.size:
            bank = name.removeprefix(CONSTANTS).partition(".")[0]
            # Parameters, and the jump tables of a kernel.
            if bank not in {"0", "2"}:
                return True
    return False


def _listing(
    content: bytes, *, tool: str, runner: Runner
) -> Mapping[str, Mapping[int, str]]:
    """
    Return the text of each instruction, by function and place.

    A label is the text at an odd place, one byte before the instruction that it marks.
    """
    with ScratchFolder("identity") as folder:
        path = Path(folder, "image.cubin")
        path.write_bytes(content)
        finished = runner.run([tool, "-c", "-ndf", str(path)], timeout_s=_TIMEOUT_S)
    parts = _SECTION.split(finished.stdout.decode("utf-8", "replace"))
    if finished.exit_code or len(parts) == 1:
        raise refusal(NVDISASM, finished)
    found = {}
    for name, text in zip(parts[1::2], parts[2::2], strict=True):
        lines: dict[int, str] = {}
        label = ""
        for line in _LINE.finditer(text):
            if line[3] is not None:
                label = line[3]
                continue
            place = int(line[1], 16)
            if label:
                lines[place - 1], label = label, ""
            lines[place] = line[2]
        found[name] = lines
    return found


class _Shapes:
    """The limits of a launch of each kernel of a module."""

    def __init__(self, module: CubinModule) -> None:
        self._module = module
        self._of_symbols: dict[str, list[tuple[str, int]]] = {}
        for key, value in module.attributes(INFO):
            if key in _OF_SYMBOL and len(value) >= 8:  # noqa: PLR2004 - two words
                symbol, number = struct.unpack_from("<II", value)
                name = module.symbols[symbol].name
                self._of_symbols.setdefault(name, []).append((_OF_SYMBOL[key], number))

    def of(self, kernel: str) -> Sequence[tuple[str, object]]:
        """Return the facts of a kernel's shape."""
        facts: list[tuple[str, object]] = [*self._of_symbols.get(kernel, ())]
        for key, value in self._module.attributes(f"{INFO}.{kernel}"):
            if key in _OF_KERNEL:
                facts.append((_OF_KERNEL[key], value.hex()))
        shared = self._module.section(f".nv.shared.{kernel}")
        code = self._module.section(CODE + kernel)
        facts.append(("shared", 0 if shared is None else shared.size))
        facts.append(("barriers of the section", 0 if code is None else code.barriers))
        return sorted(facts, key=repr)


class _Indirect(NamedTuple):
    """
    The addresses that instructions read by a number in a register.

    Attributes:
        numbers: The address behind the number that an instruction puts into a register,
            by the place of this instruction.

        unknown: The places of instructions that read an address by an unknown number.
    """

    numbers: Mapping[int, Relocation]
    unknown: frozenset[int]


class _Walk:
    """
    Follows a kernel to all functions and variables that it refers to.

    They are numbered in the order of the first reference, so that names do not matter.
    """

    def __init__(
        self, module: CubinModule, listing: Mapping[str, Mapping[int, str]]
    ) -> None:
        self._module = module
        self._listing = listing
        self._functions: list[str] = []
        self._variables: list[tuple[int, int, int]] = []
        self._literals: list[object] = []
        self._banks: dict[str, object] = {}
        self._has_assertion = any(s.name == _ASSERTION for s in module.symbols)
        index = module.by_name.get(ADDRESSES, -1)
        self._addresses = {r.place: r for r in module.relocations.get(index, ())}

    def identity(self, kernel: str, shape: object) -> CodeIdentity:
        """Return the identity of a kernel. A walk has one kernel."""
        code: list[object] = [self._module.chip]
        data: list[object] = []
        self._functions.append(kernel)
        walked = 0
        # A function leads to variables, and a table of pointers to functions.
        while walked < len(self._functions) or len(data) < len(self._variables):
            if walked < len(self._functions):
                function = self._functions[walked]
                code.append([*self._instructions(function)])
                code.append(self._bank(f"{CONSTANTS}2.{function}"))
                walked += 1
            else:
                data.append(self._content(*self._variables[len(data)]))
        banks = sorted(self._banks.items())
        return _identity(code=code, shape=shape, data=[data, banks, self._literals])

    def _instructions(self, function: str) -> Iterator[tuple[int, int, object]]:
        index = self._module.by_name[CODE + function]
        content = self._module.sections[index].content
        lines = self._listing.get(function, {})
        moved: dict[int, list[Relocation]] = {}
        for relocation in self._module.relocations.get(index, ()):
            start = relocation.place - relocation.place % _INSTRUCTION.size
            moved.setdefault(start, []).append(relocation)
        words = [*_INSTRUCTION.iter_unpack(content)]
        indirect = self._indirect(lines, words)
        for number, (low, high) in enumerate(words):
            place = number * _INSTRUCTION.size
            kept = low
            notes: list[object] = []
            if address := indirect.numbers.get(place):
                # The upper half is the number of an address.
                kept &= 0xFFFFFFFF
                notes.append(self._referred(address))
            line = lines.get(place, "")
            for bank, register, offset in _BANK.findall(line):
                at = int(offset or "0", 16)
                address = self._addresses.get(at - at % _ADDRESS_BYTES)
                if bank == "4" and register in _ZERO and address is not None:
                    kept &= ~_OFFSET_FIELD
                    # An instruction may read half an address.
                    notes.append((at % _ADDRESS_BYTES, self._referred(address)))
                elif bank == "4" and (register in _ZERO or place in indirect.unknown):
                    notes.append([*map(self._referred, self._addresses.values())])
                elif bank not in {"0", "2", "4"}:
                    self._banks[bank] = self._bank(CONSTANTS + bank)
            if _CALL.match(line) and "`(" not in line:
                # A pointer may lead to any function of the file.
                notes.append([*map(self._function, self._callable())])
            notes += [
                (r.kind, r.place - place, self._referred(r))
                for r in moved.get(place, ())
            ]
            yield kept, high, notes

    def _indirect(
        self, lines: Mapping[int, str], words: Sequence[tuple[int, int]]
    ) -> _Indirect:
        numbers: dict[int, Relocation] = {}
        unknown: set[int] = set()
        # The place of the last write of each register since the last label or call.
        written: dict[str, int] = {}
        for place, line in lines.items():
            if place % _INSTRUCTION.size or _CALL.match(line):
                written.clear()
                continue
            for bank, register, offset in _BANK.findall(line):
                if bank != "4" or register in _ZERO:
                    continue
                at = written.get(register)
                address = None
                if at is not None and _PUTS_NUMBER.match(lines[at]):
                    number = words[at // _INSTRUCTION.size][0] >> 32
                    address = self._addresses.get(number + int(offset or "0", 16))
                if at is None or address is None:
                    unknown.add(place)
                else:
                    numbers[at] = address
            operands = line.removeprefix("@").partition(" ")[2]
            written[operands.split(",")[0].split(" ")[-1].strip()] = place
        return _Indirect(numbers, frozenset(unknown))

    def _callable(self) -> list[str]:
        kernels = set(self._module.kernels)
        names = (s.name for s in self._module.sections if s.name.startswith(CODE))
        return [n for name in names if (n := name.removeprefix(CODE)) not in kernels]

    def _function(self, name: str) -> int:
        """Return the number of a function, and walk through it later."""
        if name not in self._functions:
            self._functions.append(name)
        return self._functions.index(name)

    def _referred(self, relocation: Relocation) -> tuple[object, ...]:
        """Return what stands at an address, without names of the compiler's choice."""
        symbol, addend = self._module.symbols[relocation.symbol], relocation.addend
        if symbol.section is None:
            return ("outside", symbol.name, addend)
        section = self._module.sections[symbol.section]
        if section.name.startswith(CODE):
            number = self._function(section.name.removeprefix(CODE))
            return ("code", number, symbol.start + addend)
        if symbol.name.startswith(_MESSAGES):
            # The folder of the source file and the function's own name are part of an
            # assertion, and say nothing about the work.
            section = self._module.sections[symbol.section or 0]
            text = section.content[symbol.start : symbol.start + symbol.size]
            if path := _PATH.match(text):
                text = path[1]
            if self._has_assertion and symbol.name.startswith(_OWN_NAMES):
                text = b""
            self._literals.append(text)
            return ("literal", addend)
        whole = symbol.is_section or not symbol.size
        start, size = (0, section.size) if whole else (symbol.start, symbol.size)
        variable = (symbol.section, start, size)
        if variable not in self._variables:
            self._variables.append(variable)
        number = self._variables.index(variable)
        if whole:
            addend += symbol.start
        # Shared memory is one space, in which the place decides about bank conflicts.
        place = 0 if section.has_bytes else symbol.start % _BANK_BYTES
        return ("variable", number, size, addend, place)

    def _bank(self, name: str) -> object:
        index = self._module.by_name.get(name)
        if index is None:
            return None
        return self._content(index, 0, self._module.sections[index].size)

    def _content(self, index: int, start: int, size: int) -> object:
        relocations = self._module.relocations.get(index, ())
        return (
            self._module.sections[index].content[start : start + size],
            [
                (r.place - start, r.kind, self._referred(r))
                for r in relocations
                if start <= r.place < start + size
            ],
        )
