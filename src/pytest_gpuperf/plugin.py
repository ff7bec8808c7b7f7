"""Door 1: what pytest finds in every start, used or not; PYTEST_DONT_REWRITE.

Everything else is registered when the first test with a measurement is collected; where a
gate was named, when the session starts, since all of its tests may be gone; in an xdist
controller, which collects nothing, when it is configured.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from typing import TYPE_CHECKING

import pytest

from pytest_gpuperf import options

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from types import ModuleType

    from pytest_gpuperf.collect.opened_files import OpenedByTest
    from pytest_gpuperf.fixture import GpuPerf

__all__ = [
    "gpuperf",
    "pytest_addhooks",
    "pytest_addoption",
    "pytest_cmdline_main",
    "pytest_configure",
    "pytest_load_initial_conftests",
    "pytest_make_collect_report",
    "pytest_sessionstart",
]

_REFUSED = pytest.StashKey[pytest.UsageError]()  # why no test can be measured
_OBJECTS = ("gpuperf-measuring", "gpuperf-gate")


class PackageFinder:
    """Finds our modules as Python does: pytest's import hook reads each of them in vain."""

    @staticmethod
    def find_spec(
        fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module of this package; None for others."""
        ours = fullname.startswith("pytest_gpuperf.")
        return PathFinder.find_spec(fullname, path, target) if ours else None


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options."""
    options.declare(parser)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Offer the plugin's own hooks; pytest calls this first in every run."""
    sys.meta_path.insert(0, PackageFinder)
    from pytest_gpuperf import hookspecs

    pluginmanager.add_hookspecs(hookspecs)


@pytest.hookimpl(tryfirst=True)  # a conftest.py may read files
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Watch which files of the project are opened, if it is compared with a revision."""
    if not options.watches_files(early_config):
        return
    from pytest_gpuperf.collect.opened_files import OpenedByTest

    given = early_config.invocation_params
    known = [str(path) for path in (early_config.inipath,) if path is not None]
    known += [
        str(given.dir / arg[1:]) for arg in given.args if str(arg).startswith("@")
    ]
    opened = OpenedByTest.of_project(str(given.dir), known=known)
    early_config.add_cleanup(opened.close)
    early_config.stash[options.OPENED] = opened
    early_config.pluginmanager.register(_FileWatch(opened))


class _FileWatch:
    """Tells a watch which test runs; workers of xdist run several at once."""

    def __init__(self, opened: OpenedByTest) -> None:
        self._opened = opened

    def pytest_runtest_logstart(self) -> None:
        """Note that a test begins."""
        self._opened.begin()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Note that a test has ended."""
        self._opened.end(nodeid)


@pytest.hookimpl(tryfirst=True)  # before junitxml and pdb read what children must not
def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker; start at once where nothing will be collected."""
    config.add_cleanup(_remove_finder)
    options.enter(config)
    config.addinivalue_line("markers", options.MARKER)
    if options.CHILD_VARIABLE in os.environ:
        from pytest_gpuperf.hooks import child

        child.prepare(config)
    if not options.is_child(config):  # an old revision may have what is repaired now
        options.check_ini(config)
    if options.is_configured(config):
        options.config_of(config)  # wrong values are told before anything is collected
    if options.is_controller(config):
        _start(config)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_cmdline_main(
    config: pytest.Config,
) -> Generator[None, int | pytest.ExitCode | None, int | pytest.ExitCode | None]:
    """Have the last word on the exit status, when all other plugins had theirs."""
    status = yield
    gate = config.pluginmanager.get_plugin("gpuperf-gate")
    if gate is None or status is None:
        return status
    last: int | pytest.ExitCode = gate.last_word(status)
    return last


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Write reports that say *interrupted*; register the gate where one was named."""
    config = session.config
    if options.writes_reports(config):
        _write_interrupted(config)
    if options.must_judge(config):
        _start(config)


def _write_interrupted(config: pytest.Config) -> None:
    """Say in its reports that the run was interrupted, until it has come to its end."""
    from pytest_gpuperf.errors import GpuPerfError
    from pytest_gpuperf.pipeline import keeping

    try:
        keeping.write_interrupted(options.config_of(config))
    except GpuPerfError as error:
        raise pytest.UsageError(f"gpuperf: {error}") from error


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Find the tests that measure, and read their markers."""
    report = yield
    is_file = isinstance(collector, pytest.File)
    if is_file or not (report.passed or isinstance(collector, pytest.Directory)):
        noted = collector.config.stash.setdefault(options.COLLECTED, [])
        noted.append((collector, report.passed))
    if isinstance(collector, pytest.Session) and _REFUSED in collector.config.stash:
        # a named test is collected inside this report, which made a test's error of it
        raise collector.config.stash[_REFUSED]
    measuring = [
        item
        for item in report.result or ()
        if isinstance(item, pytest.Item) and options.measures(item)
    ]
    if measuring:
        try:
            _start(collector.config)
        except pytest.UsageError as error:
            collector.config.stash[_REFUSED] = error
            raise
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


def _remove_finder() -> None:
    sys.meta_path[:] = [
        finder for finder in sys.meta_path if finder is not PackageFinder
    ]


def _start(config: pytest.Config) -> None:
    """Register the objects that measure and judge, once."""
    # an xdist controller has the gate alone; told to collect only, it does that itself
    if any(map(config.pluginmanager.has_plugin, _OBJECTS)):
        return
    from pytest_gpuperf import hooks

    hooks.register(config)
