"""measure.time_lines: a measurement's part of the time line, on a ring that a test writes."""

from __future__ import annotations

import mmap
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fakes import nvml_library
from fakes.clock import FakeClock
from fakes.nvml import FakeGpu, FakeNvml
from fakes.runner import FakeRunner
from fakes.runtime import FakeRuntime
from pytest_gpuperf.collect.clock import SystemClock
from pytest_gpuperf.collect.devices import query_devices
from pytest_gpuperf.collect.leases import FOLDER_VARIABLE
from pytest_gpuperf.collect.nvml import child as nvml_child
from pytest_gpuperf.collect.nvml.child import COLUMNS, Ring, Sensors
from pytest_gpuperf.collect.nvml.library import GPM_METRICS
from pytest_gpuperf.collect.nvml.sampler import Sampler
from pytest_gpuperf.config import Config, parse_hertz
from pytest_gpuperf.errors import MeasureError
from pytest_gpuperf.measure.observations import with_observations
from pytest_gpuperf.measure.observers import Observations, Observers
from pytest_gpuperf.measure.site import ProcessIdentity, Site
from pytest_gpuperf.model import codec
from pytest_gpuperf.model.environment import Session
from pytest_gpuperf.model.frozen import replace
from pytest_gpuperf.model.record import Kind, Record, RecordKey
from pytest_gpuperf.model.telemetry import ClockReason, DeviceDeltas, Sharing

UUID = "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"
OTHER = UUID.replace("0e0f", "ffff")
HZ = 8.0  # a period of more than 0.1 s: GPM averages over each
BUSY_MS = (3000, 5000)
# busy for two seconds, and idle before and after
SCRIPT = f"""
,0,sys.gpus,1
,*,uuid,{UUID}
,*,mig,0
,*,gpm,1
,*,power.mw,350000
,*,gpm.5,0
0,*,clocks.reasons,0x1
0,*,gpm.1,0
0,*,gpm.2,0
0,*,gpm.10,0
{BUSY_MS[0]},*,gpm.1,100
{BUSY_MS[0]},*,gpm.2,92
{BUSY_MS[0]},*,gpm.10,30
{BUSY_MS[0]},*,clocks.reasons,0x4
{BUSY_MS[1]},*,gpm.1,0
{BUSY_MS[1]},*,gpm.2,0
{BUSY_MS[1]},*,gpm.10,0
{BUSY_MS[1]},*,clocks.reasons,0x1
"""
GPM = GPM_METRICS
CAPACITY = 1 << 10
KEY = RecordKey(test_id="t.py::test_it")


class Sampled(FakeClock):
    """
    Time in which a sampler of another run writes to its ring.

    Attributes:
        hangs_ns: From when until when it takes no sample [ns].
    """

    def __init__(self) -> None:
        super().__init__()
        self.hangs_ns = (float("inf"), float("inf"))
        self._sample: Callable[[], None] = lambda: None
        self._period_ns = self._due_ns = 0

    def sampled(self, source: Sensors, ring: Ring, hz: float) -> None:
        """Take the first sample now, and the others in their time."""

        def sample() -> None:
            now_s = self.now_ns() / 1e9
            ring.put(now_s, self.unix_s(), 0, source.read(now_s))
            ring.looked(now_s)

        self._sample, self._period_ns = sample, round(1e9 / hz)
        self._due_ns = self.reading_ns
        self.advance(0)

    def advance(self, elapsed_ns: int) -> None:
        """Let time pass; each sample is taken when it is due."""
        until_ns = self.reading_ns + elapsed_ns
        while self._period_ns and self._due_ns <= until_ns:
            super().advance(self._due_ns - self.reading_ns)
            if not self.hangs_ns[0] < self._due_ns < self.hangs_ns[1]:
                self._sample()
            self._due_ns += self._period_ns
        super().advance(until_ns - self.reading_ns)


class Place:
    """A process with one GPU, which another run's sampler samples."""

    def __init__(
        self,
        folder: Path,
        nvml: nvml_library.FakeLibrary,
        *collectors: str,
        hz: float | None = HZ,
        theirs_hz: float | None = None,
    ) -> None:
        assert isinstance(nvml.clock, Sampled)
        self.clock = nvml.clock
        self.runtime = FakeRuntime(self.clock, uuid=UUID)
        identity = ProcessIdentity(
            session=Session(id="s", started_unix_s=0.0, host="h")
        )
        config = Config(root="/", collectors=collectors, telemetry=hz)
        query = query_devices(FakeNvml(FakeGpu(uuid=UUID)))
        self.site = Site(
            config,
            identity,
            clock=self.clock,
            runner=FakeRunner(),
            runtime=self.runtime,
            query=lambda: query,
        )
        self.observers = Observers(self.site)
        if hz is not None:
            rate = theirs_hz or hz
            self.clock.sampled(*_written(folder, rate, self.clock.now_ns), rate)

    def measured(self, start_ms: float, taking_ms: float) -> Observations:
        """Return what was seen of a measurement that begins then and takes so long."""
        self.clock.advance(round(start_ms * 1e6) - self.clock.reading_ns)
        with self.observers.sensing() as observed:
            self.clock.advance(round(taking_ms * 1e6))
        return observed

    def record(self, observed: Observations) -> Record:
        """Return the record of a measurement."""
        bare = Record(key=KEY, kind=Kind.RANGE, estimates=())
        return with_observations(bare, observed, facts={})


def _written(
    folder: Path, hz: float, now_ns: Callable[[], int]
) -> tuple[Sensors, Ring]:
    """Return the sensors and the ring of a sampler of this host."""
    length = nvml_child.HEAD_LENGTH + CAPACITY * nvml_child.record_length(len(GPM))
    path = folder / f"sampler-{zlib.crc32(UUID.encode()):08x}.ring"
    with path.open("wb+") as file:
        file.truncate(length * 8)
        doubles = memoryview(mmap.mmap(file.fileno(), 0)).cast("d")
    ring = Ring(doubles, capacity=CAPACITY, gpm_count=len(GPM), period_s=1 / hz)
    nvml = sys.modules["pynvml"]
    nvml.nvmlInit()
    source = Sensors(nvml, UUID, COLUMNS, GPM, ring.failed, now_ns)
    ring.place(0, source.index)
    return source, ring


@pytest.fixture(name="nvml")
def nvml_(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[nvml_library.FakeLibrary]:
    """Give the process a scripted NVML, a folder of its own for rings, and no CUPTI."""
    monkeypatch.setenv("NSYS_PROFILING_SESSION_ID", "1")
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    with nvml_library.scripted(SCRIPT, clock=Sampled()) as (module, library):
        monkeypatch.setitem(sys.modules, "pynvml", module)
        yield library


def test_a_measurement_has_its_part_of_the_time_line(
    nvml: nvml_library.FakeLibrary, tmp_path: Path
) -> None:
    """Half a second idle, one and a half busy: both are in the record, by their class."""
    place = Place(tmp_path, nvml)
    record = place.record(place.measured(2500, 2000))
    (window,) = record.utilization

    assert (window.gpu_index, window.gpu_uuid) == (0, UUID)
    assert window.duration_s == pytest.approx(2.0)
    assert dict(window.class_s) == pytest.approx({"idle": 0.5, "compute-heavy": 1.5})
    assert (window.incomplete_s, window.unobserved_s) == (0.0, 0.0)
    assert window.reading_count == 2 * HZ
    # 0.35 of the SMs' 92, 0.2 of DRAM's 30, 0.1 of the 100 of graphics; 3/4 of the time
    assert window.real_util == pytest.approx(0.75 * 48.2)
    assert codec.from_text(codec.to_text(record), Record) == record
    assert told(record) == {}
    (line,) = record.time_lines
    assert len(line.since_s) == pytest.approx(2 * HZ, abs=1)
    assert {*line.classes} == {"idle", "compute-heavy"}
    # the sample at 3 s describes the period before it
    (span,) = line.throttled_spans_s[ClockReason.SOFTWARE_POWER_CAP]
    assert span == pytest.approx((0.5 - 1 / HZ, 2.0))
    assert line.throttled_s == {ClockReason.SOFTWARE_POWER_CAP: span[1] - span[0]}


def test_a_measurement_that_is_shorter_than_an_average(
    nvml: nvml_library.FakeLibrary, tmp_path: Path
) -> None:
    """The average that describes its end is waited for: no part of it is incomplete."""
    place = Place(tmp_path, nvml, hz=64)
    observed = place.measured(3950, 40)
    assert place.clock.reading_ns == 3_990_000_000  # nothing was waited for yet
    (window,) = place.record(observed).utilization

    assert window.incomplete_s == 0.0
    assert dict(window.class_s) == pytest.approx({"compute-heavy": 0.04})
    assert place.clock.reading_ns <= 3_990_000_000 + 150_000_000


def test_measurements_inside_each_other_have_their_own_parts(
    nvml: nvml_library.FakeLibrary, tmp_path: Path
) -> None:
    """The outer one is of the time of both."""
    place = Place(tmp_path, nvml)
    place.clock.advance(1_000_000_000)
    with place.observers.sensing() as outer:
        inner = place.measured(3000, 1000)

    durations = [
        place.record(each).utilization[0].duration_s for each in (inner, outer)
    ]
    assert durations == pytest.approx([1.0, 3.0])


def test_nothing_is_loaded_where_nobody_asked(
    nvml: nvml_library.FakeLibrary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the option neither the sampler nor what reads it is imported."""
    names = ("pipeline.telemetry", "collect.nvml_sampler", "compute.timeline")
    for name in names:
        monkeypatch.delitem(sys.modules, f"pytest_gpuperf.{name}", raising=False)
    place = Place(tmp_path, nvml, hz=None)
    record = place.record(place.measured(0, 1000))

    assert record.utilization == ()
    assert not [name for name in names if f"pytest_gpuperf.{name}" in sys.modules]
    assert place.site.lost == {}


def test_a_device_that_was_not_used_has_no_part(
    nvml: nvml_library.FakeLibrary, tmp_path: Path
) -> None:
    """What a GPU did while only the CPU was measured is not news of the test."""
    place = Place(tmp_path, nvml)
    place.runtime.in_use = False

    assert place.record(place.measured(0, 1000)).utilization == ()


def told(record: Record) -> dict[str, str]:
    """Return the notes that are of the time line, by their codes."""
    mine = ("utilization", "telemetry")
    return {n.code: n.text for n in record.notes if n.code.startswith(mine)}


def test_another_device_than_the_sampled_one(
    nvml: nvml_library.FakeLibrary, tmp_path: Path
) -> None:
    """A test that moves to another GPU has no window of the first one."""
    two = f"{SCRIPT.replace('gpus,1', 'gpus,2').replace(',*,uuid', ',0,uuid')}"
    place = Place(tmp_path, nvml)
    nvml.script = nvml_library.Script(f"{two},1,uuid,{OTHER}\n")
    place.clock.advance(1_000_000_000)
    with place.observers.sensing() as observed:
        place.clock.advance(1_000_000_000)
        place.runtime.uuid = OTHER
    record = place.record(observed)

    assert record.utilization == ()
    assert list(told(record)) == ["utilization-elsewhere"]
    said = told(record)["utilization-elsewhere"]
    assert f"came to use {OTHER} while {UUID} was sampled" in said


def test_a_sampler_that_was_there_keeps_its_rate(
    nvml: nvml_library.FakeLibrary, tmp_path: Path
) -> None:
    """A record says how often its GPU was sampled where that is not what was asked."""
    place = Place(tmp_path, nvml, hz=HZ, theirs_hz=4)
    record = place.record(place.measured(3000, 1000))

    assert record.utilization[0].reading_count == 4
    assert list(told(record)) == ["telemetry-rate"]
    assert "4 times a second, not 8" in told(record)["telemetry-rate"]


def test_a_gpu_without_averages(nvml: nvml_library.FakeLibrary, tmp_path: Path) -> None:
    """Its time is incomplete: it has no class, and a note says why."""
    nvml.script = nvml_library.Script(SCRIPT.replace("gpm,1", "gpm,0"))
    place = Place(tmp_path, nvml)
    record = place.record(place.measured(3000, 1000))
    (window,) = record.utilization

    assert window.incomplete_s == pytest.approx(1.0)
    assert (dict(window.class_s), window.average_class) == ({}, None)
    assert list(told(record)) == ["utilization-incomplete"]
    assert place.clock.reading_ns <= (4 + 1 / HZ) * 1e9  # for the next sample alone


@pytest.mark.parametrize(
    ("pids", "said"),
    [((7,), "process 7 computed"), ((7, 9), "processes 7, 9 computed")],
)
def test_a_gpu_with_other_users(
    nvml: nvml_library.FakeLibrary, tmp_path: Path, pids: tuple[int, ...], said: str
) -> None:
    """Whose part of the window the test's was is not guessed; the others are named."""
    place = Place(tmp_path, nvml)
    observed = place.measured(3000, 1000)
    assert observed.deltas is not None
    observed.deltas = replace(
        observed.deltas, sharing=Sharing.FOREIGN, foreign_pids=pids
    )
    record = place.record(observed)

    assert record.utilization
    assert list(told(record)) == ["utilization-shared"]
    assert said in told(record)["utilization-shared"]


def test_a_sampler_that_ends_meanwhile(
    nvml: nvml_library.FakeLibrary, tmp_path: Path
) -> None:
    """What is left is kept, the rest is unobserved, and the test does not fail."""
    place = Place(tmp_path, nvml)
    place.clock.hangs_ns = (3_500_000_000, float("inf"))
    record = place.record(place.measured(3000, 3000))
    (window,) = record.utilization

    assert window.unobserved_s == pytest.approx(2.5)
    assert dict(window.class_s) == pytest.approx({"compute-heavy": 0.5})


def test_a_sampler_that_hangs(nvml: nvml_library.FakeLibrary, tmp_path: Path) -> None:
    """The next sample describes two periods at most: the time before is unobserved."""
    place = Place(tmp_path, nvml)
    place.clock.hangs_ns = (3_250_000_000, 4_250_000_000)
    (window,) = place.record(place.measured(3000, 1500)).utilization

    assert window.unobserved_s == pytest.approx(1.0 - 2 / HZ)
    assert dict(window.class_s) == pytest.approx({"compute-heavy": 0.75})


def test_a_record_that_is_made_when_all_is_closed(
    nvml: nvml_library.FakeLibrary, tmp_path: Path
) -> None:
    """It has no window, and says so; another measurement begins anew."""
    place = Place(tmp_path, nvml)
    late = place.measured(3000, 500)
    place.observers.close()
    record = place.record(late)

    assert (record.utilization, list(told(record))) == ((), ["utilization-unread"])
    assert place.record(place.measured(4000, 500)).utilization


def test_a_sampler_that_cannot_start_is_lost_once(
    nvml: nvml_library.FakeLibrary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sensors go on without it, and the header's sentence has the remedy."""
    (tmp_path / "file").touch()
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "file"))
    place = Place(tmp_path, nvml)
    first = place.measured(1000, 500)
    (tmp_path / "file").unlink()  # it might start now, and nobody tries
    seen = first, place.measured(2000, 500)

    assert [each.span for each in seen] == [None, None]
    assert all(isinstance(each.deltas, DeviceDeltas) for each in seen)
    assert list(place.site.lost) == ["telemetry"]
    (said,) = (s for s in place.site.choice().sentences if s.startswith("telemetry"))
    assert said.startswith("telemetry: the sampler cannot start in ")
    assert FOLDER_VARIABLE in said


@pytest.mark.parametrize("named", [True, False], ids=["left-out", "refused"])
def test_without_nvml_there_is_no_time_line(
    nvml: nvml_library.FakeLibrary, tmp_path: Path, *, named: bool
) -> None:
    """The reason is NVML's own, or that nobody asked for it."""
    place = Place(tmp_path, nvml, *(("host",) if named else ()))
    if not named:
        nvml.script = nvml_library.Script(",0,error.nvmlInit,9\n")
    observed = place.measured(1000, 500)
    lost = place.site.lost["telemetry"]

    assert observed.span is None
    assert ("not among those asked for" in lost.reason) == named
    assert named or lost == place.site.lost["nvml"]


@pytest.mark.parametrize("text", ["0.01", "100", "100.1", "0"])
def test_the_sampler_takes_what_the_option_takes(text: str) -> None:
    """The highest rate is written down twice: both are the same."""
    if text in {"0.01", "100"}:
        assert parse_hertz(text) == float(text)
        Sampler([UUID], SystemClock(), hz=float(text))
        return
    with pytest.raises(ValueError, match="at most 100, or off"):
        parse_hertz(text)
    with pytest.raises(MeasureError):
        Sampler([UUID], SystemClock(), hz=float(text))
