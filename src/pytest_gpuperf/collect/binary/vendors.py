"""Device code of other vendors in a compiled binary."""

from __future__ import annotations

import mmap
import re

from pytest_gpuperf.collect.binary.containers import sections

# Name of a section and its content. clang names the section after kind and target:
# "gen" is what ocloc compiled for a chip.
_CONTENTS = (
    (r"\.hip_?fat", "code for AMD's GPUs"),
    (r"__CLANG_OFFLOAD_BUNDLE__\S*amdgcn", "code for AMD's GPUs"),
    (r"__CLANG_OFFLOAD_BUNDLE__\S*spir\w*_gen", "code for Intel's GPUs"),
    (
        r"__CLANG_OFFLOAD_BUNDLE__\S*spir(?!\w*_gen)",
        "SPIR-V, which a driver compiles for its GPU",
    ),
)


def other_code(content: bytes | mmap.mmap) -> tuple[str, ...]:
    """
    Return the kinds of device code in a library or a program that are not NVIDIA's.

    Args:
        content: An ELF file of 64 bits, or a PE file. Any other content has none.

    Returns:
        Each kind once, as "code for AMD's GPUs (.hip_fatbin)".
    """
    found: dict[str, str] = {}
    for section in sections(content):
        for pattern, kind in _CONTENTS:
            if re.match(pattern, section.name, re.IGNORECASE):
                found.setdefault(kind, section.name)
    return tuple(f"{kind} ({name})" for kind, name in found.items())
