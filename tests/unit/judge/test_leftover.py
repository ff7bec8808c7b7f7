"""The rules of judge/leftover: what only the suite found worse, and when that is told."""

from __future__ import annotations

import random
from typing import Any

import pytest

from pytest_gpuperf.judge.case import Case
from pytest_gpuperf.judge.confirmation import Confirmation
from pytest_gpuperf.judge.look import first_look
from pytest_gpuperf.judge.regression import settle
from pytest_gpuperf.judge.retests import with_suite
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.gap import GapCode
from pytest_gpuperf.model.metric import Better, Metric, metric_of
from pytest_gpuperf.model.record import RecordKey
from pytest_gpuperf.model.sample import Unmeasured
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
    processes,
    stored,
)

THEN = (1.00, 1.01, 0.99, 1.005, 0.995)
ALONE = (1.0, 1.001, 0.999, 1.0, 1.0)


def others(count: int = 20) -> list[Case]:
    """Cases of other tests that did not change, with variances like THEN's."""
    draw = random.Random(1)
    return [
        case(
            draw.lognormvariate(0, 0.008),
            [draw.lognormvariate(0, 0.008) for _ in THEN],
            key=RecordKey(test_id=f"other_{n}"),
        )
        for n in range(count)
    ]


def on_moving_machine(*cases: Case) -> list[Case]:
    """The same tests, whose stored sessions moved together."""
    moves = (1.0, 1.2, 0.85, 1.1, 0.9)
    return [
        replace(
            each,
            stored=stored(
                [
                    move * s.value.run_values[0]
                    for move, s in zip(moves, each.stored, strict=True)
                ]
            ),
        )
        for each in cases
    ]


def told(
    now: Any,
    again: tuple[float, ...] = ALONE,
    *,
    strict: bool = False,
    confirmed: Confirmation | None = None,
    **fields: Any,
) -> Verdict:
    """The verdict on one test of a suite, which fresh processes measured again."""
    cases = [case(now, fields.pop("then", THEN), **fields), *others()]
    confirmations = {
        cases[0].name: confirmation(*again) if confirmed is None else confirmed
    }
    verdicts = with_suite(
        settle(cases, confirmations),
        cases,
        first_look(cases),
        strict=strict,
    )
    assert [v.key for v in verdicts] == [each.key for each in cases]
    assert all(v.in_suite is None for v in verdicts[1:])
    return verdicts[0]


def test_what_only_the_suite_found_slower_is_told_beside_the_verdict() -> None:
    """Fresh processes decide, and nobody has to guess what the suite saw."""
    verdict = told(2.0)

    assert (verdict.outcome, verdict.reason) == (
        Outcome.UNCHANGED,
        Reason.WITHIN_NOISE,
    )
    assert verdict.in_suite is not None
    assert verdict.in_suite.effect == pytest.approx(1.0, abs=0.01)
    assert verdict.in_suite.current == 2.0
    assert verdict.change is not None
    assert verdict.change.current == pytest.approx(1.0, abs=0.001)


def test_a_strict_run_leaves_it_undecided() -> None:
    """What ran was not what was stored; why, the numbers do not say."""
    verdict = told(2.0, strict=True)

    assert (verdict.outcome, verdict.reason) == (
        Outcome.INCONCLUSIVE,
        Reason.SLOWER_IN_SUITE,
    )
    assert verdict.in_suite is not None


@pytest.mark.parametrize(("now", "is_told"), [(1.099, False), (1.102, True)])
def test_a_gap_of_two_limits_is_allowed(now: float, *, is_told: bool) -> None:
    """Alone it may be better by one limit: only a larger gap is beyond it for sure."""
    assert (told(now).in_suite is not None) is is_told
    assert told(now, strict=True).reason is (
        Reason.SLOWER_IN_SUITE if is_told else Reason.WITHIN_NOISE
    )


def test_a_gap_is_to_the_fresh_processes_and_not_to_the_baseline() -> None:
    """What is nearly as slow alone has not been left behind by another test."""
    assert told(1.12, (1.045,) * 5).in_suite is None
    assert told(1.12, (1.0,) * 5).in_suite is not None


@pytest.mark.parametrize(("fresh", "is_told"), [(0.9, False), (0.0, True)])
def test_what_all_fresh_processes_saw_is_not_of_the_suite(
    fresh: float, *, is_told: bool
) -> None:
    """An offset known before takes it out of their change, and not out of what they saw."""
    cases = [case(2.0, THEN), *others()]
    (first, *rest) = settle(cases, {cases[0].name: confirmation(*ALONE)})
    undecided = replace(
        first,
        outcome=Outcome.INCONCLUSIVE,
        reason=Reason.NOT_SIGNIFICANT,
        confirmations=(fresh, 1.0, 1.0),
    )

    (verdict, *_) = with_suite([undecided, *rest], cases, first_look(cases))
    assert (verdict.in_suite is not None) is is_told
    cleared = replace(first, confirmations=(fresh, 1.0, 1.0))
    (verdict, *_) = with_suite([cleared, *rest], cases, first_look(cases), strict=True)
    assert verdict.reason is Reason.SLOWER_IN_SUITE


def test_what_noise_explains_is_not_told() -> None:
    """Sessions that lie far apart: a first value among them is not a sign of anything."""
    loose = (1.0, 1.25, 0.8, 1.2, 0.8)

    assert told(1.7, (1.0,) * 5, then=loose).in_suite is None
    assert told(1.7, (1.0,) * 5).in_suite is not None


def test_what_is_very_far_away_needs_no_more_than_its_own_evidence() -> None:
    """Two sessions of a few tests leave no adjusted probability small."""
    subjects = [
        case(
            now,
            (0.95, 1.05) if n % 2 else (1.05, 0.95),
            key=RecordKey(test_id=f"t{now}_{n}"),
        )
        for n, now in enumerate((1.55, 1.45, 1.0, 1.0, 1.0, 1.0, 1.0))
    ]
    looks = first_look(subjects)
    again = {
        one.name: confirmation(*ALONE)
        for one, seen in zip(subjects, looks, strict=True)
        if seen.suspect
    }
    verdicts = with_suite(settle(subjects, again), subjects, looks)

    assert len(again) == 2
    assert [v.key.test_id for v in verdicts if v.in_suite] == ["t1.55_0"]


def test_a_short_disturbance_is_not_told() -> None:
    """It reaches a part of the samples, whose interval is wide then."""
    wide = estimate(1.3, low=1.05, high=1.35)
    narrow = estimate(1.3, low=1.28, high=1.32)

    assert told(1.3, estimate=wide).in_suite is None
    assert told(1.3, estimate=narrow).in_suite is not None


@pytest.mark.parametrize(
    ("first", "machine"),
    [pytest.param(1.25, 1.2, id="slower"), pytest.param(1.08, 0.8, id="faster")],
)
def test_what_the_machine_did_makes_no_gap(first: float, machine: float) -> None:
    """What the suite's other tests did, too, is not left behind by a test."""
    moved = [
        replace(each, current=processes([machine * v for v in each.current.run_values]))
        for each in others()
        if each.current is not None
    ]
    cases = on_moving_machine(case(first, THEN), *moved)
    found = {
        each.name: confirmation(*[machine] * 5, control=True) for each in cases[1:9]
    }
    found[cases[0].name] = confirmation(*[machine] * 5)
    looks = first_look(cases)
    verdict, *_ = with_suite(settle(cases, found), cases, looks)

    assert verdict.change is not None
    assert verdict.change.effect == pytest.approx(0.0, abs=0.01)
    assert verdict.change.machine_shift == pytest.approx(machine - 1, abs=0.01)
    assert verdict.in_suite is None


def test_what_is_undecided_alone_stays_so_for_its_own_reason() -> None:
    """A strict run fails it as it is; what the suite saw is told with it."""
    verdict = told(2.0, (0.8, 1.5, 0.9, 1.4, 1.2), strict=True)

    assert verdict.reason is Reason.NOT_CONFIRMED
    assert verdict.cause is Cause.OTHER_ALONE
    assert verdict.in_suite is not None


def test_a_rate_is_worse_where_it_is_lower() -> None:
    """The direction is the metric's, of the interval's end, too."""
    rate = metric_of("rate", unit="1/s", better=Better.HIGHER)
    lower = estimate(0.5, "rate", low=0.49, high=0.51)
    loose = estimate(0.5, "rate", low=0.49, high=0.95)

    found = [
        _rate(rate, now, seen).in_suite is not None
        for now, seen in ((0.5, lower), (0.5, loose), (1.5, estimate(1.5, "rate")))
    ]
    assert found == [True, False, False]


def _rate(metric: Metric, now: float, seen: Any) -> Verdict:
    """The verdict on a number of the test's own."""
    base = case(now, THEN)
    one = Case(
        key=KEY,
        metric=metric,
        limit=0.05,
        estimate=seen,
        current=base.current,
        choice="A",
        stored=base.stored,
    )
    again = {one.name: confirmation(*ALONE)}
    (verdict,) = with_suite(settle([one], again), [one], first_look([one]))
    return verdict


def test_what_regressed_or_was_not_measured_again_says_nothing_more() -> None:
    """A regression is told by itself, and nothing is known alone without processes."""
    assert told(2.0, (1.5,) * 5).outcome is Outcome.REGRESSED
    assert told(2.0, (1.5,) * 5).in_suite is None
    assert told(2.0, confirmed=confirmation(voids=(HOT,))).in_suite is None
    assert told(2.0, confirmed=confirmation(1.0, control=True)).in_suite is None


def test_a_mean_over_several_processes_is_not_the_suites_value() -> None:
    """--gpuperf-runs measures in fresh processes: they see nothing left behind."""
    assert told((1.4, 1.4, 1.4)).in_suite is None
    assert told((1.4,)).in_suite is not None


def test_an_unchanged_suite_is_told_of_nothing() -> None:
    """In at most one run of 100, as it regresses nothing, whatever happens to be slow."""
    draw = random.Random(7)
    count = 0
    for _ in range(100):
        cases = [
            case(
                draw.lognormvariate(0, 0.06),
                [draw.lognormvariate(0, 0.06) for _ in range(5)],
                key=RecordKey(test_id=f"t{n}"),
            )
            for n in range(40)
        ]
        looks = first_look(cases)
        again = {
            one.name: confirmation(*(draw.lognormvariate(0, 0.06) for _ in range(5)))
            for one, seen in zip(cases, looks, strict=True)
            if seen.suspect
        }
        verdicts = with_suite(settle(cases, again), cases, looks)
        count += any(verdict.in_suite for verdict in verdicts)

    assert count <= 1


def test_what_no_fresh_process_measured_is_not_told_beside_the_suite() -> None:
    """There is no value alone, whatever the machine's part of the one value is."""
    cases = [case(2.0, THEN), *others()]
    looks = first_look(cases)
    decided = settle(cases, {cases[0].name: confirmation(*ALONE)})
    why = Unmeasured(
        metric="the test", code=GapCode.NOT_REACHED, reason="none began", remedy="x"
    )
    lacking = replace(decided[0], evidence=VerdictEvidence(lacking=(why,)))

    assert with_suite(decided, cases, looks)[0].in_suite is not None
    assert with_suite((lacking, *decided[1:]), cases, looks)[0].in_suite is None
