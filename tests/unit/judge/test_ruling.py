"""The rules of judge/ruling: what numbers decide, and at which of them."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_gpuperf.judge.case import Policy
from pytest_gpuperf.judge.confirmation import Confirmation
from pytest_gpuperf.judge.regression import settle
from pytest_gpuperf.judge.rule import (
    comparison_of,
    may_change,
    verdict_of,
)
from pytest_gpuperf.judge.ruling import Ruling, rule
from pytest_gpuperf.model.change import Change
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.record import BoundClass
from pytest_gpuperf.model.sample import Unmeasured
from pytest_gpuperf.model.verdict import (
    Cause,
    Outcome,
    Reason,
    Verdict,
    VerdictEvidence,
)
from unit.judge.building import HOT, KEY, case, confirmation, estimate, stored

POLICY = Policy(alpha=0.01, suspect_p=0.05)
MOVED = {"driver": ("580.1", "580.2")}


def ruled(
    worsening: float,
    *,
    confirmed: Confirmation | None = None,
    p_value: float = 0.001,
    exact: bool = False,
    reference: float = 1.0,
    sessions: int = 5,
    processes: int = 1,
    spread: float | None = None,
    suite: float | None = None,
    bound_class: BoundClass = BoundClass.HOST,
    **fields: Any,
) -> Verdict:
    """The verdict on a worsening of a case with a limit of 5 %."""
    change = Change(
        effect=worsening,
        current=1 + worsening,
        reference=reference,
        session_count=sessions,
        run_count=processes,
        session_spread=spread,
        p_worse=p_value if worsening > 0 else 1.0,
        p_better=p_value if worsening <= 0 else 1.0,
        detectable_effect=None if exact else 0.1,
        exact=exact,
        fresh=suite is not None,
    )
    given: dict[str, Any] = {
        "change": change,
        "worsening": worsening,
        "p_worse": change.p_worse,
        "p_better": change.p_better,
        "level": POLICY.alpha,
        "confirmation": confirmed,
        "complete": True,
        "selected": True,
    }
    now = 1 + worsening if suite is None else suite
    subject = case(now, [1.0] * 5, moved=MOVED, bound_class=bound_class)
    return rule(subject, Ruling(**(given | fields)), POLICY)


CONFIRMED = confirmation(1.2, 1.3)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_limit_itself_is_allowed(sign: int, *, exact: bool) -> None:
    """Beyond it a change counts, on either side."""
    at_it = ruled(sign * 0.05, exact=exact, confirmed=CONFIRMED)
    beyond = ruled(sign * 0.0501, exact=exact, confirmed=CONFIRMED)

    assert (at_it.outcome, at_it.reason) == (Outcome.UNCHANGED, Reason.WITHIN_NOISE)
    assert beyond.outcome is (Outcome.REGRESSED if sign > 0 else Outcome.IMPROVED)


@pytest.mark.parametrize(
    ("suite", "fresh", "bound_class", "outcome"),
    [
        (12.0, 0.2, BoundClass.DISK, Outcome.INCONCLUSIVE),
        (24.0, 0.5, BoundClass.WAIT, Outcome.INCONCLUSIVE),
        (2.3, 0.2, BoundClass.DISK, Outcome.REGRESSED),
        (12.0, 9.0, BoundClass.DISK, Outcome.REGRESSED),
        (12.0, 1.1, BoundClass.DISK, Outcome.REGRESSED),  # as slow as no wait makes it
        (12.0, 0.2, BoundClass.HOST, Outcome.REGRESSED),
    ],
)
def test_fresh_processes_do_not_confirm_waits_of_another_size(
    suite: float, fresh: float, bound_class: BoundClass, outcome: Outcome
) -> None:
    """A suite beside busy programs waits for the scheduler, and shows no change of the code."""
    confirmed = confirmation(1 + fresh, 1 + fresh)
    verdict = ruled(fresh, confirmed=confirmed, suite=suite, bound_class=bound_class)

    assert verdict.outcome is outcome
    if outcome is Outcome.INCONCLUSIVE:
        assert verdict.cause is Cause.NOISY_MACHINE
        assert verdict.evidence is not None
        (line,) = verdict.evidence.lines
        assert line == (
            f"the suite waited {suite:.3g} times as long as in the stored sessions, and"
            f" fresh processes {1 + fresh:.3g} times: other programs keep the processor"
            " busy"
        )


def test_a_chance_of_alpha_is_not_sure() -> None:
    """Only a smaller one is."""
    at_it = ruled(0.2, confirmed=CONFIRMED, p_value=0.01)
    below = ruled(0.2, confirmed=CONFIRMED, p_value=0.0099)

    assert at_it.reason is Reason.NOT_SIGNIFICANT
    assert below.outcome is Outcome.REGRESSED


@pytest.mark.parametrize(
    ("sessions", "processes", "spread", "cause"),
    [
        (4, 1, 0.21, Cause.NOISY_MACHINE),
        (4, 5, 0.2, Cause.FEW_SESSIONS),
        (5, 1, None, Cause.ONE_PROCESS),
        (5, 5, 0.1, None),
    ],
)
def test_noise_is_told_by_what_would_narrow_it(
    sessions: int, processes: int, spread: float | None, cause: Cause | None
) -> None:
    """A calmer machine first, then more sessions, then more processes, then A/B alone."""
    found = ruled(
        0.2, p_value=0.3, sessions=sessions, processes=processes, spread=spread
    )

    assert found.reason is Reason.NOT_SIGNIFICANT
    assert found.cause is cause


@pytest.mark.parametrize("worsening", [0.2, -0.2])
def test_a_suspect_is_told_by_the_chance_of_its_own_direction(worsening: float) -> None:
    """One in twenty is not a suspicion any more."""
    suspect = ruled(worsening, p_value=0.0499)
    none = ruled(worsening, p_value=0.05)

    assert suspect.reason is Reason.NOT_CONFIRMED
    assert none.reason is Reason.NOT_SIGNIFICANT


def test_what_was_not_confirmed_says_why() -> None:
    """Void processes, an improvement, or nobody asked for any."""
    void = confirmation(voids=(HOT,))
    hot = ruled(0.2, confirmed=void)

    assert hot.cause is Cause.NOTHING_USABLE
    assert hot.evidence == VerdictEvidence(voids=(HOT,))
    assert ruled(-0.2).cause is Cause.LOOKED_BETTER
    assert (ruled(0.2).cause, ruled(0.2).evidence) == (None, None)


def test_what_could_not_be_measured_again_is_told() -> None:
    """No process had a value: what it lacked is the evidence."""
    busy = Unmeasured(metric="time", reason="another program holds it", remedy="wait")
    found = ruled(0.2, confirmed=confirmation(lacking=(busy,)))

    assert (found.reason, found.cause) == (Reason.NOT_CONFIRMED, Cause.NOTHING_USABLE)
    assert found.evidence == VerdictEvidence(lacking=(busy,))


@pytest.mark.parametrize("worsening", [0.2, -0.2])
def test_what_a_run_that_ended_early_could_not_confirm_is_for_that_reason(
    worsening: float,
) -> None:
    """It measures nothing again: naming the store or more processes would not help."""
    stopped = ruled(worsening, complete=False)
    noisy = ruled(worsening, complete=False, p_value=0.3)

    assert (stopped.outcome, stopped.reason) == (
        Outcome.INCONCLUSIVE,
        Reason.INCOMPLETE_RUN,
    )
    assert stopped.cause is None
    assert noisy.reason is Reason.NOT_SIGNIFICANT


def test_a_decision_needs_no_excuse() -> None:
    """What some void process said is of no account where the others decide."""
    some = confirmation(1.2, 1.3, voids=(HOT,))
    found = ruled(0.2, confirmed=some)

    plain = verdict_of(case(1.0, [1.0]), Outcome.UNCHANGED, Reason.EQUAL)

    assert (found.outcome, found.evidence) == (Outcome.REGRESSED, None)
    assert (plain.cause, plain.evidence) == (None, None)


def test_a_verdict_says_what_it_is_of() -> None:
    """The test, the metric, its value, its limit and the sessions it was held against."""
    found = ruled(0.2, confirmed=CONFIRMED)

    assert (found.key, found.metric, found.threshold) == (KEY, "time", 0.05)
    assert found.estimate == estimate(1.2)
    assert found.baseline is not None
    assert (found.baseline.first_unix_s, found.baseline.last_unix_s) == (0.0, 4.0)
    assert found.baseline.moved == MOVED


def test_confirming_processes_are_told_by_their_effect() -> None:
    """Against the reference; none against a reference of 0."""
    assert ruled(0.2, confirmed=CONFIRMED).confirmations == pytest.approx([0.2, 0.3])
    assert ruled(0.2, confirmed=CONFIRMED, reference=0.0).confirmations == ()


def kernels(
    now: str | None, *then: str | None, count: float = 4.0, **fields: Any
) -> tuple[Outcome, Reason]:
    """The verdict on the kernels of a call, by the choices of the sessions."""
    sessions = [
        replace(each, choice=choice)
        for each, choice in zip(stored([4.0] * len(then)), then, strict=True)
    ]
    given = case(
        count, [], "launches.kernels", limit=0.0, choice=now, stored=tuple(sessions)
    )
    (found,) = settle([given], **fields)
    return found.outcome, found.reason


@pytest.mark.parametrize("count", [3.0, 4.0, 5.0])
def test_other_kernels_are_a_change_either_way(count: float) -> None:
    """Equally many, fewer or more: the set and its counts decide, not their number."""
    changed = (Outcome.REGRESSED, Reason.OTHER_KERNEL)

    assert kernels("B", "A", "A", count=count) == changed
    assert kernels("A", "A", "A") == (Outcome.UNCHANGED, Reason.EQUAL)


def test_a_set_that_a_session_had_is_no_change() -> None:
    """An autotuner may choose what it chose before, in the suite or in fresh processes."""
    same = (Outcome.UNCHANGED, Reason.EQUAL)
    again = confirmation(4.0, 4.0, choices=("B", "A"))
    others = confirmation(4.0, 4.0, choices=("B", "B"))

    assert kernels("A", "A", "B") == same
    name = (KEY, "launches.kernels")
    assert kernels("B", "A", "A", confirmations={name: again}) == same
    assert kernels("B", "A", "A", confirmations={name: others}) == (
        Outcome.REGRESSED,
        Reason.OTHER_KERNEL,
    )


@pytest.mark.parametrize(("now", "may"), [("A", False), ("B", True)])
def test_a_test_with_other_kernels_waits_for_the_end(now: str, *, may: bool) -> None:
    """Its outcome must not be reported before, although the number is the same."""
    given = case(
        4.0, [4.0], "launches.kernels", limit=0.0, choice=now, stored=stored([4.0])
    )
    assert may_change(given, comparison_of(given, Policy())) is may


def test_an_unfinished_run_finds_no_other_kernels() -> None:
    """A run that ended early has no regressions."""
    assert kernels("B", "A", "A", complete=False) == (
        Outcome.INCONCLUSIVE,
        Reason.INCOMPLETE_RUN,
    )
