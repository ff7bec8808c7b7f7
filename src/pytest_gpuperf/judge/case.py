"""One metric of one measurement, now and in the baseline: what is judged; PYTEST_DONT_REWRITE."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from types import MappingProxyType

from pytest_gpuperf.judge.source import best_source
from pytest_gpuperf.model.change import SessionValue
from pytest_gpuperf.model.environment import Session
from pytest_gpuperf.model.fingerprint import differences, family_of
from pytest_gpuperf.model.history import StoredRecord
from pytest_gpuperf.model.metric import METRICS, Better, Family, Metric, is_counter
from pytest_gpuperf.model.record import BoundClass, Record, RecordKey, Void
from pytest_gpuperf.model.sample import Estimate, Unmeasured

__all__ = [
    "Case",
    "Confirmation",
    "Policy",
    "Stored",
    "case_of",
    "confirmation_of",
    "direction",
]

_Pair = Mapping[str, tuple[str, str]]
_NO_FACTS: _Pair = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """
    The constants of the rule; judging.md section 2 where nothing else is said.

    Attributes:
        alpha: Chance of a false alarm in a whole run.

        noise_threshold: A change too small to mean anything [fraction].

        power: How often the detectable effect is found.

        suspect_share: Share of its limit beyond which a change is suspected.

        suspect_p: How probable noise may be as a suspect's explanation.

        least_sessions: Stored sessions that a metric with noise needs.

        least_choice_runs: Confirming processes that a choice of kernels needs, where
            they disagree.

        least_controls: Controls whose median is taken for a shift; the median of fewer
            is one test's own noise.

        class_count: Tests of a class that show what a stored session moved together: as
            many as the controls that a class should have.

        selected: Whether suspects are confirmed. Between files of whole runs nothing was
            selected for being bad, so that nothing need be confirmed.
    """

    alpha: float = 0.01
    noise_threshold: float = 0.005
    power: float = 0.9
    suspect_share: float = 0.6
    suspect_p: float = 0.05
    least_sessions: int = 3
    least_choice_runs: int = 2
    least_controls: int = 3
    class_count: int = 8
    selected: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """
    One metric of one measurement, now and in the baseline.

    Attributes:
        key: The measurement.

        metric: The metric.

        limit: Largest change that passes [fraction]; None: it is only shown.

        estimate: The value now; None: there is none.

        current: The same with the value of each process; None: there is none.

        choice: Hash of the kernels that ran now; None: not known.

        stored: Comparable stored sessions from the same source, oldest first.

        differences: Hard facts on which all stored sessions differ: name to (then, now).

        other_sources: Sources of the stored sessions where none is now's.

        other_slug_exists: Whether another machine or GPU has stored sessions of it.

        unmeasured: Why there is no value; None: there is one, or nobody said.

        void: Why it must not be judged.

        bound_class: What moves with it when the machine moves.

        moved: Soft facts that differ from the newest session's: name to (then, now).
    """

    key: RecordKey
    metric: Metric
    limit: float | None
    estimate: Estimate | None
    current: SessionValue | None
    choice: str | None = None
    stored: tuple[Stored, ...] = ()
    differences: _Pair = _NO_FACTS
    other_sources: tuple[str, ...] = ()
    other_slug_exists: bool = False
    unmeasured: Unmeasured | None = None
    void: Void | None = None
    bound_class: BoundClass = BoundClass.HOST
    moved: _Pair = _NO_FACTS

    @property
    def name(self) -> tuple[RecordKey, str]:
        """What no other case of a run is called."""
        return self.key, self.metric.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation:
    """
    What fresh processes gave for one case.

    Attributes:
        run_values: The value of each process that gave one and was not void.

        half_widths: Half-width of each one's interval, relative; may be empty.

        choices: The choice of each, as many as `run_values`.

        lost: The last lines of a process that gave no value; empty: all gave one.

        void: Why processes that gave a value are left out.

        control: Whether it was measured to see what the machine does, not suspected.
    """

    run_values: tuple[float, ...]
    half_widths: tuple[float, ...] = ()
    choices: tuple[str | None, ...] = ()
    lost: tuple[str, ...] = ()
    void: tuple[str, ...] = ()
    control: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Runs:
    """The estimates of one metric from one source, process by process."""

    estimates: tuple[Estimate, ...]
    choices: tuple[str | None, ...] = field(default=())


def direction(metric: Metric) -> Better:
    """
    Return which way a metric gets better, for one that a person has gated by name.

    Without a direction of its own a share of a peak is better the higher it is, and all
    else (registers, shared memory, counters) the lower.
    """
    if metric.better is not Better.NEITHER:
        return metric.better
    return Better.HIGHER if metric.unit == "fraction" else Better.LOWER


def case_of(
    records: Sequence[Record],
    stored: Iterable[StoredRecord],
    *,
    metric: str,
    limit: float | None,
    session_id: str,
    across: Set[str] = frozenset(),
    other_slug_exists: bool = False,
) -> Case:
    """
    Return a case of what was measured and what is stored.

    Args:
        records: What each process measured of one key, the main process's first; >= 1.

        stored: The stored sessions of the key.

        metric: The metric's name.

        limit: Largest change that passes [fraction]; None: it is only shown.

        session_id: The session that measured.

        across: Hard facts that may differ.

        other_slug_exists: Whether another machine or GPU has stored sessions of it.
    """
    usable = [record for record in records if record.void is None]
    sessions = sorted(stored, key=lambda s: (s.session.started_unix_s, s.session.id))
    now = _best(metric, usable or records, sessions)
    estimate = now.estimates[0] if now.estimates else None
    comparable, differing, others = _comparable(
        metric, estimate, (usable or records)[0], sessions, across
    )
    first = records[0]
    return Case(
        key=first.key,
        metric=_metric(metric, estimate),
        limit=limit,
        estimate=estimate,
        current=_session_value(now.estimates, session_id) if estimate else None,
        choice=now.choices[0] if now.choices else None,
        stored=comparable,
        differences=differing,
        other_sources=others,
        other_slug_exists=other_slug_exists,
        unmeasured=next((u for u in first.unmeasured if u.metric == metric), None),
        void=None if usable else first.void,
        bound_class=first.bound_class,
        moved=_moved(first, comparable, sessions),
    )


def confirmation_of(
    case: Case, records: Iterable[Record], *, lost: str = "", control: bool = False
) -> Confirmation:
    """
    Return what fresh processes gave for a case.

    Args:
        case: What they measured again.

        records: Theirs, of the case's key.

        lost: The last lines of one that gave no value; "": all gave one.

        control: Whether it is a control.
    """
    mine = [record for record in records if record.key == case.key]
    void = tuple(r.void.text for r in mine if r.void is not None)
    usable = [record for record in mine if record.void is None]
    runs = _runs(case.metric.name, usable, case.estimate)
    lines = tuple(lost.splitlines())
    if not lines and not runs.estimates and not void:
        lines = (f"no fresh process measured {case.metric.name}",)
    return Confirmation(
        run_values=tuple(e.value for e in runs.estimates),
        half_widths=_half_widths(runs.estimates),
        choices=runs.choices,
        lost=lines,
        void=void,
        control=control,
    )


def _best(
    metric: str, records: Sequence[Record], sessions: Sequence[StoredRecord]
) -> _Runs:
    """Return the values now from the best source that the stored sessions have too."""
    found = [e for r in records for e in r.estimates if _is_whole(e, metric)]
    held = Counter(
        (v.source, v.unit) for s in sessions for v in s.values if v.metric == metric
    )
    shared = [e for e in found if held[e.source, e.unit]]
    source = best_source(e.source for e in shared or found)
    like = next((e for e in found if e.source == source), None)
    runs = _runs(metric, records, like)
    usual = Counter(runs.choices).most_common(1)
    if not usual or len(set(runs.choices)) == 1:
        return runs
    kept = [i for i, choice in enumerate(runs.choices) if choice == usual[0][0]]
    return _Runs(
        estimates=tuple(runs.estimates[i] for i in kept),
        choices=tuple(runs.choices[i] for i in kept),
    )


def _runs(metric: str, records: Iterable[Record], like: Estimate | None) -> _Runs:
    """Return the estimates of a metric that have the source and unit of one."""
    pairs = [
        (estimate, record.choice)
        for record in records
        for estimate in record.estimates
        if like is not None
        and _is_whole(estimate, metric)
        and (estimate.source, estimate.unit) == (like.source, like.unit)
    ]
    return _Runs(
        estimates=tuple(estimate for estimate, _ in pairs),
        choices=tuple(choice for _, choice in pairs),
    )


def _is_whole(estimate: Estimate, metric: str) -> bool:
    """Return whether an estimate is of a metric, and not of one kernel alone."""
    return estimate.metric == metric and estimate.kernel is None


def _comparable(
    metric: str,
    estimate: Estimate | None,
    record: Record,
    sessions: Sequence[StoredRecord],
    across: Set[str],
) -> tuple[tuple[Stored, ...], _Pair, tuple[str, ...]]:
    """Return the stored sessions to compare with; where none is, why."""
    having = [s for s in sessions if any(v.metric == metric for v in s.values)]
    if estimate is None or not having:
        return tuple(_empty(s) for s in having), _NO_FACTS, ()
    alike = [s for s in having if s.value_of(metric, estimate.source) is not None]
    alike = [s for s in alike if _unit(s, metric, estimate.source) == estimate.unit]
    if not alike:
        sources = {v.source for s in having for v in s.values if v.metric == metric}
        return (), _NO_FACTS, tuple(sorted(sources))
    family = family_of(metric, estimate.source).value
    facts = record.facts.get(family, {})
    apart = [differences(facts, s.facts.get(family, {}), across=across) for s in alike]
    kept = [s for s, facts in zip(alike, apart, strict=True) if not facts]
    if not kept:
        return (), apart[-1], ()
    return tuple(_stored(s, metric, estimate.source) for s in kept), _NO_FACTS, ()


def _unit(record: StoredRecord, metric: str, source: str) -> str | None:
    """Return the unit of a stored value."""
    value = record.value_of(metric, source)
    return value.unit if value is not None else None


def _stored(record: StoredRecord, metric: str, source: str) -> Stored:
    """Return a stored session of a case."""
    value = record.value_of(metric, source)
    if value is None:
        return _empty(record)
    return Stored(
        value=SessionValue(
            session_id=record.session.id,
            run_values=value.run_values,
            half_widths=value.half_widths,
        ),
        session=record.session,
        choice=record.choice,
    )


def _empty(record: StoredRecord) -> Stored:
    """Return a stored session whose values there is nothing to compare with."""
    nothing = SessionValue(session_id=record.session.id, run_values=())
    return Stored(value=nothing, session=record.session, choice=record.choice)


def _session_value(estimates: Sequence[Estimate], session_id: str) -> SessionValue:
    """Return the value of each process."""
    return SessionValue(
        session_id=session_id,
        run_values=tuple(e.value for e in estimates),
        half_widths=_half_widths(estimates),
    )


def _half_widths(estimates: Iterable[Estimate]) -> tuple[float, ...]:
    """Return half of each interval over its value, where there is one."""
    return tuple(
        (e.high - e.low) / 2 / abs(e.value)
        for e in estimates
        if e.low is not None and e.high is not None and e.value != 0
    )


def _metric(name: str, estimate: Estimate | None) -> Metric:
    """Return a metric of the catalogue, a counter, or one of the user's own."""
    if name in METRICS:
        return METRICS[name]
    counter = is_counter(name)
    given = estimate.better if estimate is not None else None
    return Metric(
        name=name,
        unit=estimate.unit if estimate is not None else None,
        better=Better(given) if given else Better.NEITHER,
        family=Family.COUNTER if counter else Family.RECORDED,
        meaning="hardware counter" if counter else "a number of the test's own",
    )


def _moved(
    record: Record, comparable: Sequence[Stored], sessions: Sequence[StoredRecord]
) -> _Pair:
    """Return the soft facts that differ from the newest comparable session's."""
    if not comparable:
        return _NO_FACTS
    newest = comparable[-1].session.id
    then = next((s.soft_facts for s in sessions if s.session.id == newest), {})
    return differences(record.soft_facts, then) or _NO_FACTS
