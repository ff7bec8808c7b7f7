"""Binaries in, the resources and instructions of their kernels out."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_gpuperf.collect.binary import cuobjdump
from pytest_gpuperf.collect.binary.demangle import demangled_names
from pytest_gpuperf.collect.binary.elf import HEAD_BYTES, cubin_problem, kind_of
from pytest_gpuperf.collect.binary.instructions import (
    InstructionMix,
    instruction_mix,
)
from pytest_gpuperf.collect.binary.ptxas_log import CompilerFacts, read_ptxas_log
from pytest_gpuperf.collect.binary.sources import Image, LaunchFacts, images_of
from pytest_gpuperf.collect.binary.tools import CUOBJDUMP, NVDISASM, find_tool, refusal
from pytest_gpuperf.collect.devices import target_capability
from pytest_gpuperf.collect.runner import Runner
from pytest_gpuperf.errors import CaptureFormatError, MeasureError
from pytest_gpuperf.model.frozen import Frozen, replace
from pytest_gpuperf.model.launch import KernelResources

__all__ = ["Cubin", "read_binary", "read_cubins", "read_mixes"]

# From 9.0 on the compiler places a kernel's own shared memory behind the share that
# the driver keeps, and cuobjdump counts both (seen with ptxas 11.8 to 13.4).
_KEPT_BY_DRIVER_BYTES = 1024
_KEPT_FROM = (9, 0)

_GIVE = "give a cubin, a fatbin or a program that holds one"
_REFUSED = {
    "empty": ("is empty", "compile or copy it again"),
    "ptx": ("is PTX", "compile it for a chip: ptxas -arch=sm_90 in.ptx -o out.cubin"),
    "other": ("is no cubin and holds none", _GIVE),
}


class Cubin(Frozen, frozen=True, kw_only=True):
    """
    The code for one target, and the kernels in it.

    Attributes:
        content: The whole file.

        kernels: What each of them needs, in the file's order.
    """

    content: bytes
    kernels: tuple[KernelResources, ...]


def read_binary(
    source: object,
    *,
    runner: Runner,
    block: int | None = None,
    dynamic_shared_bytes: int | None = None,
    ptxas_log: str | None = None,
    target: str | None = None,
    tool: str | None = None,
) -> tuple[KernelResources, ...]:
    """
    Return what each kernel of a binary needs of the chip it was compiled for.

    Arguments and errors are those of `read_cubins`.

    Returns:
        One entry for each kernel and target, in the binary's order.
    """
    cubins = read_cubins(
        source,
        runner=runner,
        block=block,
        dynamic_shared_bytes=dynamic_shared_bytes,
        ptxas_log=ptxas_log,
        target=target,
        tool=tool,
    )
    return tuple(kernel for cubin in cubins for kernel in cubin.kernels)


def read_cubins(
    source: object,
    *,
    runner: Runner,
    block: int | None = None,
    dynamic_shared_bytes: int | None = None,
    ptxas_log: str | None = None,
    target: str | None = None,
    tool: str | None = None,
) -> tuple[Cubin, ...]:
    """
    Return the cubins of a binary, with what their kernels need of the chip.

    Args:
        source: A path, bytes, what Triton's compiler returns, or a sequence of them.

        runner: Starts cuobjdump and a demangler.

        block: Threads of a block, >= 1; None: what Triton says, or unknown.

        dynamic_shared_bytes: Shared memory asked for at launch [B], >= 0; None: what
            Triton says, or unknown.

        ptxas_log: What `nvcc -Xptxas -v` or `ptxas -v` printed, for spills and
            barriers; None: these stay unknown.

        target: Only kernels compiled for this chip, as `sm_90a`; None: for every one.

        tool: The path of cuobjdump; None: it is looked for.

    Returns:
        Cubins in the binary's order. The stack of a kernel that calls itself is what
        the compiler could bound, or None.

    Raises:
        CaptureFormatError: A file that is missing, cut off, not linked or no binary,
            or that holds no kernel, or none for `target`.

        CollectorUnavailableError: There is no cuobjdump.

        CollectorFailedError: cuobjdump cannot read the binary.

        MeasureError: The source is nothing that can be read.
    """
    launch = LaunchFacts(
        threads_per_block=_at_least(block, 1, "block"),
        dynamic_shared_bytes=_at_least(dynamic_shared_bytes, 0, "dynamic_shared_bytes"),
    )
    images = images_of(source, launch)
    facts = {} if ptxas_log is None else read_ptxas_log(ptxas_log)
    for image in images:
        _refuse_by_head(image)
    tool = tool or find_tool(CUOBJDUMP)
    cubins = [
        cubin
        for image in images
        for cubin in _read_image(image, target, facts, tool=tool, runner=runner)
    ]
    mangled = [kernel.name for cubin in cubins for kernel in cubin.kernels]
    names = demangled_names(mangled, runner=runner)
    return tuple(
        Cubin(
            content=cubin.content,
            kernels=tuple(
                replace(k, demangled=names.get(k.name)) for k in cubin.kernels
            ),
        )
        for cubin in cubins
    )


def read_mixes(
    cubins: Sequence[Cubin], *, runner: Runner, tool: str | None = None
) -> tuple[InstructionMix, ...]:
    """
    Return of which instructions each kernel consists.

    Args:
        cubins: What `read_cubins` returned.

        runner: Starts nvdisasm.

        tool: The path of nvdisasm; None: it is looked for.

    Returns:
        One entry for each kernel, in the order of the cubins and of their kernels.

    Raises:
        CollectorUnavailableError: There is no nvdisasm.

        CollectorFailedError: nvdisasm cannot read a cubin.
    """
    tool = tool or find_tool(NVDISASM)
    mixes: list[InstructionMix] = []
    with tempfile.TemporaryDirectory(prefix="gpuperf-") as folder:
        path = Path(folder, "image.cubin")
        for cubin in cubins:
            path.write_bytes(cubin.content)
            names = [kernel.name for kernel in cubin.kernels]
            mixes += instruction_mix(tool, path, names, runner=runner)
    return tuple(mixes)


def _at_least(value: int | None, least: int, name: str) -> int | None:
    """Return a number that makes sense, or refuse it by its name."""
    if value is not None and value < least:
        message = f"{name} is {value}"
        raise MeasureError(message, remedy=f"give {name} as a number >= {least}")
    return value


def _refuse_by_head(image: Image) -> None:
    """Refuse what no tool need be asked about."""
    kind = kind_of(_head(image))
    if kind in _REFUSED:
        problem, remedy = _REFUSED[kind]
        raise CaptureFormatError(problem, remedy=remedy, path=image.label)
    if kind == "cubin":
        content = image.content
        if content is None and image.path is not None:
            content = image.path.read_bytes()
        _refuse_unfinished(content or b"", image)


def _head(image: Image) -> bytes:
    """Return the first bytes of an image."""
    if image.content is not None or image.path is None:
        return (image.content or b"")[:HEAD_BYTES]
    if image.path.exists() and not image.path.is_file():  # a pipe would never answer
        message = "is a folder or a device"
        raise CaptureFormatError(message, remedy=_GIVE, path=image.label)
    try:
        with image.path.open("rb") as file:
            return file.read(HEAD_BYTES)
    except OSError as error:
        message = f"cannot be read ({error.strerror})"
        raise CaptureFormatError(message, remedy=_GIVE, path=image.label) from error


def _refuse_unfinished(content: bytes, image: Image) -> None:
    """Refuse a cubin whose numbers are not the final ones."""
    if problem := cubin_problem(content):
        raise CaptureFormatError(problem[0], remedy=problem[1], path=image.label)


def _read_image(
    image: Image,
    target: str | None,
    facts: Mapping[tuple[str, str], CompilerFacts],
    *,
    tool: str,
    runner: Runner,
) -> list[Cubin]:
    """Return the cubins of one image."""
    with tempfile.TemporaryDirectory(prefix="gpuperf-") as folder:
        files = _cubins_of(image, target, Path(folder), tool=tool, runner=runner)
        cubins = []
        for file, of in files.items():
            content = file.read_bytes()
            _refuse_unfinished(content, image)
            usages = cuobjdump.function_usage(tool, file, runner=runner)
            kernels = [_resources(use, of, image.launch, facts) for use in usages]
            cubins.append(Cubin(content=content, kernels=tuple(kernels)))
    if not any(cubin.kernels for cubin in cubins):
        raise CaptureFormatError("holds no kernel", remedy=_GIVE, path=image.label)
    return cubins


def _cubins_of(
    image: Image, target: str | None, folder: Path, *, tool: str, runner: Runner
) -> Mapping[Path, str]:
    """Return the files of an image's cubins with their targets."""
    path = image.path
    if path is None:
        path = folder / "image"
        path.write_bytes(image.content or b"")
    into = folder / "cubins"
    into.mkdir()
    finished, cubins = cuobjdump.extract_cubins(tool, path, into=into, runner=runner)
    if cuobjdump.holds_no_device_code(finished) and kind_of(_head(image)) != "cubin":
        raise CaptureFormatError("holds no device code", remedy=_GIVE, path=image.label)
    if finished.exit_code:
        raise refusal(CUOBJDUMP, finished)
    if not cubins:
        raise CaptureFormatError(
            "holds no kernel compiled for a chip",
            remedy="compile for a chip too: nvcc -gencode arch=compute_90,code=sm_90",
            path=image.label,
        )
    chosen = {file: of for file, of in cubins.items() if target in {None, of}}
    if not chosen:
        held = ", ".join(dict.fromkeys(cubins.values()))
        message = f"holds no kernel for {target}, only for {held}"
        raise CaptureFormatError(
            message, remedy=f"take one of {held}", path=image.label
        )
    return chosen


def _resources(
    usage: cuobjdump.FunctionUsage,
    target: str,
    launch: LaunchFacts,
    facts: Mapping[tuple[str, str], CompilerFacts],
) -> KernelResources:
    """Return one kernel's resources in our words."""
    said = facts.get((usage.name, target))
    return KernelResources(
        name=usage.name,
        demangled=None,
        target=target,
        registers_count=usage.registers_count,
        stack_bytes=usage.stack_bytes,
        shared_bytes=_own_shared_bytes(usage.shared_bytes, target),
        constant_bytes=usage.constant_bytes,
        dynamic_shared_bytes=launch.dynamic_shared_bytes,
        spills_bytes=said.spills_bytes if said else None,
        threads_per_block=launch.threads_per_block,
        barriers_count=said.barriers_count if said else None,
    )


def _own_shared_bytes(counted_bytes: int, target: str) -> int:
    """Return a kernel's static shared memory without the driver's share."""
    capability = target_capability(target)
    kept = capability is not None and capability >= _KEPT_FROM
    if kept and counted_bytes >= _KEPT_BY_DRIVER_BYTES:
        return counted_bytes - _KEPT_BY_DRIVER_BYTES
    return counted_bytes
