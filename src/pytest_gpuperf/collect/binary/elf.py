"""The sections, symbols and notes of an ELF file of 64 bits."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from typing import NamedTuple

ELF_MAGIC = b"\x7fELF"
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")  # Elf64_Ehdr
_SECTION = struct.Struct("<IIQQQQIIQQ")  # Elf64_Shdr
_SYMBOL = struct.Struct("<IBBHQQ")  # Elf64_Sym
_NOTE = struct.Struct("<III")  # Elf64_Nhdr
_IDENT = ELF_MAGIC + b"\x02\x01"  # 64 bits, little endian
_NO_BYTES = 8  # SHT_NOBITS
_NOTES = 7  # SHT_NOTE
_SYMBOLS = 2  # SHT_SYMTAB
_FUNCTION = 2  # STT_FUNC
_LONGEST_NAME_BYTES = 65_536  # A mangled name of C++ has some 4,000 at most.


class ElfSection(NamedTuple):
    """
    A section of a file.

    Attributes:
        name: Its name.

        kind: Its type, as SHT_NOTE.

        address: Its address in memory.

        start: Its place in the file [B].

        size: Its size [B], or 0 if the file has none of its bytes.

        link: The index of the section that it refers to.
    """

    name: str
    kind: int
    address: int
    start: int
    size: int
    link: int


class ElfFile:
    """
    An ELF file.

    Args:
        content: The bytes.

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
        self.machine: int = head[2]
        start, entry_bytes, count, names = head[6], head[11], head[12], head[13]
        if count and start + count * max(entry_bytes, _SECTION.size) > len(content):
            message = "the table of sections is cut off"
            raise ValueError(message)
        heads = [
            _SECTION.unpack_from(content, start + index * entry_bytes)
            for index in range(count)
        ]
        if heads and names >= count:
            message = "the names of the sections are missing"
            raise ValueError(message)
        self.sections = [
            ElfSection(
                name=self._text(heads[names][4] + h[0]),
                kind=h[1],
                address=h[3],
                start=h[4],
                size=0 if h[1] == _NO_BYTES else h[5],
                link=h[6],
            )
            for h in heads
        ]
        for section in self.sections:
            if section.kind and section.start + section.size > len(content):
                message = f"{section.name or 'a section'} is cut off"
                raise ValueError(message)

    def functions(self) -> dict[str, bytes]:
        """Return the machine code of each function with a symbol."""
        found = {}
        for table in self.sections:
            if table.kind != _SYMBOLS or table.link >= len(self.sections):
                continue
            names = self.sections[table.link].start
            last = table.start + table.size - _SYMBOL.size
            for place in range(table.start, last + 1, _SYMBOL.size):
                name, info, _, owner, value, size = _SYMBOL.unpack_from(
                    self.content, place
                )
                if info & 0xF != _FUNCTION or not 0 < owner < len(self.sections):
                    continue
                section = self.sections[owner]
                start = section.start + value - section.address
                found[self._text(names + name)] = self.content[start : start + size]
        return found

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
    """Return the size of a part of a note, which fills whole words."""
    return -(-size // 4) * 4
