"""Rules of collect.timing.same_work: which changed arguments leave a measurement valid."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from fakes.arrays import CupyArray, NumbaArray, Tensor, fake_torch
from fakes.clock import FakeClock
from fakes.runtime import FakeRuntime, FakeTimer
from pytest_gpuperf.collect.base import TimedCall, Timing
from pytest_gpuperf.collect.runtime import NoDevice
from pytest_gpuperf.collect.timing.host import HostCollector
from pytest_gpuperf.errors import CollectError
from pytest_gpuperf.model.record import VoidCode

US = 1_000  # ns
MS = 1_000_000  # ns
REMEDY = (
    "give setup= (of measure or compare) that returns fresh arguments, and the same buffer"
    " for an output (out=)"
)


class Ten:
    """A stop rule that wants ten samples."""

    def enough(self, values: Sequence[float]) -> bool:
        return len(values) >= 10


class Never:
    """A stop rule that never has enough."""

    def enough(self, values: Sequence[float]) -> bool:
        return False


@pytest.fixture
def clock() -> FakeClock:
    """A clock that stands still."""
    return FakeClock()


@pytest.fixture
def host(clock: FakeClock) -> HostCollector:
    """A collector on that clock, without a device."""
    return HostCollector(clock, NoDevice())


def codes(timing: Timing) -> list[str]:
    """Return the codes of the notes on a timing."""
    return [note.code for note in timing.notes]


def why(timing: Timing) -> str:
    """Return why changed arguments void a timing, without what each such void says."""
    void = timing.void
    assert void is not None
    assert void.code is VoidCode.MUTATES_ITS_INPUTS
    assert void.remedy == REMEDY
    _, _, reason = void.reason.partition("different work: ")
    return reason


def written(clock: FakeClock, *times_ns: int, then_ns: int = MS) -> Callable[..., Any]:
    """Return a function that fills its last argument, with times of its calls."""
    take = clock.taking(*times_ns, then_ns=then_ns)

    def fn(*_: object, out: Any) -> Any:
        take()
        out[:] = b"done"
        return out

    return fn


# ------------------------------------------------------------- the same work


def test_an_output_buffer_is_the_same_work(
    clock: FakeClock, host: HostCollector
) -> None:
    """A call on its first content takes as long: the value counts, and a note says so."""
    out = bytearray(4)
    request = TimedCall(fn=written(clock), args=(1,), kwargs={"out": out})
    timing = host.measure(request, stop=Ten())

    assert timing.void is None
    assert codes(timing) == ["writes-output"]
    assert timing.notes[0].text == "argument out (bytearray) is an output: a call on its original content takes as long"  # fmt: skip
    assert not timing.notes[0].doubt
    assert timing.samples == (0.001,) * 10
    assert timing.warmup_count == 4
    assert timing.iterations_count == 1
    assert timing.result is out
    assert out == b"done"


def test_a_call_on_the_original_may_take_half_as_long_again(clock: FakeClock) -> None:
    """The best of three counts, so that one interruption voids nothing."""
    for last_ns, is_void in ((1_500 * US, False), (1_501 * US, True)):
        host = HostCollector(clock, NoDevice())
        fn = sorting(clock, first_ns=[9 * MS, 3 * MS, last_ns])
        timing = host.measure(TimedCall(fn=fn, args=([2, 1],)), stop=Ten())

        assert (timing.void is not None) is is_void


def sorting(
    clock: FakeClock, *, first_ns: Sequence[int], sorted_ns: int = MS
) -> Callable[[list[int]], None]:
    """
    Return a function that sorts a list.

    Args:
        first_ns: Times of the calls on an unsorted list, after the very first [ns]; the
            last one is repeated.

        sorted_ns: Time of a call on a sorted list [ns].
    """
    times_ns = itertools.chain([MS], first_ns, itertools.repeat(first_ns[-1]))

    def fn(values: list[int]) -> None:
        is_sorted = values == sorted(values)
        clock.advance(sorted_ns if is_sorted else next(times_ns))
        values.sort()

    return fn


def test_a_list_sorted_in_place_is_other_work(
    clock: FakeClock, host: HostCollector
) -> None:
    """A call on the original content takes longer than the samples say."""
    fn = sorting(clock, first_ns=[20 * MS])
    timing = host.measure(TimedCall(fn=fn, args=([3, 1, 2],)), stop=Ten())

    assert why(timing) == "a call on the original content takes 20 times as long"
    assert timing.void is not None
    assert timing.void.reason.startswith("argument 0 (list) changed between calls, so the calls did different work: ")  # fmt: skip
    assert codes(timing) == []
    assert timing.samples == (0.001,) * 10


def test_a_machine_that_became_slower_voids_nothing(
    clock: FakeClock, host: HostCollector
) -> None:
    """Then calls as the samples were are slower as well: these are compared with."""
    fn = written(clock, *[MS] * 14, then_ns=5 * MS)
    timing = host.measure(TimedCall(fn=fn, kwargs={"out": bytearray(4)}), stop=Ten())

    assert timing.void is None
    assert codes(timing) == ["writes-output"]
    assert timing.samples == (0.001,) * 10


def test_what_copying_does_to_the_caches_voids_nothing(
    clock: FakeClock,
) -> None:
    """What the calls have written is put back in the same way, and costs as much."""

    class Evicting(CupyArray):
        """An array whose copy takes what others need out of the caches."""

        is_cached = True

        def __setitem__(self, item: object, other: CupyArray) -> None:
            super().__setitem__(item, other)
            self.is_cached = False

    out = Evicting(np.zeros(4))

    def fn(out: Evicting) -> None:
        clock.advance(MS if out.is_cached else 4 * MS)
        out.is_cached = True
        out.memory[:] = 1

    runtime = FakeRuntime(clock)
    timing = HostCollector(clock, runtime).measure(TimedCall(fn=fn, args=(out,)), stop=Ten())  # fmt: skip

    assert timing.void is None
    assert timing.samples == (0.001,) * 10
    assert out.memory.tolist() == [1] * 4


def adds(values: list[int]) -> None:
    values[0] += 1


def alternates(values: list[int]) -> None:
    values[0] ^= 1


def grows(values: list[int]) -> None:
    values.append(7)


@pytest.mark.parametrize("change", [adds, alternates, grows])
def test_content_that_each_call_changes_anew_is_the_same_work(
    clock: FakeClock, host: HostCollector, change: Callable[[list[int]], None]
) -> None:
    """Calls on either content take as long. The test finds what its calls have left."""
    values, expected = [0], [0]

    def fn(values: list[int]) -> None:
        clock.advance(MS)
        change(values)

    request = TimedCall(fn=fn, args=(values,), budget_s=0.011)
    timing = host.measure(request, stop=Never())
    for _ in range(4 + 11 + 2):
        change(expected)

    assert timing.void is None
    assert codes(timing) == ["writes-output"]
    assert timing.notes[0].text == "argument 0 (list) changes in each call: a call on its original content takes as long"  # fmt: skip
    assert values == expected


def test_a_list_that_is_sorted_after_a_change_is_other_work(
    clock: FakeClock, host: HostCollector
) -> None:
    """Each call changes it anew, and only the first one has much to sort."""

    def fn(values: list[int]) -> None:
        clock.advance(MS if values[1:] == sorted(values[1:]) else 20 * MS)
        values[1:] = sorted(values[1:])
        values[0] -= 1

    timing = host.measure(TimedCall(fn=fn, args=([0, 3, 1, 2],)), stop=Ten())

    assert why(timing) == "a call on the original content takes 20 times as long"


def test_work_that_grows_with_the_content_is_other_work(
    clock: FakeClock, host: HostCollector
) -> None:
    """The value would depend on the number of calls."""

    def fn(values: list[int]) -> None:
        clock.advance(MS * len(values))
        values.append(7)

    timing = host.measure(TimedCall(fn=fn, args=([0],)), stop=Ten())

    assert why(timing) == "the content and the time go on changing"


def test_what_only_the_first_call_does_is_other_work(
    clock: FakeClock, host: HostCollector
) -> None:
    """A function that remembers what it was called with leaves the original as it is."""
    seen: set[int] = set()

    def fn(values: list[int]) -> None:
        clock.advance(MS)
        if id(values) not in seen:
            seen.add(id(values))
            values.sort()

    timing = host.measure(TimedCall(fn=fn, args=([2, 1],)), stop=Ten())

    assert why(timing) == "a call on the original content writes something else"


def test_a_call_on_the_original_that_raises_is_other_work(
    clock: FakeClock, host: HostCollector
) -> None:
    """The test goes on: its function was measured, and its void says what happened."""
    opened: list[str] = []

    def fn(handles: dict[str, str]) -> None:
        clock.advance(MS)
        if "log" not in handles:
            if opened:
                raise FileExistsError
            opened.append("log")
            handles["log"] = "open"

    timing = host.measure(TimedCall(fn=fn, args=({},)), stop=Ten())

    assert why(timing) == "one more call raised FileExistsError"


def test_a_module_loaded_in_each_call_on_the_original_is_other_work(
    clock: FakeClock, host: HostCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of them can be timed."""
    names = (f"gpuperf_fake_{number}" for number in itertools.count())

    def fn(values: list[int]) -> None:
        clock.advance(MS)
        if not values:
            monkeypatch.setitem(sys.modules, next(names), sys)
            values.append(1)

    timing = host.measure(TimedCall(fn=fn, args=([],)), stop=Ten())

    assert why(timing) == "no call on the original content could be timed"


# ---------------------------------------------------------------- not called


def test_fixed_iterations_leave_no_call_for_the_original(
    clock: FakeClock, host: HostCollector
) -> None:
    """All ranks of a job call equally often; the void and a note say why."""
    calls = []

    def fn(out: bytearray) -> None:
        clock.advance(MS)
        calls.append(1)
        out[:] = b"done"

    request = TimedCall(fn=fn, args=(bytearray(4),), iterations=5)
    timing = host.measure(request, stop=Ten())

    assert why(timing) == "iterations= fixes the number of calls, so none was made on the original content"  # fmt: skip
    assert timing.void is not None
    assert "the calls may have done different work" in timing.void.reason
    assert codes(timing) == ["original-not-called"]
    assert len(calls) == 4 + 5


def test_no_call_of_more_than_a_second_is_made_again(
    clock: FakeClock, host: HostCollector
) -> None:
    """It would take as long as the samples; the void and a note say why."""
    timings = [
        host.measure(TimedCall(fn=fn, kwargs={"out": bytearray(4)}), stop=Ten())
        for fn in (written(clock, then_ns=1000 * MS), written(clock, then_ns=1001 * MS))
    ]

    assert [codes(t) for t in timings] == [["writes-output"], ["original-not-called"]]
    assert why(timings[1]) == "a call takes more than 1 s, so none was made on the original content"  # fmt: skip


def test_an_argument_beyond_the_limit_is_named_with_its_size(
    clock: FakeClock, host: HostCollector
) -> None:
    """It may be an output: it was not tried."""
    out = np.zeros(100 * 1024**2, "u1")

    def fn(out: Any) -> None:
        clock.advance(MS)
        out[::4096] = 1

    timing = host.measure(TimedCall(fn=fn, kwargs={"out": out}), stop=Ten())

    assert why(timing) == "with its 100 MiB, copies of the arguments would take more than 64 MiB"  # fmt: skip
    assert codes(timing) == ["original-not-called"]


class Refusing(list[int]):
    """A list that is not copied."""


@pytest.mark.parametrize("make", [lambda: Refusing([2, 1]), lambda: [Refusing([2, 1])]])
def test_an_argument_that_cannot_be_copied_is_named(
    clock: FakeClock, host: HostCollector, make: Callable[[], list[Any]]
) -> None:
    """Alone, and inside what can be."""

    def fn(values: list[Any]) -> None:
        clock.advance(MS)
        (values if isinstance(values, Refusing) else values[0]).sort()

    timing = host.measure(TimedCall(fn=fn, args=(make(),)), stop=Ten())

    assert why(timing) in {"it cannot be copied", "the original content cannot be put back"}  # fmt: skip
    assert "original-not-called" in codes(timing)


def test_an_argument_that_refuses_to_be_put_back_is_void(
    clock: FakeClock, host: HostCollector
) -> None:
    """A view that the call has taken of a buffer forbids to change its size."""
    views: list[memoryview] = []

    def fn(out: bytearray) -> None:
        clock.advance(MS)
        if not views:
            out += b"grown"
            views.append(memoryview(out))

    timing = host.measure(TimedCall(fn=fn, args=(bytearray(2),)), stop=Ten())

    assert why(timing) == "the original content cannot be put back"


# -------------------------------------------------------------- short calls


class Ticking(FakeClock):
    """A clock whose reading takes 100 ns."""

    def now_ns(self) -> int:
        self.advance(100)
        return self.reading_ns


@pytest.mark.parametrize(
    ("unsorted_ns", "reason"),
    [(1400, ""), (3000, "a call on the original content takes 3 times as long")],
)
def test_short_calls_are_timed_one_by_one_on_the_original(
    unsorted_ns: int, reason: str
) -> None:
    """In a batch all calls but the first would find what that one has written."""
    clock = Ticking()
    fn = sorting(clock, first_ns=[unsorted_ns], sorted_ns=1000)
    request = TimedCall(fn=fn, args=([2, 1],))
    timing = HostCollector(clock, NoDevice()).measure(request, stop=Ten())

    assert timing.iterations_count > 1
    assert (why(timing) if timing.void is not None else "") == reason


def test_putting_back_before_each_short_call_is_limited() -> None:
    """A large argument takes far longer to copy than the call."""
    clock = Ticking()

    class Slow(CupyArray):
        """An array that takes 7 ms to be copied."""

        def __setitem__(self, item: object, other: CupyArray) -> None:
            clock.advance(7 * MS)
            super().__setitem__(item, other)

    class Unused(FakeRuntime):
        """A device with free memory that this thread does not use."""

        def free_bytes(self) -> int | None:
            return self.memory_bytes

    out = Slow(np.zeros(4, "u1"))

    def fn(out: Slow) -> None:
        clock.advance(1000)
        out.memory[:] = 1

    host = HostCollector(clock, Unused(clock, in_use=False))
    timing = host.measure(TimedCall(fn=fn, args=(out,)), stop=Ten())

    assert timing.void is None
    assert timing.iterations_count == 10
    assert out.calls.count("setitem") == 1 + 3


# ------------------------------------------------------- pools and two sides


def test_entries_of_a_pool_are_compared_with_themselves(
    clock: FakeClock, host: HostCollector
) -> None:
    """A large one takes longer than the median of all."""

    def fn(size: int, out: bytearray) -> None:
        clock.advance(size * MS)
        out[:] = b"done"

    pool = [(size, bytearray(4)) for size in (1, 100, 2, 3)]
    timing = host.measure(TimedCall(fn=fn, inputs=pool, budget_s=9.0), stop=Ten())

    assert timing.void is None
    assert codes(timing)[0] == "writes-output"


def test_one_entry_of_a_pool_that_does_other_work_voids(
    clock: FakeClock, host: HostCollector
) -> None:
    """Though a call on its original takes less than the median of all."""

    def fn(name: str, values: list[int]) -> None:
        slow = values != sorted(values)
        clock.advance({"small": US * (100 if slow else 1), "large": 10 * MS}[name])
        values.sort()

    pool = [("large", [1]), ("small", [2, 1])]
    timing = host.measure(TimedCall(fn=fn, inputs=pool, budget_s=9.0), stop=Ten())

    assert why(timing) == "a call on the original content takes 100 times as long"
    assert timing.void is not None
    assert timing.void.reason.startswith("inputs[1] argument 1 (list) changed")


def test_both_sides_of_a_comparison_may_write_an_output(
    clock: FakeClock, host: HostCollector
) -> None:
    """Each is compared with what it writes itself: their results differ a little."""

    def side(last: int) -> Callable[[bytearray], None]:
        def fn(out: bytearray) -> None:
            clock.advance(MS)
            out[:] = bytes([1, 2, last])

        return fn

    out = bytearray(3)
    first, second = (TimedCall(fn=side(last), args=(out,)) for last in (3, 4))
    timings = host.interleave(first, second, stop=Ten())

    assert [timing.void for timing in timings] == [None, None]
    assert [codes(timing) for timing in timings] == [["writes-output"]] * 2


def test_a_side_that_finds_what_the_other_has_sorted_is_void(
    clock: FakeClock, host: HostCollector
) -> None:
    """It was timed on other content than the test gave it."""

    def copying(values: list[int]) -> list[int]:
        clock.advance(MS if values == sorted(values) else 20 * MS)
        return sorted(values)

    values = [3, 1, 2]
    requests = (
        TimedCall(fn=sorting(clock, first_ns=[20 * MS]), args=(values,)),
        TimedCall(fn=copying, args=(values,)),
    )
    for a, b in (requests, requests[::-1]):
        values[:] = [3, 1, 2]
        timings = host.interleave(a, b, stop=Ten())
        assert all(timing.void is not None for timing in timings)


# ---------------------------------------------------------------- on a device


@pytest.mark.parametrize("kind", [Tensor, CupyArray, NumbaArray])
def test_an_output_on_a_device_is_the_same_work(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch, kind: type[Any]
) -> None:
    """The original is put back before the flush, and the device has done it by then."""
    monkeypatch.setitem(sys.modules, "torch", fake_torch())
    runtime = FakeRuntime(clock)
    out = kind(np.zeros(4))

    def fn(*, out: Any) -> None:
        runtime.events.append("call")
        runtime.pending_ns += MS
        out.memory[:] = 3

    request = TimedCall(fn=fn, kwargs={"out": out})
    timing = HostCollector(clock, runtime).measure(request, stop=Ten())

    assert timing.void is None
    assert codes(timing)[0] == "writes-output"
    assert timing.samples == (0.001,) * 10
    assert runtime.events[-4:] == ["flush", "synchronize", "call", "synchronize"]
    assert out.memory.tolist() == [3] * 4


def test_calls_on_the_original_are_timed_by_the_source_of_the_samples(
    clock: FakeClock,
) -> None:
    """A kernel that takes five times as long hides in the host's time."""
    runtime = FakeRuntime(clock)
    out = CupyArray(np.zeros(1))

    class Timer(FakeTimer):
        """The device's time of the last call."""

        def taken(self) -> list[float | None]:
            count = self._ended_count - self._asked_count
            self._asked_count = self._ended_count
            return [device_s.pop(0) for _ in range(count)]

    device_s: list[float | None] = []

    def fn(out: CupyArray) -> None:
        device_s.append(5e-6 if not out.memory[0] else 1e-6)
        runtime.pending_ns += 30 * US
        out.memory[0] = 1

    host = HostCollector(clock, runtime, (Timer("cupti"),))
    timing = host.measure(TimedCall(fn=fn, args=(out,)), stop=Ten())

    assert timing.source == "cupti"
    assert why(timing) == "a call on the original content takes 5 times as long"


def test_a_tensor_that_cannot_be_written_is_void(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one of inference mode outside of it."""
    monkeypatch.setitem(sys.modules, "torch", fake_torch())
    runtime = FakeRuntime(clock)
    out = Tensor(np.zeros(4))
    out.failing = "copy_"

    def fn(out: Tensor) -> None:
        runtime.pending_ns += MS
        out.memory[:] = 3

    timing = HostCollector(clock, runtime).measure(
        TimedCall(fn=fn, args=(out,)), stop=Ten()
    )

    assert why(timing) == "the original content cannot be put back"


def test_a_device_that_fails_in_a_call_on_the_original_is_an_error(
    clock: FakeClock,
) -> None:
    """It is gone for all that follows, which a void would hide."""
    runtime = FakeRuntime(clock)
    out = CupyArray(np.zeros(4))
    calls = itertools.count()

    def fn(out: CupyArray) -> None:
        runtime.pending_ns += MS
        out.memory[:] = 3
        if next(calls) == 16:
            message = "cuCtxSynchronize failed with CUDA_ERROR_ILLEGAL_ADDRESS (700)"
            raise CollectError(message, remedy="")

    with pytest.raises(CollectError, match="ILLEGAL_ADDRESS"):
        HostCollector(clock, runtime).measure(TimedCall(fn=fn, args=(out,)), stop=Ten())
