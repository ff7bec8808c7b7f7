"""collect.timing: calls of seconds are made a few times, and never for nothing."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from fakes.clock import FakeClock
from fakes.runtime import FakeRuntime, FakeTimer
from pytest_gpuperf.collect.base import TimedCall, Timing
from pytest_gpuperf.collect.environment import has_several_ranks
from pytest_gpuperf.collect.runtime import NoDevice
from pytest_gpuperf.collect.timing.host import HostCollector

MS = 1_000_000  # ns
S = 1_000_000_000  # ns


class Never:
    """A stop rule that never has enough."""

    def enough(self, values: Sequence[float]) -> bool:
        return False


class AtOnce:
    """A stop rule that has enough as soon as it is asked."""

    def enough(self, values: Sequence[float]) -> bool:
        return True


@pytest.fixture(name="clock")
def clock_() -> FakeClock:
    """A clock that stands still."""
    return FakeClock()


@pytest.fixture(name="host")
def host_(clock: FakeClock) -> HostCollector:
    """A collector on that clock, without a device."""
    return HostCollector(clock, NoDevice())


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the variables of launchers out of the environment."""
    for name in ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(name="load_module")
def load_module_() -> Iterator[Callable[[], None]]:
    """A function whose every call loads a module of another name."""
    names: list[str] = []

    def load() -> None:
        names.append(f"gpuperf_fake_slow_module_{len(names)}")
        sys.modules[names[-1]] = types.ModuleType(names[-1])

    yield load
    for name in names:
        del sys.modules[name]


def calls_of(timing: Timing) -> int:
    """Return how often a function of FakeClock.taking was called."""
    assert isinstance(timing.result, int)
    return timing.result


@pytest.mark.parametrize(
    ("call_s", "samples_count"),
    [(0.99, 10), (1.0, 10), (1.3, 8), (2.0, 5), (2.6, 4), (3.0, 3), (31.0, 3)],
)
def test_samples_take_ten_seconds_or_are_three(
    clock: FakeClock, host: HostCollector, call_s: float, samples_count: int
) -> None:
    """And the first call of a second has warmed up."""
    fn = clock.taking(then_ns=round(call_s * S))
    timing = host.measure(TimedCall(fn=fn), stop=Never())

    assert len(timing.samples) == samples_count
    warm_ups = 4 if call_s < 1 else 1
    assert (timing.warmup_count, calls_of(timing)) == (
        warm_ups,
        warm_ups + samples_count,
    )
    assert set(timing.samples) == {call_s}


def test_a_slow_first_call_warms_a_short_one_not_up(
    clock: FakeClock, host: HostCollector
) -> None:
    """A compilation is no measure of what comes after it."""
    fn = clock.taking(31 * S, 2 * MS, then_ns=MS)
    timing = host.measure(TimedCall(fn=fn, budget_s=0.1), stop=AtOnce())

    assert timing.first_call_s == 31
    assert timing.warmup_count == 5  # the second call, and three that are alike
    assert timing.samples == (0.001,) * 10


def test_a_call_that_records_before_it_replays_is_warmed_up(
    clock: FakeClock, host: HostCollector
) -> None:
    """Only the third call of a graph tree is as short as all others."""
    fn = clock.taking(31 * S, 4 * S, then_ns=MS)
    timing = host.measure(TimedCall(fn=fn, budget_s=0.1), stop=AtOnce())

    assert timing.samples == (0.001,) * 10
    assert timing.warmup_count == 6


def test_a_short_call_after_a_compilation_is_batched(
    clock: FakeClock, host: HostCollector
) -> None:
    """It is measured as if nothing had been compiled."""
    fn = clock.taking(2 * S, then_ns=20)
    timing = host.measure(TimedCall(fn=fn), stop=AtOnce())

    assert timing.iterations_count == 6
    assert timing.samples == pytest.approx([20e-9] * 10)


def test_a_first_call_that_imports_may_be_slow_all_the_same(
    clock: FakeClock, host: HostCollector, load_module: Callable[[], None]
) -> None:
    """The next one shows it; it is no reason for three more of 31 s."""
    calls = clock.taking(33 * S, then_ns=31 * S)

    def fn() -> int:
        if (number := calls()) == 1:
            load_module()
        return number

    timing = host.measure(TimedCall(fn=fn), stop=Never())

    assert calls_of(timing) == 4
    assert timing.samples == (31.0,) * 3


def test_a_sample_of_a_slow_call_that_imports_is_refused(
    clock: FakeClock, host: HostCollector, load_module: Callable[[], None]
) -> None:
    """It counts among the three that are the least."""
    calls = clock.taking(then_ns=31 * S)

    def fn() -> int:
        if (number := calls()) == 3:
            load_module()
        return number

    timing = host.measure(TimedCall(fn=fn), stop=Never())

    assert (len(timing.samples), timing.discarded_count) == (2, 1)
    assert calls_of(timing) == 4


def test_slow_setups_are_of_the_time_too(clock: FakeClock, host: HostCollector) -> None:
    """A user waits for them as for the call; but a short call is warmed up."""
    request = TimedCall(fn=clock.taking(then_ns=MS), setup=lambda: clock.advance(4 * S))
    timing = host.measure(request, stop=Never())

    assert (timing.warmup_count, len(timing.samples)) == (4, 3)


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_so_many_iterations_are_so_many_calls(
    clock: FakeClock, host: HostCollector, count: int
) -> None:
    """The first call is one of the samples, and a note says so."""
    seen: list[Any] = []
    fn = clock.taking(then_ns=2 * S)
    request = TimedCall(fn=fn, iterations=count, check=seen.append)
    timing = host.measure(request, stop=Never())

    assert calls_of(timing) == len(timing.samples) == count
    assert timing.warmup_count == 0
    assert timing.returned == ()
    assert seen[0] == 1
    assert seen[-1] == count
    assert seen == sorted(set(seen))
    (note,) = (note for note in timing.notes if note.code == "few-samples")
    assert "the first call" in note.text
    assert note.doubt is False


def test_iterations_after_a_compilation_are_samples_of_short_calls(
    clock: FakeClock, host: HostCollector
) -> None:
    """The compilation is none of them."""
    fn = clock.taking(2 * S, then_ns=MS)
    timing = host.measure(TimedCall(fn=fn, iterations=3), stop=Never())

    assert timing.samples == (0.001,) * 3
    assert calls_of(timing) == timing.warmup_count + 3


def test_iterations_that_import_first_are_samples_without_it(
    clock: FakeClock, host: HostCollector, load_module: Callable[[], None]
) -> None:
    """What a sample would be refused for, a first call is no sample for."""
    calls = clock.taking(then_ns=2 * S)

    def fn() -> int:
        if (number := calls()) == 1:
            load_module()
        return number

    timing = host.measure(TimedCall(fn=fn, iterations=2), stop=Never())

    assert (timing.warmup_count, len(timing.samples)) == (1, 2)


@pytest.mark.parametrize("variable", ["WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"])
def test_ranks_call_equally_often_however_long_it_takes(
    clock: FakeClock,
    host: HostCollector,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
) -> None:
    """One rank may take 0.99 s where another takes 1 s: who calls once more waits for ever."""
    monkeypatch.setenv(variable, "2")
    for call_s in (0.99, 1.0, 31.0):
        fn = clock.taking(then_ns=round(call_s * S))
        timing = host.measure(TimedCall(fn=fn, iterations=2), stop=Never())
        assert calls_of(timing) == 4 + 2


def test_an_initialized_process_group_has_ranks() -> None:
    """Whoever started them; a torch without it has none."""

    def group(*, begun: bool, size: int) -> types.SimpleNamespace:
        return types.SimpleNamespace(
            is_initialized=lambda: begun, get_world_size=lambda: size
        )

    def ranks(found: object) -> bool:
        return has_several_ranks({"WORLD_SIZE": "1"}, {"torch.distributed": found})

    assert ranks(group(begun=True, size=2))
    assert not ranks(group(begun=True, size=1))
    assert not ranks(group(begun=False, size=2))
    assert not ranks(types.SimpleNamespace())
    assert not has_several_ranks({"WORLD_SIZE": "many"}, {})


def test_slow_sides_are_compared_by_pairs(
    clock: FakeClock, host: HostCollector
) -> None:
    """As many samples as of one function, of each."""
    a, b = clock.taking(then_ns=4 * S), clock.taking(then_ns=2 * S)
    first, second = host.interleave(TimedCall(fn=a), TimedCall(fn=b), stop=Never())

    assert (first.samples, second.samples) == ((4.0,) * 3, (2.0,) * 3)
    assert calls_of(first) == calls_of(second) == 1 + 3


def test_pairs_begin_anew_where_one_side_was_slow_only_at_first(
    clock: FakeClock, host: HostCollector
) -> None:
    """Samples i of both are neighbours still."""
    a, b = clock.taking(2 * S, then_ns=MS), clock.taking(then_ns=2 * S)
    first, second = host.interleave(TimedCall(fn=a), TimedCall(fn=b), stop=Never())

    assert set(first.samples) == {0.001}
    assert set(second.samples) == {2.0}
    assert len(first.samples) == len(second.samples) == 10


def test_the_first_calls_of_a_comparison_are_no_pair(
    clock: FakeClock, host: HostCollector
) -> None:
    """Other calls lie between them, with fixed iterations too."""
    a, b = clock.taking(then_ns=2 * S), clock.taking(then_ns=2 * S)
    first, second = host.interleave(
        TimedCall(fn=a, iterations=2), TimedCall(fn=b, iterations=2), stop=Never()
    )

    assert len(first.samples) == len(second.samples) == 2
    assert first.warmup_count == second.warmup_count == 1


def test_waiting_is_known_of_a_slow_call_without_more_warm_up(
    clock: FakeClock, host: HostCollector
) -> None:
    """Its samples are whole, and none of them counts as interrupted."""
    timing = host.measure(TimedCall(fn=lambda: clock.wait(2 * S)), stop=Never())

    assert timing.samples == (2.0,) * 5
    assert {note.code for note in timing.notes} == {"waits", "few-samples"}


def test_threads_are_known_of_a_slow_call_without_more_warm_up(
    clock: FakeClock, host: HostCollector
) -> None:
    """No call is made only to see whether they rest."""
    calls = clock.taking(then_ns=4 * S)

    def fn() -> int:
        clock.others_ns += 4 * S
        return calls()

    timing = host.measure(TimedCall(fn=fn), stop=Never())

    assert calls_of(timing) == 4
    assert "several-threads" in {note.code for note in timing.notes}


def test_interrupted_slow_calls_count_by_processor_time(
    clock: FakeClock, host: HostCollector
) -> None:
    """As those of other calls do where few others are left."""

    def fn() -> None:
        clock.advance(3 * S)
        if clock.reading_ns > 10 * S:
            clock.interrupt(S)

    timing = host.measure(TimedCall(fn=fn), stop=Never())

    assert timing.samples == (3.0,) * 3
    assert "interrupted" in {note.code for note in timing.notes}


@pytest.mark.parametrize(("spread_s", "doubt"), [(0.1, False), (2.0, True)])
def test_few_samples_say_how_far_they_lie_apart(
    clock: FakeClock, host: HostCollector, spread_s: float, doubt: bool
) -> None:
    """They have no interval; those that differ much say so beside the value."""
    apart_ns = round(spread_s * S)
    fn = clock.taking(5 * S, 5 * S, 5 * S - apart_ns, 5 * S + apart_ns, then_ns=S)
    timing = host.measure(TimedCall(fn=fn), stop=Never())

    (note,) = (note for note in timing.notes if note.code == "few-samples")
    assert note.doubt is doubt
    assert note.text.startswith("3 samples, because a call takes 5 s")
    assert f"±{spread_s / 5:.2%} of their median" in note.text


@pytest.mark.parametrize(
    ("iterations", "count", "round_s"), [(None, 3, 31.0), (1, None, None), (4, 3, 31.0)]
)
def test_the_time_of_slow_calls_is_told_before_it_is_spent(
    clock: FakeClock, iterations: int | None, count: int | None, round_s: float | None
) -> None:
    """After the first call, and only if there is another."""
    told: list[tuple[int, float]] = []
    calls = clock.taking(then_ns=31 * S)
    host = HostCollector(
        clock,
        NoDevice(),
        expect=lambda *expected: told.append(expected),
    )
    host.measure(TimedCall(fn=calls, iterations=iterations), stop=Never())

    assert told == ([] if count is None else [(count, round_s)])


def test_no_time_is_told_of_other_calls(clock: FakeClock) -> None:
    """They take their budget, which nobody waits for."""
    told: list[tuple[int, float]] = []
    host = HostCollector(
        clock, NoDevice(), expect=lambda *expected: told.append(expected)
    )
    host.measure(TimedCall(fn=clock.taking(then_ns=900 * MS)), stop=Never())

    assert told == []


@pytest.mark.parametrize(
    ("iterations", "warm_ups", "samples_count"), [(None, 1, 3), (1, 1, 1), (2, 1, 2)]
)
def test_slow_calls_of_a_device_are_timed_by_it(
    clock: FakeClock, iterations: int | None, warm_ups: int, samples_count: int
) -> None:
    """Its first call, which may compile, is never one of the samples."""
    runtime = FakeRuntime(clock)
    device_s = [4.5] * (warm_ups + samples_count)
    timer = FakeTimer("events", *device_s)

    def fn() -> None:
        runtime.pending_ns += 5 * S

    host = HostCollector(clock, runtime, (timer,))
    timing = host.measure(TimedCall(fn=fn, iterations=iterations), stop=Never())

    assert (timing.warmup_count, timing.samples) == (warm_ups, (4.5,) * samples_count)
    assert timing.source == "events"
    assert timing.other_samples == {"host": (5.0,) * samples_count}


def test_a_compilation_for_a_device_is_no_sample(clock: FakeClock) -> None:
    """Nor is the call in which a graph is recorded."""
    runtime = FakeRuntime(clock, in_use=False)
    calls = clock.taking(30 * S, 4 * S, then_ns=MS)

    def fn() -> None:
        runtime.in_use = True
        calls()

    host = HostCollector(clock, runtime)
    timing = host.measure(TimedCall(fn=fn, budget_s=0.1), stop=AtOnce())

    assert timing.first_call_s == 30
    assert set(timing.samples) == {0.001}
