"""A GPU of AMD, through a torch for ROCm: old or new, another model, no launch times."""

from __future__ import annotations

import pytest

from fakes.project import Project

# Work is queued and done in real time, and only waiting takes as long as the work.
TORCH = """
    import os
    import time
    from types import SimpleNamespace

    VERSION = tuple(map(int, os.environ["TORCH_VERSION"].split(".")))
    uint8 = "uint8"
    version = SimpleNamespace(cuda=None, hip="6.2.41133")
    _busy_until_s = 0.0

    def launch(duration_s=2e-3):
        global _busy_until_s
        slower = float(os.environ.get("SLOWER", "1"))
        _busy_until_s = max(time.perf_counter(), _busy_until_s) + duration_s * slower

    def _wait_until(time_s):
        while time.perf_counter() < time_s:
            pass

    def _synchronize():
        _wait_until(_busy_until_s)

    class Event:
        def __init__(self, device=None, enable_timing=False):
            self._reached_s = 0.0

        def record(self, stream=None):
            self._reached_s = max(time.perf_counter(), _busy_until_s)

        def synchronize(self):
            _wait_until(self._reached_s)

        def elapsed_time(self, end):
            return (end._reached_s - self._reached_s) * 1e3

    def empty(size, **how):
        return SimpleNamespace(zero_=lambda: launch(1e-4))

    _PROPERTIES = SimpleNamespace(
        name=os.environ["GPU_NAME"], gcnArchName="gfx90a", L2_cache_size=8 << 20
    )
    cuda = SimpleNamespace(
        is_initialized=lambda: True,
        current_device=lambda: 0,
        get_device_properties=lambda index=0: _PROPERTIES,
        current_stream=lambda: "stream",
        synchronize=_synchronize,
    )
    if VERSION >= (2, 6):
        accelerator = SimpleNamespace(
            current_accelerator=lambda: SimpleNamespace(type="cuda"),
            current_stream=lambda: "stream",
            synchronize=_synchronize,
        )
    else:
        cuda.Event = Event
        del Event
"""
TESTS = """
    import pytest
    import torch

    @pytest.mark.gpuperf
    def test_kernel(gpuperf):
        perf = gpuperf.measure(torch.launch)
        assert 1.9e-3 < perf.time < 20e-3
"""
STORE = "--gpuperf-baseline=stored"


@pytest.fixture(params=["2.5", "2.6"])
def gpu(request: pytest.FixtureRequest, project: Project) -> Project:
    """A project on an MI250X, with an older and a newer torch."""
    project.write(TORCH, "torch.py")
    project.write(TESTS)
    project.environment.setenv("TORCH_VERSION", request.param)
    project.environment.setenv("GPU_NAME", "AMD Instinct MI250X")
    return project


def test_a_kernel_has_its_time(gpu: Project) -> None:
    """By torch's events of the backend or of 2.6, and the GPU has its name."""
    ended = gpu.spawn("--gpuperf-json=run.json")
    (record,) = gpu.report("run.json")["records"]

    assert ended.returncode == 0
    assert "gpuperf: AMD Instinct MI250X, " in ended.stdout
    assert "cupti:" not in ended.stdout
    assert "events" in {each["source"] for each in record["estimates"]}
    assert record["device"]["vendor"] == "amd"
    facts = next(facts for facts in record["facts"].values() if "gpu_name" in facts)
    assert facts["gpu_architecture"] == "gfx90a"
    assert facts["gpu_runtime"] == "6.2"


def test_another_gpu_is_not_a_regression(gpu: Project) -> None:
    """A baseline of another model does not judge a kernel that is slower here."""
    assert gpu.spawn(STORE, "--gpuperf-update=all").returncode == 0
    gpu.environment.setenv("SLOWER", "1.6")
    same = gpu.spawn(STORE)
    gpu.environment.setenv("GPU_NAME", "AMD Instinct MI300X")
    other = gpu.spawn(STORE)

    assert "limit 5 %" in same.stdout, same.stderr
    assert "limit 5 %" not in other.stdout
    assert "incomparable test_kernel" in other.stdout
    assert (
        "only other machines have stored sessions: amd-instinct-mi250x" in other.stdout
    )
