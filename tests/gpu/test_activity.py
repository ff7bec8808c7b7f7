"""CUPTI's records of programs whose kernels, copies and waits are known."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from gpu.machine import seen
from pytest_gpuperf.collect.runtime import DeviceRuntime
from pytest_gpuperf.model.activity import Launches

if TYPE_CHECKING:
    from pytest_gpuperf.collect.cupti.activity import ActivityCollector
    from pytest_gpuperf.model.activity import Trace

MIB = 1 << 20
CALLS = 20
MILLISECOND_CYCLES = 1_500_000  # of an SM clock between 1 and 2 GHz: 0.75 to 1.5 ms


def columns(trace: Trace) -> Launches:
    """Return the kernels, which are few enough to be whole."""
    assert isinstance(trace.launches, Launches)
    return trace.launches


def names(trace: Trace) -> list[str]:
    """Return the names of the kernels, in the order in which they began."""
    launches = columns(trace)
    order = sorted(range(len(launches)), key=lambda at: launches.start_ns[at])
    return [launches.shapes[launches.shape[at]].name for at in order]


def test_nothing_is_nothing(collector: ActivityCollector) -> None:
    """A window in which nothing runs has no kernel, copy, fill or wait."""
    trace = seen(collector, lambda: None)

    assert len(trace.launches) == 0
    assert not trace.copies
    assert not trace.fills
    assert sum(trace.synchronizations.values()) == 0


def test_kernels_are_counted_and_named(
    torch: Any, collector: ActivityCollector
) -> None:
    """Each of 20 calls launches one kernel, of one name, and each is timed."""
    x = torch.ones(MIB, device="cuda")
    trace = seen(collector, lambda: [x.add_(1) for _ in range(CALLS)])
    launches = columns(trace)

    assert len(launches) == CALLS
    assert trace.host_launches_count == CALLS
    assert len(launches.shapes) == 1
    assert "elementwise" in launches.shapes[0].name
    assert launches.shapes[0].registers_count > 0
    assert all(s < e for s, e in zip(launches.start_ns, launches.end_ns, strict=True))
    assert list(launches.start_ns) == sorted(launches.start_ns)
    assert len(trace.latencies_ns) == CALLS


def test_a_triton_kernel_has_the_shape_that_was_asked_for(
    torch: Any, collector: ActivityCollector
) -> None:
    """Name, grid and block are those of the launch."""
    pytest.importorskip("triton", reason="triton is not installed")
    from gpu.programs.triton_kernel import add_one

    x = torch.ones(MIB, device="cuda")
    trace = seen(collector, lambda: add_one(x))
    (shape,) = trace.launches.shapes

    assert shape.name == "add_one_kernel"
    assert shape.grid == (MIB // 1024, 1, 1)
    assert shape.block == (128, 1, 1)  # 4 warps


def test_a_library_that_calls_the_driver_is_seen(
    collector: ActivityCollector, gemm: Callable[[], object]
) -> None:
    """A product of cuBLAS, launched without the runtime, has a kernel and its call."""
    trace = seen(collector, gemm)

    assert len(trace.launches) >= 1
    assert trace.host_launches_count >= 1
    assert all(columns(trace).call_ns)


def test_copies_are_counted_to_the_byte(
    torch: Any, collector: ActivityCollector
) -> None:
    """Direction, memory and size of a copy each way are exact."""
    pageable = torch.ones(3 * MIB, dtype=torch.uint8)
    pinned = torch.ones(5 * MIB, dtype=torch.uint8).pin_memory()
    there = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
    more = torch.empty(5 * MIB, dtype=torch.uint8, device="cuda")

    def body() -> None:
        there.copy_(pageable)
        more.copy_(pinned, non_blocking=True)
        pinned.copy_(more)
        more.copy_(more.clone())

    moved: dict[tuple[str, str], int] = {}
    for copy in seen(collector, body).copies:
        host = copy.target if copy.direction == "device_to_host" else copy.source
        key = copy.direction, host
        moved[key] = moved.get(key, 0) + copy.size_bytes

    assert moved["host_to_device", "pageable"] == 3 * MIB
    assert moved["host_to_device", "pinned"] == 5 * MIB
    assert moved["device_to_host", "pinned"] == 5 * MIB
    assert moved["device_to_device", "device"] == 10 * MIB


def test_fills_are_counted_to_the_byte(
    torch: Any, collector: ActivityCollector
) -> None:
    """zero_() of bytes is a memset of as many, or one kernel: never nothing."""
    x = torch.empty(7 * MIB, dtype=torch.uint8, device="cuda")
    trace = seen(collector, x.zero_)

    assert sum(size for size, _, _ in trace.fills) == 7 * MIB or (
        len(trace.launches) == 1
    )


def test_waits_are_counted(torch: Any, collector: ActivityCollector) -> None:
    """Three waits for the device and two for a stream are as many of each kind."""
    stream = torch.cuda.current_stream()

    def body() -> None:
        for _ in range(3):
            torch.cuda.synchronize()
        for _ in range(2):
            stream.synchronize()

    waits = seen(collector, body).synchronizations

    assert waits.get("context", 0) == 3
    assert waits.get("stream", 0) == 2


def test_the_driver_s_allocations_are_counted(
    torch: Any, collector: ActivityCollector
) -> None:
    """A block that torch has to ask the driver for is one allocation of its size."""

    def body() -> None:
        torch.cuda.empty_cache()
        torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")

    assert seen(collector, body).allocations == (64 * MIB,)


@pytest.mark.parametrize("whole", [False, True], ids=["by-node", "as-a-whole"])
def test_a_graph_is_one_call(
    torch: Any, cupti: Any, runtime: DeviceRuntime, *, whole: bool
) -> None:
    """Its ten kernels are told apart by node, and are one piece where that is asked."""
    from pytest_gpuperf.collect.cupti.activity import ActivityCollector

    collector = ActivityCollector(runtime.synchronize, whole_graphs=whole)
    collector.open()
    try:
        x = torch.ones(MIB, device="cuda")
        graph = torch.cuda.CUDAGraph()
        x.add_(1)
        with torch.cuda.graph(graph):
            for _ in range(10):
                x.add_(1)
        trace = seen(collector, graph.replay)
    finally:
        collector.close()

    assert trace.host_launches_count == 1
    assert len(trace.graphs) == (1 if whole else 0)
    assert len(trace.launches) == (0 if whole else 10)
    if not whole:
        assert 0 not in columns(trace).graph
        assert len(frozenset(columns(trace).graph)) == 1


def test_another_thread_s_kernels_are_in_the_window(
    torch: Any, collector: ActivityCollector
) -> None:
    """autograd launches from a thread of its own: told by time, and counted."""
    x = torch.randn(512, 512, device="cuda", requires_grad=True)
    trace = seen(collector, lambda: (x @ x).sum().backward())

    assert trace.unlabelled_count > 0
    assert len(trace.launches) > 2


def test_samples_agree_with_events(
    torch: Any,
    collector: ActivityCollector,
    runtime: DeviceRuntime,
    gemm: Callable[[], object],
    spin: Callable[[int], None],
) -> None:
    """
    The span of a product is torch's time of it, within 3 % and 10 us, never above.

    The device is kept busy until all of it is submitted: on an idle one the events would
    time the host too.
    """
    from pytest_gpuperf.collect.cupti.activity import ActivityTimer

    timer = ActivityTimer(collector)
    outer_s = []
    gemm()
    for _ in range(CALLS):
        runtime.flush_l2()
        torch.cuda.synchronize()
        begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        spin(2 * MILLISECOND_CYCLES)
        begun.record()
        timer.begin()
        gemm()
        timer.end()
        ended.record()
        torch.cuda.synchronize()
        outer_s.append(begun.elapsed_time(ended) / 1000)
    taken = timer.taken()

    assert timer.refusal() is None
    assert len(taken) == CALLS
    assert None not in taken
    ours_s = statistics.median(each for each in taken if each is not None)
    assert ours_s == pytest.approx(statistics.median(outer_s), rel=0.03, abs=10e-6)
    assert ours_s <= statistics.median(outer_s) + 1e-6


def test_a_second_user_is_refused_by_name(
    cupti: Any, collector: ActivityCollector, runtime: DeviceRuntime
) -> None:
    """While one collector has CUPTI, another is told that it is held."""
    from pytest_gpuperf.collect.cupti.activity import ActivityCollector
    from pytest_gpuperf.errors import CollectorUnavailableError

    second = ActivityCollector(runtime.synchronize)
    with pytest.raises(CollectorUnavailableError) as caught:
        second.open()

    assert caught.value.remedy
    assert not second.is_open


def test_it_gives_cupti_back(cupti: Any, runtime: DeviceRuntime, torch: Any) -> None:
    """Opened and closed three times, it records each time, and torch.profiler then too."""
    from pytest_gpuperf.collect.cupti.activity import ActivityCollector

    x = torch.ones(MIB, device="cuda")
    for _ in range(3):
        collector = ActivityCollector(runtime.synchronize)
        collector.open()
        try:
            assert len(seen(collector, lambda: x.add_(1)).launches) == 1
        finally:
            collector.close()
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        x.add_(1)
        torch.cuda.synchronize()

    assert any("elementwise" in event.key for event in profiler.key_averages())
