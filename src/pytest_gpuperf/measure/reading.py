"""Reading the inputs of tests: binaries, reports and numbers, or a recording of a whole run.

Nothing here is timed. Modules that only some tests need are imported by the functions that
use them.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_gpuperf.collect.base import calls_the_test
from pytest_gpuperf.collect.chip_limits import target_capability, target_limits
from pytest_gpuperf.errors import CollectError, CollectorUnavailableError, GpuPerfError
from pytest_gpuperf.model.activity import (
    LOOP,
    FailedKernel,
    InstructionMix,
    KernelResources,
)
from pytest_gpuperf.model.frozen import Frozen, replace
from pytest_gpuperf.model.gap import Gap, GapCode
from pytest_gpuperf.model.kernel import fits_kernel
from pytest_gpuperf.model.metric import is_compiled
from pytest_gpuperf.model.record import Kind, Note, Record, RecordKey, Void, VoidCode
from pytest_gpuperf.model.sample import Estimate, Source, Unmeasured

if TYPE_CHECKING:
    from pytest_gpuperf.collect.base import TimedCall
    from pytest_gpuperf.collect.binary.read import Cubin
    from pytest_gpuperf.collect.ncu.launches import PlacedLaunch, ReadReport
    from pytest_gpuperf.collect.ncu.nvtx import LaunchFilter
    from pytest_gpuperf.collect.runner import Runner
    from pytest_gpuperf.collect.step_profile import StepRecorder
    from pytest_gpuperf.config import Plan
    from pytest_gpuperf.measure.assemble import EndLoop, Maker
    from pytest_gpuperf.measure.site import Machine, Site
    from pytest_gpuperf.model.counters import AdvisedLaunch
    from pytest_gpuperf.model.scorecard import Hardware
    from pytest_gpuperf.model.verdict import FailedComparison
    from pytest_gpuperf.model.work import Work

# Returns the record with one more metric.
LookUp = Callable[[str], Record]
# Returns an explanation of a record, if some comparisons of its values failed.
Advise = Callable[
    [Sequence["FailedComparison"]], Sequence["AdvisedLaunch | FailedKernel"]
]

DISABLED = Void(
    code=VoidCode.DISABLED, reason="measuring is switched off (--gpuperf-disable)"
)
_ABSENT = Void(
    code=VoidCode.NOT_RECORDED, reason="the recording has no such measurement"
)
_STANDARD = ("registers", "waves", "occupancy.theoretical", "occupancy.achieved")


# The largest number of reports kept. A suite reads one after another.
_MOST_REPORTS = 16
# Values in one report, 32 MB. Of a larger report only the requested counters are read.
_MOST_VALUES = 1_000_000
# Of the cubins whose code is compared. nvdisasm takes seconds for more.
_MOST_CODE_BYTES = 1 << 20


class _Kept(NamedTuple):
    """A report as read so far. `counters` is None if all of them were read."""

    report: ReadReport
    counters: frozenset[str] | None


class _Reports:
    """
    The reports read by this process, most of them at most twice.

    The first reading includes all counters needed by a metric of the catalogue or by the
    limiter. If a counter requested by its own name is missing, the report is read again
    with all counters. A very large report is read again with the requested counters only.

    Args:
        runner: Starts the reading processes.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._kept: dict[tuple[int, ...], _Kept] = {}

    def read(self, path: str, metrics: Sequence[str]) -> ReadReport:
        """Return a report with everything available for some metrics."""
        from pytest_gpuperf.measure.captured import first_counters, report_counters

        # Differs after a file was rewritten.
        status: tuple[int, ...] = ()
        with contextlib.suppress(OSError, ValueError):  # The reader reports the reason.
            state = os.stat(path)  # noqa: PTH116 - a path of the user's, as it is
            status = state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns
        earlier = self._kept.get(status)
        counters = report_counters(metrics)
        if earlier is None:
            return self._keep(path, status, (*first_counters(), *counters))
        report, present = earlier.report, earlier.report.names
        done = present if earlier.counters is None else earlier.counters
        if all(name in done or name not in present for name in counters):
            return report
        if len(report.launches) * len(present) <= _MOST_VALUES:
            return self._keep(path, status, None)
        return self._keep(path, status, (*done, *counters))

    def _keep(
        self, path: str, status: tuple[int, ...], counters: Sequence[str] | None
    ) -> ReadReport:
        """Read a report and keep it, dropping the oldest report if there are too many."""
        from pytest_gpuperf.collect.ncu.launches import read_report

        names = None if counters is None else tuple(dict.fromkeys(counters))
        report = read_report(path, names, runner=self._runner)
        self._kept.pop(status, None)
        if len(self._kept) >= _MOST_REPORTS:
            del self._kept[next(iter(self._kept))]
        kept_names = None if names is None else frozenset(names)
        self._kept[status] = _Kept(report, kept_names)
        return report


def _code_digest(cubins: Sequence[Cubin], *, runner: Runner) -> str | None:
    """Return the digest of the code of all kernels, or None if it cannot be known."""
    from pytest_gpuperf.collect.binary.identity import code_identities

    if sum(len(cubin.content) for cubin in cubins) > _MOST_CODE_BYTES:
        return None
    try:
        found = [
            identity
            for cubin in cubins
            for identity in code_identities(cubin.content, runner=runner).values()
        ]
    except GpuPerfError:
        # Another tool has read the resources. They are what the test asks for.
        return None
    from pytest_gpuperf.model.identity import CodeIdentity

    return str(CodeIdentity.of_kernels(found)) if found else None


class FileReader:
    """
    Reads files and numbers for one process of a run.

    Args:
        site: Configuration, clock and devices of the process.

        machine: The devices that the process computes with.
    """

    def __init__(self, site: Site, machine: Machine) -> None:
        self._runner = site.runner
        self._machine = machine
        self._reports = _Reports(site.runner)

    def binary(
        self,
        key: RecordKey,
        source: object,
        *,
        plan: Plan,
        **facts: Any,  # noqa: ANN401 - passed on to read_cubins, which types each
    ) -> tuple[Record, LookUp | None, Advise]:
        """
        Read the kernels of a compiled binary.

        Returns:
            The record, a function that returns the record with one more metric, and a
            function that names the worst kernels of failed comparisons.
        """
        from pytest_gpuperf.collect.binary.read import read_cubins, read_mixes

        contents = read_cubins(source, runner=self._runner, **facts)
        cubins = contents.cubins
        notes = tuple(
            Note(code="unread-chips", text=text, doubt=True) for text in contents.unread
        )
        kernels = [kernel for cubin in cubins for kernel in cubin.kernels]
        log_gaps = [gap for cubin in cubins for gap in cubin.log_gaps]
        mixes = functools.cache(lambda: read_mixes(cubins, runner=self._runner))
        digest = functools.cache(lambda: _code_digest(cubins, runner=self._runner))
        in_code = [metric for metric in plan.judged if is_in_code(metric)]
        maker = self._machine.maker()
        if log_gaps:
            kernels, log_gaps = _checked(kernels, log_gaps, code_of([_SPILLS], mixes))

        def code() -> Code:
            return replace(code_of(in_code, mixes), log_gaps=tuple(log_gaps))

        def with_one_more(metric: str | None = None) -> Record:
            if metric is not None and is_in_code(metric) and metric not in in_code:
                in_code.append(metric)
            record = binary_record(maker, key, kernels, code())
            return replace(record, notes=notes, code_digest=digest())

        def advise(failed: Sequence[FailedComparison]) -> list[FailedKernel]:
            return failed_kernels(kernels, code(), failed)

        return with_one_more(), with_one_more, advise

    def capture(
        self, key: RecordKey, path: str, *, launch_filter: LaunchFilter, plan: Plan
    ) -> tuple[Record, LookUp | None, Advise]:
        """
        Read a captured report.

        Returns:
            The record, a function that returns the record with one more metric, and a
            function that returns the launches behind failed comparisons with advice.
        """
        from pytest_gpuperf.measure.captured import (
            advised_launches,
            capture_record,
            with_metric,
        )

        metrics = list(dict.fromkeys((*_STANDARD, *plan.counters, *plan.judged)))

        def read() -> tuple[list[PlacedLaunch], frozenset[str]]:
            report = self._reports.read(path, metrics)
            return _chosen(path, report, launch_filter), report.names

        launches, names = read()
        maker = self._machine.maker()
        record = capture_record(
            maker, key, launches, metrics, names=names, work=plan.work
        )

        def with_one_more(metric: str) -> Record:
            nonlocal record
            if metric not in metrics:
                metrics.append(metric)
                launches, names = read()
                record = with_metric(
                    record, metric, launches, names=names, work=plan.work
                )
            return record

        def advise(failed: Sequence[FailedComparison]) -> list[AdvisedLaunch]:
            return advised_launches(path, read()[0], failed, runner=self._runner)

        return record, with_one_more, advise


class Replay:
    """
    Returns the records of a recording, or void records if measuring is switched off.

    Functions under test run once, unmeasured, for their side effects.

    Args:
        site: Configuration, clock and devices of the process.

        machine: The devices that the process computes with.

        void: Why nothing is measured, or None for the records of a recording.
    """

    # Nothing runs that other processes must wait for.
    turns = None
    references = imported = None  # Nothing is timed.

    def __init__(
        self,
        site: Site,
        machine: Machine,
        *,
        void: Void | None = None,
    ) -> None:
        self._site = site
        self._machine = machine
        self._void = void

    def lacking(self, requires: Sequence[str]) -> Unmeasured | None:
        """Return the gap of an unmet requirement of a test, or None."""
        return self._site.lacking(requires)

    def ensure(self) -> None:
        """Do nothing, because nothing is measured."""

    def rest(self) -> None:
        """Do nothing, because nothing was opened."""

    def close(self) -> None:
        """Do nothing, because nothing was opened."""

    def timed(
        self, key: RecordKey, request: TimedCall, **_: object
    ) -> tuple[Record, Callable[[], object]]:
        """
        Return the record of a function, and a callable for the result.

        The function is called when the result is first read.
        """

        @functools.cache
        @calls_the_test
        def result() -> object:
            return request.fn(*request.args, **request.kwargs)

        return self._record(key, Kind.MEASURE), result

    @contextlib.contextmanager
    def ranged(self, key: RecordKey, **_: object) -> Iterator[Callable[[], Record]]:
        """
        Run a block.

        Yields:
            A callable that returns the record.
        """
        record = self._record(key, Kind.RANGE)
        yield lambda: record

    def stepped(
        self,
        key: RecordKey,
        recorder: StepRecorder,
        *,
        plan: Plan,
        work: Work | None = None,
        hardware: Hardware | None = None,
    ) -> EndLoop:
        """
        Start a loop.

        Returns:
            A callable that ends the loop and returns the record and the hardware.
        """
        declared = work or plan.work
        record = self._record(key, Kind.STEPS)

        def ended(failure: BaseException | None) -> tuple[Record, Hardware | None]:
            loop = recorder.end(failure)
            _, ran_on = self._machine.loop_roofs(loop, declared, hardware)
            return record, ran_on

        recorder.begin()
        return ended

    def compared(
        self, key: RecordKey, _requests: tuple[TimedCall, TimedCall], **_: object
    ) -> tuple[Record, Record, Record]:
        """Return the records of a comparison and of both sides."""
        a, b = (self._record(side, Kind.MEASURE) for side in key.sides)
        return self._record(key, Kind.COMPARE), a, b

    def binary(
        self,
        key: RecordKey,
        source: object,  # noqa: ARG002 - as a Reader has it
        **_: object,
    ) -> tuple[Record, LookUp | None, Advise]:
        """Return the recorded record of a binary, without further metrics or advice."""
        return self._record(key, Kind.BINARY), None, lambda _: ()

    def capture(
        self, key: RecordKey, _path: str, **_: object
    ) -> tuple[Record, LookUp | None, Advise]:
        """Return the recorded record of a report, without further metrics or advice."""
        return self._record(key, Kind.CAPTURE), None, lambda _: ()

    def number(
        self, key: RecordKey, values: Sequence[float], *, unit: str, better: str
    ) -> Record:
        """Return the record of a number, made from the given values if none was recorded."""
        record = self._record(key, Kind.RECORD)
        if record.void is None:
            return record
        return self._machine.maker().number(key, values, unit=unit, better=better)

    def _record(self, key: RecordKey, kind: Kind) -> Record:
        recording = self._site.recording
        if self._void is not None or recording is None:
            return Record(key=key, kind=kind, estimates=(), void=self._void or DISABLED)
        record = recording.main(key)
        if record is not None:
            return record
        return Record(key=key, kind=kind, estimates=(), void=_ABSENT)


def _chosen(
    path: str, report: ReadReport, launch_filter: LaunchFilter
) -> list[PlacedLaunch]:
    """
    Return the chosen launches.

    Raises:
        CollectorUnavailableError: One of them could not be profiled.
    """
    chosen = report.chosen(launch_filter, path)
    failed = [placed.index for placed in chosen if not placed.measured]
    if failed:
        message = f"{path}: profiling launch {failed[0]} failed"
        last = max(placed.index for placed in chosen)
        # ncu ends with the launch that failed.
        rest = f"slice({last})" if failed == [last] and last else "[…]"
        raise CollectorUnavailableError(
            message, remedy=f"profile again, or leave it out: launches={rest}"
        )
    return chosen


_SPILLS = "spills_bytes"
_PREFIX = "instructions."
_IN_LOOP = f"{_PREFIX}{LOOP}"
# The class of all instructions.
_ALL = "compiled"
_LOG_REMEDY = "pass ptxas_log=, what `ptxas -v` printed or a file with it"
_UNREAD = Gap(
    code=GapCode.NOT_ASKED, reason="its code was not read", remedy="ask for it"
)


class Code(Frozen, frozen=True, kw_only=True):
    """
    The machine code of the kernels, as read.

    Attributes:
        metrics: The metrics to take from the code.

        mixes: The instruction mix of each kernel, in the order of the kernels, or None if
            not read.

        gap: The reason why the code could not be read, or None.

        log_gaps: Why the compiler's log does not tell the spills of each kernel, in the
            order of the kernels, None where it does. Empty without a log.
    """

    metrics: tuple[str, ...] = ()
    mixes: tuple[InstructionMix, ...] | None = None
    gap: Gap | None = None
    log_gaps: tuple[Gap | None, ...] = ()

    def mix(self, index: int) -> InstructionMix | None:
        """Return the instruction mix of a kernel, or None if the code was not read."""
        return None if self.mixes is None else self.mixes[index]


def is_in_code(metric: str) -> bool:
    """Return True if a metric needs the machine code."""
    return is_compiled(metric) or metric == _SPILLS


def code_of(
    metrics: Sequence[str], read: Callable[[], tuple[InstructionMix, ...]]
) -> Code:
    """
    Return the machine code, or the reason why it could not be read.

    Resources are known in both cases.

    Args:
        metrics: The metrics to take from the code. Without metrics, nothing is read.

        read: Reads the code.
    """
    if not metrics:
        return Code()
    try:
        return Code(metrics=tuple(metrics), mixes=read())
    except CollectError as error:
        return Code(metrics=tuple(metrics), gap=Gap.of(error))


def _checked(
    kernels: Sequence[KernelResources], log_gaps: Sequence[Gap | None], code: Code
) -> tuple[list[KernelResources], list[Gap | None]]:
    """Return the kernels and the gaps of a log, without spills that the code contradicts."""
    from pytest_gpuperf.collect.binary.compiler_log import unlike_code

    checked, gaps = list(kernels), list(log_gaps)
    for index, kernel in enumerate(kernels):
        mix = code.mix(index)
        gap = None if mix is None else unlike_code(kernel, mix)
        if gap is not None:
            gaps[index] = gap
            checked[index] = replace(kernel, spills_bytes=None, barriers_count=None)
    return checked, gaps


def binary_record(
    maker: Maker,
    key: RecordKey,
    kernels: Sequence[KernelResources],
    code: Code | None = None,
) -> Record:
    """
    Build the record of compiled kernels: the values of each, and the largest.

    Args:
        maker: The maker of records of this process.

        key: The key of the record.

        kernels: All kernels of a binary.

        code: The machine code as read, or None if it was not read.
    """
    estimates, gaps = compiled_values(kernels, code or Code())
    chips = set()
    for kernel in kernels:
        capability = target_capability(kernel.target)
        if capability is None:
            chips.add(kernel.target)
        else:
            chips.add(f"{capability[0]}.{capability[1]}")
    return maker.record(
        key,
        Kind.BINARY,
        estimates,
        unmeasured=gaps,
        facts={"compute_capability": ", ".join(sorted(chips))},
        kernels=tuple(kernels),
    )


def compiled_values(
    kernels: Sequence[KernelResources], code: Code
) -> tuple[tuple[Estimate, ...], tuple[Unmeasured, ...]]:
    """
    Return the values of each kernel, the largest of all, and the gaps.

    If a value of one kernel is unknown, so is the value of the whole.

    Args:
        kernels: All kernels of a binary.

        code: The machine code as read.
    """
    single: list[Estimate] = []
    gaps: dict[str, Unmeasured] = {}
    for index, kernel in enumerate(kernels):
        mix = code.mix(index)
        for metric, (value, unit) in _kernel_metrics(kernel, mix, code).items():
            if value is not None:
                single.append(_resource(metric, value, unit, kernel.name))
            elif metric not in gaps:
                log_gap = code.log_gaps[index] if code.log_gaps else None
                if metric == _SPILLS and log_gap is not None:
                    gap = log_gap
                elif metric in code.metrics:
                    gap = _gap_in_code(metric, kernel, mix, code)
                else:
                    gap = _gap_of_resource(metric, kernel)
                gaps[metric] = Unmeasured.of_metric(metric, gap)
    # The value of the whole is that of the worst kernel.
    by_metric: dict[str, list[Estimate]] = {}
    for estimate in single:
        by_metric.setdefault(estimate.metric, []).append(estimate)
    whole = []
    for metric, values in by_metric.items():
        if metric not in gaps:
            pick = min if metric.startswith("occupancy") else max
            worst = pick(estimate.value for estimate in values)
            whole.append(_resource(metric, worst, values[0].unit, None))
    return (*whole, *single), tuple(gaps.values())


def _kernel_metrics(
    kernel: KernelResources, mix: InstructionMix | None, code: Code
) -> dict[str, tuple[float | None, str]]:
    from pytest_gpuperf.collect.translate.counters import kernel_values

    metrics = kernel_values(kernel)
    limits = target_limits(kernel.target, kernel.warp_size_count)
    from pytest_gpuperf.compute.derive import kernel_occupancy

    occupancy = kernel_occupancy(kernel, limits) if limits is not None else None
    fraction = None if occupancy is None else occupancy.fraction
    metrics["occupancy.theoretical"] = (fraction, "fraction")
    if mix is not None and not code.log_gaps and _SPILLS in code.metrics:
        metrics[_SPILLS] = (mix.spills_bytes, "bytes")
    counts = None if mix is None else mix.counts
    for metric in filter(is_compiled, code.metrics):
        value = None if counts is None else counts[metric.removeprefix(_PREFIX)]
        metrics[metric] = (value, "count")
    return metrics


def failed_kernels(
    kernels: Sequence[KernelResources], code: Code, failed: Sequence[FailedComparison]
) -> list[FailedKernel]:
    """
    Return the kernel with the worst value for every failed comparison.

    Args:
        kernels: All kernels of a binary.

        code: The machine code as read.

        failed: The failed comparisons.
    """
    culprits = []
    for metric, operator, pattern in dict.fromkeys(failed):
        values = []
        for index, kernel in enumerate(kernels):
            mix = code.mix(index)
            value, unit = _kernel_metrics(kernel, mix, code).get(metric, (None, ""))
            is_meant = pattern is None or fits_kernel(
                pattern, kernel.name, kernel.demangled
            )
            if value is not None and is_meant:
                values.append((value, unit, kernel, mix))
        if values:
            pick = min if operator.startswith(">") else max
            value, unit, kernel, mix = pick(values, key=lambda worst: worst[0])
            classes = None
            if is_compiled(metric) and mix is not None and mix.counts is not None:
                found = mix.classes(in_loops=metric.startswith(_IN_LOOP)).items()
                classes = {name: n for name, n in found if not name.endswith(_ALL)}
            culprits.append(
                FailedKernel(
                    kernel=kernel,
                    metric=metric,
                    value=value,
                    unit=unit,
                    classes=classes,
                )
            )
    return culprits


def _resource(metric: str, value: float, unit: str, kernel: str | None) -> Estimate:
    return Estimate(
        metric=metric,
        value=float(value),
        unit=unit,
        source=Source.BINARY,
        kernel=kernel,
    )


def _gap_in_code(
    metric: str, kernel: KernelResources, mix: InstructionMix | None, code: Code
) -> Gap:
    name = kernel.demangled or kernel.name
    if mix is None:
        gap = code.gap or _UNREAD
    elif mix.doubt is not None:
        gap = Gap(
            code=GapCode.NOT_STATED,
            reason=f"not all code of {name} is known: {mix.doubt}",
            remedy=mix.remedy or "limit the other kernels by their names",
        )
    else:
        # Of known code, only the number of spills can be unknown.
        return Gap(
            code=GapCode.NOT_STATED,
            reason=f"local memory of {name} holds more than spilled registers",
            remedy=_LOG_REMEDY,
        )
    if metric == _SPILLS:
        return replace(gap, remedy=f"{gap.remedy}; or {_LOG_REMEDY}")
    return gap


def _gap_of_resource(metric: str, kernel: KernelResources) -> Gap:
    code = GapCode.NOT_STATED
    name = kernel.demangled or kernel.name
    if metric == "stack_bytes":
        reason = (
            f"the stack of {name} has no bound: it calls itself, or functions through "
            "pointers"
        )
        remedy = "limit the other kernels by their names"
    elif metric == _SPILLS:
        reason = "a binary does not say what was spilled"
        remedy = f"{_LOG_REMEDY}; stack_bytes is known"
    elif kernel.threads_per_block is None:
        reason = "a binary does not say how many threads a block has"
        remedy = "pass block=, the threads of a block"
    else:
        code = GapCode.UNSUPPORTED
        reason = f"what a multiprocessor of {kernel.target} holds is not known"
        remedy = "compile it for a known chip, as sm_90"
    return Gap(code=code, reason=reason, remedy=remedy)
