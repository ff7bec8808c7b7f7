"""The values of both sides for each test and metric, collected from all processes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from pytest_gpuperf.compute.blocks import (
    Process,
    ProcessValue,
    SideValues,
    reference_moves,
)
from pytest_gpuperf.compute.change import exact_change, is_exact
from pytest_gpuperf.compute.kernels import account, named, totals_of, usual_choice
from pytest_gpuperf.judge.case import (
    NO_SESSIONS,
    Case,
    Policy,
    StoredValue,
    StoredValues,
    case_of,
    unsteady_tests,
)
from pytest_gpuperf.judge.rule import (
    by_equality,
    comparison_of,
    early_verdict,
    verdict_of,
    worsening_of,
)
from pytest_gpuperf.model.change import AgainstEvidence, KernelAccount, Side
from pytest_gpuperf.model.environment import Session
from pytest_gpuperf.model.frozen import Frozen, replace
from pytest_gpuperf.model.metric import metric_of
from pytest_gpuperf.model.record import (
    BoundClass,
    Record,
    RecordKey,
    SessionValue,
    StoredRecord,
)
from pytest_gpuperf.model.sample import Unmeasured
from pytest_gpuperf.model.verdict import (
    Cause,
    KernelChoice,
    Outcome,
    Reason,
    Verdict,
    VerdictEvidence,
)

# The processes of the revision count as one session.
_POLICY = Policy(least_sessions=1)
# No report shows this session.
_NOWHERE = Session(id="revision", started_unix_s=0.0, host="")
_CAUSES = {
    frozenset({Side.OLD}): Cause.OLD_SIDE,
    frozenset({Side.NEW}): Cause.NEW_SIDE,
    frozenset(Side): Cause.BOTH_SIDES,
}


class SideRun(Frozen, frozen=True, kw_only=True):
    """
    The measurements of one process of a block.

    Attributes:
        side: The side whose files the process ran.

        index: Number of the process among those of its side in the block, from 0.

        records: The records of the tests.

        references: The records of the reference workloads.

        failures: The last lines of each test without a value, by test id. "" if the reason
            is unknown.

        ended_in: The test in which the process was ended, or "".

        not_reached: The tests that had not started by then.

        ended_outside: The reason why the process was ended before its first or after its
            last test, or "".
    """

    side: Side
    index: int
    records: tuple[Record, ...] = ()
    references: tuple[Record, ...] = ()
    failures: Mapping[str, str] = {}
    ended_in: str = ""
    not_reached: frozenset[str] = frozenset()
    ended_outside: str = ""


class Block(Frozen, frozen=True, kw_only=True):
    """
    The processes of both sides that ran alternately, usually two per side.

    Attributes:
        index: Number of the block, from 0.

        runs: The measurements of each process, in any order.
    """

    index: int
    runs: tuple[SideRun, ...]

    @property
    def ended_in(self) -> frozenset[str]:
        """The tests in which all processes of a side were ended."""
        places = (
            {run.ended_in for run in self.runs if run.side is side} for side in Side
        )
        return frozenset().union(*(tests for tests in places if len(tests) == 1)) - {""}

    @property
    def lost(self) -> tuple[SideRun, ...]:
        """The processes that ended early, while another process of the same side went on."""
        return tuple(
            run
            for run in self.runs
            if (run.ended_in or run.ended_outside) and run.ended_in not in self.ended_in
        )

    @property
    def ended_outside(self) -> tuple[Side, str] | None:
        """The side with all processes ended outside of tests, and the reason, or None."""
        for side in Side:
            reasons = [run.ended_outside for run in self.runs if run.side is side]
            if reasons and all(reasons):
                return side, reasons[0]
        return None

    def silent(self, gates: Mapping[str, Mapping[str, float | None]]) -> frozenset[str]:
        """
        Return the tests that every process measured, and none of their compared metrics.

        Args:
            gates: The compared metrics of each test, by id, with their limits.
        """
        first, *rest = (_silent(run, gates) for run in self.runs)
        return first.intersection(*rest)


def _silent(
    run: SideRun, gates: Mapping[str, Mapping[str, float | None]]
) -> frozenset[str]:
    measured, compared = set(), set()
    for record in run.records:
        test_id = record.key.test_id
        measured.add(test_id)
        given = {e.metric for e in record.estimates if e.kernel is None}
        given.update(gap.metric for gap in record.unmeasured)
        if given.intersection(gates.get(test_id, ())):
            compared.add(test_id)
    return frozenset(measured - compared)


class SidePair(Frozen, frozen=True, kw_only=True):
    """
    One metric of one measurement on both sides.

    Attributes:
        case: The case, without stored sessions.

        verdict: The verdict if no noise is involved, or None if blocks decide.

        values: The values of the choices of kernels that both sides made. None if there is
            a verdict or no common choice.

        kernels: The kernels that most processes ran, of the revision and of the working
            tree.

        account: The time of each of these kernels on both sides, or None if unknown.

        is_frozen: Whether each side always made a single choice, different from the other
            side.
    """

    case: Case
    verdict: Verdict | None = None
    values: SideValues | None = None
    kernels: tuple[KernelChoice, KernelChoice] | None = None
    account: KernelAccount | None = None
    is_frozen: bool = False

    @property
    def is_gated(self) -> bool:
        """True if the metric has a limit."""
        return self.case.limit is not None

    def until(self, block_count: int) -> SideValues | None:
        """Return the values of the first blocks, or None if a side has no value there."""
        if self.values is None:
            return None
        values = [v for v in self.values.values if v.process.block < block_count]
        return _side_values(self.case, values, self.values.moves)


def pairs_of(
    blocks: Sequence[Block],
    gates: Mapping[str, Mapping[str, float | None]],
    *,
    across: Collection[str],
) -> list[SidePair]:
    """
    Return the pairs to compare, by test.

    Args:
        blocks: All blocks, in order.

        gates: The largest change by metric [fraction] of each test, by id, or None for a
            metric that is only shown.

        across: Hard facts that may differ.
    """
    runs = [
        (Process(block=number, side=run.side, index=run.index), run)
        for number, block in enumerate(blocks)
        for run in block.runs
    ]
    unsteady = unsteady_parameters(blocks)
    records: dict[str, dict[RecordKey, list[_Taken]]] = {}
    for process, run in sorted(runs, key=lambda pair: pair[0]):
        for record in run.records:
            if record.key.test_id in unsteady:
                record = replace(record, parameters_digest=None)  # noqa: PLW2901 - without it
            keys = records.setdefault(record.key.test_id, {})
            keys.setdefault(record.key, []).append((process, record))
    moves = _moves(runs)
    pairs: list[SidePair] = []
    for test_id, limits in gates.items():
        keys = records.get(test_id, {})
        failed = [run for _, run in runs if test_id in run.failures]
        failures: dict[Side, str] = {}
        for run in failed:
            failures[run.side] = failures.get(run.side) or run.failures[test_id]
        # The test in which all of them were ended, before they reached this one.
        reached = any(test_id not in run.not_reached for run in failed)
        ended_in = failed[0].ended_in if failed and not reached else ""
        for key, metric, limit in _compared(test_id, keys, limits):
            case = Case(
                key=key,
                metric=metric_of(metric),
                limit=limit,
                estimate=None,
                current=None,
            )
            measured = _SideRecords(
                case=case,
                taken=keys.get(key, ()),
                failures=failures,
                ended_in=ended_in,
            )
            pair = _pair(measured, moves, across)
            is_shown = pair.verdict is not None and pair.verdict.change is not None
            if pair.is_gated or pair.values is not None or is_shown:
                pairs.append(pair)
    return pairs


def unsteady_parameters(blocks: Iterable[Block]) -> frozenset[str]:
    """Return the ids of the tests whose parameters differ between processes of a side."""
    runs = [run for block in blocks for run in block.runs]
    sides = (
        (r for run in runs if run.side is side for r in run.records) for side in Side
    )
    return frozenset().union(*map(unsteady_tests, sides))


_Taken = tuple[Process, Record]
_Moves = Mapping[BoundClass, Mapping[Process, float]]


class _SideRecords(Frozen, frozen=True, kw_only=True):
    """
    One metric of one measurement, with the records of all processes.

    Attributes:
        case: The case, without values.

        taken: The record of each process.

        failures: The last lines of a process in which the test gave no value, by side.

        ended_in: The test in which all processes were ended that did not reach this test.
            "" if the test failed in one of them.
    """

    case: Case
    taken: Sequence[_Taken]
    failures: Mapping[Side, str]
    ended_in: str

    def of_side(self, side: Side) -> list[Record]:
        """Return the records with a value on a side, including void records."""
        name = self.case.metric.name
        return [r for p, r in self.taken if p.side is side and _has(r, name)]

    def without_rare_sources(self) -> _SideRecords:
        """
        Remove sources with fewer than half as many blocks as the most frequent source.

        A process may lose a source, such as events if the device kept working after the
        last event. A source that few processes kept would leave too few blocks.
        """
        name = self.case.metric.name
        # Sides with a value, by source and block.
        sides: dict[tuple[str, int], set[Side]] = {}
        for process, record in self.taken:
            for estimate in record.estimates if record.void is None else ():
                if estimate.metric == name:
                    at = (estimate.source, process.block)
                    sides.setdefault(at, set()).add(process.side)
        counts = Counter(s for (s, _), both in sides.items() if len(both) == len(Side))
        most = max(counts.values(), default=0)
        rare = {source for source, _ in sides if 2 * counts[source] < most}
        if not rare:
            return self
        taken = []
        for process, record in self.taken:
            left = [
                e for e in record.estimates if e.metric != name or e.source not in rare
            ]
            taken.append((process, replace(record, estimates=tuple(left))))
        return replace(self, taken=taken)

    def shares_a_block(self) -> bool:
        """Return True if any block has values of both sides."""
        old, new = (
            {p.block for p, r in self.taken if p.side is side and r.estimates}
            for side in Side
        )
        return bool(old & new)


def _compared(
    test_id: str,
    keys: Mapping[RecordKey, Sequence[_Taken]],
    limits: Mapping[str, float | None],
) -> Iterator[tuple[RecordKey, str, float | None]]:
    """Yield the compared keys of a test. A metric that no record has is yielded once."""
    for metric, limit in limits.items():
        about = [
            key
            for key, taken in keys.items()
            if any(
                _has(r, metric) or any(gap.metric == metric for gap in r.unmeasured)
                for _, r in taken
            )
        ]
        if about:
            yield from ((key, metric, limit) for key in about)
        elif limit is not None and (metric != "time" or not keys):
            yield RecordKey(test_id=test_id), metric, limit


def _has(record: Record, metric: str) -> bool:
    return any(e.metric == metric and e.kernel is None for e in record.estimates)


def _moves(runs: Iterable[tuple[Process, SideRun]]) -> _Moves:
    times: dict[BoundClass, dict[str, dict[Process, float]]] = {}
    for process, run in runs:
        for record in run.references:
            for estimate in record.estimates if record.void is None else ():
                workloads = times.setdefault(record.bound_class, {})
                by_process = workloads.setdefault(record.key.name, {})
                by_process[process] = estimate.value
    moves = {name: reference_moves(workloads) for name, workloads in times.items()}
    of_gpu = moves.get(BoundClass.GPU, {})
    return {BoundClass.COMPUTE: of_gpu, BoundClass.MEMORY: of_gpu, **moves}


def _pair(measured: _SideRecords, moves: _Moves, across: Collection[str]) -> SidePair:
    measured = measured.without_rare_sources()
    empty = frozenset(side for side in Side if not measured.of_side(side))
    if empty:
        return SidePair(case=measured.case, verdict=_without_values(measured, empty))
    if measured.failures and not measured.shares_a_block():
        verdict = _without_values(measured, frozenset(Side), Cause.NEVER_TOGETHER)
        return SidePair(case=measured.case, verdict=verdict)
    old = [r for r in measured.of_side(Side.OLD) if r.void is None]
    if not old:
        void = next(r.void for r in measured.of_side(Side.OLD) if r.void is not None)
        gap = Unmeasured.of_metric(measured.case.metric.name, void.gap)
        verdict = verdict_of(
            measured.case,
            Outcome.INCONCLUSIVE,
            Reason.VOID,
            evidence=VerdictEvidence(gap=gap),
        )
        return SidePair(case=measured.case, verdict=_against(verdict))
    case = case_of(
        measured.of_side(Side.NEW),
        [_stored(record) for record in old],
        metric=measured.case.metric.name,
        limit=measured.case.limit,
        session_id="",
        across=across,
    )
    early = early_verdict(case, _POLICY, None)
    case = replace(case, stored=NO_SESSIONS)
    if early is not None:
        return SidePair(case=case, verdict=_against(early))
    return _of_values(case, measured, moves.get(case.bound_class, {}))


def _of_values(
    case: Case, measured: _SideRecords, moves: Mapping[Process, float]
) -> SidePair:
    """Return a pair of the choices that both sides made. An exact metric is judged here."""
    like = case.estimate
    values = [
        ProcessValue(process=process, value=estimate.value, choice=record.choice)
        for process, record in measured.taken
        if record.void is None
        for estimate in record.estimates
        if like is not None
        and estimate.kernel is None
        and (estimate.metric, estimate.source, estimate.unit)
        == (like.metric, like.source, like.unit)
    ]
    old, new = ([v.choice for v in values if v.process.side is side] for side in Side)
    both = {*old} & {*new}
    shared = [value for value in values if value.choice in both]
    sides = _side_values(case, shared, moves)
    if sides is not None and is_exact(sides.comparison):
        # Equal code gives equal values.
        comparison = sides.comparison
        change = exact_change(comparison)
        limit = math.inf if case.limit is None else case.limit
        outcome, reason = by_equality(worsening_of(case, change), limit)
        block_count = len({value.process.block for value in sides.values})
        evidence = AgainstEvidence(
            block_count=block_count,
            old_values=comparison.stored[0].run_values,
            new_values=comparison.current.run_values,
            code=case.code,
        )
        verdict = verdict_of(case, outcome, reason, change=change)
        return SidePair(case=case, verdict=replace(verdict, against=evidence))
    then, now = usual_choice(old), usual_choice(new)
    times_then = totals_of(measured.of_side(Side.OLD), then.choice)
    times_now = totals_of(measured.of_side(Side.NEW), now.choice)
    return SidePair(
        case=case,
        values=sides,
        kernels=(named(then, times_then), named(now, times_now)),
        account=account(times_then, times_now),
        is_frozen=not shared and len({*old}) == len({*new}) == 1,
    )


def _side_values(
    case: Case, values: Sequence[ProcessValue], moves: Mapping[Process, float]
) -> SideValues | None:
    """Return values as a comparison of two sides, or None if a side has no value."""
    old, new = (
        tuple(v.value for v in values if v.process.side is side) for side in Side
    )
    if case.current is None or not (old and new):
        return None
    then = replace(
        case.current, run_values=old, half_widths=(), cores=(), sm_clocks_hz=()
    )
    now = replace(
        case.current, run_values=new, half_widths=(), cores=(), sm_clocks_hz=()
    )
    stored = StoredValue(value=then, session=_NOWHERE, choice=case.choice)
    comparison = comparison_of(
        replace(case, current=now, stored=StoredValues.of([stored])), _POLICY
    )
    if comparison is None:
        return None
    return SideValues(comparison=comparison, values=tuple(values), moves=moves)


def _stored(record: Record) -> StoredRecord:
    return StoredRecord(
        key=record.key,
        session=_NOWHERE,
        values=tuple(
            SessionValue.of([e]) for e in record.estimates if e.kernel is None
        ),
        choice=record.choice,
        facts=record.facts,
        soft_facts=record.soft_facts,
        parameters_digest=record.parameters_digest,
        code_digest=record.code_digest,
    )


# Verdicts that need no blocks.


def _without_values(
    measured: _SideRecords, empty: frozenset[Side], cause: Cause | None = None
) -> Verdict:
    gaps = [
        gap
        for process, record in measured.taken
        if process.side in empty
        for gap in record.unmeasured
        if gap.metric == measured.case.metric.name
    ]
    failures = [measured.failures[side] for side in Side if side in measured.failures]
    if len(empty) == len(Side) and not failures:
        evidence = VerdictEvidence(gap=next(iter(gaps), None))
        verdict = verdict_of(
            measured.case, Outcome.UNMEASURED, Reason.NOT_MEASURED, evidence=evidence
        )
        return _against(verdict)
    lines = [line for text in failures for line in text.splitlines()]
    if measured.ended_in:
        cause = Cause.NOT_REACHED
    evidence = VerdictEvidence(
        lines=tuple(lines), lacking=tuple(gaps[:1]), ended_in=measured.ended_in
    )
    verdict = verdict_of(
        measured.case,
        Outcome.INCOMPARABLE,
        Reason.SIDE_WITHOUT_VALUE,
        cause=cause or _CAUSES[empty],
        evidence=evidence,
    )
    return _against(verdict)


def _against(verdict: Verdict) -> Verdict:
    return replace(verdict, baseline=None, against=AgainstEvidence(block_count=0))
