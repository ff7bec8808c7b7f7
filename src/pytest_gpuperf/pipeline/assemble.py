"""Readings of a collector into a Record with its estimates and facts; PYTEST_DONT_REWRITE."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from pytest_gpuperf.collect.chips import chip_limits, target_capability
from pytest_gpuperf.compute import stats
from pytest_gpuperf.errors import UnitError
from pytest_gpuperf.model.fingerprint import family_facts, family_of
from pytest_gpuperf.model.frozen import Frozen, replace
from pytest_gpuperf.model.quantity import Unit, unit_named
from pytest_gpuperf.model.record import BoundClass, Kind, Record, RecordKey, Role
from pytest_gpuperf.model.sample import Estimate, Series, SourceLabel, Unmeasured
from pytest_gpuperf.pipeline.peak_facts import peak_fact
from pytest_gpuperf.pipeline.roofs import held_against

if TYPE_CHECKING:
    from pytest_gpuperf.collect.base import Timing
    from pytest_gpuperf.collect.ncu.capture import CapturedLaunch
    from pytest_gpuperf.model.device import Device
    from pytest_gpuperf.model.grade import Bands
    from pytest_gpuperf.model.launch import KernelResources
    from pytest_gpuperf.model.roofline import Peaks
    from pytest_gpuperf.model.work import Work
    from pytest_gpuperf.pipeline.loops import LoopValues

__all__ = ["Maker"]

_P95 = 0.95


class Maker(Frozen, frozen=True, kw_only=True):
    """
    Makes the records of one process.

    Attributes:
        facts: Hard facts of this process, by the fingerprint's names.

        soft_facts: Facts that are printed when they moved.

        device: The GPU in use; None: none.

        role: Which process of the run this is.

        process_index: 0 for the main process.

        peaks: Returns the roofs of what this process computes with; None: not known.

        grades: Where grades begin, by roof; those not named are the plugin's own.
    """

    facts: Mapping[str, str]
    soft_facts: Mapping[str, str]
    device: Device | None = None
    role: Role = Role.MAIN
    process_index: int = 0
    peaks: Callable[[], Peaks] | None = None
    grades: Mapping[str, Bands] = {}

    def timed(
        self, key: RecordKey, timing: Timing, *, kind: Kind, work: Work | None
    ) -> Record:
        """Return the record of a timed function or block."""
        times = _time_estimates(timing)
        known = None if self.peaks is None or work is None else self.peaks()
        roof = held_against(
            work,
            times[0],
            known,
            warm=timing.cache_mode != "cold",
            grades=self.grades,
        )
        record = self._record(
            key,
            kind,
            (*times, *roof.estimates),
            series=(
                Series(
                    metric="time",
                    unit="s",
                    source=timing.source,
                    values=timing.samples,
                    iterations_count=timing.iterations_count,
                    discarded_count=timing.discarded_count,
                ),
            ),
            unmeasured=roof.unmeasured,
            facts={
                **self.facts,
                "cache_mode": timing.cache_mode,
                **peak_fact(known, roof.attained.roof if roof.attained else None),
            },
            work=work,
            timing=timing,
        )
        return replace(record, roofline=roof.attained)

    def compared(
        self, key: RecordKey, a: Timing, b: Timing, *, process_count: int = 1
    ) -> Record:
        """Return the record of a comparison: how many times faster a is than b."""
        from pytest_gpuperf.compute.change import paired_ratio

        ratio = paired_ratio(b.samples, a.samples, process_count=process_count)
        speedup = Estimate(
            metric="speedup",
            value=ratio.value,
            unit="ratio",
            source=a.source,
            low=ratio.low,
            high=ratio.high,
            sample_count=len(a.samples),
        )
        series = tuple(
            Series(metric=name, unit="s", source=t.source, values=t.samples)
            for name, t in (("time.a", a), ("time.b", b))
        )
        return self._record(
            key,
            Kind.COMPARE,
            (speedup,),
            series=series,
            facts={**self.facts, "cache_mode": a.cache_mode},
            timing=replace(
                a,
                void=a.void or b.void,
                notes=tuple(dict.fromkeys((*a.notes, *b.notes))),
            ),
        )

    def binary(self, key: RecordKey, kernels: Sequence[KernelResources]) -> Record:
        """Return the record of compiled kernels: each one's values, and the largest."""
        single: list[Estimate] = []
        gaps: dict[str, Unmeasured] = {}
        for kernel in kernels:
            for metric, (value, unit) in _kernel_metrics(kernel).items():
                if value is not None:
                    single.append(_resource(metric, value, unit, kernel.name))
                elif metric not in gaps:
                    gaps[metric] = _binary_gap(metric, kernel, kernels)
        whole = [e for e in _largest(single) if e.metric not in gaps]
        targets = dict.fromkeys(_capability(kernel.target) for kernel in kernels)
        return self._record(
            key,
            Kind.BINARY,
            (*whole, *single),
            unmeasured=tuple(gaps.values()),
            facts={"compute_capability": ", ".join(sorted(targets))},
            kernels=tuple(kernels),
        )

    def capture(
        self,
        key: RecordKey,
        launches: Sequence[CapturedLaunch],
        metrics: Sequence[str],
        *,
        work: Work | None = None,
    ) -> Record:
        """Return the record of a captured report: some metrics over its launches."""
        from pytest_gpuperf.collect.translate.ncu import captured_facts
        from pytest_gpuperf.pipeline.captured import capture_values

        estimates, gaps = capture_values(launches, metrics, work)
        return self._record(
            key,
            Kind.CAPTURE,
            estimates,
            unmeasured=gaps,
            facts=captured_facts(launches[0]),
            work=work,
        )

    def steps(self, key: RecordKey, loop: LoopValues, *, work: Work | None) -> Record:
        """Return the record of a loop."""
        record = self._record(
            key,
            Kind.STEPS,
            loop.estimates,
            series=loop.series,
            unmeasured=loop.unmeasured,
            facts={**self.facts, **loop.facts},
            work=work,
        )
        return replace(record, void=loop.void, notes=loop.notes, steps=loop.summary)

    def number(
        self, key: RecordKey, values: Sequence[float], *, unit: str, better: str
    ) -> Record:
        """Return the record of a number of the user's own; a known unit becomes SI."""
        try:
            known = unit_named(unit)
        except UnitError:  # a unit of the user's own stays as it is
            known = Unit(si=unit, factor=1.0)
        scaled = [known.to_si(value) for value in values]
        interval = stats.median_interval(scaled) or (None, None)
        estimate = Estimate(
            metric=key.name,
            value=stats.median(scaled),
            unit=known.si,
            source="user",
            label=SourceLabel.DECLARED,
            low=interval[0],
            high=interval[1],
            sample_count=len(scaled),
            better=better,
        )
        return self._record(key, Kind.RECORD, (estimate,), facts=dict(self.facts))

    def _record(
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
    ) -> Record:
        """Return a record of this process."""
        families = {family_of(e.metric, e.source) for e in estimates}
        return Record(
            key=key,
            kind=kind,
            estimates=estimates,
            series=series,
            unmeasured=unmeasured,
            kernels=kernels,
            device=self.device,
            facts={f.value: family_facts(f, facts) for f in sorted(families)},
            soft_facts=self.soft_facts,
            work=work,
            bound_class=BoundClass.HOST,
            role=self.role,
            process_index=self.process_index,
            void=timing.void if timing is not None else None,
            notes=timing.notes if timing is not None else (),
        )


def _time_estimates(timing: Timing) -> tuple[Estimate, ...]:
    """Return the time metrics of a timing; one sample has no spread and no quantiles."""
    samples = timing.samples
    low, high = stats.median_interval(samples) or (None, None)
    point = stats.median(samples)
    count = len(samples)
    numbers = [("time", point), ("time.wall", point)]
    if count > 1:
        numbers += [
            ("time.p50", point),
            ("time.p95", stats.quantile(samples, _P95)),
            ("time.min", min(samples)),
        ]
    if timing.first_call_s is not None:
        numbers.append(("time.first_call", timing.first_call_s))
    spread = {"time", "time.wall", "time.p50"}
    return tuple(
        Estimate(
            metric=metric,
            value=value,
            unit="s",
            source=timing.source,
            low=low if metric in spread else None,
            high=high if metric in spread else None,
            sample_count=1 if metric == "time.first_call" else count,
        )
        for metric, value in numbers
    )


def _kernel_metrics(
    kernel: KernelResources,
) -> dict[str, tuple[float | None, str]]:
    """Return a kernel's metrics, with its occupancy where its block is known."""
    from pytest_gpuperf.collect.translate.ncu import kernel_values
    from pytest_gpuperf.compute.occupancy import kernel_occupancy

    metrics = kernel_values(kernel)
    capability = target_capability(kernel.target)
    limits = chip_limits(capability) if capability is not None else None
    occupancy = kernel_occupancy(kernel, limits) if limits is not None else None
    fraction = None if occupancy is None else occupancy.fraction
    return {**metrics, "occupancy.theoretical": (fraction, "fraction")}


def _resource(metric: str, value: float, unit: str, kernel: str | None) -> Estimate:
    """Return the estimate of a resource: exact, from the binary."""
    return Estimate(
        metric=metric, value=float(value), unit=unit, source="binary", kernel=kernel
    )


def _largest(single: Sequence[Estimate]) -> list[Estimate]:
    """Return the worst kernel's value of each metric, as the value of the whole."""
    by_metric: dict[str, list[Estimate]] = {}
    for estimate in single:
        by_metric.setdefault(estimate.metric, []).append(estimate)
    return [
        _resource(
            metric,
            (min if metric.startswith("occupancy") else max)(e.value for e in found),
            found[0].unit,
            None,
        )
        for metric, found in by_metric.items()
    ]


def _binary_gap(
    metric: str, kernel: KernelResources, kernels: Sequence[KernelResources]
) -> Unmeasured:
    """Return why a kernel, and so the whole binary, has no value of a metric."""
    name = kernel.demangled or kernel.name
    if metric == "stack_bytes":
        reason = f"the compiler knows no bound for {name}, which recurses or calls"
        remedy = "limit the other kernels by their names"
    elif metric == "spills_bytes" and all(k.spills_bytes is None for k in kernels):
        reason = "a binary does not say what was spilled"
        remedy = "pass ptxas_log=, what `ptxas -v` printed; stack_bytes is known"
    elif metric == "spills_bytes":
        reason = f"the compiler's log does not name {name}"
        remedy = "pass the log of the whole binary"
    elif kernel.threads_per_block is None:
        reason = "a binary does not say how many threads a block has"
        remedy = "pass block=, the threads of a block"
    else:
        reason = f"what a multiprocessor of {kernel.target} holds is not known"
        remedy = "compile it for a chip that is, as sm_90"
    return Unmeasured(metric=metric, reason=reason, remedy=remedy)


def _capability(target: str) -> str:
    """Return the compute capability of a target as text; the target where it has none."""
    found = target_capability(target)
    return target if found is None else f"{found[0]}.{found[1]}"
