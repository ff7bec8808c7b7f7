"""The first look at a run: suspected changes, and the tests to measure again.

Suspects are measured again because their values look changed. Controls are measured with
them because theirs do not, so that their changes show the machine drift.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import median

from pytest_gpuperf.compute.change import changes, is_exact, usual_spreads
from pytest_gpuperf.compute.spread import UsualSpread
from pytest_gpuperf.compute.stats import relative_change
from pytest_gpuperf.config import Config, ConfirmBy, Update
from pytest_gpuperf.judge.case import (
    POLICY,
    Case,
    Policy,
    Reference,
)
from pytest_gpuperf.judge.rule import (
    CLOCK_STEP,
    clock_of,
    comparable,
    group_of,
    reference_comparisons,
    suffices,
    worsening_of,
)
from pytest_gpuperf.model.change import Change, Comparison, Sureness
from pytest_gpuperf.model.frozen import BulkRecord, Frozen, replace
from pytest_gpuperf.model.identity import Sameness
from pytest_gpuperf.model.packed import SessionValues
from pytest_gpuperf.model.record import (
    BoundClass,
    RecordKey,
    SessionValue,
    StoredRecord,
)
from pytest_gpuperf.model.verdict import Cause, Reason, Verdict

Name = tuple[RecordKey, str]

# No machine was seen to move most tests of a class by more than this and to leave the
# reference workloads alone (docs/judging.md section 2). [fraction]
_FARTHEST_MOVE = 0.25


class Look(BulkRecord, frozen=True, kw_only=True):
    """
    The indication given by the first measurement of a case. Not a verdict.

    Attributes:
        worse: Whether the case may have regressed, so that the outcome of the test must
            wait.

        better: Whether the case may have improved.

        suspect: Whether only fresh processes can decide. False for cases judged by equality
            and for values read from a file.

        shared: Whether most tests of the class moved alike and the reference workloads did
            not. The tests then share a change, and the case cannot be a control.

        change: The change, or None if nothing is comparable.
    """

    worse: bool = False
    better: bool = False
    suspect: bool = False
    shared: bool = False
    change: Change | None = None


# Of a case without anything to compare.
_NO_LOOK = Look()


class FirstLook(Frozen, frozen=True, kw_only=True):
    """
    The indications given by the first values of a whole run.

    Attributes:
        cases: All pairs of measurement and metric.

        looks: The look at each case, in the same order.

        suspects: Ids of the tests that fresh processes must confirm.

        elsewhere: Ids of suspects measured by an xdist worker on another host. Fresh
            processes run on this host and cannot confirm them.

        controls: Ids of the tests that show the machine drift.
    """

    cases: tuple[Case, ...] = ()
    looks: tuple[Look, ...] = ()
    suspects: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()
    controls: tuple[str, ...] = ()


def baseline_spreads(stored: Iterable[StoredRecord]) -> dict[str, UsualSpread]:
    """
    Return the usual spread between the sessions of a whole baseline, by group.

    Nothing of the current run is needed, so a test can be looked at while other tests still
    run.
    """
    values: dict[tuple[object, ...], list[SessionValue]] = {}
    for record in stored:
        of_record = (record.key, record.choice, record.parameters_digest)
        for value in record.values:
            name = (value.metric, value.source, of_record, value.unit, value.better)
            values.setdefault(name, []).append(value)
    return usual_spreads(
        [
            Comparison(
                current=several[-1],
                stored=SessionValues.of(several),
                session_ids=tuple(map(str, range(len(several)))),
                group=group_of(several[0].metric, several[0].source),
                clock=clock_of(several[0].metric, several[0].source),
            )
            for several in values.values()
        ]
    )


def first_look(
    cases: Sequence[Case],
    policy: Policy = POLICY,
    *,
    references: Sequence[Reference] = (),
    compared: Sequence[Comparison | None] | None = None,
) -> tuple[Look, ...]:
    """
    Look for possible changes in all cases, with a generous threshold.

    Args:
        cases: All pairs of test and metric of the run. Cases without a limit help to learn
            the usual spread and are never suspected.

        policy: The rule's constants.

        references: Times of reference workloads in this session and the stored sessions.

        compared: The cases as numbers, or None to calculate them.

    Returns:
        One look per case, in the order of the cases.
    """
    if compared is None:
        compared = [comparable(case, policy) for case in cases]
    comparisons = [c for c in compared if c is not None]
    level = sureness_of(cases, compared, policy)
    first_changes = iter(
        changes(
            comparisons,
            level=level,
            references=reference_comparisons(references, comparisons),
        )
    )
    looks = [
        _NO_LOOK if comparison is None else _look(case, next(first_changes), policy)
        for case, comparison in zip(cases, compared, strict=True)
    ]
    for places in _moved_classes(cases, compared, looks, policy):
        members = [cases[place] for place in places]
        several = [c for place in places if (c := compared[place]) is not None]
        witnesses = reference_comparisons(references, several)
        # The looks of the class, corrected only for the drift of reference workloads.
        controls = [False] * len(several)
        by_machine = changes(
            several, level=level, references=witnesses, controls=controls
        )
        alone = []
        for case, change in zip(members, by_machine, strict=True):
            look = _look(case, change, policy)
            if case.limit is not None and look.change is not None:
                least = policy.suspect_share * case.limit
                moved = abs(_with_machine(case, look.change)) > least
                look = replace(look, shared=moved)
            alone.append(look)
        has_evidence = bool(witnesses) or _is_beyond_the_clock(members, alone)
        if _is_shared(alone, has_witnesses=has_evidence):
            for place, look in zip(places, alone, strict=True):
                looks[place] = look
    return tuple(looks)


def _moved_classes(
    cases: Sequence[Case],
    compared: Sequence[Comparison | None],
    looks: Sequence[Look],
    policy: Policy,
) -> list[list[int]]:
    classes: dict[str, list[int]] = {}
    moved: set[str] = set()
    for place, (case, comparison, look) in enumerate(
        zip(cases, compared, looks, strict=True)
    ):
        if comparison is None or look.change is None or look.change.exact:
            continue
        group = comparison.shift_group
        classes.setdefault(group, []).append(place)
        if case.limit is None:
            continue
        least = max(policy.suspect_share * case.limit, policy.noise_threshold)
        if abs(look.change.machine_shift or 0.0) > least:
            moved.add(group)
    return [places for group, places in classes.items() if group in moved]


def _is_shared(looks: Sequence[Look], *, has_witnesses: bool) -> bool:
    """
    Return True if a class moved and the machine did not, judged by references alone.

    Most tests of the class must be off. For most of those, noise must be an unlikely
    explanation, or, as without a reference, the change must be larger than a machine moves
    tests alone.
    """
    beyond = [look for look in looks if look.shared]
    unlikely = sum(look.worse or look.better for look in beyond) if has_witnesses else 0
    far = sum(
        look.change is not None and abs(look.change.effect or 0.0) > _FARTHEST_MOVE
        for look in beyond
    )
    telling = max(unlikely, far)
    return 2 * len(beyond) >= len(looks) and 2 * telling >= len(beyond) > 0


def _is_beyond_the_clock(cases: Sequence[Case], looks: Sequence[Look]) -> bool:
    """
    Return True if a class of a GPU moved by more than the GPU's clock explains.

    Args:
        cases: The cases of the class.

        looks: A look at each case without a correction for machine drift.
    """
    known = [
        (case.sign * math.log1p(change.effect), -math.log1p(change.clock_shift))
        for case, look in zip(cases, looks, strict=True)
        if (change := look.change) is not None
        and change.clock_shift is not None
        and change.effect is not None
        and change.effect > -1
    ]
    if 2 * len(known) <= len(looks):
        return False
    move, by_clock = (median(several) for several in zip(*known, strict=True))
    low, high = sorted((0.0, by_clock))
    return not low - CLOCK_STEP <= move <= high + CLOCK_STEP


def _look(case: Case, change: Change | None, policy: Policy) -> Look:
    if change is None or case.limit is None:
        return Look(change=change)
    # The first condition is only faster.
    if not (
        0 < policy.least_sessions <= case.stored.listed.count or suffices(case, policy)
    ):
        return Look(change=change)
    if change.exact:
        effect = worsening_of(case, change)
        return Look(
            worse=effect > case.limit, better=effect < -case.limit, change=change
        )
    share = policy.suspect_share * case.limit
    raw = _with_machine(case, change)
    if abs(raw) <= share:  # Nearly all tests.
        return Look(change=change)
    worse = raw > share and _unlikely(change.p_worse, policy)
    better = raw < -share and _unlikely(change.p_better, policy)
    suspect = (worse or better) and not case.of_file
    return Look(worse=worse, better=better, suspect=suspect, change=change)


def _with_machine(case: Case, change: Change) -> float:
    """Return an effect without a correction for machine drift, signed so that more is worse."""
    if not change.reference:
        return worsening_of(case, change)
    return case.sign * relative_change(change.current, change.reference)


def _unlikely(p_value: float | None, policy: Policy) -> bool:
    return p_value is not None and p_value < policy.suspect_p


def sureness_of(
    cases: Sequence[Case], compared: Sequence[Comparison | None], policy: Policy
) -> Sureness:
    """Return the required certainty for a change, given the number of pairs with noise."""
    count = 0
    # A loop, because each item of a generator is a call.
    for case, comparison in zip(cases, compared, strict=True):
        if case.limit is None or comparison is None:
            continue
        if not (comparison.exact and is_exact(comparison)):
            # The first condition is only faster.
            enough = 0 < policy.least_sessions <= case.stored.listed.count
            count += enough or suffices(case, policy)
    count = round(count * policy.pairs_per_case)
    return Sureness(
        alpha=policy.level(count),
        pair_count=max(1, count),
        noise_threshold=policy.noise_threshold,
        power=policy.power,
    )


def plan_retests(
    cases: Sequence[Case],
    config: Config,
    *,
    straddling: Iterable[str] = (),
    references: Sequence[Reference] = (),
    compared: Sequence[Comparison | None] | None = None,
    shard_count: int = 1,
) -> FirstLook:
    """
    Look at the first values and choose the tests to measure again.

    Args:
        cases: All pairs of measurement and metric.

        config: The configuration of the run.

        straddling: Ids of tests with a limit that one process could not decide.

        references: Times of reference workloads in this session and the stored sessions.

        compared: The cases as numbers, or None to calculate them.

        shard_count: Number of shards of the run.
    """
    policy = replace(look_policy(config), shard_count=shard_count)
    looks = first_look(cases, policy, references=references, compared=compared)
    pairs = list(zip(cases, looks, strict=True))
    confirms_worse = config.baseline_named or config.update is Update.ALL
    suspected = [
        case
        for case, look in pairs
        if look.suspect
        and (confirms_worse if look.worse else look.better and config.confirms_better)
    ]
    noisy = [case for case in suspected if case.host is None]
    elsewhere = (case.key.test_id for case in suspected if case.host is not None)
    # A few tests show a shared change as well as all tests would.
    shared = {case.name for case, look in pairs if look.shared}
    few = _some_of([case for case in noisy if case.name in shared], policy)
    own = (case.key.test_id for case in noisy if case.name not in shared)
    suspects = dict.fromkeys((*own, *few, *straddling))
    tests = {case.key.test_id for case in noisy}
    classes = {case.bound_class for case in cases if case.key.test_id in tests}
    steady = [
        case
        for case, look in pairs
        if case.bound_class in classes
        and case.key.test_id not in suspects
        and not (look.worse or look.better or look.shared)
        and case.limit is not None
        and case.host is None
        and not case.counts
        and len(case.stored) >= POLICY.least_sessions
    ]
    return FirstLook(
        cases=tuple(cases),
        looks=looks,
        suspects=tuple(suspects),
        elsewhere=tuple(dict.fromkeys(elsewhere)),
        controls=choose_controls(steady, policy),
    )


def look_policy(config: Config) -> Policy:
    """
    Return the constants for a first look.

    They are looser if a comparison with a revision decides.
    """
    if config.confirm_by is ConfirmBy.FRESH:
        return POLICY
    # The store then only finds suspects, for which one session is enough.
    return replace(POLICY, suspect_p=POLICY.against_suspect_p, least_sessions=1)


def choose_controls(steady: Sequence[Case], policy: Policy) -> tuple[str, ...]:
    """
    Choose the controls of every class: tests with the same machine code, then others.

    Only the machine can have moved a test of which the machine code is the same.

    Args:
        steady: Cases that can represent their class, in the order of the run.

        policy: The rule's constants.
    """
    same = [case for case in steady if case.code is Sameness.SAME]
    proven = {case.key.test_id for case in same if case.runs_same_code}
    first = [case for case in steady if case.key.test_id in proven]
    others = [case for case in steady if case.key.test_id not in proven]
    return _some_of(first, policy, others=others)


def _some_of(
    cases: Sequence[Case], policy: Policy, *, others: Sequence[Case] = ()
) -> tuple[str, ...]:
    """
    Return some tests of every class, spread over the whole run.

    The first tests alone would only show the machine at the beginning of the run.

    Args:
        cases: The cases to choose from, in the order of the run.

        policy: The rule's constants.

        others: Cases that fill up a class with too few tests.
    """
    left = Counter(dict.fromkeys(BoundClass, policy.control_count))
    chosen: dict[str, None] = {}
    for several in (cases, others):
        by_class: dict[BoundClass, dict[str, None]] = {}
        for case in several:
            by_class.setdefault(case.bound_class, {})[case.key.test_id] = None
        for bound_class, test_ids in by_class.items():
            ids = [*test_ids]
            count = min(left[bound_class], len(ids))
            left[bound_class] -= count
            chosen |= dict.fromkeys(
                ids[place * len(ids) // count] for place in range(count)
            )
    return tuple(chosen)


def straddles(verdict: Verdict) -> bool:
    """Return True if the limit lies inside the interval, which more processes can narrow."""
    is_inside = verdict.reason is Reason.STRADDLES_LIMIT
    return is_inside and verdict.cause is not Cause.STRADDLES_LAUNCH
