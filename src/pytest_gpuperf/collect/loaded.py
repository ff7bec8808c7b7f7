"""Whether others have loaded a library into this process; PYTEST_DONT_REWRITE."""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any

__all__ = ["LoadedLibrary"]


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
_STOP = 1  # any number but 0 ends the walk: the first library tells all that is asked


def _loads_count() -> int | None:
    """Return how many libraries were ever loaded; None: this system does not say."""
    walk = getattr(_OWN, "dl_iterate_phdr", None)
    if walk is None:
        return None
    _FOUND[0] = None
    walk(_VISIT, None)
    return _FOUND[0]


def _note(entry: Any, size: int, _: object) -> int:  # noqa: ANN401 - a ctypes pointer
    """Keep the counter of the first library; an old loader's entry has none."""
    if size >= ctypes.sizeof(_Entry):
        _FOUND[0] = entry.contents.dlpi_adds
    return _STOP


_FOUND: list[int | None] = [None]
_VISIT = _VISITOR(_note)  # kept here: the loader calls it by its address
_OWN = None if sys.platform == "win32" else ctypes.CDLL(None)
