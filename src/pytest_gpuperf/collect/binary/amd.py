"""Code objects of AMD: finding them in files, and the resources of their kernels."""

from __future__ import annotations

import mmap
import re
import shutil
import struct
import zlib
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

import msgspec

from pytest_gpuperf.collect.binary.containers import members, sections
from pytest_gpuperf.collect.binary.elf import ELF_MAGIC, ElfFile
from pytest_gpuperf.collect.runner import Runner
from pytest_gpuperf.errors import CaptureFormatError, CollectorUnavailableError
from pytest_gpuperf.model.activity import KernelResources
from pytest_gpuperf.model.frozen import UNREADABLE, Frozen

MACHINE_AMD = 224  # EM_AMDGPU
_NOTE = (b"AMDGPU", 32)  # NT_AMDGPU_METADATA, from code object version 3 on
_OLD_NOTE = (b"AMD", 10)  # NT_AMD_HSA_METADATA of version 2
_TARGET = re.compile(r"(gfx[0-9a-f]+(?:-\d[\w-]*-generic|-generic)?(?::[\w:+-]+)?)\Z")
# clang bundles such code of OpenMP, too.
_NVIDIA_CHIP = re.compile(r"-(sm_\d+[af]?)\Z")
_REGISTER_BYTES = 4

BUNDLE = b"__CLANG_OFFLOAD_BUNDLE__"
COMPRESSED = b"CCOB"
# Offset, size and length of the target's name of each entry.
_ENTRY = struct.Struct("<QQQ")
_MOST_ENTRIES = 4096  # clang lists a host and some chips.
# By version of the header: fields after magic, version and method, as the bytes of the
# file, the bytes of the bundle, a hash. The first version does not have the former.
_SIZES = {1: struct.Struct("<IQ"), 2: struct.Struct("<IIQ"), 3: struct.Struct("<QQQ")}
_COMPRESSION = struct.Struct("<4sHH")
_ZLIB, _ZSTD = 0, 1
_ZSTD_MODULES = ("compression.zstd", "backports.zstd")  # Of Python 3.14, and before.
_DECOMPRESS_TIMEOUT_S = 120.0
_COMPILE_AGAIN = "compile or copy it again"
# In ELF and in PE, whose names have 8 characters at most.
_SECTIONS = frozenset({".hip_fatbin", ".hip_fat"})
_OF_CLANG = re.compile(r"__CLANG_OFFLOAD_BUNDLE__\S*amdgcn")


class _OldVersionError(ValueError):
    """A code object of a version whose notes are not read."""


class CodeObject(Frozen, frozen=True, kw_only=True):
    """
    The code for one target.

    Attributes:
        target: The chip with its settings, as `gfx90a:sramecc+:xnack-`.

        content: The ELF file: a code object of AMD, or a cubin from a bundle.
    """

    target: str
    content: bytes


def has_code_objects(content: bytes | mmap.mmap) -> bool:
    """Return True for a code object, a bundle, or a program that contains bundles."""
    return next(_parts(content), None) is not None


def code_objects(
    content: bytes | mmap.mmap, *, label: str, runner: Runner
) -> Iterator[CodeObject]:
    """
    Yield the code objects of a file, in the file's order.

    Args:
        content: A code object, a bundle of clang, compressed or not, or a program.

        label: The name of the file in messages.

        runner: Starts zstd, if Python cannot decompress a bundle.

    Raises:
        CaptureFormatError: The code is damaged.

        CollectorUnavailableError: A bundle is compressed with zstd, and nothing here can
            decompress it.
    """
    try:
        for start, end in _parts(content):
            yield from _of_part(content, start, end, runner)
    except _OldVersionError as error:
        remedy = "compile it again with ROCm 3.5 or later"
        raise CaptureFormatError(str(error), remedy=remedy, path=label) from error
    except (ValueError, struct.error, zlib.error) as error:
        message = f"is cut off or damaged ({error})"
        raise CaptureFormatError(message, remedy=_COMPILE_AGAIN, path=label) from error


def _parts(content: bytes | mmap.mmap) -> Iterator[tuple[int, int]]:
    """Yield the range of the whole file, or of each section with device code."""
    head = content[:24]
    if head.startswith((BUNDLE, COMPRESSED)) or _machine(head) == MACHINE_AMD:
        yield 0, len(content)
        return
    for member, end in members(content):
        head = content[member : member + 24]
        if head.startswith(BUNDLE) or _machine(head) == MACHINE_AMD:
            yield member, end
            continue
        for section in sections(content, member):
            start, after = section.start, section.start + section.size_bytes
            magic = content[start : min(start + len(BUNDLE), after)]
            # Before the link, a section of clang may have the code of its compiler.
            is_code = magic.startswith((ELF_MAGIC, BUNDLE, COMPRESSED))
            named = is_code and _OF_CLANG.match(section.name)
            if section.size_bytes and (section.name in _SECTIONS or named):
                yield start, after


def _machine(head: bytes) -> int | None:
    is_elf = head.startswith(ELF_MAGIC)
    return int.from_bytes(head[18:20], "little") if is_elf else None


def _of_part(
    content: bytes | mmap.mmap, start: int, end: int, runner: Runner
) -> Iterator[CodeObject]:
    if content[start : start + 4] == ELF_MAGIC:
        part = content[start:end]
        text = str(metadata_of(ElfFile(part)).get("amdhsa.target", ""))
        match = _TARGET.search(text)
        if match is None:
            message = f"it is for {text!r}"
            raise ValueError(message)
        yield CodeObject(target=match[1], content=part)
        return
    place = start
    while True:
        found = [content.find(magic, place, end) for magic in (BUNDLE, COMPRESSED)]
        place = min((at for at in found if at >= 0), default=-1)
        if place < 0:
            return
        if content[place : place + 4] == COMPRESSED:
            bundle, size = _decompressed(content, place, end, runner)
            yield from _unbundled(bundle, 0)[0]
        else:
            objects, size = _unbundled(content, place)
            yield from objects
        place += max(size, len(COMPRESSED))


def _unbundled(content: bytes | mmap.mmap, start: int) -> tuple[list[CodeObject], int]:
    place = start + len(BUNDLE)
    (count,) = struct.unpack_from("<Q", content, place)
    if count > _MOST_ENTRIES:
        message = f"a bundle of {count} entries"
        raise ValueError(message)
    place += 8
    objects, end = [], place
    for _ in range(count):
        offset, size, name_bytes = _ENTRY.unpack_from(content, place)
        place += _ENTRY.size
        name = content[place : place + name_bytes].decode("ascii", "replace")
        place += name_bytes
        end = max(end, place, start + offset + size)
        if end > len(content):
            message = f"the code of {name} is cut off"
            raise ValueError(message)
        code = content[start + offset : start + offset + size]
        chip = _TARGET.search(name) or _NVIDIA_CHIP.search(name)
        if chip is not None and code.startswith(ELF_MAGIC):
            objects.append(CodeObject(target=chip[1], content=code))
    return objects, end - start


def _decompressed(
    content: bytes | mmap.mmap, start: int, end: int, runner: Runner
) -> tuple[bytes, int]:
    _, version, method = _COMPRESSION.unpack_from(content, start)
    form = _SIZES.get(version)
    if form is None or method not in {_ZLIB, _ZSTD}:
        message = f"a compressed bundle of version {version}, method {method}"
        raise ValueError(message)
    *sizes, bundle_bytes, _ = form.unpack_from(content, start + _COMPRESSION.size)
    head_bytes = _COMPRESSION.size + form.size
    if sizes:
        (size,) = sizes
    else:
        following = content.find(COMPRESSED, start + len(COMPRESSED), end)
        size = (end if following < 0 else following) - start
    if start + size > end:
        message = "a compressed bundle is cut off"
        raise ValueError(message)
    packed = content[start + head_bytes : start + size]
    if method == _ZLIB:
        bundle = zlib.decompressobj().decompress(packed, bundle_bytes + 1)
    else:
        bundle = _from_zstd(packed, runner)
    if len(bundle) != bundle_bytes or not bundle.startswith(BUNDLE):
        message = f"a compressed bundle has {len(bundle)} B and not {bundle_bytes} B"
        raise ValueError(message)
    return bundle, size


def _from_zstd(packed: bytes, runner: Runner) -> bytes:
    for name in _ZSTD_MODULES:
        try:
            module = import_module(name)
        except ImportError:
            continue
        try:
            content: bytes = module.decompress(packed)
        except module.ZstdError as error:
            raise ValueError(str(error)) from error
        return content
    tool = shutil.which("zstd")
    if tool is None:
        message = "the code is compressed with zstd, which this Python cannot read"
        raise CollectorUnavailableError(
            message, remedy='run: pip install "pytest-gpuperf[binary]"'
        )
    finished = runner.run(
        [tool, "-d", "-c", "-q"], timeout_s=_DECOMPRESS_TIMEOUT_S, stdin=packed
    )
    if finished.exit_code:
        raise ValueError(finished.log_tail)
    return finished.stdout


def amd_kernels(code: CodeObject) -> tuple[KernelResources, ...]:
    """
    Return the resources of every kernel of a code object, as its notes state them.

    Raises:
        ValueError: The notes are damaged, or of version 2.

        struct.error: The file is damaged.
    """
    kernels = stated_kernels(metadata_of(ElfFile(code.content)))
    return tuple(_kernel(kernel, code.target) for kernel in kernels)


def is_code_object(content: bytes) -> bool:
    """Return True for code of AMD that is in no bundle."""
    return _machine(content[:24]) == MACHINE_AMD


def stated_kernels(metadata: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """
    Return the facts of each kernel in the notes of a code object.

    Raises:
        ValueError: There is no list of kernels.
    """
    kernels = metadata.get("amdhsa.kernels", [])
    if not isinstance(kernels, list) or not all(isinstance(k, dict) for k in kernels):
        message = "its note has no list of kernels"
        raise ValueError(message)
    return kernels


def metadata_of(file: ElfFile) -> Mapping[str, Any]:
    """
    Return the notes of a code object.

    Raises:
        ValueError: The notes are damaged or missing, or of version 2.
    """
    owners = set()
    for owner, kind, content in file.notes():
        owners.add((owner, kind))
        if (owner, kind) == _NOTE:
            try:
                metadata = msgspec.msgpack.decode(content)
            # A TypeError is that of a key that no dict can have, in msgspec 0.21.
            except (*UNREADABLE, TypeError) as error:
                raise ValueError(str(error)) from error
            if isinstance(metadata, dict):
                return metadata
    if _OLD_NOTE in owners:
        message = "is a code object of version 2, which LLVM wrote until 2020"
        raise _OldVersionError(message)
    message = "it has no note of its kernels"
    raise ValueError(message)


def _kernel(facts: Mapping[str, Any], target: str) -> KernelResources:
    def number(key: str) -> int:
        value = facts.get(key, 0)
        if type(value) is not int or value < 0:
            message = f"{key} is {value!r}"
            raise ValueError(message)
        return value

    block = facts.get(".reqd_workgroup_size")
    threads = None
    if isinstance(block, list) and all(type(n) is int and n > 0 for n in block):
        threads = block[0] * block[1] * block[2]
    spilled = number(".vgpr_spill_count")
    return KernelResources(
        name=str(facts.get(".name", "")),
        demangled=None,
        target=target,
        registers_count=number(".vgpr_count"),
        stack_bytes=(
            None
            if facts.get(".uses_dynamic_stack")
            else number(".private_segment_fixed_size")
        ),
        shared_bytes=number(".group_segment_fixed_size"),
        constant_bytes=number(".kernarg_segment_size"),
        spills_bytes=spilled * _REGISTER_BYTES,
        threads_per_block=threads,
        scalar_registers_count=number(".sgpr_count"),
        # Chips without such registers do not have the key.
        accumulation_registers_count=(
            number(".agpr_count") if ".agpr_count" in facts else None
        ),
        scalar_spills_count=number(".sgpr_spill_count"),
        warp_size_count=number(".wavefront_size"),
    )
