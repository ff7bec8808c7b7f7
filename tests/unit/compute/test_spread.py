"""The rules of compute/spread: what is usual in a group, and one test's own spread."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import gammaln, stdtr

from pytest_gpuperf.compute.spread import (
    Mixture,
    Spread,
    UsualSpread,
    half_width,
    moments,
    session_spread,
    usual_spread,
)
from pytest_gpuperf.model.change import TimeBase
from pytest_gpuperf.model.record import SessionValue
from unit.compute.comparing import value

LAMBDAS = 0.001 * 2 ** (np.arange(19) / 2)
EQUALITIES = np.array([1, 2, 4, 8])
EDGES = {TimeBase.HOST: (0.02, 0.25), TimeBase.DEVICE: (0.004, 0.08)}
Variances = Sequence[tuple[float, int]]


def by_the_density_of_f(variances: Variances, clock: TimeBase) -> NDArray[np.float64]:
    """Weights of the grid, from the density of Fisher's F at each place of it."""
    low, high = EDGES[clock]
    outside = np.log(np.maximum(np.maximum(low / LAMBDAS, LAMBDAS / high), 1)) / 0.5
    logs = np.repeat(-(outside**2) / 2, 4).reshape(19, 4)
    for variance, k in variances:
        d0 = EQUALITIES[None, :].astype(float)
        x = variance / LAMBDAS[:, None] ** 2
        logs = logs + (
            gammaln((k + d0) / 2)
            - gammaln(k / 2)
            - gammaln(d0 / 2)
            + k / 2 * np.log(k / d0 * x)
            - (k + d0) / 2 * np.log1p(k * x / d0)
        )
    weights = np.exp(logs - logs.max())
    return np.asarray(weights / weights.sum(), float)


def grid_of(usual: UsualSpread) -> NDArray[np.float64]:
    """The weights of a usual spread on the whole grid."""
    weights = np.zeros((19, 4))
    for square, d0, weight in usual.points:
        place = round(math.log2(square / 1e-6))
        weights[place, [1, 2, 4, 8].index(d0)] = weight
    return weights


some_variances = st.lists(
    st.tuples(st.floats(-14, 2).map(lambda p: 10.0**p), st.integers(1, 19)), max_size=12
)


@given(some_variances, st.sampled_from(TimeBase))
def test_the_grid_is_weighed_by_the_density_of_f(
    variances: Variances, clock: TimeBase
) -> None:
    """Six decades and more, and different numbers of sessions, change nothing."""
    usual = usual_spread(variances, clock)

    assert grid_of(usual) == pytest.approx(
        by_the_density_of_f(variances, clock), abs=1e-8
    )


@pytest.mark.parametrize(
    ("clock", "low", "high"),
    [(TimeBase.HOST, 0.02, 0.25), (TimeBase.DEVICE, 0.004, 0.08)],
)
def test_without_evidence_the_usual_deviation_lies_where_machines_do(
    clock: TimeBase, low: float, high: float
) -> None:
    """Hosts differ more than devices."""
    inside = sum(
        weight
        for square, _, weight in usual_spread((), clock).points
        if low <= math.sqrt(square) <= high
    )

    assert inside > 0.6
    assert low < usual_spread((), clock).deviation < high


@pytest.mark.parametrize("deviation", [0.003, 0.01, 0.05, 0.2])
def test_what_is_usual_is_found_again(deviation: float) -> None:
    """The variances of a hundred tests outweigh what was believed before."""
    draw = np.random.default_rng(1)
    own = deviation**2 * 4 / draw.chisquare(4, 100)
    variances = [(v * draw.chisquare(3) / 3, 3) for v in own]

    assert usual_spread(variances, TimeBase.HOST).deviation == pytest.approx(
        deviation, rel=0.35
    )


@given(st.permutations(range(8)))
def test_the_order_of_tests_does_not_matter(order: list[int]) -> None:
    """Each says what it says, wherever it stands."""
    variances = [(1e-4 * (n + 1), 1 + n % 3) for n in range(8)]
    plain = usual_spread(variances, TimeBase.HOST)
    shuffled = usual_spread([variances[n] for n in order], TimeBase.HOST)

    assert grid_of(shuffled) == pytest.approx(grid_of(plain), abs=1e-12)


def test_a_thousand_tests_leave_few_places() -> None:
    """That is why a large suite is judged as fast as a small one."""
    draw = np.random.default_rng(2)
    several = [(1e-4 * float(draw.chisquare(2)) / 2, 2) for _ in range(1000)]

    assert len(usual_spread(several, TimeBase.HOST).points) < 5


def test_a_test_without_freedom_says_nothing() -> None:
    """Nor does one more of them."""
    assert usual_spread([(1e-4, 0)] * 5, TimeBase.HOST) == usual_spread(
        (), TimeBase.HOST
    )


def by_hand(mixture: Mixture, difference: float, variance: float) -> float:
    """The probability of a difference: each place's Student's t, weighed."""
    total = 0.0
    for prior, whole, dof, weight in mixture.parts:
        square = (prior + mixture.dof * variance) / whole
        total += weight * float(stdtr(dof, -difference / math.sqrt(square)))
    return total


@pytest.mark.parametrize("dof", [0, 1, 2, 4, 9])
def test_a_mixture_weighs_the_tails_of_its_places(dof: int) -> None:
    """With at most six degrees of freedom, however many sessions are stored."""
    usual = usual_spread([(4e-4, 2), (9e-4, 3)], TimeBase.HOST)
    mixture = usual.mixture(dof)

    assert mixture.beyond(0.1, 2e-4) == pytest.approx(by_hand(mixture, 0.1, 2e-4))
    for part, (square, d0, weight) in zip(mixture.parts, usual.points, strict=True):
        assert part == (d0 * square, d0 + dof, min(d0 + dof, 6), weight)


def test_what_widens_a_mixture() -> None:
    """A ratio and a variance of something else; a floor only where it is larger."""
    mixture = UsualSpread(points=((1e-4, 4, 1.0),)).mixture(2)  # 6 degrees of freedom

    def p_value(variance: float) -> float:
        return float(stdtr(6, -0.05 / math.sqrt(variance)))

    assert mixture.beyond(0.05, 1e-4) == pytest.approx(p_value(1e-4))
    assert mixture.beyond(0.05, 4e-4) == pytest.approx(p_value(2e-4))
    assert mixture.beyond(0.05, 1e-4, ratio=2.0, extra=3e-4) == pytest.approx(
        p_value(5e-4)
    )
    assert mixture.beyond(0.05, 1e-4, floor=5e-5) == pytest.approx(p_value(1e-4))
    assert mixture.beyond(0.05, 1e-4, floor=9e-4) == pytest.approx(p_value(9e-4))


@given(st.floats(-3, 3), st.floats(-3, 3), some_variances)
def test_a_larger_difference_is_never_more_probable(
    one: float, other: float, variances: Variances
) -> None:
    """But for the last digits."""
    mixture = usual_spread(variances, TimeBase.HOST).mixture(2)
    low, high = sorted((one, other))

    assert mixture.beyond(low, 1e-4) >= mixture.beyond(high, 1e-4) - 1e-12


@given(
    st.sampled_from([0.1, 0.005, 1e-4, 1e-7]),
    some_variances,
    st.floats(-14, 2).map(lambda power: 10.0**power),
)
def test_the_reach_of_a_probability_is_its_inverse(
    p_value: float, variances: Variances, variance: float
) -> None:
    """But for places of hardly any weight, which it leaves out."""
    mixture = usual_spread(variances, TimeBase.DEVICE).mixture(2)
    reach = mixture.reach(p_value, variance, ratio=1.5, extra=1e-6)
    found = mixture.beyond(reach, variance, ratio=1.5, extra=1e-6)

    assert found == pytest.approx(p_value, rel=0.01)


def sessions(
    *values: tuple[float, ...], widths: tuple[float, ...] = ()
) -> list[SessionValue]:
    """Stored sessions."""
    return [value(*runs, widths=widths) for runs in values]


def test_values_far_from_zero_keep_their_variance() -> None:
    """Squares are taken about the mean, and not from those of the values."""
    values = [1e9, 1e9 + 0.1, 1e9 + 0.3]
    mean, squares = moments(values)

    assert mean == pytest.approx(statistics.fmean(values))
    assert squares == pytest.approx(2 * statistics.variance(values))


def test_half_width_of_a_declared_and_of_an_estimated_spread() -> None:
    """What is declared is normal; what few sessions say has the wider tails of t."""
    assert half_width(Spread(fraction=0.01)) == pytest.approx(0.02575829)
    estimated = Spread(fraction=0.01, parts=((1.0, 1e-4, 2),), session_count=3)
    assert half_width(estimated) == pytest.approx(0.01 * 9.9248432)
    assert half_width(estimated, fraction=0.02) == 2 * half_width(estimated)


def test_the_spread_of_stored_sessions_is_weighed_with_what_is_usual() -> None:
    """The deviation of their mean logarithms, with n - 1; the freedom of both."""
    values = [(1.0,), (1.02,), (1.05,), (0.99,)]
    usual = UsualSpread(points=((1e-4, 2, 0.25), (4e-4, 8, 0.75)))
    spread = session_spread(sessions(*values), usual)
    own = statistics.variance(math.log(runs[0]) for runs in values)
    first = (2 * 1e-4 + 3 * own) / 5
    second = (8 * 4e-4 + 3 * own) / 11

    assert spread is not None
    assert spread.session_count == 4
    assert [part[0] for part in spread.parts] == [0.25, 0.75]
    assert [part[1] for part in spread.parts] == pytest.approx([first, second])
    assert [part[2] for part in spread.parts] == [5, 6]
    assert spread.fraction == pytest.approx(math.sqrt(first / 4 + 3 * second / 4))


def test_a_test_that_stands_alone_says_itself_what_is_usual() -> None:
    """Three sessions that hardly differ are no promise of the fourth."""
    close = session_spread(sessions((1.0,), (1.0,), (1.0,)))
    apart = session_spread(sessions((1.0,), (1.2,), (0.8,)))

    assert close is not None
    assert apart is not None
    assert 0.002 < close.fraction < 0.02 < apart.fraction
    assert half_width(close) < 0.1 < half_width(apart)


def test_too_few_sessions_or_no_logarithm_have_no_spread() -> None:
    """Three sessions are needed, of values above 0."""
    assert session_spread(sessions((1.0,), (1.1,))) is None
    assert session_spread(sessions((1.0,), (1.1,), (0.0,))) is None


TIGHT = UsualSpread(points=((1e-6, 8, 1.0),))


def test_what_is_open_within_sessions_is_the_least_spread() -> None:
    """Sessions that agree by luck are not better known than their processes, samples."""
    equal = session_spread(sessions((1.0,), (1.0,), (1.0,)), TIGHT)
    processes = session_spread(sessions((0.9, 1.1), (0.9, 1.1), (0.9, 1.1)), TIGHT)
    one = session_spread(sessions((0.9, 1.1), (0.99,), (0.99,)), TIGHT)
    samples = session_spread(sessions((1.0,), (1.0,), (1.0,), widths=(0.0196,)), TIGHT)
    within = statistics.stdev([math.log(0.9), math.log(1.1)]) / math.sqrt(2)

    assert equal is not None
    assert equal.fraction == pytest.approx(0.001)
    assert processes is not None
    assert processes.fraction == pytest.approx(within)
    assert one is not None
    assert one.fraction == pytest.approx(within * math.sqrt(2 * (1 / 2 + 1 + 1) / 3))
    assert samples is not None
    assert samples.fraction == pytest.approx(0.01)
