"""The package as it is installed: its version, and what importing it costs."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata

import pytest

import pytest_gpuperf
from pytest_gpuperf import cli

SCRIPT = """
import sys

sys.path[:] = sys.argv[1:]
import pytest_gpuperf

pytest_gpuperf.__version__
print(*(n for n in sys.modules if n.startswith("pytest_gpuperf") or "metadata" in n))
"""


def test_the_version_stands_in_one_place(
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    """The build reads it from the module, and the command prints the same one."""
    assert cli.main(["--version"]) == 0

    said = capsysbinary.readouterr().out.decode()
    assert said == f"gpuperf {pytest_gpuperf.__version__}\n"
    assert metadata.version("pytest-gpuperf") == pytest_gpuperf.__version__


def test_the_version_loads_nothing() -> None:
    """Neither another module of ours nor the metadata of installed packages."""
    done = subprocess.run(
        # without site, whose .pth files load what they like
        [sys.executable, "-S", "-c", SCRIPT, *sys.path],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stdout.split() == ["pytest_gpuperf"], done.stderr
