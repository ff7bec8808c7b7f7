"""What tests on a GPU ask of the machine they are on."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pytest_gpuperf.collect.cupti.activity import ActivityCollector
    from pytest_gpuperf.model.activity import Trace

PROGRAMS = Path(__file__).parent / "programs"


def framework(name: str) -> Any:
    """Return a module, or skip by its name."""
    return pytest.importorskip(
        name, reason=f"{name} is not installed", exc_type=ImportError
    )


def installed(name: str) -> None:
    """Skip by its name what is not installed, and do not import it: no context is made."""
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")


def allowed_cupti(said: str) -> None:
    """Skip by its reason if a run that asked for CUPTI was refused it."""
    refused = re.search(r"collector cupti cannot be used: (.+)", said)
    if refused:
        pytest.skip(f"CUPTI: {refused[1]}")


def program(name: str) -> tuple[str, str]:
    """Return interpreter and path of one of `programs`."""
    return sys.executable, str(PROGRAMS / f"{name}.py")


def seen(collector: ActivityCollector, body: Callable[[], object]) -> Trace:
    """Return what a body did, the second time: modules are loaded in the first."""
    body()
    with collector.window() as window:
        body()
    assert window.void is None
    trace = window.trace()
    assert trace.dropped_count == 0
    assert trace.untimed_count == 0
    return trace
