"""The entry point of pytest.
PYTEST_DONT_REWRITE.

pytest reads the modules of installed plugins through its import hook, which takes several
times as long as Python's own import. This module is small and replaces that hook for the
others, of which the first are the hooks that every start needs.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec, PathFinder
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    import pytest


class PackageFinder:
    """
    Finds modules of the plugin as Python does, so that pytest's import hook need not
    read them.
    """

    @staticmethod
    def find_spec(
        fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module of this package, or None."""
        ours = fullname.startswith("pytest_gpuperf.")
        return PathFinder.find_spec(fullname, path, target) if ours else None


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Register all other hooks. pytest calls this first in every run."""
    sys.meta_path.insert(0, PackageFinder)
    from pytest_gpuperf import hookspecs, startup

    pluginmanager.add_hookspecs(hookspecs)
    pluginmanager.register(startup, "gpuperf-startup")


def pytest_unconfigure() -> None:
    """Leave imports as they were."""
    sys.meta_path[:] = [
        finder for finder in sys.meta_path if finder is not PackageFinder
    ]


def __dir__() -> list[str]:
    """Return the hooks. pytest looks at each name of a plugin twice."""
    return [name for name in globals() if name.startswith("pytest_")]
