"""The kernels, functions and attributes of a cubin, read from its bytes."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from pytest_gpuperf.collect.binary.elf import ElfFile, Relocation, Symbol
from pytest_gpuperf.errors import CaptureFormatError

CODE = ".text."  # The start of the name of a section with the code of a function.
INFO = ".nv.info"
CONSTANTS = ".nv.constant"
ADDRESSES = ".nv.constant4"  # The bank with the addresses of variables and functions.

MACHINE_CUDA = 190  # EM_CUDA of the ELF registry
_ATTRIBUTE = struct.Struct("<BBH")  # Form, key, and length or value.
_REGISTERS = 0x2F  # An attribute of the whole file, of one of its functions.
_OF_FUNCTION = struct.Struct("<II")  # The index of the symbol, and the value.
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


class CubinModule(NamedTuple):
    """
    The content of a cubin.

    Attributes:
        chip: The number of the chip, as 90 for sm_90a.

        is_relocatable: Whether the cubin is not linked yet.

        sections: All sections in order.

        symbols: All symbols in order.

        relocations: The relocations of each section, by the section's index, in order
            of place.

        by_name: The index of each section, by name.
    """

    chip: int
    is_relocatable: bool
    sections: Sequence[Section]
    symbols: Sequence[Symbol]
    relocations: Mapping[int, Sequence[Relocation]]
    by_name: Mapping[str, int]

    @property
    def kernels(self) -> tuple[str, ...]:
        """The names of the kernels."""
        return tuple(
            s.name
            for s in self.symbols
            if s.is_function and s.section is not None and s.other & _ENTRY
        )

    @property
    def registers(self) -> Iterator[tuple[str, int]]:
        """The name of each function with its registers per thread."""
        for key, value in self.attributes(INFO):
            if key == _REGISTERS and len(value) == _OF_FUNCTION.size:
                index, count = _OF_FUNCTION.unpack(value)
                if index < len(self.symbols):
                    yield self.symbols[index].name, count

    @property
    def functions(self) -> tuple[tuple[str, str], ...]:
        """The name of each function, and the name of the function that owns the section."""
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
        CaptureFormatError: The content is no cubin, or is cut off or damaged.
    """
    try:
        file = ElfFile(content)
        symbols, relocations = tuple(file.symbols()), file.relocations()
    except ValueError as error:
        raise _refused(str(error), label) from error
    if file.machine != MACHINE_CUDA:
        raise _refused("another kind of file", label)
    is_new = file.abi_version >= _NEW_FLAGS
    return CubinModule(
        chip=file.flags >> 8 & 0xFF if is_new else file.flags & 0xFF,
        is_relocatable=file.is_relocatable,
        sections=[
            Section(
                name=section.name,
                content=file.body(section),
                size=section.size,
                flags=section.flags,
                has_bytes=section.has_bytes,
            )
            for section in file.sections
        ],
        symbols=symbols,
        relocations=relocations,
        by_name={section.name: i for i, section in enumerate(file.sections)},
    )


def _refused(why: str, label: str) -> CaptureFormatError:
    return CaptureFormatError(
        f"is no cubin, or is cut off or damaged ({why})",
        remedy="compile or copy it again",
        path=label,
    )
