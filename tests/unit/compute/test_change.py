"""The rules of compute/change: effects, intervals, probabilities, power."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.compute.change import (
    changes,
    detectable_effects,
    exact_change,
    holm,
    is_exact,
    usual_spreads,
)
from pytest_gpuperf.compute.spread import about_trend, usual_spread
from pytest_gpuperf.model.change import Change, Comparison, Sureness, TimeBase
from pytest_gpuperf.model.metric import Better
from unit.compute.comparing import THEN, comparison, known

NOISE = math.log1p(0.005)


def change(now: Sequence[float], then: Sequence[float] = THEN, **fields: Any) -> Change:
    """The change of one comparison alone."""
    level = fields.pop("level", Sureness())
    return found(comparison(now, then, **fields), level=level)[0]


def found(*comparisons: Comparison, level: Sureness | None = None) -> list[Change]:
    """The changes of some comparisons."""
    several = changes(comparisons, level=level or Sureness())
    return [each for each in several if each is not None]


def test_effect_interval_and_probabilities_are_those_of_the_mixture() -> None:
    """d +- its reach on a log scale; p against the noise threshold."""
    logs = [math.log(v) for v in THEN]
    difference = math.log(1.1) - statistics.fmean(logs)
    own = statistics.variance(logs)
    usual = usual_spread([(own, 4)], TimeBase.HOST)
    mixture = usual.mixture(4)
    half = mixture.reach(0.01, own, ratio=1.2)
    seen = NOISE + mixture.reach(0.002, own, ratio=1.2)
    seen += mixture.reach(0.1, own, ratio=1.2)
    one = change([1.1], level=Sureness(alpha=0.01, pair_count=5))

    assert one.effect == pytest.approx(math.expm1(difference))
    assert one.low == pytest.approx(math.expm1(difference - half))
    assert one.high == pytest.approx(math.expm1(difference + half))
    assert one.p_worse == pytest.approx(
        mixture.beyond(difference - NOISE, own, ratio=1.2)
    )
    assert one.p_better == pytest.approx(
        mixture.beyond(-difference - NOISE, own, ratio=1.2)
    )
    assert one.detectable_effect == pytest.approx(math.expm1(seen))
    assert one.session_spread == pytest.approx(usual.deviation)
    assert one.current == pytest.approx(1.1)
    assert one.reference == pytest.approx(statistics.geometric_mean(THEN))
    assert (one.session_count, one.run_count, one.exact) == (5, 1, False)


def test_what_is_seen_is_beyond_the_limit() -> None:
    """A baseline that sees 1 % finds no change of 2 % where 5 % are allowed."""
    exact = [1.0] * 10
    without = change([1.0], exact, limit=None)
    small = change([1.0], exact, limit=0.0)
    wide = change([1.0], exact, limit=0.5)

    assert without.detectable_effect == small.detectable_effect
    assert known(small.detectable_effect) < 0.1
    assert known(wide.detectable_effect) > 0.5


def test_more_pairs_make_a_change_harder_to_see() -> None:
    """The detectable effect is of the whole run; the interval shown is one pair's."""
    one = change([1.1])
    many = change([1.1], level=Sureness(pair_count=200))

    assert known(many.detectable_effect) > known(one.detectable_effect)
    assert (many.low, many.p_worse) == (one.low, one.p_worse)


def suite_of(count: int, sessions: int) -> list[Comparison]:
    """Tests whose sessions differ by 2 %."""
    draw = random.Random(12)
    return [
        comparison(
            [1.0], [draw.lognormvariate(0, 0.02) for _ in range(sessions)], limit=0.05
        )
        for _ in range(count)
    ]


def test_usual_spread_of_many_sessions_is_about_their_trends() -> None:
    """The variance about a line through ten sessions has eight degrees of freedom."""
    suite = suite_of(4, sessions=10)
    logs = [[math.log(s.run_values[0]) for s in each.stored] for each in suite]
    usual = usual_spread([(about_trend(of) / 8, 8) for of in logs], TimeBase.HOST)

    for one in found(*suite):
        assert one.session_spread == pytest.approx(usual.deviation, rel=1e-9)


@pytest.mark.parametrize("count", [4, 40])
def test_what_is_seen_is_known_without_a_current_value(count: int) -> None:
    """It is that of the decision, in a suite whose tests are looked up in tables, too."""
    suite = suite_of(count, 3)
    decided = [c.detectable_effect for c in found(*suite)]

    assert detectable_effects(suite, level=Sureness()) == pytest.approx(
        decided, rel=1e-4
    )


def test_more_sessions_are_foretold() -> None:
    """Sessions like the stored ones: what five show is foretold of three, on average."""
    three, five = suite_of(300, 3), suite_of(300, 5)
    foretold = detectable_effects(three, level=Sureness(), more_sessions=2)
    shown, now = (detectable_effects(s, level=Sureness()) for s in (five, three))
    middle = statistics.median(map(known, shown))

    assert statistics.median(map(known, foretold)) == pytest.approx(middle, rel=0.1)
    assert statistics.median(map(known, now)) > 1.1 * middle
    assert all(known(a) < known(b) for a, b in zip(foretold, now, strict=True))


@pytest.mark.parametrize(
    "one",
    [
        comparison([1.0], [1.0]),
        comparison([1.0], [1.0, 1.0], exact=True),
        comparison([0.0], [1.0, -1.0]),
    ],
    ids=["one session", "a count", "relative to nothing"],
)
def test_nothing_is_foretold_of_what_shows_nothing(one: Comparison) -> None:
    """Of one session nobody knows how much it differs from others."""
    assert detectable_effects([one], level=Sureness(), more_sessions=2) == (None,)


def test_a_session_is_the_mean_of_its_processes() -> None:
    """Runs are averaged on the log scale, first of all."""
    assert change([1.0, 1.21]).current == pytest.approx(1.1)


def test_one_session_shows_an_interval_and_does_not_say_what_it_sees() -> None:
    """What is known of machines makes it; nothing is promised."""
    one = change([1.1], [1.0])

    assert one.effect == pytest.approx(0.1)
    assert known(one.low) < -0.1
    assert known(one.high) > 0.4
    assert known(one.p_worse) > 0.01
    assert one.detectable_effect is None


def test_of_one_session_each_the_quiet_tests_say_what_is_usual() -> None:
    """A test that is slower is no part of the evidence of its own spread."""
    draw = random.Random(5)
    calm = [
        comparison([draw.lognormvariate(0, 0.005)], [draw.lognormvariate(0, 0.005)])
        for _ in range(30)
    ]
    slow = comparison([2.0], [1.0])
    first, *_ = found(slow, *calm)
    alone = change([2.0], [1.0])

    assert known(first.p_worse) < 0.01 * known(alone.p_worse)
    assert known(first.session_spread) < 0.02


def test_a_reference_is_taken_to_be_steadier_than_a_test() -> None:
    """Of one stored session: its variance counts four times."""
    slow = comparison([2.0], [1.0])
    near = [
        comparison([1.02], [1.0]),
        comparison([0.98], [1.0]),
        comparison([1.0], [1.0]),
    ]
    (by_tests, *_), (by_references,) = (
        changes([slow, *near], level=Sureness()),
        changes([slow], level=Sureness(), references=near),
    )

    assert by_tests is not None
    assert by_references is not None
    assert known(by_tests.session_spread) < known(by_references.session_spread)


def test_a_device_is_steadier_than_a_host() -> None:
    """Where few sessions say little, what is known of machines decides."""
    then = [1.0, 1.001, 0.999]
    host = change([1.02], then)
    device = change([1.02], then, clock=TimeBase.DEVICE)

    assert known(device.p_worse) < known(host.p_worse)
    assert known(device.detectable_effect) < known(host.detectable_effect)


def test_more_processes_now_narrow_the_interval() -> None:
    """Five processes that differ as the sessions do are known better than one."""
    one = change([1.1])
    five = change([1.08, 1.09, 1.1, 1.11, 1.12], fresh=True)
    equal = change([1.1] * 5, fresh=True)

    assert known(five.low) > known(one.low)
    # sessions differ otherwise
    assert known(equal.low) == pytest.approx(known(one.low))
    # the next five may differ less: what is seen is not promised by these
    assert known(five.detectable_effect) >= known(one.detectable_effect)


def test_a_session_is_no_steadier_than_its_processes() -> None:
    """Sessions that agree by luck do not make five processes that differ significant."""
    exact = [1.0] * 5
    calm = change([1.2] * 5, exact, fresh=True)
    wild = change([0.9, 1.6, 1.2, 1.0, 1.4], exact, fresh=True)

    assert known(wild.p_worse) > 100 * known(calm.p_worse)


def test_the_part_of_processes_is_pooled_over_a_group() -> None:
    """One test whose sessions hardly differ borrows no narrow interval from its luck."""
    lucky = comparison([1.08, 1.1, 1.12], [1.0, 1.001, 0.999], fresh=True)
    others = [
        comparison([1.1, 1.1, 1.1], [1.0, 1.1, 0.9], fresh=True) for _ in range(5)
    ]
    alone, among = found(lucky)[0], found(lucky, *others)[0]

    assert known(among.high) - known(among.low) > known(alone.high) - known(alone.low)


def test_higher_is_better_turns_worse_around() -> None:
    """A higher throughput is better: the same numbers, the other way around."""
    time = change([1.1])
    throughput = change([1.1], better=Better.HIGHER)

    assert (throughput.p_worse, throughput.p_better) == (time.p_better, time.p_worse)
    assert throughput.effect == time.effect


positive = st.floats(0.5, 2.0)
decades = st.floats(-3, 3).map(lambda power: 10.0**power)
several = st.lists(positive, min_size=1, max_size=6)


@given(several, several)
def test_inverting_every_value_swaps_worse_and_better(
    now: list[float], then: list[float]
) -> None:
    """1/time is as much worse as time is better."""
    plain = change(now, then)
    inverse = change([1 / v for v in now], [1 / v for v in then])

    assert inverse.p_worse == pytest.approx(plain.p_better, rel=1e-6, abs=1e-12)
    assert 1 + known(inverse.effect) == pytest.approx(1 / (1 + known(plain.effect)))


@given(several, st.lists(decades, min_size=1, max_size=6), st.floats(1e-9, 1e9))
def test_the_unit_does_not_matter(
    now: list[float], then: list[float], factor: float
) -> None:
    """Effects and probabilities have no unit, over six decades too."""
    plain = change(now, then)
    scaled = change([factor * v for v in now], [factor * v for v in then])

    if scaled.left_out == plain.left_out:  # rounding decides at the border
        assert scaled.effect == pytest.approx(plain.effect, rel=1e-6, abs=1e-9)
        assert scaled.p_worse == pytest.approx(plain.p_worse, rel=1e-4, abs=1e-9)


@given(several, st.lists(decades, min_size=2, max_size=6), st.floats(1.0, 2.0))
def test_slower_is_never_less_surely_worse(
    now: list[float], then: list[float], factor: float
) -> None:
    """Making the current values worse never raises the p-value."""
    plain = change(now, then)
    slower = change([factor * v for v in now], then)
    assert known(slower.p_worse) <= known(plain.p_worse) + 1e-12


@given(st.permutations(range(6)))
def test_the_order_of_tests_does_not_matter(order: list[int]) -> None:
    """Each gets its own change, with as many sessions as it has."""
    draw = random.Random(6)
    pairs = [
        comparison(
            [draw.lognormvariate(0, 0.05)],
            [draw.lognormvariate(0, 0.05) for _ in range(2 + n % 4)],
            shift_group="host time",
        )
        for n in range(6)
    ]
    plain, shuffled = found(*pairs), found(*(pairs[n] for n in order))

    for change_, n in zip(shuffled, order, strict=True):
        assert change_.p_worse == pytest.approx(plain[n].p_worse, rel=1e-9)
        assert change_.effect == pytest.approx(plain[n].effect)


@pytest.mark.parametrize("shifted", [False, True])
def test_a_large_suite_is_judged_from_a_table(shifted: bool) -> None:
    """Within 2 % of what each test by itself would be told."""
    draw = random.Random(7)
    pairs = [
        comparison(
            [draw.lognormvariate(0, 0.02)],
            [draw.lognormvariate(0, 0.02 * 2 ** (n % 5)) for _ in range(2 + n % 3)],
            limit=0.05,
            # what was taken out is not known equally well for any two tests
            core_shift=0.02 if shifted else None,
            core_variance=draw.lognormvariate(-8, 2) if shifted else 0.0,
        )
        for n in range(300)
    ]
    level = Sureness(alpha=0.005, pair_count=300)
    large = changes(pairs, level=level)
    marks = [[m == n for m in range(300)] for n in range(12)]
    for n, judged in enumerate(marks):
        exact = changes(pairs, level=level, judged=judged)[n]
        assert exact is not None
        one = large[n]
        assert one is not None
        assert one.p_worse == pytest.approx(exact.p_worse)
        assert math.log1p(known(one.high)) == pytest.approx(
            math.log1p(known(exact.high)), rel=0.02, abs=1e-3
        )
        assert math.log1p(known(one.detectable_effect)) == pytest.approx(
            math.log1p(known(exact.detectable_effect)), rel=0.02
        )


def test_only_what_is_asked_for_is_answered() -> None:
    """The others say what is usual all the same."""
    pairs = [comparison([1.1], THEN), comparison([64.0], [64.0], exact=True)]
    first = changes(pairs, level=Sureness(), judged=[True, False])
    second = changes(pairs, level=Sureness(), judged=[False, True])

    assert first[0] == change([1.1])
    assert (first[1], second[0]) == (None, None)
    assert second[1] == exact_change(pairs[1])


def test_what_controls_did_is_taken_out() -> None:
    """Those that are no controls have no part in it."""
    moves = (1.0, 1.1, 0.9, 1.05, 0.95)
    pairs = [
        comparison([now], moves, shift_group="host time", limit=0.05)
        for now in (1.3, 1.2, 1.2, 1.2, 9.0)
    ]
    controls = [False, True, True, True, False]
    one, *_ = changes(pairs, level=Sureness(), controls=controls)

    assert one is not None
    assert one.machine_shift == pytest.approx(0.2, abs=0.02)
    assert one.effect == pytest.approx(1.3 / 1.2 - 1, abs=0.02)
    assert one.current == pytest.approx(1.3)


def test_a_value_that_does_not_fit_is_no_part_of_the_reference() -> None:
    """And its session is named."""
    draw = random.Random(8)
    others = [
        comparison([1.0], [draw.lognormvariate(0, 0.01) for _ in range(5)])
        for _ in range(20)
    ]
    one, *_ = found(comparison([1.5], (1.0, 1.01, 3.0, 0.99, 1.0)), *others)

    assert (one.left_out, one.session_count) == ("s2", 4)
    assert one.reference == pytest.approx(1.0, abs=0.01)
    assert known(one.p_worse) < 1e-4


def test_identical_values_leave_no_doubt_about_a_large_change() -> None:
    """And a thousand of them none about a small one."""
    alone = change([1.5], [1.0] * 5)
    calm = [comparison([1.0], [1.0] * 5) for _ in range(999)]
    among, *rest = found(comparison([1.1], [1.0] * 5), *calm)

    assert known(alone.p_worse) < 1e-4
    assert known(among.p_worse) < 1e-9
    assert {each.effect for each in rest} == {0.0}


def test_groups_do_not_know_each_other() -> None:
    """Each comparison gets its own answer, wherever it stands among the others."""
    pairs = [
        comparison([1.1], THEN),
        comparison([1.0, 0.0], [0.0, 1.0, 2.0], group="share"),
        comparison([64.0], [64.0] * 3, exact=True),
        comparison([2.0, 2.1], [2.0, 2.2], group="energy"),
    ]
    forward = changes(pairs, level=Sureness())
    backward = changes(pairs[::-1], level=Sureness())
    assert forward == backward[::-1]


def test_values_that_have_no_logarithm_are_relative_to_the_baseline() -> None:
    """Zero and negative values are compared on a linear scale."""
    found = change([3.0], [0.0, 2.0, 4.0])
    negative = change([-1.0], [-2.0, -2.1, -1.9])
    small = change([0.3], [0.0, 0.2, 0.4])

    assert small.effect == pytest.approx(0.5)
    assert found.effect == pytest.approx(0.5)
    assert found.reference == pytest.approx(2.0)
    assert negative.effect == pytest.approx(0.5)


def test_against_zero_nothing_is_relative() -> None:
    """A baseline that is 0 in the mean has no effect and no probability."""
    found = change([3.0], [-1.0, 0.0, 1.0])
    assert (found.effect, found.p_worse, found.reference) == (None, None, 0.0)
    assert found.current == pytest.approx(3.0)


@pytest.mark.parametrize("better", [Better.LOWER, Better.HIGHER])
@pytest.mark.parametrize(
    ("now", "effect", "more", "less"),
    [
        ([500.0], None, 0.0, 1.0),
        ([-1.0, -2.0], None, 1.0, 0.0),
        ([1.0, 0.0, 1.0], None, 1.0, 1.0),
        ([1.0, -1.0, 1.0], None, 1.0, 1.0),
        ([0.0, 0.0], 0.0, 1.0, 1.0),
    ],
)
def test_of_zeros_equality_decides(
    now: list[float], effect: float | None, more: float, less: float, better: Better
) -> None:
    """It changed where every process says so, in the same direction."""
    found = change(now, [0.0, 0.0], better=better)
    worse, best = (more, less) if better is Better.LOWER else (less, more)

    assert (found.effect, found.p_worse, found.p_better) == (effect, worse, best)
    assert (found.reference, found.exact) == (0.0, False)


@pytest.mark.parametrize(
    ("now", "then", "effect"),
    [
        ([64.0], [64.0], 0.0),
        ([66.0], [60.0, 60.0], 0.1),
        ([0.0], [0.0], 0.0),
        ([3.0], [0.0], None),
        ([-3.0], [-2.0], -0.5),
        ([60.0, 72.0], [60.0], 0.1),
    ],
)
def test_counts_are_judged_by_equality(
    now: list[float], then: list[float], effect: float | None
) -> None:
    """The effect is exact; from 0 to something there is none."""
    pair = comparison(now, then, exact=True)
    assert is_exact(pair)
    found = exact_change(pair)
    assert found.exact
    assert found.effect == pytest.approx(effect)
    assert found.current == sum(now) / len(now)
    assert found.reference == then[0]
    assert (found.session_count, found.run_count) == (len(then), len(now))
    assert changes([pair], level=Sureness()) == (found,)


def test_processes_that_agree_are_equal_to_what_they_agree_with() -> None:
    """Their mean may be off in its last bit; the value that all have is not."""
    fraction = 0.8343065238711269
    assert statistics.fmean([fraction] * 3) != fraction

    assert exact_change(comparison([fraction] * 3, [fraction], exact=True)).effect == 0


def test_counts_that_disagree_are_judged_by_their_spread() -> None:
    """Stored counts that differ have noise, so equality decides nothing."""
    pair = comparison([12.0], [10.0, 11.0, 10.0], exact=True)
    assert not is_exact(pair)
    assert not is_exact(comparison([1.0], [1.0]))
    assert found(pair)[0].p_worse is not None


@pytest.mark.parametrize("count", [9, 99])
def test_a_variance_beyond_all_numbers_makes_nothing_fail(count: int) -> None:
    """Nobody knows how sure that change is; the others are told theirs."""
    wild = comparison([0.0], [0.0, 1e200, -1e200])
    pairs = [wild, *(comparison([1.1], THEN) for _ in range(count))]
    first, *rest = found(*pairs)

    assert (first.p_worse, first.low) == (None, None)
    assert all(known(each.p_worse) < 0.5 for each in rest)


def test_a_huge_effect_is_finite() -> None:
    """A factor that no float holds is the largest that one does."""
    one = change([1e300], [1e-300, 1e-300])

    assert math.isfinite(known(one.effect))
    assert known(one.p_worse) < 0.01


def test_stored_sessions_alone_say_what_is_usual() -> None:
    """Whatever the current values are, and nothing where there is one session each."""
    pairs = [comparison([now], THEN) for now in (1.0, 5.0, 0.1)]
    usual = usual_spreads(pairs)

    assert usual["time"] == usual_spreads([comparison([1.0], THEN)] * 3)["time"]
    assert usual_spreads([comparison([1.0], [1.0])] * 5)["time"] == usual_spread(
        (), TimeBase.HOST, least_equality=4
    )
    assert usual_spreads([comparison([64.0], [64.0], exact=True)]) == {}


@given(st.lists(st.floats(0, 1), max_size=20), st.integers(0, 40))
def test_holm_raises_and_keeps_the_order(p_values: list[float], extra: int) -> None:
    """Adjusted values are not below their own, keep the order, and stay below 1."""
    adjusted = holm(p_values, count=extra)

    assert all(p <= a <= 1 for p, a in zip(p_values, adjusted, strict=True))
    pairs = sorted(zip(p_values, adjusted, strict=True))
    assert [a for _, a in pairs] == sorted(adjusted)
    if p_values:
        members = max(extra, len(p_values))
        assert min(adjusted) == pytest.approx(min(1.0, members * min(p_values)))


def test_holm_by_hand() -> None:
    """The smallest is multiplied by all, the next by one fewer, and none falls."""
    assert holm([0.01, 0.04, 0.03]) == pytest.approx((0.03, 0.06, 0.06))
    assert holm([0.01], count=200) == (1.0,)
    assert holm([]) == ()
