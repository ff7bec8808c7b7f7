"""Resources and instructions of the kernels of a binary."""

from __future__ import annotations

import dataclasses
import mmap
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pytest_gpuperf.collect.binary.amd import (
    BUNDLE,
    COMPRESSED,
    MACHINE_AMD,
    amd_kernels,
    code_objects,
    has_code_objects,
)
from pytest_gpuperf.collect.binary.compiler_log import (
    CompilerLog,
    facts_of,
    log_name,
    log_text,
    read_ptxas_log,
)
from pytest_gpuperf.collect.binary.containers import (
    ARCHIVE,
    FATBIN_MAGIC,
    OF_CLANG,
    UNLINKED,
    mapped,
    names_fatbins,
    other_code,
    sections,
)
from pytest_gpuperf.collect.binary.cubin import code_parts, without_stack_bound
from pytest_gpuperf.collect.binary.cuobjdump import (
    compiled_kernels,
    extract_cubins,
    holds_no_device_code,
)
from pytest_gpuperf.collect.binary.demangling import demangled_names
from pytest_gpuperf.collect.binary.elf import ELF_MAGIC, Symbol
from pytest_gpuperf.collect.binary.extraction import (
    Fault,
    Unread,
    extract_by_part,
    fault_of,
    passed_over,
)
from pytest_gpuperf.collect.binary.instructions import instruction_mix
from pytest_gpuperf.collect.binary.module import CODE, MACHINE_CUDA, read_module
from pytest_gpuperf.collect.binary.tools import CUOBJDUMP, NVDISASM, find_tool, refusal
from pytest_gpuperf.collect.chip_limits import target_capability
from pytest_gpuperf.collect.runner import Finished, Runner
from pytest_gpuperf.collect.scratch import ScratchFolder
from pytest_gpuperf.collect.translate import FOREIGN_BYTES, foreign
from pytest_gpuperf.errors import (
    CaptureFormatError,
    CollectError,
    CollectorFailedError,
    MeasureError,
)
from pytest_gpuperf.model.activity import InstructionMix, KernelResources
from pytest_gpuperf.model.frozen import Frozen, replace
from pytest_gpuperf.model.gap import Gap

_NVIDIA, _AMD = "NVIDIA", "AMD"
_AMD_CHIP = "gfx"
_CONTAINER_MAGICS = (ELF_MAGIC, FATBIN_MAGIC, ARCHIVE, b"MZ")
_MACHINE_INTEL = 205  # EM_INTELGT


def _file_kind(head: bytes) -> str:
    """Return the kind of a file. A "container" may hold fatbins, cubins or bundles."""
    if head.startswith((BUNDLE, COMPRESSED)):
        return "amd"
    machine = None
    if head.startswith(ELF_MAGIC):
        machine = int.from_bytes(head[18:20], "little")
    if machine == MACHINE_CUDA:
        return "cubin"
    if machine == MACHINE_AMD:
        return "amd"
    is_read = head.startswith(_CONTAINER_MAGICS) and machine != _MACHINE_INTEL
    return "container" if is_read else "other"


_WARP_SIZE = 32  # On every NVIDIA chip. Triton states it for AMD's.
MOST_THREADS = 1024  # Of a block, on every chip of NVIDIA and AMD.
_REMEDY = "give the path or the bytes of a cubin, fatbin or code object, or a kernel that Triton compiled"


class LaunchFacts(Frozen, frozen=True, kw_only=True):
    """
    Resources that a launch sets and a binary does not contain.

    Attributes:
        threads_per_block: Threads of a block, or None if unknown.

        dynamic_shared_bytes: Shared memory requested at launch [B], or None if unknown.
    """

    threads_per_block: int | None = None
    dynamic_shared_bytes: int | None = None


class Image(Frozen, frozen=True, kw_only=True):
    """
    A binary to read.

    Attributes:
        label: The name of the binary in messages.

        content: The bytes, or None to read `path`.

        path: The file, or None to read `content`.

        launch: The launch facts of the kernels.
    """

    label: str
    content: bytes | None = None
    path: Path | None = None
    launch: LaunchFacts


def images_of(source: object, launch: LaunchFacts) -> tuple[Image, ...]:
    """
    Return the binaries of a source, in the order of the source.

    Args:
        source: A path, bytes, the result of Triton's compiler, or a sequence of these.

        launch: The launch facts of the caller, which replace those of Triton.

    Raises:
        MeasureError: The source is something else, or an empty sequence.

        CaptureFormatError: The Triton kernel has neither a cubin nor a code object.
    """
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        return (Image(label=str(path), path=path, launch=launch),)
    if isinstance(source, bytes | bytearray | memoryview):
        content = bytes(source)
        label = f"{len(content)} bytes"
        return (Image(label=label, content=content, launch=launch),)
    if hasattr(source, "asm"):
        return (_triton_image(source, launch),)
    if isinstance(source, Sequence) and source:
        return tuple(image for part in source for image in images_of(part, launch))
    message = f"{type(source).__name__} is not a compiled kernel"
    if isinstance(source, Sequence):
        message = "no compiled kernel was given"
    raise MeasureError(message, remedy=_REMEDY)


def _triton_image(compiled: object, launch: LaunchFacts) -> Image:
    metadata = getattr(compiled, "metadata", None)
    label = f"Triton kernel {_fact(metadata, 'name') or '(unnamed)'}"
    forms = compiled.asm  # type: ignore[attr-defined] # asked for by images_of
    content = forms.get("cubin", forms.get("hsaco"))
    if not isinstance(content, bytes):
        message = f"has no cubin, only {', '.join(map(str, forms)) or 'nothing'}"
        remedy = (
            'compile it for a chip: GPUTarget("cuda", 90, 32), or '
            'GPUTarget("hip", "gfx942", 64)'
        )
        raise CaptureFormatError(message, remedy=remedy, path=label)
    warps = _number(_fact(metadata, "num_warps"))
    if launch.threads_per_block is None and warps is not None:
        warp_size = _number(_fact(metadata, "warp_size")) or _WARP_SIZE
        launch = replace(launch, threads_per_block=warps * warp_size)
    if launch.dynamic_shared_bytes is None:
        shared_bytes = _number(_fact(metadata, "shared"))
        launch = replace(launch, dynamic_shared_bytes=shared_bytes)
    return Image(label=label, content=content, launch=launch)


def _fact(metadata: object, name: str) -> object:
    if isinstance(metadata, Mapping):
        return metadata.get(name)
    return getattr(metadata, name, None)


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


# From 9.0 on, the compiler places a kernel's own shared memory after the part reserved by
# the driver, and cuobjdump counts both (seen with ptxas 11.8 to 13.4).
_DRIVER_SHARED_BYTES = 1024
_DRIVER_SHARED_FROM = (9, 0)

_GIVE = "give a cubin, a fatbin, a code object, or a program that holds one"


class Cubin(Frozen, frozen=True, kw_only=True):
    """
    The code for one target, and the kernels in that code.

    Attributes:
        content: The whole file: a cubin, or a code object of AMD.

        kernels: The resources of the kernels, in the file's order.

        log_gaps: Why the compiler's log does not tell the spills of each kernel, None where
            it does. Empty without a log.
    """

    content: bytes
    kernels: tuple[KernelResources, ...]
    log_gaps: tuple[Gap | None, ...] = ()


class Contents(Frozen, frozen=True, kw_only=True):
    """
    The device code of some binaries.

    Attributes:
        cubins: The cubins in the order of the binaries.

        unread: Sentences about code that cuobjdump cannot read.
    """

    cubins: tuple[Cubin, ...]
    unread: tuple[str, ...] = ()


def read_cubins(
    source: object,
    *,
    runner: Runner,
    block: int | None = None,
    dynamic_shared_bytes: int | None = None,
    ptxas_log: str | os.PathLike[str] | None = None,
    target: str | None = None,
    tool: str | None = None,
) -> Contents:
    """
    Return the cubins of a binary, with the resources of all kernels.

    Code that cuobjdump cannot read is left out, if there is other code.

    Args:
        source: A path, bytes, the result of Triton's compiler, or a sequence of these.

        runner: Starts cuobjdump and a demangler.

        block: Threads of a block, 1 to 1024, or None to use Triton's value if there is
            one.

        dynamic_shared_bytes: Shared memory requested at launch [B], >= 0, or None to use
            Triton's value if there is one.

        ptxas_log: The output of `nvcc -Xptxas -v` or `ptxas -v`, or the path of a file
            that contains it. Without the log, spills and barriers are unknown.

        target: Return only kernels for this chip, as `sm_90a`, or None for all chips.

        tool: The path of cuobjdump, or None to search for it.

    Returns:
        Cubins in the binary's order. The stack of a kernel is None if it calls itself
        recursively, or calls functions through pointers.

    Raises:
        CaptureFormatError: A file is missing, cut off, not linked or not a binary, or has
            no kernel, or no kernel for `target`.

        CollectorUnavailableError: There is no cuobjdump.

        CollectorFailedError: cuobjdump cannot read the binary.

        MeasureError: The source has an unknown type.
    """
    if block is not None and not 1 <= block <= MOST_THREADS:
        message = f"block is {block}"
        remedy = f"give block as a number from 1 to {MOST_THREADS}"
        raise MeasureError(message, remedy=remedy)
    if dynamic_shared_bytes is not None and dynamic_shared_bytes < 0:
        message = f"dynamic_shared_bytes is {dynamic_shared_bytes}"
        raise MeasureError(message, remedy="give it as a number >= 0")
    launch = LaunchFacts(
        threads_per_block=block, dynamic_shared_bytes=dynamic_shared_bytes
    )
    images = images_of(source, launch)
    log = None
    if ptxas_log is not None:
        log = read_ptxas_log(log_text(ptxas_log), path=log_name(ptxas_log))
    for image in images:
        _refuse_by_head(image)
    cubins: list[Cubin] = []
    unread: list[Unread] = []
    for image in images:
        reader = _ImageReader(
            image=image, target=target, runner=runner, unread=unread, tool=tool
        )
        cubins += reader.code()
    mangled = [kernel.name for cubin in cubins for kernel in cubin.kernels]
    names = demangled_names(mangled, runner=runner)
    named = []
    for cubin in cubins:
        kernels = [replace(k, demangled=names.get(k.name)) for k in cubin.kernels]
        named.append(Cubin(content=cubin.content, kernels=tuple(kernels)))
    if log is not None:
        named = [_with_log(cubin, log) for cubin in named]
    return Contents(
        cubins=tuple(named), unread=tuple(left_out.sentence for left_out in unread)
    )


def each_cubin(
    path: Path,
    *,
    runner: Runner,
    target: str | None = None,
    unread: list[Unread],
) -> Iterator[Cubin]:
    """
    Yield the cubins or code objects of a file, without readable names of the kernels.

    Only one at a time is in memory, for files of any size.

    Args:
        path: The file.

        runner: As in `read_cubins`, like the errors.

        target: Only the code for this chip, or None for all.

        unread: Gets what is left out, as code for chips that cuobjdump does not know.
    """
    image = Image(label=str(path), path=path, launch=LaunchFacts())
    _refuse_by_head(image)
    reader = _ImageReader(image=image, target=target, runner=runner, unread=unread)
    yield from reader.code()


def holds_device_code(path: Path) -> bool:
    """Return True if a file may hold device code, by the first bytes and the content."""
    image = Image(label=str(path), path=path, launch=LaunchFacts())
    kind = _file_kind(_head(image))
    if kind != "container":
        return kind != "other"
    with _bytes_of(image) as content:
        return content.find(FATBIN_MAGIC) >= 0 or has_code_objects(content)


def _with_log(cubin: Cubin, log: CompilerLog) -> Cubin:
    parts = code_parts(cubin.content, {kernel.name for kernel in cubin.kernels})
    kernels: list[KernelResources] = []
    gaps: list[Gap | None] = []
    for kernel in cubin.kernels:
        by_log = facts_of(kernel, log, parts)
        gaps.append(by_log if isinstance(by_log, Gap) else None)
        kernels.append(kernel if isinstance(by_log, Gap) else replace(kernel, **by_log))
    return replace(cubin, kernels=tuple(kernels), log_gaps=tuple(gaps))


def read_mixes(
    cubins: Sequence[Cubin], *, runner: Runner, tool: str | None = None
) -> tuple[InstructionMix, ...]:
    """
    Return the instruction mix of every kernel.

    Args:
        cubins: The result of `read_cubins`.

        runner: Starts nvdisasm.

        tool: The path of nvdisasm, or None to search for it.

    Returns:
        An entry for each kernel, in the order of the cubins and of their kernels. If
        nvdisasm or llvm-objdump cannot read a file, the entries of its kernels say why.

    Raises:
        CollectorUnavailableError: There is no nvdisasm.

        CollectorFailedError: nvdisasm can read no cubin.
    """
    mixes: list[InstructionMix] = []
    failed: CollectorFailedError | None = None
    with ScratchFolder("binary") as folder:
        path = Path(folder, "image.cubin")
        for cubin in cubins:
            if not cubin.kernels:
                continue
            if _file_kind(cubin.content) == "amd":
                mixes += _amd_mixes(cubin, runner)
                continue
            tool = tool or find_tool(NVDISASM)
            path.write_bytes(cubin.content)
            names = [kernel.name for kernel in cubin.kernels]
            try:
                mixes += instruction_mix(
                    tool, path, names, runner=runner, target=cubin.kernels[0].target
                )
            except CollectorFailedError as error:
                failed = failed or error
                mixes += [
                    InstructionMix(
                        kernel=name,
                        counts=None,
                        doubt=error.message,
                        remedy=error.remedy,
                    )
                    for name in names
                ]
    if failed is not None and all(mix.counts is None for mix in mixes):
        raise failed
    return tuple(mixes)


def _amd_mixes(code: Cubin, runner: Runner) -> Sequence[InstructionMix]:
    """Return the mixes of a code object, or the spills that its notes state."""
    from pytest_gpuperf.collect.binary.amd_instructions import (
        amd_mixes,
        find_disassembler,
    )

    try:
        tool = find_disassembler()
        return amd_mixes(code.content, code.kernels, tool=tool, runner=runner)
    except CollectError as error:
        return [
            InstructionMix(
                kernel=kernel.name,
                counts=None,
                spills_bytes=kernel.spills_bytes,
                doubt=error.message,
                remedy=error.remedy,
            )
            for kernel in code.kernels
        ]


def _refuse_by_head(image: Image) -> None:
    head = _head(image)
    if not head:
        raise CaptureFormatError(
            "is empty", remedy="compile or copy it again", path=image.label
        )
    kind = _file_kind(head)
    if kind == "other":
        message, remedy = "is not a cubin and contains none", _GIVE
        known = foreign(head)
        if known is not None:
            message, remedy = known.message, known.remedy
        raise CaptureFormatError(message, remedy=remedy, path=image.label)
    if kind == "cubin":
        content = image.content
        if content is None and image.path is not None:
            content = image.path.read_bytes()
        _refuse_unfinished(content or b"", image)


def _head(image: Image) -> bytes:
    if image.content is not None or image.path is None:
        return (image.content or b"")[:FOREIGN_BYTES]
    # A pipe would block forever.
    if image.path.exists() and not image.path.is_file():
        message = "is a folder or a device"
        raise CaptureFormatError(message, remedy=_GIVE, path=image.label)
    try:
        with image.path.open("rb") as file:
            return file.read(FOREIGN_BYTES)
    except OSError as error:
        message = f"it cannot be read ({error.strerror})"
        remedy = "check the path and its permissions"
        raise CaptureFormatError(message, remedy=remedy, path=image.label) from error


def _refuse_unfinished(content: bytes, image: Image) -> Sequence[Symbol]:
    """Return the symbols of a cubin, or raise if it is damaged or not linked yet."""
    module = read_module(content, label=image.label)
    has_code = any(section.name.startswith(CODE) for section in module.sections)
    if has_code and not module.symbols:
        raise CaptureFormatError(
            "is stripped: it has code, and no names of kernels",
            remedy="give it as the compiler wrote it, without strip",
            path=image.label,
        )
    if module.is_relocatable:
        raise CaptureFormatError(
            "is not linked: registers and stack are final after the device link only",
            remedy="link it (nvcc -dlink -cubin) or compile it without -rdc=true",
            path=image.label,
            is_whole=True,
        )
    return module.symbols


@dataclass(slots=True, kw_only=True)
class _ImageReader:
    """
    Reads the code of an image.

    Attributes:
        image: The image.

        target: The chip whose code is read, or None for all chips.

        runner: Starts cuobjdump.

        unread: Gets what is left out.

        tool: The path of cuobjdump, or None to search for it.
    """

    image: Image
    target: str | None
    runner: Runner
    unread: list[Unread]
    tool: str | None = None

    def code(self) -> Iterator[Cubin]:
        """
        Yield the code for the GPUs of each vendor.

        Code of one vendor that has no kernel is left out if the other has kernels.
        """
        vendors = self._vendors()
        lacking: dict[str, CaptureFormatError] = {}
        for vendor in vendors:
            try:
                if vendor == _AMD:
                    yield from self._code_objects()
                else:
                    yield from self.nvidia_cubins()
            except CaptureFormatError as error:
                if not error.is_whole:
                    raise
                lacking[vendor] = error
        if len(lacking) == len(vendors):
            raise lacking[vendors[0]]
        for vendor, gap in lacking.items():
            reason = gap.message.removeprefix(f"{self.image.label}: ")
            self.unread.append(Unread(f"code for {vendor}'s GPUs: {reason}"))

    def _vendors(self) -> tuple[str, ...]:
        image, target = self.image, self.target
        kind = _file_kind(_head(image))
        if kind != "container":
            return (_AMD,) if kind == "amd" else (_NVIDIA,)
        with _bytes_of(image) as content:
            has_amd = has_code_objects(content)
            has_both = has_amd and names_fatbins(content)
        if has_both and target is None:
            return _NVIDIA, _AMD
        if has_both and target is not None:
            return (_AMD,) if target.startswith(_AMD_CHIP) else (_NVIDIA,)
        return (_AMD,) if has_amd else (_NVIDIA,)

    def nvidia_cubins(self) -> Iterator[Cubin]:
        image, tool = self.image, self.tool or find_tool(CUOBJDUMP)
        has_kernels = False
        with ScratchFolder("binary") as folder:
            files, left_out = self._extracted(Path(folder), tool)
            self.unread += left_out
            for file, of in files.items():
                content = file.read_bytes()
                names = [symbol.name for symbol in _refuse_unfinished(content, image)]
                compiled = compiled_kernels(
                    tool, file, of, runner=self.runner, names=names
                )
                unbounded = without_stack_bound(content, {k.name for k in compiled}, of)
                kernels = tuple(
                    replace(
                        _completed(kernel, image.launch),
                        stack_bytes=None
                        if kernel.name in unbounded
                        else kernel.stack_bytes,
                    )
                    for kernel in compiled
                )
                has_kernels = has_kernels or bool(kernels)
                yield Cubin(content=content, kernels=kernels)
        if not files:
            because = "; ".join(sentence for sentence, _ in left_out)
            raise CaptureFormatError(
                "has no kernel compiled for a chip"
                + (f": {because}" if because else ""),
                remedy="compile for a chip too: nvcc -gencode arch=compute_90,code=sm_90",
                path=image.label,
                is_whole=True,
            )
        if not has_kernels:
            raise CaptureFormatError(
                "has no kernel", remedy=_GIVE, path=image.label, is_whole=True
            )

    def _extracted(
        self, folder: Path, tool: str
    ) -> tuple[Mapping[Path, str], tuple[Unread, ...]]:
        """Return the target of each extracted cubin, and what was left out."""
        image, target, runner = self.image, self.target, self.runner
        path = image.path
        if path is None:
            path = folder / "image"
            path.write_bytes(image.content or b"")
        if target is not None:
            # Code for other chips, perhaps unknown to the tool, is not touched.
            into = folder / "target"
            finished, cubins = extract_cubins(
                tool, path, into=into, runner=runner, target=target
            )
            chosen = {file: of for file, of in cubins.items() if of == target}
            number = target.rstrip("af")
            if (
                chosen
                and not finished.exit_code
                and not passed_over(path, cubins, label=image.label, chip=number)
            ):
                return chosen, ()
        into = folder / "all"
        finished, cubins = extract_cubins(tool, path, into=into, runner=runner)
        unread: tuple[Unread, ...] = ()
        if holds_no_device_code(finished) and _file_kind(_head(image)) != "cubin":
            raise _without_device_code(path, image)
        if finished.exit_code:
            cubins, unread = self._readable(path, folder, finished, tool)
        else:
            unread = passed_over(path, cubins, label=image.label)
        chosen = {file: of for file, of in cubins.items() if target in {None, of}}
        if cubins and not chosen:
            held = ", ".join(dict.fromkeys(cubins.values()))
            message = f"has no kernel for {target}, only for {held}"
            number = (target or "").rstrip("af")
            reasons = [sentence for sentence, chips in unread if number in chips]
            raise CaptureFormatError(
                "; ".join([message, *reasons]),
                remedy=f"take one of {held}",
                path=image.label,
                is_whole=True,
            )
        return chosen, unread

    def _readable(
        self, path: Path, folder: Path, failed: Finished, tool: str
    ) -> tuple[Mapping[Path, str], tuple[Unread, ...]]:
        """
        Extract the readable parts of a file after cuobjdump has failed.

        Returns:
            The target of each extracted cubin, and what is left out.

        Raises:
            CollectorFailedError: The tool failed for another reason, or can read no part, or
                no part for the requested chip.
        """
        target, runner, label = self.target, self.runner, self.image.label
        fault = fault_of(failed)
        if fault is None:
            raise refusal(CUOBJDUMP, failed, label)
        found = extract_by_part(
            path, folder, failed, tool=tool, runner=runner, label=label
        )
        if not found.cubins:
            helps = fault is Fault.UNKNOWN
            raise refusal(CUOBJDUMP, failed, label, newer_helps=helps)
        if target is not None and target not in found.cubins.values():
            for chip in (target, target.rstrip("af")):  # sm_90a is for the chip 90.
                if chip in found.faults:
                    fault, finished = found.faults[chip]
                    helps = fault is Fault.UNKNOWN
                    what = f"{target} of {label}"
                    raise refusal(CUOBJDUMP, finished, what, newer_helps=helps)
        return found.cubins, tuple(found.unread())

    def _code_objects(self) -> Iterator[Cubin]:
        """
        Yield the code objects of an image, and the cubins in its bundles.

        Raises:
            CaptureFormatError: The code is damaged, has no kernel, or has none for the target.
        """
        image, target = self.image, self.target
        held: dict[str, None] = {}
        is_found = has_kernels = False
        with _bytes_of(image) as content:
            for code in code_objects(content, label=image.label, runner=self.runner):
                held[code.target] = None
                if target not in {None, code.target, code.target.partition(":")[0]}:
                    continue
                if _file_kind(code.content) == "cubin":
                    is_found = has_kernels = True
                    part = replace(image, content=code.content, path=None)
                    within = dataclasses.replace(self, image=part, target=None)
                    yield from within.nvidia_cubins()
                    continue
                try:
                    kernels = amd_kernels(code)
                except (ValueError, struct.error) as error:
                    raise CaptureFormatError(
                        f"the code for {code.target} is damaged: {error}",
                        remedy="compile or copy it again",
                        path=image.label,
                    ) from error
                is_found, has_kernels = True, has_kernels or bool(kernels)
                yield Cubin(
                    content=code.content,
                    kernels=tuple(_launched(k, image.launch) for k in kernels),
                )
        if held and not is_found:
            message = f"has no kernel for {target}, only for {', '.join(held)}"
            remedy = f"take one of {', '.join(held)}"
            raise CaptureFormatError(
                message, remedy=remedy, path=image.label, is_whole=True
            )
        if not has_kernels:
            raise CaptureFormatError(
                "has no kernel", remedy=_GIVE, path=image.label, is_whole=True
            )


def _without_device_code(path: Path, image: Image) -> CaptureFormatError:
    with mapped(path) as content:
        others = other_code(content)
        is_stripped = content[:6] == b"\x7fELF\x02\x01" and not sections(content)
        is_damaged = names_fatbins(content)
    message, remedy = "it has no device code", _GIVE
    if is_stripped:
        message = "its table of sections is missing: it is cut off or stripped"
        remedy = "build or copy it again"
    if others:
        message = f"it has {' and '.join(others)}, and no code for NVIDIA's GPUs"
        remedy = "give the library that was built for NVIDIA's or AMD's GPUs"
    if is_damaged:  # A fatbin has a header that states the size of the whole.
        message, remedy = "is cut off or damaged", "compile or copy it again"
    if any(kind.startswith((UNLINKED, OF_CLANG)) for kind in others):
        message = f"it has {' and '.join(others)}"
        remedy = (
            "link it, and give the library or the program, or copy the section to a file: "
            "objcopy -O binary --only-section=NAME FILE NEW"
        )
    return CaptureFormatError(message, remedy=remedy, path=image.label)


@contextmanager
def _bytes_of(image: Image) -> Iterator[bytes | mmap.mmap]:
    if image.content is not None or image.path is None:
        yield image.content or b""
        return
    with mapped(image.path) as content:
        yield content


def _launched(kernel: KernelResources, launch: LaunchFacts) -> KernelResources:
    threads = launch.threads_per_block or kernel.threads_per_block
    # A block of a single warp takes no barrier.
    needs_barrier = threads is not None and threads > kernel.warp_size_count
    return replace(
        kernel,
        dynamic_shared_bytes=launch.dynamic_shared_bytes,
        threads_per_block=threads,
        barriers_count=int(needs_barrier) if threads is not None else None,
    )


def _completed(kernel: KernelResources, launch: LaunchFacts) -> KernelResources:
    capability = target_capability(kernel.target)
    reserves = capability is not None and capability >= _DRIVER_SHARED_FROM
    shared_bytes = kernel.shared_bytes
    if reserves and shared_bytes >= _DRIVER_SHARED_BYTES:
        shared_bytes -= _DRIVER_SHARED_BYTES
    return replace(
        kernel,
        shared_bytes=shared_bytes,
        dynamic_shared_bytes=launch.dynamic_shared_bytes,
        threads_per_block=launch.threads_per_block,
    )
