"""Rules of collect.timing.host and sampling: how a callable is timed."""

from __future__ import annotations

import collections
import functools
import gc
import itertools
import re
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from fakes.clock import FakeClock
from fakes.runtime import FakeRuntime
from pytest_gpuperf.collect.base import TimedCall, Timing
from pytest_gpuperf.collect.clock import SystemClock
from pytest_gpuperf.collect.load import Load
from pytest_gpuperf.collect.runtime import NoDevice
from pytest_gpuperf.collect.timing.host import HostCollector
from pytest_gpuperf.errors import MeasureError

US = 1_000  # ns
MS = 1_000_000  # ns


@dataclass
class StopAt:
    """A stop rule that wants a number of samples, and keeps when it was asked."""

    count: int = 10
    asked: list[int] = field(default_factory=list)

    def enough(self, values: Sequence[float]) -> bool:
        self.asked.append(len(values))
        return len(values) >= self.count


@pytest.fixture
def clock() -> FakeClock:
    """A clock that stands still."""
    return FakeClock()


@pytest.fixture
def host(clock: FakeClock) -> HostCollector:
    """A collector on that clock, without a device."""
    return HostCollector(clock, NoDevice())


@pytest.fixture
def load_module() -> Iterator[Callable[[], None]]:
    """A function whose every call loads a module of another name."""
    names: list[str] = []

    def load() -> None:
        names.append(f"gpuperf_fake_module_{len(names)}")
        sys.modules[names[-1]] = types.ModuleType(names[-1])

    yield load
    for name in names:
        del sys.modules[name]


class Never:
    """A stop rule that never has enough."""

    def enough(self, values: Sequence[float]) -> bool:
        return False


# ------------------------------------------------------------------ samples


def test_a_sample_is_the_time_of_a_call(clock: FakeClock, host: HostCollector) -> None:
    """Samples are seconds of a call, in the order they were taken."""
    fn = clock.taking(5 * MS, MS, MS, MS, *(n * MS for n in range(1, 11)), then_ns=0)
    timing = host.measure(TimedCall(fn=fn), stop=StopAt(10))

    assert timing.samples == pytest.approx([n / 1000 for n in range(1, 11)])
    assert timing.first_call_s == 0.005
    assert timing.warmup_count == 4
    assert timing.iterations_count == 1
    assert timing.source == "host"
    assert timing.result == 14
    assert timing.void is None


def test_arguments_are_passed_on(clock: FakeClock, host: HostCollector) -> None:
    """Positional and keyword arguments reach the callable."""

    def fn(*args: int, **kwargs: int) -> tuple[object, object]:
        clock.advance(MS)
        return args, kwargs

    timing = host.measure(TimedCall(fn=fn, args=(1, 2), kwargs={"a": 3}), stop=StopAt())

    assert timing.result == ((1, 2), {"a": 3})


def test_the_stop_rule_is_asked_at_growing_counts(
    clock: FakeClock, host: HostCollector
) -> None:
    """Its cost grows with the samples, so it is asked ever more rarely."""
    stop = StopAt(60)
    timing = host.measure(TimedCall(fn=clock.taking(then_ns=MS)), stop=stop)

    assert stop.asked == [10, 12, 15, 18, 22, 27, 33, 41, 51, 63]
    assert len(timing.samples) == 63


def test_the_budget_ends_what_never_has_enough(
    clock: FakeClock, host: HostCollector
) -> None:
    """A noisy call ends with the first sample that spends the budget."""
    request = TimedCall(fn=clock.taking(then_ns=MS), budget_s=0.1)
    timing = host.measure(request, stop=Never())

    assert len(timing.samples) == 100


def test_there_are_ten_samples_where_ten_seconds_hold_them(
    clock: FakeClock, host: HostCollector
) -> None:
    """Fewer would allow no interval; the stop rule is not even asked."""
    stop = StopAt(0)
    request = TimedCall(fn=clock.taking(then_ns=990 * MS), budget_s=1.0)
    timing = host.measure(request, stop=stop)

    assert len(timing.samples) == 10
    assert stop.asked == []


def test_there_are_no_more_samples_than_help(
    clock: FakeClock, host: HostCollector
) -> None:
    """A short noisy call stops at 4,096 samples, long before its budget."""
    request = TimedCall(fn=clock.taking(then_ns=10 * US), budget_s=10.0)
    timing = host.measure(request, stop=Never())

    assert len(timing.samples) == 4096


def test_a_least_time_keeps_it_going(clock: FakeClock, host: HostCollector) -> None:
    """With a least time, having enough is not the end."""
    request = TimedCall(fn=clock.taking(then_ns=MS), minimum_s=0.03)
    timing = host.measure(request, stop=StopAt(10))

    assert len(timing.samples) >= 30


def test_iterations_fix_the_number_of_calls(
    clock: FakeClock, host: HostCollector
) -> None:
    """All ranks of a job must call equally often: nothing depends on time."""
    fn = clock.taking(MS, 9 * MS, MS, 9 * MS, then_ns=1)
    stop = StopAt(0)
    timing = host.measure(TimedCall(fn=fn, iterations=3), stop=stop)

    assert len(timing.samples) == 3
    assert timing.result == 4 + 3
    assert stop.asked == []


def test_iterations_count_refused_samples_too(
    clock: FakeClock, host: HostCollector, load_module: Callable[[], None]
) -> None:
    """A refused sample is not made up for: the number of calls is fixed."""
    calls = clock.taking(then_ns=MS)

    def fn() -> int:
        if (number := calls()) == 6:
            load_module()
        return number

    timing = host.measure(TimedCall(fn=fn, iterations=3), stop=StopAt())

    assert len(timing.samples) == 2
    assert timing.discarded_count == 1
    assert timing.result == 7


# ------------------------------------------------------------------ warm-up


def test_warm_up_goes_on_until_times_are_of_one_order(
    clock: FakeClock, host: HostCollector
) -> None:
    """Three calls running within a factor of two, whatever came before."""
    fn = clock.taking(900 * MS, 50 * MS, 2 * MS, 30 * MS, 2 * MS, then_ns=MS)
    timing = host.measure(TimedCall(fn=fn), stop=StopAt())

    assert timing.warmup_count == 7
    assert timing.samples == (0.001,) * 10


def test_warm_up_has_a_budget(clock: FakeClock, host: HostCollector) -> None:
    """A call that never settles is sampled all the same; the first call is not counted."""
    fn = clock.taking(900 * MS, *[400 * MS, 10 * MS] * 50, then_ns=MS)
    timing = host.measure(TimedCall(fn=fn, budget_s=1.0), stop=StopAt())

    assert timing.warmup_count == 6


def test_times_below_the_clock_are_alike(clock: FakeClock, host: HostCollector) -> None:
    """What the clock can hardly tell apart does not keep the warm-up going."""
    fn = clock.taking(1, 10, 1, 40, then_ns=20)
    timing = host.measure(
        TimedCall(fn=fn, cache="warm", iterations=None), stop=StopAt()
    )

    assert timing.first_call_s == 1e-9
    assert timing.void is None
    assert timing.iterations_count > 1


def test_a_call_that_loads_modules_is_not_warm(
    clock: FakeClock, host: HostCollector, load_module: Callable[[], None]
) -> None:
    """Three calls running must have loaded nothing."""
    calls = clock.taking(then_ns=MS)

    def fn() -> int:
        if (number := calls()) < 5:
            load_module()
        return number

    timing = host.measure(TimedCall(fn=fn), stop=StopAt())

    assert timing.warmup_count == 7
    assert timing.discarded_count == 0


def test_a_sample_that_loads_a_module_is_refused(
    clock: FakeClock, host: HostCollector, load_module: Callable[[], None]
) -> None:
    """It is counted, and another one takes its place."""
    calls = clock.taking(then_ns=MS)

    def fn() -> int:
        if (number := calls()) in {6, 8}:
            load_module()
        return number

    timing = host.measure(TimedCall(fn=fn), stop=StopAt())

    assert timing.discarded_count == 2
    assert len(timing.samples) == 10


def test_a_call_that_always_loads_modules_cannot_be_timed(
    clock: FakeClock, host: HostCollector, load_module: Callable[[], None]
) -> None:
    """Without one good sample there is an error, and it ends."""
    calls = clock.taking(then_ns=MS)

    def fn() -> None:
        calls()
        load_module()

    with pytest.raises(MeasureError, match="every sample loaded a module"):
        host.measure(TimedCall(fn=fn, budget_s=0.01), stop=StopAt())


# ----------------------------------------------------------------- batching


def test_short_calls_are_batched(clock: FakeClock, host: HostCollector) -> None:
    """A sample has as many calls as the clock (1 ns here) needs a hundred times over."""
    timing = host.measure(TimedCall(fn=clock.taking(then_ns=20)), stop=StopAt())

    assert timing.iterations_count == 6
    assert timing.samples == pytest.approx([20e-9] * 10)
    assert timing.result == timing.warmup_count + 10 * 6


def test_the_batch_follows_the_step_of_the_clock() -> None:
    """On a clock that moves 10 ns with each look, a sample takes at least 1 us."""
    clock = FakeClock()

    class Stepping(FakeClock):
        def now_ns(self) -> int:
            clock.advance(10)
            return clock.reading_ns

    host = HostCollector(Stepping(), NoDevice())
    timing = host.measure(TimedCall(fn=lambda: clock.advance(90)), stop=StopAt())

    assert timing.iterations_count * 90 + 10 >= 1000
    assert timing.samples == pytest.approx([91e-9] * 10, rel=0.01)


def test_an_interrupted_trial_does_not_choose_the_batch(
    clock: FakeClock, host: HostCollector
) -> None:
    """The shorter of two trials counts."""
    fn = clock.taking(2, 2, 2, 2, 5_000, then_ns=2)
    timing = host.measure(TimedCall(fn=fn), stop=StopAt())

    assert timing.iterations_count >= 50


@pytest.mark.parametrize(
    ("cache", "asked"), [("cold", True), ("cold", False), ("warm", True)]
)
def test_a_cold_cache_without_a_device_is_a_doubt(
    clock: FakeClock, host: HostCollector, cache: str, asked: bool
) -> None:
    """Who asks for what is not done reads it beside the value; a default says nothing."""
    request = TimedCall(fn=clock.taking(then_ns=20), cache=cache, cache_asked=asked)
    notes = host.measure(request, stop=StopAt()).notes
    doubts = [note.code for note in notes if note.doubt]

    assert doubts == (["cache-not-cold"] if asked and cache == "cold" else [])


@pytest.mark.parametrize(
    "request_of",
    [
        lambda fn: TimedCall(fn=fn, setup=lambda: None),
        lambda fn: TimedCall(fn=fn, iterations=20),
    ],
)
def test_calls_that_must_stand_alone_are_not_batched(
    clock: FakeClock,
    host: HostCollector,
    request_of: Callable[[Callable[[], object]], TimedCall],
) -> None:
    """Then a call too short for the clock is said to be."""
    timing = host.measure(request_of(clock.taking(then_ns=20)), stop=StopAt())

    assert timing.iterations_count == 1
    assert "short-call" in [note.code for note in timing.notes]


def test_a_clock_that_stands_still_measures_nothing(host: HostCollector) -> None:
    """It is an error, not a time of zero."""
    with pytest.raises(MeasureError, match="the clock stood still"):
        host.measure(TimedCall(fn=int, iterations=5), stop=StopAt())


# ---------------------------------------------------- setup, inputs, check


def test_setup_is_not_timed(clock: FakeClock, host: HostCollector) -> None:
    """Each call gets arguments of its own, and their making is not part of its time."""
    made: list[list[int]] = []

    def setup() -> tuple[list[int], int]:
        clock.advance(50 * MS)
        made.append([len(made)])
        return made[-1], 7

    def fn(fresh: list[int], seven: int) -> tuple[int, int]:
        clock.advance(MS)
        fresh.append(seven)
        return len(fresh), seven

    timing = host.measure(TimedCall(fn=fn, setup=setup, budget_s=9.0), stop=StopAt())

    assert timing.samples == (0.001,) * 10
    assert timing.result == (2, 7)
    assert len(made) == 4 + 10
    assert timing.void is None


def test_setup_counts_against_the_budget(clock: FakeClock, host: HostCollector) -> None:
    """What nobody sees in the samples still takes the user's time."""
    fn = clock.taking(then_ns=MS)
    request = TimedCall(fn=fn, setup=lambda: clock.advance(99 * MS), budget_s=2.0)

    assert len(host.measure(request, stop=Never()).samples) == 20


def test_inputs_rotate(clock: FakeClock, host: HostCollector) -> None:
    """Samples take the pool in turn."""
    seen: list[int] = []

    def fn(item: int) -> None:
        clock.advance(MS)
        seen.append(item)

    host.measure(TimedCall(fn=fn, inputs=[(1,), (2,), (3,)]), stop=StopAt())

    assert seen == [1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2]


def test_check_sees_the_first_and_the_last_timed_output(
    clock: FakeClock, host: HostCollector
) -> None:
    """Not those of the warm-up, outside the samples, and some between them."""
    seen: list[int] = []

    def check(output: Any) -> None:
        clock.advance(500 * MS)
        seen.append(output)

    request = TimedCall(fn=clock.taking(then_ns=MS), check=check, budget_s=9.0)
    timing = host.measure(request, stop=StopAt())

    assert (seen[0], seen[-1]) == (5, 14)
    assert seen == sorted(set(seen))
    assert timing.samples == (0.001,) * 10


def test_check_sees_a_single_output_once(clock: FakeClock, host: HostCollector) -> None:
    """The first is the last."""
    seen: list[object] = []
    fn = clock.taking(then_ns=MS)
    host.measure(TimedCall(fn=fn, check=seen.append, iterations=1), stop=StopAt())

    assert seen == [5]


def test_a_call_that_changes_its_inputs_is_void(
    clock: FakeClock, host: HostCollector
) -> None:
    """It had other work each time; the remedy is named."""

    def fn(values: list[int]) -> None:
        clock.advance(MS * len(values))
        values.append(1)

    timing = host.measure(TimedCall(fn=fn, args=([1],)), stop=StopAt())

    assert timing.void is not None
    assert timing.void.code == "mutates-its-inputs"


def test_notes_reach_the_timing(clock: FakeClock, host: HostCollector) -> None:
    """Differing outputs and a trend are said, not judged."""
    fn = clock.taking(*[MS] * 4, *(MS + n * 20 * US for n in range(33)), then_ns=MS)
    timing = host.measure(TimedCall(fn=fn), stop=StopAt(33))

    assert [note.code for note in timing.notes] == ["outputs-differ", "trend"]
    assert timing.void is None


def test_a_call_that_uses_up_its_input_is_void(
    clock: FakeClock, host: HostCollector
) -> None:
    """All calls but the first had nothing to do."""

    def fn(values: Iterator[int]) -> None:
        clock.advance(MS * (1 + sum(values)))

    request = TimedCall(fn=fn, args=(iter(range(9)),))
    timing = host.measure(request, stop=StopAt())

    assert timing.void is not None
    assert timing.void.code == "uses-up-its-inputs"
    assert timing.samples == (0.001,) * 10


def test_a_long_first_call_is_noted_where_no_device_compiles(
    clock: FakeClock, host: HostCollector
) -> None:
    """What it did may be kept or used up; with a device, the first call is long."""

    def fn() -> None:
        clock.advance(20 * MS if clock.now_ns() < MS else 100 * US)

    timing = host.measure(TimedCall(fn=fn), stop=StopAt())
    other = FakeClock()
    on_device = HostCollector(other, FakeRuntime(other))
    long_first = TimedCall(fn=other.taking(20 * MS, then_ns=100 * US))
    noted = on_device.measure(long_first, stop=StopAt()).notes

    assert "long-first-call" in [note.code for note in timing.notes]
    assert "long-first-call" not in [note.code for note in noted]


def test_what_the_first_call_used_up_is_told(
    clock: FakeClock, host: HostCollector
) -> None:
    """By what it emptied, or by what it alone returned; a cache does neither."""
    items = [1] * 20

    def drain() -> None:
        clock.advance(US + len(items) * MS)
        items.clear()

    def summed() -> int:
        found = sum(left)
        clock.advance(US + found * MS)
        return found

    @functools.cache
    def kept() -> int:
        clock.advance(20 * MS)
        return 20

    def cached() -> int:
        clock.advance(US)
        return kept()

    left = iter([1] * 20)
    told = {
        fn.__name__: [
            note.code
            for note in host.measure(TimedCall(fn=fn), stop=StopAt()).notes
            if note.code in {"used-up", "long-first-call"}
        ]
        for fn in (drain, summed, cached)
    }

    assert told == {
        "drain": ["used-up"],
        "summed": ["used-up"],
        "cached": ["long-first-call"],
    }


# ------------------------------------------------- what the callable raises


async def coroutine() -> None:
    """Do nothing, later."""


def later() -> object:
    """Return a coroutine without being a coroutine function."""
    return coroutine()


@pytest.mark.parametrize("fn", [coroutine, later])
def test_an_awaitable_is_refused(host: HostCollector, fn: Callable[[], object]) -> None:
    """Making one does no work; that it was never awaited is not a second complaint."""
    with pytest.raises(MeasureError, match="awaitable"):
        host.measure(TimedCall(fn=fn), stop=StopAt())


@pytest.mark.parametrize(
    "error", [ValueError("mine"), KeyboardInterrupt(), SystemExit()]
)
@pytest.mark.parametrize("at_call", [1, 3, 6])
@pytest.mark.parametrize("collecting", [True, False])
def test_what_the_callable_raises_passes_through(
    clock: FakeClock,
    host: HostCollector,
    error: BaseException,
    at_call: int,
    collecting: bool,
) -> None:
    """It is the test's own; the garbage collector is left as it was found."""
    calls = clock.taking(then_ns=MS)

    def fn() -> None:
        if calls() == at_call:
            raise error

    was = gc.isenabled()
    try:
        (gc.enable if collecting else gc.disable)()
        with pytest.raises(type(error)) as caught:
            host.measure(TimedCall(fn=fn), stop=StopAt())
        left = gc.isenabled()
    finally:
        (gc.enable if was else gc.disable)()

    assert caught.value is error
    assert left is collecting


# ---------------------------------------------------------------------- gc


def test_garbage_is_collected_between_samples(
    clock: FakeClock, host: HostCollector
) -> None:
    """Never in a sample, and not only after the last: cycles may hold a GPU's memory."""
    alive: list[int] = []
    count = 0

    class Cycle:
        def __init__(self) -> None:
            nonlocal count
            self.me = self
            count += 1

        def __del__(self) -> None:
            nonlocal count
            count -= 1

    def fn() -> tuple[bool, int]:
        clock.advance(MS)
        for _ in range(1000):
            Cycle()
        alive.append(count)
        return gc.isenabled(), gc.get_threshold()[0]

    timing = host.measure(TimedCall(fn=fn), stop=StopAt(49))

    # It looks enabled to code that behaves differently while it is measured.
    assert timing.result == (True, 0)
    assert max(alive) < 20_000


def test_old_garbage_is_collected_as_rarely_as_by_python(
    clock: FakeClock, host: HostCollector
) -> None:
    """Each time the youngest are due, and the next only after some of those."""
    generations: list[int] = []

    def seen(phase: str, told: dict[str, int]) -> None:
        if phase == "start":
            generations.append(told["generation"])

    def fn() -> None:
        clock.advance(MS)
        for _ in range(5000):
            cycle: list[object] = []
            cycle.append(cycle)

    gc.callbacks.append(seen)
    try:
        host.measure(TimedCall(fn=fn), stop=StopAt(60))
    finally:
        gc.callbacks.remove(seen)

    youngest, older = generations.count(0), generations.count(1)
    assert youngest >= 40
    assert 0 < older <= youngest / 5


@pytest.mark.parametrize(
    ("call_ms", "objects_count", "code"),
    [(1, 5000, "leaves-garbage"), (9, 5000, "garbage"), (90, 5000, None), (9, 0, None)],
)
def test_the_garbage_of_a_call_is_counted_and_timed(
    clock: FakeClock,
    host: HostCollector,
    call_ms: int,
    objects_count: int,
    code: str | None,
) -> None:
    """As Python's collector would find it: of a sweep of 2 ms behind each call."""

    def seen(phase: str, _: dict[str, int]) -> None:
        if phase == "stop":
            clock.advance(2 * MS)

    def fn() -> None:
        clock.advance(call_ms * MS)
        for _ in range(objects_count):
            cycle: list[object] = []
            cycle.append(cycle)

    gc.callbacks.append(seen)
    try:
        timing = host.measure(TimedCall(fn=fn, budget_s=9.0), stop=StopAt())
    finally:
        gc.callbacks.remove(seen)

    assert timing.samples == pytest.approx([call_ms / 1e3] * len(timing.samples))
    assert timing.garbage is not None
    assert timing.garbage.objects_count == pytest.approx(objects_count, rel=0.2)
    swept_s = 2e-3 if objects_count else 0
    assert timing.garbage.time_s == pytest.approx(swept_s, rel=0.2)
    found = [note for note in timing.notes if "garbage" in note.code]
    assert [note.code for note in found] == ([code] if code else [])
    assert all(re.search(r"\b[45],\d{3} objects", note.text) for note in found)


def test_garbage_of_before_is_not_that_of_the_calls(
    clock: FakeClock, host: HostCollector
) -> None:
    """Of the test before, say: the call itself leaves none, and keeps what it makes."""
    kept: list[list[int]] = []

    def fn() -> None:
        clock.advance(MS)
        kept.extend([] for _ in range(1000))

    gc.collect(1)
    cycles: list[list[object]] = [[] for _ in range(5000)]
    for cycle in cycles:
        cycle.append(cycle)
    gc.collect(0)  # An older generation has it now, and is collected later.
    del cycle, cycles
    timing = host.measure(TimedCall(fn=fn), stop=StopAt(60))

    assert timing.garbage is not None
    assert timing.garbage.objects_count == 0


def test_the_first_sweep_counts_the_garbage_of_the_calls_alone(
    clock: FakeClock, host: HostCollector
) -> None:
    """It may be the only one, and finds what other code has left before as well."""

    def fn() -> None:
        clock.advance(MS)
        for _ in range(120):
            cycle: list[object] = []
            cycle.append(cycle)

    gc.collect(1)
    others: list[list[object]] = [[] for _ in range(90)]
    for each in others:
        each.append(each)
    del each, others
    then = gc.get_threshold()
    gc.set_threshold(700, 10, 10)  # The seventh call has more before it.
    try:
        timing = host.measure(TimedCall(fn=fn, iterations=5), stop=StopAt())
    finally:
        gc.set_threshold(*then)

    assert timing.garbage is not None
    found_count = timing.garbage.objects_count * 5
    # Of the young objects of other code, those that still live are taken off, too.
    assert 6 * 120 - 90 <= found_count < 6 * 120 + 90


def test_garbage_is_not_hidden_by_older_objects_that_were_freed(
    clock: FakeClock, host: HostCollector
) -> None:
    """Each makes Python's count of young objects smaller, and the young ones are still there."""

    def fn() -> list[list[int]]:
        clock.advance(MS)
        return [[] for _ in range(400)]

    older: list[list[int]] = [[] for _ in range(2000)]
    gc.collect()
    gc.disable()
    try:
        others: list[list[object]] = [[] for _ in range(500)]
        for each in others:
            each.append(each)
        del each, others
        older.clear()
    finally:
        gc.enable()
    then = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    try:
        timing = host.measure(TimedCall(fn=fn, iterations=5), stop=StopAt())
    finally:
        gc.set_threshold(*then)

    assert timing.garbage is not None
    assert timing.garbage.objects_count == 0


def test_garbage_is_left_where_the_test_wants_it(
    clock: FakeClock, host: HostCollector
) -> None:
    """Who has switched the collector off gets no collection from us."""
    collections: list[str] = []

    def seen(phase: str, _: dict[str, int]) -> None:
        collections.append(phase)

    def fn() -> list[list[int]]:
        clock.advance(MS)
        return [[] for _ in range(5000)]

    gc.disable()
    gc.callbacks.append(seen)
    try:
        host.measure(TimedCall(fn=fn), stop=StopAt())
    finally:
        gc.callbacks.remove(seen)
        gc.enable()

    assert collections == []


# ----------------------------------------------------------------- devices


def test_a_sample_ends_with_the_device(clock: FakeClock) -> None:
    """With a device, time is call to synchronise, from an idle device."""
    runtime = FakeRuntime(clock, flush_ns=300 * MS)
    host = HostCollector(clock, runtime)

    def fn() -> None:
        clock.advance(MS)
        runtime.pending_ns += 4 * MS

    timing = host.measure(TimedCall(fn=fn, budget_s=9.0), stop=StopAt())

    assert timing.samples == (0.005,) * 10
    assert timing.first_call_s == 0.005
    assert timing.cache_mode == "cold"
    assert runtime.events[-3:] == ["flush", "synchronize", "synchronize"]


def test_a_warm_cache_is_not_flushed(clock: FakeClock) -> None:
    """Then short calls may be batched, with one wait for all of them."""
    runtime = FakeRuntime(clock)
    host = HostCollector(clock, runtime)

    def fn() -> None:
        runtime.pending_ns += 20

    timing = host.measure(TimedCall(fn=fn, cache="warm"), stop=StopAt())

    assert timing.cache_mode == "warm"
    assert timing.iterations_count == 6
    assert timing.samples == pytest.approx([20e-9] * 10)
    assert "flush" not in runtime.events


def test_a_cold_cache_forbids_batches(clock: FakeClock) -> None:
    """Between two calls there must be a flush."""
    runtime = FakeRuntime(clock)
    host = HostCollector(clock, runtime)
    timing = host.measure(TimedCall(fn=clock.taking(then_ns=20)), stop=StopAt())

    assert timing.iterations_count == 1
    assert timing.cache_mode == "cold"


def test_without_a_device_nothing_is_done_about_caches(
    clock: FakeClock, host: HostCollector
) -> None:
    """The method says "none", and no note does."""
    timing = host.measure(
        TimedCall(fn=clock.taking(then_ns=MS), cache="cold"), stop=StopAt()
    )

    assert timing.cache_mode == "none"
    assert [note.code for note in timing.notes] == ["outputs-differ"]


def test_the_first_call_may_start_the_device(clock: FakeClock) -> None:
    """A device that the callable itself brings up is waited for from then on."""
    runtime = FakeRuntime(clock, in_use=False)
    host = HostCollector(clock, runtime)

    def fn() -> None:
        runtime.in_use = True
        clock.advance(MS)
        runtime.pending_ns += 4 * MS

    timing = host.measure(TimedCall(fn=fn), stop=StopAt())

    assert timing.first_call_s == 0.005
    assert timing.samples == (0.005,) * 10
    assert timing.cache_mode == "cold"


class Unfinished:
    """An output that is still being computed, as jax returns it."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock

    def block_until_ready(self) -> None:
        self._clock.advance(4 * MS)


@pytest.mark.parametrize(
    "pack", [lambda x: x, lambda x: (1, x), lambda x: [x], lambda x: {"loss": x}]
)
def test_an_asynchronous_output_is_waited_for(
    clock: FakeClock, host: HostCollector, pack: Callable[[object], object]
) -> None:
    """The call has not ended before its output is there; such calls are not batched."""

    def fn() -> object:
        clock.advance(10)
        return pack(Unfinished(clock))

    timing = host.measure(TimedCall(fn=fn), stop=StopAt())

    assert timing.samples == pytest.approx([0.00400001] * 10)
    assert timing.iterations_count == 1


# ----------------------------------------------------- interrupted samples


def interrupted_at(
    clock: FakeClock, numbers: Callable[[int], bool], call_ns: int = MS
) -> Callable[[], int]:
    """Return a call of some time that is interrupted for as long at some numbers."""
    calls = clock.taking(then_ns=call_ns)

    def fn() -> int:
        if numbers(number := calls()):
            clock.interrupt(call_ns)
        return number

    return fn


def codes(timing: Timing) -> list[str]:
    """Return the codes of a timing's notes, without those of a counting double."""
    return [note.code for note in timing.notes if note.code != "outputs-differ"]


def test_an_interrupted_sample_does_not_count(
    clock: FakeClock, host: HostCollector
) -> None:
    """Sampling goes on until 10 others do; those left out are counted as refused."""
    fn = interrupted_at(clock, lambda number: number > 4 and number % 3 != 0)
    timing = host.measure(TimedCall(fn=fn), stop=StopAt(10))

    assert timing.samples == (0.001,) * 10
    assert timing.discarded_count == 20
    assert codes(timing) == []


def test_a_thread_that_ran_for_97_percent_was_not_interrupted(
    clock: FakeClock, host: HostCollector
) -> None:
    """The clock and the kernel take some of every sample."""
    lost_us = iter([0] * 4 + [30, 31] * 10)

    def fn() -> None:
        lost_ns = next(lost_us) * US
        clock.advance(MS - lost_ns)
        clock.interrupt(lost_ns)

    timing = host.measure(TimedCall(fn=fn, iterations=20), stop=StopAt())

    assert (len(timing.samples), timing.discarded_count) == (10, 10)


def test_fewer_than_five_samples_are_no_value(
    clock: FakeClock, host: HostCollector
) -> None:
    """
    When the budget is spent all count by their processor time, and a reader must not
    miss it.
    """
    fn = interrupted_at(clock, lambda number: number not in {3, *range(5, 9)}, 10 * MS)
    timing = host.measure(TimedCall(fn=fn, budget_s=0.2), stop=Never())
    (note,) = (note for note in timing.notes if note.code == "interrupted")

    assert timing.samples == pytest.approx([0.01] * 12)
    assert timing.discarded_count == 0
    assert note.text == (
        "8 of 12 samples were interrupted: the machine was busy, so the time is that of"
        " the processor"
    )
    assert note.doubt


@pytest.mark.parametrize("among_three", [1, 2, 3])
def test_a_sample_that_waited_by_itself_counts(
    clock: FakeClock, host: HostCollector, among_three: int
) -> None:
    """However many of the samples do, the time that they waited is a part of theirs."""
    calls = clock.taking(then_ns=MS)

    def fn() -> int:
        if (number := calls()) > 4 and number % 3 < among_three:
            clock.wait(5 * MS)
        return number

    timing = host.measure(TimedCall(fn=fn, iterations=12), stop=StopAt())
    seen = collections.Counter(timing.samples)

    waited = 4 * among_three
    assert seen == collections.Counter({0.006: waited, 0.001: 12 - waited})
    assert timing.discarded_count == 0
    assert codes(timing) == (["waits"] if among_three > 1 else [])


@pytest.mark.parametrize(
    ("blocks", "found"), [(8, ["waits", "uses-disk"]), (0, ["waits"])]
)
def test_a_disk_may_begin_to_be_slow_after_the_warm_up(
    clock: FakeClock, host: HostCollector, blocks: int, found: list[str]
) -> None:
    """A file that was written to memory waits for the disk later."""
    calls = clock.taking(then_ns=MS)

    def fn() -> int:
        if (number := calls()) > 4:
            clock.wait(5 * MS)
            clock.blocks = (clock.blocks or 0) + blocks
        return number

    assert codes(host.measure(TimedCall(fn=fn), stop=StopAt())) == found


def test_who_gives_the_processor_up_for_a_moment_is_interrupted_as_others_are(
    clock: FakeClock, host: HostCollector
) -> None:
    """Where samples that ran through gave it up too, that tells no waiting."""
    calls = clock.taking(then_ns=MS - 10 * US)

    def fn() -> int:
        clock.wait(10 * US)
        if (number := calls()) > 4 and number % 3:
            clock.interrupt(5 * MS)
        return number

    timing = host.measure(TimedCall(fn=fn), stop=StopAt(10))

    assert timing.samples == (0.001,) * 10
    assert timing.discarded_count == 20


def test_who_waits_in_some_samples_loses_those_that_were_interrupted(
    clock: FakeClock, host: HostCollector
) -> None:
    """Each sample is judged by its own waits, not by those between or beside it."""
    calls = clock.taking(then_ns=MS)

    def fn() -> int:
        if (number := calls()) > 4 and number % 2:
            (clock.interrupt if number % 4 == 1 else clock.wait)(5 * MS)
        return number

    timing = host.measure(
        TimedCall(fn=fn, setup=lambda: clock.wait(MS), iterations=12), stop=StopAt()
    )
    seen = collections.Counter(timing.samples)

    assert seen == {0.006: 3, 0.001: 6}
    assert timing.discarded_count == 3


def test_what_interrupted_samples_may_have_waited_for_is_their_time(
    clock: FakeClock, host: HostCollector
) -> None:
    """A call that waits from its first sample on, where nobody counts waits."""
    calls = clock.taking(then_ns=10 * MS)
    clock.waits = None

    def fn() -> int:
        if (number := calls()) > 4:
            clock.wait(10 * MS)
        return number

    timing = host.measure(TimedCall(fn=fn, budget_s=0.2), stop=Never())
    (note,) = (note for note in timing.notes if note.code == "interrupted")

    assert timing.samples == pytest.approx([0.02] * 10)
    assert note.text == "10 of 10 samples were interrupted: the machine was busy"


def test_five_samples_are_a_value(clock: FakeClock, host: HostCollector) -> None:
    """When the budget is spent, those that were not interrupted are enough."""
    fn = interrupted_at(clock, lambda number: number > 9, 10 * MS)
    timing = host.measure(TimedCall(fn=fn, budget_s=0.2), stop=Never())

    assert timing.samples == (0.01,) * 5
    assert timing.discarded_count == 8
    assert codes(timing) == []


def test_fixed_iterations_are_not_made_up_for(
    clock: FakeClock, host: HostCollector
) -> None:
    """All ranks call equally often: with fewer than 5 left, the processor's time counts."""
    fn = interrupted_at(clock, lambda number: number == 6)
    few = host.measure(TimedCall(fn=fn, iterations=3), stop=StopAt())
    fn = interrupted_at(clock, lambda number: number == 6)
    enough = host.measure(TimedCall(fn=fn, iterations=6), stop=StopAt())

    assert few.samples == (0.001,) * 3
    assert codes(few) == ["interrupted"]
    assert enough.samples == (0.001,) * 5
    assert enough.discarded_count == 1


def test_a_call_that_waits_keeps_its_samples(
    clock: FakeClock, host: HostCollector
) -> None:
    """To wait is its nature, and that is told; what it waits for is its time."""
    timing = host.measure(TimedCall(fn=lambda: clock.wait(MS)), stop=StopAt())

    assert timing.samples == (0.001,) * 10
    assert codes(timing) == ["waits"]


def test_a_call_without_an_uninterrupted_warm_up_is_not_thought_to_wait(
    clock: FakeClock, host: HostCollector
) -> None:
    """A long call on a busy machine: its thread never gave its processor up itself."""
    fn = interrupted_at(clock, lambda number: number < 6)
    timing = host.measure(TimedCall(fn=fn), stop=StopAt())

    assert timing.samples == (0.001,) * 10
    assert timing.discarded_count == 1
    assert codes(timing) == []


def test_where_nobody_counts_waits_an_interrupted_warm_up_is_one(
    clock: FakeClock, host: HostCollector
) -> None:
    """Then processor time alone says whether a call can do without waiting."""
    clock.waits = None
    fn = interrupted_at(clock, lambda number: number < 6)
    timing = host.measure(TimedCall(fn=fn), stop=StopAt())

    assert timing.samples == (0.002,) + (0.001,) * 9
    assert codes(timing) == ["waits"]


def test_the_first_call_does_not_say_whether_a_call_waits(
    clock: FakeClock, host: HostCollector
) -> None:
    """It may compile, and so run all the time, where all others wait for it."""
    calls = clock.taking(then_ns=0)

    def fn() -> None:
        (clock.advance if calls() == 1 else clock.wait)(MS)

    assert codes(host.measure(TimedCall(fn=fn), stop=StopAt())) == ["waits"]


@pytest.mark.parametrize(
    ("others_us", "noted"), [(150, []), (250, ["several-threads"])]
)
def test_a_call_of_several_threads_keeps_its_samples(
    clock: FakeClock, host: HostCollector, others_us: int, noted: list[str]
) -> None:
    """What interrupts another thread cannot be seen in this one: 1.2 tells them."""

    def fn() -> None:
        clock.advance(MS)
        clock.others_ns += others_us * US

    assert codes(host.measure(TimedCall(fn=fn), stop=StopAt())) == noted


@pytest.mark.parametrize(("rest_ms", "noted"), [(30, []), (90, ["several-threads"])])
def test_threads_that_an_import_has_started_are_outwaited(
    clock: FakeClock, host: HostCollector, rest_ms: int, noted: list[str]
) -> None:
    """OpenBLAS lets its new threads spin for 30 ms: calls go on until they rest."""

    def fn() -> None:
        clock.advance(MS)
        if clock.reading_ns < rest_ms * MS:
            clock.others_ns += MS

    timing = host.measure(TimedCall(fn=fn), stop=StopAt())

    assert codes(timing) == noted
    assert timing.warmup_count <= 60


def test_long_calls_are_not_repeated_for_threads(
    clock: FakeClock, host: HostCollector
) -> None:
    """Calls that last longer than threads spin have shown what works beside them."""

    def fn() -> None:
        clock.advance(20 * MS)
        clock.others_ns += 20 * MS

    timing = host.measure(TimedCall(fn=fn), stop=StopAt())

    assert codes(timing) == ["several-threads"]
    assert timing.warmup_count == 4


def test_a_coarse_clock_tells_no_interruptions() -> None:
    """A kernel that counts ticks would call most samples interrupted."""

    class Ticking(FakeClock):
        def now_ns(self) -> int:
            self.reading_ns += 10
            return self.reading_ns

        def thread_cpu_ns(self) -> int:
            return self.reading_ns // (10 * MS) * 10 * MS

    clock = Ticking()
    timing = HostCollector(clock, NoDevice()).measure(
        TimedCall(fn=lambda: clock.advance(MS)), stop=StopAt()
    )

    assert len(timing.samples) == 10
    assert codes(timing) == ["coarse-cpu-clock"]


def test_a_device_is_waited_for_in_every_sample(clock: FakeClock) -> None:
    """That is no interruption, and nothing is said of it."""
    runtime = FakeRuntime(clock)
    host = HostCollector(clock, runtime)

    def fn() -> None:
        clock.wait(MS)
        runtime.pending_ns += MS

    timing = host.measure(TimedCall(fn=fn), stop=StopAt())

    assert timing.samples == (0.002,) * 10
    assert timing.notes == ()


def test_an_interrupted_sample_takes_its_partner_with_it(
    clock: FakeClock, host: HostCollector
) -> None:
    """What is compared was taken side by side; a side that waits interrupts none."""
    fn = interrupted_at(clock, lambda number: number == 7)
    first, second, waiting = (
        TimedCall(fn=fn),
        TimedCall(fn=lambda: clock.advance(MS)),
        TimedCall(fn=lambda: clock.wait(MS)),
    )
    a, b = host.interleave(first, second, stop=StopAt())
    c, d = host.interleave(second, waiting, stop=StopAt())

    assert (len(a.samples), a.discarded_count) == (10, 1)
    assert (len(b.samples), b.discarded_count) == (10, 1)
    assert a.samples == b.samples == (0.001,) * 10
    assert (c.discarded_count, d.discarded_count) == (0, 0)
    assert (codes(c), codes(d)) == ([], ["waits"])


# -------------------------------------------------------------- comparisons


def test_callables_are_interleaved(clock: FakeClock, host: HostCollector) -> None:
    """A B, B A, A B: drift is in both, and each sample has a partner."""
    order: list[str] = []

    def of(name: str, elapsed_ns: int) -> TimedCall:
        def fn() -> None:
            clock.advance(elapsed_ns)
            order.append(name)

        return TimedCall(fn=fn)

    fast, slow = host.interleave(of("a", MS), of("b", 2 * MS), stop=StopAt())

    assert "".join(order) == "aaaa" + "bbbb" + "abba" * 5
    assert fast.samples == (0.001,) * 10
    assert slow.samples == (0.002,) * 10


def test_a_refused_sample_takes_its_partner_with_it(
    clock: FakeClock, host: HostCollector, load_module: Callable[[], None]
) -> None:
    """Both have equally many samples."""
    calls = clock.taking(then_ns=MS)

    def loads() -> None:
        if calls() == 7:
            load_module()

    first, second = host.interleave(
        TimedCall(fn=loads), TimedCall(fn=clock.taking(then_ns=MS)), stop=StopAt()
    )

    assert len(first.samples) == len(second.samples) == 10
    assert first.discarded_count == second.discarded_count == 1


def test_each_callable_has_a_batch_of_its_own(
    clock: FakeClock, host: HostCollector
) -> None:
    """A short one is batched beside a long one."""
    short, long = host.interleave(
        TimedCall(fn=clock.taking(then_ns=20)),
        TimedCall(fn=clock.taking(then_ns=MS)),
        stop=StopAt(),
    )

    assert (short.iterations_count, long.iterations_count) == (6, 1)


def test_a_comparison_needs_equal_iterations(host: HostCollector) -> None:
    """Samples that have no partner cannot be paired."""
    with pytest.raises(MeasureError, match="different iterations"):
        host.interleave(
            TimedCall(fn=int, iterations=1), TimedCall(fn=int), stop=StopAt()
        )


# ------------------------------------------------------------------- ranges


def test_a_block_is_timed_once(clock: FakeClock) -> None:
    """From an idle device to an idle device; garbage collection as it comes."""
    runtime = FakeRuntime(clock)
    runtime.pending_ns = 7 * MS
    with HostCollector(clock, runtime).measure_range() as timer:
        clock.advance(MS)
        runtime.pending_ns = 2 * MS
        collecting = gc.isenabled()

    assert timer.timing == Timing(samples=(0.003,), source="host", returned=(0.001,))
    assert collecting


def test_a_block_that_imports_says_so(
    clock: FakeClock, host: HostCollector, load_module: Callable[[], None]
) -> None:
    """There is no second sample to take in its place."""
    with host.measure_range() as timer:
        clock.advance(MS)
        load_module()

    assert timer.timing is not None
    assert [note.code for note in timer.timing.notes] == ["loaded-modules"]


@pytest.mark.parametrize(
    ("waits_ms", "counted", "codes_of_block"),
    [(4, True, ["waits"]), (4, False, []), (2, True, []), (0, True, [])],
)
def test_a_block_that_mostly_waits_says_so(
    clock: FakeClock, waits_ms: int, counted: bool, codes_of_block: list[str]
) -> None:
    """By itself: one that was interrupted, or that nobody counts, is none."""
    clock.waits = 0 if counted else None
    with HostCollector(clock, NoDevice()).measure_range() as timer:
        clock.advance(3 * MS)
        if waits_ms:
            clock.wait(waits_ms * MS)
        else:
            clock.interrupt(9 * MS)

    assert timer.timing is not None
    assert [note.code for note in timer.timing.notes] == codes_of_block


def test_a_block_that_raises_has_no_time(host: HostCollector) -> None:
    """What it raised passes through."""
    timer = host.measure_range()
    with pytest.raises(ValueError, match="mine"), timer:
        raise ValueError("mine")

    assert timer.timing is None


# --------------------------------------------------------------- real clock


def test_a_real_call_has_a_positive_time() -> None:
    """On the machine's own clock, times are above zero and below their sum."""
    clock = SystemClock()
    begun_ns = clock.now_ns()
    timing = HostCollector(clock, NoDevice()).measure(
        TimedCall(fn=sum, args=(range(50),), budget_s=0.05), stop=StopAt(20)
    )
    elapsed_s = (clock.now_ns() - begun_ns) / 1e9

    assert timing.result == 1225
    assert all(sample > 0 for sample in timing.samples)
    assert sum(timing.samples) * timing.iterations_count <= elapsed_s
    assert timing.void is None


# -------------------------------------------------------------------- turns


class Turns:
    """Notes when a turn is asked for; another has enough after some of them."""

    def __init__(self, clock: FakeClock, *, until: int) -> None:
        self.clock = clock
        self.until = until
        self.asked: list[bool] = []

    def take(self, enough: bool) -> bool:
        self.clock.advance(7 * MS)  # of others' samples
        self.asked.append(enough)
        return not enough or len(self.asked) < self.until


def test_a_turn_is_taken_before_each_sample(clock: FakeClock) -> None:
    """The wait for it lies in none; warm-up asks for none."""
    turns = Turns(clock, until=0)
    host = HostCollector(clock, NoDevice(), take_turn=turns.take)
    timing = host.measure(
        TimedCall(fn=clock.taking(then_ns=MS), budget_s=1), stop=StopAt(10)
    )

    assert timing.samples == pytest.approx([0.001] * 10)
    assert turns.asked == [False] * 10 + [True]


def test_samples_are_taken_until_others_have_enough(clock: FakeClock) -> None:
    """All count; a stop rule that has had enough is not asked again."""
    turns, stop = Turns(clock, until=25), StopAt(10)
    host = HostCollector(clock, NoDevice(), take_turn=turns.take)
    timing = host.measure(TimedCall(fn=clock.taking(then_ns=MS), budget_s=1), stop=stop)

    assert len(timing.samples) == 24
    assert stop.asked == [10]


@pytest.mark.parametrize(
    ("interrupted", "count"),
    [(0, 42), (20, 72)],  # of the first samples; asked ever more rarely
)
def test_time_in_samples_that_nothing_interrupted_can_be_enough(
    clock: FakeClock, interrupted: int, count: int
) -> None:
    """Without the waits for turns, and without what a busy machine has spoilt."""
    turns = Turns(clock, until=0)
    host = HostCollector(clock, NoDevice(), take_turn=turns.take)
    calls = itertools.count(-4)  # of the warm-up

    def call() -> None:
        clock.advance(MS)
        if 0 <= next(calls) < interrupted:
            clock.waited_ns += MS // 2

    timing = host.measure(TimedCall(fn=call, budget_s=99), stop=Never(), enough_s=0.04)

    assert len(turns.asked) == count
    assert len(timing.samples) == count - 1 - interrupted


@pytest.mark.parametrize(
    ("how", "count"), [({"iterations": 12}, 12), ({"budget_s": 0.1}, 14)]
)
def test_others_cannot_make_it_take_more_than_its_test_allows(
    clock: FakeClock, how: dict[str, float], count: int
) -> None:
    """Fixed iterations are fixed, and a budget is spent by waiting, too."""
    turns = Turns(clock, until=99)
    host = HostCollector(clock, NoDevice(), take_turn=turns.take)
    request = TimedCall(fn=clock.taking(then_ns=MS), **{"budget_s": 1, **how})  # type: ignore[arg-type] # one is an int

    assert len(host.measure(request, stop=StopAt(10)).samples) == count


def test_a_turn_is_taken_before_each_pair(clock: FakeClock) -> None:
    """The two of a pair lie in one turn."""
    turns = Turns(clock, until=0)
    host = HostCollector(clock, NoDevice(), take_turn=turns.take)
    request = TimedCall(fn=clock.taking(then_ns=MS), budget_s=1)
    first, second = host.interleave(request, request, stop=StopAt(10))

    assert len(first.samples) == len(second.samples) == 10
    assert turns.asked == [False] * 10 + [True]


@pytest.mark.parametrize(
    ("load", "noted"),
    [(Load(13, 2), True), (Load(3, 2), True), (Load(2, 2), False), (None, False)],
)
def test_threads_that_share_the_cores_with_others_are_noted(
    clock: FakeClock, host: HostCollector, load: Load | None, *, noted: bool
) -> None:
    """Two threads that spin on two cores by themselves do not; three of any kind do."""
    clock.machine_load = load

    def fn() -> None:
        clock.advance(MS)
        clock.others_ns += MS

    timing = host.measure(TimedCall(fn=fn), stop=StopAt())
    texts = [n.text for n in timing.notes if n.code == "oversubscribed"]

    assert len(texts) == noted
    assert all(
        f"{load.runnable_count} runnable threads, those of the call among them, on 2 cores"
        in text
        for text in texts
        if load is not None
    )


def test_a_moments_thread_beside_a_call_is_no_contention(
    clock: FakeClock, host: HostCollector
) -> None:
    """Most looks decide; those before the samples do not count."""
    clock.machine_load = Load(40, 2)
    calls = itertools.count()

    def fn() -> None:
        clock.advance(20 * MS)
        clock.others_ns += 20 * MS
        clock.machine_load = Load(40 if next(calls) % 3 == 0 else 2, 2)

    assert codes(host.measure(TimedCall(fn=fn), stop=StopAt())) == ["several-threads"]


def test_the_load_beside_one_thread_is_not_asked_for(
    clock: FakeClock, host: HostCollector
) -> None:
    """What interrupts it is seen in its own processor time."""
    clock.machine_load = Load(40, 2)

    def fn() -> None:
        clock.advance(MS)

    assert codes(host.measure(TimedCall(fn=fn), stop=StopAt())) == []


@pytest.mark.parametrize(
    ("blocks", "noted"), [(8, True), (1, True), (0, False), (None, False)]
)
def test_a_call_that_waits_and_uses_a_disk_says_so(
    clock: FakeClock, host: HostCollector, blocks: int | None, *, noted: bool
) -> None:
    """The disk's blocks are counted for the process, where the system does."""
    clock.blocks = None if blocks is None else 0

    def fn() -> None:
        clock.wait(MS)
        if blocks:
            clock.blocks = (clock.blocks or 0) + blocks

    expected = ["waits", "uses-disk"] if noted else ["waits"]
    assert codes(host.measure(TimedCall(fn=fn), stop=StopAt())) == expected
    with host.measure_range() as timer:
        fn()
    assert timer.timing is not None
    assert codes(timer.timing) == expected


def test_a_call_that_uses_a_disk_without_waiting_is_one_that_computes(
    clock: FakeClock, host: HostCollector
) -> None:
    """The system writes later what it has buffered."""

    def fn() -> None:
        clock.advance(MS)
        clock.blocks = (clock.blocks or 0) + 8

    assert codes(host.measure(TimedCall(fn=fn), stop=StopAt())) == []


def test_a_write_beside_many_waits_is_not_what_they_wait_for(
    clock: FakeClock, host: HostCollector
) -> None:
    """A logger or another thread may write at any time."""
    blocks = itertools.chain([0, 1], itertools.repeat(0))

    def fn() -> None:
        clock.wait(MS)
        clock.blocks = (clock.blocks or 0) + next(blocks)

    assert codes(host.measure(TimedCall(fn=fn), stop=StopAt())) == ["waits"]


@pytest.mark.parametrize(("work_us", "codes"), [(400, ["less-work"]), (250, [])])
def test_a_cached_function_is_called_without_its_cache(
    clock: FakeClock, host: HostCollector, work_us: int, codes: list[str]
) -> None:
    """A look-up that takes its time makes the first call hardly longer than later ones."""

    class Key:
        def __hash__(self) -> int:
            clock.advance(100_000)
            return 1

    @functools.lru_cache
    def fn(_: Key) -> int:
        clock.advance(work_us * 1000)
        return 7

    timing = host.measure(TimedCall(fn=fn, args=(Key(),)), stop=StopAt())

    assert set(timing.samples) == {0.0001}
    doubts = [note for note in timing.notes if note.doubt]
    assert [note.code for note in doubts] == codes
    for note in doubts:
        assert note.full_s == pytest.approx(0.0004)
