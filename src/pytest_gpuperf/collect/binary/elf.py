"""The head of a binary: is it what it says, and is it whole."""

from __future__ import annotations

import struct

__all__ = ["HEAD_BYTES", "cubin_problem", "kind_of"]

HEAD_BYTES = 4096

_ELF_MAGIC = b"\x7fELF"
_FATBIN_MAGIC = b"\x50\xed\x55\xba"
_CONTAINER_MAGICS = (_ELF_MAGIC, _FATBIN_MAGIC, b"!<arch>\n", b"MZ")
_MACHINE_CUDA = 190  # EM_CUDA of the ELF registry
_TYPE_RELOCATABLE = 1
_SECTION_WITHOUT_BYTES = 8  # SHT_NOBITS
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")  # Elf64_Ehdr
_SECTION = struct.Struct("<IIQQQQIIQQ")  # Elf64_Shdr


def kind_of(head: bytes) -> str:
    """
    Return what a file is, from its first bytes.

    Args:
        head: Its first `HEAD_BYTES`.

    Returns:
        "cubin", "container" (a fatbin, or a program or archive that may hold one),
        "ptx", "empty" or "other".
    """
    if not head:
        return "empty"
    if head.startswith(_ELF_MAGIC) and head[18:20] == struct.pack("<H", _MACHINE_CUDA):
        return "cubin"
    if head.startswith(_CONTAINER_MAGICS):
        return "container"
    if b".version" in head and b".target" in head:
        return "ptx"
    return "other"


def cubin_problem(content: bytes) -> tuple[str, str] | None:
    """
    Return what keeps a cubin's numbers from being final.

    Args:
        content: The whole cubin.

    Returns:
        What is wrong and what to do about it; None: nothing is wrong.
    """
    if not _is_whole(content):
        return "is cut off", "compile or copy it again"
    if _HEADER.unpack_from(content)[1] == _TYPE_RELOCATABLE:
        return (
            "is not linked: registers and stack are final after the device link only",
            "link it (nvcc -dlink -cubin) or compile it without -rdc=true",
        )
    return None


def _is_whole(content: bytes) -> bool:
    """Return whether all that the header promises is there."""
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
