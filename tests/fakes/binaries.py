"""Libraries and programs of any sections."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from types import MappingProxyType


def elf(sections: Mapping[str, bytes]) -> bytes:
    """Return a library of x86 with these sections."""
    texts = b"\0" + b"".join(name.encode() + b"\0" for name in sections)
    bodies = b"".join(sections.values())
    table = struct.pack("<I20xQQ24x", 0, 64, len(texts))
    name, start = 1, 64 + len(texts)
    for text, body in sections.items():
        table += struct.pack("<I20xQQ24x", name, start, len(body))
        name += len(text) + 1
        start += len(body)
    head = struct.pack(
        "<16sHHIQQQIHHHHHH",
        *(b"\x7fELF\2\1\1" + bytes(9), 3, 62, 1, 0, 0, start, 0),
        *(64, 0, 0, 64, len(sections) + 1, 0),
    )
    return head + texts + bodies + table


def fatbin(
    cubins: Mapping[int, bytes], kinds: Mapping[int, int] = MappingProxyType({})
) -> bytes:
    """Return a fatbin of cubins, or other kinds of code, by the number of the chip."""
    entries = b""
    for chip, cubin in cubins.items():
        body = cubin + bytes(-len(cubin) % 8)
        kind = kinds.get(chip, 2)
        head = struct.pack("<HHIQQII32x", kind, 0x101, 64, len(body), 0, 0, chip)
        entries += head + body
    return struct.pack("<4sHHQ", b"\x50\xed\x55\xba", 1, 16, len(entries)) + entries


def pe(sections: Mapping[str, bytes]) -> bytes:
    """Return a library of Windows with these sections."""
    start, optional = 128, 240
    head = (b"MZ" + bytes(58) + struct.pack("<I", start)).ljust(start, b"\0")
    head += struct.pack("<4sHH12xHH", b"PE\0\0", 0x8664, len(sections), optional, 0)
    head += bytes(optional)
    place = len(head) + 40 * len(sections)
    for name, body in sections.items():
        head += struct.pack("<8s8xII16x", name.encode()[:8], len(body), place)
        place += len(body)
    return head + b"".join(sections.values())


def archive(*members: bytes, long_names: bool = False) -> bytes:
    """Return an archive of `ar`, with an index; `long_names`: as BSD writes them."""
    parts = [_member(b"/", b"index")]
    for number, content in enumerate(members):
        name = b"a_long_name_%d.o" % number
        if long_names:
            parts.append(_member(b"#1/%d" % len(name), name + content))
        else:
            parts.append(_member(b"%d.o/" % number, content))
    return b"!<arch>\n" + b"".join(parts)


def _member(name: bytes, content: bytes) -> bytes:
    head = b"%-16s%-12d%-6d%-6d%-8s%-10d`\n" % (name, 0, 0, 0, b"644", len(content))
    return head + content + b"\n" * (len(content) % 2)
