"""Rules of collect.clock: how fast the core is, beside each sample."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle

import pytest

from fakes.clock import FakeClock
from pytest_gpuperf.collect.base import TimedCall
from pytest_gpuperf.collect.clock import CoreLoop, SystemClock
from pytest_gpuperf.collect.runtime import NoDevice
from pytest_gpuperf.collect.timing.host import HostCollector
from pytest_gpuperf.model.environment import CONDITIONS

US, MS = 1_000, 1_000_000  # ns


class LoopClock(FakeClock):
    """A clock on which every second reading of processor time ends a loop."""

    def __init__(self, *loops_ns: int) -> None:
        super().__init__()
        self.loops_ns = list(loops_ns)
        self.readings = 0

    def thread_cpu_ns(self) -> int:
        self.readings += 1
        if self.readings % 2 == 0 and self.loops_ns:
            self.advance(self.loops_ns.pop(0))
        return super().thread_cpu_ns()


class Ten:
    """A stop rule that wants ten samples."""

    def enough(self, values: Sequence[float]) -> bool:
        return len(values) >= 10


def test_first_loop_has_none_before_it() -> None:
    """A speed is one of before and after."""
    assert CoreLoop(LoopClock(20 * US, 20 * US)).around_s() is None


def test_speed_is_the_mean_of_before_and_after() -> None:
    """A core that changed its speed in a sample had both."""
    clock = LoopClock(20 * US, 20 * US, 40 * US, 40 * US)
    loop = CoreLoop(clock)
    loop.around_s()
    clock.advance(2 * MS)
    assert loop.around_s() == pytest.approx(30e-6)


def test_second_loop_counts_where_the_first_is_cold() -> None:
    """What a sample did to the caches makes the first loop after it longer."""
    clock = LoopClock(20 * US, 20 * US, 90 * US, 20 * US)
    loop = CoreLoop(clock)
    loop.around_s()
    clock.advance(2 * MS)
    assert loop.around_s() == pytest.approx(20e-6)


@pytest.mark.parametrize(
    ("next_ns", "loops"), [(20_200, 1), (20_300, 2), (19_800, 1), (19_700, 2)]
)
def test_a_loop_as_fast_as_the_last_is_not_timed_twice(
    next_ns: int, loops: int
) -> None:
    """It was not cold; a hundredth is what reading the clock takes."""
    clock = LoopClock(20 * US, 20 * US, next_ns, next_ns)
    loop = CoreLoop(clock)
    loop.around_s()
    readings = clock.readings
    clock.advance(2 * MS)

    assert loop.around_s() == pytest.approx((20 * US + next_ns) / 2 / 1e9)
    assert clock.readings == readings + 2 * loops


def test_loop_is_timed_once_a_millisecond() -> None:
    """Short samples share a loop, which would cost more than they otherwise."""
    clock = LoopClock(20 * US, 20 * US)
    loop = CoreLoop(clock)
    loop.around_s()
    readings = clock.readings
    clock.advance(100 * US)
    assert loop.around_s() == pytest.approx(20e-6)
    assert clock.readings == readings


def test_clock_that_stands_still_tells_nothing() -> None:
    """A loop without a time has no speed."""
    loop = CoreLoop(FakeClock())
    assert [loop.around_s(), loop.around_s()] == [None, None]


def test_each_sample_of_a_real_call_has_a_loop() -> None:
    """On the machine's own clocks a call that runs through knows its core's speed."""
    collector = HostCollector(SystemClock(), NoDevice())
    timing = collector.measure(
        TimedCall(fn=lambda: sum(range(20_000)), budget_s=0.2), stop=Ten()
    )
    reasons = {"waits", "several-threads", "coarse-cpu-clock", "tracer"}
    untold = {note.code for note in timing.notes} & reasons
    assert untold or len(timing.core_loops_s) == len(timing.samples)
    assert all(loop_s > 0 for loop_s in timing.core_loops_s)


def test_call_that_waits_has_no_core() -> None:
    """The speed of a core does not matter to a call that sleeps."""
    clock = FakeClock()
    collector = HostCollector(clock, NoDevice())
    timing = collector.measure(TimedCall(fn=lambda: clock.wait(MS)), stop=Ten())
    assert timing.core_loops_s == ()


class SharedCore(FakeClock):
    """
    A clock on which two readings of processor time in a row have a loop between them.

    Attributes:
        loop_ns: How long the loop takes now [ns].
    """

    def __init__(self) -> None:
        super().__init__()
        self.loop_ns = 20 * US
        self.in_a_row = False

    def now_ns(self) -> int:
        self.in_a_row = False
        return super().now_ns()

    def thread_cpu_ns(self) -> int:
        if self.in_a_row:
            self.advance(self.loop_ns)
        self.in_a_row = True
        return super().thread_cpu_ns()


@pytest.mark.parametrize("among_three", [1, 2])
def test_call_that_waits_in_most_samples_has_no_core(among_three: int) -> None:
    """Those in which it does not wait say nothing of what decides its time."""
    clock = SharedCore()
    calls = clock.taking(then_ns=MS)

    def fn() -> None:
        if (number := calls()) > 4 and number % 3 < among_three:
            clock.wait(5 * MS)

    timing = HostCollector(clock, NoDevice()).measure(
        TimedCall(fn=fn, iterations=12), stop=Ten()
    )
    assert len(timing.core_loops_s) == (12 if among_three == 1 else 0)


def test_loop_is_timed_again_after_a_long_setup() -> None:
    """What the core did before a setup, or before others' turn, is not beside a sample."""
    clock = SharedCore()
    speeds_ns = cycle([20 * US, 35 * US])
    at_samples_ns: list[int] = []

    def setup() -> None:
        clock.advance(500 * MS)
        clock.loop_ns = next(speeds_ns)

    def fn() -> None:
        clock.advance(100 * clock.loop_ns)
        at_samples_ns.append(clock.loop_ns)

    timing = HostCollector(clock, NoDevice()).measure(
        TimedCall(fn=fn, setup=setup), stop=Ten()
    )

    last_ns = at_samples_ns[-len(timing.samples) :]
    assert timing.core_loops_s == pytest.approx([ns / 1e9 for ns in last_ns])


def test_tracer_is_not_timed_for_the_core() -> None:
    """Lines that a tracer follows take its time: such a loop says nothing, and is told."""
    clock = SharedCore()
    clock.traced_by = "coverage"
    host = HostCollector(clock, NoDevice())

    timing = host.measure(TimedCall(fn=lambda: clock.advance(MS)), stop=Ten())
    with host.measure_range() as block:
        clock.advance(MS)

    assert timing.core_loops_s == ()
    text = "coverage: part of the time, since it changes how fast all code runs"
    assert [note.text for note in timing.notes] == [text]
    assert block.timing is not None
    assert [note.text for note in block.timing.notes] == [text]


def test_tracer_that_comes_in_the_middle_spoils_all_loops() -> None:
    """Half of the samples beside another loop would be two speeds of one core."""
    clock = SharedCore()
    calls = iter(range(100))

    def fn() -> None:
        clock.advance(2 * MS)
        clock.traced_by = "pydevd" if next(calls) > 8 else ""

    timing = HostCollector(clock, NoDevice()).measure(TimedCall(fn=fn), stop=Ten())

    assert len(timing.samples) == 10
    assert timing.core_loops_s == ()


@pytest.mark.parametrize("name", CONDITIONS)
def test_loop_is_timed_in_a_plain_process_alone(name: str) -> None:
    """Another allocator or -O slows the loop otherwise than it slows a test."""
    clock = SharedCore()
    clock.also = {name: "other"}
    host = HostCollector(clock, NoDevice())

    timing = host.measure(TimedCall(fn=lambda: clock.advance(MS)), stop=Ten())

    assert timing.core_loops_s == ()
    assert [note.code for note in timing.notes] == ["tracer"]


def test_a_measurement_goes_on_with_the_loop_of_the_last_one() -> None:
    """A thousand short calls share the loops of their milliseconds."""
    clock = SharedCore()
    host = HostCollector(clock, NoDevice())
    short = TimedCall(fn=lambda: clock.advance(10 * US), iterations=10)
    first = host.measure(short, stop=Ten())
    clock.loop_ns = 50 * US  # it would be timed if the last one were forgotten
    second = host.measure(short, stop=Ten())

    assert first.core_loops_s == second.core_loops_s == pytest.approx([20e-6] * 10)


def test_a_tracer_that_comes_between_two_measurements_is_not_beside_the_loop() -> None:
    """The loop of the last millisecond was not traced, and the samples are."""
    clock = SharedCore()
    host = HostCollector(clock, NoDevice())
    short = TimedCall(fn=lambda: clock.advance(10 * US), iterations=10)
    host.measure(short, stop=Ten())
    clock.traced_by = "pydevd"

    assert host.measure(short, stop=Ten()).core_loops_s == ()


class Ticking(FakeClock):
    """Processor time that comes in ticks; each reading of it takes some time itself."""

    def __init__(self, tick_ns: int, reading_ns: int) -> None:
        super().__init__()
        self.tick_ns, self.takes_ns = tick_ns, reading_ns

    def thread_cpu_ns(self) -> int:
        self.advance(self.takes_ns)
        return super().thread_cpu_ns() // self.tick_ns * self.tick_ns


@pytest.mark.parametrize(
    ("tick_ns", "reading_ns", "told"),
    [
        (15 * US, 300, False),
        (50 * US, 300, False),
        (1, 150 * US, True),
        (1000, 300, True),
    ],
)
def test_ticks_that_are_as_long_as_the_loop_tell_no_speed(
    tick_ns: int, reading_ns: int, *, told: bool
) -> None:
    """It is the tick that makes a clock coarse, not what a reading costs."""
    clock = Ticking(tick_ns, reading_ns)
    timing = HostCollector(clock, NoDevice()).measure(
        TimedCall(fn=lambda: clock.advance(10 * MS)), stop=Ten()
    )

    codes = [note.code for note in timing.notes]
    assert codes == ([] if told else ["coarse-cpu-clock"])
    assert told or timing.core_loops_s == ()
