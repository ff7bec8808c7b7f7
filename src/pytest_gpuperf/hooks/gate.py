"""Settle the outcomes of the tests in the judging process, and confirm suspects first."""

from __future__ import annotations

import contextlib
import os
import traceback
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from pytest_gpuperf import options
from pytest_gpuperf.errors import BaselineError, GpuPerfError, RecordError
from pytest_gpuperf.hooks import (
    RAN,
    command_line,
    outcomes,
    refuse_each,
    worker_start,
)
from pytest_gpuperf.measure.site import ProcessIdentity, Site
from pytest_gpuperf.model import codec
from pytest_gpuperf.model.frozen import collector_paused, replace
from pytest_gpuperf.model.run import MachineShift, Measured
from pytest_gpuperf.model.verdict import FAILING, Cause, Outcome, Reason, Verdict
from pytest_gpuperf.pipeline import run as steps
from pytest_gpuperf.pipeline.suite import Suite
from pytest_gpuperf.report import terminal
from pytest_gpuperf.report.lines import Style
from pytest_gpuperf.report.summary import View
from pytest_gpuperf.settings import config_of

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from pytest_gpuperf.hooks.progress import ComparisonLine
    from pytest_gpuperf.model.change import Progress

# Attributes that xdist sets on an arriving report and reads in its own hooks.
_XDIST = ("node", "worker_id", "testrun_uid", "item_index")
# Characters, if the width of the terminal is unknown.
_WIDTH = 100
_MARKUP: dict[Style, dict[str, bool]] = {
    Style.GOOD: {"green": True},
    Style.BAD: {"red": True, "bold": True},
    Style.DOUBT: {"yellow": True},
    Style.FAINT: {"light": True},
}
# The exit status of a run without failures, and of a run that has not ended.
_PASSED = (0, None)
# Traceback styles that do not show the whole text of a failure.
_BRIEF = frozenset({"no", "line"})
# Name of the plugin that shows held tests.
_HELD = "gpuperf-held"


class _HeldStatus:
    """Show the provisional status of held tests. It is registered with the first of them."""

    def pytest_report_teststatus(
        self, report: pytest.TestReport
    ) -> tuple[str, str, tuple[str, dict[str, bool]]] | None:
        """Show the provisional status of a held test."""
        held = getattr(report, "gpuperf_held", None)
        return None if held is None else ("", "?", (held, {"yellow": True}))


class Gate:
    """
    Receive the measurements of the tests, and decide outcomes after the last test.

    Args:
        config: The pytest config.

        identity: The run already announced to workers, or None if the run begins now.

    Raises:
        pytest.UsageError: The baseline, the recording or the spool cannot be used.
    """

    def __init__(
        self, config: pytest.Config, identity: ProcessIdentity | None = None
    ) -> None:
        self.config = config
        read, command = config_of(config), command_line(config)
        if identity is not None:
            self.suite = Suite(Site.in_process(read, identity), command)
        else:
            try:
                self.suite = Suite.of_pytest(read, command)
            except GpuPerfError as error:
                raise pytest.UsageError(f"gpuperf: {error}") from error
        self.suite.tell = self._tell
        self.suite.looks_into = self._looks_into
        self.suite.opened = config.stash.get(options.OPENED, None)
        self.suite.site.revision = config.stash.get(options.REVISION, None)
        self.suite.looked_into = partial(options.looked_into, config)
        self._comparison: ComparisonLine | None = None
        self._held: list[tuple[Measured, pytest.TestReport, pytest.TestReport]] = []
        self._xfailed: dict[str, None] = {}
        # Ids of tests with a failed subtest.
        self._failed_parts: set[str] = set()
        # Call reports as pytest received them.
        self._calls: dict[str, pytest.TestReport] = {}
        # The report that this object logs now.
        self._logged: pytest.TestReport | None = None
        # The verdicts explained in reports, by test id.
        self._explained: dict[str, Sequence[Verdict]] = {}
        self._shifts: tuple[MachineShift, ...] = ()
        # The traceback of a failed pytest_gpuperf_run_finished hook.
        self._raised = ""
        # The reason why the exit status must not be 0.
        self._why_red = ""

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:  # noqa: ANN401 - xdist's own
        """Send the data of the run to an xdist worker."""
        node.workerinput["gpuperf"] = self.suite.site.for_worker(
            node.workerinput["workerid"]
        )
        node.workerinput |= worker_start(self.config)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self) -> None:
        """Refuse to measure with `--dist each`, before any test runs."""
        if self.suite.measured_anything():
            refuse_each(self.config)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:  # noqa: ANN401 - xdist's own
        """
        Collect the number of test bodies run in a finished worker.

        A crashed worker has none.
        """
        ran_count = getattr(node, "workeroutput", {}).get(RAN)
        if ran_count is not None:
            self.suite.worker_ran_counts.append(ran_count)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logreport(
        self, report: pytest.TestReport
    ) -> Generator[None, object, object]:
        """Take the measurements out of a report, and log or hold the reports inside."""
        if report is self._logged:  # It was taken with its setup report.
            return (yield)
        inside = report.__dict__.pop("gpuperf_inside", None)
        node_id = report.nodeid  # pytest makes the text anew each time.
        if inside is None:
            self.suite.took(node_id, report)
            self._note_phase(report)
            self._take(report)
            if report.when == "call" and self.suite.test_of(node_id):
                self._calls[node_id] = report
            return (yield)
        call, teardown = inside
        if isinstance(call, dict):  # The reports come from a worker.
            call, teardown = [self._unpacked(report, inner) for inner in inside]
        self.suite.took(node_id, report, call, teardown)
        self.suite.reported(node_id)  # All three phases have passed.
        measured = self._take(call, passed=True)
        held = None
        if measured is not None and not measured.body_failed:
            held = steps.held_as(self.suite, measured)
        if held is not None and measured is not None:
            report.gpuperf_held = held  # type: ignore[attr-defined] # for teststatus
            if not self.config.pluginmanager.hasplugin(_HELD):
                self.config.pluginmanager.register(_HeldStatus(), _HELD)
            self._held.append((measured, call, teardown))
        result = yield
        if held is None:
            self._log(call, teardown, measured)
        return result

    def pytest_runtest_logfinish(self) -> None:
        """Update the JSON report after the end of a test."""
        if self.suite.config.json is not None:
            steps.report_so_far(self.suite)

    def _unpacked(
        self, outer: pytest.TestReport, inner: dict[str, Any]
    ) -> pytest.TestReport:
        hook = self.config.hook.pytest_report_from_serializable
        report: Any = hook(config=self.config, data=inner)
        for name in _XDIST:
            if hasattr(outer, name):
                setattr(report, name, getattr(outer, name))
        return report  # type: ignore[no-any-return] # a TestReport by its hook's promise

    def _add_properties(self, report: pytest.TestReport) -> None:
        if self.suite.config.junit_properties:
            from pytest_gpuperf.report.exports import junit_properties

            judged = self.suite.judged_of(report.nodeid)
            report.user_properties += junit_properties(*judged)

    def _take(
        self, report: pytest.TestReport, *, passed: bool = False
    ) -> Measured | None:
        # Text if the report comes from a worker.
        payload = report.__dict__.pop("gpuperf", None)
        if report.when == "teardown":
            self._add_properties(report)
        measured = _measured(payload, report) if isinstance(payload, str) else payload
        if measured is None:
            return None
        if measured.test_id in self.suite.results:
            # A worker on a host without the folder of the run could not announce its tests.
            refuse_each(self.config)
        missed = outcomes.missed_limits(measured)
        early = report.outcome == "skipped" and bool(measured.records)
        judged = passed or report.outcome == "passed" or early
        failed = measured.body_failed or bool(missed)
        self.suite.receive(measured, passed=judged and not failed)
        if not passed and outcomes.passed_unexpectedly(report):
            self.suite.withdraw(measured.test_id)
        if report.outcome == "skipped" and hasattr(report, "wasxfail"):
            self._xfailed[measured.test_id] = None
        if not passed and report.failed:
            self._explained[report.nodeid] = missed
            if isinstance(report.longrepr, str):  # The text comes from a worker.
                outcomes.fail(report, report.longrepr)
        if self._failed_parts and report.nodeid in self._failed_parts:
            self._failed_parts.discard(report.nodeid)  # The test may run again.
            if not missed:
                self.suite.withdraw(measured.test_id)
        return self.suite.results[measured.test_id]

    def _note_phase(self, report: pytest.TestReport) -> None:
        if report.when == "teardown" or (report.when == "setup" and not report.passed):
            self.suite.reported(report.nodeid)
        part = report.__dict__.pop("gpuperf_part", False)
        if part and report.failed:
            self._failed_parts.add(report.nodeid)
        if report.when == "teardown" and report.failed:
            test_id = self.suite.test_of(report.nodeid)
            if test_id is not None and test_id in self.suite.passed:
                self.suite.withdraw(test_id)

    def _log(
        self,
        call: pytest.TestReport,
        teardown: pytest.TestReport,
        measured: Measured | None,
    ) -> None:
        if measured is not None:
            outcomes.apply_unmeasured(call, measured, self.suite.config)
            if outcomes.passed_unexpectedly(call):
                self.suite.withdraw(measured.test_id)
        node_id = call.nodeid
        if self.suite.test_of(node_id):
            self._calls[node_id] = call
        self._add_properties(teardown)
        for report in (call, teardown):
            self._logged = report
            self.config.hook.pytest_runtest_logreport(report=report)
        self._logged = None

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtestloop(
        self, session: pytest.Session
    ) -> Generator[None, object, object]:
        """
        Read the stored sessions before the loop, and settle every held test after it,
        even if an exception ended the loop.
        """
        try:
            self.suite.read_baseline()
        except GpuPerfError as error:
            raise pytest.UsageError(f"gpuperf: {error}") from error
        try:
            with self._heeding_exits():
                result = yield
        except BaseException as error:
            self.abandon(error)
            raise
        self.settle(session)
        return result

    @contextlib.contextmanager
    def _heeding_exits(self) -> Iterator[None]:
        """
        Let os._exit(0) in a test end with exit code 1, because the run is not judged then.
        """
        own, process = os._exit, os.getpid()

        def end(status: int) -> NoReturn:
            if status != 0 or os.getpid() != process:  # A test may fork.
                own(status)
            self._tell_of_exit()
            own(pytest.ExitCode.TESTS_FAILED)

        os._exit = end
        try:
            yield
        finally:
            if os._exit is end:
                os._exit = own

    def _tell_of_exit(self) -> None:
        """Print the test that ends the process, after suspending the output capture."""
        plugins = self.config.pluginmanager
        reporter = plugins.getplugin("terminalreporter")
        if reporter is None:
            return
        test_id = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]
        capture = plugins.getplugin("capturemanager")
        if capture is not None:
            capture.suspend(in_=True)
        reporter.ensure_newline()
        from pytest_gpuperf.report import notices

        _write(reporter, notices.ended_line(test_id), red=True, bold=True)
        reporter.flush()

    def settle(self, session: pytest.Session) -> None:
        """Decide the run after the last test, and log the held reports."""
        try:
            workers = self.config.pluginmanager.getplugin("dsession")
            if workers is not None and self.suite.will_measure_again():
                # Idle workers of xdist end, so that their GPU memory is free.
                workers.nodemanager.teardown_nodes()
            self.suite.interrupt(str(session.shouldfail or session.shouldstop or ""))
            try:
                self._shifts = steps.decide(self.suite, self._announce)
            except BaselineError as error:
                self.suite.lose_store(error)
                self._shifts = steps.decide(self.suite, self._announce)
            if self._comparison is not None:
                self._comparison.end()
        except BaseException as error:
            self.abandon(error)
            raise
        self._release()
        name = self.suite.stopped
        if name:
            is_usual = name == KeyboardInterrupt.__name__
            raise KeyboardInterrupt if is_usual else KeyboardInterrupt(name)

    def abandon(self, error: BaseException) -> None:
        """Log the held reports of a run that ended with an error."""
        # The text of an exception made to stop a run, or a sentence with its name.
        stopped = isinstance(
            error, (KeyboardInterrupt, pytest.Session.Failed, pytest.exit.Exception)
        )
        text = str(error) if stopped else ""
        self.suite.interrupt(text or f"{type(error).__name__} ended the run")
        try:
            # An incomplete run measures nothing again.
            steps.decide(self.suite)
        finally:  # No held test may be lost.
            self._release()

    def _announce(self, has_suspects: bool, expected_s: float) -> None:  # noqa: FBT001 - decide's callback
        reporter = self.config.pluginmanager.getplugin("terminalreporter")
        if reporter is None or not self._held:
            return
        reporter.ensure_newline()
        distributed = self.config.pluginmanager.hasplugin("dsession")
        if reporter.verbosity < distributed:
            # The progress letters of xdist and of -q are not on the line of a file.
            reporter.line("")
        count = len(self._held)
        config = self.suite.config
        starts = config.replay is None and self.suite.completeness().complete
        confirm = config.confirm if starts and has_suspects else None
        against = config.against if starts else None
        from pytest_gpuperf.report import notices

        line = notices.held_line(
            count, confirm, against, config.confirm_by, expected_s=expected_s
        )
        _write(reporter, line)
        # A log shows the line before the time is spent.
        reporter.flush()

    def _tell(self, progress: Progress) -> None:
        """Print the progress of a comparison, of which most runs have none."""
        if self._comparison is None:
            reporter = self.config.pluginmanager.getplugin("terminalreporter")
            if reporter is None or reporter.verbosity < 0:
                return
            from pytest_gpuperf.hooks.progress import ComparisonLine

            self._comparison = ComparisonLine(reporter, lambda: _width(reporter))
        self._comparison.tell(progress)

    def _release(self) -> None:
        """Log the held tests. A failure is expected if an xfail mark expects it."""
        for measured, call, teardown in self._held:
            failures = self.suite.failures_of(measured.test_id)
            if not failures:
                self._log(call, teardown, measured)
                continue
            from pytest_gpuperf.hooks.failures import ending_text, failure_text

            config = replace(self.suite.config, option_texts=self.suite.option_texts)
            ending = ending_text(call)
            text = failure_text(failures, config)
            text = "\n".join(filter(None, (text, ending)))
            self._explained[call.nodeid] = failures
            expected = outcomes.expected_failure(call)
            meant = call.__dict__.pop("gpuperf_expects", False)
            # A mark never expects an undecided verdict.
            loud = any(verdict.outcome in FAILING for verdict in failures)
            if expected is None or not (meant and loud):
                outcomes.fail(call, text)
                self._xfailed.pop(measured.test_id, None)
            else:
                outcomes.expect_failure(call, expected, text)
                self._xfailed[measured.test_id] = None
            self._log(call, teardown, None)
        self._held.clear()

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """
        Store and report the run.

        A run that was to compare something and measured nothing is finished as well,
        and can fail. A shard without a test to measure reports that it ended.
        """
        suite = self.suite
        if not suite.measured_anything():
            compares = options.must_judge(self.config) and (
                suite.config.against is not None or bool(suite.absent())
            )
            is_part = suite.site.shard() is not None
            if not (compares or (is_part and options.writes_reports(self.config))):
                suite.tidy()
                return
        self._complain(passes=session.exitstatus in _PASSED)
        run = steps.finish(
            self.suite, xfailed=tuple(self._xfailed), shifts=self._shifts
        )
        try:
            self.config.hook.pytest_gpuperf_run_finished(config=self.config, run=run)
        except Exception as error:  # noqa: BLE001 - raised here, no failure would be printed
            self._raised = traceback.format_exc()
            name = type(error).__name__
            self.suite.complain(
                f"a hook pytest_gpuperf_run_finished raised {name}, so the run fails; its "
                "traceback is above: correct the hook"
            )
        self._why_red = next(iter(suite.complaints), "")
        fatal = suite.fatal_tests()
        for test_id in suite.results:
            failures = suite.failures_of(test_id) if test_id in fatal else ()
            if failures and test_id not in self._xfailed:
                from pytest_gpuperf.report import notices

                self._why_red = notices.decided_line(failures[0])
                break
        if self.suite.complaints and session.exitstatus in _PASSED:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def last_word(self, status: int | pytest.ExitCode) -> int | pytest.ExitCode:
        """Return the exit status, corrected if a plugin set 0 although the run fails."""
        if status not in _PASSED or not self._why_red:
            return status
        reporter = self.config.pluginmanager.getplugin("terminalreporter")
        if reporter is not None:
            from pytest_gpuperf.report import notices

            _write(reporter, notices.status_line(self._why_red), red=True, bold=True)
        return pytest.ExitCode.TESTS_FAILED

    def _looks_into(self, module: str) -> bool:
        """
        Return True if pytest looked for tests in the module of a key.

        The module file may be gone.
        """
        if options.selects_part(self.config):
            return False
        start, option = self.config.invocation_params.dir, self.config.option
        checkout = self.suite.config.checkout
        shown = checkout.id_of(module)
        is_below = checkout.rootdir == "" or shown != module
        path = _plain(
            self.config.rootpath / shown if is_below else Path(checkout.root, module)
        )
        ignored = [_plain(start / text) for text in option.ignore or ()]
        globs = [str(start / text) for text in option.ignore_glob or ()]
        if (
            any(path == one or one in path.parents for one in ignored)
            or any(fnmatch(str(path), pattern) for pattern in globs)
            or shown.startswith(tuple(option.deselect or ()))
        ):
            return False
        places = [_plain(start / str(arg)) for arg in self.config.args]
        return any(self._finds(place, path) for place in places)

    def _finds(self, place: Path, path: Path) -> bool:
        if path == place:
            return True
        if place not in path.parents:
            return False
        folders = path.relative_to(place).parts[:-1]
        closed = self.config.getini("norecursedirs")
        if any(fnmatch(name, pattern) for name in folders for pattern in closed):
            return False
        text = path.as_posix()  # A pattern may name folders.
        files = self.config.getini("python_files")
        return any(fnmatch(text, f"*/{pattern}") for pattern in files)

    def _complain(self, *, passes: bool) -> None:
        """
        Fail the run for verdicts that pytest has not reported as failures.

        Another plugin may have reported them as a pass. If pytest passes, the run may also
        have ended before suspects are decided, for example by `pytest.exit`.
        """
        fatal = self.suite.fatal_tests()
        for node_id, report in self._calls.items() if fatal else ():
            test_id = self.suite.test_of(node_id)
            if test_id is None or report.failed or test_id in self._xfailed:
                continue
            failures = self.suite.failures_of(test_id)
            if failures:
                from pytest_gpuperf.report import notices

                self.suite.complain(notices.overruled_line(failures[0]))
        undecided = dict.fromkeys(
            verdict.key.test_id
            for verdict in self.suite.verdicts
            if verdict.reason is Reason.INCOMPLETE_RUN
            or verdict.cause is Cause.ENDED_EARLY
        )
        gates = self.suite.config.baseline_named and self.suite.config.update is None
        if passes and undecided and gates:
            from pytest_gpuperf.report import notices

            self.suite.complain(notices.undecided_line([*undecided]))

    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter
    ) -> None:
        """Print the table, the explanations and the number of judged tests."""
        run = self.suite.run
        if run is None:
            return
        width, verbose = _width(terminalreporter), terminalreporter.verbosity > 0
        config = self.suite.config
        view = View(
            columns=config.columns, sort=config.sort, time_unit=config.time_unit
        )
        # The verdicts that pytest has already explained above the table.
        style = self.config.getoption("tbstyle", default="auto")
        reports = () if style in _BRIEF else terminalreporter.stats.get("failed", ())
        explained = [
            verdict
            for report in reports
            if outcomes.is_explained(report)
            for verdict in self._explained.get(report.nodeid, ())
        ]
        with collector_paused():
            title, *lines = terminal.run_lines(
                run,
                counted=self.suite.counted,
                width=width,
                verbose=verbose,
                in_failures=explained,
                view=view,
            )
        terminalreporter.write_sep("=", title.text)
        for line in lines:
            terminalreporter.write_line(line.text, **_MARKUP.get(line.style, {}))
        if config.annotations:
            from pytest_gpuperf.collect.checkout import below_workspace
            from pytest_gpuperf.report.exports import annotation_lines

            below = below_workspace(config.checkout.root)
            for text in annotation_lines(run, below=below):
                terminalreporter.write_line(text)
        details = self.suite.verbose_remarks if verbose else ()
        for remark in (*self.suite.remarks, *details):
            _write(terminalreporter, remark)
        if self._hides_reasons(terminalreporter):
            _write(terminalreporter, terminal.NEEDS_LINE)
        for frame in self._raised.splitlines():
            terminalreporter.write_line(frame, red=True)
        for complaint in self.suite.complaints:
            _write(terminalreporter, complaint, red=True, bold=True)

    def _hides_reasons(self, terminalreporter: pytest.TerminalReporter) -> bool:
        config, counted = self.suite.config, self.suite.counted
        # A strict run fails these tests, and pytest prints why a test failed.
        says_why = config.strict or terminalreporter.hasopt("skipped")
        if counted is None or config.disable or says_why:
            return False
        return bool(counted.of(Outcome.UNMEASURED))

    def pytest_unconfigure(self) -> None:
        """Remove the files of the run, and free the measurements."""
        # A run that only shows markers has no session, so pytest_sessionfinish was not called.
        self.suite.tidy()
        self.suite.forget()


def _measured(payload: str, report: pytest.TestReport) -> Measured | None:
    """
    Return the measurements that another process sent in a report.

    Unreadable measurements fail the report and return None.
    """
    try:
        return codec.from_text(payload, Measured, path=report.nodeid)
    except RecordError as error:
        outcomes.fail(report, outcomes.unreadable(error))
        return None


def _write(
    terminalreporter: pytest.TerminalReporter, text: str, **markup: bool
) -> None:
    # Only warnings and failures are fitted to the terminal.
    from pytest_gpuperf.report.explanation import fitted

    for line in fitted(text, width=_width(terminalreporter)):
        terminalreporter.write_line(line.text, **markup)


def _width(terminalreporter: pytest.TerminalReporter) -> int:
    return int(getattr(terminalreporter, "_screen_width", 0)) or _WIDTH


def _plain(path: Path) -> Path:
    """Return an absolute path without dots, as compared by pytest. Links are kept."""
    return Path(os.path.abspath(path))  # noqa: PTH100 - resolve() follows links
