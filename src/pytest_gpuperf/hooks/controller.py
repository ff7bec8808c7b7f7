"""The controller of pytest-xdist, before a test has measured."""

from __future__ import annotations

import os
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuperf.collect.clock import SystemClock
from pytest_gpuperf.collect.scratch import ScratchFolder
from pytest_gpuperf.hooks import refuse_each, worker_start
from pytest_gpuperf.settings import config_of

if TYPE_CHECKING:
    from collections.abc import Generator

    from pytest_gpuperf.hooks.gate import Gate

# Attributes that a worker sets on a report.
_PAYLOADS = (
    "gpuperf",
    "gpuperf_inside",
    "gpuperf_part",
)


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
