"""What others have loaded into this process, and what it knows of itself.

Nothing is imported or loaded to find out.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from pytest_gpuperf.model.steps import Compiled

__all__ = ["Frameworks", "LoadedLibrary"]

_NOTHING = Compiled(count=0, graph_breaks_count=0, time_s=0.0)
# by whatever name this torch times the compilation of a whole frame, newest first
_FRAME_TIMES = ("_compile.compile_inner", "_compile.<locals>.compile_inner")
_READING = (AttributeError, KeyError, TypeError, ValueError, RuntimeError)


class LoadedLibrary:
    """
    A shared library that this process may come to load; it is never loaded from here.

    It is asked for before and after each measurement. To look for a library that is not
    there takes the loader 20 us; as long as nothing was loaded since, the last answer
    holds.

    Args:
        name: As the loader knows it: `libcuda.so.1`.

        windows_name: The same on Windows: `nvcuda.dll`.
    """

    def __init__(self, name: str, *, windows_name: str) -> None:
        self._name = name
        self._windows_name = windows_name
        self._absent_at: int | None = (
            None  # libraries loaded when it was not among them
        )

    def __call__(self) -> Any | None:  # noqa: ANN401 - a ctypes library has no type
        """Return the library; None: it is not loaded."""
        if sys.platform == "win32":  # *unverified*: a handle is asked, not loaded
            handle = ctypes.windll.kernel32.GetModuleHandleW(self._windows_name)
            return ctypes.WinDLL(self._windows_name, handle=handle) if handle else None
        count = _loads_count()
        if count is not None and count == self._absent_at:
            return None
        try:
            return ctypes.CDLL(self._name, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        except OSError:
            self._absent_at = count
            return None


class _Entry(ctypes.Structure):
    """What `dl_iterate_phdr` tells of a library: the C struct dl_phdr_info."""

    _fields_ = (
        ("dlpi_addr", ctypes.c_void_p),
        ("dlpi_name", ctypes.c_char_p),
        ("dlpi_phdr", ctypes.c_void_p),
        ("dlpi_phnum", ctypes.c_uint16),
        ("dlpi_adds", ctypes.c_ulonglong),
    )


_VISITOR = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(_Entry), ctypes.c_size_t, ctypes.c_void_p
)
_ENTRY_BYTES = ctypes.sizeof(_Entry)
_STOP = 1  # any number but 0 ends the walk: the first library tells all that is asked


def _loads_count() -> int | None:
    """Return how many libraries were ever loaded; None: this system does not say."""
    if _WALK is None:
        return None
    _FOUND[0] = None
    _WALK(_VISIT, None)
    return _FOUND[0]


def _note(entry: Any, size: int, _: object) -> int:  # noqa: ANN401 - a ctypes pointer
    """Keep the counter of the first library; an old loader's entry has none."""
    if size >= _ENTRY_BYTES:
        _FOUND[0] = entry.contents.dlpi_adds
    return _STOP


_FOUND: list[int | None] = [None]
_VISIT = _VISITOR(_note)  # kept here: the loader calls it by its address
_OWN = None if sys.platform == "win32" else ctypes.CDLL(None)
_WALK = getattr(_OWN, "dl_iterate_phdr", None)


class Frameworks:
    """
    The frameworks that this process has loaded.

    Compilations as torch 2.13 counts them, and its peak memory, *unverified on hardware*;
    a torch that counts in another way is a sentence, not an error.

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
