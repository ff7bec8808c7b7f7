"""Tests that need hardware counters: found before the first one runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpuperf.hooks.markers import PLAN, TEST_ID
from pytest_gpuperf.model.metric import is_counter

if TYPE_CHECKING:
    import pytest

    from pytest_gpuperf.config import Plan
    from pytest_gpuperf.pipeline.bench import Bench

__all__ = ["count_before"]


def count_before(session: pytest.Session, bench: Bench) -> None:
    """
    Give a bench the counters that its tests need.

    Args:
        session: What is going to run.

        bench: The measuring equipment of this process.
    """
    plans = [(item, item.stash[PLAN]) for item in session.items if PLAN in item.stash]
    asked = not {"ncu", "cupti"}.isdisjoint(bench.config.collectors)
    # nearly all runs end here, with nothing loaded
    if not any(
        asked or (_names_a_counter(plan) and not _never_runs(item))
        for item, plan in plans
    ):
        return
    if bench.config.disable or bench.recording is not None or _only_shows(session):
        return
    from pytest_gpuperf.pipeline.counting import (
        cache_control_of,
        made_of,
        may_count_here,
        wanted_metrics,
    )
    from pytest_gpuperf.pipeline.counts import Wanted

    device = bench.device()
    capability = None if device is None else device.compute_capability
    wanted = [
        Wanted(
            test_id=item.stash[TEST_ID],
            path=str(item.path),
            metrics=metrics,
            counters=made_of(metrics, capability),
            cache_control=cache_control_of(plan),
        )
        for item, plan in plans
        if not _never_runs(item)
        and (metrics := wanted_metrics(plan, bench.config.collectors))
    ]
    if not wanted:
        return
    from pytest_gpuperf.hooks.start import command_line
    from pytest_gpuperf.pipeline.relaunch import counted, refused

    refusal = refused(bench)
    if refusal is not None and may_count_here(bench.config.collectors, device):
        bench.count_here(refusal)
        return
    bench.counts = counted(
        bench,
        command_line(session.config),
        wanted,
        announce=lambda count: _announce(session.config, count),
    )


def _never_runs(item: pytest.Item) -> bool:
    """Return whether a test's marks alone say that its body is not going to run."""
    skipped = any(
        mark.name == "skip" or True in mark.args
        for mark in (*item.iter_markers("skip"), *item.iter_markers("skipif"))
    )
    return skipped or any(
        mark.kwargs.get("run") is False for mark in item.iter_markers("xfail")
    )


def _only_shows(session: pytest.Session) -> bool:
    """Return whether pytest is going to show what it would do, and do nothing."""
    options = session.config.option
    return bool(getattr(options, "setupplan", False) or options.collectonly)


def _names_a_counter(plan: Plan) -> bool:
    """Return whether a test's markers name a hardware counter."""
    limited = (limit.metric for limit in plan.limits)
    return any(map(is_counter, (*plan.counters, *limited, *plan.max_regression)))


def _announce(config: pytest.Config, count: int) -> None:
    """Say what the run is waiting for; a worker has nobody to say it to."""
    reporter = config.pluginmanager.getplugin("terminalreporter")
    if reporter is None or hasattr(config, "workerinput"):
        return
    tests = f"{count} test{'s' * (count != 1)}"
    reporter.ensure_newline()
    reporter.write_line(f"gpuperf: counting {tests} under ncu, in a process of its own")
