"""Cases: one metric of one test, now and in the stored sessions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter, itemgetter
from types import MappingProxyType
from typing import Final, overload

from pytest_gpuperf.compute.stats import mean
from pytest_gpuperf.model.environment import (
    BETTER,
    BOARD,
    MACHINE,
    PARAMETERS,
    TEST,
    UNIT,
    WORKERS,
    Host,
    Session,
    differences,
    differences_from_stored,
    facts_of,
    family_of,
    same_company,
    same_count,
)
from pytest_gpuperf.model.frozen import BulkRecord, Frozen, force_setattr
from pytest_gpuperf.model.identity import Sameness, sameness_of_all
from pytest_gpuperf.model.metric import Better, Combine, Family, Metric, metric_of
from pytest_gpuperf.model.packed import SessionValues
from pytest_gpuperf.model.record import (
    COMPARED_SESSIONS,
    OVERSUBSCRIBED,
    BoundClass,
    Kind,
    Record,
    RecordKey,
    SessionValue,
    StoredRecord,
    Void,
)
from pytest_gpuperf.model.sample import Estimate, Source, Unmeasured
from pytest_gpuperf.model.verdict import BaselineSpan

Facts = Mapping[str, tuple[str, str]]
NO_FACTS: Facts = MappingProxyType({})
NO_NOTES: Mapping[str, str] = MappingProxyType({})
SEVERAL_THREADS = "several-threads"
# The times of these tests depend on the other work of the machine.
WAITING = frozenset({"waits", SEVERAL_THREADS, OVERSUBSCRIBED})
_COUNT = "launches.count"
# Getters, because a comprehension of each test is a call.
_VALUE, _SESSION, _CHOICE = (
    attrgetter(name) for name in ("value", "session", "choice")
)
# Members that each test asks for. One takes as long to look up as a call.
_NEITHER, _HIGHER, _RESOURCE = Better.NEITHER, Better.HIGHER, Family.RESOURCE
# These soft facts do not influence a test that runs alone: the UUID of the GPU, and the
# number of processes that measure side by side.
HARMLESS = frozenset({BOARD, MACHINE, WORKERS})
# Files give the same value every time.
FILES = frozenset({Source.BINARY, Source.NCU_REPORT})


# Chances are calculated with 6 degrees of freedom, but sessions may have 3 (docs/judging.md
# section 2). Far out, alarms then fall with the square root of the level only.
_LEVEL_POWER: Final = 2


class Policy(Frozen, frozen=True, kw_only=True):
    """
    The constants of the rule, from docs/judging.md section 2 unless stated otherwise.

    Attributes:
        alpha: Nominal chance of a false alarm in a run with one pair of test and metric.

        noise_threshold: A change too small to mean anything [fraction].

        power: Chance of finding a change of the detectable effect.

        suspect_share: Share of the limit beyond which a change is suspected.

        suspect_p: Chance of noise below which a change is suspected.

        against_suspect_p: The same chance if a comparison with a revision decides, which
            costs more and is more certain.

        least_sessions: Stored sessions that a metric with noise needs. A single session
            shows a change, but not whether the change is noise.

        least_choice_runs: Confirming processes that a choice of kernels needs if the
            processes disagree.

        control_count: Tests of a class that fresh processes measure as controls.

        noisy_spread: Usual difference between sessions [fraction] above which a machine is
            too noisy for a stored baseline.

        usual_sessions: Stored sessions of a baseline unless another number is requested.

        disk_shift: Smallest change of the disk's speed that explains one of a test that
            waits for it [fraction].

        disk_power: Power of the disk's change up to which a test may change in addition.

        cache_slowdown: Factor by which reads beyond a core's caches must be slower than in
            all stored sessions to explain the slowdown of a test.

        most_refilling: Largest slowdown of unchanged code whose samples were all interrupted
            [fraction].

        same_commit_change: Largest change of a host time [fraction] that a machine causes
            between runs of one commit.

        blind_limits: Largest detectable change, as a multiple of the limit, with which a
            value is still called unchanged. For limits set by the user.

        blind_fraction: Largest detectable change [fraction] with which a value is still
            called unchanged. For the default limit of the plugin.

        selected: Whether suspects are confirmed. Files of whole runs were not selected for
            being bad, so their changes need no confirmation.

        shard_count: Number of shards of the run. All of them together alarm about as
            seldom as one run.

        pairs_per_case: Pairs of test and metric of the run for each case, more than one
            if the cases are a sample.
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
    # Workloads of a disk that nothing else uses differ by as much.
    disk_shift: float = 0.05
    # While programs wrote small files, appends became 1.4 to 1.6 times as slow, and
    # new files 2.1 to 2.8 times: the power 2.8. A file that is written again became 1.7
    # times as slow where the disk became 1.16 times as slow. The disk's change itself is
    # taken out of the test's.
    disk_power: float = 3.0
    # Reads of unchanged suites differ by up to 1.5 times from one quiet session to another.
    # While processes empty the shared cache, they take 5 to 10 times as long.
    cache_slowdown: float = 2.0
    # A collection of all garbage, the slowest of 40 bodies, took up to 3.2 times its time.
    most_refilling: float = 3.0
    # numpy's argsort took 18 % longer for a quarter of an hour in all processes, until the
    # pages of its library were read into other memory.
    same_commit_change: float = 0.2
    blind_limits: float = 2.0
    blind_fraction: float = 0.5
    selected: bool = True
    shard_count: int = 1
    pairs_per_case: float = 1.0

    def level(self, pair_count: int) -> float:
        """Return the nominal level of a run with `pair_count` pairs of test and metric."""
        share = max(0.5, 1 / math.sqrt(max(1, pair_count)))
        return self.alpha * share / float(self.shard_count) ** _LEVEL_POWER


# The rule as stated in docs/judging.md.
POLICY = Policy()


class StoredValue(BulkRecord, frozen=True, kw_only=True):
    """
    One stored session of a case.

    Attributes:
        value: The values of the session.

        session: Time and place of the session.

        choice: Hash of the kernels that ran, or None if unknown.
    """

    value: SessionValue
    session: Session
    choice: str | None = None


class SessionList:
    """
    Sessions that several cases were measured in, in order.

    Args:
        sessions: The sessions.

        choices: The hash of the kernels that ran in each, or None if unknown.

    Attributes:
        sessions: As given.

        choices: As given.

        ids: The id of each session.

        count: The number of sessions.

        is_of_one_choice: Whether all sessions ran the same kernels.

        spans: For cases that count and those that do not, the span of the sessions in a
            verdict.
    """

    __slots__ = (
        *("_company", "choices", "count", "ids"),
        *("is_of_one_choice", "sessions", "spans"),
    )

    def __init__(
        self, sessions: tuple[Session, ...], choices: tuple[str | None, ...]
    ) -> None:
        self.sessions, self.choices = sessions, choices
        self.ids = tuple([session.id for session in sessions])
        self.count = len(sessions)
        self.is_of_one_choice = len(set(choices)) == 1
        self._company: dict[int, tuple[int, ...]] = {}
        self.spans: dict[bool, BaselineSpan | None] = {}

    def company(self, ran_count: int) -> tuple[int, ...]:
        """Return the places of the sessions that ran about as many tests."""
        if ran_count not in self._company:
            self._company[ran_count] = tuple(
                place
                for place, session in enumerate(self.sessions)
                if same_count(ran_count, session.ran_count)
            )
        return self._company[ran_count]


# The cases of a run share few lists. A list keeps its sessions, so that no id is used again.
_LISTS: dict[tuple[tuple[int, ...], tuple[str | None, ...]], SessionList] = {}
_MOST_LISTS = 1024
# By the facts of two records, which are kept for the same reason: both, and what differs.
_APART: dict[tuple[object, ...], tuple[object, object, Facts]] = {}


def session_list(
    sessions: Iterable[Session], choices: Iterable[str | None]
) -> SessionList:
    """Return sessions as a list, the same one for the same objects."""
    several, chosen = tuple(sessions), tuple(choices)
    name = tuple(map(id, several)), chosen
    found = _LISTS.get(name)
    if found is None:
        if len(_LISTS) >= _MOST_LISTS:
            _LISTS.clear()
        found = _LISTS[name] = SessionList(several, chosen)
    return found


class StoredValues(Sequence[StoredValue]):
    """
    The stored sessions of a case, packed. A record is made when it is asked for.

    Attributes:
        values: The values of the sessions.

        listed: The sessions.
    """

    __slots__ = ("listed", "values")

    def __init__(self, values: SessionValues, listed: SessionList) -> None:
        self.values, self.listed = values, listed

    @classmethod
    def of(cls, stored: Sequence[StoredValue]) -> StoredValues:
        """Pack stored sessions, unless they are packed already."""
        if isinstance(stored, cls):
            return stored
        values = SessionValues.of([*map(_VALUE, stored)])
        return cls(values, session_list(map(_SESSION, stored), map(_CHOICE, stored)))

    def at(self, places: Sequence[int]) -> StoredValues:
        """Return the sessions at some places, in order."""
        if len(places) == len(self):
            return self
        several = [*self]
        return StoredValues.of([several[place] for place in places])

    def with_choice(self, choice: str | None) -> StoredValues:
        """Return the sessions that ran the kernels of a choice."""
        choices = self.listed.choices
        return self.at([place for place, c in enumerate(choices) if c == choice])

    def __len__(self) -> int:
        """Return the number of sessions."""
        return self.listed.count

    @overload
    def __getitem__(self, place: int) -> StoredValue: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[StoredValue, ...]: ...
    def __getitem__(self, place: int | slice) -> StoredValue | tuple[StoredValue, ...]:
        """Return a session, or some."""
        return tuple(self)[place]

    def __iter__(self) -> Iterator[StoredValue]:
        """Make each session."""
        sessions, choices = self.listed.sessions, self.listed.choices
        for value, session, choice in zip(self.values, sessions, choices, strict=True):
            yield StoredValue(value=value, session=session, choice=choice)

    def __eq__(self, other: object) -> bool:
        """Return True for equal sessions in the same order, packed or not."""
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        """Return the hash of the sessions."""
        return hash(tuple(self))

    def __repr__(self) -> str:
        """Return the sessions, for messages."""
        return repr(tuple(self))


NO_SESSIONS = StoredValues.of(())


class Reference(Frozen, frozen=True, kw_only=True):
    """
    A workload that no code change can move. Its time changes only with the machine.

    Attributes:
        name: Name of the workload.

        bound_class: The class of tests that machine drift moves together with the workload.

        current: The time in this session, or None.

        stored: The times in the stored sessions, in any order.

        fresh: The time in each fresh process, or None if there were none.

        host: The host that timed the workload, or None for the host of the main process.
    """

    name: str
    bound_class: BoundClass
    current: SessionValue | None
    stored: Sequence[StoredValue] = ()
    fresh: SessionValue | None = None
    host: Host | None = None


class Case(BulkRecord, frozen=True, kw_only=True):
    """
    One metric of one measurement, now and in the baseline.

    Attributes:
        key: The measurement.

        metric: The metric.

        limit: Largest change that passes [fraction], or None if the metric is only shown.

        default_limit: Whether the limit is the default of the plugin.

        estimate: The current value, or None.

        current: The current value of each process, or None.

        choice: Hash of the kernels that ran now, or None if unknown.

        stored: Comparable stored sessions from the same source, oldest first.

        oldest: Comparable sessions before these. Only a drift is seen against them.

        differences: Hard facts on which all stored sessions differ, as name to (then, now).

        other_sources: Sources of the stored sessions if the current source is not among
            them.

        other_machines: The other machines or GPUs with stored sessions of the measurement.

        unmeasured: The reason for a missing value, or None if there is a value or no reason
            was recorded.

        void: The reason why the value must not be judged, or None.

        bound_class: The class of tests that machine drift moves together with the case.

        moved: Soft facts that differ from the newest session, as name to (then, now).

        kind: The kind of measurement, or None if unknown.

        notes: Texts of the notes that matter for a verdict, by code: the test waits, has
            several threads, or shared the cores with other processes.

        facts: The hard facts of the current value.

        across: Names of facts that may differ.

        gpu_uuid: The GPU in use, or "" if there is none or the GPU is unknown.

        host: The host that measured the case, or None for the host of the main process and
            the fresh processes.

        session: The session that measured the case, or None if the number of tests that ran
            is unknown.

        launches: Launches behind a total of a captured report: the mean of the stored
            sessions, and the number now. None if they are equal or unknown.

        code: Whether the kernels have the machine code of all compared sessions. None if
            unknown.
    """

    key: RecordKey
    metric: Metric
    limit: float | None
    estimate: Estimate | None
    current: SessionValue | None
    choice: str | None = None
    stored: StoredValues = NO_SESSIONS
    oldest: StoredValues = NO_SESSIONS
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
    launches: tuple[float, float] | None = None
    code: Sameness | None = None

    def __post_init__(self) -> None:
        """Pack the stored sessions, unless they are packed."""
        for name in ("stored", "oldest"):
            if type(getattr(self, name)) is not StoredValues:
                force_setattr(self, name, StoredValues.of(getattr(self, name)))

    @property
    def runs_same_code(self) -> bool:
        """
        True if no change of the code can have moved the value.

        A time of the device, of the same kernels in the same grids and as many launches, with
        the same machine code, as in all compared sessions.
        """
        if self.code is not Sameness.SAME or self.estimate is None:
            return False
        family = family_of(self.metric.name, self.estimate.source)
        choices = self.stored.listed.choices
        return family is Family.DEVICE_TIME and choices.count(self.choice) == len(
            choices
        )

    @property
    def is_same_commit(self) -> bool:
        """True if the run and all stored sessions had the same files and packages."""
        return not self.moved.keys() - HARMLESS and same_commit(
            self.session, self.stored.listed.sessions
        )

    @property
    def name(self) -> tuple[RecordKey, str]:
        """Identifier of the case, unique within a run."""
        return self.key, self.metric.name

    @property
    def company(self) -> StoredValues:
        """The stored sessions that ran about as many tests as the current session."""
        session = self.session
        if session is None or session.ran_count is None:
            return self.stored
        return self.stored.at(self.stored.listed.company(session.ran_count))

    @property
    def of_file(self) -> bool:
        """True if the value was read from a file. No fresh process can confirm such a value."""
        return self.estimate is not None and self.estimate.source in FILES

    @property
    def sign(self) -> float:
        """1 if a larger value is worse, -1 if a smaller value is worse."""
        better = self.metric.better
        if better is _NEITHER:
            better = direction(self.metric)
        return -1.0 if better is _HIGHER else 1.0

    @property
    def counts(self) -> bool:
        """True if equal code gives equal values, as for counts and values read from a file."""
        counted = self.metric.exact or self.metric.family is _RESOURCE
        return counted or self.of_file


def direction(metric: Metric) -> Better:
    """
    Return the better direction of a metric.

    A metric without a direction may still be gated by name. A share of a peak is then
    better the higher it is, and everything else (registers, shared memory, counters) the
    lower.
    """
    better = metric.better
    if better is not _NEITHER:
        return better
    return Better.HIGHER if metric.unit == "fraction" else Better.LOWER


# Closest to the device first. Unlisted sources come last.
_BEST_FIRST: tuple[str, ...] = (
    *(Source.CUPTI, Source.EVENTS, Source.NCU, Source.NVML),
    *(Source.NCU_REPORT, Source.BINARY, Source.USER, Source.HOST),
)
# Getters, because a comprehension of each test is a call.
_RECORD, _VALUE_OF, _ESTIMATE = itemgetter(0), itemgetter(1), itemgetter(0)
_Pair = tuple[StoredRecord, SessionValue]
# An estimate, and the choice of kernels that gave the value.
ChosenValue = tuple[Estimate, "str | None"]


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
    machine: str | None = None,
) -> Case:
    """
    Build the case of a metric from measured records and stored sessions.

    Args:
        records: The records of one key, one per process, the main process first. At least
            one.

        stored: The stored sessions of the key in order of arrival, because a clock may go
            back.

        metric: The metric's name.

        limit: Largest change that passes [fraction], or None if the metric is only shown.

        session_id: Id of the session that measured.

        across: Hard facts that may differ.

        other_machines: The other machines or GPUs with stored sessions of the measurement.

        default_limit: Whether `limit` is the default of the plugin.

        session: The session that measured, with the number of tests that ran. If None, that
            number is unknown and all stored sessions are compared.

        machine: Label or hash of the machine that measured, or None if unknown.
    """
    usable = [record for record in records if record.void is None]
    sessions, having = _held(stored, metric, session_id)
    now = _best(metric, usable or records, having)
    estimate, choice = now[0] if now else (None, None)
    first = records[0]
    # A process that lost the source has no facts of the source.
    about = (usable or records)[0]
    if len(usable) > 1:
        about = next((r for r in usable if estimate in r.estimates), about)
    comparable, differing, sources = _comparable(estimate, about, having, across)
    oldest, compared = map(_stored, _by_age(comparable))
    of_name = metric_of(metric)
    if estimate is not None:
        better = Better(estimate.better) if estimate.better else Better.NEITHER
        of_name = metric_of(metric, unit=estimate.unit, better=better)
    return Case(
        key=first.key,
        metric=of_name,
        limit=limit,
        estimate=estimate,
        current=SessionValue.of([*map(_ESTIMATE, now)], usable) if now else None,
        choice=choice,
        stored=compared,
        oldest=oldest,
        differences=differing,
        other_sources=sources,
        other_machines=other_machines,
        unmeasured=_gap(first, metric) if first.unmeasured else None,
        void=None if usable else first.void,
        bound_class=first.bound_class,
        kind=first.kind,
        moved=_moved(first, compared, sessions, machine),
        default_limit=default_limit,
        notes=waits_in(usable),
        facts=(
            {} if estimate is None else facts_of(about.facts, metric, estimate.source)
        ),
        across=across,
        gpu_uuid="" if about.device is None else about.device.uuid,
        host=first.host,
        session=session,
        launches=_launches(estimate, about, compared, sessions)
        if estimate is not None and estimate.source == Source.NCU_REPORT
        else None,
        # Most measurements have no machine code at hand.
        code=_code(usable, choice, compared, sessions) if about.code_digest else None,
    )


def _code(
    records: Sequence[Record],
    choice: str | None,
    comparable: StoredValues,
    sessions: Iterable[StoredRecord],
) -> Sameness | None:
    ids = set(comparable.listed.ids)
    return same_code(
        [record for record in records if record.choice == choice],
        [session for session in sessions if session.session.id in ids],
    )


def same_commit(now: Session | None, stored: Collection[Session]) -> bool:
    """Return True if a session and all stored ones had the same, unmodified files."""
    if now is None or now.commit is None or not stored:
        return False
    return all(s.commit == now.commit and s.dirty is False for s in (now, *stored))


def same_code(
    records: Sequence[Record], sessions: Sequence[StoredRecord]
) -> Sameness | None:
    """
    Return True if processes ran the machine code of all stored sessions.

    Args:
        records: The records of the processes, all of one choice of kernels.

        sessions: The compared sessions, in order.

    Returns:
        The result, or None if unknown or if the processes ran different code.
    """
    now = {record.code_digest for record in records}
    if len(now) != 1:
        return None
    # As the rule does, which compares inside the choice of kernels if it can.
    inside = [s for s in sessions if s.choice == records[0].choice]
    compared = inside if len(inside) >= POLICY.least_sessions else sessions
    return sameness_of_all([s.code_digest for s in compared], *now)


def _held(
    stored: Iterable[StoredRecord], metric: str, session_id: str
) -> tuple[list[StoredRecord], list[_Pair]]:
    sessions: list[StoredRecord] = []
    having: list[_Pair] = []
    for session in stored:
        if session.session.id != session_id:
            sessions.append(session)
            for value in session.values:
                if value.metric == metric:
                    having.append((session, value))  # noqa: PERF401 - a call for each session
    return sessions, having


def _gap(record: Record, metric: str) -> Unmeasured | None:
    for gap in record.unmeasured:
        if gap.metric == metric:
            return gap
    return None


def _launches(
    estimate: Estimate,
    record: Record,
    comparable: StoredValues,
    sessions: Iterable[StoredRecord],
) -> tuple[float, float] | None:
    """Return the launches behind a total of a captured report, or None if equal or unknown."""
    if metric_of(estimate.metric).combine is not Combine.SUM:
        return None
    ids = set(comparable.listed.ids)
    then = [
        mean(value.run_values)
        for session in sessions
        if session.session.id in ids
        for value in values_of(session, _COUNT)
    ]
    now = [e.value for e, _ in values_in(_COUNT, [record])]
    if not (then and now) or mean(then) == now[0] or estimate.metric == _COUNT:
        return None
    return mean(then), now[0]


def waits_in(records: Iterable[Record]) -> Mapping[str, str]:
    """Return the texts of the notes on waits and threads in some records, by code."""
    notes: dict[str, str] = {}
    for record in records:
        for note in record.notes:
            if note.code in WAITING:
                notes[note.code] = note.text
    return notes or NO_NOTES


def values_of(session: StoredRecord, metric: str) -> list[SessionValue]:
    """Return the values of a metric in a session, one of each source."""
    return [value for value in session.values if value.metric == metric]


def best_source(sources: Iterable[str]) -> str | None:
    """
    Return the source closest to the device, or None without sources.

    Example:
        >>> best_source(["host", "cupti"])
        'cupti'
    """
    return min(sources, key=_rank, default=None)


def _best(
    metric: str, records: Sequence[Record], having: Sequence[_Pair]
) -> list[ChosenValue]:
    """Return the current values of the best source that the stored sessions also have."""
    whole = values_in(metric, records)
    if len(whole) <= 1:  # The usual case: nothing to choose from.
        return whole
    held = {(v.source, v.unit) for _, v in having}
    shared = [e.source for e, _ in whole if (e.source, e.unit) in held]
    source = best_source(shared or [e.source for e, _ in whole])
    first = next((e for e, _ in whole if e.source == source), None)
    now = of_source(whole, first)
    if len(now) <= 1:  # The usual case.
        return now
    usual, _ = Counter(choice for _, choice in now).most_common(1)[0]
    return [(estimate, choice) for estimate, choice in now if choice == usual]


def values_in(metric: str, records: Iterable[Record]) -> list[ChosenValue]:
    """Return the values of a metric in some records, without those of single kernels."""
    whole: list[ChosenValue] = []
    for record in records:
        for estimate in record.estimates:
            if estimate.metric == metric and estimate.kernel is None:
                whole.append((estimate, record.choice))  # noqa: PERF401 - a comprehension is a call
    return whole


def of_source(whole: Iterable[ChosenValue], like: Estimate | None) -> list[ChosenValue]:
    """Return the values with the source and the unit of an estimate, or [] for None."""
    if like is None:
        return []
    name = (like.source, like.unit)
    return [(e, choice) for e, choice in whole if (e.source, e.unit) == name]


def _comparable(
    estimate: Estimate | None,
    record: Record,
    having: Sequence[_Pair],
    across: Collection[str],
) -> tuple[Sequence[_Pair], Facts, tuple[str, ...]]:
    """
    Return the comparable stored sessions, or the reasons why there are none.

    Returns:
        The sessions, the facts that differ, and the stored sources if the current source is
        not among them.
    """
    if estimate is None:
        held = {s.session.id: (s, value) for s, value in having}
        return [*held.values()], NO_FACTS, ()
    alike = _alike(estimate, having)
    if not alike:
        return (), NO_FACTS, tuple(sorted({value.source for _, value in having}))
    apart = _apart(estimate, record, alike, across)
    equal = alike
    if any(apart):  # Nearly never.
        equal = [pair for pair, facts in zip(alike, apart, strict=True) if not facts]
    if not equal:
        return (), apart[-1], ()
    return equal, NO_FACTS, ()


def unsteady_tests(records: Iterable[Record]) -> frozenset[str]:
    """Return the ids of the tests whose parameters differ between the records."""
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

        now: The record of the value.

        sessions: The stored sessions of the same measurement.

        across: Facts that may differ.
    """
    having = [(s, v) for s in sessions for v in s.values if v.metric == like.metric]
    alike = _alike(like, having)
    apart = _apart(like, now, alike, across)
    return [value for (_, value), facts in zip(alike, apart, strict=True) if not facts]


def _alike(like: Estimate | SessionValue, having: Sequence[_Pair]) -> list[_Pair]:
    alike: list[_Pair] = []
    # Loops, because each comprehension of each test is a call.
    for pair in having:
        if pair[1].source == like.source:
            alike.append(pair)  # noqa: PERF401
    return alike


def _apart(
    like: Estimate | SessionValue,
    now: Record | StoredRecord,
    pairs: Sequence[_Pair],
    across: Collection[str],
) -> list[Facts]:
    """
    Return what differs for every session, as name to (then, now).

    These are hard facts, parameters, the unit and the direction.
    """
    # The sessions of one machine share their facts, and those of a file are one object.
    apart: dict[tuple[int, int], Facts] = {}
    found: list[Facts] = []
    for then, value in pairs:
        place = id(then.facts), then.schema_version
        if place not in apart:
            apart[place] = _facts_apart(like, now, then, across)
        own: dict[str, tuple[str, str]] = {}
        if (
            now.parameters_digest != then.parameters_digest
            or like.better != value.better
        ):
            sides = {
                PARAMETERS: (then.parameters_digest, now.parameters_digest),
                BETTER: (value.better, like.better),
            }
            own = {
                name: (was, is_now)
                for name, (was, is_now) in sides.items()
                # A value that was not stored is ignored.
                if was is not None and is_now is not None and was != is_now
                if name not in across
            }
        if value.unit != like.unit:  # No option makes bytes comparable with seconds.
            own[UNIT] = (value.unit, like.unit)
        shared = apart[place]
        found.append({**own, **shared} if own else shared)
    return found


def _facts_apart(
    like: Estimate | SessionValue,
    now: Record | StoredRecord,
    then: StoredRecord,
    across: Collection[str],
) -> Facts:
    """Return the hard facts that differ, found once for all tests that share them."""
    name = (
        *(id(now.facts), id(then.facts), like.metric, like.source),
        *(then.schema_version, frozenset(across)),
    )
    known = _APART.get(name)
    if known is None:
        differing = differences_from_stored(
            facts_of(now.facts, like.metric, like.source),
            facts_of(then.facts, like.metric, like.source),
            version=then.schema_version,
            across=across,
        )
        if len(_APART) >= _MOST_LISTS:
            _APART.clear()
        # The facts are kept, because an id is that of a living object.
        known = _APART[name] = now.facts, then.facts, differing
    return known[2]


def _stored(pairs: Sequence[_Pair]) -> StoredValues:
    if not pairs:
        return NO_SESSIONS
    records = [*map(_RECORD, pairs)]
    values = SessionValues.of([*map(_VALUE_OF, pairs)])
    listed = session_list(map(_SESSION, records), map(_CHOICE, records))
    return StoredValues(values, listed)


def _by_age(pairs: Sequence[_Pair]) -> tuple[Sequence[_Pair], Sequence[_Pair]]:
    """Return the sessions too old to be compared, and those that are compared."""
    if len(pairs) <= COMPARED_SESSIONS:
        return (), pairs
    newest: list[_Pair] = []
    oldest: list[_Pair] = []
    for pair in reversed(pairs):
        record = pair[0]
        alike_count = sum(
            other.choice == record.choice
            and same_company(other.session, record.session)
            for other, _ in newest
        )
        (newest if alike_count < COMPARED_SESSIONS else oldest).append(pair)
    return oldest[::-1], newest[::-1]


def _moved(
    record: Record,
    comparable: StoredValues,
    sessions: Sequence[StoredRecord],
    machine: str | None,
) -> Facts:
    """
    Return the soft facts that differ from the newest comparable session.

    The machine is among them if it differs and another GPU measured.

    The test counts as moved if any comparable session ran another version of it, because
    the mean includes that version.
    """
    if not comparable:
        return NO_FACTS
    ids = comparable.listed.ids
    newest = ids[-1]
    then: Mapping[str, str] | None = None
    other = machine_then = None
    for session in sessions:  # Called for each test: not four generators.
        if session.session.id not in ids:
            continue
        if then is None and session.session.id == newest:
            then, machine_then = session.soft_facts, session.session.machine
        if session.test_digest not in {None, record.test_digest}:
            other = session.test_digest
    moved = differences(record.soft_facts, then or {})
    if BOARD in moved and machine and machine_then not in {None, machine}:
        moved[MACHINE] = (machine_then, machine)
    if other is not None and record.test_digest is not None:
        moved[TEST] = (other, record.test_digest)
    return moved or NO_FACTS


def _rank(source: str) -> tuple[int, str]:
    """Return the sort key of a source. Unlisted sources come last, by name."""
    ranked = source in _BEST_FIRST
    return (_BEST_FIRST.index(source) if ranked else len(_BEST_FIRST), source)
