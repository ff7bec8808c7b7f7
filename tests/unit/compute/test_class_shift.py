"""The rules of compute/class_shift: what sessions did to whole classes of tests."""

from __future__ import annotations

import math
import statistics

import pytest

from pytest_gpuperf.compute.change import class_centres, log_differences, session_shifts
from pytest_gpuperf.compute.spread import Prior, fit_prior, moderated
from pytest_gpuperf.model.change import Shift
from unit.compute.comparing import THEN, comparison


def test_what_moves_a_whole_class_is_seen_in_its_sessions() -> None:
    """The median of the tests' deviations is the session's shift."""
    moved = [1.0, 1.0, 1.05, 1.0, 1.0]
    pairs = [
        comparison([1.0], [v * (1 + 0.1 * n) for v in moved], shift_group="memory time")
        for n in range(8)
    ]
    mean = statistics.fmean(map(math.log, moved))
    found = session_shifts(pairs, least_count=8)

    assert found["memory time"]["s2"] == pytest.approx(math.log(1.05) - mean)
    assert found["memory time"]["s0"] == pytest.approx(-mean)
    assert session_shifts(pairs, least_count=9) == {}
    assert session_shifts([], least_count=1) == {}


def test_a_known_shift_is_none_of_the_stored_sessions() -> None:
    """How far the current one is from them leaves it out; of nothing there is nothing."""
    pair = comparison([1.155], [1.0, 1.05, 0.96], shift_group="memory time")
    sessions = {"s1": math.log(1.05), "s2": math.log(0.96)}
    shift = Shift(log_shift=0.7, control_count=8, sessions=sessions)

    assert log_differences([pair], {"memory time": shift}) == [
        pytest.approx(math.log(1.155))
    ]
    assert log_differences([], {}) == []


def test_the_whole_class_says_what_a_session_did() -> None:
    """The centre is the median of all tests; a restless session widens intervals."""
    calm = [comparison([1.03], THEN, shift_group="g") for _ in range(9)]
    restless = [
        comparison([1.03 * (1 + 0.1 * (n - 4))], THEN, shift_group="h")
        for n in range(9)
    ]
    found = class_centres([*calm, *restless], priors={}, sessions={}, least_count=9)

    centre = math.log(1.03) - statistics.fmean(map(math.log, THEN))
    assert found["g"].log_shift == pytest.approx(centre)
    assert found["g"].test_count == 9
    assert found["g"].widening == 1.0
    assert found["h"].widening > 5
    assert class_centres(calm, priors={}, sessions={}, least_count=10) == {}


@pytest.mark.parametrize("count", [9, 10])
def test_a_restless_session_is_held_against_what_its_tests_let_expect(
    count: int,
) -> None:
    """1.4826 median deviations, each over its test's own without the known shifts."""
    known_s = {"s1": math.log(1.2)}
    names = ("s0", "s1", "s2")
    stored = [(1.0, 1.2 * (1 + 0.01 * n), 1.0 + 0.03 * (n % 4)) for n in range(count)]
    now = [1.03 * (1 + 0.2 * (n % 5 - 2)) for n in range(count)]
    lone = comparison([9.0], [1.0, 1.0], shift_group="lone")
    pairs = [
        comparison([v], then, shift_group="g")
        for v, then in zip(now, stored, strict=True)
    ]
    priors = {"time": Prior(dof=3, variance=1e-3)}
    found = class_centres(
        [lone, *pairs], priors=priors, sessions={"g": known_s}, least_count=9
    )
    logs = [
        [math.log(v) - known_s.get(s, 0.0) for v, s in zip(then, names, strict=True)]
        for then in stored
    ]
    own = [(statistics.variance(each), 2.0) for each in logs]
    # ten tests without the machine's spread have a prior of their own
    prior = fit_prior(own) if count == 10 else priors["time"]
    apart = [
        math.log(v) - statistics.fmean(each) for v, each in zip(now, logs, strict=True)
    ]
    centre = statistics.median(apart)
    expected = [
        max(0.001, math.sqrt(moderated(*each, prior)[0])) * math.sqrt(4 / 3)
        for each in own
    ]
    over = [abs(d - centre) / e for d, e in zip(apart, expected, strict=True)]

    assert list(found) == ["g"]
    assert found["g"].log_shift == pytest.approx(centre)
    assert found["g"].widening == pytest.approx(1.4826 * statistics.median(over))
    assert found["g"].widening > 1
    assert found["g"].control_count == 0
    assert found["g"].sessions == known_s


def test_a_class_whose_sessions_nobody_knows_has_none() -> None:
    """It has a centre all the same."""
    calm = [comparison([1.03], THEN, shift_group="g") for _ in range(9)]
    found = class_centres(calm, priors={}, sessions={}, least_count=9)

    assert found["g"].sessions == {}
