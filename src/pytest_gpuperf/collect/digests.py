"""Digests of files and of installed distributions."""

from __future__ import annotations

import io
import os
import stat
from pathlib import Path

__all__ = ["content_digest", "digest_of"]

_CHUNK_BYTES = 1 << 16  # as fast as larger ones: 3.4 GB/s on one core
_LARGE_BYTES = 64 << 20  # 20 ms; only libraries and data are as large
_DISTRIBUTION = (".dist-info", ".egg-info")
_RECORDS = ("RECORD", "METADATA", "PKG-INFO")  # the first one that exists


def digest_of(content: bytes) -> str:
    """Return the BLAKE3 digest of bytes as 64 hexadecimal digits."""
    from blake3 import blake3

    return blake3(content).hexdigest()


def content_digest(path: Path) -> str | None:
    """
    Return the digest of a file's content, or of the distributions that a folder holds.

    Of a file of 64 MiB or more it is that of its size and time of change.

    Returns:
        None where there is nothing, or nothing that can be read.
    """
    try:
        if path.is_dir():
            return _distributions_digest(path)
        # O_NONBLOCK: a named pipe is not waited for
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        with io.FileIO(descriptor) as stream:
            state = os.fstat(descriptor)
            if not stat.S_ISREG(state.st_mode):
                return None
            if state.st_size >= _LARGE_BYTES:
                return digest_of(f"{state.st_size} {state.st_mtime_ns}".encode())
            return _stream_digest(stream)
    except OSError:
        return None


def _stream_digest(stream: io.FileIO) -> str:
    """Return the digest of a file; it is not mapped: one that shrinks would kill us."""
    from blake3 import blake3

    # one thread: a process that forks after more of them hangs in the next digest
    digest = blake3()
    while chunk := stream.read(_CHUNK_BYTES):
        digest.update(chunk)
    return digest.hexdigest()


def _distributions_digest(folder: Path) -> str:
    """Return the digest of the lists of files, which hold the files' digests."""
    lines = []
    for name in sorted(os.listdir(folder)):  # noqa: PTH208 - only names are needed
        if name.endswith(_DISTRIBUTION):
            records = (content_digest(folder / name / record) for record in _RECORDS)
            lines.append(f"{name} {next(filter(None, records), None)}")
    return digest_of("\n".join(lines).encode("utf-8", "surrogateescape"))
