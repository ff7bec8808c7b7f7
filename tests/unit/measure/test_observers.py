"""measure.observers: who looks at the device, and what becomes of it where none can."""

from __future__ import annotations

import subprocess
import sys
import types
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes import nvml_library
from fakes.clock import FakeClock
from fakes.cupti import FakeCupti
from fakes.nvml import FakeGpu, FakeNvml
from fakes.runner import FakeRunner
from fakes.runtime import FakeRuntime
from fakes.shared_cupti import FakeTorch, SharedCupti
from pytest_gpuperf.collect.base import TimedCall
from pytest_gpuperf.collect.devices import DeviceQuery, query_devices
from pytest_gpuperf.collect.timing.host import HostCollector
from pytest_gpuperf.config import Config
from pytest_gpuperf.measure.observers import Observations, Observers
from pytest_gpuperf.measure.site import ProcessIdentity, Site
from pytest_gpuperf.model.environment import Session
from pytest_gpuperf.model.telemetry import DeviceDeltas

UUID = "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"
SCRIPT = f"""
,0,sys.gpus,1
,*,uuid,{UUID}
,*,mem.total,1000
,*,mem.used,500
,*,power.mw,350000
,*,clock.sm,1980
,*,clocks.reasons,0
,*,mig,0
,*,gpm,1
,*,gpm.10,61
"""
NO_GPU = DeviceQuery(devices=(), reason="no driver")


class Place:
    """A process with one GPU."""

    def __init__(
        self,
        *collectors: str,
        gpu: bool = True,
        clock: FakeClock | None = None,
        query: DeviceQuery | None = None,
        expected: Path | None = None,
    ) -> None:
        self.clock = clock or FakeClock()
        self.runtime = FakeRuntime(self.clock, in_use=gpu, uuid=UUID)
        identity = ProcessIdentity(
            session=Session(id="s", started_unix_s=0.0, host="h"),
            expected=None if expected is None else str(expected),
        )
        config = Config(root="/", collectors=collectors)
        gpus = query_devices(FakeNvml(FakeGpu(uuid=UUID))) if gpu else NO_GPU
        self.site = Site(
            config,
            identity,
            clock=self.clock,
            runner=FakeRunner(),
            runtime=self.runtime,
            query=lambda: query or gpus,
        )
        self.observers = Observers(self.site)


@pytest.fixture(name="nvml", autouse=True)
def nvml_(monkeypatch: pytest.MonkeyPatch) -> Iterator[nvml_library.FakeLibrary]:
    """Give the process a scripted NVML, and no CUPTI."""
    monkeypatch.setenv("NSYS_PROFILING_SESSION_ID", "1")
    with nvml_library.scripted(SCRIPT) as (module, library):
        monkeypatch.setitem(sys.modules, "pynvml", module)
        yield library


def test_without_a_gpu_nothing_is_loaded_to_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A measurement of the CPU costs a few calls, and its record gets nothing."""
    for name in ("torch", "pytest_gpuperf.collect.memory"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    place = Place(gpu=False)
    with place.observers.watching() as observed:
        pass

    assert observed == Observations()
    assert "pytest_gpuperf.collect.memory" not in sys.modules
    assert place.observers.timers == ()
    assert place.observers.sm_clock_hz is None
    place.observers.call(TimedCall(fn=int), observed)
    assert observed == Observations()


@pytest.mark.parametrize(
    ("asked", "names"),
    [((), ["events"]), (("host",), []), (("events", "host"), ["events"])],
)
def test_timers_are_those_that_are_asked_for_and_free(
    asked: tuple[str, ...], names: list[str]
) -> None:
    """CUPTI is held by an attached tool here."""
    place = Place(*asked)

    assert [timer.name for timer in place.observers.timers] == names


def test_events_are_not_trusted_under_confidential_computing() -> None:
    """They give wrong times, even below zero: nothing stands for the device's."""
    query = query_devices(FakeNvml(FakeGpu(uuid=UUID), confidential=1, dev_tools=1))
    place = Place(query=query)

    assert place.observers.timers == ()
    assert "CUDA events give wrong times" in place.site.lost["events"].reason
    assert "cupti" in place.site.lost["events"].remedy


def test_a_device_of_torchs_may_be_timed_by_its_events(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """NVML knows none of AMD's or Intel's: torch that is loaded may come to use one."""
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))

    assert [timer.name for timer in Place(gpu=False).observers.timers] == ["events"]


def test_the_sensors_are_read_around_a_measurement() -> None:
    """Of the GPU in use; one that was not used after all says nothing."""
    place = Place()
    with place.observers.sensing() as observed:
        place.clock.advance(2_000_000_000)

    assert isinstance(observed.deltas, DeviceDeltas)
    assert observed.deltas.gpu_uuid == UUID
    assert observed.deltas.duration_s == pytest.approx(2.0)
    read = place.observers.sm_clock_hz
    assert read is not None
    assert read() == 1.98e9

    place.runtime.in_use = False
    with place.observers.sensing() as unused:
        pass
    assert (unused.device_used, unused.deltas) == (False, None)


def test_measurements_inside_each_other_have_sensors_of_their_own() -> None:
    """A range around a measurement sees the time of both."""
    place = Place()
    with place.observers.watching() as outer:
        place.clock.advance(1_000_000_000)
        with place.observers.watching() as inner:
            place.clock.advance(1_000_000_000)

    assert inner.deltas is not None
    assert outer.deltas is not None
    assert inner.deltas.duration_s == pytest.approx(1.0)
    assert outer.deltas.duration_s == pytest.approx(2.0)


def test_an_nvml_that_does_not_know_the_gpu_is_lost_by_name() -> None:
    """It is tried once, the run goes on, and its header says why."""
    place = Place()
    with nvml_library.scripted(SCRIPT.replace("0e0f", "ffff")) as (module, library):
        sys.modules["pynvml"] = module  # the fixture puts back what was there
        seen = []
        for _ in range(3):
            with place.observers.sensing() as observed:
                seen.append(observed)

    assert [each.deltas for each in seen] == [None] * 3
    assert list(place.site.lost) == ["nvml"]
    assert UUID in place.site.lost["nvml"].reason
    assert library.calls.count("nvmlInitWithFlags") == 1


def test_sensors_that_are_not_asked_for_are_not_read() -> None:
    """Named collectors are all there is."""
    place = Place("host", "events")
    with place.observers.sensing() as observed:
        pass

    assert observed.deltas is None


def test_the_result_of_the_call_that_is_looked_at_is_let_go_of() -> None:
    """The test gets that of a timed call, which its check has seen."""
    place = Place()
    results: list[Any] = []

    class Result:
        def __init__(self) -> None:
            results.append(weakref.ref(self))

    observed = Observations(device_used=True)
    place.observers.call(TimedCall(fn=Result), observed, result_kept=True)

    assert [result() for result in results] == [None]
    assert place.runtime.events[-1] == "synchronize"
    assert observed.memory is not None


@pytest.mark.parametrize("result_kept", [True, False])
def test_a_second_result_without_room_is_no_fault_of_the_test(
    *, result_kept: bool
) -> None:
    """The timed calls had room: what is lost is what would have been seen."""

    class OutOfMemoryError(RuntimeError):
        """As torch and cupy call it."""

    def call() -> None:
        raise OutOfMemoryError

    place, observed = Place(), Observations(device_used=True)
    if not result_kept:  # nothing of ours took room
        with pytest.raises(OutOfMemoryError):
            place.observers.call(TimedCall(fn=call), observed, result_kept=result_kept)
        return
    place.observers.call(TimedCall(fn=call), observed, result_kept=result_kept)

    assert observed.memory is not None
    assert "no room for a second result" in observed.memory.reason
    assert observed.blind is not None
    assert observed.trace is None


@pytest.mark.parametrize("way", ["call", "range"])
def test_what_gives_the_device_nothing_has_the_hosts_time(
    monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """In a process that has a context, CUPTI alone knows that it was not used."""
    place = Seen(monkeypatch)

    def body() -> None:
        place.clock.advance(1_000_000)

    if way == "range":
        with place.host.measure_range() as timer:
            body()
        timing = timer.timing
    else:
        timing = place.host.measure(TimedCall(fn=body, iterations=10), stop=None)  # type: ignore[arg-type] # fixed iterations ask for no rule

    assert timing is not None
    assert (timing.source, timing.other_samples, timing.unused) == ("host", {}, True)
    assert [note.code for note in timing.notes] == ["unused-device"]


class Seen(Place):
    """A process whose CUPTI sees what its one GPU does, and who waits for it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        real = pytest.importorskip("cupti.cupti", reason="fills cupti-python's records")
        super().__init__()
        self.double = FakeCupti(real)
        monkeypatch.setitem(sys.modules, "cupti.cupti", self.double)
        monkeypatch.delenv("NSYS_PROFILING_SESSION_ID")
        monkeypatch.setattr(self.runtime, "synchronize", self.double.synchronize)
        self.host = HostCollector(self.clock, self.runtime, self.observers.timers)


@pytest.mark.parametrize("way", ["call", "range"])
def test_our_own_waits_are_none_of_the_bodys(
    monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """CUPTI records every wait of the host: those around the body are not counted."""
    place = Seen(monkeypatch)

    def body() -> None:
        place.double.launch()
        place.double.wait(1)

    observed = Observations(device_used=True)
    if way == "call":
        place.observers.call(TimedCall(fn=body), observed)
    else:
        with place.observers.watching() as observed, place.host.measure_range():
            observed.begins()
            body()
            observed.returned()

    assert observed.trace is not None
    assert observed.trace.synchronizations == {"event": 1}
    assert len(observed.trace.launches) == 1


def test_child_processes_on_the_gpu_are_known_by_pid(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """CUPTI sees its own process; NVML knows which of the children use the GPU too."""
    place = Seen(monkeypatch)
    sleep = (sys.executable, "-c", "input()")
    with subprocess.Popen(sleep, stdin=subprocess.PIPE) as child:
        script = f"{SCRIPT},*,proc.{child.pid},100\n"
        with nvml_library.scripted(script) as (module, _):
            monkeypatch.setitem(sys.modules, "pynvml", module)
            observed = Observations(device_used=True)
            request = TimedCall(fn=place.double.launch)
            place.observers.call(request, observed)
        child.kill()

    assert observed.trace is not None
    assert observed.trace.device_children == (child.pid,)


def test_cupti_is_free_between_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test with a profiler of its own has CUPTI; the next measurement takes it anew."""
    place = Seen(monkeypatch)
    timers = place.observers.timers
    place.observers.rest()
    holders = [place.double.holder]
    assert place.observers.timers is timers
    holders.append(place.double.holder)
    with place.observers.sensing():
        place.observers.rest()  # of another test, inside a block of a fixture's
        holders.append(place.double.holder)
    place.observers.close()

    assert holders == [None, "CUPTI for gpuperf", "CUPTI for gpuperf"]


def test_cupti_that_was_taken_meanwhile_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who took it between tests keeps it: events time from then on, and it is said."""
    place = Seen(monkeypatch)
    _ = place.observers.timers
    place.observers.rest()
    place.double.holder = "CUPTI for <not provided>"

    assert [timer.name for timer in place.observers.timers] == ["events"]
    assert "another user of CUPTI" in place.site.lost["cupti"].reason
    place.observers.close()


def test_cupti_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user of the process may have it then; a later run takes it anew."""
    place = Seen(monkeypatch)
    holders = [place.double.holder]
    place.observers.close()
    holders.append(place.double.holder)

    assert holders == ["CUPTI for gpuperf", None]
    assert [timer.name for timer in place.observers.timers] == ["cupti", "events"]
    place.observers.close()


@pytest.mark.parametrize(
    ("cache", "events"),
    [("cold", ["flush", "synchronize"]), ("warm", ["synchronize"])],
)
def test_the_call_that_is_looked_at_is_like_those_timed(
    cache: str, events: list[str]
) -> None:
    """Its caches are cold where theirs were."""
    place = Place()
    request = TimedCall(fn=int, cache=cache)
    place.observers.call(request, Observations(device_used=True))

    assert place.runtime.events == events


def test_what_a_block_raises_passes_through() -> None:
    """And the next measurement begins anew."""
    place = Place()
    with pytest.raises(ZeroDivisionError), place.observers.watching():
        _ = 1 / 0
    with place.observers.watching() as observed:
        place.clock.advance(1_000)

    assert observed.deltas is not None
    assert observed.deltas.duration_s == pytest.approx(1e-6)


@pytest.mark.parametrize(
    ("asked", "iterations", "unrepeated"),
    [(("time",), None, ""), (("energy",), 5, "the test fixes how often it is called")],
)
def test_calls_without_a_gap_are_made_where_they_are_asked_for(
    asked: tuple[str, ...], iterations: int | None, unrepeated: str
) -> None:
    """Not for a time, and not where all processes of a job call equally often."""
    place = Place()
    calls: list[int] = []
    request = TimedCall(fn=lambda: calls.append(1), iterations=iterations)
    observed = Observations(device_used=True)
    place.observers.second_pass(request, observed, asked)

    assert calls == []
    assert observed.second is None
    assert observed.unrepeated == unrepeated


def test_energy_that_is_asked_for_takes_calls_without_a_gap(
    nvml: nvml_library.FakeLibrary,
) -> None:
    """As many as it takes, each with arguments of its own."""
    place = Place(clock=nvml.clock)
    given: list[int] = []

    def call(number: int) -> None:
        given.append(number)
        place.clock.advance(50_000_000)

    request = TimedCall(fn=call, inputs=[1, 2])
    observed = Observations(device_used=True)
    place.observers.second_pass(request, observed, ("power",))

    assert observed.second is not None
    assert observed.second.power_watts == pytest.approx(350, rel=0.05)
    assert given[:4] == [1, 2, 1, 2]
    assert observed.second.deltas.gpm["dram_active_fraction"] == 0.61
    with place.observers.sensing() as timed:
        pass
    assert timed.deltas is not None
    assert timed.deltas.gpm == {}


def test_what_was_opened_is_given_back() -> None:
    """Closing twice is not an error, and what is asked for later is opened anew."""
    place = Place()
    with place.observers.sensing():
        pass
    place.observers.close()
    place.observers.close()
    with place.observers.sensing() as observed:
        pass

    assert observed.deltas is not None


@pytest.mark.parametrize(
    ("asked", "requires", "reason"),
    [
        ((), "events", None),
        ((), "nvml", None),
        (
            (),
            "cupti",
            "Nsight Systems is attached, and CUPTI serves one tool in a process",
        ),
        (("host",), "events", "the events collector is not among those asked for"),
        (("host",), "nvml", "the nvml collector is not among those asked for"),
    ],
)
def test_requirements_are_answered_truthfully(
    asked: tuple[str, ...], requires: str, reason: str | None
) -> None:
    """What is there, free and asked for is not lacking."""
    found = Place(*asked).site.lacking((requires,))

    assert (None if found is None else found.reason) == reason


def test_what_another_process_lost_is_known_here() -> None:
    """It travels as plain records; what is known already stays."""
    first, second = Place(), Place()
    with nvml_library.scripted(SCRIPT.replace("0e0f", "ffff")) as (module, _):
        sys.modules["pynvml"] = module  # the fixture puts back what was there
        with first.observers.sensing():
            pass
    second.site.learn_lost(first.site.told_lost())

    assert second.site.told_lost() == first.site.told_lost() != ()
    sentences = second.site.choice({"events", "host"}).sentences
    assert any(each.startswith("nvml: ") and UUID in each for each in sentences)


@pytest.fixture
def cupti(monkeypatch: pytest.MonkeyPatch) -> SharedCupti:
    """A CUPTI that admits several subscribers, and that no tool holds."""
    real = pytest.importorskip("cupti.cupti")
    if not hasattr(
        getattr(real, "SubscriberParams", None), "allow_multiple_subscribers"
    ):
        pytest.skip("fills the parameters of cupti-python 13.2")
    monkeypatch.delenv("NSYS_PROFILING_SESSION_ID")
    double = SharedCupti(real)
    monkeypatch.setitem(sys.modules, "cupti.cupti", double)
    return double


@pytest.mark.parametrize("several", [True, False])
def test_torchs_profiler_has_records_after_a_measured_test(
    cupti: SharedCupti,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    *,
    several: bool,
) -> None:
    """
    Its first start is one-shot: started before the plugin subscribes if both are some of
    several, and left alone otherwise. The header says which.
    """
    torch = FakeTorch(cupti, tmp_path / "torch", several=several)
    monkeypatch.setitem(sys.modules, "torch", torch)
    place = Place(expected=tmp_path)
    activity = place.observers.activity
    assert activity is not None
    assert activity.is_open
    assert torch.starts_count == several
    with activity.window() as window, torch.profile(activities=["cuda"]):
        cupti.launch("inside")
        cupti.synchronize()
    place.observers.rest()
    assert place.observers.activity is activity
    place.observers.rest()
    with torch.profile(activities=["cuda"]):
        cupti.launch("later")
        cupti.synchronize()

    assert window.void is None
    assert len(window.trace().launches) == 1
    # A profile that excludes the plugin, and began inside its window, has failed for good.
    assert torch.seen == ([[], ["inside"], ["later"]] if several else [[], []])
    (remark,) = place.site.remarks()
    expected = "was started once, for 0 s" if several else "uses CUPTI alone"
    assert expected in remark.text


def test_a_profile_around_a_measurement_keeps_its_records(
    cupti: SharedCupti, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Torch's profiler records already: it is not started again, which would end the profile."""
    torch = FakeTorch(cupti, tmp_path / "torch", several=True)
    monkeypatch.setitem(sys.modules, "torch", torch)
    place = Place(expected=tmp_path)
    with torch.profile(activities=["cuda"]):
        activity = place.observers.activity
        assert activity is not None
        with activity.window() as window:
            cupti.launch("both")
            cupti.synchronize()
        place.observers.rest()

    assert len(window.trace().launches) == 1
    assert torch.seen == [["both"]]
    assert torch.starts_count == 1
    assert place.site.remarks() == ()
