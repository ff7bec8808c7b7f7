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

if TYPE_CHECKING:
    from collections.abc import Generator

    from pytest_gpuperf.hooks.gate import Gate
    from pytest_gpuperf.pipeline.repeat import CommandLine

__all__ = [
    "RAN",
    "Controller",
    "command_line",
    "refuse_each",
    "register",
    "worker_start",
]

RAN = "gpuperf_ran"  # in workeroutput: how many test bodies ran in a worker

_PAYLOADS = (
    "gpuperf",
    "gpuperf_inside",
    "gpuperf_part",
)  # what a worker puts on a report


def register(config: pytest.Config) -> None:
    """
    Register what this process needs to measure, to judge, or both.

    A worker measures; a controller judges, once a test has measured; the only process
    does both; a child run measures and writes down what it found.
    """
    manager = config.pluginmanager
    if options.is_controller(config) and not options.is_active(config):
        manager.register(Controller(config), "gpuperf-gate")
        return
    # the rooms below are imported here because this is the first use of any of them
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


class Controller:
    """
    An xdist controller of tests that may measure nothing.

    It has to be there before the loop begins, when nobody knows yet whether any test
    measures. So it loads little until a report of a measurement arrives; then it passes
    every hook on to the gate.
    """

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self._folder: ScratchFolder | None = None  # made for the first worker
        started_unix_s = SystemClock().unix_s()
        started = datetime.fromtimestamp(started_unix_s, tz=timezone.utc)
        self._run: dict[str, Any] = {
            "id": f"{started:%Y%m%dT%H%M%SZ}-{os.urandom(4).hex()}",
            "started_unix_s": started_unix_s,
        }
        self._gate: Gate | None = None
        self._ended: list[str] = []  # ids of tests, before any measured
        self._down: list[Any] = []  # workers that ended, before any test measured

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:  # noqa: ANN401 - xdist's own
        """Tell an xdist worker which run it belongs to, in builtins."""
        if self._folder is None:
            self._folder = ScratchFolder("run")
            self._run["folder"] = self._folder.path
            # also where xdist gives up before the session has begun
            self.config.add_cleanup(self._folder.remove)
        identity = {**self._run, "writer": node.workerinput["workerid"]}
        node.workerinput |= {"gpuperf": identity, **worker_start(self.config)}

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self) -> None:
        """Refuse to measure tests on each of several workers, before any test runs."""
        if self._expects():
            refuse_each(self.config)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logreport(
        self, report: pytest.TestReport
    ) -> Generator[None, object, object]:
        """Open the gate for the first measurement; leave other reports as they are."""
        if self._gate is None and any(hasattr(report, name) for name in _PAYLOADS):
            self._open()
        if self._gate is None:
            if report.when == "teardown":  # it comes whatever the others gave
                self._ended.append(report.nodeid)
            return (yield)
        return (yield from self._gate.pytest_runtest_logreport(report))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:  # noqa: ANN401 - xdist's own
        """Take how many test bodies ran in a worker that ends."""
        if self._gate is None:
            self._down.append(node)
        else:
            self._gate.pytest_testnodedown(node)

    def pytest_runtest_logfinish(self) -> None:
        """Report what was measured so far, once a test has ended."""
        if self._gate is not None:
            self._gate.pytest_runtest_logfinish()

    def pytest_report_teststatus(
        self, report: pytest.TestReport
    ) -> tuple[str, str, tuple[str, dict[str, bool]]] | None:
        """Show a held test as what it is so far."""
        return (
            None if self._gate is None else self._gate.pytest_report_teststatus(report)
        )

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtestloop(
        self, session: pytest.Session
    ) -> Generator[None, object, object]:
        """Settle what was held, whatever ended the loop."""
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
        """Store and report a run that measured."""
        if self._gate is not None:
            self._gate.pytest_sessionfinish(session)

    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter
    ) -> None:
        """Print what the run measured."""
        if self._gate is not None:
            self._gate.pytest_terminal_summary(terminalreporter)

    def last_word(self, status: int | pytest.ExitCode) -> int | pytest.ExitCode:
        """Return the exit status, which a plugin may have set over a verdict."""
        return status if self._gate is None else self._gate.last_word(status)

    def _expects(self) -> bool:
        """Return whether a worker has said that it is going to measure."""
        if self._gate is not None:
            return True
        return self._folder is not None and not self._folder.is_empty()

    def _open(self) -> Gate:
        """Return the gate; it is made by the first call."""
        if self._gate is None:
            # the rooms below are loaded here because this is the first use of them
            from pytest_gpuperf.hooks.gate import Gate
            from pytest_gpuperf.hooks.measuring import identity_of

            self._gate = Gate(self.config, identity_of({**self._run, "writer": "main"}))
            for node_id in self._ended:  # some of them came to measure, and did not
                self._gate.suite.reported(node_id)
            for node in self._down:
                self._gate.pytest_testnodedown(node)
        return self._gate


def refuse_each(config: pytest.Config) -> None:
    """
    Refuse `--dist each` of several workers, in a run that measures.

    A run has one value of each test: that of one machine would take the place of the
    other's.

    Raises:
        pytest.UsageError: It was asked for.
    """
    if config.getoption("dist", default="no") != "each":
        return
    workers = config.pluginmanager.getplugin("dsession").nodemanager.specs
    if len(workers) > 1 and not options.config_of(config).disable:
        message = (
            f"gpuperf: --dist each would measure each test on {len(workers)} workers, and "
            "a run has one value of each: start pytest once for each machine, into one "
            "store (--gpuperf-baseline); or run the tests unmeasured (--gpuperf-disable)"
        )
        raise pytest.UsageError(message)


def worker_start(config: pytest.Config) -> dict[str, dict[str, Any]]:
    """Return how the run was started, for an xdist worker: builtins alone."""
    return {
        options.WORKER_START: {
            "process": options.process_start(config),
            "folder": str(config.invocation_params.dir),
            "paths": [str(path) for path in config.getoption("file_or_dir") or ()],
            "own_basetemp": bool(config.getoption("basetemp", default=None)),
        }
    }


def command_line(config: pytest.Config) -> CommandLine:
    """Return how the run was started, whichever of its processes this is."""
    # an xdist controller that waits loads neither
    from pytest_gpuperf.config import JitCache
    from pytest_gpuperf.pipeline.repeat import CommandLine

    read = options.config_of(config)
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
