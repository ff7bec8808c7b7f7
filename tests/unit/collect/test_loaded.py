"""Rules of LoadedLibrary of collect.runtime."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import files

import pytest

from pytest_gpuperf.collect.runtime import LoadedLibrary

LATER = """
import ctypes, sys
from pytest_gpuperf.collect.runtime import LoadedLibrary

library = LoadedLibrary(sys.argv[1], windows_name="none.dll")
before = [library(), library()]
loaded = ctypes.CDLL(sys.argv[1])
after = library()
print(before, after is not None and after._handle == loaded._handle)
"""


def test_a_library_is_found_as_soon_as_somebody_has_loaded_it() -> None:
    """An answer of no holds only as long as nothing was loaded; nothing is loaded by us."""
    some = next(f for f in files("numpy") or () if f.name.startswith("_pocketfft_"))
    argv = [sys.executable, "-c", LATER, str(some.locate())]
    printed = subprocess.run(argv, check=True, capture_output=True, text=True).stdout

    assert printed.strip() == "[None, None] True"


def test_a_library_that_nobody_has_is_not_loaded() -> None:
    """A name that no loader knows is an answer, not an error."""
    library = LoadedLibrary("libnobodyhasthis.so.7", windows_name="none.dll")

    assert library() is None
    assert library() is None


@pytest.mark.skipif(sys.platform != "linux", reason="names a library of Linux")
def test_a_library_that_is_there_is_found_at_once() -> None:
    """What was loaded before the first question is found by it."""
    assert LoadedLibrary("libc.so.6", windows_name="none.dll")() is not None
