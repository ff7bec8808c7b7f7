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
from pytest_gpuperf.collect.clock import SystemClock
from pytest_gpuperf.collect.loaded_files import FileRecorder
from pytest_gpuperf.collect.scratch import AppendedFile
from pytest_gpuperf.errors import RecordError
from pytest_gpuperf.hooks import digests, outcomes
from pytest_gpuperf.hooks.identity import KEY
from pytest_gpuperf.hooks.markers import TEST_ID
from pytest_gpuperf.measure.bench import Bench, bench_of
from pytest_gpuperf.measure.site import Site
from pytest_gpuperf.model import codec
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.run import ChildAnswer, Measured
from pytest_gpuperf.pipeline.repeat import LAUNCHED, ChildSpec, Launch, launch_file

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    from pytest_gpuperf.config import Config
    from pytest_gpuperf.measure.turns import TurnClient

__all__ = ["Child", "prepare"]

# options of pytest and of common plugins that write files, stop early or ask a person:
# they belong to the parent. A value of None would let an ini option of that name decide.
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
_FAILURE_LINES = 12  # of a test's failure
# a profiled process that ends so has done its work
_ENDINGS = {pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED}


def prepare(config: pytest.Config) -> None:
    """Read the task, and reset the parent's own options before other plugins read them."""
    _take_task(config)
    _prove_launch(config)
    # the second is what pytest-cov keeps, which begins before the first is complete
    for given in (config.option, config.known_args_namespace):
        for name in _RESET.keys() & vars(given).keys():
            setattr(given, name, _RESET[name])
    spec = _spec(config)
    waits = spec.turns is not None or spec.cache_control is not None
    if waits and hasattr(config.option, "timeout"):
        # pytest-timeout's: a call waits for others, or is replayed for each pass
        config.option.timeout = 0


class Child:
    """Runs the tests that the parent names, in its order, and writes down what they gave."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.spec = _spec(config)
        self._test_id = ""  # of the test that runs, as the parent calls it
        self._recorder = FileRecorder(None)
        self._answers = AppendedFile(Path(self.spec.out))
        self._turn_client: TurnClient | None = None
        if self.spec.turns is not None:
            from pytest_gpuperf.measure.turns import TurnClient

            # a pytest that a test starts has no part in the turns of its parent
            with contextlib.suppress(OSError):
                self._turn_client = TurnClient(self.spec.turns, SystemClock())

    def bench(self) -> Bench:
        """Return the bench of this process: it measures, or marks, and decides nothing."""
        read = _measuring_only(options.config_of(self.config))
        site = Site.in_process(read, self.spec.identity)
        if not self._counts:
            return bench_of(site, turn_client=self._turn_client)
        from pytest_gpuperf.collect.ncu.nvtx import find_ranges
        from pytest_gpuperf.measure.bench import marking_bench

        return marking_bench(
            site,
            tell=self._answer,
            ranges=find_ranges(),
        )

    @property
    def _counts(self) -> bool:
        """Whether a profiler watches this process."""
        return self.spec.cache_control is not None

    # outermost: plugins have shuffled the tests, and each has its key
    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> Generator[None, object, object]:
        """Keep the tests that were named, in the order they were named."""
        result = yield
        names = self.spec.names
        place = {test_id: index for index, test_id in enumerate(self.spec.test_ids)}
        chosen = []
        for item in items:
            if TEST_ID not in item.stash:
                continue
            key = item.stash.get(KEY, item.stash[TEST_ID])
            test_id = names.get(key) if names else item.stash[TEST_ID]
            if test_id is not None and test_id in place:
                # the parent's id of the test, which may hold another folder
                item.stash[TEST_ID] = test_id
                chosen.append(item)
        kept = set(map(id, chosen))
        dropped = [item for item in items if id(item) not in kept]
        if dropped:
            config.hook.pytest_deselected(items=dropped)
        items[:] = sorted(chosen, key=lambda item: place[item.stash[TEST_ID]])
        if self.spec.identity.collects:
            self._describe(items)
            items.clear()
        return result

    def _describe(self, items: Iterable[pytest.Item]) -> None:
        """Answer with the parameters of tests that do not run."""
        for item in items:
            test_id, digest = item.stash[TEST_ID], digests.parameters_of(item)
            self._answer(ChildAnswer(test_id=test_id, parameters_digest=digest))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item
    ) -> Generator[None, object, object]:
        """Note which test runs: its id here may be another than the parent's."""
        self._test_id = item.stash[TEST_ID]
        return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write a test's answer as soon as it has a value or has failed."""
        text = report.__dict__.pop("gpuperf", None)
        measured = Measured(test_id=self._test_id)
        failure = ""
        try:
            measured = codec.from_text(text, Measured) if text else measured
        except RecordError as error:
            failure = outcomes.unreadable(error)
        # what the machine does not give is not a failure of the test
        lacking = measured.refusals if report.skipped else ()
        # a test that its parent has seen end early after it measured does so here, too
        is_part = hasattr(report, "gpuperf_part") or report.when == "teardown"
        early = report.skipped and (is_part or bool(measured.records))
        expected = (
            report.passed or early or outcomes.expected_failure(report) is not None
        )
        if not (expected or lacking) and not _is_rerun(report):
            longrepr = report.longrepr
            text = longrepr[2] if isinstance(longrepr, tuple) else report.longreprtext
            failure = "\n".join(text.splitlines()[-_FAILURE_LINES:])
            # lone surrogates, which no file can hold
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
        """Note that a test begins: for the turns, and for a profiler."""
        self._answers.open()  # that there is this file says so, however it ends
        if self._turn_client is not None:
            if self.spec.loaded is not None:  # before what ran is told to have ended
                self._recorder.store_code(Path(self.spec.loaded))
            self._turn_client.begin_test(self._test_id)
        if self._counts:
            self._answer(ChildAnswer(test_id=self._test_id))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self, nextitem: pytest.Item | None) -> None:
        """End the turns with the last test: fixtures of the session end with its own."""
        if self._turn_client is not None and nextitem is None:
            self._turn_client.end_tests()

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logfinish(self) -> None:
        """Note for a profiler that a test has ended."""
        if self._counts:
            self._answer(ChildAnswer(test_id=self._test_id, ended=True))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Exit with 0 although tests failed: a profiler takes another status for a crash."""
        if self._counts and session.exitstatus in _ENDINGS:
            session.exitstatus = pytest.ExitCode.OK

    def _answer(self, answer: ChildAnswer) -> None:
        """Append a line: one write, so that a crash leaves whole ones."""
        with self._answers.appending() as (file, _):
            file.write(codec.to_text(answer).encode() + b"\n")


def _take_task(config: pytest.Config) -> None:
    """Move the task out of the environment: a pytest that a test starts must not see it."""
    config.stash[options.CHILD_TASK] = os.environ[options.CHILD_VARIABLE]
    if not options.is_controller(config):  # whose workers are the ones that measure
        del os.environ[options.CHILD_VARIABLE]


def _prove_launch(config: pytest.Config) -> None:
    """
    Say how this process was started; run nothing if that is not as the parent was.

    A launcher writes its files after pytest, by names from the folder: what it leaves is
    put beside the answers.

    Raises:
        pytest.UsageError: It was started otherwise.
    """
    spec = _spec(config)
    if spec.launch is None or hasattr(config, "workerinput"):
        return
    file = launch_file(spec.out)
    code = _start_found(config, spec.launch)
    try:
        file.touch(exist_ok=False)
    except FileExistsError:  # a launcher that forks, or calls pytest.main again
        code = "twice"
    with file.open("a", encoding="utf-8") as opened:
        opened.write(f"{code}\n")
    config.add_cleanup(partial(os.chdir, file.parent))
    # Another pytest in this process must not run as if it were a user's own.
    variable, task = options.CHILD_VARIABLE, config.stash[options.CHILD_TASK]
    config.add_cleanup(partial(os.environ.__setitem__, variable, task))
    if code != LAUNCHED:
        message = f"gpuperf: this process was not started as its parent was ({code})"
        raise pytest.UsageError(message)


def _start_found(config: pytest.Config, launch: Launch) -> str:
    """Return the code of how this process was started."""
    if tuple(sys.orig_argv[1:]) != launch.argv:
        return "other-command"
    args = tuple(str(arg) for arg in config.invocation_params.args)
    return LAUNCHED if args == launch.args else "other-arguments"


def _spec(config: pytest.Config) -> ChildSpec:
    """Return what the parent asks of this run."""
    text = Path(config.stash[options.CHILD_TASK]).read_bytes()
    return codec.from_text(text, ChildSpec)


def _is_rerun(report: pytest.TestReport) -> bool:
    """Return whether pytest-rerunfailures is going to run the test once more."""
    outcome: str = report.outcome  # it adds a fourth to pytest's three
    return outcome == "rerun"


def _measuring_only(config: Config) -> Config:
    """Return the parent's config without all that judges, keeps or repeats."""
    return replace(
        config,
        baseline=None,
        baseline_named=False,
        update=None,
        strict=False,
        min_judged=None,
        confirm=0,
        against=None,
        runs=1,
        record=None,
        json=None,
        replay=None,
    )
