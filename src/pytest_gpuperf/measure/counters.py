"""Counters of a call: the counters that a test needs, and their values in its record.

Nsight Compute counts in a separate process. If none may start the tests, CUPTI counts in
this process: after a call has been timed, in one more call without other observers.

Counting a call in this process was tested on an H200 (collect.cupti.call_counter).
*Unverified on hardware:* a run of pytest that counts in this way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING

from pytest_gpuperf.collect.binary.demangling import base_name, native_demangler
from pytest_gpuperf.collect.cupti.call_counter import Call, CallCounter, CountedCall
from pytest_gpuperf.collect.ncu.catalogue import made_by_ncu
from pytest_gpuperf.collect.ncu.command import paired_modes
from pytest_gpuperf.collect.translate.counters import (
    CAPABILITY,
    DURATION,
    SPELLINGS,
    captured_facts,
)
from pytest_gpuperf.compute.derive import FORMULAS
from pytest_gpuperf.compute.limiter import LIMITING, idle_share
from pytest_gpuperf.errors import CollectorUnavailableError
from pytest_gpuperf.measure.captured import COUNT, capture_values, kernel_analyses
from pytest_gpuperf.model.counters import DECLARED_BYTES
from pytest_gpuperf.model.environment import Device, family_facts, family_of
from pytest_gpuperf.model.frozen import Frozen, replace
from pytest_gpuperf.model.gap import Gap, GapCode
from pytest_gpuperf.model.launch import CapturedLaunch, CapturedValue
from pytest_gpuperf.model.metric import METRICS, Family, is_counter
from pytest_gpuperf.model.record import Note, Record
from pytest_gpuperf.model.sample import CacheMode, Source, Unmeasured

if TYPE_CHECKING:
    from pytest_gpuperf.config import Plan
    from pytest_gpuperf.measure.observers import MeasuredCall, Observers
    from pytest_gpuperf.measure.site import Site
    from pytest_gpuperf.model.work import Work

# For a range, a loop or a whole test.
AS_IT_COMES = paired_modes(CacheMode.UNTOUCHED).cache_control
# The replay mode of ncu that counts a measurement as a whole.
_RANGE = "range"
PROFILE_ALONE = "run it by itself under ncu: pytest -k … --gpuperf-collectors=host,ncu"

_BLOCK = Gap(
    code=GapCode.OTHER_WAY,
    reason="counting in this process needs another call, and a block runs only once",
    remedy="measure a function with gpuperf.measure",
)
_INSIDE = Gap(
    code=GapCode.OTHER_WAY,
    reason="it is inside of what is being timed, and counting would take most of that time",
    remedy="measure it outside of the block or loop",
)
_UNUSED = Gap(
    code=GapCode.NO_KERNEL,
    reason="no kernel was launched in the measurement",
    remedy="check that the call runs on the GPU",
)
_NOTHING = Gap(
    code=GapCode.UNSUPPORTED,
    reason="this chip has no counter of it",
    remedy="count it on another chip",
)
# The reason why a source does not count kernel launches, by source.
_UNCOUNTED: Mapping[str, Unmeasured] = {
    Source.NCU: Unmeasured(
        metric=COUNT,
        code=GapCode.UNSUPPORTED,
        reason="ncu counts a whole range as one (--gpuperf-ncu-replay=range)",
        remedy="count it with --gpuperf-ncu-replay=kernel, or with cupti",
    ),
    Source.CUPTI: Unmeasured(
        metric=COUNT,
        code=GapCode.UNSUPPORTED,
        reason="a CUDA graph may be one of the ranges that CUPTI counts in",
        remedy="let CUPTI record launches: `gpuperf doctor` says why it does not",
    ),
}


def counter_metrics(plan: Plan, collectors: Sequence[str]) -> tuple[str, ...]:
    """
    Return the metrics of a test that need a profiler, or () if there are none.

    Counters that are declared or named by a limit need a profiler. Metrics derived from
    counters (`dram.bytes`) may also come from a report read by the test. They need a
    profiler only if ncu or CUPTI was requested by name.

    Args:
        plan: The plan of the test, from its markers.

        collectors: The collectors requested by name, or empty.
    """
    named = plan.judged
    counters = (*plan.counters, *(name for name in named if is_counter(name)))
    if not counters and not {Source.NCU, Source.CUPTI} & {*collectors}:
        return ()
    # CUPTI, if requested, sees launches without counting.
    recorded = not counters and Source.NCU not in collectors
    derived = (n for n in named if n in FORMULAS or (n == COUNT and not recorded))
    return tuple(dict.fromkeys((*counters, *derived)))


def may_count_here(collectors: Sequence[str], device: Device | None) -> bool:
    """
    Return True if CUPTI is not left out by name and there is a GPU.

    Counting may still turn out to be impossible when a test uses the GPU.
    """
    return (not collectors or Source.CUPTI in collectors) and device is not None


def cache_control_of(plan: Plan) -> str:
    """Return the cache control of a test, as far as the markers define it."""
    if not plan.uses_fixture:
        return AS_IT_COMES
    return paired_modes(plan.cache or CacheMode.COLD).cache_control


def made_of(
    metrics: Sequence[str],
    capability: tuple[int, int] | None,
    *,
    lacks: Callable[[str], bool] = lambda _: False,
) -> tuple[str, ...]:
    """
    Return the counters needed for some metrics, without duplicates.

    Only the necessary counters are returned, and none that the chip lacks, because ncu
    refuses all counters if the chip lacks one.

    Args:
        metrics: Counters by their own names, and metrics of the catalogue.

        capability: The chip's compute capability, or None if unknown.

        lacks: Returns whether the profiler does not know a counter, although the chip has
            it.
    """
    counters = [name for name in metrics if name not in METRICS and not lacks(name)]
    for metric in metrics:
        # The first available way to the metric counts.
        for way in FORMULAS[metric].ways if metric in FORMULAS else ():
            needs = (need for need in way.needs if need != DECLARED_BYTES)
            spellings = [_spelled(need, capability, lacks) for need in needs]
            if all(spellings):
                counters += spellings
                break
    return tuple(dict.fromkeys(counters))


def limiting_counters(capability: tuple[int, int] | None) -> tuple[str, ...]:
    """
    Return only the counters needed to find the limiter of a kernel.

    Args:
        capability: The chip's compute capability, or None if unknown.
    """
    counters = (_spelled(name, capability, lambda _: False) for name in LIMITING)
    return tuple(filter(None, counters))


def _spelled(
    name: str, capability: tuple[int, int] | None, lacks: Callable[[str], bool]
) -> str:
    counters = (s.counter for s in SPELLINGS.get(name, ()) if s.fits(capability))
    return next((counter for counter in counters if not lacks(counter)), "")


def with_counters(
    record: Record,
    launches: Sequence[CapturedLaunch],
    metrics: Sequence[str],
    *,
    work: Work | None,
    facts: Mapping[str, str],
    source: str = Source.NCU,
    by_kernel: bool = True,
) -> Record:
    """
    Add counters of the same call, counted in an additional call, to a record.

    The time of the record does not change, because a profiler uses other clocks and caches.

    Args:
        record: The record of this process.

        launches: The kernels of one call, at least one, all of them measured.

        metrics: The requested metrics. Metrics without a value become *unmeasured*.

        work: The work of one call.

        facts: Hard facts of this process and of the profile.

        source: The counting source, Source.NCU or Source.CUPTI.

        by_kernel: Whether the launches are those of named kernels.
    """
    estimates, gaps = capture_values(launches, metrics, work)
    more_metrics = [
        name
        for name, metric in METRICS.items()
        if metric.family is Family.COUNTER and name in FORMULAS and name not in metrics
    ]
    more_estimates, _ = capture_values(launches, more_metrics, work)
    counted = [
        replace(e, source=source)
        for e in (*estimates, *(e for e in more_estimates if e.metric != COUNT))
    ]
    if not by_kernel:  # One result for all launches.
        counted = [e for e in counted if e.kernel is None]
    if not by_kernel or source == Source.CUPTI:
        counted = [e for e in counted if e.metric != COUNT]
        gaps = (
            *(gap for gap in gaps if gap.metric != COUNT),
            *(_UNCOUNTED[source] for name in metrics if name == COUNT),
        )
    all_facts = {**captured_facts(launches[0]), **facts}
    families = {family_of(e.metric, source) for e in counted}
    by_family = {
        family.value: family_facts(family, all_facts) for family in sorted(families)
    }
    return replace(
        record,
        estimates=(*record.estimates, *counted),
        unmeasured=(*record.unmeasured, *(_collected(gap, source) for gap in gaps)),
        facts={**record.facts, **by_family},
        analyses=kernel_analyses(launches, idle_share(record.activity))
        if by_kernel
        else (),
    )


def _collected(gap: Unmeasured, source: str) -> Unmeasured:
    """Replace the advice to collect a counter in the gap of a counter that was collected."""
    if gap.code not in {GapCode.NOT_COLLECTED, GapCode.NOT_IN_REPORT}:
        return gap
    reason = f"{source} gave no value of it for this call"
    remedy = "check that this GPU has it: gpuperf metrics check"
    if "." not in gap.metric:  # Most names need an ending to denote a value.
        remedy = f"write an ending behind it (dram__bytes.sum has one), or {remedy}"
    code = GapCode.METRIC_UNAVAILABLE
    return replace(gap, code=code, reason=reason, remedy=remedy)


class RangeLaunches(Frozen, frozen=True, kw_only=True):
    """
    The counts of one measurement.

    Attributes:
        name: Name of the measurement within the test.

        cache_control: The cache control during counting.

        launches: The kernels, or () if there were none.
    """

    name: str
    cache_control: str
    launches: tuple[CapturedLaunch, ...] = ()


class CountedTest(Frozen, frozen=True, kw_only=True):
    """
    The counts of one test.

    Attributes:
        test_id: The test.

        ranges: The measurements.

        refusal: The reason why further measurements were not counted, or None.

        tool_version: Version of ncu.

        replay_mode: The replay mode of ncu.

        clock_control: The clock control of ncu.

        session_id: The session that counted.
    """

    test_id: str
    ranges: tuple[RangeLaunches, ...] = ()
    refusal: Gap | None = None
    tool_version: str = ""
    replay_mode: str = "kernel"
    clock_control: str = "none"
    session_id: str = ""

    @property
    def complete(self) -> bool:
        """True if counting again would give the same result."""
        every = (launch for part in self.ranges for launch in part.launches)
        return (
            self.refusal is None
            and all(part.launches for part in self.ranges)
            and all(launch.measured for launch in every)
        )


class NcuCounters:
    """
    The counters of all tests of a run.

    Args:
        tests: The counts of each test.

        collectors: The collectors requested by name.
    """

    def __init__(
        self, tests: Iterable[CountedTest], *, collectors: Sequence[str]
    ) -> None:
        self._tests = {test.test_id: test for test in tests}
        self._collectors = collectors

    def joined(
        self,
        record: Record,
        plan: Plan,
        _call: MeasuredCall | None = None,
        *,
        work: Work | None,
        facts: Mapping[str, str],
    ) -> Record:
        """Add the counters of the same measurement to a record, or else the gaps."""
        metrics = counter_metrics(plan, self._collectors)
        counted = self._tests.get(record.key.test_id)
        if not metrics or counted is None:
            return record
        part = _of_range(counted, record.key.name)
        if isinstance(part, Gap):
            return _without_counters(record, metrics, part)
        modes = {
            "tool_version": counted.tool_version,
            "replay_mode": counted.replay_mode,
            "cache_control": part.cache_control,
            "clock_control": counted.clock_control,
        }
        return with_counters(
            record,
            part.launches,
            metrics,
            work=work,
            facts={**facts, **modes},
            by_kernel=counted.replay_mode != _RANGE,
        )


def _without_counters(record: Record, metrics: Sequence[str], refusal: Gap) -> Record:
    missing = tuple(
        Unmeasured.of_metric(name, refusal)
        for name in metrics
        if not any(e.metric == name for e in record.estimates)
    )
    return replace(record, unmeasured=(*record.unmeasured, *missing))


def _of_range(counted: CountedTest, name: str) -> RangeLaunches | Gap:
    shown = f"the range {name!r}" if name else "the measurement"
    measured = next((part for part in counted.ranges if part.name == name), None)
    if measured is None:
        return counted.refusal or Gap(
            code=GapCode.NOT_REACHED,
            reason=f"{shown} was not reached under ncu",
            remedy="let the test reach it in every process",
        )
    if not measured.launches:
        return Gap(
            code=GapCode.NO_KERNEL,
            reason=f"no kernel was launched in {shown} under ncu",
            remedy="check that the call runs on the GPU",
        )
    failed = [launch.kernel for launch in measured.launches if not launch.measured]
    if failed:
        reason = f"ncu could not profile a launch of {failed[0]} in {shown}"
        return Gap(code=GapCode.COLLECTOR_FAILED, reason=reason, remedy=PROFILE_ALONE)
    return measured


class CuptiCounters:
    """
    The counters of all tests of a run, counted in this process.

    Args:
        site: The site of this process.

        observers: The other observers of this process.

        instead_of: The reason why ncu does not count.
    """

    def __init__(
        self,
        site: Site,
        observers: Observers,
        *,
        instead_of: Gap,
    ) -> None:
        self._site = site
        self._counter = CallCounter(site.runtime)
        self._observers = observers
        self._ncu = instead_of

    def joined(
        self,
        record: Record,
        plan: Plan,
        call: MeasuredCall | None = None,
        *,
        work: Work | None,
        facts: Mapping[str, str],
    ) -> Record:
        """
        Add the counters of an additional call to a record, or else the gaps.

        Args:
            record: The record of the measurement.

            plan: The plan of the test.

            call: The measured call, or None for a block.

            work: The work of one call.

            facts: Hard facts of this process.

        Raises:
            Exception: The call itself raises an exception, which passes through.
        """
        metrics = counter_metrics(plan, self._site.config.collectors)
        if not metrics:
            return record
        foreign = {}
        for metric in metrics:
            usual = made_of((metric,), self._capability)
            if usual and not made_of((metric,), self._capability, lacks=made_by_ncu):
                named = ", ".join(name for name in usual if made_by_ncu(name))
                reason = f"it needs ncu, which alone makes {named}: {self._ncu.reason}"
                absence = replace(self._ncu, reason=reason)
                foreign[metric] = Unmeasured.of_metric(metric, absence)
        record = replace(record, unmeasured=(*record.unmeasured, *foreign.values()))
        metrics = tuple(name for name in metrics if name not in foreign)
        if not metrics:
            return record
        counters = made_of(metrics, self._capability, lacks=made_by_ncu)
        counted_call: CountedCall | Gap = _BLOCK if counters else _NOTHING
        if counters and call is not None:
            counted_call = self._counted(call, counters)
        if isinstance(counted_call, Gap):
            remedies = dict.fromkeys((counted_call.remedy, self._ncu.remedy))
            why = f"and ncu does not count it: {self._ncu.reason}"
            absence = Gap(
                code=counted_call.code,
                reason=f"{counted_call.reason}, {why}",
                remedy=", or ".join(remedies),
            )
            return _without_counters(record, metrics, absence)
        counted = counted_call.counted
        text = f"counters come from {counted.tool} in this process: {self._ncu.reason}"
        self._site.remark(Source.CUPTI, f"{Source.CUPTI}: {text}")
        record = with_counters(
            record,
            self._launches(counted_call),
            metrics,
            work=work,
            facts={**facts, **counted.facts()},
            source=Source.CUPTI,
            by_kernel=bool(counted_call.names),
        )
        note = Note(code="counted-in-process", text=text)
        return replace(record, notes=(*record.notes, note, *counted.notes))

    @property
    def _capability(self) -> tuple[int, int] | None:
        device = self._site.device()
        return None if device is None else device.compute_capability

    def _counted(
        self, measured: MeasuredCall, counters: Sequence[str]
    ) -> CountedCall | Gap:
        request, timing, observations = measured
        if self._observers.open_count:
            return _INSIDE
        if not observations.device_used:
            return _UNUSED
        call = Call(
            request=request, time_s=median(timing.samples), trace=observations.trace
        )
        # libcupti does not promise to count while recording, and every replayed kernel
        # would be recorded.
        recording = self._observers.activity
        paused = recording if recording is not None and recording.is_open else None
        if paused is not None:
            paused.close()
        try:
            return self._counter.count(
                call, tuple(dict.fromkeys((*counters, DURATION)))
            )
        finally:
            if paused is not None:
                try:
                    paused.open()
                except CollectorUnavailableError as error:
                    # Another process took CUPTI first. The run would otherwise not report
                    # a collector that has already given values.
                    absence = Gap.of(error)
                    self._site.lost[Source.CUPTI] = absence
                    self._site.remark(Source.CUPTI, f"{Source.CUPTI}: {absence.text}")

    def _launches(self, call: CountedCall) -> tuple[CapturedLaunch, ...]:
        demangler = native_demangler()
        names = call.names or tuple(part.name for part in call.counted.ranges)
        readable = {name: demangler(name) or name for name in names}
        chip = zip(CAPABILITY, self._capability or (), strict=False)
        chip_metrics = {name: CapturedValue(value=n, unit="") for name, n in chip}
        return tuple(
            CapturedLaunch(
                index=index,
                kernel=base_name(readable[name]),
                demangled=readable[name],
                nvtx={},
                measured=True,
                metrics={**chip_metrics, **counted.metrics},
            )
            for index, (name, counted) in enumerate(
                zip(names, call.counted.ranges, strict=True)
            )
        )
