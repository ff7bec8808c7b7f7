"""Slower than a revision or not: blocks of fresh processes of both sides, in several looks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median

from pytest_gpuperf.compute.blocks import BlockChange, block_changes
from pytest_gpuperf.compute.change import holm
from pytest_gpuperf.judge.rule import verdict_of, worsening_of
from pytest_gpuperf.judge.sides import Block, SidePair, SideRun, pairs_of
from pytest_gpuperf.model.change import AgainstEvidence, Sureness
from pytest_gpuperf.model.frozen import Frozen, replace
from pytest_gpuperf.model.record import RecordKey
from pytest_gpuperf.model.sample import Estimate
from pytest_gpuperf.model.verdict import (
    Cause,
    Outcome,
    Reason,
    Verdict,
    VerdictEvidence,
)

# The kernels explain the change of verdicts with these reasons.
_MOVED = frozenset({Reason.SLOWER_THAN_LIMIT, Reason.FASTER_THAN_LIMIT})

__all__ = [
    "AgainstLook",
    "AgainstPolicy",
    "Block",
    "SideRun",
    "changed_test",
    "look_at",
    "out_of_time",
    "same_files",
]


class AgainstPolicy(Frozen, frozen=True, kw_only=True):
    """
    The constants of the rule, from docs/judging.md section 3 unless stated otherwise.

    Attributes:
        look_blocks: Numbers of blocks after which a look decides, ascending.

        levels: Nominal chance of a false alarm in the whole run, for each look.

        noise_threshold: A change too small to mean anything [fraction].

        power: Chance of finding a change of the detectable effect.

        across: Hard facts that may differ.

        hopeless_blocks: Number of blocks from which a test is given up if the last look
            would not decide either.

        hopeless_width: Such a test has bounds that would, at the last look, lie further
            from the effect than this multiple of the limit. No effect at all could then be
            shown to be within the limit.

        hopeless_effect: The effect of such a test is also below this share of its present
            bound, so that nothing indicates a change. The bound is 1.645 standard errors
            from the effect, and 0.67 of that is 1.1 standard errors.

        shard_count: Number of shards of the run. Each of them has an equal share of the
            levels.
    """

    look_blocks: tuple[int, ...] = (4, 8, 16)
    levels: tuple[float, ...] = (0.003, 0.005, 0.008)
    noise_threshold: float = 0.005
    power: float = 0.9
    across: frozenset[str] = frozenset()
    hopeless_blocks: int = 8
    hopeless_width: float = 1.5
    hopeless_effect: float = 0.67
    shard_count: int = 1

    @property
    def least_measured(self) -> int:
        """Number of blocks from which a test counts as measured in most blocks."""
        return (self.look_blocks[0] + self.hopeless_blocks) // 2 + 1


class AgainstLook(Frozen, frozen=True, kw_only=True):
    """
    The result of one look at the blocks.

    Attributes:
        verdicts: One verdict per test and metric. For undecided tests, the verdict they
            would get without further blocks.

        undecided: Ids of the tests that need more blocks, the most likely slower first.
            Ties keep the given order.

        pair_count: Number of (test, metric) pairs that share the level, to be passed to the
            next look.

        null_fraction: Median over the pairs of the half-width that contains 19 of 20
            comparisons of identical code [fraction], or None if unknown.
    """

    verdicts: tuple[Verdict, ...] = ()
    undecided: tuple[str, ...] = ()
    pair_count: int = 0
    null_fraction: float | None = None


def look_at(
    blocks: Sequence[Block],
    gates: Mapping[str, Mapping[str, float | None]],
    policy: AgainstPolicy | None = None,
    *,
    pair_count: int | None = None,
    final: bool = False,
    stopped: bool = False,
) -> AgainstLook:
    """
    Judge the blocks measured so far, without memory of earlier looks.

    Args:
        blocks: All blocks, in order. Later blocks may lack tests that were already decided.

        gates: The largest change by metric [fraction] of each test that entered, by id, or
            None for a metric that is only shown.

        policy: The rule's constants, or None for the defaults.

        pair_count: Pairs of test and metric that share the level, as returned by the first
            look, or more. None to count the measured pairs of `gates`.

        final: Whether there will be no more blocks.

        stopped: Whether the comparison ended for another reason than the budget.
    """
    policy = policy or AgainstPolicy()
    blocks = blocks[: policy.look_blocks[-1]]
    if not blocks:
        return AgainstLook(undecided=() if final else tuple(gates))
    pairs = pairs_of(blocks, gates, across=policy.across)
    noisy = [pair for pair in pairs if pair.verdict is None]
    count = max(sum(pair.is_gated for pair in noisy), pair_count or 0)
    rulings = _rulings(noisy, len(blocks), policy, pair_count=count, final=final)
    spent = len(blocks) == policy.look_blocks[-1]
    short_of = Cause.BLOCKS_SPENT if spent else Cause.ENDED_EARLY
    if stopped and not spent:
        short_of = Cause.STOPPED
    ruled = iter(rulings)
    # The smallest chance over the metrics of each open test.
    chances: dict[str, float] = {}
    for pair, ruling in zip(noisy, rulings, strict=True):
        if pair.is_gated and ruling.outcome is None:
            test_id, chance = pair.case.key.test_id, _chance(ruling, Outcome.REGRESSED)
            chances[test_id] = min(chance, chances.get(test_id, 1.0))
    nulls = [null for ruling in rulings if (null := ruling.null_fraction) is not None]
    verdicts = (
        pair.verdict or _verdict(pair, next(ruled), policy, short_of=short_of)
        for pair in pairs
    )
    return AgainstLook(
        verdicts=tuple(verdict for verdict in verdicts if verdict is not None),
        undecided=()
        if final or spent
        else tuple(
            sorted(
                filter(chances.__contains__, gates),
                key=lambda test_id: chances[test_id],
            )
        ),
        pair_count=count,
        null_fraction=median(nulls) if nulls else None,
    )


def changed_test(key: RecordKey, metric: str = "time") -> Verdict:
    """Return the verdict on a test with another source than in the revision."""
    return Verdict(
        key=key,
        metric=metric,
        outcome=Outcome.INCOMPARABLE,
        reason=Reason.TEST_CHANGED,
        against=AgainstEvidence(block_count=0),
    )


def same_files(key: RecordKey, estimate: Estimate, limit: float | None) -> Verdict:
    """Return the verdict on a test that used no file changed since the revision."""
    return Verdict(
        key=key,
        metric=estimate.metric,
        outcome=Outcome.UNCHANGED,
        reason=Reason.SAME_FILES,
        estimate=estimate,
        threshold=limit,
        against=AgainstEvidence(block_count=0),
    )


def out_of_time(key: RecordKey, metric: str, limit: float | None) -> Verdict:
    """Return the verdict on a slow test that does not fit into the budget."""
    return Verdict(
        key=key,
        metric=metric,
        outcome=Outcome.INCONCLUSIVE,
        reason=Reason.TOO_FEW_BLOCKS,
        cause=Cause.BEFORE_FIRST_LOOK,
        threshold=limit,
        evidence=VerdictEvidence(least_count=AgainstPolicy().look_blocks[0]),
        against=AgainstEvidence(block_count=0),
    )


class _Ruling(Frozen, frozen=True, kw_only=True):
    """
    The state of a pair after some looks.

    Attributes:
        change: The change by all blocks so far, or by the blocks that decided. None without
            blocks that have both sides.

        outcome: The decision, or None if nothing is decided yet.

        reason: The reason for the decision.

        cause: The case of the reason.

        decidable_limit: The smallest limit that the last look would decide, at least the
            change that these blocks detect [fraction]. None if the pair was not given up.
    """

    change: BlockChange | None = None
    outcome: Outcome | None = None
    reason: Reason | None = None
    cause: Cause | None = None
    decidable_limit: float | None = None

    @property
    def null_fraction(self) -> float | None:
        """
        The half-width that contains 19 of 20 comparisons of identical code [fraction].

        None if unknown.
        """
        return None if self.change is None else self.change.evidence.null_fraction


def _rulings(
    pairs: Sequence[SidePair],
    block_count: int,
    policy: AgainstPolicy,
    *,
    pair_count: int,
    final: bool,
) -> list[_Ruling]:
    rulings = [_Ruling()] * len(pairs)
    for due_blocks, alpha in zip(policy.look_blocks, policy.levels, strict=True):
        # An early end does not depend on the values, so it counts as the next look
        # before its time.
        look_blocks = min(due_blocks, block_count)
        decides = due_blocks <= block_count or final
        level = Sureness(
            alpha=alpha / policy.shard_count,
            pair_count=max(1, pair_count),
            noise_threshold=policy.noise_threshold,
            power=policy.power,
        )
        values = [pair.until(look_blocks) for pair in pairs]
        changes = iter(block_changes([v for v in values if v is not None], level))
        latest = [None if v is None else next(changes) for v in values]
        rulings = [
            _Ruling(change=change) if ruling.outcome is None else ruling
            for ruling, change in zip(rulings, latest, strict=True)
        ]
        if decides:
            least = policy.look_blocks[0]
            rulings = _decided(pairs, rulings, level, least_blocks=least)
        if decides and policy.hopeless_blocks <= look_blocks < policy.look_blocks[-1]:
            left = look_blocks / policy.look_blocks[-1]
            rulings = [
                _given_up(pair, ruling, policy, shrinks=math.sqrt(left))
                for pair, ruling in zip(pairs, rulings, strict=True)
            ]
        if due_blocks >= block_count:
            break
    return rulings


def _decided(
    pairs: Sequence[SidePair],
    rulings: Sequence[_Ruling],
    level: Sureness,
    *,
    least_blocks: int,
) -> list[_Ruling]:
    """Return the rulings of a look. Decisions of earlier looks stand."""
    judged = [
        pair.is_gated
        and ruling.outcome is None
        and ruling.change is not None
        and ruling.change.evidence.block_count >= least_blocks
        for pair, ruling in zip(pairs, rulings, strict=True)
    ]
    worse = _adjusted(rulings, judged, level, Outcome.REGRESSED)
    better = _adjusted(rulings, judged, level, Outcome.IMPROVED)
    decided = []
    for pair, ruling, is_judged, p_worse, p_better in zip(
        pairs, rulings, judged, worse, better, strict=True
    ):
        outcome, reason, cause = ruling.outcome, ruling.reason, ruling.cause
        if is_judged and ruling.change is not None:
            limit = pair.case.limit or 0.0
            worsening = worsening_of(pair.case, ruling.change.change)
            if p_worse < level.alpha and worsening > limit:
                outcome, reason = Outcome.REGRESSED, Reason.SLOWER_THAN_LIMIT
            elif p_better < level.alpha and worsening < -limit:
                outcome, reason = Outcome.IMPROVED, Reason.FASTER_THAN_LIMIT
            elif ruling.change.within:
                outcome = Outcome.UNCHANGED
                reason = Reason.EQUAL if worsening == 0 else Reason.WITHIN_NOISE
        elif pair.is_frozen and pair.is_gated:
            outcome, reason = Outcome.INCONCLUSIVE, Reason.OTHER_KERNEL
            cause = Cause.KERNEL_PER_SIDE
        decided.append(replace(ruling, outcome=outcome, reason=reason, cause=cause))
    return decided


def _adjusted(
    rulings: Sequence[_Ruling],
    judged: Sequence[bool],
    level: Sureness,
    outcome: Outcome,
) -> list[float]:
    """
    Return the chance of every change in one direction, adjusted over all pairs.

    The chance is 1 for a pair that is not judged.
    """
    earlier = sum(ruling.outcome is outcome for ruling in rulings)
    chances = [
        _chance(ruling, outcome)
        for ruling, is_judged in zip(rulings, judged, strict=True)
        if is_judged
    ]
    adjusted = iter(holm(chances, count=level.pair_count - earlier))
    return [next(adjusted) if is_judged else 1.0 for is_judged in judged]


def _chance(ruling: _Ruling, outcome: Outcome) -> float:
    """Return the chance of a change without a true change, or 1 if unknown."""
    if ruling.change is None:
        return 1.0
    change = ruling.change.change
    chance = change.p_worse if outcome is Outcome.REGRESSED else change.p_better
    return 1.0 if chance is None else chance


def _given_up(
    pair: SidePair, ruling: _Ruling, policy: AgainstPolicy, *, shrinks: float
) -> _Ruling:
    """
    Rule a pair inconclusive if no later look would decide.

    Args:
        pair: The pair.

        ruling: The ruling so far.

        policy: The rule's constants.

        shrinks: Ratio of the bounds at the last look to the present bounds.
    """
    limit, change = pair.case.limit, ruling.change
    if limit is None or change is None or ruling.outcome is not None:
        return ruling
    if change.evidence.block_count < policy.least_measured:
        # Most of the blocks did not measure the pair, for lack of time.
        return ruling
    bound, effect = change.bound or 0.0, abs(change.change.effect or 0.0)
    last_bound = bound * shrinks
    is_wide = last_bound > policy.hopeless_width * limit
    if not is_wide or effect >= policy.hopeless_effect * bound:
        return ruling
    return replace(
        ruling,
        outcome=Outcome.INCONCLUSIVE,
        reason=Reason.BLOCKS_DIFFER,
        cause=Cause.BLOCKS_HOPELESS,
        decidable_limit=max(last_bound, change.change.detectable_effect or 0.0),
    )


def _verdict(
    pair: SidePair, ruling: _Ruling, policy: AgainstPolicy, *, short_of: Cause
) -> Verdict | None:
    """
    Return the verdict of a pair, or None if there is nothing to decide and nothing to show.

    Args:
        pair: The pair.

        ruling: The ruling after all looks.

        policy: The rule's constants.

        short_of: The reason why there are no more blocks.
    """
    outcome, reason, cause = ruling.outcome, ruling.reason, ruling.cause
    if not pair.is_gated:
        if ruling.change is None:
            return None
        outcome, reason = Outcome.UNCHANGED, Reason.WITHIN_NOISE
        if ruling.change.change.effect == 0:
            reason = Reason.EQUAL
    elif outcome is None or reason is None:
        outcome = Outcome.INCONCLUSIVE
        reason, cause = _undecided(ruling, policy, short_of=short_of)
    evidence = None
    if reason is Reason.OTHER_KERNEL and pair.kernels is not None:
        evidence = VerdictEvidence(kernels=pair.kernels, account=pair.account)
    elif reason in _MOVED and pair.account is not None:
        evidence = VerdictEvidence(account=pair.account)
    elif cause is Cause.BEFORE_FIRST_LOOK:
        evidence = VerdictEvidence(least_count=policy.look_blocks[0])
    verdict = verdict_of(
        pair.case,
        outcome,
        reason,
        cause=cause,
        evidence=evidence,
        change=None if ruling.change is None else ruling.change.change,
    )
    against = AgainstEvidence(block_count=0)
    if ruling.change is not None:
        against = replace(
            ruling.change.evidence,
            decidable_limit=ruling.decidable_limit,
            code=pair.case.code,
        )
    return replace(verdict, against=against)


def _undecided(
    ruling: _Ruling, policy: AgainstPolicy, *, short_of: Cause
) -> tuple[Reason, Cause | None]:
    if ruling.change is None:
        return Reason.OTHER_KERNEL, None
    block_count = ruling.change.evidence.block_count
    if block_count < policy.look_blocks[0] and short_of is not Cause.STOPPED:
        return Reason.TOO_FEW_BLOCKS, Cause.BEFORE_FIRST_LOOK
    if short_of is Cause.BLOCKS_SPENT and block_count < policy.least_measured:
        return Reason.TOO_FEW_BLOCKS, Cause.ENDED_EARLY
    if short_of is Cause.BLOCKS_SPENT:
        return Reason.BLOCKS_DIFFER, short_of
    return Reason.TOO_FEW_BLOCKS, short_of
