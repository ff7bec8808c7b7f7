"""Build records of calls and loops, with estimates and facts."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, TypeAlias

from pytest_gpuperf.compute import stats
from pytest_gpuperf.compute.machine import core_speed
from pytest_gpuperf.compute.spread import paired_ratio, process_spread
from pytest_gpuperf.errors import UnitError
from pytest_gpuperf.model.environment import (
    TIMED_BESIDE,
    UNIT,
    Device,
    Host,
    family_facts,
    family_of,
)
from pytest_gpuperf.model.frozen import Frozen, replace
from pytest_gpuperf.model.metric import WITH_GARBAGE, Family
from pytest_gpuperf.model.quantity import Unit, unit_named
from pytest_gpuperf.model.record import (
    BoundClass,
    Kind,
    Record,
    RecordKey,
    Role,
)
from pytest_gpuperf.model.sample import (
    UNDECLARED,
    CacheMode,
    Estimate,
    Series,
    Source,
    SourceLabel,
    Unmeasured,
)

if TYPE_CHECKING:
    from pytest_gpuperf.collect.base import Timing
    from pytest_gpuperf.model.activity import KernelResources
    from pytest_gpuperf.model.roofline import Bands, Peaks
    from pytest_gpuperf.model.scorecard import Hardware
    from pytest_gpuperf.model.work import Work

# Ends a loop. Takes the exception that ended the loop, and returns the record and the
# hardware that the loop ran on.
EndLoop: TypeAlias = "Callable[[BaseException | None], tuple[Record, Hardware | None]]"

_P95 = 0.95
_METRIC, _SOURCE = attrgetter("metric"), attrgetter("source")
# The notes of collect.timing about waiting in general, and about waiting for a disk.
_WAITS, _USES_DISK = "waits", "uses-disk"


class Maker(Frozen, frozen=True, kw_only=True):
    """
    Makes the records of one process.

    Attributes:
        facts: Hard facts of this process, by the names in the fingerprint.

        soft_facts: Facts that are printed if they moved.

        device: The GPU in use, or None.

        role: The role of this process in the run.

        process_index: 0 for the main process.

        host: The host of this process, or None for the host that judges the run.

        peaks: Returns the roofs of the device in use. None if they cannot be looked up.

        host_peaks: Returns the roofs of the CPU, for work without a device. None if they
            cannot be looked up.

        grades: The thresholds of the grades, by roof. Missing roofs use the defaults.
    """

    facts: Mapping[str, str]
    soft_facts: Mapping[str, str]
    device: Device | None = None
    role: Role = Role.MAIN
    process_index: int = 0
    host: Host | None = None
    peaks: Callable[[], Peaks] | None = None
    host_peaks: Callable[[], Peaks] | None = None
    grades: Mapping[str, Bands] = {}

    def timed(
        self,
        key: RecordKey,
        timing: Timing,
        *,
        kind: Kind,
        work: Work | None,
        use_unknown: bool = False,
        judged: Sequence[str] = (),
        function: str | None = None,
    ) -> Record:
        """
        Return the record of a timed function or block.

        Args:
            key: The key of the record.

            timing: The timing.

            kind: The kind of measurement.

            work: The work of a call, or None if not declared.

            use_unknown: Whether the use of the device is unknown. Then there is no
                roofline.

            judged: The metrics that the test is judged by.

            function: Qualified name of the callable, or None for a block.
        """
        by_source = _by_source(timing)
        times = _time_estimates(timing, by_source, with_garbage=WITH_GARBAGE in judged)
        series = _series_of(timing, by_source)
        facts = {**self.facts, **_facts_of(timing, by_source)}
        if work is None:  # Most tests, which need no roof.
            return self.record(
                key,
                kind,
                times,
                series=series,
                unmeasured=UNDECLARED,
                facts=facts,
                timing=timing,
                function=function,
            )
        from pytest_gpuperf.compute.roofline import peak_fact, roof_of

        peaks = self.host_peaks if timing.unused else self.peaks
        known_peaks = None if peaks is None or use_unknown else peaks()
        roof = roof_of(
            work,
            times[0],
            known_peaks,
            # Flushing a device leaves the CPU's caches unchanged.
            warm=timing.unused or timing.cache_mode is not CacheMode.COLD,
            clock_hz=timing.sm_clock_hz,
            use_unknown=use_unknown,
        )
        attained = roof.attained
        facts |= {} if attained is None else peak_fact(known_peaks, attained.roof)
        record = self.record(
            key,
            kind,
            (*times, *roof.estimates),
            series=series,
            unmeasured=roof.unmeasured,
            facts=facts,
            work=work,
            timing=timing,
            function=function,
        )
        if attained is None:
            return record
        # An impossible value deserves no A.
        if not attained.above_the_roof:
            from pytest_gpuperf.judge.grade import grade_of

            attained = replace(attained, grade=grade_of(attained, self.grades).value)
        return replace(record, roofline=attained)

    def compared(self, key: RecordKey, a: Timing, b: Timing) -> Record:
        """Return the record of a comparison: the speedup of a over b."""
        # Both were timed alternately, with the same timers.
        sides = {
            source: (samples, _by_source(b)[source])
            for source, samples in _by_source(a).items()
        }
        speedups = []
        for source, (times_a, times_b) in sides.items():
            ratio = paired_ratio(times_b, times_a, spread=process_spread(source))
            speedups.append(
                Estimate(
                    metric="speedup",
                    value=ratio.value,
                    unit="ratio",
                    source=source,
                    low=ratio.low,
                    high=ratio.high,
                    sample_count=len(times_a),
                )
            )
        series = tuple(
            Series(metric=name, unit="s", source=source, values=samples)
            for source, pair in sides.items()
            for name, samples in zip(("time.a", "time.b"), pair, strict=True)
        )
        return self.record(
            key,
            Kind.COMPARE,
            tuple(speedups),
            series=series,
            facts={**self.facts, **_facts_of(a, sides)},
            timing=replace(
                a,
                void=a.void or b.void,
                notes=tuple(dict.fromkeys((*a.notes, *b.notes))),
            ),
        )

    def number(
        self, key: RecordKey, values: Sequence[float], *, unit: str, better: str
    ) -> Record:
        """
        Return the record of a number supplied by the test. Known units are converted to SI.
        """
        try:
            base = unit_named(unit)
        # A unit chosen by the test stays unchanged.
        except UnitError:
            base = Unit(si=unit, factor=1.0)
        scaled = [base.to_si(value) for value in values]
        interval = stats.median_interval(scaled) or (None, None)
        estimate = Estimate(
            metric=key.name,
            value=stats.median(scaled),
            unit=base.si,
            source=Source.USER,
            label=SourceLabel.DECLARED,
            low=interval[0],
            high=interval[1],
            sample_count=len(scaled),
            better=better,
        )
        # As written by the test: a number in "s" is not comparable with a number in
        # "ms".
        facts = {**self.facts, UNIT: unit}
        return self.record(key, Kind.RECORD, (estimate,), facts=facts)

    def record(
        self,
        key: RecordKey,
        kind: Kind,
        estimates: tuple[Estimate, ...],
        *,
        facts: Mapping[str, str],
        series: tuple[Series, ...] = (),
        unmeasured: tuple[Unmeasured, ...] = (),
        kernels: tuple[KernelResources, ...] = (),
        work: Work | None = None,
        timing: Timing | None = None,
        function: str | None = None,
    ) -> Record:
        """
        Build a record with the facts and the device of the process.

        Args:
            key: The key of the record.

            kind: The kind of measurement.

            estimates: The values.

            facts: Hard facts. Only the facts of the families of the values are kept.

            series: Samples.

            unmeasured: The gaps.

            kernels: The kernels of a binary.

            work: The work of one call.

            timing: The timing, with its notes, or None if nothing was timed.

            function: Qualified name of the callable, or None for anything else.
        """
        families = {*map(family_of, map(_METRIC, estimates), map(_SOURCE, estimates))}
        notes = () if timing is None else timing.notes
        # The class that machine drift moves together with a time of the host.
        bound_class = BoundClass.HOST
        codes = {note.code for note in notes} if notes else ()
        if _WAITS in codes:
            bound_class = BoundClass.DISK if _USES_DISK in codes else BoundClass.WAIT
        return Record(
            key=key,
            kind=kind,
            estimates=estimates,
            series=series,
            unmeasured=unmeasured,
            kernels=kernels,
            device=self.device,
            facts=_facts_by_family(frozenset(families), tuple(facts.items())),
            soft_facts=self.soft_facts,
            work=work,
            function=function,
            bound_class=bound_class,
            role=self.role,
            process_index=self.process_index,
            host=self.host,
            void=timing.void if timing is not None else None,
            notes=notes,
        )


# A process has few kinds of records, and the records of a kind share one mapping.
@functools.lru_cache(maxsize=256)
def _facts_by_family(
    families: frozenset[Family], facts: tuple[tuple[str, str], ...]
) -> Mapping[str, Mapping[str, str]]:
    known = dict(facts)
    return {f.value: family_facts(f, known) for f in sorted(families)}


def _facts_of(timing: Timing, sources: Collection[str]) -> dict[str, str]:
    facts = {"cache_mode": timing.cache_mode.value}
    if Source.CUPTI in sources and Source.EVENTS in sources:
        facts[TIMED_BESIDE] = Source.CUPTI.value
    return facts


def _by_source(timing: Timing) -> dict[str, tuple[float, ...]]:
    return {timing.source: timing.samples, **timing.other_samples}


def _series_of(
    timing: Timing, by_source: Mapping[str, tuple[float, ...]]
) -> tuple[Series, ...]:
    return tuple(
        [
            Series(
                metric="time",
                unit="s",
                source=source,
                values=samples,
                iterations_count=timing.iterations_count,
                discarded_count=timing.discarded_count,
            )
            for source, samples in by_source.items()
        ]
    )


def _time_estimates(
    timing: Timing,
    by_source: Mapping[str, tuple[float, ...]],
    *,
    with_garbage: bool = False,
) -> tuple[Estimate, ...]:
    """
    Return the time metrics of a timing: by source, then only of the host.

    Args:
        timing: The timing.

        by_source: Its samples [s].

        with_garbage: Whether to add the garbage of calls that leave none.
    """
    estimates: list[Estimate] = []
    of_host = None
    for source, samples in by_source.items():
        ordered = sorted(samples)
        low, high = stats.series_interval(samples) or (None, None)
        is_host = source == Source.HOST
        made = functools.partial(
            Estimate, unit="s", source=source, sample_count=len(samples)
        )
        middle = functools.partial(
            made,
            value=stats.sorted_quantile(ordered, 0.5),
            low=low,
            high=high,
            sm_clock_hz=None if is_host else timing.sm_clock_hz,
        )
        core = None
        # A device does not depend on the core speed.
        if is_host and source == timing.source:
            core = core_speed(samples, timing.core_loops_s)
        estimates.append(middle(metric="time", core=core))
        if len(samples) > 1:
            p95 = stats.sorted_quantile(ordered, _P95)
            estimates += (
                middle(metric="time.p50"),
                made(metric="time.p95", value=p95),
                made(metric="time.min", value=ordered[0]),
            )
        if is_host:
            of_host = middle(metric="time.wall")
    if of_host is not None:
        estimates.append(of_host)
        garbage = timing.garbage
        if garbage is not None and (with_garbage or garbage.time_s > 0):
            estimates.append(_with_garbage(of_host, garbage.time_s))
    if timing.returned:
        estimates.append(median_estimate("time.host", timing.returned, Source.HOST))
    if timing.first_call_s is not None:
        first = Estimate(
            metric="time.first_call",
            value=timing.first_call_s,
            unit="s",
            source=Source.HOST,
        )
        estimates.append(first)
    return tuple(estimates)


def _with_garbage(wall: Estimate, garbage_s: float) -> Estimate:
    return replace(
        wall,
        metric=WITH_GARBAGE,
        value=wall.value + garbage_s,
        low=None if wall.low is None else wall.low + garbage_s,
        high=None if wall.high is None else wall.high + garbage_s,
    )


def median_estimate(metric: str, samples: Sequence[float], source: str) -> Estimate:
    """Return the median of samples [s]. Too few samples have no interval."""
    low, high = stats.series_interval(samples) or (None, None)
    return Estimate(
        metric=metric,
        value=stats.median(samples),
        unit="s",
        source=source,
        low=low,
        high=high,
        sample_count=len(samples),
    )
