"""What the tests on a GPU share: each names what it lacks, and skips."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gpu.machine import framework
from pytest_gpuperf.collect.clock import SystemClock
from pytest_gpuperf.collect.devices import query_devices
from pytest_gpuperf.collect.runtime import DeviceRuntime, find_runtime
from pytest_gpuperf.errors import CollectorUnavailableError, CounterPermissionError

if TYPE_CHECKING:
    from pytest_gpuperf.collect.cupti.activity import ActivityCollector

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder; a warning of a framework is not a failure of ours."""
    ours = [item for item in items if HERE in item.path.parents]
    query = query_devices() if ours else None
    for item in ours:
        item.add_marker("gpu")
        item.add_marker(pytest.mark.filterwarnings("default"))
        if query is not None and not query.devices:
            item.add_marker(pytest.mark.skip(reason=f"no GPU: {query.reason}"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Skip what this user may not count: that shows when counting begins, no earlier."""
    try:
        return (yield)
    except CounterPermissionError as error:
        pytest.skip(f"counters: {error} ({item.name})")


@pytest.fixture(scope="session")
def clock() -> SystemClock:
    """The machine's clock."""
    return SystemClock()


@pytest.fixture(scope="session")
def torch() -> Any:
    """The module torch, which sees the GPU."""
    module = framework("torch")
    if not module.cuda.is_available():
        pytest.skip("torch sees no GPU")
    module.zeros(1, device="cuda")  # a context, which stays
    return module


@pytest.fixture(scope="session")
def cupti(torch: Any) -> Any:
    """The package cupti-python, where this process can have CUPTI."""
    from pytest_gpuperf.collect.cupti.activity import ActivityCollector

    module = framework("cupti.cupti")
    collector = ActivityCollector(torch.cuda.synchronize)
    try:
        collector.open()
    except CollectorUnavailableError as error:
        pytest.skip(f"CUPTI: {error}")
    collector.close()
    return module


@pytest.fixture(scope="session")
def runtime(torch: Any) -> DeviceRuntime:
    """The device as the plugin waits for it."""
    found = find_runtime()
    assert found.active(), "torch has a context, and the runtime does not see it"
    return found


@pytest.fixture(scope="session")
def ncu() -> str:
    """The path of Nsight Compute."""
    found = shutil.which("ncu")
    if found is None:
        pytest.skip("no ncu on PATH")
    return found


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder for caches and locks, so that no other run is met there."""
    for name in ("GPUPERF_CACHE_DIR", "GPUPERF_LOCK_DIR", "GPUPERF_PEAKS"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    return tmp_path


@pytest.fixture
def gemm(torch: Any) -> Callable[[], object]:
    """A product on the tensor cores, some 0.2 ms on a large GPU: 137 GFLOP."""
    size = 4096
    a = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(a)
    return lambda: torch.matmul(a, a, out=out)


@pytest.fixture
def stream_copy(torch: Any) -> Callable[[], object]:
    """A kernel that reads 512 MiB and writes as much."""
    x = torch.ones(1 << 27, device="cuda")
    out = torch.empty_like(x)
    return lambda: torch.add(x, 1, out=out)


@pytest.fixture
def spin(torch: Any) -> Callable[[int], None]:
    """A kernel that turns round for so many cycles of the SM clock."""

    def turn(cycles: int) -> None:
        torch.cuda._sleep(cycles)

    return turn


@pytest.fixture
def collector(cupti: Any, runtime: DeviceRuntime) -> Iterator[ActivityCollector]:
    """A collector that records."""
    from pytest_gpuperf.collect.cupti.activity import ActivityCollector

    found = ActivityCollector(runtime.synchronize)
    found.open()
    try:
        yield found
    finally:
        found.close()
