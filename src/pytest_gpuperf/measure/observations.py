"""Add the observations of a measurement to its record."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from pytest_gpuperf.collect.binary.demangling import native_demangler
from pytest_gpuperf.collect.listed_devices import HZ_PER_MHZ
from pytest_gpuperf.compute import activity as compute_activity
from pytest_gpuperf.compute.gates import CAPPED, Gates, gates
from pytest_gpuperf.model.environment import family_facts, family_of
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.gap import Gap, GapCode
from pytest_gpuperf.model.metric import METRICS, gpu_metrics
from pytest_gpuperf.model.record import BoundClass, Kind, Note, Record, VoidCode
from pytest_gpuperf.model.sample import Estimate, Source, Unmeasured

if TYPE_CHECKING:
    from pytest_gpuperf.measure.observers import Observations
    from pytest_gpuperf.model.activity import ActivitySummary
    from pytest_gpuperf.model.telemetry import DeviceDeltas

_AGAIN = "run it again"
# A device that waits for longer is bound by its host.
_IDLE = 0.3
# Fraction of DRAM's peak, as in the limiter of a launch.
_DRAM_BOUND = 0.6
_TEMPERATURE_STEP = 10  # [°C], smaller moves are not reported.
_ENERGY = gpu_metrics(Source.NVML, Kind.MEASURE)
_SAMPLED = tuple(name for name, metric in METRICS.items() if metric.sampled)
_NAMED = "name it in the test's marker, in limits or max_regression"
_UNFIXED = "leave iterations out of its marker: energy takes as many calls as it needs"
_COUNTED = (
    "use an allocator that counts (torch, cupy), or pip install pytest-gpuperf[cupti]"
)


def with_observations(
    record: Record,
    observations: Observations,
    *,
    facts: Mapping[str, str],
    strict: bool = False,
) -> Record:
    """
    Add all observations apart from time to a record.

    Args:
        record: The record of a measurement with a known time.

        observations: The observations.

        facts: Hard facts of this process.

        strict: Whether a GPU with invisible other users voids the record.
    """
    if not observations.device_used:
        return record
    activity = None
    if observations.trace is not None:
        activity = compute_activity.summarise(observations.trace, demangle=_demangler())
    estimates = tuple(_estimates(record, observations, activity))
    with_value = {e.metric for e in (*record.estimates, *estimates)}
    gaps: dict[str, Unmeasured] = {}
    for gap in _gaps(record, observations, activity):
        if gap.metric not in with_value:  # The first reason is the most specific.
            gaps.setdefault(gap.metric, gap)
    gated = Gates()
    if observations.deltas is not None:
        gated = gates(observations.deltas, strict=strict)
    times = record.estimates
    if any(note.code == CAPPED for note in gated.notes):
        # The clock was read after the end of a power cap.
        times = tuple(replace(each, sm_clock_hz=None) for each in times)
    lost = observations.void
    # A block runs only once, so lost records of its activity void it.
    is_block = record.kind is Kind.RANGE
    if lost is not None and not (lost.code is VoidCode.DROPPED_RECORDS and is_block):
        lost = None
    families = {family_of(e.metric, e.source) for e in estimates}
    by_family = {f.value: family_facts(f, facts) for f in sorted(families)}
    notes = (*record.notes, *_notes(observations, activity), *gated.notes)
    return replace(
        record,
        estimates=(*times, *estimates),
        unmeasured=(*record.unmeasured, *gaps.values()),
        facts={**by_family, **record.facts},
        soft_facts={**record.soft_facts, **_soft_facts(record, observations.deltas)},
        choice=record.choice if activity is None else activity.choice,
        activity=activity,
        utilization=() if observations.span is None else observations.span.windows,
        time_lines=() if observations.span is None else observations.span.lines,
        bound_class=_bound_class(record, observations, activity),
        void=record.void or gated.void or lost,
        notes=tuple(dict.fromkeys(notes)),
    )


@functools.cache
def _demangler() -> Callable[[str], str | None]:
    return native_demangler()


def _estimates(
    record: Record, observations: Observations, activity: ActivitySummary | None
) -> Iterator[Estimate]:
    if activity is not None:
        yield from compute_activity.estimates(activity)[0]
    if observations.span is not None and observations.span.windows:
        # Imported here because most runs have no time line.
        from pytest_gpuperf.compute.timeline import utilization_estimates

        (window,) = observations.span.windows  # A span covers one GPU.
        yield from utilization_estimates(window)
    if observations.memory is not None:
        use = observations.memory
        # CUPTI counts the allocations of the driver.
        counted = activity is not None and activity.allocations_count is not None
        values = {
            "memory.peak_bytes": (use.peak_bytes, "bytes"),
            "memory.leaked_bytes": (use.leaked_bytes, "bytes"),
            "allocations.count": (None if counted else use.allocations_count, "count"),
        }
        for metric, (value, unit) in values.items():
            if value is not None:
                yield Estimate(
                    metric=metric, value=float(value), unit=unit, source=use.source
                )
    if observations.second is not None:
        yield from _energy_estimates(
            observations.second.energy_joules, observations.second.power_watts
        )
    elif observations.deltas is not None and record.kind is Kind.RANGE:
        joules, span_s = (
            observations.deltas.energy_joules,
            observations.deltas.duration_s,
        )
        yield from _energy_estimates(
            joules, None if joules is None else joules / span_s
        )


def _energy_estimates(joules: float | None, watts: float | None) -> Iterator[Estimate]:
    if joules is not None:
        yield Estimate(metric="energy", value=joules, unit="J", source=Source.NVML)
    if watts is not None:
        yield Estimate(metric="power", value=watts, unit="W", source=Source.NVML)


def _gaps(
    record: Record, observations: Observations, activity: ActivitySummary | None
) -> Iterator[Unmeasured]:
    if activity is not None:
        yield from compute_activity.estimates(activity)[1]
    activity_metrics = gpu_metrics(Source.CUPTI, record.kind)
    if observations.void is not None:
        remedy = observations.void.remedy or _AGAIN
        lost = replace(observations.void.gap, remedy=remedy)
        for metric in activity_metrics:
            yield Unmeasured.of_metric(metric, lost)
    if observations.blind is not None:
        for metric in activity_metrics:
            yield Unmeasured.of_metric(metric, observations.blind)
    yield from _memory_gaps(observations)
    yield from _energy_gaps(record, observations)
    if observations.span is not None:
        for metric in _SAMPLED:
            yield Unmeasured.of_metric(metric, observations.span.gap(metric))


def _memory_gaps(observations: Observations) -> Iterator[Unmeasured]:
    use = observations.memory
    if use is None or not use.reason:
        return
    reason, deltas = use.reason, observations.deltas
    if deltas is not None and deltas.memory_used_bytes is not None:
        # No number here, so that tests with the same gap are reported together.
        reason += ", and NVML sees the whole device alone"
    remedy = use.remedy or _COUNTED
    for metric in ("memory.peak_bytes", "memory.leaked_bytes", "allocations.count"):
        yield Unmeasured(
            metric=metric, code=GapCode.UNSUPPORTED, reason=reason, remedy=remedy
        )


def _energy_gaps(record: Record, observations: Observations) -> Iterator[Unmeasured]:
    deltas, second = observations.deltas, observations.second
    if second is not None:
        for gap in second.missing.values():
            for metric in _ENERGY:
                yield Unmeasured.of_metric(metric, gap)
    elif deltas is not None and record.kind is Kind.RANGE:
        too_short = Gap(
            code=GapCode.NOT_STATED,
            reason=f"{deltas.duration_s:.3g} s are too short for the board's counter",
            remedy="do more work in the block",
        )
        for metric in _ENERGY:
            gap = deltas.lost or deltas.silent.get("energy") or too_short
            yield Unmeasured.of_metric(metric, gap)
    elif deltas is not None and record.kind is not Kind.STEPS:
        reason = "it needs calls without pauses, which are made only if a test names it"
        for metric in _ENERGY:
            yield Unmeasured(
                metric=metric,
                code=GapCode.NOT_ASKED,
                reason=observations.unrepeated or reason,
                remedy=_UNFIXED if observations.unrepeated else _NAMED,
            )


def _notes(
    observations: Observations, activity: ActivitySummary | None
) -> Iterator[Note]:
    if observations.memory is not None:
        yield from observations.memory.notes
    if activity is not None:
        yield from compute_activity.notes(activity)
    if observations.span is not None:
        yield from observations.span.notes(observations.deltas)


def _soft_facts(record: Record, deltas: DeviceDeltas | None) -> dict[str, str]:
    """Return the facts of the board that are printed if they moved."""
    if deltas is None:
        return {}
    facts = {"gpu_uuid": deltas.gpu_uuid}
    # The clock during the samples. A block has none, and the clock falls when the
    # device is idle.
    sampled = (e.sm_clock_hz for e in record.estimates if e.sm_clock_hz is not None)
    clock_hz = next(sampled, deltas.sm_clock_hz)
    if clock_hz is not None:
        facts["sm_clock"] = f"{clock_hz / HZ_PER_MHZ:.0f} MHz"
    if deltas.temperature_celsius is not None:
        step = _TEMPERATURE_STEP
        degrees = step * round(deltas.temperature_celsius / step)
        facts["temperature"] = f"about {degrees} °C"
    return facts


def _bound_class(
    record: Record, observations: Observations, activity: ActivitySummary | None
) -> BoundClass:
    """
    Return the class that machine drift moves together with a record.

    A time of the host belongs to the host, and so does the time of a device that waits for
    the host. Otherwise the declared work determines the roof of a call. Without declared
    work the DRAM counter decides, and without that the clock does, as for most calls.
    """
    time = next((e for e in record.estimates if e.metric == "time"), None)
    if time is None or time.source == Source.HOST:
        return BoundClass.HOST
    if activity is not None and (activity.idle_fraction or 0.0) > _IDLE:
        return BoundClass.HOST
    if record.roofline is not None:
        return BoundClass(record.roofline.bound)
    second = observations.second
    gpm = {} if second is None else second.deltas.gpm
    dram = gpm.get("dram_active_fraction")
    return (
        BoundClass.MEMORY
        if dram is not None and dram >= _DRAM_BOUND
        else BoundClass.COMPUTE
    )
