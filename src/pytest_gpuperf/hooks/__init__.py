"""Room hooks: the pytest objects.

In: what pytest calls.
Out: calls of fixture and pipeline, and outcomes in pytest's own words.
Never: a measurement, a decision, arithmetic.
"""

from __future__ import annotations

import os
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuperf import options
from pytest_gpuperf.collect.clock import SystemClock
from pytest_gpuperf.collect.scratch import ScratchFolder
from pytest_gpuperf.settings import config_of

if TYPE_CHECKING:
    from collections.abc import Generator

    from pytest_gpuperf.hooks.gate import Gate
    from pytest_gpuperf.hooks.measuring import Measuring
    from pytest_gpuperf.pipeline.command_line import CommandLine

# The key in workeroutput of the number of test bodies run in a worker.
RAN = "gpuperf_ran"

# Attributes that a worker sets on a report.
_PAYLOADS = (
    "gpuperf",
    "gpuperf_inside",
    "gpuperf_part",
)


def register(config: pytest.Config) -> Measuring | None:
    """
    Register the plugin objects of this process, and return the one that measures.

    A worker measures. A controller judges once a test has measured. The only process of
    a run does both. A child run measures and writes the results to a file.
    """
    manager = config.pluginmanager
    if options.is_controller(config) and not options.is_active(config):
        manager.register(Controller(config), "gpuperf-gate")
        return None
    # Imported here, because this is the first use of these packages.
    from pytest_gpuperf.hooks.identity import Identity
    from pytest_gpuperf.hooks.measuring import Leases, Measuring
    from pytest_gpuperf.measure.bench import bench_of
    from pytest_gpuperf.pipeline.memory import Memory

    if options.is_child(config):
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
    manager.register(Identity(config), "gpuperf-identity")
    manager.register(Leases(measuring.bench), "gpuperf-leases")
    return measuring


class Controller:
    """
    An xdist controller of tests that may measure nothing.

    It must be registered before the loop begins, when it is still unknown whether any
    test measures. It therefore loads little until the first report of a measurement
    arrives, and then forwards every hook to the gate.
    """

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        # Created for the first worker.
        self._folder: ScratchFolder | None = None
        started_unix_s = SystemClock().unix_s()
        started = datetime.fromtimestamp(started_unix_s, tz=timezone.utc)
        self._run: dict[str, Any] = {
            "id": f"{started:%Y%m%dT%H%M%SZ}-{os.urandom(4).hex()}",
            "started_unix_s": started_unix_s,
        }
        self._gate: Gate | None = None
        # Ids of tests that ended before any test measured.
        self._ended: list[str] = []
        # Workers that ended before any test measured.
        self._down: list[Any] = []

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:  # noqa: ANN401 - xdist's own
        """Send the identity of the run to an xdist worker, as builtins."""
        if self._folder is None:
            self._folder = ScratchFolder("run")
            self._run["folder"] = self._folder.path
            # The folder is removed even if xdist gives up before the session begins.
            self.config.add_cleanup(self._folder.remove)
        identity = {**self._run, "writer": node.workerinput["workerid"]}
        node.workerinput |= {"gpuperf": identity, **worker_start(self.config)}

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self) -> None:
        """Refuse to measure with `--dist each`, before any test runs."""
        if self._expects():
            refuse_each(self.config)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logreport(
        self, report: pytest.TestReport
    ) -> Generator[None, object, object]:
        """Open the gate for the first measurement. Other reports stay unchanged."""
        if self._gate is None and any(hasattr(report, name) for name in _PAYLOADS):
            self._open()
        if self._gate is None:
            # The teardown is reported whether or not the other phases passed.
            if report.when == "teardown":
                self._ended.append(report.nodeid)
            return (yield)
        return (yield from self._gate.pytest_runtest_logreport(report))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:  # noqa: ANN401 - xdist's own
        """Collect the number of test bodies run in a finished worker."""
        if self._gate is None:
            self._down.append(node)
        else:
            self._gate.pytest_testnodedown(node)

    def pytest_runtest_logfinish(self) -> None:
        """Update the JSON report after the end of a test."""
        if self._gate is not None:
            self._gate.pytest_runtest_logfinish()

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtestloop(
        self, session: pytest.Session
    ) -> Generator[None, object, object]:
        """Settle the held tests after the loop, even if an exception ended the loop."""
        try:
            result = yield
        except BaseException as error:
            if self._expects():
                self._open().abandon(error)
            raise
        if self._expects():
            self._open().settle(session)
        return result

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Store and report a run with measurements."""
        if self._gate is not None:
            self._gate.pytest_sessionfinish(session)

    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter
    ) -> None:
        """Print the results of a run with measurements."""
        if self._gate is not None:
            self._gate.pytest_terminal_summary(terminalreporter)

    def last_word(self, status: int | pytest.ExitCode) -> int | pytest.ExitCode:
        """Return the exit status, corrected if a plugin set 0 over a failing verdict."""
        return status if self._gate is None else self._gate.last_word(status)

    def _expects(self) -> bool:
        if self._gate is not None:
            return True
        return self._folder is not None and not self._folder.is_empty()

    def _open(self) -> Gate:
        if self._gate is None:
            # Imported here, because this is the first use of these packages.
            from pytest_gpuperf.hooks.gate import Gate
            from pytest_gpuperf.hooks.measuring import identity_of

            run_id = config_of(self.config).run_id
            identity = identity_of({**self._run, "writer": "main"}, run_id)
            self._gate = Gate(self.config, identity)
            # Some of these tests were going to measure and did not.
            for node_id in self._ended:
                self._gate.suite.reported(node_id)
            for node in self._down:
                self._gate.pytest_testnodedown(node)
        return self._gate


def refuse_each(config: pytest.Config) -> None:
    """
    Refuse `--dist each` with several workers in a run that measures.

    A run has one value per test, so the value of one machine would replace that of
    another.

    Raises:
        pytest.UsageError: The run uses `--dist each` with several workers.
    """
    if config.getoption("dist", default="no") != "each":
        return
    workers = config.pluginmanager.getplugin("dsession").nodemanager.specs
    if len(workers) > 1 and not config_of(config).disable:
        message = (
            f"gpuperf: --dist each would measure each test on {len(workers)} workers, and "
            "a run has one value of each: start pytest once for each machine, into one "
            "store (--gpuperf-baseline); or run the tests unmeasured (--gpuperf-disable)"
        )
        raise pytest.UsageError(message)


def worker_start(config: pytest.Config) -> dict[str, dict[str, Any]]:
    """Return the start of the run for an xdist worker, in builtins only."""
    return {
        options.WORKER_START: {
            "process": options.process_start(config),
            "folder": str(config.invocation_params.dir),
            "paths": [str(path) for path in config.getoption("file_or_dir") or ()],
            "own_basetemp": bool(config.getoption("basetemp", default=None)),
        }
    }


def command_line(config: pytest.Config) -> CommandLine:
    """Return the command line of the run, in any of its processes."""
    # Imported here, so that a waiting xdist controller loads neither.
    from pytest_gpuperf.config import JitCache
    from pytest_gpuperf.pipeline.command_line import CommandLine

    read = config_of(config)
    workerinput = getattr(config, "workerinput", None) or worker_start(config)
    start = workerinput[options.WORKER_START]
    launcher = options.launcher_in(config)
    args = start["process"]["args"]
    present = {
        "xdist": hasattr(config.option, "numprocesses") or "workerid" in workerinput,
        "cacheprovider": config.pluginmanager.hasplugin("cacheprovider"),
        "pytest_cov": hasattr(config.option, "no_cov"),
        "randomly": hasattr(config.option, "randomly_seed"),
    }
    return CommandLine(
        args=tuple(args[len(launcher.added) :]),
        others=options.without_ours(args[len(launcher.added) :]),
        folder=start["folder"],
        launcher=launcher,
        paths=tuple(start["paths"]),
        variable=options.CHILD_VARIABLE,
        plugins=frozenset(name for name, active in present.items() if active),
        own_basetemp=start["own_basetemp"],
        fresh_caches=read.jit_cache is JitCache.FRESH,
    )
