"""Decide about a run: cases, first look, confirmation, limits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from pytest_gpuperf.config import Update
from pytest_gpuperf.judge.case import Case, case_of, confirmation_of
from pytest_gpuperf.judge.regression import Look, first_look, priors_of, settle, shown
from pytest_gpuperf.judge.rule import may_regress
from pytest_gpuperf.model.frozen import Frozen, replace
from pytest_gpuperf.model.record import Record, RecordKey, Role
from pytest_gpuperf.model.sample import Unmeasured
from pytest_gpuperf.model.verdict import JUDGED, Outcome, Reason, Verdict
from pytest_gpuperf.report.tally import tally

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpuperf.compute.spread import Prior
    from pytest_gpuperf.config import Config
    from pytest_gpuperf.judge.case import Case, Confirmation
    from pytest_gpuperf.model.run import MachineShift, Measured, Run
    from pytest_gpuperf.pipeline.suite import Suite

__all__ = [
    "Again",
    "Looked",
    "cases_of_suite",
    "cases_of_test",
    "changes",
    "complaints",
    "confirmations",
    "gates",
    "grouped",
    "limits",
    "look",
    "shifts",
    "worsened",
]


def grouped(records: Iterable[Record]) -> dict[RecordKey, list[Record]]:
    """Return records by what they are a measurement of, the main process's first."""
    groups: dict[RecordKey, list[Record]] = {}
    for record in sorted(records, key=lambda record: record.process_index):
        groups.setdefault(record.key, []).append(record)
    return groups


def gates(measured: Measured, config: Config) -> Mapping[str, float | None]:
    """Return the largest change by metric that a test allows; None: it is only shown."""
    return measured.max_regression or {"time": config.max_regression}


def cases_of_suite(suite: Suite) -> list[Case]:
    """Return the cases of a whole run: of tests whose body passed, if there is a store."""
    if suite.config.disable or suite.memory.store() is None:
        return []
    records = [r for r in suite.records() if r.role is not Role.CONFIRM]
    groups = {
        key: several
        for key, several in grouped(records).items()
        if key.test_id in suite.passed
    }
    elsewhere = suite.memory.elsewhere([several[0] for several in groups.values()])
    cases: list[Case] = []
    for key, several in groups.items():
        known = suite.first_cases.get(key)
        if known is None or len(several) > 1 or key in elsewhere:
            measured, there = suite.results[key.test_id], key in elsewhere
            known = _cases(suite, measured, several, other_slug_exists=there)
        cases += known
    return cases


def cases_of_test(suite: Suite, measured: Measured) -> list[Case]:
    """Return the cases of one test by its first process alone; the suite keeps them."""
    cases: list[Case] = []
    for key, several in grouped(measured.records).items():
        suite.first_cases[key] = _cases(suite, measured, several)
        cases += suite.first_cases[key]
    return cases


def _cases(
    suite: Suite,
    measured: Measured,
    records: list[Record],
    *,
    other_slug_exists: bool = False,
) -> tuple[Case, ...]:
    """Return the cases of one measurement of a test."""
    stored = suite.memory.sessions(records[0])
    return tuple(
        case_of(
            records,
            stored,
            metric=metric,
            limit=limit,
            session_id=suite.site.session.id,
            across=suite.config.compare_across,
            other_slug_exists=other_slug_exists,
        )
        for metric, limit in gates(measured, suite.config).items()
        if _has(records, metric) or _stands_for(records[0], metric, measured)
    )


def _has(records: Sequence[Record], metric: str) -> bool:
    """Return whether any of some records has a metric."""
    return any(e.metric == metric for r in records for e in r.estimates)


def _stands_for(record: Record, metric: str, measured: Measured) -> bool:
    """Return whether a record tells of a metric that its test has no value of."""
    first = not record.key.name
    return metric != "time" and first and not _has(measured.records, metric)


_CONTROL_COUNT = 8  # docs/judging.md section 2: of each bound class
# nothing is measured again in a run that ended early
_TO_THE_END = (
    "run all the selected tests to their end, so that fresh processes decide it"
)
_LEAST_SESSIONS = 3  # docs/judging.md section 2: a control needs a baseline of its own


class Again(Frozen, frozen=True, kw_only=True):
    """
    What fresh processes gave for one test.

    Attributes:
        records: What each of them measured.

        failure: Why one of them gave nothing; "" where all gave something.

        unmeasured: What the test asked for in one of them and could not have there.
    """

    records: tuple[Record, ...]
    failure: str
    unmeasured: tuple[Unmeasured, ...] = ()


class Looked(Frozen, frozen=True, kw_only=True):
    """
    A first look at a whole run.

    Attributes:
        cases: Every pair of measurement and metric.

        looks: What each of them suggests, in the same order.

        priors: How much sessions of such tests differ, by group.

        suspects: Ids of the tests that fresh processes must confirm.

        controls: Ids of tests that show what the machine itself did.
    """

    cases: tuple[Case, ...] = ()
    looks: tuple[Look, ...] = ()
    priors: Mapping[str, Prior] = {}
    suspects: tuple[str, ...] = ()
    controls: tuple[str, ...] = ()


def worsened(suite: Suite, measured: Measured) -> list[Case]:
    """Return what of a test may turn out to have regressed; generous, no verdict."""
    if not suite.config.baseline_named:  # what was only found never fails a test
        return []
    return list(filter(may_regress, cases_of_test(suite, measured)))


def look(suite: Suite) -> Looked:
    """Return what the first measurements suggest, and which tests to measure again."""
    cases = tuple(cases_of_suite(suite))
    priors = priors_of(cases) if cases else {}
    looks = first_look(cases, priors=priors) if cases else ()
    pairs = list(zip(cases, looks, strict=True))
    wanted = [c.key.test_id for c, seen in pairs if _wants_confirming(suite, seen)]
    noisy = set(wanted)
    wanted += _straddling(suite)
    suspects = tuple(dict.fromkeys(wanted))
    classes = {c.bound_class for c in cases if c.key.test_id in noisy}
    controls = [
        c
        for c, seen in pairs
        if c.bound_class in classes and _steady(c, seen, suspects)
    ]
    return Looked(
        cases=cases,
        looks=looks,
        priors=priors,
        suspects=suspects,
        controls=_some_of_each(controls),
    )


def limits(suite: Suite, answers: Mapping[str, Again]) -> tuple[Verdict, ...]:
    """Return the verdicts of the limits, and of what was asked for in vain."""
    verdicts: list[Verdict] = []
    for measured in suite.results.values():
        if measured.body_failed:
            continue
        verdicts += [
            _confirmed(suite, measured, verdict, answers.get(measured.test_id))
            for verdict in measured.verdicts
        ]
        verdicts += _gaps(measured)
    return (*verdicts, *_lost(suite))


def confirmations(
    looked: Looked, answers: Mapping[str, Again]
) -> Mapping[tuple[RecordKey, str], Confirmation]:
    """Return what fresh processes gave for each suspected case, and for the controls."""
    found: dict[tuple[RecordKey, str], Confirmation] = {}
    for case, seen in zip(looked.cases, looked.looks, strict=True):
        again = answers.get(case.key.test_id)
        control = case.key.test_id in looked.controls
        if again is not None and (control or seen.suspect):
            found[case.name] = confirmation_of(
                case,
                again.records,
                lost=again.failure,
                unmeasured=again.unmeasured,
                control=control,
            )
    return found


def changes(
    looked: Looked,
    confirmed: Mapping[tuple[RecordKey, str], Confirmation],
    *,
    complete: bool,
    strict: bool = False,
) -> tuple[Verdict, ...]:
    """
    Return the verdicts against the baseline, and the changes that are only shown.

    Args:
        looked: The first look at the run.

        confirmed: What fresh processes gave, by the case's name.

        complete: Whether every test reported.

        strict: Whether what only the suite found slower is undecided.
    """
    if not looked.cases:
        return ()
    judged = settle(looked.cases, confirmed, complete=complete, priors=looked.priors)
    if confirmed:
        from pytest_gpuperf.judge.regression import with_suite

        judged = with_suite(judged, looked.cases, looked.looks, strict=strict)
    return (*judged, *shown(looked.cases, priors=looked.priors))


def shifts(
    looked: Looked, confirmed: Mapping[tuple[RecordKey, str], Confirmation]
) -> tuple[MachineShift, ...]:
    """Return what the machine did to each class of tests whose controls were measured."""
    if not confirmed:
        return ()
    from pytest_gpuperf.judge.shift import machine_shifts

    return machine_shifts(looked.cases, confirmed, priors=looked.priors)


def complaints(suite: Suite, run: Run) -> Iterator[str]:
    """Yield why a run fails as a whole, though no test of it may have failed."""
    config, counted = suite.config, tally(run)
    gated = config.max_regression is not None or counted.verdicts
    decides = config.baseline_named and config.update is None and not config.disable
    if gated and decides and counted.expected_count and not _took_place(run):
        yield (
            "nothing was judged although a baseline was named: see the reasons above, "
            "or store one with --gpuperf-update=new"
        )
    least = config.min_judged
    if least is not None and counted.judged_fraction < least:
        yield (
            f"judged {counted.judged_count} of {counted.expected_count} tests, fewer "
            f"than --gpuperf-min-judged asks for"
        )
    if config.strict and counted.missing_count:
        yield f"{counted.missing_count} tests never reported (--gpuperf-strict)"


def _took_place(run: Run) -> bool:
    """
    Return whether anything was held against a limit or a baseline.

    What noise left open was compared all the same: the gate was on. That an unchanged
    suite of few tests fails for noise would make people switch it off.
    """
    return any(
        verdict.outcome in JUDGED
        or (verdict.change is not None and verdict.change.p_worse is not None)
        for verdict in run.verdicts
        if verdict.decides
    )


def _wants_confirming(suite: Suite, seen: Look) -> bool:
    """Return whether fresh processes must decide about a case."""
    update = suite.config.update
    if not seen.suspect:
        return False
    if seen.worse:
        return suite.config.baseline_named or update is Update.ALL
    return seen.better and update in {Update.IMPROVED, Update.ALL}


def _straddling(suite: Suite) -> list[str]:
    """Return the tests with a limit that one process could not decide."""
    return [
        measured.test_id
        for measured in suite.results.values()
        if any(v.reason is Reason.STRADDLES_LIMIT for v in measured.verdicts)
    ]


def _steady(case: Case, seen: Look, suspects: Sequence[str]) -> bool:
    """Return whether a case can show what the machine did."""
    unsuspected = not (seen.worse or seen.better) and case.key.test_id not in suspects
    return (
        unsuspected
        and case.limit is not None
        and not case.counts
        and len(case.stored) >= _LEAST_SESSIONS
    )


def _some_of_each(controls: Sequence[Case]) -> tuple[str, ...]:
    """Return some tests of each class, from all over the run."""
    chosen: list[str] = []
    for bound_class in dict.fromkeys(case.bound_class for case in controls):
        of_class = [c.key.test_id for c in controls if c.bound_class is bound_class]
        ids = list(dict.fromkeys(of_class))
        step = max(1, len(ids) // _CONTROL_COUNT)
        chosen += ids[::step][:_CONTROL_COUNT]
    return tuple(dict.fromkeys(chosen))


def _confirmed(
    suite: Suite, measured: Measured, verdict: Verdict, again: Again | None
) -> Verdict:
    """Return the verdict of a limit, decided by fresh processes where there were any."""
    limit = verdict.limit
    if limit is None or verdict.reason is not Reason.STRADDLES_LIMIT:
        return verdict
    if again is None:
        stopped = suite.config.confirm and not suite.completeness().complete
        return replace(verdict, remedy=_TO_THE_END) if stopped else verdict
    from pytest_gpuperf.judge.limit import judge_limit
    from pytest_gpuperf.pipeline.limits import spread_of

    record = next(r for r in measured.records if r.key == verdict.key)
    return judge_limit(
        limit,
        record,
        spread=spread_of(limit.metric, record, suite.memory),
        confirming=[r for r in again.records if r.key == verdict.key],
        lost=again.failure.splitlines(),
        unmeasured=again.unmeasured,
    )


def _gaps(measured: Measured) -> list[Verdict]:
    """Return verdicts for values that were refused, and for void measurements."""
    verdicts = [
        Verdict(
            key=measured.records[0].key if measured.records else _key(measured),
            metric=refusal.metric,
            outcome=Outcome.UNMEASURED,
            reason=Reason.NOT_MEASURED,
            detail=(refusal.reason,),
            remedy=refusal.remedy,
        )
        for refusal in measured.refusals
    ]
    judged = {verdict.key for verdict in measured.verdicts}
    for record in measured.records:
        void = record.void
        if void is None or record.key in judged or void.code == "disabled":
            continue
        measured_it = bool(record.estimates)
        verdicts.append(
            Verdict(
                key=record.key,
                metric="time",
                outcome=Outcome.INCONCLUSIVE if measured_it else Outcome.UNMEASURED,
                reason=Reason.VOID if measured_it else Reason.NOT_MEASURED,
                detail=(void.text,),
            )
        )
    return verdicts


def _key(measured: Measured) -> RecordKey:
    """Return the key of a test that has no record."""
    return RecordKey(test_id=measured.test_id)


def _lost(suite: Suite) -> list[Verdict]:
    """Return verdicts for tests that gave no value in a process of --gpuperf-runs."""
    return [
        Verdict(
            key=_key(suite.results[test_id]),
            metric="time",
            outcome=Outcome.FAILED,
            reason=Reason.CHILD_GAVE_NO_VALUE,
            detail=tuple(text.splitlines()),
            remedy="make the test pass when it runs alone",
        )
        for test_id, text in suite.failed_alone.items()
    ]
