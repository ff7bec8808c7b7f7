"""A GPU's activity over time: seconds of each class, and average readings.

A reading describes the time since the previous reading of the same GPU. A class therefore
holds for that time, and a mean weighs each reading with its part inside the window.

The classes of single readings and the class of the average reading are different answers.
The former show the GPU's activity from moment to moment, the latter is the class that one
long reading would have had. Both are given, under their own names.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum

from pytest_gpuperf.compute.stats import quantile
from pytest_gpuperf.compute.utilization import PRESETS, compute, has_class
from pytest_gpuperf.model.frozen import Frozen, replace
from pytest_gpuperf.model.metric import METRICS
from pytest_gpuperf.model.sample import Estimate, Source
from pytest_gpuperf.model.telemetry import (
    READINGS,
    BottleneckCategory,
    CanonicalRecord,
    ClockReason,
    ComputedRecord,
    GpuKey,
    Health,
    TimeLine,
    UtilizationWindow,
    Weights,
    WorkloadClass,
)

# A mean of these is meaningless, so the last value counts.
_LAST = (
    "pcie_replay_count",
    "last_xid",
    "uncorrectable_remapped_row_count",
    "correctable_remapped_row_count",
    "row_remap_failed",
    "energy_joules",
)
AVERAGED = tuple(name for name in READINGS if name not in _LAST)
_P95 = 0.95
# Shares of less than half of a window may be unrepresentative.
_LEAST_SHARE = 0.5
# Of a time line in a report. A recording has every reading.
_MOST_POINTS = 120
_DRAWN = (
    "sm_clock_hz",
    "power_watts",
    "temperature_celsius",
    "sm_active_fraction",
    "tensor_active_fraction",
    "dram_active_fraction",
    "gpu_busy_fraction",
)
_WORST_FIRST = (Health.CRIT, Health.WARN, Health.HOT, Health.OK)
# The time that a lone reading describes: the default period of samplers.
_LONE_READING_S = 1.0


class Scoring(Frozen, frozen=True, kw_only=True):
    """
    The weights and names for scoring readings.

    Attributes:
        weights: Weights of sm, tensor, dram and graphics.

        preset_name: Name of the weights. None for the name of the preset with these weights,
            or `custom`.

        model_names: Product names, by GPU.
    """

    weights: Weights = PRESETS["ai"]
    preset_name: str | None = None
    model_names: Mapping[GpuKey, str] = {}

    def computed(
        self, record: CanonicalRecord, previous: CanonicalRecord | None
    ) -> ComputedRecord:
        """Return a reading with class and score, given the previous reading."""
        return compute(
            record,
            previous=previous,
            weights=self.weights,
            preset_name=self.preset_name,
            model_name=self.model_names.get(record.gpu),
        )


class ReadingLevel(Frozen, frozen=True, kw_only=True):
    """
    The values of one reading in a window.

    Attributes:
        count: Number of readings with a value, >= 1.

        mean: Mean, weighted with the time that each reading describes.

        p50: Median of the readings, each counted once.

        p95: 95th percentile of the readings.
    """

    count: int
    mean: float
    p50: float
    p95: float


class WindowSummary(Frozen, frozen=True, kw_only=True):
    """
    The activity of one GPU in a window.

    The seconds of the classes, `incomplete_s` and `unobserved_s` add up to the window.

    Attributes:
        gpu_index: The GPU's place in the driver's order.

        gpu_uuid: The GPU's permanent name, may be empty.

        start_s: Start of the window, by the readings' monotonic clock [s].

        end_s: End of the window [s].

        reading_count: Number of readings that describe a part of the window.

        sample_class_s: Seconds in each class, each reading judged by itself.

        incomplete_s: Seconds without a class, as their readings lack SM, tensor or DRAM
            activity.

        unobserved_s: Seconds that no reading describes.

        health_s: Seconds of each health, readings without a temperature left out.

        real_util: The score of the readings, incomplete ones left out. None without complete
            readings.

        levels: The available readings, by name.

        average: The average reading, judged as one reading. Its `workload_class` is the class
            of the average. None if no reading describes the window.

        hostname: Name of the GPU's machine, or empty if not reported.
    """

    gpu_index: int
    gpu_uuid: str
    start_s: float
    end_s: float
    reading_count: int
    sample_class_s: Mapping[WorkloadClass, float]
    incomplete_s: float
    unobserved_s: float
    health_s: Mapping[Health, float]
    real_util: ReadingLevel | None
    levels: Mapping[str, ReadingLevel]
    average: ComputedRecord | None
    hostname: str = ""

    @property
    def gpu(self) -> GpuKey:
        """The key of the GPU's readings."""
        return self.hostname, self.gpu_index, self.gpu_uuid


def compute_all(
    records: Iterable[CanonicalRecord], scoring: Scoring | None = None
) -> Iterator[ComputedRecord]:
    """
    Yield readings with class and score, holding a single reading of each GPU.

    Args:
        records: Readings of any GPUs, each GPU's in order. Instances of one GPU are
            distinguished by uuid.

        scoring: Weights and names, by default those of `compute`.

    Yields:
        One result per reading. Every reading becomes the next reading's previous one, even
        without a count of replays.
    """
    scoring = scoring or Scoring()
    previous: dict[GpuKey, CanonicalRecord] = {}
    for record in records:
        key = record.gpu
        yield scoring.computed(record, previous.get(key))
        previous[key] = record


def summarise(
    records: Iterable[CanonicalRecord],
    *,
    start_s: float,
    end_s: float,
    longest_s: float = float("inf"),
    scoring: Scoring | None = None,
) -> tuple[WindowSummary, ...]:
    """
    Summarise the activity of all GPUs in a window.

    Args:
        records: Readings of any GPUs, each GPU's in order. Readings before the window show
            since when the first reading inside holds. The first reading after the window
            describes the window's end.

        start_s: Start of the window, by the readings' monotonic clock [s]. A GPU's very first
            reading describes the time since then.

        end_s: End of the window [s], not before `start_s`.

        longest_s: Longest time that one reading can describe [s]. Earlier time is unobserved.
            Give twice the sampling period to notice a sampler that hung.

        scoring: Weights and names, by default those of `compute`.

    Returns:
        One summary per GPU, ordered by host, index and uuid.

    Raises:
        ValueError: The window ends before it begins.
    """
    if not end_s >= start_s:
        message = f"a window from {start_s!r} to {end_s!r} ends before it begins"
        raise ValueError(message)
    scoring = scoring or Scoring()
    windows: dict[GpuKey, _Window] = {}
    previous: dict[GpuKey, CanonicalRecord] = {}
    for record in records:
        key = record.gpu
        window = windows.setdefault(key, _Window(start_s=start_s, end_s=end_s))
        before = previous.get(key)
        since_s = start_s if before is None else before.monotonic_s
        since_s = max(start_s, since_s, record.monotonic_s - longest_s)
        part_s = min(end_s, record.monotonic_s) - since_s
        if part_s > 0:
            window.add(scoring.computed(record, before), part_s, before)
        previous[key] = record
    return tuple(windows[key].summary(key, scoring) for key in sorted(windows))


def summarise_all(
    records: Sequence[CanonicalRecord], scoring: Scoring | None = None
) -> tuple[WindowSummary, ...]:
    """
    Summarise the activity of all GPUs over all readings.

    The first reading describes the time before it: as long as between the first two
    moments of a GPU, or one second if no GPU has two moments.

    Args:
        records: Readings of any GPUs, each GPU's in order, at least one.

        scoring: Weights and names, by default those of `compute`.

    Returns:
        One summary per GPU, ordered by host, index and uuid.
    """
    moments = {record.monotonic_s for record in records}
    # A tool may read one GPU some milliseconds after the other.
    first_s: dict[GpuKey, float] = {}
    periods_s: dict[GpuKey, float] = {}
    for record in records:
        elapsed_s = record.monotonic_s - first_s.setdefault(
            record.gpu, record.monotonic_s
        )
        if elapsed_s > 0:
            periods_s.setdefault(record.gpu, elapsed_s)
    period_s = min(periods_s.values(), default=_LONE_READING_S)
    return summarise(
        records, start_s=min(moments) - period_s, end_s=max(moments), scoring=scoring
    )


def worst_health(
    records: Iterable[CanonicalRecord], scoring: Scoring | None = None
) -> dict[GpuKey, Health]:
    """
    Return the worst health of each GPU over all readings.

    Args:
        records: Readings of any GPUs, each GPU's in order.

        scoring: Weights and names, by default those of `compute`.

    Returns:
        The health by GPU.
    """
    worst: dict[GpuKey, Health] = {}
    for computed in compute_all(records, scoring):
        key = computed.record.gpu
        states = (computed.health, worst.get(key, Health.OK))
        worst[key] = min(states, key=_WORST_FIRST.index)
    return worst


def window_summary(
    records: Iterable[CanonicalRecord],
    *,
    start_s: float,
    end_s: float,
    longest_s: float = float("inf"),
    scoring: Scoring | None = None,
) -> tuple[UtilizationWindow, ...]:
    """
    Return the activity of all GPUs during a test, in the form of records and reports.

    Args:
        records: Readings, as `summarise` takes them.

        start_s: Start of the test, by the readings' monotonic clock [s].

        end_s: End of the test [s], not before `start_s`.

        longest_s: Longest time that one reading can describe [s].

        scoring: Weights and names, by default those of `compute`.

    Returns:
        One window per GPU with a reading, ordered by host, index and uuid.

    Raises:
        ValueError: The window ends before it begins.
    """
    summaries = summarise(
        records, start_s=start_s, end_s=end_s, longest_s=longest_s, scoring=scoring
    )
    windows = []
    for summary in summaries:
        score, average = summary.real_util, summary.average
        windows.append(
            UtilizationWindow(
                gpu_index=summary.gpu_index,
                gpu_uuid=summary.gpu_uuid,
                duration_s=summary.end_s - summary.start_s,
                reading_count=summary.reading_count,
                class_s={w.label: s for w, s in summary.sample_class_s.items()},
                incomplete_s=summary.incomplete_s,
                unobserved_s=summary.unobserved_s,
                real_util=None if score is None else score.mean,
                real_util_p50=None if score is None else score.p50,
                real_util_p95=None if score is None else score.p95,
                average_class=(
                    average.workload_class.label
                    if average and has_class(average)
                    else None
                ),
                health_s={h.value: seconds for h, seconds in summary.health_s.items()},
            )
        )
    return tuple(windows)


def utilization_estimates(window: UtilizationWindow) -> Iterator[Estimate]:
    """
    Yield the score, the class shares and the health share of a window, as metrics.

    Yields:
        No score and no class shares if less than half of the window has a class. No health
        share if no reading has a temperature, which is read more rarely than the rest.
    """
    values: dict[str, float] = {}
    least_s = window.duration_s * _LEAST_SHARE
    classed_s = fsum(window.class_s.values())
    if window.real_util is not None and classed_s >= least_s and classed_s > 0:
        values["utilization.score"] = window.real_util
        by_category = {category: [0.0] for category in BottleneckCategory}
        for label, seconds in window.class_s.items():
            by_category[WorkloadClass(label).bottleneck].append(seconds)
        for category, parts_s in by_category.items():
            share = fsum(parts_s) / classed_s
            values[f"utilization.{category.value}_fraction"] = min(share, 1.0)
    known_s = fsum(window.health_s.values())
    if known_s > 0:
        unhealthy_s = known_s - window.health_s.get(Health.OK.value, 0.0)
        values["utilization.unhealthy_fraction"] = max(unhealthy_s, 0.0) / known_s
    for metric, value in values.items():
        yield Estimate(
            metric=metric,
            value=value,
            unit=METRICS[metric].unit or "",
            source=Source.NVML,
            sample_count=window.reading_count,
        )


@dataclass(slots=True, kw_only=True)
class _SensorSeries:
    """The values of one reading, each with the seconds that it describes."""

    values: array[float] = field(default_factory=lambda: array("d"))
    parts_s: array[float] = field(default_factory=lambda: array("d"))

    def add(self, value: float, part_s: float) -> None:
        """Add a value that describes `part_s` seconds."""
        self.values.append(value)
        self.parts_s.append(part_s)

    def level(self) -> ReadingLevel:
        """Return the level of the values, given at least one value."""
        weighed = fsum(v * s for v, s in zip(self.values, self.parts_s, strict=True))
        mean = weighed / fsum(self.parts_s)
        return ReadingLevel(
            count=len(self.values),
            # Rounding must not move the mean of equal values across a threshold.
            mean=min(max(mean, min(self.values)), max(self.values)),
            p50=quantile(self.values, 0.5),
            p95=quantile(self.values, _P95),
        )


@dataclass(slots=True, kw_only=True)
class _Window:
    """The readings of one GPU that describe a window."""

    start_s: float
    end_s: float
    parts_s: array[float] = field(default_factory=lambda: array("d"))
    class_s: dict[WorkloadClass, list[float]] = field(default_factory=dict)
    health_s: dict[Health, list[float]] = field(default_factory=dict)
    incomplete_s: list[float] = field(default_factory=list)
    scores: _SensorSeries = field(default_factory=_SensorSeries)
    series: dict[str, _SensorSeries] = field(default_factory=dict)
    last: dict[str, object] = field(default_factory=dict)
    before: CanonicalRecord | None = None
    newest: CanonicalRecord | None = None

    def add(
        self, computed: ComputedRecord, part_s: float, before: CanonicalRecord | None
    ) -> None:
        """Add a reading that describes `part_s` seconds of the window."""
        record = computed.record
        if self.newest is None:
            self.before = before or record
        self.newest = record
        self.parts_s.append(part_s)
        if has_class(computed):
            self.class_s.setdefault(computed.workload_class, []).append(part_s)
            self.scores.add(computed.real_util, part_s)
        else:
            self.incomplete_s.append(part_s)
        if record.temperature_celsius is not None:
            self.health_s.setdefault(computed.health, []).append(part_s)
        for name in AVERAGED:
            value = getattr(record, name)
            if value is not None:
                self.series.setdefault(name, _SensorSeries()).add(value, part_s)
        for name in _LAST:
            value = getattr(record, name)
            if value is not None:
                self.last[name] = value

    def summary(self, key: GpuKey, scoring: Scoring) -> WindowSummary:
        """Summarise the readings."""
        levels = {name: series.level() for name, series in self.series.items()}
        average = None
        if self.newest is not None:
            means: dict[str, object] = dict.fromkeys(READINGS)
            means |= {name: level.mean for name, level in levels.items()}
            record = replace(self.newest, **(means | self.last))
            average = scoring.computed(record, self.before)
        return WindowSummary(
            hostname=key[0],
            gpu_index=key[1],
            gpu_uuid=key[2],
            start_s=self.start_s,
            end_s=self.end_s,
            reading_count=len(self.parts_s),
            sample_class_s={
                workload: fsum(self.class_s[workload])
                for workload in WorkloadClass
                if workload in self.class_s
            },
            incomplete_s=fsum(self.incomplete_s),
            unobserved_s=max(0.0, self.end_s - self.start_s - fsum(self.parts_s)),
            health_s={h: fsum(parts_s) for h, parts_s in self.health_s.items()},
            real_util=self.scores.level() if self.scores.values else None,
            levels=levels,
            average=average,
        )


def time_lines(
    records: Iterable[CanonicalRecord],
    *,
    start_s: float,
    end_s: float,
    longest_s: float = float("inf"),
) -> tuple[TimeLine, ...]:
    """
    Return the readings of each GPU in a window, thinned to at most 120 points.

    Args:
        records: Readings of one clock, in the order of time. Readings outside the window show
            what held the clock at the window's begin and end.

        start_s: Start of the window, by the readings' monotonic clock [s].

        end_s: End of the window [s].

        longest_s: Longest time that one reading can describe [s].
    """
    by_gpu: dict[GpuKey, list[CanonicalRecord]] = {}
    for record in records:
        by_gpu.setdefault(record.gpu, []).append(record)
    lines = []
    for readings in by_gpu.values():
        inside = [r for r in readings if start_s <= r.monotonic_s <= end_s]
        if not inside:
            continue
        thinned = inside[:: -(-len(inside) // _MOST_POINTS)]
        spans_s = _throttled_spans(readings, (start_s, end_s), longest_s)
        least_s = (end_s - start_s) / _MOST_POINTS
        columns = {name: tuple(getattr(r, name) for r in thinned) for name in _DRAWN}
        computed = (compute(record) for record in thinned)
        known = spans_s or {}
        reasons = [reason for reason in ClockReason if reason in known]
        limited = {}
        for reason in reasons:
            exact = _joined(known[reason], 0.0)
            # Near spans are joined if there are too many for a line.
            few = exact if len(exact) <= _MOST_POINTS else _joined(exact, least_s)
            limited[reason] = tuple(few)
        line = TimeLine(
            gpu_index=thinned[0].gpu_index,
            gpu_uuid=thinned[0].gpu_uuid,
            since_s=tuple(record.monotonic_s - start_s for record in thinned),
            readings={
                n: c for n, c in columns.items() if any(v is not None for v in c)
            },
            classes=tuple(
                reading.workload_class.label if has_class(reading) else ""
                for reading in computed
            ),
            throttled_s=None
            if spans_s is None
            else {r: fsum(end - begin for begin, end in known[r]) for r in reasons},
            throttled_spans_s=limited,
        )
        lines.append(line)
    return tuple(lines)


_Spans = list[tuple[float, float]]  # Begin and end, from the window's start [s].


def _throttled_spans(
    records: Iterable[CanonicalRecord], window_s: tuple[float, float], longest_s: float
) -> dict[ClockReason, _Spans] | None:
    """Return the spans of a held-down clock by reason, or None if reasons are not reported."""
    start_s, end_s = window_s
    spans: dict[ClockReason, _Spans] = {}
    is_known = False
    since_s = before_s = start_s
    for record in records:
        at_s = record.monotonic_s
        if at_s - before_s > longest_s:  # The sampler hung.
            since_s = at_s - longest_s
        before_s = at_s
        # Clock reasons are not read with every sample.
        if record.clock_reasons is None:
            continue
        begin_s, finish_s = max(since_s, start_s), min(at_s, end_s)
        since_s = at_s
        if begin_s < finish_s:
            is_known = True
            for reason in record.clock_reasons:
                span = begin_s - start_s, finish_s - start_s
                spans.setdefault(reason, []).append(span)
    return spans if is_known else None


def _joined(spans: _Spans, least_s: float) -> _Spans:
    """Join spans that are at most `least_s` apart [s]."""
    joined: _Spans = []
    for span in spans:
        is_near = joined and span[0] - joined[-1][1] <= least_s
        begin_s, _ = joined.pop() if is_near else span
        joined.append((begin_s, span[1]))
    return joined
