"""What the tests that start whole processes share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fakes import fake_cuda
from fakes.project import Project


@pytest.fixture(name="machine")
def machine_(project: Project, tmp_path: Path) -> Path:
    """Give the project a scripted GPU; return the folder that it was built in."""
    if sys.platform != "linux":
        pytest.skip("the scripted driver is an ELF library")
    folder = tmp_path / "machine"
    fake_cuda.machine(project, folder)
    return folder
