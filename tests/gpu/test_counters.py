"""Counters that are counted in this process: of kernels and of ranges."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuperf.collect.runtime import DeviceRuntime
from pytest_gpuperf.errors import CollectError, GpuPerfError

if TYPE_CHECKING:
    from pytest_gpuperf.collect.cupti.range_profiler import RangeProfiler

READ, WRITTEN = "dram__bytes_read.sum", "dram__bytes_write.sum"
TENSOR = "sm__inst_executed_pipe_tensor.sum"
TIME = "gpu__time_duration.sum"
TWO_GIB = 2 << 30


@pytest.fixture
def profiler(runtime: DeviceRuntime) -> Iterator[Callable[..., RangeProfiler]]:
    """Makes profilers, and lets go of them."""
    from pytest_gpuperf.collect.cupti.range_profiler import RangeProfiler

    made: list[RangeProfiler] = []

    def make(*metrics: str, **how: Any) -> RangeProfiler:
        try:
            found = RangeProfiler(metrics, synchronize=runtime.synchronize, **how)
        except CollectError as error:
            pytest.skip(f"counters: {error}")
        made.append(found)
        return found

    yield make
    for each in made:
        each.close()


def test_a_copy_moves_what_it_has_to(
    torch: Any, profiler: Callable[..., RangeProfiler]
) -> None:
    """2 GiB are read and 2 GiB written, within 10 %: an L2 keeps some of the last."""
    x = torch.ones(TWO_GIB // 4, device="cuda")
    out = torch.empty_like(x)
    counted = profiler(READ, WRITTEN).count_kernels(lambda: torch.add(x, 1, out=out))
    (kernel,) = counted.ranges

    assert counted.void is None
    assert kernel.metrics[READ].value == pytest.approx(TWO_GIB, rel=0.1)
    assert kernel.metrics[WRITTEN].value == pytest.approx(TWO_GIB, rel=0.1)
    assert kernel.metrics[READ].unit == "byte"


def test_memory_is_put_back_between_passes(
    torch: Any, profiler: Callable[..., RangeProfiler]
) -> None:
    """A kernel that adds one in place has added one, however often it ran."""
    counting = profiler(
        READ, TENSOR, "sm__throughput.avg.pct_of_peak_sustained_elapsed"
    )
    x = torch.zeros(1 << 20, device="cuda")
    counting.count_kernels(lambda: x.add_(1))

    assert counting.passes_count > 1
    assert float(x.sum()) == x.numel()


def test_each_kernel_is_a_range_of_its_own(
    torch: Any,
    profiler: Callable[..., RangeProfiler],
    gemm: Callable[[], object],
) -> None:
    """A product has instructions of the tensor cores, an addition has none."""
    x = torch.ones(1 << 20, device="cuda")
    gemm()

    def body() -> None:
        gemm()
        x.add_(1)

    ranges = profiler(TENSOR).count_kernels(body).ranges

    assert len(ranges) >= 2
    assert (ranges[0].metrics[TENSOR].value or 0) > 0
    assert ranges[-1].metrics[TENSOR].value == 0


def test_ranges_have_their_names(
    torch: Any,
    profiler: Callable[..., RangeProfiler],
    stream_copy: Callable[[], object],
) -> None:
    """The body runs again until all is counted, and each range has its own numbers."""
    x = torch.ones(1 << 20, device="cuda")
    calls = 0

    def body(ranged: Any) -> None:
        nonlocal calls
        calls += 1
        with ranged("large"):
            stream_copy()
        with ranged("small"):
            x.add_(1)

    counted = profiler(READ, WRITTEN, TIME).count_ranges(body)
    found = {each.name: each.metrics for each in counted.ranges}

    assert counted.passes_count == calls
    assert set(found) == {"large", "small"}
    large, small = (found[name][READ].value or 0 for name in ("large", "small"))
    assert large == pytest.approx(512 << 20, rel=0.15)
    assert small < large / 10


def test_counting_leaves_the_results_right(
    torch: Any,
    profiler: Callable[..., RangeProfiler],
    gemm: Callable[[], object],
) -> None:
    """After counting the GPU computes what it did before."""
    before = torch.as_tensor(gemm()).clone()
    profiler(READ).count_kernels(gemm)

    assert torch.equal(torch.as_tensor(gemm()), before)


def test_what_the_chip_lacks_is_refused_by_name(
    profiler: Callable[..., RangeProfiler],
) -> None:
    """A mistyped counter is an error before anything is counted."""
    with pytest.raises(GpuPerfError) as caught:
        profiler("dram__bytes_raed.sum")

    assert "dram__bytes_raed.sum" in str(caught.value)


def test_counted_data_have_the_same_values_elsewhere(
    profiler: Callable[..., RangeProfiler],
    stream_copy: Callable[[], object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another process can evaluate what was counted here, and crashes on what was not."""
    import numpy as np

    from pytest_gpuperf.collect.cupti import ProfilerHost, ProfilerType
    from pytest_gpuperf.collect.cupti.libcupti import load
    from pytest_gpuperf.collect.cupti.metric_host import MetricHost

    images: list[bytes] = []
    values = MetricHost.values

    def kept(host: MetricHost, image: Any, *rest: Any) -> Any:
        images.append(image.raw)
        return values(host, image, *rest)

    monkeypatch.setattr(MetricHost, "values", kept)
    counted = profiler(READ, WRITTEN).count_kernels(stream_copy)
    (kernel,) = counted.ranges
    host = ProfilerHost(load().chip(0), ProfilerType.RANGE_PROFILER)
    host.initialize()
    image = np.frombuffer(images[0], dtype=np.uint8)

    assert list(host.evaluate_metric_values(image, [READ, WRITTEN], 0)) == [
        kernel.metrics[name].value for name in (READ, WRITTEN)
    ]
    with pytest.raises(ValueError, match="counter_data_image"):
        host.evaluate_metric_values(np.full(64, 255, np.uint8), [READ], 0)
    host.deinitialize()
