"""judge.tally: one verdict a test, how many decide, and what fails."""

from __future__ import annotations

from typing import Any

import pytest

from fakes import runs
from pytest_gpuperf.config import Config, Update
from pytest_gpuperf.judge.against import same_files
from pytest_gpuperf.judge.tally import (
    PRECEDENCE,
    Complaint,
    accepted_outcomes,
    complaints,
    is_fatal,
    revision_verdicts,
    tally,
    worst,
)
from pytest_gpuperf.model.change import Against, AgainstEvidence
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.gap import Gap, GapCode
from pytest_gpuperf.model.run import MissedAssert
from pytest_gpuperf.model.verdict import JUDGED, Outcome, Reason, Verdict


def test_every_outcome_has_its_place() -> None:
    """The order of precedence knows all outcomes."""
    assert set(PRECEDENCE) == set(Outcome)
    assert len(PRECEDENCE) == len(Outcome)


@pytest.mark.parametrize(
    ("several", "speaks"),
    [
        ("passed regressed", "regressed"),
        ("regressed failed", "failed"),
        ("unmeasured regressed", "regressed"),
        ("inconclusive unmeasured", "unmeasured"),
        ("unchanged new", "unchanged"),
        ("unchanged improved", "improved"),
        ("passed unchanged", "unchanged"),
    ],
)
def test_the_worst_verdict_speaks_for_its_test(several: str, speaks: str) -> None:
    """Precedence: failed, regressed, unmeasured, inconclusive, then the rest."""
    verdicts = [
        replace(runs.REGRESSED, outcome=Outcome(word)) for word in several.split()
    ]

    assert worst(verdicts).outcome is Outcome(speaks)


@pytest.mark.parametrize("outcome", Outcome)
def test_what_is_not_decided_is_not_judged(outcome: Outcome) -> None:
    """Inconclusive, new, incomparable and unmeasured never count as judged."""
    counted = tally(
        runs.run(verdicts=(replace(runs.REGRESSED, outcome=outcome),), expected=2)
    )

    assert counted.judged_count == (outcome in JUDGED)
    assert counted.judged_fraction == (outcome in JUDGED) / 2


def test_tests_are_counted_and_not_measurements() -> None:
    """Two measurements of one test are one test, judged by the worse one."""
    second = replace(runs.key("test_gemm[4096]"), name="second")
    verdicts = (runs.REGRESSED, replace(runs.FAILED, key=second))
    counted = tally(runs.run(verdicts=verdicts, expected=1))

    assert counted.judged_count == 1
    assert counted.of(Outcome.FAILED) == (verdicts[1],)
    assert counted.of(Outcome.REGRESSED) == ()


def test_what_nobody_announced_is_counted_all_the_same() -> None:
    """More tests than were expected never make more than everything."""
    run = runs.run(
        (runs.record("test_a"),), (runs.REGRESSED,), expected=0, missing=("lost",)
    )
    counted = tally(run)

    assert (counted.expected_count, counted.unlimited_count) == (3, 1)
    assert counted.missing_count == 1
    assert tally(runs.run()).judged_fraction == 1.0


def test_a_failure_that_is_expected_is_judged_and_no_failure() -> None:
    """What an xfail test missed, a limit or its baseline, is counted apart."""
    test_id = runs.FAILED.key.test_id
    run = runs.run(verdicts=(runs.FAILED, runs.REGRESSED), expected=2)
    assert tally(replace(run, xfailed=(test_id,))).xfailed_count == 1
    counted = tally(replace(run, xfailed=(test_id, runs.REGRESSED.key.test_id)))

    assert counted.of(Outcome.FAILED) == ()
    assert counted.of(Outcome.REGRESSED) == ()
    assert (counted.judged_count, counted.xfailed_count) == (2, 2)
    assert (counted.expected_count, counted.unlimited_count) == (2, 0)


def test_an_expected_failure_of_the_body_was_not_judged() -> None:
    """A test that is marked xfail and missed no limit is not counted as judged."""
    run = runs.run((runs.record("test_a"),), expected=1)
    counted = tally(replace(run, xfailed=(runs.key("test_a").test_id,)))

    assert (counted.judged_count, counted.xfailed_count) == (0, 0)


def test_a_test_that_measured_nothing_is_counted_all_the_same() -> None:
    """Skipped, or ended before it measured: the last line adds up to all tests."""
    run = runs.run(
        (runs.record("test_a"),), (runs.REGRESSED,), expected=5, missing=("lost",)
    )
    counted = tally(run)

    assert (counted.judged_count, counted.unlimited_count) == (1, 1)
    assert (counted.missing_count, counted.empty_count) == (1, 2)


def complained(*verdicts: Verdict, expected: int = 2, **options: Any) -> list[str]:
    """Why a run of some verdicts fails as a whole."""
    run = runs.run(
        verdicts=verdicts, expected=expected, missing=options.pop("missing", ())
    )
    given: dict[str, Any] = {"baseline": ".gpuperf", "baseline_named": True} | options
    found = complaints(run, tally(run), Config(root=".", **given))
    return [complaint.value for complaint in found]


NEW = Verdict(
    key=runs.key("new"),
    metric="time",
    outcome=Outcome.NEW,
    reason=Reason.NOTHING_STORED,
)
PASSED = replace(runs.FAILED, outcome=Outcome.PASSED, reason=Reason.WITHIN_LIMIT)
NOISE = replace(
    runs.REGRESSED,
    outcome=Outcome.INCONCLUSIVE,
    reason=Reason.NOT_SIGNIFICANT,
    change=runs.change(0.06, 1e-3),
)


def test_a_gate_that_was_silently_off_fails_the_run() -> None:
    """A baseline was named and nothing was held against it."""
    assert complained(NEW) == ["nothing-compared"]
    assert complained() == ["nothing-compared"]  # time is gated by default
    assert complained(max_regression=None) == []  # nothing is gated
    assert complained(NEW, max_regression=None) == ["nothing-compared"]
    assert complained(expected=0) == []


def test_a_gate_that_was_on_fails_nothing() -> None:
    """One verdict is enough, and so is what noise left open: it was compared."""
    noisy = replace(NOISE, change=replace(runs.change(0.06, 1e-3), p_worse=0.2))

    assert complained(NEW, runs.REGRESSED) == []
    assert complained(NEW, noisy) == []
    assert complained(NOISE) == ["nothing-compared"]  # no probability: not compared


def test_a_limit_that_was_kept_is_no_comparison() -> None:
    """Nothing stood beside the baseline, whatever else was judged in the run."""
    few = replace(NOISE, reason=Reason.TOO_FEW_SESSIONS)
    few = replace(few, change=replace(runs.change(0.06, 1e-3), p_worse=0.2))
    other_cpu = replace(NEW, outcome=Outcome.INCOMPARABLE)

    assert complained(PASSED, other_cpu) == ["nothing-compared"]
    assert complained(PASSED, few) == ["nothing-compared"]
    assert complained(PASSED, max_regression=None) == []  # there is no gate to be off


@pytest.mark.parametrize("undecided", ["inconclusive", "incomparable", "new"])
def test_a_limit_that_was_kept_stays_passed(undecided: str) -> None:
    """A limit and a change are two judgements; the open one is counted beside it."""
    open_change = replace(NEW, key=PASSED.key, outcome=Outcome(undecided))
    counted = tally(runs.run(verdicts=(PASSED, open_change)))

    assert counted.of(Outcome.PASSED) == (PASSED,)
    assert counted.judged_count == 1
    assert counted.open_beside == {PASSED.key.test_id: open_change}


def test_an_assert_that_held_judges_a_test_without_verdict() -> None:
    """It is counted as such, and a body that failed is not taken for it."""
    records = tuple(runs.record(name) for name in ("test_a", "test_b", "test_c"))
    ids = [record.key.test_id for record in records]
    run = replace(runs.run(records, expected=3), asserted=(ids[0],), broken=(ids[1],))
    counted = tally(run)

    assert (counted.asserted_count, counted.broken_count) == (1, 1)
    assert (counted.unlimited_count, counted.judged_count) == (1, 1)


def test_an_assert_that_did_not_hold_judges_a_test_once() -> None:
    """Two missed asserts of a test are one judged test; a verdict speaks before them."""
    records = tuple(
        runs.record(name) for name in ("test_a", "test_b", "test_gemm[4096]")
    )
    first, second, judged = (record.key for record in records)
    missed = tuple(
        MissedAssert(key=key, comparison="time 2 s <= 1 s")
        for key in (first, replace(first, name="again"), judged)
    )
    run = runs.run(records, (runs.REGRESSED,), expected=3)
    counted = tally(replace(run, missed=missed, broken=(second.test_id,)))

    assert (counted.own_failed_count, counted.broken_count) == (1, 1)
    assert (counted.judged_count, counted.unlimited_count) == (2, 0)


def test_a_test_that_broke_is_counted_whatever_it_measured() -> None:
    """One that was skipped after it had measured is no failure, and not unlimited."""
    records = tuple(runs.record(name) for name in ("test_a", "test_b"))
    first, second = (record.key.test_id for record in records)
    run = replace(
        runs.run(records, expected=4), broken=(first, "never.py::t"), skipped=(second,)
    )
    counted = tally(run)

    assert (counted.broken_count, counted.skipped_count) == (2, 1)
    assert (counted.unlimited_count, counted.empty_count) == (0, 1)


def test_a_test_that_the_revision_lacks_is_counted_as_such() -> None:
    """It has nothing to be compared with; that it gates no metric is not the reason."""
    records = tuple(
        replace(runs.record(name), estimates=(runs.value_of("tokens", 3.0, "token"),))
        for name in ("test_a", "test_b")
    )
    ids = [record.key.test_id for record in records]
    against = Against(revision="main", only_new=(ids[0],))
    run = replace(
        runs.run(records, (replace(runs.REGRESSED, limit=None),), expected=3),
        against=against,
    )
    counted = tally(run)

    assert (counted.one_sided_count, counted.ungated_count) == (1, 1)


def test_an_absent_test_is_missing_from_what_was_judged() -> None:
    """A stored test that its module no longer has is in the denominator."""
    run = runs.run(verdicts=(runs.REGRESSED,), expected=1)
    completeness = replace(run.header.completeness, absent=("gone",))
    counted = tally(replace(run, header=replace(run.header, completeness=completeness)))

    assert (counted.absent_count, counted.judged_fraction) == (1, 0.5)


KEPT = replace(runs.FAILED, outcome=Outcome.PASSED, reason=Reason.WITHIN_LIMIT)


def test_one_stored_session_is_no_comparison() -> None:
    """It shows a change, whose probability rests on other machines alone."""
    few = replace(
        NOISE,
        reason=Reason.TOO_FEW_SESSIONS,
        change=replace(runs.change(0.06, 1e-3), p_worse=0.2),
    )

    assert complained(few) == ["nothing-compared"]
    assert complained(few, update=Update.NEW) == []


@pytest.mark.parametrize("outcome", [Outcome.NEW, Outcome.INCOMPARABLE])
def test_a_limit_and_a_change_are_two_judgements(outcome: Outcome) -> None:
    """A kept limit stays passed, whatever the baseline has to compare."""
    change = replace(NEW, key=KEPT.key, outcome=outcome)
    counted = tally(runs.run(verdicts=(KEPT, change), expected=1))

    assert counted.judged_count == 1
    assert counted.of(Outcome.PASSED) == (KEPT,)


def test_a_test_is_judged_by_whichever_verdict_decides() -> None:
    """What is undecided does not undo what another verdict decided."""
    noisy = replace(NOISE, key=KEPT.key)
    counted = tally(runs.run(verdicts=(KEPT, noisy), expected=1))

    assert counted.judged_count == 1
    assert counted.of(Outcome.PASSED) == (KEPT,)
    assert counted.open_beside == {KEPT.key.test_id: noisy}


@pytest.mark.parametrize(
    ("spreads", "noise"),
    [((None, 0.05), None), ((0.2, 0.1), None), ((0.1, 0.25, 0.22), 0.25)],
)
def test_a_machine_may_be_too_noisy_for_a_stored_baseline(
    spreads: tuple[float | None, ...], noise: float | None
) -> None:
    """Where its sessions usually differ by more than 20 %, which the run knows."""
    verdicts = tuple(
        replace(
            runs.REGRESSED,
            change=replace(runs.change(0.06, 1e-3), session_spread=spread),
        )
        for spread in spreads
    )

    assert tally(runs.run(verdicts=verdicts)).noise_fraction == noise


def test_one_stored_session_does_not_make_a_machine_too_noisy() -> None:
    """What sessions differ by is then a belief, and no session has shown it."""
    noisy = replace(runs.change(0.06, 1e-3), session_spread=0.25)
    first = replace(runs.REGRESSED, change=replace(noisy, session_count=1))
    second = replace(runs.REGRESSED, change=replace(noisy, session_count=2))

    assert tally(runs.run(verdicts=(first,))).noise_fraction is None
    assert tally(runs.run(verdicts=(second,))).noise_fraction == 0.25


def test_a_change_that_is_only_shown_is_no_gate() -> None:
    """Nothing was allowed or forbidden."""
    shown = replace(runs.REGRESSED, threshold=None, outcome=Outcome.UNCHANGED)

    assert complained(shown) == ["nothing-compared"]


@pytest.mark.parametrize(
    "options", [{"baseline_named": False}, {"update": Update.NEW}, {"disable": True}]
)
def test_a_run_that_was_to_decide_nothing_is_no_failure(
    options: dict[str, Any],
) -> None:
    """The store was only found, it is written, or all is switched off."""
    assert complained(NEW, **options) == []


@pytest.mark.parametrize(
    ("least", "fails"), [(None, False), (0.5, False), (0.51, True), (1.0, True)]
)
def test_as_many_tests_must_be_judged_as_were_asked_for(
    least: float | None, *, fails: bool
) -> None:
    """One of two is a half: that share itself is enough."""
    found = complained(runs.REGRESSED, NEW, min_judged=least)

    assert found == (["too-few-judged"] if fails else [])


def test_a_strict_run_misses_tests_that_never_reported() -> None:
    """Others say it in their last line alone."""
    assert complained(runs.REGRESSED, missing=("lost",)) == []
    assert complained(runs.REGRESSED, missing=("lost",), strict=True) == [
        "never-reported"
    ]


@pytest.mark.parametrize(
    ("options", "fatal"),
    [
        ({}, "failed"),
        ({"baseline_named": True}, "failed regressed"),
        ({"baseline_named": True, "update": Update.NEW}, "failed regressed"),
        ({"baseline_named": True, "update": Update.IMPROVED}, "failed regressed"),
        ({"baseline_named": True, "update": Update.ALL}, "failed"),
        ({"strict": True}, "failed inconclusive incomparable new blind"),
        (
            {"strict": True, "baseline_named": True},
            "failed inconclusive incomparable new blind regressed",
        ),
    ],
)
def test_what_fails_a_test_is_what_the_run_was_asked_to_judge(
    options: dict[str, Any], fatal: str
) -> None:
    """A store that was only found shows; an update of all accepts what regressed."""
    config = Config(root=".", **options)
    found = {
        outcome
        for outcome in Outcome
        if is_fatal(replace(runs.REGRESSED, outcome=outcome), config)
    }

    assert found == {Outcome(name) for name in fatal.split()}


def test_what_regressed_against_a_revision_fails_whatever_the_store() -> None:
    """It was named to gate; an update of all accepts changes of the baseline alone."""
    by_revision = replace(
        runs.REGRESSED, baseline=None, against=AgainstEvidence(block_count=4)
    )
    config = Config(root=".", baseline_named=True, update=Update.ALL)

    assert is_fatal(by_revision, config)
    assert is_fatal(by_revision, Config(root="."))
    assert not is_fatal(replace(by_revision, outcome=Outcome.INCONCLUSIVE), config)


@pytest.mark.parametrize(
    ("gap", "others", "count"),
    [
        (False, (), 1),
        (True, (), 0),
        (True, (Outcome.UNCHANGED,), 1),
        (True, (Outcome.INCONCLUSIVE,), 1),  # it is undecided, and not left out
        (False, (Outcome.INCOMPARABLE,), 2),
    ],
)
def test_tests_that_are_the_same_do_not_speak_for_the_others(
    others: tuple[Outcome, ...], count: int, *, gap: bool
) -> None:
    """Where these could not be compared, nothing was."""
    same = same_files(runs.key("same"), runs.time_of(1e-6), 0.05)
    verdicts = [same]
    for outcome in others:
        verdict = replace(same, key=runs.key("other"), reason=Reason.WITHIN_NOISE)
        verdicts.append(replace(verdict, outcome=outcome))
    refusal = Gap(code=GapCode.SHARED_FILE, reason="shared", remedy="build both")
    against = Against(revision="main", gap=refusal if gap else None)
    run = replace(runs.run(verdicts=tuple(verdicts)), against=against)

    counted = revision_verdicts(run)
    assert len(counted) == count
    config = Config(root=".", against="main")
    complained = [*complaints(run, tally(run), config)] == [Complaint.NOTHING_AGAINST]
    assert complained is not any(v.outcome in JUDGED for v in counted)


def test_a_revision_with_which_nothing_was_compared_fails_the_run() -> None:
    """What noise or the budget left open is no judgement, whatever was measured."""
    config = Config(root=".", against="main")
    by_revision = replace(
        runs.REGRESSED, baseline=None, against=AgainstEvidence(block_count=4)
    )
    without = replace(by_revision, outcome=Outcome.INCOMPARABLE, change=None)
    few = replace(
        by_revision, outcome=Outcome.INCONCLUSIVE, reason=Reason.TOO_FEW_BLOCKS
    )
    for verdicts in ((), (runs.REGRESSED,), (without,), (few,), (few, without)):
        run = runs.run(verdicts=verdicts)
        assert [*complaints(run, tally(run), config)] == [Complaint.NOTHING_AGAINST]

    run = runs.run(verdicts=(without, few, by_revision))
    assert [*complaints(run, tally(run), config)] == []


def test_a_gate_that_is_switched_off_out_of_sight_fails_the_run() -> None:
    """Who types a baseline expects it to judge; who types that it is off does not."""
    assert complained(disable=True) == []
    assert complained(disable=True, disabled_aside=True) == ["nothing-judged"]
    assert complained(disable=True, disabled_aside=True, expected=0) == []


def test_more_than_all_were_never_expected() -> None:
    """Tests that nobody announced are counted, none less than that."""
    run = runs.run(verdicts=(runs.REGRESSED, runs.FAILED), expected=1)
    counted = tally(run)

    assert (counted.expected_count, counted.empty_count) == (2, 0)
    assert counted.judged_fraction == 1.0


def test_what_has_a_verdict_is_not_missing() -> None:
    """A test that was lost in a fresh process has never reported, and has failed."""
    test_id = runs.FAILED.key.test_id
    run = runs.run(verdicts=(runs.FAILED,), expected=1, missing=(test_id,))
    counted = tally(run)

    assert (counted.judged_count, counted.missing_count) == (1, 0)


def test_what_is_only_shown_is_no_verdict_of_its_test() -> None:
    """It was measured and had nothing to be judged by."""
    shown = replace(runs.REGRESSED, threshold=None, outcome=Outcome.UNCHANGED)
    counted = tally(runs.run((runs.record("test_gemm[4096]"),), (shown,)))

    assert (counted.judged_count, counted.unlimited_count) == (0, 1)


def test_an_update_accepts_what_it_names() -> None:
    """A new session of an unchanged series restarts nothing."""
    accepted = {update: accepted_outcomes(update) for update in Update}

    assert accepted == {
        Update.NEW: set(),
        Update.IMPROVED: {Outcome.IMPROVED},
        Update.ALL: {Outcome.IMPROVED, Outcome.REGRESSED},
    }
    assert accepted_outcomes(None) == set()
