"""The rules of judge/regression: every row of the table of changes."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_gpuperf.compute.stats import student_tail
from pytest_gpuperf.judge.case import POLICY, Case, Policy, Reference, StoredValue
from pytest_gpuperf.judge.confirmation import Confirmation
from pytest_gpuperf.judge.look import baseline_spreads, first_look
from pytest_gpuperf.judge.regression import settle, shown, smallest_seen
from pytest_gpuperf.judge.retests import machine_shifts, with_suite
from pytest_gpuperf.judge.rule import (
    comparable,
    comparison_of,
    early_verdict,
    may_change,
    reference_comparisons,
)
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.metric import METRICS, Better, metric_of
from pytest_gpuperf.model.record import (
    BoundClass,
    Kind,
    RecordKey,
    SessionValue,
    StoredRecord,
    Void,
    VoidCode,
)
from pytest_gpuperf.model.sample import CoreSpeed, Unmeasured
from pytest_gpuperf.model.verdict import (
    Cause,
    Outcome,
    Reason,
    Verdict,
    VerdictEvidence,
)
from unit.judge.building import (
    HOT,
    KEY,
    case,
    confirmation,
    estimate,
    gap_of,
    processes,
    session,
    stored,
)

THEN = (1.00, 1.01, 0.99, 1.005, 0.995)
SLOWER = (1.20, 1.21, 1.19, 1.20, 1.20)
FASTER = (0.80, 0.81, 0.79, 0.80, 0.80)


def one(
    subject: Case,
    confirmed: Confirmation | None = None,
    policy: Policy = POLICY,
    *,
    complete: bool = True,
) -> Verdict:
    """The verdict of one case."""
    confirmations = {} if confirmed is None else {subject.name: confirmed}
    (verdict,) = settle([subject], confirmations, policy, complete=complete)
    return verdict


def ruled(verdict: Verdict) -> tuple[Outcome, Reason]:
    """What was decided and why."""
    return verdict.outcome, verdict.reason


def others(count: int, **fields: Any) -> list[Case]:
    """Cases of other tests that did not change, with variances like THEN's."""
    draw = random.Random(1)
    return [
        case(
            draw.lognormvariate(0, 0.008),
            [draw.lognormvariate(0, 0.008) for _ in THEN],
            key=RecordKey(test_id=f"other_{n}"),
            **fields,
        )
        for n in range(count)
    ]


# rows 1: nothing to compare


def test_another_fingerprint_is_incomparable() -> None:
    """The facts that differ are its evidence."""
    facts = {"driver_branch": ("570", "580"), "ecc": ("0", "1")}
    verdict = one(case(1.2, [], differences=facts))
    assert ruled(verdict) == (Outcome.INCOMPARABLE, Reason.FINGERPRINT_DIFFERS)
    assert verdict.evidence == VerdictEvidence(differences=facts)


def test_a_baseline_of_another_machine_is_incomparable() -> None:
    """Sessions of another GPU alone do not make a test new."""
    verdict = one(case(1.2, [], other_machines=("l40s",)))
    assert ruled(verdict) == (Outcome.INCOMPARABLE, Reason.FINGERPRINT_DIFFERS)
    assert verdict.evidence == VerdictEvidence(machines=("l40s",))


def test_another_source_is_incomparable() -> None:
    """Sources are never compared."""
    verdict = one(case(1.2, [], other_sources=("events",)))
    assert ruled(verdict) == (Outcome.INCOMPARABLE, Reason.OTHER_SOURCE)
    assert verdict.evidence == VerdictEvidence(stored_sources=("events",))


def test_nothing_stored_is_new() -> None:
    """The first session of a test has nothing to be compared with."""
    verdict = one(case(1.2, []))
    assert ruled(verdict) == (Outcome.NEW, Reason.NOTHING_STORED)
    assert verdict.baseline is None


def test_no_value_now_is_unmeasured() -> None:
    """A stored metric that was not measured is not passed over."""
    gap = Unmeasured(metric="time", reason="no GPU", remedy="run it on one")
    verdict = one(case(None, THEN, unmeasured=gap))

    assert ruled(verdict) == (Outcome.UNMEASURED, Reason.NOT_MEASURED)
    assert gap_of(verdict) == ("no GPU", "run it on one")
    assert one(case(None, THEN)).evidence == VerdictEvidence()


# row 2: no evidence that counts


def test_a_void_measurement_is_inconclusive() -> None:
    """What must not be judged is not, however slow."""
    verdict = one(
        case(9.0, THEN, void=Void(code=VoidCode.HARDWARE_THERMAL, reason="it was hot"))
    )
    assert ruled(verdict) == (Outcome.INCONCLUSIVE, Reason.VOID)
    assert gap_of(verdict) == ("it was hot", "")


@pytest.mark.parametrize("again", [None, confirmation(9.0, 9.0, 9.0)])
def test_one_session_shows_a_change_and_decides_nothing(
    again: Confirmation | None,
) -> None:
    """However large: with its interval, and without what would have been seen."""
    verdict = one(case(9.0, THEN[:1]), again)

    assert ruled(verdict) == (Outcome.INCONCLUSIVE, Reason.TOO_FEW_SESSIONS)
    assert verdict.evidence == VerdictEvidence(least_count=2)
    assert verdict.change is not None
    assert verdict.change.effect == pytest.approx(8.0)
    assert verdict.change.low is not None
    assert verdict.change.detectable_effect is None


def test_two_sessions_suffice() -> None:
    """At the threshold something is decided."""
    assert one(case(1.0, THEN[:2])).outcome is Outcome.UNCHANGED
    assert one(case(9.0, THEN[:2]), confirmation(*[9.0] * 5)).outcome is (
        Outcome.REGRESSED
    )


def test_a_child_that_gave_no_value_fails() -> None:
    """A suspect that gives no value alone is failed, with its last lines."""
    lost = confirmation(1.2, lost=("boom",))
    verdict = one(case(1.2, THEN), lost)
    assert ruled(verdict) == (Outcome.FAILED, Reason.CHILD_GAVE_NO_VALUE)
    assert verdict.evidence == VerdictEvidence(lines=("boom",))


def test_a_lost_control_fails_nothing() -> None:
    """A control was measured again for the others' sake."""
    lost = confirmation(lost=("boom",), control=True)
    assert one(case(1.0, THEN), lost).outcome is Outcome.UNCHANGED


# row 2: another kernel was chosen


@pytest.mark.parametrize(
    ("choices", "decided"),
    [
        ("AAAAA", True),  # the stored choice, all of them
        ("AABCB", True),  # of A and B as many: the first; two runs are enough
        ("AABBB", False),  # most have B, which no session has, and not all
        ("BBBBB", True),  # all have B, which no session has: judged on total time
        ("ABCDE", False),  # one run of a choice is not enough
    ],
)
def test_confirming_processes_are_judged_inside_one_choice(
    choices: str, *, decided: bool
) -> None:
    """Inside the choice that most have; else inconclusive: another kernel."""
    verdict = one(case(1.2, THEN), confirmation(*SLOWER, choices=choices))

    expected = (Outcome.INCONCLUSIVE, Reason.OTHER_KERNEL)
    assert (ruled(verdict) != expected) is decided
    if not decided:
        assert verdict.evidence is not None
        assert verdict.evidence.kernels is not None
        assert verdict.evidence.kernels[0].count == 5


def test_a_choice_that_few_sessions_have_is_another_kernel() -> None:
    """All confirming processes draw what one of six sessions drew: not comparable."""
    subject = replace(case(1.2, []), stored=(*stored(THEN), *stored([1.2], choice="B")))
    verdict = one(subject, confirmation(*SLOWER, choices="BBBBB"))
    assert ruled(verdict) == (Outcome.INCONCLUSIVE, Reason.OTHER_KERNEL)


def test_only_values_of_the_choice_count() -> None:
    """Two processes with a slower kernel do not make the other three slower."""
    mixed = confirmation(1.0, 1.0, 1.0, 1.5, 1.5, choices="AAABB")
    verdict = one(case(1.2, THEN), mixed)
    assert verdict.outcome is Outcome.UNCHANGED
    assert verdict.change is not None
    assert verdict.change.run_count == 3


def test_sessions_of_another_choice_are_left_out() -> None:
    """A session is compared with those that ran the same kernels."""
    subject = replace(
        case(1.0, []), stored=(*stored(THEN), *stored([2.0] * 5, choice="B"))
    )
    verdict = one(subject)
    assert verdict.outcome is Outcome.UNCHANGED
    assert verdict.change is not None
    assert verdict.change.session_count == 5


def test_choices_that_nobody_saw_are_alike() -> None:
    """Without knowledge of kernels all runs are one experiment."""
    subject = replace(case(1.2, []), stored=stored(THEN, choice=None), choice=None)
    unseen = confirmation(*SLOWER, choices=())
    assert one(subject, unseen).outcome is Outcome.REGRESSED


# rows 3 and 4: regressed and improved


def test_a_confirmed_worsening_is_regressed() -> None:
    """Slower by more than the limit, surely, in fresh processes."""
    verdict = one(case(1.2, THEN), confirmation(*SLOWER))

    assert ruled(verdict) == (Outcome.REGRESSED, Reason.SLOWER_THAN_LIMIT)
    assert verdict.threshold == 0.05
    assert verdict.change is not None
    assert verdict.change.effect == pytest.approx(0.2, abs=0.001)
    assert verdict.change.detectable_effect is not None
    assert verdict.confirmations == pytest.approx(
        [v / verdict.change.reference - 1 for v in SLOWER]
    )
    assert verdict.baseline is not None
    assert verdict.baseline.session_count == 5
    assert (verdict.baseline.first_commit, verdict.baseline.last_commit) == ("c0", "c4")


def tail(deviations: float, dof: int) -> float:
    """Return the chance that a value of Student's t, of deviation 1, is larger."""
    return student_tail(dof, deviations * math.sqrt(dof / (dof - 2)))


@pytest.mark.parametrize("shard_count", [2, 8, 64])
@pytest.mark.parametrize("pair_count", [1, 3, 40])
def test_shards_alarm_as_seldom_as_one_run(pair_count: int, shard_count: int) -> None:
    """All of them together, also if sessions have heavier tails than is assumed."""

    def alarms(policy: Policy) -> float:
        level, low, high = policy.level(pair_count), 0.0, 1e3
        while high - low > 1e-9:
            middle = (low + high) / 2
            low, high = (middle, high) if tail(middle, 6) > level else (low, middle)
        return tail(low, 3)

    together = shard_count * alarms(Policy(shard_count=shard_count))

    assert 0.6 * alarms(POLICY) < together < alarms(POLICY)


def test_a_shard_must_be_surer_than_a_whole_run() -> None:
    """A change that is sure enough for a run may be noise of one of a hundred shards."""
    policies = [Policy(), Policy(shard_count=8), Policy(shard_count=100)]
    least = [
        next(
            step
            for step in range(50, 1000)
            if one(
                case(1 + step / 1000, THEN),
                confirmation(*[1 + step / 1000] * 5),
                policy,
            ).outcome
            is Outcome.REGRESSED
        )
        for policy in policies
    ]
    changes = [one(case(1.2, THEN), confirmation(*SLOWER), p).change for p in policies]
    seen = [c.detectable_effect for c in changes if c is not None]
    known = [effect for effect in seen if effect is not None]

    assert least == sorted(least)
    assert least[0] < least[-1]
    assert len(known) == 3
    assert known == sorted(known)
    assert known[0] < known[1] < known[2]


def test_a_confirmed_improvement_is_improved() -> None:
    """The mirror image."""
    verdict = one(case(0.8, THEN), confirmation(*FASTER))
    assert ruled(verdict) == (Outcome.IMPROVED, Reason.FASTER_THAN_LIMIT)


LOOPS_S = (20e-6, 34e-6, 21e-6, 35e-6, 20e-6)  # of sessions on a core with a neighbour
FOLLOWED = 0.95  # which power of it the test below follows


def on_shared_core(values: Sequence[float], *, told: bool) -> tuple[StoredValue, ...]:
    """Sessions that were slowed by a neighbour; the loop between samples tells or not."""
    return tuple(
        StoredValue(
            value=processes(
                (value * (loop_s / LOOPS_S[0]) ** FOLLOWED,),
                cores=(CoreSpeed(loop_s=loop_s, slope=1.0, precision=20.0),)
                if told
                else (),
            ),
            session=session(number),
            choice="A",
        )
        for number, (value, loop_s) in enumerate(zip(values, LOOPS_S, strict=True))
    )


@pytest.mark.parametrize(
    ("told", "outcome"), [(True, Outcome.REGRESSED), (False, Outcome.INCONCLUSIVE)]
)
def test_speed_of_the_core_is_taken_out(*, told: bool, outcome: Outcome) -> None:
    """+60 % is seen through a neighbour that slows some sessions by 70 %."""
    fresh_s = LOOPS_S[::-1]
    values = [1.6 * (loop_s / LOOPS_S[0]) ** FOLLOWED for loop_s in fresh_s]
    cores = tuple(CoreSpeed(loop_s=s, slope=1.0, precision=20.0) for s in fresh_s)
    slowed = replace(
        case(values[0], THEN),
        current=processes(values[:1], cores=cores[:1] if told else ()),
        stored=on_shared_core(THEN, told=told),
    )
    confirmed = confirmation(*values)
    assert confirmed.value is not None
    if told:
        confirmed = replace(confirmed, value=replace(confirmed.value, cores=cores))

    verdict = one(slowed, confirmed)

    assert verdict.outcome is outcome
    if told:
        assert verdict.change is not None
        assert verdict.change.effect == pytest.approx(0.6, abs=0.1)
        assert max(verdict.confirmations) - min(verdict.confirmations) < 0.1


def test_nothing_that_only_the_core_did_is_suspected() -> None:
    """A run on a slow core is not slower."""
    slow = processes(
        (1.7**FOLLOWED,), cores=(CoreSpeed(loop_s=34e-6, slope=1.0, precision=20.0),)
    )
    stored_fast = tuple(
        replace(
            s,
            value=replace(
                s.value, cores=(CoreSpeed(loop_s=20e-6, slope=1.0, precision=20.0),)
            ),
        )
        for s in stored(THEN)
    )
    subject = replace(case(1.7**FOLLOWED, THEN), current=slow, stored=stored_fast)

    assert one(subject).outcome is not Outcome.REGRESSED
    assert [look.suspect for look in first_look([subject], Policy())] == [False]


def test_other_python_makes_the_speed_of_the_core_unsure() -> None:
    """Its loop may differ by the interpreter: what that may be widens the interval."""
    stored_alike = on_shared_core(THEN, told=True)
    now = replace(case(1.0, THEN), current=stored_alike[0].value, stored=stored_alike)
    moved = replace(now, moved={"python": ("3.12.3", "3.12.4")})
    same, other = comparison_of(now, Policy()), comparison_of(moved, Policy())

    assert same is not None
    assert other is not None
    assert other.core_variance == pytest.approx(same.core_variance + 0.05**2, rel=0.2)
    assert other.core_shift == same.core_shift


def test_higher_is_better_regresses_downwards() -> None:
    """A lower throughput is a regression, a higher one an improvement."""
    low = one(case(0.8, THEN, "throughput"), confirmation(*FASTER))
    high = one(case(1.2, THEN, "throughput"), confirmation(*SLOWER))
    assert low.outcome is Outcome.REGRESSED
    assert high.outcome is Outcome.IMPROVED


def test_the_confirming_processes_decide_alone() -> None:
    """A first value that was bad by chance is forgotten."""
    verdict = one(case(1.5, THEN), confirmation(1.0, 1.01, 0.99, 1.0, 1.0))
    assert ruled(verdict) == (Outcome.UNCHANGED, Reason.WITHIN_NOISE)


def test_the_size_must_exceed_the_limit() -> None:
    """However sure, a change up to the limit is none."""
    exact = (1.0, 1.0001, 0.9999, 1.00005, 0.99995)
    within = one(case(1.049, exact), confirmation(*[1.0495] * 5))
    beyond = one(case(1.06, exact), confirmation(*[1.06] * 5))
    assert within.outcome is Outcome.UNCHANGED
    assert beyond.outcome is Outcome.REGRESSED


def test_a_change_that_noise_may_explain_is_inconclusive() -> None:
    """Beyond the limit and unsure: not significant."""
    noisy = (1.0, 1.2, 0.85, 1.1, 0.9)
    verdict = one(case(1.2, noisy), confirmation(*SLOWER))
    assert ruled(verdict) == (Outcome.INCONCLUSIVE, Reason.NOT_SIGNIFICANT)


def test_a_suspect_without_confirmation_is_inconclusive() -> None:
    """--gpuperf-confirm=0 decides nothing about suspects."""
    verdict = one(case(1.2, THEN))
    assert ruled(verdict) == (Outcome.INCONCLUSIVE, Reason.NOT_CONFIRMED)
    assert verdict.cause is None


def test_void_confirming_processes_confirm_nothing() -> None:
    """All of them were void: not confirmed, with their reasons."""
    verdict = one(case(1.2, THEN), confirmation(voids=(HOT,)))
    assert ruled(verdict) == (Outcome.INCONCLUSIVE, Reason.NOT_CONFIRMED)
    assert verdict.evidence == VerdictEvidence(voids=(HOT,))


def test_an_unsuspected_change_beyond_the_limit_is_inconclusive() -> None:
    """Too unsure for a suspect, too large for unchanged."""
    verdict = one(case(1.1, (1.0, 1.2, 0.85, 1.1, 0.9)))
    assert ruled(verdict) == (Outcome.INCONCLUSIVE, Reason.NOT_SIGNIFICANT)


def test_an_incomplete_run_regresses_nothing() -> None:
    """How many pairs there are is not known before all have reported."""
    for values in (SLOWER, FASTER):
        verdict = one(case(values[0], THEN), confirmation(*values), complete=False)
        assert ruled(verdict) == (Outcome.INCONCLUSIVE, Reason.INCOMPLETE_RUN)
    steady = one(case(1.0, THEN), complete=False)
    assert steady.outcome is Outcome.UNCHANGED


def test_files_of_whole_runs_need_no_confirmation() -> None:
    """Nothing was selected for being bad."""
    verdict = one(case(1.2, THEN), policy=Policy(selected=False))
    assert verdict.outcome is Outcome.REGRESSED


QUIET, NOISY = (1.0, 1.002, 0.998, 1.001, 0.999), (1.0, 1.06, 0.96, 1.03, 0.98)


@pytest.mark.parametrize(
    ("then", "limit", "outcome"),
    [
        (QUIET, None, Outcome.UNCHANGED),
        (NOISY, None, Outcome.UNCHANGED),  # 32 % is detectable: below 50 %
        ((1.0, 1.2, 0.85, 1.1, 0.9), None, Outcome.BLIND),
        (QUIET, 0.05, Outcome.UNCHANGED),
        (NOISY, 0.05, Outcome.BLIND),  # beyond twice the limit
        (NOISY, 0.2, Outcome.UNCHANGED),
        ((1.0, 1.02), 0.05, Outcome.BLIND),
        ((1.0, 1.06), None, Outcome.BLIND),
    ],
)
def test_what_could_not_be_detected_is_blind(
    then: Sequence[float], limit: float | None, outcome: Outcome
) -> None:
    """A change within the limit is unchanged only if one not far beyond it would be found."""
    fields: dict[str, Any] = {} if limit is None else {"limit": limit}
    verdict = one(case(1.0, then, **fields))

    assert verdict.outcome is outcome
    assert verdict.change is not None
    assert verdict.change.detectable_effect is not None
    assert verdict.default_limit == (limit is None)
    assert (verdict.reason is Reason.NOT_DETECTABLE) == (outcome is Outcome.BLIND)


@pytest.mark.parametrize("now", [1.2, 0.8])
def test_what_is_beyond_the_limit_is_never_blind(now: float) -> None:
    """It is inconclusive, improved or regressed."""
    verdict = one(case(now, (1.0, 1.2, 0.85, 1.1, 0.9)))

    assert verdict.outcome is Outcome.INCONCLUSIVE


def test_what_equality_decides_is_never_blind() -> None:
    """Counts that agree have no smallest detectable change."""
    same = one(case(64.0, [64.0], "registers", limit=0.05))
    nothing = one(case(0.0, [0.0, 0.0], limit=0.05))

    assert same.outcome is nothing.outcome is Outcome.UNCHANGED


# counts and resources


@pytest.mark.parametrize(
    ("now", "then", "limit", "outcome", "reason"),
    [
        (64.0, [64.0], 0.05, Outcome.UNCHANGED, Reason.EQUAL),
        (66.0, [64.0], 0.05, Outcome.UNCHANGED, Reason.WITHIN_NOISE),
        (68.0, [64.0], 0.05, Outcome.REGRESSED, Reason.SLOWER_THAN_LIMIT),
        (60.0, [64.0], 0.05, Outcome.IMPROVED, Reason.FASTER_THAN_LIMIT),
        (65.0, [64.0], 0.0, Outcome.REGRESSED, Reason.SLOWER_THAN_LIMIT),
        (0.0, [0.0], 0.05, Outcome.UNCHANGED, Reason.EQUAL),
        (1.0, [0.0], 0.05, Outcome.REGRESSED, Reason.SLOWER_THAN_LIMIT),
        (0.0, [1.0], 0.05, Outcome.IMPROVED, Reason.FASTER_THAN_LIMIT),
    ],
)
def test_counts_need_one_session_and_no_confirmation(
    now: float, then: list[float], limit: float, outcome: Outcome, reason: Reason
) -> None:
    """Equality decides; a tolerance is the user's; from 0 any rise is beyond it."""
    verdict = one(case(now, then, "launches.count", limit=limit))

    assert ruled(verdict) == (outcome, reason)
    assert verdict.change is not None
    assert verdict.change.exact


@pytest.mark.parametrize("now", [105.0, 95.0])
def test_a_tolerance_belongs_to_what_is_tolerated(now: float) -> None:
    """5 % more or less of a count is within a limit of 5 %."""
    verdict = one(case(now, [100.0], "launches.count", limit=0.05))

    assert ruled(verdict) == (Outcome.UNCHANGED, Reason.WITHIN_NOISE)


def test_stored_counts_that_disagree_are_judged_like_times() -> None:
    """Counts with noise need two sessions."""
    few = one(case(12.0, [(10.0, 11.0)], "launches.count"))
    enough = one(case(10.0, [10.0, 11.0, 10.0], "launches.count"))
    assert few.reason is Reason.TOO_FEW_SESSIONS
    assert ruled(enough) == (Outcome.BLIND, Reason.NOT_DETECTABLE)


def test_counts_agree_inside_their_choice() -> None:
    """Another kernel's count is another number, and no noise."""
    subject = replace(
        case(10.0, [], "launches.count"),
        stored=(*stored([10.0]), *stored([12.0], choice="B")),
    )
    assert one(subject).reason is Reason.EQUAL


def test_confirming_processes_correct_a_count() -> None:
    """A count that the fresh processes do not have was one process's own."""
    subject = case(12.0, [10.0], "launches.count")
    assert one(subject, confirmation(10.0, 10.0, 10.0)).reason is Reason.EQUAL


@pytest.mark.parametrize(
    ("metric", "worse"),
    [("registers", 70.0), ("shared_bytes", 70.0), ("occupancy.theoretical", 0.4)],
)
def test_a_metric_without_a_direction_gets_one_when_it_is_gated(
    metric: str, worse: float
) -> None:
    """More of a resource is worse, less of a share is."""
    before = 64.0 if worse > 1 else 0.5
    assert one(case(worse, [before], metric)).outcome is Outcome.REGRESSED


def test_what_became_of_zero_is_no_regression_at_once() -> None:
    """Of a metric with noise: fresh processes have to show it, too."""
    same = one(case(0.0, [0.0] * 3, "time.idle_fraction"))
    more = one(case(0.1, [0.0] * 3, "time.idle_fraction"))
    assert same.outcome is Outcome.UNCHANGED
    assert ruled(more) == (Outcome.INCONCLUSIVE, Reason.NOT_CONFIRMED)


# the whole run


def test_many_tests_must_be_surer() -> None:
    """The same evidence regresses alone, and is not enough among thousands."""
    subject = case(1.08, THEN)
    again = {subject.name: confirmation(1.07, 1.08, 1.06, 1.075, 1.07)}
    unlike = [replace(c, metric=METRICS["time.p50"]) for c in others(3000)]

    (alone,) = settle([subject], again)
    among = settle([subject, *unlike], again)[0]

    assert alone.outcome is Outcome.REGRESSED
    assert ruled(among) == (Outcome.INCONCLUSIVE, Reason.NOT_SIGNIFICANT)


def test_a_metric_that_is_only_shown_has_no_verdict_and_does_not_count() -> None:
    """Without a limit a case is not a pair; its change is there for the reports."""
    gated = case(1.2, THEN)
    free = [replace(c, limit=None) for c in others(5)]
    bare = replace(case(1.0, [], key=RecordKey(test_id="bare")), limit=None)

    verdicts = settle([gated, *free, bare], {gated.name: confirmation(*SLOWER)})
    changes = shown([gated, *free, bare])

    assert [v.key for v in verdicts] == [KEY]
    assert len(changes) == 5
    assert {v.outcome for v in changes} == {Outcome.UNCHANGED}
    assert all(v.threshold is None and v.change is not None for v in changes)


@pytest.mark.parametrize(
    ("now", "worse", "better", "suspect"),
    [
        (1.0, False, False, False),
        (1.025, False, False, False),  # below 0.6 x 5 %
        (1.035, True, False, True),
        (0.965, False, True, True),
        (1.2, True, False, True),
    ],
)
def test_the_first_look_is_generous(
    now: float, *, worse: bool, better: bool, suspect: bool
) -> None:
    """Beyond 0.6 of the limit with one-sided p < 0.05."""
    (look,) = first_look([case(now, THEN)])
    assert (look.worse, look.better, look.suspect) == (worse, better, suspect)
    assert look.change is not None


def test_what_cannot_be_judged_is_not_suspected() -> None:
    """No baseline, no limit, noise, or no verdict by numbers: nothing to confirm."""
    noisy = case(1.1, (1.0, 1.2, 0.85, 1.1, 0.9))
    looks = first_look([case(9.0, []), case(9.0, THEN, limit=None), noisy])
    assert not any(look.worse or look.suspect for look in looks)


def test_counts_are_worse_without_being_suspects() -> None:
    """Equality needs no fresh process, but the test must wait for its verdict."""
    (look,) = first_look([case(70.0, [64.0], "registers")])
    assert (look.worse, look.suspect) == (True, False)


def stored_records(suite: Sequence[Case]) -> list[StoredRecord]:
    """The stored sessions of some cases, as a baseline has them."""
    return [
        StoredRecord(
            key=subject.key,
            session=session(number),
            values=(
                SessionValue(
                    metric="time",
                    unit="s",
                    source="cupti",
                    run_values=each.value.run_values,
                ),
            ),
            choice=each.choice,
        )
        for subject in suite
        for number, each in enumerate(subject.stored)
    ]


def test_a_baseline_alone_says_what_is_usual() -> None:
    """A limit is held against it while other tests still run."""
    few = baseline_spreads(stored_records(others(2)))["time device-time"]
    many = baseline_spreads(stored_records(others(200)))["time device-time"]

    assert many.deviation == pytest.approx(0.008, rel=0.3)
    assert len(many.points) < len(few.points)


# the machine


MOVES = (1.0, 1.08, 0.93, 1.05, 0.96)  # what sessions did to all tests of a class


def moved_machine(
    shift: float, count: int = 12, worse: float = 1.2
) -> tuple[list[Case], dict[tuple[RecordKey, str], Confirmation]]:
    """A suite on a machine that moves, its suspect and 8 controls measured again."""
    draw = random.Random(1)

    def row() -> list[float]:
        return [move * draw.lognormvariate(0, 0.008) for move in MOVES]

    names = [f"other_{n}" for n in range(count)]
    steady = [
        case(shift, row(), key=RecordKey(test_id=name), bound_class=BoundClass.MEMORY)
        for name in names
    ]
    subject = case(worse * shift, row(), bound_class=BoundClass.MEMORY)
    again = {subject.name: confirmation(*[v * shift * worse / 1.2 for v in SLOWER])}
    again |= {
        control.name: confirmation(*[shift] * 5, control=True) for control in steady[:8]
    }
    return [subject, *steady], again


def test_what_the_machine_did_is_no_regression() -> None:
    """A class that moved as a whole is told once, and its tests do not regress for it."""
    suite, again = moved_machine(1.1, worse=1.0)
    verdict = settle(suite, again)[0]
    (shift,) = machine_shifts(suite, again)

    assert verdict.outcome is Outcome.UNCHANGED
    assert verdict.change is not None
    assert verdict.change.effect == pytest.approx(0.0, abs=0.02)
    assert verdict.change.machine_shift == pytest.approx(0.1, abs=0.02)
    assert (shift.bound_class, shift.metric) == (BoundClass.MEMORY, "time")
    assert shift.effect == pytest.approx(0.1, abs=0.02)
    assert shift.control_count == 8
    assert shift.controls == tuple(control.key.test_id for control in suite[1:9])
    assert shift.moved
    assert verdict.change.fresh


@pytest.mark.parametrize(("shift", "moved"), [(1.0, False), (1.02, True)])
def test_a_machine_that_stood_still_has_not_moved(shift: float, *, moved: bool) -> None:
    """What the controls show is kept either way; more than noise it is from 0.5 % on."""
    (found,) = machine_shifts(*moved_machine(shift))

    assert found.effect == pytest.approx(shift - 1, abs=0.005)
    assert found.moved is moved


def test_a_regression_is_found_on_a_machine_that_moved() -> None:
    """The machine's part is taken out, the test's own is left."""
    verdict = settle(*moved_machine(1.1))[0]
    assert verdict.outcome is Outcome.REGRESSED
    assert verdict.change is not None
    assert verdict.change.effect == pytest.approx(0.2, abs=0.02)


@pytest.mark.parametrize("count", [3, 5])
def test_few_controls_tell_of_the_machine(count: int) -> None:
    """From three on."""
    suite, again = moved_machine(1.1, count=count)
    (shift,) = machine_shifts(suite, again)
    assert shift.effect == pytest.approx(0.1, abs=0.02)
    assert shift.control_count == count


def test_two_controls_are_too_few() -> None:
    """The median of two tests is their own noise."""
    suite, again = moved_machine(1.1, count=2)
    assert machine_shifts(suite, again) == ()
    verdict = settle(suite, again)[0]
    assert verdict.change is not None
    assert verdict.change.machine_shift is None


def references(now: float, then: Sequence[float] = MOVES) -> list[Reference]:
    """Three workloads of the plugin's own that did what the machine did."""
    return [
        Reference(
            name=name,
            bound_class=BoundClass.MEMORY,
            current=SessionValue(
                metric="time", unit="s", source="host", run_values=(now * size,)
            ),
            stored=stored([move * size for move in then]),
            fresh=SessionValue(
                metric="time", unit="s", source="host", run_values=(now * size,) * 5
            ),
        )
        for name, size in (("loop", 1.0), ("array", 2.0), ("copy", 3.0))
    ]


@pytest.mark.parametrize(
    ("machine", "outcome"),
    [(1.2, Outcome.BLIND), (1.0, Outcome.REGRESSED)],
)
def test_references_tell_what_no_test_is_left_to_tell(
    machine: float, outcome: Outcome
) -> None:
    """All tests of a class are suspects: whether the machine did it, references know."""
    draw = random.Random(2)
    suite = [
        case(
            1.2,
            [move * draw.lognormvariate(0, 0.005) for move in MOVES],
            key=RecordKey(test_id=f"{n}"),
            bound_class=BoundClass.MEMORY,
        )
        for n in range(12)
    ]
    again = {c.name: confirmation(*SLOWER) for c in suite}
    found = settle(suite, again, references=references(machine))[0]

    assert found.outcome is outcome
    shifts = machine_shifts(suite, again, references=references(machine))
    assert [shift.control_count for shift in shifts] == [3]


def test_a_reference_of_another_class_says_nothing() -> None:
    """Nor one that no stored session has."""
    suite, again = moved_machine(1.1, count=0)
    other = [replace(r, bound_class=BoundClass.HOST) for r in references(1.1)]
    new = [replace(r, stored=()) for r in references(1.1)]
    plain = settle(suite, again)

    assert settle(suite, again, references=other) == plain
    assert settle(suite, again, references=new) == plain
    assert settle(suite, again, references=references(1.1)) != plain


def test_reference_is_held_against_the_sessions_that_have_its_loop() -> None:
    """Tests at one speed would lose again what a slow core did to a raw reference."""
    told = on_shared_core(THEN, told=True)
    subject = replace(case(1.0, THEN), current=told[0].value, stored=told)
    comparison = comparison_of(subject, Policy())
    assert comparison is not None
    (slow, *_) = references(1.7)
    slow = replace(slow, bound_class=BoundClass.HOST, current=told[3].value)
    mixed = replace(slow, stored=(*on_shared_core(THEN, told=False)[:3], *told[3:]))

    assert reference_comparisons([slow], [comparison]) == []
    (held,) = reference_comparisons([mixed], [comparison])
    assert held.session_ids == ("s3", "s4")
    assert len(held.stored) == 2


def test_a_rate_falls_where_the_times_of_references_grow() -> None:
    """A throughput that is lower because the machine is slower has not regressed."""
    base = [
        case(
            1 / 1.2,
            [1 / move for move in MOVES],
            "throughput",
            bound_class=BoundClass.MEMORY,
        )
    ]
    again = {base[0].name: confirmation(*[1 / v for v in SLOWER])}

    assert settle(base, again)[0].outcome is Outcome.INCONCLUSIVE
    (found,) = settle(base, again, references=references(1.2))
    assert found.outcome is Outcome.UNCHANGED


def test_no_machine_moves_a_speedup() -> None:
    """Its two sides took turns: a machine that is slower makes both slower."""
    then = (1.25, 1.26, 1.24, 1.25, 1.255)
    base = [case(1.1, then, "speedup", bound_class=BoundClass.MEMORY)]
    again = {base[0].name: confirmation(*[1.1] * 5)}
    (found,) = settle(base, again, references=references(1.2))

    assert found.change is not None
    assert found.change.machine_shift is None
    assert found.outcome is Outcome.REGRESSED
    assert machine_shifts(base, again, references=references(1.2)) == ()


def test_a_value_that_does_not_fit_is_left_out_and_told() -> None:
    """The change is of the others, and which session it was is evidence."""
    suite = [case(1.6, (3.0, *THEN[1:])), *others(20)]
    verdict = settle(suite, {suite[0].name: confirmation(*[1.6] * 5)})[0]

    assert verdict.outcome is Outcome.REGRESSED
    assert verdict.change is not None
    assert verdict.change.left_out == "s0"
    assert verdict.change.session_count == 4
    assert verdict.evidence is not None
    assert verdict.evidence.left_out is not None
    assert verdict.evidence.left_out.session_id == "s0"
    assert verdict.evidence.left_out.ratio == pytest.approx(3.0, rel=0.01)


def test_an_improvement_that_nobody_confirmed_is_one() -> None:
    """It counts as judged and fails nothing; what stores it confirms it first."""
    alone = one(case(0.8, THEN))
    unsure = one(case(0.8, (1.0, 1.1, 0.9)), confirmation(0.7, 0.9, 0.75, 0.85, 0.8))

    assert ruled(alone) == (Outcome.IMPROVED, Reason.NOT_CONFIRMED)
    assert alone.cause is Cause.LOOKED_BETTER
    assert ruled(unsure) == (Outcome.IMPROVED, Reason.NOT_CONFIRMED)


def test_many_pairs_share_half_of_the_level() -> None:
    """One pair has all of it, from four on each run has the same."""
    assert Policy().level(1) == 0.01
    assert Policy().level(4) == Policy().level(10_000) == 0.005


def test_another_class_is_not_moved() -> None:
    """The shift of memory-bound tests says nothing of compute-bound ones."""
    suite, again = moved_machine(1.1)
    subject = replace(suite[0], bound_class=BoundClass.COMPUTE)
    verdict = settle([subject, *suite[1:]], again)[0]
    assert verdict.change is not None
    assert verdict.change.machine_shift is None
    assert verdict.change.effect == pytest.approx(0.32, abs=0.01)


# stored values that do not fit, where there is a zero


@pytest.mark.parametrize(
    ("now", "effect", "outcome"),
    [(0.0, 0.0, Outcome.UNCHANGED), (5.0, None, Outcome.INCONCLUSIVE)],
)
def test_one_odd_value_beside_zeros_is_told(
    now: float, effect: float | None, outcome: Outcome
) -> None:
    """It is not so many times the others: they are 0."""
    subject = case(now, (0.0, 0.0, 0.0, 5.0))
    (shown_one,) = shown([replace(subject, limit=None)])

    for verdict in (one(subject), shown_one):
        assert verdict.change is not None
        assert (verdict.change.effect, verdict.change.reference) == (effect, 0.0)
        assert verdict.evidence is not None
        assert verdict.evidence.left_out is not None
        assert verdict.evidence.left_out.session_id == "s3"
        assert verdict.evidence.left_out.ratio is None
    assert one(subject).outcome is outcome


@pytest.mark.parametrize(
    ("now", "then", "better", "outcome"),
    [
        (0.0, (10.0, 10.0, 10.0, 1000.0), Better.HIGHER, Outcome.REGRESSED),
        (104.0, (100.0, 100.1, 99.9, 100.0, 0.0), Better.LOWER, Outcome.UNCHANGED),
    ],
)
def test_an_odd_value_shrinks_and_swells_no_change(
    now: float, then: Sequence[float], better: Better, outcome: Outcome
) -> None:
    """A total collapse is one; 4 % are not 5 % of a mean with a 0 in it."""
    metric = metric_of("x", unit="", better=better)
    verdict = one(replace(case(now, then), metric=metric), confirmation(*[now] * 5))

    assert verdict.outcome is outcome
    assert verdict.change is not None
    assert verdict.change.effect == pytest.approx(now / then[0] - 1, abs=1e-3)


@pytest.mark.parametrize("beside", [0, 3])
@pytest.mark.parametrize(
    ("again", "expected", "cause"),
    [
        ((500.0,) * 5, (Outcome.REGRESSED, Reason.SLOWER_THAN_LIMIT), None),
        (
            (500.0, 500.0, 0.0, 500.0, 400.0),
            (Outcome.INCONCLUSIVE, Reason.NOT_SIGNIFICANT),
            Cause.OF_NOTHING,
        ),
        ((0.0,) * 5, (Outcome.UNCHANGED, Reason.WITHIN_NOISE), None),
        ((), (Outcome.INCONCLUSIVE, Reason.NOT_CONFIRMED), None),
    ],
)
def test_what_became_of_zeros_is_decided_by_fresh_processes(
    again: Sequence[float],
    expected: tuple[Outcome, Reason],
    cause: Cause | None,
    beside: int,
) -> None:
    """Where none of them is 0 it is no noise; nothing else needs to be known."""
    subject = case(500.0, (0.0, 0.0, 0.0), limit=0.0)
    suite = [subject, *others(beside)]
    confirmed = {subject.name: confirmation(*again)} if again else {}
    verdict = settle(suite, confirmed)[0]

    assert first_look(suite)[0].suspect
    assert (ruled(verdict), verdict.cause) == (expected, cause)


def test_what_is_zero_in_the_mean_alone_has_a_reason_of_its_own() -> None:
    """No session more makes a change a share of nothing."""
    verdict = one(case(500.0, (-1.0, 0.0, 1.0)), confirmation(*[500.0] * 5))

    assert ruled(verdict) == (Outcome.INCONCLUSIVE, Reason.NOT_SIGNIFICANT)
    assert verdict.cause is Cause.OF_NOTHING


# laws

values = st.floats(0.5, 2.0)
sessions = st.lists(values, min_size=3, max_size=6)
repeats = st.lists(values, min_size=1, max_size=5)
ORDER = {Outcome.IMPROVED: 0, Outcome.UNCHANGED: 1, Outcome.INCONCLUSIVE: 1}
MIRROR = {
    Outcome.REGRESSED: Outcome.IMPROVED,
    Outcome.IMPROVED: Outcome.REGRESSED,
}


# what a user records may be nothing, a debt, or next to nothing
edges = st.sampled_from([0.0, 1.0, -1.0, 5e-324, 1e-200, 1e200, 1.7e308])
wild = values | edges | edges.map(lambda value: -value)
wild_runs = st.lists(wild, min_size=1, max_size=5)


@given(wild_runs, st.lists(wild_runs, min_size=1, max_size=6), wild_runs)
@example([1e200], [[1e-200]] * 3, [1e200] * 5)
@example([1e308], [[-1e308], [1e308], [1e308]], [1e308])
@example([1.0], [[1.0] * 4 + [1e200], [1.0] * 4 + [-1e200]], [1.0])
@example([1e200], [[5e-324]], [1.0])
def test_any_number_has_a_verdict(
    now: list[float], then: list[list[float]], again: list[float]
) -> None:
    """One that no float can be compared with, too: nothing ends a run."""
    subject = case(now, then)
    free = replace(subject, limit=None, key=RecordKey(test_id="free"))
    suite = [subject, free, *others(2)]
    looks = first_look(suite)
    verdicts = settle(suite, {subject.name: confirmation(*again)}, looks=looks)
    told = with_suite(verdicts, suite, looks)

    assert len(told) == 3
    assert len(shown(suite, looks=looks)) == 1
    assert len(smallest_seen(suite, more_sessions=2)) == len(suite)
    assert may_change(free, comparable(free, POLICY)) is False
    assert may_change(subject, comparable(subject, POLICY)) in {True, False}


@given(wild, st.lists(wild, min_size=3, max_size=6), wild_runs)
def test_the_direction_alone_tells_regressed_from_improved(
    now: float, then: list[float], again: list[float]
) -> None:
    """With the other better direction every verdict is its mirror image."""
    subject = case(now, then)
    mirrored = replace(subject, metric=replace(subject.metric, better=Better.HIGHER))
    plain = _sure(one(subject, confirmation(*again)))
    assert _sure(one(mirrored, confirmation(*again))) is MIRROR.get(plain, plain)


def _sure(verdict: Verdict) -> Outcome:
    """What was decided; an improvement that nobody is sure of is not."""
    unsure = verdict.outcome is Outcome.IMPROVED
    unsure = unsure and verdict.reason is Reason.NOT_CONFIRMED
    return Outcome.INCONCLUSIVE if unsure else verdict.outcome


@given(values, sessions, repeats, st.floats(1e-6, 1e6))
def test_the_unit_of_a_metric_does_not_matter(
    now: float, then: list[float], again: list[float], factor: float
) -> None:
    """Microseconds and seconds give the same verdict."""
    plain = one(case(now, then), confirmation(*again))
    scaled = one(
        case(now * factor, [v * factor for v in then]),
        confirmation(*[v * factor for v in again]),
    )
    assert plain.change is not None
    effect = plain.change.effect or 0.0
    if not any(math.isclose(abs(effect), edge, rel_tol=1e-6) for edge in (0.05,)):
        assert ruled(scaled) == ruled(plain)


@given(values, sessions, repeats, st.floats(1.0, 2.0))
def test_getting_slower_never_turns_a_regression_into_a_pass(
    now: float, then: list[float], again: list[float], factor: float
) -> None:
    """Slower in the suite and in confirming processes: a regression stays one."""
    plain = one(case(now, then), confirmation(*again))
    slower = one(case(factor * now, then), confirmation(*[factor * v for v in again]))
    if plain.outcome is Outcome.REGRESSED:
        assert slower.outcome is Outcome.REGRESSED
    if slower.outcome is Outcome.IMPROVED:
        assert plain.outcome is Outcome.IMPROVED


@given(st.permutations(range(14)), repeats)
def test_the_order_of_tests_does_not_matter(
    order: Sequence[int], again: list[float]
) -> None:
    """Each test gets its verdict wherever it stands."""
    suite = [case(1.2, THEN), *others(13)]
    confirmed = {suite[0].name: confirmation(*again)}
    plain = {v.key: ruled(v) for v in settle(suite, confirmed)}
    shuffled = settle([suite[i] for i in order], confirmed)
    assert [v.key for v in shuffled] == [suite[i].key for i in order]
    assert {v.key: ruled(v) for v in shuffled} == plain


def test_nothing_gives_nothing() -> None:
    """A run without cases has no verdicts."""
    assert settle([]) == ()
    assert first_look([]) == ()
    assert shown([]) == ()
    assert baseline_spreads([]) == {}


@pytest.mark.parametrize(
    "subject",
    [
        case(1.0, THEN),
        case(1.0, THEN[:2]),
        case(1.0, []),
        case(1.0, [], void=Void(code=VoidCode.DEVICE_LOST, reason="x")),
        replace(case(1.0, THEN), void=Void(code=VoidCode.DEVICE_LOST, reason="x")),
        replace(case(1.0, THEN), current=None),
        replace(case(1.0, THEN), differences={"driver": ("1", "2")}),
        replace(case(1.0, []), other_sources=("events",)),
        replace(case(64, [64]), metric=METRICS["registers"]),
        replace(case(64, [63, 64]), metric=METRICS["registers"]),
    ],
)
def test_numbers_decide_what_no_early_row_does(subject: Case) -> None:
    """A case has numbers to judge wherever no row has decided it before."""
    decided = early_verdict(subject, Policy(), None) is not None

    assert (comparable(subject, Policy()) is None) == decided


def of_report(now: float, then: Sequence[float], **fields: Any) -> Case:
    """A counter of a captured report."""
    found = estimate(now, "dram.bytes", source="ncu-report")
    return case(now, then, "dram.bytes", estimate=found, choice=None, **fields)


def test_what_a_file_says_is_judged_at_once() -> None:
    """A report read again gives the same numbers: one session, no fresh process."""
    subject = of_report(1.2, [1.0])
    (look,) = first_look([subject])

    assert (look.worse, look.suspect) == (True, False)
    assert ruled(one(subject)) == (Outcome.REGRESSED, Reason.SLOWER_THAN_LIMIT)
    assert ruled(one(of_report(1.0, [1.0]))) == (Outcome.UNCHANGED, Reason.EQUAL)


def test_files_that_differ_are_judged_by_the_rule_without_fresh_processes() -> None:
    """Reports of several captures have a spread; reading one again confirms nothing."""
    subject = of_report(1.2, THEN)
    (look,) = first_look([subject])
    verdict = one(subject)

    assert (look.worse, look.suspect) == (True, False)
    assert ruled(verdict) == (Outcome.REGRESSED, Reason.SLOWER_THAN_LIMIT)
    assert verdict.change is not None
    assert not verdict.change.exact


@pytest.mark.parametrize(
    ("steps", "cause"),
    [(5, Cause.SHORT_LOOP), (29, Cause.SHORT_LOOP), (30, Cause.NOISY_MACHINE)],
)
def test_a_short_loop_is_told_from_others(steps: int, cause: Cause | None) -> None:
    """What a loop of five steps lacks, more processes of five steps do not give."""
    found = estimate(1.2, source="host", sample_count=steps)
    subject = case(1.2, [0.2, 1.0, 5.0], estimate=found, kind=Kind.STEPS)
    verdict = one(subject)

    assert verdict.reason is Reason.NOT_SIGNIFICANT
    assert verdict.cause is cause


# what a first look says, and what nothing gates


@pytest.mark.parametrize(
    ("now", "worse", "better"),
    [
        (103.0, True, False),
        (102.0, False, False),
        (100.0, False, False),
        (98.0, False, False),
        (97.0, False, True),
    ],
)
def test_an_exact_count_looks_changed_beyond_its_limit(
    now: float, worse: bool, better: bool
) -> None:
    """At the limit itself it has not changed, either way; the change is always told."""
    subject = case(now, (100.0,) * 3, "registers", limit=0.02)
    lower = replace(subject, metric=replace(subject.metric, better=Better.LOWER))
    (look,) = first_look([lower])

    assert (look.worse, look.better) == (worse, better)
    assert look.change is not None
    assert look.change.exact
    assert look.change.effect == pytest.approx(now / 100 - 1)


def test_a_case_without_a_limit_is_looked_at_and_not_suspected() -> None:
    """Its change is known all the same."""
    (look,) = first_look([case(1.2, THEN, limit=None)])

    assert (look.worse, look.better, look.suspect) == (False, False, False)
    assert look.change is not None
    assert look.change.effect == pytest.approx(0.2, abs=0.01)


def test_a_change_for_the_better_must_be_unlikely_and_large() -> None:
    """One of the two does not do: noise is large, and certainty may be small."""
    noisy = first_look([case(0.9, (0.7, 1.4, 1.0, 0.8, 1.2))])[0]
    small = first_look([case(0.985, (1.0, 1.0, 1.0, 1.0, 1.0, 1.0))])[0]
    clear = first_look([case(0.8, THEN)])[0]

    assert (noisy.better, small.better, clear.better) == (False, False, True)


@pytest.mark.parametrize(
    ("now", "reason"), [(1.0, Reason.EQUAL), (1.001, Reason.WITHIN_NOISE)]
)
def test_what_nothing_gates_is_shown_as_unchanged(now: float, reason: Reason) -> None:
    """Whatever its change; equal is said of equal values alone."""
    gated = case(1.2, THEN)
    free = case(now, (1.0,) * 3, limit=None, key=RecordKey(test_id="free"))
    (verdict,) = shown([gated, free])

    assert (verdict.outcome, verdict.reason) == (Outcome.UNCHANGED, reason)
    assert verdict.key.test_id == "free"
    assert verdict.change is not None
    assert verdict.change.effect == pytest.approx(now - 1, abs=1e-6)
