"""A fresh process that measures some tests again, for its parent."""

from __future__ import annotations

import contextlib
import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_gpuperf import options
from pytest_gpuperf.collect.appended_file import AppendedFile
from pytest_gpuperf.collect.clock import SystemClock
from pytest_gpuperf.collect.loaded_files import FileRecorder
from pytest_gpuperf.errors import RecordError
from pytest_gpuperf.hooks import digests, outcomes
from pytest_gpuperf.hooks.marked import MARKED, MarkedTest, marked_of
from pytest_gpuperf.measure.bench import Bench, bench_of
from pytest_gpuperf.measure.site import Site
from pytest_gpuperf.model import codec
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.run import ChildAnswer, Measured
from pytest_gpuperf.pipeline.repeat import LAUNCHED, ChildSpec, launch_file
from pytest_gpuperf.settings import config_of

if TYPE_CHECKING:
    from collections.abc import Generator

    from pytest_gpuperf.measure.turns import TurnClient

# Options of pytest and of common plugins that write files, stop early or wait for a user.
# They apply to the parent only. With None, an ini option of the same name would decide.
_RESET: dict[str, object] = {
    "usepdb": False,
    "trace": False,
    "maxfail": 0,
    "log_file": os.devnull,
    "xmlpath": None,
    "htmlpath": None,
    "report_log": None,
    "allure_report_dir": None,
    "cov_fail_under": None,
    "cov_report": (),
    "ctrf": None,
    "cucumber_json_path": None,
    "json_report": False,
    "nunit_xmlpath": None,
    "store_durations": False,
    "update_snapshots": False,
    "reruns": 0,
    "collectonly": False,
    "pastebin": None,
    "gpuperf_record": None,
    "gpuperf_json": None,
    "gpuperf_html": None,
    "gpuperf_markdown": None,
    "gpuperf_csv": None,
}
# The last lines of a test's failure that are kept.
_FAILURE_LINES = 12
# A profiled process with one of these exit codes has done its work.
_ENDINGS = {pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED}


def prepare(config: pytest.Config) -> None:
    """Read the task, and reset options of the parent before other plugins read them."""
    config.stash[options.CHILD_TASK] = os.environ[options.CHILD_VARIABLE]
    # A pytest started by a test must not take the task. The workers of a controller
    # measure, and inherit its environment.
    if not options.is_controller(config):
        del os.environ[options.CHILD_VARIABLE]
    _prove_launch(config)
    # pytest-cov keeps the second namespace, because it starts before the first is complete.
    for given in (config.option, config.known_args_namespace):
        for name in _RESET.keys() & vars(given).keys():
            setattr(given, name, _RESET[name])
    spec = _spec(config)
    waits = spec.turns is not None or spec.cache_control is not None
    if waits and hasattr(config.option, "timeout"):
        # The option of pytest-timeout. A call waits for other processes, or is replayed
        # for every pass.
        config.option.timeout = 0


class Child:
    """
    Run the tests named by the parent, in the parent's order, and write the results to a file.
    """

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.spec = _spec(config)
        # The parent's id of the running test.
        self._test_id = ""
        self._recorder = FileRecorder(None)
        self._answers = AppendedFile(Path(self.spec.out))
        self._turn_client: TurnClient | None = None
        if self.spec.turns is not None:
            from pytest_gpuperf.measure.turns import TurnClient

            # A pytest started by a test does not take part in the turns of its parent.
            with contextlib.suppress(OSError):
                self._turn_client = TurnClient(self.spec.turns, SystemClock())

    def bench(self) -> Bench:
        """Create the bench of the child, for measuring or for marking ranges for a profiler."""
        measuring_only = replace(
            config_of(self.config),
            baseline=None,
            baseline_named=False,
            update=None,
            strict=False,
            min_judged=None,
            confirm=0,
            against=None,
            changed=False,
            runs=1,
            record=None,
            json=None,
            replay=None,
        )
        site = Site.in_process(measuring_only, self.spec.identity)
        if not self._counts:
            return bench_of(site, turn_client=self._turn_client, for_parent=True)
        import pytest_gpuperf.fixture.placeholders  # noqa: F401 - loaded in time
        from pytest_gpuperf.collect.ncu.nvtx import find_ranges
        from pytest_gpuperf.measure.bench import marking_bench

        return marking_bench(
            site,
            tell=self._answer,
            ranges=find_ranges(),
        )

    @property
    def _counts(self) -> bool:
        return self.spec.cache_control is not None

    # Outermost, so that plugins have shuffled the tests and every test has its key.
    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> Generator[None, object, object]:
        """Keep the tests named by the parent, in the parent's order."""
        result = yield
        names = self.spec.names
        place = {test_id: index for index, test_id in enumerate(self.spec.test_ids)}
        chosen: list[tuple[pytest.Item, MarkedTest]] = []
        for item in items:
            marked = marked_of(item)
            if marked is None:
                continue
            test_id: str | None = marked.test_id
            if names:
                test_id = names.get(marked.key or marked.test_id)
            if test_id is not None and test_id in place:
                # The parent's id of the test may contain a different folder.
                marked.test_id = test_id
                chosen.append((item, marked))
        kept = {id(item) for item, _ in chosen}
        dropped = [item for item in items if id(item) not in kept]
        if dropped:
            config.hook.pytest_deselected(items=dropped)
        chosen.sort(key=lambda pair: place[pair[1].test_id])
        items[:] = [item for item, _ in chosen]
        if self.spec.identity.collects:
            for item, marked in chosen:
                digest = digests.parameters_of(item)
                test_id = marked.test_id
                self._answer(ChildAnswer(test_id=test_id, parameters_digest=digest))
            items.clear()
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item
    ) -> Generator[None, object, object]:
        """Note the parent's id of the running test, because node ids may differ here."""
        self._test_id = item.stash[MARKED].test_id
        return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write the answer of a test as soon as a value or a failure is known."""
        text = report.__dict__.pop("gpuperf", None)
        measured = Measured(test_id=self._test_id)
        failure = ""
        try:
            measured = codec.from_text(text, Measured) if text else measured
        except RecordError as error:
            failure = outcomes.unreadable(error)
        # A value that the machine does not provide is not a failure of the test.
        lacking = measured.refusals if report.skipped else ()
        # A test that ended early in the parent after measuring ends early here, too.
        is_part = hasattr(report, "gpuperf_part") or report.when == "teardown"
        early = report.skipped and (is_part or bool(measured.records))
        expected = (
            report.passed or early or outcomes.expected_failure(report) is not None
        )
        # pytest-rerunfailures adds a fourth outcome to the three of pytest.
        outcome: str = report.outcome
        if not (expected or lacking or outcome == "rerun"):
            longrepr = report.longrepr
            text = longrepr[2] if isinstance(longrepr, tuple) else report.longreprtext
            failure = "\n".join(text.splitlines()[-_FAILURE_LINES:])
            # Lone surrogates are escaped, because they cannot be written to a file.
            failure = failure.encode(errors="backslashreplace").decode()
        if measured.records or failure or lacking:
            self._answer(
                ChildAnswer(
                    test_id=self._test_id,
                    records=measured.records,
                    failure=failure,
                    unmeasured=lacking,
                    references=measured.references,
                )
            )

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self) -> None:
        """Announce the start of a test to the turn server and to a profiler."""
        # The file shows that a test began, however the process ends.
        self._answers.open()
        if self._turn_client is not None:
            # Stored before the server learns that the previous test has ended.
            if self.spec.loaded is not None:
                self._recorder.store_code(Path(self.spec.loaded))
            self._turn_client.begin_test(self._test_id)
        if self._counts:
            self._answer(ChildAnswer(test_id=self._test_id))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self, nextitem: pytest.Item | None) -> None:
        """End the turns after the last test, because session fixtures end together with it."""
        if self._turn_client is not None and nextitem is None:
            self._turn_client.end_tests()

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logfinish(self) -> None:
        """Announce the end of a test to a profiler."""
        if self._counts:
            self._answer(ChildAnswer(test_id=self._test_id, ended=True))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """
        Exit with 0 even if tests failed, because a profiler takes another status for a crash.
        """
        if self._counts and session.exitstatus in _ENDINGS:
            session.exitstatus = pytest.ExitCode.OK

    def _answer(self, answer: ChildAnswer) -> None:
        """Append a line in a single write, so that a crash leaves only whole lines."""
        with self._answers.appending() as (file, _):
            file.write(codec.to_text(answer).encode() + b"\n")


def _prove_launch(config: pytest.Config) -> None:
    """
    Record how this process was started, and stop if the parent was started differently.

    A launcher writes its files after pytest, with names relative to the current folder.
    The folder is therefore changed at the end to that of the answers.

    Raises:
        pytest.UsageError: The command line of this process differs from that of its
            parent.
    """
    spec = _spec(config)
    if spec.launch is None or hasattr(config, "workerinput"):
        return
    file = launch_file(spec.out)
    code = LAUNCHED
    if tuple(sys.orig_argv[1:]) != spec.launch.argv:
        code = "other-command"
    elif tuple(map(str, config.invocation_params.args)) != spec.launch.args:
        code = "other-arguments"
    try:
        file.touch(exist_ok=False)
    except FileExistsError:  # The launcher forks, or calls pytest.main again.
        code = "twice"
    with file.open("a", encoding="utf-8") as opened:
        opened.write(f"{code}\n")
    config.add_cleanup(partial(os.chdir, file.parent))
    # Another pytest in this process must not run as if it were a user's own.
    variable, task = options.CHILD_VARIABLE, config.stash[options.CHILD_TASK]
    config.add_cleanup(partial(os.environ.__setitem__, variable, task))
    if code != LAUNCHED:
        message = (
            f"gpuperf: this process was started differently from its parent ({code})"
        )
        raise pytest.UsageError(message)


def _spec(config: pytest.Config) -> ChildSpec:
    text = Path(config.stash[options.CHILD_TASK]).read_bytes()
    return codec.from_text(text, ChildSpec)
