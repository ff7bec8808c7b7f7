"""Measure the tests of one process."""

from __future__ import annotations

import sys
from contextlib import suppress
from functools import partial
from os import environ
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

# The only private import. pytest has no public way to run a test without logging its
# reports.
from _pytest.runner import runtestprotocol  # noqa: TID251 - see above

from pytest_gpuperf import options
from pytest_gpuperf.collect.clock import SystemClock
from pytest_gpuperf.collect.environment import installed
from pytest_gpuperf.collect.session import collection_digest, new_session
from pytest_gpuperf.errors import (
    ConfigError,
    GpuPerfError,
    MetricUnavailableError,
    PerfAssertionError,
    ReportError,
)
from pytest_gpuperf.fixture import Figure, GpuPerf
from pytest_gpuperf.fixture.answer import Answer
from pytest_gpuperf.hooks import RAN, outcomes
from pytest_gpuperf.hooks.digests import (
    Digests,
    digests_of,
    parameters_of,
    read_functions,
)
from pytest_gpuperf.hooks.identity import KeyMaker
from pytest_gpuperf.hooks.marked import MARKED, MarkedTest, marked_of
from pytest_gpuperf.hooks.tracebacks import hide_own_frames
from pytest_gpuperf.measure.bench import Bench, bench_of
from pytest_gpuperf.measure.site import ProcessIdentity, Site
from pytest_gpuperf.measure.timing import TimingMeasurer
from pytest_gpuperf.model import codec
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.gap import GapCode
from pytest_gpuperf.model.metric import is_counter
from pytest_gpuperf.model.record import Void, VoidCode
from pytest_gpuperf.model.run import Expected, Measured
from pytest_gpuperf.model.sample import Source, Unmeasured
from pytest_gpuperf.pipeline.memory import Memory
from pytest_gpuperf.report.escape import escape
from pytest_gpuperf.report.terminal import machine_line, start_lines
from pytest_gpuperf.settings import config_of

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    from pytest_gpuperf.collect.clock import Clock
    from pytest_gpuperf.config import Plan
    from pytest_gpuperf.fixture.values import Ledger
    from pytest_gpuperf.hooks.progress import LiveLine
    from pytest_gpuperf.model.record import RecordKey
    from pytest_gpuperf.model.run import MissedAssert

# A shorter wait is not printed.
_LONG_WAIT_S = 10.0
# The skip reason that pytest gives to a test without parameters.
_NO_VALUES = "got empty parameter set"


def _count_before(
    config: pytest.Config,
    bench: Bench,
    tests: Sequence[tuple[pytest.Item, MarkedTest]],
) -> None:
    """
    Set the counters of a bench before the tests run.

    Args:
        config: The pytest config.

        bench: The bench of this process.

        tests: The tests that measure.
    """
    site, measurer = bench.site, bench.measurer
    if not isinstance(measurer, TimingMeasurer):
        return
    is_named = not {Source.NCU, Source.CUPTI}.isdisjoint(site.config.collectors)
    by_limit = any(map(is_counter, site.expected.judged))
    asking = [
        item
        for item, test in tests
        if test.plan.counters or by_limit
        if any(map(is_counter, (*test.plan.counters, *test.plan.judged)))
    ]
    if not (is_named or asking):
        return
    # Nearly no run gets here.
    from pytest_gpuperf.hooks.chip_check import count, never_runs

    if is_named or not all(map(never_runs, asking)):
        plans = [(item, test.test_id, test.plan) for item, test in tests]
        count(config, site, measurer, plans)


def _judged(tests: Sequence[MarkedTest]) -> tuple[str, ...]:
    judged: dict[str, None] = {}
    for test in tests:
        if test.plan.limits or test.plan.max_regression:
            judged |= dict.fromkeys(test.plan.judged)
    return tuple(judged)


def _write_expected(
    config: pytest.Config, key: RecordKey, count: int, round_s: float
) -> None:
    if count * round_s >= _LONG_WAIT_S:
        from pytest_gpuperf.hooks.progress import write_expected

        write_expected(config, key, count, round_s)


class Leases:
    """
    Take a turn on the GPU around every measured test.

    Args:
        bench: The bench of this process.
    """

    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    # Runs before pytest-timeout, which must not count the time spent waiting for other runs.
    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item
    ) -> Generator[None, object, object]:
        """Hold the GPU's lock while a test runs."""
        # Without a measured test, no device has been requested yet.
        if not self._bench.site.expected.test_ids:
            return (yield)
        turns = self._bench.measurer.turns
        if turns is None:
            return (yield)
        test = marked_of(item)
        with turns.working() if test is None else turns.measuring(test.test_id):
            return (yield)


# For records that come from a recording or are not used.
_UNKNOWN = Digests()
# A test whose body runs unmeasured although others are measured, and its bench.
_UNMEASURED = pytest.StashKey[tuple[MarkedTest, Bench]]()
# Raised while a record is built or written, if it contains a value of a foreign type.
_UNWRITABLE = (GpuPerfError, NotImplementedError, OverflowError, TypeError, ValueError)


def _has_no_values(item: pytest.Item) -> bool:
    # A loop, because each item of a generator is a call.
    for mark in item.own_markers:
        if str(mark.kwargs.get("reason", "")).startswith(_NO_VALUES):
            return True
    return False


def not_marked() -> ConfigError:
    """Return the error of a running test whose markers were not read."""
    test_id = environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]
    message = f"{test_id or 'a test'} requests gpuperf with getfixturevalue"
    return ConfigError(message, remedy="add gpuperf to the test's arguments")


def identity_of(workerinput: Mapping[str, Any], run_id: str | None) -> ProcessIdentity:
    """Return a process identity in a run whose controller has not loaded the gate."""
    session = replace(
        new_session(SystemClock(), run_id),
        id=workerinput["id"],
        started_unix_s=workerinput["started_unix_s"],
    )
    return ProcessIdentity(
        session=session, writer=workerinput["writer"], expected=workerinput["folder"]
    )


class _Ended(NamedTuple):
    """
    The end of a phase of a test that measured.

    Attributes:
        skipped: True if pytest reported a skip or an expected failure.
    """

    item: pytest.Item
    test: MarkedTest
    ledger: Ledger
    report: pytest.TestReport
    call: pytest.CallInfo[None]
    skipped: bool


class Measuring:
    """
    Measure the tests of a process.

    Args:
        config: The pytest config.

        bench: The bench of this process.

        memory: The stored sessions, which show how much values differ.

        judging: True to check limits. A child run only measures.
    """

    def __init__(
        self,
        config: pytest.Config,
        bench: Bench,
        memory: Memory,
        *,
        judging: bool = True,
    ) -> None:
        self.config = config
        self.bench = bench
        self.memory = memory
        self.judging = judging
        self._identifies = not bench.lenient and bench.site.config.replay is None
        self.in_worker_process = hasattr(config, "workerinput")
        self._partial_modules: dict[str, None] = {}
        self._keys = KeyMaker(config)
        self._module_of = self._keys.module_of
        # All tests, before any is left out.
        self._collected: list[pytest.Item] = []
        self._collected_ids: list[str] = []
        # The deselected tests among them, by identity.
        self._deselected: set[int] = set()
        # The tests that run, with their items, after the collection.
        self._marked: list[tuple[pytest.Item, MarkedTest]] = []
        # The ledger of the test whose body is running.
        self._ledger: Ledger | None = None
        # The test of the last hook, looked up once and not in each of its phases.
        self._item: pytest.Item | None = None
        self._test: MarkedTest | None = None
        # By the identity of an item that was collected. Looking into a stash takes 4 calls.
        self._by_item: dict[int, MarkedTest] = {}
        self._live_line = _live_line(config, bench.site.clock) if judging else None
        if judging and isinstance(bench.measurer, TimingMeasurer):
            live = self._live_line
            bench.measurer.tell(
                partial(_write_expected, config),
                sampled=None if live is None else live.sampled,
            )

    @classmethod
    def in_worker(cls, config: pytest.Config) -> Measuring:
        """Create the object of an xdist worker, which shares the session of its controller."""
        identity = config.workerinput["gpuperf"]  # type: ignore[attr-defined] # xdist's own
        read = config_of(config)
        if isinstance(identity, str):
            process = codec.from_text(identity, ProcessIdentity)
        else:
            process = identity_of(identity, read.run_id)
        site = Site.in_worker(read, process)
        # Only the controller knows a store that a variable names.
        return cls(config, bench_of(site, for_parent=True), Memory(read))

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        """
        Keep all tests, because some plugins drop tests, as for a shard, without deselecting.
        """
        self._collected.append(item)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: Sequence[pytest.Item]) -> None:
        """Keep the ids of all tests before xdist appends the group to some ids."""
        self._collected_ids = [item.nodeid for item in items]

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        """Note the modules that run only in part, because of deselected tests."""
        self._deselected.update(map(id, items))
        if options.selects_measured(self.config):
            items = [item for item in items if MARKED in item.stash]
        self._partial_modules.update(dict.fromkeys(map(self._module_of, items)))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Publish the tests that are going to measure, and the modules that run as a whole."""
        if options.only_shows(session.config):
            return
        self._marked = [
            (item, test)
            for item in session.items
            if (test := marked_of(item)) is not None
        ]
        keys = {test.test_id: test.key for _, test in self._marked if test.key}
        selection = collection_digest(options.selecting(session.config))
        collected = self._collected_ids
        # By identity, because xdist changes the node ids of groups.
        kept = set(map(id, session.items))
        left_out = [i for i in self._collected if id(i) not in kept]
        not_run = [(i, test) for i in left_out if (test := marked_of(i)) is not None]
        dropped = [test.test_id for i, test in not_run if id(i) not in self._deselected]
        here = set(map(id, self._collected))  # Not the copies of repeated tests.
        of_all = [t.test_id for i, t in (*self._marked, *not_run) if id(i) in here]
        count = len(set(of_all))
        measuring = [item for item, _ in self._marked]
        unchanged, since, why_none = self._leave_unchanged(measuring, selection)
        self._marked = [(i, test) for i, test in self._marked if MARKED in i.stash]
        measuring = [item for item, _ in self._marked]
        tests = [test for _, test in self._marked]
        self.pytest_deselected(left_out)
        self._collected.clear()
        self._deselected.clear()
        self._collected_ids = []
        read, unsure = self._modules_read()
        unsure |= dict.fromkeys(map(self._module_of, filter(_has_no_values, measuring)))
        option = session.config.option
        # With these options pytest leaves out tests during collection, without calling a hook.
        partial = bool(getattr(option, "lf", False)) or any(
            "::" in arg for arg in session.config.args
        )
        modules = dict.fromkeys(map(self._module_of, session.items))
        if partial:
            modules = {}
        elif not options.selects_part(session.config):
            modules |= read  # Some of these modules have no tests.
        self.bench.site.expect(
            Expected(
                test_ids=tuple([test.test_id for test in tests]),
                whole_modules=tuple(
                    m for m in modules if m not in self._partial_modules
                ),
                partial_modules=tuple(self._partial_modules),
                unsure_modules=tuple(unsure),
                collected=collection_digest(collected) if collected else None,
                collected_count=len(collected) or None,
                measuring_count=count or None,
                keys=keys,
                selection=selection,
                dropped=tuple(dropped),
                unchanged=unchanged,
                unchanged_since=since,
                all_changed=why_none,
                judged=_judged(tests),
            )
        )

    def _leave_unchanged(
        self, measuring: Sequence[pytest.Item], selection: str | None
    ) -> tuple[tuple[str, ...], str, str]:
        """
        Let the bodies of tests that use no changed file run unmeasured.

        They run, because a test is faster or slower after other tests.

        Returns:
            The ids of these tests, the commit since which no file has changed, and why
            there is no such test. Each is empty if it does not apply.
        """
        site = self.bench.site
        config = site.config
        judges = config.update is None and config.replay is None and not config.disable
        if not (config.changed and judges and self.judging and measuring):
            return (), "", ""
        from pytest_gpuperf.measure.bench import unmeasuring_bench
        from pytest_gpuperf.pipeline.changed import unchanged_tests

        items = {
            item.stash[MARKED].key or item.stash[MARKED].test_id: item
            for item in measuring
        }
        found = unchanged_tests(
            site,
            self.memory,
            {
                key: parameters_of(item) if hasattr(item, "callspec") else ""
                for key, item in items.items()
            },
            selection=selection,
        )
        left = [item for key, item in items.items() if key in found.keys]
        if not left:
            return (), "", found.why_none
        void = Void(
            code=VoidCode.DISABLED,
            reason=f"no file that it uses has changed since {found.commit}",
            remedy="drop --gpuperf-changed to measure it",
        )
        bench, test_ids = unmeasuring_bench(site, void), []
        for item in left:
            test = item.stash[MARKED]
            test_ids.append(test.test_id)
            del item.stash[MARKED]
            item.stash[_UNMEASURED] = test, bench
        return tuple(test_ids), found.commit, ""

    def _modules_read(self) -> tuple[dict[str, None], dict[str, None]]:
        """
        Return modules with known tests, and modules with tests that pytest may have missed.
        """
        read: dict[str, None] = {}
        unsure: dict[str, None] = {}
        for collector, is_read in self.config.stash.get(options.COLLECTED, ()):
            # A module that cannot be imported has no import name.
            with suppress(Exception):
                noted = read if is_read else unsure
                noted[self._keys.module_around(collector)] = None
        return read, unsure

    def pytest_report_collectionfinish(self) -> list[str]:
        """
        Return header lines about the GPU and the collectors, and about the machine with -v.
        """
        site, option = self.bench.site, self.config.option
        shows = self.judging and option.verbose >= 0 and not option.collectonly
        measures = site.config.replay is None and not site.config.disable
        if not (shows and measures and site.expected.test_ids):
            return []
        session, device = site.identity.session, site.device()
        lines = []
        if option.verbose > 0 or site.shard() is not None:
            lines.append(machine_line(session.machine, session.run, site.shard()))
        if device is not None:
            choice = site.choice()
            lines += start_lines(device, choice.collectors, choice.notes)
        return [line.text for line in lines]

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """Send the number of test bodies run in a worker to the controller."""
        if self.in_worker_process:
            self.config.workeroutput[RAN] = self.bench.site.ran_count  # type: ignore[attr-defined] # xdist's own

    def pytest_unconfigure(self) -> None:
        """Close device observers and the file of readings."""
        self.bench.measurer.close()
        self.bench.site.close()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(
        self, session: pytest.Session
    ) -> Generator[None, object, object]:
        """Count hardware counters in a separate process before the tests run."""
        broken = (
            session.testsfailed
            and not session.config.option.continue_on_collection_errors
        )
        if not (broken or options.only_shows(session.config)):
            self._by_item = {id(item): test for item, test in self._marked}
            self._prepare()
            _count_before(session.config, self.bench, self._marked)
        return (yield)

    def _prepare(self) -> None:
        """
        Open, read and load all files needed for measuring.

        A fixture may replace the file system while its tests run.
        """
        site = self.bench.site
        tests = [test for _, test in self._marked]
        # The measurements of other tests are decoded from the text of their reports.
        if not all(map(self._may_change, tests)):
            codec.load_types(Measured)
        limited = [1 for test in tests if self._checks_limits(test.plan)]
        if limited:  # They are judged while tests run.
            import pytest_gpuperf.hooks.limits
            import pytest_gpuperf.judge.limit
        replays = site.config.replay is not None
        if replays or site.config.disable or not site.expected.test_ids:
            return
        # The first test with a value fails with this error.
        with suppress(ReportError):
            site.prepare()
        _ = self.bench.measurer.references  # Loads the reference workloads.
        if self.bench.measurer.imported is not None:
            modules = [getattr(item, "module", None) for item, _ in self._marked]
            self.bench.measurer.imported.keep(modules)
        if site.device() is None:  # Nothing to take turns on.
            self.config.pluginmanager.unregister(name="gpuperf-leases")
        _load_events(site)
        if self._identifies:
            read_functions([item for item, _ in self._marked])
        # A test may ask for a value that is missing, or compare one, with no descriptor left.
        import pytest_gpuperf.hooks.asserts
        import pytest_gpuperf.judge.selection  # noqa: F401 - loaded in time

        if not self.judging:
            return
        # A worker gets the commit from its controller.
        if not self.in_worker_process:
            _ = site.session
        if limited:
            from pytest_gpuperf.hooks.limits import read_stored

            read_stored(tests, site, self.memory)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> bool | None:
        """
        Run a test whose outcome may still change at the end of the run.

        Its passed call and teardown reports travel inside its setup report, so that
        they are not yet counted when a regression is confirmed.
        """
        test = self._test if item is self._item else self._look_up(item)
        if test is None or not (test.may_change or self._may_change(test)):
            return None
        # pytest makes the text anew each time.
        hook, node_id, location = item.ihook, item.nodeid, item.location
        hook.pytest_runtest_logstart(nodeid=node_id, location=location)
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        for report in self._nested(test, reports):
            hook.pytest_runtest_logreport(report=report)
        hook.pytest_runtest_logfinish(nodeid=node_id, location=location)
        return True

    def _look_up(self, item: pytest.Item) -> MarkedTest | None:
        self._item, self._test = item, self._by_item.get(id(item)) or marked_of(item)
        return self._test

    def fixture(self) -> GpuPerf:
        """
        Return the fixture of the running test, created on the first call.

        Raises:
            ConfigError: The test requested gpuperf in its body, so that its markers were
                not read.
        """
        item, test, bench = self._item, self._test, self.bench
        if item is None or (test is None and _UNMEASURED not in item.stash):
            raise not_marked()
        if test is None:
            test, bench = item.stash[_UNMEASURED]
        if test.fixture is None:
            test.fixture = GpuPerf(
                test_id=test.test_id,
                plan=test.plan,
                bench=bench,
                advise=partial(_advice, item),
            )
        return test.fixture

    def _checks_limits(self, plan: Plan) -> bool:
        limited = bool(plan.limits or plan.min_grade)
        return limited and self.judging and not self.bench.site.config.disable

    def _may_change(self, test: MarkedTest) -> bool:
        if test.may_change is None:
            limited = bool(test.plan.limits or test.plan.min_grade)
            test.may_change = self.judging and self.bench.site.may_change(
                has_limits=limited
            )
        return test.may_change

    def _nested(
        self, test: MarkedTest, reports: list[pytest.TestReport]
    ) -> list[pytest.TestReport]:
        """Return the reports to log now: one report with the others inside, or all reports."""
        early = [False, False]
        if test.ended_early:
            test.ended_early = False
            early = [report.__dict__.pop("gpuperf_early", False) for report in reports]
        # The test measured in its fixtures.
        if early == [True, False]:
            setup = pytest.TestReport(
                nodeid=reports[0].nodeid,
                location=reports[0].location,
                keywords=reports[0].keywords,
                outcome="passed",
                longrepr=None,
                when="setup",
            )
            reports, early = [setup, *reports], [False, *early]
            reports[1].when = "call"
        if len(reports) != len(("setup", "call", "teardown")):
            return reports
        first, call, teardown = reports
        unsettled = (
            call.outcome == "passed" or early[1] or outcomes.passed_unexpectedly(call)
        )
        passed = first.outcome == "passed" and teardown.outcome != "failed"
        if not (passed and unsettled):
            return reports
        inside: list[object] = [call, teardown]
        if self.in_worker_process:  # Nothing but builtins may leave a worker.
            hook = self.config.hook.pytest_report_to_serializable
            inside = [hook(config=self.config, report=r) for r in (call, teardown)]
        first.gpuperf_inside = inside  # type: ignore[attr-defined] # our own, for the gate
        return [first]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Reset the state of a test, and check its requirements before its fixtures run."""
        test = self._test if item is self._item else self._look_up(item)
        if test is None:
            if _UNMEASURED in item.stash:
                item.stash[_UNMEASURED][0].fixture = None
            return
        # Those of an attempt that pytest-rerunfailures repeats.
        test.fixture, test.verdicts = None, ()
        # Digests of the first attempt are kept, because that attempt may have changed
        # its parameters.
        if self._identifies and test.digests is None:
            test.digests = digests_of(item)
        measurer, requires = self.bench.measurer, test.plan.requires
        # A test without requirements lacks at most its turn on the GPU.
        if requires or measurer.turns is not None:
            lacking = measurer.lacking(requires)
            if lacking:
                raise self.fixture().ledger.refuse("requires", lacking)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        """
        Close the ledger of a test, because later measurements would be lost.

        The live line is erased before pytest writes its own progress.
        """
        test = self._test if item is self._item else self._look_up(item)
        if test is not None and test.fixture is not None:
            test.fixture.ledger.closed = True
            self.bench.measurer.rest()
        if self._live_line is not None:
            self._live_line.end()

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """
        Measure the call of a test without the fixture, and check limits afterwards.

        pytest calls this hook for every test whose body runs. This object is registered
        during collection, so that no body has run before.
        """
        self.bench.site.ran_count += 1
        test = self._test if item is self._item else self._look_up(item)
        if test is None:
            return (yield)
        gpuperf, plan = test.fixture or self.fixture(), test.plan
        references = self.bench.measurer.references
        if references is not None:
            references.begin()
        if self._live_line is not None:
            self._live_line.begin()
        test.in_body, self._ledger = True, gpuperf.ledger
        try:
            if plan.uses_fixture:
                result = yield
            else:
                with gpuperf.range(""):
                    result = yield
        finally:
            test.in_body, self._ledger = False, None
        if references is not None:
            references.after()
        if self._checks_limits(plan):
            from pytest_gpuperf.hooks.limits import check

            check(test, gpuperf.ledger, self.bench.site.config, self.memory)
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Attach the measurements to the report, and explain missing values."""
        test = self._test if item is self._item else self._look_up(item)
        if (
            test is not None
            and call.excinfo is not None
            and not self.config.getoption("fulltrace", default=False)
        ):
            hide_own_frames(call.excinfo.value)
        report = yield
        if report.user_properties:  # Few tests have any.
            # execnet sends floats, but no instances of a subclass.
            report.user_properties = [
                (name, float(value) if isinstance(value, Figure) else value)
                for name, value in report.user_properties
            ]
        if test is None and _UNMEASURED in item.stash and outcomes.lacked_a_value(call):
            outcomes.skip(report, f"unmeasured: {escape(str(call.excinfo.value))}")  # type: ignore[union-attr] # it ended by this
        if test is None or test.fixture is None:
            return report
        ledger = test.fixture.ledger
        if call.when == "teardown":
            # Frees the samples. The report has everything else.
            # Every perf refers to its ledger, so this breaks a cycle.
            ledger.perfs.clear()
            test.fixture = None
        elif not self.bench.lenient:
            if call.excinfo is not None:
                outcomes.explain_failure(report, call)
            if test.in_body:
                report.gpuperf_part = True  # type: ignore[attr-defined] # our own, for the gate
            elif call.when == "call" or report.outcome != "passed":
                self._report(_Ended(item, test, ledger, report, call, report.skipped))
        return report

    def _report(self, ended: _Ended) -> None:
        report, call = ended.report, ended.call
        marked = hasattr(report, "wasxfail")
        if marked or report.outcome != "passed" or call.excinfo is not None:
            marked = marked or outcomes.passed_unexpectedly(report)
            if marked and not outcomes.calls_xfail(call):
                # Whether the mark expects failures that only the gate can find.
                kinds = [
                    mark.kwargs.get("raises")
                    for mark in ended.item.iter_markers("xfail")
                ]
                expects = all(
                    kind is None
                    or (
                        isinstance(kind, (type, tuple))
                        and issubclass(PerfAssertionError, kind)
                    )
                    for kind in kinds
                )
                report.gpuperf_expects = expects  # type: ignore[attr-defined] # our own
            if self._checks_limits(ended.test.plan):
                from pytest_gpuperf.hooks.limits import check_what_ended_early

                check_what_ended_early(
                    ended.test,
                    ended.ledger,
                    ended.report,
                    ended.call,
                    config=self.bench.site.config,
                    memory=self.memory,
                )
        self._attach(ended)

    def _attach(self, ended: _Ended) -> None:
        test, report = ended.test, ended.report
        try:
            measured = self._measured(ended)
            # Sent as text, because a dict of floats triples the time that xdist needs
            # for a test.
            text = codec.to_text(measured)
        except _UNWRITABLE as error:
            if report.passed:  # A failed report already gives a reason.
                outcomes.fail(report, outcomes.unwritable(error))
            return
        # The reports of such a test reach the gate unchanged.
        mine, passed = self._may_change(test), report.outcome == "passed"
        early = mine and not passed and measured.records and not measured.body_failed
        if early and not outcomes.missed_limits(measured):
            report.gpuperf_early = test.ended_early = True  # type: ignore[attr-defined] # our own, to hold it
        direct = mine and not self.in_worker_process
        report.gpuperf = measured if direct else text  # type: ignore[attr-defined] # our own, for the gate
        if not (passed and mine):
            outcomes.apply_unmeasured(report, measured, self.bench.site.config)

    def _measured(self, ended: _Ended) -> Measured:
        item, test, ledger, report, call, skipped = ended
        plan, digests = test.plan, test.digests or _UNKNOWN
        records = digests.of(ledger.records)
        refusals: tuple[Unmeasured, ...] = ()
        if ledger.refusals:
            refusals = tuple(map(_refused, ledger.refusals))
        disabled = self.bench.site.config.disable
        unasked = not records or (disabled and plan.limits)
        # Verdicts on limits give a reason as well.
        has_reason = bool(refusals or test.verdicts)
        if unasked and not has_reason and report.passed:
            refusals = (outcomes.nothing_measured(ledger.raised, disabled=disabled),)
        references = self.bench.measurer.references
        gated = plan.uses_fixture or plan.max_regression
        failed, line = call.excinfo is not None, item.location[1]
        ours = failed and (
            outcomes.missed_a_limit(call) or outcomes.lacked_a_value(call)
        )
        return Measured(
            test_id=test.test_id,
            records=self.bench.site.keep(records),
            verdicts=test.verdicts,
            refusals=refusals,
            lost=self.bench.site.told_lost(),
            references=() if references is None else references.taken(),
            # The time of a single call is not gated.
            max_regression=plan.max_regression if gated else {"time": None},
            body_failed=failed and not (ours or skipped),
            skipped=skipped and not ours,
            xfailed=skipped and not ours and hasattr(report, "wasxfail"),
            asserted=ledger.compared,
            missed=_missed_assert(ended) if failed else None,
            group=plan.group,
            positional_id=digests.positional_id,
            line=None if line is None else line + 1,
            key=test.key,
            typed=test.typed,
        )

    @pytest.hookimpl
    def pytest_assertrepr_compare(
        self, op: str, left: object, right: object
    ) -> list[str] | None:
        """Explain a failed comparison of a measured value."""
        is_measured = isinstance(left, (Figure, Answer)) or isinstance(
            right, (Figure, Answer)
        )
        if not (is_measured or (self._ledger is not None and self._ledger.card_values)):
            return None
        from pytest_gpuperf.hooks.asserts import explained

        return explained(op, left, right, self._ledger)


def _load_events(site: Site) -> None:
    """Load what times a device, which a test may be the first to use."""
    if (
        site.device() is not None
        or "torch" in sys.modules
        or installed("torch") is not None
    ):
        import pytest_gpuperf.collect.timing.events  # noqa: F401 - loaded in time


def _missed_assert(ended: _Ended) -> MissedAssert | None:
    if ended.ledger.missed is None:
        return None
    # Only a failed comparison of a measured value gets here.
    from pytest_gpuperf.hooks.asserts import missed_assert

    return missed_assert(ended.ledger, ended.call, ended.report)


def _advice(item: pytest.Item, **facts: Any) -> Any:  # noqa: ANN401 - the hook's own
    """
    Return the advice of other plugins.

    Called only when needed, because looking up the hooks of a test takes long.
    """
    return item.ihook.pytest_gpuperf_recommendations(**facts)


def _refused(error: MetricUnavailableError) -> Unmeasured:
    return Unmeasured(
        metric=error.metric,
        code=GapCode(error.code),
        reason=error.reason,
        remedy=error.remedy,
    )


def _live_line(config: pytest.Config, clock: Clock) -> LiveLine | None:
    reporter = config.pluginmanager.getplugin("terminalreporter")
    if not getattr(reporter, "isatty", False):
        return None
    from pytest_gpuperf.hooks.progress import live_line

    return live_line(config, clock)
