"""A change with its probabilities, as a verdict: the last rows of the rule."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

from pytest_gpuperf.judge.case import Case, Confirmation, Policy, Stored
from pytest_gpuperf.model.change import Change
from pytest_gpuperf.model.frozen import Frozen, replace
from pytest_gpuperf.model.record import Kind
from pytest_gpuperf.model.verdict import BaselineSpan, Outcome, Reason, Verdict

__all__ = ["Ruling", "rule", "verdict_of"]

# docs/steps.md: with fewer, the median of a loop moves as its slowest steps do
_ENOUGH_STEPS = 30

_REMEDIES = MappingProxyType(
    {
        Reason.FASTER_THAN_LIMIT: "store it with --gpuperf-update=improved",
        Reason.NOT_SIGNIFICANT: "measure it in more processes with --gpuperf-runs=5",
        Reason.INCOMPLETE_RUN: "run all the selected tests to their end",
    }
)


class Ruling(Frozen, frozen=True, kw_only=True):
    """
    What the last rows decide by.

    Attributes:
        change: The change that counts.

        worsening: Its effect, so that more is worse; infinite where 0 became something.

        p_worse: Chance of it without a worsening, adjusted over all pairs of the run.

        p_better: The same without an improvement.

        confirmation: The fresh processes; None: there were none.

        complete: Whether every test reported.

        selected: Whether suspects need to be confirmed.
    """

    change: Change
    worsening: float
    p_worse: float
    p_better: float
    confirmation: Confirmation | None
    complete: bool
    selected: bool


def verdict_of(
    case: Case,
    outcome: Outcome,
    reason: Reason,
    *,
    detail: tuple[str, ...] = (),
    remedy: str = "",
) -> Verdict:
    """Return a verdict on a case, with the sessions that it was held against."""
    return Verdict(
        key=case.key,
        metric=case.metric.name,
        outcome=outcome,
        reason=reason,
        threshold=case.limit,
        estimate=case.estimate,
        baseline=_span(case, case.stored),
        detail=detail,
        remedy=remedy,
    )


def rule(case: Case, ruling: Ruling, policy: Policy) -> Verdict:
    """Return the verdict of a gated case that numbers decide."""
    limit = case.limit or 0.0
    if ruling.change.exact:
        outcome, reason = _by_equality(ruling, limit)
    else:
        outcome, reason = _by_evidence(ruling, limit, policy)
    moved = outcome in {Outcome.REGRESSED, Outcome.IMPROVED}
    # nothing is measured again in a run that ended early: that is why
    if not ruling.complete and (moved or reason is Reason.NOT_CONFIRMED):
        outcome, reason = Outcome.INCONCLUSIVE, Reason.INCOMPLETE_RUN
    void = ruling.confirmation.void if ruling.confirmation is not None else ()
    verdict = verdict_of(
        case,
        outcome,
        reason,
        detail=void if outcome is Outcome.INCONCLUSIVE else (),
        remedy=_remedy(case, ruling, reason),
    )
    return replace(verdict, change=ruling.change, confirmations=_confirmations(ruling))


def _remedy(case: Case, ruling: Ruling, reason: Reason) -> str:
    """Return what to do; for what was not confirmed, by why it was not."""
    if reason is Reason.NOT_SIGNIFICANT and _is_short(case):
        return f"record more steps of the loop: {_ENOUGH_STEPS} or more"
    if reason is not Reason.NOT_CONFIRMED:
        return _REMEDIES.get(reason, "")
    if ruling.confirmation is not None:  # there were processes, and all were void
        return "measure it again when that is over"
    if ruling.worsening < 0:
        return "confirm and store it with --gpuperf-update=improved"
    return (
        "let fresh processes confirm it: name the store with --gpuperf-baseline, and "
        "leave --gpuperf-confirm above 0"
    )


def _is_short(case: Case) -> bool:
    """Return whether a case is of a loop of few steps."""
    steps = case.estimate.sample_count if case.estimate is not None else None
    return case.kind is Kind.STEPS and steps is not None and steps < _ENOUGH_STEPS


def _by_equality(ruling: Ruling, limit: float) -> tuple[Outcome, Reason]:
    """Return what a count decides: a tolerance is the user's."""
    if ruling.worsening > limit:
        return Outcome.REGRESSED, Reason.SLOWER_THAN_LIMIT
    if ruling.worsening < -limit:
        return Outcome.IMPROVED, Reason.FASTER_THAN_LIMIT
    equal = ruling.worsening == 0
    return Outcome.UNCHANGED, Reason.EQUAL if equal else Reason.WITHIN_NOISE


def _by_evidence(
    ruling: Ruling, limit: float, policy: Policy
) -> tuple[Outcome, Reason]:
    """Return what a metric with noise decides."""
    if abs(ruling.worsening) <= limit:
        return Outcome.UNCHANGED, Reason.WITHIN_NOISE
    worse = ruling.worsening > 0
    sure = (ruling.p_worse if worse else ruling.p_better) < policy.alpha
    if not _is_confirmed(ruling):
        p_value = ruling.change.p_worse if worse else ruling.change.p_better
        suspect = p_value is not None and p_value < policy.suspect_p
        reason = Reason.NOT_CONFIRMED if suspect else Reason.NOT_SIGNIFICANT
        return Outcome.INCONCLUSIVE, reason
    if not sure:
        return Outcome.INCONCLUSIVE, Reason.NOT_SIGNIFICANT
    if worse:
        return Outcome.REGRESSED, Reason.SLOWER_THAN_LIMIT
    return Outcome.IMPROVED, Reason.FASTER_THAN_LIMIT


def _is_confirmed(ruling: Ruling) -> bool:
    """Return whether fresh processes gave values, or none are needed."""
    if not ruling.selected:
        return True
    return ruling.confirmation is not None and bool(ruling.confirmation.run_values)


def _confirmations(ruling: Ruling) -> tuple[float, ...]:
    """Return the effect in each confirming process."""
    reference = ruling.change.reference
    if ruling.confirmation is None or reference == 0:
        return ()
    return tuple(
        (value - reference) / abs(reference) for value in ruling.confirmation.run_values
    )


def _span(case: Case, stored: Sequence[Stored]) -> BaselineSpan | None:
    """Return the stored sessions of a case, oldest and newest."""
    if not stored:
        return None
    first, last = stored[0].session, stored[-1].session
    return BaselineSpan(
        session_count=len(stored),
        first_unix_s=first.started_unix_s,
        last_unix_s=last.started_unix_s,
        first_commit=first.commit,
        last_commit=last.commit,
        moved=case.moved,
    )
