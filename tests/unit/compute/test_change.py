"""The rules of compute/change: effects, intervals, probabilities, power."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import stdtr, stdtrit

from pytest_gpuperf.compute.change import (
    Comparison,
    Level,
    Shift,
    changes,
    exact_change,
    fit_priors,
    holm,
    is_exact,
)
from pytest_gpuperf.compute.spread import Prior, moderated, session_spread
from pytest_gpuperf.model.change import Change
from pytest_gpuperf.model.metric import Better
from unit.compute.comparing import THEN, comparison, known, value

NOISE = math.log1p(0.005)


def change(
    now: Sequence[float], then: Sequence[float] = THEN, **fields: object
) -> Change:
    """The change of one comparison alone."""
    level = fields.pop("level", Level())
    priors = fields.pop("priors", {})
    (found,) = changes([comparison(now, then, **fields)], priors=priors, level=level)  # type: ignore[arg-type]
    return found


def test_effect_interval_and_probabilities_are_those_of_the_formula() -> None:
    """d +- t s sqrt(1 + 1/n) on a log scale; p against the noise threshold."""
    found = change([1.1])
    logs = [math.log(v) for v in THEN]
    difference = math.log(1.1) - statistics.fmean(logs)
    error = statistics.stdev(logs) * math.sqrt(1.2)
    half = float(stdtrit(4, 0.995)) * error
    seen = NOISE + float(stdtrit(4, 0.99) + stdtrit(4, 0.9)) * error

    assert found.effect == pytest.approx(math.expm1(difference))
    assert found.low == pytest.approx(math.expm1(difference - half))
    assert found.high == pytest.approx(math.expm1(difference + half))
    assert found.p_worse == pytest.approx(float(stdtr(4, (NOISE - difference) / error)))
    assert found.p_better == pytest.approx(
        float(stdtr(4, (NOISE + difference) / error))
    )
    assert found.detectable_effect == pytest.approx(math.expm1(seen))
    assert found.current == pytest.approx(1.1)
    assert found.reference == pytest.approx(statistics.geometric_mean(THEN))
    assert (found.session_count, found.run_count, found.exact) == (5, 1, False)


def test_more_pairs_make_a_change_harder_to_see() -> None:
    """The detectable effect is of the whole run; the interval shown is one pair's."""
    one = change([1.1])
    many = change([1.1], level=Level(pair_count=200))

    assert known(many.detectable_effect) > known(one.detectable_effect)
    assert (many.low, many.p_worse) == (one.low, one.p_worse)


def test_a_session_is_the_mean_of_its_processes() -> None:
    """Runs are averaged on the log scale, first of all."""
    assert change([1.0, 1.21]).current == pytest.approx(1.1)


def test_one_session_without_a_prior_says_only_values() -> None:
    """Nothing is known of the spread: an effect, and no interval."""
    found = change([1.1], [1.0])

    assert found.effect == pytest.approx(0.1)
    assert (found.low, found.high, found.p_worse, found.p_better) == (None,) * 4
    assert found.detectable_effect is None


def test_a_prior_speaks_for_few_sessions() -> None:
    """The suite's variances give one session an interval."""
    found = change([1.1], [1.0], priors={"time": Prior(dof=20, variance=1e-4)})
    half = float(stdtrit(20, 0.995)) * 0.01 * math.sqrt(2)
    assert found.high == pytest.approx(math.expm1(math.log(1.1) + half))


def test_a_change_has_the_least_spread_of_a_limit() -> None:
    """Samples and processes leave one; what is held against a limit agrees on it."""
    stored = (value(0.99, 1.01, widths=(0.03, 0.05)),) * 4
    now = value(math.sqrt(0.99 * 1.01), widths=(0.04,))
    wide = comparison([1.0], [1.0] * 4, current=now, stored=stored)
    (found,) = changes([wide], priors={}, level=Level())
    spread = session_spread(stored)

    assert spread is not None
    assert spread.fraction == pytest.approx(0.04 / 1.96)
    half = float(stdtrit(3, 0.995)) * spread.fraction * math.sqrt(1.25)
    assert found.high == pytest.approx(math.expm1(half))


def test_one_interval_of_samples_is_the_mean_of_itself() -> None:
    """Sessions without one have no part in it."""
    (found,) = changes(
        [comparison([1.0], [1.0] * 4, current=value(1.0, widths=(0.0392,)))],
        priors={},
        level=Level(),
    )
    half = float(stdtrit(3, 0.995)) * 0.0392 / 1.96 * math.sqrt(1.25)

    assert found.high == pytest.approx(math.expm1(half))


def test_more_processes_now_narrow_the_interval() -> None:
    """Five processes that differ as the sessions do are known better than one."""
    one = change([1.1])
    five = change([1.08, 1.09, 1.1, 1.11, 1.12])
    equal = change([1.1] * 5)

    assert known(five.low) > known(one.low)
    assert known(equal.low) == pytest.approx(
        known(one.low)
    )  # sessions differ otherwise


def test_higher_is_better_turns_worse_around() -> None:
    """A higher throughput is better: the same numbers, the other way around."""
    time = change([1.1])
    throughput = change([1.1], better=Better.HIGHER)

    assert (throughput.p_worse, throughput.p_better) == (time.p_better, time.p_worse)
    assert throughput.effect == time.effect


positive = st.floats(0.5, 2.0)
several = st.lists(positive, min_size=3, max_size=6)


@given(several, several)
def test_inverting_every_value_swaps_worse_and_better(
    now: list[float], then: list[float]
) -> None:
    """1/time is as much worse as time is better."""
    plain = change(now, then)
    inverse = change([1 / v for v in now], [1 / v for v in then])

    assert inverse.p_worse == pytest.approx(plain.p_better, rel=1e-6, abs=1e-12)
    assert 1 + known(inverse.effect) == pytest.approx(1 / (1 + known(plain.effect)))


@given(several, several, st.floats(1e-9, 1e9))
def test_the_unit_does_not_matter(
    now: list[float], then: list[float], factor: float
) -> None:
    """Effects and probabilities have no unit."""
    plain = change(now, then)
    scaled = change([factor * v for v in now], [factor * v for v in then])

    assert scaled.effect == pytest.approx(plain.effect, rel=1e-6, abs=1e-9)
    assert scaled.p_worse == pytest.approx(plain.p_worse, rel=1e-4, abs=1e-9)


@given(several, several, st.floats(1.0, 2.0))
def test_slower_is_never_less_surely_worse(
    now: list[float], then: list[float], factor: float
) -> None:
    """Making the current values worse never raises the p-value."""
    plain = change(now, then)
    slower = change([factor * v for v in now], then)
    assert known(slower.p_worse) <= known(plain.p_worse) + 1e-12


def test_order_does_not_matter() -> None:
    """Each comparison gets its own answer, wherever it stands among the others."""
    pairs = [
        comparison([1.1], THEN),
        comparison([1.0, 0.0], [0.0, 1.0, 2.0]),
        comparison([64.0], [64.0] * 3, exact=True),
        comparison([2.0, 2.1], [2.0, 2.2], group="energy"),
    ]
    forward = changes(pairs, priors={}, level=Level())
    backward = changes(pairs[::-1], priors={}, level=Level())
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
    """A baseline of 0 has no effect and no probability."""
    found = change([3.0], [0.0, 0.0, 0.0])
    assert (found.effect, found.p_worse, found.reference) == (None, None, 0.0)
    assert found.current == pytest.approx(3.0)


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
    assert changes([pair], priors={}, level=Level()) == (found,)


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
    (found,) = changes([pair], priors={}, level=Level())
    assert found.p_worse is not None


def test_less_than_one_degree_of_freedom_is_some() -> None:
    """A prior of half a session widens what it can say; it is not dropped."""
    found = change([1.1], [1.0], priors={"time": Prior(dof=0.5, variance=1e-4)})
    error = 0.01 * math.sqrt(2)

    assert found.p_worse == pytest.approx(
        float(stdtr(0.5, (NOISE - math.log(1.1)) / error))
    )


def test_a_shift_is_taken_out_of_both_sides() -> None:
    """Neither the machine's shift now nor those of stored sessions are the test's."""
    then = [1.00, 1.05, 1.001, 0.96, 0.999]
    pair = comparison([1.1 * 1.05], then, shift_group="memory time")
    sessions = {"s1": math.log(1.05), "s3": math.log(0.96)}
    shift = Shift(log_shift=math.log(1.05), control_count=8, sessions=sessions)

    (plain,) = changes([pair], priors={}, level=Level())
    (moved,) = changes([pair], priors={}, level=Level(), shifts={"memory time": shift})

    assert known(plain.effect) == pytest.approx(0.155, abs=0.01)
    assert known(moved.effect) == pytest.approx(0.1, abs=0.001)
    assert known(moved.high) - known(moved.low) < known(plain.high) - known(plain.low)


def test_a_shift_is_not_known_exactly_either() -> None:
    """Fewer controls, or a session whose tests lie far apart, widen the interval."""

    def width(**fields: float) -> float:
        shift = Shift(log_shift=0.0, **({"control_count": 8} | fields))  # type: ignore[arg-type]
        pair = comparison([1.1], THEN, shift_group="g")
        (found,) = changes([pair], priors={}, level=Level(), shifts={"g": shift})
        return known(found.high) - known(found.low)

    plain = change([1.1])
    assert known(plain.high) - known(plain.low) < width() < width(control_count=3)
    assert width(test_count=100) < width()
    assert width(widening=2.0) > width()


# tests of three groups, whose sessions have one to three processes; the last two have
# values without a logarithm
_SEVERAL = (
    ("time", (1.1, 1.14), ((1.0, 1.03), (1.02,), (0.97, 1.0, 1.01))),
    ("time", (2.0, 2.2, 2.3), ((2.0,), (2.1, 2.2), (2.3,), (1.9, 2.0))),
    ("time", (3.0, 3.01, 3.03), ((3.0,), (3.5,), (2.6,))),
    ("energy", (5.0, 5.4), ((5.0,), (5.1,), (4.9,))),
    ("energy", (7.0,), ((7.0, 7.1), (7.2,), (6.9,))),
    ("calm", (1.0, 1.4), ((1.0, 1.001), (1.0, 1.002), (1.001, 1.0))),
    ("lost", (3.0, 5.0), ((0.0, 2.0), (4.0,), (6.0, -1.0))),
    ("lost", (-2.0,), ((-3.0,), (-2.5, -2.0), (-1.0,))),
)


class Row(NamedTuple):
    """What one comparison says by itself."""

    group: str
    session_count: int
    run_count: int
    share: float
    dof: float
    variance: float
    between: float
    difference: float
    scale: float


def scale_of(*sessions: Sequence[float]) -> float:
    """Return what values are divided by: the stored ones' mean; 0 for a logarithm."""
    if min(map(min, sessions)) > 0:
        return 0.0
    return abs(statistics.fmean(map(statistics.fmean, sessions[1:])))


def processes(values: Sequence[float], scale: float) -> tuple[float, float]:
    """Return the mean of a session's processes, and their squares about it."""
    scaled = [v / scale if scale else math.log(v) for v in values]
    mean = statistics.fmean(scaled)
    return mean, sum((x - mean) ** 2 for x in scaled)


def row_of(pair: Comparison, prior: Prior) -> Row:
    """Return a comparison's own numbers; processes leave a least variance."""
    now, then = pair.current.run_values, [s.run_values for s in pair.stored]
    scale = scale_of(now, *then)
    means, squares = zip(*(processes(runs, scale) for runs in then), strict=True)
    mean, apart = processes(now, scale)
    share = statistics.fmean(1 / len(runs) for runs in then)
    dof = sum(len(runs) - 1 for runs in (*then, now))
    floor = (sum(squares) + apart) / dof * max(share, 1 / len(now))
    variance, freedom = moderated(statistics.variance(means), len(then) - 1, prior)
    return Row(
        group=pair.group,
        session_count=len(then),
        run_count=len(now),
        share=share,
        dof=freedom,
        variance=max(variance, floor, 1e-6),
        between=apart / (len(now) - 1) * share if len(now) > 1 else 0.0,
        difference=mean - statistics.fmean(means),
        scale=scale,
    )


def error_of(row: Row, rows: list[Row], shift: Shift | None) -> tuple[float, float]:
    """Return a difference's standard error by the docs' formulas, and its freedom."""
    shift = shift or Shift(log_shift=0.0, control_count=0)
    alike = [r for r in rows if r.group == row.group and r.run_count > 1]
    pooled = sum(r.between for r in alike) / sum(r.variance for r in alike)
    part = min(1.0, pooled, row.between / row.variance)
    session = 1 + 1 / row.session_count
    total = session - part + part / (row.share * row.run_count)
    total += (shift.widening**2 - 1) * session
    if shift.test_count:
        again = part / row.share * (1 + 1 / row.run_count) / shift.control_count
        total += math.pi / 2 * (session / shift.test_count + again)
    elif shift.control_count:
        total += math.pi / 2 * session / shift.control_count
    own, common = row.variance * total, shift.common_variance * session
    if not common:
        return math.sqrt(own), row.dof
    parts = own**2 / row.dof + common**2 / max(1.0, shift.common_dof)
    return math.sqrt(own + common), (own + common) ** 2 / parts


@pytest.mark.parametrize(
    "shift",
    [
        None,
        Shift(log_shift=0.01, control_count=0),
        Shift(log_shift=0.01, control_count=1),
        Shift(log_shift=0.01, control_count=5),
        Shift(log_shift=-0.02, control_count=5, test_count=1),
        Shift(log_shift=0.01, control_count=3, test_count=12, widening=1.5),
        Shift(log_shift=0.0, control_count=0, widening=2.0),
        Shift(log_shift=0.0, control_count=0, common_variance=2e-4, common_dof=4.0),
        Shift(log_shift=0.0, control_count=0, common_variance=2e-4, common_dof=0.0),
    ],
)
def test_what_widens_an_interval_is_added_up(shift: Shift | None) -> None:
    """
    Sessions, processes, the shift, and what moves all tests together, by hand.

    Processes are worth the share of their group, or the test's own where it is smaller.
    """
    prior = Prior(dof=5.0, variance=4e-4)
    pairs = [
        comparison(
            now,
            [1.0] * len(then),
            stored=tuple(value(*runs) for runs in then),
            group=group,
            shift_group="g",
        )
        for group, now, then in _SEVERAL
    ]
    found = changes(
        pairs,
        priors=dict.fromkeys(("time", "energy", "calm", "lost"), prior),
        level=Level(),
        shifts={"g": shift} if shift else {},
    )

    rows = [row_of(pair, prior) for pair in pairs]
    for row, moved in zip(rows, found, strict=True):
        error, dof = error_of(row, rows, shift)
        difference = row.difference - (shift.log_shift if shift else 0.0)
        half = float(stdtrit(dof, 0.995)) * error
        noise = 0.005 if row.scale else NOISE
        seen = noise + float(stdtrit(dof, 0.99) + stdtrit(dof, 0.9)) * error
        ends = (difference, difference - half, difference + half, seen)
        assert (
            moved.effect,
            moved.low,
            moved.high,
            moved.detectable_effect,
        ) == pytest.approx(tuple(e if row.scale else math.expm1(e) for e in ends))
        assert moved.p_worse == pytest.approx(
            float(stdtr(dof, (noise - difference) / error))
        )
        assert moved.p_better == pytest.approx(
            float(stdtr(dof, (noise + difference) / error))
        )


def test_what_moves_all_tests_gives_one_without_freedom_none() -> None:
    """How much its only session differs from others is as unknown as before."""
    shift = Shift(log_shift=0.0, control_count=0, common_variance=2e-4, common_dof=4.0)
    pairs = [comparison([1.1], then, shift_group="g") for then in ([1.0], THEN)]
    alone, among = changes(pairs, priors={}, level=Level(), shifts={"g": shift})

    assert (alone.low, alone.p_worse, alone.detectable_effect) == (None, None, None)
    assert among.low is not None


def test_what_moves_all_tests_adds_to_the_least_freedom_too() -> None:
    """Half a degree of freedom is some, and becomes more by Satterthwaite's sum."""
    shift = Shift(log_shift=0.0, control_count=0, common_variance=2e-4, common_dof=4.0)
    pair = comparison([1.1], [1.0], shift_group="g")
    prior = Prior(dof=0.5, variance=1e-4)
    (found,) = changes(
        [pair], priors={"time": prior}, level=Level(), shifts={"g": shift}
    )
    own, common = 2e-4, 4e-4
    dof = (own + common) ** 2 / (own**2 / 0.5 + common**2 / 4)
    error = math.sqrt(own + common)

    assert found.p_worse == pytest.approx(
        float(stdtr(dof, (NOISE - math.log(1.1)) / error))
    )


def test_an_interval_beyond_all_numbers_ends_at_one() -> None:
    """What is next to unknown is finite still, and fits into a record."""
    found = change([1.1], [1.0], priors={"time": Prior(dof=0.5, variance=1e4)})

    assert found.low == -1.0
    assert found.high == pytest.approx(math.expm1(700.0))


def test_an_interval_without_ends_is_not_shown() -> None:
    """Next to no freedom puts them beyond all numbers; probabilities it has."""
    prior = Prior(dof=0.001, variance=1e-4)
    found = change([-0.5], [-1.0], priors={"time": prior})

    assert (found.low, found.high, found.detectable_effect) == (None, None, None)
    assert known(found.p_worse) < 0.5 < known(found.p_better)


def test_a_variance_beyond_all_numbers_makes_nothing_fail() -> None:
    """The suite's prior is not a number then, and nobody knows how sure a change is."""
    wild = comparison([0.0], [0.0, 1e200, -1e200])
    pairs = [wild, *(comparison([1.1], THEN) for _ in range(9))]
    found = changes(pairs, priors=fit_priors(pairs), level=Level())

    assert found[0].effect is None
    assert found[1].effect is not None
    assert {(each.low, each.p_worse) for each in found} == {(None, None)}


def test_a_class_without_a_shift_keeps_the_prior_of_its_group() -> None:
    """Only variances from which the machine's part was taken are fitted anew."""
    then = [[1.0, 1.0 + 0.01 * (n + 1), 0.99] for n in range(12)]
    pairs = [
        comparison([1.0], each, shift_group=group) for group in "gh" for each in then
    ]
    priors = {"time": Prior(dof=8.0, variance=1e-6)}
    shift = Shift(log_shift=0.0, control_count=0, sessions={"s0": 0.02})
    plain = changes(pairs, priors=priors, level=Level())
    moved = changes(pairs, priors=priors, level=Level(), shifts={"g": shift})

    assert moved[12:] == plain[12:]
    assert moved[0].low != plain[0].low


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
