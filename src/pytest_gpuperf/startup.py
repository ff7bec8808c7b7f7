"""Hooks and the fixture that every start of pytest has, used or not.

Everything else is registered when the first test with a measurement is collected. If an
option names a gate, registration happens at session start, because all of the gate's
tests may be gone. In an xdist controller, which collects nothing, it happens at
configuration.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuperf import hookspecs, options

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from types import ModuleType

    from pytest_gpuperf.collect.opened_files import OpenedByTest
    from pytest_gpuperf.fixture import GpuPerf
    from pytest_gpuperf.hooks.measuring import Measuring

# The error because of which no test can be measured.
_REFUSED = pytest.StashKey[pytest.UsageError]()
_MODULE = type(sys)
_OBJECTS = ("gpuperf-measuring", "gpuperf-gate")
# What measures in each pytest of this process, the innermost last. A test may start
# another pytest.
_measuring: list[Measuring | None] = []


class _SameModule:
    """
    Loads a module again that a nested pytest removed from `sys.modules`, as it is.

    Args:
        module: The module, which its package still has as an attribute.
    """

    def __init__(self, module: ModuleType) -> None:
        self._module, self._spec = module, module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:  # noqa: ARG002 - as it must
        """Return the module."""
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        """Give the module its own spec back."""
        module.__spec__ = self._spec


def _kept_spec(fullname: str) -> ModuleSpec | None:
    package, _, name = fullname.rpartition(".")
    module = vars(sys.modules.get(package, sys)).get(name)
    if getattr(module, "__name__", "") != fullname or not isinstance(module, _MODULE):
        return None
    is_package = hasattr(module, "__path__")
    return ModuleSpec(fullname, _SameModule(module), is_package=is_package)  # type: ignore[arg-type] # duck


class PackageFinder:
    """
    Finds modules of the plugin as Python does, so that pytest's import hook need not
    read them.

    A module that a package still holds is not loaded a second time, because other modules
    hold the classes of the first.
    """

    @staticmethod
    def find_spec(
        fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module of this package, or None."""
        if not fullname.startswith("pytest_gpuperf."):
            return None
        # A reload has a target.
        kept = _kept_spec(fullname) if target is None else None
        return kept or PathFinder.find_spec(fullname, path, target)


def register(pluginmanager: pytest.PytestPluginManager, startup: ModuleType) -> None:
    """
    Register the hooks of this module, and those that other plugins may implement.

    Args:
        pluginmanager: Pytest's own.

        startup: This module. A nested pytest may have removed it from `sys.modules`.
    """
    sys.meta_path.insert(0, PackageFinder)
    # This also ends runs with wrong options, for which pytest calls no hook.
    config: Any = pluginmanager.get_plugin("pytestconfig")
    config.add_cleanup(_leave_imports)
    pluginmanager.add_hookspecs(hookspecs)
    pluginmanager.register(startup, "gpuperf-startup")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options."""
    options.declare(parser)


@pytest.hookimpl(tryfirst=True)  # A conftest.py may read files.
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Watch which project files are opened, if the run needs to know."""
    if not options.watches_files(early_config):
        return
    from pytest_gpuperf.collect.opened_files import OpenedByTest
    from pytest_gpuperf.collect.runner import ProcessRunner
    from pytest_gpuperf.collect.session import read_git

    given = early_config.invocation_params
    early_config.stash[options.REVISION] = read_git(
        ProcessRunner(), early_config.rootpath, with_parent=True
    )
    known = [str(path) for path in (early_config.inipath,) if path is not None]
    known += [
        str(given.dir / arg[1:]) for arg in given.args if str(arg).startswith("@")
    ]
    opened = OpenedByTest.of_project(str(given.dir), known=known)
    early_config.add_cleanup(opened.close)
    early_config.stash[options.OPENED] = opened
    early_config.pluginmanager.register(_FileWatch(opened))


class _FileWatch:
    """Reports the running tests to a file watch. xdist workers run several at once."""

    def __init__(self, opened: OpenedByTest) -> None:
        self._opened = opened

    def pytest_runtest_logstart(self) -> None:
        """Report the start of a test."""
        self._opened.begin()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Report the end of a test."""
        self._opened.end(nodeid)


# Before junitxml and pdb read options that children must not use.
@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker, and start at once in a process that collects nothing."""
    _measuring.append(None)
    config.add_cleanup(_end_measuring)
    options.enter(config)
    config.addinivalue_line("markers", options.MARKER)
    if options.CHILD_VARIABLE in os.environ:
        from pytest_gpuperf.hooks import child

        child.prepare(config)
    if options.STORE_VARIABLE in os.environ:
        options.take_store(config)
    if not options.is_child(config):  # An old revision may still have mistakes.
        options.check_ini(config)
    if options.is_configured(config):
        from pytest_gpuperf.settings import config_of

        config_of(config)  # Reports wrong values before collection.
    if options.is_controller(config):
        _start(config)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_cmdline_main(
    config: pytest.Config,
) -> Generator[None, int | pytest.ExitCode | None, int | pytest.ExitCode | None]:
    """Decide the exit status after all other plugins."""
    status = yield
    gate = config.pluginmanager.get_plugin("gpuperf-gate")
    if gate is None or status is None:
        return status
    last: int | pytest.ExitCode = gate.last_word(status)
    return last


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """
    Write reports with the status *interrupted*, and register a gate named by an option.
    """
    config = session.config
    if options.writes_reports(config):
        from pytest_gpuperf.errors import GpuPerfError
        from pytest_gpuperf.pipeline import keeping
        from pytest_gpuperf.settings import config_of

        # They stay interrupted unless the run ends normally.
        try:
            keeping.write_interrupted(config_of(config))
        except GpuPerfError as error:
            raise pytest.UsageError(f"gpuperf: {error}") from error
    if options.must_judge(config):
        _start(config)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Find measuring tests and read the markers."""
    report = yield
    is_file = isinstance(collector, pytest.File)
    if is_file or not (report.passed or isinstance(collector, pytest.Directory)):
        noted = collector.config.stash.setdefault(options.COLLECTED, [])
        noted.append((collector, report.passed))
    if isinstance(collector, pytest.Session) and _REFUSED in collector.config.stash:
        # A test named on the command line is collected inside this report, so the
        # UsageError became the report's error.
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
        from pytest_gpuperf.hooks.marked import read_markers

        read_markers(report, measuring)
    return report


# Without pytest's `request`, which takes as many calls as a tenth of a measured test.
@pytest.fixture
def gpuperf() -> GpuPerf:
    """
    Measure code and compare the results with limits and baselines.

    `gpuperf(fn, *args)` measures fn and returns the function's result.
    `gpuperf.measure`, `.steps`, `.range`, `.compare`, `.binary`, `.capture` and
    `.record` return the measured values.
    """
    measuring = _measuring[-1]
    if measuring is None:
        from pytest_gpuperf.hooks.measuring import not_marked

        raise not_marked()
    return measuring.fixture()


def _leave_imports() -> None:
    # A test that started this pytest may have put the list back before.
    if PackageFinder in sys.meta_path:
        sys.meta_path.remove(PackageFinder)


def _end_measuring() -> None:
    _measuring.pop()


def _start(config: pytest.Config) -> None:
    # An xdist controller has only the gate. With --collect-only, it collects tests
    # itself.
    if any(map(config.pluginmanager.has_plugin, _OBJECTS)):
        return
    from pytest_gpuperf import hooks

    _measuring[-1] = hooks.register(config)


def __dir__() -> list[str]:
    """Return the hooks and the fixture. pytest looks at each name of a plugin twice."""
    return [name for name in globals() if name.startswith(("pytest_", "gpuperf"))]
