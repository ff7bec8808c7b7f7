"""The inputs that a run gives to judge: cases, first look, limits and changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING

from pytest_gpuperf.judge.case import (
    POLICY,
    Case,
    Reference,
    case_of,
)
from pytest_gpuperf.judge.look import look_policy, plan_retests, straddles
from pytest_gpuperf.judge.missing import lacking, lost_alone
from pytest_gpuperf.judge.regression import settle, shown
from pytest_gpuperf.judge.rule import comparable, may_change
from pytest_gpuperf.model.environment import BOARD, CONDITIONS, PARAMETERS
from pytest_gpuperf.model.frozen import Frozen, replace
from pytest_gpuperf.model.record import Kind, Record, RecordKey, Role, SessionValue
from pytest_gpuperf.model.verdict import Outcome, Verdict
from pytest_gpuperf.report.words import is_plain

if TYPE_CHECKING:
    from pytest_gpuperf.compute.spread import Spread
    from pytest_gpuperf.config import Config, Plan
    from pytest_gpuperf.judge.confirmation import Confirmation, Retest
    from pytest_gpuperf.judge.look import FirstLook
    from pytest_gpuperf.judge.rule import ComparedCase
    from pytest_gpuperf.model.roofline import Bands
    from pytest_gpuperf.model.run import MachineShift, Measured
    from pytest_gpuperf.pipeline.memory import Memory
    from pytest_gpuperf.pipeline.suite import Suite

_DOUBTED = frozenset({PARAMETERS})


class Confirmed(Frozen, frozen=True, kw_only=True):
    """
    The results of comparing suspects with stored commits.

    Attributes:
        verdicts: The verdicts by measurement and metric.

        test_ids: The suspects that fresh processes of the working tree must not decide.
    """

    verdicts: Mapping[tuple[RecordKey, str], Verdict] = {}
    test_ids: frozenset[str] = frozenset()


def grouped(records: Iterable[Record]) -> dict[RecordKey, list[Record]]:
    """Return records by key, the main process first."""
    groups: dict[RecordKey, list[Record]] = {}
    for record in sorted(records, key=attrgetter("process_index")):
        groups.setdefault(record.key, []).append(record)
    return groups


def gates(measured: Measured, config: Config) -> Mapping[str, float | None]:
    """
    Return the largest accepted change of a test [fraction] by metric, or None to only show it.
    """
    return measured.max_regression or {"time": config.max_regression}


def _cases_of_suite(suite: Suite) -> list[ComparedCase]:
    if suite.config.disable or suite.memory.store() is None:
        return []
    records = [r for r in suite.records() if r.role.of_suite]
    groups = {
        key: records_of_key
        for key, records_of_key in grouped(records).items()
        if key.test_id in suite.passed
    }
    elsewhere = suite.memory.elsewhere(
        [records_of_key[0] for records_of_key in groups.values()]
    )
    cases: list[ComparedCase] = []
    for key, records_of_key in groups.items():
        key_cases = suite.first_cases.get(key)
        if key_cases is None or len(records_of_key) > 1 or key in elsewhere:
            key_cases = _cases(
                suite,
                suite.results[key.test_id],
                records_of_key,
                other_machines=elsewhere.get(key, ()),
            )
        cases += _in_company(suite, key_cases)
    return cases


def _in_company(
    suite: Suite, cases: tuple[ComparedCase, ...]
) -> tuple[ComparedCase, ...]:
    session = suite.site.session
    ran_count = session.ran_count
    if ran_count is None:
        return cases
    for case, _ in cases:
        listed = case.stored.listed
        if len(listed.company(ran_count)) < listed.count:
            break
    else:  # The usual case.
        return cases
    policy = look_policy(suite.config)
    now = (replace(case, session=session) for case, _ in cases)
    return tuple((case, comparable(case, policy)) for case in now)


def _cases(
    suite: Suite,
    measured: Measured,
    records: list[Record],
    *,
    other_machines: tuple[str, ...] = (),
    across: frozenset[str] = frozenset(),
) -> tuple[ComparedCase, ...]:
    """Return the cases of a measurement. `across` adds facts that may differ."""
    policy = look_policy(suite.config)
    held, name = gates(measured, suite.config), records[0].key.name
    if records[0].kind is Kind.RECORD and name not in held:
        held = {**held, name: None}  # A recorded number is at least shown.
    stored = suite.memory.sessions(records[0], held.keys())
    session = suite.site.session_of(records[0].host)
    cases: list[ComparedCase] = []
    for metric, most in held.items():
        # The first measurement reports a metric of which the test has no value.
        if _has(records, metric) or (
            metric != "time" and not name and not _has(measured.records, metric)
        ):
            case = case_of(
                records,
                stored,
                metric=metric,
                limit=most,
                session_id=session.id,
                machine=session.machine,
                across=suite.config.compare_across | across,
                other_machines=other_machines,
                default_limit=not (measured.max_regression or suite.config.names_limit),
            )
            cases.append((case, comparable(case, policy)))
    return tuple(cases)


def _has(records: Sequence[Record], metric: str) -> bool:
    # Loops, because each item of a generator is a call.
    for record in records:
        for estimate in record.estimates:
            if estimate.metric == metric:
                return True
    return False


def worsened(suite: Suite, measured: Measured) -> list[Case]:
    """
    Return the cases of a test that fresh processes may have to confirm.

    No verdict is given here. A run that accepts changes confirms improvements as well,
    and the test may fail in a fresh process.
    """
    # A store found by default never fails a test.
    if not suite.config.baseline_named and suite.config.update is None:
        return []
    policy = look_policy(suite.config)
    groups = grouped(measured.records)
    either_way = suite.config.confirms_better
    found: list[Case] = []
    is_doubted = False
    for key, several in groups.items():
        first = suite.first_cases[key] = _cases(suite, measured, several)
        for case, comparison in first:
            is_doubted |= PARAMETERS in case.differences
            if may_change(case, comparison, policy, either_way=either_way):
                found.append(case)
    if not is_doubted:
        return found
    # The end of the run may drop a digest that differs between processes.
    return [
        case
        for several in groups.values()
        for case, comparison in _cases(suite, measured, several, across=_DOUBTED)
        if may_change(case, comparison, policy, either_way=either_way)
    ]


def references_of(
    suite: Suite, *, session_id: str | None = None
) -> tuple[Reference, ...]:
    """
    Return the reference workloads of the run and of the stored sessions.

    Args:
        suite: The collected data of the run.

        session_id: The session excluded from the stored sessions, or None for the
            session of the run.
    """
    if suite.config.disable or suite.memory.store() is None:
        return ()
    timed = [record for record in suite.reference_records() if record.estimates]
    hosts = dict.fromkeys(record.host for record in timed)
    return tuple(
        reference
        for host in hosts
        for several in grouped(r for r in timed if r.host == host).values()
        if (reference := _reference(suite, several, session_id)) is not None
    )


def _reference(
    suite: Suite, records: Sequence[Record], session_id: str | None
) -> Reference | None:
    """Return a reference workload, or None if only fresh processes timed it."""
    measured = [record for record in records if record.role.of_suite]
    fresh = [record for record in records if record.role is Role.CONFIRM]
    if not measured:
        return None
    host = measured[0].host
    case = case_of(
        measured,
        suite.memory.sessions(measured[0], ("time",)),
        metric="time",
        limit=None,
        session_id=(
            suite.site.session_of(host).id if session_id is None else session_id
        ),
        # The overhead of coverage is not part of the machine drift.
        across=suite.config.compare_across.difference(CONDITIONS),
    )
    times = [estimate for record in fresh for estimate in record.estimates]
    return Reference(
        name=case.key.name,
        bound_class=case.bound_class,
        current=case.current,
        stored=(*case.oldest, *case.stored),
        fresh=SessionValue.of(times) if times else None,
        host=host,
    )


def look(suite: Suite) -> FirstLook:
    """Return the first look at a run, with the tests to measure again."""
    straddling = [
        measured.test_id
        for measured in suite.results.values()
        if any(map(straddles, measured.verdicts))
        # Only tests measured on this host, because fresh processes run here.
        and all(record.host is None for record in measured.records)
    ]
    cases = _cases_of_suite(suite)
    return plan_retests(
        [case for case, _ in cases],
        suite.config,
        straddling=straddling,
        references=references_of(suite),
        compared=[comparison for _, comparison in cases],
        shard_count=suite.site.shard_count(),
    )


def limits(suite: Suite, retests: Mapping[str, Retest]) -> list[Verdict]:
    """Return the verdicts of limits, and of missing values."""
    ended_early = bool(suite.config.confirm) and not suite.completeness().complete
    verdicts: list[Verdict] = []
    for measured in suite.results.values():
        if measured.body_failed:
            continue
        if measured.verdicts:
            retest = retests.get(measured.test_id)
            verdicts += _confirmed(suite, measured, retest, ended_early=ended_early)
        lacks = lacking(measured)
        # The skip already says that values are missing.
        if measured.skipped:
            lacks = [v for v in lacks if v.outcome is not Outcome.UNMEASURED]
        verdicts += lacks
    return verdicts + [lost_alone(*lost) for lost in suite.failed_alone.items()]


def _confirmed(
    suite: Suite, measured: Measured, retest: Retest | None, *, ended_early: bool
) -> list[Verdict]:
    """Return the verdicts of limits after the fresh processes."""
    # Needed only by tests with limits.
    from pytest_gpuperf.judge.limit import confirm_limit, doubted

    decided = [
        confirm_limit(
            verdict,
            measured.records,
            retest,
            partial(spread_of, memory=suite.memory),
            ended_early=ended_early,
        )
        for verdict in measured.verdicts
    ]
    if suite.config.strict:
        records = (*measured.records, *(retest.records if retest else ()))
        decided = [doubted(verdict, records) for verdict in decided]
    return decided


def changes(
    first: FirstLook,
    confirmed: Mapping[tuple[RecordKey, str], Confirmation],
    references: Sequence[Reference],
    *,
    complete: bool,
    strict: bool = False,
    shard_count: int = 1,
) -> tuple[Verdict, ...]:
    """
    Return the verdicts against the baseline, and changes that are only shown.

    Args:
        first: The first look at the run.

        confirmed: The results of fresh processes, by the name of the case.

        references: The reference workloads of the run, its fresh processes and the
            stored sessions.

        complete: True if every test reported.

        strict: True if a slowdown found only in the suite is undecided.

        shard_count: Number of shards of the run.
    """
    if not first.cases:
        return ()
    policy = replace(POLICY, shard_count=shard_count)
    judged = settle(
        first.cases,
        confirmed,
        policy,
        complete=complete,
        looks=first.looks,
        references=references,
    )
    if confirmed:
        # Needed only by runs with fresh processes.
        from pytest_gpuperf.judge.retests import with_suite

        judged = with_suite(judged, first.cases, first.looks, policy, strict=strict)
    return (*judged, *shown(first.cases, looks=first.looks))


def with_kernels(suite: Suite, changes: Sequence[Verdict]) -> tuple[Verdict, ...]:
    """Add the earlier and current kernels to verdicts if other kernels ran."""
    moved = {Outcome.REGRESSED, Outcome.IMPROVED, Outcome.INCONCLUSIVE}
    if moved.isdisjoint([verdict.outcome for verdict in changes]):
        return tuple(changes)
    # Needed only where a value moved.
    from pytest_gpuperf.judge import origin

    records = grouped(suite.records())

    def named(verdict: Verdict) -> Verdict:
        several = records.get(verdict.key, ())
        if verdict.outcome not in moved or not several:
            return verdict
        sessions = suite.memory.sessions(several[0])
        return origin.with_kernels(verdict, several, sessions)

    return tuple(map(named, changes))


def without_news_of_failures(
    suite: Suite, changes: Sequence[Verdict]
) -> tuple[Verdict, ...]:
    """
    Leave out that nothing is stored of tests that ended by an expected failure.

    Such a test is never stored, so it would stay new.
    """
    ended = {test_id for test_id, m in suite.results.items() if m.xfailed}
    return tuple(
        verdict
        for verdict in changes
        if verdict.outcome is not Outcome.NEW or verdict.key.test_id not in ended
    )


def with_doubts(suite: Suite, changes: Sequence[Verdict]) -> tuple[Verdict, ...]:
    """Leave improvements undecided that only calls with doubtful work show."""
    from pytest_gpuperf.judge.limit import doubted

    records = suite.records()
    return tuple(doubted(verdict, records) for verdict in changes)


def with_origins(suite: Suite, changes: Sequence[Verdict]) -> tuple[Verdict, ...]:
    """Add the likely origin to verdicts about a worsening."""
    moved = {Outcome.REGRESSED, Outcome.INCONCLUSIVE}
    compared = [v for v in changes if v.change is not None]
    if moved.isdisjoint([v.outcome for v in compared]) and not any(
        v.baseline is not None and BOARD in v.baseline.moved for v in compared
    ):
        return tuple(changes)
    # Needed only where a value moved, or was measured by another GPU.
    from pytest_gpuperf.judge.origin import Background, background_of, with_origin

    records = grouped(suite.records())

    def explained(verdict: Verdict) -> Verdict:
        several, span = records.get(verdict.key, ()), verdict.baseline
        background = Background()
        if several and span is not None and verdict.outcome is Outcome.REGRESSED:
            record = several[0]
            background = background_of(
                record,
                suite.memory.sessions(record),
                span,
                suite.site.session_of(record.host),
            )
        return with_origin(verdict, background)

    return tuple(map(explained, changes))


def as_confirmed(
    changes: Sequence[Verdict], by_revision: Confirmed
) -> tuple[Verdict, ...]:
    """Replace verdicts against a baseline by the verdicts of comparisons with commits."""
    decided = by_revision.verdicts
    if not decided:
        return tuple(changes)
    return tuple(
        replace(decided[name], baseline=verdict.baseline)
        if (name := (verdict.key, verdict.metric)) in decided
        else verdict
        for verdict in changes
    )


def shifts(
    first: FirstLook,
    confirmed: Mapping[tuple[RecordKey, str], Confirmation],
    references: Sequence[Reference],
) -> tuple[MachineShift, ...]:
    """Return the machine drift of the classes of tests with measured controls."""
    if not confirmed:
        return ()
    # Needed only by runs with fresh processes.
    from pytest_gpuperf.judge.retests import machine_shifts

    return machine_shifts(first.cases, confirmed, references=references)


def judge_limits(
    plan: Plan,
    test_id: str,
    records: Sequence[Record],
    memory: Memory,
    *,
    grades: Mapping[str, Bands] | None = None,
) -> tuple[Verdict, ...]:
    """
    Return a verdict for each limit of a test and each matching measurement.

    Args:
        plan: The plan of the test, with the limits.

        test_id: The test.

        records: The records of the test.

        memory: The stored sessions, which show the usual spread.

        grades: The thresholds of grades, by roof. For other roofs, the plugin's
            defaults apply.
    """
    # Loaded before the tests where they have limits.
    from pytest_gpuperf.judge import limit

    verdicts = limit.judge_limits(
        plan,
        test_id,
        records,
        lambda metric, record: spread_of(metric, record, memory),
        grades=grades,
    )
    return tuple(map(in_words, verdicts))


def spread_of(metric: str, record: Record, memory: Memory) -> Spread | None:
    """Return the spread of a metric in stored sessions, or None if too few are stored."""
    from pytest_gpuperf.judge import limit

    stored = memory.sessions(record, (metric,))
    return limit.spread_of(metric, record, stored, lambda: memory.usual_spreads(record))


def in_words(verdict: Verdict, *, compared: bool = False) -> Verdict:
    """
    Return a verdict with its evidence in words and a remedy for pytest.

    Args:
        verdict: The judgement.

        compared: Whether the run already compares with a revision.
    """
    if is_plain(verdict):
        return verdict
    from pytest_gpuperf.report.sentences import for_pytest

    return for_pytest(verdict, compared=compared)
