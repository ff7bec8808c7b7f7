"""Reference workloads: work that no change of the tested code can move.

They are timed before and after tests, so that the machine's part in a change can be told
from the code's. There are none for a GPU yet.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterable, Mapping
from statistics import median
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pytest_gpuperf.collect.clock import NS_PER_S, Clock, CoreLoop
from pytest_gpuperf.collect.environment import known_facts, soft_facts
from pytest_gpuperf.collect.timing.readings import (
    LEAST_UNINTERRUPTED,
    RUNNING_FRACTION,
)
from pytest_gpuperf.compute.machine import core_speed
from pytest_gpuperf.measure.assemble import Maker, median_estimate
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.gap import Gap, GapCode
from pytest_gpuperf.model.metric import Kind
from pytest_gpuperf.model.record import REFERENCES, Note, Record, RecordKey, Role
from pytest_gpuperf.model.sample import CoreSpeed, ReferenceSamples, Series, Unmeasured

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuperf.measure.turns import TurnClient
    from pytest_gpuperf.model.environment import Environment, Host

__all__ = ["METHOD", "TURN_NAME", "References", "reference_records"]

# raised when a workload or the way it is timed changes
METHOD = "references/1"
TURN_NAME = "gpuperf.references"  # of what is measured in a turn, beside a test's own
_SAMPLES = 4  # of each workload, before a test and after it
# docs/judging.md section 2: the cost of a process, the larger of the two
_BUDGET_FRACTION, _BUDGET_NS = 0.01, 100_000_000
_FIRST_NS = 50_000_000  # half of it at once; the rest as the tests go on
_STALE_NS = 100_000_000  # samples this old are not of the machine before a test
_LOOP_COUNT = 10_000  # about 0.4 ms
_ELEMENTS = 8192  # 64 KiB of doubles: three arrays fit every L2
_NUMPY_COUNT = 64  # some 0.2 ms
_ARRAY_COUNT = 16  # likewise
_COPY_BYTES = 4 << 20

Workload = Callable[[], object]


class References:
    """
    The reference workloads of one process.

    Args:
        clock: Gives the time.

        modules: The modules that the process has loaded.

        turn_client: Asks for turns; None: the process waits for no other.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        modules: Mapping[str, Any] | None = None,
        turn_client: TurnClient | None = None,
    ) -> None:
        self._clock = clock
        self._core_loop = CoreLoop(clock)
        self._turn_client = turn_client
        self._modules = sys.modules if modules is None else modules
        self._workloads: dict[str, Workload | Gap] = {}
        self._samples: list[ReferenceSamples] = []
        self._spent_ns = self._measured_ns = self._set_ns = 0
        self._begun_ns = 0  # the test that runs now
        self._ended_ns: int | None = None  # the last samples

    def before(self) -> None:
        """Time the workloads before a test, unless that was done after the last one."""
        now_ns = self._clock.now_ns()
        if self._ended_ns is None or now_ns - self._ended_ns > _STALE_NS:
            self._sample()
        self._begun_ns = self._clock.now_ns()

    def after(self) -> None:
        """Time the workloads after a test that has passed."""
        self._measured_ns += self._clock.now_ns() - self._begun_ns
        self._sample()

    def taken(self) -> tuple[ReferenceSamples, ...]:
        """Return the samples since the last call."""
        samples, self._samples = self._samples, []
        return tuple(samples)

    def _sample(self) -> None:
        """Take samples of every workload, if what is left of the budget allows it."""
        if self._spent_ns + self._set_ns > self._budget_ns():
            return
        if self._turn_client is None:
            self._take_set()
        else:
            with self._turn_client.measuring(TURN_NAME):  # a set lasts a turn
                self._take_set()

    def _take_set(self) -> None:
        """Take samples of every workload."""
        begun_ns = self._clock.now_ns()
        # a set that has begun is finished: two of three workloads show nothing
        most_ns = max(_BUDGET_FRACTION * self._measured_ns, _BUDGET_NS)
        for name in self._names():
            spent_ns = self._clock.now_ns() - begun_ns
            if self._spent_ns + spent_ns > most_ns:
                break  # slower than the last time
            self._samples.append(self._samples_of(name))
        self._ended_ns = self._clock.now_ns()
        self._set_ns = self._ended_ns - begun_ns
        self._spent_ns += self._set_ns

    def _budget_ns(self) -> float:
        """Return how long the workloads may take until now, all together."""
        share_ns = _BUDGET_FRACTION * self._measured_ns
        return max(share_ns, min(_FIRST_NS + share_ns, _BUDGET_NS))

    def _names(self) -> tuple[str, ...]:
        """
        Return the workloads; numpy's where the tests have loaded it already.

        The others are three by themselves, because a fresh process that runs a part of
        the tests may not load what the whole run has loaded.
        """
        usual = ("python", "array", "copy")
        return (*usual, "numpy") if "numpy" in self._modules else usual

    def _samples_of(self, name: str) -> ReferenceSamples:
        """Return samples of one workload, or why it cannot run."""
        try:
            if name not in self._workloads:
                self._workloads[name] = self._made(name)
            workload = self._workloads[name]
            if isinstance(workload, Gap):
                return ReferenceSamples(workload=name, gap=workload)
            return self._timed(name, workload)
        except Exception as error:  # noqa: BLE001 - whatever it is, no test fails for it
            what = str(error) or type(error).__name__
            gap = Gap(
                code=GapCode.FAILED,
                reason=f"the reference workload {name} cannot run ({what})",
                remedy="free memory for the test process, or repair what it names",
            )
            self._workloads[name] = gap
            return ReferenceSamples(workload=name, gap=gap)

    def _made(self, name: str) -> Workload:
        """Return a workload with the memory that it works on."""
        if name == "python":
            return _python_loop
        if name == "copy":
            return _copy()
        return _numpy(self._modules["numpy"]) if name == "numpy" else _array()

    def _timed(self, name: str, workload: Workload) -> ReferenceSamples:
        """Time a workload after one call that warms it up."""
        now_ns, cpu_ns = self._clock.now_ns, self._clock.thread_cpu_ns
        samples_s: list[float] = []
        interrupted_s: list[float] = []
        workload()
        self._core_loop.around_s()  # before the first sample
        for _ in range(_SAMPLES):
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
    role: Role = Role.MAIN,
    process_index: int = 0,
    host: Host | None = None,
    workers_count: int = 1,
    conditions: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Record, ...]:
    """
    Return a record for each reference workload of one process.

    Args:
        samples: All that the process took.

        environment: Machine and software.

        role: Which process of the run it is.

        process_index: 0 for the main process, from 1 for the fresh ones.

        host: Where it ran; None: where the run is judged.

        workers_count: How many processes took them side by side.

        conditions: What changed how fast all code of that process ran.
    """
    maker = Maker(
        facts=known_facts(environment, method=METHOD, conditions=conditions),
        soft_facts=soft_facts(environment, workers_count=workers_count),
        role=role,
        process_index=process_index,
        host=host,
    )
    by_workload: dict[str, list[ReferenceSamples]] = {}
    for taken in samples:
        by_workload.setdefault(taken.workload, []).append(taken)
    return tuple(
        _record(maker, name, taken) for name, taken in sorted(by_workload.items())
    )


def _record(maker: Maker, name: str, taken: Sequence[ReferenceSamples]) -> Record:
    """Return the record of one workload: of interrupted samples where others are few."""
    key = RecordKey(test_id=REFERENCES, name=name)
    values = [value for part in taken for value in part.samples_s]
    interrupted = [value for part in taken for value in part.interrupted_s]
    few = len(values) < LEAST_UNINTERRUPTED
    counted = (*values, *interrupted) if few else tuple(values)
    gaps = [part.gap for part in taken if part.gap is not None]
    if not counted:
        gap = gaps[0] if gaps else _STOOD_STILL
        unmeasured = (Unmeasured.of_metric("time", gap),)
        return maker.record(
            key, Kind.REFERENCE, (), facts=maker.facts, unmeasured=unmeasured
        )
    record = maker.record(
        key,
        Kind.REFERENCE,
        (replace(median_estimate("time", counted, "host"), core=_core(taken)),),
        facts=maker.facts,
        series=(
            Series(
                metric="time",
                unit="s",
                source="host",
                values=counted,
                discarded_count=len(values) + len(interrupted) - len(counted),
            ),
        ),
    )
    if not (few and interrupted):
        return record
    text = f"{len(interrupted)} of {len(counted)} samples were interrupted"
    return replace(record, notes=(Note(code="interrupted", text=text),))


def _core(taken: Sequence[ReferenceSamples]) -> CoreSpeed | None:
    """Return how fast the core was in all samples of a workload; None: not known."""
    pairs = [
        (median(values), part.loop_s)
        for part in taken
        if (values := part.samples_s or part.interrupted_s) and part.loop_s is not None
    ]
    return core_speed([value for value, _ in pairs], [loop_s for _, loop_s in pairs])


_STOOD_STILL = Gap(
    code=GapCode.FAILED,
    reason="the clock stood still",
    remedy="run it where the clock moves",
)


def _python_loop() -> int:
    """Add up numbers: what the interpreter does."""
    total = 0
    for number in range(_LOOP_COUNT):
        total += number
    return total


def _numpy(numpy: Any) -> Workload:  # noqa: ANN401 - an optional library has no types
    """Return a product of arrays that stay in L2: what vector units do."""
    left, right = numpy.full(_ELEMENTS, 1.5), numpy.full(_ELEMENTS, 2.5)
    out = numpy.empty(_ELEMENTS)

    def multiply() -> None:
        for _ in range(_NUMPY_COUNT):
            numpy.multiply(left, right, out=out)

    return multiply


def _array() -> Workload:
    """Return a swap of the bytes of an array that stays in L2: compiled code."""
    values = array("d", [1.5]) * _ELEMENTS

    def swap() -> None:
        for _ in range(_ARRAY_COUNT):
            values.byteswap()

    return swap


def _copy() -> Workload:
    """Return a copy of 4 MiB: what memory does."""
    source = memoryview(bytearray(b"\x01") * _COPY_BYTES)
    target = memoryview(bytearray(b"\x02") * _COPY_BYTES)

    def copy() -> None:
        target[:] = source

    return copy
