"""Translation of other tools' names and units.

In: the output of a tool, in its own words and units.
Out: names of the catalogue, SI units, None for missing values, the tool that wrote a file.
Never: a decision, a number that no tool gave.
"""

from __future__ import annotations

import re

__all__ = ["FOREIGN_BYTES", "foreign"]

# The first bytes of a file, from which the tool that wrote it is identified.
FOREIGN_BYTES = 65_536
_TIMES = "it has the times of kernels, and none of their counters"
_MEASURE = (
    "profile with ncu for counters, or time the call in a test (gpuperf.measure); "
)
_OF_NSYS = (_TIMES, f"{_MEASURE}nsys stats prints what this file has")
_OF_TORCH = (_TIMES, f"{_MEASURE}a browser shows this file at ui.perfetto.dev")
# Files that users pass instead of a report or a run: the pattern of the first bytes, the
# kind of file, the contents and the remedy (Nsight Systems 2023.4, its SQLite export,
# PyTorch's profiler 2.0).
_FOREIGN = (
    (rb"NVIDIA Tegra Profiler Report", "a report of Nsight Systems", *_OF_NSYS),
    (rb".{0,32}NVIDIA Nsight Systems Stream", "a stream of Nsight Systems", *_OF_NSYS),
    (
        rb"SQLite format 3\0.*(?:TARGET_INFO_|META_DATA_EXPORT)",
        "an export of Nsight Systems",
        *_OF_NSYS,
    ),
    (rb'\s*{.*"traceEvents"', "a trace of PyTorch's profiler", *_OF_TORCH),
    (rb'\s*{.*"deviceProperties"', "a trace of PyTorch's profiler", *_OF_TORCH),
    (
        rb'\s*{.*"machine_info"',
        "a run of pytest-benchmark",
        "it is compared by pytest-benchmark compare",
        "measure again with gpuperf, and keep that run with --gpuperf-json",
    ),
    (rb"NVR\0", "a report of Nsight Compute", "", "print it with gpuperf show FILE"),
    (rb"\x1f\x8b", "compressed with gzip", "", "uncompress it (gunzip)"),
)


def foreign(content: bytes) -> tuple[str, str] | None:
    """
    Return the kind of another tool's file and a remedy, or None if unknown.

    Args:
        content: The file, or at least its first `FOREIGN_BYTES` bytes.
    """
    for pattern, kind, holds, remedy in _FOREIGN:
        if re.compile(pattern, re.DOTALL).match(content, 0, FOREIGN_BYTES):
            return ": ".join(filter(None, (f"it is {kind}", holds))), remedy
    return None
