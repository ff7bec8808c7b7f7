"""Times of a loop's steps."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from math import fsum
from statistics import NormalDist

from pytest_gpuperf.compute import stats
from pytest_gpuperf.model.sample import Estimate, Source, SourceLabel
from pytest_gpuperf.model.steps import (
    Compiled,
    LayerTimes,
    Loop,
    OperationTimes,
    PhaseTimes,
    Span,
    SpanKind,
    SpanLevel,
    Step,
    StepSummary,
    Waiting,
)

_P95 = 0.95
# Several steps that take at least 100 us and ten times as long as the others do other
# work. A single one is slow in many loops, as the first that uses a cache.
_LEAST_SLOW, _SLOW_START_RATIO, _SLOW_START_S = 2, 10.0, 1e-4
# Steps that a library such as jax may compile in, one for each shape or dtype.
_MOST_COMPILING = 2
# Name of a phase, and whether the phase ran in a thread other than the steps'.
_Place = tuple[str, bool]
_Key = tuple[int | None, str]  # Layer and name of an operation.


def phases_of(counted: Sequence[Step]) -> tuple[PhaseTimes, ...]:
    """
    Return the phases of steps, the longest own time first.

    Phases of the steps' own thread come before those of other threads.

    Args:
        counted: The counted steps, >= 1 of them.
    """
    own_s: dict[_Place, float] = defaultdict(float)
    calls: Counter[_Place] = Counter()
    kinds: dict[_Place, SpanKind] = {}
    totals: dict[_Place, list[float]] = defaultdict(lambda: [0.0] * len(counted))
    for index, step in enumerate(counted):
        for span, outer in _nested(step.spans, SpanLevel.PHASE):
            key = _place(span)
            calls[key] += 1
            kinds.setdefault(key, span.kind)
            own_s[key] += span.duration_s
            if outer:
                own_s[_place(outer[0])] -= span.duration_s
            if all(parent.name != span.name for parent in outer):
                totals[key][index] += span.duration_s
    phases = [
        PhaseTimes(
            name=key[0],
            kind=kind,
            own_s=max(0.0, own_s[key]) / len(counted),
            total_s=fsum(totals[key]) / len(counted),
            p50_s=stats.median(totals[key]),
            p95_s=stats.quantile(totals[key], _P95),
            calls_count=calls[key],
            beside=key[1],
        )
        for key, kind in kinds.items()
    ]
    return tuple(sorted(phases, key=lambda p: (p.beside, -p.own_s, p.name)))


def operations_of(counted: Sequence[Step]) -> tuple[OperationTimes, ...]:
    """
    Return the operations of steps, the longest own time first.

    Args:
        counted: The counted steps, >= 1 of them.
    """
    own_s: dict[_Key, float] = defaultdict(float)
    calls: Counter[_Key] = Counter()
    for step in counted:
        for span, outer in _nested(step.spans, SpanLevel.OPERATION):
            calls[span.layer, span.name] += 1
            own_s[span.layer, span.name] += span.duration_s
            if outer:
                own_s[outer[0].layer, outer[0].name] -= span.duration_s
    operations = [
        OperationTimes(
            name=name,
            layer=layer,
            own_s=max(0.0, own_s[layer, name]) / len(counted),
            calls_count=count,
        )
        for (layer, name), count in calls.items()
    ]
    operations.sort(key=lambda op: (op.name, op.layer is None, op.layer or 0))
    return tuple(sorted(operations, key=lambda op: -op.own_s))


def layers_of(counted: Sequence[Step]) -> tuple[LayerTimes, ...]:
    """
    Return the layers of steps, by number.

    Args:
        counted: The counted steps, >= 1 of them.
    """
    passes: dict[tuple[int, bool], float] = defaultdict(float)
    for step in counted:
        for span in step.spans:
            if span.level is SpanLevel.LAYER and span.layer is not None:
                passes[span.layer, span.kind is SpanKind.BACKWARD] += span.duration_s
    return tuple(
        LayerTimes(
            layer=layer,
            forward_s=passes[layer, False] / len(counted),
            backward_s=passes[layer, True] / len(counted),
        )
        for layer in sorted({layer for layer, _ in passes})
    )


def _nested(
    spans: Sequence[Span], level: SpanLevel
) -> Iterator[tuple[Span, tuple[Span, ...]]]:
    """Yield the spans of a level with the enclosing spans, innermost first."""
    around: list[tuple[Span, ...]] = []
    for span in spans:
        outer: tuple[Span, ...] = ()
        if span.parent is not None:
            parent = spans[span.parent]
            above = around[span.parent]
            outer = (parent, *above) if parent.level is level else above
        around.append(outer)
        if span.level is level:
            yield span, outer


def _place(span: Span) -> _Place:
    return span.name, span.thread != 0


_COMPUTE = frozenset({SpanKind.FORWARD, SpanKind.BACKWARD, SpanKind.OPTIMIZER})

Interval = tuple[float, float]  # Start and end [s], in this order.


def summarize(loop: Loop) -> StepSummary | None:
    """
    Summarise a loop, or return None if no step counts.

    Args:
        loop: The recorded loop.
    """
    counted = loop.counted
    if not counted:
        return None
    spans = [span for step in counted for span in step.spans]
    own_thread = [span for span in spans if span.thread == 0]
    data_was_recorded = any(span.kind is SpanKind.DATA for span in own_thread)
    period_s = fsum(step.period_s for step in counted)
    # A step waits for data in its data spans, or before it begins if none are recorded.
    waits_s = [
        length_s(
            (s.start_s, s.end_s)
            for s in step.spans
            if s.thread == 0 and s.kind is SpanKind.DATA
        )
        if data_was_recorded
        else step.wait_s
        for step in counted
    ]
    covered_s = fsum(
        length_s((s.start_s, s.end_s) for s in step.spans if s.thread == 0)
        for step in counted
    )
    return StepSummary(
        unit=loop.unit,
        units=fsum(step.units for step in counted) / len(counted),
        step_count=len(loop.steps),
        counted_count=len(counted),
        warmup_count=min(loop.warmup_count, len(loop.steps)),
        void_count=len(loop.steps[loop.warmup_count :]) - len(counted),
        step_s=_mean(step.duration_s for step in counted),
        period_s=period_s / len(counted),
        wait_s=_mean(waits_s),
        data_was_recorded=data_was_recorded,
        covered_fraction=covered_s / period_s if own_thread else None,
        exposed_s=_exposed_s(loop),
        waiting=loop.waiting,
        phases=phases_of(counted),
        layers=layers_of(counted),
        operations=operations_of(counted),
        warmup_compiled=_compiled(loop.steps[: loop.warmup_count]),
        compiled=_compiled(counted),
        recompiled_steps=tuple(
            step.index for step in counted if step.compiled and step.compiled.count
        ),
    )


def rate_interval(
    amounts: Sequence[float], times_s: Sequence[float]
) -> tuple[float, float] | None:
    """
    Return the 99 % interval of the sum of amounts over the sum of times.

    A slow step among many widens the interval, and so does a correlation of neighbours.

    Args:
        amounts: Amount of each step, in the order of the steps.

        times_s: Time of each step [s], > 0.

    Returns:
        Lower and upper end [1/s], or None with fewer pairs than a median's interval needs.

    References:
        Cochran, Sampling Techniques (1977), section 6.4: the ratio estimator; Abramowitz
        and Stegun, 26.7.5: the quantile.
    """
    count = len(amounts)
    if count < stats.samples_for_interval():
        return None
    total_s = fsum(times_s)
    rate = fsum(amounts) / total_s
    apart = [a - rate * t for a, t in zip(amounts, times_s, strict=True)]
    rest = fsum(value**2 for value in apart)
    error = math.sqrt(count / (count - 1) * rest) / total_s
    error *= stats.correlation_factor(apart)
    # Student's t; off by 0.2 % at 7 degrees of freedom, by less above.
    x, dof = NormalDist().inv_cdf((1 + stats.CONFIDENCE) / 2), count - 1
    quantile = (
        x
        + (x**3 + x) / (4 * dof)
        + (5 * x**5 + 16 * x**3 + 3 * x) / (96 * dof**2)
        + (3 * x**7 + 19 * x**5 + 17 * x**3 - 15 * x) / (384 * dof**3)
    )
    half = quantile * error
    return rate - half, rate + half


def estimates_of(loop: Loop, summary: StepSummary | None) -> Iterator[Estimate]:
    """
    Yield the metrics of a loop: times, rates, compilations, phases, memory.

    Args:
        loop: The recorded loop.

        summary: The summary of the loop, or None if no step counts.
    """
    counted = loop.counted
    times = [step.duration_s for step in counted]
    if times:
        low, high = stats.series_interval(times) or (None, None)
        numbers = {"time": stats.median(times), "time.wall": stats.median(times)}
        if len(times) > 1:
            numbers |= {
                "time.p50": stats.median(times),
                "time.p95": stats.quantile(times, _P95),
                "time.min": min(times),
            }
        spread = {"time", "time.wall", "time.p50"}
        for metric, value in numbers.items():
            yield Estimate(
                metric=metric,
                value=value,
                unit="s",
                source=Source.HOST,
                low=low if metric in spread else None,
                high=high if metric in spread else None,
                sample_count=len(times),
            )
    if loop.steps and loop.steps[0].void is None:
        yield Estimate(
            metric="time.first_call",
            value=loop.steps[0].duration_s,
            unit="s",
            source=Source.HOST,
        )
    yield from _rates(counted, summary)
    yield from _of_summary(summary)
    if loop.peak_memory_bytes is not None:
        yield Estimate(
            metric="memory.peak_bytes",
            value=float(loop.peak_memory_bytes),
            unit="bytes",
            source=Source.TORCH,
        )


def merged(intervals: Iterable[Interval]) -> list[Interval]:
    """
    Return the union of intervals as disjoint intervals, in order and without empty parts.

    Example:
        >>> merged([(3, 4), (0, 2), (1, 3)])
        [(0, 4)]
    """
    union: list[Interval] = []
    for start_s, end_s in sorted(intervals):
        if start_s == end_s:
            continue
        if union and start_s <= union[-1][1]:
            union[-1] = (union[-1][0], max(union[-1][1], end_s))
        else:
            union.append((start_s, end_s))
    return union


def length_s(intervals: Iterable[Interval]) -> float:
    """Return the length of the union of intervals [s]."""
    return fsum(end_s - start_s for start_s, end_s in merged(intervals))


def uncovered(
    intervals: Iterable[Interval], cover: Iterable[Interval]
) -> list[Interval]:
    """
    Return the parts of intervals outside a cover, disjoint and in order.

    Example:
        >>> uncovered([(0, 10)], [(2, 3), (8, 12)])
        [(0, 2), (3, 8)]
    """
    left: list[Interval] = []
    covers = merged(cover)
    place = 0  # The first cover that may still overlap a later interval.
    for start_s, end_s in merged(intervals):
        begun_s = start_s
        while place < len(covers) and covers[place][1] <= start_s:
            place += 1
        for from_s, to_s in covers[place:]:
            if from_s >= end_s:
                break
            if from_s > begun_s:
                left.append((begun_s, from_s))
            begun_s = max(begun_s, to_s)
        if begun_s < end_s:
            left.append((begun_s, end_s))
    return left


def _exposed_s(loop: Loop) -> float | None:
    """
    Return the mean time of communication without overlapping computation [s].

    None without communication. None also if a device was used, as the host does not see the
    device's work.
    """
    counted = loop.counted
    kinds = {span.kind for step in counted for span in step.spans}
    if SpanKind.COMMUNICATION not in kinds or loop.waiting is not None:
        return None
    exposed_s = []
    for step in counted:
        inside: dict[int, list[Interval]] = defaultdict(list)
        for span in step.spans:
            if span.parent is not None:
                inside[span.parent].append((span.start_s, span.end_s))
        talking: list[Interval] = []
        computing: list[Interval] = []
        for place, span in enumerate(step.spans):
            own = [(span.start_s, span.end_s)]
            if place in inside:  # Nested spans have kinds of their own.
                own = uncovered(own, inside[place])
            if span.kind is SpanKind.COMMUNICATION:
                talking += own
            elif span.kind in _COMPUTE:
                computing += own
        exposed_s.append(length_s(uncovered(talking, computing)))
    return _mean(exposed_s)


def _compiled(steps: Iterable[Step]) -> Compiled | None:
    """Sum the compilations in steps, or return None unless all steps recorded compilations."""
    compiled = [step.compiled for step in steps]
    recorded = [record for record in compiled if record is not None]
    if len(recorded) < len(compiled) or not compiled:
        return None
    times = [record.time_s for record in recorded if record.time_s is not None]
    return Compiled(
        count=sum(record.count for record in recorded),
        graph_breaks_count=sum(record.graph_breaks_count for record in recorded),
        time_s=fsum(times) if len(times) == len(recorded) else None,
    )


def slow_start(counted: Sequence[Step]) -> tuple[int, float] | None:
    """
    Return the number of slow steps at the beginning, and their time over the median of the others.

    None without several such steps, or if one of them compiled. Steps that loaded modules
    or mostly waited are left out, and so are the first ones if it is unknown whether a
    library compiled in them.

    Args:
        counted: The steps that count, in order.
    """
    times_s = [step.duration_s for step in counted]
    usual_s = stats.median(times_s) if times_s else 0.0
    least_s = max(_SLOW_START_S, _SLOW_START_RATIO * usual_s)
    slow = [*takewhile(lambda step: step.duration_s > least_s, counted)]
    compiled = any(step.compiled is not None and step.compiled.count for step in slow)
    may_compile = any(step.compiled is None for step in slow)
    working = [step for step in slow if not step.prepared]
    least_count = _LEAST_SLOW + may_compile * _MOST_COMPILING
    if usual_s <= 0 or len(working) < least_count or compiled:
        return None
    return len(slow), min(step.duration_s for step in working) / usual_s


def _mean(values: Iterable[float]) -> float:
    every = list(values)
    return fsum(every) / len(every)


def _rates(counted: Sequence[Step], summary: StepSummary | None) -> Iterator[Estimate]:
    if summary is None:
        return
    units = [step.units for step in counted]
    periods = [step.period_s for step in counted]
    low, high = rate_interval(units, periods) or (None, None)
    yield Estimate(
        metric="throughput",
        value=fsum(units) / fsum(periods),
        unit="1/s",
        source=Source.HOST,
        low=low,
        high=high,
        sample_count=len(counted),
    )
    recorded = summary.data_was_recorded
    yield Estimate(
        metric="data.wait_fraction",
        value=summary.wait_s / summary.period_s,
        unit="fraction",
        source=Source.HOST,
        label=SourceLabel.MEASURED if recorded else SourceLabel.ESTIMATED,
        sample_count=len(counted),
    )


def _of_summary(summary: StepSummary | None) -> Iterator[Estimate]:
    if summary is None:
        return
    compiled, count = summary.compiled, summary.counted_count
    if compiled is not None:
        numbers = {
            "compile.count": (float(compiled.count), "count"),
            "compile.graph_breaks": (float(compiled.graph_breaks_count), "count"),
        }
        if compiled.time_s is not None:
            numbers["compile.time"] = (compiled.time_s, "s")
        for metric, (value, unit) in numbers.items():
            yield Estimate(metric=metric, value=value, unit=unit, source=Source.TORCH)
    if summary.exposed_s is not None:
        yield Estimate(
            metric="comm.exposed_time",
            value=summary.exposed_s,
            unit="s",
            source=Source.HOST,
            sample_count=count,
        )
    behind = summary.waiting is Waiting.STEP
    for phase in summary.phases:
        if not phase.beside:
            yield Estimate(
                metric=f"phase.{phase.name}",
                value=phase.total_s,
                unit="s",
                source=Source.HOST,
                label=SourceLabel.ESTIMATED if behind else SourceLabel.MEASURED,
                sample_count=count,
                better="lower",
            )
