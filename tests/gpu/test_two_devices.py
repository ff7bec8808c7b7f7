"""Work on another GPU than the current one: it is waited for, and no launch time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from pytest_gpuperf.collect.base import TimedCall
from pytest_gpuperf.collect.clock import SystemClock
from pytest_gpuperf.collect.runtime import DeviceRuntime
from pytest_gpuperf.collect.timing.events import EventTimer, find_events
from pytest_gpuperf.collect.timing.host import HostCollector

CYCLES = 10_000_000  # of an SM clock between 1 and 2 GHz: 5 to 10 ms
LEAST_S = 4e-3  # a launch takes some 20 us


class Ten:
    """A stop rule that wants ten samples."""

    def enough(self, values: Sequence[float]) -> bool:
        return len(values) >= 10


@pytest.fixture
def other(torch: Any) -> str:
    """A second GPU, which is not the current one."""
    if torch.cuda.device_count() < 2:
        pytest.skip("torch sees one GPU")
    assert torch.cuda.current_device() == 0
    return "cuda:1"


def on(torch: Any, device: str) -> Callable[[], None]:
    """Return a call that leaves some milliseconds of work on a device."""

    def work() -> None:
        with torch.cuda.device(device):
            torch.cuda._sleep(CYCLES)

    return work


@pytest.mark.parametrize("timed_by_events", [True, False])
def test_work_on_another_device_has_its_time(
    torch: Any,
    clock: SystemClock,
    runtime: DeviceRuntime,
    other: str,
    *,
    timed_by_events: bool,
) -> None:
    """The host waits for both devices; events of the current one are given up."""
    timers = (EventTimer(find_events(), clock.now_ns),) if timed_by_events else ()
    host = HostCollector(clock, runtime, timers)
    timing = host.measure(TimedCall(fn=on(torch, other)), stop=Ten())

    assert timing.source == "host"
    assert min(timing.samples) > LEAST_S


def test_a_thread_without_a_context_waits_for_what_others_use(
    torch: Any, clock: SystemClock, runtime: DeviceRuntime
) -> None:
    """A new thread has no current context; its call gives another thread the work."""
    times_s: list[float] = []

    def work() -> None:
        worker = threading.Thread(target=on(torch, "cuda:0"))
        worker.start()
        worker.join()

    def measure() -> None:
        timing = HostCollector(clock, runtime).measure(TimedCall(fn=work), stop=Ten())
        times_s.append(min(timing.samples))

    measuring = threading.Thread(target=measure)
    measuring.start()
    measuring.join()

    assert times_s
    assert times_s[0] > LEAST_S
