"""How often the identity of machine code is right: pairs of compiled kernels.

Each row changes one thing in the source or the options. "same" are pairs that must be equal,
"apart" pairs that must not. Run it as a script, with the folder of a CUDA toolkit that has
nvcc. It fails if a pair that must be apart is called the same.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from pytest_gpuperf.collect.binary.identity import code_identities
from pytest_gpuperf.collect.runner import ProcessRunner
from pytest_gpuperf.model.identity import CodeIdentity, Sameness

SOURCE = Path(__file__).with_suffix(".cu")
CHIPS = ("sm_80", "sm_90", "sm_120")
# Not used while the rules were made.
HELD_OUT = ("sm_89", "sm_100")
LINKED = "-rdc=true"
ALL = "all"


class Variant(NamedTuple):
    """
    A change.

    Attributes:
        name: The change in words.

        options: Options of nvcc.

        apart: The kernels that it changes.

        either: The kernels of which both answers are right, or ALL.

        base: Options of the other side.

        folder: Whether the source lies in another folder.
    """

    name: str
    options: tuple[str, ...] = ()
    apart: frozenset[str] = frozenset()
    either: frozenset[str] | str = frozenset()
    base: tuple[str, ...] = ()
    folder: bool = False


def _of(*names: str) -> frozenset[str]:
    return frozenset(names)


_FACTORS = _of("calls", "by_pointer")
VARIANTS = (
    Variant("compiled twice"),
    Variant("another folder", folder=True),
    Variant("line information", ("-lineinfo",)),
    Variant("functions renamed", ("-DSUFFIX=_renamed",)),
    Variant(
        "another kernel and variable first",
        ("-DEXTRA_KERNEL", "-DPAD_VARIABLES"),
        either=_of("by_pointer"),
    ),
    Variant(
        "fewer registers allowed",
        ("-maxrregcount=40",),
        apart=_of("many_registers"),
        either=ALL,
    ),
    Variant("a spill", ("-maxrregcount=24",), _of("many_registers"), ALL),
    Variant("launch bounds", ("-DBOUNDS=128",), _of("many_registers")),
    Variant("blocks moved", ("-DTHEN_FIRST=0",), _of("branches")),
    Variant("width of an access", ("-DVECTOR=float2",), _of("copies")),
    Variant("narrowest access", ("-DVECTOR=char",), _of("copies")),
    Variant("unrolled twice", ("-DUNROLL=8",), _of("weighted")),
    Variant("not unrolled", ("-DUNROLL=1",), _of("weighted")),
    Variant("a constant in a variable", ("-DFIRST=1.5f",), _of("weighted")),
    Variant(
        "a number of steps in variables", ("-DSTEPS=70",), _of("loops", "by_table")
    ),
    Variant("a factor in functions", ("-DFACTOR=5.f",), _FACTORS),
    Variant("more shared memory", ("-DTILE=512",), _of("reduces")),
    Variant("no padding", ("-DPADDING=0",), _of("transposes")),
    Variant("no barrier", ("-DNO_BARRIER",), _of("reduces")),
    Variant("cache hint", ("-DPOLICY(p)=__ldcs(p)",), _of("reduces")),
    Variant("a message", ('-DMESSAGE="other"',), _of("prints")),
    Variant("fast division", ("-DDIVISION",), _of("divides")),
    Variant("fast math", ("--use_fast_math",), _of("divides", "branches"), ALL),
    Variant("no FMA", ("-fmad=false",), _of("many_registers", "weighted"), ALL),
    Variant("debug", ("-G",), frozenset({ALL})),
    Variant("linked twice", (LINKED,), base=(LINKED,)),
    Variant("linked: factor", (LINKED, "-DFACTOR=5.f"), _FACTORS, base=(LINKED,)),
    Variant(
        "linked: steps",
        (LINKED, "-DSTEPS=70"),
        _of("loops", "by_table"),
        base=(LINKED,),
    ),
    Variant(
        "linked: another kernel and variable first",
        (LINKED, "-DEXTRA_KERNEL", "-DPAD_VARIABLES"),
        either=_of("by_pointer"),
        base=(LINKED,),
    ),
)


def compiled(nvcc: Path, chip: str, options: tuple[str, ...], folder: Path) -> bytes:
    """Return the linked cubin of the source."""
    folder.mkdir(parents=True)
    source = Path(shutil.copy(SOURCE, folder))
    cubin = folder / "kernels.cubin"
    command = [nvcc, f"-arch={chip}", "-w", "-cubin", *options, source, "-o", cubin]
    subprocess.run(command, check=True)
    if LINKED in options:
        linked = folder / "linked.cubin"
        command = [nvcc.with_name("nvlink"), f"-arch={chip}", cubin, "-o", linked]
        subprocess.run(command, check=True)
        cubin = linked
    return cubin.read_bytes()


def identities(
    nvcc: Path, chip: str, options: tuple[str, ...], folder: Path
) -> dict[str, CodeIdentity]:
    """Return the identity of each kernel, by its name without a suffix."""
    content = compiled(nvcc, chip, options, folder)
    found = code_identities(content, runner=ProcessRunner())
    return {name.removesuffix("_renamed"): value for name, value in found.items()}


def rows(nvcc: Path, chip: str, folder: Path) -> list[tuple[Variant, str, Sameness]]:
    """Return variant, kernel and answer of each pair of a chip."""
    bases = {
        options: identities(nvcc, chip, options, folder / f"base{len(options)}")
        for options in {variant.base for variant in VARIANTS}
    }
    found = []
    for number, variant in enumerate(VARIANTS):
        place = folder / ("elsewhere/deeper" if variant.folder else f"v{number}")
        new = identities(nvcc, chip, variant.options, place)
        old = bases[variant.base]
        found += [
            (variant, kernel, old[kernel].compared(new[kernel]))
            for kernel in sorted(old)
        ]
    return found


def judged(variant: Variant, kernel: str, answer: Sameness) -> str:
    """Return the class of an answer."""
    is_apart = kernel in variant.apart or ALL in variant.apart
    if is_apart:
        return "false same" if answer is Sameness.SAME else "right"
    if variant.either == ALL or kernel in variant.either:
        return "either"
    return "right" if answer is Sameness.SAME else "false change"


def main() -> int:
    """Print a row for each change; return 0 if no pair was wrongly called the same."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("toolkit", type=Path, help="as /usr/local/cuda")
    parser.add_argument("--chips", nargs="+", default=[*CHIPS, *HELD_OUT])
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    nvcc = given.toolkit / "bin" / "nvcc"
    with (
        tempfile.TemporaryDirectory() as folder,
        ThreadPoolExecutor(given.jobs) as pool,
    ):
        several = pool.map(lambda c: rows(nvcc, c, Path(folder, c)), given.chips)
        by_chip = dict(zip(given.chips, several, strict=True))
    total: Counter[str] = Counter()
    for place, variant in enumerate(VARIANTS):
        counts: Counter[str] = Counter()
        for chip, found in by_chip.items():
            for other, kernel, answer in found:
                if other is not variant:
                    continue
                result = judged(variant, kernel, answer)
                counts[answer.text] += 1
                counts[result] += 1
                if result.startswith("false"):
                    print(f"  {result}: {chip} {kernel}, {variant.name}: {answer.text}")
        total += counts
        shown = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
        print(f"{place + 1:3} {variant.name:42} {shown}")
    known = total["right"] + total["false same"] + total["false change"]
    print(
        f"{known} pairs with a known answer: {total['right']} right, "
        f"{total['false same']} false same, {total['false change']} false change; "
        f"{total['either']} others"
    )
    return 1 if total["false same"] else 0


if __name__ == "__main__":
    sys.exit(main())
