"""
Full memory, a device that was reset, and captures: what ends well, and what is said.

This process makes no context: NVML would name it to the runs as another user of the GPU.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fakes.project import Project
from gpu.machine import allowed_cupti, installed

COLLECTORS = "--gpuperf-collectors=events,host"

FULL = """
    import pytest
    import torch

    @pytest.mark.parametrize("cache", ["warm", "cold"])
    def test_full(gpuperf, cache):
        x = torch.ones(1 << 10, device="cuda")
        out = torch.empty_like(x)
        free_bytes, _ = torch.cuda.mem_get_info()
        left_bytes = torch.cuda.get_device_properties(0).L2_cache_size
        held = torch.empty(free_bytes - left_bytes, dtype=torch.uint8, device="cuda")
        gpuperf.measure(lambda: torch.add(x, 1, out=out), cache=cache)
        del held
        torch.cuda.empty_cache()
"""
# no framework: torch does not outlive a reset
RESET = """
    import ctypes

    SIZE_BYTES = 256 << 20
    driver = ctypes.CDLL("libcuda.so.1")

    def call(name, *arguments):
        status = getattr(driver, name)(*arguments)
        assert status == 0, (name, status)

    def begin():
        context = ctypes.c_void_p()
        call("cuInit", 0)
        call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        call("cuCtxSetCurrent", context)

    def filled(value):
        address = ctypes.c_uint64()
        size = ctypes.c_size_t(SIZE_BYTES)
        call("cuMemAlloc_v2", ctypes.byref(address), size)
        call("cuMemsetD8_v2", address, ctypes.c_ubyte(value), size)
        return address

    def is_whole(address, value):
        copy = ctypes.create_string_buffer(SIZE_BYTES)
        call("cuMemcpyDtoH_v2", copy, address, ctypes.c_size_t(SIZE_BYTES))
        return copy.raw.count(bytes([value])) == SIZE_BYTES

    def body(address):
        return lambda: call("cuMemsetD8_v2", address, ctypes.c_ubyte(1), ctypes.c_size_t(1 << 20))

    def test_reset(gpuperf):
        begin()
        gpuperf.measure(body(filled(1)), name="before", cache="cold")
        call("cuDevicePrimaryCtxReset_v2", 0)
        begin()
        kept = filled(7)
        gpuperf.measure(body(filled(1)), name="after", cache="cold")
        assert is_whole(kept, 7)
"""
CAPTURE = """
    import torch

    def test_body(gpuperf):
        x = torch.ones(1 << 20, device="cuda")

        def body():
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                x.add_(1)
            graph.replay()

        gpuperf.measure(body)

    def test_range(gpuperf):
        x = torch.ones(1 << 20, device="cuda")
        x.add_(1)
        with torch.cuda.graph(torch.cuda.CUDAGraph()), gpuperf.range("inside"):
            x.add_(1)
"""


def test_full_memory_fails_a_cold_test_alone(project: Project, own: Path) -> None:
    """A warm test needs no buffer; a cold one says how much must be left, and what to do."""
    installed("torch")
    project.write(FULL)
    ended = project.spawn(COLLECTORS, timeout=120)

    assert "1 failed, 1 passed" in ended.stdout, ended.stdout
    assert "CUDA_ERROR_OUT_OF_MEMORY (2)" in ended.stdout
    assert 'cache="warm"' in ended.stdout


def test_a_reset_costs_nothing(project: Project, own: Path) -> None:
    """After a reset a cold test is measured, and nobody's new array is overwritten."""
    project.write(RESET)
    ended = project.spawn(COLLECTORS, timeout=120)

    assert ended.returncode == 0, ended.stdout


@pytest.mark.parametrize("collectors", ["events,host", "cupti,events,host"])
def test_a_body_may_capture(project: Project, own: Path, collectors: str) -> None:
    """A body that captures is measured; a range inside a capture says what to measure."""
    installed("torch")
    if "cupti" in collectors:
        installed("cupti")
    project.write(CAPTURE)
    ended = project.spawn(f"--gpuperf-collectors={collectors}", timeout=120)
    allowed_cupti(ended.stdout)

    assert "1 failed, 1 passed" in ended.stdout, ended.stdout
    assert "FAILED test_it.py::test_range" in ended.stdout
    assert "measure the replay of a graph" in ended.stdout
