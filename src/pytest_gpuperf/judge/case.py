"""Cases: one metric of one test, now and in the stored sessions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType

from pytest_gpuperf.model.environment import (
    BETTER,
    CONDITIONS,
    MACHINE_FACTS,
    PARAMETERS,
    TEST,
    UNIT,
    Host,
    Session,
    differences,
    differences_from_stored,
    facts_of,
    same_company,
)
from pytest_gpuperf.model.frozen import BulkRecord, Frozen
from pytest_gpuperf.model.metric import Better, Family, Metric, metric_of
from pytest_gpuperf.model.record import (
    BoundClass,
    Kind,
    Record,
    RecordKey,
    SessionValue,
    StoredRecord,
    Void,
    VoidCode,
)
from pytest_gpuperf.model.sample import Estimate, Source, Unmeasured

__all__ = [
    "FILES",
    "NO_FACTS",
    "OVERSUBSCRIBED",
    "POLICY",
    "WAITING",
    "Case",
    "Confirmation",
    "Facts",
    "Policy",
    "Reference",
    "Retest",
    "StoredValue",
    "best_source",
    "case_of",
    "comparable_sessions",
    "confirmation_elsewhere",
    "confirmation_of",
    "direction",
    "is_measured_alike",
    "newest_case",
    "newest_reference",
    "unsteady_tests",
    "values_alike",
]

Facts = Mapping[str, tuple[str, str]]
NO_FACTS: Facts = MappingProxyType({})
NO_NOTES: Mapping[str, str] = MappingProxyType({})
OVERSUBSCRIBED = "oversubscribed"  # several threads, and more runnable ones than cores
# of tests whose time depends on what else the machine does
WAITING = frozenset({"waits", "several-threads", OVERSUBSCRIBED})
FILES = frozenset({Source.BINARY, Source.NCU_REPORT})  # they say the same each time


class Policy(Frozen, frozen=True, kw_only=True):
    """
    The constants of the rule; docs/judging.md section 2 where nothing else is said.

    Attributes:
        alpha: Nominal chance of a false alarm in a run of one pair of test and metric.

        noise_threshold: A change too small to mean anything [fraction].

        power: How often the detectable effect is found.

        suspect_share: Share of its limit beyond which a change is suspected.

        suspect_p: How probable noise may be as a suspect's explanation.

        against_suspect_p: The same where a comparison with a revision decides: it costs
            more, and is the surer.

        least_sessions: Stored sessions that a metric with noise needs; one shows a change,
            and does not say whether it is noise.

        least_choice_runs: Confirming processes that a choice of kernels needs, where
            they disagree.

        control_count: Tests of a class that fresh processes measure as controls.

        noisy_spread: What sessions usually differ by [fraction] where the machine is too
            noisy for a stored baseline.

        usual_sessions: Stored sessions that a baseline has unless another number is asked
            for.

        blind_limits: A detectable change of so many limits says that a value is unchanged,
            where the limit is the user's own.

        blind_fraction: Likewise where it is the plugin's own: a detectable change
            [fraction].

        selected: Whether suspects are confirmed. Between files of whole runs nothing was
            selected for being bad, so that nothing need be confirmed.
    """

    alpha: float = 0.01
    noise_threshold: float = 0.005
    power: float = 0.9
    suspect_share: float = 0.6
    suspect_p: float = 0.05
    against_suspect_p: float = 0.2
    least_sessions: int = 2
    least_choice_runs: int = 2
    control_count: int = 8
    noisy_spread: float = 0.2
    usual_sessions: int = 5
    blind_limits: float = 2.0
    blind_fraction: float = 0.5
    selected: bool = True

    def level(self, pair_count: int) -> float:
        """Return the nominal level of a run with so many pairs of test and metric."""
        share = max(0.5, 1 / math.sqrt(max(1, pair_count)))
        return self.alpha * share


POLICY = Policy()  # the rule as docs/judging.md states it


class StoredValue(BulkRecord, frozen=True, kw_only=True):
    """
    One stored session of a case.

    Attributes:
        value: Its values.

        session: When and where.

        choice: Hash of the kernels that ran; None: not known.
    """

    value: SessionValue
    session: Session
    choice: str | None = None


class Reference(Frozen, frozen=True, kw_only=True):
    """
    A workload that no change of the code can move: what its time does, the machine does.

    Attributes:
        name: What it is.

        bound_class: What moves with it when the machine moves.

        current: Its time in this session; None: there is none.

        stored: Its times in the stored sessions, in any order.

        fresh: Its time in each fresh process; None: there were none.

        host: Where it was timed; None: where the run is judged.
    """

    name: str
    bound_class: BoundClass
    current: SessionValue | None
    stored: tuple[StoredValue, ...] = ()
    fresh: SessionValue | None = None
    host: Host | None = None


class Case(BulkRecord, frozen=True, kw_only=True):
    """
    One metric of one measurement, now and in the baseline.

    Attributes:
        key: The measurement.

        metric: The metric.

        limit: Largest change that passes [fraction]; None: it is only shown.

        default_limit: Whether that is the plugin's own.

        estimate: The value now; None: there is none.

        current: The same with the value of each process; None: there is none.

        choice: Hash of the kernels that ran now; None: not known.

        stored: Comparable stored sessions from the same source, oldest first.

        differences: Hard facts on which all stored sessions differ: name to (then, now).

        other_sources: Sources of the stored sessions where none is now's.

        other_machines: The other machines or GPUs that have stored sessions of it.

        unmeasured: Why there is no value; None: there is one, or none is stated.

        void: Why it must not be judged.

        bound_class: What moves with it when the machine moves.

        moved: Soft facts that differ from the newest session's: name to (then, now).

        kind: How it was measured; None: not known.

        notes: What of its notes bears on a verdict, by code: that it waits, has several
            threads, or shared the cores with others.

        facts: The hard facts of the value now.

        across: Names of facts that may differ.

        gpu_uuid: The GPU in use; "": none, or unknown.

        host: Where it was measured; None: where the run is judged, as fresh processes.

        session: The session that measured it; None: how many tests that ran is not known.
    """

    key: RecordKey
    metric: Metric
    limit: float | None
    estimate: Estimate | None
    current: SessionValue | None
    choice: str | None = None
    stored: tuple[StoredValue, ...] = ()
    differences: Facts = NO_FACTS
    other_sources: tuple[str, ...] = ()
    other_machines: tuple[str, ...] = ()
    unmeasured: Unmeasured | None = None
    void: Void | None = None
    bound_class: BoundClass = BoundClass.HOST
    moved: Facts = NO_FACTS
    kind: Kind | None = None
    default_limit: bool = False
    notes: Mapping[str, str] = NO_NOTES
    facts: Mapping[str, str] = MappingProxyType({})
    across: Collection[str] = frozenset()
    gpu_uuid: str = ""
    host: Host | None = None
    session: Session | None = None

    @property
    def name(self) -> tuple[RecordKey, str]:
        """What no other case of a run is called."""
        return self.key, self.metric.name

    @property
    def company(self) -> tuple[StoredValue, ...]:
        """The stored sessions that ran about as many tests as this one."""
        session = self.session
        if session is None or session.ran_count is None:
            return self.stored
        return tuple([s for s in self.stored if same_company(session, s.session)])

    @property
    def of_file(self) -> bool:
        """Whether the value was read from a file, which no fresh process can confirm."""
        return self.estimate is not None and self.estimate.source in FILES

    @property
    def sign(self) -> float:
        """1 where a larger value is worse, -1 where a smaller one is."""
        return -1.0 if direction(self.metric) is Better.HIGHER else 1.0

    @property
    def counts(self) -> bool:
        """Whether equal code gives equal values: a count, or what a file says."""
        counted = self.metric.exact or self.metric.family is Family.RESOURCE
        return counted or self.of_file


class Confirmation(Frozen, frozen=True, kw_only=True):
    """
    What fresh processes gave for one case.

    Attributes:
        value: Those of the processes that gave one and were not void; None: none did.

        choices: The choice of kernels of each of them; empty: none is known.

        lost: The last lines of a process in which the test gave no value, where any
            should have; None: there is no such process.

        voids: Why processes that gave a value are left out.

        differences: Facts of such processes that differ from the suite's: name to (suite's,
            theirs).

        lacking: What processes could not measure, where none gave a value.

        control: Whether it was measured to see what the machine does, not suspected.

        notes: What of the processes' notes bears on a verdict, by code.
    """

    value: SessionValue | None = None
    choices: tuple[str | None, ...] = ()
    lost: tuple[str, ...] | None = None
    voids: tuple[Void, ...] = ()
    differences: Facts = NO_FACTS
    lacking: tuple[Unmeasured, ...] = ()
    control: bool = False
    notes: Mapping[str, str] = NO_NOTES

    @property
    def run_values(self) -> tuple[float, ...]:
        """The value of each process that gave one."""
        return () if self.value is None else self.value.run_values

    @property
    def made_choices(self) -> tuple[str | None, ...]:
        """The choice of each process that gave a value."""
        return self.choices or (None,) * len(self.run_values)


class Retest(Frozen, frozen=True, kw_only=True):
    """
    What fresh processes gave for one test.

    Attributes:
        records: What each of them measured.

        failure: The last lines of one in which it failed; "": it failed in none.

        unmeasured: What the test asked for in one of them and could not have there.
    """

    records: tuple[Record, ...] = ()
    failure: str = ""
    unmeasured: tuple[Unmeasured, ...] = ()

    def lacking(self, metric: str, records: Iterable[Record]) -> tuple[Unmeasured, ...]:
        """Return what the test, or one of some records, lacks for a metric."""
        gaps = (u for r in records for u in r.unmeasured if u.metric == metric)
        return tuple(dict.fromkeys((*gaps, *self.unmeasured)))


def direction(metric: Metric) -> Better:
    """
    Return which way a metric gets better, for one that a person has gated by name.

    Without a direction of its own a share of a peak is better the higher it is, and all
    else (registers, shared memory, counters) the lower.
    """
    if metric.better is not Better.NEITHER:
        return metric.better
    return Better.HIGHER if metric.unit == "fraction" else Better.LOWER


# nearest to the device first; one that is not listed comes after all that are
_BEST_FIRST: tuple[str, ...] = (
    *(Source.CUPTI, Source.EVENTS, Source.NCU, Source.NVML),
    *(Source.NCU_REPORT, Source.BINARY, Source.USER, Source.HOST),
)
_Pair = tuple[StoredRecord, SessionValue]
_Chosen = tuple[Estimate, "str | None"]  # with the choice of kernels that gave it


def case_of(
    records: Sequence[Record],
    stored: Iterable[StoredRecord],
    *,
    metric: str,
    limit: float | None,
    session_id: str,
    across: Collection[str] = (),
    other_machines: tuple[str, ...] = (),
    default_limit: bool = False,
    session: Session | None = None,
) -> Case:
    """
    Return a case of what was measured and what is stored.

    Args:
        records: What each process measured of one key, the main process's first; >= 1.

        stored: The stored sessions of the key, in the order of their arrival: a clock may
            go back.

        metric: The metric's name.

        limit: Largest change that passes [fraction]; None: it is only shown.

        session_id: The session that measured.

        across: Hard facts that may differ.

        other_machines: The other machines or GPUs that have stored sessions of it.

        default_limit: Whether `limit` is the plugin's own.
        session: The session that measured, with the tests that it ran; None: how many is
            not known, and each stored session has its company.
    """
    usable = [record for record in records if record.void is None]
    sessions = [s for s in stored if s.session.id != session_id]
    having = [(s, v) for s in sessions for v in s.values if v.metric == metric]
    now = _best(metric, usable or records, having)
    estimate, choice = now[0] if now else (None, None)
    first = records[0]
    about = next(  # a process that lost the source knows nothing of its facts
        (record for record in usable if estimate in record.estimates),
        (usable or records)[0],
    )
    comparable, differing, sources = _comparable(estimate, about, having, across)
    return Case(
        key=first.key,
        metric=_metric(metric, estimate),
        limit=limit,
        estimate=estimate,
        current=SessionValue.of([e for e, _ in now]) if now else None,
        choice=choice,
        stored=comparable,
        differences=differing,
        other_sources=sources,
        other_machines=other_machines,
        unmeasured=next((u for u in first.unmeasured if u.metric == metric), None),
        void=None if usable else first.void,
        bound_class=first.bound_class,
        kind=first.kind,
        moved=_moved(first, comparable, sessions),
        default_limit=default_limit,
        notes=_notes(usable),
        facts=(
            {} if estimate is None else facts_of(about.facts, metric, estimate.source)
        ),
        across=across,
        gpu_uuid="" if about.device is None else about.device.uuid,
        host=first.host,
        session=session,
    )


def _notes(records: Iterable[Record]) -> Mapping[str, str]:
    """Return the texts of the notes that bear on a verdict, by code."""
    notes = {n.code: n.text for r in records for n in r.notes if n.code in WAITING}
    return notes or NO_NOTES


def newest_case(
    sessions: Sequence[StoredRecord], metric: str, *, limit: float | None = None
) -> Case:
    """
    Return the newest of some stored sessions, held against all of them.

    Args:
        sessions: The stored sessions of one measurement in the order of their arrival,
            >= 1 of them.

        metric: The metric's name.

        limit: Largest change that passes [fraction]; None: it is only shown.
    """
    newest = next(
        (s for s in reversed(sessions) if _values_of(s, metric)), sessions[-1]
    )
    counts = [len(value.run_values) for value in _values_of(newest, metric)]
    processes = [
        Record(
            key=newest.key,
            kind=Kind.MEASURE,
            estimates=tuple(
                Estimate(
                    metric=metric,
                    value=value.run_values[number],
                    unit=value.unit,
                    source=value.source,
                    better=value.better,
                    core=value.cores[number] if value.cores else None,
                    sm_clock_hz=value.sm_clocks_hz[number]
                    if value.sm_clocks_hz
                    else None,
                )
                for value in _values_of(newest, metric)
                if number < len(value.run_values)
            ),
            facts=newest.facts,
            soft_facts=newest.soft_facts,
            choice=newest.choice,
            parameters_digest=newest.parameters_digest,
            test_digest=newest.test_digest,
            bound_class=newest.bound_class,
        )
        for number in range(max(counts, default=1))
    ]
    return case_of(processes, sessions, metric=metric, limit=limit, session_id="")


def newest_reference(sessions: Sequence[StoredRecord]) -> Reference:
    """Return a reference workload as its newest stored session timed it."""
    case = newest_case(sessions, "time")
    return Reference(
        name=case.key.name,
        bound_class=case.bound_class,
        current=case.current,
        stored=case.stored,
    )


def confirmation_of(
    case: Case, retest: Retest, *, control: bool = False
) -> Confirmation:
    """
    Return what fresh processes gave for a case.

    Args:
        case: What they measured again.

        retest: What they gave for its test.

        control: Whether it is a control.
    """
    records = [record for record in retest.records if record.key == case.key]
    voids = [record.void for record in records if record.void is not None]
    usable = [record for record in records if record.void is None]
    usable, differing = _measured_alike(case, usable)
    if differing:
        voids.append(Void(code=_code_of(differing), reason=""))
    chosen = _alike_now(_whole(case.metric.name, usable), case.estimate)
    lacking = () if chosen else retest.lacking(case.metric.name, usable)
    silent = not (chosen or voids or lacking)
    lost = tuple(retest.failure.splitlines())
    return Confirmation(
        value=SessionValue.of([e for e, _ in chosen]) if chosen else None,
        choices=tuple(choice for _, choice in chosen),
        lost=lost if lost or silent else None,
        voids=tuple(dict.fromkeys(voids)),
        differences=differing,
        lacking=lacking,
        control=control,
        notes=_notes(usable),
    )


def confirmation_elsewhere(case: Case, here: Host | None) -> Confirmation:
    """
    Return what confirms a case that was measured where no fresh process runs: nothing.

    Args:
        case: What an xdist worker on another host measured.

        here: Where fresh processes run; None: unknown.
    """
    now, then = ({} if host is None else host.facts for host in (here, case.host))
    return Confirmation(
        voids=(Void(code=VoidCode.OTHER_MACHINE, reason=""),),
        differences=differences(now, then),
    )


def is_measured_alike(
    metric: str,
    fresh: Record,
    suite: Record,
    *,
    source: str,
    across: Collection[str] = (),
) -> bool:
    """
    Return whether a fresh process measured a metric under the facts of the suite.

    Args:
        metric: The metric's name.

        fresh: What the fresh process measured.

        suite: What the suite measured.

        source: The collector that gave both values.

        across: Names of facts that may differ.
    """
    facts = facts_of(suite.facts, metric, source)
    uuid = "" if suite.device is None else suite.device.uuid
    return suite.host == fresh.host and not _unlike(
        fresh, metric, source, facts, uuid, across
    )


def _measured_alike(case: Case, fresh: list[Record]) -> tuple[list[Record], Facts]:
    """Return the records that have the facts of the suite's, and how others differ."""
    if case.estimate is None:
        return fresh, NO_FACTS
    metric, source = case.metric.name, case.estimate.source
    apart = [
        _unlike(record, metric, source, case.facts, case.gpu_uuid, case.across)
        for record in fresh
    ]
    other = next(filter(None, apart), NO_FACTS)
    pairs = zip(fresh, apart, strict=True)
    return [record for record, facts in pairs if not facts], other


def _unlike(
    fresh: Record,
    metric: str,
    source: str,
    facts: Mapping[str, str],
    gpu_uuid: str,
    across: Collection[str],
) -> Facts:
    """Return the facts on which a value of a fresh process differs from some facts."""
    # what gave no such value has no facts of its family
    if not any(e.metric == metric and e.source == source for e in fresh.estimates):
        return NO_FACTS
    now = facts_of(fresh.facts, metric, source)
    apart = differences(now, facts, across=across)
    uuid = "" if fresh.device is None else fresh.device.uuid
    if "gpu_name" in facts and gpu_uuid and uuid and uuid != gpu_uuid:
        apart["gpu_uuid"] = (gpu_uuid, uuid)
    return apart or NO_FACTS


def _code_of(apart: Facts) -> VoidCode:
    """Return what voids values with other facts than the suite's."""
    if not apart.keys().isdisjoint(CONDITIONS):
        return VoidCode.OTHER_TRACER
    if not MACHINE_FACTS.isdisjoint(apart):
        return VoidCode.OTHER_MACHINE
    return VoidCode.OTHER_DEVICE if "gpu_uuid" in apart else VoidCode.OTHER_FACTS


def _values_of(session: StoredRecord, metric: str) -> list[SessionValue]:
    """Return the values of a metric in a session, one of each source."""
    return [value for value in session.values if value.metric == metric]


def best_source(sources: Iterable[str]) -> str | None:
    """
    Return the source that is nearest to the device; None: there is none.

    Example:
        >>> best_source(["host", "cupti"])
        'cupti'
    """
    return min(sources, key=_rank, default=None)


def _best(
    metric: str, records: Sequence[Record], having: Sequence[_Pair]
) -> list[_Chosen]:
    """Return the values now from the best source that the stored sessions have too."""
    whole = _whole(metric, records)
    held = {(v.source, v.unit) for _, v in having}
    shared = [e.source for e, _ in whole if (e.source, e.unit) in held]
    source = best_source(shared or [e.source for e, _ in whole])
    first = next((e for e, _ in whole if e.source == source), None)
    now = _alike_now(whole, first)
    if len(now) <= 1:  # as a rule
        return now
    usual, _ = Counter(choice for _, choice in now).most_common(1)[0]
    return [(estimate, choice) for estimate, choice in now if choice == usual]


def _whole(metric: str, records: Iterable[Record]) -> list[_Chosen]:
    """Return the estimates of a metric that are not of one kernel alone."""
    return [
        (estimate, record.choice)
        for record in records
        for estimate in record.estimates
        if estimate.metric == metric and estimate.kernel is None
    ]


def _alike_now(whole: Iterable[_Chosen], like: Estimate | None) -> list[_Chosen]:
    """Return the estimates that have the source and unit of one."""
    if like is None:
        return []
    name = (like.source, like.unit)
    return [(e, choice) for e, choice in whole if (e.source, e.unit) == name]


def _comparable(
    estimate: Estimate | None,
    record: Record,
    having: Sequence[_Pair],
    across: Collection[str],
) -> tuple[tuple[StoredValue, ...], Facts, tuple[str, ...]]:
    """Return the stored sessions to compare with; where none is, why."""
    if estimate is None:
        held = {s.session.id: _stored(s, value) for s, value in having}
        return tuple(held.values()), NO_FACTS, ()
    alike = _alike(estimate, having)
    if not alike:
        return (), NO_FACTS, tuple(sorted({value.source for _, value in having}))
    apart = _apart(estimate, record, alike, across)
    equal = [pair for pair, facts in zip(alike, apart, strict=True) if not facts]
    if not equal:
        return (), apart[-1], ()
    return tuple(_stored(session, value) for session, value in equal), NO_FACTS, ()


def comparable_sessions(
    value: SessionValue,
    record: StoredRecord,
    sessions: Sequence[StoredRecord],
    *,
    across: Collection[str] = (),
) -> int:
    """
    Return how many stored sessions a value of today may be compared with.

    Args:
        value: It.

        record: The session that it is of.

        sessions: Those of the same measurement.

        across: Facts that may differ.
    """
    return len(values_alike(value, record, sessions, across=across))


def unsteady_tests(records: Iterable[Record]) -> frozenset[str]:
    """Return the ids of the tests whose parameters differ between some records."""
    digests: dict[str, set[str]] = {}
    for record in records:
        if record.parameters_digest is not None:
            several = digests.setdefault(record.key.test_id, set())
            several.add(record.parameters_digest)
    return frozenset(t for t, several in digests.items() if len(several) > 1)


def values_alike(
    like: Estimate | SessionValue,
    now: Record | StoredRecord,
    sessions: Iterable[StoredRecord],
    *,
    across: Collection[str] = (),
) -> list[SessionValue]:
    """
    Return the stored values of a metric that a value may be compared with.

    Args:
        like: The value.

        now: The record that it is part of.

        sessions: The stored sessions of the same measurement.

        across: Facts that may differ.
    """
    having = [(s, v) for s in sessions for v in s.values if v.metric == like.metric]
    alike = _alike(like, having)
    apart = _apart(like, now, alike, across)
    return [value for (_, value), facts in zip(alike, apart, strict=True) if not facts]


def _alike(like: Estimate | SessionValue, having: Sequence[_Pair]) -> list[_Pair]:
    """Return what was measured by the same source."""
    return [pair for pair in having if pair[1].source == like.source]


def _apart(
    like: Estimate | SessionValue,
    now: Record | StoredRecord,
    pairs: Sequence[_Pair],
    across: Collection[str],
) -> list[Facts]:
    """Return the hard facts of a value that differ from each of some sessions'."""
    metric, source = like.metric, like.source
    facts = facts_of(now.facts, metric, source)
    # the sessions of one machine share their facts: those of a file are one object
    several = {(id(s.facts), s.schema_version): s.facts for s, _ in pairs}
    apart = {
        (place, version): differences_from_stored(
            facts, facts_of(then, metric, source), version=version, across=across
        )
        for (place, version), then in several.items()
    }
    return [
        apart[id(then.facts), then.schema_version]
        if _is_alike(like, now, then, value)
        else {
            **_own_differences(like, now, then, value, across),
            **apart[id(then.facts), then.schema_version],
        }
        for then, value in pairs
    ]


def _is_alike(
    like: Estimate | SessionValue,
    now: Record | StoredRecord,
    then: StoredRecord,
    value: SessionValue,
) -> bool:
    """Return whether nothing of a value itself differs; nearly always."""
    return (
        now.parameters_digest == then.parameters_digest
        and like.unit == value.unit
        and like.better == value.better
    )


def _own_differences(
    like: Estimate | SessionValue,
    now: Record | StoredRecord,
    then: StoredRecord,
    value: SessionValue,
    across: Collection[str],
) -> dict[str, tuple[str, str]]:
    """Return how a value differs in parameters, unit and direction; None: not stored."""
    sides = {
        PARAMETERS: (then.parameters_digest, now.parameters_digest),
        BETTER: (value.better, like.better),
    }
    found = {
        name: (was, is_now)
        for name, (was, is_now) in sides.items()
        if was is not None and is_now is not None and was != is_now
        if name not in across
    }
    if value.unit != like.unit:  # no option makes seconds of bytes
        found[UNIT] = (value.unit, like.unit)
    return found


def _stored(record: StoredRecord, value: SessionValue) -> StoredValue:
    """Return a stored session of a case."""
    return StoredValue(value=value, session=record.session, choice=record.choice)


def _metric(name: str, estimate: Estimate | None) -> Metric:
    """Return a metric; what the catalogue does not say is taken from its estimate."""
    if estimate is None:
        return metric_of(name)
    better = Better(estimate.better) if estimate.better else Better.NEITHER
    return metric_of(name, unit=estimate.unit, better=better)


def _moved(
    record: Record, comparable: Sequence[StoredValue], sessions: Sequence[StoredRecord]
) -> Facts:
    """
    Return the soft facts that differ from the newest comparable session's.

    A test has moved if any comparable session has another one: their mean is of both.
    """
    if not comparable:
        return NO_FACTS
    ids = {stored.session.id for stored in comparable}
    held = [session for session in sessions if session.session.id in ids]
    newest = comparable[-1].session.id
    then = next((s.soft_facts for s in held if s.session.id == newest), {})
    moved = differences(record.soft_facts, then)
    tests = [s.test_digest for s in held if s.test_digest is not None]
    other = next((t for t in reversed(tests) if t != record.test_digest), None)
    if other is not None and record.test_digest is not None:
        moved[TEST] = (other, record.test_digest)
    return moved or NO_FACTS


def _rank(source: str) -> tuple[int, str]:
    """Return the place of a source among all; by name where they are equal."""
    ranked = source in _BEST_FIRST
    return (_BEST_FIRST.index(source) if ranked else len(_BEST_FIRST), source)
