"""Measure the tests of one process."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from functools import partial
from os import environ
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuperf import options
from pytest_gpuperf.collect.clock import NS_PER_S, Clock, SystemClock
from pytest_gpuperf.collect.session import collection_digest, new_session, part_of
from pytest_gpuperf.errors import (
    ConfigError,
    GpuPerfError,
    PerfAssertionError,
    ReportError,
    UnitError,
)
from pytest_gpuperf.fixture import Figure, GpuPerf
from pytest_gpuperf.hooks import RAN, command_line, outcomes
from pytest_gpuperf.hooks.digests import Digests, digests_of, read_functions
from pytest_gpuperf.hooks.identity import KEY, TYPED, KeyMaker
from pytest_gpuperf.hooks.markers import PLAN, TEST_ID
from pytest_gpuperf.measure.bench import Bench, bench_of
from pytest_gpuperf.measure.site import ProcessIdentity, Site
from pytest_gpuperf.measure.timing import TimingMeasurer
from pytest_gpuperf.model import codec
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.gap import GapCode
from pytest_gpuperf.model.metric import is_counter
from pytest_gpuperf.model.run import Expected, Measured
from pytest_gpuperf.model.sample import Source, Unmeasured
from pytest_gpuperf.model.verdict import Outcome, Verdict
from pytest_gpuperf.pipeline.memory import Memory, slugs_of_machine
from pytest_gpuperf.report.escape import escape
from pytest_gpuperf.report.terminal import machine_line, slow_line, start_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence

    from pytest_gpuperf.config import Plan
    from pytest_gpuperf.fixture.values import Ledger
    from pytest_gpuperf.model.record import RecordKey
    from pytest_gpuperf.pipeline.isolation import CounterRequest

__all__ = [
    "FIXTURE",
    "Leases",
    "LiveLine",
    "Measuring",
    "fixture_of",
    "identity_of",
]

_LONG_NS = 2 * NS_PER_S  # a shorter measurement needs no live line
_LONG_WAIT_S = 10.0  # a shorter one needs no line that stays
_SILENT = -1  # -q says what takes long; -qq does not
_PAUSE_NS = NS_PER_S  # nothing is written between samples more often
_NO_VALUES = "got empty parameter set"  # how pytest marks a test without parameters
_NARROWEST = 20  # of what is left of the terminal's line: less says nothing
_SAVE, _RESTORE, _ERASE = "\x1b7", "\x1b8", "\x1b[K"


def _count_before(session: pytest.Session, bench: Bench) -> None:
    """
    Give a bench the counters that its tests need.

    Args:
        session: What is going to run.

        bench: The measuring equipment of this process.
    """
    site, measurer = bench.site, bench.measurer
    if not isinstance(measurer, TimingMeasurer):
        return
    plans = [(item, item.stash[PLAN]) for item in session.items if PLAN in item.stash]
    is_named = not {Source.NCU, Source.CUPTI}.isdisjoint(site.config.collectors)
    # nearly all runs end here, with nothing loaded
    if not any(
        is_named or (_names_a_counter(plan) and not _never_runs(item))
        for item, plan in plans
    ):
        return
    requests = _counter_requests(plans, site)
    if not requests:
        return
    from pytest_gpuperf.measure.counters import CuptiCounters, may_count_here
    from pytest_gpuperf.pipeline.profile import counted, refused

    refusal = refused(site)
    if refusal is not None and may_count_here(site.config.collectors, site.device()):
        measurer.counters = CuptiCounters(site, measurer.observers, instead_of=refusal)
        return
    measurer.counters = counted(
        site,
        command_line(session.config),
        requests,
        announce=lambda count: _announce(session.config, count),
        in_block=measurer.in_block,
    )


def _counter_requests(
    plans: Sequence[tuple[pytest.Item, Plan]], site: Site
) -> list[CounterRequest]:
    """Return the tests that need counters, each with its own."""
    from pytest_gpuperf.measure.counters import (
        cache_control_of,
        counter_metrics,
        made_of,
    )
    from pytest_gpuperf.pipeline.isolation import CounterRequest

    device = site.device()
    capability = None if device is None else device.compute_capability
    return [
        CounterRequest(
            test_id=item.stash[TEST_ID],
            path=str(item.path),
            metrics=metrics,
            counters=made_of(metrics, capability),
            cache_control=cache_control_of(plan),
        )
        for item, plan in plans
        if not _never_runs(item)
        and (metrics := counter_metrics(plan, site.config.collectors))
    ]


def _never_runs(item: pytest.Item) -> bool:
    """Return whether a test's marks alone say that its body is not going to run."""
    skipped = any(
        mark.name == "skip" or True in mark.args
        for mark in (*item.iter_markers("skip"), *item.iter_markers("skipif"))
    )
    return skipped or any(
        mark.kwargs.get("run") is False for mark in item.iter_markers("xfail")
    )


def _names_a_counter(plan: Plan) -> bool:
    """Return whether a test's markers name a hardware counter."""
    return any(map(is_counter, (*plan.counters, *plan.judged)))


def _announce(config: pytest.Config, count: int) -> None:
    """Say what the run is waiting for; a worker has no terminal."""
    reporter = config.pluginmanager.getplugin("terminalreporter")
    if reporter is None or hasattr(config, "workerinput"):
        return
    tests = f"{count} test{'s' * (count != 1)}"
    reporter.ensure_newline()
    reporter.write_line(f"gpuperf: counting {tests} under ncu, in a separate process")


def _write_expected(
    config: pytest.Config, key: RecordKey, count: int, round_s: float
) -> None:
    """Say how long slow calls are going to take; a worker has no terminal."""
    if count * round_s < _LONG_WAIT_S:
        return
    manager = config.pluginmanager
    reporter = manager.getplugin("terminalreporter")
    capture = manager.getplugin("capturemanager")
    if reporter is None or reporter.verbosity < _SILENT:
        return
    visible = (
        nullcontext() if capture is None else capture.global_and_fixture_disabled()
    )
    with visible:
        reporter.ensure_newline()
        reporter.write_line(slow_line(key, count, round_s))
        reporter.flush()  # a log shows it before the time is spent


class Leases:
    """
    Takes a turn on the GPU around each test that measures.

    Args:
        bench: The measuring equipment of this process.
    """

    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    # before pytest-timeout, which must not count how long others take
    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item
    ) -> Generator[None, object, object]:
        """Hold the GPU's lock while a test runs."""
        if not self._bench.site.expected.test_ids:  # nobody has asked for a device yet
            return (yield)
        turns = self._bench.measurer.turns
        if turns is None:
            return (yield)
        measures = TEST_ID in item.stash
        with turns.measuring(item.stash[TEST_ID]) if measures else turns.working():
            return (yield)


FIXTURE = pytest.StashKey[GpuPerf]()
_DIGESTS = pytest.StashKey[Digests]()
_UNKNOWN = Digests()  # of records that are of a recording, or of no use
_BENCH = pytest.StashKey[Bench]()
# what a record raises when it is built or written, where a value in it is none of ours
_UNWRITABLE = (GpuPerfError, NotImplementedError, OverflowError, TypeError, ValueError)
_BODY_RUNS = pytest.StashKey[bool]()  # a report made meanwhile is that of a subtest
_VERDICTS = pytest.StashKey[tuple[Verdict, ...]]()


def _has_no_values(item: pytest.Item) -> bool:
    """Return whether pytest found no values for a test's parameters, as of missing files."""
    reasons = (mark.kwargs.get("reason", "") for mark in item.own_markers)
    return any(str(reason).startswith(_NO_VALUES) for reason in reasons)


def fixture_of(item: pytest.Item) -> GpuPerf:
    """
    Return the fixture of one test; the same one each time.

    Raises:
        ConfigError: The test asked for it in its body, where it cannot be seen early.
    """
    if PLAN not in item.stash:
        message = f"{item.nodeid} requests gpuperf with getfixturevalue"
        raise ConfigError(message, remedy="add gpuperf to the test's arguments")
    if FIXTURE not in item.stash:
        item.stash[FIXTURE] = GpuPerf(
            test_id=item.stash[TEST_ID],
            plan=item.stash[PLAN],
            bench=item.config.stash[_BENCH],
            advise=partial(_advice, item),
        )
    return item.stash[FIXTURE]


def identity_of(workerinput: Mapping[str, Any]) -> ProcessIdentity:
    """Return a process's identity in a run whose controller has loaded nothing yet."""
    session = replace(
        new_session(SystemClock()),
        id=workerinput["id"],
        started_unix_s=workerinput["started_unix_s"],
    )
    return ProcessIdentity(
        session=session, writer=workerinput["writer"], expected=workerinput["folder"]
    )


class Measuring:
    """
    Wraps every test that measures.

    Args:
        config: The pytest config.

        bench: The measuring equipment of this process.

        memory: What the baseline knows of how much values differ.

        judging: Whether limits are held; a child run only measures.
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
        config.stash[_BENCH] = bench
        self.in_worker_process = hasattr(config, "workerinput")
        self._partial_modules: dict[str, None] = {}
        self._keys = KeyMaker(config)
        self._module_of = self._keys.module_of
        self._collected: list[pytest.Item] = []  # before any is left out
        self._collected_ids: list[str] = []
        self._deselected: set[int] = set()  # of these, by identity
        self._ledger: Ledger | None = None  # of the test whose body runs
        self._live_line = _live_line(config, bench.site.clock) if judging else None
        if judging and isinstance(bench.measurer, TimingMeasurer):
            live = self._live_line
            bench.measurer.tell(
                partial(_write_expected, config),
                sampled=None if live is None else live.sampled,
            )

    @classmethod
    def in_worker(cls, config: pytest.Config) -> Measuring:
        """Return that of an xdist worker, which shares its controller's session."""
        identity = config.workerinput["gpuperf"]  # type: ignore[attr-defined] # xdist's own
        read = options.config_of(config)
        if isinstance(identity, str):
            told = codec.from_text(identity, ProcessIdentity)
        else:
            told = identity_of(identity)
        site = Site.in_worker(read, told)
        return cls(config, bench_of(site), Memory(read))

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        """Keep all tests: some plugins drop a part, as a shard, without deselecting it."""
        self._collected.append(item)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: Sequence[pytest.Item]) -> None:
        """Keep the ids of all tests: xdist appends a group to some later."""
        self._collected_ids = [item.nodeid for item in items]

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        """Note the modules of which some tests do not run that may measure."""
        self._deselected.update(map(id, items))
        if options.selects_measured(self.config):
            items = [item for item in items if TEST_ID in item.stash]
        self._partial_modules.update(dict.fromkeys(map(self._module_of, items)))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Say which tests are going to measure, and which modules run as a whole."""
        if options.only_shows(session.config):
            return
        measuring = [i for i in session.items if TEST_ID in i.stash]
        collected = self._collected_ids
        kept = set(map(id, session.items))  # xdist changes the node ids of groups
        left_out = [i for i in self._collected if id(i) not in kept]
        dropped = [
            item.stash[TEST_ID]
            for item in left_out
            if TEST_ID in item.stash and id(item) not in self._deselected
        ]
        self.pytest_deselected(left_out)
        self._collected.clear()
        self._deselected.clear()
        self._collected_ids = []
        read, unsure = self._modules_read()
        unsure |= dict.fromkeys(map(self._module_of, filter(_has_no_values, measuring)))
        option = session.config.option
        # pytest itself leaves out tests of these while it collects, without a hook
        partial = bool(getattr(option, "lf", False)) or any(
            "::" in arg for arg in session.config.args
        )
        modules = dict.fromkeys(map(self._module_of, session.items))
        if partial:
            modules = {}
        elif not options.selects_part(session.config):
            modules |= read  # of which some have no test
        self.bench.site.expect(
            Expected(
                test_ids=tuple(item.stash[TEST_ID] for item in measuring),
                whole_modules=tuple(
                    m for m in modules if m not in self._partial_modules
                ),
                partial_modules=tuple(self._partial_modules),
                unsure_modules=tuple(unsure),
                collected=collection_digest(collected) if collected else None,
                collected_count=len(collected) or None,
                shard=part_of(*options.split_part(session.config)),
                keys={
                    i.stash[TEST_ID]: i.stash[KEY] for i in measuring if KEY in i.stash
                },
                selection=collection_digest(options.selecting(session.config)),
                dropped=tuple(dropped),
            )
        )

    def _modules_read(self) -> tuple[dict[str, None], dict[str, None]]:
        """Return the modules whose tests pytest knows, and those of which it lacks some."""
        read: dict[str, None] = {}
        unsure: dict[str, None] = {}
        for collector, is_read in self.config.stash.get(options.COLLECTED, ()):
            with suppress(Exception):  # what cannot be imported has no name to import
                noted = read if is_read else unsure
                noted[self._keys.module_around(collector)] = None
        return read, unsure

    def pytest_report_collectionfinish(self) -> list[str]:
        """Say on what the tests are going to be measured, where it is a GPU."""
        site, option = self.bench.site, self.config.option
        told = self.judging and option.verbose >= 0 and not option.collectonly
        measures = site.config.replay is None and not site.config.disable
        if not (told and measures and site.expected.test_ids):
            return []
        session, device = site.identity.session, site.device()
        lines = []
        if option.verbose > 0:
            lines.append(machine_line(session.machine, session.run, site.shard()))
        if device is not None:
            choice = site.choice()
            lines += start_lines(device, choice.collectors, choice.notes)
        return [line.text for line in lines]

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """Send to an xdist controller how many test bodies ran in its worker."""
        if self.in_worker_process:
            self.config.workeroutput[RAN] = self.bench.site.ran_count  # type: ignore[attr-defined] # xdist's own

    def pytest_unconfigure(self) -> None:
        """Close what was opened to observe the device, and the readings."""
        self.bench.measurer.close()
        self.bench.site.close()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(
        self, session: pytest.Session
    ) -> Generator[None, object, object]:
        """Count what tests are going to ask for, in another process, before they run."""
        broken = (
            session.testsfailed
            and not session.config.option.continue_on_collection_errors
        )
        if not (broken or options.only_shows(session.config)):
            self._prepare(session)
            _count_before(session, self.bench)
        return (yield)

    def _prepare(self, session: pytest.Session) -> None:
        """
        Open, read and load what measuring needs of files.

        A fixture may replace the file system for as long as its tests run.
        """
        site = self.bench.site
        replays = site.config.replay is not None
        if replays or site.config.disable or not site.expected.test_ids:
            return
        with suppress(ReportError):  # the first test that has a value fails with it
            site.prepare()
        _ = self.bench.measurer.references  # which loads them
        if self._identifies:
            read_functions(i for i in session.items if TEST_ID in i.stash)
        if not self.judging:
            return
        if not self.in_worker_process:  # else its controller tells the commit
            _ = site.session
        plans = (item.stash[PLAN] for item in session.items if PLAN in item.stash)
        if any(plan.limits or plan.min_grade for plan in plans):
            import pytest_gpuperf.pipeline.verdicts  # noqa: F401 - which judge while a test runs

            device = site.device()
            gpu_name = None if device is None else device.name
            with suppress(GpuPerfError):  # likewise, of a store that cannot be read
                self.memory.read(slugs_of_machine(site.environment, gpu_name))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> bool | None:
        """
        Run a test whose outcome may still change at the end of the run.

        Its passed call and teardown reports travel inside its setup report, so that
        nobody has counted them when a regression is confirmed.
        """
        if TEST_ID not in item.stash or not self._may_change(item):
            return None
        # the one private import: pytest has no public way to run a test without
        # logging its reports
        from _pytest.runner import runtestprotocol  # noqa: TID251 - see above

        hook = item.ihook
        hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        for report in self._nested(reports):
            hook.pytest_runtest_logreport(report=report)
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def _may_change(self, item: pytest.Item) -> bool:
        """Return whether the end of the run may change this test's outcome."""
        plan = _plan(item)
        return self.judging and self.bench.site.may_change(
            has_limits=bool(plan.limits or plan.min_grade)
        )

    def _nested(self, reports: list[pytest.TestReport]) -> list[pytest.TestReport]:
        """Return the reports to log now: one that holds the others, or all of them."""
        early = [report.__dict__.pop("gpuperf_early", False) for report in reports]
        if early == [True, False]:  # it measured in its fixtures
            reports, early = [_passed_setup(reports[0]), *reports], [False, *early]
            reports[1].when = "call"
        if len(reports) != len(("setup", "call", "teardown")):
            return reports
        first, *rest = reports
        call, teardown = rest
        unsettled = call.passed or early[1] or outcomes.passed_unexpectedly(call)
        if not (first.passed and unsettled) or teardown.failed:
            return reports
        first.gpuperf_inside = (  # type: ignore[attr-defined] # our own, for the gate
            [self._serializable(report) for report in rest]
            if self.in_worker_process
            else rest
        )
        return [first]

    def _serializable(self, report: pytest.TestReport) -> object:
        """Return a report as builtins, the only things that may leave a worker."""
        hook = self.config.hook.pytest_report_to_serializable
        return hook(config=self.config, report=report)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Begin a test anew, and check what it requires before its fixtures need it."""
        if TEST_ID not in item.stash:
            return
        if FIXTURE in item.stash:  # of an attempt that pytest-rerunfailures repeats
            del item.stash[FIXTURE]
            item.stash[_VERDICTS] = ()
        # those of a first attempt stay: it may have changed its parameters
        if self._identifies and _DIGESTS not in item.stash:
            item.stash[_DIGESTS] = digests_of(item)
        lacking = self.bench.measurer.lacking(_plan(item).requires)
        if lacking:
            ledger = fixture_of(item).ledger
            raise ledger.refuse("requires", lacking)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        """
        Close the test's ledger: what is measured after this would be lost.

        What is written beside the progress is taken back, before pytest writes there.
        """
        if FIXTURE in item.stash:
            item.stash[FIXTURE].ledger.closed = True
            self.bench.measurer.rest()
        if self._live_line is not None:
            self._live_line.end()

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """
        Measure the call of a test without the fixture, and hold limits after it.

        pytest calls this for each test whose body runs. This object is registered while
        tests are collected, so that none has run before.
        """
        self.bench.site.ran_count += 1
        if TEST_ID not in item.stash:
            return (yield)
        gpuperf, plan = fixture_of(item), _plan(item)
        references = self.bench.measurer.references
        if references is not None:
            references.begin()
        if self._live_line is not None:
            self._live_line.begin()
        item.stash[_BODY_RUNS], self._ledger = True, gpuperf.ledger
        try:
            if plan.uses_fixture:
                result = yield
            else:
                with gpuperf.range(""):
                    result = yield
        finally:
            del item.stash[_BODY_RUNS]
            self._ledger = None
        if references is not None:
            references.after()
        if self.judging and not self.bench.site.config.disable:
            self._hold_limits(item, gpuperf, plan)
        return result

    def _hold_limits(self, item: pytest.Item, gpuperf: GpuPerf, plan: Plan) -> None:
        """Judge the limits of a test whose body passed, and raise what was missed."""
        try:
            verdicts = self._judge_limits(item, gpuperf.ledger, plan)
        except UnitError as error:  # of the marker: a traceback would show our own code
            raise pytest.fail.Exception(_of_limit(error), pytrace=False) from None
        item.stash[_VERDICTS] = verdicts
        missed = [v for v in verdicts if v.outcome is Outcome.FAILED]
        if missed:
            text = self._missed_text(gpuperf.ledger, verdicts)
            raise PerfAssertionError(text, verdict=missed[0])

    def _judge_limits(
        self, item: pytest.Item, ledger: Ledger, plan: Plan
    ) -> tuple[Verdict, ...]:
        """
        Return a verdict for each limit of a test.

        Raises:
            UnitError: A limit has another unit than the number that the test records.
        """
        if not (plan.limits or plan.min_grade):
            return ()
        from pytest_gpuperf.pipeline.verdicts import judge_limits

        test_id = item.stash[TEST_ID]
        self.memory.learn(test_id, item.stash.get(KEY, ""))
        digests = item.stash.get(_DIGESTS, _UNKNOWN)
        verdicts = judge_limits(
            plan,
            test_id,
            digests.of(ledger.records)
            or [outcomes.record_of_nothing(test_id, plan, ledger.raised)],
            self.memory,
            grades=self.bench.site.config.grades,
        )
        if TYPED in item.stash:
            verdicts = tuple(replace(v, typed=item.stash[TYPED]) for v in verdicts)
        return verdicts

    def _missed_text(self, ledger: Ledger, verdicts: Sequence[Verdict]) -> str:
        """Return why a test fails that missed limits."""
        missed = [v for v in verdicts if v.outcome is Outcome.FAILED]
        keys = {verdict.key for verdict in missed}
        perfs = [p for p in ledger.perfs if p.ended and p.record.key in keys]
        unread = [v for v in verdicts if v.outcome is Outcome.UNMEASURED]
        told = [*missed, *unread]
        return outcomes.failure_text(told, self.bench.site.config, perfs)

    def _judge_what_ended_early(
        self, item: pytest.Item, report: pytest.TestReport, call: pytest.CallInfo[None]
    ) -> None:
        """
        Hold the limits of what a test measured before it was skipped or lacked a value.

        A missed limit fails the test, unless an xfail mark expects that. A unittest.TestCase
        gets here without an exception in its call.
        """
        ledger, config = fixture_of(item).ledger, self.bench.site.config
        lacked = outcomes.lacked_a_value(call)
        judges = self.judging and not config.disable
        if not (judges and ledger.records and (report.skipped or lacked)):
            return
        verdicts = item.stash.get(_VERDICTS, ())
        try:
            verdicts = verdicts or self._judge_limits(item, ledger, _plan(item))
        except UnitError as error:
            outcomes.fail(report, _of_limit(error))
            return
        if not lacked:  # that it has no more values is what its skip says
            verdicts = tuple(v for v in verdicts if v.outcome is not Outcome.UNMEASURED)
        item.stash[_VERDICTS] = verdicts
        expected = report.__dict__.get("gpuperf_expects", False)
        if not expected and any(v.outcome is Outcome.FAILED for v in verdicts):
            ending = outcomes.ending_text(report, call)
            text = self._missed_text(ledger, verdicts)
            outcomes.fail(report, "\n".join(filter(None, (text, ending))))
            report.when = "call"  # a test that failed: its setup has no error to repair

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Put what was measured into the report, and the unmeasured into its words."""
        whole = self.config.getoption("fulltrace", default=False)
        if TEST_ID in item.stash and call.excinfo is not None and not whole:
            outcomes.hide_own_frames(call.excinfo.value)
        report = yield
        if TEST_ID not in item.stash or call.when == "teardown":
            _only_floats(report)
            if FIXTURE in item.stash:  # with its samples: the report has the rest
                item.stash[FIXTURE].ledger.perfs.clear()  # each knows its ledger
                del item.stash[FIXTURE]
            return report
        if FIXTURE in item.stash and not self.bench.lenient:
            outcomes.explain_failure(report, call)
            if _BODY_RUNS in item.stash:
                report.gpuperf_part = True  # type: ignore[attr-defined] # our own, for the gate
            elif call.when == "call" or not report.passed:
                self._note_xfail(item, report, call)
                skipped = report.skipped
                self._judge_what_ended_early(item, report, call)
                self._attach(item, report, call, skipped=skipped)
        _only_floats(report)
        return report

    def _note_xfail(
        self, item: pytest.Item, report: pytest.TestReport, call: pytest.CallInfo[None]
    ) -> None:
        """Note whether an xfail mark of a test expects failures that the gate alone knows."""
        marked = hasattr(report, "wasxfail") or outcomes.passed_unexpectedly(report)
        if marked and not outcomes.calls_xfail(call):
            report.gpuperf_expects = _expects_regressions(item)  # type: ignore[attr-defined] # our own

    def _attach(
        self,
        item: pytest.Item,
        report: pytest.TestReport,
        call: pytest.CallInfo[None],
        *,
        skipped: bool,
    ) -> None:
        """
        Put what a test measured into its report; fail it where that cannot be done.

        Args:
            item: The test.

            report: Its report.

            call: What ended its phase.

            skipped: Whether pytest had called that a skip, or an expected failure.
        """
        try:
            measured = self._measured(item, report, call, skipped=skipped)
            # text, because a dict of floats triples what xdist needs for a test
            text = codec.to_text(measured)
        except _UNWRITABLE as error:
            if report.passed:  # what failed already says why
                outcomes.fail(report, outcomes.unwritable(error))
            return
        mine = self._may_change(item)  # then its reports reach the gate untouched
        settled = measured.body_failed or outcomes.missed_limits(measured)
        if mine and measured.records and not (report.passed or settled):
            report.gpuperf_early = True  # type: ignore[attr-defined] # our own, to hold it
        direct = mine and not self.in_worker_process
        report.gpuperf = measured if direct else text  # type: ignore[attr-defined] # our own, for the gate
        if not (report.passed and mine):
            outcomes.apply_unmeasured(report, measured, self.bench.site.config)

    def _measured(
        self,
        item: pytest.Item,
        report: pytest.TestReport,
        call: pytest.CallInfo[None],
        *,
        skipped: bool,
    ) -> Measured:
        """Return all that a test measured, as it travels."""
        ledger = fixture_of(item).ledger
        plan = _plan(item)
        digests = item.stash.get(_DIGESTS, _UNKNOWN)
        records = digests.of(ledger.records)
        verdicts = item.stash.get(_VERDICTS, ())
        refusals = [
            Unmeasured(
                metric=e.metric, code=GapCode(e.code), reason=e.reason, remedy=e.remedy
            )
            for e in ledger.refusals
        ]
        disabled = self.bench.site.config.disable
        unasked = not ledger.records or (disabled and plan.limits)
        told = bool(refusals or verdicts)  # those of limits say why, too
        if report.passed and unasked and not told:
            refusals.append(outcomes.nothing_measured(ledger.raised, disabled=disabled))
        references = self.bench.measurer.references
        ours = outcomes.missed_a_limit(call) or outcomes.lacked_a_value(call)
        return Measured(
            test_id=item.stash[TEST_ID],
            records=self.bench.site.keep(records),
            verdicts=verdicts,
            refusals=tuple(refusals),
            lost=self.bench.site.told_lost(),
            references=() if references is None else references.taken(),
            max_regression=_gates(plan),
            body_failed=call.excinfo is not None and not (ours or skipped),
            skipped=skipped and not ours,
            xfailed=skipped and not ours and hasattr(report, "wasxfail"),
            asserted=ledger.compared,
            missed=outcomes.missed_assert(ledger, call, report),
            group=plan.group,
            positional_id=digests.positional_id,
            line=None if item.location[1] is None else item.location[1] + 1,
            key=item.stash.get(KEY, ""),
            typed=item.stash.get(TYPED, ""),
        )

    @pytest.hookimpl
    def pytest_assertrepr_compare(
        self, op: str, left: object, right: object
    ) -> list[str] | None:
        """Explain a comparison of a measured value that did not hold."""
        return outcomes.explained(op, left, right, self._ledger)


def _advice(item: pytest.Item, **facts: Any) -> Any:  # noqa: ANN401 - the hook's own
    """Return what other plugins advise; a test's hooks take long to look up."""
    return item.ihook.pytest_gpuperf_recommendations(**facts)


def _plan(item: pytest.Item) -> Plan:
    """Return what the markers of a test ask for."""
    return item.stash[PLAN]


def _gates(plan: Plan) -> Mapping[str, float | None]:
    """Return the largest changes by metric; one call of a test is not a time to gate."""
    if plan.uses_fixture or plan.max_regression:
        return plan.max_regression
    return {"time": None}


def _of_limit(error: UnitError) -> str:
    """Return what is wrong with the limit of a marker."""
    return f"limit {escape(str(error))}"


def _passed_setup(report: pytest.TestReport) -> pytest.TestReport:
    """Return the report of a setup that passed, for a test that measured in its fixtures."""
    return pytest.TestReport(
        nodeid=report.nodeid,
        location=report.location,
        keywords=report.keywords,
        outcome="passed",
        longrepr=None,
        when="setup",
    )


def _expects_regressions(item: pytest.Item) -> bool:
    """Return whether the exceptions that xfail marks expect include a regression."""
    kinds = [mark.kwargs.get("raises") for mark in item.iter_markers("xfail")]
    return all(
        kind is None
        or (isinstance(kind, (type, tuple)) and issubclass(PerfAssertionError, kind))
        for kind in kinds
    )


def _only_floats(report: pytest.TestReport) -> None:
    """Turn our floats in user_properties into plain ones: execnet takes no subclass."""
    report.user_properties = [
        (name, float(value) if isinstance(value, Figure) else value)
        for name, value in report.user_properties
    ]


class LiveLine:
    """
    How far a long measurement is, beside pytest's own progress; never in a log.

    Args:
        clock: Gives the time.

        write: Writes to the terminal.

        room: Returns the characters left on its line.
    """

    def __init__(
        self, clock: Clock, write: Callable[[str], object], room: Callable[[], int]
    ) -> None:
        self._clock = clock
        self._write = write
        self._room = room
        self._begun_ns = 0
        self._written_ns = 0
        self._count = 0

    def begin(self) -> None:
        """Note that a test begins."""
        self._begun_ns = self._clock.now_ns()
        self._count, self._written_ns = 0, 0

    def sampled(self) -> None:
        """Note that the test is about to take a sample, or has begun a step."""
        self._count += 1
        now_ns = self._clock.now_ns()
        long = now_ns - self._begun_ns >= _LONG_NS
        if not long or now_ns - self._written_ns < _PAUSE_NS:
            return
        self._written_ns = now_ns
        elapsed_s = (now_ns - self._begun_ns) / NS_PER_S
        text = f" measuring, sample {self._count}, {elapsed_s:.0f} s"
        room = self._room()
        if room >= _NARROWEST:
            self._write(f"{_SAVE}{text[:room]}{_ERASE}{_RESTORE}")

    def end(self) -> None:
        """Take the line back, where one was written."""
        if self._written_ns:
            self._write(_ERASE)


def _live_line(config: pytest.Config, clock: Clock) -> LiveLine | None:
    """Return the line of this process; None: it has no terminal, or must stay quiet."""
    manager = config.pluginmanager
    reporter = manager.getplugin("terminalreporter")
    capture = manager.getplugin("capturemanager")
    if reporter is None or capture is None or hasattr(config, "workerinput"):
        return None
    if not reporter.isatty or reporter.verbosity < 0 or environ.get("TERM") == "dumb":
        return None
    writer = config.get_terminal_writer()

    def write(text: str) -> None:
        with capture.global_and_fixture_disabled():
            writer.write_raw(text, flush=True)

    # a character stays free: the cursor would stand on the next line
    return LiveLine(
        clock, write, lambda: writer.fullwidth - writer.width_of_current_line - 1
    )
