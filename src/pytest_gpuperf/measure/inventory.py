"""The kernels of libraries and folders, and the instructions of those that changed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from pytest_gpuperf.collect.binary.demangling import native_demangler
from pytest_gpuperf.collect.binary.extraction import Unread
from pytest_gpuperf.collect.binary.listing import listed_kernels, numbered
from pytest_gpuperf.collect.binary.read import (
    Cubin,
    each_cubin,
    holds_device_code,
    read_mixes,
)
from pytest_gpuperf.collect.chip_limits import target_limits
from pytest_gpuperf.collect.runner import Runner
from pytest_gpuperf.collect.translate import FOREIGN_BYTES, foreign
from pytest_gpuperf.compute.derive import kernel_occupancy
from pytest_gpuperf.disk import read_regular
from pytest_gpuperf.errors import (
    CaptureFormatError,
    CollectError,
    CollectorFailedError,
    RecordError,
)
from pytest_gpuperf.judge.builds import code_changes, unknown_spills
from pytest_gpuperf.model.activity import chips_in_doubt
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.inventory import KernelChange, ListedKernel, read_inventory

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

        unread_chips: The numbers of the chips of which code was left out, as `sm_90`.
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
        self.unread_chips: set[str] = set()
        self._runner, self._target = runner, target
        self._files = [*_files(paths)]
        self._demangle = native_demangler()
        self._code: list[tuple[Cubin, list[ListedKernel]]] | None = None
        if keeps_code:
            self._code = []
        every: list[ListedKernel] = []
        lacking: list[CollectError] = []
        for path in self._files:
            unread: list[Unread] = []
            try:
                for cubin, listed in self._read(path, unread, block):
                    every += listed
                    if self._code is not None:
                        self._code.append((cubin, listed))
            except (CaptureFormatError, CollectorFailedError) as error:
                if not self._may_lack(error):
                    raise
                lacking.append(error)
                if isinstance(error, CollectorFailedError) and target is not None:
                    unread.append(Unread(error.message, (target.rstrip("af"),)))
            for sentence, chips in unread:
                self.unread.append(f"{path.name}: {sentence}")
                self.unread_chips.update(chips)
        if lacking and not every:
            raise lacking[0]
        # Of a chosen chip, the files for other chips are no news.
        self.unread += () if target else (error.message for error in lacking)
        self.kernels: Sequence[ListedKernel] = numbered(every)

    def _read(
        self, path: Path, unread: list[Unread], block: int | None = None
    ) -> Iterator[tuple[Cubin, list[ListedKernel]]]:
        """Yield the code of a file, and the kernels in it. One is in memory at a time."""
        for cubin in each_cubin(
            path, runner=self._runner, target=self._target, unread=unread
        ):
            listed = listed_kernels(cubin, demangle=self._demangle)
            if block is not None:
                listed = [
                    replace(kernel, occupancy=_occupancy(cubin, index, block))
                    for index, kernel in enumerate(listed)
                ]
            yield cubin, listed

    def _may_lack(self, error: CaptureFormatError | CollectorFailedError) -> bool:
        """Return True if the other files are read after an error of one."""
        if isinstance(error, CaptureFormatError):
            return error.is_whole
        # Without a choice, the tool's error concerns more than one chip.
        return self._target is not None and len(self._files) > 1

    def with_instructions(
        self, digests: Collection[str]
    ) -> tuple[list[ListedKernel], list[str]]:
        """
        Return the kernels, some of them with their instructions and spills.

        Args:
            digests: The digests of these kernels.

        Returns:
            All kernels, and sentences about instructions that were not read.
        """
        chosen = []
        size_bytes = 0
        for cubin, listed in self._again() if self._code is None else self._code:
            if not any(kernel.digest in digests for kernel in listed):
                continue
            chosen.append((cubin, listed))
            size_bytes += len(cubin.content)
            if size_bytes > MOST_BYTES:
                sentence = (
                    "instructions are not compared: the changed code has more than "
                    f"{MOST_BYTES} B; choose one chip with --target"
                )
                return [*self.kernels], [sentence]
        try:
            mixes = read_mixes([c for c, _ in chosen], runner=self._runner)
        except CollectError as error:
            return [*self.kernels], [f"instructions are not compared: {error}"]
        listed_ones = [kernel for _, listed in chosen for kernel in listed]
        by_code = {
            (kernel.digest, kernel.target): (mix.counts, mix.spills_bytes)
            for kernel, mix in zip(listed_ones, mixes, strict=True)
        }
        doubts = chips_in_doubt(
            (kernel.target, mix) for kernel, mix in zip(listed_ones, mixes, strict=True)
        )
        remedies = {mix.doubt: mix.remedy for mix in mixes}
        return [*_with_mixes(self.kernels, by_code)], [
            f"instructions of {', '.join(chips)} are not compared: "
            + "; ".join(filter(None, (doubt, remedies[doubt])))
            for doubt, chips in doubts.items()
        ]

    def _again(self) -> Iterator[tuple[Cubin, list[ListedKernel]]]:
        """Yield the code once more, for libraries whose code is too much to keep."""
        for path in self._files:
            # Files that lack kernels were reported when they were listed.
            with contextlib.suppress(CaptureFormatError, CollectorFailedError):
                yield from self._read(path, [])

    def changes_since(
        self, old: Sequence[ListedKernel]
    ) -> tuple[list[KernelChange], list[str]]:
        """
        Return the changes since a baseline, and sentences about spills that are unknown.

        NVIDIA's spills are instructions, which are read of new kernels with stack: else
        another name would hide a spill.
        """
        changes = code_changes(old, self.kernels, unread_now=self.unread_chips)
        unknown = unknown_spills(changes)
        if not unknown:
            return changes, []
        kernels, gaps = self.with_instructions(unknown)
        changes = code_changes(old, kernels, unread_now=self.unread_chips)
        return changes, spills_gap(changes, gaps)


def spills_gap(changes: Iterable[KernelChange], gaps: Iterable[str]) -> list[str]:
    """
    Return a sentence about the new kernels of which it is unknown whether they spill.

    Args:
        changes: All kernels, with the instructions that could be read.

        gaps: Why instructions were not read, as of `Build.with_instructions`.
    """
    count = len(unknown_spills(changes))
    reasons = "; ".join(gap.partition(": ")[2] for gap in gaps)
    if not (reasons and count):
        return []
    return [f"spills of {count} new kernels with stack are unknown: {reasons}"]


def _with_mixes(
    kernels: Iterable[ListedKernel],
    mixes: Mapping[tuple[str, str], tuple[Mapping[str, int] | None, int | None]],
) -> Iterator[ListedKernel]:
    for kernel in kernels:
        classes, spills_bytes = mixes.get((kernel.digest, kernel.target), (None, None))
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
