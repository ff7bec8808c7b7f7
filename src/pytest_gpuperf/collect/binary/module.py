"""The sections, symbols and relocations of a cubin, read from its bytes."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from pytest_gpuperf.errors import CaptureFormatError

CODE = ".text."  # The start of the name of a section with the code of a function.
INFO = ".nv.info"
CONSTANTS = ".nv.constant"
ADDRESSES = ".nv.constant4"  # The bank with the addresses of variables and functions.

HEADER = struct.Struct("<16sHHIQQQIHHHHHH")  # Elf64_Ehdr
SECTION = struct.Struct("<IIQQQQIIQQ")  # Elf64_Shdr
_SYMBOL = struct.Struct("<IBBHQQ")  # Elf64_Sym
_WITH_ADDEND = struct.Struct("<QQq")  # Elf64_Rela
_WITHOUT_ADDEND = struct.Struct("<QQ")  # Elf64_Rel
_ATTRIBUTE = struct.Struct("<BBH")  # Form, key, and length or value.
MACHINE_CUDA = 190  # EM_CUDA of the ELF registry
NO_BYTES = 8  # SHT_NOBITS
_SYMBOLS, _RELA, _REL = 2, 4, 9  # SHT_SYMTAB, SHT_RELA, SHT_REL
_FUNCTION = 2  # STT_FUNC
_OF_SECTION = 3  # STT_SECTION
_ENTRY = 0x10  # STO_CUDA_ENTRY
_LENGTH_FOLLOWS = 4  # Other forms hold the value in place of the length.
_NEW_FLAGS = 8  # From this ABI on, the chip has other bits of the flags.
_BARRIERS = (20, 0x7F)  # Place and mask in a section's flags, in older files.


class Section(NamedTuple):
    """
    A section.

    Attributes:
        name: Its name.

        content: Its bytes, or b"" if it has only a size.

        size: Its size [B].

        flags: Its flags.

        has_bytes: Whether the file contains its bytes.
    """

    name: str
    content: bytes
    size: int
    flags: int
    has_bytes: bool

    @property
    def barriers(self) -> int:
        """Barriers of a kernel in files of older compilers. Newer files have 0 here."""
        place, mask = _BARRIERS
        return self.flags >> place & mask


class Symbol(NamedTuple):
    """
    A symbol.

    Attributes:
        name: Its name, or "" for the symbol of a section.

        section: The index of its section, or None if it is not in this file.

        start: Its place in the section [B].

        size: Its size [B].

        is_function: Whether it is a function.

        is_section: Whether it stands for a whole section.

        is_kernel: Whether it is a kernel.
    """

    name: str
    section: int | None
    start: int
    size: int
    is_function: bool
    is_section: bool
    is_kernel: bool


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


class CubinModule(NamedTuple):
    """
    The content of a cubin.

    Attributes:
        chip: The number of the chip, as 90 for sm_90a.

        sections: All sections in order.

        symbols: All symbols in order.

        relocations: The relocations of each section, by the section's index, in order
            of place.

        by_name: The index of each section, by name.
    """

    chip: int
    sections: Sequence[Section]
    symbols: Sequence[Symbol]
    relocations: Mapping[int, Sequence[Relocation]]
    by_name: Mapping[str, int]

    @property
    def kernels(self) -> tuple[str, ...]:
        """The names of the kernels."""
        return tuple(s.name for s in self.symbols if s.is_kernel)

    @property
    def functions(self) -> tuple[tuple[str, str], ...]:
        """The name of each function, and the function whose section has it."""
        return tuple(
            (s.name, self.sections[s.section].name.removeprefix(CODE))
            for s in self.symbols
            if s.is_function and s.section is not None
        )

    def section(self, name: str) -> Section | None:
        """Return the section of a name, or None if there is none."""
        index = self.by_name.get(name)
        return None if index is None else self.sections[index]

    def attributes(self, name: str) -> Iterator[tuple[int, bytes]]:
        """Yield key and value of each attribute in a section of attributes."""
        section = self.section(name)
        content = b"" if section is None else section.content
        place = 0
        while place + _ATTRIBUTE.size <= len(content):
            form, key, length = _ATTRIBUTE.unpack_from(content, place)
            place += _ATTRIBUTE.size
            if form != _LENGTH_FOLLOWS:
                yield key, length.to_bytes(2, "little")
                continue
            yield key, content[place : place + length]
            place += length


def read_module(content: bytes, *, label: str = "") -> CubinModule:
    """
    Read a cubin.

    Args:
        content: A whole cubin.

        label: The name of the file in messages.

    Raises:
        CaptureFormatError: The content is no cubin, or is damaged.
    """
    try:
        return _read(content)
    except (struct.error, IndexError, ValueError) as error:
        raise CaptureFormatError(
            f"is no cubin, or is damaged ({error})",
            remedy="compile or copy it again",
            path=label,
        ) from error


def _read(content: bytes) -> CubinModule:
    head = HEADER.unpack_from(content)
    ident, machine, flags = head[0], head[2], head[7]
    if ident[:4] != b"\x7fELF" or machine != MACHINE_CUDA:
        message = "another kind of file"
        raise ValueError(message)
    table_start, entry_bytes, count, names = head[6], head[11], head[12], head[13]
    heads = [
        SECTION.unpack_from(content, table_start + index * entry_bytes)
        for index in range(count)
    ]
    bodies = [b"" if h[1] == NO_BYTES else content[h[4] : h[4] + h[5]] for h in heads]
    sections = [
        Section(
            name=_text(bodies[names], h[0]),
            content=body,
            size=h[5],
            flags=h[2],
            has_bytes=h[1] != NO_BYTES,
        )
        for h, body in zip(heads, bodies, strict=True)
    ]
    for h, section in zip(heads, sections, strict=True):
        if section.has_bytes and h[1] and len(section.content) != section.size:
            message = f"{section.name} is cut off"
            raise ValueError(message)
    symbols: list[Symbol] = []
    relocations: dict[int, list[Relocation]] = {}
    for h, body in zip(heads, bodies, strict=True):
        if h[1] == _SYMBOLS:
            symbols = list(_symbols(body, bodies[h[6]], count))
        elif h[1] in {_RELA, _REL}:
            # A section may have a table of both kinds.
            found = _relocations(body, with_addend=h[1] == _RELA)
            relocations.setdefault(h[7], []).extend(found)
    return CubinModule(
        chip=flags >> 8 & 0xFF if ident[8] >= _NEW_FLAGS else flags & 0xFF,
        sections=sections,
        symbols=symbols,
        relocations={of: sorted(found) for of, found in relocations.items()},
        by_name={section.name: index for index, section in enumerate(sections)},
    )


def _symbols(table: bytes, names: bytes, section_count: int) -> Iterator[Symbol]:
    for name, info, other, section, start, size in _SYMBOL.iter_unpack(table):
        is_here = 0 < section < section_count
        kind = info & 0xF
        yield Symbol(
            name=_text(names, name),
            section=section if is_here else None,
            start=start,
            size=size,
            is_function=kind == _FUNCTION,
            is_section=kind == _OF_SECTION,
            is_kernel=bool(is_here and kind == _FUNCTION and other & _ENTRY),
        )


def _relocations(table: bytes, *, with_addend: bool) -> Iterator[Relocation]:
    form = _WITH_ADDEND if with_addend else _WITHOUT_ADDEND
    for place, info, *addend in form.iter_unpack(table):
        yield Relocation(
            place=place,
            kind=info & 0xFFFFFFFF,
            symbol=info >> 32,
            addend=addend[0] if addend else 0,
        )


def _text(table: bytes, start: int) -> str:
    return table[start : table.index(b"\0", start)].decode("utf-8", "replace")
