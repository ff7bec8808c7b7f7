"""Doubles that are written in C, compiled once for all tests of a process."""

from __future__ import annotations

import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

__all__ = ["library"]

_ALWAYS = ("-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared")


def library(text: str, target: Path, *options: str) -> Path | None:
    """Put the library of a C text where a test wants it; return it; None: no compiler.

    Its `soname`, by which loaders know it, is the name of the target.
    """
    content = _compiled(text, target.name, options)
    if content is None:
        return None
    target.write_bytes(content)
    return target


@functools.cache
def _compiled(text: str, name: str, options: tuple[str, ...]) -> bytes | None:
    """Return a library; None: there is no compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        built = Path(folder, name)
        subprocess.run(
            [
                compiler,
                *_ALWAYS,
                f"-Wl,-soname,{name}",
                "-o",
                built,
                "-xc",
                "-",
                *options,
            ],
            check=True,
            encoding="utf-8",
            input=text,
        )
        return built.read_bytes()
