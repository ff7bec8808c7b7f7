"""measure.bench: a process times, marks or replays what the same fixture asks for."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable

import pytest

from fakes.clock import FakeClock
from fakes.runner import FakeRunner
from fakes.runtime import FakeRuntime
from pytest_gpuperf.collect.devices import DeviceQuery
from pytest_gpuperf.collect.step_profile import StepRecorder
from pytest_gpuperf.config import Config, Plan, Update
from pytest_gpuperf.errors import CollectorUnavailableError, MeasureError
from pytest_gpuperf.judge.grammar import parse_limit
from pytest_gpuperf.measure.bench import Bench, bench_of, marking_bench, timed_call
from pytest_gpuperf.measure.site import ProcessIdentity, Site
from pytest_gpuperf.model.environment import Session
from pytest_gpuperf.model.record import RecordKey
from pytest_gpuperf.model.run import ChildAnswer
from pytest_gpuperf.model.sample import CacheMode

KEY = RecordKey(test_id="test_it.py::test_x")
PLAN = Plan()
LIMIT = parse_limit("time <= 5 ms")
MS = 1_000_000  # [ns]


def no_gpu() -> DeviceQuery:
    return DeviceQuery(devices=(), reason="no driver")


def site(
    config: Config,
    clock: FakeClock | None = None,
    *,
    in_use: bool = False,
    query: Callable[[], DeviceQuery] = no_gpu,
) -> Site:
    """Return a process; NVML lists no GPU on its machine."""
    clock = clock or FakeClock()
    return Site(
        config,
        ProcessIdentity(session=Session(id="s", started_unix_s=0.0, host="h")),
        clock=clock,
        runner=FakeRunner(),
        runtime=FakeRuntime(clock, in_use=in_use),
        query=query,
    )


class Profiler:
    """A process that a profiler watches, with what the profiler and its parent see."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.answers: list[ChildAnswer] = []
        self.clock = FakeClock()
        process = site(Config(root="/"), self.clock, in_use=True)
        assert isinstance(process.runtime, FakeRuntime)
        process.runtime.events = self.events
        self.bench: Bench = marking_bench(
            process,
            tell=self.answers.append,
            ranges=self,
        )

    def open(self, name: str) -> object:
        self.events.append("open")
        return name

    def close(self, opened: object) -> None:
        assert opened
        self.events.append("close")


def test_the_gpus_are_asked_for_once_and_only_where_somebody_needs_them() -> None:
    """The query is given: asking a driver takes milliseconds of a run's start."""
    queries: list[DeviceQuery] = []

    def query() -> DeviceQuery:
        queries.append(no_gpu())
        return queries[-1]

    process = site(Config(root="/"), query=query)
    bench_of(process)
    before = len(queries)

    assert (process.device(), process.no_device_reason()) == (None, "no driver")
    assert (before, len(queries)) == (0, 1)


@pytest.mark.parametrize(
    ("correlation", "least", "most_count"),
    # The interval is one of 99 %. The bounds are two standard errors off 0.97 and 0.9,
    # which larger simulations reach.
    [(0.0, 0.98, 12), (0.5, 0.956, 30), (0.9, 0.876, 41)],
)
def test_the_printed_interval_holds_the_median_of_correlated_samples(
    correlation: float, least: float, most_count: float
) -> None:
    """Clear correlation takes more samples, and independent samples remain few."""
    chance, held, count, total_count = random.Random(17), 0, 600, 0
    own = math.sqrt(1 - correlation**2)
    for _ in range(count):
        clock, last, times_ns = FakeClock(), chance.gauss(0, 1), []
        for _ in range(60):
            times_ns.append(round(10 * MS * (1 + 0.001 * last)))
            last = correlation * last + own * chance.gauss(0, 1)
        request = timed_call(PLAN, clock.taking(*times_ns, then_ns=MS), (), {})
        bench = bench_of(site(Config(root="/"), clock))
        record, _ = bench.measurer.timed(KEY, request, plan=PLAN)
        estimate = record.estimates[0]
        assert estimate.low is not None
        assert estimate.high is not None
        held += estimate.low <= 0.01 <= estimate.high
        total_count += estimate.sample_count or 0

    assert held / count >= least
    assert total_count / count <= most_count


@pytest.mark.parametrize(
    ("config", "plan", "is_short"),
    [
        (Config(root="/", against="HEAD"), PLAN, True),
        (Config(root="/"), PLAN, False),
        (Config(root="/", against="HEAD", baseline_named=True), PLAN, False),
        (Config(root="/", against="HEAD", update=Update.NEW), PLAN, False),
        (Config(root="/", against="HEAD"), Plan(min_grade="B"), False),
        (Config(root="/", against="HEAD"), Plan(limits=(LIMIT,)), False),
    ],
    ids=["a revision", "nothing", "a store", "an update", "a grade", "a limit"],
)
def test_a_value_that_is_only_shown_costs_few_samples(
    config: Config, plan: Plan, is_short: bool
) -> None:
    """Blocks decide about a revision, and take samples of their own."""
    clock, durations_ns = FakeClock(), itertools.cycle([MS, 9 * MS, 2 * MS])

    def unsteady() -> None:
        clock.advance(next(durations_ns))

    bench = bench_of(site(config, clock))
    request = timed_call(plan, unsteady, (), {})
    record, _ = bench.measurer.timed(KEY, request, plan=plan)
    sampled_s = sum(record.series[0].values)

    assert (0.1 <= sampled_s < 0.2) is is_short


@pytest.mark.parametrize(("step", "is_enough"), [(7, True), (1, False)])
def test_samples_that_are_like_their_neighbours_are_not_enough(
    step: int, is_enough: bool
) -> None:
    """Ten within 1.5 % are enough where they vary at random, and not where they drift."""
    clock, calls = FakeClock(), itertools.count()

    def drifting() -> None:
        clock.advance(MS + step * next(calls) % 10 * MS // 600)

    bench = bench_of(site(Config(root="/"), clock))
    record, _ = bench.measurer.timed(KEY, timed_call(PLAN, drifting, (), {}), plan=PLAN)

    assert (record.estimates[0].sample_count == 10) is is_enough


def test_a_process_that_is_switched_off_times_nothing() -> None:
    """The function runs when its result is read, once, and its record says why."""
    bench = bench_of(site(Config(root="/", disable=True)))
    calls: list[int] = []
    request = timed_call(PLAN, calls.append, (1,), {})
    record, result = bench.measurer.timed(KEY, request, plan=PLAN)
    unread = len(calls)
    result()
    result()

    assert record.void is not None
    assert record.void.code == "disabled"
    assert (unread, len(calls)) == (0, 1)


def test_a_number_of_the_tests_own_is_known_though_nothing_is_measured() -> None:
    """The test gives it itself."""
    bench = bench_of(site(Config(root="/", disable=True)))
    record = bench.number(KEY, [2.0], unit="ms", better="lower")

    assert record.void is None
    assert record.estimates[0].value == pytest.approx(0.002)


def test_a_compared_pair_has_the_keys_of_its_sides() -> None:
    """Also where nothing is measured: reports and baselines find them by these."""
    bench = bench_of(site(Config(root="/", disable=True)))
    requests = (timed_call(PLAN, int, (), {}), timed_call(PLAN, float, (), {}))
    pair, a, b = bench.measurer.compared(
        RecordKey(test_id=KEY.test_id, name="p"), requests, plan=PLAN
    )

    assert [each.key.name for each in (pair, a, b)] == ["p", "p.a", "p.b"]
    assert [side.name for side in KEY.sides] == ["a", "b"]


def test_a_call_under_a_profiler_is_marked_once_it_is_warm() -> None:
    """Four calls before the range, one in it, from an idle device to an idle one."""
    place = Profiler()
    request = timed_call(PLAN, lambda: place.events.append("call"), (), {})
    record, _ = place.bench.measurer.timed(KEY, request, plan=PLAN)

    inside = ["synchronize", "open", "call", "synchronize", "close"]
    assert place.events == [*["call"] * 4, *inside]
    (reached,) = place.answers[0].reached
    assert (place.answers[0].test_id, reached.cache_control) == (KEY.test_id, "all")
    assert {e.value for e in record.estimates} == {1.0}


@pytest.mark.parametrize(
    ("times_s", "warm_ups"),
    [
        ((31.0, 31.0), 2),
        ((31.0, 0.001, 0.001, 0.001), 4),
        ((31.0, 0.5, 31.0, 31.0), 4),
        ((0.5, 31.0, 31.0), 3),
    ],
)
def test_a_slow_call_under_a_profiler_is_warm_after_two(
    times_s: tuple[float, ...], warm_ups: int
) -> None:
    """The second shows that the first was no compilation; four are for short calls."""
    place = Profiler()
    left = iter((*times_s, 31.0))

    def fn() -> None:
        place.events.append("call")
        place.clock.advance(round(next(left) * 1e9))

    place.bench.measurer.timed(KEY, timed_call(PLAN, fn, (), {}), plan=PLAN)

    assert place.events.index("open") == warm_ups + 1  # a wait, and these calls
    assert place.events.count("call") == warm_ups + 1


def test_a_loop_under_a_profiler_is_one_range() -> None:
    """It is recorded as everywhere else, with what its process may ask for besides."""
    place = Profiler()
    process = place.bench.site
    recorder = StepRecorder(process.clock, process.runtime, warmup_count=0)
    end = place.bench.measurer.stepped(KEY, recorder, plan=PLAN)
    with recorder.step():
        place.clock.advance(1_000_000)
    record, hardware = end(None)

    assert [e for e in place.events if e != "synchronize"] == ["open", "close"]
    assert {"throughput", "launches.count"} <= {e.metric for e in record.estimates}
    assert record.steps is not None
    assert hardware is None


def test_a_block_that_raises_under_a_profiler_was_not_reached() -> None:
    """Its range is closed all the same, and the next one is another."""
    place = Profiler()
    with pytest.raises(ZeroDivisionError), place.bench.measurer.ranged(KEY, plan=PLAN):
        _ = 1 / 0

    assert place.events == ["synchronize", "open", "close"]
    assert place.answers == []


def test_whose_profiler_holds_cupti_does_not_lack_it() -> None:
    """What a test requires else is looked at as everywhere."""
    measurer = Profiler().bench.measurer

    assert measurer.lacking(("cupti",)) is None
    assert measurer.lacking(("gpu",)) is not None
    assert measurer.turns is None


def test_a_collector_that_is_left_out_measures_nothing() -> None:
    """Whichever way the process measures: it is named, with what to add."""
    config = Config(root="/", collectors=("binary",))
    bench = bench_of(site(config))

    bench.need("binary")
    with pytest.raises(CollectorUnavailableError, match="host collector is not among"):
        bench.need("host")


@pytest.mark.parametrize("cache", ["", "hot"])
def test_a_cache_mode_that_is_not_one_is_refused(cache: str) -> None:
    """An empty text stands for nothing else."""
    with pytest.raises(MeasureError, match="is not a cache mode"):
        timed_call(PLAN, int, (), {}, cache=cache)


def test_what_the_call_does_not_say_its_markers_do() -> None:
    """Caches and the number of calls; where neither says it, the cache is cold."""
    plan = Plan(cache=CacheMode.WARM, iterations=3)
    marked, own = (timed_call(plan, int, (), {}, cache=c) for c in (None, "cold"))

    assert (marked.cache, marked.iterations, own.cache) == ("warm", 3, "cold")
    assert timed_call(PLAN, int, (), {}).cache == "cold"
