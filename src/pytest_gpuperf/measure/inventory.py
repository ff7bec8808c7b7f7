"""The kernels of libraries and folders, and the instructions of those that changed."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from pytest_gpuperf.collect.binary.listing import listed_kernels, numbered
from pytest_gpuperf.collect.binary.read import (
    Cubin,
    each_cubin,
    holds_device_code,
    read_mixes,
)
from pytest_gpuperf.collect.binary.tools import native_demangler
from pytest_gpuperf.collect.devices import target_limits
from pytest_gpuperf.collect.runner import Runner
from pytest_gpuperf.collect.translate import FOREIGN_BYTES, foreign
from pytest_gpuperf.compute.derive import kernel_occupancy
from pytest_gpuperf.disk import read_regular
from pytest_gpuperf.errors import CaptureFormatError, CollectError, RecordError
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.inventory import ListedKernel, read_inventory

# Limit of the code whose instructions are compared, for each build [B]. nvdisasm reads
# 1 MB in some 5 s.
MOST_BYTES = 4_000_000
# 10 million kernels.
_LARGEST_BYTES = 3_000_000_000


def read_baseline(path: str, *, target: str | None = None) -> tuple[ListedKernel, ...]:
    """
    Return the kernels of an inventory's file.

    Args:
        path: The file.

        target: Only kernels for this chip, or None for all.

    Raises:
        RecordError: The file cannot be read, or is no inventory. The message names the
            tool that wrote it, if it is known.
    """
    try:
        content = read_regular(path, most_bytes=_LARGEST_BYTES)
    except OSError as error:
        message = f"the baseline cannot be read ({error.strerror or error})"
        remedy = "write it with gpuperf inventory LIB --baseline FILE --update"
        raise RecordError(message, path=path, remedy=remedy) from error
    try:
        kernels = read_inventory(content, path)
    except RecordError as error:
        known = foreign(content[:FOREIGN_BYTES])
        if known is None:
            raise
        raise RecordError(known.message, path=path, remedy=error.remedy) from error
    return tuple(
        kernel
        for kernel in kernels
        if target in {None, kernel.target, kernel.target.partition(":")[0]}
    )


class Build:
    """
    The kernels of some files.

    Args:
        paths: Libraries, files of code, and folders with such files.

        runner: Starts the tools.

        target: Only kernels for this chip, or None for all.

        block: Threads of a block for the occupancy, or None without occupancy.

        keeps_code: Whether the code stays in memory, for `with_instructions`.

    Attributes:
        kernels: The kernels in order of name and target.

        unread: Sentences about what was left out.
    """

    def __init__(
        self,
        paths: Sequence[str],
        *,
        runner: Runner,
        target: str | None = None,
        block: int | None = None,
        keeps_code: bool = False,
    ) -> None:
        self.unread: list[str] = []
        self._runner = runner
        self._code: list[tuple[Cubin, list[ListedKernel]]] = []
        demangle = native_demangler()
        every: list[ListedKernel] = []
        lacking: list[CaptureFormatError] = []
        for path in _files(paths):
            unread: list[str] = []
            cubins = each_cubin(path, runner=runner, target=target, unread=unread)
            try:
                for cubin in cubins:
                    listed = listed_kernels(cubin, demangle=demangle)
                    if block is not None:
                        listed = [
                            replace(kernel, occupancy=_occupancy(cubin, index, block))
                            for index, kernel in enumerate(listed)
                        ]
                    every += listed
                    if keeps_code:
                        self._code.append((cubin, listed))
            except CaptureFormatError as error:
                if not error.is_whole:
                    raise
                lacking.append(error)
            self.unread += (f"{path.name}: {sentence}" for sentence in unread)
        if lacking and not every:
            raise lacking[0]
        # Of a chosen chip, the files for other chips are no news.
        self.unread += () if target else (error.message for error in lacking)
        self.kernels: Sequence[ListedKernel] = numbered(every)

    def with_instructions(
        self, digests: Collection[str]
    ) -> tuple[list[ListedKernel], str | None]:
        """
        Return the kernels, some of them with their instructions and spills.

        Args:
            digests: The digests of these kernels.

        Returns:
            All kernels, and a sentence if instructions were not read.
        """
        chosen = [
            (cubin, listed)
            for cubin, listed in self._code
            if any(kernel.digest in digests for kernel in listed)
        ]
        size_bytes = sum(len(cubin.content) for cubin, _ in chosen)
        if size_bytes > MOST_BYTES:
            return [*self.kernels], (
                f"instructions are not compared: the changed code has {size_bytes} B, and "
                f"only {MOST_BYTES} B are read; choose one chip with --target"
            )
        try:
            mixes = iter(read_mixes([c for c, _ in chosen], runner=self._runner))
        except CollectError as error:
            return [*self.kernels], f"instructions are not compared: {error}"
        by_digest = {}
        for _, listed in chosen:
            for kernel in listed:
                mix = next(mixes)
                by_digest[kernel.digest] = (mix.counts, mix.spills_bytes)
        return [*_with_mixes(self.kernels, by_digest)], None


def _with_mixes(
    kernels: Iterable[ListedKernel],
    mixes: Mapping[str, tuple[Mapping[str, int] | None, int | None]],
) -> Iterator[ListedKernel]:
    for kernel in kernels:
        classes, spills_bytes = mixes.get(kernel.digest, (None, None))
        if spills_bytes is None:
            spills_bytes = kernel.spills_bytes
        yield replace(kernel, classes=classes, spills_bytes=spills_bytes)


def _occupancy(cubin: Cubin, index: int, block: int) -> float | None:
    kernel = replace(cubin.kernels[index], threads_per_block=block)
    limits = target_limits(kernel.target, kernel.warp_size_count)
    occupancy = None if limits is None else kernel_occupancy(kernel, limits)
    return None if occupancy is None else occupancy.fraction


def _files(paths: Sequence[str]) -> Iterator[Path]:
    """
    Yield the files of some paths, of a folder those with device code.

    A file is yielded once, however many links lead to it.

    Raises:
        CaptureFormatError: A folder has no file with device code.
    """
    seen: set[str] = set()
    for name in paths:
        path = Path(name)
        files = [path]
        if path.is_dir():
            every = sorted(file for file in path.rglob("*") if file.is_file())
            files = [file for file in every if holds_device_code(file)]
            if not files:
                message = "no file in this folder has device code"
                remedy = "name the folder with cubins, code objects or libraries"
                raise CaptureFormatError(message, remedy=remedy, path=name)
        for file in files:
            real = os.path.realpath(file)
            if real not in seen:
                seen.add(real)
                yield file
