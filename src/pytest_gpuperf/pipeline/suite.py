"""The collected data of a run, from its first test to its last report.

The hooks report events to the suite. The steps of pipeline/run read from and write to it.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

from pytest_gpuperf.collect.scratch import ScratchFolder
from pytest_gpuperf.errors import BaselineError, GpuPerfError
from pytest_gpuperf.judge.case import unsteady_tests
from pytest_gpuperf.judge.tally import is_fatal
from pytest_gpuperf.measure.site import Site
from pytest_gpuperf.model.codec import SCHEMA_VERSION
from pytest_gpuperf.model.environment import (
    CONDITIONS,
    Environment,
    Host,
    family_of,
)
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.metric import Family
from pytest_gpuperf.model.record import Record, RecordKey, Role, module_of
from pytest_gpuperf.model.run import (
    Completeness,
    Header,
    Measured,
    Run,
    Scope,
    TestPlace,
)
from pytest_gpuperf.model.sample import ReferenceSamples, Source
from pytest_gpuperf.model.verdict import FAILING, Verdict
from pytest_gpuperf.pipeline.command_line import CommandLine
from pytest_gpuperf.pipeline.memory import Memory, slug_of, slugs_of_machine

if TYPE_CHECKING:
    from pytest_gpuperf.collect.opened_files import OpenedByTest
    from pytest_gpuperf.config import Config
    from pytest_gpuperf.judge.rule import ComparedCase
    from pytest_gpuperf.judge.tally import Tally
    from pytest_gpuperf.model.change import Against, Progress
    from pytest_gpuperf.model.checkout import Checkout

_T = TypeVar("_T")
# A process that times reference workloads, with its host, or None for the judging host.
_Origin: TypeAlias = "tuple[Role, int, Host | None]"
# A process may have to compile everything again.
_LEAST_TIMEOUT_S = 300.0
# The time limit of a process, in durations of the run so far.
_TIMEOUT_RATIO = 10


class PhaseReport(Protocol):
    """The report of a phase of a test, as pytest has it."""

    @property
    def when(self) -> str | None:
        """The phase: "setup", "call" or "teardown"."""

    @property
    def duration(self) -> float:
        """The duration of the phase [s]."""


class Suite:
    """
    The collected data of a run of tests.

    Args:
        site: The site of the judging process.

        command: The command line of the run, for processes that measure again.

        scratch: The folder of the run, removed at the end, or None if another object
            owns it.

    Attributes:
        results: The measurements of each test, by test id.

        passed: Ids of tests whose body did not fail and that missed no limit. A test
            ended by a skip may be included.

        failed_alone: Reasons why tests gave no value in a fresh process, by test id.

        first_cases: The cases to judge from the first process, by measurement.

        repeated: The records of the same tests from fresh processes.

        suspects: Ids of the tests that fresh processes had to confirm.

        failed_fresh: Ids of tests that failed in a fresh process, or were never reached
            there.

        worker_ran_counts: Numbers of test bodies run, one per finished xdist worker.

        unsteady: Ids of the tests whose parameters differ between processes of the run.

        verdicts: The verdicts, empty until the tests have run.

        run: The whole run, or None until it has ended.

        counted: The tally of `run`, or None if it was not counted.

        remarks: Further sentences for the user.

        verbose_remarks: Further sentences for a user who asks for details.

        complaints: The reasons why the run as a whole fails, or empty.

        against: The comparison with a revision, or None.

        against_commit: The commit of the revision at the start of the run, or ""
            without a revision.

        next_report_s: The time of the next report, in seconds since the start of the
            run.

        stopped: The interrupt that ended a comparison and so the run,
            "KeyboardInterrupt" or the name of a signal, or "".

        tell: Called with the progress of a comparison.

        looks_into: Returns whether pytest looked for tests in the module of a key, even
            if the file is gone.

        opened: The files opened by the end of each test, or None if unknown.

        looked_into: Returns the files and folders from which pytest runs all tests, or
            None if only a part of their tests runs.
    """

    def __init__(
        self, site: Site, command: CommandLine, scratch: ScratchFolder | None = None
    ) -> None:
        self.site = site
        self._scratch = scratch
        self.config = site.config
        self.command = command
        self.memory = Memory(site.config)
        self.results: dict[str, Measured] = {}
        self.passed: set[str] = set()
        self.failed_alone: dict[str, str] = {}
        self.first_cases: dict[RecordKey, tuple[ComparedCase, ...]] = {}
        self.repeated: tuple[Record, ...] = ()
        self.suspects: frozenset[str] = frozenset()
        self.failed_fresh: set[str] = set()
        self.worker_ran_counts: list[int] = []
        self.unsteady: dict[str, None] = {}
        self.verdicts: tuple[Verdict, ...] = ()
        self._by_test: dict[str, list[Verdict]] = {}
        self.run: Run | None = None
        self.counted: Tally | None = None
        self.remarks: tuple[str, ...] = ()
        self.verbose_remarks: tuple[str, ...] = ()
        self.complaints: tuple[str, ...] = ()
        self.against: Against | None = None
        self.against_commit = ""
        self.next_report_s = 0.0
        self.stopped = ""
        self.tell: Callable[[Progress], object] = lambda _: None
        self.looks_into: Callable[[str], bool] = lambda _: False
        self.opened: OpenedByTest | None = None
        self.looked_into: Callable[[], Sequence[Path] | None] = lambda: None
        self._references: dict[_Origin, list[ReferenceSamples]] = {}
        # By test and phase.
        self._took_s: dict[tuple[str, str | None], float] = {}
        self._reported: set[str] = set()
        self._held: set[str] = set()
        self._interrupted = ""
        self._has_baseline = False

    @classmethod
    def of_pytest(cls, config: Config, command: CommandLine) -> Suite:
        """
        Create the suite of a run that begins now.

        Raises:
            GpuPerfError: The recording, the store or the spool cannot be used. Raised
                now rather than after all tests have run.
        """
        scratch = ScratchFolder("run")
        # Samples are only kept if an output uses them.
        samples = config.json or config.html or config.update or config.shows_samples
        spool = config.record or (scratch.path if samples else None)
        site = Site.in_main(config, spool=spool, expected=scratch.path)
        suite = cls(site, command, scratch)
        suite.memory.check()
        if config.against is not None:
            from pytest_gpuperf.collect.worktree import Repository

            revision, runner = config.against, suite.site.runner
            repository = Repository.at(command.folder, runner, revision=revision)
            suite.against_commit = repository.commit_of(revision)
        suite.site.open_folders()
        return suite

    def read_baseline(self) -> None:
        """
        Read the stored sessions of the tests that are going to measure.

        Raises:
            BaselineError: A file of these tests is unreadable.
        """
        expected = self.site.all_expected()
        if not expected.test_ids or self.config.disable:
            return
        for test_id in expected.test_ids:
            self.memory.learn(test_id, expected.keys.get(test_id, ""))
        self.memory.require(expected.judged)
        device = self.site.device()
        gpu_name = None if device is None else device.name
        self._has_baseline = True
        self.memory.read(slugs_of_machine(self.site.environment, gpu_name))

    # The methods below are called while tests run.

    def receive(self, measured: Measured, *, passed: bool) -> None:
        """
        Add the measurements of a test.

        Args:
            measured: The measurements.

            passed: True if no limit was missed and the body did not fail.
        """
        if not self.results:
            # Read the commit now and not at the end of the run.
            _ = self.site.session
            if not self._has_baseline:  # Only now are the tests of workers known.
                self._unless_lost(self.read_baseline, None)
        host = measured.records[0].host if measured.records else None
        if host is not None and host == self.site.host:
            # A worker that does not know the controller's host sends the name of its own.
            host, records = None, [replace(r, host=None) for r in measured.records]
            measured = replace(measured, records=tuple(records))
        self.results[measured.test_id] = measured
        self.memory.learn(measured.test_id, measured.key)
        if measured.lost:
            self.site.learn_lost(measured.lost)
        if measured.references:
            self.add_references(Role.MAIN, 0, measured.references, host)
        if passed:
            self.passed.add(measured.test_id)

    def withdraw(self, test_id: str) -> None:
        """Exclude a test from judging and storing, because pytest fails the test after all."""
        self.passed.discard(test_id)
        measured = self.results[test_id]
        self.results[test_id] = replace(measured, body_failed=True, skipped=False)
        self.verdicts = tuple(v for v in self.verdicts if v.key.test_id != test_id)
        self._by_test.clear()

    def drop_unsteady(self) -> None:
        """Drop the digests of parameters that differ between processes of the run."""
        unsteady = unsteady_tests(self.records())
        if unsteady:
            self.drop_parameters(unsteady)

    def drop_parameters(self, test_ids: Iterable[str]) -> None:
        """
        Drop the parameter digests of some tests, because every process has different values.
        """
        dropped = dict.fromkeys(t for t in test_ids if t in self.results)
        self.unsteady |= dropped
        for test_id in dropped:
            measured = self.results[test_id]
            for record in measured.records:
                self.first_cases.pop(record.key, None)
            records = tuple(map(self.steady, measured.records))
            self.results[test_id] = replace(measured, records=records)
        self.repeated = tuple(map(self.steady, self.repeated))

    def steady(self, record: Record) -> Record:
        """
        Return a record, without the parameter digest if processes disagree on the parameters.
        """
        if record.key.test_id not in self.unsteady:
            return record
        return replace(record, parameters_digest=None)

    def positional_ids(self) -> dict[str, str]:
        """Return the part of a test id that counts a position, by test id."""
        tests = self.results.values()
        return {t.test_id: t.positional_id for t in tests if t.positional_id}

    def reported(self, node_id: str) -> None:
        """Note the end of a test, by the id that xdist uses."""
        self._reported.add(node_id)

    def took(self, test_id: str, *phases: PhaseReport) -> None:
        """Note the durations of some phases of a test."""
        for phase in phases:
            self._took_s[test_id, phase.when] = phase.duration

    def took_s(self, test_ids: Collection[str]) -> float:
        """Return the total duration of some tests, setup and teardown included [s]."""
        durations_s = self.durations_s()
        return sum(durations_s.get(test_id, 0.0) for test_id in frozenset(test_ids))

    def durations_s(self) -> dict[str, float]:
        """Return the durations of all tests by id, setup and teardown included [s]."""
        durations_s: dict[str, float] = {}
        for (test_id, _), phase_s in self._took_s.items():
            durations_s[test_id] = durations_s.get(test_id, 0.0) + phase_s
        return durations_s

    def hold(self, test_id: str) -> None:
        """Note that the outcome of a test waits for the end of the run."""
        self._held.add(test_id)

    def will_measure_again(self) -> bool:
        """Return True if fresh processes are going to need the machine."""
        replaying = self.config.replay is not None
        return not replaying and (bool(self._held) or self.config.update is not None)

    def interrupt(self, reason: str) -> None:
        """Note the reason for an early end of the run. The first reason is kept."""
        self._interrupted = self._interrupted or reason

    def stop(self, name: str) -> None:
        """Note that Ctrl-C or a signal ended the run during a comparison."""
        self.stopped = name
        self.interrupt(f"{name} ended the run")

    # The methods below are called after the tests have run.

    def sort(self) -> None:
        """Sort the results in the order of collection, because workers finish in any order."""
        expected = dict.fromkeys(self.site.all_expected().test_ids)
        ordered = [test_id for test_id in expected if test_id in self.results]
        ordered += [test_id for test_id in self.results if test_id not in expected]
        self.results = {test_id: self.results[test_id] for test_id in ordered}

    def count_ran(self) -> None:
        """
        Store the number of test bodies run per process in the session.

        With several workers, the mean is stored. The distribution of tests over workers
        differs from run to run, but the total does not.
        """
        counts = self.worker_ran_counts or [self.site.ran_count]
        # Otherwise every worker crashed, or no test measured.
        if self.results and any(counts):
            self.site.note_ran(round(sum(counts) / len(counts)))

    def failures_of(self, test_id: str) -> tuple[Verdict, ...]:
        """
        Return the verdicts that make a test fail.

        Undecided verdicts do not count for a test ended by an expected failure. Such a
        test is never stored, and would stay *new* and undecided in every strict run.
        """
        measured = self.results.get(test_id)
        loud = measured is not None and measured.xfailed
        return tuple(
            verdict
            for verdict in self._of_test(test_id)
            if is_fatal(verdict, self.config)
            and not (loud and verdict.outcome not in FAILING)
        )

    def may_store(self, test_id: str) -> bool:
        """Return True if the values of a test may become a baseline."""
        return test_id in self.passed and not self.results[test_id].xfailed

    def test_of(self, node_id: str) -> str | None:
        """
        Return the measured test of a node id, or None.

        xdist may append a group to a node id.
        """
        for test_id in (node_id, node_id.rpartition("@")[0]):
            if test_id in self.results:
                return test_id
        return None

    def fatal_tests(self) -> frozenset[str]:
        """Return the ids of all tests of which `failures_of` may return a verdict."""
        fatal = [v.key.test_id for v in self.verdicts if is_fatal(v, self.config)]
        return frozenset(fatal)

    def _of_test(self, test_id: str) -> Sequence[Verdict]:
        if not self._by_test:
            for verdict in self.verdicts:
                self._by_test.setdefault(verdict.key.test_id, []).append(verdict)
        return self._by_test.get(test_id, ())

    def measured_anything(self) -> bool:
        """Return True if the run had tests that measure."""
        return bool(self.results) or bool(self.site.all_expected().known)

    def forget(self) -> None:
        """Free the measurements, because pytest collects garbage twice at the end."""
        self.results.clear()
        self.first_cases.clear()
        self._by_test.clear()
        self.memory.forget()
        self._references.clear()
        self.repeated = ()
        self.verdicts = ()
        self.run = None

    def sees_files(self) -> bool:
        """Return False if a test has replaced the file system the run began with."""
        if self._scratch is None:
            return True
        try:
            return Path(self._scratch.path).is_dir()
        except Exception:  # noqa: BLE001 - what a test has put into os may raise anything
            return False

    def tidy(self) -> None:
        """Close and remove the files kept for the run alone."""
        self.site.close()
        if self._scratch is not None:
            self._scratch.remove()

    def remark(self, text: str) -> None:
        """Add a sentence to the end of the output, without failing the run."""
        self.remarks += (text,)

    def remark_if_verbose(self, text: str) -> None:
        """Add a sentence to the end of the output for a user who asks for details."""
        self.verbose_remarks += (text,)

    def complain(self, *texts: str) -> None:
        """Fail the run as a whole."""
        self.complaints += texts

    def complain_of(self, error: GpuPerfError) -> None:
        """Fail the run because of an error outside of its tests."""
        self.complain(f"gpuperf: {error}")

    def lose_store(self, error: BaselineError) -> None:
        """Go on without a store that cannot be read any more, and fail the run."""
        self.complain_of(error)
        self.memory.lose(error)

    def gathered(self, header: Header, verdicts: tuple[Verdict, ...]) -> Run:
        """Return the run so far, with a header and verdicts."""
        tests = self.results.items()
        return Run(
            schema=SCHEMA_VERSION,
            header=header,
            records=self.records(),
            verdicts=verdicts,
            asserted=tuple(
                t for t, test in tests if test.asserted and t in self.passed
            ),
            missed=tuple(t.missed for _, t in tests if t.missed is not None),
            # Failed other than by an assert on a measured value.
            broken=tuple(
                t for t, test in tests if test.body_failed and test.missed is None
            ),
            skipped=tuple(t for t, test in tests if test.skipped),
            tests=tuple(
                TestPlace(
                    test_id=t,
                    line=test.line,
                    group=test.group,
                    key=test.key,
                    typed=test.typed,
                )
                for t, test in tests
            ),
        )

    def add(self, records: Sequence[Record]) -> None:
        """Add the records of fresh processes."""
        self.repeated += tuple(records)

    def add_references(
        self,
        role: Role,
        process_index: int,
        samples: Sequence[ReferenceSamples],
        host: Host | None = None,
    ) -> None:
        """
        Add the reference workloads timed by a process. Workers of a host count as one process.

        Args:
            role: The purpose of the process.

            process_index: 0 for the main process and its workers.

            samples: The timed samples.

            host: The host of the process, or None for this host.
        """
        if samples:
            origin = role, process_index, host
            self._references.setdefault(origin, []).extend(samples)

    def reference_records(self) -> tuple[Record, ...]:
        """Return one record per process and reference workload."""
        if self.site.recording is not None:
            return self.site.recording.references()
        if not self._references:
            return ()
        # Imported here, so that runs without measurements do not load it.
        from pytest_gpuperf.measure.references import reference_records

        # The controller of workers may have no such record.
        first = self._first_host_time()
        facts = {} if first is None else first.facts[Family.HOST_TIME.value]
        # They changed the speed of all code in the run.
        conditions = {name: facts[name] for name in CONDITIONS if name in facts}
        return tuple(
            record
            for (role, process_index, host), samples in self._references.items()
            for record in reference_records(
                samples,
                environment=_environment_of(host, self.site.environment),
                device=self.site.device(),
                role=role,
                process_index=process_index,
                host=host,
                workers_count=self.workers_count() if role is Role.MAIN else 1,
                conditions=conditions,
            )
        )

    def workers_count(self) -> int:
        """Return the number of xdist workers that measured host times, or 1 without workers."""
        # All records of a run have the same number of workers.
        first = self._first_host_time()
        return 1 if first is None else int(first.soft_facts.get("xdist_workers", "1"))

    def _first_host_time(self) -> Record | None:
        measured = (r for test in self.results.values() for r in test.records)
        return next((r for r in measured if Family.HOST_TIME.value in r.facts), None)

    @property
    def option_texts(self) -> Mapping[str, str]:
        """
        The options that were set, and under `arguments` the other options in shell syntax.
        """
        texts = self.config.option_texts
        others = shlex.join(self.command.others)
        return {**texts, "arguments": others} if others else texts

    def elapsed_s(self) -> float:
        """Return the duration of the run so far [s]."""
        return self.site.clock.unix_s() - self.site.identity.session.started_unix_s

    def timeout_s(self) -> float:
        """Return the time limit of a fresh process [s]."""
        return max(_LEAST_TIMEOUT_S, _TIMEOUT_RATIO * self.elapsed_s())

    def judged_of(self, node_id: str) -> tuple[Sequence[Record], Sequence[Verdict]]:
        """Return the records of a test in the main process, and its verdicts until now."""
        measured = self.results.get(node_id)
        if measured is None:
            return (), ()
        # Changes are known only at the end of the run, and only held tests wait for the end.
        return measured.records, self._of_test(node_id) or measured.verdicts

    def records(self) -> tuple[Record, ...]:
        """Return all records of the run, from all processes."""
        first = [r for measured in self.results.values() for r in measured.records]
        return (*first, *self.repeated)

    def peak_device_bytes(self) -> int | None:
        """Return the largest device memory use of a test [B], or None if unknown."""
        peaks = (
            int(estimate.value)
            for record in self.records()
            for estimate in record.estimates
            if estimate.metric == "memory.peak_bytes"
        )
        return max(peaks, default=None)

    def of_role(self, role: Role) -> list[Record]:
        """Return the records of fresh processes with a given role."""
        return [record for record in self.repeated if record.role is role]

    def completeness(self) -> Completeness:
        """Return the completeness of the run: expected, reported and missing tests."""
        expected = self.site.all_expected().test_ids
        missing = self._unreported(expected)
        return Completeness(
            expected_count=len(expected),
            reported_count=len(expected) - len(missing),
            missing=tuple(missing),
            interrupted=self._interrupted,
            measuring_count=self.site.all_expected().measuring_count,
        )

    def header(self) -> Header:
        """Return the header of the run."""
        # CUPTI also records device activity, so counters alone do not show which
        # collectors were used for that.
        used: set[str] = set()
        for record in self.records():
            for e in record.estimates:
                if e.source in used:  # A run has thousands of estimates.
                    continue
                if (
                    e.source != Source.CUPTI
                    or family_of(e.metric, e.source) is not Family.COUNTER
                ):
                    used.add(e.source)
        choice = self.site.choice(used)
        notes = (*choice.notes, *self.site.remarks())
        return Header(
            session=self.site.session,
            environment=self.site.environment,
            completeness=self._whole_completeness(),
            options=self.option_texts,
            collectors=choice.collectors,
            sentences=tuple(note.text for note in notes),
            notes=notes,
        )

    def _whole_completeness(self) -> Completeness:
        absent, scope = self._absent_keys(), self.scope()
        id_of, expected = self.config.checkout.id_of, self.site.all_expected()
        completeness = replace(
            self.completeness(),
            absent=tuple(map(id_of, absent)),
            removed=tuple(id_of(key) for key in absent if scope.has_removed(key)),
            unchanged=expected.unchanged,
            unchanged_since=expected.unchanged_since,
            scope=scope,
        )
        records = self.results.values()
        measured = {m.test_id for m in records if m.records}
        silent = {
            test_id
            for test_id in expected.test_ids
            if test_id not in self.results or self.results[test_id].skipped
        }
        silent.difference_update(self._unreported(silent))
        candidates = (
            *completeness.absent,
            *silent.difference(measured),
            *expected.dropped,
        )
        slugs = self.slugs_here()
        if not candidates or slugs is None or self.config.disable:
            return completeness
        stored = set(self.memory.stored(candidates, slugs))
        newest, is_known = self.memory.newest_like(self.site.session, measured, slugs)
        due = stored & newest
        in_order = dict.fromkeys(candidates)
        left_out = due.intersection(expected.dropped)
        return replace(
            completeness,
            skipped=tuple(t for t in in_order if t in silent & stored - measured),
            left_out=tuple(t for t in in_order if t in left_out),
            due=tuple(t for t in in_order if is_known and t in due),
        )

    def absent(self) -> tuple[str, ...]:
        """Return the ids of stored tests that are missing from modules run as a whole."""
        return tuple(map(self.config.checkout.id_of, self._absent_keys()))

    def _absent_keys(self) -> tuple[str, ...]:
        """
        Return the keys of stored tests that are missing from modules run as a whole.

        The tests may be gone from their module. The module may also be gone, skipped as
        a whole, or impossible to collect.
        """
        expected = self.site.all_expected()
        for test_id, key in expected.keys.items():
            self.memory.learn(test_id, key)
        slugs = self.slugs_here()
        looked_into = set(filter(self.looks_into, self._stored_modules(slugs)))
        whole = looked_into.difference(expected.partial_modules)
        whole.update(expected.whole_modules)
        return self._unless_lost(
            lambda: self.memory.keys(expected.known, slugs, modules=whole), ()
        )

    def _stored_modules(self, slugs: Collection[str] | None = None) -> Collection[str]:
        return self._unless_lost(lambda: self.memory.modules(slugs), frozenset())

    def _unless_lost(self, read: Callable[[], _T], otherwise: _T) -> _T:
        """
        Return what is read of the store.

        If a server was stopped since the run began, the run fails and goes on without.
        """
        try:
            return read()
        except BaselineError as error:
            self.lose_store(error)
            return otherwise

    def damaged(self) -> list[str]:
        """Return the tests or modules of the run with damaged lines in the store."""
        slugs = self.slugs_here() or frozenset()
        return self.memory.damaged(self.site.all_expected().test_ids, slugs)

    def scope(self) -> Scope:
        """Return the scope of the search for tests, limited to known modules."""
        expected, checkout = self.site.all_expected(), self.config.checkout
        unsure = frozenset(expected.unsure_modules)
        ids = map(self.memory.key_of, expected.known)
        modules = frozenset((*self._stored_modules(), *map(module_of, ids)))
        paths = self.looked_into()
        below = [_below(checkout, path) for path in paths or ()]
        known = {*expected.whole_modules, *expected.partial_modules, *unsure}
        return Scope(
            paths=None
            if paths is None or None in below
            else tuple(path for path in below if path is not None),
            whole_modules=tuple(
                m for m in expected.whole_modules if m in modules and m not in unsure
            ),
            partial_modules=tuple(m for m in expected.partial_modules if m in modules),
            gone_modules=tuple(
                module
                for module in sorted(modules - known)
                if self.looks_into(module) and not Path(checkout.root, module).exists()
            ),
        )

    def slugs_here(self) -> frozenset[str] | None:
        """
        Return the machines the run can measure on, or None for any if nothing was measured.
        """
        # Once for each machine: the records of one share their facts.
        of_machine = {(id(r.facts), id(r.kernels)): r for r in self.records()}
        measured = frozenset(map(slug_of, of_machine.values()))
        if not measured or self.site.recording is not None:
            return measured or None
        device = self.site.device()
        gpu_name = None if device is None else device.name
        return measured | slugs_of_machine(self.site.environment, gpu_name)

    def _unreported(self, test_ids: Iterable[str]) -> list[str]:
        """Return the tests that have not ended. loadgroup appends @group to ids."""
        left = [test_id for test_id in test_ids if test_id not in self._reported]
        if not left:  # The usual run.
            return left
        grouped = [node_id for node_id in self._reported if "@" in node_id]
        return [
            test_id
            for test_id in left
            if not any(node_id.startswith(f"{test_id}@") for node_id in grouped)
        ]


def _environment_of(host: Host | None, here: Environment) -> Environment:
    if host is None:
        return here
    return replace(
        here,
        cpu_model=host.cpu_model,
        core_count=host.core_count,
        python_minor=host.python_minor,
        versions={},
    )


def _below(checkout: Checkout, path: Path) -> str | None:
    """
    Return a path relative to the checkout, "" for the checkout itself, or None if outside.
    """
    for place in (os.path.normpath(path), os.path.realpath(path)):
        text = Path(place).as_posix()
        if text in {checkout.root, *checkout.spellings}:
            return ""
        below = checkout.relative(text)
        if below is not None:
            return below
    return None
