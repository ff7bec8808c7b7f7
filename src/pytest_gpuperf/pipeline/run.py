"""The steps of a run. The work of each step is done in other modules."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING

from pytest_gpuperf.config import ConfirmBy, Update
from pytest_gpuperf.errors import GpuPerfError
from pytest_gpuperf.judge.look import FirstLook, straddles
from pytest_gpuperf.judge.missing import without_repeats
from pytest_gpuperf.judge.tally import complaints, tally
from pytest_gpuperf.model.frozen import collector_paused, replace
from pytest_gpuperf.model.record import Role
from pytest_gpuperf.model.run import MachineShift, Measured, Run
from pytest_gpuperf.model.sample import Unmeasured
from pytest_gpuperf.model.verdict import Cause, Outcome
from pytest_gpuperf.pipeline import verdicts
from pytest_gpuperf.pipeline.memory import damage_remedy
from pytest_gpuperf.pipeline.verdicts import Confirmed
from pytest_gpuperf.report.display import plural
from pytest_gpuperf.report.summary import complaint
from pytest_gpuperf.report.words import changed_test

if TYPE_CHECKING:
    from pytest_gpuperf.judge.confirmation import Retest
    from pytest_gpuperf.model.record import Record
    from pytest_gpuperf.model.verdict import Verdict
    from pytest_gpuperf.pipeline.command_line import CommandLine
    from pytest_gpuperf.pipeline.repeat import ChildRun
    from pytest_gpuperf.pipeline.suite import Suite

# The measuring time that a killed run loses, unless a report takes long.
_USUAL_PAUSE_S = 30.0
_PARAMETERS_DIGEST = attrgetter("parameters_digest")
# The name of the missing metric if a whole process does not count.
_THE_TEST = "the test"
# Causes of a change outside the code, which may end.
_OF_MACHINE = frozenset({Cause.NOISY_MACHINE, Cause.SAME_COMMIT, Cause.SEEN_BEFORE})
# The largest fraction of a run's time spent on such reports.
_REPORT_FRACTION = 0.02


def held_as(suite: Suite, measured: Measured) -> str | None:
    """
    Return the reason to hold the outcome of a test until the end of the run, or None.

    The check is generous and not a verdict. SUSPECT: a straddled limit or a suspected
    change is going to be confirmed. PENDING: a strict run or a comparison with a
    revision decides everything at the end, --gpuperf-runs changes every value, or JUnit
    takes the properties of a test only once, when the test is logged.
    """
    config = suite.config
    straddling = config.confirm > 0 and any(map(straddles, measured.verdicts))
    worsened = verdicts.worsened(suite, measured)
    if straddling or worsened:
        held = "SUSPECT"
    elif (
        config.strict
        or config.runs > 1
        or config.against is not None
        or config.junit_waits
    ):
        held = "PENDING"
    else:
        return None
    suite.hold(measured.test_id)
    return held


def report_so_far(suite: Suite) -> None:
    """
    Write the measurements so far, if a JSON report is requested.

    The first report follows the first test. Further reports follow whenever the run has
    doubled, but at most half a minute later. A slow report waits until its time is a
    small fraction of the run.
    """
    if suite.config.json is None or not suite.results:
        return
    # A fixture of several tests may have replaced the file system.
    if suite.elapsed_s() < suite.next_report_s or not suite.sees_files():
        return
    from pytest_gpuperf.pipeline import keeping

    begun_s = suite.elapsed_s()
    # The report at the end of the run shows the error. Until then a fixture may have
    # replaced the functions that open files, and these may raise anything.
    with contextlib.suppress(Exception):
        keeping.write_so_far(suite)
    ended_s = suite.elapsed_s()
    pause_s = max(min(ended_s, _USUAL_PAUSE_S), (ended_s - begun_s) / _REPORT_FRACTION)
    suite.next_report_s = ended_s + pause_s


def decide(
    suite: Suite, announce: Callable[[bool, float], object] = lambda *_: None
) -> tuple[MachineShift, ...]:
    """
    Repeat measurements that need it, and decide every verdict of the run.

    Args:
        suite: The collected data of the run.

        announce: Called before anything is measured again, with a flag for suspects
            that fresh processes confirm, and with the expected duration [s].

    Returns:
        The machine drift during the run, by class of tests.
    """
    suite.sort()
    suite.count_ran()
    complete = suite.completeness().complete
    repeats = complete and suite.config.runs > 1
    if repeats:
        announce(False, 0.0)  # noqa: FBT003 - no suspects are known yet
        _measure_again(suite)
    if complete:
        _ask_for_parameters(suite)
    with collector_paused():
        first = verdicts.look(suite)
    if not repeats or first.suspects:
        again_s = suite.took_s((*first.suspects, *first.controls))
        announce(complete and bool(first.suspects), suite.config.confirm * again_s)
    suite.suspects = frozenset(first.suspects)
    by_revision = _confirm_by_revision(suite, first) if complete else Confirmed()
    # Ctrl-C in the comparison stops the run.
    complete = complete and not suite.stopped
    retests = _confirm(suite, first, by_revision) if complete else {}
    compared = _compare(suite, complete=complete)
    with collector_paused():
        limits = verdicts.limits(suite, retests)
        confirmed = {}
        if retests or first.elsewhere:
            # Needed only by runs with suspects.
            from pytest_gpuperf.judge.retests import confirmations

            confirmed = confirmations(first, retests, suite.site.host)
        # Includes the reference workloads of fresh processes.
        references = verdicts.references_of(suite)
        strict = suite.config.strict
        changes = verdicts.changes(
            first,
            confirmed,
            references,
            complete=complete,
            strict=strict,
            shard_count=suite.site.shard_count(),
        )
        changes = verdicts.as_confirmed(changes, by_revision)
        changes = verdicts.with_kernels(suite, changes)
        changes = verdicts.without_news_of_failures(suite, changes)
        changes = verdicts.with_origins(suite, (*changes, *compared))
        if strict:
            changes = verdicts.with_doubts(suite, changes)
        decided = without_repeats((*limits, *changes))
        suite.verdicts = tuple(_worded(suite, decided))
    return verdicts.shifts(first, confirmed, references)


def _worded(suite: Suite, decided: Sequence[Verdict]) -> Iterator[Verdict]:
    """Yield verdicts in words, with the command-line argument of a test if the id is none."""
    compared = suite.config.against is not None
    typed = {t: m.typed for t, m in suite.results.items() if m.typed}
    for verdict in decided:
        argument = typed.get(verdict.key.test_id)
        named = verdict if argument is None else replace(verdict, typed=argument)
        yield verdicts.in_words(named, compared=compared)


def finish(
    suite: Suite,
    *,
    xfailed: Sequence[str] = (),
    shifts: Sequence[MachineShift] = (),
) -> Run:
    """
    Store, report and return the whole run. Errors fail the run.

    Args:
        suite: The collected data of the run.

        xfailed: Ids of the tests that failed as expected.

        shifts: The machine drift, by class of tests.
    """
    config = suite.config
    header = replace(suite.header(), jit_cache=config.jit_cache.value)
    run = replace(
        suite.gathered(header, suite.verdicts),
        xfailed=tuple(xfailed),
        shifts=tuple(shifts),
        references=suite.reference_records(),
        against=suite.against,
    )
    workers_count = suite.workers_count()
    if workers_count > 1:
        from pytest_gpuperf.report import notices

        suite.remark(notices.side_by_side(workers_count))
    _tell_of_identity(suite)
    if why := suite.site.all_expected().all_changed:
        from pytest_gpuperf.report import notices

        suite.remark(notices.all_changed(why))
    counted = tally(run)
    codes = complaints(run, counted, config)
    least = config.min_judged or 0.0
    suite.complain(*(complaint(code, counted, least) for code in codes))
    if config.baseline_named and config.update is None and not config.disable:
        tests = suite.damaged()
        if tests:
            from pytest_gpuperf.report import notices

            suite.complain(
                notices.lost_lines(tests, damage_remedy(suite.memory.place()))
            )
    for text in suite.memory.remarks():
        suite.remark(text)
    suite.run = _keep(suite, run)
    if suite.run is run:  # Otherwise it has other verdicts or records.
        suite.counted = counted
    if config.record is not None:
        from pytest_gpuperf.collect.replay import write_head

        try:
            suite.site.keep(suite.run.references)
            write_head(config.record, suite.site.session, suite.site.environment)
        except GpuPerfError as error:
            suite.complain_of(error)
    if config.shows_samples:
        from pytest_gpuperf.pipeline.keeping import with_samples

        suite.run = with_samples(suite, suite.run)
    suite.tidy()
    return suite.run


def _tell_of_identity(suite: Suite) -> None:
    improved = [
        v for v in suite.verdicts if v.outcome is Outcome.IMPROVED and not v.of_revision
    ]
    changed = [str(v.key) for v in improved if changed_test(v)]
    if changed and suite.config.update is not Update.ALL:
        from pytest_gpuperf.report import notices

        suite.remark(notices.changed_tests(changed))
    doubted = [str(v.key) for v in improved if v.cause in _OF_MACHINE]
    if doubted and suite.config.update is not Update.ALL:
        from pytest_gpuperf.report import notices

        suite.remark(notices.doubted_gains(doubted))
    gained = dict.fromkeys(
        str(v.key)
        for v in improved
        if not changed_test(v) and v.cause not in _OF_MACHINE
    )
    if gained and suite.config.update in {None, Update.NEW}:
        # Needed only for stores, and one is open.
        from pytest_gpuperf.baseline.store import storing_command
        from pytest_gpuperf.report import notices

        place = suite.memory.place() if suite.config.baseline_named else None
        command = storing_command(place, what=Update.IMPROVED.value)
        suite.remark(notices.unstored_gains([*gained], command))
    if suite.unsteady:
        from pytest_gpuperf.report import notices

        suite.remark(notices.unsteady_parameters([*suite.unsteady]))
    positional = suite.positional_ids()
    if positional and not suite.config.disable and suite.memory.store() is not None:
        from pytest_gpuperf.report import notices

        suite.remark(notices.positional_ids(positional))


def _keep(suite: Suite, run: Run) -> Run:
    reports = bool(suite.config.reports)
    if suite.config.update is None and not reports:
        return run
    from pytest_gpuperf.pipeline import keeping

    if reports:
        run = keeping.with_sessions(suite, run)
    try:
        run = keeping.store(suite, run, partial(_measure_alone, suite))
    except GpuPerfError as error:  # The report is still written.
        suite.complain_of(error)
    try:
        keeping.write_reports(suite, run)
    except GpuPerfError as error:
        suite.complain_of(error)
    return run


def _measure_again(suite: Suite) -> None:
    passed = [m for m in suite.results.values() if m.test_id in suite.passed]
    here = [m for m in passed if all(r.host is None for r in m.records)]
    if len(here) < len(passed):
        from pytest_gpuperf.report import notices

        suite.remark(notices.measured_elsewhere(len(passed) - len(here)))
    test_ids = [measured.test_id for measured in here]
    retests = _again(suite, test_ids, Role.REPEAT, suite.config.runs - 1)
    suite.failed_alone |= {
        test_id: retest.failure for test_id, retest in retests.items() if retest.failure
    }
    gaps = [
        retest.unmeasured[0]
        for retest in retests.values()
        # A test that ended early has reported the values measured before.
        if retest.unmeasured
        and not (retest.records and retest.unmeasured[0].metric == _THE_TEST)
    ]
    if gaps:
        tests = plural(len(gaps), "test")
        why = f"{gaps[0].metric}: {gaps[0].text}"
        suite.remark(f"gpuperf: {tests} not measured again for --gpuperf-runs ({why})")


def _ask_for_parameters(suite: Suite) -> None:
    """
    Compare parameters with a fresh process, and drop parameter digests that differ.

    Only tests whose stored sessions all have other digests are checked. A parameter may
    be made of random numbers or of the time. Then every session has different values,
    and nothing would ever be compared. The process collects the tests and runs none.
    """
    if suite.config.replay is not None or suite.command.launcher.gap is not None:
        return
    doubted = _doubted(suite)
    if not doubted:
        return
    # Most runs start no process.
    from pytest_gpuperf.pipeline.repeat import identities_of, repeat

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
    """
    Return parameter digests of tests whose stored sessions all have other digests, by test id.
    """
    doubted: dict[str, str] = {}
    config = suite.config
    # A store found by default decides nothing.
    judges = config.baseline_named or config.update is not None
    if config.disable or not judges or suite.memory.store() is None:
        return doubted
    for record in suite.records():
        digest, test_id = record.parameters_digest, record.key.test_id
        if digest is None or test_id in doubted or test_id not in suite.passed:
            continue
        sessions = suite.memory.sessions(record)
        stored = {*map(_PARAMETERS_DIGEST, sessions)} - {None}
        if stored and digest not in stored:
            doubted[test_id] = digest
    return doubted


def _confirm_by_revision(suite: Suite, first: FirstLook) -> Confirmed:
    if suite.config.confirm_by is ConfirmBy.FRESH or not first.suspects:
        return Confirmed()
    from pytest_gpuperf.pipeline.against import confirm_suspects

    return confirm_suspects(suite, first)


def _compare(suite: Suite, *, complete: bool) -> tuple[Verdict, ...]:
    if suite.config.against is None:
        return ()
    from pytest_gpuperf.pipeline.against import compare_suite

    return compare_suite(suite, suite.config.against, complete=complete)


def _confirm(
    suite: Suite, first: FirstLook, by_revision: Confirmed
) -> Mapping[str, Retest]:
    """
    Return the retests of suspects and controls in fresh processes.

    Args:
        suite: The run.

        first: The first look at the run.

        by_revision: The decisions of comparisons with revisions. Suspects with a limit
            that one process could not decide are still measured.
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
    recorded = suite.site.recording is not None
    # A recorded value needs no process.
    count = 1 if recorded else suite.config.alone
    return _again(suite, test_ids, Role.ALONE, count)


def _again(
    suite: Suite, test_ids: Sequence[str], role: Role, count: int
) -> Mapping[str, Retest]:
    if not count or not test_ids:
        return {}
    from pytest_gpuperf.judge.confirmation import Retest

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
        from pytest_gpuperf.collect.memory import release_unused
        from pytest_gpuperf.pipeline.repeat import identities_of, not_begun, repeat

        identities = identities_of(suite.site.identity, role, count)
        # Memory held by this process is not available to fresh processes.
        release_unused()
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
        # Reversed, so that the first failure is reported.
        for run in reversed(runs):
            lacking |= _lacking_in(run, test_ids, suite.command)
            if run.began:
                texts = {test_id: run.failure_of(test_id) for test_id in test_ids}
                failures |= {test_id: text for test_id, text in texts.items() if text}
        suite.failed_fresh.update(failures)
        # Not if the launcher prevented them from beginning a test.
        none = role is not Role.ALONE and not any(run.began for run in runs)
        if none and runs[0].refusal is None:
            from pytest_gpuperf.report import notices

            why = not_begun(suite.command, runs[0])
            suite.complain(notices.none_began(len(runs), why))
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


def _alike(suite: Suite, records: Sequence[Record]) -> list[Record]:
    from pytest_gpuperf.judge.confirmation import is_measured_alike

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
        from pytest_gpuperf.report import notices

        suite.remark(notices.measured_elsewhere(len(unlike)))
    return alike


def _lacking_in(
    run: ChildRun, test_ids: Sequence[str], command: CommandLine
) -> dict[str, tuple[Unmeasured, ...]]:
    """
    Return the missing values of tests in a fresh process, by test id.

    If the process began no test, every test lacks all values.
    """
    if run.refusal is not None:
        gap = Unmeasured.of_metric(_THE_TEST, run.refusal)
        return dict.fromkeys(test_ids, (gap,))
    if not run.began:
        from pytest_gpuperf.pipeline.repeat import not_begun

        return dict.fromkeys(test_ids, (not_begun(command, run),))
    answers = run.answers.values()
    return {a.test_id: a.unmeasured for a in answers if a.unmeasured}
