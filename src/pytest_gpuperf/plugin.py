"""Door 1: what pytest finds in every start, used or not; PYTEST_DONT_REWRITE.

Everything else is registered when the first test with a measurement is collected; in an
xdist controller, which collects nothing, when it is configured.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from pytest_gpuperf import options

if TYPE_CHECKING:
    from collections.abc import Generator

    from pytest_gpuperf.fixture import GpuPerf

__all__ = [
    "gpuperf",
    "pytest_addhooks",
    "pytest_addoption",
    "pytest_configure",
    "pytest_make_collect_report",
]

_OBJECTS = ("gpuperf-measuring", "gpuperf-gate")
_MARKER = (
    "gpuperf(limits, max_regression, min_grade, counters, records, work, group, cache, "
    "iterations, requires): measure this test, hold it to its limits and its baseline"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options."""
    options.declare(parser)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Offer the plugin's own hooks."""
    from pytest_gpuperf import hookspecs

    pluginmanager.add_hookspecs(hookspecs)


@pytest.hookimpl(
    tryfirst=True
)  # before junitxml and pdb read what a child must not use
def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker; start at once where nothing will be collected."""
    config.addinivalue_line("markers", _MARKER)
    if options.CHILD_VARIABLE in os.environ:
        from pytest_gpuperf.hooks import child

        child.prepare(config)
    if options.told(config):
        options.config_of(config)  # wrong values are told before anything is collected
    if _is_controller(config):
        _start(config)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Find the tests that measure, and read their markers."""
    report = yield
    measuring = [
        item
        for item in report.result or ()
        if isinstance(item, pytest.Item) and options.measures(item)
    ]
    if measuring:
        _start(collector.config)
        from pytest_gpuperf.hooks import markers

        markers.read_markers(report, measuring)
    return report


@pytest.fixture
def gpuperf(request: pytest.FixtureRequest) -> GpuPerf:
    """
    Measure code, and hold it to limits and baselines.

    `gpuperf(fn, *args)` measures fn and returns its result; `gpuperf.measure`, `.steps`,
    `.range`, `.compare`, `.binary`, `.capture` and `.record` return what was measured.
    """
    from pytest_gpuperf.hooks import measuring

    return measuring.fixture_of(request.node)


def _is_controller(config: pytest.Config) -> bool:
    """Return whether xdist runs the tests in other processes, which report to this one."""
    distributed = getattr(config.option, "dist", "no") != "no"
    return distributed and not hasattr(config, "workerinput")


def _start(config: pytest.Config) -> None:
    """Register the objects that measure and judge, once."""
    # an xdist controller has the gate alone; told to collect only, it does that itself
    if any(map(config.pluginmanager.has_plugin, _OBJECTS)):
        return
    from pytest_gpuperf import hooks

    hooks.register(config)
