"""TorchRuntime of collect.torch_device, and its events: devices that are not CUDA's, through a torch that is loaded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from fakes.clock import FakeClock
from pytest_gpuperf.collect.base import TimedCall
from pytest_gpuperf.collect.runtime import (
    DeviceRuntime,
    FirstInUse,
    NoDevice,
)
from pytest_gpuperf.collect.timing.events import EventTimer, TorchEvents
from pytest_gpuperf.collect.timing.host import HostCollector
from pytest_gpuperf.collect.torch_device import TorchRuntime
from pytest_gpuperf.errors import CollectError

US = 1_000  # ns


class FakeTorch:
    """
    What torch 2.6 and newer has of a device, on a scripted one.

    Attributes:
        clock: The time of the host and the device.

        calls: What was called, in order.

        failing: Message of the RuntimeError, by function.
    """

    def __init__(self, kind: str = "xpu", *, cuda: str | None = None) -> None:
        self.clock = FakeClock()
        self.calls: list[object] = []
        self.failing: dict[str, str] = {}
        self.busy_until_ns = 0
        self.version = SimpleNamespace(cuda=cuda)
        self.uint8 = "uint8"
        self.device = SimpleNamespace(type=kind)
        self.backend = SimpleNamespace(
            is_initialized=lambda: True,
            get_device_properties=lambda: SimpleNamespace(L2_cache_size=1024),
        )
        setattr(self, kind, self.backend)
        self.accelerator = SimpleNamespace(
            current_accelerator=lambda: self.device,
            current_stream=self._stream,
            synchronize=self._synchronize,
        )

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


def too_old(torch: FakeTorch) -> None:
    del torch.accelerator


def no_memory(torch: FakeTorch) -> None:
    del torch.backend.is_initialized
    torch.backend.driver_allocated_memory = lambda: 0


@pytest.mark.parametrize(
    "change", [no_accelerator, not_started, of_cuda, too_old, no_memory]
)
def test_a_device_that_is_not_in_use_is_left_alone(
    change: Callable[[FakeTorch], None],
) -> None:
    """None there, none started, CUDA's own, or a torch that does not say."""
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


def test_an_l2_that_torch_does_not_know_is_taken_for_the_largest() -> None:
    """More than any L2 there is: 2 x 128 MiB."""
    torch = FakeTorch()
    del torch.backend.get_device_properties
    TorchRuntime(modules(torch)).flush_l2()

    assert torch.calls[0] == ("empty", 256 << 20)


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
