"""The parts of the kernels of a code object of AMD that make their identity."""

from __future__ import annotations

import re
import struct
from bisect import bisect_left
from collections.abc import Collection, Mapping
from functools import cached_property
from typing import Any, NamedTuple

from pytest_gpuperf.collect.binary.amd import metadata_of, stated_kernels
from pytest_gpuperf.collect.binary.elf import ElfFile, ElfSection, Relocation
from pytest_gpuperf.model.identity import digest_of

# Flags of a section.
_IN_MEMORY, _IS_CODE = 2, 4
# Types of sections that only name and link: tables of symbols, of texts, of addresses (which
# are read for themselves), of notes, and of what the loader looks up by name.
_OF_LINKER = frozenset({2, 3, 4, 5, 6, 7, 9, 11, 0x6FFFFFF6})
# Of these, the symbols that the loader looks up, and their names.
_OF_NAMES = frozenset({3, 11})
# A newer lld fills the last page of the memory that is written once. Its size follows from
# the place of everything else.
_PADDING = ".relro_padding"

_DESCRIPTOR_BYTES = 64
# In the descriptor, the distance of the code from the descriptor.
_ENTRY = struct.Struct("<q")
_ENTRY_PLACE = 16
# Names, which are no part of the work.
_NAMES = frozenset({".name", ".symbol", ".type_name"})

_ADDRESS_BYTES = 8
_WORD = struct.Struct("<I")
# Of the upper bytes of words, those of SOPK, SOP1 and SOPP.
_SCALAR = re.compile(rb"[\xb0-\xbf]")
# Upper 9 bits of an instruction.
_SOP1, _SOPP = 0x17D, 0x17F
_GENERATION = re.compile(r"gfx(\d+)[0-9a-f]{2}\b|gfx(\d+)-")


class _Encoding(NamedTuple):
    """
    How the chips of a generation encode the instructions that change the place of execution.

    Attributes:
        places: Operations of SOP1 that read or write the place.

        calls: Operations of SOPK that call, or fork.

        branches: Operations of SOPP that jump by a distance in the instruction.

        end: The upper half of the instruction that ends a kernel.
    """

    places: Collection[int]
    calls: Collection[int]
    branches: Collection[int]
    end: bytes


# s_getpc_b64, s_setpc_b64, s_swappc_b64, s_rfe_b64; s_call_b64; s_branch, s_cbranch_*.
_OF_GFX9 = _Encoding(
    range(0x1C, 0x20),
    {0x10, 0x15},
    {0x02, *range(0x04, 0x0A), *range(0x17, 0x1B)},
    b"\x81\xbf",
)
_OF_GFX10 = _Encoding(
    range(0x1F, 0x23),
    {0x16},
    {0x02, *range(0x04, 0x0A), *range(0x17, 0x1B)},
    b"\x81\xbf",
)
_OF_GFX11 = _Encoding(range(0x47, 0x4C), {0x14}, range(0x20, 0x2B), b"\xb0\xbf")
# Of other generations, every kernel may leave its code.
_ENCODINGS = {9: _OF_GFX9, 10: _OF_GFX10, 11: _OF_GFX11, 12: _OF_GFX11}


class AmdParts(NamedTuple):
    """
    What the identity of a kernel is made of.

    Attributes:
        code: The target, and the instructions that the kernel may reach.

        shape: The descriptor and the metadata, without names and places.

        data: The initial content of all variables and constants of the file.
    """

    code: object
    shape: object
    data: object


def amd_parts(content: bytes) -> Mapping[str, AmdParts]:
    """
    Return the parts of each kernel of a code object, by the kernel's name.

    A kernel whose instructions cannot leave its own bytes is independent of the place of
    the others. The code of any other kernel is all code of the file, with all places.

    Raises:
        ValueError: The file is damaged, or a kernel has no code or descriptor of its own.

        struct.error: The file is damaged.
    """
    return _CodeFile(content).parts()


class _CodeFile:
    """A linked code object."""

    def __init__(self, content: bytes) -> None:
        self._file = ElfFile(content)
        if self._file.is_relocatable:
            message = "it is not linked"
            raise ValueError(message)
        self._metadata = metadata_of(self._file)
        self._kernels = stated_kernels(self._metadata)
        self._symbols: dict[str, set[tuple[int, int, int]]] = {}
        for symbol in self._file.symbols():
            if symbol.section is not None:
                place = symbol.section, symbol.start, symbol.size
                self._symbols.setdefault(symbol.name, set()).add(place)

    def parts(self) -> dict[str, AmdParts]:
        found: dict[str, AmdParts] = {}
        for kernel in self._kernels:
            name = str(kernel.get(".name", ""))
            if name in found:
                message = f"it has two kernels {name}"
                raise ValueError(message)
            symbol = _descriptor_name(kernel)
            place, described, _ = self._place(symbol)
            descriptor = self._bytes(place, described, _DESCRIPTOR_BYTES)
            section, start, size = self._place(symbol.removesuffix(".kd"))
            (distance,) = _ENTRY.unpack_from(descriptor, _ENTRY_PLACE)
            if described + distance != start or not size:
                message = f"the descriptor {symbol} is not that of its function"
                raise ValueError(message)
            own = self._bytes(section, start, size)
            code = [*self._target, own]
            first, after = (
                bisect_left(self._filled, place)
                for place in (start - _ADDRESS_BYTES + 1, start + size)
            )
            if first < after or _may_leave(own, self._encoding):
                code += [start - self._origin, self._all_code]
            end = _ENTRY_PLACE + _ENTRY.size
            shape = descriptor[:_ENTRY_PLACE], descriptor[end:], _without_names(kernel)
            found[name] = AmdParts(code=code, shape=shape, data=self._data)
        return found

    def _place(self, name: str) -> tuple[int, int, int]:
        places = self._symbols.get(name, set())
        if len(places) != 1:
            message = f"it has {len(places)} symbols {name}"
            raise ValueError(message)
        (place,) = places
        return place

    def _bytes(self, index: int, start: int, size: int) -> bytes:
        section = self._file.sections[index]
        at = start - section.address
        if at < 0 or at + size > section.size or not section.has_bytes:
            message = f"a symbol is not in {section.name}"
            raise ValueError(message)
        return self._file.content[section.start + at : section.start + at + size]

    @cached_property
    def _target(self) -> tuple[str, int, int]:
        target = str(self._metadata.get("amdhsa.target", ""))
        return target, self._file.flags, self._file.abi_version

    @cached_property
    def _encoding(self) -> _Encoding | None:
        generation = _GENERATION.search(self._target[0])
        if generation is None:
            return None
        return _ENCODINGS.get(int(generation[1] or generation[2]))

    @cached_property
    def _held(self) -> list[ElfSection]:
        return [
            section
            for section in self._file.sections
            if section.flags & _IN_MEMORY
            and section.kind not in _OF_LINKER
            and section.name != _PADDING
        ]

    @cached_property
    def _origin(self) -> int:
        """The address from which places count: the start of the code."""
        return min((s.address for s in self._held if s.flags & _IS_CODE), default=0)

    @cached_property
    def _all_code(self) -> str:
        """The digest of all code, of the places of code and data, and of all addresses."""
        return digest_of(
            [
                *(
                    (s.address - self._origin, s.size, self._file.body(s))
                    for s in self._held
                    if s.flags & _IS_CODE
                ),
                *(
                    (s.address - self._origin, s.size)
                    for s in self._held
                    if not s.flags & _IS_CODE
                ),
                [*map(tuple, self._relocations)],
                self._names,
            ]
        )

    @cached_property
    def _relocations(self) -> list[Relocation]:
        tables = self._file.relocations().values()
        return [relocation for several in tables for relocation in several]

    @cached_property
    def _filled(self) -> list[int]:
        """The addresses that the loader writes to, in order."""
        return sorted(relocation.place for relocation in self._relocations)

    @cached_property
    def _names(self) -> list[bytes]:
        """What the loader looks up to fill in addresses, if there are any."""
        return [
            self._file.body(section)
            for section in self._file.sections
            if self._relocations
            and section.flags & _IN_MEMORY
            and section.kind in _OF_NAMES
        ]

    @cached_property
    def _data(self) -> str:
        """The digest of the content of all sections of data, without descriptors."""
        described = [self._place(_descriptor_name(kernel)) for kernel in self._kernels]
        content = []
        for index, section in enumerate(self._file.sections):
            if section not in self._held or section.flags & _IS_CODE:
                continue
            kept = bytearray(self._file.body(section))
            places = {
                start - section.address for i, start, _ in described if i == index
            }
            for at in sorted(places, reverse=True):
                del kept[at : at + _DESCRIPTOR_BYTES]
            if kept or not section.has_bytes:
                content.append((section.flags, len(kept) or section.size, bytes(kept)))
        return digest_of(content)


def _descriptor_name(kernel: Mapping[str, Any]) -> str:
    return str(kernel.get(".symbol", ""))


def _without_names(fact: object) -> object:
    """Return stated facts in a fixed order, without names of the source's choice."""
    if isinstance(fact, Mapping):
        return sorted(
            ((key, _without_names(v)) for key, v in fact.items() if key not in _NAMES),
            key=repr,
        )
    return [*map(_without_names, fact)] if isinstance(fact, list) else fact


def _may_leave(code: bytes, encoding: _Encoding | None) -> bool:
    """
    Return whether instructions may run other code, or learn where they are.

    Numbers in the code that look like such an instruction count as one.
    """
    if encoding is None or not code or len(code) % _WORD.size:
        return True
    if code[-2:] != encoding.end:
        return True
    count = len(code) // _WORD.size
    for found in _SCALAR.finditer(code[_WORD.size - 1 :: _WORD.size]):
        place = found.start()
        (word,) = _WORD.unpack_from(code, place * _WORD.size)
        if _leaves(word, place, count, encoding):
            return True
    return False


def _leaves(word: int, place: int, count: int, encoding: _Encoding) -> bool:
    form = word >> 23
    if form == _SOP1:
        return word >> 8 & 0xFF in encoding.places
    if form == _SOPP:
        if word >> 16 & 0x7F not in encoding.branches:
            return False
        distance = (word & 0xFFFF ^ 0x8000) - 0x8000
        return not 0 <= place + 1 + distance < count
    return form & 0x1F in encoding.calls
