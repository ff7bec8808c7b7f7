"""Values as they would be at one speed of the core."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from statistics import pstdev

import msgspec
import pytest

from pytest_gpuperf.compute.machine import at_one_speed, core_speed
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.record import SessionValue
from pytest_gpuperf.model.sample import CoreSpeed

FAST_S, SLOW_S = 20e-6, 35e-6


def samples(
    power: float, *, fast: int, slow: int, noise: float = 0.005
) -> tuple[list[float], list[float]]:
    """Return calls of 1 ms at full speed, and the loop beside each, in two phases."""
    draw = random.Random(fast * 100 + slow)
    loops_s = [FAST_S] * fast + [SLOW_S] * slow
    noisy_s = [loop_s * math.exp(draw.gauss(0, noise)) for loop_s in loops_s]
    times_s = [
        1e-3 * (loop_s / FAST_S) ** power * math.exp(draw.gauss(0, noise))
        for loop_s in loops_s
    ]
    return times_s, noisy_s


def session(*values: float, loops_s: tuple[float, ...] = ()) -> SessionValue:
    return SessionValue(
        metric="time",
        unit="s",
        source="host",
        run_values=values,
        cores=tuple(CoreSpeed(loop_s=loop_s) for loop_s in loops_s),
    )


@pytest.mark.parametrize("power", [0.0, 0.3, 1.0, 1.2])
def test_slope_is_learned_from_a_process_that_saw_two_speeds(power: float) -> None:
    """Samples of two speeds tell which power of the loop's time a test follows."""
    core = core_speed(*samples(power, fast=20, slow=15))
    assert core is not None
    assert core.slope == pytest.approx(power, abs=0.1)
    assert core.precision > 20


def test_steady_core_tells_no_slope() -> None:
    """The loop's own noise is not a change of speed."""
    core = core_speed(*samples(1.0, fast=30, slow=0))
    assert core is not None
    assert core.loop_s == pytest.approx(FAST_S, rel=0.01)
    assert core.precision == 0


def test_few_samples_at_one_speed_tell_no_slope() -> None:
    """Two samples of another speed may be anything."""
    core = core_speed(*samples(1.0, fast=18, slow=2))
    assert core is not None
    assert core.precision == 0


@pytest.mark.parametrize("loops_s", [[], [1e-5], [1e-5, 0.0]])
def test_loop_that_was_not_timed_beside_each_sample_tells_nothing(
    loops_s: list[float],
) -> None:
    """No loop, too few of them, and a clock that stands still have no speed."""
    assert core_speed([1e-3, 1e-3], loops_s) is None


def test_value_of_a_slow_core_is_taken_to_the_stored_speed() -> None:
    """What follows its core by a known power is compared at one speed of the core."""
    stored = [session(v, loops_s=(FAST_S,)) for v in (1.00e-3, 1.01e-3, 0.99e-3)]
    slowed = session(1e-3 * SLOW_S / FAST_S, loops_s=(SLOW_S,))
    sure = CoreSpeed(loop_s=SLOW_S, slope=1.0, precision=1e6)
    now = SessionValue(
        metric="time",
        unit="s",
        source="host",
        run_values=slowed.run_values,
        cores=(sure,),
    )
    alike = at_one_speed(now, stored)
    assert alike is not None
    assert alike.current.run_values == pytest.approx((1e-3,), rel=2e-3)
    assert alike.log_shift == pytest.approx(math.log(SLOW_S / FAST_S), rel=2e-3)
    assert math.sqrt(alike.variance) < 0.01
    assert [s.run_values for s in alike.stored] == [s.run_values for s in stored]


def test_value_too_large_for_a_float_at_one_speed_is_not_converted() -> None:
    """A conversion that overflows leaves the values as they were measured."""
    stored = [session(1.7e308, loops_s=(SLOW_S,)) for _ in range(3)]
    assert at_one_speed(session(1.7e308, loops_s=(FAST_S,)), stored) is None


def test_noise_of_the_loop_is_not_added_to_a_steady_test() -> None:
    """Processes on one quiet core differ by 1 % in the loop, and by 0.3 % in a test."""
    draw = random.Random(3)
    *stored, now = (
        session(
            1e-3 * math.exp(draw.gauss(0, 0.003)),
            loops_s=(FAST_S * math.exp(draw.gauss(0, 0.01)),),
        )
        for _ in range(60)
    )
    alike = at_one_speed(now, stored)
    assert alike is not None
    before, after = (
        pstdev(math.log(s.run_values[0]) for s in sessions)
        for sessions in (stored, alike.stored)
    )
    assert after < 1.6 * before  # 2.2 where all of the loop counts


def test_change_of_the_code_is_not_taken_out() -> None:
    """A test that became slower beside a loop that did not is slower."""
    stored = [session(1e-3, loops_s=(FAST_S,)) for _ in range(3)]
    alike = at_one_speed(session(1.6e-3, loops_s=(FAST_S,)), stored)
    assert alike is not None
    assert alike.current.run_values == pytest.approx((1.6e-3,))
    assert alike.log_shift == pytest.approx(0.0)


def test_unknown_slope_leaves_the_shift_uncertain() -> None:
    """Where nothing tells how a test follows its core, the usual share is uncertain."""
    stored = [session(1e-3, loops_s=(FAST_S,)) for _ in range(3)]
    alike = at_one_speed(session(1e-3, loops_s=(SLOW_S,)), stored)
    assert alike is not None
    distance = math.log(SLOW_S / FAST_S)
    assert alike.log_shift == pytest.approx(0.7 * distance, rel=2e-3)
    assert math.sqrt(alike.variance) == pytest.approx(0.5 * distance, rel=2e-3)


def test_stored_sessions_at_two_speeds_tell_the_slope() -> None:
    """Sessions that moved with the loop say that the test follows it."""
    stored = [
        session(1e-3 * speed, loops_s=(FAST_S * speed,))
        for speed in (1.0, 1.7, 1.0, 1.7)
    ]
    alike = at_one_speed(session(1.7e-3, loops_s=(FAST_S * 1.7,)), stored)
    assert alike is not None
    before = math.log(1.7)
    after = math.log(alike.stored[1].run_values[0] / alike.stored[0].run_values[0])
    assert abs(after) < 0.15 * before


@pytest.mark.parametrize("loop_s", [FAST_S, SLOW_S, 1.7 * SLOW_S])
def test_session_that_no_core_explains_tells_no_slope(loop_s: float) -> None:
    """A session three times off does not say how a test follows its core."""
    stored = [
        session(1e-3 * speed, loops_s=(FAST_S * speed,))
        for speed in (1.0, 1.7, 1.0, 1.7)
    ]
    off = session(3e-3 * (loop_s / FAST_S), loops_s=(loop_s,))
    now = session(1e-3, loops_s=(FAST_S,))
    without, alike = at_one_speed(now, stored), at_one_speed(now, [*stored, off])
    assert without is not None
    assert alike is not None

    def apart(sessions: Sequence[SessionValue]) -> float:
        return math.log(sessions[1].run_values[0] / sessions[0].run_values[0])

    assert apart(alike.stored) == pytest.approx(apart(without.stored), abs=0.05)


def test_fresh_processes_are_taken_to_one_speed_each() -> None:
    """A fresh process on a slow core agrees with the others afterwards."""
    stored = [session(1e-3, loops_s=(FAST_S,)) for _ in range(3)]
    loops_s = (FAST_S, SLOW_S, FAST_S, SLOW_S, FAST_S)
    values = [1e-3 * loop_s / FAST_S for loop_s in loops_s]
    alike = at_one_speed(session(*values, loops_s=loops_s), stored)
    assert alike is not None
    adjusted = alike.current.run_values
    assert max(adjusted) / min(adjusted) < 1.1


def test_one_stored_session_without_a_loop_keeps_its_value() -> None:
    """The others are taken to one speed all the same, where they are more."""
    stored = [session(1e-3 * s, loops_s=(FAST_S * s,)) for s in (1.0, 1.7, 1.0, 1.7)]
    unknown = session(1.3e-3)
    now = session(1.7e-3, loops_s=(FAST_S * 1.7,))
    alike, without = at_one_speed(now, [*stored, unknown]), at_one_speed(now, stored)
    assert alike is not None
    assert without is not None
    assert alike.stored == (*without.stored, unknown)
    assert alike.current == without.current
    assert at_one_speed(now, [stored[0], unknown]) is None


@pytest.mark.parametrize(
    ("now", "then"),
    [
        (session(1e-3), session(1e-3, loops_s=(FAST_S,))),
        (session(1e-3, loops_s=(FAST_S,)), session(1e-3)),
        (session(0.0, loops_s=(FAST_S,)), session(1e-3, loops_s=(FAST_S,))),
    ],
)
def test_what_cannot_be_told_is_left_as_it_is(
    now: SessionValue, then: SessionValue
) -> None:
    """A session without a loop, or a value without a logarithm, is not adjusted."""
    assert at_one_speed(now, [then]) is None


@pytest.mark.parametrize("loop_s", [1e-300, 1e-7, 1e-2, 1e300])
def test_loops_that_no_core_can_explain_are_left_alone(loop_s: float) -> None:
    """A file that was edited by hand moves no value, and stops no run."""
    stored = [session(1e-3, loops_s=(FAST_S,)) for _ in range(3)]
    assert at_one_speed(session(1e-3, loops_s=(loop_s,)), stored) is None
    assert at_one_speed(stored[0], [session(1e-3, loops_s=(loop_s,))]) is None


def test_slope_that_has_no_size_is_left_alone() -> None:
    """Numbers that are too large to add up are no evidence."""
    now, then = (
        replace(
            session(1e-3, loops_s=(FAST_S,)),
            cores=(CoreSpeed(loop_s=FAST_S, slope=slope, precision=1e300),),
        )
        for slope in (1e300, -1e300)
    )
    assert at_one_speed(now, [then]) is None


@pytest.mark.parametrize(
    "speed", [(FAST_S, 1.0, -4.0), (0.0, 1.0, 4.0), (-FAST_S, 1.0, 4.0)]
)
def test_a_file_has_no_impossible_speed(speed: tuple[float, ...]) -> None:
    """A precision is one over a variance, and a loop without duration has no logarithm."""
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(msgspec.json.encode(speed), type=CoreSpeed)


def test_loop_of_another_python_is_less_sure() -> None:
    """Releases of Python differ by some percent in such a loop."""
    stored = [session(1e-3, loops_s=(FAST_S,)) for _ in range(3)]
    now = session(1e-3, loops_s=(FAST_S,))
    alike = at_one_speed(now, stored)
    other = at_one_speed(now, stored, other_python=True)
    assert alike is not None
    assert other is not None
    assert alike.variance == 0
    assert math.sqrt(other.variance) == pytest.approx(0.7 * 0.05)


def test_other_processes_of_today_show_the_power_too() -> None:
    """Among themselves alone: their step to the current value may be a change or an offset."""
    stored = [session(1.0, loops_s=(FAST_S,)) for _ in range(3)]
    now = session(1.5, loops_s=(SLOW_S,))
    steps = [0.8, 1.0, 1.25]
    also = session(
        *[7.0 * step for step in steps],
        loops_s=tuple(FAST_S * step for step in steps),
    )
    by_itself = at_one_speed(now, stored)
    together = at_one_speed(now, stored, also=also)
    unknown = at_one_speed(now, stored, also=session(7.0))

    assert by_itself is not None
    assert together is not None
    assert together.precision > by_itself.precision
    assert together.variance < by_itself.variance
    assert together.log_shift > by_itself.log_shift  # They follow their core wholly.
    assert unknown == by_itself
