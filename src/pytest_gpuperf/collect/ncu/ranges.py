"""NVTX ranges that mark measurements for Nsight Compute.

NVTX is a C header: tools receive the calls compiled from it. The package nvtx has them for
Python, with domains, which the bindings inside torch and cupy lack.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Protocol, final

from pytest_gpuperf.errors import CollectorUnavailableError

__all__ = ["DOMAIN", "INCLUDE", "NvtxRanges", "Ranges", "find_ranges", "range_name"]

DOMAIN = "pytest-gpuperf"
# start/end ranges belong to the process, so that they include launches of worker threads
# (autograd's). A name without "/" means a range of that kind.
INCLUDE = f"regex:{DOMAIN}@.+"
_NAME_LENGTH = (
    16  # 64 bits: two of a million ranges share a name once in 40 million runs
)


class Ranges(Protocol):
    """Opens and closes ranges for a profiler; tests replace it with a scripted one."""

    def open(self, name: str) -> object:
        """Open a range of `DOMAIN`; return its handle."""

    def close(self, opened: object) -> None:
        """Close a range."""


@final
class NvtxRanges:
    """
    Ranges of the package nvtx.

    Args:
        nvtx: The package.
    """

    def __init__(self, nvtx: ModuleType) -> None:
        self._nvtx = nvtx

    def open(self, name: str) -> object:
        """Open a start/end range of `DOMAIN`; return its handle."""
        opened: object = self._nvtx.start_range(message=name, domain=DOMAIN)
        return opened

    def close(self, opened: object) -> None:
        """Close a range, from any thread."""
        self._nvtx.end_range(opened)


def find_ranges() -> Ranges:
    """
    Return the ranges of this process.

    Raises:
        CollectorUnavailableError: The package nvtx is not installed.
    """
    try:
        return NvtxRanges(importlib.import_module("nvtx"))
    except ImportError as error:
        raise CollectorUnavailableError(
            "the package nvtx is not installed",
            remedy='pip install "pytest-gpuperf[ncu]"',
        ) from error


def range_name(test_id: str, name: str, repeat: int = 0) -> str:
    """
    Return the name of a measurement's range.

    It is a hash, because a test's id may contain the special characters of ncu's filters.

    Args:
        test_id: The test.

        name: The measurement inside it.

        repeat: The index of its run, from 0.
    """
    from blake3 import blake3

    framed = "\0".join((test_id, name, str(repeat)))
    digest = blake3(framed.encode("utf-8", "surrogatepass")).hexdigest()
    return digest[:_NAME_LENGTH]
