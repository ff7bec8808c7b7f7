"""Code objects of AMD and bundles of clang, with stated resources and no code."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Mapping

import msgspec

BUNDLE = b"__CLANG_OFFLOAD_BUNDLE__"
HEAD = struct.Struct("<16sHHIQQQIHHHHHH")
SECTION = struct.Struct("<IIQQQQIIQQ")


def kernel(name: str = "k", **facts: object) -> dict[str, object]:
    """Return the note of a kernel, with facts as `vgpr_count`."""
    stated = {
        ".name": name,
        ".vgpr_count": 64,
        ".sgpr_count": 32,
        ".vgpr_spill_count": 0,
        ".sgpr_spill_count": 0,
        ".private_segment_fixed_size": 0,
        ".group_segment_fixed_size": 0,
        ".kernarg_segment_size": 24,
        ".wavefront_size": 64,
    }
    return stated | {f".{key}": value for key, value in facts.items()}


def elf(sections: Mapping[str, tuple[int, bytes]], *, machine: int) -> bytes:
    """Return an ELF file of named sections, given by type and content."""
    held = {"": (0, b""), **sections}
    names = b"\0".join(name.encode() for name in held) + b"\0.shstrtab\0"
    held[".shstrtab"] = (3, names)
    table, body, place = b"", b"", HEAD.size
    for name, (kind, content) in held.items():
        at = names.index(name.encode() + b"\0")
        table += SECTION.pack(at, kind, 0, 0, place, len(content), 0, 0, 4, 0)
        padded = content + bytes(-len(content) % 4)
        body += padded
        place += len(padded)
    count = len(held)
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    head = (ident, 3, machine, 1, 0, 0, place, 0, 64, 0, 0, 64, count, count - 1)
    return HEAD.pack(*head) + body + table


def note(content: bytes, owner: bytes = b"AMDGPU", kind: int = 32) -> bytes:
    """Return a note of a code object."""
    padded = owner + bytes(4 - len(owner) % 4)
    size = struct.pack("<III", len(owner) + 1, len(content), kind)
    return size + padded + content + bytes(-len(content) % 4)


def code_object(
    kernels: Iterable[Mapping[str, object]], target: str = "gfx942"
) -> bytes:
    """Return a code object with the notes of some kernels."""
    metadata = {
        "amdhsa.target": f"amdgcn-amd-amdhsa--{target}",
        "amdhsa.kernels": [*kernels],
    }
    content = note(msgspec.msgpack.encode(metadata))
    return elf({".note": (7, content)}, machine=224)


def bundle(codes: Mapping[str, bytes]) -> bytes:
    """Return a bundle, with an empty entry for the host as clang writes it."""
    entries = {"host-x86_64-unknown-linux-gnu-": b""} | {
        f"hipv4-amdgcn-amd-amdhsa--{target}": code for target, code in codes.items()
    }
    place = len(BUNDLE) + 8 + sum(24 + len(name) for name in entries)
    head, body = BUNDLE + struct.pack("<Q", len(entries)), b""
    for name, code in entries.items():
        head += struct.pack("<QQQ", place + len(body), len(code), len(name))
        head += name.encode()
        body += code
    return head + body


def compressed(
    content: bytes, version: int = 2, method: int = 0, packed: bytes | None = None
) -> bytes:
    """Return a compressed bundle, by zlib if it is not packed already."""
    packed = zlib.compress(content) if packed is None else packed
    sizes = {
        1: ("<IQ", (len(content), 0)),
        2: ("<IIQ", (24 + len(packed), len(content), 0)),
        3: ("<QQQ", (32 + len(packed), len(content), 0)),
    }
    form, numbers = sizes[version]
    head = struct.pack("<4sHH", b"CCOB", version, method)
    return head + struct.pack(form, *numbers) + packed


def program(*bundles: bytes) -> bytes:
    """Return a host library with bundles in its section, as several units leave them."""
    section = b"".join(b + bytes(-len(b) % 4096) for b in bundles)
    return elf({".hip_fatbin": (1, section)}, machine=62)
