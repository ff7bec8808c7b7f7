"""Room hooks: the pytest objects; PYTEST_DONT_REWRITE.

In: what pytest calls.
Out: calls of fixture and pipeline, and outcomes in pytest's own words.
Never: a measurement, a decision, arithmetic.
"""

from __future__ import annotations

import contextlib
import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from typing import TYPE_CHECKING

from pytest_gpuperf import options

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    import pytest

__all__ = ["OwnModules", "register"]


class OwnModules:
    """
    Finds this package's modules as Python does, before pytest's assertion rewriting looks.

    There is nothing to rewrite in them. pytest would compile each of a hundred once more
    at the first run after an installation, where it may write, and in each run where it
    may not; and it reads its own byte code slower than Python reads what the installer
    compiled.
    """

    def __init__(self) -> None:
        sys.meta_path.insert(0, self)

    def end(self) -> None:
        """Leave imports as they were."""
        with contextlib.suppress(ValueError):  # somebody has put all of them back
            sys.meta_path.remove(self)

    @staticmethod
    def find_spec(
        fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module of ours; None for others."""
        if not fullname.startswith("pytest_gpuperf."):
            return None
        return PathFinder.find_spec(fullname, path, target)


def register(config: pytest.Config) -> None:
    """
    Register what this process needs to measure, to judge, or both.

    A worker measures; a controller judges, once a test has measured; the only process
    does both; a child run measures and writes down what it found.
    """
    config.add_cleanup(OwnModules().end)
    manager = config.pluginmanager
    if _waits(config):
        from pytest_gpuperf.hooks.controller import Controller

        manager.register(Controller(config), "gpuperf-gate")
        return
    # the rooms below are imported here because this is the first use of any of them
    from pytest_gpuperf.hooks.leases import Leases
    from pytest_gpuperf.hooks.measuring import Measuring
    from pytest_gpuperf.pipeline.memory import Memory

    if options.CHILD_VARIABLE in os.environ:
        from pytest_gpuperf.hooks.child import Child

        child = Child(config)
        manager.register(child, "gpuperf-child")
        bench = child.bench()
        measuring = Measuring(config, bench, Memory(bench.config), judging=False)
        manager.register(measuring, "gpuperf-measuring")
    elif hasattr(config, "workerinput"):
        measuring = Measuring.in_worker(config)
        manager.register(measuring, "gpuperf-measuring")
    else:
        from pytest_gpuperf.hooks.gate import Gate

        gate = Gate(config)
        manager.register(gate, "gpuperf-gate")
        measuring = Measuring(config, gate.suite.bench, gate.suite.memory)
        manager.register(measuring, "gpuperf-measuring")
    manager.register(Leases(measuring.bench), "gpuperf-leases")


def _waits(config: pytest.Config) -> bool:
    """Return whether this is an xdist controller that nobody has asked for anything."""
    distributed = getattr(config.option, "dist", "no") != "no"
    is_worker = hasattr(config, "workerinput")
    return distributed and not is_worker and not options.asked(config)
