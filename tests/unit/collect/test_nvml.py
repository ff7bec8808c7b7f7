"""collect.nvml*: the real binding on a scripted library, and what each fault leads to."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pynvml
import pytest

from fakes.clock import FakeClock
from fakes.nvml_library import BURST, FakeLibrary, Script, binding, scripted
from pytest_gpuperf.collect.nvml.deltas import Deltas, second_pass
from pytest_gpuperf.collect.nvml.library import Board, Neighbours, gap_of, open_board
from pytest_gpuperf.compute.gates import Gates, gates
from pytest_gpuperf.errors import CollectorUnavailableError
from pytest_gpuperf.model.gap import GapCode
from pytest_gpuperf.model.telemetry import (
    ClockReason,
    DeviceDeltas,
    SecondPass,
    Sharing,
)

MS = 1_000_000  # ns
UUID = "GPU-00000000-0000-4000-8000-000000000000"
HOST = "pid:[4026531836]"
CODES = {
    getattr(pynvml, name): name.removeprefix("NVML_ERROR_")
    for name in vars(pynvml)
    if name.startswith("NVML_ERROR_")
}
LOST = {8, 15, 16, 28}
ABSENT = {2, 3, 13, 25, 26}  # no news: the board, driver or binding has no such sensor
PASSING = {1, 5, 6, 7, 10, 11, 17, 19, 20, 21, 23, 27, 29, 999}


def system(folder: Path, namespace: str = HOST, **parents: int) -> Path:
    """Return a /proc with processes and their parents."""
    (folder / "self" / "ns").mkdir(parents=True)
    (folder / "self" / "ns" / "pid").symlink_to(namespace)
    for pid, parent in parents.items():
        (folder / pid[1:]).mkdir()
        (folder / pid[1:] / "stat").write_text(f"{pid[1:]} (a) b) S {parent} 1 1")
    return folder


@pytest.fixture
def alone(tmp_path: Path) -> Neighbours:
    return Neighbours(100, system(tmp_path, p101=100, p200=1), {})


@contextmanager
def rig(
    text: str, neighbours: Neighbours, **more: Any
) -> Iterator[tuple[FakeClock, Deltas, FakeLibrary]]:
    """Yield sensors on a script, that are given back at the end."""
    clock = FakeClock()
    with scripted(text, clock=clock, **more) as (nvml, library):
        board = open_board(UUID, nvml=nvml)
        deltas = Deltas(board, clock, neighbours=neighbours)
        yield clock, deltas, library
        deltas.close()
        board.close()
        assert not library.open_samples


def during(
    text: str, neighbours: Neighbours, start_ms: int = 200, end_ms: int = 700
) -> tuple[DeviceDeltas, Gates]:
    """Return what was counted between two times of a script, and what it means."""
    with rig(text, neighbours) as (clock, deltas, _):
        clock.advance(start_ms * MS)
        deltas.begin()
        clock.advance((end_ms - start_ms) * MS)
        found = deltas.end()
    return found, gates(found)


# ---- time lines and their verdicts


def test_burst(alone: Neighbours) -> None:
    """A burst of work on a GPU of one's own is counted, and nothing is said."""
    found, gate = during(BURST, alone)
    assert found.duration_s == pytest.approx(0.5)
    assert found.energy_joules == pytest.approx(320.0)
    assert found.memory_used_bytes == 500_000_000
    assert found.gpm["sm_active_fraction"] == pytest.approx(0.975)
    assert found.gpm["dram_active_fraction"] == pytest.approx(0.61)
    assert set(found.ring_sm_clocks_hz[:-1]) == {1980e6}
    assert set(found.ring_power_watts[:-1]) == {640.0}
    assert found.xids == ()
    assert found.sharing is Sharing.ALONE
    assert gate == Gates()


def test_power_cap(alone: Neighbours) -> None:
    """A power cap for 200 ms is counted, kept and noted."""
    found, gate = during(BURST + "500,*,clocks.reasons,0x4\n", alone)
    assert found.throttled_s[ClockReason.SOFTWARE_POWER_CAP] == pytest.approx(0.2)
    assert gate.void is None
    assert [note.code for note in gate.notes] == ["capped"]


def test_power_cap_with_a_falling_clock(alone: Neighbours) -> None:
    """A capped test whose clock goes on falling is void."""
    falling = "350,*,clocks.reasons,0x4\n450,*,clock.sm,1980\n699,*,clock.sm,1700,lin\n"
    _, gate = during(BURST + falling, alone)
    assert gate.void is not None
    assert gate.void.code == "clock-drift"


@pytest.mark.parametrize(
    ("mask", "code"),
    [
        ("0x40", "hardware-thermal-slowdown"),
        ("0x80", "power-brake"),
    ],
)
def test_hardware_throttle(alone: Neighbours, mask: str, code: str) -> None:
    """A hardware slowdown that came and went between the readings voids."""
    script = BURST + f"400,*,clocks.reasons,{mask}\n410,*,clocks.reasons,0x0\n"
    found, gate = during(script, alone)
    assert not found.reasons
    assert gate.void is not None
    assert gate.void.code == code


def test_hardware_slowdown(alone: Neighbours) -> None:
    """A hardware slowdown that holds at the last reading voids; nobody counts it."""
    script = BURST.replace("700,*,clocks.reasons,0x1", "700,*,clocks.reasons,0x8")
    _, gate = during(script, alone)
    assert gate.void is not None
    assert gate.void.code == "hardware-slowdown"


def test_gpu_lost(alone: Neighbours) -> None:
    """A GPU that falls off the bus at 500 ms voids, and no call raises."""
    found, gate = during(
        BURST + "".join(f"500,*,error.{each},15\n" for each in CALLS), alone
    )
    assert found.lost is not None
    assert found.energy_joules is None
    assert gate.void is not None
    assert gate.void.code == "device-lost"


CALLS = (
    "nvmlDeviceGetTotalEnergyConsumption",
    "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetMPSComputeRunningProcesses",
    "nvmlDeviceGetSamples",
    "nvmlDeviceGetClockInfo",
    # older bindings have the older function alone
    "nvmlDeviceGetTemperature" + "V" * hasattr(pynvml, "nvmlDeviceGetTemperatureV"),
    "nvmlGpmSampleGet",
    "nvmlEventSetWait",
)


def test_a_lost_gpu_is_not_asked_again(alone: Neighbours) -> None:
    """After the GPU is gone, nothing more is asked of it."""
    script = BURST + "500,*,error.nvmlGpmSampleGet,15\n"
    with rig(script, alone) as (clock, deltas, library):
        clock.advance(200 * MS)
        deltas.begin()
        clock.advance(500 * MS)
        deltas.end()
        before = len(library.calls)
        deltas.begin()
        clock.advance(500 * MS)
        assert gates(deltas.end()).void is not None
        assert len(library.calls) == before


@pytest.mark.parametrize("key", ["ecc.sbe", "ecc.dbe", "remap.unc", "remap.cor"])
def test_ecc(alone: Neighbours, key: str) -> None:
    """A memory error that was counted meanwhile voids."""
    _, gate = during(BURST + f"0,*,{key},0\n300,*,{key},1\n", alone)
    assert gate.void is not None
    assert gate.void.code == "ecc-changed"


def test_xid(alone: Neighbours) -> None:
    """An XID event of the test's own time is noted; one from before is not."""
    found, gate = during(BURST + "100,*,xid,31\n300,*,xid,13\n", alone)
    assert found.xids == (13,)
    assert [note.code for note in gate.notes] == ["xid"]


def test_a_counter_that_began_anew(alone: Neighbours) -> None:
    """A counter that fell has no difference."""
    found, _ = during(BURST + "0,*,pcie.replay,5\n300,*,pcie.replay,1\n", alone)
    assert found.pcie_replay_count is None


def test_gpm_refuses_a_short_test(alone: Neighbours) -> None:
    """GPM says by name that it needs more than 0.1 s, and energy says nothing."""
    found, gate = during(BURST, alone, 200, 300)
    assert found.gpm == {}
    assert found.gpm_reason is not None
    assert "GPM needs more than 0.1 s" in found.gpm_reason
    assert found.energy_joules is None
    assert gate == Gates()


def test_no_gpm(alone: Neighbours) -> None:
    """A GPU before Hopper has no GPM, which is not news."""
    found, gate = during(BURST.replace(",*,gpm,1", ",*,gpm,0"), alone)
    assert found.gpm_reason == gap_of(3).reason
    assert gate == Gates()


def test_a_bare_board(alone: Neighbours) -> None:
    """A board without sensors has no values, and the test goes on."""
    found, gate = during(",0,sys.gpus,1\n", alone)
    assert found.energy_joules is None
    assert found.memory_used_bytes is None
    assert {*found.silent.values()} == {gap_of(3)}
    assert [note.code for note in gate.notes] == ["throttling-uncounted"]


def test_an_old_driver(alone: Neighbours) -> None:
    """What has another name in an older driver is read by that."""
    missing = frozenset(
        {"nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetTemperatureV"}
    )
    script = BURST.replace("0,*,clocks.reasons,0x1", "0,*,clocks.reasons,0x8")
    with rig(script, alone, missing=missing) as (clock, deltas, _):
        deltas.begin()
        clock.advance(10 * MS)
        found = deltas.end()
    assert ClockReason.HARDWARE_SLOWDOWN in found.reasons
    assert found.temperature_celsius == 35


# ---- the fault matrix: every code of NVML's


@pytest.mark.parametrize("code", CODES, ids=CODES.get)
def test_every_code_has_its_own_words(code: int) -> None:
    """Every error that NVML can give has a reason and a remedy."""
    assert gap_of(code).reason != gap_of(-1).reason
    assert gap_of(code).remedy
    assert (gap_of(code).code is GapCode.DEVICE_LOST) == (code in LOST)
    assert (gap_of(code).code is GapCode.TEMPORARY) == (code in PASSING)


@pytest.mark.parametrize("code", CODES, ids=CODES.get)
def test_fault_of_a_sensor(alone: Neighbours, code: int) -> None:
    """A failing sensor is unmeasured with a note; a lost GPU voids; nothing fails."""
    script = BURST + f",*,error.nvmlDeviceGetTotalEnergyConsumption,{code}\n"
    found, gate = during(script, alone)
    assert found.energy_joules is None
    silent = found.silent.get("energy")
    assert silent is not None
    assert silent == gap_of(code)
    if code in LOST:
        assert gate.void is not None
        assert gate.void.code == "device-lost"
    else:
        noted = [] if code in ABSENT else ["sensor-silent"]
        assert gate.void is None
        assert [note.code for note in gate.notes] == noted


@pytest.mark.parametrize("code", CODES, ids=CODES.get)
def test_fault_of_a_field(alone: Neighbours, code: int) -> None:
    """A field that fails leaves the others alone."""
    script = BURST + f"0,*,error.field.94,0\n300,*,error.field.94,{code}\n"
    found, gate = during(script, alone)
    assert found.pcie_replay_count is None
    assert found.silent.get("PCIe replays") is not None
    assert (gate.void is not None) == (code in LOST)
    if code not in LOST:
        assert found.ecc_changes["corrected errors"] == 0


@pytest.mark.parametrize("code", CODES, ids=CODES.get)
def test_fault_of_all_fields(alone: Neighbours, code: int) -> None:
    """Fields that fail as one leave the other sensors alone."""
    script = BURST + f",*,error.nvmlDeviceGetFieldValues,{code}\n"
    found, gate = during(script, alone)
    assert found.throttled_s == {}
    assert (gate.void is not None) == (code in LOST)
    assert (found.energy_joules is None) == (code in LOST)


@pytest.mark.parametrize("code", CODES, ids=CODES.get)
def test_fault_of_gpm(alone: Neighbours, code: int) -> None:
    """GPM that fails says why, in place of its averages."""
    found, gate = during(BURST + f",*,error.nvmlGpmMetricsGet,{code}\n", alone)
    assert found.gpm == {}
    assert found.gpm_reason == gap_of(code).reason
    assert (gate.void is not None) == (code in LOST)


@pytest.mark.parametrize("code", CODES, ids=CODES.get)
def test_fault_of_the_start(code: int) -> None:
    """NVML that does not start is unavailable, with the reason and a remedy."""
    with (
        scripted(f",0,error.nvmlInit,{code}\n") as (nvml, library),
        pytest.raises(CollectorUnavailableError) as caught,
    ):
        open_board(UUID, nvml=nvml)
    assert gap_of(code).reason in caught.value.message
    assert caught.value.remedy == gap_of(code).remedy
    assert not library.started


ANSWERS = {("nvmlEventSetWait", 10), ("nvmlDeviceGetSamples", 6)}  # nothing came


@pytest.mark.parametrize("code", CODES, ids=CODES.get)
@pytest.mark.parametrize(
    "function", [*CALLS, "nvmlEventSetCreate", "nvmlDeviceRegisterEvents"]
)
def test_any_fault_of_any_call(alone: Neighbours, function: str, code: int) -> None:
    """Whatever fails with whichever code, the test goes on; only a lost GPU voids."""
    found, gate = during(BURST + f",*,error.{function},{code}\n", alone)
    assert (found.lost is not None) == (code in LOST)
    assert (gate.void is not None) == (code in LOST)
    if code in ABSENT | LOST or (function, code) in ANSWERS:
        return
    noted = {note.code for note in gate.notes}
    assert "sensor-silent" in noted
    assert noted <= {"sensor-silent", "company-unknown", "throttling-uncounted"}


def test_shutting_down_fails(alone: Neighbours) -> None:
    """NVML that does not take itself back fails nothing."""
    with scripted(",0,mig,0\n,0,error.nvmlShutdown,1\n") as (nvml, _):
        board = open_board(UUID, nvml=nvml)
        board.close()
        assert [*board.silent] == ["NVML"]


def test_no_binding(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without the binding is told what to install."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(CollectorUnavailableError, match="nvidia-ml-py"):
        open_board(UUID)


def test_an_older_binding() -> None:
    """A function that the binding does not have is a sensor of that reason."""
    with scripted("") as (nvml, _):
        board = open_board(UUID, nvml=nvml)
        assert board.call("future", "nvmlDeviceGetTheFuture") is None
        assert "future" in board.silent
        board.close()


def test_gpm_of_an_instance(alone: Neighbours) -> None:
    """An instance of a GPU has averages of its own."""
    with rig(BURST + f",0,uuid,MIG-{UUID[4:]}\n", alone) as (clock, deltas, library):
        clock.advance(200 * MS)
        deltas.begin()
        clock.advance(300 * MS)
        found = deltas.end()
        assert library.calls.count("nvmlGpmMigSampleGet") == 2
        assert "nvmlGpmSampleGet" not in library.calls
    assert found.gpm["sm_active_fraction"] == pytest.approx(0.975)


def test_an_unknown_code(alone: Neighbours) -> None:
    """A code of a newer NVML is noted, and the sensor is asked again."""
    script = BURST + ",*,error.nvmlDeviceGetTotalEnergyConsumption,77\n"
    found, gate = during(script, alone)
    silent = found.silent.get("energy")
    assert silent is not None
    assert silent.code is GapCode.TEMPORARY
    assert [note.code for note in gate.notes] == ["sensor-silent"]


@pytest.mark.parametrize("code", [4, 10])
def test_asked_again(alone: Neighbours, code: int) -> None:
    """A sensor that may come back is asked again; one that cannot is left alone."""
    name = "nvmlDeviceGetTotalEnergyConsumption"
    script = BURST + f"0,*,error.{name},{code}\n750,*,error.{name},0\n"
    with rig(script, alone) as (clock, deltas, library):
        deltas.begin()
        clock.advance(800 * MS)
        deltas.end()
        deltas.begin()
        clock.advance(1000 * MS)
        found = deltas.end()
        assert (found.energy_joules is not None) == (code == 10)
        assert (found.silent.get("energy") is None) == (code == 10)
        assert library.calls.count(name) == (4 if code == 10 else 1)


def verdict(code: int) -> str:
    """Return what docs/gpu-timing-internals.md says of a code."""
    if code in LOST:
        return "void `device-lost`"
    again = ", asked again" if code in PASSING else ""
    return (
        "unmeasured" if code in ABSENT else f"unmeasured, note `sensor-silent`{again}"
    )


@pytest.mark.parametrize("code", CODES, ids=CODES.get)
def test_the_page_says_what_a_code_leads_to(code: int) -> None:
    """docs/gpu-timing-internals.md has a row for each error, with the test that proves it."""
    page = Path(__file__).parents[3] / "docs" / "gpu-timing-internals.md"
    if not page.is_file():
        pytest.skip("the documents are not beside the tests")
    row = (
        f"| {code} {CODES[code]} | {verdict(code)}: {gap_of(code).reason} "
        "| `test_nvml.py::test_fault_of_a_sensor` |"
    )
    assert row in page.read_text(encoding="utf-8").splitlines()


# ---- which GPU


def test_by_uuid_never_by_index() -> None:
    """CUDA's UUID finds the GPU whatever NVML's order is."""
    second = "aaaaaaaa-0000-4000-8000-000000000001"
    script = f",0,sys.gpus,2\n,1,uuid,GPU-{second}\n"
    with scripted(script) as (nvml, _):
        board = open_board(second, nvml=nvml)
        assert (board.index, board.uuid) == (1, f"GPU-{second}")
        board.close()


def test_by_place_on_the_bus() -> None:
    """A GPU whose UUID NVML does not know is found by its place on the bus."""
    with scripted(",0,sys.gpus,2\n") as (nvml, _):
        board = open_board("?", pci_bus_id="00000000:19:00.0", nvml=nvml)
        assert board.index == 1
        board.close()


def test_no_such_gpu() -> None:
    """A GPU that NVML does not know is unavailable, and NVML is given back."""
    with scripted(",0,sys.gpus,1\n") as (nvml, library):
        with pytest.raises(CollectorUnavailableError, match="no longer there"):
            open_board("?", nvml=nvml)
        assert not library.started


def test_an_instance() -> None:
    """The driver's UUID of an instance finds it, and its neighbours are unknown."""
    bare = "bbbbbbbb-0000-4000-8000-000000000001"
    with scripted(f",0,uuid,MIG-{bare}\n,*,gpm,1\n") as (nvml, _):
        board = open_board(bare, nvml=nvml)
        assert (board.instance, board.uuid) == (1, f"MIG-{bare}")
        sharing, _, reason = Neighbours(1, Path("/nowhere"), {}).on_gpu(board)
        assert sharing is Sharing.UNKNOWN
        assert reason is not None
        assert "MIG" in reason
        board.close()


# ---- who else is there


def sharing(
    text: str, neighbours: Neighbours
) -> tuple[Sharing, tuple[int, ...], str | None]:
    with scripted(text) as (nvml, _):
        board: Board = open_board(UUID, nvml=nvml)
        try:
            return neighbours.on_gpu(board)
        finally:
            board.close()


def test_own_processes(alone: Neighbours) -> None:
    """The process itself and what it started are not foreign."""
    found = sharing(",*,proc.100,5\n,*,proc.101,5\n", alone)
    assert found == (Sharing.ALONE, (), None)


def test_foreign_process(alone: Neighbours) -> None:
    """Whoever does not descend from the process is foreign, and voids."""
    assert sharing(",*,proc.100,5\n,*,proc.200,5\n", alone)[:2] == (
        Sharing.FOREIGN,
        (200,),
    )
    found, gate = during(BURST + "300,*,proc.200,5\n300,*,use.200,1\n", alone)
    assert found.foreign_pids == (200,)
    assert gate.void is not None
    assert gate.void.text == (
        "process 200 computed on the same GPU; end it, or measure on another GPU"
    )


def test_foreign_process_that_left(alone: Neighbours) -> None:
    """A foreign process that computed at the beginning alone voids, too."""
    gone = "0,*,proc.200,5\n300,*,proc.200,-1\n0,*,use.200,9\n300,*,use.200,0\n"
    found, _ = during(BURST + gone, alone)
    assert (found.sharing, found.foreign_pids) == (Sharing.FOREIGN, (200,))


def test_a_process_between_the_readings_is_not_seen(alone: Neighbours) -> None:
    """Who is on the GPU is read before and after the body, and at no other moment."""
    brief = "250,*,proc.200,5\n290,*,proc.200,-1\n250,*,use.200,9\n290,*,use.200,0\n"
    found, gate = during(BURST + brief, alone)
    assert (found.sharing, found.foreign_pids) == (Sharing.ALONE, ())
    assert gate.void is None


@pytest.mark.parametrize("before", ["", "0,*,use.200,90\n150,*,use.200,0\n"])
def test_a_process_that_does_not_use_the_gpu_is_a_note(
    alone: Neighbours, before: str
) -> None:
    """An open notebook voids nothing, whatever it did before the measurement."""
    found, gate = during(BURST + before + ",*,proc.200,5\n", alone)
    assert (found.sharing, found.foreign_pids) == (Sharing.ALONE, ())
    assert found.idle_pids == (200,)
    assert gate.void is None
    assert [note.code for note in gate.notes] == ["idle-process"]
    assert gate.notes[0].text == (
        "process 200 has memory on the same GPU, and did not use it during the measurement"
    )


def test_of_two_processes_the_busy_one_voids(alone: Neighbours) -> None:
    """The other one is a note."""
    text = BURST + ",*,proc.200,5\n,*,proc.300,5\n0,*,use.300,4\n"
    found, gate = during(text, alone)
    assert (found.foreign_pids, found.idle_pids) == ((300,), (200,))
    assert gate.void is not None
    assert "process 300 computed" in gate.void.reason


@pytest.mark.parametrize(
    "refused", ["nvmlDeviceGetProcessUtilization", "nvmlDeviceGetSamples"]
)
def test_a_use_that_the_driver_does_not_tell_voids(
    alone: Neighbours, refused: str
) -> None:
    """vGPU and WSL2 list processes at most: any of them may have computed."""
    text = BURST + f",*,proc.200,5\n,*,error.{refused},3\n"
    found, gate = during(text, alone)
    assert found.foreign_pids == (200,)
    assert gate.void is not None
    assert "process 200 may have computed" in gate.void.reason


@pytest.mark.parametrize(("sampled_after_s", "is_known"), [(0.1, True), (1.0, False)])
def test_a_short_measurement_waits_for_a_sample(
    alone: Neighbours, sampled_after_s: float, *, is_known: bool
) -> None:
    """The driver samples a few times a second: a test of a millisecond has none."""
    sampled_ms = 201 + round(sampled_after_s * 1000)
    text = (
        BURST
        + ",*,proc.200,5\n200,*,error.nvmlDeviceGetSamples,6\n"
        + f"{sampled_ms},*,error.nvmlDeviceGetSamples,0\n"
    )
    clock = FakeClock()
    with scripted(text, clock=clock) as (nvml, _):
        board = open_board(UUID, nvml=nvml)
        deltas = Deltas(board, clock, neighbours=alone, gpm=False)
        clock.advance(200 * MS)
        deltas.begin()
        clock.advance(1 * MS)
        found = deltas.end()
        deltas.close()
        board.close()

    assert clock.now_ns() <= (201 + 250) * MS
    assert found.use_unknown is not is_known
    assert (found.idle_pids == (200,)) is is_known


def test_nobody_there_is_not_waited_for(alone: Neighbours) -> None:
    """Without another process the driver is not asked who used the GPU."""
    text = BURST + ",*,error.nvmlDeviceGetProcessUtilization,999\n"
    found, gate = during(text, alone)
    assert gate == Gates()
    assert not found.use_unknown


def test_container(tmp_path: Path) -> None:
    """In a container nobody knows whose the ids of the host are."""
    inside = Neighbours(1, system(tmp_path, "pid:[4026532999]"), {})
    found, _, reason = sharing(",*,proc.7,5\n", inside)
    assert found is Sharing.UNKNOWN
    assert reason is not None
    assert "container" in reason


def test_no_proc(tmp_path: Path) -> None:
    """Where the system does not show its processes, who shares it is unknown."""
    assert sharing("", Neighbours(1, tmp_path / "none", {}))[0] is Sharing.UNKNOWN


@pytest.mark.parametrize("by", ["environment", "driver"])
def test_mps(tmp_path: Path, by: str) -> None:
    """MPS shares a GPU: by whom is unknown."""
    named = {"CUDA_MPS_PIPE_DIRECTORY": "/tmp/mps"} if by == "environment" else {}  # noqa: S108 - only a name
    text = "" if by == "environment" else ",*,mps.9,5\n"
    found, _, reason = sharing(text, Neighbours(1, system(tmp_path), named))
    assert found is Sharing.UNKNOWN
    assert reason is not None
    assert "MPS" in reason


@pytest.mark.parametrize(
    ("mode", "found"), [(0, Sharing.ALONE), (1, Sharing.ALONE), (2, Sharing.UNKNOWN)]
)
def test_virtual_gpu(alone: Neighbours, mode: int, found: Sharing) -> None:
    """A guest sees its own processes: those of other guests share a vGPU, unseen."""
    state, _, reason = sharing(f",*,virtual,{mode}\n,*,proc.101,5\n", alone)
    assert state is found
    assert ("vGPU" in (reason or "")) is (found is Sharing.UNKNOWN)


# Answers 3, as NVIDIA's documents have it. No such machine was asked.
_USE = ("nvmlDeviceGetProcessUtilization", "nvmlDeviceGetSamples")
_PROCESSES = (
    *("nvmlDeviceGetComputeRunningProcesses", *_USE),
    "nvmlDeviceGetMPSComputeRunningProcesses",
)
REFUSALS = {
    "vGPU": (
        ",*,virtual,2\n",
        (*_USE, "nvmlDeviceGetTotalEnergyConsumption", "nvmlGpmQueryDeviceSupport"),
    ),
    "WSL2": ("", (*_PROCESSES, "nvmlEventSetCreate")),
    "SoC": (
        "",
        (
            *(*_PROCESSES, "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetFieldValues"),
            *("nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetMigMode"),
            *("nvmlDeviceGetTemperature", "nvmlDeviceGetTemperatureV"),
            "nvmlDeviceGetCurrentClocksEventReasons",
            *("nvmlDeviceGetCurrentClocksThrottleReasons", "nvmlEventSetCreate"),
            "nvmlGpmQueryDeviceSupport",
        ),
    ),
}


@pytest.mark.parametrize("machine", list(REFUSALS))
def test_a_machine_that_refuses_sensors(alone: Neighbours, machine: str) -> None:
    """Its values are missing without a fault, and who shares it is unknown."""
    more, refused = REFUSALS[machine]
    errors = "".join(f",*,error.{name},3\n" for name in refused)
    found, gate = during(BURST + more + errors, alone)

    assert found.lost is None
    assert found.sharing is Sharing.UNKNOWN
    assert (found.energy_joules is None) is (machine != "WSL2")
    assert (found.memory_used_bytes is None) is (machine == "SoC")
    assert gate.void is None
    assert {note.code for note in gate.notes} <= {
        "company-unknown",
        "throttling-uncounted",
    }
    assert "company-unknown" in {note.code for note in gate.notes}


def test_split_gpu(alone: Neighbours) -> None:
    """A GPU in MIG mode hides who else is on it."""
    assert sharing(",*,mig,1\n", alone)[0] is Sharing.UNKNOWN


@pytest.mark.parametrize("code", sorted(set(CODES) - LOST), ids=CODES.get)
def test_no_list_of_processes(alone: Neighbours, code: int) -> None:
    """A driver that lists no processes leaves it unknown, with the reason."""
    text = f",*,error.nvmlDeviceGetComputeRunningProcesses,{code}\n"
    found, _, reason = sharing(text, alone)
    assert found is Sharing.UNKNOWN
    assert reason is not None
    assert gap_of(code if code != 7 else 999).reason in reason or code == 7


# ---- the second pass

STEADY = """
,0,sys.gpus,1
,*,gpm,1
,*,gpm.2,80
,*,period.energy_us,100000
0,*,power.mw,75000
500,*,power.mw,600000
"""


def passed(
    text: str, neighbours: Neighbours, call_ns: int = 100_000, **more: Any
) -> SecondPass:
    with rig(text, neighbours) as (clock, deltas, _):
        return second_pass(
            lambda: clock.advance(call_ns), deltas, clock, lambda: None, **more
        )


def test_energy_of_a_call(alone: Neighbours) -> None:
    """Energy and power come from whole steps of the counter."""
    found = passed(STEADY, alone)
    assert found.energy_joules == pytest.approx(600 * 100e-6, rel=0.01)
    assert found.power_watts == pytest.approx(600, rel=0.01)
    assert found.duration_s >= 2.0
    assert found.missing == {}


def test_energy_of_a_long_call(alone: Neighbours) -> None:
    """A call of three seconds is called no more often than it must be."""
    found = passed(STEADY, alone, call_ns=3_000 * MS)
    assert found.calls_count == 1
    assert found.energy_joules == pytest.approx(1800, rel=0.05)


def test_gpm_of_a_short_call(alone: Neighbours) -> None:
    """A call of microseconds is repeated until GPM can see it."""
    found = passed(STEADY, alone, call_ns=5_000, energy=False, gpm=True)
    assert found.deltas.gpm["sm_active_fraction"] == pytest.approx(0.8)
    assert found.deltas.duration_s >= 0.5
    assert found.missing == {}
    assert found.energy_joules is None


def test_a_counter_that_stands_still(alone: Neighbours) -> None:
    """A counter of energy that does not move is unmeasured by that name."""
    found = passed(STEADY.replace("100000", "90000000", 1), alone)
    assert found.energy_joules is None
    assert "changed too seldom" in found.missing["energy"].reason
    assert found.deltas.duration_s < 11


def test_power_without_a_counter_of_energy(alone: Neighbours) -> None:
    """A board that does not count energy has the power that its driver sampled."""
    found = passed(STEADY + ",*,error.nvmlDeviceGetTotalEnergyConsumption,3\n", alone)
    assert found.power_watts == pytest.approx(600)
    assert [*found.missing] == ["energy"]


@pytest.mark.parametrize("code", CODES, ids=CODES.get)
def test_fault_of_energy_in_the_second_pass(alone: Neighbours, code: int) -> None:
    """Energy that was asked for and cannot be read is missing, with NVML's reason."""
    found = passed(
        STEADY + f",*,error.nvmlDeviceGetTotalEnergyConsumption,{code}\n", alone
    )
    assert found.energy_joules is None
    assert found.missing["energy"] == gap_of(code)


def test_no_gpm_in_the_second_pass(alone: Neighbours) -> None:
    """GPM that was asked for on an older GPU is missing, with the reason."""
    found = passed(STEADY.replace(",*,gpm,1", ",*,gpm,0"), alone, gpm=True)
    assert [*found.missing] == ["GPM"]


def test_sensors_without_gpm(tmp_path: Path) -> None:
    """GPM that is asked of sensors without it is missing, not absent."""
    clock = FakeClock()
    with scripted(STEADY, clock=clock) as (nvml, _):
        board = open_board(UUID, nvml=nvml)
        deltas = Deltas(board, clock, neighbours=Neighbours(1, tmp_path, {}), gpm=False)
        found = second_pass(
            lambda: clock.advance(MS),
            deltas,
            clock,
            lambda: None,
            energy=False,
            gpm=True,
        )
        deltas.close()
        board.close()
    assert [*found.missing] == ["GPM"]


def test_lost_in_the_second_pass(alone: Neighbours) -> None:
    """A GPU that is lost in between ends the pass, and voids."""
    found = passed(
        STEADY + "2500,*,error.nvmlDeviceGetTotalEnergyConsumption,15\n", alone
    )
    assert found.missing["energy"] == gap_of(15)
    assert gates(found.deltas).void is not None


def test_never_begun(alone: Neighbours) -> None:
    """An end without a beginning is a mistake of the program."""
    with (
        rig(BURST, alone) as (_, deltas, _library),
        pytest.raises(RuntimeError, match="without begin"),
    ):
        deltas.end()


def test_real_classes() -> None:
    """The double fills the real binding's structures and raises its classes."""
    nvml = binding(FakeLibrary(Script(BURST)))
    nvml.nvmlInit()
    handle = nvml.nvmlDeviceGetHandleByUUID(UUID.encode())
    memory = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    assert isinstance(memory, nvml.c_nvmlMemory_v2_t)
    with pytest.raises(nvml.NVMLError_NotSupported):
        nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_VIDEO)
    binding(None)
