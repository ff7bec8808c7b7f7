"""collect.readings: which samples count, by which sources; and timers in a measurement."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.clock import FakeClock
from fakes.runtime import FakeRuntime, FakeTimer
from pytest_gpuperf.collect.base import TimedCall, Timing
from pytest_gpuperf.collect.timing.host import HostCollector
from pytest_gpuperf.collect.timing.readings import (
    Reading,
    counted_samples,
    median_clock_hz,
)
from pytest_gpuperf.model.record import Void, VoidCode

US = 1_000  # ns
GONE = Void(code=VoidCode.DROPPED_RECORDS, reason="records were dropped")


class StopAt:
    """A stop rule that wants ten samples."""

    def enough(self, values: Sequence[float]) -> bool:
        return len(values) >= 10


def readings(*values: float | None, clock_hz: Sequence[float] = ()) -> list[Reading]:
    """Return samples that cupti timed, or could not time."""
    clocks = [*clock_hz, *[None] * (len(values) - len(clock_hz))]
    return [
        Reading(wall_s=1.0, clock_hz=clock, device_s={"cupti": value})
        for value, clock in zip(values, clocks, strict=True)
    ]


# ------------------------------------------------ the samples that count


def test_the_host_is_a_source_of_every_sample() -> None:
    """Without a timer it is the only one."""
    chosen = counted_samples([readings(None, None)], (), {})

    assert (chosen.sources, chosen.places, chosen.notes) == (("host",), (0, 1), ())


def test_what_used_no_device_has_the_hosts_time() -> None:
    """Events would give the time between their recordings, as if it were the device's."""
    taken = readings(None, None, clock_hz=(2e9, 1e9))
    for reading in taken:
        reading.device_s["events"] = 0.9
    chosen = counted_samples([taken], ("cupti", "events"), {}, unused=True)

    assert (chosen.sources, chosen.places, chosen.unused) == (("host",), (0, 1), True)
    assert [note.code for note in chosen.notes] == ["unused-device"]


def test_a_sample_that_the_best_source_misses_is_left_out() -> None:
    """By all sources, so that they time the same calls; and it is said."""
    taken = readings(*[0.5] * 19, None)
    chosen = counted_samples([taken], ("cupti",), {})

    assert chosen.sources == ("cupti", "host")
    assert chosen.places == tuple(range(19))
    assert chosen.values(taken, "host") == (1.0,) * 19
    assert [note.text for note in chosen.notes] == [
        "cupti could not time 1 of 20 samples: these samples are left out"
    ]


@pytest.mark.parametrize(
    ("missing_count", "used"), [(1, True), (2, False), (10, False)]
)
def test_a_source_that_misses_many_is_left_out(missing_count: int, used: bool) -> None:
    """More than one sample in ten."""
    taken = readings(*[None] * missing_count, *[0.5] * (10 - missing_count))
    chosen = counted_samples([taken], ("cupti",), {})

    assert ("cupti" in chosen.sources) is used
    assert len(chosen.places) == (10 - missing_count if used else 10)
    assert len(chosen.notes) == 1


def test_a_barred_source_is_left_out_by_its_reason() -> None:
    """And one that did not run is not spoken of."""
    chosen = counted_samples(
        [readings(0.5)], ("cupti",), {"cupti": GONE, "events": GONE}
    )

    assert chosen.sources == ("host",)
    assert [(note.code, note.text) for note in chosen.notes] == [
        ("dropped-records", "cupti is left out: records were dropped")
    ]


def test_a_sample_counts_on_both_sides_or_on_neither() -> None:
    """Places of samples are those of their partners."""
    first = readings(*[0.5] * 20)
    second = readings(*[0.5] * 19, None)

    assert counted_samples([first, second], ("cupti",), {}).places == tuple(range(19))


@pytest.mark.parametrize(("clock_hz", "kept"), [(1500e6, True), (1499e6, False)])
def test_a_clock_is_low_below_three_quarters(clock_hz: float, kept: bool) -> None:
    """Of the median of the set."""
    taken = readings(0.5, 0.5, 0.5, clock_hz=(2000e6, 2000e6, clock_hz))

    assert (2 in counted_samples([taken], ("cupti",), {}).places) is kept


VALUES = st.none() | st.floats(1e-6, 1.0)


@given(
    st.lists(st.tuples(VALUES, VALUES, st.none() | st.floats(1e8, 3e9)), min_size=1),
    st.sets(st.sampled_from(["cupti", "events"])),
)
def test_every_source_has_every_sample_that_counts(
    rows: list[tuple[float | None, float | None, float | None]], barred: set[str]
) -> None:
    """Equally many by each, in their order; the host is last and always there."""
    taken = [
        Reading(wall_s=2.0, clock_hz=clock, device_s={"cupti": a, "events": b})
        for a, b, clock in rows
    ]
    chosen = counted_samples([taken], ("cupti", "events"), dict.fromkeys(barred, GONE))

    assert chosen.sources[-1] == "host"
    assert not barred & set(chosen.sources)
    assert list(chosen.places) == sorted(set(chosen.places))
    for source in chosen.sources:
        assert len(chosen.values(taken, source)) == len(chosen.places)
    left_out = len(taken) - len(chosen.places)
    assert bool(left_out) <= bool(chosen.notes)


# -------------------------------------------------------- in a measurement


@pytest.fixture
def clock() -> FakeClock:
    """A clock that stands still."""
    return FakeClock()


def measured(
    clock: FakeClock,
    *timers: FakeTimer,
    fn: Callable[[], object] | None = None,
    cache: str = "cold",
) -> Timing:
    """Return what a collector with some timers gives for a call of 100 us."""
    host = HostCollector(clock, FakeRuntime(clock), timers)
    request = TimedCall(fn=fn or (lambda: clock.advance(100 * US)), cache=cache)
    return host.measure(request, stop=StopAt())


def test_the_first_timer_is_the_best(clock: FakeClock) -> None:
    """The others stand beside it, the host last."""
    timing = measured(clock, FakeTimer("cupti", 70e-6), FakeTimer("events", 90e-6))

    assert timing.source == "cupti"
    assert timing.samples == (70e-6,) * 10
    assert list(timing.other_samples.items()) == [
        ("events", (90e-6,) * 10),
        ("host", pytest.approx((100e-6,) * 10)),
    ]


def test_a_refused_set_is_the_next_sources(clock: FakeClock) -> None:
    """Whole: no set mixes two sources."""
    best = FakeTimer("cupti", 70e-6)
    best.refused = GONE
    timing = measured(clock, best, FakeTimer("events", 90e-6))

    assert (timing.source, tuple(timing.other_samples)) == ("events", ("host",))
    assert [note.code for note in timing.notes] == ["dropped-records", "holds-launch"]


def test_timers_nest(clock: FakeClock) -> None:
    """The best is outside, so that the other's own work is part of no time of its own."""
    order: list[str] = []
    outer, inner = FakeTimer("cupti", 7e-5), FakeTimer("events", 9e-5)
    outer.events = inner.events = order

    measured(clock, outer, inner)

    assert order[:4] == ["cupti begin", "events begin", "events end", "cupti end"]


def test_a_sample_with_a_batch_is_divided(clock: FakeClock) -> None:
    """The device's time of one call is that of the batch over its calls."""
    timing = measured(
        clock, FakeTimer("events", 1.0), fn=lambda: clock.advance(US), cache="warm"
    )

    assert timing.iterations_count >= 50
    assert timing.samples == pytest.approx([1 / timing.iterations_count] * 10)


def test_warm_up_ends_when_the_same_is_launched_three_times(clock: FakeClock) -> None:
    """What is launched is seen: times say nothing then."""
    timer = FakeTimer("cupti", 70e-6)
    timer.launched = [("compile", "gemm"), "gemm", "gemm", "tuned", "tuned", "tuned"]
    calls = clock.taking(900 * US, 800 * US, 10 * US, then_ns=100 * US)
    timing = measured(clock, timer, fn=lambda: calls() and None)

    # the first call is not compared; the device's timers begin with it all the same
    assert timing.warmup_count == 1 + 6


def test_without_a_known_sequence_times_decide(clock: FakeClock) -> None:
    """A sequence of which one is not known is none."""
    timer = FakeTimer("cupti", 70e-6)
    timer.launched = ["gemm", None, "other"]
    timing = measured(clock, timer)

    assert timing.warmup_count == 4


def test_what_a_timer_held_before_is_not_a_sample(clock: FakeClock) -> None:
    """A measurement that raised leaves the timer where it was."""
    timer = FakeTimer("events", 50e-6)
    timer.begin()
    timer.end()

    assert measured(clock, timer).samples == (50e-6,) * 10


class Held(FakeTimer):
    """A timer that holds much after every third sample."""

    def holds_much(self) -> bool:
        return self.events.count("cupti end") % 3 == 0

    def taken(self) -> list[float | None]:
        self.events.append("read")
        return super().taken()


def test_what_a_timer_holds_is_read_before_it_is_too_much(clock: FakeClock) -> None:
    """Between samples, when the clock of the last one is known: it falls while idle."""
    timer = Held("cupti", *(n * 1e-6 for n in range(1, 15)))
    plain = FakeTimer("events", 90e-6)

    def sm_clock_hz() -> float:
        timer.events.append("clock")
        return 2e9

    host = HostCollector(
        clock, FakeRuntime(clock), (timer, plain), sm_clock_hz=sm_clock_hz
    )
    request = TimedCall(fn=lambda: clock.advance(100 * US), cache="cold")
    timing = host.measure(request, stop=StopAt())

    # four calls warm up; then ten samples, each with its own time
    assert timing.samples == pytest.approx([n * 1e-6 for n in range(5, 15)])
    assert timing.other_samples["events"] == (90e-6,) * 10
    samples = " ".join(timer.events).split("cupti begin cupti end")[5:]
    told = [each.split() for each in samples]
    assert [each[0] for each in told] == ["clock"] * 10
    # after the 6th, 9th and 12th call, and when all are taken
    assert [n for n, each in enumerate(told, 5) if "read" in each] == [6, 9, 12, 14]


def test_the_clock_of_a_set_is_its_median() -> None:
    """Of the samples whose clock was read; None where nobody read one."""
    taken = readings(0.5, 0.5, 0.5, 0.5, clock_hz=(2000e6, 1000e6, 1500e6))

    assert median_clock_hz(taken) == 1500e6
    assert median_clock_hz(readings(0.5)) is None
    assert median_clock_hz([]) is None
