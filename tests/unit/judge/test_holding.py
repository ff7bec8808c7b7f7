"""judge.rows: whose outcome waits until the whole suite is known."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.judge.case import POLICY, Case, Policy
from pytest_gpuperf.judge.look import first_look
from pytest_gpuperf.judge.rule import (
    comparable,
    comparison_of,
    early_verdict,
    group_of,
    may_change,
)
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.metric import Better, metric_of
from pytest_gpuperf.model.record import Void, VoidCode
from pytest_gpuperf.model.verdict import Cause, Reason, Verdict, VerdictEvidence
from unit.judge.building import case, confirmation, gap_of, stored

THEN = (1.0, 1.01, 0.99)
VALUES = st.one_of(st.floats(0.5, 2.0), st.sampled_from([-1.0, 0.0, 1.0, 64.0]))
METRICS = st.sampled_from(["time", "throughput", "registers", "memory.peak_bytes"])


def waits_for_the_end(subject: Case) -> bool:
    """Return whether the outcome of a case's test waits."""
    return may_change(subject, comparable(subject, POLICY))


@pytest.mark.parametrize(
    ("now", "choice", "waits"),
    [(1.2, "A", True), (1.01, "A", False), (2.4, "B", True), (2.0, "B", False)],
)
def test_a_choice_is_compared_with_its_own_sessions(
    now: float, choice: str, waits: bool
) -> None:
    """Slower than the sessions of its kernels waits, whatever other kernels took."""
    then = (*stored(THEN, choice="A"), *stored((2.0, 2.02, 1.98), choice="B"))

    assert waits_for_the_end(case(now, (), stored=then, choice=choice)) is waits


def test_a_mean_is_the_one_that_decides() -> None:
    """One slow stored session hides nothing that the judgement by logarithms sees."""
    assert waits_for_the_end(case(1.18, (0.9, 1.0, 1.6)))


@given(
    now=VALUES,
    then=st.lists(st.tuples(VALUES, st.sampled_from("AB")), min_size=1, max_size=7),
    choice=st.sampled_from("AB"),
    metric=METRICS,
)
def test_whoever_looks_worse_at_the_end_has_waited(
    now: float, then: list[tuple[float, str]], choice: str, metric: str
) -> None:
    """No test fails whose outcome was told before."""
    sessions = tuple(s for value, made in then for s in stored([value], choice=made))
    subject = case(now, (), metric, stored=sessions, choice=choice)
    (look,) = first_look([subject])

    assert waits_for_the_end(subject) or not look.worse


def own(value: float, then: tuple[float, ...], better: Better) -> Case:
    """A case of a number of the user's own, of which any value is possible."""
    metric = metric_of("x", unit="", better=better)
    return replace(case(value, then), metric=metric)


@pytest.mark.parametrize(
    ("now", "better", "waits"),
    [
        (1.0, Better.LOWER, True),
        (0.0, Better.LOWER, False),
        (-1.0, Better.LOWER, False),
        (-1.0, Better.HIGHER, True),
        (1.0, Better.HIGHER, False),
    ],
)
def test_what_came_of_nothing_waits_where_it_is_worse(
    now: float, better: Better, waits: bool
) -> None:
    """Against a baseline of 0 no limit is a share: any step the wrong way waits."""
    assert waits_for_the_end(own(now, (0.0, 0.0, 0.0), better)) is waits


def test_a_count_waits_beyond_its_limit_alone() -> None:
    """What is judged by equality is decided by one value: the limit is the border."""
    assert waits_for_the_end(case(68, (64, 64, 64), "registers"))
    assert not waits_for_the_end(case(67, (64, 64, 64), "registers"))


@pytest.mark.parametrize("limit", [None, 0.05])
def test_what_cannot_be_judged_does_not_wait(limit: float | None) -> None:
    """Without a limit, or with too few sessions, nothing can regress."""
    then = THEN if limit is None else THEN[:1]

    assert not waits_for_the_end(case(9.0, then, limit=limit))


def elsewhere(**fields: Any) -> Verdict:
    """Return the verdict that stands before any number is looked at."""
    verdict = early_verdict(case(1.0, (), **fields), Policy(), None)
    assert verdict is not None
    return verdict


def test_what_cannot_be_compared_says_why() -> None:
    """Other facts, another source, other machines, or nothing at all."""
    facts = {"gpu_name": ("L4", "H200"), "driver": ("1", "2")}
    other = elsewhere(differences=facts)
    source = elsewhere(other_sources=("events", "host"))
    machines = elsewhere(other_machines=("l40s",))
    new = elsewhere()

    assert other.evidence is not None
    assert [*other.evidence.differences.items()] == sorted(facts.items())
    assert source.evidence == VerdictEvidence(stored_sources=("events", "host"))
    assert (machines.cause, machines.evidence) == (
        Cause.OTHER_MACHINE,
        VerdictEvidence(machines=("l40s",)),
    )
    assert (new.cause, new.evidence) == (None, None)
    assert {v.reason for v in (other, machines)} == {Reason.FINGERPRINT_DIFFERS}
    assert [v.outcome.value for v in (other, source, machines, new)] == [
        "incomparable",
        "incomparable",
        "incomparable",
        "new",
    ]


def test_what_has_no_value_says_why() -> None:
    """Nothing measured, void, or lost in the processes that confirm."""
    gone = early_verdict(case(None, THEN), Policy(), None)
    void = elsewhere(
        void=Void(code=VoidCode.HARDWARE_THERMAL, reason="the GPU was hot"),
        stored=stored(THEN),
    )
    own = elsewhere(
        void=Void(
            code=VoidCode.MUTATES_ITS_INPUTS, reason="it grew", remedy="give setup="
        ),
        stored=stored(THEN),
    )
    lost = early_verdict(case(1.0, THEN), Policy(), confirmation(lost=("it died",)))

    assert gone is not None
    assert gone.reason is Reason.NOT_MEASURED
    assert gone.evidence == VerdictEvidence()
    assert gap_of(void) == ("the GPU was hot", "")
    assert gap_of(own) == ("it grew", "give setup=")
    assert lost is not None
    assert lost.evidence == VerdictEvidence(lines=("it died",))


def test_too_few_sessions_are_counted() -> None:
    """Beside those that it takes."""
    few = early_verdict(case(1.0, THEN[:1]), Policy(), None)

    assert few is not None
    assert few.evidence == VerdictEvidence(least_count=2)
    assert few.baseline is not None
    assert few.baseline.session_count == 1


def test_a_case_is_grouped_with_its_like() -> None:
    """By metric and family of its source; only times move with the machine."""
    time = comparison_of(case(1.0, THEN), Policy())
    count = comparison_of(case(1.0, THEN, "registers"), Policy())
    again = comparison_of(case(1.0, THEN), Policy(), confirmation(1.1, 1.2))

    assert time is not None
    assert count is not None
    assert again is not None
    assert time.group == group_of("time", "cupti") == "time device-time"
    assert group_of("time", "host") == "time host-time"
    assert (bool(time.shift_group), count.shift_group) == (True, "")
    assert again.current.run_values == (1.1, 1.2)


def test_a_change_is_a_share_of_what_was() -> None:
    """Where no logarithm is possible too; at the share itself nothing waits."""
    drift = own(-2.0, (-4.0, -4.0, -4.0), Better.LOWER)

    share = Policy().suspect_share

    assert waits_for_the_end(replace(drift, limit=0.49 / share))
    assert not waits_for_the_end(replace(drift, limit=0.5 / share))


@pytest.mark.parametrize(
    ("then", "waits"),
    [
        ((1.0, 1.0, 3.0), True),  # without the one that does not fit it is 20 % slower
        ((1.0, 3.0), False),  # of two nobody knows which is wrong
        ((1.0, 1.4, 1.4), False),  # slower than the fastest alone
    ],
)
def test_a_value_that_may_be_left_out_hides_nothing(
    then: tuple[float, ...], *, waits: bool
) -> None:
    """Whether it is left out is known at the end, when the test's outcome was told."""
    assert waits_for_the_end(case(1.2, then)) is waits
