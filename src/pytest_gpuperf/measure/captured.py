"""The values of an existing report, and its advice."""

from __future__ import annotations

import difflib
import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from pytest_gpuperf.collect.chip_limits import chip_limits
from pytest_gpuperf.collect.ncu.nvtx import LaunchFilter
from pytest_gpuperf.collect.translate import counters as translate
from pytest_gpuperf.collect.translate.counters import (
    capability_of,
    spelled,
    standard_counters,
)
from pytest_gpuperf.compute.derive import (
    FORMULAS,
    aggregate,
    costly_stalls,
    launch_occupancy,
    needed_counters,
    over_launches,
    stall_shares,
    theoretical_occupancy,
    value_of,
)
from pytest_gpuperf.compute.limiter import ANALYSIS_COUNTERS, IdleShare, analyse
from pytest_gpuperf.compute.roofline import (
    ROOFLINE_COUNTERS,
    counted_roofline,
    counted_rooflines,
    roofline_gap,
)
from pytest_gpuperf.judge.files import COMPARED, CapturedKernel, CaptureSide
from pytest_gpuperf.judge.selection import not_given
from pytest_gpuperf.model.counters import (
    DECLARED_BYTES,
    AdvisedLaunch,
    Analysis,
    CounterGap,
    Evidence,
    KernelAnalysis,
    LaunchAdvice,
    LaunchCounters,
    LaunchDetails,
)
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.gap import Gap, GapCode
from pytest_gpuperf.model.launch import KERNEL
from pytest_gpuperf.model.metric import METRICS, Family
from pytest_gpuperf.model.record import Kind, Record, RecordKey
from pytest_gpuperf.model.sample import Estimate, Source, Unmeasured

if TYPE_CHECKING:
    from pytest_gpuperf.collect.ncu.launches import PlacedLaunch
    from pytest_gpuperf.collect.runner import Runner
    from pytest_gpuperf.measure.assemble import Maker
    from pytest_gpuperf.model.launch import Capture, CapturedLaunch
    from pytest_gpuperf.model.verdict import FailedComparison
    from pytest_gpuperf.model.work import Work

# Requested like a metric. Stands for all counters that show the limiter.
ANALYSED = "limiter"
COUNT = "launches.count"
_POSSIBLE = "warps_possible_fraction"
# The counters that determine the occupancy of a block.
_BLOCK = (
    "registers_count",
    "block_threads_count",
    "static_shared_bytes",
    "dynamic_shared_bytes",
)
_ANALYSIS = tuple(dict.fromkeys((*ANALYSIS_COUNTERS, *ROOFLINE_COUNTERS)))
_Launches = Sequence[tuple["CapturedLaunch", LaunchCounters]]


def report_counters(metrics: Sequence[str]) -> tuple[str, ...]:
    """Return the counters to read from a report for some metrics."""
    counters = [name for name in metrics if name not in METRICS and name != ANALYSED]
    analysed = ANALYSIS_COUNTERS if ANALYSED in metrics else ()
    return translate.needed_counters(counters, (*_standard(metrics), *analysed))


@functools.cache
def first_counters() -> tuple[str, ...]:
    """Return the counters of all formulas, of the catalogue's metrics and of the limiter."""
    return report_counters((*FORMULAS, ANALYSED))


def capture_record(
    maker: Maker,
    key: RecordKey,
    launches: Sequence[CapturedLaunch],
    metrics: Sequence[str],
    *,
    names: Iterable[str] = (),
    work: Work | None = None,
) -> Record:
    """
    Build the record of a captured report.

    Args:
        maker: The maker of records of this process.

        key: The key of the record.

        launches: The measured launches, at least one.

        metrics: The metrics to read.

        names: The counters of all launches of the report, for suggestions.

        work: The work of a call as declared by the test, or None.
    """
    estimates, gaps = capture_values(launches, metrics, work)
    record = maker.record(
        key,
        Kind.CAPTURE,
        estimates,
        unmeasured=_suggested(gaps, names),
        facts=translate.captured_facts(launches[0]),
        work=work,
    )
    return replace(record, analyses=kernel_analyses(launches))


def whole_record(path: str, launches: Sequence[CapturedLaunch]) -> Record:
    """
    Build the record of a whole report: its metrics of the catalogue, and its kernels.

    Args:
        path: The file of the report.

        launches: The measured launches, at least one.
    """
    estimates, _ = capture_values(launches, _CATALOGUE, None)
    facts = translate.captured_facts(launches[0])
    return Record(
        key=RecordKey(test_id=path),
        kind=Kind.CAPTURE,
        estimates=tuple(
            e for e in estimates if e.kernel is None or e.metric in _OF_KERNELS
        ),
        facts={Family.COUNTER.value: facts},
        analyses=kernel_analyses(launches),
    )


def capture_values(
    launches: Sequence[CapturedLaunch], metrics: Sequence[str], work: Work | None
) -> tuple[tuple[Estimate, ...], tuple[Unmeasured, ...]]:
    """
    Return metrics over all launches and per kernel, and the gaps.

    Args:
        launches: The measured launches, at least one. Together they are one call.

        metrics: Metrics of the catalogue, and counters by their own names.

        work: The work of a call as declared by the test, or None.
    """
    declared = None if work is None else work.bytes
    names = _standard(metrics)
    paired = [(launch, _completed(launch, names, declared)) for launch in launches]
    by_kernel: dict[str, list[tuple[CapturedLaunch, LaunchCounters]]] = {}
    for launch, counters in paired:
        by_kernel.setdefault(launch.kernel, []).append((launch, counters))
    whole = _whole(launches)
    estimates, gaps = [], []
    if whole is None:
        estimates.append(_estimate(COUNT, float(len(launches)), "count", None))
    elif COUNT in metrics:
        gaps.append(Unmeasured.of_metric(COUNT, whole))
    for metric in metrics:
        # A limit may request these. COUNT was handled above, and the analysis is not a
        # number.
        if metric in {COUNT, ANALYSED}:
            continue
        value, unit = _over(metric, paired)
        if isinstance(value, CounterGap):
            gaps.append(_gap(metric, _unusable(metric, value, launches), launches))
        else:
            estimates.append(_estimate(metric, value, unit, None))
        for name, kernel_launches in by_kernel.items():
            value, unit = _over(metric, kernel_launches)
            if not isinstance(value, CounterGap):
                estimates.append(_estimate(metric, value, unit, name))
    return tuple(estimates), tuple(gaps)


def _whole(launches: Iterable[CapturedLaunch]) -> Gap | None:
    """Return the gap of a report with launches other than single kernels, or None."""
    workloads = {launch.workload for launch in launches} - {KERNEL}
    if not workloads:
        return None
    kinds = " and ".join(sorted(workloads))
    return Gap(
        code=GapCode.UNSUPPORTED,
        reason=f"ncu counted the kernels of a {kinds} as one",
        remedy="profile kernel by kernel: ncu --replay-mode=kernel --graph-profiling=node",
    )


def with_metric(
    record: Record,
    metric: str,
    launches: Sequence[CapturedLaunch],
    *,
    names: Iterable[str],
    work: Work | None = None,
) -> Record:
    """Add a metric to the record of a report. See `capture_record` for the parameters."""
    if metric == ANALYSED:  # Already present.
        return record
    estimates, gaps = capture_values(launches, [metric], work)
    added = tuple(e for e in estimates if e.metric == metric != COUNT)
    return replace(
        record,
        estimates=(*record.estimates, *added),
        unmeasured=(*record.unmeasured, *_suggested(gaps, names)),
    )


def _suggested(
    gaps: Iterable[Unmeasured], names: Iterable[str]
) -> tuple[Unmeasured, ...]:
    return tuple(
        replace(gap, remedy=f"did you mean {', '.join(close)}? Else {gap.remedy}")
        if gap.code is GapCode.NOT_IN_REPORT
        and gap.metric not in METRICS
        and (close := close_names(gap.metric, names))
        else gap
        for gap in gaps
    )


# More suggestions would hide the right name.
_MOST_NAMES = 3


def close_names(name: str, names: Iterable[str]) -> list[str]:
    """Return completions of a truncated name, or else names with a similar spelling."""
    ordered = sorted(names)
    complete = [longer for longer in ordered if longer.startswith(f"{name}.")]
    return complete[:_MOST_NAMES] or difflib.get_close_matches(
        name, ordered, n=_MOST_NAMES
    )


def capture_side(capture: Capture) -> CaptureSide | None:
    """Return the measured launches by kernel, or None if no launch was measured."""
    kernels: dict[str, list[CapturedLaunch]] = {}
    for launch in capture.launches:
        if launch.measured:
            kernels.setdefault(launch.name, []).append(launch)
    launches = [launch for group in kernels.values() for launch in group]
    if not launches:
        return None
    clock_hz, clock_ratio = _clocks([_run(launch) for launch in launches])
    return CaptureSide(
        device=translate.captured_facts(launches[0]),
        clock_hz=clock_hz,
        clock_ratio=clock_ratio,
        kernels={name: _captured_kernel(group) for name, group in kernels.items()},
    )


def _captured_kernel(launches: Sequence[CapturedLaunch]) -> CapturedKernel:
    estimates, _ = capture_values(launches, COMPARED, None)
    runs = [_run(launch) for launch in launches]
    times = [time_s for run in runs if (time_s := run.get("duration_s", 0.0)) > 0]
    timed = {"time": (math.fsum(times), "s")} if len(times) == len(runs) else {}
    clock_hz, _ = _clocks(runs)
    grids = {int(run[_GRID]) for run in runs if _GRID in run}
    return CapturedKernel(
        launches_count=len(launches),
        values={
            **timed,
            COUNT: (float(len(launches)), "count"),  # Also for ranges and graphs.
            **{e.metric: (e.value, e.unit) for e in estimates if e.kernel is None},
        },
        clock_hz=clock_hz,
        grids=tuple(sorted(grids)),
    )


_GRID = "grid_blocks_count"


def _run(launch: CapturedLaunch) -> Mapping[str, float]:
    names = ("duration_s", "sm_clock_hz", "dram_clock_hz", _GRID)
    return standard_counters(launch, names).values


def _clocks(
    runs: Sequence[Mapping[str, float]],
) -> tuple[float | None, float | None]:
    """Return the SM clock [Hz] and its ratio to the DRAM clock, weighted by time."""
    clocks, ratios = [], []
    for run in runs:
        names = ("duration_s", "sm_clock_hz", "dram_clock_hz")
        time_s, sm_hz, dram_hz = (run.get(name, 0.0) for name in names)
        if min(time_s, sm_hz) > 0:
            clocks.append((time_s, sm_hz))
            ratios += [(time_s, sm_hz / dram_hz)] if dram_hz > 0 else []
    return _mean(clocks), _mean(ratios)


def _mean(timed: Sequence[tuple[float, float]]) -> float | None:
    """Return the mean of (weight, value) pairs, or None without pairs."""
    if not timed:
        return None
    whole = math.fsum(weight for weight, _ in timed)
    return math.fsum(weight * value for weight, value in timed) / whole


def analyses(capture: Capture) -> tuple[tuple[Analysis | None, ...], ...]:
    """Return the limiter of all launches by range, or None for a launch not measured."""
    return tuple(
        tuple(
            _analysed(launch) if launch.measured else None for launch in part.launches
        )
        for part in capture.ranges
    )


def kernel_analyses(
    launches: Sequence[CapturedLaunch], idle: IdleShare | None = None
) -> tuple[KernelAnalysis, ...]:
    """
    Return the limiter of every kernel, from the longest launch.

    The longest kernel comes first. Instances of one template share a base name, but are
    separate kernels. Kernels with launches that were not timed come last.

    Args:
        launches: The launches of one call.

        idle: The time of the call without a kernel, or None if unknown, as in a report.
    """
    by_name: dict[str, list[tuple[float | None, CapturedLaunch]]] = {}
    for launch in launches:
        if launch.measured:
            timed = standard_counters(launch, ("duration_s",)).values.get("duration_s")
            by_name.setdefault(launch.name, []).append((timed, launch))
    kernels = []
    for runs in by_name.values():
        times = [time_s for time_s, _ in runs if time_s is not None]
        _, longest = max(runs, key=lambda timed: timed[0] or 0.0)
        kernels.append(
            KernelAnalysis(
                kernel=longest.kernel,
                demangled=longest.name,
                launches_count=len(runs),
                total_s=math.fsum(times) if len(times) == len(runs) else None,
                analysis=_analysed(longest, idle),
            )
        )
    return tuple(sorted(kernels, key=lambda kernel: -(kernel.total_s or 0.0)))


def _analysed(launch: CapturedLaunch, idle: IdleShare | None = None) -> Analysis:
    return _analysis_of(launch, standard_counters(launch, _ANALYSIS).values, idle)


def _analysis_of(
    launch: CapturedLaunch,
    values: Mapping[str, float],
    idle: IdleShare | None = None,
) -> Analysis:
    """Return the analysis of a launch. Missing counters are listed by the names of the tool."""
    analysis = replace(
        analyse(values, idle=idle),
        roofline=counted_roofline(values),
        roofline_gap=roofline_gap(values),
    )
    if not isinstance(analysis.limiter, CounterGap):
        return analysis
    names = (spelled(name, launch) or name for name in analysis.limiter.missing)
    missing = tuple(
        name
        for name in names
        if launch.workload == KERNEL or not translate.describes_launch(name)
    )
    return replace(analysis, limiter=replace(analysis.limiter, missing=missing))


def _standard(metrics: Sequence[str]) -> tuple[str, ...]:
    needed = needed_counters(metrics)
    block = _BLOCK if _POSSIBLE in needed else ()
    return ("duration_s", *needed, *block)


def _completed(
    launch: CapturedLaunch, names: Sequence[str], declared: float | None
) -> LaunchCounters:
    counters = standard_counters(launch, names)
    values = dict(counters.values)
    if declared is not None:
        values[DECLARED_BYTES] = declared
    if _POSSIBLE in names and _POSSIBLE not in values:
        values |= _calculated(launch, values)
    return replace(counters, values=values)


def _calculated(
    launch: CapturedLaunch, values: Mapping[str, float]
) -> dict[str, float]:
    """Return the theoretical occupancy by the limits of the chip, or {} if unknown."""
    capability = capability_of(launch)
    limits = None if capability is None else chip_limits(capability)
    if limits is None or any(name not in values for name in _BLOCK):
        return {}
    registers, threads, static, dynamic = (int(values[name]) for name in _BLOCK)
    occupancy = theoretical_occupancy(
        registers_count=registers,
        threads_per_block=threads,
        shared_bytes=static + dynamic,
        limits=limits,
    )
    return {_POSSIBLE: occupancy.fraction}


def _over(metric: str, launches: _Launches) -> tuple[float | CounterGap, str]:
    entry = METRICS.get(metric)
    if entry is None:
        return _counter(metric, [launch for launch, _ in launches])
    if metric not in FORMULAS:
        gap = not_given(metric, Kind.CAPTURE)
        counter = translate.duration_counter(launches[0][0])
        named = f", as {counter}" if metric == "time" else ""
        remedy = f"{gap.remedy}, or ask for a counter by its own name{named}"
        return CounterGap(code=gap.code, reason=gap.reason, remedy=remedy), ""
    value = over_launches(metric, [counters for _, counters in launches])
    return value, entry.unit or ""


def _counter(
    name: str, launches: Sequence[CapturedLaunch]
) -> tuple[float | CounterGap, str]:
    captured = translate.captured_values(name, launches)
    count = len(launches) - captured.absent_count
    if captured.absent_count:
        some = f"{count} of {len(launches)} launches in the report have it"
        absent = CounterGap(
            code=GapCode.NOT_COLLECTED if count else GapCode.NOT_IN_REPORT,
            reason=some if count else "no launch in the report has it",
            remedy=f"collect it: ncu --metrics {name}",
        )
        return absent, ""
    value = aggregate(name, captured.values, weights=captured.weights)
    if value is not None:
        return value, captured.unit
    rate = CounterGap(
        code=GapCode.INCOMPLETE,
        reason=f"a rate of {count} launches, whose durations are not known",
        remedy="choose one launch with kernel=",
    )
    return rate, ""


def _unusable(
    metric: str, absent: CounterGap, launches: Sequence[CapturedLaunch]
) -> CounterGap:
    """Return the gap of a counter that the report has nevertheless, or the given gap."""
    if absent.code not in {GapCode.NOT_COLLECTED, GapCode.NOT_IN_REPORT}:
        return absent
    names = needed_counters([metric]) or (metric,)
    gaps = (translate.unusable(launch, names) for launch in launches)
    gap = next((gap for gap in gaps if gap is not None), None)
    if gap is None:
        return absent
    return CounterGap(code=gap.code, reason=gap.reason, remedy=gap.remedy)


def _gap(
    metric: str, unknown: CounterGap, launches: Sequence[CapturedLaunch]
) -> Unmeasured:
    missing = [name for name in unknown.missing if name != DECLARED_BYTES]
    if unknown.missing and not missing:
        return Unmeasured(
            metric=metric,
            code=GapCode.NOT_DECLARED,
            reason="the test declares no bytes",
            remedy="pass work=Work(bytes=…) to the marker",
        )
    spellings = [spelled(name, launches[0]) for name in dict.fromkeys(missing)]
    collect = [counter for counter in spellings if counter is not None]
    if len(collect) < len(spellings):
        collect = []  # The chip lacks a counter, so that the others have no use.
    whole = _whole(launches)
    if whole is not None and any(map(translate.describes_launch, collect)):
        return Unmeasured.of_metric(metric, whole)
    if missing and not collect:
        return Unmeasured(
            metric=metric,
            code=GapCode.UNSUPPORTED,
            reason="this chip has no counter of it",
            remedy="capture the launch on another chip",
        )
    remedy = unknown.remedy or f"collect it: ncu --metrics {','.join(collect)}"
    return Unmeasured.of_metric(metric, replace(unknown, remedy=remedy))


def _estimate(metric: str, value: float, unit: str, kernel: str | None) -> Estimate:
    return Estimate(
        metric=metric, value=value, unit=unit, source=Source.NCU_REPORT, kernel=kernel
    )


_RATED = "device__attribute_clock_rate"  # Maximum of the SMs [kHz].
# The rest together is rarely a tenth.
_SHOWN_STALLS = 3
_SIDES = ("x", "y", "z")
_CATALOGUE = tuple(name for name in FORMULAS if name in METRICS)
# These metrics are shown for each kernel of a whole report. More columns are not read.
_OF_KERNELS = frozenset({"registers", "occupancy.achieved", "dram.bytes"})
_DETAILED = tuple(dict.fromkeys((*ANALYSIS_COUNTERS, *needed_counters(FORMULAS))))


def details(
    launch: CapturedLaunch, advised: LaunchAdvice | None = None
) -> LaunchDetails:
    """
    Return the details of a measured launch from a report.

    Args:
        launch: The launch with all its counters.

        advised: The advice of ncu's rules and samples, or None if not requested.
    """
    values = standard_counters(launch, _DETAILED).values
    completed = dict(values)
    if _POSSIBLE not in completed:
        completed |= _calculated(launch, completed)
    rated_khz = translate.number_of(launch, _RATED)
    derived = ((name, value_of(name, completed)) for name in _CATALOGUE)
    shares = stall_shares(values) or {}
    stalls = sorted(costly_stalls(shares).items(), key=lambda stall: -stall[1])
    return LaunchDetails(
        analysis=_analysis_of(launch, values),
        values=values,
        derived={name: number for name, number in derived if number is not None},
        grid=_extent(launch, "grid"),
        block=_extent(launch, "block"),
        rated_clock_hz=None if rated_khz is None else 1e3 * rated_khz,
        occupancy=launch_occupancy(completed),
        whole=None if launch.workload == KERNEL else launch.workload,
        rooflines=counted_rooflines(values),
        stalls=tuple(
            Evidence(name=name, value=share) for name, share in stalls[:_SHOWN_STALLS]
        ),
        advice=LaunchAdvice(rules=()) if advised is None else _ranked(advised),
    )


def _extent(launch: CapturedLaunch, what: str) -> tuple[int, ...] | None:
    """
    Return the dimensions of a grid or block, or None if the report lacks any.

    A range or graph has none.
    """
    if launch.workload != KERNEL:
        return None
    sides = [translate.number_of(launch, f"launch__{what}_dim_{s}") for s in _SIDES]
    numbers = [int(side) for side in sides if side is not None]
    return tuple(numbers) if len(numbers) == len(_SIDES) else None


# Launches with advice. Limits of three launches usually fail for the same reason.
_MOST_LAUNCHES = 2
_ADVISING = frozenset({"optimization", "warning", "error"})


def advised_launches(
    path: str,
    launches: Sequence[PlacedLaunch],
    failed: Sequence[FailedComparison],
    *,
    runner: Runner,
) -> list[AdvisedLaunch]:
    """
    Return the launches behind failed comparisons with advice, or else the longest launch.

    Args:
        path: The report.

        launches: The launches of the record, at least one, with the counters of
            `first_counters`.

        failed: The failed comparisons.

        runner: Starts the processes that read the report.

    Raises:
        CollectError: The report can no longer be read.
    """
    from pytest_gpuperf.collect.ncu.report import Report

    report = Report(path=path, runner=runner)
    culprits: dict[tuple[int, int], tuple[PlacedLaunch, list[Evidence]]] = {}
    for comparison in dict.fromkeys(failed):
        worst = _worst(comparison, launches)
        placed = _longest(launches) if worst is None else worst[0]
        place = placed.range_index, placed.index
        _, values = culprits.setdefault(place, (placed, []))
        if worst is not None:
            values.append(worst[1])
    if not culprits:
        culprits[0, 0] = (_longest(launches), [])
    return [
        AdvisedLaunch(
            kernel=placed.kernel,
            index=placed.index,
            failed=tuple(values),
            analysis=_analysed(placed),
            advice=_ranked(report.advice(placed.index, placed.range_index)),
        )
        for placed, values in list(culprits.values())[:_MOST_LAUNCHES]
    ]


def _longest(launches: Sequence[PlacedLaunch]) -> PlacedLaunch:
    """Return the longest launch, or the first if no time is known."""

    def duration(placed: PlacedLaunch) -> float:
        number = translate.number_of(placed, translate.duration_counter(placed))
        return -1.0 if number is None else number

    return max(launches, key=duration)


def _worst(
    comparison: FailedComparison, launches: Sequence[PlacedLaunch]
) -> tuple[PlacedLaunch, Evidence] | None:
    """Return the launch with the worst value and that value, or None without a value."""
    metric, operator, pattern = comparison
    names = _standard([metric])
    values = []
    for placed in launches:
        if pattern is None or LaunchFilter(kernels=pattern).chosen([placed]):
            value, unit = _over(metric, [(placed, _completed(placed, names, None))])
            if not isinstance(value, CounterGap):
                values.append((value, unit, placed))
    if not values:
        return None
    pick = min if operator.startswith(">") else max
    value, unit, placed = pick(values, key=lambda worst: worst[0])
    return placed, Evidence(name=metric, value=value, unit=unit)


def _ranked(advised: LaunchAdvice) -> LaunchAdvice:
    rules = [rule for rule in advised.rules if rule.level in _ADVISING]
    # ncu estimates gains only since 2023. In later versions a rule without a gain has
    # none.
    rules = [rule for rule in rules if rule.speedup_fraction] or rules
    rules.sort(key=lambda rule: -(rule.speedup_fraction or 0.0))
    return replace(advised, rules=tuple(rules))
