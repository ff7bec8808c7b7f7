"""The cubins of a binary of which cuobjdump cannot read every part."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from pytest_gpuperf.collect.binary.containers import (
    FATBIN_CUBIN,
    FATBIN_LTO,
    FatbinPart,
    fatbin_of,
    fatbin_parts,
    has_linked_fatbins,
    mapped,
)
from pytest_gpuperf.collect.binary.cuobjdump import extract_cubins
from pytest_gpuperf.collect.binary.tools import CUOBJDUMP, last_line, refusal
from pytest_gpuperf.collect.runner import Finished, Runner
from pytest_gpuperf.errors import CaptureFormatError
from pytest_gpuperf.model.frozen import Frozen


class Fault(Enum):
    """Why cuobjdump cannot read the code for a chip. The value is a sentence's end."""

    DROPPED = "this cuobjdump has dropped {them}"
    UNKNOWN = "this cuobjdump does not know {them}"
    INVALID = (
        "this cuobjdump finds an invalid ELF file in {them}, and another version on PATH "
        "may read {them}"
    )


_CHIP = re.compile(r"'sm_\w+'")
_DROPPED = "has been removed"
_INVALID = (
    "Invalid ELF",
    "Invalid gpu architecture",
)  # The second: of another machine.


def fault_of(finished: Finished) -> Fault | None:
    """Return why cuobjdump stopped, or None if other parts would fail as well."""
    words = last_line(finished)
    if any(invalid in words for invalid in _INVALID):
        return Fault.INVALID
    if _CHIP.search(words):
        return Fault.DROPPED if _DROPPED in words else Fault.UNKNOWN
    return None


class Unread(NamedTuple):
    """
    Code that is left out.

    Attributes:
        sentence: What is left out, and why.

        chips: The numbers of the chips of which code is left out, as `sm_90`.
    """

    sentence: str
    chips: tuple[str, ...] = ()


class Extracted(Frozen, frozen=True, kw_only=True):
    """
    What could be extracted.

    Attributes:
        cubins: The target of each cubin, by file.

        faults: The fault of each chip of which code is left out, and the ended cuobjdump.

        passed: The code that cuobjdump left out of the other chips without an error.
    """

    cubins: Mapping[Path, str]
    faults: Mapping[str, tuple[Fault, Finished]]
    passed: Sequence[Unread] = ()

    def unread(self) -> Iterator[Unread]:
        """Yield what is left out, once for each kind of fault."""
        read = {target.rstrip("af") for target in self.cubins.values()}
        for fault in Fault:
            chips = tuple(n for n, (kind, _) in self.faults.items() if kind is fault)
            if chips:
                verb, them = ("is", "it") if len(chips) == 1 else ("are", "them")
                end = fault.value.format(them=them)
                names = (f"{n} (a part)" if n in read else n for n in chips)
                yield Unread(f"{', '.join(names)} {verb} not read: {end}", chips)
        yield from self.passed


def extract_by_part(
    path: Path,
    folder: Path,
    failed: Finished,
    *,
    tool: str,
    runner: Runner,
    label: str,
) -> Extracted:
    """
    Extract the readable cubins of a file after cuobjdump has failed.

    The code for each chip is tried on its own. Where it has an invalid ELF file, its halves
    are tried, down to single files.

    Args:
        path: The binary.

        folder: Where to write files.

        failed: The ended cuobjdump.

        tool: The path of cuobjdump.

        runner: Starts the tool.

        label: The name of the binary in messages.

    Raises:
        CollectorFailedError: The tool failed for a reason that concerns all parts, or the
            binary is cut off.
    """
    cubins: dict[Path, str] = {}
    faults: dict[str, tuple[Fault, Finished]] = {}
    with mapped(path) as content:
        parts = fatbin_parts(content)
        if any(part.end > len(content) for part in parts):
            raise refusal(CUOBJDUMP, failed, label)
        chips = sorted({part.chip for part in parts})
        groups = [[part for part in parts if part.chip == chip] for chip in chips]
        count = 0
        while groups:
            group = groups.pop(0)
            count += 1
            file = folder / f"part{count}.fatbin"
            file.write_bytes(fatbin_of(content, group))
            finished, found = extract_cubins(
                tool, file, into=folder / f"part{count}", runner=runner
            )
            if not finished.exit_code:
                cubins.update(found)
                continue
            name, fault = f"sm_{group[0].chip}", fault_of(finished)
            if fault is None:
                raise refusal(CUOBJDUMP, finished, f"{name} of {label}")
            if fault is Fault.INVALID and len(group) > 1:
                middle = len(group) // 2
                groups[:0] = [[*group[:middle]], [*group[middle:]]]
            else:
                faults[name] = fault, finished
    others = [part for part in parts if f"sm_{part.chip}" not in faults]
    return Extracted(cubins=cubins, faults=faults, passed=_passed(others, cubins))


def passed_over(
    path: Path, cubins: Mapping[Path, str], *, label: str, chip: str | None = None
) -> tuple[Unread, ...]:
    """
    Return the code that cuobjdump left out without an error.

    Args:
        path: A binary that cuobjdump has read.

        cubins: The target of each extracted cubin, by file.

        label: The name of the binary in messages.

        chip: Only the code for the chip of this number, as `sm_90`, or None for all.

    Raises:
        CaptureFormatError: A part ends outside of the file, so that those behind it were
            not found.
    """
    with mapped(path) as content:
        if not has_linked_fatbins(content):
            return ()
        parts = fatbin_parts(content)
        if any(part.end > len(content) for part in parts):
            message, remedy = "is cut off or damaged", "compile or copy it again"
            raise CaptureFormatError(message, remedy=remedy, path=label)
    chosen = [part for part in parts if chip in {None, f"sm_{part.chip}"}]
    return _passed(chosen, cubins)


def _passed(
    parts: Sequence[FatbinPart], cubins: Mapping[Path, str]
) -> tuple[Unread, ...]:
    """Return the parts of which there is no cubin, once for each kind."""
    if len(parts) <= len(cubins):
        return ()  # A part may state another chip than its cubin does.
    lost = Counter(f"sm_{part.chip}" for part in parts)
    lost -= Counter(target.rstrip("af") for target in cubins.values())
    chips_of: dict[int, set[str]] = defaultdict(set)
    # A newer cuobjdump may read kinds that are unknown here, so a cubin is the last guess.
    for part in sorted(parts, key=lambda part: part.kind, reverse=True):
        chip = f"sm_{part.chip}"
        if lost[chip] > 0:
            lost[chip] -= 1
            chips_of[part.kind].add(chip)
    return tuple(
        Unread(_sentence(kind, ", ".join(sorted(chips))), tuple(sorted(chips)))
        for kind, chips in sorted(chips_of.items())
    )


def _sentence(kind: int, chips: str) -> str:
    if kind == FATBIN_CUBIN:
        return f"not all code for {chips} is read: cuobjdump skips it"
    if kind == FATBIN_LTO:
        return f"LTO code for {chips} is not read: it has no registers before the link"
    return (
        f"code of an unknown kind ({kind}) for {chips} is not read: cuobjdump skips it, "
        "and a newer one may read it"
    )
