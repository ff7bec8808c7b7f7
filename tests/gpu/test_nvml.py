"""NVML's sensors while known work runs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuperf.collect.clock import SystemClock
from pytest_gpuperf.collect.devices import query_devices
from pytest_gpuperf.collect.nvml.deltas import Deltas, second_pass
from pytest_gpuperf.collect.nvml.library import Board, open_board
from pytest_gpuperf.collect.nvml.sampler import Sampler
from pytest_gpuperf.collect.runtime import DeviceRuntime
from pytest_gpuperf.compute.utilization import asserted_class, compute
from pytest_gpuperf.model.telemetry import (
    CanonicalRecord,
    DeviceDeltas,
    Sharing,
    WorkloadClass,
)

GIB = 1 << 30
BUSY_S = 1.5
BEFORE_S = 0.2  # GPM's samples are up to 50 ms old (H200)


@pytest.fixture
def board(runtime: DeviceRuntime) -> Iterator[Board]:
    """The sensors of the GPU that torch uses."""
    uuid = runtime.device_uuid()
    assert uuid is not None
    opened = open_board(uuid)
    yield opened
    opened.close()


@pytest.fixture
def deltas(board: Board, clock: SystemClock) -> Iterator[Deltas]:
    """What those sensors count."""
    made = Deltas(board, clock)
    yield made
    made.close()


def during(
    deltas: Deltas,
    clock: SystemClock,
    runtime: DeviceRuntime,
    work: Callable[[], object],
) -> DeviceDeltas:
    """Return what was counted while work ran again and again, for a second and a half."""

    def run(seconds: float) -> None:
        end_ns = clock.now_ns() + int(seconds * 1e9)
        while clock.now_ns() < end_ns:
            work()
            runtime.synchronize()

    run(BEFORE_S)
    deltas.begin()
    run(BUSY_S)
    return deltas.end()


def needed(value: float | None, deltas: DeviceDeltas, sensor: str) -> float:
    """Return a value, or skip with why the sensor says nothing."""
    silent = deltas.silent.get(sensor)
    if value is None and silent is not None:
        pytest.skip(f"{sensor}: {silent.reason}")
    assert value is not None
    return value


def gpm_of(deltas: DeviceDeltas) -> dict[str, float | None]:
    """Return GPM's averages, or skip with why there are none."""
    if deltas.gpm_reason is not None:
        pytest.skip(f"GPM: {deltas.gpm_reason}")
    return dict(deltas.gpm)


def test_the_gpu_is_the_one_that_torch_uses(
    torch: Any, board: Board, runtime: DeviceRuntime
) -> None:
    """One UUID by the driver, by NVML, by torch, and in the list of GPUs."""
    uuid = runtime.device_uuid()
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())

    assert uuid is not None
    assert board.uuid == uuid
    assert uuid in {each.uuid for each in query_devices().devices}
    if hasattr(properties, "uuid"):  # torch 2.5 and newer
        assert str(properties.uuid) in uuid


def test_the_driver_s_facts_are_torchs(torch: Any, runtime: DeviceRuntime) -> None:
    """Name, multiprocessors and L2 are what torch says of the same GPU."""
    uuid = runtime.device_uuid()
    assert uuid is not None
    facts = runtime.facts_of(uuid)
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())

    assert facts is not None
    assert facts.name == properties.name
    assert facts.sm_count == properties.multi_processor_count
    assert facts.l2_bytes == properties.L2_cache_size


def test_a_busy_second_takes_more_than_an_idle_one(
    deltas: Deltas,
    clock: SystemClock,
    runtime: DeviceRuntime,
    gemm: Callable[[], object],
) -> None:
    """Energy rises in both, and the busy power is above the idle one, below 2 kW."""
    idle = during(deltas, clock, runtime, lambda: clock.sleep(0.1))
    busy = during(deltas, clock, runtime, lambda: [gemm() for _ in range(50)])
    idle_watts = needed(idle.energy_joules, idle, "energy") / idle.duration_s
    busy_watts = needed(busy.energy_joules, busy, "energy") / busy.duration_s

    assert 0 < idle_watts < busy_watts < 2000
    assert busy_watts > 1.3 * idle_watts


def test_what_counts_never_falls(
    deltas: Deltas,
    clock: SystemClock,
    runtime: DeviceRuntime,
    gemm: Callable[[], object],
) -> None:
    """Of five spans one after another none has a negative count, time or energy."""
    for _ in range(5):
        found = during(deltas, clock, runtime, gemm)
        counts = (
            found.energy_joules,
            found.pcie_replay_count,
            *found.throttled_s.values(),
            *found.ecc_changes.values(),
        )
        assert all(count is None or count >= 0 for count in counts)
        assert sum(found.throttled_s.values()) <= 7 * found.duration_s * 1.1
        assert found.lost is None
        assert found.xids in {None, ()}


def test_memory_that_is_taken_is_seen(torch: Any, deltas: Deltas, board: Board) -> None:
    """Two GiB more are two GiB more in use, within 64 MiB."""
    torch.cuda.empty_cache()
    deltas.begin()
    before = deltas.end().memory_used_bytes
    deltas.begin()
    held = torch.empty(2 * GIB, dtype=torch.uint8, device="cuda")
    found = deltas.end().memory_used_bytes
    del held
    torch.cuda.empty_cache()

    assert before is not None
    assert found is not None
    assert found - before == pytest.approx(2 * GIB, abs=64 << 20)


def test_the_driver_has_sampled_clock_and_power(
    deltas: Deltas,
    clock: SystemClock,
    runtime: DeviceRuntime,
    gemm: Callable[[], object],
) -> None:
    """Its rings have samples of this span, and the clock of a busy GPU is above 300 MHz."""
    found = during(deltas, clock, runtime, lambda: [gemm() for _ in range(50)])
    if not found.ring_power_watts:
        silent = found.silent.get("ring of the power")
        pytest.skip(f"ring of the power: {silent.reason if silent else 'empty'}")

    assert 0 < max(found.ring_power_watts) < 2000
    if found.ring_sm_clocks_hz:
        assert 300e6 < max(found.ring_sm_clocks_hz) < 4e9
    assert found.sm_clock_hz is not None
    assert 100e6 < found.sm_clock_hz < 4e9


def test_no_other_process_is_invented(deltas: Deltas) -> None:
    """Nobody else is named a neighbour unless somebody is; in a container it is unknown."""
    deltas.begin()
    found = deltas.end()

    assert (found.sharing is Sharing.FOREIGN) is bool(found.foreign_pids)
    assert (found.sharing is Sharing.UNKNOWN) is (found.sharing_reason is not None)


OTHER = """
import sys, time
import torch
a = torch.randn(4096, 4096, device="cuda")
torch.cuda.synchronize()
print("ready", flush=True)
end_s = time.monotonic() + 30
while time.monotonic() < end_s:
    if sys.argv[1] == "busy":
        (a @ a).sum().item()
    else:
        time.sleep(0.1)
"""


@pytest.mark.parametrize("does", ["busy", "idle"])
def test_another_process_counts_if_it_computes(
    deltas: Deltas,
    clock: SystemClock,
    runtime: DeviceRuntime,
    gemm: Callable[[], object],
    monkeypatch: pytest.MonkeyPatch,
    does: str,
) -> None:
    """A process that only has memory on the GPU is idle, one that multiplies is not."""
    with subprocess.Popen(
        [sys.executable, "-c", OTHER, does], stdout=subprocess.PIPE, text=True
    ) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "ready\n"
            # Its own children are no company.
            monkeypatch.setattr(
                "pytest_gpuperf.collect.nvml.library.descends_from", _is
            )
            found = during(deltas, clock, runtime, gemm)
        finally:
            other.kill()
    if found.sharing is Sharing.UNKNOWN:
        pytest.skip(f"processes: {found.sharing_reason}")
    if found.use_unknown:
        silent = found.silent.get("use by process")
        pytest.skip(f"use by process: {silent.reason if silent else 'no sample'}")

    assert (other.pid in found.foreign_pids) is (does == "busy")
    assert (other.pid in found.idle_pids) is (does == "idle")


def _is(pid: int, other: int, _: Path) -> bool:
    return pid == other


def test_gpm_sees_what_runs(
    deltas: Deltas,
    clock: SystemClock,
    runtime: DeviceRuntime,
    gemm: Callable[[], object],
    stream_copy: Callable[[], object],
) -> None:
    """A product keeps the tensor cores busy, a copy the memory, and not the reverse."""
    product = gpm_of(
        during(deltas, clock, runtime, lambda: [gemm() for _ in range(50)])
    )
    copy = gpm_of(
        during(deltas, clock, runtime, lambda: [stream_copy() for _ in range(20)])
    )
    tensor, dram = "tensor_active_fraction", "dram_active_fraction"

    fractions = {k: v for k, v in product.items() if k.endswith("_fraction")}
    assert fractions
    assert all(0 <= each <= 1.01 for each in fractions.values() if each is not None)
    assert (product["sm_active_fraction"] or 0) > 0.7
    assert (product[tensor] or 0) > 0.4
    assert (copy[dram] or 0) > 0.5
    assert (copy[tensor] or 0) < 0.02
    assert (product[dram] or 0) < (copy[dram] or 0)


def test_known_work_has_its_class(
    torch: Any,
    deltas: Deltas,
    clock: SystemClock,
    runtime: DeviceRuntime,
    gemm: Callable[[], object],
    spin: Callable[[int], None],
) -> None:
    """Nothing is idle, a product tensor-heavy, copies from the host I/O, one thread busy."""
    host = torch.ones(GIB // 4, dtype=torch.uint8).pin_memory()
    there = torch.empty(GIB // 4, dtype=torch.uint8, device="cuda")
    works: dict[WorkloadClass, Callable[[], object]] = {
        WorkloadClass.IDLE: lambda: clock.sleep(0.1),
        WorkloadClass.TENSOR_HEAVY_COMPUTE: lambda: [gemm() for _ in range(50)],
        WorkloadClass.IO_OR_DATA_LOADING: lambda: there.copy_(host),
        WorkloadClass.BUSY_LOW_SM_USE: lambda: spin(50_000_000),
    }
    found = {}
    for expected, work in works.items():
        seen = during(deltas, clock, runtime, work)
        readings: dict[str, Any] = {
            **gpm_of(seen),
            "gpu_index": seen.gpu_index,
            "gpu_uuid": seen.gpu_uuid,
            "monotonic_s": clock.now_ns() / 1e9,
            "unix_s": clock.unix_s(),
        }
        record = CanonicalRecord(**readings)
        found[expected] = asserted_class(compute(record))

    assert found == {expected: expected for expected in works}


def test_energy_of_a_call_is_power_times_time(
    deltas: Deltas,
    clock: SystemClock,
    runtime: DeviceRuntime,
    gemm: Callable[[], object],
) -> None:
    """Energy of a call, times calls, is the mean power times the time that they took."""
    passed = second_pass(gemm, deltas, clock, runtime.synchronize, gpm=True)
    if passed.energy_joules is None:
        pytest.skip(f"energy: {passed.missing}")

    assert passed.calls_count > 0
    assert passed.duration_s >= 2
    assert passed.power_watts is not None
    assert passed.energy_joules * passed.calls_count == pytest.approx(
        passed.power_watts * passed.duration_s
    )


def test_the_time_line_follows_the_work(
    clock: SystemClock,
    runtime: DeviceRuntime,
    board: Board,
    own: Path,
    gemm: Callable[[], object],
) -> None:
    """A sampler of 20 Hz has a record for each period, and power rises with the work."""
    sampler = Sampler([board.uuid], clock, hz=20, folder=own)
    sampler.start()
    try:
        idle_from_s = sampler.mark()
        clock.sleep(1.0)
        busy_from_s = sampler.mark()
        while sampler.mark() - busy_from_s < BUSY_S:
            for _ in range(50):
                gemm()
            runtime.synchronize()
        idle = sampler.records(idle_from_s, busy_from_s)
        busy = sampler.records(busy_from_s, sampler.mark())
    finally:
        sampler.stop()

    assert len(idle) >= 15
    assert len(busy) >= BUSY_S * 15
    assert [each.monotonic_s for each in busy] == sorted(
        each.monotonic_s for each in busy
    )
    powers = [[each.power_watts for each in line] for line in (idle, busy)]
    known = [[watts for watts in line if watts is not None] for line in powers]
    assert max(known[1]) > max(known[0])
