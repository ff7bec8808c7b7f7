"""Device code of other vendors in a compiled binary."""

from __future__ import annotations

import mmap
import re

from pytest_gpuperf.collect.binary.containers import members, sections

# clang keeps the code of each file until the link, which puts it into another section.
UNLINKED = "device code that is not linked yet"
OF_CLANG = "device code in a section of clang"
# Name of a section and its content. clang names the section after kind and target:
# "gen" is what ocloc compiled for a chip.
_CONTENTS = (
    (r"\.hip_?fat", "code for AMD's GPUs"),
    (r"\.llvm\.offloading", UNLINKED),
    (r"__CLANG_OFFLOAD_BUNDLE__\S*(?:amdgcn|nvptx)", OF_CLANG),
    (r"__CLANG_OFFLOAD_BUNDLE__\S*spir\w*_gen", "code for Intel's GPUs"),
    (
        r"__CLANG_OFFLOAD_BUNDLE__\S*spir(?!\w*_gen)",
        "SPIR-V, which a driver compiles for its GPU",
    ),
)


def other_code(content: bytes | mmap.mmap) -> tuple[str, ...]:
    """
    Return the kinds of device code in a file that no tool for NVIDIA's code reads.

    Args:
        content: An ELF file of 64 bits, an archive of them, or a PE file. Any other content
            has none.

    Returns:
        Each kind once, as "code for AMD's GPUs (.hip_fatbin)".
    """
    found: dict[str, str] = {}
    for start, _ in members(content):
        for section in sections(content, start):
            for pattern, kind in _CONTENTS:
                if re.match(pattern, section.name, re.IGNORECASE):
                    found.setdefault(kind, section.name)
    return tuple(f"{kind} ({name})" for kind, name in found.items())
