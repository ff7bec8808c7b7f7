"""The sections of a library or a program, and the compiled code in them."""

from __future__ import annotations

import mmap
import re
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

_ELF, _DOS, _PE = b"\x7fELF\x02\x01", b"MZ", b"PE\0\0"  # 64 bits, little endian.
# Start of the section table, bytes of an entry, number of entries, entry of the names.
_ELF_TABLE = struct.Struct("<40xQ10xHHH")
# Place of the name, start of the section, its size.
_ELF_SECTION = struct.Struct("<I20xQQ")
_MOST_NAME_BYTES = 256
_PE_START = 0x3C  # The place of the start of the PE header.
# Magic, number of sections, bytes of the optional header.
_PE_HEADER = struct.Struct("<4s2xH12xH2x")
# A name of up to 8 characters, size in the file, start.
_PE_SECTION = struct.Struct("<8s8xII16x")
# The linked code, in ELF and in PE. The code before the link is in other sections.
_LINKED = (".nv_fatbin", ".nv_fatb")
_FATBINS = frozenset({*_LINKED, "__nv_relfatbin", "__nv_rel"})

ARCHIVE = b"!<arch>\n"
_AR_HEADER = struct.Struct("<16s32x10s2s")  # Name, size in digits, end of the header.
_AR_END = b"`\n"

FATBIN_MAGIC = b"\x50\xed\x55\xba"
# Magic, version, bytes of the header and of all entries.
_FATBIN_HEADER = struct.Struct("<4sHHQ")
# Kind, version, bytes of the header and of the content, ..., number of the chip.
_FATBIN_ENTRY = struct.Struct("<HHIQQII")
_FATBIN_PTX = 1
FATBIN_CUBIN = 2
FATBIN_LTO = 8  # What nvcc writes for code=lto_90, for the link.
# Of the header of an entry, which has 64 to 120 B. A longer one is no entry of any kind.
_MOST_ENTRY_BYTES = 4096
_FATBIN_VERSION = 1

# clang keeps the code of each file until the link, which puts it into another section.
UNLINKED = "device code that is not linked yet"
OF_CLANG = "device code in a section of clang"
# Name of a section and its content. clang names the section after kind and target:
# "gen" is what ocloc compiled for a chip.
_OTHER_CODE = (
    (r"\.hip_?fat", "code for AMD's GPUs"),
    (r"\.llvm\.offloading", UNLINKED),
    (r"__CLANG_OFFLOAD_BUNDLE__\S*(?:amdgcn|nvptx)", OF_CLANG),
    (r"__CLANG_OFFLOAD_BUNDLE__\S*spir\w*_gen", "code for Intel's GPUs"),
    (
        r"__CLANG_OFFLOAD_BUNDLE__\S*spir(?!\w*_gen)",
        "SPIR-V, which a driver compiles for its GPU",
    ),
)


class FileSection(NamedTuple):
    """A section of a library: its name, its start in the file and its size [B]."""

    name: str
    start: int
    size_bytes: int


class FatbinPart(NamedTuple):
    """
    The code of one compilation for one chip, in a fatbin.

    Attributes:
        chip: The number of the chip, as 80 for sm_80.

        start: Its start in the file, with its own header.

        end: Its end, which is outside of a file that was cut.

        kind: The number of its kind: 2 is a cubin, 8 what is compiled at the link.
    """

    chip: int
    start: int
    end: int
    kind: int


@contextmanager
def mapped(path: Path) -> Iterator[mmap.mmap]:
    """Give the content of a file that is not empty, without reading all of it."""
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        yield content


def members(content: bytes | mmap.mmap) -> Iterator[tuple[int, int]]:
    """
    Yield start and end of each member of an archive of `ar`, or of any other file as a whole.

    The index of symbols and the table of long names are no files. A damaged archive ends
    with its last whole member.
    """
    if content[: len(ARCHIVE)] != ARCHIVE:
        yield 0, len(content)
        return
    place = len(ARCHIVE)
    while place + _AR_HEADER.size <= len(content):
        name, digits, ends = _AR_HEADER.unpack_from(content, place)
        place += _AR_HEADER.size
        if ends != _AR_END or not digits.strip().isdigit():
            return
        end = place + int(digits)
        if end > len(content):
            return
        # BSD puts a long name before the content.
        before = name[3:].strip() if name.startswith(b"#1/") else b"0"
        if not name.startswith((b"/ ", b"//", b"/SYM64/")) and before.isdigit():
            yield min(place + int(before), end), end
        place = end + end % 2


def sections(content: bytes | mmap.mmap, start: int = 0) -> tuple[FileSection, ...]:
    """
    Return the sections of an ELF file of 64 bits or of a PE file, or () if damaged.

    Args:
        content: The file, or an archive that contains an ELF file.

        start: The start of the ELF file in the archive.
    """
    try:
        if content[start : start + len(_ELF)] == _ELF:
            return tuple(_elf_sections(content, start))
        if content[: len(_DOS)] == _DOS:
            return tuple(_pe_sections(content))
    except (struct.error, OverflowError):  # The table is outside of the file.
        pass
    return ()


def _elf_sections(content: bytes | mmap.mmap, begin: int) -> Iterator[FileSection]:
    table, size, count, names = _ELF_TABLE.unpack_from(content, begin)
    table += begin
    _, texts, _ = _ELF_SECTION.unpack_from(content, table + names * size)
    for index in range(count):
        name, start, size_bytes = _ELF_SECTION.unpack_from(
            content, table + index * size
        )
        place = begin + texts + name
        text = content[place : place + _MOST_NAME_BYTES].partition(b"\0")[0]
        yield FileSection(text.decode("utf-8", "replace"), begin + start, size_bytes)


def _pe_sections(content: bytes | mmap.mmap) -> Iterator[FileSection]:
    (start,) = struct.unpack_from("<I", content, _PE_START)
    magic, count, size = _PE_HEADER.unpack_from(content, start)
    table = start + _PE_HEADER.size + size
    for index in range(count if magic == _PE else 0):
        name, size_bytes, start = _PE_SECTION.unpack_from(
            content, table + index * _PE_SECTION.size
        )
        yield FileSection(
            name.rstrip(b"\0").decode("utf-8", "replace"), start, size_bytes
        )


def other_code(content: bytes | mmap.mmap) -> tuple[str, ...]:
    """
    Return the kinds of device code in a file that no tool for NVIDIA's code reads.

    Args:
        content: An ELF file of 64 bits, an archive of them, or a PE file. Any other content
            has none.

    Returns:
        Each kind once, as "code for AMD's GPUs (.hip_fatbin)".
    """
    found: dict[str, str] = {}
    for start, _ in members(content):
        for section in sections(content, start):
            for pattern, kind in _OTHER_CODE:
                if re.match(pattern, section.name, re.IGNORECASE):
                    found.setdefault(kind, section.name)
    return tuple(f"{kind} ({name})" for kind, name in found.items())


def fatbin_parts(content: bytes | mmap.mmap) -> list[FatbinPart]:
    """
    Return the linked code in the fatbins of a file, in the file's order, without PTX.

    Args:
        content: A fatbin, or a file or archive that contains fatbins.
    """
    linked = _linked_sections(content)
    if not linked:
        return list(_parts(content, 0, len(content)))
    return [
        part
        for _, start, size_bytes in linked
        for part in _parts(content, start, min(start + size_bytes, len(content)))
    ]


def _linked_sections(content: bytes | mmap.mmap) -> list[FileSection]:
    return [
        section
        for start, _ in members(content)
        for section in sections(content, start)
        if section.name in _LINKED
    ]


def has_linked_fatbins(content: bytes | mmap.mmap) -> bool:
    """Return True for a fatbin, and for a file or archive with a section of linked ones."""
    if content[: len(FATBIN_MAGIC)] == FATBIN_MAGIC:
        return True
    return bool(_linked_sections(content))


def names_fatbins(content: bytes | mmap.mmap) -> bool:
    """Return True for a fatbin, and for a file or archive with a section of fatbins."""
    if content[: len(FATBIN_MAGIC)] == FATBIN_MAGIC:
        return True
    return any(
        section.size_bytes and section.name in _FATBINS
        for start, _ in members(content)
        for section in sections(content, start)
    )


def _parts(content: bytes | mmap.mmap, start: int, end: int) -> Iterator[FatbinPart]:
    start = content.find(FATBIN_MAGIC, start, end)
    while 0 <= start <= end - _FATBIN_HEADER.size:
        _, _, header_bytes, size = _FATBIN_HEADER.unpack_from(content, start)
        place = start + header_bytes
        last = min(place + size, end) - _FATBIN_ENTRY.size
        while start < place <= last:
            kind, _, entry_bytes, size, _, _, chip = _FATBIN_ENTRY.unpack_from(
                content, place
            )
            following = place + max(entry_bytes + size, _FATBIN_ENTRY.size)
            is_other = kind != _FATBIN_PTX and entry_bytes <= _MOST_ENTRY_BYTES
            if kind == FATBIN_CUBIN or is_other:
                yield FatbinPart(chip, place, following, kind)
            place = following
        following = max(place, start + len(FATBIN_MAGIC))
        start = content.find(FATBIN_MAGIC, following, end)


def fatbin_of(content: bytes | mmap.mmap, parts: Sequence[FatbinPart]) -> bytes:
    """Return a fatbin with some parts of a file, and nothing else."""
    entries = b"".join(content[part.start : part.end] for part in parts)
    head = _FATBIN_HEADER.pack(
        FATBIN_MAGIC, _FATBIN_VERSION, _FATBIN_HEADER.size, len(entries)
    )
    return head + entries
