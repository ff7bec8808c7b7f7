"""report.tally: one verdict a test, and how many decide."""

from __future__ import annotations

import pytest

from fakes import runs
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.verdict import JUDGED, Outcome
from pytest_gpuperf.report.tally import PRECEDENCE, judged_line, tally, worst


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
    assert judged_line(run).text == (
        "judged 1 of 5: 1 regressed; 1 without marker limit or baseline, "
        "1 never reported, 2 without a measurement"
    )
