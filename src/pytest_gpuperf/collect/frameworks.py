"""What frameworks in this process know of themselves; PYTEST_DONT_REWRITE.

Compilations and peak memory, as torch counts them. Nothing is imported to find out, and
a torch that counts in another way is a sentence, not an error. Compilations as torch 2.13 counts
them; memory is *unverified on hardware*.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from pytest_gpuperf.model.steps import Compiled

__all__ = ["Frameworks"]

_NOTHING = Compiled(count=0, graph_breaks_count=0, time_s=0.0)
# by whatever name this torch times the compilation of a whole frame, newest first
_FRAME_TIMES = ("_compile.compile_inner", "_compile.<locals>.compile_inner")
_READING = (AttributeError, KeyError, TypeError, ValueError, RuntimeError)


class Frameworks:
    """
    The frameworks that this process has loaded.

    Args:
        modules: The loaded modules by name; None: those of this interpreter.
    """

    def __init__(self, modules: Mapping[str, ModuleType] | None = None) -> None:
        self._modules = sys.modules if modules is None else modules

    def compiled(self) -> Compiled | None:
        """Return what torch.compile has done since this process began; None: unknown."""
        dynamo = self._modules.get("torch._dynamo.utils")
        if dynamo is None:  # not loaded until something is compiled
            return _NOTHING if "torch" in self._modules else None
        try:
            return _counted(dynamo)
        except _READING:
            return None

    def uncompiled_reason(self) -> str:
        """Return why `compiled` knows nothing; "": it does."""
        if self.compiled() is not None:
            return ""
        if "torch" in self._modules:
            return "this version of torch counts its compilations in another way"
        return "torch is not loaded, and no other compiler is asked"

    def forget_peak(self) -> None:
        """Begin the peak of torch's memory anew, on every device in use."""
        cuda = self._cuda()
        if cuda is None:
            return
        with contextlib.suppress(*_READING):  # then the peak is not read either
            for index in range(cuda.device_count()):
                cuda.reset_peak_memory_stats(index)

    def peak_bytes(self) -> int | None:
        """Return the peak of torch's memory on its fullest device; None: unknown."""
        cuda = self._cuda()
        if cuda is None:
            return None
        try:
            peaks = [
                int(cuda.max_memory_allocated(index))
                for index in range(cuda.device_count())
            ]
        except _READING:  # an allocator that was plugged in does not count
            return None
        return max(peaks, default=None)

    def _cuda(self) -> Any | None:  # noqa: ANN401 - an optional library has no types
        """Return torch.cuda where it is in use; None: it is not."""
        cuda = getattr(self._modules.get("torch"), "cuda", None)
        try:
            return cuda if cuda is not None and cuda.is_initialized() else None
        except _READING:
            return None


def _counted(dynamo: ModuleType) -> Compiled:
    """Return what the compiler has counted so far; reading makes no new entries."""
    counters, times = dynamo.counters, dynamo.compilation_time_metrics
    frames = next((times[name] for name in _FRAME_TIMES if name in times), None)
    count = int(counters.get("stats", {}).get("unique_graphs", 0))
    return Compiled(
        count=count,
        graph_breaks_count=sum(counters.get("graph_break", {}).values()),
        time_s=math.fsum(frames or ()) if frames or not count else None,
    )
