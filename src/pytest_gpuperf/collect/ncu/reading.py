"""The command that reads a `.ncu-rep`: its arguments and its environment.

`gpuperf show` starts it before anything else is imported, so this module imports little.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder

TYPE_CHECKING = False  # The module typing takes 4 ms.
if TYPE_CHECKING:
    from collections.abc import Sequence

# The first bytes of 257 public reports.
MAGIC = b"NVR\0"
# ncu 2026.3 compresses a report with zstd. NVIDIA's reader asks for this suffix.
_ZSTD, _COMPRESSED = b"\x28\xb5\x2f\xfd", ".ncu-repz"
# Isolated, because the process needs only this package and ncu-report.
_OPTIONS = ("-I", "-S", "-X", "utf8", "-c")
# The folder of NVIDIA's module goes before that of this package, which may hold
# another.
_START = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from pytest_gpuperf.collect.ncu import extract; "
    "sys.path.insert(-1, sys.argv[2]); extract.main(sys.argv[3:])"
)
# The folder that has pytest_gpuperf.
_PACKAGES = os.path.abspath(f"{__file__}/../../../..")
# Variables for the dynamic loader and temporary files. No other variable of the caller
# may change the text of a report.
_ENVIRONMENT = ("DYLD_LIBRARY_PATH", "LD_LIBRARY_PATH", "SYSTEMROOT", "TEMP", "TMPDIR")


def is_report(start: bytes, name: str) -> bool:
    """Return True if first bytes and name are those of a report of Nsight Compute."""
    compressed = start.startswith(_ZSTD) and name.endswith(_COMPRESSED)
    return compressed or start.startswith(MAGIC)


def reader_argv(file: str, form: str, names: Sequence[str]) -> tuple[str, ...] | None:
    """
    Return the command line, or None if the package ncu-report is not installed.

    Args:
        file: The report, as an absolute path.

        form: One of the forms of `forms`.

        names: The arguments of the form.
    """
    # The module is found without importing it.
    spec = PathFinder.find_spec("ncu_report")
    if spec is None or spec.origin is None:
        return None
    interface = os.path.dirname(spec.origin)
    if spec.submodule_search_locations:
        interface = os.path.dirname(interface)
    argv = (sys.executable, *_OPTIONS, _START, _PACKAGES, interface, form, file, "0")
    return (*argv, *names)


def reader_environment() -> dict[str, str]:
    """Return the environment."""
    return {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
