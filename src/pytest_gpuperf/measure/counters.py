"""Counters of a call: which a test needs, and their values in its record.

Nsight Compute counts in a process of its own; where none may start the tests, CUPTI counts
in this one: when a call has been timed, in one more call that nothing else looks at.

Of counting in this process, an H200 has seen what counts a call (collect.cupti.call_counter).
*Unverified on hardware:* a run of pytest that counts so.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING

from pytest_gpuperf.collect.binary.tools import base_name, native_demangler
from pytest_gpuperf.collect.cupti.call_counter import Call, CallCounter, CountedCall
from pytest_gpuperf.collect.ncu.catalogue import made_by_ncu
from pytest_gpuperf.collect.ncu.command import paired_modes
from pytest_gpuperf.collect.ncu.launches import CapturedLaunch, CapturedValue
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
from pytest_gpuperf.model.metric import METRICS, Family, is_counter
from pytest_gpuperf.model.record import Note, Record
from pytest_gpuperf.model.sample import CacheMode, Source, Unmeasured

if TYPE_CHECKING:
    from pytest_gpuperf.config import Plan
    from pytest_gpuperf.measure.observers import MeasuredCall, Observers
    from pytest_gpuperf.measure.site import Site
    from pytest_gpuperf.model.work import Work

__all__ = [
    "AS_IT_COMES",
    "PROFILE_ALONE",
    "CountedTest",
    "CuptiCounters",
    "NcuCounters",
    "RangeLaunches",
    "cache_control_of",
    "counter_metrics",
    "limiting_counters",
    "made_of",
    "may_count_here",
    "with_counters",
]

# of a range, a loop, a whole test
AS_IT_COMES = paired_modes(CacheMode.UNTOUCHED).cache_control
_RANGE = "range"  # ncu's replay mode that counts a measurement as one thing
PROFILE_ALONE = "run it by itself under ncu: pytest -k … --gpuperf-collectors=host,ncu"

_BLOCK = Gap(
    code=GapCode.OTHER_WAY,
    reason="a block runs once, and counting in this process takes a call of its own",
    remedy="measure a function with gpuperf.measure",
)
_INSIDE = Gap(
    code=GapCode.OTHER_WAY,
    reason="it lies in what is being timed, whose time would be that of counting",
    remedy="measure it outside of the block or loop",
)
_UNUSED = Gap(
    code=GapCode.NO_KERNEL,
    reason="no kernel was launched in the measurement",
    remedy="see that the call works on the GPU",
)
_NOTHING = Gap(
    code=GapCode.UNSUPPORTED,
    reason="this chip has no counter of it",
    remedy="count it on another chip",
)
# by source: why it does not say how many kernels were launched
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
        remedy="have CUPTI see launches: `gpuperf doctor` says why it does not",
    ),
}


def counter_metrics(plan: Plan, collectors: Sequence[str]) -> tuple[str, ...]:
    """
    Return what a test needs a profiler for; empty: nothing.

    Counters are needed where they are declared or named by a limit. What counters become
    (`dram.bytes`) may as well come from a report that the test reads, so it alone starts
    nothing unless what counts, ncu or CUPTI, was asked for by name.

    Args:
        plan: What its markers ask for.

        collectors: Those that were asked for by name; empty: none were.
    """
    named = plan.judged
    counters = (*plan.counters, *(name for name in named if is_counter(name)))
    if not counters and not {Source.NCU, Source.CUPTI} & {*collectors}:
        return ()
    # CUPTI that is asked for sees launches without counting anything
    recorded = not counters and Source.NCU not in collectors
    derived = (n for n in named if n in FORMULAS or (n == COUNT and not recorded))
    return tuple(dict.fromkeys((*counters, *derived)))


def may_count_here(collectors: Sequence[str], device: Device | None) -> bool:
    """
    Return whether this process may count itself: CUPTI is not left out, and a GPU there.

    Whether it can shows only when a test uses the GPU.
    """
    return (not collectors or Source.CUPTI in collectors) and device is not None


def cache_control_of(plan: Plan) -> str:
    """Return what to do about caches, as far as a test's markers tell."""
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
    Return the counters that metrics are made of, each once: no more than are needed, and
    none that the chip lacks, for ncu refuses them all where it lacks one.

    Args:
        metrics: Counters by their own names, and metrics of the catalogue.

        capability: The chip's compute capability; None: not known.

        lacks: Whether what counts does not know a counter, although the chip has it.
    """
    named = [name for name in metrics if name not in METRICS and not lacks(name)]
    ways = (_way(name, capability, lacks) for name in metrics if name in FORMULAS)
    return tuple(dict.fromkeys((*named, *(counter for way in ways for counter in way))))


def limiting_counters(capability: tuple[int, int] | None) -> tuple[str, ...]:
    """
    Return the counters that say what limits a kernel, and no more than that takes.

    Args:
        capability: The chip's compute capability; None: not known.
    """
    counters = (_spelled(name, capability, lambda _: False) for name in LIMITING)
    return tuple(filter(None, counters))


def _way(
    metric: str, capability: tuple[int, int] | None, lacks: Callable[[str], bool]
) -> tuple[str, ...]:
    """Return the counters of the first way to a metric that is there; empty: none is."""
    for way in FORMULAS[metric].ways:
        needs = (need for need in way.needs if need != DECLARED_BYTES)
        counters = tuple(_spelled(need, capability, lacks) for need in needs)
        if all(counters):
            return counters
    return ()


def _spelled(
    name: str, capability: tuple[int, int] | None, lacks: Callable[[str], bool]
) -> str:
    """Return the counter of a standard name on a chip; "": it has none."""
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
    Return a record with what was counted of the same call, made once more.

    Its time stays what it is: a profiler's clocks and caches are not those of a run.

    Args:
        record: What this process measured.

        launches: The kernels of one call, >= 1, each measured.

        metrics: What the test asks for: those without a value become *unmeasured*.

        work: What one call has to do.

        facts: Hard facts of this process and of the profile.

        source: What counted: Source.NCU or Source.CUPTI.

        by_kernel: Whether the launches are those of kernels with a name.
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
    if not by_kernel:  # one result for all that was launched
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
    """Return a gap in what was collected for the test: the advice is not to collect it."""
    if gap.code not in {GapCode.NOT_COLLECTED, GapCode.NOT_IN_REPORT}:
        return gap
    reason = f"{source} gave no value of it for this call"
    remedy = "see that this GPU has it: gpuperf metrics check"
    if "." not in gap.metric:  # most names stand for a value only with one
        remedy = f"write an ending behind it (dram__bytes.sum has one), or {remedy}"
    code = GapCode.METRIC_UNAVAILABLE
    return replace(gap, code=code, reason=reason, remedy=remedy)


class RangeLaunches(Frozen, frozen=True, kw_only=True):
    """
    What was counted of one measurement.

    Attributes:
        name: Its name inside the test.

        cache_control: What was done about caches.

        launches: Its kernels; empty: there was none.
    """

    name: str
    cache_control: str
    launches: tuple[CapturedLaunch, ...] = ()


class CountedTest(Frozen, frozen=True, kw_only=True):
    """
    What was counted of one test.

    Attributes:
        test_id: The test.

        ranges: Its measurements.

        refusal: Why others of it were not counted; None: it came to no other.

        tool_version: ncu's.

        replay_mode: How ncu repeated what it counted.

        clock_control: What it did about clocks.

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
        """Whether it would be the same the next time."""
        every = (launch for part in self.ranges for launch in part.launches)
        return (
            self.refusal is None
            and all(part.launches for part in self.ranges)
            and all(launch.measured for launch in every)
        )


class NcuCounters:
    """
    The counters of a run's tests.

    Args:
        tests: What was counted of each.

        collectors: Those that were asked for by name.
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
        """Return a record with the counters of the same measurement, or why it has none."""
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
    """Return a record that says why it has none of some counters."""
    missing = tuple(
        Unmeasured.of_metric(name, refusal)
        for name in metrics
        if not any(e.metric == name for e in record.estimates)
    )
    return replace(record, unmeasured=(*record.unmeasured, *missing))


def _of_range(counted: CountedTest, name: str) -> RangeLaunches | Gap:
    """Return what was counted of a measurement, or why nothing was."""
    shown = f"the range {name!r}" if name else "the measurement"
    measured = next((part for part in counted.ranges if part.name == name), None)
    if measured is None:
        return counted.refusal or Gap(
            code=GapCode.NOT_REACHED,
            reason=f"{shown} was not reached under ncu",
            remedy="let the test come to it in every process",
        )
    if not measured.launches:
        return Gap(
            code=GapCode.NO_KERNEL,
            reason=f"no kernel was launched in {shown} under ncu",
            remedy="see that the call works on the GPU",
        )
    failed = [launch.kernel for launch in measured.launches if not launch.measured]
    if failed:
        reason = f"ncu could not profile a launch of {failed[0]} in {shown}"
        return Gap(code=GapCode.COLLECTOR_FAILED, reason=reason, remedy=PROFILE_ALONE)
    return measured


class CuptiCounters:
    """
    The counters of a run's tests, counted in this process.

    Args:
        site: This process.

        observers: Who looks at it besides.

        instead_of: Why ncu does not count.
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
        Return a record with the counters of one more call, or why it has none.

        Args:
            record: What was measured of it.

            plan: What its test asks for.

            call: The call that was measured; None: it was a block.

            work: What one call has to do.

            facts: Hard facts of this process.

        Raises:
            Exception: What the call itself raises passes through.
        """
        metrics = counter_metrics(plan, self._site.config.collectors)
        if not metrics:
            return record
        foreign = {gap.metric: gap for gap in self._of_ncu_alone(metrics)}
        record = replace(record, unmeasured=(*record.unmeasured, *foreign.values()))
        metrics = tuple(name for name in metrics if name not in foreign)
        if not metrics:
            return record
        counters = made_of(metrics, self._capability, lacks=made_by_ncu)
        counted_call: CountedCall | Gap = _BLOCK if counters else _NOTHING
        if counters and call is not None:
            counted_call = self._counted(call, counters)
        if isinstance(counted_call, Gap):
            return _without_counters(record, metrics, self._beside_ncu(counted_call))
        counted = counted_call.counted
        text = f"counters are of {counted.tool} in this process: {self._ncu.reason}"
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
        """The compute capability of the GPU that tests run on."""
        device = self._site.device()
        return None if device is None else device.compute_capability

    def _of_ncu_alone(self, metrics: Sequence[str]) -> Iterator[Unmeasured]:
        """Yield why metrics that ncu makes itself are not there, each by its name."""
        for metric in metrics:
            usual = made_of((metric,), self._capability)
            if usual and not made_of((metric,), self._capability, lacks=made_by_ncu):
                named = ", ".join(name for name in usual if made_by_ncu(name))
                reason = f"it needs ncu, which alone makes {named}: {self._ncu.reason}"
                yield Unmeasured.of_metric(metric, replace(self._ncu, reason=reason))

    def _beside_ncu(self, absence: Gap) -> Gap:
        """Return why neither this process nor ncu counts."""
        remedies = dict.fromkeys((absence.remedy, self._ncu.remedy))
        return Gap(
            code=absence.code,
            reason=f"{absence.reason}, and ncu does not count it: {self._ncu.reason}",
            remedy=", or ".join(remedies),
        )

    def _counted(
        self, measured: MeasuredCall, counters: Sequence[str]
    ) -> CountedCall | Gap:
        """Return what is counted of a call, or why nothing is."""
        request, timing, observations = measured
        if self._observers.open_count:
            return _INSIDE
        if not observations.device_used:
            return _UNUSED
        call = Call(
            request=request, time_s=median(timing.samples), trace=observations.trace
        )
        with self._alone():
            return self._counter.count(
                call, tuple(dict.fromkeys((*counters, DURATION)))
            )

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """
        Let nothing be recorded meanwhile.

        Nobody promises that libcupti counts while it records, and every replayed kernel
        would be a record.
        """
        recording = self._observers.activity
        if recording is None or not recording.is_open:
            yield
            return
        recording.close()
        try:
            yield
        finally:
            try:
                recording.open()
            except CollectorUnavailableError as error:  # somebody was quicker
                absence = Gap.of(error)
                self._site.lost[Source.CUPTI] = absence
                # which the run would not say of what has given values before
                self._site.remark(Source.CUPTI, f"{Source.CUPTI}: {absence.text}")

    def _launches(self, call: CountedCall) -> tuple[CapturedLaunch, ...]:
        """Return what was counted in the form in which ncu's reports are read."""
        demangler = native_demangler()
        names = call.names or tuple(part.name for part in call.counted.ranges)
        readable = {name: demangler(name) or name for name in names}
        chip = dict(zip(CAPABILITY, self._capability or (), strict=False))
        chip_metrics = {
            name: CapturedValue(value=n, unit="") for name, n in chip.items()
        }
        return tuple(
            CapturedLaunch(
                index=index,
                kernel=base_name(readable[name]),
                demangled=readable[name],
                nvtx={},
                measured=True,
                metrics=chip_metrics
                | {
                    counter: CapturedValue(value=value.value, unit=value.unit)
                    for counter, value in counted.metrics.items()
                },
            )
            for index, (name, counted) in enumerate(
                zip(names, call.counted.ranges, strict=True)
            )
        )
