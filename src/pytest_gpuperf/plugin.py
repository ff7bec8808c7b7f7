"""The entry point of pytest.
PYTEST_DONT_REWRITE.

pytest reads the modules of installed plugins through its import hook, which takes several
times as long as Python's own import, and longer with each name and function. This module
therefore holds no more than the import of `startup` past that hook.
"""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder

import pytest


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Register all other hooks. pytest calls this first in every run."""
    sys.meta_path.insert(0, PathFinder)
    try:
        from pytest_gpuperf import startup
    finally:
        sys.meta_path.remove(PathFinder)
    startup.register(pluginmanager, startup)


def __dir__() -> list[str]:
    """Return the hook. pytest looks at each name of a plugin twice."""
    return ["pytest_addhooks"]
