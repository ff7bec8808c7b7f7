"""What outlives a run: sessions for the baseline, samples for a report."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pytest_gpuperf.baseline.history import (
    Append,
    Restart,
    StoreChange,
    dropped_by,
    stored_record,
    with_alone,
)
from pytest_gpuperf.baseline.store import storing_command
from pytest_gpuperf.collect import environment as surroundings
from pytest_gpuperf.collect import replay
from pytest_gpuperf.collect.clock import SystemClock
from pytest_gpuperf.collect.session import new_session
from pytest_gpuperf.compute.stats import median, quantile
from pytest_gpuperf.config import Config, Update
from pytest_gpuperf.judge.case import Case, case_of, comparable_sessions
from pytest_gpuperf.judge.regression import MORE_SESSIONS, smallest_seen
from pytest_gpuperf.judge.tally import accepted_outcomes
from pytest_gpuperf.model.codec import SCHEMA_VERSION
from pytest_gpuperf.model.environment import same_company
from pytest_gpuperf.model.frozen import Frozen, replace
from pytest_gpuperf.model.record import (
    QUANTILES,
    Record,
    RecordKey,
    Role,
    SessionValue,
    StoredRecord,
)
from pytest_gpuperf.model.run import Completeness, Header, Run
from pytest_gpuperf.model.verdict import Outcome, Reason, Verdict, VerdictEvidence
from pytest_gpuperf.pipeline.alone import (
    MeasureAlone,
    alone_records,
    has_noise,
    measure_alone,
)
from pytest_gpuperf.pipeline.memory import slug_of
from pytest_gpuperf.pipeline.verdicts import gates, grouped, references_of
from pytest_gpuperf.report import display, terminal
from pytest_gpuperf.report.explanation import completed, listed
from pytest_gpuperf.report.words import changed_test, for_pytest

if TYPE_CHECKING:
    from pytest_gpuperf.pipeline.suite import Suite

__all__ = [
    "store",
    "with_samples",
    "with_sessions",
    "write_interrupted",
    "write_reports",
    "write_so_far",
]

# docs/judging.md section 2: a value that is known worse than that says nothing
_MOST_LIMITS = 10.0  # half-width of an interval, in limits
_USUAL_LIMIT = 0.05  # of a metric that has none

# what the JSON report says until the run replaces it
_INTERRUPTED = "the run ended before it wrote its report, or it measured nothing"
_KILLED = "the run ended before its last test"


class _Noise(NamedTuple):
    """
    A value that says too little to be stored.

    Attributes:
        key: The measurement.

        metric: The metric.

        width: Half-width of its interval [fraction].

        limit: The widest that is stored [fraction].
    """

    key: RecordKey
    metric: str
    width: float
    limit: float


class _Plan(Frozen, frozen=True, kw_only=True):
    """
    What is stored of one measurement.

    Attributes:
        change: The change of the store.

        slug: The machine that it is stored for.

        before: The sessions that were stored before.

        dropped_count: Stored sessions whose values it replaces.

        session_count: Sessions that are stored then.
    """

    change: Append | Restart
    slug: str
    before: tuple[StoredRecord, ...]
    dropped_count: int
    session_count: int


@dataclasses.dataclass(slots=True, kw_only=True)
class _Planned:
    """
    What is stored of a run, and what is not.

    Attributes:
        plans: What is stored of each measurement.

        noise: Values that say too little to be stored.

        barred_count: Measurements that must not be stored.

        slower_count: Those that lack a metric that was slower in the suite than alone.
    """

    plans: list[_Plan] = dataclasses.field(default_factory=list)
    noise: list[_Noise] = dataclasses.field(default_factory=list)
    barred_count: int = 0
    slower_count: int = 0


def store(suite: Suite, run: Run, measure: MeasureAlone = lambda _: {}) -> Run:
    """
    Store what this run may store: nothing of an incomplete one, nothing that failed.

    Args:
        suite: All that the run has gathered.

        run: The run, decided.

        measure: Measures tests alone, in fresh processes.

    Returns:
        The run, with what was measured alone; verdicts of a baseline that is being built
        say how far it is.

    Raises:
        BaselineError: The store cannot be written; it is as it was.
    """
    if suite.config.update is None:
        return run
    if not run.header.completeness.complete:
        suite.remark(terminal.nothing_stored("not every test reported"))
        return run
    groups = grouped(with_samples(suite, run).records)
    planned = _all_planned(suite, groups, run.verdicts)
    plans = planned.plans
    if plans:
        run, plans = _measured_alone(suite, run, plans, measure)
    suite.memory.write(_by_slug(suite, plans, run.references))
    run, dropped = _without_removed(suite, run)
    suite.memory.forget()  # what follows asks for what is stored now
    for text in (
        *_stored_lines(suite, planned, _idle(suite, groups)),
        *_company_lines(suite, plans),
        *_accepted_lines(plans),
        *dropped,
        *_seen(suite, plans),
    ):
        suite.remark(text)
    return _with_progress(suite, run, plans)


def _all_planned(
    suite: Suite,
    groups: Mapping[RecordKey, Sequence[Record]],
    verdicts: Sequence[Verdict],
) -> _Planned:
    """Return what is stored of all measurements, and what is not."""
    judged: dict[RecordKey, list[Verdict]] = {}
    for verdict in verdicts:
        judged.setdefault(verdict.key, []).append(verdict)
    planned = _Planned()
    for key, records in groups.items():
        of_key = judged.get(key, [])
        void = any(record.void is not None for record in records)
        if not suite.may_store(key.test_id) or void or _is_barred(suite, of_key):
            planned.barred_count += 1
            continue
        plan, noisy = _planned(suite, records, of_key)
        planned.noise.extend(noisy)
        planned.slower_count += bool(_slower_in_suite(suite, of_key))
        if plan is not None:
            planned.plans.append(plan)
    return planned


def _is_barred(suite: Suite, verdicts: Sequence[Verdict]) -> bool:
    """Return whether a measurement must not be stored; what is undecided may be."""
    barred = {Outcome.FAILED, Outcome.REGRESSED} - accepted_outcomes(
        suite.config.update
    )
    return any(verdict.outcome in barred for verdict in verdicts)


def _planned(
    suite: Suite, records: Sequence[Record], verdicts: Sequence[Verdict]
) -> tuple[_Plan | None, list[_Noise]]:
    """Return what is stored of a measurement, if anything, and what is too noisy."""
    measured = _in_suite(records)
    if not measured:
        return None, []
    session, noise = _without_noise(suite, _session(suite, measured))
    slower = _slower_in_suite(suite, verdicts)
    if slower:
        slower = _family_of(slower, session.values)
        kept = tuple(v for v in session.values if v.metric not in slower)
        session = replace(session, values=kept)
    change = _change(suite, session, measured[0], verdicts)
    if change is None:
        return None, noise
    stored = suite.memory.sessions(measured[0])
    dropped_count = dropped_by(change, stored)
    counted = 0 if dropped_count else _fewest(suite, session, measured[0], verdicts)
    plan = _Plan(
        change=change,
        slug=slug_of(measured[0]),
        before=tuple(stored),
        dropped_count=dropped_count,
        session_count=counted + 1,
    )
    return plan, noise


def _slower_in_suite(suite: Suite, verdicts: Sequence[Verdict]) -> frozenset[str]:
    """
    Return the metrics of a measurement that were slower in the suite than alone.

    Neither value is stored: what another test left behind is no value of this one, and one
    that was measured alone would stand in a series of values of the suite. `all` stores
    that of the suite.
    """
    if suite.config.update is Update.ALL:
        return frozenset()
    return frozenset(v.metric for v in verdicts if v.in_suite is not None)


def _measured_alone(
    suite: Suite, run: Run, plans: Sequence[_Plan], measure: MeasureAlone
) -> tuple[Run, list[_Plan]]:
    """Return a run and its plans with what fresh processes measure alone of some tests."""
    sessions = {plan.change.key: (plan.change.record, plan.before) for plan in plans}
    measure_alone(suite, sessions, measure)
    run = replace(run, records=suite.records(), references=suite.reference_records())
    records = alone_records(suite)
    completed = []
    for plan in plans:
        key = plan.change.key
        session = with_alone(
            plan.change.record,
            records.get(key, ()),
            suspected=key.test_id in suite.suspects,
        )
        change = replace(plan.change, record=session)
        completed.append(replace(plan, change=change))
    return run, completed


def _by_slug(
    suite: Suite, plans: Sequence[_Plan], references: Sequence[Record]
) -> dict[str, list[StoreChange]]:
    """Return the changes by machine; reference workloads are stored with any test."""
    changes: dict[str, list[StoreChange]] = {}
    for plan in plans:
        changes.setdefault(plan.slug, []).append(plan.change)
    for records in grouped(references).values() if plans else ():
        valid = [r for r in _in_suite(records) if r.void is None]
        fresh = [record for record in records if not record.role.of_suite]
        for host in dict.fromkeys(record.host for record in valid):
            measured = [record for record in valid if record.host == host]
            alone = [record for record in fresh if record.host == host]
            change = Append(record=with_alone(_session(suite, measured), alone))
            changes.setdefault(slug_of(measured[0]), []).append(change)
    return changes


def _without_removed(suite: Suite, run: Run) -> tuple[Run, list[str]]:
    """
    Drop the stored tests that are no longer in the code.

    Never by a run of a part or a shard, nor by one that did not measure here.

    Returns:
        The run, of which these tests are no longer absent, and lines that name them.
    """
    completeness, slugs = run.header.completeness, suite.slugs_here()
    config, scope = suite.config, completeness.scope
    elsewhere = config.disable or config.replay is not None
    if scope is None or slugs is None or elsewhere or suite.site.shard() is not None:
        return run, []
    drops, doubted = suite.memory.removed(
        suite.site.all_expected().test_ids,
        slugs,
        scope=scope,
        session=run.header.session,
        python_minor=run.header.environment.python_minor,
    )
    suite.memory.drop(drops)
    id_of, place = config.checkout.id_of, suite.memory.place()
    every = [drop for of_folder in drops.values() for drop in of_folder]
    removed = [*dict.fromkeys(id_of(drop.key.test_id) for drop in every)]
    lines: list[str] = []
    kept = suite.results.keys()
    if removed:
        sessions = {each for drop in every for each in drop.session_ids}
        lines += terminal.dropped_lines(removed, len(sessions), place, kept=kept)
    if doubted:
        lines += terminal.not_dropped_lines([*map(id_of, doubted)], place, kept=kept)
    left = replace(
        completeness,
        absent=tuple(t for t in completeness.absent if t not in removed),
        removed=tuple(t for t in completeness.removed if t not in removed),
    )
    return replace(run, header=replace(run.header, completeness=left)), lines


def _in_suite(records: Sequence[Record]) -> list[Record]:
    """Return what the suite measured; empty: only processes that confirm came to it."""
    return [record for record in records if record.role.of_suite]


def _session(suite: Suite, measured: Sequence[Record]) -> StoredRecord:
    """Return the session of a measurement, with the quantiles of its samples."""
    session = stored_record(measured, suite.site.session_of(measured[0].host))
    samples = {(s.metric, s.unit, s.source): s.values for s in measured[0].series}
    values = []
    for value in session.values:
        numbers = samples.get((value.metric, value.unit, value.source), ())
        if len(numbers) >= len(QUANTILES):
            quantiles = tuple(quantile(numbers, share) for share in QUANTILES)
            value = replace(value, quantiles=quantiles)  # noqa: PLW2901 - the same value, completed
        values.append(value)
    return replace(session, values=tuple(values))


def _noise_of(suite: Suite, session: StoredRecord) -> dict[str, dict[str, _Noise]]:
    """Return the values of a session that say too little, by source and metric."""
    limits = gates(suite.results[session.key.test_id], suite.config)
    noisy: dict[str, dict[str, _Noise]] = {}
    for value in session.values:
        most = _MOST_LIMITS * (limits.get(value.metric) or _USUAL_LIMIT)
        width = median(value.half_widths) if value.half_widths else 0.0
        if width > most:
            of_source = noisy.setdefault(value.source, {})
            of_source[value.metric] = _Noise(session.key, value.metric, width, most)
    return noisy


def _without_noise(
    suite: Suite, session: StoredRecord
) -> tuple[StoredRecord, list[_Noise]]:
    """
    Return a session without values that say too little, and these.

    A device's stays without the host's of the same calls, which other programs disturb. A
    metric that no source keeps is among these, unless it is a part of one that is stored,
    or told of, and nothing gates it.
    """
    noisy = _noise_of(suite, session)
    if not noisy:
        return session, []
    names = {
        source: _family_of(frozenset(of_source), session.values)
        for source, of_source in noisy.items()
    }
    values = tuple(
        value
        for value in session.values
        if value.metric not in names.get(value.source, ())
    )
    left = {value.metric for value in values}
    lost = {
        metric: each
        for of_source in noisy.values()
        for metric, each in of_source.items()
        if metric not in left
    }
    gated = gates(suite.results[session.key.test_id], suite.config)
    noise = []
    for metric, each in lost.items():
        whole, _, part = metric.partition(".")
        if not part or (whole not in lost and (whole not in left or metric in gated)):
            noise.append(each)
    return replace(session, values=values), noise


def _change(
    suite: Suite, session: StoredRecord, first: Record, judged: Sequence[Verdict]
) -> Append | Restart | None:
    """Return what to do with a measurement; None: nothing."""
    update = suite.config.update
    if not session.values:
        return None
    if update is Update.NEW:
        few = _fewest(suite, session, first, judged) < suite.config.sessions
        return Append(record=session) if few else None
    accepted = accepted_outcomes(update)
    metrics = frozenset(
        v.metric
        for v in judged
        if v.outcome in accepted
        and v.reason is not Reason.NOT_CONFIRMED
        and not v.of_revision
        and not (update is Update.IMPROVED and changed_test(v))
    )
    if metrics:
        family = _family_of(metrics, session.values)
        # it may have come with another kernel: the old one's values are replaced, too
        return Restart(record=session, metrics=family)
    return Append(record=session) if update is Update.ALL else None


def _fewest(
    suite: Suite, session: StoredRecord, first: Record, judged: Sequence[Verdict]
) -> int:
    """
    Return how many stored sessions a measurement may be compared with, now.

    Of those that ran the same choice of kernels and about as many tests: others do not say
    how far these differ.
    Of several metrics that are held against something the one with the fewest counts; of
    several sources of a metric the one with the most, which is what is compared.
    """
    measured = suite.results[first.key.test_id]
    held = gates(measured, suite.config).keys() | {v.metric for v in judged}
    gated = [v for v in session.values if v.metric in held] or session.values
    stored = [
        s
        for s in suite.memory.sessions(first)
        if s.choice == session.choice and same_company(s.session, session.session)
    ]
    across = suite.config.compare_across
    most: dict[str, int] = {}
    for value in gated:
        count = comparable_sessions(value, session, stored, across=across)
        most[value.metric] = max(count, most.get(value.metric, 0))
    return min(most.values())


def _family_of(
    metrics: frozenset[str], values: Sequence[SessionValue]
) -> frozenset[str]:
    """Return metrics with those that are parts of them: time.p95 goes with time."""
    names = {value.metric for value in values}
    return frozenset(
        name for name in names if name in metrics or name.partition(".")[0] in metrics
    )


def _idle(
    suite: Suite, groups: Mapping[RecordKey, Sequence[Record]]
) -> tuple[str, str]:
    """Return why a run may have nothing to store, and what stores something; "": nothing."""
    if suite.config.update is not Update.IMPROVED:
        return "every baseline has enough sessions", ""
    stored = [suite.memory.sessions(records[0]) for records in groups.values()]
    new = "" if all(stored) else f"store new tests: {_storing(suite)}"
    improved = (v for v in suite.verdicts if v.outcome is Outcome.IMPROVED)
    changed = any(map(changed_test, improved))
    return f"no {'unchanged ' if changed else ''}test improved", new


def _storing(suite: Suite) -> str:
    """Return the command that stores sessions where this run does."""
    named = suite.config.baseline_named
    return display.escape(storing_command(suite.memory.place() if named else None))


def _stored_lines(
    suite: Suite, planned: _Planned, idle: tuple[str, str]
) -> Iterator[str]:
    """
    Yield how much was stored, and what was not.

    Args:
        suite: All that the run has gathered.

        planned: What was stored, and what was not.

        idle: Why a run may have nothing to store, and what stores something.
    """
    changes: dict[str, list[StoreChange]] = {}
    for plan in planned.plans:
        changes.setdefault(plan.slug, []).append(plan.change)
    left_out = planned.barred_count, planned.slower_count
    if planned.plans or any(left_out) or not planned.noise:
        place = suite.memory.place()
        otherwise, remedy = idle
        yield terminal.stored_line(changes, place, *left_out, otherwise=otherwise)
        if remedy and not (planned.plans or any(left_out)):
            yield remedy  # in a line of its own, so that it can be copied
    if planned.noise:
        text = f"too noisy to be stored: {listed(_noise_texts(planned.noise))}"
        yield f"{text}; measure on a quieter machine, or time more work in a call"


def _noise_texts(noise: Sequence[_Noise]) -> Iterator[str]:
    """Yield a text a metric: a test's own, or of how many tests it is."""
    by_metric: dict[str, list[_Noise]] = {}
    for each in noise:
        by_metric.setdefault(each.metric, []).append(each)
    for metric, several in by_metric.items():
        of = f"{several[0].key} {metric}"
        if len(several) > 1:
            of = f"{metric} of {display.plural(len(several), 'measurement')}"
        least, *_, most = sorted([each.width for each in several] * 2)
        widths = [display.change(each, signed=False) for each in (least, most)]
        limit = display.change(max(each.limit for each in several), signed=False)
        yield f"{of} (±{' to ±'.join(dict.fromkeys(widths))}, at most ±{limit})"


def _company_lines(suite: Suite, plans: Sequence[_Plan]) -> Iterator[str]:
    """Yield how many tests a run of a part ran, and the sessions beside which it stores."""
    session = suite.site.session
    others = {
        before.session.id: before.session.ran_count or 0
        for plan in plans
        for before in plan.before
        if not same_company(before.session, session)
    }
    if others:
        yield terminal.company_line(session.ran_count or 0, [*others.values()])


def _accepted_lines(plans: Sequence[_Plan]) -> Iterator[str]:
    """Yield what was accepted, and what it replaced; `_seen` says what is wanted then."""
    accepted = [plan for plan in plans if plan.dropped_count]
    if not accepted:
        return
    names = listed(str(plan.change.key) for plan in accepted)
    dropped = display.plural(max(plan.dropped_count for plan in accepted), "session")
    yield f"accepted {names}: {dropped} dropped"


def _seen(suite: Suite, plans: Sequence[_Plan]) -> Iterator[str]:
    """Yield what the baseline sees now, and what it would see with more sessions."""
    plans = _noisy(plans)
    if not plans:
        return
    fewest = min(plan.session_count for plan in plans)
    most_sessions = suite.config.sessions
    counted = f"{fewest} of {most_sessions}" if fewest < most_sessions else str(fewest)
    text = f"the baseline has {counted} sessions"
    cases = _cases_as_stored(suite)
    keys = {plan.change.key for plan in plans}
    effects = _effects_seen(suite, cases, keys)
    if effects:
        later = _effects_seen(suite, cases, keys, more_sessions=MORE_SESSIONS)
        text += f" and sees {display.least(median([*effects.values()]))} or more"
        more = f"with {MORE_SESSIONS} more: {display.least(median([*later.values()]))}"
        if len(effects) > 1:
            worst = max(effects, key=effects.__getitem__)
            text += f" in half of its tests, {display.least(effects[worst])} in {worst}"
            more += f" and {display.least(later[worst])}"
        text += f" ({more})"
    missing = most_sessions - fewest
    if missing <= 0:
        yield text
        return
    yield f"{text}; {missing} more wanted"
    yield f"store another session: {_storing(suite)}"


def _noisy(plans: Sequence[_Plan]) -> list[_Plan]:
    """Return the plans that hold more than what is exact, of which one session tells all."""
    return [p for p in plans if any(map(has_noise, p.change.record.values))]


def _cases_as_stored(suite: Suite) -> list[Case]:
    """Return the cases of a run beside what is stored now, its own session included."""
    records = [
        record
        for record in suite.records()
        if record.role.of_suite and suite.may_store(record.key.test_id)
    ]
    return [
        case_of(
            group,
            suite.memory.sessions(group[0]),
            metric=metric,
            limit=limit,
            session_id="",  # this session is one of the stored ones now
            across=suite.config.compare_across,
        )
        for key, group in grouped(records).items()
        for metric, limit in gates(suite.results[key.test_id], suite.config).items()
    ]


def _effects_seen(
    suite: Suite,
    cases: Sequence[Case],
    keys: Collection[RecordKey],
    *,
    more_sessions: int = 0,
) -> dict[RecordKey, float]:
    """Return the smallest change of some measurements that their sessions show."""
    references = references_of(suite, session_id="")
    smallest = smallest_seen(cases, references=references, more_sessions=more_sessions)
    effects: dict[RecordKey, float] = {}
    for case, effect in zip(cases, smallest, strict=True):
        if effect is not None and case.key in keys:
            effects[case.key] = max(effect, effects.get(case.key, 0.0))
    return effects


def _with_progress(suite: Suite, run: Run, plans: Sequence[_Plan]) -> Run:
    """Return a run whose undecided verdicts say how many sessions are stored."""
    most_sessions = suite.config.sessions
    counts = {
        plan.change.key: plan.session_count
        for plan in _noisy(plans)
        if plan.session_count < most_sessions
    }
    verdicts = tuple(
        _building(verdict, counts[verdict.key], most_sessions)
        if verdict.key in counts and _lacks_sessions(verdict)
        else verdict
        for verdict in run.verdicts
    )
    return replace(run, verdicts=verdicts)


def _lacks_sessions(verdict: Verdict) -> bool:
    """Return whether a verdict is open because too little is stored."""
    few = verdict.reason is Reason.TOO_FEW_SESSIONS
    return few or verdict.reason is Reason.NOTHING_STORED


def _building(verdict: Verdict, count: int, most_sessions: int) -> Verdict:
    """Return a verdict that says how far its baseline is built."""
    evidence = verdict.evidence or VerdictEvidence()
    return replace(verdict, evidence=replace(evidence, building=(count, most_sessions)))


def with_sessions(suite: Suite, run: Run) -> Run:
    """Return a run with the stored sessions that its changes were judged against."""
    records = {r.key: r for r in reversed(run.records) if r.role is Role.MAIN}
    metrics: dict[RecordKey, set[str]] = {}
    for verdict in run.verdicts:
        changed = verdict.change is not None or verdict.reason is Reason.OTHER_KERNEL
        if changed and verdict.key in records:
            metrics.setdefault(verdict.key, set()).add(verdict.metric)
    stored: list[StoredRecord] = []
    for key, names in metrics.items():
        now = stored_record([records[key]], run.header.session)
        sessions = []
        for session in suite.memory.sessions(records[key]):
            values = tuple(_compared(suite, now, session, names))
            if values:
                bare = replace(session, values=values, facts={}, soft_facts={})
                sessions.append(bare)
        stored += _with_newest_kernels(sessions)
    return replace(run, stored=tuple(stored))


def _with_newest_kernels(sessions: Sequence[StoredRecord]) -> Iterator[StoredRecord]:
    """Yield sessions, oldest first, of which the newest with kernels alone has some."""
    newest = max((i for i, one in enumerate(sessions) if one.kernels), default=-1)
    for place, session in enumerate(sessions):
        yield session if place == newest else replace(session, kernels=())


def _compared(
    suite: Suite, now: StoredRecord, session: StoredRecord, metrics: Collection[str]
) -> Iterator[SessionValue]:
    """Yield the values of a stored session that some of now are compared with."""
    across = suite.config.compare_across
    for value in now.values:
        if value.metric not in metrics:
            continue
        if comparable_sessions(value, now, [session], across=across):
            alike = (value.metric, value.source, value.unit)
            for then in session.values:
                if (then.metric, then.source, then.unit) == alike:
                    yield then


def write_reports(suite: Suite, run: Run) -> None:
    """
    Write the reports that were asked for.

    Raises:
        ReportError: A file cannot be written.
    """
    reports = suite.config.reports
    if not reports:
        return
    from pytest_gpuperf.report.runs import write_report

    run = completed(with_samples(suite, run))
    for form, path in reports.items():
        write_report(run, form, path)


def write_interrupted(config: Config) -> None:
    """
    Write reports that say that the run was interrupted: true until they are replaced.

    Code under test may end the process with any exit status, and a report of an earlier
    run must not stand for this one. Nothing is written to a pipe or a device.

    Raises:
        ReportError: A file cannot be written.
    """
    from pytest_gpuperf.report import runs

    header = Header(
        session=new_session(SystemClock()),
        environment=surroundings.environment(),
        completeness=Completeness(
            expected_count=0, reported_count=0, interrupted=_INTERRUPTED
        ),
        options=config.option_texts,
    )
    run = Run(schema=SCHEMA_VERSION, header=header, records=())
    for form, path in config.reports.items():
        if runs.is_stream(path):
            runs.check_stream(path)
        else:
            runs.write_report(run, form, path)


def write_so_far(suite: Suite) -> None:
    """
    Write the JSON report of a run that has not ended, which is left if it is killed.

    Raises:
        ReportError: The file cannot be written.
    """
    from pytest_gpuperf.report.runs import is_stream, write_report

    path = suite.config.json
    if path is None or is_stream(path):
        return
    header = suite.header()
    reached = replace(header.completeness, interrupted=_KILLED)
    verdicts = (v for test in suite.results.values() for v in test.verdicts)
    run = suite.gathered(
        replace(header, completeness=reached), tuple(map(for_pytest, verdicts))
    )
    write_report(with_samples(suite, run), "json", path)


def with_samples(suite: Suite, run: Run) -> Run:
    """Return a run with the samples that its processes kept, for reports."""
    spool = suite.site.identity.spool
    if spool is None:
        return run
    readings = replay.read_readings(spool)
    return replace(
        run,
        records=tuple(
            suite.steady(
                readings.get((record.key, record.role, record.process_index), record)
            )
            for record in run.records
        ),
    )
