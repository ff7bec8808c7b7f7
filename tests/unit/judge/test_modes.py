"""Rules of judge.modes: what was as slow before has not regressed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from pytest_gpuperf.judge.regression import settle
from pytest_gpuperf.model.record import SessionValue
from pytest_gpuperf.model.verdict import Cause, Outcome, Reason, Verdict
from unit.judge.building import case, confirmation

FAST = (1.0, 1.004, 0.997, 1.002, 0.999, 1.001, 0.998, 1.003)
WAITS = {"waits": "it waits"}
CROWD = {"oversubscribed": "5 runnable threads on 2 cores"}


def judged(
    now: float, then: Sequence[float], *, again: float | None = None, **fields: Any
) -> Verdict:
    """Return the verdict of a time that five fresh processes confirm."""
    subject = case(now, then, **fields)
    fresh = confirmation(*[(again or now) * (1 + n / 1e3) for n in range(5)])
    return settle([subject], {subject.name: fresh})[0]


def test_two_stored_sessions_are_a_mode() -> None:
    """The slow one of two modes is no regression, and the verdict names its sessions."""
    verdict = judged(3.0, (*FAST, 3.1, 3.02))

    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.reason is Reason.NOT_SIGNIFICANT
    assert verdict.cause is Cause.SEEN_BEFORE
    assert verdict.evidence is not None
    assert [seen.value for seen in verdict.evidence.alike] == [3.1, 3.02]


@pytest.mark.parametrize("slow", [1.6, 2.5])
def test_one_bad_session_of_a_test_that_computes_protects_nothing(slow: float) -> None:
    """A change as large as it, or smaller, is found all the same."""
    assert judged(1.6, (*FAST, slow)).outcome is Outcome.REGRESSED


@pytest.mark.parametrize("code", ["waits", "several-threads"])
def test_one_slow_session_of_a_test_that_waits_is_a_mode(code: str) -> None:
    """A disk, or the cores that threads share, may be as busy as they were then."""
    notes = {code: "text"}

    assert judged(1.6, (*FAST, 2.5), notes=notes).cause is Cause.SEEN_BEFORE
    assert judged(2.6, (*FAST, 2.5), notes=notes).cause is Cause.SEEN_BEFORE  # near it
    assert judged(4.0, (*FAST, 2.5), notes=notes).outcome is Outcome.REGRESSED


@pytest.mark.parametrize("now", [1.1, 1.2, 1.24])
def test_usual_values_are_no_mode_of_a_test_that_waits(now: float) -> None:
    """They are near a small change, and show nothing of it."""
    assert judged(now, FAST, notes=WAITS).outcome is Outcome.REGRESSED
    assert judged(1 / now, FAST, notes=WAITS).reason is Reason.FASTER_THAN_LIMIT


def test_a_third_mode_is_a_regression() -> None:
    """Two stored modes do not protect what is slower than both."""
    assert judged(5.0, (*FAST, 2.0, 2.01)).outcome is Outcome.REGRESSED


def test_noise_about_the_limit_is_no_mode() -> None:
    """Sessions that are nearer to the mean than to the value protect nothing."""
    then = (1.0, 1.02, 0.99, 1.01, 1.02, 0.98, 1.0, 1.01)

    assert judged(1.3, then).outcome is Outcome.REGRESSED
    assert judged(1.6, then, limit=0.5).outcome is Outcome.REGRESSED


def test_the_fast_mode_is_no_improvement_to_store() -> None:
    """It is not confirmed, so that it does not become the baseline."""
    verdict = judged(1.0, [*(3 * value for value in FAST), 1.01], notes=WAITS)

    assert verdict.outcome is Outcome.IMPROVED
    assert verdict.reason is Reason.NOT_CONFIRMED
    assert verdict.cause is Cause.SEEN_BEFORE


def test_threads_on_a_crowded_machine_do_not_regress() -> None:
    """More runnable threads than cores slow each of them: the verdict says how many."""
    verdict = judged(3.0, FAST, notes=CROWD)

    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.cause is Cause.NOISY_MACHINE
    assert verdict.evidence is not None
    assert verdict.evidence.lines == (CROWD["oversubscribed"],)


def test_fresh_processes_may_be_the_crowded_ones() -> None:
    """What they note counts like a note of the suite."""
    subject = case(3.0, FAST)
    fresh = confirmation(*[3.0] * 5, notes=CROWD)

    (verdict,) = settle([subject], {subject.name: fresh})

    assert verdict.cause is Cause.NOISY_MACHINE


def test_values_without_a_logarithm_have_no_modes() -> None:
    """A difference of two times may be negative, or 0."""
    verdict = judged(3.0, (*FAST, -1.0, 0.0))

    assert verdict.cause is not Cause.SEEN_BEFORE


def test_a_stored_session_of_several_processes_counts_once() -> None:
    """A mode is of sessions."""
    slow = SessionValue(metric="time", unit="s", source="host", run_values=(3.0, 3.1))
    subject = case(3.0, FAST)
    first, *rest = subject.stored
    stored = (type(first)(value=slow, session=first.session, choice="A"), *rest)
    verdict = judged(3.0, FAST, stored=stored)

    assert verdict.outcome is Outcome.REGRESSED
