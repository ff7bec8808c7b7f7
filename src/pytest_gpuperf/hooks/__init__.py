"""Room hooks: the pytest objects.

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

    A worker measures; a controller judges, once a test has measured; the only process
    does both; a child run measures and writes down what it found.
    """
    manager = config.pluginmanager
    if options.is_controller(config) and not options.is_active(config):
        from pytest_gpuperf.hooks.controller import Controller

        manager.register(Controller(config), "gpuperf-gate")
        return
    # the rooms below are imported here because this is the first use of any of them
    from pytest_gpuperf.hooks.measuring import Leases, Measuring
    from pytest_gpuperf.measure.bench import bench_of
    from pytest_gpuperf.pipeline.memory import Memory

    if options.CHILD_VARIABLE in os.environ:
        from pytest_gpuperf.hooks.child import Child

        child = Child(config)
        manager.register(child, "gpuperf-child")
        bench = child.bench()
        measuring = Measuring(config, bench, Memory(bench.site.config), judging=False)
        manager.register(measuring, "gpuperf-measuring")
    elif hasattr(config, "workerinput"):
        measuring = Measuring.in_worker(config)
        manager.register(measuring, "gpuperf-measuring")
    else:
        from pytest_gpuperf.hooks.gate import Gate

        gate = Gate(config)
        manager.register(gate, "gpuperf-gate")
        measuring = Measuring(config, bench_of(gate.suite.site), gate.suite.memory)
        manager.register(measuring, "gpuperf-measuring")
    manager.register(Leases(measuring.bench), "gpuperf-leases")
