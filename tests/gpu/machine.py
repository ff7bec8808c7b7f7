"""What tests on a GPU ask of the machine they are on."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = Path(__file__).parent / "programs"


def framework(name: str) -> Any:
    """Return a module, or skip by its name."""
    return pytest.importorskip(
        name, reason=f"{name} is not installed", exc_type=ImportError
    )


def program(name: str) -> tuple[str, str]:
    """Return interpreter and path of one of `programs`."""
    return sys.executable, str(PROGRAMS / f"{name}.py")
