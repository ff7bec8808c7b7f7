"""Foreign names and units into ours.

In: what a tool printed, in its own words and units.
Out: names of the catalogue, SI units, None for what the tool did not say; whose a file is.
Never: a decision, a number that no tool gave.
"""

from __future__ import annotations

import re

__all__ = ["FOREIGN_BYTES", "foreign"]

FOREIGN_BYTES = 65_536  # of a file's start, which tell what wrote it
_TIMES = "it has the times of kernels, and none of their counters"
_MEASURE = (
    "profile with ncu for counters, or time the call in a test (gpuperf.measure); "
)
_OF_NSYS = (_TIMES, f"{_MEASURE}nsys stats prints what this file has")
_OF_TORCH = (_TIMES, f"{_MEASURE}a browser shows this file at ui.perfetto.dev")
# files that people give instead of a report or a run: how each begins, what it is, what it
# has and what to do (Nsight Systems 2023.4, its SQLite export, PyTorch's profiler 2.0)
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
    Return what a file of another tool is and what to do with it; None: not known.

    Args:
        content: The file, or at least its first `FOREIGN_BYTES`.
    """
    for pattern, kind, holds, remedy in _FOREIGN:
        if re.compile(pattern, re.DOTALL).match(content, 0, FOREIGN_BYTES):
            return ": ".join(filter(None, (f"it is {kind}", holds))), remedy
    return None
