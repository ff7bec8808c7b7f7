"""What NVML and GPM said of known work on an NVIDIA H200, and what is made of it."""

from __future__ import annotations

import json
import lzma
from collections.abc import Callable
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from statistics import fmean
from types import MappingProxyType

import msgspec
import pytest

from fakes.clock import FakeClock
from fakes.nvml_library import FIELDS, scripted
from pytest_gpuperf.compute.gates import gates
from pytest_gpuperf.compute.timeline import compute_all, window_summary
from pytest_gpuperf.model.telemetry import (
    CanonicalRecord,
    ClockReason,
    ComputedRecord,
    DeviceDeltas,
    Sharing,
    UtilizationWindow,
    WorkloadClass,
)

GOLD = Path(__file__).parents[2] / "gold" / "gpu"
# at the start of a phase, and at its end: an average over a change is of both phases
SETTLED_S, ENDING_S = 0.5, 0.25
NS_PER_S = 1_000_000_000
UNSIGNED = 1  # NVML_VALUE_TYPE_UNSIGNED_INT
ENERGY, POWER, CAPPED, MEMORY_CELSIUS, TO_THE_GPU = 83, 186, 74, 82, 198
UUID = "GPU-00000000-0000-4000-8000-000000000000"
STEADY = """
,0,sys.gpus,1
,*,power.mw,700000
,*,clocks.reasons,0x4
,*,temp.mem,48
,*,pcie.tx_kbs,800
,*,pcie.rx_kbs,2300
,*,pcie.replay,0
,*,ecc.sbe,0
,*,ecc.dbe,0
,*,remap.cor,0
,*,remap.unc,0
,*,remap.pending,0
,*,remap.failed,0
"""
CLASSES = MappingProxyType(
    {
        "idle": WorkloadClass.IDLE,
        "product": WorkloadClass.TENSOR_HEAVY_COMPUTE,
        "from the host": WorkloadClass.IO_OR_DATA_LOADING,
        "one thread": WorkloadClass.BUSY_LOW_SM_USE,
        "idle again": WorkloadClass.IDLE,
    }
)

Fields = dict[int, tuple[int, int, int]]  # type, code and value, by number


@pytest.fixture(scope="module")
def phases() -> dict[str, list[CanonicalRecord]]:
    """The readings of each phase of known work, in order."""
    found: dict[str, list[CanonicalRecord]] = {}
    with lzma.open(GOLD / "time-lines.jsonl.xz", "rt", encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            record = msgspec.convert(row["record"], CanonicalRecord)
            found.setdefault(row["phase"], []).append(record)
    return found


@pytest.fixture(scope="module")
def settled(
    phases: dict[str, list[CanonicalRecord]],
) -> dict[str, list[ComputedRecord]]:
    """What is made of the readings, without those that may show the phase before."""
    found = {}
    for phase, records in phases.items():
        begin_s, end_s = bounds_s(records)
        computed = compute_all(records)
        found[phase] = [c for c in computed if begin_s <= c.record.monotonic_s <= end_s]
    return found


def bounds_s(records: list[CanonicalRecord]) -> tuple[float, float]:
    """Return from when to when a phase shows itself alone [s]."""
    return records[0].monotonic_s + SETTLED_S, records[-1].monotonic_s - ENDING_S


def window(records: list[CanonicalRecord]) -> UtilizationWindow:
    """Return the summary of a phase."""
    begin_s, end_s = bounds_s(records)
    (found,) = window_summary(records, start_s=begin_s, end_s=end_s)
    return found


def score(records: list[CanonicalRecord]) -> float:
    """Return how much of the GPU a phase used [%]."""
    found = window(records).real_util
    assert found is not None
    return found


@pytest.mark.parametrize("phase", CLASSES)
def test_known_work_has_its_class(
    settled: dict[str, list[ComputedRecord]], phase: str
) -> None:
    """A product is tensor-heavy, a copy from the host is I/O, and idle is idle: always."""
    assert len(settled[phase]) > 20
    assert {each.workload_class for each in settled[phase]} == {CLASSES[phase]}


@pytest.mark.parametrize("phase", CLASSES)
def test_a_phase_is_its_class_for_all_of_its_time(
    phases: dict[str, list[CanonicalRecord]], phase: str
) -> None:
    """Its window is no other class for a moment, and so is its average."""
    found = window(phases[phase])

    assert {c for c, seconds in found.class_s.items() if seconds} == {CLASSES[phase]}
    assert found.average_class == CLASSES[phase]
    assert found.duration_s == pytest.approx(1.3, abs=0.1)
    assert found.incomplete_s == found.unobserved_s == 0


def test_scores_are_in_the_order_of_the_work(
    phases: dict[str, list[CanonicalRecord]],
) -> None:
    """A product uses most of a GPU, a stream of memory much, one thread little."""
    scores = [score(phases[phase]) for phase in ("product", "copy", "one thread")]

    assert scores == sorted(scores, reverse=True)
    assert min(scores) > 5
    assert max(score(phases[phase]) for phase in ("idle", "idle again")) < 1


def test_memory_is_busy_where_it_is_streamed(
    settled: dict[str, list[ComputedRecord]],
) -> None:
    """A stream of 1 GiB keeps the DRAM busy and no tensor core; a product the reverse."""
    for each in settled["copy"]:
        assert 0.8 < (each.record.dram_active_fraction or 0) < 0.9
        assert each.record.tensor_active_fraction == 0
    for each in settled["product"]:
        assert (each.record.tensor_active_fraction or 0) > 0.8
        assert (each.record.dram_active_fraction or 1) < 0.2


def test_an_average_over_a_change_is_of_both_phases(
    phases: dict[str, list[CanonicalRecord]],
) -> None:
    """So the last reading of one phase has the averages of the first one of the next."""
    averages = attrgetter(
        *("sm_active_fraction", "dram_active_fraction", "graphics_active_fraction"),
        "pcie_rx_bytes_per_s",
    )
    for before, phase in pairwise(phases):
        assert averages(phases[before][-1]) == averages(phases[phase][0])
    copied, streamed = phases["from the host"], phases["copy"]
    shares = [
        r.sm_active_fraction or 0.0 for r in (copied[20], copied[0], streamed[20])
    ]
    assert shares[0] < shares[1] < shares[2]


def test_a_product_is_held_by_its_power_cap(
    phases: dict[str, list[CanonicalRecord]],
) -> None:
    """It draws 700 W, which is the limit, and the driver says why the clock is low."""
    told = [r for r in phases["product"][10:] if r.clock_reasons is not None]
    idle = [r for r in phases["idle"] if r.clock_reasons is not None]

    assert {
        ClockReason.SOFTWARE_POWER_CAP in (r.clock_reasons or ()) for r in told
    } == {True}
    assert {*(r.clock_reasons or frozenset() for r in idle)} == {frozenset()}
    first, last = phases["product"][10], phases["product"][-1]
    assert first.energy_joules is not None
    assert last.energy_joules is not None
    joules = last.energy_joules - first.energy_joules
    seconds = last.monotonic_s - first.monotonic_s
    assert joules / seconds == pytest.approx(700, rel=0.05)


def test_averages_around_known_work_agree_with_the_time_line(
    settled: dict[str, list[ComputedRecord]],
) -> None:
    """Two processes with readings of their own saw the same of the same kind of work."""
    gpm = {work: found.gpm for work, found in deltas().items()}
    for phase in CLASSES.keys() & gpm.keys():
        record = settled[phase][-1].record
        for name in ("tensor_active_fraction", "dram_active_fraction"):
            assert gpm[phase][name] == pytest.approx(getattr(record, name), abs=0.1)
    assert gpm["from the host"]["pcie_rx_bytes_per_s"] == pytest.approx(
        settled["from the host"][-1].record.pcie_rx_bytes_per_s, rel=0.05
    )


@pytest.mark.parametrize(
    ("work", "notes"),
    [
        ("idle", []),
        ("product", ["capped"]),
        ("copy", ["capped"]),  # for a third of its time, after the product
        ("from the host", []),
        ("one thread", []),
    ],
)
def test_a_cap_is_noted_and_nothing_is_void(work: str, notes: list[str]) -> None:
    """Of a board of one's own whose counters were read around each piece of work."""
    found = deltas()[work]
    gate = gates(found)

    assert gate.void is None
    assert [note.code for note in gate.notes] == notes
    assert found.sharing is Sharing.ALONE
    assert found.energy_joules is not None
    # by the counter and by the driver's own samples, of which neither is prompt
    watts = found.energy_joules / found.duration_s
    assert watts == pytest.approx(fmean(found.ring_power_watts), rel=0.1)


def deltas() -> dict[str, DeviceDeltas]:
    """Return what the board's counters said around each piece of known work."""
    found = {}
    for line in (GOLD / "deltas.jsonl").read_text("utf-8").splitlines():
        row = json.loads(line)
        del row["question"]
        work = row.pop("work")
        found[work] = msgspec.convert({"gpu_uuid": "", **row}, DeviceDeltas)
    return found


def recorded() -> tuple[float, Fields, Fields]:
    """Return how long the product ran [s], and the fields before and after it."""
    text = (GOLD / "nvml.jsonl").read_text("utf-8")
    rows = [json.loads(line) for line in text.splitlines()]
    before, after = (
        {int(field): tuple(answer) for field, answer in row["fields"].items()}
        for row in rows
        if "fields" in row
    )
    (seconds,) = (row["seconds"] for row in rows if "seconds" in row)
    return seconds, before, after


def doubled() -> tuple[float, Fields, Fields]:
    """Return the same of the double: five seconds at 700 W, held by the power cap."""
    clock = FakeClock()
    with scripted(STEADY, clock=clock) as (nvml, _):
        nvml.nvmlInit()
        gpu = nvml.nvmlDeviceGetHandleByUUID(UUID)

        def read() -> Fields:
            values = nvml.nvmlDeviceGetFieldValues(gpu, [*FIELDS])
            return {
                v.fieldId: (v.valueType, v.nvmlReturn, v.value.ullVal) for v in values
            }

        before = read()
        clock.advance(5 * NS_PER_S)
        return 5.0, before, read()


def test_fields_of_the_double_have_the_types_of_the_real_ones() -> None:
    """Each that both were asked for; of a field that is refused the code is the same."""
    _, _, real = recorded()
    _, _, double = doubled()
    both = real.keys() & double.keys()

    assert len(both) >= 17
    assert {f: double[f][:2] for f in both} == {f: real[f][:2] for f in both}
    assert {f for f in both if real[f][1]} == {138, 139}  # this board has no NVLink
    assert {f for f in both if real[f][0] == UNSIGNED} == {82, 94, POWER, 197, 198}


@pytest.mark.parametrize("who", [recorded, doubled])
def test_fields_have_their_units(
    who: Callable[[], tuple[float, Fields, Fields]],
) -> None:
    """Energy rises by mJ, a time under a reason by ns, and power is in mW."""
    seconds, before, after = who()
    risen = {field: after[field][2] - before[field][2] for field in after}

    assert risen[ENERGY] / seconds == pytest.approx(after[POWER][2], rel=0.05)
    assert after[POWER][2] == pytest.approx(700_000, rel=0.05)
    assert 0.9 < risen[CAPPED] / NS_PER_S / seconds <= 1
    assert 20 < after[MEMORY_CELSIUS][2] < 95
    # bytes: a product moves some MB over PCIe, of commands
    assert 1e5 < risen[TO_THE_GPU] / seconds < 1e7
