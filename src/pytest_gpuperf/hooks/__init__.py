"""Room hooks: the pytest objects; PYTEST_DONT_REWRITE.

In: what pytest calls.
Out: calls of fixture and pipeline, and outcomes in pytest's own words.
Never: a measurement, a decision, arithmetic.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pytest_gpuperf import options

if TYPE_CHECKING:
    import pytest

__all__ = ["register"]


def register(config: pytest.Config) -> None:
    """
    Register what this process needs to measure, to judge, or both.

    A worker measures; a controller judges; the only process does both; a child run
    measures and writes down what it found.
    """
    # the rooms below are imported here because this is the first use of any of them
    from pytest_gpuperf.hooks.child import Child
    from pytest_gpuperf.hooks.gate import Gate
    from pytest_gpuperf.hooks.measuring import Measuring
    from pytest_gpuperf.pipeline.memory import Memory

    manager = config.pluginmanager
    if options.CHILD_VARIABLE in os.environ:
        child = Child(config)
        manager.register(child, "gpuperf-child")
        bench = child.bench()
        measuring = Measuring(config, bench, Memory(bench.config), judging=False)
        manager.register(measuring, "gpuperf-measuring")
    elif hasattr(config, "workerinput"):
        manager.register(Measuring.in_worker(config), "gpuperf-measuring")
    else:
        gate = Gate(config)
        manager.register(gate, "gpuperf-gate")
        measuring = Measuring(config, gate.suite.bench, gate.suite.memory)
        manager.register(measuring, "gpuperf-measuring")
