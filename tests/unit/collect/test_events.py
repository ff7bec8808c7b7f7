"""collect.events: samples between two events of the device; the real classes on a double."""

from __future__ import annotations

import ctypes
import math
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from itertools import count, cycle
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.clock import FakeClock
from fakes.runtime import FakeDriver
from pytest_gpuperf.collect.base import DeviceTimer, TimedCall
from pytest_gpuperf.collect.cuda_device import CudaRuntime
from pytest_gpuperf.collect.timing.events import (
    CudaEvents,
    CurrentStream,
    EventTimer,
    TorchEvents,
    find_events,
)
from pytest_gpuperf.collect.timing.host import HostCollector
from pytest_gpuperf.errors import CollectError, MeasureError

US = 1_000  # ns


class StopAt:
    """A stop rule that wants a number of samples."""

    def __init__(self, count: int = 10) -> None:
        self.count = count
        self.asked: list[tuple[float, ...]] = []

    def enough(self, values: Sequence[float]) -> bool:
        self.asked.append(tuple(values))
        return len(values) >= self.count


class Rig:
    """
    The collector with event timing on a scripted device.

    Attributes:
        stream: What is the current stream.
    """

    def __init__(self, sm_clock_hz: Callable[[], float | None] | None = None) -> None:
        self.clock = FakeClock()
        self.driver = FakeDriver(clock=self.clock)
        self.stream = 0
        cuda = CudaEvents(lambda: self.driver, lambda: self.stream)
        self.timer: DeviceTimer = EventTimer(
            (cuda,), self.clock.now_ns, cpu_ns=self.clock.thread_cpu_ns
        )
        self.host = HostCollector(
            self.clock,
            CudaRuntime(lambda: self.driver),
            (self.timer,),
            sm_clock_hz=sm_clock_hz,
        )

    def body(self, kernel_ns: int, *, stream: int = 0) -> Callable[[], None]:
        """Return a call that takes 2 us and leaves the device work."""

        def fn() -> None:
            self.driver.calls.append(("body",))
            self.clock.advance(2 * US)
            self.driver.launch(kernel_ns, stream)

        return fn

    def names(self) -> list[object]:
        """Return the driver's functions that were called, in order."""
        return [name for name, *_ in self.driver.calls]


@pytest.fixture
def rig() -> Rig:
    """A device that is idle."""
    return Rig()


# ------------------------------------------------------------------ samples


def test_a_sample_is_the_time_between_two_events(rig: Rig) -> None:
    """The device's own; the host's time of the same calls stands beside it."""
    rig.driver.wait_ns = 30 * US
    timing = rig.host.measure(TimedCall(fn=rig.body(100 * US)), stop=StopAt())

    assert timing.source == "events"
    assert timing.samples == pytest.approx([102e-6] * 10)
    assert timing.other_samples == {"host": pytest.approx((132e-6,) * 10)}
    assert timing.returned == pytest.approx((2e-6,) * 10)
    assert (timing.cache_mode, timing.discarded_count) == ("cold", 0)
    assert timing.notes == ()


def test_a_sample_costs_two_events_and_nothing_between(rig: Rig) -> None:
    """Flush and waiting lie outside; the call alone is inside."""
    rig.host.measure(TimedCall(fn=rig.body(100 * US)), stop=StopAt())
    rig.driver.calls.clear()
    timing = rig.host.measure(TimedCall(fn=rig.body(100 * US)), stop=StopAt())

    sample = [
        "cuCtxResetPersistingL2Cache",
        "cuMemsetD8_v2",
        "cuCtxSynchronize",
        "cuEventRecord",
        "body",
        "cuEventRecord",
        "cuCtxSynchronize",
    ]
    elapsed = ["cuEventElapsedTime"] * (4 + 10)  # after them, with the warm-up's
    assert rig.names()[-len(sample * 10 + elapsed) :] == sample * 10 + elapsed
    assert len(timing.samples) == 10


def test_what_the_events_cost_is_not_in_their_samples(rig: Rig) -> None:
    """Nor in the time until the call returned; the second one's is in the wall time."""
    rig.driver.record_ns = US
    timing = rig.host.measure(TimedCall(fn=rig.body(0)), stop=StopAt())

    assert timing.returned == pytest.approx((2e-6,) * 10)
    assert timing.other_samples["host"] == pytest.approx((3e-6,) * 10)


def test_events_are_made_once_and_used_again(rig: Rig) -> None:
    """As many pairs as samples between two looks; the next measurement makes none."""
    rig.host.measure(TimedCall(fn=rig.body(50 * US)), stop=StopAt(15))
    made_count = rig.names().count("cuEventCreate")
    rig.host.measure(TimedCall(fn=rig.body(50 * US)), stop=StopAt(15))

    assert made_count == rig.names().count("cuEventCreate") == 2 * (4 + 10)


def test_a_pair_lies_in_the_stream_that_is_current_before_the_call(rig: Rig) -> None:
    """Both events, though the call may make another stream the current one."""
    rig.stream = 5
    run = rig.body(100 * US, stream=5)

    def fn() -> None:
        run()
        rig.stream = 6

    timing = rig.host.measure(
        TimedCall(fn=fn, setup=lambda: setattr(rig, "stream", 5)), stop=StopAt()
    )
    streams = {call[2] for call in rig.driver.calls if call[0] == "cuEventRecord"}

    assert streams == {5}
    assert timing.source == "events"


def test_a_batch_has_one_pair(rig: Rig) -> None:
    """Warm calls too short for the events follow each other between two of them."""
    timing = rig.host.measure(
        TimedCall(fn=rig.body(2 * US), cache="warm"), stop=StopAt()
    )
    names = rig.names()
    *_, first, last = (n for n, name in enumerate(names) if name == "cuEventRecord")

    assert names[first:last].count("body") == timing.iterations_count > 1
    assert timing.iterations_count * 2 * US >= 100 * 500
    # the last kernel of a batch ends 2 us after the last call returned
    share = 2e-6 * (timing.iterations_count + 1) / timing.iterations_count
    assert timing.samples == pytest.approx([share] * 10)


def test_a_single_call_too_short_for_events_says_so(rig: Rig) -> None:
    """A cold cache forbids batches, and events resolve half a microsecond."""
    timing = rig.host.measure(TimedCall(fn=rig.body(3 * US)), stop=StopAt())

    assert timing.source == "events"
    assert [note.code for note in timing.notes] == ["short-call", "holds-launch"]


def test_the_stop_rule_sees_the_best_source(rig: Rig) -> None:
    """Samples of the events, not the host's, decide when there are enough."""
    rig.driver.wait_ns = 30 * US
    stop = StopAt(15)
    rig.host.measure(TimedCall(fn=rig.body(100 * US)), stop=stop)

    assert [len(values) for values in stop.asked] == [10, 12, 15]
    assert stop.asked[0] == pytest.approx([102e-6] * 10)


def test_two_callables_are_timed_by_turns(rig: Rig) -> None:
    """Each has its own samples, though they share the timer."""
    first, second = rig.host.interleave(
        TimedCall(fn=rig.body(100 * US)),
        TimedCall(fn=rig.body(200 * US)),
        stop=StopAt(),
    )

    assert first.samples == pytest.approx([102e-6] * 10)
    assert second.samples == pytest.approx([202e-6] * 10)
    assert first.source == second.source == "events"


def test_a_process_without_a_device_records_no_event() -> None:
    """The host's clock alone, as if there were no timer."""
    rig = Rig()
    rig.driver.context = None

    def fn() -> None:
        rig.clock.advance(100 * US)

    timing = rig.host.measure(TimedCall(fn=fn), stop=StopAt())

    assert (timing.source, timing.other_samples, timing.returned) == ("host", {}, ())
    assert timing.notes == ()
    assert rig.driver.calls == []


def test_a_device_that_the_first_call_starts_is_timed(rig: Rig) -> None:
    """From the second call on."""
    rig.driver.context = None
    run = rig.body(100 * US)

    def fn() -> None:
        rig.driver.context = 0x1000
        run()

    timing = rig.host.measure(TimedCall(fn=fn), stop=StopAt())

    assert timing.source == "events"
    assert timing.samples == pytest.approx([102e-6] * 10)


# ------------------------------------------------------------- side streams


@pytest.mark.parametrize("beyond_us", [11, 100, 5000])
def test_work_that_outlives_the_events_gives_them_up(rig: Rig, beyond_us: int) -> None:
    """The whole set is the host's, from call to an idle device, and it says so."""
    run = rig.body(40 * US)

    def fn() -> None:
        run()
        rig.driver.launch((40 + beyond_us) * US, 7)

    timing = rig.host.measure(TimedCall(fn=fn), stop=StopAt())

    assert timing.source == "host"
    assert timing.other_samples == {}
    assert timing.samples == pytest.approx([(42 + beyond_us) * 1e-6] * 10)
    (note,) = timing.notes
    assert note.code == "outlives-events"
    assert f"events is left out: the device worked for {beyond_us} us" in note.text


@pytest.mark.parametrize(("beyond_us", "source"), [(99, "events"), (102, "host")])
def test_a_long_call_may_be_outlasted_by_a_small_share(
    rig: Rig, beyond_us: int, source: str
) -> None:
    """0.5 % of 20 ms are 100 us: a wait on a busy core takes as long."""
    run = rig.body(20_000 * US)

    def fn() -> None:
        run()
        rig.driver.launch((20_000 + beyond_us) * US, 7)

    timing = rig.host.measure(TimedCall(fn=fn), stop=StopAt())

    assert timing.source == source


def test_a_wait_that_is_long_most_times_is_the_cores(rig: Rig) -> None:
    """Other streams outlast every call: where one wait is short, the events stand."""
    run, calls = rig.body(40 * US), count()

    def fn() -> None:
        run()
        if next(calls) % 5:
            rig.driver.launch(60 * US, 7)

    timing = rig.host.measure(TimedCall(fn=fn), stop=StopAt())

    assert timing.source == "events"
    assert timing.notes == ()


@pytest.mark.parametrize("streams", [(0, 7), (7, 0)])
def test_one_side_of_a_comparison_gives_up_the_events_of_both(
    rig: Rig, streams: tuple[int, int]
) -> None:
    """Two sides are compared by one source."""
    requests = [TimedCall(fn=rig.body(90 * US, stream=each)) for each in streams]
    first, second = rig.host.interleave(*requests, stop=StopAt())

    assert first.source == second.source == "host"
    assert [note.code for note in second.notes] == ["outlives-events"]


def test_work_beside_that_ends_first_is_inside(rig: Rig) -> None:
    """Another stream that is done before the second event changes nothing."""
    run = rig.body(40 * US)

    def fn() -> None:
        rig.driver.launch(30 * US, 7)
        run()

    timing = rig.host.measure(TimedCall(fn=fn), stop=StopAt())

    assert timing.source == "events"
    assert timing.notes == ()


@given(
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 3)), min_size=1, max_size=6)
)
def test_no_sample_hides_work_in_other_streams(work: list[tuple[int, int]]) -> None:
    """By events it is shorter than from call to idle device by 10 us at most."""
    rig = Rig()

    def fn() -> None:
        rig.clock.advance(2 * US)
        for kernel_us, stream in work:
            rig.driver.launch(kernel_us * US, stream)

    timing = rig.host.measure(TimedCall(fn=fn), stop=StopAt())
    walls = timing.other_samples.get("host", timing.samples)

    assert (timing.source == "host") is (
        "outlives-events" in {n.code for n in timing.notes}
    )
    for sample, wall in zip(timing.samples, walls, strict=True):
        assert wall - 10.001e-6 <= sample <= wall + 1e-9


def test_one_slow_wait_is_no_side_stream(rig: Rig) -> None:
    """An interruption lengthens one of the warm-up calls: the usual one counts."""
    waits = iter([*[0] * 6, 500 * US])
    wait = rig.driver.cuCtxSynchronize

    def interrupted() -> int:
        rig.clock.advance(next(waits, 0))
        return wait()

    rig.driver.cuCtxSynchronize = interrupted  # type: ignore[method-assign] # a double
    timing = rig.host.measure(TimedCall(fn=rig.body(40 * US)), stop=StopAt())

    assert timing.source == "events"


@pytest.mark.parametrize(("beyond_us", "source"), [(0, "events"), (70, "host")])
def test_a_wait_for_an_idle_device_that_is_as_long_is_no_side_stream(
    rig: Rig, beyond_us: int, source: str
) -> None:
    """Where the caches are full of others' work, each wait but a repeated one takes longer."""
    hot_waits = iter([0] * 4)
    wait = rig.driver.cuCtxSynchronize

    def cold() -> int:
        rig.clock.advance(next(hot_waits, 60 * US))
        return wait()

    rig.driver.cuCtxSynchronize = cold  # type: ignore[method-assign] # a double
    run = rig.body(40 * US)

    def fn() -> None:
        run()
        rig.driver.launch((110 + beyond_us) * US if beyond_us else 0, 7)

    timing = rig.host.measure(TimedCall(fn=fn), stop=StopAt())

    assert timing.source == source


def test_the_next_measurement_gets_its_events_back(rig: Rig) -> None:
    """What one callable does in other streams is not held against the next."""

    def fn() -> None:
        rig.clock.advance(US)
        rig.driver.launch(100 * US, 7)

    first = rig.host.measure(TimedCall(fn=fn), stop=StopAt())
    second = rig.host.measure(TimedCall(fn=rig.body(100 * US)), stop=StopAt())

    assert (first.source, second.source) == ("host", "events")


# ---------------------------------------------------------- what is refused


@pytest.mark.parametrize("code", [1, 2, 3, 100, 201, 400, 600, 700, 709, 719, 900, 999])
@pytest.mark.parametrize(
    "function",
    ["cuEventCreate", "cuEventRecord", "cuEventSynchronize", "cuEventElapsedTime"],
)
def test_an_error_code_of_an_event_never_fails_the_test(
    rig: Rig, function: str, code: int
) -> None:
    """Verdict: the host's times stand for the whole set, with a note that names it."""
    rig.driver.failing[function] = code
    timing = rig.host.measure(TimedCall(fn=rig.body(100 * US)), stop=StopAt())

    assert timing.source == "host"
    assert timing.other_samples == {}
    assert timing.samples == pytest.approx([102e-6] * 10)
    (note,) = timing.notes
    if (function, code) == ("cuEventElapsedTime", 600):
        assert note.code == "untimed-samples"
        assert note.text == "events could not time 10 of 10 samples: events is not used"
        return
    assert note.code == "events-failed"
    assert f"{function} failed with " in note.text
    assert f"({code})" in note.text


@pytest.mark.parametrize(
    ("function", "source"),
    [
        ("cuEventRecord", "events"),
        ("cuEventSynchronize", "events"),
        ("cuEventElapsedTime", "host"),
    ],
)
def test_a_driver_on_its_way_out_is_no_error(
    rig: Rig, function: str, source: str
) -> None:
    """Verdict: nothing, or a note for what has no time; 4 is CUDA_ERROR_DEINITIALIZED."""
    rig.driver.failing[function] = 4
    timing = rig.host.measure(TimedCall(fn=rig.body(100 * US)), stop=StopAt())

    assert timing.source == source
    assert [note.code for note in timing.notes] == (
        [] if source == "events" else ["untimed-samples"]
    )


def test_an_error_of_the_work_itself_fails_the_test(rig: Rig) -> None:
    """Verdict: an error. What a kernel broke comes out of the wait, as without events."""
    run = rig.body(100 * US)

    def fn() -> None:
        run()
        rig.driver.failing = {"cuCtxSynchronize": 700, "cuEventRecord": 700}

    with pytest.raises(CollectError, match="cuCtxSynchronize failed with"):
        rig.host.measure(TimedCall(fn=fn), stop=StopAt())


@pytest.mark.parametrize("elapsed_ms", [0.0, -1.0, math.nan, math.inf])
def test_a_time_that_is_none_is_no_sample(rig: Rig, elapsed_ms: float) -> None:
    """Never zero, negative or not a number."""
    rig.driver.elapsed_ms = elapsed_ms
    timing = rig.host.measure(TimedCall(fn=rig.body(100 * US)), stop=StopAt())

    assert timing.source == "host"
    assert [note.code for note in timing.notes] == ["untimed-samples"]


def test_after_a_refusal_the_next_set_begins_anew(rig: Rig) -> None:
    """With events of its own: the old ones may belong to a context that is gone."""
    rig.driver.failing["cuEventRecord"] = 400
    rig.host.measure(TimedCall(fn=rig.body(50 * US)), stop=StopAt())
    rig.driver.failing.clear()
    rig.driver.calls.clear()
    timing = rig.host.measure(TimedCall(fn=rig.body(50 * US)), stop=StopAt())

    assert timing.source == "events"
    assert "cuEventCreate" in rig.names()


@pytest.mark.parametrize("at_call", [1, 3, 7])
def test_a_call_that_raises_leaves_no_half_sample(rig: Rig, at_call: int) -> None:
    """The next measurement is timed as if nothing had been before."""
    run = rig.body(100 * US)
    numbers = count(1)

    def fn() -> None:
        run()
        if next(numbers) == at_call:
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        rig.host.measure(TimedCall(fn=fn), stop=StopAt())
    timing = rig.host.measure(TimedCall(fn=rig.body(50 * US)), stop=StopAt())

    assert timing.samples == pytest.approx([52e-6] * 10)
    assert timing.notes == ()


@pytest.mark.parametrize("started", ["before", "by the first call", "by a later call"])
def test_work_on_another_device_is_not_launch_time(rig: Rig, started: str) -> None:
    """Events of the current device end too early: the host waits for both devices."""
    rig.driver.primaries = {3: 0x1000}
    if started == "before":
        rig.driver.primaries[1] = 0x2000
    numbers = count()

    def fn() -> None:
        rig.clock.advance(2 * US)
        if next(numbers) >= (started == "by a later call"):
            rig.driver.primaries[1] = 0x2000
        if 1 in rig.driver.primaries:
            rig.driver.launch(5_000 * US, context=0x2000)

    timing = rig.host.measure(TimedCall(fn=fn), stop=StopAt())

    assert timing.source == "host"
    assert timing.samples == pytest.approx([5_002e-6] * 10, rel=1e-3)
    assert [note.code for note in timing.notes] == ["outlives-events"]


def test_a_block_waits_for_a_device_that_it_started(rig: Rig) -> None:
    """It was not in use when the block began."""
    rig.driver.primaries = {3: 0x1000}
    with rig.host.measure_range() as timer:
        rig.driver.primaries[1] = 0x2000
        rig.driver.launch(5_000 * US, context=0x2000)

    assert timer.timing is not None
    assert timer.timing.source == "host"
    assert timer.timing.samples == pytest.approx([5e-3], rel=1e-3)


def test_a_thread_without_a_context_has_no_events(rig: Rig) -> None:
    """The host waits for the device that the framework's own threads work on."""
    rig.driver.context = None
    rig.driver.primaries = {3: 0x1000}

    def fn() -> None:
        rig.clock.advance(2 * US)
        rig.driver.launch(5_000 * US, context=0x1000)

    timing = rig.host.measure(TimedCall(fn=fn), stop=StopAt())

    assert timing.source == "host"
    assert timing.samples == pytest.approx([5_002e-6] * 10, rel=1e-3)


@pytest.mark.parametrize(
    ("every", "lasting_us", "source"),
    [(2, 500, "host"), (2, 50, "events"), (40, 500, "events")],
)
def test_a_stream_that_only_some_calls_use(
    rig: Rig, every: int, lasting_us: int, source: str
) -> None:
    """Frequent and long work there counts; rare or short waits are interruptions."""
    run = rig.body(20 * US)
    numbers = count(1)

    def fn() -> None:
        run()
        if next(numbers) % every == 0:
            rig.driver.launch(lasting_us * US, stream=5)

    timing = rig.host.measure(TimedCall(fn=fn), stop=StopAt())

    assert timing.source == source


@pytest.mark.parametrize(
    ("host_us", "device_us", "held"),
    [
        (10, 5, "up to 67% of the time"),
        (10, 80, "up to 11% of the time"),
        (2, 50, None),
        (30, 100, None),
    ],
)
def test_a_short_time_says_how_much_launch_it_holds(
    rig: Rig, host_us: int, device_us: int, held: str | None
) -> None:
    """Below 100 us, and if it is more than a tenth of the time."""

    def fn() -> None:
        rig.clock.advance(host_us * US)
        rig.driver.launch(device_us * US)

    timing = rig.host.measure(TimedCall(fn=fn), stop=StopAt())
    texts = [note.text for note in timing.notes if note.code == "holds-launch"]

    assert timing.source == "events"
    assert [text.partition(" may")[0] for text in texts] == ([held] if held else [])


def test_a_batch_that_keeps_the_device_busy_holds_one_launch(rig: Rig) -> None:
    """All but the first call are launched while the device works."""

    def fn() -> None:
        rig.clock.advance(1 * US)
        rig.driver.launch(4 * US)

    request = TimedCall(fn=fn, cache="warm")
    timing = rig.host.measure(request, stop=StopAt())

    assert timing.source == "events"
    assert timing.iterations_count > 1
    assert "holds-launch" not in {note.code for note in timing.notes}


def test_each_context_has_events_of_its_own(rig: Rig) -> None:
    """An event cannot be recorded in another context than its own."""
    rig.host.measure(TimedCall(fn=rig.body(50 * US)), stop=StopAt())
    first = {call[1] for call in rig.driver.calls if call[0] == "cuEventRecord"}
    rig.driver.calls.clear()
    rig.driver.context = 0x2000
    rig.host.measure(TimedCall(fn=rig.body(50 * US)), stop=StopAt())
    second = {call[1] for call in rig.driver.calls if call[0] == "cuEventRecord"}

    assert first
    assert second
    assert not first & second


class Unfinished:
    """An output that is still being computed, as jax returns it."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig

    def block_until_ready(self) -> None:
        self._rig.clock.advance(300 * US)


def test_an_asynchronous_output_has_no_stream(rig: Rig) -> None:
    """jax puts its work into streams of its own: events are refused by name."""
    timing = rig.host.measure(TimedCall(fn=lambda: Unfinished(rig)), stop=StopAt())

    assert timing.source == "host"
    assert timing.samples == pytest.approx([300e-6] * 10)
    (note,) = timing.notes
    assert note.code == "no-stream"
    assert "jax" in note.text


# ------------------------------------------------------------------- clocks


def test_a_sample_at_a_low_clock_is_discarded() -> None:
    """Below 75 % of the set's median: left out by every source, counted and said."""
    clocks = cycle([1980e6] * 4 + [1480e6])
    rig = Rig(lambda: next(clocks))
    timing = rig.host.measure(TimedCall(fn=rig.body(100 * US)), stop=StopAt(12))

    assert timing.discarded_count == 3
    assert len(timing.samples) == len(timing.other_samples["host"]) == 12
    assert len(timing.returned) == 12
    (note,) = timing.notes
    assert note.code == "slow-clock"
    assert note.text.startswith("3 samples were left out: the SM clock was below 75%")


@pytest.mark.parametrize(
    ("pause_ms", "asleep_hz", "known"),
    [(100, 0.3e9, False), (100, 1.98e9, True), (1, 0.3e9, True)],
)
def test_a_clock_that_a_pause_lowered_is_not_the_samples(
    pause_ms: int, asleep_hz: float, *, known: bool
) -> None:
    """A GeForce raises it during the sample; an H200 keeps it for seconds."""
    rig = Rig(lambda: clock_hz)
    clock_hz = 1.98e9
    run = rig.body(100 * US)

    def pause() -> tuple[tuple[()], dict[str, object]]:
        nonlocal clock_hz
        rig.clock.advance(pause_ms * 1_000 * US)
        clock_hz = asleep_hz
        return (), {}

    def fn() -> None:
        nonlocal clock_hz
        run()
        clock_hz = 1.98e9

    timing = rig.host.measure(TimedCall(fn=fn, setup=pause), stop=StopAt())

    assert timing.samples == pytest.approx([102e-6] * 10)
    assert timing.discarded_count == 0
    assert (timing.sm_clock_hz == 1.98e9) is known


def test_a_low_clock_takes_both_sides_of_a_pair() -> None:
    """What is compared was taken side by side."""
    clocks = iter([2e9] * 5 + [1e9] + [2e9] * 100)
    rig = Rig(lambda: next(clocks))
    first, second = rig.host.interleave(
        TimedCall(fn=rig.body(100 * US)), TimedCall(fn=rig.body(90 * US)), stop=StopAt()
    )

    assert len(first.samples) == len(second.samples)
    assert first.discarded_count == second.discarded_count == 1


def test_clocks_that_leave_no_pair_are_an_error() -> None:
    """Each side was slow where the other was not: nothing was taken side by side."""
    clock_hz = 2e9
    rig = Rig(lambda: clock_hz)

    def of(slow: Callable[[int], bool]) -> TimedCall:
        run, numbers = rig.body(100 * US), count(-4)

        def fn() -> None:
            nonlocal clock_hz
            run()
            clock_hz = 1e9 if slow(next(numbers)) else 2e9

        return TimedCall(fn=fn, iterations=10)

    with pytest.raises(MeasureError, match="SM clock far below the median; let"):
        rig.host.interleave(
            of(lambda number: number < 5), of(lambda number: number >= 5), stop=StopAt()
        )


def test_a_clock_that_nobody_knows_discards_nothing() -> None:
    """None is not a low clock."""
    clocks = cycle([None, 2e9, None])
    rig = Rig(lambda: next(clocks))
    timing = rig.host.measure(TimedCall(fn=rig.body(100 * US)), stop=StopAt())

    assert timing.discarded_count == 0


def test_the_clock_is_read_outside_the_sample() -> None:
    """After the device was waited for."""
    rig = Rig()

    def read() -> float:
        rig.clock.advance(900 * US)
        rig.driver.calls.append(("clock",))
        return 2e9

    rig = Rig(read)
    timing = rig.host.measure(TimedCall(fn=rig.body(100 * US)), stop=StopAt())

    assert timing.other_samples["host"] == pytest.approx((102e-6,) * 10)
    place = rig.names().index("clock")
    assert rig.names()[place - 1] == "cuCtxSynchronize"


# ------------------------------------------------------------------- ranges


def test_a_block_has_one_pair(rig: Rig) -> None:
    """Around all of it; wall time and the time until it ended stand beside."""
    with rig.host.measure_range() as timer:
        rig.body(100 * US)()
        rig.body(50 * US)()
    timing = timer.timing

    assert timing is not None
    assert rig.names().count("cuEventRecord") == 2
    assert (timing.source, timing.notes) == ("events", ())
    assert timing.samples == pytest.approx([152e-6])
    assert timing.other_samples == {"host": pytest.approx((152e-6,))}
    assert timing.returned == pytest.approx((4e-6,))


def test_a_block_whose_work_outlives_its_events_is_the_hosts(rig: Rig) -> None:
    """It is seen at the one time there is."""
    with rig.host.measure_range() as timer:
        rig.body(100 * US, stream=7)()

    assert timer.timing is not None
    assert timer.timing.source == "host"
    assert [note.code for note in timer.timing.notes] == ["outlives-events"]


def test_a_block_has_the_clock_that_the_device_has_at_its_end() -> None:
    """It is read once, when the device is idle again; what knows none has none."""
    read_at_ns: list[int] = []

    def clock_hz() -> float:
        read_at_ns.append(clocked.clock.now_ns())
        return 1.98e9

    clocked = Rig(sm_clock_hz=clock_hz)
    with clocked.host.measure_range() as timer:
        clocked.body(100 * US)()
    blind = Rig()
    with blind.host.measure_range() as without:
        blind.body(100 * US)()

    assert timer.timing is not None
    assert without.timing is not None
    assert timer.timing.sm_clock_hz == 1.98e9
    assert without.timing.sm_clock_hz is None
    assert read_at_ns == [102 * US]
    assert timer.timing.samples == without.timing.samples


def test_a_block_that_starts_the_device_is_the_hosts(rig: Rig) -> None:
    """There was nothing to record an event in when it began, and that is said."""
    rig.driver.context = None
    with rig.host.measure_range() as timer:
        rig.driver.context = 0x1000
        rig.body(100 * US)()

    assert timer.timing is not None
    assert timer.timing.source == "host"
    assert timer.timing.samples == pytest.approx([102e-6])
    assert [note.code for note in timer.timing.notes] == ["started-device"]


def test_a_block_that_measures_is_the_hosts(rig: Rig) -> None:
    """One timer times one thing at a time: the inner one; the outer one says so."""
    with rig.host.measure_range() as outer, rig.host.measure_range() as inner:
        rig.body(100 * US)()

    assert inner.timing is not None
    assert inner.timing.source == "events"
    assert outer.timing is not None
    assert outer.timing.source == "host"
    assert [note.code for note in outer.timing.notes] == ["untimed-samples"]


def test_a_call_that_measures_is_the_hosts(rig: Rig) -> None:
    """What is measured inside takes the timer over, and the outer one says so."""

    def fn() -> None:
        rig.host.measure(TimedCall(fn=rig.body(100 * US)), stop=StopAt())

    timing = rig.host.measure(TimedCall(fn=fn), stop=StopAt())

    assert timing.source == "host"
    assert "untimed-samples" in [note.code for note in timing.notes]


def test_a_block_that_raises_leaves_no_half_sample(rig: Rig) -> None:
    """What it raised passes through, and the next block is timed."""
    with pytest.raises(ValueError, match="mine"), rig.host.measure_range():
        raise ValueError("mine")
    with rig.host.measure_range() as timer:
        rig.body(100 * US)()

    assert timer.timing is not None
    assert timer.timing.samples == pytest.approx([102e-6])


# ------------------------------------------------------------------ streams


def framework(name: str, **members: object) -> dict[str, ModuleType]:
    """Return a loaded module, by its name."""
    module: Any = ModuleType(name)
    for member, value in members.items():
        setattr(module, member, value)
    return {name: module}


def torch(stream: object, *, started: bool = True) -> dict[str, ModuleType]:
    """Return a torch whose current stream is known."""
    cuda = SimpleNamespace(
        is_initialized=lambda: started, current_stream=lambda: stream
    )
    return framework("torch", cuda=cuda)


def cupy(stream: object) -> dict[str, ModuleType]:
    """Return a cupy whose current stream is known."""
    return framework("cupy", cuda=SimpleNamespace(get_current_stream=lambda: stream))


def stream(handle: int, *, form: str = "cuda_stream") -> SimpleNamespace:
    """Return a stream as a framework gives it."""
    if form == "method":
        return SimpleNamespace(__cuda_stream__=lambda: (0, handle))
    if form == "member":
        return SimpleNamespace(__cuda_stream__=(0, handle))
    return SimpleNamespace(**{form: handle})


@pytest.mark.parametrize(
    ("modules", "handle"),
    [
        ({}, 0),
        (framework("numba"), 0),
        (torch(stream(0)), 0),
        (torch(stream(77)), 77),
        (torch(stream(78, form="method")), 78),
        (torch(stream(79, form="member")), 79),
        (torch(stream(77), started=False), 0),
        (framework("torch"), 0),
        (cupy(stream(88, form="ptr")), 88),
        (torch(stream(0)) | cupy(stream(88, form="ptr")), 88),
        (torch(stream(77)) | cupy(stream(0, form="ptr")), 77),
        (torch(stream(2)) | cupy(stream(0, form="ptr")), 2),
        (torch(stream(77)) | framework("jax"), 77),
    ],
)
def test_the_stream_is_the_frameworks_own(
    modules: dict[str, ModuleType], handle: int
) -> None:
    """By the stream protocol or the framework's own name; the default stream otherwise."""
    before = set(modules)

    assert CurrentStream(modules)() == handle
    assert set(modules) == before


def raising() -> object:
    """Stand for a framework that cannot answer."""
    raise RuntimeError("not now")


@pytest.mark.parametrize(
    ("modules", "text"),
    [
        (framework("jax"), "jax has no interface for its current stream"),
        (torch(SimpleNamespace()), "torch does not say its current stream"),
        (torch(SimpleNamespace(__cuda_stream__=(1, 5))), "version 1 of"),
        (framework("cupy"), "cupy does not say its current stream"),
        (
            framework("cupy", cuda=SimpleNamespace(get_current_stream=raising)),
            "not now",
        ),
    ],
)
def test_a_framework_that_does_not_say_has_no_events(
    modules: dict[str, ModuleType], text: str
) -> None:
    """Verdict: the host's times with a note; a wrong stream would be a wrong time."""
    with pytest.raises(CollectError, match=text):
        CurrentStream(modules)()

    rig = Rig()
    cuda = CudaEvents(lambda: rig.driver, CurrentStream(modules))
    timer = EventTimer((cuda,), rig.clock.now_ns)
    host = HostCollector(rig.clock, CudaRuntime(lambda: rig.driver), (timer,))
    timing = host.measure(TimedCall(fn=rig.body(100 * US)), stop=StopAt())

    assert timing.source == "host"
    assert [note.code for note in timing.notes] == ["events-failed"]
    assert "cuEventRecord" not in rig.names()


def test_finding_events_calls_no_driver() -> None:
    """What there is to find is looked for when something is timed; here is nothing."""
    timer = EventTimer(find_events(), FakeClock().now_ns)
    timer.begin()
    timer.end()

    assert timer.taken() == [None]
    assert timer.refusal() is None


def test_mac_has_torchs_events_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no CUDA to look for."""
    monkeypatch.setattr(sys, "platform", "darwin")

    assert [type(events) for events in find_events()] == [TorchEvents]


# --------------------------------------------------------- a compiled double

LIBCUDA = r"""
#include <stddef.h>
#include <stdint.h>
typedef struct { float reached_ms; } *CUevent;
typedef void *CUstream;
static struct { float reached_ms; } events[256];
static int made_count;
static float now_ms;
int cuCtxGetCurrent(void **context) { *context = (void *)0x7f0000001000; return 0; }
int cuCtxSynchronize(void) { return 0; }
int cuEventCreate(CUevent *event, unsigned flags) {
    if (flags != 0 || made_count == 256) return 1;
    *event = (CUevent)&events[made_count++];
    return 0;
}
int cuEventRecord(CUevent event, CUstream stream) {
    if (stream != (CUstream)0x7f1234567890) return 400;
    event->reached_ms = now_ms += 0.25f;
    return 0;
}
int cuEventSynchronize(CUevent event) { return event->reached_ms > 0 ? 0 : 600; }
int cuEventElapsedTime(float *ms, CUevent start, CUevent end) {
    *ms = end->reached_ms - start->reached_ms;
    return 0;
}
int cuGetErrorName(int status, const char **name) {
    *name = status == 400 ? "CUDA_ERROR_INVALID_HANDLE" : NULL;
    return status == 400 ? 0 : 1;
}
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """Return a driver library of C, called as the real one is."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    folder = tmp_path_factory.mktemp("libcuda")
    source = folder / "libcuda.c"
    source.write_text(LIBCUDA)
    library = folder / "libcuda.so.1"
    argv = [compiler, "-shared", "-fPIC", "-o", str(library), str(source)]
    subprocess.run(argv, check=True)
    return ctypes.CDLL(str(library))


def test_handles_and_times_pass_through_c(compiled: ctypes.CDLL) -> None:
    """Handles of 64 bits, flags, and a float by reference, as the driver's ABI has them."""
    cuda = CudaEvents(lambda: compiled, lambda: 0x7F12_3456_7890)
    timer = EventTimer((cuda,), FakeClock().now_ns)
    waited: list[str] = []
    watched = timer.watched(lambda: waited.append("synchronize"))
    for _ in range(3):
        timer.begin()
        timer.end()
        watched()

    assert timer.taken() == pytest.approx([0.25e-3] * 3)
    assert timer.refusal() is None
    assert len(waited) == 4 + 3


def test_a_stream_that_c_refuses_is_named(compiled: ctypes.CDLL) -> None:
    """The code comes back with the driver's own name for it."""
    timer = EventTimer((CudaEvents(lambda: compiled, lambda: 8),), FakeClock().now_ns)
    timer.begin()
    timer.end()

    assert timer.taken() == [None]
    refusal = timer.refusal()
    assert refusal is not None
    assert "cuEventRecord failed with CUDA_ERROR_INVALID_HANDLE (400)" in refusal.text
