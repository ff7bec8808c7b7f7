"""The rules of judge/against: what blocks of two sides decide, and when."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats
from scipy.special import stdtrit

from fakes.runs import kernel_use
from pytest_gpuperf.compute.blocks import blocks_wanted
from pytest_gpuperf.judge.against import (
    AgainstLook,
    AgainstPolicy,
    Block,
    changed_test,
    look_at,
)
from pytest_gpuperf.judge.sides import unsteady_parameters
from pytest_gpuperf.model.activity import ActivitySummary
from pytest_gpuperf.model.change import Change, Side
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.gap import GapCode
from pytest_gpuperf.model.identity import CodeIdentity, Sameness
from pytest_gpuperf.model.record import BoundClass, Record, RecordKey, Void, VoidCode
from pytest_gpuperf.model.sample import Unmeasured
from pytest_gpuperf.model.verdict import Cause, Outcome, Reason, Verdict
from unit.judge.building import blocks_of, estimate, record

Floats = NDArray[np.float64]
NOISE = math.log1p(0.005)
NAMES = ("python", "array", "copy")


def gates(count: int = 1, limit: float | None = 0.05) -> dict[str, dict[str, Any]]:
    """The same limit of the time of some tests."""
    return {f"t{number}": {"time": limit} for number in range(count)}


def of_logs(logs: Floats, references: Floats | None = None) -> list[Block]:
    """Blocks of arrays [block, process, test] and [block, process, workload]."""
    timed = None
    if references is not None:
        timed = {
            name: np.exp(references[:, :, place]).tolist()
            for place, name in enumerate(NAMES)
        }
    return blocks_of(
        {f"t{n}": np.exp(logs[:, :, n]).tolist() for n in range(logs.shape[2])},
        references=timed,
    )


def only(look: AgainstLook) -> Verdict:
    """The only verdict of a look."""
    (verdict,) = look.verdicts
    return verdict


def steady(
    old: float = 1.0, new: float = 1.0, count: int = 4, noise: float = 0.001
) -> list[tuple[float, ...]]:
    """Blocks of a test whose processes hardly differ."""
    step = [1 + noise, 1 - noise]
    return [
        (old * step[n % 2], old, new, new * step[(n // 2) % 2]) for n in range(count)
    ]


def by_hand(
    logs: Floats, references: Floats | None, pair_count: int
) -> list[tuple[Outcome, int]]:
    """Each test's outcome and the blocks it took, by the slow way."""
    blocks, _, tests = logs.shape
    outcome: list[tuple[Outcome, int] | None] = [None] * tests
    for count, level in zip((4, 8, 16), (0.003, 0.005, 0.008), strict=True):
        if count > blocks:
            break
        z, extra = _without_machine(logs[:count], references)
        d = (z[:, 2:] - z[:, :2]).mean(1)  # [block, test]
        centre, variance = d.mean(0), np.maximum(d.var(0, ddof=1), 1e-6)
        above = _tail(variance, count, extra)
        worse = [above(t, centre[t] - NOISE) for t in range(tests)]
        better = [above(t, -centre[t] - NOISE) for t in range(tests)]
        fell = sum(o is not None and o[0] is Outcome.IMPROVED for o in outcome)
        rose = sum(o is not None and o[0] is Outcome.REGRESSED for o in outcome)
        still = [t for t in range(tests) if outcome[t] is None]
        up = _adjusted({t: worse[t] for t in still}, pair_count - rose)
        down = _adjusted({t: better[t] for t in still}, pair_count - fell)
        for t in still:
            effect = math.expm1(centre[t])
            inside = above(t, math.log1p(0.05) - centre[t]) < 0.05
            inside &= above(t, centre[t] - math.log1p(-0.05)) < 0.05
            if up[t] < level and effect > 0.05:
                outcome[t] = Outcome.REGRESSED, count
            elif down[t] < level and effect < -0.05:
                outcome[t] = Outcome.IMPROVED, count
            elif inside:
                outcome[t] = Outcome.UNCHANGED, count
    last = max(c for c in (4, 8, 16) if c <= blocks)
    return [o or (Outcome.INCONCLUSIVE, last) for o in outcome]


def _without_machine(logs: Floats, references: Floats | None) -> tuple[Floats, float]:
    """Values without the share of the references' moves, and the variance left."""
    if references is None:
        return logs, 0.0
    timed = references[: len(logs)]
    moves = np.median(timed - timed.mean(1, keepdims=True), 2)  # [block, process]
    dx = np.concatenate([logs[:, 0] - logs[:, 1], logs[:, 2] - logs[:, 3]])
    dr = np.concatenate([moves[:, 0] - moves[:, 1], moves[:, 2] - moves[:, 3]])
    v = (dx * dx).mean() + 1e-8
    precision = (dr * dr).sum() * logs.shape[2] / v + 4
    share = np.clip(((dx * dr[:, None]).sum() / v + 0.7 * 4) / precision, 0, 1)
    moved = (moves[:, 2:] - moves[:, :2]).mean()
    return logs - share * moves[:, :, None], moved**2 * (0.09 + 1 / precision)


def _tail(
    variance: Floats, count: int, extra: float, *, worth: float | None = None
) -> Any:
    """The predictive tail of a test's mean, from the variances of all."""
    k = count - 1
    points = []
    for half in range(19):
        usual = 1e-6 * 2.0**half
        root = math.sqrt(usual)
        outside = math.log(max(0.02 / root, root / 0.25, 1.0)) / 0.5
        for d0 in (1, 2, 4, 8):
            log = -outside * outside / 2
            log += sum(
                stats.f.logpdf(v / usual, k, d0) - math.log(usual) for v in variance
            )
            points.append((usual, d0, log))
    most = max(log for _, _, log in points)
    total = sum(math.exp(log - most) for _, _, log in points)

    def above(test: int, difference: float) -> float:
        p = 0.0
        for usual, d0, log in points:
            s2 = (d0 * usual + k * variance[test]) / (d0 + k)
            t = difference / math.sqrt(s2 / (worth or count) + extra)
            p += math.exp(log - most) / total * stats.t.sf(t, min(d0 + k, 6))
        return p

    return above


def _adjusted(p_values: Mapping[int, float], members: int) -> dict[int, float]:
    """Holm's adjustment."""
    largest, adjusted = 0.0, {}
    for rank, (test, p) in enumerate(
        sorted(p_values.items(), key=lambda item: item[1])
    ):
        largest = max(largest, min(1.0, (members - rank) * p))
        adjusted[test] = largest
    return adjusted


@pytest.mark.parametrize("with_references", [False, True])
@pytest.mark.parametrize("spread", [0.005, 0.03, 0.08])
@pytest.mark.parametrize("seed", [1, 2])
def test_the_decision_is_that_of_the_slow_way(
    spread: float, seed: int, *, with_references: bool
) -> None:
    """Outcome and blocks of each test are those of section 3, computed anew."""
    draw = np.random.default_rng(seed)
    logs = draw.normal(0, spread, (16, 4, 5))
    moves = np.abs(draw.normal(0, 0.1, (16, 4)))
    references = None
    if with_references:
        logs += moves[:, :, None]
        references = moves[:, :, None] + draw.normal(0, 0.01, (16, 4, 3))
    logs[:, 2:, 0] += math.log(1.12)
    logs[:, 2:, 1] -= math.log(1.3)
    logs[:, 2:, 2] += math.log(1.05)

    look = look_at(of_logs(logs, references), gates(5))

    seen = [
        (verdict.outcome, verdict.against.block_count)
        for verdict in look.verdicts
        if verdict.against is not None
    ]
    assert seen == by_hand(logs, references, 5)
    assert look.undecided == ()
    assert look.pair_count == 5


def test_a_chance_is_that_of_the_slow_way() -> None:
    """Not only the outcome: effect and probability agree to the last digits."""
    draw = np.random.default_rng(7)
    logs = draw.normal(0, 0.05, (16, 4, 3))
    references = draw.normal(0, 0.05, (16, 4, 3))
    z, extra = _without_machine(logs, references)
    d = (z[:, 2:] - z[:, :2]).mean(1)
    above = _tail(np.maximum(d.var(0, ddof=1), 1e-6), 16, extra)

    policy = AgainstPolicy(look_blocks=(16,), levels=(0.008,))
    look = look_at(of_logs(logs, references), gates(3), policy)

    for test, verdict in enumerate(look.verdicts):
        assert verdict.change is not None
        assert verdict.change.effect == pytest.approx(math.expm1(d[:, test].mean()))
        then, now = logs[:, :2, test].mean(), logs[:, 2:, test].mean()
        assert verdict.change.reference == pytest.approx(math.exp(then))
        assert verdict.change.current == pytest.approx(math.exp(now))
        without = math.exp(now - then) / (1 + (verdict.change.machine_shift or 0.0))
        assert verdict.change.effect == pytest.approx(without - 1)
        assert verdict.change.p_worse == pytest.approx(
            above(test, d[:, test].mean() - NOISE), rel=1e-6
        )
        assert verdict.change.p_better == pytest.approx(
            above(test, -d[:, test].mean() - NOISE), rel=1e-6
        )


def test_a_worsening_beyond_the_limit_has_regressed_after_four_blocks() -> None:
    """The first look decides what is clear."""
    look = look_at(blocks_of({"t0": steady(new=1.2)}), gates())
    verdict = only(look)

    assert (verdict.outcome, verdict.reason) == (
        Outcome.REGRESSED,
        Reason.SLOWER_THAN_LIMIT,
    )
    assert look.undecided == ()
    assert verdict.change is not None
    assert verdict.change.effect == pytest.approx(0.2, abs=0.002)
    assert verdict.change.reference == pytest.approx(1, abs=0.002)
    assert verdict.change.current == pytest.approx(1.2, abs=0.002)
    assert (verdict.change.session_count, verdict.change.run_count) == (4, 8)
    assert verdict.threshold == 0.05
    assert verdict.baseline is None


def test_a_shard_must_be_surer_than_a_whole_run() -> None:
    """Each of eight shards decides at an eighth of the level, so with less noise."""

    def noises(policy: AgainstPolicy) -> set[int]:
        """Return with how much noise a worsening is decided at the first look."""
        found = set()
        for thousandths in range(1, 40):
            blocks = blocks_of({"t0": steady(new=1.2, noise=thousandths / 1000)})
            look = look_at(blocks, gates(), policy)
            if not look.undecided and only(look).outcome is Outcome.REGRESSED:
                found.add(thousandths)
        return found

    whole, eighth = noises(AgainstPolicy()), noises(AgainstPolicy(shard_count=8))

    assert eighth
    assert eighth < whole


def test_an_improvement_is_the_mirror_image() -> None:
    """It is decided likewise, and is never a failure."""
    verdict = only(look_at(blocks_of({"t0": steady(new=0.8)}), gates()))

    assert (verdict.outcome, verdict.reason) == (
        Outcome.IMPROVED,
        Reason.FASTER_THAN_LIMIT,
    )


def test_more_of_a_rate_is_better() -> None:
    """Which way is worse is the metric's."""
    limits = {"t0": {"throughput": 0.05}}
    more = blocks_of({"t0": steady(new=1.2)}, metric="throughput")
    less = blocks_of({"t0": steady(new=0.8)}, metric="throughput")

    assert only(look_at(more, limits)).outcome is Outcome.IMPROVED
    assert only(look_at(less, limits)).outcome is Outcome.REGRESSED


def test_what_lies_within_the_limit_is_unchanged_and_done() -> None:
    """Its one-sided 95 % bounds lie within the limit on both sides."""
    look = look_at(blocks_of({"t0": steady(new=1.004)}), gates())

    assert only(look).outcome is Outcome.UNCHANGED
    assert only(look).reason is Reason.WITHIN_NOISE
    assert look.undecided == ()


def test_a_sure_worsening_within_the_limit_is_unchanged() -> None:
    """That it is no noise is not enough."""
    for new in (1.04, 0.96):
        verdict = only(look_at(blocks_of({"t0": steady(new=new)}), gates()))
        assert verdict.outcome is Outcome.UNCHANGED
        assert verdict.change is not None
        assert min(verdict.change.p_worse or 0.0, verdict.change.p_better or 0.0) < 3e-3


def test_a_limit_is_a_share_in_both_directions() -> None:
    """Half of it less is as far as the limit goes: 0.55 of it is within."""
    blocks = blocks_of({"t0": steady(new=0.55)})

    assert only(look_at(blocks, gates(limit=0.5))).outcome is Outcome.UNCHANGED


def test_what_is_the_same_to_the_last_digit_is_equal() -> None:
    """As a clock that always gives the same value does."""
    look = look_at(blocks_of({"t0": [(1.0, 1.0, 1.0, 1.0)] * 4}), gates())

    assert only(look).outcome is Outcome.UNCHANGED
    assert only(look).reason is Reason.EQUAL


@pytest.mark.parametrize("new", [1.05, 1.03, 0.97, 0.953])
def test_what_is_near_the_limit_goes_on(new: float) -> None:
    """Neither beyond the limit for sure nor within it for sure, on either side."""
    noise = [1.04, 0.96, 1.03, 0.97]
    blocks = blocks_of({"t0": [(1.0, x, new, new) for x in noise]})

    look = look_at(blocks, gates())

    assert look.undecided == ("t0",)
    assert only(look).outcome is Outcome.INCONCLUSIVE
    assert (only(look).reason, only(look).cause) == (
        Reason.TOO_FEW_BLOCKS,
        Cause.ENDED_EARLY,
    )


@pytest.mark.parametrize("count", [1, 2, 3])
def test_nothing_is_decided_before_the_first_look(count: int) -> None:
    """Three blocks cannot know how much blocks differ, whatever they show."""
    blocks = blocks_of({"t0": steady(new=2.0, count=count)})

    assert look_at(blocks, gates()).undecided == ("t0",)
    final = look_at(blocks, gates(), final=True)
    assert final.undecided == ()
    assert only(final).outcome is Outcome.INCONCLUSIVE
    assert only(final).change is not None


def test_between_two_looks_nothing_new_is_decided() -> None:
    """Whoever looks after each block has no more chances than who looks at the looks."""
    noisy = [(1.0, 1.0, 1.1, 1.3), (1.1, 1.0, 1.0, 1.2)] * 2
    blocks = blocks_of({"t0": [*noisy, *steady(new=3.0, count=3)]})

    assert look_at(blocks[:4], gates()).undecided == ("t0",)
    assert look_at(blocks[:7], gates()).undecided == ("t0",)
    assert only(look_at(blocks[:7], gates())).outcome is Outcome.INCONCLUSIVE


def test_an_early_end_decides_what_is_clear() -> None:
    """A budget that ends after 7 blocks is the look after 8, before its time."""
    values = [(1.0, 1.02, 1.2, 1.3), (1.03, 1.0, 1.14, 1.2)] * 3
    blocks = blocks_of({"t0": values[:6]})
    late = AgainstPolicy(look_blocks=(3, 8, 16), levels=(1e-9, 0.005, 0.008))

    assert only(look_at(blocks, gates(), late)).outcome is Outcome.INCONCLUSIVE
    assert only(look_at(blocks, gates(), late, final=True)).outcome is Outcome.REGRESSED
    never = replace(late, levels=(0.4, 1e-9, 0.4))
    held = look_at(blocks[2:], gates(), replace(never, look_blocks=(5, 8, 16)))
    assert held.undecided == ("t0",)


def test_an_early_end_has_the_level_of_the_look_that_it_replaces() -> None:
    """Not that of the look before, nor of the last."""
    blocks = blocks_of({"t0": steady(new=1.2, count=5)})
    for levels, outcome in (
        ((1e-12, 0.4, 1e-12), Outcome.REGRESSED),
        ((1e-12, 1e-12, 0.4), Outcome.INCONCLUSIVE),
    ):
        policy = AgainstPolicy(look_blocks=(4, 8, 16), levels=levels)
        assert only(look_at(blocks, gates(), policy, final=True)).outcome is outcome
        at_a_look = only(look_at(blocks[:4], gates(), policy, final=True))
        assert at_a_look.outcome is Outcome.INCONCLUSIVE


def test_what_is_undecided_after_the_last_look_is_inconclusive() -> None:
    """No test is measured for ever, and blocks beyond the last are not looked at."""
    draw = np.random.default_rng(3)
    logs = draw.normal(0, 0.3, (20, 4, 1))
    last = look_at(of_logs(logs[:16]), gates())
    longer = look_at(of_logs(logs), gates())

    assert last == longer
    assert last.undecided == ()
    assert (only(last).outcome, only(last).reason, only(last).cause) == (
        Outcome.INCONCLUSIVE,
        Reason.BLOCKS_DIFFER,
        Cause.BLOCKS_SPENT,
    )


def balanced(spread: float, effect: float = 0.0, count: int = 8) -> list[Block]:
    """Blocks whose differences are above and below an effect [log] by the same."""
    differences = [effect + spread * (-1) ** number for number in range(count)]
    return blocks_of({"t0": [(1.0, 1.0, *[math.exp(d)] * 2) for d in differences]})


def test_more_looks_leave_a_test_open() -> None:
    """What 16 blocks do not decide goes on where the policy has more of them."""
    draw = np.random.default_rng(3)
    logs = draw.normal(0, 0.2, (16, 4, 1))
    more = AgainstPolicy(
        look_blocks=(4, 8, 16, 32), levels=(0.003, 0.005, 0.004, 0.004)
    )
    blocks = of_logs(logs)

    assert only(look_at(blocks, gates())).outcome is Outcome.INCONCLUSIVE
    assert look_at(blocks, gates()).undecided == ()
    assert look_at(blocks, gates(), more).undecided == ("t0",)


@pytest.mark.parametrize(
    ("effect", "noise"), [(0.15, 0.25), (0.0, 0.15), (-0.15, 0.25)]
)
def test_the_blocks_wanted_would_decide(effect: float, noise: float) -> None:
    """Twice of them do, where the change stays what it is."""
    draw = np.random.default_rng(5)
    logs = draw.normal(0, noise, (16, 4, 1))
    logs[:, 2:] += math.log1p(effect) - (logs[:, 2:].mean() - logs[:, :2].mean())
    verdict = only(look_at(of_logs(logs), gates()))
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.change is not None
    wanted = blocks_wanted(verdict.change, 16, 0.05, 0.008)
    assert wanted is not None
    times = math.ceil(2 * wanted / 16)
    policy = AgainstPolicy(look_blocks=(16 * times,), levels=(0.008,))
    many = look_at(of_logs(np.tile(logs, (times, 1, 1))), gates(), policy)

    assert wanted > 16
    assert only(many).outcome is not Outcome.INCONCLUSIVE


@pytest.mark.parametrize("ends", [(None, None), (0.01, 0.09)])
def test_no_number_of_blocks_is_wanted_where_none_would_decide(
    ends: tuple[float | None, float | None],
) -> None:
    """Without an interval, and where the change is as large as the limit."""
    change = Change(
        effect=0.05,
        low=ends[0],
        high=ends[1],
        current=1.05,
        reference=1.0,
        session_count=16,
        run_count=32,
    )

    assert blocks_wanted(change, 16, 0.05, 0.008) is None


@pytest.mark.parametrize("effect", [0.35, 0.45])
def test_the_blocks_wanted_follow_a_wide_limit(effect: float) -> None:
    """A limit is a plain share, and rooms are on the scale on which it is decided."""
    limit = math.sqrt(2) - 1
    low, high = (math.expm1(math.log1p(effect) + d) for d in (-0.37, 0.37))
    change = Change(
        effect=effect,
        low=low,
        high=high,
        current=1 + effect,
        reference=1.0,
        session_count=4,
        run_count=8,
    )
    room, tail = math.log1p(limit) - math.log1p(effect), 0.05
    if effect > limit:
        room, tail = math.log1p(effect) - 0.005, 0.008
    width = 0.37 * stdtrit(6, 1 - tail) / stdtrit(6, 0.99)

    assert blocks_wanted(change, 4, limit, 0.008) == max(
        5, math.ceil(4 * (width / room) ** 2)
    )


def test_a_test_that_no_look_would_decide_is_given_up_after_eight_blocks() -> None:
    """It is inconclusive, with the limit that 16 blocks would decide about."""
    four, eight = (look_at(balanced(0.4, count=n), gates()) for n in (4, 8))
    verdict = only(eight)

    assert four.undecided == ("t0",)
    assert eight.undecided == ()
    assert (verdict.outcome, verdict.reason, verdict.cause) == (
        Outcome.INCONCLUSIVE,
        Reason.BLOCKS_DIFFER,
        Cause.BLOCKS_HOPELESS,
    )
    assert verdict.against is not None
    limit = verdict.against.decidable_limit
    assert limit is not None
    # of 16 blocks whose differences have a deviation of 0.43: 1.645 of 0.107 and more
    assert limit > 0.2
    # whoever takes it reads beside it what these blocks see
    assert verdict.change is not None
    assert limit == verdict.change.detectable_effect
    wider = look_at(balanced(0.4), gates(limit=limit))
    assert only(wider).outcome is Outcome.UNCHANGED
    # blocks that other tests needed do not reopen it
    assert look_at(balanced(0.4, count=16), gates()).verdicts == eight.verdicts


@pytest.mark.parametrize(
    ("blocks", "limit"),
    [
        (balanced(0.1), 0.05),  # the spread leaves hope
        (balanced(0.4, math.log(1.3)), 0.05),  # the effect does
        (balanced(0.4), None),  # there is nothing to decide
        (balanced(0.4, count=7), 0.05),
    ],
)
def test_a_test_is_not_given_up_where_blocks_may_decide(
    blocks: list[Block], limit: float | None
) -> None:
    """Nor where nothing is to be decided, or too few blocks say how much they differ."""
    (verdict,) = look_at(blocks, gates(limit=limit), final=True).verdicts

    assert verdict.cause is not Cause.BLOCKS_HOPELESS
    assert verdict.against is not None
    assert verdict.against.decidable_limit is None


def test_what_looks_slower_is_measured_first() -> None:
    """Where time is left for some of the open tests alone, it is for these."""
    noise = [1.04, 0.96, 1.03, 0.97]
    news = {"t0": 0.97, "t1": 1.05, "t2": 1.03}
    blocks = blocks_of(
        {t: [(1.0, x, new, new) for x in noise] for t, new in news.items()}
    )

    assert look_at(blocks, gates(3)).undecided == ("t1", "t2", "t0")


def test_a_test_that_had_time_for_few_blocks_is_short_of_them() -> None:
    """It is neither given up nor done with after as many blocks as others had."""
    four = balanced(0.4, count=4)
    others = [replace(block, runs=()) for block in balanced(0.4, count=16)[4:]]

    assert look_at([*four, *others[:4]], gates()).undecided == ("t0",)
    verdict = only(look_at([*four, *others], gates()))
    assert (verdict.outcome, verdict.reason, verdict.cause) == (
        Outcome.INCONCLUSIVE,
        Reason.TOO_FEW_BLOCKS,
        Cause.ENDED_EARLY,
    )


def test_what_was_decided_stays_decided() -> None:
    """A test that left after the first look has its verdict of then, with its blocks."""
    draw = np.random.default_rng(4)
    noisy = np.exp(draw.normal(0, 0.2, (8, 4))).tolist()
    four = look_at(blocks_of({"t0": steady(new=1.2), "t1": noisy[:4]}), gates(2))
    eight = look_at(blocks_of({"t0": steady(new=1.2), "t1": noisy}), gates(2))

    assert four.undecided == eight.undecided == ("t1",)
    assert four.verdicts[0] == eight.verdicts[0]
    back = [*steady(new=1.2), *steady(new=0.5)]
    turned = look_at(blocks_of({"t0": back, "t1": noisy}), gates(2))
    assert turned.verdicts[0] == four.verdicts[0]


def test_many_tests_share_the_level() -> None:
    """How many entered is fixed at the start, whoever left since."""
    draw = np.random.default_rng(8)
    values = np.exp(draw.normal(0, 0.04, (4, 4)))
    values[:, 2:] *= 1.25
    blocks = blocks_of({"t0": values.tolist()})
    alone = look_at(blocks, gates())
    several = look_at(blocks, gates(), pair_count=1000)

    assert only(alone).outcome is Outcome.REGRESSED
    assert only(several).outcome is Outcome.INCONCLUSIVE
    assert (alone.pair_count, several.pair_count) == (1, 1000)


def test_a_step_of_holm_is_gained_by_what_regressed_before() -> None:
    """Of two that entered, the second may have the whole level, but not before."""
    draw = np.random.default_rng(8)
    close = np.exp(draw.normal(0, 0.04, (8, 4)))
    close[:, 2:] *= 1.11
    both = blocks_of({"t0": steady(new=2.0), "t1": close.tolist()})
    never = AgainstPolicy(look_blocks=(4, 8), levels=(1e-7, 1e-9))
    beside = look_at(both, gates(2), never).verdicts[1].change
    assert beside is not None
    assert beside.p_worse is not None
    level = beside.p_worse * 1.5  # enough for one pair, not for two
    policy = AgainstPolicy(look_blocks=(4, 8), levels=(1e-7, level))

    _, second = look_at(both, gates(2), policy).verdicts
    assert second.outcome is Outcome.REGRESSED
    first, second = look_at(both, gates(2), policy, pair_count=3).verdicts
    assert first.outcome is Outcome.REGRESSED
    assert second.outcome is Outcome.INCONCLUSIVE
    calm = blocks_of({"t0": steady(), "t1": close.tolist()})
    first, second = look_at(calm, gates(2), policy).verdicts
    assert first.outcome is Outcome.UNCHANGED  # which gains nothing
    assert second.outcome is Outcome.INCONCLUSIVE


def test_what_nothing_gates_is_shown_and_never_waited_for() -> None:
    """It has no threshold, and no part in the level."""
    draw = np.random.default_rng(3)
    logs = draw.normal(0, 0.3, (4, 4, 1))
    look = look_at(of_logs(logs), gates(limit=None))
    verdict = only(look)

    assert look.undecided == ()
    assert look.pair_count == 0
    assert verdict.outcome is Outcome.UNCHANGED
    assert verdict.reason is Reason.WITHIN_NOISE
    assert verdict.threshold is None
    assert verdict.change is not None
    assert not verdict.decides
    same = look_at(blocks_of({"t0": [(1.0, 1.0, 1.0, 1.0)]}), gates(limit=None))
    assert only(same).reason is Reason.EQUAL


def test_a_metric_that_a_test_does_not_have_is_unmeasured() -> None:
    """Where it is gated by name: the time of a test without one is not asked for."""
    limits = {"t0": {"time": 0.05, "registers": 0.0, "dram.bytes": None}}
    look = look_at(blocks_of({"t0": steady()}), limits)

    assert [(v.metric, v.outcome) for v in look.verdicts] == [
        ("time", Outcome.UNCHANGED),
        ("registers", Outcome.UNMEASURED),
    ]
    counted = blocks_of({"t0": steady()}, metric="registers")
    assert [v.metric for v in look_at(counted, limits).verdicts] == ["registers"]


def test_blocks_of_nothing_leave_everything_open() -> None:
    """Before the first block, and where there never was one."""
    assert look_at([], gates(2)) == AgainstLook(undecided=("t0", "t1"))
    assert look_at([], gates(2), final=True) == AgainstLook()


# choices of kernels

GEMM = kernel_use("gemm")


def test_values_are_compared_within_equal_choices() -> None:
    """A tuner that draws a slower kernel anew in each process makes no change."""
    slow = {"a": 1.0, "b": 1.3}
    drawn = ["aabb", "abab", "abba", "baab", "aaab", "bbba", "aaba", "abbb"]
    values = [tuple(slow[c] for c in four) for four in drawn]
    choices = {"t0": [tuple(four) for four in drawn]}
    look = look_at(blocks_of({"t0": values}, choices=choices), gates())
    verdict = only(look)

    assert verdict.outcome is Outcome.UNCHANGED
    assert verdict.change is not None
    assert verdict.change.effect == pytest.approx(0, abs=1e-12)
    assert verdict.against is not None
    assert verdict.against.block_count == 7  # but aabb, whose sides share no choice
    assert verdict.against.null_fraction == pytest.approx(0, abs=1e-12)
    blind = look_at(blocks_of({"t0": values}), gates())
    assert blind.undecided == ("t0",)


def test_a_block_with_fewer_equal_choices_counts_for_less() -> None:
    """The mean is weighed by how many processes are behind a difference."""
    whole, half = (1.0, 1.0, 1.2, 1.2), (1.0, 9.0, 1.4, 7.0)
    choices = {"t0": [("a",) * 4, ("a", "b", "a", "c")] * 2}
    look = look_at(blocks_of({"t0": [whole, half] * 2}, choices=choices), gates())

    expected = (2 * math.log(1.2) + math.log(1.4)) / 3
    change = only(look).change
    assert change is not None
    assert change.effect == pytest.approx(math.expm1(expected))
    # two whole blocks and two halves are worth three
    squares = 2 * (math.log(1.2) - expected) ** 2 + (math.log(1.4) - expected) ** 2
    above = _tail(np.array([squares / 3]), 4, 0.0, worth=3)
    assert change.p_worse == pytest.approx(above(0, expected - NOISE), rel=1e-6)


def test_an_end_before_the_first_look_decides_nothing() -> None:
    """Three blocks are too few for any decision, whatever they show."""
    blocks = blocks_of({"t0": steady(new=2.0, count=3)})
    verdict = only(look_at(blocks, gates(), final=True))

    assert (verdict.outcome, verdict.reason, verdict.cause) == (
        Outcome.INCONCLUSIVE,
        Reason.TOO_FEW_BLOCKS,
        Cause.BEFORE_FIRST_LOOK,
    )
    assert verdict.evidence is not None
    assert verdict.evidence.least_count == 4


@pytest.mark.parametrize("count", [3, 4])
def test_what_ctrl_c_left_open_is_not_short_of_time(count: int) -> None:
    """A larger budget would not have ended it later."""
    noise = [1.04, 0.96, 1.03, 0.97][:count]
    blocks = blocks_of({"t0": [(1.0, x, 1.03, 1.03) for x in noise]})
    verdict = only(look_at(blocks, gates(), final=True, stopped=True))

    assert (verdict.reason, verdict.cause) == (Reason.TOO_FEW_BLOCKS, Cause.STOPPED)


@pytest.mark.parametrize("count", [4, 16])
def test_a_choice_frozen_per_side_is_never_regressed(count: int) -> None:
    """The difference is of the choice: it is said after the first look, and done."""
    blocks = blocks_of(
        {"t0": steady(new=1.5, count=count)},
        choices={"t0": [("a", "a", "b", "b")] * count},
        activity=ActivitySummary(kernels=(GEMM,), kernels_count=1),
    )
    look = look_at(blocks, gates())
    verdict = only(look)

    assert look.undecided == ()
    assert (verdict.outcome, verdict.reason, verdict.cause) == (
        Outcome.INCONCLUSIVE,
        Reason.OTHER_KERNEL,
        Cause.KERNEL_PER_SIDE,
    )
    assert verdict.evidence is not None
    assert verdict.evidence.kernels is not None
    old, new = verdict.evidence.kernels
    assert (old.choice, old.count, old.total_count) == ("a", 2 * count, 2 * count)
    assert old.names == new.names == ("gemm",)
    assert (new.choice, new.count, new.total_count) == ("b", 2 * count, 2 * count)
    assert verdict.change is None


def test_one_block_does_not_show_that_a_choice_is_frozen() -> None:
    """Two processes of each side may agree by chance."""
    blocks = blocks_of({"t0": steady(count=1)}, choices={"t0": [tuple("aabb")]})

    assert look_at(blocks, gates()).undecided == ("t0",)


def test_sides_that_never_agree_are_inconclusive_at_the_end() -> None:
    """Each of them changes its choice, so that they might still meet."""
    choices = {"t0": [tuple("abcd"), tuple("aacd"), tuple("abdd"), tuple("abcd")]}
    blocks = blocks_of({"t0": steady(new=1.5)}, choices=choices)

    assert look_at(blocks, gates()).undecided == ("t0",)
    verdict = only(look_at(blocks, gates(), final=True))
    assert (verdict.outcome, verdict.reason, verdict.cause) == (
        Outcome.INCONCLUSIVE,
        Reason.OTHER_KERNEL,
        None,
    )


# counts


def counts(
    old: Sequence[float], new: Sequence[float], metric: str = "registers"
) -> list[Block]:
    """One block of a count."""
    return blocks_of({"t0": [(*old, *new)]}, metric=metric)


@pytest.mark.parametrize(
    ("new", "outcome", "reason"),
    [
        (40.0, Outcome.UNCHANGED, Reason.EQUAL),
        (41.0, Outcome.UNCHANGED, Reason.WITHIN_NOISE),
        (48.0, Outcome.REGRESSED, Reason.SLOWER_THAN_LIMIT),
        (32.0, Outcome.IMPROVED, Reason.FASTER_THAN_LIMIT),
    ],
)
def test_counts_are_compared_once_by_equality(
    new: float, outcome: Outcome, reason: Reason
) -> None:
    """One block is enough; a tolerance is the user's."""
    look = look_at(counts((40, 40), (new, new)), {"t0": {"registers": 0.05}})
    verdict = only(look)

    assert look.undecided == ()
    assert look.pair_count == 0  # it has no part in the level
    assert (verdict.outcome, verdict.reason) == (outcome, reason)
    assert verdict.change is not None
    assert verdict.change.exact
    assert verdict.against is not None
    assert verdict.against.block_count == 1
    both = verdict.against.old_values, verdict.against.new_values
    assert both == ((40, 40), (new, new))


def test_a_count_that_nothing_gates_is_shown() -> None:
    """However far it moved."""
    look = look_at(counts((40, 40), (80, 80)), {"t0": {"registers": None}})

    assert only(look).outcome is Outcome.UNCHANGED
    assert only(look).change is not None


def test_a_count_that_varies_is_judged_as_noise() -> None:
    """A side that disagrees with itself is not exact."""
    look = look_at(counts((40, 41), (48, 48)), {"t0": {"registers": 0.05}})

    assert look.undecided == ("t0",)
    assert look.pair_count == 1


def test_something_of_nothing_is_beyond_every_limit() -> None:
    """No limit is a share of 0."""
    look = look_at(counts((0, 0), (3, 3)), {"t0": {"registers": 0.5}})

    assert only(look).outcome is Outcome.REGRESSED


@pytest.mark.parametrize(
    ("old", "new", "effect", "outcome"),
    [
        (-2.0, -1.0, 0.5, Outcome.REGRESSED),
        (-2.0, -3.0, -0.5, Outcome.IMPROVED),
        (-2.0, -2.0, 0.0, Outcome.UNCHANGED),
        (4.0, 0.0, -1.0, Outcome.IMPROVED),
    ],
)
def test_numbers_that_have_no_logarithm_are_shares_of_the_revision(
    old: float, new: float, effect: float, outcome: Outcome
) -> None:
    """As a loss below zero: the difference over the mean of the revision's values."""
    blocks = blocks_of(
        {"t0": [(old - 0.01, old + 0.01, new, new)] * 4},
        metric="loss",
    )
    verdict = only(look_at(blocks, {"t0": {"loss": 0.05}}))

    assert verdict.outcome is outcome
    assert verdict.change is not None
    assert verdict.change.effect == pytest.approx(effect)
    assert verdict.change.current == pytest.approx(new)
    assert verdict.change.reference == pytest.approx(old)


def test_a_limit_of_the_whole_is_a_bound_upwards_alone() -> None:
    """Nothing loses more than all of it."""
    blocks = blocks_of({"t0": steady(new=0.01)})

    assert only(look_at(blocks, gates(limit=1.5))).outcome is Outcome.UNCHANGED
    assert only(look_at(blocks, gates(limit=0.9))).outcome is Outcome.IMPROVED


# what a side does not have


@pytest.mark.parametrize(
    ("values", "cause"),
    [
        ((None, None, 1.0, 1.0), Cause.OLD_SIDE),
        ((1.0, 1.0, None, None), Cause.NEW_SIDE),
        ((None, None, None, None), Cause.BOTH_SIDES),
    ],
)
def test_a_test_that_one_side_cannot_run_is_a_reason_and_no_verdict(
    values: tuple[float | None, ...], cause: Cause
) -> None:
    """It is done at once, and its last lines say why."""
    sides = [s for s, v in zip(Side, (values[0], values[2]), strict=True) if v is None]
    blocks = blocks_of(
        {"t0": [values]}, failures={s: {"t0": f"E {s.value}\nend"} for s in sides}
    )
    look = look_at(blocks, gates())
    verdict = only(look)

    assert look.undecided == ()
    assert (verdict.outcome, verdict.reason, verdict.cause) == (
        Outcome.INCOMPARABLE,
        Reason.SIDE_WITHOUT_VALUE,
        cause,
    )
    assert verdict.evidence is not None
    lines = [line for side in sides for line in (f"E {side.value}", "end")]
    assert verdict.evidence.lines == tuple(lines)


def test_a_test_behind_one_that_ended_its_processes_is_not_to_blame() -> None:
    """The evidence names the one that is; a failure of its own in any process counts."""
    failures = {side: {"t0": "it hung in t9"} for side in Side}
    (block,) = blocks_of({"t0": [(None,) * 4]}, failures=failures)
    behind = replace(
        block,
        runs=tuple(
            replace(run, ended_in="t9", not_reached=frozenset({"t0"}))
            for run in block.runs
        ),
    )
    first, *others = behind.runs
    failed = replace(first, ended_in="", not_reached=frozenset())
    verdict = only(look_at([behind], gates()))
    own = only(look_at([replace(block, runs=(failed, *others))], gates()))

    assert verdict.cause is Cause.NOT_REACHED
    assert verdict.evidence is not None
    assert verdict.evidence.ended_in == "t9"
    assert own.cause is Cause.BOTH_SIDES


def test_what_never_ran_on_both_sides_at_once_says_why() -> None:
    """As a fixture of which one process at a time can have the port: no other kernel."""
    values = [(1.0, None, None, None), (None, None, 1.2, None)] * 2
    failures = {side: {"t0": "E Address already in use"} for side in Side}
    look = look_at(blocks_of({"t0": values}, failures=failures), gates())
    verdict = only(look)

    assert look.undecided == ()
    assert (verdict.outcome, verdict.cause) == (
        Outcome.INCOMPARABLE,
        Cause.NEVER_TOGETHER,
    )
    assert verdict.evidence is not None
    assert verdict.evidence.lines == ("E Address already in use",) * 2


def test_a_process_that_gave_nothing_does_not_count() -> None:
    """The others of its block do, for less."""
    values = [*steady(new=1.2, count=3), (1.0, None, 1.2, 1.2)]
    blocks = blocks_of({"t0": values}, failures={Side.OLD: {"t0": "flaky"}})
    verdict = only(look_at(blocks, gates()))

    assert verdict.outcome is Outcome.REGRESSED
    assert verdict.against is not None
    assert verdict.against.block_count == 4
    assert len(verdict.against.old_values) == 7


def test_what_cannot_be_measured_here_is_unmeasured() -> None:
    """On both sides alike; on one side alone it has nothing to be compared with."""
    gap = Unmeasured(
        metric="time", code=GapCode.NO_DEVICE, reason="no GPU", remedy="use one"
    )
    lacks = record(key=RecordKey(test_id="t0"), unmeasured=(gap,))
    blocks = blocks_of({"t0": steady(count=1)})
    runs = tuple(replace(run, records=(lacks,)) for run in blocks[0].runs)
    both = only(look_at([replace(blocks[0], runs=runs)], gates()))
    half = (*blocks[0].runs[:2], *runs[2:])
    one = only(look_at([replace(blocks[0], runs=half)], gates()))

    assert (both.outcome, both.reason) == (Outcome.UNMEASURED, Reason.NOT_MEASURED)
    assert both.evidence is not None
    assert both.evidence.gap == gap
    assert one.cause is Cause.NEW_SIDE
    assert one.evidence is not None
    assert one.evidence.lacking == (gap,)


@pytest.mark.parametrize("side", Side)
def test_a_void_side_is_inconclusive(side: Side) -> None:
    """Whichever it is; single void processes are left out."""
    void = Void(code=VoidCode.CLOCK_DRIFT, reason="the clock drifted", remedy="wait")
    blocks = blocks_of({"t0": steady(new=1.2)})

    def voided(block: Block, *, first: bool) -> Block:
        runs = tuple(
            replace(run, records=tuple(replace(r, void=void) for r in run.records))
            if run.side is side and (run.index == 0 or not first)
            else run
            for run in block.runs
        )
        return replace(block, runs=runs)

    verdict = only(look_at([voided(b, first=False) for b in blocks], gates()))
    assert (verdict.outcome, verdict.reason) == (Outcome.INCONCLUSIVE, Reason.VOID)
    assert verdict.evidence is not None
    assert verdict.evidence.gap is not None
    assert verdict.evidence.gap.reason == "the clock drifted"
    partly = only(look_at([voided(b, first=True) for b in blocks], gates()))
    assert partly.outcome is Outcome.REGRESSED
    assert partly.against is not None
    counts_of = len(partly.against.old_values), len(partly.against.new_values)
    assert counts_of == ((4, 8) if side is Side.OLD else (8, 4))


def test_values_of_other_conditions_are_not_compared() -> None:
    """As where the plugin itself measures in another way on each side."""
    blocks = blocks_of({"t0": steady()})

    def with_method(method: str, side: Side, block: Block) -> Block:
        facts = {"host-time": {"method": method}}
        runs = tuple(
            replace(run, records=tuple(replace(r, facts=facts) for r in run.records))
            if run.side is side
            else run
            for run in block.runs
        )
        return replace(block, runs=runs)

    apart = [
        with_method("m/2", Side.NEW, with_method("m/1", Side.OLD, b)) for b in blocks
    ]
    verdict = only(look_at(apart, gates()))
    assert (verdict.outcome, verdict.reason) == (
        Outcome.INCOMPARABLE,
        Reason.FINGERPRINT_DIFFERS,
    )
    assert verdict.evidence is not None
    assert verdict.evidence.differences == {"method": ("m/1", "m/2")}
    assert verdict.baseline is None
    policy = AgainstPolicy(across=frozenset({"method"}))
    assert only(look_at(apart, gates(), policy)).outcome is Outcome.UNCHANGED


@pytest.mark.parametrize("steady_sides", [True, False])
def test_other_parameters_on_a_side_are_not_compared(*, steady_sides: bool) -> None:
    """Where the processes of a side have other ones themselves, they say nothing."""
    numbers = itertools.count()

    def digest(side: Side) -> str:
        return side.value if steady_sides else f"{side.value} {next(numbers)}"

    blocks = [
        replace(
            block,
            runs=tuple(
                replace(
                    run,
                    records=tuple(
                        replace(r, parameters_digest=digest(run.side))
                        for r in run.records
                    ),
                )
                for run in block.runs
            ),
        )
        for block in blocks_of({"t0": steady()})
    ]
    verdict = only(look_at(blocks, gates()))
    across = AgainstPolicy(across=frozenset({"parameters"}))
    assert only(look_at(blocks, gates(), across)).outcome is Outcome.UNCHANGED
    if not steady_sides:
        assert verdict.outcome is Outcome.UNCHANGED
        assert len(unsteady_parameters(blocks)) == 1
        return
    assert verdict.outcome is Outcome.INCOMPARABLE
    assert verdict.evidence is not None
    assert verdict.evidence.differences == {"parameters": ("old", "new")}
    assert not unsteady_parameters(blocks)


def test_the_best_source_that_both_sides_have_is_compared() -> None:
    """Times of a device are not held against times of the host."""
    blocks = blocks_of({"t0": steady(new=1.2)})

    def with_cupti(block: Block, *, both: bool, alone: bool = False) -> Block:
        extra = estimate(5.0, source="cupti")
        runs = tuple(
            replace(
                run,
                records=tuple(
                    replace(r, estimates=(extra,) if alone else (*r.estimates, extra))
                    for r in run.records
                ),
            )
            if both or run.side is Side.NEW
            else run
            for run in block.runs
        )
        return replace(block, runs=runs)

    device = only(look_at([with_cupti(b, both=True) for b in blocks], gates()))
    host = only(look_at([with_cupti(b, both=False) for b in blocks], gates()))
    none = only(
        look_at([with_cupti(b, both=False, alone=True) for b in blocks], gates())
    )
    assert device.outcome is Outcome.UNCHANGED
    assert device.against is not None
    assert device.against.new_values == (5.0,) * 8
    assert host.outcome is Outcome.REGRESSED
    assert (none.outcome, none.reason) == (Outcome.INCOMPARABLE, Reason.OTHER_SOURCE)


@pytest.mark.parametrize("side", list(Side))
@pytest.mark.parametrize(
    ("lost", "source"),
    [({0}, "events"), ({0, 1, 2, 3}, "events"), ({0, 1, 2, 3, 4}, "host")],
)
def test_a_process_may_lose_a_source(lost: set[int], source: str, side: Side) -> None:
    """Where half of the blocks keep it, it is compared, by the facts of those."""
    blocks = blocks_of({"t0": steady(new=1.2, count=8)})

    def with_events(block: Block) -> Block:
        runs = tuple(
            run
            if run.side is side and block.index in lost
            else replace(run, records=tuple(with_device(r) for r in run.records))
            for run in block.runs
        )
        return replace(block, runs=runs)

    def with_device(given: Record) -> Record:
        extra = estimate(5.0, source="events")
        facts = {"device-time": {"gpu_name": "H200"}}
        return replace(given, estimates=(*given.estimates, extra), facts=facts)

    verdict = only(look_at([with_events(b) for b in blocks], gates()))
    assert verdict.estimate is not None
    assert verdict.estimate.source == source
    expected = Outcome.UNCHANGED if source == "events" else Outcome.REGRESSED
    assert verdict.outcome is expected


def test_a_test_whose_source_differs_is_incomparable() -> None:
    """Its values would be of other work."""
    verdict = changed_test(RecordKey(test_id="a.py::t"))

    assert verdict.key == RecordKey(test_id="a.py::t")
    assert (verdict.outcome, verdict.reason) == (
        Outcome.INCOMPARABLE,
        Reason.TEST_CHANGED,
    )
    assert verdict.against is not None


# the null arm


def test_the_same_code_is_compared_with_itself() -> None:
    """Of all blocks together: 1.96 standard errors of the differences of one side."""
    draw = np.random.default_rng(11)
    logs = draw.normal(0, 0.03, (16, 4, 3))
    logs[:, 2:] += math.log(3)  # a change of the code is no part of it
    look = look_at(of_logs(logs), gates(3))
    apart = np.concatenate([logs[:, 0] - logs[:, 1], logs[:, 2] - logs[:, 3]])

    nulls = []
    for test, verdict in enumerate(look.verdicts):
        assert verdict.against is not None
        count = verdict.against.block_count
        rows = [*range(count), *range(16, 16 + count)]
        square = (apart[rows, test] ** 2).mean()
        expected = math.expm1(1.96 * math.sqrt(square / 2 / count))
        assert verdict.against.null_fraction == pytest.approx(expected)
        nulls.append(expected)
    assert look.null_fraction == pytest.approx(sorted(nulls)[1])


@pytest.mark.parametrize("metric", ["time", "launches.count"])
@pytest.mark.parametrize(
    ("then", "now", "expected"),
    [("a", "a", Sameness.SAME), ("a", "b", Sameness.CHANGED), ("a", None, None)],
)
def test_both_sides_tell_the_identity_of_their_machine_code(
    metric: str, then: str, now: str | None, expected: Sameness | None
) -> None:
    """A store is not needed for it, because each process sends its own."""
    names = {Side.OLD: then, Side.NEW: now}
    digests = {
        side: None if n is None else str(CodeIdentity(code=n, shape="s", data="d"))
        for side, n in names.items()
    }
    blocks = [
        replace(
            block,
            runs=tuple(
                replace(
                    run,
                    records=tuple(
                        replace(each, code_digest=digests[run.side])
                        for each in run.records
                    ),
                )
                for run in block.runs
            ),
        )
        for block in blocks_of({"t0": steady(new=1.5)}, metric=metric)
    ]
    verdict = only(look_at(blocks, {"t0": {metric: 0.05}}))

    assert verdict.outcome is Outcome.REGRESSED
    assert verdict.against is not None
    assert verdict.against.code is expected


def test_19_of_20_comparisons_of_the_same_code_lie_within_the_null() -> None:
    """Which is what its figure promises."""
    draw = np.random.default_rng(12)
    policy = AgainstPolicy(look_blocks=(8,), levels=(0.01,))
    logs = draw.normal(0, 0.03, (8, 4, 400))
    inside = 0
    for verdict in look_at(of_logs(logs), gates(400), policy).verdicts:
        assert verdict.change is not None
        assert verdict.change.effect is not None
        assert verdict.against is not None
        assert verdict.against.null_fraction is not None
        inside += abs(verdict.change.effect) <= verdict.against.null_fraction
    assert 0.91 < inside / 400 < 0.98


def test_one_process_a_side_has_no_null() -> None:
    """Nothing of one side differs; the change is judged all the same."""
    values = [(1.0, None, 1.2, None), (1.001, None, 1.2, None)] * 2
    verdict = only(look_at(blocks_of({"t0": values}), gates()))

    assert verdict.against is not None
    assert verdict.against.null_fraction is None
    assert verdict.outcome is Outcome.REGRESSED


# the machine


def moved(by: Sequence[float], values: Sequence[float]) -> tuple[float, ...]:
    """Values of processes that the machine moved."""
    return tuple(v * m for v, m in zip(values, by, strict=True))


MACHINE = [(1.0, 1.3, 1.9, 1.1), (1.9, 1.1, 1.0, 1.3)] * 4


def test_what_the_references_did_is_taken_out() -> None:
    """A process on a slow core is slow for all; without them it is noise."""
    own = steady(new=1.1, count=8, noise=0.004)
    values = [moved(by, four) for by, four in zip(MACHINE, own, strict=False)]
    references = {name: [moved(by, (1,) * 4) for by in MACHINE] for name in NAMES}
    seen = only(look_at(blocks_of({"t0": values}, references=references), gates()))
    blind = only(look_at(blocks_of({"t0": values}), gates()))

    assert seen.outcome is Outcome.REGRESSED
    assert seen.change is not None
    assert seen.change.effect == pytest.approx(0.1, abs=0.02)
    assert blind.outcome is Outcome.INCONCLUSIVE
    assert seen.against is not None
    assert blind.against is not None
    # what the machine did is no part of what the same code differs by
    assert (seen.against.null_fraction or 1.0) < (blind.against.null_fraction or 0) / 5


@pytest.mark.parametrize("lacking", ["a workload", "a process", "another class"])
def test_fewer_than_three_references_say_nothing(lacking: str) -> None:
    """Nor those of another class, nor of a block in which a process lacks them."""
    own = steady(new=1.1, count=4)
    values = [moved(by, four) for by, four in zip(MACHINE, own, strict=False)]
    several: dict[str, list[tuple[float | None, ...]]]
    several = {name: [moved(by, (1,) * 4) for by in MACHINE] for name in NAMES}
    fields: dict[str, Any] = {}
    if lacking == "a workload":
        several.pop("copy")
    elif lacking == "a process":
        several["copy"] = [(None, *four[1:]) for four in several["copy"]]
    else:
        fields["bound_class"] = BoundClass.MEMORY
    with_some = look_at(
        blocks_of({"t0": values}, references=several, **fields), gates()
    )
    without = look_at(blocks_of({"t0": values}, **fields), gates())

    assert with_some == without


def test_a_rate_falls_where_times_grow() -> None:
    """What the machine did to a rate is taken out with the other sign."""
    own = steady(new=1.1, count=8, noise=0.004)
    values = [
        tuple(v / m for v, m in zip(four, by, strict=True))
        for by, four in zip(MACHINE, own, strict=False)
    ]
    references = {name: [moved(by, (1,) * 4) for by in MACHINE] for name in NAMES}
    blocks = blocks_of({"t0": values}, references=references, metric="throughput")
    verdict = only(look_at(blocks, {"t0": {"throughput": 0.05}}))

    assert verdict.outcome is Outcome.IMPROVED
    assert verdict.change is not None
    assert verdict.change.effect == pytest.approx(0.1, abs=0.02)


# properties


@st.composite
def suites(draw: st.DrawFn) -> Floats:
    """Logarithms of blocks [block, process, test]."""
    shape = (draw(st.sampled_from([4, 8, 16])), 4, draw(st.integers(1, 3)))
    seed, spread = draw(st.integers(0, 999)), draw(st.sampled_from([0.001, 0.02, 0.2]))
    logs = np.random.default_rng(seed).normal(0, spread, shape)
    logs[:, 2:, 0] += draw(st.sampled_from([-0.3, -0.06, 0.0, 0.04, 0.06, 0.3]))
    return logs


MIRROR = {Outcome.REGRESSED: Outcome.IMPROVED, Outcome.IMPROVED: Outcome.REGRESSED}


@settings(max_examples=8, deadline=None)
@given(suites())
def test_exchanged_sides_mirror_the_change(logs: Floats) -> None:
    """But where the effect lies so near the limit that +5 % and its inverse differ."""
    tests = logs.shape[2]
    there = look_at(of_logs(logs), gates(tests))
    back = look_at(of_logs(logs[:, ::-1]), gates(tests))
    for one, other in zip(there.verdicts, back.verdicts, strict=True):
        assert one.change is not None
        assert other.change is not None
        assert one.against is not None
        assert other.against is not None
        if one.against.block_count == other.against.block_count:
            assert one.change.p_worse == pytest.approx(other.change.p_better)
        effect = abs(one.change.effect or 0.0)
        if effect > 0.1 and one.outcome in MIRROR:
            assert other.outcome is MIRROR[one.outcome]


@settings(max_examples=8, deadline=None)
@given(suites(), st.floats(0.01, 1000), st.randoms(use_true_random=False))
def test_neither_units_nor_order_count(
    logs: Floats, factor: float, random: Any
) -> None:
    """Of blocks of one look, of processes and of tests; drift between blocks cancels."""
    tests = logs.shape[2]
    plain = look_at(of_logs(logs[:4]), gates(tests))
    drift = np.random.default_rng(1).normal(0, 1, (4, 1, 1)) + math.log(factor)
    order = random.sample(range(4), 4)
    shuffled = (logs[:4] + drift)[order][:, [1, 0, 3, 2]]
    blocks = [replace(b, runs=b.runs[::-1]) for b in of_logs(shuffled)]
    other = look_at(blocks, gates(tests))

    assert other.undecided == plain.undecided
    for one, two in zip(plain.verdicts, other.verdicts, strict=True):
        assert one.outcome is two.outcome
        assert one.change is not None
        assert two.change is not None
        assert one.change.effect == pytest.approx(two.change.effect, abs=1e-9)


@settings(max_examples=8, deadline=None)
@given(suites())
def test_looking_after_each_block_changes_nothing(logs: Floats) -> None:
    """A decision, once made, is the same whenever one looks."""
    tests = logs.shape[2]
    made: dict[str, Verdict] = {}
    for count in range(1, len(logs) + 1):
        look = look_at(of_logs(logs[:count]), gates(tests))
        for verdict in look.verdicts:
            test_id = verdict.key.test_id
            if test_id in made:
                assert verdict == replace(made[test_id], estimate=verdict.estimate)
            elif test_id not in look.undecided:
                made[test_id] = verdict
