"""A disk that is full at a given size of a file."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest


@contextlib.contextmanager
def files_end_at(size_bytes: int) -> Iterator[None]:
    """Limit how large a file may get, as a full disk does."""
    resource = pytest.importorskip("resource", reason="this system has no such limits")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
