"""The kernels of a library one file of code after the other, with names that builds keep."""

from __future__ import annotations

import contextlib
import re
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from pytest_gpuperf.collect.binary.amd import is_code_object
from pytest_gpuperf.collect.binary.amd_identity import amd_parts
from pytest_gpuperf.collect.binary.elf import ElfFile
from pytest_gpuperf.collect.binary.read import Cubin
from pytest_gpuperf.errors import CaptureFormatError
from pytest_gpuperf.model.activity import KernelResources
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.identity import digest_of
from pytest_gpuperf.model.inventory import ListedKernel

# Names that separate compilation gives to static functions.
_STATIC = re.compile(r"^__nv_static_\d+__\w*?_(?=_Z)")
# Digests of a file's name in the names of anonymous namespaces.
_UNIT = re.compile(
    r"_(?:GLOBAL__N__|INTERNAL_)[0-9a-f]{8}_\d+_\w+?_(?:cu|cpp)_[0-9a-f]{8}(?:_\d+)?"
)
_ANONYMOUS = "(anonymous namespace)"


def listed_kernels(
    cubin: Cubin, *, demangle: Callable[[str], str | None]
) -> list[ListedKernel]:
    """
    Return the kernels of a cubin or code object.

    Spills of NVIDIA's code are known to be none without local memory, and unknown with.

    Args:
        cubin: The file of code.

        demangle: Returns the readable name, or None if the name cannot be demangled.

    Raises:
        CaptureFormatError: The code of a kernel cannot be found.
    """
    try:
        functions = ElfFile(cubin.content).functions()
    except ValueError as error:
        raise CaptureFormatError(
            f"is damaged ({error})", remedy="compile or copy it again", path="the code"
        ) from error
    names = {kernel.name for kernel in cubin.kernels}
    # Which kernel calls them is not read, so each of them belongs to all kernels.
    called = sorted(code for name, code in functions.items() if name not in names)
    shared = digest_of(called) if called else ""
    # The identity of AMD's kernels is read without a tool. Files without symbols of their
    # code are listed by their notes and functions.
    of_amd: Mapping[str, Sequence[object]] = {}
    if is_code_object(cubin.content):
        with contextlib.suppress(ValueError, struct.error):
            of_amd = amd_parts(cubin.content)
    return [
        _listed(kernel, code, of_amd.get(kernel.name, (code, shared)), demangle)
        for kernel in cubin.kernels
        for code in (functions.get(kernel.name, b""),)
    ]


def _listed(
    kernel: KernelResources,
    code: bytes,
    reached: Sequence[object],
    demangle: Callable[[str], str | None],
) -> ListedKernel:
    spills_bytes = kernel.spills_bytes
    if spills_bytes is None and kernel.stack_bytes == 0:
        spills_bytes = 0
    shape = (
        *(kernel.registers_count, kernel.scalar_registers_count, kernel.shared_bytes),
        *(kernel.stack_bytes, kernel.spills_bytes, kernel.scalar_spills_count),
        # Without a symbol of its code, a kernel is like no other.
        None if code else kernel.name,
    )
    mangled = _STATIC.sub("", kernel.name)
    return ListedKernel(
        kernel=_UNIT.sub(_ANONYMOUS, demangle(mangled) or mangled),
        target=kernel.target,
        registers=kernel.registers_count,
        scalar_registers=kernel.scalar_registers_count,
        accumulation_registers=kernel.accumulation_registers_count,
        stack_bytes=kernel.stack_bytes,
        spills_bytes=spills_bytes,
        scalar_spills=kernel.scalar_spills_count,
        shared_bytes=kernel.shared_bytes,
        code_bytes=len(code),
        digest=digest_of((shape, *reached)),
    )


def numbered(kernels: Iterable[ListedKernel]) -> list[ListedKernel]:
    """Return kernels in order of name and target, those of an equal name numbered."""
    order = sorted(
        kernels, key=lambda k: (k.kernel, k.target, k.code_bytes, k.registers, k.digest)
    )
    seen: Counter[tuple[str, str]] = Counter()
    result = []
    for kernel in order:
        name = kernel.kernel, kernel.target
        seen[name] += 1
        is_right = kernel.number == seen[name]
        result.append(kernel if is_right else replace(kernel, number=seen[name]))
    return result
