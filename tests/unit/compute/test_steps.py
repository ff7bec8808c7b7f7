"""compute.steps: throughput, waiting, coverage and communication of a loop."""

from __future__ import annotations

import math
import random
import statistics
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import stdtrit

from pytest_gpuperf.compute.steps import rate_interval, slow_start, summarize
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.steps import (
    Compiled,
    Loop,
    Span,
    SpanKind,
    SpanLevel,
    Step,
    StepSummary,
    Waiting,
)


def span(name: str, kind: SpanKind, start_s: float, end_s: float, **more: Any) -> Span:
    given = {"level": SpanLevel.PHASE, **more}
    return Span(name=name, kind=kind, start_s=start_s, end_s=end_s, **given)


def forward(start_s: float, end_s: float, **more: Any) -> Span:
    return span("forward", SpanKind.FORWARD, start_s, end_s, **more)


def backward(start_s: float, end_s: float, **more: Any) -> Span:
    return span("backward", SpanKind.BACKWARD, start_s, end_s, **more)


def reduce(start_s: float, end_s: float, **more: Any) -> Span:
    return span("all_reduce", SpanKind.COMMUNICATION, start_s, end_s, **more)


def loop(*steps: Step, **more: Any) -> Loop:
    given = {"unit": "token", "units": 1.0, "warmup_count": 0, **more}
    return Loop(steps=steps, **given)


def step(*spans: Span, **more: Any) -> Step:
    """Return a step that waits for 2 s, then works for 10 s."""
    given = {"index": 0, "begin_s": 0.0, "start_s": 2.0, "end_s": 12.0, **more}
    return Step(spans=spans, **given)


def summary(*spans: Span, **more: Any) -> StepSummary:
    found = summarize(loop(step(*spans), **more))
    assert found is not None
    return found


def steps_of(
    periods: list[tuple[float, float]], units: list[float] | None = None
) -> list[Step]:
    """Return steps that wait and work for some times, one behind the other."""
    made: list[Step] = []
    now = 0.0
    for index, (wait, work) in enumerate(periods):
        made.append(
            Step(
                index=index,
                begin_s=now,
                start_s=now + wait,
                end_s=now + wait + work,
                units=units[index] if units else 1.0,
            )
        )
        now = made[-1].end_s
    return made


@pytest.mark.parametrize(
    ("times_us", "compiled_count", "found"),
    [
        ([900, 800] + [2] * 20, 0, (2, 400)),
        ([900, 800] + [2] * 20, 1, None),
        ([900] + [2] * 20, 0, None),
        ([90, 80] + [2] * 20, 0, None),
        ([900, 800] + [200] * 20, 0, None),
        ([2] * 20 + [900, 800], 0, None),
    ],
    ids=["2 of 22", "compiled", "one", "short", "alike", "last"],
)
def test_several_slow_steps_at_the_beginning_are_found(
    times_us: list[float], compiled_count: int, found: tuple[int, float] | None
) -> None:
    """The steps after them may have nothing to do."""
    compiled = Compiled(count=compiled_count, graph_breaks_count=0, time_s=0.0)
    ends_s = [0.0, *(1e-6 * sum(times_us[: n + 1]) for n in range(len(times_us)))]
    several = [
        step(index=n, begin_s=a, start_s=a, end_s=b, compiled=compiled)
        for n, (a, b) in enumerate(pairwise(ends_s))
    ]

    assert slow_start(several) == (found and pytest.approx(found))


@pytest.mark.parametrize(
    ("slow_count", "prepared", "unknown", "found"),
    [
        (4, 0, False, 4),
        (4, 3, False, None),
        (4, 2, False, 4),
        (4, 0, True, 4),
        (3, 0, True, None),
    ],
)
def test_slow_steps_that_prepare_are_no_work_of_the_others(
    slow_count: int, prepared: int, *, unknown: bool, found: int | None
) -> None:
    """They import, wait for the first batches, or may compile with jax."""
    times_us = [900] * slow_count + [2] * 20
    ends_s = [0.0, *(1e-6 * sum(times_us[: n + 1]) for n in range(len(times_us)))]
    known = Compiled(count=0, graph_breaks_count=0, time_s=0.0)
    several = [
        step(
            index=n,
            begin_s=a,
            start_s=a,
            end_s=b,
            compiled=None if unknown else known,
            prepared=n < prepared,
        )
        for n, (a, b) in enumerate(pairwise(ends_s))
    ]
    result = slow_start(several)

    assert (result and result[0]) == found


def test_a_loop_without_a_step_that_counts_amounts_to_nothing() -> None:
    """None of them, all to warm up, or all void."""
    assert summarize(loop()) is None
    assert summarize(loop(step(), warmup_count=1)) is None
    assert summarize(loop(step(void="ValueError"))) is None


def test_what_warms_up_or_is_void_counts_nowhere() -> None:
    """Not in times, units, or what was compiled; but in the number of steps."""
    steps = steps_of([(5, 50), (1, 10), (0, 99), (1, 20)], [9, 4, 9, 2])
    steps = [
        replace(each, compiled=Compiled(count=each.index, graph_breaks_count=0))
        for each in steps
    ]
    steps[2] = replace(steps[2], void="KeyError")
    found = summarize(loop(*steps, warmup_count=1))

    assert found is not None
    assert (found.step_count, found.counted_count) == (4, 2)
    assert (found.warmup_count, found.void_count) == (1, 1)
    assert found.step_s == pytest.approx(15)
    assert found.period_s == pytest.approx(16)
    assert found.units == 3
    assert found.compiled == Compiled(count=4, graph_breaks_count=0)
    assert found.warmup_compiled == Compiled(count=0, graph_breaks_count=0)
    assert found.recompiled_steps == (1, 3)


def test_waiting_is_the_time_between_steps_unless_data_was_recorded() -> None:
    """What is recorded says more, and what else lies between is not waiting then."""
    data = span("data", SpanKind.DATA, 0.0, 0.5)

    assert (summary().wait_s, summary().data_was_recorded) == (2.0, False)
    assert (summary(data).wait_s, summary(data).data_was_recorded) == (0.5, True)


def test_data_that_is_fetched_beside_the_steps_is_not_waited_for() -> None:
    """A thread that prefetches keeps nobody waiting."""
    beside = span("data", SpanKind.DATA, 0.0, 12.0, thread=1)

    assert summary(beside).wait_s == 2.0
    assert summary(beside).covered_fraction is None


def test_coverage_is_the_union_of_what_was_recorded() -> None:
    """Nested spans count once, and what lies beside the steps not at all."""
    spans = (
        forward(2.0, 5.0),
        span("gemm", SpanKind.FORWARD, 2.0, 4.0, parent=0, level=SpanLevel.OPERATION),
        backward(6.0, 12.0),
        span("data", SpanKind.DATA, 0.0, 12.0, thread=1),
    )

    assert summary(*spans).covered_fraction == pytest.approx(9 / 12)
    assert summary().covered_fraction is None


def test_a_phase_is_counted_without_the_phases_inside_it() -> None:
    """Own times add up to the time covered; operations take nothing away."""
    spans = (
        backward(2.0, 10.0),
        reduce(4.0, 7.0, parent=0),
        span("wgrad", SpanKind.BACKWARD, 8.0, 9.0, parent=0, level=SpanLevel.OPERATION),
    )
    found = {phase.name: phase for phase in summary(*spans).phases}

    assert found["backward"].own_s == pytest.approx(5.0)
    assert found["backward"].total_s == pytest.approx(8.0)
    assert found["all_reduce"].own_s == pytest.approx(3.0)


def test_a_phase_in_itself_is_not_counted_twice() -> None:
    """Neither its own time nor the whole."""
    found = summary(forward(2.0, 10.0), forward(4.0, 6.0, parent=0)).phases[0]

    assert (found.own_s, found.total_s, found.calls_count) == (8.0, 8.0, 2)


def test_a_phase_that_some_steps_lack_took_no_time_there() -> None:
    """Means and quantiles are over all steps that count."""
    first, second = steps_of([(0, 10), (0, 10)])
    first = replace(first, spans=(span("eval", SpanKind.OTHER, 0.0, 6.0),))
    found = summarize(loop(first, second))

    assert found is not None
    assert found.phases[0].total_s == pytest.approx(3.0)
    assert found.phases[0].p50_s == pytest.approx(3.0)


def test_a_phase_beside_the_steps_is_another_phase() -> None:
    """It takes nothing of the steps' own time, and stands last."""
    phases = summary(forward(2.0, 3.0), forward(2.0, 12.0, thread=1)).phases

    assert [(p.beside, p.own_s) for p in phases] == [(False, 1.0), (True, 10.0)]


def test_layers_add_up_their_passes() -> None:
    """By number, forward and backward apart; operations belong to their layer."""
    layer = {"level": SpanLevel.LAYER}
    spans = (
        forward(2.0, 3.0, layer=1, **layer),
        span(
            "mlp",
            SpanKind.FORWARD,
            2.0,
            2.6,
            parent=0,
            layer=1,
            level=SpanLevel.OPERATION,
        ),
        forward(3.0, 5.0, layer=0, **layer),
        backward(5.0, 9.0, layer=0, **layer),
    )
    found = summary(*spans)

    assert [(x.layer, x.forward_s, x.backward_s) for x in found.layers] == [
        (0, 2.0, 4.0),
        (1, 1.0, 0.0),
    ]
    (mlp,) = found.operations
    assert mlp.layer == 1
    assert mlp.own_s == pytest.approx(0.6)


def test_communication_in_the_computing_thread_is_exposed() -> None:
    """While it waits for others a thread computes nothing, whatever it lies in."""
    found = summary(backward(2.0, 12.0), reduce(4.0, 7.0, parent=0))

    assert found.exposed_s == pytest.approx(3.0)


def test_communication_beside_computing_is_hidden() -> None:
    """Only the part beside which nothing is computed is exposed."""
    found = summary(backward(2.0, 8.0), reduce(6.0, 11.0, thread=1))

    assert found.exposed_s == pytest.approx(3.0)


def test_waiting_for_data_hides_no_communication() -> None:
    """Only computing does."""
    data = span("data", SpanKind.DATA, 2.0, 12.0)

    assert summary(data, reduce(6.0, 11.0, thread=1)).exposed_s == pytest.approx(5.0)


def test_exposed_communication_is_unknown_where_nobody_can_see_it() -> None:
    """Without communication, and on a device: the host does not see what overlaps."""
    assert summary(backward(2.0, 8.0)).exposed_s is None
    assert summary(reduce(2.0, 8.0), waiting=Waiting.STEP).exposed_s is None


def test_compilations_of_a_step_that_nobody_saw_are_not_none() -> None:
    """One step whose counters were cleared makes the sum unknown."""
    first, second = steps_of([(0, 1), (0, 1)])
    known = Compiled(count=1, graph_breaks_count=0, time_s=0.5)
    found = summarize(loop(replace(first, compiled=known), second))

    assert found is not None
    assert found.compiled is None


@pytest.mark.parametrize(("second", "total"), [(0.25, 0.75), (None, None)])
def test_the_time_of_compilations_is_known_if_each_is(
    second: float | None, total: float | None
) -> None:
    """Counts and breaks add up all the same."""
    times = (0.5, second)
    steps = [
        replace(each, compiled=Compiled(count=2, graph_breaks_count=3, time_s=time_s))
        for each, time_s in zip(steps_of([(0, 1), (0, 1)]), times, strict=True)
    ]
    found = summarize(loop(*steps))

    assert found is not None
    assert found.compiled == Compiled(count=4, graph_breaks_count=6, time_s=total)


def test_a_summary_says_what_was_counted_and_how_it_waited() -> None:
    """As the loop was told."""
    found = summary(unit="image", waiting=Waiting.STEP)

    assert (found.unit, found.waiting) == ("image", Waiting.STEP)


@given(
    st.lists(st.tuples(st.floats(0.01, 5), st.floats(0.01, 5)), min_size=1, max_size=30)
)
def test_means_are_of_all_steps_that_count(periods: list[tuple[float, float]]) -> None:
    """Waiting and working add up to the period, as means of any steps do."""
    found = summarize(loop(*steps_of(periods)))

    assert found is not None
    assert found.period_s == pytest.approx(found.wait_s + found.step_s)
    assert found.period_s == pytest.approx(statistics.fmean(map(sum, periods)))


def test_the_interval_of_a_rate_holds_the_true_rate() -> None:
    """In 99 of 100 loops, here of 1,000 with noise and steps of different length."""
    chance = random.Random(1)
    true = 8.0
    held = 0
    for _ in range(1000):
        units = [chance.choice((4.0, 8.0, 12.0)) for _ in range(24)]
        times = [u / true * chance.gauss(1.0, 0.1) for u in units]
        low, high = rate_interval(units, times) or (0.0, 0.0)
        held += low <= true <= high
    assert 970 <= held <= 999


def test_the_interval_of_a_rate_holds_it_where_neighbours_are_alike() -> None:
    """A clock that slows steps down for a while does so to several."""
    chance, held = random.Random(2), 0
    for _ in range(1000):
        slower, times = 0.0, []
        for _ in range(100):
            slower = 0.8 * slower + chance.gauss(0.0, 0.06)
            times.append(1.0 + slower)
        low, high = rate_interval([1.0] * 100, times) or (0.0, 0.0)
        held += low <= 1.0 <= high
    assert held >= 970


@pytest.mark.parametrize(
    # Abramowitz and Stegun, 26.7.5, to the third term and with 40 digits
    ("count", "quantile"),
    [(8, 3.493900623142), (21, 2.845261625633)],
)
def test_the_interval_of_a_rate_is_that_of_a_ratio(count: int, quantile: float) -> None:
    """Residuals about the rate, n - 1 degrees of freedom, and Student's t of them."""
    units = [4.0 + n % 3 for n in range(count)]
    times = [2.0 + 0.25 * (n % 5) for n in range(count)]
    rate = sum(units) / sum(times)
    rest = sum((u - rate * t) ** 2 for u, t in zip(units, times, strict=True))
    error = math.sqrt(count / (count - 1) * rest) / sum(times)
    low, high = rate_interval(units, times) or (0.0, 0.0)

    assert (low + high) / 2 == pytest.approx(rate)
    assert (high - low) / 2 / error == pytest.approx(quantile, rel=1e-10)
    assert quantile == pytest.approx(float(stdtrit(count - 1, 0.995)), rel=2e-3)


def test_few_steps_give_no_interval() -> None:
    """As few as give a median none."""
    assert rate_interval([1.0] * 7, [1.0] * 7) is None
    assert rate_interval([1.0] * 8, [2.0] * 8) == (0.5, 0.5)


def test_a_slow_step_widens_the_interval_of_the_rate() -> None:
    """It is part of the rate, and its neighbours do not outvote it."""
    even = rate_interval([1.0] * 10, [1.0, 1.1] * 5)
    stalled = rate_interval([1.0] * 10, [1.0, 1.1] * 4 + [1.0, 9.0])

    assert even is not None
    assert stalled is not None
    assert stalled[1] - stalled[0] > 10 * (even[1] - even[0])
