"""Rules of collect.clock: how fast the core is, beside each sample."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from fakes.clock import FakeClock
from pytest_gpuperf.collect.base import TimedCall
from pytest_gpuperf.collect.clock import CoreLoop, SystemClock
from pytest_gpuperf.collect.runtime import NoDevice
from pytest_gpuperf.collect.timing.host import HostCollector

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
    waits = {note.code for note in timing.notes} & {"waits", "several-threads"}
    assert waits or len(timing.core_loops_s) == len(timing.samples)
    assert all(loop_s > 0 for loop_s in timing.core_loops_s)


def test_call_that_waits_has_no_core() -> None:
    """The speed of a core does not matter to a call that sleeps."""
    clock = FakeClock()
    collector = HostCollector(clock, NoDevice())
    timing = collector.measure(TimedCall(fn=lambda: clock.wait(MS)), stop=Ten())
    assert timing.core_loops_s == ()
