"""The sections, symbols, relocations and notes of an ELF file of 64 bits."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

ELF_MAGIC = b"\x7fELF"
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")  # Elf64_Ehdr
_SECTION = struct.Struct("<IIQQQQIIQQ")  # Elf64_Shdr
_SYMBOL = struct.Struct("<IBBHQQ")  # Elf64_Sym
_NOTE = struct.Struct("<III")  # Elf64_Nhdr
_WITH_ADDEND = struct.Struct("<QQq")  # Elf64_Rela
_WITHOUT_ADDEND = struct.Struct("<QQ")  # Elf64_Rel
_IDENT = ELF_MAGIC + b"\x02\x01"  # 64 bits, little endian
_ABI_VERSION = 8  # EI_ABIVERSION, an index of the identification.
_RELOCATABLE = 1  # ET_REL
# Values of sh_type.
_SYMBOLS, _RELA, _NOTES, _NO_BYTES, _REL, _LOADER_SYMBOLS = 2, 4, 7, 8, 9, 11
# Values of the type of a symbol.
_FUNCTION, _OF_SECTION = 2, 3
_LONGEST_NAME_BYTES = 65_536  # A mangled name of C++ has some 4,000 at most.


class ElfSection(NamedTuple):
    """
    A section of a file.

    Attributes:
        name: Its name.

        kind: Its type, as SHT_NOTE.

        flags: Its flags.

        address: Its address in memory.

        start: Its place in the file [B].

        size: Its size [B].

        link: The index of the section that it refers to.

        of: The index of the section that it is about.
    """

    name: str
    kind: int
    flags: int
    address: int
    start: int
    size: int
    link: int
    of: int

    @property
    def has_bytes(self) -> bool:
        """Whether the file contains its bytes."""
        return self.kind != _NO_BYTES


class Symbol(NamedTuple):
    """
    A symbol.

    Attributes:
        name: Its name, or "" for the symbol of a section.

        section: The index of its section, or None if it is not in this file.

        start: Its address, which in code of NVIDIA is its place in the section [B].

        size: Its size [B].

        is_function: Whether it is a function.

        is_section: Whether it stands for a whole section.

        other: Further bits, of which some belong to the vendor of the file.
    """

    name: str
    section: int | None
    start: int
    size: int
    is_function: bool
    is_section: bool
    other: int


class Relocation(NamedTuple):
    """
    A place that the loader fills with an address.

    Attributes:
        place: Its place in the section [B].

        kind: The kind of the relocation.

        symbol: The index of the symbol.

        addend: The distance from the symbol [B].
    """

    place: int
    kind: int
    symbol: int
    addend: int


class ElfFile:
    """
    An ELF file.

    Args:
        content: The bytes.

    Attributes:
        machine: The machine of the code, as EM_CUDA.

        is_relocatable: Whether the file is not linked yet.

        abi_version: The version of the vendor's conventions.

        flags: The flags of the file, whose meaning is the vendor's.

        sections: All sections in order.

    Raises:
        ValueError: The content is no ELF file of 64 bits, or is cut off or damaged.
    """

    def __init__(self, content: bytes | mmap.mmap) -> None:
        self.content = content
        try:
            head = _HEADER.unpack_from(content)
        except struct.error as error:
            raise ValueError(str(error)) from error
        if not head[0].startswith(_IDENT):
            message = "not an ELF file of 64 bits"
            raise ValueError(message)
        self.abi_version: int = head[0][_ABI_VERSION]
        self.is_relocatable: bool = head[1] == _RELOCATABLE
        self.machine: int = head[2]
        self.flags: int = head[7]
        self.sections = self._sections(head[6], *head[11:14])
        for section in self.sections:
            end = section.start + section.size
            if section.kind and section.has_bytes and end > len(content):
                message = f"{section.name or 'a section'} is cut off"
                raise ValueError(message)

    def _sections(
        self, start: int, entry_bytes: int, count: int, names: int
    ) -> Sequence[ElfSection]:
        if count and entry_bytes < _SECTION.size:
            message = "the entries of the table of sections are too small"
            raise ValueError(message)
        if count and start + count * entry_bytes > len(self.content):
            message = "the table of sections is cut off"
            raise ValueError(message)
        heads = [
            _SECTION.unpack_from(self.content, start + index * entry_bytes)
            for index in range(count)
        ]
        if heads and names >= count:
            message = "the names of the sections are missing"
            raise ValueError(message)
        return [
            ElfSection(
                name=self._text(heads[names][4] + h[0]),
                kind=h[1],
                flags=h[2],
                address=h[3],
                start=h[4],
                size=h[5],
                link=h[6],
                of=h[7],
            )
            for h in heads
        ]

    def body(self, section: ElfSection) -> bytes:
        """Return the bytes of a section, or b"" if it has only a size."""
        end = section.start + section.size
        return self.content[section.start : end] if section.has_bytes else b""

    def symbols(self) -> Iterator[Symbol]:
        """
        Yield the symbols in order, of a stripped file those that its loader needs.

        Raises:
            ValueError: A table of symbols is damaged.
        """
        kinds = {section.kind for section in self.sections}
        kind = _SYMBOLS if _SYMBOLS in kinds else _LOADER_SYMBOLS
        for table in self.sections:
            if table.kind != kind:
                continue
            if table.link >= len(self.sections) or table.size % _SYMBOL.size:
                message = f"{table.name or 'the table of symbols'} is damaged"
                raise ValueError(message)
            names = self.sections[table.link].start
            for entry in _SYMBOL.iter_unpack(self.body(table)):
                name, info, other, section, start, size = entry
                is_here = 0 < section < len(self.sections)
                yield Symbol(
                    name=self._text(names + name),
                    section=section if is_here else None,
                    start=start,
                    size=size,
                    is_function=info & 0xF == _FUNCTION,
                    is_section=info & 0xF == _OF_SECTION,
                    other=other,
                )

    def functions(self) -> dict[str, bytes]:
        """Return the machine code of each function with a symbol."""
        found = {}
        for symbol in self.symbols():
            if symbol.is_function and symbol.section is not None:
                section = self.sections[symbol.section]
                start = section.start + symbol.start - section.address
                found[symbol.name] = self.content[start : start + symbol.size]
        return found

    def relocations(self) -> Mapping[int, Sequence[Relocation]]:
        """
        Return the relocations of each section, by its index, in order of place.

        Raises:
            ValueError: A table of relocations is damaged.
        """
        found: dict[int, list[Relocation]] = {}
        for table in self.sections:
            if table.kind not in {_RELA, _REL}:
                continue
            form = _WITH_ADDEND if table.kind == _RELA else _WITHOUT_ADDEND
            if table.size % form.size:
                message = f"{table.name} is damaged"
                raise ValueError(message)
            # A section may have a table of both kinds.
            found.setdefault(table.of, []).extend(
                Relocation(
                    place=place,
                    kind=info & 0xFFFFFFFF,
                    symbol=info >> 32,
                    addend=addend[0] if addend else 0,
                )
                for place, info, *addend in form.iter_unpack(self.body(table))
            )
        return {of: sorted(several) for of, several in found.items()}

    def notes(self) -> Iterator[tuple[bytes, int, bytes]]:
        """
        Yield the owner, the type and the content of each note.

        Raises:
            ValueError: A note is longer than its section.
        """
        for section in self.sections:
            place, end = section.start, section.start + section.size
            while section.kind == _NOTES and place + _NOTE.size <= end:
                name_bytes, size, kind = _NOTE.unpack_from(self.content, place)
                owner = place + _NOTE.size
                start = owner + _padded(name_bytes)
                if start + size > end:
                    message = f"a note of {section.name} is cut off"
                    raise ValueError(message)
                name = self.content[owner : owner + name_bytes].rstrip(b"\0")
                yield name, kind, self.content[start : start + size]
                place = start + _padded(size)

    def _text(self, start: int) -> str:
        end = self.content.find(b"\0", start, start + _LONGEST_NAME_BYTES)
        if end < 0:
            message = "a name does not end"
            raise ValueError(message)
        return self.content[start:end].decode("utf-8", "replace")


def _padded(size: int) -> int:
    return -(-size // 4) * 4
