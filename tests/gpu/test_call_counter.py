"""A call that CUPTI has recorded is counted between two recordings of the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from gpu.machine import seen
from pytest_gpuperf.collect.base import TimedCall
from pytest_gpuperf.collect.runtime import DeviceRuntime
from pytest_gpuperf.model.gap import Gap

if TYPE_CHECKING:
    from pytest_gpuperf.collect.cupti.activity import ActivityCollector
    from pytest_gpuperf.collect.cupti.call_counter import CountedCall

READ = "dram__bytes_read.sum"
MIB = 1 << 20


def counted(
    collector: ActivityCollector, runtime: DeviceRuntime, body: Callable[[], object]
) -> CountedCall:
    """Return what is counted of a body that was recorded, while nothing records."""
    from pytest_gpuperf.collect.cupti.call_counter import Call, CallCounter

    call = Call(
        request=TimedCall(fn=body, cache="warm"),
        time_s=1e-3,
        trace=seen(collector, body),
    )
    collector.close()
    found = CallCounter(runtime).count(call, (READ,))
    collector.open()
    if isinstance(found, Gap):
        pytest.skip(f"counters: {found.reason}; {found.remedy}")
    return found


def test_kernels_are_counted_under_the_names_that_were_recorded(
    torch: Any, collector: ActivityCollector, runtime: DeviceRuntime
) -> None:
    """The large addition reads its 512 MiB, within 10 %; the small one next to nothing."""
    large = torch.ones(128 * MIB, device="cuda")
    out = torch.empty_like(large)
    small = torch.ones(1024, device="cuda")

    def body() -> None:
        torch.add(large, 1, out=out)
        small.sqrt_()

    found = counted(collector, runtime, body)
    first, second = (each.metrics[READ].value for each in found.counted.ranges)

    assert len(found.names) == 2
    assert len(set(found.names)) == 2
    assert first == pytest.approx(512 * MIB, rel=0.1)
    assert second is not None
    assert second < MIB
    assert float(small[0]) == 1.0


def test_recording_goes_on_when_it_was_given_back(
    torch: Any, collector: ActivityCollector, runtime: DeviceRuntime
) -> None:
    """What is launched afterwards has its records, a graph made before included."""
    x = torch.ones(MIB, device="cuda")
    x.add_(1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x.add_(1)
        x.mul_(2)
    found = counted(collector, runtime, graph.replay)

    assert found.names == ()
    assert found.counted.mode.replay == "user"
    assert len(seen(collector, lambda: x.add_(1)).launches) == 1
    assert len(seen(collector, graph.replay).launches) == 2
