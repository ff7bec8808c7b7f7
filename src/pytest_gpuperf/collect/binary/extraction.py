"""The cubins of a binary of which cuobjdump cannot read every part."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path

from pytest_gpuperf.collect.binary.containers import (
    FatbinPart,
    fatbin_of,
    fatbin_parts,
    mapped,
)
from pytest_gpuperf.collect.binary.tools import (
    CUOBJDUMP,
    extract_cubins,
    last_line,
    refusal,
)
from pytest_gpuperf.collect.runner import Finished, Runner
from pytest_gpuperf.model.frozen import Frozen


class Fault(Enum):
    """Why cuobjdump cannot read the code for a chip. The value is a sentence's end."""

    DROPPED = "this cuobjdump has dropped {them}"
    UNKNOWN = "this cuobjdump does not know {them}"
    INVALID = "this cuobjdump finds an invalid ELF file in {them}"


_CHIP = re.compile(r"'sm_\w+'")
_DROPPED = "has been removed"
_INVALID = "Invalid ELF"


def fault_of(finished: Finished) -> Fault | None:
    """Return why cuobjdump stopped, or None if other parts would fail as well."""
    words = last_line(finished)
    if _INVALID in words:
        return Fault.INVALID
    if _CHIP.search(words):
        return Fault.DROPPED if _DROPPED in words else Fault.UNKNOWN
    return None


class Extracted(Frozen, frozen=True, kw_only=True):
    """
    What could be extracted.

    Attributes:
        cubins: The target of each cubin, by file.

        faults: The fault of each chip of which code is left out, and the ended cuobjdump.
    """

    cubins: Mapping[Path, str]
    faults: Mapping[str, tuple[Fault, Finished]]

    def sentences(self) -> Iterator[str]:
        """Yield a sentence for each kind of fault."""
        read = {*self.cubins.values()}
        for fault in Fault:
            chips = [
                f"{name} (a part)" if name in read else name
                for name, (kind, _) in self.faults.items()
                if kind is fault
            ]
            if chips:
                verb, them = ("is", "it") if len(chips) == 1 else ("are", "them")
                end = fault.value.format(them=them)
                yield f"{', '.join(chips)} {verb} not read: {end}"


def extract_by_part(
    path: Path, folder: Path, failed: Finished, *, tool: str, runner: Runner
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

    Raises:
        CollectorFailedError: The tool failed for a reason that concerns all parts, or the
            binary is cut off.
    """
    cubins: dict[Path, str] = {}
    faults: dict[str, tuple[Fault, Finished]] = {}
    with mapped(path) as content:
        parts = fatbin_parts(content)
        if any(part.end > len(content) for part in parts):
            raise refusal(CUOBJDUMP, failed)
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
                raise refusal(CUOBJDUMP, finished, name)
            if fault is Fault.INVALID and len(group) > 1:
                groups[:0] = _halves(group)
            else:
                faults[name] = fault, finished
    return Extracted(cubins=cubins, faults=faults)


def _halves(group: Sequence[FatbinPart]) -> list[list[FatbinPart]]:
    middle = len(group) // 2
    return [[*group[:middle]], [*group[middle:]]]
