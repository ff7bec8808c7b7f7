"""What was far worse in the suite than in the fresh processes that cleared it.

Fresh processes alone decide (docs/judging.md section 2). What the suite saw is told beside
their verdict where it is no chance: another test may have left something behind.
"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_gpuperf.compute.change import holm
from pytest_gpuperf.judge.case import Case, Policy, direction
from pytest_gpuperf.judge.regression import Look
from pytest_gpuperf.model.change import Change
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.metric import Better
from pytest_gpuperf.model.record import RecordKey
from pytest_gpuperf.model.sample import Estimate
from pytest_gpuperf.model.verdict import Outcome, Reason, Verdict

__all__ = ["with_suite"]

Name = tuple[RecordKey, str]
# docs/judging.md section 2: what is unchanged alone may be better by a whole limit, so that
# a gap of two leaves the suite's own value beyond the limit wherever the other lies
_GAP_LIMITS = 2.0
# docs/judging.md section 2: so far apart, one test's own p-value is enough; half as large
# again is what noise hardly reaches, and with few sessions no test's adjusted one is small
_FAR = 0.5
_CLEARED = frozenset({Outcome.UNCHANGED, Outcome.IMPROVED})
_REMEDY = (
    "find the test after which it is slower, and let that one clean up; run it again if "
    "the machine was busy"
)


def with_suite(
    verdicts: Sequence[Verdict],
    cases: Sequence[Case],
    looks: Sequence[Look],
    *,
    strict: bool = False,
    policy: Policy | None = None,
) -> tuple[Verdict, ...]:
    """
    Return verdicts with what the suite saw, where it was far worse than fresh processes.

    It is told of a suspect that was measured again (else the value is the first one, and
    there is no gap) and did not regress, if its first value
    would be a regression by the rule of the whole run, and the whole interval of its
    samples lies more than two limits from the value of the fresh processes. If it lies
    very far from that, the test's own probability is enough.

    Args:
        verdicts: Those of the gated cases, by the fresh processes where there were any.

        cases: All pairs of test and metric that the run has.

        looks: What the first value of each suggests, in the same order.

        strict: Whether that leaves the test undecided, instead of being told alone.

        policy: The rule's constants.
    """
    policy = policy or Policy()
    least = _least_gaps(cases, looks, policy)
    known = {case.name: (case, look) for case, look in zip(cases, looks, strict=True)}
    return tuple(
        _with_suite(verdict, *known[name], least[name], strict=strict)
        if (name := (verdict.key, verdict.metric)) in least
        else verdict
        for verdict in verdicts
    )


def _least_gaps(
    cases: Sequence[Case], looks: Sequence[Look], policy: Policy
) -> dict[Name, float]:
    """Return by how much a first value that is hardly noise must differ from those alone."""
    seen = [
        (case, look.change.p_worse)
        for case, look in zip(cases, looks, strict=True)
        if case.limit is not None
        and look.change is not None
        and look.change.p_worse is not None
    ]
    adjusted = holm([p_value for _, p_value in seen])
    return {
        case.name: max(
            _GAP_LIMITS * (case.limit or 0.0), 0.0 if sure < policy.alpha else _FAR
        )
        for (case, p_value), sure in zip(seen, adjusted, strict=True)
        if p_value < policy.alpha
    }


def _with_suite(
    verdict: Verdict, case: Case, look: Look, least_gap: float, *, strict: bool
) -> Verdict:
    """Return a verdict with the change that the suite saw, if that is far worse."""
    first, alone = look.change, verdict.change
    if first is None or alone is None or case.estimate is None:
        return verdict
    # the processes of --gpuperf-runs are fresh ones, too
    if verdict.outcome is Outcome.REGRESSED or first.run_count > 1:
        return verdict
    if first.effect is None or alone.effect is None:  # nothing is relative to 0
        return verdict
    sign = -1.0 if direction(case.metric) is Better.HIGHER else 1.0
    # with what the machine did meanwhile, and without it: the smaller gap counts
    worst_alone = max(sign * alone.effect, sign * _relative(alone.current, alone))
    if (
        sign * _relative(_best_of(case.estimate, sign), first) - worst_alone
        <= least_gap
    ):
        return verdict
    told = replace(verdict, in_suite=first)
    if not strict or verdict.outcome not in _CLEARED:
        return told
    return replace(
        told,
        outcome=Outcome.INCONCLUSIVE,
        reason=Reason.SLOWER_IN_SUITE,
        remedy=_REMEDY,
    )


def _best_of(estimate: Estimate, sign: float) -> float:
    """Return the better end of an interval: a short disturbance makes that wide."""
    end = estimate.high if sign < 0 else estimate.low
    return estimate.value if end is None else end


def _relative(value: float, change: Change) -> float:
    """Return a value as a change from the same reference."""
    return (value - change.reference) / abs(change.reference)
