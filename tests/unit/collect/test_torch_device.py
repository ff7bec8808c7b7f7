"""TorchRuntime of collect.torch_device, and its events: devices that are not CUDA's, through a torch that is loaded."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from fakes.clock import FakeClock
from pytest_gpuperf.collect.base import TimedCall
from pytest_gpuperf.collect.environment import known_facts
from pytest_gpuperf.collect.runtime import DeviceRuntime, FirstInUse, NoDevice
from pytest_gpuperf.collect.timing.events import EventTimer, TorchEvents
from pytest_gpuperf.collect.timing.host import HostCollector
from pytest_gpuperf.collect.torch_device import TorchRuntime
from pytest_gpuperf.errors import CollectError
from pytest_gpuperf.model.environment import (
    Device,
    Environment,
    differences,
    family_facts,
)
from pytest_gpuperf.model.metric import Family

US = 1_000  # ns


class FakeTorch:
    """
    What torch 2.6 and newer has of a device, on a scripted one.

    Attributes:
        clock: The time of the host and the device.

        others_busy_until_ns: When other devices of the kind have done their work, by index.

        calls: What was called, in order.

        failing: Message of the RuntimeError, by function.
    """

    def __init__(self, kind: str = "xpu", *, cuda: str | None = None) -> None:
        self.clock = FakeClock()
        self.calls: list[object] = []
        self.failing: dict[str, str] = {}
        self.busy_until_ns = 0
        self.others_busy_until_ns: dict[int, int] = {}
        hip = "6.2.41133-dd7f95766" if kind == "cuda" else None
        self.version = SimpleNamespace(cuda=cuda, hip=hip, xpu="20250101")
        self.uint8 = "uint8"
        self.device = SimpleNamespace(type=kind)
        self.properties = SimpleNamespace(L2_cache_size=1024)
        self.backend = SimpleNamespace(
            is_initialized=lambda: True,
            get_device_properties=lambda index=None: self.properties,
        )
        self.backends = SimpleNamespace()
        setattr(self, kind, self.backend)
        self.accelerator = SimpleNamespace(
            current_accelerator=lambda: self.device,
            current_stream=self._stream,
            synchronize=self._synchronize,
        )

    def grow_old(self) -> None:
        """Become torch 2.5, which has the functions of a backend alone."""
        del self.accelerator
        self.backend.synchronize = self._synchronize
        self.backend.current_stream = self._stream
        self.backend.Event = lambda *, enable_timing: self.Event(
            device=None, enable_timing=enable_timing
        )

    def add_devices(self, held_bytes: dict[int, int], *, current: int = 0) -> None:
        """Have several devices, on which this process holds memory."""

        def synchronize(index: int) -> None:
            self._done("synchronize", index)
            busy_until_ns = self.others_busy_until_ns.get(index, 0)
            self.clock.advance(max(0, busy_until_ns - self.clock.now_ns()))

        self.backend.current_device = lambda: current
        self.backend.device_count = lambda: len(held_bytes)
        self.backend.memory_reserved = lambda index: held_bytes[index]
        self.backend.synchronize = synchronize

    def launch(self, duration_ns: int) -> None:
        self.busy_until_ns = max(self.clock.now_ns(), self.busy_until_ns) + duration_ns

    def empty(self, size: int, *, dtype: str, device: object) -> Any:
        self._done("empty", size)
        return SimpleNamespace(zero_=lambda: self._done("zero_"))

    def Event(self, *, device: object, enable_timing: bool) -> Any:  # noqa: N802 - torch's name
        self._done("Event")
        event = SimpleNamespace(reached_ns=0)

        def record(stream: object) -> None:
            self._done("record", stream)
            event.reached_ns = max(self.clock.now_ns(), self.busy_until_ns)

        def elapsed_time(end: Any) -> float:
            self._done("elapsed_time")
            return float(end.reached_ns - event.reached_ns) / 1e6

        event.record = record
        event.synchronize = lambda: self._wait("event")
        event.elapsed_time = elapsed_time
        return event

    def _stream(self) -> str:
        self._done("current_stream")
        return "stream"

    def _synchronize(self) -> None:
        self._wait("synchronize")

    def _wait(self, name: str) -> None:
        self._done(name)
        self.clock.advance(max(0, self.busy_until_ns - self.clock.now_ns()))

    def _done(self, name: str, *args: object) -> None:
        self.calls.append((name, *args) if args else name)
        if name in self.failing:
            raise RuntimeError(self.failing[name])


def modules(torch: object) -> dict[str, ModuleType]:
    """Return the loaded modules of a process that uses torch."""
    loaded: Any = {"torch": torch}
    return dict(loaded)


@pytest.mark.parametrize(
    ("kind", "vendor"),
    [("cuda", "amd"), ("xpu", "intel"), ("mps", "apple"), ("npu", "npu")],
)
def test_a_device_of_torch_is_somebodys(kind: str, vendor: str) -> None:
    """ROCm's torch calls its devices cuda; another backend keeps its own name."""
    runtime: DeviceRuntime = TorchRuntime(modules(FakeTorch(kind)))

    assert runtime.active()
    assert runtime.vendor == vendor
    assert runtime.device_uuid() is None
    assert runtime.facts_of("GPU-0") is None


def no_accelerator(torch: FakeTorch) -> None:
    torch.accelerator.current_accelerator = lambda: None


def not_started(torch: FakeTorch) -> None:
    torch.backend.is_initialized = lambda: False


def of_cuda(torch: FakeTorch) -> None:
    torch.version.cuda = "13.0"


def importing(torch: FakeTorch) -> None:
    del torch.version


def too_old(torch: FakeTorch) -> None:
    del torch.accelerator
    torch.version.hip = None
    delattr(torch, "xpu")


def no_memory(torch: FakeTorch) -> None:
    del torch.backend.is_initialized
    torch.backend.driver_allocated_memory = lambda: 0


@pytest.mark.parametrize(
    "change", [no_accelerator, not_started, of_cuda, importing, too_old, no_memory]
)
def test_a_device_that_is_not_in_use_is_left_alone(
    change: Callable[[FakeTorch], None],
) -> None:
    """None there, none started, CUDA's own, or a torch that is not complete."""
    torch = FakeTorch()
    change(torch)
    runtime = TorchRuntime(modules(torch))
    runtime.synchronize()
    runtime.flush_l2()

    assert not runtime.active()
    assert runtime.vendor == ""
    assert TorchEvents(runtime, modules(torch)).place() is None
    assert torch.calls == []


def test_without_torch_there_is_no_device() -> None:
    """It is not imported to find out."""
    assert not TorchRuntime({}).active()


def test_memory_on_a_device_is_a_sign_of_use() -> None:
    """Apple's backend has no other."""
    torch = FakeTorch("mps")
    del torch.backend.is_initialized
    torch.backend.driver_allocated_memory = lambda: 4096

    assert TorchRuntime(modules(torch)).active()


def test_a_flush_overwrites_twice_the_l2() -> None:
    """In a buffer that is kept."""
    torch = FakeTorch()
    runtime = TorchRuntime(modules(torch))
    runtime.flush_l2()
    runtime.flush_l2()

    assert torch.calls == [("empty", 2048), "zero_", "zero_"]


def test_torch_tells_the_free_memory() -> None:
    """Not of Apple's devices, and some drivers refuse: then it is not known."""

    def refuses() -> tuple[int, int]:
        raise RuntimeError("the driver does not tell")

    torch = FakeTorch()
    runtime = FirstInUse(NoDevice(), TorchRuntime(modules(torch)))
    assert runtime.free_bytes() is None
    torch.backend.mem_get_info = lambda: (1 << 30, 1 << 31)
    assert runtime.free_bytes() == 1 << 30
    torch.backend.mem_get_info = refuses
    assert runtime.free_bytes() is None
    not_started(torch)
    assert TorchRuntime(modules(torch)).free_bytes() is None
    assert FirstInUse(NoDevice()).free_bytes() is None


MIB = 1 << 20


@pytest.mark.parametrize(
    ("kind", "properties", "flushed_bytes"),
    [
        ("mps", None, 256 * MIB),
        ("xpu", {}, 256 * MIB),
        ("xpu", {"L2_cache_size": 18 * MIB}, 36 * MIB),
        ("xpu", {"name": "Intel(R) Data Center GPU Max 1550"}, 816_000_000),
        # MI210, MI300X, RX 7900 XTX, and an AMD of tomorrow
        (
            "cuda",
            {"gcnArchName": "gfx90a:sramecc+", "L2_cache_size": 8 * MIB},
            16 * MIB,
        ),
        ("cuda", {"gcnArchName": "gfx942:x-", "L2_cache_size": 4 * MIB}, 576 * MIB),
        ("cuda", {"gcnArchName": "gfx1100", "L2_cache_size": 6 * MIB}, 288 * MIB),
        ("cuda", {"gcnArchName": "gfx1300", "L2_cache_size": 6 * MIB}, 608 * MIB),
        ("cuda", {}, 512 * MIB),
    ],
)
def test_a_flush_reaches_what_lies_behind_the_l2(
    kind: str, properties: dict[str, object] | None, flushed_bytes: int
) -> None:
    """AMD's Infinity Cache too; of what torch does not know, more than any there is."""
    torch = FakeTorch(kind)
    torch.properties = SimpleNamespace(**(properties or {}))
    if properties is None:
        del torch.backend.get_device_properties
    TorchRuntime(modules(torch)).flush_l2()

    assert torch.calls[0] == ("empty", flushed_bytes)


# ---------------------------------------------------------- what torch knows of it


def test_an_amd_gpu_is_what_torch_says() -> None:
    """Without ROCm's features of the architecture, which are settings."""
    torch = FakeTorch("cuda")
    torch.properties = SimpleNamespace(
        name="AMD Instinct MI300X",
        gcnArchName="gfx942:sramecc+:xnack-",
        total_memory=206_000_000_000,
        multi_processor_count=304,
        L2_cache_size=4 * MIB,
        uuid="0b1a",
    )

    assert TorchRuntime(modules(torch)).own_device() == Device(
        index=0,
        uuid="0b1a",
        name="AMD Instinct MI300X",
        memory_bytes=206_000_000_000,
        sm_count=304,
        l2_bytes=4 * MIB,
        vendor="amd",
        architecture="gfx942",
        runtime_version="6.2.41133-dd7f95766",
    )


def test_an_intel_gpu_is_what_torch_says() -> None:
    """Its execution units, and the driver that torch knows."""
    torch = FakeTorch("xpu")
    torch.properties = SimpleNamespace(
        name="Intel(R) Arc(TM) B580 Graphics",
        total_memory=12 << 30,
        gpu_eu_count=160,
        driver_version="1.6.33578",
        architecture=21479031808,
    )

    assert TorchRuntime(modules(torch)).own_device() == Device(
        index=0,
        uuid="",
        name="Intel(R) Arc(TM) B580 Graphics",
        memory_bytes=12 << 30,
        sm_count=160,
        driver_version="1.6.33578",
        vendor="intel",
        architecture="21479031808",
        runtime_version="20250101",
    )


@pytest.mark.parametrize("tells", [True, False])
def test_apples_gpu_is_what_torch_and_macos_say(
    monkeypatch: pytest.MonkeyPatch, *, tells: bool
) -> None:
    """An older torch names none of it, and its vendor stands for the name."""
    torch = FakeTorch("mps")
    del torch.backend.get_device_properties
    monkeypatch.setattr(platform, "mac_ver", lambda: ("15.1" if tells else "", (), ""))
    if tells:
        torch.backends.mps = SimpleNamespace(
            get_name=lambda: "Apple M3 Max", get_core_count=lambda: 40
        )
        torch.backend.recommended_max_memory = lambda: 51_539_607_552
    found = TorchRuntime(modules(torch)).own_device()

    assert found == Device(
        index=0,
        uuid="",
        name="Apple M3 Max" if tells else "apple device",
        memory_bytes=51_539_607_552 if tells else None,
        sm_count=40 if tells else None,
        vendor="apple",
        runtime_version="15.1" if tells else None,
    )


def test_a_device_is_asked_once() -> None:
    """Each record has it."""
    runtime = TorchRuntime(modules(FakeTorch()))

    assert runtime.own_device() is runtime.own_device()
    assert TorchRuntime({}).own_device() is None
    assert FirstInUse(NoDevice(), runtime).own_device() is runtime.own_device()
    assert FirstInUse(NoDevice()).own_device() is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("name", "AMD Instinct MI250X"),
        ("gcnArchName", "gfx90a"),
        ("total_memory", 137_000_000_000),
        ("multi_processor_count", 110),
        ("hip", "6.4.1"),
    ],
)
def test_another_gpu_is_not_compared(name: str, value: object) -> None:
    """Each of what torch knows is a hard fact."""

    def facts(**other: object) -> dict[str, str]:
        torch = FakeTorch("cuda")
        known = {
            "name": "AMD Instinct MI300X",
            "gcnArchName": "gfx942",
            "total_memory": 206_000_000_000,
            "multi_processor_count": 304,
            **other,
        }
        torch.version.hip = known.pop("hip", "6.2.0")
        torch.properties = SimpleNamespace(**known)
        machine = Environment(
            cpu_model=None, core_count=8, python_minor="3.11", platform="linux"
        )
        device = TorchRuntime(modules(torch)).own_device()
        return family_facts(Family.DEVICE_TIME, known_facts(machine, device))

    assert facts() == facts()
    assert len(differences(facts(**{name: value}), facts())) == 1


# ---------------------------------------------------------- several devices


def test_every_device_with_memory_is_waited_for_and_flushed() -> None:
    """Work on another one than the current one is no launch time."""
    torch = FakeTorch("cuda")
    torch.add_devices({0: 4096, 1: 4096, 2: 0})
    torch.others_busy_until_ns[1] = 5_000 * US
    runtime = TorchRuntime(modules(torch))
    assert runtime.active()
    runtime.synchronize()
    runtime.flush_l2()

    assert torch.clock.now_ns() == 5_000 * US
    assert ("synchronize", 2) not in torch.calls
    assert torch.calls.count("zero_") == 2


def test_each_device_has_events_of_its_own() -> None:
    """The current one is named with its index."""
    torch = FakeTorch("cuda")
    torch.add_devices({0: 0, 1: 0}, current=1)
    runtime = TorchRuntime(modules(torch))

    assert TorchEvents(runtime, modules(torch)).place() == "cuda:1"


@pytest.mark.parametrize(
    ("function", "act"),
    [
        ("synchronize", TorchRuntime.synchronize),
        ("zero_", TorchRuntime.flush_l2),
        ("empty", TorchRuntime.flush_l2),
    ],
)
def test_an_error_of_the_device_is_an_error(
    function: str, act: Callable[[TorchRuntime], None]
) -> None:
    """Verdict: an error; its first line says what it is."""
    torch = FakeTorch()
    torch.failing[function] = "device lost\nlong trace"

    with pytest.raises(CollectError, match=r"failed: device lost; "):
        act(TorchRuntime(modules(torch)))


def collector(torch: FakeTorch) -> HostCollector:
    """Return a collector that times on torch's device."""
    runtime = TorchRuntime(modules(torch))
    timer = EventTimer((TorchEvents(runtime, modules(torch)),), torch.clock.now_ns)
    return HostCollector(torch.clock, runtime, (timer,))


class StopAt:
    """A stop rule that wants ten samples."""

    def enough(self, values: Sequence[float]) -> bool:
        return len(values) >= 10


def body(torch: FakeTorch) -> Callable[[], None]:
    """Return a call of 2 us that leaves 100 us of work."""

    def fn() -> None:
        torch.clock.advance(2 * US)
        torch.launch(100 * US)

    return fn


def test_calls_are_timed_by_torchs_events() -> None:
    """On the stream that torch says is current."""
    torch = FakeTorch()
    timing = collector(torch).measure(TimedCall(fn=body(torch)), stop=StopAt())

    assert timing.source == "events"
    assert timing.samples == pytest.approx([102e-6] * 10)
    assert ("record", "stream") in torch.calls


@pytest.mark.parametrize("kind", ["cuda", "xpu"])
def test_an_older_torch_has_events_of_its_backend(kind: str) -> None:
    """torch 2.5 has no torch.accelerator; the time is the kernel's, no launch's."""
    torch = FakeTorch(kind)
    torch.grow_old()
    timing = collector(torch).measure(TimedCall(fn=body(torch)), stop=StopAt())

    assert timing.source == "events"
    assert timing.samples == pytest.approx([102e-6] * 10)


def test_an_older_torch_without_events_has_the_hosts_time() -> None:
    """Of Apple's devices torch 2.5 has other events: the device is waited for."""
    torch = FakeTorch("mps")
    torch.grow_old()
    del torch.backend.current_stream
    timing = collector(torch).measure(TimedCall(fn=body(torch)), stop=StopAt())
    (note,) = timing.notes

    assert timing.source == "host"
    assert timing.samples == pytest.approx([102e-6] * 10)
    assert "torch's events need torch 2.6 on mps" in note.text
    assert "install torch 2.6 or newer" in note.text


@pytest.mark.parametrize(
    ("function", "named"),
    [
        ("current_stream", "torch.accelerator.current_stream"),
        ("Event", "torch.Event"),
        ("record", "torch.Event.record"),
        ("event", "torch.Event.synchronize"),
        ("elapsed_time", "torch.Event.elapsed_time"),
    ],
)
def test_events_that_torch_refuses_give_up_the_set(function: str, named: str) -> None:
    """Verdict: the host's times stand, with a note that names the function."""
    torch = FakeTorch()
    torch.failing[function] = "not on this backend"
    timing = collector(torch).measure(TimedCall(fn=body(torch)), stop=StopAt())

    assert timing.source == "host"
    (note,) = timing.notes
    assert note.code == "events-failed"
    assert f"{named} failed: not on this backend" in note.text


# ---------------------------------------------------------- several runtimes


def test_the_runtime_that_is_used_first_stays() -> None:
    """It is asked alone from then on."""
    first, second = FakeTorch("cuda"), FakeTorch("xpu")
    not_started(first)
    both = FirstInUse(TorchRuntime(modules(first)), TorchRuntime(modules(second)))

    assert both.vendor == "intel"
    first.backend.is_initialized = lambda: True
    both.synchronize()
    both.flush_l2()

    assert both.vendor == "intel"
    assert first.calls == []
    assert second.calls == ["synchronize", ("empty", 2048), "zero_"]


def test_no_runtime_in_use_waits_for_nothing() -> None:
    """And names no device."""
    runtime = FirstInUse(NoDevice(), TorchRuntime({}))
    runtime.synchronize()
    runtime.flush_l2()

    assert not runtime.active()
    assert runtime.vendor == ""
    assert runtime.device_uuid() is None
    assert runtime.facts_of("GPU-0") is None
