"""Reference workloads: work that no change of the tested code can move.

They are timed before and after tests, to separate machine drift from changes of the code.
One of them reads memory beyond a core's own caches. It follows neighbours on the machine far
more than tests do, so it is no control and only shows that such neighbours came or went.
Disk workloads are timed only after tests that wait for a disk, and kernels on a GPU only once
a test was timed by it. They need CUDA.
"""

from __future__ import annotations

import contextlib
import itertools
import mmap
import sys
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from statistics import median
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pytest_gpuperf.collect.base import GPU_WORKLOADS
from pytest_gpuperf.collect.clock import NS_PER_S, Clock, CoreLoop
from pytest_gpuperf.collect.disk import DISK_WORKLOADS
from pytest_gpuperf.collect.environment import known_facts, soft_facts
from pytest_gpuperf.collect.timing.readings import (
    HOST_PRECISION,
    LEAST_UNINTERRUPTED,
    RUNNING_FRACTION,
)
from pytest_gpuperf.compute.machine import core_speed
from pytest_gpuperf.compute.stats import half_width_fraction
from pytest_gpuperf.errors import CollectError
from pytest_gpuperf.measure.assemble import Maker, median_estimate
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.gap import Gap, GapCode
from pytest_gpuperf.model.metric import Kind
from pytest_gpuperf.model.record import (
    REFERENCES,
    BoundClass,
    Note,
    Record,
    RecordKey,
    Role,
)
from pytest_gpuperf.model.sample import ReferenceSamples, Series, Source, Unmeasured

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuperf.collect.disk import Disk
    from pytest_gpuperf.collect.gpu_workloads import WorkingGpu
    from pytest_gpuperf.measure.turns import TurnClient
    from pytest_gpuperf.model.environment import Device, Environment, Host

# Increase the number if a workload or its timing changes.
METHOD = "references/1"
# Name of the turn for reference workloads, next to those of the tests.
TURN_NAME = "gpuperf.references"
# Samples of each workload, before and after a test.
_LEAST_SAMPLES = 4
# A device is not interrupted, and the first time is that of a clock that rises.
_GPU_SAMPLES = 5
# Calls of a new workload. The first copies of 4 MiB take three times as long.
_WARMUP_CALLS = 3
# Samples considered by the stop rule. An equally narrow interval of more samples would
# say nothing about the present.
_RECENT_SAMPLES = 100
# The cost per process is the larger of the two (docs/judging.md section 5). The workers of
# xdist share the second, because they show the same machine, and each takes a whole set.
_BUDGET_FRACTION, _BUDGET_NS, _LEAST_NS = 0.01, 100_000_000, 25_000_000
# Half of the budget may be spent at once, the rest as the tests go on.
_FIRST_SHARE = 0.5
# The rest of the budget is spent gradually: a sixteenth with every host set, and half
# with every disk set, of which there are few.
_SET_FRACTION, _DISK_SET_FRACTION = 1 / 16, 0.5
# Older samples do not show the machine before a test.
_STALE_NS = 100_000_000
_LOOP_COUNT = 10_000  # About 0.4 ms.
# 64 KiB of doubles. Three arrays fit into every L2.
_ELEMENTS = 8192
_NUMPY_COUNT = 64  # About 0.2 ms.
_ARRAY_COUNT = 16  # About 0.2 ms.
# The copy of one half to the other takes about 0.3 ms. The reads of 64,000 cache lines,
# more than the L2 of a core holds, take 0.6 ms.
_MEMORY_BYTES, _READ_OFFSETS, _LINE_BYTES = 8 << 20, 16, 64
# Half a page and a line, so that no prefetcher follows.
_READ_STRIDE_BYTES = 2112
_ONES = b"\x01" * (1 << 16)  # What the memory is filled with.
READS = "reads"  # The name of that workload.

Workload = Callable[[], object]


class _Budget:
    """
    The time that a set of workloads may take in a process.

    Args:
        least_ns: Allowed time however short the tests are [ns].

    Attributes:
        spent_ns: Time spent so far [ns].

        measured_ns: Total duration of the tests timed together with the workloads [ns].
    """

    def __init__(self, least_ns: float) -> None:
        self._least_ns = least_ns
        self.spent_ns = self.measured_ns = 0
        self._set_ns = 0  # Duration of the last set.

    @property
    def left_ns(self) -> float:
        """The rest of the budget now [ns]."""
        whole_ns = max(_BUDGET_FRACTION * self.measured_ns, self._least_ns)
        return whole_ns - self.spent_ns

    def allows_a_set(self) -> bool:
        """Return True if the next set fits into the budget without interruptions."""
        share_ns = _BUDGET_FRACTION * self.measured_ns
        first_ns = _FIRST_SHARE * self._least_ns
        most_ns = max(share_ns, min(first_ns + share_ns, self._least_ns))
        return self.spent_ns + self._set_ns <= most_ns

    def spend(self, set_ns: int, own_ns: int) -> None:
        """
        Record the cost of a set.

        Args:
            set_ns: Duration of the set [ns].

            own_ns: Duration of the next set if nothing interrupts it [ns].
        """
        self._set_ns = own_ns
        self.spent_ns += set_ns


class References:
    """
    The reference workloads of one process.

    Args:
        clock: The clock.

        modules: The modules loaded by the process.

        turn_client: Connection to the turn server, or None to measure without turns.

        disk: The file that disk workloads write to, or None for no disk workloads.

        gpu: The GPU that kernels run on, or None for no kernels.

        workers_count: Number of processes that share the tests of the run.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        modules: Mapping[str, Any] | None = None,
        turn_client: TurnClient | None = None,
        disk: Disk | None = None,
        gpu: WorkingGpu | None = None,
        workers_count: int = 1,
    ) -> None:
        self._clock = clock
        self._core_loop = CoreLoop(clock)
        self._turn_client = turn_client
        self._modules = sys.modules if modules is None else modules
        self._workloads: dict[str, Workload | Gap] = {}
        self._disk = disk
        self._disk_gap: Gap | None = None
        self._disk_is_used = False  # By the current test.
        self._samples: list[ReferenceSamples] = []
        self._recent_s: dict[str, deque[float]] = {}  # Without interrupted samples.
        self._gpu = gpu
        self._gpu_gap: Gap | None = None
        self._gpu_is_used = False  # By any test so far.
        self._budget = _Budget(max(_BUDGET_NS / workers_count, _LEAST_NS))
        # Few tests wait for a disk or use a GPU.
        self._disk_budget, self._gpu_budget = _Budget(_BUDGET_NS), _Budget(_BUDGET_NS)
        # The current test has measured nothing yet.
        self._is_waiting = False
        self._measured_ns = 0  # Duration of the last test.
        self._begun_ns = 0  # Start of the current test.
        self._ended_ns: int | None = None  # The end of the last samples.

    def begin(self) -> None:
        """Announce a test, which may turn out to measure nothing that needs references."""
        self._is_waiting = True

    def before_measuring(self) -> None:
        """Time the workloads before the first measurement of the current test."""
        if self._is_waiting:
            self._is_waiting = False
            self.before()

    def before(self) -> None:
        """Time the workloads before a test, unless just timed after the last test."""
        now_ns = self._clock.now_ns()
        if self._ended_ns is None or now_ns - self._ended_ns > _STALE_NS:
            self._sample()
        self._disk_is_used = False
        self._begun_ns = self._clock.now_ns()

    def note_disk(self) -> None:
        """Note that the current test waits for a disk."""
        self._disk_is_used = True

    def note_gpu(self) -> None:
        """Note that the current test was timed by a GPU."""
        self._gpu_is_used = True

    def after(self) -> None:
        """Time the workloads after a test that passed and needs references."""
        if self._is_waiting:
            self._is_waiting = False
            return
        self._measured_ns = measured_ns = self._clock.now_ns() - self._begun_ns
        self._budget.measured_ns += measured_ns
        if self._disk_is_used:
            self._disk_budget.measured_ns += measured_ns
        if self._gpu_is_used:
            self._gpu_budget.measured_ns += measured_ns
        self._sample()

    def taken(self) -> tuple[ReferenceSamples, ...]:
        """Return the samples since the last call."""
        samples, self._samples = self._samples, []
        return tuple(samples)

    def _sample(self) -> None:
        takes_set = self._budget.allows_a_set()
        disk_is_used = self._disk_is_used and self._disk_gap is None
        disk = self._disk if disk_is_used and self._disk_budget.allows_a_set() else None
        self._disk_is_used = False
        gpu_is_used = self._gpu_is_used and self._gpu_gap is None
        gpu = self._gpu if gpu_is_used and self._gpu_budget.allows_a_set() else None
        if not takes_set and disk is None and gpu is None:
            return
        turn = (
            contextlib.nullcontext()
            if self._turn_client is None
            else self._turn_client.measuring(TURN_NAME)  # A set takes one turn.
        )
        with turn:
            if takes_set:
                self._take_set()
            if disk is not None:
                self._take_disk_set(disk)
            if gpu is not None:
                self._take_gpu_set(gpu)

    def _take_set(self) -> None:
        begun_ns, cpu_begun_ns = self._clock.now_ns(), self._clock.thread_cpu_ns()
        left_ns, names = self._budget.left_ns, ["python", "array", "copy"]
        # A fresh process that runs a part of the tests may not load the modules of the
        # whole run. The three others suffice without numpy's.
        if "numpy" in self._modules:
            names.append("numpy")
        names.append(READS)
        share_ns = _SET_FRACTION * left_ns / len(names)
        # A set that has begun is completed, because two of three workloads show nothing.
        # Where more workers run than there are cores, it takes longer than their share.
        most_ns = max(left_ns, _BUDGET_NS - self._budget.spent_ns)
        for name in names:
            if self._clock.now_ns() - begun_ns > most_ns:
                break  # Slower than the last time.
            self._samples += self._samples_of(name, share_ns)
        self._ended_ns = self._clock.now_ns()
        ran_ns = self._clock.thread_cpu_ns() - cpu_begun_ns
        self._budget.spend(self._ended_ns - begun_ns, ran_ns)
        # After short tests the next set is a second away or more. Its memory takes 4 ms.
        if self._measured_ns < _STALE_NS and not self._budget.allows_a_set():
            self.__dict__.pop("_memory", None)
            for name in ("copy", READS):
                if not isinstance(self._workloads.get(name), Gap):
                    self._workloads.pop(name, None)

    def _take_disk_set(self, disk: Disk) -> None:
        begun_ns, blocks_count = self._clock.now_ns(), self._clock.blocks_count()
        samples: list[ReferenceSamples] = []
        try:
            disk.begin()
            samples = self._disk_samples(disk, begun_ns)
            if self._clock.blocks_count() == blocks_count:  # The file is in memory.
                self._disk_gap = _no_disk("the temporary folder is not on a disk")
        except OSError as error:
            self._disk_gap = _no_disk(error.strerror or str(error))
        if (gap := self._disk_gap) is not None:
            samples = [ReferenceSamples(workload=n, gap=gap) for n in DISK_WORKLOADS]
        self._samples += samples
        set_ns = self._clock.now_ns() - begun_ns
        self._disk_budget.spend(set_ns, set_ns)

    def _disk_samples(self, disk: Disk, begun_ns: int) -> list[ReferenceSamples]:
        """
        Return samples of the disk workloads, taken in rounds for equal counts.

        Args:
            disk: The file of the workloads.

            begun_ns: Start of the set [ns].
        """
        now_ns, left_ns = self._clock.now_ns, self._disk_budget.left_ns
        samples_s: dict[str, list[float]] = {name: [] for name in DISK_WORKLOADS}
        for count in itertools.count(1):
            for name, values in samples_s.items():
                start_ns = now_ns()
                disk.workloads[name]()
                values.append((now_ns() - start_ns) / NS_PER_S)
                self._recent(name).append(values[-1])
            spent_ns = now_ns() - begun_ns
            is_over = spent_ns >= _DISK_SET_FRACTION * left_ns
            enough = is_over or all(map(self._is_narrow, samples_s))
            # A single round may take a tenth of a second.
            if spent_ns >= left_ns or (enough and count >= _LEAST_SAMPLES):
                break
        return [
            ReferenceSamples(workload=name, samples_s=tuple(values))
            for name, values in samples_s.items()
        ]

    def _take_gpu_set(self, gpu: WorkingGpu) -> None:
        begun_ns = self._clock.now_ns()
        try:
            with gpu.ready() as workloads:
                if workloads is not None:
                    for name in GPU_WORKLOADS:
                        times_s = (workloads.time_s(name) for _ in range(_GPU_SAMPLES))
                        known_s = tuple(time for time in times_s if time is not None)
                        self._samples.append(
                            ReferenceSamples(workload=name, samples_s=known_s)
                        )
        except CollectError as error:
            self._gpu_gap = gap = Gap(
                code=GapCode.FAILED,
                reason=f"no reference workload could run on the GPU ({error.message})",
                remedy=error.remedy,
            )
            self._samples += [
                ReferenceSamples(workload=n, gap=gap) for n in GPU_WORKLOADS
            ]
        set_ns = self._clock.now_ns() - begun_ns
        self._gpu_budget.spend(set_ns, set_ns)

    def _recent(self, name: str) -> deque[float]:
        """Return the last uninterrupted samples of a workload [s]."""
        return self._recent_s.setdefault(name, deque(maxlen=_RECENT_SAMPLES))

    @cached_property
    def _memory(self) -> memoryview:
        # The allocator of the tests would keep more of their memory after it freed a block
        # of this size, and the tests would run faster.
        view = memoryview(mmap.mmap(-1, _MEMORY_BYTES, access=mmap.ACCESS_COPY))
        for start in range(0, _MEMORY_BYTES, len(_ONES)):
            view[start : start + len(_ONES)] = _ONES
        return view

    def _is_narrow(self, name: str) -> bool:
        """Return True if the median of a workload is as precise as the median of a test."""
        half_width = half_width_fraction(self._recent(name))
        return half_width is not None and half_width <= HOST_PRECISION

    def _samples_of(self, name: str, share_ns: float) -> list[ReferenceSamples]:
        """
        Return samples of a workload, or the reason why the workload cannot run.

        Args:
            name: The name of the workload.

            share_ns: Time limit, if more samples than the minimum are needed [ns].
        """
        try:
            if name not in self._workloads:
                made: Workload = _python_loop
                if name == "copy":
                    made = _copy(self._memory)
                elif name == "numpy":
                    made = _numpy(self._modules["numpy"])
                elif name == "array":
                    made = _array()
                elif name == READS:
                    made = _reads(self._memory)
                self._workloads[name] = made
                for _ in range(_WARMUP_CALLS):
                    made()
            workload = self._workloads[name]
            if isinstance(workload, Gap):
                return [ReferenceSamples(workload=name, gap=workload)]
            return self._timed(name, workload, share_ns)
        except Exception as error:  # noqa: BLE001 - a workload fails no test
            what = str(error) or type(error).__name__
            gap = Gap(
                code=GapCode.FAILED,
                reason=f"the reference workload {name} cannot run ({what})",
                remedy="free memory for the test process, or repair what it names",
            )
            self._workloads[name] = gap
            return [ReferenceSamples(workload=name, gap=gap)]

    def _timed(
        self, name: str, workload: Workload, share_ns: float
    ) -> list[ReferenceSamples]:
        workload()
        end_ns = self._clock.now_ns() + share_ns
        parts: list[ReferenceSamples] = []
        while True:
            part = self._part(name, workload)
            parts.append(part)
            self._recent(name).extend(part.samples_s)
            stands_still = not (part.samples_s or part.interrupted_s)
            counted = sum(len(part.samples_s) for part in parts)
            # Reads are compared by factors, so that a rough value is enough.
            narrow = name == READS or self._is_narrow(name)
            enough = counted >= _LEAST_SAMPLES and narrow
            if stands_still or enough or self._clock.now_ns() >= end_ns:
                return parts

    def _part(self, name: str, workload: Workload) -> ReferenceSamples:
        """Return a few samples, with the core speed measured before and after."""
        now_ns, cpu_ns = self._clock.now_ns, self._clock.thread_cpu_ns
        samples_s: list[float] = []
        interrupted_s: list[float] = []
        self._core_loop.around_s()  # Before the first sample.
        for _ in range(_LEAST_SAMPLES):
            cpu_begun_ns = cpu_ns()
            begun_ns = now_ns()
            workload()
            elapsed_ns = now_ns() - begun_ns
            ran_ns = cpu_ns() - cpu_begun_ns
            ran_through = ran_ns >= RUNNING_FRACTION * elapsed_ns
            if elapsed_ns > 0:
                series = samples_s if ran_through else interrupted_s
                series.append(elapsed_ns / NS_PER_S)
        return ReferenceSamples(
            workload=name,
            samples_s=tuple(samples_s),
            interrupted_s=tuple(interrupted_s),
            loop_s=self._core_loop.around_s(),
        )


def reference_records(
    samples: Iterable[ReferenceSamples],
    *,
    environment: Environment,
    device: Device | None = None,
    role: Role = Role.MAIN,
    process_index: int = 0,
    host: Host | None = None,
    workers_count: int = 1,
    conditions: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Record, ...]:
    """
    Build the records of all reference workloads of a process.

    Args:
        samples: All samples of the process.

        environment: Machine and software.

        device: The GPU of the process, or None.

        role: The role of the process in the run.

        process_index: 0 for the main process, from 1 for fresh processes.

        host: The host of the process, or None for the host of the main process.

        workers_count: Number of processes that took samples at the same time.

        conditions: Conditions that changed the speed of all code in the process.
    """
    makers = {
        on_gpu: Maker(
            facts=known_facts(
                environment,
                device if on_gpu else None,
                method=METHOD,
                conditions=conditions,
            ),
            soft_facts=soft_facts(environment, workers_count=workers_count),
            role=role,
            process_index=process_index,
            host=host,
        )
        for on_gpu in (False, True)
    }
    by_workload: dict[str, list[ReferenceSamples]] = {}
    for taken in samples:
        by_workload.setdefault(taken.workload, []).append(taken)
    return tuple(
        _record(makers[name in GPU_WORKLOADS], name, taken)
        for name, taken in sorted(by_workload.items())
    )


def _record(maker: Maker, name: str, taken: Sequence[ReferenceSamples]) -> Record:
    """Return the record of a workload. Interrupted samples are used if the rest are few."""
    key = RecordKey(test_id=REFERENCES, name=name)
    values = [value for part in taken for value in part.samples_s]
    interrupted = [value for part in taken for value in part.interrupted_s]
    few = len(values) < LEAST_UNINTERRUPTED
    bound_class = _CLASSES.get(name, BoundClass.HOST)
    source = Source.EVENTS if bound_class is BoundClass.GPU else Source.HOST
    counted = (*values, *interrupted) if few else tuple(values)
    gaps = [part.gap for part in taken if part.gap is not None]
    if not counted:
        gap = gaps[0] if gaps else _STOOD_STILL
        unmeasured = (Unmeasured.of_metric("time", gap),)
        return maker.record(
            key, Kind.REFERENCE, (), facts=maker.facts, unmeasured=unmeasured
        )
    pairs = [
        (median(several), part.loop_s)
        for part in taken
        if (several := part.samples_s or part.interrupted_s) and part.loop_s is not None
    ]
    core = core_speed([value for value, _ in pairs], [loop_s for _, loop_s in pairs])
    record = maker.record(
        key,
        Kind.REFERENCE,
        (replace(median_estimate("time", counted, source), core=core),),
        facts=maker.facts,
        series=(
            Series(
                metric="time",
                unit="s",
                source=source,
                values=counted,
                discarded_count=len(values) + len(interrupted) - len(counted),
            ),
        ),
    )
    record = replace(record, bound_class=bound_class)
    if not (few and interrupted):
        return record
    text = f"{len(interrupted)} of {len(counted)} samples were interrupted"
    return replace(record, notes=(Note(code="interrupted", text=text),))


def _no_disk(reason: str) -> Gap:
    return Gap(
        code=GapCode.FAILED,
        reason=f"no work could be timed on a disk ({reason})",
        remedy="set TMPDIR to a folder on the disk that the tests use",
    )


_CLASSES = {
    READS: BoundClass.CACHE,
    **dict.fromkeys(DISK_WORKLOADS, BoundClass.DISK),
    **dict.fromkeys(GPU_WORKLOADS, BoundClass.GPU),
}
_STOOD_STILL = Gap(
    code=GapCode.FAILED,
    reason="the clock stood still",
    remedy="run it on a machine whose clock moves",
)


def _python_loop() -> int:
    """Add up numbers, to load the interpreter."""
    total = 0
    for number in range(_LOOP_COUNT):
        total += number
    return total


def _numpy(numpy: Any) -> Workload:  # noqa: ANN401 - an optional library has no types
    """Return a product of arrays that stay in L2, to load the vector units."""
    left, right = numpy.full(_ELEMENTS, 1.5), numpy.full(_ELEMENTS, 2.5)
    out = numpy.empty(_ELEMENTS)

    def multiply() -> None:
        for _ in range(_NUMPY_COUNT):
            numpy.multiply(left, right, out=out)

    return multiply


def _array() -> Workload:
    """Return a byte swap of an array that stays in L2, to run compiled code."""
    values = array("d", [1.5]) * _ELEMENTS

    def swap() -> None:
        for _ in range(_ARRAY_COUNT):
            values.byteswap()

    return swap


def _copy(memory: memoryview) -> Workload:
    """Return a copy of half of the memory to the other half, to load the memory."""
    target, source = memory[: len(memory) // 2], memory[len(memory) // 2 :]

    def copy() -> None:
        target[:] = source

    return copy


def _reads(memory: memoryview) -> Workload:
    """Return reads of single bytes from 64,000 cache lines, to wait for the memory."""
    starts = range(0, _READ_OFFSETS * _LINE_BYTES, _LINE_BYTES)
    parts = [memory[start::_READ_STRIDE_BYTES] for start in starts]

    def read() -> None:
        for part in parts:
            part.tobytes()

    return read
