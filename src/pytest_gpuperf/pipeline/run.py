"""One run, step by step; each step's work is done in another room."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from pytest_gpuperf.collect.memory import release_unused
from pytest_gpuperf.collect.replay import write_head
from pytest_gpuperf.config import ConfirmBy, Update
from pytest_gpuperf.errors import GpuPerfError
from pytest_gpuperf.judge.case import Retest, is_measured_alike
from pytest_gpuperf.judge.limit import straddles, without_repeats
from pytest_gpuperf.judge.look import FirstLook, confirmations
from pytest_gpuperf.judge.tally import complaints, tally
from pytest_gpuperf.model.frozen import collector_paused, replace
from pytest_gpuperf.model.record import Role
from pytest_gpuperf.model.run import MachineShift, Measured, Run
from pytest_gpuperf.model.sample import Unmeasured
from pytest_gpuperf.model.verdict import Outcome
from pytest_gpuperf.pipeline import verdicts
from pytest_gpuperf.pipeline.memory import damage_remedy
from pytest_gpuperf.pipeline.repeat import identities_of, not_begun, repeat
from pytest_gpuperf.pipeline.verdicts import Confirmed
from pytest_gpuperf.report.display import plural
from pytest_gpuperf.report.summary import complaint
from pytest_gpuperf.report.terminal import (
    changed_tests,
    lost_lines,
    measured_elsewhere,
    none_began,
    positional_ids,
    side_by_side,
    unsteady_parameters,
)
from pytest_gpuperf.report.words import changed_test, for_pytest

if TYPE_CHECKING:
    from pytest_gpuperf.model.record import Record
    from pytest_gpuperf.model.verdict import Verdict
    from pytest_gpuperf.pipeline.repeat import ChildRun, CommandLine
    from pytest_gpuperf.pipeline.suite import Suite

__all__ = [
    "decide",
    "finish",
    "held_as",
    "report_so_far",
]

_USUAL_PAUSE_S = 30.0  # what a killed run loses, unless a report takes long
_THE_TEST = "the test"  # what lacks, where a whole process counts for nothing
_REPORT_FRACTION = 0.02  # of a run's time that such reports may take


def held_as(suite: Suite, measured: Measured) -> str | None:
    """
    Return why a test's outcome must wait for the end of the run; None: it need not.

    Generous and no verdict: a limit that is straddled is confirmed, and so is what looks
    worse (SUSPECT); a strict run and one that compares with a revision decide all at the
    end, --gpuperf-runs changes every value, and JUnit takes the properties of a test once,
    when it is logged (PENDING).
    """
    straddling = suite.config.confirm > 0 and any(map(straddles, measured.verdicts))
    worsened = verdicts.worsened(suite, measured)
    if straddling or worsened:
        held = "SUSPECT"
    elif _decides_all_at_end(suite):
        held = "PENDING"
    else:
        return None
    suite.hold(measured.test_id)
    return held


def _decides_all_at_end(suite: Suite) -> bool:
    """Return whether no test of a run may be logged before the run is decided."""
    config = suite.config
    if config.strict or config.runs > 1 or config.against is not None:
        return True
    return config.junit_waits


def report_so_far(suite: Suite) -> None:
    """
    Write what was measured so far, where JSON is asked for.

    After the first test, and then when the run has doubled, at most half a minute later;
    a report that takes long waits until it is a small share of the run.
    """
    if suite.config.json is None or not suite.results:
        return
    if suite.elapsed_s() < suite.next_report_s or not suite.sees_files():
        return  # while a fixture of several tests replaces the file system, too
    from pytest_gpuperf.pipeline import keeping

    begun_s = suite.elapsed_s()
    # The report at the end says what is wrong. Until then fixtures may have put anything into
    # the place of what opens files, and it may raise anything.
    with contextlib.suppress(Exception):
        keeping.write_so_far(suite)
    ended_s = suite.elapsed_s()
    pause_s = max(min(ended_s, _USUAL_PAUSE_S), (ended_s - begun_s) / _REPORT_FRACTION)
    suite.next_report_s = ended_s + pause_s


def decide(
    suite: Suite, announce: Callable[[bool, float], object] = lambda *_: None
) -> tuple[MachineShift, ...]:
    """
    Measure again what needs it, and decide every verdict of the run.

    Args:
        suite: All that the run has gathered.

        announce: Called before anything is measured again, with whether there are
            suspects for fresh processes, and how long these are going to take [s].

    Returns:
        What the machine did meanwhile, by class of tests.
    """
    suite.sort()
    suite.count_ran()
    complete = suite.completeness().complete
    repeats = complete and suite.config.runs > 1
    if repeats:
        announce(False, 0.0)  # noqa: FBT003 - nobody knows of suspects yet
        _measure_again(suite)
    if complete:
        _ask_for_parameters(suite)
    with collector_paused():
        first = verdicts.look(suite)
    if not repeats or first.suspects:
        announce(complete and bool(first.suspects), _confirmation_s(suite, first))
    suite.suspects = frozenset(first.suspects)
    by_revision = _confirm_by_revision(suite, first) if complete else Confirmed()
    complete = complete and not suite.stopped  # by Ctrl-C in that comparison
    retests = _confirm(suite, first, by_revision) if complete else {}
    compared = _compare(suite, complete=complete)
    with collector_paused():
        limits = verdicts.limits(suite, retests)
        confirmed = confirmations(first, retests, suite.site.host)
        references = verdicts.references_of(suite)  # of the fresh processes, too
        strict = suite.config.strict
        changes = verdicts.changes(
            first, confirmed, references, complete=complete, strict=strict
        )
        changes = verdicts.as_confirmed(changes, by_revision)
        changes = verdicts.with_kernels(suite, changes)
        decided = without_repeats((*limits, *changes, *compared))
        suite.verdicts = tuple(_worded(suite, decided))
    return verdicts.shifts(first, confirmed, references)


def _confirmation_s(suite: Suite, first: FirstLook) -> float:
    """Return how long fresh processes are going to take for suspects and controls [s]."""
    return suite.config.confirm * suite.took_s((*first.suspects, *first.controls))


def _worded(suite: Suite, decided: Sequence[Verdict]) -> Iterator[Verdict]:
    """Yield verdicts in words, with their tests as arguments where their ids are none."""
    beside = suite.config.against is not None
    typed = {t: m.typed for t, m in suite.results.items() if m.typed}
    for verdict in decided:
        argument = typed.get(verdict.key.test_id)
        named = verdict if argument is None else replace(verdict, typed=argument)
        yield for_pytest(named, compared=beside)


def finish(
    suite: Suite,
    *,
    xfailed: Sequence[str] = (),
    shifts: Sequence[MachineShift] = (),
) -> Run:
    """
    Return the whole run, stored and reported; what goes wrong fails the run.

    Args:
        suite: All that the run has gathered.

        xfailed: Ids of the tests that failed, and were expected to.

        shifts: What the machine did, by class of tests.
    """
    header = replace(suite.header(), jit_cache=suite.config.jit_cache.value)
    run = replace(
        suite.gathered(header, suite.verdicts),
        xfailed=tuple(xfailed),
        shifts=tuple(shifts),
        references=suite.reference_records(),
        against=suite.against,
    )
    workers_count = suite.workers_count()
    if workers_count > 1:
        suite.remark(side_by_side(workers_count))
    _tell_of_identity(suite)
    counted = tally(run)
    codes = complaints(run, counted, suite.config)
    suite.complain(*(complaint(code, counted) for code in codes))
    _complain_of_damage(suite)
    for text in suite.memory.remarks():
        suite.remark(text)
    suite.run = _keep(suite, run)
    _keep_references(suite, suite.run)
    if suite.config.shows_samples:
        from pytest_gpuperf.pipeline.keeping import with_samples

        suite.run = with_samples(suite, suite.run)
    suite.tidy()
    return suite.run


def _complain_of_damage(suite: Suite) -> None:
    """Fail a run that would have judged its tests by damaged lines of the baseline."""
    config = suite.config
    if not config.baseline_named or config.update is not None or config.disable:
        return
    tests = suite.damaged()
    if tests:
        suite.complain(lost_lines(tests, damage_remedy(suite.memory.place())))


def _tell_of_identity(suite: Suite) -> None:
    """Say where a value may be of another thing than the stored ones of its id."""
    improved = [v for v in suite.verdicts if v.outcome is Outcome.IMPROVED]
    changed = [str(v.key) for v in improved if changed_test(v)]
    if changed and suite.config.update is not Update.ALL:
        suite.remark(changed_tests(changed))
    if suite.unsteady:
        suite.remark(unsteady_parameters([*suite.unsteady]))
    positional = suite.positional_ids()
    if positional and not suite.config.disable and suite.memory.store() is not None:
        suite.remark(positional_ids(positional))


def _keep_references(suite: Suite, run: Run) -> None:
    """Put the references of a run into its recording, and the session as it ended."""
    folder = suite.config.record
    if folder is None:
        return
    try:
        suite.site.keep(run.references)
        write_head(folder, suite.site.session, suite.site.environment)
    except GpuPerfError as error:
        suite.complain_of(error)


def _keep(suite: Suite, run: Run) -> Run:
    """Store and report a run, where that was asked for; return it as it is reported."""
    reports = bool(suite.config.reports)
    if suite.config.update is None and not reports:
        return run
    from pytest_gpuperf.pipeline import keeping

    if reports:
        run = keeping.with_sessions(suite, run)
    try:
        run = keeping.store(suite, run, partial(_measure_alone, suite))
    except GpuPerfError as error:  # the report is written all the same
        suite.complain_of(error)
    try:
        keeping.write_reports(suite, run)
    except GpuPerfError as error:
        suite.complain_of(error)
    return run


def _measure_again(suite: Suite) -> None:
    """Measure every test once more in each of --gpuperf-runs processes but the first."""
    passed = [m for m in suite.results.values() if m.test_id in suite.passed]
    here = [m for m in passed if all(r.host is None for r in m.records)]
    if len(here) < len(passed):
        suite.remark(measured_elsewhere(len(passed) - len(here)))
    test_ids = [measured.test_id for measured in here]
    retests = _again(suite, test_ids, Role.REPEAT, suite.config.runs - 1)
    suite.failed_alone |= {
        test_id: retest.failure for test_id, retest in retests.items() if retest.failure
    }
    gaps = [
        retest.unmeasured[0]
        for retest in retests.values()
        # a test that ended early has told what it measured before
        if retest.unmeasured
        and not (retest.records and retest.unmeasured[0].metric == _THE_TEST)
    ]
    if gaps:
        tests = plural(len(gaps), "test")
        why = f"{gaps[0].metric}: {gaps[0].text}"
        suite.remark(f"gpuperf: {tests} not measured again for --gpuperf-runs ({why})")


def _ask_for_parameters(suite: Suite) -> None:
    """
    Ask a fresh process for parameters that no stored session has, and drop unequal ones.

    A parameter may be made of random numbers, or of the time: then no session has the
    values of another, and nothing would ever be compared. The process collects the tests
    and runs none.
    """
    if suite.config.replay is not None or suite.command.launcher.gap is not None:
        return
    doubted = _doubted(suite)
    if not doubted:
        return
    (identity,) = identities_of(suite.site.identity, Role.CONFIRM, 1)
    (run,) = repeat(
        suite.command,
        [*doubted],
        identities=[replace(identity, collects=True)],
        runner=suite.site.runner,
        timeout_s=suite.timeout_s(),
    )
    suite.drop_parameters(
        test_id
        for test_id, answer in run.answers.items()
        if answer.parameters_digest != doubted[test_id]
    )


def _doubted(suite: Suite) -> dict[str, str]:
    """Return the digests of tests that have stored sessions, and none of that digest."""
    doubted: dict[str, str] = {}
    config = suite.config
    # what was only found decides nothing
    judges = config.baseline_named or config.update is not None
    if config.disable or not judges or suite.memory.store() is None:
        return doubted
    for record in suite.records():
        digest, test_id = record.parameters_digest, record.key.test_id
        if digest is None or test_id in doubted or test_id not in suite.passed:
            continue
        sessions = suite.memory.sessions(record)
        stored = {session.parameters_digest for session in sessions} - {None}
        if stored and digest not in stored:
            doubted[test_id] = digest
    return doubted


def _confirm_by_revision(suite: Suite, first: FirstLook) -> Confirmed:
    """Return what comparisons with stored commits decide."""
    if suite.config.confirm_by is ConfirmBy.FRESH or not first.suspects:
        return Confirmed()
    from pytest_gpuperf.pipeline.against import confirm_suspects

    return confirm_suspects(suite, first)


def _compare(suite: Suite, *, complete: bool) -> tuple[Verdict, ...]:
    """Return the verdicts against a revision; empty where none was named."""
    if suite.config.against is None:
        return ()
    from pytest_gpuperf.pipeline.against import compare_suite

    return compare_suite(suite, suite.config.against, complete=complete)


def _confirm(
    suite: Suite, first: FirstLook, by_revision: Confirmed
) -> Mapping[str, Retest]:
    """
    Return what fresh processes gave for each suspect, and for the controls.

    Args:
        suite: The run.

        first: The first look at it.

        by_revision: What comparisons with revisions decide; suspects with a limit that
            one process could not decide are measured all the same.
    """
    decided = by_revision.test_ids
    changed = [test_id for test_id in first.suspects if test_id not in decided]
    straddling = [
        test_id
        for test_id in first.suspects
        if test_id in decided and any(map(straddles, suite.results[test_id].verdicts))
    ]
    test_ids = [*changed, *straddling, *(first.controls if changed else ())]
    return _again(suite, test_ids, Role.CONFIRM, suite.config.confirm)


def _measure_alone(suite: Suite, test_ids: Sequence[str]) -> Mapping[str, Retest]:
    """Return what fresh processes that confirm nothing gave for some tests."""
    recorded = suite.site.recording is not None
    count = 1 if recorded else suite.config.alone  # a recorded value costs no process
    return _again(suite, test_ids, Role.ALONE, count)


def _again(
    suite: Suite, test_ids: Sequence[str], role: Role, count: int
) -> Mapping[str, Retest]:
    """Return what fresh processes of one role gave; the suite keeps their records."""
    if not count or not test_ids:
        return {}
    recording = suite.site.recording
    refusal = suite.command.launcher.gap
    if refusal is not None and recording is None:
        gap = Unmeasured.of_metric(_THE_TEST, refusal)
        return {test_id: Retest(unmeasured=(gap,)) for test_id in test_ids}
    failures: dict[str, str] = {}
    lacking: dict[str, tuple[Unmeasured, ...]] = {}
    if recording is not None:
        records = recording.of_role(role, test_ids)
        test_ids = list(dict.fromkeys(record.key.test_id for record in records))
    else:
        identities = identities_of(suite.site.identity, role, count)
        release_unused()  # what this process holds, fresh ones cannot have
        runs = repeat(
            suite.command,
            test_ids,
            identities=identities,
            runner=suite.site.runner,
            timeout_s=suite.timeout_s(),
        )
        records = [r for run in runs for a in run.answers.values() for r in a.records]
        for identity, run in zip(identities, runs, strict=True):
            for answer in run.answers.values():
                suite.add_references(role, identity.process_index, answer.references)
        for run in reversed(runs):  # the first failure is the one that is told
            lacking |= _lacking_in(run, test_ids, suite.command)
            if run.began:
                texts = {test_id: run.failure_of(test_id) for test_id in test_ids}
                failures |= {test_id: text for test_id, text in texts.items() if text}
        suite.failed_fresh.update(failures)
        _complain_of_none(suite, role, runs)
    suite.add(_alike(suite, records) if role is Role.REPEAT else records)
    suite.drop_unsteady()
    return {
        test_id: Retest(
            records=tuple(r for r in records if r.key.test_id == test_id),
            failure=failures.get(test_id, ""),
            unmeasured=lacking.get(test_id, ()),
        )
        for test_id in test_ids
    }


def _complain_of_none(suite: Suite, role: Role, runs: Sequence[ChildRun]) -> None:
    """Fail a run whose fresh processes began no test, unless a launcher kept them from it."""
    none = not any(run.began for run in runs)
    if none and role is not Role.ALONE and runs[0].refusal is None:
        suite.complain(none_began(len(runs), not_begun(suite.command, runs[0])))


def _alike(suite: Suite, records: Sequence[Record]) -> list[Record]:
    """Return the records of repeated tests that the suite measured under equal facts."""
    firsts = {r.key: r for m in suite.results.values() for r in m.records}
    across = suite.config.compare_across
    alike = [
        record
        for record in records
        if (first := firsts.get(record.key)) is None
        or all(
            is_measured_alike(e.metric, record, first, source=e.source, across=across)
            for e in first.estimates
        )
    ]
    unlike = {record.key.test_id for record in records if record not in alike}
    if unlike:
        suite.remark(measured_elsewhere(len(unlike)))
    return alike


def _lacking_in(
    run: ChildRun, test_ids: Sequence[str], command: CommandLine
) -> dict[str, tuple[Unmeasured, ...]]:
    """Return what tests lack in one fresh process: any value, where it began none."""
    if run.refusal is not None:
        gap = Unmeasured.of_metric(_THE_TEST, run.refusal)
        return dict.fromkeys(test_ids, (gap,))
    if not run.began:
        return dict.fromkeys(test_ids, (not_begun(command, run),))
    answers = run.answers.values()
    return {a.test_id: a.unmeasured for a in answers if a.unmeasured}
