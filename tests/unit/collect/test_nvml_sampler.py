"""collect.nvml_sampler: the sampler's parts on the Python double, its process on the compiled one."""

from __future__ import annotations

import fcntl
import json
import math
import os
import resource
import signal
import struct
import subprocess
import sys
import time
from array import array
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from hypothesis import given
from hypothesis import strategies as st

from fakes.clock import FakeClock
from fakes.nvml_library import BURST, compiled, scripted
from pytest_gpuperf.collect.clock import SystemClock
from pytest_gpuperf.collect.nvml import child as nvml_child
from pytest_gpuperf.collect.nvml.child import COLUMNS, Ring, Sensors, schedule
from pytest_gpuperf.collect.nvml.library import GPM_METRICS
from pytest_gpuperf.collect.nvml.sampler import Sampler, canonical, newest
from pytest_gpuperf.compute.timeline import summarise
from pytest_gpuperf.errors import CollectorUnavailableError, MeasureError

UUID = "GPU-00000000-0000-4000-8000-000000000000"
PERIOD_NS = 10_000_000
MANY_FILES = 1100  # FD_SETSIZE is 1024
GPM = GPM_METRICS


class Script:
    """Time that passes as sampling takes it, and an end after so many samples."""

    def __init__(self, taking_ns: list[int]) -> None:
        self.clock = FakeClock()
        self.taking_ns = taking_ns
        self.sampled_ns: list[int] = []
        self.skipped = 0

    def sample(self) -> None:
        self.sampled_ns.append(self.clock.reading_ns)
        self.clock.advance(self.taking_ns[len(self.sampled_ns) - 1])

    def skip(self, periods: int) -> None:
        self.skipped += periods

    def wait(self, duration_s: float) -> bool:
        self.clock.sleep(duration_s)
        return len(self.sampled_ns) == len(self.taking_ns)

    def run(self) -> Script:
        schedule(self.sample, self.skip, PERIOD_NS, self.clock.now_ns, self.wait)
        return self


@given(st.lists(st.integers(0, 5 * PERIOD_NS), min_size=1, max_size=50))
def test_deadlines(taking_ns: list[int]) -> None:
    """Samples fall on whole periods whatever they take; what is left out is counted."""
    found = Script(taking_ns).run()
    assert all(at_ns % PERIOD_NS == 0 for at_ns in found.sampled_ns)
    slots = found.clock.reading_ns // PERIOD_NS
    assert len(found.sampled_ns) + found.skipped == slots


def test_no_drift() -> None:
    """A thousand samples that take a third of their period end on time."""
    found = Script([PERIOD_NS // 3] * 1000).run()
    assert found.sampled_ns[-1] == 999 * PERIOD_NS
    assert found.skipped == 0


def ring(capacity: int) -> tuple[Ring, memoryview[float]]:
    length = nvml_child.HEAD_LENGTH + capacity * nvml_child.record_length(len(GPM))
    doubles = memoryview(bytearray(8 * length)).cast("d")
    made = Ring(doubles, capacity=capacity, gpm_count=len(GPM), period_s=0.01)
    return made, doubles


def values(**known: float) -> array[float]:
    found = [known.get(column, math.nan) for column in COLUMNS]
    return array("d", found + [math.nan] * len(GPM))


@given(st.integers(1, 20), st.integers(0, 60))
def test_ring(capacity: int, count: int) -> None:
    """A ring keeps the newest records that fit, the newest first."""
    made, doubles = ring(capacity)
    for i in range(count):
        made.put(float(i), 0.0, 0, values())
    kept = [row[1] for row in newest(doubles)]
    assert kept == [
        float(i) for i in range(count - 1, max(-1, count - 1 - capacity), -1)
    ]


def test_a_record_that_is_being_written() -> None:
    """A record whose two numbers differ is left out."""
    made, doubles = ring(4)
    for i in range(4):
        made.put(float(i), 0.0, 0, values())
    length = nvml_child.record_length(len(GPM))
    doubles[nvml_child.HEAD_LENGTH + 2 * length] = 7.0
    assert [row[1] for row in newest(doubles)] == [3.0, 1.0, 0.0]


def test_source() -> None:
    """A source reads each sensor; a failing one is silent, with its code."""
    clock = FakeClock()
    failed: list[tuple[str, int]] = []
    script = BURST + ",*,error.nvmlDeviceGetUtilizationRates,4\n"
    with scripted(script, clock=clock) as (nvml, library):
        nvml.nvmlInit()
        source = Sensors(
            nvml, UUID, COLUMNS, GPM, lambda *both: failed.append(both), clock.now_ns
        )
        clock.advance(300_000_000)
        first = dict(zip(COLUMNS, source.read(0.3), strict=False))
        clock.advance(150_000_000)
        second = list(source.read(0.45))
        calls = library.calls
        assert calls.count("nvmlDeviceGetUtilizationRates") == 1
    assert first["power_milliwatts"] == 640_000
    assert first["used_bytes"] == 40_000_000_000
    assert first["clock_reasons"] == 0
    assert math.isnan(first["gpu_percent"])
    assert math.isnan(first["gpm_since_s"])
    assert dict(zip(COLUMNS, second, strict=False))["gpm_since_s"] == 0.3
    assert second[len(COLUMNS) + GPM.index(2)] == pytest.approx(97.5)
    assert ("gpu_percent", 4) in failed
    assert ("nvlink_tx_kib", 3) in failed


@pytest.mark.parametrize(
    ("kind", "layout", "value"),
    [
        (0, "<d", 1.5),
        (1, "<I", 0xFFFF_FFFE),
        (2, "<Q", 1 << 40),
        (3, "<Q", 1 << 40),
        (4, "<q", -3),
        (5, "<i", -3),
        (6, "<H", 0xFFFE),
    ],
)
def test_types_of_fields(kind: int, layout: str, value: float) -> None:
    """A field's value is what its type says, whatever else its eight bytes hold."""

    held = struct.pack(layout, value).ljust(8, b"\xab")  # older bindings lack members

    def answer(gpu: int, out: Any) -> int:
        out.valueType, out.value.ullVal = kind, int.from_bytes(held, "little")
        return 0

    with scripted(BURST) as (nvml, library):
        nvml.nvmlInit()
        library._answer = answer  # type: ignore[method-assign] # of the double
        source = Sensors(nvml, UUID, COLUMNS, (), lambda *both: None)
        assert source.read(0.0)[COLUMNS.index("power_milliwatts")] == value


def test_a_field_that_tells_something_else_each_time() -> None:
    """What held for the reading before is not taken for granted; nothing is made up."""
    told = [(1, 0, 7), (1, 0, 8), (3, 0, 1 << 40), (1, 999, 9), (7, 0, 9), (1, 0, 10)]
    failed: list[tuple[str, int]] = []
    found: list[float] = []

    def answer(gpu: int, out: Any) -> int:
        out.valueType, code, out.value.ullVal = told[len(found)]
        return code

    with scripted(BURST) as (nvml, library):
        nvml.nvmlInit()
        library._answer = answer  # type: ignore[method-assign] # of the double
        source = Sensors(nvml, UUID, COLUMNS, (), lambda *both: failed.append(both))
        place = COLUMNS.index("power_milliwatts")
        for _ in told:
            found.append(source.read(0.0)[place])  # noqa: PERF401 - the double asks how many
    assert str(found) == str([7.0, 8.0, float(1 << 40), math.nan, math.nan, 10.0])
    assert [code for column, code in failed if column == "power_milliwatts"] == [
        999,  # NVML's own
        999,  # a type that nvml.h does not have
    ]


def test_a_source_of_an_old_driver() -> None:
    """What has another name in an older driver is read by that."""
    missing = frozenset(
        {"nvmlDeviceGetTemperatureV", "nvmlDeviceGetCurrentClocksEventReasons"}
    )
    with scripted(BURST, missing=missing) as (nvml, _):
        nvml.nvmlInit()
        read = Sensors(nvml, UUID, COLUMNS, GPM, lambda *both: None).read(1.0)
    found = dict(zip(COLUMNS, read, strict=False))
    assert (found["celsius"], found["clock_reasons"]) == (35, 1)


def test_a_source_of_an_instance() -> None:
    """An instance of a GPU has averages of its own."""
    clock = FakeClock()
    name = f"MIG-{UUID[4:]}"
    with scripted(BURST + f",0,uuid,{name}\n", clock=clock) as (nvml, library):
        nvml.nvmlInit()
        source = Sensors(nvml, name, COLUMNS, GPM, lambda *both: None, clock.now_ns)
        source.read(0.0)
        clock.advance(150_000_000)
        source.read(0.15)
        assert library.calls.count("nvmlGpmMigSampleGet") == 2


def test_an_average_that_failed_once() -> None:
    """An average that could not be had is of the whole time when it can."""
    clock = FakeClock()
    script = BURST + (
        "0,*,error.nvmlGpmMetricsGet,10\n300,*,error.nvmlGpmMetricsGet,0\n"
    )
    with scripted(script, clock=clock) as (nvml, _):
        nvml.nvmlInit()
        source = Sensors(nvml, UUID, COLUMNS, GPM, lambda *both: None, clock.now_ns)
        source.read(0.0)
        since = []
        for at_s in (0.2, 0.4):
            clock.advance(200_000_000)
            found = dict(zip(COLUMNS, source.read(at_s), strict=False))
            since.append(found["gpm_since_s"])
    assert math.isnan(since[0])
    assert since[1] == 0.0


@given(st.lists(st.integers(1, 30_000_000), min_size=10, max_size=40))
def test_averages_are_taken_far_apart(late_ns: list[int]) -> None:
    """However late each sample is taken, NVML is not asked before 100 ms are over."""
    clock = FakeClock()
    failed: list[tuple[str, int]] = []
    with scripted(BURST, clock=clock, late_ns=late_ns) as (nvml, _):
        nvml.nvmlInit()
        source = Sensors(
            nvml, UUID, COLUMNS, GPM, lambda *both: failed.append(both), clock.now_ns
        )
        while late_ns:
            source.read(clock.reading_ns / 1e9)
            clock.advance(20_000_000)
    assert "gpm_since_s" not in {column for column, _ in failed}


def test_a_lost_source() -> None:
    """A GPU that is lost is asked nothing more, and its records stay empty."""
    clock = FakeClock()
    failed: list[tuple[str, int]] = []
    script = BURST + "500,*,error.field.83,15\n"
    with scripted(script, clock=clock) as (nvml, library):
        nvml.nvmlInit()
        source = Sensors(
            nvml, UUID, COLUMNS, GPM, lambda *both: failed.append(both), clock.now_ns
        )
        clock.advance(500_000_000)
        source.read(0.5)
        before = len(library.calls)
        assert all(math.isnan(each) for each in source.read(1.0))
        assert len(library.calls) == before
    assert ("energy_millijoules", 15) in failed


def row(at_s: float, **known: float) -> tuple[float, ...]:
    """Return a record of a ring; `gpm` is the SM's share, in percent."""
    share = known.pop("gpm", math.nan)
    found = values(**known)
    found[len(COLUMNS) + GPM.index(2)] = share
    return (1.0, at_s, 1e9 + at_s, 0.0, *found, 1.0)


def test_averages_fill_what_they_describe() -> None:
    """A GPM average holds for each sample since the average before it."""
    rows = [
        row(0.0),
        row(0.05),
        row(0.1, gpm=50.0, gpm_since_s=0.0),
        row(0.15),
        row(0.2, gpm=80.0, gpm_since_s=0.1),
        row(0.25),
    ]
    found = canonical(rows, (UUID,), [3])
    assert [each.sm_active_fraction for each in found] == [
        None,
        0.5,
        0.5,
        0.8,
        0.8,
        None,
    ]
    assert {each.gpu_index for each in found} == {3}


def test_rates_of_counters() -> None:
    """Rates are differences of counters; the first record, and a reset, have none."""
    rows = [
        row(0.0, pcie_tx_bytes=100, nvlink_tx_kib=1, nvlink_rx_kib=1),
        row(0.5, pcie_tx_bytes=600, nvlink_tx_kib=2, nvlink_rx_kib=2),
        row(1.0, pcie_tx_bytes=0, nvlink_tx_kib=2),
    ]
    found = canonical(rows, (UUID,), [0])
    assert [each.pcie_tx_bytes_per_s for each in found] == [None, 1000.0, None]
    assert [each.nvlink_bytes_per_s for each in found] == [None, 4096.0, None]


def test_a_counter_of_32_bits_begins_anew() -> None:
    """What it lacks then is 4 GiB; NVLink's, of 64 bits, was reset."""
    old, new = 2**32 - 100.0, 400.0
    rows = [
        row(0.0, pcie_tx_bytes=old, nvlink_tx_kib=old, nvlink_rx_kib=1),
        row(0.5, pcie_tx_bytes=new, nvlink_tx_kib=new, nvlink_rx_kib=1),
    ]
    narrow = canonical(rows, (UUID,), [0], {"pcie_tx_bytes"})[-1]
    wide = canonical(rows, (UUID,), [0])[-1]
    assert (narrow.pcie_tx_bytes_per_s, wide.pcie_tx_bytes_per_s) == (1000.0, None)
    assert narrow.nvlink_bytes_per_s is None


def test_a_sampler_tells_which_counters_have_32_bits() -> None:
    """The double answers as an H200 does: PCIe's counters have, NVLink's have not."""
    made, doubles = ring(4)
    with scripted(BURST) as (nvml, _):
        nvml.nvmlInit()
        source = Sensors(nvml, UUID, COLUMNS, (), made.failed, narrow=made.narrow)
        source.read(0.0)
    bits = int(doubles[nvml_child.HEAD["narrow"]])
    found = {column for n, column in enumerate(COLUMNS) if bits >> n & 1}
    assert {"pcie_tx_bytes", "pcie_rx_bytes", "power_milliwatts"} <= found
    assert not found & {"nvlink_tx_kib", "energy_millijoules", "gpm_since_s"}


def test_units() -> None:
    """A record has SI units and whole counts."""
    (found,) = canonical(
        [
            row(
                0.0,
                power_milliwatts=640_000,
                sm_mhz=1980,
                gpu_percent=99,
                remap_failed=0,
            )
        ],
        (UUID,),
        [0],
    )
    assert found.power_watts == pytest.approx(640.0)
    assert found.sm_clock_hz == 1980e6
    assert found.gpu_busy_fraction == pytest.approx(0.99)
    assert found.row_remap_failed is False


@pytest.mark.parametrize(
    ("bits", "reasons"),
    [
        ({}, None),
        ({"clock_reasons": 0x3}, set()),  # idle, and held by a setting
        ({"clock_reasons": 0x44}, {"software power cap", "hardware thermal slowdown"}),
    ],
)
def test_reasons_of_the_clock(bits: dict[str, int], reasons: set[str] | None) -> None:
    """Limits alone count; a sensor that did not say is not one without limits."""
    (found,) = canonical([row(0.0, **bits)], (UUID,), [0])
    assert found.clock_reasons == reasons


@pytest.mark.parametrize("hz", [0.0, -1.0, 101.0, math.nan])
def test_frequency(hz: float) -> None:
    """More than 100 samples a second, or none, is refused."""
    with pytest.raises(MeasureError, match="Hz"):
        Sampler([UUID], SystemClock(), hz=hz)


# ---- the process, on the compiled double


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = compiled(tmp_path_factory.mktemp("fake_nvml"))
    if folder is None:
        pytest.skip("no C compiler")
    return folder


# a busy machine may take a second to start a process: the work goes on until then
LASTING = BURST.replace("\n700,", "\n60000,")


@pytest.fixture
def environment(library: Path, tmp_path: Path) -> dict[str, str]:
    script = tmp_path / "script.csv"
    script.write_text(LASTING)
    return os.environ | {
        "LD_LIBRARY_PATH": str(library),
        "FAKE_NVML_SCRIPT": str(script),
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "ring"


@pytest.fixture
def sampler(environment: dict[str, str], folder: Path) -> Iterator[Sampler]:
    made = Sampler([UUID], SystemClock(), hz=50, folder=folder, environment=environment)
    made.start()
    yield made
    made.stop()


def test_time_line(sampler: Sampler) -> None:
    """What the board does is seen in the window between two marks."""
    began_s = sampler.mark()
    # the first averages hold the idle time before the burst, of whatever length
    while not any(
        (each.sm_active_fraction or 0) > 0.97
        for each in sampler.records(began_s, sampler.mark())
    ):
        assert sampler.mark() - began_s < 20
        time.sleep(0.05)
    start_s = sampler.mark()
    time.sleep(1.0)
    end_s = sampler.mark()
    records = sampler.records(start_s, end_s)
    (summary,) = summarise(records, start_s=start_s, end_s=end_s, longest_s=0.5)
    assert summary.gpu_uuid == UUID
    assert summary.levels["power_watts"].p95 == pytest.approx(640)
    assert summary.levels["sm_active_fraction"].p95 == pytest.approx(0.975)
    assert summary.levels["memory_used_bytes"].p95 == 40_000_000_000
    assert summary.unobserved_s < end_s - start_s  # a busy machine leaves gaps
    assert records[-1].monotonic_s >= end_s
    assert "nvlink_tx_kib" in sampler.silent
    assert sampler.period_s == pytest.approx(0.02)


def awaited(condition: Callable[[], bool], patience_s: float = 20.0) -> bool:
    """Return whether something comes true in so long."""
    deadline_s = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.01)
    return True


def runs(pid: int) -> bool:
    """Return whether a process runs; one that nobody has asked how it ended does not."""
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except OSError:
        return False


def rings(folder: Path) -> list[str]:
    return [path.suffix for path in folder.iterdir() if path.suffix != ".lock"]


@pytest.fixture
def other(environment: dict[str, str], folder: Path) -> Iterator[Sampler]:
    """Return another run on the same host, which would sample more slowly."""
    made = Sampler([UUID], SystemClock(), hz=10, folder=folder, environment=environment)
    yield made
    made.stop()


def test_one_sampler_for_a_host(sampler: Sampler, other: Sampler, folder: Path) -> None:
    """A second run joins; when the first ends, its time line goes on without a gap."""
    other.start()
    assert other.pid == sampler.pid > 0
    assert other.period_s == pytest.approx(0.02)
    start_s = other.mark()
    sampler.stop()
    time.sleep(1.2)  # it looks for users twice meanwhile
    end_s = other.mark()
    (summary,) = summarise(
        other.records(start_s, end_s), start_s=start_s, end_s=end_s, longest_s=5.0
    )
    assert summary.unobserved_s == 0.0
    assert runs(other.pid)
    assert rings(folder) == [".ring"]


@pytest.mark.parametrize("hz", [0.02, 100.0])
def test_it_ends_with_the_last_of_its_users(
    environment: dict[str, str], folder: Path, hz: float
) -> None:
    """However rarely it samples, it soon sees that nobody is left, and tidies up."""
    users = [
        Sampler([UUID], SystemClock(), hz=hz, folder=folder, environment=environment)
        for _ in range(3)
    ]
    for each in users:
        each.start()
    (pid,) = {each.pid for each in users}
    for each in users:
        assert runs(pid)
        each.stop()

    assert awaited(lambda: not runs(pid))
    assert rings(folder) == []


def test_who_lets_go_knows_nothing(sampler: Sampler) -> None:
    """What was left has no records, and may be left again."""
    sampler.stop()
    sampler.stop()
    assert sampler.records(0.0, 1.0) == ()
    assert sampler.silent == {}
    assert sampler.pid == 0


def test_nobody_has_to_wait_for_its_process(sampler: Sampler) -> None:
    """It is not a child of who started it: that one has none that could be left behind."""
    parent = int(
        Path(f"/proc/{sampler.pid}/stat").read_text().rpartition(")")[2].split()[1]
    )
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    assert parent != os.getpid()
    assert str(sampler.pid) not in children


USER = """
import sys, time
from pathlib import Path
from pytest_gpuperf.collect.clock import SystemClock
from pytest_gpuperf.collect.nvml.sampler import Sampler
made = Sampler([sys.argv[1]], SystemClock(), hz=50, folder=Path(sys.argv[2]))
made.start()
print(made.pid, flush=True)
time.sleep(600)
"""


@contextmanager
def user(environment: dict[str, str], folder: Path) -> Iterator[tuple[int, int]]:
    """Yield the ids of a process that uses a sampler, and of the sampler's own."""
    with subprocess.Popen(
        [sys.executable, "-c", USER, UUID, str(folder)],
        env=environment,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        try:
            yield process.pid, int(process.stdout.readline())
        finally:
            process.kill()


def test_it_ends_with_a_user_that_is_killed(
    environment: dict[str, str], folder: Path
) -> None:
    """The kernel lets go for who cannot do it himself."""
    with user(environment, folder) as (_, sampling):
        assert runs(sampling)

    assert awaited(lambda: not runs(sampling))
    assert rings(folder) == []


def test_who_started_it_is_killed(
    environment: dict[str, str], folder: Path, other: Sampler
) -> None:
    """Who uses it too does not notice."""
    with user(environment, folder) as (_, sampling):
        other.start()
        start_s = other.mark()
    time.sleep(1.2)
    end_s = other.mark()

    assert other.pid == sampling
    (summary,) = summarise(
        other.records(start_s, end_s), start_s=start_s, end_s=end_s, longest_s=5.0
    )
    assert summary.unobserved_s == 0.0


def test_a_process_that_was_forked_holds_it_too(
    environment: dict[str, str], folder: Path
) -> None:
    """It may be the one that measures: the sampler ends when it has ended."""
    made = Sampler([UUID], SystemClock(), hz=50, folder=folder, environment=environment)
    made.start()
    sampling = made.pid
    told, tell = os.pipe()
    child = os.fork()
    if not child:
        os.close(tell)
        os.read(told, 1)
        os._exit(0)
    os.close(told)
    made.stop()
    time.sleep(1.2)
    assert runs(sampling)
    os.close(tell)
    os.waitpid(child, 0)

    assert awaited(lambda: not runs(sampling))


def test_many_start_at_once(environment: dict[str, str], folder: Path) -> None:
    """One of them starts it, the others join."""
    users = [
        Sampler([UUID], SystemClock(), hz=50, folder=folder, environment=environment)
        for _ in range(8)
    ]
    with ThreadPoolExecutor(len(users)) as pool:
        list(pool.map(Sampler.start, users))
    pids = {each.pid for each in users}
    for each in users:
        each.stop()

    assert len(pids) == 1


def test_users_of_one_folder_may_share(sampler: Sampler, folder: Path) -> None:
    """Who may use the folder may read the ring, and start another when it is gone."""
    sampler.stop()
    assert awaited(lambda: not sampler._path.exists())
    for left in folder.iterdir():
        left.unlink()
    folder.chmod(0o777)
    sampler.start()
    made = {path.suffix: path.stat().st_mode & 0o777 for path in folder.iterdir()}

    assert made[".ring"] == 0o666
    assert set(made.values()) == {0o666}


def test_with_many_open_files(sampler: Sampler) -> None:
    """Descriptors above those that `select` takes are not reason to have no time line."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < MANY_FILES + 100:
        pytest.skip("so many files may not be open here")
    sampler.stop()
    assert awaited(lambda: not sampler._path.exists())
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, MANY_FILES + 100), hard))
    try:
        with ExitStack() as held:
            for _ in range(MANY_FILES):
                held.enter_context(Path(os.devnull).open("rb"))
            sampler.start()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert runs(sampler.pid)


def test_one_that_was_started_meanwhile(
    sampler: Sampler, other: Sampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who may start one looks first whether another process just has."""
    sampler.stop()
    assert awaited(lambda: not sampler._path.exists())
    acquire = FileLock.acquire

    def started_first(lock: FileLock) -> object:
        monkeypatch.undo()
        sampler.start()
        return acquire(lock)

    monkeypatch.setattr(FileLock, "acquire", started_first)
    other.start()
    assert other.pid == sampler.pid > 0


def test_one_that_is_ending_is_not_joined(
    environment: dict[str, str], folder: Path, other: Sampler
) -> None:
    """Its file is locked for as long as it is there; then another is started."""
    folder.mkdir()
    path = other._path
    path.write_bytes(bytes(800))
    with path.open("rb") as ending, ThreadPoolExecutor(1) as pool:
        fcntl.flock(ending, fcntl.LOCK_EX)
        joining = pool.submit(other.start)
        time.sleep(0.3)
        assert not joining.done()
        assert path.stat().st_ino == os.fstat(ending.fileno()).st_ino
        path.unlink()
        joining.result()

    assert runs(other.pid)


def test_one_that_ends_before_it_is_held(
    sampler: Sampler, other: Sampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ring that left its path before it was locked is not joined, however new it is."""
    lock = fcntl.flock

    def ended_first(file: int, how: int) -> None:
        monkeypatch.undo()
        sampler._path.unlink()
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", ended_first)
    other.start()
    assert other.pid != sampler.pid
    assert other.mark() > 0


def test_one_whose_file_was_replaced(
    sampler: Sampler, environment: dict[str, str], folder: Path, other: Sampler
) -> None:
    """Who has it reads on; who comes takes the file that is there, and it stays."""
    kept = sampler._path.with_suffix(".kept")
    sampler._path.rename(kept)
    other.start()
    assert other.pid != sampler.pid
    first = sampler.pid
    start_s = sampler.mark()
    assert sampler.records(start_s, sampler.mark())
    sampler.stop()

    assert awaited(lambda: not runs(first))
    assert sorted(rings(folder)) == [".kept", ".ring"]  # of its own name it is not
    assert sampler.mark() > 0
    assert sampler.pid == other.pid


def test_one_that_was_killed(sampler: Sampler, other: Sampler, folder: Path) -> None:
    """Its ring is stale: the next mark starts another, which all join."""
    killed = sampler.pid
    os.kill(killed, signal.SIGKILL)
    assert awaited(lambda: not runs(killed))
    assert awaited(lambda: sampler.mark() > 0 and sampler.pid != killed)
    other.start()

    assert other.pid == sampler.pid
    assert runs(other.pid)
    assert rings(folder) == [".ring"]


def test_a_slow_one_that_was_killed(
    environment: dict[str, str], folder: Path, other: Sampler
) -> None:
    """How seldom it samples does not say how long it is taken for alive."""
    slow = Sampler(
        [UUID], SystemClock(), hz=0.05, folder=folder, environment=environment
    )
    slow.start()
    killed = slow.pid
    other.start()
    assert other.pid == killed
    os.kill(killed, signal.SIGKILL)
    assert awaited(lambda: other.mark() > 0 and other.pid != killed)
    slow.stop()

    assert other.period_s == pytest.approx(0.1)


def test_one_that_hangs_in_the_driver(tmp_path: Path, library: Path) -> None:
    """It ends by itself when it has not looked for users for long."""
    program = (
        "import fcntl, os, sys, time\n"
        "from pytest_gpuperf.collect.nvml import child as nvml_child\n"
        "nvml_child._HUNG_S = 2\n"
        "ring = os.open(sys.argv[1], os.O_RDWR)\n"
        "users = nvml_child.Users(ring, sys.argv[1], float)\n"
        "held = open(sys.argv[1])\n"
        "fcntl.flock(held, fcntl.LOCK_SH)\n"
        "for _ in range(25): assert not users.wait(0.1)\n"
        "print('looked', flush=True)\n"
        "time.sleep(60)\n"
    )
    (tmp_path / "ring").touch()
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "ring"],
        check=False,
        stdout=subprocess.PIPE,
    )
    assert done.stdout == b"looked\n"
    assert done.returncode == -signal.SIGALRM


def test_nvml_does_not_start(environment: dict[str, str], folder: Path) -> None:
    """NVML that does not start makes the sampler unavailable, with the reason."""
    Path(environment["FAKE_NVML_SCRIPT"]).write_text(",0,error.nvmlInit,9\n")
    made = Sampler([UUID], SystemClock(), folder=folder, environment=environment)
    with pytest.raises(CollectorUnavailableError, match="driver is not loaded"):
        made.start()
    assert made.pid == 0
    assert rings(folder) == []


def test_nvml_hangs(environment: dict[str, str], folder: Path) -> None:
    """NVML that does not come back is not waited for."""
    Path(environment["FAKE_NVML_SCRIPT"]).write_text(",0,cost.nvmlInit,30000000\n")
    made = Sampler(
        [UUID], SystemClock(), folder=folder, environment=environment, patience_s=0.5
    )
    with pytest.raises(CollectorUnavailableError, match="did not answer in time"):
        made.start()
    assert made.pid == 0
    assert rings(folder) == []


def test_no_place(environment: dict[str, str], tmp_path: Path) -> None:
    """A folder that cannot be made is named, with what to do."""
    (tmp_path / "file").touch()
    made = Sampler(
        [UUID], SystemClock(), folder=tmp_path / "file", environment=environment
    )
    with pytest.raises(CollectorUnavailableError, match="GPUPERF_LOCK_DIR"):
        made.start()


def test_the_ring_is_not_made_through_a_link(
    environment: dict[str, str], folder: Path
) -> None:
    """What another user may have placed there is removed, not written to."""
    made = Sampler([UUID], SystemClock(), folder=folder, environment=environment)
    folder.mkdir()
    victim = folder / "victim.txt"
    victim.write_text("precious", encoding="ascii")
    made._path.with_suffix(".new").symlink_to(victim)

    made.start()
    made.stop()

    assert victim.read_text(encoding="ascii") == "precious"


def test_a_sampler_that_does_not_write(
    environment: dict[str, str], folder: Path
) -> None:
    """Somebody who starts one for too long is not waited for; the ring is named."""
    waiting = Sampler(
        [UUID], SystemClock(), folder=folder, environment=environment, patience_s=0.2
    )
    folder.mkdir()
    with (
        FileLock(waiting._path.with_suffix(".lock")),
        pytest.raises(CollectorUnavailableError, match="writes no samples"),
    ):
        waiting.start()


def test_no_such_gpu(environment: dict[str, str], folder: Path) -> None:
    """A GPU that NVML does not know makes the sampler unavailable."""
    made = Sampler(["GPU-?"], SystemClock(), folder=folder, environment=environment)
    with pytest.raises(CollectorUnavailableError):
        made.start()


def test_no_library(folder: Path, tmp_path: Path) -> None:
    """A machine without NVML has no sampler, and is told so."""
    bare = os.environ | {"LD_LIBRARY_PATH": str(tmp_path)}
    made = Sampler([UUID], SystemClock(), folder=folder, environment=bare)
    with pytest.raises(CollectorUnavailableError, match="sampler cannot start"):
        made.start()


BOTH = """
import json, sys
import pynvml as nv
nv.nvmlInit()
nv.nvmlLib.fake_nvml_advance_us.argtypes = [__import__("ctypes").c_double]
handle = nv.nvmlDeviceGetHandleByUUID(sys.argv[1].encode())
samples = [nv.nvmlGpmSampleAlloc(), nv.nvmlGpmSampleAlloc()]
exec(sys.argv[2])
print(json.dumps(read(nv, handle, samples, nv.nvmlLib.fake_nvml_advance_us)))
"""
READ = """
def read(nv, handle, samples, advance_us):
    def fields():
        found = nv.nvmlDeviceGetFieldValues(handle, [74, 270, 94, 142, 197, 198, 82, 83, 186, 4, 138])
        return [(each.fieldId, each.nvmlReturn, each.value.ullVal) for each in found]
    def state():
        memory = nv.nvmlDeviceGetMemoryInfo(handle, version=nv.nvmlMemory_v2)
        rates = nv.nvmlDeviceGetUtilizationRates(handle)
        return [
            nv.nvmlDeviceGetTotalEnergyConsumption(handle), memory.used, memory.free, rates.gpu,
            nv.nvmlDeviceGetClockInfo(handle, 1), nv.nvmlDeviceGetTotalEnergyConsumption(handle),
            nv.nvmlDeviceGetCurrentClocksEventReasons(handle),
            [(each.pid, each.usedGpuMemory) for each in nv.nvmlDeviceGetComputeRunningProcesses(handle)],
            [each.sampleValue.uiVal for each in nv.nvmlDeviceGetSamples(handle, 0, 0)[1]],
            [(each.pid, each.smUtil) for each in nv.nvmlDeviceGetProcessUtilization(handle, 0)],
            fields(),
        ]
    found = [state()]
    advance_us(150_000.0)
    nv.nvmlGpmSampleGet(handle, samples[0])
    advance_us(300_500.0)
    found.append(state())
    nv.nvmlGpmSampleGet(handle, samples[1])
    asked = nv.c_nvmlGpmMetricsGet_t()
    asked.version, asked.numMetrics = 1, 3
    asked.sample1, asked.sample2 = samples
    for i, metric in enumerate((2, 10, 11)):
        asked.metrics[i].metricId = metric
    nv.nvmlGpmMetricsGet(asked)
    found.append([(each.nvmlReturn, each.value if each.nvmlReturn == 0 else 0) for each in asked.metrics[:3]])
    events = nv.nvmlEventSetCreate()
    nv.nvmlDeviceRegisterEvents(handle, 8, events)
    advance_us(400_000.0)
    found.append(nv.nvmlEventSetWait_v2(events, 0).eventData)
    for ask in (lambda: nv.nvmlEventSetWait_v2(events, 0), lambda: nv.nvmlDeviceGetClockInfo(handle, 3)):
        try:
            ask()
        except nv.NVMLError as error:
            found.append(error.value)
    found.append(state())
    return found
"""


def test_both_doubles_agree(library: Path, tmp_path: Path) -> None:
    """The Python double and the compiled one say the same of one script."""
    text = BURST + (
        "100,*,proc.7,5\n500,*,proc.7,-1\n600,*,xid,13\n0,*,pcie.rx_kbs,5\n"
        "0,*,use.7,3\n400,*,use.7,0\n300,*,use.8,40\n"
        "600,*,pcie.rx_kbs,500,lin\n400,*,clocks.reasons,0x44\n,*,period.energy_us,20000\n"
    )
    (tmp_path / "script.csv").write_text(text)
    environment = os.environ | {
        "LD_LIBRARY_PATH": str(library),
        "FAKE_NVML_SCRIPT": str(tmp_path / "script.csv"),
        "FAKE_NVML_CLOCK": "manual",
    }
    told = subprocess.run(
        [sys.executable, "-c", BOTH, UUID, READ],
        env=environment,
        check=True,
        stdout=subprocess.PIPE,
    )
    names: dict[str, object] = {}
    exec(READ, names)  # noqa: S102 - the same text for both
    read = names["read"]
    clock = FakeClock()
    with scripted(text, clock=clock) as (nvml, _):
        nvml.nvmlInit()
        handle = nvml.nvmlDeviceGetHandleByUUID(UUID.encode())
        samples = [nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()]
        ours = read(nvml, handle, samples, lambda us: clock.advance(round(us * 1e3)))  # type: ignore[operator] # from the text
    assert json.loads(json.dumps(ours)) == json.loads(told.stdout)
