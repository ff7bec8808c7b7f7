"""torch's profiler (kineto) as a user of CUPTI in the same process.

It subscribes when it first starts, keeps its subscription until the process ends, and does
not try again after a refusal: its later profiles have no GPU work, without an error.
"""

from __future__ import annotations

import functools
import importlib.util
import mmap
import sys
from collections.abc import Callable
from enum import Enum
from pathlib import Path

from pytest_gpuperf.collect.binary.elf import ElfFile
from pytest_gpuperf.collect.clock import NS_PER_S

# torch links kineto into this library, which names the functions of CUPTI it calls.
_LIBRARY = "lib/libtorch_cpu.so"
_NAMES = ".dynstr"
_ANY_CALL, _SUBSCRIBER_CALL = b"\0cuptiActivityEnable", b"\0cuptiActivityEnable_v2\0"

EXCLUDED = (
    "cupti: torch.profiler uses CUPTI alone in a process: in a test that is measured its"
    " profiles have no GPU work, and a test after its first profile is timed by events; run"
    " tests that use it in a process of their own"
)


class KinetoUse(str, Enum):
    """How torch's profiler uses CUPTI."""

    NONE = "none"  # There is no torch, or it is built without CUPTI.
    ALONE = "alone"
    SEVERAL = "several"  # It subscribes as one of several.


def kineto_use() -> KinetoUse:
    """Return how the installed torch's profiler uses CUPTI. Nothing is imported."""
    if "torch" in sys.modules:
        folders = getattr(sys.modules["torch"], "__path__", ())
    else:
        spec = importlib.util.find_spec("torch")
        folders = (spec and spec.submodule_search_locations) or ()
    return next((_use_by(Path(folder, _LIBRARY)) for folder in folders), KinetoUse.NONE)


@functools.cache
def _use_by(library: Path) -> KinetoUse:
    try:
        with (
            library.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            tables = [s for s in ElfFile(content).sections if s.name == _NAMES]
            names = b"".join(content[t.start : t.start + t.size] for t in tables)
    except (OSError, ValueError):
        # A library of another system, which is left alone.
        return KinetoUse.ALONE
    if _SUBSCRIBER_CALL in names:
        return KinetoUse.SEVERAL
    return KinetoUse.ALONE if _ANY_CALL in names else KinetoUse.NONE


def is_profiling() -> bool:
    """Return whether torch's profiler records now. It has then been started."""
    autograd = getattr(sys.modules["torch"], "autograd", None)
    profiler = getattr(autograd, "profiler", None)
    return bool(getattr(profiler, "_is_profiler_enabled", False))


def start_kineto(now_ns: Callable[[], int]) -> str:
    """
    Start torch's profiler once, before this plugin subscribes, and return a remark.

    Args:
        now_ns: The clock [ns].
    """
    begun_ns = now_ns()
    try:
        profiler = sys.modules["torch"].profiler
        with profiler.profile(activities=[profiler.ProfilerActivity.CUDA]):
            pass
    except Exception as error:  # noqa: BLE001 - a profiler that fails is no fault of the test
        why = str(error) or type(error).__name__
        return f"cupti: torch.profiler could not be started before the tests ({why})"
    took_s = (now_ns() - begun_ns) / NS_PER_S
    return (
        f"cupti: torch.profiler was started once, for {took_s:.3g} s, so that later"
        " profiles of the tests have GPU work"
    )
