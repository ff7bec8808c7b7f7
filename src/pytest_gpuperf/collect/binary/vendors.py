"""Device code of other vendors in a compiled binary."""

from __future__ import annotations

import mmap
import re
import struct
from collections.abc import Iterator

_ELF, _DOS, _PE = b"\x7fELF\x02\x01", b"MZ", b"PE\0\0"  # 64 bits, little endian.
# Start of the section table, bytes of an entry, number of entries, entry of the names.
_ELF_TABLE = struct.Struct("<40xQ10xHHH")
_ELF_SECTION = struct.Struct("<I20xQ")  # Place of the name, start of the section.
_MOST_NAME_BYTES = 256
_PE_START = 0x3C  # The place of the start of the PE header.
# Magic, number of sections, bytes of the optional header.
_PE_HEADER = struct.Struct("<4s2xH12xH2x")
_PE_SECTION = struct.Struct("<8s32x")  # A name of up to 8 characters.
# Name of a section and its content. clang names the section after kind and target:
# "gen" is what ocloc compiled for a chip.
_CONTENTS = (
    (rb"\.hip_?fat", "code for AMD's GPUs"),
    (rb"__CLANG_OFFLOAD_BUNDLE__\S*amdgcn", "code for AMD's GPUs"),
    (rb"__CLANG_OFFLOAD_BUNDLE__\S*spir\w*_gen", "code for Intel's GPUs"),
    (
        rb"__CLANG_OFFLOAD_BUNDLE__\S*spir(?!\w*_gen)",
        "SPIR-V, which a driver compiles for its GPU",
    ),
)


def other_code(content: bytes | mmap.mmap) -> tuple[str, ...]:
    """
    Return the kinds of device code in a library or a program that are not NVIDIA's.

    Args:
        content: An ELF file of 64 bits, or a PE file. Any other content has none.

    Returns:
        Each kind once, as "code for AMD's GPUs (.hip_fatbin)".
    """
    found: dict[str, str] = {}
    try:
        for name in _section_names(content):
            for pattern, kind in _CONTENTS:
                if re.match(pattern, name, re.IGNORECASE):
                    found.setdefault(kind, name.decode("ascii", "replace"))
    except (struct.error, OverflowError):  # A cut or damaged table.
        return ()
    return tuple(f"{kind} ({name})" for kind, name in found.items())


def _section_names(content: bytes | mmap.mmap) -> Iterator[bytes]:
    """
    Yield the names of the sections of an ELF or PE file.

    Raises:
        struct.error: The table lies outside of the file.

        OverflowError: The place of the table is no place in any file.
    """
    if content[: len(_ELF)] == _ELF:
        start, size, count, names = _ELF_TABLE.unpack_from(content)
        _, texts = _ELF_SECTION.unpack_from(content, start + names * size)
        for index in range(count):
            name, _ = _ELF_SECTION.unpack_from(content, start + index * size)
            place = texts + name
            yield content[place : place + _MOST_NAME_BYTES].partition(b"\0")[0]
    elif content[: len(_DOS)] == _DOS:
        (start,) = struct.unpack_from("<I", content, _PE_START)
        magic, count, size = _PE_HEADER.unpack_from(content, start)
        table = start + _PE_HEADER.size + size
        for index in range(count if magic == _PE else 0):
            place = table + index * _PE_SECTION.size
            yield _PE_SECTION.unpack_from(content, place)[0].rstrip(b"\0")
