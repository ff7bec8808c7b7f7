"""Rules of judge.ruling: what was as slow before has not regressed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from pytest_gpuperf.judge.case import Case, Reference
from pytest_gpuperf.judge.regression import settle
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.record import BoundClass, Note, SessionValue
from pytest_gpuperf.model.sample import Source
from pytest_gpuperf.model.verdict import Cause, Outcome, Reason, Verdict
from unit.judge.building import case, confirmation, estimate, record, stored

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


def alone_in(
    subject: Case, place: int, values: Sequence[float], *, suspected: bool = True
) -> Case:
    """The same with values of fresh processes in a stored session."""
    several = list(subject.stored)
    own = replace(several[place].value, alone_values=tuple(values), suspected=suspected)
    several[place] = replace(several[place], value=own)
    return replace(subject, stored=tuple(several))


def confirmed(subject: Case, level: float) -> Verdict:
    """The verdict on a case whose five fresh processes are at a level."""
    fresh = confirmation(*[level * (1 + n / 1e3) for n in range(5)])
    return settle([subject], {subject.name: fresh})[0]


def test_a_state_that_the_test_had_alone_is_no_regression() -> None:
    """In the suite, too: what ran before it in its process decides which it has."""
    subject = alone_in(case(2.05, FAST), 0, (0.99, 1.0, 1.01, 1.02, 1.0))
    subject = alone_in(subject, 3, (2.0, 2.1, 1.9, 2.05, 2.0))
    verdict = confirmed(subject, 2.1)

    assert verdict.cause is Cause.SEEN_BEFORE
    assert verdict.evidence is not None
    (seen,) = verdict.evidence.alike
    assert (seen.value, seen.alone) == (2.0, True)


@pytest.mark.parametrize(
    ("alone", "level"),
    [
        ((2.0, 2.1, 1.9, 2.05, 2.0), 2.6),  # slower than it ever was alone
        ((1.0, 1.0, 1.0, 2.1, 2.2), 2.0),  # a neighbour slowed two of five
        ((1.04, 1.0, 1.01, 1.02, 1.0), 1.2),
    ],
)
def test_what_was_not_seen_alone_is_a_regression(
    alone: Sequence[float], level: float
) -> None:
    """Another value, or a disturbed process, is no state."""
    subject = alone_in(case(level, FAST), 3, alone)

    assert confirmed(subject, level).outcome is Outcome.REGRESSED


@pytest.mark.parametrize(
    ("slow", "cause"), [((2.02, 2.1), Cause.SEEN_BEFORE), ((1.0, 2.1), None)]
)
def test_single_processes_of_two_sessions_show_a_state(
    slow: Sequence[float], cause: Cause | None
) -> None:
    """A session that stores measures alone in one process: two that agree are no accident."""
    subject = case(2.0, FAST)
    for place, value in enumerate((1.0, 1.01, 0.99, *slow)):
        subject = alone_in(subject, place, (value,), suspected=False)
    verdict = confirmed(subject, 2.0)

    assert verdict.cause is cause
    assert (verdict.outcome is Outcome.REGRESSED) is (cause is None)


def disk(now: float) -> list[Reference]:
    """Return the workloads of a disk that is as slow as given."""
    return [
        Reference(
            name=name,
            bound_class=BoundClass.DISK,
            current=value(now * size),
            stored=stored([each * size for each in FAST]),
            fresh=value(*[now * size] * 5),
        )
        for name, size in (
            ("disk-write", 1.0),
            ("disk-append", 1.1),
            ("disk-sync", 2.0),
        )
    ]


def value(*runs: float) -> SessionValue:
    return SessionValue(metric="time", unit="s", source="host", run_values=runs)


@pytest.mark.parametrize(
    ("test", "slower", "bound_class", "outcome"),
    [
        (37.0, 4.8, BoundClass.DISK, Outcome.INCONCLUSIVE),
        (1.69, 1.16, BoundClass.DISK, Outcome.INCONCLUSIVE),
        (1.95, 1.16, BoundClass.DISK, Outcome.REGRESSED),
        (37.0, 1.0, BoundClass.DISK, Outcome.REGRESSED),
        (1.5, 1.03, BoundClass.DISK, Outcome.REGRESSED),
        (1.5, 0.8, BoundClass.DISK, Outcome.REGRESSED),
        (1.1, 0.88, BoundClass.DISK, Outcome.INCONCLUSIVE),
        (1.2, 0.88, BoundClass.DISK, Outcome.REGRESSED),
        (9.0, 0.1, BoundClass.DISK, Outcome.REGRESSED),
        (1.1, 0.88, BoundClass.HOST, Outcome.REGRESSED),
        (37.0, 4.8, BoundClass.HOST, Outcome.REGRESSED),
        (0.5, 0.8, BoundClass.DISK, Outcome.IMPROVED),
    ],
)
def test_a_disk_that_became_slow_regresses_nothing(
    test: float, slower: float, bound_class: BoundClass, outcome: Outcome
) -> None:
    """
    A disk slows tests by other factors than its references, by up to their fourth power.

    In the same way, a test is not faster because the disk is. Where the references became
    faster, the test must have become slower by more than they became faster.
    """
    subject = case(test, FAST, bound_class=bound_class)
    fresh = {subject.name: confirmation(*[test * (1 + n / 1e3) for n in range(5)])}
    (verdict,) = settle([subject], fresh, references=disk(slower))

    assert verdict.outcome is outcome
    if outcome is Outcome.INCONCLUSIVE:
        assert verdict.cause is Cause.NOISY_MACHINE
        assert verdict.evidence is not None
        assert f"the disk is {slower} times as slow" in verdict.evidence.lines[0]
    if outcome is Outcome.IMPROVED:
        assert verdict.reason is Reason.NOT_CONFIRMED


@pytest.mark.parametrize(
    ("reads", "test", "bound_class", "outcome"),
    [
        (6.0, 2.5, BoundClass.HOST, Outcome.INCONCLUSIVE),
        (6.0, 2.5, BoundClass.COMPUTE, Outcome.REGRESSED),  # time of a GPU
        (6.0, 9.0, BoundClass.HOST, Outcome.REGRESSED),  # slower than the reads
        (1.6, 1.5, BoundClass.HOST, Outcome.REGRESSED),  # as quiet sessions differ
        (0.2, 2.5, BoundClass.HOST, Outcome.REGRESSED),
    ],
)
def test_slow_reads_of_memory_regress_nothing(
    reads: float, test: float, bound_class: BoundClass, outcome: Outcome
) -> None:
    """Neighbours that empty a shared cache slow each test by another factor."""
    subject = case(test, FAST, bound_class=bound_class)
    fresh = {subject.name: confirmation(*[test * (1 + n / 1e3) for n in range(5)])}
    (verdict,) = settle([subject], fresh, references=[cache(reads, reads)])

    assert verdict.outcome is outcome
    if outcome is Outcome.INCONCLUSIVE:
        assert verdict.cause is Cause.NOISY_MACHINE
        assert verdict.evidence is not None
        assert "take 5.98 times as long" in verdict.evidence.lines[0]


def test_reads_are_slow_in_the_suite_and_in_fresh_processes() -> None:
    """A neighbour that left before the fresh processes measured explains nothing of them."""
    subject = case(2.5, FAST)
    fresh = {subject.name: confirmation(*[2.5 * (1 + n / 1e3) for n in range(5)])}
    for reads in (cache(6.0, 1.0), cache(1.0, 6.0)):
        (verdict,) = settle([subject], fresh, references=[reads])

        assert verdict.outcome is Outcome.REGRESSED


def test_a_slow_stored_session_shows_how_slow_reads_may_be() -> None:
    """What a stored session met as well is in its values."""
    subject = case(2.5, FAST)
    fresh = {subject.name: confirmation(*[2.5 * (1 + n / 1e3) for n in range(5)])}
    reads = replace(cache(6.0, 6.0), stored=stored([*FAST, 5.0]))

    assert settle([subject], fresh, references=[reads])[0].outcome is Outcome.REGRESSED


def with_interrupted(subject: Case, suite: int, sessions: int) -> Case:
    """Return a case whose samples were interrupted in the suite, and in so many sessions."""
    assert subject.current is not None
    marked = [
        replace(each, value=replace(each.value, interrupted=number < sessions))
        for number, each in enumerate(subject.stored)
    ]
    current = replace(subject.current, interrupted=bool(suite))
    return replace(subject, current=current, stored=tuple(marked))


@pytest.mark.parametrize(
    ("now", "suite", "fresh", "sessions", "outcome"),
    [
        (2.5, 1, 1, 0, Outcome.INCONCLUSIVE),
        (2.5, 0, 1, 3, Outcome.INCONCLUSIVE),  # the fresh processes decide
        (2.5, 1, 0, 0, Outcome.REGRESSED),
        (2.5, 1, 1, 7, Outcome.INCONCLUSIVE),
        (2.5, 1, 1, 8, Outcome.REGRESSED),  # a machine that is always busy
        (2.5, 0, 0, 8, Outcome.REGRESSED),  # slower than on the busy machine
        (2.5, 0, 0, 0, Outcome.REGRESSED),
        (4.5, 1, 1, 0, Outcome.REGRESSED),  # slower than empty caches explain
    ],
)
def test_interrupted_samples_regress_nothing_beside_others(
    now: float, suite: int, fresh: int, sessions: int, outcome: Outcome
) -> None:
    """To fill the caches after each interruption takes time of the processor."""
    subject = with_interrupted(case(now, FAST), suite, sessions)
    again = confirmation(*[now * (1 + n / 1e3) for n in range(5)])
    assert again.value is not None
    again = replace(again, value=replace(again.value, interrupted=bool(fresh)))
    (verdict,) = settle([subject], {subject.name: again})

    assert verdict.outcome is outcome
    if outcome is Outcome.INCONCLUSIVE:
        assert verdict.cause is Cause.NOISY_MACHINE
        assert verdict.evidence is not None
        assert "were interrupted" in verdict.evidence.lines[0]


def test_uninterrupted_samples_are_no_gain_beside_interrupted_ones() -> None:
    """The machine is less busy than it was, which is not stored as an improvement."""
    subject = with_interrupted(case(0.5, FAST), 0, 8)
    fresh = confirmation(*[0.5 * (1 + n / 1e3) for n in range(5)])
    (verdict,) = settle([subject], {subject.name: fresh})

    assert verdict.reason is Reason.NOT_CONFIRMED
    assert verdict.cause is Cause.NOISY_MACHINE


@pytest.mark.parametrize(
    ("code", "sessions", "now", "outcome"),
    [
        ("several-threads", 5, 1.85, Outcome.INCONCLUSIVE),
        ("several-threads", 4, 1.85, Outcome.REGRESSED),  # as many did not
        ("several-threads", 8, 2.6, Outcome.REGRESSED),  # slower than a lock makes it
        ("waits", 8, 1.85, Outcome.REGRESSED),  # one thread
    ],
)
def test_threads_that_shared_cores_in_stored_sessions_do_not_regress(
    code: str, sessions: int, now: float, outcome: Outcome
) -> None:
    """Those that pass a lock to one another are slower where each has a core of its own."""
    subject = with_interrupted(case(now, FAST, notes={code: "text"}), 0, sessions)
    verdict = confirmed(subject, now)

    assert verdict.outcome is outcome
    if outcome is Outcome.INCONCLUSIVE:
        assert verdict.cause is Cause.NOISY_MACHINE
        assert verdict.evidence is not None
        assert "other programs ran at the same time" in verdict.evidence.lines[0]


@pytest.mark.parametrize(
    ("code", "source", "noted", "whole", "expected"),
    [
        ("interrupted", Source.HOST, 2, 1, True),
        ("oversubscribed", Source.HOST, 2, 1, True),
        ("several-threads", Source.HOST, 2, 1, False),
        ("interrupted", Source.HOST, 1, 1, False),
        (
            "interrupted",
            Source.CUPTI,
            2,
            0,
            False,
        ),  # of a device, which nothing interrupts
    ],
)
def test_most_processes_decide_whether_samples_were_interrupted(
    code: str, source: Source, noted: int, whole: int, expected: object
) -> None:
    """One interrupted process of three leaves the median alone."""
    note = Note(code=code, text="the machine was busy", doubt=True)
    records = [record(notes=(note,))] * noted + [record()] * whole
    found = SessionValue.of([estimate(1.0, source=source)] * len(records), records)

    assert found.interrupted is expected


def cache(now: float, fresh: float) -> Reference:
    """Return reads of memory that are as slow as given."""
    return Reference(
        name="reads",
        bound_class=BoundClass.CACHE,
        current=value(now),
        stored=stored(FAST),
        fresh=value(*[fresh] * 5),
    )


@pytest.mark.parametrize(
    ("now", "fields", "outcome"),
    [
        (1.15, {}, Outcome.INCONCLUSIVE),
        (0.86, {}, Outcome.IMPROVED),
        (1.3, {}, Outcome.REGRESSED),
        (1.15, {"dirty": True}, Outcome.REGRESSED),
        (1.15, {"commit": "c2"}, Outcome.REGRESSED),
        (1.15, {"commit": None}, Outcome.REGRESSED),
        (1.15, {"moved": {"numpy": ("1", "2")}}, Outcome.REGRESSED),
        (1.15, {"source": Source.CUPTI}, Outcome.REGRESSED),
    ],
)
def test_a_small_change_between_runs_of_one_commit_is_the_machine(
    now: float, fields: dict[str, Any], outcome: Outcome
) -> None:
    """Host times move by less than 20 % without a change of a file, and both ways."""
    timed = estimate(now, source=fields.get("source", Source.HOST))
    subject = case(now, FAST, estimate=timed, moved=fields.get("moved", {}))
    revision = {"commit": "c1", "dirty": False}
    stored_sessions = tuple(
        replace(s, session=replace(s.session, **revision)) for s in subject.stored
    )
    revision |= {name: fields[name] for name in ("commit", "dirty") if name in fields}
    present = replace(stored_sessions[0].session, id="now", **revision)
    subject = replace(subject, stored=stored_sessions, session=present)
    fresh = {subject.name: confirmation(*[now * (1 + n / 1e3) for n in range(5)])}
    (verdict,) = settle([subject], fresh)

    assert verdict.outcome is outcome
    is_doubted = not fields and now < 1.2
    assert (verdict.cause is Cause.SAME_COMMIT) is is_doubted
    if outcome is Outcome.IMPROVED:
        assert verdict.reason is Reason.NOT_CONFIRMED
