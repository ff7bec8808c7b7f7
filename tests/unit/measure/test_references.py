"""measure.references: what is timed between tests, how often, and what is made of it."""

from __future__ import annotations

import resource
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fakes.clock import FakeClock
from fakes.disk import FakeDisk
from fakes.gpu import FakeGpu
from pytest_gpuperf.collect.base import GPU_WORKLOADS
from pytest_gpuperf.collect.clock import SystemClock
from pytest_gpuperf.collect.disk import DISK_WORKLOADS
from pytest_gpuperf.measure.references import METHOD, References, reference_records
from pytest_gpuperf.model.environment import Environment
from pytest_gpuperf.model.gap import Gap, GapCode
from pytest_gpuperf.model.record import REFERENCES, BoundClass, Kind, Role
from pytest_gpuperf.model.sample import ReferenceSamples

MS = 1_000_000  # ns
MACHINE = Environment(
    cpu_model="Xeon", core_count=8, python_minor="3.12", platform="linux", versions={}
)


class SteppingClock(FakeClock):
    """Moves with each reading, so that work that takes no time has one."""

    def __init__(self, step_ns: int = MS) -> None:
        super().__init__()
        self.step_ns = step_ns

    def now_ns(self) -> int:
        self.advance(self.step_ns)
        return self.reading_ns


def counts(samples: tuple[ReferenceSamples, ...]) -> Counter[str]:
    """Return how many samples there are of each workload."""
    counted: Counter[str] = Counter()
    for part in samples:
        counted[part.workload] += len(part.samples_s) + len(part.interrupted_s)
    return counted


def test_workloads_are_timed_before_and_after_a_test() -> None:
    """Four samples or more of each, of the rough one four; each is returned once."""
    clock = SteppingClock(step_ns=10_000)
    references = References(clock, modules={})
    references.before()
    before = references.taken()
    clock.advance(200 * MS)
    references.after()

    assert counts(before) == {"python": 8, "array": 8, "copy": 8, "reads": 4}
    after = {"python": 4, "array": 4, "copy": 4, "reads": 4}
    assert counts(references.taken()) == after
    assert references.taken() == ()
    assert before[0].samples_s == pytest.approx([10e-6] * 4)


def test_samples_are_taken_until_the_median_is_known_to_one_percent() -> None:
    """As of a test, or until the set has had its share of what it may cost."""

    class Uneven(SteppingClock):
        def now_ns(self) -> int:
            self.step_ns = self.step_ns * 13 % 50_003 + 25_000
            self.advance(self.step_ns)
            return self.reading_ns

    uneven, even = Uneven(), SteppingClock(step_ns=100_000)
    for clock in (uneven, even):
        references = References(clock, modules={})
        references.before()
        count, spent_ns = counts(references.taken())["python"], clock.reading_ns
        if clock is even:
            assert count == 8
        else:
            assert 12 <= count <= 24
            assert spent_ns <= 12 * MS


def test_samples_after_a_test_are_those_before_the_next() -> None:
    """Where it begins within 0.1 s; the machine may be another later."""
    clock = SteppingClock(step_ns=10_000)
    references = References(clock, modules={})
    references.after()
    references.taken()
    references.before()
    soon = references.taken()
    clock.advance(101 * MS)
    references.before()

    assert soon == ()
    assert counts(references.taken())["python"] == 4


@pytest.mark.parametrize(
    ("tests_s", "budget_s"), [(0.01, 0.055), (0.1, 0.1), (2.0, 1.0)]
)
def test_the_cost_is_a_hundredth_of_the_tests_or_a_tenth_of_a_second(
    tests_s: float, budget_s: float
) -> None:
    """The larger of the two; of the tenth one half at once, the other as tests go on."""
    clock = SteppingClock(step_ns=100_000)
    references = References(clock, modules={})
    begun_ns, count = clock.reading_ns, 50
    for _ in range(count):
        references.before()
        clock.advance(round(tests_s * 1e9))
        references.after()
    looks_s = 4 * count * clock.step_ns / 1e9  # at the clock, which cost nothing
    spent_s = (clock.reading_ns - begun_ns) / 1e9 - count * tests_s - looks_s
    # the first set needs twice as many samples to know the median
    sets = counts(references.taken())["python"] / 4 - 1

    assert spent_s < 1.1 * budget_s
    assert sets == count + 1 or spent_s > 0.85 * budget_s


def test_workers_share_the_time_of_short_tests() -> None:
    """Each of two workers takes half as many sets, and each of many takes a whole one."""
    taken = {}
    for workers_count in (1, 2, 100):
        clock = SteppingClock(step_ns=100_000)
        references = References(clock, modules={}, workers_count=workers_count)
        for _ in range(100):
            references.before()
            clock.advance(MS)
            references.after()
            clock.advance(101 * MS)
        taken[workers_count] = counts(references.taken())

    assert taken[100].keys() == {"python", "array", "copy", "reads"}
    assert taken[100]["python"] < taken[2]["python"]
    assert taken[2]["python"] < 0.6 * taken[1]["python"]


@pytest.mark.parametrize("workers_count", [2, 4, 100])
def test_a_worker_that_waits_for_a_core_completes_its_set(workers_count: int) -> None:
    """Its share of the time is enough for a set without waits, and two of three show nothing."""
    clock = SteppingClock(step_ns=1_500_000)
    references = References(clock, modules={}, workers_count=workers_count)
    references.before()

    taken = {"python": 4, "array": 4, "copy": 4, "reads": 4}
    assert counts(references.taken()) == taken
    references.after()
    assert references.taken() == ()


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells what is resident")
def test_a_process_with_short_tests_holds_no_memory_of_the_workloads() -> None:
    """What is copied and read is given back when no further set is due."""
    clock = SteppingClock(step_ns=200_000)
    references = References(clock, modules={})
    before_bytes = resident_bytes()
    for _ in range(20):
        references.after()  # The sets that are taken at once.
    assert resident_bytes() < before_bytes + (4 << 20)

    references.before()
    clock.advance(60_000 * MS)
    references.after()  # A long test has further sets.
    assert resident_bytes() >= before_bytes + (8 << 20)

    for _ in range(4_000):
        references.before()
        references.after()
    assert resident_bytes() < before_bytes + (4 << 20)


def resident_bytes() -> int:
    """Return the memory of this process that is not in files [B]."""
    _, resident, shared, *_ = Path("/proc/self/statm").read_text("utf-8").split()
    return (int(resident) - int(shared)) * resource.getpagesize()


def test_a_machine_that_stalls_ends_a_set_in_the_middle() -> None:
    """No workload is begun once the budget is spent."""
    clock = SteppingClock()
    references = References(clock, modules={})
    clock.step_ns = 30 * MS
    references.before()

    assert counts(references.taken()) == {"python": 4}


def test_numpy_is_used_where_the_tests_have_loaded_it() -> None:
    """It is not imported for this; three others are there without it."""
    clock = SteppingClock(step_ns=10_000)
    modules: dict[str, Any] = {}
    references = References(clock, modules=modules)
    references.after()
    modules["numpy"] = np
    references.after()

    assert counts(references.taken()) == {
        "python": 12,
        "array": 12,
        "copy": 12,
        "numpy": 8,
        "reads": 8,
    }


def refused(*_: object) -> object:
    """Give no memory."""
    raise MemoryError


def test_a_workload_that_cannot_run_is_left_out_with_its_reason() -> None:
    """No test fails for it, and the others are timed."""
    references = References(
        SteppingClock(step_ns=10_000), modules={"numpy": SimpleNamespace(full=refused)}
    )
    references.after()
    references.after()
    samples = references.taken()
    array, copy, numpy, python, reads = reference_records(samples, environment=MACHINE)

    taken = {"python": 12, "array": 12, "copy": 12, "reads": 8}
    assert counts(samples) == {**taken, "numpy": 0}
    assert reads.bound_class is BoundClass.CACHE
    assert numpy.estimates == ()
    assert numpy.series == ()
    (gap,) = numpy.unmeasured
    assert (gap.metric, gap.code) == ("time", GapCode.FAILED)
    assert gap.reason == "the reference workload numpy cannot run (MemoryError)"
    assert array.unmeasured == copy.unmeasured == python.unmeasured == ()


def test_an_interrupted_sample_is_told_apart() -> None:
    """As one of a test: below 97 % of processor time."""

    class Busy(SteppingClock):
        def now_ns(self) -> int:
            self.interrupt(self.step_ns)
            return self.reading_ns

    references = References(Busy(step_ns=50_000), modules={})
    references.after()
    samples = references.taken()

    assert {part.samples_s for part in samples} == {()}
    # none of them counts, so that the set goes on for its share of the time
    assert all(12 <= count <= 24 for count in counts(samples).values())


def test_the_real_workloads_take_a_fraction_of_a_millisecond_each() -> None:
    """On the machine's own clock all of them run, and none is a matter of its clock."""
    references = References(SystemClock(), modules={"numpy": np})
    references.after()
    samples = references.taken()

    workloads = {"python", "array", "copy", "numpy", "reads"}
    assert {part.workload for part in samples} == workloads
    assert {part.gap for part in samples} == {None}
    assert all(
        1e-5 < min((*part.samples_s, *part.interrupted_s)) < 0.05 for part in samples
    )


def test_a_record_is_one_of_a_process_and_a_workload() -> None:
    """Its value is the median of all samples of the process, whichever test they are of."""
    samples = (
        ReferenceSamples(workload="python", samples_s=(1.0, 2.0, 3.0, 4.0)),
        ReferenceSamples(workload="copy", samples_s=(7.0,)),
        ReferenceSamples(workload="python", samples_s=(5.0,), interrupted_s=(90.0,)),
    )
    copy, python = reference_records(
        samples,
        environment=MACHINE,
        role=Role.CONFIRM,
        process_index=3,
        workers_count=2,
    )
    (estimate,) = python.estimates
    (series,) = python.series

    assert (copy.key.test_id, copy.key.name) == (REFERENCES, "copy")
    assert (python.key.name, python.kind) == ("python", Kind.REFERENCE)
    assert (python.role, python.process_index) == (Role.CONFIRM, 3)
    assert (estimate.metric, estimate.value, estimate.source) == ("time", 3.0, "host")
    assert series.values == (1.0, 2.0, 3.0, 4.0, 5.0)
    assert series.discarded_count == 1
    assert python.notes == ()
    assert python.facts == {
        "host-time": {
            "cpu_model": "Xeon",
            "core_count": "8",
            "python_minor": "3.12",
            "method": METHOD,
        }
    }
    assert python.soft_facts["xdist_workers"] == "2"


def test_fewer_than_five_samples_are_no_value() -> None:
    """Then interrupted ones count as well, and a note says how many they are."""
    samples = (
        ReferenceSamples(
            workload="copy", samples_s=(1.0,) * 4, interrupted_s=(9.0, 10.0, 11.0)
        ),
    )
    (record,) = reference_records(samples, environment=MACHINE)
    (note,) = record.notes

    assert record.series[0].values == (1.0, 1.0, 1.0, 1.0, 9.0, 10.0, 11.0)
    assert note.text == "3 of 7 samples were interrupted"


def test_a_clock_that_stands_still_gives_no_value() -> None:
    """A time of zero would be one."""
    references = References(FakeClock(), modules={})
    references.after()
    records = reference_records(references.taken(), environment=MACHINE)

    assert [record.estimates for record in records] == [()] * 4
    assert {record.unmeasured[0].reason for record in records} == {
        "the clock stood still"
    }


def test_a_process_may_have_had_a_gap_and_values() -> None:
    """A worker without memory does not take another's value away."""
    gap = Gap(code=GapCode.FAILED, reason="no memory", remedy="buy some")
    samples = (
        ReferenceSamples(workload="copy", gap=gap),
        ReferenceSamples(workload="copy", samples_s=(1.0,)),
    )
    (record,) = reference_records(samples, environment=MACHINE)

    assert record.estimates[0].value == 1.0
    assert record.unmeasured == ()


def disk_samples(references: References) -> list[ReferenceSamples]:
    """Return the samples of the disk's workloads since the last call."""
    return [part for part in references.taken() if part.workload in DISK_WORKLOADS]


def one_test(references: References, clock: FakeClock, *, uses_disk: bool) -> None:
    """Run a test of 0.2 s."""
    references.before()
    clock.advance(200 * MS)
    if uses_disk:
        references.note_disk()
    references.after()


def test_a_disk_is_timed_after_tests_that_wait_for_it_alone() -> None:
    """Three workloads, because a class needs three witnesses."""
    clock = FakeClock()
    references = References(clock, modules={}, disk=FakeDisk(clock, MS))
    one_test(references, clock, uses_disk=False)
    before = disk_samples(references)
    one_test(references, clock, uses_disk=True)
    samples = disk_samples(references)
    one_test(references, clock, uses_disk=False)

    assert before == []
    assert counts(tuple(samples)) == dict.fromkeys(DISK_WORKLOADS, 8)
    assert samples[0].samples_s == pytest.approx((1e-3,) * 8)
    assert {part.loop_s for part in samples} == {None}
    assert disk_samples(references) == []


@pytest.mark.parametrize(
    ("write_ms", "rounds_count"), [(1, 8), (4, 5), (10, 4), (30, 2), (500, 1)]
)
def test_a_slow_disk_ends_a_set_after_a_round(write_ms: int, rounds_count: int) -> None:
    """Within a tenth of a second, or as soon as each workload has a sample."""
    clock = FakeClock()
    references = References(clock, modules={}, disk=FakeDisk(clock, write_ms * MS))
    one_test(references, clock, uses_disk=True)
    samples = disk_samples(references)
    one_test(references, clock, uses_disk=True)

    assert {len(part.samples_s) for part in samples} == {rounds_count}
    assert disk_samples(references) == [] or write_ms == 1  # the budget is spent


@pytest.mark.parametrize(
    ("blocks", "failure", "reason"),
    [
        (0, None, "the temporary folder is not on a disk"),
        (8, OSError(9, "a test has closed its file"), "a test has closed its file"),
    ],
)
def test_a_disk_that_cannot_be_written_is_a_gap(
    blocks: int, failure: OSError | None, reason: str
) -> None:
    """No test fails for it, and it is not tried again."""
    clock = FakeClock()
    disk = FakeDisk(clock, MS, blocks=blocks)
    disk.failure = failure
    references = References(clock, modules={}, disk=disk)
    one_test(references, clock, uses_disk=True)
    records = reference_records(disk_samples(references), environment=MACHINE)
    one_test(references, clock, uses_disk=True)

    assert {record.unmeasured[0].reason for record in records} == {
        f"no work could be timed on a disk ({reason})"
    }
    assert disk_samples(references) == []


def test_records_of_the_disk_are_of_its_class() -> None:
    """They move with tests that wait for it, and with no others."""
    samples = (
        ReferenceSamples(workload="disk-write", samples_s=(1.0, 2.0, 3.0)),
        ReferenceSamples(workload="python", samples_s=(1.0,) * 5),
    )
    disk, python = reference_records(samples, environment=MACHINE)

    assert (disk.bound_class, python.bound_class) == (BoundClass.DISK, BoundClass.HOST)
    assert disk.estimates[0].value == 2.0
    assert disk.facts["host-time"]["method"] == "references/1"


def on_gpu(samples: tuple[ReferenceSamples, ...]) -> Counter[str]:
    """Return how many samples there are of each workload of a GPU."""
    counted = counts(samples)
    return Counter({name: counted[name] for name in GPU_WORKLOADS if name in counted})


def test_a_gpu_is_timed_once_a_test_was_timed_by_it() -> None:
    """Before that it may not even be in use, and without a context there are no samples."""
    clock = SteppingClock(step_ns=10_000)
    gpu = FakeGpu(clock)
    references = References(clock, modules={}, gpu=gpu)
    references.before()
    references.after()
    assert on_gpu(references.taken()) == {}
    references.note_gpu()
    references.after()
    assert on_gpu(references.taken()) == dict.fromkeys(GPU_WORKLOADS, 5)
    gpu.is_used = False
    clock.advance(200 * MS)
    references.after()
    assert on_gpu(references.taken()) == {}


def test_workloads_of_a_gpu_take_a_hundredth_of_the_tests() -> None:
    """Or 0.1 s in all, as those of the host."""
    clock = FakeClock()
    gpu = FakeGpu(clock, time_ns=2 * MS)
    references = References(clock, modules={}, gpu=gpu)
    for tests_count in range(1, 101):
        references.before()
        clock.advance(300 * MS)
        references.note_gpu()
        references.after()
        assert gpu.spent_ns <= max(100 * MS, 0.01 * tests_count * 300 * MS)

    assert gpu.spent_ns > 200 * MS


def test_a_gpu_that_refuses_is_asked_once() -> None:
    """The workloads have the reason, and their records the class."""
    clock = SteppingClock(step_ns=10_000)
    gpu = FakeGpu(
        clock, refusal="cuMemAlloc_v2 failed with CUDA_ERROR_OUT_OF_MEMORY (2)"
    )
    references = References(clock, modules={}, gpu=gpu)
    references.note_gpu()
    references.after()
    references.after()
    records = reference_records(references.taken(), environment=MACHINE)
    gaps = [gap for record in records for gap in record.unmeasured]

    assert gpu.sets_count == 1
    assert len(gaps) == 3
    for gap in gaps:
        assert gap.reason.startswith(
            "no reference workload could run on the GPU (cuMem"
        )
