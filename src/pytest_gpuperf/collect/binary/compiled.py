"""The machine code of kernels that this process has compiled or loaded."""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_gpuperf.collect.binary.identity import code_identities
from pytest_gpuperf.collect.binary.module import read_module
from pytest_gpuperf.collect.runner import Runner
from pytest_gpuperf.errors import GpuPerfError
from pytest_gpuperf.model.activity import KernelShape
from pytest_gpuperf.model.frozen import Frozen
from pytest_gpuperf.model.identity import CodeIdentity

# The modules and classes of compiled kernels. Subclasses, and the classes of other
# versions, are found by their modules.
_COMPILED = {
    "triton.compiler.compiler": "CompiledKernel",
    "torch._inductor.runtime.static_cuda_launcher": "StaticallyLaunchedCudaKernel",
    "torch._inductor.runtime.static_triton_launcher": "StaticallyLaunchedCudaKernel",
}
_WARP_SIZE = 32  # On every NVIDIA chip. Triton states it for AMD's.
_KEPT = 256  # Identities. One is 200 bytes, and reading one may take half a second.


class CompiledCode(Frozen, frozen=True, kw_only=True):
    """
    A compiled kernel.

    Attributes:
        name: The name of the function in the file.

        content: The cubin, or the code object of AMD.

        threads_count: Threads of a block, or None if unknown.

        shared_bytes: Shared memory requested at launch [B], or None if unknown.

        registers_count: Registers per thread, or None if unknown.
    """

    name: str
    content: bytes
    threads_count: int | None = None
    shared_bytes: int | None = None
    registers_count: int | None = None

    def fits(self, shape: KernelShape) -> bool:
        """Return True if the kernel may have been launched in a shape."""
        x, y, z = shape.block
        return (
            self.name == shape.name
            and self.threads_count in {None, x * y * z}
            and self.shared_bytes in {None, shape.dynamic_shared_bytes}
            and self.registers_count in {None, shape.registers_count}
        )


def launched_identity(
    shapes: Sequence[KernelShape],
    *,
    runner: Runner,
    modules: Mapping[str, Any] = sys.modules,
    loaded: Iterable[bytes] = (),
) -> CodeIdentity | None:
    """
    Return the identity of all kernels of a measurement.

    Args:
        shapes: The launched kernels.

        runner: Starts nvdisasm, if a cubin needs it.

        modules: The loaded modules of Python by name.

        loaded: The cubins that the driver has loaded, for kernels that neither Triton nor
            Inductor has compiled.

    Returns:
        The identity, or None if the code of any kernel is not at hand, if several compiled
        kernels may be the launched one, or if the code cannot be read.
    """
    classes = tuple(
        found
        for module, name in _COMPILED.items()
        if isinstance(found := getattr(modules.get(module), name, None), type)
    )
    names = {shape.name for shape in shapes}
    compiled = [*_compiled(names, classes)] if classes else []
    others = names - {code.name for code in compiled}
    compiled += [code for content in loaded for code in _kernels(content, others)]
    if not compiled:
        return None
    identities = []
    # The cubins that a launch of a kernel may have run, by its name.
    launched: dict[tuple[str, frozenset[bytes]], None] = {}
    for shape in shapes:
        fitting = frozenset(code.content for code in compiled if code.fits(shape))
        launched[shape.name, fitting] = None
    for name, fitting in launched:
        candidates = {
            _identity(content, name, runner)  # type: ignore[arg-type] # has a hash
            for content in fitting
        }
        # Kernels of one name may differ by the constants that were compiled in.
        if len(candidates) != 1 or None in candidates:
            return None
        identities += [identity for identity in candidates if identity is not None]
    return CodeIdentity.of_kernels(identities)


def _compiled(names: set[str], classes: tuple[type, ...]) -> Iterator[CompiledCode]:
    for candidate in gc.get_objects():
        # The type, because `isinstance` runs code of proxies.
        if not issubclass(type(candidate), classes):
            continue
        metadata = getattr(candidate, "metadata", None)
        name = getattr(candidate, "name", None) or getattr(metadata, "name", None)
        if name not in names:
            continue
        content = _content(candidate)
        if content is None:
            continue
        warps = _number(candidate, metadata, "num_warps")
        warp_size = _number(candidate, metadata, "warp_size") or _WARP_SIZE
        yield CompiledCode(
            name=name,
            content=content,
            threads_count=None if warps is None else warps * warp_size,
            shared_bytes=_number(candidate, metadata, "shared"),
        )


def _kernels(content: bytes, names: set[str]) -> Iterator[CompiledCode]:
    if not any(name.encode() in content for name in names):
        return
    try:
        module = read_module(content)
    except GpuPerfError:
        return
    registers = dict(module.registers)
    for name in names.intersection(module.kernels):
        count = registers.get(name)
        yield CompiledCode(name=name, content=content, registers_count=count)


def _content(compiled: object) -> bytes | None:
    """Return the cubin or code object of a compiled kernel, or None if it was dropped."""
    forms = getattr(compiled, "asm", None)
    content = None
    if isinstance(forms, Mapping):
        content = forms.get("cubin", forms.get("hsaco"))
    if isinstance(content, bytes):
        return content
    content = getattr(compiled, "cubin_raw", None)
    if isinstance(content, bytes):
        return content
    path = getattr(compiled, "cubin_path", None)
    try:
        return Path(path).read_bytes() if isinstance(path, str) else None
    except OSError:
        return None


def _number(compiled: object, metadata: object, name: str) -> int | None:
    value = getattr(metadata, name, getattr(compiled, name, None))
    return value if type(value) is int else None


@functools.lru_cache(maxsize=_KEPT)
def _identity(content: bytes, name: str, runner: Runner) -> CodeIdentity | None:
    try:
        return code_identities(content, runner=runner).get(name)
    except GpuPerfError:
        # A measurement must not be lost because its code cannot be read.
        return None
