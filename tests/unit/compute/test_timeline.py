"""compute.timeline: what GPUs did over time."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.compute.timeline import (
    AVERAGED,
    Scoring,
    WindowSummary,
    compute_all,
    summarise,
    summarise_all,
    time_lines,
    utilization_estimates,
    window_summary,
    worst_health,
)
from pytest_gpuperf.model import CanonicalRecord, Health, WorkloadClass
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.telemetry import ClockReason
from unit.compute.telemetry import full, record, records

IDLE, HEAVY = WorkloadClass.IDLE, WorkloadClass.COMPUTE_HEAVY
BOUND = WorkloadClass.MEMORY_BOUND


def heavy(second: float, **given_: Any) -> CanonicalRecord:
    return full(**{"monotonic_s": second, "sm_active_fraction": 1.0} | given_)


def idle(second: float, **given_: Any) -> CanonicalRecord:
    return full(**{"monotonic_s": second} | given_)


def window(
    *some: CanonicalRecord, start_s: float = 0.0, end_s: float = 10.0, **how: Any
) -> WindowSummary:
    """Return the summary of readings of one GPU."""
    (found,) = summarise(some, start_s=start_s, end_s=end_s, **how)
    return found


def test_each_reading_follows_that_of_its_own_gpu() -> None:
    """Readings of several GPUs may come in any order between them."""
    some = [
        full(gpu_index=gpu, monotonic_s=float(second), pcie_replay_count=gpu * second)
        for second in range(3)
        for gpu in (2, 1)
    ]

    rates = [c.pcie_replay_rate_per_s for c in compute_all(some)]

    assert rates == [None, None, 2.0, 1.0, 2.0, 1.0]


def test_one_missing_count_costs_two_rates() -> None:
    """A reading without a count becomes the previous one all the same."""
    counts = (1, None, 3, 5)
    some = [
        full(monotonic_s=float(i), pcie_replay_count=count)
        for i, count in enumerate(counts)
    ]

    assert [c.pcie_replay_rate_per_s for c in compute_all(some)] == [
        None,
        None,
        None,
        2.0,
    ]


@given(
    first=st.lists(records(gpu_index=0), max_size=6),
    second=st.lists(records(gpu_index=1), max_size=6),
)
def test_gpus_do_not_know_each_other(
    first: list[CanonicalRecord], second: list[CanonicalRecord]
) -> None:
    """One after the other or in turns: each GPU's answers are the same."""
    pairs = itertools.zip_longest(first, second)
    in_turns = [one for pair in pairs for one in pair if one is not None]

    apart = [*compute_all(first), *compute_all(second)]

    together = sorted(compute_all(in_turns), key=lambda c: c.gpu_index)
    assert together == apart


def test_the_stream_keeps_nothing() -> None:
    """An answer comes as soon as its reading is there."""
    endless = (full(monotonic_s=float(second)) for second in itertools.count())

    found = list(itertools.islice(compute_all(endless), 3))

    assert [c.record.monotonic_s for c in found] == [0.0, 1.0, 2.0]


def test_a_product_is_known_by_its_gpu() -> None:
    """A model's name reaches the readings of its GPU only."""
    some = [full(gpu_index=gpu, temperature_celsius=94.0) for gpu in (0, 1)]

    found = compute_all(some, Scoring(model_names={("", 1, ""): "NVIDIA H200"}))

    assert [(c.model_name, c.health.value) for c in found] == [
        (None, "HOT"),
        ("NVIDIA H200", "OK"),
    ]


def test_hosts_are_told_apart() -> None:
    """GPU 0 of two hosts are two GPUs, each with its own product, health and time."""
    some = [full(hostname=host, temperature_celsius=94.0) for host in "ba"]
    scoring = Scoring(model_names={("b", 0, ""): "NVIDIA H200"})

    assert worst_health(some, scoring) == {
        ("a", 0, ""): Health.HOT,
        ("b", 0, ""): Health.OK,
    }
    found = summarise_all(some, scoring)
    assert [(s.hostname, s.gpu, s.reading_count) for s in found] == [
        ("a", ("a", 0, ""), 1),
        ("b", ("b", 0, ""), 1),
    ]


def test_a_class_holds_since_the_reading_before() -> None:
    """A reading describes the time that went before it, from the window's start on."""
    found = window(idle(1.0), heavy(4.0), idle(10.0))

    assert found.sample_class_s == {IDLE: 7.0, HEAVY: 3.0}
    assert (found.incomplete_s, found.unobserved_s) == (0.0, 0.0)
    assert found.reading_count == 3


def test_a_window_cuts_the_readings_at_its_ends() -> None:
    """The reading before says since when, the first one after describes the end."""
    found = window(heavy(1.0), idle(3.0), heavy(5.0), idle(7.0), start_s=2.0, end_s=4.0)

    assert found.sample_class_s == {IDLE: 1.0, HEAVY: 1.0}
    assert found.reading_count == 2


def test_a_long_silence_is_nobodys() -> None:
    """A reading speaks for no more than it can have seen."""
    found = window(idle(1.0), heavy(9.0), longest_s=2.0)

    assert found.sample_class_s == {IDLE: 1.0, HEAVY: 2.0}
    assert found.unobserved_s == 7.0


def test_an_incomplete_reading_has_no_class() -> None:
    """Its time is told apart, and its score is left out."""
    found = window(idle(4.0), heavy(10.0, tensor_active_fraction=None))

    assert found.sample_class_s == {IDLE: 4.0}
    assert found.incomplete_s == 6.0
    assert found.real_util is not None
    assert (found.real_util.count, found.real_util.mean) == (1, 0.0)


def test_the_class_of_the_average_is_another_answer() -> None:
    """Half heavy compute, half bound by memory: on average, neither."""
    found = window(
        heavy(5.0),
        idle(10.0, dram_active_fraction=0.6, graphics_active_fraction=1.0),
    )

    assert found.sample_class_s == {HEAVY: 5.0, BOUND: 5.0}
    assert found.average is not None
    assert found.average.workload_class is WorkloadClass.COMPUTE_ACTIVE
    assert found.average.record.dram_active_fraction == 0.3


def test_a_mean_weighs_readings_with_their_time() -> None:
    """A median and a 95th percentile count each reading once."""
    found = window(heavy(1.0), heavy(2.0), idle(10.0))

    level = found.levels["sm_active_fraction"]
    assert (level.count, level.mean, level.p50) == (3, 0.2, 1.0)
    assert found.levels["tensor_active_fraction"].p95 == 0.0


@given(
    value=st.sampled_from([0.15, 0.3, 0.4, 0.5, 0.6, 0.8]),
    steps=st.lists(st.floats(0.01, 3.0), min_size=1, max_size=20),
)
def test_the_mean_of_equal_values_is_that_value(
    value: float, steps: list[float]
) -> None:
    """Rounding takes no average across a threshold that every reading reached."""
    times = list(itertools.accumulate(steps))
    some = [full(monotonic_s=second, sm_active_fraction=value) for second in times]

    (found,) = summarise(some, start_s=0.0, end_s=times[-1])

    assert found.levels["sm_active_fraction"].mean == value


@given(
    some=st.lists(records(), max_size=12),
    start_s=st.floats(0, 0.5),
    length_s=st.floats(0, 0.5),
    longest_s=st.sampled_from([0.05, 0.1, math.inf]),
)
def test_the_seconds_add_up_to_the_window(
    some: list[CanonicalRecord], start_s: float, length_s: float, longest_s: float
) -> None:
    """Every second is of one class, incomplete or unobserved."""
    some.sort(key=lambda one: one.monotonic_s)
    end_s = start_s + length_s

    for found in summarise(some, start_s=start_s, end_s=end_s, longest_s=longest_s):
        parts = [*found.sample_class_s.values(), found.incomplete_s, found.unobserved_s]
        assert math.isclose(math.fsum(parts), end_s - start_s, abs_tol=1e-12)
        assert all(part >= 0 for part in parts)


def test_counters_are_not_averaged() -> None:
    """Of what only grows the last one counts, and the rate is that of the whole window."""
    found = window(
        idle(1.0, energy_joules=5.0, pcie_replay_count=1),
        idle(2.0, energy_joules=7.0, pcie_replay_count=5),
        idle(3.0, energy_joules=9.0, pcie_replay_count=5, row_remap_failed=None),
    )

    assert "energy_joules" not in found.levels
    assert found.average is not None
    assert found.average.record.energy_joules == 9.0
    assert found.average.record.row_remap_failed is False
    assert found.average.pcie_replay_rate_per_s == 2.0


def test_the_rate_of_a_window_is_since_the_reading_before_it() -> None:
    """That is when its first reading began to hold."""
    counts = ((1.0, 1), (3.0, 7), (5.0, 9))
    some = [idle(second, pcie_replay_count=count) for second, count in counts]
    found = window(*some, start_s=2.0)

    assert found.reading_count == 2
    assert found.average is not None
    assert found.average.pcie_replay_rate_per_s == 2.0


def test_a_reading_that_was_never_there_stays_absent() -> None:
    """The average says what is missing, as one reading does."""
    found = window(record(monotonic_s=2.0, sm_active_fraction=0.9, gpu_index=4))

    assert found.gpu_index == 4
    assert set(found.levels) == {"sm_active_fraction"}
    assert found.average is not None
    assert "dram_active_fraction" in found.average.missing


def test_no_reading_in_a_window_is_no_answer() -> None:
    """Then all of its time is unobserved."""
    found = window(idle(1.0), start_s=2.0, end_s=3.0)

    assert (found.reading_count, found.unobserved_s) == (0, 1.0)
    assert (found.real_util, found.average) == (None, None)


def test_instances_of_a_gpu_have_their_own_summaries() -> None:
    """One for each index and uuid, in their order."""
    some = [replace(idle(1.0), gpu_uuid=uuid) for uuid in ("GPU-a/GI2", "GPU-a/GI1")]

    found = summarise(some, start_s=0.0, end_s=1.0)

    assert [w.gpu_uuid for w in found] == ["GPU-a/GI1", "GPU-a/GI2"]


def test_a_window_that_ends_before_it_begins_is_refused() -> None:
    """So is one whose ends are not numbers."""
    for end_s in (0.5, math.nan):
        with pytest.raises(ValueError, match="ends before it begins"):
            summarise([], start_s=1.0, end_s=end_s)


def test_every_reading_is_averaged_or_kept() -> None:
    """A reading of a new name is averaged, unless it is listed with the counters."""
    assert set(AVERAGED).isdisjoint({"energy_joules", "pcie_replay_count", "last_xid"})
    assert "power_watts" in AVERAGED


def test_a_window_for_a_record_says_what_its_summary_does() -> None:
    """Its seconds, its scores, and the class of the average, by their labels."""
    some = [idle(1.0), heavy(4.0), heavy(9.0)]
    (short,) = window_summary(some, start_s=0.0, end_s=10.0)
    long = window(*some)

    assert long.real_util is not None
    assert long.average is not None
    assert short.class_s == {"idle": 1.0, "compute-heavy": 8.0}
    assert (short.duration_s, short.reading_count) == (10.0, 3)
    assert (short.incomplete_s, short.unobserved_s) == (0.0, 1.0)
    assert (short.real_util, short.real_util_p50, short.real_util_p95) == (
        long.real_util.mean,
        long.real_util.p50,
        long.real_util.p95,
    )
    assert short.average_class == long.average.workload_class.label


def test_a_window_for_a_record_is_of_one_gpu_scored_as_it_was_asked() -> None:
    """By its place and its name, for no longer than a reading can speak."""
    some = [
        idle(3.0, gpu_index=3, gpu_uuid="GPU-a", dram_active_fraction=0.5),
        heavy(11.0, gpu_index=3, gpu_uuid="GPU-a"),
    ]
    (found,) = window_summary(
        some,
        start_s=2.0,
        end_s=12.0,
        longest_s=2.0,
        scoring=Scoring(weights=(0.0, 0.0, 1.0, 0.0)),
    )

    assert (found.gpu_index, found.gpu_uuid) == (3, "GPU-a")
    assert (found.duration_s, found.unobserved_s) == (10.0, 7.0)
    assert found.real_util == pytest.approx(50.0 / 3)
    assert (found.real_util_p50, found.real_util_p95) == pytest.approx((25.0, 47.5))


def test_a_window_of_incomplete_readings_has_no_class() -> None:
    """Its average would be judged by what is absent."""
    (found,) = window_summary([record(monotonic_s=5.0)], start_s=0.0, end_s=5.0)
    (before,) = window_summary([idle(-1.0)], start_s=0.0, end_s=5.0)

    assert (found.average_class, found.real_util, found.class_s) == (None, None, {})
    assert found.incomplete_s == 5.0
    assert (before.average_class, before.unobserved_s) == (None, 5.0)


@given(some=st.lists(records(), max_size=8), end_s=st.floats(0.0, 1e6))
def test_the_parts_of_a_window_make_it(
    some: list[CanonicalRecord], end_s: float
) -> None:
    """Of each GPU: classes, incomplete and unobserved seconds."""
    ordered = sorted(some, key=lambda each: each.monotonic_s)
    for found in window_summary(ordered, start_s=0.0, end_s=end_s):
        parts = (*found.class_s.values(), found.incomplete_s, found.unobserved_s)
        assert math.fsum(parts) == pytest.approx(found.duration_s)


def test_a_time_line_has_the_readings_of_its_window() -> None:
    """Each GPU's own, from its begin on; a sensor that never spoke is left out."""
    some = [
        full(gpu_index=gpu, monotonic_s=float(second), power_watts=100.0 * second)
        for second in range(5)
        for gpu in (0, 1)
    ]
    first, second = time_lines(some, start_s=1.0, end_s=3.5)

    assert (first.gpu_index, second.gpu_index) == (0, 1)
    assert first.since_s == (0.0, 1.0, 2.0)
    assert first.readings["power_watts"] == (100.0, 200.0, 300.0)
    silent = [record(monotonic_s=float(second)) for second in range(3)]
    (line,) = time_lines(silent, start_s=0.0, end_s=9.0)
    assert (line.readings, line.classes) == ({}, ("", "", ""))


def test_a_long_time_line_is_thinned() -> None:
    """The report has at most 120 points, evenly over the window."""
    some = [heavy(float(second)) for second in range(1000)]
    (line,) = time_lines(some, start_s=0.0, end_s=1000.0)

    assert line.since_s == tuple(float(second) for second in range(0, 1000, 9))
    assert {*line.classes} == {"compute-heavy"}


CAP, HOT = ClockReason.SOFTWARE_POWER_CAP, ClockReason.HARDWARE_THERMAL


def held(second: float, *reasons: ClockReason) -> CanonicalRecord:
    """Return a reading of a clock that these held down."""
    return record(monotonic_s=second, clock_reasons=frozenset(reasons))


def test_a_time_line_says_when_the_clock_was_held_down() -> None:
    """A reading describes the time since the one before, inside the window."""
    some = [held(0.0), held(2.0, CAP), held(3.0, CAP, HOT), held(4.0), held(6.0, CAP)]
    (line,) = time_lines(some, start_s=1.0, end_s=5.0)

    assert line.throttled_spans_s == {CAP: ((0.0, 2.0), (3.0, 4.0)), HOT: ((1.0, 2.0),)}
    assert line.throttled_s == {CAP: 3.0, HOT: 1.0}


def test_a_clock_that_nobody_read_is_not_free() -> None:
    """No reading is None; readings of a free clock are empty."""
    (unread,) = time_lines([record(monotonic_s=1.0)], start_s=0.0, end_s=2.0)
    (free,) = time_lines([held(1.0)], start_s=0.0, end_s=2.0)

    assert (unread.throttled_s, free.throttled_s) == (None, {})
    assert (unread.throttled_spans_s, free.throttled_spans_s) == ({}, {})


def test_a_throttled_span_ends_where_nobody_sampled() -> None:
    """A reading says nothing of the time in which the sampler was away."""
    between = record(monotonic_s=4.5)  # a sample without this sensor
    some = [held(0.0), held(1.0, CAP), held(4.0, CAP), between, held(5.0, CAP)]
    (line,) = time_lines(some, start_s=0.0, end_s=9.0, longest_s=1.0)

    assert line.throttled_spans_s == {CAP: ((0.0, 1.0), (3.0, 5.0))}
    assert line.throttled_s == {CAP: 3.0}


def test_a_clock_that_flutters_has_few_spans() -> None:
    """They are joined for the drawing; the seconds stay exact."""
    some = [held(i / 10, *[CAP] * (i % 2)) for i in range(1001)]
    (line,) = time_lines(some, start_s=0.0, end_s=100.0)

    assert line.throttled_s is not None
    assert line.throttled_s[CAP] == pytest.approx(50.0)
    (span,) = line.throttled_spans_s[CAP]
    assert span == pytest.approx((0.0, 99.9))


def test_all_readings_make_a_window_from_one_period_before_the_first() -> None:
    """The first reading describes the time before it, as the second one does."""
    (summary,) = summarise_all([heavy(5.0), heavy(7.0), idle(9.0)])

    assert (summary.start_s, summary.end_s) == (3.0, 9.0)
    assert summary.sample_class_s == {HEAVY: 4.0, IDLE: 2.0}
    assert summary.unobserved_s == 0.0


def test_the_period_is_between_moments_not_between_readings() -> None:
    """Two GPUs that are read at one moment share the period of both."""
    some = [heavy(second, gpu_index=gpu) for second in (5.0, 6.0) for gpu in (0, 1)]

    assert [s.sample_class_s for s in summarise_all(some)] == [{HEAVY: 2.0}] * 2


def test_gpus_that_are_read_one_after_the_other_have_one_period() -> None:
    """nvidia-smi reads the second GPU 2 ms after the first: that is not a period."""
    some = [
        reading(second + late_s, gpu_index=gpu)
        for second, reading in ((5.0, heavy), (6.0, idle))
        for gpu, late_s in ((0, 0.0), (1, 0.002))
    ]
    first, second = summarise_all(some)

    assert first.sample_class_s == {HEAVY: 1.0, IDLE: 1.0}
    assert second.sample_class_s == pytest.approx({HEAVY: 1.002, IDLE: 1.0})
    lone_s = [s.end_s - s.start_s for s in summarise_all(some[:2])]
    assert lone_s == pytest.approx([1.002] * 2)


def test_a_lone_reading_describes_a_second() -> None:
    """There is no other one to tell how often the GPU was read."""
    (summary,) = summarise_all([heavy(5.0)])

    assert (summary.start_s, summary.end_s) == (4.0, 5.0)


def test_the_worst_health_of_each_gpu_counts() -> None:
    """Critical is worse than a warning, that worse than hot; good is the best."""
    hot = {"temperature_celsius": 200.0}
    warned = [
        record(gpu_index=1, monotonic_s=float(n), pcie_replay_count=n, **hot)
        for n in range(2)
    ]
    some = [
        record(gpu_index=0, **hot),
        record(gpu_index=0, row_remap_failed=True),
        record(gpu_index=0),
        *warned,
        record(gpu_index=2, **hot),
        record(gpu_index=2),
        record(gpu_index=3),
    ]

    assert worst_health(some) == {
        ("", 0, ""): Health.CRIT,
        ("", 1, ""): Health.WARN,
        ("", 2, ""): Health.HOT,
        ("", 3, ""): Health.OK,
    }


def metrics_of(
    *some: CanonicalRecord, start_s: float = 0.0, end_s: float = 10.0
) -> dict[str, float]:
    """Return the metrics of a window by the last part of their names."""
    (one,) = window_summary(some, start_s=start_s, end_s=end_s)
    return {
        estimate.metric.removeprefix("utilization."): estimate.value
        for estimate in utilization_estimates(one)
    }


def test_a_window_gives_shares_of_its_time() -> None:
    """By bottleneck, of the time that has a class; and of the time without health."""
    values = metrics_of(
        heavy(4.0, temperature_celsius=50.0), idle(10.0, temperature_celsius=99.0)
    )

    assert values["compute_fraction"] == pytest.approx(0.4)
    assert values["idle_fraction"] == pytest.approx(0.6)
    assert values["unhealthy_fraction"] == pytest.approx(0.6)
    assert values["io_fraction"] == values["memory_fraction"] == 0.0


def test_a_window_that_is_mostly_unknown_gives_no_share() -> None:
    """What is known of less than half of it may be the smaller part of it."""
    assert metrics_of(heavy(4.0, temperature_celsius=None)) == {}
    assert "score" in metrics_of(heavy(6.0))
    assert "score" not in metrics_of(heavy(6.0, dram_active_fraction=None))


def test_health_is_not_known_without_a_temperature() -> None:
    """An absent sensor is not a cool GPU, and a slow one speaks for the time between."""
    cool, silent = {"temperature_celsius": 50.0}, {"temperature_celsius": None}

    assert "unhealthy_fraction" not in metrics_of(heavy(6.0, **silent))
    assert (
        metrics_of(heavy(1.0, **cool), heavy(9.0, **silent))["unhealthy_fraction"] == 0
    )
