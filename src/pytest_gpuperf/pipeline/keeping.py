"""Keep the data that outlives a run: sessions for the baseline, samples for a report."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pytest_gpuperf.baseline.changes import Append, Restart, StoreChange, dropped_by
from pytest_gpuperf.baseline.store import storing_command
from pytest_gpuperf.baseline.stored_record import (
    shown_digits,
    stored_record,
    with_alone,
)
from pytest_gpuperf.collect import environment as surroundings
from pytest_gpuperf.collect import replay
from pytest_gpuperf.collect.clock import SystemClock
from pytest_gpuperf.collect.session import new_session, shard_of_run
from pytest_gpuperf.compute.stats import median, quantile
from pytest_gpuperf.config import Config, Update
from pytest_gpuperf.judge.case import POLICY, Case, case_of, values_alike
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
from pytest_gpuperf.pipeline import store_changes
from pytest_gpuperf.pipeline.alone import (
    MeasureAlone,
    alone_records,
    has_noise,
    measure_alone,
)
from pytest_gpuperf.pipeline.memory import slug_of
from pytest_gpuperf.pipeline.verdicts import (
    gates,
    grouped,
    in_words,
    references_of,
)
from pytest_gpuperf.report import display, notices
from pytest_gpuperf.report.display import listed
from pytest_gpuperf.report.escape import escape
from pytest_gpuperf.report.explanation import completed
from pytest_gpuperf.report.words import changed_test

if TYPE_CHECKING:
    from pytest_gpuperf.pipeline.suite import Suite

# docs/judging.md section 2: values with wider intervals are useless and not stored.
# The largest half-width of an interval, in limits of the metric.
_MOST_LIMITS = 10.0
# The limit of a metric without its own [fraction].
_USUAL_LIMIT = 0.05

# The reasons in the JSON report until the end of the run replaces it.
_INTERRUPTED = "the run ended before it wrote its report, or it measured nothing"
_KILLED = "the run ended before its last test"


class _Noise(NamedTuple):
    """
    A value with an interval too wide to be stored.

    Attributes:
        key: The measurement.

        metric: The metric.

        width: Half-width of the interval [fraction].

        limit: The largest half-width that is stored [fraction].
    """

    key: RecordKey
    metric: str
    width: float
    limit: float


class _Plan(Frozen, frozen=True, kw_only=True):
    """
    The planned change of the store for a measurement.

    Attributes:
        change: The change of the store.

        slug: The machine the session is stored for.

        before: The sessions stored before the change.

        dropped_count: Number of stored sessions whose values are replaced.

        session_count: Number of sessions stored after the change.
    """

    change: Append | Restart
    slug: str
    before: tuple[StoredRecord, ...]
    dropped_count: int
    session_count: int


@dataclasses.dataclass(slots=True, kw_only=True)
class _Planned:
    """
    The parts of a run to store, and the parts left out.

    Attributes:
        plans: The planned changes, one per measurement.

        noise: Values with intervals too wide to be stored.

        barred_count: Number of measurements that must not be stored.

        slower_count: Number of measurements stored without a metric that was slower in
            the suite than alone.
    """

    plans: list[_Plan] = dataclasses.field(default_factory=list)
    noise: list[_Noise] = dataclasses.field(default_factory=list)
    barred_count: int = 0
    slower_count: int = 0


def store(suite: Suite, run: Run, measure: MeasureAlone = lambda _: {}) -> Run:
    """
    Store the valid results of a run.

    Nothing is stored from an incomplete run or from a failed test.

    Args:
        suite: The collected data of the run.

        run: The decided run.

        measure: Measures tests alone, in fresh processes.

    Returns:
        The run with the values measured alone. Verdicts of an unfinished baseline have
        the number of stored sessions.

    Raises:
        BaselineError: The store cannot be written. The stored sessions are unchanged.
    """
    if suite.config.update is None or not suite.measured_anything():
        return run
    if not run.header.completeness.complete:
        suite.remark(notices.nothing_stored("not every test reported"))
        return run
    groups = grouped(with_samples(suite, run).records)
    planned = _all_planned(suite, groups, run.verdicts)
    plans = planned.plans
    if plans:
        run, plans = _measured_alone(suite, run, plans, measure)
    changes = _by_slug(suite, plans, run.references)
    if suite.config.changed:
        # Imported here, because most runs store no files.
        from pytest_gpuperf.pipeline.changed import store_files

        good = _good_records(suite, planned, groups, run.verdicts)
        if remark := store_files(suite, changes, good):
            suite.remark(remark)
    store_changes.write(suite.memory, changes)
    run, dropped = _without_removed(suite, run)
    # The lines below describe the store after the change.
    suite.memory.forget()
    for text in (
        *_stored_lines(suite, planned, groups),
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
    judged: dict[RecordKey, list[Verdict]] = {}
    for verdict in verdicts:
        judged.setdefault(verdict.key, []).append(verdict)
    planned = _Planned()
    # Undecided measurements may be stored.
    worse = {Outcome.FAILED, Outcome.REGRESSED}
    barred = worse - accepted_outcomes(suite.config.update)
    for key, records in groups.items():
        of_key = judged.get(key, [])
        void = any(record.void is not None for record in records)
        is_barred = any(verdict.outcome in barred for verdict in of_key)
        if not suite.may_store(key.test_id) or void or is_barred:
            planned.barred_count += 1
            continue
        plan, noisy = _planned(suite, records, of_key)
        planned.noise.extend(noisy)
        planned.slower_count += bool(_slower_in_suite(suite, of_key))
        if plan is not None:
            planned.plans.append(plan)
    return planned


def _good_records(
    suite: Suite,
    planned: _Planned,
    groups: Mapping[RecordKey, Sequence[Record]],
    verdicts: Sequence[Verdict],
) -> list[Record]:
    """
    Return a record of each test with all measurements stored, or passed when judged.

    A later run that does not measure such a test hides no regression.
    """
    stored = {plan.change.key for plan in planned.plans}
    judged: dict[RecordKey, set[Outcome]] = {}
    for verdict in verdicts:
        judged.setdefault(verdict.key, set()).add(verdict.outcome)
    passing = {Outcome.PASSED, Outcome.UNCHANGED, Outcome.IMPROVED, Outcome.BLIND}
    good: dict[str, Record] = {}
    bad = set()
    for key, records in groups.items():
        has_passed = bool(judged.get(key)) and judged[key] <= passing
        is_void = any(record.void is not None for record in records)
        if key in stored or (
            has_passed and suite.may_store(key.test_id) and not is_void
        ):
            good.setdefault(key.test_id, records[0])
        else:
            bad.add(key.test_id)
    return [record for test_id, record in good.items() if test_id not in bad]


def _planned(
    suite: Suite, records: Sequence[Record], verdicts: Sequence[Verdict]
) -> tuple[_Plan | None, list[_Noise]]:
    """
    Return the plan for a measurement, or None if there is nothing to store, and noisy values.
    """
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

    Neither value is stored. The value of the suite shows the effect of another test,
    and a value measured alone does not belong in a series of values of the suite.
    With `all`, the value of the suite is stored.
    """
    if suite.config.update is Update.ALL:
        return frozenset()
    return frozenset(v.metric for v in verdicts if v.in_suite is not None)


def _measured_alone(
    suite: Suite, run: Run, plans: Sequence[_Plan], measure: MeasureAlone
) -> tuple[Run, list[_Plan]]:
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
    Drop stored tests that are no longer in the code.

    A run of a part or a shard never drops tests, nor does a run that did not measure
    here.

    Returns:
        The run, in which these tests are no longer absent, and lines that name them.
    """
    completeness, slugs = run.header.completeness, suite.slugs_here()
    config, scope = suite.config, completeness.scope
    elsewhere = config.disable or config.replay is not None
    if scope is None or slugs is None or elsewhere or suite.site.shard() is not None:
        return run, []
    drops, doubted = store_changes.removed(
        suite.memory,
        suite.site.all_expected().test_ids,
        slugs,
        scope=scope,
        session=run.header.session,
        python_minor=run.header.environment.python_minor,
    )
    store_changes.drop(suite.memory, drops)
    id_of, place = config.checkout.id_of, suite.memory.place()
    every = [drop for of_folder in drops.values() for drop in of_folder]
    removed = [*dict.fromkeys(id_of(drop.key.test_id) for drop in every)]
    lines: list[str] = []
    kept = suite.results.keys()
    if removed:
        sessions = {each for drop in every for each in drop.session_ids}
        lines += notices.dropped_lines(removed, len(sessions), place, kept=kept)
    if doubted:
        lines += notices.not_dropped_lines([*map(id_of, doubted)], place, kept=kept)
    left = replace(
        completeness,
        absent=tuple(t for t in completeness.absent if t not in removed),
        removed=tuple(t for t in completeness.removed if t not in removed),
    )
    return replace(run, header=replace(run.header, completeness=left)), lines


def _in_suite(records: Sequence[Record]) -> list[Record]:
    return [record for record in records if record.role.of_suite]


def _session(suite: Suite, measured: Sequence[Record]) -> StoredRecord:
    session = stored_record(measured, suite.site.session_of(measured[0].host))
    samples = {(s.metric, s.unit, s.source): s.values for s in measured[0].series}
    values = []
    for value in session.values:
        numbers = samples.get((value.metric, value.unit, value.source), ())
        if len(numbers) >= len(QUANTILES):
            shown = (shown_digits(quantile(numbers, share)) for share in QUANTILES)
            value = replace(value, quantiles=tuple(shown))  # noqa: PLW2901 - the same value, completed
        values.append(value)
    return replace(session, values=tuple(values))


def _without_noise(
    suite: Suite, session: StoredRecord
) -> tuple[StoredRecord, list[_Noise]]:
    """
    Return a session without noisy values, and the values that were removed.

    Device times stay if the host times of the same calls are noisy, because other
    programs disturb only the host. A removed metric is reported if no source keeps it.
    A part of a metric is not reported if the whole is reported, or if the whole is stored
    and nothing gates the part.
    """
    gated = gates(suite.results[session.key.test_id], suite.config)
    # By source and by metric.
    noisy: dict[str, dict[str, _Noise]] = {}
    for value in session.values:
        most = _MOST_LIMITS * (gated.get(value.metric) or _USUAL_LIMIT)
        width = median(value.half_widths) if value.half_widths else 0.0
        if width > most:
            of_source = noisy.setdefault(value.source, {})
            of_source[value.metric] = _Noise(session.key, value.metric, width, most)
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
    noise = []
    for metric, each in lost.items():
        whole, _, part = metric.partition(".")
        if not part or (whole not in lost and (whole not in left or metric in gated)):
            noise.append(each)
    return replace(session, values=values), noise


def _change(
    suite: Suite, session: StoredRecord, first: Record, judged: Sequence[Verdict]
) -> Append | Restart | None:
    """Return the change of the store for a measurement, or None to store nothing."""
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
        # The change may come from a new kernel, so the values of the old kernel are
        # replaced, too.
        return Restart(record=session, metrics=family)
    return Append(record=session) if update is Update.ALL else None


def _fewest(
    suite: Suite, session: StoredRecord, first: Record, judged: Sequence[Verdict]
) -> int:
    """
    Return the smallest number of stored sessions that a measurement may be compared with.

    Only sessions with the same choice of kernels and about the same number of tests
    count, because other sessions do not show how much these values differ. Among
    several gated or judged metrics, the metric with the fewest sessions counts. Among
    several sources of a metric, the source with the most sessions counts, because that
    source is compared.
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
        count = len(values_alike(value, session, stored, across=across))
        most[value.metric] = max(count, most.get(value.metric, 0))
    return min(most.values())


def _family_of(
    metrics: frozenset[str], values: Sequence[SessionValue]
) -> frozenset[str]:
    """Return metrics together with their parts, for example time.p95 with time."""
    names = {value.metric for value in values}
    return frozenset(
        name for name in names if name in metrics or name.partition(".")[0] in metrics
    )


def _storing(suite: Suite) -> str:
    named = suite.config.baseline_named
    return escape(storing_command(suite.memory.place() if named else None))


def _stored_lines(
    suite: Suite, planned: _Planned, groups: Mapping[RecordKey, Sequence[Record]]
) -> Iterator[str]:
    """
    Yield lines about stored values, values left out, and sessions that do not count.

    If nothing is stored, they have the reason and a command that stores something.
    """
    otherwise, remedy = "every baseline has enough sessions", ""
    if suite.config.update is Update.IMPROVED:
        stored = [suite.memory.sessions(records[0]) for records in groups.values()]
        remedy = "" if all(stored) else f"store new tests: {_storing(suite)}"
        improved = (v for v in suite.verdicts if v.outcome is Outcome.IMPROVED)
        changed = any(map(changed_test, improved))
        otherwise = f"no {'unchanged ' if changed else ''}test improved"
    if not groups:
        otherwise, remedy = "nothing was measured", ""
    changes: dict[str, list[StoreChange]] = {}
    for plan in planned.plans:
        changes.setdefault(plan.slug, []).append(plan.change)
    left_out = planned.barred_count, planned.slower_count
    if planned.plans or any(left_out) or not planned.noise:
        place = suite.memory.place()
        yield notices.stored_line(changes, place, *left_out, otherwise=otherwise)
        if remedy and not (planned.plans or any(left_out)):
            # On a separate line, so that the command can be copied.
            yield remedy
    if planned.noise:
        text = f"too noisy to be stored: {listed(_noise_texts(planned.noise))}"
        yield f"{text}; measure on a quieter machine, or time more work in a call"
    session = suite.site.session
    others = {
        before.session.id: before.session.ran_count or 0
        for plan in planned.plans
        for before in plan.before
        if not same_company(before.session, session)
    }
    if others:
        yield notices.company_line(session.ran_count or 0, [*others.values()])
    accepted = [plan for plan in planned.plans if plan.dropped_count]
    if accepted:
        # `_seen` prints the number of sessions still recommended.
        names = listed(str(plan.change.key) for plan in accepted)
        count = max(plan.dropped_count for plan in accepted)
        yield f"accepted {names}: {display.plural(count, 'session')} dropped"


def _noise_texts(noise: Sequence[_Noise]) -> Iterator[str]:
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


def _seen(suite: Suite, plans: Sequence[_Plan]) -> Iterator[str]:
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
        worst = max(effects, key=effects.__getitem__)
        now, then = (
            (display.least(median([*some.values()])), display.least(some[worst]))
            for some in (effects, later)
        )
        seen, more = now[0], then[0]
        if now[0] != now[1]:
            seen = f"{now[0]} (median test) to {now[1]} ({worst})"
            more = f"{then[0]} to {then[1]}"
        text += f": it detects slowdowns from {seen}"
        if more != seen:
            text += f", with {MORE_SESSIONS} more sessions from {more}"
    missing = most_sessions - fewest
    if missing <= 0:
        yield text
        return
    yield f"{text}; {missing} more recommended"
    yield f"store another session: {_storing(suite)}"


def _noisy(plans: Sequence[_Plan]) -> list[_Plan]:
    return [p for p in plans if any(map(has_noise, p.change.record.values))]


def _cases_as_stored(suite: Suite) -> list[Case]:
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
            # This session is already stored and counts like the others.
            session_id="",
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
    """Return the smallest detectable change of measurements [fraction], by key."""
    references = references_of(suite, session_id="")
    smallest = smallest_seen(
        cases,
        replace(POLICY, shard_count=suite.site.shard_count()),
        references=references,
        more_sessions=more_sessions,
    )
    effects: dict[RecordKey, float] = {}
    for case, effect in zip(cases, smallest, strict=True):
        if effect is not None and case.key in keys:
            effects[case.key] = max(effect, effects.get(case.key, 0.0))
    return effects


def _with_progress(suite: Suite, run: Run, plans: Sequence[_Plan]) -> Run:
    most_sessions = suite.config.sessions
    counts = {
        plan.change.key: plan.session_count
        for plan in _noisy(plans)
        if plan.session_count < most_sessions
    }
    verdicts = []
    for verdict in run.verdicts:
        few = verdict.reason is Reason.TOO_FEW_SESSIONS
        few = few or verdict.reason is Reason.NOTHING_STORED
        if few and verdict.key in counts:
            evidence = replace(
                verdict.evidence or VerdictEvidence(),
                building=(counts[verdict.key], most_sessions),
            )
            verdicts.append(replace(verdict, evidence=evidence))
        else:
            verdicts.append(verdict)
    return replace(run, verdicts=tuple(verdicts))


def with_sessions(suite: Suite, run: Run) -> Run:
    """Return a run with the stored sessions used to judge its changes."""
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
        for session in suite.memory.sessions(records[key], names):
            values = tuple(
                then
                for value in now.values
                if value.metric in names
                and values_alike(
                    value, now, [session], across=suite.config.compare_across
                )
                for then in session.values
                if (then.metric, then.source, then.unit)
                == (value.metric, value.source, value.unit)
            )
            if values:
                bare = replace(session, values=values, facts={}, soft_facts={})
                sessions.append(bare)
        # Only the newest session with kernels keeps them.
        newest = max((i for i, one in enumerate(sessions) if one.kernels), default=-1)
        stored += [
            one if place == newest else replace(one, kernels=())
            for place, one in enumerate(sessions)
        ]
    return replace(run, stored=tuple(stored))


def write_reports(suite: Suite, run: Run) -> None:
    """
    Write the requested reports.

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
    Write reports of an interrupted run, to be replaced at the end of the run.

    Code under test may end the process with any exit code, and a report of an earlier
    run must not be mistaken for a report of this run. Nothing is written to a pipe or a
    device.

    Raises:
        ReportError: A file cannot be written.
    """
    from pytest_gpuperf.report import runs

    shard = shard_of_run(config.shard)
    header = Header(
        session=replace(
            new_session(SystemClock(), config.run_id),
            shard=None if shard is None else str(shard),
        ),
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
    Write the JSON report of an unfinished run, which remains if the run is killed.

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
        replace(header, completeness=reached), tuple(map(in_words, verdicts))
    )
    write_report(with_samples(suite, run), "json", path)


def with_samples(suite: Suite, run: Run) -> Run:
    """Return a run with the samples kept by its processes, for reports."""
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
